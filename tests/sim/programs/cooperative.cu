// One kernel with a grid barrier, launched in the way that the first argument names.
#include <cooperative_groups.h>
#include <cuda.h>
#include <cstdio>
#include <cstring>
namespace cg = cooperative_groups;

// Each block adds the elements of the next block to its own. If `checks`, it returns if the grid is invalid.
__global__ void add_next(int *x, int *sum, bool checks) {
    cg::grid_group grid = cg::this_grid();
    if (checks && !grid.is_valid()) return;
    int n = gridDim.x * blockDim.x, i = blockIdx.x * blockDim.x + threadIdx.x;
    x[i] = i;
    grid.sync();
    sum[i] = x[i] + x[(i + blockDim.x) % n];
}

int main(int count, char **words) {
    const char *way = words[1];
    int *x, *sum, result[256] = {}, total = 0;
    bool checks = !strcmp(way, "checked");
    cudaMalloc(&x, sizeof result);
    cudaMalloc(&sum, sizeof result);
    cudaMemset(sum, 0, sizeof result);
    void *arguments[] = {&x, &sum, &checks}, *kernel = (void *)add_next;
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    if (!strcmp(way, "brackets") || checks) add_next<<<4, 64>>>(x, sum, checks);
    if (!strcmp(way, "function")) cudaLaunchKernel(kernel, 4, 64, arguments, 0, 0);
    if (!strcmp(way, "cooperative")) cudaLaunchCooperativeKernel(kernel, 4, 64, arguments, 0, 0);
    if (!strncmp(way, "driver", 6)) {
        cudaFunction_t function;
        cudaGetFuncBySymbol(&function, kernel);
        if (!strcmp(way, "driver")) cuLaunchCooperativeKernel(function, 4, 1, 1, 64, 1, 1, 0, 0, arguments);
        else cuLaunchKernel(function, 4, 1, 1, 64, 1, 1, 0, 0, arguments, 0);
    }
    if (!strncmp(way, "attribute", 9)) {
        cudaLaunchAttribute attribute;
        attribute.id = cudaLaunchAttributeCooperative;
        attribute.val.cooperative = !strcmp(way, "attribute");
        cudaLaunchConfig_t configuration = {4, 64, 0, 0, &attribute, 1};
        cudaLaunchKernelExC(&configuration, kernel, arguments);
    }
    if (!strncmp(way, "graph", 5)) {
        cudaGraph_t graph;
        cudaGraphExec_t executable;
        cudaGraphNode_t node;
        size_t nodes = 1;
        cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
        if (!strcmp(way, "graph")) cudaLaunchCooperativeKernel(kernel, 4, 64, arguments, 0, stream);
        else add_next<<<4, 64, 0, stream>>>(x, sum, checks);
        cudaStreamEndCapture(stream, &graph);
        cudaGraphGetNodes(graph, &node, &nodes);
        cudaGraphInstantiate(&executable, graph, 0);
        // The node keeps its attributes when its parameters change.
        cudaKernelNodeParams parameters = {kernel, 4, 64, 0, arguments, 0};
        cudaGraphExecKernelNodeSetParams(executable, node, &parameters);
        cudaGraphLaunch(executable, stream);
        cudaGraphExecDestroy(executable);
        cudaGraphDestroy(graph);
    }
    cudaError_t error = cudaDeviceSynchronize();
    if (!error) cudaMemcpy(result, sum, sizeof result, cudaMemcpyDeviceToHost);
    for (int value : result) total += value;
    printf("%s %d\n", cudaGetErrorName(error), total);
    cudaStreamDestroy(stream);
    cudaFree(x);
    cudaFree(sum);
}
