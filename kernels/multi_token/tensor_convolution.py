"""Convolution of bands of bfloat16 scores, and the gradient of the taps, on tensor cores with float32
accumulators.

A band is (B, H, R, C), as in `kernels.multi_token.kernels`, but of 16-bit scores. C is a multiple of 8. The
columns from the number of keys on are padding.

    kernel           computes                 grid                             block          shared
    convolve         y = x ∗ w                (⌈R / 64⌉ · ⌈C / 256⌉, H, B)     256 threads    at most 26.8 KiB
    tap_gradients    dw = Σ g ∘ shifted x     (parts, H · ⌈c_q / 6⌉, B)        256 threads    at most 58 KiB

The convolution multiplies windows of a score row by banded matrices of taps, as `kernels.conv.tensor_forward`
does. Here the scores come from shared memory, where a row shift only changes an address. A window starts at a
multiple of eight columns, so that 16-byte copies are aligned; `offset` is the distance from the start of the
window to the first column that the taps read.

Source: Golovneva et al. 2025, arXiv 2504.00927.
"""

import functools
from typing import NamedTuple

from numba import cuda
from numpy import float32, int16, int32, uint32

from kernels.common.strips import MOST_REGISTERS
from kernels.multi_token.kernels import SIZE, THREADS, WARPS
from kernels.tensor_cores.instructions import (
    cp_async_16,
    cp_async_commit,
    cp_async_wait_0,
    ldmatrix_x4,
    ldmatrix_x4_trans,
    mma_bf16,
    mma_bf16_k8,
    pack_bf16,
)
from kernels.tensor_cores.tiles import CHUNK, PADDING, tap_loader, window_of

KIND = "bfloat16"
TWO_TILES = 2 * SIZE  # rows of a double buffer
WINDOW = SIZE + 16  # columns of a tile with the windows of its last eight columns
PITCH, GRADIENT_PITCH = WINDOW + PADDING, SIZE + PADDING
BLOCKS = 4  # 8-column blocks that each warp of the convolution computes: half a tile
STEPS = 4  # tiles per block of the convolution, in one row of tiles
TEAMS = 2  # teams of four warps; each team computes the tap gradients of half of the row shifts
MOST_SHIFTS = 6  # row shifts per block of the tap gradients; a thread has 16 accumulators for each shift
DIAGONALS = 16  # sums along diagonals that a block computes at once, with 16 threads each


class Frame(NamedTuple):
    """The position of the taps relative to a score.

    above: rows above the score's own that the taps read.
    lead: columns by which a tile's window precedes the tile, a multiple of eight.
    offset: the column of the first tap in a window.
    """

    above: int
    lead: int
    offset: int


