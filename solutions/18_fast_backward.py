# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 18 · Fast backward, fast decoding: tensor cores for work that is not a matrix product
#
# **115 minutes**, and 25 for the two parts marked *optional* · builds on lesson 13 (the backward kernels), lesson 14 (decoding), lesson 08 (occupancy) and lessons 16 and 17 (`mma`, `ldmatrix`, bands of taps)
#
# You will be able to
#
# 1. rewrite a sum that is not a matrix product as the diagonals of one, and compute it on a tensor core;
# 2. calculate how many registers a thread may have for a second block to fit, and say why that can be worth more than saving bytes;
# 3. find out which barriers a kernel needs: leave one out and see what breaks, and if nothing breaks, give the argument why nothing can;
# 4. give a lower bound on the time per token, and fill sixteen rows of a tensor core when there is only one.
#
# **Where this leads.** The forward pass of lesson 17 consists of matrix products: QKᵀ, bands of taps, PV. Two computations are left. The gradient of the taps has 49 numbers for each head, and each is a sum over all scores. And decoding has only one query. Neither looks like a product of 16 × 16 matrices. The tables show how fast both became on tensor cores, on one GPU, in bfloat16, causal, with 7 × 7 taps. "Eager" is plain PyTorch, and "no convolution" is `scaled_dot_product_attention`:

# %%
import inspect
import json
import linecache

import matplotlib.pyplot as plt
import numpy as np
import torch
from ml_dtypes import bfloat16
from numba import cuda
from numpy import float32, int16, uint32

from course import brought, check, show_figure, show_table
from course.figures import BLUE, GREEN, ORANGE, RED
from kernels import conv_attention_decode, reference
from kernels.conv import tensor_backward as conv_tensor_backward
from kernels.common.data import DATA
from kernels.tensor_cores.instructions import (
    ldmatrix_x2_trans,
    ldmatrix_x4,
    ldmatrix_x4_trans,
    mma_bf16,
)
from kernels.tensor_cores.tiles import tap_loader
from sim import simulate
from sim.observers import COUNTERS, DEFAULT, Banks, Trace

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
token = {(tuple(r["shape"]), r["name"]): r for r in record["decoding"]}
caches = list(dict.fromkeys(shape for shape, _ in token))
show_table(
    ["cache: B, H, N, d", "these kernels", "no convolution"],
    *(
        [
            str(shape)[1:-1],
            *(f"{token[shape, n]['us']:.1f}" for n in NAMES if n != "eager"),
        ]
        for shape in caches
    ),
    title="one token, microseconds, in a CUDA graph",
)

# %% [markdown]
# You need no GPU: `sim` runs `mma` and `ldmatrix`, and every time in this lesson is recorded.
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
# Multiply the window's transpose by the block of dT: `C[x, y] = Σ_i S0[i, x] · dT[i, y]`. This is a 3 × 2 matrix, and a tensor core can compute it. **Predict** its six entries: `___`. Which entries have x = y, and so sum to dW[0]? `___` Which have x = y + 1, and so sum to dW[1]? `___`
#
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

# %%
taps, window, block = 7, 16, 8
print("a window of 16 and a block of 8 suffice up to", window - block + 1, "taps")
print(f"needed with {taps} taps: {taps * block} of {window * block} accumulators")
print("multiply-adds for each score, for all 7 row shifts:", 7 * window)
print("one tap at a time, as in lesson 13:                ", 7 * taps)

