"""What the kernels on tensor cores share: copies of tiles, the online softmax of a warp's rows, and what
comes of them. A warp owns `m_tiles` pieces of 16 rows; a lane holds two rows of each, numbers as `mma` has
them (kernels.tensor_cores.instructions), so its row r is half r % 2 of piece r // 2.
"""

import functools
import math
from typing import NamedTuple

from numba import cuda
from numpy import float32, int32

from kernels.common.tiles import MINUS_INFINITY, reciprocal
from kernels.tensor_cores.instructions import (
    cp_async_16,
    exp2_approx,
    ldmatrix_x4,
    ldmatrix_x4_trans,
    mma_bf16,
    mma_bf16_k8,
    mma_f16,
    mma_f16_k8,
    pack_bf16,
    pack_f16,
)

PADDING = 8  # numbers by which a row of a tile is longer: rows then begin in different banks
CHUNK = 8  # 16-bit numbers in a copy of 16 bytes
FULL = 0xFFFFFFFF
SLACK = float32(8)  # a weight may grow to 2^SLACK before its row takes a new maximum
LARGEST, LARGEST_HALF = float32(3e38), float32(65504)
LN2, LOG2E = float32(math.log(2)), float32(1 / math.log(2))


class Arithmetic(NamedTuple):
    """The instructions for one type of 16-bit numbers."""

    mma: object
    mma_k8: object
    pack: object


ARITHMETIC = {
    "bfloat16": Arithmetic(mma_bf16, mma_bf16_k8, pack_bf16),
    "float16": Arithmetic(mma_f16, mma_f16_k8, pack_f16),
}


@cuda.jit(device=True)
def clamped(x):
    """x, as far as float16 goes; NaN stays."""
    return LARGEST_HALF if x > LARGEST_HALF else -LARGEST_HALF if x < -LARGEST_HALF else x


