# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 10b · A published algorithm, taken apart
#
# **45 minutes** · builds on lesson 10 (tiles with a halo, your `forward`) and lesson 04 (races)
#
# After this lesson you will be able to
#
# 1. name five mistakes in a published algorithm, and say which of them a comparison of outputs can find;
# 2. write a test with two tokens that finds three of them.
#
# In lesson 10 you cut convolutional attention into tiles. Others have published such an algorithm. Their text
# contains mistakes that look like details, and the tests published with it miss all of them. Here you find
# them one at a time. It is good practice for reading any algorithm, and for testing your own.
#
# You don't need a GPU. The reference in this lesson is your own `forward` from lesson 10, if your copy of
# lesson 10 is solved and saved.

# %%
import inspect
import math

import numpy as np
import torch
from numba import cuda
from numpy import float32

from course import brought, check, show_figure
from course.check import lesson10b
from course.pictures import draw_cells
from kernels import reference
from kernels.reference.conv_tiled import halo_of, owned
from kernels.reference.tiled import State, Traffic, update
from sim import simulate

torch.manual_seed(10)
torch.set_default_dtype(torch.float64)
forward = brought("10_overlapping_tiles", "forward")

# %% [markdown]
# ## The algorithm as it was published
#
# The published pseudocode whose first fault you met in lesson 09b calls the forward pass of lesson 10 "Algorithm 1".
# It has the halo, and the correct tile sizes (for odd `c_k`). But anyone who implements it line by line finds
# five faults. In outline:
#
# | | step of Algorithm 1 |
# |---|---|
# | 1 | `O = 0`, `l = 1` and `m = −∞`; `O` is in global memory |
# | 2 | for each tile of rows, in parallel, and for each tile of keys, all of them: load `Q`, `K`, `V`, each with its halo |
# | 3 | scores of the whole tile, convolution of the whole tile, "causal masking" |
# | 4 | of the whole tile: its maximum m̃, its exponentials P̃ = exp(T − m̃), their sum l̃ |
# | 5 | new m = max(m, m̃), α = exp(m − new m), β = exp(m̃ − new m), l = α·l + β·l̃ |
# | 6 | read `O` of all loaded rows, `O` = α·O + β·P̃·V, write the owned rows back |
# | 7 | at the end: `O` / l; write `m` and `l` |
#
# **Guess before you go on.** Which of the steps would you object to? Take a minute. Three faults give wrong
# values. One gives correct values and is still wrong. And one is harmless, for a reason that you should know.
#
# To try them one at a time, `course/check/lesson10b.py` has a loop like yours that takes the update step as an
# argument. The next cell shows the correct one. In it, `tile.s0` are the loaded scores after the first mask,
# and `tile.s` the scores before it. `inside` is the convolution where the taps fit, and `hide` is a mask.
# `tile.v` are the values with the halo, and `tile.v_owned` the values without it.

# %%
print(inspect.getsource(lesson10b.faultless))

# %% [markdown]
# **1. No zero mask** (step 3). You know this one from lesson 09b:

# %%
print(inspect.getsource(lesson10b.no_zero_mask))

# %% [markdown]
# **2. The halo is counted** (steps 2, 4 and 6). `V` is loaded with its halo, and the sums run over the whole
# tile:

# %%
print(inspect.getsource(lesson10b.halo_counted))
tiles = [[int(j0 - 1 <= key < j0 + 6) for key in range(12)] for j0 in (0, 4, 8)]
show_figure(
    draw_cells(
        range(12),
        [(f"tile {number}", counted) for number, counted in enumerate(tiles)]
        + [("in total", [sum(counts) for counts in zip(*tiles)])],
    ),
    "a row of 12 keys for each of three tiles, 1 where the tile counts the key. The "
    "tiles own the keys 0 to 3, 4 to 7 and 8 to 11, and each counts one more to the "
    "left and two more to the right. In total, the keys 3, 4, 5, 7, 8 and 9 are "
    "counted twice, the others once.",
)

# %% [markdown]
# The picture shows how often a query that sees all 12 keys then counts each key, if a tile owns 4 columns and
# the taps have 4 columns. The softmax divides by the sum of *all* the counts, so the keys near an edge get
# too much weight.

# %% [markdown]
# **3. The tile's own maximum** (steps 4 and 5):

# %%
print(inspect.getsource(lesson10b.tile_maximum))

