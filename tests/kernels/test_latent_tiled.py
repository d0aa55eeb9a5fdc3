"""Tests of tiled latent attention against the reference, and of its memory traffic."""

import itertools

import pytest
import torch

from kernels.cases.latent import Shape, inputs
from kernels.reference.latent import latent_attention, latent_scores
from kernels.reference.latent_tiled import forward
from kernels.reference.tiled import Traffic


def tiled(shape, tensors, rows, columns, traffic=None):
    q, k, v, *shared = tensors
    terms = shape.alpha, shape.window, rows, columns, traffic or Traffic(), shape.causal
    return forward(q[0], k[0], v[0], *shared, *terms)


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (2, 3), (5, 2), (100, 100)])
@pytest.mark.parametrize(("n", "keys"), [(1, 1), (7, 7), (4, 9)])
def test_every_tile_and_window(rows, columns, n, keys):
    for window, causal in itertools.product([0, 1, 2, 5, 100], [True, False]):
        shape = Shape(1, 2, 0, n, keys, 3, 4, 0.7, window, causal)
        q, k, v, w_q, w_v, _ = (x.double() for x in inputs(shape))
        o, log_sum = tiled(shape, (q, k, v, w_q, w_v), rows, columns)
        wanted = latent_attention(q, k, v, w_q, w_v, 0.7, window, causal)[0]
        sums = torch.logsumexp(latent_scores(q, k, w_q, n, 0.7, window, causal), -1)[0]
        assert (o - wanted).abs().max() <= 1e-13 and (log_sum - sums).abs().max() <= 1e-13


def test_gradients_flow():
    shape = Shape(1, 2, 0, 5, 5, 3, 4, 0.7, 3)
    *tensors, d_o = (x.double() for x in inputs(shape))
    leaves = [x.requires_grad_() for x in tensors]
    got = torch.autograd.grad(tiled(shape, leaves, 2, 3)[0][None], leaves, d_o)
    wanted = torch.autograd.grad(latent_attention(*leaves, 0.7, 3), leaves, d_o)
    assert all((g - w).abs().max() <= 1e-13 for g, w in zip(got, wanted))


def test_what_crosses():
    """Count the traffic of 6 queries in tiles of two, 8 keys in tiles of four, and 2 heads, not causal.

    q and O move once. W_q, W_v and the latents of all keys move once per tile of queries. With a window, the
    latent keys at the tile's own positions move once more.
    """
    for window in (0, 3):
        traffic = Traffic()
        shape = Shape(1, 2, 0, 6, 8, 3, 4, 0.7, window, False)
        tiled(shape, inputs(shape)[:5], 2, 4, traffic)
        projections, latents, own = 2 * (2 * 3 * 4), 2 * 8 * 4, 2 * 4 * (window > 0)
        assert traffic.read == 2 * 6 * 3 + 3 * (projections + latents + own)
        assert traffic.written == 2 * 6 * 3 + 2 * 6
