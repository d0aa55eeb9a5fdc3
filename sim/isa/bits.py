"""Bit counting and bit reversal, and conversions between floats and their bit patterns. The keyword argument
`bits` is the width of the operand.

Source: PTX ISA 9.7.1 (popc, clz, brev); CUDA Math API (ffs); PTX ISA 9.7.9, "Data Movement and Conversion
Instructions" (cvt to tf32, f16x2 and 8-bit floats).
"""

from struct import Struct

import numpy as np
from ml_dtypes import bfloat16, finfo, float8_e4m3fn, float8_e5m2
from numpy import float16, float32, float64

from sim.isa import ieee
from sim.isa.directed import to_float
from sim.isa.functions import LLVM
from sim.isa.rounding import ONE

# The constant operand 0 of ctlz requests a defined result if the operand is zero.
POPC, CLZ, BREV, FMA = LLVM("ctpop"), LLVM("ctlz", ((1, 0),)), LLVM("bitreverse"), LLVM("fma")


def popc(x, *, bits):
    """Return the number of set bits."""
    return (x & (1 << bits) - 1).bit_count()


def clz(x, *, bits):
    """Return the number of leading zeros, or `bits` if x is 0."""
    return bits - (x & (1 << bits) - 1).bit_length()


def brev(x, *, bits):
    """Return x with its bits in reverse order."""
    return int(f"{x & (1 << bits) - 1:0{bits}b}"[::-1], 2)


def ffs(x):
    """Return the position of the lowest set bit, counted from 1, or 0 if no bit is set."""
    return (x & -x).bit_length()


def first_set(x):
    """Return the position of the lowest set bit, counted from 1, or 0 if no bit is set.

    This is the compiled form of ffs. The bits of x ^ (x - 1) are set up to and including the lowest set bit
    of x.
    """
    return POPC(x ^ (x - 1)) if x != 0 else 0


# --- floats -------------------------------------------------------------------------------------------------

# type of a float -> a function that reads its bit pattern from memory; it takes a tenth of the time of `view`
PATTERN = {
    scalar: Struct(code).unpack_from
    for scalar, code in {float16: "=H", bfloat16: "=H", float32: "=I", float64: "=Q"}.items()
}
PACK, UNPACK = Struct("=I").pack, Struct("=f").unpack
# 16-bit float type -> its value for each of the 2**16 bit patterns
HALVES = {scalar: np.arange(1 << 16, dtype=np.uint16).view(scalar) for scalar in (float16, bfloat16)}


def bits_of(x):
    """Return the bit pattern of a numpy float, as an int."""
    return PATTERN[type(x)](x)[0]


def float32_of(bits):
    """Return the float32 with this bit pattern."""
    x = ONE * UNPACK(PACK(bits))[0]
    # Python's floats have 64 bits, and a conversion can change the bits of a NaN.
    return x if x == x else np.uint32(bits).view(float32)


def float64_of(bits):
    """Return the float64 with this bit pattern."""
    return np.uint64(bits).view(float64)


# The bit pattern of the largest finite tf32.
TF32_LARGEST = 0x7F7FE000


def to_tf32(bits, mode, relu=False, finite=False):
    """Return the bit pattern of a float32 converted to tf32 (cvt.tf32.f32).

    A tf32 has 10 bits of fraction, and its low 13 bits are 0.

    bits: the bit pattern of the float32.
    mode: "rn" (to nearest, ties to even), "rna" (to nearest, ties away from zero) or "rz" (towards zero).
    relu: whether a negative number becomes 0.
    finite: whether infinities and out-of-range numbers become the largest finite tf32, with their sign
        (.satfinite).
    """
    if relu and bits >> 31 and bits & 0x7FFFFFFF <= 0x7F800000:
        return 0
    if bits & 0x7FFFFFFF > 0x7F800000:  # NaN
        # If the upper bits of a NaN's fraction are all 0, it would become an infinity, so set one of them.
        return bits & 0xFFFFE000 | (0x2000 if not bits & 0x7FE000 else 0)
    # A carry out of the fraction increments the exponent. That is correct rounding, even to infinity.
    tie = 0xFFF + (bits >> 13 & 1) if mode == "rn" else 0x1000 if mode == "rna" else 0
    infinite = bits & 0x7FFFFFFF == 0x7F800000
    found = bits & 0xFFFFE000 if infinite else (bits + tie) & 0xFFFFE000
    if finite and found & 0x7FFFFFFF > TF32_LARGEST:
        return found & 0x80000000 | TF32_LARGEST
    return found


def at_most(x, largest):
    """Return x clamped to the range from -largest to largest. NaN is unchanged."""
    return largest if x > largest else -largest if x < -largest else x


def two_halves(high, low, scalar, mode, relu):
    """Return two float32 values, rounded to 16-bit floats and packed into a 32-bit register
    (cvt.rn.f16x2.f32).

    high, low: the values for the upper and the lower half.
    scalar: the type of a half.
    mode: the rounding mode.
    relu: whether a negative number becomes 0.
    """
    parts = [scalar(x) if mode == "rn" else to_float(x, float32, scalar, mode) for x in (high, low)]
    upper, lower = (bits_of(ieee.at_least_zero(x) if relu else x) for x in parts)
    return upper << 16 | lower


# 8-bit float type -> its value for each of the 256 bit patterns
BYTES = {scalar: np.arange(1 << 8, dtype=np.uint8).view(scalar) for scalar in (float8_e4m3fn, float8_e5m2)}


def two_bytes(high, low, scalar, relu):
    """Return two floats, rounded to 8-bit floats, saturated, and packed into 16 bits
    (cvt.rn.satfinite.e4m3x2.f32).

    `high` becomes the upper byte.
    """
    largest = float(finfo(scalar).max)
    parts = [at_most(float32(x), largest) for x in (high, low)]
    upper, lower = (scalar(ieee.at_least_zero(float32(x)) if relu else x).view(np.uint8) for x in parts)
    return int(upper) << 8 | int(lower)


def halves_to_bytes(word, scalar, relu):
    """Return the two float16 values of a register, rounded to 8-bit floats, saturated, and packed into 16
    bits (cvt.rn.satfinite.e4m3x2.f16x2)."""
    return two_bytes(HALVES[float16][word >> 16], HALVES[float16][word & 0xFFFF], scalar, relu)


def bytes_to_halves(pair, scalar, relu):
    """Return a pair of 8-bit floats, converted to float16 and packed into a register
    (cvt.rn.f16x2.e4m3x2)."""
    upper, lower = (float32(BYTES[scalar][byte]) for byte in (pair >> 8 & 0xFF, pair & 0xFF))
    return two_halves(upper, lower, float16, "rn", relu)