# %% [markdown]
# The formulas of the third one are those of the merge in lesson 01. To find the faults, compare the outputs,
# with your own `forward` as the reference.
#
# **Guess before you run.** Each of the five tests below is given by its tokens, its taps and its tile. Which
# of the three faults does each of them find?
#
# | test | no zero mask | halo counted | tile's maximum |
# |---|---|---|---|
# | 16 tokens, 7 × 7 taps, 32 × 32 loaded | | | |
# | 26 tokens, 7 × 7 taps, 32 × 32 loaded | | | |
# | 27 tokens, 7 × 7 taps, 32 × 32 loaded | | | |
# | 64 tokens, 3 × 3 taps, 16 × 16 loaded | | | |
# | 20 tokens, 3 × 5 taps, 16 × 16 loaded | | | |


# %%
def verdict(got, wanted):
    """Return the result of a comparison in one word."""
    difference = (got - wanted).abs().max().item()
    return (
        "NaN" if math.isnan(difference) else "same" if difference <= 1e-9 else "WRONG"
    )


print(
    f"{'test':34}", "".join(f"{name:16}" for name in ["faultless", *lesson10b.FAULTY])
)
for n, c_q, c_k, size in [
    (16, 7, 7, 32),
    (26, 7, 7, 32),
    (27, 7, 7, 32),
    (64, 3, 3, 16),
    (20, 3, 5, 16),
]:
    q, k, v = torch.randn(3, n, 8)
    w = torch.randn(c_q, c_k) / math.sqrt(c_q * c_k)
    wanted, _ = forward(q, k, v, w, (size, size), Traffic())
    ways = [lesson10b.faultless, *lesson10b.FAULTY.values()]
    words = [
        verdict(lesson10b.in_tiles(way, q, k, v, w, (size, size)), wanted)
        for way in ways
    ]
    print(
        f"{f'{n} tokens, {c_q} × {c_k}, {size} × {size} loaded':34}",
        "".join(f"{word:16}" for word in words),
    )

# %% [markdown]
# <details><summary>1. What does the zero mask do here?</summary>
#
# The same as in lesson 09b: without it, future scores are added to entries that count. Tiles make no
# difference to that, so every test with more than one tap finds it. (With identity taps, none would.)
# </details>
#
# <details><summary>2. Where does 26 come from?</summary>
#
# A tile that loads 32 columns, with 7 columns of taps, owns 32 − 6 = 26. Up to 26 tokens there is one tile of
# keys, and its halo contains only keys that do not exist. From 27 tokens on, the halo contains key 26, which
# the next tile counts again. And it is counted with a wrong score, because its neighbours beyond the edge of
# the tile are missing.
#
# CUDA code was published together with this algorithm, with 32 columns per tile. We ran it on an H200 with 7
# × 7 taps in bfloat16. Up to 26 tokens it is correct within bfloat16's rounding (2.4 decimal digits). For
# every longer length we tried, the error exceeds the values themselves. (The cause there is different, a read
# of uninitialised shared memory, but the threshold is the same.) Its own tests stop at 16 tokens.
# </details>
#
# <details><summary>3. Where does NaN come from, and why not in the other tests?</summary>
#
# NaN comes from a row that sees no key of a tile while other rows of the same tile see some. With 3 × 5 taps, a tile owns 14
# rows and 12 columns. The second tile of keys begins at key 12. Query 13 sees it, so the tile is visited.
# Query 5 sees none of its keys: all its `T` are −∞, its m̃ is −∞, and exp(−∞ − (−∞)) is NaN. Then β = exp(−∞
# − m) = 0, but 0 · NaN is NaN, and a NaN in the state stays there.
#
# With square taps and square tiles, the tile owns as many rows as columns. On the diagonal, every row then
# sees at least the first key, and our loop does not go above the diagonal. So the fault is there, but it
# cannot be seen. (Step 2 of Algorithm 1 goes through *all* tiles of keys. There, every row that does not
# reach the last key tile becomes NaN.)
#
# The fix is one line. `weight(score, maximum)` of `kernels/reference/tiled.py` is exp(score − maximum), but 0
# where the score is −∞. Another fix is to take the maximum with the old `m` *before* the exponentials, as
# your `update` of lesson 02 did. Then `m` is finite after the first tile of keys, because every query sees
# key 0. But that works only while each row's first tile contains key 0.
# </details>

