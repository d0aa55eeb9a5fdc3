"""x % y and x // y of two floats of one type, as a GPU computes Numba's.

|x| / |y| is rounded, then rounded down to a whole number n; |x| - n |y| is rounded once, as ptxas fuses
product and difference. So a quotient that rounds up to a whole number, or lies beyond the type's whole
numbers, leaves a remainder that Python's does not, and an infinite y gives NaN.
Source: the PTX of Numba's `real_divmod`; asked of an H200.
"""

import numpy as np

from sim.isa.integers import ENTRIES

fma = ENTRIES["fma"]


def rest_of(x, y):
    """|x| - n |y|, with the sign of x."""
    whole = np.floor(abs(x) / abs(y))
    rest = fma(-whole, abs(y), abs(x))
    return -rest if x < 0 else rest


def remainder(x, y):
    rest = rest_of(x, y)
    if rest == 0:
        return abs(rest) * y  # 0 with the sign of y
    return rest + y if (rest < 0) != (y < 0) else rest


def quotient(x, y):
    if y == 0:
        return x / y
    rest = rest_of(x, y)
    found = (x - rest) / y
    if rest != 0 and (rest < 0) != (y < 0):
        found = found - 1
    if found == 0:
        return found * found * x / y  # 0 with the sign of x / y
    whole = np.floor(found)
    return whole + 1 if found - whole > 0.5 else whole
