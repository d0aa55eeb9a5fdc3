"""Conversions of values: within a kernel, on stores, and when the host passes a value to a kernel.

Inside a kernel, the Python type of a value represents its Numba type:

    int                              int64, or a narrower signed integer whose width no longer matters
    numpy int8, int16, int32         a signed integer that has kept its width (Numba's arithmetic widens it)
    numpy uint8 ... uint64           unsigned integers
    bool (also numpy.bool)           boolean
    numpy float16, float32, float64, ml_dtypes.bfloat16 (a Python float counts as float64)
    numpy complex64, complex128      (a Python complex counts as complex128)

No conversion raises an exception for an out-of-range value. Integers wrap around. A float converted to an
integer saturates, as in PTX's `cvt` (PTX ISA 9.7.9, "Data Movement and Conversion Instructions"). numpy would
warn about some of these conversions, so callers run under `numpy.errstate(all="ignore")`.
"""

import math
from functools import cache

import numpy as np
from ml_dtypes import bfloat16
from numpy import complex64, complex128, float16, float32, float64, uint64

from sim.isa.rounding import ONE, rounded

EXACT = 2**53  # float64 represents every integer up to this one exactly
LOWEST, HIGHEST = -(2**63), 2**63 - 1
INTEGERS = (int, np.integer, np.bool_)
FLOATS = (float, np.floating, bfloat16)
NUMBERS = INTEGERS + FLOATS + (complex, np.complexfloating)


def wrap(value, bits=64):
    """Return `value` modulo 2**bits, as a signed integer of `bits` bits."""
    # Add half the range before masking and subtract it afterwards, so that the result is in the signed range.
    half = 1 << (bits - 1)
    return ((value + half) & ((1 << bits) - 1)) - half


@cache
def cast(dtype):
    """Return the function that converts any value of a kernel to `dtype`, as `numba.float32(x)` and
    `np.int32(x)` do.

    A signed result is a Python int within the range of `dtype`.

    dtype: a numpy dtype or scalar type, `ml_dtypes.bfloat16`, a Python type, or any object whose `str` is the
        name of a dtype, such as a Numba type.
    """
    dtype = _as_dtype(dtype)
    if dtype.kind == "i":
        return _to_signed(8 * dtype.itemsize)
    if dtype.kind == "u":
        return _to_unsigned(dtype.type, 8 * dtype.itemsize)
    return _TO_OTHER[dtype.type]


def domain(value):
    """Return the value that represents a host value in a kernel.

    Tuples are converted element by element. A non-numeric value is returned unchanged.

    Raise OverflowError for an int that needs more than 64 bits.
    """
    if isinstance(value, tuple):
        return tuple(domain(item) for item in value)
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.signedinteger)):
        return _host_int(int(value))
    if isinstance(value, np.generic):
        return value
    return {float: float64, complex: complex128}.get(type(value), lambda other: other)(value)


def fits_64_bits(value):
    """Return whether an int fits an int64 or a uint64."""
    return LOWEST <= value < 2**64


def _host_int(value):
    """Return a host int as an int64 if it fits, otherwise as a uint64."""
    if LOWEST <= value <= HIGHEST:
        return value
    if fits_64_bits(value):
        return uint64(value)
    raise OverflowError(f"{value} does not fit into 64 bits, the width of a kernel's widest integers")


def _as_dtype(dtype):
    """Return the numpy dtype for anything accepted by `cast`."""
    if not isinstance(dtype, (type, np.dtype)):
        # Numba prefixes the names of CUDA's 16-bit types with __nv_. The type bfloat16 belongs to ml_dtypes.
        name = str(dtype).removeprefix("__nv_")
        dtype = bfloat16 if name == "bfloat16" else name
    return np.dtype(dtype)


def _to_signed(bits):
    """Return the conversion to a signed integer of `bits` bits, represented by a Python int."""
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    lowest, highest = float(low), float(high)

    def to_signed(value):
        if type(value) is int:
            return value if low <= value <= high else wrap(value, bits)
        # On the fast path, a float strictly within the range is only truncated. The comparison is false for
        # NaN.
        if type(value) is float32 or type(value) is float64:
            double = float(value)
            if lowest < double < highest:
                return int(double)
        return wrap(_integral(value, bits, signed=True), bits)

    return to_signed


def _to_unsigned(scalar, bits):
    """Return the conversion to the unsigned numpy type `scalar`, which has `bits` bits."""
    mask = (1 << bits) - 1

    def to_unsigned(value):
        if type(value) is scalar:
            return value
        return scalar((value if type(value) is int else _integral(value, bits, signed=False)) & mask)

    return to_unsigned


def _integral(value, bits, signed):
    """Return an int congruent to the converted number modulo 2**bits."""
    if isinstance(value, INTEGERS):
        return int(value)
    if isinstance(value, FLOATS):
        return truncated(value, bits, signed)
    raise TypeError(f"{value!r} is not a number, so it cannot be converted to an integer")


def truncated(value, bits=64, signed=True, least=16):
    """Convert a float to an integer, as PTX's `cvt.rzi` does for Numba.

    The value is rounded towards zero. It saturates to `bits` bits, but to at least `least` bits: for an 8-bit
    integer, Numba saturates to 16 bits and then keeps the low 8 bits. A float16 is rounded to the nearest
    integer instead (ties to even) and saturates to 8 bits, because Numba emits `cvt.rni` for it.

    NaN becomes 0. If the source is a float64 or the result has 64 bits, NaN becomes the integer with only the
    top bit set (PTX ISA 9.7.9, `cvt`).
    """
    half = type(value) is float16
    width = bits if half else max(bits, least)
    if value != value:
        # np.float64 is the only numpy type that is a subclass of Python's float.
        top = width == 64 or isinstance(value, float) and width > 8
        return (-1 if signed else 1) << (width - 1) if top else 0
    value = float(value)
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if signed else (0, (1 << width) - 1)
    if not low < value < high:
        return low if value <= low else high
    # round() rounds ties to even, and int() rounds towards zero.
    return round(value) if half else int(value)


def _to_float16(value):
    """Convert to float16."""
    if type(value) is float16:
        return value
    return float16(_double(value))


def _to_bfloat16(value):
    """Convert to bfloat16 in a single rounding. A conversion through float32 would round twice."""
    if type(value) is bfloat16:
        return value
    value = _double(value)
    if not math.isfinite(value) or value == 0:
        return bfloat16(value)
    return rounded(*value.as_integer_ratio(), bfloat16)


def _to_float32(value):
    """Convert to float32 in a single rounding."""
    if type(value) is float:
        return ONE * value
    if type(value) is float32:
        return value
    if isinstance(value, float) or (type(value) is int and -EXACT <= value <= EXACT):
        return ONE * float(value)
    if isinstance(value, INTEGERS):
        # Above 2**53, a conversion through a double would round twice.
        return float32(np.int64(value)) if value <= HIGHEST else float32(uint64(value))
    return float32(_double(value))


def _to_float64(value):
    """Convert to float64."""
    return value if type(value) is float64 else float64(_double(value))


def _double(value):
    """Return a real number as a Python float.

    Raise TypeError for anything else, including complex numbers.
    """
    if isinstance(value, NUMBERS[:-2]):
        return float(value)
    raise TypeError(f"{value!r} is not a number, so it cannot be converted to a float")


_TO_OTHER = {
    np.bool_: bool,
    float16: _to_float16,
    bfloat16: _to_bfloat16,
    float32: _to_float32,
    float64: _to_float64,
    complex64: complex64,
    complex128: complex128,
}
