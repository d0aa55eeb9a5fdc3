"""Test of Python threads that simulate concurrently with an empty cache.

Numba's registries are not thread-safe.
"""

import os
import subprocess
import sys

import pytest

SCRIPT = (
    "import sys, threading, traceback\n"
    "import numpy as np\n"
    "sys.path.insert(0, sys.argv[1])\n"
    "from threaded import kernels\n"
    "from sim import simulate\n"
    """
sys.setswitchinterval(1e-5)

def job(k):
    try:
        start.wait()
        for kernel, wanted in kernels(k)[:: 1 if k % 2 else -1]:
            out = np.zeros(8, np.float32)
            x = np.full(512, k, np.float64 if k % 4 < 2 else np.float32)
            simulate(kernel, engine="native")[8, 64](x, out)
            assert (out == wanted).all(), out
    except BaseException:
        raised.append(traceback.format_exc())

raised, start = [], threading.Barrier(8)
threads = [threading.Thread(target=job, args=(k,)) for k in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
sys.exit("".join(raised) or None)
"""
)

KERNELS = """
from numba import cuda, float32

@cuda.jit
def block_sum(x, out):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = x[cuda.grid(1)]
    cuda.syncthreads()
    n = 32
    while n > 0:
        if t < n:
            s[t] += s[t + n]
        cuda.syncthreads()
        n //= 2
    if t == 0:
        cuda.atomic.add(out, cuda.blockIdx.x, s[0])

@cuda.jit
def of_neighbours(x, out):
    i = cuda.grid(1)
    value = cuda.shfl_xor_sync(0xFFFFFFFF, x[i], 1)
    if i % 64 == 0:
        out[i // 64] = value

def kernels(k):
    return (block_sum, 64 * k), (of_neighbours, k)
"""


@pytest.mark.parametrize("turn", [0, *(pytest.param(turn, marks=pytest.mark.nightly) for turn in (1, 2))])
def test_threads_that_compile_at_once(turn, tmp_path):
    (tmp_path / "threaded.py").write_text(KERNELS)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path)}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
