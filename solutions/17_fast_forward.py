# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 17 · Flash attention on tensor cores, step by step
#
# **90 minutes** · builds on lesson 05 (a flash kernel), lesson 11 (the convolutional kernel), lessons 16 and 16b (fragments and `ldmatrix`) and lesson 08 (banks)
#
# You will be able to
#
# 1. turn scores into the left operand of the next product without moving a number between lanes;
# 2. keep copies of the next tile in flight while the block uses this one, and find a missing wait;
# 3. say which of these steps makes a kernel how much faster.
#
# **Where this leads.** Lesson 11's kernel multiplies one pair of numbers at a time, and so does the package's float32 kernel, a larger version of it. At the end of this lesson you have plain flash attention in bfloat16 on tensor cores, and lesson 17b adds the convolution. These forward passes, causal and with 7 × 7 taps, were timed on one GPU:

# %%
import json
import math

import matplotlib.pyplot as plt
import numpy as np
from ml_dtypes import bfloat16
from numba import cuda
from numpy import float32, int16, int32, uint32

from course import brought, check, guess, show_figure, show_table
from course.check.lesson17 import Flights
from course.figures import BLUE, GREEN, ORANGE, PINK, RED, SKY
from course.ladder import show_ladder, time_rung
from kernels.common.data import DATA
from kernels.common.tiles import MINUS_INFINITY, reciprocal
from kernels.tensor_cores.instructions import (
    cp_async_16,
    cp_async_commit,
    cp_async_wait_0,
    cp_async_wait_1,
    exp2_approx,
    ldmatrix_x4,
    ldmatrix_x4_trans,
    mma_bf16,
    pack_bf16,
)
from sim import simulate
from sim.observers import COUNTERS, DEFAULT

record = json.loads((DATA / "lesson17.json").read_text("utf-8"))
bench = json.loads((DATA / "bench.json").read_text("utf-8"))

# %% jupyter={"source_hidden": true}
WAYS = {
    ("training", "eager"): "plain PyTorch, float32",
    ("halves", "eager"): "plain PyTorch, bfloat16",
    ("training", "kernels"): "the package, float32, as in lesson 11",
    ("halves", "kernels"): "the package, bfloat16, tensor cores",
    ("halves", "sdpa"): "PyTorch's attention, bfloat16, without convolution",
}
shapes = [(1, 8, 4096, 64), (4, 16, 2048, 64)]
taken = {
    (part, row["name"], *row["shape"]): row["forward_ms"]
    for part in ("training", "halves")
    for row in bench[part]
    if row["taps"] == [7, 7]
}
show_table(
    [
        "forward, ms",
        *("B, H, N, d = " + ", ".join(map(str, shape)) for shape in shapes),
    ],
    *(
        [words, *(f"{taken[*way, *shape]:.3f}" for shape in shapes)]
        for way, words in WAYS.items()
    ),
    title=f"{bench['gpu']}, recorded {bench['date']}",
)

# %% [markdown]
# You will write the parts that make the difference, for a head dimension of 16, and run
# them in the simulator. **You need no GPU.**
#
# ## 1. What a product costs
#
# Take one warp with 16 queries, 16 keys and d = 16: that is 256 scores, or 4096 multiply-adds. In lesson 11's kernel each lane would compute 8 of the scores, and each multiply-add reads two numbers from shared memory. On tensor cores two `mma` (16 × 8 × 16) compute all of them. The operands are fragments, as in lesson 16. With quad g = lane // 4 and position t = lane % 4:
#
# | | register | holds |
# |---|---|---|
# | left operand A, 16 × 16 | a0, a1, a2, a3 | `A[g, 2t]`, `A[g + 8, 2t]`, `A[g, 2t + 8]`, `A[g + 8, 2t + 8]`, each in the lower half of its register, with its right neighbour in the upper half |
# | right operand B, 16 × 8 | b0, b1 | `B[2t, g]`, `B[2t + 8, g]`, each with the entry below it in the upper half |
# | accumulators C and D, 16 × 8, float32 | 0, 1, 2, 3 | `D[g, 2t]`, `D[g, 2t + 1]`, `D[g + 8, 2t]`, `D[g + 8, 2t + 1]` |
#
# Q stays in registers, as left operands, for the whole kernel. K comes from shared memory. The next two cells are given. The first has the sizes, and loads the queries:

# %%
ALL_LANES = 0xFFFFFFFF
LOG2E = float32(1 / math.log(2))

WIDTH, KEYS, WARPS = 16, 16, 2  # entries of a row, keys of a tile, warps of a block
PITCH = WIDTH + 8  # entries from one row of a tile to the next
ROWS, THREADS = 16 * WARPS, 32 * WARPS  # of a block
STAGE_ROWS = 2 * KEYS  # rows of shared memory: two stages of one tile each
# registers of a lane: words of 16 queries, accumulators of 16 outputs
WORDS, SUMS = WIDTH // 4, WIDTH // 2


@cuda.jit(device=True)
def word(x, i, c):
    """Return x[i, c] and x[i, c + 1], 16 bits each, in one register."""
    return uint32((int32(x[i, c]) & 0xFFFF) | (int32(x[i, c + 1]) << 16))


