"""Corpus: reductions and scans in shared memory, in which each pass reads the results of the previous one."""

import numpy as np
from numba import cuda, float32


class ReductionWithoutBarrier:
    """A tree reduction lacks the barrier between passes, although each pass reads the results of the previous
    one."""

    launch = 1, 16
    findings = {
        (
            "race-shared",
            "error",
            "tile",
            ("tile[t] += tile[t + stride]", "read"),
            ("tile[t] += tile[t + stride]", "written"),
        )
    }

    def arguments():
        return np.arange(16.0, dtype=np.float32), np.zeros(1, np.float32)

    @cuda.jit
    def buggy(x, out):
        tile = cuda.shared.array(16, float32)
        t = cuda.threadIdx.x
        tile[t] = x[t]
        cuda.syncthreads()
        stride = 8
        while stride > 0:
            if t < stride:
                tile[t] += tile[t + stride]
            stride //= 2
        if t == 0:
            out[0] = tile[0]

    @cuda.jit
    def fixed(x, out):
        tile = cuda.shared.array(16, float32)
        t = cuda.threadIdx.x
        tile[t] = x[t]
        cuda.syncthreads()
        stride = 8
        while stride > 0:
            if t < stride:
                tile[t] += tile[t + stride]
            cuda.syncthreads()
            stride //= 2
        if t == 0:
            out[0] = tile[0]

    def wanted(x, out):
        return {"out": [x.sum()]}


class ReductionWithoutGuard:
    """Without the guard, threads of the upper half write what the lower half reads in the same pass."""

    launch = 1, 16
    findings = {
        (
            "race-shared",
            "error",
            "tile",
            ("tile[t] += tile[t + stride]", "read"),
            ("tile[t] += tile[t + stride]", "written"),
        )
    }

    def arguments():
        return np.arange(16.0, dtype=np.float32), np.zeros(1, np.float32)

    @cuda.jit
    def buggy(x, out):
        tile = cuda.shared.array(32, float32)
        t = cuda.threadIdx.x
        tile[t] = x[t]
        tile[t + 16] = 0
        cuda.syncthreads()
        stride = 8
        while stride > 0:
            tile[t] += tile[t + stride]
            cuda.syncthreads()
            stride //= 2
        if t == 0:
            out[0] = tile[0]

    @cuda.jit
    def fixed(x, out):
        tile = cuda.shared.array(32, float32)
        t = cuda.threadIdx.x
        tile[t] = x[t]
        tile[t + 16] = 0
        cuda.syncthreads()
        stride = 8
        while stride > 0:
            if t < stride:
                tile[t] += tile[t + stride]
            cuda.syncthreads()
            stride //= 2
        if t == 0:
            out[0] = tile[0]

    def wanted(x, out):
        return {"out": [x.sum()]}


class SumReadTooEarly:
    """One thread computes the sum for all, and all threads read it immediately."""

    launch = 1, 8
    findings = {
        (
            "race-shared",
            "error",
            "total",
            ("out[t] = x[t] / total[0]", "read"),
            ("total[0] += x[i]", "written"),
        ),
        ("race-shared", "error", "total", ("out[t] = x[t] / total[0]", "read"), ("total[0] = 0", "written")),
    }

    def arguments():
        return np.arange(8.0, dtype=np.float32), np.zeros(8, np.float32)

    @cuda.jit
    def buggy(x, out):
        total = cuda.shared.array(1, float32)
        t = cuda.threadIdx.x
        if t == 0:
            total[0] = 0
            for i in range(8):
                total[0] += x[i]
        out[t] = x[t] / total[0]

    @cuda.jit
    def fixed(x, out):
        total = cuda.shared.array(1, float32)
        t = cuda.threadIdx.x
        if t == 0:
            total[0] = 0
            for i in range(8):
                total[0] += x[i]
        cuda.syncthreads()
        out[t] = x[t] / total[0]

    def wanted(x, out):
        return {"out": x / x.sum()}


class ScanInOneBuffer:
    """In-place prefix sums: one barrier per pass does not separate its reads and writes."""

    launch = 1, 8
    findings = {
        (
            "race-shared",
            "error",
            "tile",
            ("tile[t] += tile[t - stride]", "read"),
            ("tile[t] += tile[t - stride]", "written"),
        )
    }

    def arguments():
        return np.arange(8.0, dtype=np.float32), np.zeros(8, np.float32)

    @cuda.jit
    def buggy(x, out):
        tile = cuda.shared.array(8, float32)
        t = cuda.threadIdx.x
        tile[t] = x[t]
        cuda.syncthreads()
        stride = 1
        while stride < 8:
            if t >= stride:
                tile[t] += tile[t - stride]
            cuda.syncthreads()
            stride *= 2
        out[t] = tile[t]

    @cuda.jit
    def fixed(x, out):
        tile = cuda.shared.array(8, float32)
        t = cuda.threadIdx.x
        tile[t] = x[t]
        cuda.syncthreads()
        stride = 1
        while stride < 8:
            term = tile[t - stride] if t >= stride else float32(0)
            cuda.syncthreads()
            tile[t] += term
            cuda.syncthreads()
            stride *= 2
        out[t] = tile[t]

    def wanted(x, out):
        return {"out": np.cumsum(x)}


class ScanInTwoBuffers:
    """Even with two alternating buffers, prefix sums need a barrier between the passes."""

    launch = 1, 8
    findings = {
        (
            "race-shared",
            "error",
            "buffers",
            ("buffers[1 - source, t] = buffers[source, t] + term", "written"),
            ("term = buffers[source, t - stride] if t >= stride else float32(0)", "read"),
        )
    }

    def arguments():
        return np.arange(8.0, dtype=np.float32), np.zeros(8, np.float32)

    @cuda.jit
    def buggy(x, out):
        buffers = cuda.shared.array((2, 8), float32)
        t = cuda.threadIdx.x
        buffers[0, t] = x[t]
        cuda.syncthreads()
        source, stride = 0, 1
        while stride < 8:
            term = buffers[source, t - stride] if t >= stride else float32(0)
            buffers[1 - source, t] = buffers[source, t] + term
            source = 1 - source
            stride *= 2
        out[t] = buffers[source, t]

    @cuda.jit
    def fixed(x, out):
        buffers = cuda.shared.array((2, 8), float32)
        t = cuda.threadIdx.x
        buffers[0, t] = x[t]
        cuda.syncthreads()
        source, stride = 0, 1
        while stride < 8:
            term = buffers[source, t - stride] if t >= stride else float32(0)
            buffers[1 - source, t] = buffers[source, t] + term
            cuda.syncthreads()
            source = 1 - source
            stride *= 2
        out[t] = buffers[source, t]

    def wanted(x, out):
        return {"out": np.cumsum(x)}
