"""The power operator: its compiled forms by repeated multiplication, and the rule that selects a form.

Source: Numba's typing on CUDA, and its generated code.
"""

import math
import operator
from functools import partial

from numpy import float32, float64, int64, uint64

from sim.isa import promotion
from sim.isa.conversions import HIGHEST, LOWEST
from sim.isa.functions import Version
from sim.isa.operators import BY_WAY_OF_FLOAT64, ieee_power, int_power, multiply_repeatedly
from sim.isa.promotion import COMPLEX, FLOATING, INTEGRAL


def make_power(one):
    """Return a function (x, n) that returns x to the power |n|, by repeated squaring in the type of `one`."""

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
    """Return the compiled form of x ** n for a float x and an integer n.

    one: the number 1, in the type of the base.
    """
    product_of = make_power(one)

    def power(x, n):
        if is_far(n):
            return math.pow(float64(x), float64(n))
        product = float64(product_of(x, n))
        return 1.0 / product if n < 0 else product

    return power


def saturated(x):
    """Return a float converted to int64. The conversion saturates."""
    return HIGHEST if x >= 2.0**63 else LOWEST if x <= -(2.0**63) else int64(x)


signed_product, unsigned_product = make_power(int64(1)), make_power(uint64(1))


def signed_power(x, n):
    """Return x ** n modulo 2**64. For a negative exponent, return the same as Numba: LOWEST if x is 0, and 0
    for other bases except 1 and -1."""
    if n < 0 and x == 0:
        return LOWEST
    if n < 0 and x != 1 and x + 1 != 0:
        return 0
    return saturated(math.pow(float64(x), float64(n))) if is_far(n) else signed_product(x, n)


def unsigned_power(x, n):
    """Return x ** n modulo 2**64. If the exponent is very large, return the maximum uint64 instead."""
    if n > 0x10000:
        return x if x < 2 else ~uint64(0)
    return unsigned_product(x, n)


def rounded(power):
    """Return a function that rounds the result of `power` to float64, as Numba does on Python 3.11 and older
    (see operators.BY_WAY_OF_FLOAT64)."""
    return lambda x, n: float64(power(x, n))


# type of an integer base -> compiled form of **
EXACT = {int: signed_power, uint64: unsigned_power}
ROUNDED = {scalar: rounded(power) for scalar, power in EXACT.items()}
POWERS = {float32: float_power(float32(1)), float64: float_power(float64(1))} | (
    ROUNDED if BY_WAY_OF_FLOAT64 else EXACT
)


def of_power(a, b):
    """Return the overload (Version) of a ** b. A power with an integer exponent is computed by repeated
    multiplication, and any other power by pow."""
    scalar = promotion.exponentiation(a, b)
    if scalar in POWERS and b in INTEGRAL:
        semantics = multiply_repeatedly if scalar in FLOATING else partial(int_power, scalar=scalar)
        return Version((scalar, uint64 if b is uint64 else int), scalar, semantics, POWERS[scalar])
    return scalar and Version(
        (scalar, scalar), scalar, None if scalar in COMPLEX else ieee_power, operator.pow
    )
