"""Checks of lesson 14: the last row of T, and the state of one split."""

import itertools
import math

import numpy as np
import torch
from torch.nn.functional import conv2d, pad

from course.check.harness import compare, exercise, explained, fail, instance, numbers
from course.check.inputs import FAR
from course.check.tensors import Counted, OffChip, within
from course.check.trial import tried
from kernels.reference import conv_scores
from kernels.reference.conv_tiled import load_rows

# (tokens, c_q, c_k): first one in which no two mistakes look alike; one token, fewer tokens than c_q, as
# many, more; odd and even, oblong, wider than the cache.
SHAPES = [
    (9, 3, 4),
    (1, 1, 1),
    (1, 3, 3),
    (2, 3, 4),
    (3, 3, 4),
    (5, 7, 11),
    (8, 1, 5),
    (8, 5, 1),
    (13, 6, 11),
    (12, 2, 2),
    (6, 4, 3),
]


@exercise("14.1", "window_scores")
def ex14_1(window_scores, rng):
    for n, *taps in SHAPES:
        check_scores(window_scores, n, taps, rng)
    for draw in (loud, blank):
        check_scores(window_scores, 300, (3, 4), rng, draw)
    return (
        f"{len(SHAPES) + 2} last rows of T, of 1 to 300 keys, windows of 1 to 6 queries, taps odd and even,"
        " square and oblong"
    )


