"""Kernels with exact results: how to launch each one, and its result computed on the CPU."""

import torch
from numba import cuda
from numba.cuda import libdevice
from numpy import float32

from kernels.cases import matrix_patterns, memory_patterns
from kernels.cases.memory_patterns import THREADS, TILE, blocks, tiles
from kernels.common.launch import launch, output

STRIDE = 4  # the stride of `strided_copy`


def tiles_of_16_bits(generator, tiles):
    shape = tiles, matrix_patterns.ROWS, matrix_patterns.COLUMNS
    return [torch.randint(-(2**15), 2**15, shape, generator=generator).to(torch.int16)]


@cuda.jit
def collatz(x, steps):
    """Store in steps[i], int64, the number of Collatz steps from x[i] to 1.

    A step is n → n / 2 if n is even, and n → 3n + 1 if n is odd.

        grid    blocks(n)      block   THREADS
    """
    i = cuda.grid(1)
    if i < x.shape[0]:
        n, count = x[i], 0
        while n > 1:
            n = 3 * n + 1 if n & 1 else n >> 1
            count += 1
        steps[i] = count


@cuda.jit
def horner(x, out):
    """Store ((x - 3)x + 1)x + 0.1 in out[i], float32, rounding after each operation (no fused multiply-add).

    grid    blocks(n)      block   THREADS
    """
    i = cuda.grid(1)
    if i < x.shape[0]:
        total = libdevice.fadd_rn(x[i], float32(-3))
        total = libdevice.fadd_rn(libdevice.fmul_rn(total, x[i]), float32(1))
        out[i] = libdevice.fadd_rn(libdevice.fmul_rn(total, x[i]), float32(0.1))


def collatz_by_hand(n):
    return 0 if n <= 1 else 1 + collatz_by_hand(3 * n + 1 if n % 2 else n // 2)


def horner_by_hand(x):
    """Return ((x - 3)x + 1)x + 0.1 in float32; torch rounds each operation separately."""
    x = x.float()
    return ((x - 3) * x + 1) * x + torch.tensor(0.1)


def elementwise(kernel, x, run=None):
    """Run kernel(x, out). `out` is shaped like x and filled with -1, a value that none of these kernels
    writes."""
    out = torch.full_like(x, -1)
    launch(kernel, (blocks(x.numel()),), THREADS, x, out, run=run)
    return (out,)


def strided_copy(x, run=None):
    out = output((x.numel() // STRIDE,), like=x)
    launch(memory_patterns.strided_copy, (blocks(out.numel()),), THREADS, x, out, STRIDE, run=run)
    return (out,)


def transpose(kernel, a, run=None):
    out = output(a.shape[::-1], like=a)
    launch(kernel, tiles(*a.shape), (TILE, TILE), a, out, run=run)
    return (out,)


def matmul(a, b, run=None):
    c = output((a.shape[0], b.shape[1]), like=a)
    launch(memory_patterns.matmul_tiled, tiles(*c.shape), (TILE, TILE), a, b, c, run=run)
    return (c,)


def matrices(pitch, x, run=None):
    out = torch.full((x.shape[0], matrix_patterns.PLACES, 4, 32), -1, dtype=torch.int32, device=x.device)
    launch(matrix_patterns.matrix_kernel(pitch), (x.shape[0],), 32, x, out, run=run)
    return (out,)


def registers_of_matrices(x):
    """Return the registers of `ldmatrix`: lane l has elements 2 (l % 4) and 2 (l % 4) + 1 of row l // 4 of
    each matrix."""
    tiles, rows, columns = x.shape
    matrix = x.reshape(tiles, rows // 16, 2, 8, columns // 16, 2, 4, 2).permute(0, 1, 4, 5, 2, 3, 6, 7)
    return (matrix.contiguous().view(torch.int32).reshape(tiles, matrix_patterns.PLACES, 4, 32),)
