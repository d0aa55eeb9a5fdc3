// Host accesses to managed and pinned memory that a kernel may still use. An argument selects one of them.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

const int n = 2048, bytes = n * sizeof(float);
struct Step {
    int done;
    float from[4], to[4];
};
__managed__ int total;

__global__ void twice(const float *x, float *y) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[2 * i] = 2 * x[i];
}
__global__ void set_total(int *p, int to) { *p = to; }
__global__ void advance(Step *step) { step->to[threadIdx.x] = step->from[threadIdx.x]; }
__global__ void count(volatile int *done) { ++*done; }

int main(int argc, char **argv) {
    int which = argc > 1 ? atoi(argv[1]) : 0;
    float *x, *y, *other, *pinned, *plain = (float *)malloc(16 * bytes);
    Step *step;
    cudaMallocManaged(&x, bytes);
    cudaMallocManaged(&y, 2 * bytes);
    cudaMallocManaged(&other, bytes);
    cudaMallocManaged(&step, sizeof(Step));
    cudaMallocHost(&pinned, bytes);
    for (int i = 0; i < n; i++) x[i] = pinned[i] = other[i] = plain[i + 2000] = i;
    memset(y, 0, 2 * bytes);
    memset(step, 0, sizeof(Step));
    cudaHostRegister(plain, 16 * bytes, 0);
    float *registered;
    cudaHostGetDevicePointer(&registered, plain, 0);

    twice<<<4, 256>>>(x, y);
    if (which == 1) x[5] = 1;
    if (which == 2) printf("%g\n", y[6]);
    other[3] = 1;  // The kernel uses neither this array nor the elements that follow.
    x[4 * 256] = 1;
    y[7] = 1;
    if (which == 3) x[4 * 256 - 1] = 1;
    cudaDeviceSynchronize();
    x[5] = 2;

    twice<<<4, 256>>>(pinned, y);
    if (which == 4) memset(pinned, 0, bytes);
    cudaDeviceSynchronize();
    twice<<<4, 256>>>(registered + 2000, y);
    if (which == 5) plain[2500] = 1;
    cudaDeviceSynchronize();

    set_total<<<1, 1>>>(&total, 3);
    if (which == 6) total++;
    cudaDeviceSynchronize();
    printf("%d\n", total);

    advance<<<1, 4>>>(step);
    step->done = 1;  // not used by the kernel, but in the same page as the rest
    if (which == 7) step->from[2] = 1;
    cudaDeviceSynchronize();
    advance<<<1, 4>>>(step);
    float *half = step->from;
    if (which == 8) half[3] = 0;  // the old value
    cudaDeviceSynchronize();

    int zeros = open("/dev/zero", O_RDONLY);
    advance<<<1, 4>>>(step);
    if (which == 9) read(zeros, half, 4);
    if (which == 10) fwrite(step->to, 4, 4, fopen("/dev/null", "w"));
    if (which == 13) fwrite(step, sizeof *step, 1, fopen("/dev/null", "w"));
    if (which == 11) printf("%g\n", step->done + half[1] + step->to[2]);
    for (int i = 0; which == 12 && i < 20001; i++) *(volatile int *)&step->done;
    if (read(zeros, &step->done, 4) != 4) puts("read failed");
    cudaDeviceSynchronize();
    count<<<1, 1>>>(&step->done);
    while (*(volatile int *)&step->done == 0) {}
    cudaMemcpyAsync(x, plain, bytes, cudaMemcpyHostToDevice);  // from registered memory
    if (which == 14) plain[1500] = 1;
    cudaDeviceSynchronize();
    cudaHostUnregister(plain);
    cudaFree(x), cudaFree(y), cudaFree(other), cudaFree(step), cudaFreeHost(pinned), free(plain);
}
