"""The checks of lesson 11: the four parts of a convolutional attention kernel, then the kernel; all run in `sim`."""

import math

import numpy as np
from numba import cuda
from numpy import float32

from course.check import kernels
from course.check.harness import agree, compare, exercise, explained

TAPS = [(1, 1), (3, 3), (2, 4), (4, 1), (1, 6), (3, 5)]  # c_q, c_k
WIDE = [(7, 7), (6, 11), (12, 2)]  # for tiles of 16 × 16
SHAPES = [  # n, d, taps, size of the tile
    (5, 8, (1, 1), 8),
    (6, 4, (3, 3), 8),
    (13, 5, (2, 4), 8),
    (9, 3, (3, 3), 8),
    (1, 3, (3, 3), 8),
    (11, 2, (8, 3), 8),
    (14, 3, (3, 5), 8),
    (4, 6, (6, 7), 8),
    (12, 9, (6, 11), 16),
]
LOUD = 100  # of a score, so that exp overflows without the maximum, and vanishes with one of 0


@exercise("11.1", "score")
def ex11_1(score, rng):
    for taps in TAPS:
        for i0, j0 in [(0, 0), *rng.integers(0, 12, (3, 2)).tolist()]:
            check_scores(score, 8, taps, i0, j0, rng)
    check_scores(score, 16, (6, 11), 10, 6, rng)
    return f"{4 * len(TAPS) + 1} tiles of 8 × 8 and 16 × 16, at the start of the sequence, on the diagonal and off it; taps odd, even and oblong"


@exercise("11.2", "convolve")
def ex11_2(convolve, rng):
    for size, every in ((8, TAPS), (16, WIDE)):
        for taps in every:
            for i0, j0 in [(0, 0), (size + 9, 2), *rng.integers(0, 12, (2, 2)).tolist()]:
                check_convolution(convolve, size, taps, i0, j0, rng)
    return f"{4 * len(TAPS + WIDE)} tiles; whatever is not owned, or comes after its query, is -inf"


@exercise("11.3", "absorb")
def ex11_3(absorb, rng):
    for size in (8, 16):
        check_rows(absorb, size, rng, "nothing read before", m=-math.inf)
        check_rows(absorb, size, rng, "a second tile", m=1)
        check_rows(absorb, size, rng, "a new largest score", m=-30)
        check_rows(absorb, size, rng, "a tile that says little", m=30)
        check_rows(absorb, size, rng, f"scores about {LOUD}", m=-math.inf, offset=LOUD)
        check_rows(absorb, size, rng, f"scores about -{LOUD}", m=-math.inf, offset=-LOUD)
        check_rows(absorb, size, rng, "no key seen, after others", m=2, seen=False)
        check_rows(absorb, size, rng, "no key seen yet", m=-math.inf, seen=False)
    return "rows of 8 and of 16 lanes: first tiles and later ones, scores far from 0, rows that see nothing"


@exercise("11.4", "add_values")
def ex11_4(add_values, rng):
    for size, d in [(8, 8), (8, 3), (16, 10)]:
        for factor in (0.3, 0, 1):
            check_values(add_values, size, d, factor, rng)
    return "9 tiles of 8 × 8 and 16 × 16, with rows of 3, 8 and 10 numbers"


@exercise("11.5", "conv_kernel")
def ex11_5(conv_kernel, rng):
    for shape in SHAPES:
        check_kernel(conv_kernel, *shape, rng)
    check_kernel(conv_kernel, 9, 4, (3, 3), 8, rng, offset=LOUD)
    check_kernel(conv_kernel, 9, 4, (3, 3), 8, rng, offset=-LOUD)
    return f"{len(SHAPES)} shapes, one tile and several, taps larger than the sequence; scores far from 0; O and L; nothing for sim to find"


# 11.1 -------------------------------------------------------------------------------------------------------------

