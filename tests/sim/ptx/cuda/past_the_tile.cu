// Sums of neighbours, by way of a tile in shared memory.
extern "C" __global__ void bug(const float* x, float* y) {
    __shared__ float tile[32];
    int t = threadIdx.x;
    tile[t] = x[t];
    __syncthreads();
    y[t] = tile[t] + tile[t + 1];  // FOUND out-of-bounds: tile[32]
}

extern "C" __global__ void mended(const float* x, float* y) {
    __shared__ float tile[32];
    int t = threadIdx.x;
    tile[t] = x[t];
    __syncthreads();
    y[t] = tile[t] + (t < 31 ? tile[t + 1] : 0.0f);
}
