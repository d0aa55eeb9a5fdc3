# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 18 · Fast backward, fast decoding: tensor cores where the work has no shape for them
#
# **115 minutes**, and 25 for the two parts marked *optional* · builds on lesson 13 (the backward kernels), lesson 14 (decoding), lesson 08 (occupancy) and lessons 16 and 17 (`mma`, `ldmatrix`, bands of taps)
#
# You will be able to
#
# 1. turn a sum that is no product of matrices into diagonals of one, and give it to a tensor core;
# 2. say how many registers a thread may have for a second block to fit, and why that can be worth more than fewer bytes;
# 3. find out which barriers a kernel needs: leave one out and see what breaks, and where nothing breaks, give the reason why nothing can;
# 4. say what a token costs at least, and feed a tensor core sixteen rows where there is one.
#
# **Where this leads.** The forward pass of lesson 17 is made of products: QKᵀ, bands of taps, PV. Two things are left over. The gradient of the taps is 49 numbers for each head, each a sum over all scores. And decoding has one query. Neither looks like a product of 16 × 16 matrices. This is how fast both became on tensor cores. One GPU, bfloat16, 7 × 7 taps, causal; eager is plain PyTorch, and "no convolution" is `scaled_dot_product_attention`:

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
# No GPU is needed here: `sim` runs `mma` and `ldmatrix`, and every time in this lesson is recorded.
#
# ## 1. Taps are diagonals
#
# Lesson 13 has the sum, for one tile: `dW[a, b] = Σ_ij dT[i, j] · S0[i + a, j + b]`. (The tile of S0 begins P_q rows and P_k columns before that of dT, so that no index is negative.) Each tap is a sum over *all* scores, of two tiles that are shifted against each other.
#
# Take one row shift a, and only two columns of dT. The taps (b = 0 and 1) reach three columns of S0, the **window**:
#
# | S0 | x = 0 | 1 | 2 | | dT | y = 0 | 1 |
# |---|---:|---:|---:|---|---|---:|---:|
# | row 0 | 1 | 2 | 0 | | row 0 | 1 | 2 |
# | row 1 | 3 | 1 | 2 | | row 1 | 0 | 1 |
#
# Multiply the window's transpose with the block: `C[x, y] = Σ_i S0[i, x] · dT[i, y]`. This is a 3 × 2 matrix, a sum over rows, and a tensor core can do it. **Predict** its six numbers: `___`. Which of them add up to dW[0], where column y meets column y? `___` And to dW[1], where y meets y + 1? `___`
#
# <details><summary>Answer</summary>
#
# | C | y = 0 | 1 |
# |---|---:|---:|
# | x = 0 | 1 | 5 |
# | 1 | 2 | 5 |
# | 2 | 0 | 2 |
#
# dW[0] = 1 + 5 = 6, where x − y = 0. dW[1] = 2 + 2 = 4, where x − y = 1. A tap is a **diagonal**. The 5 at x = 0, y = 1 and the 0 at x = 2, y = 0 belong to taps that do not exist, b = −1 and 2: they are computed and thrown away.
#
# </details>
#
# An `mma.m16n8k16` has room for a window of 16 columns and a block of 8, over 16 rows. **Predict**: up to which c_k is a window of 16 enough? `___` And with 7 taps, how many of the 16 × 8 sums are of use? `___`

# %%
taps, window, block = 7, 16, 8
print("a window of 16 and a block of 8 serve up to", window - block + 1, "taps")
print(f"of use with {taps} taps: {taps * block} of {window * block} sums")
print("multiply-adds for each score, for all 7 row shifts:", 7 * window)
print("number by number, as in lesson 13:                 ", 7 * taps)

