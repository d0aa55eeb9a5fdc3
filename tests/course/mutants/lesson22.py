"""Wrong answers to the exercises of lesson 22, each labelled with its mistake, and alternative correct
answers."""

from power.lessons import from_solutions

LOAD_TILE, FLASH, ABSORB = from_solutions("22", "LOAD_TILE", "FLASH", "ABSORB")
USED = "__syncthreads();  // used up: the next tile may be loaded"

VALUES = {"a": -3, "b": -3, "c": -4, "d": 0, "e": -2, "f": 0, "g": 1, "h": 50}


def said(**other):
    return lambda: VALUES | other


def changed(text, *pairs):
    """Return the text after replacing each (old, new). Every `old` must occur exactly once."""
    for old, new in pairs:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


LOAD_BY_POINTER = """
__device__ void load_tile(float* tile, const float* array, int start, int length, int size) {
    const float* from = array + start;
    int there = max(0, min(length, size - start));
    for (int e = threadIdx.x; e < there; e += blockDim.x) tile[e] = from[e];
    for (int e = there + threadIdx.x; e < length; e += blockDim.x) tile[e] = 0;
}
"""
LOAD_BACKWARDS = """
__device__ void load_tile(float *tile, const float *__restrict__ array, int start, int length, int size)
{
    int e = length - 1 - int(threadIdx.x);
    while (e >= 0) {
        float value = 0.f;
        if (start + e < size) value = __ldg(&array[start + e]);
        tile[e] = value;
        e -= blockDim.x;
    }
}
"""
LOAD_CLAMPED = changed(
    LOAD_TILE,
    (
        "tile[e] = start + e < size ? array[start + e] : 0.0f;",
        "tile[e] = array[min(start + e, size - 1)] * (start + e < size);",
    ),
)
LOAD_IN_RUNS = """
__device__ void load_tile(float* tile, const float* array, int start, int length, int size) {
    int run = (length + blockDim.x - 1) / blockDim.x;
    for (int e = threadIdx.x * run; e < min(length, int(threadIdx.x + 1) * run); ++e)
        tile[e] = start + e < size ? array[start + e] : 0.0f;
}
"""

# Correct: loops over tiles in another order, skips threads without a query, and has a barrier before the
# loads.
FLASH_OTHERWISE = """
#include "tiles.cuh"
extern "C" __global__ void __launch_bounds__(1024)
flash_kernel(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v,
             float* __restrict__ o, int n, int d, int columns, float scale) {
    extern __shared__ float shared[];
    const int rows = blockDim.x, t = threadIdx.x, i = blockIdx.x * rows + t;
    float *o_tile = shared, *q_tile = o_tile + rows * d, *v_tile = q_tile + rows * d;
    float *k_tile = &v_tile[columns * d];
    for (int c = 0; c < d; c++) {
        q_tile[t * d + c] = i < n ? q[i * d + c] : 0;
        o_tile[t * d + c] = 0;
    }
    float m = MINUS_INFINITY, l = 0;
    int tiles = (n + columns - 1) / columns;
    for (int tile = tiles - 1; tile >= 0; --tile) {
        int start = tile * columns;
        __syncthreads();
        load_tile(k_tile, k, start * d, columns * d, n * d);
        load_tile(v_tile, v, start * d, columns * d, n * d);
        __syncthreads();
        if (i < n) visit(t, q_tile, k_tile, v_tile, o_tile, min(columns, n - start), d, scale, m, l);
    }
    if (i >= n) return;
    float share = 1 / l;
    for (int c = 0; c < d; c++) o[i * d + c] = o_tile[t * d + c] * share;
}
"""

NO_TILES = """
#include "tiles.cuh"
extern "C" __global__ void flash_kernel(const float* q, const float* k, const float* v,
                                        float* o, int n, int d, int columns, float scale) {
    extern __shared__ float shared[];
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t;
    if (i >= n) return;
    float m = MINUS_INFINITY, l = 0.0f;
    for (int c = 0; c < d; c++) shared[t * d + c] = 0.0f;
    visit(i, q, k, v, shared + (t - i) * d, n, d, scale, m, l);
    for (int c = 0; c < d; c++) o[i * d + c] = shared[t * d + c] / l;
}
"""

