"""Record the data of lesson 07 on a GPU: print only the JSON of kernels/data/lesson07.json.

python -m kernels.bench.record.lesson07 > lesson07.json
"""

import json
import math
import os
import time
from datetime import date
from importlib.metadata import version
from statistics import median

os.environ["NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS"] = "0"

import torch
from numba import cuda
from numpy import float32

from kernels import attention, flash_attention, warp_attention
from kernels.common.launch import launch

DEVICE = torch.device("cuda")


# The kernels of the lesson ----------------------------------------------------------------------------------


def scale_kernel():
    """Return a new kernel that has not been compiled."""

    @cuda.jit
    def scale(x, factor, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = factor * x[i]

    return scale


def relu(zero):
    @cuda.jit
    def relu_kernel(x, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = max(x[i], zero)

    return relu_kernel


def rms_norm(real):
    """Return the kernel.

    real: float32, or float for the variant that accidentally computes in float64.
    """
    zero, tiny = real(0), real(1e-6)

    @cuda.jit
    def rms_norm_kernel(x, gain, out):
        i = cuda.grid(1)
        if i < x.shape[0]:
            total = zero
            for c in range(x.shape[1]):
                total += x[i, c] ** 2
            mean = total / real(x.shape[1])
            for c in range(x.shape[1]):
                out[i, c] = gain[c] * x[i, c] / math.sqrt(mean + tiny)

    return rms_norm_kernel


def row_sums(zero):
    @cuda.jit
    def row_sums_kernel(q, k, l):
        i = cuda.grid(1)
        if i < q.shape[0]:
            total = zero
            for j in range(k.shape[0]):
                score = zero
                for c in range(q.shape[1]):
                    score += q[i, c] * k[j, c]
                total += math.exp(score)
            l[i] = total

    return row_sums_kernel


def powers(one):
    @cuda.jit
    def powers_kernel(x, out):
        i = cuda.grid(1)
        if i < out.size:
            number, total = x[i], one
            for _ in range(64):
                for _ in range(64):
                    total = total * number + one
            out[i] = total

    return powers_kernel


@cuda.jit
def five_arguments(q, k, v, scale, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = scale * (q[i] + k[i] + v[i])


# Clocks -----------------------------------------------------------------------------------------------------


def device_us(work, repeats=30):
    """Return the GPU time of one call in microseconds: the median between events, after three warm-ups."""
    for _ in range(3):
        work()
    times = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(1000 * begin.elapsed_time(end))
    return median(times)


def host_us(work, calls=200, rounds=7):
    """Return the host time of one call in microseconds, without waiting for the GPU: the best mean of several
    rounds."""
    work()
    best = math.inf
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(calls):
            work()
        best = min(best, (time.perf_counter() - begin) / calls)
    torch.cuda.synchronize()
    return 1e6 * best


def rounded(value):
    """Return the value rounded to three significant digits, as an integer if it is at least 100."""
    return float(f"{value:.3g}") if value < 100 else round(value)


# What is recorded -------------------------------------------------------------------------------------------


def first_launch_ms():
    kernel, x = scale_kernel(), torch.ones(100, device=DEVICE)
    five_arguments[1, 32](x, x, x, float32(1), torch.empty_like(x))  # initialise the driver
    torch.cuda.synchronize()
    begin = time.perf_counter()
    kernel[1, 128](x, float32(3), torch.empty_like(x))
    torch.cuda.synchronize()
    return rounded(1000 * (time.perf_counter() - begin))


def float64():
    flat = torch.randn(2**26, device=DEVICE)
    rows, gain = torch.randn(2**16, 256, device=DEVICE), torch.randn(256, device=DEVICE)
    q, k = 0.1 * torch.randn(2**16, 64, device=DEVICE), 0.1 * torch.randn(1024, 64, device=DEVICE)
    cases = {
        "relu": ((relu(float32(0)), relu(0.0)), 2**18, 256, (flat, torch.empty_like(flat))),
        "rms_norm": ((rms_norm(float32), rms_norm(float)), 2**9, 128, (rows, gain, torch.empty_like(rows))),
        "row_sums": (
            (row_sums(float32(0)), row_sums(0.0)),
            2**9,
            128,
            (q, k, torch.empty(2**16, device=DEVICE)),
        ),
        "powers": (
            (powers(float32(1)), powers(1.0)),
            2**16,
            256,
            (flat[: 2**24].tanh(), torch.empty(2**24, device=DEVICE)),
        ),
    }
    found = []
    for name, (kernels, grid, block, arguments) in cases.items():
        narrow, wide = (
            device_us(lambda kernel=kernel: launch(kernel, (grid,), block, *arguments)) for kernel in kernels
        )
        found.append(
            {
                "kernel": name,
                "float32_us": rounded(narrow),
                "float64_us": rounded(wide),
                "slower": rounded(wide / narrow),
            }
        )
    return found


def stopwatch_us():
    kernel = row_sums(float32(0))
    q, k = 0.1 * torch.randn(2**16, 64, device=DEVICE), 0.1 * torch.randn(2**14, 64, device=DEVICE)
    l = torch.empty(2**16, device=DEVICE)
    for _ in range(2):
        kernel[2**9, 128](q, k, l)
    torch.cuda.synchronize()
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin = time.perf_counter()
    before.record()
    kernel[2**9, 128](q, k, l)
    after.record()
    launched = time.perf_counter()
    torch.cuda.synchronize()
    done = time.perf_counter()
    return {
        "to the end of the launch": rounded(1e6 * (launched - begin)),
        "to the end of synchronize": rounded(1e6 * (done - begin)),
        "between two events": rounded(1000 * before.elapsed_time(after)),
    }


def numba(kernel, grid, block, *arguments):
    """Launch the kernel on the default stream, as Numba does by default."""
    kernel[grid, block](*arguments)


def unseen_by_kernel(run, wrap):
    """Return the number of wrong results of `scale` when torch's stream waits before it fills x.

    wrap: converts a tensor to a kernel argument.
    """
    kernel, n = scale_kernel(), 100_000
    grid = (-(-n // 256),)
    x, out = torch.zeros(n, device=DEVICE), torch.zeros(n, device=DEVICE)
    arguments = wrap(x), float32(3), wrap(out)
    run(kernel, grid, 256, *arguments)  # compiled
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(200_000_000)  # idle for this number of clock cycles
        x.fill_(1)
        run(kernel, grid, 256, *arguments)
    torch.cuda.synchronize()
    return {"not_seen": (out != 3).sum().item(), "elements": n}


def unseen_by_torch(run):
    """Return the number of sums of `row_sums`, a slow kernel, that are missing from a copy made on torch's
    stream."""
    kernel, n = row_sums(float32(0)), 2**16
    q, k = 0.1 * torch.randn(n, 64, device=DEVICE), 0.1 * torch.randn(1024, 64, device=DEVICE)
    l, seen = torch.zeros(n, device=DEVICE), torch.zeros(n, device=DEVICE)
    run(kernel, (2**9,), 128, q, k, l)  # compiled
    l.zero_()
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        run(kernel, (2**9,), 128, q, k, l)
        seen.copy_(l)
    torch.cuda.synchronize()
    if not (l > 0).all():
        raise AssertionError("row_sums itself is wrong")
    return {"not_seen": (seen == 0).sum().item(), "elements": n}


def wrong_stream():
    def row(reads, kernel_stream, found):
        return {"reads": reads, "kernel_stream": kernel_stream} | found

    return [
        row("scale, a tensor", "default", unseen_by_kernel(numba, lambda tensor: tensor)),
        row("scale, an array wrapped before", "default", unseen_by_kernel(numba, cuda.as_cuda_array)),
        row("scale, a tensor", "PyTorch's", unseen_by_kernel(launch, lambda tensor: tensor)),
        row("PyTorch, what row_sums writes", "default", unseen_by_torch(numba)),
        row("PyTorch, what row_sums writes", "PyTorch's", unseen_by_torch(launch)),
    ]


def launch_us():
    tensors = [torch.ones(1024, device=DEVICE) for _ in range(4)]
    q, k, v, out = tensors
    wrapped = [cuda.as_cuda_array(tensor) for tensor in tensors]
    on_host = [tensor.cpu().numpy() for tensor in tensors]
    one = float32(1)
    found = {
        "numpy arrays": host_us(lambda: five_arguments[8, 128](*on_host[:3], one, on_host[3])),
        "torch tensors": host_us(lambda: five_arguments[8, 128](q, k, v, one, out)),
        "tensors wrapped before": host_us(lambda: five_arguments[8, 128](*wrapped[:3], one, wrapped[3])),
        "kernels.common.launch": host_us(lambda: launch(five_arguments, (8,), 128, q, k, v, one, out)),
    }
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(100):
            launch(five_arguments, (8,), 128, q, k, v, one, out)
    graph.replay()
    torch.cuda.synchronize()
    found["replayed in a CUDA graph"] = (
        host_us(lambda: (graph.replay(), torch.cuda.synchronize()), calls=20) / 100
    )
    return {name: rounded(value) for name, value in found.items()}


def three_way():
    generator = torch.Generator().manual_seed(7)
    q, k, v = torch.randn(3, 1, 2, 70, 16, generator=generator)
    rows = []
    for kernel in (flash_attention, warp_attention):
        for causal in (False, True):
            exact = attention(q.double(), k.double(), v.double(), causal)
            simulated = kernel(q, k, v, causal)
            on_gpu = kernel(q.to(DEVICE), k.to(DEVICE), v.to(DEVICE), causal).cpu()
            rows.append(
                {
                    "kernel": kernel.__name__,
                    "causal": causal,
                    "simulator_reference": far(simulated, exact),
                    "gpu_reference": far(on_gpu, exact),
                    "gpu_simulator": far(on_gpu, simulated),
                    "same_bits_percent": round(100 * (on_gpu == simulated).double().mean().item()),
                }
            )
    return rows


def far(got, wanted):
    return float(f"{(got.double() - wanted.double()).abs().max().item():.1e}")


if __name__ == "__main__":
    print(
        json.dumps(
            {
                "recorded": {
                    "date": date.today().isoformat(),
                    "gpu": torch.cuda.get_device_name(),
                    "versions": (
                        f"numba-cuda {version('numba-cuda')}, torch {torch.__version__}, CUDA"
                        f" {torch.version.cuda}"
                    ),
                },
                "first_launch_ms": first_launch_ms(),
                "float64": float64(),
                "stopwatch_us": stopwatch_us(),
                "wrong_stream": wrong_stream(),
                "launch_us": launch_us(),
                "three_way": three_way(),
            },
            indent=2,
        )
    )
