# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 13 · The backward kernels
#
# **80 minutes** · builds on lesson 12 (the gradients by hand), lesson 10 (tiles and halos) and lesson 04
# (races, `cuda.atomic.add`)
#
# After this lesson you will be able to
# 1. say why the backward pass takes two kernels, and what a tile of each must load and may add up;
# 2. write the parts of the first kernel, the one of dQ and dW, and tell from the checks which part contains a
#    mistake.
#
# Lesson 12 computed the whole backward pass with N×N matrices. Here thread blocks do it
# tile by tile, without any N×N matrix. This lesson builds the kernel of dQ and dW.
# Lesson 13b adds the kernel of dK and dV, and lesson 13c hunts for published mistakes.
# You don't need a GPU. Everything is for one head, with causal attention.

# %%
import math

import matplotlib.pyplot as plt
import numpy as np
import torch
from numba import cuda
from numpy import float32

from course import check, show_figure
from course.figures import BLUE, ORANGE, SKY, YELLOW
from kernels import reference
from kernels.common.launch import launch

# %% [markdown]
# ## 1. Which block owns what?
#
# The forward pass was easy to divide. A block owned some queries and their rows of O, and no other block
# wrote there. Now there are four results:
#
# | result | one entry is a sum over | so it belongs to |
# |---|---|---|
# | dQ[i] = scale · Σ_j dS[i, j] K[j] | all **keys** j | the block that has row i of dS |
# | dK[j] = scale · Σ_i dS[i, j] Q[i] | all **queries** i | the block that has column j of dS |
# | dV[j] = Σ_i P[i, j] dO[i] | all **queries** i | the block that has column j of P |
# | dW[a, b] = Σ_ij dT[i, j] S0[i − P_q + a, j − P_k + b] | **everything** | no block |
#
# A block that keeps a tile of queries and loops over the keys sees the whole row i, so it can add up dQ[i] on
# the chip and write it once. But it has only its own queries' contribution to dK[j]; the rest is in other
# blocks. For a block that keeps keys, it is the other way round. So there are **two kernels**. Both recompute
# S0, T, P and dT, tile by tile. (The next cell only draws.)


# %% jupyter={"source_hidden": true}
def strip(axes, title, horizontal):
    """Draw the lower half of a 12×12 matrix of scores in tiles of 4×4,
    with the tiles of one block in colour."""
    for i in range(3):
        for j in range(i + 1):
            mine = (i if horizontal else j) == 1
            axes.add_patch(
                plt.Rectangle(
                    (4 * j, 4 * i),
                    4,
                    4,
                    facecolor=BLUE if mine else "#EEEEEE",
                    edgecolor="black",
                )
            )
            if mine:
                axes.text(
                    4 * j + 2,
                    4 * i + 2,
                    "1st" if (j == 0) == horizontal and i == 1 else "2nd",
                    ha="center",
                    va="center",
                    color="white",
                    fontsize=14,
                )
    if horizontal:
        axes.add_patch(
            plt.Rectangle((12.5, 4), 1.2, 4, facecolor=ORANGE, edgecolor="black")
        )
        axes.text(14, 6, "dQ", va="center", fontsize=14)
        axes.text(12.5, 9, "+ a part\nof dW", va="center", fontsize=11)
    else:
        axes.add_patch(
            plt.Rectangle((4, 12.5), 4, 1.2, facecolor=ORANGE, edgecolor="black")
        )
        axes.text(8.3, 13.2, "dK, dV", va="center", fontsize=14)
    axes.set(
        xlim=(-0.5, 15.5),
        ylim=(14.5, -0.5),
        aspect="equal",
        title=title,
        xlabel="keys",
        ylabel="queries",
        xticks=[],
        yticks=[],
    )


figure, (left, right) = plt.subplots(1, 2, figsize=(9.5, 4.8), layout="constrained")
strip(left, "kernel of dQ and dW: block 1", True)
strip(right, "kernel of dK and dV: block 1", False)
show_figure(
    figure,
    "two pictures of the lower half of a matrix of scores, cut into 3 by 3 tiles. "
    "Left, block 1 of the kernel of dQ and dW visits the tiles of the second row from "
    "left to right, and ends with one piece of dQ, and a part of dW. "
    "Right, block 1 of the kernel of dK and dV visits the tiles of the second column "
    "from the diagonal down, and ends with one piece of dK and of dV.",
)

