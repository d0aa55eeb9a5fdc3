// A variable is set in one stream and read in another. Arguments: whether it is constant; whether an event orders the two.
#include <cstdlib>

__constant__ int constant[4];
__device__ int global[4];
__global__ void read_constant(int *x) { x[threadIdx.x] = constant[threadIdx.x & 3]; }
__global__ void read_global(int *x) { x[threadIdx.x] = global[threadIdx.x & 3]; }

int main(int argc, char **argv) {
    int is_constant = atoi(argv[1]), waits = atoi(argv[2]), *x, *source;
    cudaMalloc(&x, 32 * sizeof(int)), cudaMallocHost(&source, 16);
    cudaStream_t first, second;
    cudaStreamCreate(&first), cudaStreamCreate(&second);
    cudaEvent_t event;
    cudaEventCreate(&event);
    for (int i = 0; i < 4; i++) source[i] = i;
    if (is_constant)
        cudaMemcpyToSymbolAsync(constant, source, 16, 0, cudaMemcpyHostToDevice, first);
    else
        cudaMemcpyToSymbolAsync(global, source, 16, 0, cudaMemcpyHostToDevice, first);
    cudaEventRecord(event, first);
    if (waits) cudaStreamWaitEvent(second, event, 0);
    if (is_constant)
        read_constant<<<1, 32, 0, second>>>(x);
    else
        read_global<<<1, 32, 0, second>>>(x);
    cudaDeviceSynchronize();
    cudaStreamDestroy(first), cudaStreamDestroy(second), cudaEventDestroy(event);
    cudaFree(x), cudaFreeHost(source);
    return cudaGetLastError();
}
