"""Schedules: the orders in which threads and blocks run.

A launch runs under the schedule given by its seed. If threads act on the results of atomics, the order may
decide which code runs, so the launch is run again under adversarial schedules:

- Some schedules let a thread continue for many turns. The first two of these let it continue even while it
  repeats a failed atomic, like a thread that polls for a limited time. Blocks and threads run in ascending or
  descending order. One block and one thread are held back for a limited number of turns while others can run.
- The next schedules are random: some threads pause for a while, and others take many turns.
- The last schedules are also random. Single threads stall before an atomic, for longer than the other threads
  need to end. Each of the first of these schedules stalls a thread at another atomic in the source. Later
  schedules choose the atomic at random.

If a launch is too large for these schedules, only its first part runs, with few blocks at a time.

Code that is correct only under some orders is likely, but not certain, to fail under one of these schedules.
"""

import numpy as np

PATIENCE = 32  # maximum number of turns that an adversarial schedule gives a thread before it yields
TURNS = 1 << 14  # the same limit for all threads together
FEW = 15  # number of schedules tried for every launch that permits reruns
# number of times that a thread may repeat a failed atomic without yielding, in the first two schedules
SPINS = 512
ALL_SPINS = 2048  # the same limit for all threads together
SKIPS = 8  # number of rounds in which one thread is held back while the others run
STALL_CHANCE = 1 / 8  # probability that a thread stalls before an atomic
MAX_STALL = 8  # a thread stalls for at most 2**MAX_STALL rounds
# In the first part of a launch, FIRST_BLOCKS blocks start at once. Of the later requests to start a block,
# one in START_AFTER succeeds.
FIRST_BLOCKS, START_AFTER = 6, 32


class Seeded:
    """Random orders drawn from the launch's seed. Threads yield at every opportunity."""

    patience = 0  # number of opportunities to yield that a thread declines before it yields
    max_skips = 64  # how many times in a row to skip a thread that is about to repeat a failed atomic
    interleaves = False  # whether threads yield even if no thread waits for them
    # number of times that a thread has kept spinning, or a block has not started, although others could run
    holds = 0

    def __init__(self, random):
        self.random = random

    def order(self, n):
        """Return the positions 0 to n - 1 in the order in which they run."""
        return self.random.permutation(n).tolist() if n > 1 else list(range(n))

    def split_ready(self, block, ready):
        """Return (the threads in `ready` that run now, in order; the threads that are held back)."""
        return [ready[position] for position in self.order(len(ready))], []

    def keeps_spinning(self, thread):
        """Return whether a thread may continue where it would normally have to yield."""
        return False

    def stalls(self, thread, site, frame):
        """Return whether a thread must let other threads run before its next atomic, which is not a
        repetition of a failed atomic.

        site, frame: the number of the atomic's site, and the stack frame of the function that contains it.
        """
        return False

    def may_start_block(self, waiting):
        """Return whether the next block may start. `waiting` is the number of blocks that have not
        started."""
        return True

    def rotate(self, blocks):
        """Rotate a deque so that the next block to run is in front."""


class Erratic(Seeded):
    """Random orders in which some threads pause for a while and others take many turns."""

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


class Stalling(Erratic):
    """Random orders in which some threads stall before an atomic while the others run.

    A place is an atomic in the source. In a device function, each call of the function is another place.

    known: the places at which a thread has stalled under earlier schedules. If a thread arrives at another
        place, this schedule adds the place and stalls only that thread. Once all places are known, threads
        stall at random.
    """

    # Threads that wait for a stalled thread poll often. Some bugs occur only if a thread polls a limited
    # number of times and then continues.
    max_skips = 1

    def __init__(self, random, known):
        super().__init__(random)
        self.known, self.is_random = known, True
        self.stalled = {}  # thread -> number of rounds for which it still stalls

    def stalls(self, thread, site, frame):
        place = site, getattr(frame, "f_back", None) and frame.f_back.f_lasti
        if place not in self.known and self.is_random:
            self.known.add(place)
            self.is_random, self.stalled = False, {thread: 2**MAX_STALL}
            return True
        if self.is_random and self.random.random() < STALL_CHANCE:
            self.stalled[thread] = 2 ** int(self.random.integers(MAX_STALL))
            return True
        return False

    def split_ready(self, block, ready):
        stalled = [thread for thread in ready if self.stalled.get(thread)]
        if not stalled:
            return super().split_ready(block, ready)
        for thread in stalled:
            self.stalled[thread] -= 1
        self.holds += 1
        others = [thread for thread in ready if thread not in stalled]
        now, later = super().split_ready(block, others) if others else ([], [])
        return now, later + stalled


class FirstBlocks(Stalling):
    """A Stalling schedule for the first part of a launch, in which few blocks run at a time.

    Blocks start from both ends of the grid, because the first and the last block often have special roles.
    """

    def __init__(self, random, known):
        super().__init__(random, known)
        self.blocks_ordered, self.start_requests = False, 0

    def order(self, n):
        if self.blocks_ordered:
            return super().order(n)
        self.blocks_ordered = True
        return [i // 2 if i % 2 == 0 else n - 1 - i // 2 for i in range(n)]

    def may_start_block(self, waiting):
        self.start_requests += 1
        # The first block starts without a call of this method.
        may_start = self.start_requests < FIRST_BLOCKS or self.start_requests % START_AFTER == 0
        self.holds += not may_start
        return may_start


class Adversarial(Seeded):
    """Ascending or descending orders in which one block and one thread may be held back.

    down: whether the order is descending.
    held_back: the position of the block to hold back, as a fraction of the number of blocks, and likewise of
        the thread. If it is None, none is held back.
    spins: number of times that threads may repeat failed atomics without yielding, in total.
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
        """Return the index of the block or thread to hold back, among n of them."""
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
        keeps = self.spins >= 0 and self.spun[thread] <= SPINS
        self.holds += keeps
        return keeps

    def may_start_block(self, waiting):
        self.start_requests += 1
        may_start = self.held_back is None or waiting > 1 or self.start_requests % (SKIPS * 8) == 0
        self.holds += not may_start
        return may_start


def adversarial_schedules(threads):
    """Yield the schedules for reruns of a launch with `threads` threads: the most effective schedules first,
    then random schedules."""
    yield Adversarial(threads, False, spins=ALL_SPINS)
    yield Adversarial(threads, True, spins=ALL_SPINS)
    for number, held in enumerate((0.0, 0.999, 0.5, 0.25, 0.75, None, None, None)):
        yield Erratic(np.random.default_rng(number))
        if held is not None:
            yield Adversarial(threads, held >= 0.5, held)
    known = set()
    for number in range(8, 40):
        yield Stalling(np.random.default_rng(number), known)


def schedules_of_first_part(count):
    """Yield `count` schedules for reruns of the first part of a launch."""
    known = set()
    for number in range(count):
        yield FirstBlocks(np.random.default_rng(number), known)
