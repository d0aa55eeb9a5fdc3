"""Registers that contain times: values computed from a clock.

A thread that waits with a time limit computes with times in every iteration. The test for endless loops
(sim.progress) ignores times, because they change even if nothing else does.
"""

from sim.ptx.register_kinds import read_and_written
from sim.ptx.syntax import Instruction, Special

CLOCKS = {"clock", "clock64", "clock_hi", "globaltimer", "globaltimer_lo", "globaltimer_hi"}
# The result of such an instruction is a time if an operand is a time. Other results, such as the predicate of
# a comparison, or the xor in a random number generator with a clock as its seed, count as values observed by
# the thread.
ARITHMETIC = {"mov", "cvt", "add", "sub", "neg", "abs", "shr", "div", "min", "max", "selp"}
HIGH_PRODUCTS = {"hi", "wide"}  # modifiers of the multiplications by which compilers replace a division


def timed_registers(function):
    """Return the names of the registers that contain times."""
    # Repeat until nothing changes, because a loop may pass a time to an earlier instruction.
    body = [item for item in function.body if isinstance(item, Instruction)]
    timed, before = set(), None
    while timed != before:
        before = set(timed)
        for item in body:
            read, written = read_and_written(item)
            if reads_clock(item) or is_arithmetic(item) and not timed.isdisjoint(read):
                # For a guarded instruction, read_and_written counts the result among the registers that it
                # reads.
                timed |= written or {register.name for register in item.operands[:1]}
    return timed


def reads_clock(item):
    """Return whether an instruction reads a clock register."""
    return any(isinstance(operand, Special) and operand.name in CLOCKS for operand in item.operands)


def is_arithmetic(item):
    """Return whether compilers use an instruction to compute times."""
    base = item.names[0]
    return base in ARITHMETIC or base == "mul" and not HIGH_PRODUCTS.isdisjoint(item.names)
