"""Launches of the kernels in cuda/, and the expected results of the fixed kernels."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Case:
    """A launch of a kernel in cuda/.

    arguments: function that creates the arguments.
    right: function (*arguments) -> the array that the fixed kernel leaves at position `output`.
    mended_arguments: function that creates the fixed kernel's arguments, if they differ.
    """

    grid: object
    block: object
    arguments: object
    output: int
    right: object
    mended_arguments: object = None
    shared: int = 0  # dynamic shared memory in bytes


def floats(n, seed=0):
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def wholes(n, high=10, seed=0):
    return np.random.default_rng(seed).integers(0, high, n).astype(np.int32)


def zeros(n, dtype=np.float32):
    return np.zeros(n, dtype)


def sums_by_halves(x, width):
    parts = x.reshape(-1, width).copy()
    while parts.shape[1] > 1:
        half = parts.shape[1] // 2
        parts = parts[:, :half] + parts[:, half:]
    return parts[:, 0]


def with_neighbours(x):
    padded = np.concatenate([[np.float32(0)], x, [np.float32(0)]])
    return padded[:-2] + padded[1:-1] + padded[2:]


def left_sums(x):
    return np.concatenate([[np.float32(0)], x[:-1]]) + x


def right_sums(x):
    return x + np.concatenate([x[1:], [np.float32(0)]])


def four_sums(x):
    v = x[1:].reshape(-1, 4)
    return ((v[:, 0] + v[:, 1]) + v[:, 2]) + v[:, 3]


def halvings(x):
    return np.array([max(int(n).bit_length() - 1, 0) for n in x], np.int32)


def from_lanes(x):
    lane = np.arange(32)
    left = np.where(lane >= 4, x[lane - 4], x)
    return np.where(lane % 2 == 0, x[np.minimum(lane + 1, 31)], left + 1)


def product(a, b, c):
    return (a.reshape(16, 16).astype(np.float64) @ b.reshape(16, 16)).ravel()


CASES = {
    "sum_in_shared": Case(2, 64, lambda: [floats(128), zeros(2)], 1, lambda x, s: sums_by_halves(x, 64)),
    "neighbours": Case(2, 64, lambda: [floats(128), zeros(128)], 1, lambda x, y: with_neighbours(x)),
    "transpose": Case(1, (8, 8), lambda: [floats(64), zeros(64)], 1, lambda x, y: x.reshape(8, 8).T.ravel()),
    "tile_reused": Case((2, 2), (8, 8), lambda: [floats(256), floats(256, 1), zeros(256)], 2, product),
    "histogram": Case(
        1, 64, lambda: [wholes(64, 8), zeros(8, np.int32)], 1, lambda x, c: np.bincount(x, minlength=8)
    ),
    "sum_in_global": Case(2, 32, lambda: [wholes(64), zeros(1, np.int32)], 1, lambda x, s: [x.sum()]),
    "in_place": Case(
        2, 32, lambda: [floats(64), zeros(64)], 1, lambda x, y: np.concatenate([x[:1], x[1:] - x[:-1]])
    ),
    "between_lanes": Case(1, 32, lambda: [floats(32), zeros(1)], 1, lambda x, s: sums_by_halves(x, 32)),
    "mask_of_all": Case(1, 32, lambda: [wholes(32), zeros(32, np.int32)], 1, lambda x, y: from_lanes(x)),
    "mask_without_me": Case(
        1,
        32,
        lambda: [wholes(32), zeros(1, np.uint32)],
        1,
        lambda x, o: [bits(x & 1, range(32)) & 0xFFFFFFFF],
    ),
    "halo_forgotten": Case(1, 32, lambda: [floats(32), zeros(32)], 1, lambda x, y: left_sums(x)),
    "counter_not_zeroed": Case(
        1, 64, lambda: [floats(64), zeros(1, np.int32)], 1, lambda x, p: [(x > 0).sum()]
    ),
    "guard_forgotten": Case(
        3, 32, lambda: [70, np.float32(2), floats(70), floats(70, 1)], 3, lambda n, a, x, y: 2 * x + y
    ),
    "past_the_tile": Case(1, 32, lambda: [floats(32), zeros(32)], 1, lambda x, y: right_sums(x)),
    "before_the_array": Case(2, 32, lambda: [floats(64), zeros(64)], 1, lambda x, y: left_sums(x)),
    "barrier_in_branch": Case(1, 64, lambda: [floats(20), zeros(20)], 1, lambda x, y: x[::-1]),
    "return_before_barrier": Case(1, 64, lambda: [50, floats(50), zeros(50)], 2, lambda n, x, y: x[::-1]),
    "copy_not_awaited": Case(1, 64, lambda: [floats(64), zeros(64)], 1, lambda x, y: x[::-1]),
    "last_block": Case(
        4, 32, lambda: [wholes(16), zeros(4, np.int32), zeros(1, np.int32)], 2, lambda x, p, t: [x.sum()]
    ),
    "lock": Case(4, 32, lambda: [zeros(1, np.int32), zeros(1, np.int32)], 1, lambda lock, counter: [4]),
    "stack_aba": Case(
        3,
        32,
        lambda: [zeros(1, np.int32), np.arange(1, 9, dtype=np.int32), zeros(9, np.int32)],
        2,
        lambda head, following, taken: None,
        lambda: [zeros(1, np.uint64), np.arange(1, 9, dtype=np.int32), zeros(9, np.int32)],
    ),
    "scope_of_block": Case(
        2,
        32,
        lambda: [wholes(64), zeros(3, np.int32)],
        1,
        lambda x, counts: [(x > 4).sum(), *(x.reshape(2, 32) > 4).sum(1)],
    ),
    "vector_misaligned": Case(1, 8, lambda: [floats(33), zeros(8)], 1, lambda x, y: four_sums(x)),
    "copy_at_barrier": Case(
        1,
        64,
        lambda: [wholes(256), zeros(256, np.int32)],
        1,
        lambda x, y: x.reshape(2, -1)[:, ::-1].ravel(),
        lambda: [wholes(512), zeros(512, np.int32)],
    ),
    "table_of_functions": Case(
        1,
        32,
        lambda: [np.arange(32, dtype=np.int32) % 3, floats(32), zeros(32)],
        2,
        lambda w, x, y: np.choose(w, [np.maximum(x, 0), x * x, np.where(x > 0, x, x / 2)]),
    ),
    "virtual_functions": Case(
        1,
        32,
        lambda: [floats(32), zeros(32)],
        1,
        lambda x, y: 3 * np.where(np.arange(32) % 2, x, np.concatenate([x[:1], x[:-1]])),
    ),
    "never_ends": Case(1, 32, lambda: [wholes(32), zeros(32, np.int32)], 1, lambda x, s: halvings(x)),
    "grid_sync": Case(4, 16, lambda: [floats(64), zeros(64)], 0, lambda x, y: smoothed(x, 10)),
    "grid_sync_skipped": Case(
        4,
        32,
        lambda: [70, wholes(70), zeros(5, np.int32)],
        2,
        lambda n, x, s: [x.sum(), *(x[i : i + 32].sum() for i in range(0, 128, 32))],
    ),
    "heap_race": Case(
        2, 32, lambda: [wholes(64), zeros(64, np.int32)], 1, lambda x, y: x.reshape(2, 32)[:, ::-1].ravel()
    ),
    "heap_bounds": Case(
        1, 32, lambda: [wholes(96), zeros(32, np.int32)], 1, lambda x, y: np.median(x.reshape(32, 3), axis=1)
    ),
    "heap_list": Case(
        1, 32, lambda: [wholes(128), zeros(32, np.int32)], 1, lambda x, s: x.reshape(32, 4).sum(1)
    ),
    "tile_of_warps": Case(
        1,
        128,
        lambda: [wholes(128), zeros(128, np.int32)],
        1,
        lambda x, out: np.repeat(x.reshape(2, 64).sum(1), 64) + x[np.arange(128) ^ 63],
    ),
    "volatile_warp": Case(1, 64, lambda: [wholes(64), zeros(1, np.int32)], 1, lambda x, s: [x.sum()]),
    "look_back": Case(
        4, 32, lambda: [wholes(4), zeros(4, np.int32), zeros(4, np.int32)], 1, lambda x, s, r: np.cumsum(x)
    ),
    "ticket_lock": Case(4, 32, lambda: [zeros(1, np.int32) for _ in range(3)], 2, lambda t, turn, c: [4]),
    "overlapping_counters": Case(
        1,
        64,
        lambda: [wholes(64), zeros(10, np.uint32), zeros(1, np.uint64)],
        1,
        lambda x, c, t: np.bincount(x, minlength=10),
        shared=48,
    ),
    "overlapping_tickets": Case(
        8, 32, lambda: [wholes(8), zeros(3, np.int32), zeros(8, np.int32)], 1, lambda x, t, o: [x.sum(), 0, 8]
    ),
    "groups": Case(
        1, 64, lambda: [wholes(64), zeros(1, np.int32), zeros(65, np.int32)], 1, lambda x, s, o: [x.sum()]
    ),
}


def smoothed(x, rounds):
    for _ in range(rounds):
        x = np.float32(0.5) * (np.roll(x, -1) + np.roll(x, 1))
    return x


def bits(holds, lanes):
    """Return a signed 32-bit mask of the lanes for which a condition holds."""
    mask = sum(1 << lane for lane in lanes if holds[lane])
    return mask - (1 << 32) if mask >> 31 else mask
