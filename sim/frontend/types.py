"""Types of a kernel's variables and expressions, as Numba has them, and the interval in which an integer
lies: from both follows which operators can stay Python's own, and which indices need no check.

A type is a Number (a kind of sim.isa.promotion, and for integers the lowest and the highest value, if known),
an ArrayType, a tuple of types, or ANY. A variable is a Python int for certain where its interval is known; a
counter that still grows after a few rounds has none, which is always right and only slower.
"""

import functools
from dataclasses import dataclass, replace

import numpy as np
from ml_dtypes import bfloat16

from sim.isa import promotion
from sim.isa.promotion import COMPLEX, INTEGRAL, SCALAR, SIGNED

ANY = "any"
NONE = "none"  # the type of None
UNKNOWN = None  # not found so far
MOST_BITS = 62
LENGTH, LONG = 40, 42  # bits of a length or a dimension, and of a position in a grid
PYTHON = (np.float16, np.float32, np.float64)  # floats that Python's operators treat as Numba does


@dataclass(frozen=True)
class Number:
    """With `low` and `high`: a Python int, neither less nor more than these; without: whatever sim.isa has
    for the kind."""

    kind: type
    low: int | None = None
    high: int | None = None

    @property
    def bits(self):
        """Those of the magnitude, if it is known."""
        return None if self.low is None else max(self.high, ~self.low).bit_length()


def signed(kind, bits):
    """A Number of either sign."""
    return Number(kind, -(1 << bits), (1 << bits) - 1)


def natural(kind, bits):
    """A Number that is not negative."""
    return Number(kind, 0, (1 << bits) - 1)


@dataclass(frozen=True)
class ArrayType:
    """An array of `rank` dimensions. What else the text tells saves looking it up at each load: the constant
    `shape` of a declared array, whether the last axis is contiguous (`rowwise`), and whether it is `local`
    memory."""

    element: object
    rank: int
    itemsize: int
    rowwise: bool = True
    shape: tuple | None = None
    local: bool = False


LENGTHS = natural(int, LENGTH)
INT32, INT64, BOOL = signed(np.int32, 31), Number(int), Number(bool)


def bits(kind):
    """The bits of an integer that is surely a Python int, else None."""
    return kind.bits if isinstance(kind, Number) else None


def is_float(kind):
    return isinstance(kind, Number) and kind.kind in PYTHON


def is_signed(kind):
    return isinstance(kind, Number) and kind.kind in SIGNED


def with_float64(a, b):
    """Whether Python's operators make a float64 of both, as Numba does: one is, the other an integer."""
    kinds = {kind.kind for kind in (a, b) if isinstance(kind, Number)}
    return np.float64 in kinds and len(kinds) == 2 and kinds <= INTEGRAL | {np.float64}


def join(a, b):
    """The type of a variable that holds now an `a`, now a `b`: Numba's unification."""
    if a == b or b is UNKNOWN:
        return a
    if a is UNKNOWN:
        return b
    if isinstance(a, Number) and isinstance(b, Number):
        kind = unified(a.kind, b.kind)
        return ANY if kind is None else Number(kind, *hull(a, b))
    if isinstance(a, ArrayType) and isinstance(b, ArrayType):
        rowwise = a.rowwise and b.rowwise
        one, other = (replace(kind, rowwise=rowwise, shape=None) for kind in (a, b))
        return one if one == other else ANY
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return tuple(map(join, a, b))
    return ANY


def hull(a, b):
    """The interval of a Number that is now `a`, now `b`: the larger one if it holds both, else one whose ends
    are powers of two, so that a counter takes few steps to grow."""
    if None in (a.low, b.low):
        return ()
    ends = low, high = min(a.low, b.low), max(a.high, b.high)
    if ends in ((a.low, a.high), (b.low, b.high)):
        return ends
    return (low and -(1 << (~low).bit_length()) if low < 0 else 0), max((1 << high.bit_length()) - 1, 0)


@functools.cache
def unified(a, b):
    if a is b:
        return a
    if not {a, b} & COMPLEX:
        return promotion.unified(a, b)
    if bfloat16 in (a, b):
        return None
    return SCALAR[np.promote_types(*(np.int64 if kind is int else kind for kind in (a, b))).type]


def element_type(dtype):
    """The type that a load from an array of `dtype` gives."""
    kind = SCALAR.get(dtype.type)
    return ANY if kind is None else INT32 if kind is np.int32 else Number(kind)


def type_of_argument(value):
    """The type of a launch argument. Intervals are rounded up, so that few specialisations arise."""
    if isinstance(value, tuple):
        return tuple(map(type_of_argument, value))
    if type(value) is np.int32:
        return natural(np.int32, 31) if value >= 0 else INT32
    kind = type_of_value(value)
    few = -(-(bits(kind) or 0) // 8) * 8
    if bits(kind) is None:
        return kind
    return Number(int) if few > 40 else natural(int, few) if value >= 0 else signed(int, few)


def type_of_value(value):
    """The type of a constant: a literal, a global or a free variable; and of a launch argument that is no
    integer."""
    if value is None:
        return NONE
    if isinstance(value, int) and not isinstance(value, bool):
        if not -(2**63) <= value < 2**63:
            return Number(np.uint64)
        return Number(int, value, value) if value.bit_length() <= MOST_BITS else Number(int)
    if type(value) in SCALAR:
        return Number(SCALAR[type(value)])
    if isinstance(value, tuple):
        return tuple(map(type_of_value, value))
    # an array with a fast path
    if hasattr(value, "allocation") and value.dtype.names is None and hasattr(value, "data"):
        size = value.dtype.itemsize
        return ArrayType(element_type(value.dtype), value.ndim, size, value.strides[-1] == size)
    return ANY


def widened(kind):
    """A type without the bits that keep growing."""
    if isinstance(kind, tuple):
        return tuple(map(widened, kind))
    return INT64 if isinstance(kind, Number) and kind.kind is int else kind


def general(kind):
    """A type with little of what sets one call of a device function apart from another."""
    if not isinstance(kind, Number) or kind.bits is None or kind.kind not in (int, np.int32):
        return kind
    few = next((few for few in (31, LONG) if kind.bits <= few), None)
    return Number(kind.kind) if few is None else (natural if kind.low >= 0 else signed)(kind.kind, few)


def part(kind, position):
    """The type of one part of a value of type `kind`; position None: of any."""
    if kind is UNKNOWN:
        return UNKNOWN
    if isinstance(kind, tuple) and isinstance(position, int):
        return kind[position] if -len(kind) <= position < len(kind) else ANY
    if isinstance(kind, tuple):
        alike = len({one.kind if isinstance(one, Number) else one for one in kind}) == 1
        return functools.reduce(join, kind) if alike else ANY
    return kind.element if isinstance(kind, ArrayType) and kind.rank == 1 else ANY
