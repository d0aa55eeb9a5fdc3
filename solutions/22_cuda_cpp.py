# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 22 · CUDA C++: your kernels in C++, and their races found without a GPU
#
# **80 minutes**, and 30 for the two parts marked *optional* · builds on lesson 05 (the flash kernel), lesson 06 (shuffles), lesson 07 (PTX) and lesson 11 (the convolutional kernel)
#
# You will be able to
#
# 1. write a kernel in CUDA C++, with pointers, types and shared memory of a size that the launch decides;
# 2. find a race in a `.cu` file by its line, on a machine without a GPU;
# 3. read the PTX of Numba, CUDA C++ and Triton side by side, and say what each compiler has added;
# 4. mend four small kernels with mistakes of the kinds that published CUDA had.
#
# **Where this leads.** Most published kernels are CUDA C++. The package has its kernels in three languages, with the same algorithm, names and grids. One layer of 8 heads of 64, 7 × 7 taps, causal, float32, on one GPU:

# %%
import json
import math

import matplotlib.pyplot as plt
import numpy as np
import torch
from numba import cuda
from numpy import float32

from course import brought, check, show_figure, show_table
from course.check import cuda_kernels, lesson22
from course.cuda_cpp import cuda_cpp, ptx_of
from course.figures import ORANGE, SKY
from course.ptx import compiled
from course.side_by_side import count, show_ptx
from kernels.common.data import DATA, recorded_ptx
from kernels.conv.forward import conv_forward
from kernels.cuda_cpp import operators
from kernels.flash.forward import flash_forward
from sim import load_ptx, simulate
from sim.observers import COUNTERS, DEFAULT, Trace
from sim.ptx.numba import flattened

record = json.loads((DATA / "languages.json").read_text("utf-8"))
show_table(
    ["tokens", "language", "flash, ms", "convolution, ms", "its backward, ms"],
    *(
        [
            f"{row['shape'][2]:,}",
            row["name"],
            *(f"{row[what]:.2f}" for what in ("flash_ms", "forward_ms", "backward_ms")),
        ]
        for row in record["languages"]
        if row["shape"][2] in (1024, 4096)
    ),
    title=f"{record['gpu']}, recorded {record['date']}",
)

# %% [markdown]
# The C++ kernels are the fastest of the three in the convolution, and Triton in plain flash attention, where `tl.dot` gives each thread a patch of the scores in place of one row (lesson 21). In this lesson you write the first of these kernels in C++.
#
# **No GPU is needed.** A compiler of NVIDIA's called NVRTC turns C++ into PTX on any Linux or Windows machine, and `sim` runs the PTX. (For macOS there is no NVRTC. There the lesson's own texts run from PTX that was recorded when the lesson was built. A text of yours that differs from the solution is then not checked, and the cell says so.)
#
# Here is what that is good for. Seven lines of C++, with a mistake. Read them first: **which two threads meet, and at which lines?** (Line 1 is `extern`.) `___`

# %%
RACING = """
extern "C" __global__ void neighbour_sums(const float* x, float* y) {
    __shared__ float tile[64];
    int i = threadIdx.x;
    tile[i] = x[i] * x[i];
    float left = i > 0 ? tile[i - 1] : 0.0f;
    y[i] = left + tile[i];
}
"""
x, y = np.arange(64, dtype=float32), np.zeros(64, float32)
racing = cuda_cpp(RACING, "neighbours.cu")["neighbour_sums"]
report = simulate(racing, on_finding="report")[1, 64](x, y)
print(report.findings[0].message)

# %% [markdown]
# Thread i reads what thread i − 1 writes, and nothing orders the two. `sim` shows one pair with both lines, and counts 62 more. The mend is one line, `__syncthreads();` between 4 and 5.
#
# From a shell it is `python -m sim neighbours.cu --entry neighbour_sums --block 64 'float32[64]' 'float32[64]=0'`, for any `.cu` file.
#
# ## 1. The same kernel twice
#
# A kernel that you can read, for one block of 64 threads: `y[i] = t[i − 1] + t[i] + t[i + 1]` with `t = x²`, and 0 outside. First in Numba, then in C++:


