"""The functions of `numba.cuda.fp16`: arithmetic of float16, each result rounded once from one that is exact
or a double.

`hmax`, `hmin` ignore a NaN, `__hmax_nan`, `__hmin_nan` keep it; a comparison with a NaN is false, and with
the suffix u true; `_sat` clamps to 0 ... 1 with NaN becoming 0; `_relu` turns what is negative, or NaN, into
0. Operands of other types are first converted to float16.
"""

import math
import operator
from functools import partial

import numpy as np
from numpy import float16, float32, int8, int16, int32, uint8, uint16, uint32, uint64

from sim.isa import ieee
from sim.isa.conversions import cast
from sim.isa.directed import DIRECTIONS, from_float, to_float
from sim.isa.rounding import fused

_half = cast(float16)


def _of_halves(function, result=_half):
    """`function` with every operand converted to float16, and its result by `result`."""
    return lambda *operands: result(function(*map(_half, operands)))


def _saturated(function):
    """The result of `function` clamped to 0 ... 1."""
    return lambda *operands: _clamped(function(*operands))


def _clamped(x):
    return float16(0) if not x > 0 else min(x, float16(1))


def _fma(a, b, c):
    return fused(a, b, c, float16)


def _relu(x):
    return x if x > 0 else float16(0)


def _choose(better, keep_nan=False):
    """The better of two; of a NaN and a number the number, or the NaN with `keep_nan`; -0 is less than 0."""

    def choose(a, b):
        if a != a or b != b:
            return a if (a != a) == keep_nan else b
        order = (a, b) if a != b else (math.copysign(1, a), math.copysign(1, b))
        return a if better(*order) else b

    return choose


def _unordered(compare):
    return lambda a, b: bool(compare(a, b) or a != a or b != b)


def _double(name):
    """The function `name` of `sim.isa.ieee`, rounded to float16."""
    return _of_halves(ieee.total(*ieee.UNARY[name]))


ARITHMETIC = {"hadd": operator.add, "hsub": operator.sub, "hmul": operator.mul, "hdiv": operator.truediv}
ELEMENTARY = {
    "hceil": "ceil", "hcos": "cos", "hexp": "exp", "hexp10": "exp10", "hexp2": "exp2", "hfloor": "floor",
    "hlog": "log", "hlog10": "log10", "hlog2": "log2", "hrint": "rint", "hrsqrt": "rsqrt", "hsin": "sin",
    "hsqrt": "sqrt", "htanh": "tanh",
    "htanh_approx": "tanh", "htrunc": "trunc",
}  # fmt: skip
COMPARISONS = {
    "heq": operator.eq,
    "hne": operator.ne,
    "hlt": operator.lt,
    "hle": operator.le,
    "hgt": operator.gt,
    "hge": operator.ge,
}
INTEGERS = {"short": int16, "ushort": uint16, "int": int32, "uint": uint32, "ll": np.int64, "ull": uint64}

PLAIN = {name: _of_halves(function) for name, function in ARITHMETIC.items()}
PLAIN |= {name: _of_halves(function, bool) for name, function in COMPARISONS.items()}
PLAIN |= {
    "habs": _of_halves(abs),
    "hneg": _of_halves(operator.neg),
    "hfma": _of_halves(_fma),
    "hmax": _of_halves(_choose(operator.gt)),
    "hmin": _of_halves(_choose(operator.lt)),
}

UNDERSCORED = {f"{name}_sat": _saturated(PLAIN[name]) for name in ("hadd", "hsub", "hmul", "hfma")}
UNDERSCORED |= {f"{name}_rn": PLAIN[name] for name in ("hadd", "hsub", "hmul")}
UNDERSCORED |= {f"{name}u": _of_halves(_unordered(function), bool) for name, function in COMPARISONS.items()}
UNDERSCORED |= {
    "hfma_relu": lambda a, b, c: _relu(PLAIN["hfma"](a, b, c)),
    "hmax_nan": _of_halves(_choose(operator.gt, keep_nan=True)),
    "hmin_nan": _of_halves(_choose(operator.lt, keep_nan=True)),
    "hisnan": _of_halves(lambda x: x != x, bool),
    "hisinf": _of_halves(lambda x: int(x > 0) - int(x < 0) if abs(x) == np.inf else 0, int),
    "half": _half,
    "double2half": _half,
    "float2half": _half,
    "half2float": _of_halves(float32, float32),
    "half2char_rz": _of_halves(partial(from_float, dtype=int8, mode="rz"), int),
    "half2uchar_rz": _of_halves(partial(from_float, dtype=uint8, mode="rz"), uint8),
    "short_as_half": lambda x: cast(uint16)(x).view(float16),
    "ushort_as_half": lambda x: cast(uint16)(x).view(float16),
    "half_as_short": _of_halves(lambda x: x.view(int16), int),
    "half_as_ushort": _of_halves(lambda x: x.view(uint16), uint16),
}
for _mode in DIRECTIONS:
    UNDERSCORED[f"float2half_{_mode}"] = partial(to_float, source=float32, kind=float16, mode=_mode)
    for _name, _dtype in INTEGERS.items():
        UNDERSCORED[f"{_name}2half_{_mode}"] = partial(to_float, source=_dtype, kind=float16, mode=_mode)
        UNDERSCORED[f"half2{_name}_{_mode}"] = _of_halves(
            partial(from_float, dtype=_dtype, mode=_mode), cast(_dtype)
        )

FUNCTIONS = PLAIN | {name: _double(function) for name, function in ELEMENTARY.items()}
FUNCTIONS["hrcp"] = _of_halves(lambda x: float16(1) / x)
FUNCTIONS |= {f"__{name}": function for name, function in UNDERSCORED.items()}
FUNCTIONS |= {f"__{name}": function for name, function in PLAIN.items()}
