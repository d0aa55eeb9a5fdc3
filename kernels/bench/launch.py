"""Measure the host time of a launch on this GPU, and the time saved by a CUDA graph.

Run python -m kernels.bench.launch.
"""

import statistics
import time

import numba
import torch
from numba import cuda

from kernels import flash_attention
from kernels.common.device_argument import description
from kernels.common.launch import external_stream, on_gpu

SHAPE, CALLS = (1, 1, 32, 16), 400


@cuda.jit
def sum_of_four(a, b, c, d, out):
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = a[i] + b[i] + c[i] + d[i]


def main():
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, numba {numba.__version__}; microseconds"
        f" of host time, median of 5 × {CALLS} calls"
    )
    tensors = torch.randn(5, 1024, device="cuda").unbind()
    arrays, stream = (
        [*map(cuda.as_cuda_array, tensors)],
        external_stream(0, torch.cuda.current_stream().cuda_stream),
    )
    launch = sum_of_four, (4,), 256
    print(
        f"{'a launch with five tensors, each described anew, as before':60}"
        f" {host(lambda: plain(*launch, *tensors)):8.1f}"
    )
    print(f"{'the same by kernels.common.launch':60} {host(lambda: on_gpu(*launch, *tensors)):8.1f}")
    print(
        f"{'the same by kernels.common.launch, of a shape never seen':60}"
        f" {host(lambda: (description.cache_clear(), on_gpu(*launch, *tensors))):8.1f}"
    )
    print(
        f"{'the same with arrays of Numba, described before':60}"
        f" {host(lambda: sum_of_four[(4,), 256, stream](*arrays)):8.1f}"
    )
    q = torch.randn(SHAPE, device="cuda")
    print(
        f"{f'flash_attention, q of {SHAPE}, checks and output included':60}"
        f" {host(lambda: flash_attention(q, q, q)):8.1f}"
    )
    print(f"{'ten of them, one after another, until the GPU is done':60} {whole(lambda: chain(q)):8.1f}")
    print(f"{'the same ten, captured in a CUDA graph and replayed':60} {whole(captured(q).replay):8.1f}")


def plain(kernel, grid, block, *tensors):
    """Launch a kernel like the default runner, but without its caches."""
    with cuda.gpus[tensors[0].device.index]:
        stream = cuda.external_stream(torch.cuda.current_stream().cuda_stream)
        kernel[grid, block, stream](*[cuda.as_cuda_array(tensor, sync=False) for tensor in tensors])


def chain(q):
    """Apply attention ten times, each time to the previous output."""
    for _ in range(10):
        q = flash_attention(q, q, q)
    return q


def captured(q):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        chain(q)
    return graph


def host(function):
    """Return the median host time of a call in µs, without waiting for the GPU."""
    function()
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(CALLS):
            function()
        times.append((time.perf_counter() - start) / CALLS * 1e6)
    return statistics.median(times)


def whole(function):
    """Return the median time from the call until the GPU has finished, in µs."""
    times = []
    for _ in range(50):
        torch.cuda.synchronize()
        start = time.perf_counter()
        function()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.median(times)


if __name__ == "__main__":
    main()
