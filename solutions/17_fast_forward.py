# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 17 · Fast forward: your kernel on tensor cores, step by step
#
# **170 minutes**, in two sittings: flash attention, sections 1 to 5 (100), and its convolution (70) · builds on lesson 11 (the convolutional kernel), lesson 16 (fragments and `ldmatrix`) and lesson 08 (banks)
#
# You will be able to
#
# 1. turn scores into the left operand of the next product without moving a number;
# 2. keep the copies of the next tile under way while this one is used, and find a wait that is missing;
# 3. choose a convolution's route to the tensor cores by counting, before anything is written;
# 4. make a convolution a product: taps are a matrix, and a shift of rows is another register.
#
# **Where this leads.** Lesson 11's kernel multiplies number by number, and so does the package's float32 kernel, its larger sister. The kernel that stands at the end of this lesson has the same algorithm in bfloat16 on tensor cores. Recorded, causal, 7 × 7 taps:

# %%
import functools
import json
import math

import matplotlib.pyplot as plt
import numpy as np
import torch
from ml_dtypes import bfloat16
from numba import cuda
from numpy import float32, int16, int32, uint32

from course import brought, check, show_figure, show_table
from course.check.lesson17 import Flights
from course.figures import BLUE, GREEN, ORANGE, PINK, RED, SKY
from kernels import reference
from kernels.common.data import DATA
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
from kernels.common.tiles import MINUS_INFINITY, reciprocal
from sim import simulate
from sim.observers import COUNTERS, DEFAULT

