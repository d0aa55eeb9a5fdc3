# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 14 · Decoding: one token at a time
#
# **100 minutes**, including 5 for the part marked *optional* · builds on lesson 01 (the merge), lesson 09
# (the two masks), lesson 10 (halos, `load_rows`) and lessons 03 and 04 (a kernel in `sim`)
#
# After this lesson you will be able to
#
# 1. say what a new token costs, with a cache and without, and why the cost is the time to read memory;
# 2. compute its row of convolutional attention from a window of queries, divided among many blocks, each with
#    its halo;
# 3. write a test that finds four published mistakes, and the kernel that merges the blocks' results.
#
# So far, all queries were there from the start. A language model that *writes* has one new token at a time.
# It computes the token's row of the output, chooses the next token from it, and goes on. This is called
# [**decoding**](../docs/glossary.md). Only one row is computed; what it needs from the past is kept in a
# cache.
#
# You don't need a GPU: where we show times, they were recorded on an H200. First the result: the attention of
# a model with 32 layers (without its other parts), in tokens per second.

# %%
import inspect
import json
import math

import matplotlib.pyplot as plt
import torch
from numba import cuda
from numpy import float32
from torch.nn.functional import conv2d, pad

from course import check, progress_bar, show_figure, show_table
from course.check import lesson14
from course.figures import BLUE, GREEN, ORANGE, RED, SKY
from kernels import ConvAttention, KVCache, conv_attention_decode, reference
from kernels.common.data import DATA
from kernels.bench.timing import least_us
from kernels.reference.conv_tiled import load_rows
from kernels.common.launch import RUNNERS
from kernels.common.splits import choose_splits, merge_splits_kernel
from kernels.reference.tiled import Traffic
from kernels.common.tiles import MINUS_INFINITY, weight
from sim import simulate

torch.manual_seed(14)
device = "cuda" if torch.cuda.is_available() else "cpu"


# %%
table = json.loads((DATA / "bench.json").read_text(encoding="utf-8"))
times = {(tuple(row["shape"]), row["name"]): row["us"] for row in table["decoding"]}


def tokens_per_second(n, name, layers=32):
    """Return the tokens per second of this many layers of convolutional attention,
    8 heads of d = 64, with n tokens in the cache."""
    return 1e6 / (layers * times[(1, 8, n, 64), name])


print(f"recorded on an {table['gpu']}, {table['date']}; 65,536 tokens in the cache")
print(
    "this lesson's kernels  "
    f"{tokens_per_second(65536, 'kernels'):5.0f} tokens per second"
)
print(
    f"plain PyTorch          {tokens_per_second(65536, 'eager'):5.0f} tokens per second"
)

# %% [markdown]
# ## 1. What does a new token change?
#
# **Predict.** There are eight tokens, and their rows of the output are known. Now a ninth token arrives.
# Which of the eight rows change? Which of the eight keys and values change?

# %%
q, k, v = torch.randn(3, 1, 1, 9, 4, dtype=torch.float64)
w = torch.randn(1, 3, 4, dtype=torch.float64)
before = reference.conv_attention(q[:, :, :8], k[:, :, :8], v[:, :, :8], w)
after = reference.conv_attention(q, k, v, w)
print(
    "rows that a ninth token changes:",
    [i for i in range(8) if not torch.allclose(before[0, 0, i], after[0, 0, i])],
)

# %% [markdown]
# None. With the causal masks of lesson 09, no row sees anything that comes later, and the convolution reaches
# only up, to older queries. So the old rows of `O` need not be recomputed. Nor do the old keys and values:
# each is computed from its own row of the layer's input. In the first layer that row depends only on the
# token itself; in a deeper layer it is the same row of the layer before, which does not change either.
#
# A decoder without a cache computes the whole N×N matrix for each token. How many scores is that, on and
# below the diagonal, to write 1000 tokens? And how many are there if only the last c_q queries are multiplied
# with all keys?
#
# **Predict** the ratio of the two, for c_q = 7. Is it about 50, about 500, or about 5000?


