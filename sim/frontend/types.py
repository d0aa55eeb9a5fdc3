"""Types of a kernel's variables and expressions, as Numba has them, and the interval in which an integer
lies: from both follows which operators can stay Python's own, and which indices need no check.

A type is a Number (a scalar type of sim.isa.promotion, and for integers the lowest and the highest value, if
known), an ArrayType, a View, a Record, a tuple of types, or ANY. A variable is a Python int for certain where
its interval is known; a counter that still grows after a few rounds has none, which is always right and only
slower.
"""

import functools
from dataclasses import dataclass, replace

import numpy as np
from ml_dtypes import bfloat16

from sim.isa import promotion
from sim.isa.promotion import COMPLEX, INTEGRAL, SCALAR, SIGNED
from sim.memory import array as memory
from sim.memory.array import MAX_FAST_RANK

ANY = "any"
NONE = "none"  # the type of None
UNKNOWN = None  # not found so far
MOST_BITS = 62
LENGTH, LONG = 40, 42  # bits of a length or a dimension, and of a position in a grid
PYTHON = (np.float16, np.float32, np.float64)  # floats that Python's operators treat as Numba does


@dataclass(frozen=True)
class Number:
    """With `low` and `high`: a Python int within these; without: whatever sim.isa has for `scalar`."""

    scalar: type
    low: int | None = None
    high: int | None = None

    @property
    def bits(self):
        """Those of the magnitude, if it is known."""
        return None if self.low is None else max(self.high, ~self.low).bit_length()


def signed(scalar, bits):
    """A Number of either sign."""
    return Number(scalar, -(1 << bits), (1 << bits) - 1)


def natural(scalar, bits):
    """A Number that is not negative."""
    return Number(scalar, 0, (1 << bits) - 1)


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


@dataclass(frozen=True)
class View:
    """An array of `rank` dimensions of which no more is known than its elements: a slice, records."""

    element: object
    rank: int


@dataclass(frozen=True)
class Record:
    dtype: np.dtype


LENGTHS = natural(int, LENGTH)
INT32, INT64, UINT64, BOOL = signed(np.int32, 31), Number(int), Number(np.uint64), Number(bool)


def bits(type_):
    """The bits of an integer that is surely a Python int, else None."""
    return type_.bits if isinstance(type_, Number) else None


def is_float(type_):
    return isinstance(type_, Number) and type_.scalar in PYTHON


def is_signed(type_):
    return isinstance(type_, Number) and type_.scalar in SIGNED


def with_float64(a, b):
    """Whether Python's operators make a float64 of both, as Numba does: one is, the other an integer."""
    scalars = {type_.scalar for type_ in (a, b) if isinstance(type_, Number)}
    return np.float64 in scalars and len(scalars) == 2 and scalars <= INTEGRAL | {np.float64}


def is_numpys(a, b):
    """Whether + - * of Python, and / unless one is complex, are Numba's on both: numpy's, of numbers that it
    promotes alike."""
    if not (isinstance(a, Number) and isinstance(b, Number)):
        return False
    scalars = {a.scalar, b.scalar}
    single = scalars <= {np.complex64, np.float32, np.float16}
    double = np.complex128 in scalars and scalars <= INTEGRAL | COMPLEX | {*PYTHON}
    return scalars <= {*PYTHON} or with_float64(a, b) or single or double


def join(a, b):
    """The type of a variable that holds now an `a`, now a `b`: Numba's unification."""
    if a == b or b is UNKNOWN:
        return a
    if a is UNKNOWN:
        return b
    if isinstance(a, Number) and isinstance(b, Number):
        scalar = unified(a.scalar, b.scalar)
        return ANY if scalar is None else Number(scalar, *hull(a, b))
    if isinstance(a, ArrayType) and isinstance(b, ArrayType):
        rowwise = a.rowwise and b.rowwise
        one, other = (replace(array, rowwise=rowwise, shape=None) for array in (a, b))
        return one if one == other else ANY
    if all(isinstance(array, ArrayType | View) for array in (a, b)):
        same = (a.element, a.rank) == (b.element, b.rank)
        return View(a.element, a.rank) if same else ANY
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
    return SCALAR[np.promote_types(*(np.int64 if scalar is int else scalar for scalar in (a, b))).type]


