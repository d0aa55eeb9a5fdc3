// The sum of everything: the block that comes last adds up what the others have left.
__device__ unsigned done_bug, done_mended;

extern "C" __global__ void bug(const int* x, int* parts, int* total) {
    int sum = 0;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 4; i++) sum += x[blockIdx.x * 4 + i];
        parts[blockIdx.x] = sum;  // FOUND race-global
        if (atomicAdd(&done_bug, 1) == gridDim.x - 1) {  // no __threadfence before
            int all = 0;
            for (int b = 0; b < gridDim.x; b++) all += parts[b];  // FOUND race-global
            *total = all;
        }
    }
}

extern "C" __global__ void mended(const int* x, int* parts, int* total) {
    int sum = 0;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 4; i++) sum += x[blockIdx.x * 4 + i];
        parts[blockIdx.x] = sum;
        __threadfence();
        if (atomicAdd(&done_mended, 1) == gridDim.x - 1) {
            int all = 0;
            for (int b = 0; b < gridDim.x; b++) all += parts[b];
            *total = all;
        }
    }
}
