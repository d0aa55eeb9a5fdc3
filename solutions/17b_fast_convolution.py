# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 17b · Convolutional attention on tensor cores
#
# **75 minutes** · builds on lesson 17 (flash attention on tensor cores), lesson 11 (the convolutional kernel) and lesson 16 (fragments)
#
# You will be able to
#
# 1. choose a convolution's route to the tensor cores by counting, before you write any code;
# 2. turn a convolution into a matrix product: put the taps in a banded matrix, and shift rows by choosing a different register;
# 3. say how far a kernel is from the peak of the tensor cores, and what stands in between.
#
# Lesson 17 brought flash attention to the tensor cores. Its two products are matrix products, which is what tensor cores compute. The convolution is a sum over a window of scores, and no `mma` computes that. If it stays on the float32 units, it takes longer than everything else together. So you look for a way to write it as a matrix product, and you count before you code.
#
# **You need no GPU.** The next cell loads the parts of lesson 17's kernel: the sizes (rows of 16 entries, tiles of 16 keys, 2 warps per block), the loads, the softmax, and the products with your `as_left` and `value_operands`. If you have not solved one of them, or not saved it, the cell loads the solution's version instead.

# %%
import functools
import json

import matplotlib.pyplot as plt
import numpy as np
import torch
from numba import cuda
from numpy import float32, int16, uint32

from course import brought, check, guess, progress_bar, show_figure, show_table
from course.figures import GREEN, ORANGE, SKY
from course.ladder import show_ladder, time_rung
from kernels import reference
from kernels.common.data import DATA
from kernels.common.tiles import MINUS_INFINITY
from kernels.tensor_cores.instructions import (
    cp_async_commit,
    cp_async_wait_0,
    mma_bf16,
    pack_bf16,
)
from sim import simulate

# %% jupyter={"source_hidden": true}
bench = json.loads((DATA / "bench.json").read_text("utf-8"))
shapes = [(1, 8, 4096, 64), (4, 16, 2048, 64)]
taken = {
    (part, row["name"], *row["shape"]): row["forward_ms"]
    for part in ("training", "halves")
    for row in bench[part]
    if row["taps"] == [7, 7]
}
WIDTH, KEYS, ROWS, THREADS, WORDS, SUMS, STAGE_ROWS, PITCH, LOG2E = brought(
    "17_fast_forward",
    *"WIDTH KEYS ROWS THREADS WORDS SUMS STAGE_ROWS PITCH LOG2E".split(),
)
(
    load_queries,
    mask,
    update,
    store,
    make_scores,
    add_values,
    copy,
    bf16,
    exact,
    by_lesson11,
) = brought(
    "17_fast_forward",
    *"load_queries mask update store make_scores add_values copy bf16".split(),
    *"exact by_lesson11".split(),
)

# %% [markdown]
# ## 1. Two routes for the convolution: count first
#
# The convolution comes between the two products, and it is not a matrix product: it takes c_q · c_k multiply-adds per score on float32 units, whose throughput is about a twelfth of the tensor cores' (67 against about 790 TFLOP/s in a library's matmul on an H200). Two routes lead to the tensor cores:
#
# - **Toeplitz.** Compute the scores S0 as before. Then, for each row of taps, multiply a slice of 16 columns of S0 by a 16 × 8 matrix of taps. That takes 16 multiply-adds per score of T instead of c_k. Eight outputs need 8 + c_k − 1 columns, so one slice is enough for c_k ≤ 9. Up to c_k = 17 you need 8 more columns, so 24 multiply-adds. T also needs S0 for the c_q − 1 rows above. A **strip** of neighbouring queries can share those rows, but every strip recomputes them.
# - **Folding.** T = Σ_b (Σ_a w[a, b] · Q[i − P_q + a]) · K[j − P_k + b]. (As in lesson 09, P_q = c_q − 1 and P_k = (c_k − 1) // 2.) The inner sum is a filtered copy of Q, one for each b. Then T is a single product whose inner size is d · c_k, with shifted rows of K. No S0 is needed. (Near the diagonal this fails because of the mask: S0 is 0 there, and Q · K is not.)
#
# **On paper**, for 7 × 7 taps, d = 64, strips of 4: multiply-adds per score of T for Toeplitz `___`, for folding `___`. Which route would you take? `___` And for 15 × 1 taps: which route? `___`

