#include <cooperative_groups.h>

namespace cg = cooperative_groups;

// Ten rounds of smoothing a ring: each thread takes the mean of its neighbours, in other blocks too.
extern "C" __global__ void bug(float* x, float* y) {
    cg::grid_group grid = cg::this_grid();
    int i = grid.thread_rank(), n = grid.size();
    for (int round = 0; round < 10; ++round) {
        y[i] = 0.5f * (x[(i + 1) % n] + x[(i + n - 1) % n]);  // FOUND race-global
        grid.sync();
        x[i] = y[i];  // FOUND race-global
    }
}

extern "C" __global__ void mended(float* x, float* y) {
    cg::grid_group grid = cg::this_grid();
    int i = grid.thread_rank(), n = grid.size();
    for (int round = 0; round < 10; ++round) {
        y[i] = 0.5f * (x[(i + 1) % n] + x[(i + n - 1) % n]);
        grid.sync();
        x[i] = y[i];
        grid.sync();
    }
}
