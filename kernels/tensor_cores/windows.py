"""Device functions of the decoding kernels: a warp's products of keys with a window of queries.

Each warp copies rows to its own tiles in shared memory. The chunks of a row are swizzled instead of padded,
so that `ldmatrix` reads the same chunk of eight adjacent rows from different banks.
"""

import functools

from numba import cuda
from numpy import float32, int32, uint16, uint32

from kernels.tensor_cores.instructions import cp_async_16, ldmatrix_x4
from kernels.tensor_cores.tiles import ARITHMETIC, CHUNK


@cuda.jit(device=True)
def swizzled(chunk, row):
    """Return the column of a tile at which the swizzle stores the first element of a chunk of this row."""
    return (chunk ^ row & 7) * CHUNK


@functools.cache
def warp_copier(width, count):
    """Create copy(tile, base, x, batch, head, first), with which a warp copies rows of x[batch, head].

    Rows [first, first + count) go to tile[base : base + count]. Rows outside x and columns from d to `width`
    become zeros. The copies are asynchronous: the caller must commit them and
    wait.
    """
    chunks = width // CHUNK

    @cuda.jit(device=True)
    def copy(tile, base, x, batch, head, first):
        n, d, lane = x.shape[2], x.shape[3], cuda.threadIdx.x & 31
        chunk = lane % chunks
        for turn in range(count * chunks // 32):
            i = lane // chunks + turn * (32 // chunks)
            inside = 0 <= first + i and first + i < n and chunk * CHUNK < d
            row, column = first + i if inside else 0, chunk * CHUNK if inside else 0
            to, valid = base + i, int32(16) if inside else int32(0)
            cp_async_16(tile, (to, swizzled(chunk, to)), x, (batch, head, row, column), valid)

    return copy


@functools.cache
def window_loader(width, rows):
    """Create load_window(window, q, batch, head), which loads a lane's elements of the transposed window.

    The window, (rows, width), becomes the right operand of `mma`: register half · width / 8 + x holds columns
    8x + 2 (lane % 4) and the next one of row 8 half + lane // 4, for each half of 8 rows. q[batch, head]
    holds the last rows of the window; elements that correspond to no query are 0.
    """
    halves, pairs = -(-rows // 8), width // 8

    @cuda.jit(device=True)
    def load_window(window, q, batch, head):
        lane, count, d = cuda.threadIdx.x & 31, q.shape[2], q.shape[3]
        for half in range(halves):
            a = half * 8 + (lane >> 2)
            i = a - rows + count
            for x in range(pairs):
                c, both = x * 8 + (lane & 3) * 2, uint32(0)
                if i >= 0 and a < rows and c < d:
                    low, high = uint16(q[batch, head, i, c]), uint16(q[batch, head, i, c + 1])
                    both = uint32(low) | uint32(high) << uint32(16)
                window[half * pairs + x] = both

    return load_window


@functools.cache
def window_product(kind, width, rows):
    """Create multiply(s, tile, base, window), which stores in s the scores of the 16 keys in rows `base` to
    base + 15 of the tile.

    s: four elements per half of 8 rows of the window, in the accumulator layout; rows are keys.
    window: the result of `window_loader`.
    """
    mma, halves, pairs = ARITHMETIC[kind].mma, -(-rows // 8), width // 8

    @cuda.jit(device=True)
    def multiply(s, tile, base, window):
        lane = cuda.threadIdx.x & 31
        for x in range(4 * halves):
            s[x] = float32(0)
        for step in range(pairs // 2):
            at = base + (lane & 15), swizzled((lane >> 4) + step * 2, lane)
            a0, a1, a2, a3 = ldmatrix_x4(tile, at)
            for half in range(halves):
                x, y = half * 4, half * pairs + step * 2
                s[x], s[x + 1], s[x + 2], s[x + 3] = mma(
                    a0, a1, a2, a3, window[y], window[y + 1], s[x], s[x + 1], s[x + 2], s[x + 3]
                )

    return multiply
