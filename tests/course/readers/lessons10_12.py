"""Answers of a reader of lessons 10 to 12: wrong ones that the checks once accepted, and unusual correct
ones.

Each answer is the solution with part of its text edited.
"""

from readers.lessons01_08 import edit

# Edits that several answers share ---------------------------------------------------------------------------

MATH = "@cuda.jit", "import math\n\n\n@cuda.jit"
FLOAT32 = "@cuda.jit", "from numpy import float32\n\n\n@cuda.jit"
UPDATE = "state = update(state, convolved_tile(q_tile, k_tile, w, i0, j0), v_tile)"
ROW = "for c in range(q_tile.shape[1]):"
WINDOW = "total += w[a, b] * s_tile[y + a, x + b]"
PRODUCT = "        o += p_tile[y, j] * v_tile[j, x]"
LOAD_K = "            load_rows(k_tile, k, j0 - (c_k - 1) // 2)"
ABSORB = "            m, l, shrink, p = absorb(t, m, l)"
LAST = "            cuda.syncthreads()  # P and V are used up"
TURNED = "    return conv2d(room[None, None], w.flip(0, 1)[None, None])[0, 0]"
STEP = "            d_w[a, b] = (d_t * room[a : a + n, b : b + n]).sum()"
DT = "    return p, p * (d_p - d)"


WHOLE = """from kernels import reference


def convolved_tile(q_tile, k_tile, w, i0, j0):
    (c_q, c_k), rows, columns = w.shape, len(q_tile) - len(w) + 1, len(k_tile) - w.shape[1] + 1
    room = i0 + j0 + len(q_tile) + len(k_tile)
    q, k = q_tile.new_zeros(2, 3 * room, q_tile.shape[1])  # row `room` is token 0
    top, left = room + i0 - c_q + 1, room + j0 - (c_k - 1) // 2
    q[top : top + len(q_tile)], k[left : left + len(k_tile)] = q_tile, k_tile
    t = reference.conv_scores(q[None, None], k[None, None], w[None])[0, 0]
    return t[room + i0 : room + i0 + rows, room + j0 : room + j0 + columns]
"""


def capped(lines):
    """Return the solution of exercise 11.5 with these lines inserted, which end the loop early."""
    return edit("ex11_5", (LOAD_K, lines + LOAD_K))


