// A tile of 8 x 8 transposed in shared memory.
#define SIDE 8
extern "C" __global__ void bug(const float* x, float* y) {
    __shared__ float tile[SIDE][SIDE + 1];
    int c = threadIdx.x, r = threadIdx.y;
    tile[r][c] = x[r * SIDE + c];  // FOUND race-shared
    y[r * SIDE + c] = tile[c][r];  // FOUND race-shared: another thread's element, and no barrier
}

extern "C" __global__ void mended(const float* x, float* y) {
    __shared__ float tile[SIDE][SIDE + 1];
    int c = threadIdx.x, r = threadIdx.y;
    tile[r][c] = x[r * SIDE + c];
    __syncthreads();
    y[r * SIDE + c] = tile[c][r];
}
