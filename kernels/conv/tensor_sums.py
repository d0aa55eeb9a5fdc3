"""Small sums of the backward pass on tensor cores: D of few queries, and the gradient of the taps.

    kernel          computes                                        grid            block
    few_queries     D[i] = Σ_j P[i, j] · (dO_i · v_j)               (H, B)          FEW · FEW threads
    sum_of_parts    the sum of the blocks' gradients of the taps    (⌈size / 32⌉,)  PART_WARPS warps

D equals the row sum of dO · O. For few queries, the rounding of O to 16 bits matters, so `few_queries`
computes D from P, with scores rounded as in the kernels. For more queries, `row_products` computes it.
"""

import functools

import torch
from numba import cuda
from numpy import float32

from kernels.common.arguments import MOST_TAPS
from kernels.common.launch import Bits
from kernels.common.splits import LANE, LANES
from kernels.common.tiles import weight
from kernels.tensor_cores.launch import kind_of, taps_operand
from kernels.tensor_cores.row_products import row_products_launch
from kernels.tensor_cores.tiles import ARITHMETIC, clamped, rounder, tap_packer, widener

FEW = 16  # for at most this number of queries, D is computed from the scores
PART_WARPS = 8


@functools.cache
def few_queries_kernel(kind, bits):
    """Return the kernel that computes D = rowsum(dO * O) for at most FEW queries. For `bits`, see
    `tap_packer`."""
    pack, scaled, pack_taps = ARITHMETIC[kind].pack, kind == "float16", tap_packer(kind, bits)
    widened = widener(kind)

    @cuda.jit(device=True)
    def product(x, y):
        """Return the dot product of two rows of 16-bit values."""
        total = float32(0)
        for c in range(x.shape[0]):
            total += widened(x[c]) * widened(y[c])
        return total

    @cuda.jit
    def conv_few_queries_kernel(q, k, v, w, log_sum, d_o, scale, causal, delta):
        """Store D in delta (B, H, N). Each thread computes one score, and half a warp computes one row.

        q, k, v, d_o: (B, H, N, d), 16-bit values as int16.
        w: (H, c_q, c_k).
        log_sum: (B, H, N).
        """
        scores = cuda.shared.array((FEW, FEW), float32)
        taps = cuda.shared.array((MOST_TAPS, MOST_TAPS), float32)
        batch, head, thread = cuda.blockIdx.y, cuda.blockIdx.x, cuda.threadIdx.x
        i, j, n, c_q, c_k = thread // FEW, thread % FEW, q.shape[2], w.shape[1], w.shape[2]
        visible = i < n and j < n and (j <= i or not causal)
        s, total = float32(0), float32(0)
        if visible:
            s = product(q[batch, head, i], k[batch, head, j])
            total = product(d_o[batch, head, i], v[batch, head, j])
        s = clamped(s * scale) if scaled else s
        scores[i, j] = widened(pack(s, s))
        for tap in range(thread, c_q * c_k, FEW * FEW):
            a, b = tap // c_k, tap % c_k
            taps[a, b] = widened(pack_taps(w, head, a, b, True, False))
        cuda.syncthreads()  # the scores and the taps are stored
        t = float32(0)
        for a in range(c_q):
            for b in range(c_k):
                row, column = i - (c_q - 1) + a, j - (c_k - 1) // 2 + b
                if 0 <= row and 0 <= column and column < FEW:
                    t += taps[a, b] * scores[row, column]
        t = t if scaled else t * scale
        total = weight(t, log_sum[batch, head, i]) * total if visible else float32(0)
        for bit in range(4):
            total += cuda.shfl_xor_sync(0xFFFFFFFF, total, 1 << bit)
        if j == 0 and i < n:
            delta[batch, head, i] = total

    return conv_few_queries_kernel


@functools.cache
def sum_of_parts_kernel(kind):
    """Return the kernel that sums parts, and stores the results as `rounder` converts them to type `kind`."""
    rounded = rounder(kind)

    @cuda.jit
    def conv_sum_of_parts_kernel(parts, out):
        """Store the sum of parts (P, size) over its first dimension in out (size,)."""
        sums = cuda.shared.array((PART_WARPS, LANES), float32)
        lane, warp = cuda.threadIdx.x & LANE, cuda.threadIdx.x // LANES
        element, total = cuda.blockIdx.x * LANES + lane, float32(0)
        if element < out.shape[0]:
            for part in range(warp, parts.shape[0], PART_WARPS):
                total += parts[part, element]
        sums[warp, lane] = total
        cuda.syncthreads()  # all warps have stored their sums
        if warp == 0 and element < out.shape[0]:
            for other in range(1, PART_WARPS):
                total += sums[other, lane]
            out[element] = rounded(total)

    return conv_sum_of_parts_kernel


def sums_of_rows_launch(q, k, v, w, o, log_sum, d_o, causal, scale, delta):
    """Return (kernel, grid, block, *arguments) of the launch that stores D in delta (B, H, N)."""
    if q.shape[2] > FEW:
        return row_products_launch(d_o, o, delta)
    taps, bits = taps_operand(w, q)
    tensors = *(Bits(x, torch.int16) for x in (q, k, v)), taps, log_sum, Bits(d_o, torch.int16)
    kernel, grid = few_queries_kernel(kind_of(q), bits), q.shape[1::-1]
    return kernel, grid, FEW * FEW, *tensors, scale, bool(causal), delta


def sum_of_parts_launch(parts, out):
    """Return (kernel, grid, block, *arguments) of the launch that sums parts (P, …) into `out`."""
    stored = out.view(-1)
    stored = stored if out.dtype == torch.float32 else Bits(stored, torch.int16)
    grid = (-(-out.numel() // LANES),)
    return sum_of_parts_kernel(kind_of(out)), grid, PART_WARPS * LANES, parts.flatten(1), stored
