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
# **70 minutes** · needs: Python and NumPy arrays, which behave here like PyTorch tensors; independent of lessons 01 and 02
#
# You will be able to:
#
# - say which element a CUDA thread processes, from the index of its block and its own index;
# - build a small GPU simulator yourself, with one Python thread for every CUDA thread, a barrier, and shared memory;
# - write a kernel that runs in your simulator and, without any change, on a real GPU.
#
# A GPU runs the same function, the **kernel**, thousands of times at once. Each run is a **thread**. Threads are grouped into [**blocks**](../docs/glossary.md) of equal size, and all blocks of one launch form the [**grid**](../docs/glossary.md). The picture shows a launch for 10 elements with blocks of 4 threads. Every box is a thread, and the number in it is the index of the element that the thread processes: `i = blockIdx.x * blockDim.x + threadIdx.x`. (The next cell only draws. Run it; you do not need to read it.)

# %% jupyter={"source_hidden": true}
import matplotlib.pyplot as plt
from course import guess
from course.figures import BLUE, ORANGE, show_figure


def draw_grid(elements, blocks, threads):
    """Draw a box for every thread of a launch, with the index of its element;
    a thread without an element is grey and hatched."""
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
    "They process the elements 0 to 3, 4 to 7, and 8 to 11. The boxes 10 and 11 are "
    "hatched: there are only ten elements, so these two threads have nothing to do.",
)

# %% [markdown]
# ## 1. One thread, one element
#
# Here is a kernel, written for Numba, a compiler for Python that you will use in lesson 07. Notice that it has no loop.

# %%
import threading
from collections import namedtuple
from types import FunctionType, SimpleNamespace

import numpy as np
from numba import cuda  # the real thing; importing it needs no GPU
from numpy import float32


def double(x, out):
    """Compute out = 2 * x, one element per thread."""
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    out[i] = 2 * x[i]


# %% [markdown]
# The kernel reads three things from `cuda`: the index of its block, the size of a block (`blockDim`), and its own index within the block. On a GPU the hardware supplies them. We have no hardware, so we supply them ourselves.
#
# This takes one trick. A Python function looks up its global names, such as `cuda`, in a dictionary, `function.__globals__`. So we make a **copy** of the kernel with our own dictionary, in which `cuda` refers to any object that we like. The original does not change, and you can still run the same source on a real GPU.
#
# Each index and size has three parts, x, y and z, because images and volumes are
# common. If you leave out a part of a size, it is 1. (An index starts at 0, so 1 would
# be the wrong default there. We always write all three parts of an index.)

# %%
dim3 = namedtuple("dim3", ["x", "y", "z"], defaults=(1, 1, 1))


def with_cuda(kernel, cuda):
    """Return a copy of the kernel in which the name `cuda` refers to this object."""
    return FunctionType(
        kernel.__code__, {**kernel.__globals__, "cuda": cuda}, kernel.__name__
    )


# %% [markdown]
# **Predict.** We run the kernel once, as thread 2 of block 1, with blocks of 4 threads. Which of the eight zeros changes, and what does it become? Element `___` becomes `___`.

# %% tags=["guess"]
guess("03 one thread", element=..., becomes=...)

# %%
x = np.array([10, 20, 30, 40, 50, 60, 70, 80], dtype=float32)
out = np.zeros(8, dtype=float32)

thread = SimpleNamespace(
    gridDim=dim3(2), blockDim=dim3(4), blockIdx=dim3(1, 0, 0), threadIdx=dim3(2, 0, 0)
)
with_cuda(double, thread)(x, out)
print(out)

# %% [markdown]
# The index is `1 * 4 + 2 = 6`, so the kernel doubled element 6, which is 70. One thread processes one element.
#
# ## 2. All threads, one after another
#
# A launch runs the kernel for every thread of every block. For now, two plain loops are enough:


