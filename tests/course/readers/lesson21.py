"""Answers of a reader of lesson 21 (Triton): wrong ones that its checks once accepted, and correct ones that
the checks once rejected, some of them for only one seed in twenty."""

import runpy
from pathlib import Path

BOOK = runpy.run_path(str(Path(__file__).parents[1] / "mutants" / "lesson21.py"))
variant, wrong, SOFTMAX, FLASH, CONVOLVED, holders = (
    BOOK[name] for name in ("variant", "wrong", "SOFTMAX", "FLASH", "CONVOLVED", "loads")
)
END = "min(n, i0 + ROWS) if CAUSAL else n"
BACKWARDS = (
    "    for j0 in range(0, end, KEYS):\n",
    "    for t in range(0, tl.cdiv(end, KEYS)):\n        j0 = (tl.cdiv(end, KEYS) - 1 - t) * KEYS\n",
)
TILE = [f"load_rows({name}, j0, n, d, KEYS, WIDTH)" for name in "kv"]
ALL_KEYS = [
    ("range(0, end, KEYS)", "range(0, 1)"),
    ("tl.arange(0, KEYS)", "tl.arange(0, 512)"),
    *[(tile, tile.replace("j0, n, d, KEYS", "0, end, d, 512")) for tile in TILE],
]
BY_ROWS = [
    ("range(0, end, KEYS)", "range(0, end, ROWS)"),
    ("tl.arange(0, KEYS)", "tl.arange(0, ROWS)"),
    *[(tile, tile.replace("KEYS", "ROWS")) for tile in TILE],
]
SCORES, PRECISION = 'scores, float("-inf")', 'input_precision="ieee"'
TAP_BY_TAP = """@triton.jit
def answer(s, taps, c_q, c_k, SIZE: tl.constexpr):
    i, j = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    up, total = tl.where(j == i + 1, 1.0, 0.0), tl.zeros((SIZE, SIZE), tl.float32)
    for a in range(c_q):
        moved = s
        for b in range(c_k):
            total += tl.load(taps + a * c_k + b) * moved
            moved = tl.dot(moved, tl.trans(up), input_precision="ieee")
        s = tl.dot(up, s, input_precision="ieee")
    return total
"""

WRONG = {
    "ex21_1": wrong(
        SOFTMAX,
        [
            ("what is masked is -1e30", ('float("-inf")', "-1e30")),
            ("128 columns, whatever WIDTH is", ("tl.arange(0, WIDTH)", "tl.arange(0, 128)")),
        ],
    ),
    "ex21_2": [
        ("threads as fractions", lambda *given: [float(thread) for thread in holders(*given)]),
        ("threads as text", lambda *given: [str(thread) for thread in holders(*given)]),
    ],
    "ex21_3": wrong(
        FLASH,
        [
            ("the future is -1e5", (SCORES, "scores, tl.where(j < n, -1e5, float('-inf'))")),
            ("begins at -1e30", ('tl.full((ROWS,), float("-inf")', "tl.full((ROWS,), -1e30")),
            ("ends at the first query", (END, "min(n, i0 + 1) if CAUSAL else n")),
            ("ends at the first query's tile", (END, "min(n, (i0 // KEYS + 1) * KEYS) if CAUSAL else n")),
            ("the last tile first, rows that see nothing", BACKWARDS),
            ("eight tiles at most", ("range(0, end, KEYS)", "range(0, min(end, 8 * KEYS), KEYS)")),
            ("all keys in one tile", ALL_KEYS),
            ("tiles of ROWS keys", BY_ROWS),
            ("tiles after the last key", (END, "i0 + ROWS if CAUSAL else n")),
            ("a slip in a keyword", ("v_tile, input_precision", "v_tile, input_precison")),
        ],
    ),
    "ex21_5": wrong(
        CONVOLVED,
        [
            ("scores to 100", ("total = ", "s = tl.maximum(tl.minimum(s, 100.0), -100.0)\n    total = ")),
            (
                "small taps left out",
                ("row = tl", "band = tl.where(tl.abs(band) < 1e-3, 0.0, band)\n        row = tl"),
            ),
            (
                "six digits of a tap",
                ("row = tl", "band = tl.floor(band * 1e6 + 0.5) / 1e6\n        row = tl"),
            ),
        ],
    ),
}
RIGHT = {
    "ex21_1": [
        (
            "a global constant",
            variant(f'LOW = tl.constexpr(float("-inf"))\n{SOFTMAX}', ('other=float("-inf")', "other=LOW")),
        ),
        (
            "the other base before the difference",
            variant(
                SOFTMAX,
                (
                    "tl.exp(s - tl.max(s, 1)[:, None])",
                    "tl.exp2(1.4426950408889634 * s - tl.max(1.4426950408889634 * s, 1)[:, None])",
                ),
            ),
        ),
    ],
    "ex21_3": [
        ("the old name of a precision", variant(FLASH, (PRECISION, "allow_tf32=False"))),
        ("three products of 11 bits", variant(FLASH, (PRECISION, 'input_precision="tf32x3"'))),
        (
            "a hint",
            variant(FLASH, ("        j = j0", "        j0 = tl.multiple_of(j0, KEYS)\n        j = j0")),
        ),
    ],
    "ex21_5": [("tap by tap, added in a row", variant(TAP_BY_TAP))],
}
