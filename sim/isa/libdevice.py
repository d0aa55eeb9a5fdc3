"""The functions of `numba.cuda.libdevice`. Numba declares one signature for each function. The operands and
the result are converted to the types of this signature.

A signature is written as a string. It has one letter for the result, followed by one per operand: i is int32,
l is int64, h is int16, f is float32, and d is float64. An int32 or int64 is a Python int within its range.
Numba declares no unsigned types here, so umulhi returns an int32. A function whose C original writes through
pointers returns a tuple. A `fast_` function returns the accurate value, although the hardware only
approximates this value.

MISSING lists the unimplemented functions. A call of such a function raises NotImplementedError.

Source: libdevice User's Guide; PTX ISA 9.7.1 to 9.7.4 for functions that are PTX instructions.
"""

import math
import operator
from functools import partial

import numpy as np
from numpy import float32, float64, int32, int64

from sim.isa import bits, comparisons, float_arithmetic, ieee, integer_arithmetic  # noqa: F401  PTX entries
from sim.isa.conversions import wrap
from sim.isa.directed import DIRECTIONS, from_float, square_root
from sim.isa.functions import BITS, SAME, Function, identity
from sim.isa.ieee import copysign
from sim.isa.table import INSTRUCTIONS, PTX, entries_under

TYPES = {"i": int32, "l": int64, "h": np.int16, "f": float32, "d": float64}
SOURCE = "libdevice User's Guide"

# function without an implementation -> the reason, for the error message
BESSEL = "sim has no Bessel functions"
MISSING = {name: BESSEL for base in ("j0", "j1", "jn", "y0", "y1", "yn") for name in (base, base + "f")}
MISSING |= dict.fromkeys(
    ("erfcx", "erfcxf"), "sim has no scaled complementary error function; use exp(x * x) * erfc(x) if x < 20"
)


def define(name, signature, semantics, **more):
    """Add a function to the table.

    signature: the types of the result and the operands, as letters.
    more: further attributes of the Function.
    """
    result, *operands = (TYPES[letter] for letter in signature)
    add_entry(name, tuple(operands), result, semantics, **more)


def add_entry(name, operands, results, semantics, **more):
    """Add a function with explicitly given operand and result types to the table."""
    Function(f"libdevice.{name}", semantics, SOURCE, operands, results, **more).add()


def define_both(name, signature, semantics, **more):
    """Add a function of doubles and its float variant, whose name ends in f.

    signature: the types of the variant for doubles.
    """
    define(name, signature, semantics, **more)
    define(name + "f", signature.replace("d", "f"), semantics, **more)


def alias_ptx(name, ptx, **more):
    """Add a name to the entry of a PTX instruction.

    more: attributes of the entry to replace, such as the compiled form.
    """
    PTX[ptx].add_names(f"libdevice.{name}", **more)


def fast(name):
    """Add the name `fast_NAME` to the entry NAME."""
    INSTRUCTIONS[f"libdevice.{name}"].add_names(f"libdevice.fast_{name}")


# --- elementary functions -----------------------------------------------------------------------------------

for _name in ieee.UNARY:
    if _name != "fabs":
        define_both(_name, "dd", ieee.of_one(_name), **ieee.compiled(_name))
for _name in ieee.BINARY:
    define_both(_name, "ddd", ieee.of_two(_name), **ieee.compiled(_name))
for _suffix, _type in (("", "f64"), ("f", "f32")):
    alias_ptx(f"fabs{_suffix}", f"abs.{_type}", native=math.fabs)
    alias_ptx(f"fmax{_suffix}", f"max.{_type}", native=SAME)
    alias_ptx(f"fmin{_suffix}", f"min.{_type}", native=SAME)
    alias_ptx(f"fma{_suffix}", f"fma.rn.{_type}", native=bits.FMA)
for _name in ("cosf", "exp10f", "expf", "log10f", "log2f", "logf", "sinf", "tanf", "powf"):
    fast(_name)
define("fast_fdividef", "fff", operator.truediv, native=SAME)
define_both("powi", "ddi", ieee.of_two("pow"))
define_both("ldexp", "ddi", ieee.scaled)
define_both("scalbn", "ddi", ieee.scaled)
define("nextafter", "ddd", np.nextafter, native=SAME)
define("nextafterf", "fff", np.nextafter, native=SAME)
define("saturatef", "ff", lambda x: min(x, 1.0) if x > 0 else 0.0, ptx=("cvt.sat.f32.f32",), native=SAME)


