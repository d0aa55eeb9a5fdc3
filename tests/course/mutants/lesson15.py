"""Wrong answers to the exercises of lesson 15, each labelled with its mistake, and alternative correct
answers."""

import math

import torch
from torch import nn
from torch.nn.functional import conv2d, pad

from kernels.modules.attention import ConvAttention
from kernels.reference import conv_attention, identity_taps

# Exercise 15.1 · TapAttention -------------------------------------------------------------------------------


class TapAttention(nn.Module):
    def __init__(self, width, heads, kernel_size):
        super().__init__()
        self.heads = heads
        self.in_proj, self.out_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.taps = self.first_taps(heads, *kernel_size)

    def first_taps(self, heads, c_q, c_k):
        return nn.Parameter(identity_taps(heads, c_q, c_k))

    def split(self, x):
        return self.in_proj(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)

    def attend(self, q, k, v):
        return conv_attention(q, k, v, self.taps)

    def merge(self, o):
        return self.out_proj(o.transpose(1, 2).flatten(2))

    def forward(self, x):
        return self.merge(self.attend(*self.split(x)))


def layer(**methods):
    """Return the correct layer with these methods replaced."""
    return type("TapAttention", (TapAttention,), methods)


def by_chunks_and_views(self, x):
    """Correct: splits the projection into three chunks, and separates heads by reshape and transpose."""
    b, n, e = x.shape
    return [
        part.reshape(b, n, self.heads, e // self.heads).transpose(1, 2)
        for part in self.in_proj(x).chunk(3, dim=-1)
    ]


def with_loops_over_heads(self, q, k, v):
    """Correct: computes convolutional attention head by head, as in lesson 09."""
    outs, n = [], q.shape[2]
    future = torch.ones(n, n, dtype=torch.bool).triu(1)
    for h, taps in enumerate(self.taps):
        c_q, c_k = taps.shape
        left = (c_k - 1) // 2
        s = (q[:, h] @ k[:, h].mT / math.sqrt(q.shape[-1])).masked_fill(future, 0.0)
        t = conv2d(pad(s, (left, c_k - 1 - left, c_q - 1, 0))[:, None], taps[None, None])[:, 0]
        outs.append(torch.softmax(t.masked_fill(future, -math.inf), -1) @ v[:, h])
    return torch.stack(outs, 1)


def heads_interleaved(self, x):
    return self.in_proj(x).unflatten(2, (3, -1, self.heads)).permute(2, 0, 4, 1, 3)


def three_innermost(self, x):
    return self.in_proj(x).unflatten(2, (self.heads, -1, 3)).permute(4, 0, 2, 1, 3)


def head_before_three(self, x):
    return self.in_proj(x).unflatten(2, (self.heads, 3, -1)).permute(3, 0, 2, 1, 4)


def reshaped_not_moved(self, x):
    b, n, e = x.shape
    return [part.reshape(b, self.heads, n, e // self.heads) for part in self.in_proj(x).chunk(3, dim=-1)]


def fixed_taps(self, heads, c_q, c_k):
    return identity_taps(heads, c_q, c_k)


LAYERS = [
    ("taps that are no parameter", layer(first_taps=fixed_taps)),
    ("taps all zero", layer(first_taps=lambda self, *shape: nn.Parameter(torch.zeros(*shape)))),
    ("taps all one", layer(first_taps=lambda self, *shape: nn.Parameter(torch.ones(*shape)))),
    ("random taps", layer(first_taps=lambda self, *shape: nn.Parameter(torch.randn(*shape)))),
    (
        "the same taps for all heads",
        layer(first_taps=lambda self, heads, c_q, c_k: nn.Parameter(identity_taps(1, c_q, c_k))),
    ),
    (
        "rows and columns of the taps swapped",
        layer(first_taps=lambda self, heads, c_q, c_k: nn.Parameter(identity_taps(heads, c_k, c_q))),
    ),
    (
        "taps cut off from the gradient",
        layer(attend=lambda self, q, k, v: conv_attention(q, k, v, self.taps.detach())),
    ),
    (
        "queries cut off from the gradient",
        layer(attend=lambda self, q, k, v: conv_attention(q.detach(), k, v, self.taps)),
    ),
    (
        "no taps",
        layer(
            attend=lambda self, q, k, v: nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        ),
    ),
    (
        "it sees the future",
        layer(attend=lambda self, q, k, v: conv_attention(q, k, v, self.taps, causal=False)),
    ),
    ("no scale", layer(attend=lambda self, q, k, v: conv_attention(q, k, v, self.taps, scale=1.0))),
    ("queries and keys swapped", layer(attend=lambda self, q, k, v: conv_attention(k, q, v, self.taps))),
    (
        "the scale of the whole width",
        layer(
            attend=lambda self, q, k, v: conv_attention(
                q, k, v, self.taps, scale=(q.shape[1] * q.shape[3]) ** -0.5
            )
        ),
    ),
    ("heads interleaved", layer(split=heads_interleaved)),
    ("q, k, v innermost", layer(split=three_innermost)),
    ("heads before q, k, v", layer(split=head_before_three)),
    ("heads by reshape alone", layer(split=reshaped_not_moved)),
    (
        "merged without a transpose",
        layer(merge=lambda self, o: self.out_proj(o.reshape(o.shape[0], o.shape[2], -1))),
    ),
    ("no out_proj", layer(merge=lambda self, o: o.transpose(1, 2).flatten(2))),
    ("x added here already", layer(forward=lambda self, x: x + TapAttention.forward(self, x))),
    ("nothing returned", layer(forward=lambda self, x: None)),
]


# Exercise 15.2 · share_wrong --------------------------------------------------------------------------------


def share_with(
    guess=lambda model, text, size: model(text[:, :-1])[:, -size:].argmax(-1),
    wrong=lambda guess, answer: (guess != answer).any(1),
):
    """Return a correct share_wrong with some parts replaced."""

    def share_wrong(model, text, size):
        return wrong(guess(model, text, size), text[:, -size:]).double().mean().item()

    return share_wrong


def by_writing(model, text, size):
    """Correct: lets the model generate the answer."""
    said = text[:, :-size]
    for _ in range(size):
        said = torch.cat([said, model(said)[:, -1:].argmax(-1)], 1)
    return said[:, -size:]


def by_counting(model, text, size):
    """Correct: counts text by text."""
    wrong = 0
    for row in text:
        guesses = model(row[None])[0].argmax(-1)
        wrong += any(guesses[i - 1] != row[i] for i in range(len(row) - size, len(row)))
    return wrong / len(text)


SHARES = [
    ("the share of letters", share_with(wrong=lambda guess, answer: (guess != answer).double())),
    ("wrong only if every letter is", share_with(wrong=lambda guess, answer: (guess != answer).all(1))),
    ("the share of right ones", share_with(wrong=lambda guess, answer: (guess == answer).all(1))),
    ("only the last letter", share_with(wrong=lambda guess, answer: guess[:, -1] != answer[:, -1])),
    ("only the first letter", share_with(wrong=lambda guess, answer: guess[:, 0] != answer[:, 0])),
    ("one place too late", share_with(guess=lambda model, text, size: model(text)[:, -size:].argmax(-1))),
    (
        "one place too early",
        share_with(
            guess=lambda model, text, size: torch.cat([model(text[:, :1]), model(text)], 1)[
                :, -size - 2 : -2
            ].argmax(-1)
        ),
    ),
    (
        "the smallest logit",
        share_with(guess=lambda model, text, size: model(text[:, :-1])[:, -size:].argmin(-1)),
    ),
    (
        "the whole text",
        lambda model, text, size: (
            (model(text[:, :-1]).argmax(-1) != text[:, 1:]).any(1).double().mean().item()
        ),
    ),
    ("a number of texts", lambda model, text, size: share_with()(model, text, size) * len(text)),
    ("percent", lambda model, text, size: 100 * share_with()(model, text, size)),
    (
        "letters in any order",
        share_with(
            wrong=lambda guess, answer: (guess.sort(1).values != answer.sort(1).values).any(1),
            guess=lambda m, t, s: m(t)[:, -s:].argmax(-1),
        ),
    ),
    ("nothing returned", lambda model, text, size: None),
]


# Exercise 15.3 · strongest ----------------------------------------------------------------------------------


def strongest_with(
    size=torch.abs,
    back=lambda a, c_q: c_q - 1 - a,
    right=lambda b, c_k: b - (c_k - 1) // 2,
    width=lambda taps: taps.shape[2],
):
    """Return a correct `strongest` with some parts replaced."""

    def strongest(taps):
        _, c_q, c_k = taps.shape
        places = size(taps).flatten(1).argmax(1).tolist()
        return [(back(place // width(taps), c_q), right(place % width(taps), c_k)) for place in places]

    return strongest


def strongest_by_nonzero(taps):
    """Correct: finds the position of the largest tap with nonzero."""
    found = []
    for head in taps:
        a, b = (head.abs() == head.abs().max()).nonzero()[0].tolist()
        found.append([head.shape[0] - a - 1, b - (head.shape[1] - 1) // 2])
    return torch.tensor(found)


STRONGEST = [
    ("only positive taps", strongest_with(size=lambda taps: taps)),
    ("the weakest", strongest_with(size=lambda taps: -taps.abs())),
    ("row numbers", strongest_with(back=lambda a, c_q: a)),
    ("one query too far back", strongest_with(back=lambda a, c_q: c_q - a)),
    ("backwards is negative", strongest_with(back=lambda a, c_q: a - c_q + 1)),
    ("column numbers", strongest_with(right=lambda b, c_k: b)),
    ("the middle of an even number on the wrong side", strongest_with(right=lambda b, c_k: b - c_k // 2)),
    ("to the left", strongest_with(right=lambda b, c_k: (c_k - 1) // 2 - b)),
    ("rows as long as columns", strongest_with(width=lambda taps: taps.shape[1])),
    ("the two swapped", lambda taps: [(right, back) for back, right in strongest_with()(taps)]),
    ("one for all heads", lambda taps: strongest_with()(taps)[:1]),
    ("nothing returned", lambda taps: None),
]

RIGHT = {
    "ex15_1": [TapAttention, layer(split=by_chunks_and_views), layer(attend=with_loops_over_heads)],
    "ex15_2": [share_with(), share_with(guess=by_writing), by_counting],
    "ex15_3": [strongest_with(), strongest_by_nonzero],
}
MUTANTS = {"ex15_1": LAYERS, "ex15_2": SHARES, "ex15_3": STRONGEST}


class DrawsBefore(TapAttention):
    """Draw a random number before the linear maps."""

    def __init__(self, width, heads, kernel_size):
        torch.rand(1)
        super().__init__(width, heads, kernel_size)


class BiasesOfZero(TapAttention):
    """Change a linear map without drawing a random number."""

    def __init__(self, width, heads, kernel_size):
        super().__init__(width, heads, kernel_size)
        nn.init.zeros_(self.in_proj.bias)


class LayerOfThePackage(ConvAttention):
    def __init__(self, width, heads, kernel_size):
        super().__init__(width, heads, kernel_size, attention=conv_attention)


class UnusedParameter(TapAttention):
    def __init__(self, width, heads, kernel_size):
        super().__init__(width, heads, kernel_size)
        self.unused = nn.Parameter(torch.zeros(3))


class InFloat64(TapAttention):
    def __init__(self, width, heads, kernel_size):
        super().__init__(width, heads, kernel_size)
        self.double()


def left_in_eval_mode(model, text, size):
    return share_with()(model.eval(), text, size)


def in_eval_mode(model, text, size):
    """Correct: evaluates, and restores the mode."""
    mode = model.training
    share = share_with()(model.eval(), text, size)
    model.train(mode)
    return share


MUTANTS["ex15_1"] = [
    *LAYERS,
    ("draws before the linear maps", DrawsBefore),
    ("other first values of a linear map", BiasesOfZero),
    ("the package's layer", LayerOfThePackage),
    ("an unused parameter", UnusedParameter),
    ("everything in float64", InFloat64),
]
MUTANTS["ex15_2"] = [*SHARES, ("eval mode left on", left_in_eval_mode)]
RIGHT["ex15_2"] = [*RIGHT["ex15_2"], in_eval_mode]
