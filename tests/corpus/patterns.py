"""Corpus: patterns of races whose advice was once wrong, or that had no case."""

import numpy as np
from numba import cuda, float32, int32

FIRST = "x[i] = min(mine, theirs) if rising else max(mine, theirs)"
SECOND = "x[partner] = max(mine, theirs) if rising else min(mine, theirs)"


class ViewsOfDifferentLength:
    """Two parts of dynamic shared memory, the second at a wrong offset."""

    launch = 1, 8, 0, 64
    findings = {
        ("race-shared", "error", "values", ("places[7 - t] = t", "written"), ("values[t] = x[t]", "written"))
    }

    def arguments():
        return np.arange(8, dtype=np.float32), np.zeros(8, np.float32)

    @cuda.jit
    def buggy(x, out):
        values = cuda.shared.array(0, float32)
        places = cuda.shared.array(0, int32)[4:]
        t = cuda.threadIdx.x
        values[t] = x[t]
        places[7 - t] = t
        cuda.syncthreads()
        out[t] = 10 * values[t] + places[t]

    @cuda.jit
    def fixed(x, out):
        values = cuda.shared.array(0, float32)
        places = cuda.shared.array(0, int32)[8:]
        t = cuda.threadIdx.x
        values[t] = x[t]
        places[7 - t] = t
        cuda.syncthreads()
        out[t] = 10 * values[t] + places[t]

    def wanted(x, out):
        return {"out": 10 * x + np.arange(8)[::-1]}


class OppositeArms:
    """Half of the block writes in one arm of a branch, and the other half reads in the other arm."""

    launch = 1, 64
    findings = {
        ("race-shared", "error", "half", ("half[t] = x[t]", "written"), ("out[t] = half[t - 32]", "read"))
    }

    def arguments():
        return np.arange(64, dtype=np.float32), np.zeros(64, np.float32)

    @cuda.jit
    def buggy(x, out):
        half = cuda.shared.array(32, float32)
        t = cuda.threadIdx.x
        if t < 32:
            half[t] = x[t]
        else:
            out[t] = half[t - 32]

    @cuda.jit
    def fixed(x, out):
        half = cuda.shared.array(32, float32)
        t = cuda.threadIdx.x
        if t < 32:
            half[t] = x[t]
        cuda.syncthreads()
        if t >= 32:
            out[t] = half[t - 32]

    def wanted(x, out):
        return {"out": np.concatenate([np.zeros(32), x[:32]])}


class ShiftInOneStatement:
    """Every thread reads its neighbour's element and writes its own in one statement, outside a loop."""

    launch = 1, 64
    findings = {("race-global", "error", "x", ("x[i] = x[i + 1]", "read"), ("x[i] = x[i + 1]", "written"))}

    def arguments():
        return (np.arange(65.0),)

    @cuda.jit
    def buggy(x):
        i = cuda.grid(1)
        x[i] = x[i + 1]

    @cuda.jit
    def fixed(x):
        i = cuda.grid(1)
        taken = x[i + 1]
        cuda.syncthreads()
        x[i] = taken

    def wanted(x):
        return {"x": np.append(x[1:], x[-1])}


class UpSweepWithoutBarrier:
    """The up-sweep of a scan: different threads change an element in different iterations."""

    launch = 1, 16
    findings = {
        (
            "race-shared",
            "error",
            "tile",
            ("tile[i] += tile[i - stride]", "read"),
            ("tile[i] += tile[i - stride]", "written"),
        ),
        ("race-shared", "error", "tile", ("tile[i] += tile[i - stride]", "written")),
    }

    def arguments():
        return np.arange(16, dtype=np.float32), np.zeros(16, np.float32)

    @cuda.jit
    def buggy(x, out):
        tile = cuda.shared.array(16, float32)
        t = cuda.threadIdx.x
        tile[t] = x[t]
        cuda.syncthreads()
        stride = 1
        while stride < 16:
            i = 2 * stride * (t + 1) - 1
            if i < 16:
                tile[i] += tile[i - stride]
            stride *= 2
        cuda.syncthreads()
        out[t] = tile[t]

    @cuda.jit
    def fixed(x, out):
        tile = cuda.shared.array(16, float32)
        t = cuda.threadIdx.x
        tile[t] = x[t]
        cuda.syncthreads()
        stride = 1
        while stride < 16:
            i = 2 * stride * (t + 1) - 1
            if i < 16:
                tile[i] += tile[i - stride]
            cuda.syncthreads()
            stride *= 2
        out[t] = tile[t]

    def wanted(x, out):
        swept, stride = x.copy(), 1
        while stride < 16:
            for i in range(2 * stride - 1, 16, 2 * stride):
                swept[i] += swept[i - stride]
            stride *= 2
        return {"out": swept}


