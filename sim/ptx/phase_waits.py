"""Recognition of loops that only wait for a phase of an mbarrier.

Such a loop repeats one test of one phase, and does nothing else that another thread could notice. It ends if
and only if the phase is complete. A thread in such a loop can therefore be suspended until the phase is
complete, although the test instruction itself does not wait.
"""

from collections import Counter
from dataclasses import replace
from itertools import takewhile

from sim.ptx.flow import Loop
from sim.ptx.polling import COMPUTING, instructions_in, is_computing
from sim.ptx.register_kinds import read_and_written
from sim.ptx.syntax import Immediate, Instruction, Not, Register

SILENT = COMPUTING | {"nanosleep"}


def test_of(loop):
    """Return the mbarrier test of a Loop that only waits for this test to succeed, or None for any other
    Loop."""
    if any(isinstance(part, Loop) for part in loop.parts):
        return None
    items = instructions_in(loop.parts)
    tests = [item for item in items if tests_phase(item)]
    others = [item for item in items if not tests_phase(item)]
    if len(tests) != 1 or tests[0].guard or any(item.names[0] not in SILENT for item in others):
        return None
    (test,) = tests
    inside = {id(block) for block in loop.parts}
    leaving = [block for block in loop.parts if any(id(target) not in inside for target in block.targets)]
    if len(leaving) != 1 or not changed_registers(loop, test).isdisjoint(read_and_written(test)[0]):
        return None
    return test if leaves_after(leaving[0], test, inside) else None


def changed_registers(loop, test):
    """Return the names of the registers whose values can differ between two executions of the test in a Loop.

    Before each test, the loop can compute a register again from registers that do not change. This register
    has the same value at each test.
    """
    written = Counter()
    for item in instructions_in(loop.parts):
        written.update(read_and_written(replace(item, guard=None))[1])
    changed = set(written)
    # Only the instructions before the test in its own block certainly run before each test.
    (body,) = (block.body for block in loop.parts if any(item is test for item in block.body))
    for item in takewhile(lambda item: item is not test, body):
        if isinstance(item, Instruction) and item.guard is None and is_computing(item):
            read, names = read_and_written(item)
            if changed.isdisjoint(read) and all(written[name] == 1 for name in names):
                changed -= names
    return changed


def tests_phase(item):
    return item.names[0] == "mbarrier" and not {"test_wait", "try_wait"}.isdisjoint(item.names)


def leaves_after(block, test, inside):
    """Return whether the branch at the end of a block leaves the loop if, and only if, the test succeeds.

    inside: the ids of the blocks of the loop.
    """
    for succeeds in (True, False):
        taken = branch_after(block, test, succeeds)
        if taken is None or (id(block.targets[not taken]) not in inside) != succeeds:
            return False
    return True


def branch_after(block, test, succeeds):
    """Return whether the branch at the end of a block is taken, given the result of a test in the block.
    Return None if the result does not determine this.

    succeeds: the result of the test.
    """
    at = next((at for at, item in enumerate(block.body) if item is test), None)
    if at is None or block.branch is None or block.branch.names[0] != "bra":
        return None
    register, opposite = block.branch.guard
    values = {test.operands[0]: succeeds}
    for item in block.body[at + 1 :]:
        if isinstance(item, Instruction):
            evaluate(item, values)
    return bool(values[register]) != opposite if register in values else None


def evaluate(item, values):
    """Compute the result of an instruction, as far as the known values of registers determine it.

    values: Register -> its value, which is updated.
    """
    to, *given = item.operands
    known = [operand_value(operand, values) for operand in given]
    values.pop(to, None)
    base, *modifiers = item.names
    if item.guard or not isinstance(to, Register):
        result = None
    elif base == "selp":
        result = None if known[2] is None else known[0] if known[2] else known[1]
    elif None in known:
        result = None
    elif base == "setp" and len(known) == 2 and modifiers[0] in ("eq", "ne"):
        result = (known[0] == known[1]) == (modifiers[0] == "eq")
    elif base == "mov" or base == "not" and modifiers == ["pred"]:
        result = known[0] if base == "mov" else not known[0]
    else:
        result = None
    if result is not None:
        values[to] = result


def operand_value(operand, values):
    """Return the value of an operand, or None if it is unknown."""
    if isinstance(operand, Immediate):
        return operand.value
    if isinstance(operand, Not):
        value = values.get(operand.register)
        return None if value is None else not value
    return values.get(operand) if isinstance(operand, Register) else None
