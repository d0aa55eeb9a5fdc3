"""The functions `cuda.popc`, `brev`, `clz`, `ffs`, `fma`, `cbrt` and `selp`, and the module `cuda.fp16`, as
used by kernels.

Numba counts bits in the width of the operand's type. Here, a Python int is an int64, and a numpy scalar such
as `numpy.int32` has its own width. The width matters only for clz, and for popc of a negative number. The
results have Numba's types:

    popc, clz   the operand's type (an int for an int)
    ffs         uint32: 1 for the lowest bit, 0 if no bit is set
    brev        uint64 for a uint64; otherwise uint32, of the low 32 bits, even for an int64

Source: CUDA Math API; PTX ISA 9.7.1, "Integer Arithmetic Instructions" (popc, clz, brev).
"""

import numpy as np
from numpy import float32, float64, uint32, uint64

from sim.isa import bits, ieee
from sim.isa.functions import SAME, Function, Version
from sim.isa.half import FUNCTIONS
from sim.isa.mathematics import Library, paired_type, single_type
from sim.isa.promotion import INTEGRAL
from sim.isa.rounding import fused, fused_float32

SOURCE = "CUDA Math API"


def counted_type(scalar):
    """Return the integer type in which bits are counted. Numba converts a bool or a float to int8."""
    return scalar if scalar in INTEGRAL - {bool} else np.int8


def of_its_type(x):
    """Return the overload (Version) of popc and clz. The result has the operand's type."""
    return Version((counted_type(x),), counted_type(x))


def of_32_bits(x):
    """Return the overload (Version) of ffs."""
    return Version((counted_type(x),), uint32)


def of_64_or_32_bits(x):
    """Return the overload (Version) of brev."""
    return Version((uint64,), uint64) if x is uint64 else Version((uint32,), uint32)


def of_floats(x, y, z):
    """Return the overload (Version) of fma. The result is float32 unless an operand needs float64."""
    scalar = paired_type(paired_type(x, y), paired_type(y, z))
    return Version((scalar,) * 3, scalar, fused_float32 if scalar is float32 else None)


def of_one_float(x):
    """Return the overload (Version) of cbrt."""
    return Version((float64,), single_type(x))


def of_two_alike(test, a, b):
    """Return the overload (Version) of selp, which requires both values to have the same type."""
    return Version((bool, a, b), a) if a is b else None


def fused_once(x, y, z):
    """Return x * y + z rounded once."""
    return fused(x, y, z, type(x))


def chosen(test, a, b):
    """Return `a` if the test is true, otherwise `b`."""
    return a if test else b


# Each row has the name, the semantics, the type rule, the compiled form, and the maximum difference between
# the semantics and the compiled form in ulps.
ENTRIES = {
    name: Function(name, semantics, SOURCE, rule=rule, native=native, ulps=ulps).add()
    for name, semantics, rule, native, ulps in (
        ("popc", bits.popc, of_its_type, bits.POPC, 0),
        ("clz", bits.clz, of_its_type, bits.CLZ, 0),
        ("ffs", bits.ffs, of_32_bits, bits.first_set, 0),
        ("brev", bits.brev, of_64_or_32_bits, bits.BREV, 0),
        ("fma", fused_once, of_floats, bits.FMA, 0),
        ("cbrt", ieee.of_one("cbrt"), of_one_float, np.cbrt, ieee.ULPS),
        ("selp", chosen, of_two_alike, SAME, 0),
    )
}
popc, clz, ffs, brev, fma, cbrt, selp = (entry.call for entry in ENTRIES.values())
fp16 = Library(__name__="cuda.fp16", **FUNCTIONS)
