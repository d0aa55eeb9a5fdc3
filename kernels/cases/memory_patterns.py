"""Six small kernels that differ in how they go through memory: what lesson 08 predicts, the simulator counts,
and a GPU's own counters confirm.

All arrays are float32. A warp is 32 threads that differ in threadIdx.x, for in a block of TILE × TILE threads
a warp is a row. So what counts is what happens when x grows by one: global memory is fetched in sectors of 32
bytes, eight numbers; shared memory has 32 banks, and words that are 32 numbers apart lie in the same bank.
"""

from numba import cuda
from numpy import float32

THREADS = 256  # in a block of the two copies
TILE = 32  # rows and columns of a tile; and threads along each side of a block of the others
PADDED = TILE + 1  # numbers in a row of a padded tile: a name, for a shared array takes no sums in its shape


def blocks(n):
    """The grid of the copies, for n elements."""
    return -(-n // THREADS)


def tiles(rows, columns):
    """The grid of the transposes, for a matrix (rows, columns) to read, and of `matmul_tiled`, for one to
    write."""
    return -(-columns // TILE), -(-rows // TILE)


@cuda.jit
def copy(x, out):
    """out (n,) = x (n,): neighbouring threads, neighbouring numbers; 4 sectors a warp, in and out, the fewest
    there can be.

    grid    blocks(n)
    block   THREADS
    shared  none
    """
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = x[i]


@cuda.jit
def strided_copy(x, out, stride):
    """out (n,) = every stride-th number of x (n · stride,); a warp reads from min(4 · stride, 32) sectors and
    writes to 4.

    grid    blocks(n)
    block   THREADS
    shared  none
    """
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = x[i * stride]


@cuda.jit
def transpose_naive(a, out):
    """out (columns, rows) = a (rows, columns), transposed: a warp reads a row, 4 sectors, and writes a
    column, 32 sectors.

    grid    tiles(rows, columns)
    block   (TILE, TILE)
    shared  none
    """
    column, row = cuda.grid(2)
    if row < a.shape[0] and column < a.shape[1]:
        out[column, row] = a[row, column]


@cuda.jit
def transpose_tiled(a, out):
    """The same by way of shared memory: rows come in and rows go out, 4 sectors each; but a column of the
    tile is one bank, 32 turns.

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
    """The same with a tile one number wider: a column of the tile goes through all 32 banks, one turn.

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
    """c (m, n) = a (m, k) b (k, n): every number fetched into shared memory is used by TILE threads.

    A turn of the loop reads 2 numbers a thread from global memory and 2 · TILE from shared: of `tile_a` all
    lanes of a warp want the same one, of `tile_b` a row; no conflicts. What lies outside a or b counts as 0.

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
        cuda.syncthreads()  # loaded
        for k in range(TILE):
            total += tile_a[y, k] * tile_b[k, x]
        cuda.syncthreads()  # used up
    if row < c.shape[0] and column < c.shape[1]:
        c[row, column] = total
