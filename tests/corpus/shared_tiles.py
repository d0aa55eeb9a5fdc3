"""Corpus: tiles in shared memory that are read before they are loaded, or overwritten while still being
read."""

import numpy as np
from numba import cuda, float32, float64


class ReverseWithoutBarrier:
    """The barrier after the load is missing, so a thread may read an element before another thread writes
    it."""

    launch = 1, 16
    findings = {
        ("race-shared", "error", "tile", ("out[t] = tile[15 - t]", "read"), ("tile[t] = x[t]", "written"))
    }

    def arguments():
        return np.arange(16.0, dtype=np.float32), np.zeros(16, np.float32)

    @cuda.jit
    def buggy(x, out):
        tile = cuda.shared.array(16, float32)
        t = cuda.threadIdx.x
        tile[t] = x[t]
        out[t] = tile[15 - t]

    @cuda.jit
    def fixed(x, out):
        tile = cuda.shared.array(16, float32)
        t = cuda.threadIdx.x
        tile[t] = x[t]
        cuda.syncthreads()
        out[t] = tile[15 - t]

    def wanted(x, out):
        return {"out": x[::-1]}


class TileOverwrittenTooEarly:
    """The next tile is loaded while other threads still read this one. A loop over tiles needs two
    barriers."""

    launch = 1, 8
    findings = {
        (
            "race-shared",
            "error",
            "tile",
            ("tile[t] = x[first + t]", "written"),
            ("total += tile[7 - t]", "read"),
        )
    }

    def arguments():
        return np.arange(24.0, dtype=np.float32), np.zeros(8, np.float32)

    @cuda.jit
    def buggy(x, out):
        tile = cuda.shared.array(8, float32)
        t = cuda.threadIdx.x
        total = float32(0)
        for first in range(0, 24, 8):
            tile[t] = x[first + t]
            cuda.syncthreads()
            total += tile[7 - t]
        out[t] = total

    @cuda.jit
    def fixed(x, out):
        tile = cuda.shared.array(8, float32)
        t = cuda.threadIdx.x
        total = float32(0)
        for first in range(0, 24, 8):
            tile[t] = x[first + t]
            cuda.syncthreads()
            total += tile[7 - t]
            cuda.syncthreads()
        out[t] = total

    def wanted(x, out):
        return {"out": x.reshape(3, 8).sum(0)[::-1]}


class BroadcastReused:
    """A value broadcast in a loop needs a barrier before the next one overwrites it."""

    launch = 1, 8
    findings = {("race-shared", "error", "row", ("row[0] = x[k]", "written"), ("total += row[0]", "read"))}

    def arguments():
        return np.arange(3.0, dtype=np.float32), np.zeros(8, np.float32)

    @cuda.jit
    def buggy(x, out):
        row = cuda.shared.array(1, float32)
        t = cuda.threadIdx.x
        total = float32(0)
        for k in range(3):
            if t == 0:
                row[0] = x[k]
            cuda.syncthreads()
            total += row[0]
        out[t] = total

    @cuda.jit
    def fixed(x, out):
        row = cuda.shared.array(1, float32)
        t = cuda.threadIdx.x
        total = float32(0)
        for k in range(3):
            if t == 0:
                row[0] = x[k]
            cuda.syncthreads()
            total += row[0]
            cuda.syncthreads()
        out[t] = total

    def wanted(x, out):
        return {"out": np.full(8, x.sum())}


class StencilWithoutBarrier:
    """A tile with a halo on both sides is read before the neighbours have loaded their part."""

    launch = 2, 8
    findings = {
        (
            "race-shared",
            "error",
            "tile",
            ("out[i] = tile[t] + tile[t + 1] + tile[t + 2]", "read"),
            ("tile[t + 8] = x[i + 8]", "written"),
        ),
        (
            "race-shared",
            "error",
            "tile",
            ("out[i] = tile[t] + tile[t + 1] + tile[t + 2]", "read"),
            ("tile[t] = x[i]", "written"),
        ),
    }

    def arguments():
        return np.arange(18.0, dtype=np.float32), np.zeros(16, np.float32)

    @cuda.jit
    def buggy(x, out):
        tile = cuda.shared.array(10, float32)
        t = cuda.threadIdx.x
        i = cuda.grid(1)
        tile[t] = x[i]
        if t < 2:
            tile[t + 8] = x[i + 8]
        out[i] = tile[t] + tile[t + 1] + tile[t + 2]

    @cuda.jit
    def fixed(x, out):
        tile = cuda.shared.array(10, float32)
        t = cuda.threadIdx.x
        i = cuda.grid(1)
        tile[t] = x[i]
        if t < 2:
            tile[t + 8] = x[i + 8]
        cuda.syncthreads()
        out[i] = tile[t] + tile[t + 1] + tile[t + 2]

    def wanted(x, out):
        return {"out": x[:-2] + x[1:-1] + x[2:]}