# %% [markdown]
# So more than half of the work is thrown away: 112 multiply-adds per score instead of 49. But a tensor core makes them about 12 times as fast (on an H200 some 790 against 67 TFLOP/s). This is the same bargain as lesson 17's bands, and as there it is worth it.
#
# ### Exercise 18.1 · tap_gradient · about six lines
#
# First in PyTorch, without lanes. Return dW, (c_q, c_k), of one tile:
#
# - `s_tile` is (rows + c_q − 1, columns + c_k − 1), `g_tile`, which is dT, (rows, columns); columns is a multiple of 8;
# - for each row shift a and each block of 8 columns: **one** product of matrices, the window's transpose times the block. The window has 8 + c_k − 1 columns here (up to 16 if you like);
# - a row shift has one sum of products; its taps are diagonals of that. Nothing else multiplies scores.
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
    """dW (c_q, c_k) of a tile, by products of windows with blocks of 8 columns."""
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
# Note what a row shift keeps: 16 × 8 sums, **for the whole kernel**. Tiles come and go, and the diagonals are read once, at the end. In a warp these are four registers a lane.
#
# ## 2. By one warp
#
# From lesson 16, with g = lane // 4 and t = lane % 4, for `mma_bf16(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3)`, which gives back the four new numbers of C:
#
# | | is | the lane's register r holds |
# |---|---|---|
# | A | 16 × 16 | A[g + 8 (r % 2), 2t + 8 (r // 2)], and the next column |
# | B | 16 × 8 | B[2t + 8r, g], and the next row |
# | C | 16 × 8 | number i is C[g + 8 (i // 2), 2t + i % 2] |
#
# Here A = S0ᵀ: **its rows are the window's columns**. And B = dT. Both tiles lie row by row, 16-bit numbers, in shared memory. A lane needs two numbers side by side in a register that lie one *below* the other in the tile. That is `.trans`: in `ldmatrix_x4_trans(tile, (row, column))` lane 8r + i says where row i of the matrix r begins (8 numbers, 16 bytes), and the lane gets M_r[2t, g] and M_r[2t + 1, g]. `_x2_trans` brings two matrices, by the addresses of the lanes 0 to 15.
#
# **Predict** which quarter of the window must be matrix 1: rows 8 to 15 of the tile, or columns 8 to 15? `___`
#
# <details><summary>Answer</summary>
#
# Register 1 holds A[g + 8, 2t], so row x = g + 8 of A: the *columns* 8 to 15 of the window, and its rows 0 to 7. Matrix 2 has the rows 8 to 15 and the columns 0 to 7. (Without transposing it is the other way round.)
#
# </details>
#
# ### Exercise 18.2 · add_products · about six lines
#
# A warp adds one product to its four sums a lane: C += S0ᵀ dT, with
#
# - S0 = `s_tile[s_row : s_row + 16, column : column + 16]`, the window,
# - dT = `g_tile[g_row : g_row + 16, column : column + 8]`, the block.
#
# `sums` is a local array of four float32. One `ldmatrix_x4_trans`, one `ldmatrix_x2_trans`, one `mma_bf16`. The block has one dimension and may have several warps, each with places of its own.
#
# <details><summary>Hint 1: the lane's address in the window</summary>
#
# Lane 8r + i: its row is i, and 8 more for the matrices 2 and 3; its column is 0, and 8 for the matrices 1 and 3. With `lane = cuda.threadIdx.x & 31`, r is `lane >> 3`.
#
# </details>
# <details><summary>Hint 2: the block</summary>
#
# Two matrices, one below the other: row `g_row + (lane & 15)`, one column.
#
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def add_products(sums, s_tile, s_row, g_tile, g_row, column):
    """sums (4 of a lane) += C = Sᵀ G, 16 × 8: S, 16 × 16, from (s_row, column) on,
    G, 16 × 8, from (g_row, column) on; both bfloat16's bits, in shared memory."""
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
# ### From sums to taps
#
# At the end a warp has 128 sums in 32 lanes, and each tap's eight are in several lanes. **Predict**: lane 5 has g = 1 and t = 1. Its four sums are at (x, y) = `___`. Which taps are they of, if c_k = 7? `___`
#
# <details><summary>Answer</summary>
#
# (1, 2), (1, 3), (9, 2), (9, 3). x − y is −1, −2, 7, 6: of the four only the last is a tap, b = 6. With c_k = 7 the lane gives away one number.
#
# </details>
#
# An atomic addition for each would do. But then dW would differ from run to run (lesson 13). So the numbers get places: `diagonals[b, y]` in shared memory. Then one lane for each tap adds its eight, always in the same order.
#
# ### Exercise 18.3 · sum_diagonals · about ten lines
#
# Write the taps of row a: `taps[a, b]` for 0 ≤ b < c_k ≤ 9.
#
# - `sums`, four numbers a lane, as 18.2 leaves them;
# - `diagonals` (9, 8) float32, this warp's own, in shared memory: a number of column y that belongs to tap b goes to `diagonals[b, y]`;
# - then lane b adds the eight numbers of tap b. No atomics, and no barrier of the block, only the warp's, `cuda.syncwarp()`;
# - the function is called once for every row shift that the warp has, each time with the same `diagonals`.
#
# What belongs to no tap may be anything, NaN as well.
#
# <details><summary>Hint 1: where sum i stands</summary>
#
# x = lane // 4 + 8 · (i // 2), y = 2 · (lane % 4) + i % 2, b = x − y.
#
# </details>
# <details><summary>Hint 2: sim finds a race with the next call</summary>
#
# A fast lane may begin the next row shift, and write, while lane b still adds. What would order the two?
#
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def sum_diagonals(taps, a, diagonals, sums, c_k):
    """taps[a, b] = the sum of the warp's eight numbers that belong to tap b."""
    lane = cuda.threadIdx.x & 31
    # BEGIN SOLUTION 18.3
    for i in range(4):
        y = (lane & 3) * 2 + (i & 1)
        b = (lane >> 2) + (i >> 1) * 8 - y
        if 0 <= b and b < c_k:
            diagonals[b, y] = sums[i]
    cuda.syncwarp()  # every number is in its place
    if lane < c_k:
        total = float32(0)
        for y in range(8):
            total += diagonals[lane, y]
        taps[a, lane] = total
    cuda.syncwarp()  # read: the next row shift may write
    # END SOLUTION


