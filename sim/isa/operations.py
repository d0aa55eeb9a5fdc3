"""Entries for Python's operators and number builtins, with Numba's types, their semantics and their
compiled forms.

Halves are computed in float64 and rounded to the half type. For sums, products and quotients this yields
the correctly rounded half, because float64's 53-bit significand is longer than twice the half's 11 bits
plus two (Figueroa, "When is double rounding innocuous?", 1995).

Semantics that only the interpreter calls are in `sim.isa.operators`.

Source: Numba's typing on CUDA and the PTX that it emits; PTX ISA 9.7.1 to 9.7.8.
"""

import math
import operator
from functools import partial, reduce

import numpy as np
from ml_dtypes import bfloat16
from numpy import complex64, complex128, float32, float64, int8, int64, uint32, uint64

from sim.isa import floored, ieee, promotion
from sim.isa.conversions import HIGHEST, LOWEST, cast, wrap
from sim.isa.functions import OPAQUE_IDENTITY, SAME, VALUE, Function, Version, identity
from sim.isa.operators import (
    BY_WAY_OF_FLOAT64,
    complex_quotient,
    ieee_power,
    int_power,
    multiply_repeatedly,
    quick_or_exact,
)
from sim.isa.promotion import COMPLEX, FLOATING, HALVES, INTEGRAL, NARROW, PLAIN, UNSIGNED
from sim.isa.table import INSTRUCTIONS, entries_under

SOURCE = "Numba's typing on CUDA; PTX ISA 9.7"


def add_entry(name, semantics, rule, native=SAME, **more):
    """Add a builtin to the table, with the type rule `rule`."""
    Function(name, semantics, SOURCE, rule=rule, native=native, **more).add()


def wide(scalar):
    """Return the type in which values of this type are computed: float64 for a half, otherwise the type
    itself."""
    return float64 if scalar in HALVES else scalar


def both(rule, native=(), implementations=()):
    """Return the type rule of a binary operator that converts both operands to the result type.

    rule: the function (type of a, type of b) -> result type, or None.
    native: {result type: compiled form}, where it is not the operator itself.
    implementations: {result type: semantics}; by default the compiled form.
    """

    def version(a, b):
        scalar = rule(a, b)
        if scalar is None:
            return None
        own = dict(native).get(scalar)
        return Version((wide(scalar),) * 2, scalar, dict(implementations).get(scalar, own), own)

    return version


# --- integers -----------------------------------------------------------------------------------------------


def signed_quotient(a, b):
    """Return a // b. The result is 0 for b = 0, and for LOWEST // -1, which raises an exception on x86."""
    if b == 0:
        return 0
    if b == -1:
        # Without the opaque identity, LLVM may remove the test if `a` is a sum (see OpaqueIdentity).
        return 0 if OPAQUE_IDENTITY(a) == LOWEST else -a
    return a // b


def unsigned_quotient(a, b):
    """Return a // b, or 0 if b is 0."""
    # `b` rather than a literal 0, which Numba would unify with uint64 to float64.
    return b if b == 0 else a // b


def signed_remainder(a, b):
    """Return a % b with Python's sign, or 0 if b is 0. The remainder by -1 is 0, without dividing LOWEST by
    -1."""
    return 0 if b == 0 or b == -1 else a % b


def unsigned_remainder(a, b):
    """Return a % b, or 0 if b is 0."""
    # `b` for the same reason as in unsigned_quotient
    return b if b == 0 else a % b


def shifted_left(a, count):
    """Return a shifted left by the unsigned 32-bit count. Counts of 64 or more return 0 (PTX ISA 9.7.8,
    `shl`)."""
    # a - a is a zero of a's type.
    return a << count if count < 64 else a - a


def shifted_right(a, count):
    """Return a shifted right by the unsigned 32-bit count. Counts of 64 or more leave only the sign (PTX
    ISA 9.7.8, `shr`)."""
    # A single shift by 64 is undefined in LLVM.
    return a >> count if count < 64 else a >> 63 >> 1


