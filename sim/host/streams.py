"""The streams of a Numba program: races between their operations, and accesses of the host that come too
early.

The simulator executes operations when they are issued. `HostStreams` records the order that streams, events
and waits establish (sim.runtime.stream_order) and the memory that each operation accesses. It reports pairs
of unordered operations that access the same memory, and it keeps track of copies from and to page-locked
memory (sim.host.page_locked).

Source: CUDA Runtime API, "API synchronization behavior" and "Stream synchronization behavior".
"""

import contextlib
import threading
from collections import Counter, deque

from sim.events import LOAD, STORE
from sim.host.early_reads import poisoned_variables
from sim.host.page_locked import FREED, UNREGISTERED, PageLocked
from sim.host.used_memory import LaunchFootprint
from sim.runtime.call_sites import CallSite
from sim.runtime.findings import HostFinding
from sim.runtime.footprints import Footprint
from sim.runtime.stream_order import AFTER_HOST, DEFAULT_NAMES, DEFAULT_STREAM, StreamOrder
from sim.runtime.stream_races import FORGOTTEN, Operation, StreamRaces
from sim.sessions import launching_line

PER_THREAD = 2  # the handle of the default stream of the calling host thread (CU_STREAM_PER_THREAD)
FIX = (
    "let this stream wait for the other operation, with event.record(other_stream) after it and"
    " event.wait(this_stream) before this one, or let the host wait with other_stream.synchronize()"
)
EXTERNAL = "external streams were treated like those of cuda.stream(), which the default stream waits for"
NOT_COMPARED = (
    "races between streams: a launch with many threads, or a launch before the second stream was created, was"
    " not recorded, so these operations were not compared:"
)


