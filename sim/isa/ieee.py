"""Functions on doubles. Where Python's `math` raises an exception, they return the result that IEEE 754 and
CUDA specify.

UNARY and BINARY map each name to a pair. The first function is fast, but can raise ValueError, OverflowError
or ZeroDivisionError. In that case, the second function computes the result.
"""

import math
import re
from math import copysign, inf, nan
from statistics import NormalDist

import numpy as np
from numpy import float64

# The exceptions raised by Python's math for a domain error or an overflow.
RAISES = (ValueError, OverflowError, ZeroDivisionError)


def total(function, otherwise):
    """Return a function that calls `function`, and falls back to `otherwise` on an exception."""

    def evaluate(*x):
        try:
            return function(*x)
        except RAISES:
            return otherwise(*map(float64, x))

    return evaluate


def scaled(x, exponent):
    """Return x * 2**exponent. On overflow, return an infinity with the sign of x."""
    try:
        return math.ldexp(x, exponent)
    except OverflowError:
        return copysign(inf, x)


def fraction_and_whole(x):
    """Return (fraction, integral part) of x, both with the sign of x. This is the compiled form of modf."""
    whole = np.trunc(x)
    return copysign(x - whole if np.isfinite(whole) or np.isnan(whole) else 0.0, x), whole


def nearest_remainder(x, y):
    """Return the IEEE remainder of x / y. This is the compiled form of math.remainder.

    The result x - n y is exact, where n is the integer nearest to x / y (ties to even).
    """
    size, step = abs(x), abs(y)
    above = np.fmod(
        size, step
    )  # |x| modulo |y|; `below` is the distance from |x| up to the next multiple of |y|
    below = step - above
    # In a tie, the parity of the truncated quotient decides. (size - above) / 2 modulo |y| is 0 for an even
    # quotient, and |y| / 2 for an odd quotient.
    tie = above - 2 * np.fmod((size - above) / 2, step)
    return copysign(1.0, x) * (above if above < below else -below if above > below else tie)


def _whole(function):
    """Return a function that rounds a double to an integral double with the same sign, even if the result is
    zero.

    It raises an exception for infinities and NaN.
    """
    return lambda x: copysign(function(x), x)


def _round_away(x):
    """Round to the nearest integer, ties away from zero."""
    return copysign(math.floor(abs(x)) + int(abs(x) % 1.0 >= 0.5), x)


def _no_gamma(x):
    """Return gamma(x) at a pole, for an infinity, or for NaN."""
    if x == 0:
        return copysign(inf, x)
    return nan if x < 0 or x != x else inf


def _log_gamma_pole(x):
    """Return lgamma(x) in the cases where math.lgamma raises an exception."""
    return nan if x != x else inf


def cospi(x):
    """Return cos(pi x). The result is exact if it is 0, 1 or -1."""
    x = abs(math.fmod(x, 2.0))
    return 0.0 if x in (0.5, 1.5) else math.cos(math.pi * x) if x <= 1.0 else math.cos(math.pi * (2.0 - x))


def sinpi(x):
    """Return sin(pi x). The result is exact if it is 0, 1 or -1."""
    # Reducing the argument before the multiplication by pi causes no rounding error.
    rest = math.remainder(x, 2.0)
    if abs(rest) in (0.0, 1.0):
        return copysign(0.0, x)
    return math.sin(math.pi * (rest if abs(rest) <= 0.5 else copysign(1.0, rest) - rest))


def _edges(low, at_low, high, at_high):
    """Return a function that returns the limits of an inverse function at the ends of its domain, and NaN
    outside the domain."""
    return lambda x: at_low if x == low else at_high if x == high else nan


def erfinv(x):
    """Return the inverse of erf, computed from the normal quantile.

    Near zero, 1 - |x| loses digits, so two steps of Newton's method improve the result.
    """
    y = -NormalDist().inv_cdf((1.0 - abs(x)) / 2.0) / math.sqrt(2.0)
    for _ in range(2 if abs(x) < 0.5 else 0):
        y -= (math.erf(y) - abs(x)) * math.sqrt(math.pi) / 2.0 * math.exp(y * y)
    return copysign(y, x)


