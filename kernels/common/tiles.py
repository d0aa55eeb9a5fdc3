"""Device functions shared by several kernels: online-softmax weights, and copies into shared memory."""

import math

from numba import cuda
from numpy import float32

MINUS_INFINITY = float32(-math.inf)
# Floats per 16-byte load. Rows of a chunk are padded by the same number, so that eight rows start in
# different banks.
GROUP = 4
SECTOR = 8  # floats per sector (32 bytes) of global memory
# Largest index into a tile, as a bit mask. For valid indices, i & INDEX equals i. The mask tells the compiler
# that i is not negative, so the compiler omits the code for Python's negative indices.
INDEX = 127


@cuda.jit(device=True)
def weight(score, maximum):
    """Return exp(score - maximum) in float32, and 0 for a score of -inf even if the maximum is -inf."""
    # -inf - -inf is NaN
    if score == MINUS_INFINITY:
        return float32(0)
    return math.exp(score - maximum)


@cuda.jit(device=True)
def reciprocal(l):
    """Return 1 / l in float32, and 0 for l = 0, which is the sum of a row whose scores are all -inf."""
    if l == float32(0):
        return float32(0)
    return float32(1) / l


@cuda.jit(device=True)
def load_tile(tile, rows, first):
    """Copy rows[first : first + size] to the tile, with 0 for elements outside `rows`.

    All threads of the block share the work; adjacent threads copy adjacent elements (coalesced). The caller
    must synchronise the block before the call, because other threads may still read the old tile, and again
    after it.

    tile: (size, width), shared memory.
    rows: (n, d), global memory, d <= width.
    """
    size, width = tile.shape
    n, d = rows.shape
    for element in range(cuda.threadIdx.x, size * width, cuda.blockDim.x):
        i, c = element // width, element % width
        tile[i, c] = rows[first + i, c] if first + i < n and c < d else float32(0)


@cuda.jit(device=True)
def load_columns(chunk, rows, first, start):
    """Copy rows[first : first + size, start : start + width] to the chunk, with 0 for elements outside
    `rows`.

    SECTOR adjacent threads copy one row, so that each request reads 32 contiguous bytes.

    chunk: (size, width + GROUP), shared memory.
    rows: (n, d), global memory.
    """
    n, d = rows.shape
    for i in range(cuda.threadIdx.x // SECTOR, chunk.shape[0], cuda.blockDim.x // SECTOR):
        inside = 0 <= first + i and first + i < n
        for c in range(0, chunk.shape[1] - GROUP, SECTOR):
            column = (c + cuda.threadIdx.x % SECTOR) & INDEX
            chunk[i, column] = (
                rows[first + i, start + column] if inside and start + column < d else float32(0)
            )
