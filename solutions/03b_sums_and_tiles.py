# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 03b · Sums and tiles
#
# **60 minutes** · builds on lesson 03 (your simulator) · from lessons 01 and 02 only the idea of a tile
#
# You will be able to:
#
# - write a sum and a tiled matrix product as CUDA kernels;
# - say where a barrier is needed, and why a test that passes proves little;
# - run the same kernels in `sim`, the simulator of this course.
#
# In lesson 03 you built a small GPU. Its first real work is a sum, in which the threads of a block need each other at every step.
#
# The next cell loads your simulator from lesson 03. If you have not solved a part of it, or not saved it, the cell loads the solution's version instead.

# %%
import matplotlib.pyplot as plt
import numpy as np
from numba import cuda
from numpy import float32

from course import brought, check, guess
from course.figures import BLUE, GREEN, ORANGE, show_figure

dim3, SharedMemory, launch, add, double = brought(
    "03_threads_and_blocks", *"dim3 SharedMemory launch add double".split()
)

# %% [markdown]
# ## 1. A sum, by halves
#
# Eight threads can add eight numbers in three steps. In each step, the first half of the threads adds the numbers of the second half. On paper, with 3 1 4 1 5 9 2 6:
#
# | | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |
# |---|---|---|---|---|---|---|---|---|
# | in shared memory | 3 | 1 | 4 | 1 | 5 | 9 | 2 | 6 |
# | step = 4: threads 0–3 do `shared[t] += shared[t + 4]` | **8** | **10** | **6** | **7** | 5 | 9 | 2 | 6 |
# | step = 2: threads 0–1 | **14** | **17** | 6 | 7 | 5 | 9 | 2 | 6 |
# | step = 1: thread 0 | **31** | 17 | 6 | 7 | 5 | 9 | 2 | 6 |
#
# A loop needs seven additions, one after another. The threads need three steps, and for 1024 numbers they need ten. This pattern is called a **tree reduction**.
#
# Where must all threads wait? They must wait before the first step, until all numbers are stored. They must also wait after each step except the last, until all sums of this step are stored: thread 0 needs the 17 of thread 1 and must not read too early. (Waiting after the last step as well does no harm, and keeps the loop simple.)
#
# ### Exercise 3.3 · block_sum · about eight lines
# Each block of `THREADS` threads sums its part of `x`, and block b writes its sum to `out[b]`.
#
# - If the last block has fewer than `THREADS` elements, a thread without an element stores a 0.
# - **Every** thread of the block must reach **every** `syncthreads()`, including the threads without an element. A guard may skip the work, but never the barrier.
# - Add by halves in shared memory, as in the table. No thread reads all eight numbers, and there are no atomic operations.
# - Keep every number in float32, also the 0 that a thread without an element stores: write `float32(0)`. Numba makes a plain `0.0` a float64, and GPUs compute far more slowly in float64.
#
# <details><summary>Hint 1: filling shared memory</summary>
#
# `shared[t] = x[i] if i < x.size else float32(0)`, then the first barrier.
# </details>
# <details><summary>Hint 2: the loop</summary>
#
# `step = THREADS // 2`, then `while step > 0:` … `step //= 2`. Inside the loop, the addition is under `if t < step`, and the barrier is *not*.
# </details>
# <details><summary>Hint 3: writing the result</summary>
#
# At the end the sum is in `shared[0]`. One thread writes it: `if t == 0`.
# </details>

# %% tags=["exercise"]
THREADS = 8


def block_sum(x, out):
    """Write the sum of block b's part of x to out[b], with THREADS threads per block;
    x is 1-D, and out has one element per block."""
    shared = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    i = cuda.blockIdx.x * THREADS + t
    # BEGIN SOLUTION 3.3
    shared[t] = x[i] if i < x.size else float32(0)
    cuda.syncthreads()
    step = THREADS // 2
    while step > 0:
        if t < step:
            shared[t] += shared[t + step]
        cuda.syncthreads()
        step //= 2
    if t == 0:
        out[cuda.blockIdx.x] = shared[0]
    # END SOLUTION


# %% tags=["check"]
check.ex03_3(block_sum)

# %% tags=["uses-exercise"]
x = np.array([3, 1, 4, 1, 5, 9, 2, 6, 10, 20], dtype=float32)
out = np.full(2, np.nan, dtype=float32)
launch(block_sum, dim3(2), dim3(THREADS), x, out)
print(out)