def erfcinv(x):
    """Return the inverse of erfc."""
    return -NormalDist().inv_cdf(x / 2.0) / math.sqrt(2.0) if x < 0.5 else erfinv(1.0 - x)


def _logb(x):
    """Return the exponent of x as a float. Infinities, NaN and zeros are left to _logb_edge."""
    # x - x is 0 only if x is finite. frexp normalises the significand to [0.5, 1), but logb to [1, 2).
    return float(math.frexp(x)[1] - 1) if x - x == 0 and x != 0 else _logb_edge(x)


def _logb_edge(x):
    """Return logb of a zero, an infinity or NaN."""
    return -inf if x == 0 else x * x


def _rcbrt(x):
    """Return the reciprocal cube root."""
    return 1.0 / math.cbrt(x)


def rounded_to_digits(x, digits):
    """Return x, rounded to a number of decimal digits through an int64.

    This is the fallback algorithm of CPython, which Numba compiles for CUDA (numba/cuda/cudaimpl.py).
    """
    digits = min(max(digits, -400), 400)
    scale, spare = float64(10.0) ** abs(digits), 1.0
    # 10**22 is the largest power of ten exactly representable in double precision, so apply the scale in two
    # factors.
    if digits > 22:
        scale, spare = float64(10.0) ** (digits - 22), 1e22
    y = x * scale * spare if digits >= 0 else x / scale
    if not np.isfinite(x) or not np.isfinite(y):
        return float64(x)
    z = whole_in_int64(y)
    # Round half to even.
    if abs(y - z) == 0.5:
        z = 2.0 * whole_in_int64(y / 2.0)
    return z / spare / scale if digits >= 0 else z * scale


def whole_in_int64(y):
    """Return the integer nearest to y within the range of int64, as a double. The result is never -0, because
    the value is converted to an integer in between."""
    return min(max(np.rint(y), -(2.0**63)), 2.0**63) + 0.0


# --- the larger and the smaller -----------------------------------------------------------------------------


def larger(x, y):
    """Return the larger operand (PTX ISA 9.7.3, `max`). A number takes precedence over NaN, and +0 over
    -0."""
    if x > y or y > x:
        return x if x > y else y
    if x != x or y != y:
        return y if x != x else x
    return x if copysign(1.0, float64(x)) > 0 else y


def smaller(x, y):
    """Return the smaller operand (PTX ISA 9.7.3, `min`). A number takes precedence over NaN, and -0 over
    +0."""
    if x < y or y < x:
        return x if x < y else y
    if x != x or y != y:
        return y if x != x else x
    return x if copysign(1.0, float64(x)) < 0 else y


def larger_or_nan(x, y):
    """Return the larger operand, or NaN if either operand is NaN (max.NaN)."""
    return x if x != x else y if y != y else larger(x, y)


def smaller_or_nan(x, y):
    """Return the smaller operand, or NaN if either operand is NaN (min.NaN)."""
    return x if x != x else y if y != y else smaller(x, y)


def saturated(x):
    """Return x clamped to the range from 0 to 1 (.sat). NaN becomes 0."""
    return type(x)(0) if not x > 0 else min(x, type(x)(1))


def at_least_zero(x):
    """Return x, or 0 if x is negative (.relu). NaN is unchanged."""
    return x if x > 0 or x != x else type(x)(0)


def numpy_function(name):
    """Return the numpy function that corresponds to a function of Python's math or cmath."""
    return getattr(np, {"pow": "power"}.get(name) or re.sub("^a(?=[cst])", "arc", name))


def both_libraries(names):
    """Return {name: (function of math, function of numpy)}. numpy's function returns the IEEE result in the
    cases where math's raises an exception."""
    return {name: (getattr(math, name), numpy_function(name)) for name in names.split()}


