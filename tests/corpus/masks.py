"""Corpus: shuffles, votes and syncwarps whose mask does not match the participating lanes."""

import numpy as np
from numba import cuda, float32

FULL = 0xFFFFFFFF


class ShuffleInABranch:
    """The mask names all lanes, but half of them wait at the barrier after the branch."""

    launch = 1, 32
    hangs = True
    findings = {
        (
            "warp-divergence",
            "error",
            None,
            ("cuda.syncthreads()", "waits"),
            ("value = cuda.shfl_xor_sync(FULL, value, 1)", "waits"),
        )
    }

    def arguments():
        return np.arange(32, dtype=np.int32), np.zeros(32, np.int32)

    @cuda.jit
    def buggy(x, out):
        lane = cuda.threadIdx.x
        value = x[lane]
        if lane < 16:
            value = cuda.shfl_xor_sync(FULL, value, 1)
        cuda.syncthreads()
        out[lane] = value

    @cuda.jit
    def fixed(x, out):
        lane = cuda.threadIdx.x
        value = x[lane]
        if lane < 16:
            value = cuda.shfl_xor_sync(0xFFFF, value, 1)
        cuda.syncthreads()
        out[lane] = value

    def wanted(x, out):
        return {"out": np.where(np.arange(32) < 16, x[np.arange(32) ^ 1], x)}


class ShuffleInADataBranch:
    """The lanes that take the branch depend on data; a ballot before the branch returns their mask."""

    launch = 1, 32
    hangs = True
    findings = {
        (
            "warp-divergence",
            "error",
            None,
            ("cuda.syncthreads()", "waits"),
            ("out[lane] = cuda.shfl_sync(FULL, x[lane], 3)", "waits"),
        )
    }

    def arguments():
        return np.arange(32, dtype=np.int32), np.zeros(32, np.int32)

    @cuda.jit
    def buggy(x, out):
        lane = cuda.threadIdx.x
        if x[lane] % 3 == 0:
            out[lane] = cuda.shfl_sync(FULL, x[lane], 3)
        cuda.syncthreads()

    @cuda.jit
    def fixed(x, out):
        lane = cuda.threadIdx.x
        mask = cuda.ballot_sync(FULL, x[lane] % 3 == 0)
        if x[lane] % 3 == 0:
            out[lane] = cuda.shfl_sync(mask, x[lane], 3)
        cuda.syncthreads()

    def wanted(x, out):
        return {"out": np.where(x % 3 == 0, 3, 0)}


class VoteInABranch:
    """Only some lanes reach a vote with a full mask."""

    launch = 1, 32
    hangs = True
    findings = {
        (
            "warp-divergence",
            "error",
            None,
            ("cuda.syncthreads()", "waits"),
            ("if cuda.any_sync(FULL, x[lane] > 29):", "waits"),
        )
    }

    def arguments():
        return np.arange(32, dtype=np.int32), np.zeros(32, np.int32)

    @cuda.jit
    def buggy(x, out):
        lane = cuda.threadIdx.x
        if lane % 2 == 0:
            if cuda.any_sync(FULL, x[lane] > 29):
                out[lane] = 1
        cuda.syncthreads()

    @cuda.jit
    def fixed(x, out):
        lane = cuda.threadIdx.x
        large = cuda.any_sync(FULL, lane % 2 == 0 and x[lane] > 29)
        if lane % 2 == 0 and large:
            out[lane] = 1
        cuda.syncthreads()

    def wanted(x, out):
        return {"out": np.arange(32) % 2 == 0}


class SyncwarpInALoop:
    """A loop contains a syncwarp, and its lanes run different numbers of iterations."""

    launch = 1, 32
    hangs = True
    findings = {
        ("warp-divergence", "error", None, ("cuda.syncthreads()", "waits"), ("cuda.syncwarp()", "waits"))
    }

    def arguments():
        return (np.zeros(32, np.int32),)

    @cuda.jit
    def buggy(out):
        lane = cuda.threadIdx.x
        for k in range(lane % 2 + 1):
            out[lane] += 1
            cuda.syncwarp()
        cuda.syncthreads()

    @cuda.jit
    def fixed(out):
        lane = cuda.threadIdx.x
        for k in range(2):
            if k < lane % 2 + 1:
                out[lane] += 1
            cuda.syncwarp()
        cuda.syncthreads()

    def wanted(out):
        return {"out": np.arange(32) % 2 + 1}


