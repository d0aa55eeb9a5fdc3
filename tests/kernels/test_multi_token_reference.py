"""Tests of the reference of the multi-token layer, in float64.

It is compared with loops, with ordinary and convolutional attention, and with autograd. The handwritten
gradients, documents, and the two passes over tiles are tested, too.
"""

import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from kernels.reference import (
    above_diagonal,
    conv_attention,
    identity_map,
    identity_taps,
    mixed_scores,
    multi_token_attention,
    multi_token_attention_decode,
    multi_token_tiled,
)
from kernels.reference.multi_token_gradients import multi_token_attention_backward
from kernels.reference.tiled import Traffic

PARTS = ("taps", "head_map", "after_taps", "after_head_map", "norm", "gate")
NAMES = ("q", "k", "v", *PARTS)
# (heads, N, taps, group size before the softmax, taps after it, group size after it)
CASES = [
    (1, 1, (3, 3), 1, (2, 4), 1),
    (2, 7, (3, 2), 2, (2, 5), 1),
    (3, 9, (1, 1), 3, (6, 11), 3),
    (4, 12, (6, 11), 4, (1, 3), 2),
    (4, 8, (2, 4), 2, (3, 1), 4),
    (6, 13, (15, 15), 3, (4, 2), 2),
]


def worst(got, wanted):
    return (got - wanted).abs().max().item()