def of_shift(a, b):
    """Return the overload (Version) of a << b and a >> b."""
    scalar = promotion.shift(a, b)
    return scalar and Version((scalar, uint32), scalar)


# result type -> compiled form
QUOTIENT = {int: signed_quotient, uint64: unsigned_quotient} | dict.fromkeys(PLAIN, floored.quotient)
REMAINDER = {int: signed_remainder, uint64: unsigned_remainder} | dict.fromkeys(PLAIN, floored.remainder)

# Interpreted // and % of floats. quick_or_exact uses numpy's result where it is certain to be correct.
INTERPRETED = {
    name: dict.fromkeys(PLAIN, quick_or_exact(getattr(operator, name), exact))
    for name, exact in (("floordiv", floored.quotient), ("mod", floored.remainder))
}


def pair_results(quotient, remainder):
    """Return a function that returns the pair of both functions' results."""
    return lambda a, b: (quotient(a, b), remainder(a, b))


def of_divmod(a, b):
    """Return the overload (Version) of divmod(a, b)."""
    scalar = promotion.quotient_and_remainder(a, b)
    if scalar is None:
        return None
    interpreted = [INSTRUCTIONS[f"operator.{name}"].call for name in ("floordiv", "mod")]
    native = pair_results(QUOTIENT[scalar], REMAINDER[scalar])
    return Version((scalar, scalar), (scalar, scalar), pair_results(*interpreted), native)


def make_power(one):
    """Return a function (x, n) -> x to the power |n|, by repeated squaring in the type of `one`."""

    def product_of(x, n):
        product, rest = one, abs(int64(n))
        while rest != 0:
            if rest & 1:
                product = product * x
            rest >>= 1
            x = x * x
        return product

    return product_of


def is_far(n):
    """Return whether the exponent is so large that Numba calls pow on two floats instead of multiplying
    repeatedly."""
    return n > 0x10000 or n < -0x10000


def float_power(one):
    """Return the compiled form of a float to an integer power. `one`: 1 in the type of the base."""
    product_of = make_power(one)

    def power(x, n):
        if is_far(n):
            return math.pow(float64(x), float64(n))
        product = float64(product_of(x, n))
        return 1.0 / product if n < 0 else product

    return power


def saturated(x):
    """Return a float as an int64, saturated."""
    return HIGHEST if x >= 2.0**63 else LOWEST if x <= -(2.0**63) else int64(x)


signed_product, unsigned_product = make_power(int64(1)), make_power(uint64(1))


def signed_power(x, n):
    """Return x ** n modulo 2**64. Negative exponents follow Numba: 0 ** -n is LOWEST; other bases except 1
    and -1 return 0."""
    if n < 0 and x == 0:
        return LOWEST
    if n < 0 and x != 1 and x + 1 != 0:
        return 0
    return saturated(math.pow(float64(x), float64(n))) if is_far(n) else signed_product(x, n)


def unsigned_power(x, n):
    """Return x ** n modulo 2**64, or the maximum uint64 if the exponent is very large."""
    if n > 0x10000:
        return x if x < 2 else ~uint64(0)
    return unsigned_product(x, n)


def rounded(power):
    """Return `power` with its result rounded to float64, as Numba does on Python 3.11 and older (see
    operators.BY_WAY_OF_FLOAT64)."""
    return lambda x, n: float64(power(x, n))


# type of an integer base -> compiled form of **
EXACT = {int: signed_power, uint64: unsigned_power}
ROUNDED = {scalar: rounded(power) for scalar, power in EXACT.items()}
POWERS = {float32: float_power(float32(1)), float64: float_power(float64(1))} | (
    ROUNDED if BY_WAY_OF_FLOAT64 else EXACT
)


