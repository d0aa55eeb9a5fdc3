// How many numbers are positive.
extern "C" __global__ void bug(const float* x, int* positive) {
    __shared__ int count;
    if (x[threadIdx.x] > 0.0f) atomicAdd(&count, 1);  // FOUND uninitialized-read: count starts with anything
    __syncthreads();
    if (threadIdx.x == 0) *positive = count;
}

extern "C" __global__ void mended(const float* x, int* positive) {
    __shared__ int count;
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    if (x[threadIdx.x] > 0.0f) atomicAdd(&count, 1);
    __syncthreads();
    if (threadIdx.x == 0) *positive = count;
}
