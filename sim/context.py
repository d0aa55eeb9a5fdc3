"""The state of one run of a launch: the current thread, the access log, and the observers that subscribe to
events.

An engine creates one Context per run and passes it to every other component.
"""

import time
from array import array
from math import inf, prod

import numpy as np

from sim.access_batches import split_by_block
from sim.compared_values import Probe
from sim.error_limit import ErrorLimit
from sim.events import ADDRESS_BITS, ADDRESS_MASK, SITE_SHIFT, SITES, Access, Decisions, EnabledEvents, Moment
from sim.finding_log import FindingLog
from sim.frames import FrameSites
from sim.hooks import HOOKS, check_names, listeners
from sim.loop_limits import LoopLimits
from sim.progress import Clock, Polls
from sim.sites import block_indices, thread_index

# limit on the number of logged accesses; a longer log is flushed at the next thread switch
FLUSH_AT = 1 << 20
# Epochs of a block of one thread are merged across barriers, until this number of accesses is logged.
MERGED_ACCESSES = 1 << 12
# additional CPU time of an event that may order accesses (an atomic or a fence), measured in turns
ORDERED_TURNS = 4
ACCESSES_PER_TURN = 4  # the number of logged accesses that take as long as a turn
# Hooks that only record the order of threads. Reading the clock twice would take longer than such a hook.
QUICK = set("atomic_done fenced arrived passed copy_sent copies_received copies_tracked".split())
QUICK |= {"warp_synchronized", "warp_exchanged"}


