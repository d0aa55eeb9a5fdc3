# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 17 · Fast forward: your kernel on tensor cores, step by step
#
# **about 75 minutes** (an estimate: nobody has been timed) · builds on lesson 11 (the convolutional kernel), lesson 16 (fragments and `ldmatrix`) and lesson 08 (banks)
#
# You will be able to
#
# 1. turn scores into the left operand of the next product without moving a number;
# 2. keep the copies of the next tile under way while this one is used, and find a wait that is missing;
# 3. choose the route of a convolution to the tensor cores by counting, before anything is written;
# 4. make a convolution a product: taps as a matrix, a shift of rows as another register.
#
# **Where this leads.** Lesson 11's kernel multiplies number by number. A GPU's tensor cores multiply matrices, in 16 bits more than ten times as fast. Here is the whole way, recorded:

# %%
import functools
import json
import math

import matplotlib.pyplot as plt
import numpy as np
from ml_dtypes import bfloat16
from numba import cuda
from numpy import float32, int16, int32, uint32

from course import brought, check, show_figure, show_table
from course.check.lesson17 import Flights
from course.figures import BLUE, GREEN, ORANGE, PINK, RED, SKY
from kernels.bench import DATA
from kernels.instructions import (
    cp_async_16,
    cp_async_commit,
    cp_async_wait_0,
    cp_async_wait_1,
    exp2_approx,
    ldmatrix_x4,
    ldmatrix_x4_trans,
    mma_bf16,
    pack_bf16,
)
from kernels.tiles import MINUS_INFINITY, reciprocal
from sim import simulate
from sim.observers import COUNTERS, DEFAULT

record = json.loads((DATA / "lesson17.json").read_text("utf-8"))

# %%
ALL_LANES = 0xFFFFFFFF
LOG2E = float32(1 / math.log(2))

WIDTH, KEYS, WARPS = 16, 16, 2  # numbers in a row, keys in a tile, warps in a block
PITCH = WIDTH + 8  # numbers from one row of a tile to the next
ROWS, THREADS = 16 * WARPS, 32 * WARPS  # of a block
PLACES = 2 * KEYS  # rows of shared memory: two tiles
WORDS, SUMS = WIDTH // 4, WIDTH // 2  # of a lane: for 16 queries, for their outputs


# %% tags=["exercise"]
@cuda.jit(device=True)
def as_left(p):
    """(a0, a1, a2, a3): the left operand of mma with the 16 × 16 weights
    of which p (8 float32) is this lane's part."""
    # BEGIN SOLUTION 17.1
    a0, a1 = pack_bf16(p[0], p[1]), pack_bf16(p[2], p[3])
    a2, a3 = pack_bf16(p[4], p[5]), pack_bf16(p[6], p[7])
    return a0, a1, a2, a3
    # END SOLUTION


# %%
@cuda.jit(device=True)
def word(x, i, c):
    """x[i, c] and x[i, c + 1], 16 bits each, in one register."""
    return uint32((int32(x[i, c]) & 0xFFFF) | (int32(x[i, c + 1]) << 16))


