// Convolutional attention for one new token, float32: the keys are split among warps, and a second kernel merges the
// results of the blocks. Algorithm, names and launches are those of kernels/conv/decode.py. D, the head size, and
// SLOTS, the number of window rows rounded up to 4, 8, 12 or 16, are macros: -DD=64 -DSLOTS=8.
#include "tiles.cuh"

constexpr int LANES = 32, WARPS = 4, ALL_LANES = 0xFFFFFFFF;
constexpr int PITCH = LANES + 1;  // words per row of a piece of K: a column lies in 32 different banks
constexpr int RING = 2 * LANES;   // scores kept per window row; a power of two, so that & wraps the index
constexpr int MERGING_WARPS = 8, MOST_TAPS = 15;
constexpr int WIDTH = (D + LANES - 1) / LANES * LANES;

// Return the maximum, or the sum, of x over the 32 lanes of the warp, in every lane.
__device__ float largest_of_warp(float x) {
    for (int bit = 1; bit < LANES; bit *= 2) x = max(x, __shfl_xor_sync(ALL_LANES, x, bit));
    return x;
}
__device__ float sum_of_warp(float x) {
    for (int bit = 1; bit < LANES; bit *= 2) x += __shfl_xor_sync(ALL_LANES, x, bit);
    return x;
}

// Load the window and the taps, transposed: q_tile[c][a] = scale · q_a[c], and taps[b][a] = w[a, b], with 0 where there
// is no query or tap. q: (rows, D), whose last row is the window's last; w: (c_q, c_k).
__device__ void load_window(float (&q_tile)[WIDTH][SLOTS], float (&taps)[MOST_TAPS][SLOTS], const float* q,
                            const float* w, float scale, int rows, int c_q, int c_k) {
    for (int element = threadIdx.x; element < SLOTS * WIDTH; element += WARPS * LANES) {
        int a = element / WIDTH, c = element % WIDTH, i = a - c_q + rows;
        q_tile[c][a] = a < c_q && i >= 0 && c < D ? scale * q[i * D + c] : 0.0f;
    }
    for (int element = threadIdx.x; element < SLOTS * c_k; element += WARPS * LANES) {
        int a = element / c_k, b = element % c_k;
        taps[b][a] = a < c_q ? w[a * c_k + b] : 0.0f;
    }
}

// Load held[r] = element c of row first + r, with 0 outside [low, high). Each lane passes its own column c.
__device__ void load_piece(float (&held)[LANES], const float* rows, int first, int low, int high, int c) {
    rows += (long long)first * D + min(c, D - 1);
    if (low <= first && first + LANES <= high)
        for (int r = 0; r < LANES; r++) held[r] = rows[r * D];
    else
        for (int r = 0; r < LANES; r++) held[r] = low <= first + r && first + r < high ? rows[r * D] : 0.0f;
}

// Merge the states of the block's warps, `ends` (m and l) and `outputs` (o), into part (D + 2): o, m and l.
__device__ void merge_warps(float* part, const float (&ends)[WARPS][2], const float (&outputs)[WARPS][WIDTH]) {
    float m = MINUS_INFINITY, l = 0.0f, total = 0.0f;
    for (int warp = 0; warp < WARPS; warp++) m = max(m, ends[warp][0]);
    for (int warp = 0; warp < WARPS; warp++) {
        float factor = weight(ends[warp][0], m);
        l += factor * ends[warp][1];
        total += factor * outputs[warp][min(threadIdx.x, D - 1)];
    }
    if (threadIdx.x < D) part[threadIdx.x] = total;
    if (threadIdx.x == 0) part[D] = m, part[D + 1] = l;
}

