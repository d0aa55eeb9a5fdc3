# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 18 · Fast backward: tensor cores for work that is not a matrix product
#
# **90 minutes** · builds on lesson 13 (the backward kernels), lesson 08b (occupancy), lessons 16 and 16b (`mma`, `ldmatrix`) and lesson 17b (bands of taps)
#
# You will be able to
#
# 1. rewrite a sum that is not a matrix product as the diagonals of one, and compute it on a tensor core;
# 2. calculate how many registers a thread may have for a second block to fit, and say why that can be worth more than saving bytes;
# 3. find out which barriers a kernel needs: leave one out and see what breaks, and if nothing breaks, give the argument why nothing can.
#
# **Where this leads.** The forward pass of lesson 17b consists of matrix products: QKᵀ, bands of taps, PV. The backward pass has one part that does not look like one: the gradient of the taps. It has 49 numbers for each head, and each is a sum over all scores. The table shows how fast the backward pass became on tensor cores, on one GPU, in bfloat16, causal, with 7 × 7 taps. "Eager" is plain PyTorch, and "no convolution" is `scaled_dot_product_attention`:

# %%
import inspect
import json
import linecache

import numpy as np
import torch
from ml_dtypes import bfloat16
from numba import cuda
from numpy import float32, int16

from course import brought, check, guess, progress_bar, show_table
from course.ladder import show_ladder, time_rung
from kernels import reference
from kernels.common.data import DATA
from kernels.conv import tensor_backward as conv_tensor_backward
from kernels.tensor_cores.instructions import (
    ldmatrix_x2_trans,
    ldmatrix_x4_trans,
    mma_bf16,
)
from sim import simulate
from sim.observers import COUNTERS, DEFAULT, Trace

record = json.loads((DATA / "lesson18.json").read_text("utf-8"))

# %% jupyter={"source_hidden": true}
NAMES = {"eager": "eager", "kernels": "these kernels", "sdpa": "no convolution"}
backward_ms = {(tuple(r["shape"]), r["name"]): r["ms"] for r in record["backward"]}
show_table(
    ["B, H, N, d", *NAMES.values()],
    *(
        [str(shape)[1:-1], *(f"{backward_ms[shape, name]:.2f}" for name in NAMES)]
        for shape in dict.fromkeys(shape for shape, _ in backward_ms)
    ),
    title=f"backward pass, milliseconds; {record['gpu']}, recorded {record['date']}",
)

# %% [markdown]
# You need no GPU: `sim` runs `mma` and `ldmatrix`, and the times in this lesson are recorded.
#
# ## 1. Taps are diagonals
#
# Lesson 13 gave the gradient of the taps for one tile: `dW[a, b] = Σ_ij dT[i, j] · S0[i + a, j + b]`. (The tile of S0 begins P_q rows and P_k columns before that of dT, so that no index is negative.) Each tap's gradient is a sum over *all* scores, of two tiles that are shifted against each other.
#
# Take one row shift a, and only two columns of dT. The taps b = 0 and 1 reach three columns of S0, the **window**:
#
# | S0 | x = 0 | 1 | 2 | | dT | y = 0 | 1 |
# |---|---:|---:|---:|---|---|---:|---:|
# | row 0 | 1 | 2 | 0 | | row 0 | 1 | 2 |
# | row 1 | 3 | 1 | 2 | | row 1 | 0 | 1 |
#
# Multiply the window's transpose by the block of dT: `C[x, y] = Σ_i S0[i, x] · dT[i, y]`. This is a 3 × 2 matrix, and a tensor core can compute it. **Predict** its six entries, row by row: `___`. The entries with x = y sum to dW[0] = `___`, and those with x = y + 1 to dW[1] = `___`

# %% tags=["guess"]
guess("18 diagonals", six_entries=..., dW_0=..., dW_1=...)

# %% [markdown]
# <details><summary>Answer</summary>
#
# | C | y = 0 | 1 |
# |---|---:|---:|
# | x = 0 | 1 | 5 |
# | 1 | 2 | 5 |
# | 2 | 0 | 2 |
#
# dW[0] = 1 + 5 = 6, where x − y = 0. dW[1] = 2 + 2 = 4, where x − y = 1. A tap is a **diagonal**. The 5 at x = 0, y = 1 and the 0 at x = 2, y = 0 belong to taps that do not exist, b = −1 and 2. They are computed and not used.
#
# </details>
#
# An `mma.m16n8k16` takes a window of 16 columns and a block of 8, over 16 rows. **Predict**: up to which c_k is a window of 16 columns enough? `___` And with 7 taps, how many of the 16 × 8 accumulators do you need? `___`

# %% tags=["guess"]
guess("18 window", most_taps=..., accumulators=...)

# %%
taps, window, block = 7, 16, 8
print("a window of 16 and a block of 8 suffice up to", window - block + 1, "taps")
print(f"needed with {taps} taps: {taps * block} of {window * block} accumulators")
print("multiply-adds for each score, for all 7 row shifts:", 7 * window)
print("one tap at a time, as in lesson 13:                ", 7 * taps)

