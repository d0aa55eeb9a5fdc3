"""Device functions that several kernels share: weights of the online softmax, and tiles into shared
memory."""

import math

from numba import cuda
from numpy import float32

MINUS_INFINITY = float32(-math.inf)
# floats in a load of 16 bytes; also the padding of a chunk's row, so that eight rows begin in different banks
GROUP = 4
SECTOR = 8  # floats in a sector (32 bytes) of global memory
# the largest index into a tile: i & INDEX equals i, but tells the compiler that i is not negative, so that
# it drops its code for negative indices
INDEX = 127


@cuda.jit(device=True)
def weight(score, maximum):
    """Return exp(score - maximum), float32; 0 for a score of -inf, even if the maximum is -inf too."""
    if score == MINUS_INFINITY:
        return float32(0)
    return math.exp(score - maximum)


@cuda.jit(device=True)
def reciprocal(l):
    """Return 1 / l, float32; 0 for l = 0, the sum of a row whose scores are all -inf."""
    if l == float32(0):
        return float32(0)
    return float32(1) / l


@cuda.jit(device=True)
def load_tile(tile, rows, first):
    """Copy rows[first : first + size] to the tile, with 0 for elements outside `rows`.

    The threads of the block share the work, and neighbouring threads copy neighbouring elements (coalesced).
    The caller puts a barrier before the call, since other threads may still read the old tile, and one after
    it.

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
    """Copy rows[first : first + size, start : start + width] to the chunk (size, width + GROUP), 0 outside
    `rows` (n, d).

    SECTOR neighbouring threads share a row: they read 32 bytes in one request.
    """
    n, d = rows.shape
    for i in range(cuda.threadIdx.x // SECTOR, chunk.shape[0], cuda.blockDim.x // SECTOR):
        inside = 0 <= first + i and first + i < n
        for c in range(0, chunk.shape[1] - GROUP, SECTOR):
            column = (c + cuda.threadIdx.x % SECTOR) & INDEX
            chunk[i, column] = (
                rows[first + i, start + column] if inside and start + column < d else float32(0)
            )
