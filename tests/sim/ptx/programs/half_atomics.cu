// Atomics on 16-bit elements. Below compute capability 9.0, CUDA's headers expand atomicAdd of a bfloat16 to a
// loop of compare-and-swaps.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

extern "C" __global__ void add(__nv_bfloat16* one, __nv_bfloat162* pair, __half* half, __half2* halves) {
    atomicAdd(one, __float2bfloat16(1.0f));
    atomicAdd(pair, __nv_bfloat162(__float2bfloat16(1.0f), __float2bfloat16(2.0f)));
    atomicAdd(half, __float2half(1.0f));
    atomicAdd(halves, __half2(__float2half(1.0f), __float2half(2.0f)));
}

extern "C" __global__ void add_and_store(__nv_bfloat16* one, int at) {
    atomicAdd(one, __float2bfloat16(1.0f));
    if (threadIdx.x == at) *one = __float2bfloat16(3.0f);
}

// A loop of its own: the first value is read plainly.
extern "C" __global__ void swap(unsigned short* count) {
    unsigned short seen = *count, expected;
    do {
        expected = seen;
        seen = atomicCAS(count, expected, (unsigned short)(expected + 1));
    } while (seen != expected);
}

extern "C" __global__ void swap_from_zero(unsigned short* count) {
    unsigned short seen = 0, expected;
    do {
        expected = seen;
        seen = atomicCAS(count, expected, (unsigned short)(expected + 1));
    } while (seen != expected);
}