# %%
@cuda.jit
def neighbour_sums(x, y):
    """y[i] = t[i - 1] + t[i] + t[i + 1] of t = x²; one block of 64."""
    tile = cuda.shared.array(64, float32)
    i = cuda.threadIdx.x
    t = x[i] * x[i]
    tile[i] = t
    cuda.syncthreads()
    left = tile[i - 1] if i > 0 else float32(0)
    right = tile[i + 1] if i < 63 else float32(0)
    y[i] = left + t + right


NEIGHBOURS = """
extern "C" __global__ void neighbour_sums(const float* x, float* y) {
    __shared__ float tile[64];
    int i = threadIdx.x;
    float t = x[i] * x[i];
    tile[i] = t;
    __syncthreads();
    float left = i > 0 ? tile[i - 1] : 0.0f;
    float right = i < 63 ? tile[i + 1] : 0.0f;
    y[i] = left + t + right;
}
"""
x = np.random.default_rng(22).standard_normal(64).astype(float32)
by_numba, by_cpp = np.zeros((2, 64), float32)
simulate(neighbour_sums)[1, 64](x, by_numba)
simulate(cuda_cpp(NEIGHBOURS)["neighbour_sums"])[1, 64](x, by_cpp)
print("equal, bit by bit:", np.array_equal(by_numba, by_cpp))

# %% [markdown]
# Line by line it is the same kernel. What differs:
#
# | | Numba | CUDA C++ |
# |---|---|---|
# | a kernel | `@cuda.jit` | `extern "C" __global__ void` (`extern "C"`: the name stays as it is written) |
# | a function for kernels | `@cuda.jit(device=True)` | `__device__ float f(...)` |
# | a type | found by Numba | declared: `float t`, `int i`, `const float* x` |
# | an array | knows its shape | a **pointer**, the address of one element; lengths come as `int n` |
# | row i, column c | `x[i, c]` | `x[i * d + c]` |
# | `x[-1]` | the last element | what lies in front of the array |
# | a slice | `x[3:]` | `x + 3`, three elements further |
# | shared memory | `cuda.shared.array(64, float32)` | `__shared__ float tile[64];` |
# | of the launch's size | `cuda.shared.array(0, float32)` | `extern __shared__ float shared[];` |
# | a choice | `a if i > 0 else b` | `i > 0 ? a : b` |
# | a loop | `for e in range(t, n, T)` | `for (int e = t; e < n; e += T)` |
# | several results | `return m, l` | parameters `float& m, float& l`: the function changes the caller's variables |
# | a half | `float32(0.5)`; `0.5` is a float64 | `0.5f`; `0.5` is a `double` |
#
# ## 2. Numbers in C++
#
# The syntax is quickly learnt. What costs evenings are rules that look like Python's and are not:
#
# - `/` of two `int`s is an `int`, cut off **towards 0**. `%` is what that division leaves, so it has the sign of its left side.
# - `int(x)` cuts off towards 0.
# - A comparison gives a `bool`, which counts as the `int` 1 or 0, and a chain is worked out from left to right: there is no `0 <= k < n` of mathematics.
# - `threadIdx.x` and `blockIdx.x` are **unsigned**: below 0 they wrap to 4294967295. An `unsigned` with an `int` makes `unsigned`. `int i = threadIdx.x;` makes an `int` of it.
#
# ### Exercise 22.1 · expressions · eight values
#
# `int i = -7, n = 4, k = 7; float x = 8;` `a` points to 0, 10, 20, 30, … (floats), and `const float* row = a + 3;`. Which value has each expression, in thread 0 of block 0? Two of them are the guard of a halo, written wrong. One is not in the list above: guess, and the check explains.
#
# | | | | |
# |---|---|---|---|
# | a | `i / 2` | e | `int(x / -3.0f)` |
# | b | `i % n` | f | `threadIdx.x - 1 < 0` |
# | c | `i >> 1` | g | `0 <= k < n` |
# | d | `1 / n * x` | h | `row[2]` |


# %% tags=["exercise"]
def expressions():
    """{"a": ..., ..., "h": ...}, numbers; true is 1."""
    # BEGIN SOLUTION 22.1
    return {"a": -3, "b": -3, "c": -4, "d": 0, "e": -2, "f": 0, "g": 1, "h": 50}
    # END SOLUTION


