"""The text of a PTX constant in generated code."""

import numpy as np

from sim.isa.registers import KINDS, WIDTHS

NUMBERS = {"f32": (np.uint32, np.float32), "f64": (np.uint64, np.float64)}


def constant_text(program, operand, kind):
    """The text of an Immediate as a value of type `kind`; floats are objects that the launch gives."""
    if kind == "pred":
        return str(bool(operand.value))
    if kind in KINDS:
        bits = operand.bits(WIDTHS[kind])
        if kind in NUMBERS:
            unsigned, floating = NUMBERS[kind]
            value = unsigned(bits).view(floating)
            return program.shared_name(f"{kind}_{bits:x}", lambda run: value)
        return f"{KINDS[kind].__name__}_of({bits})"
    width = WIDTHS[kind]
    value = operand.bits(width)
    if kind[0] == "s" and value >> width - 1:
        return f"({value - (1 << width)})"
    return str(value)
