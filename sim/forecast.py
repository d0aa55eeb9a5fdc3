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

import numpy as np

from sim.frames import kernel_frames

INTERVAL = 1.0  # maximum number of CPU seconds between samples while threads are being compared
SAMPLES = 3  # consecutive samples in which a number must move in the same direction
MOST_THREADS = 16  # maximum number of threads per sample
SMALL = 8  # maximum size of an array whose elements may be counters or bounds
# Bounds that need not occur in the program: a countdown ends at 0, an unsigned count up from -n at 2**32.
IMPLIED_BOUNDS = {0, 1 << 32, 1 << 64}
SIGNS = 1 << 31, 1 << 63  # the sign bits of 32-bit and 64-bit integers


class Forecast:
    """An estimate of when a long-running loop ends, from samples of the numbers that some threads read."""

    def __init__(self):
        self.samples = []  # (CPU time, {thread: Numbers})
        # Whether a compared number has both risen and fallen. This happens in searches and in iterations
        # to convergence, but not in a counter that has missed its bound.
        self.wanders = False

    def is_due(self, now, interval=inf):
        """Return whether it is time for another sample: `interval` seconds after the last one, but at most
        INTERVAL. A number that rises may be equal in two samples that are too close."""
        return not self.samples or now - self.samples[-1][0] > min(interval, INTERVAL)

    def take(self, now, context, frame):
        """Take a sample at CPU time `now`, of up to MOST_THREADS threads that have started.

        frame: the innermost stack frame of the current thread, which runs.
        """
        started = [t for block in context.live for t in block.threads if t.frame and not t.done]
        # Threads of the last sample come first, because only a change of their numbers counts.
        before = self.samples[-1][1] if self.samples else {}
        threads = sorted({context.thread: None, **dict.fromkeys(started)}, key=lambda one: one not in before)
        numbers = {
            one: Numbers(kernel_frames(frame) if one is context.thread else one.fiber.frames())
            for one in threads[:MOST_THREADS]
        }
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
    """The numeric variables and array elements that one thread can read.

    frames: the stack frames of the kernel and of its functions, outermost first.
    moving: the numbers that the thread compares. A key is the index of a frame and the variable's name, or
        the array and an index.
    indices: the keys of `for` loop variables.
    bounds: all numbers that the thread can read. A number in `moving` may approach one of them.
    """

    def __init__(self, frames):
        self.moving, self.indices, self.bounds = {}, set(), set()
        for depth, frame in enumerate(frames):
            self.add_frame(frame, depth)

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
    # A kernel from PTX compares a signed integer with a constant by inverting the sign bits of both.
    constants |= {value ^ sign for value in constants if type(value) is int for sign in SIGNS}
    return compared | (names if compares else set()), loops, constants
