"""The functions of `numba.cuda.libdevice`, each with Numba's fixed signature: operands are converted, the
result has its type.

A signature is a letter for the result, then one for each operand: i int32, l int64, h int16, f float32, d
float64. An int32 or int64 is a Python int in its range (Numba has no unsigned types here: umulhi returns an
int32). A function whose C original writes through pointers returns a tuple. `fast_` functions give the
accurate value, which the hardware's only approximate.

Without an equivalent here, calling one raises NotImplementedError: see MISSING.
"""

import math
from functools import partial

import numpy as np
from numpy import float32, float64, int32, int64

from sim.isa import ieee
from sim.isa.conversions import cast, wrap
from sim.isa.directed import DIRECTIONS, divided, from_float, multiplied, square_root, to_float
from sim.isa.rounding import fused, fused_float32

FORMATS = {"f": float32, "d": float64}
CONVERT = {
    letter: cast(kind)
    for letter, kind in {"i": int32, "l": int64, "h": np.int16, "f": float32, "d": float64}.items()
}

BESSEL = "sim has no Bessel functions"
MISSING = {name: BESSEL for base in ("j0", "j1", "jn", "y0", "y1", "yn") for name in (base, base + "f")}
MISSING |= dict.fromkeys(
    ("erfcx", "erfcxf"),
    "sim has no scaled complementary error function; exp(x * x) * erfc(x) serves for x < 20",
)

FUNCTIONS = {}


def define(name, signature, function):
    """Enter `function` under `name`, with operands and result converted as `signature` says."""
    result, *operands = (CONVERT[letter] for letter in signature)
    FUNCTIONS[name] = CALLS[len(operands)](function, result, *operands)
    FUNCTIONS[name].__name__ = name


CALLS = {
    1: lambda function, result, a: lambda x: result(function(a(x))),
    2: lambda function, result, a, b: lambda x, y: result(function(a(x), b(y))),
    3: lambda function, result, a, b, c: lambda x, y, z: result(function(a(x), b(y), c(z))),
}


def define_both(name, signature, function):
    """A function of doubles, and under the name with an f its twin of floats; `signature` is of the first."""
    define(name, signature, function)
    define(name + "f", signature.replace("d", "f"), function)


def missing(name):
    def unavailable(*_):
        raise NotImplementedError(f"libdevice.{name}: {MISSING[name]}")

    return unavailable


# --- elementary functions -----------------------------------------------------------------------------------

for _name, _entry in ieee.UNARY.items():
    define_both(_name, "dd", ieee.total(*_entry))
for _name, _entry in ieee.BINARY.items():
    define_both(_name, "ddd", ieee.total(*_entry))
for _name in ("cos", "exp10", "exp", "log10", "log2", "log", "sin", "tan"):
    FUNCTIONS[f"fast_{_name}f"] = FUNCTIONS[_name + "f"]
FUNCTIONS["fast_powf"] = FUNCTIONS["powf"]
define("fast_fdividef", "fff", lambda x, y: x / y)


def choose(better):
    """PTX's min or max: of a NaN and a number the number; -0 is less than 0."""

    def chosen(x, y):
        if x == y:
            return max(x, y, key=lambda v: better * math.copysign(1, v))
        return x if y != y or better * x > better * y else y

    return chosen


define_both("fmax", "ddd", choose(1))
define_both("fmin", "ddd", choose(-1))
define_both("powi", "ddi", ieee.total(*ieee.BINARY["pow"]))
define_both("ldexp", "ddi", ieee.scaled)
define_both("scalbn", "ddi", ieee.scaled)
define("nextafter", "ddd", np.nextafter)
define("nextafterf", "fff", np.nextafter)
define("saturatef", "ff", lambda x: min(x, 1.0) if x > 0 else 0.0)


def ilogb(x):
    if x == 0 or x != x:
        return -(2**31)
    return 2**31 - 1 if math.isinf(x) else math.frexp(x)[1] - 1


def rounded_int(whole):
    """The nearest integer by `whole`, saturated to an int64."""
    return lambda x: from_float(float64(whole(x)) if math.isfinite(x) else float64(x), int64, "rz")


