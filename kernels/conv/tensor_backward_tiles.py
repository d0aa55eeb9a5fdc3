"""Device functions and tile sizes of the tensor-core backward kernel of convolutional attention.

A warp computes 16 rows of a tile of scores. Shared memory holds the latest columns of S0 and dT, in ring
buffers of RING blocks of eight columns. `tensor_backward.py` describes how the kernel uses these functions.
"""

import functools
from typing import NamedTuple

from numba import cuda
from numpy import float32, int32, uint32

from kernels.tensor_cores.instructions import (
    cp_async_4,
    ldmatrix_x2,
    ldmatrix_x2_trans,
    ldmatrix_x4,
    ldmatrix_x4_trans,
)
from kernels.tensor_cores.tiles import ARITHMETIC, pair_storer, window_of

COLUMNS = 32  # columns per iteration
BLOCKS = COLUMNS // 8  # blocks of eight columns per iteration
RING = 2 * BLOCKS  # blocks per row of the ring buffers of S0 and dT
# words per row of a ring buffer, two elements each; the padding puts eight rows in different banks
PITCH = RING * 4 + 4
NUMBERS = BLOCKS * 4  # accumulators per lane for 16 rows and COLUMNS columns
SUMS = 8  # two independent chains of products, each with four accumulators per lane for a 16 × 8 result


class Frame(NamedTuple):
    """The size of the taps in the kernel's orientation, and their reach towards smaller indices."""

    row_taps: int
    column_taps: int
    rows_before: int
    columns_before: int


def frame_of(c_q, c_k, of_keys):
    left = (c_k - 1) // 2
    return Frame(c_k, c_q, left, c_q - 1) if of_keys else Frame(c_q, c_k, c_q - 1, left)


def owned_rows(frame, warps):
    return warps * 16 - 2 * (frame.row_taps - 1)


# Products and convolutions of a warp ------------------------------------------------------------------------


@cuda.jit(device=True)
def place_of(block):
    """Return the first column of a block in its ring buffer, in pairs of elements."""
    return (block & (RING - 1)) * 4


@cuda.jit(device=True)
def row_of(z):
    """Return the row of a lane's accumulator z, relative to the warp's first row."""
    return (z >> 1 & 1) * 8 + ((cuda.threadIdx.x & 31) >> 2)


@cuda.jit(device=True)
def column_of(z):
    """Return the column of a lane's accumulator z, relative to the iteration's first column."""
    return (z >> 2) * 8 + (z & 1) + (cuda.threadIdx.x & 3) * 2


@functools.cache
def score_storer(kind):
    """Create store_scores(tile, x, warp_row, block), which stores a warp's rows of a tile in shared memory,
    rounded to 16 bits."""
    pack = ARITHMETIC[kind].pack

    @cuda.jit(device=True)
    def store_scores(tile, x, warp_row, block):
        for z in range(0, NUMBERS, 2):
            place = place_of(block + (z >> 2)) + (cuda.threadIdx.x & 3)
            tile[warp_row + row_of(z), place] = int32(pack(x[z], x[z + 1]))

    return store_scores


