"""One compiled launch: its blocks in order, its error flags, and its Outcome."""

import signal
from dataclasses import replace

import numpy as np
from numba.core.errors import NumbaError

from sim.context import thread_index
from sim.engine.base import Outcome
from sim.engine.collector import pause_collector
from sim.events import Access
from sim.hooks import observer_class
from sim.memory.argument import arrays_of
from sim.native.codegen import shadow
from sim.native.lower import definite_assignment
from sim.native.lower.module import CannotLower
from sim.native.run.access_log import Replay, is_logged, replay_observers
from sim.native.run.explain import FEW
from sim.native.run.memory import Memory, check_declared, check_writable
from sim.native.split.program import first_line
from sim.native.split.specialize import argument_type, compiled_program
from sim.observers import DEFAULT
from sim.observers.misuse import Misuse, unassigned_variable
from sim.observers.races import Races
from sim.observers.uninitialized import Uninitialized
from sim.reruns import format_undecided
from sim.watched import watched

FOR_LIMIT = 1 << 34  # iterations of `for` loops in one block, after which it counts as endless
WHILE_LIMIT = 1_000_000  # iterations of `while` loops in one block; a launch's `max_steps` replaces it
LOG_CAPACITY = 1 << 24  # entries that one block may log, of 8 bytes each
MOST_PAIRS = 1 << 16  # pairs of racing blocks that a launch records