def of_power(a, b):
    """Return the overload (Version) of a ** b. A power with an integer exponent is computed by repeated
    multiplication, any other by pow."""
    scalar = promotion.exponentiation(a, b)
    if scalar in POWERS and b in INTEGRAL:
        semantics = multiply_repeatedly if scalar in FLOATING else partial(int_power, scalar=scalar)
        return Version((scalar, uint64 if b is uint64 else int), scalar, semantics, POWERS[scalar])
    return scalar and Version(
        (scalar, scalar), scalar, None if scalar in COMPLEX else ieee_power, operator.pow
    )


# --- the larger and the smaller -----------------------------------------------------------------------------


def second_if_larger(a, b):
    """Return b if it is larger, else a. A NaN in `a` is returned."""
    return b if b > a else a


def second_if_smaller(a, b):
    """Return b if it is smaller, else a. A NaN in `a` is returned."""
    return b if b < a else a


def of_extreme(of_floats=None):
    """Return the type rule of max or min.

    of_floats: the semantics for two float32 or float64 operands, which Numba compiles to PTX's max or min.
        Other types use the entry's semantics.
    """

    def rule(a, b):
        scalar = promotion.unified(a, b)
        return scalar and Version((scalar, scalar), scalar, of_floats if {a, b} <= PLAIN else None)

    return rule


# --- conversions --------------------------------------------------------------------------------------------


def of_int(x):
    """Return the overload (Version) of int(x). An integer keeps its type; a float is truncated towards zero
    and saturated."""
    return None if x in COMPLEX else Version((x,), x if x in INTEGRAL - {bool} else int)


def text_or_number(x):
    """Return float(x) for a string such as "inf", or for a number."""
    return float64(x) if isinstance(x, str) else cast(float64)(x)


def of_float(x):
    """Return the overload (Version) of float(x). A float keeps its type; any other real number becomes a
    float64."""
    return None if x in COMPLEX else Version((x,), x if x in FLOATING else float64)


def of_bool(x):
    """Return the overload (Version) of bool(x)."""
    return Version((wide(x),), bool)


def of_complex(x):
    """Return the overload (Version) of complex(x)."""
    return Version((x if x in COMPLEX | {float32} else float64,), complex64 if x is float32 else complex128)


def of_both_parts(real, imag):
    """Return the overload (Version) of complex(real, imag): complex64 if both parts are float32, else
    complex128."""
    part, whole = (float32, complex64) if real is imag is float32 else (float64, complex128)
    return None if {real, imag} & COMPLEX else Version((part, part), whole)


def of_dtype(scalar):
    """Return the type rule of a call such as numpy.float32(x). Only complex and bool types accept a complex
    number."""

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


# --- one operand --------------------------------------------------------------------------------------------


def own_width_rule(operation):
    """Return the type rule of a unary operator. Integers are computed in their own width, and the result is
    widened to 64 bits."""

    def rule(x):
        if x not in INTEGRAL:
            return Version((wide(x),), x) if operation is not operator.invert else None
        # ~x of a bool is `not x`; -x and +x of a bool are int64.
        if x is bool:
            return (
                Version((bool,), bool, operator.not_)
                if operation is operator.invert
                else Version((int,), int)
            )
        bits = 8 * np.dtype(x).itemsize
        if x in UNSIGNED:
            # -uint8(1) is 255 and ~uint32(1) is 2**32 - 2: the result wraps in the narrow type first.
            return Version((x,), uint64, lambda a: operation(a) & (1 << bits) - 1, operation)
        # -(-128) is -128 for an int8.
        return Version((x,), int, lambda a: wrap(operation(a), bits), operation)

    return rule


# operand type -> result type of abs, where they differ
MAGNITUDES = {bool: int8, bfloat16: float32, complex64: float32, complex128: float64}


def of_abs(x):
    """Return the overload (Version) of abs(x). The result has x's type, but int8 for a bool, float32 for a
    bfloat16 and a float for a complex number."""
    magnitude = MAGNITUDES.get(x, x)
    if x in COMPLEX:
        return Version((x,), magnitude, lambda z: hypot(z.real, z.imag), abs)
    return Version((magnitude if x is bool else wide(x),), magnitude)


