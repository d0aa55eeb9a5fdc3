"""Answers of a reader of lessons 01 to 04b: wrong ones that the checks once accepted, and correct ones that use
the statement's freedom."""

import numpy as np
import torch

from power.lessons import exercises
from readers.lessons01_08 import edit

LOOP = "    for score, value in pairs:\n"
UPDATE = "    m, l, o = state\n"
ADD = "        out[i] = x[i] + y[i]"
SUM = "        out[cuda.blockIdx.x] = shared[0]"
PREVIOUS = """x[i - 1] if i > 0 else float32(0)
        if i == 0 or value != 0:
            out[i] = value"""
MAX = "x[i] if i < x.size else"
SHARE = "out[i] = x[i] / total[0]"
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


def in_float64(check, declaration):
    """Return the solution with a shared array of float64 instead of float32."""
    answer = edit(check, (declaration, declaration.replace("float32", "float64")))
    answer.__globals__["float64"] = np.float64
    return answer


WRONG = {
    "ex01_1": [
        (
            "skips values of 0",
            edit(
                "ex01_1",
                (LOOP, LOOP + "        if isinstance(value, float) and not value:\n            continue\n"),
            ),
        )
    ],
    "ex01_2": [
        (
            "an output of 0 for an empty state",
            edit(
                "ex01_2",
                (
                    "f1 = math.exp(m1 - m) if m1 > -math.inf",
                    "f1 = math.exp(m1 - m) if not (isinstance(o1, float) and o1 == 0)",
                ),
                (
                    "f2 = math.exp(m2 - m) if m2 > -math.inf",
                    "f2 = math.exp(m2 - m) if not (isinstance(o2, float) and o2 == 0)",
                ),
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
            edit("ex02_1", (UPDATE, UPDATE + "    scores = scores.masked_fill(scores == 0, -torch.inf)\n")),
        ),
        (
            "skips values of 0",
            edit(
                "ex02_1",
                (UPDATE, UPDATE + "    scores = scores.masked_fill((values == 0).all(dim=1), -torch.inf)\n"),
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
        ("shared memory of float64", in_float64("ex03_3", "array(THREADS, float32)")),
        ("writes no sum of 0", edit("ex03_3", (SUM, "        if shared[0] != 0:\n    " + SUM))),
    ],
    "ex03_4": [
        ("a total of float64", edit("ex03_4", ("total = float32(0)", "total = 0.0"))),
        (
            "writes no product of 0",
            edit("ex03_4", ("    if row < c.shape[0] and", "    if total != 0 and row < c.shape[0] and")),
        ),
    ],
    "ex04_2": [
        (
            "writes no 0 but the first",
            edit("ex04_2", ("out[i] = x[i - 1] if i > 0 else float32(0)", "value = " + PREVIOUS)),
        )
    ],
    "ex04_3": [
        ("takes no 0", edit("ex04_3", (MAX, "x[i] if i < x.size and x[i] != 0 else"))),
        ("nothing above 0", edit("ex04_3", (MAX, "min(x[i], float32(0)) if i < x.size else"))),
    ],
    "ex04_4": [("shared memory of float64", in_float64("ex04_4", "array(32, float32)"))],
    "ex04_6": [
        (
            "writes no 0",
            edit(
                "ex04_6",
                (
                    "    if i < x.size:\n        out",
                    "    if i < x.size and part[length - 1 - t] != 0:\n        out",
                ),
            ),
        )
    ],
    "ex04_7": [
        (
            "writes no 0",
            edit(
                "ex04_7",
                (
                    "    out[i] = after if",
                    "    if (after if i % 2 == 0 else before) != 0:\n        out[i] = after if",
                ),
            ),
        )
    ],
    "ex04_8": [
        (
            "writes no share of 0",
            edit("ex04_8", ("        " + SHARE, "        if x[i] != 0:\n            " + SHARE)),
        ),
        ("a total of at least 1", edit("ex04_8", (SHARE, "out[i] = x[i] / max(total[0], 1)"))),
    ],
    "ex04_9": [
        ("token 0 for a draw of 0", edit("ex04_9", ("token[i] = low", "token[i] = low if u[i] > 0 else 0"))),
        (
            "a tolerance of 1e-6",
            edit("ex04_9", ("cumulative[middle] <= u[i]", "cumulative[middle] - u[i] <= 1e-6")),
        ),
    ],
}

RIGHT = {"ex02_3": [("counts tile by tile", by_loops)]}
