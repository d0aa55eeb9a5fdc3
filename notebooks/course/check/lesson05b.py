"""Checks of lesson 05b: the repairs to an unfinished kernel, run in `sim`."""

import inspect
import linecache
import math
import textwrap

from numba import cuda
from numpy import float32

from course.check.contract import Contract
from course.check.harness import exercise, fail
from course.check.lesson05 import LOUD, SHAPES, verify


@exercise("5.4", "repairs")
def ex05_4(repairs, rng):
    kernel = repaired(unfinished, repairs())
    for n, d, rows, columns in SHAPES:
        verify(kernel, rng, n, d, rows, columns, 2 * columns * d + rows * columns, own_queries)
    for scores in LOUD:
        verify(kernel, rng, 11, 2, 4, 5, 40, own_queries, scores)
    return f"{len(SHAPES)} shapes and {len(LOUD)} kinds of scores far from 0, and sim finds nothing"


def own_queries(n, d, rows, columns):
    """Return the contract: each block computes its own query tile and loads every key tile once for it."""
    blocks, tiles = -(-n // rows), -(-n // columns)
    keys = blocks * n * d
    hint = (
        "Each block computes the output of its own queries, and each thread computes the output of one query."
    )
    return Contract(
        "q k v o",
        max_per_thread=dict.fromkeys("kv", tiles * -(-columns // rows) * d),
        max_total={"k": keys, "v": keys},
        threads=n,
        blocks=blocks,
        share=2.5,
        hint=hint,
    )


# The kernel to be repaired ----------------------------------------------------------------------------------


def unfinished(q, k, v, o, n, d, columns, scale):
    """Compute o = softmax(scale · q kᵀ) v, all flat, n rows of d, with a thread per query. Shared memory
    has tiles of k and v, then a row of scores per thread."""
    shared = cuda.shared.array(0, float32)
    rows, t = cuda.blockDim.y, cuda.threadIdx.x
    k_tile = shared[: columns + d]
    v_tile = shared[columns * d : 2 * columns * d]
    s_row = shared[2 * columns * d + t * columns : 2 * columns * d + (t + 1) * columns]
    for first in range(0, n, rows):
        i = first + t
        m, l = float32(0), float32(0)
        if i < n:
            for c in range(d):
                o[i * d + c] = 0
        for start in range(0, n, columns):
            keys = min(columns, n - start)
            for e in range(t, keys * d, rows):
                k_tile[e] = k[start * n + e]
                v_tile[e] = v[start * d + e]
            cuda.syncthreads()
            if i < n:
                new_m = m
                for j in range(keys):
                    score = float32(0)
                    for c in range(d):
                        score += q[i * d + c] * k_tile[j * d + c]
                    s_row[j] = scale * score
                for j in range(d):
                    new_m = max(new_m, s_row[j])
                shrink = math.exp(m - new_m)
                l *= shrink
                for c in range(d):
                    o[i * d + c] *= shrink
                for j in range(keys):
                    p = math.exp(s_row[j] - new_m)
                    l += p
                    for c in range(d):
                        o[i * d + c] += p * v_tile[j * d + c]
                m = new_m
            cuda.syncthreads()
        if i < n:
            for c in range(d):
                o[i * d + c] /= l


def repaired(kernel, repairs):
    """Return the kernel with each wrong line in `repairs` {wrong: right} replaced. Ignore indentation."""
    lines = textwrap.dedent(inspect.getsource(kernel)).splitlines()
    for wrong, right in repairs.items():
        places = [number for number, line in enumerate(lines) if line.strip() == wrong.strip()]
        if len(places) != 1:
            fail(
                f"this line occurs {len(places)} times in the kernel instead of once:",
                call=wrong.strip(),
                hint="Copy the whole line.",
            )
        line = lines[places[0]]
        lines[places[0]] = line[: len(line) - len(line.lstrip())] + right.strip()
    source = "\n".join(lines) + "\n"
    name = f"<{kernel.__name__} with {len(repairs)} repairs, {hash(source)}>"
    # so that sim can read it
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    namespace = {}
    try:
        exec(compile(source, name, "exec"), {**globals()}, namespace)
    except SyntaxError as error:
        fail(
            f"with your repairs, Python cannot parse line {error.lineno} of the kernel",
            call=(error.text or "").strip(),
            hint=error.msg,
        )
    return namespace[kernel.__name__]
