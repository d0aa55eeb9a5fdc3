"""Tests of flash attention with `wgmma`, in the simulator with all checks and on a Hopper GPU.

There must be no finding, and at most 1.5 times the error of PyTorch eager.
"""

import math

import pytest
import torch
from numpy import float32

from kernels import reference
from kernels.flash.forward import flash_forward, forward
from kernels.flash.hopper_blocks import Block
from kernels.flash.hopper_forward import flash_hopper_forward, flash_hopper_kernel
from kernels.flash.window import EVERYTHING, Window
from kernels.tensor_cores.launch import HOPPER
from runners import checked

SMALL = Block(1, 16, 2, 1, (40, 216))

SKIPPING = Block(2, 32, 3, 1, (40, 232), ordered=True)  # the first group skips two tiles in each turn


def inputs(batch, heads, n, keys, d, dtype, device="cpu"):
    generator = torch.Generator().manual_seed(n)
    return [
        torch.randn(batch, heads, rows, d, generator=generator).to(dtype).to(device)
        for rows in (n, keys, keys)
    ]


def check(got, log_sum, q, k, v, causal):
    """Compare O and L with float64. The limit for O's error is PyTorch eager's error in the dtype of q."""
    wide = [x.double() for x in (q, k, v)]
    wanted, eager = reference.attention(*wide, causal), reference.attention(q, k, v, causal)
    assert got.dtype == q.dtype and log_sum.dtype == torch.float32
    assert (got.double() - wanted).norm() <= 1.5 * (eager.double() - wanted).norm()
    assert (log_sum.double() - torch.logsumexp(reference.scores(*wide[:2], causal), -1)).abs().max() <= 1e-4


def needs_hopper():
    if torch.cuda.get_device_capability() != HOPPER:
        pytest.skip("this GPU has no wgmma")


def in_blocks(count):
    """Return a runner that simulates a launch with this number of blocks."""

    def run(kernel, grid, threads, *arguments):
        checked(kernel, (count,), threads, *arguments, engine="fibers")

    return run


@pytest.mark.parametrize(
    ("heads", "n", "keys", "d", "causal", "dtype", "blocks", "block"),
    [
        (1, 70, 40, 64, True, torch.bfloat16, 2, SMALL),
        (2, 5, 37, 20, False, torch.float16, 1, SMALL),
        pytest.param(2, 70, 37, 128, False, torch.float16, 1, SMALL, marks=pytest.mark.nightly),
        pytest.param(1, 140, 140, 64, True, torch.bfloat16, 1, None, marks=pytest.mark.nightly),
        pytest.param(1, 70, 150, 128, False, torch.float16, 1, None, marks=pytest.mark.nightly),
        (1, 128, 128, 64, True, torch.bfloat16, 1, SKIPPING),
    ],
)
def test_in_the_simulator(heads, n, keys, d, causal, dtype, blocks, block):
    given = inputs(1, heads, n, keys, d, dtype)
    scale = float32(1 / math.sqrt(d))
    check(*flash_hopper_forward(*given, causal, scale, in_blocks(blocks), block), *given, causal)


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_special_values(device):
    """Test one head each with a NaN in a query, a NaN in a key, large scores, and scores of -inf."""
    q, k, v = inputs(1, 4, 9, 9, 64, torch.bfloat16, device)
    q[0, 0, 3, 7] = math.nan
    k[0, 1, 6, 7] = math.nan
    q[0, 2], k[0, 2] = q[0, 2] * 1e15, k[0, 2] * 1e15
    q[0, 3], k[0, 3] = 1, -math.inf
    if device == "cpu":
        o, log_sum = flash_hopper_forward(q, k, v, True, float32(1 / 8), in_blocks(4), SMALL)
    else:
        needs_hopper()
        o, log_sum = flash_hopper_forward(q, k, v, True, float32(1 / 8))
    nan = o.isnan().all(-1)
    assert torch.equal(nan, o.isnan().any(-1)) and torch.equal(nan, log_sum.isnan())
    assert nan[0].nonzero().tolist() == [[0, 3], [1, 6], [1, 7], [1, 8]]
    large = [x[:, 2:3] for x in (q, k, v)]
    wanted = reference.attention(*(x.double() for x in large), True)
    assert torch.allclose(o[:, 2:3].double(), wanted, rtol=2**-8, atol=0)
    assert (o[0, 3] == 0).all() and (log_sum[0, 3] == -math.inf).all()


def test_registers_that_a_block_does_not_have_are_refused():
    with pytest.raises(ValueError, match="80 registers"):
        flash_hopper_kernel(64, "bfloat16", Block(2, 64, 3, 2, (32, 112), 2))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("d", [20, 64, 128])
@pytest.mark.parametrize(
    ("batch", "heads", "n", "keys"),
    [
        *((2, 3, n, n) for n in (1, 17, 100, 129, 257, 1000)),
        *[(1, 2, 77, 500), (2, 3, 300, 70), (1, 1, 5, 1)],
        (1, 150, 400, 400),  # several tiles of queries per block
        (1, 1, 9000, 9000),
    ],
)
def test_on_a_gpu(batch, heads, n, keys, d, causal, dtype):
    needs_hopper()
    given = inputs(batch, heads, n, keys, d, dtype, "cuda")
    o, log_sum = flash_forward(*given, causal)
    check(o, log_sum, *given, causal)
    again = flash_forward(*given, causal)
    assert torch.equal(o, again[0]) and torch.equal(log_sum, again[1])


@pytest.mark.gpu
def test_the_kernel_is_chosen_by_the_device(monkeypatch):
    needs_hopper()
    monkeypatch.setattr("kernels.flash.forward.flash_hopper_forward", lambda *given: "wgmma")
    given = inputs(1, 1, 5, 5, 64, torch.bfloat16, "cuda")
    assert forward(*given, True, float32(1), EVERYTHING, None) == "wgmma"
    assert forward(*given, True, float32(1), Window(2, 2), None) != "wgmma"
