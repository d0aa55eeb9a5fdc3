"""CUDA C++ sources for lesson 22's exercises: headers for the learner's code, kernels that call it, and the
four buggy kernels of the bug hunt. Each bug also occurred in published code."""

INFINITY = """
#define MINUS_INFINITY __int_as_float(0xff800000)
"""

# exercise 22.3: the kernel files #include this text as tiles.cuh
LOAD_TILE = """
__device__ void load_tile(float* tile, const float* array, int start, int length, int size) {
    for (int e = threadIdx.x; e < length; e += blockDim.x)
        tile[e] = start + e < size ? array[start + e] : 0.0f;
}
"""
VISIT = """
// Process the first `keys` keys of the tile for row `row` of the Q tile:
// update that row of the O tile, m and l.
__device__ void visit(int row, const float* q_tile, const float* k_tile,
                      const float* v_tile, float* o_tile, int keys, int d, float scale,
                      float& m, float& l) {
    for (int j = 0; j < keys; j++) {
        float score = 0.0f;
        for (int c = 0; c < d; c++)
            score += q_tile[row * d + c] * k_tile[j * d + c];
        score *= scale;
        float larger = fmaxf(m, score);
        float shrink = expf(m - larger), p = expf(score - larger);
        l = l * shrink + p;
        for (int c = 0; c < d; c++)
            o_tile[row * d + c] = o_tile[row * d + c] * shrink + p * v_tile[j * d + c];
        m = larger;
    }
}
"""

# exercise 22.4: the kernel files #include this text as rows.cuh
ROWS = """
#define MINUS_INFINITY __int_as_float(0xff800000)

// exp(score - maximum), and 0 for a score of minus infinity
__device__ float weight(float score, float maximum) {
    return score == MINUS_INFINITY ? 0.0f : expf(score - maximum);
}

// Return the largest value of the WIDTH lanes of a row, in all of them.
// mask: a bit for each lane of the row.
__device__ float row_max(float value, unsigned mask) {
    #pragma unroll
    for (int step = WIDTH / 2; step > 0; step /= 2)
        value = fmaxf(value, __shfl_xor_sync(mask, value, step));
    return value;
}
"""

# 22.1
EXPRESSIONS = """
extern "C" __global__ void expressions(int i, int n, int k, float x, const float* a, float* out) {
    const float* row = a + 3;
    out[0] = i / 2;
    out[1] = i % n;
    out[2] = i >> 1;
    out[3] = 1 / n * x;
    out[4] = int(x / -3.0f);
    out[5] = threadIdx.x - 1 < 0;
    out[6] = 0 <= k < n;
    out[7] = row[2];
}
"""

# Kernels that call the learner's device functions, appended to the learner's text ---------------------------

LOADS = """
extern "C" __global__ void load_and_copy(const float* array, int start, int length, int size, float* out) {
    extern __shared__ float tile[];
    load_tile(tile, array, start + blockIdx.x * length, length, size);
    __syncthreads();
    for (int e = threadIdx.x; e < length; e += blockDim.x) out[blockIdx.x * length + e] = tile[e];
}
"""
ABSORBS = """
extern "C" __global__ void every_row(const float* t, const float* m, const float* l, const int* tiles,
                                     int rows, float* new_m, float* new_l, float* shrinks, float* p) {
    int e = blockIdx.x * blockDim.x + threadIdx.x, row = e / WIDTH;
    if (row < rows) {
        float my_m = m[row], my_l = l[row];
        for (int tile = 0; tile < tiles[row]; tile++) {
            bool nothing = my_m == __int_as_float(0xff800000);
            float shrink = __int_as_float(0x7fc00000);
            p[tile * rows * WIDTH + e] = absorb(t[tile * rows * WIDTH + e], my_m, my_l, shrink);
            // what was nothing before stays so: any finite factor will do
            shrinks[tile * rows * WIDTH + e] = nothing && shrink - shrink == 0.0f ? 0.0f : shrink;
        }
        new_m[e] = my_m;
        new_l[e] = my_l;
    }
    __syncthreads();  // here the rows wait that have no tile left, or no query
}
"""

# The bug hunt -----------------------------------------------------------------------------------------------

