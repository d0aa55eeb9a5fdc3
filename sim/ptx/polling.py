"""Recognition of loops that can wait for another thread.

Such a loop reads memory, or communicates in another way, and a jump in the loop depends on the value that it
has read. If a loop is not of this kind, other threads cannot influence how long it runs. A loop that passes a
grid barrier in each iteration waits only at that barrier.

For some loops, the values of a few registers alone determine how many iterations follow. If such a loop
begins two iterations with equal values of these registers, it never ends, whatever happens to memory.
"""

from dataclasses import replace

from sim.ptx.flow import Block, Loop, blocks_in
from sim.ptx.register_kinds import read_and_written
from sim.ptx.syntax import Instruction
from sim.ptx.timed import reads_clock

# Instructions that compute their results from their operands alone. All others count as reading memory.
COMPUTING = set(
    "mov cvt cvta add addc sub subc mul mul24 mad mad24 madc fma sad div rem abs neg min max setp set selp"
    " slct and or xor not cnot lop3 shl shr shf prmt bfe bfi bfind brev popc clz szext bmsk fns dp2a dp4a rcp"
    " sqrt rsqrt sin cos lg2 ex2 tanh copysign testp isspacep bra brx".split()
)


def can_poll(loop, grid_sync):
    """Return whether a Loop, or a nested Loop, can wait for another thread. Return True in case of doubt.

    grid_sync: the GridSync of the function.
    """
    blocks, items = blocks_in(loop), instructions_in(blocks_in(loop))
    if len(blocks) == 1 and any(id(item) in grid_sync.waits for item in items):
        return False  # skip the loop of a grid barrier, which becomes a single wait
    if is_counted(loop) or grid_sync.is_passed_in(instructions_in(always_executed(loop))):
        return any(can_poll(part, grid_sync) for part in loop.parts if isinstance(part, Loop))
    inside = {id(block) for block in blocks}
    if all(id(target) in inside for block in blocks for target in block.targets):
        return True  # The compiler may have moved the test of a value out of the loop (sim.ptx.hoisted).
    read, before = set(), None  # registers that depend on a value read in the loop
    while read != before:
        before = set(read)
        for item in items:
            sources, _ = read_and_written(item)
            if not is_computing(item) or not read.isdisjoint(sources):
                read |= read_and_written(replace(item, guard=None))[1]
    branches = [block.branch for block in blocks if block.branch is not None]
    return any(not read.isdisjoint(read_and_written(branch)[0]) for branch in branches)


def instructions_in(blocks):
    """Return the instructions of Blocks, except for the branches at their ends."""
    return [item for block in blocks for item in block.body if isinstance(item, Instruction)]


def is_counted(loop):
    """Return whether the values at the start of a Loop determine the number of its iterations.

    This is the case if each iteration decides about all exits by the same instructions, and none of these
    instructions reads memory.
    """
    always, blocks = always_executed(loop), blocks_in(loop)
    inside = {id(block) for block in blocks}
    exits = [block for block in blocks if any(id(target) not in inside for target in block.targets)]
    if not exits or any(block not in always or block.branch is None for block in exits):
        return False
    same = {id(item) for item in instructions_in(always) if item.guard is None and is_computing(item)}
    setting = {}  # register -> the instructions of the loop that write it
    for item in instructions_in(blocks):
        for name in read_and_written(replace(item, guard=None))[1]:
            setting.setdefault(name, []).append(item)
    seen, waiting = set(), {name for block in exits for name in read_and_written(block.branch)[0]}
    while waiting:
        seen |= waiting
        items = [item for name in waiting for item in setting.get(name, ())]
        if any(id(item) not in same for item in items):
            return False
        waiting = {name for item in items for name in read_and_written(item)[0]} - seen
    return True


def deciding_registers(loop, blocks):
    """Return the names of the registers that a Loop writes and that decide how many iterations follow. Return
    None if memory or another thread can influence this.

    blocks: all Blocks of the function.
    """
    own = blocks_in(loop)
    inside, items = {id(block) for block in own}, instructions_in(own)
    entries = {id(t) for b in blocks if id(b) not in inside for t in b.targets if id(t) in inside}
    # If a jump enters the loop elsewhere than at its first block, the position matters, too. A call or a trap
    # can end the loop.
    if entries != {id(own[0])} or any(item.names[0] in ("call", "trap") for item in items):
        return None
    writers = {}  # register -> the instructions of the loop that write it
    for item in items:
        for name in read_and_written(replace(item, guard=None))[1]:
            writers.setdefault(name, []).append(item)
    deciding, waiting = set(), [block.branch for block in own if block.branch is not None]
    while waiting:
        for name in read_and_written(waiting.pop())[0] - deciding:
            deciding.add(name)
            waiting += writers.get(name, ())
            if not all(map(is_computing, writers.get(name, ()))):
                return None
    return frozenset(deciding & writers.keys())


def is_computing(item):
    """Return whether the operands of an instruction alone determine its results."""
    return item.names[0] in COMPUTING and not reads_clock(item)


def always_executed(loop):
    """Return the Blocks that each iteration of a Loop executes exactly once, except perhaps for the last
    iteration."""
    return [part for part in loop.parts if isinstance(part, Block) and not can_be_skipped(part, loop)]


def can_be_skipped(block, loop):
    """Return whether an iteration of a Loop can avoid a block and return to the head of the loop."""
    inside, head = {id(one) for one in blocks_in(loop)}, blocks_in(loop)[0]
    seen, waiting = {id(block)}, [] if block is head else [head]
    while waiting:
        for target in waiting.pop().targets:
            if target is head:
                return True
            if id(target) in inside and id(target) not in seen:
                seen.add(id(target))
                waiting.append(target)
    return False
