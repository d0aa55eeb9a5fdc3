"""Kernels in CUDA C++ in which all threads of a block arrive and wait at mbarriers together, and edits of
them. Most edits plant a bug."""

import numpy as np

from ptx.edited_kernels import Corpus
from ptx.phase_programs import KERNEL

BLOCKS, N = 3, 64
KERNELS = {
    # each phase orders the stores before the arrival
    "rotation": r"""
extern "C" __global__ void k(const int *x, int *y) {
    __shared__ int s[2][64];
    __shared__ u64 bar;
    int t = threadIdx.x, v = x[blockIdx.x * 64 + t];
    if (t == 0) init(&bar, 64);
    __syncthreads();
    for (int i = 0; i < 6; i++) {
        s[i & 1][t] = v;
        u64 state = arrive(&bar);
        int w = v * 2;
        wait(&bar, state);
        v = w + s[i & 1][(t + 1) & 63];
    }
    y[blockIdx.x * 64 + t] = v;
}""",
    "parity": r"""
extern "C" __global__ void k(const int *x, int *y) {
    __shared__ int s[64];
    __shared__ u64 bar;
    int t = threadIdx.x, v = x[blockIdx.x * 64 + t];
    u32 parity = 0;
    if (t == 0) init(&bar, 64);
    __syncthreads();
    for (int d = 32; d > 0; d /= 2) {
        s[t] = v;
        arrive(&bar);
        wait_parity(&bar, parity);
        parity ^= 1;
        v += s[t ^ d];
        arrive(&bar);
        wait_parity(&bar, parity);
        parity ^= 1;
    }
    y[blockIdx.x * 64 + t] = v;
}""",
    # the barrier counts the arrivals of the threads and those of their copies
    "copies": r"""
extern "C" __global__ void k(const int *x, int *y) {
    __shared__ int s[64];
    __shared__ u64 bar;
    int t = threadIdx.x, v = 0;
    if (t == 0) init(&bar, 64);
    __syncthreads();
    for (int i = 0; i < 3; i++) {
        copy(&s[t], &x[i * 64 + t]);
        track(&bar);
        u64 state = arrive(&bar);
        wait(&bar, state);
        v += s[63 - t] * (i + 1);
        __syncthreads();
    }
    y[blockIdx.x * 64 + t] = v;
}""",
    "expected copies": r"""
extern "C" __global__ void k(const int *x, int *y) {
    __shared__ int s[64];
    __shared__ u64 bar;
    int t = threadIdx.x, v = 0;
    if (t == 0) init(&bar, 128);
    __syncthreads();
    for (int i = 0; i < 3; i++) {
        copy(&s[t], &x[i * 64 + t]);
        track_expected(&bar);
        arrive(&bar);
        wait_parity(&bar, i & 1);
        v += s[63 - t] * (i + 1);
        __syncthreads();
    }
    y[blockIdx.x * 64 + t] = v;
}""",
    # a ring of two stages, as in cuda::pipeline
    "stages": r"""
extern "C" __global__ void k(const int *x, int *y) {
    __shared__ int s[2][64];
    __shared__ u64 full[2], empty[2];
    int t = threadIdx.x, v = 0;
    if (t < 2) { init(&full[t], 64); init(&empty[t], 64); }
    __syncthreads();
    for (int i = 0, next = 0; i < 3; i++) {
        for (; next < 3 && next < i + 2; next++) {
            wait_parity(&empty[next & 1], ~(next >> 1) & 1);
            copy(&s[next & 1][t], &x[next * 64 + t]);
            track(&full[next & 1]);
            arrive(&full[next & 1]);
        }
        wait_parity(&full[i & 1], i >> 1 & 1);
        v += s[i & 1][63 - t] * (i + 1);
        arrive(&empty[i & 1]);
    }
    y[blockIdx.x * 64 + t] = v;
}""",
    # the wait at the second barrier orders less than that at the first one
    "two barriers": r"""
extern "C" __global__ void k(const int *x, int *y) {
    __shared__ int s[64], r[64];
    __shared__ u64 first, second;
    int t = threadIdx.x;
    if (t == 0) { init(&first, 64); init(&second, 64); }
    __syncthreads();
    s[t] = x[blockIdx.x * 64 + t];
    u64 of_first = arrive(&first);
    r[t] = x[blockIdx.x * 64 + t] + 1;
    u64 of_second = arrive(&second);
    wait(&first, of_first);
    int v = s[63 - t];
    wait(&second, of_second);
    y[blockIdx.x * 64 + t] = v + r[(t + 1) & 63];
}""",
    "invalidated": r"""
extern "C" __global__ void k(const int *x, int *y) {
    __shared__ int s[64];
    __shared__ u64 bar;
    int t = threadIdx.x;
    if (t == 0) init(&bar, 64);
    __syncthreads();
    s[t] = x[blockIdx.x * 64 + t];
    wait(&bar, arrive(&bar));
    int v = s[63 - t];
    __syncthreads();
    if (t == 0) asm volatile("mbarrier.inval.shared::cta.b64 [%0];" :: "r"(at(&bar)) : "memory");
    y[blockIdx.x * 64 + t] = v;
}""",
}