@functools.cache
def tile_copier(rows, width, threads):
    """copy(tile, base, x, batch, head, first): rows [first : first + rows] of x[batch, head] are on the way
    to tile[base : base + rows], zeros for those that x lacks."""
    chunks = width // CHUNK
    if rows * chunks % threads:
        raise ValueError(
            f"{threads} threads share {rows} rows of {chunks} copies each; wanted a number of threads that"
            f" divides {rows * chunks}"
        )

    @cuda.jit(device=True)
    def copy(tile, base, x, batch, head, first):
        n = x.shape[2]
        for turn in range(rows * chunks // threads):
            part = cuda.threadIdx.x + turn * threads
            i, c = part // chunks, part % chunks * CHUNK
            inside = 0 <= first + i and first + i < n
            row = first + i if inside else 0
            cp_async_16(tile, (base + i, c), x, (batch, head, row, c), int32(16) if inside else int32(0))

    return copy


@functools.cache
def row_copier(width, threads):
    """copy(tile, base, count, x, batch, head, first): as `tile_copier`'s, for any count of rows of at most
    `width` numbers, a multiple of CHUNK: tile[base : base + count] gets zeros beyond them."""
    chunks = width // CHUNK

    @cuda.jit(device=True)
    def copy(tile, base, count, x, batch, head, first):
        rows, d = x.shape[2], x.shape[3]
        for part in range(cuda.threadIdx.x, count * chunks, threads):
            i, c = part // chunks, part % chunks * CHUNK
            inside = 0 <= first + i and first + i < rows and c < d
            row, column = first + i if inside else 0, c if inside else 0
            cp_async_16(tile, (base + i, c), x, (batch, head, row, column), int32(16) if inside else int32(0))

    return copy


def window_of(c_k):
    """Blocks of eight columns of S0 that eight columns of T need: they begin with the first of the window."""
    return 2 if c_k <= 9 else 3


@functools.cache
def tap_loader(kind, c_q, c_k):
    """load_taps(taps, w, head): this lane's part of the band of each row of taps, B[j', j] = w[a, j' - j],
    the right operand of `mma` for a window of S0."""
    pack, window = ARITHMETIC[kind].pack, window_of(c_k)

    @cuda.jit(device=True)
    def load_taps(taps, w, head):
        lane = cuda.threadIdx.x & 31
        for a in range(c_q):
            for block in range(window):
                tap = (lane & 3) * 2 + block * 8 - (lane >> 2)
                low = w[head, a, tap] if 0 <= tap and tap < c_k else float32(0)
                high = w[head, a, tap + 1] if 0 <= tap + 1 and tap + 1 < c_k else float32(0)
                taps[a * window + block] = pack(low, high)

    return load_taps


@functools.cache
def softener(m_tiles, n_tiles, d_tiles):
    """soften(s, m, l, o, factor): s (m_tiles × n_tiles × 4 numbers of a lane) becomes 2^(factor · (s - m)),
    and m, l and o of its rows follow.

    m is near each row's maximum, the same for the four lanes of the row. It is raised, and l and o shrink,
    only where a power exceeds 2^SLACK, which is rare. l is the sum of what this lane has.
    """

    @cuda.jit(device=True)
    def largest_of(s, r):
        largest = MINUS_INFINITY
        for tile in range(n_tiles):
            x = ((r >> 1) * n_tiles + tile) * 4 + (r & 1) * 2
            largest = max(largest, max(s[x], s[x + 1]))
        return largest

    @cuda.jit(device=True)
    def soften(s, m, l, o, factor):
        slack, grown = min(SLACK / factor, LARGEST), False
        for r in range(2 * m_tiles):
            grown = grown or largest_of(s, r) > m[r] + slack
        if cuda.any_sync(FULL, grown):
            for r in range(2 * m_tiles):
                largest = largest_of(s, r)
                largest = max(largest, cuda.shfl_xor_sync(FULL, largest, 1))
                largest = max(largest, cuda.shfl_xor_sync(FULL, largest, 2))
                largest = max(m[r], largest)
                shrink = float32(0)
                if m[r] != MINUS_INFINITY:
                    shrink = exp2_approx((m[r] - largest) * factor)
                m[r] = largest
                l[r] *= shrink
                for tile in range(d_tiles):
                    x = ((r >> 1) * d_tiles + tile) * 4 + (r & 1) * 2
                    o[x] *= shrink
                    o[x + 1] *= shrink
        for r in range(2 * m_tiles):
            base = float32(0) if m[r] == MINUS_INFINITY else m[r]
            for tile in range(n_tiles):
                x = ((r >> 1) * n_tiles + tile) * 4 + (r & 1) * 2
                s[x] = exp2_approx((s[x] - base) * factor)
                s[x + 1] = exp2_approx((s[x + 1] - base) * factor)
                l[r] += s[x] + s[x + 1]

    return soften


@functools.cache
def mma_pair(kind):
    """add_pair(sums, at, a0 … a3, b0 … b3): sums[at : at + 8] of a lane += A [B B'], with B of b0 and b1 and
    B' of b2 and b3."""
    mma = ARITHMETIC[kind].mma

    @cuda.jit(device=True)
    def add_pair(sums, at, a0, a1, a2, a3, b0, b1, b2, b3):
        sums[at], sums[at + 1], sums[at + 2], sums[at + 3] = mma(
            a0, a1, a2, a3, b0, b1, sums[at], sums[at + 1], sums[at + 2], sums[at + 3]
        )
        at += 4
        sums[at], sums[at + 1], sums[at + 2], sums[at + 3] = mma(
            a0, a1, a2, a3, b2, b3, sums[at], sums[at + 1], sums[at + 2], sums[at + 3]
        )

    return add_pair


@functools.cache
def score_adder(kind, m_tiles, n_tiles, depth):
    """add_scores(s, a, tile, first): s = A Bᵀ for B the 8 · n_tiles rows of tile[first:], `depth` matrices of
    16 columns; a: a lane's part of A as left operands of `mma`, m_tiles × depth × 4 words."""
    add_pair, numbers = mma_pair(kind), m_tiles * n_tiles * 4

    @cuda.jit(device=True)
    def add_scores(s, a, tile, first):
        lane = cuda.threadIdx.x & 31
        row, column = first + (lane & 7) + (lane >> 4) * 8, (lane >> 3 & 1) * 8
        for x in range(numbers):
            s[x] = float32(0)
        for d in range(depth):
            for pair in range(n_tiles // 2):
                b0, b1, b2, b3 = ldmatrix_x4(tile, (row + pair * 16, column + d * 16))
                for piece in range(m_tiles):
                    y, at = (piece * depth + d) * 4, (piece * n_tiles + pair * 2) * 4
                    add_pair(s, at, a[y], a[y + 1], a[y + 2], a[y + 3], b0, b1, b2, b3)

    return add_scores


@functools.cache
def value_adder(kind, m_tiles, n_tiles, d_tiles):
    """add_values(o, p, tile, first): o += p V for the 8 · n_tiles rows of V from tile[first] on."""
    add_pair, pack = mma_pair(kind), ARITHMETIC[kind].pack

    @cuda.jit(device=True)
    def add_values(o, p, tile, first):
        lane = cuda.threadIdx.x & 31
        row, column = first + (lane & 15), (lane >> 4) * 8
        for step in range(n_tiles // 2):
            for pair in range(d_tiles // 2):
                b0, b1, b2, b3 = ldmatrix_x4_trans(tile, (row + step * 16, column + pair * 16))
                for piece in range(m_tiles):
                    x, y = (piece * n_tiles + step * 2) * 4, (piece * d_tiles + pair * 2) * 4
                    a0, a1 = pack(p[x], p[x + 1]), pack(p[x + 2], p[x + 3])
                    a2, a3 = pack(p[x + 4], p[x + 5]), pack(p[x + 6], p[x + 7])
                    add_pair(o, y, a0, a1, a2, a3, b0, b1, b2, b3)

    return add_values


@cuda.jit(device=True)
def whole_sum(l):
    """The sum of a row, in each of its four lanes."""
    l += cuda.shfl_xor_sync(FULL, l, 1)
    return l + cuda.shfl_xor_sync(FULL, l, 2)


@functools.cache
def row_storer(kind, d_tiles):
    """store_row(out, log_sum, batch, head, i, o, r, m, l, factor): O and L of this lane's row r, which is row
    i of the output.

    out: (B, H, N, d / 2) int32, two numbers each.
    """
    pack = ARITHMETIC[kind].pack

    @cuda.jit(device=True)
    def store_row(out, log_sum, batch, head, i, o, r, m, l, factor):
        lane = cuda.threadIdx.x & 31
        total = whole_sum(l)
        share = reciprocal(total)
        if i < out.shape[2]:
            for tile in range(d_tiles):
                x = ((r >> 1) * d_tiles + tile) * 4 + (r & 1) * 2
                out[batch, head, i, tile * 4 + (lane & 3)] = int32(pack(o[x] * share, o[x + 1] * share))
            if lane & 3 == 0:
                log_sum[batch, head, i] = m * factor * LN2 + math.log(total)

    return store_row
