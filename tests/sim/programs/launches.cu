// CUDA C++ kernels for bench_launches.py.
#include <cuda_pipeline.h>
#include <mma.h>

// --- correct kernels ---------------------------------------------------------------------------------------

// The accelerations of bodies by gravity. A block loads 128 bodies at a time.
extern "C" __global__ void bodies(const float4 *p, float4 *a, int n) {
    __shared__ float4 tile[128];
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    float4 me = p[i];
    float x = 0, y = 0, z = 0;
    for (int start = 0; start < n; start += 128) {
        tile[t] = p[start + t];
        __syncthreads();
        for (int j = 0; j < 128; ++j) {
            float dx = tile[j].x - me.x, dy = tile[j].y - me.y, dz = tile[j].z - me.z;
            float squared = dx * dx + dy * dy + dz * dz + 1e-3f;
            float scale = tile[j].w / (squared * sqrtf(squared));
            x += dx * scale;
            y += dy * scale;
            z += dz * scale;
        }
        __syncthreads();
    }
    a[i] = make_float4(x, y, z, 0);
}

// The sum of x. Each block stores its own sum, and the last block adds the sums of all blocks.
extern "C" __global__ void last_block_sum(const float *x, float *parts, unsigned *ticket, float *sum, int n) {
    __shared__ float shared[256];
    __shared__ bool is_last;
    int t = threadIdx.x;
    float mine = 0;
    for (int i = blockIdx.x * 256 + t; i < n; i += gridDim.x * 256) mine += x[i];
    shared[t] = mine;
    __syncthreads();
    for (int step = 128; step > 0; step /= 2) {
        if (t < step) shared[t] += shared[t + step];
        __syncthreads();
    }
    if (t == 0) {
        parts[blockIdx.x] = shared[0];
        __threadfence();
        is_last = atomicAdd(ticket, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (is_last && t == 0) {
        __threadfence();
        float total = 0;
        for (unsigned i = 0; i < gridDim.x; ++i) total += ((volatile float *)parts)[i];
        *sum = total;
    }
}

// A prefix sum of x, with 256 elements per block. Each block waits for the sum of the blocks before it.
extern "C" __global__ void chained_scan(const int *x, int *out, volatile int *sums, volatile int *flags, int *ticket) {
    __shared__ int shared[256];
    __shared__ int block, before;
    int t = threadIdx.x;
    if (t == 0) block = atomicAdd(ticket, 1);
    __syncthreads();
    int i = block * 256 + t;
    shared[t] = x[i];
    __syncthreads();
    for (int step = 1; step < 256; step *= 2) {
        int left = t >= step ? shared[t - step] : 0;
        __syncthreads();
        shared[t] += left;
        __syncthreads();
    }
    if (t == 0) {
        before = 0;
        if (block > 0) {
            while (flags[block - 1] == 0) {
            }
            __threadfence();
            before = sums[block - 1];
        }
        sums[block] = before + shared[255];
        __threadfence();
        flags[block] = 1;
    }
    __syncthreads();
    out[i] = before + shared[t];
}

// An unrolled loop of 32 products of 16 × 16 matrices of half-precision values.
extern "C" __global__ void unrolled_mma(const half *a, const half *b, float *c) {
    using namespace nvcuda::wmma;
    fragment<accumulator, 16, 16, 16, float> sum;
    fill_fragment(sum, 0.0f);
#pragma unroll
    for (int k = 0; k < 32; ++k) {
        fragment<matrix_a, 16, 16, 16, half, row_major> left;
        fragment<matrix_b, 16, 16, 16, half, row_major> right;
        load_matrix_sync(left, a + k * 16, 512);
        load_matrix_sync(right, b + k * 16 * 16, 16);
        mma_sync(sum, left, right, sum);
    }
    store_matrix_sync(c, sum, 16, mem_row_major);
}

// --- kernels with an error, after many iterations -----------------------------------------------------------

// In the last iteration, one thread returns before the barrier.
extern "C" __global__ void early_exit(const float *x, float *out, int steps) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float total = 0;
    for (int step = 0; step < steps; ++step) {
        if (step == steps - 1 && i == 255) return;
        total += x[i];
        __syncthreads();
    }
    out[i] = total;
}

// In the last iteration, the second half of each block does not reach the barrier.
extern "C" __global__ void barrier_in_a_branch(const float *x, float *out, int steps) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float total = 0;
    for (int step = 0; step < steps; ++step) {
        total += x[i];
        if (step < steps - 1 || threadIdx.x < 128) __syncthreads();
    }
    out[i] = total;
}

// After the loop, a thread reads its neighbour's element without a barrier.
extern "C" __global__ void late_race(const float *x, float *out, int steps) {
    __shared__ float shared[256];
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    float total = 0;
    for (int step = 0; step < steps; ++step) total += x[i] * step;
    shared[t] = total;
    out[i] = shared[(t + 1) % 256];
}

// The lower half of each warp does not take part in the last shuffle, from which the upper half reads its values.
// The sums stay finite, so these values have an effect.
extern "C" __global__ void shuffle_in_a_branch(const float *x, float *out, int steps) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float total = x[i];
    for (int step = 0; step < steps; ++step)
        if (step < steps - 1 || threadIdx.x % 32 >= 16)
            total = total * 0.5f + __shfl_xor_sync(0xffffffff, total, 16) * 0.25f;
    out[i] = total;
}

// In the last iteration, a thread reads the destination of an asynchronous copy before it waits for the copy.
extern "C" __global__ void copy_not_awaited(const float *x, float *out, int steps) {
    __shared__ float shared[256];
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    float total = 0;
    for (int step = 0; step < steps; ++step) {
        __pipeline_memcpy_async(&shared[t], &x[i], 4);
        __pipeline_commit();
        if (step < steps - 1) __pipeline_wait_prior(0);
        total += shared[t];
    }
    out[i] = total;
}

// In the last iteration but one, no barrier separates the loads from the stores of the next iteration.
extern "C" __global__ void missing_barrier(const float *x, float *out, int steps) {
    __shared__ float shared[256];
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    float total = 0;
    for (int step = 0; step < steps; ++step) {
        shared[t] = x[i];
        __syncthreads();
        total += shared[(t + 1) % 256];
        if (step != steps - 2) __syncthreads();
    }
    out[i] = total;
}

// The kernel `missing_barrier` with asynchronous copies instead of stores.
extern "C" __global__ void missing_barrier_of_copies(const float *x, float *out, int steps) {
    __shared__ float shared[256];
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    float total = 0;
    for (int step = 0; step < steps; ++step) {
        __pipeline_memcpy_async(&shared[t], &x[i], 4);
        __pipeline_commit();
        __pipeline_wait_prior(0);
        __syncthreads();
        total += shared[(t + 1) % 256];
        if (step != steps - 2) __syncthreads();
    }
    out[i] = total;
}

// The variable `factor` has no value if no iteration assigns it.
extern "C" __global__ void undefined_local(const float *x, float *out, int steps) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float total = 0, factor;
    for (int step = 0; step < steps; ++step) {
        total += x[i];
        if (total < 0) factor = total;
    }
    out[i] = total * factor;
}
