"""Answers of a reader of lessons 01 to 03b: wrong ones that the checks once accepted, and correct ones that use
the statement's freedom."""

import torch

from power.lessons import exercises
from readers.lessons01_08 import edit

LOOP = "    for score, value in pairs:\n"
UPDATE = "    m, l, o = state\n"
ADD = "        out[i] = x[i] + y[i]"
SUM = "        out[cuda.blockIdx.x] = shared[0]"
BARRIER = "threading.Barrier(block.x * block.y * block.z, timeout=10)"


def runs_the_algorithms(n, d, rows, columns, itemsize=4):
    """Wrong: runs the package's algorithms and returns their counts instead of computing them."""
    from kernels.reference import tiled

    q, runs = torch.zeros(n, d), [tiled.Traffic() for _ in range(3)]
    for run, algorithm in zip(runs, (tiled.standard, tiled.keys_outer, tiled.queries_outer), strict=True):
        sizes = () if algorithm is tiled.standard else (rows, columns)
        algorithm(q, q, q, *sizes, run)
    return [run.moved * itemsize for run in runs]


def runs_own_loops(n, d, rows, columns, itemsize=4):
    """Wrong: moves rows of tensors and counts them, instead of computing the counts."""
    standard, by_keys, _ = exercises("02")["ex02_3"].solution(n, d, rows, columns, itemsize)
    q = torch.zeros(n, d)
    by_queries = 2 * q.numel() + sum(2 * q.numel() for _ in q.split(rows))
    return standard, by_keys, by_queries * itemsize


def by_loops(n, d, rows, columns, itemsize=4):
    by_keys, by_queries = n * (d + 2), 2 * n * d
    for start in range(0, n, columns):
        by_keys += 2 * (min(n, start + columns) - start) * d + n * (3 * d + 4)
    for _ in range(0, n, rows):
        by_queries += 2 * n * d
    return [4 * n * (n + d) * itemsize, by_keys * itemsize, by_queries * itemsize]


WRONG = {
    "ex01_1": [
        (
            "skips values of 0",
            edit("ex01_1", (LOOP, LOOP + "        if not np.any(value):\n            continue\n")),
        )
    ],
    "ex01_2": [
        (
            "an output of 0 for an empty state",
            edit(
                "ex01_2",
                ("f1 = math.exp(m1 - m) if m1 > -math.inf", "f1 = math.exp(m1 - m) if np.any(o1)"),
                ("f2 = math.exp(m2 - m) if m2 > -math.inf", "f2 = math.exp(m2 - m) if np.any(o2)"),
            ),
        )
    ],
    "ex02_1": [
        (
            "in float64",
            edit(
                "ex02_1",
                (
                    UPDATE,
                    UPDATE
                    + "    m, l, o, scores, values = (x.double() for x in (m, l, o, scores, values))\n",
                ),
            ),
        ),
        (
            "skips scores of 0",
            edit("ex02_1", (UPDATE, UPDATE + "    scores = scores.masked_fill(scores == 0, -math.inf)\n")),
        ),
        (
            "skips values of 0",
            edit(
                "ex02_1",
                (UPDATE, UPDATE + "    scores = scores.masked_fill((values == 0).all(dim=1), -math.inf)\n"),
            ),
        ),
    ],
    "ex02_3": [("runs the package's algorithms", runs_the_algorithms), ("splits a tensor", runs_own_loops)],
    "ex03_1": [
        ("skips elements of 0", edit("ex03_1", (ADD, "        if x[i] != 0:\n    " + ADD))),
        ("skips sums of 0 with y", edit("ex03_1", (ADD, "        if y[i] != 0:\n    " + ADD))),
    ],
    "ex03_2": [
        ("a barrier for x alone", edit("ex03_2", (BARRIER, "threading.Barrier(block.x, timeout=10)"))),
        (
            "a barrier for x and y",
            edit("ex03_2", (BARRIER, "threading.Barrier(block.x * block.y, timeout=10)")),
        ),
        (
            "waits at the first barrier only",
            edit(
                "ex03_2",
                (
                    "syncthreads=barrier.wait",
                    "syncthreads=lambda waits=[barrier.wait]: waits.pop()() if waits else None",
                ),
            ),
        ),
    ],
    "ex03_3": [
        (
            "shared memory of float64",
            edit("ex03_3", ("array(THREADS, float32)", "array(THREADS, np.float64)")),
        ),
        ("writes no sum of 0", edit("ex03_3", (SUM, "        if shared[0] != 0:\n    " + SUM))),
    ],
    "ex03_4": [
        ("a total of float64", edit("ex03_4", ("total = float32(0)", "total = 0.0"))),
        (
            "writes no product of 0",
            edit("ex03_4", ("    if row < c.shape[0] and", "    if total != 0 and row < c.shape[0] and")),
        ),
    ],
}

RIGHT = {"ex02_3": [("counts tile by tile", by_loops)]}
