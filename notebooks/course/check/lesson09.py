"""Checks of lesson 09: one convolved score, and all scores."""

import math

import numpy as np
import torch

from course.check.harness import array, compare, exercise, instance
from course.check.tensors import within

# (tokens, c_q, c_k): even and odd, one tap, more taps than tokens, oblong, one token. The shape that tells
# most mistakes apart comes first.
WINDOWS = [
    (6, 3, 4),
    (4, 2, 3),
    (5, 1, 1),
    (7, 4, 2),
    (5, 7, 11),
    (9, 6, 11),
    (8, 1, 5),
    (8, 5, 1),
    (1, 1, 1),
    (1, 3, 3),
]


MOST = 80  # tokens, about
CONVOLUTIONS = {
    *"conv1d conv2d conv3d conv_transpose1d conv_transpose2d convolution fft_fft2".split(),
    *"fft_rfft2 fft_fftn fft_rfftn".split(),
}


def windows(rng):
    """Return WINDOWS, a case with more taps than any of them, one with more tokens, and the first again with
    new numbers."""
    return [*WINDOWS, (24, 13, 21), (int(rng.integers(MOST - 14, MOST + 1)), 3, 4), WINDOWS[0]]


def some_places(n, rng):
    """Return positions on and below the diagonal of an (n, n) matrix: all for a small matrix, a dozen
    including the corners for a large one."""
    if n < 10:
        return [(i, j) for i in range(n) for j in range(i + 1)]
    rows = rng.integers(0, n, 9).tolist()
    return [(0, 0), (n - 1, 0), (n - 1, n - 1), *((i, int(rng.integers(i + 1))) for i in rows)]


@exercise("9.1", "convolved_score")
def ex09_1(convolved_score, rng):
    for number, (n, c_q, c_k) in enumerate(windows(rng)):
        loud = 1000 if number == 1 else 1
        s0, w = loud * np.tril(rng.standard_normal((n, n))), rng.standard_normal((c_q, c_k))
        wanted, places = correlate(s0, w), some_places(n, rng)

        def scores(s0, w, places=places):
            return {place: convolved_score(s0, w, *place) for place in places}

        call = f"convolved_score(s0 {(n, n)}, w {(c_q, c_k)}, i, j)"
        got = within(
            scores,
            (torch.tensor(s0), torch.tensor(w)),
            call=call,
            refused=CONVOLUTIONS,
            allowed=(),
            hint=LOOPS,
        )
        hint = diagnose(got, wanted, window_mistakes(s0, w), places) or OTHER
        for i, j in places:
            call = f"convolved_score(s0 {(n, n)}, w {(c_q, c_k)}, i={i}, j={j})"
            compare(got[i, j], wanted[i, j], what="a convolved score", call=call, tolerance=1e-10, hint=hint)
    return (
        f"scores on and below the diagonal, {len(WINDOWS) + 3} shapes of 1 to about {MOST} tokens and"
        " 1 × 1 to 13 × 21 taps, without PyTorch's convolution"
    )


@exercise("9.2", "conv_scores")
def ex09_2(conv_scores, rng):
    for n, c_q, c_k in windows(rng):
        d = int(rng.integers(1, 6))
        q, k, w = rng.standard_normal((n, d)), rng.standard_normal((n, d)), rng.standard_normal((c_q, c_k))
        check_scores(conv_scores, q, k, w)
    large = 100 * rng.standard_normal((2, 6, 3))
    for w in (np.zeros((3, 3)), rng.standard_normal((3, 4)), 1e-4 * rng.standard_normal((3, 4))):
        check_scores(conv_scores, *large, w)
    return (
        f"{len(WINDOWS) + 6} shapes of 1 to about {MOST} tokens and 1 × 1 to 13 × 21 taps, scores in the"
        " thousands, all taps 0"
    )


# 9.1 and 9.2 ------------------------------------------------------------------------------------------------

LOOPS = "Write two loops over the taps, because the next exercise compares conv2d with them."
OTHER = (
    "None of the usual mistakes explains this value. Compute it by hand: the last row of taps belongs to row"
    " i, and column (c_k - 1) // 2 of the taps belongs to column j."
)
TURNED = (
    "The taps are rotated by 180°: w[0, 0] belongs to the oldest query and the leftmost key, not to the"
    " newest and rightmost."
)
CENTRED = (
    "Some rows come from queries after i. All rows of taps look back: the last one belongs to query i itself."
)
SHIFTED = "Off by a column where c_k is even: (c_k - 1) // 2 columns to the left of j, the rest to the right."
WRAPPED = (
    "A row or column before the first was read at the end of the matrix: s0[-1] is the last row in Python."
    " Outside, the score is 0."
)
NO_MASK = "Equal to the result without the first mask: a future key's score must be 0 before the convolution."
NO_SCALE = "Equal to the result without the division of q kᵀ by √d."
SCALED = "Equal to the result with scores q kᵀ / {}. Divide by √d, where d is the number of columns of q."
SWAPPED = "Equal to the result with k qᵀ. Rows of T are queries and columns are keys: q @ k.T."
SINGLE = (
    "Correct to about seven digits only: is a tensor float32? torch.zeros(n) has PyTorch's default type;"
    " s.new_zeros(n) has the type of s."
)
OWN_KEY = "The diagonal is masked, but a query sees its own key: mask where j > i, triu(1)."
NOT_FINITE = (
    "Not finite on or below the diagonal: has -inf been multiplied by a tap? The mask before the convolution"
    " writes 0."
)
ABOVE = "Above the diagonal, T must be -inf. This is the second mask, after the convolution."


