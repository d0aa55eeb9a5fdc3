"""The test whether a launch makes progress, for loops that have run for long.

A launch is judged by what its threads can see: their variables and the memory. Counting iterations would
accuse loops that are correct and slow.
"""

from itertools import pairwise
from types import FrameType

import numpy as np

from sim.frames import is_simulator_frame

MAX_STATES = 64  # a thread that goes through more states than these is not in a short cycle
# A counter that many threads share changes in a few bytes; data that a loop computes changes in many.
MAX_COUNTER_BYTES = 64
OUTERMOST_MODULE = "sim.engine.grid"  # runs the threads: frames below it belong to no thread
MIN_REPEATS = 128  # iterations, per looping thread, that have to begin in a state that the thread had before
# After CLOCK_REPEATS of them, the clock advances by far, by up to 2**MAX_LEAP ticks at a time: a wait for a
# limited time has to end before the verdict. Later waits of this length take at most MOST_READS reads.
CLOCK_REPEATS, MAX_LEAP = 32, 44
MOST_READS = 1 << 13
FIRST_LEAP = 1 << 20  # ticks where all threads time a wait: about a millisecond of %globaltimer


class Clock:
    """The clock of a launch, one counter for all of the GPU's clocks, which each read advances by `step`."""

    def __init__(self, context):
        self.context, self.now, self.step = context, 0, 1
        self.readers = set()  # threads that have read it since the last ProgressCheck began

    def read(self):
        self.readers.add(self.context.thread)
        self.now += self.step
        return self.now

    def advance(self, ticks):
        """Advance the clock by far, because threads time their waits."""
        self.now += ticks
        self.step = max(self.step, ticks // MOST_READS)


class ProgressCheck:
    """Compares what threads see, from the time when it is made.

    The state of a thread is its loop and the values of its variables, without those that were computed from
    a clock. A thread that returns to states that it has had is in a cycle. If all threads that run are in
    cycles, and neither memory nor the waiting threads have changed, although the clock has advanced by far,
    then nothing can ever change.
    """

    def __init__(self, context):
        self.context = context
        self.repeats = 0  # iterations in a row that began in a state that their thread had before
        self.states = {}  # looping thread -> the states in which its iterations began
        self.history = {}  # looping thread -> the states in which its iterations began, in their order
        self.memory = {}  # id of an array of bytes -> (the array, a copy of its contents at first)
        self.mbarriers = self.phases()  # at first
        context.clock.readers.clear()
        for allocation in context.space.allocations:
            self.watch(allocation.root)
        for block in context.live:
            for thread in block.threads:
                thread.failed_wait = None  # so that it tells later of a wait in the present loop
            for array in block.shared.values():
                self.watch(getattr(array, "root", None))
        self.others = self.waiting_states()  # at first

    def nothing_changes(self, site, frame):
        """Record that the running thread begins an iteration of its loop at `site`, in `frame`. Return
        True if nothing changes any more that a thread can see, False if something does, None if more
        iterations are needed to decide."""
        thread = self.context.thread
        states, state = self.states.setdefault(thread, set()), (site, self.variables(frame))
        if state not in states:
            states.add(state)
            self.history.setdefault(thread, []).append(state)
            self.repeats = 0
            return False if len(states) > MAX_STATES else None
        self.repeats += 1
        rounds, rest = divmod(self.repeats, len(self.states))
        if rounds == CLOCK_REPEATS and not rest and not self.is_unchanged():
            return False  # a thread that is in no such loop works, and a wait must not end before its work
        if rounds > CLOCK_REPEATS and not rest:
            self.context.clock.advance(1 << min(rounds - CLOCK_REPEATS, MAX_LEAP))
        return self.is_unchanged() if rounds >= MIN_REPEATS else None

    def times_a_wait(self):
        """Return whether every looping thread has read the clock, so that the clock may end its loop."""
        return self.states.keys() <= self.context.clock.readers

    def only_counts(self):
        """Return whether the loops only draw numbers from counters that the threads share: a few bytes of
        memory change, and variables that grow by irregular amounts.

        A variable that grows by equal amounts is the index of a loop, which may be long and right.
        """
        changed = sum(np.count_nonzero(root != was) for root, was in self.memory.values())
        drawn = all(map(is_drawn, self.history.values()))
        return drawn and 0 < changed <= MAX_COUNTER_BYTES and self.others_unchanged()

    def is_unchanged(self):
        """Return whether memory, and the states of the threads that wait, are as they were when the check
        was made."""
        same = self.others_unchanged() and self.phases() == self.mbarriers
        return same and all(np.array_equal(root, was) for root, was in self.memory.values())

    def others_unchanged(self):
        """Return whether the threads that are in no loop are in the same states as when the check was
        made."""
        now = self.waiting_states()
        return all(now.get(thread) == was for thread, was in self.others.items() if thread not in self.states)

    def phases(self):
        """Return the state of each mbarrier of each block."""
        blocks = self.context.live
        return [(at, b and b.state) for block in blocks for at, b in block.mbarriers.items()]

    def waiting_states(self):
        """Return {thread: its state} for the threads that wait, and the number of blocks so far. Barriers
        that have opened do not count, because a loop may contain one."""
        waiting = [t for block in self.context.live for t in block.threads if t.frame and not t.done]
        states = {thread: self.variables(thread.frame) for thread in waiting}
        return states | {"blocks": self.context.counters["blocks"]}

    def variables(self, frame):
        """Return a thread's position in each function that it is in, with the values of the variables
        there."""
        found = []
        while isinstance(frame, FrameType) and frame.f_globals.get("__name__") != OUTERMOST_MODULE:
            if not is_simulator_frame(frame):
                timed, own = self.context.timed.get(frame.f_code.co_name, ()), frame.f_locals.items()
                values = (self.value(value) for name, value in own if name not in timed)
                found.append((frame.f_code, frame.f_lasti, *values))
            frame = frame.f_back
        return tuple(found)

    def value(self, value):
        """Return a value by which a variable's value can be compared later. Arrays that it refers to are
        watched too."""
        if isinstance(value, tuple):
            return tuple(map(self.value, value))
        if hasattr(value, "allocation"):
            self.watch(value.root)
            return id(value.root), value.offset, value.shape
        return Number(value) if isinstance(value, (int, float, complex, np.generic)) else id(value)

    def watch(self, root):
        """Keep a copy of the bytes of an array, unless there is one."""
        if root is not None and id(root) not in self.memory:
            self.memory[id(root)] = root, root.copy()


class Number:
    """The value of a numeric variable, compared by its text: NaN equals itself, and 0.0 differs from -0.0."""

    __slots__ = ("value", "text")

    def __init__(self, value):
        self.value, self.text = value, repr(value)

    def __eq__(self, other):
        return isinstance(other, Number) and self.text == other.text

    def __hash__(self):
        return hash(self.text)


def is_drawn(states):
    """Return whether successive states of a thread differ only in numbers that grow by irregular amounts."""
    first = states[0]
    if all(state == first for state in states):
        return True
    if all(isinstance(state, tuple) and len(state) == len(first) for state in states):
        return all(map(is_drawn, zip(*states)))
    if not all(isinstance(state, Number) and isinstance(state.value, (int, np.integer)) for state in states):
        return False
    steps = {int(b.value) - int(a.value) for a, b in pairwise(states)}
    return min(steps) >= 0 and len(steps) > 1
