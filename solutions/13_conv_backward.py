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
# **110 minutes** to both kernels, checked and put to use, and 60 for the three parts marked *optional* · builds on lesson 12 (the gradients by hand), lesson 10 (tiles and halos) and lesson 04 (races, `cuda.atomic.add`)
#
# You will be able to
# 1. say why the backward pass is two kernels, and what each of their tiles has to load and may count;
# 2. write the gradient lines of both, and see in which piece a mistake was made;
# 3. say why a sum by atomics changes from run to run, and how to get one that does not.
#
# Lesson 12 went the whole road back with N×N matrices. Here the same road is walked tile by tile, by blocks of threads, and no such matrix
# exists. No GPU is needed. Everything is for one head, and causal; the package's kernels at the end do the rest.

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
# ## 1. Who owns what?
#
# The forward pass was easy to share out: a block owned some queries, and their rows of O. No other block wrote there. Now there are four results:
#
# | result | one number of it is a sum over | so it belongs to |
# |---|---|---|
# | dQ[i] = scale · Σ_j dS[i, j] K[j] | all **keys** j | the block that has row i of dS |
# | dK[j] = scale · Σ_i dS[i, j] Q[i] | all **queries** i | the block that has column j of dS |
# | dV[j] = Σ_i P[i, j] dO[i] | all **queries** i | the block that has column j of P |
# | dW[a, b] = Σ_ij dT[i, j] S0[i − P_q + a, j − P_k + b] | **everything** | no block |
#
# A block that keeps a tile of queries and walks over the keys meets the whole row i, so it can add up dQ[i] on the chip and write it once. But of dK[j]
# it has only its own queries' part, and every other block has another part. For a block that keeps keys it is the other way round. So there are **two kernels**.
# Both compute S0, T, P and dT again, tile by tile. (The next cell only draws.)


# %% jupyter={"source_hidden": true}
def strip(axes, title, horizontal):
    """The lower half of a 12×12 matrix of scores;
    tiles of 4×4, the block's own ones in colour."""
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
# Why not one kernel, that adds its part of dK and dV to global memory? Different blocks would add to the same numbers, so each addition would have to be
# **atomic** (lesson 04).
#
# **Predict.** N = 4096, d = 64, 7 × 7 taps, tiles that own 52 × 52. For each tile on or below the diagonal, such a kernel adds 52 rows of d numbers to dK and as many
# to dV. About how many atomic additions is that, for one head? `___` And dW, with one addition for each block and tap, as in our first kernel? `___`

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
# It can be done: FlashAttention-2 has one kernel for ordinary attention, which keeps keys and adds its parts of dQ atomically. We rather compute the scores twice. Then each number of dQ, dK and dV has one
# owner, who writes it once (and section 7 shows what else that is good for). dW is another matter: no block can own it, but it is small. It joins the kernel of dQ; it could as well have joined the other one.
#
# ## 2. The rows below, on paper
#
# One key, four queries, two taps one above the other: T[i] = 3·S[i−1] + 1·S[i]. In lesson 12 you asked *who read me?* S[i] was read by T[i], with 1, and by the
# **next** query, T[i+1], with 3. So dS[i] = 1·dT[i] + 3·dT[i+1]. And the taps: dW[1] = Σ dT[i]·S[i], dW[0] = Σ dT[i]·S[i−1].
#
# | query | 0 | 1 | 2 | 3 |
# |---|---|---|---|---|
# | S | 1 | 1 | 2 | 3 |
# | dT | 1 | 2 | 5 | 4 |
# | dS | 1 + 6 = 7 | 2 + 15 = 17 | 5 + 12 = 17 | 4 |
#
# dW[1] = 1 + 2 + 10 + 12 = 25 and dW[0] = 2 + 5 + 8 = 15. Now two tiles: the queries 0 and 1, and the queries 2 and 3.
#
# **Predict.** (a) If no tile has more dT than it owns, which dS is wrong, and what is it? `___` (b) So each tile also gets dT of the row **below**. If it now sums dW over
# all the dT that it has, dW = `___`

# %%
s, dt, taps = [1, 1, 2, 3], [1, 2, 5, 4], (3, 1)
in_two = [[0, 1], [2, 3]]


def d_s_of(rows, have):
    """dS of these rows, from the dT of the rows `have`."""
    return [
        sum(taps[1 - step] * dt[i + step] for step in (0, 1) if i + step in have)
        for i in rows
    ]


def d_w_of(rows):
    """dW as the dT of these rows give it."""
    return np.array(
        [sum(dt[i] * s[i - 1] for i in rows if i > 0), sum(dt[i] * s[i] for i in rows)]
    )


print("dS, in one piece        ", d_s_of(range(4), range(4)))
print("dS, no row below        ", sum((d_s_of(rows, rows) for rows in in_two), []))
print("dS, with the row below  ", sum((d_s_of(rows, range(4)) for rows in in_two), []))
print("dW, over the owned rows ", sum(d_w_of(rows) for rows in in_two).tolist())
print(
    "dW, over all that it has",
    sum(
        d_w_of([*rows, rows[-1] + 1] if rows[-1] < 3 else rows) for rows in in_two
    ).tolist(),
)