# %% [markdown]
# Why not one kernel that adds its part of dK and dV to global memory? Different blocks would add to the same
# elements, so each addition would have to be an [**atomic operation**](../docs/glossary.md) (lesson 04).
#
# **Predict.** N = 4096, d = 64, 7 × 7 taps, tiles that own 52 × 52 scores. For each tile on or below the
# diagonal, such a kernel adds 52 rows of d numbers to dK and 52 rows to dV. About how many atomic additions
# is that, for one head? And how many for dW, if each block adds its own sum once per tap?

# %%
n, d, side = 4096, 64, 52
blocks = math.ceil(n / side)
tiles_visited = blocks * (blocks + 1) // 2
print(
    f"dK and dV: {tiles_visited} tiles × {side} keys × 2 × {d} "
    f"= {tiles_visited * side * 2 * d / 1e6:.1f} million atomic additions"
)
print(f"dW: {blocks} blocks × 49 taps = {blocks * 49} atomic additions")

# %% [markdown]
# It can be done: FlashAttention-2 has a single kernel for ordinary attention, which keeps keys and adds its
# parts of dQ atomically. We prefer to compute the scores twice. Then each entry of dQ, dK and dV has one
# owner, which writes it once. (Section 3 of lesson 13b shows another use of it.) dW is different: no block can own
# it, but it is small. We compute it in the kernel of dQ; the other kernel could do it just as well.
#
# ## 2. The rows below, on paper
#
# Take one key, four queries, and two taps, one above the other: T[i] = 3·S[i−1] + 1·S[i]. In lesson 12 you
# asked which outputs read a score. S[i] was read by T[i], with 1, and by the **next** query, T[i+1], with 3.
# So dS[i] = 1·dT[i] + 3·dT[i+1]. And the taps: dW[1] = Σ dT[i]·S[i], dW[0] = Σ dT[i]·S[i−1].
#
# | query | 0 | 1 | 2 | 3 |
# |---|---|---|---|---|
# | S | 1 | 1 | 2 | 3 |
# | dT | 1 | 2 | 5 | 4 |
# | dS | 1 + 6 = 7 | 2 + 15 = 17 | 5 + 12 = 17 | 4 |
#
# dW[1] = 1 + 2 + 10 + 12 = 25 and dW[0] = 2 + 5 + 8 = 15. Now take two tiles: queries 0 and 1, and queries 2
# and 3.
#
# **Predict.** (a) If each tile has only the dT it owns, which dS comes out wrong, and with what value? (b) So
# each tile also gets dT of the row **below**. If it now sums dW over all the dT that it has, what is dW?

# %%
s, dt, taps = [1, 1, 2, 3], [1, 2, 5, 4], (3, 1)
in_two = [[0, 1], [2, 3]]


def d_s_of(rows, have):
    """Return dS of these rows, from the dT of the rows `have`."""
    return [
        sum(taps[1 - step] * dt[i + step] for step in (0, 1) if i + step in have)
        for i in rows
    ]


def d_w_of(rows):
    """Return dW, summed over the dT of these rows."""
    return np.array(
        [sum(dt[i] * s[i - 1] for i in rows if i > 0), sum(dt[i] * s[i] for i in rows)]
    )


print("dS, in one piece        ", d_s_of(range(4), range(4)))
print("dS, no row below        ", sum((d_s_of(rows, rows) for rows in in_two), []))
print("dS, with the row below  ", sum((d_s_of(rows, range(4)) for rows in in_two), []))
print("dW, over the owned rows ", sum(d_w_of(rows) for rows in in_two).tolist())
print(
    "dW, over all rows it has",
    sum(
        d_w_of([*rows, rows[-1] + 1] if rows[-1] < 3 else rows) for rows in in_two
    ).tolist(),
)

