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
# A course in notebooks: from a softmax of three numbers on paper to GPU kernels for convolutional attention. It runs on your laptop. **No GPU is needed**: kernels run in a simulator, and what only a GPU can tell was recorded on
# one and says so.
#
# **How to use a notebook.** Shift+Enter runs a cell and goes to the next. Run all cells of a lesson from the top, in order. Where you find `___`, write down what you expect, on paper or in the cell, *before* you run the next one: a wrong guess
# is worth more than a right answer that you have read. Folded cells only draw.
#
# ## The first five minutes
#
# Eight threads, each with one number. Each puts its number on a table that all can see (`shared` memory), and adds to it the number of its right neighbour. (The last one's neighbour is the first.)

# %%
import numpy as np
from IPython.display import Markdown
from numba import cuda
from numpy import float32

from course import show_figure
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
# **Guess.** x is 0, 1, 2, … 7, so out should be 1, 3, 5, … 13, and 7 for the last. Will it be? `___`
#
# On a GPU you would probably see just that, nearly always. The simulator runs the threads in an order drawn at random, watches every access, and says more:

# %%
report = simulate(add_neighbours, on_finding="report", seed=1)[1, 8](x, out)
print(out)
print(f"\nfindings: {len(report.findings)}; the first:\n")
print(report.findings[0].message)

# %% [markdown]
# A thread may look at its neighbour's place before the neighbour has written there. That is a **race**: right today, wrong tomorrow, and no error message on any GPU. The remedy is one line between writing and reading, at which all threads of
# the block wait for each other:


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
# You have found and mended your first GPU bug. In lesson 03 you build such a simulator yourself, and lesson 04 has eight more kinds of bugs.
#
# ## Exercises
#
# An exercise is a function whose body is `raise NotImplementedError("exercise 1.2")`. Put your code in the place of that line, run the cell, then the next one, which **checks** it: with fresh numbers each time, and with sizes that do not
# divide evenly. Until then, "Run All" stops there with two lines:
#
# ```
# ✗ exercise 1.2 · merge: not written yet
#   Put your code in place of raise NotImplementedError("exercise 1.2"), run both cells.
# ```
#
# A wrong answer gets the call that shows it, what was wanted, what came, and often the mistake by name. Hints are folded below each exercise. What is right is ticked, and stays ticked when you come back.
#
# ## The map
#
# An arrow leads from a lesson to one that builds on it.

# %% jupyter={"source_hidden": true}
show_figure(draw_map(), map_in_words())

# %% [markdown]
# Here is what each lesson builds, its minutes, as readers estimated who solved it from its text alone, and how many of its exercises you have done. Run the cell again to bring the last column up to date. A lesson of more than an hour has sections; stop at one.

# %%
Markdown(contents())

# %% [markdown]
# ## Three ways through
#
# - **The simulator only**: for those who want to write and debug CUDA kernels. Lesson 06 uses the merge of lesson 01 in its last third; in 08 take the counts and leave the flash kernel of the roofline to the others. Then `sim/README.md`.
# - **Attention only**: paper and PyTorch, no kernels. Lesson 15 trains with the kernels that others build in 11 and 13; you can use them as they are.
# - **Everything**, in order.

# %%
for way, lessons in WAYS.items():
    print(f"{way:20} {hours(lessons):9} {' '.join(lessons)}")

# %% [markdown]
# Each lesson's solution, executed, is in `solutions/` of the repository: to compare with, afterwards. Where something does not work, `make doctor` says what is installed, whether there is a GPU, and the remedy for every known trouble.
#
# **Next:** [lesson 01](01_online_softmax.ipynb), or [lesson 03](03_threads_and_blocks.ipynb) if you came for the simulator.
