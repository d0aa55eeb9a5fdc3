"""Kernels of clusters: products of multicast tiles, halos and stores to other blocks, and broadcasts.

The edits of PAIRS plant a bug. A question mark follows a kind that depends on the progress of threads."""

import numpy as np
from ml_dtypes import bfloat16

from ptx.edited_kernels import Corpus
from ptx.specialised_corpus import PRELUDE
from sim import tensor_map

KERNELS = {
    "mc gemm": r"""
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(
        const __grid_constant__ Map a, const __grid_constant__ Map b,
        float* y, int n) {
    __shared__ __align__(1024) u16 tile_a[2][64 * 64], tile_b[2][16 * 64];
    __shared__ u64 full[2], empty[2];
    int t = threadIdx.x, r = rank();
    if (t == 0) {
        for (int s = 0; s < 2; s++) { init(&full[s], 1); init(&empty[s], 2); }
        init_fence();
    }
    meet_relaxed();
    if (t == 128) {
        for (int i = 0; i < n; i++) {
            int s = i % 2, phase = i / 2 % 2;
            wait(&empty[s], phase ^ 1);
            expect(&full[s], 8192 + 2048);
            multicast_box(tile_a[s] + 2048 * r, &a, 64 * i, 32 * r, &full[s], 3);
            load_box(tile_b[s], &b, 64 * i, 16 * r, &full[s]);
        }
    } else if (t < 128) {
        float d[8];
        for (int j = 0; j < 8; j++) d[j] = 0;
        #pragma unroll 1
        for (int i = 0; i < n; i++) {
            int s = i % 2, phase = i / 2 % 2;
            wait(&full[s], phase);
            wg::keep(d);
            wg::arrive();
            products(d, tile_a[s], tile_b[s], 0);
            wg::commit();
            wg::wait<0>();
            wg::keep(d);
            if (t < 2) arrive_at(&empty[s], t);
        }
        wg::store(y + 1024 * r, d, t);
    }
    __syncwarp();
    meet();
}""",
    "transpose": r"""
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(const int* x, int* y) {
    __shared__ __align__(128) int tile[64];
    int t = threadIdx.x, r = rank();
    meet_relaxed();
    *there(&tile[32 * r + t], 0) = x[64 * r + t];
    *there(&tile[32 * r + t], 1) = x[64 * r + 32 + t];
    fence_all();
    meet();
    if (t == 0) { store(y + 64 * r, tile, 256); commit(); wait_read(); }
}""",
    "leader": r"""
extern "C" __global__ void __cluster_dims__(4, 1, 1) k(const int* x, int* y, int n) {
    __shared__ int part[4][32];
    __shared__ u64 full, empty;
    int t = threadIdx.x, r = rank();
    if (t == 0) { init(&full, 128); init(&empty, 1); init_fence(); }
    meet_relaxed();
    for (int i = 0; i < n; i++) {
        if (i > 0) wait_cluster(&empty, (i - 1) % 2);
        *there(&part[r][t], 0) = x[128 * i + 32 * r + t];
        arrive_at(&full, 0);
        if (r == 0) {
            wait_cluster(&full, i % 2);
            y[32 * i + t] = part[0][t] + part[1][t] + part[2][t] + part[3][t];
            __syncwarp();
            if (t < 4) arrive_at(&empty, t);
        }
    }
    __syncwarp();
    meet();
}""",
    "broadcast": r"""
extern "C" __global__ void __cluster_dims__(4, 1, 1) k(const int* x, int* y, int n) {
    __shared__ __align__(128) int tile[2][64];
    __shared__ u64 full[2], empty[2];
    int t = threadIdx.x, r = rank();
    if (t == 0) {
        for (int s = 0; s < 2; s++) { init(&full[s], 1); init(&empty[s], 4); }
        init_fence();
    }
    meet_relaxed();
    int sum = 0;
    for (int i = 0; i < n; i++) {
        int s = i % 2, phase = i / 2 % 2;
        if (t == 32) expect(&full[s], 256);
        if (t == 32 && r == 0) {
            wait_cluster(&empty[s], phase ^ 1);
            multicast(tile[s], x + 64 * i, 256, &full[s], 15);
        }
        if (t < 32) {
            wait(&full[s], phase);
            sum += tile[s][t] + tile[s][32 + t];
            __syncwarp();
            if (t == 0) arrive_at(&empty[s], 0);
        }
        __syncthreads();
    }
    if (t < 32) y[32 * r + t] = sum;
    meet();
}""",
    "halo": r"""
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(const int* x, int* y, int n) {
    __shared__ __align__(128) int own[2][32], next[2][32];
    __shared__ u64 full[2], empty[2];
    int t = threadIdx.x, r = rank();
    if (t == 0) {
        for (int s = 0; s < 2; s++) { init(&full[s], 1); init(&empty[s], 32); }
        init_fence();
    }
    meet_relaxed();
    int sum = 0;
    for (int i = 0; i < n; i++) {
        int s = i % 2, phase = i / 2 % 2;
        own[s][t] = x[64 * i + 32 * r + t];
        fence();
        __syncthreads();
        if (t == 0) {
            expect(&full[s], 128);
            wait_cluster(&empty[s], phase ^ 1);
            send(next[s], own[s], 128, &full[s], r ^ 1);
        }
        wait_cluster(&full[s], phase);
        sum += next[s][31 - t];
        arrive_at(&empty[s], r ^ 1);
        __syncthreads();
    }
    y[32 * r + t] = sum;
    meet();
}""",
}
RANDOM = np.random.default_rng(5)
A, B = (RANDOM.integers(-2, 3, (rows, 256)).astype(bfloat16) for rows in (64, 32))
PRODUCTS = np.stack([A.astype(np.float32) @ part.astype(np.float32).T for part in np.split(B, 2)])
X = np.arange(384, dtype=np.int32)


