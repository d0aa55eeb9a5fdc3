"""Flash attention, forward kernel: one block per tile of queries, one thread per query.

A block loads K and V into shared memory, tile by tile. For one head, query i sees the keys j with j <= i if
causal, those with i - left <= j <= i + right in a window, and all keys otherwise. One pass over these keys
updates the running maximum m, the sum l and the output o:

    s  = scale · q_i·k_j
    m' = max(m, s)
    l' = l·e^(m-m') + e^(s-m')
    o' = o·e^(m-m') + e^(s-m')·v_j

The initial state is (m, l, o) = (-inf, 0, 0). At the end, O_i = o / l. The only statistic that the backward
pass needs is L_i = m + log l.
Source: Dao 2023, arXiv 2307.08691, Algorithm 1 (queries in the outer loop, one division at the end, L instead
    of m and l).

    grid    (⌈N / ROWS⌉, H, B). A block reads only tiles that contain a key of its queries: under a causal
            mask it stops at its last query, and in a window it starts to the left of its first query
    block   ROWS threads. Each thread holds its rows of q and o in registers up to width 64; wider rows spill
            to local memory
    shared  2 · KEYS · width · 4 bytes, static: a tile of K and one of V. All lanes of a warp read the same
            element at a time (a broadcast), so there are no bank conflicts
    cost    2 · N · N_k · d multiply-adds per head. K and V are read ⌈N / ROWS⌉ times, q once; O and L are
            written once

All sizes are run-time arguments except `width`, d rounded up to 16, 32, 64 or 128: registers cannot be
indexed, so loops over a row must be unrolled at compile time.
"""

import functools
import math

import torch
from numba import cuda
from numpy import float32

from kernels.common.arguments import ANY_FLOAT, HALVES
from kernels.common.launch import width_for
from kernels.common.tiles import MINUS_INFINITY, load_tile, reciprocal, weight
from kernels.flash.hopper_forward import flash_hopper_forward
from kernels.flash.operators import (
    attend,
    attention_operator,
    checked,
    fits_single_tap,
    launch_rows,
    single_tap_forward,
)
from kernels.flash.tensor_forward import flash_tensor_forward
from kernels.flash.window import EVERYTHING
from kernels.tensor_cores.launch import HOPPER, capability

ROWS, KEYS = 64, 32  # queries per block, one per thread; keys per tile


@functools.cache
def flash_forward_kernel(width):
    """Return the kernel for rows of at most `width` elements."""

    @cuda.jit
    def flash_forward_kernel(q, k, v, scale, causal, window, o, log_sum):
        """Compute attention, o (B, H, N, d), and each query's log-sum-exp, log_sum (B, H, N), both float32.

        q: (B, H, N, d), float32.
        k, v: (B, H, N_k, d), float32.
        window: (left, right), both finite.
        """
        # aligned for 16-byte loads of four elements
        k_tile = cuda.shared.array((KEYS, width), float32, alignment=16)
        v_tile = cuda.shared.array((KEYS, width), float32, alignment=16)
        q_row = cuda.local.array(width, float32)
        o_row = cuda.local.array(width, float32)
        batch, head = cuda.blockIdx.z, cuda.blockIdx.y
        i = cuda.blockIdx.x * ROWS + cuda.threadIdx.x
        n, d, keys = q.shape[2], q.shape[3], k.shape[2]
        left, right = window
        right = 0 if causal else right
        # 1. load this thread's query, and initialise the state
        for c in range(width):
            q_row[c] = scale * q[batch, head, i, c] if i < n and c < d else float32(0)
            o_row[c] = float32(0)
        m, l = MINUS_INFINITY, float32(0)
        # 2. Loop over all tiles with a key that a query of the block sees. Threads without a query (i >= n)
        #    still help to load tiles and arrive at the barriers.
        before, seen = i - left, min(keys, i + 1 + right)
        first_of_block = max(0, cuda.blockIdx.x * ROWS - left) // KEYS * KEYS
        seen_by_block = min(keys, (cuda.blockIdx.x + 1) * ROWS + right)
        for first in range(first_of_block, seen_by_block, KEYS):
            load_tile(k_tile, k[batch, head], first)
            load_tile(v_tile, v[batch, head], first)
            cuda.syncthreads()  # the tiles are loaded
            for j in range(max(0, before - first), min(KEYS, seen - first)):
                score = float32(0)
                for c in range(width):
                    score += q_row[c] * k_tile[j, c]
                if score > m:  # a new maximum is rare, so few iterations rescale
                    shrink = weight(m, score)
                    l *= shrink
                    for c in range(width):
                        o_row[c] *= shrink
                    m = score
                p = weight(score, m)
                l += p
                for c in range(width):
                    o_row[c] += p * v_tile[j, c]
            cuda.syncthreads()  # all threads have read the tiles: the next ones may overwrite them
        # 3. normalise and store
        if i < n:
            share = reciprocal(l)
            for c in range(width):
                if c < d:
                    o[batch, head, i, c] = o_row[c] * share
            log_sum[batch, head, i] = m + math.log(l)

    return flash_forward_kernel