# %% [markdown]
# So more than half of the work is wasted: 112 multiply-adds per score instead of 49. But tensor cores compute them about 12 times as fast (on an H200, about 790 TFLOP/s in a library's matmul against 67 in float32). Lesson 17b's bands made the same trade, and here too it pays.
#
# ### Exercise 18.1 · tap_gradient · about six lines
#
# Start in PyTorch, without lanes. Return dW, (c_q, c_k), of one tile:
#
# - `s_tile` is (rows + c_q − 1, columns + c_k − 1). `g_tile`, which is dT, is (rows, columns), and columns is a multiple of 8;
# - for each row shift a and each block of 8 columns, make exactly **one** matrix product: the window's transpose times the block. The window has 8 + c_k − 1 columns (you may use 16 if you pad `s_tile`);
# - for each row shift, accumulate the products over all blocks first, then read each tap off its diagonal, once. Use no other multiplication, not even by a mask of zeros and ones.
#
# <details><summary>Hint 1: the window</summary>
#
# For the columns y0 … y0 + 7 of `g_tile`: `s_tile[a : a + rows, y0 : y0 + 8 + c_k - 1]`.
#
# </details>
# <details><summary>Hint 2: the diagonal</summary>
#
# `c.diagonal(-b)` has the entries c[y + b, y]. Here there are eight.
#
# </details>


# %% tags=["exercise"]
def tap_gradient(s_tile, g_tile, c_q, c_k):
    """Return dW (c_q, c_k), by products of windows with blocks of 8 columns."""
    rows, columns = g_tile.shape
    # BEGIN SOLUTION 18.1
    d_w = s_tile.new_zeros(c_q, c_k)
    for a in range(c_q):
        c = 0
        for y0 in range(0, columns, 8):
            window = s_tile[a : a + rows, y0 : y0 + 8 + c_k - 1]
            c = c + window.T @ g_tile[:, y0 : y0 + 8]
        d_w[a] = torch.stack([c.diagonal(-b).sum() for b in range(c_k)])
    return d_w
    # END SOLUTION


# %% tags=["check"]
check.ex18_1(tap_gradient)

# %% [markdown]
# Each row shift keeps 16 × 8 accumulators **for the whole kernel**. The tiles change, but you read the diagonals only once, at the end. In a warp, 16 × 8 accumulators are four registers per lane.
#
# ## 2. By one warp
#
# Now the same product by one warp. Recall lesson 16: with quad g = lane // 4 and position t = lane % 4, `mma_bf16(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3)` returns the lane's four new entries of C:
#
# | | is | the lane's register r holds |
# |---|---|---|
# | A | 16 × 16 | A[g + 8 (r % 2), 2t + 8 (r // 2)], and the next column |
# | B | 16 × 8 | B[2t + 8r, g], and the next row |
# | C | 16 × 8 | C[g + 8 (r // 2), 2t + r % 2] |
#
# Here A = S0ᵀ: **its rows are the window's columns**. And B = dT. Both tiles are in shared memory, in row-major order, and their elements have 16 bits. A register packs two entries that are vertically adjacent in the tile, so you need `.trans`. In `ldmatrix_x4_trans(tile, (row, column))`, lane 8r + i supplies the address of row i of matrix r (8 elements, 16 bytes). Each lane receives M_r[2t, g] and M_r[2t + 1, g] in register r. `_x2_trans` loads two matrices, from the addresses of lanes 0 to 15.
#
# **Predict** which quarter of the window must be matrix 1: rows 8 to 15 of the tile, or columns 8 to 15? `___`

# %% tags=["guess"]
guess("18 matrix 1", quarter=...)