def zeros(count):
    return np.zeros(count, np.int32)


def product_arguments():
    maps = [tensor_map(matrix, (rows, 64), swizzle=128) for matrix, rows in ((A, 32), (B, 16))]
    return (*maps, np.zeros((2, 64, 16), np.float32), 4)


# name -> (configuration, function that returns new arguments, the argument written, its wanted contents)
LAUNCHES = {
    "mc gemm": ((2, 160), product_arguments, 2, PRODUCTS),
    "transpose": ((2, 32), lambda: (X[:128].copy(), zeros(128)), 1,
                  X[:128].reshape(2, 2, 32).transpose(1, 0, 2).ravel()),
    "leader": ((4, 32), lambda: (X.copy(), zeros(96), 3), 1, X.reshape(3, 4, 32).sum(1).ravel()),
    "broadcast": ((4, 64), lambda: (X[:320].copy(), zeros(128), 5), 1,
                  np.tile(X[:320].reshape(10, 32).sum(0), 4)),
    "halo": ((2, 32), lambda: (X[:320].copy(), zeros(64), 5), 1,
             X[:320].reshape(5, 2, 32).sum(0)[::-1, ::-1].ravel()),
}  # fmt: skip
COPY, FENCE, RACE, FREED = ["async-copy"], ["proxy-fence"], ["race-shared"], ["use-after-free"]
# name -> (kernel, kinds of the findings, (old text, new text) of each edit)
PAIRS = {
    "a block releases only its own stage": (
        "mc gemm", ["deadlock", "async-copy?", "race-shared?"],
        ("if (t < 2) arrive_at(&empty[s], t);",
         "if (t == 0) arrive_at(&empty[s], r);")),
    "the empty barrier counts one of two blocks": (
        "mc gemm", ["async-copy", "deadlock?"],
        ("init(&empty[s], 2)",
         "init(&empty[s], 1)")),
    "a block expects only the half that it sends": (
        "mc gemm", ["async-copy", "deadlock?"],
        ("expect(&full[s], 8192 + 2048)",
         "expect(&full[s], 4096 + 2048)")),
    "no initialisation fence for a multicast": (
        "mc gemm", RACE,
        ("        init_fence();\n",
         "")),
    "a block barrier follows the initialisation": (
        "mc gemm", ["race-shared", "async-copy?", "deadlock?", "uninitialized-read?"],
        ("    meet_relaxed();\n",
         "    __syncthreads();\n")),
    "a block ends while the other one arrives at its barrier": (
        "mc gemm", FREED,
        ("    __syncwarp();\n"
         "    meet();\n",
         "")),
    "the mask of a multicast names one block": (
        "mc gemm", ["deadlock", "async-copy?"],
        ("&full[s], 3);",
         "&full[s], 1);")),
    "the stages of both blocks are released before the product is complete": (
        "mc gemm", COPY,
        ("            wg::wait<0>();\n"
         "            wg::keep(d);\n"
         "            if (t < 2) arrive_at(&empty[s], t);\n",
         "            if (t < 2) arrive_at(&empty[s], t);\n"
         "            wg::wait<0>();\n"
         "            wg::keep(d);\n")),
    "both blocks expect bytes before their stages are free": (
        "mc gemm", ["async-copy", "deadlock?"],
        ("            wait(&empty[s], phase ^ 1);\n"
         "            expect(&full[s], 8192 + 2048);\n",
         "            expect(&full[s], 8192 + 2048);\n"
         "            wait(&empty[s], phase ^ 1);\n")),
    "a multicast precedes the wait for a free stage": (
        "mc gemm", ["async-copy", "deadlock?"],
        ("            wait(&empty[s], phase ^ 1);\n"
         "            expect(&full[s], 8192 + 2048);\n"
         "            multicast_box(tile_a[s] + 2048 * r, &a, 64 * i, 32 * r, &full[s], 3);\n",
         "            multicast_box(tile_a[s] + 2048 * r, &a, 64 * i, 32 * r, &full[s], 3);\n"
         "            wait(&empty[s], phase ^ 1);\n"
         "            expect(&full[s], 8192 + 2048);\n")),
    "both blocks send the same half": (
        "mc gemm", ["async-copy", "uninitialized-read?", "race-shared?"],
        ("tile_a[s] + 2048 * r, &a",
         "tile_a[s], &a")),
    "a multicast tile is read with another swizzle": (
        "mc gemm", ["wgmma"],
        ("products(d, tile_a[s], tile_b[s], 0);",
         "for (int k = 0; k < 64; k += 16) wg::product(d, wg::describe(tile_a[s] + k, 16, 512,"
         " 2), wg::swizzled(tile_b[s] + k), 1);")),
    "a stage of another block is released in the scope of the block": (
        "mc gemm", COPY,
        ("if (t < 2) arrive_at(",
         "if (t < 2) arrive_at_cta(")),
    "a stage of another block is released by a relaxed arrival": (
        "mc gemm", COPY,
        ("if (t < 2) arrive_at(",
         "if (t < 2) arrive_at_relaxed(")),
    "no proxy fence after stores to another block": (
        "transpose", FENCE,
        ("    fence_all();\n",
         "")),
    "a block barrier after stores to another block": (
        "transpose", ["async-copy", "uninitialized-read"],
        ("    fence_all();\n"
         "    meet();\n",
         "    fence_all();\n"
         "    __syncthreads();\n")),
    "stores to a block that may not have started": (
        "transpose", FREED,
        ("    meet_relaxed();\n",
         "")),
    "a relaxed barrier after stores to another block": (
        "transpose", ["proxy-fence?", "async-copy?", "race-shared?"],
        ("    fence_all();\n"
         "    meet();\n",
         "    fence_all();\n"
         "    meet_relaxed();\n")),
    "parts are overwritten before the leader has read them": (
        "leader", ["race-shared", "deadlock?"],
        ("        if (i > 0) wait_cluster(&empty, (i - 1) % 2);\n",
         "")),
    "the wait for the leader has the wrong parity": (
        "leader", ["race-shared?", "deadlock?"],
        ("(i - 1) % 2",
         "i % 2")),
    "the leader's barrier counts one block of four": (
        "leader", ["race-shared", "deadlock?", "invalid-operand?"],
        ("init(&full, 128)",
         "init(&full, 32)")),
    "no warp barrier before the leader releases the parts": (
        "leader", RACE,
        ("            __syncwarp();\n"
         "            if (t < 4)",
         "            if (t < 4)")),
    "the leader waits in the scope of the block": (
        "leader", RACE,
        ("            wait_cluster(&full, i % 2);",
         "            wait_cta(&full, i % 2);")),
    "each block releases its own barrier, and the sender waits at another one": (
        "broadcast", ["deadlock", "async-copy?"],
        ("arrive_at(&empty[s], 0)",
         "arrive(&empty[s])")),
    "the mask of a broadcast leaves one block out": (
        "broadcast", ["deadlock", "async-copy?"],
        ("&full[s], 15)",
         "&full[s], 7)")),
    "a broadcast does not wait for free stages": (
        "broadcast", ["async-copy", "deadlock?"],
        ("            wait_cluster(&empty[s], phase ^ 1);\n",
         "")),
    "only the sender of a broadcast expects its bytes": (
        "broadcast", ["deadlock", "async-copy?"],
        ("if (t == 32) expect",
         "if (t == 32 && r == 0) expect")),
    "a stage of a broadcast is released before it is read": (
        "broadcast", COPY,
        ("            sum += tile[s][t] + tile[s][32 + t];\n"
         "            __syncwarp();\n"
         "            if (t == 0) arrive_at(&empty[s], 0);\n",
         "            if (t == 0) arrive_at(&empty[s], 0);\n"
         "            sum += tile[s][t] + tile[s][32 + t];\n")),
    "no warp barrier before a stage of a broadcast is released": (
        "broadcast", COPY,
        ("            __syncwarp();\n"
         "            if (t == 0) arrive_at",
         "            if (t == 0) arrive_at")),
    "the sender of a broadcast may have ended": (
        "broadcast", FREED,
        ("    meet();\n"
         "}",
         "}")),
    "no proxy fence before a halo is sent": (
        "halo", FENCE,
        ("        fence();\n",
         "")),
    "a halo is overwritten while it is sent": (
        "halo", COPY,
        ("own[2][32], next",
         "own[1][32], next"),
        ("own[s][t] = x",
         "own[0][t] = x"),
        ("own[s], 128",
         "own[0], 128")),
    "a block expects twice the bytes of a halo": (
        "halo", ["deadlock", "async-copy?"],
        ("expect(&full[s], 128)",
         "expect(&full[s], 256)")),
}  # fmt: skip
CORPUS = Corpus(PRELUDE, KERNELS, LAUNCHES, PAIRS)
