"""Who goes first. A launch runs under the schedule of its seed; where threads act on what atomics tell them,
what they see hangs on that, and further schedules are tried.

Those are adversarial. In some a thread keeps going for many turns, in the first two even where it asks the
same over and over, as one does that waits for a limited time; blocks and threads go in ascending or
descending order, and one block and one thread are held back for as long as the others get anywhere (bounded);
in others all that is random, so that threads are ahead of each other by various lengths. An order that is
only one run's luck fails in one of them, if not with certainty.
"""

import numpy as np

PATIENCE = 32  # turns that a thread of an adversarial schedule takes at most before it lets others go first
TURNS = 1 << 14  # and all threads together
FEW = 15  # schedules that every launch is tried under
SPINS = 512  # turns in which a thread of the first two may ask in vain, and
ALL_SPINS = 2048  # all threads together
SKIPS = 8  # how often all others go before the one that is held back


class Seeded:
    """Random orders from the launch's seed; every thread lets others go first whenever it may."""

    patience = 0  # turns that a thread takes before it lets others go first
    interleaves = False  # whether threads let others go first though none waits for them

    def __init__(self, random):
        self.random = random

    def order(self, n):
        """The positions 0 to n - 1 in the order in which they are to go."""
        return self.random.permutation(n).tolist()

    def split_ready(self, block, ready):
        """The threads of `ready` that go now, in order, and those that are held back."""
        return [ready[position] for position in self.order(len(ready))], []

    def keeps_spinning(self, thread):
        """Whether a thread that would have to let others go first goes on all the same."""
        return False

    def may_start_block(self, waiting):
        """Whether the next of so many blocks that have not begun may."""
        return True

    def rotate(self, blocks):
        """Bring to the front of a deque the block that goes next."""


class Erratic(Seeded):
    """All at random: some threads stand still for a while, others take many turns."""

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
    """Ascending or, if `down`, descending order, the block and the thread in which `held` (a fraction) of all
    come before held back."""

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
        """Which of n is held back."""
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
    """The further schedules of so many threads, what finds most first; random ones behind FEW."""
    yield Adversarial(threads, False, spins=ALL_SPINS)
    yield Adversarial(threads, True, spins=ALL_SPINS)
    for number, held in enumerate((0.0, 0.999, 0.5, 0.25, 0.75, None, None, None)):
        yield Erratic(np.random.default_rng(number))
        if held is not None:
            yield Adversarial(threads, held >= 0.5, held)
    for number in range(8, 40):
        yield Erratic(np.random.default_rng(number))
