"""Tests of 16-bit latent attention on simulated tensor cores.

There must be no finding, and at most 1.5 times the error of PyTorch eager. On a GPU, every shape is tested.
"""

import copy
import math

import pytest
import torch

from kernels import LatentAttention, latent_attention, latent_attention_decode, reference
from kernels.cases.latent import SHAPES, TINY, Shape, inputs
from kernels.common.launch import RUNNERS
from kernels.latent import tensor_backward, tensor_forward
from kernels.latent.forward import latent_forward
from kernels.reference.latent import latent_scores
from kernels.tensor_cores.launch import aligned, operand
from runners import checked

gpu = pytest.mark.gpu
DTYPES = torch.bfloat16, torch.float16


@pytest.fixture
def two_warps(monkeypatch):
    """Launch forward and backward kernels with two warps per block instead of four.

    A simulated launch takes time in proportion to its threads, and most of these shapes fill one or two
    warps. The tests without this fixture run four warps.
    """
    for module in (tensor_forward, tensor_backward):
        monkeypatch.setattr(module, "WARPS", 2)


def relative(got, wanted):
    return float((got.double() - wanted).norm() / wanted.norm())


def is_right(shape, dtype, device="cpu", scale=None, run=None):
    """Compare O and L with float64. The limit for O's error is PyTorch eager's error in the same dtype."""
    tensors = [x.to(dtype) for x in inputs(shape, device=device)[:5]]
    terms = shape.alpha, shape.window, shape.causal, scale

    def eager(q, *shared):
        before, q = q.split([shape.before, shape.n], 2)
        return reference.latent_attention(q, *shared, *terms, q_before=before)

    wide = [x.double() for x in tensors]
    wanted, scores = eager(*wide), latent_scores(wide[0], wide[1], wide[3], shape.n, *terms)
    o, log_sum = latent_forward(*tensors, *terms, n=shape.n, run=run)
    assert o.dtype == dtype and log_sum.dtype == torch.float32
    assert relative(o, wanted) <= max(1.5 * relative(eager(*tensors), wanted), 1e-6)
    assert (log_sum.double() - torch.logsumexp(scores, -1)).abs().max() <= 0.03


@pytest.mark.parametrize(
    ("shape", "dtype", "scale"),
    [
        pytest.param(Shape(1, 1, 0, 1, 1, 5, 3, 0.7, 1), torch.bfloat16, None, marks=pytest.mark.nightly),
        (Shape(1, 2, 3, 20, 40, 20, 30, 0.7, 9), torch.float16, None),
        (Shape(1, 1, 0, 5, 9, 100, 20, 0.5, 30, False), torch.bfloat16, None),
        (Shape(1, 1, 0, 9, 9, 16, 16, 0.5, 4), torch.float16, -0.3),
        pytest.param(
            Shape(1, 1, 0, 140, 150, 16, 16, 1.0, 65), torch.bfloat16, None, marks=pytest.mark.nightly
        ),
    ],
    ids=str,
)
@pytest.mark.usefixtures("two_warps")
def test_forward(shape, dtype, scale):
    is_right(shape, dtype, scale=scale, run=checked)


@gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [*TINY, *SHAPES], ids=str)
def test_forward_on_a_gpu(shape, dtype):
    is_right(shape, dtype, "cuda")


def decodes(batch, heads, given, keys, d, latent, window, dtype, device="cpu", **options):
    tensors = inputs(Shape(batch, heads, 0, given, keys, d, latent, 0, 0), device=device)[:5]
    tensors = [x.to(dtype) for x in tensors]
    wanted = reference.latent_attention_decode(*(x.double() for x in tensors), -0.6, window)
    limit = relative(reference.latent_attention_decode(*tensors, -0.6, window), wanted)
    got = latent_attention_decode(*tensors, -0.6, window, **options)
    assert got.dtype == dtype and relative(got, wanted) <= max(1.5 * limit, 1e-6)


@pytest.mark.parametrize(
    "sizes", [(1, 2, 3, 5, 7, 5, 3), (1, 17, 1, 140, 4, 24, 0), (2, 3, 2, 70, 64, 100, 2)], ids=str
)
def test_decode(sizes):
    decodes(*sizes, DTYPES[sizes[0] % 2], splits=2, run=checked)


@gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [1, 8, 17, 40])
@pytest.mark.parametrize(("d", "latent"), [(2, 3), (64, 64), (128, 20), (20, 128)])
@pytest.mark.parametrize(("keys", "window"), [(1, 1), (33, 0), (500, 64), (3000, 4000)])
def test_decode_on_a_gpu(dtype, heads, d, latent, keys, window):
    for splits in (None, 3):
        decodes(8, heads, min(keys, max(window, 1)), keys, d, latent, window, dtype, "cuda", splits=splits)


