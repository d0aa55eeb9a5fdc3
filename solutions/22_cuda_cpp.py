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
# **85 minutes** · builds on lesson 05 (the flash kernel), lesson 06 (shuffles), lesson 07 (PTX) and lesson 11 (the convolutional kernel)
#
# You will be able to:
#
# 1. write a kernel in CUDA C++, with pointers, declared types, and shared memory whose size is set at the launch;
# 2. find a race in a `.cu` file, with its line, on a machine without a GPU;
# 3. read the PTX of Numba, CUDA C++ and Triton side by side, and say what each compiler added.
#
# **Why it matters.** CUDA C++ is NVIDIA's own language for GPUs. Its libraries, and the first three versions of FlashAttention, are written in it, and so is most of the CUDA code that you will find. This course's package has its kernels in three languages, with the same algorithms, names and grids. Here is one layer (8 heads of 64, 7 × 7 taps, causal, float32) on one GPU:

# %%
import json
import math

import matplotlib.pyplot as plt
import numpy as np
import torch
from numba import cuda
from numpy import float32

from course import brought, check, guess, show_figure, show_table
from course.check import cuda_kernels
from course.cuda_cpp import cuda_cpp, ptx_of
from course.figures import ORANGE, SKY
from course.ptx import compiled
from course.side_by_side import show_ptx
from kernels.common.data import DATA, recorded_ptx
from kernels.conv.forward import conv_forward
from kernels.cuda_cpp import operators
from kernels.flash.forward import flash_forward
from sim import load_ptx, simulate
from sim.observers import COUNTERS, DEFAULT, Trace
from sim.ptx.numba import flattened

# %%
record = json.loads((DATA / "languages.json").read_text("utf-8"))
PEAK = 67e12  # float32 operations per second of an H200, without tensor cores


def of_peak(row):
    """Return the fraction of the float32 peak that causal flash attention reaches."""
    batches, heads, n, d = row["shape"]
    operations = 4 * batches * heads * n * n * d / 2  # two products, half of the pairs
    return operations / (row["flash_ms"] / 1000) / PEAK


show_table(
    ["tokens", "language", "flash, ms", "of peak", "convolution, ms", "backward, ms"],
    *(
        [
            f"{row['shape'][2]:,}",
            row["name"],
            f"{row['flash_ms']:.2f}",
            f"{of_peak(row):.0%}",
            *(f"{row[what]:.2f}" for what in ("forward_ms", "backward_ms")),
        ]
        for row in record["languages"]
        if row["shape"][2] in (1024, 4096)
    ),
    title=f"{record['gpu']}, recorded {record['date']}",
)

# %% [markdown]
# In the convolution, the C++ kernels are the fastest of the three. In plain flash attention it is Triton, because `tl.dot` gives each thread a patch of the scores instead of one row (lesson 21). None of these flash kernels is fast: the C++ version reaches 7 % of the GPU's float32 peak of 67 TFLOP/s. They are written to be read; lessons 16 to 18 show how to come closer. In this lesson you write the first of these kernels in C++.
#
# **You need no GPU.** NVIDIA's compiler NVRTC turns C++ into PTX on any Linux or Windows machine, and `sim` runs the PTX. There is no NVRTC for macOS. There, the lesson uses PTX that was recorded when the lesson was built. If your code differs from the solution, it cannot be checked on macOS, and the cell says so.
#
# Here is an example of its use: seven lines of C++ with a bug. Read them first. **Which two threads conflict (name one pair)?** `___` Which line writes? `___` Which line reads? `___` (Line 1 is `extern`.)

