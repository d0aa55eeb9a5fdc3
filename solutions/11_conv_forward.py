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
# **105 minutes** to a kernel that works, and 60 for two parts marked *optional*, for another day · builds on lesson 05 (a flash kernel), lesson 06 (shuffles), lesson 08 (sectors and banks) and lesson 10 (tiles with a halo)
#
# You will be able to
#
# 1. write a kernel for convolutional attention, in parts that are tested one by one;
# 2. say which barrier protects what, where one piece of shared memory holds first the scores and then the probabilities;
# 3. tell a mistake that a tool finds by itself from one that only a comparison shows, and say why the package's kernel is faster than yours.
#
# Lesson 10 cut convolutional attention into tiles, and PyTorch did the work. Now each tile of rows goes to a **block of threads**, and you say what each thread does. The kernel is small: tiles of 8 × 8 or 16 × 16, for one
# head, causal. At the end we look at the package's kernel, which does the same with tiles of 64 × 64, and count what it saves.
#
# No GPU is needed.

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
# What it is for, first: the forward pass of the package's kernel, which is yours with larger tiles, beside plain PyTorch.

# %%
RECORDED = json.loads(
    (Path(kernels.__file__).parent / "data" / "bench.json").read_text("utf-8")
)
long = {
    row["name"]: row for row in RECORDED["training"] if row["shape"] == [1, 8, 4096, 64]
}
print(f"8 heads, N = 4096, d = 64, 7 x 7 taps; {RECORDED['gpu']}, {RECORDED['date']}")
for name, words in {"kernels": "the kernel", "eager": "plain PyTorch"}.items():
    print(f"{words:13} {long[name]['forward_ms']:5.1f} ms forward")

# %% [markdown]
# ## The idea in one picture
#
# A block **loads** a square tile of `size` × `size` scores, and has a thread for each of them: thread (x, y) for column x and row y. For a tile, a thread does four things, one after the other, and its role changes each time.
# Here is thread x = 2, y = 1, with 2 × 3 taps and `size` = 8, at the tile that owns from query i0 = 14 and key j0 = 12 on:


