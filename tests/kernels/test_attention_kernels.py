"""Tests of flash_attention and warp_attention against the float64 reference.

They cover difficult inputs, different thread orders, and a GPU if available.
"""

import functools
import itertools
import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from kernels import attention, flash_attention, warp_attention
from kernels.common.launch import simulated
from kernels.flash.forward import flash_forward
from kernels.flash.operators import single_tap_backward
from kernels.flash.warp import warp_forward
from kernels.reference import attention_backward, scores
from runners import native


@functools.wraps(warp_forward)
def compiled_warp_forward(q, *arguments, run=None, **options):
    """Call warp_forward, compiled in the simulator.

    The kernel is compiled once for each width of a row. Interpreting it takes 1 to 7 s for each launch.
    """
    return warp_forward(q, *arguments, run=run or (None if q.is_cuda else native), **options)


FORWARD = pytest.mark.parametrize("forward", [flash_forward, compiled_warp_forward])
ATTENTION = pytest.mark.parametrize("kernel", [flash_attention, warp_attention])
DEVICE = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
CAUSAL = pytest.mark.parametrize("causal", [False, True])
LENGTHS, HEAD_SIZES = (1, 2, 31, 32, 33, 65), (1, 8, 33, 64)


def worst(got, wanted):
    return (got.cpu() - wanted.cpu()).abs().max().item()


def normal(seed, *shapes, device="cpu"):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(device) for shape in shapes]


def right(o, log_sum, q, k, v, causal, scale=None, tolerance=1e-5):
    """Return whether (O, L) match the float64 reference."""
    q, k, v = (tensor.double() for tensor in (q, k, v))
    wanted = torch.logsumexp(scores(q, k, causal, scale), -1)
    return worst(o, attention(q, k, v, causal, scale)) <= tolerance and worst(log_sum, wanted) <= tolerance


# Correct values ---------------------------------------------------------------------------------------------


def sizes():
    """Return every combination of kernel, length, head size and device."""
    for forward, n, d in itertools.product((flash_forward, compiled_warp_forward), LENGTHS, HEAD_SIZES):
        yield pytest.param(forward, n, d, "cuda", marks=pytest.mark.gpu)
        yield (forward, n, d, "cpu")


@pytest.mark.parametrize(("forward", "n", "d", "device"), list(sizes()))
def test_equals_the_oracle(forward, n, d, device):
    causal = (LENGTHS.index(n) + HEAD_SIZES.index(d)) % 2 == 0
    q, k, v = normal(n * d, *[(1, 1, n, d)] * 3, device=device)
    assert right(*forward(q, k, v, causal), q, k, v, causal)


@DEVICE
@FORWARD
@CAUSAL
def test_several_batches_and_heads_and_a_scale(forward, causal, device):
    q, k, v = normal(1, *[(2, 3, 5, 4)] * 3, device=device)
    assert right(*forward(q, k, v, causal, scale=0.7), q, k, v, causal, scale=0.7)


@DEVICE
@FORWARD
@CAUSAL
@pytest.mark.parametrize(("n", "keys"), [(3, 40), (40, 3)])
def test_more_keys_than_queries_and_fewer(forward, causal, n, keys, device):
    q, k, v = normal(2, (1, 1, n, 4), (1, 1, keys, 4), (1, 1, keys, 4), device=device)
    assert right(*forward(q, k, v, causal), q, k, v, causal)


@DEVICE
@FORWARD
def test_the_widest_head(forward, device):
    q, k, v = normal(3, *[(1, 1, 3, 128)] * 3, device=device)
    assert right(*forward(q, k, v), q, k, v, causal=True)


@DEVICE
@ATTENTION
def test_agrees_with_pytorch_on_strided_heads(kernel, device):
    """Pass permuted views of one tensor (B, N, 3, H, d), as a layer computes them."""
    (projected,) = normal(4, (2, 9, 3, 2, 4), device=device)
    q, k, v = projected.permute(2, 0, 3, 1, 4)
    assert not q.is_contiguous()
    assert worst(kernel(q, k, v), scaled_dot_product_attention(q, k, v, is_causal=True)) <= 1e-6


@ATTENTION
@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 0, 3, 4)])
def test_nothing_in_nothing_out(kernel, shape):
    q = torch.zeros(shape)
    assert kernel(q, q, q).shape == shape


