# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 05 · The flash kernel
#
# **70 minutes** · builds on lesson 02 (tiles, queries outer) and lesson 03 (threads, shared memory, barriers)
#
# You will be able to
# 1. find a row or a tile in memory that is one long line of elements;
# 2. split one piece of shared memory into tiles, and let all threads of a block fill them;
# 3. write a complete flash attention kernel, with one query per thread, that is correct for every size and every order of the threads.
#
# This course grew from an older notebook that ends in the middle of this kernel: its last cell is not even valid Python. Here you finish the kernel. Lesson 05b looks for the mistakes that are easy to make in it. You do not need a GPU: `sim` runs the kernel and checks every access.
#
# First, the payoff. The kernel of this lesson is in the package as `kernels.flash_attention`, with batches and heads, and with its rows in registers. Here is one run of it that we recorded on a GPU:

# %%
import inspect
import json
import math
from pathlib import Path

import numpy as np
import torch
from numba import cuda
from numpy import float32

import kernels
from course import check, guess, progress_bar, show_figure
from course.figures import BLUE, GREEN, ORANGE, SKY
from course.ladder import show_ladder, time_rung
from course.scenes import sliding_tile
from kernels import attention, flash_attention
from kernels.reference.tiled import Traffic, queries_outer
from sim import simulate
from sim.observers import COUNTERS, DEFAULT, Trace

recorded = json.loads(
    (Path(kernels.__file__).parent / "data" / "lesson08.json").read_text("utf-8")
)
measured = recorded["roofline"]["flash_attention"]
shape = measured["size"]
pairs = shape["batch"] * shape["heads"] * shape["n"] ** 2
print(f"recorded {recorded['date']} on one {recorded['gpu']}: {shape}, float32")
print(f"the kernel: {measured['microseconds'] / 1000:.1f} ms, no N x N matrix")
print(f"the matrix S alone, if it were stored: {pairs * 4 / 2**20:.0f} MiB")
print(f"writing and reading S and P at 4300 GB/s: {pairs * 16 / 4.3e9:.1f} ms")

# %% [markdown]
# So the kernel saves a lot of memory, but it is not fast yet: a GPU could write and read `S` and `P` in less time. (Lesson 08b looks at where the 7 ms go, and lesson 17 does the same work on tensor cores.) First it has to be correct.
#
# ## The idea in one picture
#
# A block owns a tile of queries, and each of its **threads owns one query**: one row of Q, one row of O, and its own `m` and `l`. The block loops over the keys, tile by tile. All its threads load the next tile of K and V together. Then each thread processes its own query with every key of the tile. (The next cell only draws. Run it; you do not need to read it.)

# %% jupyter={"source_hidden": true}
import matplotlib.pyplot as plt


def draw_block(threads=4, keys=9, columns=3, now=1):
    """Draw a block's scores: a row per thread, and the tile of keys in progress."""
    figure, axes = plt.subplots(figsize=(9, 3.4), layout="constrained")
    colours = {-1: "#DCE9F2", 0: BLUE, 1: "white"}
    for t in range(threads):
        for j in range(keys):
            tile = j // columns
            colour = colours[(tile > now) - (tile < now)]
            box = plt.Rectangle((j, t), 0.92, 0.86, facecolor=colour, edgecolor="grey")
            axes.add_patch(box)
        name = f"thread {t}: query {t}, its m, l, o"
        axes.text(-0.2, t + 0.43, name, ha="right", va="center", fontsize=11)
    words = ["used, and forgotten", "in shared memory", "not loaded yet"]
    for tile, word in enumerate(words):
        middle = tile * columns + columns / 2
        axes.text(middle, -0.25, word, ha="center", fontsize=11)
        named = f"keys {tile * columns}–{(tile + 1) * columns - 1}"
        axes.text(middle, threads + 0.35, named, ha="center", fontsize=11)
    axes.set(xlim=(-4.4, keys + 0.1), ylim=(threads + 0.6, -0.7))
    axes.axis("off")
    return figure


