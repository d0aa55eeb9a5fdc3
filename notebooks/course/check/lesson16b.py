"""Checks of lesson 16b: fragments loaded by ldmatrix, and a tiled matrix product, in `sim`. They compare
values and count executed instructions."""

import re

import numpy as np
from numba import cuda
from numpy import float32, int16

from course import ptx
from course.check import kernels
from course.check.contract import Contract
from course.check.harness import exercise, fail
from course.check.lesson16 import long, matrices
from course.check.tensor_cores import MMA, executed, held, value
from course.check.trial import ARCHITECTURE
from sim.observers import Banks

# 16.4 -------------------------------------------------------------------------------------------------------

ROWS = (
    "Lane l supplies the address of row l % 8 of matrix l // 8. In A, matrix 0 is the one of a0 (top left)."
    " Then follow a1 (bottom left), a2 (top right) and a3. In b_tile, matrix 0 is the one of b0 (top left)."
    " Then follow b1 (below it), and b2 and b3 to the right of these."
)
TWO = "Two instructions of a warp fetch all eight registers: ldmatrix_x4 and ldmatrix_x4_trans."


def every_warp(fragments, height, pitch):
    """Return a kernel in which each warp loads the fragments at a different corner."""

    @cuda.jit
    def kernel(a, b, corners, out):
        a_tile = cuda.shared.array((height, pitch), int16, alignment=16)
        b_tile = cuda.shared.array((height, pitch), int16, alignment=16)
        thread = cuda.threadIdx.x
        for e in range(thread, a.size, cuda.blockDim.x):
            i, j = e // a.shape[1], e % a.shape[1]
            a_tile[i, j], b_tile[i, j] = a[i, j], b[i, j]
        cuda.syncthreads()
        w = thread // 32
        a0, a1, a2, a3, b0, b1, b2, b3 = fragments(
            a_tile, b_tile, corners[w, 0], corners[w, 1], corners[w, 2]
        )
        show(out, 0, a0)
        show(out, 1, a1)
        show(out, 2, a2)
        show(out, 3, a3)
        show(out, 4, b0)
        show(out, 5, b1)
        show(out, 6, b2)
        show(out, 7, b3)

    return kernel


@cuda.jit(device=True)
def show(out, number, register):
    """Format the two numbers in a register, the lower one first."""
    out[cuda.threadIdx.x, 2 * number] = register & 0xFFFF
    out[cuda.threadIdx.x, 2 * number + 1] = (register >> 16) & 0xFFFF


def held_numbers(a, b):
    """(32, 16): the numbers of a0 to a3 for a piece of A, and of b0 to b3 for a piece of B that lies by rows,
    as unsigned 16 bits."""
    by_columns = held(np.ascontiguousarray(b.T))[:, [0, 2, 1, 3]]
    return np.ascontiguousarray(np.hstack([held(a), by_columns])).view(np.uint16)


def numbered_tiles(rng, height, width):
    """Two tiles, no two of whose numbers are alike; in the small ones they tell where they stand."""
    if width == 16:
        a = (100 * np.arange(height)[:, None] + np.arange(width)).astype(int16)
        return a, int16(10_000) + a
    return (
        rng.permutation(2**16)[: 2 * height * width].astype(np.uint16).view(int16).reshape(2, height, width)
    )


