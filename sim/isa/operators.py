"""The operators and number builtins of a kernel, typed as Numba types them and never raising for a value; and
those meanings that only the interpreter calls. What compiled kernels do, and so does it:

    int64 overflow                        wraps                  (uint64 likewise)
    -x, ~x of a narrow integer            in its own width       (then widened: -uint8(1) is 255,
                                                                 ~uint32(1) is 2**32 - 2)
    x / 0                                 inf, -inf or nan       (integers are divided as float64)
    i // 0, i % 0, divmod(i, 0)           0                      (Numba's "numpy" error model, CUDA's default)
    -2**63 // -1                          0
    -7 // 2, -7 % 2                       -4, 1                  (Python's signs)
    x // y, x % y                         see sim.isa.floored
    i << n, i >> n; n >= 64 or negative   0, and 0 or -1         (PTX clamps the low 32 bits of n as an
                                                                 unsigned number)
    i ** n                                wraps; is then rounded to a float64 if Python is older than 3.12;
                                          negative n: 0, unless i is 1 or -1; 0 ** -n is -2**63
    float32 ** n                          float32, by repeated multiplication; n float: `math.pow`
    max(float32, 0.0)                     float64
    max(a, b) of two floats               a NaN loses
    max of three or more, or with an int  b replaces a if b > a, so a NaN stays if it comes first
    int(x)                                towards zero, saturated; NaN gives -2**63
    round(x)                              to the nearest, ties to even; as int(x) beyond int64

Complex division by zero, an exception on the CPU, gives numpy's nan or inf. Conversions:
`sim.isa.conversions`.
"""

import sys
from math import isfinite

from numpy import float64

from sim.isa import ieee
from sim.isa.conversions import LOWEST, truncated, wrap

WHOLE = 2.0**23  # float32 has all whole numbers up to here


def undisturbed(of_python, exact):
    """// or % of two floats: Python's where rounding a / b does no harm, as it has a fraction or is exact;
    else `exact`, which takes longer."""

    def evaluate(a, b):
        ratio = a / b
        fraction = not ratio.is_integer() and isfinite(ratio)
        if fraction or not a % b and -WHOLE < ratio < WHOLE and isfinite(b):
            return of_python(a, b)
        return exact(a, b)

    return evaluate


def complex_quotient(a, b):
    """a / b in Numba's order, which is Python's of old: numpy's multiplies by 1 / denominator."""
    if b == 0:
        raise ZeroDivisionError("complex division by zero, where a GPU ends the thread without a word")
    if abs(b.real) >= abs(b.imag):
        ratio = b.imag / b.real
        below, real, imag = b.real + b.imag * ratio, a.real + a.imag * ratio, a.imag - a.real * ratio
    else:
        ratio = b.real / b.imag
        below, real, imag = b.real * ratio + b.imag, a.real * ratio + a.imag, a.imag * ratio - a.real
    return complex(real / below, imag / below)


# --- powers -------------------------------------------------------------------------------------------------

ieee_power = ieee.total(*ieee.BINARY["pow"])

# Numba's int_power ends with `return 1.0 / r if invert else r`: in the bytecode of Python before 3.12 one
# return of a float64, whose conversion back saturates; since then two
BY_WAY_OF_FLOAT64 = sys.version_info < (3, 12)


def int_power(a, b, scalar, by_way_of_float64=BY_WAY_OF_FLOAT64):
    """a ** b of an int modulo 2**64, rounded to a float64 where Numba does that; saturated where the exponent
    is above 2**16."""
    a, signed = int(a), scalar is int
    if b < 0 and a not in (1, -1):
        return 0 if a else LOWEST
    if abs(b) > 0x10000:
        return truncated(float64(ieee_power(a, float64(b))), 64, signed)
    power = pow(a, abs(b), 2**64)
    power = wrap(power) if signed else power
    return truncated(float64(power), 64, signed) if by_way_of_float64 else power


def repeated(a, exponent):
    """a ** exponent as Numba multiplies, one rounding a step."""
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
