"""Pairs of CUDA C++ kernels with wgmma: a correct kernel, and the same kernel with one bug.

KERNELS has the correct kernels. Each Pair edits one of them, and states the kinds of the findings. A kind in
`possible` may be reported as well: it is another consequence of the same bug.
"""

from typing import NamedTuple

import numpy as np
from ml_dtypes import bfloat16

from sim import tensor_map

HELPERS = r"""
typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned short u16;

__device__ u64 describe(const void *tile, int leading, int stride, u64 mode) {
    u64 start = __cvta_generic_to_shared(tile);
    return (start & 0x3FFFF) >> 4 | (u64)(leading >> 4) << 16 | (u64)(stride >> 4) << 32 | mode << 62;
}
__device__ u64 swizzled(const void *tile) { return describe(tile, 16, 1024, 1); }

__device__ void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ void arrive() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int groups> __device__ void wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(groups) : "memory");
}
__device__ void keep(float (&d)[8]) {
    for (int i = 0; i < 8; i++) asm volatile("" : "+f"(d[i]) :: "memory");
}
__device__ void product(float (&d)[8], u64 a, u64 b, int scale) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %10, 0;"
        " wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, p,"
        " 1, 1, 0, 0; }"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
        : "l"(a), "l"(b), "r"(scale) : "memory");
}
__device__ void product_of_registers(float (&d)[8], u32 (&a)[4], u64 b, int scale) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %13, 0;"
        " wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7},"
        " {%8, %9, %10, %11}, %12, p, 1, 1, 0; }"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(scale) : "memory");
}
// Copy rows of 64 elements, in chunks of 16 bytes, into a tile with 128-byte swizzle.
__device__ void load(u16 *tile, const u16 *from, int rows, int pitch, int thread, int threads) {
    for (int i = thread; i < rows * 8; i += threads) {
        int row = i / 8, chunk = i % 8;
        ((uint4 *)tile)[row * 8 + (chunk ^ row % 8)] = *(const uint4 *)(from + row * pitch + 8 * chunk);
    }
}
__device__ void store(float *to, const float (&d)[8], int thread) {
    int row = thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
    for (int i = 0; i < 8; i++) to[(row + i / 2 % 2 * 8) * 16 + i / 4 * 8 + column + i % 2] = d[i];
}
__device__ void meet(int barrier, int threads) {
    asm volatile("bar.sync %0, %1;" :: "r"(barrier), "r"(threads) : "memory");
}
__device__ void pass(int barrier, int threads) {
    asm volatile("bar.arrive %0, %1;" :: "r"(barrier), "r"(threads) : "memory");
}
"""

# D = A Bᵀ for A 64×64 and B 16×64
TILE = r"""
extern "C" __global__ void k(const u16 *a, const u16 *b, float *out) {
    __shared__ __align__(1024) u16 tile_a[64 * 64], tile_b[16 * 64];
    float d[8];
    for (int i = 0; i < 8; i++) d[i] = 0;
    load(tile_a, a, 64, 64, threadIdx.x, blockDim.x);
    load(tile_b, b, 16, 64, threadIdx.x, blockDim.x);
    proxy_fence();
    __syncthreads();
    keep(d);
    arrive();
    for (int k = 0; k < 4; k++) product(d, swizzled(tile_a + 16 * k), swizzled(tile_b + 16 * k), 1);
    commit();
    wait<0>();
    keep(d);
    store(out, d, threadIdx.x);
}
"""

# The same, without a dependence between the registers and the fence: NVRTC moves the zeros behind the fence
ZEROS = TILE.replace("    keep(d);\n", "").replace("    for (int i = 0; i < 8; i++) d[i] = 0;\n", "")
OVERWRITES = ZEROS.replace("16 * k), 1)", "16 * k), k > 0)")
ZEROS = ZEROS.replace("float d[8];", "float d[8] = {};")

