"""Kernels of specialised warps: persistent products, attention, and products with two producers.

The edits of PAIRS plant a bug. A question mark follows a kind that depends on the progress of threads."""

from pathlib import Path

import numpy as np
from ml_dtypes import bfloat16

from ptx import pipeline_corpus
from ptx.edited_kernels import Corpus
from sim import tensor_map

PRELUDE = pipeline_corpus.PRELUDE + (Path(__file__).parent / "cuda" / "specialised.cuh").read_text("utf-8")
KERNELS = {
    "persistent": r"""
extern "C" __global__ void k(const __grid_constant__ Map a, const __grid_constant__ Map b,
        float* y, int tiles) {
    __shared__ __align__(1024) u16 tile_a[2][64 * 64], tile_b[2][16 * 64];
    __shared__ __align__(128) float out[64 * 16];
    __shared__ u64 full[2], empty[2];
    int t = threadIdx.x;
    if (t == 0) {
        for (int s = 0; s < 2; s++) { init(&full[s], 1); init(&empty[s], 4); }
        init_fence();
    }
    __syncthreads();
    if (t >= 128) {
        if (t == 128) {
            int s = 0, phase = 0;
            for (int i = blockIdx.x; i < tiles; i += gridDim.x)
                for (int k = 0; k < 2; k++) {
                    wait(&empty[s], phase ^ 1);
                    expect(&full[s], 8192 + 2048);
                    load_box(tile_a[s], &a, 64 * k, 64 * i, &full[s]);
                    load_box(tile_b[s], &b, 64 * k, 0, &full[s]);
                    if (++s == 2) { s = 0; phase ^= 1; }
                }
        }
    } else {
        int s = 0, phase = 0;
        #pragma unroll 1
        for (int i = blockIdx.x; i < tiles; i += gridDim.x) {
            float d[8];
            for (int j = 0; j < 8; j++) d[j] = 0;
            #pragma unroll 1
            for (int k = 0; k < 2; k++) {
                wait(&full[s], phase);
                wg::keep(d);
                wg::arrive();
                products(d, tile_a[s], tile_b[s], 0);
                wg::commit();
                wg::wait<0>();
                wg::keep(d);
                if (t % 32 == 0) arrive(&empty[s]);
                if (++s == 2) { s = 0; phase ^= 1; }
            }
            if (t == 0) wait_read();
            named(1, 128);
            put(out, d, t);
            fence();
            named(1, 128);
            if (t == 0) {
                store(y + 1024 * i, out, 4096);
                commit();
            }
        }
        if (t == 0) wait_all();
    }
}""",
    "attention": r"""
__device__ u32 pack(float lo, float hi) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}
extern "C" __global__ void k(const __grid_constant__ Map q, const __grid_constant__ Map kk,
        const __grid_constant__ Map v, float* y, int n) {
    __shared__ __align__(1024) u16 tile_q[64 * 64], tile_k[2][16 * 64], tile_v[2][16 * 64];
    __shared__ u64 full_q, full_k[2], full_v[2], empty_k[2], empty_v[2];
    int t = threadIdx.x;
    if (t == 0) {
        init(&full_q, 1);
        for (int s = 0; s < 2; s++) {
            init(&full_k[s], 1); init(&full_v[s], 1); init(&empty_k[s], 128); init(&empty_v[s], 128);
        }
        init_fence();
    }
    __syncthreads();
    if (t == 128) {
        expect(&full_q, 8192);
        load_box(tile_q, &q, 0, 0, &full_q);
        for (int i = 0; i < n; i++) {
            int s = i % 2, phase = i / 2 % 2;
            wait(&empty_k[s], phase ^ 1);
            expect(&full_k[s], 2048);
            load_box(tile_k[s], &kk, 0, 16 * i, &full_k[s]);
            wait(&empty_v[s], phase ^ 1);
            expect(&full_v[s], 2048);
            load_box(tile_v[s], &v, 0, 16 * i, &full_v[s]);
        }
    } else if (t < 128) {
        float o[8];
        for (int i = 0; i < 8; i++) o[i] = 0;
        wait(&full_q, 0);
        #pragma unroll 1
        for (int i = 0; i < n; i++) {
            int s = i % 2, phase = i / 2 % 2;
            float p[8];
            for (int j = 0; j < 8; j++) p[j] = 0;
            wait(&full_k[s], phase);
            wg::keep(p);
            wg::arrive();
            products(p, tile_q, tile_k[s], 1);
            wg::commit();
            wg::wait<0>();
            wg::keep(p);
            arrive(&empty_k[s]);
            u32 f[4];
            for (int j = 0; j < 4; j++) f[j] = pack(p[2 * j], p[2 * j + 1]);
            wait(&full_v[s], phase);
            for (int j = 0; j < 4; j++) asm volatile("" : "+r"(f[j]) :: "memory");
            wg::keep(o);
            wg::arrive();
            wg::product_of_registers(o, f, wg::swizzled(tile_v[s]), 1);
            wg::commit();
            wg::wait<0>();
            wg::keep(o);
            arrive(&empty_v[s]);
        }
        wg::store(y, o, t);
    }
}""",
    "two producers": r"""
extern "C" __global__ void k(const __grid_constant__ Map a, const __grid_constant__ Map b,
        float* y, int n) {
    __shared__ __align__(1024) u16 tile_a[3][64 * 64], tile_b[3][16 * 64];
    __shared__ u64 full[3], empty[3];
    int t = threadIdx.x;
    if (t == 0) {
        for (int s = 0; s < 3; s++) { init(&full[s], 2); init(&empty[s], 1); }
        init_fence();
    }
    __syncthreads();
    if (t >= 128) {
        if (elected()) {
            int s = 0, phase = 1;
            for (int i = 0; i < n; i++) {
                wait(&empty[s], phase);
                if (t < 160) { expect(&full[s], 8192); load_box(tile_a[s], &a, 64 * i, 0, &full[s]); }
                else { expect(&full[s], 2048); load_box(tile_b[s], &b, 64 * i, 0, &full[s]); }
                if (++s == 3) { s = 0; phase ^= 1; }
            }
        }
    } else {
        float d[8];
        for (int i = 0; i < 8; i++) d[i] = 0;
        int s = 0, phase = 0, before = 0;
        #pragma unroll 1
        for (int i = 0; i < n; i++) {
            wait(&full[s], phase);
            wg::keep(d);
            wg::arrive();
            products(d, tile_a[s], tile_b[s], 0);
            wg::commit();
            wg::wait<1>();
            if (i > 0 && t == 0) arrive(&empty[before]);
            before = s;
            if (++s == 3) { s = 0; phase ^= 1; }
        }
        wg::wait<0>();
        wg::keep(d);
        wg::store(y, d, t);
    }
}""",
}
RANDOM = np.random.default_rng(3)


