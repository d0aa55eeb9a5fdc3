"""Checks of lesson 09: one convolved score, all scores, and a tool that detects whether an attention function
uses future tokens."""

import math

import numpy as np
import torch

from course.check.harness import array, compare, exercise, fail, instance
from course.check.tensors import within
from sim.nouns import plural

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


@exercise("9.3", "is_causal")
def ex09_3(is_causal, rng):
    # of three tokens a leak of scores moves one weight of one row, and a single draw may move that by nearly
    # nothing
    for tokens, attends in [*(plain_leaks(n, rng) for n in (4, 5, 6, 8)), long_leak(rng)]:
        n = tokens.shape[1]
        for name, attend, causal in attends:
            given = [tensor.clone() for tensor in tokens]
            got = with_seed(rng, is_causal, attend, *given)
            call = f"is_causal(attend, q, k, v) with {plural(n, 'token')}, where attend is {name}"
            if not isinstance(got, bool | np.bool_):
                hint = "torch.allclose gives a bool; of a tensor with one bool, .item() does."
                fail(
                    "is_causal must return True or False",
                    call=call,
                    wanted=str(causal),
                    got=type(got).__name__,
                    hint=hint,
                )
            if not all(torch.equal(mine, theirs) for mine, theirs in zip(given, tokens, strict=True)):
                fail(
                    "q, k or v is not what it was before the call",
                    call=call,
                    hint="Change a copy: torch.cat or clone() makes one.",
                )
            if bool(got) != causal:
                fail(
                    "a wrong verdict",
                    call=call,
                    wanted=str(causal),
                    got=str(bool(got)),
                    hint=verdict_hint(name, causal),
                )
    q, k, v = torch.tensor(rng.standard_normal((3, 1, WIDTH)))
    if not is_causal(ordinary, q, k, v):
        fail(
            "a single token has no future to look at",
            call="is_causal(attend, q, k, v) with 1 token",
            wanted="True",
            got="False",
        )
    return (
        "distinguished fourteen attention functions that see the future, and two that give NaN, from seven"
        f" that are causal, with 4 to 8 tokens and about {MOST}"
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


# 9.3 --------------------------------------------------------------------------------------------------------

CAUSAL_HINT = "It is causal: row i depends on tokens 0 to i. Compare the rows before the changed tokens only."
ROUNDING_HINT = (
    "It is causal: only the last digit changes, because the sum is computed in another order. Allow for"
    " rounding, as torch.allclose does."
)
LEAK_HINT = (
    "It sees the future. Divide the tokens into past and future at every possible position. Each time,"
    " change q, k and v of all later tokens, and compare every earlier row."
)
NAN_HINT = (
    "Its output contains NaN, so nothing can be concluded from it. A comparison with NaN is false: ask"
    " `difference <= limit`, not `difference > limit`. And look at every row, the last one too."
)
ROUNDED, NAN, LAST_NAN = (
    "causal attention, rounded otherwise where the later tokens are others",
    "convolutional attention with -inf for both masks, all NaN",
    "causal attention whose last row is NaN",
)


def verdict_hint(name, causal):
    """Return a hint after a wrong verdict on the named attention function."""
    return {ROUNDED: ROUNDING_HINT, NAN: NAN_HINT, LAST_NAN: NAN_HINT}.get(
        name, CAUSAL_HINT if causal else LEAK_HINT
    )


def with_seed(rng, function, *arguments):
    """Call function(*arguments) with torch seeded from the check's generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(rng.integers(2**31)))
        return function(*arguments)


WIDTH = 6  # of q, k and v
MARGIN = 1e-4  # so far at least each leak moves an earlier row, where the later tokens are drawn again


def plain_leaks(n, rng):
    """Return (q, k, v), each (n, WIDTH), and the attention functions to classify. Inputs are redrawn until
    every leak has a clear effect."""
    while True:
        tokens, taps = (
            torch.tensor(rng.standard_normal((3, n, WIDTH))),
            rng.uniform(0.5, 1, (2, 3)) * rng.choice([-1, 1], (2, 3)),
        )
        attends = attentions(torch.tensor(taps))
        leaks = [attend for name, attend, causal in attends if not causal and name not in (NAN, LAST_NAN)]
        futures = torch.tensor(rng.standard_normal((4, 3, n, WIDTH)))
        if all(leak_of(attend, tokens, future) >= MARGIN for attend in leaks for future in futures):
            return tokens, attends


def long_leak(rng):
    """Return (q, k, v) of many tokens and four attention functions. One is causal. In each of the others, a
    single row uses the next value, far from both ends or as late as possible."""
    n = int(rng.integers(MOST - 14, MOST + 1))
    row = int(rng.integers(20, n - 20))
    what = "causal attention in which one row of many sees a little of the next value"
    attends = [
        ("ordinary causal attention", ordinary, True),
        (what, one_row(lambda _: row, lambda _: row + 1), False),
        (f"{what}, the last row but one", one_row(lambda n: n - 2, lambda n: n - 1), False),
        (
            "causal attention in which one of many rows sees a ten-thousandth of the next value",
            one_row(lambda n: 3 * n // 4, lambda n: 3 * n // 4 + 1, 1e-4),
            False,
        ),
    ]
    return torch.tensor(rng.standard_normal((3, n, WIDTH))), attends


def leak_of(attend, tokens, future):
    """Return the maximum change of any row of `attend` when the tokens after it are replaced with those of
    `future`."""
    before = attend(*tokens)
    changes = (
        attend(*torch.cat([tokens[:, :t], future[:, t:]], 1))[:t] - before[:t] for t in range(1, len(before))
    )
    return max(change.abs().max().item() for change in changes)


def attentions(w):
    """Return (name, attention function, whether it is causal) triples for taps w of shape (2, 3)."""

    def scores(q, k):
        return q @ k.T / math.sqrt(q.shape[1])

    def attend(t, v):
        return torch.softmax(t.masked_fill(future(t), -math.inf), dim=1) @ v

    def convolved(s):
        (n, _), (c_q, c_k), left = s.shape, w.shape, (w.shape[1] - 1) // 2
        padded = torch.nn.functional.pad(s, (left, c_k - 1 - left, c_q - 1, 0))
        return sum(w[a, b] * padded[a : a + n, b : b + n] for a in range(c_q) for b in range(c_k))

    def looks_at_the_next_query(q, k, v):
        return attend(scores(q.roll(-1, 0), k), v)

    def mask_of_the_formula(q, k, v):
        s = scores(q, k)
        past = torch.ones_like(s).tril()
        return attend(torch.stack([convolved(s * past[i])[i] for i in range(len(q))]), v)

    def rounded(q, k, v):
        total = v.sum(0)
        return (ordinary(q, k, v) + total) - total

    def infinite_twice(q, k, v):
        s = scores(q, k)
        return attend(convolved(s.masked_fill(future(s), -math.inf)), v)

    return [
        ("ordinary causal attention", ordinary, True),
        ("convolutional attention", lambda q, k, v: attend(convolved(scores(q, k).tril()), v), True),
        (
            "convolutional attention with another mask before the convolution, causal too",
            mask_of_the_formula,
            True,
        ),
        ("v itself", lambda q, k, v: v.clone(), True),
        ("the values so far, added up", lambda q, k, v: v.cumsum(0), True),
        ("zero everywhere", lambda q, k, v: 0 * v, True),
        (ROUNDED, rounded, True),
        (NAN, infinite_twice, False),
        (LAST_NAN, last_row_nan, False),
        ("attention without a mask", lambda q, k, v: torch.softmax(scores(q, k), dim=1) @ v, False),
        (
            "convolutional attention without its first mask",
            lambda q, k, v: attend(convolved(scores(q, k)), v),
            False,
        ),
        ("causal attention that looks at the next token's query", looks_at_the_next_query, False),
        (
            "causal attention with the mean of all values taken off",
            lambda q, k, v: ordinary(q, k, v - v.mean(0)),
            False,
        ),
        (
            "causal attention whose first row sees a little of the second value",
            one_row(lambda n: 0, lambda n: 1),
            False,
        ),
        (
            "causal attention whose first row sees a ten-thousandth of the last value",
            one_row(lambda n: 0, lambda n: n - 1, 1e-4),
            False,
        ),
        ("causal attention that sees the next value through a layer norm", normed, False),
        (
            "causal attention that sees the size of the next value, but not its sign",
            lambda q, k, v: ordinary(q, k, v) + 0.1 * the_next(v).abs(),
            False,
        ),
        ("causal attention whose columns turn a little with the next value", turned, False),
        (
            "causal attention whose last row but one sees a little of the last value",
            one_row(lambda n: n - 2, lambda n: n - 1),
            False,
        ),
        (
            "causal attention whose middle row sees a little of the next value",
            one_row(lambda n: (n - 1) // 2, lambda n: (n + 1) // 2),
            False,
        ),
    ]


def future(s):
    """Return an (n, n) mask that is True where the key comes after the query."""
    return torch.ones_like(s, dtype=torch.bool).triu(1)


def ordinary(q, k, v):
    """Compute causal attention of q, k, v (n, d)."""
    s = q @ k.T / math.sqrt(q.shape[1])
    return torch.softmax(s.masked_fill(future(s), -math.inf), dim=1) @ v


def one_row(row, token, share=0.1):
    """Return causal attention, except that row `row(n)` of n receives a share of the value of token
    `token(n)`."""

    def peeks(q, k, v):
        at = torch.arange(len(q))[:, None]
        seen = (token(len(q)) % len(q)) * (len(q) > 1)
        return ordinary(q, k, v) + share * (at == row(len(q))) * v[seen]

    return peeks


def the_next(x):
    """Shift x (n, d) up by one row and fill the last row with 0."""
    return torch.cat([x[1:], torch.zeros_like(x[:1])])


def last_row_nan(q, k, v):
    """Compute causal attention and replace its last row with NaN."""
    out = ordinary(q, k, v)
    out[-1] = math.nan
    return out


def normed(q, k, v):
    """Attend to the next value through a layer norm, which maps x + 1 and 2 x to the same result as x."""
    return ordinary(q, k, v) + 0.1 * the_next(torch.nn.functional.layer_norm(v, v.shape[1:], eps=0.0))


def turned(q, k, v):
    """Rotate the three smallest middle columns of each row about their mean, by a fiftieth of the last
    element of the next value. The row keeps its sum, its norm, its largest element and both ends."""
    out, angle = ordinary(q, k, v), the_next(v)[:, -1:] / 50
    places = 1 + out[:, 1:-1].argsort(1)[:, :3]
    three = out.gather(1, places)
    mean = three.mean(1, keepdim=True)
    across = (three.roll(1, 1) - three.roll(-1, 1)) / math.sqrt(3)
    return out.scatter(1, places, mean + (three - mean) * angle.cos() + across * angle.sin())
