// Convolutional attention backward pass, float32: one kernel owns tiles of queries and computes dQ and dW, the other
// owns tiles of keys and computes dK and dV. Algorithm, names and launches are those of kernels/conv/backward.py.
#include "conv_tiles.cuh"

constexpr int CHUNK_WORDS = 8 + GROUP;  // words per row of a chunk: larger chunks would exceed 48 KiB of shared memory
constexpr int ROWS_AT_A_TIME = WIDTH > 32 ? 512 / WIDTH : 16;

// Compute P in this thread's strips and dT in g_tile, from S0 in s_tile and dO·vᵀ in g_tile; 0 for masked elements and
// beyond the halo of dT. i0, j0: the query and the key at index (0, 0) of dT. log_sum, delta: (n), L and D.
__device__ void probabilities_and_gradients(Strip& strip, const Tile& s_tile, Tile& g_tile, const Taps& taps, int i0,
                                            int j0, const float* log_sum, const float* delta, int n, bool causal,
                                            int c_q, int c_k) {
    int rows = SIZE - (c_q - 1), columns = SIZE - (c_k - 1);
    for (int turn = 0; turn < TURNS; turn++) {
        int i = strip_row(turn), query = i0 + i;
        bool inside = i < rows && query < n;
        float l = inside ? log_sum[query] : 0.0f, mean = inside ? delta[query] : 0.0f;
        int last = min(columns, min(n, causal ? query + 1 : n) - j0);
        for (int s = 0; s < STRIPS; s++) {
            int first = strip_column(s), place = (turn * STRIPS + s) * STRIP;
            if (inside && first < last && first + STRIP > -j0)
                convolve_strip(strip, place, s_tile, taps, i, first, c_q, c_k);
            for (int x = 0; x < STRIP; x++) {
                int j = first + x;
                bool counts = inside && j < last && j0 + j >= 0;
                float p = counts ? expf(strip[place + x] - l) : 0.0f;
                strip[place + x] = p;
                g_tile[i][j] = counts ? p * (g_tile[i][j] - mean) : 0.0f;
            }
        }
    }
}

// Compute dS in this thread's strips from dT in g_tile; 0 for scores that are masked, outside the sequence, or not
// owned.
__device__ void score_gradients(Strip& strip, const Tile& g_tile, const Taps& flipped, int i0, int j0, int rows,
                                int columns, int n, bool causal, int c_q, int c_k) {
    for (int turn = 0; turn < TURNS; turn++) {
        int i = strip_row(turn), last = min(columns, min(n, causal ? i0 + i + 1 : n) - j0);
        bool inside = i < rows && i0 + i < n;
        for (int s = 0; s < STRIPS; s++) {
            int first = strip_column(s), place = (turn * STRIPS + s) * STRIP;
            if (inside && first < last) convolve_strip(strip, place, g_tile, flipped, i, first, c_q, c_k);
            for (int x = 0; x < STRIP; x++)
                if (!(inside && first + x < last)) strip[place + x] = 0.0f;
        }
    }
}

// Store this thread's strips in the tile, with 0 outside [0, rows) × [first_column, last_column).
__device__ void store_strips(Tile& tile, const Strip& strip, int rows, int first_column, int last_column) {
    for (int turn = 0; turn < TURNS; turn++)
        for (int s = 0; s < STRIPS; s++)
            for (int x = 0; x < STRIP; x++) {
                int i = strip_row(turn), j = strip_column(s) + x;
                bool owned = i < rows && first_column <= j && j < last_column;
                tile[i][j] = owned ? strip[(turn * STRIPS + s) * STRIP + x] : 0.0f;
            }
}