class Attempt(Memory):
    """One launch in compiled code. It raises CannotLower where the interpreter has to run the launch."""

    may_raise = True  # whether the kernel's threads may raise exceptions

    def __init__(self, launch):
        super().__init__(launch)
        self.tools = set(map(observer_class, launch.observers))
        self.next = 0  # position of the next block to run
        self.while_limit = launch.max_steps or WHILE_LIMIT
        self.prepare()
        if self.watched and self.program.lowered.synchronizes and launch.blocks * launch.threads <= FEW:
            raise CannotLower(
                "its threads act on what atomics tell them, which is judged under several schedules"
            )
        self.first_epochs, self.block_errors = np.zeros((2, launch.blocks), np.int64)
        self.pairs = np.empty((MOST_PAIRS, 2), np.int64)
        self.state.first_epochs, self.state.block_errors = (
            self.keep_alive(self.first_epochs),
            self.keep_alive(self.block_errors),
        )
        self.state.pairs, self.state.pair_room = self.keep_alive(self.pairs), MOST_PAIRS
        self.given = self.arguments()
        self.compile()

    def prepare(self):
        """Look up the compiled kernel, and find the arrays that it may write."""
        launch = self.launch
        self.arrays, numba_types = arrays_of(launch.arguments), tuple(map(argument_type, launch.arguments))
        self.program = compiled_program(launch.function, numba_types, is_logged(launch.observers))
        lowered = self.program.lowered
        if lowered.module.prints:
            raise CannotLower("it prints, and a block that has a finding runs again")
        check_declared(lowered.module, launch)
        self.written = [name for name in self.arrays if name.partition("[")[0] in lowered.writes]
        check_writable(self.arrays, lowered.writes)
        self.shadows = self.shadows_of_arguments() if self.watched else {}

    # --- the launch -----------------------------------------------------------------------------------------

    def run(self):
        """Run the blocks in order, until the last one or until a block ends the launch."""
        self.saved = {name: self.arrays[name].copy() for name in self.written}
        module = self.program.lowered.module
        self.replay, self.has_replayed, self.logged = None, False, Outcome()
        if replay_observers(self.launch.observers):
            self.replay = Replay(self.launch, module, *self.homes(), self.index_of)
        self.log = np.empty(LOG_CAPACITY if module.logs else 0, np.int64)
        self.state.log, self.state.log_room = self.log.ctypes.data, len(self.log)
        try:
            self.advance(self.launch.blocks)
        except CannotLower:
            raise
        except Exception:  # the kernel raised it, unless an observer did: the interpreter finds the thread
            if not self.may_raise or self.replay and self.replay.context.in_observer:
                raise
            self.block_errors[self.state.position] |= shadow.DIVERGED
        self.wrote = bool(self.state.wrote)
        self.unassigned = list(self.unassigned_variables())
        self.is_clean = self.needs_no_explanation()
        self.block_errors &= self.enabled_flags()
        observers, share = [tool for tool in DEFAULT if tool in self.tools], 1.0
        if self.replay and (self.is_clean or not self.is_small):
            self.logged = self.replay.finish()
            observers, share = observers + self.replay.observers, self.replay.share
        self.logged.watched, unwatched = watched(observers, share)
        self.logged.notes += unwatched
        self.replay = None  # blocks that run again must not be logged twice

    def needs_no_explanation(self):
        """Return whether the compiled blocks so far reported nothing that the interpreter must rerun to
        explain."""
        if (self.block_errors & self.enabled_flags()).any():
            return False
        empty = not any(array.size for array in self.arrays.values())
        return empty or self.next < self.launch.blocks or bool(self.state.wrote) or Misuse not in self.tools

    @property
    def is_small(self):
        """True if the interpreter runs the whole launch again when a block has an error flag."""
        return self.launch.blocks * self.launch.threads <= FEW and not self.has_replayed

    def enabled_flags(self):
        """Return the mask of enabled error flags: those of subscribed observers, and those that end any
        launch."""
        asked = {
            Races: shadow.RACE | shadow.BLOCK_RACE,
            Uninitialized: shadow.UNWRITTEN,
            Misuse: shadow.NARROWED,
        }
        asked = sum(flags for tool, flags in asked.items() if tool in self.tools)
        return shadow.BOUNDS | shadow.DIVERGED | shadow.EXHAUSTED | asked

    def compile(self):
        run = self.program.run
        if run.overloads:
            return
        try:
            with pause_collector():
                run.compile(tuple(map(run.typeof_pyval, self.run_arguments(0))))
        except NumbaError as error:
            raise CannotLower(f"Numba cannot type it: {first_line(error)}") from error

    def run_arguments(self, stop):
        """Return the arguments with which the compiled kernel runs the blocks from the next one up to
        `stop`."""
        launch = self.launch
        walk = self.next, stop, launch.grid, launch.block, self.while_limit, FOR_LIMIT
        return *walk, self.state.address, *self.given

    def advance(self, stop):
        """Run the blocks before `stop` that have not run yet."""
        while self.next < stop:
            self.program.run(*self.run_arguments(stop))
            self.next = self.state.position + 1 if self.state.stopped == shadow.FULL else stop
            self.replay_log()
        if self.state.stopped == shadow.INTERRUPTED:
            signal.raise_signal(signal.SIGINT)
            raise KeyboardInterrupt

    def replay_log(self):
        """Replay the log to the observers. Skip this for a launch that the interpreter will run again as a
        whole, because observers cannot take back their counts."""
        length, self.state.log_count = self.state.log_count, 0
        if self.replay is None or self.is_small and not self.needs_no_explanation():
            return
        if length <= len(self.log):
            self.has_replayed = True
            self.replay.add(self.log[:length])
        elif self.has_replayed:
            self.replay.skip(self.log)
        else:
            self.restore()
            raise CannotLower(f"one block has more than {LOG_CAPACITY:,} accesses to log")

    def restore(self):
        """Restore the arguments' contents from before the launch."""
        for name, array in self.saved.items():
            self.arrays[name][...] = array
        self.next = self.state.barriers = 0

    def unassigned_variables(self):
        """Yield a finding for each variable that a thread read before it assigned it."""
        if Misuse in self.tools:
            for site, name, position, thread in definite_assignment.decode_unassigned(
                self.state.unset, self.program.lowered.module
            ):
                thread = thread_index(thread, self.launch.block)
                yield unassigned_variable(Access("read", self.index_of(position), thread, site), name)

    def index_of(self, position):
        x, y, _ = self.launch.grid
        return position % x, position // x % y, position // (x * y)

    # --- the Outcome ----------------------------------------------------------------------------------------

    def counters(self):
        blocks, barriers = self.launch.blocks, self.state.barriers
        threads = blocks * self.launch.threads
        return {"threads": threads, "blocks": blocks, "barriers": barriers, **self.logged.counters}

    def outcome(self):
        lowered = self.program.lowered
        notes = ("compiled", format_undecided(1)) if self.watched and lowered.synchronizes else ("compiled",)
        notes, findings = (*notes, *self.logged.notes), [*self.unassigned, *self.logged.findings]
        return replace(
            self.logged, findings=findings, counters=self.counters(), notes=notes, code=lowered.code
        )
