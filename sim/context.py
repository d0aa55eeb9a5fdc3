"""The state of one launch: the thread that runs, the log of accesses, and the observers that subscribe to its
events.

A Context belongs to one run of one launch. An engine makes it and passes it to everything else.
"""

import sys
import time
from array import array

import numpy as np

from sim.errors import Stuck
from sim.events import (
    ADDRESS_BITS,
    ADDRESS_MASK,
    LOAD,
    SITE_SHIFT,
    SITES,
    Access,
    Batch,
    Decisions,
    EnabledEvents,
    Moment,
)
from sim.frames import FrameSites
from sim.hooks import HOOKS, check_names, listeners
from sim.nouns import plural
from sim.progress import FIRST_LEAP, MAX_LEAP, Clock, ProgressCheck

FLUSH_AT = 1 << 20  # accesses: a longer log is announced at the next switch of threads
DEFAULT_STEPS = 1_000_000  # iterations of `while` loops without progress, before threads are compared
# CPU seconds of this process without progress: before threads are compared for the first time (doubles each
# time that something has changed), and at most
FIRST_PATIENCE, PATIENCE = 1.0, 8.0
# If more than counters still changes, a loop may go on for PATIENCE_FACTOR times PATIENCE, or until the log
# has MAX_LOGGED accesses, which cannot be announced within one loop.
PATIENCE_FACTOR, MAX_LOGGED = 8, 1 << 23