# %% jupyter={"source_hidden": true}
def draw_roles(size, c_q, c_k, x, y, i0, j0):
    """Four tiles side by side, for the tile that owns from query i0 and key j0 on:
    what thread (x, y) reads (pale) and makes (dark); hatched: not owned."""
    rows, columns = size - c_q + 1, size - c_k + 1
    halo = i0 - (c_q - 1), j0 - (c_k - 1) // 2
    panels = [  # title, what is read, of owned cells, first query, first column, which
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
# 1. **S0**: the thread makes the score of its cell. The tile's first row is query i0 − P_q and its first column key j0 − P_k: the halo comes first.
# 2. **T**: the thread lays the taps on the scores, with the first tap on its own cell. The halo is used up now. So its T belongs to query i0 + y and key j0 + x. The last P_q rows and the last P_k + P_r columns have no T (hatched).
# 3. **P**: the threads of a row find their row's largest T and the sum of its exponentials.
# 4. **O**: the thread makes one number of the output, column x of query i0 + y. (So this kernel takes rows of d ≤ `size` numbers.)
#
# The same thread thus stands for *two* queries: for i0 − P_q + y until the convolution, for i0 + y from there on. Nearly every mistake in this kernel is a confusion of the two.
#
# **Predict.** `size` = 8, 2 × 3 taps; the block owns the queries from i0 = 7 on, and is at the tile of keys that begins at j0 = 6. For thread x = 2, y = 1:
#
# | | |
# |---|---|
# | its score is of query `___` and key `___` | |
# | its T is of query `___` and key `___` | |
# | the tile owns `___` rows and `___` columns | |
# | the next tile of keys begins at j0 = `___` | |
#
# <details><summary>Answer</summary>
#
# P_q = 1 and P_k = 1. The score is of query 7 − 1 + 1 = 7 and key 6 − 1 + 2 = 7; T is of query 8 and key 8. The tile owns 7 rows and 6 columns; the next one begins at j0 = 12.
# </details>
#
# ## The page of lesson 09, by threads
#
# Four tokens, 2 × 3 taps, on paper with a block of 4 × 4 threads: it loads 4 × 4 and owns 3 × 2. These were the taps, and the scores after the first mask:
#
# | w | | | | S0 | key 0 | 1 | 2 | 3 |
# |---|---|---|---|---|---|---|---|---|
# | 1 | 0 | 2 | | query 0 | 1 | 0 | 0 | 0 |
# | 0 | 1 | −1 | | 1 | 2 | 1 | 0 | 0 |
# | | | | | 2 | 0 | 1 | 1 | 0 |
# | | | | | 3 | 1 | 2 | 3 | 2 |
#
# The first block owns the queries 0, 1, 2. Its first tile of keys owns the keys 0 and 1, and its 16 threads hold, with the halo,
#
# | | x = 0, key −1 | 1, key 0 | 2, key 1 | 3, key 2 |
# |---|---|---|---|---|
# | y = 0, query −1 | 0 | 0 | 0 | 0 |
# | y = 1, query 0 | 0 | 1 | 0 | 0 |
# | y = 2, query 1 | 0 | 2 | 1 | 0 |
# | y = 3, query 2 | 0 | 0 | 1 | 1 |
#
# The taps on y = 2, x = 1 give 1·2 + 0·1 + 2·0 + 0·0 + 1·1 − 1·1 = 2: `T` of query 2 and key 1. In the same manner all of this tile:
#
# | T | key 0 | key 1 |
# |---|---|---|
# | query 0 | 1 | −∞ |
# | query 1 | 1 | 2 |
# | query 2 | 1 | 2 |
#
# **On paper.** Follow query 2. Take powers of 2 in place of e; the values are 4, 10, 3, 9. After this tile m = 2, its P are ½ and 1, l = 1.5, and o = ½·4 + 10 = 12. Then comes the tile that owns the keys 2 and 3.
# Which numbers does the block load into its row y = 3? What is `T` of query 2 and key 2? Then m = `___`, l = `___`, o = `___`, and the output is `___`.
#
# <details><summary>Answer</summary>
#
# Row y = 3 is query 2 with the keys 1 to 4: 1, 1, 0, 0. Row y = 2 is query 1 with the same keys: 1, 0, 0, 0. T = 1·1 + 0·0 + 2·0 + 0·1 + 1·1 − 1·0 = 2. Key 3 comes later: −∞. So m = 2 as before, nothing shrinks, P = 1 and 0,
# l = 1.5 + 1 = 2.5, o = 12 + 3 = 15, and 15 / 2.5 = **6**, as in lesson 09.
# </details>
#
# ## 0. Loading, which is given
#
# With as many threads as cells, each brings one number. Rows outside the sequence are zeros, and now there are such rows at both ends: `first` can be negative.


# %%
@cuda.jit(device=True)
def load_rows(tile, rows, first):
    """tile = rows[first : first + size], with 0 for what lies outside rows (n, d).
    tile: (size, size); d <= size; one number per thread."""
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    n, d = rows.shape
    inside = 0 <= first + y and first + y < n and x < d
    tile[y, x] = rows[first + y, x] if inside else float32(0)


# %% [markdown]
# `rows[-1]` would be the last row for Numba, as for Python, and in CUDA C++ whatever lies in front of the array. Neither is a halo.
#
# Now the four parts. All of them are called by every thread of the block, and compute in float32 alone: the check compiles them, and refuses a float64. `cuda.threadIdx.x` and `.y` say which one it is.
#
# ### Exercise 11.1 · score · about six lines
# Return the masked score of this thread's cell: `scale` times row y of `q_tile` times row x of `k_tile`, or 0 if the key comes after the query. A thread reads one row of each tile. `w` is here for its shape, (c_q, c_k). In a tile, what is beyond d is 0.
#
# <details><summary>Hint 1: which query, which key?</summary>
#
# The tile that owns from query i0 and key j0 on begins at query `i0 - (c_q - 1)` and key `j0 - (c_k - 1) // 2`. Add y and x.
# </details>
# <details><summary>Hint 2: types</summary>
#
# `float32(0)`, for the sum and for the 0 you return (lesson 07).
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def score(q_tile, k_tile, w, i0, j0, scale):
    """S0 of this thread's cell: row y of q_tile, row x of k_tile;
    both (size, size), with the halo of a tile that owns from query i0, key j0 on."""
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
# Return `T` of this thread: query i0 + y, key j0 + x. Return `MINUS_INFINITY`, a float32, where there is none: if the taps do not fit into the tile from here, or if the key comes after the query.
#
# <details><summary>Hint 1: does it fit?</summary>
#
# Row y and c_q − 1 more below it must be in the tile: `y + c_q <= size`. Columns likewise. Without this guard the thread reads beyond the tile.
# </details>
# <details><summary>Hint 2: the sum</summary>
#
# Two loops, `w[a, b] * s_tile[y + a, x + b]`. There is no P_q and no P_k in it: they are in i0 and j0 already.
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def convolve(s_tile, w, i0, j0):
    """T of query i0 + y and key j0 + x from s_tile (size, size), with its halo;
    -inf where the tile owns no T, or the key comes later."""
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
# That −∞ does a lot of work. A cell that is not owned will get P = exp(−∞) = 0, so it counts in no sum. Nothing that comes after `convolve` needs to know about halos.
#
# ### Exercise 11.3 · absorb · about four lines
# Now the threads of a row need each other: for the largest T of the row, and for a sum. A row has 8 or 16 threads, neighbours in a warp, so they can shuffle. These two are lesson 06, with fewer steps:


# %%
@cuda.jit(device=True)
def row_max(value):
    """The largest value among the threads with the same y; all of them get it."""
    step = cuda.blockDim.x // 2
    while step > 0:
        value = max(value, cuda.shfl_xor_sync(ALL_LANES, value, step))
        step //= 2
    return value


@cuda.jit(device=True)
def row_sum(value):
    """The sum over the threads with the same y; all of them get it."""
    step = cuda.blockDim.x // 2
    while step > 0:
        value += cuda.shfl_xor_sync(ALL_LANES, value, step)
        step //= 2
    return value


# %% [markdown]
# Each thread holds its own T, and a copy of its row's state m and l. Every thread calls `row_max` and `row_sum`, in every tile. Return four numbers: the new m, the new l, the factor `shrink` by which the old l (and later the old o) is multiplied, and p, this thread's exp(T − new m).
#
# With (m, l) = (2, 1.5), and T = 2 and −∞ in a row of two threads: what do they return? (You had this on paper: 2, 2.5, 1, and 1 or 0.)
#
# There are rows that see nothing of a tile: all T are −∞. If such a row has seen nothing before either, then m is −∞ too, and exp(−∞ − (−∞)) is NaN. `weight(a, b)` from `kernels.common.tiles` is exp(a − b), and 0 if a is −∞.
# (Where m was −∞ before, any finite `shrink` will do, as l and o are 0 there. Scores reach ±1000, and each row has a state of its own.)
#
# <details><summary>Hint 1: everybody shuffles</summary>
#
# Call `row_max` and `row_sum` under no `if`: a shuffle needs all 32 lanes of the warp.
# </details>
# <details><summary>Hint 2: shrink</summary>
#
# `weight(m, new_m)`, with the old m.
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def absorb(t, m, l):
    """(new m, new l, shrink, p) of this thread, whose row had the state (m, l),
    and which has t = T of one more tile."""
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
# P of the whole tile is in `p_tile` now, a row for each query; `v_tile` has a row for each key. This thread has o, column x of the output of query i0 + y so far. Return o · shrink + row y of P times column x of V.


# %% tags=["exercise"]
@cuda.jit(device=True)
def add_values(o, shrink, p_tile, v_tile):
    """o · shrink + Σ_j p_tile[y, j] · v_tile[j, x]; both tiles (size, size)."""
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
# Four tiles in shared memory: Q, K, V, and one for the scores, in which P takes the place of S0. Shared memory is scarce, and when P comes nobody needs S0 any more. If that is so! A block of 64 threads is two warps, and one may be far ahead of
# the other.
#
# **Predict.** Between which two steps does a thread need numbers that *other* threads have made, or overwrite what others may still read?
#
# ### Exercise 11.5 · conv_kernel · about eleven lines
# Write the body of the loop over the tiles of keys. The block owns `rows` queries from i0 on, the tile `columns` keys from j0 on. Each of your parts is called once, and so is
# `load_rows(tile, array, first)` for K and for V. Put a `cuda.syncthreads()` wherever one is needed, five per tile at most. m, l and o stay in the thread: `out` and `log_sum` are stored after the loop, once. The check has many tiles of keys, scores to ±1000, and a `scale` that is not 1/√d; it also compiles the kernel for a GPU.
#
# <details><summary>Hint 1: the first rows of the tiles</summary>
#
# K with its halo, from key `j0 - (c_k - 1) // 2`. V without, from key j0: column 0 of P is key j0. (What V has beyond the owned keys meets P = 0.)
# </details>
# <details><summary>Hint 2: the order</summary>
#
# Load K and V; barrier; `s_tile[y, x] = score(…)`; barrier; `t = convolve(…)`; `m, l, shrink, p = absorb(t, m, l)`; …
# </details>
# <details><summary>Hint 3: five barriers</summary>
#
# After the loads; after S0 is complete; after all have read S0, before P takes its place; after P is complete; and at the end, before the next tile is loaded over V.
# </details>


# %% tags=["exercise"]
@functools.cache
def conv_kernel(size):
    """The kernel for tiles of size × size scores, 8 or 16;
    a block of as many threads for each tile of rows."""

    @cuda.jit
    def conv_kernel(q, k, v, w, scale, out, log_sum):
        """out (n, d) and log_sum (n,) of q, k, v (n, d) and w (c_q, c_k), all float32;
        causal; d, c_q and c_k at most size."""
        q_tile = cuda.shared.array((size, size), float32)
        k_tile = cuda.shared.array((size, size), float32)
        v_tile = cuda.shared.array((size, size), float32)
        s_tile = cuda.shared.array((size, size), float32)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        n, d = q.shape
        c_q, c_k = w.shape
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
            cuda.syncthreads()  # nobody needs S0 any more
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
# The page once more, now by your kernel, with 8 × 8 threads (so it is one tile). `launch` is the package's: tensors on the CPU go to the simulator, tensors on a GPU to the GPU.


# %%
def my_forward(q, k, v, w, size=8, run=None):
    """(O, L) by your kernel: q, k, v (n, d), w (c_q, c_k), float32; run:
    who launches it, see kernels.common.launch."""
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
page_s = torch.tensor([[1.0, 3, 2, 4], [2, 1, 5, 0], [0, 1, 1, 6], [1, 2, 3, 2]])
page_w = torch.tensor([[1.0, 0, 2], [0, 1, -1]])
page_v = torch.tensor([[4.0, 0, 0, 0], [10, 0, 0, 0], [3, 0, 0, 0], [9, 0, 0, 0]])
page_o, _ = my_forward(2 * math.log(2) * page_s, torch.eye(4), page_v, page_w)
print("out", [f"{number:.2f}" for number in page_o[:, 0].tolist()])

# %% [markdown]
# And this is what happens to `s_tile` in the first block, when 7 tokens go through tiles that own 7 × 6. Watch how S0 is stored, read in windows by `convolve`, then overwritten with P, and read along the rows. With 7 keys there is a second
# tile of keys, and all of it begins anew.

# %% tags=["uses-exercise"]
reports = []


def traced(*launched):
    """A runner for `launch` that keeps the report, trace included."""
    reports.append(simulated(*launched, engine="fibers", observers=[*DEFAULT, Trace]))


my_forward(*torch.randn(3, 7, 4), torch.randn(2, 3), run=traced)
reports[-1].memory_map("s_tile", block=0)

# %% [markdown]
# <details><summary>Can you do it with four barriers?</summary>
#
# Yes: load V later, after the barrier "S0 is complete". Then the last barrier is not needed. The next K may be loaded while others still add values, as nobody reads K any more; and S0 and V of the next tile are written only after barriers
# that everybody reaches when the values have been added. Try it, the check will tell. (And the fourth may be a `cuda.syncwarp()`: a thread reads its own row of P only, and a row lies in one warp.) The package's kernel has more barriers than yours, since it loads Q, K and V in pieces.
# </details>
#
# ## Three bug hunts (optional, 25 minutes)
#
# The kernel has a middle: from the complete S0 to the new o. In the next cells only the middle changes. `with_middle` puts it into a frame like yours that loads the tiles, makes S0, and stores the results; `p_tile` is one more tile in shared memory,
# for versions that use it.


# %%
def with_middle(middle):
    """The kernel for 8 × 8, in which middle(s_tile, p_tile, v_tile, w, i0, j0, n, m, l,
    o) -> (m, l, o) goes from the complete S0 to the new o."""

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


def try_middle(middle, tokens, taps=(3, 3), seeds=10):
    """For each number of tokens: how often the output was right, with different orders
    of the threads, and which findings `sim` had. Returns the last report."""
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
            f"N = {n:2}: right {right:2} of {seeds} times; "
            f"sim finds {', '.join(sorted(kinds)) or 'nothing'}"
        )
    return report


