"""The functions of `numba.cuda.libdevice`, each with Numba's fixed signature: operands are converted, the
result has its type.

A signature is a letter for the result, then one for each operand: i int32, l int64, h int16, f float32, d
float64. An int32 or int64 is a Python int in its range (Numba has no unsigned types here: umulhi returns an
int32). A function whose C original writes through pointers returns a tuple. `fast_` functions give the
accurate value, which the hardware's only approximate.

Without an equivalent here, calling one raises NotImplementedError: see MISSING.
"""

import math
import operator
from functools import partial

import numpy as np
from numpy import float32, float64, int32, int64

from sim.isa import bits, ieee
from sim.isa.conversions import wrap
from sim.isa.directed import DIRECTIONS, divided, from_float, multiplied, square_root, to_float
from sim.isa.functions import BITS, LLVM, SAME, Function
from sim.isa.ieee import copysign
from sim.isa.rounding import fused, fused_float32
from sim.isa.table import INSTRUCTIONS

FORMATS = {"f": float32, "d": float64}
TYPES = {"i": int32, "l": int64, "h": np.int16, "f": float32, "d": float64}
SOURCE = "libdevice User's Guide"

BESSEL = "sim has no Bessel functions"
MISSING = {name: BESSEL for base in ("j0", "j1", "jn", "y0", "y1", "yn") for name in (base, base + "f")}
MISSING |= dict.fromkeys(
    ("erfcx", "erfcxf"),
    "sim has no scaled complementary error function; exp(x * x) * erfc(x) serves for x < 20",
)

ENTRIES = {}  # name -> Function


def define(name, signature, meaning, **more):
    """Enter `meaning` under `name`, with operands and result converted as `signature` says; `more`: see
    Function."""
    result, *operands = (TYPES[letter] for letter in signature)
    enter(name, tuple(operands), result, meaning, **more)


def enter(name, operands, results, meaning, **more):
    ENTRIES[name] = Function(f"libdevice.{name}", meaning, SOURCE, operands, results, **more).enter()


def define_both(name, signature, meaning, ptx=(), **more):
    """A function of doubles, and under the name with an f its twin of floats; `signature` and `ptx` are of
    the first."""
    define(name, signature, meaning, ptx=ptx, **more)
    of_floats = tuple(known.replace("f64", "f32") for known in ptx)
    define(name + "f", signature.replace("d", "f"), meaning, ptx=of_floats, **more)


def fast(name):
    """`fast_NAME`, which the hardware approximates: the same."""
    known = ENTRIES[name]
    ENTRIES[f"fast_{name}"] = known
    INSTRUCTIONS[f"libdevice.fast_{name}"] = known


# --- elementary functions -----------------------------------------------------------------------------------

OF_PTX = {"fabs": ("abs.f64",), "copysign": ("copysign.f64",)}
for _name in ieee.UNARY:
    define_both(_name, "dd", ieee.of_one(_name), OF_PTX.get(_name, ()), **ieee.compiled(_name))
for _name in ieee.BINARY:
    define_both(_name, "ddd", ieee.of_two(_name), OF_PTX.get(_name, ()), **ieee.compiled(_name))
for _name in ("cosf", "exp10f", "expf", "log10f", "log2f", "logf", "sinf", "tanf", "powf"):
    fast(_name)
define("fast_fdividef", "fff", operator.truediv, native=SAME)
define_both("fmax", "ddd", ieee.larger, ("max.f64",), native=SAME)
define_both("fmin", "ddd", ieee.smaller, ("min.f64",), native=SAME)
define_both("powi", "ddi", ieee.of_two("pow"))
define_both("ldexp", "ddi", ieee.scaled)
define_both("scalbn", "ddi", ieee.scaled)
define("nextafter", "ddd", np.nextafter, native=SAME)
define("nextafterf", "fff", np.nextafter, native=SAME)
define("saturatef", "ff", lambda x: min(x, 1.0) if x > 0 else 0.0, ptx=("cvt.sat.f32.f32",), native=SAME)


def ilogb(x):
    if x == 0 or x != x:
        return -(2**31)
    return 2**31 - 1 if math.isinf(x) else math.frexp(x)[1] - 1


def rounded_int(whole):
    """The nearest integer by `whole`, saturated to an int64."""
    return lambda x: from_float(float64(whole(x)) if math.isfinite(x) else float64(x), int64, "rz")


def is_negative(x):
    return copysign(1.0, x) < 0


define_both("ilogb", "id", ilogb)
define_both("llrint", "ld", rounded_int(round), native=np.rint)
define_both("llround", "ld", rounded_int(ieee.UNARY["round"][0]))
for _letter in "fd":
    define(f"isnan{_letter}", f"i{_letter}", math.isnan, native=SAME)
    define(f"isinf{_letter}", f"i{_letter}", math.isinf, native=SAME)
    define(f"signbit{_letter}", f"i{_letter}", is_negative, native=SAME)
