"""Recognition of loops that wait for memory to change, after the compiler has moved the load out of the loop.

A compiler may assume that no other thread changes memory between two plain loads. It turns
`while (flag == 0);` into a single load and test, followed by a loop without instructions and without an exit.
"""

from sim.ptx.accesses import Access
from sim.ptx.flow import blocks_in
from sim.ptx.register_kinds import read_and_written

TOUCHING = {"ld", "ldu", "st", "atom", "red", "bar", "barrier", "call", "mbarrier", "cp", "membar", "fence"}


def hoisted_load(loop, blocks):
    """Return the plain load on which the entry into an endless loop depends, or None.

    The loop contains neither accesses nor synchronisation, and no jump leaves it.

    blocks: all Blocks of the function.
    """
    inside = {id(block) for block in blocks_in(loop)}
    for block in blocks:
        if id(block) in inside:
            if any(item.names[0] in TOUCHING for item in block.body if hasattr(item, "names")):
                return None
            if any(target is None or id(target) not in inside for target in block.targets):
                return None
    entries = [b for b in blocks if id(b) not in inside and any(id(t) in inside for t in b.targets if t)]
    for block in entries:
        if block.branch is not None and block.branch.guard:
            found = source_of(block.branch.guard[0].name, block.body)
            if found is not None:
                return found
    return None


def source_of(register, body):
    """Return the last plain load of a block on which the value of a register depends, or None."""
    wanted = {register}
    for item in reversed([item for item in body if hasattr(item, "names")]):
        read, written = read_and_written(item)
        if written & wanted:
            if item.names[0] in ("ld", "ldu"):
                access = Access(item.opcode)
                return None if access.strong or access.space in ("param", "local", "const") else item
            wanted |= read
    return None
