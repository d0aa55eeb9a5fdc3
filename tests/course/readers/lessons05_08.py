"""Answers of a reader of lessons 05 to 08b: wrong ones that the checks once accepted, and correct ones that
the checks rejected or might reject."""

import numpy as np

from course import ptx
from course.check.lesson08 import counted
from kernels.cases import memory_patterns
from readers.lessons01_08 import edit, write

TYPES = {
    "a": "n + 1",
    "b": "n // 2",
    "c": "n / 2",
    "d": "s * s",
    "e": "2 * s",
    "f": "s * float32(2)",
    "g": "max(s, 0.0)",
    "h": "math.exp(s)",
    "i": "s / x.size",
    "j": "x[n] + s",
}
LOAD = "tile[e] = array[start + e] if start + e < array.size else float32(0)"
MERGED = "    m = larger\n        step //= 2"
FILLED = "buffers[p % 2]"
WAIT = "copier.wait_event(computed[p - 2])"
SUM = "    while step > 0:\n"
VISIT_IN_TWO_LOOPS = """
import math
@cuda.jit(device=True)
def answer(row, q_tile, k_tile, v_tile, o_tile, keys, d, scale, m, l):
    q, o = q_tile[row * d : (row + 1) * d], o_tile[row * d : (row + 1) * d]
    j = keys
    while j > 0:
        j -= 1
        score = float32(0)
        for c in range(d):
            score += scale * q[c] * k_tile[j * d + c]
        if score > m:
            shrink = math.exp(m - score)
            m = score
            l *= shrink
            for c in range(d):
                o[c] *= shrink
        weight = math.exp(score - m)
        l += weight
        for c in range(d):
            o[c] += weight * v_tile[j * d + c]
    return m, l
"""


def types_asked_for():
    """Wrong: asks Numba for the types."""
    given = {"n": np.int32(1), "s": np.float32(1), "x": np.zeros(3, np.float32)}
    return {letter: ptx.type_of(expression, **given) for letter, expression in TYPES.items()}


def predictions_by_launches():
    """Wrong: counts in the simulator what it should predict."""
    a, out = np.zeros((2, 64, 64), np.float32)
    costs = {"copy": (4, 4, 0, 0), "strided_copy": (32, 4, 0, 0)}
    for name in ("transpose_naive", "transpose_tiled", "transpose_padded"):
        counts = counted(getattr(memory_patterns, name), (2, 2), (32, 32), a, out).values()
        costs[name] = tuple(pieces // requests if requests else 0 for requests, pieces in counts)
    return costs


WRONG = {
    "ex05_1": [("a barrier of the warp", edit("ex05_1", (LOAD, f"{LOAD}\n    cuda.syncwarp()")))],
    "ex05_2": [
        ("a sum in float64", edit("ex05_2", ("score = float32(0)", "score = 0.0"))),
        (
            "a barrier of the warp",
            edit("ex05_2", ("    return m, l", "    cuda.syncwarp()\n    return m, l")),
        ),
        (
            "keys with score 0 skipped",
            edit(
                "ex05_2", ("score *= scale", "score *= scale\n        if score == 0:\n            continue")
            ),
        ),
        ("127 keys at most", edit("ex05_2", ("range(keys)", "range(min(keys, 127))"))),
    ],
    "ex05_3": [("m and l in float64", edit("ex05_3", ("float32(-math.inf), float32(0)", "-math.inf, 0.0")))],
    "ex06_1": [
        ("a sum in float64", edit("ex06_1", ("float32(0)", "0.0"))),
        ("a barrier of the warp", edit("ex06_1", (SUM, f"{SUM}        cuda.syncwarp()\n"))),
    ],
    "ex06_2": [
        (
            "factors in float64",
            edit("ex06_2", ("if m > MINUS_INFINITY else float32(0)", "if m > MINUS_INFINITY else 0.0")),
        ),
        ("-1e38 for minus infinity", edit("ex06_2", ("if m > MINUS_INFINITY", "if m > float32(-1e38)"))),
        ("the active lanes as a mask", edit("ex06_2", ("ALL_LANES, m,", "cuda.activemask(), m,"))),
        ("a barrier of the warp", edit("ex06_2", (MERGED, f"    cuda.syncwarp()\n    {MERGED}"))),
    ],
    "ex06_3": [
        ("a score in float64", edit("ex06_3", ("score = float32(0)", "score = 0.0"))),
        ("eight columns at most", edit("ex06_3", ("score += q[i, c]", "score += float32(c < 8) * q[i, c]"))),
        (
            "a barrier of the warp",
            edit("ex06_3", ("        m, l = merge", "        cuda.syncwarp()\n        m, l = merge")),
        ),
    ],
    "ex07_1": [("asks Numba", types_asked_for)],
    "ex07_4": [
        ("a barrier at the end", edit("ex07_4", ("factor * x[i]", "factor * x[i]\n    cuda.syncthreads()")))
    ],
    "ex07_5": [
        (
            "the other buffer",
            edit(
                "ex07_5",
                (f"fill, p, {FILLED}", "fill, p, buffers[1 - p % 2]"),
                (f"compute, p, {FILLED}", "compute, p, buffers[1 - p % 2]"),
            ),
        )
    ],
    "ex08_3": [
        (
            "a second barrier",
            edit("ex08_3", ("cuda.syncthreads()", "cuda.syncthreads()\n    cuda.syncthreads()")),
        )
    ],
    "ex08_4": [("counted in the simulator", predictions_by_launches)],
}
RIGHT = {
    "ex05_2": [("keys backwards, rescaled only for a new maximum", write(VISIT_IN_TWO_LOOPS))],
    "ex06_2": [
        (
            "steps upwards",
            edit("ex06_2", ("step = 16", "step = 1"), ("step > 0", "step < 32"), ("step //= 2", "step *= 2")),
        )
    ],
    "ex07_5": [
        ("the wait is a launch of result", edit("ex07_5", (WAIT, "copier.launch(computed[p - 2].result)")))
    ],
    "ex08_3": [
        (
            "columns exchanged instead of padding",
            edit(
                "ex08_3",
                ("(TILE, 33)", "(TILE, TILE)"),
                ("tile[y, x]", "tile[y, x ^ y]"),
                ("tile[x, y]", "tile[x, y ^ x]"),
            ),
        )
    ],
}
