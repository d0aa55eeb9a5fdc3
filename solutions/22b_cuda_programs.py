# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 22b · CUDA C++: bugs, whole programs, promises
#
# **45 minutes** · builds on lesson 22 (kernels in CUDA C++) and lesson 04 (findings)
#
# You will be able to
#
# 1. fix four small kernels with bugs of the kinds that published CUDA code had;
# 2. run a whole CUDA program without a GPU, and find the errors in its `main`;
# 3. say what `__restrict__` and fast math promise to the compiler, and what they cost.
#
# In lesson 22 you wrote kernels of your own. More often you will read those of others. Here you find their bugs: some are reported with a line, and some can only be found by comparing values.
#
# **You need no GPU.** There is no NVRTC for macOS; there, the lesson uses PTX that was recorded when the lesson was built.

# %%
import numpy as np
from numpy import float32

from course import check, guess, progress_bar, show_table
from course.check import cuda_kernels, lesson22b
from course.cuda_cpp import cuda_cpp, ptx_of, run_program
from course.side_by_side import count
from sim import simulate

# %% [markdown]
# ## 1. A bug hunt
#
# Lesson 10b told the story of a published CUDA kernel that was correct for up to 26 tokens, where one tile was enough, and wrong from 27 on. Its tests stopped at 16. Here are four small kernels, written for this lesson, with four bugs of the kinds that the published code in this course has. Each works on some sizes.
#
# Read each one first:

# %%
for letter, text in cuda_kernels.HUNT.items():
    print(letter)
    for number, line in enumerate(text.strip("\n").splitlines(), start=1):
        print(f"{number:3}  {line}")
    print()

# %% [markdown]
# **Predict**: which ones will `sim` report? (The others can only be found by comparing values.) `___`

# %% tags=["guess"]
guess("22b four kernels", sim_reports=...)

# %% [markdown]
# Now run each on a size that fits, and on one that does not:

# %%
for launch in [("a", 64), ("a", 40), ("b", 31), ("b", 70)]:
    lesson22b.hunted(*launch)
print()
for launch in [("c", 20, 8), ("c", 20, 5), ("d", 30), ("d", 61)]:
    lesson22b.hunted(*launch)

# %% [markdown]
# The four kernels give three kinds of evidence:
#
# - **a** and **c** give wrong values, and `sim` reports why.
# - **b** gives correct values, in this run and in any other that you will see. It may read an element too late, after another block has changed it, but it never uses that element. It is a race all the same, and a wasted load.
# - **d** gives wrong values without a finding: every access is in order. No tool can name the line, so ask how 30 tokens and 61 tokens differ.
#
# ### Exercise 22.5 · fixes · one line each
#
# Return `{"wrong line": "right line"}` for each kernel. Copy the whole line, without the spaces in front; you may leave out its comment. Keep the division of the work: the threads exchange values in shared memory, with one barrier and no additional arrays, and each thread handles its own element. The values must be correct for all sizes, and `sim` must report nothing.
#
# <details><summary>Hint a</summary>
#
# The report names the line that reads. How many elements of `p` have been written?
#
# </details>
# <details><summary>Hint b</summary>
#
# Which thread reads an element of `o` that belongs to another block? Does it need it?
#
# </details>
# <details><summary>Hint c</summary>
#
# Where does the second tile begin? The first has 8 rows of d elements. For which d does the code agree?
#
# </details>
# <details><summary>Hint d</summary>
#
# Threads 0 and 31 hold the halo. Their sums belong to other blocks.
#
# </details>


# %% tags=["exercise"]
def fixes():
    """Return {"a": {"wrong line": "right line"}, "b": ..., "c": ..., "d": ...}."""
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
check.ex22_5(fixes)

# %% [markdown]
# <details><summary>Where each kind of bug was published</summary>
#
# **a**: the CUDA kernel of that story reads probabilities that no thread has written (lesson 11b shows how). **b**: the published forward pass keeps `O` in global memory, and each block reads rows that other blocks write. **c**: the published notebook begins its tiles at the wrong elements, and confuses rows and columns (lesson 05b). **d**: the published forward pass sums the whole loaded tile, including the halo (lesson 10b).
#
# </details>
#
# ## 2. A whole program
#
# So far, Python launched your kernels. Most CUDA files on the internet are whole programs, with a `main` that allocates memory on the GPU (`cudaMalloc`), copies (`cudaMemcpy`) and launches (`kernel<<<blocks, threads>>>`). `python -m sim run program.cu` compiles such a file with nvcc, runs `main` on the CPU, and simulates each launch. [Its guide](../docs/cuda_programs.md) lists the errors that it finds.
#
# This program has three bugs: two in the kernel, and one in `main`.

