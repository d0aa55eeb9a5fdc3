# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 05 · The flash kernel
#
# **70 minutes** to the kernel that works, and 30 for the bug hunt (section 6, *optional*) · builds on lesson 02 (tiles, queries outer) and lesson 03 (threads, shared memory, barriers)
#
# You will be able to
# 1. find a row or a tile in memory that is one long line of numbers;
# 2. cut one piece of shared memory into tiles and let all threads of a block fill them;
# 3. write a complete flash attention kernel, one query per thread, that is right for every size and every order of the threads.
#
# The published notebook from which this course grew ends in the middle of this kernel: its last cell does not even parse. Here you finish it,
# and then you hunt the mistakes that such a kernel invites. No GPU is needed: `sim` runs the kernel and watches every access.
#
# What it is good for, first. The kernel of this lesson, with batches and heads and its rows in registers (`kernels.flash_attention`), as it ran on a GPU:

# %%
import inspect
import json
import math
from pathlib import Path

import numpy as np
import torch
from numba import cuda
from numpy import float32

from course import check, progress_bar, show_figure
from course.figures import BLUE, GREEN, ORANGE, SKY
from course.scenes import sliding_tile
import kernels
from kernels import attention, flash_attention
from kernels.reference.tiled import Traffic, queries_outer
from sim import simulate
from sim.observers import COUNTERS, DEFAULT, Trace

recorded = json.loads(
    (Path(kernels.__file__).parent / "data" / "lesson08.json").read_text("utf-8")
)
measured = recorded["roofline"]["flash_attention"]
shape = measured["size"]
one_matrix = shape["batch"] * shape["heads"] * shape["n"] ** 2 * 4 / 2**20
print(f"recorded {recorded['date']} on one {recorded['gpu']}: {shape}, float32")
print(f"the kernel: {measured['microseconds'] / 1000:.1f} ms, no N x N matrix")
print(f"the matrix S alone, if it were stored: {one_matrix:.0f} MiB")

# %% [markdown]
# ## The idea in one picture
#
# A block owns a tile of queries, and each of its **threads owns one query**: one row of Q, one row of O, its own `m` and `l`. The block
# walks over the keys tile by tile. All its threads load the next tile of K and V together; then each lets its own query meet
# every key of the tile. (The next cell only draws: run it, there is no need to read it.)

# %% jupyter={"source_hidden": true}
import matplotlib.pyplot as plt


def draw_shared(columns, rows, d):
    """One line of boxes, a box per number:
    how a block's shared memory is split into the tiles of K, V, Q and O."""
    figure, axes = plt.subplots(figsize=(11, 1.9))
    start = 0
    for name, height, colour in [
        ("K", columns, BLUE),
        ("V", columns, SKY),
        ("Q", rows, ORANGE),
        ("O", rows, GREEN),
    ]:
        for number in range(height * d):
            axes.bar(
                start + number + 0.5,
                1,
                width=0.92,
                color=colour,
                edgecolor="black",
                alpha=1 if number // d % 2 else 0.6,
            )
        axes.text(
            start + height * d / 2,
            1.15,
            f"{name} tile: {height} rows of {d}",
            ha="center",
            fontsize=12,
        )
        axes.text(start, -0.3, start, ha="left", fontsize=11)
        start += height * d
    axes.text(start, -0.3, start, ha="right", fontsize=11)
    axes.set(xlim=(-0.3, start + 0.3), ylim=(-0.4, 1.5))
    axes.axis("off")
    return figure


show_figure(
    draw_shared(columns=4, rows=3, d=2),
    "the 28 numbers of shared memory in one line, for tiles of 4 keys, "
    "3 queries and d = 2. The K tile takes the numbers 0 to 7, the V tile 8 to 15, "
    "the Q tile 16 to 21, the O tile 22 to 27. Within each tile one row of d = 2 "
    "numbers follows the other, pale and dark in turn.",
)

# %% [markdown]
# ## 1. Memory is one long line
#
# On the way to the GPU we flatten every matrix. Of a matrix with rows of `d` numbers, row `i` begins at number `i * d`, and column `c` of
# it is number `i * d + c`. That makes tiles easy: a tile of **whole rows** is one piece without gaps.
#
# **Predict.** Take 5 rows of d = 3. Rows 2 and 3 together are the numbers `___` to `___`.

# %%
matrix = np.arange(15).reshape(5, 3)
flat = matrix.ravel()
print(matrix[2:4].tolist(), "is", flat[2 * 3 : 4 * 3].tolist())

