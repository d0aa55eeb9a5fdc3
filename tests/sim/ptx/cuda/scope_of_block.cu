// Every block counts what is above 4, in one counter of all blocks and in one of its own.
extern "C" __global__ void bug(const int* x, int* counts) {
    if (x[blockIdx.x * blockDim.x + threadIdx.x] > 4) {
        atomicAdd_block(counts, 1);  // FOUND race-global
        atomicAdd_block(counts + 1 + blockIdx.x, 1);
    }
}

extern "C" __global__ void mended(const int* x, int* counts) {
    if (x[blockIdx.x * blockDim.x + threadIdx.x] > 4) {
        atomicAdd(counts, 1);
        atomicAdd_block(counts + 1 + blockIdx.x, 1);
    }
}