HUNT = {
    "a": """
// out[c] = sum over j < n of softmax(s)[j] * v[j][c], v (n, d).
// n and d are 64 at most; one block of 64 threads.
extern "C" __global__ void weigh(const float* s, const float* v, float* out,
                                 int n, int d) {
    __shared__ float p[64];
    int t = threadIdx.x;
    if (t < n) p[t] = expf(s[t]);  // the scores are small
    __syncthreads();
    float l = 0.0f, o = 0.0f;
    for (int j = 0; j < 64; j++) {
        l += p[j];
        if (j < n && t < d) o += p[j] * v[j * d + t];
    }
    if (t < d) out[t] = o / l;
}
""",
    "b": """
// o[i] = shrink * o[i] + x[i - 1] + x[i], and x = 0 outside.
// A block of 32 loads 32 rows and owns the last 31; its row 0 is the halo.
extern "C" __global__ void add_rows(const float* x, float* o, float shrink,
                                    int n) {
    __shared__ float x_tile[32], o_tile[32];
    int t = threadIdx.x, i = int(blockIdx.x) * 31 + t - 1;
    bool inside = 0 <= i && i < n;
    x_tile[t] = inside ? x[i] : 0.0f;
    o_tile[t] = inside ? o[i] : 0.0f;
    __syncthreads();
    if (inside && t > 0) o[i] = shrink * o_tile[t] + x_tile[t - 1] + x_tile[t];
}
""",
    "c": """
// out[j] = row j of k times row j of v, both (n, d).
// A block of 32 computes 8 rows, and has 16 * d floats of shared memory.
extern "C" __global__ void row_products(const float* k, const float* v, float* out,
                                        int n, int d) {
    extern __shared__ float shared[];
    float* k_tile = shared;
    float* v_tile = shared + d * d;
    int first = blockIdx.x * 8, numbers = min(8, n - first) * d;
    for (int e = threadIdx.x; e < numbers; e += blockDim.x) {
        k_tile[e] = k[first * d + e];
        v_tile[e] = v[first * d + e];
    }
    __syncthreads();
    int j = threadIdx.x;
    if (j * d < numbers) {
        float sum = 0.0f;
        for (int c = 0; c < d; c++) sum += k_tile[j * d + c] * v_tile[j * d + c];
        out[first + j] = sum;
    }
}
""",
    "d": """
// *l += sum over j < n of exp(x[j - 1] + x[j] + x[j + 1]), and x = 0 outside.
// A block of 32 loads 32 elements and owns the middle 30.
extern "C" __global__ void row_sum(const float* x, float* l, int n) {
    __shared__ float tile[32];
    int t = threadIdx.x, j = int(blockIdx.x) * 30 + t - 1;
    bool inside = 0 <= j && j < n;
    tile[t] = inside ? x[j] : 0.0f;
    __syncthreads();
    float left = t > 0 ? tile[t - 1] : 0.0f;
    float right = t < 31 ? tile[t + 1] : 0.0f;
    if (inside) atomicAdd(l, expf(left + tile[t] + right));
}
""",
}

# replacements for the faulty line, correct and wrong ones, that test readers wrote
COMMON_FIXES = {
    "a": [
        ("if (t < n) p[t] = expf(s[t]);", "p[t] = t < n ? expf(s[t]) : 0.0f;"),
        ("l += p[j];", "if (j < n) l += p[j];"),
        ("l += p[j];", "l += j < n ? p[j] : 0.0f;"),
    ],
    "b": [
        ("o_tile[t] = inside ? o[i] : 0.0f;", "o_tile[t] = t > 0 && inside ? o[i] : 0.0f;"),
        ("o_tile[t] = inside ? o[i] : 0.0f;", "if (inside && t > 0) o_tile[t] = o[i];"),
        ("o_tile[t] = inside ? o[i] : 0.0f;", "o_tile[t] = 0.0f;"),
    ],
    "c": [
        ("float* v_tile = shared + d * d;", "float* v_tile = k_tile + 8 * d;"),
        ("v_tile[e] = v[first * d + e];", "__syncthreads(); v_tile[e] = v[first * d + e];"),
    ],
    "d": [
        (
            "if (inside) atomicAdd(l, expf(left + tile[t] + right));",
            f"if (inside && {owned}) atomicAdd(l, expf(left + tile[t] + right));",
        )
        for owned in ("t > 0 && t < 31", "0 < t && t <= 30", "t >= 1 && t <= 30", "t > 0", "t < 31")
    ],
}
