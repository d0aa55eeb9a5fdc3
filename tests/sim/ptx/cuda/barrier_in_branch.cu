// The first 20 elements reversed.
extern "C" __global__ void bug(const float* x, float* y) {
    __shared__ float tile[64];
    int t = threadIdx.x;
    if (t < 20) {
        tile[t] = x[t];
        __syncthreads();  // FOUND barrier-divergence: 44 threads never come
        y[t] = tile[19 - t];
    }
}

extern "C" __global__ void mended(const float* x, float* y) {
    __shared__ float tile[64];
    int t = threadIdx.x;
    if (t < 20) tile[t] = x[t];
    __syncthreads();
    if (t < 20) y[t] = tile[19 - t];
}
