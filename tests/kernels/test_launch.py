"""Tests of the error messages of the attention functions, word for word, and of the launches of valid
calls."""

import math
from threading import Thread

import ml_dtypes
import numpy as np
import pytest
import torch
from numba import cuda

import kernels.common.device_argument
import kernels.common.launch
from kernels import flash_attention, warp_attention
from kernels.common.device_argument import TensorArgument, device_argument, numpy_dtype
from kernels.common.launch import launch, on_gpu, output, simulated, width_for
from sim import KernelBug, Report

GOOD = torch.zeros(2, 3, 5, 4)
REFUSED = [
    (dict(q=[1.0]), TypeError, "argument q is a list; wanted a torch.Tensor"),
    (
        dict(k=torch.zeros(5, 4)),
        ValueError,
        "argument k has shape (5, 4); wanted (B, H, N_k, d) with B = 2, H = 3, d = 4",
    ),
    (
        dict(v=GOOD.double()),
        TypeError,
        "argument v has dtype torch.float64; wanted torch.float32: convert with v.float()",
    ),
    (
        dict(k=GOOD.int()),
        TypeError,
        "argument k has dtype torch.int32; wanted torch.float32: convert with k.float()",
    ),
    (dict(q=GOOD.to("meta")), ValueError, "argument q is on meta; wanted cpu or cuda"),
    (
        dict(k=GOOD.to("meta")),
        ValueError,
        "argument k is on meta; wanted cpu, where q is: move it with k.to(q.device)",
    ),
    (
        dict(k=torch.zeros(2, 3, 5, 8)),
        ValueError,
        "argument k has shape (2, 3, 5, 8); wanted (B, H, N_k, d) with B = 2, H = 3, d = 4",
    ),
    (
        dict(k=torch.zeros(1, 3, 5, 4)),
        ValueError,
        "argument k has shape (1, 3, 5, 4); wanted (B, H, N_k, d) with B = 2, H = 3, d = 4",
    ),
    (
        dict(v=torch.zeros(2, 3, 6, 4)),
        ValueError,
        "argument v has shape (2, 3, 6, 4); wanted (B, H, N_k, d) with B = 2, H = 3, N_k = 5, d = 4",
    ),
    (
        dict.fromkeys("qkv", torch.zeros(1, 1, 2, 129)),
        ValueError,
        "argument q has d = 129; wanted 1 to 128, the widest row of a kernel",
    ),
    (
        dict.fromkeys("qkv", torch.zeros(1, 1, 2, 0)),
        ValueError,
        "argument q has d = 0; wanted 1 to 128, the widest row of a kernel",
    ),
    (
        dict.fromkeys("qkv", torch.zeros(1, 65536, 1, 1)),
        ValueError,
        "argument q has H = 65536; wanted 0 to 65535, a size of the grid",
    ),
    (dict.fromkeys("kv", torch.zeros(2, 3, 0, 4)), ValueError, "argument k has N_k = 0; wanted at least 1"),
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
    assert (
        str(caught.value)
        == f"argument {name} is on cpu; wanted cuda:0, where q is: move it with {name}.to(q.device)"
    )


def test_the_width_is_the_next_of_four():
    assert [width_for(d) for d in (1, 16, 17, 33, 64, 65, 128)] == [16, 16, 32, 64, 64, 128, 128]


# Choice between GPU and simulator ---------------------------------------------------------------------------


@cuda.jit
def fill(out, number):
    """Store `number` in each element of out, one element per thread."""
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
    """Launch six threads on five elements."""
    with pytest.raises(KernelBug, match="^out-of-bounds: out"):
        launch(fill, (2, 1, 1), 3, torch.zeros(5), 7.0)
    report = simulated(fill, (2, 1, 1), 3, torch.zeros(5), 7.0, on_finding="report")
    assert isinstance(report, Report) and [finding.kind for finding in report.findings] == ["out-of-bounds"]


def test_the_device_decides_who_launches():
    assert kernels.common.launch.RUNNERS == {"cpu": simulated, "cuda": on_gpu}


def test_dtypes_are_numpys_or_those_of_ml_dtypes():
    names = {
        torch.float32: "float32",
        torch.int64: "int64",
        torch.bool: "bool",
        torch.float16: "float16",
        torch.complex64: "complex64",
    }
    assert [numpy_dtype(dtype) for dtype in names] == [np.dtype(name) for name in names.values()]
    assert numpy_dtype(torch.bfloat16) == np.dtype(ml_dtypes.bfloat16)


@cuda.jit
def doubled(x, out):
    """Store x + x in out (m, n), with one block per row and one thread per element."""
    i, j = cuda.blockIdx.x, cuda.threadIdx.x
    out[i, j] = x[i, j] + x[i, j]


VIEWS = {
    "whole": lambda x: x,
    "transposed": lambda x: x.T,
    "part": lambda x: x[::2, 1:],
    "row": lambda x: x[3:4],
    "repeated": lambda x: x[:1].expand(6, 6),
    "wanting gradients": lambda x: x.requires_grad_() if x.is_floating_point() else x,
}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int32, torch.int64])
@pytest.mark.parametrize("view", VIEWS)
def test_a_tensor_on_the_gpu_is_seen_as_it_lies(dtype, view):
    x = VIEWS[view](torch.arange(36, dtype=dtype, device="cuda").view(6, 6))
    out = torch.zeros(x.shape, dtype=dtype, device="cuda")
    launch(doubled, (x.shape[0],), x.shape[1], x, out)
    assert torch.equal(out, 2 * x)


