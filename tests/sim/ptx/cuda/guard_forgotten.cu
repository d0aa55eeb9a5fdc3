// a * x + y for n numbers.
extern "C" __global__ void bug(int n, float a, const float* x, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = a * x[i] + y[i];  // FOUND out-of-bounds: the grid is larger than n
}

extern "C" __global__ void mended(int n, float a, const float* x, float* y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}
