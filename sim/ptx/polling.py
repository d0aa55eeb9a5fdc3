"""Recognition of loops that can wait for another thread.

Such a loop reads memory, or communicates in another way, and a jump in the loop depends on the value that it
has read. Any other loop runs equally long, whatever other threads do.
"""

from dataclasses import replace

from sim.ptx.flow import blocks_in
from sim.ptx.register_kinds import read_and_written
from sim.ptx.syntax import Instruction
from sim.ptx.timed import reads_clock

# Instructions that compute their results from their operands alone. All others count as reading memory.
COMPUTING = set(
    "mov cvt cvta add addc sub subc mul mul24 mad mad24 madc fma sad div rem abs neg min max setp set selp"
    " slct and or xor not cnot lop3 shl shr shf prmt bfe bfi bfind brev popc clz szext bmsk fns dp2a dp4a rcp"
    " sqrt rsqrt sin cos lg2 ex2 tanh copysign testp isspacep bra brx".split()
)


def can_poll(loop):
    """Return whether a Loop can wait for another thread. False is certain."""
    blocks = blocks_in(loop)
    inside = {id(block) for block in blocks}
    if all(id(target) in inside for block in blocks for target in block.targets):
        return True  # The compiler may have moved the test of a value out of the loop (sim.ptx.hoisted).
    items = [item for block in blocks for item in block.body if isinstance(item, Instruction)]
    read, before = set(), None  # registers that depend on a value read in the loop
    while read != before:
        before = set(read)
        for item in items:
            sources, _ = read_and_written(item)
            if item.names[0] not in COMPUTING or reads_clock(item) or not read.isdisjoint(sources):
                read |= read_and_written(replace(item, guard=None))[1]
    branches = [block.branch for block in blocks if block.branch is not None]
    return any(not read.isdisjoint(read_and_written(branch)[0]) for branch in branches)
