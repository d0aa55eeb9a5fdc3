"""Matrices of 16-bit numbers from shared memory into a warp's registers, from rows of two lengths: what the
simulator counts of `ldmatrix`, and a GPU's own counters confirm.

`ldmatrix` takes 8 × 8 matrices, whose rows are 16 bytes, four banks, each. Eight rows take one turn where
they lie in all 32 banks: not where a row of the tile is a multiple of 128 bytes long.
"""

import functools

from numba import cuda
from numpy import int16

from kernels.tensor_cores.instructions import ldmatrix_x4
from kernels.tensor_cores.tiles import PADDING

ROWS, COLUMNS = 32, 64  # of a tile
PITCHES = {"matrices": COLUMNS + PADDING, "matrices_conflict": COLUMNS}  # numbers from row to row
PLACES = ROWS // 16 * (COLUMNS // 16)  # of 16 × 16 numbers, four matrices, in a tile


@functools.cache
def matrix_kernel(pitch):
    """out (tiles, PLACES, 4, 32), int32 = registers of a warp's lanes; x: (tiles, ROWS, COLUMNS), int16.

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
