"""Tests of 16-bit attention on simulated tensor cores.

There must be no finding, and at most 1.5 times the error of PyTorch eager. On a GPU, the most important
shapes are tested.
"""

import math
from types import SimpleNamespace

import pytest
import torch
from numpy import float32

from kernels import (
    ConvAttention,
    conv_attention,
    conv_attention_decode,
    flash_attention,
    reference,
    warp_attention,
)
from kernels.cases import conv as conv_cases
from kernels.cases.conv import SHAPES, TINY
from kernels.common.launch import launch
from kernels.conv.backward import conv_backward
from kernels.conv.forward import conv_forward
from kernels.conv.tensor_backward import conv_tensor_backward
from kernels.conv.tensor_sums import sums_of_rows_launch
from kernels.flash.forward import flash_forward
from kernels.tensor_cores.launch import check_tensor_cores
from runners import checked

DTYPES = [torch.bfloat16, torch.float16]
CPU, GPU = "cpu", pytest.param("cuda", marks=pytest.mark.gpu)


def inputs(shape, taps, dtype, device=CPU, seed=0):
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(shape, generator=generator).to(dtype).to(device) for _ in range(3))
    w = torch.randn(shape[1], *taps, generator=generator).to(dtype).to(device) / 7
    return q, k, v, w


def relative(got, wanted):
    return float((got.double() - wanted).norm() / wanted.norm())


def check(got, log_sum, attend, scores, given, causal):
    """Compare O and L with float64. The limit for O's error is PyTorch eager's error in the dtype of
    `given`."""
    wide = [x.double() for x in given]
    wanted = attend(*wide, causal)
    limit = 1.5 * relative(attend(*given, causal), wanted)
    assert got.dtype == given[0].dtype and log_sum.dtype == torch.float32
    assert relative(got, wanted) <= limit
    largest = (log_sum.double() - torch.logsumexp(scores(*wide, causal), -1)).abs().max()
    assert largest <= 0.02


