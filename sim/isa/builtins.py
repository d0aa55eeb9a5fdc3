"""Python's number builtins as Numba CUDA types them: min, max, abs, round, int, float, bool, complex."""

import operator
from functools import cache

import numpy as np
from numpy import complex64, complex128, float32, float64, int8

from sim.isa import ieee
from sim.isa.conversions import cast, wrap
from sim.isa.promotion import FLOATING, INTEGRAL, PLAIN, SCALAR, bfloat16, unified

MISSING = object()
_to_int64 = cast(int)
_hypot = ieee.total(*ieee.BINARY["hypot"])


def minimum(a, b=MISSING, *more):
    """min(a, b, ...) or min(tuple)."""
    if more or b is MISSING:
        return _fold(operator.lt, (a, b, *more) if more else a)
    scalar = type(a)
    if scalar is type(b) and (scalar is float32 or scalar is float64 or scalar is int):
        return b if b < a else a if a < b else ieee.smaller(a, b)
    return _extreme(operator.lt, ieee.smaller, a, b)


def maximum(a, b=MISSING, *more):
    """max(a, b, ...) or max(tuple)."""
    if more or b is MISSING:
        return _fold(operator.gt, (a, b, *more) if more else a)
    scalar = type(a)
    if scalar is type(b) and (scalar is float32 or scalar is float64 or scalar is int):
        return b if b > a else a if a > b else ieee.larger(a, b)
    return _extreme(operator.gt, ieee.larger, a, b)


def _extreme(better, of_floats, a, b):
    """For two operands of other types: PTX's choice for a float32 and a float64, Python's for the rest."""
    if {SCALAR.get(type(a)), SCALAR.get(type(b))} == PLAIN:
        return of_floats(float64(a), float64(b))
    scalar = common(type(a), type(b))
    a, b = scalar(a), scalar(b)
    return b if better(b, a) else a


def _fold(better, values):
    """From the left, each in the type that it and the best so far share."""
    best = values[0]
    for value in values[1:]:
        scalar = common(type(best), type(value))
        best, value = scalar(best), scalar(value)
        best = value if better(value, best) else best
    return best


@cache
def common(left, right):
    """The scalar type in which min and max compare numbers of two types."""
    scalars = SCALAR.get(left), SCALAR.get(right)
    scalar = None if None in scalars else unified(*scalars)
    if scalar is None:
        raise TypeError(f"Numba has no min or max for {left.__name__} and {right.__name__}")
    return scalar


def absolute(a):
    """abs(a), in the type of a: abs of the lowest integer is itself; bool gives int8, bfloat16 a
    float32."""
    if type(a) in PLAIN:
        return abs(a)
    scalar = SCALAR[type(a)]
    if scalar is int:
        return wrap(abs(int(a)), 64)
    if scalar is complex64 or scalar is complex128:
        return type(a.real)(_hypot(a.real, a.imag))
    if scalar is bool:
        return int8(a)
    return float32(abs(a)) if scalar is bfloat16 else scalar(abs(a))


def rounded_to_digits(x, digits):
    """CPython's fallback for rounding to decimal digits, which Numba compiles for CUDA
    (numba/cuda/cudaimpl.py): by way of an int64."""
    digits = min(max(digits, -400), 400)
    scale, spare = float64(10.0) ** abs(digits), 1.0
    if digits > 22:
        scale, spare = float64(10.0) ** (digits - 22), 1e22
    y = x * scale * spare if digits >= 0 else x / scale
    if not np.isfinite(x) or not np.isfinite(y):
        return float64(x)
    z = _whole(y)
    if abs(y - z) == 0.5:
        z = 2.0 * _whole(y / 2.0)
    return z / spare / scale if digits >= 0 else z * scale


def _whole(y):
    """The nearest whole number that an int64 holds, which has no -0."""
    return min(max(np.rint(y), -(2.0**63)), 2.0**63) + 0.0


def int_(a):
    """int(a): integers keep their type, a bool becomes an int64, floats go towards zero and saturate."""
    scalar = SCALAR.get(type(a))
    if scalar in INTEGRAL:
        return int(a) if scalar is bool else a
    return _to_int64(a)


def float_(a):
    """float(a): a float keeps its type (float32 stays float32), an integer becomes a float64; so does a
    string."""
    if type(a) in PLAIN:
        return a
    scalar = SCALAR.get(type(a))
    return scalar(a) if scalar in FLOATING else float64(a)


def range_(*bounds):
    """range, whose bounds may be floats, as math.ceil gives them."""
    try:
        return range(*bounds)
    except TypeError:
        return range(*map(int_, bounds))
