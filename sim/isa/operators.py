"""The operators and number builtins of a kernel, typed as Numba types them and never raising for a value.

Every operator begins with the pairs that inner loops are made of (two ints, two equal floats); every other
pair goes through the table of `sim.isa.promotion`. What compiled kernels do, and so do these:

    int64 overflow                        wraps                  (uint64 likewise)
    -x, ~x of a narrow integer            in its own width       (then widened: -uint8(1) is 255,
                                                                 ~uint32(1) is 2**32 - 2)
    x / 0                                 inf, -inf or nan       (integers are divided as float64)
    i // 0, i % 0, divmod(i, 0)           0                      (Numba's "numpy" error model, CUDA's default)
    -2**63 // -1                          0
    -7 // 2, -7 % 2                       -4, 1                  (Python's signs; of floats exact, where a GPU
                                                                 rounds a / b first)
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

import operator
import sys

from numpy import bool_ as numpy_bool
from numpy import float32, float64, uint64

from sim.isa import ieee, promotion
from sim.isa.builtins import int_
from sim.isa.conversions import HIGHEST, LOWEST, cast, truncated, wrap
from sim.isa.promotion import COMPLEX, FLOATING, INTEGRAL, PLAIN, SCALAR, Promotion

ARITHMETIC = Promotion(promotion.arithmetic)
DIVISION = Promotion(promotion.division)
REAL_DIVISION = Promotion(promotion.real_division)
EXPONENTIATION = Promotion(promotion.exponentiation)
SHIFT = Promotion(promotion.shift)
BITWISE = Promotion(promotion.bitwise)
COMPARISON = Promotion(promotion.comparison)
QUOTIENT_AND_REMAINDER = Promotion(promotion.quotient_and_remainder)
WORDS = {int, uint64}  # integers that & | ^ leave as wide as they are
_ieee_pow = ieee.total(*ieee.BINARY["pow"])


def _mixed(table, operation, a, b):
    """`operation` in the type that `table` names; Python's own for operands that are no numbers, such as
    tuples."""
    entry = table[type(a), type(b)]
    if entry is None:
        return operation(a, b)
    left, right, scalar = entry
    if scalar is None:
        raise TypeError(f"Numba has no {operation.__name__} for {type(a).__name__} and {type(b).__name__}")
    result = operation(left(a), right(b))
    return wrap(result) if scalar is int else result


def add(a, b):
    scalar = type(a)
    if scalar is type(b):
        if scalar is float32 or scalar is float64 or scalar is uint64:
            return a + b
        if scalar is int:
            total = a + b
            return total if LOWEST <= total <= HIGHEST else wrap(total)
    elif scalar in PLAIN and type(b) in PLAIN:
        return a + b
    return _mixed(ARITHMETIC, operator.add, a, b)


def sub(a, b):
    scalar = type(a)
    if scalar is type(b):
        if scalar is float32 or scalar is float64 or scalar is uint64:
            return a - b
        if scalar is int:
            difference = a - b
            return difference if LOWEST <= difference <= HIGHEST else wrap(difference)
    elif scalar in PLAIN and type(b) in PLAIN:
        return a - b
    return _mixed(ARITHMETIC, operator.sub, a, b)


def mul(a, b):
    scalar = type(a)
    if scalar is type(b):
        if scalar is float32 or scalar is float64 or scalar is uint64:
            return a * b
        if scalar is int:
            product = a * b
            return product if LOWEST <= product <= HIGHEST else wrap(product)
    elif scalar in PLAIN and type(b) in PLAIN:
        return a * b
    return _mixed(ARITHMETIC, operator.mul, a, b)


def div(a, b):
    scalar = type(a)
    if scalar is type(b):
        if scalar is float32 or scalar is float64:
            return a / b
        if scalar is int:
            return float64(a) / float64(b)
    elif scalar in PLAIN and type(b) in PLAIN:
        return a / b
    return _mixed(DIVISION, truediv, a, b)


def truediv(a, b):
    return _complex_quotient(a, b) if type(a) in COMPLEX else a / b


def _complex_quotient(a, b):
    """a / b in Numba's order, which is Python's of old: numpy's multiplies by 1 / denominator."""
    if b == 0:
        raise ZeroDivisionError("complex division by zero, where a GPU ends the thread without a word")
    if abs(b.real) >= abs(b.imag):
        ratio = b.imag / b.real
        below, real, imag = b.real + b.imag * ratio, a.real + a.imag * ratio, a.imag - a.real * ratio
    else:
        ratio = b.real / b.imag
        below, real, imag = b.real * ratio + b.imag, a.real * ratio + a.imag, a.imag * ratio - a.real
    return type(a)(complex(real / below, imag / below))


def floordiv(a, b):
    scalar = type(a)
    if scalar is type(b):
        if scalar is int:
            return _int_quotient(a, b) if b <= 0 else a // b
        if scalar is float32 or scalar is float64:
            return a // b
    return _mixed(REAL_DIVISION, _quotient, a, b)


def mod(a, b):
    scalar = type(a)
    if scalar is type(b):
        if scalar is int:
            return a % b if b else 0
        if scalar is float32 or scalar is float64:
            return a % b
    return _mixed(REAL_DIVISION, _remainder, a, b)


def _quotient(a, b):
    return _int_quotient(a, b) if type(a) is int else a // b


def _int_quotient(a, b):
    return 0 if b == 0 or (b == -1 and a == LOWEST) else a // b


def _remainder(a, b):
    return a % b if b or type(a) is not int else 0


_quotient.__name__, _remainder.__name__ = "//", "%"


