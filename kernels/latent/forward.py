"""Latent attention with a reciprocal term, forward kernel: each block owns a tile of queries of one head.

The block projects its queries, and finally its sum of values, on chip. The heads share latent keys and values
k̃, ṽ (N_k, L). For one head, with q̃ = q W_q, and p = N_k - N + i the position of query i among the keys:

    S[i, j] = scale · (q̃_i·k̃_j + α · [0 <= p - j < window] · q̃_j·k̃_p), -inf where masked
    O       = softmax(S) ṽ W_v

All projections are applied to quantities of the owned queries, which stay in shared memory. Only the latents
and the raw queries are streamed through it:

    q̃_i              avoids projecting every key for each head
    r_i = W_q k̃_p    avoids computing q̃_j for all keys in the band, because q̃_j·k̃_p = q_j·r_i
    Σ_j P_ij ṽ_j     is accumulated in registers; W_v is applied to this sum instead of to each value

(m, l) are updated as in flash/forward.py, and only O and L = m + log l are stored.
Sources: DeepSeek-AI 2024, arXiv 2405.04434, section 2.1 (shared latents, projections applied to queries and
    output); Dao 2023, arXiv 2307.08691, Algorithm 1 (the loop).

    grid    (⌈N / rows⌉, H, B), the last tile of rows first, because under a causal mask it sees the most keys
    block   64 threads for 32 queries (16 if L or d is above 64), 8 threads per query
    shared  (2 · rows + 32) · (width + 4) + rows · 36 floats, static: 30 KiB at width 64
    cost    2 · L multiply-adds per score, d more in the band, and (d·L, twice in the band, and L·d) per query
"""

import functools
import math

from numba import cuda
from numpy import float32

from kernels.common.arguments import HALVES
from kernels.common.launch import launch, output
from kernels.common.tiles import GROUP, INDEX, MINUS_INFINITY, load_columns, reciprocal
from kernels.latent.arguments import latent_arguments
from kernels.latent.tensor_forward import latent_tensor_forward
from kernels.latent.tiles import (
    COLUMNS,
    PATCH,
    ROW_THREADS,
    STEP,
    THREADS,
    WEIGHTS,
    add_products,
    add_softmax,
    add_weighted_rows,
    clear,
    project,
    put,
    sizes_for,
    store_rows,
    stream_rows,
    sum_of_row,
    touches_band,
)


