"""Tests whether a launch with a long-running loop still makes progress.

The decision compares everything that threads can observe: their variables and memory. Counting iterations
instead would report loops that are correct but slow.
"""

from itertools import starmap, zip_longest
from operator import eq
from types import FrameType

import numpy as np

from sim.frames import kernel_frames
from sim.idle_variables import idle_variables

# A thread is not in a short cycle if the span of its Cycle exceeds MAX_STATES before it repeats a state. The
# search for longer cycles continues until all threads together have started twice MOST_STATES iterations in a
# thorough check, or twice EXHAUSTIVE in an exhaustive check. The exhaustive check finds the cycle of a thread
# that searches a full hash table for a missing key. If each thread repeats atomics that change nothing, such
# as compare-and-swaps in a full table, the limit is twice FULL_TABLE.
MAX_STATES, MOST_STATES, EXHAUSTIVE, FULL_TABLE = 64, 1 << 11, 1 << 16, 1 << 18
# A loop counts as endless when its threads have each started this many iterations, on average, in a state
# seen before.
MIN_REPEATS = 128
# A schedule may hold a thread back for SKIPS rounds of PATIENCE iterations (sim.engine.schedules). While some
# runnable thread has not repeated a state, more iterations are therefore necessary.
MAX_REPEATS = 1 << 10
# If many threads loop, FEW_REPEATS repeated iterations per thread are enough if they total at least
# MANY_REPEATS (see `is_enough`).
FEW_REPEATS, MANY_REPEATS = 8, 1 << 14
# After CLOCK_REPEATS repeated iterations per thread, the clock jumps ahead by up to 2**MAX_LEAP ticks at a
# time. A wait with a timeout therefore ends before the loop is reported as endless. Later waits of that
# length then take at most MOST_READS clock reads.
CLOCK_REPEATS, MAX_LEAP = 32, 44
MOST_READS = 1 << 13
# number of reads before the clock's step starts to double; binary logarithm of the longest step
IDLE_READS, MAX_IDLE_STEP = 16, 30
# clock ticks (about 1 ms) of the first jump, if every looping thread waits for the clock
FIRST_LEAP = 1 << 20

# A poll is a failed test of an mbarrier. If every thread polls POLLS times and no thread does anything else,
# the threads' states are compared. Every thread runs between two polls of a thread, so only the clock can
# then end the wait. Each iteration multiplies the clock's jump by 2**POLL_LEAP.
POLLS, POLL_REPEATS, POLL_LEAP = 24, 2, 6


