"""Attention with one warp per query: five shuffles merge the states of its 32 lanes.

Lane t of query i's warp reads the visible keys t, t + 32, …, and updates (m, l, o) as in `flash_forward`.
Then each lane exchanges its state with the lanes 16, 8, 4, 2 and 1 away, one after the other, and merges:

    m = max(m₁, m₂)      l = l₁·e^(m₁-m) + l₂·e^(m₂-m)      o = o₁·e^(m₁-m) + o₂·e^(m₂-m)

A lane that has read no key holds (-inf, 0, 0), the neutral element of this merge. After five steps, every
lane holds the state of the whole row: O = o / l, L = m + log l.
Source: Milakov and Gimelshein 2018, arXiv 1805.02867, equation 4, extended by o.

    grid    (⌈N / WARPS⌉, H, B)
    block   WARPS · 32 threads. Each lane has a copy of q and o in registers up to width 64; wider rows spill
            to local memory
    shared  none. There is no barrier: warps never wait for each other
    cost    2 · N · N_k · d multiply-adds per head; each warp reads all visible rows of K and V

All sizes are run-time arguments except `width`, d rounded up to 16, 32, 64 or 128: registers cannot be
indexed, so loops over a row must be unrolled at compile time.
"""

import functools
import math

import torch
from numba import cuda
from numpy import float32

from kernels.common.arguments import FLOAT32
from kernels.common.launch import width_for
from kernels.common.splits import ALL_LANES, LANES
from kernels.common.tiles import MINUS_INFINITY, reciprocal, weight
from kernels.flash.operators import attend, attention_operator, checked, launch_rows

WARPS = 4  # warps per block, each with one query


@functools.cache
def warp_attention_kernel(width):
    """Return the kernel for rows of at most `width` elements."""

    @cuda.jit
    def warp_attention_kernel(q, k, v, scale, causal, window, o, log_sum):
        """Compute attention, o (B, H, N, d), and each query's log-sum-exp, log_sum (B, H, N), both float32.

        q: (B, H, N, d), float32.
        k, v: (B, H, N_k, d), float32.
        window: (left, right), both finite.
        """
        q_row = cuda.local.array(width, float32)
        o_row = cuda.local.array(width, float32)
        batch, head = cuda.blockIdx.z, cuda.blockIdx.y
        lane = cuda.threadIdx.x % LANES
        i = cuda.blockIdx.x * WARPS + cuda.threadIdx.x // LANES
        n, d, keys = q.shape[2], q.shape[3], k.shape[2]
        left, right = window
        right = 0 if causal else right
        if i >= n:
            return  # the whole warp returns; this is safe because the kernel has no block-wide barrier
        # 1. load the query in every lane, and initialise the state
        for c in range(width):
            q_row[c] = scale * q[batch, head, i, c] if c < d else float32(0)
            o_row[c] = float32(0)
        m, l = MINUS_INFINITY, float32(0)
        # 2. loop over this lane's keys; adjacent lanes read adjacent rows of K
        for j in range(max(0, i - left) + lane, min(keys, i + 1 + right), LANES):
            score = float32(0)
            for c in range(width):
                if c < d:
                    score += q_row[c] * k[batch, head, j, c]
            if score > m:  # a new maximum is rare, so few iterations rescale
                shrink = weight(m, score)
                l *= shrink
                for c in range(width):
                    o_row[c] *= shrink
                m = score
            p = weight(score, m)
            l += p
            for c in range(width):
                if c < d:
                    o_row[c] += p * v[batch, head, j, c]
        # 3. merge with the lanes 16, 8, 4, 2 and 1 away
        step = LANES // 2
        while step > 0:
            other_m = cuda.shfl_xor_sync(ALL_LANES, m, step)
            other_l = cuda.shfl_xor_sync(ALL_LANES, l, step)
            larger = max(m, other_m)
            mine, theirs = weight(m, larger), weight(other_m, larger)
            l = mine * l + theirs * other_l
            for c in range(width):
                if c < d:
                    o_row[c] = mine * o_row[c] + theirs * cuda.shfl_xor_sync(ALL_LANES, o_row[c], step)
            m = larger
            step //= 2
        # 4. every lane holds the whole row, and stores every 32nd element
        share = reciprocal(l)
        for c in range(width):
            if c % LANES == lane and c < d:
                o[batch, head, i, c] = o_row[c] * share
        if lane == 0:
            log_sum[batch, head, i] = m + math.log(l)

    return warp_attention_kernel


def forward(q, k, v, causal, scale, window, run):
    """Return (O, L) for checked arguments."""
    kernel = warp_attention_kernel(width_for(q.shape[3]))
    return launch_rows(kernel, WARPS, WARPS * LANES, q, k, v, causal, scale, window, run)


def warp_forward(q, k, v, causal=True, scale=None, run=None, window=None):
    """Compute attention and each query's log-sum-exp; return (O, L), without gradients.

    Arguments and errors are the same as for `warp_attention`. O has the shape of q, L is (B, H, N); both are
    float32.
    """
    return checked(forward, FLOAT32, q, k, v, causal, scale, window, run)


warp_forward_operator = attention_operator("warp", forward)


def warp_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = True,
    scale: float | None = None,
    *,
    is_causal: bool | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    window: tuple[int, int] | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Return softmax(scale · q kᵀ) v, (B, H, N, d), with one warp per query; float32 only.

    Arguments, gradients and errors are the same as for `flash_attention`.
    """
    return attend(
        warp_forward_operator, FLOAT32, q, k, v, causal, scale, is_causal, enable_gqa, return_lse, window
    )