# %% tags=["guess"]
guess("17b routes", toeplitz=..., folding=..., route=..., route_for_15_x_1=...)

# %% [markdown]
# ### Exercise 17.4 · routes · about four lines
#
# Return three numbers, the cost per score of T, counted in multiply-adds of tensor cores:
#
# - plain: d for S0 on tensor cores, plus the convolution in float32, where each multiply-add counts as 12;
# - Toeplitz: d · rows / strip for S0, where `rows` is strip + c_q − 1, plus one if that is odd (rows come in pairs); plus 16 for each row of taps, or 24 if c_k is more than 9 (c_k is at most 17);
# - folding: d · c_k.


# %% tags=["exercise"]
def routes(d, c_q, c_k, strip):
    """Return the cost of one score of T for three routes: plain, toeplitz, folding."""
    # BEGIN SOLUTION 17.4
    plain = d + 12 * c_q * c_k
    rows = strip + c_q - 1
    rows += rows % 2
    toeplitz = d * rows / strip + c_q * (16 if c_k <= 9 else 24)
    return plain, toeplitz, d * c_k
    # END SOLUTION


# %% tags=["check"]
check.ex17_4(routes)

# %% jupyter={"source_hidden": true} tags=["uses-exercise"]
WINNERS = [("plain", SKY), ("Toeplitz", GREEN), ("folding", ORANGE)]
figure, panels = plt.subplots(2, 1, figsize=(8.6, 14), layout="constrained")
for axes, d, strip in zip(panels, (64, 128), (4, 2), strict=True):
    for c_q, c_k in np.ndindex(15, 15):
        costs = routes(d, c_q + 1, c_k + 1, strip)
        colour = WINNERS[int(np.argmin(costs))][1]
        cell = plt.Rectangle((c_k + 0.5, c_q + 0.5), 1, 1, facecolor=colour)
        axes.add_patch(cell).set_edgecolor("white")
        axes.text(
            c_k + 1, c_q + 1, f"{min(costs):.0f}", ha="center", va="center", size=9
        )
    axes.set(
        xlim=(0.5, 15.5), ylim=(0.5, 15.5), xlabel="c_k", ylabel="c_q", aspect="equal"
    )
    axes.set_title(f"d = {d}, strips of {strip}")
    for name, colour in WINNERS:
        axes.plot([], [], "s", color=colour, label=name)
panels[0].legend(loc="upper left", bbox_to_anchor=(1, 1))
show_figure(
    figure,
    "for c_q and c_k from 1 to 15 the cheapest route and its cost, by your function. "
    "Folding is the cheapest for a single column of taps, and for more columns the "
    "more rows there are, up to eight or ten for 15 rows; Toeplitz for all wider taps; "
    "the plain way for a few small shapes, most of them with d = 128.",
)
for d, c_q, c_k, strip in [(64, 7, 7, 4), (64, 11, 11, 4), (128, 6, 11, 2)]:
    plain, toeplitz, folding = routes(d, c_q, c_k, strip)
    print(
        f"d {d:3}, {c_q:2} × {c_k:2} taps: plain {plain:4.0f}  "
        f"Toeplitz {toeplitz:3.0f}  folding {folding:4.0f}"
    )

# %% [markdown]
# For these shapes Toeplitz needs about half to two thirds of the multiply-adds of folding. So the package uses Toeplitz, and folding was never written. (For 7 × 3 taps the count favours folding. We have not tried it.)
#
# ## 2. Taps as a matrix
#
# Take one row of taps, (1, 2, 3), and a slice of one row of S0 that begins P_k columns to the left of the first output: (1, 0, 2, 4). The outputs are 1·1 + 2·0 + 3·2 = 7 and 1·0 + 2·2 + 3·4 = 16. As a product:
#
# | S0 | | B | output 0 | output 1 |
# |---|---|---|---|---|
# | 1 | × | | 1 | 0 |
# | 0 | | | 2 | 1 |
# | 2 | | | 3 | 2 |
# | 4 | | | 0 | 3 |
#
# Each column has the taps, one row further down than the column before. So `B[j', j] = w[a, j' − j]`, and 0 if there is no such tap. A matrix with constant diagonals is called a **Toeplitz matrix**. For `mma` it is 16 × 8.
#
# ### Exercise 17.5 · band · about five lines
#
# Return b0, b1: this lane's part of B for row `a` of the taps, in bfloat16. No lane needs more than four taps, so no lane may load more than four. All warps of a block have the same B. `w` is (c_q, c_k), with c_k at most 9, and a tap may be infinite (0 times infinity is NaN). Use no shared memory, no shuffles and no barriers (of the block or of the warp).
#
# <details><summary>Hint 1: which taps?</summary>
#
# b0 is `B[2t, g]` and below it `B[2t + 1, g]`. The first is tap 2t − g.
#
# </details>
# <details><summary>Hint 2: no such tap</summary>
#
# `w[a, -1]` is not zero. A small function `tap(w, a, b)` that returns `w[a, b]` or `float32(0)` saves you from writing the condition four times. It needs `@cuda.jit(device=True)` too.
#
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def tap(w, a, b):
    """Return w[a, b], or 0 if there is no such tap. (Optional helper of `band`.)"""
    # BEGIN SOLUTION 17.5
    return w[a, b] if 0 <= b and b < w.shape[1] else float32(0)
    # END SOLUTION


