"""Flash attention tile by tile in plain PyTorch, with a count of the traffic to and from global memory.

For one head: q (N, d), k and v (N_k, d), any floating type. A "tile" is a few whole rows of an array; a
loaded tile represents a copy on the chip. Sources: Dao et al. 2022, arXiv 2205.14135 (Algorithms 0 and 1);
Dao 2023, arXiv 2307.08691.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch


@dataclass
class Traffic:
    """The number of elements moved from global memory to the chip and back. Nothing is cached between two
    loads."""

    read: int = 0
    written: int = 0

    @property
    def moved(self):
        return self.read + self.written

    def load(self, array, rows):
        """Return a copy of array[rows] on the chip, and count it."""
        tile = array[rows].clone()
        self.read += tile.numel()
        return tile

    def store(self, array, rows, tile):
        """Store the tile in array[rows], and count it."""
        array[rows] = tile
        self.written += tile.numel()


# The running state of one row or many -----------------------------------------------------------------------


class State(NamedTuple):
    """The running state of some rows of attention after some keys: all that the next tile of keys needs."""

    m: torch.Tensor  # (rows, 1)  largest score so far
    l: torch.Tensor  # (rows, 1)  Σ exp(score - m)
    o: torch.Tensor  # (rows, d)  Σ exp(score - m) · value, not yet divided by l


def nothing_read(rows, d, like):
    """Return the state before the first key, with the type and device of the tensor `like`."""
    return State(like.new_full((rows, 1), -math.inf), like.new_zeros(rows, 1), like.new_zeros(rows, d))


def weight(score, maximum):
    """Return exp(score - maximum), and 0 for a score of -inf even if the maximum is -inf too."""
    return torch.where(score == -math.inf, 0.0, torch.exp(score - maximum))


def merge(a, b):
    """Return the state after all keys of a and of b; their order does not matter."""
    m = torch.maximum(a.m, b.m)
    of_a, of_b = weight(a.m, m), weight(b.m, m)
    return State(m, of_a * a.l + of_b * b.l, of_a * a.o + of_b * b.o)


def tile_state(scores, values):
    """Return the state after this tile alone: scores (rows, keys), values (keys, d)."""
    m = scores.amax(dim=1, keepdim=True)
    p = weight(scores, m)
    return State(m, p.sum(dim=1, keepdim=True), p @ values)


def update(state, scores, values):
    """Return `state` after one more tile of keys."""
    return merge(state, tile_state(scores, values))


def online_softmax(scores, values):
    """Return softmax(scores) @ values, (d,), one key at a time as in lesson 01; scores (N,), values (N,
    d)."""
    state = nothing_read(1, values.shape[1], like=values)
    for score, value in zip(scores, values, strict=True):
        state = merge(state, State(score.view(1, 1), torch.ones_like(state.l), value.view(1, -1)))
    return (state.o / state.l)[0]


# Tiles ------------------------------------------------------------------------------------------------------


def tiles(n, size):
    """Return the slices [0:size], [size:2·size], … of n rows; the last may be shorter."""
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def first_paper_tiles(numbers, d):
    """Return (queries, keys) in a tile, as Algorithm 1 chooses them for a chip that holds `numbers`
    elements."""
    quarter = math.ceil(numbers / (4 * d))
    return min(quarter, d), quarter


def tile_scores(q_tile, k_tile, scale=None):
    """Return scale · q_tile k_tileᵀ, (queries, keys); scale is 1/sqrt(d) unless given."""
    return q_tile @ k_tile.T * (q_tile.shape[1] ** -0.5 if scale is None else scale)


def mask_future(scores, queries, keys):
    """Return the scores of the slices `queries` and `keys`, with -inf where the key comes after the query."""
    i = torch.arange(queries.start, queries.stop, device=scores.device)[:, None]
    j = torch.arange(keys.start, keys.stop, device=scores.device)
    return scores.masked_fill(j > i, -math.inf)


# Attention, three ways --------------------------------------------------------------------------------------


def standard(q, k, v, traffic):
    """Return attention (N, d) in three passes (Algorithm 0), with scores and probabilities in global
    memory."""
    everything = slice(None)
    s, p, o = q.new_empty(len(q), len(k)), q.new_empty(len(q), len(k)), torch.empty_like(q)
    traffic.store(s, everything, tile_scores(traffic.load(q, everything), traffic.load(k, everything)))
    traffic.store(p, everything, torch.softmax(traffic.load(s, everything), dim=1))
    traffic.store(o, everything, traffic.load(p, everything) @ traffic.load(v, everything))
    return o


def keys_outer(q, k, v, rows, columns, traffic, causal=False, scale=None, over=iter):
    """Flash attention in the order of 2022 (Algorithm 1): tiles of `rows` queries and `columns` keys; returns
    (N, d).

    Between two key tiles m, l and o live in global memory, o divided by l: at any time it is attention over
    the keys read so far. `over` wraps the list of key tiles (a progress bar).
    """
    m, l, o = nothing_read(*q.shape, like=q)
    traffic.written += m.numel() + l.numel() + o.numel()
    for keys in over(tiles(len(k), columns)):
        k_tile, v_tile = traffic.load(k, keys), traffic.load(v, keys)
        for queries in tiles(len(q), rows):
            if causal and keys.start >= queries.stop:
                continue
            q_tile = traffic.load(q, queries)
            m_tile, l_tile, o_tile = (traffic.load(array, queries) for array in (m, l, o))
            scores = tile_scores(q_tile, k_tile, scale)
            if causal:
                scores = mask_future(scores, queries, keys)
            state = update(State(m_tile, l_tile, o_tile * l_tile), scores, v_tile)
            traffic.store(m, queries, state.m)
            traffic.store(l, queries, state.l)
            traffic.store(o, queries, state.o / state.l)
    return o


def queries_outer(q, k, v, rows, columns, traffic, causal=False, scale=None, over=iter):
    """Return flash attention in the order of 2023: like keys_outer, but the state of a query tile stays on
    the chip."""
    o = torch.empty_like(q)
    for queries in over(tiles(len(q), rows)):
        q_tile = traffic.load(q, queries)
        state = nothing_read(*q_tile.shape, like=q)
        for keys in tiles(min(len(k), queries.stop) if causal else len(k), columns):
            scores = tile_scores(q_tile, traffic.load(k, keys), scale)
            if causal:
                scores = mask_future(scores, queries, keys)
            state = update(state, scores, traffic.load(v, keys))
        traffic.store(o, queries, state.o / state.l)
    return o
