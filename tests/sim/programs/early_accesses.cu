// An operation of a stream that uses pinned or managed memory, and a host access to this memory.
// Arguments: the number of the operation, and whether the host waits before its access.
#include <cstdio>
#include <cstdlib>

__device__ int variable[1000];

int main(int argc, char **argv) {
    int which = atoi(argv[1]), waits = atoi(argv[2]), n = 1000, *device, *pinned, *managed;
    size_t bytes = n * sizeof(int);
    cudaMalloc(&device, bytes), cudaMallocHost(&pinned, bytes), cudaMallocManaged(&managed, bytes);
    cudaMemset(device, 0, bytes), cudaMemset(managed, 0, bytes), cudaMemset(pinned, 0, bytes);
    cudaMemcpyToSymbol(variable, pinned, bytes);
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    cudaGraph_t graph;
    cudaGraphExec_t launched = nullptr;
    cudaGraphNode_t node;
    cudaGraphCreate(&graph, 0);
    cudaMemcpy3DParms region = {};
    cudaMemsetParams fill = {};
    int *accessed = pinned;
    bool reads = true;
    switch (which) {
    case 0: cudaMemcpyAsync(pinned, device, bytes, cudaMemcpyDeviceToHost, stream); break;
    case 1: cudaMemcpyAsync(accessed = managed, device, bytes, cudaMemcpyDefault, stream); break;
    case 2: cudaMemcpyFromSymbolAsync(pinned, variable, bytes, 0, cudaMemcpyDeviceToHost, stream); break;
    case 3: cudaMemcpyToSymbolAsync(variable, pinned, bytes, 0, cudaMemcpyHostToDevice, stream); reads = false; break;
    case 4: cudaMemsetAsync(accessed = managed, 1, bytes, stream); break;
    case 5: cudaMemset2DAsync(pinned, 400, 1, 400, 10, stream); break;
    case 6: cudaGraphAddMemcpyNode1D(&node, graph, nullptr, 0, device, pinned, bytes, cudaMemcpyHostToDevice);
        reads = false; break;
    case 7:
        region.srcPtr = make_cudaPitchedPtr(device, bytes, n, 1), region.dstPtr = make_cudaPitchedPtr(pinned, bytes, n, 1);
        region.extent = make_cudaExtent(bytes, 1, 1), region.kind = cudaMemcpyDeviceToHost;
        cudaGraphAddMemcpyNode(&node, graph, nullptr, 0, &region); break;
    case 8:
        fill.dst = accessed = managed, fill.elementSize = 4, fill.width = n, fill.height = 1, fill.pitch = bytes;
        cudaGraphAddMemsetNode(&node, graph, nullptr, 0, &fill); break;
    }
    if (which > 5) cudaGraphInstantiate(&launched, graph, 0), cudaGraphLaunch(launched, stream);
    if (waits) cudaStreamSynchronize(stream);
    if (reads) printf("%d\n", accessed[500]); else accessed[500] = 1;
    cudaStreamSynchronize(stream), cudaStreamDestroy(stream), cudaGraphDestroy(graph);
    if (launched) cudaGraphExecDestroy(launched);
    cudaFree(device), cudaFree(managed), cudaFreeHost(pinned);
    return cudaGetLastError();
}