@cuda.jit(device=True)
def band(w, a):
    """Return b0, b1: B[j', j] = w[a, j' - j], 16 × 8, as a right operand of mma."""
    # BEGIN SOLUTION 17.5
    lane = cuda.threadIdx.x % 32
    b = lane % 4 * 2 - lane // 4
    b0 = pack_bf16(tap(w, a, b), tap(w, a, b + 1))
    b1 = pack_bf16(tap(w, a, b + 8), tap(w, a, b + 9))
    return b0, b1
    # END SOLUTION


# %% tags=["check"]
check.ex17_5(band)

# %% [markdown]
# Here is your B for 7 taps, read from the registers of your 32 lanes:


# %% jupyter={"source_hidden": true}
def matrix_of(band, w):
    """Return B (16, 8) for row 0 of w, assembled from the lanes' registers."""

    def lanes(w, out):
        out[cuda.threadIdx.x, 0], out[cuda.threadIdx.x, 1] = band(w, 0)

    out, b = np.zeros((32, 2), uint32), np.zeros((16, 8))
    simulate(lanes)[1, 32](w, out)
    halves = exact(out.view(int16)).reshape(32, 2, 2)
    for lane, r, half in np.ndindex(32, 2, 2):
        b[lane % 4 * 2 + half + 8 * r, lane // 4] = halves[lane, r, half]
    return b


def draw_band(b, c_k):
    figure, axes = plt.subplots(figsize=(7, 8), layout="constrained")
    for row, column in np.ndindex(16, 8):
        value = b[row, column]
        colour = SKY if value else "white"
        axes.add_patch(
            plt.Rectangle((column, row), 1, 1, facecolor=colour, edgecolor="grey")
        )
        lane, register = column * 4 + row % 8 // 2, row // 8
        axes.text(column + 0.5, row + 0.35, f"{value:g}", ha="center", va="center")
        words = f"lane {lane}, b{register}"
        axes.text(column + 0.5, row + 0.78, words, ha="center", va="center", size=9)
    axes.set(
        xlim=(0, 8), ylim=(16, 0), xlabel="output", ylabel="column of the slice of S0"
    )
    axes.set_title(f"B of the taps 1 to {c_k}")
    return figure


# %% tags=["uses-exercise"]
b = matrix_of(band, np.arange(1, 8, dtype=float32)[None])
show_figure(
    draw_band(b, 7),
    "a matrix of 16 rows and 8 columns. Column 0 has the taps 1 to 7 in rows 0 to 6, "
    "each has them one row further down than the one before, column 7 in rows 7 to 13; "
    "all else is 0. Each cell names the lane that holds it in b0, rows 0 to 7, or b1.",
)
print("numbers that are not 0:", np.count_nonzero(b), "of", b.size)

# %% [markdown]
# 56 of 128 entries are taps, so more than half of the multiply-adds multiply by 0. On tensor cores that work is cheap.
#
# ## 3. A shift of rows is another register
#
# T of query i needs S0 of queries i − P_q, …, i, which are the rows above. In lesson 11 they came from shared memory. In registers, the lanes of quad g hold row g of a tile, and other quads hold the rows above. Do you need shuffles for every row of taps?
#
# Not if *you choose the rows*. `mma` multiplies any 16 rows, in any order. So let the four lanes of quad g own two **neighbouring** queries, 2g and 2g + 1 of the warp's 16: a strip of 2. Let them also compute S0 for the P_q queries above these. Number the quad's rows of S0 from the top, beginning with r = 0:
#
# | | T of query 2g | T of query 2g + 1 |
# |---|---|---|
# | row a = 0 of the taps | r = 0 | r = 1 |
# | a = 1 | r = 1 | r = 2 |
# | a = 2 | r = 2 | r = 3 |


# %% jupyter={"source_hidden": true}
def draw_strip(c_q=3):
    """Draw the rows of S0 that a quad computes, and which of them each T reads."""
    figure, axes = plt.subplots(figsize=(9, 3.6), layout="constrained")
    rows = c_q + 1
    for r in range(rows):
        y = rows - 1 - r
        own = r >= c_q - 1
        axes.add_patch(
            plt.Rectangle((0, y), 3.4, 0.8, facecolor=SKY if own else "#DDDDDD")
        )
        query = f"query 2g + {r - c_q + 1}" if own else f"query 2g - {c_q - 1 - r}"
        axes.text(1.7, y + 0.4, f"S0, r = {r}: {query}", ha="center", va="center")
    for t, colour in enumerate((GREEN, ORANGE)):
        y = rows - 1.9 - 1.4 * t
        axes.add_patch(plt.Rectangle((6, y), 3, 0.8, facecolor=colour, alpha=0.6))
        axes.text(7.5, y + 0.4, f"T of query 2g + {t}", ha="center", va="center")
        for a in range(c_q):
            start = (3.45, rows - 1 - (t + a) + 0.4)
            axes.annotate(
                "",
                (5.95, y + 0.4),
                start,
                arrowprops={"arrowstyle": "->", "color": colour},
            )
    axes.set(xlim=(-0.1, 9.2), ylim=(-0.2, rows + 0.1))
    axes.axis("off")
    return figure


show_figure(
    draw_strip(),
    "left, the four rows of S0 that a quad computes with three rows of taps: r = 0 and "
    "1 are the queries above its strip, r = 2 and 3 its own queries 2g and 2g + 1. "
    "Right, T of query 2g with arrows from r = 0, 1 and 2, and T of query 2g + 1 with "
    "arrows from r = 1, 2 and 3.",
)

# %% [markdown]
# All of these rows are in the registers of the same four lanes. In the left operand of `mma`, row g of A is the quad's query 2g, and row g + 8 is its query 2g + 1.
#
# Now the columns. `s[r, block]` is a register with two neighbouring entries of S0, rounded to bfloat16. A block is 8 columns wide, and there are three blocks next to each other. 8 keys of T need two blocks: T of the first 8 keys uses blocks 0 and 1, and T of the next 8 keys uses blocks 1 and 2.
#
# **Predict**, for row 0 of the taps and the first 8 keys, which row and which block each register of the left operand is (a guess looks like `(5, 2)`): a0 = s[`___`], a1 = s[`___`], a2 = s[`___`], a3 = s[`___`]

# %% tags=["guess"]
guess("17b registers of row 0", a0=..., a1=..., a2=..., a3=...)

# %% [markdown]
# ### Exercise 17.6 · convolve · about eight lines
#
# Compute this lane's 8 entries of T: `t[0:4]`, in the accumulator layout of `mma`, for the first 8 keys, and `t[4:8]` for the next 8. `bands[a, 0]` and `bands[a, 1]` are b0 and b1 of row a of the taps. There are c_q = `bands.shape[0]` rows. `t` holds old values, so begin with 0. Execute two products for each row of taps (even if all its taps are 0). Use no shuffles, no shared memory and no barriers (of the block or of the warp), and do not change `s` and `bands`.
#
# <details><summary>Hint 1: the answer to the prediction</summary>
#
# a0 is row g, columns 2t and 2t + 1: s[a, 0]. a1 is row g + 8, which is the next query: s[a + 1, 0]. a2 is row g, 8 columns further right: s[a, 1]. a3 is s[a + 1, 1].
#
# </details>
# <details><summary>Hint 2: adding up</summary>
#
# `mma_bf16(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3)` returns four numbers. Pass the old t as c, and store the result as the new t.
#
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def convolve(t, s, bands):
    """Set t (8 float32) to the convolved scores of two queries and 16 keys, from
    s (c_q + 1 rows or more, 3 blocks) and bands (c_q, 2)."""
    # BEGIN SOLUTION 17.6
    for x in range(8):
        t[x] = float32(0)
    for a in range(bands.shape[0]):
        for block in range(2):
            a0, a1 = s[a, block], s[a + 1, block]
            a2, a3 = s[a, block + 1], s[a + 1, block + 1]
            b0, b1, x = bands[a, 0], bands[a, 1], 4 * block
            t[x], t[x + 1], t[x + 2], t[x + 3] = mma_bf16(
                a0, a1, a2, a3, b0, b1, t[x], t[x + 1], t[x + 2], t[x + 3]
            )
    # END SOLUTION


# %% tags=["check"]
check.ex17_6(convolve)

# %% [markdown]
# ## 4. The kernel
#
# Now you have all parts of the kernel. The loop is lesson 17's loop with two buffers. Instead of one tile of S there are several tiles of S0, one for each pair of rows of the strip. `scores_of_strip` computes them, masks them with 0, rounds them and keeps them in registers. `convolve` turns them into T, and the rest is flash attention: mask with −∞, softmax, `as_left`, P V. Each iteration computes S0 for 16 new keys and keeps the last block of the previous 16, because T reaches back. T's columns therefore start 8 − P_k before S0's new columns (`shift` is P_k − 8), and the copies of V start there too.


# %%
@cuda.jit(device=True)
def scores_of_strip(s, qs, top, k_tile, stage, first, n):
    """Compute S0 of a strip, whose first row is `top`, for 16 keys from `first` on.

    Column 0 of s becomes the last block of the previous keys."""
    c = cuda.local.array(8, float32)
    for tile in range(s.shape[0] // 2):
        make_scores(c, qs, tile * WORDS, k_tile, stage)
        mask(c, top + 2 * tile, 1, first, n, float32(0))
        for h in range(2):
            row, x = 2 * tile + h, 2 * h
            s[row, 0] = s[row, 2]
            s[row, 1] = pack_bf16(c[x], c[x + 1])
            s[row, 2] = pack_bf16(c[x + 4], c[x + 5])


@cuda.jit(device=True)
def send_shifted(k, v, k_tile, v_tile, stage, first, shift):
    """Start a group of copies: keys from first on, values from first + shift on."""
    copy(k_tile, stage, k, first)
    copy(v_tile, stage, v, first + shift)
    cp_async_commit()


# %%
@cuda.jit(device=True)
def start_strip(bands, qs, s, w, q, top):
    """Load the bands of all rows of taps and the queries from row `top` on."""
    for a in range(bands.shape[0]):
        bands[a, 0], bands[a, 1] = band(w, a)
    for row in range(s.shape[0]):
        s[row, 2] = uint32(0)
        if row % 2 == 0:
            load_queries(qs, row // 2 * WORDS, q, top + row, 1)


@cuda.jit(device=True)
def clear(o, m, l):
    """Begin a softmax that has seen no key."""
    for x in range(SUMS):
        o[x] = float32(0)
    for h in range(2):
        m[h], l[h] = MINUS_INFINITY, float32(0)


# %%
@functools.cache
def conv_kernel(c_q):
    """Return the kernel for c_q rows of taps, of at most 9 taps each."""
    tiles = (c_q + 2) // 2  # of S0: c_q + 1 rows of a strip, in pairs
    rows, q_words = 2 * tiles, tiles * WORDS

    @cuda.jit
    def conv_kernel(q, k, v, w, scale, out):
        """Compute out (n, WIDTH) float32 of q, k, v (n, WIDTH), bits of bfloat16,
        and w (c_q, c_k) float32; causal."""
        k_tile = cuda.shared.array((STAGE_ROWS, PITCH), int16, alignment=16)
        v_tile = cuda.shared.array((STAGE_ROWS, PITCH), int16, alignment=16)
        qs = cuda.local.array(q_words, uint32)
        bands = cuda.local.array((c_q, 2), uint32)
        s = cuda.local.array((rows, 3), uint32)
        t = cuda.local.array(8, float32)
        o = cuda.local.array(SUMS, float32)
        m, l = cuda.local.array(2, float32), cuda.local.array(2, float32)
        n, i0 = q.shape[0], (cuda.gridDim.x - 1 - cuda.blockIdx.x) * ROWS
        # the first of this lane's two queries, and the first row of its S0
        my_row = i0 + cuda.threadIdx.x // 32 * 16 + cuda.threadIdx.x % 32 // 4 * 2
        top, shift = my_row - (c_q - 1), (w.shape[1] - 1) // 2 - 8
        clear(o, m, l)
        start_strip(bands, qs, s, w, q, top)
        seen, stage = min(n, i0 + ROWS), 0
        send_shifted(k, v, k_tile, v_tile, 0, 0, shift)
        for first in range(0, seen - shift, KEYS):
            cp_async_wait_0()
            cuda.syncthreads()
            if first + KEYS < seen - shift:
                send_shifted(k, v, k_tile, v_tile, KEYS - stage, first + KEYS, shift)
            scores_of_strip(s, qs, top, k_tile, stage, first, n)
            convolve(t, s, bands)
            mask(t, my_row, 1, first + shift, n, MINUS_INFINITY)
            update(t, m, l, o, scale * LOG2E)
            add_values(o, t, v_tile, stage)
            stage = KEYS - stage
        store(out, o, l, my_row, 1)

    return conv_kernel


# %% [markdown]
# ### Validate
#
# Compare the kernel with lesson 11's float32 kernel, with the same bfloat16 values as inputs. Then compare its float64 error with that of plain bfloat16 PyTorch, which rounds at the same points and at some more.


# %%
def by_pytorch(q, k, v, w, dtype):
    """Compute attention with lesson 09's whole matrices, in this type, as float64."""
    given = [torch.tensor(exact(x)).to(dtype)[None, None] for x in (q, k, v)]
    taps = torch.tensor(w).to(dtype)[None]
    o = reference.conv_attention(*given, taps, scale=0.25)
    return o[0, 0].double().numpy()


# %% tags=["uses-exercise"]
rng = np.random.default_rng(1711)
rows = []
shapes_tried = [(1, 3, 3), (16, 1, 1), (23, 2, 4), (33, 3, 5), (40, 7, 7), (50, 4, 9)]
for n, c_q, c_k in progress_bar(shapes_tried, desc="shapes"):
    q, k, v = bf16(rng, 3, n, WIDTH)
    w = exact(bf16(rng, c_q, c_k)).astype(float32) / 4
    out = np.full((n, WIDTH), np.nan, float32)
    launched = simulate(conv_kernel(c_q))[-(-n // ROWS), THREADS]
    found = launched(q, k, v, w, float32(0.25), out).findings
    truth = by_pytorch(q, k, v, w, torch.float64)
    eager = np.abs(by_pytorch(q, k, v, w, torch.bfloat16) - truth).max()
    near = np.abs(out - by_lesson11(q, k, v, w, float32(0.25))).max() <= 0.05
    better = np.abs(out - truth).max() <= 1.5 * eager
    rows.append([n, f"{c_q} × {c_k}", bool(near), bool(better), len(found)])
show_table(
    [
        "tokens",
        "taps",
        "within 0.05 of lesson 11",
        "error at most 1.5 × PyTorch's",
        "findings",
    ],
    *rows,
)

# %% [markdown]
# ### How close to the peak
#
# The package's kernel for `mma.sync` is this one with strips of 4, 32 keys per iteration, Q in shared memory, and a maximum that is raised only if necessary. How much of the tensor cores' peak does it use? Your `routes` gives the multiply-adds. An H200's peak for bfloat16 is 989 TFLOP/s. A library's matmul reaches about 790 of them. The table divides by the peak.

# %% tags=["uses-exercise"]
lines = []
for shape in shapes:
    batch, heads, n, d = shape
    scores = batch * heads * n * (n + 1) / 2
    _, toeplitz, _ = routes(d, 7, 7, strip=4)
    for name, words, each in [
        ("sdpa", "no convolution", 2 * d),
        ("kernels", "7 × 7 taps", toeplitz + d),
    ]:
        least, measured = 2 * scores * each / 989e9, taken["halves", name, *shape]
        lines.append(
            [
                ", ".join(map(str, shape)),
                words,
                f"{each:.0f}",
                f"{least:.3f}",
                f"{measured:.3f}",
                f"{100 * least / measured:.0f} %",
            ]
        )
show_table(
    [
        "B, H, N, d",
        "",
        "multiply-adds per score",
        "ms at the peak",
        "measured ms",
        "of the peak",
    ],
    *lines,
    title=f"{bench['gpu']}, recorded {bench['date']}",
)

# %% tags=["uses-exercise"]
for shape in shapes:
    ms, plain, slow = (
        taken[way, name, *shape]
        for way, name in [
            ("halves", "kernels"),
            ("halves", "sdpa"),
            ("training", "kernels"),
        ]
    )
    counted = (routes(64, 7, 7, strip=4)[1] + 64) / (2 * 64)
    print(
        f"{', '.join(map(str, shape)):15}: {counted:.1f} times the multiply-adds",
        end="",
    )
    print(f" of plain attention, {ms / plain:.1f} times the time", end="")
    print(f" ({ms / plain / counted - 1:.0%} more than counted)")
    print(f"{'':15}  float32 takes {slow / ms:.1f} times as long")

# %% [markdown]
# So the count predicts the ratio of the times within about a quarter. Both bfloat16 kernels stay far below the peak. One reason is the instruction: on Hopper GPUs, `mma.sync` alone reaches about 65 % of the peak (642 TFLOP/s). Kernels that go further use two newer instructions. **`wgmma`** lets four warps together multiply operands that are still in shared memory. **TMA**, the tensor memory accelerator, copies whole tiles to shared memory, started by a single thread. With these, FlashAttention-3 also uses **warp specialisation**: some warps only start copies, and other warps only compute. The other reason is latency: the registers leave room for only two warps in each quarter of a multiprocessor, and each warp waits for its own previous results (`docs/measurements.md`). Since 2026-11-29 the package has a kernel with `wgmma` for Hopper GPUs. It takes 0.201 ms for the second shape. Lesson 18c introduces both instructions.
#
# Not every attempt was faster. These are from the project's log of 2026-11-22 (`docs/log/2026-11.md`, "tensor cores"; milliseconds at 1, 8, 4096, 64):
#
# | attempt | expected | ms |
# |---|---|---:|
# | S0 through shared memory, 16 bits (the prototype) | – | 0.375 |
# | S0 in registers, strips of 4, each tile of S0 finished before the next begins | faster: no stores | 0.324 |
# | all tiles of S0 at once (dependent `mma` wait for each other), heavy blocks next to light ones | faster | 0.224 |
# | 32 keys per iteration instead of 16: Q is read half as often | faster | 0.194 |
# | strips of 2: fewer registers | – | 0.242 |
# | strips of 8: 14 rows of S0 per 8 rows of T, not 20 | 272 → 224 multiply-adds | 0.550 |
# | 168 registers, three blocks per multiprocessor | more warps to hide latency | 0.278 |
#
# Strips of 8 would have saved a fifth of the multiply-adds, but took nearly three times as long. They need more registers than a thread can have, and the compiler spills the rest to memory. Counting shows which routes are worth trying, but not how well a compiler handles them. Lesson 18 is about that limit.

# %% [markdown]
# ## The ladder
#
# The convolution on tensor cores is the next rung. **Predict**: does the band matrix, most of whose products are with zeros, cost more transactions per *useful* multiply-add than plain attention in lesson 17? `___`

# %% tags=["guess"]
guess("17b ladder", more=...)

# %% tags=["uses-exercise"]
show_ladder("17b", conv_kernel)

# %% [markdown]
# With a GPU, the next cell times your own kernel on it:

# %% tags=["gpu"]
time_rung("17b", conv_kernel)

# %% [markdown]
# No, fewer. Zeros cost arithmetic, not memory: the taps are in registers, and a shift of rows is another register.
#
# ## In three lines
#
# - Count the routes first. For most shapes, multiplying by a banded matrix of taps costs about half to two thirds of folding the taps into the queries.
# - A convolution is a product with a matrix that has the taps on its diagonals. If you choose which rows a lane owns, shifting rows costs nothing.
# - Counting shows which routes are worth trying, but not how well a compiler handles them.
#
# **You can now** count the cost of a route to the tensor cores before you write it.
#
# **Read on:** Jay Shah et al., *FlashAttention-3: Fast and Accurate Attention with Asynchrony and Low-precision* (2024, arXiv:2407.08608), for `wgmma`, TMA and warp specialisation · NVIDIA, *PTX ISA*, section on `mma` · the [glossary](../docs/glossary.md) of this course.
#
# **Next:** [lesson 18](18_fast_backward.ipynb) computes the backward pass, in which the gradient of the taps is itself a sum over all scores.
