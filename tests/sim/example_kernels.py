"""Kernels that several tests and benchmarks use."""

from numba import cuda, float32


def tiled_matmul(TILE):
    """Return a kernel for c = a b with shared tiles.

    The matrices are square with a multiple of TILE rows, and a block has TILE × TILE threads.
    """

    @cuda.jit
    def matmul(a, b, c):
        tile_a = cuda.shared.array((TILE, TILE), float32)
        tile_b = cuda.shared.array((TILE, TILE), float32)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        row, column = cuda.blockIdx.y * TILE + y, cuda.blockIdx.x * TILE + x
        total = float32(0)
        for tile in range(a.shape[1] // TILE):
            tile_a[y, x] = a[row, tile * TILE + x]
            tile_b[y, x] = b[tile * TILE + y, column]
            cuda.syncthreads()
            for k in range(TILE):
                total += tile_a[y, k] * tile_b[k, x]
            cuda.syncthreads()
        c[row, column] = total

    return matmul


@cuda.jit
def grid_wide(x, y):
    """Read in each step an element that another block has written before the grid barrier."""
    group = cuda.cg.this_grid()
    i = cuda.grid(1)
    for step in range(3):
        x[i] = i + step
        group.sync()
        y[i] += x[x.shape[0] - 1 - i]
        group.sync()


def endless_with_loads(x):
    while x[0] == 0:
        pass


def endless_spin(x):
    cuda.syncthreads()
    while cuda.atomic.add(x, 0, 0) == 0:
        pass


def endless_barriers(x):
    while x[0] == 0:
        cuda.syncthreads()
