"""Corpus: phases of one launch that a grid barrier must separate."""

import numpy as np
from numba import cuda, float32


class PhasesWithoutGridBarrier:
    """The second phase reads what other blocks write in the first."""

    launch = 3, 4
    findings = {
        (
            "race-global",
            "error",
            "squares",
            ("out[i] = squares[11 - i]", "read"),
            ("squares[i] = x[i] * x[i]", "written"),
        )
    }

    def arguments():
        return np.arange(12.0), np.zeros(12), np.zeros(12)

    @cuda.jit
    def buggy(x, squares, out):
        i = cuda.grid(1)
        squares[i] = x[i] * x[i]
        out[i] = squares[11 - i]

    @cuda.jit
    def fixed(x, squares, out):
        i = cuda.grid(1)
        squares[i] = x[i] * x[i]
        cuda.cg.this_grid().sync()
        out[i] = squares[11 - i]

    def wanted(x, squares, out):
        return {"out": x[::-1] ** 2}


class BlockBarrierForTheGrid:
    """syncthreads only waits for its own block."""

    launch = 3, 4
    findings = {
        (
            "race-global",
            "error",
            "squares",
            ("out[i] = squares[11 - i]", "read"),
            ("squares[i] = x[i] * x[i]", "written"),
        )
    }

    def arguments():
        return np.arange(12.0), np.zeros(12), np.zeros(12)

    @cuda.jit
    def buggy(x, squares, out):
        i = cuda.grid(1)
        squares[i] = x[i] * x[i]
        cuda.syncthreads()
        out[i] = squares[11 - i]

    @cuda.jit
    def fixed(x, squares, out):
        i = cuda.grid(1)
        squares[i] = x[i] * x[i]
        cuda.cg.this_grid().sync()
        out[i] = squares[11 - i]

    def wanted(x, squares, out):
        return {"out": x[::-1] ** 2}


class RelaxationInPlace:
    """One grid barrier per step does not separate the reads and writes of that step."""

    launch = 2, 4
    findings = {
        (
            "race-global",
            "error",
            "x",
            ("mean = (x[i - 1] + x[i + 1]) / 2", "read"),
            ("x[i] = mean", "written"),
        )
    }

    def arguments():
        return (np.arange(10.0) ** 2,)

    @cuda.jit
    def buggy(x):
        i = cuda.grid(1) + 1
        for step in range(3):
            mean = (x[i - 1] + x[i + 1]) / 2
            x[i] = mean
            cuda.cg.this_grid().sync()

    @cuda.jit
    def fixed(x):
        i = cuda.grid(1) + 1
        for step in range(3):
            mean = (x[i - 1] + x[i + 1]) / 2
            cuda.cg.this_grid().sync()
            x[i] = mean
            cuda.cg.this_grid().sync()

    def wanted(x):
        for step in range(3):
            x = np.concatenate([x[:1], (x[:-2] + x[2:]) / 2, x[-1:]])
        return {"x": x}


class RelaxationInTwoArrays:
    """Even with two alternating arrays, a grid barrier is needed between the steps."""

    launch = 2, 4
    findings = {
        (
            "race-global",
            "error",
            "x",
            ("x[i] = (y[i - 1] + y[i + 1]) / 2", "written"),
            ("y[i] = (x[i - 1] + x[i + 1]) / 2", "read"),
        ),
        (
            "race-global",
            "error",
            "y",
            ("x[i] = (y[i - 1] + y[i + 1]) / 2", "read"),
            ("y[i] = (x[i - 1] + x[i + 1]) / 2", "written"),
        ),
    }

    def arguments():
        return np.arange(10.0) ** 2, np.arange(10.0) ** 2

    @cuda.jit
    def buggy(x, y):
        i = cuda.grid(1) + 1
        y[i] = (x[i - 1] + x[i + 1]) / 2
        x[i] = (y[i - 1] + y[i + 1]) / 2

    @cuda.jit
    def fixed(x, y):
        i = cuda.grid(1) + 1
        y[i] = (x[i - 1] + x[i + 1]) / 2
        cuda.cg.this_grid().sync()
        x[i] = (y[i - 1] + y[i + 1]) / 2

    def wanted(x, y):
        for step in range(2):
            x = np.concatenate([x[:1], (x[:-2] + x[2:]) / 2, x[-1:]])
        return {"x": x}


class MeanOfAllBlocks:
    """Every block subtracts the mean of all blocks' sums from its elements."""

    launch = 3, 4
    findings = {
        (
            "race-global",
            "error",
            "sums",
            ("out[i] = x[i] - (sums[0] + sums[1] + sums[2]) / 12", "read"),
            ("sums[b] = own[0]", "written"),
        )
    }

    def arguments():
        return np.arange(12.0), np.zeros(3), np.zeros(12)

    @cuda.jit
    def buggy(x, sums, out):
        own = cuda.shared.array(1, float32)
        t, b, i = cuda.threadIdx.x, cuda.blockIdx.x, cuda.grid(1)
        if t == 0:
            own[0] = 0
        cuda.syncthreads()
        cuda.atomic.add(own, 0, float32(x[i]))
        cuda.syncthreads()
        if t == 0:
            sums[b] = own[0]
        cuda.syncthreads()
        out[i] = x[i] - (sums[0] + sums[1] + sums[2]) / 12

    @cuda.jit
    def fixed(x, sums, out):
        own = cuda.shared.array(1, float32)
        t, b, i = cuda.threadIdx.x, cuda.blockIdx.x, cuda.grid(1)
        if t == 0:
            own[0] = 0
        cuda.syncthreads()
        cuda.atomic.add(own, 0, float32(x[i]))
        cuda.syncthreads()
        if t == 0:
            sums[b] = own[0]
        cuda.cg.this_grid().sync()
        out[i] = x[i] - (sums[0] + sums[1] + sums[2]) / 12

    def wanted(x, sums, out):
        return {"out": x - x.mean()}