# %% tags=["guess"]
guess("22 race", threads=..., writes=..., reads=...)

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
# Thread i reads the element that thread i − 1 writes, and nothing orders the two accesses. `sim` shows one pair of threads with both lines, and counts 62 more pairs. The fix is one line between lines 4 and 5: `__syncthreads();`.
#
# You can do the same for any `.cu` file from a shell: `python -m sim neighbours.cu --entry neighbour_sums --block 64 'float32[64]' 'float32[64]=0'`.
#
# ## 1. The same kernel twice
#
# Start with a kernel for one block of 64 threads: `y[i] = t[i − 1] + t[i] + t[i + 1]` with `t = x²`, and 0 outside. Here it is in Numba, and then in C++:


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
# The two kernels correspond line by line. The differences:
#
# | | Numba | CUDA C++ |
# |---|---|---|
# | a kernel | `@cuda.jit` | `extern "C" __global__ void` (`extern "C"` keeps the name unchanged) |
# | a function for kernels | `@cuda.jit(device=True)` | `__device__ float f(...)` |
# | a type | inferred | declared: `float t`, `int i`, `const float* x` |
# | an array | knows its shape | a **pointer**, the address of one element; lengths come as `int n` |
# | row i, column c | `x[i, c]` | `x[i * d + c]` |
# | `x[-1]` | the last element | whatever is in memory before the array |
# | a slice | `x[3:]` | `x + 3`, a pointer three elements further |
# | shared memory | `cuda.shared.array(64, float32)` | `__shared__ float tile[64];` |
# | shared memory sized by the launch | `cuda.shared.array(0, float32)` | `extern __shared__ float shared[];` |
# | a choice | `a if i > 0 else b` | `i > 0 ? a : b` |
# | a loop | `for e in range(t, n, T)` | `for (int e = t; e < n; e += T)` |
# | several results | `return m, l` | parameters `float& m, float& l`: the function changes the caller's variables |
# | one half | `float32(0.5)`; `0.5` is a float64 | `0.5f`; `0.5` is a `double` |
#
# ## 2. Numbers in C++
#
# You learn the syntax quickly. Some rules look like Python's and differ, and these take longer:
#
# - `/` of two `int`s is an `int`, rounded **towards 0**. `%` is the remainder of that division, so it has the sign of its left operand.
# - `int(x)` also rounds towards 0.
# - A comparison is a `bool`, which counts as the `int` 1 or 0. A chain of comparisons is evaluated from left to right, so `0 <= k < n` does not mean what it means in mathematics.
# - `threadIdx.x` and `blockIdx.x` are **unsigned**: below 0 they wrap around to 4294967295. An expression of an `unsigned` and an `int` is `unsigned`. `int i = threadIdx.x;` converts to `int`.
#
# ### Exercise 22.1 · expressions · eight values
#
# Given `int i = -7, n = 4, k = 7; float x = 8;`, a pointer `a` to the floats 0, 10, 20, 30, …, and `const float* row = a + 3;`: what is the value of each expression in thread 0 of block 0? Two of them are guards of a halo, written incorrectly. One is not covered by the list above: guess, and the check explains it.
#
# | | | | |
# |---|---|---|---|
# | a | `i / 2` | e | `int(x / -3.0f)` |
# | b | `i % n` | f | `threadIdx.x - 1 < 0` |
# | c | `i >> 1` | g | `0 <= k < n` |
# | d | `1 / n * x` | h | `row[2]` |


# %% tags=["exercise"]
def expressions():
    """Return {"a": ..., ..., "h": ...}, numbers; true is 1."""
    # BEGIN SOLUTION 22.1
    return {"a": -3, "b": -3, "c": -4, "d": 0, "e": -2, "f": 0, "g": 1, "h": 50}
    # END SOLUTION


# %% tags=["check"]
check.ex22_1(expressions)

# %% [markdown]
# So the guard `threadIdx.x - 1 >= 0` lets every thread through. So does `0 <= k < n`, if n is greater than 1.
#
# ## 3. The flash kernel of lesson 05
#
# You will rebuild it part by part. The function `visit`, which processes one row and one tile, is given. Compare it with yours: `m` and `l` are references, and `fmaxf` and `expf` are the functions for `float`.

# %%
VISIT = cuda_kernels.VISIT
print(VISIT.strip())

