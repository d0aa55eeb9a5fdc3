"""Device functions of the backward kernel that stores the gradients of scores in bands.

A warp computes 32 rows of scores as two matrices of 16: one of the even rows, one of the odd rows. A row
shift by two then moves a matrix by one row, so the same 16 × 16 fragment of S0 serves the even rows with row
a of the taps, and the odd rows with row a - 1. This halves the loads from shared memory.

A ring buffer holds the latest columns of S0 or dT as (RING, 2, rows / 2, 4) words: blocks of eight columns,
with the even rows before the odd rows, so that every 8 × 8 matrix is 128 adjacent bytes.
"""

import functools

from numba import cuda
from numpy import float32, int32, uint32

from kernels.conv.banded_products import SIDE
from kernels.tensor_cores.instructions import (
    cp_async_16,
    ldmatrix_x2,
    ldmatrix_x2_trans,
    ldmatrix_x4,
    ldmatrix_x4_trans,
)
from kernels.tensor_cores.tiles import ARITHMETIC, CHUNK, window_of
from kernels.tensor_cores.warpgroup import wgmma
from kernels.tensor_cores.warpgroup_tiles import PTX_KIND, all_of, generated

COLUMNS = 32  # columns per iteration
BLOCKS = COLUMNS // 8  # blocks of eight columns per iteration
RING = BLOCKS + 2  # blocks of a ring buffer
PARITIES = 2  # even and odd rows
HALF = BLOCKS * 4  # accumulators per lane for 16 rows and COLUMNS columns
NUMBERS = PARITIES * HALF
WARP_ROWS = 16 * PARITIES


# Tiles of the products Q Kᵀ and dO Vᵀ -----------------------------------------------------------------------
#
# A tile is divided into pieces of SIDE columns, 128 bytes per row, with the 128-byte swizzle.


