// A chain of blocks: each block waits until the block before it has released its sum. The descriptor of a sum
// has two words, a status and the value, and a poll reads both. The block `silent` releases nothing.
struct Descriptor { int status, value; };
__device__ Descriptor read(Descriptor* p) { return {atomicAdd(&p->status, 0), atomicAdd(&p->value, 0)}; }
__device__ void release(Descriptor* p, int value, int silent) {
    if (blockIdx.x == silent) return;
    atomicExch(&p->value, value);
    __threadfence();
    atomicExch(&p->status, 1);
}
// a warp polls, and votes whether to go on
__device__ void by_vote(Descriptor* sums, int block, int silent) {
    Descriptor seen = {1, 0};
    if (block > 0) do seen = read(sums + block - 1); while (__any_sync(~0u, seen.status == 0));
    if (threadIdx.x == 0) release(sums + block, seen.value + 1, silent);
}
// one thread polls, and a barrier hands on what it has seen
__device__ void by_barrier(Descriptor* sums, int block, int silent) {
    Descriptor seen = {1, 0};
    if (block > 0) do if (threadIdx.x == 0) seen = read(sums + block - 1); while (__syncthreads_or(seen.status == 0));
    if (threadIdx.x == 0) release(sums + block, seen.value + 1, silent);
}
// the blocks in the order of their indices, or in the order in which they draw a ticket
extern "C" __global__ void votes(Descriptor* sums, int* tickets, int silent) { by_vote(sums, blockIdx.x, silent); }
extern "C" __global__ void barriers(Descriptor* sums, int* tickets, int silent) { by_barrier(sums, blockIdx.x, silent); }
extern "C" __global__ void votes_by_ticket(Descriptor* sums, int* tickets, int silent) {
    int block = threadIdx.x == 0 ? atomicAdd(tickets, 1) : 0;
    by_vote(sums, __shfl_sync(~0u, block, 0), silent);
}
// A word holds a status (1: the sum of a block, 2: the sum of all blocks up to it) and a sum. A thread polls the words
// of the blocks before it through a volatile pointer, back to a complete sum. word 0 is complete.
extern "C" __global__ void look_back(volatile int* words, int* sums, int silent) {
    int block = blockIdx.x, sum = 0;
    if (threadIdx.x > 0 || block == silent) return;
    atomicExch((int*)words + block + 1, (block + 1) << 2 | 1);
    for (int at = block;;) {
        int word = words[at];
        if ((word & 3) == 2) { sum += word >> 2; break; }
        if ((word & 3) == 1) { sum += word >> 2; at--; }
    }
    sums[block] = sum;
    atomicExch((int*)words + block + 1, (sum + block + 1) << 2 | 2);
}
// A thread reads a word after it has waited for another word. Nothing orders the accesses to the first word.
extern "C" __global__ void unordered(volatile int* words, int* sums, int silent) {
    if (threadIdx.x > 0) return;
    if (blockIdx.x == 0) { words[1] = 7; words[0] = 6; return; }
    for (;;) { int seen = words[0], value = words[1]; if ((seen & 3) == 2 && seen > 2) { sums[blockIdx.x] = value; break; } }
}
