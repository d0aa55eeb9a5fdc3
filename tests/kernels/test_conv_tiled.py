"""Tests of convolutional attention in float64: the reference against loops, PyTorch and autograd, and the
tiled version against the reference."""

import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from kernels.reference import conv_attention, conv_attention_backward, conv_scores, conv_tiled, identity_taps
from kernels.reference.tiled import Traffic

SHAPES = [
    (1, 1, 1),
    (5, 3, 3),
    (10, 3, 3),
    (14, 6, 11),
    (11, 4, 2),
    (9, 15, 15),
    (13, 1, 7),
    (13, 7, 1),
    (40, 2, 15),
    (12, 1, 1),
]  # (N, c_q, c_k). With N = 40, tiles of 32 × 32 are several.
SINGLE = 20  # largest N for which tiles of a single score are tested


def worst(got, wanted):
    return (got - wanted).abs().max().item()


def example(n, c_q, c_k, batch=1, heads=1, d=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    q, k, v, d_o = torch.randn(4, batch, heads, n, d, dtype=torch.float64, generator=generator)
    w = torch.randn(heads, c_q, c_k, dtype=torch.float64, generator=generator)
    return q, k, v, w, d_o


def by_loops(q, k, v, w, causal, scale):
    """Compute convolutional attention of one head index by index, from its definition."""
    n, (c_q, c_k) = len(q), w.shape
    left = (c_k - 1) // 2
    s = [[scale * (q[i] @ k[j]) if j <= i or not causal else 0.0 for j in range(n)] for i in range(n)]
    o = torch.zeros_like(q)
    for i in range(n):
        t = torch.full((n,), -math.inf, dtype=q.dtype)
        for j in range(i + 1 if causal else n):
            t[j] = sum(
                w[a, b] * s[i - c_q + 1 + a][j - left + b]
                for a in range(c_q)
                for b in range(c_k)
                if i - c_q + 1 + a >= 0 and 0 <= j - left + b < n
            )
        o[i] = torch.softmax(t, 0) @ v
    return o


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n, c_q, c_k", [(1, 3, 3), (6, 3, 3), (7, 2, 4), (5, 6, 11)])
def test_reference_against_loops(n, c_q, c_k, causal):
    q, k, v, w, _ = example(n, c_q, c_k, batch=2, heads=2)
    got = conv_attention(q, k, v, w, causal, 0.3)
    assert all(
        worst(got[b, h], by_loops(q[b, h], k[b, h], v[b, h], w[h], causal, 0.3)) <= 1e-13
        for b in range(2)
        for h in range(2)
    )


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("c_q, c_k", [(1, 1), (3, 3), (6, 11), (4, 2)])
def test_identity_taps_are_ordinary_attention(c_q, c_k, causal):
    q, k, v, _, _ = example(19, c_q, c_k, batch=2, heads=3)
    wanted = scaled_dot_product_attention(q, k, v, is_causal=causal)
    assert worst(conv_attention(q, k, v, identity_taps(3, c_q, c_k, torch.float64), causal), wanted) <= 1e-14


def test_one_tap_is_a_temperature():
    q, k, v, _, _ = example(9, 1, 1)
    wanted = scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.5 * 0.7)
    assert (
        worst(conv_attention(q, k, v, torch.full((1, 1, 1), 0.7, dtype=torch.float64), scale=0.5), wanted)
        <= 1e-14
    )


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n, c_q, c_k", SHAPES)
def test_backward_by_hand_against_autograd(n, c_q, c_k, causal):
    q, k, v, w, d_o = example(n, c_q, c_k, batch=2, heads=3)
    for leaf in (q, k, v, w):
        leaf.requires_grad_()
    o = conv_attention(q, k, v, w, causal)
    o.backward(d_o)
    with torch.no_grad():
        log_sum = torch.logsumexp(conv_scores(q, k, w, causal), -1)
        got = conv_attention_backward(q, k, v, w, o, log_sum, d_o, causal)
    assert all(worst(g, leaf.grad) <= 1e-11 for g, leaf in zip(got, (q, k, v, w)))


def test_gradcheck():
    q, k, v, w, _ = example(5, 3, 4, batch=1, heads=2, d=3)
    torch.autograd.gradcheck(
        lambda *leaves: conv_attention(*leaves, scale=0.4), [leaf.requires_grad_() for leaf in (q, k, v, w)]
    )


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("n, c_q, c_k", SHAPES)
def test_forward_tiles(n, c_q, c_k, causal):
    q, k, v, w, _ = example(n, c_q, c_k)
    wanted = conv_attention(q, k, v, w, causal, 0.4)[0, 0]
    statistic = torch.logsumexp(conv_scores(q, k, w, causal, 0.4), -1)[0, 0]
    single = [(c_q, c_k)] if n <= SINGLE else []
    for loaded in [*single, (c_q + 3, c_k + 4), (c_q + 40, c_k + 1), (32, 32)]:
        o, log_sum = conv_tiled.forward(q[0, 0], k[0, 0], v[0, 0], w[0], loaded, Traffic(), causal, 0.4)
        assert worst(o, wanted) <= 1e-12 and worst(log_sum, statistic) <= 1e-12


@pytest.mark.parametrize("causal", [True, pytest.param(False, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("n, c_q, c_k", SHAPES)
def test_backward_tiles(n, c_q, c_k, causal):
    q, k, v, w, d_o = example(n, c_q, c_k)
    o, log_sum = (
        conv_attention(q, k, v, w, causal, 0.4),
        torch.logsumexp(conv_scores(q, k, w, causal, 0.4), -1),
    )
    wanted = conv_attention_backward(q, k, v, w, o, log_sum, d_o, causal, 0.4)
    arguments = *(x[0, 0] for x in (q, k, v)), w[0], log_sum[0, 0], (d_o * o).sum(-1)[0, 0], d_o[0, 0]
    single = [(2 * c_q - 1, 2 * c_k - 1)] if n <= SINGLE else []
    for loaded in [*single, (2 * c_q + 2, 2 * c_k + 1), (2 * c_q + 40, 2 * c_k + 3)]:
        d_q, d_w = conv_tiled.backward_queries(*arguments, loaded, Traffic(), causal, 0.4)
        d_k, d_v = conv_tiled.backward_keys(*arguments, loaded, Traffic(), causal, 0.4)
        assert all(worst(got, want[0, 0]) <= 1e-11 for got, want in zip((d_q, d_k, d_v), wanted))
        assert worst(d_w, wanted[3][0]) <= 1e-11


def test_bytes_of_one_tile():
    """Count the bytes for N = 4 and a single tile.

    q, k, v (4 × 2 each) and w (3 × 3) are read once, and O and L are written once. Elements outside the
    sequence cause no traffic.
    """
    q, k, v, w, _ = example(4, 3, 3, d=2)
    traffic = Traffic()
    conv_tiled.forward(q[0, 0], k[0, 0], v[0, 0], w[0], (6, 6), traffic)
    assert (traffic.read, traffic.written) == (3 * 8 + 9, 8 + 4)


def test_a_halo_that_leaves_nothing():
    with pytest.raises(
        ValueError, match=r"a tile of 8 × 8 with a halo of 6 rows and 2 columns owns nothing; load more"
    ):
        conv_tiled.owned((8, 8), conv_tiled.Halo(6, 1, 1), backward=True)
