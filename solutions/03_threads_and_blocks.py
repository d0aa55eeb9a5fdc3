# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 03 · A GPU out of Python threads
#
# **105 minutes**, and 10 for the part marked *optional* · needs: Python, and NumPy arrays, which behave here as PyTorch tensors do; of lessons 01 and 02 only the idea of a tile
#
# You will be able to:
#
# - say which element a CUDA thread works on, from its block's index and its own;
# - build a small GPU simulator yourself: one Python thread for every CUDA thread, a barrier, shared memory;
# - write three kernels (a map, a sum, a tiled matrix product) that run in it, and later on a real GPU, without a change.
#
# A GPU runs the same function, the **kernel**, thousands of times at once. Each run is a **thread**. Threads come in
# **blocks** of equal size, and the blocks of one launch form the **grid**. Here is a launch for 10 elements with
# blocks of 4 threads. Every box is a thread, and the number in it is the element that the thread works on:
# `i = blockIdx.x * blockDim.x + threadIdx.x`. (The next cell only draws: run it, there is no need to read it.)

# %% jupyter={"source_hidden": true}
import matplotlib.pyplot as plt
from course.figures import BLUE, ORANGE, show_figure


def draw_grid(elements, blocks, threads):
    """A box for every thread of a launch, with the number of its element;
    a thread that has none is grey and hatched."""
    figure, axes = plt.subplots(figsize=(11, 2.2))
    for i in range(blocks * threads):
        block, thread = divmod(i, threads)
        left = i + 0.7 * block
        look = (
            {"color": (BLUE, ORANGE)[block % 2]}
            if i < elements
            else {"color": "lightgrey", "hatch": "//"}
        )
        axes.bar(left, 1, width=0.94, edgecolor="black", **look)
        axes.text(
            left,
            0.5,
            i,
            ha="center",
            va="center",
            fontsize=16,
            bbox={"facecolor": "white", "boxstyle": "round"},
        )
        axes.text(
            left,
            -0.25,
            f"threadIdx.x\n{thread}" if thread == 0 else f"\n{thread}",
            ha="center",
            va="center",
        )
        if thread == 0:
            axes.text(
                left + (threads - 1) / 2,
                1.15,
                f"blockIdx.x = {block}",
                ha="center",
                fontsize=13,
            )
    axes.set(ylim=(-0.5, 1.4))
    axes.axis("off")
    return figure


show_figure(
    draw_grid(elements=10, blocks=3, threads=4),
    "three blocks side by side, each of four threads, numbered 0 to 3 in every block. "
    "They carry the elements 0 to 3, 4 to 7, and 8 to 11. The boxes 10 and 11 are "
    "hatched: there are only ten elements, so these two threads have nothing to do.",
)

# %% [markdown]
# ## 1. One thread, one element
#
# Here is a kernel, written the way Numba (a compiler for Python, lesson 07) wants it. Look for the loop: there is none.

# %%
from collections import namedtuple
from types import FunctionType, SimpleNamespace

import numpy as np
from numba import cuda  # the real thing; importing it needs no GPU
from numpy import float32


def double(x, out):
    """out = 2 * x, one element per thread."""
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    out[i] = 2 * x[i]


# %% [markdown]
# The kernel asks `cuda` who it is: the index of its block, the size of a block (`blockDim`), its own index within
# the block. On a GPU the hardware answers. We have no hardware, so we shall answer ourselves.
#
# That takes one trick. A Python function looks up the global names in it, such as `cuda`, in a dictionary:
# `function.__globals__`. So we make a **copy** of the kernel with a dictionary of our own, in which `cuda` means what we
# like. The original stays as it was, and the same source can still go to a real GPU.
#
# The indices and sizes have three parts, x, y and z, because images and volumes are common. A size that is not
# given is 1. (An index has no such default: the first index is 0, so we always write all three.)

# %%
dim3 = namedtuple("dim3", ["x", "y", "z"], defaults=(1, 1, 1))


