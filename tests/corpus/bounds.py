"""Corpus: guards and indices that exceed an array, or wrap at its front."""

import numpy as np
from numba import cuda, uint32


def windows(x):
    """Return x[i - 1] + x[i] + x[i + 1], with zeros beyond both ends."""
    padded = np.pad(x, 1)
    return padded[:-2] + padded[1:-1] + padded[2:]


class NoGuard:
    """The grid has more threads than the array has elements."""

    launch = 2, 8
    findings = {
        ("out-of-bounds", "error", "out", ("out[i] = 2 * x[i]", "written")),
        ("out-of-bounds", "error", "x", ("out[i] = 2 * x[i]", "read")),
    }

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
    """The guard uses `<=` instead of `<`."""

    launch = 2, 8
    findings = {
        ("out-of-bounds", "error", "out", ("out[i] = x[i] + 1", "written")),
        ("out-of-bounds", "error", "x", ("out[i] = x[i] + 1", "read")),
    }

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
    findings = {
        ("out-of-bounds", "error", "a", ("out[x, y] = -a[x, y]", "read")),
        ("out-of-bounds", "error", "out", ("out[x, y] = -a[x, y]", "written")),
    }

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
    """A stencil lacks neighbours at both ends; at the front, the index wraps."""

    launch = 1, 8
    findings = {
        ("negative-index", "warning", "x", ("left = x[i - 1]", "read")),
        ("out-of-bounds", "error", "x", ("right = x[i + 1]", "read")),
    }

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
    """Reversed indices start at n - 1. Starting at n - 2, the last index is -1, which wraps."""

    launch = 1, 8
    findings = {("negative-index", "warning", "x", ("out[i] = x[x.shape[0] - 2 - i]", "read"))}

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
    findings = {("negative-index", "warning", "out", ("out[i - 2] = x[i]", "written"))}

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


class GridStrideOneTooFar:
    """The grid-stride loop ends one element too late."""

    launch = 2, 4
    findings = {
        ("out-of-bounds", "error", "x", ("x[i] *= 2", "read")),
        ("out-of-bounds", "error", "x", ("x[i] *= 2", "written")),
    }

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


class TileOfTheNextBlock:
    """Block numbers start at 0, not at 1."""

    launch = 3, 4
    findings = {
        ("out-of-bounds", "error", "out", ("out[i] = x[i]", "written")),
        ("out-of-bounds", "error", "x", ("out[i] = x[i]", "read")),
    }

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


class RowsForColumns:
    """A matrix is flattened by rows; the length of a row is the number of columns."""

    launch = 1, (4, 8)
    findings = {
        ("out-of-bounds", "error", "a", ("out[row * rows + column] = a[row * rows + column]", "read")),
        ("out-of-bounds", "error", "out", ("out[row * rows + column] = a[row * rows + column]", "written")),
    }

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


class UnsignedUnderflow:
    """An unsigned zero minus one is a huge index, not a negative one."""

    launch = 1, 8
    findings = {("out-of-bounds", "error", "x", ("out[i] = x[i] - x[i - uint32(1)]", "read"))}

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


class RowBehindTheLast:
    """A view of a row past the end is only an address, but reading it is out of bounds."""

    launch = 2, 4
    findings = {
        ("out-of-bounds", "error", "x", ("for number in row:", "read")),
        ("out-of-bounds", "error", "out", ("out[i] = total", "written")),
    }

    def arguments():
        return np.arange(18.0).reshape(6, 3), np.zeros(6)

    @cuda.jit
    def buggy(x, out):
        i = cuda.grid(1)
        row = x[i]
        total = 0.0
        for number in row:
            total += number
        out[i] = total

    @cuda.jit
    def fixed(x, out):
        i = cuda.grid(1)
        row = x[i]
        if i < out.size:
            total = 0.0
            for number in row:
                total += number
            out[i] = total

    def wanted(x, out):
        return {"out": x.sum(1)}
