"""Convolutional attention for one new token: the keys are split among warps, and a second kernel merges the
blocks.

This computes the last row of `kernels.reference.conv_attention`, from the queries of the last c_q tokens (the
window) and all N_k keys and values so far:

    S0[a, j] = scale · q_a·k_j if key j is not after query a, else 0
    T[j]     = Σ_ab w[a, b] · S0[a, j - P_k + b]
    O        = softmax(T) v

A warp owns a range of keys for the softmax. For the convolution it also reads a halo: P_k keys to the left of
    this range and P_r = c_k - 1 - P_k to the right. It updates (m, l, o) as in `flash_forward`. States are
    merged as in `warp_forward`; the state of a warp without keys is (-inf, 0, 0).
Sources: Golovneva et al. 2025, arXiv 2504.00927 (the convolution); Dao et al. 2023, "Flash-Decoding for
    long-context inference" (the split).

    grid    (splits, H, B), and (H, B) for the merge
    block   WARPS warps, which synchronise only at the beginning and at the end. A warp processes 32 keys at a
            time, and 32 of their columns at a time, in registers, while it loads the next columns. K passes
            through shared memory, so that each lane can compute the scores of one key with all rows of the
            window. A ring buffer keeps the scores of the last 64 keys for the convolution
    shared  per warp, a sub-tile of K, the ring buffers and o; per block, the window and the taps: 28.5 KiB
            for d = 64 and c_q = 8, static
    cost    (c_q + 1) · d + c_q · c_k multiply-adds per key; K and V are read once, except for the halos

K and V may be views, such as the filled part of a larger buffer; they are not copied. All sizes are run-time
arguments except two: d, so that 32 rows need only one address, and the number of window rows, rounded up to
4, 8, 12 or 16, because a lane holds one score per row in registers.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from numba import cuda
from numpy import float32

from kernels.common.arguments import (
    ANY_FLOAT,
    FLOAT32,
    HALVES,
    MOST_TAPS,
    TAPS,
    check,
    check_sharing,
    checked_scale,
)
from kernels.common.launch import Bits, launch, output
from kernels.common.splits import (
    LANE,
    LANES,
    LARGEST_D,
    MERGING_WARPS,
    PLACE,
    UNROLLED,
    flat,
    largest_of_warp,
    merge_splits_kernel,
    splits_for,
    sum_of_warp,
)
from kernels.common.tiles import MINUS_INFINITY, weight
from kernels.conv import tensor_decode as decode_tensor
from kernels.tensor_cores.launch import check_tensor_cores, kind_of, taps_operand, tensor_width

WARPS = 4
PITCH = LANES + 1  # elements per row of a sub-tile of K; the padding puts a column into 32 different banks
RING = 2 * LANES  # scores kept per row of the window; a power of two, so that & wraps the index


# Device functions -------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def load_window(q_tile, taps, q_rows, w_rows, scale):
    """Load the window and the taps, transposed: q_tile[c, a] = scale · q_a[c], and taps[b, a] = w_rows[a, b].

    Elements that correspond to no query or no tap are set to 0.
    """
    width, slots = q_tile.shape
    (rows, d), (c_q, c_k) = q_rows.shape, w_rows.shape
    for element in range(cuda.threadIdx.x, slots * width, WARPS * LANES):
        a, c = element // width, element % width
        i = a - c_q + rows
        q_tile[c, a] = scale * q_rows[i, c] if a < c_q and i >= 0 and c < d else float32(0)
    for element in range(cuda.threadIdx.x, slots * c_k, WARPS * LANES):
        a, b = element // c_k, element % c_k
        taps[b, a] = w_rows[a, b] if a < c_q else float32(0)


@cuda.jit(device=True)
def merge_warps(part, ends, outputs, d):
    """Merge the states of the block's warps, and store the merged o, m and l.

    part: (d + 2,), the d elements of o, then m and l.
    ends: (WARPS, 2), m and l of each warp.
    outputs: (WARPS, width), o of each warp.
    """
    thread = cuda.threadIdx.x
    m, l, total = MINUS_INFINITY, float32(0), float32(0)
    for warp in range(WARPS):
        m = max(m, ends[warp, 0])
    for warp in range(WARPS):
        factor = weight(ends[warp, 0], m)
        l += factor * ends[warp, 1]
        total += factor * outputs[warp, min(thread, d - 1)]
    if thread < d:
        part[thread] = total
    if thread == 0:
        part[d], part[d + 1] = m, l


# Kernels ----------------------------------------------------------------------------------------------------


@functools.cache
def split_kernel(slots, d):
    """Return the kernel for c_q <= slots and rows of d elements."""
    width = -(-d // LANES) * LANES

    @cuda.jit(device=True)
    def load_piece(held, rows, place, first, low, high, c):
        """Load element c of 32 rows: held[r] comes from row first + r, and is 0 outside [low, high).

        Each lane passes its own column c. Row 0 starts at rows[place].
        """
        base = place + first * d + min(c, d - 1)
        if low <= first and first + LANES <= high:
            for r in range(LANES):
                held[r] = rows[(base & PLACE) + r * d]
        else:
            for r in range(LANES):
                held[r] = rows[(base + r * d) & PLACE] if low <= first + r < high else float32(0)

    @cuda.jit(max_registers=128)  # so that four blocks are resident on a multiprocessor
    def conv_decode_split_kernel(q, k, k_strides, v, v_strides, sharing, w, scale, extent, length, parts):
        """Store o, m and l of each block in parts (B, H, splits, d + 2).

        q: (B, H, R, d), the window, R = min(c_q, N_k) rows.
        k, v: one-dimensional views; key j of head h of batch b starts at k[b · k_strides[0] + h // sharing ·
            k_strides[1] + j · d].
        w: (H, c_q, c_k).
        extent: (rows of k, number of owned keys, row of the first owned key, position of the new token
            relative to that key); v has only the owned keys.
        length: keys per warp.
        """
        pieces = cuda.shared.array((WARPS, LANES, PITCH), float32)
        rings = cuda.shared.array((WARPS, slots, RING), float32)
        outputs = cuda.shared.array((WARPS, width), float32)
        q_tile = cuda.shared.array((width, slots), float32, alignment=16)
        taps = cuda.shared.array((MOST_TAPS, slots), float32, alignment=16)
        shares = cuda.shared.array((WARPS, LANES), float32, alignment=16)
        ends = cuda.shared.array((WARPS, 2), float32)
        held = cuda.local.array(LANES, float32)
        scores = cuda.local.array(slots, float32)
        batch, head = cuda.blockIdx.z, cuda.blockIdx.y
        lane, warp = cuda.threadIdx.x & LANE, cuda.threadIdx.x // LANES
        c_q, c_k = w.shape[1], w.shape[2]
        rows, keys, first_owned, position = extent
        k_place = batch * k_strides[0] + head // sharing * k_strides[1] + first_owned * d
        v_place = batch * v_strides[0] + head // sharing * v_strides[1]
        piece, ring, share, o = pieces[warp], rings[warp], shares[warp], outputs[warp]
        # 1. load the window and the taps, and clear the ring buffers
        load_window(q_tile, taps, q[batch, head], w[head], scale)
        for c in range(lane, width, LANES):
            o[c] = float32(0)
        for a in range(slots):
            ring[a, lane] = ring[a, LANES + lane] = float32(0)
        m, l = MINUS_INFINITY, float32(0)
        cuda.syncthreads()  # the window and the taps are loaded
        # 2. this warp owns the keys [start, end), and needs the scores of [low, high)
        start = (cuda.blockIdx.x * WARPS + warp) * length
        end = min(keys, start + length)
        right = c_k // 2
        low, high = start - (c_k - 1) // 2, end + right
        first_key, key_end = max(-first_owned, low), min(rows - first_owned, high)
        if start < end:
            load_piece(held, k, k_place, low, first_key, key_end, lane)
        for first in range(low, high if start < end else low, LANES):
            # 3. Compute the scores of one key per lane with each row of the window. The score of key j
            #    completes T of key j - right.
            for a in range(slots):
                scores[a] = float32(0)
            for c0 in range(0, width, LANES):
                for r in range(LANES):
                    piece[r, lane] = held[r]
                cuda.syncwarp()  # the sub-tile is stored
                if c0 + LANES < width:
                    load_piece(held, k, k_place, first, first_key, key_end, c0 + LANES + lane)
                else:
                    load_piece(held, v, v_place, first - right, start, end, lane)
                for group in range(0, LANES, UNROLLED):
                    for c in range(UNROLLED):
                        for a in range(slots):
                            scores[a] += (
                                q_tile[(c0 + group + c) & LARGEST_D, a] * piece[lane, (group + c) & LANE]
                            )
                cuda.syncwarp()  # all lanes have read the sub-tile
            # 4. mask the scores, then convolve them
            j, place = first + lane, first - low + lane
            for a in range(slots):
                ring[a, place & (RING - 1)] = (
                    scores[a] if -first_owned <= j <= position + 1 - c_q + a else float32(0)
                )
            cuda.syncwarp()  # the scores are stored
            t = float32(0)
            for b in range(c_k):
                for a in range(slots):
                    t += taps[b & LANE, a] * ring[a, (place - c_k + 1 + b) & (RING - 1)]
            # 5. update the softmax, and accumulate the rows of V
            if not start <= j - right < end:
                t = MINUS_INFINITY
            larger = max(m, largest_of_warp(t))
            shrink = weight(m, larger)
            m, p = larger, weight(t, larger)
            l = shrink * l + p
            share[lane] = p
            cuda.syncwarp()  # all lanes have stored their weights
            for c0 in range(0, width, LANES):
                total = shrink * o[c0 + lane]
                for r in range(LANES):
                    total += share[r] * held[r]
                o[c0 + lane] = total
                if c0 + LANES < width:
                    load_piece(held, v, v_place, first - right, start, end, c0 + LANES + lane)
                else:
                    load_piece(held, k, k_place, first + LANES, first_key, key_end, lane)
        # 6. merge the states of the block's warps
        l = sum_of_warp(l)
        if lane == 0:
            ends[warp, 0], ends[warp, 1] = m, l
        cuda.syncthreads()  # all warps have stored their states
        merge_warps(parts[batch, head, cuda.blockIdx.x], ends, outputs, d)

    return conv_decode_split_kernel


# Host functions ---------------------------------------------------------------------------------------------


def conv_attention_decode(
    q_window: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    w: torch.Tensor,
    scale: float | None = None,
    splits: int | None = None,
    run: Callable[..., Any] | None = None,
    *,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Compute the last row of causal convolutional attention, (B, H, 1, d), for one new token. It has no
    gradient.

    q_window: (B, H, R, d), the queries of the last R = min(c_q, N_k) tokens, the new one last; float32,
        bfloat16 or float16, d <= 128.
    k, v: (B, H, N_k, d), of all tokens including the new one, with the dtype and device of q_window.
    w: (H, c_q, c_k), the taps, float32 or the dtype of q_window, each size from 1 to 15.
    scale: 1/sqrt(d) by default.
    splits: the number of blocks per head among which the keys are divided, 1 or more. By default
        `kernels.common.splits.choose_splits` chooses it. It affects only rounding.
    run: the runner that launches the kernels (`kernels.common.launch`).
    enable_gqa: k and v are (B, H_kv, N_k, d), where H_kv divides H. Nothing is copied.

    16-bit tensors are computed on tensor cores (`kernels.conv.tensor_decode`). The host does not read any
    tensor element, so the call can be captured in a CUDA graph. Raise TypeError or ValueError for an invalid
    argument; the message states the actual and the expected value.
    """
    q, k, v, w, scale = decode_arguments(q_window, k, v, w, scale, ANY_FLOAT, enable_gqa)
    if q.dtype in HALVES:
        return conv_decode_tensor(q, k, v, w, scale, splits, run)
    return conv_decode(q, k, v, w, scale, 0, k.shape[2] - 1, splits, run)[0]