# %% [markdown]
# ## 2. The missing line
#
# **Guess before you run.** Here is the sum again, for one block, without the barrier at the end of each step. We run it two hundred times on the same eight numbers. What will you see?
#
# - ( ) 31, always
# - ( ) a wrong sum, always
# - ( ) sometimes 31, sometimes a wrong sum
# - ( ) a crash


# %%
def racy_sum(x, out):
    """Sum the THREADS numbers in x; this needs luck."""
    shared = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    shared[t] = x[t]
    cuda.syncthreads()
    step = THREADS // 2
    while step > 0:
        if t < step:
            shared[t] += shared[t + step]
        step //= 2
    if t == 0:
        out[0] = shared[0]


# %% [markdown]
# Nothing in this kernel determines which thread is fast and which is slow. On a GPU that depends on everything else that is running. In your simulator it depends on the operating system, which often does the same thing again. So for this experiment we make every store to shared memory take a random time, at most a third of a millisecond. The kernels do not change, and a correct kernel gives the same result as before.

# %%
import random
import time
from collections import Counter


class SlowArray(np.ndarray):
    """An array in which each store takes a random time."""

    def __setitem__(self, index, value):
        time.sleep(random.uniform(0, 0.0003))
        super().__setitem__(index, value)


def sums_seen(kernel, runs=200):
    """Count the results of `runs` launches of one block on the eight numbers of
    section 1."""
    x = np.array([3, 1, 4, 1, 5, 9, 2, 6], dtype=float32)
    seen = Counter()
    SharedMemory.kind = SlowArray
    try:
        for _ in range(runs):
            out = np.full(1, np.nan, dtype=float32)
            launch(kernel, dim3(1), dim3(THREADS), x, out)
            seen[float(out[0])] += 1
    finally:
        SharedMemory.kind = np.ndarray
    return seen


# %% tags=["uses-exercise"]
seen = sums_seen(racy_sum)
print("without the barrier: wrong at least once in 200 runs:", seen[31.0] < 200)
print("                     wrong every time:", seen[31.0] == 0)

seen_with_barrier = sums_seen(block_sum)
print(
    "with the barrier:    wrong at least once in 200 runs:",
    seen_with_barrier[31.0] < 200,
)

figure, axes = plt.subplots(figsize=(8, 2.6))
names = sorted(seen)
bars = axes.bar(
    [f"{name:g}" for name in names],
    [seen[name] for name in names],
    color=ORANGE,
    edgecolor="black",
)
axes.bar_label(bars)
if 31.0 in seen:
    bars[names.index(31.0)].set(facecolor=BLUE, hatch="//")
axes.set(xlabel="the sum (31, hatched, is correct)", ylabel="runs of 200")
axes.margins(y=0.15)
show_figure(
    figure,
    "a bar for each result of the racy kernel, "
    "as high as the number of runs, of 200, that gave it. "
    "If the correct sum, 31, was among them, its bar is blue and hatched; "
    "the others are orange. The picture is different each time the cell runs.",
)

# %% [markdown]
# This is a [**race**](../docs/glossary.md): two threads access the same element, at least one of them writes, and nothing determines which access comes first. It is the worst kind of bug, because a test may pass. We also ran the racy kernel 200 times without the random delay. On a quiet computer about 20 sums were correct. On the same computer, while it was busy with another program, 146 were. The kernel was the same both times.
#
# ## 3. Tiles in shared memory
#
# Now you write something useful: a matrix product. In the direct kernel, each thread computes one element of `c = a @ b`, and reads a whole row of `a` and a whole column of `b`. For 8×8 matrices, each of 64 threads reads 8 + 8 numbers, so there are 1024 reads, although the matrices have only 128 numbers. Neighbouring threads read the same numbers again and again.
#
# The threads of a block can share them. Cut the matrices into tiles of 4×4. A block owns one tile of `c`. It goes along its row of tiles in `a` and its column of tiles in `b`, one pair of tiles per step. In each step, every thread loads **one** number of each tile into shared memory, all threads wait, and then all compute from shared memory.
#
# In the picture, the block that owns the orange tile of `c` takes two steps. In the
# first it loads the two blue tiles and multiplies them. In the second it loads the two
# green ones into the same shared arrays, and adds their product. The white tiles belong
# to other blocks.

# %% jupyter={"source_hidden": true}


