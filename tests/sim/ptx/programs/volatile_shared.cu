// Volatile accesses to shared memory. They are weak accesses: they order nothing, and they race.
extern "C" __global__ void reduce(const int* x, int* y, int ordered) {
    __shared__ volatile int s[64];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    if (t < 32) {
        for (int d = 32; d > 0; d /= 2) {
            int other = s[t + d];
            if (ordered) __syncwarp();
            s[t] += other;
            if (ordered) __syncwarp();
        }
    }
    if (t == 0) y[0] = s[0];
}

extern "C" __global__ void largest(const int* x, int* y) {
    __shared__ volatile int s[64];
    int t = threadIdx.x;
    s[t] = x[t];
    __syncthreads();
    if (s[t ^ 1] > s[t]) y[t] = s[t ^ 1]; else y[t] = s[t];
}

extern "C" __global__ void wait(int* y) {
    __shared__ volatile int flag;
    if (threadIdx.x == 0) flag = 0;
    __syncthreads();
    if (threadIdx.x == 32) flag = 1;
    if (threadIdx.x < 32) while (flag == 0) {}
    y[threadIdx.x] = 1;
}
