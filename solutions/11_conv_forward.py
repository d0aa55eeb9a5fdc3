# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 11 · The convolutional kernel
#
# **100 minutes** to a kernel that works and is validated. A second, optional sitting of 60 minutes follows:
# three bug hunts, and the package's fast kernel · builds on lesson 05 (a flash kernel), lesson 06 (shuffles),
# lesson 08 (sectors and banks) and lesson 10 (tiles with a halo)
#
# After this lesson you will be able to
#
# 1. write a kernel for convolutional attention, in parts that you test one by one;
# 2. say what each barrier protects when the same shared memory holds first the scores and then the
#    probabilities;
# 3. (second sitting) tell a mistake that a tool finds by itself from one that only a comparison shows, and
#    say why the package's kernel is faster than yours.
#
# Lesson 10 cut convolutional attention into tiles, and PyTorch did the work. Now each tile of rows goes to a
# **block of threads**, and you say what each thread does. The kernel is small: its tiles are 8 × 8 or 16 ×
# 16, and it computes a single head, with causal attention. The second sitting looks at the package's kernel,
# which does the same with tiles of 64 × 64, and counts what it saves.
#
# You don't need a GPU.

# %%
import functools
import inspect
import json
import math
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from numba import cuda
from numpy import float32
from torch.nn.functional import scaled_dot_product_attention

import kernels
from course import check, live, progress_bar, show_figure
from course.figures import BLUE, SKY
from kernels import reference
from kernels.conv import forward as conv_forward
from kernels.reference import conv_tiled
from kernels.conv import tiles as conv_tiles
from kernels.conv.forward import conv_forward_kernel
from kernels.common import strips
from kernels.common.launch import launch, output, simulated
from kernels.reference.tiled import Traffic
from kernels.common.tiles import MINUS_INFINITY, weight
from sim import native, simulate
from sim.observers import COUNTERS, DEFAULT, Trace

torch.manual_seed(11)
ALL_LANES = 0xFFFFFFFF

# %% [markdown]
# First, what is it good for? Here is the forward pass of the package's kernel, which is your kernel with
# larger tiles, next to plain PyTorch.

# %%
RECORDED = json.loads(
    (Path(kernels.__file__).parent / "data" / "bench.json").read_text("utf-8")
)
long = {
    row["name"]: row for row in RECORDED["training"] if row["shape"] == [1, 8, 4096, 64]
}
print(f"8 heads, N = 4096, d = 64, 7 x 7 taps; {RECORDED['gpu']}, {RECORDED['date']}")
for name, words in {"kernels": "the kernel", "eager": "plain PyTorch"}.items():
    print(f"{words:13} {long[name]['forward_ms']:5.1f} ms, forward pass")

# %% [markdown]
# ## The idea in one picture
#
# A block **loads** a square tile of `size` × `size` scores and has one thread for each of them: thread (x, y)
# for column x and row y. For each tile, a thread does four things in sequence, and its role changes each
# time.
#
# The picture shows the four roles of thread x = 2, y = 1, with 2 × 3 taps and `size` = 8. The tile's owned
# part starts at query i0 = 14 and key j0 = 12.


# %% jupyter={"source_hidden": true}
def draw_roles(size, c_q, c_k, x, y, i0, j0):
    """Draw the four roles of thread (x, y) in a tile whose owned part starts at query
    i0 and key j0. Pale: it reads. Dark: it computes. Hatched: not owned."""
    rows, columns = size - c_q + 1, size - c_k + 1
    halo = i0 - (c_q - 1), j0 - (c_k - 1) // 2
    panels = [  # title, cells read, owned cells only, first query, first column, axis
        ("S0: one score", lambda i, j: False, False, *halo, "key"),
        (
            f"T: a window of {c_q} × {c_k} scores",
            lambda i, j: y <= i < y + c_q and x <= j < x + c_k,
            True,
            i0,
            j0,
            "key",
        ),
        ("P: its row, by shuffles", lambda i, j: i == y, True, i0, j0, "key"),
        ("O: row y of P, column x of V", lambda i, j: i == y, False, i0, 0, "column"),
    ]
    figure, every = plt.subplots(1, 4, figsize=(13, 3.7), layout="constrained")
    for axes, (title, reads, of_owned, query, first, which) in zip(
        every, panels, strict=True
    ):
        for i in range(size):
            for j in range(size):
                mine = (i, j) == (y, x)
                hatch = "////" if of_owned and (i >= rows or j >= columns) else None
                colour = BLUE if mine else SKY if reads(i, j) else "white"
                axes.add_patch(
                    plt.Rectangle(
                        (j, i), 1, 1, facecolor=colour, edgecolor="grey", hatch=hatch
                    )
                )
        axes.set(xlim=(0, size), ylim=(size, 0), aspect="equal", title=title)
        axes.set_xticks([j + 0.5 for j in range(size)], range(first, first + size))
        axes.set_yticks([i + 0.5 for i in range(size)], range(query, query + size))
        axes.set(xlabel=which, ylabel="query")
        axes.tick_params(length=0)
    return figure


show_figure(
    draw_roles(8, 2, 3, x=2, y=1, i0=14, j0=12),
    "four tiles of 8 × 8 cells, in each of which the cell in row 1, column 2 is dark: "
    "the thread's own. First, S0, queries 13 to 20 and keys 11 to 18: "
    "nothing else is marked. Second, T, queries from 14 and keys from 12 on: "
    "the thread reads the rows 1 and 2, columns 2 to 4. "
    "Row 7 and the columns 6 and 7 are hatched, as the tile does not own them. "
    "Third, P: all of row 1 takes part. Fourth, O: the thread reads all of row 1.",
)

