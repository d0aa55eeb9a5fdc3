// Each element with its left neighbour, from global memory.
extern "C" __global__ void bug(const float* x, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[i - 1] + x[i];  // FOUND out-of-bounds: x[-1]
}

extern "C" __global__ void mended(const float* x, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = (i > 0 ? x[i - 1] : 0.0f) + x[i];
}