# %%
def scores_needed(tokens, c_q):
    """Return the number of scores to write this many tokens, one by one, with the
    whole forward pass each time and with the last c_q queries only."""
    whole = sum(n * (n + 1) // 2 for n in range(1, tokens + 1))
    window = sum(min(c_q, n) * n for n in range(1, tokens + 1))
    return whole, window


for tokens in (100, 1000, 100_000):
    whole, window = scores_needed(tokens, c_q=7)
    print(
        f"{tokens:7,} tokens: {whole:19,} scores from scratch, "
        f"{window:15,} with a window, a ratio of {whole / window:,.0f}"
    )

# %% [markdown]
# To do so, you must keep the [**KV cache**](../docs/glossary.md): the keys and values of all tokens so far.
# Here you also keep the last c_q queries. You don't keep the scores, `T` or `O`.
#
# ## 2. Why the last c_q queries?
#
# An ordinary attention layer needs only the newest query. Here, the new row of `T` depends on the scores of
# c_q queries. The picture shows 10 tokens and 3 × 4 taps. The red box marks the scores that the taps read for
# one entry of `T`. (The cell only draws: run it, you don't need to read it.)


# %% jupyter={"source_hidden": true}
def cell(axes, column, row, colour, text=""):
    axes.add_patch(
        plt.Rectangle(
            (column, row), 0.94, 0.94, facecolor=colour, edgecolor="grey", linewidth=0.5
        )
    )
    axes.text(column + 0.47, row + 0.5, text, ha="center", va="center", fontsize=11)


def draw_window(n, c_q):
    """Draw the scores of n tokens with the window marked, and the last row of T."""
    figure, axes = plt.subplots(figsize=(7, 7.4))
    for i in range(n):
        for j in range(n):
            window = i >= n - c_q
            cell(
                axes,
                j,
                i,
                SKY
                if window and j <= i
                else "white"
                if window or j > i
                else "lightgrey",
                "0" if window and j > i else "",
            )
        axes.text(-0.3, i + 0.5, f"query {i}", ha="right", va="center")
        axes.text(i + 0.47, -0.4, i, ha="center")
        cell(axes, i, n + 0.8, ORANGE)
    taps, made = (4, n - c_q, 4, c_q), (5, n + 0.8, 1, 1)  # for key 5: keys 4 to 7
    for left, top, width, height in (taps, made):
        axes.add_patch(
            plt.Rectangle(
                (left - 0.05, top - 0.05),
                width + 0.04,
                height + 0.04,
                fill=False,
                edgecolor=RED,
                linewidth=3,
            )
        )
    axes.text(-0.3, -0.4, "key", ha="right")
    axes.text(-0.3, n + 1.3, f"T of query {n - 1}", ha="right", va="center")
    axes.set(xlim=(-2.8, n), ylim=(n + 1.9, -1))
    axes.set_aspect("equal")
    axes.axis("off")
    return figure


show_figure(
    draw_window(10, 3),
    "a matrix of scores, ten queries by ten keys. The rows of the queries 0 to 6 are "
    "grey up to the diagonal: scores of earlier tokens, not needed. "
    "The rows of the queries 7, 8 and 9 are blue up to the diagonal: the window. "
    "To the right of these there is a 0 at query 7 under the keys 8 and 9, "
    "and at query 8 under key 9. Below the matrix lies the row T of query 9, "
    "ten orange cells, made of the blue rows. A red box of three rows and four columns "
    "stands around the blue cells of the keys 4 to 7: "
    "the taps, where they make T of key 5, which has a red border too.",
)

# %% [markdown]
# Look at the zeros. The new query, 9, sees every key in the cache. But query 8 is also in the window, and for
# *it*, key 9 is in the future. For query 7, two keys are. **Each row of the window masks the keys after its
# own position, with zero, before the convolution.** This is the triangle of lesson 09, of which only the last
# corner is left. And the mask with −∞, after the convolution? The last row has no key to hide.
#
# ### On paper
#
# Take five tokens, c_q = 2 and c_k = 3, so P_k = 1 and P_r = 1. These are the scores of the window, already
# divided by √d, and the taps:
#
# | | key 0 | key 1 | key 2 | key 3 | key 4 | | taps | | | |
# |---|---|---|---|---|---|---|---|---|---|---|
# | query 3 | 2 | 1 | 0 | 4 | 5 | | older query | 0 | 0 | 1 |
# | query 4 | 1 | 3 | 2 | 0 | 1 | | newest query | 0 | 1 | 0 |
#
# With these taps, a key's `T` is its own score with the newest query, plus the score of the key to its right
# with the query before.
#
# **Predict** the five values of `T`. Which of them would be different without the mask?


# %%
def later(rows, columns, query, key):
    """Return a (rows, columns) mask, True where a key comes after its query.
    The first row is query number `query`, the first column key number `key`."""
    return torch.arange(columns) + key > torch.arange(rows)[:, None] + query


small = torch.tensor([[2.0, 1, 0, 4, 5], [1, 3, 2, 0, 1]])
taps = torch.tensor([[0.0, 0, 1], [0, 1, 0]])
for name, s0 in {
    "masked": small.masked_fill(later(2, 5, 3, 0), 0.0),
    "not masked": small,
}.items():
    print(
        f"{name:10}  T =",
        *conv2d(pad(s0, (1, 1))[None, None], taps[None, None]).flatten().int().tolist(),
    )

# %% [markdown]
# T[3] is 0. Without the mask it would be 5, from query 3's score with key 4, which query 3 must not see. The
# largest T is 6, so key 3 would get a large weight in place of almost none.
#
# At the start of a sequence, the window is shorter. With one token there is one query. In general there are
# R = min(c_q, N). The rows that are missing are the ones *above*: queries before the first token, whose
# scores are zeros as in lesson 09.
#
# ### Exercise 14.1 · window_scores · about five lines
#
# Write `window_scores(q_window, k, w)`. It returns the last row of `T`, a tensor of shape (N,), for one head.
#
# - `q_window` (R, d) holds the last R = min(c_q, N) queries, the newest last. `k` is (N, d) and `w` is (c_q,
#   c_k). Don't modify them.
# - The scores are divided by √d. `later` is defined above.
# - Compute only the scores of the window, and call no function of the `kernels` package.
#
# <details><summary>Hint 1: which query is row r?</summary>
#
# The last row is query N − 1, so the first is query N − R, and `later(R, N, N - R, 0)` is the mask.
# </details>
# <details><summary>Hint 2: zeros on three sides</summary>
#
# `pad(s0, (left, right, above, 0))` adds columns of zeros to the left and to the right, and rows of zeros
# above. You need P_k = (c_k − 1) // 2 to the left, c_k − 1 − P_k to the right, and c_q − R above.
# </details>
# <details><summary>Hint 3: the shape</summary>
#
# Then the taps fit in exactly N places, all in one row:
# `conv2d(padded[None, None], w[None, None])` has the shape (1, 1, 1, N).
# </details>


# %% tags=["exercise"]
def window_scores(q_window, k, w):
    """Return the last row of T, (N,), from the last R = min(c_q, N) queries (R, d) and
    all keys (N, d). w: (c_q, c_k)."""
    (rows, d), n, (c_q, c_k) = q_window.shape, len(k), w.shape
    # BEGIN SOLUTION 14.1
    left = (c_k - 1) // 2
    s = q_window @ k.T / math.sqrt(d)
    s0 = s.masked_fill(later(rows, n, n - rows, 0), 0.0)
    padded = pad(s0, (left, c_k - 1 - left, c_q - rows, 0))
    return conv2d(padded[None, None], w[None, None])[0, 0, 0]
    # END SOLUTION


# %% tags=["check"]
check.ex14_1(window_scores)

# %% [markdown]
# ## 3. What does it cost?
#
# Each key in the cache takes c_q · d multiply-adds for the scores, c_q · c_k for the convolution, and d for
# its row of `V`. It also takes 2 · d values of four bytes to read: its rows of `K` and `V`. With 7 × 7 taps
# and d = 64, that is 7 · 64 + 49 + 64 = 561 multiply-adds, or 1122 operations, for 512 bytes. (The kernel of
# section 9 computes eight rows instead of seven. We don't count that.)
#
# **Predict.** That is 2.2 operations per byte. In lesson 08b you saw what an H200 can do: 67 · 10¹² operations
# per second in float32, and a copy moves a little over 4 · 10¹² bytes per second. Which of the two does a
# token wait for?
#
# <details><summary>Answer</summary>
#
# Memory. While one byte arrives, the H200 could do about 16 operations, and it has 2 to do. (Ordinary
# attention has 128 multiply-adds for the same 512 bytes, half an operation per byte. So the convolution over
# seven queries takes more than four times the arithmetic. Where the cache is long, it takes little extra
# time.) Decoding is **memory-bound**: no token can be computed faster than the whole cache can be read.
# </details>
#
# How much time is that? Here it is for one layer with 8 heads, d = 64, in float32, at the copy rate recorded
# on an H200:

# %%
print(f"{table['bandwidth'] / 1e12:.1f} · 10¹² bytes per second")
print("tokens in the cache      MB   microseconds to read it")
for n in (512, 8192, 65536):
    print(
        f"{n:19,} {2 * 4 * 8 * n * 64 / 1e6:7.1f} "
        f"{least_us((1, 8, n, 64), table['bandwidth']):9.1f}"
    )

# %% [markdown]
# Each token of the past takes 4096 bytes, in each layer, each time a new token is written. (An H200 has an L2
# cache of about 50 MB, so short caches may be read faster than this.)
#
# **A question.** The scores of the window's older queries were computed when those tokens arrived. Why not
# keep them?
#
# <details><summary>Answer</summary>
#
# It would work: for each key there would be c_q − 1 more values to read, and one to write. But `K` has to be
# read anyway, for the newest query. Once a key is on the chip, six more products with it cost only
# arithmetic. Keeping the scores would spend bytes, which are scarce, to save operations, which are plentiful.
# </details>
#
# ## 4. Dividing the keys
#
# Memory reaches its full bandwidth only with many requests in flight. In the forward pass, each tile of
# queries was a block. Here there is a single query, and one block per head would be 8 blocks. An H200 has 132
# multiprocessors: 124 of them would do nothing, while 8 read the whole cache, up to 268 MB.
#
# So we divide the *keys*. Each of several blocks processes some keys of the same head, and at the end their
# results are merged. For ordinary attention this is called [**Flash-Decoding**](../docs/glossary.md), or
# **split-KV**, and each part is a split. The merge is that of lesson 01, this time between blocks. And the
# convolution reaches across the edges of the splits, as in lesson 10:
#
# > a split **owns** the keys from `start` to `end − 1`, and **loads** P_k more keys to the left and P_r more
# > to the right.
#
# The picture shows ten keys, three splits and 3 × 4 taps, so P_k = 1 and P_r = 2. Dark keys are owned, and
# pale keys are loaded but not owned. A 0 is outside the sequence. (The cell only draws.)


# %% jupyter={"source_hidden": true}
def draw_splits(n, splits, left, right):
    """Draw one row per split: the keys that it owns, and its halo."""
    figure, axes = plt.subplots(figsize=(8, 2.6))
    share = math.ceil(n / splits)
    for s in range(splits):
        start, end = s * share, min((s + 1) * share, n)
        for j in range(start - left, end + right):
            cell(
                axes,
                j,
                1.3 * s,
                ORANGE if start <= j < end else "#FBE7B9",
                "" if 0 <= j < n else "0",
            )
        axes.text(-left - 0.4, 1.3 * s + 0.5, f"split {s}", ha="right", va="center")
    for j in range(n):
        axes.text(j + 0.47, -0.3, j, ha="center")
    axes.text(-left - 0.4, -0.3, "key", ha="right")
    axes.set(xlim=(-left - 2, n + right), ylim=(1.3 * splits, -0.9))
    axes.set_aspect("equal")
    axes.axis("off")
    return figure


show_figure(
    draw_splits(10, 3, 1, 2),
    "three lines of cells over the keys 0 to 9. Split 0 owns the keys 0 to 3, dark, "
    "and has a pale 0 to the left of key 0 and the pale keys 4 and 5. "
    "Split 1 owns the keys 4 to 7 and has the pale keys 3, 8 and 9. Split 2 owns the "
    "keys 8 and 9 and has the pale key 7, and two pale zeros to the right of key 9.",
)

# %% [markdown]
# The keys are divided into equal shares, rounded up: 10 keys among 3 splits are 4, 4 and 2.
#
# **Predict.** With five keys and *four* splits, how many keys does each split own?


# %%
def owned_keys(n, splits):
    """Return (start, end) of each split, which owns the keys start to end - 1."""
    share = math.ceil(n / splits)
    return [(min(s * share, n), min((s + 1) * share, n)) for s in range(splits)]


for splits in (1, 2, 4, 7):
    print(
        f"5 keys, splits = {splits}:",
        *(
            f"{start}–{end - 1}" if start < end else "none"
            for start, end in owned_keys(5, splits)
        ),
    )

# %% [markdown]
# With four splits, a share is two keys, and nothing is left for the last split. A split without keys is
# called **empty**. That is normal: a grid often has blocks with nothing to do. So a split must be able to
# report that it has read nothing, and lesson 01 has a state for that: (−∞, 0, 0).
#
# **On paper.** Take the worked example again, with two splits: keys 0 to 2, and keys 3 to 4. What would the
# first split compute for `T[2]` if it did not load key 3?
#
# <details><summary>Answer</summary>
#
# 2 instead of 6: the 4 of query 3 and key 3 is missing. And that is the largest `T` of all.
# </details>
#
# ### Exercise 14.2 · split_state · about nine lines
#
# Write `split_state(q_window, k, v, w, start, end, traffic)`. It returns the state `(m, l, o)` of the split
# that owns the keys `start` to `end − 1`:
#
# - `m` is the largest `T` of these keys, `l` is the sum of exp(T − m), and `o`, of shape (d,), is the sum of
#   exp(T − m) · v. Don't divide.
# - An empty split has `start == end` and returns `(-math.inf, 0.0, zeros)`.
# - `k` and `v` are in global memory: `load_rows(array, first, count, traffic)` of lesson 10 is the only way
#   to read them, and it gives zeros outside the sequence. Load `K` once, with the halo, and `V` once,
#   without. (You can also use their shapes and `new_zeros`.) `q_window` and `w` are already on the chip.
#
# <details><summary>Hint 1: the keys</summary>
#
# `load_rows(k, start - left, end - start + c_k - 1, traffic)`: the owned keys and c_k − 1 more.
# </details>
# <details><summary>Hint 2: from 14.1</summary>
#
# There are two changes. Column 0 is now key `start - left`, and the mask must use that. And you don't pad at
# the sides, because those columns are loaded. You still pad the rows above.
# </details>
# <details><summary>Hint 3: the state</summary>
#
# With `t` of shape (end − start,): `m = t.max()`, `p = torch.exp(t - m)`, `l = p.sum()`, `o = p @ v_tile`.
# </details>


# %% tags=["exercise"]
def split_state(q_window, k, v, w, start, end, traffic):
    """Return (m, l, o) of the keys start to end - 1: two numbers and a tensor (d,).
    q_window: (R, d); k, v: (N, d); w: (c_q, c_k)."""
    (rows, d), n, (c_q, c_k) = q_window.shape, len(k), w.shape
    # BEGIN SOLUTION 14.2
    if start == end:
        return -math.inf, 0.0, q_window.new_zeros(d)
    left = (c_k - 1) // 2
    k_tile = load_rows(k, start - left, end - start + c_k - 1, traffic)
    v_tile = load_rows(v, start, end - start, traffic)
    s = q_window @ k_tile.T / math.sqrt(d)
    s0 = s.masked_fill(later(*s.shape, n - rows, start - left), 0.0)
    t = conv2d(pad(s0, (0, 0, c_q - rows, 0))[None, None], w[None, None])[0, 0, 0]
    p = torch.exp(t - t.max())
    return t.max(), p.sum(), p @ v_tile
    # END SOLUTION


# %% tags=["check"]
check.ex14_2(split_state)

# %% [markdown]
# Here is what your splits load, for ten keys, three splits and 3 × 4 taps:


# %% tags=["uses-exercise"] jupyter={"source_hidden": true}
class Watched(Traffic):
    """Traffic that records which rows of which array were loaded."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def load(self, array, rows):
        self.rows.append((array, range(rows.start, rows.stop)))
        return super().load(array, rows)


def draw_loads(n, splits, c_q, c_k):
    """Draw the rows of K and V that split_state loads for each split."""
    figure, axes = plt.subplots(figsize=(8, 4.2))
    q, k, v, w = (
        torch.randn(*shape) for shape in ((c_q, 4), (n, 4), (n, 4), (c_q, c_k))
    )
    for s, (start, end) in enumerate(owned_keys(n, splits)):
        traffic = Watched()
        split_state(q, k, v, w, start, end, traffic)
        for line, (name, array) in enumerate({"K": k, "V": v}.items()):
            top = 2.7 * s + 1.1 * line
            loaded = [j for known, rows in traffic.rows if known is array for j in rows]
            for j in range(n):
                owned = ORANGE if start <= j < end else "#FBE7B9"
                cell(axes, j, top, owned if j in loaded else "white")
            axes.text(-0.3, top + 0.5, f"split {s}, {name}", ha="right", va="center")
    for j in range(n):
        axes.text(j + 0.47, -0.3, j, ha="center")
    axes.set(xlim=(-2.4, n), ylim=(2.7 * splits - 0.4, -0.9))
    axes.set_aspect("equal")
    axes.axis("off")
    return figure


show_figure(
    draw_loads(10, 3, 3, 4),
    "two lines of ten cells, the keys 0 to 9, for each of three splits: one for the "
    "rows of K, one for those of V. Split 0 loads the rows 0 to 3 of V, dark since it "
    "owns them, and of K besides these the rows 4 and 5, pale. Split 1 loads the rows "
    "4 "
    "to 7 of V, and of K the rows 3, 8 and 9 besides. Split 2 loads the rows 8 and 9 "
    "of V, and of K the row 7 besides.",
)

# %% [markdown]
# Every key is dark in exactly one split. What does the halo cost? Its keys are loaded by two splits. Let's
# measure it with your function, for 4096 keys of 64 numbers and 7 × 7 taps:

# %% tags=["uses-exercise"]
q, k, v, w = (
    torch.randn(7, 64),
    torch.randn(4096, 64),
    torch.randn(4096, 64),
    torch.randn(7, 7),
)
for splits in (1, 16, 64, 512):
    traffic = Traffic()
    for start, end in owned_keys(4096, splits):
        split_state(q, k, v, w, start, end, traffic)
    print(
        f"splits = {splits:3}, each of {4096 // splits:4} keys: "
        f"they read {100 * (traffic.read / (k.numel() + v.numel()) - 1):5.1f} % "
        "more than the cache"
    )

# %% [markdown]
# Little, unless a split owns hardly more keys than its halo has. (`V` has no halo.)
#
# ## 5. How many splits?
#
# One is too few. As many as there are keys is too many: there would be more halo than work, and 65536 states
# to merge. A small model shows where the best number is. It takes two things into account:
#
# - Only a certain number of blocks can run at once; call it the number of **slots**. If there are more
#   blocks, they run in **waves**: heads · splits / slots, rounded up.
# - A block's time is its number of keys, plus a fixed **overhead** for the halo, the window and the merge,
#   which we also count in keys.
#
# **On paper.** Take 3 slots, 2 heads, 12 keys, and an overhead of 2 keys. Fill in the table. Which number of
# splits is best, and is two better than one?
#
# | splits | blocks | waves | keys per split | time = waves · (keys per split + 2) |
# |---|---|---|---|---|
# | 1 | 2 | 1 | 12 | 14 |
# | 2 | 4 | | | |
# | 3 | 6 | | | |
# | 4 | 8 | | | |


# %%
def model_time(splits, sequences, keys, slots, overhead):
    """Return the time of all waves, in keys. sequences: B · H."""
    waves = math.ceil(sequences * splits / slots)
    return waves * (math.ceil(keys / splits) + overhead)


for splits in (1, 2, 3, 4, 6, 12):
    print(
        f"splits {splits:2}: "
        f"time {model_time(splits, sequences=2, keys=12, slots=3, overhead=2)}"
    )

# %% [markdown]
# Three is best. And two is *worse* than one: four blocks on three slots need a second wave with one block in
# it, while two slots are empty. A good choice fills the last wave without letting the overhead dominate.
#
# Now the same for an H200. It has 132 multiprocessors, and each holds four blocks of the package's kernel
# (the registers limit it, as in lesson 08b), so there are 528 slots. We guess that the overhead is worth 64
# keys; the model is only a sketch.
#
# The dots show the choice of `choose_splits`, the package's rule. The two crosses are measurements: on an
# H200, with 128 heads, an earlier version of that kernel took 1.10 ms with four splits and 1.33 ms with five.
# (The model has no time unit, so we put the first cross on the line; only the second carries information.)
#
# **Predict.** With 128 heads (16 sequences of 8) and 528 slots, what is the largest
# number of splits that needs only one wave?

# %%
KEYS, COUNTS = 65536, range(1, 101)
MEASURED = {4: 1.10, 5: 1.33}  # splits: milliseconds
figure, axes = plt.subplots(figsize=(7.5, 3.8), layout="constrained")
for sequences, colour in [(128, BLUE), (32, GREEN), (8, RED)]:
    modelled = {
        splits: model_time(splits, sequences, KEYS, 528, 64) for splits in COUNTS
    }
    chosen = choose_splits(sequences, KEYS, 132)
    axes.plot(COUNTS, modelled.values(), color=colour, label=f"B · H = {sequences}")
    axes.plot(chosen, modelled[chosen], "o", color=colour, markersize=9)
    if sequences == 128:
        for splits, milliseconds in MEASURED.items():
            time = modelled[4] * milliseconds / MEASURED[4]
            axes.plot(splits, time, "x", color="black", markersize=9, mew=2)
    best = min(COUNTS, key=modelled.get)
    print(
        f"B · H = {sequences:3}: the model's best of 1 to 100 is {best} splits; the "
        f"rule takes {chosen}, {modelled[chosen] / modelled[best]:.2f} times as long"
    )
axes.set(xlabel="splits per head", ylabel="time, in keys", yscale="log", xscale="log")
axes.set_xticks([1, 2, 4, 8, 16, 33, 66, 100], [1, 2, 4, 8, 16, 33, 66, 100])
axes.set_yticks([1000, 3000, 10_000, 30_000], ["1,000", "3,000", "10,000", "30,000"])
axes.minorticks_off()
axes.legend()
show_figure(
    figure,
    "the model's time for 65536 keys over 1 to 100 splits, both axes logarithmic, "
    "a line for each of B · H = 128, 32 and 8. The lines are one as long as all "
    "blocks fit one wave, and fall: up to 4, 16 and 66 splits. With one split more a "
    "second wave begins, and the time jumps up, to fall again until the next. "
    "Later teeth are smaller, and their lowest points lie about as low as the first. "
    "The rule's dots lie near the lowest point of the first wave. "
    "Of two black crosses one stands at 4 splits on the line of B · H = 128, one at 5 "
    "splits, a fifth higher, well below the jump of that line.",
)

# %%
print(inspect.getsource(choose_splits))

# %% [markdown]
# The jump is there, but the measured jump is a fifth, where the model predicts three fifths. A likely reason:
# in the model, a block takes the same time however many run at once, but real blocks share the memory, and
# the 112 blocks of the second wave have it to themselves.
#
# The rule takes waves into account too. Of the numbers that are nearly as good as the best, it takes the
# smallest, because each split costs overhead. And it gives no split fewer than a few dozen keys. But what
# counts as "nearly", and how many are "a few"? No model tells you that; you have to measure. One effect is in
# neither: four blocks on one multiprocessor share its arithmetic units, and one computes while another waits
# for memory.
#
# ## 6. Bug hunt: a published algorithm
#
# There is a published algorithm for exactly this task. Here are its four mistakes, each alone in a decoder
# that is otherwise correct. `owned_by` is `owned_keys`, `pieces` computes `T` of a split,
# `state_of` computes its state, and `merged` merges and divides.

# %%
for faulty in (
    lesson14.no_halo,
    lesson14.unmasked_window,
    lesson14.undivided,
    lesson14.full_tiles,
):
    print(inspect.getsource(faulty))

# %% [markdown]
# (The fourth works on whole tiles, as a GPU does. Cells after the end of the cache get −∞.)
#
# **Guess before you run.** Let c_q = 3 and c_k = 4. Which test finds which mistake?
#
# | test | no_halo | unmasked_window | undivided | full_tiles |
# |---|---|---|---|---|
# | 1 token, 1 split | | | | |
# | 9 tokens, 1 split | | | | |
# | 9 tokens, 3 splits | | | | |
# | 9 tokens, 4 splits | | | | |
# | 9 tokens, 12 splits | | | | |


# %%
def difference(decode, tokens, splits, c_q=3, c_k=4):
    """Return the largest difference from the last row of the whole forward pass, in
    float64, for random inputs."""
    q, k, v = torch.randn(3, 1, 1, tokens, 4)
    w = torch.randn(1, c_q, c_k) / math.sqrt(c_q * c_k)
    wanted = reference.conv_attention(q.double(), k.double(), v.double(), w.double())[
        :, :, -1:
    ]
    return (decode(q[:, :, -c_q:], k, v, w, splits=splits) - wanted).abs().max().item()


def verdict(error):
    """Return the result of a comparison in one word."""
    return "NaN" if math.isnan(error) else "correct" if error <= 1e-5 else "WRONG"


print(f"{'':20}", "".join(f"{name:16}" for name in lesson14.FAULTY))
for tokens, splits in [(1, 1), (9, 1), (9, 3), (9, 4), (9, 12)]:
    words = [
        verdict(difference(decode, tokens, splits))
        for decode in lesson14.FAULTY.values()
    ]
    print(
        f"{f'tokens {tokens}, splits {splits}':20}",
        "".join(f"{word:16}" for word in words),
    )

# %% [markdown]
# <details><summary>What is wrong with each?</summary>
#
# - **no_halo**: with one split, the only edges are the ends of the sequence, where zeros are correct. With
#   two splits there is an inner edge.
# - **unmasked_window**: "all keys are in the past of the new token" is true, but it misses the point: the
#   older queries of the window have a future. Only with a single token, or with c_q = 1, they don't.
# - **undivided**: the division by l is part of the merge, which is skipped when there is one split. With one
#   *token* the result is correct by luck: T − m = 0, so l = exp(0) = 1.
# - **full_tiles**: an empty split has only −∞, so m = −∞ and exp(−∞ − (−∞)) = NaN. In the merge its weight is
#   exp(−∞ − m) = 0, but 0 · NaN is NaN. With 9 keys and 4 splits, the shares are 3, 3, 3 and 0. With 12
#   splits, three are empty.
# </details>
#
# No single row of the table finds all four. And the test that you would write first, a single token, finds
# none.
#
# ### Exercise 14.3 · is_right · about nine lines
#
# Write the test. `is_right(decode)` returns True if a decoder is correct, and False if not. It calls
# `decode(q_window, k, v, w, splits=…)`, where
#
# | argument | shape | |
# |---|---|---|
# | `q_window` | (B, H, R, d) | the last R = min(c_q, N) queries, float32 |
# | `k`, `v` | (B, H, N, d) | the whole cache |
# | `w` | (H, c_q, c_k) | the taps of each head |
#
# and gets (B, H, 1, d). The reference is the last row of the whole forward pass, `reference.conv_attention(q,
# k, v, w)`, in float64. A decoder is correct if no output is ever off by more than 10⁻⁵, up or down. Some of
# the wrong ones are off by 2 · 10⁻⁵ in a single element.
#
# The check tries your test on three correct decoders and on 22 wrong ones: the four above, and 18 that you
# don't know. The wrong decoders fail in different places: some only with several batches or heads, some only
# with odd or only with even taps, some only at the start of a sequence or when the keys do not divide evenly,
# and some only for certain numbers of splits, from 1 to more than there are keys. (The check runs a few
# hundred decoders, which takes some seconds.)
#
# <details><summary>Hint 1: the loops</summary>
#
# One loop over a few `(n, c_q, c_k)`, such as (1, 3, 4), (2, 3, 4), (9, 3, 4), and one over `range(1, n +
# 3)`, the splits. B = H = 2 and d = 4 are enough.
# </details>
# <details><summary>Hint 2: the window</summary>
#
# `q[:, :, -c_q:]`. If there are fewer than c_q tokens, this is all of them.
# </details>
# <details><summary>Hint 3: NaN</summary>
#
# `if error > 1e-5: return False` never returns for NaN, because every comparison with NaN is false. `if not
# error <= 1e-5` does.
# </details>


# %% tags=["exercise"]
def is_right(decode):
    """Return True if decode(q_window, k, v, w, splits=...) computes the last row of
    convolutional attention within 1e-5."""
    # BEGIN SOLUTION 14.3
    for n, c_q, c_k in [(1, 3, 4), (2, 3, 4), (9, 3, 4), (10, 2, 5)]:
        q, k, v = torch.randn(3, 2, 2, n, 4)
        w = torch.randn(2, c_q, c_k) / math.sqrt(c_q * c_k)
        wanted = reference.conv_attention(
            q.double(), k.double(), v.double(), w.double()
        )[:, :, -1:]
        for splits in range(1, n + 3):
            error = (
                (decode(q[:, :, -c_q:], k, v, w, splits=splits) - wanted).abs().max()
            )
            if not error <= 1e-5:
                return False
    return True
    # END SOLUTION


# %% tags=["check"]
check.ex14_3(is_right)

# %% [markdown]
# ## 7. Your merge, as a kernel
#
# In an ordinary launch, the blocks of a grid must not wait for each other, because they may not all be on the
# GPU at the same time. (Lesson 04's grid barrier needs a launch that guarantees this.) So the splits write
# their states to global memory, and a second kernel merges them. All the states of a head are in one array,
# **parts**, of shape (B, H, splits, d + 2): the d elements of `o`, then `m`, then `l`.
#
# There is one block per head of each batch, and one thread for each of the d elements. Every thread loops
# over the splits twice: once to find the largest `m`, and once to add. Take three splits, the last one empty,
# with powers of 2 instead of e as in lesson 01:
#
# | | m | l | o | weight 2^(m − 3) | weight · l | weight · o |
# |---|---|---|---|---|---|---|
# | split 0 | 1 | 2 | 24 | 1/4 | 1/2 | 6 |
# | split 1 | 3 | 3/2 | 14 | 1 | 3/2 | 14 |
# | split 2 | −∞ | 0 | 0 | | | |
# | sum | | | | | | |
#
# **Predict** the missing entries, and the output, o / l.
#
# <details><summary>Answer</summary>
#
# Split 2 is empty: its weight is 2^(−∞) = 0. The sums are 2 and 20, and the output is 10.
# </details>
#
# ### Exercise 14.4 · merge_splits · about ten lines
#
# Write the kernel `merge_splits(parts, out)`. It is launched with a grid of (H, B) blocks and at least d
# threads per block. `out` is (B, H, 1, d).
#
# - Thread c computes element c of the output and no other.
# - Divide by `l` once, at the end, even if there is only one split.
# - Any split may be empty, even the first, but at least one is not. `m` can be any
#   finite float32, and `l` can be any positive number (0 for an empty split).
# - `weight(m_s, m)` is exp(m_s − m) in float32, and 0 if m_s is −∞. It is the only function of the package
#   you need. Compute in float32 only.
#
# <details><summary>Hint 1: which element is mine?</summary>
#
# `part = parts[cuda.blockIdx.y, cuda.blockIdx.x]` is (splits, d + 2): the grid's x is the head, and its y is
# the batch. Thread c = `cuda.threadIdx.x` computes `out[batch, head, 0, c]` if c < d. The other threads have
# nothing to do.
# </details>
# <details><summary>Hint 2: two loops</summary>
#
# Start with `m = MINUS_INFINITY`, and for each split take `m = max(m, part[s, d])`. Then `l` and `o` start at
# `float32(0)`, and each split adds `weight(part[s, d], m)` times `part[s, d + 1]` and times `part[s, c]`.
# </details>


# %% tags=["exercise"]
def merge_splits(parts, out):
    """Merge the splits of parts (B, H, splits, d + 2), each o, m, l, into out
    (B, H, 1, d), with one block per head and one thread per element."""
    # BEGIN SOLUTION 14.4
    head, batch, c = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    part = parts[batch, head]
    splits, d = part.shape[0], out.shape[3]
    if c >= d:
        return
    m = MINUS_INFINITY
    for s in range(splits):
        m = max(m, part[s, d])
    l, o = float32(0), float32(0)
    for s in range(splits):
        shrink = weight(part[s, d], m)
        l += shrink * part[s, d + 1]
        o += shrink * part[s, c]
    out[batch, head, 0, c] = o / l
    # END SOLUTION


# %% tags=["check"]
check.ex14_4(merge_splits)

# %% [markdown]
# Now your splits, in PyTorch, and your merge, in `sim`, form a decoder. And your own test tells you whether
# it is correct, for every number of splits from 1 to more than there are keys. (This takes a few seconds.)


# %% tags=["uses-exercise"]
def my_decode(q_window, k, v, w, splits=3):
    """Compute the last row of convolutional attention, (B, H, 1, d), with split_state
    and merge_splits."""
    batch, heads, n, d = k.shape
    parts, out = (
        k.new_full((batch, heads, splits, d + 2), math.nan),
        k.new_full((batch, heads, 1, d), math.nan),
    )
    for b in range(batch):
        for h in range(heads):
            for s, (start, end) in enumerate(owned_keys(n, splits)):
                m, l, o = split_state(
                    q_window[b, h], k[b, h], v[b, h], w[h], start, end, Traffic()
                )
                parts[b, h, s, :d], parts[b, h, s, d], parts[b, h, s, d + 1] = o, m, l
    simulate(merge_splits)[(heads, batch), 32](parts, out)
    return out


print("is_right(my_decode):", is_right(my_decode))
for name, decode in lesson14.FAULTY.items():
    print(f"is_right({name}):", is_right(decode))

# %% [markdown]
# ## 8. In a layer (optional)
#
# `KVCache` stores what a layer needs for its next token. It allocates memory in advance, and doubles it when
# it is full. `keys` and `values` are views of the filled part. So a new token costs one row, not a copy of
# everything.
#
# **Predict.** Take a cache with room for 4 tokens and c_q = 3, and add one token after another. How many
# queries are in it after each of the first five tokens? And how much room is there?

# %%
cache = KVCache(batch=1, heads=1, head_dim=4, window=3, capacity=4)
for _ in range(5):
    cache.append(*torch.randn(3, 1, 1, 1, 4))
    print(
        f"tokens: {cache.length}   queries in the window: {cache.queries.shape[2]}   "
        f"keys: {cache.keys.shape[2]}   room for {cache.capacity}"
    )

# %% [markdown]
# `ConvAttention` is a layer like `FusedAttention` of lesson 06, with one more tensor, the taps. They start as
# identity taps, so a new layer is ordinary attention. Three of its methods matter here:
#
# - `layer(x)`: all tokens at once, (B, N, E) to (B, N, E);
# - `layer.prefill(x, cache)`: the same, but it also puts the tokens into an empty cache. This is how a model
#   reads its prompt;
# - `layer.step(x, cache)`: one more token, (B, 1, E).
#
# You can pass it your own decoder.

# %% tags=["uses-exercise"]
layer = ConvAttention(
    embed_dim=8,
    num_heads=2,
    kernel_size=(3, 4),
    attention=reference.conv_attention,
    decode=my_decode,
)
torch.nn.init.normal_(layer.taps, std=0.3)
torch.nn.init.normal_(layer.in_proj_bias)

x = torch.randn(2, 14, 8)
with torch.no_grad():
    wanted = layer(x)


def decoded(read):
    """Compute the rows of x, the first `read` by prefill, the others one by one."""
    cache = layer.new_cache(batch=2, capacity=4)
    rows = [layer.prefill(x[:, :read], cache)] if read else []
    rows += [
        layer.step(x[:, i : i + 1], cache)
        for i in progress_bar(range(read, 14), desc="tokens")
    ]
    return torch.cat(rows, dim=1)


stepped = {read: decoded(read) for read in (0, 6)}
for read, rows in stepped.items():
    right = [i for i in range(14) if (rows[:, i] - wanted[:, i]).abs().max() <= 1e-5]
    print(
        f"{read} tokens read at once, {14 - read} one by one: "
        f"{len(right)} of 14 rows equal those of the whole forward pass"
    )

# %% [markdown]
# A sequence written token by token is the same as the sequence computed at once.
#
# ## 9. The package's kernel, with your merge
#
# `kernels/conv/decode.py` also implements the splits as a kernel. A block has four
# warps, and each warp takes a quarter of the block's split; the block merges the four
# states before it writes one. A warp processes 32 keys at a time, one per lane. Each
# lane computes the scores of its key with all rows of the window. The scores of the
# last 64 keys stay in shared memory, in a ring buffer, and as soon as a key's right
# neighbours are there, its `T` is computed. So within a split no key is read twice, and
# the halo is needed only at the two ends. The picture shows the ring buffer of a warp,
# with 7 taps in a row (drawn, not measured):


# %% jupyter={"source_hidden": true}
def draw_ring(steps, c_k, lanes=32):
    """Draw which keys' scores the 64 slots of the ring buffer hold after each step."""
    figure, axes = plt.subplots(figsize=(8.5, 3.6))
    left = (c_k - 1) // 2
    for step in range(steps):
        for half in (0, 1):
            at, fresh = step - (step - half) % 2, half == step % 2
            first = at * lanes - left
            words = f"keys {first} to {first + lanes - 1}" if at >= 0 else "zeros"
            box = plt.Rectangle(
                (half * lanes, 1.5 * step),
                lanes,
                1,
                facecolor=SKY if fresh else "#EEEEEE",
                edgecolor="grey",
            )
            axes.add_patch(box)
            axes.text(
                half * lanes + 13, 1.5 * step + 0.5, words, ha="center", va="center"
            )
        still = (1 - step % 2) * lanes + lanes - (c_k - 1)
        axes.add_patch(plt.Rectangle((still, 1.5 * step), c_k - 1, 1, facecolor=ORANGE))
        axes.text(-1, 1.5 * step + 0.5, f"step {step}", ha="right", va="center")
    for place in (0, 32, 63):
        axes.text(place + 0.5, -0.3, place, ha="center")
    axes.text(-1, -0.3, "slot", ha="right")
    axes.set(xlim=(-8, 64.5), ylim=(1.5 * steps - 0.4, -1))
    axes.axis("off")
    return figure


show_figure(
    draw_ring(4, 7),
    "the 64 slots of a ring buffer after four steps, in halves of 32. A step fills one "
    "half with the scores of 32 new keys, blue: step 0 the left half with the keys -3 "
    "to 28, step 1 the right half with 29 to 60, step 2 the left half again with 61 to "
    "92, step 3 the right half with 93 to 124. Of the other half, grey, the last six "
    "slots are orange: these scores of the step before are still needed, by the "
    "convolution of the first new keys.",
)

# %% [markdown]
# The kernel writes the same `parts` as your splits do, and its second kernel has the same arguments as yours.
# Let's replace that one with yours.

# %% tags=["uses-exercise"]
mine = cuda.jit(merge_splits) if device == "cuda" else merge_splits


def with_my_merge(kernel, grid, block, *arguments):
    """Launch a kernel, but yours in place of the package's merge. (That one also
    writes the log-sum-exp of the row, which lesson 23 needs.)"""
    if kernel is merge_splits_kernel:
        kernel, arguments = mine, arguments[:2]
    RUNNERS[device](kernel, grid, block, *arguments)


def last_row_error(n, c_q, c_k, splits, run=None):
    """Return the largest difference of the package's decoder, on this device, from the
    last row in float64, for random inputs and two heads."""
    q, k, v = torch.randn(3, 1, 2, n, 4, device=device)
    w = torch.randn(2, c_q, c_k, device=device) / math.sqrt(c_q * c_k)
    wanted = reference.conv_attention(q.double(), k.double(), v.double(), w.double())[
        :, :, -1:
    ]
    return (
        (
            conv_attention_decode(q[:, :, -c_q:], k, v, w, splits=splits, run=run)
            - wanted
        )
        .abs()
        .max()
        .item()
    )


for n, splits in [(2, 1), (5, 3)]:
    error = last_row_error(n, 3, 4, splits, run=with_my_merge)
    print(
        f"keys {n}, splits {splits}, the package's splits and your merge: "
        f"below 1e-5: {error <= 1e-5}"
    )

# %% [markdown]
# ### How fast?
#
# These times are recorded, not measured here: one token with a cache of N tokens, in float32. They are
# medians, each as a CUDA graph (launched again and again without Python).
#
# - "floor" is the time to read `K` and `V` once at the rate of a copy.
# - "kernels" is the package's decoder.
# - "sdpa" is PyTorch's `scaled_dot_product_attention` with one query, which does not convolve.
# - "split keys" is the package's decoder with a single tap of 1, so it does not convolve either.
# - "eager" is the reference in PyTorch, and "compile" is the same through `torch.compile`.
#
# **Guess.** With 8 heads, how many times the floor does the package's decoder take with the longest cache?
# And with the shortest?

# %%
shapes = list(dict.fromkeys(shape for shape, _ in times))
names = list(dict.fromkeys(name for _, name in times))
rows = []
for shape in shapes:
    batch, heads, n, _ = shape
    floor, kernel, eager = (
        least_us(shape, table["bandwidth"]),
        times[shape, "kernels"],
        times[shape, "eager"],
    )
    measured = [floor, *(times[shape, name] for name in names)]
    measured += [kernel / floor, eager / kernel]
    rows.append([batch * heads, n, *(f"{value:.1f}" for value in measured)])
show_table(
    ["B · H", "N", "floor", *names, "kernels / floor", "eager / kernels"],
    *rows,
    title=f"microseconds; {table['gpu']}, {table['date']}, "
    f"{table['taps'][0]} × {table['taps'][1]} taps",
)

# %% [markdown]
# Here is the same for 8 heads as a picture, with logarithmic axes:

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(figsize=(7.5, 4), layout="constrained")
styles = {"kernels": BLUE, "sdpa": GREEN, "eager": RED, "compile": ORANGE}
styles["split keys"] = "black"
lengths = sorted(n for batch, heads, n, _ in shapes if batch * heads == 8)
floors = [least_us((1, 8, n, 64), table["bandwidth"]) for n in lengths]
axes.loglog(lengths, floors, "--", color="grey", label="floor")
for name in names:
    measured = [times[(1, 8, n, 64), name] for n in lengths]
    axes.loglog(lengths, measured, "o-", color=styles[name], label=name)
axes.set(xlabel="N, tokens in the cache", ylabel="microseconds per token")
axes.legend()
axes.grid(alpha=0.3)
show_figure(
    figure,
    "microseconds for a token over N, both axes logarithmic. The floor is a straight "
    "line from 0.5 to 63. The kernels begin far above it, at 17, rise slowly, "
    "and end at 98; without taps, split keys, at 15 and 92. Compiled PyTorch goes "
    "from 26 to 201, eager from 33 to 254; sdpa begins at 61 and rises as steeply as "
    "the floor, to 6,900.",
)

# %% [markdown]
# With 8 heads and 512 tokens, the whole cache is 2 MB, and the floor is half a microsecond. Just launching a
# kernel takes a GPU longer than that, and there are two, one after the other. But launches take a few
# microseconds, and the table shows more. The rest is waiting: a warp processes its keys one step after
# another, and each step waits for memory. The longer the cache, the more the bytes matter.
#
# Now look at the column "sdpa". With 65536 keys it takes 7 milliseconds, for 128 heads and also for 8. That
# is how a kernel with one block per head would behave (we have not looked inside): it does not split the
# keys, and with 8 heads it leaves most of the GPU idle. Section 4 was about this. "split keys" does split
# them, so the difference between "kernels" and "split keys" shows what the convolution costs. (To be fair:
# decoding usually runs in half precision, for which PyTorch has other kernels. So this column does not
# represent ordinary decoding.)
#
# The next cell computes the cost of the convolution, and the tokens per second of 32 such layers for a single
# text:

# %%
for heads in (8, 32, 128):
    extra = [
        times[shape, "kernels"] / times[shape, "split keys"] - 1
        for shape in shapes
        if shape[0] * shape[1] == heads
    ]
    if extra:
        print(
            f"B · H = {heads:3}: the convolution adds {100 * min(extra):.0f} to "
            f"{100 * max(extra):.0f} % to the time"
        )
rows = []
for n in (512, 8192, 65536):
    floor = 1e6 / (32 * least_us((1, 8, n, 64), table["bandwidth"]))
    row = [tokens_per_second(n, name) for name in ("kernels", "eager")]
    rows.append([n, *(f"{rate:.0f}" for rate in (floor, *row))])
show_table(["N", "floor", "kernels", "eager"], *rows)

# %% [markdown]
# ## Validate
#
# We compare each stage with an independent one: in float64, or in float32 where a kernel computes; with every
# number of splits from 1 to 12; and with caches of 1 to 10 tokens.


# %%
def validate(stage, against, pairs, tolerance):
    """Print one row of the table for (found, wanted) pairs. NaN fails."""
    agrees = all(
        (found - wanted).abs().max().item() <= tolerance for found, wanted in pairs
    )
    print(
        f"{stage:34}  {against:34}  {'below' if agrees else 'ABOVE'} {tolerance:.0e}   "
        f"{'✓' if agrees else '✗'}"
    )


cases = []
for n, c_q, c_k in [(1, 3, 4), (2, 3, 4), (7, 1, 1), (9, 3, 4), (10, 6, 11)]:
    q, k, v = torch.randn(3, 1, 1, n, 4)
    cases.append((q, k, v, torch.randn(1, c_q, c_k) / math.sqrt(c_q * c_k)))

# %% tags=["uses-exercise"]
scores, decodings, by_package = [], [], []
for q, k, v, w in cases:
    doubles = [tensor.double() for tensor in (q, k, v, w)]
    last = reference.conv_attention(*doubles)[:, :, -1:]
    window = q[:, :, -w.shape[1] :]
    scores.append(
        (
            window_scores(window[0, 0].double(), doubles[1][0, 0], doubles[3][0]),
            reference.conv_scores(*doubles[:2], doubles[3])[0, 0, -1],
        )
    )
    decodings += [(my_decode(window, k, v, w, splits), last) for splits in range(1, 13)]
    by_package.append(
        (
            my_decode(window, k, v, w, 5),
            reference.conv_attention_decode(window, k, v, w),
        )
    )

yours, layer_name = "split_state, merge_splits in sim", "ConvAttention.forward"
print(f"{'stage':34}  {'against':34}  largest difference")
validate("window_scores", "last row of reference.conv_scores", scores, 1e-12)
validate(yours, "last row of lesson 09's forward", decodings, 1e-5)
validate(yours, "reference.conv_attention_decode", by_package, 1e-5)
for read, words in {0: "from empty", 6: "after prefill"}.items():
    pair = stepped[read], wanted
    validate(f"ConvAttention.step, {words}", layer_name, [pair], 1e-5)

# %% [markdown]
# ### On a real GPU, if you have one
#
# The cells of section 9 have already used it. This cell gives it more to do: 1000 keys, and as many splits as
# the rule chooses. Without a GPU it takes 3 keys. It prints the same line in either case.

# %% tags=["uses-exercise"]
n = 1000 if device == "cuda" else 3
print(
    "the package's splits, your merge, on this device: below 1e-5:",
    last_row_error(n, 6, 11, None, run=with_my_merge) <= 1e-5,
)

# %% [markdown]
# ## In three lines
# - A new token changes no old row. So keep `K`, `V` and the last c_q queries, and compute one row. With a
#   long cache, this takes about as long as reading the cache.
# - Each row of the window masks the keys after its own position. A split owns its keys and loads P_k and P_r
#   more. It passes on (m, l, o), even if it has read nothing.
# - Merge by weights, divide once, and test every number of splits from one to more than there are keys.
#
# **You can now** decode with a cache, on as many blocks as a GPU has, and tell a correct decoder from one
# that only looks correct.
#
# **Read on:** Dao, Haziza, Massa, Sizov, *Flash-Decoding for long-context inference* (2023, PyTorch blog),
# introduces the split over keys. Pope et al., *Efficiently Scaling Transformer Inference* (2022,
# arXiv:2211.05102), analyses the cost of decoding. Williams, Waterman, Patterson, *Roofline* (Communications
# of the ACM, 2009), defines memory-bound and compute-bound.
#
# **Next:** [lesson 15](15_training.ipynb) puts the layer into a small transformer and trains it.