def small(*shape):
    """Return a matrix of small whole numbers as bfloat16."""
    return RANDOM.integers(-2, 3, shape).astype(bfloat16)


def exact(matrix):
    return matrix.astype(np.float32)


def tiles(matrix, rows, swizzle=128):
    """Return the tensor map for tiles of 64 columns."""
    return tensor_map(matrix, (rows, 64), swizzle=swizzle)


def zeros(rows):
    return np.zeros((rows, 16), np.float32)


TALL, B128, A, B = small(256, 128), small(16, 128), small(64, 256), small(16, 256)
Q, K, V = small(64, 64), RANDOM.integers(-1, 2, (64, 64)).astype(bfloat16), small(64, 64)
SCORES = exact((exact(Q) @ exact(K).T).astype(bfloat16))
ATTENTION = sum(SCORES[:, i : i + 16] @ exact(V[i : i + 16, :16]).T for i in range(0, 64, 16))
# name -> (configuration, function that returns new arguments, the argument written, its wanted contents)
LAUNCHES = {
    "persistent": ((2, 160), lambda: (tiles(TALL, 64), tiles(B128, 16), zeros(256), 4), 2,
                   exact(TALL) @ exact(B128).T),
    "attention": ((1, 160), lambda: (tiles(Q, 64), tiles(K, 16), tiles(V, 16), zeros(64), 4), 3, ATTENTION),
    "two producers": ((1, 192), lambda: (tiles(A, 64), tiles(B, 16), zeros(64), 4), 2, exact(A) @ exact(B).T),
}  # fmt: skip
COPY, FENCE, RACE, FREED = ["async-copy"], ["proxy-fence"], ["race-shared"], ["use-after-free"]
# name -> (kernel, kinds of the findings, (old text, new text) of each edit)
PAIRS = {
    "the output tile is overwritten while its store reads it": (
        "persistent", COPY,
        ("            if (t == 0) wait_read();\n",
         "")),
    "the wait for the store follows the barrier": (
        "persistent", COPY,
        ("            if (t == 0) wait_read();\n"
         "            named(1, 128);\n",
         "            named(1, 128);\n"
         "            if (t == 0) wait_read();\n")),
    "no proxy fence before the store of the output": (
        "persistent", FENCE,
        ("            fence();\n",
         "")),
    "the threads that do not send the store fence after the barrier": (
        "persistent", FENCE,
        ("            fence();\n"
         "            named(1, 128);\n",
         "            named(1, 128);\n"
         "            if (t > 0) fence();\n")),
    "no barrier before the store of the output": (
        "persistent", ["async-copy", "race-shared?", "proxy-fence?", "uninitialized-read?"],
        ("            fence();\n"
         "            named(1, 128);\n",
         "            fence();\n")),
    "the phase starts again with each tile": (
        "persistent", ["async-copy?", "deadlock?", "no-progress?"],
        ("        for (int i = blockIdx.x; i < tiles; i += gridDim.x) {\n"
         "            float d[8];",
         "        for (int i = blockIdx.x; i < tiles; i += gridDim.x) {\n"
         "            s = 0; phase = 0; float d[8];")),
    "the empty barrier counts threads, and warps arrive": (
        "persistent", ["deadlock", "async-copy?"],
        ("init(&empty[s], 4)",
         "init(&empty[s], 128)")),
    "a warp releases a stage before the wait for its product": (
        "persistent", COPY,
        ("                wg::wait<0>();\n"
         "                wg::keep(d);\n"
         "                if (t % 32 == 0) arrive(&empty[s]);\n",
         "                if (t % 32 == 0) arrive(&empty[s]);\n"
         "                wg::wait<0>();\n"
         "                wg::keep(d);\n")),
    "one warp of four releases the stages": (
        "persistent", ["deadlock", "async-copy?"],
        ("if (t % 32 == 0) arrive",
         "if (t == 0) arrive")),
    "no thread waits for the last stores": (
        "persistent", COPY,
        ("        if (t == 0) wait_all();\n",
         "")),
    "another thread than the sender waits for the last stores": (
        "persistent", COPY,
        ("        if (t == 0) wait_all();\n",
         "        if (t == 32) wait_all();\n")),
    "no wait for V": (
        "attention", COPY,
        ("            wait(&full_v[s], phase);\n",
         "")),
    "the second product waits for K again": (
        "attention", COPY,
        ("            wait(&full_v[s], phase);\n",
         "            wait(&full_k[s], phase);\n")),
    "no wait for Q": (
        "attention", COPY,
        ("        wait(&full_q, 0);\n",
         "")),
    "K is released before its product is complete": (
        "attention", COPY,
        ("            wg::wait<0>();\n"
         "            wg::keep(p);\n"
         "            arrive(&empty_k[s]);\n",
         "            arrive(&empty_k[s]);\n"
         "            wg::wait<0>();\n"
         "            wg::keep(p);\n")),
    "V is released with K": (
        "attention", COPY,
        ("            arrive(&empty_k[s]);\n",
         "            arrive(&empty_k[s]); arrive(&empty_v[s]);\n"),
        ("            wg::keep(o);\n"
         "            arrive(&empty_v[s]);\n",
         "            wg::keep(o);\n")),
    "scores are packed before the wait": (
        "attention", ["wgmma", "async-copy?"],
        ("            wg::wait<0>();\n"
         "            wg::keep(p);\n",
         "            wg::keep(p);\n")),
    "the second product is still under way when V is released": (
        "attention", COPY,
        ("            wg::wait<0>();\n"
         "            wg::keep(o);\n"
         "            arrive(&empty_v[s]);\n"
         "        }\n",
         "            wg::wait<1>();\n"
         "            wg::keep(o);\n"
         "            arrive(&empty_v[s]);\n"
         "        }\n"
         "        wg::wait<0>(); wg::keep(o);\n")),
    "the bytes of V are expected before its stage is free": (
        "attention", ["async-copy", "deadlock?"],
        ("            wait(&empty_v[s], phase ^ 1);\n"
         "            expect(&full_v[s], 2048);\n",
         "            expect(&full_v[s], 2048);\n"
         "            wait(&empty_v[s], phase ^ 1);\n")),
    "no wgmma.fence before the second product": (
        "attention", ["wgmma"],
        ("            wg::keep(o);\n"
         "            wg::arrive();\n"
         "            wg::product_of",
         "            wg::keep(o);\n"
         "            wg::product_of")),
    "the full barrier counts one of two producers": (
        "two producers", ["async-copy", "deadlock?", "uninitialized-read?"],
        ("init(&full[s], 2)",
         "init(&full[s], 1)")),
    "one of two producers expects bytes before the stage is free": (
        "two producers", [*COPY, "deadlock?"],
        ("                wait(&empty[s], phase);\n"
         "                if (t < 160) { expect(&full[s], 8192); load",
         "                if (t < 160) expect(&full[s], 8192);\n"
         "                wait(&empty[s], phase);\n"
         "                if (t < 160) { load")),
    "all lanes of the producers' warps produce": (
        "two producers", COPY,
        ("if (elected()) {",
         "{")),
    "one of two producers does not wait": (
        "two producers", COPY,
        ("                wait(&empty[s], phase);\n",
         "                if (t < 160) wait(&empty[s], phase);\n")),
}  # fmt: skip
CORPUS = Corpus(PRELUDE, KERNELS, LAUNCHES, PAIRS)