# %% [markdown]
# ### 1. Too early
#
# **Guess before you run.** `absorb` has shuffles in it, and the lanes wait for each other there. So the barrier after it can go, one might think. Is it right? Does `sim` find something?


# %%
def too_early(s_tile, p_tile, v_tile, w, i0, j0, n, m, l, o):
    """P takes the place of S0 as soon as this thread has its p."""
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
# Right in every order that was tried, and a race in every one. In these runs all threads happen to have convolved before the first one stores; nothing in the kernel says so.
#
# <details><summary>What is wrong</summary>
#
# The block has two warps: the rows 0 to 3, and the rows 4 to 7. With three rows of taps, row 3 of T reads row 4 and row 5 of S0. The second warp turns these into P as soon as it is through with its own; on a GPU it may be ahead by as much as it likes.
#
# And within a warp? The finding names the threads 1 and 0, which are neighbours. A shuffle hands over a value. It promises nothing about memory: which of the loads and stores before and after it come first, it does not say. `cuda.syncwarp()` would, for one
# warp, and `cuda.syncthreads()` does, for the block.
#
# What makes the line look harmless is that each thread writes a cell that was *its own*. But at that moment others read it.
# </details>
#
# ### 2. Memory that nobody has written
#
# Lesson 10 told you of CUDA code that is right up to 26 tokens, with 7 × 7 taps and tiles of 32 × 32, and wrong from 27 tokens on. It reads shared memory as probabilities that no thread has written in this pass. Here is a way
# to arrive there. P has a tile of its own. Only what the tile owns is written to it; and the sum runs over the loaded keys that exist, `min(8, n - j0)`.
#
# **Guess before you run.** With 3 × 3 taps and tiles of 8 × 8: up to how many tokens is it right? And what does it read from there on?


