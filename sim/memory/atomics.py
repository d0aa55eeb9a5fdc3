"""The functions of `cuda.atomic`. Each function loads an element, combines it with an operand and stores the
result, without interruption by another thread.

Each function returns the old element. `sim.isa.atomics` defines the operations themselves.
"""

import sys

import numpy as np

from sim.isa.atomics import ENTRIES, is_compiled
from sim.isa.conversions import cast, domain
from sim.isa.functions import to_operand
from sim.memory.array import Array, read_only_error
from sim.nouns import plural

MAX_CYCLE = 8  # the scheduler recognises spinning loops with at most this number of failed atomics


class FailedAtomic:
    """An atomic that did not change memory, such as a failed compare-and-swap.

    The scheduler uses it to recognise a spinning thread, which repeats one or several failed atomics.

    key: a value that identifies the atomic and its operands.
    memory, place, found: the array, the index of the element, and the value that the atomic found there.
    last: the thread's previous FailedAtomic, or None if the thread's previous atomic changed memory.
    repeated: whether the thread is about to execute the atomic again.
    """

    __slots__ = ("key", "memory", "place", "found", "repeated", "last", "length", "first")

    def __init__(self, key, memory, place, found, last):
        self.key, self.memory, self.place, self.found, self.repeated = key, memory, place, found, False
        # `length` is the number of atomics that can be reached through `last`. `first` is one of these
        # atomics: the thread is about to repeat it and all later atomics. A reference to `self` would delay
        # the deletion of this object.
        self.last, self.length, self.first = last, 0, None
        if last is not None:
            if last.repeated:
                self.last, self.length = last.last, last.length
            elif last.first is not None:
                last.first.last, self.length = None, last.length
            elif last.length < MAX_CYCLE:
                self.length = last.length + 1
            else:
                self.last = None

    def set_next(self, key):
        """Record that the thread is about to execute the atomic with this key."""
        self.repeated, self.first = bool(self.key == key), None
        if not self.repeated:
            first = self.last
            while first is not None and first.key != key:
                first = first.last
            self.first = first

    def would_fail_again(self):
        """Return whether the thread is about to repeat an atomic, and memory still contains the values found
        by this atomic and by all later ones."""
        failed, first = self, self if self.repeated else self.first
        while first is not None and failed.memory[failed.place] == failed.found:
            if failed is first:
                return True
            failed = failed.last
        return False


class Atomic:
    """The namespace `cuda.atomic` for one launch."""

    def __init__(self, scheduler):
        self._scheduler, self._context = scheduler, scheduler.context

    def _change(self, entry, array, index, operands):
        """Replace array[index] by the result of the entry's operation, converted to the dtype. Return the old
        element."""
        if not isinstance(array, Array):
            raise TypeError(f"cuda.atomic works on arrays, got {array!r}")
        if not is_compiled(entry, array.dtype, array.ndim):
            raise rejected(entry, array)
        # Frame 0 is this method, and frame 1 is the generated wrapper, so frame 2 is the kernel.
        frame, thread = sys._getframe(2), self._context.thread
        site = self._context.sites.of_frame(frame, "atomic")
        key = site, id(array.root), array.offset, index, operands
        # Let other threads run first, so that atomics can interleave in every possible order.
        self._scheduler.yield_before_atomic(key, frame)
        if entry.overwrites:
            self._context.overwriting.add(site)
        if not array.writable:
            raise read_only_error(array)
        place = array.place(index if isinstance(index, tuple) else (index,), site, "changed")
        if place is None:
            return domain(array.dtype.type(0))
        value = operands[-1]
        # A conversion to an integer dtype drops the fraction, which is rarely intended. There is no finding
        # for the results of ceil, floor and round: they are floats, but have no fraction.
        floating = array.dtype.kind in "iu" and isinstance(value, np.inexact)
        if floating and cast(array.dtype)(value) != value.item():
            self._context.announce(
                "atomic_narrowed", self._context.witness("changed", site, value=value), array, place
            )
        # Atomics compute with the element type, so the operands are converted to it first.
        memory, convert = array.numpy, to_operand(array.dtype)
        old = memory[place]
        given = domain(old)
        before = convert(given)
        new = entry.semantics(before, *map(convert, operands))
        array.announce(place, site, new)
        memory[place] = cast(array.dtype)(new)
        if entry.tests and bool(before != convert(operands[0])):
            self._scheduler.let_retry()
        # The scheduler delays a thread that would repeat this atomic without any effect.
        last = thread.failed_atomic
        thread.failed_atomic = FailedAtomic(key, memory, place, old, last) if new == before else None
        self._context.changes += thread.failed_atomic is None
        if self._context.listeners["atomic_done"]:
            wrote = not entry.tests or bool(new != before)
            self._context.announce_ordering("atomic_done", array.address(place), wrote, "grid")
        return given


def rejected(entry, array):
    """Return the error for an array for which Numba does not compile an atomic."""
    shape = "" if entry.indexed else " and one dimension"
    given = f"{array.dtype} and {plural(array.ndim, 'dimension')}" if shape else f"{array.dtype}"
    *others, last = entry.dtypes
    return TypeError(
        f"cuda.{entry.name} takes arrays of {', '.join(others)} or {last}{shape}; {array.name} has {given},"
        " for which Numba does not compile it"
    )


def method(entry):
    """Return the method for the function of `cuda.atomic` defined by an entry."""
    count = 1 + entry.indexed + len(entry.operands)
    parameters = ", ".join(["array", *["index"] * entry.indexed, *entry.operands])

    def change(self, *given):
        if len(given) != count:
            raise TypeError(
                f"cuda.{entry.name} takes {plural(count, 'argument')}, {parameters}; got {len(given)}"
            )
        array, rest = given[0], given[1:]
        index = rest[0] if entry.indexed else (0,) * array.ndim
        return self._change(entry, array, index, rest[entry.indexed :])

    return change


for _name, _entry in ENTRIES.items():
    setattr(Atomic, _name, method(_entry))