SMALL = Shape(1, 1, 0, 3, 4, 2, 3, 0.5, 2)


@pytest.mark.nightly  # This takes 14 s, and test_gradients compares the same gradients.
def test_gradients_have_the_type_of_their_leaf():
    leaves = [x.bfloat16().requires_grad_() for x in inputs(SMALL)[:5]]
    leaves.append(torch.tensor(0.5, dtype=torch.bfloat16, requires_grad=True))
    wide = [x.detach().double().requires_grad_() for x in leaves]
    d_o = inputs(SMALL)[5].bfloat16()
    wanted = torch.autograd.grad(reference.latent_attention(*wide, 2), wide, d_o.double())
    for got, right in zip(torch.autograd.grad(latent_attention(*leaves, 2), leaves, d_o), wanted):
        assert got.dtype == torch.bfloat16 and got.shape == right.shape and relative(got, right) <= 0.02


def gradients(attend, tensors, terms, dtype):
    """Return the gradients of the 16-bit tensors and of alpha, computed in `dtype` by `attend`."""
    leaves = [x.detach().to(dtype).requires_grad_() for x in tensors[:-1]]
    weight = torch.tensor(terms[0], dtype=dtype, device=leaves[0].device, requires_grad=True)
    before = leaves.pop() if len(leaves) > 5 else None
    o = attend(*leaves, weight, *terms[1:], q_before=before)
    leaves = [*leaves, *[before] * (before is not None), weight]
    return torch.autograd.grad(o, leaves, tensors[-1].to(dtype))


def check_gradients(shape, dtype, scale=None, device="cpu"):
    """Compare all gradients with float64. An error may be 1.5 times eager's.

    The gradient of alpha is a single number, a sum in which most terms cancel. The ratio of two errors says
    little there, so its error may be 0.06.
    """
    q, *shared, d_o = (x.to(dtype) for x in inputs(shape, device=device))
    before, q = q.split([shape.before, shape.n], 2)
    tensors = [q, *shared, *[before] * bool(shape.before), d_o]
    terms = shape.alpha, shape.window, shape.causal, scale
    exact = gradients(reference.latent_attention, tensors, terms, torch.float64)
    of_eager = gradients(reference.latent_attention, tensors, terms, dtype)
    got = gradients(latent_attention, tensors, terms, dtype)
    assert all(g.dtype == dtype and g.shape == x.shape for g, x in zip(got, exact, strict=True))
    for g, e, x in zip(got[:-1], of_eager, exact):
        # without a window, the gradient of the queries before is exactly 0
        assert torch.equal(g.double(), x) or relative(g, x) <= max(1.5 * relative(e, x), 1e-6)
    assert (got[-1] - exact[-1]).abs() <= 0.06 * max(1, exact[-1].abs())


@pytest.mark.parametrize(
    ("shape", "dtype", "scale"),
    [
        (Shape(1, 2, 3, 20, 40, 20, 30, 0.7, 9), torch.bfloat16, -0.3),
        (Shape(1, 1, 3, 9, 21, 20, 100, 0.5, 30, False), torch.float16, None),
        pytest.param(Shape(1, 2, 0, 20, 20, 64, 64, 0.5, 6), torch.float16, None, marks=pytest.mark.nightly),
        pytest.param(
            Shape(2, 1, 3, 9, 21, 20, 100, 0.5, 30, False), torch.bfloat16, None, marks=pytest.mark.nightly
        ),
        pytest.param(
            Shape(1, 1, 0, 140, 150, 64, 64, 0.3, 200), torch.bfloat16, 0.2, marks=pytest.mark.nightly
        ),
        pytest.param(Shape(1, 2, 0, 70, 80, 64, 48, 0.0, 0), torch.float16, None, marks=pytest.mark.nightly),
    ],
    ids=str,
)
@pytest.mark.usefixtures("two_warps")
def test_gradients(shape, dtype, scale):
    check_gradients(shape, dtype, scale)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("d", "latent", "window"), [(64, 64, 64), (64, 64, 0), (24, 40, 900), (128, 128, 16)]
)
def test_gradients_on_the_gpu(dtype, causal, d, latent, window):
    check_gradients(Shape(2, 3, 7, 500, 600, d, latent, 0.5, window, causal), dtype, device="cuda")