RNG = np.random.default_rng(5)
X = RNG.integers(0, 100, (BLOCKS, N)).astype(np.int32)


def rotated():
    v = X.copy()
    for _ in range(6):
        v = 2 * v + np.roll(v, -1, 1)
    return v


TILES = np.tile((X[:, ::-1] * np.array([[1], [2], [3]])).sum(0), (BLOCKS, 1))
WANTED = {
    "rotation": rotated(),
    "parity": np.repeat(X.sum(1, keepdims=True), N, 1),
    "copies": TILES,
    "expected copies": TILES,
    "stages": TILES,
    "two barriers": X[:, ::-1] + np.roll(X + 1, -1, 1),
    "invalidated": X[:, ::-1],
}


def arguments():
    return X.copy(), np.zeros((BLOCKS, N), np.int32)


LAUNCHES = {name: ((BLOCKS, N), arguments, 1, WANTED[name].astype(np.int32)) for name in KERNELS}
RACE, ASYNC, STUCK, MISUSE = "race-shared", "async-copy", "deadlock", "misuse"
UNWRITTEN = "uninitialized-read"
WAIT = "        wait(&bar, state);\n"
COUNT = "init(&bar, 64)"
PAIRS = {
    "rotation without a wait": ("rotation", [RACE], (WAIT, "")),
    "rotation in one buffer": (
        "rotation",
        [RACE],
        ("s[i & 1][t] = v", "s[0][t] = v"),
        ("s[i & 1][(t", "s[0][(t"),
    ),
    "a store after the arrival": (
        "rotation",
        [RACE],
        ("        s[i & 1][t] = v;\n", ""),
        ("int w = v * 2;", "s[i & 1][t] = v; int w = v * 2;"),
    ),
    "a read before the wait": (
        "rotation",
        [RACE],
        ("int w = v * 2;", "int w = v * 2 + s[i & 1][(t + 1) & 63];"),
        (" + s[i & 1][(t + 1) & 63];\n    }", ";\n    }"),
    ),
    "a wait for the previous phase": (
        "rotation",
        [STUCK],
        ("for (int i", "u64 last = arrive(&bar); wait(&bar, last); for (int i"),
        ("wait(&bar, state)", "wait(&bar, last); last = state"),
    ),
    "a count that is too high": ("rotation", [STUCK], (COUNT, "init(&bar, 65)")),
    "a count that is too low": ("rotation", [STUCK], (COUNT, "init(&bar, 63)")),
    "no barrier after the initialisation": (
        "rotation",
        [STUCK, UNWRITTEN],
        ("    __syncthreads();\n    for", "    for"),
    ),
    "an initialisation by all threads": ("rotation", [MISUSE, RACE], ("if (t == 0) init", "init")),
    "no initialisation": ("rotation", [RACE, UNWRITTEN], ("if (t == 0) init(&bar, 64);", "")),
    "two arrivals per thread": ("rotation", [STUCK], ("int w = v * 2;", "arrive(&bar); int w = v * 2;")),
    "an arrival too few": (
        "rotation",
        [STUCK],
        ("u64 state = arrive(&bar)", "u64 state = t ? arrive(&bar) : 0"),
    ),
    "the wrong parity": ("parity", [STUCK], ("u32 parity = 0;", "u32 parity = 1;")),
    "a parity that does not change": ("parity", [STUCK], ("parity ^= 1;\n        v +=", "v +=")),
    "no second phase": (
        "parity",
        [RACE],
        ("        arrive(&bar);\n        wait_parity(&bar, parity);\n        parity ^= 1;\n    }", "    }"),
    ),
    "copies without tracking": ("copies", [ASYNC], ("        track(&bar);\n", "")),
    "copies read before the wait": (
        "copies",
        [RACE],
        (
            "        wait(&bar, state);\n        v += s[63 - t] * (i + 1);\n",
            "v += s[63 - t] * (i + 1); wait(&bar, state);\n",
        ),
    ),
    "copies over the tile in use": (
        "copies",
        [RACE],
        ("v += s[63 - t] * (i + 1);\n        __syncthreads();", "v += s[63 - t] * (i + 1);"),
    ),
    "expected copies without tracking": ("expected copies", [STUCK], ("        track_expected(&bar);\n", "")),
    "expected copies counted twice": ("expected copies", [STUCK], ("track_expected(&bar);", "track(&bar);")),
    "no wait for an empty stage": (
        "stages",
        [RACE],
        ("            wait_parity(&empty[next & 1], ~(next >> 1) & 1);\n", ""),
    ),
    "no wait for a full stage": (
        "stages",
        [ASYNC, RACE],
        ("        wait_parity(&full[i & 1], i >> 1 & 1);\n", ""),
    ),
    "a stage released before its use": (
        "stages",
        [RACE],
        ("        arrive(&empty[i & 1]);\n", ""),
        ("v += s[i", "arrive(&empty[i & 1]); v += s[i"),
    ),
    "a stage never released": ("stages", [STUCK], ("        arrive(&empty[i & 1]);\n", "")),
    "a wait for the other stage": (
        "stages",
        [STUCK],
        ("wait_parity(&full[i & 1]", "wait_parity(&full[~i & 1]"),
    ),
    "the second barrier not waited for": ("two barriers", [RACE], ("    wait(&second, of_second);\n", "")),
    "the first barrier not waited for": (
        "two barriers",
        [],
        ("    wait(&first, of_first);\n", ""),
        ("int v = s[63 - t];\n", ""),
        ("= v + r", "= s[63 - t] + r"),
    ),
    "waits in the wrong order": (
        "two barriers",
        [RACE],
        ("wait(&first, of_first)", "wait(&third, of_third)"),
        ("first, second;", "first, second, third;"),
        ("init(&second, 64)", "init(&second, 64); init(&third, 64)"),
        ("    s[t] = x", "    u64 of_third = arrive(&third);\n    s[t] = x"),
    ),
    "a use of an invalidated barrier": (
        "invalidated",
        [UNWRITTEN],
        ("    y[blockIdx", "    __syncthreads(); arrive(&bar);\n    y[blockIdx"),
    ),
    "an invalidation during the use": (
        "invalidated",
        [RACE, UNWRITTEN],
        ("    int v = s[63 - t];\n    __syncthreads();\n", "    int v = s[63 - t]; arrive(&bar);\n"),
    ),
}
CORPUS = Corpus(KERNEL, KERNELS, LAUNCHES, PAIRS)
