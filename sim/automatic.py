"""The engine "auto": interprets a launch, and compiles it if it turns out to be long.

Most launches end in the interpreter before a compiler would be ready. How long a launch takes is unknown
before it has run, so the interpreter counts its work: accesses, and turns of threads. Loops without accesses
are not counted, so the interpreter also measures CPU time. This time matters only if the launch is estimated
to take longer than the compiler, so the engine of a shorter launch does not depend on the machine.

The work that is left is estimated from the blocks. Before the first block has ended, each block that has not
started is expected to take as much work as a started block has taken so far. At least as much work is
expected to be left as has been done. Later, each block is expected to take the average work of the blocks
that have ended.

The kernel is compiled if this estimate exceeds the work that the interpreter could do while the kernel is
compiled. The compile time is estimated from the number of instructions. If these estimates are correct, a
launch of one block without errors takes at most twice as long as on the better engine, and a launch of many
blocks is compiled soon. The interpreted run is then abandoned, memory is restored, and compiled code runs the
launch from its start. If the kernel cannot be compiled, the interpreted run continues.

The work of a launch, and its CPU time, also count for later launches of the same kernel. A program that has
launched a kernel many times probably launches it again, so the kernel is compiled although each of these
launches is short. Launches with findings do not count.
"""

import copy
import time
import weakref
from dataclasses import replace
from functools import cache
from math import inf, prod
from typing import Any

from sim.engine.base import Kernel
from sim.engine.fiber import Fiber
from sim.engine.grid import Grid
from sim.errors import LaunchError
from sim.hooks import observer_class
from sim.interpreted import Interpreted
from sim.memory.snapshot import Snapshot
from sim.observers import COUNTERS, DEFAULT

# The work per second. An access is one unit, and a turn of a thread is TURN units. A unit takes 1 to 2 µs of
# CPU time in the interpreter, or up to 7 µs with much arithmetic, and twice as long in a kernel from PTX.
WORK, TURN = 1 << 20, 8
# Work is also measured by CPU time: SECONDS of CPU time count as WORK units. The clock is read when a block
# has ended, and when the number of turns has grown by 1 / READINGS or by READING_INTERVAL. An estimate from
# less than LEAST_TIME seconds would contain the start of the launch.
SECONDS, READINGS, READING_INTERVAL, LEAST_TIME = 1.0, 8, 1 << 7, 1 / 8
# Times in this file are CPU seconds of a reference machine, on which `time_of_loop` returns LOOP_SECONDS.
LOOP_SECONDS = 105e-6
# Factor by which a unit of work takes longer in a kernel with mbarriers. There, the observers order the
# accesses by the arrivals and waits of single threads.
MBARRIER_FACTOR = 8
# The seconds to compile a short kernel, the additional seconds for the first kernel that a process compiles,
# and the number of instructions that one more second compiles. These numbers were fitted to 11 kernels of
# tests/sim/bench_launches.py. The measured times are between 0.8 and 1.2 times the estimate.
COMPILE_SECONDS, FIRST_SECONDS, INSTRUCTIONS = 0.1, 0.2, 2900
# The seconds to start a kernel that this process has already compiled. If such a kernel is restarted
# unnecessarily, little time is lost, so an estimate from LEAST_RESTART_TIME seconds is good enough.
RESTART_SECONDS, LEAST_RESTART_TIME = 1 / 16, 1 / 64
# The maximum number of bytes to copy before a launch is the sum of a constant and of a number per thread.
BYTES, BYTES_OF_THREAD = 1 << 20, 1 << 14
# kernel -> the work of its launches in this process that were interpreted to their end without findings
EARLIER_WORK: "weakref.WeakKeyDictionary[Any, float]" = weakref.WeakKeyDictionary()
NOTE = (
    "started in the interpreter, then restarted as compiled code, because the kernel's launches take long in"
    " total"
)


taken_over: "weakref.WeakSet[Any]" = weakref.WeakSet()  # kernels that this process has compiled


def time_of_loop():
    """Return the CPU seconds that a short loop in Python takes."""
    began, counts = time.thread_time(), {}
    for number in range(2000):
        counts[number & 63] = counts.get(number & 63, 0) + abs(number)
    return time.thread_time() - began


@cache
def slowness():
    """Return the time that this machine takes for Python code, as a multiple of the reference machine's time.

    On a slow machine, a launch and the compilation of its kernel both take longer. Without this factor, the
    kernel would be compiled too early on a slow machine, and too late on a fast one.
    """
    return min(time_of_loop() for _ in range(5)) / LOOP_SECONDS