def forward(q, k, v, causal, scale, window, run):
    """Return (O, L) for checked arguments; 16-bit tensors use a tensor-core kernel."""
    if q.dtype in HALVES:
        if run is None and window == EVERYTHING and q.is_cuda and capability(q.device) == HOPPER:
            return flash_hopper_forward(q, k, v, causal, scale)
        return flash_tensor_forward(q, k, v, causal, scale, window, run)
    kernel = flash_forward_kernel(width_for(q.shape[3]))
    return launch_rows(kernel, ROWS, ROWS, q, k, v, causal, scale, window, run)


def flash_forward(q, k, v, causal=True, scale=None, run=None, window=None):
    """Compute attention and each query's log-sum-exp; return (O, L), without gradients.

    Arguments and errors are the same as for `flash_attention`. O has the shape and dtype of q; L is (B, H,
    N), float32.
    """
    return checked(forward, ANY_FLOAT, q, k, v, causal, scale, window, run)


def fastest_forward(q, k, v, causal, scale, window, run):
    """Return (O, L) like `forward`. For float32 on a GPU, launch the kernels of `conv_attention`, which are
    faster."""
    if run is None and q.dtype == torch.float32 and fits_single_tap(q, k, window):
        return single_tap_forward(q, k, v, causal, scale)
    return forward(q, k, v, causal, scale, window, run)


flash_forward_operator = attention_operator("flash", fastest_forward)


def flash_attention(
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
    """Return softmax(scale · q kᵀ) v, (B, H, N, d), computed without the N×N matrix.

    With return_lse, return (O, L), where L (B, H, N) is the float32 log-sum-exp of each query's scores,
    without gradients.

    q: (B, H, N, d), float32, bfloat16 or float16, d <= 128.
    k, v: (B, H, N_k, d), with the dtype and device of q.
    causal: query i sees the keys j <= i.
    scale: 1/sqrt(d) by default.
    is_causal: an alias of causal, as in `scaled_dot_product_attention`.
    enable_gqa: k and v are (B, H_kv, N_k, d), where H_kv divides H. Each of their heads serves H / H_kv
        neighbouring heads of q.
    return_lse: also return L.
    window: (left, right), a sliding window like FlashAttention's window_size: query i sees the keys i - left
        to i + right, and no key after i if causal; -1 removes the limit on that side. A block reads only
        tiles that contain such keys.

    A query that sees no key, or whose scores are all -inf, has O = 0 and L = -inf. Non-contiguous tensors are
    copied. CPU tensors are simulated, and CUDA tensors run on their GPU. For 16-bit tensors, tensor cores
    compute with float32 accumulators, which requires a GPU of compute capability 8.0 or newer
    (`kernels.flash.tensor_forward`; without a window on compute capability 9.0, `hopper_forward`).

    On a GPU, without a window and with N_k = N, the forward pass in float32 and the backward pass launch the
    kernels of `conv_attention` with a single tap, which are faster. For few scores and in all other cases,
    the backward pass is plain PyTorch in float32 and needs memory for the N×N matrix.

    The function is differentiable once, with respect to q, k and v. Under torch.compile it is one opaque
    operator. Raise TypeError or ValueError for an invalid argument; the message states the actual and the
    expected value.
    """
    return attend(
        flash_forward_operator, ANY_FLOAT, q, k, v, causal, scale, is_causal, enable_gqa, return_lse, window
    )
