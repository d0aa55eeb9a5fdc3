"""x % y and x // y of two floats of one type, as a GPU computes them for Numba.

|x| / |y| is rounded to the type, then rounded down to a whole number n. The remainder |x| - n |y| is rounded
once, because ptxas fuses the product and the difference. So the remainder differs from Python's if the
quotient rounds up to a whole number, or if it is larger than the type's exact whole numbers. An infinite y
gives NaN.

Source: the PTX of Numba's `real_divmod`; results were compared with an H200's.
"""

import numpy as np

from sim.isa.integers import ENTRIES

fma = ENTRIES["fma"]


def rest_of(x, y):
    """Return the truncated remainder of x / y, with the sign of x."""
    whole = np.floor(abs(x) / abs(y))
    rest = fma(-whole, abs(y), abs(x))
    return -rest if x < 0 else rest


def remainder(x, y):
    rest = rest_of(x, y)
    if rest == 0:
        return abs(rest) * y  # a zero with the sign of y
    return rest + y if (rest < 0) != (y < 0) else rest


def quotient(x, y):
    if y == 0:
        return x / y
    rest = rest_of(x, y)
    found = (x - rest) / y
    if rest != 0 and (rest < 0) != (y < 0):
        found = found - 1
    if found == 0:
        return found * found * x / y  # a zero with the sign of x / y
    whole = np.floor(found)
    return whole + 1 if found - whole > 0.5 else whole
