"""Convolutions with `wgmma` for the backward kernel that stores the gradients of scores in bands.

A warp group computes 128 rows of scores as two matrices of 64: the even rows and the odd rows. Shared memory
stores each matrix without a swizzle, in blocks of eight columns, 16 bytes per row: (blocks, PARITIES, places,
8). An operand may therefore start at any of its rows, which is a row shift by two.

    convolution   For each row shift s, the rows 2 r + s are multiplied by the bands of taps s and s - 1 in
                  one product with 64 rows. The even rows of the result use tap s, the odd rows tap s - 1. So
                  each operand that a product reads from shared memory serves two rows. 16 columns contribute
                  to 16 + 8 (window - 1) columns, of which the last 8 (window - 1) are completed by the next
                  columns of the iteration, or by those of the next iteration
    taps          The gradient of the taps is a product over rows. Its left operand has 64 rows: eight columns
                  of S0, each shifted by 0, 2, ..., 14 rows, which are overlapping matrices in shared memory.
                  Its right operand consists of the eight-column blocks of dT that these columns contribute to
"""

import functools

from numba import cuda
from numpy import int16, int32, uint32

from kernels.conv.banded_tiles import BLOCKS, HALF, NUMBERS, PARITIES
from kernels.tensor_cores.instructions import cp_async_16
from kernels.tensor_cores.tiles import tap_packer, window_of
from kernels.tensor_cores.warpgroup import stmatrix_x4, wgmma
from kernels.tensor_cores.warpgroup_tiles import GROUP, PTX_KIND, ROWS, all_of, generated

RING = 10  # blocks of the ring buffer of S0: the products of the previous iteration may still read six
LATEST = 6  # blocks of the buffer of dT: two of the previous iteration, and BLOCKS new ones
SHIFTS = 8  # row shifts in the left operand of the taps' gradient
TAPS, NO_TAPS = 64, 32  # columns of the array of taps, and the column of tap 0
KEPT_ROWS = 16  # the last rows of a parity, of which the block may own a part
S_PLACES = ROWS + SHIFTS  # rows of a parity in the buffer of S0
# For each parity, the buffer of dT has ROWS rows, followed by a copy of the last KEPT_ROWS of them. In the
# copy, the rows that other blocks own are 0.
G_PLACES = ROWS + KEPT_ROWS


def in_ring(block):
    """Return the source of the index of a block in the ring buffer, for 0 <= block < 2 · RING."""
    return f"({block} - {RING} if {block} >= {RING} else {block})"


@functools.cache
def tap_loader(kind, c_q, c_k, bits):
    """Create load_taps(taps, w, head), which stores the taps in shared memory, with zeros on both sides.

    taps: (c_q, TAPS), int16. Tap w[a, b] is in column b + NO_TAPS.
    bits: as for `tap_packer`.
    """
    pack_taps = tap_packer(kind, bits)

    @cuda.jit(device=True)
    def load_taps(taps, w, head):
        for part in range(cuda.threadIdx.x, c_q * TAPS, GROUP):
            a, b = part // TAPS, part % TAPS - NO_TAPS
            tap = pack_taps(w, head, a, b, 0 <= b and b < c_k, False)
            taps[a, b + NO_TAPS] = int16(tap & uint32(0xFFFF))

    return load_taps


@functools.cache
def band_maker(c_q, c_k):
    """Create make_bands(bands, flipped, taps), which stores the bands of all rows of taps in shared memory:
    in `bands` for the convolution, and in `flipped` for the transposed convolution.

    bands, flipped: (c_q + 2, window + 1, 2, 8, 4), int32 elements with two taps each. Band c_q - a has the
        elements w[a, x - y + 8 (window - 1)] for 16 input columns x and 8 (window + 1) output columns y. The
        first and the last band are zero.
    taps: the array of `tap_loader`.
    """
    outputs, lag = window_of(c_k) + 1, 8 * (window_of(c_k) - 1)

    @cuda.jit(device=True)
    def two(low, high):
        return int32(uint32(low) & uint32(0xFFFF) | uint32(high) << uint32(16))

    @cuda.jit(device=True)
    def make_bands(bands, flipped, taps):
        for part in range(cuda.threadIdx.x, (c_q + 2) * outputs * 16, GROUP):
            band, y, half = part // (outputs * 16), part // 2 % (outputs * 8), part & 1
            a, b = c_q - band, half * 8 - y + lag + NO_TAPS
            last, inside = 2 * NO_TAPS + c_k - 1 - b, 0 <= a and a < c_q
            for pair in range(4):
                x = 2 * pair
                both = reverse = int32(0)
                if inside:
                    both = two(taps[a, b + x], taps[a, b + x + 1])
                    reverse = two(taps[c_q - 1 - a, last - x], taps[c_q - 1 - a, last - x - 1])
                bands[band, y >> 3, half, y & 7, pair] = both
                flipped[band, y >> 3, half, y & 7, pair] = reverse

    return make_bands