# %% tags=["check"]
check.ex18_3(sum_diagonals)

# %% [markdown]
# Your diagonals, drawn from a run for c_k = 5: which lane wrote which cell, and who read it. Rows are taps, columns are y. Move the slider.


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
# Both of yours in a kernel, for one tile of at most 32 × 32: four warps, each with every fourth row shift.

# %%
WARPS, ROWS, COLUMNS = 4, 32, 32
S_ROWS = ROWS + 16
PITCH = 56  # numbers of a row: 112 bytes, so that 8 rows begin in different banks


@cuda.jit(device=True)
def fill(tile, x):
    """tile = x, and zeros around."""
    height, width = tile.shape
    for e in range(cuda.threadIdx.x, height * width, cuda.blockDim.x):
        i, j = e // width, e % width
        inside = i < x.shape[0] and j < x.shape[1]
        tile[i, j] = x[i, j] if inside else int16(0)


@cuda.jit
def tap_gradient_kernel(s, g, d_w):
    """d_w (c_q, c_k), float32, from the bits of s and g, int16."""
    s_tile = cuda.shared.array((S_ROWS, PITCH), int16, alignment=16)
    g_tile = cuda.shared.array((ROWS, PITCH), int16, alignment=16)
    diagonals = cuda.shared.array((WARPS, 9, 8), float32)
    sums = cuda.local.array(4, float32)
    warp = cuda.threadIdx.x >> 5
    fill(s_tile, s)
    fill(g_tile, g)
    cuda.syncthreads()  # both tiles are there
    for a in range(warp, d_w.shape[0], WARPS):
        for x in range(4):
            sums[x] = float32(0)
        for row in range(0, g.shape[0], 16):
            for column in range(0, g.shape[1], 8):
                add_products(sums, s_tile, row + a, g_tile, row, column)
        sum_diagonals(d_w, a, diagonals[warp], sums, d_w.shape[1])


# %% [markdown]
# Beside lesson 13's `add_d_w`, one thread a tap: the same tile of 16 × 32 and 3 × 7 taps, the same numbers. **Predict**: how many `mma` does your kernel make? `___` And how many times fewer turns of shared memory than lesson 13's? `___`

# %% tags=["uses-exercise"]
add_d_w = brought("13_conv_backward", "add_d_w")


def number_by_number(s, g, w, d_w):
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
slow = simulate(number_by_number, observers=tools)[1, 64](
    s.astype(float32), g.astype(float32), w, by_tap
)
fast = simulate(tap_gradient_kernel, observers=tools)[1, 32 * WARPS](
    s.view(int16), g.view(int16), by_window
)
print(
    "mma:", fast.counters["together"]["mma_m16n8k16_f32_bf16"], "= 3 shifts · 4 blocks"
)
turns = [report.counters["banks"]["wavefronts"] for report in (slow, fast)]
print(f"turns of shared memory: {turns[0]:,} number by number, {turns[1]:,} by windows")
print("equal, below 1e-4:", bool(np.abs(by_tap - by_window).max() <= 1e-4))

