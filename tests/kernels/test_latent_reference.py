"""Tests of the reference of latent attention against ordinary attention, loops and autograd."""

import itertools
import math

import pytest
import torch

from kernels.cases.latent import TINY, Shape, inputs, reference
from kernels.reference import attention, latent_attention
from kernels.reference.latent import latent_scores

SHAPES = [*TINY[:4], Shape(2, 2, 1, 3, 4, 2, 3, 0.4, 2), Shape(1, 2, 0, 4, 7, 3, 2, 0.6, 3)]


def by_loops(shape, q, k, v, w_q, w_v):
    """Compute the formula one score at a time. Row i of the M queries is at position N_k - M + i."""
    rows, o = shape.before + shape.n, q.new_zeros(shape.batch, shape.heads, shape.n, shape.d)
    for b, h, i in itertools.product(range(shape.batch), range(shape.heads), range(shape.n)):
        p = shape.keys - shape.n + i
        scores = []
        for j in range(p + 1 if shape.causal else shape.keys):
            score = q[b, h, shape.before + i] @ w_q[h] @ k[b, j]
            row = j - (shape.keys - rows)
            if 0 <= p - j < shape.window and row >= 0:
                score = score + shape.alpha * (q[b, h, row] @ w_q[h] @ k[b, p])
            scores.append(score / math.sqrt(shape.latent))
        weights = torch.softmax(torch.stack(scores), 0)
        o[b, h, i] = weights @ v[b, : len(scores)] @ w_v[h]
    return o


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_formula_and_its_gradients(shape):
    """Compare the formula and its gradients, and the log-sum-exp, which has no gradient of its own."""
    *tensors, d_o = (x.double() for x in inputs(shape))
    alpha = torch.tensor(shape.alpha, dtype=torch.float64, requires_grad=True)
    leaves = [x.requires_grad_() for x in tensors]

    def forward(q, *shared):
        before, q = q[:, :, : shape.before], q[:, :, shape.before :]
        return latent_attention(q, *shared, shape.window, shape.causal, q_before=before)

    o = forward(*leaves, alpha)
    wanted = torch.autograd.grad(o, (*leaves, alpha), d_o)
    got = reference(shape, *(x.detach() for x in leaves), d_o)
    assert (o - by_loops(shape, *(x.detach() for x in leaves))).abs().max() <= 1e-13
    assert (got[0] - o).abs().max() <= 1e-14
    assert all((g - w).abs().max() <= 1e-13 for g, w in zip(got[2:], wanted, strict=True))
    assert torch.autograd.gradcheck(forward, (*leaves, alpha))


def test_identities_are_ordinary_attention():
    """Compare alpha = 0 with ordinary latent attention, which it equals for any window."""
    q, k, v, *_ = (x.double() for x in inputs(Shape(2, 3, 0, 6, 6, 4, 4, 0, 0)))
    eye = torch.eye(4, dtype=torch.float64).expand(3, 4, 4)
    wanted = attention(q, k[:, None], v[:, None], causal=True)
    assert (latent_attention(q, k, v, eye, eye) - wanted).abs().max() <= 1e-15
    assert (latent_attention(q, k, v, eye, eye, window=3) - wanted).abs().max() <= 1e-15


def test_expanded_heads_are_ordinary_attention():
    q, k, v, w_q, w_v, _ = (x.double() for x in inputs(Shape(1, 2, 0, 5, 5, 3, 4, 0, 0)))
    wanted = attention(q, k[:, None] @ w_q.mT, v[:, None] @ w_v, causal=True, scale=0.5)
    assert (latent_attention(q, k, v, w_q, w_v) - wanted).abs().max() <= 1e-14


def test_full_reciprocity_is_symmetric():
    """Compare scores (i, j) and (j, i): with alpha = 1 and every key in the band, they are equal except for
    the mask."""
    q, k, _, w_q, *_ = (x.double() for x in inputs(Shape(1, 2, 0, 6, 6, 3, 4, 0, 0)))
    s = latent_scores(q, k, w_q, 6, 1.0, 6, causal=False)
    straight = latent_scores(q, k, w_q, 6, causal=False)
    assert (s - (straight + straight.mT)).tril().abs().max() <= 1e-14


def test_a_key_without_a_query_has_no_reciprocal_term():
    q, k, v, w_q, w_v, _ = (x.double() for x in inputs(Shape(1, 2, 3, 2, 9, 3, 4, 0, 0)))
    last, before = q[:, :, 3:], q[:, :, :3]
    without = latent_attention(last, k, v, w_q, w_v, 0.7, 2)
    assert not torch.equal(without, latent_attention(last, k, v, w_q, w_v, 0.7, 2, q_before=before))
    wanted = latent_attention(last, k, v, w_q, w_v, 0.7, 2, q_before=torch.zeros_like(before))
    assert (without - wanted).abs().max() <= 1e-15


def test_a_nan_stays_within_the_band():
    """Put a NaN in a query. It may affect its own row, and the rows in which it is a reciprocal query."""
    q, *shared = inputs(Shape(1, 1, 0, 9, 9, 4, 4, 0, 0))[:5]
    q[0, 0, 4, 1] = math.nan
    nan = latent_attention(q, *shared, 0.5, 3)[0, 0].isnan().all(-1)
    assert nan.tolist() == [4 <= i <= 6 for i in range(9)]
