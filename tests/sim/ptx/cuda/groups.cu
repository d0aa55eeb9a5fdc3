#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>

namespace cg = cooperative_groups;

// Sums over tiles of 32 threads, then over the block; and the positive numbers side by side.
__device__ int total(cg::thread_block block, int mine, int* sums) {
    auto tile = cg::tiled_partition<32>(block);
    int sum = cg::reduce(tile, mine, cg::plus<int>());
    if (tile.thread_rank() == 0) sums[tile.meta_group_rank()] = sum;  // FOUND race-shared
    return tile.meta_group_size();
}

__device__ void gather(int mine, int* out) {
    if (mine <= 0) return;
    auto group = cg::coalesced_threads();
    int first;
    if (group.thread_rank() == 0) first = atomicAdd(out, group.size());
    out[1 + group.shfl(first, 0) + group.thread_rank()] = mine;
}

extern "C" __global__ void bug(const int* x, int* sum, int* out) {
    __shared__ int sums[8];
    auto block = cg::this_thread_block();
    int tiles = total(block, x[block.thread_rank()], sums);
    if (block.thread_rank() == 0)
        for (int tile = 0; tile < tiles; ++tile) *sum += sums[tile];  // FOUND race-shared
    gather(x[block.thread_rank()], out);
}

extern "C" __global__ void mended(const int* x, int* sum, int* out) {
    __shared__ int sums[8];
    auto block = cg::this_thread_block();
    int tiles = total(block, x[block.thread_rank()], sums);
    block.sync();
    if (block.thread_rank() == 0)
        for (int tile = 0; tile < tiles; ++tile) *sum += sums[tile];
    gather(x[block.thread_rank()], out);
}
