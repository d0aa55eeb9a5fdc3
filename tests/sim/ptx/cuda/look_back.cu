// Sums up to each block: a block waits for the sum of the one before it, and hands on its own.
extern "C" __global__ void bug(const int* x, volatile int* sums, volatile int* ready) {
    if (threadIdx.x == 0) {
        int b = blockIdx.x, before = 0;
        if (b > 0) {
            while (ready[b - 1] == 0) {}
            before = sums[b - 1];  // FOUND race-global
        }
        sums[b] = before + x[b];  // FOUND race-global: volatile does not put it before the flag
        ready[b] = 1;
    }
}

extern "C" __global__ void mended(const int* x, volatile int* sums, volatile int* ready) {
    if (threadIdx.x == 0) {
        int b = blockIdx.x, before = 0;
        if (b > 0) {
            while (ready[b - 1] == 0) {}
            __threadfence();
            before = sums[b - 1];
        }
        sums[b] = before + x[b];
        __threadfence();
        ready[b] = 1;
    }
}