show_figure(
    draw_block(),
    "a grid of scores with a row for each of four threads and a column for each of "
    "nine keys. Every thread keeps its query and its m, l and o. Keys 0 to 2 are "
    "used and forgotten, keys 3 to 5 are in shared memory, and keys 6 to 8 are "
    "not loaded yet.",
)


# %% [markdown]
# ## 1. Memory is one long line
#
# Before the launch we flatten every matrix into one dimension, row after row. This layout is called [**row-major**](../docs/glossary.md). In a matrix with rows of `d` elements, row i starts at index i*d, and its element c has index i*d + c. This makes tiles easy: a tile of **whole rows** is contiguous.
#
# **Predict.** Take 5 rows of d = 3. Rows 2 and 3 together have the indices `___` to `___`.

# %% tags=["guess"]
guess("05 rows", first_index=..., last_index=...)

# %%
matrix = np.arange(15).reshape(5, 3)
flat = matrix.ravel()
print(matrix[2:4].tolist(), "is", flat[2 * 3 : 4 * 3].tolist())

# %% [markdown]
# They have the indices 6 to 11. (It is not `flat[2 * 5 : ...]`: the length of a row, `d`, determines the index, and the number of rows does not. The older notebook makes exactly this mistake. You will see it again.)
#
# Shared memory is one line too. A kernel asks for `cuda.shared.array(0, float32)`, and its length is given at launch: `kernel[blocks, threads, 0, bytes]`. (The third argument, 0, is the stream, which lesson 07b explains.) This is called **dynamic shared memory**. The kernel splits it into tiles itself: first `columns * d` elements each for K and V, then `rows * d` each for Q and O.


# %% jupyter={"source_hidden": true}
def draw_shared(columns, rows, d):
    """Draw how a block's shared memory is split into the tiles of K, V, Q and O."""
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
        middle = start + height * d / 2
        label = f"{name} tile: {height} rows of {d}"
        axes.text(middle, 1.15, label, ha="center", fontsize=12)
        axes.text(start, -0.3, start, ha="left", fontsize=11)
        start += height * d
    axes.text(start, -0.3, start, ha="right", fontsize=11)
    axes.set(xlim=(-0.3, start + 0.3), ylim=(-0.4, 1.5))
    axes.axis("off")
    return figure


show_figure(
    draw_shared(columns=4, rows=3, d=2),
    "the 28 elements of shared memory in one line, for tiles of 4 keys, "
    "3 queries and d = 2. The K tile has the elements 0 to 7, the V tile 8 to 15, "
    "the Q tile 16 to 21, the O tile 22 to 27. Within each tile one row of d = 2 "
    "elements follows the other, pale and dark in turn.",
)


# %% [markdown]
# **Predict.** For tiles of 48 keys and 32 queries with d = 64, how many bytes of shared memory does a block need, at 4 bytes per element? `___`

# %% tags=["guess"]
guess("05 shared memory", number_of_bytes=...)


# %%
def shared_bytes(rows, columns, d):
    """Return the bytes of the tiles of K, V (`columns` rows) and Q, O (`rows` rows)."""
    return 4 * (2 * columns * d + 2 * rows * d)


print(
    shared_bytes(rows=32, columns=48, d=64),
    "bytes; a launch through Numba may ask for at most",
    48 * 1024,
)

