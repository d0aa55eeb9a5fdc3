"""Device functions of the tensor-core kernels: copies of tiles, the online softmax, products.

A warp owns `m_tiles` tiles of 16 rows. In the accumulator layout of `mma`
(`kernels.tensor_cores.instructions`), a lane holds elements of two rows per tile, 2 · m_tiles rows in total:
the lane's row r is in the upper (r % 2 = 0) or lower (r % 2 = 1) half of tile r // 2. Four lanes, a quad,
share a row. In an array of accumulators, each group of four elements belongs to one 16 × 8 block: two columns
of the upper row, then two of the lower.
"""

import functools
import math
from typing import NamedTuple

from numba import cuda
from numpy import float32, int16, int32, uint16, uint32

from kernels.common.tiles import MINUS_INFINITY, reciprocal
from kernels.tensor_cores.instructions import (
    cp_async_16,
    exp2_approx,
    ldmatrix_x4,
    ldmatrix_x4_trans,
    low_bf16,
    low_f16,
    mma_bf16,
    mma_bf16_k8,
    mma_f16,
    mma_f16_k8,
    pack_bf16,
    pack_f16,
)

PADDING = 8  # in elements: eight rows of a tile then start in different banks
CHUNK = 8  # 16-bit elements per 16-byte copy
FULL = 0xFFFFFFFF
SLACK = float32(8)  # weights may grow to 2^SLACK before the running maximum of their row is raised
LARGEST, LARGEST_HALF = float32(3e38), float32(65504)
LN2, LOG2E = float32(math.log(2)), float32(1 / math.log(2))


class Arithmetic(NamedTuple):
    """The intrinsics for one 16-bit type."""

    mma: object
    mma_k8: object
    pack: object


ARITHMETIC = {
    "bfloat16": Arithmetic(mma_bf16, mma_bf16_k8, pack_bf16),
    "float16": Arithmetic(mma_f16, mma_f16_k8, pack_f16),
}


LOW_HALF = {"bfloat16": low_bf16, "float16": low_f16}


@functools.cache
def widener(kind):
    """Create widened(x), the inverse of `rounder`: it converts the bits of a 16-bit value to float32."""
    if kind == "float32":

        @cuda.jit(device=True)
        def unchanged(x):
            return x

        return unchanged
    low = LOW_HALF[kind]

    @cuda.jit(device=True)
    def widened(x):
        return low(uint32(uint16(x)))

    return widened


@functools.cache
def rounder(kind):
    """Create rounded(x), which rounds a float32 to a 16-bit type and returns its bits as an int16.

    For "float32", it returns x.
    """
    if kind == "float32":

        @cuda.jit(device=True)
        def unchanged(x):
            return x

        return unchanged
    pack = ARITHMETIC[kind].pack

    @cuda.jit(device=True)
    def rounded(x):
        return int16(pack(x, x) & uint32(0xFFFF))

    return rounded


@cuda.jit(device=True)
def row_tile(serpentine):
    """Return the index of the tile of rows that this block owns, from blockIdx.y.

    The last tile comes first, because under a causal mask it sees the most keys. In serpentine order, the
    second half of the blocks counts up from tile 0; see `kernels.tensor_cores.launch.schedule`.
    """
    block, blocks = cuda.blockIdx.y, cuda.gridDim.y
    if serpentine and 2 * block >= blocks:
        return block - (blocks + 1) // 2
    return blocks - 1 - block


@cuda.jit(device=True)
def clamped(x):
    """Return x limited to the range of float16; NaN stays NaN."""
    return LARGEST_HALF if x > LARGEST_HALF else -LARGEST_HALF if x < -LARGEST_HALF else x


@functools.cache
def tile_copier(rows, width, threads):
    """Create copy(tile, base, x, batch, head, first), which copies rows [first, first + rows) of x[batch,
    head].

    The destination is tile[base : base + rows]; rows outside x become zeros. The copies are asynchronous: the
    caller must commit them and wait.
    """
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
            # neighbouring threads copy neighbouring chunks of a row
            part = cuda.threadIdx.x + turn * threads
            i, c = part // chunks, part % chunks * CHUNK
            inside = 0 <= first + i and first + i < n
            row = first + i if inside else 0  # a valid address, from which cp.async copies zero bytes
            cp_async_16(tile, (base + i, c), x, (batch, head, row, c), int32(16) if inside else int32(0))

    return copy


@functools.cache
def row_copier(width, threads):
    """Create copy(tile, base, count, x, batch, head, first), like `tile_copier`, but with a run-time number
    of rows.

    Rows of x have at most `width` elements, a multiple of CHUNK. The remaining columns of the tile become
    zeros.
    """
    chunks = width // CHUNK

    @cuda.jit(device=True)
    def copy(tile, base, count, x, batch, head, first):
        rows, d = x.shape[2], x.shape[3]
        for part in range(cuda.threadIdx.x, count * chunks, threads):
            # neighbouring threads copy neighbouring chunks of a row
            i, c = part // chunks, part % chunks * CHUNK
            inside = 0 <= first + i and first + i < rows and c < d
            row, column = first + i if inside else 0, c if inside else 0
            cp_async_16(tile, (base + i, c), x, (batch, head, row, column), int32(16) if inside else int32(0))

    return copy