def draw_tiles(tile=4):
    """Draw a (left), b (above) and c, 8 x 8 each, in tiles; colour the tiles of one
    block."""
    figure, axes = plt.subplots(figsize=(6.6, 5.2))
    places = {"a": (0, 9), "b": (9, 0), "c": (9, 9)}  # upper left corners
    colours = {
        ("a", 0, 0): BLUE,
        ("a", 0, 1): GREEN,
        ("b", 0, 1): BLUE,
        ("b", 1, 1): GREEN,
        ("c", 0, 1): ORANGE,
    }
    for name, (left, top) in places.items():
        for row in range(2 * tile):
            for column in range(2 * tile):
                mine = colours.get((name, row // tile, column // tile))
                axes.add_patch(
                    plt.Rectangle(
                        (left + column, top + row),
                        1,
                        1,
                        facecolor=mine or "white",
                        edgecolor="lightgrey" if mine is None else "white",
                    )
                )
        axes.text(left - 0.4, top + 4, name, ha="right", va="center", fontsize=16)
    for words, x, y in [
        ("step 0", 2, 11),
        ("step 1", 6, 11),
        ("step 0", 15, 2),
        ("step 1", 15, 6),
        ("its own", 15, 11),
    ]:
        axes.text(x, y, words, ha="center", va="center", color="white", fontsize=12)
    axes.set(xlim=(-1.2, 17.2), ylim=(17.2, -0.2), aspect="equal")
    axes.axis("off")
    return figure


show_figure(
    draw_tiles(),
    "three matrices of 8 by 8 numbers in tiles of 4 by 4: a at the left, b above, "
    "c where they meet. The block that owns the upper right tile of c is orange. "
    "In step 0 it loads the upper left tile of a and the upper right tile of b, both "
    "blue; in step 1 the upper right tile of a and the lower right tile of b, both "
    "green.",
)

# %% [markdown]
# **Predict.** How many numbers are read from `a` and `b` now? There are 4 blocks, each
# takes 2 steps, and in each step its 16 threads load 2 numbers each: `___`

# %% tags=["guess"]
guess("03b tiles", numbers_read=...)

# %% [markdown]
# Blocks and threads have two indices now. x counts along a row and y counts down a column, so the thread with `threadIdx` (x, y) is in row y and column x of its tile. It is easy to confuse the two.
#
# ### Exercise 3.4 · matmul · about ten lines
# Write the loop over the tiles and the store at the end.
#
# - In each step, every thread loads one number of each tile into shared memory. Then it computes its products from shared memory.
# - The sizes need not be multiples of `TILE`. An element of a tile that is outside its matrix becomes 0, and nothing is stored outside `c`.
# - Compute in float32, as in exercise 3.3.
# - Wait with `cuda.syncthreads()` wherever a thread needs the numbers of another thread, or overwrites numbers that another thread may still need.
#
# <details><summary>Hint 1: loading</summary>
#
# `for start in range(0, a.shape[1], TILE)`. The thread loads `a[row, start + tx]` into `a_tile[ty, tx]`, and `b[start + ty, col]` into
# `b_tile[ty, tx]`. Each load has a guard with two conditions, one for each dimension. If the guard is false, store `float32(0)`.
# </details>
# <details><summary>Hint 2: multiplying</summary>
#
# `total += a_tile[ty, k] * b_tile[k, tx]` for k from 0 to TILE - 1.
# </details>
# <details><summary>Hint 3: how many barriers?</summary>
#
# You need two in each step. One is after loading: no thread may read a tile before it is complete. The other is after multiplying: no thread
# may overwrite a tile that a slower thread is still reading.
# </details>

# %% tags=["exercise"]
TILE = 4


def matmul(a, b, c):
    """Compute c = a @ b for float32 a (m, k), b (k, n), c (m, n);
    each block of TILE x TILE threads computes one tile of c."""
    a_tile = cuda.shared.array((TILE, TILE), float32)
    b_tile = cuda.shared.array((TILE, TILE), float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row = cuda.blockIdx.y * TILE + ty
    col = cuda.blockIdx.x * TILE + tx
    total = float32(0)
    # BEGIN SOLUTION 3.4
    for start in range(0, a.shape[1], TILE):
        inside_a = row < a.shape[0] and start + tx < a.shape[1]
        inside_b = start + ty < b.shape[0] and col < b.shape[1]
        a_tile[ty, tx] = a[row, start + tx] if inside_a else float32(0)
        b_tile[ty, tx] = b[start + ty, col] if inside_b else float32(0)
        cuda.syncthreads()
        for k in range(TILE):
            total += a_tile[ty, k] * b_tile[k, tx]
        cuda.syncthreads()
    if row < c.shape[0] and col < c.shape[1]:
        c[row, col] = total
    # END SOLUTION


# %% tags=["check"]
check.ex03_4(matmul)

# %% [markdown]
# Now run it in your own simulator, on matrices whose sizes are not multiples of the tile:

# %% tags=["uses-exercise"]
numbers = np.random.default_rng(3)
a = numbers.standard_normal((6, 10)).astype(float32)
b = numbers.standard_normal((10, 7)).astype(float32)
c = np.full((6, 7), np.nan, dtype=float32)
launch(matmul, dim3(2, 2), dim3(TILE, TILE), a, b, c)
print("largest difference from a @ b below 1e-5:", np.abs(c - a @ b).max() < 1e-5)

# %% [markdown]
# ## 4. The same kernels in `sim`
#
# The rest of the course uses the simulator `sim`. It works on the same principle as yours: it runs a copy of the kernel in which `cuda` refers to something else. It adds what you would add in a few more weeks: it supports all of CUDA that a kernel in this course may use, it follows calls from a kernel to other functions, and it checks every memory access. A launch has the same form as on the GPU, with square brackets: `simulate(kernel)[grid, block](arguments)`.

# %%
from sim import KernelBug, simulate

# %% tags=["uses-exercise"]
c_sim = np.full((6, 7), np.nan, dtype=float32)
report = simulate(matmul)[dim3(2, 2), dim3(TILE, TILE)](a, b, c_sim)
print(
    "largest difference from your simulator below 1e-5:", np.abs(c_sim - c).max() < 1e-5
)
print("findings:", len(report.findings))

# %% [markdown]
# There are two things that `sim` does better. First, it names the thread, the line and the element that are at fault. Here is `double`, which has no guard, on ten elements again. Compare the message with the `IndexError` in section 2 of lesson 03.

# %%
x = np.arange(10, 20).astype(float32)
out = np.zeros(10, dtype=float32)
try:
    simulate(double)[3, 4](x, out)
except KernelBug as bug:
    print(bug)

# %% [markdown]
# Second, you can repeat a run exactly. In your simulator, the operating system decides when each thread runs. `sim` runs one thread at a time, in a random order that depends only on the `seed`. Here is the racy sum with fifty seeds, followed by the same fifty again:


# %%
def racy_result(seed):
    x = np.array([3, 1, 4, 1, 5, 9, 2, 6], dtype=float32)
    out = np.full(1, np.nan, dtype=float32)
    simulate(racy_sum, seed=seed, on_finding="report")[1, THREADS](x, out)
    return float(out[0])


first = [racy_result(seed) for seed in range(50)]
second = [racy_result(seed) for seed in range(50)]
print("some seeds give a wrong sum:", any(result != 31 for result in first))
print("some seeds give the correct sum:", any(result == 31 for result in first))
print("each seed gives the same sum again:", first == second)

# %% [markdown]
# `sim` can also draw the accesses that it recorded. In the timeline of the racy sum, nothing separates one step from the next; a barrier would be drawn as a vertical line. (The time axis counts the accesses of each thread.)

# %%
from sim.observers import DEFAULT, Trace

x, out = np.array([3, 1, 4, 1, 5, 9, 2, 6], dtype=float32), np.zeros(1, dtype=float32)
simulate(racy_sum, on_finding="report", observers=[*DEFAULT, Trace])[1, 8](
    x, out
).timeline()

# %% [markdown]
# Here is your own sum. There is a line after each step, and the threads without work wait there (grey):

# %% tags=["uses-exercise"]
simulate(block_sum, observers=[*DEFAULT, Trace])[1, 8](x, out).timeline()

# %% [markdown]
# ### How fast is it?
#
# `sim` has several engines. By default, a short launch runs on `fibers`, which is fast: its threads are greenlets, functions that can pause in the middle and switch to another one at almost no cost. The engine `threads` uses one Python thread per CUDA thread, as yours does, but lets only one run at a time. Both engines run the threads in the same order.
#
# **Predict.** Launch `add` with 4096 threads, in your simulator and in `sim` with `fibers`. Which is faster?


# %%
def seconds(call):
    """Return the shortest time of three calls."""
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


x = np.arange(4096).astype(float32)
out = np.zeros(4096, dtype=float32)
yours = seconds(lambda: launch(add, dim3(16), dim3(256), x, x, out))
sims = seconds(lambda: simulate(add)[16, 256](x, x, out))
print("4096 Python threads take less than 10 seconds:", yours < 10)
print("sim is faster:", sims < yours)

# %% [markdown]
# (To see the ratio on your computer, print `yours / sims`. On ours it was about 8.)
#
# Starting a Python thread takes about a tenth of a millisecond, far longer than the work that the thread does here. `add` has no barrier, so `sim` needs no threads at all: it uses a plain loop, like `launch_in_turn` in section 2 of lesson 03.
#
# ## Validate
#
# Each kernel runs with sizes that are not multiples of the block. We compare your simulator with NumPy, then both engines of `sim` with your simulator.


# %% tags=["uses-exercise"]
def cases(numbers):
    """Return (kernel, grid, block, inputs, NumPy's result) for each kernel."""
    x, y = numbers.standard_normal((2, 29)).astype(float32)
    a = numbers.standard_normal((9, 5)).astype(float32)
    b = numbers.standard_normal((5, 11)).astype(float32)
    sums = np.array(
        [x[start : start + THREADS].sum() for start in range(0, 29, THREADS)]
    )
    return [
        (add, dim3(4), dim3(8), (x, y), x + y),
        (block_sum, dim3(4), dim3(THREADS), (x,), sums),
        (matmul, dim3(3, 3), dim3(TILE, TILE), (a, b), a @ b),
    ]


simulators = {
    "yours": launch,
    "sim, fibers": lambda kernel, grid, block, *args: simulate(kernel)[grid, block](
        *args
    ),
    "sim, threads": lambda kernel, grid, block, *args: simulate(
        kernel, engine="threads"
    )[grid, block](*args),
}

print(f"{'kernel':10} {'simulator':13} {'against':8} largest difference")
for kernel, grid, block, inputs, wanted in cases(np.random.default_rng(3)):
    against = "numpy"
    for name, run in simulators.items():
        out = np.full(wanted.shape, np.nan, dtype=float32)
        run(kernel, grid, block, *inputs, out)
        verdict = "below 1e-5 ✓" if np.abs(out - wanted).max() < 1e-5 else "TOO LARGE ✗"
        print(f"{kernel.__name__:10} {name:13} {against:8} {verdict}")
        if name == "yours":
            against, wanted = "yours", out

# %% [markdown]
# ### On a real GPU, if there is one
# `cuda.jit` compiles the kernel for the GPU, and the launch has the same form. Without a GPU this cell uses `sim` and prints the same line. (On a GPU, Numba may warn that such a small launch leaves most of the GPU idle, which is true.)

# %% tags=["uses-exercise"]
on_this_machine = cuda.jit if cuda.is_available() else simulate
_, grid, block, inputs, wanted = cases(np.random.default_rng(4))[2]
c = np.full(wanted.shape, np.nan, dtype=float32)
on_this_machine(matmul)[grid, block](*inputs, c)
print(
    "matmul, largest difference from numpy below 1e-5:", np.abs(c - wanted).max() < 1e-5
)

# %% [markdown]
# ## In three lines
# - A kernel describes the work of one thread. `blockIdx`, `blockDim` and `threadIdx` determine which element it processes, and the guard tests whether there is one.
# - The threads of a block share memory, and `syncthreads` orders their accesses. Every thread of the block has to reach it.
# - A missing barrier is a race: the result depends on timing, so a test that passes proves little.
#
# **You can now** write a map, a sum and a tiled matrix product as CUDA kernels, and run them on a GPU that you have built yourself.
#
# **Read on:** NVIDIA, *CUDA C++ Programming Guide*, chapter "Programming Model" (thread hierarchy, memory hierarchy) · Numba documentation, *CUDA Python Reference* and "Writing CUDA Kernels" · Mark Harris, *Optimizing Parallel Reduction in CUDA* (NVIDIA, 2007), seven versions of your `block_sum`.
#
# **Next:** in [lesson 04](04_what_can_go_wrong.ipynb) and its second part you meet nine kernels with nine bugs, and `sim` names each of them.