# %% [markdown]
# Twelve instructions do what 10,752 multiply-adds did. (About half of your kernel's turns only fill the tiles.) And no addition waits for luck: three orders of the threads, the same bits.

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
# This is how the package's kernel uses it (`kernels/conv/tensor_backward.py`). A block has 8 warps and owns rows of scores; it goes along their columns, 32 a step. A warp has 16 rows of each phase:
#
# | phase | makes | rows, 7 row taps | reads from shared memory |
# |---|---|---:|---|
# | 1 | S0 of new columns, to shared memory | 128 | Q, K |
# | — | **barrier A** | | |
# | 2 | T by bands, P, dT; dT to shared memory | 122 | S0 of the rows below; dO, V |
# | — | **barrier B** | | |
# | 3 | dS by bands of flipped taps, dQ; the taps' gradient | 116 | dT of the rows below; K; all of S0 and dT |
# | — | **barrier C** | | |
#
# The second kernel, for dK and dV, is the same with rows and columns exchanged. It does not make dW. S0 and dT stay in a *ring* of 64 columns: the last step's 32, which the windows of the next still reach into, and the new ones.
#
# A barrier is where fast warps wait for slow ones. So, which ones can go? You need not be sure of your reasoning: leave one out, and ask. The next two cells take the package's source, replace one `cuda.syncthreads()` by `pass`, and run a backward pass of 44 tokens in `sim`, two warps a block.
#
# **Predict** for each, in the kernel of dQ and dW: which array races? A `___` B `___` C `___` And does the kernel of dK and dV need C? `___`

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
    """The package's maker of kernels, with its barrier `number` left out."""
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
    """(dQ, dK, dV, dW) of one of the kernels, and what sim finds in it."""
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
print("dQ and dW as they are:", mine[False][1] or "nothing found")
print("dK and dV as they are, without a C:", mine[True][1] or "nothing found")

# %% [markdown]
# - **A**: phase 2 of one warp reads S0 that another has yet to write.
# - **B**: the same for dT. And it is the point where the copies of the next columns (`cp.async`, lesson 17) have arrived for all.
# - **C**: only the taps' gradient reads S0 in phase 3. In the ring, the next S0 goes where the last step's was, and phase 3 reads that too. The other kernel has no dW, and so no C.
#
# On the H200 leaving C out of the second kernel was part of the best change of all (section 5). By reasoning alone one would hardly dare to leave it out.
#
# ## 4. Sixteen bits on the way (optional, 5 minutes)
#
# S0 and dT go through shared memory rounded to bfloat16, 8 bits of fraction with the leading one. That is what `mma` takes. It is also what fits. **Predict**: how many bytes has a block of 8 warps, d = 64, 7 × 7 taps, if S0 and dT were float32? (A multiprocessor has 228 KiB. Then how many blocks fit?) `___`


# %%
def shared_bytes(warps, score=2, d=64, taps=7):
    """Bytes of shared memory of the kernel of dQ and dW; score: of one S0 or dT."""
    rows, row = 16 * warps, 2 * (d + 8)
    parts = {
        "Q and dO, 16 rows a warp": 2 * rows * row,
        "K, K of the last step, V: two steps of 32 each": 3 * 64 * row,
        "rings of S0 and dT, 64 columns": 2 * (rows + taps - 1) * (64 + 8) * score,
        "bands of taps and of flipped taps": 2 * taps * 2 * 32 * 4,
        "diagonals, a warp's each": warps * taps * 8 * 4,
    }
    return sum(parts.values()), parts


for score in (2, 4):
    total, parts = shared_bytes(8, score)
    fit = 228 * 1024 // (total + 1024)
    print(f"S0 and dT of {score} bytes: {total:,} bytes; blocks that fit: {fit}")
for what, count in shared_bytes(8)[1].items():
    print(f"  {count:7,} {what}")

# %% [markdown]
# And what does it cost in accuracy? Rounding changes each of the two factors by at most 2⁻⁸ of its size (lesson 16), so a tap is off by at most about 2⁻⁷ · Σ |dT · S0|. **Predict** whether the real error comes near this bound. `___`