# %% [markdown]
# ## 2. All threads load a tile together
#
# If every thread loaded the whole tile, a block of 32 threads would load each element 32 times. Instead, thread `t` of `T` threads loads the elements `t, t + T, t + 2T, …`. This is called a **block-stride loop**. With 3 threads and a tile of 8 elements:
#
# | thread | loads the elements |
# |---|---|
# | 0 | 0, 3, 6 |
# | 1 | 1, 4, 7 |
# | 2 | 2, 5 |
#
# So neighbouring threads load neighbouring elements at the same time, which is the pattern that a GPU's memory serves best (lesson 08).
#
# ### Exercise 5.1 · load_tile · two or three lines
# Fill `tile` with elements of `array`, starting at index `start`.
#
# - Each element is loaded by **one** thread of the block: thread `t` of `T` loads the elements `t`, `t + T`, `t + 2T`, … of the tile.
# - Elements past the end of `array` become 0.
# - Blocks are one-dimensional. Do not use a barrier here: the caller does that.
#
# <details><summary>Hint 1: the loop</summary>
#
# `range` takes a step: `range(first, end, step)`. The first value is the thread's own index, and the step is the number of threads in a block.
#
# </details>
# <details><summary>Hint 2: the end of the array</summary>
#
# The last tile may be ragged. Element `e` of the tile exists in the array if `start + e < array.size`.
#
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)  # a function for kernels to call
def load_tile(tile, array, start):
    """Copy array[start : start + tile.size] to tile, with 0 past the end of the array;
    the threads of the block share the work."""
    # BEGIN SOLUTION 5.1
    for e in range(cuda.threadIdx.x, tile.size, cuda.blockDim.x):
        tile[e] = array[start + e] if start + e < array.size else float32(0)
    # END SOLUTION


# %% tags=["check"]
check.ex05_1(load_tile)

# %% [markdown]
# The check also rejects an answer in which two threads load the same element: both would write to the same element of shared memory, and nothing orders the two writes.
#
# ## 3. One row and one tile
#
# Now write the work of a single thread, which is the online softmax of lesson 01. The query is row `row` of the Q tile. It is processed with the first `keys` keys of the K tile. (The last tile may have fewer keys than it has room for.) For each key j:
#
# $$s = \text{scale}\cdot q\cdot k_j \qquad m' = \max(m, s) \qquad l' = l\,e^{m-m'} + e^{s-m'} \qquad o' = o\,e^{m-m'} + e^{s-m'}\,v_j$$
#
# **Predict.** A query has processed one key, with score 2 and value 10: m = 2, l = 1, o = 10. The next key has score 3 and value 20. Then m = `___`, l = `___`, o = `___`.

# %% tags=["guess"]
guess("05 two keys", m=..., l=..., o=...)

# %% [markdown]
# ### Exercise 5.2 · visit · about ten lines
# Write `visit`, which updates row `row` with `keys` keys.
#
# - `o` is in the O tile, and you change it in place. `m` and `l` are arguments, and you return their new values.
# - All tiles are flat: element `c` of row `row` of the Q tile is `q_tile[row * d + c]`.
# - `m` is −∞ the first time. `scale` may be any number, even a negative one.
# - Each thread calls this for its own row, so there is no barrier.
# - Compute in float32: start a sum with `float32(0)`. A bare `0.0` would make it a float64, which is slow on a GPU (lesson 07).
#
# <details><summary>Hint: three loops</summary>
#
# - Write an outer loop over the keys `j`.
# - Inside it, write a loop over `c` that computes the score.
# - After you have computed `m`, `l` and both factors, write a second loop over `c` that
#   updates the row of `o`.
#
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def visit(row, q_tile, k_tile, v_tile, o_tile, keys, d, scale, m, l):
    """Update row `row` of the O tile with the first `keys` keys, and return the
    new (m, l) of that row."""
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
# Now put the parts together. For every line, ask **which thread** runs it and **when**:
#
# - Which thread: block `b` owns the queries from `b * rows` on, and thread `t` owns the query `b * rows + t`. If the last block has more threads than queries, its idle threads must not write. But they must reach every barrier, and they help to load the tiles.
# - When: no thread may read a tile before all threads have loaded it, and no thread may overwrite it with the next tile until all have finished reading it. This needs two barriers per tile.
#
# ### Exercise 5.3 · flash_kernel · about fifteen lines
# Write the rest of the kernel. `rows` is the number of threads in a block, `columns` the number of keys in a tile, and `n` the number of queries and of keys.
#
# - Each thread loads its part of each tile, once, and writes its own row of `o`.
# - Use `cuda.syncthreads()` twice per tile. (One or two more in the whole kernel are allowed.)
# - Compute in float32, as in `visit`.
# - The arrays may be longer than n rows.
#
# <details><summary>Hint 1: before the loop</summary>
#
# Load the Q tile. It starts at query `b * rows`, that is, at index `b * rows * d`. Set this thread's row of the O tile to 0. Then `m` is
# `float32(-math.inf)` and `l` is `float32(0)`.
#
# </details>
# <details><summary>Hint 2: the loop</summary>
#
# `for start in range(0, n, columns)`: load K and V, barrier, `visit`, barrier. The tile has `min(columns, n - start)` keys.
#
# </details>
# <details><summary>Hint 3: after the loop</summary>
#
# If this thread has a query, it writes its row of O, divided by `l`, to `o`. A `return` before the loop for threads without a query would be
# wrong: each thread also loads its part of every tile, and no other thread loads the part of a thread that has returned.
#
# </details>