# %%
def only_what_is_owned(s_tile, p_tile, v_tile, w, i0, j0, n, m, l, o):
    """P of the owned cells goes into p_tile,
    and is summed up over the keys that were loaded."""
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
# A tile owns 8 − 2 = 6 columns. Up to 6 tokens there are no others to sum over; from 7 on there are, and the columns 6 and 7 of `p_tile` have never been written. `sim` fills fresh shared memory with NaN and says who reads it. A GPU gives what the
# last block has left there, perhaps of another kernel. That can be different in each run, and it can be 0, so that all is well until the day when it is not.
#
# The next version saves memory: it puts P where S0 was, as you did, with the right barrier. The rest stays.
#
# **Guess before you run.** What will `sim` find this time?


# %%
def over_the_scores(s_tile, p_tile, v_tile, w, i0, j0, n, m, l, o):
    """The same without a tile for P: it takes the place of S0, where the tile owns."""
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
# Nothing, and it is wrong all the same, from 8 tokens on. The columns 6 and 7 *have* been written: they hold scores of this very pass, and scores are taken for probabilities. No tool can know that a number is out of date. What finds it is a comparison, at
# a length where the tile has a neighbour. (With 7 tokens it is right by chance: the only cells in question hold scores of future keys, and these are 0.) Tests that stop at 7 tokens do not see it.
#
# Your kernel is safe for a simple reason: *every* thread stores its p, and the p of a cell that is not owned is 0.
#
# ### 3. NaN from a masked tile
#
# In lesson 10 a tile of which a row saw nothing made NaN, because it had a maximum of its own. `absorb` compares with the old m first, and that one is finite after the first tile, as every query sees key 0. So could it do without
# `weight`, with `math.exp` alone?
#
# **Guess before you run.** The queries 4 to 11 meet the keys 0 to 7 and the keys 8 to 15, once in this order, once the other way round. Where will there be NaN?