ABSORB_OTHERWISE = """
#include "rows.cuh"
__device__ float row_sum(float value, unsigned mask) {
    #pragma unroll
    for (int step = 1; step < WIDTH; step *= 2) value += __shfl_xor_sync(mask, value, step, WIDTH);
    return value;
}
__device__ float absorb(float t, float& m, float& l, float& shrink) {
    unsigned mask = (0xffffffffu >> (32 - WIDTH)) << (threadIdx.x & 31 & ~(WIDTH - 1));
    float before = m;
    m = fmaxf(before, row_max(t, mask));
    shrink = before == MINUS_INFINITY ? 1.0f : __expf(before - m);
    float p = t > MINUS_INFINITY ? __expf(t - m) : 0.0f;
    l = fmaf(l, shrink, row_sum(p, mask));
    return p;
}
"""

MENDS = {
    "a": {"for (int j = 0; j < 64; j++) {": "for (int j = 0; j < n; j++) {"},
    "b": {"o_tile[t] = inside ? o[i] : 0.0f;": "o_tile[t] = inside && t > 0 ? o[i] : 0.0f;"},
    "c": {"float* v_tile = shared + d * d;": "float* v_tile = shared + 8 * d;"},
    "d": {
        "if (inside) atomicAdd(l, expf(left + tile[t] + right));": (
            "if (inside && 0 < t && t < 31) atomicAdd(l, expf(left + tile[t] + right));"
        )
    },
}


def mend(letter, wrong, right):
    return lambda: MENDS | {letter: {wrong: right}}


WEIGHED = "if (t < n) p[t] = expf(s[t]);"
ADDED = "if (inside) atomicAdd(l, expf(left + tile[t] + right));"