def ilogb(x):
    """Return the exponent of x as an int. The special values are those of C on CUDA: INT_MIN for 0 and NaN,
    INT_MAX for infinities."""
    if x == 0 or x != x:
        return -(2**31)
    return 2**31 - 1 if math.isinf(x) else math.frexp(x)[1] - 1


def rounded_int(whole):
    """Return a function that rounds with `whole` and converts to int64. The conversion saturates."""
    return lambda x: from_float(float64(whole(x)) if math.isfinite(x) else float64(x), int64, "rz")


def is_negative(x):
    """Return whether the sign bit of x is set."""
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
    """Return (IEEE remainder, low bits of the rounded quotient with its sign). C guarantees at least three
    bits of the quotient."""
    if not (math.isfinite(x) and math.isfinite(y)) or y == 0:
        return ieee.of_two("remainder")(x, y), 0
    # Use exact rational arithmetic, because x / y may round to another integer.
    (xn, xd), (yn, yd) = abs(x).as_integer_ratio(), abs(y).as_integer_ratio()
    quotient, rest = divmod(xn * yd, xd * yn)
    quotient += 2 * rest > xd * yn or (2 * rest == xd * yn and quotient % 2 == 1)
    return math.remainder(x, y), (quotient & 7) * (1 if (x < 0) == (y < 0) else -1)


def both(first, second):
    """Return a function that returns the results of two functions as a pair."""
    first, second = ieee.of_one(first), ieee.of_one(second)
    return lambda x: (first(x), second(x))


def sine_and_cosine(x):
    """Return (sin x, cos x). This is the compiled form of sincos."""
    return math.sin(x), math.cos(x)


for _name, _results, _operands, _semantics, _more in (
    ("frexp", "di", "d", math.frexp, {}),  # infinities and NaN have exponent 0
    ("modf", "dd", "d", math.modf, {"native": ieee.fraction_and_whole}),
    ("remquo", "di", "dd", remquo, {}),
    ("sincos", "dd", "d", both("sin", "cos"), {"native": sine_and_cosine, "ulps": ieee.ULPS}),
    ("sincospi", "dd", "d", both("sinpi", "cospi"), {}),
):
    for _suffix, _letter in (("", "d"), ("f", "f")):
        _types = [tuple(TYPES[a] for a in text.replace("d", _letter)) for text in (_operands, _results)]
        add_entry(_name + _suffix, *_types, _semantics, **_more)
fast("sincosf")

# --- rounding directions ------------------------------------------------------------------------------------


def reciprocal(x):
    """Return 1 / x. This function is the compiled form of rcp."""
    return 1 / x


# PTX opcode -> the compiled form that rounds to nearest
COMPILED = {
    "add": SAME, "sub": SAME, "mul": SAME, "div": operator.truediv, "rcp": reciprocal, "sqrt": math.sqrt,
    "fma": bits.FMA,
}  # fmt: skip
# Conversions from an unsigned type in C: the functions that reinterpret Numba's signed operand as unsigned.
UNSIGNED = {"uint": lambda x: x & 0xFFFFFFFF, "ull": np.uint64}
# Add every combination of operation, type and rounding direction, such as __fadd_rz or __double2int_rn. Only
# the direction rn has a compiled form.
for _mode in DIRECTIONS:
    _nearest = _mode == "rn"
    for _names, _of in (
        ("fadd fsub fmul fdiv frcp fsqrt fmaf", "f32"),
        ("dadd dmul ddiv drcp dsqrt fma", "f64"),
    ):
        for _called in _names.split():
            _name = "fma" if "fma" in _called else _called[1:]
            _native = COMPILED[_name] if _nearest else None
            alias_ptx(f"{_called}_{_mode}", f"{_name}.{_mode}.{_of}", native=_native)
    alias_ptx(f"double2float_{_mode}", f"cvt.{_mode}.f32.f64", native=identity if _nearest else None)
    for _format, _of in (("float", "f32"), ("double", "f64")):
        for _name, _letter, _integer in (
            ("int", "i", "s32"),
            ("ll", "l", "s64"),
            ("uint", "i", "u32"),
            ("ull", "l", "u64"),
        ):
            _to, _from = f"cvt.{_mode}i.{_integer}.{_of}", f"cvt.{_mode}.{_of}.{_integer}"
            _named = (f"{_format}2{_name}_{_mode}", f"{_name}2{_format}_{_mode}")
            # libdevice does not have every function from an integer to a float in every direction.
            _available = _format == "float" or _letter == "l" or _nearest
            if _name not in UNSIGNED:
                alias_ptx(_named[0], _to, native=ieee.WHOLE[_mode])
                if _available:
                    alias_ptx(_named[1], _from, native=identity if _nearest else None)
                continue
            # The integer is unsigned in C, but signed in Numba.
            define(_named[0], _letter + _format[0], PTX[_to].semantics)
            if _available:
                _native = UNSIGNED[_name] if _nearest else None
                define(_named[1], _format[0] + _letter, PTX[_from].semantics, native=_native)
