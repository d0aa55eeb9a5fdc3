"""The arithmetic of PTX, an entry for each type that an instruction has: add.s32, shl.b64, setp.lt.f32, cvt.
What libdevice has too stands in sim.isa.libdevice, with its name in PTX.

`.approx` functions give the accurate value, which the hardware only approximates; `.ftz` is not heeded.
Source: PTX ISA 9.7.1 (integers), 9.7.3 (floats), 9.7.4 (halves), 9.7.6 and 9.7.8 (comparison, logic, shift),
    9.7.9 (cvt).
"""

import math
import operator
from functools import partial

import numpy as np
from ml_dtypes import bfloat16
from numpy import float16, float32, float64, int8, int16, int32, int64, uint8, uint16, uint32, uint64

from sim.isa import bits, ieee, libdevice  # noqa: F401  libdevice enters its names of PTX first
from sim.isa.conversions import wrap
from sim.isa.directed import DIRECTIONS, WHOLE, divided, from_float, multiplied, square_root, to_float
from sim.isa.functions import SAME, Function
from sim.isa.rounding import fused
from sim.isa.table import PTX

SIGNED = {"s16": int16, "s32": int32, "s64": int64}
UNSIGNED = {"u16": uint16, "u32": uint32, "u64": uint64}
PATTERNS = {"b16": uint16, "b32": uint32, "b64": uint64}
FLOATS = {"f32": float32, "f64": float64}
HALVES = {"f16": float16, "bf16": bfloat16}
INTEGERS = SIGNED | UNSIGNED
TYPES = INTEGERS | PATTERNS | FLOATS | HALVES | {"pred": np.bool_, "s8": int8, "u8": uint8, "b8": uint8}
TWICE = {"s16": int32, "s32": int64, "u16": uint32, "u32": uint64}


def enter(ptx, meaning, operands, result, native=None, **more):
    """An entry of PTX alone, if there is none of this name."""
    if ptx not in PTX:
        Function(ptx, meaning, "PTX ISA", operands, result, native=native, ptx=(ptx,), **more).enter()


def family(name, types, meaning, count=2, results=None, **more):
    """`name`, in which T stands for the type, for each of `types`; `results`: {type: the result's}."""
    for text, kind in types.items():
        result = kind if results is None else results[text] if isinstance(results, dict) else results
        enter(name.replace("T", text), meaning, (kind,) * count, result, **more)


# --- integers -----------------------------------------------------------------------------------------------


def quotient(x, y):
    """Towards zero; unspecified by 0: all bits set, as GPUs give it."""
    return -1 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def remainder(x, y):
    """With the sign of x."""
    return x if y == 0 else abs(x) % abs(y) * (-1 if x < 0 else 1)


def high(x, y, *, bits):
    return x * y >> bits


def multiply_add(x, y, z):
    return x * y + z


def high_add(x, y, z, *, bits):
    return (x * y >> bits) + z


def difference(x, y, z):
    return abs(x - y) + z


def shifted_left(x, count, *, bits):
    """By as many as the low 32 bits of `count` say; by `bits` or more: 0."""
    return x << count if count < bits else 0


def shifted_right(x, count, *, bits):
    """The same; what comes in is the sign."""
    return x >> min(count, bits)


def field(x, start, length, *, bits):
    """Unsigned bit field extract."""
    return (x >> (start & 255)) & ((1 << (length & 255)) - 1)


def inserted(x, into, start, length, *, bits):
    """Bit field insert."""
    mask = ((1 << (length & 255)) - 1) << (start & 255)
    return into & ~mask | (x << (start & 255)) & mask


def signed_field(x, start, length, *, bits):
    start, length = start & 255, length & 255
    sign = x >> min(start + length - 1, bits - 1) & 1 if length else 0
    kept = min(length, max(bits - start, 0))
    return ((x >> start) & ((1 << kept) - 1)) - (sign << kept)


def funnel(wrapped, left):
    def shift(low, high, count):
        count = count & 31 if wrapped else min(count, 32)
        both = high << 32 | low
        return both << count >> 32 if left else both >> count

    return shift


def any_of_three(x, y, z, table):
    """lop3: each bit of the result stands in `table` at the position that the three bits give."""
    result = 0
    for position in range(8):
        if table >> position & 1:
            result |= (x if position & 4 else ~x) & (y if position & 2 else ~y) & (z if position & 1 else ~z)
    return result


def dot4(signed_x, signed_y):
    """The sum of the products of four bytes, and z."""

    def dot(x, y, z):
        for place in range(0, 32, 8):
            a, b = x >> place & 255, y >> place & 255
            z += (wrap(a, 8) if signed_x else a) * (wrap(b, 8) if signed_y else b)
        return z

    return dot


