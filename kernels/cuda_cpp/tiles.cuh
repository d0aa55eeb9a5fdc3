// What several kernels share: how (m, l, o) changes, and how a tile comes into shared memory. As in kernels/common/tiles.py.

#define MINUS_INFINITY __int_as_float(0xff800000)

// exp(score - maximum); 0 for a score of -inf, even if the maximum is -inf too.
__device__ float weight(float score, float maximum) {
    return score == MINUS_INFINITY ? 0.0f : expf(score - maximum);
}

// 1 / l; 0 for l = 0, the sum of a row all of whose scores are -inf.
__device__ float reciprocal(float l) { return l == 0.0f ? 0.0f : 1.0f / l; }

// The number of this block's head among all B · H; 64 bits, as what multiplies it may pass 2³¹.
__device__ long long head_of_block() { return blockIdx.z * (long long)gridDim.y + blockIdx.y; }

// tile = rows[first : first + ROWS], with 0 for what lies outside `rows` (n, d); the threads of the block share the
// work. Neighbouring threads copy neighbouring numbers. The caller puts a barrier before (others may still read the
// old tile) and after.
template <int ROWS, int COLUMNS>
__device__ void load_tile(float (&tile)[ROWS][COLUMNS], const float* rows, int first, int n, int d) {
    for (int element = threadIdx.x; element < ROWS * COLUMNS; element += blockDim.x) {
        int i = element / COLUMNS, c = element % COLUMNS;
        tile[i][c] = first + i < n && c < d ? rows[(first + i) * d + c] : 0.0f;
    }
}
