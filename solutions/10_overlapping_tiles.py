# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 10 · Overlapping tiles
#
# **90 minutes** to the loop and its price, and 40 for the bug hunt (*optional*) · builds on lesson 02 (tiles, queries outer, `Traffic`) and lesson 09 (convolutional attention and its two masks); one kernel, as in lesson 04
#
# You will be able to
#
# 1. say which scores a tile has to load to compute those that it owns, for taps of any size, at every border;
# 2. compute convolutional attention tile by tile, without an N×N matrix, and say what the overlap costs;
# 3. name five mistakes of the published algorithm, and write a test with two tokens that finds three of them.
#
# Lesson 02 got rid of the N×N matrix: compute a tile of scores, use it, forget it. Lesson 09 mixed each score with its neighbours. The two do not get on at
# first: the neighbours of a score at the border of a tile are in *another* tile, and that one is forgotten, or has not been computed yet.
#
# No GPU is needed. Everything is for one head, and causal.

# %%
import inspect
import math

import matplotlib.pyplot as plt
import numpy as np
import torch
from numba import cuda
from numpy import float32
from torch.nn.functional import conv2d, scaled_dot_product_attention

from course import check, progress_bar, show_figure
from course.check import lesson10
from course.figures import BLUE, GREEN, ORANGE, RED
from kernels import reference
from kernels.reference import conv_tiled
from kernels.reference.conv_tiled import halo_of, load_rows, owned
from kernels.reference.tiled import State, Traffic, nothing_read, queries_outer, update
from sim import simulate
from sim.viz import Scene

torch.manual_seed(10)
torch.set_default_dtype(torch.float64)

# %% [markdown]
# ## Six numbers, two tiles
#
# One row of scores, 1 2 4 3 1 2, and three taps, 1 2 1: each number counts twice, its neighbours once. Beyond the ends there are zeros.
#
# | | 0 | 1 | 2 | 3 | 4 | 5 |
# |---|---|---|---|---|---|---|
# | score | 1 | 2 | 4 | 3 | 1 | 2 |
# | T | 4 | 9 | 13 | 11 | 7 | 5 |
#
# For instance `T[2]` = 1·2 + 2·4 + 1·3 = 13. Now cut the row in two. The first tile has the scores 0 to 2, the second has 3 to 5, and neither knows the other.
#
# **Predict.** Each tile convolves what it has, and takes zeros for what it has not. Which of the six `T` come out wrong, and as what? `___`


# %%
def convolve_row(row, taps=(1, 2, 1)):
    """T of a row of numbers, zeros beyond its ends."""
    padded = [0, *row, 0]
    return [
        sum(tap * padded[j + b] for b, tap in enumerate(taps)) for j in range(len(row))
    ]


row = [1, 2, 4, 3, 1, 2]
print("in one piece    ", convolve_row(row))
print("two tiles       ", convolve_row(row[:3]) + convolve_row(row[3:]))
print("with a neighbour", convolve_row(row[:4])[:3] + convolve_row(row[2:])[1:])

# %% [markdown]
# `T[2]` loses 1·3 and becomes 10; `T[3]` loses 1·4 and becomes 7. Zeros are right at the ends of the sequence. At the end of a *tile* they are not: there are numbers, in another tile. (A published pseudo-code for
# decoding makes just this mistake. We come to decoding in lesson 14.)
#
# The third line is right. There each tile **loads** one number more on the side where it has a neighbour, convolves, and keeps only what it **owns**: `T` from 0 to 2, and from 3 to 5. The number at the edge has no right `T`
# of its own, as its other neighbour is missing; but its owner is the other tile, and that one has all it needs. What a tile loads and does not own is called its **halo**.
#
# Two things to remember. A halo is loaded *twice*, and what is computed of it is computed twice. And nobody may *count* it twice: each `T` belongs to one tile.
#
# ## From a row to a matrix
#
# In lesson 09, `T[i, j]` reaches the rows i − P_q to i and the columns j − P_k to j + P_r of `S0`, with
#
# $$P_q = c_q - 1, \qquad P_k = \lfloor (c_k - 1)/2 \rfloor, \qquad P_r = c_k - 1 - P_k .$$
#
# Take 3 × 4 taps: P_q = 2, P_k = 1, P_r = 2. A tile owns three rows, from row 4 on, and three columns, from column 6 on.
#
# **On paper.** `T[4, 6]`, its first entry, reaches the rows `___` to `___` and the columns `___` to `___`. Its last entry is `T[6, 8]`. How many scores does the tile load, to own 9?
#
# <details><summary>Answer</summary>
#
# `T[4, 6]` reaches the rows 2 to 4 and the columns 5 to 8, `T[6, 8]` the rows 4 to 6 and the columns 7 to 10. Together: rows 2 to 6, columns 5 to 10, that is 5 × 6 = 30 scores.
# </details>
#
# ### Exercise 10.1 · to_load · about three lines
#
# A tile owns `rows` rows from row `i0` on and `columns` columns from column `j0` on. Return `(top, bottom, left, right)`: it must load the rows `top`, …, `bottom − 1` and the columns `left`, …, `right − 1`, and no more. At the borders of
# the sequence these may be below 0, or N and above. Leave them so: whoever loads puts zeros there. All four are whole numbers.
#
# <details><summary>Hint 1: the rows</summary>
#
# The first owned row reaches up to `i0 - P_q`. The last owned row, `i0 + rows - 1`, reaches down to itself: no query looks at a later one.
# </details>
#
# <details><summary>Hint 2: the columns</summary>
#
# The first owned column reaches `P_k` to the left, the last one, `j0 + columns - 1`, reaches `P_r` to the right. For an even `c_k` the two are not the same.
# </details>


