"""Flash attention for one new token: the keys are split among warps, and a second kernel merges their states.

This computes the last row of causal attention. The new token's query q is at position N_k - 1. It sees all
keys, or the last left + 1 keys in a window:

    O = softmax(scale · q kᵀ) v

A warp processes AT_A_TIME adjacent keys per iteration, so that their loads overlap. A lane holds every 32nd
element of q, k, v and o, and a score is a sum over the warp. Each warp updates (m, l, o) as in
flash/forward.py, and `merge_splits_kernel` merges the states.
Source for the split: Dao et al. 2023, "Flash-Decoding for long-context inference".

    grid    (splits, H, B)      block   WARPS · 32 threads
    cost    2 · d multiply-adds per key; K and V are read once for each query head, without a copy
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from numba import cuda
from numpy import float32

from kernels.common.arguments import ANY_FLOAT, check, check_sharing, checked_scale
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

WARPS, AT_A_TIME = 4, 4  # warps per block; keys per iteration


@functools.cache
def flash_decode_kernel(width):
    """Return the kernel for rows of at most `width` elements."""
    columns = -(-width // LANES)  # elements of a row per lane
    held = AT_A_TIME * columns

    @cuda.jit
    def flash_decode_kernel(q, k, k_strides, v, v_strides, heads_a_key, scale, begin, end, length, parts):
        """Store the state of each warp in parts (B, H, splits · WARPS, d + 2): Σ e^(s - m) v, m and l.

        q: (B, H, 1, d).
        k, v: one-dimensional views, in which rows of d elements are adjacent.
        k_strides, v_strides: the strides of batch and head, in elements.
        heads_a_key: the number of query heads that share a head of k and v.
        begin, end: the range [begin, end) of visible keys.
        length: the number of keys per warp.
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
            # 1. load AT_A_TIME keys and values, with zeros past the end; all loads are issued before the
            #    first use
            for x in range(AT_A_TIME):
                for c in range(columns):
                    column, there = lane + c * LANES, start + x < last
                    at = (start + x) * d + column
                    k_rows[x * columns + c] = float32(k[k_base + at]) if there and column < d else float32(0)
                    v_rows[x * columns + c] = float32(v[v_base + at]) if there and column < d else float32(0)
            # 2. compute their scores; sum_of_warp returns the sum in every lane
            largest = m
            for x in range(AT_A_TIME):
                score = float32(0)
                for c in range(columns):
                    score += q_row[c] * k_rows[x * columns + c]
                score = sum_of_warp(score)
                scores[x] = score if start + x < last else MINUS_INFINITY
                largest = max(largest, scores[x])
            # 3. update the state once per iteration
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
    """Compute the last row of causal attention, (B, H, 1, d), for one new token. It has no gradient.

    q: (B, H, 1, d), the query of the new token, float32, bfloat16 or float16, d <= 128.
    k, v: (B, H, N_k, d), of all tokens including the new one, N_k >= 1, with the dtype and device of q. They
        may be views; they are not copied.
    scale: 1/sqrt(d) by default.
    splits: the number of blocks per head among which the keys are divided, 1 or more. By default
        `kernels.common.splits.choose_splits` chooses it. It affects only rounding.
    run: the runner that launches the kernels (`kernels.common.launch`).
    enable_gqa: k and v are (B, H_kv, N_k, d), where H_kv divides H. Nothing is copied.
    window: as for `flash_attention`: the token sees the last left + 1 keys, including its own.

    Accumulators are float32. The host does not read any tensor element, so the call can be captured in a CUDA
    graph. Raise TypeError or ValueError for an invalid argument; the message states the actual and the
    expected value.
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
    """Check the arguments of `flash_attention_decode`; return (scale, number of query heads per key head).

    Raise TypeError or ValueError for an invalid argument.
    """
    rows = "B H_kv N_k d" if enable_gqa else "B H N_k d"
    sizes = check({"q": (q, "B H 1 d"), "k": (k, rows), "v": (v, rows)}, ANY_FLOAT)
    return checked_scale(scale, sizes["d"]), check_sharing(sizes)
