"""Entries for the builtins that compute with numbers: abs, max, min, round, and conversions such as int and
numpy.float32. `BUILTINS` contains the functions that the interpreter calls in place of the builtins.

Source: Numba's typing on CUDA, and its PTX; PTX ISA 9.7.3 (min, max).
"""

import itertools
from functools import reduce

import numpy as np
from ml_dtypes import bfloat16
from numpy import complex64, complex128, float32, float64, int8

from sim.isa import ieee, promotion
from sim.isa.conversions import cast, wrap
from sim.isa.functions import SAME, VALUE, Function, Version, identity
from sim.isa.operations import SOURCE, of_bool, wide
from sim.isa.promotion import COMPLEX, FLOATING, INTEGRAL, NARROW, PLAIN
from sim.isa.table import INSTRUCTIONS, entries_under

MASK = 2**64 - 1
QUARTER = 2**62  # the difference of two numbers between -QUARTER and QUARTER is an int64


def add_entry(name, semantics, rule, native=SAME, **more):
    """Add a builtin to the table, with the type rule `rule`."""
    Function(name, semantics, SOURCE, rule=rule, native=native, **more).add()


# --- the larger and the smaller -----------------------------------------------------------------------------


def second_if_larger(a, b):
    """Return b if it is larger, otherwise a. The comparison is false for NaN, so a NaN in `a` is returned."""
    return b if b > a else a


def second_if_smaller(a, b):
    """Return b if it is smaller, otherwise a. The comparison is false for NaN, so a NaN in `a` is
    returned."""
    return b if b < a else a


def of_extreme(of_floats=None):
    """Return the type rule of max or min.

    of_floats: the semantics for two float32 or float64 operands. Numba compiles these to PTX's max or min.
        Other types use the semantics of the entry.
    """

    def rule(a, b):
        scalar = promotion.unified(a, b)
        return scalar and Version((scalar, scalar), scalar, of_floats if {a, b} <= PLAIN else None)

    return rule


# --- conversions --------------------------------------------------------------------------------------------


def of_int(x):
    """Return the overload (Version) of int(x). An integer keeps its type. A float is truncated towards zero
    and saturates."""
    return None if x in COMPLEX else Version((x,), x if x in INTEGRAL - {bool} else int)


def text_or_number(x):
    """Return float(x) for a string such as "inf", or for a number."""
    return float64(x) if isinstance(x, str) else cast(float64)(x)


def of_float(x):
    """Return the overload (Version) of float(x). A float keeps its type, and any other real number becomes a
    float64."""
    return None if x in COMPLEX else Version((x,), x if x in FLOATING else float64)


def of_complex(x):
    """Return the overload (Version) of complex(x)."""
    return Version((x if x in COMPLEX | {float32} else float64,), complex64 if x is float32 else complex128)


def of_both_parts(real, imag):
    """Return the overload (Version) of complex(real, imag). The result is complex64 if both parts are
    float32, otherwise complex128."""
    part, whole = (float32, complex64) if real is imag is float32 else (float64, complex128)
    return None if {real, imag} & COMPLEX else Version((part, part), whole)


def of_dtype(scalar):
    """Return the type rule of a call such as numpy.float32(x). Only the complex types and bool accept a
    complex number."""

    def rule(x):
        if x in COMPLEX and scalar not in COMPLEX | {bool}:
            return None
        return Version((wide(x) if scalar is bool or scalar in COMPLEX else x,), scalar)

    return rule


# --- rounding -----------------------------------------------------------------------------------------------


def of_round(x):
    """Return the overload (Version) of round(x), which returns an int."""
    return None if x in COMPLEX else Version((float64,), int)


def of_round_to_digits(x, digits):
    """Return the overload (Version) of round(x, digits), which returns a float."""
    scalar = float32 if x in NARROW | FLOATING - {float64} else float64
    return None if {x, digits} & COMPLEX else Version((scalar, int), scalar)


# --- the absolute value ------------------------------------------------------------------------------------

# Operand type -> result type of abs, for the operand types whose result has another type.
MAGNITUDES = {bool: int8, bfloat16: float32, complex64: float32, complex128: float64}


