"""Time the attention kernels on this GPU, compared with PyTorch's, and measure the host time of a launch.

Run python -m kernels.bench.attention.
"""

import statistics
import time

import numba
import torch
from torch.nn.functional import scaled_dot_product_attention

from kernels import flash_attention, warp_attention

SHAPES = [(1, 16, 1024, 64), (4, 16, 2048, 32), (4, 16, 2048, 64), (4, 16, 2048, 128), (1, 16, 8192, 64)]


def main():
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, numba {numba.__version__}; float32,"
        " causal; milliseconds, median of 20"
    )
    print(
        f"{'B, H, N, d':>20} {'flash':>9} {'warp':>9} {'PyTorch':>9} {'flash, TFLOP/s':>15}"
        f" {'worst error':>12}"
    )
    for shape in SHAPES:
        q, k, v = torch.randn(3, *shape, device="cuda")
        wanted = scaled_dot_product_attention(q, k, v, is_causal=True)
        error = max(
            (kernel(q, k, v) - wanted).abs().max().item() for kernel in (flash_attention, warp_attention)
        )
        flash, warp = milliseconds(flash_attention, q, k, v), milliseconds(warp_attention, q, k, v)
        own = milliseconds(lambda *qkv: scaled_dot_product_attention(*qkv, is_causal=True), q, k, v)
        print(
            f"{shape!s:>20} {flash:9.3f} {warp:9.3f} {own:9.3f} {operations(*shape) / flash / 1e9:15.2f}"
            f" {error:12.1e}"
        )
    print(
        f"host time of a launch, q of {(1, 1, 32, 16)}:"
        f" {host_microseconds(flash_attention, (1, 1, 32, 16)):.0f} µs"
    )


def operations(batch, heads, n, d):
    """Return the number of multiplications and additions of causal attention."""
    return batch * heads * 4 * d * n * (n + 1) / 2


def milliseconds(function, *arguments):
    """Return the median GPU time of 20 calls, after three warm-up calls."""
    times = []
    for _ in range(23):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        function(*arguments)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[3:])


def host_microseconds(function, shape, calls=200):
    """Return the host time of one call, including checks and allocation, without waiting for the GPU."""
    q = torch.randn(shape, device="cuda")
    function(q, q, q)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        function(q, q, q)
    elapsed = time.perf_counter() - start
    torch.cuda.synchronize()
    return elapsed / calls * 1e6


if __name__ == "__main__":
    main()
