// Uses memory of every kind, and has no error.
#include <cstdio>

__constant__ float scale;
__device__ int counter;
__managed__ int total = 5;

struct Chunk {
    float *data;
    int n;
};

__global__ void scale_add(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = scale * x[i] + y[i];
    if (threadIdx.x == 0) atomicAdd(&counter, 1);
}

__global__ void sum(Chunk chunk, float **rows, int *out) {
    int all = 0;
    for (int i = 0; i < chunk.n; i++) all += (int)chunk.data[i] + (int)rows[1][i];
    total += all;
    *out = total;
}

int main(int argc, char **argv) {
    const int n = 1000;
    static float host[n];
    float *x, *y, s = 2;
    cudaMalloc(&x, n * sizeof(float));
    cudaMalloc(&y, n * sizeof(float));
    for (int i = 0; i < n; i++) host[i] = i;
    cudaMemcpy(x, host, sizeof host, cudaMemcpyHostToDevice);
    cudaMemset(y, 0, sizeof host);
    cudaMemcpyToSymbol(scale, &s, sizeof s);
    scale_add<<<(n + 255) / 256, 256>>>(x, y, n);
    printf("%s\n", cudaGetErrorString(cudaGetLastError()));
    cudaMemcpy(host, y, sizeof host, cudaMemcpyDeviceToHost);
    int count;
    cudaMemcpyFromSymbol(&count, counter, sizeof count);
    printf("%g %g %d\n", host[1], host[999], count);

    float *managed, **rows;
    int *out;
    cudaMallocManaged(&managed, 8 * sizeof(float));
    cudaMallocManaged(&rows, 2 * sizeof(float *));
    cudaMallocHost(&out, sizeof(int));
    for (int i = 0; i < 8; i++) managed[i] = i;
    rows[1] = y;
    sum<<<1, 1>>>(Chunk{managed, 8}, rows, out);
    cudaDeviceSynchronize();
    printf("%d %d\n", total, *out);

    float *pitched, block[3][5], back[3][5];
    size_t pitch;
    for (int i = 0; i < 15; i++) block[i / 5][i % 5] = i;
    cudaMallocPitch(&pitched, &pitch, 5 * sizeof(float), 3);
    cudaMemcpy2D(pitched, pitch, block, 5 * sizeof(float), 5 * sizeof(float), 3, cudaMemcpyHostToDevice);
    cudaMemcpy2D(back, 5 * sizeof(float), pitched, pitch, 5 * sizeof(float), 3, cudaMemcpyDeviceToHost);
    int *address;
    cudaGetSymbolAddress((void **)&address, counter);
    cudaMemset(address, 0, sizeof(int));
    cudaMemcpy(&count, address, sizeof(int), cudaMemcpyDeviceToHost);
    printf("%zu %g %d\n", pitch, back[2][4], count);

    cudaStream_t stream;
    cudaEvent_t start, stop;
    float milliseconds = -1;
    cudaStreamCreate(&stream);
    cudaEventCreate(&start);
    cudaEventCreate(&stop);
    cudaEventRecord(start, stream);
    cudaMemsetAsync(y, 0, n * sizeof(float), stream);
    cudaEventRecord(stop, stream), cudaEventSynchronize(stop);
    cudaEventElapsedTime(&milliseconds, start, stop);
    cudaDeviceProp properties;
    cudaGetDeviceProperties(&properties, 0);
    int warp, blocks;
    cudaDeviceGetAttribute(&warp, cudaDevAttrWarpSize, 0);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, scale_add, 256, 0);
    printf("%d %d %d %d %d\n", milliseconds >= 0, properties.warpSize, warp, properties.maxGridSize[1], blocks);
    cudaFree(x), cudaFree(y), cudaFree(managed), cudaFree(rows), cudaFreeHost(out), cudaFree(pitched);
    return 0;
}