@exercise("16.4", "fragments")
def ex16_4(fragments, rng):
    kernels.jitted(fragments, "fragments")
    for height, width, pitch, warps in [(16, 16, 24, 1), (150, 48, 56, 2), (35, 64, 72, 3)]:
        a, b = numbered_tiles(rng, height, width)
        row = rng.integers(0, height - 15, warps)
        column, step = (8 * rng.integers(0, size // 8 - 1, warps) for size in (width, min(height, width)))
        # The last warp takes the last corner, so that an answer for tiles of 32 rows fails.
        row[-1], column[-1], step[-1] = height - 16, width - 16, min(height, width) // 8 * 8 - 16
        corners = np.stack([row, column, step], axis=1)
        wanted = [
            held_numbers(a[row : row + 16, step : step + 16], b[step : step + 16, column : column + 16])
            for row, column, step in corners
        ]
        call = (
            f"fragments(a_tile, b_tile, row, column, step) with (row, column, step) ="
            f" {', '.join(str(tuple(corner)) for corner in corners.tolist())}, a warp each"
            + "; a_tile[i, j] = 100 i + j, b_tile[i, j] = 10000 + 100 i + j" * (width == 16)
            + "; out[lane] has the two numbers of a0, of a1, ..., of b3"
        )
        report = kernels.judge(
            every_warp(fragments, height, pitch),
            (1, 32 * warps),
            (a, b, corners),
            (np.zeros((32 * warps, 16), np.int32),),
            (np.concatenate(wanted),),
            rng,
            call,
            Contract(
                max_total={"shared": 2 * a.size + 64 * warps}, shuffles=(0, 0), barriers=(1, 1), hint=TWO
            ),
            tolerance=0,
            what="a register holds something else (at [0, lane, number])",
            hint=ROWS,
            float64=0,
        )
        executed(report, call, TWO, ldmatrix_x4=(warps, warps), ldmatrix_x4_trans=(warps, warps))
    return "tiles of 16 to 150 rows of 24 to 72 numbers, corners anywhere, one to three warps"


# 16.5 -------------------------------------------------------------------------------------------------------

BLOCK, TILE = 128, 32
MATMUL = (
    "Block (x, y) owns 32 rows from row 32 y on, and 32 columns from column 32 x on. Within them, warp w owns"
    " 16 rows from w // 2 * 16 on, and 16 columns from w % 2 * 16 on. c0 to c3 belong to its left 8 columns,"
    " and e0 to e3 to the right ones."
)
PART = (
    "In each iteration, the 128 threads together load one tile of a and one tile of b (load_tile). Then each"
    " warp loads its own fragments, and computes its own 16 × 16 entries of c with two mma_bf16 for every 16"
    " terms."
)
CONFLICT = "How many 16-byte chunks has a row of your tiles? With an odd number, eight rows share no bank."


@exercise("16.5", "matmul")
def ex16_5(matmul, rng):
    far = int(rng.integers(97, 161))
    for m, k, n, chosen in [
        (32, 32, 32, 1),
        (1, 1, 1, 1),
        (37, 50, 45, 3),
        (far, 17, 20, 1),
        (9, 33, far, 1),
    ]:
        for what, a, b, tolerance in matrices(rng, m, k, n)[:chosen]:
            check_matmul(matmul, what, a, b, tolerance, rng)
    check_matmul(matmul, *long(rng, 16, 8, short=6), rng)
    check_alignment(matmul)
    return (
        "six shapes, from 1 × 1 to 97 rows and more, up to 634 terms, most of them ragged; no bank conflict"
    )


def check_matmul(matmul, what, a, b, tolerance, rng):
    (m, k), (_, n) = a.shape, b.shape
    grid = -(-n // TILE), -(-m // TILE)
    blocks, stops, steps = grid[0] * grid[1], -(-k // TILE), -(-k // 16)
    call = f"matmul[{grid}, {BLOCK}](a, b, c) with a of {m} × {k} and b of {k} × {n}: {what}"
    report = kernels.judge(
        matmul,
        (grid, BLOCK),
        (a, b),
        (np.full((m, n), np.nan, float32),),
        (value(a) @ value(b),),
        rng,
        call,
        Contract(
            "a b c",
            max_per_thread={"a": 8 * stops, "b": 8 * stops, "c": 8, "shared": 24 * stops},
            max_total={
                "a": m * k * grid[0],
                "b": k * n * grid[1],
                "shared": 2560 * stops * blocks,
                "c": m * n,
            },
            threads=BLOCK * (min(m, n, k) >= TILE),
            blocks=blocks,
            barriers=(stops, 2 * stops + 1),
            shuffles=(0, 0),
            atomics=(0, 0),
            shared_bytes=2 * TILE * 72 * 2,
            hint=PART,
        ),
        tolerance=tolerance,
        what="a wrong product",
        hint=MATMUL,
        observers=[Banks()],
        float64=0,
    )
    pieces = -(-m // 16) * -(-n // 8)
    executed(report, call, PART, **{MMA: (pieces * steps, 16 * stops * blocks)})
    banks = report.counters["banks"]
    if banks["wavefronts"] != banks["fewest_wavefronts"]:
        fail(
            f"correct, but with {banks['ways']}-way bank conflicts: {banks['wavefronts']} wavefronts of"
            f" shared memory, where {banks['fewest_wavefronts']} are enough",
            call=call,
            hint=CONFLICT,
        )


def check_alignment(matmul):
    """Reject shared arrays whose first row a GPU may misalign. `sim` places every array at a multiple of 16
    bytes."""
    two, four = np.zeros((1, 1), int16), np.zeros((1, 1), float32)
    try:
        made = ptx.compiled_here(matmul, two, two, four, architecture=ARCHITECTURE)
    except Exception:  # no compiler, or what it refuses: the end of every check reports both
        return
    for bytes_of in map(int, re.findall(r"\.shared \.align (\d+)", made.ptx)):
        if bytes_of % 16:
            fail(
                f"correct in `sim`, but a GPU may begin a shared array at any multiple of {bytes_of} bytes",
                hint="ldmatrix needs multiples of 16 bytes: cuda.shared.array(shape, int16, alignment=16).",
            )
