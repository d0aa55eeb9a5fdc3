"""The order of streams, and accesses of the host that do not wait for them.

The simulator executes work when it is issued. On a GPU, work may still be pending when the host continues.
This module records which host memory pending work reads and writes, and removes access to that memory with
mprotect until the host has waited. If the host accesses it earlier, the process receives a SIGSEGV, which
`sim.runtime.process` reports.

Each stream has a vector clock: for each stream, the number of operations that precede the stream's next
operation. The default stream waits for all blocking streams, and they wait for it.

Source: CUDA Runtime API, "API synchronization behavior" and "Stream synchronization behavior".
"""

import ctypes
import mmap
from collections import Counter
from dataclasses import dataclass

from sim.runtime.call_sites import CallSite

DEFAULT_STREAM = 0
DEFAULT_NAMES = 0, 1  # the handles that stand for the default stream: nullptr and cudaStreamLegacy


@dataclass(eq=False)
class Pending:
    """Host memory that pending work uses.

    stream, number: the operation.
    start, end: addresses, end excluded.
    writes: whether the operation writes the memory. Otherwise it reads it, and the host may read it too.
    what: the operation and the memory, for findings.
    site: the host call that issued the operation.
    """

    stream: int
    number: int
    start: int
    end: int
    writes: bool
    what: str
    site: CallSite

    def pages(self) -> tuple[int, int]:
        """Return (address, length) of the pages that contain the memory."""
        start = self.start & -mmap.PAGESIZE
        return start, -(-self.end // mmap.PAGESIZE) * mmap.PAGESIZE - start


class Streams:
    """The streams of a program, and the host memory that their pending work uses."""

    def __init__(self) -> None:
        self.clocks: dict[int, Counter] = {DEFAULT_STREAM: Counter()}
        self.live: set[int] = set()
        self.nonblocking: set[int] = set()
        self.events: dict[int, Counter] = {}
        self.finished: Counter = Counter()  # the operations that the host has waited for
        self.pending: list[Pending] = []
        self.asked: set[frozenset] = set()  # the clocks of queries whose operations were pending
        self.current = DEFAULT_STREAM, 0  # the operation being executed

    def create(self, stream: int, nonblocking: bool) -> None:
        """Add a stream."""
        self.live.add(stream)
        self.clocks[stream] = Counter()
        if nonblocking:
            self.nonblocking.add(stream)

    # --- order ----------------------------------------------------------------------------------------------

    def clock(self, stream: int) -> Counter:
        """Return the clock of a stream, including the work that its next operation waits for implicitly."""
        stream = DEFAULT_STREAM if stream in DEFAULT_NAMES else stream
        clock = self.clocks.setdefault(stream, Counter())
        if stream == DEFAULT_STREAM:
            for other, theirs in self.clocks.items():
                if other not in self.nonblocking:
                    clock |= theirs
        elif stream not in self.nonblocking:
            clock |= self.clocks[DEFAULT_STREAM]
        self.clocks[stream] = clock
        return clock

    def issue(self, stream: int) -> None:
        """Begin an operation of a stream."""
        stream = DEFAULT_STREAM if stream in DEFAULT_NAMES else stream
        clock = self.clock(stream)
        clock[stream] += 1
        self.current = stream, clock[stream]

    def record(self, event: int, stream: int) -> None:
        self.events[event] = Counter(self.clock(stream))

    def wait(self, stream: int, event: int) -> None:
        """Make a stream wait for an event."""
        self.clock(stream)
        stream = DEFAULT_STREAM if stream in DEFAULT_NAMES else stream
        self.clocks[stream] |= self.events.get(event, Counter())

    def synchronize(self, stream: int) -> None:
        """Record that the host has waited for a stream."""
        default = stream in DEFAULT_NAMES
        self.finish(self.clock(stream) if default else self.clocks.get(stream, Counter()))

    def synchronize_event(self, event: int) -> None:
        self.finish(self.events.get(event, Counter()))

    def synchronize_all(self) -> None:
        """Record that the host has waited for the device."""
        for stream in list(self.clocks):
            self.finish(self.clocks[stream])

    def query(self, clock: Counter) -> bool:
        """Return whether the operations of a clock are complete.

        The first query of pending operations returns False. This exposes programs that do not repeat it.
        """
        asked = frozenset(clock.items())
        if clock - self.finished and asked not in self.asked:
            self.asked.add(asked)
            return False
        self.finish(clock)
        return True

    def finish(self, clock: Counter) -> None:
        self.finished |= clock
        if self.pending:
            self.open()
            self.pending = [p for p in self.pending if p.number > self.finished[p.stream]]
            self.close()

    # --- memory ---------------------------------------------------------------------------------------------

    def watch(self, start: int, nbytes: int, writes: bool, what: str, site: CallSite) -> None:
        """Protect host memory that the current operation uses, until the host has waited for the operation.

        The caller must call `close` when the simulator no longer accesses the memory itself.
        """
        self.pending.append(Pending(*self.current, start, start + nbytes, writes, what, site))

    def open(self) -> None:
        """Give the simulator access to the memory of pending work."""
        for pending in self.pending:
            protect(*pending.pages(), mmap.PROT_READ | mmap.PROT_WRITE)

    def close(self) -> None:
        """Take away the host's access to the memory of pending work."""
        for pending in sorted(self.pending, key=lambda p: p.writes):  # no access is stronger than read-only
            protect(*pending.pages(), 0 if pending.writes else mmap.PROT_READ)

    def take(self, address: int, write: bool) -> tuple[bool, Pending | None]:
        """Give up watching the page of an address that the host has accessed.

        Return (whether the page was watched, the pending work that conflicts with the access or None).
        """
        page = address & -mmap.PAGESIZE
        watched = [p for p in self.pending if p.pages()[0] <= page < sum(p.pages())]
        self.open()
        self.pending = [p for p in self.pending if p not in watched]
        self.close()
        conflicts = [p for p in watched if p.start <= address < p.end and (p.writes or write)]
        return bool(watched), conflicts[0] if conflicts else None

    def forget(self, start: int, end: int) -> None:
        """Stop watching memory that is freed."""
        if self.pending:
            self.open()
            self.pending = [p for p in self.pending if p.end <= start or end <= p.start]
            self.close()


def protect(start: int, nbytes: int, protection: int) -> None:
    """Set the access rights of pages."""
    libc = ctypes.CDLL(None)
    libc.mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mprotect(start, nbytes, protection)