# %%
@cuda.jit(device=True)
def careless_absorb(t, m, l):
    """As absorb, but exp has no guard."""
    new_m = max(m, row_max(t))
    p = math.exp(t - new_m)
    shrink = math.exp(m - new_m)
    return new_m, l * shrink + row_sum(p), shrink, p


def sums_after(absorb, t, first, second):
    """l of each row after two tiles of t (8, 16), which begin at these columns."""

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
# Forwards it is right, thanks to key 0. Backwards, the queries 4 to 7 begin with a tile of which they see nothing: m stays −∞, and exp(−∞ − (−∞)) is NaN. Whoever turns the loop round one day, or splits the keys among several blocks (lesson 14 does), breaks a
# kernel that passed all its tests. And a compiler would not mind: in the rows that a tile does not own, m is −∞ all the time, and the careless version makes NaN there in *every* launch. It only happens that nobody looks.
#
# ## The same, fast (optional, 35 minutes)
#
# Your kernel is right, and it is slow. `kernels/conv/forward.py` has the same phases, in the same order, and the same buffer for S0 and P. This is its step 3, where yours has `convolve` and `absorb`:

# %%
source = inspect.getsource(conv_forward_kernel).splitlines()
begin = next(
    number for number, line in enumerate(source) if "# 3. T and then P" in line
)
end = next(number for number, line in enumerate(source) if "P may overwrite S0" in line)
print(inspect.cleandoc("\n".join(source[begin : end + 1])))

# %% [markdown]
# (`weight`, `shrink`, shuffles among the threads of a row: all there. `strip` is a thread's own little array, which the compiler keeps in registers. `LANES` is 4, as four threads share a row.)
#
# What is different is how much one thread does. Yours makes one score, so each multiply-add fetches two numbers: that is what lesson 08 found wrong with our matrix product. There are two remedies, one for products and one for convolutions.
#
# ### Patches, for QKᵀ and PV
#
# A thread makes a **patch** of 4 × 4 scores. For each column c it fetches 4 numbers of Q and 4 of K, and all of their 16 products are wanted.

# %%
print(inspect.getsource(conv_tiles.add_products.py_func))

# %% [markdown]
# (A *chunk* is a piece of Q or K, some columns wide, in shared memory. `GROUP` is 4: the innermost loops take four columns at a time, which lie side by side and can come in one load of 16 bytes. A row of a chunk is
# four words longer than what it holds, hence `- GROUP`; why, we shall see. `step` is the distance between the rows of a patch. `& INDEX` changes nothing: it tells the compiler that an index is never negative.)
#
# ### Strips, for the convolution
#
# A thread makes a **strip** of 8 neighbouring T. For one row of taps they need 8 + c_k − 1 neighbouring scores. They are kept in a window of registers, which moves on by four columns at a time; and each tap is fetched once for all 8.

# %%
print(inspect.getsource(strips.convolve_strip.py_func))
print(inspect.getsource(strips.add_group.py_func))

