"""Checks of lesson 10: the range that a tile must load, its convolved scores, and the loop over tiles."""

import math

import numpy as np
import torch
from torch.nn.functional import conv2d, pad

from course.check import inputs
from course.check.harness import compare, exercise, fail, instance
from course.check.tensors import Counted, OffChip, within
from kernels.reference import conv_attention, conv_scores
from kernels.reference.conv_tiled import Halo, halo_of, load_rows, owned
from kernels.reference.tiled import Traffic, initial_state, update

TAPS = [(1, 1), (2, 2), (3, 5), (1, 4), (4, 1), (6, 11), (3, 3), (5, 2)]

# (tokens, c_q, c_k, rows and columns loaded): one token, one tile, ragged tiles, more taps than tokens, odd
# and even tiles that are not square and own few elements.
SHAPES = [
    *[(1, 1, 1, 1, 1), (1, 3, 3, 4, 4), (2, 5, 7, 6, 8), (5, 1, 1, 2, 3), (7, 3, 5, 16, 16), (8, 2, 4, 5, 7)],
    *[
        (13, 3, 4, 6, 7),
        (13, 4, 3, 5, 9),
        (17, 6, 11, 11, 14),
        (12, 1, 6, 4, 6),
        (12, 6, 1, 9, 5),
        (10, 3, 3, 3, 3),
    ],
]


@exercise("10.1", "to_load")
def ex10_1(to_load, rng):
    cases = [
        (4, 3, 6, 3, 3, 4),
        (0, 1, 0, 1, 1, 1),
        (0, 3, 0, 4, 3, 5),
        (9, 2, 5, 3, 40, 51),
        *random_tiles(rng),
    ]
    for i0, rows, j0, columns, c_q, c_k in cases:
        call = f"to_load(i0={i0}, j0={j0}, rows={rows}, columns={columns}, c_q={c_q}, c_k={c_k})"
        wanted = reach(i0, j0, rows, columns, c_q, c_k)
        got = to_load(i0, j0, rows, columns, c_q, c_k)
        compare(
            got,
            wanted,
            what="(top, bottom, left, right)",
            call=call,
            tolerance=0,
            hint=reach_hint(got, wanted, c_k),
        )
        for number in got:
            instance(
                number,
                (int, np.integer),
                what="whole numbers, to count with",
                call=call,
                hint="// divides whole numbers, / makes a float.",
            )
    return f"{len(cases)} tiles, at the borders and inside, taps odd and even, square and oblong"


@exercise("10.2", "convolved_tile")
def ex10_2(convolved_tile, rng):
    tiles = 8
    # across the diagonal, where mistakes can be told apart
    check_tile(convolved_tile, 9, (3, 4), (4, 2, 3, 4), rng)
    check_tile(convolved_tile, 9, (3, 3), (0, 6, 3, 3), rng)  # wholly masked
    check_tile(convolved_tile, 9, (6, 2), (6, 2, 3, 3), rng)  # seen, but for rows of its halo
    check_tile(convolved_tile, 47, (6, 11), (3, 2, 42, 44), rng)
    check_tile(convolved_tile, 330, (3, 4), (320, 318, 3, 4), rng)  # small, and far from row 0
    for loud in (-inputs.FAR, inputs.FAR, 20 * inputs.FAR):
        check_tile(convolved_tile, 9, (3, 4), (4, 2, 3, 4), rng, loud)
    for n, c_q, c_k, *_ in SHAPES:
        for _ in range(4):
            i0, j0 = rng.integers(n, size=2).tolist()
            rows, columns = int(rng.integers(1, n - i0 + 1)), int(rng.integers(1, n - j0 + 1))
            check_tile(convolved_tile, n, (c_q, c_k), (i0, j0, rows, columns), rng)
            tiles += 1
    return (
        f"{tiles} tiles, at the borders, across the diagonal, ragged and wholly masked, 1 × 1 to 6 × 11 taps,"
        f" scores to ±{20 * inputs.FAR}"
    )


