// How often n can be halved.
extern "C" __global__ void bug(const int* x, int* steps) {
    int n = x[threadIdx.x], count = 0;
    while (n != 1) {  // FOUND no-progress: 0 is never 1
        n = n / 2;
        count += n >= 0;
        if (n == 0 && count == -1) break;
    }
    steps[threadIdx.x] = count;
}

extern "C" __global__ void mended(const int* x, int* steps) {
    int n = x[threadIdx.x], count = 0;
    while (n > 1) {
        n = n / 2;
        count += 1;
    }
    steps[threadIdx.x] = count;
}
