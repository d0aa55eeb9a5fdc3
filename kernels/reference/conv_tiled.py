"""Tiled convolutional attention in plain PyTorch, with halos, counting the traffic to global memory.

These are the course's three algorithms, for one head: q, k, v (N, d) and w (c_q, c_k), any floating dtype.
They combine key-query convolution (Golovneva et al. 2025, arXiv 2504.00927) with the tiling of
FlashAttention-2 (Dao 2023, arXiv 2307.08691), so no N×N matrix is stored. A tile OWNS some rows and columns
of the scores. For the convolution it LOADS more, the halo:

    forward     rows [i0 - P_q, i0 + rows)          columns [j0 - P_k, j0 + columns + P_r)
    backward    rows [i0 - P_q, i0 + rows + P_q)    columns [j0 - P_k - P_r, j0 + columns + P_k + P_r)

with P_q = c_q - 1, P_k = (c_k - 1) // 2, P_r = c_k - 1 - P_k. Exactly one tile owns each score, and only this
tile adds it to the results.
"""

import math
from typing import NamedTuple

import torch

from kernels.reference import convolve, tap_sums, transposed_convolve
from kernels.reference.tiled import initial_state, update


class Halo(NamedTuple):
    """The numbers of additional rows and columns of S0 that one entry of T depends on."""

    above: int  # P_q
    left: int  # P_k
    right: int  # P_r

    @property
    def across(self):
        return self.left + self.right


