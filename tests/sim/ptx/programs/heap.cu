// What the heap is used for wrongly, a kernel for each; and memory that later launches use.
extern "C" __global__ void twice(int* out) {
    int* p = (int*)malloc(4);
    *p = threadIdx.x;
    out[threadIdx.x] = *p;
    free(p);
    free(p);
}

extern "C" __global__ void inside(int* out) {
    int* p = (int*)malloc(16);
    free(p + 1);
    free(p);
}

extern "C" __global__ void foreign(int* out) { free(out); }

extern "C" __global__ void nothing(int* out) { free(nullptr); }

extern "C" __global__ void lost(int* out) {
    int* p = (int*)malloc(40);
    p[0] = threadIdx.x;
    out[threadIdx.x] = p[0];
}

extern "C" __global__ void fresh(int* out) {
    int* p = (int*)malloc(8);
    p[0] = 3;
    out[threadIdx.x] = p[1];
    free(p);
}

extern "C" __global__ void large(int* out, int bytes) {
    int* p = (int*)malloc(bytes);
    out[threadIdx.x] = p == nullptr;
    __syncthreads();
    free(p);
}

extern "C" __global__ void unchecked(int* out, int bytes) {
    int* p = (int*)malloc(bytes);
    *p = 1;
    free(p);
}

extern "C" __global__ void early(int* out) {
    __shared__ int* p;
    if (threadIdx.x == 0) p = new int[blockDim.x];
    __syncthreads();
    p[threadIdx.x] = threadIdx.x;
    if (threadIdx.x == 0) delete[] p;
}

struct Node { int value; Node* next; };
__device__ Node* head;

extern "C" __global__ void push(int value) { head = new Node{value, head}; }

extern "C" __global__ void sum(int* out) {
    int total = 0;
    for (Node* node = head; node != nullptr; node = node->next) total += node->value;
    out[threadIdx.x] = total;
}

extern "C" __global__ void pop(int* out) {
    Node* first = head;
    *out = first->value;
    head = first->next;
    delete first;
}

extern "C" __global__ void forget(int* out) { head = nullptr; }

__device__ int* slots[8];
__device__ int taken, returned;
extern "C" __global__ void take(int* out) {
    int ticket = atomicAdd(&taken, 1);
    slots[ticket] = new int(ticket * ticket);
    out[ticket] = *slots[ticket];
}

extern "C" __global__ void give_back(int* out) {
    int ticket = atomicAdd(&returned, 1);
    out[ticket] = *slots[ticket];
    delete slots[ticket];
}