# D = 1.5 A Bᵀ: NVRTC moves the multiplication behind the fence
SCALED = r"""
extern "C" __global__ void k(const u16 *a, const u16 *b, float *out) {
    __shared__ __align__(1024) u16 tile_a[64 * 64], tile_b[16 * 64];
    float d[8] = {};
    float half = 64.0f / blockDim.x;
    load(tile_a, a, 64, 64, threadIdx.x, blockDim.x);
    load(tile_b, b, 16, 64, threadIdx.x, blockDim.x);
    proxy_fence();
    __syncthreads();
    #pragma unroll 1
    for (int step = 0; step < 2; step++) {
        for (int i = 0; i < 8; i++) d[i] *= half;
        arrive();
        for (int k = 0; k < 4; k++) product(d, swizzled(tile_a + 16 * k), swizzled(tile_b + 16 * k), 1);
        commit();
        wait<0>();
    }
    store(out, d, threadIdx.x);
}
"""

# The same as TILE, with the fragments of A in registers
REGISTERS = r"""
extern "C" __global__ void k(const u16 *a, const u16 *b, float *out) {
    __shared__ __align__(1024) u16 tile_b[16 * 64];
    float d[8];
    u32 f[4];
    const u32 *pairs = (const u32 *)a;
    int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
    for (int i = 0; i < 8; i++) d[i] = 0;
    load(tile_b, b, 16, 64, threadIdx.x, blockDim.x);
    proxy_fence();
    __syncthreads();
    #pragma unroll 1
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < 4; i++) f[i] = pairs[(row + i % 2 * 8) * 32 + k * 8 + i / 2 * 4 + pair];
        for (int i = 0; i < 4; i++) asm volatile("" : "+r"(f[i]) :: "memory");
        keep(d);
        arrive();
        product_of_registers(d, f, swizzled(tile_b + 16 * k), 1);
        commit();
        wait<0>();
        keep(d);
    }
    store(out, d, threadIdx.x);
}
"""

# D = A Bᵀ for A 64×256 and B 16×256, in two stages of 64 columns: while one is multiplied, the other is
# loaded
STAGES = r"""
extern "C" __global__ void k(const u16 *a, const u16 *b, float *out) {
    __shared__ __align__(1024) u16 tile_a[2][64 * 64], tile_b[2][16 * 64];
    float d[8];
    for (int i = 0; i < 8; i++) d[i] = 0;
    load(tile_a[0], a, 64, 256, threadIdx.x, 128);
    load(tile_b[0], b, 16, 256, threadIdx.x, 128);
    #pragma unroll 1
    for (int step = 0; step < 4; step++) {
        int now = step % 2, next = 1 - now;
        proxy_fence();
        __syncthreads();
        keep(d);
        arrive();
        for (int k = 0; k < 4; k++)
            product(d, swizzled(tile_a[now] + 16 * k), swizzled(tile_b[now] + 16 * k), 1);
        commit();
        wait<1>();
        __syncthreads();
        if (step < 3) {
            load(tile_a[next], a + 64 * (step + 1), 64, 256, threadIdx.x, 128);
            load(tile_b[next], b + 64 * (step + 1), 16, 256, threadIdx.x, 128);
        }
    }
    wait<0>();
    keep(d);
    store(out, d, threadIdx.x);
}
"""

# D = A Bᵀ for A 128×192 and B 16×192 by three warp groups: one loads, and two multiply 64 rows each. Barriers
# 1 and 2 say that a stage is full, 3 and 4 that it is empty.
SPECIALISED = r"""
extern "C" __global__ void k(const u16 *a, const u16 *b, float *out) {
    __shared__ __align__(1024) u16 tile_a[2][2][64 * 64], tile_b[2][16 * 64];
    int group = threadIdx.x / 128, thread = threadIdx.x % 128;
    if (group == 2) {
        #pragma unroll 1
        for (int step = 0; step < 3; step++) {
            int stage = step % 2;
            if (step >= 2) meet(3 + stage, 384);
            for (int half = 0; half < 2; half++)
                load(tile_a[stage][half], a + 64 * 192 * half + 64 * step, 64, 192, thread, 128);
            load(tile_b[stage], b + 64 * step, 16, 192, thread, 128);
            proxy_fence();
            pass(1 + stage, 384);
        }
    } else {
        float d[8];
        for (int i = 0; i < 8; i++) d[i] = 0;
        #pragma unroll 1
        for (int step = 0; step < 3; step++) {
            int stage = step % 2;
            meet(1 + stage, 384);
            keep(d);
            arrive();
            for (int k = 0; k < 4; k++)
                product(d, swizzled(tile_a[stage][group] + 16 * k), swizzled(tile_b[stage] + 16 * k), 1);
            commit();
            wait<0>();
            keep(d);
            if (step < 1) pass(3 + stage, 384);
        }
        store(out + 1024 * group, d, thread);
    }
}
"""

