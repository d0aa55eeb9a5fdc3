// Each block reverses its part of x in memory of its own.
extern "C" __global__ void bug(const int* x, int* y) {
    __shared__ int* part;
    int t = threadIdx.x, first = blockIdx.x * blockDim.x;
    if (t == 0) part = new int[blockDim.x];
    __syncthreads();
    part[t] = x[first + t];                   // FOUND race-global
    y[first + t] = part[blockDim.x - 1 - t];  // FOUND race-global
    __syncthreads();
    if (t == 0) delete[] part;
}

extern "C" __global__ void mended(const int* x, int* y) {
    __shared__ int* part;
    int t = threadIdx.x, first = blockIdx.x * blockDim.x;
    if (t == 0) part = new int[blockDim.x];
    __syncthreads();
    part[t] = x[first + t];
    __syncthreads();
    y[first + t] = part[blockDim.x - 1 - t];
    __syncthreads();
    if (t == 0) delete[] part;
}
