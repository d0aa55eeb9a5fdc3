# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 18b · Fast decoding: a token at the speed of memory
#
# **55 minutes** · builds on lesson 14 (decoding), lesson 17b (bands of taps) and lesson 18 (registers against blocks)
#
# You will be able to
#
# 1. give a lower bound on the time per token;
# 2. fill sixteen rows of a tensor core when there is only one;
# 3. say when launching a kernel takes longer than running it, and what a CUDA graph saves.
#
# Decoding has only one query. A tensor core multiplies 16 × 16 matrices. Is it of any use here? The table shows the time of one token, on one GPU, in bfloat16, with 7 × 7 taps. "No convolution" is `scaled_dot_product_attention`:

# %%
import json

import matplotlib.pyplot as plt
import numpy as np
import torch
from ml_dtypes import bfloat16
from numba import cuda
from numpy import float32, int16, uint32

from course import check, guess, show_figure, show_table
from course.figures import BLUE, GREEN, ORANGE, RED
from kernels import conv_attention_decode, reference
from kernels.common.data import DATA
from kernels.tensor_cores.instructions import ldmatrix_x4, mma_bf16
from kernels.tensor_cores.tiles import tap_loader
from sim import simulate
from sim.observers import Banks, DEFAULT, Trace

record = json.loads((DATA / "lesson18.json").read_text("utf-8"))
rng = np.random.default_rng(18)
token = {(tuple(r["shape"]), r["name"]): r for r in record["decoding"]}
caches = list(dict.fromkeys(shape for shape, _ in token))
show_table(
    ["cache: B, H, N, d", "these kernels", "no convolution"],
    *(
        [
            str(shape)[1:-1],
            *(f"{token[shape, n]['us']:.1f}" for n in ("kernels", "sdpa")),
        ]
        for shape in caches
    ),
    title="one token, microseconds, in a CUDA graph; "
    f"{record['gpu']}, recorded {record['date']}",
)

# %% [markdown]
# You need no GPU: `sim` runs `mma` and `ldmatrix`, and the times in this lesson are recorded.
#
# ## 1. One token
#
# From lesson 14 you know the limit of decoding: a token must read K and V once. In bfloat16 that is 4 bytes per key per head-dimension element (2 for K, 2 for V). A copy on this GPU reached this bandwidth, which gives a lower bound on the time:

# %%
rate = record["bandwidth"]
print(f"{rate / 1e12:.2f} TB/s")
for shape in caches:
    batch, heads, n, d = shape
    read = 2 * 2 * batch * heads * n * d
    print(f"cache {shape}: {read / 1e6:6.1f} MB, {1e6 * read / rate:6.1f} µs")

# %% [markdown]
# **Predict** the arithmetic. A tensor core takes 16 rows. The window has 7 queries, so 9 of 16 rows are zeros. `O` has only *one* row. Count the multiply-adds per key for d = 64 and 7 × 7 taps. What is required: (7 + 1) · 64 + 49 = `___`. What the padded products do, with 16 rows in both products and the convolution as bands of 16 in each of 4 warps: 2 · 16 · 64 + 4 · 7 · 16 = `___`. Will the extra work matter (yes or no)? `___` (`mma.sync` reaches at most 642 TFLOP/s, about 65 % of the peak. A multiply-add is two operations.)

# %% tags=["guess"]
guess("18b arithmetic", required=..., padded=..., matters=...)

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
# ## 2. Scores that overlap
#
# The convolution does not fit so easily. A token has only one row of `T`: T[j] = Σ_ab w[a, b] · S0[a, j + b]. (As before, S0's columns begin P_k before T's.) Lesson 17b's bands need 16 rows at a time. Which rows could you use?
#
# Use rows of *keys*. 128 keys form 16 rows of 8: row m has keys 8m to 8m + 7. For row a of the window, row m of the left operand has the scores that these eight keys need: S0[a, 8m : 8m + 16]. The right operand is lesson 17b's band: B[x, y] = w[a, x − y] if 0 ≤ x − y < c_k, else 0. Then row m of the product is T of eight keys.
#
# Try it on paper, with 2 instead of 8 and 4 instead of 16: two keys per row, taps (1, 3), S0 = 1, 2, 0, 1, 4, 0, … **Predict** row 0 of the left operand, four numbers: `___` And row 1: `___` What do they have in common? And T of keys 0 and 1: `___`

# %% tags=["guess"]
guess("18b overlapping rows", row_0=..., row_1=..., T=...)

# %% [markdown]
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
# - `bands` is a local array: `bands[2a]` and `bands[2a + 1]` are b0 and b1 of row a's band, as in lesson 17b. c_q is `bands.shape[0] // 2`.
#
# Use one `ldmatrix_x4` (without transposing) and one `mma_bf16` for each row a, even if all its taps or scores are 0. One warp does all the work, without a barrier. The block may have several warps, each with its own scores.
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

