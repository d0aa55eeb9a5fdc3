"""A project that does not use the simulator, and helpers that parse the plug-in's output for it."""

import re

PROJECT = """
import numpy as np
import pytest
from numba import cuda, float32, guvectorize, vectorize
from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32

if not cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

@cuda.jit
def add(x, y, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = x[i] + y[i]

@cuda.jit("void(float32[:], int32)")
def scale(x, n):
    i = cuda.grid(1)
    if i < x.size:
        x[i] *= n

@cuda.jit
def tree_sum(x, out):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncthreads()
    for step in (32, 16, 8, 4, 2, 1):
        if t < step:
            s[t] += s[t + step]
    if t == 0:
        out[0] = s[0]

kept = add[2, 64]
X = np.arange(100, dtype=np.float32)
"""

RACE = (
    "race-shared: s[1] in shared memory is written by one thread and read by another, and nothing orders the"
    " two · block 0 · threads 1 and 0\n"
)


def total(result):
    """Return the number of launches in the last line."""
    return int(re.search(r"^cuda-sim: ([\d,]+) launch", result.stdout.str(), re.M)[1].replace(",", ""))


def parts(result):
    """Return the number of launches per outcome, after checking that they add up to the total."""
    sums = re.search(r"^cuda-sim: [\d,]+ launch(?:es)? = (.*?), in", result.stdout.str(), re.M)
    return [int(part.split()[0].replace(",", "")) for part in sums[1].split(" + ")]