@ATTENTION
def test_no_query_no_output(kernel):
    k = torch.zeros(1, 1, 3, 4)
    assert kernel(k[:, :, :0], k, k).shape == (1, 1, 0, 4)


# Difficult inputs -------------------------------------------------------------------------------------------


@DEVICE
@FORWARD
@CAUSAL
@pytest.mark.parametrize("sign", [1, -1])
def test_scores_near_ten_thousand(forward, causal, sign, device):
    """Use scores of 10000 ± a few. float32 resolves them to 0.0005, which limits the accuracy of
    exp(score)."""
    q, k, v = normal(5, *[(1, 1, 33, 8)] * 3, device=device)
    q, k = q / 30, k / 30
    q[..., 0], k[..., 0] = 100, 100 * sign
    o, log_sum = forward(q, k, v, causal, scale=1.0)
    assert log_sum.abs().min().item() > 9900
    assert right(o, log_sum, q, k, v, causal, scale=1.0, tolerance=1e-2)


@DEVICE
@FORWARD
def test_masked_rows_are_zero_and_masked_keys_are_ignored(forward, device):
    """Use scores of -inf, as from a mask stored in k.

    Query 0 sees only masked keys. For later queries, a masked key comes first.
    """
    q, k, v = normal(6, *[(1, 1, 40, 2)] * 3, device=device)
    q[..., 0], k[..., 0], k[..., [0, 5, 33], 0] = 1, 0, -math.inf
    o, log_sum = forward(q, k, v, causal=True)
    assert (o[0, 0, 0].tolist(), log_sum[0, 0, 0].item()) == ([0, 0], -math.inf)
    seen = attention(q, k, v, causal=True)[:, :, 1:]
    assert worst(o[:, :, 1:], seen) <= 1e-5
    # Without the mask, the result differs.
    assert right(o[:, :, 1:], log_sum[:, :, 1:], q[:, :, 1:], k, v, causal=False) is False


@DEVICE
@FORWARD
@CAUSAL
def test_one_query_one_key(forward, causal, device):
    q, k, v = (torch.tensor(x, device=device).view(1, 1, 1, 2) for x in ([1.0, 2.0], [3.0, 4.0], [5.0, 6.0]))
    o, log_sum = forward(q, k, v, causal, scale=1.0)
    assert (o.tolist(), log_sum.tolist()) == ([[[[5, 6]]]], [[[11]]])


@DEVICE
@ATTENTION
def test_nan_is_not_hidden(kernel, device):
    q, k, v = normal(7, *[(1, 1, 3, 2)] * 3, device=device)
    k[0, 0, 1, 0] = math.nan
    assert kernel(q, k, v)[0, 0].isnan().any(dim=1).tolist() == [False, True, True]


# Thread orders ----------------------------------------------------------------------------------------------


@FORWARD
@pytest.mark.parametrize("engine", ["fibers", "threads"])
def test_no_order_of_threads_changes_anything(forward, engine, few):
    """Run several blocks with a partial tile under many seeds.

    No run may report a finding, not even a warning, and all results must be equal bit for bit.
    """
    n = 65 if forward is flash_forward else 5
    q, k, v = normal(8, (1, 1, n, 1), (1, 1, 34, 1), (1, 1, 34, 1))
    reports = []

    def run(*launch, seed):
        reports.append(simulated(*launch, engine=engine, seed=seed, on_finding="report"))

    results = [forward(q, k, v, run=functools.partial(run, seed=seed)) for seed in few(range(20), 4)]
    assert {report.findings for report in reports} == {()}
    assert all(
        torch.equal(got, wanted) for result in results for got, wanted in zip(result, results[0], strict=True)
    )
    assert right(*results[0], q, k, v, causal=True)


# Gradients --------------------------------------------------------------------------------------------------


@DEVICE
@ATTENTION
@CAUSAL
def test_gradients_are_those_of_the_oracle(kernel, causal, device):
    inputs = [tensor.requires_grad_() for tensor in normal(9, *[(2, 1, 5, 3)] * 3, device=device)]
    (d_o,) = normal(10, (2, 1, 5, 3), device=device)
    got = torch.autograd.grad(kernel(*inputs, causal, scale=0.6), inputs, d_o)
    wanted = torch.autograd.grad(
        attention(*(tensor.double() for tensor in inputs), causal, scale=0.6), inputs, d_o.double()
    )
    assert all(worst(g, w) <= 1e-5 for g, w in zip(got, wanted, strict=True))


