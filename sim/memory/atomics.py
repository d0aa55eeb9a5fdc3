"""cuda.atomic: read, combine and write one element with nobody in between; each returns the element as it was
before.

Sources: CUDA C++ Programming Guide, "Atomic Functions", for inc, dec and exch; Numba's documentation for
    nanmax, nanmin, cas and compare_and_swap.
"""

import numpy as np

from sim.isa.operators import domain, stored
from sim.memory.array import Array, only_read


def increment(old, value):
    """0 if old >= value else old + 1."""
    return 0 if old >= value else old + 1


def decrement(old, value):
    """value if old is 0 or above value, else old - 1."""
    return value if old == 0 or old > value else old - 1


def larger(old, value):
    """The larger; a NaN on either side stays what it was before (Numba: max with a NaN element keeps the
    NaN)."""
    return value if value > old else old


def smaller(old, value):
    return value if value < old else old


def nan_larger(old, value):
    """The larger, NaN losing to any number."""
    return value if old != old or value > old else old


def nan_smaller(old, value):
    return value if old != old or value < old else old


class Atomic:
    """The namespace `cuda.atomic` of one launch."""

    def __init__(self, scheduler):
        self.scheduler, self.context = scheduler, scheduler.context

    def change(self, array, index, combine, operand, overwrites=False, writes=lambda old: True):
        """Replace array[index] by combine(old), wrapped to the array's dtype; returns old. `overwrites`: the
        new element does not depend on the old one;
        `writes(old)`: whether there is one."""
        if not isinstance(array, Array):
            raise TypeError(f"cuda.atomic works on arrays, got {array!r}")
        self.scheduler.turn()
        site = self.context.site("atomic")
        if overwrites:
            self.context.overwriting.add(site)
        if not array.writable:
            raise only_read(array)
        place = array.place(index if isinstance(index, tuple) else (index,), site, "changed")
        if place is None:
            return domain(array.dtype.type(0))
        if array.dtype.kind in "iu" and isinstance(operand, np.inexact):
            self.context.announce(
                "atomic_narrowed", self.context.witness("changed", site, value=operand), array, place
            )
        memory = array.numpy
        old = memory[place]
        new = combine(old)
        array.announce(place, site, new)
        memory[place] = stored(new, array.dtype)
        self.context.event("atomic_done", array.address(place), writes(old))
        return domain(old)

    def add(self, array, index, value):
        return self.change(array, index, lambda old: plain(old) + plain(stored(value, array.dtype)), value)

    def sub(self, array, index, value):
        return self.change(array, index, lambda old: plain(old) - plain(stored(value, array.dtype)), value)

    def and_(self, array, index, value):
        return self.change(array, index, lambda old: int(old) & int(value), value)

    def or_(self, array, index, value):
        return self.change(array, index, lambda old: int(old) | int(value), value)

    def xor(self, array, index, value):
        return self.change(array, index, lambda old: int(old) ^ int(value), value)

    def inc(self, array, index, value):
        return self.change(array, index, lambda old: increment(int(old), int(value)), value)

    def dec(self, array, index, value):
        return self.change(array, index, lambda old: decrement(int(old), int(value)), value)

    def exch(self, array, index, value):
        return self.change(array, index, lambda old: value, value, overwrites=True)

    def max(self, array, index, value):
        return self.change(array, index, lambda old: larger(old, value), value)

    def min(self, array, index, value):
        return self.change(array, index, lambda old: smaller(old, value), value)

    def nanmax(self, array, index, value):
        return self.change(array, index, lambda old: nan_larger(old, value), value)

    def nanmin(self, array, index, value):
        return self.change(array, index, lambda old: nan_smaller(old, value), value)

    def cas(self, array, index, expected, value):
        return self.change(
            array,
            index,
            lambda old: value if old == expected else old,
            value,
            writes=lambda old: bool(old == expected and old != value),
        )

    def compare_and_swap(self, array, expected, value):
        """cas on the array's first element."""
        return self.cas(array, (0,) * array.ndim, expected, value)


def plain(number):
    """Integers as Python ints, which do not overflow before they are wrapped; others as they are."""
    return int(number) if isinstance(number, (int, np.integer)) else number
