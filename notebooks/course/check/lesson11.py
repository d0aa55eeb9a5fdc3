"""Checks of lesson 11, all run in `sim`: the four parts of a convolutional attention kernel, then the whole
kernel."""

import math

import numpy as np
from numba import cuda
from numpy import float32

from course.check import inputs, kernels
from course.check.contract import Contract
from course.check.harness import agree, compare, exercise, explained
from kernels.common.tiles import weight
from sim.observers import DEFAULT
from sim.observers.trace import Trace
from sim.observers.traffic import Traffic

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
LONG = [(24, 2, (1, 7), 8), (57, 2, (1, 1), 8)]  # twelve tiles of keys; eight, and as many blocks
LOUD = inputs.FAR
FAR_ALONG = 1003, 1001  # i0, j0 of a tile far into a long sequence
PROVIDED = (weight,)  # of the package, for the learner's kernels
BLOCKS = 2  # of every launch of a part, each with tiles of its own


@exercise("11.1", "score")
def ex11_1(score, rng):
    kernels.jitted(score, "score", allowed=PROVIDED)
    for taps in TAPS:
        for i0, j0 in [(0, 0), *rng.integers(0, 12, (3, 2)).tolist()]:
            check_scores(score, 8, taps, i0, j0, rng)
    for taps in ((6, 11), (12, 2)):
        check_scores(score, 16, taps, 10, 6, rng)
    check_scores(score, 8, (2, 4), *FAR_ALONG, rng)
    check_scores(score, 8, (2, 4), 9, 5, rng, about=LOUD)
    return (
        f"{4 * len(TAPS) + 4} tiles of 8 × 8 and 16 × 16, at the start of the sequence, on the diagonal and"
        " off it; taps odd, even and oblong"
    )


@exercise("11.2", "convolve")
def ex11_2(convolve, rng):
    kernels.jitted(convolve, "convolve", allowed=PROVIDED)
    for size, every in ((8, TAPS), (16, WIDE)):
        for taps in every:
            for i0, j0 in [(0, 0), (size + 9, 2), *rng.integers(0, 12, (2, 2)).tolist()]:
                check_convolution(convolve, size, taps, i0, j0, rng)
        check_convolution(convolve, size, (3, 4), *FAR_ALONG, rng)
        check_convolution(convolve, size, (3, 4), 5, 2, rng, about=LOUD)
        check_convolution(convolve, size, (3, 4), 5, 2, rng, about=0)
    return f"{4 * len(TAPS + WIDE) + 6} tiles; whatever is not owned, or comes after its query, is -inf"


@exercise("11.3", "absorb")
def ex11_3(absorb, rng):
    kernels.jitted(absorb, "absorb", allowed=PROVIDED)
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
    kernels.jitted(add_values, "add_values", allowed=PROVIDED)
    for size, d in [(8, 8), (8, 3), (16, 10)]:
        for factor in (0.3, 0, 1):
            check_values(add_values, size, d, factor, rng)
    check_values(add_values, 8, 5, 0.6, rng, weights=1e-6)
    return "10 tiles of 8 × 8 and 16 × 16, with rows of 3, 8 and 10 numbers"


@exercise("11.5", "conv_kernel")
def ex11_5(conv_kernel, rng):
    for shape in [*SHAPES, *LONG]:
        check_kernel(conv_kernel, *shape, rng)
    for scores in list(inputs.TO_1000)[1:]:
        check_kernel(conv_kernel, 14, 4, (3, 3), 8, rng, scores)
    return (
        f"{len(SHAPES + LONG)} shapes, one tile of keys to twelve, taps larger than the sequence; scores to"
        f" ±{LOUD}; O and L; nothing for sim to find"
    )


# 11.1 -------------------------------------------------------------------------------------------------------

OWN_CORNER = (
    "Equal to the result if the tile's first row were query i0 and its first column key j0. The halo"
    " comes first: i0 - P_q and j0 - P_k."
)
SIDE = (
    "The halo to the left is P_k = (c_k - 1) // 2 columns: for an even c_k it is smaller than the one to the"
    " right."
)
UNMASKED = (
    "A key after its query must give 0. Otherwise the convolution adds its score to the T of other keys."
)
NOT_ZERO = "Masked with -inf? Before the convolution the mask writes 0."
NO_SCALE = "Equal to the result without the scale."
TRANSPOSED = "x is the column, the key; y is the row, the query."
SCORE = "Row y of q_tile times row x of k_tile; the query is i0 - P_q + y, the key is j0 - P_k + x."


