"""Checks for lesson 18: the tap gradient as products of windows, computed by a warp and its diagonals;
register limits that let more blocks fit; and the convolution of a decoder's scores with overlapping rows.
The checks of lesson 18c are in course.check.hopper."""

import numpy as np
import torch
from ml_dtypes import bfloat16
from numba import cuda
from numpy import float32, int16, int32, uint32

from course.check import inputs, kernels
from course.check.contract import Contract
from course.check.harness import compare, exercise, explained, fail, instance
from course.check.hopper import ex18_6, ex18_7, ex18_8, ex18_9, ex18_10  # noqa: F401
from course.check.tensors import DispatchMode, within
from kernels.tensor_cores.tiles import tap_loader
from sim.nouns import plural

WINDOW, BLOCK, MOST_TAPS, PADDING, LANES = 16, 8, 9, 8, 32
TO_COLUMN = np.arange(LANES) % 4 * 2  # of the lane's first number of C
TO_ROW = np.arange(LANES) // 4


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
        products.enforce(c_q, rows, columns, c_k, call)
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
    known += [
        (2, 128, 115713),
        (5, 96, 1024),
        (3, 40, 60000),
        (7, 288, 100),
        (1, 32, 0),
        (21, 96, 0),
        (8, 33, 1000),
        (13, 160, 0),
        (13, 150, 0),
    ]
    drawn = [
        (int(rng.integers(1, 14)), int(rng.integers(1, 300)), int(rng.integers(0, 24000))) for _ in range(60)
    ]
    for blocks, threads, shared_bytes in known + drawn:
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
    return f"{len(known) + len(drawn)} kernels, each limit the one that decides"


@exercise("18.5", "convolve")
def ex18_5(convolve, rng):
    kernels.jitted(convolve, "convolve")
    for c_q, c_k, exact in [(1, 1, True), (2, 3, True), (7, 7, False), (3, 9, True), (9, 8, False)]:
        check_convolved(convolve, c_q, c_k, exact, rng)
    return "128 keys each, 1 × 1 to 9 × 8 and 3 × 9 taps, NaN beyond what the taps reach"


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


MULTIPLIES = {
    *("mul", "mul_", "div", "div_", "addcmul", "addcmul_", "addcdiv", "addcdiv_", "pow", "pow_", "square"),
    *("dot", "vdot", "mv", "addmv", "addr", "ger", "outer", "prod", "cumprod"),
}


class Products(DispatchMode):
    """Counter of matrix products, their multiply-adds and the diagonals that are read.

    `deepest` is the largest inner size of a product. `others` has the names of other multiplications of
    floats.
    """

    def __init__(self):
        super().__init__()
        self.products, self.of_matrices, self.others = 0, 0, []
        self.deepest, self.diagonals = 0, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result, name = function(*args, **(kwargs or {})), function.overloadpacket.__name__
        if name in ("mm", "bmm", "addmm", "baddbmm"):
            self.products += len(result) if result.ndim == 3 else 1
            self.of_matrices += result.numel() * args[-2].shape[-1]
            self.deepest = max(self.deepest, args[-2].shape[-1])
        if name in ("diagonal", "diagonal_copy", "diag", "trace"):
            self.diagonals += 1
        if name in MULTIPLIES and result.is_floating_point():
            self.others.append(name)
        return result

    def enforce(self, c_q, rows, columns, c_k, call):
        """Reject an answer that does not make one product per row shift and block, or that reads a diagonal
        more than once."""
        scores, products = c_q * rows * columns, c_q * columns // BLOCK
        least, most = (BLOCK + c_k - 1) * scores, WINDOW * scores
        if not least <= self.of_matrices <= most:
            fail(
                f"correct, but its products of matrices have {self.of_matrices:,} multiply-adds; windows of"
                f" {BLOCK + c_k - 1} to {WINDOW} columns times blocks of {BLOCK} have {least:,} to {most:,}",
                call=call,
                hint=IN_PRODUCTS,
            )
        if self.others:
            fail(
                f"correct, but it multiplies outside the matrix products ({self.others[0]})",
                call=call,
                hint="A tap is a sum of entries of the product. Select them without a multiplication.",
            )
        if self.products != products or self.deepest > rows:
            fail(
                f"correct, but with {plural(self.products, 'matrix product')} of up to {self.deepest} rows;"
                f" wanted {products} of {rows} rows",
                call=call,
                hint=IN_PRODUCTS,
            )
        if self.diagonals > c_q * c_k:
            fail(
                f"correct, but it reads {self.diagonals} diagonals, where {c_q * c_k} are enough",
                call=call,
                hint=DIAGONALS_ONCE,
            )