def with_cuda(kernel, cuda):
    """A copy of the kernel in which the name `cuda` means the object given."""
    return FunctionType(
        kernel.__code__, {**kernel.__globals__, "cuda": cuda}, kernel.__name__
    )


# %% [markdown]
# **Predict.** We run the kernel once, as thread 2 of block 1, with blocks of 4 threads. Which one of the eight zeros
# changes, and what does it become? Element `___` becomes `___`.

# %%
x = np.array([10, 20, 30, 40, 50, 60, 70, 80], dtype=float32)
out = np.zeros(8, dtype=float32)

thread = SimpleNamespace(
    gridDim=dim3(2), blockDim=dim3(4), blockIdx=dim3(1, 0, 0), threadIdx=dim3(2, 0, 0)
)
with_cuda(double, thread)(x, out)
print(out)

# %% [markdown]
# `1 * 4 + 2 = 6`, so element 6, a 70, was doubled. One thread, one element.
#
# ## 2. All of them, one after another
#
# A launch runs the kernel for every thread of every block. Two plain loops will do for now:


# %%
def indices(size):
    """Every index within `size`, x fastest, as CUDA counts:
    for dim3(2, 2) these are (0,0,0) (1,0,0) (0,1,0) (1,1,0)."""
    return [
        dim3(x, y, z)
        for z in range(size.z)
        for y in range(size.y)
        for x in range(size.x)
    ]


def launch_in_turn(kernel, grid, block, *args):
    """Run the kernel once for every thread of every block, one after another."""
    for block_index in indices(grid):
        for thread_index in indices(block):
            thread = SimpleNamespace(
                gridDim=grid,
                blockDim=block,
                blockIdx=block_index,
                threadIdx=thread_index,
            )
            with_cuda(kernel, thread)(*args)


out = np.zeros(8, dtype=float32)
launch_in_turn(double, dim3(2), dim3(4), x, out)
print(out)

# %% [markdown]
# Now ten elements, as in the picture, still in blocks of 4. Two blocks are too few, so it takes three: in general
# `(elements + block - 1) // block`, a division that rounds up. Three blocks are twelve threads.
#
# **Predict.** What do threads 10 and 11 do?
#
# - ( ) nothing
# - ( ) they start again at element 0
# - ( ) something bad

# %%
x = np.arange(10, 20).astype(float32)
out = np.zeros(10, dtype=float32)
try:
    launch_in_turn(double, dim3(3), dim3(4), x, out)
except IndexError as error:
    print("IndexError:", error)

# %% [markdown]
# NumPy noticed. A GPU does not look where an array ends: thread 10 reads whatever lies behind `x` and writes over whatever
# lies behind `out`, perhaps another array of yours; if you are lucky, the program crashes. So the kernel itself has to
# ask whether there is an element for it. That question is called the **guard**.
#
# ### Exercise 3.1 · add · three lines
# Write the kernel `add`: `out[i] = x[i] + y[i]`, one element per thread, for any number of elements and any number
# of blocks. A thread without an element does nothing. The number of elements is `x.size`. The check runs your kernel in
# `sim`, the simulator of this course, which you will meet in section 9.
#
# <details><summary>Hint 1: which element?</summary>The first line of <code>double</code>, unchanged.</details>
# <details><summary>Hint 2: which threads have one?</summary>With ten elements the last one is <code>x[9]</code>: the guard
# is <code>i &lt; x.size</code>, not <code>&lt;=</code>.</details>


# %% tags=["exercise"]
def add(x, y, out):
    """out = x + y, one element per thread; x, y and out are 1-D, of one size."""
    # BEGIN SOLUTION 3.1
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < x.size:
        out[i] = x[i] + y[i]
    # END SOLUTION


# %% tags=["check"]
from course import check

check.ex03_1(add)

# %% [markdown]
# The check ran your kernel with 1 element, with fewer than a block, with several blocks and a ragged end. It also filled
# `out` with NaN first, so that an element you did not write cannot look right by luck.
#
# ## 3. Threads that need each other
#
# `double` and `add` never look at a neighbour's work. Here is one that does. Each block reverses its part of `x`. The
# threads put their elements into **shared memory**, a small fast memory that belongs to the block, and then each takes
# out the element on the opposite side.