OWN_CORNER = "Equal to what comes out if the tile's first row were query i0 and its first column key j0. The halo comes first: i0 - P_q and j0 - P_k."
SIDE = "The halo to the left is P_k = (c_k - 1) // 2 columns: for an even c_k it is smaller than the one to the right."
UNMASKED = "A key after its query must give 0: its score would get into sums of others."
NOT_ZERO = "Masked with -inf? Before the convolution the mask writes 0."
NO_SCALE = "Equal to what comes out without the scale."
TRANSPOSED = "x is the column, the key; y is the row, the query."
SCORE = "Row y of q_tile times row x of k_tile; the query is i0 - P_q + y, the key is j0 - P_k + x."


def check_scores(score, size, taps, i0, j0, rng):
    """One tile of S0."""
    q, k = (normal(rng, size, size) for _ in range(2))
    w, scale = normal(rng, *taps), float32(rng.uniform(0.2, 0.8))
    call = f"score(q_tile, k_tile, w, i0={i0}, j0={j0}, scale) with tiles of {size} × {size}, w {taps}, in every thread"
    got = filled(size, size)

    def every_score(q_tile, k_tile, w, i0, j0, scale, out):
        out[cuda.threadIdx.y, cuda.threadIdx.x] = score(q_tile, k_tile, w, i0, j0, scale)

    kernels.run(every_score, (1, (size, size)), (q, k, w, i0, j0, scale), (got,), rng, call)
    s = scale * as_float64(q) @ as_float64(k).T
    wanted = masked(s, i0 - (taps[0] - 1), j0 - (taps[1] - 1) // 2, 0)
    mistakes = {
        NO_SCALE: wanted / scale,
        UNMASKED: s,
        NOT_ZERO: masked(s, i0 - (taps[0] - 1), j0 - (taps[1] - 1) // 2, -math.inf),
        OWN_CORNER: masked(s, i0, j0, 0),
        SIDE: masked(s, i0 - (taps[0] - 1), j0 - taps[1] // 2, 0),
        TRANSPOSED: masked(s.T, i0 - (taps[0] - 1), j0 - (taps[1] - 1) // 2, 0),
    }
    compare(got, wanted, what="S0 of a tile", call=call, tolerance=1e-5, hint=explained(got, mistakes, SCORE, 1e-4))


# 11.2 -------------------------------------------------------------------------------------------------------------

HALO_COUNTED = "A cell that the tile does not own has no T here: -inf, or its neighbour counts it once more."
NOT_HIDDEN = "A key after its query: -inf. Now the first row is query i0 and the first column key j0, as the halo is used up."
HALO_CORNER = "The second mask begins at query i0 and key j0: it is for T, which has no halo."
TURNED = "The taps are turned round: w[0, 0] meets s_tile[y, x], the oldest query and the leftmost key."
CONVOLUTION = "T = Σ w[a, b] · s_tile[y + a, x + b]: the halo stands above and to the left, so the sum begins at the thread's own cell."


def check_convolution(convolve, size, taps, i0, j0, rng):
    """One tile of T."""
    s, w = normal(rng, size, size), normal(rng, *taps)
    call = f"convolve(s_tile, w, i0={i0}, j0={j0}) with a tile of {size} × {size}, w {taps}, in every thread"
    got = filled(size, size)

    def every_sum(s_tile, w, i0, j0, out):
        out[cuda.threadIdx.y, cuda.threadIdx.x] = convolve(s_tile, w, i0, j0)

    kernels.run(every_sum, (1, (size, size)), (s, w, i0, j0), (got,), rng, call)
    rows, columns = size - taps[0] + 1, size - taps[1] + 1
    wanted = np.full((size, size), -math.inf)
    wanted[:rows, :columns] = masked(convolved(s, w), i0, j0, -math.inf)
    mistakes = {
        NOT_HIDDEN: in_corner(convolved(s, w), size),
        HALO_CORNER: in_corner(masked(convolved(s, w), i0 - taps[0] + 1, j0 - (taps[1] - 1) // 2, -math.inf), size),
        TURNED: in_corner(masked(convolved(s, w[::-1, ::-1]), i0, j0, -math.inf), size),
    }
    hint = HALO_COUNTED if np.isfinite(got[rows:]).any() or np.isfinite(got[:, columns:]).any() else explained(got, mistakes, CONVOLUTION, 1e-4)
    compare(got, wanted, what="T of a tile", call=call, tolerance=1e-5, hint=hint)


def convolved(s, w):
    """The sums of all places at which the taps fit into s, float64."""
    windows = np.lib.stride_tricks.sliding_window_view(as_float64(s), w.shape)
    return np.einsum("ijab,ab->ij", windows, as_float64(w))


def in_corner(t, size):
    """t in the upper left corner of a tile full of -inf."""
    tile = np.full((size, size), -math.inf)
    tile[: t.shape[0], : t.shape[1]] = t
    return tile


# 11.3 -------------------------------------------------------------------------------------------------------------

GUARD = "NaN: -inf - (-inf). weight(score, maximum) is 0 for a score of -inf, whatever the maximum."
ROW = "Each of m, l is that of the whole row: all its lanes have to end with the same number. Steps size / 2, ..., 2, 1."
SHRINK = "shrink = weight(old m, new m): by it the old l shrinks, and later the old o. Take it before m is overwritten."
STATE = "new m = the larger of m and the row's largest T; p = weight(t, new m); l = l · shrink + the sum of the row's p."


def check_rows(absorb, size, rng, what, m, offset=0, seen=True):
    """One tile of T and the state before it: (m, l, shrink, p) of every thread."""
    t = normal(rng, size, size) * float32(3) + float32(offset)
    t[rng.random((size, size)) < 0.3] = -math.inf
    t[:, 0] = offset  # so that a row sees something
    t[rng.integers(0, size) if seen else slice(None)] = -math.inf
    start = float32(0 if m == -math.inf else 1.5)
    call = f"absorb(t, m={m}, l={start:g}) in {size} × {size} threads, a row of {size} lanes each"
    got = [filled(size, size) for _ in range(4)]

    def every_row(t, m, l, new_m, new_l, shrinks, p):
        y, x = cuda.threadIdx.y, cuda.threadIdx.x
        new_m[y, x], new_l[y, x], shrinks[y, x], p[y, x] = absorb(t[y, x], m, l)

    kernels.run(every_row, (1, (size, size)), (t, float32(m), start), got, rng, call)
    for name, mine, theirs in zip(("m", "l", "shrink", "p"), got, after_tile(t, m, start), strict=True):
        compare(mine, theirs, what=f"{what}: another {name}", call=call, tolerance=2e-5, hint=row_hint(name, mine))


def row_hint(name, got):
    """What an answer with this wrong array is told."""
    if np.isnan(got).any():
        return GUARD
    if name in ("m", "l") and (got != got[:, :1]).any():
        return ROW
    return SHRINK if name == "shrink" else STATE


def after_tile(t, m, l):
    """(m, l, shrink, p), each (size, size), after the tile t, in float64."""
    t = as_float64(t)
    new_m = np.maximum(t.max(axis=1, keepdims=True), m)
    finite = np.where(np.isinf(new_m), 0, new_m)
    p = np.exp(t - finite)
    shrink = np.exp(m - finite)
    return tuple(np.broadcast_to(x, t.shape) for x in (new_m, l * shrink + p.sum(axis=1, keepdims=True), shrink, p))


# 11.4 -------------------------------------------------------------------------------------------------------------

FORGOTTEN = "The old o counts too: it shrinks, and is not thrown away."
NOT_SHRUNK = "Equal to what comes out if the old o does not shrink."
VALUES = "o · shrink + Σ_j p_tile[y, j] · v_tile[j, x]: row y of P times column x of V."


def check_values(add_values, size, d, factor, rng):
    """One tile of P times V, added."""
    p, v, o = np.abs(normal(rng, size, size)), normal(rng, size, size), normal(rng, size, size)
    v[:, d:] = 0
    call = f"add_values(o, shrink={factor:g}, p_tile, v_tile) with tiles of {size} × {size}, in every thread"
    got = filled(size, size)

    def every_number(o, shrink, p_tile, v_tile, out):
        y, x = cuda.threadIdx.y, cuda.threadIdx.x
        out[y, x] = add_values(o[y, x], shrink, p_tile, v_tile)

    kernels.run(every_number, (1, (size, size)), (o, float32(factor), p, v), (got,), rng, call)
    product = as_float64(p) @ as_float64(v)
    mistakes = {FORGOTTEN: product, NOT_SHRUNK: as_float64(o) + product}
    compare(got, factor * as_float64(o) + product, what="o after a tile", call=call, tolerance=2e-5, hint=explained(got, mistakes, VALUES, 1e-4))


# 11.5 -------------------------------------------------------------------------------------------------------------

FIRST_TILE = "The rows of the first tile are right, so are the parts. What is different in later ones: where K and V begin, which keys are still to come?"
LOOP = "In this order: K and V, score, convolve, absorb, P in place of S0, add_values. K begins at key j0 - P_k, V at key j0. Does every thread store its p, 0 or not?"
POISON = "NaN: a number of o that no thread has written, a tile that nobody has loaded, or -inf - (-inf)."
LOG_SUM = "O is right. L is m + log(l) at the end: is the last m the one that belongs to the last l?"


def check_kernel(conv_kernel, n, d, taps, size, rng, offset=0):
    """One launch: O and L of n queries. offset: about which number the scores lie."""
    q, k, v = (normal(rng, n, d) for _ in range(3))
    w = normal(rng, *taps) / float32(math.sqrt(math.prod(taps)))
    if offset:
        q[:, 0], k[:, 0], w = 10 * d**0.5, offset / 10, identity(taps)
    rows = size - taps[0] + 1
    grid = -(-n // rows)
    call = f"conv_kernel({size})[{grid}, ({size}, {size})] with q {q.shape}, w {taps}"
    o, log_sum = filled(n, d), filled(n)
    kernels.run(conv_kernel(size), (grid, (size, size)), (q, k, v, w, float32(d**-0.5)), (o, log_sum), rng, call)
    wanted, wanted_sum = attention(q, k, v, w)
    what = f"scores about {offset}: a wrong" if offset else "a wrong"
    right = n > rows and agree(o[:rows], wanted[:rows], 1e-4).all()
    hint = POISON if np.isnan(o).any() else FIRST_TILE if right else LOOP
    compare(o, wanted, what=f"{what} O", call=call, tolerance=2e-4 if offset else 1e-5, hint=hint)
    compare(log_sum, wanted_sum, what=f"{what} L", call=call, tolerance=1e-5, hint=LOG_SUM)


def attention(q, k, v, w):
    """(O, L) of one head, causal, in float64, from the definition: the oracle."""
    q, k, v = map(as_float64, (q, k, v))
    n, (c_q, c_k), left = len(q), w.shape, (w.shape[1] - 1) // 2
    s = masked(q @ k.T * q.shape[1] ** -0.5, 0, 0, 0)
    s = np.pad(s, ((c_q - 1, 0), (left, c_k - 1 - left)))
    t = masked(convolved(s, w), 0, 0, -math.inf)
    m = t.max(axis=1, keepdims=True)
    p = np.exp(t - m)
    return p @ v / p.sum(axis=1, keepdims=True), (m + np.log(p.sum(axis=1, keepdims=True)))[:, 0].reshape(n)


def identity(taps):
    """Taps that change nothing."""
    w = np.zeros(taps, float32)
    w[-1, (taps[1] - 1) // 2] = 1
    return w


# What the checks share --------------------------------------------------------------------------------------------


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(float32)


def filled(*shape):
    """An output that shows where nobody has written."""
    return np.full(shape, np.nan, float32)


def as_float64(x):
    return np.asarray(x, np.float64)


def masked(scores, i0, j0, fill):
    """scores, with `fill` where the key comes after its query; the first row is query i0, the first column key j0."""
    i, j = np.ogrid[: scores.shape[0], : scores.shape[1]]
    return np.where(j + j0 > i + i0, fill, scores)
