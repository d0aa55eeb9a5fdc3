"""Execution of one compiled launch: runs its blocks in order, collects their error flags, and builds the
Outcome."""

import signal
import time
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from numba.core.compiler_lock import global_compiler_lock

from sim.engine.base import Outcome
from sim.engine.collector import pause_collector
from sim.error_limit import SECONDS_AFTER_ERROR
from sim.events import SITES, Access
from sim.hooks import observer_class
from sim.interpreted import resident_blocks
from sim.memory.argument import arrays_of
from sim.memory.snapshot import Snapshot
from sim.native.codegen import shadow
from sim.native.codegen.int64 import CLOCKS_PER_SECOND
from sim.native.codegen.refreshes import few_refreshes, with_registries
from sim.native.codegen.tiers import SECONDS
from sim.native.lower import definite_assignment
from sim.native.lower.module import CannotLower
from sim.native.run.access_log import Replay, is_logged, replay_observers
from sim.native.run.explain import MAX_RERUN_THREADS
from sim.native.run.grid import run_grid
from sim.native.run.memory import Memory, check_declared, check_writable
from sim.native.split.program import NUMBA_ERRORS, first_line
from sim.native.split.specialize import argument_type, compiled_program
from sim.observers import DEFAULT
from sim.observers.misuse import Misuse, unassigned_variable, without_effect
from sim.observers.races import Races
from sim.observers.uninitialized import Uninitialized
from sim.reruns import format_undecided
from sim.sites import thread_index
from sim.watched import watched

# A block counts as endless if its `for` loops have more iterations than this in total.
FOR_LIMIT = 1 << 34
# The same limits for `while` loops, summed over the threads. LEAST_LIMIT applies if a limit of time is
# exceeded as well. The launch can override both with `max_steps`.
WHILE_LIMIT, LEAST_LIMIT = 1 << 31, 1 << 28
# CPU seconds after which a launch restarts in optimised code if quick code is still running a block. If the
# optimiser needs n > 1 seconds, the limit is n times as long.
QUICK_SECONDS = 1.0
# The interpreter examines whether a `while` loop is endless if a block exceeds this number of iterations, and
# this number of CPU seconds. If it finds nothing, the launch runs again. The block then counts as endless
# after `certain_iterations` and LAST_SECONDS, or after `most_iterations`.
FIRST_LIMIT, FIRST_SECONDS, LAST_SECONDS = 1 << 26, 3.0, 5.0
UNLIMITED = 1 << 62  # a time that no launch takes
LOG_CAPACITY = 1 << 24  # log entries of 8 bytes; the entries of a single block must fit
MAX_PAIRS = 1 << 16  # the number of pairs of racing blocks that one launch can record


