"""Corpus: reads of shared memory that was never written."""

import numpy as np
from numba import cuda, float32, int32

FOUND = 7


class HaloNeverLoaded:
    """The tile has a halo on both sides, but only the middle is loaded."""

    launch = 1, 8
    findings = {
        ("uninitialized-read", "error", "tile", ("out[t] = tile[t] + tile[t + 1] + tile[t + 2]", "read"))
    }

    def arguments():
        return np.arange(1.0, 9, dtype=np.float32), np.zeros(8, np.float32)

    @cuda.jit
    def buggy(x, out):
        tile = cuda.shared.array(10, float32)
        t = cuda.threadIdx.x
        tile[t + 1] = x[t]
        cuda.syncthreads()
        out[t] = tile[t] + tile[t + 1] + tile[t + 2]

    @cuda.jit
    def fixed(x, out):
        tile = cuda.shared.array(10, float32)
        t = cuda.threadIdx.x
        tile[t + 1] = x[t]
        if t < 2:
            tile[9 * t] = 0
        cuda.syncthreads()
        out[t] = tile[t] + tile[t + 1] + tile[t + 2]

    def wanted(x, out):
        return {"out": np.convolve(x, np.ones(3), "same")}


class RaggedTile:
    """The guard keeps the last threads from loading, but the sum includes their cells."""

    launch = 2, 8
    findings = {("uninitialized-read", "error", "tile", ("total += tile[k]", "read"))}

    def arguments():
        return np.arange(13.0, dtype=np.float32), np.zeros(2, np.float32)

    @cuda.jit
    def buggy(x, out):
        tile = cuda.shared.array(8, float32)
        t = cuda.threadIdx.x
        i = cuda.grid(1)
        if i < x.shape[0]:
            tile[t] = x[i]
        cuda.syncthreads()
        if t == 0:
            total = float32(0)
            for k in range(8):
                total += tile[k]
            out[cuda.blockIdx.x] = total

    @cuda.jit
    def fixed(x, out):
        tile = cuda.shared.array(8, float32)
        t = cuda.threadIdx.x
        i = cuda.grid(1)
        tile[t] = x[i] if i < x.shape[0] else 0
        cuda.syncthreads()
        if t == 0:
            total = float32(0)
            for k in range(8):
                total += tile[k]
            out[cuda.blockIdx.x] = total

    def wanted(x, out):
        return {"out": [x[:8].sum(), x[8:].sum()]}


class SharedBinsNotZeroed:
    """An atomic addition reads the element that it changes."""

    launch = 1, 8
    findings = {("uninitialized-read", "error", "bins", ("cuda.atomic.add(bins, x[t], 1)", "changed"))}

    def arguments():
        return np.arange(8) % 4, np.zeros(4, np.int32)

    @cuda.jit
    def buggy(x, out):
        bins = cuda.shared.array(4, int32)
        t = cuda.threadIdx.x
        cuda.atomic.add(bins, x[t], 1)
        cuda.syncthreads()
        if t < 4:
            out[t] = bins[t]

    @cuda.jit
    def fixed(x, out):
        bins = cuda.shared.array(4, int32)
        t = cuda.threadIdx.x
        if t < 4:
            cuda.atomic.exch(bins, t, 0)
        cuda.syncthreads()
        cuda.atomic.add(bins, x[t], 1)
        cuda.syncthreads()
        if t < 4:
            out[t] = bins[t]

    def wanted(x, out):
        return {"out": np.bincount(x)}


class ReadBeforeTheFirstLoad:
    """A loop uses a tile before loading it."""

    launch = 1, 8
    findings = {("uninitialized-read", "error", "tile", ("total += tile[7 - t]", "read"))}

    def arguments():
        return np.arange(16.0, dtype=np.float32), np.zeros(8, np.float32)

    @cuda.jit
    def buggy(x, out):
        tile = cuda.shared.array(8, float32)
        t = cuda.threadIdx.x
        total = float32(0)
        for first in range(0, 16, 8):
            total += tile[7 - t]
            cuda.syncthreads()
            tile[t] = x[first + t]
            cuda.syncthreads()
        out[t] = total

    @cuda.jit
    def fixed(x, out):
        tile = cuda.shared.array(8, float32)
        t = cuda.threadIdx.x
        total = float32(0)
        for first in range(0, 16, 8):
            tile[t] = x[first + t]
            cuda.syncthreads()
            total += tile[7 - t]
            cuda.syncthreads()
        out[t] = total

    def wanted(x, out):
        return {"out": (x[:8] + x[8:])[::-1]}


