// The sum of those numbers that are positive, by shuffles.
extern "C" __global__ void bug(const int* x, int* sum) {
    int lane = threadIdx.x, value = x[lane];
    if (lane < 24) {
        for (int by = 16; by > 0; by /= 2) {
            value += __shfl_down_sync(0xffffffff, value, by);  // FOUND warp-divergence: lanes 24 to 31 never come
        }
        if (lane == 0) *sum = value;
    } else {
        sum[1] = __ballot_sync(0xff000000, value > 0);  // FOUND warp-divergence
    }
}

extern "C" __global__ void mended(const int* x, int* sum) {
    int lane = threadIdx.x, value = lane < 24 ? x[lane] : 0;
    for (int by = 16; by > 0; by /= 2) {
        value += __shfl_down_sync(0xffffffff, value, by);
    }
    if (lane == 0) *sum = value;
    int positive = __ballot_sync(0xffffffff, x[lane] > 0);
    if (lane == 31) sum[1] = positive & 0xff000000;
}
