"""Entries for computations of a single thread: operators, mathematical functions, conversions.

The semantics is a plain function with one number per operand. It returns the result, or a tuple of results.
Integer operands are passed as Python ints within the range of their type, and floats as numpy scalars. The
entry converts the returned value to the result type, so an integer result wraps around.
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

# Compiled forms that need no separate function. SAME compiles the semantics unchanged, BITS reinterprets the
# bits of the operand, and VALUE converts the operand.
SAME = "the semantics itself"
BITS = "the same bits, in the type of the result"
VALUE = "the same number, in the type of the result"


def identity(x):
    """Return x. This is the semantics of conversions, because the entry converts the returned value to the
    result type."""
    return x


@dataclass(frozen=True)
class LLVM:
    """An LLVM intrinsic as a compiled form. It is overloaded on the type of the operands.

    name: the intrinsic's name.
    more: (number of bits, value) for each constant operand that follows the operands.
    """

    name: str
    more: tuple = ()

    def __call__(self, *operands):
        raise TypeError(f"llvm.{self.name} can be called only in compiled code")


class LookupTable(list):
    """A lookup table for a function of a small integer. The interpreter indexes the table, and compiled code
    calls the function."""

    def __init__(self, function, results):
        super().__init__(results)
        self.function = function

    __call__ = list.__getitem__
    __hash__ = object.__hash__


class Version(NamedTuple):
    """The overload of a Function for certain operand types.

    operands: the types to which the operands are converted.
    results: the type of the result, or a tuple of types.
    semantics, native: as in Function. If None, those of the entry are used.
    """

    operands: tuple
    results: object
    semantics: object = None
    native: object = None


@dataclass(frozen=True, eq=False)
class Function(Entry):
    """A numeric function that a single thread computes without accessing memory.

    operands: the dtype to which each operand is converted.
    results: the dtype of the result, or a tuple of dtypes.
    rule: a function that replaces `operands` and `results` if these depend on the types of the arguments. It
        maps the types to a Version, or to None if Numba does not support them.
    native: the compiled form: SAME, BITS, VALUE, LLVM, a plain function of the converted operands, or None.
    ulps: the maximum difference between the compiled form and the semantics, in units in the last place.
    otherwise: the function called by the interpreter for non-numeric values.
    """

    operands: tuple = ()
    results: object = None
    rule: object = None
    native: object = None
    ulps: int = 0
    otherwise: object = None
    scope = THREAD

    def add_names(self, *names, **more):
        """Add the entry under further names, with the attributes in `more` replaced. Return the new entry."""
        return replace(self, also=(*self.also, *names), **more).add()

    def version(self, *scalars):
        """Return the Version for these scalar types, or None if Numba does not support them."""
        found = self.rule(*scalars) if self.rule else Version(self.operands, self.results)
        if found is None:
            return None
        return Version(found[0], found[1], found.semantics or self.semantics, found.native or self.native)

    @property
    def count(self):
        """The number of operands."""
        return self.rule.__code__.co_argcount if self.rule else len(self.operands)

    @cached_property
    def forms(self):
        """The specialised functions, {types of the operands: function}."""
        return Forms(self)

    @cached_property
    def call(self):
        """The function called by an interpreted kernel. It accepts numbers of any type, and converts them as
        Numba does."""
        forms = self.forms

        def of_one(x):
            return forms[type(x),](x)

        def of_two(x, y):
            return forms[type(x), type(y)](x, y)

        def of_more(*given, **named):
            if named:
                # The names of the semantics' parameters determine the positions of keyword arguments.
                given = inspect.signature(self.semantics).bind(*given, **named).args
            return forms[*map(type, given)](*given)

        # Because this function has a fixed number of parameters, a call does not pack the arguments into a
        # tuple.
        made = {1: of_one, 2: of_two}.get(self.count, of_more)
        made.__qualname__ = self.name  # Python shows this name in the error for missing arguments
        return made

    def __call__(self, *operands):
        return self.call(*operands)


class Forms(dict):
    """A cache of specialised functions, {types of the operands: function}. It is filled on demand."""

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
            self[given] = make_form(found, given)
            self[
                given
            ].__qualname__ = entry.name  # so that Python's error for missing arguments shows this name
        return self[given]


def make_form(version, given):
    """Return the semantics, specialised for operands of the types `given`. Conversions without effect are
    omitted."""
    names = {
        "semantics": bind_width(version.semantics, version.operands),
        "result": to_result(version.results),
    }
    numbers = [f"x{place}" for place in range(len(version.operands))]
    taken = list(numbers)
    for place, types in enumerate(zip(given, version.operands)):
        if (convert := to_operand_from(*types)) is not None:
            names[f"convert{place}"], taken[place] = convert, f"convert{place}(x{place})"
    text = f"semantics({', '.join(taken)})"
    # Python's operators on numpy floats return the type of the operands, so the result needs no conversion.
    closed = isinstance(version.semantics, BuiltinFunctionType) and version.results in PLAIN
    if not (closed and {*version.operands} == {version.results}):
        names["wanted"] = version.results if version.results in FLOATING | {bool} else None
        # Most results have the wanted type already, and a comparison of types is faster than a conversion.
        text = f"found if type(found := {text}) is wanted else result(found)"
    return eval(f"lambda {', '.join(numbers)}: {text}", names)


def to_operand_from(given, scalar):
    """Return the conversion of a number from the type `given` to the operand type `scalar`, or None if none
    is needed."""
    source = SCALAR[given]
    if given is scalar and scalar in FLOATING | COMPLEX | {bool, int}:
        return None
    # {operand type: source types} for the exact conversions, for which a call of the scalar type suffices.
    widens = {int: INTEGRAL - {uint64}, float32: NARROW | FLOATING - {float64}, float64: INTEGRAL | FLOATING}
    if source in widens.get(scalar, ()):
        return scalar
    if scalar is int and source is uint64:
        return lambda x: wrap(int(x))
    # Widening an unsigned operand keeps its value, so int() suffices.
    grows = source in UNSIGNED and scalar in UNSIGNED and source(0).itemsize <= scalar(0).itemsize
    return int if grows else to_operand(scalar)


def bind_width(semantics, operands):
    """Return `semantics` with its keyword-only parameter `bits` set to the width of the first operand, if it
    has this parameter."""
    asks = getattr(getattr(semantics, "__code__", None), "co_kwonlyargcount", 0)
    return partial(semantics, bits=8 * np.dtype(operands[0]).itemsize) if asks else semantics


@cache
def to_operand(scalar):
    """Return the conversion of a number of any type to the operand type `scalar`. An unsigned operand becomes
    a Python int."""
    dtype, convert = np.dtype(scalar), cast(scalar)
    return (lambda value: int(convert(value))) if dtype.kind == "u" else convert


@cache
def to_result(scalar):
    """Return the function that converts the semantics' return value to the result type, or to a tuple of
    result types."""
    if scalar is None:
        return lambda value: value
    if isinstance(scalar, tuple):
        converts = [*map(to_result, scalar)]
        return lambda values: tuple(convert(value) for convert, value in zip(converts, values, strict=True))
    return cast(scalar)


def function(*, source, name=None, also=(), ptx=(), native=SAME, ulps=0, replaces=None):
    """Return a decorator that adds a function to the table, as a computation of a single thread.

    The decorator returns the Function, to be called by kernels. Annotations are dtypes such as numpy.int8,
    for each operand and for the result (`->`, with a tuple of dtypes for several results). The interpreter
    calls the function unchanged, and Numba compiles it unchanged.

    source: the specification, such as a section of the PTX ISA.
    name: the name shown in findings. By default, it is the function's name.
    also: further names.
    ptx: a tuple of its PTX names.
    native: a compiled form with the same results: a plain function, LLVM, or None.
    ulps: the maximum difference between this form and the semantics, in units in the last place.
    replaces: the object called by kernels on a GPU.

    Raise ValueError if the name belongs to another function, or if an operand or result has no dtype.
    """

    def add_entry(semantics):
        given = inspect.signature(semantics)
        annotations = [p.annotation for p in given.parameters.values()], given.return_annotation
        try:
            operands = tuple(map(number_dtype, annotations[0]))
            several = isinstance(annotations[1], tuple)
            results = tuple(map(number_dtype, annotations[1])) if several else number_dtype(annotations[1])
        except TypeError:
            raise ValueError(
                f"{semantics.__name__} has an operand or a result without a dtype; wanted one for each, such"
                " as (x: numpy.int32) -> numpy.int32"
            ) from None
        return Function(
            name or semantics.__name__,
            semantics,
            source,
            operands,
            results,
            native=native,
            ulps=ulps,
            also=also,
            ptx=ptx,
        ).expose(replaces)

    return add_entry
