"""Corpus: barriers that some threads of the block never reach, or reach at another call."""

import numpy as np
from numba import cuda, float32, float64


@cuda.jit(device=True)
def exchanged(tile, t, value):
    """Return the `value` of the thread at the mirrored position in the tile.

    All threads of the block must call this function.
    """
    tile[t] = value
    cuda.syncthreads()
    return tile[tile.shape[0] - 1 - t]


@cuda.jit(device=True)
def passed(times):
    """Pass a block barrier this many times."""
    for _ in range(times):
        cuda.syncthreads()


class BarrierInABranch:
    """Only half of the block reaches the barrier."""

    launch = 1, 8
    findings = {("barrier-divergence", "error", None, ("", "returned"), ("cuda.syncthreads()", "waits"))}

    def arguments():
        return np.arange(8.0, dtype=np.float32), np.zeros(8, np.float32)

    @cuda.jit
    def buggy(x, out):
        tile = cuda.shared.array(8, float32)
        t = cuda.threadIdx.x
        if t < 4:
            tile[t] = x[t]
            cuda.syncthreads()
            out[t] = tile[3 - t]

    @cuda.jit
    def fixed(x, out):
        tile = cuda.shared.array(8, float32)
        t = cuda.threadIdx.x
        if t < 4:
            tile[t] = x[t]
        cuda.syncthreads()
        if t < 4:
            out[t] = tile[3 - t]

    def wanted(x, out):
        return {"out": np.append(x[3::-1], np.zeros(4))}


