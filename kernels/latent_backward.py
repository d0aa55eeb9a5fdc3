"""Reciprocal and latent attention, backward: one kernel keeps a tile of queries, one a tile of keys; both
make P again from O's L, and put each projection on the side that stays.

With p the position of query i, u_j = W_q k̃_j, x_j = ṽ_j W_v, g_i = dO_i W_vᵀ, r_i = W_q k̃_p,
D = rowsum(dO * O), [band] = [0 <= p - j < window] and sums over i or j, whichever is missing on the left:

    S_ij = scale · (q̃_i·k̃_j + α [band] r_i·q_j)   dP_ij = g_i·ṽ_j    where the queries stay
    S_ij = scale · (q_i·u_j + α [band] q̃_j·k̃_p)   dP_ij = dO_i·x_j    where the keys stay
    P = exp(S - L), 0 where masked                dS = P * (dP - D)

    of a query   h_i = scale Σ dS k̃_j             dq_i += h_i W_qᵀ
                 R_i = scale · α Σ [band] dS q_j   dk̃_p += R_i W_q
    of a key     f_j = scale Σ dS q_i              dk̃_j += f_j W_q
                 e_j = Σ P dO_i                    dṽ_j += e_j W_vᵀ
                 G_j = scale · α Σ [band] dS k̃_p   dq_j += G_j W_qᵀ
    of all       dW_q = Σ_j (f_j ⊗ k̃_j + q_j ⊗ G_j)      dW_v = Σ_j ṽ_j ⊗ e_j      dα = Σ_j q̃_j·G_j / α

The heads share k̃ and ṽ, so blocks of all heads add to dk̃ and dṽ: atomically, or, for a result that does not
change from run to run, each head to a part of its own, and a second pass adds the parts.
Sources: as latent_forward.py; Dao 2023, arXiv 2307.08691, Algorithm 2 (L and D).

    grid    (⌈N / rows⌉, H, B) and (⌈N_k / rows⌉, H, B)
    block   64 threads for 32 rows (16 where L or d is above 64)
    shared  (3 · rows + 32) · (width + 4) + rows · 36 floats, static: 38.5 KiB at width 64
    cost    3 · L and 4 · d multiply-adds a score, 2 · d and 2 · L more in the band
"""

import functools

import torch
from numba import cuda
from numpy import float32

from kernels.conv_tiles import GROUP, INDEX, load_columns
from kernels.latent_arguments import latent_arguments
from kernels.latent_forward import mask_and_add_band
from kernels.latent_tiles import (
    COLUMNS,
    LANES,
    PATCH,
    STEP,
    THREADS,
    WARP,
    WEIGHTS,
    add_outer,
    add_products,
    add_rows,
    add_weighted_rows,
    clear,
    project,
    put,
    sizes_for,
    stream_rows,
    touches_band,
)
from kernels.launch import FLOAT32, check_device, launch
from kernels.tiles import weight

