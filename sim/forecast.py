"""An estimate of whether a loop ends, from the numbers that it compares.

Whether a loop ends cannot be decided in general. But a loop that is only long often compares a number that
approaches a bound: an index that approaches a length, or a count that approaches zero. The threads of an
endless queue have no such number.
"""

import dis
import functools
from itertools import pairwise
from math import inf
from numbers import Real
from types import FrameType

import numpy as np

from sim.frames import is_simulator_frame

INTERVAL = 1.0  # seconds of CPU time between samples while threads are being compared
SAMPLES = 3  # consecutive samples in which a number must move in the same direction
MOST_THREADS = 16  # maximum number of threads per sample
SMALL = 8  # maximum size of an array whose elements may be counters or bounds
# Bounds that need not occur in the program: a countdown ends at 0, an unsigned count up from -n at 2**32.
IMPLIED_BOUNDS = {0, 1 << 32, 1 << 64}


class Forecast:
    """An estimate of when a long-running loop ends, from samples of the numbers that some threads read."""

    def __init__(self, now):
        self.began, self.samples = now, []  # (CPU time, {thread: Numbers})
        # Whether a compared number has both risen and fallen. This happens in searches and in iterations
        # to convergence, but not in a counter that has missed its bound.
        self.wanders = False

    def follows(self, thread, sampled):
        """Return whether a sample that already contains the threads `sampled` should also contain
        `thread`."""
        return len(sampled) < MOST_THREADS or bool(self.samples) and thread in self.samples[-1][1]

    def is_due(self, now):
        """Return whether to take another sample while threads are still being compared."""
        return now - (self.samples[-1][0] if self.samples else self.began) > INTERVAL

    def add(self, now, numbers):
        """Add a sample of {thread: Numbers}, taken at CPU time `now`."""
        self.samples = [*self.samples[1 - SAMPLES :], (now, numbers)]
        _, samples = zip(*self.samples)
        for thread in set(samples[0]).intersection(*samples[1:]):
            moving = [sample[thread].moving for sample in samples]
            common = set(moving[0]).intersection(*moving[1:])
            self.wanders |= any(len(directions([each[key] for each in moving]) - {0}) == 2 for key in common)

    def seconds_left(self):
        """Estimate the CPU seconds until, in half of the threads with changing numbers, a number reaches its
        bound.

        Return infinity if fewer threads approach a bound. A `for` loop's length is unknown but finite, so its
        index counts as 0 seconds. A single thread is not enough evidence: numbers that threads draw at random
        may rise a few times in a row.
        """
        if len(self.samples) < SAMPLES:
            return inf
        times, samples = zip(*self.samples)
        threads = set(samples[0]).intersection(*samples[1:])
        found = (self.of_thread([sample[thread] for sample in samples]) for thread in threads)
        estimates = sorted(estimate for estimate in found if estimate is not None)
        return (times[-1] - times[0]) * estimates[len(estimates) // 2] if estimates else inf

    def of_thread(self, numbers):
        """Return how long a thread still needs, as a multiple of the time between its first and last Numbers.
        Return None if none of the numbers has changed.

        numbers: the Numbers of the thread in each sample.
        """
        bounds = set.intersection(*(each.bounds for each in numbers)) | IMPLIED_BOUNDS
        least, changes = inf, False
        for key in set(numbers[0].moving).intersection(*(each.moving for each in numbers[1:])):
            values = [each.moving[key] for each in numbers]
            steps = directions(values)
            changes |= steps != {0}
            if len(steps) == 1 and 0 not in steps:
                ahead = [(bound - values[-1]) / (values[-1] - values[0]) for bound in bounds]
                least = min([least, *(each for each in ahead if each >= 0)])
                least = 0 if key in numbers[-1].indices else least
        return least if changes else None


def directions(values):
    """Return the signs of the differences between successive values: a subset of {-1, 0, 1}."""
    return {int(b > a) - int(b < a) for a, b in pairwise(values)}


class Numbers:
    """The numeric variables and array elements that one thread can read in `frame`.

    moving: the numbers that the thread compares. A key is the frame's depth and the variable's name, or the
        array and an index.
    indices: the keys of `for` loop variables.
    bounds: all numbers that the thread can read. A number in `moving` may approach one of them.
    """

    def __init__(self, frame):
        self.moving, self.indices, self.bounds, depth = {}, set(), set(), 0
        while isinstance(frame, FrameType):
            if not is_simulator_frame(frame):
                self.add_frame(frame, depth)
                depth += 1
            frame = frame.f_back

    def add_frame(self, frame, depth):
        compared, loops, constants = numbers_of(frame.f_code)
        self.bounds |= constants
        for name, value in frame.f_locals.items():
            if is_number(value):
                # NumPy's numbers wrap around, and the results of their comparisons have no difference.
                value = value.item() if isinstance(value, np.generic) else value
                self.bounds.add(value)
                if name in compared or name in loops:
                    self.moving[depth, name] = value
                if name in loops:
                    self.indices.add((depth, name))
            elif hasattr(value, "allocation"):
                self.add_array(value)

    def add_array(self, array):
        self.bounds |= set(array.shape)
        if array.size > SMALL:
            return
        values = np.ndarray(array.shape, array.dtype, array.root, array.offset, array.strides)
        for index, value in enumerate(values.ravel().tolist()):
            if is_number(value):
                self.bounds.add(value)
                self.moving[id(array.root), array.offset, index] = value


def is_number(value):
    return isinstance(value, Real) and not isinstance(value, bool) and value == value and abs(value) != inf


@functools.lru_cache(maxsize=256)
def numbers_of(code):
    """Return three sets for a code object: the variables in lines that contain a comparison, the variables of
    `for` loops, and the numeric constants."""
    compared, loops, names, compares, before = set(), set(), set(), False, None
    for instruction in dis.get_instructions(code):
        if instruction.starts_line is not None:
            compared |= names if compares else set()
            names, compares = set(), False
        names |= {instruction.argval} if instruction.opname.startswith("LOAD_FAST") else set()
        compares |= instruction.opname == "COMPARE_OP"
        if before == "FOR_ITER" and instruction.opname == "STORE_FAST":
            loops.add(instruction.argval)
        before = instruction.opname
    constants = {value for value in code.co_consts if is_number(value)}
    return compared | (names if compares else set()), loops, constants