# %%
def indices(size):
    """Return every index within `size` in CUDA's order, x fastest:
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
# Now take ten elements, as in the picture, still in blocks of 4. Two blocks are not enough, so you need three. The general formula is `(elements + block - 1) // block`, a division that rounds up. Three blocks have twelve threads.
#
# **Predict.** What do threads 10 and 11 do: nothing, start again at element 0, or cause an error? `___`

# %% tags=["guess"]
guess("03 threads without an element", threads_10_and_11=...)

# %%
x = np.arange(10, 20).astype(float32)
out = np.zeros(10, dtype=float32)
try:
    launch_in_turn(double, dim3(3), dim3(4), x, out)
except IndexError as error:
    print("IndexError:", error)

# %% [markdown]
# NumPy noticed the error. A GPU does not check where an array ends. Thread 10 reads whatever is in memory after `x`, and overwrites whatever is after `out`, perhaps another array of yours. If you are lucky, the program crashes. So the kernel itself has to test whether the thread has an element. This test is called the **guard**.
#
# ### Exercise 3.1 · add · three lines
# Write the kernel `add`: `out[i] = x[i] + y[i]`, one element per thread, for any number of elements and any number of blocks. A thread without an element does nothing. The number of elements is `x.size`. The check runs your kernel in `sim`, the simulator of this course, which lesson 03b introduces.
#
# <details><summary>Hint 1: which element?</summary>Use the first line of <code>double</code>, unchanged.</details>
# <details><summary>Hint 2: which threads have one?</summary>With ten elements the last one is <code>x[9]</code>, so the guard
# is <code>i &lt; x.size</code>, not <code>&lt;=</code>.</details>


# %% tags=["exercise"]
def add(x, y, out):
    """Compute out = x + y, one element per thread, for 1-D arrays of one size."""
    # BEGIN SOLUTION 3.1
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < x.size:
        out[i] = x[i] + y[i]
    # END SOLUTION


# %% tags=["check"]
from course import check

check.ex03_1(add)

# %% [markdown]
# The check ran your kernel with 1 element, with fewer elements than threads in a block, and with several blocks of which the last was not full. It filled `out` with NaN first, so that an element that you did not write cannot be correct by accident. If the compilers are installed, it also compiled the kernel for a real GPU: `sm_80` is NVIDIA's name for the architecture of the A100.
#
# ## 3. Threads that need each other
#
# In `double` and `add`, no thread uses the result of another thread. Here is a kernel in which they do. Each block reverses its part of `x`. The threads write their elements to [**shared memory**](../docs/glossary.md), a small fast memory that belongs to the block, and then each thread reads the element from the opposite side.

# %%
WIDTH = 4  # a constant, because Numba must know the size (lesson 05 has another way)


def mirror(x, out):
    """Reverse each block's part of x, with WIDTH threads per block."""
    shared = cuda.shared.array(WIDTH, float32)
    t = cuda.threadIdx.x
    i = cuda.blockIdx.x * cuda.blockDim.x + t
    shared[t] = x[i]
    cuda.syncthreads()  # wait here until every thread of the block has arrived
    out[i] = shared[WIDTH - 1 - t]


# %% [markdown]
# Every thread of the block runs the line `cuda.shared.array(...)`, but there must be only **one** array. We use this rule: each thread counts its own calls. The first thread that makes call number 1 creates the array, and call number 1 of every other thread returns the same array. A GPU does not clear shared memory, so we fill it with NaN. If a kernel reads an element before writing it, you will see the NaN.


# %%
class SharedMemory:
    """A thread's access to the shared memory of its block."""

    kind = np.ndarray  # lesson 03b replaces it by a slower kind of array

    def __init__(self, arrays):
        self.arrays = arrays  # one dictionary for all threads of the block
        self.calls = 0

    def array(self, shape, dtype):
        """Return the next shared array: a new one, full of NaN, if no other thread
        of the block has created it already."""
        self.calls += 1
        new = np.full(shape, np.nan, dtype)
        return self.arrays.setdefault(self.calls, new).view(self.kind)


# %% [markdown]
# **Predict.** We run the four threads of one block one after another, as before. `syncthreads` does nothing, because a thread that runs alone has nobody to wait for. The input is 10, 20, 30, 40. Which of the four elements of `out` will be `nan`? Write their indices: `___`

# %% tags=["guess"]
guess("03 one after another", nan_at=...)

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
# Thread 0 read the element that thread 3 had not stored yet, and thread 1 the one that thread 2 had not stored. Threads 2 and 3 ran late enough to find their values. A loop cannot fix this: each thread has to stop in the middle of the kernel until the others have reached the same line. So we need functions that can stop in the middle, and Python has them: threads.
#
# ## 4. Two small experiments with Python threads (skip them if you know `threading`)
#
# `threading.Thread(target=f, args=(...))` prepares a call, `.start()` runs it concurrently with everything else, and `.join()` waits for its end. In a `threading.Barrier(3)`, every thread that calls `.wait()` waits until the third one has called it.
#
# **Predict.** Three threads append to one list, "arrives" before a barrier and "leaves" after it. How many different lists are possible? `___`

# %% tags=["guess"]
guess("03 barrier", lists=...)

# %%
barrier = threading.Barrier(3)
log = []


def worker():
    log.append("arrives")
    barrier.wait()
    log.append("leaves")


