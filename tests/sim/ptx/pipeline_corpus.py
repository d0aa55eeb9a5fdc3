"""Kernels in CUDA C++ that combine asynchronous copies, transaction barriers and products of warp groups, and
edits that plant a bug in them.

Each kernel of KERNELS is right. A question mark follows a kind that depends on the progress of threads."""

import numpy as np

from ptx.edited_kernels import Corpus
from ptx.hopper_corpus import FACTORS, PRELUDE, PRODUCT

# cp.async of rows of 64 elements, in chunks of 16 bytes, into a tile with 128-byte swizzle
PRELUDE += r"""
typedef unsigned short u16;
__device__ void copy(u16 *to, const u16 *from, int rows, int pitch, int thread, int threads) {
    for (int i = thread; i < rows * 8; i += threads) {
        int row = i / 8, chunk = i % 8;
        u32 place = at(to + 64 * row + 8 * (chunk ^ row % 8));
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
            :: "r"(place), "l"(from + row * pitch + 8 * chunk) : "memory");
    }
}
__device__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int groups> __device__ void copies_wait() {
    asm volatile("cp.async.wait_group %0;" :: "n"(groups) : "memory");
}
__device__ void copies_arrive(u64 *b) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(at(b)) : "memory");
}
__device__ void multiply(float (&d)[8], const u16 *a, const u16 *b) {
    wg::keep(d);
    wg::arrive();
    for (int k = 0; k < 64; k += 16) wg::product(d, wg::swizzled(a + k), wg::swizzled(b + k), 1);
    wg::commit();
    wg::wait<0>();
    wg::keep(d);
}
"""
KERNELS = {
    # A Bᵀ for matrices with 256 columns, whose tiles cp.async brings
    "copied product": r"""
extern "C" __global__ void k(const u16 *a, const u16 *b, float *y) {
    __shared__ __align__(1024) u16 tile_a[64 * 64], tile_b[16 * 64];
    float d[8] = {};
    #pragma unroll 1
    for (int i = 0; i < 4; i++) {
        copy(tile_a, a + 64 * i, 64, 256, threadIdx.x, 128);
        copy(tile_b, b + 64 * i, 16, 256, threadIdx.x, 128);
        copies_commit();
        copies_wait<0>();
        fence();
        __syncthreads();
        multiply(d, tile_a, tile_b);
        __syncthreads();
    }
    wg::store(y, d, threadIdx.x);
}""",
    # the same with two stages; the copies of the next tile are under way during a product
    "copied stages": r"""
extern "C" __global__ void k(const u16 *a, const u16 *b, float *y) {
    __shared__ __align__(1024) u16 tile_a[2][64 * 64], tile_b[2][16 * 64];
    float d[8] = {};
    copy(tile_a[0], a, 64, 256, threadIdx.x, 128);
    copy(tile_b[0], b, 16, 256, threadIdx.x, 128);
    copies_commit();
    #pragma unroll 1
    for (int i = 0; i < 4; i++) {
        int s = i % 2;
        if (i < 3) {
            copy(tile_a[1 - s], a + 64 * (i + 1), 64, 256, threadIdx.x, 128);
            copy(tile_b[1 - s], b + 64 * (i + 1), 16, 256, threadIdx.x, 128);
        }
        copies_commit();
        copies_wait<1>();
        fence();
        __syncthreads();
        multiply(d, tile_a[s], tile_b[s]);
        __syncthreads();
    }
    wg::store(y, d, threadIdx.x);
}""",
    # a warp copies by cp.async, whose end an mbarrier counts, and a warp group fences and multiplies
    "tracked product": r"""
extern "C" __global__ void k(const u16 *a, const u16 *b, float *y) {
    __shared__ __align__(1024) u16 tile_a[64 * 64], tile_b[16 * 64];
    __shared__ u64 full, empty;
    int t = threadIdx.x;
    if (t == 0) { init(&full, 32); init(&empty, 128); }
    __syncthreads();
    if (t >= 128) {
        for (int i = 0; i < 4; i++) {
            wait(&empty, i % 2 ^ 1);
            copy(tile_a, a + 64 * i, 64, 256, t - 128, 32);
            copy(tile_b, b + 64 * i, 16, 256, t - 128, 32);
            copies_arrive(&full);
        }
        copies_wait<0>();
    } else {
        float d[8] = {};
        #pragma unroll 1
        for (int i = 0; i < 4; i++) {
            wait(&full, i % 2);
            fence();
            multiply(d, tile_a, tile_b);
            arrive(&empty);
        }
        wg::store(y, d, t);
    }
}""",
    # copies by cp.async, and back by a bulk copy
    "copied store": r"""
extern "C" __global__ void k(const u16 *x, u16 *y) {
    __shared__ __align__(1024) u16 tile[8 * 64];
    copy(tile, x, 8, 64, threadIdx.x, 64);
    copies_commit();
    copies_wait<0>();
    fence();
    __syncthreads();
    if (threadIdx.x == 0) {
        store(y, tile, 1024);
        commit();
        wait_read();
    }
}""",
}
BITS = [factor.view(np.uint16) for factor in FACTORS]
CHUNKS = np.arange(512, dtype=np.uint16).reshape(8, 8, 8)
SWIZZLED = np.stack([CHUNKS[row, np.arange(8) ^ row] for row in range(8)]).ravel()


def product_arguments():
    return (*BITS, np.zeros((64, 16), np.float32))


# name -> (configuration, function that returns new arguments, the argument written, its wanted contents)
LAUNCHES = {
    "copied product": ((1, 128), product_arguments, 2, PRODUCT),
    "copied stages": ((1, 128), product_arguments, 2, PRODUCT),
    "tracked product": ((1, 160), product_arguments, 2, PRODUCT),
    "copied store": ((1, 64), lambda: (CHUNKS.ravel(), np.zeros(512, np.uint16)), 1, SWIZZLED),
}
FENCE, COPY = ["proxy-fence"], ["async-copy"]
# name -> (kernel, kinds of the findings, (old text, new text) of each edit)
PAIRS = {
    # --- proxy fences and cp.async
    "the proxy fence precedes the wait": (
        "copied product", FENCE,
        ("copies_wait<0>();\n        fence();", "fence();\n        copies_wait<0>();")),
    "no proxy fence after the wait": (
        "copied product", FENCE,
        ("copies_wait<0>();\n        fence();", "copies_wait<0>();")),
    "the proxy fence precedes the wait for a stage": (
        "copied stages", FENCE,
        ("copies_wait<1>();\n        fence();", "fence();\n        copies_wait<1>();")),
    "the sender of tracked copies fences, and their readers do not": (
        "tracked product", FENCE, ("            fence();\n", ""),
        ("copies_arrive(&full);\n", "fence();\n            copies_arrive(&full);\n")),
    "the proxy fence precedes the wait before a store": (
        "copied store", FENCE, ("copies_wait<0>();\n    fence();", "fence();\n    copies_wait<0>();")),
}  # fmt: skip
CORPUS = Corpus(PRELUDE, KERNELS, LAUNCHES, PAIRS)