def most_significant(x, *, bits):
    """bfind: the position of the highest bit that is not the sign; all bits set for none."""
    return max(x, ~x).bit_length() - 1


family("add.T", INTEGERS, operator.add, native=SAME)
family("sub.T", INTEGERS, operator.sub, native=SAME)
family("mul.lo.T", INTEGERS, operator.mul, native=SAME)
family("mul.hi.T", INTEGERS, high)
family("mul.wide.T", {name: INTEGERS[name] for name in TWICE}, operator.mul, results=TWICE)
family("mad.lo.T", INTEGERS, multiply_add, 3, native=SAME)
family("mad.hi.T", INTEGERS, high_add, 3)
for _name, _wide in TWICE.items():
    enter(f"mad.wide.{_name}", multiply_add, (INTEGERS[_name], INTEGERS[_name], _wide), _wide)
family("div.T", INTEGERS, quotient)
family("rem.T", INTEGERS, remainder)
family("sad.T", INTEGERS, difference, 3)
family("abs.T", SIGNED, abs, 1)
family("neg.T", SIGNED, operator.neg, 1, native=SAME)
family("min.T", INTEGERS, min, native=SAME)
family("max.T", INTEGERS, max, native=SAME)
family("popc.T", PATTERNS, bits.popc, 1, results=uint32, native=bits.POPC)
family("clz.T", PATTERNS, bits.clz, 1, results=uint32, native=bits.CLZ)
family("brev.T", PATTERNS, bits.brev, 1, native=bits.BREV)
family("bfind.T", INTEGERS, most_significant, 1, results=uint32)
LOGIC = PATTERNS | {"pred": np.bool_}
family("and.T", LOGIC, operator.and_, native=SAME)
family("or.T", LOGIC, operator.or_, native=SAME)
family("xor.T", LOGIC, operator.xor, native=SAME)
family("not.T", PATTERNS, operator.invert, 1, native=SAME)
enter("not.pred", operator.not_, (np.bool_,), np.bool_)
family("cnot.T", PATTERNS, lambda x: int(x == 0), 1)
enter("lop3.b32", any_of_three, (uint32,) * 4, uint32, native=SAME)
for _name, _kind in PATTERNS.items():
    enter(f"shl.{_name}", shifted_left, (_kind, uint32), _kind)
for _name, _kind in (INTEGERS | PATTERNS).items():
    enter(f"shr.{_name}", shifted_right, (_kind, uint32), _kind)
for _name in ("u32", "u64", "s32", "s64"):
    _kind = INTEGERS[_name]
    enter(f"bfe.{_name}", signed_field if _name[0] == "s" else field, (_kind, uint32, uint32), _kind)
for _name in ("b32", "b64"):
    _kind = PATTERNS[_name]
    enter(f"bfi.{_name}", inserted, (_kind, _kind, uint32, uint32), _kind)
for _way in ("l", "r"):
    for _mode in ("wrap", "clamp"):
        enter(f"shf.{_way}.{_mode}.b32", funnel(_mode == "wrap", _way == "l"), (uint32,) * 3, uint32)
for _left in "su":
    for _right in "su":
        _sum = uint32 if (_left, _right) == ("u", "u") else int32
        _operands = (uint32, uint32, _sum)
        enter(f"dp4a.{_left}32.{_right}32", dot4(_left == "s", _right == "s"), _operands, _sum)

# --- floats -------------------------------------------------------------------------------------------------

ALL_FLOATS = FLOATS | HALVES
for _text, _kind in ALL_FLOATS.items():
    for _mode in DIRECTIONS if _text in FLOATS else ("rn",):
        _how = {"kind": _kind, "mode": _mode}
        for _name, _meaning, _count in (
            ("add", lambda x, y, how=_how: fused(x, 1.0, y, **how), 2),
            ("sub", lambda x, y, how=_how: fused(x, 1.0, -y, **how), 2),
            ("mul", partial(multiplied, **_how), 2),
            ("div", partial(divided, **_how), 2),
            ("fma", partial(fused, **_how), 3),
            ("mad", partial(fused, **_how), 3),
            ("rcp", partial(divided, 1.0, **_how), 1),
            ("sqrt", partial(square_root, **_how), 1),
        ):
            enter(f"{_name}.{_mode}.{_text}", _meaning, (_kind,) * _count, _kind)
    for _name in ("add", "sub", "mul"):  # to the nearest, where no direction is given
        PTX[f"{_name}.{_text}"] = PTX[f"{_name}.rn.{_text}"]
