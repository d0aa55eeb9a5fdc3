"""Exact rational arithmetic with a single rounding to a float format, in one of four rounding directions of
IEEE 754.

The directions are called rn (to nearest, ties to even), rz (towards zero), rd (down, PTX's rm) and ru (up,
PTX's rp). See PTX ISA 6.5, "Type Conversion" ("Rounding Modifiers").
"""

import math
from math import copysign, inf, isfinite

from ml_dtypes import bfloat16
from numpy import float16, float32, float64

# A Python float times ONE is rounded to float32, because numpy converts the Python float to the type of the
# other operand. This is the fastest way to round to float32. HALF_ONE does the same for float16.
ONE, HALF_ONE = float32(1), float16(1)
# Scalar type -> (number of bits of the significand, exponent of the smallest subnormal, smallest exponent
# that overflows).
FORMATS = {
    float16: (11, -24, 16),
    bfloat16: (8, -133, 128),
    float32: (24, -149, 128),
    float64: (53, -1074, 1024),
}


def rounded(numerator, denominator, scalar, mode="rn"):
    """Return numerator / denominator, rounded to `scalar`.

    numerator: a nonzero Python int.
    denominator: a positive Python int.
    """
    if scalar is float64 and mode == "rn":
        return _divided(numerator, denominator)
    precision, lowest, overflow = FORMATS[scalar]
    negative, magnitude = numerator < 0, abs(numerator)
    # This is the exponent of the result's lowest bit. The estimate is at most one too small, because the bit
    # lengths determine the length of the quotient up to one bit.
    exponent = max(magnitude.bit_length() - denominator.bit_length() - precision, lowest)
    if _quotient(magnitude, denominator, exponent)[0].bit_length() > precision:
        exponent += 1
    quotient, remainder, divisor = _quotient(magnitude, denominator, exponent)
    # Rounding up can carry into one more bit. This is harmless, because ldexp scales any quotient.
    quotient += _goes_up(quotient, remainder, divisor, negative, mode)
    if quotient.bit_length() + exponent > overflow:
        # On overflow, rounding towards zero gives the largest finite number instead of an infinity.
        away = mode == "rn" or mode == ("rd" if negative else "ru")
        value = inf if away else math.ldexp((1 << precision) - 1, overflow - precision)
    else:
        value = math.ldexp(quotient, exponent)
    return scalar(-value if negative else value)


def _divided(numerator, denominator):
    """Return the double nearest to a quotient. Python's division of two ints is correctly rounded."""
    try:
        return float64(numerator / denominator)
    except OverflowError:
        return float64(inf if numerator > 0 else -inf)


def _quotient(magnitude, denominator, exponent):
    """Return (quotient in units of 2**exponent, remainder, divisor)."""
    divisor = denominator << max(exponent, 0)
    return *divmod(magnitude << max(-exponent, 0), divisor), divisor


def _goes_up(quotient, remainder, divisor, negative, mode):
    """Return whether the magnitude has to be rounded up."""
    if mode == "rn":
        return 2 * remainder > divisor or (2 * remainder == divisor and quotient % 2 == 1)
    return remainder > 0 and mode == ("rd" if negative else "ru")


def rounded_root(numerator, denominator, scalar, mode="rn"):
    """Return the square root of numerator / denominator, rounded once to `scalar`.

    numerator, denominator: positive Python ints.
    """
    # This gives enough bits for the significand and for the sticky bit below it.
    spare = FORMATS[scalar][0] + 4
    shift = max(0, spare + (denominator.bit_length() - numerator.bit_length()) // 2 + 1)
    scaled, remainder = divmod(numerator << (2 * shift), denominator)
    root = math.isqrt(scaled)
    inexact = remainder != 0 or root * root != scaled
    # Append a sticky bit: 1 if the root is inexact. It suffices for every direction, because the root has
    # spare bits.
    return rounded(2 * root + inexact, 2 << shift, scalar, mode)


def fused(a, b, c, scalar, mode="rn"):
    """Return a * b + c, rounded once to `scalar`. The results for infinities, NaN and signed zeros follow
    IEEE 754."""
    a, b, c = float(a), float(b), float(c)
    if not (isfinite(a) and isfinite(b) and isfinite(c)):
        # If a or b is infinite or NaN, Python's arithmetic is exact. Otherwise, only c is not finite, and the
        # result is c. Return c directly, because Python's a * b could overflow.
        return scalar(c if isfinite(a) and isfinite(b) else a * b + c)
    (an, ad), (bn, bd), (cn, cd) = a.as_integer_ratio(), b.as_integer_ratio(), c.as_integer_ratio()
    numerator = an * bn * cd + cn * ad * bd
    if numerator:
        return rounded(numerator, ad * bd * cd, scalar, mode)
    # A sum that is exactly zero is +0. When rounding down, it is -0, unless both terms are +0 (IEEE 754,
    # 6.3).
    if mode == "rd" and (copysign(1, a) * copysign(1, b) < 0 or copysign(1, c) < 0):
        return scalar(-0.0)
    return scalar(a * b + c)


def fused_float16(a, b, c):
    """Return a * b + c, rounded once to float16, to nearest.

    The product is exact in double precision, and rounding twice gives the correct result. Either the sum is
    exact as well, or one term is much smaller than the other. If it is, the sum overflows, or is far from the
    middle between two adjacent float16 values.
    """
    return HALF_ONE * (float(a) * float(b) + float(c))


# Half of each distance between two adjacent float32 values, with both signs. The rounding error of a sum that
# overflows is infinite.
HALF_GAPS = frozenset(sign * gap for sign in (1, -1) for gap in (*(2.0**e for e in range(-150, 104)), inf))


def fused_float32(a, b, c):
    """Return a * b + c, rounded once to float32, to nearest."""
    product, addend = float(a) * float(b), float(c)
    total = product + addend  # the product is exact in double precision, and the sum is rounded
    nearest = ONE * total
    # The second rounding can be wrong only if `total` lies exactly in the middle between two adjacent
    # numbers, and is not the exact sum.
    rest = total - float(nearest)
    # Test for 0 first, because looking up 0 is slow: the hashes of powers of two collide with the hash of 0.
    if rest and rest in HALF_GAPS:
        # In Knuth's TwoSum, the sum of these two terms is the exact rounding error of `total`.
        back = total - product
        if (product - (total - back)) + (addend - back) != 0:
            return fused(a, b, c, float32)
    return nearest