def lshift(a, b):
    if type(a) is int and type(b) is int and 0 <= b < 64:
        result = a << b
        return result if LOWEST <= result <= HIGHEST else wrap(result)
    if type(a) is uint64 and type(b) is uint64 and b < 64:
        return a << b
    return _mixed(SHIFT, _shifted_left, a, b)


def rshift(a, b):
    if type(a) is int and type(b) is int and 0 <= b < 64:
        return a >> b
    if type(a) is uint64 and type(b) is uint64 and b < 64:
        return a >> b
    return _mixed(SHIFT, _shifted_right, a, b)


def _shifted_left(a, b):
    """Of an int, which the caller wraps, or a uint64."""
    count = int(b) & 0xFFFFFFFF
    result = int(a) << count if count < 64 else 0
    return result if type(a) is int else uint64(result & (2**64 - 1))


def _shifted_right(a, b):
    count = int(b) & 0xFFFFFFFF
    result = int(a) >> min(count, 64)
    return result if type(a) is int else uint64(result)


_shifted_left.__name__, _shifted_right.__name__ = "<<", ">>"


def and_(a, b):
    if type(a) is type(b) and type(a) in WORDS:
        return a & b
    return _mixed(BITWISE, operator.and_, a, b)


def or_(a, b):
    if type(a) is type(b) and type(a) in WORDS:
        return a | b
    return _mixed(BITWISE, operator.or_, a, b)


def xor(a, b):
    if type(a) is type(b) and type(a) in WORDS:
        return a ^ b
    return _mixed(BITWISE, operator.xor, a, b)


def _comparison(operation):
    """Fast for equal types; else in the promoted one, where Python would compare a float32 and 0.1 as
    float32."""

    def compare(a, b):
        if type(a) is type(b):
            return operation(a, b)
        return bool(_mixed(COMPARISON, operation, a, b))

    compare.__name__ = operation.__name__
    return compare


eq, ne, lt, le, gt, ge = map(
    _comparison, (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
)


def power(a, b):
    """a ** b."""
    if type(b) is int and type(a) in PLAIN and b in (2, 3):
        return a * a if b == 2 else a * (a * a)
    entry = EXPONENTIATION[type(a), type(b)]
    if entry is None or entry[2] is None:
        return _mixed(EXPONENTIATION, operator.pow, a, b)
    left, right, scalar = entry
    if SCALAR[type(b)] in INTEGRAL and scalar in FLOATING:
        return _repeated(scalar(a), int(b))
    if scalar in FLOATING:
        return scalar(_ieee_pow(left(a), right(b)))
    if scalar is int or scalar is uint64:
        return cast(scalar)(_int_power(left(a), int(b), scalar))
    return left(a) ** right(b)


# Numba's int_power ends with `return 1.0 / r if invert else r`: in the bytecode of Python before 3.12 one
# return of a float64, whose conversion back saturates; since then two
BY_WAY_OF_FLOAT64 = sys.version_info < (3, 12)


def _int_power(a, b, scalar, by_way_of_float64=BY_WAY_OF_FLOAT64):
    """a ** b of an int modulo 2**64, rounded to a float64 where Numba does that; saturated where the exponent
    is above 2**16."""
    a, signed = int(a), scalar is int
    if b < 0 and a not in (1, -1):
        return 0 if a else LOWEST
    if abs(b) > 0x10000:
        return truncated(float64(_ieee_pow(a, float64(b))), 64, signed)
    power = pow(a, abs(b), 2**64)
    power = wrap(power) if signed else power
    return truncated(float64(power), 64, signed) if by_way_of_float64 else power


def _repeated(a, exponent):
    """a ** exponent as Numba multiplies, one rounding a step."""
    if abs(exponent) > 0x10000:
        return type(a)(_ieee_pow(a, exponent))
    product, rest = type(a)(1), abs(exponent)
    while rest:
        if rest & 1:
            product = product * a
        rest >>= 1
        a = a * a
    return type(a)(float64(1) / product) if exponent < 0 else product


def neg(a):
    """-a"""
    scalar = type(a)
    if scalar is int:
        return wrap(-a)
    if scalar is float32 or scalar is float64:
        return -a
    return _widened(-int(a), SCALAR[scalar]) if SCALAR.get(scalar) in INTEGRAL else -_float(a)


def pos(a):
    scalar = SCALAR.get(type(a))
    return a if scalar is int else _widened(int(a), scalar) if scalar in INTEGRAL else +_float(a)


def invert(a):
    if isinstance(a, (bool, numpy_bool)):
        return not a
    scalar = SCALAR.get(type(a))
    return ~a if scalar is int or scalar not in INTEGRAL else _widened(~int(a), scalar)


def _widened(result, scalar):
    """What an operation of one integer gives: Numba computes in the operand's width, then widens to 64 bits,
    so `-uint8(1)` is 255."""
    if scalar is int or scalar is bool:
        return wrap(result)
    width = 8 * scalar(0).itemsize
    return uint64(result & (1 << width) - 1) if scalar in promotion.UNSIGNED else wrap(result, width)


def _float(a):
    """A Python float is a float64."""
    return float64(a) if type(a) is float else a


def divmod_(a, b):
    left, right, scalar = QUOTIENT_AND_REMAINDER[type(a), type(b)]
    if scalar is None:
        raise TypeError(f"Numba has no divmod for {type(a).__name__} and {type(b).__name__}")
    return floordiv(left(a), right(b)), mod(left(a), right(b))


def range_(*bounds):
    """range, whose bounds may be floats, as math.ceil gives them."""
    try:
        return range(*bounds)
    except TypeError:
        return range(*map(int_, bounds))


def sum_(values, start=0):
    """sum(tuple): from the left, beginning with the int64 0, so a sum of float32 is a float64."""
    for value in values:
        start = add(start, value)
    return start
