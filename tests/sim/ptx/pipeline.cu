// Tiles that cuda::pipeline brings in two stages: the bug reads a tile after it has released the stage.
#include <cooperative_groups.h>
#include <cuda/pipeline>

namespace cg = cooperative_groups;

template <bool early>
__device__ void run(const float *x, float *y, int tiles) {
    __shared__ float tile[2][64];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    auto block = cg::this_thread_block();
    auto pipeline = cuda::make_pipeline(block, &state);
    float sum = 0;
    for (int used = 0, sent = 0; used < tiles; used++) {
        for (; sent < tiles && sent < used + 2; sent++) {
            pipeline.producer_acquire();
            cuda::memcpy_async(block, tile[sent % 2], x + 64 * sent, sizeof(float) * 64, pipeline);
            pipeline.producer_commit();
        }
        pipeline.consumer_wait();
        if (early) pipeline.consumer_release();
        sum += tile[used % 2][63 - threadIdx.x] * (used + 1);
        if (!early) pipeline.consumer_release();
    }
    y[64 * blockIdx.x + threadIdx.x] = sum;
}

extern "C" __global__ void bug(const float *x, float *y, int tiles) { run<true>(x, y, tiles); }
extern "C" __global__ void mended(const float *x, float *y, int tiles) { run<false>(x, y, tiles); }
