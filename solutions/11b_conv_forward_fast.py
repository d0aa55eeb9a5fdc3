# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 11b · The convolutional kernel: three bugs, and the same, fast
#
# **75 minutes** · builds on lesson 11 (your kernel) and lesson 08b (occupancy, the limits of a GPU)
#
# After this lesson you will be able to
#
# 1. tell a mistake that a tool finds by itself from one that only a comparison shows;
# 2. say why the package's kernel is faster than yours, and count by how much;
# 3. run a kernel on long sequences without a GPU.
#
# Your kernel of lesson 11 is correct. Here you first run it on a sequence for which an interpreter would take
# too long. Then you look at three ways in which such a kernel goes wrong. The last part asks
# how the same algorithm becomes fast, and how far the package's kernel is from the limits of an H200.
#
# You don't need a GPU. The next cell loads your functions of lesson 11. If you have not solved one of
# them, or not saved it, the cell loads the solution's version instead.

# %%
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
from course import brought, show_figure
from course.figures import BLUE, SKY
from kernels import reference
from kernels.common import strips
from kernels.common.launch import simulated
from kernels.common.tiles import MINUS_INFINITY
from kernels.conv import forward as conv_forward, tiles as conv_tiles
from kernels.conv.forward import conv_forward_kernel
from kernels.reference import conv_tiled
from kernels.reference.tiled import Traffic
from sim import native, simulate
from sim.observers import COUNTERS, DEFAULT

# %% jupyter={"source_hidden": true}
torch.manual_seed(11)
RECORDED = json.loads(
    (Path(kernels.__file__).parent / "data" / "bench.json").read_text("utf-8")
)
reports = []
(
    load_rows,
    score,
    convolve,
    row_max,
    row_sum,
    absorb,
    add_values,
    my_forward,
    whole,
) = brought(
    "11_conv_forward",
    "load_rows",
    "score",
    "convolve",
    "row_max",
    "row_sum",
    "absorb",
    "add_values",
    "my_forward",
    "whole",
)

# %% [markdown]
# ## 1. Long sequences, without a GPU
#
# Forty tokens are few, and yet the simulator needs seconds, because Python runs each thread. For long launches,
# `sim` has the engine `native`. It splits your kernel at the points where threads wait, turns each part into a
# **loop over the threads of a block**, and lets Numba compile everything for your CPU. (`simulate` uses it by
# itself: it begins each launch with `fibers`, and compiles the kernel if the launch turns out to be long. Here
# you select the engine yourself.) This is a small kernel and the code it becomes:


# %%
@cuda.jit
def neighbours(x, out):
    """Compute out[t] = x[t] + x[t + 1], around a ring of 32."""
    tile = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    cuda.syncthreads()
    out[t] = tile[t] + tile[(t + 1) % 32]


ring, sums = torch.arange(32.0), torch.empty(32)
text = native.source(neighbours, ring, sums)
print(text[text.index("@translated") : text.index("@kernel")].rstrip())

# %% [markdown]
# **Predict.** The barrier is gone. What replaces it? (And why may a loop process the threads in order?)
#
# <details><summary>Answer</summary>
#
# The first loop has finished, for all threads, before the second begins. Between two barriers, threads may
# run in any order, so one after the other is as good as any. That is what a barrier is for. If the order did
# matter, it would be a race. The engine looks for races like the other engines do: if it finds one, it runs
# the launch again, slowly, and reports the line.
# </details>
#
# Now your kernel with 400 tokens: millions of multiply-adds (the cell counts them), for which the
# interpreting engines would take the better part of a minute. (The first launch compiles, which takes some
# seconds. The result is kept on your disk.)


# %%
def compiled(*launched):
    """Run a launch compiled for the CPU, and keep its report."""
    reports.append(simulated(*launched, engine="native"))


