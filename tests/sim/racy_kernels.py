"""Racy kernels with one block.

Each has the pattern of its advice, its launch, its arguments and the expected values without the race.
"""

import numpy as np
from numba import cuda, float32, int32

CASES = {}
F = np.float32


def case(pattern, launch, arguments, wanted):
    """Add a kernel to CASES.

    wanted(*arguments()): function that returns {argument: its values after the launch}.
    """

    def add(kernel):
        CASES[kernel.__name__] = {
            "pattern": pattern,
            "kernel": kernel,
            "launch": launch,
            "arguments": arguments,
            "wanted": wanted,
        }
        return kernel

    return add


def X64():
    return np.arange(64, dtype=F)


def matrices():
    a, b = np.random.default_rng(1).random((2, 20, 20)).astype(F)
    return a, b, np.zeros((20, 20), F), 20


@case(
    "one statement",
    (1, 32),
    lambda: (np.arange(65, dtype=F), 50, 2),
    lambda x, n, m: {"x": np.r_[np.arange(1, 33), np.arange(32, 65)]},
)
def shift_nested(x, n, m):
    t = cuda.threadIdx.x
    if t < n:
        if m > 1:
            x[t] = x[t + 1]


@case(
    "one statement",
    (1, 64),
    lambda: (np.arange(65, dtype=F), 50, 2),
    lambda x, n, m: {"x": np.r_[np.arange(1, 51), np.arange(50, 65)]},
)
def shift_nested_more(x, n, m):
    t = cuda.threadIdx.x
    if t < n:
        u = t + 1
        if m > 1:
            x[t] = x[u]
            u = 3


@case("opposite arms", (1, 64), lambda: (X64(),), lambda x: {"x": np.r_[x[:8], x[:56]]})
def same_line_elif(x):
    t = cuda.threadIdx.x
    if t < 4:
        x[t] = t
    elif t >= 8:
        x[t] = x[t - 8]


@case(
    "one statement", (1, 32), lambda: (X64()[:32].copy(), np.zeros(32, F)), lambda x, o: {"o": np.cumsum(x)}
)
def scan_in_loop(x, o):
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    d = 1
    while d < 32:
        cuda.syncthreads()
        if t >= d:
            s[t] += s[t - d]
        d *= 2
    o[t] = s[t]


@case(
    "barrier",
    (1, 64),
    lambda: (X64(), np.zeros(64, F), 50),
    lambda x, o, n: {"o": np.r_[x[49::-1], np.zeros(14)]},
)
def reverse_guard(x, o, n):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    if t < n:
        s[t] = x[t]
        o[t] = s[n - 1 - t]


@case(
    "barrier",
    (1, 64),
    lambda: (X64(), np.zeros(64, F), 50),
    lambda x, o, n: {"o": np.r_[x[49::-1], np.zeros(14)]},
)
def reverse_return(x, o, n):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    if t >= n:
        return
    s[t] = x[t]
    o[t] = s[n - 1 - t]


@case(
    "barrier",
    (1, 64),
    lambda: (X64(), np.zeros(64, F), 50, 1),
    lambda x, o, n, m: {"o": np.r_[x[49::-1], np.zeros(14)]},
)
def reverse_two_guards(x, o, n, m):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    if m == 1:
        if t < n:
            s[t] = x[t]
            o[t] = s[n - 1 - t]
    else:
        o[t] = 5


@case("barrier", (1, 64), lambda: (X64(), np.zeros(1, F)), lambda x, o: {"o": [x.sum()]})
def tree_no_first(x, o):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    d = 32
    while d > 0:
        if t < d:
            s[t] += s[t + d]
        cuda.syncthreads()
        d //= 2
    if t == 0:
        o[0] = s[0]


@case(
    "opposite arms",
    (1, 64),
    lambda: (X64(), np.zeros(64, F)),
    lambda x, o: {"o": np.r_[np.zeros(32), x[:32]]},
)
def arms_nested(x, o):
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    if t < 64:
        if t < 32:
            s[t] = x[t]
        else:
            o[t] = s[t - 32]