# %% tags=["uses-exercise"]
s, g = torch.randn(134, 70).double(), torch.randn(128, 64).double()
right = tap_gradient(s, g, 7, 7)
rounded = tap_gradient(s.bfloat16().double(), g.bfloat16().double(), 7, 7)
bound = 2**-7 * tap_gradient(s.abs(), g.abs(), 7, 7)
share = ((rounded - right).abs() / bound).max().item()
print("below the bound:", share <= 1, "  below a thirtieth of it:", share <= 1 / 30)

# %% [markdown]
# Roundings go up and down alike, and thousands of them nearly cancel. On the GPU the errors of all four gradients were at most 1.06 times those of PyTorch eager in bfloat16, from 17 queries on (`docs/log/2026-11.md`, 2026-11-22).
#
# ## 5. How many fit (optional, 15 minutes)
#
# While a warp waits for its `mma`, its barrier or its `ldmatrix`, the multiprocessor runs another warp, if there is one. Two blocks on a multiprocessor have barriers of their own: when one stands still, the other goes on. But both need registers. From lesson 08, of an H200's multiprocessor:
#
# - 65,536 registers in four quarters of 16,384. A warp takes all of its registers from one quarter: 32 times a thread's, rounded up to a multiple of 8. A thread has 255 at most;
# - 2048 threads, counted in whole warps, and 32 blocks;
# - 228 KiB (233,472 bytes) of shared memory; each block takes its own and 1,024 bytes more.
#
# What a thread wants beyond its limit, the compiler **spills**: it stores it to memory and loads it again.
#
# ### Exercise 18.4 · most_registers · about six lines
#
# You tell Numba the limit: `cuda.jit(max_registers=...)`. Return the largest number of registers a thread may have so that `blocks` blocks of `threads` threads fit one multiprocessor, each with `shared_bytes` of shared memory: a multiple of 8, or 255. If they do not fit, whatever the registers, return 0.
#
# <details><summary>Hint 1: quarters</summary>
#
# All warps together, divided by 4 and rounded *up*, are in the fullest quarter. They share 16,384 registers, 32 lanes each.
#
# </details>
# <details><summary>Hint 2: 255 and 256</summary>
#
# `min(255, …)` at the end: 255 is rounded up to 256, which is what is taken.
#
# </details>


# %% tags=["exercise"]
def most_registers(blocks, threads, shared_bytes):
    """The most registers a thread may have for so many blocks to fit, or 0."""
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
# For the kernel of dQ and dW, blocks of 8 warps and of 4:

# %% tags=["uses-exercise"]
for warps in (8, 4):
    needs = shared_bytes(warps)[0]
    for blocks in (1, 2, 3, 4, 5):
        limit = most_registers(blocks, 32 * warps, needs)
        if limit:
            shape = f"blocks of {warps} warps, {blocks} on an SM"
            print(f"{shape}: {limit} registers per thread")

# %% [markdown]
# Now the kernels were compiled with several limits, and timed. **Predict** before you look, for blocks of 8 warps: which is fastest, no limit, 128, or 80? `___` What will 80 registers bring, by your function? `___` Blocks of 4 warps own 52 of 64 rows, where 8 warps own 116 of 128, so they make 12 % more scores: how much slower would you expect them? `___`

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
    title=f"4, 16, 2048, 64; bytes a thread spilled, bytes a block, blocks on a "
    f"multiprocessor as the driver says; {record['gpu']}, recorded {record['date']}",
)