define("finitef", "if", math.isfinite, native=SAME)
define("isfinited", "id", math.isfinite, native=SAME)

# --- functions that return tuples ---------------------------------------------------------------------------


def remquo(x, y):
    """(IEEE remainder, the low bits of the rounded quotient with its sign, of which C promises three)."""
    if not (math.isfinite(x) and math.isfinite(y)) or y == 0:
        return ieee.of_two("remainder")(x, y), 0
    (xn, xd), (yn, yd) = abs(x).as_integer_ratio(), abs(y).as_integer_ratio()
    quotient, rest = divmod(xn * yd, xd * yn)
    quotient += 2 * rest > xd * yn or (2 * rest == xd * yn and quotient % 2 == 1)
    return math.remainder(x, y), (quotient & 7) * (1 if (x < 0) == (y < 0) else -1)


def both(first, second):
    """The function that answers with the results of two."""
    first, second = ieee.of_one(first), ieee.of_one(second)
    return lambda x: (first(x), second(x))


def sine_and_cosine(x):
    return math.sin(x), math.cos(x)


for _name, _results, _operands, _meaning, _more in (
    ("frexp", "di", "d", math.frexp, {}),  # what is not finite comes back with 0
    ("modf", "dd", "d", math.modf, {"native": ieee.fraction_and_whole}),
    ("remquo", "di", "dd", remquo, {}),
    ("sincos", "dd", "d", both("sin", "cos"), {"native": sine_and_cosine, "ulps": ieee.ULPS}),
    ("sincospi", "dd", "d", both("sinpi", "cospi"), {}),
):
    for _suffix, _letter in (("", "d"), ("f", "f")):
        _types = [tuple(TYPES[a] for a in text.replace("d", _letter)) for text in (_operands, _results)]
        enter(_name + _suffix, *_types, _meaning, **_more)
fast("sincosf")

# --- rounding directions ------------------------------------------------------------------------------------


def reciprocal(x):
    return 1 / x


def same(x):
    return x


WIDTHS = {"f": "f32", "d": "f64"}
UNSIGNED = {"uint": lambda x: x & 0xFFFFFFFF, "ull": np.uint64}
for _mode in DIRECTIONS:
    _nearest = (lambda native: {"native": native}) if _mode == "rn" else lambda native: {}
    for _letter, _kind in FORMATS.items():
        _how, _of = {"kind": _kind, "mode": _mode}, f"{_mode}.{WIDTHS[_letter]}"
        # to the nearest needs no exact arithmetic: numpy rounds so
        _add = operator.add if _mode == "rn" else lambda x, y, how=_how: fused(x, 1.0, y, **how)
        _sub = operator.sub if _mode == "rn" else lambda x, y, how=_how: fused(x, 1.0, -y, **how)
        _mul = operator.mul if _mode == "rn" else partial(multiplied, **_how)
        _fma = fused_float32 if (_letter, _mode) == ("f", "rn") else partial(fused, **_how)
        _plain = [f"{_letter}{name}_{_mode}" for name in ("add", "sub", "mul", "div", "rcp", "sqrt")]
        define(_plain[0], 3 * _letter, _add, ptx=(f"add.{_of}",), **_nearest(SAME))
        if _letter == "f":
            define(_plain[1], 3 * _letter, _sub, ptx=(f"sub.{_of}",), **_nearest(SAME))
        define(_plain[2], 3 * _letter, _mul, ptx=(f"mul.{_of}",), **_nearest(SAME))
        define(
            _plain[3],
            3 * _letter,
            partial(divided, **_how),
            ptx=(f"div.{_of}",),
            **_nearest(operator.truediv),
        )
        define(
            _plain[4], 2 * _letter, partial(divided, 1.0, **_how), ptx=(f"rcp.{_of}",), **_nearest(reciprocal)
        )
        define(
            _plain[5], 2 * _letter, partial(square_root, **_how), ptx=(f"sqrt.{_of}",), **_nearest(math.sqrt)
        )
        define(
            f"fma{_letter.strip('d')}_{_mode}",
            4 * _letter,
            _fma,
            ptx=(f"fma.{_of}",),
            **_nearest(LLVM("fma")),
        )
    define(
        f"double2float_{_mode}",
        "fd",
        partial(to_float, source=float64, kind=float32, mode=_mode),
        ptx=(f"cvt.{_mode}.f32.f64",),
        **_nearest(same),
    )
    for _name, _letter, _dtype, _pattern, _ptx in (
        ("int", "i", int32, int32, "s32"),
        ("uint", "i", int32, np.uint32, "u32"),
        ("ll", "l", int64, int64, "s64"),
        ("ull", "l", int64, np.uint64, "u64"),
    ):
        for _format, _source in (("float", "f"), ("double", "d")):
            define(
                f"{_format}2{_name}_{_mode}",
                _letter + _source,
                partial(from_float, dtype=_pattern, mode=_mode),
                ptx=(f"cvt.{_mode}i.{_ptx}.{WIDTHS[_source]}",),
                native=ieee.WHOLE[_mode] if _pattern is _dtype else None,
            )
            if (_letter, _source) != ("i", "d") or _mode == "rn":
                define(
                    f"{_name}2{_format}_{_mode}",
                    _source + _letter,
                    partial(to_float, source=_pattern, kind=FORMATS[_source], mode=_mode),
                    ptx=(f"cvt.{_mode}.{WIDTHS[_source]}.{_ptx}",),
                    **_nearest(UNSIGNED.get(_name, same)),
                )
