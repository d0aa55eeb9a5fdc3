"""Corpus: lanes of a warp that rely on lockstep execution."""

import numpy as np
from numba import cuda, float32, int32

FULL = 0xFFFFFFFF


class WarpReductionWithoutSyncwarp:
    """The last steps of a reduction omit barriers, as was common before 2017.

    The lanes of a warp need not run in lockstep.
    """

    launch = 1, 32
    findings = {
        (
            "race-shared",
            "error",
            "tile",
            ("tile[lane] += tile[lane + stride]", "read"),
            ("tile[lane] += tile[lane + stride]", "written"),
        )
    }

    def arguments():
        return np.arange(32.0, dtype=np.float32), np.zeros(1, np.float32)

    @cuda.jit
    def buggy(x, out):
        tile = cuda.shared.array(32, float32)
        lane = cuda.threadIdx.x
        tile[lane] = x[lane]
        cuda.syncwarp()
        stride = 16
        while stride > 0:
            if lane < stride:
                tile[lane] += tile[lane + stride]
            stride //= 2
        if lane == 0:
            out[0] = tile[0]

    @cuda.jit
    def fixed(x, out):
        tile = cuda.shared.array(32, float32)
        lane = cuda.threadIdx.x
        tile[lane] = x[lane]
        cuda.syncwarp()
        stride = 16
        while stride > 0:
            if lane < stride:
                tile[lane] += tile[lane + stride]
            cuda.syncwarp()
            stride //= 2
        if lane == 0:
            out[0] = tile[0]

    def wanted(x, out):
        return {"out": [x.sum()]}


class WarpScanWithoutSecondSyncwarp:
    """Prefix sums within a warp: a read and a write of the same pass also need a syncwarp between them."""

    launch = 1, 32
    findings = {
        (
            "race-shared",
            "error",
            "tile",
            ("term = tile[lane - stride] if lane >= stride else float32(0)", "read"),
            ("tile[lane] += term", "written"),
        )
    }

    def arguments():
        return np.arange(32.0, dtype=np.float32), np.zeros(32, np.float32)

    @cuda.jit
    def buggy(x, out):
        tile = cuda.shared.array(32, float32)
        lane = cuda.threadIdx.x
        tile[lane] = x[lane]
        cuda.syncwarp()
        stride = 1
        while stride < 32:
            term = tile[lane - stride] if lane >= stride else float32(0)
            tile[lane] += term
            cuda.syncwarp()
            stride *= 2
        out[lane] = tile[lane]

    @cuda.jit
    def fixed(x, out):
        tile = cuda.shared.array(32, float32)
        lane = cuda.threadIdx.x
        tile[lane] = x[lane]
        cuda.syncwarp()
        stride = 1
        while stride < 32:
            term = tile[lane - stride] if lane >= stride else float32(0)
            cuda.syncwarp()
            tile[lane] += term
            cuda.syncwarp()
            stride *= 2
        out[lane] = tile[lane]

    def wanted(x, out):
        return {"out": np.cumsum(x)}


class NeighbourWithoutSyncwarp:
    """Consecutive instructions do not order different lanes."""

    launch = 1, 32
    findings = {
        (
            "race-shared",
            "error",
            "tile",
            ("out[lane] = tile[lane ^ 1]", "read"),
            ("tile[lane] = x[lane]", "written"),
        )
    }

    def arguments():
        return np.arange(32.0, dtype=np.float32), np.zeros(32, np.float32)

    @cuda.jit
    def buggy(x, out):
        tile = cuda.shared.array(32, float32)
        lane = cuda.threadIdx.x
        tile[lane] = x[lane]
        out[lane] = tile[lane ^ 1]

    @cuda.jit
    def fixed(x, out):
        tile = cuda.shared.array(32, float32)
        lane = cuda.threadIdx.x
        tile[lane] = x[lane]
        cuda.syncwarp()
        out[lane] = tile[lane ^ 1]

    def wanted(x, out):
        return {"out": x[np.arange(32) ^ 1]}


