"""Tests of convolutional attention with `wgmma`, in the simulator with all checks and on a Hopper GPU.

There must be no finding, and at most 1.5 times the error of PyTorch eager.
"""

import functools
import math

import pytest
import torch
from numpy import float32

from kernels import reference
from kernels.cases.conv import Shape
from kernels.conv.forward import conv_forward
from kernels.conv.hopper_forward import Block, conv_hopper_forward
from kernels.conv.tensor_parts import conv_parts_forward
from kernels.distributed import merged, nothing
from kernels.tensor_cores.launch import HOPPER
from runners import checked
from test_conv_extent import launches_of

simulated = functools.partial(checked, engine="fibers")
SMALL, STAGED = Block(32, 16, 16, 1), Block(32, 32, 8, 1)


def inputs(batch, heads, n, d, taps, dtype, device="cpu"):
    generator = torch.Generator().manual_seed(n)
    q, k, v = (torch.randn(batch, heads, n, d, generator=generator).to(dtype).to(device) for _ in range(3))
    return q, k, v, (torch.randn(heads, *taps, generator=generator) / 7).to(dtype).to(device)


def check(got, log_sum, given, causal):
    """Compare O and L with float64. The limit for O's error is PyTorch eager's error in the dtype of q."""
    wide = [x.double() for x in given]
    wanted, eager = reference.conv_attention(*wide, causal), reference.conv_attention(*given, causal)
    scores = reference.conv_scores(*wide[:2], wide[3], causal)
    assert got.dtype == given[0].dtype and log_sum.dtype == torch.float32
    assert (got.double() - wanted).norm() <= 1.5 * (eager.double() - wanted).norm()
    assert (log_sum.double() - torch.logsumexp(scores, -1)).abs().max() <= 0.02


@pytest.mark.parametrize(
    ("n", "d", "taps", "causal", "dtype", "block"),
    [
        (12, 64, (7, 7), True, torch.bfloat16, STAGED),
        (20, 20, (2, 11), False, torch.float16, SMALL),
        pytest.param(150, 64, (7, 7), True, torch.float16, SMALL, marks=pytest.mark.nightly),
        pytest.param(140, 64, (11, 11), True, torch.float16, STAGED, marks=pytest.mark.nightly),
        pytest.param(70, 128, (6, 11), True, torch.bfloat16, None, marks=pytest.mark.nightly),
        pytest.param(20, 64, (15, 15), True, torch.bfloat16, None, marks=pytest.mark.nightly),
        pytest.param(33, 64, (1, 1), False, torch.float16, None, marks=pytest.mark.nightly),
    ],
)
def test_in_the_simulator(n, d, taps, causal, dtype, block):
    given = inputs(1, 1, n, d, taps, dtype)
    scale = float32(1 / math.sqrt(d))
    check(*conv_hopper_forward(*given, causal, scale, simulated, block), given, causal)


@pytest.mark.parametrize(
    ("n", "d", "taps", "causal", "dtype", "block"),
    [
        (12, 20, (2, 11), True, torch.float16, SMALL),
        pytest.param(20, 20, (11, 2), False, torch.bfloat16, SMALL, marks=pytest.mark.nightly),
        pytest.param(150, 64, (7, 7), True, torch.float16, SMALL, marks=pytest.mark.nightly),
    ],
)
def test_pieces_in_the_simulator(n, d, taps, causal, dtype, block):
    """Merge the results of every pair of two chunks of a sequence."""
    q, k, v, w = given = inputs(1, 1, n, d, taps, dtype)
    results = {}
    for own, keys, rows, columns, extent in launches_of(Shape(1, 1, n, d, *taps, causal), 2):
        piece = [x.contiguous() for x in (q[:, :, rows], k[:, :, columns], v[:, :, keys])]
        options = {"run": simulated, "block": block}
        part = conv_parts_forward(*piece, w, causal, float32(1 / math.sqrt(d)), extent, **options)
        assert part[0].dtype == torch.float32
        results[own.start] = merged([results.get(own.start, nothing(q[:, :, own])), part])
    o, log_sum = (torch.cat(parts, 2) for parts in zip(*results.values()))
    check(o.to(dtype), log_sum, given, causal)


def test_a_nan_reaches_the_rows_that_see_it():
    """Test one head with a NaN in a query, and one with a NaN in a key."""
    q, k, v, w = inputs(1, 2, 12, 64, (3, 3), torch.bfloat16)
    q[0, 0, 3, 7] = math.nan
    k[0, 1, 8, 7] = math.nan
    o, log_sum = conv_hopper_forward(q, k, v, w, True, float32(1 / 8), simulated, SMALL)
    nan = o.isnan().all(-1)
    assert torch.equal(nan, o.isnan().any(-1)) and torch.equal(nan, log_sum.isnan())
    assert nan[0].nonzero().tolist() == [[0, 3], [0, 4], [0, 5], [1, 8], [1, 9], [1, 10], [1, 11]]


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("taps", "d", "dtype"),
    [
        ((7, 7), 64, torch.bfloat16),
        ((6, 11), 128, torch.bfloat16),
        ((11, 11), 64, torch.float16),
        *(
            pytest.param(*given, marks=pytest.mark.nightly)
            for given in [
                ((1, 1), 20, torch.bfloat16),
                ((15, 15), 128, torch.float16),
                ((2, 9), 64, torch.bfloat16),
                ((10, 8), 64, torch.bfloat16),
            ]
        ),
    ],
)
def test_on_a_gpu(taps, d, dtype, causal):
    if torch.cuda.get_device_capability() != HOPPER:
        pytest.skip("this GPU has no wgmma")
    for batch, heads, n in ((1, 1, 1), (2, 3, 17), (1, 2, 129), (1, 2, 300), (2, 1, 1000)):
        given = inputs(batch, heads, n, d, taps, dtype, "cuda")
        o, log_sum = conv_forward(*given, causal)
        check(o, log_sum, given, causal)
        again = conv_forward(*given, causal)
        assert torch.equal(o, again[0]) and torch.equal(log_sum, again[1])


@pytest.mark.gpu
def test_the_kernel_is_chosen_by_the_device(monkeypatch):
    if torch.cuda.get_device_capability() != HOPPER:
        pytest.skip("this GPU has no wgmma")
    monkeypatch.setattr("kernels.conv.forward.conv_hopper_forward", lambda *given: "wgmma")
    assert conv_forward(*inputs(1, 1, 5, 64, (3, 3), torch.bfloat16, "cuda")) == "wgmma"
