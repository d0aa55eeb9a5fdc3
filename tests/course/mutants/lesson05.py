"""Wrong answers to the exercises of lesson 05, each labelled with its mistake, and alternative correct
answers."""

import math

from numba import cuda
from numpy import float32

from editing import edited
from kernels.common.tiles import load_tile as package_load_tile
from power.lessons import from_solutions

load_tile, visit, flash_kernel = from_solutions("05", "load_tile", "visit", "flash_kernel")


# Correct answers --------------------------------------------------------------------------------------------


REPAIRS = {
    "rows, t = cuda.blockDim.y, cuda.threadIdx.x": "rows, t = cuda.blockDim.x, cuda.threadIdx.x",
    "k_tile = shared[: columns + d]": "k_tile = shared[: columns * d]",
    "for first in range(0, n, rows):": (
        "for first in range(cuda.blockIdx.x * rows, n, cuda.gridDim.x * rows):"
    ),
    "m, l = float32(0), float32(0)": "m, l = float32(-math.inf), float32(0)",
    "k_tile[e] = k[start * n + e]": "k_tile[e] = k[start * d + e]",
    "for j in range(d):": "for j in range(keys):",
}


# Alternative correct answers --------------------------------------------------------------------------------


@cuda.jit(device=True)
def load_with_while(tile, array, start):
    e = cuda.threadIdx.x
    while e < len(tile):
        tile[e] = 0
        if start + e < len(array):
            tile[e] = array[start + e]
        e += cuda.blockDim.x


@cuda.jit(device=True)
def visit_with_if(row, q_tile, k_tile, v_tile, o_tile, keys, d, scale, m, l):
    for j in range(keys):
        score = float32(0)
        for c in range(d):
            score += scale * q_tile[row * d + c] * k_tile[j * d + c]
        if score > m:
            shrink = math.exp(m - score)
            l *= shrink
            for c in range(d):
                o_tile[row * d + c] *= shrink
            m = score
        p = math.exp(score - m)
        l += p
        for c in range(d):
            o_tile[row * d + c] += p * v_tile[j * d + c]
    return m, l