# %% tags=["exercise"]
def to_load(i0, j0, rows, columns, c_q, c_k):
    """(top, bottom, left, right) of the scores to load for a tile that owns rows
    [i0, i0 + rows) and columns [j0, j0 + columns)."""
    # BEGIN SOLUTION 10.1
    left = (c_k - 1) // 2
    return i0 - (c_q - 1), i0 + rows, j0 - left, j0 + columns + c_k - 1 - left
    # END SOLUTION


# %% tags=["check"]
check.ex10_1(to_load)

# %% [markdown]
# ### Your tile, in a picture
#
# The next cell draws what your function says, for 12 tokens and 3 × 4 taps; a tile loads 7 × 7. **Dark** is what the tile owns, **pale** what it loads besides, **green** what earlier tiles own and this one does not load. The stairs are the diagonal: a query sees the keys to the left of them. A `0` stands where zero is loaded in place of a score: outside
# the sequence, or where the key comes after the query of its row. Move the slider from tile to tile. (The cell only draws, there is no need to read it.)


# %% tags=["uses-exercise"] jupyter={"source_hidden": true}
def tiles_visited(n, rows, columns):
    """(i0, j0, rows, columns) of each tile, in order:
    none that lies above the diagonal, short ones at the end."""
    return [
        (i0, j0, min(rows, n - i0), min(columns, n - j0))
        for i0 in range(0, n, rows)
        for j0 in range(0, min(i0 + rows, n), columns)
    ]


def draw_tiles(n, c_q, c_k, loaded):
    """A picture with a step for each tile of n tokens;
    tiles load (rows, columns) = loaded."""
    side, (height, width) = 22, loaded
    halo = halo_of(torch.empty(c_q, c_k))
    lines, places = range(-halo.above, n), range(-halo.left, n + halo.right)
    scene = Scene(
        f"{n} tokens, {c_q} × {c_k} taps, tiles that load {height} × {width}",
        76 + side * len(places),
        70 + side * len(lines),
        adds=False,
    )
    scene.legend(
        6,
        ("global-load", "owned"),
        ("load", "loaded, not owned"),
        ("active", "owned by an earlier tile"),
        ("empty", "not loaded"),
    )
    scene.cells = [
        (66 + side * (j + halo.left), 56 + side * (i + halo.above), side - 2, side - 2)
        for i in lines
        for j in places
    ]
    scene.labels += [
        (58, 56 + side * (i + halo.above) + 14, f"query {i}", "end") for i in range(n)
    ]
    scene.labels += [
        (58, 48, "key", "end"),
        *((66 + side * (j + halo.left) + 10, 48, j, "middle") for j in range(n)),
    ]
    for i in range(n):  # the diagonal, as stairs between what is seen and the future
        x, y = 64 + side * (i + halo.left), 54 + side * (i + halo.above)
        scene.boxes += [("line", x, y, side, 2), ("line", x + side, y, 2, side)]
    before = set()
    for i0, j0, rows, columns in tiles_visited(n, *owned(loaded, halo)):
        top, bottom, left, right = to_load(i0, j0, rows, columns, c_q, c_k)
        words = (
            f"rows {top} to {bottom - 1}, columns {left} to {right - 1}: "
            f"{(bottom - top) * (right - left)} loaded, {rows * columns} owned"
        )
        looks = {cell: (cell, "active", "") for cell in before}
        for i in range(top, bottom):
            for j in range(left, right):
                mine = i0 <= i < i0 + rows and j0 <= j < j0 + columns
                zero = not (0 <= i < n and 0 <= j <= i)
                cell = (i + halo.above) * len(places) + j + halo.left
                look = "global-load" if mine else "load"
                looks[cell] = cell, look, "0" if zero else ""
                if mine:
                    before.add(cell)
        looks = list(looks.values())
        scene.steps.append((words, looks))
    return scene.view()


draw_tiles(12, 3, 4, (7, 7))

# %% [markdown]
# A tile that loads 7 × 7 owns 5 × 4: it loads P_q = 2 rows above what it owns, and P_k + P_r = 3 columns at its sides. At the right and at the bottom of the sequence there is less to own.
#
# Tiles that lie wholly above the diagonal are not visited: no query of theirs sees a key of theirs. Of the tiles that are visited, every score on or below the diagonal is dark in **exactly one**.
#
# **Predict.** How often is the score of query 4 and key 3 loaded? And which scores are loaded once only?

# %% tags=["uses-exercise"]
times = np.zeros((12, 12), dtype=int)
for tile in tiles_visited(12, 5, 4):
    top, bottom, left, right = to_load(*tile, 3, 4)
    times[max(top, 0) : bottom, max(left, 0) : right] += 1
for line in times:
    print(" ".join(map(str, line)))

# %% [markdown]
# Query 4 is an owned row of the first tiles and a halo row of the next ones; key 3 is owned by one tile and in the halo of the tile to its right. So 2 · 2 = 4 times. Scores that no other tile reaches are loaded once.
#
# ### How much of a tile is owned?
#
# On a GPU it is the other way round: how much a block can **load** is limited: the tile has to fit into the shared memory and the registers of a streaming multiprocessor. What it owns is what the halo leaves over.
#
# **Predict.** With c_q = 3, c_k = 5 and a 16 × 16 tile, how many of the 256 loaded scores are owned? `___` And with 15 × 15 taps? `___`