# %% tags=["check"]
check.ex22_1(expressions)

# %% [markdown]
# So a guard such as `threadIdx.x - 1 >= 0` lets every thread through, and `0 <= k < n` too, when n is above 1.
#
# ## 3. The flash kernel of lesson 05
#
# Its parts come back one by one. `visit`, one row and one tile, is given. Compare it with yours: `m` and `l` are references, and `fmaxf` and `expf` are the functions for `float`.

# %%
VISIT = cuda_kernels.VISIT
print(VISIT.strip())

# %% [markdown]
# ### Exercise 22.2 · load_tile · about two lines
#
# Exercise 5.1 once more. Fill `tile` with `length` numbers of `array` from number `start` on. Each is loaded by **one** thread, and all threads of the block take an equal share; what would lie past the `size` numbers of `array` becomes 0. `array` may lie in longer memory: what is behind its `size` numbers is not read. The block has one dimension. No barrier, and, here and in all that follows, no `double`.
#
# The text stands in a Python string. Put your C++ in place of the line with `raise`.
#
# <details><summary>Hint: the loop</summary>
#
# It starts at `threadIdx.x` and steps by `blockDim.x`.
#
# </details>

# %% tags=["exercise"]
LOAD_TILE = """
__device__ void load_tile(float* tile, const float* array,
                          int start, int length, int size) {
    # BEGIN SOLUTION 22.2
    for (int e = threadIdx.x; e < length; e += blockDim.x)
        tile[e] = start + e < size ? array[start + e] : 0.0f;
    # END SOLUTION
}
"""

# %% tags=["check"]
check.ex22_2(LOAD_TILE)

# %% [markdown]
# Now the kernel. `#include "tiles.cuh"` brings in `load_tile`, `visit` and `MINUS_INFINITY`. The shared memory is as long as the launch says, here 2 · (columns + rows) · d floats, and C++ has no slices: the four tiles are four pointers into one piece, here in the order K, V, Q, O.
#
# **Predict**, for columns = 4, rows = 3, d = 2, which number of `shared` each tile begins with: K `___`, V `___`, Q `___`, O `___`
#
# <details><summary>Answer</summary>
#
# 0, 8, 16, 22. (Another order is as good.) A pointer that is wrong by some elements is no error for the compiler: two tiles overlap, or the last one ends behind the memory.
#
# </details>
#
# ### Exercise 22.3 · flash_kernel · about fourteen lines
#
# Write the body: `o = softmax(scale · q kᵀ) v`, with q, k, v and o of n rows of d. `rows` is the number of threads in a block, `columns` the number of keys in a tile. Block b owns the queries from b · rows on, thread t the query b · rows + t. Each thread loads its part of each tile, once, and writes its own row of `o`. The arrays may be longer than n rows. No number is a `double`.
#
# <details><summary>Hint 1: pointers</summary>
#
# `float* k_tile = shared;`, then `float* v_tile = k_tile + columns * d;` and so on.
#
# </details>
# <details><summary>Hint 2: the order</summary>
#
# Load the Q tile, set this thread's row of the O tile to 0, `float m = MINUS_INFINITY, l = 0.0f;`. For each tile of keys: load K and V, barrier, `visit`, barrier. In the end, guarded, row t of the O tile divided by l.
#
# </details>
# <details><summary>Hint 3: what load_tile wants</summary>
#
# `load_tile(k_tile, k, start * d, columns * d, n * d)`: it counts numbers, not rows. The last tile has `min(columns, n - start)` keys to visit.
#
# </details>

