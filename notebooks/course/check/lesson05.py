"""The checks of lesson 05: a loader, one row of flash attention, a whole kernel, and the repairs to a broken one; all run in `sim`."""

import inspect
import linecache
import math
import textwrap

import numpy as np
from numba import cuda
from numpy import float32

from course.check import kernels
from course.check.harness import compare, exercise, fail

SHAPES = [(4, 3, 4, 2), (1, 3, 4, 2), (5, 3, 2, 4), (9, 4, 4, 3), (6, 5, 3, 7)]  # n, d, rows, columns
LOUD = 100  # a query and a key so long that exp overflows without the maximum


@exercise("5.1", "load_tile")
def ex05_1(load_tile, rng):
    for size, start, tile, threads in [(12, 4, 4, 4), (12, 0, 7, 3), (12, 9, 6, 2), (5, 0, 8, 4), (10, 8, 2, 8)]:
        array = rng.standard_normal(size).astype(float32)
        wanted = np.zeros(tile, float32)
        wanted[: max(0, min(tile, size - start))] = array[start : start + tile]
        call = f"load_tile(tile, array, {start}) with a tile of {tile} numbers, an array of {size}, {threads} threads"
        (got,) = run(kernel_that_loads(load_tile), 1, threads, tile, (array, start), [tile], rng, call)
        compare(got, wanted, what="the tile holds something else", call=call, tolerance=0)
    return "tiles of 2 to 8 numbers, with more and fewer threads than numbers, some past the end of the array"


@exercise("5.2", "visit")
def ex05_2(visit, rng):
    for d, keys, scale, loud in [(1, 1, 1, 1), (3, 4, 0.5, 1), (2, 5, 1, LOUD), (4, 2, 0.7, -LOUD)]:
        q, k, v = (rng.standard_normal((size, d)).astype(float32) for size in (2, 2 * keys, 2 * keys))
        q[:, 0], k[:, 0] = abs(loud) ** 0.5 * q[:, 0], abs(loud) ** 0.5 * k[:, 0]
        if loud < 0:
            q[:, 0], k[:, 0] = abs(q[:, 0]) + 20, -abs(k[:, 0]) - 20
        call = f"two tiles of {keys} key{'s' * (keys > 1)}, one visit each, with d = {d} and scale = {scale}"
        flat = [x.ravel() for x in (q, k, v)]
        m_l, o = run(kernel_that_visits(visit, keys, d), 1, 2, 2 * d, (*flat, float32(scale)), [4, 2 * d], rng, call)
        scores, wanted = attention(q, k, v, scale)
        m = scores.max(1)
        state = np.stack([m, np.exp(scores - m[:, None]).sum(1)], 1)
        compare(m_l.reshape(2, 2), state, what="(m, l) of two rows after both tiles", call=call, tolerance=2e-4, hint=RESCALE)
        got = o.reshape(2, d) / m_l.reshape(2, 2)[:, 1:]
        compare(got, wanted, what="o / l of two rows after both tiles", call=call, tolerance=2e-4, hint=RESCALE)
    return "one key to ten, in two tiles, with scores around 0, in the hundreds, and far below 0"


@exercise("5.3", "flash_kernel")
def ex05_3(flash_kernel, rng):
    for n, d, rows, columns in SHAPES:
        for _ in range(2):
            verify(flash_kernel, rng, n, d, rows, columns, numbers=2 * (rows + columns) * d)
    verify(flash_kernel, rng, 6, 2, 2, 3, numbers=20, offset=-LOUD)
    return f"{len(SHAPES)} shapes, from 1 row to 9, ragged tiles of queries and of keys, each in two orders of the threads"


@exercise("5.4", "repairs")
def ex05_4(repairs, rng):
    kernel = repaired(unfinished, repairs())
    for n, d, rows, columns in SHAPES:
        verify(kernel, rng, n, d, rows, columns, numbers=2 * columns * d + rows * columns)
    for offset in (-LOUD, LOUD):
        verify(kernel, rng, 6, 2, 2, 5, numbers=30, offset=offset)
    return "the kernel is right for seven inputs, with scores far below 0 and far above, and sim finds nothing"


RESCALE = "When m grows, l and the row of o shrink by exp(old m - new m); then the key's weight is exp(score - new m)."
POISON = "NaN: a number of o that no thread has written, a 0 / 0, or -inf - (-inf)."
WHERE = "Does each tile begin at the right number? Has the last one fewer keys? Does each query start with m, l, o of its own and end with a division by l?"


# The kernel to be repaired ----------------------------------------------------------------------------------------


