// The sum of a warp by halving in shared memory.
extern "C" __global__ void bug(const float* x, float* sums) {
    __shared__ float part[32];
    int lane = threadIdx.x;
    part[lane] = x[lane];  // FOUND race-shared
    for (int half = 16; half > 0; half /= 2) {
        if (lane < half) part[lane] += part[lane + half];  // FOUND race-shared: no __syncwarp
    }
    if (lane == 0) sums[0] = part[0];
}

extern "C" __global__ void mended(const float* x, float* sums) {
    __shared__ float part[32];
    int lane = threadIdx.x;
    part[lane] = x[lane];
    __syncwarp();
    for (int half = 16; half > 0; half /= 2) {
        float sum = lane < half ? part[lane] + part[lane + half] : 0.0f;
        __syncwarp();
        if (lane < half) part[lane] = sum;
        __syncwarp();
    }
    if (lane == 0) sums[0] = part[0];
}
