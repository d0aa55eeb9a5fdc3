"""The operators and number builtins of a kernel, typed as Numba types them and never raising for a value.

Every operator begins with the pairs that inner loops are made of (two ints, two equal floats); every other
pair goes the general way of its entry. What compiled kernels do, and so do these:

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

from numpy import float32, float64, uint64

from sim.isa import ieee
from sim.isa.conversions import HIGHEST, LOWEST, truncated, wrap
from sim.isa.promotion import PLAIN

BINARY = """
def quick(a, b):
    scalar = type(a)
    if scalar is type(b):
        if {closed}:
            return a {sign} b
        if {wraps}:
            result = a {sign} b
            return result if LOWEST <= result <= HIGHEST else wrap(result)
    elif {mixed}:
        return a {sign} b
    return general(a, b)
"""
UNARY = """
def quick(a):
    return {sign}a if {closed} else general(a)
"""
QUOTIENT = """
def quick(a, b):
    scalar = type(a)
    if scalar is type(b):
        if scalar is float32 or scalar is float64:
            return a / b
        if scalar is int:
            return float64(a) / float64(b)
    elif scalar in PLAIN and type(b) in PLAIN:
        return a / b
    return general(a, b)
"""
FLOORED = """
def quick(a, b):
    scalar = type(a)
    if scalar is int:
        if type(b) is int and b > 0:
            return a {sign} b
    elif scalar in PLAIN and type(b) in PLAIN:
        ratio = a / b
        if not ratio.is_integer() and isfinite(ratio):
            return a {sign} b
        if not a % b and -WHOLE < ratio < WHOLE and isfinite(b):
            return a {sign} b
    return general(a, b)
"""
DIVMOD = """
def quick(a, b):
    return divmod(a, b) if type(a) is int and type(b) is int and b > 0 else general(a, b)
"""
POWER = """
def quick(a, b):
    if type(b) is int and type(a) in PLAIN and b in (2, 3):
        return a * a if b == 2 else a * (a * a)
    return general(a, b)
"""
WHOLE = 2.0**23  # float32 has all whole numbers up to here
FLOATS, BOTH = "scalar is float32 or scalar is float64", "scalar in PLAIN and type(b) in PLAIN"
IN_WORD = "0 <= b < 64 and (scalar is int or scalar is uint64)"
# an operator -> its sign, and when Python's gives Numba's result: for two numbers of one type, for such once
# it is wrapped, for two of different types
SIGNS = {
    **{name: (sign, f"{FLOATS} or scalar is uint64", "scalar is int", BOTH)
       for name, sign in (("add", "+"), ("sub", "-"), ("mul", "*"))},
    "lshift": ("<<", "scalar is uint64 and b < 64", "scalar is int and 0 <= b < 64"),
    "rshift": (">>", IN_WORD),
    "and_": ("&", "scalar is int or scalar is uint64"),
    "or_": ("|", "scalar is int or scalar is uint64"),
    "xor": ("^", "scalar is int or scalar is uint64"),
    "eq": ("==", True), "ne": ("!=", True), "lt": ("<", True), "le": ("<=", True), "gt": (">", True),
    "ge": (">=", True),
}  # fmt: skip
QUICK = {
    "truediv": QUOTIENT,
    # a quotient with a fraction, or without a rest, has no rounding that counts
    "floordiv": FLOORED.format(sign="//"),
    "mod": FLOORED.format(sign="%"),
    "divmod": DIVMOD,
    "pow": POWER,
    "neg": UNARY.format(sign="-", closed="type(a) in PLAIN or type(a) is int and a > LOWEST"),
    "pos": UNARY.format(sign="+", closed="type(a) is int"),
    "invert": UNARY.format(sign="~", closed="type(a) is int"),
}
for _name, (_sign, _closed, *_more) in SIGNS.items():
    _wraps, _mixed = [*_more, False, False][:2]
    QUICK[_name] = BINARY.format(sign=_sign, closed=_closed, wraps=_wraps, mixed=_mixed)


def quick(name, general):
    """What the interpreter calls for an operator: its quick way, or the general one."""
    names = {"PLAIN": PLAIN, "LOWEST": LOWEST, "HIGHEST": HIGHEST, "wrap": wrap, "general": general}
    names |= {"float32": float32, "float64": float64, "uint64": uint64, "isfinite": isfinite, "WHOLE": WHOLE}
    exec(QUICK[name], names)
    return names["quick"]


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
    if abs(exponent) > 0x10000:
        return type(a)(ieee_power(a, exponent))
    product, rest = type(a)(1), abs(exponent)
    while rest:
        if rest & 1:
            product = product * a
        rest >>= 1
        a = a * a
    return type(a)(float64(1) / product) if exponent < 0 else product
