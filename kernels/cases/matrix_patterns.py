"""A kernel that loads 16-bit matrices with `ldmatrix`, from rows with two different pitches.

The simulator predicts the number of wavefronts (passes of the 32 banks), and a GPU's counters confirm it.
`ldmatrix` loads 8 × 8 matrices, whose rows are 16 bytes long and span four banks. Eight rows take one
wavefront if together they cover all 32 banks. They do not if the pitch is a multiple of 128 bytes, because
all eight rows then start in the same bank.
"""

import functools

from numba import cuda
from numpy import int16

from kernels.tensor_cores.instructions import ldmatrix_x4
from kernels.tensor_cores.tiles import PADDING

ROWS, COLUMNS = 32, 64  # rows and columns of a tile
# pitch in elements: the distance between rows
PITCHES = {"matrices": COLUMNS + PADDING, "matrices_conflict": COLUMNS}
PLACES = ROWS // 16 * (COLUMNS // 16)  # blocks of 16 × 16 elements in a tile, each four 8 × 8 matrices


@functools.cache
def matrix_kernel(pitch):
    """Return the kernel: x (tiles, ROWS, COLUMNS), int16 -> out (tiles, PLACES, 4, 32), int32, each lane's
    registers.

        grid    tiles
        block   32 threads
        shared  ROWS · pitch · 2 bytes, static
    """

    @cuda.jit
    def matrix_kernel(x, out):
        tile = cuda.shared.array((ROWS, pitch), int16, alignment=16)
        lane, block = cuda.threadIdx.x, cuda.blockIdx.x
        for row in range(ROWS):
            for column in range(lane, COLUMNS, 32):
                tile[row, column] = x[block, row, column]
        cuda.syncthreads()
        for place in range(PLACES):
            row, column = place // (COLUMNS // 16) * 16, place % (COLUMNS // 16) * 16
            a0, a1, a2, a3 = ldmatrix_x4(tile, (row + lane % 16, column + lane // 16 * 8))
            out[block, place, 0, lane] = a0
            out[block, place, 1, lane] = a1
            out[block, place, 2, lane] = a2
            out[block, place, 3, lane] = a3

    return matrix_kernel
