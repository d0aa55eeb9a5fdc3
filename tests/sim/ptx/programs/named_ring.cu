// One warp fills two buffers in turn, and another warp reads them. With `waits`, the writing warp waits until a
// buffer has been read.
extern "C" __global__ void ring(const int *x, int *out, int n, int waits)
{
    __shared__ int s[2][32];
    int lane = threadIdx.x & 31;
    if (threadIdx.x < 32) {
        for (int k = 0; k < n; k++) {
            if (waits && k > 1)
                asm volatile("bar.sync %0, 64;" ::"r"(3 + (k & 1)) : "memory");
            s[k & 1][lane] = x[k * 32 + lane];
            asm volatile("bar.arrive %0, 64;" ::"r"(1 + (k & 1)) : "memory");
        }
    } else {
        for (int k = 0; k < n; k++) {
            asm volatile("bar.sync %0, 64;" ::"r"(1 + (k & 1)) : "memory");
            out[k * 32 + lane] = s[k & 1][31 - lane];
            if (waits && k + 2 < n)
                asm volatile("bar.arrive %0, 64;" ::"r"(3 + (k & 1)) : "memory");
        }
    }
}