define_both("ilogb", "id", ilogb)
define_both("llrint", "ld", rounded_int(round))
define_both("llround", "ld", rounded_int(ieee.UNARY["round"][0]))
for _suffix, _letter in (("f", "f"), ("d", "d")):
    define(f"isnan{_suffix}", f"i{_letter}", math.isnan)
    define(f"isinf{_suffix}", f"i{_letter}", math.isinf)
    define(f"signbit{_suffix}", f"i{_letter}", lambda x: math.copysign(1, x) < 0)
define("finitef", "if", math.isfinite)
define("isfinited", "id", math.isfinite)

# --- functions that return tuples ---------------------------------------------------------------------------


def frexp(x):
    """(mantissa, exponent); what is not finite comes back with 0."""
    return math.frexp(x)


def modf(x):
    """(fractional part, whole part)."""
    return math.modf(x)


def remquo(x, y):
    """(IEEE remainder, the low bits of the rounded quotient with its sign, of which C promises three)."""
    if not (math.isfinite(x) and math.isfinite(y)) or y == 0:
        return FUNCTIONS["remainder"](x, y), 0
    (xn, xd), (yn, yd) = abs(x).as_integer_ratio(), abs(y).as_integer_ratio()
    quotient, rest = divmod(xn * yd, xd * yn)
    quotient += 2 * rest > xd * yn or (2 * rest == xd * yn and quotient % 2 == 1)
    return math.remainder(x, y), (quotient & 7) * (1 if (x < 0) == (y < 0) else -1)


def sincos(x):
    return FUNCTIONS["sin"](x), FUNCTIONS["cos"](x)


def sincospi(x):
    return FUNCTIONS["sinpi"](x), FUNCTIONS["cospi"](x)


def define_tuple(name, results, operands, function):
    convert, answer = [CONVERT[letter] for letter in operands], [CONVERT[letter] for letter in results]

    def evaluate(*x):
        parts = function(*(to(v) for to, v in zip(convert, x, strict=True)))
        return tuple(to(part) for to, part in zip(answer, parts, strict=True))

    FUNCTIONS[name] = evaluate


for _name, _results, _operands, _function in (
    ("frexp", "di", "d", frexp),
    ("modf", "dd", "d", modf),
    ("remquo", "di", "dd", remquo),
    ("sincos", "dd", "d", sincos),
    ("sincospi", "dd", "d", sincospi),
):
    define_tuple(_name, _results, _operands, _function)
    define_tuple(_name + "f", _results.replace("d", "f"), _operands.replace("d", "f"), _function)
FUNCTIONS["fast_sincosf"] = FUNCTIONS["sincosf"]

# --- rounding directions ------------------------------------------------------------------------------------

for _mode in DIRECTIONS:
    for _letter, _kind in FORMATS.items():
        _how = {"kind": _kind, "mode": _mode}
        define(f"{_letter}add_{_mode}", 3 * _letter, lambda x, y, how=_how: fused(x, 1.0, y, **how))
        define(f"{_letter}mul_{_mode}", 3 * _letter, partial(multiplied, **_how))
        define(f"{_letter}div_{_mode}", 3 * _letter, partial(divided, **_how))
        define(f"{_letter}rcp_{_mode}", 2 * _letter, partial(divided, 1.0, **_how))
        define(f"{_letter}sqrt_{_mode}", 2 * _letter, partial(square_root, **_how))
        define(f"fma{_letter.strip('d')}_{_mode}", 4 * _letter, partial(fused, **_how))
    define(f"fsub_{_mode}", "fff", lambda x, y, mode=_mode: fused(x, 1.0, -y, float32, mode))
    define(f"double2float_{_mode}", "fd", partial(to_float, source=float64, kind=float32, mode=_mode))
    for _name, _letter, _dtype, _pattern in (
        ("int", "i", int32, int32),
        ("uint", "i", int32, np.uint32),
        ("ll", "l", int64, int64),
        ("ull", "l", int64, np.uint64),
    ):
        for _format, _source in (("float", "f"), ("double", "d")):
            define(
                f"{_format}2{_name}_{_mode}",
                _letter + _source,
                partial(from_float, dtype=_pattern, mode=_mode),
            )
            if (_letter, _source) != ("i", "d") or _mode == "rn":
                _widen = partial(to_float, source=_pattern, kind=FORMATS[_source], mode=_mode)
                define(f"{_name}2{_format}_{_mode}", _source + _letter, _widen)
