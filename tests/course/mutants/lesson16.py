"""Wrong answers to the exercises of lesson 16, each labelled with its mistake, and alternative correct
answers.

A wrong answer is a correct one with one or two lines edited.
"""

import numpy as np
from ml_dtypes import bfloat16
from numba import cuda
from numpy import float32, int16, uint32

from editing import wrong
from kernels.tensor_cores.instructions import (
    ldmatrix_x2,
    ldmatrix_x2_trans,
    ldmatrix_x4,
    ldmatrix_x4_trans,
    mma_bf16,
    mma_f16,
)
from power.lessons import from_solutions

load_a, product, fragments, load_tile, store_piece, matmul = from_solutions(
    "16", "load_a", "product", "fragments", "load_tile", "store_piece", "matmul", mma_f16=mma_f16
)


ROWS = 32


# --- 16.1 ---------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def load_a_by_register(a, first):
    """Correct: loops over registers, and computes positions from the bits of the lane."""
    lane = cuda.laneid
    words = cuda.local.array(4, uint32)
    for r in range(4):
        words[r] = a[(lane >> 2) + ((r & 1) << 3), first + (lane & 3) + ((r >> 1) << 2)]
    return words[0], words[1], words[2], words[3]


@cuda.jit(device=True)
def one_word(a, first, r):
    lane = cuda.threadIdx.x & 31
    return a[lane // 4 + r % 2 * 8, first + lane % 4 + r // 2 * 4]


@cuda.jit(device=True)
def load_a_by_calls(a, first):
    return one_word(a, first, 0), one_word(a, first, 1), one_word(a, first, 2), one_word(a, first, 3)


def plain_load_a(a, first):
    lane = cuda.threadIdx.x % 32
    i, j = lane // 4, first + lane % 4
    return a[i, j], a[i + 8, j], a[i, j + 4], a[i + 8, j + 4]


@cuda.jit(device=True)
def load_a_by_shuffle(a, first):
    """Load row g + 8 for lane 4 g + t with a shuffle from the lanes that have loaded it."""
    lane = cuda.threadIdx.x % 32
    i, j = lane // 4, first + lane % 4
    word = a[i + 8, j]
    return a[i, j], cuda.shfl_sync(0xFFFFFFFF, word, lane), a[i, j + 4], a[i + 8, j + 4]


LOAD_A = [
    *wrong(
        load_a,
        ("lanes by columns", ("lane // 4, first + lane % 4", "lane % 8, first + lane // 8")),
        ("eight words further, not four", ("a[i, j + 4], a[i + 8, j + 4]", "a[i, j + 8], a[i + 8, j + 8]")),
        ("counts in numbers, not in words", ("first + lane % 4", "first + lane % 4 * 2")),
        ("first is ignored", ("first + lane % 4", "lane % 4")),
        ("first counts pieces", ("first + lane % 4", "first * 8 + lane % 4")),
        ("one warp alone", (" % 32", "")),
        ("lane modulo 16", ("% 32", "% 16")),
        (
            "rows 4 apart",
            ("a[i + 8, j], a[i, j + 4], a[i + 8, j + 4]", "a[i + 4, j], a[i, j + 4], a[i + 4, j + 4]"),
        ),
        ("the upper rows twice", ("a[i + 8, j + 4]", "a[i, j + 4]")),
        ("three registers", (", a[i + 8, j + 4]", "")),
        (
            "every word loaded twice",
            ("    return", "    b = a[i, j] + a[i + 8, j] + a[i, j + 4]\n    return"),
        ),
    ),
    ("a plain function", plain_load_a),
    ("a shuffle that does nothing", load_a_by_shuffle),
]

# --- 16.2 ---------------------------------------------------------------------------------------------------


def product_backwards(a, b, out):
    """Correct: multiplies from the last words to the first, with the sums in a local array."""
    lane = cuda.laneid
    d = cuda.local.array(4, float32)
    for e in range(4):
        d[e] = 0
    first = a.shape[1] - 8
    while first >= 0:
        a0, a1, a2, a3 = load_a(a, first)
        d[0], d[1], d[2], d[3] = mma_bf16(
            a0, a1, a2, a3, b[lane >> 2, first + (lane & 3)], b[lane >> 2, first + (lane & 3) + 4],
            d[0], d[1], d[2], d[3],
        )  # fmt: skip
        first -= 8
    for e in range(4):
        out[(lane >> 2) + 8 * (e >> 1), 2 * (lane & 3) + (e & 1)] = d[e]


@cuda.jit
def product_in_two_chains(a, b, out):
    """Correct: accumulates even and odd steps separately, and adds both at the end."""
    lane = cuda.threadIdx.x
    i, j = lane // 4, lane % 4
    c0 = c1 = c2 = c3 = e0 = e1 = e2 = e3 = float32(0)
    steps = a.shape[1] // 8
    for step in range(0, steps, 2):
        a0, a1, a2, a3 = load_a(a, 8 * step)
        c0, c1, c2, c3 = mma_bf16(a0, a1, a2, a3, b[i, 8 * step + j], b[i, 8 * step + j + 4], c0, c1, c2, c3)
        if step + 1 < steps:
            a0, a1, a2, a3 = load_a(a, 8 * step + 8)
            e0, e1, e2, e3 = mma_bf16(
                a0, a1, a2, a3, b[i, 8 * step + 8 + j], b[i, 8 * step + 12 + j], e0, e1, e2, e3
            )
    out[i, 2 * j], out[i, 2 * j + 1] = c0 + e0, c1 + e1
    out[i + 8, 2 * j], out[i + 8, 2 * j + 1] = c2 + e2, c3 + e3


@cuda.jit(device=True)
def rounded(x):
    """Return x rounded to 8 significant bits (Veltkamp's splitting)."""
    large = float32(65537) * x
    return large - (large - x)


def product_in_bfloat16(a, b, out):
    """Wrong: rounds the sums to bfloat16 after each step."""
    lane = cuda.threadIdx.x
    i, j = lane // 4, lane % 4
    d0 = d1 = d2 = d3 = float32(0)
    for first in range(0, a.shape[1], 8):
        a0, a1, a2, a3 = load_a(a, first)
        b0, b1 = b[i, first + j], b[i, first + j + 4]
        d0, d1, d2, d3 = mma_bf16(a0, a1, a2, a3, b0, b1, d0, d1, d2, d3)
        d0, d1, d2, d3 = rounded(d0), rounded(d1), rounded(d2), rounded(d3)
    out[i, 2 * j], out[i, 2 * j + 1] = d0, d1
    out[i + 8, 2 * j], out[i + 8, 2 * j + 1] = d2, d3


@cuda.jit(device=True)
def number(words, row, k):
    """Return bfloat16 element k of a row of 32-bit words as a float32, decoded from its bits."""
    bits = (words[row, k // 2] >> (16 * (k % 2))) & 0xFFFF
    size, exponent = float32(bits & 0x7F), int(bits >> 7) & 0xFF
    if exponent > 0:
        size += float32(128)
    exponent = max(exponent, 1) - 134
    while exponent > 0:
        size *= float32(2)
        exponent -= 1
    while exponent < 0:
        size *= float32(0.5)
        exponent += 1
    return -size if bits >> 15 else size


def product_without_a_tensor_core(a, b, out):
    lane = cuda.threadIdx.x
    for e in range(4):
        row, column = lane // 4 + 8 * (e // 2), 2 * (lane % 4) + e % 2
        total = float32(0)
        for k in range(2 * a.shape[1]):
            total += number(a, row, k) * number(b, column, k)
        out[row, column] = total


PRODUCT = [
    *wrong(
        product,
        (
            "b's words at the place of the group",
            ("b[i, first + j], b[i, first + j + 4]", "b[j, first + i], b[j + 4, first + i]"),
        ),
        (
            "b0 and b1 neighbours",
            ("b[i, first + j], b[i, first + j + 4]", "b[i, first + 2 * j], b[i, first + 2 * j + 1]"),
        ),
        ("b always from the first word", ("b[i, first + j], b[i, first + j + 4]", "b[i, j], b[i, j + 4]")),
        ("the first 16 terms alone", ("a.shape[1]", "8")),
        ("64 terms at most", ("a.shape[1]", "min(a.shape[1], 32)")),
        ("steps of 16 words", (", 8):", ", 16):")),
        ("each step begins at 0", ("d0, d1, d2, d3)", "float32(0), float32(0), float32(0), float32(0))")),
        ("sums that change places", ("b0, b1, d0, d1, d2, d3)", "b0, b1, d1, d0, d3, d2)")),
        ("stored columns one apart", ("out[i, 2 * j], out[i, 2 * j + 1]", "out[i, j], out[i, j + 4]")),
        (
            "d2 in the next row",
            ("out[i + 8, 2 * j], out[i + 8, 2 * j + 1]", "out[i + 1, 2 * j], out[i + 1, 2 * j + 1]"),
        ),
        (
            "D on its side",
            ("out[i, 2 * j], out[i, 2 * j + 1] = d0, d1", "out[2 * j, i], out[2 * j + 1, i] = d0, d1"),
        ),
        ("d1 and d2 exchanged", ("= d0, d1", "= d0, d2"), ("= d2, d3", "= d1, d3")),
        (
            "stored in each step",
            (
                "    out[i, 2 * j], out[i, 2 * j + 1] = d0, d1\n",
                "        out[i, 2 * j], out[i, 2 * j + 1] = d0, d1\n",
            ),
        ),
        ("float16's instruction", ("mma_bf16", "mma_f16")),
        (
            "lane 31 stays away",
            ("        d0, d1, d2, d3 = mma", "        if lane < 31:\n            d0, d1, d2, d3 = mma"),
        ),
        (
            "each product twice, halved",
            (
                "        d0, d1, d2, d3 = mma",
                "        d0, d1, d2, d3 = mma_bf16(a0, a1, a2, a3, b0, b1, d0, d1, d2, d3)\n"
                "        d0, d1, d2, d3 = mma",
            ),
            ("= d0, d1", "= d0 / 2, d1 / 2"),
            ("= d2, d3", "= d2 / 2, d3 / 2"),
        ),
        ("one step too many", ("range(0, a.shape[1], 8)", "range(0, a.shape[1] + 8, 8)")),
    ),
    ("sums rounded", product_in_bfloat16),
    ("no tensor core", product_without_a_tensor_core),
]

# --- 16.3 ---------------------------------------------------------------------------------------------------

U = 2.0**-8


def with_error(a, b):
    """Return the rounding error of these particular values, which is not a bound for other values."""
    rounded = [x.astype(bfloat16).astype(float) for x in (a, b)]
    return np.abs(rounded[0] @ rounded[1] - a @ b)


def spoils(a, b):
    np.abs(a, out=a)
    return (2 * U + U * U) * (a @ np.abs(b))


def in_loops(a, b):
    answer = np.zeros((a.shape[0], b.shape[1]))
    for i, row in enumerate(a):
        for j, column in enumerate(b.T):
            answer[i, j] = sum(abs(x * y) * ((1 + U) ** 2 - 1) for x, y in zip(row, column, strict=True))
    return answer


BOUND = [
    ("the product's own size", lambda a, b: (2 * U + U * U) * np.abs(a @ b)),
    ("signs that cancel", lambda a, b: (2 * U + U * U) * (a @ b)),
    ("half of u", lambda a, b: U * (np.abs(a) @ np.abs(b))),
    ("u = 2^-7", lambda a, b: 4 * U * (np.abs(a) @ np.abs(b))),
    ("u = 2^-9", lambda a, b: U * (1 + U / 4) * (np.abs(a) @ np.abs(b))),
    ("float32's u", lambda a, b: 2.0**-23 * (np.abs(a) @ np.abs(b))),
    ("float16's u", lambda a, b: 2.0**-10 * (np.abs(a) @ np.abs(b))),
    ("k times the largest term", lambda a, b: 2 * U * a.shape[1] * np.abs(a).max() * np.abs(b).max()),
    ("one number", lambda a, b: ((2 * U + U * U) * (np.abs(a) @ np.abs(b))).max()),
    (
        "the same everywhere",
        lambda a, b: np.full((len(a), b.shape[1]), ((2 * U + U * U) * (np.abs(a) @ np.abs(b))).max()),
    ),
    ("a root of k", lambda a, b: 2 * U * np.sqrt((a * a) @ (b * b))),
    ("on its side", lambda a, b: (2 * U + U * U) * (np.abs(a) @ np.abs(b)).T),
    ("this rounding alone", with_error),
    ("a destroyed", spoils),
    ("u squared alone", lambda a, b: U * U * (np.abs(a) @ np.abs(b))),
    ("with k in it", lambda a, b: (a.shape[1] * U) * (np.abs(a) @ np.abs(b))),
    ("nothing", lambda a, b: None),
]

# --- 16.4 ---------------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def fragments_renamed(a_tile, b_tile, row, column, step):
    """Correct: loads the matrices in a different order, and swaps the registers accordingly."""
    lane = cuda.threadIdx.x % 32
    i, j = lane // 16 * 8 + lane % 8, lane // 8 % 2 * 8
    a0, a2, a1, a3 = ldmatrix_x4(a_tile, (row + i, step + j))
    b0, b2, b1, b3 = ldmatrix_x4_trans(b_tile, (step + i, column + j))
    return a0, a1, a2, a3, b0, b1, b2, b3


@cuda.jit(device=True)
def corner(lane):
    return (lane & 7) + (lane & 8), (lane & 16) >> 1


@cuda.jit(device=True)
def fragments_by_bits(a_tile, b_tile, row, column, step):
    """Correct: loads B first, and computes positions from the bits of the lane."""
    i, j = corner(cuda.laneid)
    b = ldmatrix_x4_trans(b_tile, (step + i, column + j))
    a = ldmatrix_x4(a_tile, (row + i, step + j))
    return a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]


@cuda.jit(device=True)
def pair(tile, row, column):
    return (int(tile[row, column]) & 0xFFFF) | (int(tile[row, column + 1]) & 0xFFFF) << 16


@cuda.jit(device=True)
def column_pair(tile, row, column):
    return (int(tile[row, column]) & 0xFFFF) | (int(tile[row + 1, column]) & 0xFFFF) << 16


@cuda.jit(device=True)
def fragments_by_loads(a_tile, b_tile, row, column, step):
    lane = cuda.threadIdx.x % 32
    g, t = lane // 4, lane % 4 * 2
    return (
        pair(a_tile, row + g, step + t),
        pair(a_tile, row + g + 8, step + t),
        pair(a_tile, row + g, step + t + 8),
        pair(a_tile, row + g + 8, step + t + 8),
        column_pair(b_tile, step + t, column + g),
        column_pair(b_tile, step + t + 8, column + g),
        column_pair(b_tile, step + t, column + g + 8),
        column_pair(b_tile, step + t + 8, column + g + 8),
    )


@cuda.jit(device=True)
def fragments_in_halves(a_tile, b_tile, row, column, step):
    """Correct: uses four instructions that load two matrices each."""
    i = cuda.threadIdx.x % 16
    a0, a1 = ldmatrix_x2(a_tile, (row + i, step))
    a2, a3 = ldmatrix_x2(a_tile, (row + i, step + 8))
    b0, b1 = ldmatrix_x2_trans(b_tile, (step + i, column))
    b2, b3 = ldmatrix_x2_trans(b_tile, (step + i, column + 8))
    return a0, a1, a2, a3, b0, b1, b2, b3


FRAGMENTS = [
    *wrong(
        fragments,
        ("a on its side", ("= ldmatrix_x4(", "= ldmatrix_x4_trans(")),
        ("b not on its side", ("ldmatrix_x4_trans", "ldmatrix_x4")),
        ("addresses as words are held", ("lane % 16, lane // 16 * 8", "lane // 4, lane % 4 * 2")),
        (
            "matrices side by side first",
            ("lane % 16, lane // 16 * 8", "lane // 16 * 8 + lane % 8, lane // 8 % 2 * 8"),
        ),
        ("columns in words", ("lane // 16 * 8", "lane // 16 * 4")),
        ("the same columns twice", ("lane % 16, lane // 16 * 8", "lane % 16, 0")),
        ("row is ignored", ("row + i", "i")),
        ("tiles of 32 rows", ("row + i", "min(row + i, 31)")),
        ("b of 32 rows", ("step + i", "min(step + i, 31)")),
        ("rows modulo 32", ("row + i", "(row + i) % 32")),
        ("tiles of 32 columns", ("column + j", "min(column + j, 24)")),
        ("column is ignored", ("column + j", "j")),
        ("step is ignored in a", ("step + j", "j")),
        ("step is ignored in b", ("step + i", "i")),
        ("row and step exchanged", ("(row + i, step + j)", "(step + i, row // 8 * 8 + j)")),
        ("b's corner as a's", ("(step + i, column + j)", "(column + i, step + j)")),
        ("the first warp's lanes alone", (" % 32", "")),
        ("a twice", ("b_tile, (", "a_tile, (")),
        ("b first", ("return a0, a1, a2, a3, b0, b1, b2, b3", "return b0, b1, b2, b3, a0, a1, a2, a3")),
        (
            "a fetched twice",
            ("    b0, b1", "    a0, a1, a2, a3 = ldmatrix_x4(a_tile, (row + i, step + j))\n    b0, b1"),
        ),
    ),
    ("plain loads", fragments_by_loads),
    ("four instructions", fragments_in_halves),
]

# --- 16.5 ---------------------------------------------------------------------------------------------------


@cuda.jit
def matmul_otherwise(a, b, c):
    """Correct: assigns warps column by column, keeps sums in a local array, and pads rows to 56 elements."""
    a_tile = cuda.shared.array((ROWS, 56), int16, alignment=16)
    b_tile = cuda.shared.array((ROWS, 72), int16, alignment=16)
    warp = cuda.threadIdx.x >> 5
    row, column = (warp & 1) * 16, (warp >> 1) * 16
    i0, j0 = cuda.blockIdx.y * 32, cuda.blockIdx.x * 32
    d = cuda.local.array(8, float32)
    for e in range(8):
        d[e] = float32(0)
    stops = (a.shape[1] + 31) // 32
    for stop in range(stops):
        cuda.syncthreads()
        load_tile(a_tile, a, i0, stop * 32)
        load_tile(b_tile, b, stop * 32, j0)
        cuda.syncthreads()
        for step in range(0, min(32, a.shape[1] - stop * 32), 16):
            a0, a1, a2, a3, b0, b1, b2, b3 = fragments(a_tile, b_tile, row, column, step)
            d[0], d[1], d[2], d[3] = mma_bf16(a0, a1, a2, a3, b0, b1, d[0], d[1], d[2], d[3])
            d[4], d[5], d[6], d[7] = mma_bf16(a0, a1, a2, a3, b2, b3, d[4], d[5], d[6], d[7])
    for half in range(2):
        x = 4 * half
        store_piece(c, i0 + row, j0 + column + 8 * half, d[x], d[x + 1], d[x + 2], d[x + 3])


def matmul_by_halves(a, b, c):
    """Correct: uses one shared array for both tiles, and two matrices per instruction. Idle warps skip the
    product."""
    tiles = cuda.shared.array((64, 40), int16, alignment=16)
    lane, warp = cuda.laneid, cuda.threadIdx.x // 32
    row, column = warp // 2 * 16, warp % 2 * 16
    i0, j0 = cuda.blockIdx.y * 32, cuda.blockIdx.x * 32
    at_work = i0 + row < c.shape[0] and j0 + column < c.shape[1]
    c0 = c1 = c2 = c3 = e0 = e1 = e2 = e3 = float32(0)
    for start in range(0, a.shape[1], 32):
        load_tile(tiles, a, i0, start)
        load_tile(tiles[32:], b, start, j0)
        cuda.syncthreads()
        if at_work:
            for step in range(0, 32, 16):
                a0, a1 = ldmatrix_x2(tiles, (row + lane % 16, step))
                a2, a3 = ldmatrix_x2(tiles, (row + lane % 16, step + 8))
                b0, b1 = ldmatrix_x2_trans(tiles, (32 + step + lane % 16, column))
                b2, b3 = ldmatrix_x2_trans(tiles, (32 + step + lane % 16, column + 8))
                c0, c1, c2, c3 = mma_bf16(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3)
                e0, e1, e2, e3 = mma_bf16(a0, a1, a2, a3, b2, b3, e0, e1, e2, e3)
        cuda.syncthreads()
    store_piece(c, i0 + row, j0 + column, c0, c1, c2, c3)
    store_piece(c, i0 + row, j0 + column + 8, e0, e1, e2, e3)


@cuda.jit(device=True)
def place(row, column):
    """Return the swizzled position of a value in its row, which consists of four pieces of eight values."""
    return (column // 8 ^ row // 2 % 4) * 8 + column % 8


@cuda.jit(device=True)
def load_swizzled(tile, x, row, column):
    for e in range(cuda.threadIdx.x, 32 * 32, 128):
        i, j = e // 32, e % 32
        inside = row + i < x.shape[0] and column + j < x.shape[1]
        tile[i, place(i, j)] = x[row + i, column + j] if inside else int16(0)


def matmul_swizzled(a, b, c):
    """Correct: swizzles the pieces of each row instead of padding the rows."""
    a_tile = cuda.shared.array((32, 32), int16, alignment=128)
    b_tile = cuda.shared.array((32, 32), int16, alignment=128)
    warp, i, j = cuda.threadIdx.x // 32, cuda.laneid % 16, cuda.laneid // 16 * 8
    row, column = warp // 2 * 16, warp % 2 * 16
    i0, j0 = cuda.blockIdx.y * 32, cuda.blockIdx.x * 32
    c0 = c1 = c2 = c3 = e0 = e1 = e2 = e3 = float32(0)
    for start in range(0, a.shape[1], 32):
        load_swizzled(a_tile, a, i0, start)
        load_swizzled(b_tile, b, start, j0)
        cuda.syncthreads()
        for step in range(0, 32, 16):
            a0, a1, a2, a3 = ldmatrix_x4(a_tile, (row + i, place(row + i, step + j)))
            b0, b1, b2, b3 = ldmatrix_x4_trans(b_tile, (step + i, place(step + i, column + j)))
            c0, c1, c2, c3 = mma_bf16(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3)
            e0, e1, e2, e3 = mma_bf16(a0, a1, a2, a3, b2, b3, e0, e1, e2, e3)
        cuda.syncthreads()
    store_piece(c, i0 + row, j0 + column, c0, c1, c2, c3)
    store_piece(c, i0 + row, j0 + column + 8, e0, e1, e2, e3)


def matmul_by_one_warp(a, b, c):
    """Wrong: warp 0 computes all products, and the other warps only load."""
    a_tile = cuda.shared.array((32, 40), int16, alignment=16)
    b_tile = cuda.shared.array((32, 40), int16, alignment=16)
    i0, j0 = cuda.blockIdx.y * 32, cuda.blockIdx.x * 32
    d = cuda.local.array(32, float32)
    for e in range(32):
        d[e] = float32(0)
    for start in range(0, a.shape[1], 32):
        load_tile(a_tile, a, i0, start)
        load_tile(b_tile, b, start, j0)
        cuda.syncthreads()
        if cuda.threadIdx.x < 32:
            for step in range(0, 32, 16):
                for w in range(4):
                    a0, a1, a2, a3, b0, b1, b2, b3 = fragments(a_tile, b_tile, w // 2 * 16, w % 2 * 16, step)
                    x = 8 * w
                    d[x], d[x + 1], d[x + 2], d[x + 3] = mma_bf16(
                        a0, a1, a2, a3, b0, b1, d[x], d[x + 1], d[x + 2], d[x + 3]
                    )
                    x += 4
                    d[x], d[x + 1], d[x + 2], d[x + 3] = mma_bf16(
                        a0, a1, a2, a3, b2, b3, d[x], d[x + 1], d[x + 2], d[x + 3]
                    )
        cuda.syncthreads()
    if cuda.threadIdx.x < 32:
        for w in range(4):
            for half in range(2):
                x, row, column = 8 * w + 4 * half, i0 + w // 2 * 16, j0 + w % 2 * 16 + 8 * half
                store_piece(c, row, column, d[x], d[x + 1], d[x + 2], d[x + 3])


def matmul_by_all_warps(a, b, c):
    """Wrong: each warp computes every product of the block, and stores only its own."""
    a_tile = cuda.shared.array((32, 40), int16, alignment=16)
    b_tile = cuda.shared.array((32, 40), int16, alignment=16)
    i0, j0, warp = cuda.blockIdx.y * 32, cuda.blockIdx.x * 32, cuda.threadIdx.x // 32
    for w in range(4):
        row, column = w // 2 * 16, w % 2 * 16
        c0 = c1 = c2 = c3 = e0 = e1 = e2 = e3 = float32(0)
        for start in range(0, a.shape[1], 32):
            cuda.syncthreads()
            load_tile(a_tile, a, i0, start)
            load_tile(b_tile, b, start, j0)
            cuda.syncthreads()
            for step in range(0, 32, 16):
                a0, a1, a2, a3, b0, b1, b2, b3 = fragments(a_tile, b_tile, row, column, step)
                c0, c1, c2, c3 = mma_bf16(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3)
                e0, e1, e2, e3 = mma_bf16(a0, a1, a2, a3, b2, b3, e0, e1, e2, e3)
        if w == warp:
            store_piece(c, i0 + row, j0 + column, c0, c1, c2, c3)
            store_piece(c, i0 + row, j0 + column + 8, e0, e1, e2, e3)


MATMUL = [
    *wrong(
        matmul,
        ("no barrier after loading", ("        cuda.syncthreads()  # loaded\n", "")),
        (
            "no barrier after the products",
            ("        cuda.syncthreads()  # used: the next tiles may overwrite these\n", ""),
        ),
        (
            "rows of 32: bank conflicts",
            ("a_tile = cuda.shared.array((32, 40)", "a_tile = cuda.shared.array((32, 32)"),
        ),
        (
            "rows of 48: bank conflicts",
            ("b_tile = cuda.shared.array((32, 40)", "b_tile = cuda.shared.array((32, 48)"),
        ),
        (
            "rows of 36: no multiple of 16 bytes",
            ("a_tile = cuda.shared.array((32, 40)", "a_tile = cuda.shared.array((32, 36)"),
        ),
        ("rows of 33", ("b_tile = cuda.shared.array((32, 40)", "b_tile = cuda.shared.array((32, 33)")),
        (
            "more rows than needed",
            ("a_tile = cuda.shared.array((32, 40)", "a_tile = cuda.shared.array((128, 40)"),
        ),
        ("one stop alone", ("a.shape[1]", "32")),
        ("two stops at most", ("a.shape[1]", "min(a.shape[1], 64)")),
        ("the last, ragged stop left out", ("a.shape[1]", "a.shape[1] // 32 * 32")),
        ("one step of 16", ("range(0, 32, 16)", "range(0, 16, 16)")),
        ("the right half from the left", ("b2, b3, e0", "b0, b1, e0")),
        (
            "the right half's sums into the left",
            (
                "e0, e1, e2, e3 = mma_bf16(a0, a1, a2, a3, b2, b3, e0, e1, e2, e3)",
                "c0, c1, c2, c3 = mma_bf16(a0, a1, a2, a3, b2, b3, c0, c1, c2, c3)",
            ),
        ),
        ("stored over the left half", ("column + 8", "column")),
        ("block 0 alone", ("cuda.blockIdx.y * 32, cuda.blockIdx.x * 32", "0, 0")),
        ("all warps at one piece", ("warp // 2 * 16, warp % 2 * 16", "0, 0")),
        ("warps of 16 threads", ("cuda.threadIdx.x // 32", "cuda.threadIdx.x // 16 % 4")),
        ("always the first tile of b", ("load_tile(b_tile, b, start, j0)", "load_tile(b_tile, b, 0, j0)")),
        (
            "sums begin anew at each stop",
            (
                "        load_tile(a_tile",
                "        c0 = c1 = c2 = c3 = e0 = e1 = e2 = e3 = float32(0)\n        load_tile(a_tile",
            ),
        ),
        (
            "a tile loaded twice",
            ("        load_tile(a_tile", "        load_tile(a_tile, a, i0, start)\n        load_tile(a_tile"),
        ),
        (
            "fragments fetched twice",
            (
                "            c0, c1, c2, c3 = mma",
                "            a0, a1, a2, a3, b0, b1, b2, b3 = fragments(a_tile, b_tile, row, column, step)\n"
                "            c0, c1, c2, c3 = mma",
            ),
        ),
        (
            "each product twice, halved",
            (
                "            c0, c1, c2, c3 = mma",
                "            c0, c1, c2, c3 = mma_bf16(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3)\n"
                "            c0, c1, c2, c3 = mma",
            ),
            ("column, c0, c1, c2, c3", "column, c0 / 2, c1 / 2, c2 / 2, c3 / 2"),
        ),
        (
            "a barrier that some miss",
            (
                "        cuda.syncthreads()  # loaded\n",
                "        if warp < 3:\n            cuda.syncthreads()\n",
            ),
        ),
        (
            "steps beyond the tile",
            (
                "        for step in range(0, 32, 16):\n",
                "        for step in range(0, a.shape[1] - start, 16):\n",
            ),
        ),
        ("a sum that lost a rounding", ("column, c0, c1", "column, float32(int(c0 * 64)) / 64, c1")),
    ),
    ("one warp makes all", matmul_by_one_warp),
    ("each warp makes all", matmul_by_all_warps),
]

MUTANTS = {"ex16_1": LOAD_A, "ex16_2": PRODUCT, "ex16_3": BOUND, "ex16_4": FRAGMENTS, "ex16_5": MATMUL}
RIGHT = {
    "ex16_1": [load_a, load_a_by_register, load_a_by_calls],
    "ex16_2": [product, product_backwards, product_in_two_chains],
    "ex16_3": [
        lambda a, b: (2 * U + U * U) * (np.abs(a) @ np.abs(b)),
        in_loops,
        lambda a, b: np.einsum("ik,kj->ij", abs(a), abs(b)) / 128,
        lambda a, b: ((1 + U) ** 2 - 1 + a.shape[1] * 2.0**-24) * (np.abs(a) @ np.abs(b)),
    ],
    "ex16_4": [fragments, fragments_renamed, fragments_by_bits],
    "ex16_5": [matmul, matmul_otherwise, matmul_by_halves, matmul_swizzled],
}
