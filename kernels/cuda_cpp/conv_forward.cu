// Convolutional attention forward pass, float32: one block per tile of queries. The scores of a tile of keys are
// computed, convolved and consumed on chip. Algorithm, names and launch are those of kernels/conv/forward.py.
#include "conv_tiles.cuh"

constexpr int CHUNK_WORDS = 32 + GROUP;  // words per row of a chunk of q or k
constexpr int ROWS_AT_A_TIME = 16;       // rows of v in shared memory at a time

// Compute o (B, H, n, d) and log_sum (B, H, n) from q, k, v (B, H, n, d) and w (H, c_q, c_k).
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    conv_forward_kernel(const float* q, const float* k, const float* v, const float* w, float scale, int causal, float* o,
                        float* log_sum, int n, int d, int c_q, int c_k) {
    __shared__ Tile s_tile;
    __shared__ alignas(16) float q_chunk[SIZE][CHUNK_WORDS];
    __shared__ alignas(16) float k_chunk[SIZE][CHUNK_WORDS];
    __shared__ alignas(16) float v_chunk[ROWS_AT_A_TIME][WIDTH];
    __shared__ alignas(16) Taps taps;
    __shared__ float row_factor[SIZE];
    Patch o_patch = {};
    Strip strip;
    float m[TURNS], l[TURNS];
    long long head = head_of_block();
    q += head * n * d, k += head * n * d, v += head * n * d, o += head * n * d, log_sum += head * n;
    int rows = SIZE - (c_q - 1), keys = SIZE - (c_k - 1);  // rows and columns that a tile owns
    int i0 = (gridDim.x - 1 - blockIdx.x) * rows;
    int lane = threadIdx.x % LANES, patch_row = patch_place().row;
    // 1. load the taps, and initialise the state
    clear(s_tile);
    load_taps(taps, w + blockIdx.y * c_q * c_k, c_q, c_k, false);
    for (int turn = 0; turn < TURNS; turn++) m[turn] = MINUS_INFINITY, l[turn] = 0.0f;
    int last_key = causal ? min(n, i0 + rows) : n;
    for (int j0 = 0; j0 < last_key; j0 += keys) {
        // 2. compute S0 with its halo
        products(s_tile, q, k, i0 - (c_q - 1), j0 - (c_k - 1) / 2, scale, causal, n, d, q_chunk, k_chunk);
        __syncthreads();
        // 3. compute T and then P in strips; the LANES threads of a row share its maximum and sum by shuffles
        for (int turn = 0; turn < TURNS; turn++) {
            int i = strip_row(turn);
            float largest = m[turn];
            for (int s = 0; s < STRIPS; s++) {
                int first = strip_column(s), place = (turn * STRIPS + s) * STRIP;
                int last = min(min(keys, n - j0), causal ? i0 + i + 1 - j0 : keys);  // owned and visible columns
                bool inside = i < rows && i0 + i < n;
                if (inside && first < last) convolve_strip(strip, place, s_tile, taps, i, first, c_q, c_k);
                for (int x = 0; x < STRIP; x++) {
                    if (!(inside && first + x < last)) strip[place + x] = MINUS_INFINITY;
                    largest = max(largest, strip[place + x]);
                }
            }
            largest = max(largest, __shfl_xor_sync(0xFFFFFFFF, largest, 1));
            largest = max(largest, __shfl_xor_sync(0xFFFFFFFF, largest, 2));
            float total = 0.0f;
            for (int x = turn * STRIPS * STRIP; x < (turn + 1) * STRIPS * STRIP; x++) {
                strip[x] = weight(strip[x], largest);
                total += strip[x];
            }
            total += __shfl_xor_sync(0xFFFFFFFF, total, 1);
            total += __shfl_xor_sync(0xFFFFFFFF, total, 2);
            float shrink = weight(m[turn], largest);
            m[turn] = largest, l[turn] = l[turn] * shrink + total;
            if (lane == 0) row_factor[i] = shrink;
        }
        __syncthreads();  // all strips are convolved: P may overwrite S0
        for (int turn = 0; turn < TURNS; turn++)
            for (int s = 0; s < STRIPS; s++)
                for (int x = 0; x < STRIP; x++)
                    s_tile[strip_row(turn)][strip_column(s) + x] = strip[(turn * STRIPS + s) * STRIP + x];
        // 4. O = O · shrink + P V
        for (int first = 0; first < min(keys, last_key - j0); first += ROWS_AT_A_TIME) {
            load_rows(v_chunk, v, j0 + first, n, d);
            __syncthreads();
            if (first == 0)
                for (int part = 0; part < PATCH * COLUMNS; part++)
                    o_patch[part] *= row_factor[patch_row + part / COLUMNS * STEP];
            add_weighted_rows(o_patch, s_tile, first, v_chunk);
            __syncthreads();
        }
    }
    // 5. normalise and store
    for (int turn = 0; turn < TURNS; turn++) {
        int i = strip_row(turn);
        if (lane == 0) {
            row_factor[i] = reciprocal(l[turn]);
            if (i < rows && i0 + i < n) log_sum[i0 + i] = m[turn] + logf(l[turn]);
        }
    }
    __syncthreads();
    for (int part = 0; part < PATCH * COLUMNS; part++) o_patch[part] *= row_factor[patch_row + part / COLUMNS * STEP];
    store_rows(o, i0, rows, 1.0f, o_patch, n, d);
}