define("fma", "dddd", partial(fused, kind=float64), native=LLVM("fma"))
define("fmaf", "ffff", fused_float32, native=LLVM("fma"))
define("frsqrt_rn", "ff", partial(square_root, kind=float32, mode="rn", inverse=True))

# --- bits ---------------------------------------------------------------------------------------------------


def high_word(x):
    return int(x.view(int64)) >> 32


def low_word(x):
    return wrap(int(x.view(int64)), 32)


def from_words(high, low):
    return int64((high << 32) | (low & 0xFFFFFFFF)).view(float64)


define("float_as_int", "if", lambda x: x.view(int32), native=BITS)
define("int_as_float", "fi", lambda x: int32(x).view(float32), native=BITS)
define("double_as_longlong", "ld", lambda x: x.view(int64), native=BITS)
define("longlong_as_double", "dl", lambda x: int64(x).view(float64), native=BITS)
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
    sign alone (PTX ISA, prmt)."""
    source = ((y & 0xFFFFFFFF) << 32) | (x & 0xFFFFFFFF)
    result = 0
    for place in range(4):
        nibble = selector >> (4 * place)
        byte = source >> (8 * (nibble & 7)) & 0xFF
        result |= (0xFF * (byte >> 7) if nibble & 8 else byte) << (8 * place)
    return result


def low24(x):
    return wrap(x, 24)


def average(x, y):
    return (x + y) >> 1


def average_up(x, y):
    return (x + y + 1) >> 1


def sum_of_differences(x, y, z):
    return abs(x - y) + z


for _letter, _prefix, _suffix, _bits in (("i", "", "", 32), ("l", "ll", "ll", 64)):
    define(_prefix + "abs", 2 * _letter, abs, ptx=(f"abs.s{_bits}",), native=SAME)
    define(_prefix + "max", 3 * _letter, max, ptx=(f"max.s{_bits}",), native=SAME)
    define(_prefix + "min", 3 * _letter, min, ptx=(f"min.s{_bits}",), native=SAME)
    define(f"u{_prefix}max", 3 * _letter, unsigned(max, _bits))
    define(f"u{_prefix}min", 3 * _letter, unsigned(min, _bits))
    define("popc" + _suffix, "i" + _letter, bits.popc, ptx=(f"popc.b{_bits}",), native=bits.POPC)
    define("brev" + _suffix, 2 * _letter, bits.brev, ptx=(f"brev.b{_bits}",), native=bits.BREV)
    define("clz" + _suffix, "i" + _letter, bits.clz, ptx=(f"clz.b{_bits}",), native=bits.CLZ)
    define("ffs" + _suffix, "i" + _letter, bits.ffs, native=bits.first_set)
define("mulhi", "iii", lambda x, y: x * y >> 32, ptx=("mul.hi.s32",), native=SAME)
define("umulhi", "iii", unsigned(lambda x, y: x * y >> 32))
define("mul64hi", "lll", lambda x, y: x * y >> 64, ptx=("mul.hi.s64",))
define("umul64hi", "lll", unsigned(lambda x, y: x * y >> 64, 64))
define("mul24", "iii", lambda x, y: low24(x) * low24(y), ptx=("mul24.lo.s32",))
define("umul24", "iii", unsigned(lambda x, y: x * y, 24))
for _prefix, _as in (("", lambda meaning: meaning), ("u", unsigned)):
    _native = None if _prefix else SAME
    define(_prefix + "hadd", "iii", _as(average), native=_native)
    define(f"{_prefix}rhadd", "iii", _as(average_up), native=_native)
    define(_prefix + "sad", "iiii", _as(sum_of_differences), native=_native)
define("byte_perm", "iiii", byte_perm, ptx=("prmt.b32",), native=SAME)


def missing(name):
    def unavailable(*_):
        raise NotImplementedError(f"libdevice.{name}: {MISSING[name]}")

    return unavailable


FUNCTIONS = {name: entry.call for name, entry in ENTRIES.items()} | {name: missing(name) for name in MISSING}
