// Device functions of the convolution kernels: products of tiles, convolutions of strips, and the mapping of threads to
// elements. They correspond to kernels/conv/tiles.py. SIZE, the side of a tile of scores, and WIDTH, the row width, are
// macros: -DSIZE=64 -DWIDTH=64.
#include "tiles.cuh"

constexpr int PATCH = 4, STRIP = 8, LANES = 4;  // elements of a tile per thread; threads per row of strips
constexpr int PADDING = 9;                      // columns that a strip and its taps may read beyond the tile
constexpr int GROUP = 4;                        // floats per 16-byte load
constexpr int TAPS = 16;                        // rows and columns of taps: 15, rounded up to a multiple of GROUP
constexpr int SECTOR = 8;                       // floats per sector (32 bytes) of global memory
constexpr int STEP = SIZE / PATCH, PITCH = SIZE + PADDING, THREADS = STEP * STEP;
constexpr int PATCH_NUMBERS = PATCH * PATCH, COLUMNS = WIDTH / STEP;  // COLUMNS: output columns per thread
constexpr int TURNS = LANES * PATCH_NUMBERS / SIZE, STRIPS = SIZE / (STRIP * LANES);  // rows per thread; strips per row

typedef float Tile[SIZE][PITCH];    // scores, with padding columns of zeros
typedef float Taps[TAPS][TAPS];     // the taps of a head, zero-padded
typedef float Strip[PATCH_NUMBERS]; // a thread's TURNS · STRIPS strips
typedef float Patch[PATCH * COLUMNS];  // a thread's elements of an output

struct Place {
    int row, column;
};

// Return the first element of this thread's patch; the lanes of a warp form 8 rows by 4 columns.
__device__ Place patch_place() {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, across = STEP / 4;
    return {warp / across * 8 + lane / 4, warp % across * 4 + lane % 4};
}

// Return the row of this thread's strips in iteration `turn`, and the first column of its strip s.
__device__ int strip_row(int turn) { return threadIdx.x / LANES + turn * (THREADS / LANES); }
__device__ int strip_column(int s) { return (threadIdx.x % LANES + s * LANES) * STRIP; }

// Into shared memory ---------------------------------------------------------------------------------------------------

__device__ void clear(Tile& tile) {
    for (int element = threadIdx.x; element < SIZE * PITCH; element += THREADS)
        tile[element / PITCH][element % PITCH] = 0.0f;
}

// Load w (c_q, c_k) into taps with zero padding; reverse both dimensions if `flipped`.
__device__ void load_taps(Taps& taps, const float* w, int c_q, int c_k, bool flipped) {
    for (int element = threadIdx.x; element < TAPS * TAPS; element += THREADS) {
        int a = element / TAPS, b = element % TAPS;
        float tap = 0.0f;
        if (a < c_q && b < c_k) tap = w[flipped ? (c_q - 1 - a) * c_k + c_k - 1 - b : a * c_k + b];
        taps[a][b] = tap;
    }
}

// Copy rows[first :, start :] to chunk[:, :width], with 0 outside `rows` (n, d). SECTOR adjacent threads copy one row,
// so that each request reads 32 contiguous bytes.
template <int ROWS, int WORDS>
__device__ void copy_rows(float (&chunk)[ROWS][WORDS], int width, const float* rows, int first, int start, int n, int d) {
    for (int i = threadIdx.x / SECTOR; i < ROWS; i += THREADS / SECTOR) {
        bool inside = 0 <= first + i && first + i < n;
        for (int c = 0; c < width; c += SECTOR) {
            int column = c + threadIdx.x % SECTOR;
            chunk[i][column] = inside && start + column < d ? rows[(first + i) * d + start + column] : 0.0f;
        }
    }
}

// Copy rows[first : first + ROWS] to the chunk, with 0 outside `rows` (n, d).
template <int ROWS>
__device__ void load_rows(float (&chunk)[ROWS][WIDTH], const float* rows, int first, int n, int d) {
    copy_rows(chunk, WIDTH, rows, first, 0, n, d);
}

// Products, in patches -------------------------------------------------------------------------------------------------

// Add a_chunk[row + r · STEP] · b_chunk[column + c · STEP] to patch[r, c], GROUP columns at a time.
template <int WORDS>
__device__ void add_products(Strip& patch, const float (&a_chunk)[SIZE][WORDS], const float (&b_chunk)[SIZE][WORDS]) {
    auto [row, column] = patch_place();
    float mine[PATCH][GROUP], theirs[GROUP];
    for (int at = 0; at < WORDS - GROUP; at += GROUP) {
        for (int r = 0; r < PATCH; r++)
            for (int x = 0; x < GROUP; x++) mine[r][x] = a_chunk[row + r * STEP][at + x];
        for (int c = 0; c < PATCH; c++) {
            for (int x = 0; x < GROUP; x++) theirs[x] = b_chunk[column + c * STEP][at + x];
            for (int r = 0; r < PATCH; r++)
                for (int x = 0; x < GROUP; x++) patch[r * PATCH + c] += mine[r][x] * theirs[x];
        }
    }
}

