"""Convolutional attention of one head in PyTorch, for lesson 12: the forward pass, a correct backward pass,
and backward passes with one mistake."""

import math

import torch
from torch.nn.functional import conv2d, pad


def random(rng, *shape):
    return torch.tensor(rng.standard_normal(shape))


def with_zeros(rng, *shape):
    """Return random numbers, with one in six replaced by 0."""
    return random(rng, *shape) * torch.tensor(rng.random(shape) > 1 / 6)


def future(n):
    return torch.ones(n, n, dtype=torch.bool).triu(1)


def convolve(s, w):
    """Return Σ_ab w[a, b] · s[i - P_q + a, j - P_k + b] for s (N, N), with 0 outside."""
    left = (w.shape[1] - 1) // 2
    return conv2d(pad(s, (left, w.shape[1] - 1 - left, w.shape[0] - 1, 0))[None, None], w[None, None])[0, 0]


def forward_scores(q, k, w):
    """Return (S0, T), both (N, N)."""
    s0 = torch.tril(q @ k.T / math.sqrt(q.shape[1]))
    return s0, convolve(s0, w).masked_fill(future(len(q)), -math.inf)


def attend(q, k, v, w):
    """Return (O, L) of causal convolutional attention for one head."""
    _, t = forward_scores(q, k, w)
    return torch.softmax(t, 1) @ v, torch.logsumexp(t, 1)


# Backward passes, and mistakes in them ----------------------------------------------------------------------


def softmax_gradient(p, v, o, d_o):
    return p * (d_o @ v.T - (d_o * o).sum(1, keepdim=True))


def without_d(p, v, o, d_o):
    return p * (d_o @ v.T)


def scatter(d_t, w):
    """Return dS0: each T passes its gradient to the scores that it depends on."""
    (n, _), (c_q, c_k) = d_t.shape, w.shape
    left = (c_k - 1) // 2
    room = d_t.new_zeros(n + c_q - 1, n + c_k - 1)
    for a in range(c_q):
        for b in range(c_k):
            room[a : a + n, b : b + n] += w[a, b] * d_t
    return room[c_q - 1 :, left : left + n]


def gather(d_t, s0, c_q, c_k, left=None):
    """Return dW: for each tap, the sum of its input scores times the gradients of their outputs."""
    n, left = len(d_t), (c_k - 1) // 2 if left is None else left
    room = pad(s0, (left, c_k - 1 - left, c_q - 1, 0))
    return (room.unfold(0, n, 1).unfold(1, n, 1) * d_t).sum((2, 3))


def gather_halos_too(d_t, s0, c_q, c_k, tile=4):
    """Return a faulty dW that counts the halo rows twice. Tiles own 4 rows of T and load the c_q - 1 rows
    below them."""
    d_w = d_t.new_zeros(c_q, c_k)
    for first in range(0, len(d_t), tile):
        loaded = torch.zeros_like(d_t)
        loaded[first : first + tile + c_q - 1] = d_t[first : first + tile + c_q - 1]
        d_w += gather(loaded, s0, c_q, c_k)
    return d_w


def backward_with(softmax=softmax_gradient, transposed=scatter, mask=torch.tril, taps=gather):
    """Return a correct conv_attention_backward, except for the replaced parts."""

    def backward(q, k, v, w, o, log_sum, d_o):
        s0, t = forward_scores(q, k, w)
        p, scale = torch.exp(t - log_sum[:, None]), q.shape[1] ** -0.5
        d_t = softmax(p, v, o, d_o)
        d_s = mask(transposed(d_t, w))
        return scale * d_s @ k, scale * d_s.T @ q, p.T @ d_o, taps(d_t, s0, *w.shape)

    return backward


MISTAKES = {
    "no D": backward_with(softmax=without_d),
    "no mask": backward_with(mask=torch.clone),
    "counted twice": backward_with(taps=gather_halos_too),
    "not transposed": backward_with(transposed=convolve),
}
