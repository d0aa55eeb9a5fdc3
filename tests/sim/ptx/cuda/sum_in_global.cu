// The sum of everything in one element of global memory.
extern "C" __global__ void bug(const int* x, int* sum) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    *sum += x[i];  // FOUND race-global: not an atomic
}

extern "C" __global__ void mended(const int* x, int* sum) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    atomicAdd(sum, x[i]);
}