def test_the_written_out_gradient_is_autograds():
    """Compare the handwritten gradient with autograd's in float64, with more keys than queries."""
    inputs = [t.double().requires_grad_() for t in normal(11, (2, 4, 3), (2, 6, 3), (2, 6, 3))]
    d_o = normal(12, (2, 4, 3))[0].double()
    o = attention(*inputs, causal=True)
    wanted = torch.autograd.grad(o, inputs, d_o)
    log_sum = torch.logsumexp(scores(*inputs[:2], causal=True), -1)
    got = attention_backward(*inputs, o, log_sum, d_o, causal=True)
    assert all(worst(g, w) <= 1e-14 for g, w in zip(got, wanted, strict=True))


@pytest.mark.nightly
def test_the_gradients_by_a_convolution_with_a_single_tap_are_those_of_the_oracle():
    q, k, v, d_o = normal(15, *[(1, 1, 5, 3)] * 4)
    o, log_sum = flash_forward(q, k, v, True, 0.6)
    d_q, d_k, d_v = single_tap_backward(q, k, v, o, log_sum, d_o, True, 0.6, [True, True, False])
    wanted = attention_backward(*(x.double() for x in (q, k, v, o, log_sum, d_o)), True, 0.6)
    assert worst(d_q, wanted[0]) <= 1e-5 and worst(d_k, wanted[1]) <= 1e-5 and d_v.numel() == 0


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("window", [None, (20, 0)])
@pytest.mark.parametrize("n", [3, 17, 256, 700])
def test_errors_of_gradients_are_at_most_those_of_eager(n, window, dtype):
    *leaves, d_o = (x.to(dtype).requires_grad_() for x in normal(n, *[(2, 16, n, 64)] * 4, device="cuda"))
    wide = [x.detach().double().requires_grad_() for x in leaves]
    wanted = torch.autograd.grad(attention(*wide, True, None, window), wide, d_o.double())
    eager = torch.autograd.grad(attention(*leaves, True, None, window), leaves, d_o)
    # the second call is recorded as a graph if it is in plain PyTorch, and the third one replays it
    for _ in range(3):
        got = torch.autograd.grad(flash_attention(*leaves, window=window), leaves, d_o)
        for ours, theirs, exact in zip(got, eager, wanted, strict=True):
            errors = [(x.double() - exact).norm() for x in (ours, theirs)]
            assert not (errors[0] > 1.5 * errors[1] + 1e-6 * exact.norm())


@ATTENTION
def test_no_second_derivative(kernel, without_launches):
    q = torch.ones(1, 1, 2, 1, requires_grad=True)
    (gradient,) = torch.autograd.grad(kernel(q, q, q).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="attention can be differentiated once"):
        gradient.sum().backward()


@ATTENTION
def test_one_operator_for_the_compiler(kernel):
    leaves = [tensor.requires_grad_() for tensor in normal(13, *[(1, 1, 3, 2)] * 3)]
    compiled = torch.compile(lambda *x: kernel(*x) * 2, backend="aot_eager", fullgraph=True)
    got, wanted = (
        torch.autograd.grad(f(*leaves).sum(), leaves) for f in (compiled, lambda *x: kernel(*x) * 2)
    )
    assert all(worst(g, w) <= 1e-6 for g, w in zip(got, wanted))
    name = kernel.__name__.replace("attention", "forward")
    operator = getattr(torch.ops.attention_course, name).default
    for window in ([-1, -1], [1, 0]):
        torch.library.opcheck(operator, (*leaves, True, 0.5, window))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_16_bit_numbers_have_their_type(dtype):
    leaves = [tensor.to(dtype).requires_grad_() for tensor in normal(14, *[(1, 1, 5, 8)] * 3)]
    wide = [leaf.detach().double().requires_grad_() for leaf in leaves]
    got = torch.autograd.grad(flash_attention(*leaves).sum(), leaves)
    wanted = torch.autograd.grad(attention(*wide, causal=True).sum(), wide)
    assert all(g.dtype == dtype and worst(g.double(), w) <= 0.02 for g, w in zip(got, wanted))
