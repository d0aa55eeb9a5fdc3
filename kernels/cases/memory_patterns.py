"""Six small kernels that access memory in different orders.

Lesson 08 predicts their cost, the simulator counts it, and a GPU's counters confirm it.

All arrays are float32. In a block of TILE × TILE threads, a warp is a row: 32 threads that differ in
threadIdx.x. So the cost depends on the addresses of threads with adjacent x. Global memory is fetched in
sectors of 32 bytes, eight elements. Shared memory has 32 banks; words that are 32 elements apart are in the
same bank.
"""

from numba import cuda
from numpy import float32

THREADS = 256  # threads per block of the two copy kernels
# rows and columns of a tile; also the number of threads along each side of a block in the other kernels
TILE = 32
# elements per row of a padded tile; a named constant, because a shared array's shape cannot be an expression
PADDED = TILE + 1


def blocks(n):
    """Return the grid of the copies, for n elements."""
    return -(-n // THREADS)


def tiles(rows, columns):
    """Return the grid for the transposes of a (rows, columns) matrix, and for `matmul_tiled`, whose output
    has that shape."""
    return -(-columns // TILE), -(-rows // TILE)


@cuda.jit
def copy(x, out):
    """Copy x (n,) to out (n,); adjacent threads copy adjacent elements.

    A warp reads and writes 4 sectors, the minimum.

        grid    blocks(n)
        block   THREADS
        shared  none
    """
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = x[i]


@cuda.jit
def strided_copy(x, out, stride):
    """Copy every stride-th element of x (n · stride,) to out (n,).

    A warp reads min(4 · stride, 32) sectors and writes 4.

        grid    blocks(n)
        block   THREADS
        shared  none
    """
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = x[i * stride]


@cuda.jit
def transpose_naive(a, out):
    """Transpose a (rows, columns) into out (columns, rows) without shared memory.

    A warp reads a row, 4 sectors, and writes a column, 32 sectors.

        grid    tiles(rows, columns)
        block   (TILE, TILE)
        shared  none
    """
    column, row = cuda.grid(2)
    if row < a.shape[0] and column < a.shape[1]:
        out[column, row] = a[row, column]


@cuda.jit
def transpose_tiled(a, out):
    """Transpose through a tile in shared memory.

    A warp reads and writes rows of global memory, 4 sectors each. But a column of the tile lies in a single
        bank: reading it takes 32 wavefronts.

        grid    tiles(rows, columns)
        block   (TILE, TILE)
        shared  TILE · TILE · 4 bytes, static
    """
    tile = cuda.shared.array((TILE, TILE), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE  # the tile's corner
    if row + y < a.shape[0] and column + x < a.shape[1]:
        tile[y, x] = a[row + y, column + x]
    cuda.syncthreads()
    if row + x < a.shape[0] and column + y < a.shape[1]:
        out[column + y, row + x] = tile[x, y]


@cuda.jit
def transpose_padded(a, out):
    """Transpose through a tile that is one element wider.

    A column of this tile lies in all 32 banks, so reading it takes one wavefront.

        grid    tiles(rows, columns)
        block   (TILE, TILE)
        shared  TILE · PADDED · 4 bytes, static
    """
    tile = cuda.shared.array((TILE, PADDED), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE  # the tile's corner
    if row + y < a.shape[0] and column + x < a.shape[1]:
        tile[y, x] = a[row + y, column + x]
    cuda.syncthreads()
    if row + x < a.shape[0] and column + y < a.shape[1]:
        out[column + y, row + x] = tile[x, y]


@cuda.jit
def matmul_tiled(a, b, c):
    """Compute c (m, n) = a (m, k) b (k, n); TILE threads use each element in shared memory.

    An iteration of the loop reads 2 elements per thread from global memory, and 2 · TILE from shared memory.
    All lanes of a warp read the same element of `tile_a` (a broadcast) and a row of `tile_b`, without bank
    conflicts. Elements outside a or b count as 0.

        grid    tiles(m, n)
        block   (TILE, TILE)
        shared  2 · TILE · TILE · 4 bytes, static
    """
    tile_a = cuda.shared.array((TILE, TILE), float32)
    tile_b = cuda.shared.array((TILE, TILE), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    column, row = cuda.grid(2)
    total = float32(0)
    for first in range(0, a.shape[1], TILE):
        tile_a[y, x] = a[row, first + x] if row < a.shape[0] and first + x < a.shape[1] else float32(0)
        tile_b[y, x] = b[first + y, column] if first + y < b.shape[0] and column < b.shape[1] else float32(0)
        cuda.syncthreads()  # the tiles are loaded
        for k in range(TILE):
            total += tile_a[y, k] * tile_b[k, x]
        cuda.syncthreads()  # all threads have read the tiles
    if row < c.shape[0] and column < c.shape[1]:
        c[row, column] = total