class Context:
    """The state of one run of a launch.

    observers: instances of sim.events.Observer.
    spec: the DeviceSpec.
    space: the AddressSpace.
    block_shape: (x, y, z) threads of a block.
    schedule: the order of threads and blocks (sim.engine.schedules).
    max_steps: the limit of loop iterations that the caller of the launch has set, or None.
    poison: the byte or number that fills unwritten memory; None for the default one.
    """

    def __init__(self, observers, spec, space, block_shape, schedule, max_steps=None, poison=None):
        self.spec, self.space, self.block_shape = spec, space, block_shape
        self.schedule, self.poison = schedule, poison
        # an object that gets the addresses of accesses and checks their alignment (sim.memory.transfer)
        self.alignment = None
        self.kernel, self.language = "", "Numba"  # the kernel's name, and the language that it is written in
        self.outline = lambda site: None  # a function: Site -> the Outline of its text, or None

        # --- facts about the kernel's text
        self.synchronizes = False  # whether threads use the results of atomics, or fences
        self.stores = False  # whether it stores to arrays of the launch
        self.counts_iterations = False  # whether loops around barriers count their iterations
        self.cooperative = False  # whether all blocks must be resident, as for a barrier of the grid
        self.ticking = (
            True  # whether every `while` loop calls `tick`; loops of a kernel without source do not
        )

        # --- observers
        self.observers = observers
        check_names(observers)
        self.listeners = {hook: listeners(observers, hook) for hook in HOOKS}
        self.enabled = EnabledEvents(
            accesses=bool(self.listeners["accesses"]),
            local=any(hook.__self__.local for hook in self.listeners["accesses"]),
            unwritten=bool(self.listeners["unwritten"]),
            branches=bool(self.listeners["branches"]),
        )
        self.in_observer = False  # whether a hook runs now; it may take long, but it ends
        self.silent = {}  # hook that is not called, or not everywhere -> why
        self.notes: dict[str, None] = {}  # notes for the report, each once
        self.findings = []
        self.counters: dict = {"threads": 0, "blocks": 0, "barriers": 0}
        self.trace = None  # a Recording, if an observer makes one

        # --- the log
        self.log = array("q") if self.listeners["accesses"] else None
        self.values = []  # the values that the stores and atomics in the log wrote, in the same order
        # branches: from the lowest bit, 1 bit for whether it was taken, 12 bits of thread, the site's number
        self.decisions = array("q") if self.listeners["branches"] else None
        # (position in the log, thread that appended the accesses from there on), and the last one's number
        self.segments, self.last_segment = [], -1
        self.logged = 0  # accesses that have been announced
        # whether one batch may contain accesses of several blocks that ran alternately
        self.mixes_blocks = not (self.enabled.local or self.enabled.branches)

        # --- sites of atomic accesses, by number
        self.overwriting = set()  # atomics whose result in memory does not depend on the old value: exch
        self.strong = {}  # relaxed and acquiring loads, relaxed and releasing stores -> LOAD or STORE
        self.invalidates = False  # whether the kernel may invalidate mbarriers
        self.invalidating = set()  # segments of the log that do
        # atomics of scope .cta -> LOAD or STORE: to other blocks they are plain accesses of this kind
        self.block_scoped = {}

        self.sites = FrameSites()

        # --- the running thread
        self.thread = None
        self.entered = 0  # how often a thread was resumed
        # accessors of one element, by the array's number of dimensions
        self.load = self.store = ()
        self.live = ()  # blocks that have begun and not ended, if they take turns
        # whether compiled code runs part of the launch now; whether it has written to global memory
        self.runs_compiled = self.wrote = False

        # --- progress
        self.clock = Clock(self)
        # name of a generated function -> its variables that are computed from a clock
        self.timed: dict[str, frozenset] = {}
        self.max_steps = max_steps
        self.progress_check = None  # a ProgressCheck, while threads are being compared
        self.restart_progress()

    # --- observers ------------------------------------------------------------------------------------------

    def announce(self, hook, *facts):
        """Call the hook of each observer that overrides it, and keep the findings that it returns."""
        if not self.listeners[hook]:
            return
        began, self.in_observer = time.monotonic(), True
        for listener in self.listeners[hook]:
            self.findings.extend(listener(*facts) or ())
        self.in_observer = False
        # The time of observers does not count as the kernel's. But a loop may cause refused accesses for
        # ever, and has to end then too.
        if self.since is not None and hook != "access_refused":
            self.since += time.monotonic() - began

    def refuse(self, site, what, array, index):
        """Announce an access outside of `array`, or with a negative index. Errors: IndexError for the
        former, if no observer subscribes to such accesses."""
        if not self.listeners["access_refused"] and any(not -n <= i < n for i, n in zip(index, array.shape)):
            raise IndexError(f"{array.name}{list(index)} is outside its shape {list(array.shape)}")
        self.announce("access_refused", self.witness(what, site), array, index, array.shape)

    def thread_index(self, linear):
        return thread_index(linear, self.block_shape)

    def witness(self, what, site=None, thread=None, value=None):
        """Return the Access by which a finding names a thread (the running one, if not given), with what
        it did and where."""
        thread = thread or self.thread
        return Access(what, thread.block.index, thread.index, None if site is None else SITES[site], value)

    # --- the log --------------------------------------------------------------------------------------------

    def begin_segment(self, thread):
        """Begin a segment of the log: the accesses logged from here on belong to `thread`."""
        if self.log is None:
            return
        if len(self.log) > FLUSH_AT:
            self.flush()
        self.last_segment += 1
        self.segments.append((len(self.log), thread))

    def announce_ordering(self, hook, *facts):
        """Announce an event that may order the running thread's accesses. Its next access begins a new
        segment."""
        if self.listeners[hook]:
            thread = self.thread
            at = Moment(thread.block.index, thread.block.epoch, thread.linear, self.last_segment)
            self.announce(hook, at, *facts)
            self.begin_segment(thread)

    def collective(self, name, block, frame):
        """Announce that threads of `block` do `name` together. `frame` is the stack frame of the call."""
        if self.listeners["collective"]:
            self.announce("collective", name, block.index, self.sites.of_frame(frame, "call"))

    def flush(self):
        """Announce all accesses and branches that are logged, and empty the logs.

        This has to happen before a block's epoch ends. If an observer needs the accesses of all blocks in
        order, it happens also before another block runs.
        """
        if self.log:
            for batch in self.batches():
                self.announce("accesses", batch)
        self.segments.clear()
        if self.decisions:
            entries = np.array(self.decisions, np.int64)
            del self.decisions[:]
            block = self.thread.block
            decided = entries >> 1 & 4095, entries >> 13, entries & 1
            self.announce("branches", Decisions(block.index, block.epoch, *decided))

    def batches(self):
        """Return the accesses in the log as Batches, one for each block, and empty the log."""
        entries, values = np.array(self.log, np.int64), self.values[:]
        positions, threads = zip(*self.segments)
        starts = np.array(positions)
        # the number of accesses in each segment, and the first segment's number
        lengths, first = np.diff(starts, append=len(entries)), self.last_segment - len(starts) + 1
        blocks = dict.fromkeys([thread.block for thread in threads])
        segment = np.repeat(np.arange(first, self.last_segment + 1), lengths)
        thread = np.repeat(np.array([thread.linear for thread in threads], np.int32), lengths)
        position, site = np.arange(len(entries)) + self.logged, (entries >> SITE_SHIFT).astype(np.int32)
        columns = (
            thread,
            segment,
            position,
            site,
            entries & ADDRESS_MASK,
            (1 << (entries >> ADDRESS_BITS & 15)),
        )
        self.logged += len(entries)
        del self.log[:]
        self.values.clear()
        if len(blocks) == 1:
            (block,) = blocks
            return [Batch(block.index, block.epoch, *columns, values)]
        # which block each access, and each value, belongs to
        number_of = {block: number for number, block in enumerate(blocks)}
        home = np.repeat(np.array([number_of[thread.block] for thread in threads]), lengths)
        homes_of_values = home[site & 3 != LOAD].tolist()
        parts = []
        for block, number in number_of.items():
            selected = home == number
            block_values = [value for value, at in zip(values, homes_of_values) if at == number]
            parts.append(
                Batch(block.index, block.epoch, *(column[selected] for column in columns), block_values)
            )
        return [part for part in parts if len(part.address)]

    def branch(self, taken, site):
        """Log the running thread's decision at a branch, and return `taken`."""
        self.decisions.append((site << 12 | self.thread.linear) << 1 | bool(taken))
        return taken

    def unassigned(self, name, zero, site):
        """Announce that the running thread reads a variable to which it has assigned nothing. Return
        `zero` as the variable's value."""
        self.announce("unassigned", self.witness("read", site), name)
        return zero

    def columns(self):
        """Return the Columns in which a report shows the counters of source lines, in their order."""
        columns = dict.fromkeys(column for observer in self.observers for column in observer.columns)
        return tuple(sorted(columns, key=lambda column: column.order))

    def line(self, site):
        """Return the counters of the source line of a site, given by number: a dictionary to which
        observers add."""
        place = SITES[site].function, SITES[site].line
        return self.counters.setdefault("lines", {}).setdefault(place, {})

    # --- progress -------------------------------------------------------------------------------------------

    def restart_progress(self):
        """Note that a thread ended or that another event shows progress: the budget of loop iterations and
        seconds begins from the start."""
        self.steps, self.progress_check = self.max_steps or DEFAULT_STEPS, None
        self.only_counts, self.leap = False, FIRST_LEAP  # since then
        # CPU time at which something changed last (None: before the first look at the clock), and for how
        # long nothing may change
        self.since, self.patience = None, first_patience()

    def tick(self, site):
        """Count one iteration of a `while` loop. When the budget is spent, end the running thread, unless
        something that threads see still changes."""
        self.steps -= 1
        # the clock is read in every 1024th iteration only
        if self.steps < 0 or (not self.steps & 1023 and self.max_steps is None and self.is_slow()):
            self.check_stuck(site, sys._getframe(1))

    def is_slow(self):
        """Return whether the present patience is exceeded, in seconds of CPU time since the last progress."""
        now = time.process_time()
        if self.since is None:
            self.since = self.moved = now  # `moved` stays when something changes without progress
        return now - self.since > self.patience

    def check_stuck(self, site, frame):
        """Decide whether the running thread is stuck. `site` is its loop, `frame` its stack frame.

        Errors: Stuck(site, True) if nothing changes any more, or if the caller's max_steps are spent;
        Stuck(site, False) if something still changes, but for longer than `time_limit()`.
        """
        if self.max_steps:
            raise Stuck(site, True)
        self.progress_check, self.steps = self.progress_check or ProgressCheck(self), min(self.steps, 0)
        check, now = self.progress_check, time.process_time()
        stuck = check.nothing_changes(site, frame)
        if stuck is False:
            self.only_counts = check.only_counts()
        spent = now - self.moved > self.time_limit() or len(self.log or ()) > MAX_LOGGED
        if stuck or stuck is False and spent:
            raise Stuck(site, stuck)
        if stuck is False:
            if check.times_a_wait():
                self.clock.advance(self.leap)
                self.leap = min(self.leap << 10, 1 << MAX_LEAP)
            self.progress_check, self.steps, self.since = None, DEFAULT_STEPS, now
            self.patience = min(2 * self.patience, PATIENCE / 4)

    def time_limit(self):
        """Return for how many seconds a loop may go on while something changes.

        After a finding that is an error, the limit is lower: on a GPU the error may have ended the launch, or
        made the loop endless. It is lower too if only counters change, as where threads take numbers from a
        queue that is empty.
        """
        has_errors = any(finding.severity == "error" for finding in self.findings)
        return PATIENCE if has_errors or self.only_counts else PATIENCE_FACTOR * PATIENCE

    @property
    def activity(self):
        """A value that differs between two moments if anything happened in between. The watchdog compares it.

        New accesses count as activity only if every loop ticks, because then the ticks find endless loops.
        """
        if self.runs_compiled or self.in_observer:
            return object()
        return self.entered, self.steps, self.log and self.ticking and len(self.log)

    def format_budget(self, decided=True):
        """Return a sentence that says what a loop has spent without progress. `decided`: whether nothing
        changes any more."""
        if not decided:
            budget = f"{self.time_limit():g} s or {MAX_LOGGED:,} accesses"
            return f"Something still changes, but no thread ended within {budget}."
        iterations = plural(self.max_steps or DEFAULT_STEPS, "time")
        budget = iterations if self.max_steps else f"{iterations}, or for {first_patience():g} s"
        return f"No thread ended while the loop went round {budget}."


def first_patience():
    """Return the seconds of CPU time without progress before threads are compared for the first time."""
    return min(FIRST_PATIENCE, PATIENCE)


def thread_index(linear, block_shape):
    """Return (x, y, z) of the thread with this linear index in its block."""
    x, y, _ = block_shape
    return linear % x, linear // x % y, linear // (x * y)
