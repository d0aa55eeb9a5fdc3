"""Whether a launch in which no thread has ended for long still gets anywhere: judged by what its threads can
see, their variables and memory, and not by how often a loop goes round."""

import hashlib
from types import FrameType

import numpy as np

MOST_STATES = 64  # a thread that goes through more of them gets somewhere
WHERE_THREADS_BEGIN = "sim.engine.grid"
REPEATS = 128  # how often the threads must come to where they were before


class Judge:
    """Looks at some rounds of loops, from when it is made on."""

    def __init__(self, context):
        self.context, self.quiet = context, 0
        self.states = {}  # thread -> the states in which it began a round
        self.memory = {}  # id of bytes -> (the bytes, what they were)
        for allocation in context.space.allocations:
            self.look_at(allocation.root)
        for block in context.live:
            for held in block.shared.values():
                self.look_at(getattr(held, "root", None))
        self.others = self.elsewhere()

    def nothing_changes(self, site, frame):
        """The running thread goes round its loop at `site`, in `frame`: True where nothing changes any more
        that a thread can see, False where something does, None where more rounds must tell."""
        states, state = self.states.setdefault(self.context.thread, set()), (site, self.variables(frame))
        if state not in states:
            states.add(state)
            self.quiet = 0
            return False if len(states) > MOST_STATES else None
        self.quiet += 1
        return self.is_as_before() if self.quiet >= REPEATS * len(self.states) else None

    def is_as_before(self):
        now = self.elsewhere()
        same = all(now.get(thread) == was for thread, was in self.others.items() if thread not in self.states)
        return same and all(digest(root) == was for root, was in self.memory.values())

    def elsewhere(self):
        """What waiting threads see, and how many blocks there were. Barriers do not count, as in a loop."""
        waiting = [t for block in self.context.live for t in block.threads if t.frame and not t.done]
        states = {thread: self.variables(thread.frame) for thread in waiting}
        return states | {"blocks": self.context.counters["blocks"]}

    def variables(self, frame):
        """Where a thread is, and the values of its variables."""
        found = []
        while isinstance(frame, FrameType) and frame.f_globals.get("__name__") != WHERE_THREADS_BEGIN:
            if not ours(frame):
                found.append((frame.f_code, frame.f_lasti, *map(self.value, frame.f_locals.values())))
            frame = frame.f_back
        return tuple(found)

    def value(self, value):
        if isinstance(value, tuple):
            return tuple(map(self.value, value))
        if hasattr(value, "allocation"):
            self.look_at(value.root)
            return id(value.root), value.offset, value.shape
        return repr(value) if isinstance(value, (int, float, complex, np.generic)) else id(value)

    def look_at(self, root):
        if root is not None and id(root) not in self.memory:
            self.memory[id(root)] = root, digest(root)


def digest(root):
    return hashlib.blake2b(np.ascontiguousarray(root)).digest()


def ours(frame):
    """Whether `frame` is the simulator's code rather than a kernel's."""
    name = frame.f_globals.get("__name__") or ""
    return name.startswith("sim.") or frame.f_code.co_filename == "<accessors>"
