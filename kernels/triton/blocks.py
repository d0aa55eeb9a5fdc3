"""The subset of Triton's language that the course uses, in NumPy: tiles, pointers into counted arrays, and
`tl`.

It rejects what Triton rejects: a tile cannot be indexed, used as a truth value or passed to NumPy, and its
sizes are powers of two. Values that are undefined in Triton are poisoned: a masked load without `other`
returns NaN.
"""

import functools
import math
import operator

import numpy as np

from kernels.triton.counted_array import Found

POISON = {"f": np.nan, "i": -(2**30), "b": False}
NO_TRUTH = "a tile has no truth: in place of and, or, not, if use &, |, ~ (with brackets), tl.where"
NO_INDEX = "a tile has no index: its new axes are tile[:, None] and tile[None, :], and nothing else"


class Tile:
    """A value in a program: a scalar or an array of float32, int32, int64 or bool."""

    __array_ufunc__ = None  # NumPy functions raise TypeError for a Tile

    def __init__(self, values):
        # Triton computes in float32 where NumPy would promote to float64
        values = np.asarray(values)
        self.values = values.astype(np.float32) if values.dtype == np.float64 else values

    shape = property(lambda self: self.values.shape)
    dtype = property(lambda self: self.values.dtype)
    T = property(lambda self: Tile(self.values.T))

    def to(self, dtype):
        return Tile(self.values.astype(dtype))

    def __getitem__(self, places):
        places = places if isinstance(places, tuple) else (places,)
        if not all(place is None or place == slice(None) for place in places):
            raise TypeError(NO_INDEX)
        return type(self).like(self, self.values[places])

    def like(self, values):
        return Tile(values)

    def __setitem__(self, place, value):
        raise TypeError("a tile is a value: no part of it can be assigned; tl.where makes another tile")

    def __bool__(self):
        if self.values.ndim:
            raise TypeError(NO_TRUTH)
        return bool(self.values)

    def __index__(self):
        if self.values.ndim or self.values.dtype.kind != "i":
            raise TypeError("a whole number is wanted, and this is a tile")
        return int(self.values)

    def __array__(self, *_, **__):
        raise TypeError("numpy and PyTorch cannot see a tile: a kernel has tl's functions alone")

    def __getattr__(self, name):
        """Return the function of tl with this name as a method of the tile."""
        if name.startswith("_") or not hasattr(Language, name):
            raise AttributeError(f"this interpreter knows no .{name} of a tile")
        return functools.partial(getattr(NO_LAUNCH, name), self)

    def __repr__(self):
        return f"{self.shape or 'one'} {self.dtype}"

    def __str__(self):
        return str(self.values)

    __neg__ = lambda self: Tile(-self.values)  # noqa: E731
    __invert__ = lambda self: Tile(~self.values)  # noqa: E731
    __hash__ = None


class Pointer(Tile):
    """Pointers to elements of an array in global memory, such as x + i."""

    def __init__(self, array, at):
        self.array, self.values = array, at

    def like(self, values):
        return Pointer(self.array, values)

    def __repr__(self):
        return f"{self.shape or ''} pointer to {self.array.name}".strip()

    __str__ = __repr__


def values_of(x):
    """Return the NumPy value of an operand. A Python number takes the dtype of the other operand."""
    if isinstance(x, Tile):
        return x.values
    if isinstance(x, (bool, int, float)):
        return x
    raise TypeError(f"{x!r} is neither a number nor a tile")


def elementwise(function, *operands):
    """Return function(*operands) as a Tile, with NumPy's broadcasting."""
    try:
        with np.errstate(all="ignore"):
            return Tile(function(*map(values_of, operands)))
    except ValueError:
        shapes = " and ".join(str(np.shape(values_of(x))) for x in operands)
        raise TypeError(f"tiles of the shapes {shapes} do not fit each other: tile[:, None]?") from None


def quotient(a, b):
    """Divide integers as C does, rounding towards 0."""
    a, b = (np.asarray(x, np.result_type(a, b)) for x in (a, b))
    return np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))


def remainder(a, b):
    return a - quotient(a, b) * b


def binary(function):
    def method(self, other):
        # pointer arithmetic: offsets are in elements
        if isinstance(self, Pointer) or isinstance(other, Pointer):
            pointer, offset = (self, other) if isinstance(self, Pointer) else (other, self)
            if isinstance(offset, Pointer) or function not in (operator.add, operator.sub):
                raise TypeError("only whole numbers can be added to a pointer")
            return pointer.like(elementwise(function, Tile(pointer.values), offset).values)
        return elementwise(function, self, other)

    return method