WRONG = {
    "ex10_1": [("15 rows of taps at most", edit("ex10_1", ("i0 - (c_q - 1)", "i0 - (min(c_q, 15) - 1)")))],
    "ex10_2": [
        ("scores cut at 300", edit("ex10_2", ("future, 0.0)", "future, 0.0).clamp(-300, 300)"))),
        ("32 keys", edit("ex10_2", ("future, 0.0)", "future | (torch.arange(s.shape[1]) >= 32), 0.0)"))),
        ("8 taps in a row", edit("ex10_2", ("w[None, None]", "(w * (torch.arange(c_k) < 8))[None, None]"))),
        (
            "no first mask in tiles before the diagonal",
            edit("ex10_2", ("masked_fill(future,", "masked_fill(future & (j0 + s.shape[1] > i0),")),
        ),
        (
            "the package's whole matrix",
            edit("ex10_2", ("def convolved_tile(", f"{WHOLE}\n\n\ndef of_one_tile(")),
        ),
    ],
    "ex10_3": [
        (
            "keeps the tiles of V",
            edit(
                "ex10_3",
                ("state = initial_state", "kept, state = [], initial_state"),
                (UPDATE, f"{UPDATE}\n            kept.append(v_tile)"),
            ),
        ),
        (
            "64 keys",
            edit("ex10_3", ("range(0, i0 + count, columns)", "range(0, min(i0 + count, 64), columns)")),
        ),
        (
            "output kept to the end",
            edit(
                "ex10_3",
                ("    for i0 in", "    outs = []\n    for i0 in"),
                ("        traffic.store(out, slice(i0, i0 + count), o / l)", "        outs.append(o / l)"),
                ("    return out,", "    traffic.store(out, slice(0, n), torch.cat(outs))\n    return out,"),
            ),
        ),
    ],
    "ex11_1": [
        (
            "to the first 0 of q",
            edit("ex11_1", (ROW, f"{ROW}\n        if q_tile[y, c] == 0:\n            break")),
        ),
        ("a sum in float64", edit("ex11_1", ("total = float32(0)", "total = 0.0"))),
        ("a bare 0 where masked", edit("ex11_1", ("return float32(0)", "return 0"))),
        (
            "scores cut at 100",
            edit("ex11_1", ("scale * total", "min(max(scale * total, float32(-100)), float32(100))")),
        ),
        ("8 rows of halo at most", edit("ex11_1", ("i0 - (c_q - 1) + y", "i0 - min(c_q - 1, 8) + y"))),
        ("blocks up to query 50", edit("ex11_1", ("if key > query", "if key > query or i0 > 50"))),
    ],
    "ex11_2": [
        ("a sum in float64", edit("ex11_2", ("total = float32(0)", "total = 0.0"))),
        ("keys up to 100", edit("ex11_2", ("j0 + x > i0 + y", "j0 + x > min(i0 + y, 100)"))),
        ("-math.inf, a float64", edit("ex11_2", MATH, ("return MINUS_INFINITY", "return -math.inf"))),
        (
            "ends at a score of 0",
            edit(
                "ex11_2",
                (WINDOW, f"if s_tile[y + a, x + b] == 0:\n                break\n            {WINDOW}"),
            ),
        ),
        (
            "-inf for a sum of 0",
            edit("ex11_2", ("return total", "return total if total else MINUS_INFINITY")),
        ),
        (
            "sums cut at 300",
            edit("ex11_2", ("return total", "return min(max(total, float32(-300)), float32(300))")),
        ),
    ],
    "ex11_3": [
        (
            "a row that sees nothing leaves before the sum",
            edit(
                "ex11_3",
                FLOAT32,
                (
                    "    p = weight",
                    "    if new_m == MINUS_INFINITY:\n        return m, l, float32(1), float32(0)\n    p = weight",
                ),
            ),
        ),
        (
            "p is at least e^-30",
            edit("ex11_3", FLOAT32, ("weight(t, new_m)", "weight(max(t, new_m - float32(30)), new_m)")),
        ),
        (
            "shrink is at least e^-20",
            edit("ex11_3", FLOAT32, ("weight(m, new_m)", "weight(max(m, new_m - float32(20)), new_m)")),
        ),
    ],
    "ex11_4": [
        (
            "a sum in float64",
            edit(
                "ex11_4",
                ("    o *= shrink", "    total = 0.0"),
                (PRODUCT, PRODUCT.replace("o +=", "total +=")),
                ("    return o", "    return o * shrink + total"),
            ),
        ),
        (
            "to the first P of 0",
            edit("ex11_4", (PRODUCT, f"        if p_tile[y, j] == 0:\n            break\n{PRODUCT}")),
        ),
        (
            "to the first V of 0",
            edit("ex11_4", (PRODUCT, f"        if v_tile[j, x] == 0:\n            break\n{PRODUCT}")),
        ),
        ("small P left out", edit("ex11_4", (PRODUCT, f"        if p_tile[y, j] > 1e-5:\n    {PRODUCT}"))),
        (
            "o cut at 100",
            edit("ex11_4", FLOAT32, ("return o", "return min(max(o, float32(-100)), float32(100))")),
        ),
    ],
    "ex11_5": [
        ("seven tiles of keys", capped("            if j0 >= 7 * columns:\n                break\n")),
        ("48 keys", capped("            if j0 >= 48:\n                break\n")),
        ("K loaded twice", capped("            load_rows(k_tile, k, j0)\n            cuda.syncthreads()\n")),
        ("absorb twice", edit("ex11_5", (ABSORB, f"            _, _, _, p = absorb(t, m, l)\n{ABSORB}"))),
        ("six barriers", edit("ex11_5", (LAST, f"            cuda.syncthreads()\n{LAST}"))),
        (
            "o stored in every turn",
            edit(
                "ex11_5",
                (
                    LAST,
                    "            if y < rows and i0 + y < n and x < d:\n"
                    f"                out[i0 + y, x] = o / l\n{LAST}",
                ),
            ),
        ),
    ],
    "ex12_1": [
        ("weights of 1 at most", edit("ex12_1", (DT, f"    p = p.clamp(max=1)\n{DT}"))),
        ("small weights left out", edit("ex12_1", (DT, f"    p = p * (p > 1e-8)\n{DT}"))),
        ("40 tokens", edit("ex12_1", (DT, f"    d_p[40:] = 0\n{DT}"))),
        ("numpy's arrays", edit("ex12_1", (DT, "    return p.numpy(), (p * (d_p - d)).numpy()"))),
    ],
    "ex12_2": [
        (
            "the package's",
            edit(
                "ex12_2",
                ("def transposed_convolve", "from kernels import reference\n\n\ndef transposed_convolve"),
                (TURNED, "    return reference.transposed_convolve(d_t[None, None], w[None])[0, 0]"),
            ),
        ),
        ("20 tokens", edit("ex12_2", (TURNED, f"    room[20 + c_q :] = 0\n{TURNED}"))),
        ("numpy's array", edit("ex12_2", (TURNED, f"{TURNED}.numpy()"))),
    ],
    "ex12_3": [
        ("20 tokens", edit("ex12_3", (STEP, STEP.replace("]).sum", "])[:20].sum")))),
        ("lists", edit("ex12_3", ("    return d_w", "    return d_w.tolist()"))),
    ],
    "ex12_4": [
        ("24 tokens", edit("ex12_4", ("    scale =", "    d_s[24:] = 0\n    scale ="))),
        (
            "dT cut at 10",
            edit(
                "ex12_4",
                (
                    "torch.tril(transposed_convolve(d_t, w))",
                    "torch.tril(transposed_convolve(d_t.clamp(-10, 10), w))",
                ),
            ),
        ),
    ],
}