# %% tags=["exercise"]
@cuda.jit
def flash_kernel(q, k, v, o, n, d, columns, scale):
    """Compute o = softmax(scale · q kᵀ) v, where q, k, v, o are n rows of d, flat;
    shared memory has tiles of K, V, Q and O."""
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
        cuda.syncthreads()  # used: the next tile may be loaded
    if first + t < n:
        for c in range(d):
            o[(first + t) * d + c] = o_tile[t * d + c] / l
    # END SOLUTION


# %% tags=["check"]
check.ex05_3(flash_kernel)

# %% [markdown]
# One question is worth a minute. All threads load the Q tile together, so thread 0 may need an element that thread 1 loaded. Why is there no barrier right after it? The loop has one in time: no thread reads the Q tile before the first barrier inside the loop.
#
# ## 5. Validate: against lesson 02, element by element
#
# A host function launches the kernel, as `flash_attn` does in the older notebook, except that this one returns its output.


# %%
def flash(q, k, v, rows, columns):
    """Run your kernel on float32 tensors q, k, v (n, d); return the output (n, d)."""
    n, d = q.shape
    o = torch.full((n * d,), math.nan)  # NaN shows elements that no thread writes
    blocks = (n + rows - 1) // rows
    launch = simulate(flash_kernel)[blocks, rows, 0, shared_bytes(rows, columns, d)]
    launch(q.flatten(), k.flatten(), v.flatten(), o, n, d, columns, float32(d**-0.5))
    return o.view(n, d)


# %% [markdown]
# First we run the smallest examples of the older notebook, then larger ones. We compare each result with two others: the tiles of lesson 02, with the loops in the same order, and the package's reference, which is plain softmax attention in float64. Is every element within 0.00001?

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
# In lesson 02 you computed the traffic before anything ran: with queries outer, 2·n·d + ⌈n / rows⌉·2·n·d numbers move between global memory and the chip. For n = 64, d = 8 and 16 rows this is 1024 + 4 · 1024 = 5120.
#
# **Predict.** How many loads and stores of global memory does `sim` count in *your* kernel? `___` And how many would there be if each thread read all keys itself? `___`

# %% tags=["guess"]
guess("05 traffic", your_kernel=..., without_tiles=...)

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
# The first two agree exactly: the formula of lesson 02 has become a kernel. Without tiles, there would be 13 times as many accesses.
#
# Here is the timeline of a small launch: each row is a thread, and each vertical line is a barrier. You see *load* (together) | *visit* (each thread alone) | load | visit …

