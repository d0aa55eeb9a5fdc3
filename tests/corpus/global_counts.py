"""Corpus: sums, counters and lists in global memory that many threads change."""

import numpy as np
from numba import cuda


class EveryoneAddsToOneElement:
    """`+=` on one element by all blocks loses additions."""

    launch = 2, 8
    findings = {
        (
            "race-global",
            "error",
            "out",
            ("out[0] += x[cuda.grid(1)]", "read"),
            ("out[0] += x[cuda.grid(1)]", "written"),
        ),
        ("race-global", "error", "out", ("out[0] += x[cuda.grid(1)]", "written")),
    }

    def arguments():
        return np.arange(16.0), np.zeros(1)

    @cuda.jit
    def buggy(x, out):
        out[0] += x[cuda.grid(1)]

    @cuda.jit
    def fixed(x, out):
        cuda.atomic.add(out, 0, x[cuda.grid(1)])

    def wanted(x, out):
        return {"out": [x.sum()]}


class HistogramWithoutAtomics:
    """Equal values, in one block or in two, are counted in the same bin."""

    launch = 2, 8
    findings = {
        (
            "race-global",
            "error",
            "bins",
            ("bins[x[cuda.grid(1)]] += 1", "read"),
            ("bins[x[cuda.grid(1)]] += 1", "written"),
        ),
        ("race-global", "error", "bins", ("bins[x[cuda.grid(1)]] += 1", "written")),
    }

    def arguments():
        return np.arange(16) % 4, np.zeros(4, np.int32)

    @cuda.jit
    def buggy(x, bins):
        bins[x[cuda.grid(1)]] += 1

    @cuda.jit
    def fixed(x, bins):
        cuda.atomic.add(bins, x[cuda.grid(1)], 1)

    def wanted(x, bins):
        return {"bins": np.bincount(x)}


class PushToNeighbours:
    """Every vertex of a ring adds its value to both neighbours, so each vertex receives two additions.

    In the fixed twin, every vertex reads its neighbours instead.
    """

    launch = 1, 8
    findings = {
        (
            "race-global",
            "error",
            "out",
            ("out[(i + 2 * step + n - 1) % n] += x[i]", "read"),
            ("out[(i + 2 * step + n - 1) % n] += x[i]", "written"),
        ),
        ("race-global", "error", "out", ("out[(i + 2 * step + n - 1) % n] += x[i]", "written")),
    }

    def arguments():
        return np.arange(8.0), np.zeros(8)

    @cuda.jit
    def buggy(x, out):
        i = cuda.grid(1)
        n = x.shape[0]
        for step in range(2):
            out[(i + 2 * step + n - 1) % n] += x[i]

    @cuda.jit
    def fixed(x, out):
        i = cuda.grid(1)
        n = x.shape[0]
        out[i] = x[(i + 1) % n] + x[(i + n - 1) % n]

    def wanted(x, out):
        return {"out": np.roll(x, 1) + np.roll(x, -1)}


class WorklistWithoutAtomics:
    """Threads reserve slots in a list through a counter that is read and written without atomics."""

    launch = 1, 8
    findings = {
        ("race-global", "error", "count", ("count[0] = place + 1", "written")),
        ("race-global", "error", "count", ("count[0] = place + 1", "written"), ("place = count[0]", "read")),
    }

    def arguments():
        return np.zeros(1, np.int64), np.zeros(8, np.int64)

    @cuda.jit
    def buggy(count, out):
        place = count[0]
        count[0] = place + 1
        out[place] = 1

    @cuda.jit
    def fixed(count, out):
        place = cuda.atomic.add(count, 0, 1)
        out[place] = 1

    def wanted(count, out):
        return {"count": [8], "out": np.ones(8)}


