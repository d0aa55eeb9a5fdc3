"""Checks of lesson 18: the tap gradient as products of windows, computed by a warp and its diagonals, and
register limits that let more blocks fit."""

import numpy as np
import torch
from numba import cuda
from numpy import float32, int16, int32

from course.check import inputs, kernels
from course.check.contract import Contract
from course.check.harness import compare, exercise, explained, fail, instance
from course.check.tensor_cores import (
    NAN,
    bits,
    bytes_of_ldmatrix,
    drawn,
    halves_swapped,
    known,
    on_tensor_cores,
    spread,
)
from course.check.tensors import Products, within
from sim.nouns import plural

WINDOW, BLOCK, MOST_TAPS, LANES = 16, 8, 9, 32


@exercise("18.1", "tap_gradient")
def ex18_1(tap_gradient, rng):
    shapes = [
        (2, 8, 1, 2),
        (2, 8, 1, 1),
        (5, 16, 3, 4),
        (16, 32, 7, 7),
        (3, 24, 2, 9),
        (20, 8, 4, 1),
        (7, 40, 2, 6),
    ]
    for rows, columns, c_q, c_k in shapes:
        scale = 4096 if rows == 5 else 1
        s = torch.from_numpy(rng.standard_normal((rows + c_q - 1, columns + c_k - 1)) * scale)
        g = torch.from_numpy(rng.standard_normal((rows, columns)))
        call = f"tap_gradient(s_tile {tuple(s.shape)}, g_tile {tuple(g.shape)}, c_q={c_q}, c_k={c_k})"
        wanted, mistakes = met(s, g, c_q, c_k)
        with Products() as products:
            got = within(tap_gradient, (s, g, c_q, c_k), call=call, refused=AUTOGRAD, hint=IN_PRODUCTS)
        compare(got, wanted, what="dW", call=call, tolerance=1e-10, hint=explained(got, mistakes, TAPS_LINE))
        enforce(products, c_q, rows, columns, c_k, call)
    return f"{len(shapes)} tiles of 2 to 20 rows and 8 to 40 columns, 1 × 1 to 7 × 7 and 2 × 9 taps"


@exercise("18.2", "add_products")
def ex18_2(add_products, rng):
    kernels.jitted(add_products, "add_products")
    for rows, columns, warps, exact in [
        (20, 24, 1, True),
        (16, 16, 2, True),
        (40, 32, 3, False),
        (37, 40, 2, True),
    ]:
        check_products(add_products, rows, columns, warps, exact, rng)
    return "whole numbers, bit for bit, and normal ones; 1 to 3 warps, two products one after the other"


@exercise("18.3", "sum_diagonals")
def ex18_3(sum_diagonals, rng):
    kernels.jitted(sum_diagonals, "sum_diagonals")
    for c_k, shifts, warps in [(2, 1, 1), (9, 2, 1), (1, 3, 2), (7, 7, 4), (8, 2, 2), (5, 4, 3)]:
        check_diagonals(sum_diagonals, c_k, shifts, warps, c_k == 8, rng)
    return "1 to 9 taps in a row, 1 to 4 warps, NaN on the diagonals that are no taps"


@exercise("18.4", "most_registers")
def ex18_4(most_registers, rng):
    known = [(2, 256, 108488), (3, 256, 108488), (1, 256, 108488), (4, 128, 0), (16, 128, 0), (33, 32, 0)]
    known += [(32, 32, 0), (2, 1024, 0), (3, 1024, 0), (1, 1024, 232448), (1, 32, 232449), (2, 128, 115712)]
    known += [(2, 128, 115713), (5, 96, 1024), (3, 40, 60000), (7, 288, 100), (1, 32, 0), (21, 96, 0)]
    known += [(8, 33, 1000), (13, 160, 0), (13, 150, 0)]
    random = [
        (int(rng.integers(1, 14)), int(rng.integers(1, 300)), int(rng.integers(0, 24000))) for _ in range(60)
    ]
    for blocks, threads, shared_bytes in known + random:
        call = f"most_registers(blocks={blocks}, threads={threads}, shared_bytes={shared_bytes})"
        got, wanted = most_registers(blocks, threads, shared_bytes), most(blocks, threads, shared_bytes)
        compare(
            got,
            wanted,
            what="another number",
            call=call,
            tolerance=0,
            hint=limits_in_words(blocks, threads, shared_bytes),
        )
        instance(got, (int, np.integer), what="a whole number", call=call, hint="// divides whole numbers.")
    return f"{len(known) + len(random)} kernels, each limit the one that decides"


# 18.1 -------------------------------------------------------------------------------------------------------