# %% [markdown]
# As in lesson 10, the halo of c_q × c_k taps has c_q − 1 rows above, (c_k − 1) // 2 columns to the left, and
# the rest of the c_k − 1 columns to the right. We call these three numbers P_q, P_k and P_r. (`P` alone,
# without an index, is the matrix of probabilities.)
#
# 1. **S0**: the thread computes the score of its cell. The tile's first row is query i0 − P_q and its first
#    column is key j0 − P_k, because the halo comes first.
# 2. **T**: the thread lays the taps on the scores, with the first tap on its own cell. This uses up the halo,
#    so its T belongs to query i0 + y and key j0 + x. The last P_q rows and the last P_k + P_r columns have no
#    T (hatched).
# 3. **P**: the threads of a row find the row's largest T and the sum of its exponentials.
# 4. **O**: the thread computes one element of the output, column x of query i0 + y. (So this kernel needs d ≤
#    `size`.)
#
# The same thread thus works for *two* queries: for query i0 − P_q + y before the convolution, and for query
# i0 + y after it. Nearly every mistake in this kernel is a confusion of the two.
#
# **Predict.** Let `size` = 8, with 2 × 3 taps. The block owns the queries from i0 = 7 on, and processes the
# tile of keys that begins at j0 = 6. For thread x = 2, y = 1:
#
# - Which query and which key does its score belong to?
# - Which query and which key does its T belong to?
# - How many rows and columns does the tile own?
# - At which j0 does the next tile of keys begin?
#
# <details><summary>Answer</summary>
#
# P_q = 1 and P_k = 1. The score belongs to query 7 − 1 + 1 = 7 and key 6 − 1 + 2 = 7. T belongs to query 8
# and key 8. The tile owns 7 rows and 6 columns, and the next one begins at j0 = 12.
# </details>
#
# ## The worked example of lesson 09, by threads
#
# Take the four tokens and 2 × 3 taps of lesson 09. On paper, a block of 4 × 4 threads loads 4 × 4 scores and
# owns 3 × 2. These were the taps, and the scores after the first mask:
#
# | w | | | | S0 | key 0 | 1 | 2 | 3 |
# |---|---|---|---|---|---|---|---|---|
# | 1 | 0 | 2 | | query 0 | 1 | 0 | 0 | 0 |
# | 0 | 1 | −1 | | 1 | 2 | 1 | 0 | 0 |
# | | | | | 2 | 0 | 1 | 1 | 0 |
# | | | | | 3 | 1 | 2 | 3 | 2 |
#
# The first block owns the queries 0, 1 and 2. Its first tile owns the keys 0 and 1. With the halo, its 16
# threads hold these scores:
#
# | | x = 0, key −1 | 1, key 0 | 2, key 1 | 3, key 2 |
# |---|---|---|---|---|
# | y = 0, query −1 | 0 | 0 | 0 | 0 |
# | y = 1, query 0 | 0 | 1 | 0 | 0 |
# | y = 2, query 1 | 0 | 2 | 1 | 0 |
# | y = 3, query 2 | 0 | 0 | 1 | 1 |
#
# Lay the taps on y = 2, x = 1: 1·2 + 0·1 + 2·0 + 0·0 + 1·1 − 1·1 = 2. That is `T` of query 2 and key 1. In
# the same way you get the whole tile:
#
# | T | key 0 | key 1 |
# |---|---|---|
# | query 0 | 1 | −∞ |
# | query 1 | 1 | 2 |
# | query 2 | 1 | 2 |
#
# **On paper.** Follow query 2, with powers of 2 instead of e. The values are 4, 10, 3, 9. After this tile,
# m = 2, its P are ½ and 1, l = 1.5, and o = ½·4 + 10 = 12. Next comes the tile that owns the keys 2 and 3.
# Which scores does the block hold in its row y = 3? What is `T` of query 2 and key 2? What are m, l, o and
# the output after this tile?
#
# <details><summary>Answer</summary>
#
# Row y = 3 is query 2 with the keys 1 to 4: 1, 1, 0, 0. Row y = 2 is query 1 with the same keys: 1, 0, 0, 0.
# So T = 1·1 + 0·0 + 2·0 + 0·1 + 1·1 − 1·0 = 2. Key 3 comes after query 2, so its T is −∞. Thus m = 2 as
# before, nothing shrinks, and P = 1 and 0. Then l = 1.5 + 1 = 2.5, o = 12 + 3 = 15, and 15 / 2.5 = **6**, as
# in lesson 09.
# </details>
#
# ## 0. Loading (given)
#
# There are as many threads as cells, so each thread loads one element. Rows outside the sequence are zeros.
# Here such rows occur at both ends, because `first` can be negative.


# %%
@cuda.jit(device=True)
def load_rows(tile, rows, first):
    """Load rows[first : first + size] into tile, with 0 outside rows (n, d).
    tile: (size, size); d <= size; one element per thread."""
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    n, d = rows.shape
    inside = 0 <= first + y and first + y < n and x < d
    tile[y, x] = rows[first + y, x] if inside else float32(0)


# %% [markdown]
# Without the test, `rows[-1]` would read the last row in Numba, as in Python. In CUDA C++ it would read
# whatever lies before the array. Neither is a halo.
#
# Now you write the four parts. Every thread of the block calls each of them, and `cuda.threadIdx.x` and `.y`
# tell it which cell is its own. They compute in float32 only: the check compiles them and refuses any
# float64. They are your own functions: of the `kernels` package they may use only `weight` and
# `MINUS_INFINITY`.
#
# ### Exercise 11.1 · score · about six lines
#
# Return the masked score of this thread's cell: `scale` times the dot product of row y of `q_tile` and row x
# of `k_tile`, or 0 if the key comes after the query. A thread reads one row of each tile. `w` is passed only
# for its shape, (c_q, c_k). Columns beyond d are 0 in both tiles.
#
# <details><summary>Hint 1: which query, which key?</summary>
#
# If the tile's owned part starts at query i0 and key j0, the loaded tile starts at query `i0 - (c_q - 1)` and
# key `j0 - (c_k - 1) // 2`. Add y and x.
# </details>
# <details><summary>Hint 2: types</summary>
#
# Use `float32(0)` for the sum and for the 0 that you return (lesson 07).
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def score(q_tile, k_tile, w, i0, j0, scale):
    """Return S0 of this thread's cell, from row y of q_tile and row x of k_tile, both
    (size, size). The owned part of the tile starts at query i0 and key j0."""
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    c_q, c_k = w.shape
    # BEGIN SOLUTION 11.1
    query, key = i0 - (c_q - 1) + y, j0 - (c_k - 1) // 2 + x
    if key > query:
        return float32(0)
    total = float32(0)
    for c in range(q_tile.shape[1]):
        total += q_tile[y, c] * k_tile[x, c]
    return scale * total
    # END SOLUTION


# %% tags=["check"]
check.ex11_1(score)

# %% [markdown]
# ### Exercise 11.2 · convolve · about seven lines
#
# Return this thread's `T`: query i0 + y, key j0 + x. Return `MINUS_INFINITY`, a float32, if the thread has no
# T, either because the taps do not fit into the tile from here or because the key comes after the query.
#
# <details><summary>Hint 1: does it fit?</summary>
#
# Row y and c_q − 1 more rows below it must be inside the tile: `y + c_q <= size`. The same holds for the
# columns. Without this test, the thread reads beyond the tile.
# </details>
# <details><summary>Hint 2: the sum</summary>
#
# Two loops over `w[a, b] * s_tile[y + a, x + b]`. P_q and P_k do not appear here, because i0 and j0 already
# account for them.
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def convolve(s_tile, w, i0, j0):
    """Return T of query i0 + y and key j0 + x, from s_tile (size, size) with its halo.
    Return -inf if the tile owns no such T, or if the key comes after the query."""
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    size = s_tile.shape[0]
    c_q, c_k = w.shape
    # BEGIN SOLUTION 11.2
    if y + c_q > size or x + c_k > size or j0 + x > i0 + y:
        return MINUS_INFINITY
    total = float32(0)
    for a in range(c_q):
        for b in range(c_k):
            total += w[a, b] * s_tile[y + a, x + b]
    return total
    # END SOLUTION


# %% tags=["check"]
check.ex11_2(convolve)

# %% [markdown]
# That −∞ does a lot of work. A cell that is not owned gets P = exp(−∞) = 0, so it contributes to no sum.
# Nothing after `convolve` needs to deal with halos.
#
# ### Exercise 11.3 · absorb · about four lines
#
# Now the threads of a row need each other, for the largest T of the row and for a sum. A row has 8 or 16
# threads that are neighbours in a warp, so they can exchange values by shuffles. The next two functions are
# those of lesson 06 with fewer steps:


# %%
@cuda.jit(device=True)
def row_max(value):
    """Return the largest value among the threads with the same y, to all of them."""
    step = cuda.blockDim.x // 2
    while step > 0:
        value = max(value, cuda.shfl_xor_sync(ALL_LANES, value, step))
        step //= 2
    return value


