"""Computes how many low bytes of each register can affect a function, apart from copies of the register.

A compiler may load a member of a structure together with the padding after it, and then use only the low
bytes of the register.
"""

from sim.isa.registers import WIDTHS
from sim.ptx.accesses import access_of
from sim.ptx.register_kinds import read_and_written, registers_in
from sim.ptx.syntax import Group, Immediate

WHOLE = 8  # bytes of the widest register
# Opcodes whose low result bytes depend only on the same number of low operand bytes.
LOW = {"add", "sub", "and", "or", "xor", "not", "neg", "mov", "mul", "mad"}


def demanded_bytes(items, is_copy):
    """Return {register name: number of its low bytes that are demanded}.

    items: the instructions of a function.
    is_copy: function (instruction, register name) that returns whether this use only copies the register.
    """
    demand, changed = {}, True
    while changed:
        changed = False
        for item in items:
            for name, count in uses_of(item, demand):
                if count > demand.get(name, 0) and not is_copy(item, name):
                    demand[name], changed = count, True
    return demand


def uses_of(item, demand):
    """Yield (name of a register that an instruction reads, number of demanded low bytes)."""
    read, written = read_and_written(item)
    store = access_of(item, ("st",))
    if store is not None:
        value = {register.name for register in registers_in(item.operands[1])}
        address = {register.name for register in registers_in(item.operands[0])}
        for name in read:
            yield name, WIDTHS[store.type] // 8 if name in value - address else WHOLE
        return
    result = max((demand.get(name, 0) for name in written), default=WHOLE)
    names = item.names
    if item.guard or any(isinstance(operand, Group) for operand in item.operands):
        result = WHOLE
    elif names[0] == "cvt" and len(names) == 3 and not any("f" in name for name in names[1:]):
        result = min(result, WIDTHS.get(names[-1], 64) // 8)
    elif names[0] == "and" and isinstance(item.operands[2], Immediate) and item.operands[2].value >= 0:
        result = min(result, -(-item.operands[2].value.bit_length() // 8))
    elif names[0] not in LOW or not written or "hi" in names or "f" in names[-1] or "sat" in names:
        result = WHOLE
    for name in read:
        yield name, result