def unfinished(q, k, v, o, n, d, columns, scale):
    """o = softmax(scale · q kᵀ) v, all flat, n rows of d. A thread a query; shared memory: tiles of k and v, then a row of scores a thread."""
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
    """The kernel with each wrong line of `repairs` {wrong: right} replaced; indentation does not count."""
    lines = textwrap.dedent(inspect.getsource(kernel)).splitlines()
    for wrong, right in repairs.items():
        places = [number for number, line in enumerate(lines) if line.strip() == wrong.strip()]
        if len(places) != 1:
            fail(f"this line stands {len(places)} times in the kernel, wanted once:", call=wrong.strip(), hint="Copy the whole line.")
        line = lines[places[0]]
        lines[places[0]] = line[: len(line) - len(line.lstrip())] + right.strip()
    source = "\n".join(lines) + "\n"
    name = f"<{kernel.__name__} with {len(repairs)} repairs, {hash(source)}>"
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name  # so that sim can read it
    namespace = {}
    try:
        exec(compile(source, name, "exec"), {**globals()}, namespace)
    except SyntaxError as error:
        fail(f"with your repairs Python cannot read line {error.lineno} of the kernel", call=(error.text or "").strip(), hint=error.msg)
    return namespace[kernel.__name__]


# Running an answer ------------------------------------------------------------------------------------------------


def verify(kernel, rng, n, d, rows, columns, numbers, offset=0):
    """Run the kernel in `sim` on random q, k, v; reject a finding, or an output unlike attention in float64."""
    q, k, v = rng.standard_normal((3, n, d)).astype(float32)
    if offset:  # scores about `offset`
        q[:, 0], k[:, 0] = 10 * d**0.5, offset / 10
    scale = d**-0.5
    blocks = -(-n // rows)
    call = f"kernel[{blocks}, {rows}, 0, {4 * numbers}](q, k, v, o, n={n}, d={d}, columns={columns}, scale)"
    got = np.full(n * d, np.nan, float32)
    arguments = q.ravel(), k.ravel(), v.ravel(), got, n, d, columns, float32(scale)
    launch(kernel, (blocks, rows, 0, 4 * numbers), arguments, rng, call)
    what = f"scores about {offset}: a wrong output" if offset else "a wrong output"
    hint = POISON if np.isnan(got).any() else WHERE
    tolerance = 1e-4 if offset else 1e-5
    compare(got.reshape(n, d), attention(q, k, v, scale)[1], what=what, call=call, tolerance=tolerance, hint=hint)


def attention(q, k, v, scale):
    """(scores, output) in float64: the oracle."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    scores = scale * q @ k.T
    p = np.exp(scores - scores.max(1, keepdims=True))
    return scores, p / p.sum(1, keepdims=True) @ v


def run(kernel, blocks, threads, numbers, inputs, sizes, rng, call):
    """The outputs of a kernel(*inputs, *outputs), full of NaN before."""
    outs = [np.full(size, np.nan, float32) for size in sizes]
    launch(kernel, (blocks, threads, 0, 4 * numbers), (*inputs, *outs), rng, call)
    return outs


def launch(kernel, configuration, arguments, rng, call):
    """One launch in `sim`. Of its warnings only races count: a number loaded twice is one too, but of a shared load."""

    def is_bug(finding):
        return finding.severity == "error" or finding.kind.startswith("race")

    kernels.launch(kernel, configuration, arguments, rng, call, refused=is_bug)


def kernel_that_loads(load_tile):
    """A kernel that loads one tile into shared memory and copies it out."""

    def load_and_copy(array, start, out):
        tile = cuda.shared.array(0, float32)
        load_tile(tile, array, start)
        cuda.syncthreads()
        for e in range(cuda.threadIdx.x, tile.size, cuda.blockDim.x):
            out[e] = tile[e]

    return load_and_copy


def kernel_that_visits(visit, keys, d):
    """A kernel of two threads in which each row visits two tiles of keys, all in global memory but for o."""

    def visit_twice(q, k, v, scale, m_l, o):
        o_tile = cuda.shared.array(0, float32)
        row = cuda.threadIdx.x
        for c in range(d):
            o_tile[row * d + c] = 0
        m, l = float32(-math.inf), float32(0)
        for start in range(0, 2 * keys * d, keys * d):
            m, l = visit(row, q, k[start : start + keys * d], v[start : start + keys * d], o_tile, keys, d, scale, m, l)
        m_l[2 * row], m_l[2 * row + 1] = m, l
        for c in range(d):
            o[row * d + c] = o_tile[row * d + c]

    return visit_twice