@cuda.jit(device=True)
def load_queries(qs, at, q, i, step):
    """Load rows i and i + step of q into qs[at : at + WORDS] as left operands.
    Rows that q does not have are 0."""
    for x in range(WORDS):
        row, c = i + x % 2 * step, x // 2 * 8 + cuda.threadIdx.x % 4 * 2
        qs[at + x] = word(q, row, c) if 0 <= row and row < q.shape[0] else uint32(0)


# %% [markdown]
# (Arrays store 16-bit numbers as `int16`, the raw bits. `load_queries` loads rows i and i + `step`: for flash attention rows g and g + 8. The convolution will need other rows.)
#
# The second cell loads the right operands of K, with `ldmatrix` and without it. In `key_operands`, lane l supplies the address of row l % 8 of matrix l // 8. The product Q Kᵀ needs `B[c, j] = K[j, c]`, so two neighbours in a register are two neighbours in a *row* of K, and nothing has to be transposed.

# %%


@cuda.jit(device=True)
def key_operands(tile, first, column):
    """Return right operands b0, b1, b2, b3 of QKᵀ for 16 keys, which are rows of tile
    from `first` on, and 16 columns from `column` on. b0, b1 are of the first 8 keys."""
    lane = cuda.threadIdx.x % 32
    row = first + lane % 8 + lane // 16 * 8
    return ldmatrix_x4(tile, (row, column + lane // 8 % 2 * 8))


@cuda.jit(device=True)
def plain_key_operands(tile, first, column):
    """Return the same without ldmatrix, by two loads for each register."""
    lane = cuda.threadIdx.x % 32
    row, c = first + lane // 4, column + lane % 4 * 2
    return (
        word(tile, row, c),
        word(tile, row, c + 8),
        word(tile, row + 8, c),
        word(tile, row + 8, c + 8),
    )


@cuda.jit(device=True)
def two_products(sums, at, a0, a1, a2, a3, b):
    """Add A times two right operands, next to each other, to sums[at : at + 8]."""
    b0, b1, b2, b3 = b
    sums[at], sums[at + 1], sums[at + 2], sums[at + 3] = mma_bf16(
        a0, a1, a2, a3, b0, b1, sums[at], sums[at + 1], sums[at + 2], sums[at + 3]
    )
    at += 4
    sums[at], sums[at + 1], sums[at + 2], sums[at + 3] = mma_bf16(
        a0, a1, a2, a3, b2, b3, sums[at], sums[at + 1], sums[at + 2], sums[at + 3]
    )


# %% [markdown]
# **Predict**, for the 16 × 16 scores: how many load requests does the warp send to shared memory? As in lesson 11 `___`, with plain loads of fragments `___`, with `ldmatrix` `___`

# %% tags=["guess"]
guess("17 load requests", as_in_lesson_11=..., plain_loads=..., ldmatrix=...)


# %%
def by_mma(operands):
    """Return a kernel that computes 16 × 16 scores with two mma, whose right operands
    operands(...) loads."""

    def kernel(q, k, out):
        k_tile = cuda.shared.array((16, PITCH), int16, alignment=16)
        qs, s = cuda.local.array(4, uint32), cuda.local.array(8, float32)
        lane = cuda.threadIdx.x
        for e in range(lane, 256, 32):
            k_tile[e // 16, e % 16] = k[e // 16, e % 16]
        cuda.syncthreads()
        load_queries(qs, 0, q, lane // 4, 8)
        for x in range(8):
            s[x] = float32(0)
        b = operands(k_tile, 0, 0)
        two_products(s, 0, qs[0], qs[1], qs[2], qs[3], b)
        for x in range(8):
            out[lane // 4 + x // 2 % 2 * 8, lane % 4 * 2 + x % 2 + x // 4 * 8] = s[x]

    return kernel


# %% [markdown]
# The next cell runs it with both kinds of loads, and counts their requests.


# %%
def bf16(rng, *shape):
    """Return normally distributed numbers as bits of bfloat16."""
    return rng.standard_normal(shape).astype(bfloat16).view(int16)


def exact(bits):
    """Return the float64 values of bfloat16 bits."""
    return bits.view(bfloat16).astype(float)


q, k = bf16(np.random.default_rng(17), 2, 16, 16)
for name, kernel in [
    ("mma, plain loads", by_mma(plain_key_operands)),
    ("mma, ldmatrix", by_mma(key_operands)),
]:
    out = np.zeros((16, 16), float32)
    report = simulate(kernel, observers=[*DEFAULT, *COUNTERS])[1, 32](q, k, out)
    filling = 8  # requests that fill the tile of keys
    loads = report.counters["banks"]["shared_requests"] - filling
    right = np.allclose(out, exact(q) @ exact(k).T, atol=1e-5)
    print(f"{name:17} requests for loads: {loads:3}   scores right: {right}")

# %% [markdown]
# In lesson 11, 8 scores · 16 multiply-adds · 2 numbers take 256 requests. With plain loads of fragments, each lane loads the two halves of four registers: 8 requests. One `ldmatrix` is one request. It takes four wavefronts, because its 512 bytes do not fit into fewer. And two `mma` replace the 128 multiply-adds of each lane.
#
# ## 2. From scores to an operand, in the same lanes
#
# The softmax turns the scores into weights P, and P is the *left* operand of the next product, P V. Lesson 11 stored P in shared memory between two barriers, so that other threads could read it. Is that necessary here? After the two `mma`, the warp's accumulators hold S: 16 × 8 scores for keys 0 to 7, and 16 × 8 for keys 8 to 15. The softmax replaces each score by its weight, in the same register. In each lane, `p[0:4]` are its four weights from the first product, and `p[4:8]` those from the second.
#
# **On paper**, for lane 5: g = 1 and t = 1. Which weights does the lane *have*, and which must its a0, a1, a2, a3 *hold*? The table above answers both questions. Does the lane have all that it must hold (yes or no)? `___`

# %% tags=["guess"]
guess("17 lane 5", have_all_of_them=...)

# %% [markdown]
# <details><summary>Answer</summary>
#
# It has, in p[0] to p[7]: P[1, 2], P[1, 3], P[9, 2], P[9, 3], then P[1, 10], P[1, 11], P[9, 10], P[9, 11]. Its a0 holds columns 2 and 3 of row 1, a1 the same columns of row 9, a2 columns 10 and 11 of row 1, and a3 columns 10 and 11 of row 9. The lane has all of them already. You need no shared memory, no shuffle and no barrier.
#
# </details>
#
# ### Exercise 17.1 · as_left · about three lines
#
# Return the four registers a0, a1, a2, a3 of this lane, for any lane. `pack_bf16(low, high)` rounds two float32 to bfloat16, to the nearest and ties to even, and packs them into one register. Use no shared memory, no shuffles and no barriers (of the block or of the warp), and do not change `p`.


# %% tags=["exercise"]
@cuda.jit(device=True)
def as_left(p):
    """Return a0, a1, a2, a3: this lane's part of 16 × 16 weights as a left operand of
    mma. p (8 float32) is the lane's part of the same weights as accumulators."""
    # BEGIN SOLUTION 17.1
    a0, a1 = pack_bf16(p[0], p[1]), pack_bf16(p[2], p[3])
    a2, a3 = pack_bf16(p[4], p[5]), pack_bf16(p[6], p[7])
    return a0, a1, a2, a3
    # END SOLUTION


# %% tags=["check"]
check.ex17_1(as_left)

# %% [markdown]
# Here is what your function does. On the left: which lane holds each weight after Q Kᵀ.
# On the right: the lane and the register that hold it as the left operand, as *your*
# function returns it for the weights 0 to 255. A weight in a wrong place would be red.


# %% jupyter={"source_hidden": true}
def where_it_is(as_left):
    """Return the lane, the register and a verdict for each entry of A, (16, 16, 3)."""

    def numbered(out):
        p, lane = cuda.local.array(8, float32), cuda.threadIdx.x
        for x in range(8):
            row, column = lane // 4 + x // 2 % 2 * 8, lane % 4 * 2 + x % 2 + x // 4 * 8
            p[x] = float32(16 * row + column)
        out[lane, 0], out[lane, 1], out[lane, 2], out[lane, 3] = as_left(p)

    out, found = np.zeros((32, 4), uint32), np.zeros((16, 16, 3), int)
    simulate(numbered)[1, 32](out)
    halves = exact(out.view(int16)).reshape(32, 4, 2)
    for lane, r, half in np.ndindex(32, 4, 2):
        row, column = lane // 4 + r % 2 * 8, lane % 4 * 2 + half + r // 2 * 8
        right = halves[lane, r, half] == 16 * row + column
        found[row, column] = lane, r, right
    return found


def draw_operand(found):
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5.4), layout="constrained")
    for i, j in np.ndindex(16, 16):
        lane, r, correct = found[i, j]
        had = (left, i % 8 * 4 + j % 8 // 2, (SKY, PINK)[j // 8])
        held = (right, lane, (SKY, GREEN, PINK, ORANGE)[r] if correct else RED)
        for axes, number, colour in (had, held):
            axes.add_patch(
                plt.Rectangle((j, i), 1, 1, facecolor=colour, edgecolor="white")
            )
            axes.text(j + 0.5, i + 0.55, number, ha="center", va="center", fontsize=9)
    left.set_title("the lane that has it after QKᵀ (colours: first, second mma)")
    right.set_title("the lane that holds it for PV (colours: a0, a1, a2, a3)")
    for axes in (left, right):
        axes.set(
            xlim=(0, 16), ylim=(16, 0), aspect="equal", xlabel="key", ylabel="query"
        )
    return figure


# %% tags=["uses-exercise"]
found = where_it_is(as_left)
show_figure(
    draw_operand(found),
    "two squares of 16 × 16 weights, each with the number of a lane. Left, lanes 0 to "
    "3 have row 0, two neighbours each, for the keys 0 to 7 and again for 8 to 15; "
    "lanes 4 to 7 have row 1, and so on; rows 8 to 15 repeat rows 0 to 7. "
    "Right the same lanes in the same places, in four quarters: a0 top left, a1 below, "
    "a2 top right, a3 below it.",
)
print("all 256 weights are where mma wants them:", bool(found[..., 2].all()))

# %% [markdown]
# The accumulator layout of one `mma` equals the left-operand layout of the next. That is why flash attention can keep the scores of a tile in registers.
#
# Between the two products comes the softmax. It is given in the next two cells, which are folded: lesson 01's update, for the two rows of a lane. (Run them. You need not read them.) The four lanes of a quad share a row, so its maximum takes two shuffles. `l` is summed over lanes only once, at the end, in `store`. **Predict**: how many shuffles does a warp execute for 16 × 16 scores? `___` (Lesson 06's warp made 10 for 32 scores.)

# %% tags=["guess"]
guess("17 shuffles", shuffles=...)


# %% jupyter={"source_hidden": true}
@cuda.jit(device=True)
def mask(s, i, step, j, n, value):
    """Set s to value where a key does not exist, or comes after its query, for rows i
    and i + step and 16 keys from j on."""
    for x in range(8):
        key = j + x // 4 * 8 + cuda.threadIdx.x % 4 * 2 + x % 2
        if key > i + x // 2 % 2 * step or key < 0 or key >= n:
            s[x] = value


@cuda.jit(device=True)
def row_max(x):
    """Return the largest x of the four lanes of a quad, which share a row."""
    x = max(x, cuda.shfl_xor_sync(ALL_LANES, x, 1))
    return max(x, cuda.shfl_xor_sync(ALL_LANES, x, 2))


@cuda.jit(device=True)
def update(s, m, l, o, factor):
    """Update m, l and o with a lane's two rows of scores, as in lesson 01.

    s becomes 2^(factor · (s - m)). l sums only this lane's part."""
    for h in range(2):
        x = 2 * h
        largest = row_max(max(max(s[x], s[x + 1]), max(s[x + 4], s[x + 5])))
        largest = max(m[h], largest)
        base = float32(0) if largest == MINUS_INFINITY else largest
        shrink = exp2_approx((m[h] - base) * factor)
        m[h] = largest
        l[h] *= shrink
        for tile in range(WIDTH // 8):
            o[tile * 4 + x] *= shrink
            o[tile * 4 + x + 1] *= shrink
        for e in range(4):
            y = x + e // 2 * 4 + e % 2
            s[y] = exp2_approx((s[y] - base) * factor)
            l[h] += s[y]


# %% [markdown]
# Did you get four? There are two rows, and each takes two shuffles. After its loop a kernel still has to finish its results, in an **epilogue**. Here `store` sums `l` over the quad, divides by it and writes the output:


# %% jupyter={"source_hidden": true}
@cuda.jit(device=True)
def store(out, o, l, i, step):
    """Store rows i and i + step of the output."""
    for h in range(2):
        total = l[h] + cuda.shfl_xor_sync(ALL_LANES, l[h], 1)
        total += cuda.shfl_xor_sync(ALL_LANES, total, 2)
        share = reciprocal(total)
        if i + h * step < out.shape[0]:
            for x in range(WIDTH // 4):
                c = x // 2 * 8 + cuda.threadIdx.x % 4 * 2 + x % 2
                out[i + h * step, c] = o[x // 2 * 4 + 2 * h + x % 2] * share


# %% [markdown]
# ## 3. Values are loaded transposed
#
# The product P V needs `B[j, c] = V[j, c]`: the *keys* are rows of B. The two entries of a register, `B[2t, g]` and `B[2t + 1, g]`, are one below the other in V, in two rows of the tile. `ldmatrix_x4_trans` was made for this case. As before, lane 8m + i supplies the address of row i of matrix m. But now register m of a lane receives `M[2t, g]` and `M[2t + 1, g]`.
#
# ### Exercise 17.2 · value_operands · about two lines
#
# Return b0, b1, b2, b3 for 16 keys, the rows of `tile` from `first` on, and 16 columns, from `column` on. b0 and b1 are the right operand for the first 8 columns, b2 and b3 for the next 8. Use one `ldmatrix_x4_trans(tile, (row, column))`, whose row and column depend on the lane, and no other access to the tile. All warps of a block load the same 16 keys.
#
# <details><summary>Hint 1: which four matrices?</summary>
#
# b0 covers keys 0 to 7 and columns 0 to 7. b1 covers keys 8 to 15 and the *same* columns. b2 and b3 are their right neighbours.
#
# </details>
# <details><summary>Hint 2: which lane supplies which address?</summary>
#
# Lanes 0 to 7 point to keys 0 to 7, lanes 8 to 15 to keys 8 to 15, and lanes 16 to 23 to keys 0 to 7 again, 8 columns further right.
#
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def value_operands(tile, first, column):
    """Return right operands b0, b1, b2, b3 of PV for 16 keys, which are rows of tile
    from `first` on, and 16 columns from `column` on. b0, b1 are of the first 8."""
    lane = cuda.threadIdx.x % 32
    # BEGIN SOLUTION 17.2
    row = first + lane % 16
    return ldmatrix_x4_trans(tile, (row, column + lane // 16 * 8))
    # END SOLUTION


# %% tags=["check"]
check.ex17_2(value_operands)

# %% [markdown]
# ### Where rows begin
#
# `ldmatrix` reads eight rows of 16 bytes at a time. Shared memory has 32 banks of 4 bytes, so the eight rows take one wavefront if they occupy different banks. Our rows have 16 elements of 2 bytes. In the recordings they have 64 elements.
#
# **Predict** the wavefronts of one `ldmatrix_x4_trans`, which reads eight rows four times, if the distance between the starts of two rows, in elements, is 64 `___`, 72 `___`, 16 `___`, 24 `___`

# %% tags=["guess"]
guess("17 pitches", apart_64=..., apart_72=..., apart_16=..., apart_24=...)


# %%
def wavefronts(pitch):
    """Return the wavefronts for one fragment of values, in rows of `pitch` numbers."""

    def kernel(out):
        tile = cuda.shared.array((16, pitch), int16, alignment=16)
        for e in range(cuda.threadIdx.x, 256, 32):
            tile[e // 16, e % 16] = 0
        cuda.syncthreads()
        out[cuda.threadIdx.x] = value_operands(tile, 0, 0)[0]

    counters = simulate(kernel, observers=COUNTERS)[1, 32](
        np.zeros(32, uint32)
    ).counters
    of_lines = counters["lines"].items()
    return sum(
        x.get("wavefronts", 0) for (name, _), x in of_lines if name == "value_operands"
    )


# %% tags=["uses-exercise"]
for pitch in (64, 72, 16, 24):
    print(f"rows begin {2 * pitch:3} bytes apart: {wavefronts(pitch):2} wavefronts")

# %% [markdown]
# If rows begin 128 bytes apart, all eight rows of a matrix begin in bank 0, and each needs its own wavefront. With 16 bytes of padding, row i starts 16 · i bytes further on, modulo 128, so the rows occupy different banks. That is why `PITCH = WIDTH + 8`. (Lesson 16b's swizzle would do the same without extra memory.)
#
# ## 4. Double buffering
#
# Now the loop over tiles of keys. In lesson 11 each tile took four steps: load, barrier, use, barrier. During the load no thread multiplies, and a load from global memory takes as long as many products. **Double buffering** avoids this: shared memory has two **stages**, and while the block uses the tile in one stage, the next tile is copied to the other. The instruction for it is `cp.async`, which copies 16 bytes from global to shared memory *while the thread continues*:
#
# - `cp_async_16(tile, index, x, index, 16)` starts a copy (with 0 as the last argument it writes zeros);
# - `cp_async_commit()` closes a group of copies;
# - `cp_async_wait_0()` waits for **this thread's** copies, and `cp_async_wait_1()` for all its groups except the newest.
#
# **Predict.** Thread 3 has waited for its own copies. May it now read data that thread 4 copies? `___`

# %% tags=["guess"]
guess("17 own copies", may_read=...)

# %% [markdown]
# The next three cells are given. The first has the products: `use_tiles` updates a warp's queries with the tiles at row `stage` of shared memory (row 0 or row `KEYS`), by your two functions.


# %%
@cuda.jit(device=True)
def add_values(o, p, v_tile, first):
    """Add p V to o for 16 keys, rows of v_tile from first on."""
    a0, a1, a2, a3 = as_left(p)
    for step in range(WIDTH // 16):
        b = value_operands(v_tile, first, step * 16)
        two_products(o, step * 8, a0, a1, a2, a3, b)


@cuda.jit(device=True)
def make_scores(s, qs, at, k_tile, first):
    """Set s (8 float32) to the products of the queries in qs[at:] with 16 keys,
    rows of k_tile from first on."""
    for x in range(8):
        s[x] = float32(0)
    for step in range(WIDTH // 16):
        y = at + step * 4
        b = key_operands(k_tile, first, step * 16)
        two_products(s, 0, qs[y], qs[y + 1], qs[y + 2], qs[y + 3], b)


@cuda.jit(device=True)
def use_tiles(k_tile, v_tile, stage, j0, mine):
    """Update this warp's queries with the tiles at row `stage` of shared memory,
    which hold the keys and values from j0 on."""
    qs, i, n, factor, m, l, o = mine
    s = cuda.local.array(8, float32)
    for first in range(0, KEYS, 16):
        make_scores(s, qs, 0, k_tile, stage + first)
        mask(s, i, 8, j0 + first, n, MINUS_INFINITY)
        update(s, m, l, o, factor)
        add_values(o, s, v_tile, stage + first)


# %% [markdown]
# The second cell starts copies. `send_tiles` starts the copies of a tile of K and one of V to a stage, and commits them as a group. `one_buffer` loops over the keys without any overlap:


# %%
@cuda.jit(device=True)
def copy(tile, stage, x, first):
    """Start copies of rows [first, first + KEYS) of x to tile[stage:], zeros for rows
    that x does not have. Each copy has 16 bytes."""
    for part in range(cuda.threadIdx.x, KEYS * WIDTH // 8, THREADS):
        i, c = part // (WIDTH // 8), part % (WIDTH // 8) * 8
        inside = 0 <= first + i and first + i < x.shape[0]
        row, count = (first + i, 16) if inside else (0, 0)
        cp_async_16(tile, (stage + i, c), x, (row, c), int32(count))


@cuda.jit(device=True)
def send_tiles(k, v, k_tile, v_tile, stage, j0):
    """Start a group of copies: the keys and values from j0 on, to row `stage`."""
    copy(k_tile, stage, k, j0)
    copy(v_tile, stage, v, j0)
    cp_async_commit()


@cuda.jit(device=True)
def one_buffer(k, v, k_tile, v_tile, seen, mine):
    """Use the keys [0, seen): copy a tile, wait for it, use it."""
    for j0 in range(0, seen, KEYS):
        send_tiles(k, v, k_tile, v_tile, 0, j0)
        cp_async_wait_0()
        cuda.syncthreads()  # the copies of all threads have arrived
        use_tiles(k_tile, v_tile, 0, j0, mine)
        cuda.syncthreads()  # all threads have used the tile


# %% [markdown]
# The third cell makes the kernel around such a loop. (Blocks are launched longest-first: block 0 gets the last queries, which see the most keys.)


# %%
def flash_with(loop):
    """Return the kernel whose blocks loop over their keys with loop(...)."""

    @cuda.jit
    def flash_kernel(q, k, v, scale, out):
        """Compute causal attention: out (n, WIDTH) float32 of q, k, v (n, WIDTH),
        bits of bfloat16."""
        k_tile = cuda.shared.array((STAGE_ROWS, PITCH), int16, alignment=16)
        v_tile = cuda.shared.array((STAGE_ROWS, PITCH), int16, alignment=16)
        qs = cuda.local.array(WORDS, uint32)
        o = cuda.local.array(SUMS, float32)
        m = cuda.local.array(2, float32)
        l = cuda.local.array(2, float32)
        n, i0 = q.shape[0], (cuda.gridDim.x - 1 - cuda.blockIdx.x) * ROWS
        my_row = i0 + cuda.threadIdx.x // 32 * 16 + cuda.threadIdx.x % 32 // 4
        load_queries(qs, 0, q, my_row, 8)
        for x in range(SUMS):
            o[x] = float32(0)
        for h in range(2):
            m[h], l[h] = MINUS_INFINITY, float32(0)
        mine = qs, my_row, n, scale * LOG2E, m, l, o
        loop(k, v, k_tile, v_tile, min(n, i0 + ROWS), mine)
        store(out, o, l, my_row, 8)

    return flash_kernel


# %% [markdown]
# ### Exercise 17.3 · two_buffers · about nine lines
#
# Use the keys [0, `seen`) tile by tile. While the block uses the tiles in one stage, the copies of the next tiles to the other stage are in flight. Copy each tile once and use it once. Do not copy a tile that starts at or beyond `seen`. Use **one** barrier per tile (one more in total is fine). The loop must work for every `KEYS` that is a multiple of 16: the check also runs it with tiles of 32 keys.
#
# <details><summary>Hint 1: before the loop</summary>
#
# Start the copies of the first tile before the loop, to row 0. Then `stage` alternates between 0 and `KEYS`: `stage = KEYS - stage`.
#
# </details>
# <details><summary>Hint 2: how can one barrier be enough?</summary>
#
# It has two jobs. After the barrier, all copies of this tile have arrived, if each thread waited before it. Also, after the barrier all threads have finished with the *previous* tile. So the stage of the previous tile is free, and the next copies may go there.
#
# </details>
# <details><summary>Hint 3: the order</summary>
#
# In each iteration: wait, barrier, start the copies of the next tile (if there is one), use this one.
#
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def two_buffers(k, v, k_tile, v_tile, seen, mine):
    """Use the keys [0, seen). While the block uses one tile, copy the next one."""
    # BEGIN SOLUTION 17.3
    send_tiles(k, v, k_tile, v_tile, 0, 0)
    stage = 0
    for j0 in range(0, seen, KEYS):
        cp_async_wait_0()
        cuda.syncthreads()
        if j0 + KEYS < seen:
            send_tiles(k, v, k_tile, v_tile, KEYS - stage, j0 + KEYS)
        use_tiles(k_tile, v_tile, stage, j0, mine)
        stage = KEYS - stage
    # END SOLUTION


flash_kernel = flash_with(two_buffers)

# %% tags=["check"]
check.ex17_3(flash_kernel)

# %% [markdown]
# The next picture shows timelines of both loops, for the block with the most keys. The simulator recorded the order of copies and products. The lengths are a model: a product takes one tick, and a copy takes six. Orange bars are copies in flight to a stage. Blue lines are products. The hatched bars are **stalls**: the block waits for a copy, and nothing is multiplied.


# %% jupyter={"source_hidden": true}
TICKS_OF_A_COPY = 6


def watched(loop, n=70):
    """Return the record of a loop's copies and products on n tokens."""
    flights, rng = Flights(), np.random.default_rng(17)
    (q, k, v), out = bf16(rng, 3, n, WIDTH), np.zeros((n, WIDTH), float32)
    launched = simulate(flash_with(loop), observers=[*DEFAULT, flights])
    launched[-(-n // ROWS), THREADS](q, k, v, float32(0.25), out)
    return flights


def timeline(flights):
    """Return the copies, products and stalls of the block with the most events."""
    block = max(flights.now, key=flights.now.get)
    copies = {(row, *when) for b, _, row, *when in flights.times if b == block}
    events = [(tick, 0, None) for tick in flights.ticks[block]]
    events += [(sent, 1, row) for row, sent, _ in copies]
    events += [(received, 2, row) for row, _, received in copies]
    now, begin, bars, products, stalls = 0, {}, [], [], []
    for _, kind, row in sorted(events, key=lambda event: event[:2]):
        if kind == 0:
            products.append(now)
            now += 1
        elif kind == 1:
            begin[row] = now
            bars.append((row // KEYS, now))
        elif begin[row] + TICKS_OF_A_COPY > now:
            stalls.append((now, begin[row] + TICKS_OF_A_COPY))
            now = stalls[-1][1]
    return bars, products, stalls


# %% jupyter={"source_hidden": true}
def draw_flights(every):
    figure, axes = plt.subplots(len(every), 1, figsize=(10, 4), layout="constrained")
    drawn = {name: timeline(flights) for name, flights in every.items()}
    end = max(products[-1] for _, products, _ in drawn.values())
    for (name, (bars, products, stalls)), one in zip(drawn.items(), axes, strict=True):
        for stage, begin in bars:
            one.barh(1 - stage, TICKS_OF_A_COPY, left=begin, color=ORANGE, height=0.7)
        one.vlines(np.add(products, 0.5), -1.4, -0.6, color=BLUE, linewidth=2)
        for begin, until in stalls:
            one.barh(
                -1,
                until - begin,
                left=begin,
                height=0.7,
                color="none",
                hatch="///",
                edgecolor=RED,
            )
        one.set_yticks([1, 0, -1], ["to stage 0", "to stage 1", "products"])
        one.set(title=name, ylim=(-1.6, 1.6), xlim=(-1, end + 2))
    axes[-1].set_xlabel("ticks")
    return figure


# %% tags=["uses-exercise"]
every = {"one buffer": watched(one_buffer), "two buffers": watched(two_buffers)}
show_figure(
    draw_flights(every),
    "two timelines. With one buffer, the block stalls for each copy, and then makes "
    "the products of the tile. With two buffers, it stalls only for the first copy, "
    "because each later copy is in flight during the products of the tile before.",
)
for name, flights in every.items():
    print(
        f"{name}: copies in flight during {flights.covered.total()} of "
        f"{flights.products.total()} products"
    )

# %% [markdown]
# The last tile of a block has no successor, so nothing is in flight during its products.
#
# ### Three loops
#
# Here are three loops. Only the body differs from yours.


# %%
@cuda.jit(device=True)
def loop_a(k, v, k_tile, v_tile, seen, mine):
    send_tiles(k, v, k_tile, v_tile, 0, 0)
    stage = 0
    for j0 in range(0, seen, KEYS):
        cuda.syncthreads()
        cp_async_wait_0()
        if j0 + KEYS < seen:
            send_tiles(k, v, k_tile, v_tile, KEYS - stage, j0 + KEYS)
        use_tiles(k_tile, v_tile, stage, j0, mine)
        stage = KEYS - stage


@cuda.jit(device=True)
def loop_b(k, v, k_tile, v_tile, seen, mine):
    send_tiles(k, v, k_tile, v_tile, 0, 0)
    stage = 0
    for j0 in range(0, seen, KEYS):
        if j0 + KEYS < seen:
            send_tiles(k, v, k_tile, v_tile, KEYS - stage, j0 + KEYS)
            cp_async_wait_1()
        else:
            cp_async_wait_0()
        cuda.syncthreads()
        use_tiles(k_tile, v_tile, stage, j0, mine)
        stage = KEYS - stage


# %%
@cuda.jit(device=True)
def loop_c(k, v, k_tile, v_tile, seen, mine):
    send_tiles(k, v, k_tile, v_tile, 0, 0)
    stage = 0
    for j0 in range(0, seen, KEYS):
        if j0 + KEYS < seen:
            send_tiles(k, v, k_tile, v_tile, KEYS - stage, j0 + KEYS)
            cp_async_wait_1()
        else:
            cp_async_wait_0()
        cuda.syncthreads()
        use_tiles(k_tile, v_tile, stage, j0, mine)
        cuda.syncthreads()
        stage = KEYS - stage


# %% [markdown]
# **Guess before you run.** Which loops are correct? For each incorrect one, which access may come too early? Is loop a correct? `___` Loop b? `___` Loop c? `___`

# %% tags=["guess"]
guess("17 three loops", a=..., b=..., c=...)


# %% jupyter={"source_hidden": true}
def attended(q, k, v):
    """Return the output in float64, for a scale of 1/4."""
    seen = np.tri(len(q), dtype=bool)
    scores = np.where(seen, 0.25 * exact(q) @ exact(k).T, -np.inf)
    p = np.exp(scores - scores.max(1, keepdims=True))
    return p @ exact(v) / p.sum(1, keepdims=True)


def tried(loop, n=60):
    """Return the report of a loop on n tokens, and whether its output is correct."""
    q, k, v = bf16(np.random.default_rng(17), 3, n, WIDTH)
    out = np.full((n, WIDTH), np.nan, float32)
    launched = simulate(flash_with(loop), on_finding="report")
    report = launched[-(-n // ROWS), THREADS](q, k, v, float32(0.25), out)
    return report, bool(np.abs(out - attended(q, k, v)).max() <= 0.02)


# %% tags=["uses-exercise"]
reports = {}
for loop in (loop_a, loop_b, loop_c):
    name = loop.py_func.__name__
    reports[name], right = tried(loop)
    kinds = sorted({finding.kind for finding in reports[name].findings})
    found = ", ".join(kinds) or "nothing"
    print(f"{name}: output correct: {right!s:5}  sim finds {found}")
print()
print(reports["loop_a"].findings[0].message)

# %% [markdown]
# <details><summary>What is wrong</summary>
#
# - **a** waits after the barrier. Each thread's own copies have arrived, but those of other threads may not have. The simulator delivers a copy as late as the hardware may. On a GPU it would usually give the correct output.
# - **b** starts the next copies before the barrier, to a stage that a slower warp may still be reading.
# - **c** is correct. It starts copies before the barrier, and pays for that with a second barrier. (Its `cp_async_wait_1` leaves the newest group in flight.)
#
# </details>
#
# ### The same as lesson 11
#
# Lesson 11's kernel with a single tap of 1 is plain flash attention. The next cell runs both kernels on the same numbers. It uses your own kernel of lesson 11 if your copy of that lesson has it:


# %% tags=["uses-exercise"]
lesson11 = brought("11_conv_forward", "conv_kernel")


def by_lesson11(q, k, v, w, scale, size=16):
    """Return the output of lesson 11's kernel, in float32, for the same numbers."""
    given = [exact(x).astype(float32) for x in (q, k, v)]
    out, log_sum = np.zeros((len(q), WIDTH), float32), np.zeros(len(q), float32)
    grid = -(-len(q) // (size - (len(w) - 1)))
    simulate(lesson11(size))[grid, (size, size)](*given, w, scale, out, log_sum)
    return out


n, scale = 40, float32(0.25)
q, k, v = bf16(np.random.default_rng(11), 3, n, WIDTH)
out = np.zeros((n, WIDTH), float32)
simulate(flash_kernel)[-(-n // ROWS), THREADS](q, k, v, scale, out)
theirs = by_lesson11(q, k, v, np.ones((1, 1), float32), scale)
print("largest difference below 2⁻⁷:", bool(np.abs(out - theirs).max() <= 2**-7))

# %% [markdown]
# The difference is rounding: bfloat16 has 8 significant bits, so rounding a weight changes it by at most one part in 256 (2⁻⁸).
#
# ## 5. Predicted, counted, measured
#
# We ran the same source with `WIDTH, KEYS, WARPS = 64, 64, 4` on a GPU, for one head of 65,536 tokens, causal. Each row of the table changes one thing. **Predict** before you look: by what factor is `ldmatrix` without padding faster than plain loads? `___` What factor does the padding add? `___` The second buffer? `___`

# %% tags=["guess"]
guess("17 factors", ldmatrix=..., padding=..., second_buffer=...)

# %%
flash = record["flash"]
ms = {row["name"]: row["ms"] for row in flash["rows"]}
work = (
    2 * flash["n"] * (flash["n"] + 1) * flash["d"]
)  # operations of two products, causal
NAMES = {
    "package, float32": "float32, no tensor cores (package)",
    "plain loads": "tensor cores, plain loads, one buffer",
    "ldmatrix": "ldmatrix instead of plain loads",
    "ldmatrix, padded rows": "rows begin 144 bytes apart, not 128",
    "two places": "two buffers: this is your kernel",
    "package": "the package's kernel",
    "SDPA": "PyTorch's attention (SDPA)",
}
show_table(
    ["", "ms", "times faster than the row above", "TFLOP/s"],
    *(
        [
            words,
            f"{ms[name]:.2f}",
            f"{ms[before] / ms[name]:.2f}" if before else "",
            f"{work / ms[name] / 1e9:.0f}",
        ]
        for before, (name, words) in zip([None, *NAMES], NAMES.items())
    ),
    title=f"flash attention, {record['gpu']}, recorded {record['date']}",
)

# %% [markdown]
# - **Tensor cores** give the largest factor, even with loads that waste most of their wavefronts.
# - **The padding** gives more than `ldmatrix` itself, for 16 bytes per row: 4 wavefronts instead of 32, as you counted. (The kernel does not become eight times faster, because shared memory accounts for only part of its time.)
# - **The second buffer** gives 9 %. Most people predict more. Why so little? Your kernel uses 126 registers per thread, so four blocks of four warps share a streaming multiprocessor (lesson 08b: `16384 // (128 * 32)` warps in a quarter). While one block waits for its tile, three others multiply. Copies in flight help most if no other block can fill the time.
# - **The package's kernel** takes less than half of your kernel's time. It gives a warp
#   32 queries instead of 16, so it reads K and V from shared memory half as often. It
#   updates m once per 64 keys instead of once per 16, and leaves m as it is unless
#   weights would become too large. The idea is not new: do more work per loaded number, as lesson
#   11b's patches did. (This is the kernel for `mma.sync`, as recorded. On Hopper GPUs the package now uses
#   the instructions of lesson 18c.)

# %% [markdown]
# ## The ladder
#
# This rung is attention again, the task of lessons 05 and 06, now causal and on tensor cores. The simulator counts your kernel with 16 numbers per row. On a GPU the same source runs with `WIDTH, KEYS, WARPS = 64, 64, 4`, read from your saved notebook. **Predict**: by what factor do the transactions fall, compared with lesson 05? `___`

# %% tags=["guess"]
guess("17 ladder", factor=...)

# %% tags=["uses-exercise"]
show_ladder("17", flash_with, two_buffers)

# %% [markdown]
# With a GPU, the next cell times your own kernel on it:

# %% tags=["gpu"]
time_rung("17", flash_with, two_buffers)

# %% [markdown]
# Fragments, `ldmatrix` and the padding account for that factor.
#
# ## In three lines
#
# - The accumulator layout of `mma` is its left-operand layout: scores become weights, and weights become an operand, without leaving their lanes.
# - Wait for your own copies, then the barrier, then start the next copies: one barrier per tile, and copies in flight during all products except those of the last tile.
# - Tensor cores give the largest factor, then the padding. A second buffer helps little if other blocks already fill the time.
#
# **You can now** move a kernel to tensor cores, and find out which of its steps was worth the work.
#
# **Read on:** Jay Shah, Ganesh Bikshandi, Ying Zhang, Vijay Thakkar, Pradeep Ramani and Tri Dao, *FlashAttention-3: Fast and Accurate Attention with Asynchrony and Low-precision* (2024, arXiv:2407.08608), for `wgmma`, TMA and warp specialisation · NVIDIA, *CUDA C++ Programming Guide*, section "Asynchronous Data Copies" · the [glossary](../docs/glossary.md) of this course.
#
# **Next:** [lesson 17b](17b_fast_convolution.ipynb) puts the convolution between the two products.
