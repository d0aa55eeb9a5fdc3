"""Lesson 04's last round: six kernels, each with one of the nine kinds of bugs or with none.
`launches` says how each is launched."""

import numpy as np
from numba import cuda
from numpy import float32, int32


def a(x, out):
    """out[i] = the mean of x[i] and the element after it; the last has none after it."""
    i = cuda.grid(1)
    if i < x.size:
        after = x[i + 1]
        out[i] = (x[i] + after) / 2


def b(letters, counts):
    """counts[k] += how many of the letters are k, for k below 4; each block counts for itself."""
    mine = cuda.shared.array(4, int32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if i < letters.size:
        cuda.atomic.add(mine, letters[i], 1)
    cuda.syncthreads()
    if t < 4:
        cuda.atomic.add(counts, t, mine[t])


def c(x, out):
    """out[i] = x[0] + ... + x[i]; out is 0 before."""
    i = cuda.grid(1)
    if i < x.size:
        before = out[i - 1] if i > 0 else float32(0)
        out[i] = before + x[i]


def d(x, out):
    """out[i] = the mean of x[i] and the next element of its block, cyclically; x counts as 0 past its end."""
    part = cuda.shared.array(32, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if cuda.blockIdx.x * cuda.blockDim.x >= x.size:
        return
    part[t] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    after = part[(t + 1) % cuda.blockDim.x]
    if i < x.size:
        out[i] = (part[t] + after) / 2


def e(x, out):
    """out[i] = the sum of x[i], x[i + 32], x[i + 64], ...; tiles of 32, one block of 32 threads."""
    part = cuda.shared.array(32, float32)
    t, total = cuda.threadIdx.x, float32(0)
    for first in range(0, x.size, 32):
        part[t] = x[first + t] if first + t < x.size else float32(0)
        cuda.syncthreads()
        total += part[31 - t]
    out[31 - t] = total


def f(x, out):
    """out[i] = x[0] + ... + x[i]; one block, an element for each thread."""
    part = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    part[t] = x[t]
    step, total = 0, float32(0)
    while step <= t:
        cuda.syncthreads()
        total += part[step]
        step += 1
    out[t] = total


KERNELS = {kernel.__name__: kernel for kernel in (a, b, c, d, e, f)}


def launches(rng):
    """Return {name: (grid, block, arguments)} for one launch of each kernel.

    The sizes are not multiples of the block size where the kernel supports that.
    """
    size = int(rng.integers(9, 16))
    x = rng.standard_normal(96).astype(float32)
    letters = rng.integers(0, 4, size).astype(int32)
    return {
        "a": (3, 8, (x[:size], np.zeros(size, float32))),
        "b": (2, 8, (letters, np.zeros(4, int32))),
        "c": (2, 8, (x[:size], np.zeros(size, float32))),
        "d": (3, 8, (x[:size], np.zeros(size, float32))),
        "e": (1, 32, (x, np.zeros(32, float32))),
        "f": (1, 16, (x[:16], np.zeros(16, float32))),
    }
