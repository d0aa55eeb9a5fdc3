// A sum by one warp in global memory, "warp-synchronous": volatile does not make the lanes wait for each other.
extern "C" __global__ void bug(int* x, int* sum) {
    volatile int* v = x;
    int t = threadIdx.x;
    if (t < 32) {
        for (int step = 32; step > 0; step /= 2)
            if (t < step) v[t] += v[t + step];  // FOUND race-global
        if (t == 0) *sum = v[0];
    }
}

extern "C" __global__ void mended(int* x, int* sum) {
    volatile int* v = x;
    int t = threadIdx.x;
    if (t < 32) {
        for (int step = 32; step > 0; step /= 2) {
            if (t < step) v[t] += v[t + step];
            __syncwarp();
        }
        if (t == 0) *sum = v[0];
    }
}