MUTANTS = {
    "ex22_1": [
        ("Python's division", said(a=-4)),
        ("Python's remainder", said(b=1)),
        ("a shift as a division", said(c=-3)),
        ("a float division", said(d=2)),
        ("rounded", said(e=-3)),
        ("a signed threadIdx", said(f=1)),
        ("a chain as in mathematics", said(g=0)),
        ("row as a", said(h=20)),
        ("one left out", lambda: {"a": -3}),
        ("text", said(a="-3")),
    ],
    "ex22_2": [
        (
            "thread 0 loads",
            changed(LOAD_TILE, ("threadIdx.x;", "0;"), ("e += blockDim.x", "e += threadIdx.x ? length : 1")),
        ),
        ("each thread loads all", changed(LOAD_TILE, ("threadIdx.x", "0"), ("blockDim.x", "1"))),
        (
            "one number per thread",
            changed(
                LOAD_TILE,
                (
                    "for (int e = threadIdx.x; e < length; e += blockDim.x)",
                    "int e = threadIdx.x;\n    if (e < length)",
                ),
            ),
        ),
        ("the bound without start", changed(LOAD_TILE, ("start + e < size", "e < size"))),
        (
            "stops at the end",
            changed(
                LOAD_TILE,
                (
                    "tile[e] = start + e < size ? array[start + e] : 0.0f",
                    "if (start + e < size) tile[e] = array[start + e]",
                ),
            ),
        ),
        ("no start", changed(LOAD_TILE, ("array[start + e]", "array[e]"))),
        (
            "loads past the end, and multiplies by 0",
            changed(
                LOAD_TILE,
                ("start + e < size ? array[start + e] : 0.0f", "array[start + e] * (start + e < size)"),
            ),
        ),
        ("a barrier in it", changed(LOAD_TILE, ("0.0f;", "0.0f;\n    __syncthreads();"))),
        ("a grid's stride", changed(LOAD_TILE, ("e += blockDim.x", "e += blockDim.x * gridDim.x"))),
        ("a double on the way", changed(LOAD_TILE, ("0.0f", "0.1 * start - 0.1 * start"))),
        ("does not compile", changed(LOAD_TILE, ("0.0f;", "0.0f"))),
        ("another name", changed(LOAD_TILE, ("void load_tile", "void load"))),
        ("no text", None),
    ],
    "ex22_3": [
        ("no barrier after the loads", changed(FLASH, ("__syncthreads();  // loaded", ""))),
        (
            "a barrier of the warp after the loads",
            changed(FLASH, ("__syncthreads();  // loaded", "__syncwarp();")),
        ),
        ("a barrier of the warp after the visit", changed(FLASH, (USED, "__syncwarp();"))),
        ("an index of 8 bits", changed(FLASH, ("for (int start = 0;", "for (signed char start = 0;"))),
        ("no barrier after the visit", changed(FLASH, (USED, ""))),
        ("a barrier under an if", changed(FLASH, (USED, "if (first + t < n) __syncthreads();"))),
        (
            "returns before the barriers",
            changed(FLASH, ("float m = MINUS", "if (first + t >= n) return;\n    float m = MINUS")),
        ),
        ("o on the q tile", changed(FLASH, ("q_tile + rows * d", "q_tile"))),
        ("no tiles", NO_TILES),
        ("whole tiles only", changed(FLASH, ("min(columns, n - start)", "columns"))),
        ("m from 0", changed(FLASH, ("MINUS_INFINITY", "0.0f"))),
        ("m from -1000", changed(FLASH, ("MINUS_INFINITY", "-1000.0f"))),
        ("no division", changed(FLASH, (" / l", ""))),
        ("no scale", changed(FLASH, ("d, scale, m", "d, 1.0f, m"))),
        ("no guard", changed(FLASH, ("if (first + t < n)\n", "\n"))),
        ("the first block's queries", changed(FLASH, ("blockIdx.x * rows", "0"))),
        (
            "starts count rows",
            changed(FLASH, ("load_tile(k_tile, k, start * d", "load_tile(k_tile, k, start")),
        ),
        ("rows of n", changed(FLASH, ("load_tile(v_tile, v, start * d", "load_tile(v_tile, v, start * n"))),
        ("seven tiles at most", changed(FLASH, ("start < n;", "start < n && start < 6 * columns;"))),
        (
            "thread 0 writes all",
            changed(
                FLASH,
                (
                    FLASH[FLASH.index("    if (first") : -2],
                    """    for (int c = 0; c < d; c++) o_tile[t * d + c] /= l;
    __syncthreads();
    if (t == 0)
        for (int e = 0; e < min(rows, n - first) * d; e++) o[first * d + e] = o_tile[e];
""",
                ),
            ),
        ),
        ("doubles", changed(FLASH, ("/ l;", "* (1.0 / l);"))),
        (
            "loads K for each thread",
            changed(
                FLASH,
                (
                    "load_tile(k_tile, k, start * d, columns * d, n * d);",
                    "for (int e = 0; e < columns * d; e++)"
                    " k_tile[e] = start * d + e < n * d ? k[start * d + e] : 0.0f;",
                ),
            ),
        ),
        ("a kernel of another name", changed(FLASH, ("flash_kernel", "flash"))),
        (
            "changes q",
            changed(
                FLASH, ("/ l;", "/ l;\n    if (first + t < n) const_cast<float*>(q)[(first + t) * d] = 0;")
            ),
        ),
    ],
    "ex22_4": [
        ("the mask of all", changed(ABSORB, ("((1u << WIDTH) - 1) << first", "0xffffffffu"))),
        ("the mask of row 0", changed(ABSORB, (" << first", ""))),
        ("the mask of who is here", changed(ABSORB, ("((1u << WIDTH) - 1) << first", "__activemask()"))),
        ("the lane itself", changed(ABSORB, ("1u << WIDTH) - 1", "1u << 1) - 1"))),
        (
            "WIDTH taken as 8",
            changed(ABSORB, ("(1u << WIDTH)", "(1u << 8)"), ("% 32 / WIDTH * WIDTH", "% 32 / 8 * 8")),
        ),
        ("the sum of the warp", changed(ABSORB, ("step = WIDTH / 2", "step = 16"))),
        ("no sum", changed(ABSORB, ("sum += __shfl", "sum = 0 * __shfl"))),
        (
            "shuffles from every lane",
            changed(
                ABSORB,
                (
                    ABSORB[ABSORB.index("    for") : ABSORB.index("    shrink")],
                    """    sum = 0;
    for (int lane = 0; lane < WIDTH; lane++) sum += __shfl_sync(mask, p, lane, WIDTH);
""",
                ),
            ),
        ),
        ("no guard in p", changed(ABSORB, ("weight(t, larger)", "expf(t - larger)"))),
        ("no guard in shrink", changed(ABSORB, ("weight(m, larger)", "expf(m - larger)"))),
        ("its own maximum", changed(ABSORB, ("row_max(t, mask)", "t"))),
        ("the old maximum forgotten", changed(ABSORB, ("fmaxf(m, row_max(t, mask))", "row_max(t, mask)"))),
        (
            "m set too early",
            changed(
                ABSORB, ("    m = larger;\n", ""), ("float p = weight", "m = larger;\n    float p = weight")
            ),
        ),
        ("no shrink of l", changed(ABSORB, ("l * shrink", "l"))),
        ("m not set", changed(ABSORB, ("m = larger;\n    return", "return"))),
        (
            "shrink not set",
            changed(ABSORB, ("shrink = weight(m, larger);\n    l = l * shrink", "l = l * weight(m, larger)")),
        ),
        ("no maximum at all", changed(ABSORB, ("fmaxf(m, row_max(t, mask))", "0 * row_max(t, mask)"))),
        (
            "a ballot of all",
            changed(ABSORB, ("((1u << WIDTH) - 1) << first", "__ballot_sync(0xffffffffu, 1)")),
        ),
        (
            "through shared memory",
            changed(
                ABSORB,
                (
                    ABSORB[ABSORB.index("    for") : ABSORB.index("    shrink")],
                    """    __shared__ float ps[64];
    ps[threadIdx.x] = p;
    __syncwarp(mask);
    sum = 0;
    for (int e = 0; e < WIDTH; e++) sum += ps[threadIdx.x / WIDTH * WIDTH + e];
    __syncwarp(mask);
""",
                ),
            ),
        ),
        ("doubles", changed(ABSORB, ("l * shrink + sum", "l * double(shrink) + sum"))),
    ],
    "ex22_5": [
        ("nothing mended", lambda: {letter: {} for letter in "abcd"}),
        ("a: a one for the rest", mend("a", WEIGHED, "p[t] = t < n ? expf(s[t]) : 1.0f;")),
        ("a: 63", mend("a", "for (int j = 0; j < 64; j++) {", "for (int j = 0; j < min(n, 63); j++) {")),
        ("a: 40", mend("a", "for (int j = 0; j < 64; j++) {", "for (int j = 0; j < 40; j++) {")),
        ("a: the sum of its own", mend("a", "l += p[j];", "l = n * p[t];")),
        ("b: a fence", mend("b", "__syncthreads();", "__syncthreads(); __threadfence();")),
        ("b: no load", mend("b", "o_tile[t] = inside ? o[i] : 0.0f;", "o_tile[t] = 0.0f;")),
        (
            "b: the last thread",
            mend("b", "o_tile[t] = inside ? o[i] : 0.0f;", "o_tile[t] = inside && t < 31 ? o[i] : 0.0f;"),
        ),
        (
            "c: the suggested barrier",
            mend("c", "v_tile[e] = v[first * d + e];", "__syncthreads(); v_tile[e] = v[first * d + e];"),
        ),
        ("c: numbers", mend("c", "float* v_tile = shared + d * d;", "float* v_tile = shared + 8 * d + 1;")),
        ("c: for d = 5", mend("c", "float* v_tile = shared + d * d;", "float* v_tile = shared + 40;")),
        (
            "c: no tile",
            mend(
                "c",
                "for (int c = 0; c < d; c++) sum += k_tile[j * d + c] * v_tile[j * d + c];",
                "for (int c = 0; c < d; c++) sum += k[(first + j) * d + c] * v[(first + j) * d + c];",
            ),
        ),
        ("d: the left halo only", mend("d", ADDED, ADDED.replace("inside", "inside && t > 0"))),
        ("d: one too many", mend("d", ADDED, ADDED.replace("inside", "inside && t < 30"))),
        (
            "d: the first block only",
            mend("d", ADDED, ADDED.replace("inside", "inside && (blockIdx.x || t < 31)")),
        ),
        (
            "d: 31",
            mend(
                "d",
                "int t = threadIdx.x, j = int(blockIdx.x) * 30 + t - 1;",
                "int t = threadIdx.x, j = int(blockIdx.x) * 31 + t - 1;",
            ),
        ),
        ("a line that is not there", mend("d", "if (inside)", "if (true)")),
        ("a list", lambda: [MENDS]),
    ],
}

