"""Small kernels of lesson 21: elementwise and row kernels, three ways to convolve a tile, and kernels that
may contain a bug."""

import torch

from kernels.triton.launch import launch
from kernels.triton.optional import tl, triton
from kernels.triton.tiles import convolved, load_rows, store_rows


@triton.jit
def twice(x, y, n, BLOCK: tl.constexpr):
    """Store y = 2 x, n elements, in tiles of BLOCK elements."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    t = tl.load(x + i, mask=i < n)
    tl.store(y + i, 2 * t, mask=i < n)


@triton.jit
def softmax_row_kernel(x, y, n, WIDTH: tl.constexpr):
    """Store the softmax of each row of x in y (rows, n), n <= WIDTH; one program per row."""
    row, j = tl.program_id(0), tl.arange(0, WIDTH)
    s = tl.load(x + row * n + j, mask=j < n, other=float("-inf"))
    e = tl.exp(s - tl.max(s, 0))
    tl.store(y + row * n + j, e / tl.sum(e, 0), mask=j < n)


# Convolution of a tile --------------------------------------------------------------------------------------


@triton.jit
def through_memory(s, taps, c_q, c_k, scratch, SIZE: tl.constexpr):
    """Return Σ_ab taps[a, b] · s[i + a, j + b] by way of global memory; 0 outside the tile."""
    i, j = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    tl.store(scratch + i * SIZE + j, s)
    tl.debug_barrier()
    total = tl.zeros_like(s)
    for a in range(c_q):
        for b in range(c_k):
            inside = (i + a < SIZE) & (j + b < SIZE)
            there = scratch + (i + a) * SIZE + j + b
            total += tl.load(taps + a * c_k + b) * tl.load(there, mask=inside, other=0.0)
    return total


@triton.jit
def by_products(s, taps, c_q, c_k, SIZE: tl.constexpr):
    """Return the same convolution, computed as products with banded matrices of taps."""
    i, j = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    total = tl.zeros_like(s)
    for a in range(c_q):
        b = i - j
        inside = (b >= 0) & (b < c_k)
        band = tl.load(taps + a * c_k + b, mask=inside, other=0.0)
        row = tl.dot(s, band, input_precision="ieee")
        up = tl.where(j == i + a, 1.0, 0.0)
        total += tl.dot(up, row, input_precision="ieee")
    return total


@triton.jit
def convolve_kernel(x, taps, scratch, y, c_q, c_k, WAY: tl.constexpr, SIZE: tl.constexpr):
    """Convolve x (SIZE, SIZE) with taps (c_q, c_k) into y. WAY: 0 shifts, 1 products, 2 memory."""
    s = load_rows(x, 0, SIZE, SIZE, SIZE, SIZE)
    if WAY == 0:
        t = convolved(s, taps, c_q, c_k, False)
    elif WAY == 1:
        t = by_products(s, taps, c_q, c_k, SIZE)
    else:
        t = through_memory(s, taps, c_q, c_k, scratch, SIZE)
    store_rows(y, 0, SIZE, SIZE, SIZE, t)


# Which of these kernels are correct? ------------------------------------------------------------------------


@triton.jit
def differences_a(x, y, n, BLOCK: tl.constexpr):
    """Store y[i] = x[i + 1] - x[i], n - 1 elements."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = tl.load(x + i, mask=i < n)
    there = tl.load(x + i + 1, mask=i < n)
    tl.store(y + i, there - here, mask=i < n - 1)


@triton.jit
def sums_b(x, y, n, columns, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Store the sum of column c of x (n, columns) in y[c], where y is initially 0."""
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    c = tl.arange(0, WIDTH)
    inside = (i < n) & (c < columns)[None, :]
    part = tl.sum(tl.load(x + i * columns + c[None, :], mask=inside, other=0.0), 0)
    so_far = tl.load(y + c, mask=c < columns)
    tl.store(y + c, so_far + part, mask=c < columns)


@triton.jit
def smooth_c(x, n, BLOCK: tl.constexpr):
    """Replace x[i] by the mean of x[i] and x[i + 1], in place; the last element is unchanged."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = tl.load(x + i, mask=i < n)
    there = tl.load(x + i + 1, mask=i + 1 < n, other=0.0)
    tl.store(x + i, (here + there) / 2, mask=i + 1 < n)


@triton.jit
def halves_d(x, y, n, BLOCK: tl.constexpr):
    """Store y[i] = the mean of x[i] and x[i + 1]; the last element is copied."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = tl.load(x + i, mask=i < n)
    there = tl.load(x + i + 1, mask=i + 1 < n, other=0.0)
    tl.store(y + i, tl.where(i + 1 < n, (here + there) / 2, here), mask=i < n)


@triton.jit
def steps_e(x, scratch, y, BLOCK: tl.constexpr):
    """Store y[i] = x[i]² - x[i - 1]², by way of scratch; one program."""
    i = tl.arange(0, BLOCK)
    square = tl.load(x + i) * tl.load(x + i)
    tl.store(scratch + i, square)
    before = tl.load(scratch + i - 1, mask=i > 0, other=0.0)
    tl.store(y + i, square - before)


# Launches ---------------------------------------------------------------------------------------------------


def doubled(x, run=None):
    """Return 2 x (n,), computed by programs of one warp with 64 elements each."""
    y = torch.empty_like(x)
    launch(twice, (-(-len(x) // 64), 1, 1), x, y, len(x), BLOCK=64, num_warps=1, run=run)
    return y


def softmax_row(x, num_warps, run=None):
    """Return the softmax of each row of x (rows, n), n a power of two."""
    y, (rows, n) = torch.empty_like(x), x.shape
    launch(softmax_row_kernel, (rows, 1, 1), x, y, n, WIDTH=n, num_warps=num_warps, run=run)
    return y


def convolve(x, taps, way, run=None):
    """Convolve x (32, 32) with taps (c_q, c_k); the result is valid where all inputs are inside x."""
    scratch, y, size = torch.empty_like(x), torch.empty_like(x), len(x)
    constants = dict(WAY=way, SIZE=size, num_warps=4)
    launch(convolve_kernel, (1, 1, 1), x, taps, scratch, y, *taps.shape, **constants, run=run)
    return y


def planted(name, run=None):
    """Run kernel A, C or D on 100 elements, B on 40 rows of 12, or E on 64 elements with two warps."""
    x, y = torch.arange(100.0) % 7, torch.zeros(100)
    blocks = dict(BLOCK=32, num_warps=1)
    if name == "A":
        launch(differences_a, (4, 1, 1), x, y, 100, **blocks, run=run)
    elif name == "B":
        x, y = torch.arange(480.0).view(40, 12) % 7, torch.zeros(12)
        launch(sums_b, (3, 1, 1), x, y, 40, 12, ROWS=16, WIDTH=16, num_warps=1, run=run)
    elif name == "C":
        launch(smooth_c, (4, 1, 1), x, 100, **blocks, run=run)
    elif name == "E":
        x, y, scratch = x[:64], y[:64], torch.zeros(64)
        launch(steps_e, (1, 1, 1), x, scratch, y, BLOCK=64, num_warps=2, run=run)
    else:
        launch(halves_d, (4, 1, 1), x, y, 100, **blocks, run=run)
    return y
