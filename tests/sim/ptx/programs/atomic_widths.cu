// Atomics of 32 and 64 bits, on the same bytes and on different ones.
using u64 = unsigned long long;
__device__ union { unsigned narrow[64]; u64 wide[32]; } both;

__device__ void add_narrow(unsigned* x, int at) { atomicAdd(&x[at], 1u); }
__device__ void add_wide(unsigned* x, int at) { atomicAdd((u64*)(x + at), 1ull); }

// the first block has nothing to do with the race
extern "C" __global__ void of_later_blocks(unsigned* x) {
    if (threadIdx.x) return;
    if (blockIdx.x == 0) add_narrow(x, 20);
    if (blockIdx.x == 40) add_narrow(x, 1);
    if (blockIdx.x == 50) add_wide(x, 0);
}
// the last atomic has the width of the first one
extern "C" __global__ void of_three_blocks(unsigned* x) {
    if (threadIdx.x) return;
    if (blockIdx.x == 0) add_narrow(x, 0);
    if (blockIdx.x == 40) add_wide(x, 10);
    if (blockIdx.x == 50) add_narrow(x, 11);
}
extern "C" __global__ void of_a_variable(unsigned* x) {
    if (threadIdx.x) return;
    x[blockIdx.x] = 1;
    if (blockIdx.x == 0) add_narrow(both.narrow, 20);
    if (blockIdx.x == 40) add_narrow(both.narrow, 3);
    if (blockIdx.x == 50) atomicAdd(&both.wide[1], 1ull);
}
extern "C" __global__ void of_one_block(unsigned* x) {
    if (blockIdx.x == 40 && threadIdx.x == 0) add_narrow(x, 3);
    if (blockIdx.x == 40 && threadIdx.x == 100) add_wide(x, 2);
}
extern "C" __global__ void of_shared_memory(unsigned* x, int at) {
    __shared__ u64 wide[8];
    if (threadIdx.x < 8) wide[threadIdx.x] = 0;
    __syncthreads();
    if (threadIdx.x == 7) atomicAdd(&wide[2], 1ull);
    if (threadIdx.x == 70) add_narrow((unsigned*)wide, blockIdx.x == 40 ? at : 9);
    __syncthreads();
    if (threadIdx.x == 0) x[blockIdx.x] = wide[2];
}
// right: different bytes; one thread; a barrier in between
extern "C" __global__ void apart(unsigned* x) {
    add_narrow(x, threadIdx.x & 7);
    add_wide(x, 8 + 2 * (threadIdx.x & 7));
}
extern "C" __global__ void of_one_thread(unsigned* x) {
    if (threadIdx.x) return;
    add_narrow(x, 2 * blockIdx.x + 1);
    add_wide(x, 2 * blockIdx.x);
}
extern "C" __global__ void ordered(unsigned* x) {
    if (threadIdx.x == 0) add_narrow(x, 2 * blockIdx.x);
    __syncthreads();
    if (threadIdx.x == 100) add_wide(x, 2 * blockIdx.x);
}