# Two warp groups take turns: each multiplies while the other one works on its sums (ping-pong). The barrier
# of a group is 1 + group.
PING_PONG = r"""
extern "C" __global__ void k(const u16 *a, const u16 *b, float *out) {
    __shared__ __align__(1024) u16 tile_a[2][64 * 64], tile_b[16 * 64];
    int group = threadIdx.x / 128, thread = threadIdx.x % 128;
    float d[8], total[8];
    for (int i = 0; i < 8; i++) d[i] = total[i] = 0;
    load(tile_a[group], a + 64 * 64 * group, 64, 64, thread, 128);
    load(tile_b, b, 16, 64, threadIdx.x, 256);
    proxy_fence();
    __syncthreads();
    if (group == 1) pass(1, 256);
    #pragma unroll 1
    for (int step = 0; step < 2; step++) {
        meet(1 + group, 256);
        keep(d);
        arrive();
        for (int k = 0; k < 4; k++)
            product(d, swizzled(tile_a[group] + 16 * k), swizzled(tile_b + 16 * k), k > 0);
        commit();
        if (step == 0 || group == 0) pass(2 - group, 256);
        wait<0>();
        keep(d);
        for (int i = 0; i < 8; i++) total[i] += d[i];
    }
    store(out + 1024 * group, total, thread);
}
"""

# O = P V with P = (A Bᵀ) as bfloat16 (16 columns): the sums of one product are the fragments of the next
CHAIN = r"""
__device__ u32 packed(float low, float high) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
extern "C" __global__ void k(const u16 *a, const u16 *b, float *out) {
    __shared__ __align__(1024) u16 tile_a[64 * 64], tile_b[16 * 64];
    float s[8], o[8];
    u32 p[4];
    for (int i = 0; i < 8; i++) s[i] = o[i] = 0;
    load(tile_a, a, 64, 64, threadIdx.x, 128);
    load(tile_b, b, 16, 64, threadIdx.x, 128);
    proxy_fence();
    __syncthreads();
    #pragma unroll 1
    for (int step = 0; step < 2; step++) {
        keep(s);
        arrive();
        for (int k = 0; k < 4; k++) product(s, swizzled(tile_a + 16 * k), swizzled(tile_b + 16 * k), k > 0);
        commit();
        wait<0>();
        keep(s);
        for (int i = 0; i < 4; i++) p[i] = packed(s[2 * i], s[2 * i + 1]);
        for (int i = 0; i < 4; i++) asm volatile("" : "+r"(p[i]) :: "memory");
        keep(o);
        arrive();
        product_of_registers(o, p, swizzled(tile_b), 1);
        commit();
        wait<0>();
        keep(o);
    }
    store(out, o, threadIdx.x);
}
"""

# D = A Bᵀ for A 64×128 and B 16×128, in two steps of 64 columns. Tensor copies bring the tiles.
TENSOR_COPIES = r"""
struct alignas(64) Map { char bytes[128]; };
__device__ u32 shared(const void *p) { return __cvta_generic_to_shared(p); }
__device__ void bring(void *tile, const Map &map, int column, u64 *full) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2, %3}], [%4];"
        :: "r"(shared(tile)), "l"(&map), "r"(column), "r"(0), "r"(shared(full)) : "memory");
}
__device__ void expect(u64 *full, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;"
        :: "r"(shared(full)), "r"(bytes) : "memory");
}
__device__ void await(u64 *full, int parity) {
    asm volatile("{ .reg .pred done; again: mbarrier.try_wait.parity.shared.b64 done, [%0], %1;"
        " @!done bra again; }" :: "r"(shared(full)), "r"(parity) : "memory");
}
extern "C" __global__ void k(const __grid_constant__ Map a, const __grid_constant__ Map b, float *out) {
    __shared__ __align__(1024) u16 tile_a[64 * 64], tile_b[16 * 64];
    __shared__ u64 full;
    float d[8];
    for (int i = 0; i < 8; i++) d[i] = 0;
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(shared(&full)) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    #pragma unroll 1
    for (int step = 0; step < 2; step++) {
        if (threadIdx.x == 0) {
            expect(&full, 8192 + 2048);
            bring(tile_a, a, 64 * step, &full);
            bring(tile_b, b, 64 * step, &full);
        }
        await(&full, step);
        keep(d);
        arrive();
        for (int k = 0; k < 4; k++) product(d, swizzled(tile_a + 16 * k), swizzled(tile_b + 16 * k), 1);
        commit();
        wait<0>();
        keep(d);
        __syncthreads();
    }
    store(out, d, threadIdx.x);
}
"""