# %% [markdown]
# The numbers 6 to 11. (Not `flat[2 * 5 : ...]`: what counts is the length of a row, `d`, and not how many rows there are. This very slip is in the
# published notebook. You will meet it again.)
#
# Shared memory is one line too. A kernel asks for `cuda.shared.array(0, float32)`, and how long it is stands in the launch:
# `kernel[blocks, threads, 0, bytes]`. (The third number, 0, is the stream, for lesson 07.) The kernel cuts it into tiles itself, as in the picture:
# first `columns * d` numbers for K, as many for V, then `rows * d` for Q, as many for O.
#
# **Predict.** For tiles of 48 keys and 32 queries with d = 64, how many bytes of shared memory does a block need, at 4 bytes per number? `___`


# %%
def shared_bytes(rows, columns, d):
    """Bytes for tiles of K, V (columns rows each) and Q, O (rows rows each)."""
    return 4 * (2 * columns * d + 2 * rows * d)


print(
    shared_bytes(rows=32, columns=48, d=64),
    "bytes; a launch through Numba may ask for at most",
    48 * 1024,
)

# %% [markdown]
# ## 2. Many hands load a tile
#
# If every thread loaded the whole tile, a block of 32 threads would fetch each number 32 times. Instead, thread `t` of `T` threads loads the
# numbers `t, t + T, t + 2T, …`. With 3 threads and a tile of 8 numbers:
#
# | thread | loads the numbers |
# |---|---|
# | 0 | 0, 3, 6 |
# | 1 | 1, 4, 7 |
# | 2 | 2, 5 |
#
# Neighbouring threads load neighbouring numbers at the same moment, and that is what a GPU's memory likes best (lesson 08).
#
# ### Exercise 5.1 · load_tile · two or three lines
# Fill `tile` with the numbers of `array` from number `start` on. Each number is loaded by **one** thread of the block. What would lie past the end of
# `array` becomes 0. The block has one dimension. No barrier: that is the caller's business.
#
# <details><summary>Hint 1: the loop</summary>
#
# `range` takes a step: `range(first, end, step)`. The first is the thread's own index, the step is the number of threads in a block.
#
# </details>
# <details><summary>Hint 2: the end of the array</summary>
#
# The last tile may be ragged. Number `e` of the tile exists in the array if `start + e < array.size`.
#
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)  # a function for kernels to call
def load_tile(tile, array, start):
    """tile = array[start : start + tile.size], 0 past the end;
    the threads of the block share the work."""
    # BEGIN SOLUTION 5.1
    for e in range(cuda.threadIdx.x, tile.size, cuda.blockDim.x):
        tile[e] = array[start + e] if start + e < array.size else float32(0)
    # END SOLUTION


# %% tags=["check"]
check.ex05_1(load_tile)

# %% [markdown]
# The check would have noticed if two threads had loaded the same number: both write the same value into shared memory, without an order between them.
#
# ## 3. One row meets one tile
#
# Now the work of a single thread, the online softmax of lesson 01. The query is row `row` of the Q tile; it meets the first `keys` keys of the K tile
# (the last tile may have fewer than it has room for). For each key j:
#
# $$s = \text{scale}\cdot q\cdot k_j \qquad m' = \max(m, s) \qquad l' = l\,e^{m-m'} + e^{s-m'} \qquad o' = o\,e^{m-m'} + e^{s-m'}\,v_j$$
#
# **Predict.** A query has met one key, with score 2 and value 10: m = 2, l = 1, o = 10. The next key has score 3 and value 20. Then m = `___`,
# l = `___`, o = `___`.
#
# <details><summary>Answer</summary>
#
# m = 3, l = e⁻¹ + 1 = 1.368, o = 10·e⁻¹ + 20 = 23.679, and o / l = 17.31: closer to 20, the value with the larger score.
#
# </details>
#
# ### Exercise 5.2 · visit · about ten lines
# Write `visit`: row `row` meets `keys` keys. `o` lives in the O tile and is changed in place; `m` and `l` come in and are returned. All tiles are flat: number `c` of
# row `row` of the Q tile is `q_tile[row * d + c]`. `m` comes in as −∞ the first time. `scale` may be any number.
#
# <details><summary>Hint 1: types</summary>
#
# Begin a sum with `float32(0)`. A bare `0.0` would work here, but on a GPU it makes the sum a float64, which is slow (lesson 07).
#
# </details>
# <details><summary>Hint 2: three loops</summary>
#
# One over the keys `j`; inside it one over `c` for the score, and after `m`, `l` and both factors are known, one over `c` for the row of `o`.
#
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def visit(row, q_tile, k_tile, v_tile, o_tile, keys, d, scale, m, l):
    """Row `row` of the Q tile meets the first `keys` keys:
    its row of the O tile changes, its new (m, l) come back."""
    # BEGIN SOLUTION 5.2
    for j in range(keys):
        score = float32(0)
        for c in range(d):
            score += q_tile[row * d + c] * k_tile[j * d + c]
        score *= scale
        new_m = max(m, score)
        shrink = math.exp(m - new_m)
        p = math.exp(score - new_m)
        l = l * shrink + p
        for c in range(d):
            o_tile[row * d + c] = o_tile[row * d + c] * shrink + p * v_tile[j * d + c]
        m = new_m
    return m, l
    # END SOLUTION