class TakenOver(BaseException):
    """An exception that abandons an interpreted run. It is raised between the turns of two threads, or in a
    loop of a thread, and never leaves the engine.

    attempt: the compiled launch (sim.native.run.launch.Attempt).
    """

    def __init__(self, attempt):
        self.attempt = attempt


class Automatic:
    """The engine "auto". Implements the engine interface of sim.engine.base.

    native_engine: a function that returns the native engine, or raises LaunchError if Numba is not installed.
    work: the work of a second.
    """

    def __init__(self, native_engine, work=WORK):
        self.native_engine, self.work = native_engine, work

    def run(self, launch):
        """Run a launch and return its Outcome, which names the engine that ran it."""
        grids = []

        def make_grid(*given):
            # Reruns under other schedules are always interpreted.
            grids.append(Grid(*given) if grids else WatchedGrid(self, launch, *given))
            return grids[-1]

        try:
            outcome = Interpreted(Fiber).run(launch, make_grid)
            outcome.engine = "fibers"
            return outcome
        except TakenOver as signal:
            attempt = signal.attempt
        finally:
            for grid in grids[:1]:
                grid.stop_watching()
        outcome = self.native_engine().complete(attempt)
        first, *others = outcome.notes
        outcome.engine, outcome.notes = "native", (first, NOTE, *others)
        return outcome


class WorkLeft:
    """An estimate of the work that is left for a launch, by one measure of work.

    blocks: the number of blocks of the launch.
    """

    def __init__(self, blocks):
        self.blocks = blocks
        # the number of blocks whose average work is known, and the sum of their work
        self.done, self.work_of_done = 0, 0.0

    def block_ended(self, started, work):
        """Store the work that the launch has done so far. Call this method at the end of a block.

        started: the number of blocks that have started.
        """
        # The block that started last may have done little. The other blocks that have started have done about
        # the same work, even if they have not ended, for example up to a grid barrier.
        self.done, self.work_of_done = max(1, started - 1), work

    def estimate(self, started, work):
        """Return the work that is left, given the number of started blocks and the work done so far."""
        if not self.done:
            return work * max(1, self.blocks / started - 1)
        average, current = self.work_of_done / self.done, work - self.work_of_done
        # If the current block already exceeds the average work, assume that it will finally exceed it by
        # twice as much.
        block = max(average, 2 * current - average)
        return self.blocks * (self.work_of_done + block) / (self.done + 1) - work


