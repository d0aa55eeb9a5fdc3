"""Arithmetic and conversions with a given rounding direction, such as PTX's add.rm (CUDA's _rd) and
cvt.rzi."""

import math

import numpy as np
from numpy import dtype as as_dtype
from numpy import float64

from sim.isa.conversions import cast, truncated
from sim.isa.rounding import fused, rounded, rounded_root

# rounding direction -> Python function that rounds to an int
WHOLE = {"rn": round, "rz": math.trunc, "rd": math.floor, "ru": math.ceil}
DIRECTIONS = tuple(WHOLE)


def to_float(value, source, scalar, mode):
    """Convert `value` to the type `source`, then round it to `scalar` in the direction `mode` (cvt)."""
    value = cast(source)(value)
    number = int(value) if as_dtype(source).kind in "iu" else float(value)
    # `rounded` accepts neither zeros nor infinities, whose conversions are exact.
    if not math.isfinite(number) or number == 0:
        return scalar(number)
    return rounded(*number.as_integer_ratio(), scalar, mode)


def from_float(value, dtype, mode):
    """Convert a float to the integer type `dtype`. It is rounded in the direction `mode` and then saturates.

    `conversions.truncated` describes the result for NaN.
    """
    dtype = as_dtype(dtype)
    if math.isfinite(value):
        value = type(value)(float(WHOLE[mode](float(value))))
    # PTX saturates to the width of the destination (least=8), but Numba's conversion saturates to 16 bits.
    return int(cast(dtype)(truncated(value, 8 * dtype.itemsize, dtype.kind == "i", least=8)))


def divided(x, y, scalar, mode):
    """Return x / y, rounded once to `scalar` in the direction `mode`."""
    x, y = float(x), float(y)
    if not (math.isfinite(x) and math.isfinite(y)) or x == 0 or y == 0:
        return scalar(float64(x) / float64(y))
    (xn, xd), (yn, yd) = x.as_integer_ratio(), y.as_integer_ratio()
    sign = -1 if yn < 0 else 1
    return rounded(sign * xn * yd, xd * abs(yn), scalar, mode)


def multiplied(x, y, scalar, mode):
    """Return x * y, rounded once to `scalar` in the direction `mode`."""
    x, y = float(x), float(y)
    # `fused` would add +0 to the product, and a product of -0 would lose its sign.
    if x == 0 or y == 0:
        return scalar(x * y)
    return fused(x, y, 0.0, scalar, mode)


def square_root(x, scalar, mode, inverse=False):
    """Return sqrt(x), or 1 / sqrt(x) if `inverse` is true, rounded once to `scalar` in the direction
    `mode`."""
    x = float(x)
    if not math.isfinite(x) or x <= 0:
        root = np.sqrt(float64(x))
        return scalar(1.0 / root if inverse else root)
    numerator, denominator = x.as_integer_ratio()
    return (
        rounded_root(denominator, numerator, scalar, mode)
        if inverse
        else rounded_root(numerator, denominator, scalar, mode)
    )
