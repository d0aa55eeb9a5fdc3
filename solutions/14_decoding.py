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
# **60 minutes** · builds on lesson 01 (the merge), lesson 09 (the two masks) and lesson 10 (halos, `load_rows`)
#
# After this lesson you will be able to
#
# 1. say what a new token costs, with a cache and without, and why the cost is the time to read memory;
# 2. compute its row of convolutional attention from a window of queries, divided among many blocks, each with
#    its halo;
# 3. say how many blocks a GPU should divide the keys among.
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
from torch.nn.functional import conv2d, pad

from course import check, show_figure
from course.figures import BLUE, GREEN, ORANGE, RED, SKY
from kernels import reference
from kernels.bench.timing import least_us
from kernels.common.data import DATA
from kernels.common.splits import choose_splits
from kernels.reference.conv_tiled import load_rows
from kernels.reference.tiled import Traffic

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
# None. With the causal masks of lesson 09, no row sees a key that comes later, and the convolution reads
# the scores of older queries only. So the old rows of `O` need not be recomputed. Nor do the old keys and values:
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
# largest T is 6, so key 3 would get a large weight instead of almost none.
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
# - Compute only the scores of the window. Use PyTorch or plain Python, and no function of the `kernels`
#   package.
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
# and d = 64, that is 7 · 64 + 49 + 64 = 561 multiply-adds, or 1122 operations, for 512 bytes. (The package's
# kernel computes eight rows instead of seven. We don't count the eighth.)
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
# time.) Decoding is [**memory-bound**](../docs/glossary.md): no token can be computed faster than the whole
# cache can be read.
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
# - An empty split has `start == end`. It loads nothing and returns `(-math.inf, 0.0, zeros)`.
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
#   blocks, they run in [**waves**](../docs/glossary.md): heads · splits / slots, rounded up.
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
# (The model has no time unit, so we scaled the measurements to put the first cross on the line. Only the second
# cross tests the model.)
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
# counts as "nearly", and how many are "a few"? No model tells you that; you have to measure. The model and
# the rule both leave out one effect: four blocks on one multiprocessor share its arithmetic units, and one
# block computes while another waits for memory.

# %% [markdown]
# ## In three lines
#
# - A new token changes no old row. So keep `K`, `V` and the last c_q queries, and compute one row. With a long
#   cache, this takes about as long as reading the cache.
# - Each row of the window masks the keys after its own position. A split owns its keys and loads P_k and P_r
#   more. It passes on (m, l, o), even if it has read nothing.
# - Enough splits to fill the GPU once, and few enough that their overhead stays small.
#
# **You can now** decode with a cache, on as many blocks as a GPU has.
#
# **Read on:** Dao, Haziza, Massa, Sizov, *Flash-Decoding for long-context inference* (2023, PyTorch blog),
# introduces the split over keys. Pope et al., *Efficiently Scaling Transformer Inference* (2022,
# arXiv:2211.05102), analyses the cost of decoding. Williams, Waterman, Patterson, *Roofline: An Insightful
# Visual Performance Model for Multicore Architectures* (Communications of the ACM, 2009), on memory-bound and
# compute-bound programs.
#
# **Next:** [lesson 14b](14b_decoding_kernel.ipynb) merges the splits in a kernel, and tests decoders.
