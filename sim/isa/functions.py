"""Entries of what one thread does by itself: operators, functions of numbers, conversions.

A meaning takes one number for each operand and returns its result, a tuple if there are several. Integers
come as Python ints within their type's range, floats as numpy's; what is returned is converted to the type
of the result, so an integer wraps.
"""

import inspect
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from types import BuiltinFunctionType
from typing import NamedTuple

import numpy as np
from numpy import float32, float64, uint64

from sim.isa.conversions import cast, wrap
from sim.isa.promotion import COMPLEX, FLOATING, INTEGRAL, NARROW, PLAIN, SCALAR, UNSIGNED
from sim.isa.table import THREAD, Entry, number_dtype

SAME = "the meaning itself"
BITS = "the same bits, in the type of the result"
VALUE = "the same number, in the type of the result"


def same(x):
    """The meaning of a conversion whose operand has the type of the result."""
    return x


@dataclass(frozen=True)
class LLVM:
    """The LLVM intrinsic `name`, of its operands' type; `more`: (bits, value) of constants that follow
    them."""

    name: str
    more: tuple = ()

    def __call__(self, *operands):
        raise TypeError(f"llvm.{self.name} is for compiled code")


class Unassuming:
    """An integer itself, of which LLVM then supposes nothing: from the flag that Numba gives to `n + 1` it
    concludes that the sum is not the lowest integer."""

    def __call__(self, x):
        return x


UNASSUMING = Unassuming()


class Tabulated(list):
    """A plain function of a small integer by its results, which the interpreter looks up; compiled code calls
    the function."""

    def __init__(self, function, results):
        super().__init__(results)
        self.function = function

    __call__ = list.__getitem__
    __hash__ = object.__hash__


class Version(NamedTuple):
    """A Function for operands of certain types: to which types they are converted, those of the results, and
    its meaning and compiled form where they are not the entry's."""

    operands: tuple
    results: object
    meaning: object = None
    native: object = None


@dataclass(frozen=True, eq=False)
class Function(Entry):
    """What a thread computes from numbers alone.

    operands  the type of each operand, to which it is converted: a dtype
    results   the type of the result, or a tuple of types
    rule      in place of both, where they hang on what is given: (scalar type, ...) -> Version,
              or None where Numba has no such function
    native    what Numba compiles: SAME (the meaning), BITS, VALUE, LLVM, a plain function of the converted
              operands, or None where there is no compiled form
    ulps      by how many units in the last place that may differ from the meaning
    otherwise what the interpreter calls for what is no number
    """

    operands: tuple = ()
    results: object = None
    rule: object = None
    native: object = None
    ulps: int = 0
    otherwise: object = None
    scope = THREAD

    def named(self, *names, **more):
        """The entry with further names, and what `more` says of it; it takes this one's place."""
        return replace(self, also=(*self.also, *names), **more).enter()

    def version(self, *scalars):
        """The Version for operands of these scalar types; None where Numba has no such function."""
        found = self.rule(*scalars) if self.rule else Version(self.operands, self.results)
        if found is None:
            return None
        return Version(found[0], found[1], found.meaning or self.meaning, found.native or self.native)

    @property
    def count(self):
        """How many operands there are."""
        return self.rule.__code__.co_argcount if self.rule else len(self.operands)

    @cached_property
    def forms(self):
        """{types of numbers: the function of such that is called}."""
        return Forms(self)

    @cached_property
    def call(self):
        """What a kernel calls, interpreted: any numbers in, converted as Numba converts them."""
        forms = self.forms

        def of_one(x):
            return forms[type(x),](x)

        def of_two(x, y):
            return forms[type(x), type(y)](x, y)

        def of_more(*given, **named):
            if named:
                given = inspect.signature(self.meaning).bind(*given, **named).args
            return forms[*map(type, given)](*given)

        made = {1: of_one, 2: of_two}.get(self.count, of_more)
        made.__qualname__ = self.name  # Python names it where arguments are missing
        return made

    def __call__(self, *operands):
        return self.call(*operands)


class Forms(dict):
    """(type given, ...) -> the function of numbers of these types, made when first asked."""

    def __init__(self, entry):
        self.entry = entry

    def __missing__(self, given):
        entry, scalars = self.entry, [SCALAR.get(type_) for type_ in given]
        found = None if None in scalars else entry.version(*scalars)
        if None in scalars and entry.otherwise:
            self[given] = entry.otherwise
        elif found is None:
            names = " and ".join(type_.__name__ for type_ in given)
            raise TypeError(f"Numba's {entry.name} takes no {names}")
        else:
            self[given] = form(found, given)
            self[given].__qualname__ = entry.name  # Python names it where arguments are missing
        return self[given]


