// A sum in distributed shared memory. The clusters are a launch attribute. Without FIXED, blocks end too early.
// With CAPTURED, a graph launches the kernel.
#include <cooperative_groups.h>
#include <cstdio>
namespace cg = cooperative_groups;
__global__ void k(const int* x, int* y) {
    __shared__ int sum;
    auto cluster = cg::this_cluster();
    if (threadIdx.x == 0) sum = 0;
    cluster.sync();
    atomicAdd(cluster.map_shared_rank(&sum, 0), x[blockIdx.x * blockDim.x + threadIdx.x]);
    cluster.sync();
    if (threadIdx.x == 0) y[blockIdx.x] = *cluster.map_shared_rank(&sum, 0);
#ifdef FIXED
    cluster.sync();
#endif
}
int main() {
    int *x, *y; int host[8];
    cudaMallocManaged(&x, 512 * 4); cudaMalloc(&y, 32);
    for (int i = 0; i < 512; i++) x[i] = i;
    cudaLaunchConfig_t config = {};
    config.gridDim = 8; config.blockDim = 64;
    cudaLaunchAttribute attribute[1];
    attribute[0].id = cudaLaunchAttributeClusterDimension;
    attribute[0].val.clusterDim.x = 4; attribute[0].val.clusterDim.y = 1; attribute[0].val.clusterDim.z = 1;
    config.attrs = attribute; config.numAttrs = 1;
#ifdef CAPTURED
    cudaGraph_t graph; cudaGraphExec_t executable;
    cudaStreamCreate(&config.stream);
    cudaStreamBeginCapture(config.stream, cudaStreamCaptureModeGlobal);
#endif
    cudaError_t e = cudaLaunchKernelEx(&config, k, (const int*)x, y);
#ifdef CAPTURED
    cudaStreamEndCapture(config.stream, &graph);
    cudaGraphInstantiate(&executable, graph, 0);
    cudaGraphLaunch(executable, config.stream);
    cudaStreamSynchronize(config.stream);
    cudaGraphExecDestroy(executable); cudaGraphDestroy(graph); cudaStreamDestroy(config.stream);
#endif
    if (e == cudaSuccess) e = cudaDeviceSynchronize();
    if (e == cudaSuccess) e = cudaMemcpy(host, y, 32, cudaMemcpyDeviceToHost);
    printf("%d %d %d\n", (int)e, host[0], host[7]);
    cudaFree(x); cudaFree(y);
    return 0;
}
