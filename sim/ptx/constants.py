"""The text of a PTX constant in generated code."""

import struct

import numpy as np

from sim.isa.registers import KINDS, WIDTHS

NUMBERS = {"f32": (np.uint32, np.float32), "f64": (np.uint64, np.float64)}


def constant_text(program, operand, kind):
    """The text of an Immediate as a value of type `kind`; floats are objects that the launch gives."""
    if kind == "pred":
        return str(bool(operand.value))
    if kind in KINDS:
        bits = float_bits(operand, WIDTHS[kind])
        if kind in NUMBERS:
            unsigned, floating = NUMBERS[kind]
            value = unsigned(bits).view(floating)
            return program.shared_name(f"{kind}_{bits:x}", lambda run: value)
        return f"{KINDS[kind].__name__}_of({bits})"
    width = WIDTHS[kind]
    value = (float_bits(operand, width) if operand.float_width else operand.value) & ((1 << width) - 1)
    if kind[0] == "s" and value >> width - 1:
        return f"({value - (1 << width)})"
    return str(value)


def float_bits(operand, width):
    """The bits of a constant in a format of `width` bits; an integer is taken as bits already."""
    if not operand.float_width or operand.float_width == width:
        return operand.value & ((1 << width) - 1)
    letters = {16: "<e", 32: "<f", 64: "<d"}
    number = struct.unpack(
        letters[operand.float_width], operand.value.to_bytes(operand.float_width // 8, "little")
    )[0]
    return int.from_bytes(struct.pack(letters[width], number), "little")