# %% [markdown]
# So more than half of the work is wasted: 112 multiply-adds per score instead of 49. But tensor cores compute them about 12 times as fast (on an H200, about 790 TFLOP/s in a library's matmul against 67 in float32). Lesson 17's bands made the same trade, and here too it pays.
#
# ### Exercise 18.1 · tap_gradient · about six lines
#
# Start in PyTorch, without lanes. Return dW, (c_q, c_k), of one tile:
#
# - `s_tile` is (rows + c_q − 1, columns + c_k − 1). `g_tile`, which is dT, is (rows, columns), and columns is a multiple of 8;
# - for each row shift a and each block of 8 columns, make exactly **one** matrix product: the window's transpose times the block. The window has 8 + c_k − 1 columns (you may use 16 if you pad `s_tile`);
# - for each row shift, accumulate the products over all blocks first, then read each tap off its diagonal, once. Use no other multiplication.
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
# Note what a row shift keeps: 16 × 8 accumulators, **for the whole kernel**. Tiles change, but the diagonals are read only once, at the end. In a warp, 16 × 8 accumulators are four registers per lane.
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
# Here A = S0ᵀ: **its rows are the window's columns**. And B = dT. Both tiles are in shared memory, row-major, as 16-bit numbers. A register packs two entries that are vertically adjacent in the tile, so you need `.trans`. In `ldmatrix_x4_trans(tile, (row, column))`, lane 8r + i supplies the address of row i of matrix r (8 numbers, 16 bytes). Each lane receives M_r[2t, g] and M_r[2t + 1, g] in register r. `_x2_trans` loads two matrices, from the addresses of lanes 0 to 15.
#
# **Predict** which quarter of the window must be matrix 1: rows 8 to 15 of the tile, or columns 8 to 15? `___`
#
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
#
# <details><summary>Answer</summary>
#
# (1, 2), (1, 3), (9, 2), (9, 3). x − y is −1, −2, 7 and 6. Only the last one is a tap, b = 6, so this lane contributes one number.
#
# </details>
#
# Atomic additions would work, but then dW would differ from run to run (lesson 13). So each number gets its own slot, `diagonals[b, y]` in shared memory. Then one lane per tap adds its eight numbers, always in the same order.
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
# The second kernel, for dK and dV, is the same with rows and columns exchanged, but does not compute dW. S0 and dT are in *ring buffers* of 64 columns: the 32 columns of the previous iteration, which the next windows still need, plus the 32 new ones.
#
# At a barrier, fast warps wait for slow ones. So which barriers are needed? Check your reasoning: leave one out and let `sim` look for a race. The next two cells take the package's source, replace one `cuda.syncthreads()` with `pass`, and run a backward pass of 44 tokens in `sim`, with two warps per block.
#
# **Predict** for each barrier that is left out, in the kernel of dQ and dW: in which array is the race? A `___` B `___` C `___` And does the kernel of dK and dV need C? `___`

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
    return got, reports[0].findings


# %%
for letter, number in {"A": 1, "B": 2, "C": 3}.items():
    found, lines = gradients(of_keys=False, without=number)[1], set()
    print(f"dQ and dW without {letter}:")
    for finding in found:
        places = {access.site.function for access in finding.accesses if access.site}
        lines.add(
            f"  {finding.kind:12} {finding.array:13} {' and '.join(sorted(places))}"
        )
    print(*sorted(lines), sep="\n")
mine = {of_keys: gradients(of_keys) for of_keys in (False, True)}
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
# ## 4. Sixteen bits on the way (optional, 5 minutes)
#
# S0 and dT go through shared memory rounded to bfloat16, with 8 significant bits. `mma` takes that format. It is also what fits. **Predict**: how many bytes of shared memory would a block need, with 8 warps, d = 64 and 7 × 7 taps, if S0 and dT were float32? `___` How many such blocks would fit a multiprocessor, which has 228 KiB? `___`


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

# %% tags=["uses-exercise"]
s, g = torch.randn(134, 70).double(), torch.randn(128, 64).double()
right = tap_gradient(s, g, 7, 7)
rounded = tap_gradient(s.bfloat16().double(), g.bfloat16().double(), 7, 7)
bound = 2**-7 * tap_gradient(s.abs(), g.abs(), 7, 7)
share = ((rounded - right).abs() / bound).max().item()
print("below the bound:", share <= 1, "  below a thirtieth of it:", share <= 1 / 30)

