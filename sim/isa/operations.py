"""Entries for Python's operators, with Numba's types, their semantics and their compiled forms. Powers are in
`sim.isa.powers`, and builtins in `sim.isa.builtin_functions`.

The 16-bit floats are computed in float64 and then rounded. For sums, products and quotients this gives the
correctly rounded result, because float64's 53-bit significand is longer than twice the 11 bits of a 16-bit
float plus two (Figueroa, "When is double rounding innocuous?", 1995).

Semantics called only by the interpreter are in `sim.isa.operators`.

Source: Numba's typing on CUDA, and its PTX; PTX ISA 9.7.1 to 9.7.8.
"""

import operator

import numpy as np
from numpy import float64, uint32, uint64

from sim.isa import floored, ieee, promotion
from sim.isa.conversions import LOWEST, wrap
from sim.isa.functions import SAME, Function, Version
from sim.isa.operators import complex_quotient, quick_or_exact
from sim.isa.powers import of_power
from sim.isa.promotion import COMPLEX, HALVES, INTEGRAL, PLAIN, UNSIGNED
from sim.isa.table import INSTRUCTIONS

SOURCE = "Numba's typing on CUDA; PTX ISA 9.7"


def wide(scalar):
    """Return the type in which values of this type are computed: float64 for a 16-bit float, otherwise the
    type itself."""
    return float64 if scalar in HALVES else scalar


def both(rule, native=(), implementations=()):
    """Return the type rule of a binary operator that converts both operands to the type of the result.

    rule: the function (type of a, type of b) that returns the type of the result, or None.
    native: {type of the result: compiled form}, for the types whose compiled form is not the operator itself.
    implementations: {type of the result: semantics}. By default, the semantics is the compiled form.
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
    """Return a // b. The result is 0 if b is 0. It is also 0 for LOWEST // -1, which would raise a hardware
    exception on x86."""
    if b == 0:
        return 0
    if b == -1:
        return 0 if a == LOWEST else -a
    return a // b


def unsigned_quotient(a, b):
    """Return a // b, or 0 if b is 0."""
    # Return `b` and not a literal 0, because Numba would unify the int64 literal and uint64 to float64.
    return b if b == 0 else a // b


def signed_remainder(a, b):
    """Return a % b with Python's sign, or 0 if b is 0. For b = -1, return 0 without a division, because
    LOWEST / -1 would overflow."""
    return 0 if b == 0 or b == -1 else a % b


def unsigned_remainder(a, b):
    """Return a % b, or 0 if b is 0."""
    # Return `b` for the same reason as in unsigned_quotient.
    return b if b == 0 else a % b


def shifted_left(a, count):
    """Return a, shifted left by the unsigned 32-bit count. A count of 64 or more gives 0 (PTX ISA 9.7.8,
    `shl`)."""
    # a - a is a zero of the type of a.
    return a << count if count < 64 else a - a


def shifted_right(a, count):
    """Return a, shifted right by the unsigned 32-bit count. A count of 64 or more leaves only the sign (PTX
    ISA 9.7.8, `shr`)."""
    # In LLVM, a shift by 64 is undefined, so shift twice.
    return a >> count if count < 64 else a >> 63 >> 1


def of_shift(a, b):
    """Return the overload (Version) of a << b and a >> b."""
    scalar = promotion.shift(a, b)
    return scalar and Version((scalar, uint32), scalar)


# result type -> compiled form
QUOTIENT = {int: signed_quotient, uint64: unsigned_quotient} | dict.fromkeys(PLAIN, floored.quotient)
REMAINDER = {int: signed_remainder, uint64: unsigned_remainder} | dict.fromkeys(PLAIN, floored.remainder)

# The interpreted // and % of floats. quick_or_exact uses numpy's result if it is certainly correct.
INTERPRETED = {
    name: dict.fromkeys(PLAIN, quick_or_exact(getattr(operator, name), exact))
    for name, exact in (("floordiv", floored.quotient), ("mod", floored.remainder))
}


def pair_results(quotient, remainder):
    """Return a function that returns the results of two functions as a pair."""
    return lambda a, b: (quotient(a, b), remainder(a, b))


def of_divmod(a, b):
    """Return the overload (Version) of divmod(a, b)."""
    scalar = promotion.quotient_and_remainder(a, b)
    if scalar is None:
        return None
    interpreted = [INSTRUCTIONS[f"operator.{name}"].call for name in ("floordiv", "mod")]
    native = pair_results(QUOTIENT[scalar], REMAINDER[scalar])
    return Version((scalar, scalar), (scalar, scalar), pair_results(*interpreted), native)


# --- one operand --------------------------------------------------------------------------------------------


def own_width_rule(operation):
    """Return the type rule of a unary operator. An integer is computed in its own width, and the result is
    widened to 64 bits."""

    def rule(x):
        if x not in INTEGRAL:
            return Version((wide(x),), x) if operation is not operator.invert else None
        # ~x of a bool is `not x`. -x and +x of a bool are int64.
        if x is bool:
            return (
                Version((bool,), bool, operator.not_)
                if operation is operator.invert
                else Version((int,), int)
            )
        bits = 8 * np.dtype(x).itemsize
        if x in UNSIGNED:
            # -uint8(1) is 255 and ~uint32(1) is 2**32 - 2, because the result wraps around in the narrow type
            # first.
            return Version((x,), uint64, lambda a: operation(a) & (1 << bits) - 1, operation)
        # -(-128) is -128 for an int8.
        return Version((x,), int, lambda a: wrap(operation(a), bits), operation)

    return rule


def of_bool(x):
    """Return the overload (Version) of bool(x)."""
    return Version((wide(x),), bool)


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
    """Add an operator to the table, and return its entry.

    python: Python's operator, which the interpreter applies to non-numeric values.
    """
    more = {"native": SAME, "rule": rule, "otherwise": python} | more
    return Function(name, SEMANTICS.get(python.__name__, python), SOURCE, **more).add()


for _name, _rule in RULES.items():
    add_operator(f"operator.{_name}", getattr(operator, _name), _rule).replace_calls_of(
        getattr(operator, _name)
    )
_power = add_operator("operator.pow", operator.pow, of_power, ulps=ieee.ULPS, also=("builtins.pow.2",))
_power.replace_calls_of(operator.pow)
add_operator("builtins.divmod.2", divmod, of_divmod)