def frame_of(c_q, c_k, flipped=False):
    """Return the Frame of (c_q, c_k) taps: for a convolution, or for its transpose with `flipped` taps."""
    above, left = (0, c_k // 2) if flipped else (c_q - 1, (c_k - 1) // 2)
    lead = CHUNK if left else 0
    return Frame(above, lead, lead - left)


@functools.cache
def band_loader(rows, columns, pad):
    """Create (copy, mask) for a tile of `rows` × `columns` elements of a band, in rows base : base + rows of
    an array in shared memory.

    copy(tile, base, band, batch, head, row, column, last) starts to copy the part of the band at this row and
    column. Elements outside the band, and rows from `last` on, become 0. The caller commits and waits.

    mask(tile, base, row, column, causal) sets masked elements to 0 and synchronises the block, if there are
    any. Here `row` is the query of the tile's first row.

    pad: whether `row` or `column` of a copy can be negative.
    """
    chunks = columns // CHUNK

    @cuda.jit(device=True)
    def copy(tile, base, band, batch, head, row, column, last):
        for part in range(cuda.threadIdx.x, rows * chunks, THREADS):
            i, c = part // chunks, part % chunks * CHUNK
            inside = row + i < last and column + c < band.shape[3]
            if pad:
                inside = inside and 0 <= row + i and 0 <= column + c
            r, j = row + i if inside else 0, column + c if inside else 0
            cp_async_16(tile, (base + i, c), band, (batch, head, r, j), int32(16) if inside else int32(0))

    @cuda.jit(device=True)
    def mask(tile, base, row, column, causal):
        if causal and column + columns - 1 > row:
            for element in range(cuda.threadIdx.x, rows * columns, THREADS):
                i, c = element // columns, element % columns
                if column + c > row + i:
                    tile[base + i, c] = int16(0)
            cuda.syncthreads()

    return copy, mask


# Convolution ------------------------------------------------------------------------------------------------


@functools.cache
def convolve_kernel(c_q, c_k, flipped):
    """Return the kernel that convolves bands with (c_q, c_k) taps, or applies the transposed convolution if
    `flipped`; then the caller reverses both dimensions of the taps."""
    above, lead, offset = frame_of(c_q, c_k, flipped)
    window, tile_rows = window_of(c_k, offset), SIZE + c_q - 1
    tap_numbers, numbers, held, two_tiles = c_q * window, BLOCKS * 4, 2 * (BLOCKS + 2), 2 * tile_rows
    copy, mask = band_loader(tile_rows, WINDOW, True)
    load_taps = tap_loader(KIND, c_q, c_k, offset=offset)

    @cuda.jit
    def multi_token_convolve_bf16_kernel(x, x_first, w, causal, y, y_first):
        """Convolve x into y, bands with the same columns; see `multi_token_convolve_kernel`.

        x: int16. It has the rows on which y depends, except those outside the sequence.
        y: (B, H, R, C / 2), int32 elements with two scores each.
        """
        tiles = cuda.shared.array((two_tiles, PITCH), int16, alignment=16)
        taps = cuda.local.array(tap_numbers, uint32)
        s = cuda.local.array(held, uint32)
        t = cuda.local.array(numbers, float32)
        batch, head, columns = cuda.blockIdx.z, cuda.blockIdx.y, x.shape[3]
        across = (columns + SIZE * STEPS - 1) // (SIZE * STEPS)
        r0, first = cuda.blockIdx.x // across * SIZE, cuda.blockIdx.x % across * (SIZE * STEPS)
        lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
        warp_row, warp_column = warp % 4 * 16, warp // 4 * (BLOCKS * 8)
        row = y_first + r0 - above  # the query of row 0 of a tile
        # columns that are not masked in all rows, and the last column of this block
        seen = min(columns, y_first + r0 + SIZE) if causal else columns
        end = min(columns, first + SIZE * STEPS)
        # 1. start to copy the first tile, and load the taps meanwhile
        if first < seen:
            copy(tiles, 0, x, batch, head, row - x_first, first - lead, x.shape[2])
            cp_async_commit()
            load_taps(taps, w, head)
        for step in range(STEPS):
            c0, base = first + step * SIZE, step % 2 * tile_rows
            for number in range(numbers):
                t[number] = float32(0)
            if c0 < seen:
                # 2. wait for the tile, and start to copy the next one
                cp_async_wait_0()
                cuda.syncthreads()
                if step + 1 < STEPS and c0 + SIZE < seen:
                    next_base = tile_rows - base
                    copy(tiles, next_base, x, batch, head, row - x_first, c0 + SIZE - lead, x.shape[2])
                    cp_async_commit()
                mask(tiles, base, row, c0 - lead, causal)
                # 3. for each row shift, multiply the windows by a band of taps
                for a in range(c_q):
                    for pair in range(BLOCKS // 2 + 1):
                        z = pair * 4
                        place = base + warp_row + a + (lane & 15), warp_column + pair * 16 + (lane >> 4) * 8
                        s[z], s[z + 1], s[z + 2], s[z + 3] = ldmatrix_x4(tiles, place)
                    for block in range(BLOCKS):
                        z, n = block * 2, block * 4
                        t[n], t[n + 1], t[n + 2], t[n + 3] = mma_bf16(
                            s[z], s[z + 1], s[z + 2], s[z + 3], taps[a * window], taps[a * window + 1],
                            t[n], t[n + 1], t[n + 2], t[n + 3],
                        )  # fmt: skip
                        if window == 3:
                            t[n], t[n + 1], t[n + 2], t[n + 3] = mma_bf16_k8(
                                s[z + 4], s[z + 5], taps[a * window + 2],
                                t[n], t[n + 1], t[n + 2], t[n + 3],
                            )  # fmt: skip
            # 4. store y, 0 where masked
            edge = causal and c0 + SIZE > y_first + r0
            for half in range(2):
                r = r0 + warp_row + half * 8 + (lane >> 2)
                if r < y.shape[2]:
                    for block in range(BLOCKS):
                        c, z = c0 + warp_column + block * 8 + (lane & 3) * 2, block * 4 + half * 2
                        if edge:
                            t[z] = float32(0) if c > y_first + r else t[z]
                            t[z + 1] = float32(0) if c + 1 > y_first + r else t[z + 1]
                        if c < end:
                            y[batch, head, r, c >> 1] = int32(pack_bf16(t[z], t[z + 1]))

    return multi_token_convolve_bf16_kernel


@functools.cache
def tap_gradients_kernel(c_q, c_k):
    """Return the kernel for the gradient of (c_q, c_k) taps.

    A team of four warps computes one half of the block's row shifts, and the second team the other half. For
    each of its row shifts, a team computes the products with the four groups of 16 rows of a tile.
    """
    above, lead, offset = frame_of(c_q, c_k)
    shifts = -(-c_q // tap_chunks(c_q))  # row shifts per block
    own = -(-shifts // TEAMS)  # row shifts per team
    tile_rows, numbers = SIZE + TEAMS * own - 1, own * DIAGONALS
    two_tiles = 2 * tile_rows
    (copy, mask), (copy_halo, mask_halo) = (
        band_loader(SIZE, SIZE, False),
        band_loader(tile_rows, WINDOW, True),
    )

    @cuda.jit(device=True)
    def next_tile(number, across, rows, first, causal):
        """Return the first of the tiles number, number + gridDim.x, … that is not masked, or -1."""
        while number < (rows + SIZE - 1) // SIZE * across:
            r0, c0 = number // across * SIZE, number % across * SIZE
            if not causal or c0 <= first + min(r0 + SIZE, rows) - 1:
                return number
            number += cuda.gridDim.x
        return -1

    @cuda.jit(device=True)
    def copy_both(g_tiles, x_tiles, stage, g, x, batch, head, number, across, shift, a0, rows):
        """Start to copy a tile of g and the scores on which it depends, unless `number` is -1.

        shift: the row of x that belongs to row 0 of g.
        """
        if number >= 0:
            r0, c0 = number // across * SIZE, number % across * SIZE
            copy(g_tiles, stage * SIZE, g, batch, head, r0, c0, rows)
            row = r0 + shift - above + a0
            copy_halo(x_tiles, stage * tile_rows, x, batch, head, row, c0 - lead, x.shape[2])
            cp_async_commit()

    @cuda.jit(device=True)
    def add_products(sums, g_tiles, x_tiles, stage):
        """Add gᵀ · x to the sums of each row shift: 16 rows, and the 32 columns of x around each group of 16
        columns of g."""
        lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
        row, x_row = stage * SIZE + warp % 4 * 16, stage * tile_rows + warp % 4 * 16 + warp // 4 * own
        for c in range(0, SIZE, 16):
            a0, a1, a2, a3 = ldmatrix_x4_trans(
                g_tiles, (row + (lane & 7) + (lane >> 4) * 8, c + (lane >> 3 & 1) * 8)
            )
            for a in range(own):
                for pair in range(2):
                    b0, b1, b2, b3 = ldmatrix_x4_trans(
                        x_tiles, (x_row + a + (lane & 15), c + pair * 16 + (lane >> 4) * 8)
                    )
                    z = a * DIAGONALS + pair * 8
                    sums[z], sums[z + 1], sums[z + 2], sums[z + 3] = mma_bf16(
                        a0, a1, a2, a3, b0, b1, sums[z], sums[z + 1], sums[z + 2], sums[z + 3]
                    )
                    z += 4
                    sums[z], sums[z + 1], sums[z + 2], sums[z + 3] = mma_bf16(
                        a0, a1, a2, a3, b2, b3, sums[z], sums[z + 1], sums[z + 2], sums[z + 3]
                    )

    @cuda.jit(max_registers=MOST_REGISTERS)
    def multi_token_tap_gradients_bf16_kernel(g, x, first, x_first, rows, causal, d_w):
        """Add the gradient of the taps to d_w; see `multi_token_tap_gradients_kernel`. g and x are int16."""
        g_tiles = cuda.shared.array((TWO_TILES, GRADIENT_PITCH), int16, alignment=16)
        x_tiles = cuda.shared.array((two_tiles, PITCH), int16, alignment=16)
        shared_sums = cuda.shared.array((WARPS, 16, 32), float32)
        sums = cuda.local.array(numbers, float32)
        batch, head = cuda.blockIdx.z, cuda.blockIdx.y % g.shape[1]
        a0 = cuda.blockIdx.y // g.shape[1] * shifts  # the first row shift of this block
        lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
        across = (g.shape[3] + SIZE - 1) // SIZE
        for number in range(numbers):
            sums[number] = float32(0)
        # 1. loop over every gridDim.x-th tile; while one is processed, the next one is copied
        stage, number = 0, next_tile(cuda.blockIdx.x, across, rows, first, causal)
        copy_both(g_tiles, x_tiles, 0, g, x, batch, head, number, across, first - x_first, a0, rows)
        while number >= 0:
            cp_async_wait_0()
            cuda.syncthreads()
            following = next_tile(number + cuda.gridDim.x, across, rows, first, causal)
            copy_both(
                g_tiles, x_tiles, 1 - stage, g, x, batch, head, following, across, first - x_first, a0, rows
            )
            r0, c0 = number // across * SIZE, number % across * SIZE
            mask(g_tiles, stage * SIZE, first + r0, c0, causal)
            mask_halo(x_tiles, stage * tile_rows, first + r0 - above + a0, c0 - lead, causal)
            add_products(sums, g_tiles, x_tiles, stage)
            stage, number = 1 - stage, following
        # 2. add the diagonals of the warps' sums in a fixed order: 16 threads per tap
        tap, m = cuda.threadIdx.x // DIAGONALS, cuda.threadIdx.x % DIAGONALS
        for a in range(own):
            for z in range(DIAGONALS):
                i, j = (lane >> 2) + (z >> 1 & 1) * 8, (z >> 2) * 8 + (lane & 3) * 2 + (z & 1)
                shared_sums[warp, i, j] = sums[a * DIAGONALS + z]
            cuda.syncthreads()
            for team in range(TEAMS):
                total, shift = float32(0), team * own + a
                if tap < c_k:
                    for other in range(team * 4, team * 4 + 4):
                        total += shared_sums[other, m, m + tap + offset]
                for step in range(4):
                    total += cuda.shfl_xor_sync(0xFFFFFFFF, total, 8 >> step)
                if m == 0 and tap < c_k and shift < shifts and a0 + shift < c_q:
                    d_w[batch * cuda.gridDim.x + cuda.blockIdx.x, head, a0 + shift, tap] += total
            cuda.syncthreads()

    return multi_token_tap_gradients_bf16_kernel


def tap_chunks(c_q):
    """Return the number of blocks among which the row shifts of the tap gradients are divided."""
    return -(-c_q // MOST_SHIFTS)
