"""Corpus: grid barriers that not all threads of all blocks reach."""

import numpy as np
from numba import cuda


class GridBarrierOfSomeBlocks:
    """The first block does not need the grid barrier and skips it."""

    launch = 3, 2
    hangs = True
    findings = {("deadlock", "error", None, ("cuda.cg.this_grid().sync()", "waits"))}

    def arguments():
        return np.zeros(6), np.zeros(6)

    @cuda.jit
    def buggy(scratch, out):
        i = cuda.grid(1)
        scratch[i] = i
        if cuda.blockIdx.x > 0:
            cuda.cg.this_grid().sync()
            out[i] = scratch[i - 2]

    @cuda.jit
    def fixed(scratch, out):
        i = cuda.grid(1)
        scratch[i] = i
        cuda.cg.this_grid().sync()
        if cuda.blockIdx.x > 0:
            out[i] = scratch[i - 2]

    def wanted(scratch, out):
        return {"out": [0, 0, 0, 1, 2, 3]}


class BlockReturnsEarly:
    """A block without data returns before the grid barrier."""

    launch = 3, 2
    hangs = True
    findings = {("deadlock", "error", None, ("cuda.cg.this_grid().sync()", "waits"))}

    def arguments():
        return np.zeros(4), np.zeros(4)

    @cuda.jit
    def buggy(scratch, out):
        i = cuda.grid(1)
        if i >= scratch.shape[0]:
            return
        scratch[i] = i
        cuda.cg.this_grid().sync()
        out[i] = scratch[3 - i]

    @cuda.jit
    def fixed(scratch, out):
        i = cuda.grid(1)
        if i < scratch.shape[0]:
            scratch[i] = i
        cuda.cg.this_grid().sync()
        if i < scratch.shape[0]:
            out[i] = scratch[3 - i]

    def wanted(scratch, out):
        return {"out": [3, 2, 1, 0]}


class GridBarrierUnequallyOften:
    """Each block passes the grid barrier in a loop, and the number of iterations depends on the block."""

    launch = 3, 2
    hangs = True
    findings = {("deadlock", "error", None, ("cuda.cg.this_grid().sync()", "waits"))}

    def arguments():
        return (np.zeros(6),)

    @cuda.jit
    def buggy(out):
        i = cuda.grid(1)
        for k in range(cuda.blockIdx.x):
            out[i] += 1
            cuda.cg.this_grid().sync()

    @cuda.jit
    def fixed(out):
        i = cuda.grid(1)
        for k in range(cuda.gridDim.x):
            if k < cuda.blockIdx.x:
                out[i] += 1
            cuda.cg.this_grid().sync()

    def wanted(out):
        return {"out": [0, 0, 1, 1, 2, 2]}


class BarriersOfTwoKinds:
    """One thread of the block waits for the grid, and the others wait for the block."""

    launch = 2, 4
    hangs = True
    findings = {
        ("deadlock", "error", None, ("cuda.cg.this_grid().sync()", "waits"), ("cuda.syncthreads()", "waits"))
    }

    def arguments():
        return np.zeros(8), np.zeros(8)

    @cuda.jit
    def buggy(scratch, out):
        i = cuda.grid(1)
        scratch[i] = i
        if cuda.threadIdx.x == 0:
            cuda.cg.this_grid().sync()
        else:
            cuda.syncthreads()
        out[i] = scratch[7 - i]

    @cuda.jit
    def fixed(scratch, out):
        i = cuda.grid(1)
        scratch[i] = i
        cuda.syncthreads()
        cuda.cg.this_grid().sync()
        out[i] = scratch[7 - i]

    def wanted(scratch, out):
        return {"out": np.arange(8)[::-1]}


class GridBarrierOfSomeThreads:
    """One thread waits on behalf of its block, but every thread must reach a grid barrier."""

    launch = 2, 4
    hangs = True
    findings = {("deadlock", "error", None, ("", "returned"), ("cuda.cg.this_grid().sync()", "waits"))}

    def arguments():
        return (np.zeros(8),)

    @cuda.jit
    def buggy(out):
        out[cuda.grid(1)] = 1
        if cuda.threadIdx.x == 0:
            cuda.cg.this_grid().sync()

    @cuda.jit
    def fixed(out):
        out[cuda.grid(1)] = 1
        cuda.cg.this_grid().sync()

    def wanted(out):
        return {"out": np.ones(8)}
