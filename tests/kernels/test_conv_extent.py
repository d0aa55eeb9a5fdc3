"""Tests of convolutional attention by chunks with halos: one launch per pair of chunks, followed by a
merge."""

import itertools
import math

import pytest
import torch
from numpy import float32

from kernels.cases.conv import Shape, inputs, reference, relative_errors
from kernels.cases.tolerances import within_tolerance
from kernels.common.extent import Extent
from kernels.common.launch import simulated
from kernels.conv.backward import conv_backward
from kernels.conv.decode import conv_decode
from kernels.conv.forward import conv_forward
from kernels.distributed import merged, nothing
from kernels.reference import conv_attention

SHAPES = [
    (Shape(1, 2, 9, 4, 3, 4, True), 2),
    (Shape(1, 1, 33, 5, 6, 11, True), 3),
    (Shape(1, 1, 70, 16, 15, 15, True), 4),
    (Shape(1, 1, 20, 3, 11, 6, False), 5),
    pytest.param(Shape(1, 1, 9, 4, 4, 3, True), 9, marks=pytest.mark.nightly),  # 243 launches
    (Shape(1, 1, 130, 8, 7, 7, True), 2),
]


def strictly(*launch):
    """Return a runner that simulates launches and fails on any finding, including warnings."""
    report = simulated(*launch, engine="native")
    assert not report.findings, report.findings


def pieces(n, count):
    """Return [(first, last)] for n tokens divided into `count` chunks."""
    borders = [round(i * n / count) for i in range(count + 1)]
    return list(itertools.pairwise(borders))


def launches_of(shape, count):
    """Return (owned queries, owned keys, rows of q, rows of k, extent) of every pair of `count` chunks."""
    left = (shape.c_k - 1) // 2
    launches = []
    for (a, b), (c, e) in itertools.product(pieces(shape.n, count), repeat=2):
        above, before, behind = (
            max(0, a - shape.c_q + 1),
            max(0, c - left),
            min(shape.n, e + shape.c_k - 1 - left),
        )
        launches.append(
            (
                slice(a, b),
                slice(c, e),
                slice(above, b),
                slice(before, behind),
                Extent(a - above, c - before, a - c),
            )
        )
    return launches


def by_pieces(q, k, v, w, d_o, shape, count, **options):
    """Return (O, L, dQ, dK, dV, dW), merged from every pair of `count` chunks."""
    results, launches = {}, launches_of(shape, count)
    for own, keys, rows, columns, extent in launches:
        part = conv_forward(
            q[:, :, rows], k[:, :, columns], v[:, :, keys], w, shape.causal, extent=extent, **options
        )
        results[own.start] = merged([results.get(own.start, nothing(q[:, :, own])), part])
    o, log_sum = (torch.cat(parts, 2) for parts in zip(*results.values()))
    d_q, d_k, d_v, d_w = (torch.zeros_like(x, dtype=torch.float32) for x in (q, k, v, w))
    for own, keys, rows, columns, extent in launches:
        given = (
            q[:, :, rows],
            k[:, :, columns],
            v[:, :, keys],
            w,
            o[:, :, own],
            log_sum[:, :, own],
            d_o[:, :, own],
        )
        gradients = conv_backward(*given, shape.causal, extent=extent, **options)
        for total, gradient in zip((d_q[:, :, rows], d_k[:, :, columns], d_v[:, :, keys], d_w), gradients):
            assert gradient.dtype == torch.float32
            total += gradient
    return o, log_sum, d_q, d_k, d_v, d_w


@pytest.mark.parametrize("shape, count", SHAPES, ids=str)
def test_pieces_make_the_whole(shape, count):
    """Compute every pair of chunks, including those without a visible key.

    A block whose queries see no key once raced with its own clearing of the tile.
    """
    q, k, v, w, d_o = inputs(shape)
    got = by_pieces(q, k, v, w, d_o, shape, count, run=strictly)
    errors = relative_errors(got, reference(q, k, v, w, d_o, shape.causal))
    assert within_tolerance(errors), errors


def with_autograd(q, k, v, w, d_o, causal):
    """Return (O, dQ, dK, dV, dW) from PyTorch eager, as float64."""
    leaves = [x.clone().requires_grad_() for x in (q, k, v, w)]
    o = conv_attention(*leaves, causal)
    return [x.detach().double() for x in (o, *torch.autograd.grad(o, leaves, d_o))]


