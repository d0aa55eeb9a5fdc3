"""Schedules: the order in which threads and blocks run.

A launch runs under the schedule of its seed. If threads act on the results of atomics, the order may decide
which code runs, so that the launch runs again under other schedules. These are adversarial:

- Some let a thread continue for many turns. The first two do so even if it repeats one atomic, as a thread
  does that waits for a limited time. Blocks and threads run in ascending or descending order. One block and
  one thread are held back while others can run, for a bounded number of turns.
- In others everything is random, so that threads are ahead of each other by various distances.

Code that is right in one order by luck is likely to fail under one of these; it is not certain to.
"""

import numpy as np

PATIENCE = 32  # the most turns that a thread of an adversarial schedule takes before it lets others go first
TURNS = 1 << 14  # the same for all threads in total
FEW = 15  # the number of schedules that every rerun tries
SPINS = 512  # how often a thread of the first two schedules may repeat a failed atomic without yielding
ALL_SPINS = 2048  # the same for all threads in total
SKIPS = 8  # how many rounds the other threads run before the one that is held back


class Seeded:
    """Random orders drawn from the launch's seed. Every thread yields whenever it may."""

    patience = 0  # how many turns a thread takes before it lets others go first
    interleaves = False  # whether threads let others go first even where none waits for them

    def __init__(self, random):
        self.random = random

    def order(self, n):
        """Return the positions 0 to n - 1 in the order in which they run."""
        return self.random.permutation(n).tolist()

    def split_ready(self, block, ready):
        """Return (the threads of `ready` that run now, in order; those that are held back)."""
        return [ready[position] for position in self.order(len(ready))], []

    def keeps_spinning(self, thread):
        """Return whether a thread continues where it would normally have to yield."""
        return False

    def may_start_block(self, waiting):
        """Return whether the next block may begin; `waiting` blocks have not begun."""
        return True

    def rotate(self, blocks):
        """Bring the block that runs next to the front of a deque."""


class Erratic(Seeded):
    """Random orders in which some threads stand still for a while, and others take many turns."""

    interleaves = True

    @property
    def patience(self):
        return int(self.random.integers(1, 9)) ** 2 // 8

    def split_ready(self, block, ready):
        ready, _ = super().split_ready(block, ready)
        some = int(self.random.integers(1, len(ready) + 1))
        return ready[:some], ready[some:]

    def rotate(self, blocks):
        blocks.rotate(int(self.random.integers(len(blocks))))


class Adversarial(Seeded):
    """Ascending or descending orders, in which one block and one thread may be held back.

    down: whether the order is descending.
    held_back: which block and thread are held back, as a fraction of all; None for no one.
    spins: how often threads may repeat a failed atomic without letting others go first, in total.
    """

    interleaves = True

    def __init__(self, threads, down, held_back=None, spins=0):
        self.spins, self.spun = spins, {}
        self.patience = max(1, min(PATIENCE, TURNS // threads))
        self.down, self.held_back, self.rounds, self.start_requests = down, held_back, {}, 0

    def order(self, n):
        positions = list(range(n))[::-1] if self.down else list(range(n))
        if self.held_back is not None:
            positions.remove(self.held_back_index(n))
            positions.append(self.held_back_index(n))
        return positions

    def held_back_index(self, n):
        """Return which of n is held back."""
        return min(int(self.held_back * n), n - 1)

    def split_ready(self, block, ready):
        ready = sorted(ready, key=lambda thread: thread.linear, reverse=self.down)
        if self.held_back is None or len(ready) == 1:
            return ready, []
        held = self.held_back_index(len(block.threads))
        rounds = self.rounds[block.index] = self.rounds.get(block.index, 0) + 1
        late = [thread for thread in ready if thread.linear == held]
        others = [thread for thread in ready if thread.linear != held]
        return (others, late) if rounds % (SKIPS + 1) else (others + late, [])

    def keeps_spinning(self, thread):
        self.spun[thread] = self.spun.get(thread, 0) + 1
        self.spins -= 1
        return self.spins >= 0 and self.spun[thread] <= SPINS

    def may_start_block(self, waiting):
        self.start_requests += 1
        return self.held_back is None or waiting > 1 or self.start_requests % (SKIPS * 8) == 0


def adversarial_schedules(threads):
    """Yield the schedules of reruns for a launch of `threads` threads: the most effective ones first, then
    random ones."""
    yield Adversarial(threads, False, spins=ALL_SPINS)
    yield Adversarial(threads, True, spins=ALL_SPINS)
    for number, held in enumerate((0.0, 0.999, 0.5, 0.25, 0.75, None, None, None)):
        yield Erratic(np.random.default_rng(number))
        if held is not None:
            yield Adversarial(threads, held >= 0.5, held)
    for number in range(8, 40):
        yield Erratic(np.random.default_rng(number))