@functools.cache
def window_loader(blocks, transposed):
    """Create load(x, tile, row, block), which loads 16 rows of `blocks` consecutive 8-column blocks.

    x[2 b] and x[2 b + 1] are the upper and the lower half of block b.
    """
    x4, x2 = (ldmatrix_x4_trans, ldmatrix_x2_trans) if transposed else (ldmatrix_x4, ldmatrix_x2)

    @cuda.jit(device=True)
    def load(x, tile, row, block):
        lane = cuda.threadIdx.x & 31
        for pair in range(blocks // 2):
            y = pair * 4
            x[y], x[y + 1], x[y + 2], x[y + 3] = x4(
                tile, (row + (lane & 15), place_of(block + pair * 2 + (lane >> 4)))
            )
        if blocks & 1:
            x[blocks * 2 - 2], x[blocks * 2 - 1] = x2(tile, (row + (lane & 15), place_of(block + blocks - 1)))

    return load


@functools.cache
def convolver(kind, row_taps, column_taps):
    """Create convolve(t, tile, row, block, bands), which computes t = T of the 16 rows that start at `row`.

    For each row shift, 16 rows of the tile are multiplied by the band of that shift. The window of t's first
    column starts window - 1 blocks before `block`.
    """
    mma, mma_k8, _ = ARITHMETIC[kind]
    window = window_of(column_taps)
    blocks = BLOCKS + window - 1
    s_numbers, load = 2 * blocks, window_loader(blocks, False)

    @cuda.jit(device=True)
    def convolve(t, tile, row, block, bands):
        s = cuda.local.array(s_numbers, uint32)
        lane = cuda.threadIdx.x & 31
        for x in range(NUMBERS):
            t[x] = float32(0)
        for a in range(row_taps):
            load(s, tile, row + a, block - (window - 1))
            b0, b1 = bands[a * window, lane], bands[a * window + 1, lane]
            # the window of block n starts at block n: 16 columns of S0 in four registers
            for n in range(BLOCKS):
                x, y = 2 * n, 4 * n
                t[y], t[y + 1], t[y + 2], t[y + 3] = mma(
                    s[x], s[x + 1], s[x + 2], s[x + 3], b0, b1, t[y], t[y + 1], t[y + 2], t[y + 3]
                )
            if window == 3:
                b2 = bands[a * window + 2, lane]
                for n in range(BLOCKS):
                    x, y = 2 * n + 4, 4 * n
                    t[y], t[y + 1], t[y + 2], t[y + 3] = mma_k8(
                        s[x], s[x + 1], b2, t[y], t[y + 1], t[y + 2], t[y + 3]
                    )

    return convolve


@functools.cache
def tap_gradient_adder(kind, row_taps, column_taps, owned, warps):
    """Create add_tap_gradients(sums, s_tile, g_tile, block, last), which accumulates the gradient of the
    taps.

    A warp computes the row shifts warp, warp + WARPS, …, over owned rows before `last`, with SUMS · (window -
    1) accumulators each.

    Each `mma` must wait for the previous one on the same accumulators. Two independent chains, for even and
    odd blocks, halve this wait.
    """
    mma = ARITHMETIC[kind].mma
    window, shifts = window_of(column_taps), -(-row_taps // warps)
    blocks, step = BLOCKS + window - 1, SUMS * (window - 1)
    s_numbers, g_numbers = 2 * blocks, 2 * BLOCKS
    load_s, load_g = window_loader(blocks, True), window_loader(BLOCKS, True)

    @cuda.jit(device=True)
    def add_tap_gradients(sums, s_tile, g_tile, block, last):
        s = cuda.local.array(s_numbers, uint32)
        g = cuda.local.array(g_numbers, uint32)
        pair_of_rows, warp = (cuda.threadIdx.x & 3) * 2, cuda.threadIdx.x >> 5
        for row in range(0, min(owned, last), 16):
            load_g(g, g_tile, row, block)
            # row `owned` and the rows after it belong to the next block: use zeros instead
            if row + 16 > owned:
                for x in range(g_numbers):
                    if row + pair_of_rows + (x & 1) * 8 >= owned:
                        g[x] = uint32(0)
            for shift in range(shifts):
                a = warp + shift * warps
                if a < row_taps:
                    load_s(s, s_tile, row + a, block - (window - 1))
                    # separate accumulators for even and odd blocks: two independent chains
                    for n in range(BLOCKS):
                        x, z = 2 * n, shift * step + (n & 1) * 4
                        sums[z], sums[z + 1], sums[z + 2], sums[z + 3] = mma(
                            s[x], s[x + 2], s[x + 1], s[x + 3], g[x], g[x + 1],
                            sums[z], sums[z + 1], sums[z + 2], sums[z + 3],
                        )  # fmt: skip
                        if window == 3:
                            z += SUMS
                            sums[z], sums[z + 1], sums[z + 2], sums[z + 3] = mma(
                                s[x + 4], uint32(0), s[x + 5], uint32(0), g[x], g[x + 1],
                                sums[z], sums[z + 1], sums[z + 2], sums[z + 3],
                            )  # fmt: skip

    return add_tap_gradients


# From and to global memory ----------------------------------------------------------------------------------


@functools.cache
def band_loader(kind, frame, of_keys, bits=False):
    """Create load_bands(bands, w, head, flipped), which stores the fragments of the tap bands, one register
    per lane.

    The bands are right operands of `mma` for a window.

    bits: w has 16-bit values as int16; otherwise it is float32.
    """
    pack, window = ARITHMETIC[kind].pack, window_of(frame.column_taps)
    row_taps, column_taps = frame.row_taps, frame.column_taps
    nothing = uint32(0) if bits else float32(0)

    @cuda.jit(device=True)
    def tap_of(w, head, a, b, flipped):
        """Return tap (a, b) in the kernel's orientation, and 0 outside the taps."""
        if b < 0 or b >= column_taps:
            return nothing
        if flipped:  # the transposed convolution reads the taps in reverse
            a, b = row_taps - 1 - a, column_taps - 1 - b
        tap = w[head, b, a] if of_keys else w[head, a, b]
        return uint32(tap & 0xFFFF) if bits else tap

    @cuda.jit(device=True)
    def load_bands(bands, w, head, flipped):
        for part in range(cuda.threadIdx.x, row_taps * window * 32, cuda.blockDim.x):
            # lane l holds rows 2 (l % 4) and 2 (l % 4) + 1 of column l / 4 of the band
            number, lane = part >> 5, part & 31
            a, b = number // window, (lane & 3) * 2 + number % window * 8 - (lane >> 2)
            low, high = tap_of(w, head, a, b, flipped), tap_of(w, head, a, b + 1, flipped)
            bands[number, lane] = low | high << uint32(16) if bits else pack(low, high)

    return load_bands


@functools.cache
def number_copier(threads):
    """Create copy_numbers(tile, base, log_sum, delta, batch, head, first), which starts to copy L and D for
    the columns of an iteration."""
    two_steps = 2 * COLUMNS

    @cuda.jit(device=True)
    def copy_numbers(tile, base, log_sum, delta, batch, head, first):
        n = log_sum.shape[2]
        for part in range(cuda.threadIdx.x, two_steps, threads):
            j = first + part % COLUMNS
            inside = 0 <= j and j < n
            place, valid = (batch, head, j if inside else 0), int32(4) if inside else int32(0)
            if part < COLUMNS:
                cp_async_4(tile, (0, base + part), log_sum, place, valid)
            else:
                cp_async_4(tile, (1, base + part - COLUMNS), delta, place, valid)

    return copy_numbers


@functools.cache
def gradient_storer(kind, d_tiles, wide=False):
    """Create store(out, batch, head, i, o, half, factor), which stores factor · o of this lane's row as row
    i.

    out: (B, H, N, d / 2), int32, two 16-bit values per element; or (B, H, N, d), float32, if `wide`.
    """
    store_pair = pair_storer(kind, wide)

    @cuda.jit(device=True)
    def store(out, batch, head, i, o, half, factor):
        lane = cuda.threadIdx.x & 31
        for tile in range(d_tiles):
            x = tile * 4 + half * 2
            store_pair(out, batch, head, i, tile * 4 + (lane & 3), o[x] * factor, o[x + 1] * factor)

    return store