def of_abs(x):
    """Return the overload (Version) of abs(x).

    The result has the type of x, except that it is int8 for a bool, float32 for a bfloat16, and a float for a
    complex number.
    """
    magnitude = MAGNITUDES.get(x, x)
    if x in COMPLEX:
        return Version((x,), magnitude, lambda z: hypot(z.real, z.imag), abs)
    return Version((magnitude if x is bool else wide(x),), magnitude)


hypot = ieee.of_two("hypot")

# --- the entries --------------------------------------------------------------------------------------------

add_entry("builtins.abs.1", abs, of_abs, ulps=1, otherwise=abs)
add_entry("builtins.max.2", second_if_larger, of_extreme(ieee.larger))
add_entry("builtins.min.2", second_if_smaller, of_extreme(ieee.smaller))
add_entry("builtins.int.1", identity, of_int, VALUE)
add_entry("builtins.float.1", identity, of_float, VALUE, otherwise=text_or_number)
add_entry("builtins.bool.1", bool, of_bool, otherwise=bool)
add_entry("builtins.complex.1", complex, of_complex, VALUE)
add_entry("builtins.complex.2", complex, of_both_parts)
add_entry("builtins.round.1", np.rint, of_round)
add_entry("builtins.round.2", ieee.rounded_to_digits, of_round_to_digits)
for _scalar in sorted(INTEGRAL | FLOATING | COMPLEX, key=str):
    _dtype = np.dtype(_scalar)
    add_entry(f"numpy.{_dtype.name}", cast(_dtype), of_dtype(_scalar), VALUE)

# --- functions called by the name of a builtin --------------------------------------------------------------


def dispatch_by_count(name):
    """Return a function that calls the builtin's one-argument or two-argument entry, by its number of
    arguments."""
    return lambda *given: INSTRUCTIONS[f"builtins.{name}.{len(given)}"].call(*given)


def fold_extreme(name, better):
    """Return the function for max or min.

    For two numbers, the function calls the table's entry, which follows PTX's rule for NaN. For more than two
    numbers, or the elements of a tuple, it compares one number after another with `better`, as Numba does.
    """
    of_two = INSTRUCTIONS[f"builtins.{name}.2"].call
    following = Function(name, better, SOURCE, rule=of_extreme()).call

    def chosen(a, b=None, *more):
        if b is None or more:
            return reduce(following, (a, b, *more) if more else a)
        return of_two(a, b)

    return chosen


def sum_(values, start=0):
    """Return the sum of the values and `start`. By default, `start` is 0, an int64."""
    return reduce(INSTRUCTIONS["operator.add"].call, values, start)


def range_(*bounds):
    """Return a range. Its bounds can be floats, because math.ceil returns a float in a kernel."""
    try:
        found = range(*bounds)
    except TypeError:
        found = range(*map(INSTRUCTIONS["builtins.int.1"].call, bounds))
    small = max(map(abs, (found.start, found.stop, found.step))) < QUARTER
    return (
        found if small else wrapped_range(found, all(isinstance(end, np.unsignedinteger) for end in bounds))
    )


def wrapped_range(given, unsigned):
    """Return the numbers that Numba's `range` yields.

    Numba computes `stop - start` as an int64. The loop is therefore empty if the difference overflows.
    """
    start, stop, step = given.start, wrap(given.stop), wrap(given.step)
    start = start & MASK if unsigned else wrap(start)
    numbers = range(start, start + wrap(stop - start), step)
    wraps = len(numbers) > 0 and wrap(numbers[-1]) != numbers[-1] and not (unsigned and numbers[-1] <= MASK)
    return map((lambda number: number & MASK) if unsigned else wrap, numbers) if wraps else numbers


def zip_(*items):
    """Return zip(*items) without loading the array element after the last pair. Python's zip would load it if
    an array is longer than the others; Numba's does not."""
    length = min((len(part) for part in items if hasattr(part, "__len__")), default=None)
    return zip(*(itertools.islice(part, length) for part in items))


# name of a builtin -> the function that the interpreter calls in its place
BUILTINS = {name.partition(".")[0]: entry.call for name, entry in entries_under("builtins").items()}
BUILTINS |= {name: dispatch_by_count(name) for name in ("complex", "round")}
BUILTINS |= {"max": fold_extreme("max", second_if_larger), "min": fold_extreme("min", second_if_smaller)}
BUILTINS |= {"range": range_, "sum": sum_, "zip": zip_}