# %% [markdown]
# ### Exercise 10.4 · two_tests · two lines
#
# A test is `(tokens, c_q, c_k, rows loaded, columns loaded)`, five whole numbers. The check runs it with
# random inputs. Give two tests:
#
# - `sharp`: a test with at most **3** tokens that finds all three faults;
# - `blind`: a test with at least **16** tokens and at least 3 × 3 taps that still finds
#   only **one** of the faults.
#
# Large tests are not better than small ones. Remember what a tile owns: rows loaded − P_q, and columns loaded
# − P_k − P_r.
#
# <details><summary>Hint 1: two tiles of keys with two tokens</summary>
#
# Let a tile own one column. Then it loads 1 + P_k + P_r columns.
# </details>
#
# <details><summary>Hint 2: a row that sees nothing</summary>
#
# Let a tile own two rows, 0 and 1. Let key 1 be in a tile of its own. Query 0 does not see it, but query 1
# does.
# </details>
#
# <details><summary>Hint 3: a future score that matters</summary>
#
# Row 0 of the output is correct in any case, because it has only one key. In row 1, the future can come in
# through the row above: with two rows of taps, `T[1, 1]` depends on the score of query 0 and key 1.
# </details>


# %% tags=["exercise"]
def two_tests():
    """Return (sharp, blind), each (tokens, c_q, c_k, rows loaded, columns loaded)."""
    # BEGIN SOLUTION 10.4
    sharp = (2, 2, 2, 3, 2)
    blind = (16, 7, 7, 32, 32)
    return sharp, blind
    # END SOLUTION


# %% tags=["check"]
check.ex10_4(two_tests)

# %% [markdown]
# ## Fault 4: `O` in global memory
#
# Step 6 gives correct values. To study it, let's take away everything else: one number per row instead of d,
# no rescaling, and `p_v[tile, r]` for the amount that a tile of keys adds to row r. There is one thread for
# each *loaded* row. A block owns all of its rows except the first `above`, which are its halo.


# %%
def o_in_memory(p_v, o, above):
    """Add p_v[tile, r] of all tiles to o[r], which starts as 0. p_v: (tiles, rows).
    A block's first `above` threads are its halo rows."""
    owned_rows = cuda.blockDim.x - above
    r = cuda.blockIdx.x * owned_rows - above + cuda.threadIdx.x
    for tile in range(p_v.shape[0]):
        if 0 <= r < o.size:
            total = o[r] + p_v[tile, r]  # all loaded rows are read
            if cuda.threadIdx.x >= above:
                o[r] = total  # the owned rows are written


# %% [markdown]
# **Guess before you run.** We launch three blocks of six threads, with two rows of halo and ten rows in
# total, and try twenty seeds for the order of the threads. What happens?
#
# - ( ) always correct, and `sim` finds nothing
# - ( ) always correct, and `sim` finds something
# - ( ) sometimes wrong

# %%
p_v = np.arange(30, dtype=float32).reshape(3, 10)


def try_with_seeds(kernel):
    """Launch the kernel twenty times. Print how often the sums were correct, and
    the findings of the first launch."""
    reports, correct = [], 0
    for seed in range(20):
        o = np.zeros(10, dtype=float32)
        reports.append(
            simulate(kernel, seed=seed, on_finding="report")[3, 6](p_v, o, 2)
        )
        correct += np.array_equal(o, p_v.sum(axis=0))
    print(
        f"correct {correct} of 20 times, "
        f"a finding {sum(bool(report.findings) for report in reports)} of 20 times"
    )
    for finding in reports[0].findings:
        print(finding.message)


try_with_seeds(o_in_memory)

# %% [markdown]
# Always correct, and always a [**data race**](../docs/glossary.md). Row 2 is the first row of the halo of
# block 1, and block 0 owns it. While block 0 writes `o[2]`, block 1 reads it, adds something, and throws the
# sum away. Nothing uses that sum, so it does no harm.
#
# Is it a mistake then? Yes, for three reasons:
#
# - It depends on a single `if`. Forget it, and both blocks add to the row. Nothing in the algorithm would
#   tell you.
# - A data race is undefined behaviour; the compiler may assume that there is none.
# - It is slow. `O` is read and written once for **every** tile of keys.
#
# **Predict.** N = 4096, d = 64, 7 × 7 taps, tiles that load 64 × 64 scores, all tiles visited. `K` and `V`
# are read once for each tile of rows. `O` is read and written once for each tile of keys. How do the two
# compare?

# %%
n, d, load = 4096, 64, 64
rows, columns = owned((load, load), halo_of(torch.empty(7, 7)))
for_k_and_v = math.ceil(n / rows) * n * d * (load / columns + 1)
for_o = math.ceil(n / columns) * n * d * (load / rows + 1)
print(
    f"tiles that own {rows} × {columns}: "
    f"K and V {for_k_and_v / 1e6:.0f} million elements, O {for_o / 1e6:.0f} million"
)