def element_type(dtype):
    """The type that a load from an array of `dtype` gives."""
    if dtype.names is not None:
        return Record(dtype)
    if dtype.subdtype is not None:
        return View(element_type(dtype.base), len(dtype.shape))
    scalar = SCALAR.get(dtype.type)
    return ANY if scalar is None else INT32 if scalar is np.int32 else Number(scalar)


def field(type_, name):
    """The type of a record's field, or of the column of an array of records; ANY of anything else."""
    if isinstance(type_, View):
        found = field(type_.element, name)
        return View(found, type_.rank) if isinstance(found, Number | Record) else ANY
    known = isinstance(type_, Record) and name in type_.dtype.names
    return element_type(type_.dtype[name]) if known else ANY


def type_of_argument(value):
    """The type of a launch argument. Intervals are rounded up, so that few specialisations arise."""
    if isinstance(value, tuple):
        return tuple(map(type_of_argument, value))
    if type(value) is np.int32:
        return natural(np.int32, 31) if value >= 0 else INT32
    type_ = type_of_value(value)
    few = -(-(bits(type_) or 0) // 8) * 8
    if bits(type_) is None:
        return type_
    return Number(int) if few > 40 else natural(int, few) if value >= 0 else signed(int, few)


def type_of_value(value):
    """The type of a literal, global or free variable, and of an argument that is no integer."""
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
    if isinstance(value, np.ndarray):
        return type_of_constant_array(value)
    if isinstance(value, memory.Record):
        return Record(value._array.dtype)
    # an array with a fast path
    if hasattr(value, "allocation") and value.dtype.names is None and hasattr(value, "data"):
        size = value.dtype.itemsize
        return ArrayType(element_type(value.dtype), value.ndim, size, value.strides[-1] == size)
    if hasattr(value, "allocation"):
        return View(element_type(value.dtype), value.ndim)
    return ANY


def type_of_constant_array(array):
    """The type of a global array, which is constant memory in rows."""
    fast = array.dtype.type in SCALAR and array.dtype.isnative and 1 <= array.ndim <= MAX_FAST_RANK
    if not (fast and array.size):
        return ANY
    return ArrayType(element_type(array.dtype), array.ndim, array.dtype.itemsize, shape=array.shape)


def widened(type_):
    """A type without the bits that keep growing."""
    if isinstance(type_, tuple):
        return tuple(map(widened, type_))
    return INT64 if isinstance(type_, Number) and type_.scalar is int else type_


def general(type_):
    """A type with little of what sets one call of a device function apart from another."""
    if not isinstance(type_, Number) or type_.bits is None or type_.scalar not in (int, np.int32):
        return type_
    few = next((few for few in (31, LONG) if type_.bits <= few), None)
    return Number(type_.scalar) if few is None else (natural if type_.low >= 0 else signed)(type_.scalar, few)


def part(type_, position):
    """The type of one part of a value of type `type_`; position None: of any."""
    if type_ is UNKNOWN:
        return UNKNOWN
    if isinstance(type_, tuple) and isinstance(position, int):
        return type_[position] if -len(type_) <= position < len(type_) else ANY
    if isinstance(type_, tuple):
        alike = len({one.scalar if isinstance(one, Number) else one for one in type_}) == 1
        return functools.reduce(join, type_) if alike else ANY
    return row(type_) if isinstance(type_, ArrayType | View) else ANY


def row(array):
    """The type of what an array of this type holds along its first axis."""
    if array.rank == 1:
        return array.element
    is_view, rank = isinstance(array, View), array.rank - 1
    return View(array.element, rank) if is_view else replace(array, rank=rank, shape=None)
