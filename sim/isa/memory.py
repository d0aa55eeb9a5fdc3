"""Entries for memory instructions of a single thread. They access a few adjacent bytes, synchronously or
asynchronously."""

from dataclasses import dataclass

from sim.isa.table import INSTRUCTIONS, THREAD, WARPGROUP, YIELDING, Entry, parameters_of


@dataclass(frozen=True, eq=False)
class MemoryInstruction(Entry):
    """A memory instruction of a single thread.

    The parameters of its semantics are a sim.memory.transfer.Memory, followed by the arguments of a call.
    """

    scope = THREAD

    @property
    def parameters(self):
        """The names of the parameters of a call."""
        return [parameter.name for parameter in parameters_of(self.semantics, "memory")[1:]]


def memory_instruction(*, source, name=None, ptx=(), touches=(), replaces=None, yields=False):
    """Return a decorator that adds a function to the table, as a memory instruction of a single thread.

    The decorator returns the MemoryInstruction. The interpreter calls the function with `memory` and then the
    arguments of a call. There is no compiled form. `memory` has these methods:

        read(array, index, size)   returns `size` bytes from adjacent elements. The address must be a multiple
                                   of `size`, or of the optional fourth argument.
        send(array, index, data)   writes bytes at an unspecified later time. Its argument `source` is the
                                   Spot, returned by memory.source, from which the copy reads until then.
        commit()                   commits all preceding sends to a group
        receive(n)                 waits until at most the n newest groups are pending
        fence(reach)               orders the thread's accesses before it and after it
        yield_turn()               lets other threads run first

    source, name, ptx, touches, replaces: as in sim.isa.instruction.
    yields: whether the scheduler is allowed to switch threads at this instruction. Set it for an instruction
        that a thread repeats while it waits for another thread.

    Raise ValueError if the name belongs to another function.
    """

    def add_entry(semantics):
        parameters_of(semantics, "memory")
        entry = MemoryInstruction(
            name or semantics.__name__, semantics, source, ptx=ptx, touches=touches
        ).expose(replaces)
        if yields:
            YIELDING.add(entry.name)
        return entry

    return add_entry


def memory_of(entry):
    """Return the function by which a warp instruction accesses memory, or None if the instruction does not
    access memory."""
    return getattr(entry, "fetch", None) or getattr(entry, "put", None)


def interpreted_only(names):
    """Return the sorted subset of `names` that are instructions without a compiled form."""
    entries = {name: INSTRUCTIONS[name] for name in names if name in INSTRUCTIONS}
    return sorted(
        name
        for name, entry in entries.items()
        if isinstance(entry, MemoryInstruction) or entry.scope == WARPGROUP or memory_of(entry)
    )