class HaloLoadedBehindTheBarrier:
    """The tile is loaded before the barrier, but its halo is loaded after the barrier."""

    launch = 1, 8
    findings = {
        (
            "race-shared",
            "error",
            "tile",
            ("out[t] = tile[t + 2] - tile[t]", "read"),
            ("tile[t + 8] = x[t + 8]", "written"),
        )
    }

    def arguments():
        return np.arange(10.0, dtype=np.float32), np.zeros(8, np.float32)

    @cuda.jit
    def buggy(x, out):
        tile = cuda.shared.array(10, float32)
        t = cuda.threadIdx.x
        tile[t] = x[t]
        cuda.syncthreads()
        if t < 2:
            tile[t + 8] = x[t + 8]
        out[t] = tile[t + 2] - tile[t]

    @cuda.jit
    def fixed(x, out):
        tile = cuda.shared.array(10, float32)
        t = cuda.threadIdx.x
        tile[t] = x[t]
        if t < 2:
            tile[t + 8] = x[t + 8]
        cuda.syncthreads()
        out[t] = tile[t + 2] - tile[t]

    def wanted(x, out):
        return {"out": x[2:] - x[:-2]}


class TransposeWithoutBarrier:
    """A tile is written by rows and read by columns."""

    launch = 1, (4, 4)
    findings = {
        (
            "race-shared",
            "error",
            "tile",
            ("out[y, x] = tile[x, y]", "read"),
            ("tile[y, x] = a[y, x]", "written"),
        )
    }

    def arguments():
        return np.arange(16.0, dtype=np.float32).reshape(4, 4), np.zeros((4, 4), np.float32)

    @cuda.jit
    def buggy(a, out):
        tile = cuda.shared.array((4, 5), float32)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        tile[y, x] = a[y, x]
        out[y, x] = tile[x, y]

    @cuda.jit
    def fixed(a, out):
        tile = cuda.shared.array((4, 5), float32)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        tile[y, x] = a[y, x]
        cuda.syncthreads()
        out[y, x] = tile[x, y]

    def wanted(a, out):
        return {"out": a.T}


class MatmulWithoutFirstBarrier:
    """A tiled product multiplies before both tiles are loaded."""

    launch = (2, 2), (2, 2)
    findings = {
        (
            "race-shared",
            "error",
            "tile_a",
            ("tile_a[y, x] = a[row, first + x]", "written"),
            ("total += tile_a[y, k] * tile_b[k, x]", "read"),
        ),
        (
            "race-shared",
            "error",
            "tile_b",
            ("tile_b[y, x] = b[first + y, column]", "written"),
            ("total += tile_a[y, k] * tile_b[k, x]", "read"),
        ),
    }

    def arguments():
        return np.arange(16.0).reshape(4, 4), np.arange(16.0, 32).reshape(4, 4), np.zeros((4, 4))

    @cuda.jit
    def buggy(a, b, c):
        tile_a = cuda.shared.array((2, 2), float64)
        tile_b = cuda.shared.array((2, 2), float64)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        column, row = cuda.grid(2)
        total = 0.0
        for first in range(0, 4, 2):
            tile_a[y, x] = a[row, first + x]
            tile_b[y, x] = b[first + y, column]
            for k in range(2):
                total += tile_a[y, k] * tile_b[k, x]
            cuda.syncthreads()
        c[row, column] = total

    @cuda.jit
    def fixed(a, b, c):
        tile_a = cuda.shared.array((2, 2), float64)
        tile_b = cuda.shared.array((2, 2), float64)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        column, row = cuda.grid(2)
        total = 0.0
        for first in range(0, 4, 2):
            tile_a[y, x] = a[row, first + x]
            tile_b[y, x] = b[first + y, column]
            cuda.syncthreads()
            for k in range(2):
                total += tile_a[y, k] * tile_b[k, x]
            cuda.syncthreads()
        c[row, column] = total

    def wanted(a, b, c):
        return {"c": a @ b}


