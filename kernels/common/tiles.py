"""Device functions that several kernels share: how (m, l, o) changes, and how a tile comes into shared
memory."""

import math

from numba import cuda
from numpy import float32

MINUS_INFINITY = float32(-math.inf)


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