family("abs.T", ALL_FLOATS, abs, 1)
family("neg.T", ALL_FLOATS, operator.neg, 1)
family("min.T", ALL_FLOATS, ieee.smaller)
family("max.T", ALL_FLOATS, ieee.larger)
family("min.NaN.T", ALL_FLOATS, ieee.smaller_or_nan)
family("max.NaN.T", ALL_FLOATS, ieee.larger_or_nan)
family("copysign.T", FLOATS, lambda sign, x: math.copysign(x, sign))
for _name, _of in {
    "sin": "sin",
    "cos": "cos",
    "lg2": "log2",
    "ex2": "exp2",
    "tanh": "tanh",
    "rsqrt": "rsqrt",
}.items():
    family(
        f"{_name}.approx.T",
        {"f32": float32} | (HALVES if _name in ("ex2", "tanh") else {}),
        ieee.of_one(_of),
        1,
    )
enter("rsqrt.approx.f64", ieee.of_one("rsqrt"), (float64,), float64)
for _name in ("div", "rcp", "sqrt"):
    PTX[f"{_name}.approx.f32"] = PTX[f"{_name}.full.f32"] = PTX[f"{_name}.rn.f32"]
PTX["rcp.approx.f64"] = PTX["rcp.rn.f64"]
for _test, _meaning in {
    "finite": math.isfinite,
    "infinite": math.isinf,
    "number": lambda x: x == x,
    "notanumber": math.isnan,
}.items():
    family(f"testp.{_test}.T", FLOATS, _meaning, 1, results=np.bool_)

# --- comparison, choice, conversion -------------------------------------------------------------------------


def unordered(compare):
    return lambda x, y: compare(x, y) or x != x or y != y


COMPARISONS = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
UNSIGNED_NAMES = {"lo": operator.lt, "ls": operator.le, "hi": operator.gt, "hs": operator.ge}
ORDERED = {
    # PTX's ne is false where there is a NaN
    name: (lambda x, y: x < y or x > y) if name == "ne" else compare
    for name, compare in COMPARISONS.items()
}
for _name, _meaning in COMPARISONS.items():
    family(f"setp.{_name}.T", INTEGERS | PATTERNS, _meaning, results=np.bool_, native=SAME)
    family(f"setp.{_name}.T", ALL_FLOATS, ORDERED[_name], results=np.bool_)
    family(f"setp.{_name}u.T", ALL_FLOATS, unordered(_meaning), results=np.bool_)
for _name, _meaning in UNSIGNED_NAMES.items():
    family(f"setp.{_name}.T", UNSIGNED, _meaning, results=np.bool_)
family("setp.num.T", ALL_FLOATS, lambda x, y: x == x and y == y, results=np.bool_)
family("setp.nan.T", ALL_FLOATS, lambda x, y: x != x or y != y, results=np.bool_)


def chosen(x, y, test):
    return x if test else y


for _text, _kind in (INTEGERS | PATTERNS | FLOATS).items():
    enter(f"selp.{_text}", chosen, (_kind, _kind, np.bool_), _kind, native=SAME)
    enter(f"mov.{_text}", lambda x: x, (_kind,), _kind)

WIDE_AND_NARROW = INTEGERS | {"s8": int8, "u8": uint8}
for _to, _kind in WIDE_AND_NARROW.items():
    for _from, _source in WIDE_AND_NARROW.items():
        enter(f"cvt.{_to}.{_from}", lambda x: x, (_source,), _kind)
        _info = np.iinfo(_kind)
        _clamped = lambda x, low=int(_info.min), high=int(_info.max): min(max(x, low), high)  # noqa: E731
        enter(f"cvt.sat.{_to}.{_from}", _clamped, (_source,), _kind)
    for _from, _source in ALL_FLOATS.items():
        for _mode in DIRECTIONS:
            enter(
                f"cvt.{_mode}i.{_to}.{_from}", partial(from_float, dtype=_kind, mode=_mode), (_source,), _kind
            )
            PTX[f"cvt.{_mode}i.sat.{_to}.{_from}"] = PTX[f"cvt.{_mode}i.{_to}.{_from}"]
            enter(
                f"cvt.{_mode}.{_from}.{_to}",
                partial(to_float, source=_kind, kind=_source, mode=_mode),
                (_kind,),
                _source,
            )
for _to, _kind in ALL_FLOATS.items():
    for _from, _source in ALL_FLOATS.items():
        if np.dtype(_kind).itemsize > np.dtype(_source).itemsize:
            enter(f"cvt.{_to}.{_from}", lambda x: x, (_source,), _kind)
        for _mode in DIRECTIONS:
            enter(
                f"cvt.{_mode}.{_to}.{_from}",
                partial(to_float, source=_source, kind=_kind, mode=_mode),
                (_source,),
                _kind,
            )
    for _mode, _whole in WHOLE.items():
        _rounded = lambda x, whole=_whole: math.copysign(whole(float(x)), x) if math.isfinite(x) else x  # noqa: E731
        enter(f"cvt.{_mode}i.{_to}.{_to}", _rounded, (_kind,), _kind)