threads = [threading.Thread(target=worker) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(log)


# %% [markdown]
# The list always has this order: no thread leaves before all have arrived.
#
# The second experiment is about errors. If a thread raises an exception, Python prints it and the thread ends, but the other threads do not notice. They would wait at the barrier for a third thread that never arrives, and your notebook would hang forever. So a thread that fails must do two things. It must **record** its error where others can read it, and it must call `barrier.abort()`. Then every thread that is waiting at the barrier, or arrives later, gets a `BrokenBarrierError`. The order is important: if you record first and abort second, the first error in the list is the cause, and the errors that follow are its consequences.

# %%
barrier = threading.Barrier(3)
errors = []


def worker(name):
    try:
        if name == "Bob":
            raise ValueError("Bob fell over")
        barrier.wait()
    except Exception as error:
        errors.append(error)
        barrier.abort()


names = ["Ann", "Bob", "Cem"]
threads = [threading.Thread(target=worker, args=(name,)) for name in names]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print([type(error).__name__ for error in errors])


# %% [markdown]
# ## 5. The simulator
#
# Now you have all the parts. A block consists of a dictionary of shared arrays, a barrier for all its threads, a list of errors, and one Python thread for every CUDA thread. Blocks run one after another. (A GPU runs many blocks at the same time, in no guaranteed order, and a correct kernel does not depend on the order.)
#
# ### Exercise 3.2 · run_block · about twenty lines
# Write the rest of `run_block`:
#
# 1. Define a function `run_thread(thread_index)`. It creates the thread's own `cuda`, with six names: `gridDim`, `blockDim`, `blockIdx`, `threadIdx`, `shared`, `syncthreads`. Then it runs the kernel with it. If the kernel raises an exception, it records the error and aborts the barrier.
# 2. Create one `threading.Thread` for every index of the block. Start them all, then wait for them all.
# 3. If there was any error, raise the first one.
#
# The barrier is already there. With `timeout=10`, a thread that has waited for ten seconds gets a `BrokenBarrierError`, so a kernel in which one thread returns early does not hang your notebook.
#
# <details><summary>Hint 1: the thread's own <code>cuda</code></summary>
#
# It is the same as in section 3, with two differences: the indices come from the arguments, and there is a real barrier now, so
# `syncthreads=barrier.wait`.
# </details>
# <details><summary>Hint 2: errors</summary>
#
# `worker` in the second experiment shows how: `try`, `except Exception as error`, `append`, `abort`.
# </details>
# <details><summary>Hint 3: it hangs</summary>
#
# Start *all* threads before you join the first. Otherwise the first thread waits at the barrier for threads that you start only
# after it has finished.
# </details>


# %% tags=["exercise"]
def run_block(kernel, grid, block, block_index, args):
    """Run all threads of one block at the same time;
    raise the first error that any of them raised."""
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
    """Run the kernel once for every thread: the blocks one after another, the
    threads of a block at the same time."""
    for block_index in indices(grid):
        run_block(kernel, grid, block, block_index, args)


# %% tags=["check"]
check.ex03_2(launch)

# %% [markdown]
# You have built a small GPU: `dim3`, `indices`, `with_cuda`, `SharedMemory`, `run_block` and `launch`, in about sixty lines. First run the kernel that a loop could not run, with two blocks:

# %% tags=["uses-exercise"]
x = np.array([10, 20, 30, 40, 50, 60, 70, 80], dtype=float32)
out = np.zeros(8, dtype=float32)
launch(mirror, dim3(2), dim3(WIDTH), x, out)
print(out)

# %% [markdown]
# If one thread raises an error, the launch raises it too, and nothing hangs. For example, run `mirror` with three blocks on eight elements. The third block has no elements, and `mirror` has no guard.

# %% tags=["uses-exercise"]
try:
    launch(mirror, dim3(3), dim3(WIDTH), x, out)
except IndexError as error:
    print("IndexError:", error)

# %% [markdown]
# (What does a real GPU do when a thread returns before a barrier? CUDA C++ requires every thread of the block to reach the barrier, so the language does not define it. Since the Volta generation, the hardware waits only for the threads that have not exited. In lesson 04b you meet such a kernel.)

# %% [markdown]
# ## In three lines
# - A kernel describes the work of one thread. `blockIdx`, `blockDim` and `threadIdx` determine which element it processes, and the guard tests whether there is one.
# - The threads of a block share memory, and `syncthreads` makes all of them wait for each other. Every thread of the block has to reach it.
# - A simulator needs a thread for each CUDA thread, a barrier, and a dictionary of shared arrays.
#
# **You can now** say what a kernel launch does, because you have built one.
#
# **Read on:** NVIDIA, *CUDA C++ Programming Guide*, chapter "Programming Model" (thread hierarchy, memory hierarchy) · Numba documentation, "Writing CUDA Kernels".
#
# **Next:** in [lesson 03b](03b_sums_and_tiles.ipynb) your simulator runs two larger kernels, and you meet the first bug that a test does not find.