def check_scores(score, size, taps, i0, j0, rng, about=0):
    """Check one tile of S0 per block, with some elements of Q and K set to 0. `about` is the magnitude of
    large scores."""
    q, k = (with_zeros(rng, BLOCKS, size, size) for _ in range(2))
    w, scale = normal(rng, *taps), inputs.scale_for(rng, size)
    if about:  # the scaled products are exact in float32, in whatever order they are added
        q, k, scale = np.round(about * q), np.round(8 * k) / 8, float32(0.375)
    call = (
        f"score(q_tile, k_tile, w, i0={i0}, j0={j0}, scale) with tiles of {size} × {size}, w {taps}, in every"
        " thread"
    )
    got, used = filled(BLOCKS, size, size), filled(BLOCKS, size, size)

    def every_score(q, k, w, i0, j0, scale, out, used):
        b, y, x = cuda.blockIdx.x, cuda.threadIdx.y, cuda.threadIdx.x
        s = score(q[b], k[b], w, i0, j0, scale)
        out[b, y, x], used[b, y, x] = s, math.atan(s)  # computed in float64 if s is one

    report = watched(every_score, size, (q, k, w, i0, j0, scale), (got, used), rng, call)
    s = scale * as_float64(q) @ as_float64(k).swapaxes(1, 2)
    wanted = masked(s, i0 - (taps[0] - 1), j0 - (taps[1] - 1) // 2, 0)
    mistakes = {
        NO_SCALE: wanted / scale,
        UNMASKED: s,
        NOT_ZERO: masked(s, i0 - (taps[0] - 1), j0 - (taps[1] - 1) // 2, -math.inf),
        OWN_CORNER: masked(s, i0, j0, 0),
        SIDE: masked(s, i0 - (taps[0] - 1), j0 - taps[1] // 2, 0),
        TRANSPOSED: masked(s.swapaxes(1, 2), i0 - (taps[0] - 1), j0 - (taps[1] - 1) // 2, 0),
    }
    compare(
        got,
        wanted,
        what="S0 of a tile",
        call=call,
        tolerance=1e-5,
        hint=explained(got, mistakes, SCORE, 1e-4),
    )
    Contract(
        max_per_thread={"q": 2 * size, "k": 2 * size},
        hint="A thread multiplies one row of Q with one row of K.",
    ).enforce(every_score, report, call)


# 11.2 -------------------------------------------------------------------------------------------------------

HALO_COUNTED = "A cell that the tile does not own has no T here. Return -inf: another tile counts it."
NOT_HIDDEN = (
    "If the key comes after its query, return -inf. After the convolution, the first row is query i0 and"
    " the first column is key j0."
)
HALO_CORNER = "The second mask begins at query i0 and key j0: it is for T, which has no halo."
TURNED = "The taps are flipped: w[0, 0] belongs to s_tile[y, x], the oldest query and the leftmost key."
CONVOLUTION = (
    "T = Σ w[a, b] · s_tile[y + a, x + b]: the halo is above and to the left, so the sum begins at the"
    " thread's own cell."
)


def check_convolution(convolve, size, taps, i0, j0, rng, about=1):
    """Check one tile of T per block, with some scores set to 0 as if masked, and the others of magnitude
    `about`."""
    s, w = with_zeros(rng, BLOCKS, size, size) * float32(about), normal(rng, *taps)
    if about != 1:  # no rounding where sums are large
        s, w = np.round(s), np.round(8 * w) / 8
    call = f"convolve(s_tile, w, i0={i0}, j0={j0}) with a tile of {size} × {size}, w {taps}, in every thread"
    got, used = filled(BLOCKS, size, size), filled(BLOCKS, size, size)

    def every_sum(s, w, i0, j0, out, used):
        b, y, x = cuda.blockIdx.x, cuda.threadIdx.y, cuda.threadIdx.x
        t = convolve(s[b], w, i0, j0)
        out[b, y, x], used[b, y, x] = t, math.atan(t)  # computed in float64 if t is float64

    report = watched(every_sum, size, (s, w, i0, j0), (got, used), rng, call)
    rows, columns = size - taps[0] + 1, size - taps[1] + 1
    wanted = in_corner(masked(convolved(s, w), i0, j0, -math.inf), size)
    mistakes = {
        NOT_HIDDEN: in_corner(convolved(s, w), size),
        HALO_CORNER: in_corner(
            masked(convolved(s, w), i0 - taps[0] + 1, j0 - (taps[1] - 1) // 2, -math.inf), size
        ),
        TURNED: in_corner(masked(convolved(s, w[::-1, ::-1]), i0, j0, -math.inf), size),
    }
    hint = (
        HALO_COUNTED
        if np.isfinite(got[:, rows:]).any() or np.isfinite(got[:, :, columns:]).any()
        else explained(got, mistakes, CONVOLUTION, 1e-4)
    )
    compare(got, wanted, what="T of a tile", call=call, tolerance=1e-5, hint=hint)
    Contract(
        max_per_thread={"s": 2 * w.size, "w": 2 * w.size}, hint="A thread reads one window of S0."
    ).enforce(every_sum, report, call)


def convolved(s, w):
    """Return the convolution at all positions where the taps fit inside s, in float64."""
    windows = np.lib.stride_tricks.sliding_window_view(as_float64(s), w.shape, axis=(-2, -1))
    return np.einsum("...ab,ab->...", windows, as_float64(w))


def in_corner(t, size):
    """Place t in the upper left corner of tiles filled with -inf."""
    tile = np.full((*t.shape[:-2], size, size), -math.inf)
    tile[..., : t.shape[-2], : t.shape[-1]] = t
    return tile


# 11.3 -------------------------------------------------------------------------------------------------------

GUARD = "NaN: -inf - (-inf). weight(score, maximum) is 0 for a score of -inf, whatever the maximum."
ROW = (
    "m and l belong to the whole row, so all lanes of a row must end with the same numbers. The shuffles"
    " take the steps size / 2, ..., 2, 1."
)
SHRINK = (
    "shrink = weight(old m, new m). The old l is multiplied by it, and later the old o. Compute it before"
    " you overwrite m."
)
STATE = (
    "new m = the larger of m and the row's largest T; p = weight(t, new m); l = l · shrink + the sum of the"
    " row's p."
)


def check_rows(absorb, size, rng, what, m, offset=0, seen=True):
    """One tile of T in each block, and the state of each row before it: (m, l, shrink, p) of every thread. m:
    about the maximum of a row; its l is drawn by itself."""
    shape = BLOCKS, size, size
    # large scores are exactly representable
    t = np.round(8 * (normal(rng, *shape) * float32(3) + float32(offset))) / 8
    t[rng.random(shape) < 0.3] = -math.inf
    t[:, :, 0] = offset  # so that a row sees something
    t[:, rng.integers(0, size) if seen else slice(None)] = -math.inf
    m, l = (
        np.round(8 * (m + normal(rng, BLOCKS, size, 1))) / 8,
        rng.uniform(0.5, 4, (BLOCKS, size, 1)) * (m > -math.inf),
    )
    t, m, l = (x.astype(float32) for x in (t, m, l))
    call = (
        f"absorb(t, m, l) in {size} × {size} threads, one row of {size} lanes each; the first row had m ="
        f" {m[0, 0, 0]:g}, l = {l[0, 0, 0]:.3g}"
    )
    got = [filled(*shape) for _ in range(4)]

    def every_row(t, m, l, new_m, new_l, shrinks, p):
        b, y, x = cuda.blockIdx.x, cuda.threadIdx.y, cuda.threadIdx.x
        new_m[b, y, x], new_l[b, y, x], shrinks[b, y, x], p[b, y, x] = absorb(
            t[b, y, x], m[b, y, 0], l[b, y, 0]
        )
        cuda.syncthreads()  # a thread that has left before a shuffle waits here, and the others there

    kernels.run(every_row, (BLOCKS, (size, size)), (t, m, l), got, rng, call, float64=0)
    wanted = after_tile(t, as_float64(m), as_float64(l))
    # where nothing was read before, any number will do: it meets l = 0 and o = 0
    got[2] = np.where(np.isinf(m) & np.isfinite(got[2]), wanted[2], got[2])
    for name, mine, theirs in zip(("m", "l", "shrink", "p"), got, wanted, strict=True):
        # small weights count too
        unit = np.maximum(theirs, 1e-30).ravel() if name in ("shrink", "p") else 1
        compare(
            mine,
            theirs,
            what=f"{what}: another {name}",
            call=call,
            tolerance=2e-5 * unit,
            hint=row_hint(name, mine),
        )


def row_hint(name, got):
    """Return the hint for an answer in which the named array is wrong."""
    if np.isnan(got).any():
        return GUARD
    if name in ("m", "l") and (got != got[:, :, :1]).any():
        return ROW
    return SHRINK if name == "shrink" else STATE


def after_tile(t, m, l):
    """Return (m, l, shrink, p), each with the shape of t, after the tiles t, in float64."""
    t = as_float64(t)
    new_m = np.maximum(t.max(axis=2, keepdims=True), m)
    finite = np.where(np.isinf(new_m), 0, new_m)
    p = np.exp(t - finite)
    shrink = np.exp(m - finite)
    return tuple(
        np.broadcast_to(x, t.shape) for x in (new_m, l * shrink + p.sum(axis=2, keepdims=True), shrink, p)
    )


# 11.4 -------------------------------------------------------------------------------------------------------

FORGOTTEN = "Keep the old o: multiply it by shrink, and add the new products."
NOT_SHRUNK = "Equal to the result if the old o does not shrink."
VALUES = "o · shrink + Σ_j p_tile[y, j] · v_tile[j, x]: row y of P times column x of V."


def check_values(add_values, size, d, factor, rng, weights=1):
    """Check the accumulation of P times V for one tile per block, with some elements of P and V set to 0.
    `weights` is the magnitude of P and of 1/V."""
    p, v = np.abs(with_zeros(rng, BLOCKS, size, size)) * float32(weights), with_zeros(rng, BLOCKS, size, size)
    v, o = v / float32(weights), normal(rng, BLOCKS, size, size) / float32(math.sqrt(weights))
    v[:, :, d:] = 0
    call = f"add_values(o, shrink={factor:g}, p_tile, v_tile) with tiles of {size} × {size}, in every thread"
    got = filled(BLOCKS, size, size)

    def every_number(o, shrink, p, v, out):
        b, y, x = cuda.blockIdx.x, cuda.threadIdx.y, cuda.threadIdx.x
        out[b, y, x] = add_values(o[b, y, x], shrink, p[b], v[b])

    report = watched(every_number, size, (o, float32(factor), p, v), (got,), rng, call)
    product = as_float64(p) @ as_float64(v)
    mistakes = {FORGOTTEN: product, NOT_SHRUNK: as_float64(o) + product}
    compare(
        got,
        factor * as_float64(o) + product,
        what="o after a tile",
        call=call,
        tolerance=2e-5,
        hint=explained(got, mistakes, VALUES, 1e-4),
    )
    Contract(
        max_per_thread={"p": 2 * size, "v": 2 * size},
        hint="A thread multiplies one row of P with one column of V.",
    ).enforce(every_number, report, call)


# 11.5 -------------------------------------------------------------------------------------------------------

FIRST_TILE = (
    "The rows of the first tile are correct, and so are the parts. What is different in later tiles: where do"
    " K and V begin, and which keys come after the query?"
)
LOOP = (
    "In this order: K and V, score, convolve, absorb, P in place of S0, add_values. K begins at key j0 - P_k,"
    " V at key j0. Does every thread store its p, 0 or not?"
)
POISON = (
    "NaN: an element of o that no thread has written, a tile that no thread has loaded, or -inf - (-inf)."
)
LOG_SUM = "O is correct. L is m + log(l) at the end: is the last m the one that belongs to the last l?"


def check_kernel(conv_kernel, n, d, taps, size, rng, scores="scores about 0"):
    """Check O and L of one launch with n queries. `scores` selects a pattern of inputs.TO_1000."""
    q, k, v, scale = *(normal(rng, n, d) for _ in range(3)), inputs.scale_for(rng, d)
    w = normal(rng, *taps) / float32(math.sqrt(math.prod(taps)))
    loud = scores != "scores about 0"
    if loud:
        q[:], k[:], scale, w = 0, 0, float32(0.375), identity(taps)
        # scores are multiples of 3, exact in float32
        q[:, 0], k[:, 0] = 8, np.round(inputs.TO_1000[scores](rng, n) / 3)
    rows, columns = size - taps[0] + 1, size - taps[1] + 1
    grid, kernel = -(-n // rows), conv_kernel(size)
    kernels.own(kernel, "conv_kernel", PROVIDED)
    call = (
        f"{scores}: conv_kernel({size})[{grid}, ({size}, {size})] with q {q.shape}, w {taps}, scale ="
        f" {scale:.3g}"
    )
    o, log_sum = filled(n, d), filled(n)
    wanted, wanted_sum = attention(q, k, v, w, scale)
    report = watched(kernel, size, (q, k, v, w, scale), (o, log_sum), rng, call, grid)
    right = n > rows and agree(o[:rows], wanted[:rows], 1e-4).all()
    hint = POISON if np.isnan(o).any() else FIRST_TILE if right else LOOP
    compare(o, wanted, what="a wrong O", call=call, tolerance=1e-4 if loud else 1e-5, hint=hint)
    compare(log_sum, wanted_sum, what="a wrong L", call=call, tolerance=1e-5, hint=LOG_SUM)
    visits = [-(-min(n, (block + 1) * rows) // columns) for block in range(grid)]
    tiles, warps, steps = visits[-1], size * size // 32, size.bit_length() - 1
    parts = {
        "q": 1,
        "k": tiles,
        "v": tiles,
        "w": 2 * tiles * w.size,
        "shared": tiles * (4 * size + 2 * w.size + 12),
    }
    Contract(max_per_thread=parts, hint=SHARES).enforce(kernel, report, call)
    Contract(shared_bytes=4 * 4 * size * size, hint=FOUR_TILES).enforce(kernel, report, call)
    Contract(max_per_thread={"out": 1, "log_sum": 1}, hint=STORED_ONCE).enforce(kernel, report, call)
    Contract(shuffles=(0, 3 * sum(visits) * warps * steps), hint=ONCE).enforce(kernel, report, call)
    Contract(barriers=(0, 5 * sum(visits) / grid), hint=FIVE).enforce(kernel, report, call)


SHARES = (
    "Each thread loads one number of K and one of V from each tile, by load_rows, and from then on the block"
    " works in shared memory."
)
STORED_ONCE = "The loop keeps m, l and o in the thread; out and log_sum are stored after it, once."
ONCE = "Each part is called once per tile of keys: absorb takes one maximum and one sum of each row."
FIVE = (
    "Five barriers per tile are enough. Does the loop visit only tiles that some query of the block sees? If"
    " it does, which of your barriers protects nothing?"
)
FOUR_TILES = "Q, K, V and the scores have a tile each; P replaces S0 in the tile of the scores."


def attention(q, k, v, w, scale):
    """Return the reference (O, L) of one head by definition: causal, in float64."""
    q, k, v = map(as_float64, (q, k, v))
    n, (c_q, c_k), left = len(q), w.shape, (w.shape[1] - 1) // 2
    s = masked(q @ k.T * float(scale), 0, 0, 0)
    s = np.pad(s, ((c_q - 1, 0), (left, c_k - 1 - left)))
    t = masked(convolved(s, w), 0, 0, -math.inf)
    m = t.max(axis=1, keepdims=True)
    p = np.exp(t - m)
    return p @ v / p.sum(axis=1, keepdims=True), (m + np.log(p.sum(axis=1, keepdims=True)))[:, 0].reshape(n)


def identity(taps):
    """Return taps that leave the scores unchanged."""
    w = np.zeros(taps, float32)
    w[-1, (taps[1] - 1) // 2] = 1
    return w


# What the checks share --------------------------------------------------------------------------------------


def normal(rng, *shape):
    return rng.standard_normal(shape).astype(float32)


def watched(kernel, size, given, outputs, rng, call, grid=BLOCKS):
    """Launch blocks of size × size threads with the observers of a contract, and return sim's report."""
    observers = *DEFAULT, Trace(limit=kernels.EVENTS), Traffic
    return kernels.run(
        kernel, (grid, (size, size)), given, outputs, rng, call, observers=observers, float64=0
    )


def with_zeros(rng, *shape):
    """Return standard normal numbers, with one in six replaced by 0."""
    return np.where(rng.random(shape) < 1 / 6, float32(0), normal(rng, *shape))


def filled(*shape):
    """Return an output array whose initial values reveal unwritten elements."""
    return np.full(shape, np.nan, float32)


def as_float64(x):
    return np.asarray(x, np.float64)


def masked(scores, i0, j0, fill):
    """Replace the scores of keys after their query with `fill`. The first row is query i0, the first column
    key j0."""
    i, j = np.ogrid[: scores.shape[-2], : scores.shape[-1]]
    return np.where(j + j0 > i + i0, fill, scores)
