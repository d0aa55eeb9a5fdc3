"""Sliding windows: the range of keys around its own position that a query sees."""

from typing import NamedTuple

UNLIMITED = -1


class Window(NamedTuple):
    """A sliding window: query i sees the keys j with i - left <= j <= i + right.

    UNLIMITED removes the limit on that side. Kernels require finite limits, which `within` computes.
    """

    left: int
    right: int

    def within(self, n, keys):
        """Return an equivalent window for n queries and `keys` keys whose sides are both finite."""
        left, right = (most if side == UNLIMITED else min(side, most) for side, most in zip(self, (n, keys)))
        return Window(left, right)


EVERYTHING = Window(UNLIMITED, UNLIMITED)


def checked_window(window):
    """Convert the argument (left, right) to a Window, and None to EVERYTHING.

    Raise TypeError or ValueError for anything else.
    """
    if window is None:
        return EVERYTHING
    wanted = (
        "wanted (left, right), the keys that a query sees before and after its own position, -1 for no limit,"
        " or None"
    )
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        hint = f"; a query and the {window - 1} keys before it: ({window - 1}, 0)" if is_whole(window) else ""
        raise TypeError(f"argument window is {window!r}; {wanted}{hint}")
    if not all(map(is_whole, window)):
        raise TypeError(f"argument window is {window!r}; {wanted}: both whole numbers")
    if min(window) < UNLIMITED:
        raise ValueError(f"argument window is {window!r}; {wanted}: both at least -1")
    return Window(*window)


def is_whole(number):
    """Return whether `number` is an int other than a bool."""
    return isinstance(number, int) and not isinstance(number, bool)
