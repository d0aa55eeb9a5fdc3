"""Recognition of the destructor of cuda::pipeline in the PTX of a kernel.

When threads no longer use a pipeline, the lanes of each warp elect one of them. This lane subtracts their
number from a counter in shared memory, which begins at the number of threads. The lane that reaches 0
invalidates the mbarriers of the pipeline:

    activemask mask;  match.any.sync group, counter, mask;  return if %laneid != bfind(brev(group))
    n = popc(group);  fence;  old = atom.add(counter, -n);  return if old != n
    mbarrier.inval ...;  return

The order of the threads does not matter here, because no thread acts on the result of the atomic except to
invalidate the mbarriers. The kernel ends with this code, so no later code uses the mbarriers. The launch
therefore need not be run under further schedules. When compiled, the code has no effect: it only checks that
the counter contains the number of threads, and that the mbarriers exist.
"""

from collections import Counter

from sim.ptx.flow import blocks_of
from sim.ptx.polling import COMPUTING, instructions_in
from sim.ptx.register_kinds import read_and_written
from sim.ptx.syntax import Address, Register

FENCES = {"fence", "membar"}


def destructor_of(function):
    """Return the ids of the fence, the atomic and the invalidations of a destructor, or an empty set if the
    function has none."""
    if not any(getattr(item, "opcode", "").startswith("mbarrier.inval") for item in function.body):
        return set()
    blocks = blocks_of(function)
    defined = definitions(blocks)
    for electing in blocks:
        for counting in filter(None, electing.targets):
            for last in filter(None, counting.targets):
                if is_destructor(defined, electing, counting, last):
                    items = effects(counting) + effects(last)
                    return {id(item) for item in items}
    return set()


def is_destructor(defined, electing, counting, last):
    """Return whether three blocks are the steps of a destructor: the election, the subtraction, and the
    invalidation.

    defined: the result of `definitions`.
    """
    if electing.targets != [None, counting] or counting.targets != [None, last] or last.targets != [None]:
        return False
    if counting.sources > 1 or last.sources > 1:
        return False
    names = [item.names for item in effects(counting)]
    if len(names) != 2 or names[0][0] not in FENCES or names[1][:2] != ["atom", "add"]:
        return False
    if not effects(last) or any(item.names[:2] != ["mbarrier", "inval"] for item in effects(last)):
        return False
    _, counter, added = effects(counting)[1].operands
    group = "match.any", expression(defined, counter.base), ("activemask",)
    size = "popc", group
    elected = "setp.ne", "laneid", ("bfind.shiftamt", ("brev", group))
    is_last = "setp.ne", ("atom.add", expression(defined, counter), ("neg", size)), size
    return counter.offset == 0 and (guard(defined, electing), guard(defined, counting)) == (elected, is_last)


def effects(block):
    """Return the instructions of a block that do more than compute."""
    return [item for item in instructions_in([block]) if item.names[0] not in COMPUTING]


def definitions(blocks):
    """Return {name of a register: the only instruction that writes it}."""
    written = [(name, item) for item in instructions_in(blocks) for name in read_and_written(item)[1]]
    times = Counter(name for name, _ in written)
    return {name: item for name, item in written if times[name] == 1}


def guard(defined, block):
    """Return the guard of a block's branch as an expression, or None if the guard is negated."""
    register, negated = block.branch.guard
    return None if negated else expression(defined, register)


def expression(defined, operand):
    """Return an operand as nested tuples of operations, such as ("neg", ("popc", ...)). Moves and the offsets
    of addresses are omitted. A register that several instructions write appears as its name."""
    if isinstance(operand, Address):
        return expression(defined, operand.base)
    item = defined.get(operand.name) if isinstance(operand, Register) else None
    if item is None:
        return getattr(operand, "name", operand)
    if item.names[0] == "mov":
        return expression(defined, item.operands[1])
    keeps = {"ne", "any", "shiftamt", "add"} & set(item.names[1:2])
    operation = ".".join([item.names[0], *keeps])
    return operation, *(expression(defined, each) for each in item.operands[1:])
