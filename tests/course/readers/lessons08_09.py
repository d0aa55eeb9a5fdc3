"""Answers of a second reader of lessons 08 and 09: wrong ones that their checks once accepted, and unusual
correct ones."""

import math
from itertools import groupby

import numpy as np
import torch
from torch.nn.functional import conv2d, pad

from readers.lessons01_08 import edit

LANES = range(32)

# 8.1 and 8.2 ------------------------------------------------------------------------------------------------


def touched(stride, itemsize, first):
    return len({(first + lane * stride) * itemsize // 32 for lane in LANES})


def from_the_first_to_the_last(stride, itemsize, first=0):
    """Correct: counts consecutive sectors, up to one sector per lane."""
    begin, end = first * itemsize // 32, (first + 31 * stride) * itemsize // 32
    return min(32, abs(end - begin) + 1)


def busiest(words):
    return max(len(list(same)) for _, same in groupby(sorted(set(words), key=bank), key=bank))


def bank(word):
    return word % 32


def sorted_in_place(addresses):
    addresses.sort()
    return busiest(address // 4 for address in addresses)


def turn_by_turn(addresses):
    """Correct: removes one word per bank in each wavefront, and counts the wavefronts."""
    left, count = {address // 4 for address in addresses}, 0
    while left:
        left -= set({bank(word): word for word in left}.values())
        count += 1
    return count


# 8.4 and 8.5 ------------------------------------------------------------------------------------------------

PREDICTED = {
    "copy": (4, 4, 0, 0),
    "strided_copy": (32, 4, 0, 0),
    "transpose_naive": (4, 32, 0, 0),
    "transpose_tiled": (4, 4, 32, 1),
    "transpose_padded": (4, 4, 1, 1),
}


def predicted(kind):
    return lambda: {name: tuple(map(kind, numbers)) for name, numbers in PREDICTED.items()}


# 9.1 --------------------------------------------------------------------------------------------------------


def score(s0, w, i, j, inside=lambda a, b: True):
    c_q, c_k = w.shape
    meets = {(a, b): (i - c_q + 1 + a, j - (c_k - 1) // 2 + b) for a in range(c_q) for b in range(c_k)}
    return sum(
        w[tap] * s0[r, c] for tap, (r, c) in meets.items() if r >= 0 and 0 <= c < len(s0) and inside(*tap)
    )


def by_windows(s0, w, i, j):
    c_q, c_k = w.shape
    left = (c_k - 1) // 2
    room = pad(s0, (left, c_k - 1 - left, c_q - 1, 0))
    return (room.unfold(0, c_q, 1).unfold(1, c_k, 1)[i, j] * w).sum()


def to_token(last):
    return lambda s0, w, i, j: score(s0, w, i, j) if i < last else torch.tensor(0.0)


def room(s0, w):
    left = (w.shape[1] - 1) // 2
    return pad(s0, (left, w.shape[1] - 1 - left, w.shape[0] - 1, 0))


def by_conv2d(s0, w, i, j):
    return conv2d(room(s0, w)[None, None], w[None, None])[0, 0, i, j]


def by_fourier(s0, w, i, j):
    shape = s0.shape[0] + w.shape[0], s0.shape[1] + w.shape[1]
    t = torch.fft.irfft2(torch.fft.rfft2(s0, shape) * torch.fft.rfft2(w.flip(0, 1), shape), shape)
    return t[i, j + w.shape[1] // 2]


def remembered():
    """Return a wrong answer that caches each score by its position and the shapes, and so ignores later
    values."""
    known = {}

    def answer(s0, w, i, j):
        place = i, j, *s0.shape, *w.shape
        if place not in known:
            known[place] = score(s0, w, i, j)
        return known[place]

    return answer


def a_slice_times_the_taps(s0, w, i, j):
    """Correct: slices the scores at the edges of the matrix, without a padded copy."""
    row, column = i - w.shape[0] + 1, j - (w.shape[1] - 1) // 2
    r, c, end = max(row, 0), max(column, 0), min(column + w.shape[1], len(s0))
    return (s0[r : i + 1, c:end] * w[r - row :, c - column : end - column]).sum()


def exact_sum(s0, w, i, j):
    """Correct: adds Python's floats without rounding errors."""
    s0, w = s0.tolist(), w.tolist()
    left = (len(w[0]) - 1) // 2
    rows = [(taps, s0[i - len(w) + 1 + a]) for a, taps in enumerate(w) if i - len(w) + 1 + a >= 0]
    return math.fsum(
        tap * scores[j - left + b]
        for taps, scores in rows
        for b, tap in enumerate(taps)
        if 0 <= j - left + b < len(s0)
    )


# 9.2 --------------------------------------------------------------------------------------------------------


def future(n, known=1000):
    """Return a mask that is true where the key follows the query, within the first `known` tokens only."""
    tokens = torch.arange(n)
    return (tokens > tokens[:, None]) & (tokens < known) & (tokens[:, None] < known)


def scores(q, k, w, before=1000, after=1000):
    s = (q @ k.T / math.sqrt(q.shape[1])).masked_fill(future(len(q), before), 0)
    return conv2d(room(s, w)[None, None], w[None, None])[0, 0].masked_fill(future(len(q), after), -math.inf)


def masks_for(before, after):
    return lambda q, k, w: scores(q, k, w, before, after)


def by_matrix_products(q, k, w):
    """Correct: multiplies the rows above by a banded matrix for each row of taps."""
    n, (c_q, c_k) = len(q), w.shape
    s, t = torch.tril(q @ k.T / math.sqrt(q.shape[1])), torch.zeros(n, n, dtype=q.dtype)
    column, place = torch.arange(n)[:, None], torch.arange(n)
    tap = column - place + (c_k - 1) // 2
    for a in range(max(0, c_q - n), c_q):
        band = torch.where((tap >= 0) & (tap < c_k), w[a][tap.clamp(0, c_k - 1)], 0)
        t[c_q - 1 - a :] += s[: n - (c_q - 1 - a)] @ band
    return t.masked_fill(future(n), -math.inf)


# 9.3 --------------------------------------------------------------------------------------------------------


def drawn_anew(x, t):
    return torch.cat([x[:t], torch.randn_like(x[t:])])


def causal(same=torch.allclose, cuts=lambda n: range(1, n), change=drawn_anew):
    """Return a correct is_causal with some parts replaced."""

    def is_causal(attend, q, k, v):
        before = attend(q, k, v)
        return bool(before.isfinite().all()) and all(
            bool(same(attend(*(change(x, t) for x in (q, k, v)))[:t], before[:t])) for t in cuts(len(q))
        )

    return is_causal


def alike(what):
    return causal(lambda mine, theirs: torch.allclose(what(mine), what(theirs)))


def within(limit):
    return causal(lambda mine, theirs: (mine - theirs).abs().max() <= limit)


def first_number_drawn_anew(x, t):
    x = x.clone()
    x[t:, 0] = torch.randn_like(x[t:, 0])
    return x


def blind_to_the_last_row(attend, q, k, v):
    before = attend(q, k, v)
    return all(
        torch.allclose(attend(*(drawn_anew(x, t) for x in (q, k, v)))[:t], before[:t])
        for t in range(1, len(q))
    )


def by_gradients_of_sums(attend, q, k, v):
    given = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    out = attend(*given)
    sums = out.isfinite().all() and [
        torch.autograd.grad(row.sum(), given, retain_graph=True, allow_unused=True) for row in out
    ]
    return bool(sums) and all(
        part is None or bool((part[i + 1 :].abs() <= 1e-9).all())
        for i, parts in enumerate(sums)
        for part in parts
    )


WRONG = {
    "ex08_1": [
        ("a float", lambda stride, itemsize, first=0: float(touched(stride, itemsize, first))),
        ("from number 1 unless told", lambda stride, itemsize, first=1: touched(stride, itemsize, first)),
    ],
    "ex08_2": [
        ("sorts the addresses it got", sorted_in_place),
        ("4 KiB of shared memory", lambda addresses: busiest(a % 4096 // 4 for a in addresses)),
        ("64 KiB of shared memory", lambda addresses: busiest(a % 65536 // 4 for a in addresses)),
        ("a float", lambda addresses: float(busiest(a // 4 for a in addresses))),
    ],
    "ex08_3": [
        (
            "256 columns at most",
            edit("ex08_3", ("column + y < a.shape[1]", "column + y < min(a.shape[1], 256)")),
        ),
        (
            "-inf becomes finite",
            edit("ex08_3", ("= a[row + y, column + x]", "= max(a[row + y, column + x], float32(-1e30))")),
        ),
        ("a tile four times as high", edit("ex08_3", ("(TILE, 33)", "(128, 33)"))),
    ],
    "ex08_4": [
        ("truth values", predicted(lambda x: bool(x) if x == 1 else x)),
        ("complex numbers", predicted(complex)),
    ],
    "ex08_5": [
        (
            "a microsecond at least",
            lambda bytes, flops, turns, gpu: max(1e-6, *np.divide((bytes, flops, turns), gpu)),
        )
    ],
    "ex09_1": [
        ("16 tokens at most", to_token(16)),
        ("64 tokens at most", to_token(64)),
        ("conv2d for loops", by_conv2d),
        ("a Fourier transform for loops", by_fourier),
        ("remembers other matrices of this shape", remembered()),
        ("8 rows of taps", lambda s0, w, i, j: score(s0, w[-8:], i, j)),
        (
            "11 columns of taps",
            lambda s0, w, i, j: score(s0, w, i, j, lambda a, b: abs(b - (w.shape[1] - 1) // 2) <= 5),
        ),
        ("scores to ±100", lambda s0, w, i, j: score(s0.clamp(-100, 100), w, i, j)),
    ],
    "ex09_2": [
        ("masks for 16 tokens", masks_for(16, 16)),
        ("masks for 64 tokens", masks_for(64, 64)),
        ("a first mask for 16 tokens", masks_for(16, 1000)),
        ("a second mask for 16 tokens", masks_for(1000, 16)),
        ("8 rows of taps", lambda q, k, w: scores(q, k, w[-8:])),
        ("lists", lambda q, k, w: scores(q, k, w).tolist()),
        ("drops small taps", lambda q, k, w: scores(q, k, w * (w.abs() > 1e-3))),
    ],
    "ex09_3": [
        ("the first eight cuts", causal(cuts=lambda n: range(1, min(n, 9)))),
        ("63 cuts", causal(cuts=lambda n: range(1, min(n, 64)))),
        ("the last eight cuts", causal(cuts=lambda n: range(max(1, n - 8), n))),
        ("the mean of signed differences", causal(lambda mine, theirs: abs((mine - theirs).mean()) <= 1e-9)),
        ("sums of rows", alike(lambda out: out.sum(1))),
        ("norms of rows", alike(lambda out: out.norm(dim=1))),
        ("the largest of each row", alike(lambda out: out.amax(1))),
        ("the first column", alike(lambda out: out[:, 0])),
        ("the last column", alike(lambda out: out[:, -1])),
        ("adds 1", causal(change=lambda x, t: torch.cat([x[:t], x[t:] + 1]))),
        ("doubles", causal(change=lambda x, t: torch.cat([x[:t], x[t:] * 2]))),
        ("changes the first number of a token", causal(change=first_number_drawn_anew)),
        ("a thousandth is nothing", within(1e-3)),
        ("the first six tokens", lambda attend, *tokens: causal()(attend, *(x[:6] for x in tokens))),
        (
            "seven tokens of its own",
            lambda attend, q, k, v: causal()(attend, *torch.randn(3, 7, q.shape[1]).to(q)),
        ),
        ("the gradients of sums of rows", by_gradients_of_sums),
        ("negates", causal(change=lambda x, t: torch.cat([x[:t], -x[t:]]))),
        ("no look at the last row for NaN", blind_to_the_last_row),
    ],
}
RIGHT = {
    "ex08_1": [("from the first sector to the last", from_the_first_to_the_last)],
    "ex08_2": [("turn by turn", turn_by_turn)],
    "ex08_3": [
        (
            "rows turned round by their number",
            edit(
                "ex08_3",
                ("(TILE, 33)", "(TILE, TILE)"),
                ("tile[y, x]", "tile[y, (x + y) % 32]"),
                ("tile[x, y]", "tile[x, (x + y) % 32]"),
            ),
        )
    ],
    "ex08_4": [("floats", predicted(float))],
    "ex09_1": [
        ("a slice times the taps", a_slice_times_the_taps),
        ("added without rounding", exact_sum),
        ("a view of all windows", by_windows),
    ],
    "ex09_2": [("by products of matrices", by_matrix_products)],
    "ex09_3": [
        ("zeros for the future", causal(change=lambda x, t: torch.cat([x[:t], torch.zeros_like(x[t:])]))),
        ("the largest difference", within(1e-7)),
        ("ten times as loud", causal(change=lambda x, t: torch.cat([x[:t], 10 * torch.randn_like(x[t:])]))),
    ],
}