NAMES = "add sub mul truediv lt le gt ge eq ne and_ or_ xor".split()
OPERATORS = {name.strip("_"): getattr(operator, name) for name in NAMES}
for name, function in (OPERATORS | {"floordiv": quotient, "mod": remainder}).items():
    setattr(Tile, f"__{name}__", binary(function))
    setattr(Tile, f"__r{name}__", lambda self, other, way=binary(function): way(other, self))


def constant(value, what):
    """Return a value that must be known at compile time; raise TypeError for a Tile."""
    if isinstance(value, Tile):
        raise TypeError(f"{what} must be known when the kernel is compiled: a tl.constexpr, or a number")
    return value


def unit(size, what="a tile's side"):
    """Return the size of a tile; raise TypeError unless it is a compile-time power of two."""
    if constant(size, what) < 1 or size & (size - 1):
        raise TypeError(f"{what} must be a power of two, and not {size}")
    return size


def refuse_unknown(given, names, function):
    """Raise TypeError for an argument that `function` lacks. `names`: arguments that are accepted and
    ignored."""
    if unknown := sorted(set(given) - names):
        raise TypeError(f"{function} has no argument {unknown[0]}")


HINTS = {"boundary_check", "padding_option", "cache_modifier", "eviction_policy", "volatile"}


def sides(shape):
    return tuple(map(unit, shape if isinstance(shape, (tuple, list)) else (shape,)))


