"""Checks of lesson 18b: the convolution of a decoder's scores as products with overlapping rows."""

import numpy as np
from numba import cuda
from numpy import float32, int16, uint32

from course.check import kernels
from course.check.contract import Contract
from course.check.harness import exercise
from course.check.lesson18 import BLOCK, LANES, WINDOW
from course.check.tensor_cores import NAN, bits, drawn, known, on_tensor_cores, spread
from kernels.tensor_cores.tiles import tap_loader


@exercise("18.5", "convolve")
def ex18_5(convolve, rng):
    kernels.jitted(convolve, "convolve")
    for c_q, c_k, exact in [(1, 1, True), (2, 3, True), (7, 7, False), (3, 9, True), (9, 8, False)]:
        check_convolved(convolve, c_q, c_k, exact, rng)
    return "128 keys each, 1 × 1 to 9 × 8 and 3 × 9 taps, NaN beyond what the taps reach"


# 18.5 -------------------------------------------------------------------------------------------------------

KEYS = 128
NO_NUMBER = float32("nan")
HEIGHT, WIDTH = 16, 2 * KEYS + 2 * BLOCK  # the shape of the array of scores in shared memory
BANDS_CHANGED = (
    "NaN: either a score that no tap reaches was read, or `bands` was changed, which the next 128 keys need"
    " too. The block has two warps: a lane is cuda.threadIdx.x & 31."
)
OVERLAP = (
    "t[e] is T of key 8 (lane // 4 + 8 (e // 2)) + 2 (lane % 4) + e % 2, and T[8 m + y] = Σ_a Σ_x scores[a,"
    " 8 m + x] · B_a[x, y]. Row m of the left operand of row a is scores[a, 8 m : 8 m + 16]."
)
APART = "Equal to what rows 16 apart would give, scores[a, 16 m : 16 m + 16]: they are to overlap, 8 apart."
OLD = 77  # the entries of t before the call
OLD_VALUES = f"Equal to T + {OLD}, and {OLD} was the old value of each entry of t: ignore the old values."
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

    def t_of(apart=BLOCK, rows=range(c_q)):
        """Return the values in the lanes of both warps if the operand's rows are that far apart."""
        full = np.pad(s, ((0, 0), (0, 0), (0, WINDOW * apart)))
        first = apart * np.arange(WINDOW)[:, None] + np.arange(BLOCK)
        t = sum(w[0, a, b] * full[:, a, first + b] for a in rows for b in range(c_k))
        return np.concatenate([spread(of_warp) for of_warp in t])

    mistakes = {APART: t_of(apart=WINDOW), LAST_ROW: t_of(rows=[c_q - 1]), OLD_VALUES: t_of() + OLD}
    call = f"convolve(t, scores, bands) with {c_q} × {c_k} taps, {KEYS} keys"
    report = kernels.judge(
        with_convolve(convolve, warps, c_q, c_k),
        (1, LANES * warps),
        (bits(s), w.astype(float32)),
        (np.full((LANES * warps, 4), np.nan, float32),),
        (t_of(),),
        rng,
        call,
        Contract(
            max_total={"shared": warps * (HEIGHT * WIDTH + c_q * LANES)},
            barriers=(0, 0),
            warp_barriers=(warps, warps),  # of the check's own kernel
            shuffles=(0, 0),
            atomics=(0, 0),
            hint=ONCE,
        ),
        tolerance=0 if exact else 2e-5,
        what="t, indexed [thread, e]",
        float64=0,
        hint=lambda got: BANDS_CHANGED if np.isnan(got).any() else known(got, mistakes, OVERLAP),
    )
    on_tensor_cores(report, warps * c_q, call)


def with_convolve(convolve, warps, c_q, c_k):
    """Return a kernel in which each warp calls `convolve` once. If the call changes `bands`, T gets a NaN."""
    load_taps, numbers = tap_loader("bfloat16", c_q, c_k), 2 * c_q

    @cuda.jit
    def every_warp(s, w, out):
        scores = cuda.shared.array((warps, HEIGHT, WIDTH), int16, alignment=16)
        bands = cuda.local.array(numbers, uint32)
        again = cuda.local.array(numbers, uint32)
        t = cuda.local.array(4, float32)
        lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
        for a in range(HEIGHT):
            for j in range(lane, WIDTH, 32):
                inside = a < s.shape[1] and j < s.shape[2]
                scores[warp, a, j] = s[warp, a, j] if inside else NAN
        load_taps(bands, w, 0)
        cuda.syncwarp()
        for e in range(4):
            t[e] = float32(OLD)
        convolve(t, scores[warp], bands)
        load_taps(again, w, 0)
        for number in range(numbers):
            if bands[number] != again[number]:
                t[0] = NO_NUMBER  # the next 128 keys need them as well
        for e in range(4):
            out[cuda.threadIdx.x, e] = t[e]

    return every_warp


ONCE = (
    "One ldmatrix_x4 and one mma_bf16 for each row of taps, and no barrier. Lane 8 r + i supplies the address"
    " of row i of matrix r."
)
