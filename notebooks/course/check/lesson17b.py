"""Checks of lesson 17b: the costs of three ways to compute a convolution, and taps as a matrix."""

import numpy as np
from numba import cuda
from numpy import float32, uint32

from course.check import kernels
from course.check.contract import Contract
from course.check.harness import compare, exercise, fail
from course.check.inputs import normal
from course.check.tensor_cores import COLUMN, ROW, parts, right_operand, unpack, used, which_half, words
from sim.nouns import plural

# 17.4 -------------------------------------------------------------------------------------------------------


def counted(d, c_q, c_k, strip):
    rows = strip + c_q - 1
    rows += rows % 2
    return d + 12 * c_q * c_k, d * rows / strip + c_q * (16 if c_k <= 9 else 24), d * c_k


@exercise("17.4", "routes")
def ex17_4(routes, rng):
    cases = [(64, 7, 7, 4), (128, 6, 11, 2), (64, 1, 1, 2), (16, 3, 5, 2), (64, 8, 9, 4), (64, 8, 10, 4)]
    cases += [
        (8 * d, c_q, c_k, strip) for d, c_q, c_k, strip in rng.integers(1, (33, 24, 18, 9), (60, 4)).tolist()
    ]
    for case in cases:
        got, call = routes(*case), "routes(d={}, c_q={}, c_k={}, strip={})".format(*case)
        if not isinstance(got, (tuple, list, np.ndarray)) or len(got) != 3:
            fail("wanted three numbers: plain, toeplitz, folding", call=call, got=repr(got))
        for name, mine, theirs in zip(("plain", "toeplitz", "folding"), got, counted(*case), strict=True):
            compare(mine, theirs, what=name, call=call, tolerance=1e-9, hint=COUNTS[name])
    return f"{len(cases)} shapes, c_q to 23, c_k to 17, strips of 1 to 8"


COUNTS = {
    "plain": "d for the score, and c_q · c_k multiply-adds for the convolution, each of which counts as 12.",
    "toeplitz": (
        "d · rows / strip, where rows = strip + c_q - 1, and one more if that is odd; then 16 for each row of"
        " taps, 24 if c_k is more than 9."
    ),
    "folding": "Its inner size is d · c_k.",
}


# 17.5 -------------------------------------------------------------------------------------------------------


def banded(taps):
    """Return the band matrix B (16, 8) for one row of taps."""
    b = np.zeros((16, 8), float32)
    for j in range(8):
        b[j : j + len(taps), j] = taps
    return b


@exercise("17.5", "band")
def ex17_5(band, rng):
    kernels.jitted(band, "band")

    def operands(w, out):
        thread = cuda.threadIdx.x
        for a in range(w.shape[0]):
            b0, b1 = band(w, a)
            unpack(out[a], thread, 0, b0)
            unpack(out[a], thread, 1, b1)

    for c_q, c_k in [(1, 1), (1, 9), (3, 5), (2, 8), (4, 2), (7, 7), (12, int(rng.integers(3, 9)))]:
        size = 10 ** rng.uniform(1, 4)
        w = normal(rng, c_q, c_k) * float32(1 / size if c_k % 2 else size)
        if c_q > 2:
            w[0, 0] = w[-1, -1] = np.inf  # 0 times a tap is not 0 where the tap is infinite
        wanted = parts(np.stack([np.tile(right_operand(banded(taps)), (2, 1)) for taps in w]))
        kernels.judge(
            operands,
            (1, 64),
            (w,),
            (np.full((c_q, 64, 2, 2), np.nan, float32),),
            (wanted,),
            rng,
            f"band(w, a) in two warps, w of {c_q} × {c_k} taps",
            Contract(
                names="w out",
                max_per_thread={"w": 4 * c_q},
                max_total={"shared": 0},
                shuffles=(0, 0),
                barriers=(0, 0),
                warp_barriers=(0, 0),
            ),
            tolerance=0,
            what="a wrong operand",
            hint=lambda out, wanted=wanted: which_tap(out, wanted),
            float64=0,
        )
    return "1 to 12 rows of 1 to 9 taps, some of them infinite"


def which_tap(out, wanted):
    wrong = np.argwhere(out != wanted)
    if not len(wrong):
        return None
    a, thread, r, half = (int(x) for x in wrong[0])
    lane = thread % 32
    row, column = lane % 4 * 2 + half + 8 * r, lane // 4
    return (
        f"Row {a} of taps, warp {thread // 32}, lane {lane}, b{r}, {which_half(half)} half is"
        f" B[{row}, {column}]: wanted {wanted[a, thread, r, half]:.6g}, got {out[a, thread, r, half]:.6g}."
    )


