"""Corpus: warps in which some lanes have returned, and a race that comes after many ordered accesses."""

import numpy as np
from numba import cuda, float64


class ReturnedBeforeTheSyncwarp:
    """Lanes that write and return do not participate in the syncwarp after which other lanes read."""

    launch = 1, 32
    findings = {("race-shared", "error", "s", ("out[t] = s[t + 16]", "read"), ("s[t] = x[t]", "written"))}

    def arguments():
        return np.arange(32.0), np.zeros(16)

    @cuda.jit
    def buggy(x, out):
        s = cuda.shared.array(32, float64)
        t = cuda.threadIdx.x
        s[t] = x[t]
        if t >= 16:
            return
        cuda.syncwarp(0xFFFF)
        out[t] = s[t + 16]

    @cuda.jit
    def fixed(x, out):
        s = cuda.shared.array(32, float64)
        t = cuda.threadIdx.x
        s[t] = x[t]
        cuda.syncwarp()
        if t >= 16:
            return
        cuda.syncwarp(0xFFFF)
        out[t] = s[t + 16]

    def wanted(x, out):
        return {"out": x[16:]}


class ReaderThatReturned:
    """A lane reads and returns. Another lane writes after a later syncwarp, which does not wait for the
    first."""

    launch = 1, 32
    findings = {("race-shared", "error", "s", ("out[31] = s[0]", "read"), ("s[0] = 8", "written"))}

    def arguments():
        return (np.zeros(32),)

    @cuda.jit
    def buggy(out):
        s = cuda.shared.array(32, float64)
        t = cuda.threadIdx.x
        s[t] = t
        cuda.syncwarp()
        if t == 31:
            out[31] = s[0]
            return
        cuda.syncwarp(0x7FFFFFFF)
        out[t] = s[0]
        cuda.syncwarp(0x7FFFFFFF)
        if t == 0:
            s[0] = 8

    @cuda.jit
    def fixed(out):
        s = cuda.shared.array(32, float64)
        t = cuda.threadIdx.x
        s[t] = t
        cuda.syncwarp()
        if t == 31:
            out[31] = s[1]
            return
        cuda.syncwarp(0x7FFFFFFF)
        out[t] = s[0]
        cuda.syncwarp(0x7FFFFFFF)
        if t == 0:
            s[0] = 8

    def wanted(out):
        return {"out": 31 * [0] + [1]}


class RaceInCellSixThousand:
    """Six thousand cells are handed over in order by a fence and a ticket; one more cell is not."""

    launch = 2, 1
    findings = {
        ("race-global", "error", "cells", ("cells[6000] = 1", "written"), ("out[0] += cells[i]", "read"))
    }

    def arguments():
        return np.zeros(6001), np.zeros(1, np.int32), np.zeros(1)

    @cuda.jit
    def buggy(cells, flag, out):
        if cuda.blockIdx.x == 0:
            for i in range(6000):
                cells[i] = 1
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
            cells[6000] = 1
        else:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence()
            for i in range(6001):
                out[0] += cells[i]

    @cuda.jit
    def fixed(cells, flag, out):
        if cuda.blockIdx.x == 0:
            for i in range(6001):
                cells[i] = 1
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
        else:
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            cuda.threadfence()
            for i in range(6001):
                out[0] += cells[i]

    def wanted(cells, flag, out):
        return {"out": [6001]}