// Add Σ_ij dT[i, j] · S0[i + a, j + b + x] to sums[x], over the rows part, part + parts, … < rows and the columns
// [first, last).
__device__ void add_tap_gradients(float (&sums)[STRIP], const Tile& g_tile, const Tile& s_tile, int a, int b, int part,
                                  int parts, int rows, int first, int last) {
    float window[STRIP + GROUP];
    for (int i = part; i < rows; i += parts) {
        for (int x = 0; x < STRIP; x++) window[x] = s_tile[i + a][first + b + x];
        for (int j = first; j < last; j += GROUP) {
            for (int x = 0; x < GROUP; x++) window[STRIP + x] = s_tile[i + a][j + b + STRIP + x];
            for (int y = 0; y < GROUP; y++) {
                float d_t = j + y < last ? g_tile[i][j + y] : 0.0f;
                for (int x = 0; x < STRIP; x++) sums[x] += d_t * window[x + y];
            }
            for (int x = 0; x < STRIP; x++) window[x] = window[x + GROUP];
        }
    }
}

// Store dQ in d_q and add dW to d_w; q, k, v, d_o (B, H, n, d), w (H, c_q, c_k), log_sum, delta (B, H, n). d_w:
// (parts, H, c_q, c_k); block b of a head adds to d_w[b % parts].
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    conv_backward_queries_kernel(const float* q, const float* k, const float* v, const float* w, const float* log_sum,
                                 const float* delta, const float* d_o, float scale, int causal, float* d_q, float* d_w,
                                 int w_parts, int n, int d, int c_q, int c_k) {
    __shared__ Tile s_tile, g_tile;
    __shared__ alignas(16) float a_chunk[SIZE][CHUNK_WORDS];
    __shared__ alignas(16) float b_chunk[SIZE][CHUNK_WORDS];
    __shared__ alignas(16) float rows_chunk[ROWS_AT_A_TIME][WIDTH];
    __shared__ alignas(16) Taps taps, flipped;
    Patch d_q_patch = {};
    Strip strip;
    float tap_sums[STRIP] = {};
    long long head = head_of_block();
    q += head * n * d, k += head * n * d, v += head * n * d, d_o += head * n * d, d_q += head * n * d;
    log_sum += head * n, delta += head * n, w += blockIdx.y * c_q * c_k;
    int rows = SIZE - 2 * (c_q - 1), columns = SIZE - 2 * (c_k - 1), right = c_k - 1 - (c_k - 1) / 2;
    int i0 = (gridDim.x - 1 - blockIdx.x) * rows;
    // 1. load the taps; this thread sums the gradient of STRIP taps of one row, over every parts-th row of the tile
    clear(s_tile);
    clear(g_tile);
    load_taps(taps, w, c_q, c_k, false);
    load_taps(flipped, w, c_q, c_k, true);
    int strips_of_taps = (c_k + STRIP - 1) / STRIP, parts = THREADS / (c_q * strips_of_taps);
    int mine = threadIdx.x / parts, part = threadIdx.x % parts;
    int a = mine / strips_of_taps, b = mine % strips_of_taps * STRIP;
    int last_key = causal ? min(n, i0 + rows) : n;
    for (int j0 = 0; j0 < last_key; j0 += columns) {
        // 2. compute S0 and dO·vᵀ, and from them dT
        products(s_tile, q, k, i0 - (c_q - 1), j0 - (c_k - 1), scale, causal, n, d, a_chunk, b_chunk);
        products(g_tile, d_o, v, i0, j0 - right, 1.0f, causal, n, d, a_chunk, b_chunk);
        __syncthreads();
        probabilities_and_gradients(strip, s_tile, g_tile, taps, i0, j0 - right, log_sum, delta, n, causal, c_q, c_k);
        __syncthreads();
        // 3. compute dW and dS, and store dS over S0
        if (a < c_q)
            add_tap_gradients(tap_sums, g_tile, s_tile, a, b, part, parts, min(rows, n - i0), right,
                              right + min(columns, n - j0));
        score_gradients(strip, g_tile, flipped, i0, j0, rows, columns, n, causal, c_q, c_k);
        __syncthreads();
        store_strips(s_tile, strip, rows, 0, columns);
        // 4. dQ += dS k
        for (int first = 0; first < min(columns, last_key - j0); first += ROWS_AT_A_TIME) {
            load_rows(rows_chunk, k, j0 + first, n, d);
            __syncthreads();
            add_weighted_rows(d_q_patch, s_tile, first, rows_chunk);
            __syncthreads();
        }
    }
    store_rows(d_q, i0, rows, scale, d_q_patch, n, d);
    // 5. add the partial sums of each tap in a fixed order, then add one total per tap to d_w
    for (int x = 0; x < STRIP; x++) {
        if (a < c_q) s_tile[threadIdx.x / SIZE][threadIdx.x % SIZE] = tap_sums[x];
        __syncthreads();
        if (a < c_q && part == 0 && b + x < c_k) {
            float total = 0.0f;
            for (int other = mine * parts; other < (mine + 1) * parts; other++) total += s_tile[other / SIZE][other % SIZE];
            int block = blockIdx.z * gridDim.x + blockIdx.x;
            atomicAdd(&d_w[((block % w_parts * gridDim.y + blockIdx.y) * c_q + a) * c_k + b + x], total);
        }
        __syncthreads();
    }
}