# %% [markdown]
# <details><summary>Answer</summary>
#
# Columns 8 to 15. Register 1 holds A[g + 8, 2t], which is row x = g + 8 of A: the *columns* 8 to 15 of the window, and its rows 0 to 7. Matrix 2 has rows 8 to 15 and columns 0 to 7. (Without `.trans` it is the other way round.)
#
# </details>
#
# ### Exercise 18.2 · add_products · about six lines
#
# One warp adds one product to its accumulators, four per lane: C += S0ᵀ dT, with
#
# - S0 = `s_tile[s_row : s_row + 16, column : column + 16]`, the window,
# - dT = `g_tile[g_row : g_row + 16, column : column + 8]`, the block.
#
# `sums` is a local array of four float32. Use one `ldmatrix_x4_trans`, one `ldmatrix_x2_trans` and one `mma_bf16`: load no byte that the product does not need. All lanes execute every instruction, including lanes whose operands are 0. The block is one-dimensional and may have several warps, each with its own rows and columns.
#
# <details><summary>Hint 1: the lane's address in the window</summary>
#
# For lane 8r + i, the row is i, plus 8 for matrices 2 and 3. The column is 0, plus 8 for matrices 1 and 3. With `lane = cuda.threadIdx.x & 31`, r is `lane >> 3`.
#
# </details>
# <details><summary>Hint 2: the block</summary>
#
# It has two matrices, one below the other: row `g_row + (lane & 15)`, and the same column.
#
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def add_products(sums, s_tile, s_row, g_tile, g_row, column):
    """Add Sᵀ G (16 × 8) to sums, four per lane. S (16 × 16) begins at
    (s_row, column), G (16 × 8) at (g_row, column). Both have bits of bfloat16."""
    # BEGIN SOLUTION 18.2
    lane = cuda.threadIdx.x & 31
    row, right = (lane & 7) + (lane >> 4) * 8, (lane >> 3 & 1) * 8
    a0, a1, a2, a3 = ldmatrix_x4_trans(s_tile, (s_row + row, column + right))
    b0, b1 = ldmatrix_x2_trans(g_tile, (g_row + (lane & 15), column))
    sums[0], sums[1], sums[2], sums[3] = mma_bf16(
        a0, a1, a2, a3, b0, b1, sums[0], sums[1], sums[2], sums[3]
    )
    # END SOLUTION


# %% tags=["check"]
check.ex18_2(add_products)

# %% [markdown]
# ### From accumulators to taps
#
# At the end, the 32 lanes of a warp hold 128 accumulators, and the eight that belong to one tap are in several lanes. **Predict**: lane 5 has g = 1 and t = 1. Its four accumulators are at (x, y) = `___`. Which taps do they belong to, if c_k = 7? `___`

# %% tags=["guess"]
guess("18 lane 5", positions=..., taps=...)

# %% [markdown]
# Atomic additions would work, but then dW would differ from run to run (lesson 13b). So each number gets its own slot, `diagonals[b, y]` in shared memory. Then one lane per tap adds its eight numbers, always in the same order.
#
# ### Exercise 18.3 · sum_diagonals · about ten lines
#
# Write the taps of row a: `taps[a, b]` for 0 ≤ b < c_k ≤ 9.
#
# - `sums` has four numbers per lane, as 18.2 leaves them;
# - `diagonals` (9, 8) float32 is in shared memory and belongs to this warp. Store a number of column y that belongs to tap b in `diagonals[b, y]`, each number once;
# - then lane b adds the eight numbers of tap b. Use no atomics, no shuffles and no block barrier, only the warp's barrier, `cuda.syncwarp()`;
# - each warp calls the function once for each of its row shifts, every time with the same `diagonals`.
#
# Numbers that belong to no tap may have any value, including NaN.
#
# <details><summary>Hint 1: where is number i?</summary>
#
# x = lane // 4 + 8 · (i // 2), y = 2 · (lane % 4) + i % 2, b = x − y.
#
# </details>
# <details><summary>Hint 2: sim finds a race with the next call</summary>
#
# A fast lane may begin the next row shift, and write, while lane b still reads. What would order the write after the read?
#
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def sum_diagonals(taps, a, diagonals, sums, c_k):
    """Set taps[a, b] to the sum of the warp's eight numbers that belong to tap b."""
    lane = cuda.threadIdx.x & 31
    # BEGIN SOLUTION 18.3
    for i in range(4):
        y = (lane & 3) * 2 + (i & 1)
        b = (lane >> 2) + (i >> 1) * 8 - y
        if 0 <= b and b < c_k:
            diagonals[b, y] = sums[i]
    cuda.syncwarp()  # all numbers are stored
    if lane < c_k:
        total = float32(0)
        for y in range(8):
            total += diagonals[lane, y]
        taps[a, lane] = total
    cuda.syncwarp()  # all numbers are read: the next row shift may write
    # END SOLUTION


# %% tags=["check"]
check.ex18_3(sum_diagonals)

# %% [markdown]
# Here are your diagonals, drawn from a run with c_k = 5: which lane wrote each cell, and which lane read it. Rows are taps, columns are y. Move the slider.


# %% tags=["uses-exercise"]
def one_row_of_taps(taps):
    diagonals = cuda.shared.array((9, 8), float32)
    sums = cuda.local.array(4, float32)
    for i in range(4):
        sums[i] = float32(i)
    sum_diagonals(taps, 0, diagonals, sums, taps.shape[1])


drawn = simulate(one_row_of_taps, observers=[*DEFAULT, Trace])[1, 32](
    np.zeros((1, 5), float32)
)
drawn.memory_map("diagonals")

# %% [markdown]
# ### The kernel
#
# The next kernel uses both of your functions, for one tile of at most 32 × 32. It has four warps, and each warp takes every fourth row shift.

# %%
WARPS, ROWS, COLUMNS = 4, 32, 32
S_ROWS = ROWS + 16
PITCH = 56  # entries of a row: 112 bytes, so that 8 rows begin in different banks


