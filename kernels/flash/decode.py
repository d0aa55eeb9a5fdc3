"""Flash attention for one new token: the keys are split among warps, and a second kernel merges their states.

This is the last row of causal attention. With q the new token's query, at position N_k - 1, and the keys j
that it sees (all of them, or the last left + 1 in a window):

    O = softmax(scale · q kᵀ) v

A warp reads neighbouring keys, AT_A_TIME in an iteration, so that their loads overlap. A lane holds every
32nd element of q, k, v and o, and a score is a sum over the warp. Each warp updates (m, l, o) as in
flash/forward.py, and `merge_splits_kernel` merges the states.
Source: Dao et al. 2023, "Flash-Decoding for long-context inference" (the split).

    grid    (splits, H, B)      block   WARPS · 32 threads
    cost    2 · d multiply-adds per key; K and V are read once for each head of q, without a copy
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from numba import cuda
from numpy import float32

from kernels.common.arguments import ANY_FLOAT, check, checked_scale
from kernels.common.launch import launch, output, width_for
from kernels.common.splits import (
    LANE,
    LANES,
    MERGING_WARPS,
    flat,
    merge_splits_kernel,
    splits_for,
    sum_of_warp,
)
from kernels.common.tiles import MINUS_INFINITY, weight
from kernels.flash.window import UNLIMITED, checked_window

WARPS, AT_A_TIME = 4, 4  # warps in a block; keys in an iteration


@functools.cache
def flash_decode_kernel(width):
    """Return the kernel for rows of at most `width` elements."""
    columns = -(-width // LANES)  # elements of a row in a lane
    held = AT_A_TIME * columns

    @cuda.jit
    def flash_decode_kernel(q, k, k_strides, v, v_strides, heads_a_key, scale, begin, end, length, parts):
        """Store the state of each warp in parts (B, H, splits · WARPS, d + 2): Σ e^(s - m) v, m and l.

        q: (B, H, 1, d).
        k, v: one-dimensional views; rows of d elements follow each other.
        k_strides, v_strides: the strides of batch and head, in elements.
        heads_a_key: how many heads of q share a head of k and v.
        begin, end: the keys that the token sees, [begin, end).
        length: keys of a warp.
        """
        q_row, o_row = cuda.local.array(columns, float32), cuda.local.array(columns, float32)
        k_rows, v_rows = cuda.local.array(held, float32), cuda.local.array(held, float32)
        scores = cuda.local.array(AT_A_TIME, float32)
        batch, head, d = cuda.blockIdx.z, cuda.blockIdx.y, q.shape[3]
        lane, split = cuda.threadIdx.x & LANE, cuda.blockIdx.x * WARPS + cuda.threadIdx.x // LANES
        k_base = batch * k_strides[0] + head // heads_a_key * k_strides[1]
        v_base = batch * v_strides[0] + head // heads_a_key * v_strides[1]
        first = begin + split * length
        last = min(end, first + length)
        for c in range(columns):
            column = lane + c * LANES
            q_row[c] = scale * float32(q[batch, head, 0, column]) if column < d else float32(0)
            o_row[c] = float32(0)
        m, l = MINUS_INFINITY, float32(0)
        for start in range(first, last, AT_A_TIME):
            # 1. load AT_A_TIME keys and values, zeros after the last: all loads precede the first use
            for x in range(AT_A_TIME):
                for c in range(columns):
                    column, there = lane + c * LANES, start + x < last
                    at = (start + x) * d + column
                    k_rows[x * columns + c] = float32(k[k_base + at]) if there and column < d else float32(0)
                    v_rows[x * columns + c] = float32(v[v_base + at]) if there and column < d else float32(0)
            # 2. their scores; sum_of_warp leaves the sum in every lane
            largest = m
            for x in range(AT_A_TIME):
                score = float32(0)
                for c in range(columns):
                    score += q_row[c] * k_rows[x * columns + c]
                score = sum_of_warp(score)
                scores[x] = score if start + x < last else MINUS_INFINITY
                largest = max(largest, scores[x])
            # 3. update the state once for all of them
            shrink = weight(m, largest)
            m, l = largest, l * shrink
            for c in range(columns):
                o_row[c] *= shrink
            for x in range(AT_A_TIME):
                p = weight(scores[x], m)
                l += p
                for c in range(columns):
                    o_row[c] += p * v_rows[x * columns + c]
        for c in range(columns):
            column = lane + c * LANES
            if column < d:
                parts[batch, head, split, column] = o_row[c]
        if lane == 0:
            parts[batch, head, split, d] = m
            parts[batch, head, split, d + 1] = l

    return flash_decode_kernel


def flash_attention_decode(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float | None = None,
    splits: int | None = None,
    run: Callable[..., Any] | None = None,
    *,
    enable_gqa: bool = False,
    window: tuple[int, int] | None = None,
) -> torch.Tensor:
    """Return the last row of causal attention, (B, H, 1, d), for one new token, without gradients.

    q: (B, H, 1, d), the query of the new token, float32, bfloat16 or float16, d <= 128.
    k, v: (B, H, N_k, d), of all tokens including the new one, N_k >= 1, of the type and on the device of q.
        They may be views, and are not copied.
    scale: 1/sqrt(d) unless given.
    splits: the number of blocks among which the keys of a head are divided, 1 or more;
        `kernels.common.splits.choose_splits` chooses it unless given. It changes rounding only.
    run: how to launch the kernels (`kernels.common.launch`).
    enable_gqa: k and v are (B, H_kv, N_k, d), where H_kv divides H; nothing is copied.
    window: as for `flash_attention`: the token sees the last left + 1 keys, including its own.

    Accumulators are float32. The host reads no element of a tensor, so a CUDA graph can record the call.
    Raise TypeError or ValueError, naming the argument, what it is, and what was wanted.
    """
    scale, group = checked_decode(q, k, v, scale, enable_gqa)
    q, k, v = (x.detach() for x in (q, k, v))
    left, _ = checked_window(window)
    (batch, heads, _, d), n = q.shape, k.shape[2]
    begin = 0 if left == UNLIMITED else max(0, n - 1 - left)
    splits = splits_for(splits, batch * heads, n - begin, k.device)
    shapes = (batch, heads, splits * WARPS, d + 2), q.shape, (batch, heads, 1)
    parts, o, log_sum = (output(shape, like=k) for shape in shapes)
    length = -(-(n - begin) // (splits * WARPS))
    arguments = (*flat(k), *flat(v), group, scale, begin, n, length, parts)
    launch(flash_decode_kernel(width_for(d)), (splits, heads, batch), WARPS * LANES, q, *arguments, run=run)
    launch(merge_splits_kernel, (heads, batch), MERGING_WARPS * LANES, parts, o, log_sum, run=run)
    return o.to(q.dtype)


def checked_decode(q, k, v, scale, enable_gqa):
    """Return (scale, heads of q for each head of k and v) of `flash_attention_decode`.

    Raise TypeError or ValueError for arguments that do not fit.
    """
    rows = "B H_kv N_k d" if enable_gqa else "B H N_k d"
    sizes = check({"q": (q, "B H 1 d"), "k": (k, rows), "v": (v, rows)}, ANY_FLOAT)
    heads, shared = sizes["H"], sizes.get("H_kv", sizes["H"])
    if heads and (shared == 0 or heads % shared):
        raise ValueError(f"arguments k and v have {shared} heads; wanted a divisor of H = {heads} of q")
    return checked_scale(scale, sizes["d"]), heads // shared if heads else 1