// Store o, m and l of each block in parts (B, H, splits, D + 2). q: (B, H, rows, D), the window; key j of head h of
// batch b is at k[b · k_batch + h · k_head + j · D], and likewise in v; w: (H, c_q, c_k); n: keys, length: keys per warp.
extern "C" __global__ void __launch_bounds__(WARPS* LANES, 4)
    conv_decode_split_kernel(const float* q, const float* k, long long k_batch, long long k_head, const float* v,
                             long long v_batch, long long v_head, const float* w, float scale, int rows, int n, int c_q,
                             int c_k, int length, float* parts) {
    __shared__ float pieces[WARPS][LANES][PITCH];
    __shared__ float rings[WARPS][SLOTS][RING];
    __shared__ float outputs[WARPS][WIDTH];
    __shared__ alignas(16) float q_tile[WIDTH][SLOTS];
    __shared__ alignas(16) float taps[MOST_TAPS][SLOTS];
    __shared__ alignas(16) float shares[WARPS][LANES];
    __shared__ float ends[WARPS][2];
    float held[LANES], scores[SLOTS];
    int lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    k += blockIdx.z * k_batch + blockIdx.y * k_head;
    v += blockIdx.z * v_batch + blockIdx.y * v_head;
    auto& piece = pieces[warp];
    auto& ring = rings[warp];
    auto& share = shares[warp];
    auto& o = outputs[warp];
    // 1. load the window and the taps, and clear the ring buffers
    load_window(q_tile, taps, q + head_of_block() * rows * D, w + blockIdx.y * c_q * c_k, scale, rows, c_q, c_k);
    for (int c = lane; c < WIDTH; c += LANES) o[c] = 0.0f;
    for (int a = 0; a < SLOTS; a++) ring[a][lane] = ring[a][LANES + lane] = 0.0f;
    float m = MINUS_INFINITY, l = 0.0f;
    __syncthreads();  // the window and the taps are loaded
    // 2. this warp owns the keys [start, end), and needs the scores of [low, high)
    int start = (blockIdx.x * WARPS + warp) * length, end = min(n, start + length);
    int right = c_k / 2, low = start - (c_k - 1) / 2, high = end + right;
    int first_key = max(0, low), key_end = min(n, high);
    if (start < end) load_piece(held, k, low, first_key, key_end, lane);
    for (int first = low; first < (start < end ? high : low); first += LANES) {
        // 3. scores of one key per lane with each row of the window; the score of key j completes T of key j - right
        for (int a = 0; a < SLOTS; a++) scores[a] = 0.0f;
        for (int c0 = 0; c0 < WIDTH; c0 += LANES) {
            for (int r = 0; r < LANES; r++) piece[r][lane] = held[r];
            __syncwarp();  // the piece is stored
            if (c0 + LANES < WIDTH)
                load_piece(held, k, first, first_key, key_end, c0 + LANES + lane);
            else
                load_piece(held, v, first - right, start, end, lane);
            for (int c = 0; c < LANES; c++)
                for (int a = 0; a < SLOTS; a++) scores[a] += q_tile[c0 + c][a] * piece[lane][c];
            __syncwarp();  // all lanes have read the piece
        }
        // 4. mask the scores, then convolve them
        int j = first + lane, place = first - low + lane;
        for (int a = 0; a < SLOTS; a++) ring[a][place & RING - 1] = 0 <= j && j <= n - c_q + a ? scores[a] : 0.0f;
        __syncwarp();  // the scores are stored
        float t = 0.0f;
        for (int b = 0; b < c_k; b++)
            for (int a = 0; a < SLOTS; a++) t += taps[b][a] * ring[a][place - c_k + 1 + b & RING - 1];
        // 5. update the softmax, and accumulate the rows of V
        if (!(start <= j - right && j - right < end)) t = MINUS_INFINITY;
        float larger = max(m, largest_of_warp(t)), shrink = weight(m, larger), p = weight(t, larger);
        m = larger, l = shrink * l + p;
        share[lane] = p;
        __syncwarp();  // all lanes have stored their weights
        for (int c0 = 0; c0 < WIDTH; c0 += LANES) {
            float total = shrink * o[c0 + lane];
            for (int r = 0; r < LANES; r++) total += share[r] * held[r];
            o[c0 + lane] = total;
            if (c0 + LANES < WIDTH)
                load_piece(held, v, first - right, start, end, c0 + LANES + lane);
            else
                load_piece(held, k, first + LANES, first_key, key_end, lane);
        }
    }
    // 6. merge the states of the block's warps
    l = sum_of_warp(l);
    if (lane == 0) ends[warp][0] = m, ends[warp][1] = l;
    __syncthreads();  // all warps have stored their states
    merge_warps(parts + (head_of_block() * gridDim.x + blockIdx.x) * (D + 2), ends, outputs);
}

// Merge parts (B, H, splits, D + 2) into o (B, H, 1, D) and log_sum (B, H, 1). Each warp adds every MERGING_WARPS-th
// split, and each lane every 32nd element. grid: (H, B).
extern "C" __global__ void conv_decode_merge_kernel(const float* parts, float* o, float* log_sum, int splits) {
    __shared__ float sums[MERGING_WARPS][WIDTH];
    __shared__ float totals[MERGING_WARPS];
    int head = blockIdx.y * gridDim.x + blockIdx.x, lane = threadIdx.x % LANES, warp = threadIdx.x / LANES;
    parts += (long long)head * splits * (D + 2);
    // 1. every warp computes the maximum m
    float m = MINUS_INFINITY;
    for (int s = lane; s < splits; s += LANES) m = max(m, parts[s * (D + 2) + D]);
    m = largest_of_warp(m);
    // 2. add this warp's splits
    float l = 0.0f;
    for (int s = warp; s < splits; s += MERGING_WARPS)
        l += weight(parts[s * (D + 2) + D], m) * parts[s * (D + 2) + D + 1];
    if (lane == 0) totals[warp] = l;
    for (int c = lane; c < D; c += LANES) {
        float total = 0.0f;
        for (int s = warp; s < splits; s += MERGING_WARPS)
            total += weight(parts[s * (D + 2) + D], m) * parts[s * (D + 2) + c];
        sums[warp][c] = total;
    }
    __syncthreads();  // all warps have stored their sums
    // 3. add the sums of the warps, and normalise
    if (threadIdx.x < D) {
        float l = 0.0f, total = 0.0f;
        for (int other = 0; other < MERGING_WARPS; other++) l += totals[other], total += sums[other][threadIdx.x];
        o[(long long)head * D + threadIdx.x] = total * reciprocal(l);
        if (threadIdx.x == 0) log_sum[head] = m + logf(l);
    }
}
