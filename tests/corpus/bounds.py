"""Corpus: accesses outside their array, and indices that wrap at its front."""
import numpy as np
from numba import cuda, float32, uint32

TAPS = np.array([0.25, 0.5, 0.25])


def windows(x):
    """x[i - 1] + x[i] + x[i + 1] with zeros beyond both ends."""
    padded = np.pad(x, 1)
    return padded[:-2] + padded[1:-1] + padded[2:]


class NoGuard:
    """The grid has more threads than the array has elements."""

    launch = 2, 8

    def arguments():
        return np.arange(13.0), np.zeros(13)

    @cuda.jit
    def buggy(x, out):
        i = cuda.grid(1)
        out[i] = 2 * x[i]

    @cuda.jit
    def fixed(x, out):
        i = cuda.grid(1)
        if i < out.shape[0]:
            out[i] = 2 * x[i]

    def wanted(x, out):
        return {"out": 2 * x}


class GuardOffByOne:
    """`<=` where `<` belongs."""

    launch = 2, 8

    def arguments():
        return np.arange(13.0), np.zeros(13), 13

    @cuda.jit
    def buggy(x, out, n):
        i = cuda.grid(1)
        if i <= n:
            out[i] = x[i] + 1

    @cuda.jit
    def fixed(x, out, n):
        i = cuda.grid(1)
        if i < n:
            out[i] = x[i] + 1

    def wanted(x, out, n):
        return {"out": x + 1}


class SwappedAxes:
    """x is the column and y the row, so an element is [y, x]."""

    launch = (2, 2), (4, 2)

    def arguments():
        return np.arange(15.0).reshape(3, 5), np.zeros((3, 5))

    @cuda.jit
    def buggy(a, out):
        x, y = cuda.grid(2)
        if x < a.shape[1] and y < a.shape[0]:
            out[x, y] = -a[x, y]

    @cuda.jit
    def fixed(a, out):
        x, y = cuda.grid(2)
        if x < a.shape[1] and y < a.shape[0]:
            out[y, x] = -a[y, x]

    def wanted(a, out):
        return {"out": -a}


class StencilBothEnds:
    """A stencil whose neighbours are missing at both ends; at the front the index wraps."""

    launch = 1, 8

    def arguments():
        return np.arange(1.0, 9), np.zeros(8)

    @cuda.jit
    def buggy(x, out):
        i = cuda.grid(1)
        left = x[i - 1]
        right = x[i + 1]
        out[i] = left + x[i] + right

    @cuda.jit
    def fixed(x, out):
        i = cuda.grid(1)
        left = x[i - 1] if i > 0 else 0.0
        right = x[i + 1] if i < x.shape[0] - 1 else 0.0
        out[i] = left + x[i] + right

    def wanted(x, out):
        return {"out": windows(x)}


class ReversedByOneTooFar:
    """Counting from the end starts at n - 1; from n - 2 the last index is -1, which wraps."""

    launch = 1, 8

    def arguments():
        return np.arange(8.0), np.zeros(8)

    @cuda.jit
    def buggy(x, out):
        i = cuda.grid(1)
        out[i] = x[x.shape[0] - 2 - i]

    @cuda.jit
    def fixed(x, out):
        i = cuda.grid(1)
        out[i] = x[x.shape[0] - 1 - i]

    def wanted(x, out):
        return {"out": x[::-1]}


class NegativeStore:
    """A shift by two writes in front of the array."""

    launch = 1, 8

    def arguments():
        return np.arange(8.0), np.zeros(8)

    @cuda.jit
    def buggy(x, out):
        i = cuda.grid(1)
        out[i - 2] = x[i]

    @cuda.jit
    def fixed(x, out):
        i = cuda.grid(1)
        if i >= 2:
            out[i - 2] = x[i]

    def wanted(x, out):
        return {"out": np.append(x[2:], [0, 0])}


class SharedTooSmall:
    """The tile is as long as a warp's half, the block is longer."""

    launch = 1, 16

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
    """A tile with a halo of one on each side has two cells more than the block has threads, not one."""

    launch = 1, 8

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


class GridStrideOneTooFar:
    """The loop that strides through the array ends one element late."""

    launch = 2, 4

    def arguments():
        return (np.arange(19.0),)

    @cuda.jit
    def buggy(x):
        i = cuda.grid(1)
        while i <= x.shape[0]:
            x[i] *= 2
            i += cuda.gridsize(1)

    @cuda.jit
    def fixed(x):
        i = cuda.grid(1)
        while i < x.shape[0]:
            x[i] *= 2
            i += cuda.gridsize(1)

    def wanted(x):
        return {"x": 2 * x}


class GatherFromOne:
    """The table of indices counts from one, as another language wrote it."""

    launch = 1, 8

    def arguments():
        return np.arange(8.0), np.array([3, 1, 8, 2, 5, 4, 7, 6]), np.zeros(8)

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
    """A graph in compressed rows: the row after the last has a beginning and no end."""

    launch = 1, 8

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
        return {"out": np.array([neighbours[b:e].sum() for b, e in zip(rows, rows[1:])])}


class HistogramOfTheLargest:
    """The largest value belongs to the last bin, and lands one behind it."""

    launch = 1, 16

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


class TileOfTheNextBlock:
    """The first block is number 0."""

    launch = 3, 4

    def arguments():
        return np.arange(12.0), np.full(12, -1.0)

    @cuda.jit
    def buggy(x, out):
        i = (cuda.blockIdx.x + 1) * cuda.blockDim.x + cuda.threadIdx.x
        out[i] = x[i]

    @cuda.jit
    def fixed(x, out):
        i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
        out[i] = x[i]

    def wanted(x, out):
        return {"out": x}


class LocalArrayTooShort:
    """A window of five elements in an array of four."""

    launch = 1, 4

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
        return {"out": np.array([x[i:i + 4].sum() for i in range(4)])}


class RowsForColumns:
    """A matrix flattened by rows: a row is as long as there are columns."""

    launch = 1, (4, 8)

    def arguments():
        return np.arange(15.0), np.zeros(15), 5, 3

    @cuda.jit
    def buggy(a, out, rows, columns):
        column, row = cuda.grid(2)
        if row < rows and column < columns:
            out[row * rows + column] = a[row * rows + column]

    @cuda.jit
    def fixed(a, out, rows, columns):
        column, row = cuda.grid(2)
        if row < rows and column < columns:
            out[row * columns + column] = a[row * columns + column]

    def wanted(a, out, rows, columns):
        return {"out": a}


class TapsOfConstantMemory:
    """A filter in constant memory, read once too often."""

    launch = 1, 8

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
    """A row taken as a view, walked one element too far: the bytes behind it are the next row's."""

    launch = 1, 3

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


class UnsignedUnderflow:
    """An unsigned index minus one is huge at zero, not negative."""

    launch = 1, 8

    def arguments():
        return np.arange(8.0), np.zeros(8)

    @cuda.jit
    def buggy(x, out):
        i = uint32(cuda.grid(1))
        out[i] = x[i] - x[i - uint32(1)]

    @cuda.jit
    def fixed(x, out):
        i = uint32(cuda.grid(1))
        out[i] = x[i] - x[i - uint32(1)] if i > 0 else x[i]

    def wanted(x, out):
        return {"out": np.diff(x, prepend=0)}