class OtherHalfOfTheBuffer:
    """Of two alternating buffers, the first read uses the one that is still empty."""

    launch = 1, 8
    findings = {("uninitialized-read", "error", "buffers", ("out[t] = buffers[1 - current, 7 - t]", "read"))}

    def arguments():
        return np.arange(8.0, dtype=np.float32), np.zeros(8, np.float32)

    @cuda.jit
    def buggy(x, out):
        buffers = cuda.shared.array((2, 8), float32)
        t = cuda.threadIdx.x
        current = 0
        buffers[current, t] = x[t]
        cuda.syncthreads()
        out[t] = buffers[1 - current, 7 - t]

    @cuda.jit
    def fixed(x, out):
        buffers = cuda.shared.array((2, 8), float32)
        t = cuda.threadIdx.x
        current = 0
        buffers[current, t] = x[t]
        cuda.syncthreads()
        out[t] = buffers[current, 7 - t]

    def wanted(x, out):
        return {"out": x[::-1]}


class SharedMemoryOfTheBlockBefore:
    """Shared memory lives as long as its block: the second block cannot read what the first one stored."""

    launch = 2, 4
    findings = {("uninitialized-read", "error", "cache", ("out[cuda.grid(1)] = cache[3 - t]", "read"))}

    def arguments():
        return np.arange(4.0, dtype=np.float32), np.zeros(8, np.float32)

    @cuda.jit
    def buggy(table, out):
        cache = cuda.shared.array(4, float32)
        t = cuda.threadIdx.x
        if cuda.blockIdx.x == 0:
            cache[t] = table[t]
        cuda.syncthreads()
        out[cuda.grid(1)] = cache[3 - t]

    @cuda.jit
    def fixed(table, out):
        cache = cuda.shared.array(4, float32)
        t = cuda.threadIdx.x
        cache[t] = table[t]
        cuda.syncthreads()
        out[cuda.grid(1)] = cache[3 - t]

    def wanted(table, out):
        return {"out": np.tile(table[::-1], 2)}


class MoreDynamicThanLoaded:
    """A sum over the whole dynamic shared memory, but the block has loaded only half of it."""

    launch = 1, 8, 0, 64
    findings = {("uninitialized-read", "error", "tile", ("total += tile[k]", "read"))}

    def arguments():
        return np.arange(8.0, dtype=np.float32), np.zeros(1, np.float32)

    @cuda.jit
    def buggy(x, out):
        tile = cuda.shared.array(0, float32)
        t = cuda.threadIdx.x
        tile[t] = x[t]
        cuda.syncthreads()
        if t == 0:
            total = float32(0)
            for k in range(16):
                total += tile[k]
            out[0] = total

    @cuda.jit
    def fixed(x, out):
        tile = cuda.shared.array(0, float32)
        t = cuda.threadIdx.x
        tile[t] = x[t]
        cuda.syncthreads()
        if t == 0:
            total = float32(0)
            for k in range(8):
                total += tile[k]
            out[0] = total

    def wanted(x, out):
        return {"out": [x.sum()]}


class BytesOfAnotherType:
    """Half of each word is written, but all of it is read."""

    launch = 1, 4, 0, 16
    findings = {("uninitialized-read", "error", "low", ("out[t] = words[t]", "read"))}

    def arguments():
        return np.arange(4.0, dtype=np.float32), np.zeros(4, np.int32)

    @cuda.jit
    def buggy(x, out):
        low = cuda.shared.array(0, np.int16)
        words = cuda.shared.array(0, int32)
        t = cuda.threadIdx.x
        low[2 * t] = int(x[t])
        out[t] = words[t]

    @cuda.jit
    def fixed(x, out):
        low = cuda.shared.array(0, np.int16)
        words = cuda.shared.array(0, int32)
        t = cuda.threadIdx.x
        low[2 * t] = int(x[t])
        low[2 * t + 1] = 0
        out[t] = words[t]

    def wanted(x, out):
        return {"out": x}


class FlagNeverCleared:
    """A flag is set when something is found, but never cleared; only a branch depends on it."""

    launch = 1, 8
    findings = {("uninitialized-read", "error", "state", ("if state[0] == FOUND:", "read"))}

    def arguments():
        return np.arange(8.0), np.zeros(8)

    @cuda.jit
    def buggy(x, out):
        state = cuda.shared.array(1, int32)
        t = cuda.threadIdx.x
        if x[t] > 100:
            state[0] = FOUND
        cuda.syncthreads()
        if state[0] == FOUND:
            out[t] = x[t]

    @cuda.jit
    def fixed(x, out):
        state = cuda.shared.array(1, int32)
        t = cuda.threadIdx.x
        if t == 0:
            state[0] = 0
        cuda.syncthreads()
        if x[t] > 100:
            state[0] = FOUND
        cuda.syncthreads()
        if state[0] == FOUND:
            out[t] = x[t]
        else:
            out[t] = -1

    def wanted(x, out):
        return {"out": np.full(8, -1)}