def window_of(c_k, offset=0):
    """Return the number of 8-column blocks of S0 that one 8-column block of T depends on.

    offset: the column of the window with which the first column of the block begins.
    """
    return 2 if offset + c_k <= 9 else 3


@functools.cache
def tap_packer(kind, bits):
    """Create pack_taps(w, head, a, b, first, second), which packs two taps of a row into a register.

    w[head, a, b] is the first tap, and w[head, a, b + 1] the second. A tap is 0 unless `first` or `second`
    says that it exists.

    bits: w has 16-bit values as int16; otherwise it is float32.
    """
    pack = ARITHMETIC[kind].pack

    @cuda.jit(device=True)
    def pack_bits(w, head, a, b, first, second):
        low = uint32(w[head, a, b] & 0xFFFF) if first else uint32(0)
        high = uint32(w[head, a, b + 1] & 0xFFFF) if second else uint32(0)
        return low | high << uint32(16)

    @cuda.jit(device=True)
    def pack_numbers(w, head, a, b, first, second):
        low = w[head, a, b] if first else float32(0)
        high = w[head, a, b + 1] if second else float32(0)
        return pack(low, high)

    return pack_bits if bits else pack_numbers


@functools.cache
def tap_loader(kind, c_q, c_k, bits=False, offset=0):
    """Create load_taps(taps, w, head), which loads this lane's fragments of the banded matrices of taps.

    Row a of the taps becomes the banded (Toeplitz) matrix B[j', j] = w[a, j' - j - offset], the right operand
    of `mma` for a window of S0.

    bits: as for `tap_packer`.
    offset: as for `window_of`.
    """
    window, pack_taps = window_of(c_k, offset), tap_packer(kind, bits)

    @cuda.jit(device=True)
    def load_taps(taps, w, head):
        lane = cuda.threadIdx.x & 31
        for a in range(c_q):
            for block in range(window):
                # lane l holds rows 2 (l % 4) and 2 (l % 4) + 1 of column l / 4 of B
                tap = (lane & 3) * 2 + block * 8 - (lane >> 2) - offset
                first, second = 0 <= tap and tap < c_k, 0 <= tap + 1 and tap + 1 < c_k
                taps[a * window + block] = pack_taps(w, head, a, tap, first, second)

    return load_taps