# %% [markdown]
# ### Exercise 22.2 · load_tile · about two lines
#
# This is exercise 5.1 again. Fill `tile` with `length` elements of `array`, starting with element `start`. Elements past the `size` elements of `array` are 0 in the tile.
#
# - One thread loads each element of the tile, and the threads of the (one-dimensional) block share the work equally.
# - `array` may be part of a longer array: do not read past its `size` elements.
# - Use no barrier. Here and in all that follows, use no `double`.
#
# The code is in a Python string. Replace the line with `raise` by your C++.
#
#
# <details><summary>Hint: the loop</summary>
#
# Start at `threadIdx.x`, in steps of `blockDim.x`.
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
# Now write the kernel. `#include "tiles.cuh"` provides `load_tile`, `visit` and `MINUS_INFINITY`. The launch sets the size of the shared memory, here to 2 · (columns + rows) · d floats. C++ has no slices, so the four tiles are four pointers into one array:
#
# | K tile | V tile | Q tile | O tile |
# |---|---|---|---|
# | columns · d floats | columns · d floats | rows · d floats | rows · d floats |


# %% jupyter={"source_hidden": true}
def draw_layout(columns, rows, d):
    """Draw the four tiles in one array of shared memory, with the index of each."""
    figure, axes = plt.subplots(figsize=(10, 1.7), layout="constrained")
    start = 0
    for name, height, shade in [
        ("K", columns, SKY),
        ("V", columns, ORANGE),
        ("Q", rows, SKY),
        ("O", rows, ORANGE),
    ]:
        for e in range(height * d):
            axes.add_patch(
                plt.Rectangle((start + e, 0), 0.94, 1, facecolor=shade, alpha=0.7)
            )
            words = f"{name}\n{e // d},{e % d}"
            axes.text(start + e + 0.47, 0.5, words, ha="center", va="center")
        pointer = f"{name.lower()}_tile = shared + {start}"
        axes.text(start, 1.2, pointer, fontsize=10)
        start += height * d
    axes.set(xlim=(-0.2, start + 0.2), ylim=(-0.1, 1.6))
    axes.axis("off")
    return figure


show_figure(
    draw_layout(2, 2, 3),
    "24 floats in a row, for columns = 2, rows = 2, d = 3: K from index 0 on, V from "
    "6, Q from 12 and O from 18, with six floats each, row by row.",
)

# %% [markdown]
# **Predict**, for columns = 4, rows = 3, d = 2, the index in `shared` at which each tile begins: K `___`, V `___`, Q `___`, O `___`