class EarlyReturn:
    """Threads without an element return before the barrier."""

    launch = 2, 8
    findings = {("barrier-divergence", "error", None, ("", "returned"), ("cuda.syncthreads()", "waits"))}

    def arguments():
        return np.arange(13.0, dtype=np.float32), np.zeros(13, np.float32)

    @cuda.jit
    def buggy(x, out):
        tile = cuda.shared.array(8, float32)
        t = cuda.threadIdx.x
        i = cuda.grid(1)
        if i >= x.shape[0]:
            return
        tile[t] = x[i]
        cuda.syncthreads()
        out[i] = tile[0]

    @cuda.jit
    def fixed(x, out):
        tile = cuda.shared.array(8, float32)
        t = cuda.threadIdx.x
        i = cuda.grid(1)
        if i < x.shape[0]:
            tile[t] = x[i]
        cuda.syncthreads()
        if i < x.shape[0]:
            out[i] = tile[0]

    def wanted(x, out):
        return {"out": x // 8 * 8}


class LoopsOfUnequalLength:
    """A loop contains a barrier, and some threads run more iterations than others."""

    hangs = True
    launch = 1, 4
    findings = {("barrier-divergence", "error", None, ("", "returned"), ("cuda.syncthreads()", "waits"))}

    def arguments():
        return (np.zeros(4, np.int32),)

    @cuda.jit
    def buggy(out):
        t = cuda.threadIdx.x
        for k in range(t + 1):
            out[t] += 1
            cuda.syncthreads()

    @cuda.jit
    def fixed(out):
        t = cuda.threadIdx.x
        for k in range(4):
            if k < t + 1:
                out[t] += 1
            cuda.syncthreads()

    def wanted(out):
        return {"out": [1, 2, 3, 4]}


class BarrierInDifferentRounds:
    """Some threads skip iterations with `continue`, and reach the loop's barrier in later iterations than the
    others."""

    launch = 2, 8
    findings = {("barrier-divergence", "error", None, ("cuda.syncthreads()", "waits"))}

    def arguments():
        return np.zeros(16, np.int32), 6

    @cuda.jit
    def buggy(out, n):
        i = cuda.grid(1)
        for k in range(n):
            if (k + i) % 2:
                continue
            out[i] += k
            cuda.syncthreads()

    @cuda.jit
    def fixed(out, n):
        i = cuda.grid(1)
        for k in range(i, i + n):  # Threads start at different values but run the same number of iterations.
            if n % 2:
                continue
            for j in range(i + 3):
                if j < 3:
                    cuda.syncthreads()
            if k % 2 == 0:
                out[i] += k - i
            cuda.syncthreads()

    def wanted(out, n):
        return {"out": [6, 9] * 8}


class InnerLoopsOfUnequalLength:
    """A function contains a loop with a barrier that runs once or twice.

    The total number of barriers is the same for all threads, but not the number per iteration.
    """

    launch = 1, 8
    findings = {("barrier-divergence", "error", None, ("cuda.syncthreads()", "waits"))}

    def arguments():
        return np.zeros(8, np.int32), 4

    @cuda.jit
    def buggy(out, n):
        t = cuda.threadIdx.x
        k = 0
        while k < n:
            passed(1 + (t + k) % 2)
            out[t] += 1
            k += 1

    @cuda.jit
    def fixed(out, n):
        t = cuda.threadIdx.x
        k = 0
        while k < n:
            passed(1 + k % 2)
            out[t] += 1
            k += 1

    def wanted(out, n):
        return {"out": [4] * 8}


class BarrierInBothArms:
    """Both arms of a branch contain a barrier, but these are two different barriers."""

    launch = 1, 8
    findings = {
        (
            "barrier-divergence",
            "error",
            None,
            ("cuda.syncthreads()  # even elements", "waits"),
            ("cuda.syncthreads()  # odd elements", "waits"),
        )
    }

    def arguments():
        return np.arange(8.0, dtype=np.float32), np.zeros(8, np.float32)

    @cuda.jit
    def buggy(x, out):
        tile = cuda.shared.array(8, float32)
        t = cuda.threadIdx.x
        if t % 2 == 0:
            tile[t] = x[t]
            cuda.syncthreads()  # even elements
        else:
            tile[t] = -x[t]
            cuda.syncthreads()  # odd elements
        out[t] = tile[7 - t]

    @cuda.jit
    def fixed(x, out):
        tile = cuda.shared.array(8, float32)
        t = cuda.threadIdx.x
        if t % 2 == 0:
            tile[t] = x[t]
        else:
            tile[t] = -x[t]
        cuda.syncthreads()
        out[t] = tile[7 - t]

    def wanted(x, out):
        return {"out": np.where(np.arange(8) % 2, -x, x)[::-1]}


class StrideLoopWithBarrier:
    """Threads stride through the data with a barrier per iteration; not all threads run the last
    iteration."""

    launch = 1, 4
    findings = {("barrier-divergence", "error", None, ("", "returned"), ("cuda.syncthreads()", "waits"))}

    def arguments():
        return np.arange(6.0, dtype=np.float32), np.zeros(4, np.float32)

    @cuda.jit
    def buggy(x, out):
        tile = cuda.shared.array(4, float32)
        t = cuda.threadIdx.x
        i = t
        while i < x.shape[0]:
            tile[t] = x[i]
            cuda.syncthreads()
            out[t] += tile[3 - t]
            cuda.syncthreads()
            i += 4

    @cuda.jit
    def fixed(x, out):
        tile = cuda.shared.array(4, float32)
        t = cuda.threadIdx.x
        for first in range(0, x.shape[0], 4):
            tile[t] = x[first + t] if first + t < x.shape[0] else 0
            cuda.syncthreads()
            out[t] += tile[3 - t]
            cuda.syncthreads()

    def wanted(x, out):
        return {"out": np.append(x, [0, 0]).reshape(2, 4).sum(0)[::-1]}


class BreakBeforeTheBarrier:
    """Each thread leaves the loop once it has converged. In the fixed twin, all leave once all have
    converged."""

    launch = 1, 4
    findings = {("barrier-divergence", "error", None, ("", "returned"), ("cuda.syncthreads()", "waits"))}

    def arguments():
        return np.array([1, 2, 3, 4], np.int32), np.zeros(4, np.int32)

    @cuda.jit
    def buggy(x, rounds):
        t = cuda.threadIdx.x
        left = x[t]
        for k in range(10):
            if left == 0:
                break
            left -= 1
            rounds[t] += 1
            cuda.syncthreads()

    @cuda.jit
    def fixed(x, rounds):
        t = cuda.threadIdx.x
        left = x[t]
        for k in range(10):
            if cuda.syncthreads_and(int(left == 0)):
                break
            if left > 0:
                left -= 1
                rounds[t] += 1

    def wanted(x, rounds):
        return {"rounds": x}


class BarrierInAHelper:
    """Only some threads call a device function that contains a barrier."""

    launch = 1, 8
    findings = {("barrier-divergence", "error", None, ("", "returned"), ("cuda.syncthreads()", "waits"))}

    def arguments():
        return np.arange(8.0, dtype=np.float32), np.zeros(8, np.float32)

    @cuda.jit
    def buggy(x, out):
        tile = cuda.shared.array(8, float32)
        t = cuda.threadIdx.x
        if x[t] > 3:
            out[t] = exchanged(tile, t, x[t])

    @cuda.jit
    def fixed(x, out):
        tile = cuda.shared.array(8, float32)
        t = cuda.threadIdx.x
        across = exchanged(tile, t, x[t])
        if x[t] > 3:
            out[t] = across

    def wanted(x, out):
        return {"out": np.where(x > 3, x[::-1], 0)}


class BarrierOfOneWarp:
    """A barrier is for the whole block; the lanes of one warp should use syncwarp."""

    launch = 1, 64
    findings = {("barrier-divergence", "error", None, ("", "returned"), ("cuda.syncthreads()", "waits"))}

    def arguments():
        return np.arange(32.0, dtype=np.float32), np.zeros(32, np.float32)

    @cuda.jit
    def buggy(x, out):
        tile = cuda.shared.array(32, float32)
        t = cuda.threadIdx.x
        if t < 32:
            tile[t] = x[t]
            cuda.syncthreads()
            out[t] = tile[31 - t]

    @cuda.jit
    def fixed(x, out):
        tile = cuda.shared.array(32, float32)
        t = cuda.threadIdx.x
        if t < 32:
            tile[t] = x[t]
            cuda.syncwarp()
            out[t] = tile[31 - t]

    def wanted(x, out):
        return {"out": x[::-1]}


class CountingBarrierInABranch:
    """A counting barrier is still a barrier."""

    launch = 1, 8
    findings = {
        (
            "barrier-divergence",
            "error",
            None,
            ("", "returned"),
            ("out[t] = cuda.syncthreads_count(int(x[t] > 4))", "waits"),
        )
    }

    def arguments():
        return np.arange(8), np.zeros(8, np.int64)

    @cuda.jit
    def buggy(x, out):
        t = cuda.threadIdx.x
        if x[t] > 1:
            out[t] = cuda.syncthreads_count(int(x[t] > 4))

    @cuda.jit
    def fixed(x, out):
        t = cuda.threadIdx.x
        large = cuda.syncthreads_count(int(x[t] > 4))
        if x[t] > 1:
            out[t] = large

    def wanted(x, out):
        return {"out": np.where(x > 1, 3, 0)}


@cuda.jit(device=True)
def published(values, t, value):
    values[t] = value
    cuda.syncthreads()


class HelperCalledInBothArms:
    """Both arms call a function that contains a barrier, and each call is a separate barrier."""

    launch = 1, 8
    findings = {("barrier-divergence", "error", None, ("cuda.syncthreads()", "waits"))}

    def arguments():
        return np.arange(8.0), np.zeros(8)

    @cuda.jit
    def buggy(x, out):
        values = cuda.shared.array(8, float64)
        t = cuda.threadIdx.x
        if t < 3:
            published(values, t, -x[t])
        else:
            published(values, t, x[t])
        out[t] = values[7 - t]

    @cuda.jit
    def fixed(x, out):
        values = cuda.shared.array(8, float64)
        t = cuda.threadIdx.x
        published(values, t, -x[t] if t < 3 else x[t])
        out[t] = values[7 - t]

    def wanted(x, out):
        return {"out": np.where(x < 3, -x, x)[::-1]}