AUTOGRAD = {"backward", "grad", "requires_grad_", "conv2d", "numpy", "tolist"}
TAPS_LINE = (
    "dW[a, b] = Σ g_tile[i, j] · s_tile[i + a, j + b]: the window of the columns y0 … y0 + 7 begins at column"
    " y0 of s_tile, in the rows from a on; the product's entry (x, y) belongs to the tap b = x - y."
)
IN_PRODUCTS = (
    "One matrix product for each row shift and each 8 columns: the window's transpose times the block."
)
DIAGONALS_ONCE = (
    "Accumulate the products of a row shift over all blocks, then read each tap off its diagonal once."
)
TURNED = (
    "Equal to dW with the taps of each row in reverse order: b is x - y, not y - x, where x counts the"
    " window."
)
NO_SHIFT = "All rows of your dW are equal to the correct row 0. For row a, begin at row a of s_tile."
ONE_BLOCK = "Equal to what the first 8 columns alone give."
LAST_BLOCK = "Equal to what the last 8 columns alone give: +="


def met(s, g, c_q, c_k):
    """(dW, {hint: what a likely mistake gives})"""

    def taps(first=0, end=g.shape[1], shift=1):
        """Return dW for the columns [first, end), where each row of taps shifts the rows of s_tile by the
        given distance."""
        block, rows = g[:, first:end], len(g)
        windows = [
            [s[a * shift : a * shift + rows, first + b : end + b] for b in range(c_k)] for a in range(c_q)
        ]
        return torch.stack([torch.stack([(block * window).sum() for window in row]) for row in windows])

    right = taps()
    mistakes = {
        TURNED: right.flip(1),
        NO_SHIFT: taps(shift=0),
        ONE_BLOCK: taps(end=BLOCK),
        LAST_BLOCK: taps(first=g.shape[1] - BLOCK),
    }
    return right, {hint: value for hint, value in mistakes.items() if not torch.equal(value, right)}


def enforce(counted, c_q, rows, columns, c_k, call):
    """Reject an answer that does not make one product per row shift and block, or that reads a diagonal
    more than once."""
    scores, products = c_q * rows * columns, c_q * columns // BLOCK
    least, most = (BLOCK + c_k - 1) * scores, WINDOW * scores
    if not least <= counted.of_matrices <= most:
        fail(
            f"correct, but its products of matrices have {counted.of_matrices:,} multiply-adds; windows of"
            f" {BLOCK + c_k - 1} to {WINDOW} columns times blocks of {BLOCK} have {least:,} to {most:,}",
            call=call,
            hint=IN_PRODUCTS,
        )
    if counted.others:
        fail(
            f"correct, but it multiplies outside the matrix products ({counted.others[0]})",
            call=call,
            hint="A tap is a sum of entries of the product. Select them without a multiplication.",
        )
    if counted.products != products or counted.deepest > rows:
        fail(
            f"correct, but with {plural(counted.products, 'matrix product')} of up to {counted.deepest} rows;"
            f" wanted {products} of {rows} rows",
            call=call,
            hint=IN_PRODUCTS,
        )
    if counted.diagonals > c_q * c_k:
        fail(
            f"correct, but it reads {counted.diagonals} diagonals, where {c_q * c_k} are enough",
            call=call,
            hint=DIAGONALS_ONCE,
        )


# 18.2 -------------------------------------------------------------------------------------------------------

HEIGHT, WIDTH, PITCH = 48, 48, 56  # rows and columns of the largest tile; elements from row to row
FRAGMENTS = (
    "sums[i] += C[lane // 4 + 8 (i // 2), 2 (lane % 4) + i % 2] of C = Sᵀ G, where S is s_tile[s_row : s_row"
    " + 16, column : column + 16] and G is g_tile[g_row : g_row + 16, column : column + 8]."
)
NOT_ADDED = "Equal to the product alone: it is to be added to what is in sums."
NOT_TRANSPOSED = "Equal to S G, not Sᵀ G: the rows of the left operand are the window's columns."
SWAPPED = (
    "Equal to what a1 and a2 swapped give: a1 has the lower rows of A (the window's columns from 8 on), a2"
    " the later columns (the tile's rows from 8 on)."
)
BY_INSTRUCTIONS = (
    "One ldmatrix_x4_trans for the window, one ldmatrix_x2_trans for the block, and one mma_bf16, even if all"
    " entries are 0."
)


