"""Random programs of accesses and barriers for cooperative launches, and a reference for their races.

A program has a number of steps. In each step, each thread performs one access or none, and a barrier follows.
"""

from itertools import combinations

import numpy as np

READ, WRITE, ADD = 1, 2, 3  # kinds of accesses to global memory
SHARED = 4  # added to the kind of an access to shared memory
NOTHING, BLOCK, GRID = range(3)  # kinds of barriers
SHAPE = BLOCKS, THREADS = 3, 2


def has_race(accesses, barriers):
    """Return whether two accesses of different threads conflict, and no barrier is between them."""
    grid_epoch, block_epoch = 0, 0
    done = []
    for step, barrier in enumerate(barriers):
        for b, t in np.ndindex(*SHAPE):
            done.append((b, t, grid_epoch, block_epoch, *accesses[step, b, t].tolist()))
        block_epoch += barrier != NOTHING
        grid_epoch += barrier == GRID
    for (b, t, phase, epoch, kind, i), (b2, t2, phase2, epoch2, kind2, i2) in combinations(done, 2):
        is_shared = kind > SHARED
        together = phase == phase2 and (b != b2 or epoch == epoch2) and (b, t) != (b2, t2)
        same = i == i2 and is_shared == (kind2 > SHARED) and (b == b2 or not is_shared)
        conflict = {kind % SHARED, kind2 % SHARED} not in ({READ}, {ADD})
        if kind and kind2 and together and same and conflict:
            return True
    return False


def random_program(seed):
    """Return (accesses, barriers) with few accesses, so that about half of the programs have a race."""
    draw, steps = np.random.default_rng(seed), 6
    kinds = draw.choice(
        [0, READ, WRITE, ADD, SHARED + READ, SHARED + WRITE, SHARED + ADD],
        (steps, *SHAPE),
        p=[0.64, 0.1, 0.06, 0.06, 0.06, 0.04, 0.04],
    )
    accesses = np.stack([kinds, draw.integers(0, 4, kinds.shape)], -1).astype(np.int32)
    return accesses, draw.choice([NOTHING, BLOCK, GRID], steps, p=[0.2, 0.3, 0.5]).astype(np.int32)
