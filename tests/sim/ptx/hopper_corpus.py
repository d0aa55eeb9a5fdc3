"""Kernels in CUDA C++ for TMA, transaction barriers and clusters, and edits that plant a bug in them.

Each kernel of KERNELS is right. A bug is an edit: PAIRS has (kernel, old text, new text, kinds of the
findings). PRELUDE (cuda/hopper.cuh) wraps the PTX instructions."""

from pathlib import Path

import numpy as np
from ml_dtypes import bfloat16

import sim
from ptx.wgmma_corpus import HELPERS
from sim import tensor_map

PRELUDE = (Path(__file__).parent / "cuda" / "hopper.cuh").read_text(encoding="utf-8")

PRELUDE += f"namespace wg {{{HELPERS}}}\n"
# name -> the body of the kernel `k`, without the prelude
KERNELS = {
    # adds 1 to 256 integers per block, by a copy to shared memory and one back
    "tile": r"""
extern "C" __global__ void k(const int* x, int* y) {
    __shared__ __align__(128) int tile[256];
    __shared__ u64 bar;
    int t = threadIdx.x;
    if (t == 0) { init(&bar, 1); init_fence(); }
    __syncthreads();
    if (t == 0) {
        expect(&bar, 1024);
        load(tile, x + 256 * blockIdx.x, 1024, &bar);
    }
    wait(&bar, 0);
    for (int i = t; i < 256; i += 64) tile[i] += 1;
    fence();
    __syncthreads();
    if (t == 0) {
        store(y + 256 * blockIdx.x, tile, 1024);
        commit();
        wait_read();
    }
}""",
    # a warp sends tiles through two stages, and another one adds them up
    "pipeline": r"""
extern "C" __global__ void k(const int* x, int* y, int n) {
    __shared__ __align__(128) int tile[2][128];
    __shared__ u64 full[2], empty[2];
    int t = threadIdx.x;
    if (t == 0) {
        for (int s = 0; s < 2; s++) { init(&full[s], 1); init(&empty[s], 32); }
        init_fence();
    }
    __syncthreads();
    if (t == 32) {
        for (int i = 0; i < n; i++) {
            int s = i % 2, phase = i / 2 % 2;
            wait(&empty[s], phase ^ 1);
            expect(&full[s], 512);
            load(tile[s], x + 128 * i, 512, &full[s]);
        }
    } else if (t < 32) {
        int sum = 0;
        for (int i = 0; i < n; i++) {
            int s = i % 2, phase = i / 2 % 2;
            wait(&full[s], phase);
            for (int j = t; j < 128; j += 32) sum += tile[s][j];
            arrive(&empty[s]);
        }
        y[t] = sum;
    }
}""",
    # two blocks load half a tile each, for both
    "multicast": r"""
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(const int* x, int* y, int n) {
    __shared__ __align__(128) int tile[2][64];
    __shared__ u64 full[2], empty[2];
    int t = threadIdx.x, r = rank();
    if (t == 0) {
        for (int s = 0; s < 2; s++) { init(&full[s], 1); init(&empty[s], 2); }
        init_fence();
    }
    meet_relaxed();
    if (t == 32) {
        for (int i = 0; i < n; i++) {
            int s = i % 2, phase = i / 2 % 2;
            wait(&empty[s], phase ^ 1);
            expect(&full[s], 256);
            multicast(&tile[s][32 * r], x + 64 * i + 32 * r, 128, &full[s], 3);
        }
    } else if (t < 32) {
        int sum = 0;
        for (int i = 0; i < n; i++) {
            int s = i % 2, phase = i / 2 % 2;
            wait(&full[s], phase);
            sum += tile[s][t] + tile[s][32 + t];
            __syncwarp();
            if (t < 2) arrive_at(&empty[s], t);
        }
        y[32 * r + t] = sum;
    }
    __syncwarp();
    meet();
}""",
    # a warp loads tiles of A and B through two stages, and a warp group multiplies them
    "product": r"""
extern "C" __global__ void k(const __grid_constant__ Map a, const __grid_constant__ Map b, float* y, int n) {
    __shared__ __align__(1024) unsigned short tile_a[2][64 * 64], tile_b[2][16 * 64];
    __shared__ u64 full[2], empty[2];
    int t = threadIdx.x;
    if (t == 0) {
        for (int s = 0; s < 2; s++) { init(&full[s], 1); init(&empty[s], 1); }
        init_fence();
    }
    __syncthreads();
    if (t == 128) {
        for (int i = 0; i < n; i++) {
            int s = i % 2, phase = i / 2 % 2;
            wait(&empty[s], phase ^ 1);
            expect(&full[s], 8192 + 2048);
            load_box(tile_a[s], &a, 64 * i, 0, &full[s]);
            load_box(tile_b[s], &b, 64 * i, 0, &full[s]);
        }
    } else if (t < 128) {
        float d[8];
        for (int i = 0; i < 8; i++) d[i] = 0;
        for (int i = 0; i < n; i++) {
            int s = i % 2, phase = i / 2 % 2;
            wait(&full[s], phase);
            wg::keep(d);
            wg::arrive();
            for (int k = 0; k < 64; k += 16)
                wg::product(d, wg::swizzled(tile_a[s] + k), wg::swizzled(tile_b[s] + k), 1);
            wg::commit();
            wg::wait<0>();
            wg::keep(d);
            if (t == 0) arrive(&empty[s]);
        }
        wg::store(y, d, t);
    }
}""",
    # copies boxes of 32 columns and 8 rows of a matrix
    "box": r"""
extern "C" __global__ void k(const __grid_constant__ Map from, const __grid_constant__ Map to) {
    __shared__ __align__(1024) int tile[8][32];
    __shared__ u64 bar;
    int t = threadIdx.x, x = 32 * blockIdx.x, y = 8 * blockIdx.y;
    if (t == 0) { init(&bar, 1); init_fence(); }
    __syncthreads();
    if (t == 0) {
        expect(&bar, 1024);
        load_box(tile, &from, x, y, &bar);
    }
    wait(&bar, 0);
    for (int i = t; i < 256; i += 64) tile[0][i] += 1;
    fence();
    __syncthreads();
    if (t == 0) {
        store_box(&to, x, y, tile);
        commit();
        wait_all();
    }
}""",
    # adds up in the shared memory of the first block of a cluster
    "cluster sum": r"""
extern "C" __global__ void __cluster_dims__(4, 1, 1) k(const int* x, int* y) {
    __shared__ int sum;
    int t = threadIdx.x;
    if (t == 0) sum = 0;
    meet();
    atomicAdd(there(&sum, 0), x[64 * blockIdx.x + t]);
    meet();
    if (t == 0) y[blockIdx.x] = *there(&sum, 0);
    meet();
}""",
    # each block sends its tile to the next block of its cluster
    "ring": r"""
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(const int* x, int* y) {
    __shared__ __align__(128) int own[64], next[64];
    __shared__ u64 bar;
    int t = threadIdx.x;
    if (t == 0) { init(&bar, 1); init_fence(); expect(&bar, 256); }
    own[t] = x[64 * blockIdx.x + t];
    fence();
    meet();
    if (t == 0) send(next, own, 256, &bar, rank() ^ 1);
    wait(&bar, 0);
    y[64 * blockIdx.x + t] = next[t];
    meet();
}""",
    # adds tiles of several blocks to global memory
    "reduction": r"""
extern "C" __global__ void k(const int* x, int* y) {
    __shared__ __align__(128) int tile[64];
    int t = threadIdx.x;
    tile[t] = x[64 * blockIdx.x + t];
    fence();
    __syncthreads();
    if (t == 0) {
        reduce(y, tile, 256);
        commit();
        wait_read();
    }
}""",
    # stores to global memory, and reads it again by a bulk copy
    "scratch": r"""
extern "C" __global__ void k(int* x, int* y) {
    __shared__ __align__(128) int tile[64];
    __shared__ u64 bar;
    int t = threadIdx.x;
    if (t == 0) { init(&bar, 1); init_fence(); }
    x[t] = 3 * t;
    fence_global();
    __syncthreads();
    if (t == 0) {
        expect(&bar, 256);
        load(tile, x, 256, &bar);
    }
    wait(&bar, 0);
    y[t] = tile[63 - t];
}""",
    # each block stores its elements to the next block of its cluster, and arrives there
    "push": r"""
extern "C" __global__ void __cluster_dims__(2, 1, 1) k(const int* x, int* y) {
    __shared__ int next[64];
    __shared__ u64 bar;
    int t = threadIdx.x;
    if (t == 0) { init(&bar, 64); init_fence(); }
    meet_relaxed();
    *there(&next[t], rank() ^ 1) = x[64 * blockIdx.x + t];
    arrive_at(&bar, rank() ^ 1);
    wait_cluster(&bar, 0);
    y[64 * blockIdx.x + t] = next[t];
}""",
    # uses a barrier for one copy, and its memory for another barrier
    "renewed": r"""
extern "C" __global__ void k(const int* x, int* y) {
    __shared__ __align__(128) int tile[64];
    __shared__ u64 bar;
    int t = threadIdx.x;
    for (int i = 0; i < 2; i++) {
        if (t == 0) { init(&bar, 1); init_fence(); }
        __syncthreads();
        if (t == 0) { expect(&bar, 256); load(tile, x + 64 * i, 256, &bar); }
        wait(&bar, 0);
        y[64 * i + t] = tile[63 - t];
        __syncthreads();
        if (t == 0) invalidate(&bar);
    }
}""",
    # uses one tile for two copies, one after the other
    "reuse": r"""
extern "C" __global__ void k(int* x, int* y) {
    __shared__ __align__(128) int tile[64];
    __shared__ u64 bar;
    int t = threadIdx.x;
    if (t == 0) { init(&bar, 1); init_fence(); }
    __syncthreads();
    for (int i = 0; i < 2; i++) {
        if (t == 0) { expect(&bar, 256); load(tile, x + 64 * i, 256, &bar); }
        wait(&bar, i);
        y[64 * i + t] = tile[63 - t];
        __syncthreads();
    }
    tile[t] = 5;
    fence();
    __syncthreads();
    if (t == 0) { store(x, tile, 256); commit(); wait_all(); x[0] = 6; }
}""",
}
KERNELS["relaxed pipeline"] = (
    KERNELS["pipeline"]
    .replace("wait(&full[s], phase);", "wait_relaxed(&full[s], phase); __threadfence_block();")
    .replace("arrive(&empty[s]);", "__threadfence_block(); arrive_relaxed(&empty[s]);")
)