class Clock:
    """The clock of a launch: one counter for all of the GPU's clocks. Each read advances it by `step`."""

    def __init__(self, context):
        self.context, self.now, self.step = context, 0, 1
        self.readers = set()  # threads that have read the clock since the last ProgressCheck started
        # the reading thread's activity up to its last read, and the number of reads since then without other
        # activity
        self.last, self.idle_reads = None, 0

    def read(self):
        """Return the time. Consecutive reads by a thread that does nothing else advance the clock ever
        faster, so that a delay of a million ticks takes a few dozen reads."""
        context = self.context
        self.readers.add(context.thread)
        did = context.thread, context.entered, len(context.log or ())
        self.idle_reads = self.idle_reads + 1 if did == self.last else 0
        self.last = did
        self.now += max(self.step, 1 << min(max(self.idle_reads - IDLE_READS, 0) // 2, MAX_IDLE_STEP))
        return self.now

    def sleep(self, wait, nanoseconds):
        """Let the running thread wait by `wait()`, and advance the clock to the end of its sleep. Threads
        that sleep at the same time share that time."""
        wakes = self.now + nanoseconds
        wait(nanoseconds)
        self.now = max(self.now, wakes)

    def advance(self, ticks):
        """Advance the clock by this number of ticks, because threads wait until a given time."""
        self.now += ticks
        self.step = max(self.step, ticks // MOST_READS)


class Polls:
    """The number of consecutive failed tests of mbarriers between which no thread accessed other memory."""

    def __init__(self, context):
        self.context, self.count, self.accesses, self.needed = context, 0, 0, POLLS

    def failed(self):
        """Count a failed test as one access. Start a ProgressCheck after many failed tests."""
        context = self.context
        now = context.logged + len(context.log or ())
        self.count = self.count + 1 if now - self.accesses <= 1 else 0
        self.accesses = now
        if self.count % 128 != 127 or context.max_steps is not None or context.loops.progress_check:
            return
        if self.count >= self.needed * sum(block.alive for block in context.live):
            self.needed *= 2
            context.loops.steps = 0

    def prove(self, may_run):
        """Return whether nothing but polls can happen: all blocks have started, or the log proves that the
        loops access only mbarriers.

        may_run: whether a thread can run that does not repeat itself.
        """
        return self.count > 0 and not may_run and (self.context.log is not None or not self.context.pending)


class ProgressCheck:
    """A comparison of the state visible to threads with its state at construction.

    A thread's state is its loop and the values of its variables, except those computed from a clock and those
    that only count (sim.idle_variables). A thread that returns to an earlier state is in a Cycle. If all
    running threads are in cycles, and neither memory nor the waiting threads have changed although the clock
    has jumped far ahead, nothing can ever change.
    """

    def __init__(self, context, most_states=0):
        self.context, self.most_states = context, most_states
        self.repeats = 0  # consecutive iterations of threads that are in cycles
        self.repeating = set()  # the threads that have returned to a state during these iterations
        self.confirms = False  # whether the threads run on only for `is_confirmed`
        self.holds = context.schedule.holds  # see sim.engine.schedules
        self.distinct = 0  # number of iterations of threads that were not in a cycle
        self.cycles = {}  # looping thread -> its Cycle
        self.follows_all = False  # whether the states of all threads are compared (see `follows`)
        self.memory = {}  # id of a byte array -> (the array, a copy of its initial contents)
        self.mbarriers = self.phases()  # initial phases
        self.advanced = False  # whether an mbarrier has ended a phase, so that no earlier state can recur
        context.clock.readers.clear()
        for allocation in context.space.allocations:
            self.watch(allocation.root)
        for block in context.live:
            for thread in block.threads:
                thread.failed_wait = None  # set again if the thread waits in the current loop
            for array in block.shared.values():
                self.watch(getattr(array, "root", None))
        self.others = self.waiting_states()  # initial states

    def nothing_changes(self, site, frame):
        """Record that the current thread starts an iteration of its loop at `site`, in `frame`.

        Return True if nothing visible to threads changes any more, False if something does, and None if more
        iterations are needed to decide.
        """
        if self.advanced:
            return False
        thread = self.context.thread
        cycle = self.cycles.setdefault(thread, Cycle())
        if self.follows(cycle) and cycle.returns(lambda: self.variables(frame, site)):
            self.repeating.add(thread)
        elif not cycle.repeats:
            self.distinct += 1
            self.repeats, self.confirms = 0, False
            self.repeating.clear()
            return False if cycle.span > MAX_STATES and self.distinct > 2 * self.most_states else None
        # If the schedule has held a thread back, the threads that could end the loop may not have run.
        if self.holds != self.context.schedule.holds:
            self.holds, self.repeats, self.confirms = self.context.schedule.holds, 0, False
        self.repeats += 1
        rounds, rest = divmod(self.repeats, len(self.cycles))
        if rest:
            return self.all_repeat() if self.is_enough(rounds, rest) and self.is_confirmed() else None
        polls = self.context.polls.prove(self.may_advance())
        first, leap = (POLL_REPEATS, POLL_LEAP) if polls else (CLOCK_REPEATS, 1)
        if rounds == first and not self.is_unchanged():
            # A thread outside these loops is still working. A wait must not time out before it is done.
            return False
        if rounds > first:
            self.context.clock.advance(1 << min((rounds - first) * leap, MAX_LEAP))
        over = rounds >= first and not self.context.clock.readers or (rounds - first) * leap > MAX_LEAP
        decides = polls and over or self.is_enough(rounds, rest)
        return self.all_repeat() if decides and self.is_confirmed() else None

    def follows(self, cycle):
        """Return whether to record the states of the thread to which this Cycle belongs.

        As long as the first looping thread does not repeat a state, something changes, so the states of the
        other threads are not needed. They are recorded once the first thread has repeated a state, or once
        all threads together have made 2 * MAX_STATES iterations per live thread without repeating a state.
        """
        first = next(iter(self.cycles.values()))
        if not self.follows_all:
            alive = sum(block.alive for block in self.context.live)
            self.follows_all = first.repeats or self.distinct > 2 * MAX_STATES * alive
        return self.follows_all or cycle is first

    def may_advance(self):
        """Return whether the current thread or any runnable thread has not yet repeated a state.

        This includes a thread that a barrier has released but that has not run since. Such a thread still has
        its `waits`.
        """
        # If threads are plain calls, no block is live, so `advancing` yields no thread, not even the current.
        return self.context.thread not in self.repeating or any(True for _ in self.advancing())

    def advancing(self):
        """Yield the runnable threads that have not yet repeated a state."""
        for block in self.context.live:
            runnable = {*block.round, *block.ready}
            for thread in block.threads:
                may_run = thread.waits in (None, "turn") or thread in runnable
                if may_run and not thread.done and thread not in self.repeating:
                    yield thread

    def is_enough(self, rounds, rest):
        """Return whether enough iterations have repeated: `rounds` per looping thread, and `rest` more.

        Fewer iterations are enough if there are many threads, no block could still start, and no thread waits
        for a time. More are necessary while some runnable thread has not repeated a state.
        """
        many = rounds >= FEW_REPEATS and self.repeats >= MANY_REPEATS
        few_are_enough = many and not self.context.clock.readers and not self.context.pending
        enough = not rest and (few_are_enough or rounds >= MIN_REPEATS)
        return rounds >= MAX_REPEATS << self.confirms or enough and not self.may_advance()

    def is_confirmed(self):
        """Return False at the first call, and True at the second, when each thread has repeated its state
        again.

        The second round is necessary, because a thread that has left its cycle is noticed only when it does
        not return to its state.
        """
        if self.confirms:
            return True
        self.confirms = True
        self.repeating.clear()
        return False

    def all_repeat(self):
        """Return whether nothing visible has changed since construction. A thread that has left its cycle may
        run code that never calls `tick`, so its variables are compared, too."""
        left = (thread for thread in self.advancing() if thread in self.cycles and thread.frame)
        return self.is_unchanged() and all(self.state(thread) == self.others.get(thread) for thread in left)

    def times_a_wait(self):
        """Return whether every looping thread has read the clock, so that advancing it may end the loops."""
        return self.cycles.keys() <= self.context.clock.readers

    def is_unchanged(self):
        """Return whether memory and all waiting threads are unchanged since construction."""
        same = self.others_unchanged() and self.phases() == self.mbarriers
        return same and all(np.array_equal(root, was) for root, was in self.memory.values())

    def others_unchanged(self):
        """Return whether the threads that are not looping are unchanged since construction."""
        now = self.waiting_states()
        return all(now.get(thread) == was for thread, was in self.others.items() if thread not in self.cycles)

    def phases(self):
        """Return the state of each mbarrier in each block."""
        blocks = self.context.live
        return [(at, b and b.state) for block in blocks for at, b in block.mbarriers.items()]

    def waiting_states(self):
        """Return {thread: state} for waiting threads, plus the number of blocks that have started so far.

        Barriers that opened do not count as progress, because a loop may contain one.
        """
        waiting = [t for block in self.context.live for t in block.threads if t.frame and not t.done]
        states = {thread: self.state(thread) for thread in waiting}
        return states | {"blocks": self.context.counters["blocks"]}

    def state(self, thread):
        """Return the position and the variables of a thread that waits."""
        return tuple(self.variables(thread.frame))

    def variables(self, frame, site=None):
        """Yield a thread's position and variables in each function on its stack, as values to compare.

        The idle variables of a loop in the kernel itself are omitted. In a device function, such variables
        may influence the caller.
        """
        yield site
        frames = kernel_frames(frame) if isinstance(frame, FrameType) else []
        for frame in reversed(frames):
            ignored = self.context.timed.get(frame.f_code.co_name, frozenset())
            if len(frames) == 1:
                ignored = ignored | idle_variables(frame.f_code, frame.f_lasti)
            yield from (frame.f_code, frame.f_lasti)
            for name, value in frame.f_locals.items():
                if name not in ignored:
                    yield name
                    yield self.value(value)

    def value(self, value):
        """Return a comparable snapshot of a variable's value. Start watching any array that it refers to."""
        if isinstance(value, (int, float, complex, np.generic)):
            return comparable(value)
        if isinstance(value, tuple):
            # the elements of a Fragment, without recording that the thread reads them
            return tuple(map(self.value, tuple.__iter__(value)))
        if hasattr(value, "allocation"):
            self.watch(value.root)
            return id(value.root), value.offset, value.shape
        return id(value)

    def watch(self, root):
        """Copy the bytes of an array, unless it is already watched."""
        if root is not None and id(root) not in self.memory:
            self.memory[id(root)] = root, root.copy()


class Cycle:
    """A search for a state to which one thread returns, by Brent's algorithm: the state is compared with only
    one earlier state, which is replaced if the thread has not returned to it within `span` iterations.

    The span doubles with each replacement. It therefore reaches the length of any cycle. The cycle
    is found after at most three times as many iterations as the thread needs to enter it and to pass through
    it once.
    """

    __slots__ = ("earlier", "repeats", "span", "steps")

    def __init__(self):
        self.earlier, self.span = (), 1
        self.steps = 0  # the number of iterations since the earlier state
        self.repeats = False  # whether the thread has returned to the earlier state

    def returns(self, state):
        """Record the start of an iteration, and return whether the thread has returned to the earlier state.

        state: a function that returns an iterator over the parts of the current state.
        """
        self.steps += 1
        if all(starmap(eq, zip_longest(self.earlier, state()))):
            self.steps, self.repeats = 0, True
            return True
        if self.steps >= self.span:
            self.earlier, self.span, self.steps, self.repeats = tuple(state()), 2 * self.span, 0, False
        return False


def comparable(number):
    """Return a value that is equal for equal bits: NaN equals itself, and 0.0 differs from -0.0."""
    if isinstance(number, np.generic):
        return number.dtype, number.tobytes()
    return number if type(number) is int else repr(number)