# Correct: uses a template, and has a barrier before the loads of all tiles but the first.
FLASH_BY_TEMPLATE = """
#include "tiles.cuh"
template <typename T> __device__ T* cut(T*& from, int numbers) {
    T* tile = from;
    from += numbers;
    return tile;
}
extern "C" __global__ void flash_kernel(const float* q, const float* k, const float* v,
                                        float* o, int n, int d, int columns, float scale) {
    extern __shared__ float shared[];
    float* rest = shared;
    const unsigned rows = blockDim.x, t = threadIdx.x;
    auto q_tile = cut(rest, rows * d), o_tile = cut(rest, rows * d);
    auto k_tile = cut(rest, columns * d), v_tile = cut(rest, columns * d);
    load_tile(q_tile, q, blockIdx.x * rows * d, rows * d, n * d);
    for (int e = t; e < rows * d; e += rows) o_tile[e] = 0;
    float m = MINUS_INFINITY, l = 0;
    for (int start = 0; start < n; start += columns) {
        if (start) __syncthreads();
        load_tile(k_tile, k, start * d, columns * d, n * d);
        load_tile(v_tile, v, start * d, columns * d, n * d);
        __syncthreads();
        visit(t, q_tile, k_tile, v_tile, o_tile, min(columns, n - start), d, scale, m, l);
    }
    const int i = blockIdx.x * rows + t;
    if (i < n)
        for (int c = 0; c < d; ++c) o[i * d + c] = __fdividef(o_tile[t * d + c], l);
}
"""