@exercise("14.2", "split_state")
def ex14_2(split_state, rng):
    splits = 0
    for n, *taps in SHAPES:
        inner = sorted(rng.integers(n + 1, size=2).tolist())
        for start, end in [
            (n // 3, n - n // 3),
            (0, n),
            (0, (n + 1) // 2),
            (n // 2, n),
            (n - 1, n),
            inner,
            (n // 2, n // 2),
            (n, n),
        ]:
            check_split(split_state, n, taps, start, end, rng)
            splits += 1
    for draw, start in itertools.product((loud, blank), (0, 150)):
        check_split(split_state, 300, (3, 4), start, start + 150, rng, draw)
    return (
        f"{splits + 4} splits: the whole cache, its ends and its middle, single keys, none; no number read"
        " too often"
    )


# The pieces of the oracle -----------------------------------------------------------------------------------


def normal(rng, *shape):
    """Return standard normal numbers in float64."""
    return torch.from_numpy(rng.standard_normal(shape))


def random(rng, n, d, taps):
    """Return standard normal (q, k, w)."""
    return normal(rng, n, d), normal(rng, n, d), normal(rng, *taps)


def loud(rng, n, d, taps):
    """Return (q, k, w) with scores up to ±4000, so that in every 150 keys some T overflow exp."""
    q, k, w = random(rng, n, d, taps)
    tried(f"scores to ±{4 * FAR}")
    return q, k * 4 * FAR / (q @ k.T / math.sqrt(d)).abs().max(), w


def blank(rng, n, d, taps):
    """Return (q, k, w) with zero keys in the middle, for which T is exactly 0."""
    q, k, w = random(rng, n, d, taps)
    k[n // 3 : n - n // 3] = 0
    return q, k, w


def sides(taps):
    """Return (P_k, P_r) for taps (c_q, c_k)."""
    left = (taps[1] - 1) // 2
    return left, taps[1] - 1 - left


def hidden(s, query, key):
    """Set the scores of keys after their query to 0. The first row is query `query`, the first column key
    `key`."""
    i, j = torch.arange(len(s))[:, None] + query, torch.arange(s.shape[1]) + key
    return s.masked_fill(j > i, 0.0)


def slid(s, w, left, right, above=None):
    """The taps slid along the rows of a window, with this many zeros at its sides; rows that the window lacks
    are zeros `above`, or else below."""
    lacking = len(w) - len(s)
    above = lacking if above is None else above
    return conv2d(pad(s, (left, right, above, lacking - above))[None, None], w[None, None])[0, 0, 0]


# 14.1 -------------------------------------------------------------------------------------------------------

UNMASKED = (
    "Equal to the result without a mask. The last query sees every key, the older ones do not: each masks"
    " the keys after its own position."
)
SHORT = (
    "At the start of a sequence there are fewer than c_q tokens, and the window is shorter: its first row is"
    " query N - R, not N - c_q."
)
OLDEST = (
    "Equal to T of the oldest query of the window. Put c_q - R rows of zeros above it, so that the newest"
    " query is under the last row of taps."
)
FROM_ZERO = (
    "Your mask takes row r of the window for query r. There are N tokens, and the last row of the window is"
    " query N - 1: which one is row r?"
)
OTHER_SIDE = (
    "For an even c_k the two sides differ: P_k = (c_k - 1) // 2 zeros to the left, P_r = c_k - 1 - P_k to the"
    " right."
)
BELOW = (
    "The window is shorter than c_q, and the missing rows are the ones above it: the newest query belongs to"
    " the last row of taps."
)
TURNED = "The taps are flipped: w[0, 0] belongs to the oldest query and the leftmost key."
NO_SCALE = "Equal to the result when q kᵀ is not divided by √d."
NOT_FINITE = (
    "NaN or infinity: before the convolution the mask writes 0. With -inf in the window, sums become -inf or"
    " NaN. T needs no exponentials, so nothing can overflow."
)
ONE_ROW = "One number for each key: only the last row of T, of shape (N,)."
SCORES = (
    "The steps are: divide the scores by √d; write 0 for keys after their query; add zeros to the left, to"
    " the right and above; convolve."
)


def check_scores(window_scores, n, taps, rng, draw=random):
    """Check the last row of T for n tokens."""
    d = int(rng.integers(1, 6))
    q, k, w = draw(rng, n, d, taps)
    window = q[-taps[0] :]
    wanted = conv_scores(q[None, None], k[None, None], w[None])[0, 0, -1]
    call = f"window_scores(q_window {tuple(window.shape)}, k {(n, d)}, w {tuple(taps)})"
    # the scores of the window, padded, and a copy per tap
    room = (taps[0] + 1) * (n + taps[1]) * (taps[1] + 1) + n * d + 64
    given = window.clone(), k.clone(), w.clone()
    got = within(window_scores, given, call=call, largest=room, allowed=(), hint=ONE_ROW)
    if got is not None:
        instance(got, torch.Tensor, what="a tensor of shape (N,)", call=call, hint=ONE_ROW)
    s, (left, right) = window @ k.T / math.sqrt(d), sides(taps)
    s0 = hidden(s, n - len(window), 0)
    mistakes = {
        UNMASKED: slid(s, w, left, right),
        FROM_ZERO: slid(hidden(s, 0, 0), w, left, right),
        SHORT: slid(hidden(s, n - taps[0], 0), w, left, right),
        OLDEST: slid(s0[:1], w, left, right),
        OTHER_SIDE: slid(s0, w, right, left),
        BELOW: slid(s0, w, left, right, above=0),
        TURNED: slid(s0, w.flip(0, 1), left, right),
        NO_SCALE: slid(s0 * math.sqrt(d), w, left, right),
    }
    if got is not None and got.shape != wanted.shape:
        compare(got, wanted, what="the last row of T", call=call, tolerance=1e-9, hint=ONE_ROW)
    finite = got is None or got.isfinite().all()
    hint = NOT_FINITE if not finite else explained(got, mistakes, SCORES, wanted=wanted)
    compare(got, wanted, what="the last row of T", call=call, tolerance=1e-9, hint=hint)


# 14.2 -------------------------------------------------------------------------------------------------------

NO_HALO = (
    "Equal to the result if the split loads only its own keys. It loads P_k more to the left and P_r to"
    " the right, for the convolution."
)
UNMASKED_SPLIT = (
    "Equal to the result without a mask. If there is one: the first row of the window is query N - R, and"
    " the first loaded column is key start - P_k. The mask needs both numbers."
)
SHIFTED = "The first loaded column is key start - P_k, not key start: pass this number to the mask."
DIVIDED = "o is divided by l already. The merge needs it undivided: the division comes once, at the very end."
POISONED = (
    "NaN: here K is NaN outside of what the split must load (P_k to the left of its keys, P_r to the right),"
    " and V outside of what it owns."
)
EMPTY = (
    "A split without keys has read nothing: -inf, 0 and a row of zeros. The largest of no numbers does not"
    " exist: return early."
)
STATE = (
    "m is the largest T of the keys start to end - 1, l the sum of exp(T - m), o the sum of exp(T - m) · v,"
    " all over the owned keys alone."
)
READS = (
    "Load K of the owned keys and of the halo, once, with one load_rows; V of the owned keys alone, with"
    " another. An empty split loads nothing: return before you load."
)


def check_split(split_state, n, taps, start, end, rng, draw=random):
    """Check the split that owns keys start to end - 1 of n. Elements that it must not read are NaN."""
    d = int(rng.integers(1, 6))
    (q, k, w), v = draw(rng, n, d, taps), normal(rng, n, d)
    window, (left, right) = q[-taps[0] :], sides(taps)
    t = conv_scores(q[None, None], k[None, None], w[None])[0, 0, -1, start:end]
    low, high = max(start - left, 0), min(end + right, n)
    wanted, mistakes = state_of(t, v[start:end]), split_mistakes(window, k, v, w, start, end, t)
    k_seen, v_seen = OffChip(only(k, low, high)), OffChip(only(v, start, end))
    call = (
        f"split_state(q_window {tuple(window.shape)}, k {(n, d)}, v, w {tuple(taps)}, start={start},"
        f" end={end}, traffic)"
    )
    traffic = Counted()
    got = within(
        split_state,
        (window.clone(), k_seen, v_seen, w.clone(), start, end, traffic),
        call=call,
        allowed=(load_rows,),
    )
    if got is not None and not (isinstance(got, tuple | list) and len(got) == 3):
        fail("split_state must return three things", call=call, wanted="(m, l, o)", got=type(got).__name__)
    hint = (
        EMPTY
        if start == end
        else POISONED
        if got is not None and np.isnan(numbers(got)).any()
        else explained(got, mistakes, STATE, wanted=wanted)
    )
    compare(got, wanted, what="(m, l, o)", call=call, tolerance=1e-9, hint=hint)
    elements = d * (high - low + end - start) if start < end else 0
    if traffic.read != elements:
        fail(
            "correct, but it reads a different number of elements",
            call=call,
            wanted=elements,
            got=traffic.read,
            hint=READS,
        )


def state_of(t, v):
    """Return (m, l, o) of these scores and values, or the initial state if there are none."""
    if not len(t):
        return -math.inf, 0.0, torch.zeros(v.shape[1], dtype=v.dtype)
    p = torch.exp(t - t.max())
    return t.max(), p.sum(), p @ v


def only(rows, low, high):
    """Replace rows outside [low, high) with NaN."""
    kept = torch.full_like(rows, math.nan)
    kept[low:high] = rows[low:high]
    return kept


def split_mistakes(window, k, v, w, start, end, t):
    """Return {hint: resulting state} for the likely mistakes."""
    if start == end:
        return {}
    (left, right), v, short = sides(w.shape), v[start:end], len(k) - len(window)
    s = window @ pad(k, (0, 0, left, right)).T[:, start : end + left + right] / math.sqrt(k.shape[1])
    own = s[:, left : s.shape[1] - right]
    m, l, o = state_of(t, v)
    return {
        NO_HALO: state_of(slid(hidden(own, short, start), w, left, right), v),
        UNMASKED_SPLIT: state_of(slid(s, w, 0, 0), v),
        # These two change a short window only, and there one of them can look like SHIFTED.
        SHORT: state_of(slid(hidden(s, len(k) - len(w), start - left), w, 0, 0), v),
        BELOW: state_of(slid(hidden(s, short, start - left), w, 0, 0, above=0), v),
        SHIFTED: state_of(slid(hidden(s, short, start), w, 0, 0), v),
        DIVIDED: (m, l, o / l),
    }
