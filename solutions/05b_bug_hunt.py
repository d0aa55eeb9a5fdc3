# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 05b · A bug hunt in a published kernel
#
# **35 minutes** · builds on lesson 05 (the flash kernel) and lesson 04 (findings)
#
# You will be able to
# 1. find six mistakes in a kernel that looks right, with a tool and with inputs chosen for it;
# 2. say which mistakes give correct answers on easy inputs.
#
# This course grew from an older notebook that ends in the middle of lesson 05's kernel. Its mistakes are worth a look, because they are easy to make.

# %%
import inspect

from course import check
from course.check.lesson05b import unfinished

# %% [markdown]
# ## Twelve mistakes
#
# The older notebook stops at a kernel with a dozen mistakes. Six of them are obvious as soon as you run the cell, or read it:
#
# | mistake | how you notice it |
# |---|---|
# | a `)` before its `]` in the last cell | `SyntaxError` |
# | `tc` and `tr`, the numbers of tiles, are never passed to the kernel | `NameError`, or the kernel uses the values that an earlier cell has left under these names |
# | all arrays are flat, but the products use two indices: `Qi[ty][c]` | an error: a number has no `[c]` |
# | a loop that prints uses `n` as its variable, and overwrites the length n | wrong results later |
# | `Kj = K[...]` binds the name to a part of global memory instead of filling the tile | no error at all; the kernel just does not use shared memory |
# | the host function creates `O` and never returns it | the caller gets `None` |
#
# The other six run without an error, and the result is wrong. Here is a kernel that has
# all six, and is correct otherwise. It computes the same result as yours, but in a
# different way: each thread keeps a row of scores in shared memory, takes the largest
# score of the whole tile, and rescales once per tile.

# %%
for number, line in enumerate(inspect.getsource(unfinished).splitlines(), start=1):
    print(f"{number:3}  {line}")

# %% [markdown]
# ### Exercise 5.4 · repairs · six lines
# Find the six wrong lines. Return a dictionary `{"wrong line": "correct line"}`. Copy each line in full, without its indentation.
#
# Start with an empty dictionary, `return {}`, and run the check. It shows the first two
# bugs that `sim` finds, and how many more there are. Fix the two bugs, and run the
# check again. A finding shows where two threads conflict. The mistake may be in another line. So ask for each of the two threads which queries it owns, and why.
#
# Two of the six mistakes are hard to find, because they give correct answers for most inputs. The check helps you: its scores also climb from −1000 to 1000, and fall, and in one case the last key is far above the rest. When you are done, each block computes its own queries, one per thread.
#
# <details><summary>Hint 1: out of bounds</summary>
#
# How many elements does a tile of `columns` rows have? Where does row `start` begin? (See section 1 of lesson 05.)
#
# </details>
# <details><summary>Hint 2: two threads, two blocks</summary>
#
# Along which axis are the block's threads? Which queries does *this* block own? Keep
# the loop over `first`, but start it at the block's own tile and advance by
# `cuda.gridDim.x` tiles. (This is called a
# [**grid-stride loop**](../docs/glossary.md).)
#
# </details>
# <details><summary>Hint 3: the two hard ones</summary>
#
# What is the maximum of no scores at all? And how many scores are in a row of a tile: `d`, or something else?
#
# </details>


# %% tags=["exercise"]
def repairs():
    """Return {wrong line of `unfinished`: correct line}."""
    # BEGIN SOLUTION 5.4
    return {
        "rows, t = cuda.blockDim.y, cuda.threadIdx.x": (
            "rows, t = cuda.blockDim.x, cuda.threadIdx.x"
        ),
        "k_tile = shared[: columns + d]": "k_tile = shared[: columns * d]",
        "for first in range(0, n, rows):": (
            "for first in range(cuda.blockIdx.x * rows, n, cuda.gridDim.x * rows):"
        ),
        "m, l = float32(0), float32(0)": "m, l = float32(-math.inf), float32(0)",
        "k_tile[e] = k[start * n + e]": "k_tile[e] = k[start * d + e]",
        "for j in range(d):": "for j in range(keys):",
    }
    # END SOLUTION


# %% tags=["check"]
check.ex05_4(repairs)

# %% [markdown]
# Why do those two lines give correct answers so often? A softmax does not change if the same number is subtracted from all scores, and any number works in exact arithmetic. But exp overflows for large numbers, and rounds to 0 for very negative ones, so the maximum is the safe choice. A running maximum that starts at 0 fails if all scores are far below 0: near −100 the weights are so small that float32 keeps only a digit or two of them, and below −104 all of them are rounded to 0, and 0 / 0 is NaN. A maximum over too few scores fails if the one that it missed is so large that its exp overflows. (With `d` larger than the tile, it even reads past the end of its row.)
#
# ## In three lines
# - Some mistakes show at once, some only with a tool that checks each access, and some only with scores far from 0.
# - A finding names the place where two threads conflict. The mistake may be elsewhere: ask which queries each thread owns.
# - Correct answers on easy inputs prove little: try ragged sizes, scores far from 0, and every order of the threads.
#
# **You can now** fix a flash attention kernel that is wrong.
#
# **Read on:** NVIDIA, *Compute Sanitizer* documentation · lesson 04b's table of bugs on a real GPU.
#
# **Next:** [lesson 06](06_warps.ipynb) gives each query a whole warp: 32 threads that exchange values without shared memory or barriers.