class MatmulWithoutSecondBarrier:
    """In a tiled product, fast threads load the next tiles while slow ones still multiply."""

    launch = (2, 2), (2, 2)
    findings = {
        (
            "race-shared",
            "error",
            "tile_a",
            ("tile_a[y, x] = a[row, first + x]", "written"),
            ("total += tile_a[y, k] * tile_b[k, x]", "read"),
        ),
        (
            "race-shared",
            "error",
            "tile_b",
            ("tile_b[y, x] = b[first + y, column]", "written"),
            ("total += tile_a[y, k] * tile_b[k, x]", "read"),
        ),
    }

    def arguments():
        return np.arange(16.0).reshape(4, 4), np.arange(16.0, 32).reshape(4, 4), np.zeros((4, 4))

    @cuda.jit
    def buggy(a, b, c):
        tile_a = cuda.shared.array((2, 2), float64)
        tile_b = cuda.shared.array((2, 2), float64)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        column, row = cuda.grid(2)
        total = 0.0
        for first in range(0, 4, 2):
            tile_a[y, x] = a[row, first + x]
            tile_b[y, x] = b[first + y, column]
            cuda.syncthreads()
            for k in range(2):
                total += tile_a[y, k] * tile_b[k, x]
        c[row, column] = total

    @cuda.jit
    def fixed(a, b, c):
        tile_a = cuda.shared.array((2, 2), float64)
        tile_b = cuda.shared.array((2, 2), float64)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        column, row = cuda.grid(2)
        total = 0.0
        for first in range(0, 4, 2):
            tile_a[y, x] = a[row, first + x]
            tile_b[y, x] = b[first + y, column]
            cuda.syncthreads()
            for k in range(2):
                total += tile_a[y, k] * tile_b[k, x]
            cuda.syncthreads()
        c[row, column] = total

    def wanted(a, b, c):
        return {"c": a @ b}


class SharedArrayOfTwoPhases:
    """One array serves two phases, without a barrier between the last read of the first and the first write
    of the second."""

    launch = 1, 8
    findings = {
        (
            "race-shared",
            "error",
            "shared",
            ("after = shared[(t + 1) % 8]", "read"),
            ("shared[t] = after * after", "written"),
        )
    }

    def arguments():
        return np.arange(8.0, dtype=np.float32), np.zeros(8, np.float32)

    @cuda.jit
    def buggy(x, out):
        shared = cuda.shared.array(8, float32)
        t = cuda.threadIdx.x
        shared[t] = x[t]
        cuda.syncthreads()
        after = shared[(t + 1) % 8]
        shared[t] = after * after
        cuda.syncthreads()
        out[t] = shared[(t + 1) % 8]

    @cuda.jit
    def fixed(x, out):
        shared = cuda.shared.array(8, float32)
        t = cuda.threadIdx.x
        shared[t] = x[t]
        cuda.syncthreads()
        after = shared[(t + 1) % 8]
        cuda.syncthreads()
        shared[t] = after * after
        cuda.syncthreads()
        out[t] = shared[(t + 1) % 8]

    def wanted(x, out):
        return {"out": np.roll(x, -2) ** 2}


class SecondAxisForgotten:
    """A two-dimensional block uses only one index, so every row of threads writes the same cells."""

    launch = 1, (4, 2)
    findings = {("race-shared", "error", "tile", ("tile[x] = a[y, x]", "written"))}

    def arguments():
        return np.arange(8.0, dtype=np.float32).reshape(2, 4), np.zeros((2, 4), np.float32)

    @cuda.jit
    def buggy(a, out):
        tile = cuda.shared.array(4, float32)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        tile[x] = a[y, x]
        cuda.syncthreads()
        out[y, x] = tile[3 - x]

    @cuda.jit
    def fixed(a, out):
        tile = cuda.shared.array((2, 4), float32)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        tile[y, x] = a[y, x]
        cuda.syncthreads()
        out[y, x] = tile[y, 3 - x]

    def wanted(a, out):
        return {"out": a[:, ::-1]}
