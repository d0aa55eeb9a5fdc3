// One fault for each argument, in the host code.
#include <cstdio>
#include <cstdlib>

__global__ void fill(int *p, int n) {
    if (threadIdx.x < n) p[threadIdx.x] = 1;
}
template <class T> void release(T *p);
#define CHECK(call) if (cudaError_t error = call) printf("%s\n", cudaGetErrorName(error))
int main(int argc, char **argv) {
    int *p, *q, h[8] = {};
    cudaMalloc(&p, 4 * sizeof(int));
    switch (atoi(argv[1])) {
    case 0: cudaMemcpy(h, p, 8 * sizeof(int), cudaMemcpyDeviceToHost); break;
    case 1: cudaMemcpy(h, p, 4 * sizeof(int), cudaMemcpyHostToDevice); break;
    case 2: cudaMemset(h, 0, sizeof h); break;
    case 3: cudaFree(p), cudaFree(p); return 0;
    case 4: cudaFree(p + 1); break;
    case 5: cudaFree(p), cudaMemcpy(h, p, 4, cudaMemcpyDeviceToHost); return 0;
    case 6: fill<<<1, 2000>>>(p, 4); break;
    case 7: printf("%d\n", p[3]); break;
    case 8: q = p, cudaFree(p), fill<<<1, 4>>>(q, 4); return 0;
    case 9: cudaFree(p); return 3;
    case 10: cudaFree(p); exit(0);
    case 11: cudaArray_t array; cudaChannelFormatDesc format; cudaMallocArray(&array, &format, 4, 4); break;
    case 12: fill<<<1, 4, 100000>>>(p, 4); break;
    case 13: cudaFreeHost(p); break;
    case 14: fill<<<1, 4>>>(p, 4), cudaMemcpy(p, nullptr, 4, cudaMemcpyDeviceToDevice); break;
    case 15: abort();
    case 16: fill<<<1, 4>>>(p, 2), cudaMemcpy(h, p, 4 * sizeof(int), cudaMemcpyDeviceToHost); break;
    case 17: cudaFree(p); exit(5);
    case 18: release(p); return 0;
    case 19: cudaMalloc(&q, (size_t)1 << 50);
        cudaSetDevice(0), cudaSetDevice(3); break;
    case 20: CHECK(cudaMalloc(&q, (size_t)1 << 50)); CHECK(cudaSetDevice(3));
        CHECK(cudaLaunchKernel((void *)fill, 1, 2000, nullptr, 0, 0)); break;
    case 21: cudaMalloc(&q, (size_t)1 << 50); *(volatile int *)(size_t)argc = 0; break;
    case 22: cudaMemcpy(p, h, 4 * sizeof(int), cudaMemcpyDeviceToHost); break;
    case 23: cudaMemcpyAsync(p, p + 1, 3 * sizeof(int), cudaMemcpyDeviceToDevice); break;
    case 24: cudaMemcpy2D(p, 4, p + 1, 4, 4, 3, cudaMemcpyDeviceToDevice); break;
    case 25: cudaMemcpy(p, p, 16, cudaMemcpyDeviceToDevice), cudaMemcpy(p, p + 2, 8, cudaMemcpyDeviceToDevice),
        cudaMemcpy2D(p, 8, p + 1, 8, 4, 2, cudaMemcpyDeviceToDevice); break;
    case 28: cudaMalloc(&q, 12), cudaMemset(q, 0, 8), cudaMemcpy(h, q, 12, cudaMemcpyDeviceToHost), cudaFree(q); break;
    case 29: cudaMalloc(&q, 48), cudaMemset2D(q, 16, 0, 4, 3);
        cudaMemcpy2D(h, 9, q, 16, 9, 3, cudaMemcpyDeviceToHost), cudaFree(q); break;
    case 27: cudaMallocManaged(&q, 16), q[0] = 1, cudaFree(q), printf("%d\n", q[0]); break;
    case 30: cudaMallocManaged(&q, 1000); q[250] = 1;
        cudaFree(q); break;
    case 31: cudaMallocHost(&q, 1000); q[atoi(argv[2])] = 1; break;
    case 32: cudaMallocHost(&q, 4096); printf("%d\n", q[atoi(argv[2])]); break;
    case 33: cudaMallocManaged(&q, 1024); q[0] = q[255] = 1, cudaFree(q), cudaMallocHost(&q, 1001);
        ((char *)q)[1000] = 1, cudaFreeHost(q); break;
    case 26: cudaMemcpy2D(h, 8, p, 8, 8, 3, cudaMemcpyDeviceToHost); break;
    }
    if (argc > 2) printf("%s\n", cudaGetErrorName(cudaGetLastError()));
    if (argc > 3) return 0;
    cudaFree(p);
    return 0;
}

template <class T> void release(T *p) {
    cudaFree(p);
    cudaFree(p);
}