# D = A Bᵀ for A 128×256 and B 16×256: one thread brings tiles by tensor copies into two stages, and two warp
# groups multiply. A warp group releases the previous stage, because one of its products stays under way.
PIPELINE = (
    TENSOR_COPIES[: TENSOR_COPIES.index('extern "C"')]
    + r"""
__device__ void release(u64 *empty) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" :: "r"(shared(empty)) : "memory");
}
extern "C" __global__ void __launch_bounds__(384, 1)
k(const __grid_constant__ Map a, const __grid_constant__ Map b, float *out) {
    __shared__ __align__(1024) u16 tile_a[2][128 * 64], tile_b[2][16 * 64];
    __shared__ u64 full[2], empty[2];
    int group = threadIdx.x / 128, thread = threadIdx.x % 128;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(shared(&full[i])) : "memory");
            asm volatile("mbarrier.init.shared.b64 [%0], 2;" :: "r"(shared(&empty[i])) : "memory");
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (group == 2) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (thread == 0) {
            #pragma unroll 1
            for (int step = 0; step < 4; step++) {
                int stage = step % 2;
                if (step >= 2) await(&empty[stage], 0);
                expect(&full[stage], 16384 + 2048);
                bring(tile_a[stage], a, 64 * step, &full[stage]);
                bring(tile_b[stage], b, 64 * step, &full[stage]);
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        float d[8];
        for (int i = 0; i < 8; i++) d[i] = 0;
        #pragma unroll 1
        for (int step = 0; step < 4; step++) {
            int stage = step % 2;
            await(&full[stage], step / 2);
            keep(d);
            arrive();
            for (int k = 0; k < 4; k++)
                product(d, swizzled(tile_a[stage] + 4096 * group + 16 * k),
                        swizzled(tile_b[stage] + 16 * k), 1);
            commit();
            wait<1>();
            if (step > 0 && thread == 0) release(&empty[1 - stage]);
        }
        wait<0>();
        keep(d);
        store(out + 1024 * group, d, thread);
    }
}
"""
)

# D = A Bᵀ for matrices of 256×256, in blocks of 128×128 and stages of 64 columns: one warp group loads, and
# two multiply. REGISTERS and OUTPUTS are the operands of the product's 64 accumulators.
LARGE = r"""
__device__ void large(float (&d)[64], u64 a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {REGISTERS}, %64, %65, 1, 1, 1, 0, 0;"
        : OUTPUTS : "l"(a), "l"(b) : "memory");
}
extern "C" __global__ void k(const u16 *a, const u16 *b, float *out) {
    extern __shared__ __align__(1024) u16 tiles[];
    u16 *tile_a = tiles, *tile_b = tiles + 2 * 128 * 64;
    int group = threadIdx.x / 128, thread = threadIdx.x % 128;
    a += blockIdx.x * 128 * 256, b += blockIdx.y * 128 * 256;
    out += blockIdx.x * 128 * 256 + blockIdx.y * 128;
    if (group == 2) {
        #pragma unroll 1
        for (int step = 0; step < 4; step++) {
            int stage = step % 2;
            if (step >= 2) meet(3 + stage, 384);
            load(tile_a + stage * 128 * 64, a + 64 * step, 128, 256, thread, 128);
            load(tile_b + stage * 128 * 64, b + 64 * step, 128, 256, thread, 128);
            proxy_fence();
            pass(1 + stage, 384);
        }
        return;
    }
    float d[64];
    for (int i = 0; i < 64; i++) d[i] = 0;
    #pragma unroll 1
    for (int step = 0; step < 4; step++) {
        int stage = step % 2;
        u16 *own = tile_a + stage * 128 * 64 + group * 64 * 64, *other = tile_b + stage * 128 * 64;
        meet(1 + stage, 384);
        for (int i = 0; i < 64; i++) asm volatile("" : "+f"(d[i]) :: "memory");
        arrive();
        for (int k = 0; k < 4; k++) large(d, swizzled(own + 16 * k), swizzled(other + 16 * k));
        commit();
        wait<0>();
        for (int i = 0; i < 64; i++) asm volatile("" : "+f"(d[i]) :: "memory");
        if (step < 2) pass(3 + stage, 384);
    }
    int row = group * 64 + thread / 32 * 16 + thread % 32 / 4, column = thread % 4 * 2;
    for (int i = 0; i < 64; i++) out[(row + i / 2 % 2 * 8) * 256 + i / 4 * 8 + column + i % 2] = d[i];
}
"""
LARGE = LARGE.replace("REGISTERS", ", ".join(f"%{i}" for i in range(64)))
LARGE = LARGE.replace("OUTPUTS", ", ".join(f'"+f"(d[{i}])' for i in range(64)))