def outcomes(q, k, v, w, d_o, causal):
    """Return (O, dQ, dK, dV, dW) from PyTorch eager."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v, w)]
    o = reference.conv_attention(*leaves, causal)
    return o.detach(), *torch.autograd.grad(o, leaves, d_o)


def statistics(q, k, v, w, causal):
    """Return (O, L) for a backward pass: on a GPU from the forward kernel, and otherwise from float64, in the
    same types.

    The forward kernel has tests of its own, and its simulation takes a quarter of the time of a test of
    gradients.
    """
    if q.is_cuda:
        return conv_forward(q, k, v, w, causal)
    wide = [x.double() for x in (q, k, v, w)]
    log_sum = torch.logsumexp(conv_scores(*wide, causal), -1)
    return reference.conv_attention(*wide, causal).to(q.dtype), log_sum.float()


def check_gradients(given, causal, warps=8):
    """Compare dQ, dK, dV and dW with float64. Their limits are the errors of PyTorch eager in the dtype of
    `given`."""
    d_o = torch.randn(given[0].shape, generator=torch.Generator().manual_seed(1)).to(given[0])
    _, *right = outcomes(*[x.double() for x in given], d_o.double(), causal)
    _, *eager = outcomes(*given, d_o, causal)
    o, log_sum = statistics(*given, causal)
    scale = float32(1 / math.sqrt(given[0].shape[3]))
    got = conv_tensor_backward(*given, o, log_sum, d_o, causal, scale, (True,) * 4, warps=warps)
    for leaf, mine, limit, wanted in zip(given, got, eager, right, strict=True):
        assert mine.dtype == leaf.dtype and mine.shape == leaf.shape
        assert (mine.double() - wanted).norm() <= 1.5 * (limit.double() - wanted).norm()
    return got


def flash_scores(q, k, v, causal):
    return reference.scores(q, k, causal)


def conv_scores(q, k, v, w, causal):
    return reference.conv_scores(q, k, w, causal)


FLASH = [
    (1, 64, True),
    (70, 20, False),
    (140, 64, True),
    pytest.param(33, 128, False, marks=pytest.mark.nightly),
]
CONV = [
    (1, 64, (7, 7), True),
    pytest.param(36, 64, (7, 7), False, marks=pytest.mark.nightly),
    (70, 20, (7, 7), True),
    pytest.param(140, 20, (7, 7), True, marks=pytest.mark.nightly),
    (33, 64, (1, 1), False),
    pytest.param(20, 64, (10, 8), False, marks=pytest.mark.nightly),
    pytest.param(35, 128, (6, 11), True, marks=pytest.mark.nightly),
    pytest.param(20, 64, (15, 15), True, marks=pytest.mark.nightly),
]


@pytest.mark.parametrize("n, d, causal", FLASH)
def test_flash(n, d, causal):
    dtype = DTYPES[n % 3 == 0]
    given = inputs((1, 2 if n < 30 else 1, n, d), (1, 1), dtype)[:3]
    check(*flash_forward(*given, causal), reference.attention, flash_scores, given, causal)


@pytest.mark.parametrize("n, d, taps, causal", CONV)
def test_conv(n, d, taps, causal):
    dtype = DTYPES[n % 3 == 0]
    given = inputs((1, 2 if n < 30 else 1, n, d), taps, dtype)
    check(*conv_forward(*given, causal), reference.conv_attention, conv_scores, given, causal)


BACKWARD = [  # With two warps, a block has 32 rows of scores, so even few queries need several blocks.
    pytest.param(9, 64, (7, 7), True, 8, marks=pytest.mark.nightly),
    (33, 20, (3, 3), False, 2),
    pytest.param(20, 128, (6, 11), True, 4, marks=pytest.mark.nightly),
    pytest.param(70, 64, (7, 7), True, 4, marks=pytest.mark.nightly),
    pytest.param(60, 64, (2, 11), True, 2, marks=pytest.mark.nightly),
    pytest.param(51, 64, (5, 4), False, 2, marks=pytest.mark.nightly),
    pytest.param(48, 64, (15, 15), False, 4, marks=pytest.mark.nightly),
    pytest.param(48, 64, (15, 15), True, 4, marks=pytest.mark.nightly),
]


@pytest.mark.parametrize("n, d, taps, causal, warps", BACKWARD)
def test_conv_backward(n, d, taps, causal, warps):
    check_gradients(inputs((1, 1, n, d), taps, DTYPES[n % 3 == 0]), causal, warps)


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", TINY, ids=str)
def test_tiny_shapes(shape, dtype):
    """Run tiny shapes: there must be no finding, and only errors of the size of one rounding to 16 bits."""
    *given, d_o = (x.to(dtype) for x in conv_cases.inputs(shape))
    o, log_sum = conv_forward(*given, shape.causal)
    scale = float32(1 / math.sqrt(shape.d))
    rest = d_o, shape.causal, scale, (True,) * 4
    got = o, log_sum, *conv_tensor_backward(*given, o, log_sum, *rest, warps=2)
    errors = conv_cases.relative_errors(got, conv_cases.reference(*given, d_o, shape.causal))
    assert max(errors.values()) <= 8 * torch.finfo(dtype).eps


@pytest.mark.parametrize(
    ("dtype", "causal"),
    [
        (torch.bfloat16, True),
        *(pytest.param(dtype, False, marks=pytest.mark.nightly) for dtype in DTYPES),
        pytest.param(torch.float16, True, marks=pytest.mark.nightly),
    ],
)
def test_of_few_queries_the_sums_of_rows_do_not_feel_that_o_is_rounded(dtype, causal):
    given = inputs((1, 2, 5, 64), (3, 4), dtype)
    q, k, v, w = (x.double() for x in given)
    o, log_sum = conv_forward(*given, causal)
    s = reference.masked_scores(q, k, causal).to(dtype).double()  # The inputs are rounded as in the kernels.
    t = reference.convolve(s, w)
    t = t.masked_fill(reference.above_diagonal(t), -math.inf) if causal else t
    wanted = (torch.softmax(t, -1) * v.sum(-1)[:, :, None]).sum(-1)
    got, d_o = torch.full_like(log_sum, math.nan), torch.ones_like(o)
    launch(*sums_of_rows_launch(*given, o, log_sum, d_o, causal, float32(1 / 8), got), run=checked)
    assert (got - wanted).abs().max() <= 2e-5 < 1e-3 < (o.double().sum(-1) - wanted).abs().max()


def test_one_key_has_a_weight_of_1_whatever_its_score():
    given = inputs((1, 1, 1, 20), (3, 3), torch.bfloat16)
    d_o = torch.randn(1, 1, 1, 20).bfloat16()
    rest = True, float32(0.3), (True,) * 4
    d_q, d_k, d_v, d_w = conv_tensor_backward(*given, *statistics(*given, True), d_o, *rest, warps=1)
    assert not d_q.any() and not d_k.any() and not d_w.any() and torch.equal(d_v, d_o)


@pytest.mark.parametrize("scale", [-0.3, pytest.param(0.0, marks=pytest.mark.nightly)])
def test_scale_of_any_sign(scale):
    q, k, v, w = inputs((1, 1, 9, 64), (3, 3), torch.bfloat16)
    wide = [x.double() for x in (q, k, v, w)]
    wanted = reference.conv_attention(*wide, True, scale)
    assert relative(conv_attention(q, k, v, w, True, scale), wanted) <= 0.01
    wanted = reference.attention(*wide[:3], True, scale)
    assert relative(flash_attention(q, k, v, True, scale), wanted) <= 0.01


def test_nan_goes_in_and_comes_out():
    q, k, v, w = inputs((1, 1, 24, 64), (3, 3), torch.bfloat16)
    q[0, 0, 9, 3] = math.nan
    nan = torch.isnan(conv_attention(q, k, v, w)[0, 0]).all(-1)
    assert nan.tolist() == [9 <= i <= 11 for i in range(24)]
    nan = torch.isnan(flash_attention(q, k, v)[0, 0]).all(-1)
    assert nan.tolist() == [i == 9 for i in range(24)]


@pytest.mark.parametrize(
    ("dtype", "causal"),
    [
        (torch.bfloat16, True),
        (torch.float32, True),
        *(pytest.param(dtype, False, marks=pytest.mark.nightly) for dtype in [*DTYPES, torch.float32]),
        pytest.param(torch.float16, True, marks=pytest.mark.nightly),
    ],
)
def test_a_nan_reaches_what_depends_on_it_and_no_more_than_in_eager(dtype, causal):
    """Put a NaN in q, k, v and d_o, one head each.

    A result must be NaN if it depends on that element, that is, if changing the element changes the result.
    """
    *tensors, w = inputs((1, 4, 12, 16), (3, 3), dtype)
    tensors.append(torch.randn(1, 4, 12, 16).to(dtype))
    here = torch.zeros(4, 1, 4, 12, 16, dtype=torch.bool)
    here[range(4), 0, range(4), 5, 3] = True
    other, broken = ([x.masked_fill(at, y) for x, at in zip(tensors, here)] for y in (0.7, math.nan))
    first, second, eager = (
        outcomes(*[x.double() for x in (q, k, v, w, d_o)], causal)
        for q, k, v, d_o in (tensors, other, broken)
    )
    q, k, v, d_o = broken
    o, log_sum = conv_forward(q, k, v, w, causal)
    small = dict(warps=2) if dtype in DTYPES else dict(size=32)
    backward = conv_tensor_backward if dtype in DTYPES else conv_backward
    gradients = backward(q, k, v, w, o, log_sum, d_o, causal, float32(1 / 4), (True,) * 4, **small)
    for result, got, one, two, theirs in zip("oqkvw", (o, *gradients), first, second, eager):
        allowed = theirs.isnan()
        if result == "k" and dtype in DTYPES:  # Products with bands of taps multiply adjacent NaNs by zero.
            near = torch.nn.functional.max_pool2d(allowed.double().mT, (1, 5), 1, (0, 2))
            allowed = near.mT.bool()
        assert not ((one != two) & ~got.isnan()).any() and not (got.isnan() & ~allowed).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_numbers_give_no_nan(dtype):
    q, k, v, w = inputs((1, 1, 9, 64), (3, 3), dtype)
    assert not torch.isnan(conv_attention(q * 1e4, k * 1e4, v, w)).any()
    assert not torch.isnan(flash_attention(q * 1e4, k * 1e4, v)).any()


def test_gradients_have_the_type_of_their_leaf():
    leaves = [x.requires_grad_() for x in inputs((1, 1, 12, 20), (3, 3), torch.bfloat16)]
    d_o = torch.randn(1, 1, 12, 20).bfloat16()
    wide = [x.detach().double().requires_grad_() for x in leaves]
    wanted = torch.autograd.grad(reference.conv_attention(*wide), wide, d_o.double())
    for got, right in zip(torch.autograd.grad(conv_attention(*leaves), leaves, d_o), wanted):
        assert got.dtype == torch.bfloat16 and relative(got, right) <= 0.02


@pytest.mark.parametrize("under_autocast", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_layer_in_bfloat16(under_autocast):
    torch.manual_seed(0)
    layer = ConvAttention(16, 2, (3, 5))
    layer = layer if under_autocast else layer.bfloat16()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=under_autocast):
        layer.taps += 0.1 * torch.randn_like(layer.taps)
        x = torch.randn(1, 7, 16).to(layer.taps.dtype)
        cache = layer.new_cache(1)
        rows = torch.cat([layer.prefill(x[:, :6], cache), layer.step(x[:, 6:], cache)], 1)
        assert rows.dtype == torch.bfloat16 and cache.keys.dtype == layer.taps.dtype
        assert relative(rows, layer(x).double()) <= 0.01


def test_a_gpu_without_these_tensor_cores_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    q = SimpleNamespace(is_cuda=True, device="cuda:0", dtype=torch.bfloat16)
    with pytest.raises(
        ValueError, match=r"capability 7\.5; wanted 8\.0 or newer, or float32: .*q\.float\(\)"
    ):
        check_tensor_cores(q)


def test_types_do_not_mix():
    q, k, v, w = inputs((1, 1, 4, 8), (3, 3), torch.bfloat16)
    with pytest.raises(
        TypeError,
        match=r"argument k has dtype torch\.float32; wanted torch\.bfloat16: convert with k\.bfloat16\(\)",
    ):
        flash_attention(q, k.float(), v)
    with pytest.raises(
        TypeError, match=r"argument w has dtype torch\.float16; wanted torch\.float32 or torch\.bf"
    ):
        conv_attention(q, k, v, w.half())
    with pytest.raises(
        TypeError, match=r"argument q has dtype torch\.bfloat16; wanted torch\.float32: convert"
    ):
        warp_attention(q, k, v)


DECODE = [
    (300, 64, (7, 7), 2),
    (5, 20, (7, 7), 1),
    pytest.param(140, 128, (6, 11), 1, marks=pytest.mark.nightly),
    pytest.param(260, 64, (15, 15), 3, marks=pytest.mark.nightly),
]


@pytest.mark.parametrize("n, d, taps, splits", DECODE)
def test_decode(n, d, taps, splits):
    dtype = DTYPES[n % 3 == 0]
    q, k, v, w = inputs((1, 2 if n < 30 else 1, n, d), taps, dtype)
    q = q[:, :, -min(taps[0], n) :]
    wanted = reference.conv_attention_decode(*(x.double() for x in (q, k, v, w)))
    got, limit = conv_attention_decode(q, k, v, w, splits=splits), reference.conv_attention_decode(q, k, v, w)
    assert got.dtype == dtype and relative(got, wanted) <= 1.5 * relative(limit, wanted)


def test_decode_reads_a_cache_where_it_is():
    q, k, v, w = inputs((1, 1, 40, 64), (3, 3), torch.bfloat16)
    filled = [x[:, :, :30] for x in (k, v)]
    got = conv_attention_decode(q[:, :, 27:30], *filled, w)
    assert torch.equal(got, conv_attention_decode(q[:, :, 27:30], *(x.contiguous() for x in filled), w))


@pytest.mark.parametrize("dtype, heads, n", [(torch.float32, 2, 6), (torch.float16, 4, 45)])
def test_decode_shares_heads_of_keys(dtype, heads, n):
    """Compare grouped heads, whose keys are not copied, with repeated heads."""
    q, k, v, w = inputs((1, heads, n, 8), (2, 2), dtype)
    shared, taken = [x[:, :1] for x in (k, v)], []

    def run(kernel, grid, block, *arguments):
        taken.extend(x.data_ptr() for x in arguments if isinstance(x, torch.Tensor))
        checked(kernel, grid, block, *arguments)

    got = conv_attention_decode(q[:, :, -2:], *shared, w, enable_gqa=True, run=run)
    wide = [x.double() for x in (q[:, :, -2:], *(x.expand_as(q) for x in shared), w)]
    wanted = reference.conv_attention_decode(*wide)
    assert relative(got, wanted) <= torch.finfo(dtype).eps * 4
    assert {x.data_ptr() for x in shared} <= set(taken)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 17, 100, 257, 1000])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "d, taps", [(64, (7, 7)), (64, (11, 11)), (128, (6, 11)), (80, (15, 15)), (32, (1, 4))]
)
def test_on_a_gpu(dtype, n, causal, d, taps):
    given = inputs((2, 3, n, d), taps, dtype, "cuda", n)
    check(*conv_forward(*given, causal), reference.conv_attention, conv_scores, given, causal)
    check(*flash_forward(*given[:3], causal), reference.attention, flash_scores, given[:3], causal)
    if n < 1000:
        check_gradients(given, causal)


@pytest.mark.gpu
@pytest.mark.nightly
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_errors_over_many_heads(shape, dtype):
    """Limit the error by the root mean square of eager's error over several draws.

    For a single draw, the limit would depend on chance: for a tensor with one element, such as dW of a single
    tap, eager is sometimes exact.
    """
    heads = 16 if shape.n > 65 else 4096 if shape.d == 1 else 64
    given = inputs((shape.batch, heads, shape.n, shape.d), (shape.c_q, shape.c_k), dtype, "cuda")
    d_o = torch.randn_like(given[0])
    wide = [x.double() for x in given]
    o, log_sum = conv_forward(*given, shape.causal)
    scale = float32(1 / math.sqrt(shape.d))
    got = o, *conv_tensor_backward(*given, o, log_sum, d_o, shape.causal, scale, (True,) * 4)
    eager, right = outcomes(*given, d_o, shape.causal), outcomes(*wide, d_o.double(), shape.causal)
    for mine, theirs, wanted in zip(got, eager, right):
        assert (mine.double() - wanted).norm() <= 1.5 * (theirs.double() - wanted).norm()


@pytest.mark.gpu
def test_gradients_are_the_same_from_run_to_run():
    given = inputs((2, 8, 1500, 64), (7, 7), torch.bfloat16, "cuda")
    for first, second in zip(check_gradients(given, True), check_gradients(given, True)):
        assert torch.equal(first, second)