@exercise("10.3", "forward")
def ex10_3(forward, rng):
    for shape in SHAPES:
        for size in (1, 30):
            check_forward(forward, shape, size, rng)
    check_forward(forward, (9, 3, 4, 5, 6), 1, rng, no_taps=True)
    for scores in inputs.TO_1000:
        check_forward(forward, (9, 3, 3, 4, 5), scores, rng)
    check_forward(forward, (109, 2, 3, 7, 8), 1, rng)
    return (
        f"O and L in {len(SHAPES) + 1} shapes of 1 to 109 tokens and 1 × 1 to 6 × 11 taps, scores to"
        f" ±{inputs.FAR}, all taps 0; no number moved too often, no row of scores kept"
    )


# 10.1 -------------------------------------------------------------------------------------------------------

SIDES = (
    "For even c_k the two sides differ: P_k = (c_k - 1) // 2 columns to the left, P_r = c_k - 1 - P_k to the"
    " right."
)
CLIPPED = "Do not clip: rows before 0 and columns outside stay in, and load_rows fills in zeros there."
ABOVE_ONLY = (
    "Only rows above are needed: i - P_q to i, P_q = c_q - 1, for the first owned row and for the last."
)
ENDS = "bottom and right are one past the last row and the last column, as in range(top, bottom)."
CORNERS = (
    "Which rows and columns does the first owned score depend on, and which does the last one depend on?"
)


def random_tiles(rng):
    """Return random (i0, rows, j0, columns, c_q, c_k), for all kernel sizes."""
    sizes = [rng.integers((0, 1, 0, 1), (20, 9, 20, 9)).tolist() for _ in TAPS]
    return [(*size, *taps) for size, taps in zip(sizes, TAPS, strict=True)]


