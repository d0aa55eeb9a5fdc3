"""Checks of lesson 16: fragments and tensor-core products in `sim`, and a bound for the rounding error. They
compare values and count executed instructions."""

import numpy as np
from numba import cuda
from numpy import float32, uint32

from course.check import kernels
from course.check.contract import Contract
from course.check.harness import array, compare, exercise, fail, shape
from course.check.tensor_cores import MMA, bits, executed, held, value
from course.check.trial import tried
from sim.nouns import plural


def matrices(rng, m, k, n):
    """[(what, a (m, k), b (k, n), tolerance)], bits of bfloat16: whole numbers, of which all sums are exact;
    others; and NaN, each where the other matrix has zeros, which make a NaN of it all the same."""
    whole = bits(rng.integers(-100, 101, (m, k))), bits(rng.integers(-100, 101, (k, n)))
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    a_nan, b_nan = a.copy(), b.copy()
    a_nan[:, :16] = b_nan[(k - 1) // 16 * 16 :] = 0
    a_nan[rng.integers(m), -1] = b_nan[0, rng.integers(n)] = np.nan
    tried("NaN times 0")
    return [
        ("whole numbers to ±100", *whole, 0),
        ("normal numbers", bits(a), bits(b), 2e-5),
        ("normal numbers, zeros and NaN", bits(a_nan), bits(b_nan), 2e-5),
    ]


def long(rng, m, n, short=0):
    """(what, a, b, tolerance) of a product whose sums are whole numbers near 2²³, which take all the bits of
    float32; of 560 to 640 terms, less `short`."""
    k = 16 * int(rng.integers(35, 41)) - short
    a, b = (bits(rng.integers(0, 256, size)) for size in ((m, k), (k, n)))
    return "whole numbers from 0 to 255", a, b, 0


# 16.1 -------------------------------------------------------------------------------------------------------

MAP = (
    "With quad g = lane // 4 and position t = lane % 4: a0 is word t of row g, a1 the same word of row g + 8;"
    " a2 and a3 lie 8 columns, which are 4 words, further right."
)
PIECES = [(8, 0, 1), (8, 0, 2), (24, 8, 1), (40, 16, 3), (21, 5, 1)]  # words in a row, first, warps


@exercise("16.1", "load_a")
def ex16_1(load_a, rng):
    kernels.jitted(load_a, "load_a")

    @cuda.jit
    def every_lane(a, first, out):
        a0, a1, a2, a3 = load_a(a, first)
        thread = cuda.threadIdx.x
        out[thread, 0], out[thread, 1], out[thread, 2], out[thread, 3] = a0, a1, a2, a3

    for width, first, warps in PIECES:
        a = rng.integers(1, 2**32, (16, width), dtype=np.uint64).astype(uint32)
        if width == 8:
            a = 100 * np.arange(16, dtype=uint32)[:, None] + np.arange(8, dtype=uint32)
        wanted = held(a[:, first : first + 8])
        kernels.judge(
            every_lane,
            (1, 32 * warps),
            (a, first),
            (np.zeros((32 * warps, 4), uint32),),
            (np.tile(wanted, (warps, 1)),),
            rng,
            f"load_a(a, first={first}) with a of shape (16, {width}), by {plural(warps, 'warp')};"
            f" {'a[i, j] = 100 i + j; ' * (width == 8)}out[lane, r] is register r",
            Contract(
                max_per_thread={"a": 4},
                max_total={"shared": 0},
                shuffles=(0, 0),
                barriers=(0, 0),
                hint="Each lane loads its own four words, each once.",
            ),
            tolerance=0,
            what="a lane holds another word (at [0, lane, register])",
            hint=MAP,
            float64=0,
        )
    return "all lanes of one to three warps, pieces anywhere in rows of 8 to 40 words"


# 16.2 -------------------------------------------------------------------------------------------------------

PRODUCT = (
    "Compare with the picture: b0 of lane 6 is word 2 of b[1], and b1 is 4 words further; d0 and d1 are"
    " neighbours in row lane // 4, d2 and d3 in row lane // 4 + 8. Each mma adds to the d of the one before."
)
BY_MMA = "All products go through mma_bf16, one for each 16 terms."
OWN = (
    "Each lane loads the words that it holds, each once, and stores its own four numbers; nothing is shared."
)


@exercise("16.2", "product")
def ex16_2(product, rng):
    for k in (16, 32, 80):
        for what, a, b, tolerance in matrices(rng, 16, k, 8):
            check_product(product, what, a, b, tolerance, rng)
    check_product(product, *long(rng, 16, 8), rng)
    return "sums of 16 to 640 terms, whole numbers and others"


def check_product(product, what, a, b, tolerance, rng):
    steps = a.shape[1] // 16
    call = f"product(a, b, out): {what}, {16 * steps} terms"
    report = kernels.judge(
        product,
        (1, 32),
        (a.view(uint32), np.ascontiguousarray(b.T).view(uint32)),
        (np.full((16, 8), np.nan, float32),),
        (value(a) @ value(b),),
        rng,
        call,
        Contract(
            "a b out",
            max_per_thread={"a": 4 * steps, "b": 2 * steps, "out": 4},
            max_total={"shared": 0},
            threads=32,
            shuffles=(0, 0),
            atomics=(0, 0),
            hint=OWN,
        ),
        tolerance=tolerance,
        what="a wrong product",
        hint=PRODUCT,
        float64=0,
    )
    executed(report, call, BY_MMA, **{MMA: (steps, steps)})


# 16.3 -------------------------------------------------------------------------------------------------------

U = 2.0**-8
WORST = 2 * U + U * U  # per |x| |y|, as in the text
REACHED = 0.999999 * ((1 + U / (1 + U)) ** 2 - 1)  # by numbers just above 1 + u, which round to 1 + 2u
ADDS_UP = (
    "Each term x y can be off by (2u + u²) |x| |y|, with u = 2⁻⁸, and all errors can have the same sign,"
    " whatever signs the terms have. So sum |x| |y|."
)


@exercise("16.3", "bound")
def ex16_3(bound, rng):
    for m, k, n in [(1, 1, 1), (2, 3, 4), (5, 64, 3), (16, 300, 8), (7, 2, 9)]:
        size = 10.0 ** rng.integers(-6, 7)
        a, b = size * rng.standard_normal((m, k)), rng.standard_normal((k, n))
        a[rng.random((m, k)) < 0.2] = 0
        given = a.copy(), b.copy()
        call = f"bound(a, b) with a of shape {a.shape}, numbers about {size:g}, and b of shape {b.shape}"
        got, terms = bound(a, b), np.abs(a) @ np.abs(b)
        compare((a, b), given, what="bound has changed an input", call=call, tolerance=0)
        if shape(got) != (m, n):
            fail(
                "wrong shape",
                call=call,
                wanted=(m, n),
                got=shape(got),
                hint="Return one bound per entry of A B.",
            )
        for what, wrong in (
            ("the error can be larger than that", ~(array(got) >= REACHED * terms)),
            ("the error is never as large as that", ~(array(got) <= 1.001 * WORST * terms)),
        ):
            if wrong.any():
                place = tuple(np.argwhere(wrong)[0].tolist())
                fail(
                    f"entry {place}: {what}",
                    call=call,
                    wanted=WORST * terms[place],
                    got=array(got)[place],
                    hint=ADDS_UP,
                )
    return "products of 1 to 300 terms, of numbers about 10⁻⁶ to 10⁶, of both signs"
