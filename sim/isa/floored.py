"""Floored division and remainder, x // y and x % y, of two floats of the same type, as Numba's kernels
compute them on a GPU.

The quotient |x| / |y| is rounded to the type, and then rounded down to an integer n. The remainder |x| - n
|y| is rounded only once, because ptxas contracts the product and the difference into an fma. Therefore, the
result differs from Python's if the quotient rounds up to an integer, or if it exceeds the range in which the
type represents every integer. The remainder of a division by infinity is NaN.

Source: the PTX of Numba's `real_divmod`. The results were compared with those of an H200.
"""

import numpy as np

from sim.isa.integers import ENTRIES

fma = ENTRIES["fma"]


def rest_of(x, y):
    """Return the truncated remainder of x / y, which has the sign of x."""
    whole = np.floor(abs(x) / abs(y))
    rest = fma(-whole, abs(y), abs(x))
    return -rest if x < 0 else rest


def remainder(x, y):
    """Return x % y, which has the sign of y."""
    rest = rest_of(x, y)
    if rest == 0:
        return abs(rest) * y  # a zero with the sign of y
    # The truncated remainder has the sign of x. If the signs differ, adding y gives the floored remainder.
    return rest + y if (rest < 0) != (y < 0) else rest


def quotient(x, y):
    """Return x // y."""
    if y == 0:
        return x / y
    rest = rest_of(x, y)
    found = (x - rest) / y
    if rest != 0 and (rest < 0) != (y < 0):
        found = found - 1
    if found == 0:
        return found * found * x / y  # a zero with the sign of x / y
    # Except for rounding errors, `found` is an integer, so round it to the nearest integer.
    whole = np.floor(found)
    return whole + 1 if found - whole > 0.5 else whole
