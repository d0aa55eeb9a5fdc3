"""Flash attention, forward: one block for each tile of queries, one thread for each query.

A block loads K and V tile by tile into shared memory. For one head, query i sees the keys j with j <= i if
causal, those with i - left <= j <= i + right in a window, otherwise all. One pass over these keys updates the
running maximum m, the sum l and the output o:

    s  = scale · q_i·k_j
    m' = max(m, s)
    l' = l·e^(m-m') + e^(s-m')
    o' = o·e^(m-m') + e^(s-m')·v_j

The state begins as (m, l, o) = (-inf, 0, 0). At the end O_i = o / l. The backward pass needs only L_i = m +
log l of the row.
Source: Dao 2023, arXiv 2307.08691, Algorithm 1 (queries in the outer loop, one division at the end, L instead
    of m and l).

    grid    (⌈N / ROWS⌉, H, B). A block reads only tiles that hold a key of its queries: under a causal mask
            it stops at its own last query, in a window it begins to the left of its first
    block   ROWS threads. Each thread holds its rows of q and o in registers up to width 64; wider rows spill
            to local memory
    shared  2 · KEYS · width · 4 bytes, static: a tile of K and one of V. All lanes of a warp read the same
            element at a time (a broadcast), so there are no bank conflicts
    cost    2 · N · N_k · d multiply-adds per head. K and V are read ⌈N / ROWS⌉ times, q once; O and L are
            written once

Sizes are run-time arguments, except `width`: d rounded up to 16, 32, 64 or 128. Registers cannot be indexed,
so loops over a row have to be unrolled at compile time.
"""

import functools
import math

import torch
from numba import cuda
from numpy import float32

from kernels.common.arguments import ANY_FLOAT, HALVES
from kernels.common.launch import width_for
from kernels.common.tiles import MINUS_INFINITY, load_tile, reciprocal, weight
from kernels.flash.operators import attend, attention_operator, checked, launch_rows
from kernels.flash.tensor_forward import flash_tensor_forward

ROWS, KEYS = 64, 32  # queries in a block, one for each thread; keys in a tile


@functools.cache
def flash_forward_kernel(width):
    """Return the kernel for rows of at most `width` elements."""

    @cuda.jit
    def flash_forward_kernel(q, k, v, scale, causal, window, o, log_sum):
        """Compute attention, o (B, H, N, d), and the log-sum-exp of each row, log_sum (B, H, N), both
        float32.

        q: (B, H, N, d), float32.
        k, v: (B, H, N_k, d), float32.
        window: (left, right), without UNLIMITED.
        """
        # aligned, so that four elements are one load of 16 bytes
        k_tile = cuda.shared.array((KEYS, width), float32, alignment=16)
        v_tile = cuda.shared.array((KEYS, width), float32, alignment=16)
        q_row = cuda.local.array(width, float32)
        o_row = cuda.local.array(width, float32)
        batch, head = cuda.blockIdx.z, cuda.blockIdx.y
        i = cuda.blockIdx.x * ROWS + cuda.threadIdx.x
        n, d, keys = q.shape[2], q.shape[3], k.shape[2]
        left, right = window
        right = 0 if causal else right
        # 1. this thread's query, and the state before the first key
        for c in range(width):
            q_row[c] = scale * q[batch, head, i, c] if i < n and c < d else float32(0)
            o_row[c] = float32(0)
        m, l = MINUS_INFINITY, float32(0)
        # 2. every tile with a key that a query of the block sees. Threads without a query (i >= n) load tiles
        # and arrive at the barriers, too
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
        # 3. one division for each element of the output
        if i < n:
            share = reciprocal(l)
            for c in range(width):
                if c < d:
                    o[batch, head, i, c] = o_row[c] * share
            log_sum[batch, head, i] = m + math.log(l)

    return flash_forward_kernel


def forward(q, k, v, causal, scale, window, run):
    """Return (O, L) of checked arguments; 16-bit tensors go to the kernel on tensor cores."""
    if q.dtype in HALVES:
        return flash_tensor_forward(q, k, v, causal, scale, window, run)
    kernel = flash_forward_kernel(width_for(q.shape[3]))
    return launch_rows(kernel, ROWS, ROWS, q, k, v, causal, scale, window, run)


def flash_forward(q, k, v, causal=True, scale=None, run=None, window=None):
    """Return (O, L): attention and each query's log-sum-exp, without gradients.

    Arguments and errors are those of `flash_attention`. O is like q; L is (B, H, N), float32, on q's device.
    """
    return checked(forward, ANY_FLOAT, q, k, v, causal, scale, window, run)


flash_forward_operator = attention_operator("flash", forward)


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

    With return_lse, return (O, L), where L (B, H, N) is the log-sum-exp of each query's scores in float32,
    without gradients.

    q: (B, H, N, d), float32, bfloat16 or float16, d <= 128.
    k, v: (B, H, N_k, d), of the type and on the device of q.
    causal: query i sees the keys j <= i.
    scale: 1/sqrt(d) unless given.
    is_causal: another name for causal, as in `scaled_dot_product_attention`.
    enable_gqa: k and v are (B, H_kv, N_k, d), where H_kv divides H. Each of their heads serves H / H_kv
        neighbouring heads of q.
    return_lse: return L, too.
    window: (left, right), a sliding window like FlashAttention's window_size: query i sees the keys i - left
        to i + right, and with causal none after i; -1 sets no limit on that side. A block reads only tiles
        that hold such keys.

    A query that sees no key, or whose scores are all -inf, gets O = 0 and L = -inf. Tensors that are not
    contiguous are copied. CPU tensors are simulated, CUDA tensors run on their GPU. 16-bit tensors are
    computed on tensor cores with float32 accumulators (`kernels.flash.tensor_forward`), which takes a GPU of
    compute capability 8.0 or newer.

    Gradients reach q, k and v; a second derivative is an error. The backward pass is plain PyTorch in float32
    and needs memory for the N×N matrix. Under torch.compile this is one opaque operator. Raise TypeError or
    ValueError, naming the argument, what it is, and what was wanted.
    """
    return attend(
        flash_forward_operator, ANY_FLOAT, q, k, v, causal, scale, is_causal, enable_gqa, return_lse, window
    )
