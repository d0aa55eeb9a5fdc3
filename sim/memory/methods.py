"""Array methods that process all elements in order, and compute with Numba's types.

These are sum, prod, mean, var, std, any, all, argmin, argmax, fill, item and flat. Each element counts as one
access.
"""

import itertools
import operator

import numpy as np

from sim.isa import operations
from sim.isa.conversions import cast

MAX_FAST_RANK = 5
add, sub, mul, div, power = (
    operations.INSTRUCTIONS[f"operator.{name}"].call for name in ("add", "sub", "mul", "truediv", "pow")
)


def wrap_reduction(method):
    """Wrap an array method that takes no arguments in kernels, so that it accepts the default arguments that
    functions such as `np.sum(x)` pass."""

    def of_all_elements(self, axis=None, dtype=None, out=None, ddof=0):
        if axis is not None or out is not None or ddof:
            raise TypeError(
                f"{method.__name__} does not accept axis, out or ddof in a kernel, because a kernel cannot"
                " create an array; it always uses all elements"
            )
        return method(self) if dtype is None else method(self, dtype)

    of_all_elements.__name__ = method.__name__
    return of_all_elements


def accumulator(dtype):
    """Return the conversion to the type in which Numba adds or multiplies elements of `dtype`."""
    return cast({"b": np.int64, "i": np.int64, "u": np.uint64}.get(dtype.kind, dtype))


class Methods:
    """The methods of an Array. The Array provides `name`, `shape`, `dtype`, `context`, loads and stores."""

    __slots__ = ()
    __hash__ = object.__hash__
    __array_ufunc__ = None  # makes numpy's scalars use the operators defined below

    def elements(self):
        """Yield the elements. Each element is loaded on demand."""
        site, load = self.context.sites.current("load"), self.context.load
        if 1 <= self.ndim <= MAX_FAST_RANK:
            return (load[self.ndim](self, *place, site) for place in np.ndindex(self.shape))
        return (self.load(place, site) for place in np.ndindex(self.shape))

    def folded(self, operation, start):
        """Combine the elements with `operation`, from the first to the last."""
        for value in self.elements():
            start = operation(start, value)
        return start

    @wrap_reduction
    def sum(self, dtype=None):
        # Each partial sum is converted, because Numba's accumulator has a fixed type.
        convert = accumulator(self.dtype) if dtype is None else cast(getattr(dtype, "dtype", dtype))
        return self.folded(lambda total, value: convert(add(total, value)), convert(0))

    @wrap_reduction
    def prod(self):
        return self.folded(mul, accumulator(self.dtype)(1))

    @wrap_reduction
    def mean(self):
        start = np.float64(0) if self.dtype.kind in "biu" else cast(self.dtype)(0)
        return div(self.folded(add, start), self.size)

    @wrap_reduction
    def var(self):
        mean = self.mean()
        away = (sub(value, mean) for value in self.elements())
        squares = (mul(value, np.conj(value)).real for value in away)
        return div(sum(squares, np.float64(0)), self.size)

    @wrap_reduction
    def std(self):
        return power(self.var(), np.float64(0.5))

    @wrap_reduction
    def any(self):
        return any(map(bool, self.elements()))

    @wrap_reduction
    def all(self):
        return all(map(bool, self.elements()))

    @wrap_reduction
    def argmin(self):
        return self.first(operator.lt)

    @wrap_reduction
    def argmax(self):
        return self.first(operator.gt)

    def first(self, better):
        """Return the position of the first NaN. If there is no NaN, return the position of the first element
        that is better than or equal to all others.

        better: the function (a, b) that returns whether a is better than b.
        """
        if not self.size:
            raise ValueError(f"{self.name} is empty, and so has no largest or smallest element")
        place = best = None
        for number, value in enumerate(self.elements()):
            if value != value:
                return number
            if place is None or better(value, best):
                place, best = number, value
        return place

    def fill(self, value):
        self.store_all(value, self.context.sites.current("store"))

    def item(self):
        if self.size != 1:
            raise ValueError(f"item() needs an array of one element, and {self.name} has {self.size}")
        return next(self.elements())

    @property
    def flat(self):
        return Flat(self)


SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "matmul": "@", "truediv": "/", "floordiv": "//", "mod": "%",
    "pow": "**", "lshift": "<<", "rshift": ">>", "and": "&", "or": "|", "xor": "^",
}  # fmt: skip
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
BEFORE = {"neg": "-", "pos": "+", "invert": "~"}


def of_elements(what, wanted):
    """Return a method that raises TypeError, for an operation on numbers that is applied to a whole array."""

    def refused(self, *others):
        if any(other is None or isinstance(other, str) for other in others):
            return NotImplemented
        given = f"{what} takes numbers in a kernel, but {self.name} is an array"
        if not self.ndim:
            raise TypeError(f"{given} without dimensions; wanted its element, {self.name}[()]")
        raise TypeError(f"{given}; wanted a loop, or an element per thread: {wanted}")

    return refused


for _name, _sign in (SIGNS | COMPARISONS).items():
    _refused = of_elements(_sign, f"out[i] = x[i] {_sign} y[i]")
    for _method in (_name,) if _name in COMPARISONS else (_name, f"r{_name}"):
        setattr(Methods, f"__{_method}__", _refused)
for _name, _sign in BEFORE.items():
    setattr(Methods, f"__{_name}__", of_elements(_sign, f"out[i] = {_sign}x[i]"))
Methods.__abs__ = of_elements("abs", "out[i] = abs(x[i])")
Methods.__float__ = of_elements("a function of one number", "out[i] = f(x[i])")


class Flat:
    """All elements of an array in row-major order (`array.flat`)."""

    def __init__(self, array):
        self.array = array

    def __len__(self):
        return self.array.size

    def __iter__(self):
        return self.array.elements()

    def __getitem__(self, number):
        return self.array.load(self.place(number), self.array.context.sites.current("load"))

    def __setitem__(self, number, value):
        self.array.store(self.place(number), value, self.array.context.sites.current("store"))

    def place(self, number):
        """Return the multi-dimensional index of element `number`. If the number is out of bounds, the index
        is also out of bounds."""
        behind = itertools.accumulate(self.array.shape[:0:-1], operator.mul, initial=1)
        sizes, rest = [*behind][::-1], operator.index(number)
        place = []
        for size in sizes:
            place.append(rest // size)
            rest %= size
        return tuple(place)