# %% [markdown]
# (a) dS[1] becomes 2: it loses the gradient that query 2 sends back. (b) Query 2 counts twice, and dW becomes
# (20, 35).
#
# The published algorithm makes both mistakes, as lesson 13c shows. One more thing to notice: to get dT[2], the
# first tile needs T[2], which reads S[1] and S[2]. To get dT[0], it needs T[0], which reads S[−1]: the row
# **above**. (Here that row lies outside; for the second tile, T[2] reads S[1].) So the halo is on **both**
# sides: rows below because they send gradient back, and rows above because T has to be recomputed.
#
# ## 3. Exercise 13.1 · to_load · about five lines
#
# A tile owns `rows` rows of S0, starting at `i0`, and `columns` columns, starting at
# `j0`: for these it computes dS. Return two regions, each as
# `(top, bottom, left, right)`, as in lesson 10: rows top, …, bottom − 1 and columns
# left, …, right − 1.
#
# - of **dT**: all T that read an owned score;
# - of **S0**: all scores that *these* T read.
#
# P_q = c_q − 1, P_k = (c_k − 1) // 2, P_r = c_k − 1 − P_k. Do not clip at the edges of the sequence.
#
# <details><summary>Hint 1: dT</summary>
#
# S0[r, c] is read by T[r + P_q − a, c + P_k − b]. The tap index a runs from 0 to P_q, and b from 0 to P_k +
# P_r. So the readers are in the rows r to r + P_q and in the columns c − P_r to c + P_k. (Compared with the
# forward pass, left and right are swapped: my right neighbour sees me on its left.)
#
# </details>
# <details><summary>Hint 2: S0</summary>
#
# That is `to_load` of lesson 10, for a tile that owns the region you have just found: P_q rows above its top,
# P_k columns to its left, P_r to its right.
#
# </details>


# %% tags=["exercise"]
def to_load(i0, j0, rows, columns, c_q, c_k):
    """Return two regions (top, bottom, left, right), of dT and of S0, for a tile that
    owns rows [i0, i0 + rows) and columns [j0, j0 + columns)."""
    # BEGIN SOLUTION 13.1
    above, left = c_q - 1, (c_k - 1) // 2
    right = c_k - 1 - left
    of_t = i0, i0 + rows + above, j0 - right, j0 + columns + left
    return of_t, (of_t[0] - above, of_t[1], of_t[2] - left, of_t[3] + right)
    # END SOLUTION


# %% tags=["check"]
check.ex13_1(to_load)

# %% [markdown]
# Here are your two regions, for one score and for a 4 × 4 tile, with 3 × 4 taps. On the right, a label marks
# the corner of each region: of dS, of dT (and P), and of S0. (The cell only draws.)


# %% tags=["uses-exercise"] jupyter={"source_hidden": true}
def draw_frames(axes, title, i0, j0, rows, columns, corners=()):
    """Draw the regions of this tile, with 3 × 4 taps: owned, dT, S0.
    corners: labels for the first cell of each region."""
    own = i0, i0 + rows, j0, j0 + columns
    frames = own, *to_load(i0, j0, rows, columns, 3, 4)
    for i in range(16):
        for j in range(16):
            inside = [
                top <= i < bottom and first <= j < last
                for top, bottom, first, last in frames
            ]
            colour = next(
                (c for c, here in zip((BLUE, SKY, YELLOW), inside) if here), "white"
            )
            axes.add_patch(
                plt.Rectangle(
                    (j, i),
                    1,
                    1,
                    facecolor=colour,
                    edgecolor="gray",
                    hatch="///" if j > i else None,
                )
            )
    axes.set(
        xlim=(-0.1, 16.1),
        ylim=(16.1, -0.1),
        aspect="equal",
        xlabel="key",
        ylabel="query",
        title=title,
    )
    for name, (top, _, first, _) in zip(corners, frames):
        colour = "white" if name == "dS" else "black"
        where = {"ha": "center", "va": "center", "fontsize": 9, "fontweight": "bold"}
        axes.text(first + 0.5, top + 0.5, name, color=colour, **where)
    axes.set_xticks([n + 0.5 for n in range(16)], range(16))
    axes.set_yticks([n + 0.5 for n in range(16)], range(16))
    axes.tick_params(length=0)


