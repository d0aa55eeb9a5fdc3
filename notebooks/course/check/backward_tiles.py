"""Tiles of a backward pass with their gradients, the reference for exercises 13.2 to 13.6."""

import math
from collections import namedtuple
from typing import NamedTuple

import numpy as np
import torch
from numpy import float32

from kernels.reference import above_diagonal, conv_scores, masked_scores, transposed_convolve

# (tokens, d, c_q, c_k, size): first one in which no two mistakes look alike; then one token, one tap, odd and
# even, oblong, more taps than tokens.
SHAPES = [
    (11, 3, 3, 4, 9),
    (1, 2, 1, 1, 3),
    (1, 3, 3, 3, 6),
    (6, 2, 1, 1, 4),
    (9, 4, 3, 3, 8),
    (10, 2, 4, 2, 8),
    (7, 3, 1, 4, 8),
    (7, 2, 4, 1, 8),
    (5, 2, 6, 8, 16),
]
LARGE = (70, 2, 2, 13, 36), 34, 12  # one tile more: a shape, and the first row and column that it owns
# The results of a backward pass, including the N × N matrices: computed in float64 and rounded to float32.
# `delta` is D.
Pass = namedtuple("Pass", "q k d_o w log_sum delta s0 p d_p d_t d_s")


def backward_pass(rng, n, d, c_q, c_k):
    """Return a Pass on random inputs with n tokens, rows of d numbers and c_q × c_k taps."""
    q, k, v, d_o = torch.from_numpy(rng.standard_normal((4, 1, 1, n, d)))
    w = torch.from_numpy(rng.standard_normal((1, c_q, c_k)) / math.sqrt(c_q * c_k))
    t = conv_scores(q, k, w)
    p, log_sum, d_p = torch.softmax(t, -1), torch.logsumexp(t, -1), d_o @ v.transpose(-1, -2)
    delta = (d_o * (p @ v)).sum(-1)
    d_t = p * (d_p - delta[..., None])
    d_s = transposed_convolve(d_t, w)
    parts = (
        q,
        k,
        d_o,
        w[None],
        log_sum,
        delta,
        masked_scores(q, k),
        p,
        d_p,
        d_t,
        d_s.masked_fill(above_diagonal(d_s), 0.0),
    )
    return Pass(*(part[0, 0].numpy().astype(float32) for part in parts))


class Tile(NamedTuple):
    """A tile of a Pass, which owns rows [i0, i0 + rows) and columns [j0, j0 + columns). Its S0 is size ×
    size."""

    pass_: Pass
    size: int
    i0: int
    j0: int
    rows: int
    columns: int
    threads: int

    @property
    def taps(self):
        return self.pass_.w.shape

    @property
    def right(self):
        """P_r."""
        return self.taps[1] - 1 - (self.taps[1] - 1) // 2

    @property
    def owned(self):
        """Return (first row, first column, height, width) of the owned part."""
        return self.i0, self.j0, self.rows, self.columns

    @property
    def of_t(self):
        """Return (first row, first column, height, width) of dT."""
        c_q, c_k = self.taps
        return self.i0, self.j0 - self.right, self.size - c_q + 1, self.size - c_k + 1

    def cut(self, matrix, place):
        """Return this tile's part of an N×N matrix, with 0 outside the matrix."""
        i0, j0, height, width = place
        room = np.pad(matrix, 40)
        return room[40 + i0 : 40 + i0 + height, 40 + j0 : 40 + j0 + width]

    @property
    def s(self):
        c_q, c_k = self.taps
        return self.cut(self.pass_.s0, (self.i0 - c_q + 1, self.j0 - c_k + 1, self.size, self.size)).copy()

    @property
    def p(self):
        return self.cut(self.pass_.p, self.of_t)

    @property
    def p_owned(self):
        return self.cut(self.pass_.p, self.owned)

    @property
    def d_t(self):
        return self.cut(self.pass_.d_t, self.of_t)

    @property
    def d_s(self):
        return self.cut(self.pass_.d_s, self.owned)


def tiles(rng):
    """Yield every tile that the kernels visit in all SHAPES, and one tile of LARGE with few threads."""
    for n, d, c_q, c_k, size in SHAPES:
        whole = backward_pass(rng, n, d, c_q, c_k)
        rows, columns = size - 2 * (c_q - 1), size - 2 * (c_k - 1)
        for i0 in range(0, n, rows):
            for j0 in range(0, min(i0 + rows, n), columns):
                yield tile_at(whole, size, i0, j0, int(rng.integers(1, 9)))
    (*shape, size), i0, j0 = LARGE
    yield tile_at(backward_pass(rng, *shape), size, i0, j0, 8)


def tile_at(whole, size, i0, j0, threads):
    """Return the Tile of this size whose owned part begins at row i0 and column j0."""
    (n, _), (c_q, c_k) = whole.q.shape, whole.w.shape
    rows, columns = size - 2 * (c_q - 1), size - 2 * (c_k - 1)
    return Tile(whole, size, i0, j0, min(rows, n - i0), min(columns, n - j0), threads)


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(float32)


def beyond(tile):
    """Return the tile with two extra rows and columns of NaN: shared memory that the kernel must not use."""
    return np.pad(tile, ((0, 2), (0, 2)), constant_values=np.nan)


def poison(place):
    """Return an array of NaN as large as a tile and its surroundings."""
    return np.full((place[2] + 2, place[3] + 2), np.nan, float32)


def added(before, more):
    """Return a copy of `before` with `more` added to its upper left corner."""
    after = before.copy()
    after[: more.shape[0], : more.shape[1]] += more
    return after


def replaced(before, new):
    """Return a copy of `before` whose upper left corner is replaced by `new`."""
    after = before.copy()
    after[: new.shape[0], : new.shape[1]] = new
    return after


def taps_met(tile, height=None, first=None, width=None):
    """Return Σ dT · S0 for each tap, summed over this part of dT (by default the owned part)."""
    height, first, width = height or tile.rows, tile.right if first is None else first, width or tile.columns
    c_q, c_k = tile.taps
    s, part = tile.s, tile.d_t[:height, first : first + width]
    return np.array(
        [
            [(part * s[a : a + height, first + b : first + b + width]).sum() for b in range(c_k)]
            for a in range(c_q)
        ],
        float32,
    )
