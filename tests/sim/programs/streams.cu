// Streams, events and graphs. An argument selects an access or an operation that does not wait.
#include <cstdio>
#include <cstdlib>
#include <cstring>

const int n = 1000, bytes = n * sizeof(int);

__global__ void increment(int *x) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i]++;
}

void count(void *calls) { ++*(int *)calls; }
void overlap(int, int *, int *, cudaStream_t, cudaStream_t, cudaEvent_t), results(int, int *, int *, cudaStream_t, cudaStream_t, cudaEvent_t);
int main(int argc, char **argv) {
    int which = argc > 1 ? atoi(argv[1]) : 0, calls = 0, *device, *pinned, *managed;
    cudaMalloc(&device, bytes);
    cudaMallocHost(&pinned, bytes);
    cudaMallocManaged(&managed, bytes);
    memset(pinned, 0, bytes);
    memset(managed, 0, bytes);
    cudaStream_t first, second;
    cudaStreamCreate(&first);
    cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking);
    cudaEvent_t event;
    cudaEventCreate(&event);
    if (which >= 20) return results(which, device, managed, first, second, event), cudaFreeHost(pinned); else if (which >= 10) return overlap(which, device, pinned, first, second, event), cudaFree(managed);
    cudaMemcpyAsync(device, pinned, bytes, cudaMemcpyHostToDevice, first);
    if (which == 1) pinned[5] = 0;
    increment<<<4, 256, 0, first>>>(device);
    cudaMemcpyAsync(pinned, device, bytes, cudaMemcpyDeviceToHost, first);
    if (which == 2) printf("%d\n", pinned[7]);
    if (which == 3) cudaStreamSynchronize(second), printf("%d\n", pinned[7]);
    cudaEventRecord(event, first);
    cudaStreamWaitEvent(second, event, 0);
    cudaStreamSynchronize(second);  // waits for the event, and so for the copy
    printf("%d\n", pinned[7]);

    increment<<<4, 256>>>(managed);
    if (which == 4) printf("%d\n", managed[7]);
    cudaMemcpy(device, managed, bytes, cudaMemcpyDefault);
    cudaEventRecord(event);
    cudaEventSynchronize(event);
    printf("%d\n", managed[7]);

    cudaGraph_t graph, made;
    cudaGraphExec_t executable, other;
    cudaStreamBeginCapture(first, cudaStreamCaptureModeGlobal);
    if (which == 6) cudaEventRecord(event, first);
    increment<<<4, 256, 0, first>>>(device);
    if (which != 6) cudaEventRecord(event, first);
    cudaStreamWaitEvent(second, event, 0);  // the second stream joins the capture
    increment<<<4, 256, 0, second>>>(device);
    cudaLaunchHostFunc(second, count, &calls);
    cudaEventRecord(event, second);
    if (which != 7) cudaStreamWaitEvent(first, event, 0);
    cudaMemcpyAsync(pinned, device, bytes, cudaMemcpyDeviceToHost, first);
    if (cudaStreamEndCapture(first, &graph)) return 7;
    cudaGraphInstantiate(&executable, graph, 0);
    for (int i = 0; i < 3; i++) cudaGraphLaunch(executable, first);
    if (which == 5) printf("%d\n", pinned[7]);
    cudaDeviceSynchronize();
    printf("%d %d\n", pinned[7], calls);  // 1 + 3 * 2

    cudaGraphNode_t nodes[3];
    cudaGraphCreate(&made, 0);
    cudaMemsetParams set = {device, 0, 9, sizeof(int), n, 1};
    cudaGraphAddMemsetNode(&nodes[0], made, nullptr, 0, &set);
    void *arguments[] = {&device};
    cudaKernelNodeParams launch = {(void *)increment, dim3(4), dim3(256), 0, arguments, nullptr};
    cudaGraphAddMemcpyNode1D(&nodes[2], made, nullptr, 0, pinned, device, bytes, cudaMemcpyDeviceToHost);
    cudaGraphAddKernelNode(&nodes[1], made, &nodes[0], which != 8, &launch);
    if (which != 9) cudaGraphAddDependencies(made, &nodes[1], &nodes[2], nullptr, 1);
    size_t count_of_nodes;
    cudaGraphGetNodes(made, nullptr, &count_of_nodes);
    cudaGraphInstantiate(&other, made, 0);
    cudaGraphLaunch(other, first);
    cudaStreamSynchronize(first);
    printf("%d %zu\n", pinned[7], count_of_nodes);

    cudaGraphExecDestroy(executable), cudaGraphDestroy(graph), cudaGraphExecDestroy(other), cudaGraphDestroy(made);
    cudaFree(device), cudaFreeHost(pinned), cudaFree(managed);
    return 0;
}