RIGHT = {
    "ex22_1": [said(), said(d=0.0, f=False, g=True, h=50.0)],
    "ex22_2": [LOAD_TILE, LOAD_BY_POINTER, LOAD_BACKWARDS, LOAD_IN_RUNS, LOAD_CLAMPED],
    "ex22_3": [FLASH, FLASH_OTHERWISE, FLASH_BY_TEMPLATE],
    "ex22_4": [ABSORB, ABSORB_OTHERWISE],
    "ex22_5": [
        lambda: MENDS,
        lambda: (
            MENDS
            | {
                "c": {
                    "float* k_tile = shared;": "float* k_tile = shared + 8 * d;",
                    "float* v_tile = shared + d * d;": "float* v_tile = shared;",
                }
            }
        ),
        mend("a", WEIGHED, "p[t] = t < n ? expf(s[t]) : 0.0f;"),
        mend("a", "l += p[j];", "if (j < n) l += p[j];"),
        mend("b", "o_tile[t] = inside ? o[i] : 0.0f;", "if (inside && t) o_tile[t] = o[i];"),
        mend("c", "float* v_tile = shared + d * d;", "  float* v_tile = &k_tile[8 * d];"),
        mend("d", ADDED, ADDED.replace("inside", "inside && t != 0 && t != 31")),
    ],
}
