"""Tests of the backward pass of convolutional attention in bands of queries, for GPUs of compute capability
9.0.

In the simulator, there must be no finding. Errors are at most 1.5 times those of PyTorch eager.
"""

import math
from types import SimpleNamespace

import pytest
import torch
from numpy import float32

from kernels.cases import conv as conv_cases
from kernels.cases.conv import SHAPES, TINY
from kernels.conv import banded_backward
from kernels.conv.banded_backward import BAND, Plan, conv_banded_backward, plan_for, supports
from kernels.conv.banded_scores import owned_rows, parts_of
from kernels.conv.forward import conv_forward
from kernels.conv.tensor_backward import conv_tensor_backward
from test_tensor_cores import DTYPES, inputs, outcomes, statistics

ALL = (True,) * 4
# A block has 128 rows of scores. With one tile per band, few queries need several bands.
SMALL = Plan(warps=4, tiles=1)


def gradients(given, d_o, causal, plan=None, wanted=ALL):
    """Return the wanted gradients."""
    o, log_sum = statistics(*given, causal)
    scale = float32(1 / math.sqrt(given[0].shape[3]))
    return conv_banded_backward(*given, o, log_sum, d_o, causal, scale, wanted, plan=plan)


def check_gradients(given, causal, plan=None):
    """Compare dQ, dK, dV and dW with float64. Their limits are the errors of PyTorch eager in the dtype of
    `given`."""
    d_o = torch.randn(given[0].shape, generator=torch.Generator().manual_seed(1)).to(given[0])
    _, *right = outcomes(*[x.double() for x in given], d_o.double(), causal)
    _, *eager = outcomes(*given, d_o, causal)
    got = gradients(given, d_o, causal, plan)
    for leaf, mine, limit, wanted in zip(given, got, eager, right, strict=True):
        assert mine.dtype == leaf.dtype and mine.shape == leaf.shape
        assert (mine.double() - wanted).norm() <= 1.5 * (limit.double() - wanted).norm()
    return got


@pytest.mark.parametrize(
    "n, d, taps, causal, plan",
    [
        (33, 20, (3, 3), True, SMALL),
        pytest.param(103, 64, (15, 2), True, SMALL, marks=pytest.mark.nightly),  # 100 queries per tile
        pytest.param(30, 64, (4, 10), False, SMALL, marks=pytest.mark.nightly),
        pytest.param(9, 64, (7, 7), True, Plan(8, 1), marks=pytest.mark.nightly),
        pytest.param(250, 64, (7, 7), True, Plan(4, 2), marks=pytest.mark.nightly),
        pytest.param(120, 64, (10, 11), False, SMALL, marks=pytest.mark.nightly),
        pytest.param(130, 128, (6, 11), True, SMALL, marks=pytest.mark.nightly),
        pytest.param(110, 64, (15, 15), True, SMALL, marks=pytest.mark.nightly),
        pytest.param(48, 64, (1, 1), False, SMALL, marks=pytest.mark.nightly),
    ],
)
def test_gradients(n, d, taps, causal, plan):
    check_gradients(inputs((1, 1, n, d), taps, DTYPES[n % 3 == 0]), causal, plan)


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", TINY, ids=str)
def test_tiny_shapes(shape, dtype):
    """Run tiny shapes: there must be no finding, and only errors of the size of one rounding to 16 bits."""
    *given, d_o = (x.to(dtype) for x in conv_cases.inputs(shape))
    got = *conv_forward(*given, shape.causal), *gradients(given, d_o, shape.causal, SMALL)
    errors = conv_cases.relative_errors(got, conv_cases.reference(*given, d_o, shape.causal))
    assert max(errors.values()) <= 8 * torch.finfo(dtype).eps


def test_only_the_wanted_gradients_are_returned(few):
    given = inputs((1, 1, 6, 80), (2, 3), torch.float16)  # wide heads: the kernel with mma.sync
    d_o = torch.ones_like(given[0])
    everything = gradients(given, d_o, True, SMALL)
    for number in few((2, 0), 1):
        wanted = [x == number for x in range(4)]
        got = gradients(given, d_o, True, SMALL, wanted)
        assert [x is not None for x in got] == wanted and torch.equal(got[number], everything[number])


