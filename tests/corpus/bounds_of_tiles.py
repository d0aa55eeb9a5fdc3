"""Corpus: indices outside shared, local and constant arrays, and indices read from data."""

import itertools

import numpy as np
from numba import cuda, float32

TAPS = np.array([0.25, 0.5, 0.25])


def windows(x):
    """Return x[i - 1] + x[i] + x[i + 1], with zeros beyond both ends."""
    padded = np.pad(x, 1)
    return padded[:-2] + padded[1:-1] + padded[2:]


class SharedTooSmall:
    """The tile has 16 elements, but the block has more threads."""

    launch = 1, 16
    findings = {
        ("out-of-bounds", "error", "tile", ("out[t] = tile[15 - t]", "read")),
        ("out-of-bounds", "error", "tile", ("tile[t] = x[t]", "written")),
    }

    def arguments():
        return np.arange(16.0, dtype=np.float32), np.zeros(16, np.float32)

    @cuda.jit
    def buggy(x, out):
        tile = cuda.shared.array(12, float32)
        t = cuda.threadIdx.x
        tile[t] = x[t]
        cuda.syncthreads()
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


class SharedHaloTooShort:
    """A tile with a halo of one on each side needs two extra cells, not one."""

    launch = 1, 8
    findings = {
        ("out-of-bounds", "error", "tile", ("out[t] = tile[t] + tile[t + 1] + tile[t + 2]", "read")),
        ("out-of-bounds", "error", "tile", ("tile[t + 2] = 0", "written")),
    }

    def arguments():
        return np.arange(1.0, 9, dtype=np.float32), np.zeros(8, np.float32)

    @cuda.jit
    def buggy(x, out):
        tile = cuda.shared.array(9, float32)
        t = cuda.threadIdx.x
        tile[t + 1] = x[t]
        if t == 0:
            tile[0] = 0
        if t == 7:
            tile[t + 2] = 0
        cuda.syncthreads()
        out[t] = tile[t] + tile[t + 1] + tile[t + 2]

    @cuda.jit
    def fixed(x, out):
        tile = cuda.shared.array(10, float32)
        t = cuda.threadIdx.x
        tile[t + 1] = x[t]
        if t == 0:
            tile[0] = 0
        if t == 7:
            tile[t + 2] = 0
        cuda.syncthreads()
        out[t] = tile[t] + tile[t + 1] + tile[t + 2]

    def wanted(x, out):
        return {"out": windows(x)}


class LocalArrayTooShort:
    """A window of five elements is stored in an array of four."""

    launch = 1, 4
    findings = {("out-of-bounds", "error", "window", ("window[k] = x[i + k]", "written"))}

    def arguments():
        return np.arange(8.0), np.zeros(4)

    @cuda.jit
    def buggy(x, out):
        window = cuda.local.array(4, float32)
        i = cuda.grid(1)
        for k in range(5):
            window[k] = x[i + k]
        out[i] = window[0] + window[1] + window[2] + window[3]

    @cuda.jit
    def fixed(x, out):
        window = cuda.local.array(4, float32)
        i = cuda.grid(1)
        for k in range(4):
            window[k] = x[i + k]
        out[i] = window[0] + window[1] + window[2] + window[3]

    def wanted(x, out):
        return {"out": np.array([x[i : i + 4].sum() for i in range(4)])}


class TapsOfConstantMemory:
    """A loop reads one element too many from a filter in constant memory."""

    launch = 1, 8
    findings = {("out-of-bounds", "error", "a global array", ("total += taps[k] * x[i + k]", "read"))}

    def arguments():
        return np.arange(12.0), np.zeros(8)

    @cuda.jit
    def buggy(x, out):
        taps = cuda.const.array_like(TAPS)
        i = cuda.grid(1)
        total = 0.0
        for k in range(4):
            total += taps[k] * x[i + k]
        out[i] = total

    @cuda.jit
    def fixed(x, out):
        taps = cuda.const.array_like(TAPS)
        i = cuda.grid(1)
        total = 0.0
        for k in range(taps.shape[0]):
            total += taps[k] * x[i + k]
        out[i] = total

    def wanted(x, out):
        return {"out": np.convolve(x, TAPS, "valid")[:8]}


class RowView:
    """A loop over a row view runs one element too far; the bytes after it belong to the next row."""

    launch = 1, 3
    findings = {("out-of-bounds", "error", "a", ("total += row[j]", "read"))}

    def arguments():
        return np.arange(12.0).reshape(3, 4), np.zeros(3)

    @cuda.jit
    def buggy(a, out):
        i = cuda.grid(1)
        row = a[i, :]
        total = 0.0
        for j in range(5):
            total += row[j]
        out[i] = total

    @cuda.jit
    def fixed(a, out):
        i = cuda.grid(1)
        row = a[i, :]
        total = 0.0
        for j in range(4):
            total += row[j]
        out[i] = total

    def wanted(a, out):
        return {"out": a.sum(1)}


class GatherFromOne:
    """The index table is one-based, as if written for another language."""

    launch = 1, 8
    findings = {("out-of-bounds", "error", "x", ("out[i] = x[places[i]]", "read"))}

    def arguments():
        return np.arange(8.0), np.array([3, 1, 8, 2, 5, 4, 7, 6], np.uint8), np.zeros(8)

    @cuda.jit
    def buggy(x, places, out):
        i = cuda.grid(1)
        out[i] = x[places[i]]

    @cuda.jit
    def fixed(x, places, out):
        i = cuda.grid(1)
        out[i] = x[places[i] - 1]

    def wanted(x, places, out):
        return {"out": x[places - 1]}


class OneVertexTooMany:
    """In a graph in compressed sparse row format, the row after the last has a start but no end."""

    launch = 1, 8
    findings = {("out-of-bounds", "error", "rows", ("end = rows[vertex + 1]", "read"))}

    def arguments():
        return np.array([0, 2, 3, 3, 6, 7]), np.array([1, 2, 0, 1, 2, 4, 3]), np.zeros(5, np.int64)

    @cuda.jit
    def buggy(rows, neighbours, out):
        vertex = cuda.grid(1)
        if vertex <= out.shape[0]:
            begin = rows[vertex]
            end = rows[vertex + 1]
            total = 0
            for edge in range(begin, end):
                total += neighbours[edge]
            if vertex < out.shape[0]:
                out[vertex] = total

    @cuda.jit
    def fixed(rows, neighbours, out):
        vertex = cuda.grid(1)
        if vertex < out.shape[0]:
            begin = rows[vertex]
            end = rows[vertex + 1]
            total = 0
            for edge in range(begin, end):
                total += neighbours[edge]
            out[vertex] = total

    def wanted(rows, neighbours, out):
        return {"out": np.array([neighbours[b:e].sum() for b, e in itertools.pairwise(rows)])}


class HistogramOfTheLargest:
    """The largest value belongs to the last bin, but is counted one bin after it."""

    launch = 1, 16
    findings = {("out-of-bounds", "error", "bins", ("cuda.atomic.add(bins, int(x[i] * 4), 1)", "changed"))}

    def arguments():
        return np.arange(16.0) / 15, np.zeros(4, np.int64)

    @cuda.jit
    def buggy(x, bins):
        i = cuda.grid(1)
        cuda.atomic.add(bins, int(x[i] * 4), 1)

    @cuda.jit
    def fixed(x, bins):
        i = cuda.grid(1)
        cuda.atomic.add(bins, min(int(x[i] * 4), 3), 1)

    def wanted(x, bins):
        return {"bins": np.histogram(x, 4, (0, 1))[0]}