# %% tags=["exercise"]
FLASH = """
#include "tiles.cuh"

extern "C" __global__ void flash_kernel(const float* q, const float* k, const float* v,
                                        float* o, int n, int d, int columns,
                                        float scale) {
    extern __shared__ float shared[];
    int rows = blockDim.x, t = threadIdx.x;
    # BEGIN SOLUTION 22.3
    float* k_tile = shared;
    float* v_tile = k_tile + columns * d;
    float* q_tile = v_tile + columns * d;
    float* o_tile = q_tile + rows * d;
    int first = blockIdx.x * rows;
    load_tile(q_tile, q, first * d, rows * d, n * d);
    for (int c = 0; c < d; c++) o_tile[t * d + c] = 0.0f;
    float m = MINUS_INFINITY, l = 0.0f;
    for (int start = 0; start < n; start += columns) {
        load_tile(k_tile, k, start * d, columns * d, n * d);
        load_tile(v_tile, v, start * d, columns * d, n * d);
        __syncthreads();  // loaded
        int keys = min(columns, n - start);
        visit(t, q_tile, k_tile, v_tile, o_tile, keys, d, scale, m, l);
        __syncthreads();  // used up: the next tile may come
    }
    if (first + t < n)
        for (int c = 0; c < d; c++) o[(first + t) * d + c] = o_tile[t * d + c] / l;
    # END SOLUTION
}
"""

# %% tags=["check"]
check.ex22_3(FLASH)

# %% [markdown]
# ### Beside lesson 05
#
# Both kernels on the same numbers: 64 queries and keys, d = 8, blocks of 16. Lesson 02 counted 5120 loads and stores of global memory before anything ran. **Predict** what `sim` counts in the PTX of your C++: the same, or more, or fewer? `___`

# %%
TILES = cuda_kernels.INFINITY + LOAD_TILE + VISIT
n, d, rows = 64, 8, 16
q, k, v = np.random.default_rng(5).standard_normal((3, n * d)).astype(float32)
sizes = n, d, rows, float32(d**-0.5)
launch = n // rows, rows, 0, 4 * 4 * rows * d

# %% tags=["uses-exercise"]
in_cpp = cuda_cpp(FLASH, "my_flash.cu", tiles=TILES)["flash_kernel"]
in_numba = brought("05_flash_kernel", "flash_kernel")
outputs = np.full((2, n * d), np.nan, float32)
for kernel, name, out in [
    (in_cpp, "CUDA C++", outputs[0]),
    (in_numba, "Numba, lesson 05", outputs[1]),
]:
    report = simulate(kernel, observers=[*DEFAULT, *COUNTERS])[launch](
        q, k, v, out, *sizes
    )
    counted = report.counters["memory"]["global"]
    print(f"{name:17} loads and stores: {counted['loads'] + counted['stores']}")
print("equal, below 1e-6:", bool(np.abs(outputs[0] - outputs[1]).max() <= 1e-6))

# %% [markdown]
# And this is how your threads use the 28 numbers of `shared`, for columns = 4, rows = 3, d = 2, as in the prediction above:

# %% tags=["uses-exercise"]
in_cpp = cuda_cpp(FLASH, "my_flash.cu", tiles=TILES)["flash_kernel"]
given = np.random.default_rng(5).standard_normal((4, 6)).astype(float32)
traced = simulate(in_cpp, observers=[*DEFAULT, Trace])
traced[1, 3, 0, 4 * 28](*given, 3, 2, 4, float32(0.5)).memory_map("shared")

# %% [markdown]
# ### Two barriers, two races
#
# Your kernel as it is, and without one of its barriers (the cell looks for `__syncthreads();`). **Predict**, for each: which tile, which line writes, which line reads? `___`


# %%
BARRIER = "__syncthreads();"


def without_barrier(text, number):
    """The text without its barrier `number`, counted from 0."""
    parts = text.split(BARRIER)
    both = parts[number] + parts[number + 1]
    return BARRIER.join([*parts[:number], both, *parts[number + 2 :]])


def findings(text, name):
    """What sim finds in a flash kernel."""
    kernel = cuda_cpp(text, name, tiles=TILES)["flash_kernel"]
    out = np.zeros_like(q)
    report = simulate(kernel, on_finding="report")[launch](q, k, v, out, *sizes)
    return [finding.message for finding in report.findings]


# %% tags=["uses-exercise"]
print("As it is, sim finds", findings(FLASH, "my_flash.cu") or "nothing.")
for number in range(FLASH.count(BARRIER)):
    found = findings(without_barrier(FLASH, number), f"without_{number}.cu")
    print(
        f"\nWithout barrier {number} it finds {len(found)} pairs of lines; the first:"
    )
    print(*found[:1])

