"""Corpus: counters, flags and histograms in shared memory that many threads change."""

import numpy as np
from numba import cuda, float32, int32


class EveryoneAddsToOneTotal:
    """`+=` reads and writes; without an atomic, additions are lost."""

    launch = 1, 8
    findings = {
        ("race-shared", "error", "total", ("total[0] += x[t]", "read"), ("total[0] += x[t]", "written")),
        ("race-shared", "error", "total", ("total[0] += x[t]", "written")),
    }

    def arguments():
        return np.arange(8.0, dtype=np.float32), np.zeros(1, np.float32)

    @cuda.jit
    def buggy(x, out):
        total = cuda.shared.array(1, float32)
        t = cuda.threadIdx.x
        if t == 0:
            total[0] = 0
        cuda.syncthreads()
        total[0] += x[t]
        cuda.syncthreads()
        if t == 0:
            out[0] = total[0]

    @cuda.jit
    def fixed(x, out):
        total = cuda.shared.array(1, float32)
        t = cuda.threadIdx.x
        if t == 0:
            total[0] = 0
        cuda.syncthreads()
        cuda.atomic.add(total, 0, x[t])
        cuda.syncthreads()
        if t == 0:
            out[0] = total[0]

    def wanted(x, out):
        return {"out": [x.sum()]}


class FlagSetByMany:
    """All threads write the same value to a flag. The race is harmless, so it is a warning."""

    launch = 1, 8
    findings = {("race-shared", "warning", "found", ("found[0] = 1", "written"))}

    def arguments():
        return np.array([3.0, -1, 4, -1, 5, -9, 2, 6]), np.zeros(1, np.int64)

    @cuda.jit
    def buggy(x, out):
        found = cuda.shared.array(1, int32)
        t = cuda.threadIdx.x
        if t == 0:
            found[0] = 0
        cuda.syncthreads()
        if x[t] < 0:
            found[0] = 1
        cuda.syncthreads()
        if t == 0:
            out[0] = found[0]

    @cuda.jit
    def fixed(x, out):
        t = cuda.threadIdx.x
        found = cuda.syncthreads_or(int(x[t] < 0))
        if t == 0 and found:
            out[0] = 1

    def wanted(x, out):
        return {"out": [1]}


class SharedHistogramWithoutAtomics:
    """Two threads with equal values count in the same bin."""

    launch = 1, 16
    findings = {
        ("race-shared", "error", "bins", ("bins[x[t]] += 1", "read"), ("bins[x[t]] += 1", "written")),
        ("race-shared", "error", "bins", ("bins[x[t]] += 1", "written")),
    }

    def arguments():
        return np.arange(16) % 4, np.zeros(4, np.int32)

    @cuda.jit
    def buggy(x, out):
        bins = cuda.shared.array(4, int32)
        t = cuda.threadIdx.x
        if t < 4:
            bins[t] = 0
        cuda.syncthreads()
        bins[x[t]] += 1
        cuda.syncthreads()
        if t < 4:
            out[t] = bins[t]

    @cuda.jit
    def fixed(x, out):
        bins = cuda.shared.array(4, int32)
        t = cuda.threadIdx.x
        if t < 4:
            bins[t] = 0
        cuda.syncthreads()
        cuda.atomic.add(bins, x[t], 1)
        cuda.syncthreads()
        if t < 4:
            out[t] = bins[t]

    def wanted(x, out):
        return {"out": np.bincount(x)}


class HistogramZeroedTooLate:
    """Some threads count in bins that others are still setting to zero."""

    launch = 1, 16
    findings = {
        (
            "race-shared",
            "error",
            "bins",
            ("bins[t] = 0", "written"),
            ("cuda.atomic.add(bins, x[t], 1)", "changed"),
        )
    }

    def arguments():
        return np.arange(16) % 4, np.zeros(4, np.int32)

    @cuda.jit
    def buggy(x, out):
        bins = cuda.shared.array(4, int32)
        t = cuda.threadIdx.x
        if t < 4:
            bins[t] = 0
        cuda.atomic.add(bins, x[t], 1)
        cuda.syncthreads()
        if t < 4:
            out[t] = bins[t]

    @cuda.jit
    def fixed(x, out):
        bins = cuda.shared.array(4, int32)
        t = cuda.threadIdx.x
        if t < 4:
            bins[t] = 0
        cuda.syncthreads()
        cuda.atomic.add(bins, x[t], 1)
        cuda.syncthreads()
        if t < 4:
            out[t] = bins[t]

    def wanted(x, out):
        return {"out": np.bincount(x)}


class HistogramReadTooEarly:
    """Atomics do not race with each other, but a plain read races with them."""

    launch = 1, 16
    findings = {
        (
            "race-shared",
            "error",
            "bins",
            ("cuda.atomic.add(bins, x[t], 1)", "changed"),
            ("out[t] = bins[t]", "read"),
        )
    }

    def arguments():
        return np.arange(16) % 4, np.zeros(4, np.int32)

    @cuda.jit
    def buggy(x, out):
        bins = cuda.shared.array(4, int32)
        t = cuda.threadIdx.x
        if t < 4:
            bins[t] = 0
        cuda.syncthreads()
        cuda.atomic.add(bins, x[t], 1)
        if t < 4:
            out[t] = bins[t]

    @cuda.jit
    def fixed(x, out):
        bins = cuda.shared.array(4, int32)
        t = cuda.threadIdx.x
        if t < 4:
            bins[t] = 0
        cuda.syncthreads()
        cuda.atomic.add(bins, x[t], 1)
        cuda.syncthreads()
        if t < 4:
            out[t] = bins[t]

    def wanted(x, out):
        return {"out": np.bincount(x)}


class GuardBeforeAtomic:
    """A plain read of the minimum, intended to save an atomic, races with the atomics of other threads."""

    launch = 1, 8
    findings = {
        (
            "race-shared",
            "error",
            "best",
            ("before = best[0]", "read"),
            ("cuda.atomic.min(best, 0, min(before, x[t]))", "changed"),
        )
    }

    def arguments():
        return np.array([5, 3, 8, 1, 9, 2, 7, 4], np.int32), np.zeros(1, np.int32)

    @cuda.jit
    def buggy(x, out):
        best = cuda.shared.array(1, int32)
        t = cuda.threadIdx.x
        if t == 0:
            best[0] = 100
        cuda.syncthreads()
        before = best[0]
        cuda.atomic.min(best, 0, min(before, x[t]))
        cuda.syncthreads()
        if t == 0:
            out[0] = best[0]

    @cuda.jit
    def fixed(x, out):
        best = cuda.shared.array(1, int32)
        t = cuda.threadIdx.x
        if t == 0:
            best[0] = 100
        cuda.syncthreads()
        cuda.atomic.min(best, 0, x[t])
        cuda.syncthreads()
        if t == 0:
            out[0] = best[0]

    def wanted(x, out):
        return {"out": [x.min()]}