@cuda.jit
def flash_two_barriers_first(q, k, v, o, n, d, columns, scale):
    """Correct: idle threads skip the computation, and the barrier that protects the old tile precedes the
    load."""
    shared = cuda.shared.array(0, float32)
    t, rows = cuda.threadIdx.x, cuda.blockDim.x
    size = columns * d
    k_tile, v_tile = shared[:size], shared[size : 2 * size]
    q_tile, o_tile = shared[2 * size : 2 * size + rows * d], shared[2 * size + rows * d :]
    i = cuda.grid(1)
    load_tile(q_tile, q, cuda.blockIdx.x * rows * d)
    load_tile(o_tile, o, n * d)
    m, l = float32(-math.inf), float32(0)
    for tile in range((n + columns - 1) // columns):
        cuda.syncthreads()
        load_tile(k_tile, k, tile * size)
        load_tile(v_tile, v, tile * size)
        cuda.syncthreads()
        if i < n:
            m, l = visit(t, q_tile, k_tile, v_tile, o_tile, min(columns, n - tile * columns), d, scale, m, l)
    if i < n:
        for c in range(d):
            o[i * d + c] = o_tile[t * d + c] / l


def without(line):
    """Return an answer that contains all repairs except the one for this line."""
    return lambda: {wrong: right for wrong, right in REPAIRS.items() if wrong != line}


def instead(line, other):
    """Return an answer that contains all repairs, except that this line is repaired differently."""
    return lambda: REPAIRS | {line: other}


RIGHT = {
    "ex05_1": [load_tile, load_with_while],
    "ex05_2": [visit, visit_with_if],
    "ex05_3": [flash_kernel, flash_two_barriers_first],
    "ex05_4": [
        lambda: REPAIRS,
        instead("for first in range(0, n, rows):", "for first in (cuda.blockIdx.x * rows,):"),
    ],
}
MUTANTS = {
    "ex05_1": [
        (
            "every thread loads everything",
            edited(load_tile, ("cuda.threadIdx.x, tile.size, cuda.blockDim.x", "tile.size")),
        ),
        (
            "one number a thread",
            edited(load_tile, ("range(cuda.threadIdx.x, tile.size, cuda.blockDim.x)", "(cuda.threadIdx.x,)")),
        ),
        ("the guard forgets the start", edited(load_tile, ("if start + e <", "if e <"))),
        ("always from the beginning", edited(load_tile, ("= array[start + e]", "= array[e]"))),
        (
            "nothing past the end",
            edited(
                load_tile,
                (
                    "tile[e] = array[start + e] if start + e < array.size else float32(0)",
                    "if start + e < array.size: tile[e] = array[start + e]",
                ),
            ),
        ),
        (
            "contiguous chunks for each thread",
            edited(
                load_tile,
                (
                    "for e in range(cuda.threadIdx.x, tile.size, cuda.blockDim.x):",
                    "chunk = (tile.size + cuda.blockDim.x - 1) // cuda.blockDim.x\n"
                    "    first = cuda.threadIdx.x * chunk\n"
                    "    for e in range(first, min(first + chunk, tile.size)):",
                ),
            ),
        ),
        ("the package's own", package_load_tile),
        ("a step too short", edited(load_tile, ("cuda.blockDim.x)", "cuda.blockDim.x - 1 or 1)"))),
    ],
    "ex05_2": [
        ("no rescaling of l", edited(visit, ("l = l * shrink + p", "l = l + p"))),
        ("no rescaling of o", edited(visit, ("o_tile[row * d + c] * shrink + p", "o_tile[row * d + c] + p"))),
        ("no maximum", edited(visit, ("new_m = max(m, score)", "new_m = float32(0)"))),
        (
            "the maximum of the tile alone",
            edited(
                visit,
                ("new_m = max(m, score)", "new_m = score"),
                ("shrink = math.exp(m - new_m)", "shrink = float32(1)"),
            ),
        ),
        ("scale forgotten", edited(visit, ("score *= scale", "score *= 1"))),
        ("always the first row", edited(visit, ("q_tile[row * d + c]", "q_tile[c]"))),
        (
            "the thread's index in place of row",
            edited(visit, ("q_tile[row * d + c]", "q_tile[cuda.threadIdx.x * d + c]")),
        ),
        ("the scale without its sign", edited(visit, ("score *= scale", "score *= abs(scale)"))),
        ("16 columns at most", edited(visit, ("score += q_tile", "score += 0 if c > 15 else q_tile"))),
        (
            "64 columns at most",
            edited(
                visit, ("o_tile[row * d + c] * shrink + p", "o_tile[row * d + c] * shrink + (c < 64) * p")
            ),
        ),
        ("a barrier", edited(visit, ("    return m, l", "    cuda.syncthreads()\n    return m, l"))),
        ("rows of k as columns", edited(visit, ("k_tile[j * d + c]", "k_tile[c * keys + j]"))),
        ("values of the first key", edited(visit, ("v_tile[j * d + c]", "v_tile[c]"))),
        ("returns the last score for m", edited(visit, ("return m, l", "return score, l"))),
        ("returns nothing", edited(visit, ("return m, l", "return"))),
        (
            "divides too early",
            edited(visit, ("* shrink + p * v_tile[j * d + c]", "* shrink + p * v_tile[j * d + c] / l")),
        ),
    ],
    "ex05_3": [
        (
            "idle threads leave early",
            edited(
                flash_kernel,
                (
                    "load_tile(q_tile, q, first * d)",
                    "load_tile(q_tile, q, first * d)\n    if first + t >= n:\n        return",
                ),
            ),
        ),
        (
            "syncwarp after the loads",
            edited(flash_kernel, ("cuda.syncthreads()  # loaded", "cuda.syncwarp()")),
        ),
        (
            "syncwarp after the visit",
            edited(
                flash_kernel, ("cuda.syncthreads()  # used: the next tile may be loaded", "cuda.syncwarp()")
            ),
        ),
        (
            "four barriers for each tile",
            edited(
                flash_kernel,
                ("cuda.syncthreads()  # loaded", "cuda.syncthreads(); cuda.syncthreads()"),
                (
                    "cuda.syncthreads()  # used: the next tile may be loaded",
                    "cuda.syncthreads(); cuda.syncthreads()",
                ),
            ),
        ),
        ("always whole tiles of keys", edited(flash_kernel, ("min(columns, n - start)", "columns"))),
        (
            "the first tile of queries only",
            edited(flash_kernel, ("first = cuda.blockIdx.x * rows", "first = 0")),
        ),
        (
            "offset of keys counted in rows",
            edited(flash_kernel, ("load_tile(k_tile, k, start * d)", "load_tile(k_tile, k, start)")),
        ),
        ("m starts at 0", edited(flash_kernel, ("float32(-math.inf), float32(0)", "float32(0), float32(0)"))),
        ("no division", edited(flash_kernel, (" / l", ""))),
        (
            "the last tile forgotten",
            edited(flash_kernel, ("range(0, n, columns)", "range(0, n - columns + 1, columns)")),
        ),
        ("v from the tile of k", edited(flash_kernel, ("load_tile(v_tile, v,", "load_tile(v_tile, k,"))),
    ],
    "ex05_4": [
        ("nothing repaired", dict),
        *[(f"without the repair of {line}", without(line)) for line in REPAIRS],
        ("a line that is not there", instead("k_tile = shared[: d]", "pass")),
        ("what Python cannot read", instead("for j in range(d):", "for j in range(keys)")),
        (
            "the other wrong part of blockDim",
            instead(
                "rows, t = cuda.blockDim.y, cuda.threadIdx.x", "rows, t = cuda.blockDim.z, cuda.threadIdx.x"
            ),
        ),
    ],
}