# %% [markdown]
# (a) dS[1] becomes 2: it loses what query 2 sends back. (b) Query 2 counts twice, and dW becomes (20, 35).
#
# Both are in the published algorithm, as we shall see. And one more thing is to be seen here. To get dT[2], the first tile needs T[2], which reads S[1] and S[2]. To get dT[0], T[0] reads S[−1]: the
# row **above**. (Here it lies outside; for the second tile, T[2] reads S[1].) So the halo is on **both** sides: the rows below because they send gradient back, the rows above because
# T has to be computed again.
#
# ## 3. Exercise 13.1 · to_load · about five lines
#
# A tile owns `rows` rows of S0 from `i0` on and `columns` columns from `j0` on: for these it shall find dS. Return two frames, each `(top, bottom, left, right)` as in lesson 10: rows
# top, …, bottom − 1 and columns left, …, right − 1.
#
# - of **dT**: all T that read an owned score;
# - of **S0**: all scores that *these* T read.
#
# P_q = c_q − 1, P_k = (c_k − 1) // 2, P_r = c_k − 1 − P_k. Do not clip at the borders.
#
# <details><summary>Hint 1: dT</summary>
#
# S0[r, c] is read by T[r + P_q − a, c + P_k − b]. The tap a runs from 0 to P_q, b from 0 to P_k + P_r. So the readers are in the rows r to r + P_q and in the columns c − P_r to c + P_k. (Left and right
# are swapped against the forward pass: my right neighbour sees me on its left.)
#
# </details>
# <details><summary>Hint 2: S0</summary>
#
# That is `to_load` of lesson 10, for a tile that owns what you have just found: P_q rows above its top, P_k columns to its left, P_r to its right.
#
# </details>


# %% tags=["exercise"]
def to_load(i0, j0, rows, columns, c_q, c_k):
    """((top, bottom, left, right) of dT, (top, bottom, left, right) of S0) for a tile
    that owns rows [i0, i0 + rows) and columns [j0, j0 + columns)."""
    # BEGIN SOLUTION 13.1
    above, left = c_q - 1, (c_k - 1) // 2
    right = c_k - 1 - left
    of_t = i0, i0 + rows + above, j0 - right, j0 + columns + left
    return of_t, (of_t[0] - above, of_t[1], of_t[2] - left, of_t[3] + right)
    # END SOLUTION


# %% tags=["check"]
check.ex13_1(to_load)

# %% [markdown]
# Your frames, for 3 × 4 taps: of a single score, and of a tile that owns 4 × 4. (The cell only draws.)


# %% tags=["uses-exercise"] jupyter={"source_hidden": true}
def draw_frames(axes, title, i0, j0, rows, columns):
    """What to_load says of this tile, with 3 × 4 taps: owned, dT, S0."""
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
    axes.set_xticks([n + 0.5 for n in range(16)], range(16))
    axes.set_yticks([n + 0.5 for n in range(16)], range(16))
    axes.tick_params(length=0)


figure, (left, right) = plt.subplots(1, 2, figsize=(11, 6), layout="constrained")
draw_frames(left, "one score: its readers, and what they read", 9, 6, 1, 1)
draw_frames(right, "a tile of 4 × 4", 8, 4, 4, 4)
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
    "rows more above, keys 1 to 10, one column more to the left and two to the right.",
)

# %% [markdown]
# For the tile, in all 8 × 10 scores: a tile that loads `size` × `size` owns only size − 2·P_q rows and size − 2·(c_k − 1) columns. And there are **three** places to start counting from, which is where the mistakes are made. We keep
# each array with its own corner at index (0, 0):
#
# | tile | entry (0, 0) is | height × width |
# |---|---|---|
# | `s_tile` | query i0 − P_q, key j0 − (c_k − 1) | size × size |
# | `p_tile`, `d_t_tile` | query i0, key j0 − P_r | size − P_q × size − (c_k − 1) |
# | `d_s_tile` | query i0, key j0 | rows × columns |
#
# **On paper.** T at (i, j) of its tile is Σ w[a, b] · s_tile[ `___` , `___` ]. And the owned column j, in `d_t_tile`, is column `___`
#
# <details><summary>Answer</summary>
#
# s_tile[i + a, j + b]: it starts P_q rows and P_k columns earlier, just where the taps begin. And column P_r + j, which the code calls `right + j`.
#
# </details>
#
# ## 4. The kernel of dQ and dW
#
# First some helpers, in the manner of lesson 05. The threads of a block share every tile: thread t of T takes the entries t, t + T, and so on. (To keep them short, rows of q and k are read straight from
# global memory. The package's kernels do not do that.)