q, k, v, w = *torch.randn(3, 400, 16), torch.randn(6, 11) / 8
found, _ = my_forward(q, k, v, w, size=16, run=compiled)
exact = whole(reference.conv_attention, *(x.double() for x in (q, k, v, w)))
# a tile of 16 × 16 owns 11 × 6
visited = sum(-(-min(400, (block + 1) * 11) // 6) for block in range(-(-400 // 11)))
print(
    "multiply-adds: "
    f"about {(visited * 16 * 16 * 2 * 16 + 400 * 401 / 2 * 6 * 11) / 1e6:.0f} million"
)
print(
    "engine:",
    reports[-1].engine,
    "· how:",
    *reports[-1].notes,
    "· findings:",
    len(reports[-1].findings),
)
print(
    "400 tokens, largest difference from float64 below 1e-5:",
    bool((found - exact).abs().max() <= 1e-5),
)

# %% [markdown]
# ## 2. Three bug hunts
#
# The kernel has a middle: the part from the complete S0 to the new o. In the next cells, only this middle
# changes. `with_middle` puts it into a kernel like yours that loads the tiles, computes S0 and stores the
# results. `p_tile` is one more tile in shared memory, for the versions that use it.


# %%
def with_middle(middle):
    """Return the kernel for 8 × 8 tiles with this middle: middle(s_tile, p_tile,
    v_tile, w, i0, j0, n, m, l, o) -> (m, l, o), from the complete S0 to the new o."""

    def kernel(q, k, v, w, scale, out, log_sum):
        q_tile = cuda.shared.array((8, 8), float32)
        k_tile = cuda.shared.array((8, 8), float32)
        v_tile = cuda.shared.array((8, 8), float32)
        s_tile = cuda.shared.array((8, 8), float32)
        p_tile = cuda.shared.array((8, 8), float32)
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        n, d = q.shape
        c_q, c_k = w.shape
        rows, columns = 8 - (c_q - 1), 8 - (c_k - 1)
        i0 = cuda.blockIdx.x * rows
        m, l, o = MINUS_INFINITY, float32(0), float32(0)
        load_rows(q_tile, q, i0 - (c_q - 1))
        for j0 in range(0, min(n, i0 + rows), columns):
            load_rows(k_tile, k, j0 - (c_k - 1) // 2)
            load_rows(v_tile, v, j0)
            cuda.syncthreads()
            s_tile[y, x] = score(q_tile, k_tile, w, i0, j0, scale)
            cuda.syncthreads()
            m, l, o = middle(s_tile, p_tile, v_tile, w, i0, j0, n, m, l, o)
            cuda.syncthreads()
        if y < rows and i0 + y < n:
            if x < d:
                out[i0 + y, x] = o / l
            if x == 0:
                log_sum[i0 + y] = m + math.log(l)

    return kernel


# %%
def try_middle(middle, tokens, taps=(3, 3), seeds=10):
    """Launch the kernel with different orders of the threads. For each number of
    tokens, print how often the output was correct, and the findings of `sim`.
    Return the last report."""
    for n in tokens:
        q, k, v = torch.randn(3, n, 4)
        w = torch.randn(taps) / math.sqrt(math.prod(taps))
        wanted, _ = conv_tiled.forward(
            q.double(), k.double(), v.double(), w.double(), (8, 8), Traffic()
        )
        right, kinds = 0, set()
        for seed in range(seeds):
            out, log_sum = torch.full((n, 4), math.nan), torch.full((n,), math.nan)
            grid = -(-n // (8 - taps[0] + 1))
            report = simulate(with_middle(middle), seed=seed, on_finding="report")[
                grid, (8, 8)
            ](q, k, v, w, float32(0.5), out, log_sum)
            right += bool((out - wanted).abs().max() <= 1e-5)
            kinds |= {finding.kind for finding in report.findings}
        print(
            f"N = {n:2}: correct {right:2} of {seeds} times; "
            f"sim finds {', '.join(sorted(kinds)) or 'nothing'}"
        )
    return report


# %% [markdown]
# ### 1. Too early
#
# **Guess before you run.** `absorb` contains shuffles, and the lanes wait for each other there. So you might
# think that the barrier after it can go. Is the result correct? Does `sim` find something?


# %%
def too_early(s_tile, p_tile, v_tile, w, i0, j0, n, m, l, o):
    """Store P over S0 as soon as this thread has its p."""
    t = convolve(s_tile, w, i0, j0)
    m, l, shrink, p = absorb(t, m, l)
    s_tile[cuda.threadIdx.y, cuda.threadIdx.x] = p
    cuda.syncthreads()
    return m, l, add_values(o, shrink, s_tile, v_tile)


# %%
report = try_middle(too_early, [7, 13])
print()
print(report.errors[0].message)

# %% [markdown]
# Correct in every order that we tried, and a race in every one. In these runs, all threads happen to convolve
# before the first one stores its p. But nothing in the kernel guarantees that.
#
# <details><summary>What is wrong</summary>
#
# The block has two warps: rows 0 to 3, and rows 4 to 7. With three rows of taps, row 3 of T reads rows 4 and
# 5 of S0. The second warp replaces these with P as soon as it has computed its own, and on a GPU it may be
# ahead by any amount.
#
# And within a warp? A shuffle passes on a value, but
# it does not order memory accesses: it does not say which of the loads and stores before and after it come
# first. `cuda.syncwarp()` would, for one warp, and `cuda.syncthreads()` does, for the block.
#
# The line looks harmless because each thread writes its *own* cell. But at that moment, other threads are
# still reading it.
# </details>
#
# ### 2. Memory that no thread has written
#
# Lesson 10b mentioned CUDA code that is correct up to 26 tokens, with 7 × 7 taps and tiles of 32 × 32, and
# wrong from 27 tokens on. It reads, as probabilities, shared memory that no thread has written for this tile.
# Here is one way to get there. P has its own tile. Only the owned cells are written to it, but the sum runs
# over all loaded keys that exist, `min(8, n - j0)`.
#
# **Guess before you run.** With 3 × 3 taps and tiles of 8 × 8, what is the longest
# sequence for which it is correct? And what does it read beyond that?


# %%
def only_what_is_owned(s_tile, p_tile, v_tile, w, i0, j0, n, m, l, o):
    """Store P of the owned cells in p_tile, and sum over the loaded keys."""
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    rows, columns = 8 - (w.shape[0] - 1), 8 - (w.shape[1] - 1)
    t = convolve(s_tile, w, i0, j0)
    m, l, shrink, p = absorb(t, m, l)
    if y < rows and x < columns:
        p_tile[y, x] = p
    cuda.syncthreads()
    o *= shrink
    if y < rows:
        for j in range(min(8, n - j0)):
            o += p_tile[y, j] * v_tile[j, x]
    return m, l, o


# %%
report = try_middle(only_what_is_owned, [1, 4, 6, 7, 8, 20], seeds=3)
print()
print(report.errors[0].message)

# %% [markdown]
# A tile owns 8 − 2 = 6 columns. Up to 6 tokens there are no other columns to sum over. From 7 tokens on there
# are, and columns 6 and 7 of `p_tile` have never been written. `sim` fills fresh shared memory with NaN and
# reports the thread that reads it. On a GPU, you get whatever the last block left there, perhaps a block of
# another kernel. That can be different in each run. It can also be 0, so that everything works until one day
# it doesn't.
#
# The next version saves memory. It puts P where S0 was, as you did, with the correct barrier. The rest stays
# the same.
#
# **Guess before you run.** What will `sim` find this time?


# %%
def over_the_scores(s_tile, p_tile, v_tile, w, i0, j0, n, m, l, o):
    """Store P of the owned cells over S0, and sum over the loaded keys."""
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    rows, columns = 8 - (w.shape[0] - 1), 8 - (w.shape[1] - 1)
    t = convolve(s_tile, w, i0, j0)
    m, l, shrink, p = absorb(t, m, l)
    cuda.syncthreads()
    if y < rows and x < columns:
        s_tile[y, x] = p
    cuda.syncthreads()
    o *= shrink
    if y < rows:
        for j in range(min(8, n - j0)):
            o += s_tile[y, j] * v_tile[j, x]
    return m, l, o


# %%
report = try_middle(over_the_scores, [1, 4, 6, 7, 8, 20], seeds=3)

# %% [markdown]
# Nothing, and yet the result is wrong from 8 tokens on. Columns 6 and 7 *have* been written: they contain
# scores of this very tile, and these scores are taken for probabilities. No tool can tell that a value is out
# of date. To find such a bug, compare the output with a reference, at a length that needs more than one tile.
# (With 7 tokens the result is correct by chance: the only cells in question contain scores of future keys, and
# these are 0.) Tests that stop at 7 tokens miss it.
#
# Your kernel is safe for a simple reason: *every* thread stores its p, and the p of a cell that is not owned
# is 0.
#
# ### 3. NaN from a masked tile
#
# In lesson 10b, a tile with a row that saw none of its keys gave NaN, because the tile computed its own
# maximum. `absorb` compares with the old m first, and the old m is finite after the first tile, because every
# query sees key 0. So could `absorb` do without `weight`, and use `math.exp` alone?
#
# **Guess before you run.** The queries 4 to 11 process the keys 0 to 7 and the keys 8 to 15, once in this
# order and once in the reverse order. Where will there be NaN?


# %%
@cuda.jit(device=True)
def careless_absorb(t, m, l):
    """Fold t into the state, with plain exponentials."""
    new_m = max(m, row_max(t))
    p = math.exp(t - new_m)
    shrink = math.exp(m - new_m)
    return new_m, l * shrink + row_sum(p), shrink, p


def sums_after(absorb, t, first, second):
    """Return l of each row after two tiles of t (8, 16) that begin at these columns."""

    def two_tiles(t, l_out):
        x, y = cuda.threadIdx.x, cuda.threadIdx.y
        m, l = MINUS_INFINITY, float32(0)
        m, l, _, _ = absorb(t[y, first + x], m, l)
        m, l, _, _ = absorb(t[y, second + x], m, l)
        if x == 0:
            l_out[y] = l

    l = np.full(8, np.nan, float32)
    simulate(two_tiles)[1, (8, 8)](t, l)
    return l


# %%
query, key = np.arange(4, 12)[:, None], np.arange(16)
t = np.where(
    key > query, -np.inf, np.random.default_rng(11).standard_normal((8, 16))
).astype(float32)
for function in (absorb, careless_absorb):
    for words, first, second in [("forwards", 0, 8), ("backwards", 8, 0)]:
        print(
            f"{function.py_func.__name__:15}  {words:9}  "
            f"{int(np.isnan(sums_after(function, t, first, second)).sum())} "
            "of 8 rows are NaN"
        )

# %% [markdown]
# In the forward order it is correct, thanks to key 0. In the reverse order, the queries 4 to 7 begin with a
# tile of which they see no key: m stays −∞, and exp(−∞ − (−∞)) is NaN. If somebody reverses the loop one day,
# or splits the keys among several blocks as lesson 14 does, a kernel that passed all its tests breaks. And no
# compiler will warn you. In rows that a tile does not own, m is −∞ all the time, so the careless version
# produces NaN there in *every* launch. It just happens that nothing reads it.
#
# ## 3. The same, fast
#
# Your kernel is correct, and it is slow. `kernels/conv/forward.py` has the same phases in the same order, and
# the same buffer for S0 and P. This is its step 3, where yours has `convolve` and `absorb`:

# %%
source = inspect.getsource(conv_forward_kernel).splitlines()
begin = next(
    number for number, line in enumerate(source) if "# 3. T and then P" in line
)
end = next(number for number, line in enumerate(source) if "P may overwrite S0" in line)
print(inspect.cleandoc("\n".join(source[begin : end + 1])))

# %% [markdown]
# You recognise `weight`, `shrink`, and the shuffles among the threads of a row. (`strip` is a small array of
# the thread, which the compiler keeps in registers. `LANES` is 4, because four threads share a row.)
#
# The difference is the amount of work per thread. A thread of your kernel computes one score, so each
# multiply-add loads two values. Lesson 08b found the same problem in our matrix product. There are two
# remedies, one for products and one for convolutions.
#
# ### Patches, for QKᵀ and PV
#
# A thread computes a **patch** of 4 × 4 scores. For each column c it loads 4 values of Q and 4 of K, and it
# needs all of their 16 products.

# %%
print(inspect.getsource(conv_tiles.add_products.py_func))

# %% [markdown]
# (A *chunk* is a part of Q or K, some columns wide, in shared memory. `GROUP` is 4: the innermost loops
# process four neighbouring columns at a time, which a single 16-byte load can fetch. A row of a chunk has
# four words of padding, hence `- GROUP`; you will see why. `step` is the distance between the rows of a
# patch. `& INDEX` does not change the index: it tells the compiler that the index is never negative.)
#
# ### Strips, for the convolution
#
# A thread computes a **strip** of 8 neighbouring T. For one row of taps, it needs 8 + c_k − 1 neighbouring
# scores. It keeps them in a window of registers that moves on by four columns at a time, and it loads each
# tap once for all 8.

# %%
print(inspect.getsource(strips.convolve_strip.py_func))
print(inspect.getsource(strips.add_group.py_func))

# %% [markdown]
# (The taps are padded with zeros to a multiple of four columns. There are at most four
# such groups. The code spells out each of them, and each of a thread's two strips,
# instead of looping. Registers have no index, so the window moves on without a single
# instruction.) The next picture shows both for one thread:


# %% jupyter={"source_hidden": true}
def draw_patch_and_strip(size, c_k):
    """Draw, left, the cells of one thread's patch in a tile; right, its window of
    scores (pale) for one row of taps, and its strip (dark) above."""
    step, strip, group = size // conv_tiles.PATCH, conv_tiles.STRIP, conv_tiles.GROUP
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    patch = [step * r + 1 for r in range(conv_tiles.PATCH)]
    for i in range(size):
        for j in range(size):
            colour = BLUE if i in patch and j in patch else "white"
            left.add_patch(
                plt.Rectangle((j, i), 1, 1, facecolor=colour, edgecolor="lightgrey")
            )
    left.set(xlim=(0, size), ylim=(size, 0), aspect="equal", title="a patch of 4 × 4")
    windows = -(-c_k // group)
    for row in range(windows + 1):
        for x in range(strip + group * windows):
            start = group * (row - 1)
            read = row > 0 and start <= x < start + strip + group
            colour = BLUE if not row and x < strip else SKY if read else "white"
            right.add_patch(
                plt.Rectangle((x, row), 1, 1, facecolor=colour, edgecolor="grey")
            )
    names = ["T", *(f"taps {group * w} to {group * w + 3}" for w in range(windows))]
    right.set_yticks([row + 0.5 for row in range(windows + 1)], names)
    right.set(
        xlim=(0, strip + group * windows),
        ylim=(windows + 1, 0),
        aspect="equal",
        title="a strip of 8, and its window over the scores",
        xlabel="column, from the strip's first on",
    )
    left.tick_params(length=0)
    right.tick_params(length=0)
    return figure


show_figure(
    draw_patch_and_strip(32, 7),
    "left, a tile of 32 × 32 cells, in which the 16 cells of one thread's patch are "
    "dark: rows and columns 1, 9, 17 and 25. Right, a strip of 8 dark cells T, and "
    "below it the window of 12 scores: columns 0 to 11 for the taps 0 to 3, "
    "columns 4 to 15 for the taps 4 to 7.",
)

# %% [markdown]
# The cells of a patch are spread out, because neighbouring lanes compute the neighbouring cells.
#
# **Predict.** How many values are loaded per useful multiply-add? The last entry of the table is missing:
# what is it for one row of 7 taps?
#
# | | yours | the package's |
# |---|---|---|
# | QKᵀ, one column c | 2 values for 1 | 8 values for 16 |
# | convolution, 7 taps in a row | 14 values for 7 | ? |
#
# <details><summary>Answer</summary>
#
# The window begins with 8 scores and gets 4 more, twice: 16. With 8 taps (one of them 0), these are 24 values
# for 8 · 7 = 56 useful multiply-adds. That is 0.43 instead of 2, and 0.5 instead of 2 for the products.
# </details>
#
# ### Counted
#
# Let the simulator count. With 58 tokens, d = 16 and 7 × 7 taps, a tile of 64 × 64 owns 58 × 58, exactly the
# whole matrix. Your tiles of 16 × 16 own 10 × 10. (The package processes chunks of 32 columns of Q and K.
# With d = 16, half of each chunk is zeros, so this count is unfair to its QKᵀ.)
#
# **Predict.** You launch six blocks, and block b visits b + 1 tiles. How many scores do you compute, and how
# many does the package? (58 · 59 / 2 = 1711 are needed.)


# %%
def counted(*launched):
    """Run a launch with all counters, and keep its report."""
    reports.append(
        simulated(*launched, engine="fibers", observers=[*DEFAULT, *COUNTERS])
    )


def wavefronts_in(report, *functions):
    """Return the number of wavefronts of these functions, and their worst bank
    conflict."""
    lines = [
        counts
        for (name, _), counts in report.counters["lines"].items()
        if name in functions
    ]
    return sum(counts.get("wavefronts", 0) for counts in lines), max(
        (counts.get("ways", 0) for counts in lines), default=0
    )


# %%
q, k, v = torch.randn(3, 58, 16)
w = torch.randn(7, 7) / 7
mine, _ = my_forward(q, k, v, w, size=16, run=counted)
theirs, _ = conv_forward.conv_forward(
    q[None, None], k[None, None], v[None, None], w[None], run=counted
)
yours, package = reports[-2:]
print("same output:", bool((mine - theirs[0, 0]).abs().max() <= 1e-5))
print(
    "scores computed:", sum(block + 1 for block in range(6)) * 16 * 16, "and", 64 * 64
)
print()
print(f"{'wavefronts':24}  {'yours':>8}  {'package':>8}")
pairs = {
    "QKᵀ": ("score", "add_products"),
    "convolution": ("convolve", "convolve_strip", "add_group"),
    "PV": ("add_values", "add_weighted_rows", "add_weighted"),
}
for name, (one, *others) in pairs.items():
    counts = wavefronts_in(yours, one)[0], wavefronts_in(package, *others)[0]
    print(f"{name:24}  {counts[0]:8}  {counts[1]:8}")
print(
    f"{'in total':24}  {yours.counters['banks']['wavefronts']:8}  "
    f"{package.counters['banks']['wavefronts']:8}"
)
print(
    f"{'worst conflict, QKᵀ':24}  {wavefronts_in(yours, 'score')[1]:6}-way  "
    f"{wavefronts_in(package, 'add_products')[1]:6}-way"
)
print(
    f"{'sectors, global memory':24}  {yours.counters['coalescing']['sectors']:8}  "
    f"{package.counters['coalescing']['sectors']:8}"
)

# %% [markdown]
# There are three differences.
#
# - **Fewer wavefronts.** In the convolution, yours takes 5145 [wavefronts](../docs/glossary.md) and the
#   package's takes 2016. You load 1 value per multiply-add from shared memory (your taps come from global
#   memory: see the last point), and the package loads 0.43. The rest is halo. In QKᵀ, the difference is too
#   large for that.
# - **Bank conflicts.** In `score`, lane x reads `k_tile[x, c]`: a column of a tile whose rows have 16 words.
#   That is the bank conflict of lesson 08. The package gives each row of its chunks of Q and K 36 words
#   instead of 32, and each row of its tile of scores 64 + 9 = 73 words. (Its worst conflict anywhere is
#   2-way, in two kinds of stores that happen once per tile or once per chunk.)
# - **Sectors.** You load each tap from global memory for each multiply-add. All lanes want the same tap, so
#   it takes one sector per request, and most of these are in the cache. But each is still a request. The
#   package keeps the taps in shared memory.
#
# **Predict.** Why 73? In `convolve_strip`, the 32 lanes of a warp are 8 rows of 4 lanes. Lane l reads row l
# // 4, starting at column 8 · (l % 4). How many wavefronts does that take with rows of 64, 65, 72 and 73
# words?


# %%
def wavefronts(words):
    """Return the number of wavefronts of one request for these words: the number of
    words in the busiest of the 32 banks."""
    banks = [word % 32 for word in set(words)]
    return max(banks.count(bank) for bank in banks)


for pitch in (64, 65, 72, 73):
    print(
        f"strips, rows of {pitch} words: "
        f"{wavefronts([lane // 4 * pitch + lane % 4 * 8 for lane in range(32)])}"
        " wavefronts"
    )
for pitch in (32, 36):
    print(
        f"patches, rows of {pitch} words: "
        f"{wavefronts([lane // 4 * pitch for lane in range(32)])} wavefronts"
    )

# %% [markdown]
# Any odd width will do, as in lesson 08. So why not 65? Because a strip may reach beyond the tile. Its taps
# come in groups of four, and the window is filled one group ahead. In the worst case this takes 8 more
# columns, which must exist and contain zeros: 72. But 72 takes 8 wavefronts. The ninth column makes the width
# odd.
#
# Two more tricks don't show up in a counter. The tiles of rows are handed out **last tile first**: under a
# causal mask, the last one has the most work, and the GPU should not end with it. And each thread is limited
# to 128 registers, so that two blocks fit on a multiprocessor (lesson 08b: 16384 / (128 · 32) = 4 warps in
# each partition, 16 in total, 2 blocks of 8).
#
# ## 4. What it takes on a GPU
#
# These times are recorded, in float32 with causal attention, with 7 × 7 taps, and 6 × 11 taps in the last
# row. They are for the package's kernel, plain PyTorch as in lesson 09 (*eager*), the same through
# `torch.compile`, and PyTorch's own attention, *which does not convolve at all* and so has less to do.

# %% jupyter={"source_hidden": true}
NAMES = {
    "kernels": "the package",
    "eager": "eager",
    "compile": "torch.compile",
    "sdpa": "no convolution",
}


def recorded_by_shape(quantity):
    """Return {(B, H, N, d): {name: value}} from the record."""
    found = {}
    for row in RECORDED["training"]:
        found.setdefault(tuple(row["shape"]), {})[row["name"]] = row[quantity]
    return found


forward_ms = recorded_by_shape("forward_ms")
print(
    "milliseconds, forward; "
    f"recorded {RECORDED['date']} on one {RECORDED['gpu']}, torch {RECORDED['torch']}\n"
)
print(f"{'B, H, N, d':18}" + "".join(f"{name:>16}" for name in NAMES.values()))
for shape, times in forward_ms.items():
    print(
        f"{', '.join(map(str, shape)):18}"
        + "".join(f"{times[name]:16.3f}" for name in NAMES)
    )
print()
for name in ("eager", "compile"):
    slower = [times[name] / times["kernels"] for times in forward_ms.values()]
    print(
        f"{NAMES[name]} takes {min(slower):.1f} to {max(slower):.1f} times as long "
        "as the package's kernel"
    )

# %% [markdown]
# For 512 tokens, `torch.compile` is close to the kernel. PyTorch's scores, 8 MiB, then fit into the GPU's L2
# cache of 50 MB. And the kernel is ahead only because the package splits the keys of each tile of rows among
# several blocks: 9 tiles of rows for each of 8 heads are only 72 blocks, and the GPU has 132 multiprocessors.
#
# For longer sequences the gap grows. It grows least for `torch.compile`, which merges most of the steps
# between the two products. The last row is an exception: there, the compiled version is the slowest of all.
# We have not examined which kernel the compiler chose for that shape.
#
# The scores have to be somewhere: at 4096 tokens they take 512 MiB. The kernel never stores them. The next
# cell shows the peak memory of each (forward and backward together; the backward kernels are the subject of
# lesson 13).

# %% jupyter={"source_hidden": true}
print(
    f"peak memory in MiB\n{'B, H, N, d':18}"
    + "".join(f"{name:>16}" for name in NAMES.values())
)
for shape, peaks in recorded_by_shape("peak_mib").items():
    print(
        f"{', '.join(map(str, shape)):18}"
        + "".join(f"{peaks[name]:16.0f}" for name in NAMES)
    )
shape, peaks = (1, 8, 4096, 64), recorded_by_shape("peak_mib")[1, 8, 4096, 64]
of_q = math.prod(shape) * 4 / 2**20
print(
    f"\n{shape}: Q takes {of_q:.0f} MiB; no convolution − the package: "
    f"{peaks['sdpa'] - peaks['kernels']:.0f} MiB"
)

# %% [markdown]
# PyTorch's own attention stores no scores either, and yet its peak is above the kernel's. The difference is
# the size of two tensors like Q. We have not examined which tensors these are.
#
# How far is the kernel from the limit of the GPU? Count multiply-adds: for each score that a query sees, d
# for QKᵀ, c_q · c_k for the convolution, and d for PV. Each counts as two operations, and lesson 08b's H200
# performs 66.9 · 10¹² operations per second in float32.
#
# **Predict.** For B = 1, H = 8, N = 4096, d = 64 and 7 × 7 taps, how many milliseconds does it take at least?

# %%
batch, heads, n, d = 1, 8, 4096, 64
measured = forward_ms[batch, heads, n, d]["kernels"]
multiply_adds = batch * heads * n * (n + 1) / 2 * (d + 7 * 7 + d)
least = 2 * multiply_adds / 66.9e12 * 1000
print(
    f"{2 * multiply_adds / 1e9:.1f} billion operations: at least {least:.2f} ms; "
    f"measured {measured:.2f} ms, {measured / least:.1f} times as long"
)

# %% [markdown]
# (This count leaves out the halo: with 7 × 7 taps, a tile of 64 × 64 computes 64² / 58² = 1.2 times as many
# scores as it owns. It also leaves out the exponentials, and the upper half of the tiles on the diagonal.)
# And shared memory? Each multiply-add loads half a value, and a multiprocessor serves one wavefront, at best
# 32 values, per cycle (lesson 08b):

# %%
fewest = 64**2 / 58**2 * multiply_adds / 2 / 32
print(
    f"wavefronts: at least {1000 * fewest / (132 * 1.98e9):.1f} ms "
    f"of the measured {measured:.2f} ms"
)

# %% [markdown]
# So shared memory explains one part of the time and arithmetic another, and the two may overlap. These counts
# do not show where the rest goes: barriers, exponentials, or one warp waiting for another. The tensor cores
# of part 5 multiply more than ten times as fast, if you can make a convolution look like a matrix product.
#
# ## In three lines
#
# - `sim` finds memory that no thread has written, but only a comparison beyond one tile
# finds memory that is out of date.
# - The fast kernel is the same as yours, except that it uses each value it
# loads many times: patches for products, strips for convolutions, and rows padded for the banks.
# - A count gives a lower bound of the time, and the distance to it tells you what is left to explain.
#
# **You can now** say what a kernel waits for, and which of its loads another one would save.
#
# **Read on:** Volkov, *Better Performance at Lower Occupancy* (GTC 2010), on threads that each compute several
# outputs. Williams, Waterman, Patterson, *Roofline* (Communications of the ACM, 2009).
#
# **Next:** [lesson 12](12_conv_gradients.ipynb) goes all the way back, by hand: the gradients of
# convolutional attention.
