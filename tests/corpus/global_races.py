"""Corpus: threads of one or several blocks that write, or write and read, the same elements of global
memory."""

import numpy as np
from numba import cuda


class PathCompression:
    """Every node jumps to its grandparent while others change their parents. The fixed twin writes to another
    array."""

    launch = 1, 8
    findings = {
        (
            "race-global",
            "error",
            "parent",
            ("above = parent[parent[i]]", "read"),
            ("parent[i] = above", "written"),
        )
    }

    def arguments():
        return np.array([0, 0, 1, 2, 3, 4, 5, 6]), np.zeros(8, np.int64)

    @cuda.jit
    def buggy(parent, out):
        i = cuda.grid(1)
        above = parent[parent[i]]
        parent[i] = above
        out[i] = above

    @cuda.jit
    def fixed(parent, out):
        i = cuda.grid(1)
        above = parent[parent[i]]
        out[i] = above

    def wanted(parent, out):
        return {"out": parent[parent]}


class TilesOverlap:
    """Each block writes its tile and the halo around it, which belongs to neighbouring tiles."""

    launch = 2, 6
    findings = {("race-global", "error", "out", ("out[i] = x[i] + cuda.blockIdx.x", "written"))}

    def arguments():
        return np.arange(10.0), np.zeros(10)

    @cuda.jit
    def buggy(x, out):
        t = cuda.threadIdx.x
        i = cuda.blockIdx.x * 4 + t
        out[i] = x[i] + cuda.blockIdx.x

    @cuda.jit
    def fixed(x, out):
        t = cuda.threadIdx.x
        i = cuda.blockIdx.x * 4 + t
        if 1 <= t <= 4:
            out[i] = x[i] + cuda.blockIdx.x

    def wanted(x, out):
        return {"out": np.concatenate([[0], x[1:5], x[5:9] + 1, [0]])}


class TilesOverlapEqually:
    """Each block writes its tile and the halo around it with the same values as its neighbours, which is a
    warning."""

    launch = 2, 6
    findings = {("race-global", "warning", "out", ("out[i] = 2 * x[i]", "written"))}

    def arguments():
        return np.arange(10.0), np.zeros(10)

    @cuda.jit
    def buggy(x, out):
        i = cuda.blockIdx.x * 4 + cuda.threadIdx.x
        out[i] = 2 * x[i]

    @cuda.jit
    def fixed(x, out):
        t = cuda.threadIdx.x
        i = cuda.blockIdx.x * 4 + t
        if 1 <= t <= 4:
            out[i] = 2 * x[i]

    def wanted(x, out):
        return {"out": np.concatenate([[0], 2 * x[1:9], [0]])}


class EqualAndUnequalWrites:
    """Two elements are written twice, one with equal and one with different values.

    The finding is an error, in whichever order the writes occur.
    """

    launch = 2, 2
    findings = {("race-global", "error", "out", ("out[t] = t * cuda.blockIdx.x", "written"))}

    def arguments():
        return (np.zeros(2),)

    @cuda.jit
    def buggy(out):
        t = cuda.threadIdx.x
        out[t] = t * cuda.blockIdx.x

    @cuda.jit
    def fixed(out):
        t = cuda.threadIdx.x
        if cuda.blockIdx.x == 1:
            out[t] = t * cuda.blockIdx.x

    def wanted(out):
        return {"out": [0, 1]}


class StencilInPlace:
    """A stencil writes where its neighbours read. The fixed twin uses a second array."""

    launch = 2, 4
    findings = {
        (
            "race-global",
            "error",
            "x",
            ("x[i] = x[i - 1] + x[i + 1]", "read"),
            ("x[i] = x[i - 1] + x[i + 1]", "written"),
        )
    }

    def arguments():
        return np.arange(10.0), np.zeros(10)

    @cuda.jit
    def buggy(x, out):
        i = cuda.grid(1) + 1
        x[i] = x[i - 1] + x[i + 1]

    @cuda.jit
    def fixed(x, out):
        i = cuda.grid(1) + 1
        out[i] = x[i - 1] + x[i + 1]

    def wanted(x, out):
        return {"out": np.pad(x[2:] + x[:-2], 1)}