# %%
PROGRAM = """#include <cstdio>

__global__ void neighbour_sums(const float* x, float* y, int n) {
    __shared__ float tile[64];
    int t = threadIdx.x, i = blockIdx.x * 64 + t;
    if (i < n) tile[t] = x[i] * x[i];
    float left = t > 0 ? tile[t - 1] : 0.0f;
    if (i < n) y[i] = left + tile[t];
}

int main() {
    const int n = 100;
    float x[n], y[n], *x_gpu, *y_gpu;
    for (int i = 0; i < n; i++) x[i] = i;
    cudaMalloc(&x_gpu, n * sizeof(float));
    cudaMalloc(&y_gpu, n * sizeof(float));
    cudaMemcpy(x_gpu, x, n * sizeof(float), cudaMemcpyHostToDevice);
    neighbour_sums<<<(n + 63) / 64, 64>>>(x_gpu, y_gpu, n);
    cudaMemcpy(y, y_gpu, 128 * sizeof(float), cudaMemcpyDeviceToHost);
    cudaFree(x_gpu);
    cudaFree(y_gpu);
}
"""

# %% [markdown]
# **Predict** the two lines at which `sim` will find them, before you run the program. (`sim` finds two of the three bugs at the same line.) `___`

# %% tags=["guess"]
guess("22b program", lines=...)

# %% tags=["nbval-ignore-output"]
with progress_bar(total=1, desc="compile with nvcc, run in sim", leave=False):
    report = run_program(PROGRAM, "program.cu")
print(report)

# %% [markdown]
# The kernel has no barrier between lines 6 and 7. In the last block, threads beyond `n` also read elements of `tile` that no thread has written. And line 19 copies 128 floats from an array of 100, which would also overwrite the memory after `y`. Fix all three in `PROGRAM` and run the cells again, until the line `sim: program.cu: …` reports `1 clean; no findings`. (`cudaMemcpy` waits for the kernel, so the program needs no other wait.)

# %% [markdown]
# ## 3. Promises to the compiler
#
# | | meaning |
# |---|---|
# | `#pragma unroll 4` | write out four iterations of the loop |
# | `const float* __restrict__ m` | the kernel writes what `m` points to through no other pointer |
# | `__launch_bounds__(64)` | a block has at most 64 threads, so each may use more registers |
# | `--use_fast_math` | use faster, less accurate instructions for `expf`, `/` and others; numbers below about 10⁻³⁸ become 0 |
#
# The next kernel computes a weight for each score; `m[0]` is the same for all. **Predict**: with the loop written out, how often does a thread load from global memory without `__restrict__`? `___` With it? `___` (Consider what a store to `p` may change.)

# %% tags=["guess"]
guess("22b restrict", without=..., with_it=...)

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
# In "as it is", the two loads are in a loop with four iterations, so a thread executes 8 loads. In "written out", a thread still executes 8 loads, because `p` might point to `m`, and then each store would change `m[0]`. With `__restrict__`, one load of `m[0]` is enough. **It is a promise**: if you pass the same array twice, the result is wrong, without any error message.
#
# `--use_fast_math` reduces each `expf` to a multiplication and one `ex2.approx`. The product x · log₂ e is rounded, and that rounding error is proportional to |x|. So the relative error of the result grows with |x|: it is small for the scores here, and larger for scores near −80.

# %% [markdown]
# ## In three lines
#
# - `sim` reports a race, an unwritten element or a bad index with its line. It cannot report an element that is counted twice, so compare values too, on sizes that do not divide evenly.
# - `python -m sim run program.cu` runs a whole program on the CPU, and checks its `main` too.
# - `__restrict__` saves loads because you promise that two pointers never point to the same element. Nothing checks the promise.
#
# **You can now** read the CUDA C++ that others publish, run it without a GPU, and find its bugs by line.
#
# **Read on:** NVIDIA, *CUDA C++ Programming Guide*, section "`__restrict__`" · NVIDIA, *CUDA C++ Best Practices Guide* · [the guide to whole programs](../docs/cuda_programs.md) of this project.
#
# **Next:** [lesson 23](23_many_gpus.ipynb) divides a sequence among many GPUs.