# %%
WIDTH = 4  # a constant: Numba fixes the size when it compiles (lesson 05: another way)


def mirror(x, out):
    """Each block of WIDTH threads writes its part of x into out, back to front."""
    shared = cuda.shared.array(WIDTH, float32)
    t = cuda.threadIdx.x
    i = cuda.blockIdx.x * cuda.blockDim.x + t
    shared[t] = x[i]
    cuda.syncthreads()  # wait here until every thread of the block has come here
    out[i] = shared[WIDTH - 1 - t]


# %% [markdown]
# Every thread of the block runs the line `cuda.shared.array(...)`, but there must be only **one** array. Our rule: each
# thread counts how many it has asked for. Whoever asks for number 1 first makes it; everybody else's number 1 is the same
# array. Nobody clears shared memory on a GPU, so ours starts full of NaN: use it before you fill it, and it shows.


# %%
class SharedMemory:
    """One thread's door to the shared memory of its block."""

    kind = np.ndarray  # section 7 puts a slower kind of array here

    def __init__(self, arrays):
        self.arrays = arrays  # one dictionary for all threads of the block
        self.asked = 0

    def array(self, shape, dtype):
        """The next shared array:
        a new one, full of NaN, if no other thread of the block has made it already."""
        self.asked += 1
        return self.arrays.setdefault(self.asked, np.full(shape, np.nan, dtype)).view(
            self.kind
        )


# %% [markdown]
# **Predict.** We run the four threads of one block in turn, as before. `syncthreads` does nothing: whom could a thread wait for,
# when it runs alone? The input is 10, 20, 30, 40. What does the output look like?
#
# - ( ) 40 30 20 10
# - ( ) nan nan nan nan
# - ( ) half and half

# %%
x = np.array([10, 20, 30, 40], dtype=float32)
out = np.zeros(4, dtype=float32)
arrays = {}
for t in range(4):
    thread = SimpleNamespace(
        gridDim=dim3(1),
        blockDim=dim3(4),
        blockIdx=dim3(0, 0, 0),
        threadIdx=dim3(t, 0, 0),
        shared=SharedMemory(arrays),
        syncthreads=lambda: None,
    )
    with_cuda(mirror, thread)(x, out)
print(out)

# %% [markdown]
# Thread 0 wanted what thread 3 had not stored yet, and thread 1 what thread 2 had not. Threads 2 and 3 came late enough to
# find their values. A loop cannot repair this: each thread has to stop in the middle of the kernel until the others have
# come as far. So we need things that can stop in the middle, and Python has them: threads.
#
# ## 4. Python threads in two small experiments (if you know `threading`, run the cells and read on)
#
# `threading.Thread(target=f, args=(...))` prepares a call, `.start()` begins it beside everything else that runs, and `.join()`
# waits for its end. A `threading.Barrier(3)` holds everybody who calls `.wait()` until the third has come.
#
# **Predict.** Three threads write into one list, "comes" before a barrier and "goes" after it. Which orders can the
# list have?

# %%
import threading

barrier = threading.Barrier(3)
log = []


def visitor():
    log.append("comes")
    barrier.wait()
    log.append("goes")


