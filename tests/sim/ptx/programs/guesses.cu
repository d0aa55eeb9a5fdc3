// The position at which a thread takes an item of a queue is a guess. A compare-and-swap confirms it.
typedef unsigned int u32;
extern "C" __global__ void take(u32* ends, const int* items, int* sum, int n) {
    for (;;) {
        u32 at = *(volatile u32*)&ends[1];
        if (items[at % n] == 0) return;
        if (atomicCAS(&ends[1], at, at + 1) == at) atomicAdd(sum, items[at]);
    }
}
// A ring of cells with sequence numbers (Vyukov): a failed swap returns the next guess.
extern "C" __global__ void push(u32* ends, u32* sequences, int* items, int n) {
    u32 at = *(volatile u32*)ends;
    for (;;) {
        u32 here = *(volatile u32*)&sequences[at % n];
        if (here == at) {
            u32 was = atomicCAS(ends, at, at + 1);
            if (was == at) break;
            at = was;
        } else at = *(volatile u32*)ends;
    }
    items[at % n] = threadIdx.x + 1;
}
// Nothing confirms the guess.
extern "C" __global__ void add(u32* ends, const int* items, int* sum, int n) {
    u32 at = *(volatile u32*)&ends[1];
    atomicAdd(sum, items[at % n]);
    atomicAdd(&ends[1], 1);
}
// The swap expects the value of another element.
extern "C" __global__ void other(u32* ends, const int* items, int* sum, int n) {
    u32 at = *(volatile u32*)&ends[1];
    if (atomicCAS(&ends[0], at, at + 1) == at) atomicAdd(sum, items[at % n]);
    atomicAdd(&ends[1], 1);
}
