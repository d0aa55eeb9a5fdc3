"""Asynchronous copies from and to page-locked memory, until the host has waited for them.

The simulator executes a copy when it is issued. On a GPU, the copy may run later. The destination of a
pending copy therefore contains poison bytes until the host has waited, so that a test that reads it too early
obtains wrong values. If the destination contains other bytes, or if the source of a pending copy has changed,
the host has accessed the memory too early.
"""

from dataclasses import dataclass

import numpy as np

from sim.events import INTEGER_POISON
from sim.host.memory import byte_of
from sim.memory.spaces import bytes_between
from sim.nouns import joined
from sim.runtime.call_sites import CallSite
from sim.runtime.findings import HostFinding

FIX = (
    "wait before the access, with stream.synchronize(), with event.synchronize() after event.record(stream),"
    " or with cuda.synchronize()"
)
FREED = "the memory is freed although the host"
UNREGISTERED = "the page lock of the array ends although the host"
TEST_ENDS = "the test ends although the host"
WORD = 4  # the position of a changed byte is rounded down to a multiple of this size in bytes


@dataclass(eq=False)
class PendingCopy:
    """Page-locked memory that a copy reads or writes, and for which the host has not waited.

    stream, number: the operation.
    start, end: the addresses.
    kept: the bytes that the copy reads from this memory, or writes to it.
    writes: whether the copy writes the memory.
    origin: the array, as the result of `Memory.place`.
    site: the line that issued the copy.
    """

    stream: int
    number: int
    start: int
    end: int
    kept: np.ndarray
    writes: bool
    origin: tuple[int, str]
    site: CallSite

    def __post_init__(self):
        self.visible = bytes_between(self.start, self.end)

    def overlaps(self, start, end):
        return self.start < end and start < self.end

    def changed(self):
        """Return the position of the first byte that the host has changed, or None."""
        changed = self.visible != (INTEGER_POISON if self.writes else self.kept)
        return int(changed.argmax()) if changed.any() else None

    def byte(self, at):
        """Return a description of the byte at a position."""
        return byte_of(self.start + at, *self.origin)

    def part(self, start, end):
        """Return the part of the copy between two addresses."""
        kept = self.kept[start - self.start : end - self.start]
        return PendingCopy(self.stream, self.number, start, end, kept, self.writes, self.origin, self.site)


def outside(pending, start, end):
    """Return the parts of a pending copy that lie outside a range of addresses, as a list."""
    if not pending.overlaps(start, end):
        return [pending]
    parts = [(pending.start, min(start, pending.end)), (max(end, pending.start), pending.end)]
    return [pending.part(*bounds) for bounds in parts if bounds[0] < bounds[1]]


class PageLocked:
    """The pending copies of a program from and to page-locked memory.

    memory: the Memory of the device.
    report(finding): receives the findings.
    early: the lines of the copies whose destinations contained poison since the last call of `clear`.
    """

    def __init__(self, memory, report):
        self.memory, self.report = memory, report
        self.pending: list[PendingCopy] = []
        self.early: dict[CallSite, None] = {}

    # --- operations of the device ---------------------------------------------------------------------------

    def open(self, ranges):
        """Show the bytes of pending copies in memory that an operation of the device is about to access.

        ranges: pairs (start, end) of addresses.

        Return the pending writes that are now visible, which the caller passes to `close`.
        """
        used = self.overlapping(ranges)
        changed = [(one, at) for one in used if (at := one.changed()) is not None]
        for pending in used:
            if pending.writes:
                pending.visible[:] = pending.kept
        for pending, at in changed:
            self.pending.remove(pending)
            use = f"{'writes' if pending.writes else 'reads'} it"
            self.report_access(pending, f"the host writes {pending.byte(at & -WORD)} although it", use)
        return [one for one in used if one.writes and one in self.pending]

    def close(self, opened, written, added=()):
        """End an operation of the device, and hide the destinations of pending copies from the host.

        written: the ranges of addresses that the operation has written, as pairs.
        added: the copies of this operation that stay pending, as results of `new_copy`.
        """
        # The values that earlier copies have read from overwritten memory no longer have to be preserved.
        for start, end in written:
            self.pending = [
                part
                for pending in self.pending
                for part in ([pending] if pending.writes else outside(pending, start, end))
            ]
        for pending in opened:
            pending.kept = pending.visible.copy()
        writes = [one for one in (*self.pending, *added) if one.writes]
        for new in added:
            parts = [new]
            # The host must not access the destination of a pending copy at all, so bytes of a destination
            # need no second entry.
            if not new.writes:
                for other in writes:
                    parts = [rest for part in parts for rest in outside(part, other.start, other.end)]
            self.pending += parts
        hidden = [one for one in added if one.writes]
        self.early |= {one.site: None for one in hidden}
        self.hide([*opened, *hidden])

    def new_copy(self, stream, number, start, end, writes, site):
        """Return the PendingCopy of an operation that has just been executed."""
        kept = bytes_between(start, end).copy()
        return PendingCopy(stream, number, start, end, kept, writes, self.memory.place(start), site)

    # --- the host -------------------------------------------------------------------------------------------

    def finish(self, is_finished):
        """Let the host access the memory of the copies (stream, number) that are finished."""
        done = [one for one in self.pending if is_finished(one.stream, one.number)]
        if not done:
            return
        opened = self.open([(one.start, one.end) for one in done])
        self.pending = [one for one in self.pending if one not in done]
        self.hide(one for one in opened if one in self.pending)

    def free(self, start, end, event):
        """Report and forget the pending copies of memory that is freed, or whose page lock ends."""
        for pending in self.open([(start, end)]):
            self.report_access(pending, event, f"writes {pending.byte(0)}")
        self.pending = [one for one in self.pending if not one.overlaps(start, end)]

    def end(self):
        """Report and forget the copies to the host for which the host has not waited."""
        for pending in self.open([(one.start, one.end) for one in self.pending]):
            self.report_access(pending, TEST_ENDS, f"writes {pending.byte(0)}")
        self.clear()

    def clear(self):
        """Forget all copies, and let the host access their destinations."""
        for pending in self.pending:
            if pending.writes:
                pending.visible[:] = pending.kept
        self.pending.clear()
        self.early.clear()

    def explain_failure(self, poisoned):
        """Return sentences about pending copies that may have caused a test to fail, or "".

        poisoned: the names of the test's variables that contain poison.
        """
        left = dict.fromkeys(one.site for one in self.pending if one.writes)
        if not left and not (poisoned and self.early):
            return ""
        if left:
            what = "copy" if len(left) == 1 else "copies"
            text = f"The host has not waited for the asynchronous {what} at {joined([*map(str, left)])}."
        else:
            text = (
                f"Poison is in {joined(poisoned)}: the test has probably read the destination of an"
                f" asynchronous copy before it waited for it, at {joined([*map(str, self.early)])}."
            )
        return (
            f"{text} Until the host has waited, the page-locked destination contains the bytes"
            f" {INTEGER_POISON:#x}. On a GPU, it can contain old values.\n  Likely fix: {FIX}."
        )

    # --- helpers --------------------------------------------------------------------------------------------

    def overlapping(self, ranges):
        """Return the pending copies that overlap any of the ranges."""
        return [one for one in self.pending if any(one.overlaps(*bounds) for bounds in ranges)]

    def hide(self, copies):
        for pending in copies:
            pending.visible[:] = INTEGER_POISON

    def report_access(self, pending, event, use):
        verdict = f"{event} has not waited for this asynchronous copy, which {use}"
        self.report(HostFinding("unsynchronized-access", "error", verdict, pending.site, FIX))