# %% tags=["uses-exercise"]
q, k, v, o = np.random.default_rng(5).standard_normal((4, 8)).astype(float32)
launch = simulate(flash_kernel, observers=[*DEFAULT, Trace])
report = launch[1, 4, 0, shared_bytes(4, 2, 2)](q, k, v, o, 4, 2, 2, float32(0.5))
report.timeline()

# %% [markdown]
# The next picture shows another run of your kernel, with 8 keys in tiles of 3. There are two blocks; only the first is drawn. Each row is a thread with its query, and the tile of keys slides past when you move the slider.
#
# **Predict.** Which thread loads the first element of key 3? `___` And how many keys do the queries process in the last tile? `___`

# %% tags=["guess"]
guess("05 last tile", thread=..., keys=...)

# %% tags=["uses-exercise"]
q, k, v, o = np.ones((4, 16), float32)
launch = simulate(flash_kernel, observers=[*DEFAULT, Trace(blocks=[0])])
report = launch[2, 4, 0, shared_bytes(4, 3, 2)](q, k, v, o, 8, 2, 3, float32(0.5))
sliding_tile(report.trace, d=2, columns=3)

# %% [markdown]
# Thread 0 loads it, because key 3 is the first of its tile. The last tile has 2 keys, because 8 is 3 + 3 + 2. Each key is loaded once and used by all four queries.
#
# ### The same kernel in the package
#
# The package has this kernel in `kernels/flash/forward.py`, with batches, heads and a causal mask. It keeps its rows in registers (memory of a single thread) instead of shared memory. You will recognise its core. (`weight(a, b)` is exp(a − b). `before` and `seen` limit the keys that this query may use, for a causal mask or a sliding window. `KEYS` is your `columns`, and `width` is your `d`.)

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
# ## The ladder
#
# How fast is your kernel? From here to lesson 18, every kernel that you write becomes a rung of one ladder. Each rung has two bars:
#
# - **transactions**, counted in `sim` with your own kernel: how many wavefronts of shared memory and sectors of global memory it needs for 1,000 useful multiply-adds. (Lesson 08 explains wavefronts and sectors. For now, each is one trip to a memory.)
# - **speed**, once it has been recorded on a GPU: as a fraction of the **limit**. The limit is the least time that the hardware needs for the multiply-adds, or for the bytes that have to be read and written, whichever is longer. A mark shows PyTorch on the same task.
#
# **Predict.** For one multiply-add a thread reads two numbers, and a wavefront serves 32 threads. How many wavefronts is that for 1,000 multiply-adds, if nothing is wasted? `___`

# %% tags=["guess"]
guess("05 ladder", wavefronts=...)

# %% tags=["uses-exercise"]
show_ladder("05", flash_kernel)

# %% [markdown]
# With a GPU, the next cell times your own kernel on it:

# %% tags=["gpu"]
time_rung("05", flash_kernel)

# %% [markdown]
# With nothing wasted it would be 63. Your kernel needs about thirteen times as many: a multiply-add for the output also reads and writes the row of `o_tile`, and threads whose rows begin a multiple of 32 numbers apart want the same bank at the same time (lesson 08). It is correct, and that comes first. Every later rung changes one thing.
#
# ## In three lines
# - A tile of whole rows is contiguous in flat memory, the kernel splits one line of shared memory into tiles, and all threads share the loads.
# - There is one query per thread and there are two barriers per tile. Idle threads load and wait, but do not write.
# - Shared memory is sized at the launch, and the kernel decides which part of it is which tile.
#
# **You can now** write a flash attention kernel that is correct for every size.
#
# **Read on:** Tri Dao, *FlashAttention-2* (2023, arXiv:2307.08691), section 3, for the same loop divided among warps · NVIDIA, *CUDA C++ Programming Guide*, section "Shared Memory", which builds a tiled matrix product in the same way.
#
# **Next:** [lesson 05b](05b_bug_hunt.ipynb) has the same kernel with six mistakes. Or go on with [lesson 06](06_warps.ipynb), which gives each query a whole warp.
