// Even lanes take the number of their right neighbour, odd lanes that of the lane four to the left.
extern "C" __global__ void bug(const int* x, int* y) {
    int lane = threadIdx.x, value = x[lane];
    if (lane % 2 == 0) {
        value = __shfl_down_sync(0xffffffff, value, 1);  // FOUND warp-divergence: the odd lanes are elsewhere
    } else {
        value = __shfl_up_sync(0xffffffff, value, 4) + 1;  // FOUND warp-divergence
    }
    y[lane] = value;
}

extern "C" __global__ void mended(const int* x, int* y) {
    int lane = threadIdx.x, value = x[lane];
    int right = __shfl_down_sync(0xffffffff, value, 1), left = __shfl_up_sync(0xffffffff, value, 4);
    y[lane] = lane % 2 == 0 ? right : left + 1;
}