# 17.6 -------------------------------------------------------------------------------------------------------


@exercise("17.6", "convolve")
def ex17_6(convolve, rng):
    kernels.jitted(convolve, "convolve")
    for c_q in (1, 2, 3, 4, 7, 11):
        check_convolve(convolve, c_q, rng)
    return "1 to 11 rows of taps, among them rows of zeros; large scores"


OLD = 100  # value of every entry of t before the call


def check_convolve(convolve, c_q, rng):
    rows = c_q + 1 + (c_q + 1) % 2

    def in_registers(s, b, t, s_kept, b_kept):
        thread = cuda.threadIdx.x
        my_s = cuda.local.array((rows, 3), uint32)
        my_b = cuda.local.array((c_q, 2), uint32)
        my_t = cuda.local.array(8, float32)
        for row in range(rows):
            for block in range(3):
                my_s[row, block] = s[thread, row, block]
        for a in range(c_q):
            my_b[a, 0], my_b[a, 1] = b[a, thread, 0], b[a, thread, 1]
        for x in range(8):
            my_t[x] = float32(OLD)
        convolve(my_t, my_s, my_b)
        for x in range(8):
            t[thread, x] = my_t[x]
        for row in range(rows):
            for block in range(3):
                s_kept[thread, row, block] = my_s[row, block]
        for a in range(c_q):
            b_kept[a, thread, 0], b_kept[a, thread, 1] = my_b[a, 0], my_b[a, 1]

    # two warps; whole numbers of 8 bits, whose sums float32 holds exactly
    s0, b = (rng.integers(-99, 100, shape).astype(float32) for shape in ((16, rows, 24), (c_q, 16, 8)))
    b[1:2] = 0  # a row of taps may be 0
    # Some lanes have operands of zeros alone. A lane that skips mma for them makes the warp diverge.
    for thread in rng.choice(64, 12, replace=False):
        row, column = thread // 4, thread % 4 * 2
        s0[row, :, [column, column + 1, column + 8, column + 9, column + 16, column + 17]] = 0
    b[2:, :, 3] = 0
    group, place = np.concatenate([ROW, ROW + 8]), np.tile(COLUMN, 2)
    s = np.stack(
        [words(s0[group, :, place + 8 * x], s0[group, :, place + 8 * x + 1]) for x in range(3)], axis=2
    )
    if rows > c_q + 1:
        s[:, -1] = 0x7FFF7FFF  # NaN: no row of taps reaches it
    of_threads = np.stack([np.tile(right_operand(one), (2, 1)) for one in b])
    t = np.zeros((16, 2, 16))
    for a in range(c_q):
        for block in range(2):
            t[:, :, 8 * block : 8 * block + 8] += s0[:, a : a + 2, 8 * block : 8 * block + 16] @ b[a]
    wanted = np.stack([t[group, x // 2 % 2, place + x % 2 + x // 4 * 8] for x in range(8)], 1)
    call = f"convolve(t, s, bands) in two warps, {plural(c_q, 'row')} of taps"
    report = kernels.judge(
        in_registers,
        (1, 64),
        (s, of_threads),
        (np.full((64, 8), np.nan, float32), np.zeros_like(s), np.zeros_like(of_threads)),
        (wanted, s.copy(), of_threads.copy()),
        rng,
        call,
        Contract(max_total={"shared": 0}, shuffles=(0, 0), barriers=(0, 0), warp_barriers=(0, 0)),
        tolerance=0,
        what="a wrong T, or s or bands changed",
        hint=lambda out, *kept: which_t(out, wanted),
        float64=0,
    )
    products = {"mma_m16n8k16_f32_bf16": 2 * 2 * c_q}
    used(report, products, call, "Two products of each warp for each row of taps: one for each 8 keys.")


def which_t(out, wanted):
    wrong = np.argwhere(out != wanted)
    if not len(wrong):
        return "s and bands stay as they are."
    thread, x = (int(i) for i in wrong[0])
    if np.array_equal(out, wanted + OLD):
        return f"t held {OLD} before the call: begin with 0."
    warp, lane = divmod(thread, 32)
    query, key = x // 2 % 2, lane % 4 * 2 + x % 2 + x // 4 * 8
    return (
        f"Warp {warp}, lane {lane}, t[{x}] is T of the lane's query {query} and key {key} of 16. With row a"
        " of the taps, query h needs row a + h of s, and the keys 8 b to 8 b + 7 need the blocks b and b + 1."
    )