@cuda.jit(device=True)
def mask_and_add_band(patch, band, position, j0, keys, causal, window):
    """Add the reciprocal scores `band` to the scores `patch` inside the band, and set hidden scores to -inf.

    position: the position of the first query.
    j0: the first key.
    """
    row, column = cuda.threadIdx.x // ROW_THREADS, cuda.threadIdx.x % ROW_THREADS
    for r in range(patch.size // PATCH):
        for c in range(PATCH):
            j = j0 + column + c * ROW_THREADS
            back = position + row + r * STEP - j
            if j >= keys or causal and back < 0:
                patch[r * PATCH + c] = MINUS_INFINITY
            elif 0 <= back and back < window:
                patch[r * PATCH + c] += band[r * PATCH + c]


@cuda.jit(device=True, forceinline=True)  # keeps `sums` in registers, like `project`
def keep_queries(
    q_tile, r_tile, q_rows, k_rows, position, w_q, w_q_turned, scale, alpha, window, sums, stream
):
    """Store scale · q̃ in q_tile and, if window > 0, scale · α · r in r_tile, for the queries starting at
    `position`."""
    load_columns(q_tile, q_rows, position - k_rows.shape[0] + q_rows.shape[0], 0)
    project(q_tile, w_q, scale, sums, stream)
    if window > 0:
        load_columns(r_tile, k_rows, position, 0)
        project(r_tile, w_q_turned, scale * alpha, sums, stream)


@cuda.jit(device=True, forceinline=True)
def scores(patch, band, q_tile, r_tile, stream, q_rows, k_rows, position, j0, causal, window):
    """Compute S in `patch`, for the queries starting at `position` and the keys starting at j0; `band` is
    scratch."""
    clear(patch)
    clear(band)
    stream_rows(stream, k_rows, j0)
    add_products(patch, q_tile, stream, k_rows.shape[1])
    if touches_band(position, q_tile.shape[0], j0, window):
        stream_rows(stream, q_rows, j0 - k_rows.shape[0] + q_rows.shape[0])
        add_products(band, r_tile, stream, q_rows.shape[1])
    mask_and_add_band(patch, band, position, j0, k_rows.shape[0], causal, window)


@functools.cache
def latent_forward_kernel(width, rows):
    """Return the kernel for rows of at most `width` elements, and blocks that own `rows` queries."""
    pitch, mine = width + GROUP, rows // STEP
    places, numbers = mine * PATCH, mine * width // ROW_THREADS

    @cuda.jit
    def latent_forward_kernel(
        q, k_latent, v_latent, w_q, w_q_turned, w_v, alpha, window, scale, causal, o, log_sum
    ):
        """Compute o (B, H, N, d) and log_sum (B, H, N) for the last N queries.

        q: (B, H, M, d).
        k_latent, v_latent: (B, N_k, L).
        w_q: (H, d, L); w_q_turned: its transpose, (H, L, d).
        w_v: (H, L, d).
        alpha: (1,).
        """
        q_tile = cuda.shared.array((rows, pitch), float32, alignment=16)
        r_tile = cuda.shared.array((rows, pitch), float32, alignment=16)
        stream = cuda.shared.array((COLUMNS, pitch), float32, alignment=16)
        weights = cuda.shared.array((rows, WEIGHTS), float32, alignment=16)
        patch, band = cuda.local.array(places, float32), cuda.local.array(places, float32)
        sums = cuda.local.array(numbers, float32)
        m, l = cuda.local.array(mine, float32), cuda.local.array(mine, float32)
        batch, head = cuda.blockIdx.z, cuda.blockIdx.y
        q_rows, k_rows, v_rows = q[batch, head], k_latent[batch], v_latent[batch]
        n, keys = o.shape[2], k_latent.shape[1]
        i0 = (cuda.gridDim.x - 1 - cuda.blockIdx.x) * rows
        position = keys - n + i0  # position of the block's first query among the keys
        # 1. project the block's queries, and initialise the state
        keep_queries(
            q_tile,
            r_tile,
            q_rows,
            k_rows,
            position,
            w_q[head],
            w_q_turned[head],
            scale,
            alpha[0],
            window,
            sums,
            stream,
        )
        clear(sums)
        clear(l)
        for r in range(mine):
            m[r] = MINUS_INFINITY
        for j0 in range(0, min(keys, position + rows) if causal else keys, COLUMNS):
            # 2. compute the scores
            scores(patch, band, q_tile, r_tile, stream, q_rows, k_rows, position, j0, causal, window)
            # 3. update the softmax, and add the latent values
            add_softmax(patch, m, l, sums, weights)
            stream_rows(stream, v_rows, j0)
            add_weighted_rows(sums, weights, 0, stream, keys - j0)
        # 4. normalise, then apply W_v
        row = cuda.threadIdx.x // ROW_THREADS & INDEX
        for r in range(mine):
            total = sum_of_row(l[r])
            share = reciprocal(total)
            for part in range(numbers // mine):
                sums[r * (numbers // mine) + part] *= share
            if cuda.threadIdx.x % ROW_THREADS == 0 and i0 + row + r * STEP < n:
                log_sum[batch, head, i0 + row + r * STEP] = m[r] + math.log(total)
        put(q_tile, sums, float32(1))
        project(q_tile, w_v[head], float32(1), sums, stream)
        store_rows(o[batch, head], i0, q_tile)

    return latent_forward_kernel


def latent_forward(
    q, k_latent, v_latent, w_q, w_v, alpha=0.0, window=0, causal=True, scale=None, n=None, run=None
):
    """Compute latent attention and each query's log-sum-exp; return (O, L), without gradients.

    Arguments and errors are the same as for `latent_attention`. O is (B, H, n, d), with the dtype of q; L is
    (B, H, n), float32.

    n: the number of last queries for which O is computed; all by default. Earlier queries are used only for
        the reciprocal terms of their keys.
    """
    q, k, v, w_q, w_v, alpha, window, scale = latent_arguments(
        q, k_latent, v_latent, w_q, w_v, alpha, window, scale
    )
    n = q.shape[2] if n is None else n
    return forward(q, k, v, w_q, w_v, alpha, window, causal, scale, n, run)


def forward(q, k, v, w_q, w_v, alpha, window, causal, scale, n, run=None):
    """Return the results of `latent_forward` for checked, contiguous arguments; alpha is (1,), float32."""
    batch, heads, _, d = q.shape
    if q.dtype in HALVES:
        return latent_tensor_forward(q, k, v, w_q, w_v, alpha, window, causal, scale, n, run)
    o, log_sum = output((batch, heads, n, d), like=q), output((batch, heads, n), like=q)
    width, rows = sizes_for(d, k.shape[2])
    launch(
        latent_forward_kernel(width, rows),
        (-(-n // rows), heads, batch),
        THREADS,
        q,
        k,
        v,
        w_q,
        w_q.mT.contiguous(),
        w_v,
        alpha,
        window,
        scale,
        bool(causal),
        o,
        log_sum,
        run=run,
    )
    return o, log_sum