# %% [markdown]
# (Taps are filled up with zeros to a multiple of four columns. There are at most four such groups, and each is written out, as are a thread's two strips: registers have no index, and so the window moves on without a single instruction.) Both in a picture, for one thread:


# %%
def draw_patch_and_strip(size, c_k):
    """Left, the cells of one thread's patch in a tile; right, its window of scores
    (pale) while it convolves one row of taps, and its strip (dark) above."""
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
# The cells of a patch lie apart, as the lanes beside this thread take the cells beside these.
#
# **Predict.** How many numbers are fetched for one multiply-add of use? Fill in the last two, for one row of 7 taps.
#
# | | yours | the package's |
# |---|---|---|
# | QKᵀ, one column c | 2 numbers for 1 | 8 numbers for 16 |
# | convolution, 7 taps in a row | 14 numbers for 7 | `___` numbers for `___` |
#
# <details><summary>Answer</summary>
#
# The window begins with 8 scores and gets 4 more twice: 16. With 8 taps (one of them 0) these are 24 numbers, for 8 · 7 = 56 multiply-adds of use. So 0.43 in place of 2, and 0.5 in place of 2 for the products.
# </details>
#
# ### Counted
#
# Let the simulator count. 58 tokens, d = 16, 7 × 7 taps: a tile of 64 × 64 owns 58 × 58, just the whole; yours of 16 × 16 own 10 × 10. (The package works on
# chunks of 32 columns of Q and K: with d = 16 half of each is zeros, so its QKᵀ is counted at a disadvantage.)
#
# **Predict.** Six blocks of yours, of which block b visits b + 1 tiles: how many scores do you compute, and how many does the package? Needed are 58 · 59 / 2 = 1711.


# %% tags=["uses-exercise"]
def counted(*launched):
    """A runner for `launch` that counts, and keeps the report."""
    reports.append(
        simulated(*launched, engine="fibers", observers=[*DEFAULT, *COUNTERS])
    )


def turns_in(report, *functions):
    """Turns that shared memory took for these functions,
    and the worst bank conflict there."""
    lines = [
        counts
        for (name, _), counts in report.counters["lines"].items()
        if name in functions
    ]
    return sum(counts.get("wavefronts", 0) for counts in lines), max(
        (counts.get("ways", 0) for counts in lines), default=0
    )


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
print(f"{'turns of shared memory':24}  {'yours':>8}  {'package':>8}")
pairs = {
    "QKᵀ": ("score", "add_products"),
    "convolution": ("convolve", "convolve_strip", "add_group"),
    "PV": ("add_values", "add_weighted_rows", "add_weighted"),
}
for name, (one, *others) in pairs.items():
    print(f"{name:24}  {turns_in(yours, one)[0]:8}  {turns_in(package, *others)[0]:8}")
print(
    f"{'in all':24}  {yours.counters['banks']['wavefronts']:8}  "
    f"{package.counters['banks']['wavefronts']:8}"
)
print(
    f"{'worst conflict, QKᵀ':24}  {turns_in(yours, 'score')[1]:6}-way  "
    f"{turns_in(package, 'add_products')[1]:6}-way"
)
print(
    f"{'sectors, global memory':24}  {yours.counters['coalescing']['sectors']:8}  "
    f"{package.counters['coalescing']['sectors']:8}"
)

# %% [markdown]
# Three things, then.
#
# - **Fewer turns.** 5145 turns against 2016 in the convolution are 0.43 numbers for a multiply-add against 1 (your taps come from global memory: see the last point), and the rest is halo. In QKᵀ the difference is too large for that.
# - **Bank conflicts.** In `score`, lane x reads `k_tile[x, c]`: a column of a tile with 16 words in a row. That is lesson 08, section 4. The package gives each row of its chunks of Q and K 36 words in place of 32, and each row of its tile of scores 64 + 9 = 73.
#   (Its worst conflict anywhere is 2-way, in two kinds of stores that happen once per tile or once per chunk.)
# - **Sectors.** You fetch each tap from global memory for each multiply-add; all lanes want the same one, so it is a sector per request, and mostly a cached one, but a request nevertheless. The package keeps the taps in shared memory.
#
# **Predict.** Why 73? In `convolve_strip` the 32 lanes of a warp are 8 rows of 4 lanes; lane l reads row l // 4, from column 8 · (l % 4) on. How many turns does that take, with rows of 64, 65, 72 and 73 words?


# %%
def turns(words):
    """How many turns a request for these words takes:
    those of the busiest of 32 banks."""
    banks = [word % 32 for word in set(words)]
    return max(banks.count(bank) for bank in banks)


for pitch in (64, 65, 72, 73):
    print(
        f"strips, rows of {pitch} words: "
        f"{turns([lane // 4 * pitch + lane % 4 * 8 for lane in range(32)])} turns"
    )
for pitch in (32, 36):
    print(
        f"patches, rows of {pitch} words: "
        f"{turns([lane // 4 * pitch for lane in range(32)])} turns"
    )