# %% [markdown]
# Roundings go up as often as down, and thousands of them nearly cancel. On the GPU, for 17 queries and more, the errors of all four gradients were at most 1.06 times those of PyTorch eager in bfloat16 (`docs/log/2026-11.md`, 2026-11-22).
#
# ## 5. How many fit (optional, 15 minutes)
#
# While a warp waits for its `mma`, a barrier or an `ldmatrix`, the multiprocessor runs another warp, if there is one. If two blocks are resident, one can continue while the other waits at its barrier. But both blocks need registers. Recall the limits of an H200's multiprocessor from lesson 08:
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
# We compiled the kernels with several limits and timed them. **Predict** before you look, for blocks of 8 warps: which limit is fastest: none, 128 or 80? `___` How many blocks fit with 80 registers, by your function? `___` A block of 4 warps owns 52 of 64 rows, and a block of 8 warps owns 116 of 128, so blocks of 4 warps compute 12 % more scores. How much slower do you expect them to be? `___`

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
# - **80 does not help**: registers would allow three blocks, but shared memory allows only two, for which your function returned 0 at three. The kernel only spills more, and is as slow as without a limit, or slower.
# - **4 warps**: three blocks fit with 168 registers as well as with 128, so the limit of 128 only adds spilling. With 168 registers they compute 12 % more scores but are only 3 to 4 % slower, because at a barrier a warp waits for three other warps instead of seven.
#
# (The bytes of shared memory are exactly those of `shared_bytes`, and the driver reports the same numbers of blocks as `most_registers`.)
#
# ### The attempts that failed
#
# Such kernels are found by trying. Here is the list of attempts for this one, from the project's log (`docs/log/2026-11.md`, 2026-11-22; one H200, milliseconds, for 1, 8, 4096, 64 and 4, 16, 2048, 64). The first version took **1.26 and 1.79**. Our first estimate assumed that shared-memory bandwidth was the limit: 0.9 ms for the second shape. So most attempts reduce the bytes read from shared memory.
#
# **Predict** for each attempt: was it faster or slower? `___`
#
# | | attempt | expected |
# |---|---|---|
# | a | 4 warps of 32 rows, 255 registers: K, V, … are read half as often | 1.3 times faster |
# | b | rows in strips, as in the forward kernel: S0 is read once for all row shifts, half of a convolution's reads | 1.3 times faster |
# | c | a and b | faster still |
# | d | no barrier C for dK and dV; dW accumulated in two chains, because each `mma` waits for the previous one of its chain | 5 % |
# | e | d, and a longer ring buffer, which saves barrier C in the other kernel too; its index wraps by a comparison instead of a mask | 5 % |
#
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
#
# ## 6. One token
#
# Now decoding. From lesson 14 you know its limit: a token must read K and V once. In bfloat16 that is 4 bytes per key per head-dimension element (2 for K, 2 for V). A copy on this GPU reached this bandwidth, which gives a lower bound on the time:

# %%
rate = record["bandwidth"]
print(f"{rate / 1e12:.2f} TB/s")
for shape in caches:
    batch, heads, n, d = shape
    read = 2 * 2 * batch * heads * n * d
    print(f"cache {shape}: {read / 1e6:6.1f} MB, {1e6 * read / rate:6.1f} µs")

# %% [markdown]
# **Predict** the arithmetic. A tensor core takes 16 rows. The window has 7 queries, so 9 of 16 rows are zeros. `O` has only *one* row. Count the multiply-adds per key for d = 64 and 7 × 7 taps. What is required: (7 + 1) · 64 + 49 = `___`. What the padded products do, with 16 rows in both products and the convolution as bands of 16 in each of 4 warps: 2 · 16 · 64 + 4 · 7 · 16 = `___`. Will the extra work matter? (`mma.sync` reaches at most 642 TFLOP/s, about 65 % of the peak. A multiply-add is two operations.)

# %%
d, c_q, c_k, warps = 64, 7, 7, 4
by_need = (c_q + 1) * d + c_q * c_k
with_rows = 2 * 16 * d + warps * c_q * 16  # every warp convolves all keys of a tile
print(f"required: {by_need}, padded products: {with_rows} multiply-adds per key")
for shape in caches:
    batch, heads, n, _ = shape
    work = 2 * batch * heads * n * with_rows / 642e12
    floor = 2 * 2 * batch * heads * n * d / rate
    print(
        f"cache {shape}: bytes {1e6 * floor:6.1f} µs, arithmetic {1e6 * work:5.1f} µs"
    )