@functools.cache
def convolution_starter(kind, c_q, c_k, places):
    """Create start(of_low, of_high, of_bands), which starts the products of 32 columns. It returns the
    accumulators of the first 16 and of the last 16 columns, in each case the even rows first.

    of_low, of_high: the descriptors of these columns, in a buffer with `places` rows of each parity.
    """
    outputs = window_of(c_k) + 1
    product = wgmma(PARITIES * outputs * 8, PTX_KIND[kind])
    zeros = all_of(["float32(0)"] * (PARITIES * outputs * 4))
    lines = [f"low, high = wgmma_fence({zeros}), wgmma_fence({zeros})"]
    for shift in range(c_q + 1):
        at, band = (shift & 1) * places + (shift >> 1), (c_q - shift) * outputs * 16
        for half in ("low", "high"):
            operands = f"of_{half} + uint64({at}), of_bands + uint64({band})"
            lines.append(f"{half} = product({half}, {operands}, {shift > 0})")
    lines += ["wgmma_commit()", "return low, high"]
    return generated("start(of_low, of_high, of_bands)", lines, product=product)


def carried_numbers(c_k):
    """Return the number of accumulators that an iteration carries over to the next one."""
    return PARITIES * 4 * (window_of(c_k) - 1)


@functools.cache
def convolution_ender(c_k):
    """Create end(x, low, high, carried), which stores the result of a convolution in x, and returns the sums
    that the next iteration needs.

    low, high: the sums of the first and the last 16 columns.
    carried: the sums of the previous iteration.
    """
    later, outputs = window_of(c_k) - 1, window_of(c_k) + 1
    lines, rest = [], []
    for parity in range(PARITIES):
        for block in range(BLOCKS + later):
            for y in range(4):
                terms = [f"carried[{(parity * later + block) * 4 + y}]"] if block < later else []
                for half, start in (("low", 0), ("high", 2)):
                    if 0 <= block - start < outputs:
                        terms.append(f"{half}[{(parity * outputs + block - start) * 4 + y}]")
                if block < BLOCKS:
                    lines.append(f"x[{parity * HALF + block * 4 + y}] = {' + '.join(terms)}")
                else:
                    rest.append(" + ".join(terms))
    return generated("end(x, low, high, carried)", [*lines, f"return {all_of(rest)}"])


