// Each thread sorts three numbers in memory of its own, and stores the median.
extern "C" __global__ void bug(const int* x, int* y) {
    int* p = (int*)malloc(3 * sizeof(int));
    for (int i = 0; i < 3; ++i) p[i] = x[3 * threadIdx.x + i];
    for (int end = 3; end > 1; --end)
        for (int i = 0; i < end; ++i)
            if (p[i] > p[i + 1]) {  // FOUND out-of-bounds
                int lower = p[i + 1];
                p[i + 1] = p[i];  // FOUND out-of-bounds
                p[i] = lower;
            }
    y[threadIdx.x] = p[1];
    free(p);
}

extern "C" __global__ void mended(const int* x, int* y) {
    int* p = (int*)malloc(3 * sizeof(int));
    for (int i = 0; i < 3; ++i) p[i] = x[3 * threadIdx.x + i];
    for (int end = 3; end > 1; --end)
        for (int i = 0; i + 1 < end; ++i)
            if (p[i] > p[i + 1]) {
                int lower = p[i + 1];
                p[i + 1] = p[i];
                p[i] = lower;
            }
    y[threadIdx.x] = p[1];
    free(p);
}