# %% tags=["guess"]
guess("22 tiles", K=..., V=..., Q=..., O=...)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 0, 8, 16, 22. (You may choose another order.) The compiler does not notice if a pointer is off by a few elements. Then two tiles overlap, or the last tile ends after the end of the memory.
#
# </details>
#
# ### Exercise 22.3 · flash_kernel · about fourteen lines
#
# Write the body: `o = softmax(scale · q kᵀ) v`, with q, k, v and o of n rows of d elements. `rows` is the number of threads in a block, and `columns` the number of keys in a tile.
#
# - Thread t of block b owns the query b · rows + t.
# - Each thread loads its part of each tile once, and writes its own row of `o`.
# - Use no shared memory except the array `shared`: its size is known only at the launch.
# - The arrays may be longer than n rows. Use no `double`.
#
# <details><summary>Hint 1: pointers</summary>
#
# `float* k_tile = shared;`, then `float* v_tile = k_tile + columns * d;` and so on.
#
# </details>
# <details><summary>Hint 2: the order</summary>
#
# Load the Q tile, set this thread's row of the O tile to 0, `float m = MINUS_INFINITY, l = 0.0f;`. For each tile of keys: load K and V, barrier, `visit`, barrier. At the end, with a guard, store row t of the O tile divided by l.
#
# </details>
# <details><summary>Hint 3: the arguments of load_tile</summary>
#
# `load_tile(k_tile, k, start * d, columns * d, n * d)`: it counts elements, not rows. The last tile has `min(columns, n - start)` keys to visit.
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
        __syncthreads();  // used up: the next tile may be loaded
    }
    if (first + t < n)
        for (int c = 0; c < d; c++) o[(first + t) * d + c] = o_tile[t * d + c] / l;
    # END SOLUTION
}
"""

# %% tags=["check"]
check.ex22_3(FLASH)

# %% [markdown]
# ### Compared with lesson 05
#
# Run both kernels on the same input: 64 queries and keys, d = 8, blocks of 16. In lesson 02 you calculated 5120 loads and stores of global memory before anything ran. **Predict** what `sim` counts in the PTX of your C++: the same, more, or fewer? `___`

# %% tags=["guess"]
guess("22 counted", loads_and_stores=...)

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
# And this is how your threads use the 28 floats of `shared`, for columns = 4, rows = 3, d = 2, as in the prediction above:

# %% tags=["uses-exercise"]
in_cpp = cuda_cpp(FLASH, "my_flash.cu", tiles=TILES)["flash_kernel"]
given = np.random.default_rng(5).standard_normal((4, 6)).astype(float32)
traced = simulate(in_cpp, observers=[*DEFAULT, Trace])
traced[1, 3, 0, 4 * 28](*given, 3, 2, 4, float32(0.5)).memory_map("shared")

# %% [markdown]
# ### Two barriers, two races
#
# Now run your kernel as it is, and without each of its barriers (the cell looks for `__syncthreads();`). **Predict** which tile a fast thread reads too early, or overwrites, without the first barrier: `___` Without the second barrier: `___`

# %% tags=["guess"]
guess("22 barriers", first=..., second=...)

# %%
BARRIER = "__syncthreads();"


def without_barrier(text, number):
    """Return the text without its barrier `number`, counted from 0."""
    parts = text.split(BARRIER)
    both = parts[number] + parts[number + 1]
    return BARRIER.join([*parts[:number], both, *parts[number + 2 :]])


def findings(text, name):
    """Return the messages of sim's findings in a flash kernel."""
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
# In the solution's layout, K and V occupy elements 0 to 255 of `shared`, so element 257 is in the Q tile. Without the first barrier, a fast thread uses rows that a slow thread has not loaded yet. Without the second, a fast thread overwrites keys that a slow thread still reads.
#
# ## 4. Lanes, and the mask that names them
#
# In lesson 11 the threads of a row computed their maximum and their sum by shuffles. Numba's `cuda.shfl_xor_sync(mask, value, step)` is `__shfl_xor_sync(mask, value, step)` in C++. Its mask has one bit for every lane that takes part. In lesson 11 all 32 lanes did.
#
# Here a row has `WIDTH` neighbouring lanes, 4, 8 or 16, so a warp contains several rows, **and not every row takes part**. At the end of the sequence some rows have no query, and some have fewer tiles than others. If the mask names a lane that does not execute the shuffle, the warp hangs, or the result is undefined.
#
# In the picture, row 1 has run out of tiles, and row 3 has no query:


# %% jupyter={"source_hidden": true}
def draw_lanes(width, absent):
    """Draw the lanes of a warp, `width` to a row; absent rows are grey."""
    figure, axes = plt.subplots(figsize=(11, 1.7))
    for lane in range(32):
        row = lane // width
        colour = "lightgrey" if row in absent else (SKY, ORANGE)[row // 2 % 2]
        axes.add_patch(plt.Rectangle((lane, 0), 0.92, 0.9, facecolor=colour))
        axes.text(lane + 0.46, 0.45, lane, ha="center", va="center", fontsize=10)
    for row in range(32 // width):
        words = "no shuffle" if row in absent else "shuffles"
        middle = row * width + width / 2
        axes.text(middle, 1.15, f"row {row}: {words}", ha="center", fontsize=11)
    axes.set(xlim=(0, 32), ylim=(-0.1, 1.6))
    axes.axis("off")
    return figure


show_figure(
    draw_lanes(8, {1, 3}),
    "the 32 lanes of a warp in a line, four rows of 8 lanes. Row 0, lanes 0 to 7, "
    "and row 2, lanes 16 to 23, shuffle. The rows 1 and 3 do not.",
)

# %% [markdown]
# **Predict** the masks, for WIDTH = 8, in hexadecimal (a digit is four lanes): of lanes 0 to 7 `___`, of lanes 16 to 23 `___`, of all 32 `___`

# %% tags=["guess"]
guess("22 masks", lanes_0_to_7=..., lanes_16_to_23=..., all_32=...)

# %% [markdown]
# This is `rows.cuh`. `weight` is lesson 11's: exp(a − b), and 0 if a is −∞. `#pragma unroll` asks the compiler to write out the loop. WIDTH is known at compile time, so no loop remains.

# %%
print(cuda_kernels.ROWS.strip())

# %% [markdown]
# ### Exercise 22.4 · absorb · about eight lines
#
# This is exercise 11.3 again. Each thread has its own `t`, and a copy of its row's `m` and `l`. Return `p` = exp(t − new m), set `shrink` to exp(old m − new m), and replace `m` and `l` by their new values, equal in all lanes of the row.
#
# - The sum takes one shuffle per halving of WIDTH, as `row_max` does, and no shared memory.
# - t and m may be −∞, and scores reach ±1000. The block has one dimension.
# - Compute the mask of *this* row from `threadIdx.x`. Do not use `__activemask()`: it returns the lanes that happen to be active there, not the lanes that should be.
#
#
# <details><summary>Hint 1: the row's first lane</summary>
#
# The lane is `threadIdx.x % 32`; `lane / WIDTH * WIDTH` is the first lane of its row (a division of whole numbers!).
#
# </details>
# <details><summary>Hint 2: the sum</summary>
#
# As in `row_max`, with `+=` instead of `fmaxf`. Every lane adds its p, even if it is 0.
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
# Compare it with lesson 11's `absorb`, on the same 8 rows of 8 lanes:

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
# Numba, NVRTC and Triton all produce PTX, so you can read all three side by side, and run them in the same simulator. The third kernel is Triton's, from `kernels/triton/halo.py`. Triton has no shared array that a kernel could index, so this one passes `t` through global memory. Otherwise it is the same. Triton compiled it for sm_80, and the package contains the PTX (`python -m kernels.triton.record`).
#
# The marked instructions come from one line of the source, `y[i] = left + t + right`. **Predict**: which language has the most instructions? `___` In which one is an addition missing, and why? `___`

# %% tags=["guess"]
guess("22 three compilers", most_instructions=..., addition_missing=...)

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
# Notice three differences:
#
# - **Numba** has the most instructions. `setp.lt … 0` and `selp` before an address implement negative indices: `x[-1]` is the last element, so each access tests its index (lesson 07). `bar.sync`, `add.f32` and `st.global` are the same as in C++. An array is passed as seven values, a pointer as one.
# - **C++** has a jump (`bra`) around each guarded load. So has Numba.
# - **Triton** has no jump: `@%p1 ld.global` is a conditional load. And instead of adding `t` and `left`, it has an `fma`: it merged the square into the sum, `x · x + left`, with one rounding instead of two.
#
# So the last digit can differ. Run all three in the simulator. (Numba passes the seven values of an array one by one, and `flattened` produces them. The last two parameters of Triton's kernel are its own, and unused.)

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
# ## Validate
#
# Compare the package's kernels in C++, `kernels/cuda_cpp/flash_forward.cu` and `conv_forward.cu`, with those in Numba from lessons 05 and 11: two heads, 20 tokens, d = 5, 3 × 4 taps. Given CPU tensors they run in the simulator, given CUDA tensors on the GPU.

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
    ["C++ against Numba", "O", "L"],
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
#
# - A C++ kernel is the kernel that you know, with declared types, pointers without lengths, and guards that you write for unsigned integers.
# - NVRTC needs no GPU: `sim` reports a race, an unwritten element or a bad index in a `.cu` file with its line.
# - All three languages produce PTX. There you see what a compiler adds (Numba's negative indices) and merges (`fma`).
#
# **You can now** write a kernel in CUDA C++ and run it without a GPU.
#
# **Read on:** NVIDIA, *CUDA C++ Programming Guide*, sections "Shared Memory" and "Warp Shuffle Functions" · NVIDIA, *NVRTC* documentation · David B. Kirk, Wen-mei W. Hwu and Izzat El Hajj, *Programming Massively Parallel Processors* (4th edition, 2022).
#
# **Next:** [lesson 22b](22b_cuda_programs.ipynb) hunts bugs in other people's `.cu` files, and runs whole programs.