def halo_of(w):
    """Return the halo of taps w (c_q, c_k)."""
    c_q, c_k = w.shape
    return Halo(c_q - 1, (c_k - 1) // 2, c_k - 1 - (c_k - 1) // 2)


def owned(loaded, halo, backward=False):
    """Return the (rows, columns) that a tile owns if it loads (rows, columns) = `loaded` of S0.

    Raise ValueError if the halo takes up the whole tile.
    """
    sides = 2 if backward else 1
    rows, columns = loaded[0] - sides * halo.above, loaded[1] - sides * halo.across
    if rows < 1 or columns < 1:
        raise ValueError(
            f"a tile of {loaded[0]} × {loaded[1]} with a halo of {halo.above} rows and {halo.across} columns"
            " owns nothing; load more"
        )
    return rows, columns


# Tiles with halos -------------------------------------------------------------------------------------------


def load_rows(array, first, count, traffic):
    """Return a counted copy of array[first : first + count]; rows outside the array are 0."""
    inside = slice(max(first, 0), max(min(first + count, len(array)), 0))
    tile = array.new_zeros(count, *array.shape[1:])
    if inside.start < inside.stop:
        tile[inside.start - first : inside.stop - first] = traffic.load(array, inside)
    return tile


def positions(first, count, like):
    return torch.arange(first, first + count, device=like.device)


def seen(i, j, n, causal):
    """Return a mask (len(i), len(j)) of the keys j that query i sees.

    Both must be inside the sequence of n tokens, and j <= i if causal.
    """
    inside = ((i >= 0) & (i < n))[:, None] & ((j >= 0) & (j < n))
    return inside & (j <= i[:, None]) if causal else inside


def scores_tile(q, k, i0, j0, rows, columns, causal, scale, traffic):
    """Return S0 for rows [i0, i0 + rows) and columns [j0, j0 + columns).

    Entries that are masked or outside the sequence are 0.
    """
    s = scale * load_rows(q, i0, rows, traffic) @ load_rows(k, j0, columns, traffic).T
    return torch.where(seen(positions(i0, rows, q), positions(j0, columns, q), len(q), causal), s, 0.0)


def valid(s, w):
    """Return the "valid" convolution of a tile s (R, C) with w: the (R - P_q, C - P_k - P_r) entries that
    need no padding."""
    halo = halo_of(w)
    return convolve(s[None, None], w[None])[0, 0, halo.above :, halo.left : s.shape[1] - halo.right]


def valid_transposed(d_t, w):
    """Return the "valid" transposed convolution of a tile d_t (R, C) with w, (R - P_q, C - P_k - P_r)."""
    halo = halo_of(w)
    return transposed_convolve(d_t[None, None], w[None])[
        0, 0, : len(d_t) - halo.above, halo.right : d_t.shape[1] - halo.left
    ]


# Forward (Algorithm 1) --------------------------------------------------------------------------------------


def forward(q, k, v, w, loaded, traffic, causal=True, scale=None, over=iter):
    """Compute convolutional attention by tiles; return (O, L), (N, d) and (N,).

    loaded: (rows, columns) of S0 that a tile loads.
    over: a wrapper for the sequence of row tiles, such as a progress bar.
    """
    n, scale = len(q), 1 / math.sqrt(q.shape[1]) if scale is None else scale
    halo = halo_of(w)
    rows, columns = owned(loaded, halo)
    o, log_sum = torch.empty_like(q), q.new_empty(n)
    w = traffic.load(w, slice(None))
    for i0 in over(range(0, n, rows)):
        count = min(rows, n - i0)
        i = positions(i0, count, q)
        state = initial_state(count, q.shape[1], like=q)
        for j0 in range(0, min(n, i0 + count) if causal else n, columns):
            j = positions(j0, min(columns, n - j0), q)
            s = scores_tile(
                q,
                k,
                i0 - halo.above,
                j0 - halo.left,
                count + halo.above,
                len(j) + halo.across,
                causal,
                scale,
                traffic,
            )
            t = torch.where(seen(i, j, n, causal), valid(s, w), -math.inf)
            state = update(state, t, load_rows(v, j0, len(j), traffic))
        traffic.store(o, slice(i0, i0 + count), state.o / state.l)
        traffic.store(log_sum, slice(i0, i0 + count), (state.m + torch.log(state.l))[:, 0])
    return o, log_sum


# Backward (Algorithms 2 and 3) ------------------------------------------------------------------------------


class Gradients(NamedTuple):
    """Results of the backward pass for one tile: P, dS and dT of the owned scores, and S0 with its halo."""

    p: torch.Tensor  # (rows, columns)
    d_s: torch.Tensor  # (rows, columns)
    d_t: torch.Tensor  # (rows, columns)
    s: torch.Tensor  # (rows + P_q, columns + P_k + P_r)


def gradients_tile(q, k, v, w, log_sum, d, d_o, i0, j0, rows, columns, causal, scale, traffic):
    """Return the Gradients of the tile that owns rows [i0, i0 + rows) and columns [j0, j0 + columns).

    log_sum, d: (N,), L and D = rowsum(dO * O).

    The transposed convolution needs dT on a halo, too: P_q rows below the owned ones, P_r columns to their
        left and P_k to their right.
    """
    halo = halo_of(w)
    s = scores_tile(
        q,
        k,
        i0 - halo.above,
        j0 - halo.across,
        rows + 2 * halo.above,
        columns + 2 * halo.across,
        causal,
        scale,
        traffic,
    )
    i, j = positions(i0, rows + halo.above, q), positions(j0 - halo.right, columns + halo.across, q)
    log_sum, d = (load_rows(array, i0, len(i), traffic)[:, None] for array in (log_sum, d))
    p = torch.where(seen(i, j, len(q), causal), torch.exp(valid(s, w) - log_sum), 0.0)
    d_p = load_rows(d_o, i0, len(i), traffic) @ load_rows(v, j0 - halo.right, len(j), traffic).T
    # where p is 0, d_p may be inf or NaN
    d_t = torch.where(p > 0, p * (d_p - d), 0.0)
    mine = slice(0, rows), slice(halo.right, halo.right + columns)
    d_s = torch.where(seen(i[:rows], j[mine[1]], len(q), causal), valid_transposed(d_t, w), 0.0)
    return Gradients(
        p[mine], d_s, d_t[mine], s[: rows + halo.above, halo.right : halo.right + columns + halo.across]
    )


def backward_queries(q, k, v, w, log_sum, d, d_o, loaded, traffic, causal=True, scale=None):
    """Compute (dQ, dW), (N, d) and (c_q, c_k), with rows in the outer loop and keys in the inner one
    (Algorithm 2)."""
    n, scale = len(q), 1 / math.sqrt(q.shape[1]) if scale is None else scale
    rows, columns = owned(loaded, halo_of(w), backward=True)
    d_q, d_w = torch.empty_like(q), torch.zeros_like(w)
    for i0 in range(0, n, rows):
        count, row = min(rows, n - i0), q.new_zeros(min(rows, n - i0), q.shape[1])
        for j0 in range(0, min(n, i0 + count) if causal else n, columns):
            width = min(columns, n - j0)
            tile = gradients_tile(q, k, v, w, log_sum, d, d_o, i0, j0, count, width, causal, scale, traffic)
            row += scale * tile.d_s @ load_rows(k, j0, width, traffic)
            d_w += tap_sums(tile.d_t[None, None], tile.s[None, None])[0]
        traffic.store(d_q, slice(i0, i0 + count), row)
    traffic.written += d_w.numel()
    return d_q, d_w


def backward_keys(q, k, v, w, log_sum, d, d_o, loaded, traffic, causal=True, scale=None):
    """Compute (dK, dV), both (N, d), with keys in the outer loop and rows in the inner one (Algorithm 3)."""
    n, scale = len(q), 1 / math.sqrt(q.shape[1]) if scale is None else scale
    rows, columns = owned(loaded, halo_of(w), backward=True)
    d_k, d_v = torch.empty_like(k), torch.empty_like(v)
    for j0 in range(0, n, columns):
        width = min(columns, n - j0)
        of_k, of_v = k.new_zeros(2, width, k.shape[1])
        # under a causal mask, start at the first tile of rows that sees one of these keys
        for i0 in range(j0 // rows * rows if causal else 0, n, rows):
            count = min(rows, n - i0)
            tile = gradients_tile(q, k, v, w, log_sum, d, d_o, i0, j0, count, width, causal, scale, traffic)
            of_k += scale * tile.d_s.T @ load_rows(q, i0, count, traffic)
            of_v += tile.p.T @ load_rows(d_o, i0, count, traffic)
        traffic.store(d_k, slice(j0, j0 + width), of_k)
        traffic.store(d_v, slice(j0, j0 + width), of_v)
    return d_k, d_v