# %% tags=["check"]
check.ex05_2(visit)

# %% [markdown]
# ## 4. The kernel
#
# What is left is to put the parts together, and here every line is about **who** and **when**:
#
# - Who: block `b` owns the queries from `b * rows` on, thread `t` the query `b * rows + t`. If the last block has more threads than queries, its idle threads
#   must not write. But they must come to every barrier, and they help to load.
# - When: nobody may read a tile before all have loaded it, and nobody may load the next one over it before all have read it. Two barriers per tile.
#
# ### Exercise 5.3 · flash_kernel · about fifteen lines
# Write the rest of the kernel. `rows` is the number of threads in a block, `columns` the number of keys in a tile, `n` the number of queries and of keys.
# Each thread loads its part of each tile, once, and writes its own row of `o`. The arrays may be longer than n rows.
#
# <details><summary>Hint 1: before the loop</summary>
#
# Load the Q tile: it begins at query `b * rows`, so at number `b * rows * d`. Set this thread's row of the O tile to 0. Then `m` is
# `float32(-math.inf)` and `l` is `float32(0)`.
#
# </details>
# <details><summary>Hint 2: the loop</summary>
#
# `for start in range(0, n, columns)`: load K and V, barrier, `visit`, barrier. The tile holds `min(columns, n - start)` keys.
#
# </details>
# <details><summary>Hint 3: after the loop</summary>
#
# If this thread has a query, it writes its row of O, divided by `l`, to `o`. A `return` before the loop for threads without a query would be wrong: each thread
# also loads its part of every tile, and nobody would load the part of a thread that has returned.
#
# </details>


# %% tags=["exercise"]
@cuda.jit
def flash_kernel(q, k, v, o, n, d, columns, scale):
    """o = softmax(scale · q kᵀ) v; q, k, v, o are n rows of d, flat;
    shared memory holds tiles of K, V, Q and O."""
    shared = cuda.shared.array(0, float32)
    rows, t = cuda.blockDim.x, cuda.threadIdx.x
    k_tile = shared[: columns * d]
    v_tile = shared[columns * d : 2 * columns * d]
    q_tile = shared[2 * columns * d : 2 * columns * d + rows * d]
    o_tile = shared[2 * columns * d + rows * d : 2 * columns * d + 2 * rows * d]
    # BEGIN SOLUTION 5.3
    first = cuda.blockIdx.x * rows
    load_tile(q_tile, q, first * d)
    for c in range(d):
        o_tile[t * d + c] = 0
    m, l = float32(-math.inf), float32(0)
    for start in range(0, n, columns):
        load_tile(k_tile, k, start * d)
        load_tile(v_tile, v, start * d)
        cuda.syncthreads()  # loaded
        m, l = visit(
            t, q_tile, k_tile, v_tile, o_tile, min(columns, n - start), d, scale, m, l
        )
        cuda.syncthreads()  # used: the next tile may come
    if first + t < n:
        for c in range(d):
            o[(first + t) * d + c] = o_tile[t * d + c] / l
    # END SOLUTION


# %% tags=["check"]
check.ex05_3(flash_kernel)

# %% [markdown]
# One question is worth a minute: the Q tile is loaded by all threads together, so thread 0 may need a number that thread 1 brings. Why is there no barrier
# right after it? Because the first barrier inside the loop comes before anybody looks at the Q tile.
#
# ## 5. Validate: against lesson 02, element by element
#
# A host function launches the kernel, as the published notebook's `flash_attn` does, except that this one gives its output back.


# %%
def flash(q, k, v, rows, columns):
    """Your kernel on q, k, v (n, d), torch tensors in float32; returns (n, d)."""
    n, d = q.shape
    o = torch.full((n * d,), math.nan)  # so that a number nobody writes shows
    blocks = (n + rows - 1) // rows
    launch = simulate(flash_kernel)[blocks, rows, 0, shared_bytes(rows, columns, d)]
    launch(q.flatten(), k.flatten(), v.flatten(), o, n, d, columns, float32(d**-0.5))
    return o.view(n, d)


