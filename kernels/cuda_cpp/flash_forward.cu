// Flash attention forward pass, float32: one block per tile of queries, one thread per query, with the keys streamed
// tile by tile through shared memory. Algorithm, names and launch are those of kernels/flash/forward.py. WIDTH, the row
// width, is a macro: -DWIDTH=64.
#include "tiles.cuh"

constexpr int ROWS = 64, KEYS = 32;  // queries per block, one per thread; keys per tile

// Compute attention o (B, H, n, d) of q (B, H, n, d), k and v (B, H, keys, d), and its log-sum-exp log_sum (B, H, n).
extern "C" __global__ void flash_forward_kernel(const float* q, const float* k, const float* v, float scale, int causal,
                                                float* o, float* log_sum, int n, int keys, int d) {
    __shared__ alignas(16) float k_tile[KEYS][WIDTH];  // aligned for 16-byte loads
    __shared__ alignas(16) float v_tile[KEYS][WIDTH];
    float q_row[WIDTH], o_row[WIDTH];
    long long head = head_of_block();
    int i = blockIdx.x * ROWS + threadIdx.x;
    q += head * n * d, o += head * n * d, log_sum += head * n;
    k += head * keys * d, v += head * keys * d;
    // 1. load this thread's query, and initialise the state
    for (int c = 0; c < WIDTH; c++) {
        q_row[c] = i < n && c < d ? scale * q[i * d + c] : 0.0f;
        o_row[c] = 0.0f;
    }
    float m = MINUS_INFINITY, l = 0.0f;
    // 2. loop over every tile with a key that some query of the block sees; threads without a query help to load
    int seen = causal ? min(keys, i + 1) : keys;
    int seen_by_block = causal ? min(keys, int(blockIdx.x + 1) * ROWS) : keys;
    for (int first = 0; first < seen_by_block; first += KEYS) {
        load_tile(k_tile, k, first, keys, d);
        load_tile(v_tile, v, first, keys, d);
        __syncthreads();  // the tiles are loaded
        for (int j = 0; j < min(KEYS, seen - first); j++) {
            float score = 0.0f;
            for (int c = 0; c < WIDTH; c++) score += q_row[c] * k_tile[j][c];
            if (score > m) {  // a new maximum is rare, so few iterations rescale
                float shrink = weight(m, score);
                l *= shrink;
                for (int c = 0; c < WIDTH; c++) o_row[c] *= shrink;
                m = score;
            }
            float p = weight(score, m);
            l += p;
            for (int c = 0; c < WIDTH; c++) o_row[c] += p * v_tile[j][c];
        }
        __syncthreads();  // all threads have read the tiles
    }
    // 3. normalise and store
    if (i < n) {
        float share = reciprocal(l);
        for (int c = 0; c < WIDTH; c++)
            if (c < d) o[i * d + c] = o_row[c] * share;
        log_sum[i] = m + logf(l);
    }
}
