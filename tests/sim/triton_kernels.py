"""Triton kernels for the tests of sim.triton(). They are written like users' kernels."""

import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out + i, tl.load(x + i, mask=mask) + tl.load(y + i, mask=mask), mask=mask)


@triton.jit
def double_without_mask(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + i)
    tl.store(out + i, 2 * values, mask=i < n)


@triton.jit
def row_sums(x, out, stride, COLUMNS: tl.constexpr):
    row = tl.program_id(0)
    tl.store(out + row, tl.sum(tl.load(x + row * stride + tl.arange(0, COLUMNS)), 0))


@triton.jit
def total_without_atomic(x, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out, tl.load(out) + tl.sum(tl.load(x + i), 0))


@triton.autotune(
    [triton.Config({"BLOCK": n}, num_warps=w) for n, w in ((16, 1), (64, 2), (128, 4))], key=["n"]
)
@triton.heuristics({"EVEN": lambda given: given["n"] % given["BLOCK"] == 0})
@triton.jit
def tuned(x, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    tl.static_assert(BLOCK > 32)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if EVEN:
        tl.store(out + i, tl.load(x + i) + 1)
    else:
        tl.store(out + i, tl.load(x + i, mask=i < n) + 1, mask=i < n)


@triton.jit
def checked(x, limit, step, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    values = tl.load(x + i)
    tl.device_print("value", values)
    tl.device_assert(values < limit, "too large")
    tl.store(x + i, (values * step).to(x.dtype.element_ty))


@triton.jit
def double_in_place(x, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, 2 * tl.load(x + i))


@triton.jit
def count_up(x):
    tl.store(x, tl.load(x) + 1)


@triton.jit
def shift_in_place(x, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + (i + 1) % BLOCK))


@triton.jit
def store_and_reverse(x, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, i)
    tl.store(out + i, tl.load(x + BLOCK - 1 - i))


@triton.jit
def row_products(x, y, out, BLOCK: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    tl.store(out + row, tl.sum(tl.load(x + row * BLOCK + i) * tl.load(y + row * BLOCK + i), 0))


@triton.jit
def add_tiles(x, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column = tl.program_id(0) * ROWS, tl.program_id(1) * COLUMNS
    out.store([row, column], x.load([row, column]) + 1)


@triton.jit
def increment_each(addresses, sizes, BLOCK: tl.constexpr):
    x = tl.load(addresses + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    i = tl.arange(0, BLOCK)
    mask = i < tl.load(sizes + tl.program_id(0))
    tl.store(x + i, tl.load(x + i, mask=mask) + 1, mask=mask)
