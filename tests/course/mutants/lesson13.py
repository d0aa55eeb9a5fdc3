"""Wrong answers to the exercises of lesson 13, each labelled with its mistake, and alternative correct
answers.

A wrong function is a correct one with one or two lines edited.
"""

import math

from numba import cuda
from numpy import float32

from editing import wrong
from power.lessons import from_solutions

convolved, gradient_of_s, add_d_w, add_d_q, add_d_k_d_v = from_solutions(
    "13", "convolved", "gradient_of_s", "add_d_w", "add_d_q", "add_d_k_d_v"
)


# Correct answers --------------------------------------------------------------------------------------------


def to_load(i0, j0, rows, columns, c_q, c_k):
    above, left = c_q - 1, (c_k - 1) // 2
    right = c_k - 1 - left
    of_t = i0, i0 + rows + above, j0 - right, j0 + columns + left
    return of_t, (i0 - above, i0 + rows + above, j0 - right - left, j0 + columns + left + right)


@cuda.jit(device=True)
def gradient_of_t(p_tile, d_t_tile, s_tile, w, log_sum, delta, i0, j0):
    height, width = s_tile.shape[0] - (w.shape[0] - 1), s_tile.shape[1] - (w.shape[1] - 1)
    for e in range(cuda.threadIdx.x, height * width, cuda.blockDim.x):
        i, j = e // width, e % width
        query, key = i0 + i, j0 + j
        if 0 <= key <= query < log_sum.size:
            p = math.exp(convolved(s_tile, w, i, j) - log_sum[query])
            p_tile[i, j] = p
            d_t_tile[i, j] = p * (d_t_tile[i, j] - delta[query])
        else:
            p_tile[i, j] = float32(0)
            d_t_tile[i, j] = float32(0)


RIGHT_NAMES = {"a": "no mask", "b": "halo rows", "c": "no rows below", "d": "taps twice"}


# Alternative correct answers --------------------------------------------------------------------------------


def to_load_by_corners(i0, j0, rows, columns, c_q, c_k):
    """Correct: returns the frames as lists."""
    left = (c_k - 1) // 2
    top, bottom = i0 - c_q + 1, i0 + rows + c_q - 1
    return [i0, bottom, j0 - (c_k - 1 - left), j0 + columns + left], [
        top,
        bottom,
        j0 - c_k + 1,
        j0 + columns + c_k - 1,
    ]


@cuda.jit(device=True)
def t_by_zeros_first(p_tile, d_t_tile, s_tile, w, log_sum, delta, i0, j0):
    """Correct: first writes 0 everywhere, then computes the visible entries with a convolution of its own."""
    height, width = s_tile.shape[0] - w.shape[0] + 1, s_tile.shape[1] - w.shape[1] + 1
    for e in range(cuda.threadIdx.x, height * width, cuda.blockDim.x):
        i, j = e // width, e % width
        d_p = d_t_tile[i, j]
        p_tile[i, j] = 0
        d_t_tile[i, j] = 0
        if i0 + i >= log_sum.size or j0 + j < 0 or j0 + j > i0 + i:
            continue
        t = -log_sum[i0 + i]
        for a in range(w.shape[0]):
            for b in range(w.shape[1]):
                t += w[a, b] * s_tile[i + a, j + b]
        p_tile[i, j] = math.exp(t)
        d_t_tile[i, j] = p_tile[i, j] * (d_p - delta[i0 + i])


@cuda.jit(device=True)
def s_by_turned_taps(d_s_tile, d_t_tile, w, i0, j0, rows, columns):
    """Correct: loops over the readers from the top with flipped taps. Each thread computes whole rows."""
    c_q, c_k = w.shape
    for i in range(cuda.threadIdx.x, rows, cuda.blockDim.x):
        for j in range(columns):
            d_s_tile[i, j] = 0
            for down in range(c_q):
                for across in range(c_k):
                    if j0 + j <= i0 + i:
                        d_s_tile[i, j] += w[c_q - 1 - down, c_k - 1 - across] * d_t_tile[i + down, j + across]


