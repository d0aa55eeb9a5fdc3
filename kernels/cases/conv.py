"""Test shapes for convolutional attention, and its errors against float64 on each, forward and backward."""

import itertools
from typing import NamedTuple

import torch

from kernels.cases import tolerances
from kernels.conv.backward import conv_backward
from kernels.conv.forward import conv_forward
from kernels.reference import conv_attention, conv_attention_backward, conv_scores

RESULTS = ("O", "L", "dQ", "dK", "dV", "dW")


class Shape(NamedTuple):
    batch: int
    heads: int
    n: int
    d: int
    c_q: int
    c_k: int
    causal: bool

    def __str__(self):
        return (
            f"{self.batch}×{self.heads}×{self.n}×{self.d}, {self.c_q}×{self.c_k},"
            f" {'causal' if self.causal else 'not causal'}"
        )


# Tap sizes: odd and even, square and rectangular, larger than the sequence. Lengths: on both sides of tile
# boundaries. Widths: those that fill a kernel's row, and others.
TAPS = [
    (1, 1),
    (1, 7),
    (7, 1),
    (2, 4),
    (4, 2),
    (3, 3),
    (5, 5),
    (6, 11),
    (11, 6),
    (7, 7),
    (8, 9),
    (15, 15),
    (1, 15),
    (15, 1),
]
LENGTHS = [
    (2, 3, 1, 5),
    (1, 2, 2, 16),
    (2, 1, 7, 3),
    (1, 3, 33, 16),
    (1, 1, 50, 1),
    (1, 2, 58, 64),
    (2, 2, 65, 33),
    (1, 1, 129, 128),
    (1, 2, 200, 20),
]
SHAPES = [
    Shape(*sizes, *taps, causal)
    for (sizes, taps), causal in zip(itertools.product(LENGTHS, TAPS), itertools.cycle([True, False, True]))
]
TINY = [
    Shape(1, 1, 1, 1, 3, 3, True),
    Shape(1, 2, 3, 2, 2, 4, False),
    Shape(1, 1, 6, 4, 3, 3, True),
    Shape(1, 1, 9, 2, 1, 3, True),
    Shape(1, 1, 4, 3, 6, 11, False),
    Shape(1, 1, 6, 2, 15, 5, True),
]  # the last shape needs several tiles of 32 × 32 in the backward pass


def inputs(shape, seed=0, device="cpu"):
    """Return (q, k, v, w, d_o) in float32, with taps scaled so that T is about as large as S0."""
    batch, heads, n, d, c_q, c_k, _ = shape
    generator = torch.Generator().manual_seed(seed)
    q, k, v, d_o = torch.randn(4, batch, heads, n, d, generator=generator).to(device)
    return q, k, v, torch.randn(heads, c_q, c_k, generator=generator).to(device) / (c_q * c_k) ** 0.5, d_o


def reference(q, k, v, w, d_o, causal):
    """Return (O, L, dQ, dK, dV, dW) in float64."""
    q, k, v, w, d_o = (x.double() for x in (q, k, v, w, d_o))
    o, log_sum = conv_attention(q, k, v, w, causal), torch.logsumexp(conv_scores(q, k, w, causal), -1)
    return o, log_sum, *conv_attention_backward(q, k, v, w, o, log_sum, d_o, causal)


def results(q, k, v, w, d_o, causal, **options):
    """Compute (O, L, dQ, dK, dV, dW) with the kernels; `options` go to `conv_forward` and `conv_backward`."""
    o, log_sum = conv_forward(q, k, v, w, causal, **options)
    return o, log_sum, *conv_backward(q, k, v, w, o, log_sum, d_o, causal, **options)


def relative_errors(got, wanted):
    """Return {name: relative error} for (O, L, dQ, ...), in the order of RESULTS."""
    return tolerances.relative_errors(dict(zip(RESULTS, got)), dict(zip(RESULTS, wanted)))


def errors_of(shape, seed=0, device="cpu", **options):
    """Return the relative errors of the kernels on this shape."""
    tensors = inputs(shape, seed, device)
    return relative_errors(results(*tensors, shape.causal, **options), reference(*tensors, shape.causal))