# %% [markdown]
# In the solution's layout K and V take the numbers 0 to 255 of `shared`, so 257 is in the Q tile: without the first barrier a quick thread multiplies rows that a slow one has not brought. Without the second, a quick one brings the next keys over those that a slow one still visits.
#
# ## 4. Lanes, and the mask that names them (optional, 17 minutes)
#
# In lesson 11 the threads of a row found their maximum and their sum by shuffles. Numba's `cuda.shfl_xor_sync(mask, value, step)` is C++'s `__shfl_xor_sync(mask, value, step)`, and its mask has a bit for every lane that takes part. There it was always all 32. Here a row has `WIDTH` neighbouring lanes, 4, 8 or 16, so a warp holds several rows, **and not every row comes**: at the end of the sequence some rows have no query, and some have fewer tiles than others. A mask that names a lane which waits elsewhere hangs, or worse.
#
# In the picture, row 1 has run out of tiles, and row 3 has no query:


# %% jupyter={"source_hidden": true}
def draw_lanes(width, absent):
    """The 32 lanes of a warp, `width` to a row; grey where a row does not come."""
    figure, axes = plt.subplots(figsize=(11, 1.7))
    for lane in range(32):
        row = lane // width
        colour = "lightgrey" if row in absent else (SKY, ORANGE)[row // 2 % 2]
        axes.add_patch(plt.Rectangle((lane, 0), 0.92, 0.9, facecolor=colour))
        axes.text(lane + 0.46, 0.45, lane, ha="center", va="center", fontsize=10)
    for row in range(32 // width):
        words = "elsewhere" if row in absent else "shuffles"
        middle = row * width + width / 2
        axes.text(middle, 1.15, f"row {row}: {words}", ha="center", fontsize=11)
    axes.set(xlim=(0, 32), ylim=(-0.1, 1.6))
    axes.axis("off")
    return figure


show_figure(
    draw_lanes(8, {1, 3}),
    "the 32 lanes of a warp in a line, four rows of 8 lanes. Row 0, lanes 0 to 7, "
    "and row 2, lanes 16 to 23, shuffle. The rows 1 and 3 are elsewhere.",
)

# %% [markdown]
# **Predict** the masks, for WIDTH = 8, in hexadecimal (a digit is four lanes): of lanes 0 to 7 `___`, of lanes 16 to 23 `___`, of all 32 `___`
#
# <details><summary>Answer</summary>
#
# `0x000000ff`, `0x00ff0000`, `0xffffffff`. The first, `(1u << 8) - 1`, has eight ones; `<<` moves them to the row's first lane.
#
# </details>
#
# This is `rows.cuh`. `weight` is lesson 11's, exp(a − b) and 0 if a is −∞. `#pragma unroll` asks the compiler to write the loop out; WIDTH is known when it compiles, so no loop is left.

# %%
print(cuda_kernels.ROWS.strip())

# %% [markdown]
# ### Exercise 22.4 · absorb · about eight lines
#
# Exercise 11.3 once more. Each thread has its own `t`, and a copy of its row's `m` and `l`. Return `p` = exp(t − new m), set `shrink` to exp(old m − new m), and change `m` and `l` to the new ones, alike in all lanes of the row. The sum needs a shuffle for every halving of WIDTH, as `row_max` does, and no more, and no shared memory.
#
# The block has one dimension. Work out the mask of *this* row from `threadIdx.x`: `__activemask()` tells which lanes happen to be here, and not which should be. t and m may be −∞, and scores reach ±1000.
#
# <details><summary>Hint 1: the row's first lane</summary>
#
# The lane is `threadIdx.x % 32`; `lane / WIDTH * WIDTH` is the first lane of its row (a division of whole numbers!).
#
# </details>
# <details><summary>Hint 2: the sum</summary>
#
# As in `row_max`, with `+=` in place of `fmaxf`. Every lane's p goes in, also one that is 0.
#
# </details>

# %% tags=["exercise"]
ABSORB = """
#include "rows.cuh"

__device__ float absorb(float t, float& m, float& l, float& shrink) {
    # BEGIN SOLUTION 22.4
    int first = threadIdx.x % 32 / WIDTH * WIDTH;  // the row's first lane
    unsigned mask = ((1u << WIDTH) - 1) << first;
    float larger = fmaxf(m, row_max(t, mask));
    float p = weight(t, larger), sum = p;
    for (int step = WIDTH / 2; step > 0; step /= 2)
        sum += __shfl_xor_sync(mask, sum, step);
    shrink = weight(m, larger);
    l = l * shrink + sum;
    m = larger;
    return p;
    # END SOLUTION
}
"""

# %% tags=["check"]
check.ex22_4(ABSORB)

# %% [markdown]
# Beside lesson 11's `absorb`, on the same 8 rows of 8 lanes:

# %% tags=["uses-exercise"]
in_python = brought("11_conv_forward", "absorb")


def rows_in_python(t, m, l, new_m, new_l, shrink, p):
    row, lane = cuda.threadIdx.y, cuda.threadIdx.x
    new_m[row, lane], new_l[row, lane], shrink[row, lane], p[row, lane] = in_python(
        t[row, lane], m[row], l[row]
    )


ROWS_IN_CPP = """
extern "C" __global__ void rows_in_cpp(const float* t, const float* m, const float* l,
                                       float* new_m, float* new_l, float* shrink,
                                       float* p) {
    int e = threadIdx.x;
    new_m[e] = m[e / WIDTH];
    new_l[e] = l[e / WIDTH];
    p[e] = absorb(t[e], new_m[e], new_l[e], shrink[e]);
}
"""
t, m, l = (
    np.random.default_rng(11).standard_normal(size).astype(float32) ** 2
    for size in ((8, 8), 8, 8)
)
got = np.full((2, 4, 8, 8), np.nan, float32)
simulate(rows_in_python)[1, (8, 8)](t, m, l, *got[0])
module = cuda_cpp(
    ABSORB + ROWS_IN_CPP, "my_rows.cu", "-DWIDTH=8", rows=cuda_kernels.ROWS
)
simulate(module["rows_in_cpp"])[1, 64](t, m, l, *got[1])
print("equal, below 1e-6:", bool(np.abs(got[0] - got[1]).max() <= 1e-6))

# %% [markdown]
# ## 5. Three compilers, one PTX
#
# Numba, NVRTC and Triton all end in PTX, so all three can be read side by side, and run by the same simulator. The third kernel is Triton's, from `kernels/triton/halo.py`. It has no shared array to index, so it passes `t` through global memory; otherwise it is the same. (It was compiled by Triton for sm_80, and its PTX is kept in the package, `python -m kernels.triton.record`; lesson 21 is about Triton.)
#
# Marked is what comes from one line of the source: `y[i] = left + t + right` in all three. **Predict**: which has most instructions? In which is an addition missing, and why? `___`

# %% tags=["nbval-ignore-output"]
TRITON = recorded_ptx("triton")["neighbour_sums_kernel-N64-BARRIER1-warps2"]
numba_made = compiled(neighbour_sums, x, x)
sums_line = 1 + next(
    number
    for number, line in enumerate(numba_made.source.splitlines())
    if "y[i] = left" in line
)
languages = {
    "Numba": (numba_made.ptx, {numba_made.first + sums_line - 1}),
    "CUDA C++": (ptx_of(NEIGHBOURS), {9}),
    "Triton": (TRITON, {24}),
}
show_ptx("y[i] = left + t + right", languages)

# %% [markdown]
# What to see in it:
#
# - **Numba** has the most. `setp.lt … 0` and `selp` before an address: `x[-1]` means the last element, and each access asks (lesson 07). `bar.sync`, `add.f32` and `st.global` are the same as in C++. An array came as seven numbers; a pointer is one.
# - **C++** has a jump (`bra`) around each load that the guard forbids. So has Numba.
# - **Triton** has none: `@%p1 ld.global` is a load under a condition. And where the others add `t` and `left`, it has `fma`: it has put the square into the sum, `x · x + left` with one rounding instead of two.
#
# The last digit can differ, then. All three texts, in one simulator. (Numba passes an array's seven numbers one by one, and `flattened` lays them out; the last two arguments of Triton's kernel are of its own, and unused.)

# %%
results = {name: np.zeros(64, float32) for name in languages}
scratch, unused = np.zeros(64, float32), np.zeros(1)
given = {
    "Numba": flattened((x, results["Numba"]))[0],
    "CUDA C++": (x, results["CUDA C++"]),
    "Triton": (x, scratch, results["Triton"], unused, unused),
}
for name, (ptx, _) in languages.items():
    module = load_ptx(ptx)
    simulate(module[module.names[0]])[1, 64](*given[name])
for name, result in results.items():
    near = bool(np.abs(result - by_cpp).max() <= 1e-6)
    print(f"{name:9} below 1e-6: {near}   bit by bit: {np.array_equal(result, by_cpp)}")

# %% [markdown]
# ### What you may tell the compiler (optional, 8 minutes)
#
# | | it says |
# |---|---|
# | `#pragma unroll 4` | write the loop out four times |
# | `const float* __restrict__ m` | no other pointer of the kernel writes what `m` points to |
# | `__launch_bounds__(64)` | no block has more than 64 threads: so many registers per thread are allowed |
# | `--use_fast_math` | `expf`, `/` and others by the fast instruction; numbers below about 10⁻³⁸ become 0 |
#
# A kernel of four lines, with a weight for each score. `m[0]` is the same for all. **Predict**: with the loop written out, how often does a thread load from global memory, without `__restrict__`? `___` With it? `___` (Think of what a store to `p` may change.)

# %% tags=["nbval-ignore-output"]
WEIGHTS = """
extern "C" __global__ void __launch_bounds__(64)
weights(const float* RESTRICT s, const float* RESTRICT m, float* RESTRICT p) {
    int i = threadIdx.x;
    #pragma unroll UNROLL
    for (int j = 0; j < 4; j++) p[4 * i + j] = expf(s[4 * i + j] - m[0]);
}
"""
variants = {
    "as it is": ("-DUNROLL=1", "-DRESTRICT="),
    "written out": ("-DUNROLL=4", "-DRESTRICT="),
    "and __restrict__": ("-DUNROLL=4", "-DRESTRICT=__restrict__"),
    "and fast math": ("-DUNROLL=4", "-DRESTRICT=__restrict__", "--use_fast_math"),
}
scores = np.random.default_rng(22).normal(0, 3, 256).astype(float32)
exact = np.exp(scores.astype(np.float64) - scores.max())
table = []
for name, options in variants.items():
    out = np.zeros_like(scores)
    kernel = cuda_cpp(WEIGHTS, "weights.cu", *options)["weights"]
    simulate(kernel)[1, 64](scores, scores.max(keepdims=True), out)
    ptx = ptx_of(WEIGHTS, "weights.cu", *options)
    counts = [count(ptx, begin) for begin in ("", "ld.global", "bra")]
    table.append([name, *counts, f"{np.abs(out / exact - 1).max():.1e}"])
show_table(
    ["", "instructions", "loads written", "jumps", "largest relative error"], *table
)

# %% [markdown]
# "As it is", the two loads stand in a loop, so a thread makes 8. Written out it still makes 8: `p` might point to `m`, and then each store would change `m[0]`. With `__restrict__` one load of `m[0]` is enough. **It is your word**: pass the same array twice, and the result is wrong without any error. `--use_fast_math` leaves of each `expf` a product and one `ex2.approx`. The error is slightly larger here, and it grows with the size of the argument, because the product is rounded.
#
# ## 6. The hunt
#
# Lesson 11 had a story: published CUDA that was right up to 26 tokens, where one tile was enough, and wrong from 27 on. Its tests stopped at 16. Here are four small kernels, written for this lesson, with four mistakes of the kinds that the published texts of this course have. Each works on friendly sizes.
#
# Read each one first. **Predict**: which ones will `sim` find, and which can only a comparison show? `___`

# %%
for letter, text in cuda_kernels.HUNT.items():
    print(letter)
    for number, line in enumerate(text.strip("\n").splitlines(), start=1):
        print(f"{number:3}  {line}")
    print()

# %% [markdown]
# Now run them, first on a size that fits, then on one that does not:

# %%
for launch in [("a", 64), ("a", 40), ("b", 31), ("b", 70)]:
    lesson22.hunted(*launch)
print()
for launch in [("c", 20, 8), ("c", 20, 5), ("d", 30), ("d", 61)]:
    lesson22.hunted(*launch)

# %% [markdown]
# Four kernels, and three kinds of evidence. **a** and **c** are wrong, and found. **b** is right in this run and in every run that you will see: the number that it may read too late, after the other block has changed it, is thrown away. It is a race all the same, and costs a load for nothing. **d** has wrong values and no finding: each access is in order. No tool names its line, so ask what 30 tokens and 61 differ in.
#
# ### Exercise 22.5 · mends · one line each
#
# Return for each kernel `{"wrong line": "right line"}`. A line is copied whole, without the spaces in front; its comment may stay away. The work stays as it is shared now: the threads meet in shared memory, with one barrier and no more arrays, and each takes its own element. The values must be right for all sizes, and `sim` finds nothing.
#
# <details><summary>Hint a</summary>
#
# The report names the line that reads. How many numbers of `p` have been written?
#
# </details>
# <details><summary>Hint b</summary>
#
# Which thread reads an element of `o` that belongs to another block? Does it need it?
#
# </details>
# <details><summary>Hint c</summary>
#
# Where does the second tile begin? The first has 8 rows of d numbers. For which d is that the same?
#
# </details>
# <details><summary>Hint d</summary>
#
# Threads 0 and 31 hold the halo. Their sums belong to other blocks.
#
# </details>


# %% tags=["exercise"]
def mends():
    """{"a": {"wrong line": "right line"}, "b": ..., "c": ..., "d": ...}"""
    # BEGIN SOLUTION 22.5
    return {
        "a": {"for (int j = 0; j < 64; j++) {": "for (int j = 0; j < n; j++) {"},
        "b": {
            "o_tile[t] = inside ? o[i] : 0.0f;": (
                "o_tile[t] = inside && t > 0 ? o[i] : 0.0f;"
            )
        },
        "c": {"float* v_tile = shared + d * d;": "float* v_tile = shared + 8 * d;"},
        "d": {
            "if (inside) atomicAdd(l, expf(left + tile[t] + right));": (
                "if (inside && 0 < t && t < 31) "
                "atomicAdd(l, expf(left + tile[t] + right));"
            )
        },
    }
    # END SOLUTION


# %% tags=["check"]
check.ex22_5(mends)

# %% [markdown]
# <details><summary>Where each kind was published</summary>
#
# **a**: the CUDA code of lesson 11's story reads probabilities that no thread has written. **b**: the published forward pass keeps `O` in global memory, and each block reads rows that other blocks write. **c**: the published notebook cuts its tiles at the wrong numbers, and takes rows for columns (lesson 05). **d**: the published forward pass sums the whole loaded tile, halo included (lesson 10).
#
# </details>
#
# ## Validate
#
# The package's kernels in C++, `kernels/cuda_cpp/flash_forward.cu` and `conv_forward.cu`, beside those in Numba of lessons 05 and 11: two heads, 20 tokens, d = 5, 3 × 4 taps. CPU tensors go to the simulator, CUDA tensors to the GPU.

# %%
torch.manual_seed(22)
q, k, v = torch.randn(3, 1, 2, 20, 5)
w = torch.randn(2, 3, 4) / math.sqrt(12)
pairs = {
    "flash": (flash_forward(q, k, v), operators.flash_forward(q, k, v)),
    "convolution": (
        conv_forward(q, k, v, w),
        operators.conv_forward(q, k, v, w, size=32),
    ),
}
show_table(
    ["C++ beside Numba", "O", "L"],
    *(
        [
            name,
            *(
                f"below 1e-5: {bool((a - b).abs().max() <= 1e-5)}"
                for a, b in zip(*both)
            ),
        ]
        for name, both in pairs.items()
    ),
)

# %% [markdown]
# ## In three lines
# - A kernel in C++ is the kernel that you know, with declared types, pointers without lengths, and guards that you write for unsigned numbers.
# - NVRTC needs no GPU: a race, an unwritten number or a bad index in a `.cu` file has a line before it ever meets one; a number that is counted twice has none, so compare values too, on sizes that do not divide.
# - All three languages end in PTX: there you see what a compiler adds (Numba's negative indices), merges (`fma`), and may leave out on your word (`__restrict__`).
#
# **You can now** read the CUDA C++ that others publish, run it without a GPU, and find its mistakes by line.
#
# **Next:** [lesson 23](23_many_gpus.ipynb) cuts a sequence over many GPUs.
