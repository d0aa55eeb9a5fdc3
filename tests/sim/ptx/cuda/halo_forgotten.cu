// Each element with its left neighbour; the first has none.
extern "C" __global__ void bug(const float* x, float* y) {
    __shared__ float tile[33];
    int t = threadIdx.x;
    tile[t + 1] = x[t];
    __syncthreads();
    y[t] = tile[t] + tile[t + 1];  // FOUND uninitialized-read: tile[0]
}

extern "C" __global__ void mended(const float* x, float* y) {
    __shared__ float tile[33];
    int t = threadIdx.x;
    tile[t + 1] = x[t];
    if (t == 0) tile[0] = 0.0f;
    __syncthreads();
    y[t] = tile[t] + tile[t + 1];
}
