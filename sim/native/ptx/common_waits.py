"""Waits at mbarriers that all threads of a block reach together, in a function of PTX.

Compiled code runs all threads of a block up to a wait, and then tests its phase. If the phase is not complete
by then, it never will be. A test in a loop that only waits for its success (sim.ptx.phase_waits) therefore
becomes a test that always succeeds, and the loop disappears. The clock that such a loop reads to sleep
between its tests disappears too.
"""

from dataclasses import replace

from sim.native.lower.module import CannotLower
from sim.ptx.flow import Loop, blocks_in, blocks_of, order_blocks
from sim.ptx.phase_waits import SILENT, branch_after, test_of, tests_phase
from sim.ptx.polling import COMPUTING, instructions_in
from sim.ptx.register_kinds import read_and_written
from sim.ptx.syntax import Instruction, Register, Special
from sim.ptx.timed import reads_clock

# prefixes of the special registers whose values differ between the threads of a block
PER_THREAD = ("tid", "laneid", "warpid", "lanemask", "clock", "globaltimer")


def uses_phases(function):
    """Return whether a function uses mbarriers."""
    return any(isinstance(item, Instruction) and item.names[0] == "mbarrier" for item in function.body)


def without_loops(function):
    """Return the function without the loops that wait for a phase.

    Raise CannotLower if a test of a phase is not part of a wait, or if only some threads of a block may reach
    an arrival or a wait.
    """
    blocks = blocks_of(function)
    loops = [loop for part in order_blocks(blocks) for loop in loops_in(part)]
    waits = {id(test): loop for loop in loops if (test := test_of(loop))}
    decided = {}  # id of a branch -> whether it is taken if the test before it succeeds
    for block in blocks:
        for item in instructions_in([block]):
            if tests_phase(item):
                if id(item) not in waits and not precedes_wait(block, item, loops):
                    raise CannotLower("threads test a phase of an mbarrier without waiting for it")
                decided[id(block.branch)] = branch_after(block, item, True)
    body = [decide(item, decided) for item in function.body]
    result = replace(function, body=[item for item in body if item is not None])
    result = without_unread_clocks(result)
    check_uniform(blocks_of(result))
    return result


def loops_in(part):
    """Return a part, if it is a Loop, and all Loops in it."""
    return (
        [part, *(loop for inner in part.parts for loop in loops_in(inner))] if isinstance(part, Loop) else []
    )


def precedes_wait(block, test, loops):
    """Return whether a block tests a phase once before a loop that waits for the same phase."""
    between = instructions(block.body[block.body.index(test) + 1 :])
    if test.guard or any(item.names[0] not in SILENT for item in between):
        return False
    taken = branch_after(block, test, True)
    if taken is None:
        return False
    succeeds, following = block.targets if taken else block.targets[::-1]
    while following is not None and following.branch is None and not tests_in(following):
        between += instructions_in([following])
        (following,) = following.targets
    changed = {register for item in between for register in read_and_written(replace(item, guard=None))[1]}
    if any(item.names[0] not in SILENT for item in between) or not changed.isdisjoint(
        read_and_written(test)[0]
    ):
        return False
    for loop in loops:
        inside = {id(one) for one in blocks_in(loop)}
        if id(following) in inside and (inner := test_of(loop)):
            exits = [target for one in loop.parts for target in one.targets if id(target) not in inside]
            return inner.operands[1:] == test.operands[1:] and exits == [succeeds]
    return False


def instructions(items):
    """Return the Instructions among the items of a block."""
    return [item for item in items if isinstance(item, Instruction)]


def tests_in(block):
    """Return whether a block tests a phase."""
    return any(tests_phase(item) for item in instructions_in([block]))


def decide(item, decided):
    """Return an instruction, with a branch made unconditional if it is always taken. Return None for a branch
    that is never taken."""
    if id(item) not in decided:
        return item
    return replace(item, guard=None) if decided[id(item)] else None


def without_unread_clocks(function):
    """Return the function without the instructions that read a clock for a loop that no longer exists."""
    items = [item for block in blocks_of(function) for item in instructions((*block.body, block.branch))]
    read = set().union(*(read_and_written(item)[0] for item in items))
    unread = {id(item) for item in items if reads_clock(item) and item.operands[0].name not in read}
    return replace(function, body=[item for item in function.body if id(item) not in unread])


# --- divergent branches -------------------------------------------------------------------------------------


def check_uniform(blocks):
    """Raise CannotLower if a divergent branch decides whether a thread reaches an arrival or a wait. A branch
    is divergent if its outcome may differ between the threads of a block.

    Compiled code stops a block whose threads diverge there. This test only saves the time to compile kernels
    with roles, such as producers and consumers. It assumes that equal addresses contain equal values.
    """
    divergent = divergent_registers(blocks)
    after = postdominators(blocks)
    for block in blocks:
        if block.branch is None or divergent.isdisjoint(read_and_written(block.branch)[0]):
            continue
        always = after[id(block)]
        for other in blocks:
            is_optional = id(other) not in always and any(
                id(other) in reachable(target, always) for target in block.targets
            )
            if is_optional and any(map(synchronises, instructions_in([other]))):
                raise CannotLower("only some threads of a block may arrive or wait at an mbarrier")


def synchronises(item):
    """Return whether an instruction arrives or waits at an mbarrier."""
    return tests_phase(item) or item.names[:2] in (["mbarrier", "arrive"], ["mbarrier", "arrive_drop"])


def divergent_registers(blocks):
    """Return the names of the registers whose values may differ between the threads of a block."""
    found, before = set(), None
    while found != before:
        before = set(found)
        for item in instructions_in(blocks):
            read, written = read_and_written(item)
            if not written and isinstance(item.operands[0] if item.operands else None, Register):
                written = {item.operands[0].name}
            if is_divergent(item) or not found.isdisjoint(read):
                found |= written
    return found


def is_divergent(item):
    """Return whether the results of an instruction may differ between threads with equal operands."""
    if any(isinstance(operand, Special) and operand.name.startswith(PER_THREAD) for operand in item.operands):
        return True
    return item.names[0] not in COMPUTING | {"ld", "mbarrier"}


def postdominators(blocks):
    """Return {id of a block: ids of its postdominators}. They are the block itself, and the blocks that every
    path from it to the end passes."""
    everything = {id(block) for block in blocks}
    found = {id(block): everything for block in blocks}
    changed = True
    while changed:
        changed = False
        for block in reversed(blocks):
            paths = [set() if target is None else found[id(target)] for target in block.targets]
            new = {id(block)} | set.intersection(*paths)
            if new != found[id(block)]:
                found[id(block)], changed = new, True
    return found


def reachable(start, ends):
    """Return the ids of the blocks that are reachable from a block without passing one of `ends`.

    ends: the ids of blocks.
    """
    found, waiting = set(), [start]
    while waiting:
        block = waiting.pop()
        if block is not None and id(block) not in found | ends:
            found.add(id(block))
            waiting += block.targets
    return found
