"""Functions that count and reverse bits, and conversions between floats and their bits. The argument `bits`
is the width of the operand.

Source: PTX ISA 9.7.1 (popc, clz, brev); CUDA Math API (ffs); PTX ISA 9.7.9.21 (cvt to tf32, to two halves).
"""

import numpy as np
from ml_dtypes import bfloat16, finfo, float8_e4m3fn, float8_e5m2
from numpy import float16, float32, float64

from sim.isa import ieee
from sim.isa.directed import to_float
from sim.isa.functions import LLVM

POPC, CLZ, BREV, FMA = LLVM("ctpop"), LLVM("ctlz", ((1, 0),)), LLVM("bitreverse"), LLVM("fma")


def popc(x, *, bits):
    """Return the number of set bits."""
    return (x & (1 << bits) - 1).bit_count()


def clz(x, *, bits):
    """Return the number of leading zeros; all bits for 0."""
    return bits - (x & (1 << bits) - 1).bit_length()


def brev(x, *, bits):
    """Return the bits in reverse order."""
    return int(f"{x & (1 << bits) - 1:0{bits}b}"[::-1], 2)


def ffs(x):
    """Return the position of the lowest set bit, counted from 1; 0 if there is none."""
    return (x & -x).bit_length()


def first_set(x):
    """Return ffs in a form to compile."""
    return POPC(x ^ (x - 1)) if x != 0 else 0


# --- floats -------------------------------------------------------------------------------------------------

UNSIGNED = {2: np.uint16, 4: np.uint32, 8: np.uint64}
HALVES = {scalar: np.arange(1 << 16, dtype=np.uint16).view(scalar) for scalar in (float16, bfloat16)}


def bits_of(x):
    """Return the bits of a float as an int."""
    return int(x.view(UNSIGNED[x.dtype.itemsize]))


def float32_of(bits):
    return np.uint32(bits).view(float32)


def float64_of(bits):
    return np.uint64(bits).view(float64)


TF32_LARGEST = 0x7F7FE000


def to_tf32(bits, mode, relu=False, finite=False):
    """Return the bits of a float32 with ten bits of fraction, the others 0; ties go away from zero (rna) or
    to even (rn), or the bits are cut (rz). relu: a negative number becomes 0; finite: an infinity, or what
    would round to one, becomes the largest number."""
    if relu and bits >> 31 and bits & 0x7FFFFFFF <= 0x7F800000:
        return 0
    if bits & 0x7FFFFFFF > 0x7F800000:  # NaN
        return bits & 0xFFFFE000 | (0x2000 if not bits & 0x7FE000 else 0)
    tie = 0xFFF + (bits >> 13 & 1) if mode == "rn" else 0x1000 if mode == "rna" else 0
    infinite = bits & 0x7FFFFFFF == 0x7F800000
    found = bits & 0xFFFFE000 if infinite else (bits + tie) & 0xFFFFE000
    if finite and found & 0x7FFFFFFF > TF32_LARGEST:
        return found & 0x80000000 | TF32_LARGEST
    return found


def at_most(x, largest):
    """Return x, or the number of this size that is nearest to it; NaN stays."""
    return largest if x > largest else -largest if x < -largest else x


def two_halves(high, low, scalar, mode, relu):
    """Return two float32 rounded to 16 bits each, the first in the upper half."""
    parts = [scalar(x) if mode == "rn" else to_float(x, float32, scalar, mode) for x in (high, low)]
    upper, lower = (bits_of(ieee.at_least_zero(x) if relu else x) for x in parts)
    return upper << 16 | lower


BYTES = {scalar: np.arange(1 << 8, dtype=np.uint8).view(scalar) for scalar in (float8_e4m3fn, float8_e5m2)}


def two_bytes(high, low, scalar, relu):
    """Return two floats rounded to 8 bits each and saturated, the first in the upper byte."""
    largest = float(finfo(scalar).max)
    parts = [at_most(float32(x), largest) for x in (high, low)]
    upper, lower = (scalar(ieee.at_least_zero(float32(x)) if relu else x).view(np.uint8) for x in parts)
    return int(upper) << 8 | int(lower)


def halves_to_bytes(word, scalar, relu):
    """Return the two float16 of a register rounded to 8 bits each and saturated."""
    return two_bytes(HALVES[float16][word >> 16], HALVES[float16][word & 0xFFFF], scalar, relu)


def bytes_to_halves(pair, scalar, relu):
    """Return two floats of 8 bits as float16 in the halves of a register."""
    upper, lower = (float32(BYTES[scalar][byte]) for byte in (pair >> 8 & 0xFF, pair & 0xFF))
    return two_halves(upper, lower, float16, "rn", relu)