// Operations of two streams. Each of the arguments 11 to 16 omits a wait.
void overlap(int which, int *device, int *pinned, cudaStream_t first, cudaStream_t second, cudaEvent_t event) {
    int *other;
    cudaMemset(device, 0, bytes);
    if (which != 11) cudaDeviceSynchronize();  // the second stream does not wait for the default stream
    increment<<<2, 256, 0, second>>>(device);
    increment<<<2, 240, 0, first>>>(device + 512);  // other elements
    cudaEventRecord(event, first);
    if (which != 12) cudaStreamWaitEvent(second, event, 0);
    cudaMemcpyAsync(pinned, device, bytes, cudaMemcpyDeviceToHost, second);
    if (which != 13) cudaStreamSynchronize(second);
    cudaMemsetAsync(device, 1, 4, first);
    cudaMallocAsync(&other, bytes, first);
    cudaMemsetAsync(other, 0, bytes, first);
    cudaEventRecord(event, first);
    if (which != 16) cudaStreamWaitEvent(second, event, 0);
    increment<<<4, 256, 0, second>>>(other);
    cudaEventRecord(event, second);
    if (which != 14) cudaStreamWaitEvent(first, event, 0);
    cudaFreeAsync(other, first);
    increment<<<4, 256, 0, second>>>(pinned);
    cudaEventRecord(event, second);
    if (which == 15) cudaEventQuery(event);
    else while (cudaEventQuery(event) == cudaErrorNotReady);
    printf("%d\n", pinned[7]);
    cudaDeviceSynchronize();
    cudaFree(device), cudaFreeHost(pinned);
}

// Calls that wait for earlier work, or return an error.
void results(int which, int *device, int *managed, cudaStream_t first, cudaStream_t second, cudaEvent_t event) {
    static int host[n];
    float milliseconds = -1;
    cudaEvent_t start;
    cudaGraph_t graph = nullptr;
    if (which == 20) {  // a copy to the host waits for the kernel
        increment<<<4, 256>>>(managed);
        cudaMemcpy(host, managed, bytes, cudaMemcpyDefault);
        printf("%d %d\n", managed[7], host[7]);
    }
    if (which == 21) {  // the time of an event for which the host has not waited
        cudaMemset(device, 0, bytes);
        cudaEventCreate(&start);
        cudaEventRecord(start);
        for (int i = 0; i < 300; i++) increment<<<4, 256>>>(device);
        cudaEventRecord(event);
        const char *name = cudaGetErrorName(cudaEventElapsedTime(&milliseconds, start, event));
        cudaEventSynchronize(event);
        cudaError_t error = cudaEventElapsedTime(&milliseconds, start, event);
        printf("%s %s\n", name, cudaGetErrorName(error));
    }
    if (which == 22) {  // a captured stream waits for an event that was recorded outside the capture
        cudaEventRecord(event, second);
        cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal);
        const char *name = cudaGetErrorName(cudaStreamWaitEvent(first, event, 0));
        cudaError_t error = cudaStreamEndCapture(first, &graph);
        printf("%s %s %d\n", name, cudaGetErrorName(error), graph == nullptr);
    }
    cudaDeviceSynchronize();
    cudaFree(device), cudaFree(managed);
}