figure, (left, right) = plt.subplots(1, 2, figsize=(11, 6), layout="constrained")
draw_frames(left, "one score: its readers, and what they read", 9, 6, 1, 1)
draw_frames(right, "a tile of 4 × 4", 8, 4, 4, 4, corners=("dS", "dT", "S0"))
colours = {"owned": BLUE, "more of dT": SKY, "still more of S0": YELLOW, "future": None}
figure.legend(
    handles=[
        plt.Rectangle(
            (0, 0),
            1,
            1,
            facecolor=colour or "white",
            edgecolor="gray",
            hatch=None if colour else "///",
            label=words,
        )
        for words, colour in colours.items()
    ],
    loc="outside lower center",
    ncols=4,
    fontsize=12,
)
show_figure(
    figure,
    "two grids of 16 queries by 16 keys; the future is hatched. Left, the score of "
    "query 9 and key 6, dark. Its readers, blue, are T of the queries 9 to 11 and of "
    "the keys 4 to 7. These read, yellow besides, the scores of the queries 7 to 11 "
    "and "
    "the keys 3 to 9. Right, a dark block of 4 by 4, "
    "queries 8 to 11 and keys 4 to 7, is owned. Around it, what is needed of dT: "
    "queries 8 to 13, two rows more below, keys 2 to 8, two columns more to the left "
    "and one to the right. Around that, what is needed of S0: queries 6 to 13, two "
    "rows more above, keys 1 to 10, one column more to the left and two to the right. "
    "The first cell of each region is labelled: dS at query 8 and key 4, dT at query 8 "
    "and key 2, S0 at query 6 and key 1.",
)

# %% [markdown]
# That makes 8 × 10 scores for the tile. In general, a tile that loads `size` × `size` scores owns only size −
# 2·P_q rows and size − 2·(c_k − 1) columns. There are **three** different origins, and mixing them up is the
# usual mistake. Each array is stored with its own corner at index (0, 0):
#
# | tile | entry (0, 0) is | height × width |
# |---|---|---|
# | `s_tile` | query i0 − P_q, key j0 − (c_k − 1) | size × size |
# | `p_tile`, `d_t_tile` | query i0, key j0 − P_r | size − P_q × size − (c_k − 1) |
# | `d_s_tile` | query i0, key j0 | rows × columns |


# %% jupyter={"source_hidden": true}
def draw_origins(i0, j0, rows, columns, c_q, c_k):
    """Draw the three arrays of a tile over the scores, each with its entry (0, 0)."""
    above, right = c_q - 1, c_k - 1 - (c_k - 1) // 2
    arrays = [  # name, first query, first key, height, width, colour
        (
            "s_tile",
            i0 - above,
            j0 - (c_k - 1),
            rows + 2 * above,
            columns + 2 * (c_k - 1),
            SKY,
        ),
        ("p_tile, d_t_tile", i0, j0 - right, rows + above, columns + c_k - 1, ORANGE),
        ("d_s_tile", i0, j0, rows, columns, BLUE),
    ]
    figure, axes = plt.subplots(figsize=(8, 5.6), layout="constrained")
    for place, (name, query, key, height, width, colour) in enumerate(arrays):
        axes.add_patch(
            plt.Rectangle((key, query), width, height, facecolor=colour, alpha=0.45)
        )
        axes.plot(key + 0.5, query + 0.5, "o", color="black", markersize=7)
        axes.annotate(
            f"{name}[0, 0]:\nquery {query}, key {key}",
            (key + 0.5, query + 0.5),
            (j0 + columns + c_k, i0 - 1 + 2.6 * place),
            arrowprops={"arrowstyle": "-", "color": "grey"},
            fontsize=11,
            va="center",
        )
    axes.set(
        xlim=(j0 - c_k + 0.5, j0 + columns + c_k + 4.7),
        ylim=(i0 + rows + above + 0.5, i0 - above - 0.5),
        xlabel="key",
        ylabel="query",
        aspect="equal",
    )
    axes.set_xticks([j0 - 3, j0 - 2, j0, j0 + 4, j0 + 7])
    axes.set_yticks([i0 - 2, i0, i0 + 4, i0 + 6])
    return figure