@cuda.jit(device=True)
def row_sum(value):
    """Return the sum over the threads with the same y, to all of them."""
    step = cuda.blockDim.x // 2
    while step > 0:
        value += cuda.shfl_xor_sync(ALL_LANES, value, step)
        step //= 2
    return value


# %% [markdown]
# `absorb` folds one more tile into the running state of a row. Each thread holds its own T and a copy of its
# row's state m and l. Return four numbers:
#
# - the new m and the new l;
# - the factor `shrink` by which the old l (and later the old o) is multiplied;
# - p, this thread's exp(T − new m).
#
# Every thread calls `row_max` and `row_sum` for every tile. Scores go up to ±1000, and each row has its own
# state.
#
# For example, let (m, l) = (2, 1.5), with T = 2 and T = −∞ in a row of two threads. What do the two threads
# return? (You computed this on paper: 2, 2.5, 1, and then 1 or 0.)
#
# Some rows see no key of a tile, so all their T are −∞. If such a row has not seen any key before either, m
# is −∞ too, and exp(−∞ − (−∞)) is NaN. `weight(a, b)` from `kernels.common.tiles` is exp(a − b), but 0 if a
# is −∞. (If m was −∞ before, any finite `shrink` will do, because l and o are 0.)
#
# <details><summary>Hint 1: every lane takes part in a shuffle</summary>
#
# Don't call `row_max` and `row_sum` inside an `if`: a shuffle needs all 32 lanes of the warp.
# </details>
# <details><summary>Hint 2: shrink</summary>
#
# `weight(m, new_m)`, with the old m.
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def absorb(t, m, l):
    """Fold t, this thread's T of one more tile, into its row's state (m, l).
    Return (new m, new l, shrink, p)."""
    # BEGIN SOLUTION 11.3
    new_m = max(m, row_max(t))
    p = weight(t, new_m)
    shrink = weight(m, new_m)
    return new_m, l * shrink + row_sum(p), shrink, p
    # END SOLUTION


# %% tags=["check"]
check.ex11_3(absorb)

# %% [markdown]
# ### Exercise 11.4 · add_values · about four lines
#
# Now `p_tile` contains P of the whole tile, one row per query, and `v_tile` has one row per key. This thread
# holds o, column x of the output of query i0 + y so far. Return o · shrink plus the dot product of row y of P
# and column x of V.


# %% tags=["exercise"]
@cuda.jit(device=True)
def add_values(o, shrink, p_tile, v_tile):
    """Return o · shrink + Σ_j p_tile[y, j] · v_tile[j, x]; both tiles (size, size)."""
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    # BEGIN SOLUTION 11.4
    o *= shrink
    for j in range(p_tile.shape[1]):
        o += p_tile[y, j] * v_tile[j, x]
    return o
    # END SOLUTION


# %% tags=["check"]
check.ex11_4(add_values)

# %% [markdown]
# ## The kernel
#
# The kernel has four tiles in shared memory: Q, K, V, and one for the scores. In that last tile, P replaces
# S0. Shared memory is scarce, and by then no thread needs S0 any more. But is that true? A block of 64
# threads has two warps, and one of them may be far ahead of the other.
#
# **Predict.** Between which steps does a thread need values that *other* threads have computed, or overwrite
# values that others may still read?
#
# ### Exercise 11.5 · conv_kernel · about eleven lines
#
# Write the body of the loop over the tiles of keys. The block owns `rows` queries, starting at i0, and the
# tile owns `columns` keys, starting at j0.
#
# - Call each of your parts once per tile, and `load_rows(tile, array, first)` once for K and once for V.
# - Put a `cuda.syncthreads()` wherever one is needed, at most five per tile.
# - Use the four shared tiles and no others. Keep m, l and o in the thread; `out` and `log_sum` are stored
#   once, after the loop.
#
# The check has many tiles of keys, scores up to ±1000, and a `scale` other than 1/√d. It also compiles the
# kernel for a GPU.
#
# <details><summary>Hint 1: the first rows of the tiles</summary>
#
# Load K with its halo, from key `j0 - (c_k - 1) // 2`. Load V without a halo, from key j0, because column 0
# of P is key j0. (The rows of V beyond the owned keys are multiplied by P = 0.)
# </details>
# <details><summary>Hint 2: the order</summary>
#
# Load K and V; barrier; `s_tile[y, x] = score(…)`; barrier; `t = convolve(…)`; `m, l, shrink, p = absorb(t,
# m, l)`; …
# </details>
# <details><summary>Hint 3: five barriers</summary>
#
# After the loads; after S0 is complete; after all threads have read S0, before P replaces it; after P is
# complete; and at the end, before the next tile is loaded into V.
# </details>