class WatchedGrid(Grid):
    """A grid whose launch compiled code takes over if it is long.

    engine: the Automatic.
    launch: the Launch.
    given: the parameters of Grid.
    """

    def __init__(self, engine, launch, *given):
        super().__init__(*given)
        self.engine, by_ptx = engine, isinstance(launch.function, Kernel)
        # A Kernel is made for each launch, and refers to the function in the module's PTX.
        self.identity = launch.function.function if by_ptx else launch.function
        self.second = engine.work / (2 if by_ptx else 1) / (MBARRIER_FACTOR if self.context.mbarriers else 1)
        # Counting the instructions of a Python kernel takes a few ms, so `work_to_compile` is called late.
        self.needed = None
        self.earlier, self.counts = EARLIER_WORK.get(self.identity, 0.0), False
        self.time_left, self.counted_left = WorkLeft(self.blocks), WorkLeft(self.blocks)
        # `ended_before`: the number of blocks that had ended when the CPU clock was last read. `began`: the
        # CPU clock at the start of the launch. `next_reading`: the number of turns at the next reading.
        self.ended_before, self.began, self.next_reading = 0, time.thread_time(), 1
        self.arrays = self.context.space.writable_bytes()
        if self.may_be_compiled(launch):
            self.launch, self.before = with_own_observers(launch), Snapshot(self.arrays)
            self.enter_thread, self.scheduler.enter = self.scheduler.enter, self.enter
            # The first turn of a thread can be a long loop, so `decide` is also called within loops. It is
            # called only if something changes, because the interpreter finds endless loops soon enough.
            self.context.loops.when_changed = self.decide
            self.counts = True  # whether this launch counts for later launches

    def run(self, *given):
        super().run(*given)
        self.count_for_later_launches()

    def run_without_waiting(self):
        super().run_without_waiting()
        self.count_for_later_launches()

    def count_for_later_launches(self):
        """Add the work of this launch, which has ended, to that of earlier launches."""
        if self.counts and not self.context.findings:
            EARLIER_WORK[self.identity] = self.earlier + max(self.time_as_work(), self.counted())

    def counted(self):
        """Return the work that this launch has done so far."""
        context = self.context
        return TURN * context.entered + context.logged + len(context.log or ())

    def time_as_work(self):
        """Return the CPU time that this launch has taken so far, converted to work."""
        return self.second * (time.thread_time() - self.began) / (SECONDS * slowness())

    def may_be_compiled(self, launch):
        """Return whether compiled code would give the same findings, values and counters, and whether a copy
        of memory takes little time.

        This does not examine the kernel's instructions, some of which have no compiled form.
        """
        counting = () if isinstance(launch.function, Kernel) else COUNTERS
        observed = all(each in counting or observer_class(each) in DEFAULT for each in launch.observers)
        # Threads that act on the results of atomics, or wait for other blocks, depend on the order of blocks.
        # Fences, and loops that wait at mbarriers, do not depend on it by themselves.
        ordered = self.context.synchronizes or self.scheduler.atomics_yield
        if self.context.mbarriers:
            ordered = self.context.needs_schedules
        # Copying large arrays takes longer than many launches.
        most_bytes = BYTES + BYTES_OF_THREAD * launch.blocks * launch.threads
        small = sum(array.size for array in self.arrays) <= most_bytes
        return observed and small and not ordered and not launch.max_steps and prod(launch.cluster) == 1

    def enter(self, thread):
        """Make `thread` the current thread, unless compiled code can take over the launch."""
        if self.context.entered >= self.next_reading or self.ended > self.ended_before:
            self.decide()
        self.enter_thread(thread)

    def decide(self):
        """Compile the kernel if this is worthwhile, and then raise TakenOver. Stop watching if compilation is
        not possible."""
        context, left = self.context, self.work_left()
        self.next_reading = context.entered + 1 + min(context.entered // READINGS, READING_INTERVAL)
        if context.findings:
            self.stop_watching()
        elif left >= RESTART_SECONDS * self.second:
            self.needed = self.needed or self.work_to_compile()
            if left >= self.needed:
                self.take_over()

    def work_left(self):
        """Return an estimate of the work that is left for this launch and later ones of the kernel."""
        started = self.context.counters["blocks"]
        timed, counted = self.time_as_work(), self.counted()
        if self.ended > self.ended_before:
            self.ended_before = self.ended
            self.time_left.block_ended(started, timed)
            self.counted_left.block_ended(started, counted)
        least, left = LEAST_RESTART_TIME if self.identity in taken_over else LEAST_TIME, 0.0
        least *= self.second
        if timed > least:
            left = self.time_left.estimate(started, timed)
        if counted > least or self.ended:
            left = max(left, self.counted_left.estimate(started, counted))
        return self.earlier + left

    def stop_watching(self):
        """Release the copies of memory, and let the scheduler enter threads as usual."""
        self.before = None
        self.next_reading = self.ended_before = inf
        self.context.loops.when_changed = None
        vars(self.scheduler).pop("enter", None)

    def take_over(self):
        """Compile the kernel, and raise TakenOver. If it cannot be compiled, the interpreter continues."""
        before = self.before
        self.stop_watching()
        try:
            native = self.engine.native_engine()
        except LaunchError:  # Numba is not installed
            return
        now = Snapshot(self.arrays)
        before.restore()
        self.context.runs_compiled = True  # the watchdog does not end a compiler
        attempt = native.lower(self.launch)
        if attempt and native.compile(attempt):
            taken_over.add(self.identity)
            EARLIER_WORK.pop(self.identity, None)
            raise TakenOver(attempt)
        now.restore()
        self.context.runs_compiled = False
        self.context.loops.restart()
        # The kernel cannot be compiled. The next attempt has to wait for the work of further launches.
        EARLIER_WORK.pop(self.identity, None)
        self.counts = False

    def work_to_compile(self):
        """Return the work that the interpreter could do while the kernel is compiled."""
        if self.identity in taken_over:
            return RESTART_SECONDS * self.second
        seconds = COMPILE_SECONDS + self.context.count_instructions() / INSTRUCTIONS
        return (seconds if taken_over else seconds + FIRST_SECONDS) * self.second


def with_own_observers(launch):
    """Return a launch in which each observer that is an instance is replaced by a copy.

    The interpreted run changes the state of an instance, and compiled code needs the state before the launch.
    """
    if all(isinstance(each, type) for each in launch.observers):
        return launch
    return replace(launch, observers=tuple(map(copy.copy, launch.observers)))
