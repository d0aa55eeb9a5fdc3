// Up to n elements reversed by a block.
extern "C" __global__ void bug(int n, const float* x, float* y) {
    __shared__ float tile[64];
    int t = threadIdx.x;
    if (t >= n) return;
    tile[t] = x[t];
    __syncthreads();  // FOUND barrier-divergence
    y[t] = tile[n - 1 - t];
}

extern "C" __global__ void mended(int n, const float* x, float* y) {
    __shared__ float tile[64];
    int t = threadIdx.x;
    if (t < n) tile[t] = x[t];
    __syncthreads();
    if (t < n) y[t] = tile[n - 1 - t];
}
