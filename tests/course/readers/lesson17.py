"""Answers of a reader of lesson 17 (tensor cores, forward): wrong ones that its checks once accepted, and
unusual correct ones."""

import runpy
from pathlib import Path

import numpy as np

BOOK = runpy.run_path(str(Path(__file__).parents[1] / "mutants" / "lesson17.py"))
other, mutants = BOOK["other"], BOOK["mutants"]
A01, TAP, VISIT, PLACE = (BOOK[name] for name in ("A01", "TAP", "VISIT", "PLACE"))

TINY = "p[0] if abs(p[0]) > float32(1e-6) else float32(0)"
ADDED = """
for x in range(8):
    t[x] = float32(0)
for a in range(bands.shape[0]):
    for block in range(2):
        a0, a1, a2, a3 = s[a, block], s[a + 1, block], s[a, block + 1], s[a + 1, block + 1]
        b0, b1, x = bands[a, 0], bands[a, 1], 4 * block
        t[x], t[x + 1], t[x + 2], t[x + 3] = mma_bf16(
            a0, a1, a2, a3, b0, b1, t[x], t[x + 1], t[x + 2], t[x + 3]
        )
"""
TAPS_OF_A_ROW = "for a in range(bands.shape[0]):\n"
SKIPPING = ADDED.replace(
    TAPS_OF_A_ROW, TAPS_OF_A_ROW + "    if bands[a, 0] == 0 and bands[a, 1] == 0:\n        continue\n"
)
VALUES_LATE = """
copy(k_tile, 0, k, 0)
cp_async_commit()
place = 0
for j0 in range(0, seen, KEYS):
    copy(v_tile, place, v, j0)
    cp_async_commit()
    cp_async_wait_0()
    cuda.syncthreads()
    if j0 + KEYS < seen:
        copy(k_tile, KEYS - place, k, j0 + KEYS)
        cp_async_commit()
    use_tiles(k_tile, v_tile, place, j0, mine)
    place = KEYS - place"""
FROM_THE_END = """
j0, place = (seen - 1) // KEYS * KEYS, KEYS
send_tiles(k, v, k_tile, v_tile, place, j0)
while j0 >= 0:
    cp_async_wait_0()
    cuda.syncthreads()
    if j0 > 0:
        send_tiles(k, v, k_tile, v_tile, KEYS - place, j0 - KEYS)
    use_tiles(k_tile, v_tile, place, j0, mine)
    j0, place = j0 - KEYS, KEYS - place"""


def routes(d, c_q, c_k, strip, odd=None):
    rows = strip + c_q - 1
    rows += rows % 2 if odd is None else odd
    return d + 12 * c_q * c_k, d * rows / strip + c_q * (16 if c_k <= 9 else 24), d * c_k


WRONG = {
    "ex17_1": mutants(
        "ex17_1",
        {
            "the first warp alone": [
                (A01, A01.replace("p[0], p[1]", "p[0], p[1] * (cuda.threadIdx.x < 32)"))
            ],
            "small weights are 0": [(A01, A01.replace("p[0],", f"{TINY},"))],
            "a barrier": [(A01, f"cuda.syncthreads()\n    {A01}")],
        },
    ),
    "ex17_2": mutants(
        "ex17_2",
        {
            "two warps alone": [
                ("row = first + lane % 16", "row = first + lane % 16 * (cuda.threadIdx.x < 64)")
            ],
            "columns in steps of 16": [(PLACE, "(row, column | lane // 16 * 8)")],
            "one load more": [(PLACE, "(row + int32(tile[first, column]) * 0, column + lane // 16 * 8)")],
        },
    ),
    "ex17_3": mutants(
        "ex17_3",
        {"each tile visited twice": [(VISIT, f"{VISIT}\n        {VISIT}")], "values not ahead": VALUES_LATE},
    ),
    "ex17_4": [
        ("strips of even length", lambda d, c_q, c_k, strip: routes(d, c_q, c_k, strip, (c_q + 1) % 2)),
        ("128 numbers at most", lambda d, *others: routes(min(d, 128), *others)),
        ("15 rows at most", lambda d, c_q, *others: routes(d, min(c_q, 15), *others)),
    ],
    "ex17_5": mutants(
        "ex17_5",
        {
            "7 rows at most": [(TAP, TAP.replace("w[a, b]", "w[min(a, 6), b]"))],
            "taps of at most 4": [
                (TAP, TAP.replace("w[a, b]", "max(min(w[a, b], float32(4)), float32(-4))"))
            ],
            "reads all taps": [
                (
                    TAP,
                    "x = float32(0)\n    for c in range(w.shape[1]):\n        y = w[a, c]\n        if c == b:\n"
                    "            x = y\n    return x",
                )
            ],
        },
    ),
    "ex17_6": mutants(
        "ex17_6",
        {
            "7 rows at most": ADDED.replace("bands.shape[0]", "min(7, bands.shape[0])"),
            "rows of zeros skipped": SKIPPING,
            "the first warp alone": f"{ADDED}if cuda.threadIdx.x >= 32:\n    t[0] = float32(0)",
            "t of at most 10,000": f"{ADDED}t[0] = max(min(t[0], float32(1e4)), float32(-1e4))",
            "a barrier": f"{ADDED}cuda.syncthreads()",
        },
    ),
}

RIGHT = {
    "ex17_3": [("the last tile first", other("ex17_3", FROM_THE_END))],
    "ex17_4": [("an array", lambda *shape: np.array(routes(*shape)))],
    "ex17_6": [
        (
            "both halves changed places",
            other("ex17_6", ADDED.replace("a0, a1, a2, a3, b0, b1, t[x]", "a2, a3, a0, a1, b1, b0, t[x]")),
        )
    ],
}