@functools.cache
def tile_copier(rows, width, parities, threads):
    """Create copy(tile, x, batch, head, first), which copies rows [first, first + rows) of x[batch, head] to
    a tile (parities, pieces, rows / parities, SIDE). Rows outside x become zeros.

    parities: PARITIES if the tile has the even rows, then the odd rows; otherwise 1.

    The copies are asynchronous: the caller must commit them and wait.
    """
    chunks = width // CHUNK

    @cuda.jit(device=True)
    def copy(tile, x, batch, head, first):
        n = x.shape[2]
        for turn in range(rows * chunks // threads):
            number = cuda.threadIdx.x + turn * threads
            i, chunk = number // chunks, number % chunks
            inside = 0 <= first + i and first + i < n
            source = batch, head, first + i if inside else 0, chunk * CHUNK
            parity, row = i % parities, i // parities
            place = parity, chunk >> 3, row, ((chunk ^ row) & 7) * CHUNK
            cp_async_16(tile, place, x, source, int32(16) if inside else int32(0))

    return copy


@functools.cache
def product_starter(kind, width, half_rows):
    """Create start(even, odd, of_x, of_y), which starts the products of the even and the odd rows of a tile
    with COLUMNS rows of another tile, and returns their accumulators.

    of_x: the descriptor of the warp group's first even row, in a tile with half_rows even rows.
    of_y: the descriptor of the tile of columns.
    """
    product, pieces = wgmma(COLUMNS, PTX_KIND[kind]), width // SIDE
    lines = ["even = wgmma_fence(even)", "odd = wgmma_fence(odd)"]
    for parity, name in enumerate(("even", "odd")):
        for column in range(0, width, 16):
            piece, inside = divmod(column, SIDE)
            at_x = ((parity * pieces + piece) * half_rows * SIDE + inside) * 2 // 16
            at_y = (piece * COLUMNS * SIDE + inside) * 2 // 16
            lines.append(
                f"{name} = product({name}, of_x + uint64({at_x}), of_y + uint64({at_y}), {column > 0})"
            )
    lines += ["wgmma_commit()", "return even, odd"]
    return generated("start(even, odd, of_x, of_y)", lines, product=product)


def accumulator_taker():
    """Create take(x, even, odd), which copies the accumulators of both products to x."""
    lines = [f"x[{z}] = {'odd' if z >= HALF else 'even'}[{z % HALF}]" for z in range(NUMBERS)]
    return generated("take(x, even, odd)", lines)


take = accumulator_taker()


@functools.cache
def score_packer(kind):
    """Create packed(x), which rounds a warp's rows to 16 bits. The registers are those of the even rows, then
    of the odd rows, with four for each pair of blocks."""
    parts = all_of(f"pack(x[{z}], x[{z + 1}])" for z in range(0, NUMBERS, 2))
    return generated("packed(x)", [f"return {parts}"], pack=ARITHMETIC[kind].pack)


# Convolution ------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def in_ring(block):
    """Return the index of a block within its ring buffer, for 0 <= block < 2 · RING."""
    return block - RING if block >= RING else block


@functools.cache
def window_loader(blocks, transposed):
    """Create load(x, ring, shift, place, block), which loads 16 rows of `blocks` adjacent 8-column blocks.

    The rows have the parity of `shift`, and the first of them is `place` + shift / 2. x[2 b] and x[2 b + 1]
    are the upper and the lower half of block b.
    """
    x4, x2 = (ldmatrix_x4_trans, ldmatrix_x2_trans) if transposed else (ldmatrix_x4, ldmatrix_x2)

    @cuda.jit(device=True)
    def load(x, ring, shift, place, block):
        lane = cuda.threadIdx.x & 31
        parity, row = shift & 1, place + (shift >> 1) + (lane & 15)
        for pair in range(blocks // 2):
            y = pair * 4
            x[y], x[y + 1], x[y + 2], x[y + 3] = x4(
                ring, (in_ring(block + pair * 2 + (lane >> 4)), parity, row, 0)
            )
        if blocks & 1:
            x[blocks * 2 - 2], x[blocks * 2 - 1] = x2(ring, (in_ring(block + blocks - 1), parity, row, 0))

    return load


@functools.cache
def convolver(kind, row_taps, column_taps):
    """Create convolve(t, ring, place, block, bands), which computes t = T of a warp's 32 rows.

    t: accumulators of the even rows, then of the odd rows.
    place: half the index of the warp's first row.

    The window of t's first column starts window - 1 blocks before `block`.
    """
    mma, mma_k8, _ = ARITHMETIC[kind]
    window = window_of(column_taps)
    blocks = BLOCKS + window - 1
    s_numbers, load = 2 * blocks, window_loader(blocks, False)

    @cuda.jit(device=True)
    def add(t, first, s, b0, b1, b2):
        # the window of block n starts at block n: 16 columns of S0 in four registers
        for n in range(BLOCKS):
            x, y = 2 * n, first + 4 * n
            t[y], t[y + 1], t[y + 2], t[y + 3] = mma(
                s[x], s[x + 1], s[x + 2], s[x + 3], b0, b1, t[y], t[y + 1], t[y + 2], t[y + 3]
            )
        if window == 3:
            for n in range(BLOCKS):
                x, y = 2 * n + 4, first + 4 * n
                t[y], t[y + 1], t[y + 2], t[y + 3] = mma_k8(
                    s[x], s[x + 1], b2, t[y], t[y + 1], t[y + 2], t[y + 3]
                )

    @cuda.jit(device=True)
    def convolve(t, ring, place, block, bands):
        s = cuda.local.array(s_numbers, uint32)
        lane, start = cuda.threadIdx.x & 31, in_ring(block + RING - (window - 1))
        for x in range(NUMBERS):
            t[x] = float32(0)
        load(s, ring, 0, place, start)
        a0, a1, a2 = bands[0, lane], bands[1, lane], bands[window - 1, lane]
        add(t, 0, s, a0, a1, a2)
        for a in range(1, row_taps):
            load(s, ring, a, place, start)
            add(t, HALF, s, a0, a1, a2)
            a0, a1, a2 = (
                bands[a * window, lane],
                bands[a * window + 1, lane],
                bands[a * window + window - 1, lane],
            )
            add(t, 0, s, a0, a1, a2)
        load(s, ring, row_taps, place, start)
        add(t, HALF, s, a0, a1, a2)

    return convolve


def sums_of_taps(row_taps, column_taps):
    """Return the number of accumulators per lane for the gradient of the taps."""
    return 4 * row_taps + (4 * -(-row_taps // 2) if window_of(column_taps) == 3 else 0)


@functools.cache
def transposed_loader(blocks):
    """Create load(x, ring, shift, place, block), like `window_loader`, for transposed matrices.

    x[4 (b / 2) + b % 2] is the upper half of block b, and x[4 (b / 2) + b % 2 + 2] is its lower half. The
    four registers of an even block and the next block therefore form a left operand.
    """

    @cuda.jit(device=True)
    def load(x, ring, shift, place, block):
        lane = cuda.threadIdx.x & 31
        parity, row = shift & 1, place + (shift >> 1) + (lane & 7)
        for pair in range(blocks // 2):
            y, at = pair * 4, in_ring(block + pair * 2 + (lane >> 3 & 1))
            x[y], x[y + 1], x[y + 2], x[y + 3] = ldmatrix_x4_trans(
                ring, (at, parity, row + (lane >> 4) * 8, 0)
            )
        if blocks & 1:
            at, y = in_ring(block + blocks - 1), blocks * 2 - 2
            x[y], x[y + 2] = ldmatrix_x2_trans(ring, (at, parity, row + (lane >> 3 & 1) * 8, 0))

    return load


@functools.cache
def tap_gradient_adder(kind, row_taps, column_taps):
    """Create add_tap_gradients(sums, s_ring, g_ring, masks, warp, block), which accumulates the gradient of
    the taps over rows of a warp.

    A product multiplies eight columns j of dT by 16 columns j' of the window. If the window has 24 columns,
    the last eight columns of two adjacent row shifts share a product.

    masks: bit masks of the register halves that hold owned rows, first for even rows, then for odd rows.
    sums: `sums_of_taps` accumulators; four for each row shift, then four for each pair of row shifts.
    """
    mma = ARITHMETIC[kind].mma
    window = window_of(column_taps)
    blocks = BLOCKS + window - 1
    s_numbers, g_numbers = 4 * ((blocks + 1) // 2), 2 * BLOCKS
    load_s, load_g = transposed_loader(blocks), window_loader(BLOCKS, True)

    @cuda.jit(device=True)
    def load_gradients(g, g_ring, masks, warp, parity, block):
        load_g(g, g_ring, parity, warp * 16, block)
        for x in range(g_numbers):
            g[x] &= masks[parity * 2 + (x & 1)]

    @cuda.jit(device=True)
    def add(sums, z, s, g):
        for n in range(BLOCKS):
            x, y = 4 * (n >> 1) + (n & 1), 4 * (n + 1 >> 1) + (n + 1 & 1)
            sums[z], sums[z + 1], sums[z + 2], sums[z + 3] = mma(
                s[x], s[y], s[x + 2], s[y + 2], g[2 * n], g[2 * n + 1],
                sums[z], sums[z + 1], sums[z + 2], sums[z + 3],
            )  # fmt: skip

    @cuda.jit(device=True)
    def add_pair(sums, z, before, s, both, g):
        """Add the products of the last eight columns of the window.

        before, s: the scores of two adjacent row shifts. Only `before` is used unless `both` is True.
        """
        for n in range(BLOCKS):
            x = 4 * (n + 2 >> 1) + (n & 1)
            low, high = (s[x], s[x + 2]) if both else (uint32(0), uint32(0))
            sums[z], sums[z + 1], sums[z + 2], sums[z + 3] = mma(
                before[x], low, before[x + 2], high, g[2 * n], g[2 * n + 1],
                sums[z], sums[z + 1], sums[z + 2], sums[z + 3],
            )  # fmt: skip

    def shift_adder(a):
        """Create the function for the row shifts from `a` on. With constant shifts, sums are in registers."""
        if a > row_taps + 1:

            @cuda.jit(device=True)
            def add_none(sums, before, s_ring, even, odd, warp, block):
                pass

            return add_none
        add_rest = shift_adder(a + 1)
        pair = 4 * row_taps + 4 * ((a - 1) // 2)

        @cuda.jit(device=True)
        def add_shifts(sums, before, s_ring, even, odd, warp, block):
            s = cuda.local.array(s_numbers, uint32)
            if a <= row_taps:
                load_s(s, s_ring, a, warp * 16, in_ring(block + RING - (window - 1)))
            if a < row_taps:
                add(sums, 4 * a, s, even)
            if 0 < a <= row_taps:
                add(sums, 4 * (a - 1), s, odd)
            if window == 3:
                if a & 1 and a <= row_taps:
                    add_pair(sums, pair, before, s, a < row_taps, even)
                if a > 0 and a & 1 == 0:
                    add_pair(sums, pair, before, s, a <= row_taps, odd)
            add_rest(sums, s, s_ring, even, odd, warp, block)

        return add_shifts

    add_all = shift_adder(0)

    @cuda.jit(device=True)
    def add_tap_gradients(sums, s_ring, g_ring, masks, warp, block):
        even = cuda.local.array(g_numbers, uint32)
        odd = cuda.local.array(g_numbers, uint32)
        load_gradients(even, g_ring, masks, warp, 0, block)
        load_gradients(odd, g_ring, masks, warp, 1, block)
        add_all(sums, even, s_ring, even, odd, warp, block)

    return add_tap_gradients


@functools.cache
def diagonal_adder(row_taps, column_taps):
    """Create add_diagonals(sums, diagonals, totals, warp), which sums a warp's accumulators along each
    diagonal j' - j = tap, and stores the sums in totals[warp, a, tap].

    diagonals: (warps, column_taps, 8), shared memory.
    """
    window = window_of(column_taps)

    @cuda.jit(device=True)
    def put(diagonals, warp, row, x_column, x):
        tap = row - x_column
        if 0 <= tap and tap < column_taps:
            diagonals[warp, tap, x_column] = x

    def shift_adder(a):
        if a == row_taps:

            @cuda.jit(device=True)
            def add_none(sums, diagonals, totals, warp):
                pass

            return add_none
        add_rest, z = shift_adder(a + 1), 4 * a
        pair = 4 * row_taps + 4 * (a // 2) + a % 2 * 2

        @cuda.jit(device=True)
        def add_shift(sums, diagonals, totals, warp):
            lane = cuda.threadIdx.x & 31
            row, x_column = lane >> 2, (lane & 3) * 2
            put(diagonals, warp, row, x_column, sums[z])
            put(diagonals, warp, row, x_column + 1, sums[z + 1])
            put(diagonals, warp, row + 8, x_column, sums[z + 2])
            put(diagonals, warp, row + 8, x_column + 1, sums[z + 3])
            if window == 3:
                put(diagonals, warp, row + 16, x_column, sums[pair])
                put(diagonals, warp, row + 16, x_column + 1, sums[pair + 1])
            cuda.syncwarp()
            if lane < column_taps:
                total = float32(0)
                for column in range(8):
                    total += diagonals[warp, lane, column]
                totals[warp, a, lane] = total
            cuda.syncwarp()
            add_rest(sums, diagonals, totals, warp)

        return add_shift

    return shift_adder(0)
