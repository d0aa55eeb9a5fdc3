"""Checks of lesson 03b: a sum by halves and a tiled product, run in `sim`."""

import math
from collections import Counter

import numpy as np
from numpy import float32

from course.check import kernels
from course.check.contract import Contract, Work
from course.check.harness import exercise, fail
from course.check.lesson03 import verify
from sim.events import STORE
from sim.nouns import plural

THREADS, TILE = 8, 4  # as in the lesson
HALVINGS = 3  # of THREADS numbers, until one is left; none may begin before the last one ends


@exercise("3.3", "block_sum")
def ex03_3(block_sum, rng):
    for size in [8, 16, 1, 5, 19, 40, 509]:
        x = rng.standard_normal(size).astype(float32)
        x[THREADS : 2 * THREADS] = 0  # block 1, if there is one, has the sum 0
        sums = np.array(
            [x[start : start + THREADS].sum(dtype=np.float64) for start in range(0, size, THREADS)]
        )
        call = f"block_sum[{len(sums)}, {THREADS}](x, out) with {plural(size, 'element')}"
        contract = Contract(
            "x out",
            max_per_thread={"x": 2, "out": 2},
            max_total={"x": 2 * size, "out": len(sums), "shared": 48 * len(sums)},
            min_total={"shared": size},
            blocks=len(sums),
            barriers=(HALVINGS, math.inf),
            atomics=(0, 0),
            helpers=(THREADS // 2) * (size // THREADS),
            share=None if size % THREADS else 3.2,
            hint=BY_HALVES,
        )
        for report in verify(block_sum, len(sums), THREADS, (x,), sums, rng, call, contract, float64=0):
            adds_by_halves(Work(report), call)
    return "1 to 509 elements in blocks of 8, in many orders of the threads"


@exercise("3.4", "matmul")
def ex03_4(matmul, rng):
    for m, inner, n in [
        (4, 4, 4),
        (8, 8, 8),
        (1, 1, 1),
        (3, 2, 3),
        (5, 3, 6),
        (7, 9, 2),
        (3, 13, 10),
        (14, 33, 9),
    ]:
        a = rng.standard_normal((m, inner)).astype(float32)
        b = rng.standard_normal((inner, n)).astype(float32)
        a[1::3] = 0  # c then has rows of zeros, which must be written too
        grid = -(-n // TILE), -(-m // TILE)
        stops = -(-inner // TILE)
        # one barrier in each step is enough with two pairs of tiles, but not if syncwarp replaces the other
        fewest = 2 * stops - 1 if "syncwarp" in kernels.names_in(matmul) else stops
        call = f"matmul[{grid}, {(TILE, TILE)}](a, b, c) with a of {m} x {inner} and b of {inner} x {n}"
        contract = Contract(
            "a b c",
            max_per_thread={"a": stops, "b": stops, "c": 1},
            max_total={"a": m * inner * grid[0], "b": inner * n * grid[1]},
            threads=m * n,
            barriers=(fewest, math.inf),
            owner={"c": lambda element, n=n, width=grid[0]: thread_of(element // n, element % n, width)},
            hint=BY_TILES,
        )
        wanted = a.astype(np.float64) @ b
        verify(matmul, grid, (TILE, TILE), (a, b), wanted, rng, call, contract, float64=0)
    return (
        "eight shapes, from 1 x 1 to 14 x 33 times 33 x 9, most of them ragged, up to 9 steps; each thread"
        " loads one number of each tile"
    )


def adds_by_halves(work, call):
    """Reject a block_sum in which a thread reads more of the shared numbers than halving needs."""
    chosen = work.chosen("shared") & (work.trace.action != STORE)
    threads = work.block_number[chosen] * work.threads + work.trace.thread[chosen]
    reads = np.unique(np.stack([threads, work.trace.address[chosen].astype(np.int64)]), axis=1)
    thread, count = Counter(reads[0].tolist()).most_common(1)[0]
    if count > HALVINGS + 2:
        fail(
            f"the result is correct, but {work.who(thread)} reads {count} different numbers in shared memory;"
            f" adding by halves needs {HALVINGS + 1}",
            call=call,
            hint=BY_HALVES,
        )


def thread_of(row, column, width):
    """Return the global thread index whose y and x correspond to this row and column of c, in a grid `width`
    blocks wide."""
    block = row // TILE * width + column // TILE
    return block * TILE**2 + row % TILE * TILE + column % TILE


BY_HALVES = (
    "The threads of a block store their numbers in shared memory and add by halves: no thread reads all of"
    " them, and there are no atomic operations."
)
BY_TILES = (
    "In each step a thread loads one number of each tile into shared memory, and all compute from there. Both"
    " barriers of a step are cuda.syncthreads(); a barrier of a warp is not enough."
)