@cuda.jit(device=True)
def fill(tile, x):
    """Copy x to tile, and set the rest of tile to 0."""
    height, width = tile.shape
    for e in range(cuda.threadIdx.x, height * width, cuda.blockDim.x):
        i, j = e // width, e % width
        inside = i < x.shape[0] and j < x.shape[1]
        tile[i, j] = x[i, j] if inside else int16(0)


@cuda.jit
def tap_gradient_kernel(s, g, d_w):
    """Compute d_w (c_q, c_k), float32, from s and g, int16 bits of bfloat16."""
    s_tile = cuda.shared.array((S_ROWS, PITCH), int16, alignment=16)
    g_tile = cuda.shared.array((ROWS, PITCH), int16, alignment=16)
    diagonals = cuda.shared.array((WARPS, 9, 8), float32)
    sums = cuda.local.array(4, float32)
    warp = cuda.threadIdx.x >> 5
    fill(s_tile, s)
    fill(g_tile, g)
    cuda.syncthreads()  # both tiles are stored
    for a in range(warp, d_w.shape[0], WARPS):
        for x in range(4):
            sums[x] = float32(0)
        for row in range(0, g.shape[0], 16):
            for column in range(0, g.shape[1], 8):
                add_products(sums, s_tile, row + a, g_tile, row, column)
        sum_diagonals(d_w, a, diagonals[warp], sums, d_w.shape[1])


# %% [markdown]
# Compare it with lesson 13's `add_d_w`, which has one thread per tap, on the same 16 × 32 tile with 3 × 7 taps. **Predict**: how many `mma` does your kernel execute? `___` And how many times fewer wavefronts of shared memory than lesson 13's does it need? `___`

# %% tags=["guess"]
guess("18 compared with lesson 13", mma=..., times_fewer_wavefronts=...)

# %% tags=["uses-exercise"]
add_d_w = brought("13_conv_backward", "add_d_w")


