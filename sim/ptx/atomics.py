"""Semantics of atom and red on bit patterns in memory, derived from the entries of sim.isa.atomics. Source:
PTX ISA 9.7.13 (atom, red)."""

from sim.isa.ptx_types import REALS
from sim.isa.registers import HELPERS, WIDTHS, Missing, bits_of, find_operation
from sim.isa.table import by_ptx


def atomic_semantics(access):
    """Return (PTX type in which the element is read, function (old, operand, ...) -> new, whether the new
    value is independent of the old one) for an Access. Errors: Missing."""
    width = WIDTHS.get(access.type, 0)
    if access.count > 1:
        raise Missing(access.opcode)
    if access.type in ("f16x2", "bf16x2"):
        return "u32", on_two_halves(access), False
    try:
        entry = by_ptx(f"atom.{access.operation}.{access.type}")
    except KeyError:
        raise Missing(access.opcode) from None
    if access.type in ("f32", "f64"):
        return access.type, entry.semantics, entry.overwrites
    if access.type in REALS:
        return "u16", on_half(entry.semantics, access.type), entry.overwrites
    # min and max depend on the sign. An addition does not, so it uses the unsigned type.
    if access.type[0] == "s" and access.operation != "add":
        return f"s{width}", entry.semantics, entry.overwrites
    # The semantics returns a Python int of any size.
    mask = (1 << width) - 1
    return f"u{width}", lambda old, *operands: entry.semantics(old, *operands) & mask, entry.overwrites


def on_half(function, ptx_type):
    """Return `function` applied to bit patterns of a half type."""
    number_of = HELPERS[f"{REALS[ptx_type].__name__}_of"]
    return lambda old, value: bits_of(function(number_of(old), number_of(value)))


def on_two_halves(access):
    """Return the function on a register that holds two packed halves. PTX guarantees atomicity only per half;
    here both halves are updated at once."""
    if access.operation not in ("add", "min", "max"):
        raise Missing(access.opcode)
    return eval(f"lambda a, b: {find_operation(f'{access.operation}.{access.type}').of(['a', 'b'])}", HELPERS)


def write_condition(access):
    """Return True if the atomic always writes, else the function (old, expected, value) -> whether it
    writes."""
    return (
        (lambda old, expected, value: old == expected and old != value) if access.operation == "cas" else True
    )
