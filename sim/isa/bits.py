"""Meanings of what counts and reverses bits (`bits`: how many the operand has), and floats as bits.

Source: PTX ISA 9.7.1 (popc, clz, brev); CUDA Math API (ffs); PTX ISA 9.7.9.21 (cvt to tf32, to two halves).
"""

import numpy as np
from ml_dtypes import bfloat16
from numpy import float16, float32, float64

from sim.isa import ieee
from sim.isa.directed import to_float
from sim.isa.functions import LLVM

POPC, CLZ, BREV, FMA = LLVM("ctpop"), LLVM("ctlz", ((1, 0),)), LLVM("bitreverse"), LLVM("fma")


def popc(x, *, bits):
    """How many bits are set."""
    return (x & (1 << bits) - 1).bit_count()


def clz(x, *, bits):
    """How many zeros lead; all for 0."""
    return bits - (x & (1 << bits) - 1).bit_length()


def brev(x, *, bits):
    """The bits in reverse order."""
    return int(f"{x & (1 << bits) - 1:0{bits}b}"[::-1], 2)


def ffs(x):
    """The position of the lowest bit set, counted from 1; 0 for none."""
    return (x & -x).bit_length()


def first_set(x):
    """ffs, compiled."""
    return POPC(x ^ (x - 1)) if x != 0 else 0


# --- floats -------------------------------------------------------------------------------------------------

UNSIGNED = {2: np.uint16, 4: np.uint32, 8: np.uint64}
HALVES = {scalar: np.arange(1 << 16, dtype=np.uint16).view(scalar) for scalar in (float16, bfloat16)}


def bits_of(x):
    """The bits of a float as an int."""
    return int(x.view(UNSIGNED[x.dtype.itemsize]))


def float32_of(bits):
    return np.uint32(bits).view(float32)


def float64_of(bits):
    return np.uint64(bits).view(float64)


def to_tf32(bits, mode):
    """A float32 with ten bits of fraction, the others 0; ties away from zero, to even, or cut."""
    if bits & 0x7F800000 == 0x7F800000:
        return bits & 0xFFFFE000 | (0x2000 if bits & 0x7FFFFF and not bits & 0x7FE000 else 0)
    if mode == "rz":
        return bits & 0xFFFFE000
    tie = 0xFFF + (bits >> 13 & 1) if mode == "rn" else 0x1000
    return (bits + tie) & 0xFFFFE000


def two_halves(high, low, scalar, mode, relu):
    """Two float32 rounded to 16 bits each, the first in the upper half."""
    parts = [scalar(x) if mode == "rn" else to_float(x, float32, scalar, mode) for x in (high, low)]
    upper, lower = (bits_of(ieee.at_least_zero(x) if relu else x) for x in parts)
    return upper << 16 | lower
