"""Kernels that convert tiles between a copy and a product, and rings and rows of bulk copies.

The edits of PAIRS plant a bug. A question mark follows a kind that depends on the progress of threads."""

import numpy as np

from ptx.edited_kernels import Corpus
from ptx.specialised_corpus import PRELUDE, A, B, exact, tiles, zeros

KERNELS = {
    "dequantise": r"""
extern "C" __global__ void k(const __grid_constant__ Map a, const __grid_constant__ Map b,
        float* y, int n) {
    __shared__ __align__(1024) u16 raw[2][64 * 64], tile_a[64 * 64], tile_b[2][16 * 64];
    __shared__ u64 full[2], empty[2];
    int t = threadIdx.x;
    if (t == 0) {
        for (int s = 0; s < 2; s++) { init(&full[s], 1); init(&empty[s], 128); }
        init_fence();
    }
    __syncthreads();
    if (t == 128) {
        for (int i = 0; i < n; i++) {
            int s = i % 2, phase = i / 2 % 2;
            wait(&empty[s], phase ^ 1);
            expect(&full[s], 8192 + 2048);
            load_box(raw[s], &a, 64 * i, 0, &full[s]);
            load_box(tile_b[s], &b, 64 * i, 0, &full[s]);
        }
    } else if (t < 128) {
        float d[8];
        for (int i = 0; i < 8; i++) d[i] = 0;
        #pragma unroll 1
        for (int i = 0; i < n; i++) {
            int s = i % 2, phase = i / 2 % 2;
            wait(&full[s], phase);
            for (int j = t; j < 512; j += 128) {
                int r = j / 8, c = j % 8;
                ((uint4*)tile_a)[8 * r + (c ^ r % 8)] = ((uint4*)raw[s])[j];
            }
            fence();
            named(1, 128);
            wg::keep(d);
            wg::arrive();
            products(d, tile_a, tile_b[s], 0);
            wg::commit();
            wg::wait<0>();
            wg::keep(d);
            arrive(&empty[s]);
            named(1, 128);
        }
        wg::store(y, d, t);
    }
}""",
    "in place": r"""
extern "C" __global__ void k(const __grid_constant__ Map a, const __grid_constant__ Map b,
        float* y, int n) {
    __shared__ __align__(1024) u16 tile_a[2][64 * 64], tile_b[2][16 * 64];
    __shared__ u64 full[2], empty[2];
    int t = threadIdx.x;
    if (t == 0) {
        for (int s = 0; s < 2; s++) { init(&full[s], 1); init(&empty[s], 128); }
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
        #pragma unroll 1
        for (int i = 0; i < n; i++) {
            int s = i % 2, phase = i / 2 % 2;
            wait(&full[s], phase);
            for (int j = t; j < 4096; j += 128) tile_a[s][j] ^= 0x8000;
            fence();
            named(1, 128);
            wg::keep(d);
            wg::arrive();
            products(d, tile_a[s], tile_b[s], 0);
            wg::commit();
            wg::wait<0>();
            wg::keep(d);
            arrive(&empty[s]);
        }
        for (int i = 0; i < 8; i++) d[i] = -d[i];
        wg::store(y, d, t);
    }
}""",
    "store ring": r"""
extern "C" __global__ void k(const int* x, int* y, int n) {
    __shared__ __align__(128) int tile[2][128];
    int t = threadIdx.x;
    for (int i = 0; i < n; i++) {
        int s = i % 2;
        if (t == 0) wait_read_n<1>();
        __syncthreads();
        tile[s][t] = x[128 * i + t] + 1;
        fence();
        __syncthreads();
        if (t == 0) { store(y + 128 * i, tile[s], 512); commit(); }
    }
    if (t == 0) wait_read();
}""",
    "gather": r"""
extern "C" __global__ void k(const int* x, int* y, int n) {
    __shared__ __align__(128) int tile[32][16];
    __shared__ u64 full;
    int t = threadIdx.x;
    if (t == 0) { init(&full, 1); init_fence(); }
    __syncwarp();
    for (int i = 0; i < n; i++) {
        if (t == 0) expect(&full, 2048);
        __syncwarp();
        load(tile[t], x + 16 * (32 * i + 31 - t), 64, &full);
        wait(&full, i % 2);
        int sum = 0;
        for (int j = 0; j < 16; j++) sum += tile[(t + j) % 32][j];
        y[32 * i + t] = sum;
        __syncwarp();
    }
}""",
}
ROWS = np.arange(1536, dtype=np.int32).reshape(3, 32, 16)
LANE, COLUMN = np.arange(32)[:, None], np.arange(16)
GATHERED = np.concatenate([rows[31 - (LANE + COLUMN) % 32, COLUMN].sum(1) for rows in ROWS])
NUMBERS = np.arange(640, dtype=np.int32)
# name -> (configuration, function that returns new arguments, the argument written, its wanted contents)
LAUNCHES = {
    "dequantise": ((1, 160), lambda: (tiles(A, 64, 0), tiles(B, 16), zeros(64), 4), 2, exact(A) @ exact(B).T),
    "in place": ((1, 160), lambda: (tiles(A, 64), tiles(B, 16), zeros(64), 4), 2, exact(A) @ exact(B).T),
    "store ring": ((1, 128), lambda: (NUMBERS.copy(), 0 * NUMBERS, 5), 1, NUMBERS + 1),
    "gather": ((1, 32), lambda: (ROWS.ravel(), np.zeros(96, np.int32), 3), 1, GATHERED),
}  # fmt: skip
COPY, FENCE, RACE, FREED = ["async-copy"], ["proxy-fence"], ["race-shared"], ["use-after-free"]
# name -> (kernel, kinds of the findings, (old text, new text) of each edit)
PAIRS = {
    "no proxy fence after the conversion": (
        "dequantise", FENCE,
        ("            fence();\n",
         "")),
    "the proxy fence precedes the conversion": (
        "dequantise", FENCE,
        ("            fence();\n",
         ""),
        ("            for (int j = t; j < 512",
         "            fence();\n"
         "            for (int j = t; j < 512")),
    "no barrier after the conversion": (
        "dequantise", ["async-copy", "race-shared?", "proxy-fence?", "uninitialized-read?"],
        ("            fence();\n"
         "            named(1, 128);\n",
         "            fence();\n")),
    "the stage is released after the conversion, and its other tile is still read": (
        "dequantise", COPY,
        ("            fence();\n"
         "            named(1, 128);\n",
         "            arrive(&empty[s]);\n"
         "            fence();\n"
         "            named(1, 128);\n"),
        ("            wg::keep(d);\n"
         "            arrive(&empty[s]);\n",
         "            wg::keep(d);\n")),
    "the product is still under way when its tile is converted again": (
        "dequantise", ["async-copy", "wgmma"],
        ("wg::wait<0>()",
         "wg::wait<1>()")),
    "no proxy fence after a conversion in place": (
        "in place", FENCE,
        ("            fence();\n",
         "")),
    "no barrier after a conversion in place": (
        "in place", ["async-copy", "race-shared?", "proxy-fence?"],
        ("            named(1, 128);\n",
         "")),
    "half of the threads execute the proxy fence": (
        "in place", FENCE,
        ("            fence();\n",
         "            if (t < 64) fence();\n")),
    "the wait for stores leaves both buffers pending": (
        "store ring", COPY,
        ("wait_read_n<1>",
         "wait_read_n<2>")),
    "another thread than the sender waits for the stores": (
        "store ring", COPY,
        ("if (t == 0) wait_read_n<1>();",
         "if (t == 1) wait_read_n<1>();")),
    "no barrier after the wait for stores": (
        "store ring", COPY,
        ("        if (t == 0) wait_read_n<1>();\n"
         "        __syncthreads();\n",
         "        if (t == 0) wait_read_n<1>();\n")),
    "no proxy fence before the stores of a ring": (
        "store ring", FENCE,
        ("        fence();\n",
         "")),
    "the stores of a ring are committed at the end": (
        "store ring", COPY,
        (" commit(); }",
         " }"),
        ("    if (t == 0) wait_read();\n",
         "    if (t == 0) { commit(); wait_read(); }\n")),
    "only the sender executes the proxy fence, before the barrier": (
        "store ring", FENCE,
        ("        fence();\n",
         "        if (t == 0) fence();\n")),
    "the bytes of one row are not expected": (
        "gather", COPY,
        ("expect(&full, 2048)",
         "expect(&full, 1984)")),
    "each lane expects its row, and the barrier counts one arrival": (
        "gather", ["misuse?", "async-copy?", "invalid-operand?", "deadlock?"],
        ("if (t == 0) expect(&full, 2048);",
         "expect(&full, 64);")),
    "the parity of a barrier for rows never changes": (
        "gather", ["async-copy", "deadlock?"],
        ("wait(&full, i % 2)",
         "wait(&full, 0)")),
}  # fmt: skip
CORPUS = Corpus(PRELUDE, KERNELS, LAUNCHES, PAIRS)