# %% [markdown]
# Any odd width will do, as in lesson 08, so why not 65? Because a strip may reach beyond the tile. Its taps come in groups of four, and the window is filled a group ahead. In the worst case this takes 8 columns more, which must be there and hold zeros: 72. And
# 72 takes 8 turns. The ninth column makes it odd.
#
# Two more tricks need no counter. The tiles of rows are handed out **last tile first**: under a causal mask the last one has the most to do, and it should not be what the GPU ends with. And a thread is told to get along with 128 registers, so that
# two blocks fit on a multiprocessor (lesson 08, section 7: 16384 / (128 · 32) = 4 warps in each quarter, 16 in all, 2 blocks of 8).
#
# ## What it takes on a GPU
#
# Recorded, all in float32 and causal, with 7 × 7 taps, and 6 × 11 in the last line: the package's kernel, plain PyTorch as in lesson 09 (*eager*), the same through `torch.compile`, and PyTorch's own attention, *which does not convolve at all*. For that one there is less to do.

# %% jupyter={"source_hidden": true}
NAMES = {
    "kernels": "the package",
    "eager": "eager",
    "compile": "torch.compile",
    "sdpa": "no convolution",
}


def recorded_by_shape(quantity):
    """{(B, H, N, d): {name: number}} of what was recorded."""
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

# %% [markdown]
# With 512 tokens `torch.compile` is close behind, 0.09 ms against 0.08. And the kernel is ahead only since the package divides the keys of each tile of rows among several blocks: 9 tiles of rows for each of 8 heads are 72 blocks, and the GPU has 132 multiprocessors. PyTorch's
# scores, 8 MiB, fit into the GPU's cache of 50 MB. With the length this changes, and least for `torch.compile`, which merges most of the steps between two products. But the scores must be somewhere: at 4096 tokens 512 MiB of them. The kernel never has them. This is the memory that each takes at its peak (forward and backward together; the backward kernels are lesson 13):

# %% jupyter={"source_hidden": true}
print(
    f"MiB at the peak\n{'B, H, N, d':18}"
    + "".join(f"{name:>16}" for name in NAMES.values())
)
for shape, peaks in recorded_by_shape("peak_mib").items():
    print(
        f"{', '.join(map(str, shape)):18}"
        + "".join(f"{peaks[name]:16.0f}" for name in NAMES)
    )

# %% [markdown]
# How far is that from what the GPU can do? Count multiply-adds: for each score that a query sees, d for QKᵀ, c_q · c_k for the convolution, d for PV. Two operations each; lesson 08's H200 does 66.9 · 10¹² in a second.
#
# **Predict.** B = 1, H = 8, N = 4096, d = 64, 7 × 7 taps: how many milliseconds at least?

# %%
batch, heads, n, d = 1, 8, 4096, 64
measured = forward_ms[batch, heads, n, d]["kernels"]
multiply_adds = batch * heads * n * (n + 1) / 2 * (d + 7 * 7 + d)
least = 2 * multiply_adds / 66.9e12 * 1000
print(
    f"{2 * multiply_adds / 1e9:.1f} billion operations: at least {least:.2f} ms; "
    f"measured {measured:.2f} ms, {measured / least:.1f} times as much"
)

# %% [markdown]
# (The halo is not in it: with 7 × 7 taps a tile of 64 × 64 computes 64² / 58² = 1.2 times as many scores as it owns. Nor are the exponentials, nor the upper half of the tiles on the diagonal.) And shared memory? Half a number
# is fetched for each multiply-add, and a multiprocessor takes one turn, 32 numbers at best, a cycle (lesson 08):

# %%
turns_at_least = 64**2 / 58**2 * multiply_adds / 2 / 32
print(
    f"turns of shared memory: at least {1000 * turns_at_least / (132 * 1.98e9):.1f} ms "
    f"of the measured {measured:.2f}"
)

# %% [markdown]
# So shared memory explains a part, arithmetic another, and they may overlap; what the rest goes into (barriers, exponentials, the waiting of one warp for the other) these counts do not say. The tensor cores of part 5 multiply more than ten times as fast, if one can make a convolution look like a matrix product.
#
# ## Validate
#
# Each stage against the one before: your kernel against the tiles of lesson 10, element by element, in float64 there; against the reference; then the package's kernel against both. Taps odd, even, oblong, larger than the sequence;
# one tile and several.


# %%
def validate(stage, against, found, wanted, tolerance=1e-5):
    """One row of the table. NaN fails."""
    agrees = all(
        (mine - theirs).abs().max().item() <= tolerance
        for mine, theirs in zip(found, wanted, strict=True)
    )
    print(
        f"{stage:24}  {against:42}  {'below' if agrees else 'ABOVE'} {tolerance:.0e}   "
        f"{'✓' if agrees else '✗'}"
    )


