"""Corpus: reads of unwritten local memory, and of unwritten global arrays from `sim.empty`."""

import numpy as np
from numba import cuda, float32

from sim import empty


class LocalSumsNotZeroed:
    """An accumulator in a local array starts with arbitrary contents."""

    launch = 1, 4
    findings = {
        ("uninitialized-read", "error", "sums", ("sums[0] += a[i, j]", "read")),
        ("uninitialized-read", "error", "sums", ("sums[1] += a[i, j] * a[i, j]", "read")),
    }

    def arguments():
        return np.arange(12.0, dtype=np.float32).reshape(4, 3), np.zeros((4, 2), np.float32)

    @cuda.jit
    def buggy(a, out):
        sums = cuda.local.array(2, float32)
        i = cuda.grid(1)
        for j in range(3):
            sums[0] += a[i, j]
            sums[1] += a[i, j] * a[i, j]
        out[i, 0] = sums[0]
        out[i, 1] = sums[1]

    @cuda.jit
    def fixed(a, out):
        sums = cuda.local.array(2, float32)
        i = cuda.grid(1)
        sums[0] = sums[1] = 0
        for j in range(3):
            sums[0] += a[i, j]
            sums[1] += a[i, j] * a[i, j]
        out[i, 0] = sums[0]
        out[i, 1] = sums[1]

    def wanted(a, out):
        return {"out": np.stack([a.sum(1), (a**2).sum(1)], 1)}


class LocalArrayHalfFilled:
    """A window is filled from its second element on, but read from its first."""

    launch = 1, 4
    findings = {("uninitialized-read", "error", "window", ("total += window[k]", "read"))}

    def arguments():
        return np.arange(8.0), np.zeros(4)

    @cuda.jit
    def buggy(x, out):
        window = cuda.local.array(4, float32)
        i = cuda.grid(1)
        for k in range(1, 4):
            window[k] = x[i + k]
        total = float32(0)
        for k in range(4):
            total += window[k]
        out[i] = total

    @cuda.jit
    def fixed(x, out):
        window = cuda.local.array(4, float32)
        i = cuda.grid(1)
        for k in range(4):
            window[k] = x[i + k]
        total = float32(0)
        for k in range(4):
            total += window[k]
        out[i] = total

    def wanted(x, out):
        return {"out": [x[i : i + 4].sum() for i in range(4)]}


class OutputAddedTo:
    """`+=` on an output that was never set to zero."""

    launch = 1, 8
    findings = {("uninitialized-read", "error", "out", ("out[i] += x[i]", "read"))}

    def arguments():
        return np.arange(8.0), empty(8, np.float64)

    @cuda.jit
    def buggy(x, out):
        i = cuda.grid(1)
        out[i] += x[i]

    @cuda.jit
    def fixed(x, out):
        i = cuda.grid(1)
        out[i] = x[i]

    def wanted(x, out):
        return {"out": x}


class OutputCountedIn:
    """Atomics add to an output that was never set to zero. In the fixed twin, the host clears it."""

    launch = 2, 4
    findings = {
        ("uninitialized-read", "error", "out", ("cuda.atomic.add(out, 0, x[cuda.grid(1)])", "changed"))
    }

    def arguments():
        return np.arange(8.0), empty(1, np.float64)

    def fixed_arguments():
        return np.arange(8.0), np.zeros(1)

    @cuda.jit
    def buggy(x, out):
        cuda.atomic.add(out, 0, x[cuda.grid(1)])

    @cuda.jit
    def fixed(x, out):
        cuda.atomic.add(out, 0, x[cuda.grid(1)])

    def wanted(x, out):
        return {"out": [x.sum()]}


class ScratchWithAGap:
    """Every other element of a scratch array is written, but every element is read."""

    launch = 1, 8
    findings = {("uninitialized-read", "error", "scratch", ("out[i] = scratch[7 - i]", "read"))}

    def arguments():
        return np.arange(8.0), empty(8, np.float64), np.zeros(8)

    @cuda.jit
    def buggy(x, scratch, out):
        i = cuda.grid(1)
        if i % 2 == 0:
            scratch[i] = x[i]
        cuda.syncthreads()
        out[i] = scratch[7 - i]

    @cuda.jit
    def fixed(x, scratch, out):
        i = cuda.grid(1)
        scratch[i] = x[i] if i % 2 == 0 else 0
        cuda.syncthreads()
        out[i] = scratch[7 - i]

    def wanted(x, scratch, out):
        return {"out": np.where(np.arange(8) % 2 == 0, x, 0)[::-1]}