hypot = ieee.of_two("hypot")

# --- the entries --------------------------------------------------------------------------------------------


def of_equality(a, b):
    """Return the overload (Version) of == and !=."""
    scalar = promotion.comparison(a, b)
    return scalar and Version((wide(scalar),) * 2, bool)


def of_order(a, b):
    """Return the overload (Version) of <, <=, > and >=, which are not defined for complex numbers."""
    return None if {a, b} & COMPLEX else of_equality(a, b)


RULES = {
    **dict.fromkeys(("add", "sub", "mul"), both(promotion.arithmetic)),
    "truediv": both(
        promotion.division, dict.fromkeys(COMPLEX, operator.truediv), dict.fromkeys(COMPLEX, complex_quotient)
    ),
    "floordiv": both(promotion.real_division, QUOTIENT, INTERPRETED["floordiv"]),
    "mod": both(promotion.real_division, REMAINDER, INTERPRETED["mod"]),
    **dict.fromkeys(("and_", "or_", "xor"), both(promotion.bitwise)),
    **dict.fromkeys(("lshift", "rshift"), of_shift),
    **dict.fromkeys(("eq", "ne"), of_equality),
    **dict.fromkeys(("lt", "le", "gt", "ge"), of_order),
    "not_": of_bool,
    **{
        operation.__name__: own_width_rule(operation)
        for operation in (operator.neg, operator.pos, operator.invert)
    },
}
SEMANTICS = {"lshift": shifted_left, "rshift": shifted_right}


def add_operator(name, python, rule, **more):
    """Add an operator and return its entry. `python`: Python's operator, which the interpreter applies to
    values that are not numbers."""
    more = {"native": SAME, "rule": rule, "otherwise": python} | more
    return Function(name, SEMANTICS.get(python.__name__, python), SOURCE, **more).add()


for _name, _rule in RULES.items():
    add_operator(f"operator.{_name}", getattr(operator, _name), _rule).stands_for(getattr(operator, _name))
_power = add_operator("operator.pow", operator.pow, of_power, ulps=ieee.ULPS, also=("builtins.pow.2",))
_power.stands_for(operator.pow)
add_operator("builtins.divmod.2", divmod, of_divmod)
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

# --- what the interpreter calls by the name of a builtin ----------------------------------------------------


def dispatch_by_count(name):
    """Return the builtin that accepts one or two numbers."""
    return lambda *given: INSTRUCTIONS[f"builtins.{name}.{len(given)}"].call(*given)


def fold_extreme(name, better):
    """Return max or min. Two numbers use the entry, with PTX's rule for NaN. More numbers, or a tuple, are
    compared one after another with `better`, as in Numba."""
    of_two = INSTRUCTIONS[f"builtins.{name}.2"].call
    following = Function(name, better, SOURCE, rule=of_extreme()).call

    def chosen(a, b=None, *more):
        if b is None or more:
            return reduce(following, (a, b, *more) if more else a)
        return of_two(a, b)

    return chosen


def sum_(values, start=0):
    """Return the sum of the values, starting from the int64 0."""
    return reduce(INSTRUCTIONS["operator.add"].call, values, start)


def range_(*bounds):
    """Return a range. Its bounds may be floats, because math.ceil returns a float in a kernel."""
    try:
        return range(*bounds)
    except TypeError:
        return range(*map(INSTRUCTIONS["builtins.int.1"].call, bounds))


# name of a builtin -> the function that the interpreter calls for it
BUILTINS = {name.partition(".")[0]: entry.call for name, entry in entries_under("builtins").items()}
BUILTINS |= {name: dispatch_by_count(name) for name in ("complex", "round")}
BUILTINS |= {"max": fold_extreme("max", second_if_larger), "min": fold_extreme("min", second_if_smaller)}
BUILTINS |= {"range": range_, "sum": sum_}
