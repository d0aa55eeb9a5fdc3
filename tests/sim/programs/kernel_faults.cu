// A fault in a kernel for each argument.
#include <cassert>
#include <cstdio>
#include <cstdlib>

__constant__ float taps[4];

__global__ void race(int *x, int n) {
    int i = threadIdx.x;
    if (i + 1 < n) x[i] = x[i + 1];
}

__global__ void beyond(int *x, int n) {
    if (threadIdx.x <= n) x[threadIdx.x] = 0;
}

__global__ void unwritten(int *x, int *y) {
    y[threadIdx.x] = x[threadIdx.x];
}

__global__ void check(int *x) {
    assert(x[threadIdx.x] > 0);
}

__global__ void filter(float *y) {
    y[threadIdx.x] = taps[threadIdx.x];
}

__global__ void count(int *x) {
    atomicAdd(x, 1);
}

struct Row {
    double *data;
};

__global__ void in_structure(Row *row, int i) {
    row->data[i] = 1;
}

int main(int argc, char **argv) {
    int *x, *y, h[64];
    cudaMalloc(&x, sizeof h);
    cudaMalloc(&y, sizeof h);
    int which = atoi(argv[1]);
    if (which != 2) cudaMemset(x, 0, which == 6 ? sizeof h / 2 : sizeof h);
    cudaMemcpy(y, &x, sizeof x, cudaMemcpyHostToDevice);
    for (int repeat = 0; repeat < 2; repeat++) {
        if (which == 0) race<<<1, 64>>>(x, 64);
        if (which == 1) beyond<<<1, 128>>>(x, 64);
        if (which == 2 || which == 6) unwritten<<<1, 64>>>(x, y);
        if (which == 3) check<<<1, 64>>>(x);
        if (which == 4) filter<<<1, 4>>>((float *)y);
        if (which == 5) count<<<1, 64>>>(x);
        if (which == 7) in_structure<<<1, 1>>>((Row *)y, sizeof h / sizeof(double));
    }
    printf("%s\n", cudaGetErrorName(cudaDeviceSynchronize()));
    cudaMemcpy(h, x, sizeof h, cudaMemcpyDeviceToHost);
    printf("%d\n", h[0]);
    cudaFree(x), cudaFree(y);
    return 0;
}