define("fma", "dddd", partial(fused, kind=float64))
for _name in ("fmaf", "fmaf_rn"):
    define(_name, "ffff", fused_float32)
define("frsqrt_rn", "ff", partial(square_root, kind=float32, mode="rn", inverse=True))
# The common ones need no exact arithmetic: numpy rounds to nearest.
define("fadd_rn", "fff", float32.__add__)
define("fsub_rn", "fff", float32.__sub__)
define("fmul_rn", "fff", float32.__mul__)
define("dadd_rn", "ddd", float64.__add__)
define("dmul_rn", "ddd", float64.__mul__)

# --- bits ---------------------------------------------------------------------------------------------------


def high_word(x):
    return int(x.view(int64)) >> 32


def low_word(x):
    return wrap(int(x.view(int64)), 32)


def from_words(high, low):
    return int64((high << 32) | (low & 0xFFFFFFFF)).view(float64)


define("float_as_int", "if", lambda x: x.view(int32))
define("int_as_float", "fi", lambda x: int32(x).view(float32))
define("double_as_longlong", "ld", lambda x: x.view(int64))
define("longlong_as_double", "dl", lambda x: int64(x).view(float64))
define("double2hiint", "id", high_word)
define("double2loint", "id", low_word)
define("hiloint2double", "dii", from_words)
define("float2half_rn", "hf", lambda x: np.float16(x).view(np.int16))
define("half2float", "fh", lambda x: np.int16(x).view(np.float16))

# --- integers -----------------------------------------------------------------------------------------------


def unsigned(function, bits=32):
    """`function` with every operand read as unsigned."""
    mask = (1 << bits) - 1
    return lambda *x: function(*(v & mask for v in x))


def byte_perm(x, y, selector):
    """Four bytes picked from the eight of y:x, each by a nibble of the selector whose top bit asks for the
    sign alone."""
    source = ((y & 0xFFFFFFFF) << 32) | (x & 0xFFFFFFFF)
    result = 0
    for place in range(4):
        nibble = selector >> (4 * place)
        byte = source >> (8 * (nibble & 7)) & 0xFF
        result |= (0xFF * (byte >> 7) if nibble & 8 else byte) << (8 * place)
    return result


def low24(x):
    return wrap(x, 24)


def reverse(bits):
    return lambda x: int(f"{x:0{bits}b}"[::-1], 2)


def average(x, y):
    return (x + y) >> 1


def average_up(x, y):
    return (x + y + 1) >> 1


def sum_of_differences(x, y, z):
    return abs(x - y) + z


for _letter, _prefix, _suffix, _bits in (("i", "", "", 32), ("l", "ll", "ll", 64)):
    define(_prefix + "abs", 2 * _letter, abs)
    define(_prefix + "max", 3 * _letter, max)
    define(_prefix + "min", 3 * _letter, min)
    define(f"u{_prefix}max", 3 * _letter, unsigned(max, _bits))
    define(f"u{_prefix}min", 3 * _letter, unsigned(min, _bits))
    define("popc" + _suffix, "i" + _letter, unsigned(int.bit_count, _bits))
    define("brev" + _suffix, 2 * _letter, unsigned(reverse(_bits), _bits))
    define("clz" + _suffix, "i" + _letter, unsigned(lambda x, bits=_bits: bits - x.bit_length(), _bits))
    define("ffs" + _suffix, "i" + _letter, lambda x: (x & -x).bit_length())
define("mulhi", "iii", lambda x, y: x * y >> 32)
define("umulhi", "iii", unsigned(lambda x, y: x * y >> 32))
define("mul64hi", "lll", lambda x, y: x * y >> 64)
define("umul64hi", "lll", unsigned(lambda x, y: x * y >> 64, 64))
define("mul24", "iii", lambda x, y: low24(x) * low24(y))
define("umul24", "iii", unsigned(lambda x, y: x * y, 24))
for _prefix, _as in (("", lambda function: function), ("u", unsigned)):
    define(_prefix + "hadd", "iii", _as(average))
    define(f"{_prefix}rhadd", "iii", _as(average_up))
    define(_prefix + "sad", "iiii", _as(sum_of_differences))
define("byte_perm", "iiii", byte_perm)

FUNCTIONS |= {name: missing(name) for name in MISSING}