# %%
for taps in [(1, 1), (3, 5), (7, 7), (6, 11), (15, 15)]:
    halo = halo_of(torch.empty(taps))
    rows, columns = owned((16, 16), halo)
    print(
        f"{taps[0]:2} × {taps[1]:2} taps: {rows:2} × {columns:2} = {rows * columns:3} "
        f"of 256 owned, {256 / (rows * columns):4.1f} computed for each owned"
    )

# %% [markdown]
# 14 × 12 = 168; the other 88 are computed again by a neighbour. With 15 × 15 taps a tile loads 256 scores to own four. It is still right, and it is a waste; larger tiles are the remedy, and we shall see how large.
#
# ## Load, then mask, then convolve
#
# Loading from outside the sequence must give zeros, never numbers of another array. `kernels/reference/conv_tiled.py` has a function for it, which counts what it reads:

# %%
print(inspect.getsource(load_rows))
numbers = torch.arange(1.0, 6.0)[:, None]
for first, count in [(-2, 4), (3, 4), (7, 2)]:
    print(
        f"rows {first} to {first + count - 1} of 1 2 3 4 5:",
        load_rows(numbers, first, count, Traffic()).flatten().tolist(),
    )

# %% [markdown]
# In plain Python `numbers[-2:2]` would be empty, and `numbers[-2]` is the last row but one. In a Numba kernel, `q[-2]` counts from the end too; in CUDA C++ it is whatever lies before `q` in memory. All of them are wrong.
#
# We load rows of `Q` and `K`, not scores. A row of zeros in `Q` makes a row of zeros in `QKᵀ`. So the zeros outside the sequence come by themselves. The zeros **above the diagonal** do not: these scores exist, and are
# not 0. They have to be masked. And the mask must ask which query and which key the loaded row and column *are*:
#
# **Predict.** The tile owns from row 4 and column 6 on, with 3 × 4 taps. Which query is row 0 of the *loaded* scores? `___` Which key is column 0? `___`
#
# <details><summary>Answer</summary>
#
# Query 4 − P_q = 2 and key 6 − P_k = 5. After the convolution the halo is gone: row 0 of `T` is query 4, and column 0 is key 6. So the two masks begin at different places.
# </details>
#
# ### Exercise 10.2 · convolved_tile · about six lines
#
# Write `convolved_tile(q_tile, k_tile, w, i0, j0)`: the part of `T` that the tile owns, of shape (rows, columns). The tiles themselves stay as they are, and no score outside them is computed.
#
# | name | shape | |
# |---|---|---|
# | `q_tile` | (P_q + rows, d) | the queries from i0 − P_q on, rows of zeros outside the sequence |
# | `k_tile` | (P_k + columns + P_r, d) | the keys from j0 − P_k on, likewise |
# | `w` | (c_q, c_k) | the taps |
#
# Scores divided by √d, the mask with 0, the convolution, the mask with −∞. `later(rows, columns, i0, j0)`, below, is the mask of a tile whose first row is query i0 and whose first column is key j0: True where the key comes after the query.
#
# <details><summary>Hint 1: the first mask</summary>
#
# `later(len(q_tile), len(k_tile), i0 - P_q, j0 - P_k)`, for `masked_fill(…, 0.0)`.
# </details>
#
# <details><summary>Hint 2: the convolution</summary>
#
# In lesson 09 you padded with zeros. Here the neighbours are loaded, so there is nothing to pad: `conv2d(s0[None, None], w[None, None])[0, 0]` lays the taps where they fit wholly inside, and that is just what the tile owns.
# </details>
#
# <details><summary>Hint 3: the second mask</summary>
#
# The result `t` has as many rows and columns as the tile owns: `later(*t.shape, i0, j0)`.
# </details>


# %% tags=["exercise"]
def later(rows, columns, i0, j0):
    """(rows, columns),
    True where the key j0 + column comes after the query i0 + row."""
    return torch.arange(columns) + j0 > torch.arange(rows)[:, None] + i0


