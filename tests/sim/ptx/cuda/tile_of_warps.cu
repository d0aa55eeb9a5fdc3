// Reversal within tiles of two warps: each thread reads what a thread of the other warp has written.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
namespace cg = cooperative_groups;

extern "C" __global__ void bug(const int* x, int* out) {
    __shared__ cg::block_tile_memory<128> memory;
    __shared__ int tile[128];
    auto pair = cg::tiled_partition<64>(cg::this_thread_block(memory));
    int t = threadIdx.x;
    tile[t] = x[t];  // FOUND race-shared
    out[t] = tile[t ^ 63] + pair.size();  // FOUND race-shared
}

extern "C" __global__ void mended(const int* x, int* out) {
    __shared__ cg::block_tile_memory<128> memory;
    __shared__ int tile[128];
    auto pair = cg::tiled_partition<64>(cg::this_thread_block(memory));
    int t = threadIdx.x;
    tile[t] = x[t];
    pair.sync();
    out[t] = cg::reduce(pair, x[t], cg::plus<int>()) + tile[t ^ 63];
}
