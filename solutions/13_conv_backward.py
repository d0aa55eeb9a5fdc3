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
# # 13 · The backward kernels
#
# **Two sittings: 75 minutes** for the kernel of dQ and dW (sections 1 to 4), **and 40 minutes** for the
# kernel of dK and dV, validated and put to use (sections 5 and 6). A third, optional sitting of 60 minutes
# follows the summary · builds on lesson 12 (the gradients by hand), lesson 10 (tiles and halos) and lesson 04
# (races, `cuda.atomic.add`)
#
# After this lesson you will be able to
# 1. say why the backward pass takes two kernels, and what a tile of each must load and may add up;
# 2. write the gradient computations of both, and tell from the checks which part contains a mistake;
# 3. (third sitting) say why a sum by atomics changes from run to run, and how to get one that does not.
#
# Lesson 12 computed the whole backward pass with N×N matrices. Here thread blocks do it
# tile by tile, without any N×N matrix. You don't need a GPU. Everything is for one
# head, with causal attention.

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

import kernels
from course import check, progress_bar, show_figure
from course.check import lesson13
from course.figures import BLUE, GREEN, ORANGE, SKY, YELLOW
from kernels import reference
from kernels.reference import conv_tiled
from kernels.conv.backward import conv_backward
from kernels.conv.forward import conv_forward
from kernels.reference.conv_tiled import halo_of, owned
from kernels.common.launch import launch, simulated
from kernels.reference.tiled import Traffic

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
# owner, which writes it once. (Section 7 shows what else that is good for.) dW is different: no block can own
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
# The published algorithm makes both mistakes, as you will see. One more thing to notice: to get dT[2], the
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
#
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
# NaN. (The checks keep the tiles in global memory, where `sim` sees each access. So that is what their messages
# call them.)
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
# The function below builds a kernel for a given tile size from your functions, or from others that you pass
# in; the bug hunt uses that. Read it with the table of corners at hand.
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
# Your kernel computes dQ and dW of four tiles of queries. This is a good place to stop. The second sitting
# begins here.
#
# ## 5. The kernel of dK and dV
#
# The tile is the same, but now a block keeps its keys and sums over **rows**. So here it is the halo **rows**
# that could be counted twice.
#
# ### Exercise 13.6 · add_d_k_d_v · about three lines
#
# Add this tile's part of dSᵀ Q to `d_k_tile`, and its part of Pᵀ dO to `d_v_tile`, over the owned rows. Row i
# of the tile is query i0 + i.
#
# <details><summary>Hint</summary>
#
# The owned column j is column j of `d_s_tile`. In `p_tile` it is column `right + j`.
#
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def add_d_k_d_v(d_k_tile, d_v_tile, d_s_tile, p_tile, q, d_o, i0, rows, columns, right):
    """Add Σ_i dS[i, j] · Q[i0 + i, c] to d_k_tile[j, c], and
    Σ_i P[i, j] · dO[i0 + i, c] to d_v_tile[j, c], for the owned columns."""
    d = q.shape[1]
    for e in range(cuda.threadIdx.x, columns * d, cuda.blockDim.x):
        j, c = e // d, e % d
        # BEGIN SOLUTION 13.6
        for i in range(rows):
            d_k_tile[j, c] += d_s_tile[i, j] * q[i0 + i, c]
            d_v_tile[j, c] += p_tile[i, right + j] * d_o[i0 + i, c]
        # END SOLUTION


# %% tags=["check"]
check.ex13_6(add_d_k_d_v)

# %% [markdown]
# **Predict.** The kernel below loops over tiles of rows, from top to bottom. The rows are cut as in the other
# kernel: 0, rows, 2·rows, … For a block that keeps the keys from j0 on, at which i0 does the loop begin?