# %% [markdown]
# The padded products do four times as much work as required, and it does not matter: reading the bytes takes about eight times as long. What counts is the number of *instructions*. Without tensor cores, each key's 561 multiply-adds need 561 instructions of a lane, and the numbers have to be converted to float32 first.
#
# ## 7. Scores that overlap
#
# The convolution does not fit so easily. A token has only one row of `T`: T[j] = Σ_ab w[a, b] · S0[a, j + b]. (As before, S0's columns begin P_k before T's.) Lesson 17's bands need 16 rows at a time. Which rows could you use?
#
# Use rows of *keys*. 128 keys form 16 rows of 8: row m has keys 8m to 8m + 7. For row a of the window, row m of the left operand has the scores that these eight keys need: S0[a, 8m : 8m + 16]. The right operand is lesson 17's band: B[x, y] = w[a, x − y] if 0 ≤ x − y < c_k, else 0. Then row m of the product is T of eight keys.
#
# Try it on paper, with 2 instead of 8 and 4 instead of 16: two keys per row, taps (1, 3), S0 = 1, 2, 0, 1, 4, 0, … **Predict** rows 0 and 1 of the left operand, four numbers each: `___` What do they have in common? `___` And T of keys 0 and 1: `___`
#
# <details><summary>Answer</summary>
#
# (1, 2, 0, 1) and (0, 1, 4, 0). The right half of each row is the left half of the next. So this matrix need not exist in memory: its rows may **overlap**, and no score is stored twice. `ldmatrix` needs only the address of each row.
#
# T of keys 0 and 1 is 1·1 + 3·2 = 7 and 1·2 + 3·0 = 2.
#
# </details>
#
# ### Exercise 18.5 · convolve · about eight lines
#
# Set `t`, a local array of four, to this lane's entries of the product, summed over the rows a of the window. `t[e]` is T of key 8 (g + 8 (e // 2)) + 2t + e % 2, in the layout of C. Ignore the old values of `t`.
#
# - `scores` is in shared memory: int16 bits of bfloat16. `scores[a]` has row a of the window, with at least 136 columns. Do not read further columns;
# - `bands` is a local array: `bands[2a]` and `bands[2a + 1]` are b0 and b1 of row a's band, as in lesson 17. c_q is `bands.shape[0] // 2`.
#
# Use one `ldmatrix_x4` (without transposing) and one `mma_bf16` for each row a. One warp does all the work and needs no barrier. The block may have several warps, each with its own scores.
#
# <details><summary>Hint 1: the address</summary>
#
# Matrix r has rows 0 to 7 of the left operand, or 8 to 15 if r is odd. It has columns 0 to 7, or 8 to 15 for r = 2 and 3. So lane 8r + i has row m = `lane & 15` and half `lane >> 4`.
#
# </details>
# <details><summary>Hint 2: in numbers</summary>
#
# Row m begins at column 8m of `scores[a]`, and its second half begins at 8m + 8.
#
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def convolve(t, scores, bands):
    """Set t (4 per lane) to T of 128 keys: row m of C is T of keys 8m ... 8m + 7."""
    # BEGIN SOLUTION 18.5
    lane = cuda.threadIdx.x & 31
    for e in range(4):
        t[e] = float32(0)
    for a in range(bands.shape[0] // 2):
        at = (lane & 15) * 8 + (lane >> 4) * 8
        a0, a1, a2, a3 = ldmatrix_x4(scores, (a, at))
        t[0], t[1], t[2], t[3] = mma_bf16(
            a0, a1, a2, a3, bands[2 * a], bands[2 * a + 1], t[0], t[1], t[2], t[3]
        )
    # END SOLUTION


# %% tags=["check"]
check.ex18_5(convolve)

# %% [markdown]
# Here is the left operand, drawn from your run: for each of its 16 rows, the columns of `scores` that your `ldmatrix` reads, labelled with the lane. Two lanes read each column, except the first eight and the last eight. **Predict**: is that a bank conflict? `___` (The count by `sim` is below the picture.)


# %% tags=["uses-exercise"] jupyter={"source_hidden": true}
load_taps = tap_loader("bfloat16", 3, 5)


def convolve_once(s, w, t_out):
    scores = cuda.shared.array((16, 152), int16, alignment=16)
    bands = cuda.local.array(6, uint32)
    t = cuda.local.array(4, float32)
    lane = cuda.threadIdx.x & 31
    for a in range(3):
        for j in range(lane, 152, 32):
            scores[a, j] = s[a, j]
    load_taps(bands, w, 0)
    cuda.syncwarp()
    convolve(t, scores, bands)
    for e in range(4):
        t_out[lane // 4 + 8 * (e // 2), lane % 4 * 2 + e % 2] = t[e]


scores = np.zeros((3, 152), bfloat16)
scores[:, :132] = rng.standard_normal((3, 132))
taps = rng.standard_normal((1, 3, 5)).astype(bfloat16).astype(float32)
t_out = np.zeros((16, 8), float32)
once = simulate(convolve_once, observers=[*DEFAULT, Trace, Banks])[1, 32](
    scores.view(int16), taps, t_out
)
direct = sum(
    taps[0, a, b] * scores[a, b : b + 128].astype(float)
    for a in range(3)
    for b in range(5)
)
print("T of 128 keys, below 1e-5:", bool(np.abs(t_out.ravel() - direct).max() <= 1e-5))


def draw_overlap(trace):
    """Draw the 16 bytes of row 0 of scores that each lane points to, by operand row."""
    place = next(i for i, home in enumerate(trace.arrays) if home.name == "scores")
    read = (trace.array == place) & (trace.action == 0) & (trace.element < 152)
    figure, axes = plt.subplots(figsize=(9, 3.4), layout="constrained")
    for lane, first in zip(trace.thread[read], trace.element[read]):
        row, colour = lane % 16, (BLUE, ORANGE)[lane // 16]
        axes.broken_barh([(first, 8)], (row - 0.42, 0.84), facecolors=colour)
        axes.text(first + 4, row, lane, ha="center", va="center", fontsize=8)
    axes.set(xlabel="column of scores", ylabel="row of the left operand")
    axes.set(ylim=(15.6, -0.6), xticks=range(0, 137, 8))
    axes.grid(axis="x", alpha=0.3)
    return figure


show_figure(
    draw_overlap(once.trace),
    "sixteen rows, each two pieces of eight columns side by side, with the number of "
    "the lane that reads it: row 0 the columns 0 to 7, lane 0, and 8 to 15, lane 16; "
    "row 1 the columns 8 to 15, lane 1, and 16 to 23, lane 17; and so on, eight "
    "columns further in each row, down to row 15 with the columns 120 to 135.",
)

counted = [
    line
    for (function, _), line in once.counters["lines"].items()
    if function == "convolve" and "wavefronts" in line
]
count, fewest = (
    sum(line[what] for line in counted) for what in ("wavefronts", "fewest_wavefronts")
)
print(f"wavefronts of ldmatrix: {count}; fewest possible for 3 × 512 bytes: {fewest}")

# %% [markdown]
# There is no conflict. `ldmatrix` works in four phases of 8 rows, one wavefront each: first the rows that lanes 0–7 point to, then those of lanes 8–15, 16–23 and 24–31. The two lanes that point to the same column are 15 apart, so they are in different phases. And the eight rows of one phase are 128 contiguous bytes, one word per bank.
#
# **And P V?** Each lane holds the weights of keys 8g + 2t and 8g + 2t + 1, and of the two keys 64 further on. It needs them as the left operand of the product with V, without moving them. Look at the layout of A: row g, columns 2t and 2t + 1. So let row m of the operand hold the weights of keys 8m … 8m + 7, with zeros in the columns of all other keys. That is exactly what the lane has. The product's rows are then *parts* of one sum, and adding the 16 rows, once at the end, gives `O`. Fifteen of sixteen entries of that operand are zeros. As section 6 showed, they cost no time.
#
# ## 8. Blocks, and the time to start them
#
# The keys of a head are split among blocks, as in lesson 14. Here a block has 4 warps and takes 128 keys at a time. How many such blocks fit on the GPU?

# %%
decoder = record["decoder"]
print(
    f"{decoder['registers']} registers, {decoder['shared_bytes']:,} bytes: "
    f"{decoder['blocks']} blocks of {decoder['threads']} threads"
)
slots = 132 * decoder["blocks"]
print(f"on 132 multiprocessors: {slots} resident blocks")

# %% [markdown]
# **Predict**, for the cache 1, 8, 16384, 64 with its 8 heads: how many splits per head fill all block slots exactly once? `___` And for 8, 16, 16384, 64, with 128 heads? `___` The next cell shows the measured times, each in a CUDA graph:

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(figsize=(7.5, 3.8), layout="constrained")
for shape, colour in zip(caches, (BLUE, GREEN, RED)):
    batch, heads, n, d = shape
    row = token[shape, "kernels"]
    floor = 1e6 * 4 * batch * heads * n * d / rate
    tried = {int(splits): us / floor for splits, us in row["splits"].items()}
    axes.plot(tried.keys(), tried.values(), "o-", color=colour, label=str(shape)[1:-1])
    best = min(tried, key=tried.get)
    print(f"{str(shape)[1:-1]:16}: best of those tried {best:3} splits, ", end="")
    print(
        f"{best * batch * heads:4} blocks; by the rule {row['us'] / floor:.2f} floors"
    )
axes.set(xlabel="splits per head", ylabel="times the floor", xscale="log", yscale="log")
axes.set_xticks([1, 2, 4, 8, 16, 32, 64, 128], [1, 2, 4, 8, 16, 32, 64, 128])
axes.set_yticks([1, 2, 5, 10, 20, 50], [1, 2, 5, 10, 20, 50])
axes.minorticks_off()
axes.grid(alpha=0.3)
axes.legend(title="cache")
show_figure(
    figure,
    "times of one token over the number of splits, in units of the time to read K and "
    "V. Cache 1, 8, 4096, 64 falls from 32 with one split to 7 with 16, and stays "
    "there. Cache 1, 8, 16384, 64 falls from 28 to 3.0 with 32 splits, and rises to "
    "3.8 with 128. Cache 8, 16, 16384, 64 falls from 1.9 to 1.4 with 2 splits, and "
    "rises to 1.5 with 32.",
)

# %% [markdown]
# 264 block slots allow 33 splits for 8 heads, or 2 for 128. The best that we tried were 32 and 2. (With one split for 128 heads, half of the slots are empty. A curve that rises again pays for halos, windows and merging.)
#
# A short cache is far from its lower bound, and no number of splits helps: two kernels have to start, one after the other, and each block has to wait for its first keys. This is latency, not bandwidth.
#
# **Predict**: how much longer does a token take if Python launches both kernels each time, instead of replaying a CUDA graph that was captured once? (A launch costs Python about 33 µs: lesson 07.) `___`

# %% jupyter={"source_hidden": true}
rows = []
for shape in caches:
    batch, heads, n, d = shape
    row = token[shape, "kernels"]
    floor = 1e6 * 4 * batch * heads * n * d / rate
    times = floor, row["us"], row["us_from_python"]
    times += token[shape, "float32"]["us"], token[shape, "sdpa"]["us"]
    rows.append([str(shape)[1:-1], *(f"{time:.1f}" for time in times)])
show_table(
    [
        "cache",
        "floor",
        "graph",
        "from Python",
        "float32, graph",
        "no convolution, graph",
    ],
    *rows,
    title=f"one token, µs; {record['gpu']}, recorded {record['date']}",
)

# %% [markdown]
# With a short cache, launching from Python takes 14 times as long as the graph: two launches, and before them the checks of arguments and the allocation of results. A graph does all that only once. (It can be captured because no host-side control flow depends on tensor values.) With the largest cache there is hardly a difference: while the GPU reads 537 MB, Python launches the next token's kernels.
#
# float32 has twice the bytes, and takes 1.6 to 1.9 times as long. The convolution is not free either: these kernels take 1.2 to 1.6 times as long as `scaled_dot_product_attention`, which has no window, no taps and no halo.
#
# ## Validate
#
# Compare each stage with one that you know: with lesson 13's sum, or with the float64 reference that validated lessons 13 and 14. The tolerances are relative to the largest entry. For 16-bit results the tolerance is 2⁻⁷, which is two roundings of at most 2⁻⁸ each.


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
row, last = conv_attention_decode(q[:, :, -3:], k, v, w), o[:, :, -1:].detach()
stages = {
    ("tap_gradient", "lesson 13's sum"): (tap_gradient(s, g, 3, 7), direct, 1e-12),
    ("your kernel, sim", "lesson 13's sum"): (by_window, direct, 1e-6),
    **{
        (f"the package's d{name.upper()}, sim", "autograd"): (got[name], right, 2**-7)
        for name, right in zip("qkvw", wanted)
    },
    ("the package's token, sim", "the last row, reference"): (row, last, 2**-7),
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
# An H200's tensor cores have a peak of 989 TFLOP/s in bfloat16. **Predict**: which fraction of this peak does the backward pass use, not counting halos and masked scores? `___` And that of `scaled_dot_product_attention`? `___` (Multiply-adds per score: 3d + 3 · 112 in the kernel of dQ and dW, 4d + 2 · 112 in that of dK and dV; without convolution 5d.)

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
short = token[caches[0], "kernels"]
rates = [1e6 / (32 * short[what]) for what in ("us", "us_from_python")]
print("32 layers, 4096 tokens in the cache, attention alone, tokens per second:")
print(f"  {rates[0]:,.0f} in a graph, {rates[1]:,.0f} launched from Python")

# %% [markdown]
# The convolution triples the multiply-adds of plain attention's backward pass. Where does the rest of the time go? The profiler shows two reasons (`docs/measurements.md`). In the backward kernels the shared-memory pipe is busy for 56 to 70 % of the time. And the three phases of an iteration need each other's rows, so each iteration has up to three barriers, with only 16 warps per multiprocessor to hide the waits. There is also a limit that no schedule removes: on Hopper GPUs `mma.sync` alone reaches about 65 % of the peak (642 TFLOP/s). Kernels that go further use `wgmma`, which multiplies operands that are still in shared memory, and TMA, which copies whole tiles while the warps compute (lesson 17). Numba does not expose these instructions. `kernels/tensor_cores/instructions.py` shows how to add an instruction to Numba (lesson 16).
#
# With a long cache, a token in bfloat16 takes 1.35 times its lower bound. With a short cache, one kernel launch could still be saved: the last block to finish could do the merge.
#
# ## In three lines
# - The gradient of the taps is the diagonals of a matrix product. More than half of that product is wasted, and it is still the fastest way.
# - Registers and shared memory decide how many blocks are resident to hide each other's waits. A byte count can be correct and still not be the bottleneck. So predict, measure, and record what failed.
# - A token has to read K and V. Arithmetic (nine idle rows, fifteen zeros of sixteen) is free while it overlaps with these reads. Kernel launches do not overlap.
#
# **You can now** compute on tensor cores what is not a matrix product, and estimate beforehand how long a kernel should take.
#
# **Read on:** Jay Shah et al., *FlashAttention-3* (2024, arXiv:2407.08608), section 3, for a pipeline of `wgmma`, TMA and warp specialisation · Tri Dao, Daniel Haziza, Francisco Massa and Grigory Sizov, *Flash-Decoding for long-context inference* (2023, PyTorch blog) · NVIDIA, *CUDA C++ Best Practices Guide*, sections on occupancy and register pressure · the [glossary](../docs/glossary.md) of this course.
#
# **Next:** [lesson 19](19_heads.ipynb) builds the whole multi-token layer, in which heads mix.