def test_a_nan_reaches_what_depends_on_it_and_no_more_than_in_eager():
    """Put a NaN in q, k, v and d_o, one head each.

    A result must be NaN if it depends on that element, that is, if changing the element changes the result.
    """
    causal = True
    *tensors, w = inputs((1, 4, 12, 16), (3, 3), torch.bfloat16)
    tensors.append(torch.randn(1, 4, 12, 16).bfloat16())
    here = torch.zeros(4, 1, 4, 12, 16, dtype=torch.bool)
    here[range(4), 0, range(4), 5, 3] = True
    other, broken = ([x.masked_fill(at, y) for x, at in zip(tensors, here)] for y in (0.7, math.nan))
    first, second, eager = (
        outcomes(*[x.double() for x in (q, k, v, w, d_o)], causal)[1:]
        for q, k, v, d_o in (tensors, other, broken)
    )
    *given, d_o = broken[:3] + [w] + broken[3:]
    for result, got, one, two, theirs in zip(
        "qkvw", gradients(given, d_o, causal, SMALL), first, second, eager
    ):
        allowed = theirs.isnan()
        if result == "k":  # Products with bands of taps multiply adjacent NaNs by zero.
            near = torch.nn.functional.max_pool2d(allowed.double().mT, (1, 5), 1, (0, 2))
            allowed = near.mT.bool()
        assert not ((one != two) & ~got.isnan()).any() and not (got.isnan() & ~allowed).any()


def test_one_key_has_a_weight_of_1_whatever_its_score():
    given = inputs((1, 1, 1, 20), (3, 3), torch.bfloat16)
    d_o = torch.randn(1, 1, 1, 20).bfloat16()
    d_q, d_k, d_v, d_w = gradients(given, d_o, True, SMALL)
    assert not d_q.any() and not d_k.any() and not d_w.any() and torch.equal(d_v, d_o)


@pytest.mark.parametrize(
    "sequences, n, taps", [(64, 4096, (11, 11)), (64, 2048, (7, 7)), (64, 4096, (6, 11)), (8, 300, (1, 1))]
)
def test_a_plan_fills_the_gpu_within_the_scratch_buffer(sequences, n, taps):
    plan = plan_for(sequences, n, *taps, True, 132)
    tiles = -(-n // owned_rows(taps[0], plan.warps))
    assert sequences * plan.tiles * plan.warps * 32 * parts_of(n, *taps) * 32 <= BAND
    assert plan.tiles == tiles or sequences * plan.tiles >= 120


def test_other_gpus_and_long_sequences_of_few_heads_take_the_other_pass(monkeypatch):
    monkeypatch.setattr(banded_backward, "multiprocessors", lambda device: 132)
    w = torch.empty(8, 7, 7)
    monkeypatch.setattr(banded_backward, "capability", lambda device: (8, 0) if device == "old" else (9, 0))
    for device, heads, n, wanted in (
        ("old", 64, 4096, False),
        ("new", 64, 4096, True),
        ("new", 8, 300, True),
        ("new", 8, 2**17, False),
    ):
        q = SimpleNamespace(is_cuda=True, device=device, shape=(1, heads, n, 64))
        assert supports(q, w, True) == wanted


# On a GPU ---------------------------------------------------------------------------------------------------


@pytest.fixture
def hopper():
    if torch.cuda.get_device_capability() != banded_backward.HOPPER:
        pytest.skip("this pass takes a GPU of compute capability 9.0")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 17, 100, 257, 700])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "d, taps", [(64, (7, 7)), (64, (11, 11)), (128, (6, 11)), (80, (15, 15)), (32, (1, 4))]
)
def test_on_a_gpu(hopper, dtype, n, causal, d, taps):
    given = inputs((2, 3, n, d), taps, dtype, "cuda", n)
    first = check_gradients(given, causal)
    # several bands; then the same from run to run
    bands = plan_for(6, n, *taps, True, 132)._replace(tiles=1)
    for one, two in zip(check_gradients(given, causal, bands), check_gradients(given, causal, bands)):
        assert torch.equal(one, two)
    assert all(torch.equal(one, two) for one, two in zip(first, check_gradients(given, causal)))


@pytest.mark.gpu
@pytest.mark.nightly
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_errors_over_many_heads(hopper, shape, dtype):
    """Limit the error by the root mean square of eager's error over several draws, as in
    `test_tensor_cores`."""
    heads = 16 if shape.n > 65 else 4096 if shape.d == 1 else 64
    given = inputs((shape.batch, heads, shape.n, shape.d), (shape.c_q, shape.c_k), dtype, "cuda")
    d_o = torch.randn_like(given[0])
    got = gradients(given, d_o, shape.causal)
    _, *eager = outcomes(*given, d_o, shape.causal)
    _, *right = outcomes(*[x.double() for x in given], d_o.double(), shape.causal)
    for mine, theirs, wanted in zip(got, eager, right):
        assert (mine.double() - wanted).norm() <= 1.5 * (theirs.double() - wanted).norm()


@pytest.mark.gpu
def test_both_passes_agree_on_a_gpu(hopper):
    given = inputs((2, 8, 1500, 64), (7, 7), torch.bfloat16, "cuda")
    d_o, scale = torch.randn_like(given[0]), float32(1 / 8)
    o, log_sum = conv_forward(*given, True)
    rest = o, log_sum, d_o, True, scale, ALL
    for one, two in zip(conv_banded_backward(*given, *rest), conv_tensor_backward(*given, *rest)):
        assert (one.double() - two.double()).norm() <= 0.01 * two.double().norm()
