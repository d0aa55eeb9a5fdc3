// Two atomics on one source line, of different scopes or operations.

// the blocks count for themselves by atomics of block scope, and together by atomics of device scope
extern "C" __global__ void scopes_right(int* total, int* parts) {
    atomicAdd_block(parts + blockIdx.x, 1); atomicAdd(total, 1);
}
extern "C" __global__ void scopes_wrong(int* total, int* parts) {
    atomicAdd(parts + blockIdx.x, 1); atomicAdd_block(total, 1);
}
// the same with a count in shared memory
extern "C" __global__ void shared_right(int* total, int* parts) {
    __shared__ int own;
    if (threadIdx.x == 0) own = 0;
    __syncthreads();
    atomicAdd_block(&own, 1); atomicAdd(total, 1);
    __syncthreads();
    if (threadIdx.x == 0) parts[blockIdx.x] = own;
}
extern "C" __global__ void shared_wrong(int* total, int* parts) {
    __shared__ int own;
    if (threadIdx.x == 0) own = 0;
    __syncthreads();
    atomicAdd(&own, 1); atomicAdd_block(total, 1);
    __syncthreads();
    if (threadIdx.x == 0) parts[blockIdx.x] = own;
}
// loads of both scopes
__device__ int load(int* p) { int v; asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p)); return v; }
__device__ int load_block(int* p) { int v; asm volatile("ld.relaxed.cta.global.u32 %0, [%1];" : "=r"(v) : "l"(p)); return v; }
extern "C" __global__ void loads_right(int* total, int* parts) {
    atomicAdd(total, 1); atomicAdd_block(parts + blockIdx.x, 1);
    if (load(total) < 1 || load_block(parts + blockIdx.x) < 1) __trap();
}
extern "C" __global__ void loads_wrong(int* total, int* parts) {
    atomicAdd(total, 1); atomicAdd(parts + blockIdx.x, 1);
    if (load_block(total) < 1 || load(parts + blockIdx.x) < 1) __trap();
}
// an exchange does not read the old value, an addition does
extern "C" __global__ void operations_right(int* total, int* parts) {
    __shared__ int last, sum;
    if (threadIdx.x == 0) sum = 0;
    __syncthreads();
    atomicExch(&last, 1); atomicAdd(&sum, 1);
    __syncthreads();
    if (threadIdx.x == 0) { parts[blockIdx.x] = sum; atomicAdd(total, sum * last); }
}
extern "C" __global__ void operations_wrong(int* total, int* parts) {
    __shared__ int last, sum;
    atomicExch(&last, 1); atomicAdd(&sum, 1);
    __syncthreads();
    if (threadIdx.x == 0) { parts[blockIdx.x] = sum; atomicAdd(total, sum * last); }
}