class Context:
    """The state of one run of a launch.

    observers: instances of sim.events.Observer.
    spec: the DeviceSpec.
    space: the AddressSpace.
    block_shape: (x, y, z) threads per block.
    schedule: the order of threads and blocks (sim.engine.schedules).
    max_steps: the caller's limit on loop iterations, or None.
    poison: the byte or number that fills unwritten memory; None for the default.
    lane_poison: the same for a value that a lane reads from an inactive lane; None for the lane's own value.
    """

    def __init__(self, observers, spec, space, block_shape, schedule, max_steps=None, poison=None):
        self.spec, self.space, self.block_shape = spec, space, block_shape
        self.schedule, self.poison, self.lane_poison = schedule, poison, poison
        # the record of the operands of comparisons, if this run records them
        self.probe = poison if isinstance(poison, Probe) else None
        # The value that fills unwritten local memory in PTX, or None for the default. Reruns do not change
        # it, because undefined values from local memory are tracked.
        self.local_poison = None
        self.prints = True  # whether printf in PTX prints
        # Returns whether the function at a Site may copy structures, whose padding has no value.
        self.may_copy_structures = lambda site: False
        # the launch's Alignment, which checks the alignment of accesses (sim.memory.alignment)
        self.alignment = None
        self.kernel, self.language = "", "Numba"  # the kernel's name, and its source language
        self.outline = lambda site: None  # maps a Site to the Outline of its source, or to None
        # Returns the number of instructions of the kernel. For a Python kernel, the number includes the
        # functions that the kernel calls. In PTX, a barrier or warp instruction counts as several
        # (SYNCHRONISATION in sim.ptx.program).
        self.count_instructions = lambda: 0
        self.max_steps = max_steps
        self.sites = FrameSites()
        self.begin_kernel()
        self.begin_observers(observers)
        self.begin_log()
        self.begin_threads()

    # --- state at the start of a run ------------------------------------------------------------------------

    def begin_kernel(self):
        """Set the properties of the kernel to their defaults."""
        self.synchronizes = False  # whether threads use the results of atomics, or fences
        self.needs_schedules = False  # whether the order of the threads can matter because of these uses
        self.stores = False  # whether the kernel stores to arrays that it does not declare itself
        self.counts_iterations = False  # whether loops around barriers count their iterations
        self.loops_around_grid = True  # whether a `while` loop may contain a grid barrier
        self.cooperative = False  # whether all blocks must be resident, as for a grid barrier
        # Whether every `while` loop calls `tick`. The loops of a kernel without source do not.
        self.ticking = True
        # the sites of atomics that do not use the old value, such as exch, and of loads
        self.overwriting = set()
        # site of a relaxed or acquire load, or of a relaxed or release store -> LOAD or STORE
        self.strong = {}
        self.mbarriers = self.invalidates = False  # whether the kernel may initialise or invalidate mbarriers
        self.asynchronous = False  # whether the kernel may use the async proxy (bulk copies, wgmma)
        self.cluster, self.clustered = (1, 1, 1), False  # blocks per cluster; whether there are several
        self.registers_at_launch = None  # registers per thread, if setmaxnreg is used and they are known
        # If dynamic shared memory has several views: {site of an access: its view (Binder.views)}, and the
        # Allocation of this memory.
        self.views, self.dynamic_shared = {}, None
        self.element_bytes = {}  # name of a PTX argument -> bytes per element of its pointer in the source
        self.tensor_maps = {}  # bytes of a tensor map -> its Located (sim.memory.tensor_map)
        self.memory = None  # the Memory of a PTX kernel (sim.ptx.memory)
        # Site of an atomic of scope .cta -> LOAD or STORE, the plain access as which it counts for threads of
        # other blocks.
        self.block_scoped = {}
        # name of a generated function -> its variables that depend on a clock
        self.timed: dict[str, frozenset] = {}
        self.noncoherent: set[int] = set()  # the sites of loads through the read-only cache (ld.global.nc)
        self.speculative: set[int] = set()  # the sites of loads whose value a thread may discard
        # the code object of the kernel, and the lines of the loop that all threads enter with the same values
        self.common_loop: tuple[object, range] = (None, range(0))
        # site of a loop -> the local variables, if they alone decide how many iterations follow
        self.deciding: dict[int, frozenset] = {}
        # site of a loop that searches memory -> its Search (sim.frontend.searches)
        self.searches: dict[int, object] = {}
        # site of a loop -> site of the load that a compiler moved out of it (sim.ptx.hoisted)
        self.hoisted: dict[int, int] = {}
        # (function, called function) in generated code -> site of the first such call; None if a pointer is
        # called
        self.call_sites: dict[tuple[str, str | None], int] = {}

    def begin_observers(self, observers):
        """Subscribe the observers to the events whose hooks they override."""
        self.observers = observers
        check_names(observers)
        self.listeners = {hook: listeners(observers, hook) for hook in HOOKS}
        self.enabled = EnabledEvents(
            accesses=bool(self.listeners["accesses"]),
            local=any(hook.__self__.local for hook in self.listeners["accesses"]),
            unwritten=bool(self.listeners["unwritten"]),
            branches=bool(self.listeners["branches"]),
            comparisons=self.probe is not None,
        )
        self.orderer = None  # the first observer that keeps the happens-before order (sim.observers.order)
        self.coverage = None  # a Coverage, if the coverage determines whether the launch runs again
        self.in_observer = False  # Whether a hook is running. A hook may be slow, but it returns.
        self.silent = {}  # hook that is never called, or not for every event -> the reason
        self.notes: dict[str, None] = {}  # notes for the report, stored as keys so that each appears once
        self.findings = FindingLog()
        self.error_limit = ErrorLimit(self)
        # CPU time at which the current epoch began: the last start of a block, or opening of a block barrier
        self.epoch_time = time.process_time()
        self.ended_early = False  # whether the launch was ended because it took too long after an error
        self.counters: dict = {"threads": 0, "blocks": 0, "barriers": 0}
        self.trace = None  # the Recording, if an observer creates one

    def begin_log(self):
        """Start empty logs of accesses (bit layout in sim.events) and of branches, if observers need them."""
        self.log = array("q") if self.listeners["accesses"] else None
        self.values = []  # values written by the logged stores and atomics, in order
        # Fields of an entry for a branch, from the lowest bit: 1 bit (whether it was taken), 12 bits (the
        # thread), the site's number.
        self.decisions = array("q") if self.listeners["branches"] else None
        # For each segment since the last flush, `starts` has its first log position, and `owners` its thread.
        # `earlier` is the number of segments before that flush.
        self.starts, self.owners, self.earlier = array("q"), [], 0
        self.logged = 0  # number of accesses flushed so far
        # Loads and stores that copy a structure (sim.ptx.struct_copies). The keys are positions in the log.
        # The value of a load is (first byte, end) of the structure relative to the address, the line in the
        # PTX, and the bytes with which the kernel computes. The value of a store lists its sources, as
        # (position of the load, byte in the load, byte in the store, bytes).
        self.copied_loads, self.copied_stores = {}, {}
        # whether one batch may contain interleaved accesses of several blocks
        self.mixes_blocks = not (self.enabled.local or self.enabled.branches)

        # whether each block has one thread, and no observer needs the epochs of such blocks
        self.merges_epochs = prod(self.block_shape) == 1 and not any(
            getattr(hook.__self__, "lone_barriers", True)
            for name in ("accesses", "barrier_opened", "block_ended")
            for hook in self.listeners[name]
        )
        self.ended = []  # the blocks that have ended, but whose accesses are still in the log
        # the numbers of entries, values and segments in the log when the last of these blocks ended
        self.ended_log = (0, 0, 0)
        self.invalidating = set()  # log segments that invalidate an mbarrier
        # the log segments of operations of the async proxy; (block, address) of the mbarriers that expect too
        # few bytes
        self.async_segments, self.early_barriers = set(), set()

    def begin_threads(self):
        """Initialise the state of the threads and the counters of their progress."""
        self.thread = None
        self.entered = 0  # number of times that any thread has been resumed
        self.ordered = 0  # number of events that may order accesses, such as atomics and fences
        # single-element accessors, indexed by the array's rank
        self.load = self.store = ()
        self.max_turns = inf  # the value of `turns` at which a rerun of the first part of a launch ends
        self.live = ()  # the blocks that have started and not ended, if several blocks run concurrently
        self.pending = ()  # the blocks that have not started, if several blocks run concurrently
        self.resident = inf  # the number of blocks that the device holds at a time
        self.changes = 0  # the number of atomics that have changed memory
        self.runs_compiled = False  # whether compiled code is running
        self.wrote = False  # whether compiled code has written to global memory
        self.named_calls = {}  # (block, thread) -> {(number, count)} of the named barriers that it has called
        self.grid_barriers = set()  # the sites of the grid barriers of cooperative groups in PTX
        self.stateless = {}  # (id of a code object, position) -> result of sim.engine.attempts.is_stateless
        self.clock, self.polls = Clock(self), Polls(self)
        self.loops = LoopLimits(self)

    # --- observers ------------------------------------------------------------------------------------------

    def announce(self, hook, *facts):
        """Call the hook of each observer that overrides it, and collect the findings that it returns."""
        if not self.listeners[hook]:
            return
        if hook in QUICK:
            for listener in self.listeners[hook]:
                self.findings.extend(listener(*facts) or ())
            return
        # Read the clock only if a loop is being timed, because reading it takes longer than many hooks.
        began = 0 if self.loops.since is None else time.process_time()
        self.in_observer = hook != "access_refused"
        for listener in self.listeners[hook]:
            self.findings.extend(listener(*facts) or ())
        self.in_observer = False
        # Observer time does not count against the kernel, and the watchdog does not end it. There are two
        # exceptions: a loop that triggers `access_refused` forever must still end, and after an error the
        # launch has to end soon.
        if began and hook != "access_refused":
            self.loops.exclude(time.process_time() - began)

    def refuse(self, site, what, array, index):
        """Report an access with an out-of-bounds or negative index.

        Raise IndexError for an out-of-bounds index if no observer subscribes to refused accesses.
        """
        if not self.listeners["access_refused"] and any(not -n <= i < n for i, n in zip(index, array.shape)):
            raise IndexError(f"{array.name}{list(index)} is outside its shape {list(array.shape)}")
        self.announce("access_refused", self.witness(what, site), array, index, array.shape)

    def thread_index(self, linear):
        return thread_index(linear, self.block_shape)

    def witness(self, what, site=None, thread=None, value=None):
        """Return an Access that identifies a thread in a finding, with its action and site. The default is
        the current thread."""
        thread = thread or self.thread
        return Access(what, thread.block.index, thread.index, None if site is None else SITES[site], value)

    def cluster_blocks(self, block):
        """Return the indices of the blocks in a block's cluster, in the order of their ranks."""
        return block_indices(block, self.cluster)

    def begin_epoch(self):
        """Store the CPU time at which an epoch begins. After an error, keep the time of the epoch with the
        error."""
        if not self.has_errors:
            self.epoch_time = time.process_time()

    # --- the log --------------------------------------------------------------------------------------------

    def begin_segment(self, thread):
        """Start a segment of the log: all accesses logged after this call belong to `thread`."""
        log = self.log
        if log is None:
            return
        if len(log) > FLUSH_AT:
            self.flush()
        self.starts.append(len(log))
        self.owners.append(thread)

    @property
    def last_segment(self):
        """The number of the last segment."""
        return self.earlier + len(self.owners) - 1

    @property
    def turns(self):
        """The number of thread resumptions, atomics and fences so far."""
        return self.entered + self.last_segment + 1

    @property
    def effort(self):
        """The turns so far, weighted by CPU time: an atomic or a fence takes longer than a resumption."""
        return self.turns + ORDERED_TURNS * self.ordered

    @property
    def work(self):
        """The effort so far, including the logged accesses, in turns. On an idle machine, a turn takes 5 to
        8 µs of CPU time."""
        return self.effort + (self.logged + len(self.log or ())) // ACCESSES_PER_TURN

    def moment(self):
        """Return the Moment of the current thread."""
        block = self.thread.block
        return Moment(block.index, block.epoch, self.thread.linear, self.last_segment)

    def announce_ordering(self, hook, *facts):
        """Report an event that may order the current thread's accesses, and start a new segment.

        Return the Moment of the event, or None if no observer subscribes to it.
        """
        if not self.listeners[hook]:
            return None
        self.ordered += 1
        at = self.moment()
        self.announce(hook, at, *facts)
        self.begin_segment(self.thread)
        return at

    def collective(self, name, block, frame):
        """Report that threads of `block` perform the operation `name` together. `frame` is the caller's stack
        frame."""
        if self.listeners["collective"]:
            self.announce("collective", name, block.index, self.sites.of_frame(frame, "call"))

    def callers_of_barrier(self, block, barrier):
        """Return the number of threads of a block that have called a named barrier.

        barrier: (number, count), or None for no barrier.
        """
        return sum(of == block and barrier in calls for (of, _), calls in self.named_calls.items())

    def flush(self):
        """Pass all logged accesses and branches to the observers, and clear the logs.

        The engine must call this before a block's epoch ends. If an observer needs the accesses of all blocks
        in order, the engine also calls it before switching to another block.
        """
        if self.log:
            for batch in self.batches():
                self.announce("accesses", batch)
        self.earlier += len(self.owners)
        del self.starts[:]
        self.owners.clear()
        ended, self.ended = self.ended, []
        for block in ended:
            self.announce("block_ended", block.index, block.epoch)
        if self.decisions:
            entries = np.array(self.decisions, np.int64)
            del self.decisions[:]
            block = self.thread.block
            decided = entries >> 1 & 4095, entries >> 13, entries & 1
            self.announce("branches", Decisions(block.index, block.epoch, *decided))

    def end_block(self, block):
        """Report that a block has ended.

        If no other block runs, its accesses may stay in the log. They are then passed to the observers
        together with the accesses of later blocks.
        """
        if self.log is not None and self.may_merge_epochs() and len(self.live) <= 1:
            self.ended.append(block)
            self.ended_log = len(self.log), len(self.values), len(self.owners)
        else:
            self.flush()
            self.announce("block_ended", block.index, block.epoch)

    def flush_ended(self):
        """Pass the logged accesses of ended blocks to the observers. The accesses of other blocks stay in the
        log."""
        if not self.ended:
            return
        entries, values, segments = self.ended_log
        rest = self.log[entries:], self.values[values:], self.starts[segments:], self.owners[segments:]
        del self.log[entries:], self.values[values:], self.starts[segments:], self.owners[segments:]
        self.flush()
        self.log.extend(rest[0])
        self.values.extend(rest[1])
        self.starts.extend(start - entries for start in rest[2])
        self.owners.extend(rest[3])

    def may_merge_epochs(self):
        """Return whether the current epoch of a block may continue after a barrier.

        A barrier of a single thread orders nothing. Merged epochs save time, because the observers need as
        long for an epoch with one access as for an epoch with a hundred.
        """
        return self.merges_epochs and self.loops.since is None and len(self.log or ()) < MERGED_ACCESSES

    def batches(self):
        """Return the logged accesses as Batches, one per block, and clear the log."""
        entries, values = np.frombuffer(self.log, np.int64).copy(), self.values[:]
        starts, owners = np.frombuffer(self.starts, np.int64), self.owners
        lengths = np.empty_like(starts)
        np.subtract(starts[1:], starts[:-1], lengths[:-1])
        lengths[-1] = len(entries) - starts[-1]
        used = lengths.nonzero()[0]  # Many threads make no access between two barriers.
        lengths, threads = lengths[used], [owners[number] for number in used.tolist()]
        segment = (used + self.earlier).repeat(lengths)
        thread = np.array([thread.linear for thread in threads], np.int32).repeat(lengths)
        position = np.arange(self.logged, self.logged + len(entries))
        site = (entries >> SITE_SHIFT).astype(np.int32)
        columns = thread, segment, position, site, entries & ADDRESS_MASK, 1 << (entries >> ADDRESS_BITS & 15)
        if self.coverage is not None and self.coverage.left:
            self.coverage.add(site)
        self.logged += len(entries)
        del starts, self.log[:]  # An array cannot be resized while numpy refers to it.
        self.values.clear()
        return split_by_block([thread.block for thread in threads], lengths, columns, values)

    def branch(self, taken, site):
        """Log the current thread's decision at a branch, and return `taken`."""
        self.decisions.append((site << 12 | self.thread.linear) << 1 | bool(taken))
        return taken

    def unassigned(self, name, zero, site):
        """Report that the current thread reads an unassigned variable. Return `zero` as its value."""
        self.announce("unassigned", self.witness("read", site), name)
        return zero

    def columns(self):
        """Return the Columns that display the observers' counters, in display order."""
        columns = dict.fromkeys(column for observer in self.observers for column in observer.columns)
        return tuple(sorted(columns, key=lambda column: column.order))

    def line(self, site):
        """Return the counters for a site's source line, a dictionary that observers update."""
        place = SITES[site].function, SITES[site].line
        return self.counters.setdefault("lines", {}).setdefault(place, {})

    # --- progress -------------------------------------------------------------------------------------------

    @property
    def has_errors(self):
        """True if an error has been found, or is expected."""
        return self.findings.has_errors

    def withdraw(self, findings):
        """Remove these findings, because others replace them."""
        if findings:
            self.findings.withdraw(findings)
            self.error_limit.seen = 0

    @property
    def runs_kernel(self):
        """True while a thread is interpreted. False in an observer or in compiled code."""
        return not (self.runs_compiled or self.in_observer)

    @property
    def activity(self):
        """A value that changes whenever anything happens in the launch. The watchdog compares it.

        New accesses count only if every loop calls `tick`, because `tick` then detects endless loops.
        """
        if not self.runs_kernel:
            return object()
        return self.entered, self.loops.steps, self.log and self.ticking and len(self.log)