KERNELS = {"tile": TILE, "registers": REGISTERS, "stages": STAGES, "specialised": SPECIALISED}
KERNELS |= {"ping-pong": PING_PONG, "chain": CHAIN, "tensor copies": TENSOR_COPIES, "pipeline": PIPELINE}
KERNELS |= {"zeros": ZEROS, "first product overwrites": OVERWRITES, "scaled": SCALED}
THREADS = {"specialised": 384, "pipeline": 384, "ping-pong": 256}


class Pair(NamedTuple):
    """A bug: the edits that plant it in a kernel, and the kinds of its findings."""

    kernel: str
    edits: tuple[tuple[str, str], ...]
    kinds: frozenset[str]
    possible: frozenset[str] = frozenset()
    threads: int | None = None


def pair(kernel, *edits, kinds, possible="", threads=None):
    return Pair(kernel, edits, frozenset(kinds.split()), frozenset(possible.split()), threads)


TURN = "if (step == 0 || group == 0) pass(2 - group, 256);\n        wait<0>();\n"
LOADS = """        if (step < 3) {
            load(tile_a[next], a + 64 * (step + 1), 64, 256, threadIdx.x, 128);
            load(tile_b[next], b + 64 * (step + 1), 16, 256, threadIdx.x, 128);
        }
"""
ONE_FENCE = (
    "    #pragma unroll 1\n    for (int step",
    "    arrive();\n    #pragma unroll 1\n    for (int step",
)
PAIRS = {
    # --- the registers of a product ---
    "sums never set": pair("zeros", ("float d[8] = {};", "float d[8];"), kinds="uninitialized-read"),
    "sums never set, and the first product adds to them": pair(
        "first product overwrites", ("k > 0)", "k >= 0)"), kinds="uninitialized-read"
    ),
    "sums scaled after the fence": pair(
        "scaled",
        (
            "        for (int i = 0; i < 8; i++) d[i] *= half;\n        arrive();\n",
            "        arrive();\n        for (int i = 0; i < 8; i++) d[i] *= half;\n",
        ),
        kinds="wgmma",
    ),
    "sums scaled in a loop, with one fence before it": pair(
        "scaled", ONE_FENCE, ("        arrive();\n", ""), kinds="wgmma"
    ),
    "sums cleared in a loop, with one fence before it": pair(
        "scaled",
        ONE_FENCE,
        ("        arrive();\n", "        out[step * threadIdx.x] = d[0];\n"),
        ("d[i] *= half;", "d[i] = 0;"),
        kinds="wgmma",
        possible="race-global",
    ),
    "no wgmma.fence": pair("tile", ("    arrive();\n", ""), kinds="wgmma"),
    "sums read before the wait": pair("tile", ("    wait<0>();\n", ""), kinds="wgmma", possible="async-copy"),
    "the wait leaves a group pending": pair(
        "tile", ("wait<0>", "wait<1>"), kinds="wgmma", possible="async-copy"
    ),
    "no commit before the wait": pair("tile", ("    commit();\n", ""), kinds="wgmma", possible="async-copy"),
    "wait before the commit": pair(
        "tile",
        ("    commit();\n    wait<0>();", "    wait<0>();\n    commit();"),
        kinds="wgmma",
        possible="async-copy",
    ),
    "sums scaled between product and wait": pair(
        "tile",
        ("    wait<0>();\n", "    for (int i = 0; i < 8; i++) d[i] *= 2;\n    wait<0>();\n"),
        kinds="wgmma",
    ),
    "sums cleared after the fence": pair(
        "tile",
        ("    arrive();\n", "    arrive();\n    for (int i = 0; i < 8; i++) d[i] = threadIdx.x >> 10;\n"),
        kinds="wgmma",
    ),
    "sums stored, then used without a fence": pair(
        "stages",
        ("        arrive();\n", "        if (step == 0) arrive();\n        else out[threadIdx.x] = d[0];\n"),
        kinds="wgmma",
    ),
    "fragments of A loaded after the fence": pair(
        "registers",
        ("        keep(d);\n        arrive();\n", ""),
        (
            "        for (int i = 0; i < 4; i++) f[i] =",
            "        arrive();\n        for (int i = 0; i < 4; i++) f[i] =",
        ),
        kinds="wgmma",
    ),
    "fragments of A overwritten before the wait": pair(
        "registers",
        ("        wait<0>();\n        keep(d);\n    }", "    }\n    wait<0>();\n    keep(d);"),
        kinds="wgmma",
    ),
    "sums of a chain converted before the wait": pair(
        "chain", ("        wait<0>();\n        keep(s);\n", "        keep(s);\n"), kinds="wgmma"
    ),
    "fragments of a chain overwritten before the wait": pair(
        "chain",
        ("        wait<0>();\n        keep(o);\n    }", "    }\n    wait<0>();\n    keep(o);"),
        ("        wait<0>();\n        keep(s);\n", "        wait<1>();\n        keep(s);\n"),
        kinds="wgmma",
    ),
    "second product of a chain without a fence": pair(
        "chain", ("        keep(o);\n        arrive();\n", ""), kinds="wgmma"
    ),
    # --- the generic proxy and the async proxy ---
    "no proxy fence": pair("tile", ("    proxy_fence();\n", ""), kinds="proxy-fence"),
    "proxy fence before the stores": pair(
        "tile",
        ("    proxy_fence();\n", ""),
        ("    load(tile_a,", "    proxy_fence();\n    load(tile_a,"),
        kinds="proxy-fence",
    ),
    "proxy fence by one thread": pair(
        "tile", ("    proxy_fence();\n", "    if (threadIdx.x == 0) proxy_fence();\n"), kinds="proxy-fence"
    ),
    "no proxy fence in a loop": pair(
        "stages", ("        proxy_fence();\n", "        if (step == 0) proxy_fence();\n"), kinds="proxy-fence"
    ),
    "no proxy fence by the loading group": pair(
        "specialised", ("            proxy_fence();\n", ""), kinds="proxy-fence"
    ),
    "proxy fence after the arrival": pair(
        "specialised",
        (
            "            proxy_fence();\n            pass(1 + stage, 384);",
            "            pass(1 + stage, 384);\n            proxy_fence();",
        ),
        kinds="proxy-fence",
    ),
    # --- the tiles of a product ---
    "no barrier before the product": pair(
        "tile",
        ("    __syncthreads();\n", ""),
        kinds="async-copy",
        possible="proxy-fence race-shared uninitialized-read",
    ),
    "tile overwritten before the wait": pair(
        "tile", ("    wait<0>();\n", "    tile_a[threadIdx.x] = 0;\n    wait<0>();\n"), kinds="async-copy"
    ),
    "tile reused for the result before the wait": pair(
        "tile",
        (
            "    wait<0>();\n    keep(d);\n",
            "    ((float *)tile_b)[threadIdx.x] = 1;\n    wait<0>();\n    keep(d);\n",
        ),
        kinds="async-copy",
    ),
    "stage loaded before the wait": pair(
        "stages",
        ("        wait<1>();\n        __syncthreads();\n", ""),
        kinds="async-copy",
        possible="race-shared",
    ),
    "the wait comes after the loads": pair(
        "stages",
        (
            "        wait<1>();\n        __syncthreads();\n" + LOADS,
            "        __syncthreads();\n" + LOADS + "        wait<1>();\n",
        ),
        kinds="async-copy",
    ),
    "the wait leaves two groups pending": pair("stages", ("wait<1>", "wait<2>"), kinds="async-copy"),
    "next stage is the current one": pair(
        "stages",
        ("next = 1 - now", "next = now"),
        kinds="async-copy",
        possible="uninitialized-read race-shared",
    ),
    "stage released before the wait": pair(
        "specialised",
        (
            "            wait<0>();\n            keep(d);\n            if (step < 1) pass(3 + stage, 384);",
            "            if (step < 1) pass(3 + stage, 384);\n            wait<0>();\n            keep(d);",
        ),
        kinds="async-copy",
    ),
    "the loading group does not wait for an empty stage": pair(
        "specialised",
        (
            "            if (step >= 2) meet(3 + stage, 384);\n",
            "            if (step >= 2) pass(3 + stage, 384);\n",
        ),
        kinds="warp-divergence",
        possible="async-copy race-shared",
    ),
    "stage released by one of two consumers": pair(
        "specialised",
        ("if (step >= 2) meet(3 + stage, 384)", "if (step >= 2) meet(3 + stage, 256)"),
        ("if (step < 1) pass(3 + stage, 384)", "if (step < 1 && group == 0) pass(3 + stage, 256)"),
        kinds="async-copy",
        possible="race-shared",
    ),
    "both groups wait at one barrier": pair(
        "ping-pong", ("meet(1 + group, 256);", "meet(1, 256);"), kinds="warp-divergence"
    ),
    "ping-pong sums read before the wait": pair(
        "ping-pong", (TURN, TURN.replace("        wait<0>();\n", "")), kinds="wgmma", possible="async-copy"
    ),
    "ping-pong tile overwritten by the other group": pair(
        "ping-pong",
        (
            "        meet(1 + group, 256);\n",
            "        meet(1 + group, 256);\n"
            "        if (group == 1 && step == 0) { tile_a[0][thread] = a[thread]; proxy_fence(); }\n",
        ),
        kinds="async-copy",
    ),
    # --- the warp group ---
    "one warp takes no part": pair(
        "tile",
        (
            "    for (int k = 0; k < 4; k++) product",
            "    if (threadIdx.x < 96)\n    for (int k = 0; k < 4; k++) product",
        ),
        kinds="warp-divergence",
        possible="wgmma",
    ),
    "96 threads": pair("tile", kinds="warp-divergence", threads=96),
    "a descriptor for each warp": pair(
        "tile",
        ("swizzled(tile_a + 16 * k)", "swizzled(tile_a + 16 * k + threadIdx.x / 32 * 1024)"),
        kinds="wgmma",
        possible="out-of-bounds uninitialized-read",
    ),
    "scale-d differs within the group": pair(
        "tile",
        ("swizzled(tile_b + 16 * k), 1)", "swizzled(tile_b + 16 * k), threadIdx.x < 64)"),
        kinds="wgmma",
    ),
    # --- descriptors ---
    "copied with 128-byte swizzle, read with 64": pair(
        "tensor copies", ("describe(tile, 16, 1024, 1)", "describe(tile, 16, 512, 2)"), kinds="wgmma"
    ),
    "copied with 128-byte swizzle, read without": pair(
        "tensor copies", ("describe(tile, 16, 1024, 1)", "describe(tile, 128, 256, 0)"), kinds="wgmma"
    ),
    "product before the copies are complete": pair(
        "tensor copies",
        ("        await(&full, step);\n", ""),
        kinds="async-copy",
        possible="uninitialized-read",
    ),
    "wait for the wrong phase": pair(
        "tensor copies",
        ("await(&full, step)", "await(&full, 1 - step)"),
        kinds="async-copy",
        possible="uninitialized-read deadlock no-progress",
    ),
    "tile copied again before the wait": pair(
        "tensor copies",
        (
            "        wait<0>();\n        keep(d);\n        __syncthreads();\n    }",
            "        __syncthreads();\n    }\n    wait<0>();\n    keep(d);",
        ),
        kinds="async-copy",
    ),
    "current stage released instead of the previous one": pair(
        "pipeline",
        (
            "if (step > 0 && thread == 0) release(&empty[1 - stage]);",
            "if (thread == 0) release(&empty[stage]);",
        ),
        kinds="async-copy",
    ),
    "stage released before the wait for its product": pair(
        "pipeline",
        (
            "            wait<1>();\n            if (step > 0 && thread == 0) release(&empty[1 - stage]);",
            "            if (step > 0 && thread == 0) release(&empty[1 - stage]);\n            wait<1>();",
        ),
        kinds="async-copy",
    ),
    "the empty barrier counts one of two consumers": pair(
        "pipeline",
        ("mbarrier.init.shared.b64 [%0], 2;", "mbarrier.init.shared.b64 [%0], 1;"),
        ("if (step > 0 && thread == 0) release", "if (step > 0 && threadIdx.x == 0) release"),
        kinds="async-copy",
    ),
    "no wait for the empty stage": pair(
        "pipeline",
        ("                if (step >= 2) await(&empty[stage], 0);\n", ""),
        kinds="async-copy",
        possible="proxy-fence",
    ),
    "parity of the full barrier never changes": pair(
        "pipeline",
        ("await(&full[stage], step / 2)", "await(&full[stage], 0)"),
        kinds="async-copy",
        possible="deadlock uninitialized-read",
    ),
    "sums of the last product read before the wait": pair(
        "pipeline",
        (
            "        wait<0>();\n        keep(d);\n        store(out + 1024 * group, d, thread);\n    }\n}\n",
            "        keep(d);\n        store(out + 1024 * group, d, thread);\n    }\n}\n",
        ),
        kinds="wgmma",
        possible="async-copy",
    ),
    "stride of the wrong swizzle": pair(
        "tile", ("describe(tile, 16, 1024, 1)", "describe(tile, 16, 2048, 1)"), kinds="out-of-bounds"
    ),
    "tile starts within the pattern": pair(
        "tile",
        ("tile_b[16 * 64];", "tile_b[20 * 64];"),
        ("load(tile_b, b,", "load(tile_b + 256, b,"),
        ("swizzled(tile_b + 16 * k)", "swizzled(tile_b + 256 + 16 * k)"),
        kinds="wgmma",
    ),
    "address not shifted": pair(
        "tile", ("(start & 0x3FFFF) >> 4", "(start & 0x3FFF)"), kinds="out-of-bounds", possible="wgmma"
    ),
}