define("frsqrt_rn", "ff", partial(square_root, scalar=float32, mode="rn", inverse=True))

# --- bits ---------------------------------------------------------------------------------------------------


def high_word(x):
    """Return the upper 32 bits of a double as an int32."""
    return int(x.view(int64)) >> 32


def low_word(x):
    """Return the lower 32 bits of a double as an int32."""
    return wrap(int(x.view(int64)), 32)


def from_words(high, low):
    """Return the double with the given upper and lower 32 bits."""
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
    """Return a function that converts all operands to unsigned integers of `bits` bits and calls
    `function`."""
    mask = (1 << bits) - 1
    return lambda *x: function(*(v & mask for v in x))


def low24(x):
    """Return the low 24 bits of x, sign-extended."""
    return wrap(x, 24)


def average(x, y):
    """Return the average of x and y, rounded down (hadd)."""
    return (x + y) >> 1


def average_up(x, y):
    """Return the average of x and y, rounded up (rhadd)."""
    return (x + y + 1) >> 1


for _letter, _prefix, _suffix, _bits in (("i", "", "", 32), ("l", "ll", "ll", 64)):
    for _name in ("abs", "max", "min"):
        alias_ptx(_prefix + _name, f"{_name}.s{_bits}", native=SAME)
    define(f"u{_prefix}max", 3 * _letter, unsigned(max, _bits))
    define(f"u{_prefix}min", 3 * _letter, unsigned(min, _bits))
    define("popc" + _suffix, "i" + _letter, bits.popc, native=bits.POPC)
    define("brev" + _suffix, 2 * _letter, bits.brev, native=bits.BREV)
    define("clz" + _suffix, "i" + _letter, bits.clz, native=bits.CLZ)
    define("ffs" + _suffix, "i" + _letter, bits.ffs, native=bits.first_set)
alias_ptx("mulhi", "mul.hi.s32", native=lambda x, y: x * y >> 32)
define("umulhi", "iii", unsigned(lambda x, y: x * y >> 32))
alias_ptx("mul64hi", "mul.hi.s64")
define("umul64hi", "lll", unsigned(lambda x, y: x * y >> 64, 64))
define("mul24", "iii", lambda x, y: low24(x) * low24(y), ptx=("mul24.lo.s32",))
define("umul24", "iii", unsigned(lambda x, y: x * y, 24))
# Python's ints do not overflow, so the sums need no wider type.
for _prefix, _as in (("", lambda semantics: semantics), ("u", unsigned)):
    _native = None if _prefix else SAME
    define(_prefix + "hadd", "iii", _as(average), native=_native)
    define(f"{_prefix}rhadd", "iii", _as(average_up), native=_native)
    define(_prefix + "sad", "iiii", _as(integer_arithmetic.difference), native=_native)
define("byte_perm", "iiii", integer_arithmetic.permuted, native=SAME)


def missing(name):
    """Return a function that raises NotImplementedError for a function without an implementation."""

    def unavailable(*_):
        raise NotImplementedError(f"libdevice.{name}: {MISSING[name]}")

    return unavailable


ENTRIES = entries_under("libdevice")
FUNCTIONS = {name: entry.call for name, entry in ENTRIES.items()} | {name: missing(name) for name in MISSING}
