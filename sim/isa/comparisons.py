"""PTX instructions that compare, select and convert, with one entry per type: setp.lt.f32, selp.b32,
cvt.rni.s32.f32.

Source: PTX ISA 9.7.6, "Comparison and Selection Instructions"; 9.7.9, "Data Movement and Conversion
Instructions" (mov, cvt).
"""

import math
import operator
from functools import partial

import numpy as np
from numpy import int8, uint8

from sim.isa.directed import DIRECTIONS, WHOLE, from_float, to_float
from sim.isa.functions import SAME
from sim.isa.ptx_types import FLOATS, INTEGERS, PATTERNS, REALS, UNSIGNED, add_entry, family


def negated(compare):
    """Return the negation of `compare`. If `compare` is False for NaN operands, its negation is True for
    them."""
    return lambda x, y: not compare(x, y)


COMPARISONS = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}
# lo, ls, hi and hs are the names of lt, le, gt and ge for unsigned operands.
UNSIGNED_NAMES = {"lo": operator.lt, "ls": operator.le, "hi": operator.gt, "hs": operator.ge}
ORDERED = {
    # PTX's `ne` is ordered, so it is false if an operand is NaN. Python's != would be true.
    name: (lambda x, y: x < y or x > y) if name == "ne" else compare
    for name, compare in COMPARISONS.items()
}
# Comparisons that are also true if an operand is NaN, such as setp.ltu. Python's != is one of these
# comparisons.
UNORDERED = {"lt": negated(operator.ge), "le": negated(operator.gt), "gt": negated(operator.le)}
UNORDERED |= {"ge": negated(operator.lt), "eq": negated(ORDERED["ne"]), "ne": operator.ne}
for _name, _semantics in COMPARISONS.items():
    family(f"setp.{_name}.T", INTEGERS | PATTERNS, _semantics, results=np.bool_, native=SAME)
    family(f"setp.{_name}.T", REALS, ORDERED[_name], results=np.bool_)
    family(f"setp.{_name}u.T", REALS, UNORDERED[_name], results=np.bool_)
for _name, _semantics in UNSIGNED_NAMES.items():
    family(f"setp.{_name}.T", UNSIGNED, _semantics, results=np.bool_)
family("setp.num.T", REALS, lambda x, y: x == x and y == y, results=np.bool_)
family("setp.nan.T", REALS, lambda x, y: x != x or y != y, results=np.bool_)


def chosen(x, y, test):
    """Return x if the predicate `test` is true, otherwise y (selp)."""
    return x if test else y


for _text, _scalar in (INTEGERS | PATTERNS | FLOATS).items():
    add_entry(f"selp.{_text}", chosen, (_scalar, _scalar, np.bool_), _scalar, native=SAME)
    add_entry(f"mov.{_text}", lambda x: x, (_scalar,), _scalar)

WIDE_AND_NARROW = INTEGERS | {"s8": int8, "u8": uint8}


def clamped(dtype):
    """Return a function that clamps an integer to the range of `dtype` (cvt.sat)."""
    low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    return lambda x: min(max(x, low), high)


def whole_number(function):
    """Return a function that rounds a float to an integral float and keeps the sign of zero, as
    cvt.rni.f32.f32 does.

    Infinities and NaN are unchanged.
    """
    return lambda x: math.copysign(function(float(x)), x) if math.isfinite(x) else x


# From integer to integer, a value wraps around, or saturates with .sat. From float to integer, it always
# saturates, so .sat has no effect.
for _to, _scalar in WIDE_AND_NARROW.items():
    family(f"cvt.{_to}.T", WIDE_AND_NARROW, lambda x: x, 1, results=_scalar)
    family(f"cvt.sat.{_to}.T", WIDE_AND_NARROW, clamped(_scalar), 1, results=_scalar)
    for _mode in DIRECTIONS:
        for _from, _source in REALS.items():
            _semantics, _also = (
                partial(from_float, dtype=_scalar, mode=_mode),
                (f"cvt.{_mode}i.sat.{_to}.{_from}",),
            )
            add_entry(f"cvt.{_mode}i.{_to}.{_from}", _semantics, (_source,), _scalar, also=_also)
# Conversions from float to float, and from integer to float. A conversion to a wider type is exact, so it has
# no rounding modifier.
for _to, _scalar in REALS.items():
    for _from, _source in (REALS | WIDE_AND_NARROW).items():
        wider = np.dtype(_scalar).itemsize > np.dtype(_source).itemsize
        if _from in REALS and (_from == _to or wider):
            add_entry(f"cvt.{_to}.{_from}", lambda x: x, (_source,), _scalar)
        for _mode in DIRECTIONS:
            _semantics = partial(to_float, source=_source, scalar=_scalar, mode=_mode)
            add_entry(f"cvt.{_mode}.{_to}.{_from}", _semantics, (_source,), _scalar)
    for _mode, _whole in WHOLE.items():
        add_entry(f"cvt.{_mode}i.{_to}.{_to}", whole_number(_whole), (_scalar,), _scalar)
