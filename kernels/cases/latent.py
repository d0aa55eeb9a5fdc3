"""Test shapes for latent attention, and its errors against float64 on each, forward and backward."""

import itertools
from typing import NamedTuple

import torch

from kernels.cases import tolerances
from kernels.common.arguments import MAX_HEAD_DIM
from kernels.common.splits import MERGING_WARPS
from kernels.common.tiles import GROUP
from kernels.latent.backward import latent_backward
from kernels.latent.decode import heads_in_a_block, latent_attention_decode
from kernels.latent.forward import latent_forward
from kernels.latent.tiles import COLUMNS, WEIGHTS, sizes_for
from kernels.reference import latent_tiled
from kernels.reference.latent import latent_attention_backward, latent_scores
from kernels.reference.tiled import Traffic

RESULTS = ("O", "L", "dQ", "dK", "dV", "dW_q", "dW_v", "dalpha")


class Shape(NamedTuple):
    batch: int
    heads: int
    before: int  # number of queries used only for the reciprocal terms of their keys
    n: int  # queries
    keys: int
    d: int
    latent: int
    alpha: float
    window: int
    causal: bool = True

    def __str__(self):
        return (
            f"{self.batch}×{self.heads}×({self.before}+{self.n}:{self.keys})×{self.d}, L={self.latent},"
            f" alpha={self.alpha}, window={self.window}, {'causal' if self.causal else 'not causal'}"
        )


# Lengths: on both sides of tile boundaries, with and without keys before the queries. Windows: none, one,
# odd, even, wider than a tile, wider than the sequence. Widths: those that fill a kernel's row, and others.
LENGTHS = [
    (2, 3, 0, 1, 1),
    (1, 2, 0, 1, 9),
    (1, 16, 0, 7, 7),
    (2, 1, 3, 5, 40),
    (1, 2, 0, 33, 33),
    (1, 3, 20, 31, 70),
    (2, 2, 0, 64, 100),
    (1, 1, 0, 130, 130),
]
TERMS = [(0.0, 0), (0.7, 1), (-0.5, 7), (0.3, 20), (1.0, 65), (0.0, 5), (0.4, 1000), (-1.0, 2)]
WIDTHS = [(5, 3), (16, 16), (32, 64), (64, 20), (1, 33), (128, 16), (40, 128), (64, 64)]
SHAPES = [
    Shape(*lengths, *WIDTHS[(place + turn) % 8], *terms, causal=(place + 3 * turn) % 4 != 0)
    for (turn, lengths), (place, terms) in itertools.product(enumerate(LENGTHS), enumerate(TERMS))
] + [Shape(1, 2, 0, 50, 50, 128, 128, 0.5, 9), Shape(2, 1, 6, 20, 50, 100, 128, 0.5, 30)]
TINY = [
    Shape(1, 1, 0, 1, 1, 1, 1, 0.5, 1),
    Shape(1, 2, 0, 3, 3, 2, 3, 0.7, 2),
    Shape(1, 1, 2, 3, 9, 3, 2, -0.5, 4),
    Shape(1, 1, 0, 4, 6, 2, 2, 0.3, 50, False),
    Shape(1, 1, 0, 35, 35, 1, 1, 0.3, 3),
]


def inputs(shape, seed=0, device="cpu", generator=None):
    """Return (q, k_latent, v_latent, w_q, w_v, d_o) in float32, with scores of about 1.

    q includes the queries before the first output row.
    """
    s, generator = shape, generator or torch.Generator().manual_seed(seed)

    def normal(*sizes, over=1):
        return torch.randn(*sizes, generator=generator).to(device) / over**0.5

    return (
        normal(s.batch, s.heads, s.before + s.n, s.d),
        normal(s.batch, s.keys, s.latent),
        normal(s.batch, s.keys, s.latent),
        normal(s.heads, s.d, s.latent, over=s.d),
        normal(s.heads, s.latent, s.d, over=s.latent),
        normal(s.batch, s.heads, s.n, s.d),
    )


def reference(shape, q, k, v, w_q, w_v, d_o):
    """Return (O, L, dQ, dK, dV, dW_q, dW_v, dα) in float64."""
    q, k, v, w_q, w_v, d_o = (x.double() for x in (q, k, v, w_q, w_v, d_o))
    terms = shape.alpha, shape.window, shape.causal
    s = latent_scores(q, k, w_q, shape.n, *terms)
    o, log_sum = torch.softmax(s, -1) @ (v[:, None] @ w_v), torch.logsumexp(s, -1)
    return o, log_sum, *latent_attention_backward(q, k, v, w_q, w_v, o, log_sum, d_o, *terms)


