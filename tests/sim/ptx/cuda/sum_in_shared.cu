// The sum of a block by halving in shared memory.
extern "C" __global__ void bug(const float* x, float* sums) {
    __shared__ float part[64];
    int t = threadIdx.x;
    part[t] = x[blockIdx.x * 64 + t];
    __syncthreads();
    for (int half = 32; half > 0; half /= 2) {
        if (t < half) part[t] += part[t + half];  // FOUND race-shared: no barrier between two steps
    }
    if (t == 0) sums[blockIdx.x] = part[0];
}

extern "C" __global__ void mended(const float* x, float* sums) {
    __shared__ float part[64];
    int t = threadIdx.x;
    part[t] = x[blockIdx.x * 64 + t];
    __syncthreads();
    for (int half = 32; half > 0; half /= 2) {
        if (t < half) part[t] += part[t + half];
        __syncthreads();
    }
    if (t == 0) sums[blockIdx.x] = part[0];
}