def check_products(add_products, rows, columns, warps, exact, rng):
    """Check that each warp adds two products to nonzero sums."""
    s, g, places = two_products(rows, columns, warps, exact, rng)
    large = 5000 if exact else 5
    before = rng.integers(-large, large + 1, (LANES * warps, 4)).astype(float32)
    wanted, mistakes = sums_after(s, g, places, before)
    call = (
        f"add_products(sums, s_tile, s_row, g_tile, g_row, column), twice, with (s_row, g_row, column) ="
        f" {tuple(places[0, 0].tolist())} and {tuple(places[1, 0].tolist())} in warp 0 of {warps}"
    )
    report = kernels.judge(
        with_add_products(add_products),
        (1, LANES * warps),
        (bits(s), bits(g), places, before),
        (np.full(before.shape, np.nan, float32),),
        (wanted,),
        rng,
        call,
        Contract(
            max_total={"shared": 2 * HEIGHT * WIDTH + 2 * warps * 64},
            barriers=(1, 1),
            shuffles=(0, 0),
            atomics=(0, 0),
            hint=BY_INSTRUCTIONS,
        ),
        tolerance=0 if exact else 1e-5,
        what="sums",
        float64=0,
        hint=lambda got: known(got, mistakes, FRAGMENTS),
    )
    on_tensor_cores(report, 2 * warps, call)
    loaded, needed = bytes_of_ldmatrix(report), 2 * warps * 2 * (16 * 16 + 16 * 8)
    if loaded != needed:
        what = f"correct, but ldmatrix loads {loaded:,} bytes; {needed:,} are needed"
        fail(what, call=call, hint=BY_INSTRUCTIONS)


