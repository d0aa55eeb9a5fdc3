"""Latent attention with a reciprocal term for one new token, in three kernels.

The first projects the query by W_q. The second reads the latents, split among blocks, once for all heads. The
third merges the splits and applies W_v. This computes the last row of
`kernels.reference.latent.latent_attention`. With q the new token's query, at position p = N_k - 1, and r =
W_q k̃_p for each head:

    S[j] = scale · (q̃·k̃_j + α · [p - j < window] · r·q_j)        O = softmax(S) ṽ W_v

The heads share the latents, so the rows of a block's tile are heads instead of the queries in
latent/forward.py. Each latent key is then read from memory once for all heads. A cache holds 2·L elements per
token, independent of the number of heads, and the queries of the band: H·d elements for each of the last
window - 1 tokens.
Sources: as in latent/forward.py; Dao et al. 2023, "Flash-Decoding for long-context inference" (the split).

    grid    (H, B) to project; (splits, ⌈H / rows⌉, B) to read the latents; (H, B) to merge
    block   256 threads; 64 threads for 8, 16 or 32 heads; 256 threads
    shared  (rows + 32) · (width + 4) + rows · 36 floats in the second kernel, static
    cost    2·d·L multiply-adds per head, then 2·L per head and key, then L·d per head

The latents may be views, such as the filled part of a larger buffer; they are not copied.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from numba import cuda
from numpy import float32

from kernels.common.arguments import FLOAT32, MAX_HEAD_DIM, checked_scale
from kernels.common.launch import launch, output
from kernels.common.splits import (
    LANES,
    MERGING_WARPS,
    add_splits,
    merged,
    splits_for,
    sum_of_warp,
    sum_of_warps,
)
from kernels.common.tiles import GROUP, MINUS_INFINITY, load_columns
from kernels.latent.arguments import check_shapes, checked_alpha, checked_window
from kernels.latent.tensor_decode import read_latents as read_latents_on_tensor_cores
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
    put,
    sizes_for,
    stream_rows,
    sum_of_row,
)

# threads per block of the first and the third kernel, which have one block per head
THREADS_OF_A_HEAD = MERGING_WARPS * LANES


@cuda.jit(device=True)
def add_products_of_warp(sums, row, matrix):
    """Compute this warp's part of row · matrix in sums[warp].

    The warp sums over every MERGING_WARPS-th element of the row, starting at the warp's index.

    matrix: (m, n).
    """
    lane, warp = cuda.threadIdx.x % LANES, cuda.threadIdx.x // LANES
    for c in range(lane, matrix.shape[1], LANES):
        total = float32(0)
        for x in range(warp, matrix.shape[0], MERGING_WARPS):
            total += row[x] * matrix[x, c]
        sums[warp, c] = total


@cuda.jit
def latent_decode_project_kernel(q, newest, w_q, alpha, scale, q_latent, band):
    """Compute the scaled latent query and the reciprocal scores of the new token.

    q: (B, H, R, d), the window of queries.
    newest: (B, L), the latent key of the new token.
    w_q: (H, d, L).
    alpha: (1,).
    q_latent: (B, H, L), receives scale · q̃.
    band: (B, H, reach), receives the reciprocal scores of the keys 0, 1, … tokens before the new one.
    """
    absorbed = cuda.shared.array(MAX_HEAD_DIM, float32)
    sums = cuda.shared.array((MERGING_WARPS, MAX_HEAD_DIM), float32)
    batch, head = cuda.blockIdx.y, cuda.blockIdx.x
    q_rows, k_row, w = q[batch, head], newest[batch], w_q[head]
    thread, lane, warp = cuda.threadIdx.x, cuda.threadIdx.x % LANES, cuda.threadIdx.x // LANES
    (rows, d), latent, reach = q_rows.shape, k_row.shape[0], band.shape[2]
    # 1. compute q̃; then r = W_q k̃, one element per warp at a time
    add_products_of_warp(sums, q_rows[rows - 1], w)
    cuda.syncthreads()  # every warp's sums are stored
    if thread < latent:
        q_latent[batch, head, thread] = scale * sum_of_warps(sums, thread)
    if reach > 0:
        for x in range(warp, d, MERGING_WARPS):
            total = float32(0)
            for c in range(lane, latent, LANES):
                total += w[x, c] * k_row[c]
            total = sum_of_warp(total)
            if lane == 0:
                absorbed[x] = total
        cuda.syncthreads()  # r is stored
    # 2. compute r·q_j, one key per warp at a time
    for back in range(warp, reach, MERGING_WARPS):
        total = float32(0)
        for x in range(lane, d, LANES):
            total += absorbed[x] * q_rows[rows - 1 - back, x]
        total = sum_of_warp(total)
        if lane == 0:
            band[batch, head, back] = scale * alpha[0] * total


@functools.cache
def split_kernel(width, rows):
    """Return the kernel that reads the latents, for rows of at most `width` elements and `rows` heads per
    block."""
    pitch, mine = width + GROUP, rows // STEP
    scores, numbers = mine * PATCH, mine * width // ROW_THREADS

    @cuda.jit
    def latent_decode_split_kernel(q_latent, k_latent, v_latent, band, length, parts):
        """Store Σ P ṽ, m and l of each block, over `length` keys, in parts (B, H, splits, L + 2).

        q_latent: (B, H, L).
        k_latent, v_latent: (B, N_k, L).
        band: (B, H, reach).
        """
        q_tile = cuda.shared.array((rows, pitch), float32, alignment=16)
        stream = cuda.shared.array((COLUMNS, pitch), float32, alignment=16)
        weights = cuda.shared.array((rows, WEIGHTS), float32, alignment=16)
        patch, sums = cuda.local.array(scores, float32), cuda.local.array(numbers, float32)
        m, l = cuda.local.array(mine, float32), cuda.local.array(mine, float32)
        batch, split, first_head = cuda.blockIdx.z, cuda.blockIdx.x, cuda.blockIdx.y * rows
        k_rows, v_rows = k_latent[batch], v_latent[batch]
        heads, latent, keys, reach = q_latent.shape[1], q_latent.shape[2], k_rows.shape[0], band.shape[2]
        row, column = cuda.threadIdx.x // ROW_THREADS, cuda.threadIdx.x % ROW_THREADS
        # 1. load the latent queries of the heads
        load_columns(q_tile, q_latent[batch], first_head, 0)
        clear(sums)
        clear(l)
        for r in range(mine):
            m[r] = MINUS_INFINITY
        end = min(keys, (split + 1) * length)
        for j0 in range(split * length, end, COLUMNS):
            # 2. compute the scores of this thread's heads and keys
            clear(patch)
            stream_rows(stream, k_rows, j0)
            add_products(patch, q_tile, stream, latent)
            for r in range(mine):
                head = first_head + row + r * STEP
                for c in range(PATCH):
                    j = j0 + column + c * ROW_THREADS
                    if j >= end:
                        patch[r * PATCH + c] = MINUS_INFINITY
                    elif keys - 1 - j < reach and head < heads:
                        patch[r * PATCH + c] += band[batch, head, keys - 1 - j]
            # 3. update the softmax, and add the latent values
            add_softmax(patch, m, l, sums, weights)
            stream_rows(stream, v_rows, j0)
            add_weighted_rows(sums, weights, 0, stream, end - j0)
        # 4. store the state of this block
        cuda.syncthreads()  # all threads have read the latent queries
        put(q_tile, sums, float32(1))
        for r in range(mine):
            head, total = first_head + row + r * STEP, sum_of_row(l[r])
            if column == 0 and head < heads:
                parts[batch, head, split, latent], parts[batch, head, split, latent + 1] = m[r], total
        cuda.syncthreads()  # the sums are stored
        for element in range(cuda.threadIdx.x, rows * width, THREADS):
            i, c = element // width, element % width
            if first_head + i < heads and c < latent:
                parts[batch, first_head + i, split, c] = q_tile[i, c]

    return latent_decode_split_kernel


@cuda.jit
def latent_decode_merge_kernel(parts, w_v, o):
    """Merge parts (B, H, splits, L + 2), apply w_v (H, L, d), and store the result in o (B, H, 1, d)."""
    sums = cuda.shared.array((MERGING_WARPS, MAX_HEAD_DIM), float32)
    totals = cuda.shared.array(MERGING_WARPS, float32)
    mixed = cuda.shared.array(MAX_HEAD_DIM, float32)
    batch, head, thread = cuda.blockIdx.y, cuda.blockIdx.x, cuda.threadIdx.x
    latent, d = w_v.shape[1], w_v.shape[2]
    # 1. merge Σ P ṽ of all splits
    add_splits(sums, totals, parts[batch, head])
    cuda.syncthreads()  # every warp's sums are stored
    if thread < latent:
        mixed[thread], _ = merged(sums, totals, thread)
    cuda.syncthreads()  # the merged sum is stored
    # 2. apply W_v
    add_products_of_warp(sums, mixed, w_v[head])
    cuda.syncthreads()  # every warp's sums are stored
    if thread < d:
        o[batch, head, 0, thread] = sum_of_warps(sums, thread)


# Host functions ---------------------------------------------------------------------------------------------


def latent_attention_decode(
    q_window: torch.Tensor,
    k_latent: torch.Tensor,
    v_latent: torch.Tensor,
    w_q: torch.Tensor,
    w_v: torch.Tensor,
    alpha: float | torch.Tensor = 0.0,
    window: int = 0,
    scale: float | None = None,
    splits: int | None = None,
    run: Callable[..., Any] | None = None,
) -> torch.Tensor:
    """Compute the last row of causal `latent_attention`, (B, H, 1, d), for one new token. It has no gradient.

    q_window: (B, H, R, d), the queries of the last R tokens, the new one last. R = 1 suffices without a
        reciprocal term; min(window, N_k) covers the whole band. A key whose query is missing has no
        reciprocal term.
    k_latent, v_latent: (B, N_k, L), of all tokens including the new one.
    w_q: (H, d, L).
    w_v: (H, L, d).
    alpha, window: as for `latent_attention`.
    scale: 1/sqrt(L) by default.
    splits: the number of blocks among which the keys are divided, 1 or more. By default
        `kernels.common.splits.choose_splits` chooses it. It affects only rounding.
    run: the runner that launches the kernels (`kernels.common.launch`).

    All tensors have one device and one dtype, float32, bfloat16 or float16; d and L are from 1 to 128. Tensor
    cores process 16-bit latents (`kernels.latent.tensor_decode`). The host does not read any tensor element,
    so the call can be captured in a CUDA graph. Raise TypeError or ValueError for an invalid argument; the
    message states the actual and the expected value.
    """
    check_shapes(q_window, k_latent, v_latent, w_q, w_v, "q_window")
    (batch, heads, given, d), (_, keys, latent) = q_window.shape, k_latent.shape
    window = checked_window(window, keys)
    reach = min(window, given) if isinstance(alpha, torch.Tensor) or alpha else 0
    alpha = checked_alpha(alpha, q_window)
    scale = checked_scale(scale, latent)
    k, v = k_latent.detach(), v_latent.detach()
    q, newest, w_q, w_v = (x.detach().float() for x in (q_window.contiguous(), k[:, -1], w_q, w_v))
    q_latent, band = output((batch, heads, latent), like=q), output((batch, heads, reach), like=q)
    o, one = output((batch, heads, 1, d), like=q), (heads, batch)
    launch(
        latent_decode_project_kernel,
        one,
        THREADS_OF_A_HEAD,
        q,
        newest,
        w_q,
        alpha,
        scale,
        q_latent,
        band,
        run=run,
    )
    read = read_latents if k.dtype in FLOAT32 else read_latents_on_tensor_cores
    parts = read(q_latent, k, v, band, splits, run)
    launch(latent_decode_merge_kernel, one, THREADS_OF_A_HEAD, parts, w_v, o, run=run)
    return o.to(q_window.dtype)


def read_latents(q_latent, k_latent, v_latent, band, splits=None, run=None):
    """Launch the second kernel; return its results, parts (B, H, splits, L + 2)."""
    (batch, heads, latent), keys = q_latent.shape, k_latent.shape[1]
    width, most = sizes_for(latent)
    rows = heads_in_a_block(heads, most)
    groups = -(-heads // rows)
    splits = splits_for(splits, batch * groups, keys, q_latent.device)
    parts = output((batch, heads, splits, latent + 2), like=q_latent)
    length = -(-keys // (splits * COLUMNS)) * COLUMNS
    launch(
        split_kernel(width, rows),
        (splits, groups, batch),
        THREADS,
        q_latent,
        k_latent,
        v_latent,
        band,
        length,
        parts,
        run=run,
    )
    return parts


def heads_in_a_block(heads, most):
    """Return the number of heads per block: the smallest of 8, 16, 32 that is at least min(heads, most)."""
    return next(rows for rows in (8, 16, 32) if rows >= min(heads, most))