@case(
    "opposite arms",
    (1, 64),
    lambda: (X64(), np.zeros(64, F)),
    lambda x, o: {"o": np.r_[x[:32][::-1] * 0, x[:32]]},
)
def arms_loop(x, o):
    s = cuda.shared.array(16, float32)
    t = cuda.threadIdx.x
    for k in range(2):
        if t < 16:
            s[t] = x[k * 16 + t]
        elif t < 32:
            o[32 + k * 16 + t - 16] = s[t - 16]


@case(
    "barrier",
    (1, 32),
    lambda: (np.arange(128, dtype=F), np.zeros(128, F), 128),
    lambda x, o, n: {"o": x.reshape(4, 32)[:, ::-1].ravel()},
)
def tile_reused_guard(x, o, n):
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    for k in range(4):
        if k * 32 + t < n:
            s[t] = x[k * 32 + t]
            o[k * 32 + t] = s[31 - t]


@case("barrier", (1, 32), lambda: (np.arange(32, dtype=F), 4), lambda x, n: {"x": np.roll(x, -4)})
def rotate_many(x, n):
    t = cuda.threadIdx.x
    for k in range(n):
        x[t] = x[(t + 1) % 32]


@case(
    "too few buffers",
    (1, 32),
    lambda: (np.arange(256, dtype=F), np.zeros(32, F)),
    lambda x, o: {"o": np.roll(x.reshape(8, 32), -1, 1).sum(0)},
)
def pipeline_named(x, o):
    s = cuda.shared.array((2, 32), float32)
    t = cuda.threadIdx.x
    total = float32(0)
    s[0, t] = x[t]
    s[1, t] = x[32 + t]
    for k in range(8):
        here = k % 2
        there = (k + 2) % 2
        cuda.syncthreads()
        if k + 2 < 8:
            s[there, t] = x[(k + 2) * 32 + t]
        total += s[here, (t + 1) % 32]
    o[t] = total


@case(
    "too few buffers",
    (1, 32),
    lambda: (np.arange(256, dtype=F), np.zeros(32, F)),
    lambda x, o: {"o": np.roll(x.reshape(8, 32), -1, 1).sum(0)},
)
def pipeline_three(x, o):
    s = cuda.shared.array((2, 32), float32)
    t = cuda.threadIdx.x
    total = float32(0)
    for k in range(2):
        s[k % 2, t] = x[k * 32 + t]
    for k in range(8):
        cuda.syncthreads()
        if k + 2 < 8:
            s[(k + 2) % 2, t] = x[(k + 2) * 32 + t]
        total += s[k % 2, (t + 1) % 32]
    o[t] = total


@case(
    "too few buffers",
    (1, 32),
    lambda: (np.arange(256, dtype=F), np.zeros(32, F)),
    lambda x, o: {"out": (x.reshape(8, 32) + np.roll(x.reshape(8, 32), -1, 1)).sum(0)},
)
def pipeline_one_less(x, out):
    s = cuda.shared.array((2, 32), float32)
    t = cuda.threadIdx.x
    total = float32(0)
    s[0, t] = x[t]
    s[1, t] = x[32 + t]
    for k in range(8):
        cuda.syncthreads()
        total += s[k % 2, t] + s[k % 2, (t + 1) % 32]
        if k + 2 < 8:
            s[(k + 2) % 2, t] = x[(k + 2) * 32 + t]
    out[t] = total


@case(
    "mask of some lanes",
    (1, 32),
    lambda: (np.arange(32, dtype=F), np.zeros(32, F)),
    lambda x, o: {"out": np.roll(x, -1)},
)
def half_mask(x, out):
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncwarp(0xFFFF)
    out[t] = s[(t + 1) % 32]


