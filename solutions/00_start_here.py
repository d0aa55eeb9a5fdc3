# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Start here
#
# In this course you start with the softmax of three numbers, on paper. You end with your own GPU kernels for convolutional attention. Everything runs on your laptop. **You do not need a GPU**: your kernels run in a simulator. Measurements that need a real GPU were recorded on one, and are labelled.
#
# **How to use a notebook.** Press Shift+Enter to run a cell and move to the next one. Run the cells of a lesson in order, from the top. Where you see a cell with `guess(...)`, replace each `...` with what you expect *before* you run the cell, or run it as it is and read on. A wrong guess teaches you more than a correct answer that you only read. Folded cells only draw figures.
#
# ## The first five minutes
#
# A **kernel** is a function that many **threads** of a GPU run at the same time. Your first kernel has eight threads, which form one **block**, and each thread has one number, `x[t]`. It writes this number to a table that all threads of the block can see, in *shared memory*. Then it adds the number of its right neighbour to its own. The neighbour of the last thread is the first one.

# %%
import numpy as np
from IPython.display import Markdown
from numba import cuda
from numpy import float32

from course import guess, show_figure
from course.contents import WAYS, contents, draw_map, hours, map_in_words
from sim import simulate


@cuda.jit
def add_neighbours(x, out):
    """out[t] = x[t] + x[t + 1], of eight numbers in a ring; a thread per number."""
    table = cuda.shared.array(8, float32)
    t = cuda.threadIdx.x
    table[t] = x[t]
    out[t] = table[t] + table[(t + 1) % 8]


x, out = np.arange(8, dtype=float32), np.zeros(8, dtype=float32)

# %% [markdown]
# **Guess.** x is 0, 1, 2, … 7. So `out` should be 1, 3, 5, … 13, with 7 in the last position. Will it be? `___`

# %% tags=["guess"]
guess("00 neighbours", as_expected=...)

# %% [markdown]
# A GPU would almost always print exactly that. The simulator runs the threads in a random order and watches every access to memory, so it can tell you more. (`[1, 8]` starts one block of eight threads, and `seed` selects one of the random orders.)

# %%
report = simulate(add_neighbours, on_finding="report", seed=1)[1, 8](x, out)
print(out)
print(f"\nfindings: {len(report.findings)}; the first:\n")
print(report.findings[0].message)

# %% [markdown]
# A thread may read its neighbour's position before the neighbour has written to it. The simulator fills shared memory with `nan` ("not a number") at the start, so these sums are `nan`. A GPU would read whatever was in memory before. This is a **race**: the result is correct today and wrong tomorrow, and no GPU reports an error. You fix it with one line between the write and the read, a **barrier**. All threads of the block wait there for each other:


# %%
@cuda.jit
def add_neighbours_in_order(x, out):
    """As add_neighbours, with a barrier."""
    table = cuda.shared.array(8, float32)
    t = cuda.threadIdx.x
    table[t] = x[t]
    cuda.syncthreads()
    out[t] = table[t] + table[(t + 1) % 8]


report = simulate(add_neighbours_in_order, on_finding="report", seed=1)[1, 8](x, out)
print(out, "findings:", len(report.findings))

# %% [markdown]
# You have found and fixed your first GPU bug. In lesson 03 you build such a simulator yourself, and lessons 04 and 04b have eight more kinds of bugs.
#
# ## Exercises
#
# An exercise is a function whose body is `raise NotImplementedError("exercise 1.2")`. Replace that line with your code and run the cell. Then run the next cell, which **checks** your function with new random numbers and with sizes that do not divide evenly. Until the exercise is solved, "Run All" stops there with two lines:
#
# ```
# ✗ exercise 1.2 · merge: not written yet
#   Put your code in place of raise NotImplementedError("exercise 1.2"), run both cells.
# ```
#
# If your answer is wrong, the check shows a call that fails, the expected result and your result. Often it also names the mistake. Each exercise has folded hints. A solved exercise is ticked, and the tick is still there when you come back.
#
# ## The map
#
# An arrow points from a lesson to a lesson that builds on it.

# %% jupyter={"source_hidden": true}
show_figure(draw_map(), map_in_words())

# %% [markdown]
# The table lists what you build in each lesson, the time that it takes, and how many of its exercises you have solved. Readers who solved each lesson using only its text estimated the times. Run the cell again to update the last column. Lessons longer than an hour have sections, and you can stop after any of them.
#
# The [glossary](../docs/glossary.md) explains the terms of the course, and names the lesson in which you first need each one.

# %%
Markdown(contents())

# %% [markdown]
# ## Three routes
#
# - **The simulator only**, if you want to write and debug CUDA kernels. The last third of lesson 06 uses the merge from lesson 01. Where lesson 08 uses the kernel of lesson 05, the course supplies it. Continue with `sim/README.md`.
# - **Attention only**: paper and PyTorch, no kernels. Lesson 15 trains a model with the kernels from lessons 11 and 13. You can use them without having written them.
# - **Everything**, in order.

# %%
for way, lessons in WAYS.items():
    print(f"{way:20} {hours(lessons):9} {' '.join(lessons)}")

# %% [markdown]
# The folder `solutions/` of the repository contains every lesson, solved and executed, so that you can compare afterwards. If something does not work, run `make doctor`. It reports what is installed and whether there is a GPU, and tells you how to fix every known problem.
#
# **Next:** [lesson 01](01_online_softmax.ipynb), or [lesson 03](03_threads_and_blocks.ipynb) if you came for the simulator.
