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
# **90 minutes** · builds on lesson 05 (a flash kernel), lesson 06 (shuffles), lesson 08 (sectors and banks)
# and lesson 10 (tiles with a halo)
#
# After this lesson you will be able to
#
# 1. write a kernel for convolutional attention, in parts that you test one by one;
# 2. say what each barrier protects when the same shared memory holds first the scores and then the
#    probabilities.
#
# Lesson 10 cut convolutional attention into tiles, and PyTorch did the work. Now each tile of rows goes to a
# **block of threads**, and you say what each thread does. The kernel is small: its tiles are 8 × 8 or 16 ×
# 16, and it computes a single head, with causal attention. Lesson 11b looks at the package's kernel, which does the
# same with tiles of 64 × 64, and counts what it saves.
#
# You don't need a GPU.

# %%
import functools
import json
import math
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from numba import cuda
from numpy import float32
from torch.nn.functional import scaled_dot_product_attention

import kernels
from course import check, guess, live, progress_bar, show_figure
from course.figures import BLUE, SKY
from course.ladder import show_ladder, time_rung
from kernels import reference
from kernels.common.launch import launch, output, simulated
from kernels.common.tiles import MINUS_INFINITY, weight
from kernels.conv import forward as conv_forward
from kernels.reference import conv_tiled
from kernels.reference.tiled import Traffic
from sim.observers import DEFAULT, Trace

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
# ## The ladder
#
# Now the task has a convolution. PyTorch has no kernel for it. The mark for PyTorch therefore shows plain PyTorch, which computes step by step with whole matrices. **Predict**: are there more transactions per multiply-add than in lesson 05, or fewer? `___`

# %% tags=["guess"]
guess("11 ladder", transactions=...)

# %% tags=["uses-exercise"]
show_ladder("11", conv_kernel)

# %% [markdown]
# With a GPU, the next cell times your own kernel on it:

# %% tags=["gpu"]
time_rung("11", conv_kernel)

# %% [markdown]
# There are fewer, because a row of threads shares each row of a tile. Each multiply-add still reads two values from shared memory. Lesson 11b shows how to read half a value per multiply-add.
#
# ## In three lines
#
# - There is one thread per score. It computes S0 for query i0 − P_q + y, and then T, P and one element of O
#   for query i0 + y. The −∞ in cells that are not owned takes care of the rest.
# - P may replace S0 between two barriers. A thread stores its p even if it is 0, because S0 is still there.
# - A block's five barriers separate loading, S0, the convolution, P and the product with V. Each one protects
#   values that another thread still has to read.
#
# **You can now** turn a tiled algorithm into a kernel part by part, and say for each barrier what would go
# wrong without it.
#
# **Read on:** the *CUDA C++ Programming Guide*, sections "Shared Memory" and "Synchronization Functions".
# Dao, Fu, Ermon, Rudra, Ré, *FlashAttention* (2022, arXiv:2205.14135), whose algorithm 1 is this loop without
# a convolution. Volkov, *Better Performance at Lower Occupancy* (GTC 2010), on threads that each compute
# several outputs, the idea of the patches in lesson 11b.
#
# **Next:** [lesson 11b](11b_conv_forward_fast.ipynb) breaks the kernel in three ways, and shows how the package
# makes the same algorithm fast. Or go on with [lesson 12](12_conv_gradients.ipynb): the gradients of
# convolutional attention, by hand.
