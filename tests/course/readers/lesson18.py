"""Answers of a reader of lesson 18 (fast backward and decoding): wrong ones that its checks once accepted,
variants of them, and unusual correct ones."""

import runpy
from pathlib import Path

import torch

from editing import edited, wrong

BOOK = runpy.run_path(str(Path(__file__).parents[1] / "mutants" / "lesson18.py"))
PRODUCT = "c += window.T @ g_tile[:, y0 : y0 + 8]"
IN_HALVES = """for half in (slice(0, rows // 2), slice(rows // 2, rows)):
                c += window[half].T @ g_tile[half, y0 : y0 + 8]"""
CLAMPED = "max(min({}, float32(1000)), float32(-1000))"


def along_strides(s_tile, g_tile, c_q, c_k):
    """Correct: reads the diagonals of a row shift as rows of a strided view of the sums."""
    rows, columns = g_tile.shape
    taps = []
    for a in range(c_q):
        products = [
            s_tile[a : a + rows].narrow(1, y, 7 + c_k).t().mm(g_tile.narrow(1, y, 8))
            for y in range(0, columns, 8)
        ]
        taps.append(sum(products).contiguous().as_strided((c_k, 8), (8, 9)).sum(1))
    return torch.stack(taps)


WRONG = {
    "ex18_1": wrong(
        BOOK["tap_gradient"],
        ("clamps", ("return d_w", "return d_w.clamp(-1000, 1000)")),
        ("two products a block", (PRODUCT, IN_HALVES)),
    ),
    "ex18_2": wrong(
        BOOK["add_products"],
        ("columns below 16", ("column + right", "(column & 8) + right")),
        (
            "clamps",
            (
                "sums[2], sums[3]\n    )",
                f"sums[2], sums[3]\n    )\n    sums[0] = {CLAMPED.format('sums[0]')}",
            ),
        ),
    ),
    "ex18_3": wrong(
        BOOK["sum_diagonals"], ("clamps", ("lane] = total", f"lane] = {CLAMPED.format('total')}"))
    ),
    "ex18_4": wrong(
        BOOK["most_registers"], ("threads, not whole warps", ("warps > 64", "blocks * threads > 2048"))
    ),
    "ex18_5": wrong(
        BOOK["convolve"],
        ("seven rows of taps at most", ("bands.shape[0] // 2", "min(bands.shape[0] // 2, 7)")),
        ("clamps", ("\n        )", f"\n        )\n        t[0] = {CLAMPED.format('t[0]')}")),
    ),
}
RIGHT = {
    "ex18_1": [("diagonals along strides", along_strides)],
    "ex18_2": [
        (
            "a product of its own, added",
            edited(
                BOOK["add_products"],
                ("    sums[0], sums[1], sums[2], sums[3] = mma", "    z = float32(0)\n    c = mma"),
                (
                    "b1, sums[0], sums[1], sums[2], sums[3]\n    )",
                    "b1, z, z, z, z)\n    for i in range(4):\n        sums[i] += c[i]",
                ),
            ),
        )
    ],
    "ex18_3": [
        (
            "all nine diagonals put down, no more added",
            edited(BOOK["sum_diagonals"], ("0 <= b and b < c_k", "0 <= b and b < 9")),
        )
    ],
}