class HostStreams(StreamOrder):
    """The streams of a Numba program, and its operations that may still be running.

    memory: the Memory of the device.
    report(finding): receives the findings, as HostFindings.
    notes: a dict whose keys are sentences about accesses that were not checked.
    """

    def __init__(self, memory, report):
        super().__init__()
        self.memory, self.report, self.notes = memory, report, {}
        self.races, self.page_locked = StreamRaces(), PageLocked(memory, report)
        self.foreign = set()  # the streams that Numba did not create
        # Garbage collection can free memory and streams at any moment, even while this object changes. These
        # events are therefore stored as (function, arguments), and handled before the next operation.
        self.released = deque()
        self.lock, self.depth = threading.RLock(), 0
        memory.freed, memory.unregistered = self.memory_freed, self.page_lock_ended

    # --- streams --------------------------------------------------------------------------------------------

    def key(self, handle):
        """Return the number of a stream. Unknown handles belong to external streams."""
        handle = int(handle)
        if handle in DEFAULT_NAMES:
            return DEFAULT_STREAM
        if handle == PER_THREAD:
            handle = -threading.get_ident()
        if handle not in self.clocks:
            self.create(handle, False)
            self.foreign.add(handle)
            if handle > 0:
                self.notes[EXTERNAL] = None
        return handle

    def add(self, handle, is_nonblocking):
        with self.entered():
            self.create(handle, is_nonblocking)

    def make_finalizer(self, deallocations, handle):
        """Return the function that Numba calls when a stream is no longer referenced."""
        return lambda: self.released.append((self.destroy, (int(handle),)))

    def destroy(self, stream):
        self.live.discard(stream)
        if self.is_finished(stream, self.clocks.get(stream, Counter())[stream]):
            self.clocks.pop(stream, None)

    @property
    def has_streams(self):
        """Return whether there are streams besides the default stream."""
        return len(self.clocks) > 1

    def needs_no_record(self, handle):
        """Return whether an operation need not be recorded, because there are no other streams and no
        page-locked memory."""
        memory = self.memory
        if len(self.clocks) > 1 or memory.locked or memory.registered or self.released:
            return False
        return int(handle) in DEFAULT_NAMES

    def finish(self, clock):
        super().finish(clock)
        if self.page_locked.pending:
            self.page_locked.finish(self.is_finished)

    # --- memory that is freed -------------------------------------------------------------------------------

    def memory_freed(self, start, block):
        """Forget the accesses to an allocation. `block` keeps the bytes until this is done."""
        if self.has_streams or self.page_locked.pending:
            self.released.append((self.forget, (start, start + len(block), FREED, block)))

    def page_lock_ended(self, start, size):
        if not self.page_locked.pending:
            return
        self.released.append((self.forget, (start, start + size, UNREGISTERED)))
        # The host may now access the array without a further call.
        if self.lock.acquire(blocking=False):
            try:
                if not self.depth:
                    with self.entered():
                        pass
            finally:
                self.lock.release()

    def forget(self, start, end, event, block=None):
        self.races.free(start, end)
        self.page_locked.free(start, end, event)

    def handle_released(self):
        while self.released:
            function, arguments = self.released.popleft()
            function(*arguments)

    @contextlib.contextmanager
    def entered(self):
        """Return a context manager for a call of the host. It ensures that one thread at a time changes this
        object."""
        with self.lock:
            self.depth += 1
            try:
                if self.depth == 1:
                    self.handle_released()
                yield
            finally:
                self.depth -= 1

    # --- waits of the host, and events ----------------------------------------------------------------------

    def wait_for_stream(self, handle):
        with self.entered():
            self.synchronize(self.key(handle))

    def wait_for_event(self, event):
        with self.entered():
            self.synchronize_event(int(event))

    def wait_for_all(self):
        with self.entered():
            self.synchronize_all()

    def record_event(self, event, handle):
        with self.entered():
            self.record(int(event), self.key(handle))

    def let_wait(self, handle, event):
        """Make a stream wait for an event."""
        with self.entered():
            self.wait(self.key(handle), int(event))

    def is_event_over(self, event):
        with self.entered():
            return self.query(self.events.get(int(event), Counter()))

    def end_test(self):
        """Report copies to the host for which the host has not waited, and forget all operations. Return the
        notes."""
        with self.entered():
            self.page_locked.end()
            self.synchronize_all()
            self.live -= self.foreign
            self.foreign.clear()
            self.clocks = {stream: Counter() for stream in (DEFAULT_STREAM, *self.live)}
            self.events, self.finished, self.races = {}, Counter(), StreamRaces()
            self.asked.clear()
            notes, self.notes = self.notes, {}
        return notes

    def end_phase(self):
        """Handle the memory and the streams that a phase of a test has released, such as the variables of the
        test function. Report a release while an operation may still use the memory."""
        with self.entered():
            pass

    def explain_failure(self, excinfo):
        """Return sentences about pending copies that may have caused a test to fail, or "", and forget these
        copies."""
        with self.entered():
            poisoned = poisoned_variables(excinfo.tb) if self.page_locked.early else []
            text = self.page_locked.explain_failure(poisoned)
            self.page_locked.clear()
        return text

    # --- operations -----------------------------------------------------------------------------------------

    def begin(self, handle):
        """Begin an operation of a stream. Return (stream, number, clock): the clock contains the operations
        before it, and the operation itself."""
        self.issue(self.key(handle))
        stream, number = self.current
        return stream, number, Counter(self.clocks[stream])

    def copy(self, handle, action, writes, reads, waits):
        """Execute a copy, or an operation that fills memory.

        writes, reads: the memory as (start, end, whether it belongs to the host). `reads` can be None.
        waits: whether the host waits for the operation. If it is None, the host waits only if the operation
            uses host memory.
        """
        if self.needs_no_record(handle):
            action()
            return
        sides = [(STORE, *writes)] + ([(LOAD, *reads)] if reads else [])
        bounds, is_locked = [each[1:3] for each in sides], self.memory.is_page_locked
        with self.entered():
            begun = self.begin(handle)
            opened = self.page_locked.open(bounds)
            action()
            locked = [(verb, start, end) for verb, start, end, _ in sides if is_locked(start)]
            site = CallSite(*launching_line()) if self.has_streams or locked else None
            # A copy from pageable memory is staged, so that the host can change the source at once.
            used = locked + [(verb, start, end) for verb, start, end, is_host in sides if not is_host]
            if self.has_streams:
                self.compare(begun, site, footprint_of(used))
            is_pageable = writes[2] and not is_locked(writes[0])
            waits = is_pageable or (bool(locked) if waits is None else waits)
            self.end_copies(begun, site, opened, bounds[:1], locked, waits)

    def call_host(self, handle, function):
        """Call a function of the host in a stream. The operations before it are complete."""
        with self.entered():
            self.begin(handle)
            if self.page_locked.pending:
                self.notes[AFTER_HOST] = None
            self.reach_host()
        function()

    def launch(self, handle, uses, threads, run, footprint=None):
        """Execute a launch.

        uses: its LaunchMemory.
        run(observers): runs it, with additional observers.
        footprint: the memory that it accesses, if that is known without observers.
        """
        with contextlib.ExitStack() as stack:
            if uses.ranges:  # other threads must not access the memory of pending copies during the launch
                stack.enter_context(self.entered())
            with self.entered():
                begun, exact = self.begin(handle), footprint is not None
                opened, site = self.page_locked.open(uses.ranges), None
                if self.has_streams or uses.locked:
                    site = CallSite(*launching_line())
                observers = ()
                if self.has_streams and not exact:
                    exact = self.may_overlap() and self.races.can_record(threads)
                    footprint = LaunchFootprint(uses.device) if exact else uses.estimate()
                    observers = (footprint,) * exact
            try:
                shares = run(observers)
                exact = exact and shares.get(LaunchFootprint.__name__, 1.0) == 1
            finally:
                with self.entered():
                    if self.has_streams:
                        self.compare(begun, site, footprint, exact)
                        self.compare(begun, site, footprint_of(uses.locked))
                    waits = begun[0] == DEFAULT_STREAM and uses.copies_back or uses.copies_back_pageable
                    self.end_copies(begun, site, opened, uses.written, uses.locked, waits)

    def end_copies(self, begun, site, opened, written, locked, waits):
        """End an operation.

        Its copies keep page-locked memory in use, unless the host waits for the operation.

        opened: the result of `PageLocked.open`.
        written: the ranges that the operation has written.
        locked: the page-locked memory that its copies use, as (LOAD or STORE, start, end).
        """
        stream, number, clock = begun
        copies = [] if waits else locked
        added = [
            self.page_locked.new_copy(stream, number, start, end, verb == STORE, site)
            for verb, start, end in copies
        ]
        self.page_locked.close(opened, written, added)
        if waits:
            self.finish(clock)

    def compare(self, begun, site, footprint, exact=True):
        """Report the conflicts of an operation with others."""
        for conflict in self.races.add(self, Operation(*begun, footprint, site, exact)):
            if not (conflict.earlier.exact and exact):
                lines = f"{conflict.earlier.site} and {site}"
                self.notes[f"{NOT_COMPARED} {lines}"] = None
                continue
            verdict = conflict.verdict(self.memory.describe(conflict.address))
            self.report(HostFinding("stream-race", "error", verdict, site, FIX))
        if self.races.forgotten and self.may_overlap():
            self.notes[FORGOTTEN] = None


def footprint_of(used):
    """Return the Footprint of accesses (LOAD or STORE, start, end)."""
    footprint = Footprint()
    for verb, start, end in used:
        footprint.add(verb, start, end - start)
    return footprint