# %% [markdown]
# - **128 wins**: two blocks instead of one, 1.28 and 1.11 times as fast, though 40 and 64 bytes a thread are spilled for it.
# - **80 brings nothing**: registers would allow three blocks, shared memory allows two. So all that comes is more spilling, and it is as slow as no limit, or slower. Your function had said 0 for three.
# - **4 warps**: three blocks fit with 168 registers as with 128, so 128 only spills. With 168 they make 12 % more scores and yet are only 3 to 4 % slower: at a barrier, a warp waits for three others, not for seven.
#
# (The bytes of shared memory are those that `shared_bytes` gave, to the last one, and the driver's blocks are those of `most_registers`.)
#
# ### The tries that failed
#
# Such kernels are found by trying. This is the list of the tries for this one, from the project's log (`docs/log/2026-11.md`, 2026-11-22; one H200, milliseconds, for 1, 8, 4096, 64 and 4, 16, 2048, 64). The first form took **1.26 and 1.79**. A first estimate had taken the bytes of shared memory for the limit: 0.9 ms for the second shape. So most tries save such bytes.
#
# **Predict** for each whether it was faster or slower. `___`
#
# | | try | expected |
# |---|---|---|
# | a | 4 warps of 32 rows, 255 registers: each reads K, V, … half as often | 1.3 times faster |
# | b | rows in strips, as in the forward kernel: a matrix of S0 is read once for all row shifts, half of a convolution's reads | 1.3 times faster |
# | c | a and b | faster still |
# | d | no barrier C for dK and dV; the sums of dW in two chains, as a sum waits for the one before it | 5 % |
# | e | d, and a longer ring, which saves barrier C in the other kernel too; its places wrap by a comparison instead of a mask | 5 % |
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
# Bytes of shared memory were not the limit: half of the reads saved nothing. **Waiting** was. Fewer barriers and shorter chains of `mma` gained most where a multiprocessor has one block (11 × 11 taps: 13.3 to 11.2 ms, d = 128: 13.6 to 10.7). In e the wrapping cost more than the barrier: a mask is one instruction, and is done for every address.
#
# </details>
#
# ## 6. One token
#
# Now decoding. Lesson 14 says what it waits for: K and V have to be read, once. In bfloat16 that is 4 bytes for each key and number of d. A copy on this GPU moved so many bytes per second:

# %%
rate = record["bandwidth"]
print(f"{rate / 1e12:.2f} TB/s")
for shape in caches:
    batch, heads, n, d = shape
    read = 2 * 2 * batch * heads * n * d
    print(f"cache {shape}: {read / 1e6:6.1f} MB, {1e6 * read / rate:6.1f} µs")

# %% [markdown]
# **Predict** the arithmetic. A tensor core takes 16 rows. The window has 7 queries: 9 rows of 16 are zeros. In `O` there is *one* row. Multiply-adds for each key, with d = 64 and 7 × 7 taps: by need, (7 + 1) · 64 + 49 = `___`; with 16 rows in both products, and the convolution as bands of 16 in each of 4 warps, 2 · 16 · 64 + 4 · 7 · 16 = `___`. Will it matter? (790 · 10¹² operations a second, two to a multiply-add.)

# %%
d, c_q, c_k, warps = 64, 7, 7, 4
by_need = (c_q + 1) * d + c_q * c_k
with_rows = 2 * 16 * d + warps * c_q * 16  # every warp convolves all keys of a tile
print(f"by need {by_need}, on tensor cores {with_rows} multiply-adds a key")
for shape in caches:
    batch, heads, n, _ = shape
    work = 2 * batch * heads * n * with_rows / 790e12
    floor = 2 * 2 * batch * heads * n * d / rate
    print(
        f"cache {shape}: bytes {1e6 * floor:6.1f} µs, arithmetic {1e6 * work:5.1f} µs"
    )

