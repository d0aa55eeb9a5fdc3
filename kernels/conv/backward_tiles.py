"""Device functions of the float32 backward kernels of convolutional attention: P, dT and dS of a tile.

`backward.py` has the formulas, and the position of each of these matrices in its shared tile.
"""

import math

from numba import cuda
from numpy import float32, int32

from kernels.common.strips import STRIP
from kernels.conv.tiles import STRIPS, convolve_strips, products, strip_column, strip_row, turns_and_strips


@cuda.jit(device=True)
def probabilities_and_gradients(
    strip, s_tile, g_tile, taps, i0, j0, log_sum, d, keys, causal, diagonal, c_q, c_k
):
    """Compute P in this thread's strips, and dT in g_tile, from S0 in s_tile and dO·vᵀ in g_tile.

    Elements that are masked, outside the sequence, or beyond the halo of dT become 0.

    strip: this thread's strips, STRIP elements each, in the order of `convolve_strips`.
    i0, j0: the query and the key at index (0, 0) of dT, counted from the first owned ones.
    log_sum, d: (N,), L and D of the owned queries.
    keys: the number of owned keys.
    """
    size, n = s_tile.shape[0], log_sum.size
    turns, strips = turns_and_strips(size)
    rows, columns = size - (c_q - 1), size - (c_k - 1)
    counts = cuda.local.array(STRIPS, int32)
    for turn in range(turns):
        i = strip_row(turn, size)
        query = i0 + i
        last = min(columns, (query + diagonal + 1 if causal else keys) - j0, keys - j0)
        for s in range(strips):
            seen = i < rows and 0 <= query and query < n and strip_column(s) + STRIP > -j0
            counts[turn * strips + s] = (last if seen else 0) - strip_column(s)
    convolve_strips(strip, counts, s_tile, taps, c_q, c_k)
    for turn in range(turns):
        i = strip_row(turn, size)
        query = i0 + i
        inside = i < rows and 0 <= query and query < n
        l, delta = log_sum[query] if inside else float32(0), d[query] if inside else float32(0)
        for s in range(strips):
            first, place = strip_column(s), (turn * strips + s) * STRIP
            for x in range(STRIP):
                j = first + x
                if x < counts[turn * strips + s] and j0 + j >= 0:
                    p = math.exp(strip[place + x] - l)
                    strip[place + x] = p
                    g_tile[i, j] = p * (g_tile[i, j] - delta)
                else:
                    strip[place + x] = g_tile[i, j] = float32(0)


@cuda.jit(device=True)
def recompute_tile(
    strip, s_tile, g_tile, taps, q_rows, k_rows, v_rows, d_o_rows, log_sum, d, i0, j0, scale, causal, extent,
    c_q, c_k, a_chunk, b_chunk,
):  # fmt: skip
    """Recompute S0 of a tile and its halo in s_tile, P in the strips, and dT in g_tile.

    i0, j0: the first owned row and column of the tile, relative to the first rows of q and k, halos included.
    """
    first_query, first_key, diagonal = extent
    i, j = i0 - first_query, j0 - first_key - (c_k - 1 - (c_k - 1) // 2)  # query and key at dT's index (0, 0)
    whole_diagonal = first_key - first_query + diagonal
    products(
        s_tile,
        q_rows,
        k_rows,
        i0 - (c_q - 1),
        j0 - (c_k - 1),
        scale,
        causal,
        whole_diagonal,
        a_chunk,
        b_chunk,
    )
    products(g_tile, d_o_rows, v_rows, i, j, float32(1), causal, diagonal, a_chunk, b_chunk)
    cuda.syncthreads()  # both tiles are complete
    probabilities_and_gradients(
        strip, s_tile, g_tile, taps, i, j, log_sum, d, v_rows.shape[0], causal, diagonal, c_q, c_k
    )
    cuda.syncthreads()  # dT is complete


@cuda.jit(device=True)
def score_gradients(strip, g_tile, flipped, i0, j0, rows, columns, n, keys, causal, diagonal, c_q, c_k):
    """Compute dS in this thread's strips from dT in g_tile.

    dS is 0 for scores that are masked, outside the sequence, or not owned.
    """
    size = g_tile.shape[0]
    turns, strips = turns_and_strips(size)
    counts = cuda.local.array(STRIPS, int32)
    for turn in range(turns):
        i = strip_row(turn, size)
        last = min(columns, (i0 + i + diagonal + 1 if causal else keys) - j0, keys - j0)
        for s in range(strips):
            counts[turn * strips + s] = (last if i < rows and i0 + i < n else 0) - strip_column(s)
    convolve_strips(strip, counts, g_tile, flipped, c_q, c_k)
    for s in range(STRIPS):
        for x in range(STRIP):
            if x >= counts[s]:
                strip[s * STRIP + x] = float32(0)


@cuda.jit(device=True)
def store_strips(tile, strip, rows, first_column, last_column):
    """Store this thread's strips in the tile, with 0 outside [0, rows) × [first_column, last_column)."""
    size = tile.shape[0]
    turns, strips = turns_and_strips(size)
    for turn in range(turns):
        i = strip_row(turn, size)
        for s in range(strips):
            for x in range(STRIP):
                j = strip_column(s) + x
                owned = i < rows and first_column <= j and j < last_column
                tile[i, j] = strip[(turn * strips + s) * STRIP + x] if owned else float32(0)