def reach(i0, j0, rows, columns, c_q, c_k):
    """Return (top, bottom, left, right) of the scores that the owned ones depend on, score by score."""
    reached = [
        (i - (c_q - 1) + a, j - (c_k - 1) // 2 + b)
        for i in range(i0, i0 + rows)
        for j in range(j0, j0 + columns)
        for a in range(c_q)
        for b in range(c_k)
    ]
    of_rows, of_columns = zip(*reached, strict=True)
    return min(of_rows), max(of_rows) + 1, min(of_columns), max(of_columns) + 1


def reach_hint(got, wanted, c_k):
    """Return the hint for the first recognisable mistake in four numbers."""
    try:
        top, bottom, left, right = map(float, got)
    except (TypeError, ValueError):
        return "Four whole numbers: top, bottom, left, right."
    if (top, left) == (max(wanted[0], 0), max(wanted[2], 0)) != (wanted[0], wanted[2]):
        return CLIPPED
    if (top, bottom) != wanted[:2]:
        return ENDS if (top, bottom) == (wanted[0], wanted[1] - 1) else ABOVE_ONLY
    return SIDES if c_k % 2 == 0 else CORNERS


# 10.2 -------------------------------------------------------------------------------------------------------

NO_ZERO = (
    "Equal to the result without the first mask: before the convolution, the score of a future key must be 0."
)
SHIFTED_MASK = (
    "The first mask is off: row 0 of the loaded scores is query i0 - P_q, column 0 is key j0 - P_k. Which"
    " keys come after it?"
)
PADDED = (
    "Some sums lack terms. The halo is already loaded, so convolve only where the taps fit entirely inside,"
    " without padding."
)
TURNED = "The taps are flipped: w[0, 0] belongs to the oldest query and the leftmost key."
NO_SCALE = "Equal to the result when q kᵀ is not divided by √d."
NOT_A_NUMBER = "NaN: has -inf been multiplied by a tap? The mask before the convolution writes 0."
HALO = halo_of, Halo.across.fget
TILE_ONLY = (
    "Only the tile's own scores are needed: q_tile @ k_tile.T, len(q_tile) × len(k_tile). The masks need i0"
    " and j0, the position of the tile."
)
SINGLE = "Correct to about seven digits only: is a tensor float32? new_zeros keeps the type of its tensor."
OVERFLOWN = (
    "Not finite: exp of a large score overflows, and exp(-inf - (-inf)) is NaN for a row that sees no key of"
    " a tile. update(state, t, v_tile) avoids both: it subtracts the running maximum."
)
IN_ORDER = (
    "The order is: the scores; 0 where the key is later than the query; the convolution; -inf where the key"
    " is later. Before the convolution, the first row is query i0 - P_q and the first column is key j0 - P_k."
    " After it, they are i0 and j0."
)
MASKED = (
    "Above the diagonal T is -inf, on and below it is finite: column 0 of T is key j0, row 0 is query i0."
)
SMALLER = (
    "T has a row for each owned query and a column for each owned key: the halo is gone after the"
    " convolution."
)


def check_tile(convolved_tile, n, taps, tile, rng, loud=1):
    """Check one tile (i0, j0, rows, columns) of n tokens, with scores of roughly the given size."""
    i0, j0, rows, columns = tile
    d = int(rng.integers(1, 6))
    q, k, w = loud * normal(rng, n, d), normal(rng, n, d), normal(rng, *taps)
    top, bottom, left, right = reach(i0, j0, rows, columns, *taps)
    q_tile, k_tile = (
        load_rows(array, first, end - first, Traffic())
        for array, first, end in ((q, top, bottom), (k, left, right))
    )
    place = slice(i0, i0 + rows), slice(j0, j0 + columns)
    wanted = conv_scores(q[None, None], k[None, None], w[None])[0, 0][place]
    call = (
        f"convolved_tile(q_tile {tuple(q_tile.shape)}, k_tile {tuple(k_tile.shape)}, w {taps}, i0={i0},"
        f" j0={j0})"
    )
    before = q_tile.clone(), k_tile.clone()
    # room for the loaded scores with padding, and for a copy of the owned ones per tap
    room = 4 * (bottom - top + 1) * (right - left + 1) + (rows * columns + d) * taps[0] * taps[1] + 64
    got = within(
        convolved_tile, (q_tile, k_tile, w, i0, j0), call=call, largest=room, allowed=HALO, hint=TILE_ONLY
    )
    q_tile, k_tile = before
    if got is not None and tuple(getattr(got, "shape", ())) != (rows, columns):
        compare(got, wanted, what="T of a tile", call=call, tolerance=1e-9, hint=SMALLER)
    compare(
        got,
        wanted,
        what="T of a tile",
        call=call,
        tolerance=1e-9,
        hint=tile_hint(got, wanted, q_tile, k_tile, w, i0, j0),
    )


def tile_hint(got, wanted, q_tile, k_tile, w, i0, j0):
    """Return the hint whose mistake reproduces the values below the diagonal."""
    finite = torch.isfinite(wanted)
    if got is not None and torch.allclose(got.to(wanted), wanted, rtol=1e-5, atol=1e-5):
        return SINGLE
    if got is None or not torch.equal(torch.isfinite(got), finite):
        return NOT_A_NUMBER if got is not None and got.isnan().any() else MASKED
    halo, s = halo_of(w), q_tile @ k_tile.T / math.sqrt(q_tile.shape[1])
    masked = hide(s, i0 - halo.above, j0 - halo.left, 0.0)
    inner = masked[halo.above :, halo.left : masked.shape[1] - halo.right]
    mistakes = {
        NO_ZERO: inside(s, w),
        SHIFTED_MASK: inside(hide(s, i0, j0, 0.0), w),
        TURNED: inside(masked, w.flip(0, 1)),
        NO_SCALE: inside(masked, w) * math.sqrt(q_tile.shape[1]),
        PADDED: inside(pad(inner, (halo.left, halo.right, halo.above, 0)), w),
    }
    return next((hint for hint, t in mistakes.items() if torch.allclose(t[finite], got[finite])), IN_ORDER)


def hide(scores, i0, j0, fill):
    """Replace the scores of keys after their query with `fill`. The first row is query i0, the first column
    key j0."""
    i, j = torch.arange(len(scores))[:, None] + i0, torch.arange(scores.shape[1]) + j0
    return scores.masked_fill(j > i, fill)


def inside(scores, w):
    """Convolve only where the taps fit entirely inside the scores."""
    return conv2d(scores[None, None], w[None, None])[0, 0]


# 10.3 -------------------------------------------------------------------------------------------------------

PROVIDED = *HALO, load_rows, initial_state, update, owned
TILES_ONLY = (
    "From one tile of keys to the next, a tile of rows keeps m, l and o: no scores, and no row of them."
)
RAGGED = "The last tile of rows is short: it owns min(rows, n - i0) queries, and it loads no later rows of Q."
FORWARD = (
    "Is the state fresh for each tile of rows, V of the owned columns only, o divided by l once, at the end?"
)
LOG_SUM = "O is correct. L is one number per row, m + log(l): the log of the sum of exp(T), of shape (N,)."
READ = (
    "For each tile of rows load Q once, halo included; K with its halo and V without for each tile of keys;"
    " none that no row sees."
)
WRITTEN = "Each owned row of O and of L is stored once, after the last tile of keys, through traffic.store."


def check_forward(forward, shape, size, rng, no_taps=False):
    """Check one shape (n, c_q, c_k, rows loaded, columns loaded), with scores of roughly `size` or drawn as
    in inputs.TO_1000."""
    n, *taps, height, width = shape
    d = int(rng.integers(1, 6))
    q, k, v, w = normal(rng, n, d), normal(rng, n, d), normal(rng, n, d), normal(rng, *taps) * (not no_taps)
    call = f"forward(q {(n, d)}, k, v, w {tuple(taps)}, loaded={(height, width)}, traffic)"
    if isinstance(size, str):
        call = f"{size}: {call}"
        q[:, 0], k[:, 0] = math.sqrt(d), torch.tensor(inputs.TO_1000[size](rng, n))
        w = w / 10
        w[-1, (taps[1] - 1) // 2] = 1
    else:
        q *= size
    traffic = Counted()

    def room(got):
        """Return the limits for tensors: generously, the size of tiles, and of those results that are plain
        tensors: L, and perhaps O."""
        plain = isinstance(got, tuple | list) and any(torch.is_tensor(x) and x.ndim == 2 for x in got)
        return 4 * (height * width + (height + width) * (d + 2)) + n + n * d * plain

    off_chip = [OffChip(x.clone()) for x in (q, k, v)]
    got = within(
        forward,
        (*off_chip, w, (height, width), traffic),
        call=call,
        kept=room,
        allowed=PROVIDED,
        hint=TILES_ONLY,
    )
    if not (isinstance(got, tuple | list) and len(got) == 2):
        fail("forward must return two tensors, (O, L)", call=call, wanted="(O, L)", got=type(got).__name__)
    got = [getattr(part, "hidden", part) for part in got]
    t = conv_scores(q[None, None], k[None, None], w[None])[0, 0]
    wanted = conv_attention(q[None, None], k[None, None], v[None, None], w[None])[0, 0]
    compare(
        got[0],
        wanted,
        what="O",
        call=call,
        tolerance=1e-10,
        hint=output_hint(got[0], wanted, whole=n - n % (height - taps[0] + 1)),
    )
    compare(got[1], torch.logsumexp(t, dim=1), what="L", call=call, tolerance=1e-10, hint=LOG_SUM)
    read = numbers_read(n, d, halo_of(w), owned((height, width), halo_of(w)))
    if traffic.read > read:  # fewer: of the last tile only the keys that its rows see
        fail(
            "the output is correct, but more numbers are read than necessary",
            call=call,
            wanted=read,
            got=traffic.read,
            hint=READ,
        )
    if traffic.written != n * (d + 1):
        fail(
            "the output is correct, but the wrong number of elements is written",
            call=call,
            wanted=n * (d + 1),
            got=traffic.written,
            hint=WRITTEN,
        )


def output_hint(got, wanted, whole):
    """Return the hint for a wrong output, depending on whether only the rows after the `whole` tiles are
    wrong."""
    if torch.is_tensor(got) and not got.isfinite().all():
        return OVERFLOWN
    fine = (
        0 < whole < len(wanted)
        and getattr(got, "shape", None) == wanted.shape
        and torch.allclose(got[:whole], wanted[:whole])
    )
    return RAGGED if fine else FORWARD


def numbers_read(n, d, halo, tile):
    """Return how many elements a loop over all tiles reads if it loads each tile completely."""
    (rows, columns), read = tile, 0
    for i0 in range(0, n, rows):
        last = min(i0 + rows, n)
        read += d * len(range(max(i0 - halo.above, 0), last))
        for j0 in range(0, last, columns):
            end = min(j0 + columns, n)
            read += d * (len(range(max(j0 - halo.left, 0), min(end + halo.right, n))) + len(range(j0, end)))
    return read


def normal(rng, *shape):
    """Return standard normal numbers in float64."""
    return torch.from_numpy(rng.standard_normal(shape))
