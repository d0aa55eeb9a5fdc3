"""Answers of a reader of lesson 16 (tensor cores): wrong ones that the checks once accepted, variants of
them, and unusual correct ones."""

import numpy as np
from ml_dtypes import bfloat16

from readers.lessons01_08 import edit

U = 2.0**-8
LONG = "range(0, a.shape[1], {})"
FETCH = "a0, a1, a2, a3 = load_a(a, first)"
SUM = "d0, d1, d2, d3 = mma_bf16(a0, a1, a2, a3, b0, b1, d0, d1, d2, d3)"
RIGHT_HALF = "e0, e1, e2, e3 = mma_bf16("
ANY = "cuda.any_sync(0xFFFFFFFF, {})"
STORED = "out[i, 2 * j], out[i, 2 * j + 1] = d0, d1"
ROUND = "d0 = float32(17 * d0) - float32(float32(17 * d0) - d0)"  # rounds to 20 bits
SECOND_BARRIER = "        cuda.syncthreads()  # used: the next tiles may overwrite these\n"


def bound(factor, size=np.abs):
    return lambda a, b: factor(a.shape[1]) * (size(a) @ size(b))


def rounded(x):
    return np.abs(x.astype(bfloat16).astype(float))


def off(x):
    return np.abs(x.astype(bfloat16).astype(float) - x)


WRONG = {
    "ex16_1": [
        (
            "two warps at most",
            edit("ex16_1", ("cuda.threadIdx.x % 32", "cuda.threadIdx.x - cuda.threadIdx.x // 32 % 2 * 32")),
        )
    ],
    "ex16_2": [
        ("96 words at most", edit("ex16_2", (LONG.format(8), "range(0, min(a.shape[1], 96), 8)"))),
        ("sums of 20 bits", edit("ex16_2", (STORED, f"{ROUND}\n    {STORED}"))),
        (
            "a piece of zeros is skipped",
            edit("ex16_2", (SUM, f"if {ANY.format('(a0 | a1 | a2 | a3) != 0')}:\n            {SUM}")),
        ),
    ],
    "ex16_3": [
        ("1.99 u", bound(lambda _: 1.99 * U)),
        ("2.02 u", bound(lambda _: 2.02 * U)),
        ("of the rounded numbers", bound(lambda _: 2 * U + U * U, rounded)),
        ("the sum's rounding too", bound(lambda k: 2 * U + U * U + k * 2.0**-24)),
        ("of these roundings", lambda a, b: off(a) @ np.abs(b) + (np.abs(a) + off(a)) @ off(b)),
    ],
    "ex16_4": [("64 rows at most", edit("ex16_4", ("a_tile, (row + i,", "a_tile, ((row + i) % 64,")))],
    "ex16_5": [
        ("256 terms at most", edit("ex16_5", (LONG.format(32), "range(0, min(a.shape[1], 256), 32)"))),
        (
            "three rows of blocks at most",
            edit("ex16_5", ("cuda.blockIdx.y * 32", "cuda.blockIdx.y % 3 * 32")),
        ),
        (
            "a piece of zeros is skipped",
            edit("ex16_5", (RIGHT_HALF, f"if {ANY.format('(b2 | b3) != 0')}:\n                {RIGHT_HALF}")),
        ),
    ],
}
RIGHT = {
    "ex16_2": [
        (
            "other terms to each lane, the same in A and B",
            edit(
                "ex16_2",
                (FETCH, "w = first + 2 * j"),
                ("b0, b1 = b[i, first + j], b[i, first + j + 4]", "b0, b1 = b[i, w], b[i, w + 1]"),
                ("(a0, a1, a2, a3, b0,", "(a[i, w], a[i + 8, w], a[i, w + 1], a[i + 8, w + 1], b0,"),
            ),
        )
    ],
    "ex16_3": [("no term above what errors reach", bound(lambda _: (1 + U / (1 + U)) ** 2 - 1))],
    "ex16_4": [
        (
            "the corners are views",
            edit(
                "ex16_4",
                ("a_tile, (row + i, step + j)", "a_tile[row:, step:], (i, j)"),
                ("b_tile, (step + i, column + j)", "b_tile[step:, column:], (i, j)"),
            ),
        )
    ],
    "ex16_5": [
        (
            "no step beyond the last term",
            edit("ex16_5", ("range(0, 32, 16)", "range(0, min(32, a.shape[1] - start), 16)")),
        ),
        (
            "the second barrier is before the loads",
            edit(
                "ex16_5",
                (SECOND_BARRIER, ""),
                ("        load_tile(a_tile", "        cuda.syncthreads()\n        load_tile(a_tile"),
            ),
        ),
    ],
}
