"""The order of streams, and the protection of host memory that pending operations use.

The simulator executes work when it is issued. On a GPU, work may still be pending when the host continues.
This module records which host memory pending work reads and writes, and removes access to the pages of that
memory with mprotect until the host has waited. If the host accesses them earlier, the process receives a
SIGSEGV, which `sim.runtime.process` reports if the access conflicts with the work. Otherwise the handler
gives the host access to the page for one instruction. After MOST_STEPS such accesses, or on a processor other
than x86-64, the host keeps the access until the next call of a runtime function. That call searches the page
for bytes that have changed in the meantime.

The order of operations is that of `sim.runtime.stream_order`.
"""

import ctypes
import mmap
from collections import Counter
from dataclasses import dataclass

import numpy as np

from sim.runtime.call_sites import CallSite
from sim.runtime.footprints import merged
from sim.runtime.stream_order import StreamOrder

LIBC = ctypes.CDLL(None)
LIBC.mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
WORD = 4  # the address of a changed byte is rounded down to a multiple of this size in bytes
MOST_STEPS = 20_000  # after this number of accesses (about a second), pages stay open until the next call
MOST_PENDING = 64  # maximum number of operations whose memory is watched at a time


@dataclass(eq=False)
class Pending:
    """Host memory that pending work uses.

    stream, number: the operation.
    ranges: merged ranges of addresses, as rows (start, end).
    writes: whether the operation writes the memory. Otherwise it reads it, and the host may read it too.
    what: the operation and the memory, for findings.
    site: the host call that issued the operation.
    """

    stream: int
    number: int
    ranges: np.ndarray
    writes: bool
    what: str
    site: CallSite

    def __post_init__(self) -> None:
        start = self.ranges[:, 0] & -mmap.PAGESIZE
        end = -(-self.ranges[:, 1] // mmap.PAGESIZE) * mmap.PAGESIZE
        # (start, end) of the pages that contain the memory
        self.pages: list[list[int]] = merged(np.stack([start, end], 1)).tolist()

    def contains(self, addresses: np.ndarray) -> np.ndarray:
        """Return a mask of the addresses that belong to the memory."""
        at = np.searchsorted(self.ranges[:, 0], addresses, side="right") - 1
        return (at >= 0) & (addresses < self.ranges[at, 1])

    def repeats(self, other: "Pending") -> bool:
        """Return whether an earlier operation of the stream uses the same memory in the same way."""
        same = self.stream == other.stream and self.site == other.site and self.what == other.what
        return same and np.array_equal(self.ranges, other.ranges)


class Streams(StreamOrder):
    """The streams of a program, and the host memory that their pending work uses."""

    def __init__(self) -> None:
        super().__init__()
        self.pending: list[Pending] = []
        # page -> its contents when the host was given access to it, and the site of that access
        self.opened: dict[int, tuple[bytes, CallSite]] = {}
        self.steps = 0  # the number of accesses that were allowed for one instruction only
        self.stepped: list[int] = []  # the pages that the current instruction may access

    def reach_host(self) -> None:
        """Let the host access all memory while it executes a function of a stream.

        The function can wait for any other thread of the host, so no access can be called too early.
        """
        super().reach_host()
        self.open()

    def finish(self, clock: Counter) -> None:
        super().finish(clock)
        if self.pending:
            self.open()
            self.pending = [p for p in self.pending if not self.is_finished(p.stream, p.number)]
            self.close()

    def watch(self, ranges: np.ndarray, writes: bool, what: str, site: CallSite) -> None:
        """Protect host memory that the current operation uses, until the host has waited for the operation.

        ranges: merged ranges of addresses, as rows (start, end).

        The caller must call `close` when the simulator no longer accesses the memory itself.
        """
        new = Pending(*self.current, ranges, writes, what, site)
        self.pending = [p for p in self.pending if not new.repeats(p)][1 - MOST_PENDING :] + [new]

    def open(self) -> None:
        """Give the simulator access to the memory of pending work."""
        for pending in self.pending:
            for start, end in pending.pages:
                protect(start, end, mmap.PROT_READ | mmap.PROT_WRITE)

    def close(self) -> None:
        """Remove the host's access to the memory of pending work."""
        for pending in sorted(self.pending, key=lambda p: p.writes):  # the stricter protection last
            for start, end in pending.pages:
                protect(start, end, 0 if pending.writes else mmap.PROT_READ)

    def take(self, address: int, write: bool, site: CallSite) -> tuple[bool, Pending | None]:
        """Open the page of an address that the host accesses.

        Return (whether the page was watched, the pending work that conflicts with the access or None). Work
        that conflicts is no longer watched.
        """
        page = address & -mmap.PAGESIZE
        watched = [p for p in self.pending if any(start <= page < end for start, end in p.pages)]
        conflicts = [p for p in watched if (p.writes or write) and p.contains(np.array([address]))[0]]
        if conflicts:
            self.open()
            self.pending = [p for p in self.pending if p not in watched]
            self.close()
        elif watched:
            protect(page, page + mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE)
            self.stepped.append(page)
            if page not in self.opened:
                self.opened[page] = ctypes.string_at(page, mmap.PAGESIZE), site
        return bool(watched), conflicts[0] if conflicts else None

    def step(self) -> bool:
        """Return whether the pages that `take` has opened are to be closed after one instruction."""
        self.steps += 1
        return self.steps <= MOST_STEPS

    def close_stepped(self) -> None:
        """Remove the host's access to the pages that the last instruction was allowed to access."""
        for page in self.stepped:
            watching = [p.writes for p in self.pending if any(start <= page < end for start, end in p.pages)]
            if watching:
                protect(page, page + mmap.PAGESIZE, 0 if any(watching) else mmap.PROT_READ)
        self.stepped.clear()

    def late_writes(self) -> list[tuple[int, Pending, CallSite]]:
        """Return the writes of the host to pages that `take` has opened, as (lowest address, pending work
        that conflicts, first access of the host to the page). Forget the pages."""
        found = []
        for page, (before, site) in self.opened.items():
            now = ctypes.string_at(page, mmap.PAGESIZE)
            changed = page + np.flatnonzero(np.frombuffer(before, np.uint8) != np.frombuffer(now, np.uint8))
            for pending in self.pending:
                written = changed[pending.contains(changed)]
                if written.size:
                    found.append((int(written[0]) & -WORD, pending, site))
                    self.pending = [p for p in self.pending if p is not pending]
                    break
        self.opened.clear()
        self.stepped.clear()
        return found

    def forget(self, start: int, end: int) -> None:
        """Stop watching memory that is freed."""
        if self.pending:
            self.open()
            self.pending = [p for p in self.pending if p.ranges[-1, 1] <= start or end <= p.ranges[0, 0]]
            self.close()


def protect(start: int, end: int, protection: int) -> None:
    """Set the access rights of pages."""
    LIBC.mprotect(start, end - start, protection)