# %% tags=["guess"]
guess("18b bank conflict", conflict=...)

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
        axes.text(first + 4, row, lane, ha="center", va="center", fontsize=9)
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
# **And P V?** Each lane holds the weights of keys 8g + 2t and 8g + 2t + 1, and of the two keys 64 further on. It must hold them as the left operand of the product with V, and no weight should move to another lane. Look at the layout of A: row g, columns 2t and 2t + 1. So let row m of the operand hold the weights of keys 8m … 8m + 7, with zeros in the columns of all other keys. That is exactly what the lane has. The product's rows are then *parts* of one sum, and adding the 16 rows, once at the end, gives `O`. Fifteen of sixteen entries of that operand are zeros. As section 1 showed, they cost no time.
#
# ## 3. Blocks, and the time to start them
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

# %% tags=["guess"]
guess("18b splits", heads_8=..., heads_128=...)

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
    print(f"{best * batch * heads:4} blocks; ", end="")
    print(f"package: {row['us'] / floor:.2f} times the lower bound")
axes.set(
    xlabel="splits per head", ylabel="time / lower bound", xscale="log", yscale="log"
)
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
# **Predict**: with the shortest cache, how many times as long does a token take if Python launches both kernels each time, instead of replaying a CUDA graph that was captured once? (A launch costs Python about 28 µs: lesson 07b.) `___`

# %% tags=["guess"]
guess("18b launches", times=...)

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
        "lower bound",
        "graph",
        "from Python",
        "float32, graph",
        "no convolution, graph",
    ],
    *rows,
    title=f"one token, µs; {record['gpu']}, recorded {record['date']}",
)

# %% [markdown]
# With a short cache, launching from Python takes 14 times as long as replaying the graph: Python launches two kernels, and before that it checks the arguments and allocates the results. A graph does all of this only once. (The launches can be captured because no control flow on the host depends on values of tensors.) With the largest cache there is hardly a difference: while the GPU reads 537 MB, Python launches the next token's kernels.
#
# In float32 there are twice as many bytes, and a token takes 1.6 to 1.9 times as long. The convolution is not free either: these kernels take 1.2 to 1.6 times as long as `scaled_dot_product_attention`, which has no window, no taps and no halo.
#
# ## Validate
#
# Compare the package's decoder with the last row of the whole forward pass, in float64. The tolerance is relative to the largest entry: 2⁻⁷, which is two roundings of at most 2⁻⁸ each.

# %%
torch.manual_seed(18)
q, k, v = torch.randn(3, 1, 1, 44, 16).bfloat16()
w = (torch.randn(1, 3, 3) / 3).bfloat16().float()
exact = [x.double() for x in (q, k, v, w)]
row = conv_attention_decode(q[:, :, -3:], k, v, w)
last = reference.conv_attention(*exact)[:, :, -1:]
near = bool((row.double() - last).abs().max() <= 2**-7 * last.abs().max())
print("the package's token, in sim, is the last row within 2⁻⁷:", near)

# %% [markdown]
# ## What is the next limit?
#
# How many tokens per second is that, for the attention of a model with 32 layers? **Predict**, for the shortest cache, in a graph `___` and launched from Python `___`.

# %% tags=["guess"]
guess("18b tokens per second", in_a_graph=..., from_Python=...)

# %%
short = token[caches[0], "kernels"]
rates = [1e6 / (32 * short[what]) for what in ("us", "us_from_python")]
print("32 layers, 4096 tokens in the cache, attention alone, tokens per second:")
print(f"  {rates[0]:,.0f} in a graph, {rates[1]:,.0f} launched from Python")

# %% [markdown]
# With a long cache, a token in bfloat16 takes 1.35 times its lower bound. With a short cache, one kernel launch could still be saved: the last block to finish could do the merge.
#
# ## In three lines
#
# - A token has to read K and V. That takes a known time, and no kernel can be faster.
# - Arithmetic (nine idle rows, fifteen zeros of sixteen) is free while it overlaps with these reads. With a short cache, starting the kernels takes longer than the reads.
# - Rows of a matrix may overlap in memory, because `ldmatrix` needs only the address of each row.
#
# **You can now** estimate beforehand how long a token takes, and tell which part of the rest is latency.
#
# **Read on:** Tri Dao, Daniel Haziza, Francisco Massa and Grigory Sizov, *Flash-Decoding for long-context inference* (2023, PyTorch blog) · NVIDIA, *CUDA C++ Programming Guide*, section "CUDA Graphs" · the [glossary](../docs/glossary.md) of this course.
#
# **Next:** [lesson 18c](18c_hopper.ipynb) uses the newer instructions of Hopper GPUs.
