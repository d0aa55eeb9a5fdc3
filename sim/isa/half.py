"""The functions of `numba.cuda.fp16`: arithmetic of float16. Each result is rounded once, from an exact value
or from a double. Operands of other types are converted to float16 first.

`hmax` and `hmin` ignore a NaN; `__hmax_nan` and `__hmin_nan` return it. A comparison with a NaN is false, and
true with the suffix u. `_sat` clamps to 0 ... 1 and turns NaN into 0. `_relu` turns negative numbers and NaN
into 0.

Compiled code computes in float64. For a sum, a product, a quotient or a square root this gives the nearest
float16 too, because 53 bits are more than twice the 11 bits of a float16, plus two (Figueroa, "When is double
rounding innocuous?", 1995).

Source: CUDA Math API, "Half Precision Intrinsics".
"""

import numpy as np
from numpy import float16, float32, float64, int64, uint16

from sim.isa import arithmetic, ieee  # noqa: F401  arithmetic enters PTX's
from sim.isa.directed import DIRECTIONS
from sim.isa.functions import BITS, SAME, Function, identity
from sim.isa.table import PTX, entries_under

ELEMENTARY = "ceil cos exp exp10 exp2 floor log log10 log2 rint rsqrt sin sqrt tanh trunc".split()
INTEGERS = {"short": "s16", "ushort": "u16", "int": "s32", "uint": "u32", "ll": "s64", "ull": "u64"}
ONE = float16(1)


def add_entry(name, semantics, count=1, result=float16, operand=float16, native=SAME, **more):
    Function(
        f"fp16.{name}", semantics, "CUDA Math API", (operand,) * count, result, native=native, **more
    ).add()


def is_of_ptx(names, ptx, native=SAME):
    """Give these names to an instruction of PTX. `native`: its compiled form."""
    PTX[ptx].add_names(*(f"fp16.{name}" for name in names.split()), native=native)


def in_double(function):
    """Return a compiled form that calls `function` with a float64."""
    return lambda x: function(float64(x))


def in_single(function):
    """Return a compiled form that calls `function` with a float32, whose NaN converts as a float16's does."""
    return lambda x: function(float32(x))


def saturated(ptx):
    """Return the semantics of an instruction with its result clamped to 0 ... 1."""
    semantics = PTX[ptx].semantics
    return lambda *given: ieee.saturated(float16(semantics(*given)))


def double_fma(x, y, z):
    """Return x * y + z in a form to compile. It is exact wherever a tie between two float16 is near; a sum
    that a float64 cannot hold is within a millionth of one of the operands."""
    return float64(x) * float64(y) + float64(z)


def fma_relu(x, y, z):
    found = PTX["fma.rn.f16"].semantics(x, y, z)
    return found if found > 0 else 0


def infinite(x):
    return int(x > 0) - int(x < 0) if abs(x) == np.inf else 0


for _name in ("add", "sub", "mul"):
    is_of_ptx(f"h{_name} __h{_name} __h{_name}_rn", f"{_name}.f16")
    add_entry(f"__h{_name}_sat", saturated(f"{_name}.f16"), 2, native=None)
is_of_ptx("hdiv __hdiv", "div.rn.f16", lambda x, y: x / y)
is_of_ptx("hfma __hfma", "fma.rn.f16", double_fma)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    is_of_ptx(f"h{_name} __h{_name}", f"setp.{_name}.f16")
    is_of_ptx(f"__h{_name}u", f"setp.{_name}u.f16")
for _name in ("abs", "neg", "max", "min"):
    is_of_ptx(f"h{_name} __h{_name}", f"{_name}.f16")
is_of_ptx("__hmax_nan", "max.NaN.f16")
is_of_ptx("__hmin_nan", "min.NaN.f16")
add_entry("__hfma_sat", saturated("fma.rn.f16"), 3, native=None)
add_entry("__hfma_relu", fma_relu, 3, native=None)
for _name in ELEMENTARY:
    _ulps = 0 if _name in ieee.EXACT else 1
    add_entry(f"h{_name}", ieee.of_one(_name), native=in_double(ieee.NATIVE[_name]), ulps=_ulps)
add_entry("htanh_approx", ieee.of_one("tanh"), native=in_double(ieee.NATIVE["tanh"]), ulps=1)
add_entry("hrcp", lambda x: ONE / x, native=lambda x: 1.0 / float64(x))

# --- conversions --------------------------------------------------------------------------------------------


add_entry("__hisnan", lambda x: x != x, result=bool)
add_entry("__hisinf", infinite, result=int64, native=None)
for _name in ("__half", "__double2half", "__float2half"):
    add_entry(_name, identity)
is_of_ptx("__half2float", "cvt.f32.f16")
is_of_ptx("__half2char_rz", "cvt.rzi.s8.f16", None)
is_of_ptx("__half2uchar_rz", "cvt.rzi.u8.f16", None)
for _name in ("short", "ushort"):
    add_entry(f"__{_name}_as_half", lambda x: uint16(x).view(float16), operand=uint16, native=BITS)
add_entry("__half_as_short", lambda x: x.view(np.int16), result=np.int16, native=BITS)
add_entry("__half_as_ushort", lambda x: x.view(uint16), result=uint16, native=BITS)
for _mode in DIRECTIONS:
    _nearest = identity if _mode == "rn" else None
    is_of_ptx(f"__float2half_{_mode}", f"cvt.{_mode}.f16.f32", _nearest)
    for _name, _integer in INTEGERS.items():
        is_of_ptx(f"__{_name}2half_{_mode}", f"cvt.{_mode}.f16.{_integer}", _nearest)
        _native = in_single(ieee.WHOLE[_mode])
        is_of_ptx(f"__half2{_name}_{_mode}", f"cvt.{_mode}i.{_integer}.f16", _native)
FUNCTIONS = {name: entry.call for name, entry in entries_under("fp16").items()}