def conv_decode_tensor(q, k, v, w, scale, splits=None, run=None):
    """Return O of the new token, (B, H, 1, d), for checked bfloat16 or float16 arguments.

    splits: the maximum number of blocks per head. Fewer may be launched, because a block processes whole
        tiles of keys.
    """
    check_tensor_cores(q)
    (batch, heads, _, d), (_, kv_heads, keys, _), (_, c_q, c_k) = q.shape, k.shape, w.shape
    sharing, width = heads // max(1, kv_heads), tensor_width(d)
    team = decode_tensor.team_of(sharing)
    each, _, warps, ranges = decode_tensor.layout_of(width, team)
    rule = decode_tensor.fewest_keys(keys), decode_tensor.BLOCKS
    splits = splits_for(splits, batch * heads // team, keys, k.device, *rule)
    length = decode_tensor.length_of(-(-keys // (splits * ranges)), c_k, each)
    splits = -(-keys // (length * ranges))
    parts = output((batch, heads, splits, d + 2), like=k)
    o = output((batch, heads, 1, d), like=k, dtype=q.dtype)
    taps, as_bits = taps_operand(w, q)
    kernel = decode_tensor.decode_tensor_kernel(width, kind_of(q), c_q, c_k, as_bits, team)
    *bits, positive = decode_tensor.operands(q, k, v, scale)
    arguments = *bits, sharing, taps, positive, length, parts
    launch(kernel, (splits, heads // team, batch), warps * LANES, *arguments, run=run)
    merge = decode_tensor.merge_kernel(width, kind_of(q))
    threads, arguments = decode_tensor.MERGE_THREADS, (parts, Bits(o, torch.int16))
    launch(merge, (heads, batch), threads, *arguments, run=run, early=True)
    return o


def conv_decode(q, k, v, w, scale, first_owned, position, splits=None, run=None):
    """Return (O, L) of the new token over the owned keys: (B, H, 1, d) and (B, H, 1).

    v: (B, H, keys, d), of the owned keys, at least one.
    k: the owned keys and their halo.
    first_owned: the row of k with the first owned key.
    position: the position of the new token, relative to the first owned key.

    The other arguments are the same as for `conv_attention_decode`, already checked.
    """
    (batch, kv_heads, keys, d), heads = v.shape, q.shape[1]
    splits = splits_for(splits, batch * heads, keys, k.device)
    parts, o, log_sum = (output((batch, heads, *sizes), like=k) for sizes in ((splits, d + 2), (1, d), (1,)))
    kernel, length = split_kernel(-(-w.shape[1] // 4) * 4, d), -(-keys // (splits * WARPS))
    extent = k.shape[2], keys, first_owned, position
    arguments = q, *flat(k), *flat(v), heads // max(1, kv_heads), w, scale, extent, length, parts
    launch(kernel, (splits, heads, batch), WARPS * LANES, *arguments, run=run)
    launch(merge_splits_kernel, (heads, batch), MERGING_WARPS * LANES, parts, o, log_sum, run=run)
    return o, log_sum


def decode_arguments(q, k, v, w, scale, dtypes=FLOAT32, enable_gqa=False):
    """Check the arguments of `conv_attention_decode`; return q, k, v and w detached, and scale as a float32.

    K and V are not copied.
    """
    rows = "B H_kv N_k d" if enable_gqa else "B H N_k d"
    sizes = check({"q_window": (q, "B H R d"), "k": (k, rows), "v": (v, rows), "w": (w, *TAPS)}, dtypes)
    check_sharing(sizes)
    rows = min(sizes["c_q"], sizes["N_k"])
    if sizes["R"] != rows:
        raise ValueError(
            f"argument q_window has R = {sizes['R']}; wanted min(c_q, N_k) = {rows}, the queries of the last"
            " tokens"
        )
    return *(tensor.detach() for tensor in (q, k, v, w)), checked_scale(scale, sizes["d"])