// Store dK in d_k and dV in d_v; q, k, v, d_o (B, H, n, d), w (H, c_q, c_k), log_sum, delta (B, H, n).
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    conv_backward_keys_kernel(const float* q, const float* k, const float* v, const float* w, const float* log_sum,
                              const float* delta, const float* d_o, float scale, int causal, float* d_k, float* d_v,
                              int n, int d, int c_q, int c_k) {
    __shared__ Tile s_tile, g_tile;
    __shared__ alignas(16) float a_chunk[SIZE][CHUNK_WORDS];
    __shared__ alignas(16) float b_chunk[SIZE][CHUNK_WORDS];
    __shared__ alignas(16) float rows_chunk[ROWS_AT_A_TIME][WIDTH];
    __shared__ alignas(16) Taps taps, flipped;
    Patch d_k_patch = {}, d_v_patch = {};
    Strip strip;
    long long head = head_of_block();
    q += head * n * d, k += head * n * d, v += head * n * d, d_o += head * n * d, d_k += head * n * d, d_v += head * n * d;
    log_sum += head * n, delta += head * n, w += blockIdx.y * c_q * c_k;
    int rows = SIZE - 2 * (c_q - 1), columns = SIZE - 2 * (c_k - 1), right = c_k - 1 - (c_k - 1) / 2;
    int j0 = blockIdx.x * columns;
    // 1. load the taps
    clear(s_tile);
    clear(g_tile);
    load_taps(taps, w, c_q, c_k, false);
    load_taps(flipped, w, c_q, c_k, true);
    // 2. loop over the tiles of rows in which some query sees a key of this block
    for (int i0 = causal ? j0 / rows * rows : 0; i0 < n; i0 += rows) {
        products(s_tile, q, k, i0 - (c_q - 1), j0 - (c_k - 1), scale, causal, n, d, a_chunk, b_chunk);
        products(g_tile, d_o, v, i0, j0 - right, 1.0f, causal, n, d, a_chunk, b_chunk);
        __syncthreads();
        probabilities_and_gradients(strip, s_tile, g_tile, taps, i0, j0 - right, log_sum, delta, n, causal, c_q, c_k);
        __syncthreads();
        // 3. store P over S0, and dS over dT
        store_strips(s_tile, strip, rows, right, right + columns);
        score_gradients(strip, g_tile, flipped, i0, j0, rows, columns, n, causal, c_q, c_k);
        __syncthreads();
        store_strips(g_tile, strip, rows, 0, columns);
        // 4. dV += Pᵀ dO and dK += dSᵀ q
        for (int first = 0; first < min(rows, n - i0); first += ROWS_AT_A_TIME) {
            load_rows(rows_chunk, d_o, i0 + first, n, d);
            __syncthreads();
            add_weighted_columns(d_v_patch, s_tile, first, right, rows_chunk);
            __syncthreads();
            load_rows(rows_chunk, q, i0 + first, n, d);
            __syncthreads();
            add_weighted_columns(d_k_patch, g_tile, first, 0, rows_chunk);
            __syncthreads();
        }
    }
    store_rows(d_k, j0, columns, scale, d_k_patch, n, d);
    store_rows(d_v, j0, columns, 1.0f, d_v_patch, n, d);
}