def form(version, given):
    """The meaning of a Version for numbers of these types, with those conversions that they need."""
    names = {"meaning": sized(version.meaning, version.operands), "result": to_result(version.results)}
    numbers = [f"x{place}" for place in range(len(version.operands))]
    taken = list(numbers)
    for place, types in enumerate(zip(given, version.operands)):
        if (convert := to_operand_from(*types)) is not None:
            names[f"convert{place}"], taken[place] = convert, f"convert{place}(x{place})"
    text = f"meaning({', '.join(taken)})"
    # Python's operators give floats of the type that they are given
    closed = isinstance(version.meaning, BuiltinFunctionType) and version.results in PLAIN
    if not (closed and {*version.operands} == {version.results}):
        names["wanted"] = version.results if version.results in FLOATING | {bool} else None
        text = f"found if type(found := {text}) is wanted else result(found)"
    return eval(f"lambda {', '.join(numbers)}: {text}", names)


def to_operand_from(given, scalar):
    """The conversion of a number of type `given` to an operand; None: it is one."""
    source = SCALAR[given]
    if given is scalar and scalar in FLOATING | COMPLEX | {bool, int}:
        return None
    widens = {int: INTEGRAL - {uint64}, float32: NARROW | FLOATING - {float64}, float64: INTEGRAL | FLOATING}
    if source in widens.get(scalar, ()):
        return scalar
    if scalar is int and source is uint64:
        return lambda x: wrap(int(x))
    grows = source in UNSIGNED and scalar in UNSIGNED and source(0).itemsize <= scalar(0).itemsize
    return int if grows else to_operand(scalar)


def sized(meaning, operands):
    """`meaning`, told how many `bits` the first operand has if it asks for that."""
    asks = getattr(getattr(meaning, "__code__", None), "co_kwonlyargcount", 0)
    return partial(meaning, bits=8 * np.dtype(operands[0]).itemsize) if asks else meaning


@cache
def to_operand(scalar):
    """The conversion of any number to an operand of this type."""
    dtype, convert = np.dtype(scalar), cast(scalar)
    return (lambda value: int(convert(value))) if dtype.kind == "u" else convert


@cache
def to_result(scalar):
    """The conversion of what a meaning returns; None: it has its type."""
    if scalar is None:
        return lambda value: value
    if isinstance(scalar, tuple):
        converts = [*map(to_result, scalar)]
        return lambda values: tuple(convert(value) for convert, value in zip(converts, values, strict=True))
    return cast(scalar)


def function(*, source, name=None, also=(), ptx=(), native=SAME, ulps=0, stands_for=None):
    """Enter a function into the table as what one thread computes; returns the Function, which kernels call.

    Its annotations are types, dtypes such as numpy.int8, also of the result (`->`; a tuple of dtypes if there
    are several). The interpreter calls it as it is, Numba compiles it as it is.

    source      where it is specified, such as a section of the PTX ISA
    name, also  what findings call it, by default the function's name; more names
    ptx         its names in PTX: a tuple
    native      what Numba compiles instead, which must give the same: a plain function, LLVM, or None
    ulps        by how many units in the last place that may differ
    stands_for  what kernels call instead, on a GPU

    Errors: ValueError for a name that another function has, or an operand or result without a dtype.
    """

    def enter(meaning):
        given = inspect.signature(meaning)
        annotations = [p.annotation for p in given.parameters.values()], given.return_annotation
        try:
            operands = tuple(map(number_dtype, annotations[0]))
            several = isinstance(annotations[1], tuple)
            results = tuple(map(number_dtype, annotations[1])) if several else number_dtype(annotations[1])
        except TypeError:
            raise ValueError(
                f"{meaning.__name__} has an operand or a result without a dtype; wanted one for each, such as"
                " (x: numpy.int32) -> numpy.int32"
            ) from None
        return Function(
            name or meaning.__name__,
            meaning,
            source,
            operands,
            results,
            native=native,
            ulps=ulps,
            also=also,
            ptx=ptx,
        ).offered(stands_for)

    return enter