class AliasedArguments:
    """A shift is correct between two arrays, but races if both arguments are the same array."""

    launch = 2, 4
    findings = {
        ("race-global", "error", "x", ("out[i] = x[i + 1]", "read"), ("out[i] = x[i + 1]", "written"))
    }

    def arguments():
        return np.arange(9.0), np.zeros(8)

    def buggy_arguments():
        x = np.arange(9.0)
        return x, x

    @cuda.jit
    def buggy(x, out):
        i = cuda.grid(1)
        out[i] = x[i + 1]

    @cuda.jit
    def fixed(x, out):
        i = cuda.grid(1)
        out[i] = x[i + 1]

    def wanted(x, out):
        return {"out": x[1:]}


class TransposeInPlace:
    """Both threads of a pair swap the same two elements. In the fixed twin, only one of them does."""

    launch = 1, (4, 4)
    findings = {("race-global", "error", "a", ("a[x, y] = above", "written"), ("above = a[y, x]", "read"))}

    def arguments():
        return (np.arange(16.0).reshape(4, 4),)

    @cuda.jit
    def buggy(a):
        x, y = cuda.grid(2)
        above = a[y, x]
        a[x, y] = above

    @cuda.jit
    def fixed(a):
        x, y = cuda.grid(2)
        if y < x:
            above = a[y, x]
            a[y, x] = a[x, y]
            a[x, y] = above

    def wanted(a):
        return {"a": a.T}


class PrefixSumsInALoop:
    """Each element needs the previous one, which another thread computes: a loop-carried dependence.

    The fixed twin uses one thread.
    """

    launch = 1, 8
    findings = {
        (
            "race-global",
            "error",
            "out",
            ("out[i + 1] = out[i] + x[i]", "read"),
            ("out[i + 1] = out[i] + x[i]", "written"),
        )
    }

    def arguments():
        return np.arange(8.0), np.zeros(9)

    @cuda.jit
    def buggy(x, out):
        i = cuda.grid(1)
        out[i + 1] = out[i] + x[i]

    @cuda.jit
    def fixed(x, out):
        if cuda.grid(1) == 0:
            for i in range(8):
                out[i + 1] = out[i] + x[i]

    def wanted(x, out):
        return {"out": np.append(0, np.cumsum(x))}


class ChunksOverlap:
    """Each thread fills a chunk that is one element longer than the distance between chunks."""

    launch = 1, 4
    findings = {("race-global", "error", "out", ("out[k] = i", "written"))}

    def arguments():
        return (np.zeros(17),)

    @cuda.jit
    def buggy(out):
        i = cuda.grid(1)
        for k in range(4 * i, 4 * i + 5):
            out[k] = i

    @cuda.jit
    def fixed(out):
        i = cuda.grid(1)
        for k in range(4 * i, 4 * i + 4):
            out[k] = i

    def wanted(out):
        return {"out": np.append(np.repeat(np.arange(4), 4), 0)}


class BlockForgotten:
    """The index ignores the block, so all blocks write the same elements."""

    launch = 3, 4
    findings = {("race-global", "error", "out", ("out[i] = x[i] + cuda.blockIdx.x", "written"))}

    def arguments():
        return np.arange(12.0), np.zeros(12)

    @cuda.jit
    def buggy(x, out):
        i = cuda.threadIdx.x
        out[i] = x[i] + cuda.blockIdx.x

    @cuda.jit
    def fixed(x, out):
        i = cuda.grid(1)
        out[i] = x[i] + cuda.blockIdx.x

    def wanted(x, out):
        return {"out": x + np.repeat(np.arange(3), 4)}