# %% [markdown]
# First the smallest examples of the published notebook, then larger ones. Each is compared with the tiles of lesson 02, in the same order of loops, and with
# the package's reference, plain softmax attention in float64: is every number within 0.00001?

# %% tags=["uses-exercise"]
torch.manual_seed(5)
column = [
    torch.tensor(numbers).view(2, 1)
    for numbers in ([1.0, 1.0], [0.0, 2.0], [0.0, -1.0])
]
corner, off_corner = (
    torch.tensor([[1.0, 0.0], [0.0, 0.0]]),
    torch.tensor([[0.0, 1.0], [0.0, 0.0]]),
)
examples = {
    "two by one": (*column, 2, 1),
    "one corner": (corner, corner, off_corner, 2, 2),
    "1 x 3": (*torch.randn(3, 1, 3), 4, 2),
    "33 x 8": (*torch.randn(3, 33, 8), 16, 12),
    "50 x 16": (*torch.randn(3, 50, 16), 32, 24),
}
print(
    f"{'example':12}{'rows':>5}{'columns':>8}   "
    f"{'as in lesson 02':>15}{'as reference':>15}"
)
for name, (q, k, v, rows, columns) in progress_bar(examples.items()):
    got = flash(q, k, v, rows, columns)
    tiled = queries_outer(q, k, v, rows, columns, Traffic())
    exact = attention(q.double(), k.double(), v.double())
    near = [(got - wanted).abs().max().item() < 1e-5 for wanted in (tiled, exact)]
    print(f"{name:12}{rows:5}{columns:8}   {near[0]!s:>15}{near[1]!s:>15}")

# %% [markdown]
# ### What it moves
#
# Lesson 02 counted before anything ran: with queries outer, 2·n·d + ⌈n / rows⌉·2·n·d numbers cross between global memory and the chip. For n = 64, d = 8 and
# 16 rows these are 1024 + 4 · 1024 = 5120.
#
# **Predict.** How many loads and stores of global memory does `sim` count in *your* kernel? And how many, if each thread read all keys itself?