class MaskOmitsTheCaller:
    """All lanes call with a mask that names the lower half. The upper half receives undefined values."""

    launch = 1, 32
    hangs = True
    findings = {
        ("warp-divergence", "error", None, ("out[lane] = cuda.shfl_xor_sync(0xFFFF, x[lane], 1)", "calls"))
    }

    def arguments():
        return np.arange(32, dtype=np.int32), np.zeros(32, np.int32)

    @cuda.jit
    def buggy(x, out):
        lane = cuda.threadIdx.x
        out[lane] = cuda.shfl_xor_sync(0xFFFF, x[lane], 1)

    @cuda.jit
    def fixed(x, out):
        lane = cuda.threadIdx.x
        out[lane] = cuda.shfl_xor_sync(FULL, x[lane], 1)

    def wanted(x, out):
        return {"out": x[np.arange(32) ^ 1]}


class SyncwarpOmitsTheCaller:
    """A syncwarp does not order lanes that its mask omits."""

    launch = 1, 32
    hangs = True
    findings = {
        (
            "race-shared",
            "error",
            "tile",
            ("out[lane] = tile[31 - lane]", "read"),
            ("tile[lane] = x[lane]", "written"),
        ),
        ("warp-divergence", "error", None, ("cuda.syncwarp(0xFFFF)", "calls")),
    }

    def arguments():
        return np.arange(32.0, dtype=np.float32), np.zeros(32, np.float32)

    @cuda.jit
    def buggy(x, out):
        tile = cuda.shared.array(32, float32)
        lane = cuda.threadIdx.x
        tile[lane] = x[lane]
        cuda.syncwarp(0xFFFF)
        out[lane] = tile[31 - lane]

    @cuda.jit
    def fixed(x, out):
        tile = cuda.shared.array(32, float32)
        lane = cuda.threadIdx.x
        tile[lane] = x[lane]
        cuda.syncwarp(FULL)
        out[lane] = tile[31 - lane]

    def wanted(x, out):
        return {"out": x[::-1]}


class ReturnedBeforeTheShuffle:
    """Lanes without data have returned, so the other lanes add undefined values to their sums."""

    launch = 1, 32
    findings = {
        ("warp-divergence", "error", None, ("value += cuda.shfl_down_sync(FULL, value, offset)", "calls"))
    }

    def arguments():
        return np.arange(20, dtype=np.int32), np.zeros(1, np.int32)

    @cuda.jit
    def buggy(x, out):
        lane = cuda.threadIdx.x
        if lane >= x.shape[0]:
            return
        value = x[lane]
        offset = 16
        while offset > 0:
            value += cuda.shfl_down_sync(FULL, value, offset)
            offset //= 2
        if lane == 0:
            out[0] = value

    @cuda.jit
    def fixed(x, out):
        lane = cuda.threadIdx.x
        value = x[lane] if lane < x.shape[0] else 0
        offset = 16
        while offset > 0:
            value += cuda.shfl_down_sync(FULL, value, offset)
            offset //= 2
        if lane == 0:
            out[0] = value

    def wanted(x, out):
        return {"out": [x.sum()]}


class LanesThatDoNotExist:
    """In a block of 24 threads, lanes 24 to 31 do not exist, but other lanes read from them.

    The fixed twin has a matching mask and matching steps.
    """

    launch = 1, 24
    findings = {
        ("warp-divergence", "error", None, ("out[lane] = cuda.shfl_xor_sync(FULL, x[lane], 8)", "calls"))
    }

    def arguments():
        return np.arange(24, dtype=np.int32), np.zeros(24, np.int32)

    @cuda.jit
    def buggy(x, out):
        lane = cuda.threadIdx.x
        out[lane] = cuda.shfl_xor_sync(FULL, x[lane], 8)

    @cuda.jit
    def fixed(x, out):
        lane = cuda.threadIdx.x
        out[lane] = cuda.shfl_xor_sync(0xFFFFFF, x[lane], 4)

    def wanted(x, out):
        return {"out": x[np.arange(24) ^ 4]}


class TreeOfSixteenLanes:
    """A sum over 16 lanes starts with steps of 16 instead of 8, and adds values from lanes that do not exist.

    In the correct tree, some lanes also read from such lanes, but no lane uses their results.
    """

    launch = 1, 16
    findings = {
        ("warp-divergence", "error", None, ("value += cuda.shfl_down_sync(0xFFFF, value, step)", "calls"))
    }

    def arguments():
        return np.arange(16, dtype=np.float32), np.zeros(1, np.float32)

    @cuda.jit
    def buggy(x, out):
        value = x[cuda.threadIdx.x]
        for step in (16, 8, 4, 2, 1):
            value += cuda.shfl_down_sync(0xFFFF, value, step)
        if cuda.threadIdx.x == 0:
            out[0] = value

    @cuda.jit
    def fixed(x, out):
        value = x[cuda.threadIdx.x]
        for step in (8, 4, 2, 1):
            value += cuda.shfl_down_sync(0xFFFF, value, step)
        if cuda.threadIdx.x == 0:
            out[0] = value

    def wanted(x, out):
        return {"out": [120]}
