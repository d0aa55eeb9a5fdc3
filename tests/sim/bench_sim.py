"""Benchmark of our simulator against Numba's simulator (NUMBA_ENABLE_CUDASIM=1) on the same kernels: `make
bench-sim`.

It prints a Markdown table with the seconds for Numba's simulator and, for each configuration of our
simulator, the seconds, the speed-up, the nanoseconds per array access, and the additional seconds of the
first launch. The native engine compiles during the first launch, with an empty cache. Times are the best of
several runs after a warm-up. Numba's simulator performs no checks.
"""

import json
import os
import subprocess
import sys
import tempfile
import time

import numpy as np
from numba import cuda, float32

from example_kernels import tiled_matmul

TILE = 16
matmul = tiled_matmul(TILE)
HALVINGS = (128, 64, 32, 16, 8, 4, 2, 1)


@cuda.jit
def block_sum(x, out):
    partial = cuda.shared.array(256, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    partial[t] = x[i] if i < x.shape[0] else 0
    cuda.syncthreads()
    for step in HALVINGS:
        if t < step:
            partial[t] += partial[t + step]
        cuda.syncthreads()
    if t == 0:
        out[cuda.blockIdx.x] = partial[0]


@cuda.jit
def elementwise(x, y, out):
    i = cuda.grid(1)
    if i < out.shape[0]:
        out[i] = x[i] * y[i] + x[i]


def cases():
    """Return [(name, kernel, grid, block, arguments, expected value of the last argument)]."""
    random = np.random.default_rng(0)
    a, b = random.random((2, 64, 64)).astype(np.float32)
    x, y = random.random((2, 4096)).astype(np.float32)
    yield "64x64 matmul, shared memory", matmul, (4, 4), (TILE, TILE), (a, b, np.empty_like(a)), a @ b
    yield "block sum of 4096", block_sum, 16, 256, (x, np.empty(16, np.float32)), x.reshape(16, 256).sum(1)
    yield "element-wise, 4096", elementwise, 16, 256, (x, y, np.empty_like(x)), x * y + x


def seconds(launch, arguments, wanted, runs):
    """Return (time of the fastest of `runs` launches, additional time of the first launch).

    The first launch's result is checked.
    """
    times = []
    for _ in range(runs + 1):
        began = time.perf_counter()
        launch(*arguments)
        times.append(time.perf_counter() - began)
        np.testing.assert_allclose(arguments[-1], wanted, rtol=1e-4)
    return min(times[1:]), times[0] - min(times[1:])


def of_numba():
    """Time Numba's simulator in this process, which must have been started with NUMBA_ENABLE_CUDASIM=1."""
    return [
        seconds(kernel[grid, block], arguments, wanted, runs=1)[0]
        for _, kernel, grid, block, arguments, wanted in cases()
    ]


def of_ours():
    """Return [({configuration: (seconds, additional seconds of the first launch)}, accesses)] for the
    cases."""
    from sim import simulate
    from sim.events import Observer
    from sim.observers import COUNTERS, DEFAULT, Trace

    class Count(Observer):
        def __init__(self):
            self.accesses_seen = 0

        def accesses(self, batch):
            self.accesses_seen += len(batch.address)

    every = (*DEFAULT, *COUNTERS, Trace)
    ways = {
        "fibers, no observers": {"observers": ()},
        "fibers, default observers": {"observers": DEFAULT},
        "fibers, every observer": {"observers": every},
        "threads, default observers": {"observers": DEFAULT, "engine": "threads"},
        "native, no observers": {"observers": (), "engine": "native"},
        "native, default observers": {"observers": DEFAULT, "engine": "native"},
        "native, checked and counted": {"observers": (*DEFAULT, *COUNTERS), "engine": "native"},
    }
    for _, kernel, grid, block, arguments, wanted in cases():
        count = Count()
        simulate(kernel, observers=(count,))[grid, block](*arguments)
        times = {
            way: seconds(
                simulate(kernel, **how)[grid, block],
                arguments,
                wanted,
                runs=5 if way.startswith(("fibers", "threads")) else 50,
            )
            for way, how in ways.items()
        }
        yield times, count.accesses_seen


def main():
    empty_cache = tempfile.TemporaryDirectory()
    os.environ["NUMBA_CACHE_DIR"] = empty_cache.name
    environment = os.environ | {"NUMBA_ENABLE_CUDASIM": "1"}
    answer = subprocess.run(
        [sys.executable, __file__, "--numba"], env=environment, capture_output=True, text=True, check=True
    ).stdout
    print("| kernel | run by | seconds | times faster | ns per access | first launch, seconds more |")
    print("|---|---|---:|---:|---:|---:|")
    for (name, *_), numba, (ours, accesses) in zip(cases(), json.loads(answer), of_ours()):
        print(f"| {name} | Numba's simulator | {numba:.3f} | 1 | {numba / accesses * 1e9:,.0f} | |")
        for way, (spent, more) in ours.items():
            print(
                f"| | {way} | {spent:.6f} | {numba / spent:,.0f} | {spent / accesses * 1e9:,.1f} |"
                f" {more:.2f} |"
            )


if __name__ == "__main__":
    if "--numba" in sys.argv:
        print(json.dumps(of_numba()))
    else:
        main()
