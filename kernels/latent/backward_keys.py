"""The backward kernel of latent attention that owns keys: dṼ, dW_q, dW_v, dα, and parts of dQ and dK̃."""

import functools

from numba import cuda
from numpy import float32

from kernels.common.tiles import GROUP, INDEX, load_columns
from kernels.latent.tiles import (
    COLUMNS,
    PATCH,
    ROW_THREADS,
    STEP,
    WARP,
    WEIGHTS,
    add_outer,
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
)


@cuda.jit(device=True)
def turned_probabilities(patch, band, j0, position, i0, n, keys, alpha, log_sum, causal, window):
    """Compute P from S, with keys as rows and queries as columns.

    patch, band: the two terms of S; P overwrites `patch`.
    j0, i0: the first key and the first query.
    position: the position of query i0 among the keys.
    """
    row, column = cuda.threadIdx.x // ROW_THREADS, cuda.threadIdx.x % ROW_THREADS
    for r in range(patch.size // PATCH):
        j = j0 + row + r * STEP
        for c in range(PATCH):
            at, step = r * PATCH + c, column + c * ROW_THREADS
            back = position + step - j
            if i0 + step >= n or j >= keys or causal and back < 0:
                patch[at] = float32(0)
            else:
                reciprocal = alpha * band[at] if 0 <= back and back < window else float32(0)
                patch[at] = probability(patch[at] + reciprocal, log_sum[i0 + step])


@cuda.jit(device=True)
def turned_score_gradients(patch, d_p, i0, n, d):
    """Replace patch = P by dS, given d_p = dP, with keys as rows."""
    column = cuda.threadIdx.x % ROW_THREADS
    for r in range(patch.size // PATCH):
        for c in range(PATCH):
            at = r * PATCH + c
            patch[at] *= d_p[at] - d[min(i0 + column + c * ROW_THREADS, n - 1)]


@cuda.jit(device=True)
def add_product_of(total, tile, sums):
    """Add Σ tile * sums to total (1,) in global memory, atomically."""
    groups = (tile.shape[1] - GROUP) // (ROW_THREADS * GROUP)
    row, column = cuda.threadIdx.x // ROW_THREADS & INDEX, cuda.threadIdx.x % ROW_THREADS * GROUP & INDEX
    mine = float32(0)
    for r in range(tile.shape[0] // STEP):
        for g in range(groups):
            for y in range(GROUP):
                at = (r * groups + g) * GROUP + y
                mine += tile[row + r * STEP, column + g * (ROW_THREADS * GROUP) + y] * sums[at]
    for bit in range(5):
        mine += cuda.shfl_xor_sync(WARP, mine, 1 << bit)
    if cuda.threadIdx.x % 32 == 0:
        cuda.atomic.add(total, 0, mine)


@functools.cache
def keys_kernel(width, rows):
    """Return the kernel whose blocks own `rows` keys each, for rows of at most `width` elements."""
    pitch, mine = width + GROUP, rows // STEP
    places, numbers = mine * PATCH, mine * width // ROW_THREADS

    @cuda.jit
    def latent_backward_keys_kernel(
        q,
        k_latent,
        v_latent,
        w_q,
        w_q_turned,
        w_v,
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
        d_v,
        d_w_q,
        d_w_v,
        d_alpha,
    ):
        """Add G W_qᵀ to d_q, f W_q to d_k, e W_vᵀ to d_v, and the gradients of W_q, W_v and α.

        d_k, d_v: (B, parts, N_k, L).
        d_w_q: (blocks, H, d, L). Block b of a head adds to part b % blocks of d_w_q, d_w_v and d_alpha.
        d_w_v: (blocks, H, L, d).
        d_alpha: (blocks, H, 1).

        The other arguments are the same as for latent_backward_queries_kernel.
        """
        u_tile = cuda.shared.array((rows, pitch), float32, alignment=16)
        x_tile = cuda.shared.array((rows, pitch), float32, alignment=16)
        z_tile = cuda.shared.array((rows, pitch), float32, alignment=16)
        stream = cuda.shared.array((COLUMNS, pitch), float32, alignment=16)
        weights = cuda.shared.array((rows, WEIGHTS), float32, alignment=16)
        patch, band = cuda.local.array(places, float32), cuda.local.array(places, float32)
        f_sums, e_sums = cuda.local.array(numbers, float32), cuda.local.array(numbers, float32)
        g_sums = cuda.local.array(numbers, float32)
        batch, head = cuda.blockIdx.z, cuda.blockIdx.y
        q_rows, k_rows, v_rows = q[batch, head], k_latent[batch], v_latent[batch]
        d_o_rows, size = d_o[batch, head], q.shape[3]
        n, keys, given, latent = d_o.shape[2], k_latent.shape[1], q.shape[2], k_latent.shape[2]
        j0 = cuda.blockIdx.x * rows
        # 1. compute the resident tiles: u, x and, if there is a band, q̃ of the keys
        load_columns(u_tile, k_rows, j0, 0)
        project(u_tile, w_q_turned[head], scale, f_sums, stream)
        load_columns(x_tile, v_rows, j0, 0)
        project(x_tile, w_v[head], float32(1), f_sums, stream)
        if window > 0:
            load_columns(z_tile, q_rows, j0 - (keys - given), 0)
            project(z_tile, w_q[head], scale, f_sums, stream)
        clear(f_sums)
        clear(e_sums)
        clear(g_sums)
        for i0 in range(max(0, j0 - (keys - n)) // COLUMNS * COLUMNS if causal else 0, n, COLUMNS):
            position = keys - n + i0
            in_band = window > 0 and j0 < position + COLUMNS and position < j0 + rows - 1 + window
            # 2. compute S and P
            clear(patch)
            clear(band)
            if in_band:
                stream_rows(stream, k_rows, position)
                add_products(band, z_tile, stream, latent)
            stream_rows(stream, q_rows, given - n + i0)
            add_products(patch, u_tile, stream, size)
            turned_probabilities(
                patch, band, j0, position, i0, n, keys, alpha[0], log_sum[batch, head], causal, window
            )
            # 3. e += Pᵀ dO; then compute dS
            put_weights(weights, patch)
            clear(band)
            stream_rows(stream, d_o_rows, i0)
            add_products(band, x_tile, stream, size)
            add_weighted_rows(e_sums, weights, 0, stream, n - i0)
            turned_score_gradients(patch, band, i0, n, d[batch, head])
            # 4. f += dSᵀ q, and in the band G += dSᵀ k̃
            put_weights(weights, patch)
            stream_rows(stream, q_rows, given - n + i0)
            add_weighted_rows(f_sums, weights, 0, stream, n - i0)
            if in_band:
                keep_band(patch, j0 - position, -1, window)
                put_weights(weights, patch)
                stream_rows(stream, k_rows, position)
                add_weighted_rows(g_sums, weights, 0, stream, n - i0)
        # 5. project the sums by W_q and W_v, and add the gradients of these weights
        block = (cuda.blockIdx.z * cuda.gridDim.x + cuda.blockIdx.x) % d_w_q.shape[0]
        put(u_tile, f_sums, scale)
        stream_rows(stream, k_rows, j0)
        add_outer(d_w_q[block, head], u_tile, stream, f_sums, min(rows, keys - j0))
        project(u_tile, w_q[head], float32(1), f_sums, stream)
        add_rows(d_k[batch, head % d_k.shape[1]], j0, u_tile)
        put(x_tile, e_sums, float32(1))
        stream_rows(stream, v_rows, j0)
        add_outer(d_w_v[block, head], stream, x_tile, e_sums, min(rows, keys - j0))
        project(x_tile, w_v_turned[head], float32(1), e_sums, stream)
        add_rows(d_v[batch, head % d_v.shape[1]], j0, x_tile)
        if window > 0:
            add_product_of(d_alpha[block, head], z_tile, g_sums)
            cuda.syncthreads()  # all threads have finished reading the latent queries
            put(z_tile, g_sums, scale * alpha[0])
            stream_rows(stream, q_rows, j0 - (keys - given))
            add_outer(d_w_q[block, head], stream, z_tile, g_sums, min(rows, keys - j0))
            project(z_tile, w_q_turned[head], float32(1), g_sums, stream)
            add_rows(d_q[batch, head], j0 - (keys - given), z_tile)

    return latent_backward_keys_kernel
