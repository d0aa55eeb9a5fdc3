"""The effects of a function: stores to memory, and decisions that depend on the results of atomics."""

from sim.ptx.accesses import STRONG
from sim.ptx.register_kinds import read_and_written
from sim.ptx.syntax import Instruction


def effects_of(function, barriers):
    """Return three flags for a function: whether it stores to memory that other blocks can read, whether its
    threads can act on the result of an atomic, and whether it receives signals of other threads, which fences
    can order.

    A thread receives a signal by a strong load, or by a relaxed operation of a barrier. Atomics whose results
    are read count only for the second flag.

    barriers: the ids of the instructions of grid barriers. Their atomics are executed as barriers, so threads
        do not act on the results.
    """
    items = [item for item in function.body if isinstance(item, Instruction) and id(item) not in barriers]
    read = set().union(*(read_and_written(item)[0] for item in items))
    stores = acts = receives = False
    for item in items:
        parts = item.names
        stores |= parts[0] in ("st", "atom", "red") and "shared" not in parts and "local" not in parts
        # Threads can act on an atomic only if an instruction reads its result.
        acts |= parts[0] == "atom" and getattr(item.operands[0], "name", None) in read
        receives |= parts[0] == "ld" and not STRONG.isdisjoint(parts)
        receives |= "relaxed" in parts and parts[0] not in ("st", "atom", "red")
    return stores, acts, receives