@cuda.jit(device=True)
def key_operands(tile, first, column):
    """(b0, b1, b2, b3): right operands of QKᵀ for 16 keys, rows of tile from `first` on,
    and 16 of their numbers, from `column` on; b0, b1 are of the first 8 keys."""
    lane = cuda.threadIdx.x % 32
    row = first + lane % 8 + lane // 16 * 8
    return ldmatrix_x4(tile, (row, column + lane // 8 % 2 * 8))


@cuda.jit(device=True)
def plain_key_operands(tile, first, column):
    """The same without ldmatrix: two numbers for each register."""
    lane = cuda.threadIdx.x % 32
    row, c = first + lane // 4, column + lane % 4 * 2
    return (
        word(tile, row, c),
        word(tile, row, c + 8),
        word(tile, row + 8, c),
        word(tile, row + 8, c + 8),
    )


# %% tags=["exercise"]
@cuda.jit(device=True)
def value_operands(tile, first, column):
    """(b0, b1, b2, b3): right operands of PV for 16 keys, rows of tile from `first` on,
    and 16 of their numbers, from `column` on; b0, b1 are of the first 8 numbers."""
    lane = cuda.threadIdx.x % 32
    # BEGIN SOLUTION 17.2
    row = first + lane % 16
    return ldmatrix_x4_trans(tile, (row, column + lane // 16 * 8))
    # END SOLUTION


# %%
@cuda.jit(device=True)
def two_words(tile, row, c):
    """tile[row, c] and tile[row + 1, c] in one register."""
    return uint32((int32(tile[row, c]) & 0xFFFF) | (int32(tile[row + 1, c]) << 16))


@cuda.jit(device=True)
def plain_value_operands(tile, first, column):
    """The same as value_operands, without ldmatrix."""
    lane = cuda.threadIdx.x % 32
    row, c = first + lane % 4 * 2, column + lane // 4
    return (
        two_words(tile, row, c),
        two_words(tile, row + 8, c),
        two_words(tile, row, c + 8),
        two_words(tile, row + 8, c + 8),
    )


@cuda.jit(device=True)
def two_products(sums, at, a0, a1, a2, a3, b):
    """sums[at : at + 8] of a lane += A times two right operands side by side."""
    b0, b1, b2, b3 = b
    sums[at], sums[at + 1], sums[at + 2], sums[at + 3] = mma_bf16(
        a0, a1, a2, a3, b0, b1, sums[at], sums[at + 1], sums[at + 2], sums[at + 3]
    )
    at += 4
    sums[at], sums[at + 1], sums[at + 2], sums[at + 3] = mma_bf16(
        a0, a1, a2, a3, b2, b3, sums[at], sums[at + 1], sums[at + 2], sums[at + 3]
    )


@cuda.jit(device=True)
def load_queries(qs, at, q, i, step):
    """qs[at : at + WORDS]: rows i and i + step of q as left operands, 0 where q has no row."""
    for x in range(WORDS):
        row, c = i + x % 2 * step, x // 2 * 8 + cuda.threadIdx.x % 4 * 2
        qs[at + x] = word(q, row, c) if 0 <= row and row < q.shape[0] else uint32(0)


@cuda.jit(device=True)
def make_scores(s, qs, at, k_tile, first):
    """s (8 float32): the queries in qs[at:] times 16 keys, rows of k_tile from first on."""
    for x in range(8):
        s[x] = float32(0)
    for step in range(WIDTH // 16):
        y = at + step * 4
        b = key_operands(k_tile, first, step * 16)
        two_products(s, 0, qs[y], qs[y + 1], qs[y + 2], qs[y + 3], b)


@cuda.jit(device=True)
def mask(s, i, step, j, n, value):
    """s = value where there is no such key, or it comes after its query: rows i and
    i + step, 16 keys from j on."""
    for x in range(8):
        key = j + x // 4 * 8 + cuda.threadIdx.x % 4 * 2 + x % 2
        if key > i + x // 2 % 2 * step or key < 0 or key >= n:
            s[x] = value


@cuda.jit(device=True)
def row_max(x):
    """The largest x of the four lanes that share a row."""
    x = max(x, cuda.shfl_xor_sync(ALL_LANES, x, 1))
    return max(x, cuda.shfl_xor_sync(ALL_LANES, x, 2))


@cuda.jit(device=True)
def absorb(s, m, l, o, factor):
    """Lesson 01's update, for a lane's two rows: s becomes 2^(factor · (s - m));
    m, l and o follow. l is the sum of this lane's part alone."""
    for h in range(2):
        x = 2 * h
        largest = row_max(max(max(s[x], s[x + 1]), max(s[x + 4], s[x + 5])))
        largest = max(m[h], largest)
        base = float32(0) if largest == MINUS_INFINITY else largest
        shrink = exp2_approx((m[h] - base) * factor)
        m[h] = largest
        l[h] *= shrink
        for tile in range(WIDTH // 8):
            o[tile * 4 + x] *= shrink
            o[tile * 4 + x + 1] *= shrink
        for e in range(4):
            y = x + e // 2 * 4 + e % 2
            s[y] = exp2_approx((s[y] - base) * factor)
            l[h] += s[y]


@cuda.jit(device=True)
def add_values(o, p, v_tile, first):
    """o += p V for 16 keys, rows of v_tile from first on."""
    a0, a1, a2, a3 = as_left(p)
    for step in range(WIDTH // 16):
        b = value_operands(v_tile, first, step * 16)
        two_products(o, step * 8, a0, a1, a2, a3, b)


@cuda.jit(device=True)
def store(out, o, l, i, step):
    """Rows i and i + step of the output."""
    for h in range(2):
        total = l[h] + cuda.shfl_xor_sync(ALL_LANES, l[h], 1)
        total += cuda.shfl_xor_sync(ALL_LANES, total, 2)
        share = reciprocal(total)
        if i + h * step < out.shape[0]:
            for x in range(WIDTH // 4):
                c = x // 2 * 8 + cuda.threadIdx.x % 4 * 2 + x % 2
                out[i + h * step, c] = o[x // 2 * 4 + 2 * h + x % 2] * share


# %%
@cuda.jit(device=True)
def copy(tile, place, x, first):
    """Rows [first, first + KEYS) of x are on the way to tile[place:], zeros for rows that
    x lacks. A thread sends 16 bytes at a time."""
    for part in range(cuda.threadIdx.x, KEYS * WIDTH // 8, THREADS):
        i, c = part // (WIDTH // 8), part % (WIDTH // 8) * 8
        inside = 0 <= first + i and first + i < x.shape[0]
        row, count = (first + i, 16) if inside else (0, 0)
        cp_async_16(tile, (place + i, c), x, (row, c), int32(count))


@cuda.jit(device=True)
def bring(k, v, k_tile, v_tile, place, j0):
    """The keys and values from j0 on are on the way to `place` of both tiles, a group."""
    copy(k_tile, place, k, j0)
    copy(v_tile, place, v, j0)
    cp_async_commit()


@cuda.jit(device=True)
def visit(k_tile, v_tile, place, j0, mine):
    """This warp's queries meet the tile at `place`, which holds the keys from j0 on."""
    qs, i, n, factor, m, l, o = mine
    s = cuda.local.array(8, float32)
    for first in range(0, KEYS, 16):
        make_scores(s, qs, 0, k_tile, place + first)
        mask(s, i, 8, j0 + first, n, MINUS_INFINITY)
        absorb(s, m, l, o, factor)
        add_values(o, s, v_tile, place + first)


@cuda.jit(device=True)
def one_place(k, v, k_tile, v_tile, seen, mine):
    """Visit the keys [0, seen): bring a tile, wait for it, use it."""
    for j0 in range(0, seen, KEYS):
        bring(k, v, k_tile, v_tile, 0, j0)
        cp_async_wait_0()
        cuda.syncthreads()  # all copies of all threads have arrived
        visit(k_tile, v_tile, 0, j0, mine)
        cuda.syncthreads()  # the tile is used up


def flash_with(walk):
    """The kernel whose blocks go along their keys by walk(...)."""

    @cuda.jit
    def flash_kernel(q, k, v, scale, out):
        """out (n, WIDTH) float32 of q, k, v (n, WIDTH), bits of bfloat16; causal."""
        k_tile = cuda.shared.array((PLACES, PITCH), int16, alignment=16)
        v_tile = cuda.shared.array((PLACES, PITCH), int16, alignment=16)
        qs = cuda.local.array(WORDS, uint32)
        o = cuda.local.array(SUMS, float32)
        m = cuda.local.array(2, float32)
        l = cuda.local.array(2, float32)
        n, i0 = q.shape[0], (cuda.gridDim.x - 1 - cuda.blockIdx.x) * ROWS
        my_row = i0 + cuda.threadIdx.x // 32 * 16 + cuda.threadIdx.x % 32 // 4
        load_queries(qs, 0, q, my_row, 8)
        for x in range(SUMS):
            o[x] = float32(0)
        for h in range(2):
            m[h], l[h] = MINUS_INFINITY, float32(0)
        mine = qs, my_row, n, scale * LOG2E, m, l, o
        walk(k, v, k_tile, v_tile, min(n, i0 + ROWS), mine)
        store(out, o, l, my_row, 8)

    return flash_kernel


# %% tags=["exercise"]
@cuda.jit(device=True)
def two_places(k, v, k_tile, v_tile, seen, mine):
    """Visit the keys [0, seen): while one tile is used, the next one is on its way."""
    # BEGIN SOLUTION 17.3
    bring(k, v, k_tile, v_tile, 0, 0)
    place = 0
    for j0 in range(0, seen, KEYS):
        cp_async_wait_0()
        cuda.syncthreads()
        if j0 + KEYS < seen:
            bring(k, v, k_tile, v_tile, KEYS - place, j0 + KEYS)
        visit(k_tile, v_tile, place, j0, mine)
        place = KEYS - place
    # END SOLUTION
