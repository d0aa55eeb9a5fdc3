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
VAIN = 512  # turns in which a thread of the first two may ask in vain, and
ALL_VAIN = 2048  # all threads together
ROUNDS = 8  # how often all others go before the one that is held back


class Seeded:
    """Random orders from the launch's seed; every thread lets others go first whenever it may."""

    patience = 0  # turns that a thread takes before it lets others go first
    interleaves = False  # whether threads let others go first though none waits for them

    def __init__(self, random):
        self.random = random

    def order(self, n):
        """The positions 0 to n - 1 in the order in which they are to go."""
        return self.random.permutation(n).tolist()

    def now(self, block, ready):
        """The threads of `ready` that go now, in order, and those that are held back."""
        return [ready[position] for position in self.order(len(ready))], []

    def insists(self, thread):
        """Whether a thread that would have to let others go first goes on all the same."""
        return False

    def may_start(self, waiting):
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

    def now(self, block, ready):
        ready, _ = super().now(block, ready)
        some = int(self.random.integers(1, len(ready) + 1))
        return ready[:some], ready[some:]

    def rotate(self, blocks):
        blocks.rotate(int(self.random.integers(len(blocks))))


class Adversarial(Seeded):
    """Ascending or, if `down`, descending order, the block and the thread in which `held` (a fraction) of all
    come before held back."""

    interleaves = True

    def __init__(self, threads, down, held=None, vain=0):
        self.vain, self.insisted = vain, {}
        self.patience = max(1, min(PATIENCE, TURNS // threads))
        self.down, self.held, self.rounds, self.asked = down, held, {}, 0

    def order(self, n):
        positions = list(range(n))[::-1] if self.down else list(range(n))
        if self.held is not None:
            positions.remove(self.of(n))
            positions.append(self.of(n))
        return positions

    def of(self, n):
        """Which of n is held back."""
        return min(int(self.held * n), n - 1)

    def now(self, block, ready):
        ready = sorted(ready, key=lambda thread: thread.linear, reverse=self.down)
        if self.held is None or len(ready) == 1:
            return ready, []
        held = self.of(len(block.threads))
        rounds = self.rounds[block.index] = self.rounds.get(block.index, 0) + 1
        late = [thread for thread in ready if thread.linear == held]
        others = [thread for thread in ready if thread.linear != held]
        return (others, late) if rounds % (ROUNDS + 1) else (others + late, [])

    def insists(self, thread):
        self.insisted[thread] = self.insisted.get(thread, 0) + 1
        self.vain -= 1
        return self.vain >= 0 and self.insisted[thread] <= VAIN

    def may_start(self, waiting):
        self.asked += 1
        return self.held is None or waiting > 1 or self.asked % (ROUNDS * 8) == 0


def adversarial(threads):
    """The further schedules of so many threads, what finds most first; random ones behind FEW."""
    yield Adversarial(threads, False, vain=ALL_VAIN)
    yield Adversarial(threads, True, vain=ALL_VAIN)
    for number, held in enumerate((0.0, 0.999, 0.5, 0.25, 0.75, None, None, None)):
        yield Erratic(np.random.default_rng(number))
        if held is not None:
            yield Adversarial(threads, held >= 0.5, held)
    for number in range(8, 40):
        yield Erratic(np.random.default_rng(number))
