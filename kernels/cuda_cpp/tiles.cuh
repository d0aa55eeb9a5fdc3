// Device functions shared by several kernels: online-softmax weights, and copies of tiles (kernels/common/tiles.py).

#define MINUS_INFINITY __int_as_float(0xff800000)

// Return exp(score - maximum), and 0 for a score of -inf even if the maximum is -inf.
__device__ float weight(float score, float maximum) {
    return score == MINUS_INFINITY ? 0.0f : expf(score - maximum);
}

// Return 1 / l, and 0 for l = 0, the sum of a row whose scores are all -inf.
__device__ float reciprocal(float l) { return l == 0.0f ? 0.0f : 1.0f / l; }

// Return the index of this block's head among all B · H, in 64 bits: offsets may exceed 2³¹.
__device__ long long head_of_block() { return blockIdx.z * (long long)gridDim.y + blockIdx.y; }

// Copy rows[first : first + ROWS] to the tile, with 0 outside `rows` (n, d). The threads of the block share the work;
// adjacent threads copy adjacent elements (coalesced). The caller must synchronise the block before the call, because
// other threads may still read the old tile, and again after it.
template <int ROWS, int COLUMNS>
__device__ void load_tile(float (&tile)[ROWS][COLUMNS], const float* rows, int first, int n, int d) {
    for (int element = threadIdx.x; element < ROWS * COLUMNS; element += blockDim.x) {
        int i = element / COLUMNS, c = element % COLUMNS;
        tile[i][c] = first + i < n && c < d ? rows[(first + i) * d + c] : 0.0f;
    }
}