class Attempt(Memory):
    """An attempt to run one launch in compiled code.

    The constructor lowers the kernel and allocates memory, `compile` compiles it, and `run` executes the
    blocks. Each of them raises CannotLower if the interpreter has to run the launch instead. After `run`,
    `outcome` is final if `is_clean` is True. Otherwise, `sim.native.run.explain` reruns some of the blocks.

    records: whether compiled code records the accesses with errors (sim.native.run.error_records).
    has_sides: whether compiled code can follow one side of a disagreement (sim.native.codegen.sides).
        Code that records accesses can always follow a side.
    """

    may_raise = True  # whether the kernel can raise Python exceptions

    def __init__(self, launch, records=False, has_sides=False):
        super().__init__(launch)
        self.records, self.has_sides = records, has_sides
        self.observer_classes = set(map(observer_class, launch.observers))
        self.next = 0  # the linear index of the next block to run
        # the linear index of the block before which the launch ends, if it takes too long after an error
        self.stop = launch.blocks
        # An observer that has replayed the log cannot undo its counts, so its launch runs only once.
        first = launch.max_steps or replay_observers(launch.observers)
        self.while_limit = self.most_iterations if first else min(self.most_iterations, FIRST_LIMIT)
        self.prepare()
        self.is_cooperative = "this_grid" in self.used
        self.may_restart = False  # whether quick code may stop because it takes too long
        self.memory_before = None  # (linear index of a block, Snapshot of memory before this block)
        if self.is_cooperative:
            resident_blocks(launch, self.used)
            if replay_observers(launch.observers):
                raise CannotLower(
                    "an observer needs the access log, which compiled code with grid barriers does not write"
                )
        if (
            self.watched
            and self.program.lowered.synchronizes
            and launch.blocks * launch.threads <= MAX_RERUN_THREADS
        ):
            raise CannotLower(
                "its threads act on the results of atomics, so it has to run under several schedules"
            )
        # Compiled code writes to these arrays through raw addresses in the State, so keep them alive.
        self.first_epochs, self.block_errors = np.zeros((2, launch.blocks), np.int64)
        self.pairs = np.empty((MAX_PAIRS, 2), np.int64)
        self.state.first_epochs, self.state.block_errors = (
            self.keep_alive(self.first_epochs),
            self.keep_alive(self.block_errors),
        )
        self.state.pairs, self.state.pair_room = self.keep_alive(self.pairs), MAX_PAIRS
        self.state.ending_flags = self.enabled_flags() & ~shadow.NARROWED
        # Compiled code gets half of the time, because the interpreter has to explain the errors afterwards.
        self.state.time_after_error = int(SECONDS_AFTER_ERROR / 2 * CLOCKS_PER_SECOND)
        self.state.first_time = int(FIRST_SECONDS * CLOCKS_PER_SECOND)
        if launch.max_steps:
            self.lift_time_limit()
        self.compiled_arguments, self.spill_buffer = self.arguments(), self.spill_address()
        self.grid_function = self.program.run_with(self.checks)

    def prepare(self):
        """Lower the kernel, determine which arrays it may write, and allocate shadow memory."""
        launch = self.launch
        self.arrays, numba_types = arrays_of(launch.arguments), tuple(map(argument_type, launch.arguments))
        logs = self.records or is_logged(launch.observers)
        self.program = compiled_program(launch.function, numba_types, logs, self.has_sides)
        lowered = self.program.lowered
        self.used = lowered.module.used
        if lowered.module.prints:
            raise CannotLower("it prints, and would print twice if a block with errors is run again")
        check_declared(lowered.module, launch)
        self.written = [name for name in self.arrays if name.partition("[")[0] in lowered.writes]
        check_writable(self.arrays, lowered.writes)
        self.shadows = self.shadows_of_arguments() if self.watched else {}

    # --- the launch -----------------------------------------------------------------------------------------

    @property
    def most_iterations(self):
        """The number of iterations of `while` loops after which a block counts as endless."""
        return self.launch.max_steps or WHILE_LIMIT

    @property
    def certain_iterations(self):
        """The number of iterations of `while` loops that a block can execute, no matter how long it takes."""
        return min(self.most_iterations, LEAST_LIMIT)

    @property
    def exceeds_first_limit(self):
        """True if the last block exceeded a limit lower than `most_iterations`, before any error."""
        errors = self.block_errors & ~shadow.EXHAUSTED
        errors[self.state.position] = self.state.errors_at_limit
        exceeded = self.state.stopped == shadow.OF_LAUNCH and self.state.while_left < 0
        return exceeded and self.while_limit < self.most_iterations and not errors.any()

    @property
    def is_slow(self):
        """True if the launch has stopped because quick code takes too long for a block."""
        return self.state.stopped == shadow.SLOW

    def begin(self):
        """Copy the arrays that the kernel may write, and prepare the access log if an observer needs it."""
        self.began, self.quick_before = time.process_time(), self.grid_function.seconds
        self.before = Snapshot(self.written_arrays())
        self.replay, self.has_replayed, self.logged = None, False, Outcome()
        if replay_observers(self.launch.observers):
            module = self.program.lowered.module
            self.replay = Replay(self.launch, module, *self.homes(), self.index_of)
        self.log = np.empty(LOG_CAPACITY if self.replay else 0, np.int64)
        self.state.log, self.state.log_room = self.log.ctypes.data, len(self.log)

    def run(self, may_restart=True):
        """Run the blocks in order, up to the last block or to a block that ends the launch.

        may_restart: whether the launch may stop because quick code is slow (`is_slow`).
        """
        self.begin()
        # Observers cannot undo their counts, and blocks of a cooperative launch do not end one by one.
        self.may_restart = may_restart and self.replay is None and not self.is_cooperative
        try:
            self.advance(self.launch.blocks)
        except CannotLower:
            raise
        except Exception:
            if not self.may_raise or self.replay and self.replay.context.in_observer:
                raise
            # The kernel raised an exception. Flag the block, so that the interpreter finds the thread.
            self.block_errors[self.state.position] |= shadow.DIVERGED
        self.may_restart = False
        self.wrote = bool(self.state.wrote)
        self.seconds_per_block = (time.process_time() - self.began) / max(self.next, 1)
        self.unassigned = list(self.unassigned_variables())
        self.is_clean = self.needs_no_explanation()
        self.block_errors &= self.enabled_flags()
        observers, share = [tool for tool in DEFAULT if tool in self.observer_classes], 1.0
        if self.replay and (self.is_clean or not self.is_small):
            self.logged = self.replay.finish()
            observers, share = observers + self.replay.observers, self.replay.share
        self.logged.watched, unwatched = watched(observers, share)
        self.logged.notes += unwatched
        self.replay = None  # `explain` may run blocks again, which must not be logged twice

    def needs_no_explanation(self):
        """Return whether no block that has run so far has an enabled error flag. Otherwise, it must run again
        in the interpreter for an explanation."""
        return not (self.block_errors & self.enabled_flags()).any()

    @property
    def is_small(self):
        """True if the interpreter, after an error, reruns the whole launch instead of selected blocks."""
        return (
            self.is_cooperative
            or self.launch.blocks * self.launch.threads <= MAX_RERUN_THREADS
            and not self.has_replayed
        )

    @property
    def can_record(self):
        """True if compiled code can record the accesses with errors (sim.native.run.error_records)."""
        return not (self.program.lowered.synchronizes or self.is_cooperative)

    def enabled_flags(self):
        """Return the mask of the error flags that matter. These are the flags of subscribed observers, and
        the flags that make any launch invalid."""
        flags_of = {
            Races: shadow.RACE | shadow.BLOCK_RACE,
            Uninitialized: shadow.UNWRITTEN,
            Misuse: shadow.NARROWED,
        }
        subscribed = sum(flags for observer, flags in flags_of.items() if observer in self.observer_classes)
        return shadow.BOUNDS | shadow.DIVERGED | shadow.EXHAUSTED | subscribed

    @property
    def is_compiled(self):
        """True if this process has compiled the kernel for these argument types."""
        return self.grid_function.is_compiled

    @global_compiler_lock  # Numba's registries are not thread-safe
    @few_refreshes()
    def compile(self):
        """Compile the grid function to machine code, unless that has been done for these argument types."""
        run = self.grid_function
        if self.is_compiled:
            return
        numba_types = tuple(map(run.typeof_pyval, self.run_arguments(0, 0, self.spill_buffer)))
        try:
            with pause_collector():
                with_registries(lambda: run.compile(numba_types), NUMBA_ERRORS)
        except NUMBA_ERRORS as error:
            raise CannotLower(f"Numba cannot type it: {first_line(error)}") from error

    def run_arguments(self, first, stop, spill_buffer):
        """Return the arguments of the grid function for the blocks from index `first` up to but not including
        `stop`.

        spill_buffer: the address of their spill buffer.
        """
        launch = self.launch
        loop = first, stop, launch.grid, launch.block, self.while_limit, FOR_LIMIT
        # The blocks of a cooperative launch run in turn, so their times are unknown.
        self.state.further_limit = 0 if self.is_cooperative else self.most_iterations - self.while_limit
        return *loop, self.state.address, spill_buffer, *self.compiled_arguments

    def lift_time_limit(self):
        """Let compiled code continue after an error, and up to the last limit on iterations, without a limit
        of time."""
        self.state.time_after_error = self.state.first_time = UNLIMITED

    @contextmanager
    def results_kept(self):
        """Let blocks run again in this context, and restore the results of `run` afterwards."""
        state, errors, stop = self.state, self.block_errors.copy(), self.stop
        kept = {name: getattr(state, name) for name in ("stopped", "position", "pair_count")}
        try:
            yield
        finally:
            for name, value in kept.items():
                setattr(state, name, value)
            self.stop, self.block_errors[:] = stop, errors

    def is_independent(self, position):
        """Return whether the error flags of a block do not depend on accesses of earlier blocks.

        position: the linear index of the block.
        """
        races = self.block_errors[position] & shadow.BLOCK_RACE
        return not (races or self.is_cooperative or shadow.EMPTY in self.kinds_of_checks())

    def run_before(self, position):
        """Run the blocks before a linear index again, from the start. A second call for the same index only
        restores the contents of memory after these blocks."""
        if self.memory_before and self.memory_before[0] == position:
            self.memory_before[1].restore()
            return
        self.restore()
        self.lift_time_limit()
        with self.results_kept():
            self.advance(position)
        self.memory_before = position, Snapshot(self.written_arrays())

    def run_without_limit(self):
        """Run all blocks again from the start, because the time limit ended a launch without errors."""
        self.restore()
        self.lift_time_limit()
        self.stop, self.state.pair_count = self.launch.blocks, 0
        self.block_errors[:] = 0
        self.run(may_restart=False)

    def advance(self, stop):
        """Run the blocks before linear index `stop` that have not run yet.

        The grid function returns early, with `stopped` set to FULL, when the access log must be replayed. If
        it is LATE, the launch ends before the next block. Raise KeyboardInterrupt if the user pressed Ctrl-C.
        """
        blocks = 1
        while self.next < stop:
            end = self.run_some(min(stop, self.next + blocks), stop)
            self.next, blocks = end, 2 * blocks
            if self.state.stopped in (shadow.FULL, shadow.LATE):
                self.next = self.state.position + 1
            elif self.state.stopped >= shadow.OF_LAUNCH:
                self.next = stop
            if self.state.stopped == shadow.LATE:
                self.stop = stop = self.next
            self.replay_log()
        if self.state.stopped == shadow.INTERRUPTED:
            # Run Python's own SIGINT handler first, because it may raise another exception.
            signal.raise_signal(signal.SIGINT)
            raise KeyboardInterrupt

    def run_some(self, end, stop):
        """Run the next blocks, and return the linear index after the last of them: `end` or `stop`.

        Quick code runs the blocks before `end`. Optimised code runs all blocks before `stop`, and so does a
        launch whose blocks wait for each other.
        """
        run = self.grid_function
        # After an error, the launch ends within seconds, and the optimiser would use up these seconds.
        if run.seconds > SECONDS and self.optimising_saves_time(stop) and self.needs_no_explanation():
            self.optimise()
        self.state.call_began = 0
        may_stop = self.may_restart and not run.optimised
        quick_seconds = QUICK_SECONDS * max(1, run.seconds_to_optimise)
        self.state.quick_time = int(quick_seconds * CLOCKS_PER_SECOND) if may_stop else 0
        end = stop if run.optimised or self.is_cooperative else end
        with run.timed():
            if self.is_cooperative:
                run_grid(self)
            else:
                self.run_blocks(self.next, end, self.spill_buffer)
        return end

    def optimising_saves_time(self, stop):
        """Return whether the time that optimised code would save exceeds the time of the optimiser.

        The kernel is expected to run for as long as it has run in this process, and at least for the blocks
        of this launch before linear index `stop`.
        """
        run = self.grid_function
        per_block = (run.seconds - self.quick_before) / max(1, self.next)
        return run.saves_time(max(run.seconds, per_block * (stop - self.next)))

    def optimise(self):
        """Replace quick machine code with optimised code. The time that this takes does not count as time of
        the launch."""
        began = time.process_time()
        self.grid_function.optimise()
        self.began += time.process_time() - began

    def run_blocks(self, *given):
        """Run blocks in compiled code. The parameters are the same as for `run_arguments`."""
        self.grid_function(*self.run_arguments(*given))

    def replay_log(self):
        """Replay the access log to the observers, and empty it.

        Do nothing for a small launch with errors. The interpreter runs it again from the start, and observers
        cannot undo their counts.
        """
        length, self.state.log_count = self.state.log_count, 0
        if self.replay is None or self.is_small and not self.needs_no_explanation():
            return
        # `log_count` includes the entries that did not fit, so it can exceed the capacity.
        if length <= len(self.log):
            self.has_replayed = True
            self.replay.add(self.log[:length])
        elif self.has_replayed:
            self.replay.skip(self.log)
        else:
            self.restore()
            raise CannotLower(f"one block has more than {LOG_CAPACITY:,} accesses to log")

    def written_arrays(self):
        """Return the arrays that the kernel may write and that outlive the launch."""
        return [self.arrays[name] for name in self.written]

    def restore(self):
        """Restore the arrays to their contents before the launch."""
        self.before.restore()
        self.next = self.state.barriers = self.state.deadline = 0

    def unassigned_variables(self):
        """Yield a finding for each variable that a thread read before assigning it."""
        if Misuse in self.observer_classes:
            for site, name, position, thread in definite_assignment.decode_unassigned(
                self.state.unset, self.program.lowered.module
            ):
                thread = thread_index(thread, self.launch.block)
                yield unassigned_variable(Access("read", self.index_of(position), thread, site), name)

    def number_of_site(self, index):
        """Return the number of a site in SITES. `index` is its index among the module's sites."""
        return SITES.add(self.program.lowered.module.sites[index])

    def operation_at(self, index):
        """Return the name of the instruction at a synchronisation point. `index` is the index of its site."""
        return self.program.lowered.module.operations[index]

    def index_of(self, position):
        """Return the index (x, y, z) in the grid of the block at this linear index."""
        x, y, _ = self.launch.grid
        return position % x, position // x % y, position // (x * y)

    # --- the Outcome ----------------------------------------------------------------------------------------

    def counters(self):
        """Return the launch's counters, including the counters of the observers that replayed the log."""
        blocks, barriers = self.stop, self.state.barriers
        threads = blocks * self.launch.threads
        return {"threads": threads, "blocks": blocks, "barriers": barriers, **self.logged.counters}

    def outcome(self):
        """Return the Outcome of a launch without errors."""
        lowered = self.program.lowered
        notes = ("compiled", format_undecided(1)) if self.watched and lowered.synchronizes else ("compiled",)
        notes, findings = (*notes, *self.logged.notes), [*self.unassigned, *self.logged.findings]
        chose = self.state.read and lowered.stores  # see Misuse.launch_finished
        if Misuse in self.observer_classes and not (self.state.wrote or chose or findings):
            findings += without_effect(self.homes()[0])
        return replace(
            self.logged, findings=findings, counters=self.counters(), notes=notes, code=lowered.code
        )
