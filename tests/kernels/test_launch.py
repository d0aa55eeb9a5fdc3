"""What attention refuses, word for word, and where it launches what it accepts."""

import math

import pytest
import torch

import kernels.launch
from kernels import flash_attention, warp_attention
from kernels.launch import launch, on_gpu, output, simulated, width_for
from sim import KernelBug, Report
from numba import cuda

GOOD = torch.zeros(2, 3, 5, 4)
REFUSED = [
    (dict(q=[1.0]), TypeError, "argument q is a list; wanted a torch.Tensor"),
    (dict(k=torch.zeros(5, 4)), ValueError, "argument k has shape (5, 4); wanted four dimensions, (B, H, N, d)"),
    (dict(v=GOOD.double()), TypeError, "argument v has dtype torch.float64; wanted torch.float32: convert with v.float()"),
    (dict(q=GOOD.half()), TypeError, "argument q has dtype torch.float16; wanted torch.float32: convert with q.float()"),
    (dict(k=GOOD.int()), TypeError, "argument k has dtype torch.int32; wanted torch.float32: convert with k.float()"),
    (dict(q=GOOD.to("meta")), ValueError, "argument q is on meta; wanted cpu or cuda"),
    (dict(k=GOOD.to("meta")), ValueError, "argument k is on meta; wanted cpu or cuda"),
    (
        dict(k=torch.zeros(2, 3, 5, 8)),
        ValueError,
        "argument k has shape (2, 3, 5, 8); wanted (B, H, N_k, d) with B, H and d of q, (2, 3, 5, 4)",
    ),
    (
        dict(k=torch.zeros(1, 3, 5, 4)),
        ValueError,
        "argument k has shape (1, 3, 5, 4); wanted (B, H, N_k, d) with B, H and d of q, (2, 3, 5, 4)",
    ),
    (dict(v=torch.zeros(2, 3, 6, 4)), ValueError, "argument v has shape (2, 3, 6, 4); wanted that of k, (2, 3, 5, 4)"),
    (dict.fromkeys("qkv", torch.zeros(1, 1, 2, 129)), ValueError, "argument q has d = 129; wanted 1 <= d <= 128, as a row must fit a thread"),
    (dict.fromkeys("qkv", torch.zeros(1, 1, 2, 0)), ValueError, "argument q has d = 0; wanted 1 <= d <= 128, as a row must fit a thread"),
    (
        dict.fromkeys("qkv", torch.zeros(1, 65536, 1, 1)),
        ValueError,
        "argument q has B = 1 and H = 65536; wanted at most 65535 each, as they are sizes of the grid",
    ),
    (dict.fromkeys("kv", torch.zeros(2, 3, 0, 4)), ValueError, "argument k has shape (2, 3, 0, 4); wanted at least one key"),
    (dict(scale="big"), TypeError, "argument scale is 'big'; wanted a number, or None for 1/sqrt(d)"),
    (dict(scale=True), TypeError, "argument scale is True; wanted a number, or None for 1/sqrt(d)"),
    (dict(scale=math.nan), ValueError, "argument scale is nan; wanted a finite float32"),
    (dict(scale=1e300), ValueError, "argument scale is 1e+300; wanted a finite float32"),
]


@pytest.mark.parametrize("kernel", [flash_attention, warp_attention])
@pytest.mark.parametrize(("wrong", "error", "message"), REFUSED, ids=[message for *_, message in REFUSED])
def test_refuses(kernel, wrong, error, message):
    with pytest.raises(error) as caught:
        kernel(**dict(q=GOOD, k=GOOD, v=GOOD) | wrong)
    assert str(caught.value) == message


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["k", "v"])
def test_refuses_mixed_devices(name):
    arguments = dict(q=GOOD.cuda(), k=GOOD.cuda(), v=GOOD.cuda()) | {name: GOOD}
    with pytest.raises(ValueError) as caught:
        flash_attention(**arguments)
    assert str(caught.value) == f"argument {name} is on cpu; wanted cuda:0, where q is: move it with {name}.to(q.device)"


def test_the_width_is_the_next_of_four():
    assert [width_for(d) for d in (1, 16, 17, 33, 64, 65, 128)] == [16, 16, 32, 64, 64, 128, 128]


# Where a launch goes ----------------------------------------------------------------------------------------------


@cuda.jit
def fill(out, number):
    """out = number, one element a thread."""
    out[cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x] = number


def test_a_cpu_tensor_is_simulated():
    out = output((6,), like=torch.zeros(1))
    assert out.isnan().all()
    launch(fill, (2, 1, 1), 3, out, 7.0)
    assert out.tolist() == [7] * 6


def test_the_runner_may_be_given():
    calls = []
    launch(fill, (2, 1, 1), 3, "out", 7.0, run=lambda *call: calls.append(call))
    assert calls == [(fill, (2, 1, 1), 3, "out", 7.0)]


def test_an_empty_grid_runs_nothing():
    launch(fill, (0, 1, 1), 3, "out", 7.0, run=lambda *call: pytest.fail("it ran"))


def test_a_bug_is_raised_or_reported():
    """Six threads, five elements."""
    with pytest.raises(KernelBug, match="^out-of-bounds: out"):
        launch(fill, (2, 1, 1), 3, torch.zeros(5), 7.0)
    report = simulated(fill, (2, 1, 1), 3, torch.zeros(5), 7.0, on_finding="report")
    assert isinstance(report, Report) and [finding.kind for finding in report.findings] == ["out-of-bounds"]


def test_the_device_decides_who_launches():
    assert kernels.launch.RUNNERS == {"cpu": simulated, "cuda": on_gpu}


@pytest.mark.gpu
def test_a_launch_is_on_the_current_stream_and_can_be_captured():
    q = torch.randn(1, 2, 70, 16, device="cuda")
    wanted = flash_attention(q, q, q)  # compiles, which a capture does not allow
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = flash_attention(q, q, q)
    q.copy_(torch.randn_like(q))
    graph.replay()
    assert torch.equal(got, flash_attention(q, q, q)) and not torch.equal(got, wanted)
