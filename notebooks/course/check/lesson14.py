"""Checks of lesson 14: the last row of T, one split, a test for decoders with faulty decoders to detect, and
the merge as a kernel in `sim`."""

import itertools
import math

import numpy as np
import torch
from numpy import float32
from torch.nn.functional import conv2d, pad

from course.check import kernels
from course.check.contract import Contract
from course.check.harness import compare, exercise, explained, fail, instance, numbers
from course.check.inputs import FAR
from course.check.tensors import Counted, OffChip, within
from course.check.trial import tried
from course.progress_bar import progress_bar
from kernels.common.tiles import weight
from kernels.conv.decode import decode_arguments
from kernels.reference import conv_attention_decode, conv_scores
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


@exercise("14.3", "is_right")
def ex14_3(is_right, rng):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**31)))  # for the test's own random numbers
        judge(is_right)
    return f"it accepts {len(ACCEPTED)} correct decoders and rejects {len(REJECTED)} wrong ones"


@exercise("14.4", "merge_splits")
def ex14_4(merge_splits, rng):
    kernels.own(merge_splits, "merge_splits", allowed=(weight,))
    for sizes in [
        (1, 1, 1, 1),
        (1, 1, 1, 4),
        (1, 2, 2, 3),
        (2, 1, 3, 8),
        (2, 3, 5, 4),
        (1, 1, 300, 2),
        (1, 2, 7, 33),
    ]:
        check_merge(merge_splits, sizes, rng, "scores near 0")
    for offset in (9000, -9000, 1e6, -1e6):
        check_merge(merge_splits, (1, 2, 4, 3), rng, f"scores near {offset:g}", offset=offset)
    check_merge(merge_splits, (1, 2, 4, 3), rng, "scores of -3e38, which are scores still", offset=-3e38)
    check_merge(merge_splits, (1, 2, 4, 3), rng, "a split far below the rest, with values of 10⁹", far=True)
    check_merge(merge_splits, (2, 2, 3, 3), rng, "the scores of each head far from the others'", apart=500)
    for empty in ([0], [3], [0, 1], [1, 2, 3]):
        check_merge(
            merge_splits,
            (1, 2, 4, 3),
            rng,
            f"nothing read by split{'s' * (len(empty) > 1)} {', '.join(map(str, empty))}",
            empty=empty,
        )
    return (
        "1 to 300 splits, empty ones among them, several batches and heads, rows of 1 to 33 numbers, scores"
        " near 0, ±9000, ±10⁶ and -3·10³⁸"
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


# 14.3: ways to decode, right and wrong ----------------------------------------------------------------------


def pieces(q, k, w, start, end, halo=True, mask=True, swap=False, below=False):
    """Return T for keys start to end - 1 of one head, correct or with a mistake."""
    if start == end:
        return k.new_empty(0)
    (left, right), n = sides(w.shape), len(k)
    left, right = (right, left) if swap else (left, right)
    k = pad(k if halo else only_here(k, start, end), (0, 0, left, right))[start : end + left + right]
    s = q @ k.T / math.sqrt(k.shape[1])
    s0 = hidden(s, n - len(q), start - left) if mask else s
    return slid(s0, w, 0, 0, above=0 if below else None)


def only_here(rows, start, end):
    """Replace rows outside [start, end) with 0."""
    return torch.nan_to_num(only(rows, start, end))


def owned_by(n, splits):
    """Return [start, end) for each split. The n keys are divided equally; the last splits may own fewer keys
    or none."""
    share = -(-n // splits)
    return [(min(s * share, n), min((s + 1) * share, n)) for s in range(splits)]


# The lesson prints these functions, and the learner looks for the fault. A docstring states what the author
# of the faulty code believed; it must not name the fault.
def faultless(q, k, v, w, splits):
    """As it should be; one head."""
    return merged([state_of(pieces(q, k, w, *own), v[slice(*own)]) for own in owned_by(len(k), splits)])


def merged(states):
    """Merge the states of all splits, and divide by l."""
    m = max(m for m, _, _ in states)
    weights = [math.exp(own - m) for own, _, _ in states]
    l = sum(weight * l for weight, (_, l, _) in zip(weights, states, strict=True))
    return sum(weight * o for weight, (_, _, o) in zip(weights, states, strict=True)) / l


def no_halo(q, k, v, w, splits):
    """Each split convolves the scores of its own keys, with zeros around them."""
    return merged(
        [state_of(pieces(q, k, w, *own, halo=False), v[slice(*own)]) for own in owned_by(len(k), splits)]
    )


def unmasked_window(q, k, v, w, splits):
    """All keys of the cache are in the past of the new token, so nothing is masked."""
    return merged(
        [state_of(pieces(q, k, w, *own, mask=False), v[slice(*own)]) for own in owned_by(len(k), splits)]
    )


def undivided(q, k, v, w, splits):
    """The merge divides by l; with one split there is nothing to merge."""
    states = [state_of(pieces(q, k, w, *own), v[slice(*own)]) for own in owned_by(len(k), splits)]
    return merged(states) if splits > 1 else states[0][2]


def full_tiles(q, k, v, w, splits):
    """Every split works on a whole tile; keys after the end of the cache get a T of -inf."""
    share = -(-len(k) // splits)
    states = []
    for start, end in owned_by(len(k), splits):
        t = pad(pieces(q, k, w, start, end), (0, share - (end - start)), value=-math.inf)
        p = torch.exp(t - t.max())
        states.append((t.max(), p.sum(), p @ pad(v[start:end], (0, 0, 0, share - (end - start)))))
    return merged(states)


def head_by_head(decode):
    """Turn a single-head decoder into one for (B, H, …), including the package's argument checks."""

    def decode_all(q_window, k, v, w, splits):
        *tensors, _ = decode_arguments(q_window, k, v, w, None)
        # rounded once, at the end, so that large numbers do no harm
        tensors = [tensor.double() for tensor in tensors]
        rows = [
            [
                decode(*(tensor[b, h] for tensor in tensors[:3]), tensors[3][h], splits)
                for h in range(k.shape[1])
            ]
            for b in range(k.shape[0])
        ]
        return torch.stack([torch.stack(heads) for heads in rows])[:, :, None].to(k.dtype)

    return decode_all


FAULTY = {
    function.__name__: head_by_head(function)
    for function in (no_halo, unmasked_window, undivided, full_tiles)
}


def with_pieces(**mistakes):
    """Return a decoder with these mistakes in its scores."""
    return head_by_head(
        lambda q, k, v, w, splits: merged(
            [state_of(pieces(q, k, w, *own, **mistakes), v[slice(*own)]) for own in owned_by(len(k), splits)]
        )
    )


def altered(change):
    """Return a decoder that modifies the correct output: change(o, q_window, k, v, w, splits)."""

    def decode(q_window, k, v, w, splits):
        return change(head_by_head(faultless)(q_window, k, v, w, splits), q_window, k, v, w, splits)

    return decode


def first_taps(q_window, k, v, w, splits):
    return head_by_head(faultless)(q_window, k, v, w[:1].expand_as(w), splits)


def first_sequence(q_window, k, v, w, splits):
    return head_by_head(faultless)(q_window, k[:1].expand_as(k), v[:1].expand_as(v), w, splits)


def lost_end(q, k, v, w, splits):
    """The share is rounded down: the last keys belong to nobody."""
    share = max(len(k) // splits, 1)
    owned = [(min(s * share, len(k)), min((s + 1) * share, len(k))) for s in range(splits)]
    return merged([state_of(pieces(q, k, w, *own), v[slice(*own)]) for own in owned])


def in_pairs(q, k, v, w, splits):
    """Neighbours are merged, then pairs, then fours; of an odd number the last is lost."""
    states = [state_of(pieces(q, k, w, *own), v[slice(*own)]) for own in owned_by(len(k), splits)]
    while len(states) > 1:
        states = [joined(*pair) for pair in zip(states[::2], states[1::2])]
    ((_, l, o),) = states
    return o / l


def joined(one, other):
    m = max(one[0], other[0])
    if m == -math.inf:
        return one
    shrink = [math.exp(part[0] - m) for part in (one, other)]
    return m, *(shrink[0] * mine + shrink[1] * theirs for mine, theirs in zip(one[1:], other[1:]))


def room_for_four(q, k, v, w, splits):
    """The merge looks at no more than four splits."""
    return merged([state_of(pieces(q, k, w, *own), v[slice(*own)]) for own in owned_by(len(k), splits)][:4])


def not_rescaled(q, k, v, w, splits):
    states = [state_of(pieces(q, k, w, *own), v[slice(*own)]) for own in owned_by(len(k), splits)]
    return sum(o for _, _, o in states) / sum(l for _, l, _ in states)


def first_too_high(o, *_):
    """Return the correct output, except for its first element."""
    o = o.clone()
    o.view(-1)[0] += 2e-5
    return o


def last_too_low(o, *_):
    """Return the correct output, except for its last element."""
    o = o.clone()
    o.view(-1)[-1] -= 2e-5
    return o


def both_off(o, *_):
    """Return the correct output, except for its first and last elements. The sum stays correct."""
    return last_too_low(first_too_high(o)) if o.numel() > 1 else first_too_high(o)


def undivided_scores(q_window, k, v, w, splits):
    """Decode without the division by √d."""
    return head_by_head(faultless)(q_window * math.sqrt(k.shape[3]), k, v, w, splits)


def square_taps(q_window, k, v, w, splits):
    """As if there were as many columns of taps as rows: the others are lost."""
    column = torch.arange(w.shape[2])
    return head_by_head(faultless)(q_window, k, v, w * (column < w.shape[1]), splits)


SIGN = "A difference may be negative: .abs() before .max()."
TOO_STRICT = (
    "float32 rounds: a decoder is correct if its largest difference from the reference in float64 is at most"
    " 1e-5. Is `wanted` the last row, [:, :, -1:]?"
)
SPLIT_COUNTS = (
    "Try every number of splits from 1 to more than there are keys: this one is right for most of them."
)
LARGEST = "Compare the largest of all differences, not their mean, with the limit of 1e-5."
CARRIED = (
    "It accepted the same decoder before. A verdict must depend on the decoder only: what does your test keep"
    " from one call to the next?"
)
NAN = "A comparison with NaN is never true: `error > 1e-5` lets it pass, `not error <= 1e-5` does not."
START = "Try the start of a sequence too: fewer tokens than c_q, and so a shorter window."

ACCEPTED = {
    "the right one": head_by_head(faultless),
    "one that rounds a little more": altered(lambda o, *_: o + 2e-6 * o.sign()),
    "one that does not split at all": (
        lambda q_window, k, v, w, splits: conv_attention_decode(
            *(x.double() for x in (q_window, k, v, w))
        ).to(k.dtype)
    ),
}
REJECTED = {
    "no_halo": (FAULTY["no_halo"], "With one split it is right. Try several."),
    "unmasked_window": (
        FAULTY["unmasked_window"],
        "It is right for a single token, and where c_q = 1: try more of both.",
    ),
    "undivided": (
        FAULTY["undivided"],
        f"{SPLIT_COUNTS} With one token l is 1, and the mistake has no effect.",
    ),
    "full_tiles": (FAULTY["full_tiles"], f"{SPLIT_COUNTS} {NAN}"),
    "always NaN": (altered(lambda o, *_: o * math.nan), NAN),
    "off by a thousandth": (altered(lambda o, *_: o * 1.001), "A tolerance of 1e-5 finds it."),
    "a hundredth too low everywhere": (altered(lambda o, *_: o - 0.01), SIGN),
    "a hundredth too high everywhere": (altered(lambda o, *_: o + 0.01), SIGN),
    "the first number too high by 2e-5": (altered(first_too_high), LARGEST),
    "the last number too low by 2e-5": (altered(last_too_low), LARGEST),
    "the first number too high by 2e-5, the last too low": (altered(both_off), LARGEST),
    "scores that are not divided by √d": (undivided_scores, "With d = 1 this mistake has no effect."),
    "the taps beyond c_q columns lost": (
        square_taps,
        "For square taps it is right. Try a c_k larger than c_q.",
    ),
    "wrong with more splits than keys": (
        altered(lambda o, q, k, v, w, splits: o + (splits > k.shape[2])),
        SPLIT_COUNTS,
    ),
    "P_k and P_r exchanged": (
        with_pieces(swap=True),
        "For odd c_k the two sides are alike. Try an even one, with several keys.",
    ),
    "a short window at the wrong rows of taps": (with_pieces(below=True), START),
    "the taps of head 0 for all heads": (first_taps, "Try more than one head, with different taps."),
    "the cache of the first sequence for all": (first_sequence, "Try more than one sequence, B = 2."),
    "the last keys lost": (
        head_by_head(lost_end),
        f"It is right where the keys can be divided evenly. {SPLIT_COUNTS}",
    ),
    "merged in pairs, the odd one lost": (
        head_by_head(in_pairs),
        f"It is right for 1, 2, 4 and 8 splits. {SPLIT_COUNTS}",
    ),
    "the fifth split and all after it lost": (
        head_by_head(room_for_four),
        f"Up to four splits it is right. {SPLIT_COUNTS} And enough keys that each has one.",
    ),
    "merged without rescaling": (head_by_head(not_rescaled), "With one split it is right. Try several."),
}


def judge(is_right):
    """Reject a test that misclassifies a decoder."""
    for name, decode in ACCEPTED.items():
        expect_accepted(is_right, name, decode, TOO_STRICT)
    for name, (decode, hint) in progress_bar(REJECTED.items(), desc="wrong decoders", leave=False):
        if answered(is_right, decode):
            fail(f"your test accepts a wrong decoder: {name}", wanted="False", got="True", hint=hint)
    name, decode = next(iter(ACCEPTED.items()))
    expect_accepted(is_right, f"{name}, after the wrong ones", decode, CARRIED)


def expect_accepted(is_right, name, decode, hint):
    if not answered(is_right, decode):
        fail(f"your test rejects a correct decoder: {name}", wanted="True", got="False", hint=hint)


def answered(is_right, decode):
    """Return the learner's verdict on a decoder, True or False."""
    # a new function each time, so that the test has to call it and cannot look it up
    answer = is_right(lambda *given, **named: decode(*given, **named))
    if answer is None:
        fail(
            "your test returned None",
            wanted="True or False",
            hint="Does every path through it end in a return?",
        )
    if getattr(answer, "dtype", type(answer)) not in (bool, np.dtype(bool), torch.bool):
        fail("your test returned something else", wanted="True or False", got=repr(answer))
    return bool(answer)


# 14.4 -------------------------------------------------------------------------------------------------------

UNDIVIDED = "o is not divided by l. Divide at the end, even if there is one split."
EACH_DIVIDED = (
    "Equal to the mean of o / l over the splits. First merge, then divide once: a split with small scores"
    " must count little."
)
UNSCALED = (
    "Equal to the result without the weights. The l and o of a split are relative to its own m: multiply both"
    " by exp(m_s - m)."
)
NOBODY_WRITES = (
    "NaN: no thread has written this element; or m is not the maximum of all splits, so that exp overflows or"
    " every weight is 0; or an empty split computed -inf - (-inf)."
)
MERGE = (
    "First the largest m of all splits; then the sums of exp(m_s - m) · l_s and exp(m_s - m) · o_s; then one"
    " division. part[d] is m, part[d + 1] is l."
)


def check_merge(merge_splits, sizes, rng, case, offset=0, empty=(), far=False, apart=0):
    """Check one launch with one block per head of each batch. The parts have shape (B, H, splits, d + 2).

    apart: difference of m between one head and the next.
    """
    batch, heads, splits, d = sizes
    o, l = rng.normal(0, 2, (batch, heads, splits, d)), 10 ** rng.uniform(-2, 1, (batch, heads, splits, 1))
    m = offset + rng.integers(-4, 5, (batch, heads, splits, 1))
    m = m + apart * np.arange(batch * heads).reshape(batch, heads, 1, 1)
    if far:
        m[:, :, 1] -= 60
        o[:, :, 1] *= 1e9
    m, l, o = (
        np.where(np.isin(np.arange(splits), empty)[:, None], nothing, part)
        for nothing, part in ((-np.inf, m), (0, l), (0, o))
    )
    parts, out = (
        np.concatenate([o, m, l], axis=3).astype(float32),
        np.full((batch, heads, 1, d), np.nan, float32),
    )
    threads = 64 if d > 32 else 32
    call = f"merge_splits[({heads}, {batch}), {threads}](parts {parts.shape}, out {out.shape}), {case}"
    m = parts[..., d : d + 1].astype(np.float64)
    weights = np.exp(m - m.max(axis=2, keepdims=True))
    sums, totals = ((weights * part).sum(axis=2, keepdims=True) for part in (o, l))
    mistakes = {UNDIVIDED: sums}
    if splits > 1:  # a single split needs no weights
        mistakes[UNSCALED] = o.sum(axis=2, keepdims=True) / l.sum(axis=2, keepdims=True)
        mistakes[EACH_DIVIDED] = (o / np.where(l > 0, l, 1)).mean(axis=2, keepdims=True)

    def hint(got):
        return NOBODY_WRITES if np.isnan(got).any() else explained(got, mistakes, MERGE, 1e-4)

    def writer(number):
        return number // d * threads + number % d

    contract = Contract(
        "parts out", max_per_thread={"parts": 6 * splits, "out": 1}, owner={"out": writer}, hint=A_NUMBER_EACH
    )
    kernels.judge(
        merge_splits,
        ((heads, batch), threads),
        (parts,),
        (out,),
        (sums / totals,),
        rng,
        call,
        contract,
        what="a wrong output",
        hint=hint,
        float64=0,
    )


A_NUMBER_EACH = (
    "Thread c of a head's block computes element c, and no other: it reads m and l of each split, and element"
    " c of its o."
)