class SyncwarpOfHalfAWarp:
    """Each half synchronises only among its own lanes and reads what the other half wrote."""

    launch = 1, 32
    findings = {
        (
            "race-shared",
            "error",
            "tile",
            ("out[lane] = tile[31 - lane]", "read"),
            ("tile[lane] = x[lane]", "written"),
        )
    }

    def arguments():
        return np.arange(32.0, dtype=np.float32), np.zeros(32, np.float32)

    @cuda.jit
    def buggy(x, out):
        tile = cuda.shared.array(32, float32)
        lane = cuda.threadIdx.x
        tile[lane] = x[lane]
        cuda.syncwarp(0xFFFF << (lane // 16 * 16))
        out[lane] = tile[31 - lane]

    @cuda.jit
    def fixed(x, out):
        tile = cuda.shared.array(32, float32)
        lane = cuda.threadIdx.x
        tile[lane] = x[lane]
        cuda.syncwarp(0xFFFF << (lane // 16 * 16))
        out[lane] = tile[lane ^ 15]

    def wanted(x, out):
        return {"out": x[np.arange(32) ^ 15]}


class ShuffleIsNoFence:
    """A shuffle exchanges registers; it does not order memory accesses."""

    launch = 1, 32
    findings = {
        (
            "race-shared",
            "error",
            "tile",
            ("out[lane] = tile[partner]", "read"),
            ("tile[lane] = x[lane]", "written"),
        )
    }

    def arguments():
        return np.arange(32.0, dtype=np.float32), np.zeros(32, np.float32)

    @cuda.jit
    def buggy(x, out):
        tile = cuda.shared.array(32, float32)
        lane = cuda.threadIdx.x
        tile[lane] = x[lane]
        partner = cuda.shfl_xor_sync(FULL, lane, 1)
        out[lane] = tile[partner]

    @cuda.jit
    def fixed(x, out):
        tile = cuda.shared.array(32, float32)
        lane = cuda.threadIdx.x
        tile[lane] = x[lane]
        partner = cuda.shfl_xor_sync(FULL, lane, 1)
        cuda.syncwarp()
        out[lane] = tile[partner]

    def wanted(x, out):
        return {"out": x[np.arange(32) ^ 1]}


class WarpsNeedABarrier:
    """Sums of two warps are combined in shared memory, but a syncwarp only orders the lanes of one warp."""

    launch = 1, 64
    findings = {
        (
            "race-shared",
            "error",
            "sums",
            ("out[0] = sums[0] + sums[1]", "read"),
            ("sums[t // 32] = value", "written"),
        )
    }

    def arguments():
        return np.arange(64, dtype=np.int32), np.zeros(1, np.int32)

    @cuda.jit
    def buggy(x, out):
        sums = cuda.shared.array(2, int32)
        t = cuda.threadIdx.x
        value = x[t]
        offset = 16
        while offset > 0:
            value += cuda.shfl_down_sync(FULL, value, offset)
            offset //= 2
        if t % 32 == 0:
            sums[t // 32] = value
        cuda.syncwarp()
        if t == 0:
            out[0] = sums[0] + sums[1]

    @cuda.jit
    def fixed(x, out):
        sums = cuda.shared.array(2, int32)
        t = cuda.threadIdx.x
        value = x[t]
        offset = 16
        while offset > 0:
            value += cuda.shfl_down_sync(FULL, value, offset)
            offset //= 2
        if t % 32 == 0:
            sums[t // 32] = value
        cuda.syncthreads()
        if t == 0:
            out[0] = sums[0] + sums[1]

    def wanted(x, out):
        return {"out": [x.sum()]}


class AtomicsWithinAWarp:
    """Lanes of one warp that increment an element without atomics race like any other threads.

    In the fixed twin, one lane adds the number of set bits in the ballot.
    """

    launch = 1, 32
    findings = {
        ("race-global", "error", "out", ("out[0] += 1", "read"), ("out[0] += 1", "written")),
        ("race-global", "error", "out", ("out[0] += 1", "written")),
    }

    def arguments():
        return np.arange(32, dtype=np.int32), np.zeros(1, np.int32)

    @cuda.jit
    def buggy(x, out):
        lane = cuda.threadIdx.x
        if x[lane] % 2:
            out[0] += 1

    @cuda.jit
    def fixed(x, out):
        lane = cuda.threadIdx.x
        odd = cuda.ballot_sync(FULL, x[lane] % 2 == 1)
        if lane == 0:
            out[0] = cuda.popc(odd)

    def wanted(x, out):
        return {"out": [16]}
