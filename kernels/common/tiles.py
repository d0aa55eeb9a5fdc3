"""Device functions that several kernels share: update (m, l, o), and load tiles into shared memory."""

import math

from numba import cuda
from numpy import float32

MINUS_INFINITY = float32(-math.inf)
# numbers that come in one load of 16 bytes; also the padding of a chunk's row, with which eight rows begin in
# different banks
GROUP = 4
SECTOR = 8  # numbers in a sector of global memory
# no index into a tile is larger or negative: i & INDEX tells the compiler, which then drops its code for
# negative indices
INDEX = 127


@cuda.jit(device=True)
def weight(score, maximum):
    """exp(score - maximum), float32; 0 for a score of -inf, even if the maximum is -inf too."""
    if score == MINUS_INFINITY:
        return float32(0)
    return math.exp(score - maximum)


@cuda.jit(device=True)
def reciprocal(l):
    """1 / l, float32; 0 for l = 0, the sum of a row all of whose scores are -inf."""
    if l == float32(0):
        return float32(0)
    return float32(1) / l


@cuda.jit(device=True)
def load_tile(tile, rows, first):
    """tile = rows[first : first + size], with 0 for what lies outside `rows`; the threads of the block share
    the work.

    tile: (size, width) in shared memory; rows: (n, d) in global memory, d <= width; the block is
        one-dimensional. Neighbouring threads copy neighbouring numbers. The caller puts a barrier before
        (others may still read the old tile) and after.
    """
    size, width = tile.shape
    n, d = rows.shape
    for element in range(cuda.threadIdx.x, size * width, cuda.blockDim.x):
        i, c = element // width, element % width
        tile[i, c] = rows[first + i, c] if first + i < n and c < d else float32(0)


@cuda.jit(device=True)
def load_columns(chunk, rows, first, start):
    """chunk = rows[first : first + size, start : start + width], with 0 for what lies outside `rows` (n, d).
    chunk: (size, width + GROUP). SECTOR neighbouring threads share a row: 32 bytes a time."""
    n, d = rows.shape
    for i in range(cuda.threadIdx.x // SECTOR, chunk.shape[0], cuda.blockDim.x // SECTOR):
        inside = 0 <= first + i and first + i < n
        for c in range(0, chunk.shape[1] - GROUP, SECTOR):
            column = (c + cuda.threadIdx.x % SECTOR) & INDEX
            chunk[i, column] = (
                rows[first + i, start + column] if inside and start + column < d else float32(0)
            )