# %% [markdown]
# `O` costs as much again. (That holds if a tile is square, and we have not subtracted the halo rows outside
# the sequence.) The fix is the one you wrote: the state of the owned rows stays on the chip, no thread needs
# the `O` of a halo row, and each row is written once.


# %%
def o_on_chip(p_v, o, above):
    """Add p_v[tile, r] of all tiles to o[r]. Each thread keeps its sum in a register;
    threads of halo rows keep none."""
    owned_rows = cuda.blockDim.x - above
    r = cuda.blockIdx.x * owned_rows - above + cuda.threadIdx.x
    if cuda.threadIdx.x >= above and r < o.size:
        total = float32(0)
        for tile in range(p_v.shape[0]):
            total += p_v[tile, r]
        o[r] = total


try_with_seeds(o_on_chip)

# %% [markdown]
# ## Fault 5: `l` starts at 1
#
# Nothing has been read yet, but the sum is already 1. **Guess before you run:** how wrong is the output?

# %%
scores, values = torch.randn(4, 6), torch.randn(6, 3)
wanted = torch.softmax(scores, dim=1) @ values


for m_start, l_start in [(-math.inf, 0.0), (-math.inf, 1.0), (0.0, 0.0), (0.0, 1.0)]:
    start = State(
        torch.full((4, 1), m_start), torch.full((4, 1), l_start), torch.zeros(4, 3)
    )
    m, l, o = update(start, scores, values)
    print(
        f"m starts at {m_start:4}, l at {l_start:.0f}: ",
        "correct" if torch.allclose(o / l, wanted) else "WRONG",
    )

# %% [markdown]
# Not at all. At the first key, `l` is multiplied by exp(−∞ − m) = 0, whatever it was. So no comparison of
# outputs will ever find this one; you can only find it by reading. It becomes a real mistake as soon as `m`
# starts at another value, as it does in the published kernel that lesson 05b repairs. (With `l = 0`, a start at `m = 0`
# happens to work as long as no scores are far below 0. That was lesson 05b's bug.) If other people will change
# your code, make each line correct by itself, not because another line rescues it.
#
# ### And `m` and `l`, or `L`?
#
# Step 7 writes two numbers per row, `m` and `l`, and its array for `l` is called `L`. The backward pass of
# the same text reads one array, also called `L`, but takes it to be m + log l. Let's compute the
# probabilities with each, and add up each row:

# %%
q, k, v = torch.randn(3, 20, 8)
w = torch.randn(3, 5) / 4
_, L = forward(q, k, v, w, (8, 8), Traffic())
t = reference.conv_scores(q[None, None], k[None, None], w[None])[0, 0]
m = t.amax(dim=1)
l = torch.exp(t - m[:, None]).sum(dim=1)
ones = torch.ones(20)
print(
    "exp(T - L) with L = m + log l: each row adds up to 1:",
    torch.allclose(torch.exp(t - L[:, None]).sum(dim=1), ones),
)
print(
    "exp(T - l):                    each row adds up to 1:",
    torch.allclose(torch.exp(t - l[:, None]).sum(dim=1), ones),
)

# %% [markdown]
# One number per row is enough: exp(T − L) = exp(T − m) / l. A name that means two things in one text is a bug
# waiting to happen.
#
# **What you found:** three faults that give wrong values, and two tokens in two tiles reveal all of them; a
# race whose results happen to be correct, visible only to a tool that tracks every access; and a wrong start
# value that another line corrects.
#
# ## In three lines
#
# - Each element may be counted by one tile only. A halo that is counted, a mask that is missing and a maximum
#   of the wrong tile give wrong values, and two tokens in two tiles reveal all three.
# - A race can give correct values every time. Only a tool that tracks each access sees it.
# - A line that is wrong but harmless today is one change away from being wrong and harmful.
#
# **You can now** read a tiled algorithm for its mistakes, and build the smallest test that shows them.
#
# **Read on:** lesson 04b's list of bugs on a real GPU; Dao, *FlashAttention-2* (2023, arXiv:2307.08691), section 3, for a
# published algorithm of the same shape that keeps `m`, `l` and `O` of the owned rows on the chip.
#
# **Next:** [lesson 11](11_conv_forward.ipynb) gives each tile to a block of threads.