def to_tf32(x):
    """Round float32 to TF32, as tensor cores do: an 11-bit significand, ties to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.int32)
    return ((bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFF).view(np.float32)


class Language:
    """The object `tl` of one launch.

    grid: the number of programs in each dimension. number and place: the index and coordinates of the current
        program.
    """

    float32, int32, int64, int1 = np.float32, np.int32, np.int64, np.bool_
    constexpr = staticmethod(lambda value: value)
    math = property(lambda self: self)

    def __init__(self, grid):
        self.grid, self.place, self.number = grid, (0, 0, 0), 0

    def __getattr__(self, name):
        raise TypeError(
            f"this interpreter does not know tl.{name}; kernels/triton/blocks.py lists what it knows"
        )

    def program_id(self, axis):
        return Tile(np.int32(self.place[axis]))

    def num_programs(self, axis):
        return Tile(np.int32(self.grid[axis]))

    def starts(self, number):
        """Make program `number` the current one."""
        self.number, self.place = number, np.unravel_index(number, self.grid[::-1])[::-1]

    def named(self, number):
        """Return a program's index, or its coordinates in a grid of several dimensions, as text."""
        place = np.unravel_index(number, self.grid[::-1])[::-1]
        return str(number) if max(self.grid[1:]) == 1 else f"({', '.join(map(str, place))})"

    # memory

    def places(self, pointer, mask, *others):
        """Return (flat positions, mask, other values), broadcast to one shape."""
        if not isinstance(pointer, Pointer):
            raise TypeError("a pointer is wanted: the array's name plus whole numbers")
        mask = True if mask is None else values_of(mask)
        at, mask, *others = np.broadcast_arrays(pointer.values, mask, *map(values_of, others))
        if at.shape != pointer.shape:
            raise TypeError(f"the pointer has the shape {pointer.shape}, and the mask or value {at.shape}")
        return at, mask.astype(bool), *others

    def load(self, pointer, mask=None, other=None, **hints):
        refuse_unknown(hints, HINTS, "tl.load")
        kind = pointer.array.numbers.dtype if isinstance(pointer, Pointer) else np.dtype(np.float32)
        at, mask, other = self.places(pointer, mask, POISON[kind.kind] if other is None else other)
        pointer.array.touch("loads", at, mask, self)
        # only unmasked elements are read
        found = np.array(other, kind)
        found[mask] = pointer.array.numbers[at[mask]]
        return Tile(found)

    def store(self, pointer, value, mask=None, **hints):
        refuse_unknown(hints, HINTS, "tl.store")
        at, mask, value = self.places(pointer, mask, value)
        pointer.array.touch("stores", at, mask, self)
        at, value = at[mask], value[mask].astype(pointer.array.numbers.dtype)
        numbers = pointer.array.numbers
        numbers[at] = value
        clash = at[~((numbers[at] == value) | np.isnan(value))]
        if clash.size:
            does = f"stores two different numbers of one tile to {pointer.array.element(clash[0])}"
            raise Found("race within a program", does, "tl.sum first, or tl.atomic_add.")

    def atomic_add(self, pointer, value, mask=None, **hints):
        refuse_unknown(hints, {"sem", "scope"}, "tl.atomic_add")
        at, mask, value = self.places(pointer, mask, value)
        pointer.array.touch("atomics", at, mask, self)
        before = np.zeros(at.shape, pointer.array.numbers.dtype)
        before[mask] = pointer.array.numbers[at[mask]]
        np.add.at(pointer.array.numbers, at[mask], value[mask])
        return Tile(before)

    def debug_barrier(self):
        """Do nothing: a program runs as a single thread here."""

    # creation of tiles

    def arange(self, start, end):
        unit(end - start if not isinstance(start, Tile) else start, "a range's length")
        return Tile(np.arange(start, end, dtype=np.int32))

    def full(self, shape, value, dtype):
        return Tile(np.full(sides(shape), values_of(value), dtype))

    def zeros(self, shape, dtype):
        return self.full(shape, 0, dtype)

    def zeros_like(self, x):
        return Tile(np.zeros_like(x.values))

    def broadcast_to(self, x, *shape):
        return Tile(np.broadcast_to(x.values, sides(shape[0] if len(shape) == 1 else shape)))

    def expand_dims(self, x, axis):
        return x.like(np.expand_dims(x.values, axis))

    def trans(self, x, *axes):
        return self.permute(x, *axes) if axes else x.T

    def permute(self, x, *axes):
        return x.like(np.transpose(x.values, axes[0] if len(axes) == 1 else axes))

    def reshape(self, x, *shape, can_reorder=False):
        shape = sides(shape[0] if len(shape) == 1 else shape)
        if math.prod(shape) != x.values.size:
            raise TypeError(f"tl.reshape of {x.shape} to {shape}: the numbers of elements differ")
        return x.like(x.values.reshape(shape))

    def gather(self, x, index, axis):
        return Tile(np.take_along_axis(x.values, index.values, axis))

    def dot(self, a, b, acc=None, input_precision=None, allow_tf32=None, out_dtype=None):
        """Return the product of two matrices.

        The operands are rounded to 11 bits, unless input_precision is "ieee". "tf32x3" splits each operand
        into two 11-bit parts.
        """
        precision = input_precision or ("ieee" if allow_tf32 is False else "tf32")
        if precision not in ("ieee", "tf32", "tf32x3"):
            raise TypeError(f"input_precision is ieee, tf32 or tf32x3, and not {precision!r}")
        a, b = a.values, b.values
        if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0] or a.shape[1] < 16:
            raise TypeError(f"tl.dot of {a.shape} and {b.shape}: (m, k) times (k, n), with k at least 16")
        with np.errstate(all="ignore"):
            if precision == "ieee":
                product = Tile(a @ b)
            else:
                (a, a_rest), (b, b_rest) = ((to_tf32(x), to_tf32(x - to_tf32(x))) for x in (a, b))
                product = Tile(a @ b if precision == "tf32" else a @ b_rest + a_rest @ b + a @ b)
        return product if acc is None else acc + product

    # numbers

    def where(self, condition, x, y):
        return elementwise(np.where, condition, x, y)

    def maximum(self, x, y):
        return elementwise(np.fmax, x, y)

    def minimum(self, x, y):
        return elementwise(np.fmin, x, y)

    def max(self, x, axis=None, keep_dims=False):
        return self.reduced(np.fmax, x, axis, keep_dims)

    def min(self, x, axis=None, keep_dims=False):
        return self.reduced(np.fmin, x, axis, keep_dims)

    def sum(self, x, axis=None, keep_dims=False):
        return self.reduced(np.add, x, axis, keep_dims)

    def reduced(self, function, x, axis, keep_dims):
        values = x.values.astype(np.int32) if x.dtype == bool else x.values
        with np.errstate(all="ignore"):
            made = function.reduce(values, axis=axis, keepdims=keep_dims, dtype=values.dtype)
        return Tile(made)

    def fma(self, x, y, z):
        return x * y + z

    def fdiv(self, x, y, ieee_rounding=False):
        return x / y

    def cdiv(self, a, b):
        return -(-a // b) if not isinstance(a, Tile) else (a + (b - 1)) // b

    def range(self, *bounds, **_):
        return range(*map(operator.index, bounds))

    def static_range(self, *bounds):
        return range(*(constant(bound, "a bound of tl.static_range") for bound in bounds))

    multiple_of = max_contiguous = staticmethod(lambda x, _: x)
    device_print = staticmethod(print)


NO_LAUNCH = Language((1, 1, 1))  # implements the methods of tiles


def of_numpy(function):
    return lambda self, x: elementwise(function, x)


for name in ("exp", "exp2", "log", "log2", "sqrt", "abs", "sin", "cos", "floor", "ceil"):
    setattr(Language, name, of_numpy(getattr(np, name)))
