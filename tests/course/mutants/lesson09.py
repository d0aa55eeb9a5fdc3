"""Wrong answers to the exercises of lesson 09, each labelled with its mistake, and alternative correct
answers."""

import math

import torch
from torch.nn.functional import conv2d, pad

from kernels import reference

# Exercise 9.1 · convolved_score -----------------------------------------------------------------------------


def convolved(
    top=lambda c_q: c_q - 1,
    left=lambda c_k: (c_k - 1) // 2,
    flip=False,
    inside=lambda r, c, n: 0 <= r and 0 <= c < n,
):
    """Return a correct convolved_score with some parts replaced."""

    def convolved_score(s0, w, i, j):
        c_q, c_k = w.shape
        w = w.flip(0, 1) if flip else w
        total = 0.0
        for a in range(c_q):
            for b in range(c_k):
                r, c = i - top(c_q) + a, j - left(c_k) + b
                if inside(r, c, len(s0)):
                    total += w[a, b].item() * s0[r, c].item()
        return total

    return convolved_score


def in_the_matrix_from_either_end(r, c, n):
    return -n <= r < n and -n <= c < n


def always_three_by_three(s0, w, i, j):
    return sum(
        w[a, b] * s0[i - 2 + a, j - 1 + b] for a, b in small(w) if i - 2 + a >= 0 and 0 <= j - 1 + b < len(s0)
    )


def small(w):
    return [(a, b) for a in range(min(3, w.shape[0])) for b in range(min(3, w.shape[1]))]