def check_scores(conv_scores, q, k, w):
    """Compare the learner's T with the reference, first the unmasked half and then the masked half."""
    n, lower = len(q), np.tri(len(q), dtype=bool)
    s = q @ k.T / math.sqrt(q.shape[1])
    wanted = np.where(lower, correlate(np.tril(s), w), -np.inf)
    call = f"conv_scores(q {q.shape}, k {k.shape}, w {w.shape})"
    got = within(conv_scores, (torch.tensor(q), torch.tensor(k), torch.tensor(w)), call=call, allowed=())
    instance(got, torch.Tensor, what="a tensor", call=call)
    if tuple(got.shape) != (n, n):
        rows = "T has a row for each query and a column for each key."
        compare(got, wanted, what="conv_scores", call=call, tolerance=1e-8, hint=rows)
    got = array(got)
    mistakes = [
        *window_mistakes(np.tril(s), w),
        (NO_MASK, correlate(s, w)),
        (NO_SCALE, correlate(np.tril(q @ k.T), w)),
        (SCALED.format("d"), correlate(np.tril(q @ k.T / q.shape[1]), w)),
        (SCALED.format("√N"), correlate(np.tril(q @ k.T / math.sqrt(n)), w)),
        (SWAPPED, correlate(np.tril(s.T), w)),
    ]
    hint = score_hint(got, wanted, lower, mistakes)
    compare(np.where(lower, got, -np.inf), wanted, what="T", call=call, tolerance=1e-8, hint=hint)
    compare(got, wanted, what="T", call=call, tolerance=1e-8, hint=ABOVE)


def score_hint(got, wanted, lower, mistakes):
    """Return the hint for a wrong T: the mistake that explains its entries on and below the diagonal."""
    if np.isneginf(np.diag(got)).all() and np.isfinite(got[np.tri(len(got), k=-1, dtype=bool)]).all():
        return OWN_KEY
    if not np.isfinite(got[lower]).all():
        return NOT_FINITE
    if np.allclose(got[lower], wanted[lower], rtol=1e-5, atol=1e-5 * np.abs(wanted[lower]).max()):
        return SINGLE
    return diagnose(got, wanted, mistakes, list(zip(*np.nonzero(lower)))) or OTHER


def correlate(s, w, top=None, left=None):
    """Return Σ_ab w[a, b] · s[i - top + a, j - left + b] for all i and j, with 0 outside the matrix. The
    defaults are top = c_q - 1 and left = (c_k - 1) // 2."""
    (n, _), (c_q, c_k) = s.shape, w.shape
    top = c_q - 1 if top is None else top
    left = (c_k - 1) // 2 if left is None else left
    padded = np.pad(s, ((top, c_q - 1 - top), (left, c_k - 1 - left)))
    return sum(w[a, b] * padded[a : a + n, b : b + n] for a in range(c_q) for b in range(c_k))


def window_mistakes(s0, w):
    """Return (hint, resulting scores) for each likely mistake."""
    c_q, c_k = w.shape
    return [
        (TURNED, correlate(s0, w[::-1, ::-1])),
        (CENTRED, correlate(s0, w, top=(c_q - 1) // 2)),
        (SHIFTED, correlate(s0, w, left=c_k // 2)),
        (WRAPPED, wrapped(s0, w, first_row=-len(s0), first_column=-len(s0))),
        (WRAPPED, wrapped(s0, w, first_row=-len(s0), first_column=0)),
        (WRAPPED, wrapped(s0, w, first_row=0, first_column=-len(s0))),
    ]


def wrapped(s0, w, first_row, first_column):
    """Correlate with negative indices wrapped around as in Python, down to the given first row and column;
    beyond these, 0."""
    n, (c_q, c_k) = len(s0), w.shape
    t = np.zeros((n, n))
    for a in range(c_q):
        for b in range(c_k):
            rows, columns = np.arange(n) - (c_q - 1) + a, np.arange(n) - (c_k - 1) // 2 + b
            read = s0[rows % n][:, columns % n]
            t += w[a, b] * np.where(
                (rows >= first_row)[:, None] & (columns >= first_column) & (columns < n), read, 0
            )
    return t


def diagnose(got, wanted, mistakes, places):
    """Return the hint whose mistake explains every value at these positions, if there is one."""
    right = np.array([wanted[place] for place in places])
    try:
        mine = np.array([float(got[place]) for place in places])
    except (TypeError, ValueError):
        return None
    for hint, mistaken in mistakes:
        theirs = np.array([mistaken[place] for place in places])
        if np.allclose(mine, theirs) and not np.allclose(theirs, right):
            return hint
    return None