# %% [markdown]
# Four times too much work, and it does not matter: the bytes take ten times as long. What counts instead is *instructions*. Number by number, each key's 561 multiply-adds need as many instructions of lanes, and the numbers have to be converted to float32 first.
#
# ## 7. Scores that overlap
#
# The convolution is the odd one. A token has one row of `T`, T[j] = Σ_ab w[a, b] · S0[a, j + b]. (As before, S0's columns begin P_k before T's.) Lesson 17's bands want 16 rows at a time. Rows of what?
#
# Of *keys*. 128 keys are 16 rows of 8: row m has the keys 8m to 8m + 7. For the row a of the window, row m of the left operand is what these eight keys read: the 16 scores S0[a, 8m : 8m + 16]. The right operand is lesson 17's band, B[x, y] = w[a, x − y] where 0 ≤ x − y < c_k, else 0. Then row m of the product is T of eight keys.
#
# On paper, with 8 made 2 and 16 made 4: two keys a row, taps (1, 3), S0 = 1, 2, 0, 1, 4, 0, … **Predict** the rows 0 and 1 of the left operand, four numbers each: `___` What do they have in common? `___` And T of the keys 0 and 1: `___`
#
# <details><summary>Answer</summary>
#
# (1, 2, 0, 1) and (0, 1, 4, 0). The right half of each row is the left half of the next. So this matrix need not exist in memory: its rows may **overlap**, and no score is stored twice. `ldmatrix` asks where each row begins, and no more.
#
# T of the keys 0 and 1 is 1·1 + 3·2 = 7 and 1·2 + 3·0 = 2.
#
# </details>
#
# ### Exercise 18.5 · convolve · about eight lines
#
# `t`, a local array of four: this lane's numbers of the product, summed over the rows a of the window. `t[e]` is T of key 8 (g + 8 (e // 2)) + 2t + e % 2, as C has them. What was in `t` before is of no use.
#
# - `scores`: int16, bfloat16's bits, in shared memory. `scores[a]` has the row a of the window, 136 columns and more; what lies behind is not yours;
# - `bands`, a local array: `bands[2a]` and `bands[2a + 1]` are b0 and b1 of row a's band, as lesson 17's loader leaves them. c_q is `bands.shape[0] // 2`.
#
# One `ldmatrix_x4` (rows this time, no transposing) and one `mma_bf16` for each row a. One warp does all of it, and needs no barrier; the block may have several warps, each with scores of its own.
#
# <details><summary>Hint 1: the address</summary>
#
# Matrix r has the rows 0 to 7 of the left operand, or 8 to 15 if r is odd; its columns 0 to 7, or 8 to 15 for r = 2 and 3. So lane 8r + i has row m = `lane & 15`, and the half `lane >> 4`.
#
# </details>
# <details><summary>Hint 2: in numbers</summary>
#
# Row m begins at column 8m of `scores[a]`; its second half at 8m + 8.
#
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def convolve(t, scores, bands):
    """t (4 of a lane) = T of 128 keys: row m of C is T of the keys 8m ... 8m + 7."""
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
# The left operand, drawn from your run: for each of its 16 rows, the columns of `scores` that your `ldmatrix` reads, by which lane. Every column but the first and the last eight is read twice, by two lanes. **Predict**: is that a bank conflict? `___` (Below the picture, `sim` has counted.)


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
    """The 16 bytes that each lane reads of row 0 of scores, by rows of the operand."""
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
turns, fewest = (
    sum(line[what] for line in counted) for what in ("wavefronts", "fewest_wavefronts")
)
print(
    f"turns of ldmatrix: {turns}; the fewest possible for 3 times 512 bytes: {fewest}"
)

# %% [markdown]
# No conflict. `ldmatrix` reads its four matrices one after the other, a wavefront each: the rows that lanes 0–7 point to, then those of lanes 8–15, 16–23 and 24–31. The two lanes that read the same column are 15 apart, so they belong to different wavefronts. And the eight rows of one wavefront are 128 neighbouring bytes, one word for each bank.
#
# **And P V?** The lane holds weights of the keys 8g + 2t and the next one, and of the same 64 keys further on. It wants them as the left operand of the product with V, without moving them. Look at the map of A: row g, columns 2t and 2t + 1. So let row m of the operand hold the weights of the keys 8m … 8m + 7, and zeros in the columns of all other keys. That is what the lane has. The product's rows are then *parts* of one sum, and adding up 16 rows, once at the end, gives `O`. Fifteen of sixteen numbers in that operand are zeros. By section 6, they cost no time.
#
# ## 8. Blocks, and the time to start them
#
# The keys of a head are split among blocks, as in lesson 14. Here a block is 4 warps and takes 128 keys at a time, and its registers and shared memory let so many fit a multiprocessor:

# %%
decoder = record["decoder"]
print(
    f"{decoder['registers']} registers, {decoder['shared_bytes']:,} bytes: "
    f"{decoder['blocks']} blocks of {decoder['threads']} threads"
)
places = 132 * decoder["blocks"]
print(f"on 132 multiprocessors: {places} places")

