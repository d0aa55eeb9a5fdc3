"""Representation of values while PTX is compiled: integers with known bounds, floats, and predicates. Their
operators are in sim.native.ptx.arithmetic.

The reference implementations of sim.isa compute with Python's unbounded integers. An Integer carries bounds
of its possible values; it is computed in 64 bits if these suffice, otherwise in 128 bits. Sums and products
of two registers always fit into 128 bits. Of larger values only the low 128 bits are correct, which is
enough, because registers are truncated to their width. LLVM then narrows the arithmetic to the machine's 32
and 64 bits.
"""

from dataclasses import dataclass

from llvmlite import ir

from sim.native.codegen.scalars import HALVES

I1, I64 = ir.IntType(1), ir.IntType(64)
FLOATS = {"f32": ir.FloatType(), "f64": ir.DoubleType()}
DOUBLE = FLOATS["f64"]
HALF = {"f16": HALVES["float16"], "bf16": HALVES["bfloat16"]}
MAX_MAGNITUDE_BITS = 127  # magnitude bits of a 128-bit signed integer


@dataclass(frozen=True)
class Integer:
    """An integer.

    code: the LLVM value, a signed integer.
    low, high: smallest and largest possible value. None if unknown; then only the low 128 bits are correct.
    """

    code: object
    low: int | None = None
    high: int | None = None

    @property
    def width(self):
        return self.code.type.width


@dataclass(frozen=True)
class Predicate:
    """A truth value. `code` is an i1."""

    code: object


@dataclass(frozen=True)
class Float:
    """A float of type f32, f64, f16 or bf16. The 16-bit types are stored as i16."""

    code: object
    ptx_type: str


def integer_width(*numbers):
    """Return the number of bits (64 or 128) in which to compute integers within these bounds."""
    if None in numbers:
        return 128
    return 64 if -(1 << 63) <= min(numbers) and max(numbers) < 1 << 63 else 128


def clip_bounds(low, high):
    """Return the bounds if they fit into 128 bits, signed or unsigned, else (None, None)."""
    if (
        low is None
        or high is None
        or low < -(1 << MAX_MAGNITUDE_BITS)
        or high >= 1 << MAX_MAGNITUDE_BITS + (low >= 0)
    ):
        return None, None
    return low, high


def all_ones(number):
    """Return the smallest number of the form 2**n - 1 that is at least `number`."""
    return (1 << number.bit_length()) - 1


def wrap_signed(number, width):
    """Return a number reduced to `width` bits, as a signed integer."""
    number &= (1 << width) - 1
    return number - (1 << width) if number >> width - 1 else number


def result_bounds(a, b, operation):
    """Return the bounds of an operation's result. The operation must reach its extremes at the bounds of its
    operands."""
    if None in (a.low, b.low):
        return None, None
    ends = [operation(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    return min(ends), max(ends)


def signed_bits(a, b):
    """Return the bounds of a bitwise operation on operands that may be negative."""
    if None in (a.low, b.low):
        return None, None
    most = max(all_ones(max(end, ~end)) for end in (a.low, a.high, b.low, b.high))
    return -most - 1, most


def bits_of_both(a, b):
    """Return the bounds of a bitwise or, or exclusive or."""
    if None not in (a.low, b.low) and min(a.low, b.low) >= 0:
        return 0, all_ones(max(a.high, b.high))
    return signed_bits(a, b)