# %%
def keys_kernel(
    size,
    gradient_of_t=gradient_of_t,
    gradient_of_s=gradient_of_s,
    add_d_k_d_v=add_d_k_d_v,
):
    """Return the kernel of dK and dV, with tiles of size × size scores."""

    @cuda.jit
    def backward_keys(q, k, v, w, log_sum, delta, d_o, scale, d_k, d_v):
        s_tile = cuda.shared.array((size, size), float32)
        p_tile = cuda.shared.array((size, size), float32)
        d_t_tile = cuda.shared.array((size, size), float32)
        d_s_tile = cuda.shared.array((size, size), float32)
        d_k_tile = cuda.shared.array((size, WIDTH), float32)
        d_v_tile = cuda.shared.array((size, WIDTH), float32)
        n, c_q, c_k = q.shape[0], w.shape[0], w.shape[1]
        rows, right = size - 2 * (c_q - 1), c_k - 1 - (c_k - 1) // 2
        j0 = cuda.blockIdx.x * (size - 2 * (c_k - 1))
        columns = min(size - 2 * (c_k - 1), n - j0)
        clear(d_k_tile)
        clear(d_v_tile)
        for i0 in range(j0 // rows * rows, n, rows):
            count = min(rows, n - i0)
            products(s_tile, q, k, i0 - (c_q - 1), j0 - (c_k - 1), scale, True)
            products(d_t_tile, d_o, v, i0, j0 - right, float32(1), False)
            cuda.syncthreads()  # S0 and dP are there
            gradient_of_t(p_tile, d_t_tile, s_tile, w, log_sum, delta, i0, j0 - right)
            cuda.syncthreads()  # P and dT are there
            gradient_of_s(d_s_tile, d_t_tile, w, i0, j0, count, columns)
            cuda.syncthreads()  # dS is there, and S0 and dT are used
            add_d_k_d_v(
                d_k_tile, d_v_tile, d_s_tile, p_tile, q, d_o, i0, count, columns, right
            )
        cuda.syncthreads()
        store_rows(d_k, j0, d_k_tile, columns, scale)
        store_rows(d_v, j0, d_v_tile, columns, float32(1))

    return backward_keys


# %% [markdown]
# At `j0 // rows * rows`: the tile of rows that contains query j0, the first query that sees key j0. Tiles
# above it see none of the block's keys.
#
# ## 6. Validate: both kernels against lesson 12
#
# A host function runs the two kernels, one after the other. It needs O and L, which a forward pass would have
# stored. As a second reference, `by_tiles` runs the package's tile-by-tile version in plain PyTorch.


# %%
def backward(
    q, k, v, w, d_o, size=8, threads=16, partials=False, run=None, queries={}, keys={}
):
    """Return (dQ, dK, dV, dW) of one head, computed by the two kernels.
    queries, keys: functions that replace yours."""
    o, log_sum = forward(q, k, v, w)
    rows, columns = owned((size, size), halo_of(w), backward=True)
    blocks = math.ceil(len(q) / rows)
    d_q, d_k, d_v = (torch.full_like(x, math.nan) for x in (q, k, v))
    d_w = w.new_zeros(blocks if partials else 1, *w.shape)
    given = q, k, v, w, log_sum, (d_o * o).sum(1), d_o, float32(q.shape[1] ** -0.5)
    kernel = queries_kernel(size, **queries)
    launch(kernel, (blocks,), (threads,), *given, d_q, d_w, run=run)
    kernel, blocks = keys_kernel(size, **keys), math.ceil(len(q) / columns)
    launch(kernel, (blocks,), (threads,), *given, d_k, d_v, run=run)
    return d_q, d_k, d_v, d_w.sum(0)


def by_tiles(q, k, v, w, d_o, size):
    """Return the same from the package's tiles in plain PyTorch, in float64."""
    o, log_sum = (x.double() for x in forward(q, k, v, w))
    q, k, v, w, d_o = (x.double() for x in (q, k, v, w, d_o))
    given = q, k, v, w, log_sum, (d_o * o).sum(1), d_o, (size, size), Traffic()
    d_q, d_w = conv_tiled.backward_queries(*given)
    return d_q, *conv_tiled.backward_keys(*given), d_w


# %% [markdown]
# The taps have odd and even sizes, square and non-square. There is one token, one tile,
# many tiles, ragged tiles, and more taps than tokens. With tensors on the CPU, `launch`
# runs `sim`, which also looks for races, for reads of uninitialised memory, and for
# accesses out of bounds. Any finding would stop the cell.

# %% tags=["uses-exercise"]
shapes = [
    (1, 3, 1, 1, 4),
    (5, 4, 3, 3, 8),
    (14, 4, 3, 3, 8),
    (13, 3, 2, 4, 8),
    (11, 3, 4, 2, 8),
    (14, 2, 1, 4, 8),
    (10, 2, 4, 1, 8),
    (9, 3, 3, 5, 12),
    (5, 2, 6, 11, 24),
    (20, 4, 6, 11, 24),
]
print(
    f"{'N':>3}{'taps':>8}{'size':>6}{'tiles':>7}   "
    f"{'dQ':>6}{'dK':>6}{'dV':>6}{'dW':>6}   tile by tile in PyTorch"
)
for n, d, c_q, c_k, size in progress_bar(shapes):
    inputs = case(n, d, c_q, c_k)
    rows, columns = owned((size, size), halo_of(inputs[3]), backward=True)
    got, wanted = backward(*inputs, size=size), by_hand(*inputs)
    agree = "".join(f"{near(*pair)!s:>6}" for pair in zip(got, wanted))
    tiles = f"{math.ceil(n / rows)}×{math.ceil(n / columns)}"
    print(
        f"{n:3}{c_q:5}×{c_k:<2}{size:6}{tiles:>7}   {agree}   "
        f"{all(map(near, got, by_tiles(*inputs, size)))}"
    )

# %% [markdown]
# ### Two taps that learn
#
# What are gradients good for? Suppose some taps are hidden: 0.5 for a key's left neighbour and 1.5 for the
# key itself. All you see is the output that they produce. Start from (1, 0), compare the outputs, let *your*
# kernels compute dW, and take a step against it. **Predict.** Does this find the two numbers, or just some
# taps that give a similar output?

# %% tags=["uses-exercise"]
q, k, v, _, _ = case(12, 4, 1, 2)
hidden, taps = torch.tensor([[0.5, 1.5]]), torch.tensor([[1.0, 0.0]])
target, _ = forward(q, k, v, hidden)
for step in progress_bar(range(13), desc="training"):
    error = forward(q, k, v, taps)[0] - target
    *_, d_w = backward(q, k, v, taps, 2 * error / error.numel())
    if step % 3 == 0:
        found = ", ".join(f"{number:.2f}" for number in taps.flatten().tolist())
        print(f"step {step:2}: taps {found}   loss {(error**2).mean().item():.4f}")
    taps = taps - 10 * d_w

# %% [markdown]
# This is all that training is, and you have written every derivative in it. Lesson 15 does it with a whole
# model.
#
# ### On a real GPU, if you have one
#
# With tensors on a GPU, `launch` runs on that GPU. The next cell prints the same line with and without one.

# %% tags=["uses-exercise"]
device = "cuda" if torch.cuda.is_available() else "cpu"
inputs = case(14, 4, 3, 3)
there = [x.cpu() for x in backward(*(x.to(device) for x in inputs))]
print(
    "your kernels, on this device, agree with lesson 12:",
    all(map(near, there, by_hand(*inputs))),
)

# %% [markdown]
# ## In three lines
#
# - There are two kernels, because a sum over keys belongs to a block of queries, and a sum over queries
#   belongs to a block of keys. dW belongs to no block and is added up at the end.
# - The halo has rows above (to recompute T) and rows below (they send gradient back). Several tiles load it,
#   and only one counts it.
# - A tile has three origins: one for S0, one for dT and P, and one for dS. Confusing
#   them is the usual mistake.
#
# **You can now** write and test the backward pass of any attention that fits into tiles.
#
# **Read on:** Dao, *FlashAttention-2* (2023, arXiv:2307.08691), section 3.1, on its backward pass, and Dao,
# Fu, Ermon, Rudra, Ré, *FlashAttention* (2022, arXiv:2205.14135), appendix B. Goldberg, *What Every Computer
# Scientist Should Know About Floating-Point Arithmetic* (ACM Computing Surveys, 1991), on sums that depend on
# their order. PyTorch's documentation has a note "Reproducibility".
#
# **Next:** [lesson 14](14_decoding.ipynb) leaves training behind and generates text:
# one token at a time, with a cache, and the merge of
# [lesson 01](01_online_softmax.ipynb). The third sitting, below, is optional: a sum
# that changes from run to run, a bug hunt, and the package's kernels.

# %% [markdown]
# # Third sitting (optional, 60 minutes)
#
# ## 7. A sum that is never the same (20 minutes)
#
# All blocks add to one dW. What if they did so without an atomic?


# %%
@cuda.jit(device=True)
def add_plainly(d_w, tap_sums):
    """Add this block's part of dW to the total, with a plain +=."""
    taps, c_k = d_w.shape[1] * d_w.shape[2], d_w.shape[2]
    for e in range(cuda.threadIdx.x, taps, cuda.blockDim.x):
        a, b = e // c_k, e % c_k
        d_w[cuda.blockIdx.x % d_w.shape[0], a, b] += tap_sums[a, b]


# %% [markdown]
# **Guess before you run.** Is the result correct? And does `sim` find something?

# %% tags=["uses-exercise"]
reports = []


def reporting(*arguments):
    """Run a launch, and keep its report with the findings."""
    reports.append(simulated(*arguments, on_finding="report"))


inputs = case(14, 4, 3, 3)
got = backward(*inputs, run=reporting, queries={"add_to_all": add_plainly})
print("dW is correct:", near(got[3], by_hand(*inputs)[3]))
for line in reports[0].findings[0].message.splitlines():
    print(line.partition("   value ")[0])

# %% [markdown]
# `sim` runs one thread at a time, so the result is correct here. On a GPU, two blocks may read the same old
# value, and one of the additions is lost. That is lesson 04's lost update, and the finding reports it
# whatever the result is. With `cuda.atomic.add`, no addition is lost. So does every run give the same dW?
#
# ### Three numbers
#
# An atomic makes each addition indivisible. It does not say **in which order** they happen. float32 keeps 24
# binary digits, about seven decimal digits, and rounds after every addition.
#
# **Predict.** Take the three numbers 100000000, 1 and −100000000, in float32. What is (100000000 + 1) −
# 100000000? And what is (100000000 − 100000000) + 1?

# %%
large, small = float32(100_000_000), float32(1)
print("(large + small) - large =", (large + small) - large)
print("(large - large) + small =", (large - large) + small)

# %% [markdown]
# Near a hundred million, neighbouring float32 numbers are 8 apart, so the 1 is rounded away. Floating-point
# addition is **not associative**: a sum depends on its order. (With two numbers, the order doesn't matter.
# From three on, it does.)
#
# Blocks finish in an order that no program controls. On a GPU it depends on what else is running, and in
# `sim` on the seed. So you can test your own kernel:
#
# **Predict.** With four blocks and twenty seeds, how many *different* results, bit by bit, do dQ, dK, dV and
# dW have?


# %% tags=["uses-exercise"]
def different(**options):
    """Return how many different dQ, dK, dV and dW come out under twenty seeds, and
    whether all of them are correct."""
    wanted = by_hand(*inputs)
    runs = [
        backward(*inputs, run=functools.partial(simulated, seed=seed), **options)
        for seed in progress_bar(range(20))
    ]
    right = all(near(*pair) for run in runs for pair in zip(run, wanted))
    return [
        len({results.numpy().tobytes() for results in column}) for column in zip(*runs)
    ], right


counts, right = different()
print(
    "different dQ, dK, dV:",
    counts[:3],
    "  more than one dW:",
    counts[3] > 1,
    "  all correct:",
    right,
)

# %% [markdown]
# Every dW is correct, to about seven digits, and there are several different ones. dQ, dK and dV are always
# the same: each of their entries has one owner, which adds in a fixed order.
#
# Is it a bug? It is not a race: `sim` finds nothing. But it is a nuisance. If you train twice with the same
# seed, the two models drift apart. And a test that requires equality fails now and then.
#
# ### The reproducible way
#
# Give each block its own slot, and add up afterwards, **in a fixed order**: partial sums, and then a second
# reduction. Your kernel can do this already. Look at the index in `add_to_all`, `cuda.blockIdx.x %
# d_w.shape[0]`. If `d_w` has as many layers as there are blocks, each block has a layer to itself. (The
# atomic does no harm there, because no other block uses that layer.) The second reduction is `d_w.sum(0)` in
# `backward`.

# %% tags=["uses-exercise"]
counts, right = different(partials=True)
print("different dQ, dK, dV, dW:", counts, "  all correct:", right)

# %% [markdown]
# What does it cost? A little memory, c_q · c_k numbers per block, and one more small kernel for the sum. In
# the package it is an option, `conv_backward(…, deterministic=True)`. `kernels.conv_attention` chooses it
# when `torch.use_deterministic_algorithms(True)` is set. The next cell tries it with 30 tokens and 11 × 1
# taps, in tiles that own 12 rows: three blocks, six seeds.

# %%
q, k, v, d_o = torch.randn(4, 1, 1, 30, 4)
w = torch.randn(1, 11, 1) / 3
o, log_sum = conv_forward(q, k, v, w)
for deterministic in (False, True):
    results = set()
    for seed in progress_bar(range(6)):
        run = functools.partial(simulated, seed=seed)
        *_, d_w = conv_backward(
            q,
            k,
            v,
            w,
            o,
            log_sum,
            d_o,
            wanted=(False, False, False, True),
            deterministic=deterministic,
            run=run,
            size=32,
        )
        results.add(d_w.numpy().tobytes())
    print(
        f"the package's dW, deterministic={deterministic}: "
        f"{'always the same' if len(results) == 1 else 'more than one result'}"
    )

# %% [markdown]
# ## 8. A bug hunt: the algorithms as they were published (25 minutes)
#
# The pseudocode whose forward pass you took apart in lesson 10 also has a backward pass: "Algorithm 2" (dQ
# and dW) and "Algorithm 3" (dK and dV). In outline:
#
# | | step |
# |---|---|
# | 1 | a tile of B rows begins at i0 − 2·P_q, where i0 is the first row that it owns; it owns B − 2·P_q rows |
# | 2 | S, its convolution, P and dT of the whole tile, as far as the convolution reaches |
# | 3 | dW: the sum of dT · S over the **whole tile** |
# | 4 | the gradient of QKᵀ: the transposed convolution of dT, on the whole tile |
# | 5 | Algorithm 3: dV += Pᵀ dO and dK += (4)ᵀ Q, over **all rows** of the tile |
# | 6 | at the end: dW is added atomically |
#
# **Guess before you go on:** it contains four faults. Where are the rows below, in step 1? What is missing in
# step 4?
#
# <details><summary>The four</summary>
#
# | name | fault |
# |---|---|
# | `"no rows below"` | step 1: the B rows end with the owned ones. All 2·P_q halo rows lie above, where only P_q are needed |
# | `"taps twice"` | step 3: dW includes the halo, which its owners count as well |
# | `"halo rows"` | step 5: dK and dV include the halo rows, which other tiles own |
# | `"no mask"` | step 4: the gradient of the zeros in the future is left in |
#
# </details>
#
# Four sets of functions, a to d, each contain **one** of these faults, adapted to our tiles (so the halo that
# is counted twice is the one below and at the sides). Which letter has which fault is drawn at random in each
# session. You now have a tool that lesson 12 lacked: it shows not only *which* gradient is wrong, but
# **where**.
#
# **Predict**, for 14 tokens, 3 × 3 taps and tiles that own 4 × 4, so the tiles own the rows 0–3, 4–7, 8–11
# and 12–13. If the rows below are missing, which rows of dQ are wrong? And if halo rows are counted, are the
# keys 12 and 13 wrong?


# %% tags=["uses-exercise"]
def places(got, wanted):
    """Return one character per row: x where it is wrong."""
    wrong = (got.double() - wanted).abs().amax(1) > 1e-4 * wanted.abs().max()
    return "".join("x" if here else "." for here in wrong)


def where_wrong(pieces, n, c_q, c_k, size=8):
    """Return which rows of dQ, dK and dV are wrong with these functions, and whether
    dW is."""
    inputs = case(n, 4, c_q, c_k)
    for_queries = {
        name: piece
        for name, piece in pieces.items()
        if name in inspect.signature(queries_kernel).parameters
    }
    for_keys = {
        name: piece
        for name, piece in pieces.items()
        if name in inspect.signature(keys_kernel).parameters
    }
    *got, d_w = backward(*inputs, size=size, queries=for_queries, keys=for_keys)
    *wanted, right_w = by_hand(*inputs)
    return [*map(places, got, wanted), "correct" if near(d_w, right_w) else "WRONG"]


where = {
    name: where_wrong(pieces, n=14, c_q=3, c_k=3)
    for name, pieces in lesson13.under_test.items()
}
print(f"   {'dQ':16}{'dK':16}{'dV':16}dW")
for name, found in where.items():
    print(f"{name}: " + "".join(f"{words:16}" for words in found))

# %% [markdown]
# ### Exercise 13.7 · diagnosis · four words
#
# Which letter has which fault? Return `{"a": ..., "b": ..., "c": ..., "d": ...}` with the names from the
# table. The letters are drawn again when the kernel restarts. So you can write down the four names that fit
# this session, or a few lines of code that decide by experiment, as the published solution does. You can try
# other taps and other lengths: `where_wrong(lesson13.under_test["a"], 14, 1, 3)`.
#
# <details><summary>Hint: two of them spoil dQ and dK</summary>
#
# Which rows of a tile need rows from the next tile? The last P_q. And which rows have a future key in a tile
# that the loop visits? In a diagonal tile, all rows but the last.
#
# </details>


# %% tags=["exercise"]
def diagnosis():
    """Return {letter: name of the fault}."""
    # BEGIN SOLUTION 13.7
    found = {}
    for name, (d_q, _, d_v, _) in where.items():
        if "x" in d_v:
            found[name] = "halo rows"
        elif "x" not in d_q:
            found[name] = "taps twice"
        elif d_q.startswith("xxx."):  # the last row of a diagonal tile is correct
            found[name] = "no mask"
        else:
            found[name] = "no rows below"
    return found
    # END SOLUTION


# %% tags=["check"]
check.ex13_7(diagnosis)

# %% [markdown]
# - **No mask** keeps the gradient at future keys. Only diagonal tiles have any, in all rows but the last. So
#   the last row of each diagonal tile is correct in dQ, and the first key of each is correct in dK.
# - **Halo rows** counts two rows of each tile twice, and these rows see most of the keys. Only the last tile
#   of rows has none below, so the last two keys are correct.
# - **No rows below** loses readers of the last two rows of each tile. The last tile has no rows below to
#   lose. In dK, each such row affects all the keys that it sees. dV needs only P of the owned rows, so it is
#   correct.
# - **Taps twice** spoils dW and nothing else.
#
# Which tests would have found them? **Predict** for each test which of the four it misses:
#
# - 14 tokens with 1 × 3 taps: there is nothing above or below
# - 4 tokens with 3 × 3 taps: the whole sequence fits into one tile
# - 14 tokens with 1 × 1 taps: there is no halo at all

# %% tags=["uses-exercise"]
print(f"{'test':22}" + "".join(f"{name:15}" for name in lesson13.FAULTS))
for n, c_q, c_k in [(14, 3, 3), (14, 1, 3), (4, 3, 3), (14, 1, 1), (5, 2, 1)]:
    found = []
    for pieces in lesson13.FAULTS.values():
        *rows, d_w = where_wrong(pieces, n, c_q, c_k)
        found.append("found" if "x" in "".join(rows) or d_w == "WRONG" else "MISSED")
    print(
        f"{f'{n} tokens, {c_q} × {c_k} taps':22}"
        + "".join(f"{word:15}" for word in found)
    )

# %% [markdown]
# 1 × 3 taps need no rows above or below, so the two faults with halo rows are missed. 1 × 1 taps find
# nothing, because this is ordinary attention without a halo. (Future scores are read only by T in the future,
# where dT is 0.) A single tile finds only the missing mask. The last test has five tokens. A tile of size 8
# with 2 × 1 taps owns six rows, so again it is a single tile, though the sizes look irregular. Count what a
# tile **owns** before you trust a small test. Most rows of your validation table above have several tiles.
#
# ## 9. The package's kernels (15 minutes)
#
# `kernels/conv/backward.py` has the same two kernels, for batches and heads, any taps up to 15 × 15, d up to
# 128, causal or not. The steps are the same as yours, only faster. This is the loop of its first kernel:

# %%
source = inspect.getsource(inspect.getmodule(conv_backward)).splitlines()
begin = next(
    number
    for number, line in enumerate(source)
    if "for j0 in range(0, last_key" in line
)
end = next(number for number, line in enumerate(source) if "store_rows(d_q" in line)
print("\n".join(source[begin : end + 1]))

# %% [markdown]
# - `recompute_tile` recomputes S0, P and dT of the tile. It calls `products`, which gives each thread a patch
#   of 4 × 4 scores, and brings rows of q and k through shared memory a few columns at a time, instead of
#   reading each element from global memory again and again.
# - Convolutions run in **strips**: a thread has 8 neighbouring entries of a row, and uses each value that it
#   has loaded for several of them.
# - dT overwrites dP, and dS overwrites S0. (In the other kernel, P overwrites S0 and dS overwrites dT.) So
#   there are only two tiles in shared memory, and they can be 64 × 64. With 7 × 7 taps, such a tile owns 52 ×
#   52.
# - D is computed outside, `(d_o * o).sum(-1)`.
# - Gradients that are not requested are not computed: if neither result of a kernel is needed, it is not
#   launched.
#
# `kernels.conv_attention` combines all of it for autograd: the forward kernel, then these two.

# %%
names = "q", "k", "v", "w"
tensors = {name: torch.randn(1, 2, 20, 6, requires_grad=True) for name in names[:3]} | {
    "w": (torch.randn(2, 2, 4) / 3).requires_grad_()
}
d_o = torch.randn(1, 2, 20, 6)
mine = torch.autograd.grad(
    kernels.conv_attention(*tensors.values()), tensors.values(), d_o
)
plain = torch.autograd.grad(
    reference.conv_attention(*(x.double() for x in tensors.values())),
    tensors.values(),
    d_o.double(),
)
for name, got, wanted in zip(names, mine, plain):
    print(f"gradient of {name}: as autograd through plain PyTorch: {near(got, wanted)}")

# %% [markdown]
# ### What it costs
#
# Count multiply-adds per score, with c = c_q · c_k, without halos. The first kernel computes S0, dP and dQ (d
# each), and convolves forward, back, and for the taps (c each). The second computes S0, dP, dK and dV, and
# convolves twice.
#
# **Predict.** With d = 64 and 7 × 7 taps, how many times the forward pass's work is that? The forward pass
# has 2·d + c.

# %%
d, c = 64, 49
work = {"forward": 2 * d + c, "dQ and dW": 3 * d + 3 * c, "dK and dV": 4 * d + 2 * c}
loaded, taps = 64, torch.empty(7, 7)
for name, adds in work.items():
    tile = owned((loaded, loaded), halo_of(taps), backward=name != "forward")
    print(
        f"{name:10} {adds:4} multiply-adds per score; "
        f"a tile of {loaded} × {loaded} owns {tile[0]} × {tile[1]}: "
        f"{loaded**2 / math.prod(tile):.2f} scores computed per owned score"
    )
print(
    "both backward kernels: "
    f"{(work['dQ and dW'] + work['dK and dV']) / work['forward']:.1f} times "
    "the forward pass"
)

# %% [markdown]
# ### Memory
#
# Between the forward and the backward pass, autograd keeps what the function asks it to keep: q, k, v, w, O
# and L. Here we count it, in the simulator:


# %%
def kept_numbers(attend, n, d=8):
    """Return how many numbers autograd keeps for the backward pass of attend.
    Memory that tensors share is counted once."""
    kept = {}

    def keep(x):
        kept[x.untyped_storage().data_ptr()] = (
            x.untyped_storage().nbytes() // x.element_size(),
            x,
        )
        return x

    q, k, v = (x.requires_grad_() for x in torch.randn(3, 1, 1, n, d))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        attend(q, k, v, torch.randn(1, 3, 3, requires_grad=True))
    return sum(count for count, _ in kept.values())


print(f"{'N':>5}{'kernels':>10}{'4·N·d + N + 9':>16}   plain PyTorch, more than 2·N²")
for n in (16, 32, 64):
    ours, plain = (
        kept_numbers(kernels.conv_attention, n),
        kept_numbers(reference.conv_attention, n),
    )
    print(f"{n:5}{ours:10}{4 * n * 8 + n + 9:16}   {plain > 2 * n * n}")

# %% [markdown]
# Twice the tokens, twice the memory. While it runs, the backward pass also needs memory
# for dQ, dK, dV, D and dW, and with `deterministic=True` for another c_q · c_k numbers
# per block of queries. All of that grows with N, and nothing grows with N².
#
# And on a GPU? These numbers were recorded with `python -m kernels.bench`. "eager" is plain PyTorch, and both
# are in float32.

# %%
bench = json.loads(
    (Path(kernels.__file__).parent / "data" / "bench.json").read_text(encoding="utf-8")
)
rows = {(tuple(row["shape"]), row["name"]): row for row in bench["training"]}
lengths = [512, 1024, 2048, 4096]
print("recorded on {gpu}, {date}: 7 × 7 taps, last row 6 × 11".format(**bench))
print(
    f"{'':16}{'backward ms':^22}{'forward ms':^22}{'peak MiB':^22}\n{'B, H, N, d':15} "
    + f"{'kernels':>11}{'eager':>9}  " * 3
)
shapes = list(dict.fromkeys(shape for shape, _ in rows))
for shape in shapes:
    mine, eager = (rows[shape, name] for name in ("kernels", "eager"))
    print(
        f"{', '.join(map(str, shape)):15} "
        + "".join(
            f"{mine[what]:11.1f}{eager[what]:9.1f}  "
            for what in ("backward_ms", "forward_ms", "peak_mib")
        )
    )
print("\nB, H, N, d       backward: eager / kernels   kernels: backward / forward")
for shape in shapes:
    mine, eager = (rows[shape, name] for name in ("kernels", "eager"))
    print(
        f"{', '.join(map(str, shape)):15}"
        f"{eager['backward_ms'] / mine['backward_ms']:18.1f}"
        f"{mine['backward_ms'] / mine['forward_ms']:27.1f}"
    )

# %% [markdown]
# By the count above, the backward pass is 3.9 times the forward pass's work. In every row of the
# table it takes longer than that, most of all for short sequences. One reason is the halo, which the count leaves out. It is on both sides here: a tile of 64
# × 64 owns only 52 × 52.
#
# In the last two rows there are more heads, and the kernels gain less over plain PyTorch than for 8 heads of
# the same length. The table cannot tell us why.
#
# Here is the memory as a picture:

# %%
figure, axes = plt.subplots(figsize=(6, 3.8), layout="constrained")
for name, colour, line in [("eager", ORANGE, "s--"), ("kernels", BLUE, "o-")]:
    axes.loglog(
        lengths,
        [rows[(1, 8, n, 64), name]["peak_mib"] for n in lengths],
        line,
        color=colour,
        label=name,
    )
axes.loglog(
    lengths,
    [0.6 * rows[(1, 8, 512, 64), "kernels"]["peak_mib"] * n / 512 for n in lengths],
    ":",
    color=GREEN,
    label="grows as N",
)
axes.set(xlabel="N", ylabel="peak memory, MiB", title="forward and backward pass")
axes.set_xticks(lengths, lengths)
axes.minorticks_off()
axes.grid(alpha=0.3)
axes.legend()
show_figure(
    figure,
    "memory at the peak of a forward and a backward pass, over N from 512 to 4096, "
    "both axes logarithmic. "
    "The line of the kernels is parallel to a dotted line that grows as N. "
    "The line of plain PyTorch begins about ten times higher and is steeper.",
)

# %% [markdown]
# **What you found:** atomics lose no update but fix no order, and floating-point addition depends on the
# order. One slot per block and a second sum in a fixed order give the same bits every time. Wrong rows tell
# you which part of a tile was counted twice or not at all. The package's kernels take the same steps with
# larger tiles, and their memory grows with N.
#
# **Next:** [lesson 14](14_decoding.ipynb) leaves training behind and generates text,
# one token at a time.