RIGHT = {
    "ex10_3": [
        (
            "only the keys that a row of the tile sees",
            edit("ex10_3", ("min(columns, n - j0)", "min(columns, i0 + count - j0)")),
        ),
        (
            "keys from the last tile to the first",
            edit(
                "ex10_3", ("in range(0, i0 + count, columns)", "in reversed(range(0, i0 + count, columns))")
            ),
        ),
    ],
    "ex11_2": [
        ("taps of 0 left out", edit("ex11_2", (WINDOW, f"if w[a, b] != 0:\n                {WINDOW}")))
    ],
    "ex11_3": [
        (
            "any factor where nothing was read",
            edit(
                "ex11_3", MATH, FLOAT32, ("weight(m, new_m)", "math.exp(m - new_m) if l > 0 else float32(1)")
            ),
        ),
        ("m joins before the shuffles", edit("ex11_3", ("max(m, row_max(t))", "row_max(max(m, t))"))),
    ],
    "ex11_4": [
        ("P of 0 left out", edit("ex11_4", (PRODUCT, f"        if p_tile[y, j] != 0:\n    {PRODUCT}")))
    ],
    "ex11_5": [
        (
            "a warp has whole rows of P, so its own barrier will do",
            edit("ex11_5", ("cuda.syncthreads()  # P is complete", "cuda.syncwarp()")),
        ),
        (
            "the last barrier first",
            edit("ex11_5", (LAST, ""), (LOAD_K, f"            cuda.syncthreads()\n{LOAD_K}")),
        ),
    ],
}
