"""Tiled flash attention in plain PyTorch, counting the traffic to and from global memory.

For one head: q (N, d), k and v (N_k, d), any floating dtype. A tile is a few complete rows of an array;
    loading one models a copy into on-chip memory. Sources: Dao et al. 2022, arXiv 2205.14135 (Algorithms 0
    and 1); Dao 2023, arXiv 2307.08691.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch


@dataclass
class Traffic:
    """A counter of the elements moved between global memory and the chip. Repeated loads are counted: there
    is no cache."""

    read: int = 0
    written: int = 0

    @property
    def moved(self):
        return self.read + self.written

    def load(self, array, rows):
        """Return a copy of array[rows], and count its elements as read."""
        tile = array[rows].clone()
        self.read += tile.numel()
        return tile

    def store(self, array, rows, tile):
        """Assign the tile to array[rows], and count its elements as written."""
        array[rows] = tile
        self.written += tile.numel()


# The running state of the online softmax --------------------------------------------------------------------


class State(NamedTuple):
    """Online-softmax state of a set of rows after some of the keys."""

    m: torch.Tensor  # maximum score so far
    l: torch.Tensor  # (rows, 1)  Σ exp(score - m)
    o: torch.Tensor  # (rows, d)  Σ exp(score - m) · value, not yet divided by l


def initial_state(rows, d, like):
    """Return the initial state, before the first key, with the dtype and device of the tensor `like`."""
    return State(like.new_full((rows, 1), -math.inf), like.new_zeros(rows, 1), like.new_zeros(rows, d))


def weight(score, maximum):
    """Return exp(score - maximum), and 0 for a score of -inf even if the maximum is -inf."""
    return torch.where(score == -math.inf, 0.0, torch.exp(score - maximum))


def merge(a, b):
    """Merge the states of two disjoint sets of keys. The operation is commutative and associative."""
    m = torch.maximum(a.m, b.m)
    of_a, of_b = weight(a.m, m), weight(b.m, m)
    return State(m, of_a * a.l + of_b * b.l, of_a * a.o + of_b * b.o)


def tile_state(scores, values):
    """Return the state of a single tile, from scores (rows, keys) and values (keys, d)."""
    m = scores.amax(dim=1, keepdim=True)
    p = weight(scores, m)
    return State(m, p.sum(dim=1, keepdim=True), p @ values)


def update(state, scores, values):
    """Update `state` with one more tile of keys."""
    return merge(state, tile_state(scores, values))


def online_softmax(scores, values):
    """Return softmax(scores) @ values, (d,), computed one key at a time; scores (N,), values (N, d)."""
    state = initial_state(1, values.shape[1], like=values)
    for score, value in zip(scores, values, strict=True):
        state = merge(state, State(score.view(1, 1), torch.ones_like(state.l), value.view(1, -1)))
    return (state.o / state.l)[0]


# Tiles ------------------------------------------------------------------------------------------------------


def tiles(n, size):
    """Split n rows into the slices [0:size], [size:2·size], …; the last one may be shorter."""
    return [slice(start, min(start + size, n)) for start in range(0, n, size)]


def first_paper_tiles(numbers, d):
    """Return the tile sizes (queries, keys) that Algorithm 1 chooses for a chip of `numbers` elements."""
    quarter = math.ceil(numbers / (4 * d))
    return min(quarter, d), quarter


def tile_scores(q_tile, k_tile, scale=None):
    """Return scale · q_tile k_tileᵀ, (queries, keys); scale is 1/sqrt(d) by default."""
    return q_tile @ k_tile.T * (q_tile.shape[1] ** -0.5 if scale is None else scale)


def mask_future(scores, queries, keys):
    """Set the scores to -inf where the key comes after the query. `queries` and `keys` are slices of the
    sequence."""
    i = torch.arange(queries.start, queries.stop, device=scores.device)[:, None]
    j = torch.arange(keys.start, keys.stop, device=scores.device)
    return scores.masked_fill(j > i, -math.inf)


# Three schedules of attention -------------------------------------------------------------------------------


def standard(q, k, v, traffic):
    """Compute attention (N, d) in three passes, storing scores and probabilities (Algorithm 0)."""
    everything = slice(None)
    s, p, o = q.new_empty(len(q), len(k)), q.new_empty(len(q), len(k)), torch.empty_like(q)
    traffic.store(s, everything, tile_scores(traffic.load(q, everything), traffic.load(k, everything)))
    traffic.store(p, everything, torch.softmax(traffic.load(s, everything), dim=1))
    traffic.store(o, everything, traffic.load(p, everything) @ traffic.load(v, everything))
    return o


def keys_outer(q, k, v, rows, columns, traffic, causal=False, scale=None, over=iter):
    """Compute flash attention with key tiles in the outer loop, as in the first paper (Algorithm 1); return O
    (N, d).

    Tiles have `rows` queries and `columns` keys. Between two key tiles, m, l and o are stored in global
    memory. o is kept divided by l, so at any time it is the attention over the keys read so far.

    over: a wrapper for the list of key tiles, such as a progress bar.
    """
    m, l, o = initial_state(*q.shape, like=q)
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
    """Compute flash attention with query tiles in the outer loop, as in FlashAttention-2; return O (N, d).

    This is `keys_outer` with the loops exchanged, so that the state of a query tile stays on the chip.
    """
    o = torch.empty_like(q)
    for queries in over(tiles(len(q), rows)):
        q_tile = traffic.load(q, queries)
        state = initial_state(*q_tile.shape, like=q)
        for keys in tiles(min(len(k), queries.stop) if causal else len(k), columns):
            scores = tile_scores(q_tile, traffic.load(k, keys), scale)
            if causal:
                scores = mask_future(scores, queries, keys)
            state = update(state, scores, traffic.load(v, keys))
        traffic.store(o, queries, state.o / state.l)
    return o