def text_of(planted):
    """Return the CUDA C++ text of a Pair with its bug."""
    text = HELPERS + KERNELS[planted.kernel]
    for old, new in planted.edits:
        assert text.count(old) == 1, f"{text.count(old)} times in {planted.kernel}: {old}"
        text = text.replace(old, new)
    return text


def operands(kernel):
    """Return (A, B, the shape of the output) for a kernel, with small whole numbers as bfloat16."""
    random = np.random.default_rng(0)
    rows, depth = {
        "tensor copies": (64, 128),
        "pipeline": (128, 256),
        "stages": (64, 256),
        "specialised": (128, 192),
        "ping-pong": (128, 64),
    }.get(kernel, (64, 64))
    a, b = (random.integers(-2, 3, shape).astype(bfloat16) for shape in ((rows, depth), (16, depth)))
    return a, b, (rows, 16)


def expected(kernel, a, b):
    """Return the output of a correct kernel."""
    a, b = a.astype(float), b.astype(float)
    if kernel == "scaled":
        return 1.5 * a @ b.T
    if kernel == "ping-pong":
        return 2 * a @ b.T
    if kernel == "chain":
        return 2 * (a @ b.T) @ b[:, :16].T
    return a @ b.T


def arguments(kernel, a, b):
    """Return the first two arguments of a kernel: the matrices, or tensor maps of them."""
    if kernel in ("tensor copies", "pipeline"):
        return tuple(tensor_map(m, (len(m), 64), swizzle=128) for m in (a, b))
    return a.view(np.uint16), b.view(np.uint16)