threads = [threading.Thread(target=visitor) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(log)

# %% [markdown]
# Always this one: nobody goes before all have come.
#
# The second experiment is about trouble. If a thread raises an exception, Python prints it and the thread ends; nobody
# else is told. The other two would wait at the barrier for a third who never comes, and your notebook would stand still for
# ever. So a thread that fails must do two things: **write down** its error where others can see it, and call
# `barrier.abort()`: everybody who waits there, or comes later, gets a `BrokenBarrierError`. In this order: then the first error in the
# list is the cause, and those it brought about stand behind it.

# %%
barrier = threading.Barrier(3)
errors = []


def visitor(name):
    try:
        if name == "Bob":
            raise ValueError("Bob fell over")
        barrier.wait()
    except Exception as error:
        errors.append(error)
        barrier.abort()


threads = [
    threading.Thread(target=visitor, args=(name,)) for name in ["Ann", "Bob", "Cem"]
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print([type(error).__name__ for error in errors])

# %% [markdown]
# ## 5. The simulator
#
# You have all the parts. One block is: a dictionary of shared arrays, a barrier for all its threads, a list of errors, and a
# Python thread for every CUDA thread. Blocks run one after another. (A GPU runs many at once, in an order that nobody
# promises; a correct kernel cannot tell.)
#
# The barrier gets `timeout=10`: if some thread has not come after ten seconds, waiting ends with a `BrokenBarrierError`
# instead of never. It will be needed when a thread returns early and the others wait for it; lesson 04 has such a kernel. (What a GPU does then is
# not settled by CUDA's language, which wants every thread of the block at the barrier. The hardware, since Volta, waits for the threads that have not exited.)
#
# ### Exercise 3.2 · run_block · about twenty lines
# Write the rest of `run_block`:
#
# 1. a function `run_thread(thread_index)`: it builds the thread's own `cuda`, with six names: `gridDim`, `blockDim`, `blockIdx`,
#    `threadIdx`, `shared`, `syncthreads`; then it runs the kernel with it. If that raises, it notes the error and aborts the barrier;
# 2. one `threading.Thread` for every index of the block; start them all, then wait for them all;
# 3. if anything went wrong, raise the first error.
#
# <details><summary>Hint 1: the thread's own <code>cuda</code></summary>
#
# As in section 3, with two differences: the indices come from the arguments, and now there is a real barrier, so
# `syncthreads=barrier.wait`.
# </details>
# <details><summary>Hint 2: errors</summary>
#
# `visitor` in the second experiment does the very thing: `try`, `except Exception as error`, `append`, `abort`.
# </details>
# <details><summary>Hint 3: it hangs</summary>
#
# Start *all* threads before you join the first. Otherwise the first thread waits at the barrier for threads that you will
# only start once it has finished.
# </details>


# %% tags=["exercise"]
def run_block(kernel, grid, block, block_index, args):
    """Run all threads of one block at the same time;
    raise the first error that one of them raised."""
    arrays = {}
    errors = []
    barrier = threading.Barrier(block.x * block.y * block.z, timeout=10)
    # BEGIN SOLUTION 3.2

    def run_thread(thread_index):
        thread = SimpleNamespace(
            gridDim=grid,
            blockDim=block,
            blockIdx=block_index,
            threadIdx=thread_index,
            shared=SharedMemory(arrays),
            syncthreads=barrier.wait,
        )
        try:
            with_cuda(kernel, thread)(*args)
        except Exception as error:
            errors.append(error)
            barrier.abort()

    threads = [
        threading.Thread(target=run_thread, args=(index,)) for index in indices(block)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    # END SOLUTION


def launch(kernel, grid, block, *args):
    """Run the kernel once for every thread:
    the blocks one after another, the threads of a block at the same time."""
    for block_index in indices(grid):
        run_block(kernel, grid, block, block_index, args)


# %% tags=["check"]
check.ex03_2(launch)

# %% [markdown]
# That is a small GPU: `dim3`, `indices`, `with_cuda`, `SharedMemory`, `run_block`, `launch`, under sixty lines. First the kernel
# that a loop could not run, on two blocks:

# %% tags=["uses-exercise"]
x = np.array([10, 20, 30, 40, 50, 60, 70, 80], dtype=float32)
out = np.zeros(8, dtype=float32)
launch(mirror, dim3(2), dim3(WIDTH), x, out)
print(out)

# %% [markdown]
# And an error in one thread comes out as an error of the launch, and nothing hangs. Three blocks of `mirror` for eight
# elements: the third block has none. (`mirror` has no guard.)

# %% tags=["uses-exercise"]
try:
    launch(mirror, dim3(3), dim3(WIDTH), x, out)
except IndexError as error:
    print("IndexError:", error)

# %% [markdown]
# ## 6. A sum, by halves
#
# Eight threads can add eight numbers in three steps. In each step the left half of the threads adds what the right half
# holds. On paper, with 3 1 4 1 5 9 2 6:
#
# | | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |
# |---|---|---|---|---|---|---|---|---|
# | in shared memory | 3 | 1 | 4 | 1 | 5 | 9 | 2 | 6 |
# | step = 4: threads 0–3 do `shared[t] += shared[t + 4]` | **8** | **10** | **6** | **7** | 5 | 9 | 2 | 6 |
# | step = 2: threads 0–1 | **14** | **17** | 6 | 7 | 5 | 9 | 2 | 6 |
# | step = 1: thread 0 | **31** | 17 | 6 | 7 | 5 | 9 | 2 | 6 |
#
# A loop needs seven additions one after another; the threads need three steps. For 1024 numbers it is ten steps.
#
# Where must everybody wait? Before the first step, until all numbers are in. And after each step but the last, until all sums of this step are
# in: thread 0 needs the 17 of thread 1 and must not come too early. (A wait after the last step does no harm, and keeps the loop simple.)
#
# ### Exercise 3.3 · block_sum · about eight lines
# Each block of `THREADS` threads sums its part of `x`; block b writes its sum into `out[b]`. If the last block has fewer than
# `THREADS` elements, a thread without one puts in a 0.
#
# **Every** thread of the block has to come to **every** `syncthreads()`, those without an element too: a guard may skip
# the work, never the barrier. No thread may add all eight numbers: they are added by halves, as in the table.
#
# <details><summary>Hint 1: filling shared memory</summary>
#
# `shared[t] = x[i] if i < x.size else float32(0)`, then the first barrier.
# </details>
# <details><summary>Hint 2: the loop</summary>
#
# `step = THREADS // 2`, then `while step > 0:` … `step //= 2`. Inside: the addition under `if t < step`, the barrier *not* under it.
# </details>
# <details><summary>Hint 3: writing the result</summary>
#
# At the end the sum is in `shared[0]`. One thread writes it: `if t == 0`.
# </details>

# %% tags=["exercise"]
THREADS = 8


def block_sum(x, out):
    """out[b] = the sum of block b's part of x; x is 1-D, out has one element per block;
    blocks of THREADS threads."""
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
# ## 7. The missing line
#
# **Guess before you run.** Here is the sum again, for one block. The barrier at the end of each step is missing. We run it
# two hundred times on the same eight numbers. What will you see?
#
# - ( ) 31, always
# - ( ) a wrong sum, always
# - ( ) it depends
# - ( ) a crash


# %%
def racy_sum(x, out):
    """The sum of the THREADS numbers in x, if you are lucky."""
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
# Nothing in this kernel says which thread is quick and which is slow. On a GPU that depends on what else is going on; with us,
# on the operating system, which often does the same thing again. So for this experiment we make every store into shared memory
# take a random time, at most a third of a millisecond. The kernels stay as they are; a correct one cannot notice.

# %%
import random
import time
from collections import Counter


class Unhurried(np.ndarray):
    """An array into which a store takes a while, and nobody knows how long."""

    def __setitem__(self, index, value):
        time.sleep(random.uniform(0, 0.0003))
        super().__setitem__(index, value)


def sums_seen(kernel, runs=200):
    """How often each result came out,
    in `runs` launches of one block on the eight numbers of section 6."""
    x = np.array([3, 1, 4, 1, 5, 9, 2, 6], dtype=float32)
    seen = Counter()
    SharedMemory.kind = Unhurried
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
axes.set(xlabel="the sum that came out (31, hatched, is right)", ylabel="runs of 200")
axes.margins(y=0.15)
show_figure(
    figure,
    "a bar for each sum that came out of the racy kernel, "
    "as high as the number of runs, of 200, that gave it. "
    "If the right sum, 31, was among them, its bar is blue and hatched; "
    "the others are orange. The picture is different each time the cell runs.",
)

# %% [markdown]
# This is a **race**: two threads touch the same cell, at least one of them writes, and nothing says who comes first. It is
# the worst kind of bug, because a test may pass. When we left out the random delay and ran the racy kernel 200 times on a
# quiet computer, about 20 sums were right; when the same computer was busy with something else, 146 were. Nobody had
# changed the program.
#
# ## 8. Tiles in shared memory
#
# Now something useful: a matrix product. The direct kernel gives one thread one element of `c = a @ b`, and the thread reads a
# whole row of `a` and a whole column of `b`. For 8×8 matrices each of 64 threads reads 8 + 8 numbers, 1024 reads in all, though there
# are only 128 numbers. Neighbours read the same ones again and again.
#
# A block can share them. Cut the matrices into tiles of 4×4. A block owns one tile of `c`. It walks along its row of
# tiles in `a` and its column of tiles in `b`. At each stop every thread loads **one** number of each tile into shared memory, all wait, and
# then everyone computes from shared memory.
#
# In the picture the block that owns the orange tile of `c` makes two stops. At the first it loads the two blue tiles and multiplies them; at the
# second the two green ones, into the same shared arrays, and adds their product. The white tiles are for other blocks.

# %% jupyter={"source_hidden": true}
from course.figures import GREEN


def draw_tiles(tile=4):
    """a (left), b (above) and c, 8 x 8 each, in tiles;
    those of one block are coloured."""
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
        ("stop 0", 2, 11),
        ("stop 1", 6, 11),
        ("stop 0", 15, 2),
        ("stop 1", 15, 6),
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
    "At stop 0 it loads the upper left tile of a and the upper right tile of b, both "
    "blue; at stop 1 the upper right tile of a and the lower right tile of b, both "
    "green.",
)

# %% [markdown]
#
# **Predict.** How many numbers are read from `a` and `b` now? There are 4 blocks, each makes 2 stops, at each stop its 16 threads
# load 2 numbers each: `___`
#
# <details><summary>Answer</summary>4 · 2 · 16 · 2 = 256, a quarter of 1024. With tiles of T×T, each number is read T times less often.
# This is the reason for the tiles of lesson 02.</details>
#
# Blocks and threads have two indices now. x counts along a row and y down a column, so the thread with `threadIdx` (x, y) works
# in row y and column x. (It is the easiest thing in CUDA to get wrong.)
#
# ### Exercise 3.4 · matmul · about ten lines
# Write the loop over the tiles and the store at the end. The sizes need not be multiples of `TILE`: a place of a tile that lies
# outside its matrix is filled with 0, and nothing is stored outside `c`.
#
# <details><summary>Hint 1: loading</summary>
#
# `for start in range(0, a.shape[1], TILE)`. The thread loads `a[row, start + tx]` into `a_tile[ty, tx]`, and `b[start + ty, col]` into
# `b_tile[ty, tx]`. Each load has a guard with two conditions, one for each dimension, and puts in `float32(0)` otherwise.
# </details>
# <details><summary>Hint 2: multiplying</summary>
#
# `total += a_tile[ty, k] * b_tile[k, tx]` for k from 0 to TILE - 1.
# </details>
# <details><summary>Hint 3: how many barriers?</summary>
#
# Two a stop. One after loading: nobody may read a tile before it is complete. One after multiplying: nobody may load the next tile over
# the one that a slower thread is still reading.
# </details>

# %% tags=["exercise"]
TILE = 4


def matmul(a, b, c):
    """c = a @ b for float32 a (m, k), b (k, n), c (m, n);
    each block of TILE x TILE threads makes one tile of c."""
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
# And in your own simulator, on matrices that do not fit the tiles:

# %% tags=["uses-exercise"]
numbers = np.random.default_rng(3)
a = numbers.standard_normal((6, 10)).astype(float32)
b = numbers.standard_normal((10, 7)).astype(float32)
c = np.full((6, 7), np.nan, dtype=float32)
launch(matmul, dim3(2, 2), dim3(TILE, TILE), a, b, c)
print("largest difference from a @ b below 1e-5:", np.abs(c - a @ b).max() < 1e-5)

# %% [markdown]
# ## 9. The same kernels in `sim`
#
# The rest of the course uses the simulator `sim`. Its principle is yours: a copy of the kernel in which `cuda` means
# something else. It adds what you would add with a few more weeks: it knows all that a kernel may say, it follows functions that a
# kernel calls, and it checks every access. A launch looks as on the GPU, with square brackets:
# `simulate(kernel)[grid, block](arguments)`.

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
# Two things it does better. First, it names the culprit. This is `double` with no guard again, on ten elements; compare with the
# `IndexError` of section 2.

# %%
x = np.arange(10, 20).astype(float32)
out = np.zeros(10, dtype=float32)
try:
    simulate(double)[3, 4](x, out)
except KernelBug as bug:
    print(bug)

# %% [markdown]
# Second, it makes bad luck repeatable. Your threads run when the operating system likes. `sim` lets one thread run at a time, in
# a random order that depends on the `seed` alone. The racy sum with fifty seeds, and then all fifty again:


# %%
def racy_result(seed):
    x = np.array([3, 1, 4, 1, 5, 9, 2, 6], dtype=float32)
    out = np.full(1, np.nan, dtype=float32)
    simulate(racy_sum, seed=seed, on_finding="report")[1, THREADS](x, out)
    return float(out[0])


first = [racy_result(seed) for seed in range(50)]
second = [racy_result(seed) for seed in range(50)]
print("some seeds give a wrong sum:", any(result != 31 for result in first))
print("some seeds give the right one:", any(result == 31 for result in first))
print("each seed gives the same sum again:", first == second)

# %% [markdown]
# And it draws what it has seen. In the racy sum, no line stands between one step and the next: a barrier would be one. (Time counts the accesses of each thread.)

# %%
from sim.observers import DEFAULT, Trace

x, out = np.array([3, 1, 4, 1, 5, 9, 2, 6], dtype=float32), np.zeros(1, dtype=float32)
simulate(racy_sum, on_finding="report", observers=[*DEFAULT, Trace])[1, 8](
    x, out
).timeline()

# %% [markdown]
# Your own sum, with a line after each step, in which the threads without work wait (grey):

# %% tags=["uses-exercise"]
simulate(block_sum, observers=[*DEFAULT, Trace])[1, 8](x, out).timeline()

# %% [markdown]
# ### How fast (optional)
#
# `sim` has two engines. `fibers`, the one we just used, is quick: its threads are greenlets, functions that can stop in
# the middle and hand over to another at next to no cost. `threads` uses one Python thread per CUDA thread, as yours does, but
# still lets only one run at a time. Both take the threads in the same order.
#
# **Predict.** A launch of `add` with 4096 threads, in yours and in `sim` with fibers. Which is faster?


# %% tags=["uses-exercise"]
def seconds(call):
    """How long the call takes: the shortest of three."""
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
# (Print `yours / sims` for your computer. On ours it was about 8.)
#
# Starting a Python thread costs about a tenth of a millisecond, far more than the work it does here. `add` has no barrier, so
# `sim` needs no threads at all for it: a plain loop will do, the `launch_in_turn` of section 2.
#
# ## Validate
#
# Each kernel on sizes that do not fit the blocks: your simulator against NumPy, then both engines of `sim` against yours.


# %% tags=["uses-exercise"]
def cases(numbers):
    """For each kernel: its grid and block, its inputs, what NumPy says."""
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
# `cuda.jit` compiles the kernel for the GPU; the launch looks the same. Without a GPU this cell uses `sim`, and prints the same line.
# (On a GPU, Numba may warn that so small a launch leaves most of it idle. It is right.)

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
# - A kernel is one thread's work; `blockIdx`, `blockDim` and `threadIdx` say which, and the guard says whether there is any.
# - The threads of a block share memory, and `syncthreads` puts their work in order; every one of them has to come to it.
# - A missing barrier is a race: right or wrong as the moment pleases, so a test that passes proves little.
#
# **You can now** write a map, a sum and a tiled matrix product as CUDA kernels, and run them on a GPU that you have built.
#
# **Next:** [lesson 04](04_what_can_go_wrong.ipynb), nine kernels with nine bugs, and a simulator that names each of them.
