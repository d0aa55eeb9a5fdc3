// How often each of 8 numbers occurs, counted in shared memory.
extern "C" __global__ void bug(const int* x, int* counts) {
    __shared__ int bins[8];
    int t = threadIdx.x;
    if (t < 8) bins[t] = 0;
    __syncthreads();
    bins[x[t]] += 1;  // FOUND race-shared: not an atomic
    __syncthreads();
    if (t < 8) counts[t] = bins[t];
}

extern "C" __global__ void mended(const int* x, int* counts) {
    __shared__ int bins[8];
    int t = threadIdx.x;
    if (t < 8) bins[t] = 0;
    __syncthreads();
    atomicAdd(&bins[x[t]], 1);
    __syncthreads();
    if (t < 8) counts[t] = bins[t];
}