def convolved_tile(q_tile, k_tile, w, i0, j0):
    """T of the rows from i0 and the columns from j0 on that this tile owns;
    q_tile and k_tile come with their halo."""
    c_q, c_k = w.shape
    # BEGIN SOLUTION 10.2
    s = q_tile @ k_tile.T / math.sqrt(q_tile.shape[1])
    future = later(*s.shape, i0 - (c_q - 1), j0 - (c_k - 1) // 2)
    t = conv2d(s.masked_fill(future, 0.0)[None, None], w[None, None])[0, 0]
    return t.masked_fill(later(*t.shape, i0, j0), -math.inf)
    # END SOLUTION


# %% tags=["check"]
check.ex10_2(convolved_tile)

# %% [markdown]
# ## The loop
#
# All that is left is lesson 02, queries outer: for each tile of rows, start a state `m, l, o`; for each tile of keys, compute `T` and let the state absorb it; at the end divide by `l` and store. The state is that of the **owned** rows, and
# it stays on the chip. In comparison with lesson 02:
#
# | | loads | because |
# |---|---|---|
# | `Q` | owned rows and P_q above, once for each tile of rows | the convolution reaches up |
# | `K` | owned columns, P_k to the left, P_r to the right | the convolution reaches to both sides |
# | `V` | owned columns only | the softmax and the product with `V` know nothing of the convolution |
#
# `update(state, scores, values)` is lesson 02's, with one more precaution, which we come to below. And besides `O` we store one number per row, `L = m + log l`: the logarithm of the sum of all exp(T) in the row. The backward
# pass of lesson 12 will ask for it.
#
# ### Exercise 10.3 · forward · about fifteen lines
#
# Write the loops of `forward(q, k, v, w, loaded, traffic)`. `loaded` is (rows, columns) of the scores that a tile loads. Use
#
# - `to_load` and `convolved_tile`, your own;
# - `load_rows(array, first, count, traffic)`, which gives zeros outside. Load `Q` once for each tile of rows. The few taps `w` are there already, do not count them;
# - `nothing_read(count, d, like=q)` and `update(state, t, v_tile)`;
# - `traffic.store(out, slice(i0, i0 + count), …)` for the output, and likewise for `log_sum`.
#
# Do not visit a tile of keys that begins after the last row. From one tile of keys to the next keep m, l and o, no scores and no values; store each output tile when it is ready. The check hands over `q`, `k` and `v` as arrays in global memory, which can be loaded from and stored to, and
# nothing else; and its scores reach ±1000.
#
# <details><summary>Hint 1: the last tile of rows</summary>
#
# It owns `count = min(rows, n - i0)` rows. Use `count`, and not `rows`, for everything inside the loop.
# </details>
#
# <details><summary>Hint 2: the loop over keys</summary>
#
# `for j0 in range(0, i0 + count, columns)`. It ends at the diagonal, and i0 + count is never more than n. The last tile owns `min(columns, n - j0)` columns.
# </details>
#
# <details><summary>Hint 3: what goes where?</summary>
#
# Before the inner loop: `top, bottom` of `to_load`, the Q tile, a new state. Inside: `left, right` of `to_load`, the K tile, the V tile `load_rows(v, j0, width, traffic)`, `update`. After it: store `o / l`, and `(m + torch.log(l))[:, 0]`: `m` and `l` have the shape (count, 1).
# </details>


# %% tags=["exercise"]
def forward(q, k, v, w, loaded, traffic):
    """(O, L), (N, d) and (N,): causal convolutional attention of one head,
    in tiles that load (rows, columns) = loaded of the scores."""
    n, d = q.shape
    rows, columns = owned(loaded, halo_of(w))
    out, log_sum = torch.empty_like(q), q.new_empty(n)
    # BEGIN SOLUTION 10.3
    for i0 in range(0, n, rows):
        count = min(rows, n - i0)
        top, bottom, _, _ = to_load(i0, 0, count, columns, *w.shape)
        q_tile = load_rows(q, top, bottom - top, traffic)
        state = nothing_read(count, d, like=q)
        for j0 in range(0, i0 + count, columns):
            width = min(columns, n - j0)
            _, _, left, right = to_load(i0, j0, count, width, *w.shape)
            k_tile = load_rows(k, left, right - left, traffic)
            v_tile = load_rows(v, j0, width, traffic)
            state = update(state, convolved_tile(q_tile, k_tile, w, i0, j0), v_tile)
        m, l, o = state
        traffic.store(out, slice(i0, i0 + count), o / l)
        traffic.store(log_sum, slice(i0, i0 + count), (m + torch.log(l))[:, 0])
    # END SOLUTION
    return out, log_sum


# %% tags=["check"]
check.ex10_3(forward)

# %% [markdown]
# The page of lesson 09, four tokens and 2 × 3 taps, in tiles that load 3 × 4 and so own 2 × 2. On paper the output was 4, 8, 6, 7 (with powers of 2 in place of e, hence the ln 2):

# %% tags=["uses-exercise"]
page_s = torch.tensor([[1.0, 3, 2, 4], [2, 1, 5, 0], [0, 1, 1, 6], [1, 2, 3, 2]])
page_w = torch.tensor([[1.0, 0, 2], [0, 1, -1]])
page_v = torch.tensor([[4.0, 0, 0, 0], [10, 0, 0, 0], [3, 0, 0, 0], [9, 0, 0, 0]])
page_o, page_l = forward(
    2 * math.log(2) * page_s, torch.eye(4), page_v, page_w, (3, 4), Traffic()
)
print("out", [f"{number:.2f}" for number in page_o[:, 0].tolist()])

# %% [markdown]
# ## What the halo costs
#
# The standard way has three steps: the masked scores, the convolution with its mask and softmax, the product with `V`. So two N×N matrices go out and come in again, `S0` and `P`, and with `T` a third one if the softmax is a step of its own, as it
# is in PyTorch: **6N² + 4Nd** numbers. (Lesson 09 counted 14N²: there each mask and each padding was a step.) Against that, the counter while your `forward` runs, with N = 256 and d = 64:
#
# **Predict.** With 15 × 15 taps and tiles that load 16 × 16: do the tiles move less than the standard, or more?

# %%
N, d = 256, 64
Q, K, V = torch.randn(3, N, d)
plain = 6 * N * N + 4 * N * d
SIZES, TAPS = [16, 24, 32, 48, 64], [(1, 1), (7, 7), (15, 15)]


def moved(taps, size):
    """Numbers moved by your forward with so many taps and tiles that load
    size × size."""
    traffic = Traffic()
    forward(Q, K, V, torch.randn(taps) / 15, (size, size), traffic)
    return traffic.moved


# %% tags=["uses-exercise"]
print(f"{'standard':18}{plain:>12,} numbers")
for taps in TAPS:
    for size in (16, 64):
        count = moved(taps, size)
        print(
            f"{taps[0]:2} × {taps[1]:2}, {size} × {size} {count:13,} numbers: "
            f"{'less' if count < plain else 'MORE'} than standard"
        )

# %% [markdown]
# Tiles that own two rows fetch all of `K` anew for every two queries, and each time eight columns for every one that they own. That is lesson 02's "right is not fast" once more. The next figure shows both prices of the halo over the size of
# the tile: on the left the numbers moved, on the right the arithmetic, the part of the computed scores that is owned.
#
# **Predict.** With 15 × 15 taps, how large must a square tile be, so that at least half of what it loads is owned? `___`

# %% tags=["uses-exercise"]
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
for taps, colour, line in zip(TAPS, (BLUE, GREEN, ORANGE), ("o-", "^--", "s:")):
    label, halo = f"{taps[0]} × {taps[1]} taps", halo_of(torch.empty(taps))
    left.loglog(
        SIZES,
        [moved(taps, size) / plain for size in progress_bar(SIZES, desc=label)],
        line,
        color=colour,
        label=label,
    )
    right.semilogx(
        SIZES,
        [math.prod(owned((size, size), halo)) / size**2 for size in SIZES],
        line,
        color=colour,
        label=label,
    )
left.axhline(1, color=RED)
left.text(48, 1.1, "standard", color=RED)
left.set(ylabel="numbers moved, standard = 1", title="N = 256, d = 64, counted")
right.axhline(0.5, color="grey", linewidth=0.8)
right.set(
    ylabel="owned part of the loaded scores",
    ylim=(0, 1.05),
    title="scores owned / scores computed",
)
for axes in (left, right):
    axes.set(xlabel="rows and columns loaded")
    axes.set_xticks(SIZES, SIZES)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
right.legend()
show_figure(
    figure,
    "two plots over the rows and columns that a tile loads, 16 to 64. "
    "Left, the numbers moved, the standard algorithm being 1: all three lines fall. "
    "1 × 1 taps are below the standard from the start, 7 × 7 taps from 24 on, "
    "15 × 15 taps from 32 on, after 21 times the standard at 16. Right, the owned "
    "part of the loaded scores: all of them for 1 × 1 taps; for 7 × 7 taps 39 % at 16 "
    "and 82 % at 64; for 15 × 15 taps 2 % at 16, one half at 48, 61 % at 64.",
)

# %% [markdown]
# (B − 14)² ≥ B²/2 means B ≥ 14 / (1 − √½) = 47.8. So 48 × 48 tiles are the least for 15 × 15 taps, if half of the arithmetic shall be of use. With 7 × 7 taps, 21 × 21 would do.
#
# Causal tiles visit only about half of all keys, and the standard as we count it goes through all of them. That is a factor of 2 that has nothing to do with the halo; look at the line for 1 × 1 taps to see it.
#
# ## Bug hunt: the algorithm as it was published (optional, 30 minutes)
#
# The published pseudo-code whose first fault you met in lesson 09 calls this forward pass "Algorithm 1". It has the halo, and the right sizes of tiles (for odd `c_k`). But who writes it as code, line by line, finds five faults. Here is its course, in short:
#
# | | step of Algorithm 1 |
# |---|---|
# | 1 | `O = 0`, `l = 1` and `m = −∞`; `O` is in global memory |
# | 2 | for each tile of rows, in parallel, for each tile of keys, all of them: load `Q`, `K`, `V`, each with its halo |
# | 3 | scores of the whole tile, convolution of the whole tile, "causal masking" |
# | 4 | of the whole tile: its maximum m̃, its exponentials P̃ = exp(T − m̃), their sum l̃ |
# | 5 | new m = max(m, m̃), α = exp(m − new m), β = exp(m̃ − new m), l = α·l + β·l̃ |
# | 6 | read `O` of all loaded rows, `O` = α·O + β·P̃·V, write the owned rows back |
# | 7 | at the end: `O` / l; write `m` and `l` |
#
# **Guess before you go on.** Which of the steps would you object to? Take a minute. Three of them give wrong numbers, one gives right numbers and is still wrong, and one is harmless for a reason that one should know.
#
# To try them one at a time, `course/check/lesson10.py` has a loop like yours, into which one can put different ways to absorb a tile. This is the right one. (`tile.s0` are the loaded scores after the first mask, `tile.s` those before it;
# `inside` is the convolution where the taps fit, `hide` is a mask; `tile.v` are the values with the halo, `tile.v_owned` those without.)

# %%
print(inspect.getsource(lesson10.faultless))

# %% [markdown]
# **1. No zero-mask** (step 3). You know it from lesson 09:

# %%
print(inspect.getsource(lesson10.no_zero_mask))

# %% [markdown]
# **2. The halo is counted** (steps 2, 4 and 6). `V` is loaded with its halo, and the sums run over the whole tile:

# %%
print(inspect.getsource(lesson10.halo_counted))

# %% [markdown]
# **3. A maximum of the tile's own** (steps 4 and 5):

# %%
print(inspect.getsource(lesson10.tile_maximum))

# %% [markdown]
# The formulas of the third are those of the merge in lesson 01. Your tool is a comparison, with your own `forward` as the measure.
#
# **Guess before you run.** Five tests: the tokens, the taps, the tile. Which of the three faults does each of them find?
#
# | test | no zero-mask | halo counted | tile's maximum |
# |---|---|---|---|
# | 16 tokens, 7 × 7 taps, 32 × 32 loaded | | | |
# | 26 tokens, 7 × 7 taps, 32 × 32 loaded | | | |
# | 27 tokens, 7 × 7 taps, 32 × 32 loaded | | | |
# | 64 tokens, 3 × 3 taps, 16 × 16 loaded | | | |
# | 20 tokens, 3 × 5 taps, 16 × 16 loaded | | | |


# %% tags=["uses-exercise"]
def verdict(got, wanted):
    """What a comparison says, in a word."""
    difference = (got - wanted).abs().max().item()
    return (
        "NaN" if math.isnan(difference) else "right" if difference <= 1e-9 else "WRONG"
    )


print(f"{'test':34}", "".join(f"{name:16}" for name in ["faultless", *lesson10.FAULTY]))
for n, c_q, c_k, size in [
    (16, 7, 7, 32),
    (26, 7, 7, 32),
    (27, 7, 7, 32),
    (64, 3, 3, 16),
    (20, 3, 5, 16),
]:
    q, k, v = torch.randn(3, n, 8)
    w = torch.randn(c_q, c_k) / math.sqrt(c_q * c_k)
    wanted, _ = forward(q, k, v, w, (size, size), Traffic())
    ways = [lesson10.faultless, *lesson10.FAULTY.values()]
    words = [
        verdict(lesson10.in_tiles(way, q, k, v, w, (size, size)), wanted)
        for way in ways
    ]
    print(
        f"{f'{n} tokens, {c_q} × {c_k}, {size} × {size} loaded':34}",
        "".join(f"{word:16}" for word in words),
    )

# %% [markdown]
# <details><summary>1. What the zero-mask does here</summary>
#
# It is as in lesson 09: without it future scores are added to entries that count. A tile makes no difference to that, so every test with more than one tap finds it. (With identity taps none would.)
# </details>
#
# <details><summary>2. Where does 26 come from?</summary>
#
# A tile that loads 32 columns, with 7 columns of taps, owns 32 − 6 = 26. Up to 26 tokens there is one tile of keys. Its halo holds nothing but keys that do not exist. From 27 tokens on the halo holds key 26, which the next tile counts
# again. And it is counted with a wrong score: at the edge of the tile the neighbours are missing.
#
# There is CUDA code beside this algorithm, with 32 columns in a tile. On an H200, with 7 × 7 taps in bfloat16, it is right within bfloat16's rounding (two to three digits) up to 26 tokens, and off by more than the size of the numbers themselves for every length from 27 on that was
# tried. (The reason is another one there: it reads shared memory that nobody has written. The border is the same.) Its own tests stop at 16 tokens.
# </details>
#
# <details><summary>3. Where does NaN come from, and why not from the other tests?</summary>
#
# From a row that sees no key of a tile while other rows of the same tile do. With 3 × 5 taps a tile owns 14 rows and 12 columns. The second tile of keys begins at key 12; query 13 sees it, so the tile is visited. Query 5 sees nothing of it: its `T` are all −∞,
# its m̃ is −∞, and exp(−∞ − (−∞)) is NaN. Then β = exp(−∞ − m) = 0, but 0 · NaN is NaN, and a NaN in the state stays there.
#
# With square taps and square tiles the tile owns as many rows as columns. On the diagonal every row sees at least the first key, and above the diagonal our loop does not go. So the fault is there and cannot be seen. (Step 2 of
# Algorithm 1 goes through *all* tiles of keys. There every row is NaN that does not reach the last of them.)
#
# The cure is one line. `weight(score, maximum)` of `kernels/reference/tiled.py` is exp(score − maximum), but 0 where the score is −∞. Or take the maximum with the old `m` *before* the exponentials, as your `update` of lesson 02 did: `m` is finite
# after the first tile of keys, as every query sees key 0. That works for as long as someone starts with key 0.
# </details>

# %% [markdown]
# ### Exercise 10.4 · two_tests · two lines
#
# A test is `(tokens, c_q, c_k, rows loaded, columns loaded)`, five whole numbers. The check runs it with random numbers. Give two:
#
# - `sharp`: at most **3** tokens, and it finds all three faults;
# - `blind`: at least **16** tokens and at least 3 × 3 taps, and it finds only **one** of them.
#
# Large tests are not better than small ones. Remember what a tile owns: rows loaded − P_q, and columns loaded − P_k − P_r.
#
# <details><summary>Hint 1: two tiles of keys with two tokens</summary>
#
# Let a tile own one column. Then it loads 1 + P_k + P_r.
# </details>
#
# <details><summary>Hint 2: a row that sees nothing</summary>
#
# Let a tile own two rows, 0 and 1. Key 1 begins a tile of its own. Query 0 does not see it, query 1 does.
# </details>
#
# <details><summary>Hint 3: a future score that matters</summary>
#
# Row 0 of the output is right whatever happens, as it has one key. In row 1 the future can come in through the row above: `T[1, 1]` reaches the score of query 0 and key 1 if there are two rows of taps.
# </details>


# %% tags=["exercise"]
def two_tests():
    """(sharp, blind), each (tokens, c_q, c_k, rows loaded, columns loaded)."""
    # BEGIN SOLUTION 10.4
    sharp = (2, 2, 2, 3, 2)
    blind = (16, 7, 7, 32, 32)
    return sharp, blind
    # END SOLUTION


# %% tags=["check"]
check.ex10_4(two_tests)

# %% [markdown]
# ### 4. `O` in global memory
#
# Step 6 gives right numbers. Let us take away everything but this step: one number per row in place of d, no rescaling, and `p_v[tile, r]` for what a tile of keys adds to row r. One thread for each *loaded* row; a block owns all of its rows but the first `above`,
# which are its halo.


# %%
def o_in_memory(p_v, o, above):
    """o[r] = the sum of p_v[:, r]; p_v: (tiles, rows); o comes in as zeros.
    A block's first `above` threads are its halo rows."""
    owned_rows = cuda.blockDim.x - above
    r = cuda.blockIdx.x * owned_rows - above + cuda.threadIdx.x
    for tile in range(p_v.shape[0]):
        if 0 <= r < o.size:
            total = o[r] + p_v[tile, r]  # all loaded rows are read
            if cuda.threadIdx.x >= above:
                o[r] = total  # the owned rows are written


# %% [markdown]
# **Guess before you run.** Three blocks of six threads, two rows of halo, ten rows in all, twenty seeds for the order of the threads:
#
# - ( ) always right, and `sim` finds nothing
# - ( ) always right, and `sim` finds something
# - ( ) sometimes wrong

# %%
p_v = np.arange(30, dtype=float32).reshape(3, 10)


def try_with_seeds(kernel):
    """Twenty launches:
    how often the sums were right, and what `sim` found in the first."""
    reports, right = [], 0
    for seed in range(20):
        o = np.zeros(10, dtype=float32)
        reports.append(
            simulate(kernel, seed=seed, on_finding="report")[3, 6](p_v, o, 2)
        )
        right += np.array_equal(o, p_v.sum(axis=0))
    print(
        f"right {right} of 20 times, "
        f"a finding {sum(bool(report.findings) for report in reports)} of 20 times"
    )
    for finding in reports[0].findings:
        print(finding.message)


try_with_seeds(o_in_memory)

# %% [markdown]
# Always right, and always a race. Row 2 is the first row of the halo of block 1, and block 0 owns it. While block 0 writes `o[2]`, block 1 reads it, adds something, and throws the sum away. As nobody uses the value, it does no harm.
#
# Is it a mistake then? Yes, for three reasons:
#
# - It lives by one `if`. Forget it, and both blocks add to the row. Nothing in the algorithm would tell you.
# - What a program with a race does is not defined. A compiler may rely on there being none.
# - It is slow. `O` is read and written once for **every** tile of keys.
#
# **Predict.** N = 4096, d = 64, 7 × 7 taps, tiles that load 64 × 64, all tiles visited. `K` and `V` are read once for each tile of rows, `O` is read and written once for each tile of keys. How do the two compare?

# %%
n, d, load = 4096, 64, 64
rows, columns = owned((load, load), halo_of(torch.empty(7, 7)))
for_k_and_v = math.ceil(n / rows) * n * d * (load / columns + 1)
for_o = math.ceil(n / columns) * n * d * (load / rows + 1)
print(
    f"tiles that own {rows} × {columns}: "
    f"K and V {for_k_and_v / 1e6:.0f} million numbers, O {for_o / 1e6:.0f} million"
)

# %% [markdown]
# As much again (if a tile is square; the halo outside the sequence is not taken off here). The remedy is what you wrote: the state of the owned rows stays on the chip, nobody needs an `O` of halo rows at all, and each row is written once.


# %%
def o_on_chip(p_v, o, above):
    """As o_in_memory, but the sum stays with its thread,
    and the halo rows have none."""
    owned_rows = cuda.blockDim.x - above
    r = cuda.blockIdx.x * owned_rows - above + cuda.threadIdx.x
    if cuda.threadIdx.x >= above and r < o.size:
        total = float32(0)
        for tile in range(p_v.shape[0]):
            total += p_v[tile, r]
        o[r] = total


try_with_seeds(o_on_chip)

# %% [markdown]
# ### 5. `l` starts at 1
#
# Nothing has been read, and the sum is 1 already. **Guess before you run:** by how much is the output wrong?

# %%
scores, values = torch.randn(4, 6), torch.randn(6, 3)
wanted = torch.softmax(scores, dim=1) @ values


for m_start, l_start in [(-math.inf, 0.0), (-math.inf, 1.0), (0.0, 0.0), (0.0, 1.0)]:
    start = State(
        torch.full((4, 1), m_start), torch.full((4, 1), l_start), torch.zeros(4, 3)
    )
    m, l, o = update(start, scores, values)
    print(
        f"m starts at {m_start:4}, l at {l_start:.0f}: ",
        "right" if torch.allclose(o / l, wanted) else "WRONG",
    )

# %% [markdown]
# Not at all. With the first key `l` is multiplied by exp(−∞ − m) = 0, whatever it was. So no comparison will ever find this one; only reading does. It turns into a mistake as soon as `m` starts at another number, as the notebook of lesson 05 does.
# (With `l = 0` it is right even so, as long as no scores are far below 0: that was lesson 05.) In code that others will change, let each line be right by itself, and not by the grace of another one.
#
# ### And `m` and `l`, or `L`?
#
# Step 7 writes two numbers per row, `m` and `l`, and its array for `l` is called `L`. The backward pass of the same text reads one array, called `L` too, and means m + log l by it. Here are the probabilities of each row, added up:

# %% tags=["uses-exercise"]
q, k, v = torch.randn(3, 20, 8)
w = torch.randn(3, 5) / 4
_, L = forward(q, k, v, w, (8, 8), Traffic())
t = reference.conv_scores(q[None, None], k[None, None], w[None])[0, 0]
m = t.amax(dim=1)
l = torch.exp(t - m[:, None]).sum(dim=1)
ones = torch.ones(20)
print(
    "exp(T - L), L = m + log l:   each row adds up to 1:",
    torch.allclose(torch.exp(t - L[:, None]).sum(dim=1), ones),
)
print(
    "exp(T - l):                  each row adds up to 1:",
    torch.allclose(torch.exp(t - l[:, None]).sum(dim=1), ones),
)

# %% [markdown]
# One number a row is enough: exp(T − L) = exp(T − m) / l. A name that means two things in one text is a bug that waits for its reader.
#
# ## The package's version
#
# This is `forward` of `kernels/reference/conv_tiled.py`. It can do without the causal mask too, and it loads its Q tile anew with each tile of keys, as Algorithm 1 does; the rest you have written yourself.

# %%
print(inspect.getsource(conv_tiled.forward))

# %% [markdown]
# ## Validate
#
# Float64; taps odd, even, oblong and larger than N; tiles that own one row and tiles larger than the sequence. Each stage against the one before.


# %%
def validate(stage, against, found, wanted, tolerance=1e-12):
    """One row of the table. NaN fails."""
    agrees = all(
        (mine - theirs).abs().max().item() <= tolerance
        for mine, theirs in zip(found, wanted, strict=True)
    )
    print(
        f"{stage:26}  {against:40}  {'below' if agrees else 'ABOVE'} {tolerance:.0e}   "
        f"{'✓' if agrees else '✗'}"
    )


def whole(function, q, k, v, w):
    """A function of (B, H, N, d) and taps (H, c_q, c_k),
    called with one batch and one head."""
    return function(q[None, None], k[None, None], v[None, None], w[None])[0, 0]


shapes = [
    (1, 1, 1),
    (1, 3, 3),
    (5, 7, 11),
    (13, 2, 4),
    (33, 3, 3),
    (40, 3, 5),
    (50, 6, 11),
    (50, 15, 14),
    (29, 1, 6),
    (29, 6, 1),
]
cases = [
    (
        *torch.randn(3, n, 8),
        torch.randn(c_q, c_k) / math.sqrt(c_q * c_k),
        (c_q - 1 + rows, c_k - 1 + columns),
    )
    for n, c_q, c_k in shapes
    for rows, columns in [(1, 3), (4, 4), (7, 5), (64, 64)]
]

# %% tags=["uses-exercise"]
by_tiles = [forward(*case, Traffic()) for case in progress_bar(cases, desc="shapes")]
outputs, log_sums = [o for o, _ in by_tiles], [L for _, L in by_tiles]
identity = [
    (q, k, v, reference.identity_taps(1, *w.shape, dtype=q.dtype)[0], loaded)
    for q, k, v, w, loaded in cases
]
ordinary = [forward(*case, Traffic())[0] for case in identity]

print(f"{len(cases)} cases\n{'stage':26}  {'against':40}  largest difference")
validate(
    "O in tiles (yours)",
    "kernels.reference.conv_attention",
    outputs,
    [whole(reference.conv_attention, *case[:4]) for case in cases],
)
validate(
    "L in tiles (yours)",
    "logsumexp of kernels.reference.conv_scores",
    log_sums,
    [
        whole(lambda q, k, v, w: reference.conv_scores(q, k, w), *case[:4]).logsumexp(
            dim=1
        )
        for case in cases
    ],
)
validate(
    "O in tiles (yours)",
    "kernels.reference.conv_tiled.forward",
    outputs,
    [conv_tiled.forward(*case, Traffic())[0] for case in cases],
)
validate(
    "identity taps",
    "tiles of lesson 02, causal",
    ordinary,
    [queries_outer(*case[:3], 4, 3, Traffic(), causal=True) for case in cases],
)
validate(
    "identity taps",
    "scaled_dot_product_attention",
    ordinary,
    [scaled_dot_product_attention(*case[:3], is_causal=True) for case in cases],
)

# %% [markdown]
# ### On a real GPU, if there is one
#
# The package's tiles are plain PyTorch and run wherever their tensors are, slowly: each small step is a kernel of its own. The cell prints the same line with and without a GPU.

# %%
device = "cuda" if torch.cuda.is_available() else "cpu"
q, k, v, w, loaded = [
    x.to(device) if isinstance(x, torch.Tensor) else x for x in cases[-6]
]
difference = conv_tiled.forward(q, k, v, w, loaded, Traffic())[0] - whole(
    reference.conv_attention, q, k, v, w
)
print(
    "tiles and reference, on this device, differ by less than 1e-10:",
    (difference.abs().max() <= 1e-10).item(),
)

# %% [markdown]
# ## In three lines
#
# - A tile owns T and loads S0: P_q rows above, P_k columns to the left and P_r to the right besides; `V`, the sums and the output belong to what is owned.
# - The halo is paid twice, in numbers moved and in scores computed anew; larger tiles make it small, and with 15 × 15 taps they have to be 48 × 48 to be half of use.
# - A test that fits into one tile cannot see what goes wrong between two. Two tokens in two tiles can; and a race that gives right values only shows to a tool that watches.
#
# **You can now** cut convolutional attention into tiles of any size, and tell from an algorithm on paper where its tiles will disagree.
#
# **Next:** [lesson 11](11_conv_forward.ipynb) gives each tile to a block of threads.
