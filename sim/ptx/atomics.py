"""Semantics of atom and red for bit patterns in memory, derived from the entries of sim.isa.atomics.

Source: PTX ISA 9.7.13 (atom, red).
"""

from sim.isa.ptx_types import REALS
from sim.isa.registers import HELPERS, PACKED, WIDTHS, Missing, bits_of, find_operation
from sim.isa.table import by_ptx


def atomic_semantics(access):
    """Return (PTX type, function, whether the function ignores the old value) for an Access.

    The element is read with this PTX type. The function maps (old, operand, ...) to the new value.

    Raise Missing if the operation is not supported.
    """
    width = WIDTHS.get(access.type, 0)
    if access.count > 1:
        raise Missing(access.opcode)
    if access.type in PACKED:
        return "u32", on_two_halves(access), False
    try:
        entry = by_ptx(f"atom.{access.operation}.{access.type}")
    except KeyError:
        raise Missing(access.opcode) from None
    if access.type in ("f32", "f64"):
        return access.type, entry.semantics, entry.overwrites
    if access.type in REALS:
        return "u16", on_half(entry.semantics, access.type), entry.overwrites
    # min and max depend on the sign. An addition does not depend on it, and uses the unsigned type.
    if access.type[0] == "s" and access.operation != "add":
        return f"s{width}", entry.semantics, entry.overwrites
    # The semantics computes with Python integers, which have no fixed width.
    mask = (1 << width) - 1
    return f"u{width}", lambda old, *operands: entry.semantics(old, *operands) & mask, entry.overwrites


def on_half(function, ptx_type):
    """Return a function on the bit patterns of a 16-bit float type that applies `function` to the floats."""
    number_of = HELPERS[f"{REALS[ptx_type].__name__}_of"]
    return lambda old, value: bits_of(function(number_of(old), number_of(value)))


def on_two_halves(access):
    """Return the function for a register that contains two packed 16-bit floats.

    PTX guarantees atomicity only for each half. Here, both halves are updated at once.
    """
    if access.operation not in ("add", "min", "max"):
        raise Missing(access.opcode)
    return eval(f"lambda a, b: {find_operation(f'{access.operation}.{access.type}').of(['a', 'b'])}", HELPERS)


def write_condition(access):
    """Return whether an atomic writes: True if it always does, otherwise a function (old, expected, value)
    that returns a bool."""
    return (
        (lambda old, expected, value: old == expected and old != value) if access.operation == "cas" else True
    )