// Compute tile[i, j] = factor · a[first_a + i] · b[first_b + j], with 0 for rows outside `a` or `b` (n, d) and, if
// causal, where first_b + j > first_a + i. All threads of the block must call this function. The caller must
// synchronise the block before other threads read the tile.
template <int WORDS>
__device__ void products(Tile& tile, const float* a, const float* b, int first_a, int first_b, float factor, bool causal,
                         int n, int d, float (&a_chunk)[SIZE][WORDS], float (&b_chunk)[SIZE][WORDS]) {
    auto [row, column] = patch_place();
    Strip patch = {};
    for (int start = 0; start < d; start += WORDS - GROUP) {
        __syncthreads();  // all threads have finished reading the chunks and the tile
        copy_rows(a_chunk, WORDS - GROUP, a, first_a, start, n, d);
        copy_rows(b_chunk, WORDS - GROUP, b, first_b, start, n, d);
        __syncthreads();
        add_products(patch, a_chunk, b_chunk);
    }
    for (int r = 0; r < PATCH; r++)
        for (int c = 0; c < PATCH; c++) {
            int i = row + r * STEP, j = column + c * STEP;
            tile[i][j] = causal && first_b + j > first_a + i ? 0.0f : factor * patch[r * PATCH + c];
        }
}

// Add Σ_x weights[row r, first + x] · chunk[x, column c] to patch[r, c], as part of P V. The rows are those of this
// thread's patch; the columns are COLUMNS adjacent columns of the output.
template <int ROWS>
__device__ void add_weighted_rows(Patch& patch, const Tile& weights, int first, const float (&chunk)[ROWS][WIDTH]) {
    auto [row, column] = patch_place();
    float mine[PATCH][GROUP];
    for (int start = 0; start < ROWS; start += GROUP) {
        for (int r = 0; r < PATCH; r++)
            for (int x = 0; x < GROUP; x++) mine[r][x] = weights[row + r * STEP][first + start + x];
        for (int x = 0; x < GROUP; x++)
            for (int c = 0; c < COLUMNS; c++) {
                float number = chunk[start + x][column * COLUMNS + c];
                for (int r = 0; r < PATCH; r++) patch[r * COLUMNS + c] += mine[r][x] * number;
            }
    }
}

// Add Σ_x weights[first + x, shift + row r] · chunk[x, column c] to patch[r, c], as part of Pᵀ dO.
template <int ROWS>
__device__ void add_weighted_columns(Patch& patch, const Tile& weights, int first, int shift,
                                     const float (&chunk)[ROWS][WIDTH]) {
    auto [row, column] = patch_place();
    float mine[PATCH][GROUP];
    for (int start = 0; start < ROWS; start += GROUP) {
        for (int r = 0; r < PATCH; r++)
            for (int x = 0; x < GROUP; x++) mine[r][x] = weights[first + start + x][shift + row + r * STEP];
        for (int x = 0; x < GROUP; x++)
            for (int c = 0; c < COLUMNS; c++) {
                float number = chunk[start + x][column * COLUMNS + c];
                for (int r = 0; r < PATCH; r++) patch[r * COLUMNS + c] += mine[r][x] * number;
            }
    }
}

// Store factor · patch in rows[first : first + count], skipping elements outside `rows` (n, d).
__device__ void store_rows(float* rows, int first, int count, float factor, const Patch& patch, int n, int d) {
    auto [row, column] = patch_place();
    for (int r = 0; r < PATCH; r++)
        for (int c = 0; c < COLUMNS; c++) {
            int i = row + r * STEP, x = column * COLUMNS + c;
            if (i < count && first + i < n && x < d) rows[(first + i) * d + x] = factor * patch[r * COLUMNS + c];
        }
}

// Convolution, in strips -----------------------------------------------------------------------------------------------

// Compute strip[place + x] = Σ_ab taps[a, b] · tile[i + a, j + x + b] for x < STRIP. Each element of the tile is loaded
// once per row of taps, and used STRIP times from a window of registers that advances by GROUP columns.
__device__ void convolve_strip(Strip& strip, int place, const Tile& tile, const Taps& taps, int i, int j, int c_q,
                               int c_k) {
    float window[STRIP + GROUP], sums[STRIP] = {};
    for (int a = 0; a < c_q; a++) {
        for (int x = 0; x < STRIP; x++) window[x] = tile[i + a][j + x];
        for (int b = 0; b < c_k; b += GROUP) {
            for (int x = 0; x < GROUP; x++) window[STRIP + x] = tile[i + a][j + b + STRIP + x];
            for (int y = 0; y < GROUP; y++) {
                float tap = taps[a][b + y];
                for (int x = 0; x < STRIP; x++) sums[x] += tap * window[x + y];
            }
            for (int x = 0; x < STRIP; x++) window[x] = window[x + GROUP];
        }
    }
    for (int x = 0; x < STRIP; x++) strip[place + x] = sums[x];
}
