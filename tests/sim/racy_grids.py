"""Racy kernels with several blocks, and racy kernels with counters, in the format of racy_kernels."""

import numpy as np
from numba import cuda, float32, int32

from racy_kernels import X64, F, case


def graph():
    """Return a graph in which two vertices of level 0 point to each vertex of level 1."""
    edges, levels = (32 + np.arange(32) // 2).astype(np.int32), np.full(64, -1, np.int32)
    levels[:32] = 0
    return edges, levels, np.zeros(64, np.int32), np.zeros(1, np.int32)


def found(edges, levels, frontier, n):
    return {"n": [16], "levels": np.repeat([0, 1, -1], [32, 16, 16])}


def last_block_arguments():
    return np.arange(128, dtype=F), np.zeros(4, F), np.zeros(1, np.int32), np.zeros(1, F)


def compact_args():
    return np.arange(64, dtype=np.int32), np.full(64, -1, np.int32), np.zeros(1, np.int32)


def compact_wanted(x, out, n):
    return {"n": [32]}


def relaxed(a, b, n):
    for _ in range(n):
        a = np.r_[a[0], (a[:-2] + a[2:]) / 2, a[-1]]
    return {"a": a}


@case("claim", (1, 32), graph, found)
def bfs_queue(edges, levels, frontier, n):
    t = cuda.threadIdx.x
    v = edges[t]
    if levels[v] == -1:
        levels[v] = 1
        place = cuda.atomic.add(n, 0, 1)
        frontier[place] = v


@case("claim", (2, 16), graph, found)
def bfs_queue_blocks(edges, levels, frontier, n):
    t = cuda.grid(1)
    v = edges[t]
    if levels[v] == -1:
        levels[v] = 1
        place = cuda.atomic.add(n, 0, 1)
        frontier[place] = v


@case("check", (2, 16), graph, found)
def bfs_cas(edges, levels, frontier, n):
    t = cuda.grid(1)
    v = edges[t]
    if levels[v] == -1:
        if cuda.atomic.cas(levels, v, -1, 1) == -1:
            place = cuda.atomic.add(n, 0, 1)
            frontier[place] = v


@case("ticket", (4, 32), last_block_arguments, lambda x, p, t, o: {"out": [x.sum()]})
def last_block_plain(x, partial, ticket, out):
    s = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    b = cuda.blockIdx.x
    if t == 0:
        total = float32(0)
        for i in range(32):
            total += x[b * 32 + i]
        partial[b] = total
        cuda.threadfence()
        ticket[0] += 1
        s[0] = ticket[0] == cuda.gridDim.x
    cuda.syncthreads()
    if s[0] and t == 0:
        total = float32(0)
        for i in range(cuda.gridDim.x):
            total += partial[i]
        out[0] = total


@case("ticket", (4, 32), last_block_arguments, lambda x, p, t, o: {"out": [x.sum()]})
def last_block_cond(x, partial, ticket, out):
    t = cuda.threadIdx.x
    b = cuda.blockIdx.x
    if t == 0:
        total = float32(0)
        for i in range(32):
            total += x[b * 32 + i]
        partial[b] = total
        cuda.threadfence()
        ticket[0] += 1
        if ticket[0] == cuda.gridDim.x:
            total = float32(0)
            for i in range(cuda.gridDim.x):
                total += partial[i]
            out[0] = total


@case("ticket", (4, 32), last_block_arguments, lambda x, p, t, o: {"out": [x.sum()]})
def last_block_beside(x, partial, ticket, out):
    t = cuda.threadIdx.x
    b = cuda.blockIdx.x
    if t == 0:
        total = float32(0)
        for i in range(32):
            total += x[b * 32 + i]
        partial[b] = total
        cuda.threadfence()
        cuda.atomic.add(ticket, 0, 1)
        if ticket[0] == cuda.gridDim.x:
            total = float32(0)
            for i in range(cuda.gridDim.x):
                total += partial[i]
            out[0] = total


@case("ticket", (2, 32), compact_args, compact_wanted)
def compact_base(x, out, n):
    i = cuda.grid(1)
    if x[i] % 2 == 0:
        base = n[0]
        n[0] += 1
        out[base] = x[i]


@case("ticket", (2, 32), compact_args, compact_wanted)
def compact_direct(x, out, n):
    i = cuda.grid(1)
    if x[i] % 2 == 0:
        out[n[0]] = x[i]
        n[0] += 1


@case("ticket", (2, 32), compact_args, compact_wanted)
def compact_after(x, out, n):
    i = cuda.grid(1)
    if x[i] % 2 == 0:
        n[0] += 1
        out[n[0] - 1] = x[i]


@case("ticket", (2, 32), compact_args, compact_wanted)
def compact_atomic_plain(x, out, n):
    i = cuda.grid(1)
    if x[i] % 2 == 0:
        base = n[0]
        cuda.atomic.add(n, 0, 1)
        out[base] = x[i]


@case(
    "ticket",
    (2, 32),
    lambda: (
        np.arange(64, dtype=np.int32),
        np.zeros(64, np.int32),
        np.zeros(1, np.int32),
        np.full(64, 9, np.int32),
    ),
    lambda x, q, n, o: {"n": [32]},
)
def queue_cap(x, q, n, o):
    i = cuda.grid(1)
    if x[i] % 2 == 1:
        place = n[0]
        n[0] += 1
        if place < 64:
            q[place] = x[i]
            o[place] = n[0]


@case(
    "claim",
    (2, 32),
    lambda: (np.random.default_rng(3).permutation(64).astype(np.int32), np.zeros(1, np.int32)),
    lambda x, b: {"best": [63]},
)
def maximum_by_if(x, best):
    i = cuda.grid(1)
    if x[i] > best[0]:
        best[0] = x[i]


@case(
    "claim",
    (2, 32),
    lambda: (np.random.default_rng(3).permutation(64).astype(np.int32), np.full(1, 99, np.int32)),
    lambda x, b: {"best": [0]},
)
def minimum_by_if(x, best):
    i = cuda.grid(1)
    v = x[i]
    if v >= 0 and v < best[0]:
        best[0] = v


@case(
    "claim",
    (2, 32),
    lambda: (np.arange(64, dtype=np.int32) % 8, np.full(8, 99, np.int32), np.zeros(8, np.int32)),
    lambda k, d, w: {"d": np.arange(8)},
)
def relax(k, d, w):
    i = cuda.grid(1)
    c = i
    if c < d[k[i]]:
        d[k[i]] = c


@case(
    "phases of blocks",
    (2, 32),
    lambda: (np.arange(64, dtype=F), np.zeros(64, F), np.zeros(64, F)),
    lambda x, m, o: {"out": np.roll(2 * x, -1)},
)
def exchange(x, mid, out):
    i = cuda.grid(1)
    mid[i] = 2 * x[i]
    out[i] = mid[(i + 1) % 64]


@case(
    "phases of blocks",
    (2, 32),
    lambda: (np.arange(64, dtype=F), np.zeros(64, F), np.zeros(64, F)),
    lambda x, m, o: {"out": np.roll(2 * x, -1)},
)
def exchange_one_guard(x, mid, out):
    i = cuda.grid(1)
    if i < 64:
        mid[i] = 2 * x[i]
        cuda.syncthreads()
        out[i] = mid[(i + 1) % 64]


@case(
    "phases of blocks",
    (2, 32),
    lambda: (X64(), np.zeros(64, F), np.zeros(64, F), 60),
    lambda x, m, o, n: {"o": np.r_[np.roll(x[:60], -1), np.zeros(4)]},
)
def exchange_returned(x, m, o, n):
    i = cuda.grid(1)
    if i >= n:
        return
    m[i] = x[i]
    o[i] = m[(i + 1) % n]


@case("phases of blocks", (2, 32), lambda: (np.arange(64, dtype=F), np.zeros(64, F), 3), relaxed)
def jacobi(a, b, n):
    i = cuda.grid(1)
    for k in range(n):
        if 0 < i < 63:
            b[i] = (a[i - 1] + a[i + 1]) / 2
        cuda.syncthreads()
        if 0 < i < 63:
            a[i] = b[i]
        cuda.syncthreads()


@case("loop with a grid barrier", (2, 32), lambda: (np.arange(64, dtype=F), np.zeros(64, F), 3), relaxed)
def jacobi_without_the_last_barrier(a, b, n):
    i = cuda.grid(1)
    for k in range(n):
        if 0 < i < 63:
            b[i] = (a[i - 1] + a[i + 1]) / 2
        cuda.cg.this_grid().sync()
        if 0 < i < 63:
            a[i] = b[i]


@case("loop with a grid barrier", (2, 32), lambda: (np.arange(64, dtype=F), np.zeros(64, F), 3), relaxed)
def jacobi_without_the_first_barrier(a, b, n):
    i = cuda.grid(1)
    for k in range(n):
        if 0 < i < 63:
            b[i] = (a[i - 1] + a[i + 1]) / 2
        if 0 < i < 63:
            a[i] = b[i]
        cuda.cg.this_grid().sync()


@case(
    "kernel with a grid barrier",
    (2, 32),
    lambda: (np.zeros(64, F), np.zeros(64, F), 1),
    lambda a, b, n: {"b": np.roll(np.arange(64), -32)},
)
def second_barrier_of_the_grid_missing(a, b, n):
    i = cuda.grid(1)
    a[i] = 0
    cuda.cg.this_grid().sync()
    a[i] = i
    b[i] = a[(i + 32) % 64]


@case("two blocks", (2, 32), lambda: (X64(), 4), lambda x, n: {"x": np.roll(x, -4)})
def rotate_many_blocks(x, n):
    i = cuda.grid(1)
    for k in range(n):
        x[i] = x[(i + 1) % 64]


@case(
    "two blocks",
    (2, 32),
    lambda: (np.r_[X64(), [F(64)]].astype(F), 64),
    lambda x, n: {"x": x[1:].tolist() + [64]},
)
def same_line_blocks_guard(x, n):
    i = cuda.grid(1)
    if i < n:
        x[i] = x[i + 1]


@case("two blocks", (2, 32), lambda: (X64(), np.zeros(32, F), np.zeros(32, F)), lambda x, m, o: {"o": x[:32]})
def arms_of_blocks(x, m, o):
    t = cuda.threadIdx.x
    if cuda.blockIdx.x == 0:
        m[t] = x[t]
    else:
        o[t] = m[t]


@case(
    "two blocks",
    (2, 32),
    lambda: (X64(), np.zeros(2, F), np.zeros(64, F)),
    lambda x, p, o: {"o": x / x.sum()},
)
def softmax_two_phase(x, p, o):
    i = cuda.grid(1)
    cuda.atomic.add(p, 0, x[i])
    o[i] = x[i] / p[0]


@case(
    "compare-and-swap loop",
    (2, 32),
    lambda: (np.arange(64, dtype=np.int32), np.ones(1, np.int32)),
    lambda x, p: {"p": [1 + 2016]},
)
def cas_loop_again(x, p):
    i = cuda.grid(1)
    while True:
        seen = p[0]
        if cuda.atomic.cas(p, 0, seen, seen + x[i]) == seen:
            break


@case(
    "compare-and-swap loop",
    (2, 32),
    lambda: (np.arange(64, dtype=np.int32), np.ones(1, np.int32)),
    lambda x, p: {"p": [1 + 2016]},
)
def cas_loop_header(x, p):
    i = cuda.grid(1)
    seen = p[0] + 0
    while cuda.atomic.cas(p, 0, seen, seen + x[i]) != seen:
        seen = p[0]


@case(
    "release by a plain store",
    (4, 1),
    lambda: (np.zeros(1, np.int32), np.zeros(2, np.int32)),
    lambda l, c: {"c": [4, 4]},
)
def lock_plain_release(lock, c):
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:
        pass
    cuda.threadfence()
    c[0] += 1
    c[1] += 1
    cuda.threadfence()
    lock[0] = 0
