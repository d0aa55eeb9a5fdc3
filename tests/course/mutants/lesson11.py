"""Wrong answers to the exercises of lesson 11, each labelled with its mistake, and alternative correct
answers.

A wrong answer is the correct one with one or two lines edited.
"""

import math

from numba import cuda
from numpy import float32

from editing import edited
from kernels.common.tiles import MINUS_INFINITY, reciprocal, weight  # noqa: F401 (in an edited text)
from power.lessons import from_solutions

load_rows, score, convolve, row_max, row_sum, absorb, add_values = from_solutions(
    "11", "load_rows", "score", "convolve", "row_max", "row_sum", "absorb", "add_values", math=math
)


# Correct answers --------------------------------------------------------------------------------------------


def conv_kernel(size):
    def kernel(q, k, v, w, scale, out, log_sum):
        q_tile = cuda.shared.array((size, size), float32)
        k_tile = cuda.shared.array((size, size), float32)
        v_tile = cuda.shared.array((size, size), float32)
        s_tile = cuda.shared.array((size, size), float32)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        n, d = q.shape
        c_q, c_k = w.shape
        rows, columns = size - (c_q - 1), size - (c_k - 1)
        i0 = cuda.blockIdx.x * rows
        m, l, o = MINUS_INFINITY, float32(0), float32(0)
        load_rows(q_tile, q, i0 - (c_q - 1))
        for j0 in range(0, min(n, i0 + rows), columns):
            load_rows(k_tile, k, j0 - (c_k - 1) // 2)
            load_rows(v_tile, v, j0)
            cuda.syncthreads()  # loaded
            s_tile[y, x] = score(q_tile, k_tile, w, i0, j0, scale)
            cuda.syncthreads()  # complete
            t = convolve(s_tile, w, i0, j0)
            m, l, shrink, p = absorb(t, m, l)
            cuda.syncthreads()  # free
            s_tile[y, x] = p
            cuda.syncthreads()  # P
            o = add_values(o, shrink, s_tile, v_tile)
            cuda.syncthreads()  # used
        if y < rows and i0 + y < n:
            if x < d:
                out[i0 + y, x] = o / l
            if x == 0:
                log_sum[i0 + y] = m + math.log(l)

    return kernel


# Alternative correct answers --------------------------------------------------------------------------------


@cuda.jit(device=True)
def score_masked_at_the_end(q_tile, k_tile, w, i0, j0, scale):
    total = float32(0)
    for c in range(len(k_tile)):
        total += scale * q_tile[cuda.threadIdx.y, c] * k_tile[cuda.threadIdx.x, c]
    future = j0 - (w.shape[1] - 1) // 2 + cuda.threadIdx.x > i0 - w.shape[0] + 1 + cuda.threadIdx.y
    return float32(0) if future else total


@cuda.jit(device=True)
def convolve_inside_the_if(s_tile, w, i0, j0):
    t = MINUS_INFINITY
    y, x = cuda.threadIdx.y, cuda.threadIdx.x
    rows, columns = s_tile.shape[0] - w.shape[0] + 1, s_tile.shape[1] - w.shape[1] + 1
    if y < rows and x < columns and i0 + y >= j0 + x:
        t = float32(0)
        for b in range(w.shape[1]):
            for a in range(w.shape[0]):
                t += s_tile[y + a, x + b] * w[a, b]
    return t


@cuda.jit(device=True)
def absorb_with_branches(t, m, l):
    largest = row_max(t)
    shrink = float32(1)
    if largest > m:
        shrink = weight(m, largest)
        m = largest
    p = math.exp(t - m) if t > MINUS_INFINITY else float32(0)
    l = shrink * l
    return m, l + row_sum(p), shrink if m > MINUS_INFINITY else float32(0), p


@cuda.jit(device=True)
def add_values_apart(o, shrink, p_tile, v_tile):
    total = float32(0)
    for j in range(v_tile.shape[0]):
        total += p_tile[cuda.threadIdx.y, j] * v_tile[j, cuda.threadIdx.x]
    return shrink * o + total


WITH_FOUR_BARRIERS = [
    (
        "            load_rows(v_tile, v, j0)\n            cuda.syncthreads()  # loaded",
        "            cuda.syncthreads()  # loaded",
    ),
    ("cuda.syncthreads()  # complete", "cuda.syncthreads()\n            load_rows(v_tile, v, j0)"),
    ("            cuda.syncthreads()  # used\n", ""),
]


def kernel(*edits):
    return edited(conv_kernel, *edits)


RIGHT = {
    "ex11_1": [score, score_masked_at_the_end],
    "ex11_2": [convolve, convolve_inside_the_if],
    "ex11_3": [absorb, absorb_with_branches],
    "ex11_4": [add_values, add_values_apart],
    "ex11_5": [conv_kernel, kernel(*WITH_FOUR_BARRIERS)],
}
GUARD = "y + c_q > size or x + c_k > size or j0 + x > i0 + y"
MUTANTS = {
    "ex11_1": [
        ("no mask", edited(score, ("if key > query", "if False"))),
        (
            "the mask of the owned tile",
            edited(score, ("i0 - (c_q - 1) + y, j0 - (c_k - 1) // 2 + x", "i0 + y, j0 + x")),
        ),
        ("no halo above", edited(score, ("i0 - (c_q - 1) + y", "i0 + y"))),
        ("no halo to the left", edited(score, ("j0 - (c_k - 1) // 2 + x", "j0 + x"))),
        ("the halo as wide as the taps", edited(score, ("(c_k - 1) // 2", "(c_k - 1)"))),
        (
            "the halo of an even number of taps on the wrong side",
            edited(score, ("(c_k - 1) // 2", "c_k // 2")),
        ),
        ("masked with -inf", edited(score, ("return float32(0)", "return MINUS_INFINITY"))),
        ("no scale", edited(score, ("return scale * total", "return total"))),
        (
            "rows and columns swapped",
            edited(score, ("q_tile[y, c] * k_tile[x, c]", "q_tile[x, c] * k_tile[y, c]")),
        ),
        ("i and j of the tile only", edited(score, ("i0 - (c_q - 1) + y, j0 - (c_k - 1) // 2 + x", "y, x"))),
        ("nothing returned", edited(score, ("return scale * total", "scale * total"))),
    ],
    "ex11_2": [
        (
            "columns of the halo have a T",
            edited(
                convolve,
                ("x + c_k > size", "x >= size"),
                ("s_tile[y + a, x + b]", "(s_tile[y + a, x + b] if x + b < size else float32(0))"),
            ),
        ),
        (
            "rows of the halo have a T",
            edited(
                convolve,
                ("y + c_q > size", "y >= size"),
                ("s_tile[y + a, x + b]", "(s_tile[y + a, x + b] if y + a < size else float32(0))"),
            ),
        ),
        ("no guard", edited(convolve, (GUARD, "j0 + x > i0 + y"))),
        ("a guard one too late", edited(convolve, ("y + c_q > size", "y + c_q > size + 1"))),
        (
            "the mask of S0",
            edited(convolve, ("j0 + x > i0 + y", "j0 - (c_k - 1) // 2 + x > i0 - (c_q - 1) + y")),
        ),
        ("masked with 0", edited(convolve, ("return MINUS_INFINITY", "return float32(0)"))),
        ("taps turned round", edited(convolve, ("w[a, b]", "w[c_q - 1 - a, c_k - 1 - b]"))),
        (
            "the window to the left and above",
            edited(convolve, ("s_tile[y + a, x + b]", "s_tile[y - a, x - b]")),
        ),
        ("only one row of taps", edited(convolve, ("range(c_q)", "range(1)"))),
        (
            "rows and columns of the taps swapped",
            edited(
                convolve,
                ("s_tile[y + a, x + b]", "s_tile[y + b, x + a]"),
                ("y + c_q > size or x + c_k", "y + c_k > size or x + c_q"),
            ),
        ),
    ],
    "ex11_3": [
        ("exp without a guard", edited(absorb, ("p = weight(t, new_m)", "p = math.exp(t - new_m)"))),
        (
            "shrink without a guard",
            edited(absorb, ("shrink = weight(m, new_m)", "shrink = math.exp(m - new_m)")),
        ),
        ("a maximum of the tile's own", edited(absorb, ("max(m, row_max(t))", "row_max(t)"))),
        ("a maximum of the thread's own", edited(absorb, ("max(m, row_max(t))", "max(m, t)"))),
        ("no maximum", edited(absorb, ("max(m, row_max(t))", "float32(0)"))),
        ("the sum of the thread alone", edited(absorb, ("row_sum(p)", "p"))),
        ("the old l does not shrink", edited(absorb, ("l * shrink", "l"))),
        ("the old l forgotten", edited(absorb, ("l * shrink + row_sum(p)", "row_sum(p)"))),
        (
            "shrink after m has changed",
            edited(absorb, ("shrink = weight(m, new_m)", "shrink = weight(new_m, new_m)")),
        ),
        (
            "only lanes that see something shuffle",
            edited(
                absorb,
                (
                    "new_m = max(m, row_max(t))",
                    (
                        "if t == MINUS_INFINITY:\n        return m, l, float32(1), float32(0)\n    new_m ="
                        " max(m, row_max(t))"
                    ),
                ),
            ),
        ),
    ],
    "ex11_4": [
        ("o does not shrink", edited(add_values, ("    o *= shrink\n", ""))),
        ("the old o forgotten", edited(add_values, ("o *= shrink", "o = float32(0)"))),
        (
            "shrinks once a key",
            edited(add_values, ("    o *= shrink\n", ""), ("        o += ", "        o = o * shrink + ")),
        ),
        ("row x of P", edited(add_values, ("p_tile[y, j] * v_tile[j, x]", "p_tile[x, j] * v_tile[j, y]"))),
        (
            "the last key forgotten",
            edited(add_values, ("range(p_tile.shape[1])", "range(p_tile.shape[1] - 1)")),
        ),
        (
            "the new part shrinks too",
            edited(add_values, ("    o *= shrink\n", ""), ("return o", "return o * shrink")),
        ),
    ],
    "ex11_5": [
        (
            "a fifth tile, for P",
            kernel(
                (
                    "        s_tile = cuda.shared.array((size, size), float32)\n",
                    "        s_tile = cuda.shared.array((size, size), float32)\n"
                    "        p_tile = cuda.shared.array((size, size), float32)\n",
                ),
                ("s_tile[y, x] = p", "p_tile[y, x] = p"),
                ("shrink, s_tile, v_tile", "shrink, p_tile, v_tile"),
            ),
        ),
        ("a function of the package", kernel(("= o / l", "= o * reciprocal(l)"))),
        ("tiles beyond the diagonal", kernel(("min(n, i0 + rows)", "n"))),
        ("no barrier after the loads", kernel(("cuda.syncthreads()  # loaded", "pass"))),
        ("no barrier after S0", kernel(("cuda.syncthreads()  # complete", "pass"))),
        ("P over S0 too early", kernel(("cuda.syncthreads()  # free", "pass"))),
        ("no barrier after P", kernel(("cuda.syncthreads()  # P", "pass"))),
        ("the next tile over V too early", kernel(("cuda.syncthreads()  # used", "pass"))),
        ("K without its halo", kernel(("k, j0 - (c_k - 1) // 2", "k, j0"))),
        ("V with a halo", kernel(("v, j0)", "v, j0 - (c_k - 1) // 2)"))),
        ("always the first tile of V", kernel(("v, j0)", "v, 0)"))),
        (
            "only owned cells store P",
            kernel(("s_tile[y, x] = p", "if y < rows and x < columns:\n                s_tile[y, x] = p")),
        ),
        (
            "barrier in a branch",
            kernel(("cuda.syncthreads()  # P", "if y < rows:\n                cuda.syncthreads()")),
        ),
        (
            "shrink forgotten",
            kernel(("add_values(o, shrink, s_tile, v_tile)", "add_values(o, float32(1), s_tile, v_tile)")),
        ),
        ("T in place of P", kernel(("s_tile[y, x] = p", "s_tile[y, x] = t"))),
        (
            "l forgotten from tile to tile",
            kernel(("m, l, shrink, p = absorb(t, m, l)", "m, l, shrink, p = absorb(t, m, float32(0))")),
        ),
        (
            "Q loaded anew without its halo",
            kernel(
                ("load_rows(v_tile, v, j0)", "load_rows(v_tile, v, j0)\n            load_rows(q_tile, q, i0)")
            ),
        ),
    ],
}