def tap_by_tap(s, g, w, d_w):
    s_tile = cuda.shared.array((18, 40), float32)
    g_tile = cuda.shared.array((16, 40), float32)
    for e in range(cuda.threadIdx.x, s.size, cuda.blockDim.x):
        s_tile[e // s.shape[1], e % s.shape[1]] = s[e // s.shape[1], e % s.shape[1]]
    for e in range(cuda.threadIdx.x, g.size, cuda.blockDim.x):
        g_tile[e // g.shape[1], e % g.shape[1]] = g[e // g.shape[1], e % g.shape[1]]
    cuda.syncthreads()
    add_d_w(d_w, g_tile, s_tile, w, g.shape[0], g.shape[1], 0)


rng = np.random.default_rng(18)
s, g = (rng.standard_normal(shape).astype(bfloat16) for shape in ((18, 38), (16, 32)))
w, by_tap, by_window = np.zeros((3, 3, 7), float32)
tools = [*DEFAULT, *COUNTERS]
slow = simulate(tap_by_tap, observers=tools)[1, 64](
    s.astype(float32), g.astype(float32), w, by_tap
)
fast = simulate(tap_gradient_kernel, observers=tools)[1, 32 * WARPS](
    s.view(int16), g.view(int16), by_window
)
print(
    "mma:", fast.counters["together"]["mma_m16n8k16_f32_bf16"], "= 3 shifts · 4 blocks"
)
counts = [report.counters["banks"]["wavefronts"] for report in (slow, fast)]
print(f"wavefronts: {counts[0]:,} one tap at a time, {counts[1]:,} by windows")
print("equal, below 1e-4:", bool(np.abs(by_tap - by_window).max() <= 1e-4))

# %% [markdown]
# Twelve instructions replace 10,752 multiply-adds. (About half of your kernel's wavefronts only fill the tiles.) And the result is deterministic: three thread orders give identical bits.

# %% tags=["uses-exercise"]
results = set()
for seed in range(3):
    simulate(tap_gradient_kernel, seed=seed)[1, 32 * WARPS](
        s.view(int16), g.view(int16), by_window
    )
    results.add(by_window.tobytes())
print("different results:", len(results))

# %% [markdown]
# ## 3. Three phases, three barriers
#
# How does a whole backward kernel use these functions? In the package's kernel (`kernels/conv/tensor_backward.py`) a block has 8 warps and owns rows of scores. It loops over their columns, 32 per iteration. Each iteration has three phases, and a warp has 16 rows of each:
#
# | phase | computes | rows, for 7 row taps | reads from shared memory |
# |---|---|---:|---|
# | 1 | S0 of new columns, to shared memory | 128 | Q, K |
# | — | **barrier A** | | |
# | 2 | T by bands, P, dT; dT to shared memory | 122 | S0 of the rows below; dO, V |
# | — | **barrier B** | | |
# | 3 | dS by bands of flipped taps, dQ; the taps' gradient | 116 | dT of the rows below; K; all of S0 and dT |
# | — | **barrier C** | | |
#
# The second kernel, for dK and dV, is the same with rows and columns exchanged, but does not compute dW. S0 and dT are in **ring buffers** (new columns overwrite the oldest ones) of 64 columns: the 32 columns of the previous iteration, which the next windows still need, plus the 32 new ones.
#
# At a barrier, fast warps wait for slow ones. Which of the three barriers are needed? To check your reasoning, leave one out and let `sim` look for a race. The next two cells take the package's source, replace one `cuda.syncthreads()` with `pass`, and run a backward pass of 44 tokens in `sim`, with two warps per block.
#
# **Predict** for each barrier that is left out, in the kernel of dQ and dW: in which array is the race? A `___` B `___` C `___` And does the kernel of dK and dV need C? `___`

# %% tags=["guess"]
guess("18 barriers", A=..., B=..., C=..., needed_for_dK_and_dV=...)

# %% jupyter={"source_hidden": true}
torch.manual_seed(18)
TOKENS = 44
q, k, v, d_o = torch.randn(4, 1, 1, TOKENS, 16).bfloat16()
w = (torch.randn(1, 3, 3) / 3).bfloat16().float()
exact = [x.double().requires_grad_() for x in (q, k, v, w)]
o = reference.conv_attention(*exact)
log_sum = torch.logsumexp(reference.conv_scores(exact[0], exact[1], exact[3]), -1)
wanted = torch.autograd.grad(o, exact, d_o.double())
given = q, k, v, w, o.detach().bfloat16(), log_sum.detach().float(), d_o


def maker_without(number):
    """Return the package's maker of kernels, with its barrier `number` left out."""
    parts = inspect.getsource(conv_tensor_backward.gradient_kernel).split(
        "cuda.syncthreads()"
    )
    parts[number] += "pass" + parts.pop(number + 1)
    source = "cuda.syncthreads()".join(parts)
    name = f"<without barrier {number}>"
    linecache.cache[name] = len(source), None, source.splitlines(True), name
    names = dict(vars(conv_tensor_backward))
    exec(compile(source, name, "exec"), names)
    return names["gradient_kernel"]


def gradients(of_keys, without=None):
    """Return (dQ, dK, dV, dW) of one of the kernels, and the findings of sim."""
    reports, package = [], conv_tensor_backward.gradient_kernel

    def run(kernel, grid, block, *arguments):
        simulated = simulate(kernel, on_finding="report")
        reports.append(simulated[grid, block](*arguments))

    if without is not None:
        conv_tensor_backward.gradient_kernel = maker_without(without)
    try:
        which = (False, True, True, False) if of_keys else (True, False, False, True)
        got = conv_tensor_backward.conv_tensor_backward(
            *given, True, float32(0.25), which, run=run, warps=2
        )
    finally:
        conv_tensor_backward.gradient_kernel = package
    return got, [finding for report in reports for finding in report.findings]


# %%
barriers = {"A": 1, "B": 2, "C": 3}
for letter, number in progress_bar(barriers.items(), desc="barriers"):
    found, lines = gradients(of_keys=False, without=number)[1], set()
    print(f"dQ and dW without {letter}:")
    for finding in found:
        places = {access.site.function for access in finding.accesses if access.site}
        lines.add(
            f"  {finding.kind:12} {finding.array:13} {' and '.join(sorted(places))}"
        )
    print(*sorted(lines), sep="\n")
mine = {x: gradients(x) for x in progress_bar((False, True), desc="unchanged")}
print("dQ and dW, unchanged:", mine[False][1] or "nothing found")
print("dK and dV, unchanged (no barrier C):", mine[True][1] or "nothing found")

# %% [markdown]
# - **A**: phase 2 of one warp reads S0 that another warp may not have written yet.
# - **B**: the same holds for dT. Also, after B the copies of the next columns (`cp.async`, lesson 17) have arrived for all threads.
# - **C**: the taps' gradient reads S0 in phase 3. In the ring buffer, the next iteration overwrites the S0 of the previous one, which phase 3 still reads.
#
# Why can the kernel of dK and dV do without C? One clean run does not prove that. The argument is this: it computes no dW, so after barrier B of an iteration no warp reads S0. The next phase 1 therefore overwrites nothing that is still needed. Phase 3 does read dT, but the next write to dT comes only after the next barrier A, which every warp reaches after its phase 3. So a barrier separates every read of S0 or dT from the next write to it. Find such an argument whenever you remove a barrier, and use the run to check it.
#
# On the H200, leaving C out of the second kernel was part of the most effective change (section 5).
#
# ## 4. Sixteen bits on the way
#
# S0 and dT go through shared memory rounded to bfloat16, with 8 significant bits. `mma` takes that format, and float32 would not fit. **Predict**: how many bytes of shared memory would a block need, with 8 warps, d = 64 and 7 × 7 taps, if S0 and dT were float32? `___` How many such blocks would fit a multiprocessor, which has 228 KiB? `___`

# %% tags=["guess"]
guess("18 float32", number_of_bytes=..., blocks=...)


# %%
def shared_bytes(warps, score=2, d=64, taps=7):
    """Return the bytes of shared memory of the kernel of dQ and dW, and its parts.

    score: bytes of one entry of S0 or dT."""
    rows, row = 16 * warps, 2 * (d + 8)
    parts = {
        "Q and dO, 16 rows per warp": 2 * rows * row,
        "K, the previous K, V: two stages of 32 rows each": 3 * 64 * row,
        "ring buffers of S0 and dT, 64 columns": 2
        * (rows + taps - 1)
        * (64 + 8)
        * score,
        "bands of taps and of flipped taps": 2 * taps * 2 * 32 * 4,
        "diagonals, one array per warp": warps * taps * 8 * 4,
    }
    return sum(parts.values()), parts


for score in (2, 4):
    total, parts = shared_bytes(8, score)
    fit = 228 * 1024 // (total + 1024)
    print(f"S0 and dT of {score} bytes: {total:,} bytes; blocks that fit: {fit}")
for what, count in shared_bytes(8)[1].items():
    print(f"  {count:7,} {what}")

# %% [markdown]
# And how much accuracy does it cost? Rounding changes each of the two factors by at most 2⁻⁸ of its size (lesson 16), so a tap is off by at most about 2⁻⁷ · Σ |dT · S0|. **Predict**: does the actual error come near this bound? `___`

# %% tags=["guess"]
guess("18 error", near_the_bound=...)

# %% tags=["uses-exercise"]
s, g = torch.randn(134, 70).double(), torch.randn(128, 64).double()
right = tap_gradient(s, g, 7, 7)
rounded = tap_gradient(s.bfloat16().double(), g.bfloat16().double(), 7, 7)
bound = 2**-7 * tap_gradient(s.abs(), g.abs(), 7, 7)
share = ((rounded - right).abs() / bound).max().item()
print("below the bound:", share <= 1, "  below a thirtieth of it:", share <= 1 / 30)

# %% [markdown]
# Values are rounded up as often as down, so thousands of rounding errors nearly cancel. On the GPU, for 17 queries and more, the errors of all four gradients were at most 1.06 times those of PyTorch eager in bfloat16 (`docs/log/2026-11.md`, 2026-11-22).
#
# ## 5. How many fit
#
# While a warp waits for its `mma`, a barrier or an `ldmatrix`, the multiprocessor runs another warp, if there is one. If two blocks are resident, one can continue while the other waits at its barrier. But both blocks need registers. Recall the limits of an H200's multiprocessor from lesson 08b:
#
# - 65,536 registers in four quarters of 16,384. A warp takes all of its registers from one quarter: 32 times the registers of a thread, which are rounded up to a multiple of 8. A thread has at most 255;
# - 2048 threads, counted in whole warps, and 32 blocks;
# - 228 KiB (233,472 bytes) of shared memory. Each block takes its own shared memory plus 1,024 bytes.
#
# If a thread needs more registers than its limit, the compiler **spills** values: it stores them to memory and loads them again.
#
# ### Exercise 18.4 · most_registers · about six lines
#
# In Numba you set the limit with `cuda.jit(max_registers=...)`. Return the largest number of registers that a thread may have so that `blocks` blocks of `threads` threads fit on one multiprocessor, each with `shared_bytes` of shared memory. The result is a multiple of 8, or 255. If the blocks do not fit with any number of registers, return 0.
#
# <details><summary>Hint 1: quarters</summary>
#
# The fullest quarter has a fourth of all warps, rounded *up*. These warps share 16,384 registers, and each warp has 32 lanes.
#
# </details>
# <details><summary>Hint 2: 255 and 256</summary>
#
# Use `min(255, …)` at the end: the hardware rounds 255 up to 256.
#
# </details>


# %% tags=["exercise"]
def most_registers(blocks, threads, shared_bytes):
    """Return the most registers a thread may have so that the blocks fit, or 0."""
    # BEGIN SOLUTION 18.4
    warps = blocks * -(-threads // 32)
    if warps > 64 or blocks > 32 or blocks * (shared_bytes + 1024) > 233472:
        return 0
    in_a_quarter = -(-warps // 4)
    return min(255, 16384 // (32 * in_a_quarter) // 8 * 8)
    # END SOLUTION


# %% tags=["check"]
check.ex18_4(most_registers)

# %% [markdown]
# Apply it to the kernel of dQ and dW, with blocks of 8 warps and of 4 warps:

# %% tags=["uses-exercise"]
for warps in (8, 4):
    needs = shared_bytes(warps)[0]
    for blocks in (1, 2, 3, 4, 5):
        limit = most_registers(blocks, 32 * warps, needs)
        if limit:
            shape = f"blocks of {warps} warps, {blocks} on an SM"
            print(f"{shape}: {limit} registers per thread")

# %% [markdown]
# We compiled the kernels with several limits and timed them. **Predict** before you look, for blocks of 8 warps: which limit is fastest: none, 128 or 80? `___` How many blocks fit with 80 registers, by your function? `___` A block of 4 warps owns 52 of 64 rows, and a block of 8 warps owns 116 of 128, so blocks of 4 warps compute 12 % more scores. How many percent slower do you expect them to be? `___`

# %% tags=["guess"]
guess("18 limits", fastest=..., blocks=..., percent_slower=...)

# %% jupyter={"source_hidden": true}
rows = []
for built in record["built"]:
    limit = built["most_registers"] or "none"
    needs = built["threads"], built["shared_bytes"]
    rows.append(
        [
            "dK, dV" if built["of_keys"] else "dQ, dW",
            built["warps"],
            limit,
            built["registers"],
            built["spilled"],
            f"{needs[1]:,}",
            built["blocks"],
            f"{built['ms']:.2f}",
        ]
    )
header = "kernel", "warps", "limit", "registers", "spilled", "shared", "blocks", "ms"
show_table(
    header,
    *rows,
    title="4, 16, 2048, 64; bytes spilled per thread, shared bytes per block, blocks "
    f"per multiprocessor from the driver; {record['gpu']}, recorded {record['date']}",
)

# %% [markdown]
# - **128 is fastest**: two blocks instead of one make the kernels 1.28 and 1.11 times as fast, although each thread spills 40 and 64 bytes.
# - **80 does not help**: registers would allow three blocks, but shared memory allows only two. (For three, your function returned 0.) The kernel only spills more, and is as slow as without a limit, or slower.
# - **4 warps**: three blocks fit with 168 registers as well as with 128, so the limit of 128 only adds spilling. With 168 registers they compute 12 % more scores but are only 3 to 4 % slower, because at a barrier a warp waits for three other warps instead of seven.
#
# (The bytes of shared memory are exactly the result of `shared_bytes`, and the driver reports the same numbers of blocks as `most_registers`.)
#
# ### The attempts that failed
#
# Nobody finds such a kernel at the first try. Here are the attempts for this one, from the project's log (`docs/log/2026-11.md`, 2026-11-22; one H200, milliseconds, for 1, 8, 4096, 64 and 4, 16, 2048, 64). The first version took **1.26 and 1.79**. Our first estimate assumed that shared-memory bandwidth was the limit: 0.9 ms for the second shape. So most attempts reduce the bytes read from shared memory.
#
# **Predict**: which of the five attempts were slower than the first version? `___`
#
# | | attempt | expected |
# |---|---|---|
# | a | 4 warps of 32 rows, 255 registers: K, V, … are read half as often | 1.3 times faster |
# | b | rows in strips, as in the forward kernel: S0 is read once for all row shifts, half of a convolution's reads | 1.3 times faster |
# | c | a and b | faster still |
# | d | no barrier C for dK and dV; dW accumulated in two chains, because each `mma` waits for the previous one of its chain | 5 % |
# | e | d, and a longer ring buffer, which saves barrier C in the other kernel too; its index wraps by a comparison instead of a mask | 5 % |

# %% tags=["guess"]
guess("18 attempts", slower=...)

# %% [markdown]
# <details><summary>What they measured</summary>
#
# | | ms | |
# |---|---|---|
# | a | 1.40 and 1.95 | slower |
# | b | 1.30 and 1.87 | slower |
# | c | 1.79 and 2.45 | much slower |
# | d | **1.18 and 1.77** | faster; in the package |
# | e | 1.45 and 2.12 | slower, in the kernel of keys too, where only the wrapping is new |
#
# Shared-memory bandwidth was not the limit: halving the reads saved nothing. **Waiting** was the limit. Fewer barriers and shorter chains of `mma` helped most if only one block fits on a multiprocessor (11 × 11 taps: from 13.3 to 11.2 ms; d = 128: from 13.6 to 10.7 ms). In e the wrapping cost more than the barrier: a mask takes one instruction, a comparison takes more, and each address needs it.
#
# </details>

# %% [markdown]
# ## Validate
#
# Compare each stage with one that you know: with lesson 13's sum, or with the float64 reference that validated lesson 13. The tolerances are relative to the largest entry. For 16-bit results the tolerance is 2⁻⁷, which is two roundings of at most 2⁻⁸ each.


# %% tags=["uses-exercise"]
def near(got, wanted, tolerance):
    """Return True if no entry is off by more than tolerance times the largest."""
    return bool((got.double() - wanted).abs().max() <= tolerance * wanted.abs().max())


s, g = (torch.from_numpy(rng.standard_normal(x)) for x in ((34, 38), (32, 32)))
s, g = s.bfloat16(), g.bfloat16()
by_window = torch.zeros(3, 7)
bits = (x.view(torch.int16) for x in (s, g))
simulate(tap_gradient_kernel)[1, 32 * WARPS](*bits, by_window)
s, g, direct = s.double(), g.double(), torch.zeros(3, 7).double()
for a in range(3):
    for b in range(7):
        direct[a, b] = (g * s[a : a + 32, b : b + 32]).sum()
got = {
    name: gradient
    for of_keys in mine
    for name, gradient in zip("qkvw", mine[of_keys][0])
    if gradient is not None
}
stages = {
    ("tap_gradient", "lesson 13's sum"): (tap_gradient(s, g, 3, 7), direct, 1e-12),
    ("your kernel, sim", "lesson 13's sum"): (by_window, direct, 1e-6),
    **{
        (f"the package's d{name.upper()}, sim", "autograd"): (got[name], right, 2**-7)
        for name, right in zip("qkvw", wanted)
    },
}
show_table(
    ["stage", "compared with, in float64", "tolerance", ""],
    *(
        [*stage, f"{pair[2]:.0e}", "✓" if near(*pair) else "✗"]
        for stage, pair in stages.items()
    ),
)

# %% [markdown]
# ## What is the next limit?
#
# An H200's tensor cores have a peak of 989 TFLOP/s in bfloat16. **Predict**: how many percent of this peak does the backward pass use for the first shape, not counting halos and masked scores? `___` And the backward pass of `scaled_dot_product_attention`? `___` (Multiply-adds per score: 3d + 3 · 112 in the kernel of dQ and dW, 4d + 2 · 112 in the kernel of dK and dV; without convolution 5d.)

# %% tags=["guess"]
guess("18 fraction of the peak", kernels=..., sdpa=...)

# %%
d, band = 64, 7 * 16
adds = {"kernels": 3 * d + 3 * band + 4 * d + 2 * band, "sdpa": 5 * d}
for shape in dict.fromkeys(shape for shape, _ in backward_ms):
    batch, heads, n, _ = shape
    scores = batch * heads * n * (n + 1) / 2
    for name, each in adds.items():
        least = 1e3 * scores * 2 * each / 989e12
        share = least / backward_ms[shape, name]
        shown = (
            f"{str(shape)[1:-1]:15} {NAMES[name]:15} {each:5} multiply-adds per score"
        )
        print(f"{shown}: {share:.0%} of the peak")

# %% [markdown]
# The convolution triples the multiply-adds of plain attention's backward pass. Where does the rest of the time go? The profiler shows two reasons (`docs/measurements.md`). In the backward kernels the shared memory is busy for 56 to 70 % of the time. And the three phases of an iteration need each other's rows, so each iteration has up to three barriers, with only 16 warps per multiprocessor to hide the waits. There is also a limit that no schedule removes: on Hopper GPUs `mma.sync` alone reaches about 65 % of the peak (642 TFLOP/s). Kernels that go further use `wgmma`, which multiplies operands that are still in shared memory, and TMA, which copies whole tiles while the warps compute. Numba itself has none of these instructions, but you can add one: `kernels/tensor_cores/instructions.py` adds those of this lesson, and lesson 18c uses `wgmma` and TMA. Since 2026-11-29 the package's backward pass uses `wgmma` on Hopper GPUs, and takes 0.960 ms for the second shape.

# %% [markdown]
# ## The ladder
#
# The gradient of the taps is the next rung. A block computes one tile of 32 × 32. On a GPU there are 8,192 tiles at a time, with your two functions, and the limit is the time to read the tiles once. **Predict**: more transactions than lesson 17b, or fewer? `___`

# %% tags=["guess"]
guess("18 ladder", transactions=...)

# %% tags=["uses-exercise"]
show_ladder("18", add_products, sum_diagonals)

# %% [markdown]
# With a GPU, the next cell times your own kernel on it:

# %% tags=["gpu"]
time_rung("18", add_products, sum_diagonals)

# %% [markdown]
# More: a block fills its two tiles in shared memory by plain loads and stores, and uses them for one gradient only.
#
# From the first rung to this one, the number of transactions per useful multiply-add fell by a factor of forty. That is most of the story of these lessons: load less often what you use many times, and let another warp work while one waits.
#
# ## In three lines
#
# - The gradient of the taps is the diagonals of a matrix product. More than half of that product is wasted, and it is still the fastest way.
# - Leave a barrier out to see what it protects. If nothing breaks, find the argument why nothing can.
# - Registers and shared memory decide how many blocks are resident to hide each other's waits. A byte count can be correct and still not be the bottleneck. So predict, measure, and record what failed.
#
# **You can now** compute a sum on tensor cores although it is not a matrix product, and say how many registers a thread may have if a second block is to fit.
#
# **Read on:** Jay Shah et al., *FlashAttention-3* (2024, arXiv:2407.08608), section 3, for a pipeline of `wgmma`, TMA and warp specialisation · NVIDIA, *CUDA C++ Best Practices Guide*, sections on occupancy and register pressure · the [glossary](../docs/glossary.md) of this course.
#
# **Next:** [lesson 18b](18b_fast_decode.ipynb) decodes at the speed of memory.