@cuda.jit(device=True)
def w_by_total(tap_sums, d_t_tile, s_tile, w, rows, columns, right):
    """Correct: stores once per tap, with the loop over columns outside the loop over rows."""
    c_q, c_k = w.shape
    for e in range(cuda.threadIdx.x, c_q * c_k, cuda.blockDim.x):
        total = float32(0)
        for j in range(columns):
            for i in range(rows):
                total += d_t_tile[i, right + j] * s_tile[i + e // c_k, right + j + e % c_k]
        tap_sums[e // c_k, e % c_k] += total


@cuda.jit(device=True)
def q_by_total(d_q_tile, d_s_tile, k, j0, rows, columns):
    d = k.shape[1]
    for e in range(cuda.threadIdx.x, rows * d, cuda.blockDim.x):
        total = d_q_tile[e // d, e % d]
        for key in range(j0, j0 + columns):
            total += d_s_tile[e // d, key - j0] * k[key, e % d]
        d_q_tile[e // d, e % d] = total


@cuda.jit(device=True)
def k_v_one_after_the_other(d_k_tile, d_v_tile, d_s_tile, p_tile, q, d_o, i0, rows, columns, right):
    d = q.shape[1]
    for e in range(cuda.threadIdx.x, columns * d, cuda.blockDim.x):
        j, c = e // d, e % d
        for query in range(i0, i0 + rows):
            d_v_tile[j, c] += p_tile[query - i0, j + right] * d_o[query, c]
        for query in range(i0, i0 + rows):
            d_k_tile[j, c] += d_s_tile[query - i0, j] * q[query, c]


@cuda.jit(device=True)
def q_by_columns(d_q_tile, d_s_tile, k, j0, rows, columns):
    """Correct: each thread computes whole columns."""
    for c in range(cuda.threadIdx.x, k.shape[1], cuda.blockDim.x):
        for i in range(rows):
            for j in range(columns):
                d_q_tile[i, c] += d_s_tile[i, j] * k[j0 + j, c]


@cuda.jit(device=True)
def s_by_columns(d_s_tile, d_t_tile, w, i0, j0, rows, columns):
    """Correct: each thread computes whole columns."""
    c_q, c_k = w.shape
    for j in range(cuda.threadIdx.x, columns, cuda.blockDim.x):
        for i in range(rows):
            total = float32(0)
            for a in range(c_q):
                for b in range(c_k):
                    total += w[a, b] * d_t_tile[i + c_q - 1 - a, j + c_k - 1 - b]
            d_s_tile[i, j] = total if j0 + j <= i0 + i else float32(0)


@cuda.jit(device=True)
def s_by_one_thread(d_s_tile, d_t_tile, w, i0, j0, rows, columns):
    """Let thread 0 compute everything."""
    c_q, c_k = w.shape
    if cuda.threadIdx.x == 0:
        for e in range(rows * columns):
            i, j = e // columns, e % columns
            total = float32(0)
            for a in range(c_q):
                for b in range(c_k):
                    total += w[a, b] * d_t_tile[i + c_q - 1 - a, j + c_k - 1 - b]
            d_s_tile[i, j] = total if j0 + j <= i0 + i else float32(0)


def naming(**changes):
    """Return a diagnosis that is correct except for these changes."""
    return lambda: RIGHT_NAMES | changes


RIGHT = {
    "ex13_1": [to_load, to_load_by_corners],
    "ex13_2": [gradient_of_t, t_by_zeros_first],
    "ex13_3": [s_by_columns, gradient_of_s, s_by_turned_taps],
    "ex13_4": [add_d_w, w_by_total],
    "ex13_5": [q_by_columns, add_d_q, q_by_total],
    "ex13_6": [add_d_k_d_v, k_v_one_after_the_other],
    "ex13_7": [naming()],
}
SEEN = "if 0 <= key <= query < log_sum.size:"
MUTANTS = {
    "ex13_1": wrong(
        to_load,
        ("no rows below", ("of_t = i0, i0 + rows + above", "of_t = i0, i0 + rows")),
        ("dT with rows above", ("of_t = i0,", "of_t = i0 - above,")),
        (
            "the sides of dT as in the forward pass",
            ("j0 - right, j0 + columns + left\n", "j0 - left, j0 + columns + right\n"),
        ),
        (
            "S0 as in the forward pass",
            ("j0 - right - left, j0 + columns + left + right", "j0 - left, j0 + columns + right"),
        ),
        ("S0 twice as far below", ("(i0 - above, i0 + rows + above", "(i0 - above, i0 + rows + 2 * above")),
        (
            "S0 from i0 - 2 P_q on, as published",
            ("(i0 - above, i0 + rows + above", "(i0 - 2 * above, i0 + rows"),
        ),
        ("P_k as for odd taps", ("left = c_q - 1, (c_k - 1) // 2", "left = c_q - 1, c_k // 2")),
        (
            "the last row in place of one past it",
            ("of_t = i0, i0 + rows + above,", "of_t = i0, i0 + rows + above - 1,"),
        ),
        ("one frame", ("return of_t, (", "return (")),
    ),
    "ex13_2": wrong(
        gradient_of_t,
        ("no D", (" - delta[query])", ")")),
        ("no P", ("= p * (d_t_tile[i, j] - delta[query])", "= d_t_tile[i, j] - delta[query]")),
        ("no L", (" - log_sum[query])", ")")),
        ("P not kept", ("            p_tile[i, j] = p\n", "")),
        (
            "P is left as it was where masked",
            ("            p_tile[i, j] = float32(0)\n", "            pass\n"),
        ),
        (
            "dT is left as it was where masked",
            ("            d_t_tile[i, j] = float32(0)\n", "            pass\n"),
        ),
        ("no causal mask", (SEEN, "if 0 <= key < log_sum.size and query < log_sum.size:")),
        ("the mask without the tile's place", (SEEN, "if 0 <= key and j <= i and query < log_sum.size:")),
        ("keys before the first one", (SEEN, "if key <= query < log_sum.size:")),
        ("queries after the last one", (SEEN, "if 0 <= key <= query:")),
        ("the key itself not seen", (SEEN, "if 0 <= key < query < log_sum.size:")),
        ("L of the row of the tile", ("log_sum[query])", "log_sum[i])")),
        ("D of the key", ("delta[query]", "delta[key]")),
        ("D with the wrong sign", ("- delta[query]", "+ delta[query]")),
    ),
    "ex13_3": wrong(
        gradient_of_s,
        ("the mask without the tile's place", ("if j0 + j <= i0 + i:", "if j <= i:")),
        ("taps not turned", ("i + c_q - 1 - a, j + c_k - 1 - b", "i + a, j + b")),
        ("rows not turned", ("i + c_q - 1 - a", "i + a")),
        ("columns not turned", ("j + c_k - 1 - b", "j + b")),
        ("off by P_k, as if column 0 were key j0", ("j + c_k - 1 - b", "j + (c_k - 1) // 2 - b")),
        ("no rows below", ("total += w[a, b]", "if i + c_q - 1 - a < rows: total += w[a, b]")),
        (
            "nothing written where masked",
            ("        d_s_tile[i, j] = total", "        if j0 + j <= i0 + i: d_s_tile[i, j] = total"),
        ),
        ("the last term alone", ("total += w", "total = w")),
        ("in place", ("        d_s_tile[i, j] = total", "        d_t_tile[i, j] = total")),
    ),
    "ex13_4": wrong(
        add_d_w,
        ("the whole tile's rows", ("range(rows)", "range(rows + c_q - 1)")),
        ("the whole tile's columns", ("range(right, right + columns)", "range(columns + c_k - 1)")),
        ("columns from 0 on", ("range(right, right + columns)", "range(columns)")),
        ("S0 without the tap", ("s_tile[i + a, j + b]", "s_tile[i, j]")),
        ("S0 from the other end", ("s_tile[i + a, j + b]", "s_tile[i + c_q - 1 - a, j + c_k - 1 - b]")),
        ("taps changed over", ("s_tile[i + a, j + b]", "s_tile[i + b, j + a]")),
        ("S0 at column 0", ("s_tile[i + a, j + b]", "s_tile[i + a, j - right + b]")),
        ("only the last product", ("] += d_t", "] = d_t")),
        ("times the tap", ("+= d_t_tile[i, j]", "+= w[a, b] * d_t_tile[i, j]")),
    ),
    "ex13_5": wrong(
        add_d_q,
        ("only the last key", ("+= d_s", "= d_s")),
        ("always the first keys", ("k[j0 + j, c]", "k[j, c]")),
        ("one key too few", ("range(columns)", "range(columns - 1)")),
        ("the halo's columns too", ("range(columns)", "range(columns + 1)")),
        (
            "every thread does every row",
            ("range(cuda.threadIdx.x, rows * d, cuda.blockDim.x)", "range(rows * d)"),
        ),
        (
            "forgets the tiles before",
            ("        for j in range", "        d_q_tile[i, c] = 0\n        for j in range"),
        ),
    ),
    "ex13_6": wrong(
        add_d_k_d_v,
        ("dV from column 0", ("p_tile[i, right + j]", "p_tile[i, j]")),
        ("dK from column right", ("d_s_tile[i, j]", "d_s_tile[i, right + j]")),
        (
            "over a halo row",
            ("for i in range(rows):", "for i in range(min(rows + 1, p_tile.shape[0] - 2, q.shape[0] - i0)):"),
        ),
        ("always the first queries", ("q[i0 + i, c]", "q[i, c]")),
        ("always the first rows of dO", ("d_o[i0 + i, c]", "d_o[i, c]")),
        ("dV of q", ("d_o[i0 + i, c]", "q[i0 + i, c]")),
        ("P in place of dS", ("d_s_tile[i, j] * q", "p_tile[i, right + j] * q")),
        ("P not transposed", ("p_tile[i, right + j]", "p_tile[j, right + i]")),
        ("dK forgets the tiles before", ("d_k_tile[j, c] +=", "d_k_tile[j, c] =")),
        ("dV forgotten", ("d_v_tile[j, c] +=", "0 *")),
    ),
    "ex13_7": [
        ("a and c exchanged", naming(a="no rows below", c="no mask")),
        ("b and d exchanged", naming(b="taps twice", d="halo rows")),
        ("all the same", lambda: dict.fromkeys("abcd", "no mask")),
        ("a name of one's own", naming(a="unmasked")),
        ("one missing", lambda: {name: RIGHT_NAMES[name] for name in "abc"}),
        ("a list", lambda: list(RIGHT_NAMES.values())),
        ("nothing", lambda: None),
    ],
}
MUTANTS["ex13_3"] = [*MUTANTS["ex13_3"], ("thread 0 does all", s_by_one_thread)]