def box_of(a, swizzle=0):
    return tensor_map(a, (8, 32), swizzle=swizzle)


def numbers(n):
    return np.arange(n, dtype=np.int32)


def zeros(n):
    return np.zeros(n, np.int32)


def sums(n, tile):
    return numbers(n * tile).reshape(-1, 32).sum(0)


def box_of_rows(a):
    return tensor_map(a, (len(a), 64), swizzle=128)


FACTORS = [np.random.default_rng(0).integers(-2, 3, (rows, 256)).astype(bfloat16) for rows in (64, 16)]
PRODUCT = FACTORS[0].astype(np.float32) @ FACTORS[1].astype(np.float32).T
MATRIX = numbers(16 * 64).reshape(16, 64)
# name -> (configuration, function that returns new arguments, the wanted contents of the array written)
LAUNCHES = {
    "tile": ((2, 64), lambda: (numbers(512), zeros(512)), numbers(512) + 1),
    "pipeline": ((1, 64), lambda: (numbers(768), zeros(32), 6), sums(6, 128)),
    "product": ((1, 160), lambda: (*map(box_of_rows, FACTORS), np.zeros((64, 16), np.float32), 4), PRODUCT),
    "multicast": ((2, 64), lambda: (numbers(384), zeros(64), 6), np.tile(sums(6, 64), 2)),
    "box": (((2, 2), 64), lambda: (box_of(MATRIX.copy()), box_of(0 * MATRIX)), MATRIX + 1),
    "cluster sum": (
        (8, 64),
        lambda: (numbers(512), zeros(8)),
        np.repeat(numbers(512).reshape(2, -1).sum(1), 4),
    ),
    "ring": ((2, 64), lambda: (numbers(128), zeros(128)), np.roll(numbers(128), 64)),
    "push": ((2, 64), lambda: (numbers(128), zeros(128)), np.roll(numbers(128), 64)),
    "renewed": ((1, 64), lambda: (numbers(128), zeros(128)), numbers(128).reshape(2, 64)[:, ::-1].ravel()),
    "reduction": ((3, 64), lambda: (numbers(192), zeros(64)), numbers(192).reshape(3, 64).sum(0)),
    "scratch": ((1, 64), lambda: (zeros(64), zeros(64)), 3 * numbers(64)[::-1]),
    "reuse": ((1, 64), lambda: (numbers(128), zeros(128)), numbers(128).reshape(2, 64)[:, ::-1].ravel()),
}
LAUNCHES["relaxed pipeline"] = LAUNCHES["pipeline"]
COPY, FENCE, RACE = ["async-copy"], ["proxy-fence"], ["race-shared"]
# A question mark follows a kind that depends on the progress of the threads before they hang.
HANGS = ["async-copy?", "deadlock"]
SPIN = "for (int i = 0; i < 20; i++) __nanosleep(100);"
# (kernel, old text, new text, kinds)
PAIRS = {
    # --- proxy fences
    "no proxy fence before a store": ("tile", "fence();\n    __syncthreads();\n    if", "__syncthreads();\n"
        "    if", FENCE),
    "a memory fence in place of the proxy fence": ("tile", "    fence();\n", "    __threadfence();\n", FENCE),
    "the proxy fence is for global memory": ("tile", "    fence();\n", "    fence_global();\n", FENCE),
    "the proxy fence comes before the writes": (
        "tile", "    for (int i = t; i < 256; i += 64) tile[i] += 1;\n    fence();\n",
        "    fence();\n    for (int i = t; i < 256; i += 64) tile[i] += 1;\n", FENCE),
    "one thread fences, before the barrier": ("tile", "    fence();\n", "    if (t == 0) fence();\n", FENCE),
    "no proxy fence before a tensor store": ("box", "    fence();\n", "", FENCE),
    "no proxy fence before a reduction": ("reduction", "    fence();\n", "", FENCE),
    "no proxy fence before a copy to another block": ("ring", "    fence();\n", "", FENCE),
    "no proxy fence before a load of global memory": ("scratch", "    fence_global();\n", "", FENCE),
    "a shared fence before a load of global memory": ("scratch", "fence_global();", "fence();", FENCE),
    "the tile is cleared before the load, without a fence": (
        "tile", "    __syncthreads();\n    if (t == 0) {\n        expect",
        "    tile[t] = 0;\n    __syncthreads();\n    if (t == 0) {\n        expect", FENCE),
    # --- waits for the phase
    "no wait for the phase": ("tile", "    wait(&bar, 0);\n", "    __syncthreads();\n", COPY),
    "the parity of the phase before": ("tile", "wait(&bar, 0)", "wait(&bar, 1)", COPY),
    "one thread waits, and the others do not meet it": ("tile", "wait(&bar, 0);", "if (t == 0) wait(&bar,"
        " 0);", COPY),
    "a test in place of a loop": ("tile", "wait(&bar, 0);", "done(&bar, 0);", COPY),
    "a test in place of a loop, and a barrier": (
        "tile", "wait(&bar, 0);", "done(&bar, 0); __syncthreads();", COPY),
    "spinning in place of a wait": ("tile", "wait(&bar, 0);", f"{SPIN} __syncthreads();", COPY),
    "no wait for a box": ("box", "    wait(&bar, 0);\n", "    __syncthreads();\n", COPY),
    "the wait comes after the first read": (
        "scratch", "    wait(&bar, 0);\n    y[t] = tile[63 - t];\n",
        "    __syncthreads();\n    y[t] = tile[63 - t];\n    wait(&bar, 0);\n", COPY),
    "the next tile is not awaited": ("reuse", "wait(&bar, i)", "wait(&bar, 0)", COPY),
    "a consumer waits for the other stage": (
        "pipeline", "wait(&full[s], phase)", "wait(&full[0], phase)", COPY),
    "a consumer waits too late": (
        "pipeline", "            wait(&full[s], phase);\n            for (int j = t; j < 128; j += 32) sum"
            " += tile[s][j];\n",
        "            for (int j = t; j < 128; j += 32) sum += tile[s][j];\n            wait(&full[s],"
        " phase);\n", COPY),
    "a consumer spins in place of a wait": ("pipeline", "wait(&full[s], phase);", SPIN, COPY),
    "no wait in the next block of the ring": ("ring", "    wait(&bar, 0);\n", "    __syncthreads();\n", COPY),
    # --- transaction counts
    "expects too many bytes": ("tile", "expect(&bar, 1024)", "expect(&bar, 2048)", ["deadlock"]),
    "expects too few bytes, in two copies": (
        "tile", "        expect(&bar, 1024);\n        load(tile, x + 256 * blockIdx.x, 1024, &bar);",
        "        expect(&bar, 512); load(tile, x + 256 * blockIdx.x, 512, &bar);\n"
        "        load(tile + 128, x + 256 * blockIdx.x + 128, 512, &bar);", COPY),
    "no bytes expected": ("scratch", "expect(&bar, 256)", "arrive(&bar)", COPY),
    "the box is smaller than expected": ("box", "expect(&bar, 1024)", "expect(&bar, 4096)", ["deadlock"]),
    # --- reuse of a stage
    "a stage is filled before it is empty": (
        "pipeline", "            wait(&empty[s], phase ^ 1);\n", "", [*COPY, "deadlock"]),
    "bytes are expected before the stage is empty": (
        "pipeline", "            wait(&empty[s], phase ^ 1);\n            expect(&full[s], 512);\n",
        "            expect(&full[s], 512);\n            wait(&empty[s], phase ^ 1);\n", COPY),
    "bytes of tiles are expected before the stage is empty": (
        "product", "            wait(&empty[s], phase ^ 1);\n            expect(&full[s], 8192 + 2048);\n",
        "            expect(&full[s], 8192 + 2048);\n            wait(&empty[s], phase ^ 1);\n", COPY),
    "bytes of a multicast are expected before the stage is empty": (
        "multicast", "            wait(&empty[s], phase ^ 1);\n            expect(&full[s], 256);\n",
        "            expect(&full[s], 256);\n            wait(&empty[s], phase ^ 1);\n", COPY),
    "a consumer arrives before it reads": (
        "pipeline", "            for (int j = t; j < 128; j += 32) sum += tile[s][j];\n           "
            " arrive(&empty[s]);\n",
        "            arrive(&empty[s]);\n            for (int j = t; j < 128; j += 32) sum += tile[s][j];\n",
        COPY),
    "one consumer arrives for all": (
        "pipeline", "init(&empty[s], 32); }", "init(&empty[s], 1); }", HANGS),
    "the producer waits with the wrong parity": ("pipeline", "phase ^ 1", "phase", ["deadlock"]),
    "no barrier before the tile is filled again": (
        "reuse", "        __syncthreads();\n    }\n", "    }\n    __syncthreads();\n", HANGS),
    "multicast, and one block does not arrive": (
        "multicast", "if (t < 2) arrive_at", "if (t < 1) arrive_at", HANGS),
    "multicast, and the count has room for one block": (
        "multicast", "init(&empty[s], 2)", "init(&empty[s], 1)", COPY),
    "no warp barrier before one lane arrives": (
        "multicast", "            __syncwarp();\n", "", [*COPY, "deadlock?"]),
    # --- with wgmma
    "products wait for the phase too late": (
        "product", "            wait(&full[s], phase);\n            wg::keep(d);\n           "
            " wg::arrive();\n",
        "            wg::keep(d);\n            wg::arrive();\n", COPY),
    "products spin in place of a wait": ("product", "wait(&full[s], phase);", SPIN, COPY),
    "the stage is released before the products are complete": (
        "product", "            wg::wait<0>();\n            wg::keep(d);\n            if (t == 0)"
            " arrive(&empty[s]);\n",
        "            if (t == 0) arrive(&empty[s]);\n            wg::wait<0>();\n            wg::keep(d);\n",
        COPY),
    "the producer does not wait for products": ("product", "            wait(&empty[s], phase ^ 1);\n",
                                                "", COPY),
    "the bytes of B are not expected": ("product", "8192 + 2048", "8192", [*COPY, "deadlock"]),
    # --- bulk stores
    "the store is never waited for": ("tile", "        wait_read();\n", "", COPY),
    "the store is never committed": ("tile", "        commit();\n", "", COPY),
    "the reduction is never waited for": ("reduction", "        wait_read();\n", "", COPY),
    "the source is overwritten at once": ("tile", "commit();", "commit(); tile[0] = 7;", COPY),
    "the result is overwritten before the store is complete": (
        "reuse", "wait_all(); x", "wait_read(); x", COPY),
    # --- addresses and sizes
    "a size that is no multiple of 16": (
        "scratch", "expect(&bar, 256);\n        load(tile, x, 256", "expect(&bar, 248);\n        load(tile,"
            " x, 248",
        ["misaligned-address", "uninitialized-read"]),
    "a source that is no multiple of 16": (
        "scratch", "expect(&bar, 256);\n        load(tile, x, 256", "expect(&bar, 240);\n        load(tile,"
            " x + 1, 240",
        ["misaligned-address", "uninitialized-read"]),
    "a tile that is aligned by luck": (
        "reuse", "__align__(128) int tile[64];", "int tile[64], pad[1];", ["misaligned-address"]),
    # --- barriers and clusters
    "no barrier after the initialisation": (
        "pipeline", "        init_fence();\n    }\n    __syncthreads();\n", "        init_fence();\n    }\n",
        [*HANGS, "race-shared?", "uninitialized-read"]),
    "no fence after the initialisation, for the cluster": ("multicast", "        init_fence();\n", "", RACE),
    "the blocks do not meet after the initialisation": (
        "multicast", "    meet_relaxed();\n", "    __syncthreads();\n",
        [*HANGS, "race-shared", "uninitialized-read"]),
    "a block ends while another one arrives": (
        "multicast", "    __syncwarp();\n    meet();\n", "", ["use-after-free"]),
    "the blocks do not meet before the sum": ("cluster sum", "sum = 0;\n    meet();", "sum = 0;\n   "
        " __syncthreads();", RACE),
    "the blocks do not meet after the sum": (
        "cluster sum", "t]);\n    meet();", "t]);\n    __syncthreads();", RACE),
    "a block ends while another one reads": ("cluster sum", "    meet();\n}", "}", ["use-after-free"]),
    "a block ends while its tile is filled": ("ring", "    wait(&bar, 0);\n    y[64 * blockIdx.x + t] ="
        " next[t];\n    meet();\n",
                                              "    y[64 * blockIdx.x + t] = 0;\n", [*COPY, "use-after-free"]),
    "two blocks end while their tiles may still be sent": (
        "ring", "next[t];\n    meet();\n", "next[t];\n", COPY),
    "a block ends while its tile may still be sent": (
        "ring", "next[t];\n    meet();\n", "next[t];\n    if (rank() == 0) wait(&bar, 0);\n", COPY),
    # --- the order and scope of arrivals and waits
    "an arrival without a release": (
        "pipeline", "arrive(&empty[s]);", "arrive_relaxed(&empty[s]);", COPY),
    "a fence after a relaxed arrival": (
        "relaxed pipeline", "__threadfence_block(); arrive_relaxed(&empty[s]);",
        "arrive_relaxed(&empty[s]); __threadfence_block();", COPY),
    "a wait without an acquire": (
        "pipeline", "wait(&full[s], phase);", "wait_relaxed(&full[s], phase);", COPY),
    "no fence after a relaxed wait": (
        "relaxed pipeline", "wait_relaxed(&full[s], phase); __threadfence_block();",
        "__threadfence_block(); wait_relaxed(&full[s], phase);", COPY),
    "a store to another block, and an arrival without a release": (
        "push", "arrive_at(&bar", "arrive_at_relaxed(&bar", RACE),
    "a store to another block, and an arrival of block scope": (
        "push", "arrive_at(&bar", "arrive_at_cta(&bar", RACE),
    "a store of another block, and a wait of block scope": ("push", "wait_cluster", "wait_cta", RACE),
    "a fence before the data, and a relaxed arrival at the cluster": (
        "cluster sum", "if (t == 0) sum = 0;\n    meet();",
        "__threadfence();\n    if (t == 0) sum = 0;\n    meet_relaxed();", RACE),
    # --- initialisation of a barrier that is in use
    "a barrier is initialised again": ("renewed", "        if (t == 0) invalidate(&bar);\n", "", ["misuse"]),
    "a barrier is initialised while a copy is under way": (
        "renewed", "256, &bar); }\n", "256, &bar); init(&bar, 1); expect(&bar, 0); }\n",
        ["misuse", "async-copy", "race-shared?"]),
    "one block does not arrive at the cluster": ("cluster sum", "t]);\n    meet();", "t]);\n    if (rank())"
        " meet();", RACE),
}  # fmt: skip


def source(name):
    """Return the CUDA C++ of a kernel, or of the kernel with a planted bug."""
    if name in KERNELS:
        return PRELUDE + KERNELS[name]
    kernel, old, new, _ = PAIRS[name]
    assert KERNELS[kernel].count(old) == 1, (name, KERNELS[kernel].count(old))
    return PRELUDE + KERNELS[kernel].replace(old, new)


def run(name, module, **options):
    """Return (report, whether the result is as wanted) for a kernel or a planted bug."""
    kernel = name if name in KERNELS else PAIRS[name][0]
    configuration, arguments, wanted = LAUNCHES[kernel]
    given = arguments()
    report = sim.simulate(module["k"], on_finding="report", **options)[configuration](*given)
    result = given[1].tensor if kernel == "box" else given[2 if kernel == "product" else 1]
    return report, bool((result == wanted).all())


def as_wanted(name, found):
    """Return whether the kinds found are those of a planted bug."""
    return is_as_wanted(PAIRS[name][3], found)


def is_as_wanted(wanted, found):
    """Return whether the kinds found are the wanted ones. Those with a question mark may be missing."""
    certain = {kind for kind in wanted if not kind.endswith("?")}
    return certain <= {*found} <= {kind.removesuffix("?") for kind in wanted}