class MaximumWithoutAtomic:
    """Each thread writes the maximum of the stored value and its own, without an atomic."""

    launch = 2, 4
    findings = {
        (
            "race-global",
            "error",
            "best",
            ("best[0] = max(best[0], x[cuda.grid(1)])", "read"),
            ("best[0] = max(best[0], x[cuda.grid(1)])", "written"),
        ),
        ("race-global", "error", "best", ("best[0] = max(best[0], x[cuda.grid(1)])", "written")),
    }

    def arguments():
        return np.array([3.0, 7, 1, 5, 8, 2, 6, 4]), np.zeros(1)

    @cuda.jit
    def buggy(x, best):
        best[0] = max(best[0], x[cuda.grid(1)])

    @cuda.jit
    def fixed(x, best):
        cuda.atomic.max(best, 0, x[cuda.grid(1)])

    def wanted(x, best):
        return {"best": [x.max()]}


class ResetBesideAtomics:
    """One thread resets the counter while others already count. In the fixed twin, the host resets it."""

    launch = 2, 4
    findings = {
        (
            "race-global",
            "error",
            "count",
            ("count[0] = 0", "written"),
            ("cuda.atomic.add(count, 0, 1)", "changed"),
        )
    }

    def arguments():
        return (np.zeros(1, np.int64),)

    @cuda.jit
    def buggy(count):
        if cuda.grid(1) == 0:
            count[0] = 0
        cuda.atomic.add(count, 0, 1)

    @cuda.jit
    def fixed(count):
        cuda.atomic.add(count, 0, 1)

    def wanted(count):
        return {"count": [8]}


class PlainReadBesideAtomics:
    """Every thread adds atomically, and then reads the total plainly instead of using the result of the
    atomic."""

    launch = 2, 4
    findings = {
        (
            "race-global",
            "error",
            "count",
            ("cuda.atomic.add(count, 0, 1)", "changed"),
            ("out[i] = count[0]", "read"),
        )
    }

    def arguments():
        return np.zeros(1, np.int64), np.zeros(8, np.int64)

    @cuda.jit
    def buggy(count, out):
        i = cuda.grid(1)
        cuda.atomic.add(count, 0, 1)
        out[i] = count[0]

    @cuda.jit
    def fixed(count, out):
        place = cuda.atomic.add(count, 0, 1)
        out[place] = place

    def wanted(count, out):
        return {"count": [8], "out": np.arange(8)}


class BytesPacked:
    """Eight flags share a byte, so threads that set different bits write the same byte.

    The fixed twin uses one byte per flag.
    """

    launch = 1, 16
    findings = {
        (
            "race-global",
            "error",
            "flags",
            ("flags[i // 8] |= 1 << (i % 8)", "read"),
            ("flags[i // 8] |= 1 << (i % 8)", "written"),
        ),
        ("race-global", "error", "flags", ("flags[i // 8] |= 1 << (i % 8)", "written")),
    }

    def arguments():
        return np.arange(16) % 3, np.zeros(16, np.uint8)

    @cuda.jit
    def buggy(x, flags):
        i = cuda.grid(1)
        if x[i] == 0:
            flags[i // 8] |= 1 << (i % 8)

    @cuda.jit
    def fixed(x, flags):
        i = cuda.grid(1)
        if x[i] == 0:
            flags[i] = 1

    def wanted(x, flags):
        return {"flags": x == 0}


class SecondPhaseWithoutWaiting:
    """One block adds up the partial sums of all blocks in the launch that computes them. The fixed twin uses
    atomics."""

    launch = 3, 4
    findings = {
        (
            "race-global",
            "error",
            "partial",
            ("out[0] = partial[0] + partial[1] + partial[2]", "read"),
            ("partial[b] = total", "written"),
        )
    }

    def arguments():
        return np.arange(12.0), np.zeros(3), np.zeros(1)

    @cuda.jit
    def buggy(x, partial, out):
        t = cuda.threadIdx.x
        b = cuda.blockIdx.x
        if t == 0:
            total = 0.0
            for i in range(4):
                total += x[4 * b + i]
            partial[b] = total
        cuda.syncthreads()
        if t == 0 and b == 0:
            out[0] = partial[0] + partial[1] + partial[2]

    @cuda.jit
    def fixed(x, partial, out):
        t = cuda.threadIdx.x
        b = cuda.blockIdx.x
        if t == 0:
            total = 0.0
            for i in range(4):
                total += x[4 * b + i]
            partial[b] = total
            cuda.atomic.add(out, 0, total)

    def wanted(x, partial, out):
        return {"out": [x.sum()]}