def numbers(generator, *shape):
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def example(heads, n, taps, group, after_taps, after_group, batch=2, d=4, seed=0):
    """Return {name: q, k, v or a parameter of the layer}. A map with a single group has shape (H, H)."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = numbers(generator, 3, batch, heads, n, d)
    head_maps = [numbers(generator, heads // s, s, s) for s in (group, after_group)]
    return dict(
        zip(
            NAMES,
            (
                q,
                k,
                v,
                numbers(generator, heads, *taps),
                head_maps[0] if group < heads else head_maps[0][0],
                numbers(generator, heads, *after_taps),
                head_maps[1] if after_group < heads else head_maps[1][0],
                numbers(generator, d),
                (numbers(generator, d), numbers(generator)),
            ),
        )
    )


def element(m, g, h):
    """Return M[g, h] of a map in either of its two shapes."""
    if m.ndim == 2:
        return m[g, h]
    s = m.shape[1]
    return m[g // s, g % s, h % s] if g // s == h // s else 0.0


def convolved_by_loops(x, w, document, causal):
    """Convolve index by index, over rows above and columns on both sides.

    Entries of another document and masked entries are skipped.
    """
    heads, n, _ = x.shape
    (c_q, c_k), y = w.shape[1:], torch.zeros_like(x)
    for h in range(heads):
        for i in range(n):
            for j in range(n):
                for a in range(c_q):
                    for b in range(c_k):
                        r, c = i - c_q + 1 + a, j - (c_k - 1) // 2 + b
                        inside = 0 <= r < n and 0 <= c < n and (c <= r or not causal)
                        if inside and document[r] == document[i] and document[c] == document[j]:
                            y[h, i, j] += w[h, a, b] * x[h, r, c]
    return y


def mixed_by_loops(x, m):
    heads = range(len(x))
    return torch.stack([sum(element(m, g, h) * x[h] for h in heads) for g in heads])


def by_loops(q, k, v, taps, head_map, after_taps, after_head_map, norm, gate, causal, scale, document):
    """Compute the layer for one sequence, (H, N, d), from its definition.

    document[i] is the document of token i.
    """
    heads, n, _ = q.shape
    visible = torch.tensor(
        [[document[i] == document[j] and (j <= i or not causal) for j in range(n)] for i in range(n)]
    )
    s = torch.where(visible, scale * q @ k.transpose(1, 2), 0.0)
    t = mixed_by_loops(convolved_by_loops(s, taps, document, causal), head_map)
    p = torch.softmax(t.masked_fill(~visible, -math.inf), -1)
    u = torch.where(visible, convolved_by_loops(p, after_taps, document, causal), 0.0)
    o = mixed_by_loops(u, after_head_map) @ v
    x = o / torch.sqrt((o * o).mean(-1, keepdim=True) + 1e-5) * norm
    return x / (1 + torch.exp(-((x * gate[0]).sum(-1) + gate[1])))[..., None]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("case", [CASES[0], CASES[1], (3, 6, (3, 4), 3, (2, 3), 3)], ids=str)
def test_reference_against_loops(case, causal):
    given = example(*case)
    n = case[1]
    for documents in (None, [0, 2, n - 1] if n > 4 else None):
        document = [sum(i >= start for start in documents or [0]) for i in range(n)]
        got = multi_token_attention(**given, causal=causal, scale=0.3, documents=documents)
        for b in range(2):
            one = [given[name][b] if name in "qkv" else given[name] for name in NAMES]
            assert worst(got[b], by_loops(*one, causal, 0.3, document)) <= 1e-12


def test_documents_are_each_alone():
    given = example(4, 23, (6, 11), 4, (6, 11), 2)
    starts, n = torch.tensor([0, 1, 9, 23], dtype=torch.int32), 23
    got = multi_token_attention(**given, documents=starts)
    for start, end in [(0, 1), (1, 9), (9, n)]:
        alone = given | {name: given[name][:, :, start:end] for name in "qkv"}
        assert worst(got[:, :, start:end], multi_token_attention(**alone)) <= 1e-12
    assert worst(got, multi_token_attention(**given)) > 0.1  # Without documents, the result differs.
    assert worst(got, multi_token_attention(**given, documents=[0, 1, 9])) == 0


@pytest.mark.parametrize("documents", [[], [1, 4], [0, 3, 3], [0, 5, 3], [0, 9], [-1, 2]])
def test_documents_that_are_none(documents):
    given = example(1, 7, (1, 1), 1, (1, 1), 1)
    with pytest.raises(
        ValueError, match=r"argument documents is .*; wanted the first token of each document"
    ):
        multi_token_attention(given["q"], given["k"], given["v"], documents=documents)


@pytest.mark.parametrize("causal", [True, False])
def test_with_taps_alone_it_is_convolutional_attention(causal):
    q, k, v, taps = (example(3, 11, (3, 4), 3, (1, 1), 3)[name] for name in ("q", "k", "v", "taps"))
    assert (
        worst(multi_token_attention(q, k, v, taps, causal=causal), conv_attention(q, k, v, taps, causal)) == 0
    )


@pytest.mark.parametrize("causal", [True, False])
def test_with_nothing_or_identities_it_is_ordinary_attention(causal):
    q, k, v = (example(3, 11, (1, 1), 3, (1, 1), 3)[name] for name in "qkv")
    taps, after = (identity_taps(3, *size, torch.float64) for size in [(3, 4), (6, 11)])
    nothing = dict(
        taps=taps,
        head_map=identity_map(3, torch.float64),
        after_taps=after,
        after_head_map=torch.ones(3, 1, 1).double(),
    )
    wanted = scaled_dot_product_attention(q, k, v, is_causal=causal)
    assert worst(multi_token_attention(q, k, v, causal=causal), wanted) <= 1e-14
    assert worst(multi_token_attention(q, k, v, **nothing, causal=causal), wanted) <= 1e-14


def leaves_of(given):
    return [leaf for part in given.values() for leaf in (part if isinstance(part, tuple) else [part])]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_by_hand_against_autograd(case, causal):
    given = example(*case)
    d_y = numbers(torch.Generator().manual_seed(9), *given["q"].shape)
    leaves = [leaf.requires_grad_() for leaf in leaves_of(given)]
    wanted = torch.autograd.grad(multi_token_attention(**given, causal=causal, scale=0.4), leaves, d_y)
    with torch.no_grad():
        got = multi_token_attention_backward(d_y=d_y, **given, causal=causal, scale=0.4)
    for g, w in zip(leaves_of(got._asdict()), wanted, strict=True):
        assert g.shape == w.shape and worst(g, w) <= 1e-10 * max(1, w.abs().max())


@pytest.mark.parametrize("left_out", PARTS)
def test_gradients_by_hand_without_a_part(left_out):
    given = example(*CASES[3]) | {left_out: None}
    d_y = numbers(torch.Generator().manual_seed(9), *given["q"].shape)
    leaves = [leaf.requires_grad_() for leaf in leaves_of(given) if leaf is not None]
    wanted = torch.autograd.grad(multi_token_attention(**given), leaves, d_y)
    with torch.no_grad():
        got = multi_token_attention_backward(d_y=d_y, **given)
    assert getattr(got, left_out) is None
    got = [gradient for gradient in leaves_of(got._asdict()) if gradient is not None]
    assert all(worst(g, w) <= 1e-10 * max(1, w.abs().max()) for g, w in zip(got, wanted, strict=True))


def test_gradcheck():
    given = example(2, 5, (3, 4), 2, (2, 3), 2, batch=1, d=3)
    leaves = [leaf.requires_grad_() for leaf in leaves_of(given)]
    torch.autograd.gradcheck(
        lambda *x: multi_token_attention(*x[:8], gate=x[8:], scale=0.4), leaves, fast_mode=False
    )


def test_one_token_is_the_last_row():
    given = example(4, 17, (6, 11), 4, (6, 5), 2)
    q, rest = given["q"], {name: part for name, part in given.items() if name != "q"}
    for n in (1, 4, 11, 12, 17):
        rest |= {name: given[name][:, :, :n] for name in "kv"}
        got = multi_token_attention_decode(q[:, :, max(0, n - 11) : n], **rest)
        assert worst(got, multi_token_attention(q[:, :, :n], **rest)[:, :, -1:]) <= 1e-13


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_two_passes_over_tiles(case, causal):
    given = example(*case, batch=1)
    parts = multi_token_tiled.Parts(*(given[name] for name in PARTS[:4]))
    q, k, v = (given[name][0] for name in "qkv")
    wanted = multi_token_attention(**given | dict(norm=None, gate=None), causal=causal, scale=0.4)[0]
    *_, t = mixed_scores(given["q"], given["k"], given["taps"], given["head_map"], causal, 0.4)
    statistic = torch.logsumexp(t.masked_fill(above_diagonal(t), -math.inf) if causal else t, -1)[0]
    for owned in [(1, 1), (4, 3), (5, 16), (16, 16)]:
        o, log_sum = multi_token_tiled.forward(q, k, v, parts, owned, Traffic(), causal, 0.4)
        assert worst(o, wanted) <= 1e-11 * max(1, wanted.abs().max())
        assert worst(log_sum, statistic) <= 1e-11 * max(1, statistic.abs().max())


def test_bytes_of_one_tile():
    """Count the bytes for N = 4 and a single tile.

    q and k (2 heads of 4 × 2 each) are read once per pass, v and L once. L and O are written once. Elements
    outside the sequence cause no traffic.
    """
    given = example(2, 4, (3, 3), 2, (3, 3), 2, batch=1, d=2)
    parts = multi_token_tiled.Parts(*(given[name] for name in PARTS[:4]))
    traffic = Traffic()
    multi_token_tiled.forward(*(given[name][0] for name in "qkv"), parts, (4, 4), traffic)
    assert (traffic.read, traffic.written) == (2 * (4 * 8 + 8 + 4), 2 * (4 + 8))