# 18.2 -------------------------------------------------------------------------------------------------------

GREATEST = (48, 48)  # rows and columns of a tile
WIDTH = GREATEST[1] + PADDING
NAN, NO_NUMBER = int16(0x7FC0), float32("nan")
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


def bits(numbers):
    """Return float32 numbers as bfloat16 bit patterns."""
    return numbers.astype(bfloat16).view(int16)


def drawn(rng, shape, exact):
    """Return nonzero numbers that bfloat16 represents exactly: whole numbers, or approximately normal
    ones."""
    numbers = rng.integers(1, 10, shape) * rng.choice([-1, 1], shape) if exact else rng.standard_normal(shape)
    return numbers.astype(bfloat16).astype(np.float64)


def check_products(add_products, rows, columns, warps, exact, rng):
    """Check that each warp adds two products to nonzero sums."""
    s, g = drawn(rng, (rows, columns), exact), drawn(rng, (rows, columns), exact)
    if warps == 3:
        # Lanes 12 to 15 have a left operand of zeros, lanes 20 to 23 a right one. A lane that skips mma for
        # them makes its warp diverge.
        s[:, 3::8], g[:, 5::8] = 0, 0
    s_row, g_row = rng.integers(0, rows - 15, (2, 2, warps))
    places = np.stack([s_row, g_row, rng.integers(0, columns - 15, (2, warps)) // 8 * 8], -1).astype(int32)
    places[-1, -1] = rows - 16, rows - 16, columns // 8 * 8 - 16  # the last there are
    if warps == 2 and rows > 16:
        # The first window of warp 0 is zero, and the second block of warp 1. A warp must not skip its mma.
        (s_first, _, left), (_, g_first, right) = places[0, 0], places[1, 1]
        s[s_first : s_first + 16, left : left + 16] = 0
        g[g_first : g_first + 16, right : right + 8] = 0
    large = 5000 if exact else 5
    before = rng.integers(-large, large + 1, (LANES * warps, 4)).astype(float32)
    height, width = GREATEST

    @cuda.jit
    def every_warp(s, g, places, before, out):
        s_tile = cuda.shared.array((height, WIDTH), int16, alignment=16)
        g_tile = cuda.shared.array((height, WIDTH), int16, alignment=16)
        sums = cuda.local.array(4, float32)
        for e in range(cuda.threadIdx.x, height * width, cuda.blockDim.x):
            i, j = e // width, e % width
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

    def after(product):
        """Return the values in the lanes after a product at each position."""
        made = [[spread(product(*cut(s, g, place))) for place in turn] for turn in places.tolist()]
        return before + np.concatenate(made[0]) + np.concatenate(made[1])

    last = [spread(window.T @ block) for window, block in (cut(s, g, place) for place in places[-1].tolist())]
    mistakes = {
        NOT_ADDED: np.concatenate(last),
        NOT_TRANSPOSED: after(lambda window, block: window @ block),
        SWAPPED: after(lambda window, block: halves_swapped(window.T) @ block),
    }
    call = (
        f"add_products(sums, s_tile, s_row, g_tile, g_row, column), twice, with (s_row, g_row, column) ="
        f" {tuple(places[0, 0].tolist())} and {tuple(places[1, 0].tolist())} in warp 0 of {warps}"
    )
    report = kernels.judge(
        every_warp,
        (1, LANES * warps),
        (bits(s), bits(g), places, before),
        (np.full(before.shape, np.nan, float32),),
        (after(lambda window, block: window.T @ block),),
        rng,
        call,
        Contract(
            max_total={"shared": 2 * height * width + 2 * warps * 64},
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
        fail(
            f"correct, but ldmatrix loads {loaded:,} bytes; {needed:,} are needed",
            call=call,
            hint=BY_INSTRUCTIONS,
        )


def bytes_of_ldmatrix(report):
    """Return the bytes that the ldmatrix instructions of a launch load: 128 for each 8 × 8 matrix."""
    together = report.counters.get("together", {})
    return sum(
        128 * count * int(name[10]) for name, count in together.items() if name.startswith("ldmatrix_x")
    )


def known(got, mistakes, otherwise):
    """Return the hint for the mistake that produces exactly this result, or `otherwise`."""
    same = (said for said, value in mistakes.items() if np.allclose(got, value, 1e-4, 1e-4))
    return next(same, otherwise)


def cut(s, g, place):
    s_row, g_row, column = place
    return s[s_row : s_row + 16, column : column + 16], g[g_row : g_row + 16, column : column + 8]


def halves_swapped(a):
    """Return a 16 × 16 left operand with its upper right and lower left quarters exchanged."""
    return np.block([[a[:8, :8], a[8:, :8]], [a[:8, 8:], a[8:, 8:]]])


def spread(product):
    """Return (32, 4): a 16 × 8 matrix as it is distributed over the lanes of a warp."""
    return np.stack([product[TO_ROW + 8 * (i // 2), TO_COLUMN + i % 2] for i in range(4)], 1)


def on_tensor_cores(report, products, call):
    """Reject a launch that did not compute the expected number of 16 × 16 by 16 × 8 products on tensor
    cores."""
    together = report.counters.get("together", {})
    sixteens = sum(
        count * (2 if "k16" in name else 1) for name, count in together.items() if name.startswith("mma_")
    )
    if sixteens != 2 * products:
        fail(
            f"correct, but it makes {sixteens / 2:g} products of 16 × 16 by 16 × 8 with mma;"
            f" {products} are wanted",
            call=call,
            hint="mma_bf16(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3) is one, even if its operands are 0.",
        )


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
    """Each warp has every warps-th row shift; large: of whole numbers in the thousands."""
    shape = shifts, WINDOW, BLOCK
    products = (rng.integers(-9, 10, shape) * 4096 if large else rng.standard_normal(shape)).astype(float32)
    tap = np.arange(WINDOW)[:, None] - np.arange(BLOCK)
    products[:, (tap < 0) | (tap >= c_k)] = np.nan
    wanted = np.array([[product[tap == b].sum(dtype=np.float64) for b in range(c_k)] for product in products])
    sums = np.stack([spread(product) for product in products])  # (shift, lane, 4)

    @cuda.jit
    def every_shift(given, c_k, taps):
        diagonals = cuda.shared.array((warps, MOST_TAPS, BLOCK), float32)
        sums = cuda.local.array(4, float32)
        lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
        for a in range(warp, given.shape[0], warps):
            for x in range(4):
                sums[x] = given[a, lane, x]
            sum_diagonals(taps, a, diagonals[warp], sums, c_k)

    out = np.full((shifts, c_k + 1), inputs.SENTINEL, float32)
    wanted = np.pad(wanted, ((0, 0), (0, 1)), constant_values=inputs.SENTINEL)
    call = (
        f"sum_diagonals(taps, a, diagonals, sums, c_k={c_k}), {plural(shifts, 'row shift')} by"
        f" {plural(warps, 'warp')}"
    )
    kernels.judge(
        every_shift,
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


# 18.5 -------------------------------------------------------------------------------------------------------

KEYS = 128
BANDS_CHANGED = (
    "NaN: either a score that no tap reaches was read, or `bands` was changed, which the next 128 keys need"
    " too. The block has two warps: a lane is cuda.threadIdx.x & 31."
)
OVERLAP = (
    "t[e] is T of key 8 (lane // 4 + 8 (e // 2)) + 2 (lane % 4) + e % 2, and T[8 m + y] = Σ_a Σ_x scores[a,"
    " 8 m + x] · B_a[x, y]. Row m of the left operand of row a is scores[a, 8 m : 8 m + 16]."
)
APART = "Equal to what rows 16 apart would give, scores[a, 16 m : 16 m + 16]: they are to overlap, 8 apart."
LAST_ROW = "Equal to what the last row of taps alone gives: the sums of one mma are the next one's c."


def check_convolved(convolve, c_q, c_k, exact, rng):
    """Check T for KEYS keys, computed by one warp in a block of two warps."""
    columns, warps = KEYS + BLOCK, 2
    s, w = drawn(rng, (warps, c_q, columns), exact), drawn(rng, (1, c_q, c_k), exact)
    s *= 64 if exact else 1  # whole numbers as before, and T in the thousands
    if c_q == 9:
        # One row of taps is zero, and one row of scores. A warp must not skip its mma.
        w[0, 4], s[:, 6] = 0, 0
    s[:, :, KEYS + c_k - 1 :] = 0  # no tap reaches it, and a band has zeros there
    if c_q == 3:
        # Lanes 12 to 15 have a left operand of zeros. A lane that skips mma for it makes its warp diverge.
        s[:, :, 24:40], s[:, :, 88:104] = 0, 0
    load_taps, height, room, numbers = tap_loader("bfloat16", c_q, c_k), 16, 2 * KEYS + 2 * BLOCK, 2 * c_q

    @cuda.jit
    def every_warp(s, w, out):
        scores = cuda.shared.array((warps, height, room), int16, alignment=16)
        bands = cuda.local.array(numbers, uint32)
        again = cuda.local.array(numbers, uint32)
        t = cuda.local.array(4, float32)
        lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
        for a in range(height):
            for j in range(lane, room, 32):
                inside = a < s.shape[1] and j < s.shape[2]
                scores[warp, a, j] = s[warp, a, j] if inside else NAN
        load_taps(bands, w, 0)
        cuda.syncwarp()
        for e in range(4):
            t[e] = float32(77)
        convolve(t, scores[warp], bands)
        load_taps(again, w, 0)
        for number in range(numbers):
            if bands[number] != again[number]:
                t[0] = NO_NUMBER  # the next 128 keys need them as well
        for e in range(4):
            out[cuda.threadIdx.x, e] = t[e]

    def t_of(apart=BLOCK, rows=range(c_q)):
        """Return the values in the lanes of both warps if the operand's rows are that far apart."""
        full = np.pad(s, ((0, 0), (0, 0), (0, WINDOW * apart)))
        first = apart * np.arange(WINDOW)[:, None] + np.arange(BLOCK)
        t = sum(w[0, a, b] * full[:, a, first + b] for a in rows for b in range(c_k))
        return np.concatenate([spread(of_warp) for of_warp in t])

    mistakes = {APART: t_of(apart=WINDOW), LAST_ROW: t_of(rows=[c_q - 1])}
    call = f"convolve(t, scores, bands) with {c_q} × {c_k} taps, {KEYS} keys"
    report = kernels.judge(
        every_warp,
        (1, LANES * warps),
        (bits(s), w.astype(float32)),
        (np.full((LANES * warps, 4), np.nan, float32),),
        (t_of(),),
        rng,
        call,
        Contract(
            max_total={"shared": warps * (height * room + c_q * LANES)},
            barriers=(0, 0),
            warp_barriers=(warps, warps),  # of the check's own kernel
            shuffles=(0, 0),
            atomics=(0, 0),
            hint=ONCE,
        ),
        tolerance=0 if exact else 2e-5,
        what="T",
        float64=0,
        hint=lambda got: BANDS_CHANGED if np.isnan(got).any() else known(got, mistakes, OVERLAP),
    )
    on_tensor_cores(report, warps * c_q, call)


ONCE = (
    "One ldmatrix_x4 and one mma_bf16 for each row of taps, and no barrier. Lane 8 r + i supplies the address"
    " of row i of matrix r."
)