def two_products(rows, columns, warps, exact, rng):
    """Draw two tiles, and the positions (s_row, g_row, column) of two products for each warp."""
    s, g = drawn(rng, (rows, columns), exact), drawn(rng, (rows, columns), exact)
    if warps == 3:
        # Lanes 12 to 15 have a left operand of zeros, lanes 20 to 23 a right one. A lane that skips mma for
        # them makes its warp diverge.
        s[:, 3::8], g[:, 5::8] = 0, 0
    s_row, g_row = rng.integers(0, rows - 15, (2, 2, warps))
    places = np.stack([s_row, g_row, rng.integers(0, columns - 15, (2, warps)) // 8 * 8], -1).astype(int32)
    places[-1, -1] = rows - 16, rows - 16, columns // 8 * 8 - 16  # the last position in both tiles
    if warps == 2 and rows > 16:
        # The first window of warp 0 is zero, and the second block of warp 1. A warp must not skip its mma.
        (s_first, _, left), (_, g_first, right) = places[0, 0], places[1, 1]
        s[s_first : s_first + 16, left : left + 16] = 0
        g[g_first : g_first + 16, right : right + 8] = 0
    return s, g, places


def sums_after(s, g, places, before):
    """Return the correct sums of all lanes, and {hint: sums} for likely mistakes."""

    def after(product):
        """Return the values in the lanes after a product at each position."""
        made = [[spread(product(*cut(s, g, place))) for place in turn] for turn in places.tolist()]
        return before + np.concatenate(made[0]) + np.concatenate(made[1])

    last = [spread(window.T @ block) for window, block in (cut(s, g, place) for place in places[-1].tolist())]
    return after(lambda window, block: window.T @ block), {
        NOT_ADDED: np.concatenate(last),
        NOT_TRANSPOSED: after(lambda window, block: window @ block),
        SWAPPED: after(lambda window, block: halves_swapped(window.T) @ block),
    }


def with_add_products(add_products):
    """Return a kernel in which each warp calls `add_products` at each of its positions."""

    @cuda.jit
    def every_warp(s, g, places, before, out):
        s_tile = cuda.shared.array((HEIGHT, PITCH), int16, alignment=16)
        g_tile = cuda.shared.array((HEIGHT, PITCH), int16, alignment=16)
        sums = cuda.local.array(4, float32)
        for e in range(cuda.threadIdx.x, HEIGHT * WIDTH, cuda.blockDim.x):
            i, j = e // WIDTH, e % WIDTH
            inside = i < s.shape[0] and j < s.shape[1]
            s_tile[i, j] = s[i, j] if inside else NAN
            g_tile[i, j] = g[i, j] if inside else NAN
        cuda.syncthreads()
        warp = cuda.threadIdx.x >> 5
        for x in range(4):
            sums[x] = before[cuda.threadIdx.x, x]
        for turn in range(places.shape[0]):
            add_products(
                sums, s_tile, places[turn, warp, 0], g_tile, places[turn, warp, 1], places[turn, warp, 2]
            )
        for x in range(4):
            out[cuda.threadIdx.x, x] = sums[x]

    return every_warp


def cut(s, g, place):
    s_row, g_row, column = place
    return s[s_row : s_row + 16, column : column + 16], g[g_row : g_row + 16, column : column + 8]


# 18.3 -------------------------------------------------------------------------------------------------------

DIAGONALS = (
    "sums[i] is at row x = lane // 4 + 8 (i // 2) and column y = 2 (lane % 4) + i % 2; it belongs to the tap"
    " x - y, if there is one. taps[a, b] is the sum over the eight y."
)
OTHER_DIAGONALS = "NaN: sums that belong to no tap (x - y below 0, or c_k and more) were added."
THROUGH_DIAGONALS = (
    "No atomics and no shuffles: store each number of a tap in diagonals[b, y], once, and let one lane add"
    " the eight numbers of a tap."
)


def check_diagonals(sum_diagonals, c_k, shifts, warps, large, rng):
    """Check the sums of all row shifts. If `large`, the products are whole numbers in the thousands."""
    shape = shifts, WINDOW, BLOCK
    products = (rng.integers(-9, 10, shape) * 4096 if large else rng.standard_normal(shape)).astype(float32)
    tap = np.arange(WINDOW)[:, None] - np.arange(BLOCK)
    products[:, (tap < 0) | (tap >= c_k)] = np.nan
    wanted = np.array([[product[tap == b].sum(dtype=np.float64) for b in range(c_k)] for product in products])
    sums = np.stack([spread(product) for product in products])  # (shift, lane, 4)
    out = np.full((shifts, c_k + 1), inputs.SENTINEL, float32)
    wanted = np.pad(wanted, ((0, 0), (0, 1)), constant_values=inputs.SENTINEL)
    call = (
        f"sum_diagonals(taps, a, diagonals, sums, c_k={c_k}), {plural(shifts, 'row shift')} by"
        f" {plural(warps, 'warp')}"
    )
    kernels.judge(
        with_sum_diagonals(sum_diagonals, warps),
        (1, LANES * warps),
        (sums, int32(c_k)),
        (out,),
        (wanted,),
        rng,
        call,
        Contract(
            "given c_k taps",
            max_per_thread={"shared": -(-shifts // warps) * (4 + 2 * BLOCK)},
            max_total={"taps": shifts * c_k * (2 * BLOCK + 1), "shared": shifts * 2 * BLOCK * MOST_TAPS},
            min_total={"shared": shifts * 2 * BLOCK * c_k},
            barriers=(0, 0),
            shuffles=(0, 0),
            atomics=(0, 0),
            hint=THROUGH_DIAGONALS,
        ),
        what="taps",
        float64=0,
        hint=lambda got: DIAGONALS if np.isfinite(got).all() else OTHER_DIAGONALS,
    )


def with_sum_diagonals(sum_diagonals, warps):
    """Return a kernel in which each warp calls `sum_diagonals` for every warps-th row shift."""

    @cuda.jit
    def every_shift(given, c_k, taps):
        diagonals = cuda.shared.array((warps, MOST_TAPS, BLOCK), float32)
        sums = cuda.local.array(4, float32)
        lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
        for a in range(warp, given.shape[0], warps):
            for x in range(4):
                sums[x] = given[a, lane, x]
            sum_diagonals(taps, a, diagonals[warp], sums, c_k)

    return every_shift


# 18.4 -------------------------------------------------------------------------------------------------------

QUARTER, RESERVED, SHARED, MOST_THREADS, MOST_BLOCKS, MOST_REGISTERS = 16384, 1024, 233472, 2048, 32, 255


def fitting(registers, threads, shared_bytes):
    """Return how many blocks one multiprocessor holds (lesson 08): by threads, by number, by registers, by
    shared memory."""
    warps = -(-threads // 32)
    return (
        MOST_THREADS // (32 * warps),
        MOST_BLOCKS,
        QUARTER // (-(-registers // 8) * 8 * 32) * 4 // warps,
        SHARED // (shared_bytes + RESERVED),
    )


def most(blocks, threads, shared_bytes):
    """Find the answer by exhaustive search: the largest register count that is 255 or a multiple of 8."""
    tried = [MOST_REGISTERS, *range(248, 0, -8)]
    return next((r for r in tried if min(fitting(r, threads, shared_bytes)) >= blocks), 0)


def limits_in_words(blocks, threads, shared_bytes):
    by_threads, by_number, _, by_shared = fitting(8, threads, shared_bytes)
    if min(by_threads, by_number, by_shared) < blocks:
        return (
            f"Whatever the registers: {by_threads} blocks fit by threads, {by_number} by number, {by_shared}"
            " by shared memory (1,024 bytes more each). So the answer is 0."
        )
    warps = -(-threads // 32)
    return (
        f"{blocks} blocks of {warps} warps are {blocks * warps}, {-(-blocks * warps // 4)} in the fullest"
        " quarter of 16,384 registers; 32 lanes each; a multiple of 8, 255 at most."
    )