@case("barrier that some threads miss", ((3, 3), (8, 8)), matrices, lambda a, b, c, n: {"c": a @ b})
def matmul_under_if(a, b, c, n):
    sa = cuda.shared.array((8, 8), float32)
    sb = cuda.shared.array((8, 8), float32)
    x, y = cuda.grid(2)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    total = float32(0)
    for k in range((n + 7) // 8):
        sa[ty, tx] = a[y, k * 8 + tx] if y < n and k * 8 + tx < n else 0
        sb[ty, tx] = b[k * 8 + ty, x] if x < n and k * 8 + ty < n else 0
        cuda.syncthreads()
        for j in range(8):
            total += sa[ty, j] * sb[j, tx]
        if x < n and y < n:
            cuda.syncthreads()
    if x < n and y < n:
        c[y, x] = total


@case("barrier that some threads miss", ((2, 2), (16, 16)), matrices, lambda a, b, c, n: {"c": a @ b})
def matmul_first_under_if(a, b, c, n):
    sa = cuda.shared.array((16, 16), float32)
    sb = cuda.shared.array((16, 16), float32)
    x, y = cuda.grid(2)
    tx = cuda.threadIdx.x
    ty = cuda.threadIdx.y
    total = float32(0)
    for k in range((n + 15) // 16):
        sa[ty, tx] = 0
        sb[ty, tx] = 0
        if y < n and k * 16 + tx < n:
            sa[ty, tx] = a[y, k * 16 + tx]
        if x < n and k * 16 + ty < n:
            sb[ty, tx] = b[k * 16 + ty, x]
            cuda.syncthreads()
        for j in range(16):
            total += sa[ty, j] * sb[j, tx]
        cuda.syncthreads()
    if x < n and y < n:
        c[y, x] = total


@case("exchanged by both", (1, 64), lambda: (X64(),), lambda x: {"x": x.reshape(32, 2)[:, ::-1].ravel()})
def swap_xor(x):
    t = cuda.threadIdx.x
    x[t], x[t ^ 1] = x[t ^ 1], x[t]


@case("exchanged by both", (1, 64), lambda: (X64(), 64), lambda x, n: {"x": x[::-1]})
def swap_guard(x, n):
    t = cuda.threadIdx.x
    if t < n:
        x[t], x[n - 1 - t] = x[n - 1 - t], x[t]


@case(
    "barrier",
    (1, 32),
    lambda: (X64()[:32].copy(), np.zeros(32, F)),
    lambda x, o: {"o": np.r_[x[:16][::-1], np.zeros(16)]},
)
def warp_guard(x, o):
    s = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    if t < 16:
        s[t] = x[t]
        o[t] = s[15 - t]


@case(
    "barrier",
    (1, 64),
    lambda: (np.arange(64, dtype=np.int32), np.zeros(64, np.int32)),
    lambda x, o: {"o": np.ones(64)},
)
def histogram_then_check(x, o):
    s = cuda.shared.array(8, int32)
    t = cuda.threadIdx.x
    if t < 8:
        s[t] = 0
    cuda.syncthreads()
    cuda.atomic.add(s, x[t] % 8, 1)
    if s[t % 8] == 8:
        o[t] = 1


@case("barrier", (1, 8), lambda: (X64()[:16][::-1].copy(),), lambda x: {"x": np.sort(x)})
def odd_even_sort(x):
    t = cuda.threadIdx.x
    for p in range(16):
        i = 2 * t + p % 2
        if i + 1 < 16:
            a = x[i]
            b = x[i + 1]
            if a > b:
                x[i] = b
                x[i + 1] = a


@case("barrier", (1, 8), lambda: (X64()[:16][::-1].copy(),), lambda x: {"x": np.sort(x)})
def odd_even_min_max(x):
    t = cuda.threadIdx.x
    for p in range(16):
        i = 2 * t + p % 2
        if i + 1 < 16:
            x[i], x[i + 1] = min(x[i], x[i + 1]), max(x[i], x[i + 1])


@case(
    "claim",
    (2, 32),
    lambda: (
        np.full(8, -1, np.int32),
        np.random.default_rng(0).integers(0, 8, (128, 4)).astype(np.int32),
        np.zeros(2, np.int32),
    ),
    lambda level, edge, head: {"head": [128, 8]},
)
def level_of_a_queue(level, edge, head):
    """Take two items of work. A fence before the second atomic would order some of the accesses."""
    for _ in range(2):
        n = cuda.atomic.add(head, 0, 1)
        for j in range(4):
            v = edge[n, j]
            if level[v] == -1:
                level[v] = n
                cuda.atomic.add(head, 1, 1)