# %% [markdown]
# **Predict**, for the cache 1, 8, 16384, 64 with its 8 heads: how many splits fill the places once? `___` For 8, 16, 16384, 64, with 128 heads? `___` Measured, each in a CUDA graph:

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
# 264 places: 33 splits for 8 heads, 2 for 128. The best of those tried were 32 and 2. (With one split for 128 heads half of the places stand empty; a line that rises again pays for halo, windows and merging.)
#
# A short cache is far from its floor, and no number of splits helps: two kernels have to start, one after the other, and each block has to wait for its first keys. That is time, not bytes.
#
# **Predict**: how much longer does a token take if Python launches both kernels each time, instead of a CUDA graph that was recorded once? (A launch costs Python about 33 µs: lesson 07.) `___`

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
# With a short cache Python takes 14 times as long as the GPU: two launches, and before them checks of arguments and room for results. A graph has all that done, once. (It can be recorded because no decision hangs on a number in a tensor.) With the largest cache it is the same either way: while the GPU reads 537 MB, Python launches the next token's kernels.
#
# float32 has twice the bytes, and takes 1.6 to 1.9 times as long. And the convolution costs: 1.2 to 1.6 times the time of `scaled_dot_product_attention`, which has no window, no taps and no halo.
#
# ## Validate
#
# Each stage against one that you know: lesson 13's and 14's functions by way of the float64 reference that validated them. Tolerances of 16-bit results are relative to the largest number: 2⁻⁷ is two units in the last place.


# %% tags=["uses-exercise"]
def near(got, wanted, tolerance):
    """Whether no number is off by more than the tolerance, of the largest."""
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
    ["stage", "against, in float64", "tolerance", ""],
    *(
        [*stage, f"{pair[2]:.0e}", "✓" if near(*pair) else "✗"]
        for stage, pair in stages.items()
    ),
)

# %% [markdown]
# ## What the next limit is
#
# An H200's tensor cores have a peak of 989 TFLOP/s in bfloat16. A library's matrix product reaches about 790 of them, and that is the measure here. **Predict**: which fraction of 790 TFLOP/s does the backward pass use, halos and masked scores not counted? `___` And that of `scaled_dot_product_attention`? `___` (Multiply-adds per score: 3d + 3 · 112 in the kernel of dQ and dW, 4d + 2 · 112 in that of dK and dV; without convolution 5d.)

# %%
d, band = 64, 7 * 16
adds = {"kernels": 3 * d + 3 * band + 4 * d + 2 * band, "sdpa": 5 * d}
for shape in dict.fromkeys(shape for shape, _ in backward_ms):
    batch, heads, n, _ = shape
    scores = batch * heads * n * (n + 1) / 2
    for name, each in adds.items():
        least = 1e3 * scores * 2 * each / 790e12
        share = least / backward_ms[shape, name]
        print(f"{str(shape)[1:-1]:15} {NAMES[name]:15} {each:5} a score: {share:.0%}")
short = token[caches[0], "kernels"]
rates = [1e6 / (32 * short[what]) for what in ("us", "us_from_python")]
print("32 layers, 4096 tokens in the cache, attention alone, tokens a second:")
print(f"  {rates[0]:,.0f} in a graph, {rates[1]:,.0f} launched from Python")

# %% [markdown]
# The convolution makes three times the work of plain attention's backward pass. Where the rest of the time goes was not measured. One likely reason: the three phases of a step need each other's rows, so there are three barriers a step, and only 16 warps on a multiprocessor to work during the waits. Another one: `mma.sync` by itself reaches about two thirds of the peak on Hopper. Libraries go further with two newer instructions. `wgmma` multiplies operands that are still in shared memory, and the Tensor Memory Accelerator (TMA) copies whole tiles while all warps compute. Numba has no name for these instructions; `kernels/tensor_cores/instructions.py` shows how an instruction gets one (lesson 16).
#
# A token in bfloat16 is at 1.35 times its floor where the cache is long. Where it is short, what is left to save is a kernel: the merge could be done by the block that comes last.
#
# ## In three lines
# - A gradient of taps is the diagonals of a product of windows; more than half of it is thrown away, and it is still the fast way.
# - Registers and shared memory decide how many blocks there are to fill each other's waits; an estimate of bytes can be right and not be what the kernel waits for. So predict, measure, and keep what failed.
# - A token costs the bytes of K and V. Arithmetic (nine idle rows, fifteen zeros of sixteen) is free as long as it hides behind them; starting kernels does not hide.
#
# **You can now** give a tensor core work that has no shape for it, and say beforehand what a kernel should take.
#
# **Next:** [lesson 19](19_heads.ipynb) builds the whole multi-token layer, in which heads mix.