class BitonicSortOfAGrid:
    """A bitonic sort by several blocks: nothing orders its steps."""

    launch = 2, 8
    findings = {
        ("race-global", "error", "x", ("mine = x[i]", "read"), (SECOND, "written")),
        ("race-global", "error", "x", ("theirs = x[partner]", "read"), (FIRST, "written")),
        ("race-global", "error", "x", ("theirs = x[partner]", "read"), (SECOND, "written")),
        ("race-global", "error", "x", (FIRST, "written"), (SECOND, "written")),
        ("race-global", "error", "x", (SECOND, "written")),
    }

    def arguments():
        return (np.random.default_rng(3).permutation(16).astype(np.float64),)

    @cuda.jit
    def buggy(x):
        i = cuda.grid(1)
        width = 2
        while width <= 16:
            step = width // 2
            while step > 0:
                partner = i ^ step
                if partner > i:
                    mine = x[i]
                    theirs = x[partner]
                    rising = i & width == 0
                    x[i] = min(mine, theirs) if rising else max(mine, theirs)
                    x[partner] = max(mine, theirs) if rising else min(mine, theirs)
                step //= 2
            width *= 2

    @cuda.jit
    def fixed(x):
        i = cuda.grid(1)
        width = 2
        while width <= 16:
            step = width // 2
            while step > 0:
                partner = i ^ step
                if partner > i:
                    mine = x[i]
                    theirs = x[partner]
                    rising = i & width == 0
                    x[i] = min(mine, theirs) if rising else max(mine, theirs)
                    x[partner] = max(mine, theirs) if rising else min(mine, theirs)
                cuda.cg.this_grid().sync()
                step //= 2
            width *= 2

    def wanted(x):
        return {"x": np.sort(x)}


class ReadAfterALock:
    """A total is changed under a lock, and all threads read it after they release the lock."""

    launch = 1, 64
    findings = {
        ("race-global", "error", "total", ("out[t] = total[0]", "read"), ("total[0] += 1", "written"))
    }

    def arguments():
        return np.zeros(1, np.int32), np.zeros(1), np.zeros(64)

    @cuda.jit
    def buggy(lock, total, out):
        t = cuda.threadIdx.x
        if t % 32 == 0:
            while cuda.atomic.cas(lock, 0, 0, 1) != 0:
                pass
            cuda.threadfence()
            total[0] += 1
            cuda.threadfence()
            cuda.atomic.exch(lock, 0, 0)
        out[t] = total[0]

    @cuda.jit
    def fixed(lock, total, out):
        t = cuda.threadIdx.x
        if t % 32 == 0:
            while cuda.atomic.cas(lock, 0, 0, 1) != 0:
                pass
            cuda.threadfence()
            total[0] += 1
            cuda.threadfence()
            cuda.atomic.exch(lock, 0, 0)
        cuda.syncthreads()
        out[t] = total[0]

    def wanted(lock, total, out):
        return {"total": [2], "out": [2] * 64}


class CasLoopFromAPlainRead:
    """A maximum by compare-and-swap whose initial value is a plain read."""

    launch = 2, 32
    findings = {
        (
            "race-global",
            "error",
            "best",
            ("old = best[0]", "read"),
            ("old = cuda.atomic.cas(best, 0, seen, max(seen, x[i]))", "changed"),
        )
    }

    def arguments():
        return np.random.default_rng(5).permutation(64).astype(np.int64), np.zeros(1, np.int64)

    @cuda.jit
    def buggy(x, best):
        i = cuda.grid(1)
        old = best[0]
        seen = old - 1
        while seen != old:
            seen = old
            old = cuda.atomic.cas(best, 0, seen, max(seen, x[i]))

    @cuda.jit
    def fixed(x, best):
        i = cuda.grid(1)
        old = cuda.atomic.add(best, 0, 0)
        seen = old - 1
        while seen != old:
            seen = old
            old = cuda.atomic.cas(best, 0, seen, max(seen, x[i]))

    def wanted(x, best):
        return {"best": [63]}