# Device functions -------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def score_gradients(patch, d_p, i0, n, log_sum, d):
    """patch = dS where queries are rows, from patch = S and d_p = dP."""
    row = cuda.threadIdx.x // LANES
    for r in range(patch.size // PATCH):
        i = min(i0 + row + r * STEP, n - 1)
        for c in range(PATCH):
            at = r * PATCH + c
            patch[at] = weight(patch[at], log_sum[i]) * (d_p[at] - d[i])


@cuda.jit(device=True)
def turned_probabilities(patch, band, j0, position, i0, n, keys, alpha, log_sum, causal, window):
    """patch = P where keys, from j0, are rows and queries, from i0, are columns, from patch and band, the two
    parts of S; position: of query i0."""
    row, column = cuda.threadIdx.x // LANES, cuda.threadIdx.x % LANES
    for r in range(patch.size // PATCH):
        j = j0 + row + r * STEP
        for c in range(PATCH):
            at, step = r * PATCH + c, column + c * LANES
            back = position + step - j
            if i0 + step >= n or j >= keys or causal and back < 0:
                patch[at] = float32(0)
            else:
                reciprocal = alpha * band[at] if 0 <= back and back < window else float32(0)
                patch[at] = weight(patch[at] + reciprocal, log_sum[i0 + step])


@cuda.jit(device=True)
def turned_score_gradients(patch, d_p, i0, n, d):
    """patch = dS where keys are rows, from patch = P and d_p = dP."""
    column = cuda.threadIdx.x % LANES
    for r in range(patch.size // PATCH):
        for c in range(PATCH):
            at = r * PATCH + c
            patch[at] *= d_p[at] - d[min(i0 + column + c * LANES, n - 1)]


@cuda.jit(device=True)
def put_weights(weights, patch):
    """weights = patch, each thread its part; no other thread's rows are read by its neighbours meanwhile."""
    row, column = cuda.threadIdx.x // LANES & INDEX, cuda.threadIdx.x % LANES & INDEX
    cuda.syncthreads()  # what was there is used up
    for r in range(patch.size // PATCH):
        for c in range(PATCH):
            weights[row + r * STEP, column + c * LANES] = patch[r * PATCH + c]


@cuda.jit(device=True)
def keep_band(patch, distance, sign, window):
    """patch = 0 outside the band; sign · (distance + row - column) steps lie between query and key."""
    row, column = cuda.threadIdx.x // LANES, cuda.threadIdx.x % LANES
    for r in range(patch.size // PATCH):
        for c in range(PATCH):
            back = sign * (distance + row + r * STEP - column - c * LANES)
            if back < 0 or back >= window:
                patch[r * PATCH + c] = float32(0)


@cuda.jit(device=True)
def add_product_of(total, tile, sums):
    """total += Σ tile * sums, atomically; total (1,) in global memory."""
    groups = (tile.shape[1] - GROUP) // (LANES * GROUP)
    row, column = cuda.threadIdx.x // LANES & INDEX, cuda.threadIdx.x % LANES * GROUP & INDEX
    mine = float32(0)
    for r in range(tile.shape[0] // STEP):
        for g in range(groups):
            for y in range(GROUP):
                at = (r * groups + g) * GROUP + y
                mine += tile[row + r * STEP, column + g * (LANES * GROUP) + y] * sums[at]
    for bit in range(5):
        mine += cuda.shfl_xor_sync(WARP, mine, 1 << bit)
    if cuda.threadIdx.x % 32 == 0:
        cuda.atomic.add(total, 0, mine)


# Kernels ----------------------------------------------------------------------------------------------------


@functools.cache
def queries_kernel(width, rows):
    """The kernel that keeps queries, for rows of at most `width` numbers, `rows` of them in a block."""
    pitch, mine = width + GROUP, rows // STEP
    scores, numbers = mine * PATCH, mine * width // LANES

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
        """d_q (B, H, M, d) += h W_qᵀ and d_k (B, parts, N_k, L) += R W_q, a head in part head % parts;
        log_sum, d (B, H, N), d_o (B, H, N, d); the rest as in latent_forward_kernel."""
        q_tile = cuda.shared.array((rows, pitch), float32, alignment=16)
        g_tile = cuda.shared.array((rows, pitch), float32, alignment=16)
        r_tile = cuda.shared.array((rows, pitch), float32, alignment=16)
        stream = cuda.shared.array((COLUMNS, pitch), float32, alignment=16)
        weights = cuda.shared.array((rows, WEIGHTS), float32, alignment=16)
        patch, band = cuda.local.array(scores, float32), cuda.local.array(scores, float32)
        h_sums, r_sums = cuda.local.array(numbers, float32), cuda.local.array(numbers, float32)
        batch, head = cuda.blockIdx.z, cuda.blockIdx.y
        q_rows, k_rows, v_rows = q[batch, head], k_latent[batch], v_latent[batch]
        n, keys, given, latent = d_o.shape[2], k_latent.shape[1], q.shape[2], k_latent.shape[2]
        i0 = (cuda.gridDim.x - 1 - cuda.blockIdx.x) * rows
        position = keys - n + i0
        # 1. what stays
        load_columns(q_tile, q_rows, given - n + i0, 0)
        project(q_tile, w_q[head], scale, h_sums, stream)
        load_columns(g_tile, d_o[batch, head], i0, 0)
        project(g_tile, w_v_turned[head], float32(1), h_sums, stream)
        if window > 0:
            load_columns(r_tile, k_rows, position, 0)
            project(r_tile, w_q_turned[head], scale * alpha[0], h_sums, stream)
        clear(h_sums)
        clear(r_sums)
        for j0 in range(0, min(keys, position + rows) if causal else keys, COLUMNS):
            in_band = touches_band(position, rows, j0, window)
            # 2. S, dP and from them dS
            clear(patch)
            clear(band)
            stream_rows(stream, k_rows, j0)
            add_products(patch, q_tile, stream, latent)
            if in_band:
                stream_rows(stream, q_rows, j0 - (keys - given))
                add_products(band, r_tile, stream, q.shape[3])
            mask_and_add_band(patch, band, position, j0, keys, causal, window)
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
        # 4. through W_q
        put(q_tile, h_sums, scale)
        project(q_tile, w_q_turned[head], float32(1), h_sums, stream)
        add_rows(d_q[batch, head], given - n + i0, q_tile)
        if window > 0:
            put(r_tile, r_sums, scale * alpha[0])
            project(r_tile, w_q[head], float32(1), h_sums, stream)
            add_rows(d_k[batch, head % d_k.shape[1]], position, r_tile)

    return latent_backward_queries_kernel


@functools.cache
def keys_kernel(width, rows):
    """The kernel that keeps keys, for rows of at most `width` numbers, `rows` of them in a block."""
    pitch, mine = width + GROUP, rows // STEP
    scores, numbers = mine * PATCH, mine * width // LANES

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
        """d_q += G W_qᵀ, d_k += f W_q and d_v (B, parts, N_k, L) += e W_vᵀ; d_w_q (blocks, H, d, L), d_w_v
        (blocks, H, L, d), d_alpha (blocks, H, 1): block b of a head adds to part b % blocks."""
        u_tile = cuda.shared.array((rows, pitch), float32, alignment=16)
        x_tile = cuda.shared.array((rows, pitch), float32, alignment=16)
        z_tile = cuda.shared.array((rows, pitch), float32, alignment=16)
        stream = cuda.shared.array((COLUMNS, pitch), float32, alignment=16)
        weights = cuda.shared.array((rows, WEIGHTS), float32, alignment=16)
        patch, band = cuda.local.array(scores, float32), cuda.local.array(scores, float32)
        f_sums, e_sums = cuda.local.array(numbers, float32), cuda.local.array(numbers, float32)
        g_sums = cuda.local.array(numbers, float32)
        batch, head = cuda.blockIdx.z, cuda.blockIdx.y
        q_rows, k_rows, v_rows = q[batch, head], k_latent[batch], v_latent[batch]
        d_o_rows, size = d_o[batch, head], q.shape[3]
        n, keys, given, latent = d_o.shape[2], k_latent.shape[1], q.shape[2], k_latent.shape[2]
        j0 = cuda.blockIdx.x * rows
        # 1. what stays
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
            # 2. S and P
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
            # 3. e += Pᵀ dO, and dS
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
        # 5. through W_q and W_v, and their own gradients
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
            cuda.syncthreads()  # the latent queries are used up
            put(z_tile, g_sums, scale * alpha[0])
            stream_rows(stream, q_rows, j0 - (keys - given))
            add_outer(d_w_q[block, head], stream, z_tile, g_sums, min(rows, keys - j0))
            project(z_tile, w_q_turned[head], float32(1), g_sums, stream)
            add_rows(d_q[batch, head], j0 - (keys - given), z_tile)

    return latent_backward_keys_kernel


# Host -------------------------------------------------------------------------------------------------------


def latent_backward(
    q,
    k_latent,
    v_latent,
    w_q,
    w_v,
    o,
    log_sum,
    d_o,
    alpha=0.0,
    window=0,
    causal=True,
    scale=None,
    wanted=(True,) * 6,
    deterministic=False,
    run=None,
):
    """(dQ, dK̃, dṼ, dW_q, dW_v, dα) of latent attention, shaped like q, k_latent, v_latent, w_q and w_v, and
    (1,), float32.

    q: (B, H, M, d), the queries before the answered ones too; o, log_sum: what `latent_forward` returned, of
        the last N; d_o: the gradient of o.
    wanted: which of the six are needed; one that is not is None, and a kernel none of whose results is needed
        does not run. deterministic: equal results, bit for bit, from run to run, for the memory of a part for
        each head and block. Raises TypeError or ValueError that names the argument, what it is, and what was
        wanted.
    """
    q, k, v, w_q, w_v, alpha, window, scale = latent_arguments(
        q, k_latent, v_latent, w_q, w_v, alpha, window, scale, FLOAT32
    )
    check_statistics(q, o, log_sum, d_o)
    (batch, heads, _, d), (keys, latent), n = q.shape, k.shape[1:], o.shape[2]
    width, rows = sizes_for(d, latent)
    blocks = -(-keys // rows)
    parts, sharers = (blocks * batch, heads) if deterministic else (1, 1)
    d_q, d_k, d_v = torch.zeros_like(q), k.new_zeros(batch, sharers, keys, latent), None
    w_q_turned, w_v_turned, d_o = w_q.mT.contiguous(), w_v.mT.contiguous(), d_o.detach().contiguous()
    of_scores = alpha, window, scale, bool(causal), log_sum.detach(), (d_o * o.detach()).sum(-1), d_o
    if wanted[0] or wanted[1] and window:
        launch(
            queries_kernel(width, rows),
            (-(-n // rows), heads, batch),
            THREADS,
            q,
            k,
            v,
            w_q,
            w_q_turned,
            w_v_turned,
            *of_scores,
            d_q,
            d_k,
            run=run,
        )
    d_w_q = d_w_v = d_alpha = None
    if any(wanted[1:]) or window:
        d_v, d_w_q, d_w_v = (
            torch.zeros_like(d_k),
            q.new_zeros(parts, *w_q.shape),
            q.new_zeros(parts, *w_v.shape),
        )
        d_alpha = q.new_zeros(parts, heads, 1)
        launch(
            keys_kernel(width, rows),
            (blocks, heads, batch),
            THREADS,
            q,
            k,
            v,
            w_q,
            w_q_turned,
            w_v,
            w_v_turned,
            *of_scores,
            d_q,
            d_k,
            d_v,
            d_w_q,
            d_w_v,
            d_alpha,
            run=run,
        )
        d_v, d_w_q, d_w_v, d_alpha = d_v.sum(1), d_w_q.sum(0), d_w_v.sum(0), d_alpha.sum().view(1)
    gradients = d_q, d_k.sum(1), d_v, d_w_q, d_w_v, d_alpha
    return tuple(gradient if want else None for gradient, want in zip(gradients, wanted))


def check_statistics(q, o, log_sum, d_o):
    """o, d_o (B, H, N, d) and log_sum (B, H, N), float32, where q (B, H, M, d) is, N <= M, or an error."""
    shape = (*q.shape[:2], min(o.shape[2], q.shape[2]) if getattr(o, "ndim", 0) == 4 else "N", q.shape[3])
    for name, tensor, wanted in [("o", o, shape), ("log_sum", log_sum, shape[:3]), ("d_o", d_o, shape)]:
        if not isinstance(tensor, torch.Tensor) or tensor.shape != wanted or tensor.dtype != torch.float32:
            got = (
                f"{tensor.dtype}, {tuple(tensor.shape)}"
                if isinstance(tensor, torch.Tensor)
                else type(tensor).__name__
            )
            raise ValueError(f"argument {name} is {got}; wanted torch.float32, {wanted}")
        check_device(name, tensor, q)
