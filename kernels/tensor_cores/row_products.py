"""Row sums of the product of two 16-bit tensors: D = rowsum(dO * O) of the backward passes, in float32.

A warp computes ROWS rows, so that the loads of several rows are in flight at the same time.

grid    (⌈N / (WARPS · ROWS)⌉, H, B)      block   WARPS · 32 threads
"""

import functools

import torch
from numba import cuda
from numpy import float32, uint32
from torch.nn.functional import pad

from kernels.common.launch import Bits, launch, output, relaunch
from kernels.common.splits import LANE, LANES, sum_of_warp
from kernels.tensor_cores.instructions import high_bf16, high_f16, low_bf16, low_f16
from kernels.tensor_cores.launch import kind_of

WARPS, ROWS = 8, 4
HALVES_OF = {"bfloat16": (low_bf16, high_bf16), "float16": (low_f16, high_f16)}


@functools.cache
def row_products_kernel(kind):
    low, high = HALVES_OF[kind]

    @cuda.jit
    def row_products_kernel(x, y, out):
        """Store Σ_c x[…, c] · y[…, c] in out (B, H, N).

        x, y: (B, H, N, d / 2), two 16-bit values per int32.
        """
        batch, head, n = cuda.blockIdx.z, cuda.blockIdx.y, out.shape[2]
        lane = cuda.threadIdx.x & LANE
        first = (cuda.blockIdx.x * WARPS + cuda.threadIdx.x // LANES) * ROWS
        totals = cuda.local.array(ROWS, float32)
        for row in range(ROWS):
            totals[row] = float32(0)
        for c in range(lane, x.shape[3], LANES):
            for row in range(ROWS):
                i = min(first + row, n - 1)
                a, b = uint32(x[batch, head, i, c]), uint32(y[batch, head, i, c])
                totals[row] += low(a) * low(b) + high(a) * high(b)
        for row in range(ROWS):
            total = sum_of_warp(totals[row])
            if lane == 0 and first + row < n:
                out[batch, head, first + row] = total

    return row_products_kernel


def row_products(x, y, run=None):
    """Return the sum of x · y over the last dimension, (B, H, N), float32.

    x, y: (B, H, N, d), bfloat16 or float16, contiguous.
    """
    d = x.shape[3]
    if d % 2:
        x, y = pad(x, (0, 1)), pad(y, (0, 1))
    out = output(x.shape[:3], like=x)
    key, tensors = (row_products_kernel, x.shape, x.dtype, x.device), (x, y, out)
    if run is None and relaunch(key, tensors):
        return out
    launch(*row_products_launch(x, y, out), run=run, remember=(key, tensors))
    return out


def row_products_launch(x, y, out):
    """Return (kernel, grid, block, *arguments) with which `row_products` computes `out`; d is even."""
    batch, heads, n, _ = x.shape
    words, grid = (Bits(x, torch.int32), Bits(y, torch.int32)), (-(-n // (WARPS * ROWS)), heads, batch)
    return row_products_kernel(kind_of(x)), grid, WARPS * LANES, *words, out
