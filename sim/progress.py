"""The test whether a launch makes progress, for loops that have run for long.

A launch is judged by what its threads can see: their variables and the memory. Counting iterations would
accuse loops that are correct and slow.
"""

import hashlib
from types import FrameType

import numpy as np

MAX_STATES = 64  # a thread that goes through more states than these is not in a short cycle
OUTERMOST_MODULE = "sim.engine.grid"  # runs the threads: frames below it belong to no thread
MIN_REPEATS = 128  # iterations, per looping thread, that have to begin in a state that the thread had before


class ProgressCheck:
    """Compares what threads see, from the time when it is made.

    The state of a thread is its loop and the values of its variables. A thread that returns to states that it
    has had is in a cycle. If all threads that run are in cycles, and neither memory nor the waiting threads
    have changed, then nothing can ever change.
    """

    def __init__(self, context):
        self.context = context
        self.repeats = 0  # iterations in a row that began in a state that their thread had before
        self.states = {}  # looping thread -> the states in which its iterations began
        self.memory = {}  # id of an array of bytes -> (the array, the hash of its contents at first)
        for allocation in context.space.allocations:
            self.watch(allocation.root)
        for block in context.live:
            for array in block.shared.values():
                self.watch(getattr(array, "root", None))
        self.others = self.waiting_states()  # at first

    def nothing_changes(self, site, frame):
        """Record that the running thread begins an iteration of its loop at `site`, in `frame`. Return
        True if nothing changes any more that a thread can see, False if something does, None if more
        iterations are needed to decide."""
        states, state = self.states.setdefault(self.context.thread, set()), (site, self.variables(frame))
        if state not in states:
            states.add(state)
            self.repeats = 0
            return False if len(states) > MAX_STATES else None
        self.repeats += 1
        return self.is_unchanged() if self.repeats >= MIN_REPEATS * len(self.states) else None

    def is_unchanged(self):
        """Return whether memory, and the states of the threads that wait, are as they were when the check
        was made."""
        now = self.waiting_states()
        same = all(now.get(thread) == was for thread, was in self.others.items() if thread not in self.states)
        return same and all(digest(root) == was for root, was in self.memory.values())

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
                found.append((frame.f_code, frame.f_lasti, *map(self.value, frame.f_locals.values())))
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
        return repr(value) if isinstance(value, (int, float, complex, np.generic)) else id(value)

    def watch(self, root):
        """Keep a hash of the bytes of an array, unless there is one."""
        if root is not None and id(root) not in self.memory:
            self.memory[id(root)] = root, digest(root)


def digest(root):
    return hashlib.blake2b(np.ascontiguousarray(root)).digest()


def is_simulator_frame(frame):
    """Return whether a stack frame belongs to the simulator and not to a kernel."""
    name = frame.f_globals.get("__name__") or ""
    return name.startswith("sim.") or frame.f_code.co_filename == "<accessors>"
