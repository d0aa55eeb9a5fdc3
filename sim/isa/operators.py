"""Semantics of operators called only by the interpreter. No operator raises an exception because of the
values of its operands, except for a complex division by zero.

Compiled and interpreted kernels agree on the following:

    int64 overflow                        wraps around           (also for uint64)
    -x, ~x of a narrow integer            in its own width       (then widened: -uint8(1) is 255,
                                                                 ~uint32(1) is 2**32 - 2)
    x / 0                                 inf, -inf or nan       (integers are divided as float64)
    i // 0, i % 0, divmod(i, 0)           0                      (Numba's error model "numpy", the
                                                                 default for CUDA)
    -2**63 // -1                          0
    -7 // 2, -7 % 2                       -4, 1                  (Python's signs)
    x // y, x % y                         see sim.isa.floored
    i << n, i >> n; n >= 64 or negative   0, and 0 or -1         (PTX treats the low 32 bits of n as an
                                                                 unsigned count and clamps it)
    i ** n                                wraps around; then rounded to float64 if Python is older than 3.12;
                                          negative n: 0, unless i is 1 or -1; 0 ** -n is -2**63
    float32 ** n                          float32, by repeated multiplication; float n: `math.pow`
    max(float32, 0.0)                     float64
    max(a, b) of two floats               the other operand if one is NaN
    max of three or more, or with an int  b replaces a if b > a, so a NaN persists only if it comes first
    int(x)                                towards zero, saturated; -2**63 for NaN
    round(x)                              to nearest, ties to even; beyond int64 as int(x)

Conversions are in `sim.isa.conversions`.
"""

import sys
from math import isfinite

from numpy import float64

from sim.isa import ieee
from sim.isa.conversions import LOWEST, truncated, wrap

WHOLE = 2.0**23  # float32 represents every integer up to this one


def quick_or_exact(of_python, exact):
    """Return // or % for two floats.

    Python's result is used if the quotient a / b has a fractional part or is exact, because the rounding of
    the quotient then cannot change the result. Otherwise, the slower function `exact` computes the result.
    """

    def evaluate(a, b):
        ratio = a / b
        fraction = not ratio.is_integer() and isfinite(ratio)
        if fraction or not a % b and -WHOLE < ratio < WHOLE and isfinite(b):
            return of_python(a, b)
        return exact(a, b)

    return evaluate


def complex_quotient(a, b):
    """Return a / b, in the order of operations used by Numba and by older Python versions. numpy multiplies
    by 1 / denominator instead, which rounds differently.

    Raise ZeroDivisionError if b is 0. A GPU terminates the thread without an error message.
    """
    if b == 0:
        raise ZeroDivisionError("complex division by zero, where a GPU ends the thread without a message")
    # This is Smith's algorithm. It divides by the larger part first, so that the denominator does not
    # overflow.
    if abs(b.real) >= abs(b.imag):
        ratio = b.imag / b.real
        below, real, imag = b.real + b.imag * ratio, a.real + a.imag * ratio, a.imag - a.real * ratio
    else:
        ratio = b.real / b.imag
        below, real, imag = b.real * ratio + b.imag, a.real * ratio + a.imag, a.imag * ratio - a.real
    return complex(real / below, imag / below)


# --- powers -------------------------------------------------------------------------------------------------

ieee_power = ieee.total(*ieee.BINARY["pow"])

# Numba's int_power ends with `return 1.0 / r if invert else r`. Before Python 3.12, the bytecode of this line
# has a single return of a float64, and the conversion back to an integer saturates. From Python 3.12 on, it
# has two returns.
BY_WAY_OF_FLOAT64 = sys.version_info < (3, 12)


def int_power(a, b, scalar, by_way_of_float64=BY_WAY_OF_FLOAT64):
    """Return a ** b for integers modulo 2**64. The result is rounded to float64 if Numba does so.

    For an exponent above 2**16, Numba computes in float64, and the result saturates.
    """
    a, signed = int(a), scalar is int
    if b < 0 and a not in (1, -1):
        return 0 if a else LOWEST
    if abs(b) > 0x10000:
        return truncated(float64(ieee_power(a, float64(b))), 64, signed)
    power = pow(a, abs(b), 2**64)
    power = wrap(power) if signed else power
    return truncated(float64(power), 64, signed) if by_way_of_float64 else power


def multiply_repeatedly(a, exponent):
    """Return a float to an integer power, by the sequence of multiplications that Numba uses. Each
    multiplication rounds its result."""
    # This is a shortcut for the most common exponent. The loop would return the same value.
    if exponent == 2:
        return a * a
    if abs(exponent) > 0x10000:
        return type(a)(ieee_power(a, exponent))
    product, rest = type(a)(1), abs(exponent)
    while rest:
        if rest & 1:
            product = product * a
        rest >>= 1
        a = a * a
    return type(a)(float64(1) / product) if exponent < 0 else product