def centred_rows_inside(s0, w, i, j):
    return convolved(top=lambda c_q: c_q // 2, inside=lambda r, c, n: 0 <= r < n and 0 <= c < n)(s0, w, i, j)


def taps_transposed(s0, w, i, j):
    return convolved()(s0, w.T, i, j)


def only_this_query(s0, w, i, j):
    return convolved()(s0, w[-1:], i, j)


def swaps_row_and_column(s0, w, i, j):
    return convolved()(s0.T, w, i, j)


def by_the_package(s0, w, i, j):
    return reference.convolve(s0[None, None], w[None])[0, 0, i, j]


def by_a_padded_window(s0, w, i, j):
    """Correct: pads the scores, slices the window and multiplies it by the taps."""
    c_q, c_k = w.shape
    left = (c_k - 1) // 2
    padded = pad(s0, (left, c_k - 1 - left, c_q - 1, 0))
    return (padded[i : i + c_q, j : j + c_k] * w).sum()


def from_the_newest(s0, w, i, j):
    """Correct: counts backwards from query i."""
    c_q, c_k = w.shape
    n, total = len(s0), torch.zeros((), dtype=s0.dtype)
    for back in range(min(c_q, i + 1)):
        for c in range(max(0, j - (c_k - 1) // 2), min(n, j + c_k // 2 + 1)):
            total = total + w[c_q - 1 - back, c - j + (c_k - 1) // 2] * s0[i - back, c]
    return total.item()


# Exercise 9.2 · conv_scores ---------------------------------------------------------------------------------


def future(s):
    return torch.ones_like(s, dtype=torch.bool).triu(1)


def zero(s):
    return s.masked_fill(future(s), 0.0)


def minus_infinity(s):
    return s.masked_fill(future(s), -math.inf)


def past_and_both_sides(c_q, c_k):
    return (c_k - 1) // 2, c_k - 1 - (c_k - 1) // 2, c_q - 1, 0


def masked_twice(
    first=zero,
    second=minus_infinity,
    padding=past_and_both_sides,
    scale=lambda d: d**-0.5,
    taps=lambda w: w,
    crop=True,
):
    """Return a correct conv_scores with some parts replaced."""

    def conv_scores(q, k, w):
        s = first(scale(q.shape[1]) * (q @ k.T))
        t = conv2d(pad(s, padding(*w.shape))[None, None], taps(w)[None, None])[0, 0]
        return second(t[: len(q), : len(k)] if crop else t)

    return conv_scores


def same_padding(c_q, c_k):
    return (c_k - 1) // 2, c_k - 1 - (c_k - 1) // 2, c_q // 2, c_q - 1 - c_q // 2


def mask_includes_the_diagonal(s):
    return s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(), 0.0)


def one_mask_of_the_wrong_half(s):
    return s.masked_fill(torch.ones_like(s, dtype=torch.bool).tril(-1), 0.0)


def with_a_channel_axis(q, k, w):
    return masked_twice()(q, k, w)[None]


def softmax_too(q, k, w):
    return torch.softmax(masked_twice()(q, k, w), dim=1)


def forgets_to_pad_at_all(q, k, w):
    s = zero(q @ k.T * q.shape[1] ** -0.5)
    room = pad(s, (0, w.shape[1] - 1, 0, w.shape[0] - 1))
    return minus_infinity(conv2d(room[None, None], w[None, None])[0, 0])


def by_the_packages_scores(q, k, w):
    return reference.conv_scores(q[None, None], k[None, None], w[None])[0, 0]


def by_the_packages_convolution(q, k, w):
    s0 = zero(q @ k.T * q.shape[1] ** -0.5)
    return minus_infinity(reference.convolve(s0[None, None], w[None])[0, 0])


def by_shifting(q, k, w):
    """Correct: adds up shifted copies of the scores without conv2d."""
    n, (c_q, c_k) = len(q), w.shape
    s = torch.tril((q @ k.mT) / math.sqrt(q.shape[-1]))
    room = torch.zeros(n + c_q - 1, n + c_k - 1, dtype=s.dtype)
    room[c_q - 1 :, (c_k - 1) // 2 : (c_k - 1) // 2 + n] = s
    t = sum(w[a, b] * room[a : a + n, b : b + n] for a in range(c_q) for b in range(c_k))
    return torch.where(torch.arange(n)[:, None] < torch.arange(n), -math.inf, t)


def by_scores(q, k, w):
    """Correct: calls exercise 9.1 for every score."""
    s0 = zero(q @ k.T / q.shape[1] ** 0.5)
    t = torch.full_like(s0, -math.inf)
    for i in range(len(q)):
        for j in range(i + 1):
            t[i, j] = by_a_padded_window(s0, w, i, j)
    return t


# Exercise 9.3 · is_causal -----------------------------------------------------------------------------------


def later(
    change=lambda x, t: torch.cat([x[:t], torch.randn_like(x[t:])]),
    which=(0, 1, 2),
    cuts=lambda n: range(1, n),
    rows=slice,
    tolerance=1e-8,
):
    """Return a correct is_causal with some parts replaced."""

    def is_causal(attend, q, k, v):
        before = attend(q, k, v)
        if before.isnan().any():
            return False
        for t in cuts(len(q)):
            changed = [change(x, t) if place in which else x for place, x in enumerate((q, k, v))]
            if not torch.allclose(attend(*changed)[rows(t)], before[rows(t)], atol=tolerance):
                return False
        return True

    return is_causal


def one_token(x, t):
    return torch.cat([x[:t], torch.randn_like(x[t : t + 1]), x[t + 1 :]])


def the_past(x, t):
    return torch.cat([torch.randn_like(x[:t]), x[t:]])


def in_place(x, t):
    x[t:] = torch.randn_like(x[t:])
    return x


def says_it_the_wrong_way_round(attend, q, k, v):
    return not later()(attend, q, k, v)


def decides_after_the_first_cut(attend, q, k, v):
    return later(cuts=lambda n: range(1, min(n, 2)))(attend, q, k, v)


def always(answer):
    return lambda attend, q, k, v: answer


def returns_the_differences(attend, q, k, v):
    changed = [one_token(x, len(q) - 1) for x in (q, k, v)]
    return (attend(*changed) - attend(q, k, v)).abs()


def reads_the_source(attend, q, k, v):
    """Wrong: compares the result with ordinary causal attention."""
    s = minus_infinity(q @ k.T / math.sqrt(q.shape[1]))
    return torch.allclose(attend(q, k, v), torch.softmax(s, 1) @ v)


def by_a_mean_below(limit):
    def is_causal(attend, q, k, v):
        before = attend(q, k, v)
        for t in range(1, len(q)):
            after = attend(*(torch.cat([x[:t], torch.randn_like(x[t:])]) for x in (q, k, v)))
            if not (after[:t] - before[:t]).abs().mean() <= limit:
                return False
        return True

    return is_causal


def by_moving_one_token(attend, q, k, v):
    """Correct: changes one token at a time by fixed amounts, and compares every earlier row."""
    before = attend(q, k, v).numpy().copy()
    if not (before == before).all():
        return False
    for token in range(1, len(q)):
        for shift in (0.5, -3.0):
            moved = [x.clone() for x in (q, k, v)]
            for x in moved:
                x[token] += shift * torch.arange(1, x.shape[1] + 1)
            after = attend(*moved).numpy()
            if not (abs(after[:token] - before[:token]) <= 1e-9).all():
                return False
    return True


def by_a_difference_above(limit):
    """Return a wrong is_causal that tests whether the largest difference exceeds a limit, which a NaN never
    does."""

    def is_causal(attend, q, k, v):
        before = attend(q, k, v)
        changed = [[torch.cat([x[:t], torch.randn_like(x[t:])]) for x in (q, k, v)] for t in range(1, len(q))]
        return not any(
            (attend(*tokens)[:t] - before[:t]).abs().max() > limit for t, tokens in enumerate(changed, 1)
        )

    return is_causal


def to_the_last_bit(attend, q, k, v):
    before = attend(q, k, v)
    changed = [[torch.cat([x[:t], torch.randn_like(x[t:])]) for x in (q, k, v)] for t in range(1, len(q))]
    return all(torch.equal(attend(*tokens)[:t], before[:t]) for t, tokens in enumerate(changed, 1))


def by_prefixes(attend, q, k, v):
    """Correct: computes the first t tokens without any later tokens."""
    whole = attend(q, k, v)
    return all(torch.allclose(attend(q[:t], k[:t], v[:t]), whole[:t]) for t in range(1, len(q) + 1))


def by_the_jacobian(attend, q, k, v):
    """Correct: examines the derivative of each row with respect to each later token."""
    if not attend(q, k, v).isfinite().all():
        return False
    n = len(q)
    found = torch.autograd.functional.jacobian(attend, (q, k, v))
    moved = sum(part.abs().sum((1, 3)) for part in found)  # (row, token)
    return bool((moved[torch.ones(n, n).triu(1) > 0] <= 1e-9).all())


def cut_a_prefix(attend, q, k, v):
    """Correct: compares the first t rows after all later tokens have been replaced."""
    whole = attend(q, k, v)
    return all(
        torch.allclose(attend(*(torch.cat([x[:t], 7 - x[t:]]) for x in (q, k, v)))[:t], whole[:t])
        for t in range(len(q) + 1)
    )


MUTANTS = {
    "ex09_1": [
        ("turns the taps by 180°", convolved(flip=True)),
        ("looks c_q rows back", convolved(top=lambda c_q: c_q)),
        (
            "rows start at i and go on",
            convolved(top=lambda c_q: 0, inside=lambda r, c, n: r < n and 0 <= c < n),
        ),
        ("centres the rows", centred_rows_inside),
        ("half of c_k to the left", convolved(left=lambda c_k: c_k // 2)),
        ("all columns to the left", convolved(left=lambda c_k: c_k - 1)),
        ("columns start at j", convolved(left=lambda c_k: 0)),
        ("reads negative rows and columns from the end", convolved(inside=in_the_matrix_from_either_end)),
        ("reads negative columns from the end", convolved(inside=lambda r, c, n: 0 <= r and -n <= c < n)),
        ("reads negative rows from the end", convolved(inside=lambda r, c, n: -n <= r and 0 <= c < n)),
        ("leaves out column 0", convolved(inside=lambda r, c, n: 0 <= r and 0 < c < n)),
        ("leaves out row 0", convolved(inside=lambda r, c, n: 0 < r and 0 <= c < n)),
        ("reads beyond the last column", convolved(inside=lambda r, c, n: 0 <= r and 0 <= c)),
        ("always 3 × 3 taps", always_three_by_three),
        ("transposes the taps", taps_transposed),
        ("only the taps of query i", only_this_query),
        ("rows for columns", swaps_row_and_column),
        ("gives the score back", lambda s0, w, i, j: s0[i, j]),
        ("calls the package's convolution", by_the_package),
        ("gives nothing back", lambda s0, w, i, j: None),
    ],
    "ex09_2": [
        ("leaves the first mask out", masked_twice(first=lambda s: s)),
        ("-inf before the convolution", masked_twice(first=minus_infinity)),
        ("leaves the second mask out", masked_twice(second=lambda s: s)),
        ("0 after the convolution", masked_twice(second=zero)),
        ("masks the diagonal too", masked_twice(first=mask_includes_the_diagonal)),
        ("masks the past", masked_twice(first=one_mask_of_the_wrong_half)),
        ("centres the rows", masked_twice(padding=same_padding)),
        (
            "pads right before left",
            masked_twice(padding=lambda c_q, c_k: (c_k - 1 - (c_k - 1) // 2, (c_k - 1) // 2, c_q - 1, 0)),
        ),
        (
            "pads below",
            masked_twice(padding=lambda c_q, c_k: ((c_k - 1) // 2, c_k - 1 - (c_k - 1) // 2, 0, c_q - 1)),
        ),
        (
            "pads rows for columns",
            masked_twice(padding=lambda c_q, c_k: (c_q - 1, 0, (c_k - 1) // 2, c_k - 1 - (c_k - 1) // 2)),
        ),
        ("pads c_k on either side", masked_twice(padding=lambda c_q, c_k: (c_k, c_k, c_q - 1, 0))),
        ("pads to the left only", masked_twice(padding=lambda c_q, c_k: (c_k - 1, 0, c_q - 1, 0))),
        (
            "does not cut the padding off",
            masked_twice(padding=lambda c_q, c_k: (c_k, c_k, c_q, c_q), crop=False),
        ),
        ("turns the taps", masked_twice(taps=lambda w: w.flip(0, 1))),
        ("does not divide by √d", masked_twice(scale=lambda d: 1.0)),
        ("divides by d", masked_twice(scale=lambda d: 1 / d)),
        ("pads right and below only", forgets_to_pad_at_all),
        ("keeps a channel axis", with_a_channel_axis),
        ("takes the softmax too", softmax_too),
        ("calls the package's scores", by_the_packages_scores),
        ("calls the package's convolution", by_the_packages_convolution),
        ("float32", lambda q, k, w: masked_twice()(q.float(), k.float(), w.float()).double()),
        ("scales by √N", lambda q, k, w: masked_twice(scale=lambda _: len(q) ** -0.5)(q, k, w)),
        ("k qᵀ", lambda q, k, w: masked_twice()(k, q, w)),
    ],
    "ex09_3": [
        ("changes v only", later(which=(2,))),
        ("changes k only", later(which=(1,))),
        ("changes q only", later(which=(0,))),
        ("forgets q", later(which=(1, 2))),
        ("forgets v", later(which=(0, 1))),
        ("changes the last token only", later(cuts=lambda n: [n - 1])),
        ("never changes the last token alone", later(cuts=lambda n: range(1, n - 1))),
        ("decides after the first cut", decides_after_the_first_cut),
        ("compares all rows", later(rows=lambda t: slice(None))),
        ("compares one row too many", later(rows=lambda t: slice(t + 1))),
        ("compares the first row only", later(rows=lambda t: slice(1))),
        ("one token, and the row before it", later(change=one_token, rows=lambda t: slice(t - 1, t))),
        ("changes the past", later(change=the_past)),
        ("changes q, k and v in place", later(change=in_place)),
        ("lets much pass", later(tolerance=0.2)),
        ("a hundredth is nothing", later(tolerance=0.01)),
        ("a mean in place of a maximum", by_a_mean_below(1e-5)),
        ("takes NaN for equal", by_a_difference_above(1e-9)),
        ("forgives NaN", lambda *given: later()(lambda *tokens: given[0](*tokens).nan_to_num(), *given[1:])),
        ("asks for equality to the last bit", to_the_last_bit),
        ("the wrong way round", says_it_the_wrong_way_round),
        ("always yes", always(True)),
        ("always no", always(False)),
        ("returns the differences", returns_the_differences),
        ("compares with ordinary attention", reads_the_source),
    ],
}

RIGHT = {
    "ex09_1": [convolved(), by_a_padded_window, from_the_newest],
    "ex09_2": [masked_twice(), by_shifting, by_scores],
    "ex09_3": [
        later(),
        later(change=one_token),
        later(rows=lambda t: slice(t - 1, t)),
        by_moving_one_token,
        cut_a_prefix,
        by_prefixes,
        by_the_jacobian,
    ],
}