UNARY = both_libraries(
    "acos acosh asin asinh atan atanh cbrt cos cosh exp exp2 expm1 fabs log log10 log1p log2 sin sinh sqrt"
    " tan tanh"
) | {
    "ceil": (_whole(math.ceil), np.ceil),
    "cospi": (cospi, np.cos),
    "erf": (math.erf, math.erf),
    "erfc": (math.erfc, math.erfc),
    "erfcinv": (erfcinv, _edges(0, inf, 2, -inf)),
    "erfinv": (erfinv, _edges(-1, -inf, 1, inf)),
    "exp10": (lambda x: math.pow(10.0, x), lambda x: np.power(10.0, x)),
    "floor": (_whole(math.floor), np.floor),
    "lgamma": (math.lgamma, _log_gamma_pole),
    "logb": (_logb, _logb_edge),
    "nearbyint": (_whole(round), np.rint),
    "normcdf": (lambda x: 0.5 * math.erfc(-x / math.sqrt(2.0)), math.erfc),
    "normcdfinv": (lambda p: NormalDist().inv_cdf(p), _edges(0, -inf, 1, inf)),
    "rcbrt": (_rcbrt, lambda x: copysign(inf, x)),
    "rint": (_whole(round), np.rint),
    "round": (_round_away, np.rint),
    "rsqrt": (lambda x: 1.0 / math.sqrt(x), lambda x: 1.0 / np.sqrt(x)),
    "sinpi": (sinpi, np.sin),
    "tgamma": (math.gamma, _no_gamma),
    "trunc": (_whole(lambda x: int(float(x))), np.trunc),
}

BINARY = both_libraries("atan2 copysign fmod pow") | {
    "fdim": (lambda x, y: nan if x != x or y != y else x - y if x > y else 0.0, np.subtract),
    # abs() of a complex number calls hypot of the C library, as compiled code does. math.hypot uses another
    # algorithm, whose results differ in the last bits.
    "hypot": (lambda x, y: abs(complex(x, y)), np.hypot),
    "remainder": (math.remainder, lambda x, y: nan),
}

# --- compiled forms -----------------------------------------------------------------------------------------

ULPS = 2  # the maximum difference between two math libraries, in units in the last place
# The compiled forms whose result is exact in every library.
EXACT = {
    "ceil": np.ceil, "fabs": math.fabs, "floor": np.floor, "nearbyint": np.rint, "rint": np.rint,
    "sqrt": math.sqrt, "trunc": np.trunc, "copysign": math.copysign, "fmod": np.fmod,
    "remainder": nearest_remainder,
}  # fmt: skip
# The functions that Numba compiles to calls of the C library.
LIBRARY = """acos acosh asin asinh atan atan2 atanh cos cosh erf erfc exp expm1 hypot lgamma log log10 log1p
    pow sin sinh tan tanh"""


def in_double(function):
    """Return the compiled form of a function of the C library. It computes in double precision, like the
    reference implementation. The library's functions for single precision can differ in the last bit."""

    def compute(x):
        return function(float64(x))

    def compute_two(x, y):
        return function(float64(x), float64(y))

    return compute_two if function in (math.atan2, math.hypot, math.pow) else compute


# name of a function -> its compiled form
NATIVE = EXACT | {name: in_double(getattr(math, name)) for name in LIBRARY.split()}
NATIVE |= {
    "cbrt": in_double(np.cbrt),
    "exp10": lambda x: math.pow(10.0, float64(x)),
    "exp2": lambda x: math.pow(2.0, float64(x)),
    "log2": in_double(np.log2),
    "rsqrt": lambda x: 1.0 / math.sqrt(float64(x)),
    "tgamma": in_double(math.gamma),
}
# rounding direction -> function that rounds to an integral float
WHOLE = {"rn": np.rint, "rz": np.trunc, "rd": np.floor, "ru": np.ceil}


def compiled(name):
    """Return the keyword arguments `native` and `ulps` of a Function. Return {} if there is no compiled
    form."""
    # Near the zeros of lgamma, the results of libraries differ by more.
    ulps = 0 if name in EXACT else 8 * ULPS if name == "lgamma" else ULPS
    return {"native": NATIVE[name], "ulps": ulps} if name in NATIVE else {}


def of_one(name):
    """Return the function of one double with this name. It never raises an exception."""
    return total(*UNARY[name])


def of_two(name):
    """Return the function of two doubles with this name. It never raises an exception."""
    return total(*BINARY[name])