@pytest.mark.gpu
def test_an_address_used_again_for_another_shape_is_another_array():
    memory = torch.arange(36.0, device="cuda")
    for shape in (6, 6), (4, 9), (36, 1), (4, 9):
        x, out = memory.view(shape), torch.zeros(shape, device="cuda")
        launch(doubled, (shape[0],), shape[1], x, out)
        assert torch.equal(out, 2 * x)


@pytest.mark.gpu
def test_with_another_numba_cuda_a_launch_is_slower_and_as_right(monkeypatch):
    monkeypatch.setattr(kernels.common.device_argument, "description", lambda *tensor: None)
    x, out = torch.ones(4, 9, device="cuda", requires_grad=True), torch.zeros(4, 9, device="cuda")
    launch(doubled, (4,), 9, x, out)
    assert torch.equal(out, 2 * x)


@pytest.mark.gpu
def test_this_numba_cuda_launches_the_fast_way():
    assert isinstance(device_argument(torch.ones(3, device="cuda")), TensorArgument)


@pytest.mark.gpu
def test_a_launch_waits_for_nothing_and_follows_what_its_stream_did_before():
    out = torch.zeros(6, device="cuda")
    stream = torch.cuda.Stream()
    # The first launch compiles and loads the kernel, because loading it synchronises with the GPU. The second
    # launch follows half a second of work on the stream.
    for cycles in (1, 10**9):
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(cycles)
            out.zero_()
            launch(fill, (2, 1, 1), 3, out, 7.0)
    assert not stream.query()
    stream.synchronize()
    assert out.tolist() == [7] * 6


@pytest.mark.gpu
def test_a_launch_from_another_thread():
    out = torch.zeros(6, device="cuda")
    thread = Thread(target=launch, args=(fill, (2, 1, 1), 3, out, 7.0))
    thread.start()
    thread.join()
    assert out.tolist() == [7] * 6


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs here")
def test_the_device_of_the_tensor_is_the_device_of_the_launch():
    q = torch.randn(1, 2, 70, 16)
    wanted, current = flash_attention(q.cuda(0), q.cuda(0), q.cuda(0)), torch.cuda.current_device()
    got = flash_attention(q.cuda(1), q.cuda(1), q.cuda(1))
    assert got.device == torch.device("cuda", 1) and torch.equal(got.cpu(), wanted.cpu())
    assert torch.cuda.current_device() == current == 0


@pytest.mark.gpu
def test_a_launch_is_on_the_current_stream_and_can_be_captured():
    q = torch.randn(1, 2, 70, 16, device="cuda")
    wanted = flash_attention(q, q, q)  # Compile now, because compilation is not allowed during a capture.
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = flash_attention(q, q, q)
    q.copy_(torch.randn_like(q))
    graph.replay()
    assert torch.equal(got, flash_attention(q, q, q)) and not torch.equal(got, wanted)