# %%
@cuda.jit(device=True)
def clear(tile):
    """tile = 0."""
    height, width = tile.shape
    for e in range(cuda.threadIdx.x, height * width, cuda.blockDim.x):
        tile[e // width, e % width] = float32(0)


@cuda.jit(device=True)
def products(tile, x, y, first_x, first_y, factor, causal):
    """tile[r, c] = factor · x[first_x + r] · y[first_y + c]; 0 where a row is outside x
    or y, and, if causal, where the key comes after the query."""
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
    """T at (i, j) of its tile."""
    t = float32(0)
    for a in range(w.shape[0]):
        for b in range(w.shape[1]):
            t += w[a, b] * s_tile[i + a, j + b]
    return t


@cuda.jit(device=True)
def store_rows(rows_of, first, tile, count, factor):
    """rows_of[first : first + count] = factor · tile[:count]."""
    d = rows_of.shape[1]
    for e in range(cuda.threadIdx.x, count * d, cuda.blockDim.x):
        rows_of[first + e // d, e % d] = factor * tile[e // d, e % d]


@cuda.jit(device=True)
def add_to_all(d_w, tap_sums):
    """This block's part of dW joins the sum of all: one atomic addition for each tap.
    d_w: (R, c_q, c_k); R is 1 for now."""
    taps, c_k = d_w.shape[1] * d_w.shape[2], d_w.shape[2]
    for e in range(cuda.threadIdx.x, taps, cuda.blockDim.x):
        a, b = e // c_k, e % c_k
        cuda.atomic.add(d_w, (cuda.blockIdx.x % d_w.shape[0], a, b), tap_sums[a, b])


# %% [markdown]
# Now your part: the gradient lines. The loops over the entries are given; they deal the entries out among the threads. So each entry has one thread, and no addition needs to be atomic. All is computed in float32. Each piece has its own check, on every kind of tile (one token, ragged, more taps than tokens, even taps, 13 taps in a row). What a piece should not read or write
# is full of NaN there.
#
# ### Exercise 13.2 · gradient_of_t · about six lines
#
# `d_t_tile` comes in with dP = dO·vᵀ in it. Entry (i, j) shall become **dT = P · (dP − D)**, and `p_tile` gets **P = exp(T − L)**, at every entry whose key is not after its query and where both are in the sequence: 0 ≤ key ≤ query < N.
# At all others both are 0. Scores reach ±1000, so T and L go into one exponential. `log_sum` is L and `delta` is D = rowsum(dO · O), a number for each query.
#
# <details><summary>Hint 1: the one trap</summary>
#
# Ask before you look: `log_sum[query]` exists only if 0 ≤ query < N.
#
# </details>
# <details><summary>Hint 2: the branches</summary>
#
# `if 0 <= key <= query < log_sum.size:` has `p = math.exp(convolved(s_tile, w, i, j) - log_sum[query])`; the `else` writes two zeros, `float32(0)`.
#
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def gradient_of_t(p_tile, d_t_tile, s_tile, w, log_sum, delta, i0, j0):
    """p_tile = P and d_t_tile = dT, from d_t_tile = dP and s_tile = S0;
    entry (0, 0) of both is query i0 and key j0. log_sum, delta: (N,)."""
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
# Entry (i, j) of dS, on what the tile owns: the sum over its readers, and 0 where the key j0 + j comes after the query i0 + i.
#
# **On paper first.** The reader with the tap (a, b) is T[r + P_q − a, c + P_k − b]. Row r is row i of `d_t_tile`, so the reader is in its row i + P_q − a. Column c is its column j + P_r. So the reader is in its column `___`
#
# <details><summary>Answer</summary>
#
# j + P_r + P_k − b = j + (c_k − 1) − b. So P_k and P_r need not be known one by one.
#
# </details>
# <details><summary>Hint: the loops</summary>
#
# As in `convolved`: `total = float32(0)`, then a over c_q and b over c_k. Here w[a, b] meets `d_t_tile[i + c_q - 1 - a, j + c_k - 1 - b]`.
#
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def gradient_of_s(d_s_tile, d_t_tile, w, i0, j0, rows, columns):
    """d_s_tile = dS of the owned rows × columns, from query i0 and key j0 on."""
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
# Each tap has a thread, and `tap_sums` stays on the chip while the block goes from tile to tile. So **add** this tile's part to `tap_sums[a, b]`: the sum of dT · S0 over what the tile **owns**.
#
# <details><summary>Hint</summary>
#
# For i in `range(rows)` and j in `range(right, right + columns)`, columns of `d_t_tile`: T at (i, j) reads `s_tile[i + a, j + b]` with this tap, as in `convolved`.
#
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def add_d_w(tap_sums, d_t_tile, s_tile, w, rows, columns, right):
    """tap_sums[a, b] += Σ dT · S0 over the owned rows × columns;
    in d_t_tile these are the rows from 0 and the columns from `right` on."""
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
# `d_q_tile` stays on the chip too. Add this tile's dS K to it. Row j of K, seen from the tile, is `k[j0 + j]`. Leave out the scale: it comes once, at the end.


# %% tags=["exercise"]
@cuda.jit(device=True)
def add_d_q(d_q_tile, d_s_tile, k, j0, rows, columns):
    """d_q_tile[i, c] += Σ_j dS[i, j] · K[j0 + j, c] for the owned rows."""
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
# It is a function that **makes** a kernel, for a size of tile, out of pieces: yours, unless told otherwise. That will be of use in the bug hunt. Read it with the table of corners at hand.
#
# **Look for** three things: which pieces are given the owned part (`rows`, `owned_columns`) and which the whole tile; what must be finished before each barrier; and what is written to global memory.

# %%
WIDTH = 16  # d may be as large


def queries_kernel(
    size,
    gradient_of_t=gradient_of_t,
    gradient_of_s=gradient_of_s,
    add_d_w=add_d_w,
    add_d_q=add_d_q,
    add_to_all=add_to_all,
):
    """The kernel of dQ and dW, with tiles of size × size scores."""

    @cuda.jit
    def backward_queries(q, k, v, w, log_sum, delta, d_o, scale, d_q, d_w):
        """d_q = dQ and d_w += dW;
        q, k, v, d_o (N, d), w (c_q, c_k), log_sum, delta (N,)."""
        s_tile, p_tile = (
            cuda.shared.array((size, size), float32),
            cuda.shared.array((size, size), float32),
        )
        d_t_tile, d_s_tile = (
            cuda.shared.array((size, size), float32),
            cuda.shared.array((size, size), float32),
        )
        d_q_tile, tap_sums = (
            cuda.shared.array((size, WIDTH), float32),
            cuda.shared.array((size, size), float32),
        )
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
# The loop over keys ends at the diagonal, as in the forward pass. Is that enough here? The rows below, i0 + rows and further, see later keys. But whom do these tell anything? Only scores with a key at most P_r to the right and P_k to the left of
# them, and of those only the owned ones that are not in the future: all of them are in tiles that the loop visits, and these bring their halo of columns.
#
# ## 5. The kernel of dK and dV
#
# The same tile, kept by its keys. A sum over **rows** now, so here the halo **rows** are in danger of being counted twice.
#
# ### Exercise 13.6 · add_d_k_d_v · about three lines
#
# Add this tile's part of dSᵀ Q to `d_k_tile`, and of Pᵀ dO to `d_v_tile`, over the owned rows. Row i of the tile is query i0 + i.
#
# <details><summary>Hint</summary>
#
# `d_s_tile` has the owned column j at j. `p_tile` has it at `right + j`.
#
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def add_d_k_d_v(d_k_tile, d_v_tile, d_s_tile, p_tile, q, d_o, i0, rows, columns, right):
    """d_k_tile[j, c] += Σ_i dS[i, j] · Q[i0 + i, c]
    and d_v_tile[j, c] += Σ_i P[i, j] · dO[i0 + i, c] for the owned columns."""
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
# **Predict.** The kernel below walks over tiles of rows, from top to bottom. The rows are cut as in the other kernel: 0, rows, 2·rows, … For a block that keeps the keys from j0 on, at which i0 does the loop begin?  `___`


# %%
def keys_kernel(
    size,
    gradient_of_t=gradient_of_t,
    gradient_of_s=gradient_of_s,
    add_d_k_d_v=add_d_k_d_v,
):
    """The kernel of dK and dV, with tiles of size × size scores."""

    @cuda.jit
    def backward_keys(q, k, v, w, log_sum, delta, d_o, scale, d_k, d_v):
        """d_k = dK and d_v = dV;
        q, k, v, d_o (N, d), w (c_q, c_k), log_sum, delta (N,)."""
        s_tile, p_tile = (
            cuda.shared.array((size, size), float32),
            cuda.shared.array((size, size), float32),
        )
        d_t_tile, d_s_tile = (
            cuda.shared.array((size, size), float32),
            cuda.shared.array((size, size), float32),
        )
        d_k_tile, d_v_tile = (
            cuda.shared.array((size, WIDTH), float32),
            cuda.shared.array((size, WIDTH), float32),
        )
        n, c_q, c_k = q.shape[0], w.shape[0], w.shape[1]
        rows, right = size - 2 * (c_q - 1), c_k - 1 - (c_k - 1) // 2
        j0 = cuda.blockIdx.x * (size - 2 * (c_k - 1))
        columns = min(size - 2 * (c_k - 1), n - j0)
        clear(d_k_tile)
        clear(d_v_tile)
        for i0 in range(j0 // rows * rows, n, rows):
            owned_rows = min(rows, n - i0)
            products(s_tile, q, k, i0 - (c_q - 1), j0 - (c_k - 1), scale, True)
            products(d_t_tile, d_o, v, i0, j0 - right, float32(1), False)
            cuda.syncthreads()  # S0 and dP are there
            gradient_of_t(p_tile, d_t_tile, s_tile, w, log_sum, delta, i0, j0 - right)
            cuda.syncthreads()  # P and dT are there
            gradient_of_s(d_s_tile, d_t_tile, w, i0, j0, owned_rows, columns)
            cuda.syncthreads()  # dS is there, and S0 and dT are used
            add_d_k_d_v(
                d_k_tile,
                d_v_tile,
                d_s_tile,
                p_tile,
                q,
                d_o,
                i0,
                owned_rows,
                columns,
                right,
            )
        cuda.syncthreads()
        store_rows(d_k, j0, d_k_tile, columns, scale)
        store_rows(d_v, j0, d_v_tile, columns, float32(1))

    return backward_keys


# %% [markdown]
# At `j0 // rows * rows`: the tile of rows that contains query j0, the first one that sees key j0. Tiles above it see none of the block's keys.
#
# ## 6. Validate: both kernels against lesson 12
#
# A host function runs the two kernels, one after the other. It needs O and L, which a forward pass would have kept.

# %%
torch.manual_seed(13)


def forward(q, k, v, w):
    """(O, L) of one head, computed in float64: (N, d) and (N,)."""
    t = reference.conv_scores(
        q[None, None].double(), k[None, None].double(), w[None].double()
    )[0, 0]
    return (torch.softmax(t, 1) @ v.double()).float(), torch.logsumexp(t, 1).float()


def backward(
    q, k, v, w, d_o, size=8, threads=16, partials=False, run=None, queries={}, keys={}
):
    """(dQ, dK, dV, dW) of one head by the two kernels;
    queries, keys: pieces in place of yours."""
    o, log_sum = forward(q, k, v, w)
    rows, columns = owned((size, size), halo_of(w), backward=True)
    blocks = math.ceil(len(q) / rows)
    d_q, d_k, d_v = (torch.full_like(x, math.nan) for x in (q, k, v))
    d_w = w.new_zeros(blocks if partials else 1, *w.shape)
    given = q, k, v, w, log_sum, (d_o * o).sum(1), d_o, float32(q.shape[1] ** -0.5)
    launch(
        queries_kernel(size, **queries),
        (blocks,),
        (threads,),
        *given,
        d_q,
        d_w,
        run=run,
    )
    launch(
        keys_kernel(size, **keys),
        (math.ceil(len(q) / columns),),
        (threads,),
        *given,
        d_k,
        d_v,
        run=run,
    )
    return d_q, d_k, d_v, d_w.sum(0)


def by_hand(q, k, v, w, d_o):
    """The same by lesson 12, in float64, with N×N matrices."""
    q, k, v, w, d_o = (x.double() for x in (q, k, v, w, d_o))
    t = reference.conv_scores(q[None, None], k[None, None], w[None])
    tensors = (
        q[None, None],
        k[None, None],
        v[None, None],
        w[None],
        torch.softmax(t, 3) @ v,
        torch.logsumexp(t, 3),
        d_o[None, None],
    )
    return [
        x.reshape(like.shape)
        for x, like in zip(reference.conv_attention_backward(*tensors), (q, k, v, w))
    ]


def by_tiles(q, k, v, w, d_o, size):
    """The same by the package's Algorithms 2 and 3 in plain PyTorch, in float64."""
    o, log_sum = (x.double() for x in forward(q, k, v, w))
    q, k, v, w, d_o = (x.double() for x in (q, k, v, w, d_o))
    given = q, k, v, w, log_sum, (d_o * o).sum(1), d_o, (size, size), Traffic()
    d_q, d_w = conv_tiled.backward_queries(*given)
    return d_q, *conv_tiled.backward_keys(*given), d_w


def case(n, d, c_q, c_k):
    """Random (q, k, v, w, d_o) of one head, float32."""
    q, k, v, d_o = torch.randn(4, n, d)
    return q, k, v, torch.randn(c_q, c_k) / math.sqrt(c_q * c_k), d_o


def near(got, wanted, tolerance=1e-4):
    """Whether every number is within the tolerance,
    measured by the largest one wanted. NaN is not."""
    return (
        (got.double() - wanted).abs().max()
        <= tolerance * wanted.abs().max().clamp_min(0.1)
    ).item()


# %% [markdown]
# Taps odd and even, square and oblong; one token, one tile, many tiles, ragged ones, more taps than tokens. `launch` hands tensors of the CPU to `sim`, which also looks for races, for reads of memory that nobody has written, and for accesses out of
# bounds: a finding would stop the cell.

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
# What are gradients for? Some taps are hidden: 0.5 for a key's left neighbour and 1.5 for the key itself. All we see is the output that they make. Start from (1, 0), compare the
# outputs, ask *your* kernels for dW, and take a step against it. **Predict.** Does it find the two numbers, or only some taps that give a similar output?

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
# This is all that training is, and you have written every derivative in it. Lesson 15 does it with a whole model.
#
# ### On a real GPU, if there is one
#
# `launch` hands tensors of a GPU to that GPU. The cell prints the same line with and without one.

# %% tags=["uses-exercise"]
device = "cuda" if torch.cuda.is_available() else "cpu"
inputs = case(14, 4, 3, 3)
there = [x.cpu() for x in backward(*(x.to(device) for x in inputs))]
print(
    "your kernels, on this device, agree with lesson 12:",
    all(map(near, there, by_hand(*inputs))),
)

# %% [markdown]
# ## 7. A sum that is never the same (optional)
#
# All blocks add to one dW. What if they did it without an atomic?


# %%
@cuda.jit(device=True)
def add_plainly(d_w, tap_sums):
    """add_to_all with a plain +=."""
    taps, c_k = d_w.shape[1] * d_w.shape[2], d_w.shape[2]
    for e in range(cuda.threadIdx.x, taps, cuda.blockDim.x):
        a, b = e // c_k, e % c_k
        d_w[cuda.blockIdx.x % d_w.shape[0], a, b] += tap_sums[a, b]


# %% [markdown]
# **Guess before you run:** the result is right, or wrong? And does `sim` find something?

# %% tags=["uses-exercise"]
reports = []


def reporting(*arguments):
    """A runner that keeps the report, findings and all."""
    reports.append(simulated(*arguments, on_finding="report"))


inputs = case(14, 4, 3, 3)
got = backward(*inputs, run=reporting, queries={"add_to_all": add_plainly})
print("dW is right:", near(got[3], by_hand(*inputs)[3]))
for line in reports[0].findings[0].message.splitlines():
    print(line.partition("   value ")[0])

# %% [markdown]
# `sim` runs one thread at a time and so it is right here; on a GPU two blocks may read the same old value, and one of the additions is lost. That is lesson 04's lost update, and the finding says so whatever the result is. With `cuda.atomic.add` no
# addition is lost. Then every run gives the same dW, or does it?
#
# ### Three numbers
#
# An atomic makes each addition whole. It does not say **in which order** they come. float32 keeps 24 binary digits, about seven decimal ones, and rounds after every addition.
#
# **Predict.** The three numbers 100000000, 1 and −100000000, in float32: (100000000 + 1) − 100000000 = `___`, and (100000000 − 100000000) + 1 = `___`

# %%
large, small = float32(100_000_000), float32(1)
print("(large + small) - large =", (large + small) - large)
print("(large - large) + small =", (large - large) + small)

# %% [markdown]
# Near a hundred million the next float32 is 8 further on, so 1 is rounded away. Addition of floats is **not associative**: a sum depends on its order. (A single sum of two numbers does not care which comes first. With three it begins.)
#
# Blocks finish in an order that no program controls: on a GPU it depends on what else runs, and in `sim` on the seed. So your own kernel can be asked:
#
# **Predict.** Four blocks, twenty seeds. How many *different* results, bit by bit, do dQ, dK, dV and dW have? `___`


# %% tags=["uses-exercise"]
def different(**options):
    """How many different dQ, dK, dV and dW come out under twenty seeds;
    and whether all of them are right."""
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
    "  all right:",
    right,
)

# %% [markdown]
# Every dW is right, to seven digits or so, and there are several of them. dQ, dK and dV are always the same: each number of theirs has one owner, who adds in a fixed order.
#
# Is it a bug? Not a race: `sim` finds nothing. But it is a nuisance. Train twice with the same seed and the two models drift apart. And a test that asks for equality fails now and then.
#
# ### The reproducible way
#
# Give each block a place of its own, and add up afterwards, **in a fixed order**: partial sums, and a second reduction. Your kernel can do it already: look at the index in `add_to_all`, `cuda.blockIdx.x % d_w.shape[0]`. If `d_w` has as many layers as there are
# blocks, each block has a layer for itself. (The atomic does no harm there, as no other block comes.) The second reduction is `d_w.sum(0)` in `backward`.

# %% tags=["uses-exercise"]
counts, right = different(partials=True)
print("different dQ, dK, dV, dW:", counts, "  all right:", right)

# %% [markdown]
# What does it cost? A little memory, c_q · c_k numbers for each block, and one more small kernel for the sum. In the package it is an option, `conv_backward(…, deterministic=True)`;
# `kernels.conv_attention` chooses it when `torch.use_deterministic_algorithms(True)` is set. Here with 30 tokens and 11 × 1 taps, in tiles that own 12 rows: three blocks, six seeds.

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
# ## 8. A bug hunt: the algorithms as they were published (optional)
#
# The pseudo-code whose forward pass you took apart in lesson 10 has a backward pass too, "Algorithm 2" (dQ and dW) and "Algorithm 3" (dK and dV). In short:
#
# | | step |
# |---|---|
# | 1 | a tile of B rows begins at i0 − 2·P_q, where i0 is the first row that it owns; it owns B − 2·P_q rows |
# | 2 | S, its convolution, P and dT of the whole tile, as far as the convolution goes |
# | 3 | dW: the sum of dT · S over the **whole tile** |
# | 4 | the gradient of QKᵀ: the transposed convolution of dT, on the whole tile |
# | 5 | Algorithm 3: dV += Pᵀ dO and dK += (4)ᵀ Q, over **all rows** of the tile |
# | 6 | at the end: dW is added atomically |
#
# **Guess before you go on:** four faults are in there. Where are the rows below, in step 1? What is missing in step 4?
#
# <details><summary>The four</summary>
#
# | name | fault |
# |---|---|
# | `"no rows below"` | step 1: the B rows end with the owned ones. Of the halo of 2·P_q rows all lie above, where only P_q are of use |
# | `"taps twice"` | step 3: dW counts the halo, which its owners count as well |
# | `"halo rows"` | step 5: dK and dV count the halo rows, which other tiles own |
# | `"no mask"` | step 4: the gradient of the zeros in the future is left in |
#
# </details>
#
# Four strangers, a to d, have written pieces for our kernels, each with **one** of the four faults in our kind of tile (the halo that counts too often is then the one below and at the sides). You have a tool now that lesson 12 had not: not only *which* gradient is wrong,
# but **where**.
#
# **Predict**, for 14 tokens, 3 × 3 taps and tiles that own 4 × 4, so rows 0–3, 4–7, 8–11 and 12–13: if the rows below are missing, which rows of dQ are wrong? `___` And with halo rows counted, are the keys 12 and 13 wrong? `___`


# %% tags=["uses-exercise"]
def places(got, wanted):
    """A letter for each row: x where it is wrong."""
    wrong = (got.double() - wanted).abs().amax(1) > 1e-4 * wanted.abs().max()
    return "".join("x" if here else "." for here in wrong)


def where_wrong(pieces, n, c_q, c_k, size=8):
    """The rows of dQ, dK and dV that are wrong with these pieces, and whether dW is."""
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
    return [*map(places, got, wanted), "right" if near(d_w, right_w) else "WRONG"]


print(f"   {'dQ':16}{'dK':16}{'dV':16}dW")
for name, pieces in lesson13.strangers.items():
    print(
        f"{name}: "
        + "".join(f"{words:16}" for words in where_wrong(pieces, n=14, c_q=3, c_k=3))
    )

# %% [markdown]
# ### Exercise 13.7 · diagnosis · four words
#
# Who made which mistake? Return `{"a": ..., "b": ..., "c": ..., "d": ...}` with the names from the table. The tool is yours: other taps, other lengths, `where_wrong(lesson13.strangers["a"], 14, 1, 3)`.
#
# <details><summary>Hint: two of them spoil dQ and dK</summary>
#
# Who needs rows from the next tile? The last P_q rows of each tile. And who has a future key in a tile that the loop visits? All rows of a tile on the diagonal, but one.
#
# </details>


# %% tags=["exercise"]
def diagnosis():
    """{stranger: name of the fault}"""
    # BEGIN SOLUTION 13.7
    return {"a": "no mask", "b": "halo rows", "c": "no rows below", "d": "taps twice"}
    # END SOLUTION


# %% tags=["check"]
check.ex13_7(diagnosis)

# %% [markdown]
# - **a** keeps gradients of future keys, where its tiles have any: on the diagonal, in all rows but the last. So the last row of each diagonal tile is right in dQ, and the first key in dK.
# - **b** counts two rows of each tile twice, and these rows look at most of the keys. Only the last tile of rows has none below, so the last two keys are right.
# - **c** loses readers of the last two rows of each tile; the last tile has no rows below to lose. In dK each such row hits all the keys that it looks at. dV needs only P of the owned rows: right.
# - **d** spoils dW and nothing else.
#
# Which tests would have found them? **Predict** for each test which of the four it misses:
#
# - 14 tokens with 1 × 3 taps: nothing is above or below
# - 4 tokens with 3 × 3 taps: the whole sequence fits into one tile
# - 14 tokens with 1 × 1 taps: no halo at all

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
# 1 × 3 taps need no rows above or below, so both faults with halo rows are missed. 1 × 1 taps find nothing: then it is ordinary attention, without a halo. (The future scores have readers only in the future, where dT is 0.) One tile finds only the missing mask. The last line has five tokens, and a tile of 8 with 2 × 1 taps owns six rows, so that is one tile again, however odd its shape looks: count
# what a tile **owns** before you trust a small test. Your validation table above has several tiles in most of its lines.
#
# ## 9. The package's kernels (optional)
#
# `kernels/conv/backward.py` has the same two kernels for batches and heads, any taps up to 15 × 15, d up to 128, causal or not. The steps are yours; what differs is how fast they are made. This is its loop of the first kernel:

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
# - `recompute_tile` computes S0, P and dT of the tile again. It calls `products`, which gives each thread a patch of 4 × 4 scores, and brings rows of q and k through shared memory a few columns at a time, instead of reading each number from global memory again and again.
# - Convolutions run in **strips**: a thread has 8 neighbouring entries of a row, and a number that it has loaded is used for several of them.
# - dT is written over dP, and dS over S0 (in the other kernel P over S0 and dS over dT). So there are only two tiles in shared memory, and they can be 64 × 64. For 7 × 7 taps such a tile owns 52 × 52.
# - D is computed outside, `(d_o * o).sum(-1)`.
# - What nobody wants is not computed: a kernel neither of whose results is needed does not run.
#
# And `kernels.conv_attention` is the whole, for autograd: forward kernel, then these two.

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
# In multiply-adds for each score, with c = c_q · c_k, before halos: the first kernel makes S0, dP and dQ (d each), and convolves forward, back, and for the taps (c each). The second makes S0, dP, dK and dV, and convolves twice.
#
# **Predict.** With d = 64 and 7 × 7 taps, how many times the forward pass's work is that? The forward pass has 2·d + c. `___`

# %%
d, c = 64, 49
work = {"forward": 2 * d + c, "dQ and dW": 3 * d + 3 * c, "dK and dV": 4 * d + 2 * c}
loaded, taps = 64, torch.empty(7, 7)
for name, adds in work.items():
    tile = owned((loaded, loaded), halo_of(taps), backward=name != "forward")
    print(
        f"{name:10} {adds:4} multiply-adds per score; "
        f"a tile of {loaded} × {loaded} owns {tile[0]} × {tile[1]}: "
        f"{loaded**2 / math.prod(tile):.2f} scores made for each one owned"
    )
print(
    "both backward kernels: "
    f"{(work['dQ and dW'] + work['dK and dV']) / work['forward']:.1f} times "
    "the forward pass"
)

# %% [markdown]
# ### Memory
#
# Between forward and backward autograd keeps what the function asks it to: q, k, v, w, O and L. Here it is counted, in the simulator:


# %%
def kept_numbers(attend, n, d=8):
    """How many numbers autograd keeps for the backward pass of attend:
    each piece of memory counted once."""
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
# Twice the tokens, twice the memory. While it runs, the backward pass adds dQ, dK, dV, D and dW, and with `deterministic=True` c_q · c_k numbers for each block of queries: all of it grows with N, nothing with N².
#
# And on a GPU? These numbers were recorded with `python -m kernels.bench`. "eager" is plain PyTorch; both are float32.

# %%
bench = json.loads(
    (Path(kernels.__file__).parent / "data" / "bench.json").read_text(encoding="utf-8")
)
rows = {(tuple(row["shape"]), row["name"]): row for row in bench["training"]}
lengths = [512, 1024, 2048, 4096]
print(
    "recorded on {gpu}, {date}: d = 64, taps {taps[0]}×{taps[1]}, causal".format(
        **bench
    )
)
print(
    f"{'':14}{'backward ms':^24}{'forward ms':^24}{'peak MiB':^24}\n{'B, H, N':11}   "
    + f"{'kernels':>12}{'eager':>9}   " * 3
)
for shape in [*((1, 8, n, 64) for n in lengths), (4, 16, 2048, 64)]:
    mine, eager = (rows[shape, name] for name in ("kernels", "eager"))
    print(
        f"{', '.join(map(str, shape[:3])):11}   "
        + "".join(
            f"{mine[what]:12.1f}{eager[what]:9.1f}   "
            for what in ("backward_ms", "forward_ms", "peak_mib")
        )
    )

# %% [markdown]
# With 512 tokens both passes take half of plain PyTorch's time. At 4096 tokens the kernels' backward pass takes a ninth of plain PyTorch's time, and
# the memory at the peak is an eightieth. By the count the backward pass is 3.9 times the forward pass's work; at 4096 tokens it takes 5.7 times as long (9.31 against 1.63 ms). Part of it
# is the halo, which the count leaves out and which is on both sides here: a tile of 64 × 64 owns 52 × 52. The last line has the most scores of all, and yet its backward pass is only 2.3 times as fast as plain PyTorch's. Why, a table of times does not say.
#
# The memory, as a picture:

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
axes.set(xlabel="N", ylabel="MiB at the peak", title="forward and backward pass")
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
# ## In three lines
#
# - Two kernels, because a sum over keys belongs to a block of queries, and a sum over queries to a block of keys; dW belongs to no block and is added up at the end.
# - The halo has rows above (to compute T again) and rows below (they send gradient back); it is loaded by many and counted by one.
# - Atomics lose nothing but have no order, and float addition cares; a place for each block and a second sum, in a fixed order, give the same bits every time.
#
# **You can now** write, test and take apart the backward pass of any attention that a tile can hold.
#
# **Next:** [lesson 14](14_decoding.ipynb) leaves training and generates: one token at a time, with a cache, and the merge of [lesson 01](01_online_softmax.ipynb).
