"""The functions of `numba.cuda.fp16`: float16 arithmetic. Each result is rounded once, from an exact value or
from a double. Operands of other types are first converted to float16.

`hmax` and `hmin` ignore a NaN operand, but `__hmax_nan` and `__hmin_nan` return NaN. A comparison with NaN is
false, or true for the variant whose name ends in u. `_sat` clamps the result to the range from 0 to 1, and
returns 0 for NaN. `_relu` returns 0 for negative numbers and for NaN.

Compiled code computes in float64. For sums, products, quotients and square roots, this gives the correctly
rounded float16, because float64's significand of 53 bits is longer than 2 * 11 + 2 bits, where 11 is the
length of float16's significand (Figueroa, "When is double rounding innocuous?", 1995).

Source: CUDA Math API, "Half Precision Intrinsics"; PTX ISA 9.7.4, "Half Precision Floating-Point
Instructions".
"""

import numpy as np
from numpy import float16, float32, float64, int64, uint16

from sim.isa import comparisons, float_arithmetic, ieee  # noqa: F401  the first two register the PTX entries
from sim.isa.directed import DIRECTIONS
from sim.isa.functions import BITS, SAME, Function, identity
from sim.isa.table import PTX, entries_under

# The functions whose results are computed in double precision and then rounded to float16.
ELEMENTARY = "ceil cos exp exp10 exp2 floor log log10 log2 rint rsqrt sin sqrt tanh trunc".split()
# integer type in the name of a CUDA function -> PTX type
INTEGERS = {"short": "s16", "ushort": "u16", "int": "s32", "uint": "u32", "ll": "s64", "ull": "u64"}
ONE = float16(1)


def add_entry(name, semantics, count=1, result=float16, operand=float16, native=SAME, **more):
    """Add a function of cuda.fp16."""
    Function(
        f"fp16.{name}", semantics, "CUDA Math API", (operand,) * count, result, native=native, **more
    ).add()


def alias_ptx(names, ptx, native=SAME):
    """Add these space-separated names to the entry of a PTX instruction.

    native: the compiled form.
    """
    PTX[ptx].add_names(*(f"fp16.{name}" for name in names.split()), native=native)


def in_double(function):
    """Return a compiled form that converts its operand to float64 and calls `function`."""
    return lambda x: function(float64(x))


def in_single(function):
    """Return a compiled form that converts its operand to float32 and calls `function`.

    If the result is an integer, a float32 NaN gives the same integer as a float16 NaN. A float64 NaN does
    not.
    """
    return lambda x: function(float32(x))


def saturated(ptx):
    """Return the semantics of a PTX instruction whose result is clamped to the range from 0 to 1 (.sat)."""
    semantics = PTX[ptx].semantics
    return lambda *given: ieee.saturated(float16(semantics(*given)))


def double_fma(x, y, z):
    """Return x * y + z in float64. This is the compiled form of fma.

    The product is exact, and so is every sum near a tie between two float16 values. If float64 cannot
    represent a sum exactly, the sum differs from one of its terms by at most one part in a million.
    """
    return float64(x) * float64(y) + float64(z)


def fma_relu(x, y, z):
    """Return fma(x, y, z), or 0 if the result is negative or NaN (fma.rn.relu.f16)."""
    found = PTX["fma.rn.f16"].semantics(x, y, z)
    # The comparison is false for NaN.
    return found if found > 0 else 0


def infinite(x):
    """Return 1 for infinity, -1 for negative infinity, and 0 for any other number (__hisinf)."""
    return int(x > 0) - int(x < 0) if abs(x) == np.inf else 0


for _name in ("add", "sub", "mul"):
    alias_ptx(f"h{_name} __h{_name} __h{_name}_rn", f"{_name}.f16")
    add_entry(f"__h{_name}_sat", saturated(f"{_name}.f16"), 2, native=None)
alias_ptx("hdiv __hdiv", "div.rn.f16", lambda x, y: x / y)
alias_ptx("hfma __hfma", "fma.rn.f16", double_fma)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    alias_ptx(f"h{_name} __h{_name}", f"setp.{_name}.f16")
    alias_ptx(f"__h{_name}u", f"setp.{_name}u.f16")
for _name in ("abs", "neg", "max", "min"):
    alias_ptx(f"h{_name} __h{_name}", f"{_name}.f16")
alias_ptx("__hmax_nan", "max.NaN.f16")
alias_ptx("__hmin_nan", "min.NaN.f16")
# These have no compiled form, because their result depends on whether a value is NaN.
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
alias_ptx("__half2float", "cvt.f32.f16")
# The last argument None means that there is no compiled form.
alias_ptx("__half2char_rz", "cvt.rzi.s8.f16", None)
alias_ptx("__half2uchar_rz", "cvt.rzi.u8.f16", None)
for _name in ("short", "ushort"):
    add_entry(f"__{_name}_as_half", lambda x: uint16(x).view(float16), operand=uint16, native=BITS)
add_entry("__half_as_short", lambda x: x.view(np.int16), result=np.int16, native=BITS)
add_entry("__half_as_ushort", lambda x: x.view(uint16), result=uint16, native=BITS)
for _mode in DIRECTIONS:
    _nearest = identity if _mode == "rn" else None
    alias_ptx(f"__float2half_{_mode}", f"cvt.{_mode}.f16.f32", _nearest)
    for _name, _integer in INTEGERS.items():
        alias_ptx(f"__{_name}2half_{_mode}", f"cvt.{_mode}.f16.{_integer}", _nearest)
        _native = in_single(ieee.WHOLE[_mode])
        alias_ptx(f"__half2{_name}_{_mode}", f"cvt.{_mode}i.{_integer}.f16", _native)
FUNCTIONS = {name: entry.call for name, entry in entries_under("fp16").items()}
