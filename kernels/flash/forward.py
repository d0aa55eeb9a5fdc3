"""Flash attention, forward: a block for each tile of queries, a thread for each query, the keys tile by tile
through shared memory.

For one head, query i, and the keys j that it sees (all of them; j <= i if causal; i - left <= j <= i + right
in a window), in one pass over j:

    s  = scale · q_i·k_j
    m' = max(m, s)
    l' = l·e^(m-m') + e^(s-m')
    o' = o·e^(m-m') + e^(s-m')·v_j

from (m, l, o) = (-inf, 0, 0); at the end O_i = o / l, and L_i = m + log l is all that a backward pass needs
to know of the row.
Source: Dao 2023, arXiv 2307.08691, Algorithm 1 (queries outer, one division at the end, L instead of m and
l).

    grid    (⌈N / ROWS⌉, H, B); a block reads the tiles that hold a key of its queries alone: under a
            causal mask it stops at its own last query, in a window it begins left of its first
    block   ROWS threads; its row of q, and of o, is in a thread's registers (up to width 64; wider rows spill
            to local memory)
    shared  2 · KEYS · width · 4 bytes, static: a tile of K and one of V; all lanes of a warp read the same
            number at a time
    cost    2 · N · N_k · d multiply-adds a head; K and V are read ⌈N / ROWS⌉ times, q once, O and L are
            written once

Sizes are run-time arguments, but for `width`, d rounded up to 16, 32, 64 or 128: registers have no index, so
loops over a row are unrolled.
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

ROWS, KEYS = 64, 32  # queries in a block, one a thread; keys in a tile


@functools.cache
def flash_forward_kernel(width):
    """The kernel for rows of at most `width` numbers."""

    @cuda.jit
    def flash_forward_kernel(q, k, v, scale, causal, window, o, log_sum):
        """o (B, H, N, d) = attention of q (B, H, N, d), k and v (B, H, N_k, d), and log_sum (B, H, N) = L,
        all float32; window: (left, right), both limits."""
        # aligned, so that four numbers are one load
        k_tile = cuda.shared.array((KEYS, width), float32, alignment=16)
        v_tile = cuda.shared.array((KEYS, width), float32, alignment=16)
        q_row = cuda.local.array(width, float32)
        o_row = cuda.local.array(width, float32)
        batch, head = cuda.blockIdx.z, cuda.blockIdx.y
        i = cuda.blockIdx.x * ROWS + cuda.threadIdx.x
        n, d, keys = q.shape[2], q.shape[3], k.shape[2]
        left, right = window
        right = 0 if causal else right
        # 1. this thread's query; no key read yet
        for c in range(width):
            q_row[c] = scale * q[batch, head, i, c] if i < n and c < d else float32(0)
            o_row[c] = float32(0)
        m, l = MINUS_INFINITY, float32(0)
        # 2. every tile of which some query of the block sees a key; a thread without a query helps to load
        before, seen = i - left, min(keys, i + 1 + right)
        first_of_block = max(0, cuda.blockIdx.x * ROWS - left) // KEYS * KEYS
        seen_by_block = min(keys, (cuda.blockIdx.x + 1) * ROWS + right)
        for first in range(first_of_block, seen_by_block, KEYS):
            load_tile(k_tile, k[batch, head], first)
            load_tile(v_tile, v[batch, head], first)
            cuda.syncthreads()  # loaded
            for j in range(max(0, before - first), min(KEYS, seen - first)):
                score = float32(0)
                for c in range(width):
                    score += q_row[c] * k_tile[j, c]
                if score > m:  # a new maximum is rare, so few turns pay for the rescaling
                    shrink = weight(m, score)
                    l *= shrink
                    for c in range(width):
                        o_row[c] *= shrink
                    m = score
                p = weight(score, m)
                l += p
                for c in range(width):
                    o_row[c] += p * v_tile[j, c]
            cuda.syncthreads()  # used up: the next tile may overwrite it
        # 3. one division for each number of the output
        if i < n:
            share = reciprocal(l)
            for c in range(width):
                if c < d:
                    o[batch, head, i, c] = o_row[c] * share
            log_sum[batch, head, i] = m + math.log(l)

    return flash_forward_kernel


def forward(q, k, v, causal, scale, window, run):
    """(O, L) of checked arguments; 16-bit tensors go to the kernel on tensor cores."""
    if q.dtype in HALVES:
        return flash_tensor_forward(q, k, v, causal, scale, window, run)
    kernel = flash_forward_kernel(width_for(q.shape[3]))
    return launch_rows(kernel, ROWS, ROWS, q, k, v, causal, scale, window, run)


def flash_forward(q, k, v, causal=True, scale=None, run=None, window=None):
    """(O, L): attention and each query's log-sum-exp, without gradients. Arguments and errors are those of
    `flash_attention`.

    O is like q, L is (B, H, N), float32, on q's device.
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
    """softmax(scale · q kᵀ) v, (B, H, N, d), without the N×N matrix; with return_lse also each query's
    log-sum-exp, (B, H, N), float32, without gradients.

    q: (B, H, N, d), k and v: (B, H, N_k, d), float32, bfloat16 or float16 tensors on one device, d <= 128;
        16-bit ones on tensor cores (`kernels.flash.tensor_forward`; a GPU of compute capability 8.0 or
        newer), with float32 sums. scale is 1/sqrt(d) unless given. With causal, query i sees the keys j <= i.
        A query all of whose scores are -inf gets 0. Made contiguous if they are not.
    is_causal, enable_gqa: as `scaled_dot_product_attention` names them: the same as causal; and k and v (B,
        H_kv, N_k, d), where H_kv divides H, of which each head serves H / H_kv neighbouring heads of q.
    window: (left, right), a sliding window, as FlashAttention's window_size: query i sees the keys i - left
        to i + right, and with causal none after i; -1 sets no limit on that side. A block reads only tiles
        that hold such keys. A query that sees no key gets 0, and its log-sum-exp is -inf.

    CPU tensors are simulated, CUDA tensors run on their GPU. Gradients reach q, k and v, once; the backward
    pass is plain PyTorch, in float32, and makes the N×N matrix. Under torch.compile this is one opaque
    operator. Raises TypeError or ValueError that names the argument, what it is, and what was wanted.
    """
    return attend(
        flash_forward_operator, ANY_FLOAT, q, k, v, causal, scale, is_causal, enable_gqa, return_lse, window
    )