def score_storer():
    """Create store_scores(ring, scores, row, block), which stores a warp's rows in the ring buffer of S0.

    row: the warp's first row of each parity.
    """
    lines = ["lane = uint32(cuda.threadIdx.x) & uint32(31)", "at = uint32(row) + (lane & uint32(15))"]
    for pair in range(BLOCKS // 2):
        lines += [f"place = uint32({in_ring(f'(block + {2 * pair})')}) + (lane >> uint32(4))"]
        for parity in range(PARITIES):
            registers = ", ".join(f"scores[{parity * 8 + pair * 4 + x}]" for x in range(4))
            lines.append(f"store(ring, (place, uint32({parity}), at, uint32(0)), {registers})")
    return generated("store_scores(ring, scores, row, block)", lines, store=stmatrix_x4)


def gradient_storer():
    """Create store_gradients(tile, before, scores, row), which stores a warp's rows in the buffer of dT: two
    blocks of the previous iteration, then those of this one.

    before: the registers of the previous iteration.
    row: the row of the buffer at which the warp's rows of each parity start.
    """
    lines = ["lane = uint32(cuda.threadIdx.x) & uint32(31)", "at = uint32(row) + (lane & uint32(15))"]
    for pair in range(LATEST // 2):
        for parity in range(PARITIES):
            of, first = ("scores", pair * 4 - 4) if pair else ("before", 4)
            registers = ", ".join(f"{of}[{parity * 8 + first + x}]" for x in range(4))
            place = f"(uint32({2 * pair}) + (lane >> uint32(4)), uint32({parity}), at, uint32(0))"
            lines.append(f"store(tile, {place}, {registers})")
    return generated("store_gradients(tile, before, scores, row)", lines, store=stmatrix_x4)


def register_masker():
    """Create masked(scores, masks), which combines each register with the mask of its parity and half."""
    parts = all_of(f"scores[{x}] & masks[{x // 8 * 2 + x % 2}]" for x in range(NUMBERS // 2))
    return generated("masked(scores, masks)", [f"return {parts}"])


store_scores, store_gradients, masked = score_storer(), gradient_storer(), register_masker()


EARLIER = 2  # blocks before the first columns
CLEARED_FIRST = EARLIER * PARITIES * S_PLACES
CLEARED = CLEARED_FIRST + (RING - EARLIER) * PARITIES * SHIFTS


@cuda.jit(device=True)
def clear_ring(ring, x):
    """Start to clear the parts of the ring buffer of S0 that are read, but not stored: the columns before the
    first ones, and the rows after the last ones.

    x: an array in global memory. The asynchronous copies read no element of it.
    """
    for part in range(cuda.threadIdx.x, CLEARED, GROUP):
        if part < CLEARED_FIRST:
            block, row = RING - EARLIER + part // (PARITIES * S_PLACES), part % S_PLACES
            parity = part // S_PLACES % PARITIES
        else:
            rest = part - CLEARED_FIRST
            block, row = rest // (PARITIES * SHIFTS), ROWS + rest % SHIFTS
            parity = rest // SHIFTS % PARITIES
        cp_async_16(ring, (block, parity, row, 0), x, (0, 0, 0, 0), int32(0))


@functools.cache
def tap_gradient_starter(kind, c_k):
    """Create start(even, odd, of_scores, of_gradients, block), which starts to add the products of the latest
    columns to the gradient of the taps, and returns the sums for the even and the odd rows of S0.

    of_scores, of_gradients: the descriptors of the buffers of S0 and dT.
    block: the index of the iteration's first block in the ring buffer of S0.
    """
    window = window_of(c_k)
    product = wgmma(PARITIES * window * 8, PTX_KIND[kind], mn_major_a=True, mn_major_b=True)
    lines = ["even, odd = wgmma_fence(even), wgmma_fence(odd)"]
    for x in range(BLOCKS):
        earlier = x - (window - 1)
        at = f"(block + {earlier % RING if earlier < 0 else earlier})"
        lines.append(f"of_s = of_scores + uint64({in_ring(at)} * {PARITIES * S_PLACES})")
        for row in range(0, ROWS, KEPT_ROWS):
            place = ROWS if row == ROWS - KEPT_ROWS else row
            of_g = (
                f"of_gradients + uint64({(x + LATEST - BLOCKS - (window - 1)) * PARITIES * G_PLACES + place})"
            )
            for parity, name in enumerate(("even", "odd")):
                of_a = f"of_s + uint64({parity * S_PLACES + row})"
                lines.append(f"{name} = product({name}, {of_a}, {of_g}, True)")
    lines += ["wgmma_commit()", "return even, odd"]
    return generated("start(even, odd, of_scores, of_gradients, block)", lines, product=product)


def tap_numbers(c_k):
    """Return the number of sums per lane for the gradient of the taps, for each parity of S0's rows."""
    return PARITIES * window_of(c_k) * 4


@functools.cache
def diagonal_adder(c_q, c_k):
    """Create add_diagonals(diagonals, even, odd), which sums the gradient of each tap over the columns of a
    block: diagonals[a, b, j] is the sum for column j of dT.

    even, odd: the sums for the even and the odd rows of S0.
    diagonals: (c_q, c_k, 8), shared memory.
    """
    window = window_of(c_k)

    @cuda.jit(device=True, forceinline=True)
    def put(diagonals, a, b, column, x, add):
        if 0 <= a and a < c_q and 0 <= b and b < c_k:
            diagonals[a, b, column] = diagonals[a, b, column] + x if add else x

    lines = ["lane = cuda.threadIdx.x & 31", "shift = (cuda.threadIdx.x >> 5) * 4"]
    lines += ["row, column = (lane >> 2) + 8 * (window - 1), (lane & 3) * 2"]
    for parity in range(PARITIES):  # of the rows of dT
        for of_s, name in enumerate(("even", "odd")):
            for block in range(window):
                for y in range(4):
                    x = f"{name}[{(block * PARITIES + parity) * 4 + y}]"
                    a, j = f"shift + {(y >> 1) * 2 + of_s - parity}", f"column + {y & 1}"
                    b = f"row - {8 * block} - column - {y & 1}"
                    lines.append(f"put(diagonals, {a}, {b}, {j}, {x}, {parity > 0})")
        lines.append("cuda.syncthreads()")
    return generated("add_diagonals(diagonals, even, odd)", lines, put=put, window=window)
