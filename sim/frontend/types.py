"""The types that Numba infers for variables and expressions, with a value interval for each integer.

The types determine which operators can remain plain Python and which indices need no bounds check. A type is
one of:

- a Number: a scalar type from `sim.isa.promotion`; for an integer, also its lowest and highest value, if
  known
- an ArrayType, a View or a Record
- a tuple of types
- NONE, ANY (no useful information) or UNKNOWN (not inferred yet)

A value with a known interval is always a Python int. If the interval of a counter still grows after a few
iterations of the inference, it is dropped. This is always correct, but makes the code slower.
"""

import functools
from dataclasses import dataclass, replace

import numpy as np
from ml_dtypes import bfloat16

from sim.isa import promotion
from sim.isa.conversions import HIGHEST, LOWEST
from sim.isa.promotion import COMPLEX, INTEGRAL, SCALAR, SIGNED
from sim.memory import array as memory
from sim.memory.array import MAX_FAST_RANK

ANY = "any"
NONE = "none"  # the type of None
UNKNOWN = None  # not inferred yet
# A wider interval is not tracked: int64 arithmetic on it could wrap around.
MOST_BITS = 62
LENGTH = 40  # bits of the length of an array
LONG = 42  # bits of a thread's position in the grid
NARROW_INTEGERS = (np.int8, np.int16, np.int32)
# Float types on which numpy's operators agree with Numba's
PYTHON = (np.float16, np.float32, np.float64)


@dataclass(frozen=True)
class Number:
    """A number. With `low` and `high`, it is a Python int in that interval. Without them, it has the
    representation that `sim.isa` chooses for `scalar`."""

    scalar: type
    low: int | None = None
    high: int | None = None

    @property
    def bits(self):
        """Number of bits of the largest magnitude, or None if the interval is unknown."""
        return None if self.low is None else max(self.high, ~self.low).bit_length()


def signed(scalar, bits):
    """Return a signed Number with `bits` bits of magnitude."""
    return Number(scalar, -(1 << bits), (1 << bits) - 1)


def natural(scalar, bits):
    """Return a non-negative Number with `bits` bits."""
    return Number(scalar, 0, (1 << bits) - 1)


@dataclass(frozen=True)
class ArrayType:
    """An array with `rank` dimensions. Each property that is known at compile time saves a lookup per access.

    shape: the constant shape of a declared array.
    rowwise: whether the last axis is contiguous.
    local: whether the array is in local memory.
    """

    element: object
    rank: int
    itemsize: int
    rowwise: bool = True
    shape: tuple | None = None
    local: bool = False


@dataclass(frozen=True)
class View:
    """An array with `rank` dimensions and a known element type, but an unknown layout: a slice, or an array
    of records."""

    element: object
    rank: int


@dataclass(frozen=True)
class Record:
    """A record of a structured dtype."""

    dtype: np.dtype


LENGTHS = natural(int, LENGTH)
INT32, INT64, UINT64, BOOL = signed(np.int32, 31), Number(int), Number(np.uint64), Number(bool)


def bits(type_):
    """Return the number of bits of an integer that is known to be a Python int, else None."""
    return type_.bits if isinstance(type_, Number) else None


def is_float(type_):
    return isinstance(type_, Number) and type_.scalar in PYTHON


def is_signed(type_):
    return isinstance(type_, Number) and type_.scalar in SIGNED


def with_float64(a, b):
    """Return whether one type is float64 and the other an integer. Python's operators then return a float64,
    like Numba's."""
    scalars = {type_.scalar for type_ in (a, b) if isinstance(type_, Number)}
    return np.float64 in scalars and len(scalars) == 2 and scalars <= INTEGRAL | {np.float64}


def is_numpys(a, b):
    """Return whether numpy's `+`, `-` and `*` on these types compute Numba's result. The same holds for `/`
    on types that are not complex."""
    if not (isinstance(a, Number) and isinstance(b, Number)):
        return False
    scalars = {a.scalar, b.scalar}
    single = scalars <= {np.complex64, np.float32, np.float16}
    double = np.complex128 in scalars and scalars <= INTEGRAL | COMPLEX | {*PYTHON}
    return scalars <= {*PYTHON} or with_float64(a, b) or single or double


def join(a, b):
    """Return the type of a variable whose value has type `a` on one path and type `b` on another (Numba's
    unification)."""
    if a == b or b is UNKNOWN:
        return a
    if a is UNKNOWN:
        return b
    if isinstance(a, Number) and isinstance(b, Number):
        scalar = unify_scalars(a.scalar, b.scalar)
        return ANY if scalar is None else Number(scalar, *hull(a, b))
    if isinstance(a, ArrayType) and isinstance(b, ArrayType):
        # Arrays with different layouts unify to a type that describes both arrays.
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
    """Return an interval that contains both `a` and `b`.

    If neither contains the other, round the ends to powers of two, so that a counter's interval stops growing
    after a few steps.
    """
    if None in (a.low, b.low):
        return ()
    ends = low, high = min(a.low, b.low), max(a.high, b.high)
    if ends in ((a.low, a.high), (b.low, b.high)):
        return ends
    return (low and -(1 << (~low).bit_length()) if low < 0 else 0), max((1 << high.bit_length()) - 1, 0)


