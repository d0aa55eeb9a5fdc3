// Tiles copied asynchronously, whose arrival a cuda::barrier counts: the bug arrives, and does not wait.
#include <cuda/barrier>

using Barrier = cuda::barrier<cuda::thread_scope_block>;

extern "C" __global__ void bug(const int4 *x, int4 *y) {
    __shared__ int4 tile[64];
    __shared__ Barrier barrier;
    if (threadIdx.x == 0) init(&barrier, blockDim.x);
    __syncthreads();
    cuda::memcpy_async(&tile[threadIdx.x], &x[threadIdx.x], cuda::aligned_size_t<16>(16), barrier);  // FOUND async-copy
    (void)barrier.arrive();
    __syncthreads();
    int4 value = tile[63 - threadIdx.x];  // FOUND async-copy
    y[threadIdx.x] = make_int4(value.w, value.z, value.y, value.x);
}

extern "C" __global__ void mended(const int4 *x, int4 *y) {
    __shared__ int4 tile[64];
    __shared__ Barrier barrier;
    if (threadIdx.x == 0) init(&barrier, blockDim.x);
    __syncthreads();
    for (int part = 0; part < 2; part++) {
        int i = 64 * part + threadIdx.x;
        cuda::memcpy_async(&tile[threadIdx.x], &x[i], cuda::aligned_size_t<16>(16), barrier);
        barrier.arrive_and_wait();
        int4 value = tile[63 - threadIdx.x];
        y[i] = make_int4(value.w, value.z, value.y, value.x);
        __syncthreads();
    }
}