@pytest.mark.gpu
def test_gradients_are_equal_from_run_to_run():
    q, *shared, d_o = (x.bfloat16() for x in inputs(Shape(2, 3, 0, 500, 500, 64, 64, 0.5, 64), device="cuda"))
    terms = 0.5, 64, True, None
    first, *others = (gradients(latent_attention, [q, *shared, d_o], terms, torch.bfloat16) for _ in range(3))
    assert all(torch.equal(x, y) for other in others for x, y in zip(first, other, strict=True))


def a_layer(heads=2):
    torch.manual_seed(0)
    return LatentAttention(8, heads, 4, window=3, alpha=0.5), torch.randn(1, 4, 8)


@pytest.mark.nightly  # This takes 16 s, and the test of the layer under autocast covers it as well.
def test_a_layer_in_bfloat16():
    layer, x = a_layer()
    layer, x = layer.bfloat16(), x.bfloat16()
    cache = layer.new_cache(1)
    rows = torch.cat([layer.prefill(x[:, :3], cache), layer.step(x[:, 3:], cache)], 1)
    assert cache.keys.dtype == cache.queries.dtype == rows.dtype == torch.bfloat16
    assert relative(rows, layer(x).double()) <= 0.01


def by_eager(layer, x):
    layer = copy.deepcopy(layer).double()
    layer.attention = reference.latent_attention
    return layer(x.double())


def test_a_layer_under_autocast():
    """Run the layer under autocast: it computes in bfloat16, and gradients have the dtypes of their
    parameters."""
    layer, x = a_layer(heads=1)
    with torch.autocast("cpu", torch.bfloat16):
        o = layer(x)
    assert o.dtype == torch.bfloat16 and relative(o, by_eager(layer, x)) <= 0.02
    o.float().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in layer.parameters())


@pytest.mark.nightly
def test_tokens_of_a_layer_under_autocast():
    """Decode under autocast: the layer computes in bfloat16, and the cache keeps its dtype."""
    layer, x = a_layer()
    with torch.autocast("cpu", torch.bfloat16):
        cache = layer.new_cache(1)
        rows = torch.cat([layer.prefill(x[:, :3], cache), layer.step(x[:, 3:], cache)], 1)
    assert rows.dtype == torch.bfloat16 and cache.keys.dtype == torch.float32
    assert relative(rows, by_eager(layer, x)) <= 0.02


def test_alpha_has_a_type_of_its_own(monkeypatch):
    """Pass alpha with another dtype than q, as in a bfloat16 layer under float16 autocast.

    Launches of the same kernel with equal arguments have equal results, so no launch is simulated.
    """
    launches = []
    monkeypatch.setitem(RUNNERS, "cpu", lambda *launch: launches.append(launch))
    tensors, alpha = [x.half() for x in inputs(SMALL)[:5]], torch.tensor(0.5, dtype=torch.bfloat16)
    for value in (alpha, 0.5):
        latent_attention(*tensors, value, 2)
    first, second = launches
    assert first[:3] == second[:3]  # kernel, grid and block
    torch.testing.assert_close(first[3:], second[3:], rtol=0, atol=0, equal_nan=True)


def test_nan_goes_in_and_comes_out():
    """Put a NaN in a query. It may affect its own row, and the rows in which it is a reciprocal query."""
    q, *shared = (x.bfloat16() for x in inputs(Shape(1, 1, 0, 24, 24, 8, 8, 0, 0))[:5])
    q[0, 0, 9, 3] = math.nan
    nan = torch.isnan(latent_attention(q, *shared, 0.5, 3)[0, 0]).all(-1)
    assert nan.tolist() == [9 <= i <= 11 for i in range(24)]


def test_what_begins_anywhere_is_copied():
    """Pass tensors at any address. Copies of 16 bytes require addresses that are multiples of 16."""
    buffer = torch.arange(1 + 2 * 8, dtype=torch.bfloat16)[1:]
    for x in (buffer.view(1, 1, 2, 8), buffer.view(1, 1, 8, 2).mT):
        for rows in (aligned(x), operand(x, 8)):
            rows = rows.tensor
            assert rows.data_ptr() % 16 == 0 and all(stride % 8 == 0 for stride in rows.stride()[:3])
            assert torch.equal(rows, x)


def test_types_do_not_mix():
    q, k, *rest = (x.bfloat16() for x in inputs(SMALL)[:5])
    with pytest.raises(TypeError) as caught:
        latent_attention(q, k.float(), *rest)
    assert (
        str(caught.value) == "argument k_latent has dtype torch.float32; wanted torch.bfloat16: convert with"
        " k_latent.bfloat16()"
    )