# %% tags=["exercise"]
@functools.cache
def conv_kernel(size):
    """Return the kernel for tiles of size × size scores, with one thread each."""

    @cuda.jit
    def conv_kernel(q, k, v, w, scale, out, log_sum):
        """Compute out (n, d) and log_sum (n,) from q, k, v (n, d) and w (c_q, c_k)."""
        q_tile = cuda.shared.array((size, size), float32)
        k_tile = cuda.shared.array((size, size), float32)
        v_tile = cuda.shared.array((size, size), float32)
        s_tile = cuda.shared.array((size, size), float32)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        (n, d), (c_q, c_k) = q.shape, w.shape
        rows, columns = size - (c_q - 1), size - (c_k - 1)
        i0 = cuda.blockIdx.x * rows
        m, l, o = MINUS_INFINITY, float32(0), float32(0)
        load_rows(q_tile, q, i0 - (c_q - 1))
        for j0 in range(0, min(n, i0 + rows), columns):
            # BEGIN SOLUTION 11.5
            load_rows(k_tile, k, j0 - (c_k - 1) // 2)
            load_rows(v_tile, v, j0)
            cuda.syncthreads()  # the tiles are loaded
            s_tile[y, x] = score(q_tile, k_tile, w, i0, j0, scale)
            cuda.syncthreads()  # S0 is complete
            t = convolve(s_tile, w, i0, j0)
            m, l, shrink, p = absorb(t, m, l)
            cuda.syncthreads()  # no thread needs S0 any more
            s_tile[y, x] = p
            cuda.syncthreads()  # P is complete
            o = add_values(o, shrink, s_tile, v_tile)
            cuda.syncthreads()  # P and V are used up
            # END SOLUTION
        if y < rows and i0 + y < n:
            if x < d:
                out[i0 + y, x] = o / l
            if x == 0:
                log_sum[i0 + y] = m + math.log(l)

    return conv_kernel


# %% tags=["check"]
check.ex11_5(conv_kernel)

# %% [markdown]
# The worked example once more, now computed by your kernel with 8 × 8 threads (so there is only one tile).
# `launch` comes from the package: with tensors on the CPU it runs the simulator, and with tensors on a GPU it
# runs on the GPU.


# %%
def my_forward(q, k, v, w, size=8, run=None):
    """Compute (O, L) with your kernel. q, k, v: (n, d); w: (c_q, c_k); all float32.
    run: the function that launches the kernel, see kernels.common.launch."""
    out, log_sum = output(q.shape, like=q), output(q.shape[:1], like=q)
    grid = -(-len(q) // (size - w.shape[0] + 1)), 1
    launch(
        conv_kernel(size),
        grid,
        (size, size),
        q,
        k,
        v,
        w,
        float32(q.shape[1] ** -0.5),
        out,
        log_sum,
        run=run,
    )
    return out, log_sum


# %% tags=["uses-exercise"]
small_s = torch.tensor([[1.0, 3, 2, 4], [2, 1, 5, 0], [0, 1, 1, 6], [1, 2, 3, 2]])
small_w = torch.tensor([[1.0, 0, 2], [0, 1, -1]])
small_v = torch.tensor([[4.0, 0, 0, 0], [10, 0, 0, 0], [3, 0, 0, 0], [9, 0, 0, 0]])
small_o, _ = my_forward(2 * math.log(2) * small_s, torch.eye(4), small_v, small_w)
print("out", [f"{number:.2f}" for number in small_o[:, 0].tolist()])

# %% [markdown]
# And here is what happens to `s_tile` in the first block when 7 tokens are processed in tiles that own 7 × 6.
# Watch how S0 is stored, read in windows by `convolve`, overwritten with P, and then read along the rows.
# With 7 keys there is a second tile of keys, and everything starts again.

# %% tags=["uses-exercise"]
reports = []


def traced(*launched):
    """Run a launch, and keep its report with the trace."""
    reports.append(simulated(*launched, engine="fibers", observers=[*DEFAULT, Trace]))


my_forward(*torch.randn(3, 7, 4), torch.randn(2, 3), run=traced)
reports[-1].memory_map("s_tile", block=0)

# %% [markdown]
# <details><summary>Can you do it with four barriers?</summary>
#
# Yes. Load V later, after the barrier that follows S0. Then you don't need the last barrier: the next K may
# be loaded while other threads still add values, because no thread reads K any more. S0 and V of the next
# tile are written only after barriers that every thread reaches after adding its values. Try it; the check
# will tell you whether it works. (The fourth barrier may also be a `cuda.syncwarp()`, because a thread reads
# only its own row of P, and a row lies within one warp.) The package's kernel has more barriers than yours,
# because it loads Q, K and V in pieces.
# </details>

# %% [markdown]
# ## Validate
#
# We compare each stage with the one before. Your kernel is compared with the tiles of
# lesson 10, element by element, in float64, and with the reference. Then the package's
# kernel is compared with both. The taps have odd, even and non-square sizes, and some
# are larger than the sequence. Some sequences fit into one tile, and others need
# several.


# %%
def validate(stage, against, found, wanted, tolerance=1e-5):
    """Print one row of the table. NaN fails."""
    agrees = all(
        (mine - theirs).abs().max().item() <= tolerance
        for mine, theirs in zip(found, wanted, strict=True)
    )
    print(
        f"{stage:24}  {against:42}  {'below' if agrees else 'ABOVE'} {tolerance:.0e}   "
        f"{'✓' if agrees else '✗'}"
    )


def whole(function, q, k, v, w, **options):
    """Call a function of (B, H, N, d) tensors and taps (H, c_q, c_k) with one batch
    and one head."""
    result = function(q[None, None], k[None, None], v[None, None], w[None], **options)
    return tuple(x[0, 0] for x in result) if isinstance(result, tuple) else result[0, 0]


# fmt: skip
shapes = [
    (1, 3, (1, 1), 8),
    (1, 8, (3, 3), 8),
    (5, 4, (5, 7), 8),
    (20, 6, (2, 4), 8),
    (13, 8, (8, 3), 8),
    (25, 5, (3, 5), 8),
    (4, 16, (15, 15), 16),
    (29, 4, (15, 2), 16),
    (23, 9, (6, 11), 16),
    (33, 16, (7, 7), 16),
    (40, 2, (1, 9), 16),
]
cases = [
    (*torch.randn(3, n, d), torch.randn(taps) / math.sqrt(math.prod(taps)), size)
    for n, d, taps, size in shapes
]

# %% tags=["uses-exercise"]
yours, yours_l = zip(
    *(my_forward(*case) for case in progress_bar(cases, desc="your kernel"))
)
in_float64 = [[x.double() for x in case[:4]] for case in cases]
tiles, tiles_l = zip(
    *(
        conv_tiled.forward(*case, (size, size), Traffic())
        for case, (*_, size) in zip(in_float64, cases, strict=True)
    )
)
exact = [whole(reference.conv_attention, *case) for case in in_float64]
package, package_l = zip(
    *(
        whole(conv_forward.conv_forward, *case[:4], size=32)
        for case in progress_bar(cases, desc="package")
    )
)
ordinary = [
    my_forward(*case[:3], reference.identity_taps(1, *case[3].shape)[0], case[4])[0]
    for case in cases
]
sdpa = [
    scaled_dot_product_attention(*(x[None] for x in case[:3]), is_causal=True)[0]
    for case in cases
]
definition = "kernels.reference.conv_attention, float64"
print(f"{len(cases)} cases, float32\n{'stage':24}  {'against':42}  largest difference")
validate("O, your kernel", "tiles of lesson 10, float64", yours, tiles)
validate("L, your kernel", "tiles of lesson 10, float64", yours_l, tiles_l)
validate("O, your kernel", definition, yours, exact)
validate("identity taps", "scaled_dot_product_attention", ordinary, sdpa)
validate("O, the package's kernel", "your kernel", package, yours)
validate("L, the package's kernel", "your kernel", package_l, yours_l)
validate("O, the package's kernel", definition, package, exact)

# %% [markdown]
# ### Long sequences, without a GPU
#
# Forty tokens are few, and yet the simulator needs seconds, because Python runs each thread. For such cases,
# `sim` has a third engine, `native`. It splits your kernel at the points where threads wait, turns each part
# into a **loop over the threads of a block**, and lets Numba compile everything for your CPU. Here is a small
# kernel and the code it becomes:


# %%
@cuda.jit
def neighbours(x, out):
    """Compute out[t] = x[t] + x[t + 1], around a ring of 32."""
    tile = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    cuda.syncthreads()
    out[t] = tile[t] + tile[(t + 1) % 32]


ring, sums = torch.arange(32.0), torch.empty(32)
text = native.source(neighbours, ring, sums)
print(text[text.index("@compiled") : text.index("@kernel")].rstrip())

# %% [markdown]
# **Predict.** The barrier is gone. What replaces it? (And why may a loop process the threads in order?)
#
# <details><summary>Answer</summary>
#
# The first loop has finished, for all threads, before the second begins. Between two barriers, threads may
# run in any order, so one after the other is as good as any. That is what a barrier is for. If the order did
# matter, it would be a race. The engine looks for races like the other engines do: if it finds one, it runs
# the launch again, slowly, and reports the line.
# </details>
#
# Now your kernel with 400 tokens: millions of multiply-adds (the cell counts them), for which the
# interpreting engines would take the better part of a minute. (The first launch compiles, which takes some
# seconds. The result is kept on your disk.)


# %% tags=["uses-exercise"]
def compiled(*launched):
    """Run a launch compiled for the CPU, and keep its report."""
    reports.append(simulated(*launched, engine="native"))


q, k, v, w = *torch.randn(3, 400, 16), torch.randn(6, 11) / 8
found, _ = my_forward(q, k, v, w, size=16, run=compiled)
exact = whole(reference.conv_attention, *(x.double() for x in (q, k, v, w)))
# a tile of 16 × 16 owns 11 × 6
visited = sum(-(-min(400, (block + 1) * 11) // 6) for block in range(-(-400 // 11)))
print(
    "multiply-adds: "
    f"about {(visited * 16 * 16 * 2 * 16 + 400 * 401 / 2 * 6 * 11) / 1e6:.0f} million"
)
print(
    "engine:",
    reports[-1].engine,
    "· how:",
    *reports[-1].notes,
    "· findings:",
    len(reports[-1].findings),
)
print(
    "400 tokens, largest difference from float64 below 1e-5:",
    bool((found - exact).abs().max() <= 1e-5),
)

# %% [markdown]
# ### On a real GPU, if you have one
#
# Both kernels again, wherever your tensors are: 1000 tokens on a GPU, 40 without one. The cell prints the
# same lines in either case.

# %% tags=["uses-exercise"]
device, n = ("cuda", 1000) if torch.cuda.is_available() else ("cpu", 40)
q, k, v, w = (x.to(device) for x in (*torch.randn(3, n, 16), torch.randn(6, 11) / 8))
exact = whole(reference.conv_attention, *(x.double() for x in (q, k, v, w)))
for name, found in {
    "your kernel": my_forward(q, k, v, w, size=16)[0],
    "the package's": whole(conv_forward.conv_forward, q, k, v, w)[0],
}.items():
    print(
        f"{name}, largest difference from float64 below 1e-5: "
        f"{bool((found - exact).abs().max() <= 1e-5)}"
    )

# %% [markdown]
# And how long do the two take on your GPU, for one head of 4096 tokens? (Without a GPU, you see our
# recording, with the solution's kernel.)


# %% tags=["gpu", "uses-exercise"]
def milliseconds(call, times=10):
    """Return the mean time of a call on the GPU, after one call to warm up."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    call()
    start.record()
    for _ in range(times):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / times


@live
def both_kernels_live():
    """Time the learner's kernel and the package's, for one head."""
    q, k, v, w = (
        x.to("cuda") for x in (*torch.randn(3, 4096, 16), torch.randn(7, 7) / 7)
    )
    print(
        f"your kernel   {milliseconds(lambda: my_forward(q, k, v, w, size=16)):8.2f} ms"
    )
    print(
        "the package's "
        f"{milliseconds(lambda: whole(conv_forward.conv_forward, q, k, v, w)):8.2f} ms"
    )


# %% [markdown]
# ## In three lines
#
# - There is one thread per score. It computes S0 for query i0 − P_q + y, and then T, P and one element of O
#   for query i0 + y. The −∞ in cells that are not owned takes care of the rest.
# - P may replace S0 between two barriers, and every thread must store its p.
# - A block's five barriers separate loading, S0, the convolution, P and the product with V. Each one protects
#   values that another thread still has to read.
#
# **You can now** turn a tiled algorithm into a kernel part by part, and say for each barrier what would go
# wrong without it.
#
# **Read on:** the *CUDA C++ Programming Guide*, sections "Shared Memory" and "Synchronization Functions".
# Dao, Fu, Ermon, Rudra, Ré, *FlashAttention* (2022, arXiv:2205.14135), whose algorithm 1 is this loop without
# a convolution. Volkov, *Better Performance at Lower Occupancy* (GTC 2010), on threads that each compute
# several outputs, the idea of the patches in the second sitting.
#
# **Next:** [lesson 12](12_conv_gradients.ipynb) goes all the way back, by hand: the gradients of
# convolutional attention. The second sitting, below, is optional.

# %% [markdown]
# # Second sitting (optional, 60 minutes)
#
# ## Three bug hunts (25 minutes)
#
# The kernel has a middle: the part from the complete S0 to the new o. In the next cells, only this middle
# changes. `with_middle` puts it into a kernel like yours that loads the tiles, computes S0 and stores the
# results. `p_tile` is one more tile in shared memory, for the versions that use it.


# %%
def with_middle(middle):
    """Return the kernel for 8 × 8 tiles with this middle: middle(s_tile, p_tile,
    v_tile, w, i0, j0, n, m, l, o) -> (m, l, o), from the complete S0 to the new o."""

    def kernel(q, k, v, w, scale, out, log_sum):
        q_tile = cuda.shared.array((8, 8), float32)
        k_tile = cuda.shared.array((8, 8), float32)
        v_tile = cuda.shared.array((8, 8), float32)
        s_tile = cuda.shared.array((8, 8), float32)
        p_tile = cuda.shared.array((8, 8), float32)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        n, d = q.shape
        c_q, c_k = w.shape
        rows, columns = 8 - (c_q - 1), 8 - (c_k - 1)
        i0 = cuda.blockIdx.x * rows
        m, l, o = MINUS_INFINITY, float32(0), float32(0)
        load_rows(q_tile, q, i0 - (c_q - 1))
        for j0 in range(0, min(n, i0 + rows), columns):
            load_rows(k_tile, k, j0 - (c_k - 1) // 2)
            load_rows(v_tile, v, j0)
            cuda.syncthreads()
            s_tile[y, x] = score(q_tile, k_tile, w, i0, j0, scale)
            cuda.syncthreads()
            m, l, o = middle(s_tile, p_tile, v_tile, w, i0, j0, n, m, l, o)
            cuda.syncthreads()
        if y < rows and i0 + y < n:
            if x < d:
                out[i0 + y, x] = o / l
            if x == 0:
                log_sum[i0 + y] = m + math.log(l)

    return kernel


# %%
def try_middle(middle, tokens, taps=(3, 3), seeds=10):
    """Launch the kernel with different orders of the threads. For each number of
    tokens, print how often the output was correct, and the findings of `sim`.
    Return the last report."""
    for n in tokens:
        q, k, v = torch.randn(3, n, 4)
        w = torch.randn(taps) / math.sqrt(math.prod(taps))
        wanted, _ = conv_tiled.forward(
            q.double(), k.double(), v.double(), w.double(), (8, 8), Traffic()
        )
        right, kinds = 0, set()
        for seed in range(seeds):
            out, log_sum = torch.full((n, 4), math.nan), torch.full((n,), math.nan)
            grid = -(-n // (8 - taps[0] + 1))
            report = simulate(with_middle(middle), seed=seed, on_finding="report")[
                grid, (8, 8)
            ](q, k, v, w, float32(0.5), out, log_sum)
            right += bool((out - wanted).abs().max() <= 1e-5)
            kinds |= {finding.kind for finding in report.findings}
        print(
            f"N = {n:2}: correct {right:2} of {seeds} times; "
            f"sim finds {', '.join(sorted(kinds)) or 'nothing'}"
        )
    return report


# %% [markdown]
# ### 1. Too early
#
# **Guess before you run.** `absorb` contains shuffles, and the lanes wait for each other there. So you might
# think that the barrier after it can go. Is the result correct? Does `sim` find something?


# %%
def too_early(s_tile, p_tile, v_tile, w, i0, j0, n, m, l, o):
    """Store P over S0 as soon as this thread has its p."""
    t = convolve(s_tile, w, i0, j0)
    m, l, shrink, p = absorb(t, m, l)
    s_tile[cuda.threadIdx.y, cuda.threadIdx.x] = p
    cuda.syncthreads()
    return m, l, add_values(o, shrink, s_tile, v_tile)


# %% tags=["uses-exercise"]
report = try_middle(too_early, [7, 13])
print()
print(report.errors[0].message)

# %% [markdown]
# Correct in every order that we tried, and a race in every one. In these runs, all threads happen to convolve
# before the first one stores its p. But nothing in the kernel guarantees that.
#
# <details><summary>What is wrong</summary>
#
# The block has two warps: rows 0 to 3, and rows 4 to 7. With three rows of taps, row 3 of T reads rows 4 and
# 5 of S0. The second warp replaces these with P as soon as it has computed its own, and on a GPU it may be
# ahead by any amount.
#
# And within a warp? A shuffle passes on a value, but
# it does not order memory accesses: it does not say which of the loads and stores before and after it come
# first. `cuda.syncwarp()` would, for one warp, and `cuda.syncthreads()` does, for the block.
#
# The line looks harmless because each thread writes its *own* cell. But at that moment, other threads are
# still reading it.
# </details>
#
# ### 2. Memory that no thread has written
#
# Lesson 10 mentioned CUDA code that is correct up to 26 tokens, with 7 × 7 taps and tiles of 32 × 32, and
# wrong from 27 tokens on. It reads, as probabilities, shared memory that no thread has written for this tile.
# Here is one way to get there. P has its own tile. Only the owned cells are written to it, but the sum runs
# over all loaded keys that exist, `min(8, n - j0)`.
#
# **Guess before you run.** With 3 × 3 taps and tiles of 8 × 8, what is the longest
# sequence for which it is correct? And what does it read beyond that?


# %%
def only_what_is_owned(s_tile, p_tile, v_tile, w, i0, j0, n, m, l, o):
    """Store P of the owned cells in p_tile, and sum over the loaded keys."""
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    rows, columns = 8 - (w.shape[0] - 1), 8 - (w.shape[1] - 1)
    t = convolve(s_tile, w, i0, j0)
    m, l, shrink, p = absorb(t, m, l)
    if y < rows and x < columns:
        p_tile[y, x] = p
    cuda.syncthreads()
    o *= shrink
    if y < rows:
        for j in range(min(8, n - j0)):
            o += p_tile[y, j] * v_tile[j, x]
    return m, l, o


# %% tags=["uses-exercise"]
report = try_middle(only_what_is_owned, [1, 4, 6, 7, 8, 20], seeds=3)
print()
print(report.errors[0].message)

# %% [markdown]
# A tile owns 8 − 2 = 6 columns. Up to 6 tokens there are no other columns to sum over. From 7 tokens on there
# are, and columns 6 and 7 of `p_tile` have never been written. `sim` fills fresh shared memory with NaN and
# reports the thread that reads it. On a GPU, you get whatever the last block left there, perhaps a block of
# another kernel. That can be different in each run. It can also be 0, so that everything works until one day
# it doesn't.
#
# The next version saves memory. It puts P where S0 was, as you did, with the correct barrier. The rest stays
# the same.
#
# **Guess before you run.** What will `sim` find this time?


# %%
def over_the_scores(s_tile, p_tile, v_tile, w, i0, j0, n, m, l, o):
    """Store P of the owned cells over S0, and sum over the loaded keys."""
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    rows, columns = 8 - (w.shape[0] - 1), 8 - (w.shape[1] - 1)
    t = convolve(s_tile, w, i0, j0)
    m, l, shrink, p = absorb(t, m, l)
    cuda.syncthreads()
    if y < rows and x < columns:
        s_tile[y, x] = p
    cuda.syncthreads()
    o *= shrink
    if y < rows:
        for j in range(min(8, n - j0)):
            o += s_tile[y, j] * v_tile[j, x]
    return m, l, o


# %% tags=["uses-exercise"]
report = try_middle(over_the_scores, [1, 4, 6, 7, 8, 20], seeds=3)

# %% [markdown]
# Nothing, and yet the result is wrong from 8 tokens on. Columns 6 and 7 *have* been written: they contain
# scores of this very tile, and these scores are taken for probabilities. No tool can tell that a value is out
# of date. You find such a bug by comparing the output, at a length where the tile has a neighbour. (With 7
# tokens the result is correct by chance: the only cells in question contain scores of future keys, and these
# are 0.) Tests that stop at 7 tokens miss it.
#
# Your kernel is safe for a simple reason: *every* thread stores its p, and the p of a cell that is not owned
# is 0.
#
# ### 3. NaN from a masked tile
#
# In lesson 10, a tile with a row that saw none of its keys gave NaN, because the tile computed its own
# maximum. `absorb` compares with the old m first, and the old m is finite after the first tile, because every
# query sees key 0. So could `absorb` do without `weight`, and use `math.exp` alone?
#
# **Guess before you run.** The queries 4 to 11 process the keys 0 to 7 and the keys 8 to 15, once in this
# order and once in the reverse order. Where will there be NaN?


# %%
@cuda.jit(device=True)
def careless_absorb(t, m, l):
    """Fold t into the state, with plain exponentials."""
    new_m = max(m, row_max(t))
    p = math.exp(t - new_m)
    shrink = math.exp(m - new_m)
    return new_m, l * shrink + row_sum(p), shrink, p


def sums_after(absorb, t, first, second):
    """Return l of each row after two tiles of t (8, 16) that begin at these columns."""

    def two_tiles(t, l_out):
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        m, l = MINUS_INFINITY, float32(0)
        m, l, _, _ = absorb(t[y, first + x], m, l)
        m, l, _, _ = absorb(t[y, second + x], m, l)
        if x == 0:
            l_out[y] = l

    l = np.full(8, np.nan, float32)
    simulate(two_tiles)[1, (8, 8)](t, l)
    return l


# %% tags=["uses-exercise"]
query, key = np.arange(4, 12)[:, None], np.arange(16)
t = np.where(
    key > query, -np.inf, np.random.default_rng(11).standard_normal((8, 16))
).astype(float32)
for function in (absorb, careless_absorb):
    for words, first, second in [("forwards", 0, 8), ("backwards", 8, 0)]:
        print(
            f"{function.py_func.__name__:15}  {words:9}  "
            f"{int(np.isnan(sums_after(function, t, first, second)).sum())} "
            "of 8 rows are NaN"
        )

# %% [markdown]
# In the forward order it is correct, thanks to key 0. In the reverse order, the queries 4 to 7 begin with a
# tile of which they see no key: m stays −∞, and exp(−∞ − (−∞)) is NaN. If somebody reverses the loop one day,
# or splits the keys among several blocks as lesson 14 does, a kernel that passed all its tests breaks. And no
# compiler will warn you. In rows that a tile does not own, m is −∞ all the time, so the careless version
# produces NaN there in *every* launch. It just happens that nothing reads it.
#
# ## The same, fast (35 minutes)
#
# Your kernel is correct, and it is slow. `kernels/conv/forward.py` has the same phases in the same order, and
# the same buffer for S0 and P. This is its step 3, where yours has `convolve` and `absorb`:

# %%
source = inspect.getsource(conv_forward_kernel).splitlines()
begin = next(
    number for number, line in enumerate(source) if "# 3. T and then P" in line
)
end = next(number for number, line in enumerate(source) if "P may overwrite S0" in line)
print(inspect.cleandoc("\n".join(source[begin : end + 1])))

# %% [markdown]
# You recognise `weight`, `shrink`, and the shuffles among the threads of a row. (`strip` is a small array of
# the thread, which the compiler keeps in registers. `LANES` is 4, because four threads share a row.)
#
# What is different is how much work one thread does. Yours computes one score, so each multiply-add loads two
# values. Lesson 08 found the same problem in our matrix product. There are two remedies, one for products and
# one for convolutions.
#
# ### Patches, for QKᵀ and PV
#
# A thread computes a **patch** of 4 × 4 scores. For each column c it loads 4 values of Q and 4 of K, and it
# needs all of their 16 products.

# %%
print(inspect.getsource(conv_tiles.add_products.py_func))

# %% [markdown]
# (A *chunk* is a part of Q or K, some columns wide, in shared memory. `GROUP` is 4: the innermost loops
# process four neighbouring columns at a time, which a single 16-byte load can fetch. A row of a chunk has
# four words of padding, hence `- GROUP`; you will see why. `step` is the distance between the rows of a
# patch. `& INDEX` does not change the index: it tells the compiler that the index is never negative.)
#
# ### Strips, for the convolution
#
# A thread computes a **strip** of 8 neighbouring T. For one row of taps, it needs 8 + c_k − 1 neighbouring
# scores. It keeps them in a window of registers that moves on by four columns at a time, and it loads each
# tap once for all 8.

# %%
print(inspect.getsource(strips.convolve_strip.py_func))
print(inspect.getsource(strips.add_group.py_func))

# %% [markdown]
# (The taps are padded with zeros to a multiple of four columns. There are at most four
# such groups. The code spells out each of them, and each of a thread's two strips,
# instead of looping. Registers have no index, so the window moves on without a single
# instruction.) The next picture shows both for one thread:


# %% jupyter={"source_hidden": true}
def draw_patch_and_strip(size, c_k):
    """Draw, left, the cells of one thread's patch in a tile; right, its window of
    scores (pale) for one row of taps, and its strip (dark) above."""
    step, strip, group = size // conv_tiles.PATCH, conv_tiles.STRIP, conv_tiles.GROUP
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    patch = [step * r + 1 for r in range(conv_tiles.PATCH)]
    for i in range(size):
        for j in range(size):
            colour = BLUE if i in patch and j in patch else "white"
            left.add_patch(
                plt.Rectangle((j, i), 1, 1, facecolor=colour, edgecolor="lightgrey")
            )
    left.set(xlim=(0, size), ylim=(size, 0), aspect="equal", title="a patch of 4 × 4")
    windows = -(-c_k // group)
    for row in range(windows + 1):
        for x in range(strip + group * windows):
            start = group * (row - 1)
            read = row > 0 and start <= x < start + strip + group
            colour = BLUE if not row and x < strip else SKY if read else "white"
            right.add_patch(
                plt.Rectangle((x, row), 1, 1, facecolor=colour, edgecolor="grey")
            )
    names = ["T", *(f"taps {group * w} to {group * w + 3}" for w in range(windows))]
    right.set_yticks([row + 0.5 for row in range(windows + 1)], names)
    right.set(
        xlim=(0, strip + group * windows),
        ylim=(windows + 1, 0),
        aspect="equal",
        title="a strip of 8, and its window over the scores",
        xlabel="column, from the strip's first on",
    )
    left.tick_params(length=0)
    right.tick_params(length=0)
    return figure


show_figure(
    draw_patch_and_strip(32, 7),
    "left, a tile of 32 × 32 cells, in which the 16 cells of one thread's patch are "
    "dark: rows and columns 1, 9, 17 and 25. Right, a strip of 8 dark cells T, and "
    "below it the window of 12 scores: columns 0 to 11 for the taps 0 to 3, "
    "columns 4 to 15 for the taps 4 to 7.",
)

# %% [markdown]
# The cells of a patch are spread out, because neighbouring lanes compute the neighbouring cells.
#
# **Predict.** How many values are loaded per useful multiply-add? The last entry of the table is missing:
# what is it for one row of 7 taps?
#
# | | yours | the package's |
# |---|---|---|
# | QKᵀ, one column c | 2 values for 1 | 8 values for 16 |
# | convolution, 7 taps in a row | 14 values for 7 | ? |
#
# <details><summary>Answer</summary>
#
# The window begins with 8 scores and gets 4 more, twice: 16. With 8 taps (one of them 0), these are 24 values
# for 8 · 7 = 56 useful multiply-adds. That is 0.43 instead of 2, and 0.5 instead of 2 for the products.
# </details>
#
# ### Counted
#
# Let the simulator count. With 58 tokens, d = 16 and 7 × 7 taps, a tile of 64 × 64 owns 58 × 58, exactly the
# whole matrix. Your tiles of 16 × 16 own 10 × 10. (The package processes chunks of 32 columns of Q and K.
# With d = 16, half of each chunk is zeros, so this count is unfair to its QKᵀ.)
#
# **Predict.** You launch six blocks, and block b visits b + 1 tiles. How many scores do you compute, and how
# many does the package? (58 · 59 / 2 = 1711 are needed.)


# %%
def counted(*launched):
    """Run a launch with all counters, and keep its report."""
    reports.append(
        simulated(*launched, engine="fibers", observers=[*DEFAULT, *COUNTERS])
    )


def wavefronts_in(report, *functions):
    """Return the number of wavefronts of these functions, and their worst bank
    conflict."""
    lines = [
        counts
        for (name, _), counts in report.counters["lines"].items()
        if name in functions
    ]
    return sum(counts.get("wavefronts", 0) for counts in lines), max(
        (counts.get("ways", 0) for counts in lines), default=0
    )


# %% tags=["uses-exercise"]
q, k, v = torch.randn(3, 58, 16)
w = torch.randn(7, 7) / 7
mine, _ = my_forward(q, k, v, w, size=16, run=counted)
theirs, _ = conv_forward.conv_forward(
    q[None, None], k[None, None], v[None, None], w[None], run=counted
)
yours, package = reports[-2:]
print("same output:", bool((mine - theirs[0, 0]).abs().max() <= 1e-5))
print(
    "scores computed:", sum(block + 1 for block in range(6)) * 16 * 16, "and", 64 * 64
)
print()
print(f"{'wavefronts':24}  {'yours':>8}  {'package':>8}")
pairs = {
    "QKᵀ": ("score", "add_products"),
    "convolution": ("convolve", "convolve_strip", "add_group"),
    "PV": ("add_values", "add_weighted_rows", "add_weighted"),
}
for name, (one, *others) in pairs.items():
    counts = wavefronts_in(yours, one)[0], wavefronts_in(package, *others)[0]
    print(f"{name:24}  {counts[0]:8}  {counts[1]:8}")
print(
    f"{'in total':24}  {yours.counters['banks']['wavefronts']:8}  "
    f"{package.counters['banks']['wavefronts']:8}"
)
print(
    f"{'worst conflict, QKᵀ':24}  {wavefronts_in(yours, 'score')[1]:6}-way  "
    f"{wavefronts_in(package, 'add_products')[1]:6}-way"
)
print(
    f"{'sectors, global memory':24}  {yours.counters['coalescing']['sectors']:8}  "
    f"{package.counters['coalescing']['sectors']:8}"
)

# %% [markdown]
# There are three differences.
#
# - **Fewer wavefronts.** In the convolution, yours takes 5145 [wavefronts](../docs/glossary.md) and the
#   package's takes 2016. You load 1 value per multiply-add from shared memory (your taps come from global
#   memory: see the last point), and the package loads 0.43. The rest is halo. In QKᵀ, the difference is too
#   large for that.
# - **Bank conflicts.** In `score`, lane x reads `k_tile[x, c]`: a column of a tile whose rows have 16 words.
#   That is the bank conflict of lesson 08. The package gives each row of its chunks of Q and K 36 words
#   instead of 32, and each row of its tile of scores 64 + 9 = 73 words. (Its worst conflict anywhere is
#   2-way, in two kinds of stores that happen once per tile or once per chunk.)
# - **Sectors.** You load each tap from global memory for each multiply-add. All lanes want the same tap, so
#   it takes one sector per request, and most of these are in the cache. But each is still a request. The
#   package keeps the taps in shared memory.
#
# **Predict.** Why 73? In `convolve_strip`, the 32 lanes of a warp are 8 rows of 4 lanes. Lane l reads row l
# // 4, starting at column 8 · (l % 4). How many wavefronts does that take with rows of 64, 65, 72 and 73
# words?


# %%
def wavefronts(words):
    """Return the number of wavefronts of one request for these words: the number of
    words in the busiest of the 32 banks."""
    banks = [word % 32 for word in set(words)]
    return max(banks.count(bank) for bank in banks)


for pitch in (64, 65, 72, 73):
    print(
        f"strips, rows of {pitch} words: "
        f"{wavefronts([lane // 4 * pitch + lane % 4 * 8 for lane in range(32)])}"
        " wavefronts"
    )
for pitch in (32, 36):
    print(
        f"patches, rows of {pitch} words: "
        f"{wavefronts([lane // 4 * pitch for lane in range(32)])} wavefronts"
    )

# %% [markdown]
# Any odd width will do, as in lesson 08. So why not 65? Because a strip may reach beyond the tile. Its taps
# come in groups of four, and the window is filled one group ahead. In the worst case this takes 8 more
# columns, which must exist and contain zeros: 72. But 72 takes 8 wavefronts. The ninth column makes the width
# odd.
#
# Two more tricks don't show up in a counter. The tiles of rows are handed out **last tile first**: under a
# causal mask, the last one has the most work, and the GPU should not end with it. And each thread is limited
# to 128 registers, so that two blocks fit on a multiprocessor (lesson 08b: 16384 / (128 · 32) = 4 warps in
# each partition, 16 in total, 2 blocks of 8).
#
# ## What it takes on a GPU
#
# These times are recorded, in float32 with causal attention, with 7 × 7 taps, and 6 × 11 taps in the last
# row. They are for the package's kernel, plain PyTorch as in lesson 09 (*eager*), the same through
# `torch.compile`, and PyTorch's own attention, *which does not convolve at all* and so has less to do.

# %% jupyter={"source_hidden": true}
NAMES = {
    "kernels": "the package",
    "eager": "eager",
    "compile": "torch.compile",
    "sdpa": "no convolution",
}


def recorded_by_shape(quantity):
    """Return {(B, H, N, d): {name: value}} from the record."""
    found = {}
    for row in RECORDED["training"]:
        found.setdefault(tuple(row["shape"]), {})[row["name"]] = row[quantity]
    return found


forward_ms = recorded_by_shape("forward_ms")
print(
    "milliseconds, forward; "
    f"recorded {RECORDED['date']} on one {RECORDED['gpu']}, torch {RECORDED['torch']}\n"
)
print(f"{'B, H, N, d':18}" + "".join(f"{name:>16}" for name in NAMES.values()))
for shape, times in forward_ms.items():
    print(
        f"{', '.join(map(str, shape)):18}"
        + "".join(f"{times[name]:16.3f}" for name in NAMES)
    )
print()
for name in ("eager", "compile"):
    slower = [times[name] / times["kernels"] for times in forward_ms.values()]
    print(
        f"{NAMES[name]} takes {min(slower):.1f} to {max(slower):.1f} times as long "
        "as the package's kernel"
    )

# %% [markdown]
# For 512 tokens, `torch.compile` is close to the kernel. PyTorch's scores, 8 MiB, then fit into the GPU's L2
# cache of 50 MB. And the kernel is ahead only because the package splits the keys of each tile of rows among
# several blocks: 9 tiles of rows for each of 8 heads are only 72 blocks, and the GPU has 132 multiprocessors.
#
# For longer sequences the gap grows. It grows least for `torch.compile`, which merges most of the steps
# between the two products. The last row is an exception: there, the compiled version is the slowest of all.
# We have not examined which kernel the compiler chose for that shape.
#
# The scores have to be somewhere: at 4096 tokens they take 512 MiB. The kernel never stores them. The next
# cell shows the peak memory of each (forward and backward together; the backward kernels are the subject of
# lesson 13).

# %% jupyter={"source_hidden": true}
print(
    f"peak memory in MiB\n{'B, H, N, d':18}"
    + "".join(f"{name:>16}" for name in NAMES.values())
)
for shape, peaks in recorded_by_shape("peak_mib").items():
    print(
        f"{', '.join(map(str, shape)):18}"
        + "".join(f"{peaks[name]:16.0f}" for name in NAMES)
    )
shape, peaks = (1, 8, 4096, 64), recorded_by_shape("peak_mib")[1, 8, 4096, 64]
of_q = math.prod(shape) * 4 / 2**20
print(
    f"\n{shape}: Q takes {of_q:.0f} MiB; no convolution − the package: "
    f"{peaks['sdpa'] - peaks['kernels']:.0f} MiB"
)

# %% [markdown]
# PyTorch's own attention stores no scores either, and yet its peak is above the kernel's. The difference is
# the size of two tensors like Q. We have not examined which tensors these are.
#
# How far is the kernel from the limit of the GPU? Count multiply-adds: for each score that a query sees, d
# for QKᵀ, c_q · c_k for the convolution, and d for PV. Each counts as two operations, and lesson 08b's H200
# performs 66.9 · 10¹² operations per second in float32.
#
# **Predict.** For B = 1, H = 8, N = 4096, d = 64 and 7 × 7 taps, how many milliseconds does it take at least?

# %%
batch, heads, n, d = 1, 8, 4096, 64
measured = forward_ms[batch, heads, n, d]["kernels"]
multiply_adds = batch * heads * n * (n + 1) / 2 * (d + 7 * 7 + d)
least = 2 * multiply_adds / 66.9e12 * 1000
print(
    f"{2 * multiply_adds / 1e9:.1f} billion operations: at least {least:.2f} ms; "
    f"measured {measured:.2f} ms, {measured / least:.1f} times as long"
)

# %% [markdown]
# (This count leaves out the halo: with 7 × 7 taps, a tile of 64 × 64 computes 64² / 58² = 1.2 times as many
# scores as it owns. It also leaves out the exponentials, and the upper half of the tiles on the diagonal.)
# And shared memory? Each multiply-add loads half a value, and a multiprocessor serves one wavefront, at best
# 32 values, per cycle (lesson 08b):

# %%
fewest = 64**2 / 58**2 * multiply_adds / 2 / 32
print(
    f"wavefronts: at least {1000 * fewest / (132 * 1.98e9):.1f} ms "
    f"of the measured {measured:.2f} ms"
)

# %% [markdown]
# So shared memory explains one part of the time and arithmetic another, and the two may overlap. These counts
# do not show where the rest goes: barriers, exponentials, or one warp waiting for another. The tensor cores
# of part 5 multiply more than ten times as fast, if you can make a convolution look like a matrix product.
#
# **What you found:** `sim` finds memory that no thread has written, but only a comparison beyond one tile
# finds memory that is out of date. The fast kernel is the same as yours, except that it uses each value it
# loads many times: patches for products, strips for convolutions, and rows padded for the banks.
#
# **Next:** [lesson 12](12_conv_gradients.ipynb) goes all the way back, by hand: the gradients of
# convolutional attention.
