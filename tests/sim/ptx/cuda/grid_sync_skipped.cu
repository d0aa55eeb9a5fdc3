#include <cooperative_groups.h>

namespace cg = cooperative_groups;

// Sums in each block, and then block 0 adds them up. A block without work leaves early.
extern "C" __global__ void bug(int n, const int* x, int* sums) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (blockIdx.x * blockDim.x >= n) return;
    if (i < n) atomicAdd(&sums[1 + blockIdx.x], x[i]);
    cg::this_grid().sync();  // FOUND deadlock
    if (i == 0)
        for (int block = 0; block < gridDim.x; ++block) sums[0] += sums[1 + block];
}

extern "C" __global__ void mended(int n, const int* x, int* sums) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) atomicAdd(&sums[1 + blockIdx.x], x[i]);
    cg::this_grid().sync();
    if (i == 0)
        for (int block = 0; block < gridDim.x; ++block) sums[0] += sums[1 + block];
}