record = json.loads((DATA / "lesson17.json").read_text("utf-8"))
bench = json.loads((DATA / "bench.json").read_text("utf-8"))
WAYS = {
    ("training", "eager"): "plain PyTorch, float32",
    ("halves", "eager"): "plain PyTorch, bfloat16",
    ("training", "kernels"): "the package, float32: lesson 11's way",
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
# You will write the parts that make the difference, for rows of 16 numbers, and run them in the simulator. **No GPU is needed.** We take plain flash attention to the tensor cores first, and the convolution after that.
#
# ## 1. What a product costs
#
# One warp, 16 queries, 16 keys, d = 16: 256 scores, 4096 multiply-adds. In lesson 11's way each lane makes 8 of the scores, and each multiply-add takes two numbers from shared memory. On tensor cores two `mma` (16 × 8 × 16) do all of it. Their operands are fragments, as in lesson 16: with g = lane // 4 and t = lane % 4,
#
# | | register or number | holds |
# |---|---|---|
# | left operand A, 16 × 16 | a0, a1, a2, a3 | `A[g, 2t]`, `A[g + 8, 2t]`, `A[g, 2t + 8]`, `A[g + 8, 2t + 8]`, each in the lower half, and its right neighbour in the upper half |
# | right operand B, 16 × 8 | b0, b1 | `B[2t, g]`, `B[2t + 8, g]`, and the number below it in the upper half |
# | sums C and D, 16 × 8, float32 | 0, 1, 2, 3 | `D[g, 2t]`, `D[g, 2t + 1]`, `D[g + 8, 2t]`, `D[g + 8, 2t + 1]` |
#
# Q stays in registers as left operands for the whole kernel. K comes from shared memory. These functions bring its right operands, by `ldmatrix` and without:

# %%
ALL_LANES = 0xFFFFFFFF
LOG2E = float32(1 / math.log(2))

WIDTH, KEYS, WARPS = 16, 16, 2  # numbers in a row, keys in a tile, warps in a block
PITCH = WIDTH + 8  # numbers from one row of a tile to the next
ROWS, THREADS = 16 * WARPS, 32 * WARPS  # of a block
PLACES = 2 * KEYS  # rows of shared memory: two tiles
WORDS, SUMS = WIDTH // 4, WIDTH // 2  # of a lane: for 16 queries, for their outputs


@cuda.jit(device=True)
def word(x, i, c):
    """x[i, c] and x[i, c + 1], 16 bits each, in one register."""
    return uint32((int32(x[i, c]) & 0xFFFF) | (int32(x[i, c + 1]) << 16))


@cuda.jit(device=True)
def load_queries(qs, at, q, i, step):
    """qs[at : at + WORDS]: rows i and i + step of q as left operands, or 0."""
    for x in range(WORDS):
        row, c = i + x % 2 * step, x // 2 * 8 + cuda.threadIdx.x % 4 * 2
        qs[at + x] = word(q, row, c) if 0 <= row and row < q.shape[0] else uint32(0)


@cuda.jit(device=True)
def key_operands(tile, first, column):
    """(b0, b1, b2, b3): right operands of QKᵀ for 16 keys, rows of tile from `first`
    on, and 16 of their numbers, from `column` on; b0, b1 are of the first 8 keys."""
    lane = cuda.threadIdx.x % 32
    row = first + lane % 8 + lane // 16 * 8
    return ldmatrix_x4(tile, (row, column + lane // 8 % 2 * 8))


@cuda.jit(device=True)
def plain_key_operands(tile, first, column):
    """The same without ldmatrix: two numbers for each register."""
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
    """sums[at : at + 8] of a lane += A times two right operands side by side."""
    b0, b1, b2, b3 = b
    sums[at], sums[at + 1], sums[at + 2], sums[at + 3] = mma_bf16(
        a0, a1, a2, a3, b0, b1, sums[at], sums[at + 1], sums[at + 2], sums[at + 3]
    )
    at += 4
    sums[at], sums[at + 1], sums[at + 2], sums[at + 3] = mma_bf16(
        a0, a1, a2, a3, b2, b3, sums[at], sums[at + 1], sums[at + 2], sums[at + 3]
    )


# %% [markdown]
# (All numbers of 16 bits stand in arrays as `int16`, their bits. `load_queries` takes the rows i and i + `step`: in flash attention g and g + 8. At the end of the lesson we shall want other rows.)
#
# In `key_operands`, lane l says where row l % 8 of matrix l // 8 begins. Q Kᵀ wants `B[c, j] = K[j, c]`, so two neighbours in a register are two neighbours in a *row* of K: no transposing.
#
# **Predict**, for the 16 × 16 scores: how many requests of the warp to shared memory does each way make? Lesson 11's way `___`, plain loads of fragments `___`, `ldmatrix` `___`


# %%
def by_hand(q, k, out):
    """Lesson 11's way: a lane makes 8 scores, number by number."""
    q_tile = cuda.shared.array((16, 17), float32)
    k_tile = cuda.shared.array((16, 17), float32)
    lane = cuda.threadIdx.x
    for e in range(lane, 256, 32):
        q_tile[e // 16, e % 16], k_tile[e // 16, e % 16] = q[e], k[e]
    cuda.syncthreads()
    for x in range(8):
        i, j = lane // 16 * 8 + x, lane % 16
        total = float32(0)
        for c in range(16):
            total += q_tile[i, c] * k_tile[j, c]
        out[i, j] = total


def by_mma(operands):
    """The same as two products, whose right operands come by operands(...)."""

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


def bf16(rng, *shape):
    """Normal numbers: bits of bfloat16."""
    return rng.standard_normal(shape).astype(bfloat16).view(int16)


def exact(bits):
    """The numbers of which these are the bits, float64."""
    return bits.view(bfloat16).astype(float)


q, k = bf16(np.random.default_rng(17), 2, 16, 16)
for name, kernel, given in [
    ("lesson 11's way", by_hand, [exact(x).astype(float32).ravel() for x in (q, k)]),
    ("mma, plain loads", by_mma(plain_key_operands), [q, k]),
    ("mma, ldmatrix", by_mma(key_operands), [q, k]),
]:
    out = np.zeros((16, 16), float32)
    report = simulate(kernel, observers=[*DEFAULT, *COUNTERS])[1, 32](*given, out)
    filling = 16 if kernel is by_hand else 8  # requests that fill the tiles
    loads = report.counters["banks"]["shared_requests"] - filling
    right = np.allclose(out, exact(q) @ exact(k).T, atol=1e-5)
    print(f"{name:17} requests for loads: {loads:3}   scores right: {right}")

# %% [markdown]
# 8 scores · 16 multiply-adds · 2 numbers are 256 requests. With plain loads a lane asks for the two halves of four registers, 8 requests. One `ldmatrix` is one request, which takes four turns of the banks, as 512 bytes do not fit into fewer. And 128 multiply-adds of each lane have become two `mma`.
#
# ## 2. From scores to weights without moving
#
# After the softmax the scores are weights P, and P is the *left* operand of the next product, P V. Lesson 11 stored P in shared memory between two barriers, so that other threads could read it. Where does it go here? Two `mma` have left S in the warp, 16 × 8 for the keys 0 to 7, and 16 × 8 for the keys 8 to 15. In a lane, `p[0:4]` are its numbers of the first, `p[4:8]` those of the second.
#
# **On paper**, for lane 5: g = 1 and t = 1. Which weights does it *have*, and which must its a0, a1, a2, a3 *hold*? The table above says both. `___`
#
# <details><summary>Answer</summary>
#
# It has, in p[0] to p[7]: P[1, 2], P[1, 3], P[9, 2], P[9, 3], then P[1, 10], P[1, 11], P[9, 10], P[9, 11]. Its a0 holds columns 2 and 3 of row 1, a1 the same columns of row 9, a2 columns 10 and 11 of row 1, and a3 those of row 9. It is all there. No shared memory, no shuffle, no barrier.
#
# </details>
#
# ### Exercise 17.1 · as_left · about three lines
#
# Return the four registers a0, a1, a2, a3 of this lane, for any lane. `pack_bf16(low, high)` rounds two float32 to bfloat16 and puts them into one register. No shared memory, no shuffles, no barriers; `p` stays as it is.


# %% tags=["exercise"]
@cuda.jit(device=True)
def as_left(p):
    """(a0, a1, a2, a3): the left operand of mma with the 16 × 16 weights
    of which p (8 float32) is this lane's part."""
    # BEGIN SOLUTION 17.1
    a0, a1 = pack_bf16(p[0], p[1]), pack_bf16(p[2], p[3])
    a2, a3 = pack_bf16(p[4], p[5]), pack_bf16(p[6], p[7])
    return a0, a1, a2, a3
    # END SOLUTION


# %% tags=["check"]
check.ex17_1(as_left)

# %% [markdown]
# Here is what your function does. Left, for each weight, the lane that has it after Q Kᵀ. Right, the lane that holds it as a left operand, and in which register: from *your* code, run with the numbers 0 to 255 as weights. A number in a wrong place would be red.


# %% jupyter={"source_hidden": true}
def where_it_is(as_left):
    """(lane, register, is it right) of each number of A, (16, 16, 3)."""

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
            axes.text(j + 0.5, i + 0.55, number, ha="center", va="center", fontsize=8)
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
# That the map of sums is the map of left operands is what makes flash attention fast on these GPUs: the scores of a tile never leave the registers.
#
# Between the two products stands the softmax. It is given: lesson 01's update for the two rows of a lane. A row lies in four neighbouring lanes, so its maximum takes two shuffles; and `l` is summed over lanes at the very end only, in `store`. **Predict**: how many shuffles does a warp make for 16 × 16 scores? `___` (Lesson 06's warp made 10 for 32 scores.)


# %%
@cuda.jit(device=True)
def mask(s, i, step, j, n, value):
    """s = value where there is no such key, or it comes after its query: rows i and
    i + step, 16 keys from j on."""
    for x in range(8):
        key = j + x // 4 * 8 + cuda.threadIdx.x % 4 * 2 + x % 2
        if key > i + x // 2 % 2 * step or key < 0 or key >= n:
            s[x] = value


@cuda.jit(device=True)
def row_max(x):
    """The largest x of the four lanes that share a row."""
    x = max(x, cuda.shfl_xor_sync(ALL_LANES, x, 1))
    return max(x, cuda.shfl_xor_sync(ALL_LANES, x, 2))


@cuda.jit(device=True)
def absorb(s, m, l, o, factor):
    """Lesson 01's update, for a lane's two rows: s becomes 2^(factor · (s - m));
    m, l and o follow. l is the sum of this lane's part alone."""
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


@cuda.jit(device=True)
def store(out, o, l, i, step):
    """Rows i and i + step of the output."""
    for h in range(2):
        total = l[h] + cuda.shfl_xor_sync(ALL_LANES, l[h], 1)
        total += cuda.shfl_xor_sync(ALL_LANES, total, 2)
        share = reciprocal(total)
        if i + h * step < out.shape[0]:
            for x in range(WIDTH // 4):
                c = x // 2 * 8 + cuda.threadIdx.x % 4 * 2 + x % 2
                out[i + h * step, c] = o[x // 2 * 4 + 2 * h + x % 2] * share


# %% [markdown]
# Four: two rows, two steps each.
#
# ## 3. Values come transposed
#
# P V wants `B[j, c] = V[j, c]`: the *keys* are rows of B. The two numbers of a register, `B[2t, g]` and `B[2t + 1, g]`, stand below each other in V, in two rows of the tile. `ldmatrix_x4_trans` is made for this. It reads rows as before, row i of matrix m from where lane 8m + i says; and register m of a lane gets `M[2t, g]` and `M[2t + 1, g]`.
#
# ### Exercise 17.2 · value_operands · about two lines
#
# Return b0, b1, b2, b3 for 16 keys, the rows of `tile` from `first` on, and 16 of their numbers, the columns from `column` on: b0 and b1 are the right operand for the first 8 columns, b2 and b3 for the next 8. One `ldmatrix_x4_trans(tile, (row, column))`, whose row and column depend on the lane, and no other access to the tile. All warps of a block ask for the same 16 keys.
#
# <details><summary>Hint 1: which four matrices?</summary>
#
# b0 is of the keys 0 to 7 and the columns 0 to 7. b1 is of the keys 8 to 15 and the *same* columns. b2 and b3 are their right neighbours.
#
# </details>
# <details><summary>Hint 2: which lane says what?</summary>
#
# Lanes 0 to 7 point to the keys 0 to 7, lanes 8 to 15 to the keys 8 to 15, lanes 16 to 23 to the keys 0 to 7 again, 8 columns further to the right.
#
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def value_operands(tile, first, column):
    """(b0, b1, b2, b3): right operands of PV for 16 keys, rows of tile from `first` on,
    and 16 of their numbers, from `column` on; b0, b1 are of the first 8 numbers."""
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
# `ldmatrix` fetches eight rows of 16 bytes at a time. Shared memory has 32 banks of 4 bytes: the eight rows come in one turn if they lie in different banks. Our rows have 16 numbers. In the recordings they have 64.
#
# **Predict** the turns of one `ldmatrix_x4_trans`, four times eight rows, where the rows of a tile begin so many numbers apart: 64 `___`, 72 `___`, 16 `___`, 24 `___`


# %%
def turns(pitch):
    """Turns of shared memory for one fragment of values, in rows of `pitch` numbers."""

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
    print(f"rows begin {2 * pitch:3} bytes apart: {turns(pitch):2} turns")

# %% [markdown]
# 128 bytes apart, all eight rows of a matrix begin in bank 0, and each takes its own turn. 16 bytes more, and row i begins 16 · i bytes further round. (The other remedy, a swizzle, takes no memory.) Hence `PITCH = WIDTH + 8`.
#
# ## 4. The next tile is on its way
#
# Now the loop over tiles of keys. In lesson 11 each tile came in four steps: load, barrier, use, barrier. While it loads nobody multiplies, and a load from global memory takes as long as many products. `cp.async` copies 16 bytes from global to shared memory *while the thread goes on*:
#
# - `cp_async_16(tile, index, x, index, 16)` sends a copy (with 0 as the last argument it fills with zeros);
# - `cp_async_commit()` closes a group of copies;
# - `cp_async_wait_0()` waits for **this thread's** copies, and `cp_async_wait_1()` for all its groups but the newest.
#
# **Predict.** Thread 3 has waited for its own copies. May it now read what thread 4 has sent? `___`
#
# <details><summary>Answer</summary>
#
# No: it knows nothing of thread 4's copies. Each thread waits for its own, and then all meet at a barrier. Wait first, barrier second.
#
# </details>
#
# Given are: `bring`, which sends a tile of K and one of V to a `place` in shared memory, row 0 or row `KEYS`, and commits; `visit`, which does all the products with the tile at `place`, by your two functions; `one_place`, which walks along the keys without any overlap; and `flash_with(walk)`, which makes the kernel around a walk. (Its first blocks have the last queries, which have most to do.)


# %%
@cuda.jit(device=True)
def add_values(o, p, v_tile, first):
    """o += p V for 16 keys, rows of v_tile from first on."""
    a0, a1, a2, a3 = as_left(p)
    for step in range(WIDTH // 16):
        b = value_operands(v_tile, first, step * 16)
        two_products(o, step * 8, a0, a1, a2, a3, b)


@cuda.jit(device=True)
def make_scores(s, qs, at, k_tile, first):
    """s (8 float32): the queries in qs[at:] times 16 keys, k_tile from row first on."""
    for x in range(8):
        s[x] = float32(0)
    for step in range(WIDTH // 16):
        y = at + step * 4
        b = key_operands(k_tile, first, step * 16)
        two_products(s, 0, qs[y], qs[y + 1], qs[y + 2], qs[y + 3], b)


@cuda.jit(device=True)
def visit(k_tile, v_tile, place, j0, mine):
    """This warp's queries meet the tile at `place`, which holds the keys from j0 on."""
    qs, i, n, factor, m, l, o = mine
    s = cuda.local.array(8, float32)
    for first in range(0, KEYS, 16):
        make_scores(s, qs, 0, k_tile, place + first)
        mask(s, i, 8, j0 + first, n, MINUS_INFINITY)
        absorb(s, m, l, o, factor)
        add_values(o, s, v_tile, place + first)


@cuda.jit(device=True)
def copy(tile, place, x, first):
    """Rows [first, first + KEYS) of x are on the way to tile[place:], zeros for rows
    that x lacks. A thread sends 16 bytes at a time."""
    for part in range(cuda.threadIdx.x, KEYS * WIDTH // 8, THREADS):
        i, c = part // (WIDTH // 8), part % (WIDTH // 8) * 8
        inside = 0 <= first + i and first + i < x.shape[0]
        row, count = (first + i, 16) if inside else (0, 0)
        cp_async_16(tile, (place + i, c), x, (row, c), int32(count))


@cuda.jit(device=True)
def bring(k, v, k_tile, v_tile, place, j0):
    """Keys and values from j0 on are on the way to `place` of both tiles, a group."""
    copy(k_tile, place, k, j0)
    copy(v_tile, place, v, j0)
    cp_async_commit()


@cuda.jit(device=True)
def one_place(k, v, k_tile, v_tile, seen, mine):
    """Visit the keys [0, seen): bring a tile, wait for it, use it."""
    for j0 in range(0, seen, KEYS):
        bring(k, v, k_tile, v_tile, 0, j0)
        cp_async_wait_0()
        cuda.syncthreads()  # all copies of all threads have arrived
        visit(k_tile, v_tile, 0, j0, mine)
        cuda.syncthreads()  # the tile is used up


def flash_with(walk):
    """The kernel whose blocks go along their keys by walk(...)."""

    @cuda.jit
    def flash_kernel(q, k, v, scale, out):
        """out (n, WIDTH) float32 of q, k, v (n, WIDTH), bits of bfloat16; causal."""
        k_tile = cuda.shared.array((PLACES, PITCH), int16, alignment=16)
        v_tile = cuda.shared.array((PLACES, PITCH), int16, alignment=16)
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
        walk(k, v, k_tile, v_tile, min(n, i0 + ROWS), mine)
        store(out, o, l, my_row, 8)

    return flash_kernel


# %% [markdown]
# ### Exercise 17.3 · two_places · about nine lines
#
# Visit the keys [0, `seen`) tile by tile. While the block uses the tile at one place, the copies of the next one are under way to the other place. Each tile is brought and visited once, none is brought that begins at `seen` or later, and there is **one** barrier per tile (one more in all is fine).
#
# <details><summary>Hint 1: before the loop</summary>
#
# The first tile has to be brought before the loop, to place 0. Then `place` changes between 0 and `KEYS`: `place = KEYS - place`.
#
# </details>
# <details><summary>Hint 2: how can one barrier be enough?</summary>
#
# It has two jobs. Behind it, all copies of this tile have arrived, if each thread has waited before it. And behind it, all threads are through with the tile *before* this one. So the place of that one is free, and the next copies may be sent to it.
#
# </details>
# <details><summary>Hint 3: the order</summary>
#
# In each turn: wait, barrier, bring the next tile (if there is one), visit this one.
#
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def two_places(k, v, k_tile, v_tile, seen, mine):
    """Visit the keys [0, seen): while one tile is used, the next one is on its way."""
    # BEGIN SOLUTION 17.3
    bring(k, v, k_tile, v_tile, 0, 0)
    place = 0
    for j0 in range(0, seen, KEYS):
        cp_async_wait_0()
        cuda.syncthreads()
        if j0 + KEYS < seen:
            bring(k, v, k_tile, v_tile, KEYS - place, j0 + KEYS)
        visit(k_tile, v_tile, place, j0, mine)
        place = KEYS - place
    # END SOLUTION


flash_kernel = flash_with(two_places)

# %% tags=["check"]
check.ex17_3(flash_kernel)

# %% [markdown]
# Both walks in time, as the simulator saw the block with most keys. A tick is one thing that a warp or the block does together. Orange: copies to a place are under way. Blue: a product.


# %% jupyter={"source_hidden": true}
def watched(walk, n=70):
    """What a walk's copies and products do on n tokens."""
    flights, rng = Flights(), np.random.default_rng(17)
    (q, k, v), out = bf16(rng, 3, n, WIDTH), np.zeros((n, WIDTH), float32)
    launched = simulate(flash_with(walk), observers=[*DEFAULT, flights])
    launched[-(-n // ROWS), THREADS](q, k, v, float32(0.25), out)
    return flights


def draw_flights(every):
    figure, axes = plt.subplots(len(every), 1, figsize=(10, 4), layout="constrained")
    for (name, flights), one in zip(every.items(), axes, strict=True):
        block = max(flights.now, key=flights.now.get)
        bars = {
            (row // KEYS, *when) for b, _, row, *when in flights.times if b == block
        }
        for place, begin, end in bars:
            one.barh(1 - place, end - begin + 0.7, left=begin, color=ORANGE, height=0.7)
        one.vlines(flights.ticks[block], -1.4, -0.6, color=BLUE, linewidth=2)
        one.set_yticks([1, 0, -1], ["to place 0", "to place 1", "products"])
        one.set(title=name, ylim=(-1.6, 1.6), xlim=(-2, flights.now[block] + 2))
    axes[-1].set_xlabel("ticks")
    return figure


# %% tags=["uses-exercise"]
every = {"one place": watched(one_place), "two places": watched(two_places)}
show_figure(
    draw_flights(every),
    "two strips over time. With one place, copies take a moment of their own, between "
    "groups of products, never during them. With two places, copies to one place and "
    "to the other take turns, and each lasts as long as a tile's products.",
)
for name, flights in every.items():
    print(
        f"{name}: copies under way during {flights.covered.total()} of "
        f"{flights.products.total()} products"
    )

# %% [markdown]
# The last tile of a block has no successor, so nothing is under way during its products.
#
# ### Five walks
#
# **Guess before you run.** Here are five walks; only the loop's body differs from yours. Which are right? In those that are not, who meets whom? a `___` b `___` c `___` d `___` e `___`


# %%
@cuda.jit(device=True)
def walk_a(k, v, k_tile, v_tile, seen, mine):
    bring(k, v, k_tile, v_tile, 0, 0)
    place = 0
    for j0 in range(0, seen, KEYS):
        cuda.syncthreads()
        if j0 + KEYS < seen:
            bring(k, v, k_tile, v_tile, KEYS - place, j0 + KEYS)
        visit(k_tile, v_tile, place, j0, mine)
        place = KEYS - place


@cuda.jit(device=True)
def walk_b(k, v, k_tile, v_tile, seen, mine):
    bring(k, v, k_tile, v_tile, 0, 0)
    place = 0
    for j0 in range(0, seen, KEYS):
        cuda.syncthreads()
        cp_async_wait_0()
        if j0 + KEYS < seen:
            bring(k, v, k_tile, v_tile, KEYS - place, j0 + KEYS)
        visit(k_tile, v_tile, place, j0, mine)
        place = KEYS - place


@cuda.jit(device=True)
def walk_c(k, v, k_tile, v_tile, seen, mine):
    bring(k, v, k_tile, v_tile, 0, 0)
    place = 0
    for j0 in range(0, seen, KEYS):
        if j0 + KEYS < seen:
            bring(k, v, k_tile, v_tile, KEYS - place, j0 + KEYS)
            cp_async_wait_1()
        else:
            cp_async_wait_0()
        cuda.syncthreads()
        visit(k_tile, v_tile, place, j0, mine)
        place = KEYS - place


@cuda.jit(device=True)
def walk_d(k, v, k_tile, v_tile, seen, mine):
    bring(k, v, k_tile, v_tile, 0, 0)
    place = 0
    for j0 in range(0, seen, KEYS):
        if j0 + KEYS < seen:
            bring(k, v, k_tile, v_tile, KEYS - place, j0 + KEYS)
            cp_async_wait_1()
        else:
            cp_async_wait_0()
        cuda.syncthreads()
        visit(k_tile, v_tile, place, j0, mine)
        cuda.syncthreads()
        place = KEYS - place


@cuda.jit(device=True)
def walk_e(k, v, k_tile, v_tile, seen, mine):
    bring(k, v, k_tile, v_tile, 0, 0)
    place = 0
    for j0 in range(0, seen, KEYS):
        cp_async_wait_1()
        cuda.syncthreads()
        if j0 + KEYS < seen:
            bring(k, v, k_tile, v_tile, KEYS - place, j0 + KEYS)
        visit(k_tile, v_tile, place, j0, mine)
        place = KEYS - place


def attended(q, k, v):
    """The output in float64, scale 1/4."""
    seen = np.tri(len(q), dtype=bool)
    scores = np.where(seen, 0.25 * exact(q) @ exact(k).T, -np.inf)
    p = np.exp(scores - scores.max(1, keepdims=True))
    return p @ exact(v) / p.sum(1, keepdims=True)


def tried(walk, n=60):
    """The report of a walk on n tokens, and whether its output is right."""
    q, k, v = bf16(np.random.default_rng(17), 3, n, WIDTH)
    out = np.full((n, WIDTH), np.nan, float32)
    launched = simulate(flash_with(walk), on_finding="report")
    report = launched[-(-n // ROWS), THREADS](q, k, v, float32(0.25), out)
    return report, bool(np.abs(out - attended(q, k, v)).max() <= 0.02)


# %% tags=["uses-exercise"]
reports = {}
for walk in (walk_a, walk_b, walk_c, walk_d, walk_e):
    name = walk.py_func.__name__
    reports[name], right = tried(walk)
    kinds = sorted({finding.kind for finding in reports[name].findings})
    found = ", ".join(kinds) or "nothing"
    print(f"{name}: output right: {right!s:5}  sim finds {found}")
print()
print(reports["walk_b"].findings[0].message)

# %% [markdown]
# <details><summary>What is wrong</summary>
#
# - **a** never waits. The simulator delivers a copy as late as the hardware may, so the products meet memory that nobody has written.
# - **b** waits behind the barrier. Each thread's own copies are there, and nothing says that the others' are. On a GPU the output would be right on most days.
# - **c** sends the next copies before the barrier: to a place that a slower warp may still be using.
# - **d** is right, with a second barrier: the price of sending before the barrier. (Its `cp_async_wait_1` leaves the newest group under way.)
# - **e** waits for all groups but the newest. At that point the newest *is* the tile that it wants.
#
# </details>
#
# ### The same as lesson 11
#
# Lesson 11's kernel with a single tap of 1 is plain flash attention. Both on the same numbers, with your kernel of lesson 11 if it lies beside this notebook:


# %% tags=["uses-exercise"]
lesson11 = brought("11_conv_forward", "conv_kernel")


def by_lesson11(q, k, v, w, scale, size=16):
    """The output of lesson 11's kernel, in float32, for the same numbers."""
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
# The difference is rounding: bfloat16 has 8 significant bits, so a weight may be off by one part in 256.
#
# ## 5. Predicted, counted, measured
#
# The same text with `WIDTH, KEYS, WARPS = 64, 64, 4`, on a GPU: one head of 65,536 tokens, causal. Each row changes one thing. **Predict** before you look: by what factor will `ldmatrix` without padding beat plain loads? `___` The padding? `___` The second place? `___`

# %%
flash = record["flash"]
ms = {row["name"]: row["ms"] for row in flash["rows"]}
work = (
    2 * flash["n"] * (flash["n"] + 1) * flash["d"]
)  # operations: two products, causal
NAMES = {
    "package, float32": "float32, no tensor cores (package)",
    "plain loads": "tensor cores, plain loads, one place",
    "ldmatrix": "ldmatrix in place of plain loads",
    "ldmatrix, padded rows": "rows begin 144 bytes apart, not 128",
    "two places": "two places: this is your kernel",
    "package": "the package's",
    "SDPA": "PyTorch's attention (SDPA)",
}
show_table(
    ["", "ms", "times faster than the row above", "10¹² operations a second"],
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
# - **Tensor cores** give most, even with loads that waste nearly all of their turns.
# - **The padding** gives more than `ldmatrix` itself, for 16 bytes a row: 32 turns against 4, as you counted. (It is less than eight times, since turns of shared memory are a part of the time only.)
# - **The second place** gives 9 %. Most people predict more. Why so little? Your kernel has 126 registers, so four blocks of four warps share a multiprocessor (lesson 08: `16384 // (128 * 32)` warps in a quarter). While one block waits for its tile, three others multiply. Copies under way help most where nobody else can fill the time.
# - **The package's kernel** takes less than half. It gives a warp 32 queries in place of 16, so K and V are read from shared memory half as often; it takes 64 keys between two updates of m, in place of 16; and it raises m only where weights would grow too large. No new idea, but more work for each number that is fetched: lesson 11's patches once more.
#
# ## 6. The convolution's route: count first
#
# The convolution stands between the two products, and it is no product of matrices: c_q · c_k multiply-adds per score, in float32 units that make about a twelfth of the multiply-adds that tensor cores make (67 against 790 · 10¹² operations a second on an H200). Two ways lead to the tensor cores:
#
# - **Toeplitz.** The scores S0 as before. Then, for each row of taps, a slice of S0 of 16 columns times a matrix of taps, 16 × 8: 16 multiply-adds per score of T instead of c_k. As 8 outputs need 8 + c_k − 1 columns, one slice is enough for c_k ≤ 9, and another of 8 columns up to c_k = 17: 24. S0 has to be at hand for c_q − 1 more rows. If a *strip* of neighbouring queries shares these, each strip makes them once more.
# - **Folding.** T = Σ_b (Σ_a w[a, b] · Q[i − P_q + a]) · K[j − P_k + b]. The inner sum is a filtered copy of Q, one for each b. Then T is a single product whose inner size is d · c_k, against shifted rows of K. There is no S0 at all. (Near the diagonal the mask spoils it: S0 is 0 there, and Q · K is not.)
#
# **On paper**, for 7 × 7 taps, d = 64, strips of 4: multiply-adds per score of T for Toeplitz `___`, for folding `___`. Which route would you take? `___` And for 15 × 1 taps? `___`
#
# <details><summary>Answer</summary>
#
# Toeplitz: a strip of 4 needs 4 + 6 = 10 rows of S0, so 64 · 10 / 4 = 160; then 16 · 7 = 112; 272 together. Folding: 64 · 7 = 448. For 15 × 1 taps it is 64 · 18 / 4 + 16 · 15 = 528 against 64!
#
# </details>
#
# ### Exercise 17.4 · routes · about four lines
#
# Return three numbers, the cost per score of T, counted in multiply-adds of tensor cores:
#
# - plain: d for S0 on tensor cores, and the convolution in float32, where each multiply-add counts as 12;
# - Toeplitz: d · rows / strip for S0, where `rows` is strip + c_q − 1, and one more if that is odd (rows come in pairs); and 16 for each row of taps, or 24 if c_k is more than 9. (c_k is at most 17.)
# - folding: d · c_k.


# %% tags=["exercise"]
def routes(d, c_q, c_k, strip):
    """(plain, toeplitz, folding): the cost of one score of T."""
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
figure, panels = plt.subplots(1, 2, figsize=(11, 5), layout="constrained")
for axes, d, strip in zip(panels, (64, 128), (4, 2), strict=True):
    for c_q, c_k in np.ndindex(15, 15):
        costs = routes(d, c_q + 1, c_k + 1, strip)
        colour = WINNERS[int(np.argmin(costs))][1]
        cell = plt.Rectangle((c_k + 0.5, c_q + 0.5), 1, 1, facecolor=colour)
        axes.add_patch(cell).set_edgecolor("white")
        axes.text(
            c_k + 1, c_q + 1, f"{min(costs):.0f}", ha="center", va="center", size=7
        )
    axes.set(
        xlim=(0.5, 15.5), ylim=(0.5, 15.5), xlabel="c_k", ylabel="c_q", aspect="equal"
    )
    axes.set_title(f"d = {d}, strips of {strip}")
    for name, colour in WINNERS:
        axes.plot([], [], "s", color=colour, label=name)
panels[1].legend(loc="upper left", bbox_to_anchor=(1, 1))
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
# For these shapes Toeplitz needs half to two thirds of what folding needs, so the package took it, and folding was never written. (For 7 × 3 taps the count says folding. Nobody has tried.)
#
# ## 7. Taps as a matrix
#
# One row of taps, (1, 2, 3), and a slice of one row of S0 that begins P_k to the left of the first output: (1, 0, 2, 4). The outputs are 1·1 + 2·0 + 3·2 = 7 and 1·0 + 2·2 + 3·4 = 16. As a product:
#
# | S0 | | B | output 0 | output 1 |
# |---|---|---|---|---|
# | 1 | × | | 1 | 0 |
# | 0 | | | 2 | 1 |
# | 2 | | | 3 | 2 |
# | 4 | | | 0 | 3 |
#
# Each column has the taps, one further down. So `B[j', j] = w[a, j' − j]`, and 0 where there is no such tap. A matrix whose diagonals are constant is called Toeplitz. For `mma` it is 16 × 8.
#
# ### Exercise 17.5 · band · about five lines
#
# Return b0, b1: this lane's part of B for the row `a` of taps, in bfloat16. No lane needs more than four taps, so none loads more than four. All warps of a block have the same B. `w` is (c_q, c_k), with c_k at most 9. No shared memory, no shuffles, no barriers.
#
# <details><summary>Hint 1: which taps?</summary>
#
# b0 is `B[2t, g]` and below it `B[2t + 1, g]`. The first is tap 2t − g.
#
# </details>
# <details><summary>Hint 2: no such tap</summary>
#
# `w[a, -1]` is no zero. A little function `tap(w, a, b)` that returns `w[a, b]` or `float32(0)` saves writing the guard four times; it needs `@cuda.jit(device=True)` too.
#
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def tap(w, a, b):
    """w[a, b], or 0 where there is no such tap. For `band`, if you like."""
    # BEGIN SOLUTION 17.5
    return w[a, b] if 0 <= b and b < w.shape[1] else float32(0)
    # END SOLUTION


@cuda.jit(device=True)
def band(w, a):
    """(b0, b1): B[j', j] = w[a, j' - j], 16 × 8, as a right operand of mma."""
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
# Your B for 7 taps, from the registers of your 32 lanes:


# %% jupyter={"source_hidden": true}
def matrix_of(band, w):
    """B (16, 8) for row 0 of w, from what each lane holds."""

    def lanes(w, out):
        out[cuda.threadIdx.x, 0], out[cuda.threadIdx.x, 1] = band(w, 0)

    out, b = np.zeros((32, 2), uint32), np.zeros((16, 8))
    simulate(lanes)[1, 32](w, out)
    halves = exact(out.view(int16)).reshape(32, 2, 2)
    for lane, r, half in np.ndindex(32, 2, 2):
        b[lane % 4 * 2 + half + 8 * r, lane // 4] = halves[lane, r, half]
    return b


def draw_band(b, c_k):
    figure, axes = plt.subplots(figsize=(5, 6), layout="constrained")
    for row, column in np.ndindex(16, 8):
        value = b[row, column]
        colour = SKY if value else "white"
        axes.add_patch(
            plt.Rectangle((column, row), 1, 1, facecolor=colour, edgecolor="grey")
        )
        lane, register = column * 4 + row % 8 // 2, row // 8
        axes.text(column + 0.5, row + 0.35, f"{value:g}", ha="center", va="center")
        words = f"lane {lane}, b{register}"
        axes.text(column + 0.5, row + 0.78, words, ha="center", va="center", size=6)
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
    "all else is 0. Each cell says which lane holds it in b0, rows 0 to 7, or b1.",
)
print("numbers that are not 0:", np.count_nonzero(b), "of", b.size)

# %% [markdown]
# 56 of 128 are taps: more than half of the work is multiplying by 0. It is cheap work.
#
# ## 8. A shift of rows is another register
#
# T of query i needs S0 of the queries i − P_q, …, i: rows above. In lesson 11 they came from shared memory. In registers, row g of a tile lies in the lanes of group g, the rows above in other groups: shuffles for every row of taps?
#
# Not if *we choose the rows*. `mma` multiplies any 16 rows; it does not know their order. So the four lanes of group g shall own two **neighbouring** queries, 2g and 2g + 1 of the warp's 16, a strip of 2, and make S0 for the P_q queries above these as well. Let r count the group's rows of S0, r = 0 for the uppermost:
#
# | | T of query 2g | T of query 2g + 1 |
# |---|---|---|
# | row a = 0 of the taps | r = 0 | r = 1 |
# | a = 1 | r = 1 | r = 2 |
# | a = 2 | r = 2 | r = 3 |
#
# All of it in the registers of the same four lanes. As the left operand of `mma`, row g of A is the group's query 2g, and row g + 8 is its query 2g + 1.
#
# Columns: `s[r, block]` is a register with two neighbouring numbers of S0, rounded to bfloat16, in blocks of 8 columns, three of them side by side. 8 keys of T need two blocks: T of the first 8 keys takes the blocks 0 and 1, T of the next 8 the blocks 1 and 2.
#
# **Predict**, for row a of the taps and the first 8 keys: a0 = s[`___`, `___`], a1 = s[`___`, `___`], a2 = s[`___`, `___`], a3 = s[`___`, `___`]
#
# ### Exercise 17.6 · convolve · about eight lines
#
# Compute this lane's 8 numbers of T: `t[0:4]`, as `mma` has them, for the first 8 keys, `t[4:8]` for the next 8. `bands[a, 0]` and `bands[a, 1]` are b0 and b1 of row a of the taps; there are c_q = `bands.shape[0]` rows. `t` holds something old: begin with 0. Two products for each row of taps (also where all its taps are 0), no shuffles, no shared memory, no barriers; `s` and `bands` stay as they are.
#
# <details><summary>Hint 1: the answer to the prediction</summary>
#
# a0 is row g, columns 2t and 2t + 1: s[a, 0]. a1 is row g + 8, the next query: s[a + 1, 0]. a2 is row g, 8 columns further: s[a, 1]. a3 is s[a + 1, 1].
#
# </details>
# <details><summary>Hint 2: adding up</summary>
#
# `mma_bf16(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3)` returns four numbers. Give the old t as c, and store what comes as the new t.
#
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def convolve(t, s, bands):
    """t (8 float32) = the convolved scores of two queries and 16 keys, from
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
# ## The kernel
#
# Everything is there. The loop is your walk of two places. In place of S there are several tiles of S0, one for each pair of rows of the strip; they are masked with 0, rounded and kept. `convolve` makes T of them, and from there on all is as in flash attention: mask with −∞, softmax, `as_left`, P V. In each turn, 16 new keys of S0 come in, and the last block of the old ones stays, as T needs it: so T's columns begin 8 − P_k to the left of S0's new ones (`shift` is P_k − 8), and V is brought from there.


# %%
@functools.cache
def conv_kernel(c_q):
    """The kernel for c_q rows of taps, of at most 9 taps each."""
    tiles = (c_q + 2) // 2  # of S0: c_q + 1 rows of a strip, in pairs
    rows, q_words = 2 * tiles, tiles * WORDS

    @cuda.jit
    def conv_kernel(q, k, v, w, scale, out):
        """out (n, WIDTH) float32 of q, k, v (n, WIDTH), bits of bfloat16, and
        w (c_q, c_k) float32; causal."""
        k_tile = cuda.shared.array((PLACES, PITCH), int16, alignment=16)
        v_tile = cuda.shared.array((PLACES, PITCH), int16, alignment=16)
        qs = cuda.local.array(q_words, uint32)
        bands = cuda.local.array((c_q, 2), uint32)
        s = cuda.local.array((rows, 3), uint32)
        c, t = cuda.local.array(8, float32), cuda.local.array(8, float32)
        o = cuda.local.array(SUMS, float32)
        m, l = cuda.local.array(2, float32), cuda.local.array(2, float32)
        n, i0 = q.shape[0], (cuda.gridDim.x - 1 - cuda.blockIdx.x) * ROWS
        # the first of this lane's two queries, and the first row of its S0
        my_row = i0 + cuda.threadIdx.x // 32 * 16 + cuda.threadIdx.x % 32 // 4 * 2
        top, shift = my_row - (c_q - 1), (w.shape[1] - 1) // 2 - 8
        for x in range(SUMS):
            o[x] = float32(0)
        for h in range(2):
            m[h], l[h] = MINUS_INFINITY, float32(0)
        for a in range(c_q):
            bands[a, 0], bands[a, 1] = band(w, a)
        for tile in range(tiles):
            load_queries(qs, tile * WORDS, q, top + 2 * tile, 1)
        for row in range(rows):
            s[row, 2] = uint32(0)
        seen, place = min(n, i0 + ROWS), 0
        copy(k_tile, 0, k, 0)
        copy(v_tile, 0, v, shift)
        cp_async_commit()
        for first in range(0, seen - shift, KEYS):
            cp_async_wait_0()
            cuda.syncthreads()
            if first + KEYS < seen - shift:
                copy(k_tile, KEYS - place, k, first + KEYS)
                copy(v_tile, KEYS - place, v, first + KEYS + shift)
                cp_async_commit()
            for tile in range(tiles):
                make_scores(c, qs, tile * WORDS, k_tile, place)
                mask(c, top + 2 * tile, 1, first, n, float32(0))
                for h in range(2):
                    row, x = 2 * tile + h, 2 * h
                    s[row, 0] = s[row, 2]
                    s[row, 1] = pack_bf16(c[x], c[x + 1])
                    s[row, 2] = pack_bf16(c[x + 4], c[x + 5])
            convolve(t, s, bands)
            mask(t, my_row, 1, first + shift, n, MINUS_INFINITY)
            absorb(t, m, l, o, scale * LOG2E)
            add_values(o, t, v_tile, place)
            place = KEYS - place
        store(out, o, l, my_row, 1)

    return conv_kernel


# %% [markdown]
# ### Validate
#
# Against lesson 11's kernel, in float32, on the same numbers of bfloat16; and its error against float64 beside that of plain PyTorch in bfloat16, which rounds at the same places and more.


# %%
def by_pytorch(q, k, v, w, dtype):
    """Lesson 09's whole matrices, in this type, as float64."""
    given = [torch.tensor(exact(x)).to(dtype)[None, None] for x in (q, k, v)]
    taps = torch.tensor(w).to(dtype)[None]
    o = reference.conv_attention(*given, taps, scale=0.25)
    return o[0, 0].double().numpy()


# %% tags=["uses-exercise"]
lesson11, rng = brought("11_conv_forward", "conv_kernel"), np.random.default_rng(1711)
rows = []
for n, c_q, c_k in [
    (1, 3, 3),
    (16, 1, 1),
    (23, 2, 4),
    (33, 3, 5),
    (40, 7, 7),
    (50, 4, 9),
]:
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
# ### What it takes
#
# And this is what the package's kernel takes, which is this one with strips of 4, 32 keys a step, Q in shared memory, and a maximum that is raised only where it must be. Your `routes` says how much there is to multiply; a library's matrix products make about 790 · 10¹² operations a second on an H200, 80 % of the 989 · 10¹² that its maker states for bfloat16. The table measures against the library.

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
        least, measured = 2 * scores * each / 790e9, taken["halves", name, *shape]
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
        "multiply-adds a score",
        "least ms",
        "measured ms",
        "of a library's rate",
    ],
    *lines,
    title=f"{bench['gpu']}, recorded {bench['date']}",
)

# %% [markdown]
# The kernel has 2.6 times the multiply-adds of plain attention, and takes 2.9 and 3.2 times as long: the count came within a quarter. Both kernels stay far below the library's rate. One reason is the instruction: on Hopper `mma.sync` by itself reaches about two thirds of the peak. Libraries use `wgmma`, which reads its operands from shared memory, and the Tensor Memory Accelerator (TMA), which copies tiles. Lesson 11's way in float32 takes 8 and 10 times as long as this kernel.
#
# Not every try was faster. From the project's log of 2026-11-22 (`docs/log/2026-11.md`, "tensor cores"; milliseconds at 1, 8, 4096, 64):
#
# | try | expected | ms |
# |---|---|---:|
# | S0 through shared memory, 16 bits (the prototype) | | 0.375 |
# | S0 in registers, strips of 4, a tile of S0 finished before the next begins | faster: nothing is stored | 0.324 |
# | all tiles of S0 at once (a chain of `mma` waits for itself), heavy blocks beside light ones | faster | 0.224 |
# | 32 keys a step in place of 16: Q is read half as often | faster | 0.194 |
# | strips of 2: fewer registers | | 0.242 |
# | strips of 8: S0 made 14 times per 8 rows, not 20 | 272 → 224 multiply-adds | 0.550 |
# | 168 registers, three blocks a multiprocessor | more warps to hide waiting | 0.278 |
#
# Strips of 8 would have saved a fifth of the multiply-adds, and took three times as long: they need more registers than a thread has, and what does not fit goes to memory and back. Counting tells which routes are worth a try; it does not tell what a compiler makes of them. Lesson 18 is about that limit.
#
# ## In three lines
#
# - What `mma` leaves is what `mma` takes: scores become weights, and weights become an operand, without leaving their lanes.
# - Wait for your own copies, then meet, then send the next ones: one barrier per tile, and copies under way during all products but the last.
# - A convolution is a product with taps on its diagonals; choose which rows a lane owns, and a shift of rows costs nothing.
#
# **You can now** take a kernel to tensor cores, and count a route before you write it.
#
# **Next:** lesson 18 goes back, where taps are the *result*, and decodes at the speed of memory.