BFLOAT16, FLOAT16 = torch.bfloat16, torch.float16
ON_TENSOR_CORES = [
    *(
        pytest.param(*given, "cpu", marks=pytest.mark.nightly)
        for given in [
            (Shape(1, 1, 20, 8, 3, 4, True), 2, BFLOAT16),
            (Shape(1, 1, 33, 5, 6, 11, True), 2, FLOAT16),
            (Shape(1, 1, 20, 3, 11, 6, False), 3, FLOAT16),
        ]
    ),
    *(
        pytest.param(*given, "cuda", marks=pytest.mark.gpu)
        for given in [
            (Shape(1, 2, 1000, 64, 7, 7, True), 3, BFLOAT16),
            (Shape(1, 2, 333, 128, 6, 11, True), 2, BFLOAT16),
            (Shape(1, 2, 200, 64, 15, 15, True), 3, FLOAT16),
            (Shape(1, 2, 700, 64, 1, 1, False), 2, BFLOAT16),
        ]
    ),
]


@pytest.mark.parametrize("shape, count, dtype, device", ON_TENSOR_CORES, ids=str)
def test_16_bit_pieces_make_the_whole(shape, count, dtype, device):
    """Compare with float64. The limits are 1.5 times the errors of PyTorch eager in this dtype."""
    given = [x.to(dtype) for x in inputs(shape, device=device)]
    options = {"run": strictly} if device == "cpu" else {}
    o, _, *gradients = by_pieces(*given, shape, count, **options)
    wanted = with_autograd(*(x.double() for x in given), shape.causal)
    eager = with_autograd(*given, shape.causal)
    for mine, limit, right in zip((o, *gradients), eager, wanted, strict=True):
        error, most = (mine.to(dtype).double() - right).norm(), 1.5 * (limit - right).norm()
        assert error <= most, (error, most)


@pytest.mark.parametrize(
    "n, c_q, c_k, count, splits",
    [
        (40, 6, 11, 10, 1),
        *(
            pytest.param(*sizes, marks=pytest.mark.nightly)
            for sizes in [(1, 3, 3, 1, 1), (2, 3, 3, 2, 1), (70, 15, 15, 4, 3)]
        ),
    ],
)
def test_decoding_by_pieces(n, c_q, c_k, count, splits):
    """Decode chunk by chunk. CI runs use sizes and dtypes of other tests, so that only one kernel is
    compiled."""
    q, k, v, w, _ = inputs(Shape(1, 2, n, 5, c_q, c_k, True))
    left, parts = (c_k - 1) // 2, []
    for a, b in pieces(n, count):
        before, behind = max(0, a - left), min(n, b + c_k - 1 - left)
        parts.append(
            conv_decode(
                q[:, :, -c_q:],
                k[:, :, before:behind],
                v[:, :, a:b],
                w,
                float32(5**-0.5),
                a - before,
                n - 1 - a,
                splits,
                strictly,
            )
        )
    wanted = reference(q, k, v, w, q, True)[0][:, :, -1:]
    assert (merged(parts)[0] - wanted).abs().max() <= 1e-5


@pytest.mark.parametrize(
    "extent, said",
    [
        ((3, 0, 0), "first_query = 3; wanted a row of q, of which there are 3"),
        ((0, 2, 0), "first_key = 2; wanted 0 to 1"),
        ((0, 0), "wanted an Extent of three integers"),
        ((0, 0, 0.5), "wanted an Extent of three integers"),
    ],
)
def test_an_extent_that_does_not_fit(extent, said):
    q, k, v, w, _ = inputs(Shape(1, 1, 3, 2, 3, 3, True))
    with pytest.raises((TypeError, ValueError), match=said):
        conv_forward(q, k, v[:, :, 1:], w, extent=extent)


@pytest.mark.parametrize("size", [16, 40, 128, None])
def test_a_size_of_tiles_that_there_is_not(size):
    q, k, v, w, d_o = inputs(Shape(1, 1, 3, 2, 3, 3, True))
    with pytest.raises(ValueError, match=f"argument size is {size}; wanted one of 32, 64"):
        conv_forward(q, k, v, w, size=size)
    with pytest.raises(ValueError, match="wanted one of 32, 64"):
        conv_backward(q, k, v, w, q, q[..., 0], d_o, size=size)


@pytest.mark.parametrize("dtype", [torch.float32, BFLOAT16])
def test_queries_that_see_no_key(dtype):
    q, k, v, w, _ = (x.to(dtype) for x in inputs(Shape(1, 1, 6, 4, 3, 3, True)))
    o, log_sum = conv_forward(q[:, :, :2], k[:, :, 3:], v[:, :, 4:], w, extent=Extent(0, 1, -4), run=strictly)
    assert (o == 0).all() and (log_sum == -math.inf).all()