def results(shape, q, k, v, w_q, w_v, d_o, run=None, **options):
    """Compute (O, L, dQ, dK̃, dṼ, dW_q, dW_v, dα) with the kernels; `options` go to `latent_backward`."""
    terms = shape.alpha, shape.window, shape.causal
    o, log_sum = latent_forward(q, k, v, w_q, w_v, *terms, n=shape.n, run=run)
    return o, log_sum, *latent_backward(q, k, v, w_q, w_v, o, log_sum, d_o, *terms, run=run, **options)


def relative_errors(got, wanted):
    """Return {name: relative error} for (O, L, dQ, ...), in the order of RESULTS."""
    # dalpha is a single sum over the whole band, whose terms have either sign and may cancel
    least_scales = {"dalpha": 1}
    return tolerances.relative_errors(dict(zip(RESULTS, got)), dict(zip(RESULTS, wanted)), least_scales)


def errors_of(shape, seed=0, device="cpu", **options):
    """Return the relative errors of the kernels on this shape."""
    tensors = inputs(shape, seed, device)
    return relative_errors(results(shape, *tensors, **options), reference(shape, *tensors))


# For kernels.cases.table ------------------------------------------------------------------------------------

TERMS_OF_CASES = 0.5, 9  # alpha, window


def case_inputs(generator, heads, n, d, latent):
    return inputs(Shape(1, heads, 0, n, n, d, latent, *TERMS_OF_CASES), generator=generator)


def forward_case(*tensors, run=None):
    return latent_forward(*tensors[:5], *TERMS_OF_CASES, run=run)


def backward_case(*tensors, run=None):
    """Run the backward pass with O and L from the reference, so that only backward kernels are launched."""
    *tensors, d_o = tensors
    o, log_sum = reference_case(*tensors, d_o)[:2]
    return latent_backward(*tensors, o, log_sum, d_o, *TERMS_OF_CASES, run=run)


def decode_case(q, k, v, w_q, w_v, _, run=None):
    window = TERMS_OF_CASES[1]
    return (latent_attention_decode(q[:, :, -window:], k, v, w_q, w_v, *TERMS_OF_CASES, splits=3, run=run),)


def reference_case(*tensors):
    """Return (O, L, dQ, dK, dV, dW_q, dW_v, dα) in the dtype of the tensors; dα has shape (1,)."""
    *tensors, d_o = tensors
    s = latent_scores(tensors[0], tensors[1], tensors[3], d_o.shape[2], *TERMS_OF_CASES)
    o, log_sum = torch.softmax(s, -1) @ (tensors[2][:, None] @ tensors[4]), torch.logsumexp(s, -1)
    *gradients, d_alpha = latent_attention_backward(*tensors, o, log_sum, d_o, *TERMS_OF_CASES)
    return o, log_sum, *gradients, d_alpha.view(1)


def tiled_case(q, k, v, w_q, w_v, _):
    o, log_sum = latent_tiled.forward(q[0], k[0], v[0], w_q, w_v, *TERMS_OF_CASES, 32, 32, Traffic())
    return o[None], log_sum[None]


def shared_bytes(resident, rows, width):
    """Return the bytes of shared memory of a kernel with `resident` resident tiles, a streamed tile and a
    tile of scores."""
    return 4 * ((resident * rows + COLUMNS) * (width + GROUP) + rows * WEIGHTS)


def forward_shared(d, latent, **_):
    width, rows = sizes_for(d, latent)
    return (shared_bytes(2, rows, width),)


def backward_shared(d, latent, **_):
    width, rows = sizes_for(d, latent)
    return (shared_bytes(3, rows, width),) * 2


def decode_shared(heads, latent, **_):
    """Return the bytes of shared memory of the three decoding launches.

    project   r = W_q k̃ and a partial sum per warp
    split     a tile of heads, a streamed tile and a tile of scores
    merge     a partial sum and l per merging warp, and the merged sum
    """
    width, most = sizes_for(latent)
    rows, row_and_sums = heads_in_a_block(heads, most), (MERGING_WARPS + 1) * MAX_HEAD_DIM
    return 4 * row_and_sums, shared_bytes(1, rows, width), 4 * (row_and_sums + MERGING_WARPS)
