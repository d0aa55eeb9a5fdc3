"""The kinds of index accepted by an Array: integers, slices, an ellipsis, None."""

import operator
from types import EllipsisType, NoneType

import numpy as np

PARTS = slice, EllipsisType, NoneType  # index items that select a view; None adds an axis


class FromEnd(int):
    """A negative literal that is used as an index. The programmer evidently means to count from the end."""


def is_integer(index):
    return isinstance(index, (int, np.integer))


def checked_integer(index, array):
    """Return an index as a Python int. Raise TypeError for a float."""
    try:
        return operator.index(index)
    except TypeError:
        given = f"{array.name} is indexed with {index!r}, a {type(index).__name__}"
        raise TypeError(f"{given}; wanted an integer (// divides integers)") from None


def indices_of_part(index, shape):
    """Return the indices of all elements in an out-of-range view, for an array with this shape.

    The result is an ndarray of tuples, arranged like the view.
    """
    of_axes = [i for i in index if i is not None]
    # An ellipsis is equivalent to a full slice for each axis without an index.
    left = [slice(None)] * (len(shape) - sum(i is not Ellipsis for i in of_axes))
    at = next((at for at, i in enumerate(of_axes) if i is Ellipsis), len(of_axes))
    of_axes[at : at + 1] = left
    grid = [[i] if isinstance(i, int) else range(n) for i, n in zip(of_axes, shape)]
    found = np.empty([*map(len, grid)], object)
    for place in np.ndindex(found.shape):
        found[place] = tuple(numbers[i] for numbers, i in zip(grid, place))
    return found[tuple(0 if isinstance(i, int) else i for i in index)]