def whole(function, q, k, v, w, **options):
    """A function of (B, H, N, d) and taps (H, c_q, c_k),
    called with one batch and one head."""
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
yours = [my_forward(*case) for case in progress_bar(cases, desc="your kernel")]
in_float64 = [[x.double() for x in case[:4]] for case in cases]
tiles = [
    conv_tiled.forward(*case, (size, size), Traffic())
    for case, (*_, size) in zip(in_float64, cases, strict=True)
]
exact = [whole(reference.conv_attention, *case) for case in in_float64]
package = [
    whole(conv_forward.conv_forward, *case[:4], size=32)
    for case in progress_bar(cases, desc="package")
]
ordinary = [
    my_forward(*case[:3], reference.identity_taps(1, *case[3].shape)[0], case[4])[0]
    for case in cases
]
sdpa = [
    scaled_dot_product_attention(*(x[None] for x in case[:3]), is_causal=True)[0]
    for case in cases
]

print(f"{len(cases)} cases, float32\n{'stage':24}  {'against':42}  largest difference")
validate(
    "O, your kernel",
    "tiles of lesson 10, float64",
    [o for o, _ in yours],
    [o for o, _ in tiles],
)
validate(
    "L, your kernel",
    "tiles of lesson 10, float64",
    [log_sum for _, log_sum in yours],
    [log_sum for _, log_sum in tiles],
)
validate(
    "O, your kernel",
    "kernels.reference.conv_attention, float64",
    [o for o, _ in yours],
    exact,
)
validate("identity taps", "scaled_dot_product_attention", ordinary, sdpa)
validate(
    "O, the package's kernel",
    "your kernel",
    [o for o, _ in package],
    [o for o, _ in yours],
)
validate(
    "L, the package's kernel",
    "your kernel",
    [log_sum for _, log_sum in package],
    [log_sum for _, log_sum in yours],
)
validate(
    "O, the package's kernel",
    "kernels.reference.conv_attention, float64",
    [o for o, _ in package],
    exact,
)

# %% [markdown]
# ### Long sequences, without a GPU
#
# Forty tokens are few, and yet the simulator needs seconds, as Python runs each thread. `sim` has a third engine for such cases, `native`. It takes your kernel apart at the places where threads wait, makes a **loop over the threads of a block** out of each
# part, and has Numba compile all of it for your CPU. Here is a small kernel, and the text it becomes:


# %%
@cuda.jit
def neighbours(x, out):
    """out[t] = x[t] + x[t + 1], around a ring of 32."""
    tile = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    cuda.syncthreads()
    out[t] = tile[t] + tile[(t + 1) % 32]


ring, sums = torch.arange(32.0), torch.empty(32)
text = native.source(neighbours, ring, sums)
print(text[text.index("@compiled") : text.index("@kernel")].rstrip())

# %% [markdown]
# **Predict.** The barrier has gone. What keeps its promise? (And why may a loop go through the threads in order?)
#
# <details><summary>Answer</summary>
#
# The first loop has ended, for all threads, before the second begins. Between two barriers threads may run in any order, so one after the other is as good as any. That is what a barrier is for. If the order did matter, it would be a race, and the
# engine looks for those as the others do: it then runs the launch again, slowly, and tells you the line.
# </details>
#
# Now your kernel, with 400 tokens: millions of multiply-adds (the cell counts them), for which the interpreting engines take the better part of a minute. (The first launch compiles, which takes some seconds. The result is kept on your disk.)


# %% tags=["uses-exercise"]
def compiled(*launched):
    """A runner for `launch` that has the kernel compiled for the CPU,
    and keeps the report."""
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
# ### On a real GPU, if there is one
#
# Both kernels again, where your tensors are: 1000 tokens on a GPU, 40 without one. The cell prints the same lines.

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
# And how long the two take on your GPU, for one head of 4096 tokens (without a GPU: on ours, with the solution's kernel):


# %% tags=["gpu", "uses-exercise"]
def milliseconds(call, times=10):
    """The mean time of a call on the GPU, after one to warm up."""
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
    """Milliseconds of the learner's kernel and the package's, one head."""
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
# - A thread per score: it makes S0 for query i0 − P_q + y, then T, P and a number of O for query i0 + y; −∞ where nothing is owned takes care of all the rest.
# - P may take the place of S0 between two barriers, and every cell has to be written: a tool finds memory that nobody has written, and only a comparison beyond one tile finds memory that is out of date.
# - The fast kernel is the same one, in which each number that is fetched is used many times: patches for products, strips for convolutions, rows padded for the banks.
#
# **You can now** turn a tiled algorithm into a kernel part by part, and say of each barrier what would go wrong without it.
#
# **Next:** [lesson 12](12_conv_gradients.ipynb) goes the whole way back, by hand: the gradients of convolutional attention.
