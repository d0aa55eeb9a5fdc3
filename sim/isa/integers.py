"""What a kernel sees as `cuda.popc`, `brev`, `clz`, `ffs`, `fma`, `cbrt`, `selp` and `cuda.fp16`.

Numba counts in the width of the operand's type. A Python int is an int64 here; a numpy scalar (`numpy.int32`,
...) has its own width, and `bits` says it for an int that was an int32. Only popc of a negative number and
clz depend on it. Results as Numba types them:

    popc, clz   the operand's type (an int for an int)
    ffs         uint32: 1 for the lowest bit, 0 for no bit at all
    brev        uint64 for a uint64; otherwise uint32, of the low 32 bits, for an int64 too
"""

import numpy as np
from numpy import float32, float64, uint32, uint64

from sim.isa.conversions import cast
from sim.isa.half import FUNCTIONS
from sim.isa.mathematics import Library, paired, single, unary
from sim.isa.promotion import KIND, SIGNED
from sim.isa.rounding import fused, fused_float32

WIDTH = {int: 64, np.int32: 32, np.int16: 16, np.int8: 8, uint64: 64, uint32: 32, np.uint16: 16, np.uint8: 8}


def _operand(x, bits):
    """The kind of x, its width, and its bits as a number that is not negative. Other numbers become int8, as
    in Numba."""
    if type(x) is int:
        return int, bits or 64, x & ((1 << (bits or 64)) - 1)
    kind = KIND[type(x)]
    if kind not in WIDTH:
        x, kind = cast(np.int8)(x), np.int8
    width = bits or WIDTH[kind]
    return kind, width, int(x) & ((1 << width) - 1)


def popc(x, bits=None):
    """How many bits are set."""
    kind, _, pattern = _operand(x, bits)
    return _of_kind(pattern.bit_count(), kind)


def clz(x, bits=None):
    """How many zeros lead; the whole width for 0."""
    kind, width, pattern = _operand(x, bits)
    return _of_kind(width - pattern.bit_length(), kind)


def _of_kind(count, kind):
    return count if kind in SIGNED else kind(count)


def ffs(x):
    """The position of the lowest bit set, counted from 1."""
    pattern = _operand(x, None)[2]
    return uint32((pattern & -pattern).bit_length())


def brev(x):
    """The bits in reverse order."""
    if type(x) is uint64:
        return uint64(reversed_bits(int(x), 64))
    return uint32(reversed_bits(int(cast(uint32)(x)), 32))


def reversed_bits(pattern, width):
    return int(f"{pattern:0{width}b}"[::-1], 2)


def fma(x, y, z):
    """x * y + z rounded once: float32 unless an operand needs float64 (`sim.isa.mathematics.paired`)."""
    if type(x) is float32 and type(y) is float32 and type(z) is float32:
        return fused_float32(x, y, z)
    kind = paired(*(paired(KIND[type(a)], KIND[type(b)]) for a, b in ((x, y), (y, z))))
    return fused(kind(x), kind(y), kind(z), kind)


def cbrt(x):
    """The cube root."""
    return single(x)(_cbrt(float64(x)))


_cbrt = unary("cbrt")


def selp(test, a, b):
    """a if test else b; like the instruction, for two values of one type."""
    if KIND[type(a)] is not KIND[type(b)]:
        raise TypeError(
            f"cuda.selp chooses between two values of one type; got {type(a).__name__} and {type(b).__name__}"
        )
    return a if test else b


fp16 = Library(__name__="cuda.fp16", **FUNCTIONS)