@functools.cache
def unify_scalars(a, b):
    """Return the common type of two scalar types, or None."""
    if a is b:
        return a
    if not {a, b} & COMPLEX:
        return promotion.unified(a, b)
    if bfloat16 in (a, b):
        return None
    return SCALAR[np.promote_types(*(np.int64 if scalar is int else scalar for scalar in (a, b))).type]


def element_type(dtype):
    """Return the type of an element loaded from an array of `dtype`."""
    if dtype.names is not None:
        return Record(dtype)
    if dtype.subdtype is not None:
        return View(element_type(dtype.base), len(dtype.shape))
    scalar = SCALAR.get(dtype.type)
    return ANY if scalar is None else INT32 if scalar is np.int32 else Number(scalar)


def field(type_, name):
    """Return the type of a record's field, or of a field's column in an array of records, or ANY for any
    other type."""
    if isinstance(type_, View):
        found = field(type_.element, name)
        return View(found, type_.rank) if isinstance(found, Number | Record) else ANY
    known = isinstance(type_, Record) and name in type_.dtype.names
    return element_type(type_.dtype[name]) if known else ANY


def type_of_argument(argument, value):
    """Return the type of a launch argument. `value` is the value that threads read.

    Its interval is rounded up to whole bytes, to limit the number of specialisations.
    """
    if argument.parts is not None:
        return tuple(map(type_of_argument, argument.parts, value))
    # Specialise on the sign of an np.int32, not on its value.
    if type(argument.value) is np.int32:
        return natural(np.int32, 31) if value >= 0 else INT32
    if isinstance(value, (np.int8, np.int16)):  # threads receive the numpy scalar itself
        return Number(type(value))
    type_ = type_of_value(value)
    few = -(-(bits(type_) or 0) // 8) * 8
    if bits(type_) is None:
        return type_
    return Number(int) if few > 40 else natural(int, few) if value >= 0 else signed(int, few)


def type_of_value(value):
    """Return the type of a literal, a global or free variable, or an argument that is not an integer."""
    if value is None:
        return NONE
    if isinstance(value, int) and not isinstance(value, bool):
        if not LOWEST <= value <= HIGHEST:
            return UINT64 if 0 <= value < 2**64 else ANY
        return Number(int, value, value) if value.bit_length() <= MOST_BITS else Number(int)
    if isinstance(value, NARROW_INTEGERS):  # The interpreter represents it as a Python int.
        return Number(type(value), int(value), int(value))
    if type(value) in SCALAR:
        return Number(SCALAR[type(value)])
    if isinstance(value, tuple):
        return tuple(map(type_of_value, value))
    if isinstance(value, np.ndarray):
        return type_of_constant_array(value)
    if isinstance(value, memory.Record):
        return Record(value._array.dtype)
    # This is one of the simulator's arrays whose accesses can be inlined.
    if hasattr(value, "allocation") and value.dtype.names is None and hasattr(value, "data"):
        size = value.dtype.itemsize
        return ArrayType(element_type(value.dtype), value.ndim, size, value.strides[-1] == size)
    if hasattr(value, "allocation"):
        return View(element_type(value.dtype), value.ndim)
    return ANY


def type_of_constant_array(array):
    """Return the type of a global array, which is copied to constant memory in row-major order."""
    fast = array.dtype.type in SCALAR and array.dtype.isnative and 1 <= array.ndim <= MAX_FAST_RANK
    if not (fast and array.size):
        return ANY
    return ArrayType(element_type(array.dtype), array.ndim, array.dtype.itemsize, shape=array.shape)


def widen(type_):
    """Return a type without its interval, for a version whose interval keeps growing."""
    if isinstance(type_, tuple):
        return tuple(map(widen, type_))
    return INT64 if isinstance(type_, Number) and type_.scalar is int else type_


def general(type_):
    """Return a more general argument type, so that few copies of a device function are necessary."""
    if not isinstance(type_, Number) or type_.bits is None or type_.scalar not in (int, np.int32):
        return type_
    few = next((few for few in (31, LONG) if type_.bits <= few), None)
    return Number(type_.scalar) if few is None else (natural if type_.low >= 0 else signed)(type_.scalar, few)


def item_type(type_, position):
    """Return the type of the element at `position` of a tuple or an array. If position is None, return a type
    to which every element belongs."""
    if type_ is UNKNOWN:
        return UNKNOWN
    if isinstance(type_, tuple) and isinstance(position, int):
        return type_[position] if -len(type_) <= position < len(type_) else ANY
    if isinstance(type_, tuple):
        alike = len({one.scalar if isinstance(one, Number) else one for one in type_}) == 1
        return functools.reduce(join, type_) if alike else ANY
    return row(type_) if isinstance(type_, ArrayType | View) else ANY


def row(array):
    """Return the type of `array[i]`."""
    if array.rank == 1:
        return array.element
    is_view, rank = isinstance(array, View), array.rank - 1
    return View(array.element, rank) if is_view else replace(array, rank=rank, shape=None)