# %% tags=["uses-exercise"]
n, d, rows = 64, 8, 16
q, k, v, o = np.random.default_rng(5).standard_normal((4, n * d)).astype(float32)
launch = simulate(flash_kernel, observers=[*DEFAULT, *COUNTERS])
counted = launch[n // rows, rows, 0, shared_bytes(rows, rows, d)](
    q, k, v, o, n, d, rows, float32(d**-0.5)
).counters["memory"]["global"]
print("your kernel     ", counted["loads"] + counted["stores"])
print("lesson 02       ", 2 * n * d + n // rows * 2 * n * d)
print("without tiles   ", 2 * n * d + 2 * n * n * d)

# %% [markdown]
# Equal to the last number: what was a formula in lesson 02 is a kernel now.
#
# And its time, on a small launch: a row is a thread, a line is a barrier. *Load* (together) | *visit* (each for itself) | load | visit …

# %% tags=["uses-exercise"]
q, k, v, o = np.random.default_rng(5).standard_normal((4, 8)).astype(float32)
launch = simulate(flash_kernel, observers=[*DEFAULT, Trace])
report = launch[1, 4, 0, shared_bytes(4, 2, 2)](q, k, v, o, 4, 2, 2, float32(0.5))
report.timeline()

# %% [markdown]
# The same run of your kernel once more, with 8 keys in tiles of 3 and two blocks, of which the first is drawn. Move the slider: a row is a thread with its query, and the tile of keys slides past.
#
# **Predict.** Which thread fetches the first number of key 3? And how many keys do the queries meet in the last tile?

# %% tags=["uses-exercise"]
q, k, v, o = np.ones((4, 16), float32)
launch = simulate(flash_kernel, observers=[*DEFAULT, Trace(blocks=[0])])
report = launch[2, 4, 0, shared_bytes(4, 3, 2)](q, k, v, o, 8, 2, 3, float32(0.5))
sliding_tile(report.trace, d=2, columns=3)

# %% [markdown]
# Thread 0, since key 3 is the first of its tile; and 2 keys, since 8 is 3 + 3 + 2. All four queries meet a key that was fetched once.
#
# ### Its sister in the package
#
# The same kernel, with batches, heads and a causal mask, and with its rows in registers (a thread's own memory) instead of shared memory, is `kernels/flash/forward.py`. Its
# core will look familiar. (`weight(a, b)` is exp(a − b), `before` and `seen` bound the keys that this query may look at, for a causal mask or a sliding window; `KEYS` is your `columns`, and `width` your `d`.)

# %%
source = inspect.getsource(inspect.getmodule(flash_attention)).splitlines()
begin = next(
    number for number, line in enumerate(source) if "for first in range" in line
)
print("\n".join(source[begin : begin + 18]))

# %% tags=["uses-exercise"]
q, k, v = torch.randn(3, 20, 4)
library = flash_attention(*(x.view(1, 1, 20, 4) for x in (q, k, v)), causal=False)
print(
    "same as yours:",
    (library[0, 0] - flash(q, k, v, rows=8, columns=8)).abs().max().item() < 1e-5,
)

# %% [markdown]
# ## 6. A bug hunt (optional, 25 minutes)
#
# The published notebook stops at a kernel with a dozen mistakes. Six of them show as soon as you run the cell, or read it:
#
# | mistake | how it shows |
# |---|---|
# | a `)` before its `]` in the last cell | `SyntaxError` |
# | `tc` and `tr`, the numbers of tiles, are never passed to the kernel | `NameError`, or it takes what an earlier cell has left under these names |
# | everything is flat, but the products index in two dimensions: `Qi[ty][c]` | an error: a number has no `[c]` |
# | a loop that prints uses `n` as its variable, and overwrites the length n | nonsense later |
# | `Kj = K[...]` lets the name mean a piece of global memory instead of filling the tile | no error at all; just no use of shared memory |
# | the host function makes `O` and never returns it | the caller gets `None` |
#
# The other six run, and are wrong. Here is a kernel that has all six, and otherwise works. It computes the same as yours in another way: each thread keeps a row of
# scores in shared memory, takes the largest score of the whole tile, and rescales once per tile.

# %%
from course.check.lesson05 import unfinished

for number, line in enumerate(inspect.getsource(unfinished).splitlines(), start=1):
    print(f"{number:3}  {line}")

# %% [markdown]
# ### Exercise 5.4 · repairs · six lines
# Find the six wrong lines. Give each with the line that should stand in its place, as a dictionary `{"wrong line": "right line"}`. A line is copied whole, without the spaces
# in front. Begin with an empty dictionary, `return {}`, and run the check: it shows the first two things that `sim` finds, and how many more there are. Repair that, and run it again. A finding shows where threads
# meet, which need not be where the mistake is: ask of each of the two threads which queries it owns, and why.
#
# Two of the six need a sharp eye, as they give right answers for most inputs. The check helps there: its scores also climb from −1000 to 1000, and fall, and it has a last key far above the rest. In the
# end each block makes the output of its own queries, each thread that of one.
#
# <details><summary>Hint 1: out of bounds</summary>
#
# How many numbers has a tile of `columns` rows? Where does row `start` begin? (See section 1.)
#
# </details>
# <details><summary>Hint 2: two threads, two blocks</summary>
#
# How many threads has the block, and in which direction? Which queries does *this* block own? The loop over `first` may stay a loop: let it begin
# with the block's own tile, and step over the tiles of all the other blocks (`cuda.gridDim.x` is their number).
#
# </details>
# <details><summary>Hint 3: the sharp eye</summary>
#
# What is the largest of no scores at all? And how many scores are in a row of a tile: `d`, or something else?
#
# </details>


# %% tags=["exercise"]
def repairs():
    """{wrong line of `unfinished`: right line}"""
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
# Why are the two with the sharp eye right so often? Softmax does not change if the same number is taken from all scores, and any number will do: the maximum
# is only the safe choice. A running maximum that starts at 0 fails when all scores are far below 0: near −100 the weights are so small that float32 keeps no more than a digit or two of them, and
# below −104 all of them are rounded to 0, and 0 / 0 is NaN. A maximum over
# too few scores fails when the one it missed is so large that its exp overflows. (With `d` larger than the tile, it even reads past the end of its row.)
#
# ## In three lines
# - A tile of whole rows is one piece of flat memory, shared memory is one line that the kernel cuts up, and loads are dealt out to all threads.
# - One query per thread, two barriers per tile; idle threads load and wait but do not write.
# - Right answers on friendly inputs prove little: try ragged sizes, scores far from 0, every order of the threads, and let a tool watch each access.
#
# **You can now** write a flash attention kernel that is right for every size, and mend one that is not.
#
# **Next:** [lesson 06](06_warps.ipynb) gives each query a whole warp: 32 threads that hand values to each other without shared memory or barriers.