@functools.cache
def softener(m_tiles, n_tiles, d_tiles):
    """Create soften(s, m, l, o, factor), which performs one step of the online softmax for a warp's rows.

    It replaces s, the lane's m_tiles × n_tiles × 4 scores, by 2^(factor · (s - m)), and updates m, l and o of
    its rows. m is equal in the four lanes of a row; l is the sum of this lane's elements only.

    m approximates the running maximum. m is raised, and l and o are rescaled, only if a weight would exceed
    2^SLACK. This is rare, so most tiles skip the shuffles and the rescaling.
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
        # 1. check whether any weight of the warp would exceed 2^SLACK
        for r in range(2 * m_tiles):
            grown = grown or largest_of(s, r) > m[r] + slack
        if cuda.any_sync(FULL, grown):  # the whole warp takes the same branch
            for r in range(2 * m_tiles):
                largest = largest_of(s, r)
                # the maximum over the quad that shares the row
                largest = max(largest, cuda.shfl_xor_sync(FULL, largest, 1))
                largest = max(largest, cuda.shfl_xor_sync(FULL, largest, 2))
                largest = max(m[r], largest)
                shrink = float32(0)  # before the first key, m is -inf, and -inf - -inf is NaN
                if m[r] != MINUS_INFINITY:
                    shrink = exp2_approx((m[r] - largest) * factor)
                m[r] = largest
                l[r] *= shrink
                for tile in range(d_tiles):
                    x = ((r >> 1) * d_tiles + tile) * 4 + (r & 1) * 2
                    o[x] *= shrink
                    o[x + 1] *= shrink
        # 2. compute the weights, and add them to this lane's part of the sum
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
    """Create add_pair(sums, at, a0, a1, a2, a3, b0, b1, b2, b3), which adds A [B B'] to sums[at : at + 8].

    B is in b0 and b1, and B' in b2 and b3: the four registers that one `ldmatrix_x4` loads.
    """
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
def product_maker(kind, m_tiles, n_tiles, depth):
    """Create multiply(c, a_tile, a_row, b_tile, b_row), which computes c = A Bᵀ.

    A is the 16 · m_tiles rows of a_tile starting at a_row, and B the 8 · n_tiles rows of b_tile starting at
    b_row.

    depth: the number of 16-column steps per row.
    """
    add_pair, numbers, a_numbers = mma_pair(kind), m_tiles * n_tiles * 4, m_tiles * 4

    @cuda.jit(device=True)
    def multiply(c, a_tile, a_row, b_tile, b_row):
        a = cuda.local.array(a_numbers, uint32)
        lane = cuda.threadIdx.x & 31
        for x in range(numbers):
            c[x] = float32(0)
        for d in range(depth):
            for piece in range(m_tiles):
                x, place = piece * 4, (a_row + piece * 16 + (lane & 15), d * 16 + (lane >> 4) * 8)
                a[x], a[x + 1], a[x + 2], a[x + 3] = ldmatrix_x4(a_tile, place)
            for pair in range(n_tiles // 2):
                b0, b1, b2, b3 = ldmatrix_x4(
                    b_tile, (b_row + pair * 16 + (lane & 7) + (lane >> 4) * 8, d * 16 + (lane >> 3 & 1) * 8)
                )
                for piece in range(m_tiles):
                    x, at = piece * 4, (piece * n_tiles + pair * 2) * 4
                    add_pair(c, at, a[x], a[x + 1], a[x + 2], a[x + 3], b0, b1, b2, b3)

    return multiply


@functools.cache
def score_adder(kind, m_tiles, n_tiles, depth):
    """Create add_scores(s, a, tile, first), which computes s = A Bᵀ.

    B is the 8 · n_tiles rows of the tile that start at row `first`.

    a: the lane's fragments of A as left operands of `mma`, m_tiles × depth × 4 registers.
    depth: the number of 16-column steps per row.
    """
    add_pair, numbers = mma_pair(kind), m_tiles * n_tiles * 4

    @cuda.jit(device=True)
    def add_scores(s, a, tile, first):
        lane = cuda.threadIdx.x & 31
        # Lane l supplies the address of row l % 8 of matrix l / 8. The four matrices are keys 0-7 with
        # columns 0-7, the same keys with columns 8-15, then keys 8-15 likewise.
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
    """Create add_values(o, p, tile, first), which computes o += P V.

    V is the 8 · n_tiles rows of the tile that start at row `first`.

    p: the lane's score accumulators. Their layout is the same as for the left operand of `mma`, so they only
        need rounding to 16 bits.
    """
    add_pair, pack = mma_pair(kind), ARITHMETIC[kind].pack

    @cuda.jit(device=True)
    def add_values(o, p, tile, first):
        lane = cuda.threadIdx.x & 31
        # Load V transposed: its rows are keys, and `mma` expects the right operand in column-major order.
        row, column = first + (lane & 15), (lane >> 4) * 8
        for step in range(n_tiles // 2):
            for pair in range(d_tiles // 2):
                b0, b1, b2, b3 = ldmatrix_x4_trans(tile, (row + step * 16, column + pair * 16))
                for piece in range(m_tiles):
                    x, y = (piece * n_tiles + step * 2) * 4, (piece * d_tiles + pair * 2) * 4
                    # two 16 × 8 accumulator blocks form one 16 × 16 left operand
                    a0, a1 = pack(p[x], p[x + 1]), pack(p[x + 2], p[x + 3])
                    a2, a3 = pack(p[x + 4], p[x + 5]), pack(p[x + 6], p[x + 7])
                    add_pair(o, y, a0, a1, a2, a3, b0, b1, b2, b3)

    return add_values


@cuda.jit(device=True)
def whole_sum(l):
    """Return the sum of l over the quad that shares a row, in each of its four lanes."""
    l += cuda.shfl_xor_sync(FULL, l, 1)
    return l + cuda.shfl_xor_sync(FULL, l, 2)


@functools.cache
def pair_storer(kind, wide):
    """Create store(out, batch, head, i, pair, x, y), which stores x and y as elements 2 · pair and 2 · pair +
    1 of row i.

    out: (B, H, N, d / 2), int32, two 16-bit values per element; or (B, H, N, d), float32, if `wide`.
    """
    pack = ARITHMETIC[kind].pack

    @cuda.jit(device=True)
    def store(out, batch, head, i, pair, x, y):
        if wide:
            out[batch, head, i, 2 * pair], out[batch, head, i, 2 * pair + 1] = x, y
        else:
            out[batch, head, i, pair] = int32(pack(x, y))

    return store


@functools.cache
def row_storer(kind, d_tiles, wide=False):
    """Create store_row(out, log_sum, batch, head, i, o, r, m, l, factor), which normalises and stores row i
    of O and L.

    r: the index of row i among the rows that the lane holds.
    out: (B, H, N, d / 2), int32, two 16-bit values per element; or (B, H, N, d), float32, if `wide`.
    """
    store = pair_storer(kind, wide)

    @cuda.jit(device=True)
    def store_row(out, log_sum, batch, head, i, o, r, m, l, factor):
        lane = cuda.threadIdx.x & 31
        total = whole_sum(l)
        share = reciprocal(total)
        if i < out.shape[2]:
            for tile in range(d_tiles):
                x = ((r >> 1) * d_tiles + tile) * 4 + (r & 1) * 2
                store(out, batch, head, i, tile * 4 + (lane & 3), o[x] * share, o[x + 1] * share)
            if lane & 3 == 0:  # one lane per quad. m is in units of 1 / factor, log_sum in nats
                log_sum[batch, head, i] = m * factor * LN2 + math.log(total)

    return store_row
