"""The functions of `numba.cuda.fp16`: arithmetic of float16, each result rounded once from one that is exact
or a double. Operands of other types are first converted to float16.

`hmax`, `hmin` ignore a NaN, `__hmax_nan`, `__hmin_nan` keep it; a comparison with a NaN is false, and with
the suffix u true; `_sat` clamps to 0 ... 1 with NaN becoming 0; `_relu` turns what is negative, or NaN, into
0. Compiled, all is computed in float64: for a sum, product, quotient or square root that gives the nearest
number too, since 53 bits are more than twice the 11 that are kept, and two (Figueroa, "When is double
rounding innocuous?", 1995).
Source: CUDA Math API, "Half Precision Intrinsics".
"""

import operator
from functools import partial

import numpy as np
from numpy import float16, float32, float64, int8, int16, int32, int64, uint8, uint16, uint32, uint64

from sim.isa import ieee
from sim.isa.directed import DIRECTIONS, from_float, to_float
from sim.isa.functions import BITS, SAME, Function
from sim.isa.rounding import fused

ENTRIES = {}  # name -> Function
COMPARISONS = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
ELEMENTARY = "ceil cos exp exp10 exp2 floor log log10 log2 rint rsqrt sin sqrt tanh trunc".split()
INTEGERS = {"short": int16, "ushort": uint16, "int": int32, "uint": uint32, "ll": int64, "ull": uint64}
ONE = float16(1)


def enter(name, meaning, count=2, result=float16, operand=float16, native=SAME, also=(), **more):
    names = (f"fp16.{name}", *(f"fp16.{other}" for other in also))
    entry = Function(
        names[0], meaning, "CUDA Math API", (operand,) * count, result, native=native, also=names[1:], **more
    )
    ENTRIES.update(dict.fromkeys((name, *also), entry.enter()))


def both(name, meaning, *more, **named):
    """Under its name and that with underscores."""
    enter(name, meaning, *more, also=(f"__{name}",), **named)


def in_double(function):
    """`function` of a float64, compiled."""
    return lambda x: function(float64(x))


def in_single(function):
    """The same of a float32, from which a NaN converts as from a float16."""
    return lambda x: function(float32(x))


def saturated(function):
    """The result of `function` clamped to 0 ... 1."""
    return lambda *given: clamped(float16(function(*given)))


def clamped(x):
    return float16(0) if not x > 0 else min(x, ONE)


def unordered(compare):
    return lambda x, y: compare(x, y) or x != x or y != y


def fma(x, y, z):
    return fused(x, y, z, float16)


def double_fma(x, y, z):
    """Compiled: exact wherever a tie is near; a sum that a float64 cannot hold lies within a millionth of one
    of the numbers."""
    return float64(x) * float64(y) + float64(z)


def fma_relu(x, y, z):
    found = fma(x, y, z)
    return found if found > 0 else 0


def infinite(x):
    return int(x > 0) - int(x < 0) if abs(x) == np.inf else 0


ARITHMETIC = {"hadd": operator.add, "hsub": operator.sub, "hmul": operator.mul}
for _name, _meaning in (ARITHMETIC | {"hdiv": operator.truediv}).items():
    both(_name, _meaning)
for _name, _meaning in ARITHMETIC.items():
    enter(f"__{_name}_rn", _meaning)
    enter(f"__{_name}_sat", saturated(_meaning), native=None)
for _name, _meaning in COMPARISONS.items():
    both(f"h{_name}", _meaning, result=bool)
    enter(f"__h{_name}u", unordered(_meaning), result=bool)
both("habs", abs, 1)
both("hneg", operator.neg, 1)
both("hfma", fma, 3, native=double_fma)
both("hmax", ieee.larger)
both("hmin", ieee.smaller)
enter("__hmax_nan", ieee.larger_or_nan)
enter("__hmin_nan", ieee.smaller_or_nan)
enter("__hfma_sat", saturated(fma), 3, native=None)
enter("__hfma_relu", fma_relu, 3, native=None)
for _name in ELEMENTARY:
    _ulps = 0 if _name in ieee.EXACT else 1
    enter(f"h{_name}", ieee.of_one(_name), 1, native=in_double(ieee.NATIVE[_name]), ulps=_ulps)
enter("htanh_approx", ieee.of_one("tanh"), 1, native=in_double(ieee.NATIVE["tanh"]), ulps=1)
enter("hrcp", lambda x: ONE / x, 1, native=lambda x: 1.0 / float64(x))

# --- conversions --------------------------------------------------------------------------------------------


def same(x):
    return x


enter("__hisnan", lambda x: x != x, 1, bool)
enter("__hisinf", infinite, 1, int64, native=None)
for _name in ("__half", "__double2half", "__float2half"):
    enter(_name, same, 1)
enter("__half2float", same, 1, float32)
enter("__half2char_rz", partial(from_float, dtype=int8, mode="rz"), 1, int8, native=None)
enter("__half2uchar_rz", partial(from_float, dtype=uint8, mode="rz"), 1, uint8, native=None)
enter("__short_as_half", lambda x: uint16(x).view(float16), 1, operand=uint16, native=BITS)
enter("__ushort_as_half", lambda x: uint16(x).view(float16), 1, operand=uint16, native=BITS)
enter("__half_as_short", lambda x: x.view(int16), 1, int16, native=BITS)
enter("__half_as_ushort", lambda x: x.view(uint16), 1, uint16, native=BITS)
for _mode in DIRECTIONS:
    _nearest = same if _mode == "rn" else None
    _to_half = partial(to_float, source=float32, kind=float16, mode=_mode)
    enter(f"__float2half_{_mode}", _to_half, 1, operand=float32, native=_nearest)
    for _name, _dtype in INTEGERS.items():
        _to_half = partial(to_float, source=_dtype, kind=float16, mode=_mode)
        enter(f"__{_name}2half_{_mode}", _to_half, 1, operand=_dtype, native=_nearest)
        _from_half = partial(from_float, dtype=_dtype, mode=_mode)
        enter(f"__half2{_name}_{_mode}", _from_half, 1, _dtype, native=in_single(ieee.WHOLE[_mode]))
FUNCTIONS = {name: entry.call for name, entry in ENTRIES.items()}
