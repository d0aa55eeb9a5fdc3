"""The backward kernel of latent attention that owns queries: dQ from all scores, dK̃ from the reciprocal
terms."""

import functools

from numba import cuda
from numpy import float32

from kernels.common.tiles import GROUP, load_columns
from kernels.latent.forward import keep_queries, scores
from kernels.latent.tiles import (
    COLUMNS,
    PATCH,
    ROW_THREADS,
    STEP,
    WEIGHTS,
    add_products,
    add_rows,
    add_weighted_rows,
    clear,
    keep_band,
    probability,
    project,
    put,
    put_weights,
    stream_rows,
    touches_band,
)


@cuda.jit(device=True)
def score_gradients(patch, d_p, i0, n, log_sum, d):
    """Replace patch = S with dS, given d_p = dP, with queries as rows."""
    row = cuda.threadIdx.x // ROW_THREADS
    for r in range(patch.size // PATCH):
        i = min(i0 + row + r * STEP, n - 1)
        for c in range(PATCH):
            at = r * PATCH + c
            patch[at] = probability(patch[at], log_sum[i]) * (d_p[at] - d[i])


@functools.cache
def queries_kernel(width, rows):
    """Return the kernel whose blocks own `rows` queries each, for rows of at most `width` elements."""
    pitch, mine = width + GROUP, rows // STEP
    places, numbers = mine * PATCH, mine * width // ROW_THREADS

    @cuda.jit
    def latent_backward_queries_kernel(
        q,
        k_latent,
        v_latent,
        w_q,
        w_q_turned,
        w_v_turned,
        alpha,
        window,
        scale,
        causal,
        log_sum,
        d,
        d_o,
        d_q,
        d_k,
    ):
        """Add h W_qᵀ to d_q, and R W_q to d_k; each head adds to part head % parts.

        d_q: (B, H, M, d).
        d_k: (B, parts, N_k, L).
        log_sum, d: (B, H, N), L and D.
        d_o: (B, H, N, d).

        The other arguments are the same as for latent_forward_kernel.
        """
        q_tile = cuda.shared.array((rows, pitch), float32, alignment=16)
        g_tile = cuda.shared.array((rows, pitch), float32, alignment=16)
        r_tile = cuda.shared.array((rows, pitch), float32, alignment=16)
        stream = cuda.shared.array((COLUMNS, pitch), float32, alignment=16)
        weights = cuda.shared.array((rows, WEIGHTS), float32, alignment=16)
        patch, band = cuda.local.array(places, float32), cuda.local.array(places, float32)
        h_sums, r_sums = cuda.local.array(numbers, float32), cuda.local.array(numbers, float32)
        batch, head = cuda.blockIdx.z, cuda.blockIdx.y
        q_rows, k_rows, v_rows = q[batch, head], k_latent[batch], v_latent[batch]
        n, keys, given, latent = d_o.shape[2], k_latent.shape[1], q.shape[2], k_latent.shape[2]
        i0 = (cuda.gridDim.x - 1 - cuda.blockIdx.x) * rows
        position = keys - n + i0
        # 1. compute the resident tiles: q̃, g and, if there is a band, r
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
            h_sums,
            stream,
        )
        load_columns(g_tile, d_o[batch, head], i0, 0)
        project(g_tile, w_v_turned[head], float32(1), h_sums, stream)
        clear(h_sums)
        clear(r_sums)
        for j0 in range(0, min(keys, position + rows) if causal else keys, COLUMNS):
            in_band = touches_band(position, rows, j0, window)
            # 2. compute S and dP, and from them dS
            scores(patch, band, q_tile, r_tile, stream, q_rows, k_rows, position, j0, causal, window)
            clear(band)
            stream_rows(stream, v_rows, j0)
            add_products(band, g_tile, stream, latent)
            score_gradients(patch, band, i0, n, log_sum[batch, head], d[batch, head])
            # 3. h += dS k̃, and in the band R += dS q
            put_weights(weights, patch)
            stream_rows(stream, k_rows, j0)
            add_weighted_rows(h_sums, weights, 0, stream, keys - j0)
            if in_band:
                keep_band(patch, position - j0, 1, window)
                put_weights(weights, patch)
                stream_rows(stream, q_rows, j0 - (keys - given))
                add_weighted_rows(r_sums, weights, 0, stream, keys - j0)
        # 4. project the sums by W_q
        put(q_tile, h_sums, scale)
        project(q_tile, w_q_turned[head], float32(1), h_sums, stream)
        add_rows(d_q[batch, head], given - n + i0, q_tile)
        if window > 0:
            put(r_tile, r_sums, scale * alpha[0])
            project(r_tile, w_q[head], float32(1), h_sums, stream)
            add_rows(d_k[batch, head % d_k.shape[1]], position, r_tile)

    return latent_backward_queries_kernel