show_figure(
    draw_origins(8, 9, 4, 4, 3, 4),
    "three nested rectangles for a tile that owns the queries 8 to 11 and the keys 9 "
    "to 12, with 3 × 4 taps. The largest, s_tile, begins at query 6 and key 6 and has "
    "8 × 10 entries. p_tile and d_t_tile begin at query 8 and key 7, with 6 × 7 "
    "entries. The smallest, d_s_tile, begins at query 8 and key 9, with 4 × 4.",
)

# %% [markdown]
# **On paper.** T at (i, j) of its tile is Σ w[a, b] · s_tile[?, ?]. What are the two indices? And which
# column of `d_t_tile` is the owned column j?
#
# <details><summary>Answer</summary>
#
# s_tile[i + a, j + b]: s_tile starts P_q rows and P_k columns earlier, exactly where the taps begin. The
# owned column j is column P_r + j, which the code calls `right + j`.
#
# </details>
#
# ## 4. The kernel of dQ and dW
#
# First some helpers, in the manner of lesson 05. The threads of a block share every tile: with T threads,
# thread t processes the entries t, t + T, and so on. (To keep them short, the helpers read rows of q and k
# directly from global memory. The package's kernels do not do that.)


# %%
@cuda.jit(device=True)
def clear(tile):
    """Set a tile to 0."""
    height, width = tile.shape
    for e in range(cuda.threadIdx.x, height * width, cuda.blockDim.x):
        tile[e // width, e % width] = float32(0)


@cuda.jit(device=True)
def products(tile, x, y, first_x, first_y, factor, causal):
    """Compute tile[r, c] = factor · x[first_x + r] · y[first_y + c]. Store 0 where a
    row is outside x or y, and, if causal, where the key comes after the query."""
    height, width = tile.shape
    n, d = x.shape
    for e in range(cuda.threadIdx.x, height * width, cuda.blockDim.x):
        i, j = first_x + e // width, first_y + e % width
        total = float32(0)
        if 0 <= i < n and 0 <= j < n and (j <= i or not causal):
            for c in range(d):
                total += x[i, c] * y[j, c]
        tile[e // width, e % width] = factor * total


@cuda.jit(device=True)
def convolved(s_tile, w, i, j):
    """Return T at (i, j) of its tile."""
    t = float32(0)
    for a in range(w.shape[0]):
        for b in range(w.shape[1]):
            t += w[a, b] * s_tile[i + a, j + b]
    return t


# %% [markdown]
# The last two helpers write to global memory, at the end of a block: its rows of dQ, dK or dV, and its part
# of dW.


# %%
WIDTH = 16  # the largest d


@cuda.jit(device=True)
def store_rows(rows_of, first, tile, count, factor):
    """Store rows_of[first : first + count] = factor · tile[:count]."""
    d = rows_of.shape[1]
    for e in range(cuda.threadIdx.x, count * d, cuda.blockDim.x):
        rows_of[first + e // d, e % d] = factor * tile[e // d, e % d]


@cuda.jit(device=True)
def add_to_all(d_w, tap_sums):
    """Add this block's part of dW to the total, with one atomic addition per tap.
    d_w: (R, c_q, c_k); R is 1 for now."""
    taps, c_k = d_w.shape[1] * d_w.shape[2], d_w.shape[2]
    for e in range(cuda.threadIdx.x, taps, cuda.blockDim.x):
        a, b = e // c_k, e % c_k
        cuda.atomic.add(d_w, (cuda.blockIdx.x % d_w.shape[0], a, b), tap_sums[a, b])


# %% [markdown]
# Now you write the gradient computations. The loops over the entries are given; they distribute the entries
# over the threads. Each entry belongs to one thread, so no addition needs to be atomic; use no atomics.
# Everything is computed in float32, and with your own functions, not with those of the `kernels` package.
#
# Each part has its own check, on every kind of tile (one token, ragged tiles, more taps than tokens, even
# taps, 13 taps in a row). In the checks, everything that a function must not read or write is filled with
# NaN. (The checks keep the tiles in global memory, where `sim` sees each access. Their messages therefore say
# "global memory" where your kernel has shared memory.)
#
# ### Exercise 13.2 · gradient_of_t · about six lines
#
# On entry, `d_t_tile` holds dP = dO·vᵀ. Overwrite entry (i, j) with **dT = P · (dP − D)**, and store **P =
# exp(T − L)** in `p_tile`. Do so at every entry whose key is not after its query and where both are in the
# sequence: 0 ≤ key ≤ query < N. At all other entries, store 0 in both.
#
# Scores go up to ±1000, so compute exp(T − L), not exp(T)·exp(−L), which overflows.
# `log_sum` is L and `delta` is D = rowsum(dO · O), one number per query.
#
# <details><summary>Hint 1: the one trap</summary>
#
# Test before you read: `log_sum[query]` exists only if 0 ≤ query < N.
#
# </details>
# <details><summary>Hint 2: the branches</summary>
#
# `if 0 <= key <= query < log_sum.size:` has `p = math.exp(convolved(s_tile, w, i, j) - log_sum[query])`; the
# `else` stores two zeros, `float32(0)`.
#
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def gradient_of_t(p_tile, d_t_tile, s_tile, w, log_sum, delta, i0, j0):
    """Compute P and dT, in p_tile and d_t_tile, from dP (in d_t_tile) and S0. Entry
    (0, 0) of both is query i0 and key j0. log_sum, delta: (N,)."""
    height, width = (
        s_tile.shape[0] - (w.shape[0] - 1),
        s_tile.shape[1] - (w.shape[1] - 1),
    )
    for e in range(cuda.threadIdx.x, height * width, cuda.blockDim.x):
        i, j = e // width, e % width
        query, key = i0 + i, j0 + j
        # BEGIN SOLUTION 13.2
        if 0 <= key <= query < log_sum.size:
            p = math.exp(convolved(s_tile, w, i, j) - log_sum[query])
            p_tile[i, j] = p
            d_t_tile[i, j] = p * (d_t_tile[i, j] - delta[query])
        else:
            p_tile[i, j] = d_t_tile[i, j] = float32(0)
        # END SOLUTION


# %% tags=["check"]
check.ex13_2(gradient_of_t)

# %% [markdown]
# ### Exercise 13.3 · gradient_of_s · about six lines
#
# Compute entry (i, j) of dS on the owned part of the tile: the sum over its readers, and 0 where the key j0 +
# j comes after the query i0 + i.
#
# **On paper first.** The reader with the tap (a, b) is T[r + P_q − a, c + P_k − b]. Row r is row i of
# `d_t_tile`, so the reader is in its row i + P_q − a. Column c is its column j + P_r. In which column is the
# reader?
#
# <details><summary>Answer</summary>
#
# In column j + P_r + P_k − b = j + (c_k − 1) − b. So you don't need P_k and P_r separately.
#
# </details>
# <details><summary>Hint: the loops</summary>
#
# As in `convolved`: `total = float32(0)`, then a over c_q and b over c_k. Here w[a, b] is multiplied by
# `d_t_tile[i + c_q - 1 - a, j + c_k - 1 - b]`.
#
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def gradient_of_s(d_s_tile, d_t_tile, w, i0, j0, rows, columns):
    """Compute dS of the owned rows × columns, from query i0 and key j0 on."""
    c_q, c_k = w.shape
    for e in range(cuda.threadIdx.x, rows * columns, cuda.blockDim.x):
        i, j = e // columns, e % columns
        # BEGIN SOLUTION 13.3
        total = float32(0)
        if j0 + j <= i0 + i:
            for a in range(c_q):
                for b in range(c_k):
                    total += w[a, b] * d_t_tile[i + c_q - 1 - a, j + c_k - 1 - b]
        d_s_tile[i, j] = total
        # END SOLUTION


# %% tags=["check"]
check.ex13_3(gradient_of_s)

# %% [markdown]
# ### Exercise 13.4 · add_d_w · about three lines
#
# Each tap belongs to one thread, and `tap_sums` stays on the chip while the block goes from tile to tile. So
# **add** this tile's part to `tap_sums[a, b]`: the sum of dT · S0 over the entries that the tile **owns**.
#
# <details><summary>Hint</summary>
#
# Take i in `range(rows)` and j in `range(right, right + columns)`, the columns of `d_t_tile`. As in
# `convolved`, T at (i, j) reads `s_tile[i + a, j + b]` with this tap.
#
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def add_d_w(tap_sums, d_t_tile, s_tile, w, rows, columns, right):
    """Add Σ dT · S0 over the owned rows × columns to tap_sums[a, b]. In d_t_tile these
    are the rows from 0 and the columns from `right` on."""
    c_q, c_k = w.shape
    for e in range(cuda.threadIdx.x, c_q * c_k, cuda.blockDim.x):
        a, b = e // c_k, e % c_k
        # BEGIN SOLUTION 13.4
        for i in range(rows):
            for j in range(right, right + columns):
                tap_sums[a, b] += d_t_tile[i, j] * s_tile[i + a, j + b]
        # END SOLUTION


# %% tags=["check"]
check.ex13_4(add_d_w)

# %% [markdown]
# ### Exercise 13.5 · add_d_q · about two lines
#
# `d_q_tile` stays on the chip too. Add this tile's dS K to it. Row j of K, counted from the tile's first key,
# is `k[j0 + j]`. Leave out the scale: it is applied once, at the end.


# %% tags=["exercise"]
@cuda.jit(device=True)
def add_d_q(d_q_tile, d_s_tile, k, j0, rows, columns):
    """Add Σ_j dS[i, j] · K[j0 + j, c] to d_q_tile[i, c], for the owned rows."""
    d = k.shape[1]
    for e in range(cuda.threadIdx.x, rows * d, cuda.blockDim.x):
        i, c = e // d, e % d
        # BEGIN SOLUTION 13.5
        for j in range(columns):
            d_q_tile[i, c] += d_s_tile[i, j] * k[j0 + j, c]
        # END SOLUTION


# %% tags=["check"]
check.ex13_5(add_d_q)

# %% [markdown]
# ### The kernel
#
# The function below builds a kernel for a given tile size from your functions. You can also pass in other
# functions, as the bug hunt of lesson 13c does. Read the code with the table of corners at hand.
#
# **Look for** three things: which functions get the owned part (`rows`, `owned_columns`) and which the whole
# tile; what must be finished before each barrier; and what is written to global memory.


# %%
def queries_kernel(
    size,
    gradient_of_t=gradient_of_t,
    gradient_of_s=gradient_of_s,
    add_d_w=add_d_w,
    add_d_q=add_d_q,
    add_to_all=add_to_all,
):
    """Return the kernel of dQ and dW, with tiles of size × size scores."""

    @cuda.jit
    def backward_queries(q, k, v, w, log_sum, delta, d_o, scale, d_q, d_w):
        s_tile = cuda.shared.array((size, size), float32)
        p_tile = cuda.shared.array((size, size), float32)
        d_t_tile = cuda.shared.array((size, size), float32)
        d_s_tile = cuda.shared.array((size, size), float32)
        d_q_tile = cuda.shared.array((size, WIDTH), float32)
        tap_sums = cuda.shared.array((size, size), float32)
        n, c_q, c_k = q.shape[0], w.shape[0], w.shape[1]
        columns, right = size - 2 * (c_k - 1), c_k - 1 - (c_k - 1) // 2
        i0 = cuda.blockIdx.x * (size - 2 * (c_q - 1))
        rows = min(size - 2 * (c_q - 1), n - i0)
        clear(d_q_tile)
        clear(tap_sums)
        for j0 in range(0, i0 + rows, columns):
            owned_columns = min(columns, n - j0)
            products(s_tile, q, k, i0 - (c_q - 1), j0 - (c_k - 1), scale, True)
            products(d_t_tile, d_o, v, i0, j0 - right, float32(1), False)
            cuda.syncthreads()  # S0 and dP are there
            gradient_of_t(p_tile, d_t_tile, s_tile, w, log_sum, delta, i0, j0 - right)
            cuda.syncthreads()  # dT is there
            gradient_of_s(d_s_tile, d_t_tile, w, i0, j0, rows, owned_columns)
            add_d_w(tap_sums, d_t_tile, s_tile, w, rows, owned_columns, right)
            cuda.syncthreads()  # dS is there, and S0 and dT are used
            add_d_q(d_q_tile, d_s_tile, k, j0, rows, owned_columns)
        cuda.syncthreads()
        store_rows(d_q, i0, d_q_tile, rows, scale)
        add_to_all(d_w, tap_sums)

    return backward_queries


# %% [markdown]
# The loop over keys ends at the diagonal, as in the forward pass. Is that enough here? The halo rows below
# (from i0 + rows on) also have dT at keys beyond the diagonal. That dT flows only into scores whose key is at
# most P_k to its left or P_r to its right. Of these we need only the owned ones that are not in the future.
# They lie in tiles that the loop visits, and those tiles load the halo columns they need.
#
# ### The first kernel, whole
#
# Let's run it, on 14 tokens with 3 × 3 taps, in tiles that own 4 × 4 scores. The reference is the backward
# pass of lesson 12, in float64.

# %%
torch.manual_seed(13)


def case(n, d, c_q, c_k):
    """Return random (q, k, v, w, d_o) of one head, float32."""
    q, k, v, d_o = torch.randn(4, n, d)
    return q, k, v, torch.randn(c_q, c_k) / math.sqrt(c_q * c_k), d_o


def forward(q, k, v, w):
    """Return (O, L) of one head, computed in float64: (N, d) and (N,)."""
    q, k, v, w = (x.double() for x in (q, k, v, w))
    t = reference.conv_scores(q[None, None], k[None, None], w[None])[0, 0]
    return (torch.softmax(t, 1) @ v).float(), torch.logsumexp(t, 1).float()


def by_hand(q, k, v, w, d_o):
    """Return (dQ, dK, dV, dW) by lesson 12, in float64, with N×N matrices."""
    q, k, v, d_o = (x[None, None].double() for x in (q, k, v, d_o))
    w = w[None].double()
    t = reference.conv_scores(q, k, w)
    o, log_sum = torch.softmax(t, 3) @ v, torch.logsumexp(t, 3)
    found = reference.conv_attention_backward(q, k, v, w, o, log_sum, d_o)
    d_q, d_k, d_v, d_w = found
    return d_q[0, 0], d_k[0, 0], d_v[0, 0], d_w[0]


def near(got, wanted, tolerance=1e-4):
    """Return whether every entry is within the tolerance, relative to the largest
    wanted entry. NaN is not."""
    largest = wanted.abs().max().clamp_min(0.1)
    return ((got.double() - wanted).abs().max() <= tolerance * largest).item()


# %% tags=["uses-exercise"]
q, k, v, w, d_o = case(14, 4, 3, 3)
o, log_sum = forward(q, k, v, w)
d_q, d_w = torch.full_like(q, math.nan), torch.zeros(1, 3, 3)
given = q, k, v, w, log_sum, (d_o * o).sum(1), d_o, float32(0.5)
launch(queries_kernel(8), (4,), (16,), *given, d_q, d_w)
wanted = by_hand(q, k, v, w, d_o)
print("dQ as in lesson 12:", near(d_q, wanted[0]))
print("dW as in lesson 12:", near(d_w[0], wanted[3]))

# %% [markdown]
# Your kernel computes dQ and dW of four tiles of queries.
#
# ## In three lines
#
# - There are two kernels, because a sum over keys belongs to a block of queries, and a sum over queries belongs
#   to a block of keys. dW belongs to no block and is added up at the end.
# - The halo has rows above (to recompute T) and rows below (they send gradient back). Several tiles load it,
#   and only one counts it.
# - A tile has three origins: one for S0, one for dT and P, and one for dS. Confusing them is the usual mistake.
#
# **You can now** cut a gradient into tiles, and say which block owns each of its entries.
#
# **Read on:** Dao, *FlashAttention-2* (2023, arXiv:2307.08691), section 3.1, on its backward pass, and Dao, Fu,
# Ermon, Rudra, Ré, *FlashAttention* (2022, arXiv:2205.14135), appendix B.
#
# **Next:** [lesson 13b](13b_keys_and_sums.ipynb) builds the second kernel, validates both, and trains with them.
