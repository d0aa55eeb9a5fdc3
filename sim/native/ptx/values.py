"""Representation of values while PTX is compiled: integers with known bounds, floats, and predicates.
sim.native.ptx.arithmetic defines their operators.

The reference implementations of sim.isa compute with Python's unbounded integers. An Integer has bounds for
its possible values. It is computed in 64 bits if these suffice, otherwise in 128 bits. Sums and products of
two registers always fit into 128 bits. For a larger value, only the low 128 bits are correct. That is enough,
because a register stores only its own width. LLVM then narrows the arithmetic to the machine's 32 and 64
bits.
"""

from dataclasses import dataclass

from llvmlite import ir

from sim.native.codegen.scalars import HALVES

I1, I16, I64 = ir.IntType(1), ir.IntType(16), ir.IntType(64)
FLOATS = {"f32": ir.FloatType(), "f64": ir.DoubleType()}
DOUBLE = FLOATS["f64"]
HALF = {"f16": HALVES["float16"], "bf16": HALVES["bfloat16"]}
MAX_MAGNITUDE_BITS = 127  # the magnitude bits of a signed 128-bit integer


@dataclass(frozen=True)
class Integer:
    """An integer.

    code: the LLVM value, a signed integer.
    low, high: the smallest and the largest possible value. If they are not known, both are None, and only the
        low 128 bits are correct.
    """

    code: object
    low: int | None = None
    high: int | None = None

    @property
    def width(self):
        return self.code.type.width


@dataclass(frozen=True)
class Predicate:
    """A truth value. `code` is its LLVM value, an i1."""

    code: object


@dataclass(frozen=True)
class Float:
    """A float of type f32, f64, f16 or bf16. The LLVM type of the 16-bit floats is i16."""

    code: object
    ptx_type: str


def integer_width(*numbers):
    """Return the number of bits in which to compute integers within these bounds, 64 or 128."""
    if None in numbers:
        return 128
    return 64 if -(1 << 63) <= min(numbers) and max(numbers) < 1 << 63 else 128


def clip_bounds(low, high):
    """Return the bounds if they fit into 128 bits, signed or unsigned. Otherwise, return (None, None)."""
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
    """Reduce a number to `width` bits, and return it as a signed integer."""
    number &= (1 << width) - 1
    return number - (1 << width) if number >> width - 1 else number


def result_bounds(a, b, operation):
    """Return the bounds of an operation's result.

    The operation must take its extreme values at the bounds of its operands.
    """
    if None in (a.low, b.low):
        return None, None
    ends = [operation(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    return min(ends), max(ends)


def signed_bits(a, b):
    """Return the bounds of the result of a bitwise operation whose operands can be negative."""
    if None in (a.low, b.low):
        return None, None
    most = max(all_ones(max(end, ~end)) for end in (a.low, a.high, b.low, b.high))
    return -most - 1, most


def bits_of_both(a, b):
    """Return the bounds of the result of a bitwise or, or exclusive or."""
    if None not in (a.low, b.low) and min(a.low, b.low) >= 0:
        return 0, all_ones(max(a.high, b.high))
    return signed_bits(a, b)
