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
# **95 minutes**, and 5 for the part marked *optional* · builds on lesson 01 (the merge), lesson 09 (the two masks), lesson 10 (halos, `load_rows`) and lessons 03 and 04 (a kernel in `sim`)
#
# You will be able to
#
# 1. say what a new token costs, with a cache and without, and why its time is that of reading memory;
# 2. compute its row of convolutional attention from a window of queries, cut among many blocks, each with its halo;
# 3. write a test that finds four published mistakes, and the kernel that merges what the blocks have found.
#
# So far all queries were there from the start. A language model that *writes* has one new token at a time: it computes the token's row of the output, chooses the next token from it, and goes on. That is
# called **decoding**. What is computed is one row, and what it needs of the past lies in a cache.
#
# No GPU is needed. What an H200 took is recorded. First the result: the attention of a model with 32 layers (its other parts left out), in tokens per second.

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

table = json.loads((DATA / "bench.json").read_text(encoding="utf-8"))
times = {(tuple(row["shape"]), row["name"]): row["us"] for row in table["decoding"]}


def tokens_per_second(n, name, layers=32):
    """What so many layers of convolutional attention, 8 heads of d = 64,
    let through with n tokens in the cache."""
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
# **Predict.** Eight tokens are there, and their rows of the output are known. A ninth comes. Which of the eight rows change? `___` Which of the eight keys and values? `___`

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
# None. With the causal masks of lesson 09 no row sees what comes later, and the convolution reaches up, to older queries. So the old rows of `O` need not be computed again, nor the old keys and values: each is made
# from its own row of the layer's input, in the first layer from the token itself, in a deeper one from a row below, which does not change either.
#
# A decoder without a cache computes the whole N×N matrix for each token. How many scores is this, on and below the diagonal, until 1000 tokens are written? And how many are there if only a window of the last c_q queries meets all keys?
#
# **Predict** the quotient of the two, for c_q = 7. About 50? 500? 5000? `___`


# %%
def scores_needed(tokens, c_q):
    """Scores until so many tokens are written, one by one:
    (by the whole forward pass each time, by the last c_q queries)."""
    whole = sum(n * (n + 1) // 2 for n in range(1, tokens + 1))
    window = sum(min(c_q, n) * n for n in range(1, tokens + 1))
    return whole, window


for tokens in (100, 1000, 100_000):
    whole, window = scores_needed(tokens, c_q=7)
    print(
        f"{tokens:7,} tokens: {whole:19,} scores from scratch, "
        f"{window:15,} with a window, {whole / window:7,.0f} times fewer"
    )

# %% [markdown]
# What must be kept for it is the **cache**: the keys and values of all tokens so far, and the last c_q queries. Not the scores, not `T`, not `O`.
#
# ## 2. Why the last c_q queries?
#
# An ordinary attention layer needs the newest query only. Here the new row of `T` is made of scores of c_q queries. The picture shows 10 tokens and 3 × 4 taps; the red box is what they read for one number of `T`. (The cell only draws: run it, there is no need to read it.)


# %% jupyter={"source_hidden": true}
def cell(axes, column, row, colour, text=""):
    axes.add_patch(
        plt.Rectangle(
            (column, row), 0.94, 0.94, facecolor=colour, edgecolor="grey", linewidth=0.5
        )
    )
    axes.text(column + 0.47, row + 0.5, text, ha="center", va="center", fontsize=11)


def draw_window(n, c_q):
    """The scores of n tokens, those of the window marked,
    and the last row of T below them."""
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
# Look at the zeros. The new query, 9, sees every key of the cache. But query 8 is in the window too, and for *it* key 9 is in the future; for query 7, two keys are. **Each row of the window masks the keys after its own
# position, with zero, before the convolution.** This is the triangle of lesson 09; only its last corner is left. And the mask with −∞, after the convolution? The last row has no key to hide.
#
# ### On paper
#
# Five tokens, c_q = 2, c_k = 3, so P_k = 1 and P_r = 1. These are the scores of the window, already divided by √d, and the taps:
#
# | | key 0 | key 1 | key 2 | key 3 | key 4 | | taps | | | |
# |---|---|---|---|---|---|---|---|---|---|---|
# | query 3 | 2 | 1 | 0 | 4 | 5 | | older query | 0 | 0 | 1 |
# | query 4 | 1 | 3 | 2 | 0 | 1 | | newest query | 0 | 1 | 0 |
#
# A key's `T` is its own score with the newest query, plus the score of the key to its right with the query before.
#
# **Predict** the five numbers of `T`: `___`. Which of them would be different without the mask? `___`


# %%
def later(rows, columns, query, key):
    """(rows, columns), True where a key comes after its query;
    the first row is `query`, the first column `key`."""
    return torch.arange(columns) + key > torch.arange(rows)[:, None] + query


page = torch.tensor([[2.0, 1, 0, 4, 5], [1, 3, 2, 0, 1]])
taps = torch.tensor([[0.0, 0, 1], [0, 1, 0]])
for name, s0 in {
    "masked": page.masked_fill(later(2, 5, 3, 0), 0.0),
    "not masked": page,
}.items():
    print(
        f"{name:10}  T =",
        *conv2d(pad(s0, (1, 1))[None, None], taps[None, None]).flatten().int().tolist(),
    )

# %% [markdown]
# `T[3]` is 0, and would be 5: the score of query 3 with key 4, which it must not see. And the largest is 6, so the softmax would give much weight to a key that has none to speak of.
#
# At the start of a sequence the window is shorter. With one token there is one query, and R = min(c_q, N) in general. What is missing are the rows *above*: queries before the first token, whose scores are zeros as in lesson 09.
#
# ### Exercise 14.1 · window_scores · about five lines
#
# Write `window_scores(q_window, k, w)`: the last row of `T`, a tensor (N,), for one head. `q_window` (R, d) holds the last R = min(c_q, N) queries, the newest last; `k` is (N, d), and `w` is (c_q, c_k). All three stay as they are. The scores are divided by √d. `later` is above.
#
# <details><summary>Hint 1: which query is row r?</summary>
#
# The last row is query N − 1, so the first is query N − R, and `later(R, N, N - R, 0)` is the mask.
# </details>
# <details><summary>Hint 2: zeros all round</summary>
#
# `pad(s0, (left, right, above, 0))` puts columns of zeros to the left and to the right, and rows of zeros above. P_k = (c_k − 1) // 2 to the left, c_k − 1 − P_k to the right, and c_q − R above.
# </details>
# <details><summary>Hint 3: the shape</summary>
#
# Then the taps fit in exactly one row, and N columns: `conv2d(padded[None, None], w[None, None])` has the shape (1, 1, 1, N).
# </details>


# %% tags=["exercise"]
def window_scores(q_window, k, w):
    """The last row of T, (N,),
    from the last R = min(c_q, N) queries (R, d) and all keys (N, d); w: (c_q, c_k)."""
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
# For each key of the cache: c_q · d multiply-adds for the scores, c_q · c_k for the convolution, d for its row of `V`. And 2 · d numbers of four bytes are read: the rows of `K` and `V`. With 7 × 7 taps and d = 64 this is
# 7 · 64 + 49 + 64 = 561 multiply-adds, or 1122 operations, for 512 bytes. (The kernel of section 9 computes eight rows for seven. We do not count that.)
#
# **Predict.** That is 2.2 operations per byte. In lesson 08 you saw what an H200 can do: 67 · 10¹² operations per second in float32; and a copy moves a little over 4 · 10¹² bytes per second. So which of the two does a token wait for?
#
# <details><summary>Answer</summary>
#
# Memory. In the time of one byte the H200 could do about 16 operations, and has 2 to do. (Ordinary attention has 128 multiply-adds for the same 512 bytes, half an operation per byte. So the convolution of
# seven queries costs more than four times the arithmetic and, where the cache is long, little time.) Decoding is **bound by memory**: no token can come sooner than the whole cache can be read.
# </details>
#
# How much is that? One layer, 8 heads, d = 64, float32, at the rate of a copy that was recorded on an H200:

# %%
print(f"{table['bandwidth'] / 1e12:.1f} · 10¹² bytes per second")
print("tokens in the cache      MB   microseconds to read it")
for n in (512, 8192, 65536):
    print(
        f"{n:19,} {2 * 4 * 8 * n * 64 / 1e6:7.1f} "
        f"{least_us((1, 8, n, 64), table['bandwidth']):9.1f}"
    )

# %% [markdown]
# 4096 bytes for each token of the past, in each layer, each time a token is written. (An H200 keeps the last tens of megabytes that it has read in a cache of its own, so short caches may be read faster than this.)
#
# **A question.** The scores of the older queries in the window were computed when those tokens came. Why not keep them?
#
# <details><summary>Answer</summary>
#
# It would work: c_q − 1 more numbers to read for each key, and one to write. But `K` has to be read anyway, for the newest query; and once a key is on the chip, six more products with it cost arithmetic only, of which there
# is plenty. One pays in bytes, which are scarce, for operations, which are not.
# </details>
#
# ## 4. Many hands
#
# Memory is quick only if many ask for it at once. In the forward pass each tile of queries was a block. Here there is one query, and a block for each head would be 8 blocks. An H200 has 132 multiprocessors, and 124 of them would
# do nothing, while 8 fetch all of a cache that may have 268 MB.
#
# So the *keys* are divided. Each of several blocks takes some keys of the same head, and at the end the pieces are merged. This is called **split-K** (K is the usual letter for what is summed over in a product, here the keys), and each piece a split. The merge is that of lesson 01, between blocks this time. And the
# convolution reaches across the borders. That is lesson 10:
#
# > a split **owns** the keys from `start` to `end − 1`, and **loads** P_k more to the left and P_r more to the right.
#
# Ten keys, three splits, 3 × 4 taps, so P_k = 1 and P_r = 2. Dark: owned; pale: loaded besides; a 0 outside of the sequence. (The cell only draws.)


# %% jupyter={"source_hidden": true}
def draw_splits(n, splits, left, right):
    """A line for each split: the keys that it owns, and those that it loads besides."""
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
# The keys are divided into equal shares, rounded up: 10 keys among 3 are 4, 4 and 2.
#
# **Predict.** Five keys among *four* splits: how many does each own? `___`


# %%
def owned_keys(n, splits):
    """(start, end) of each split: the keys start to end - 1."""
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
# Four splits, a share of two keys, and nothing is left for the last one. A split without keys is called **empty**. It is no accident: a GPU's grid is full of blocks for which nothing is left. So a split must be able to say
# "I have read nothing", and lesson 01 has the words for it: (−∞, 0, 0).
#
# **On paper**, once more the page above, with two splits: keys 0 to 2, and 3 to 4. What would the first split get for `T[2]` if it knew nothing of key 3? `___`
#
# <details><summary>Answer</summary>
#
# 2 in place of 6: the 4 of query 3 and key 3 is missing. The largest `T` of all.
# </details>
#
# ### Exercise 14.2 · split_state · about nine lines
#
# Write `split_state(q_window, k, v, w, start, end, traffic)`: the state `(m, l, o)` of the split that owns the keys `start` to `end − 1`. `m` is the largest `T` of these keys, `l` the sum of exp(T − m), and `o`, (d,), the sum of exp(T − m) · v. Do not divide.
# An empty split has `start == end`, and returns `(-math.inf, 0.0, zeros)`.
#
# Load with lesson 10's `load_rows(array, first, count, traffic)`, which gives zeros outside of the sequence: once for `K`, with the halo, and once for `V`, without. No other way leads to the numbers of `k` and `v`, which lie in global memory (their shapes and `new_zeros` are at hand); `q_window` and `w` are on the chip already.
#
# <details><summary>Hint 1: the keys</summary>
#
# `load_rows(k, start - left, end - start + c_k - 1, traffic)`: as many as are owned, and c_k − 1 more.
# </details>
# <details><summary>Hint 2: from 14.1</summary>
#
# Two changes. Column 0 is now key `start - left`, and the mask has to know it. And nothing is padded at the sides: these columns are loaded. The rows above are padded as before.
# </details>
# <details><summary>Hint 3: the state</summary>
#
# With `t` of shape (end − start,): `m = t.max()`, `p = torch.exp(t - m)`, `l = p.sum()`, `o = p @ v_tile`.
# </details>


# %% tags=["exercise"]
def split_state(q_window, k, v, w, start, end, traffic):
    """(m, l, o) of the keys start to end - 1: two numbers and (d,);
    q_window: (R, d), k and v: (N, d), w: (c_q, c_k)."""
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
# This is what your splits load, of ten keys by three splits, with 3 × 4 taps:


# %% tags=["uses-exercise"] jupyter={"source_hidden": true}
class Watched(Traffic):
    """Traffic that notes which rows of which array were loaded."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def load(self, array, rows):
        self.rows.append((array, range(rows.start, rows.stop)))
        return super().load(array, rows)


def draw_loads(n, splits, c_q, c_k):
    """For each split the rows of K and of V that split_state loads; owned ones dark."""
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
# Every key is dark for one split. What does the halo cost? It is loaded by two splits. 4096 keys of 64 numbers and 7 × 7 taps, with your function:

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
# One is too few. As many as there are keys is too many: then there is more halo than work, and 65536 states to merge. A small model says where the best number lies. It knows three things:
#
# - So many blocks can run at the same time; call this the number of **places**. If there are more blocks, they come in **waves**: heads · splits / places, rounded up.
# - A block takes as long as it has keys…
# - …plus a fixed **overhead** for halo, window and merge, which we count in keys too.
#
# **On paper.** 3 places, 2 heads, 12 keys, and an overhead of 2 keys. Which number of splits is best, and are two better than one?
#
# | splits | blocks | waves | keys per split | time = waves · (keys per split + 2) |
# |---|---|---|---|---|
# | 1 | 2 | 1 | 12 | 14 |
# | 2 | 4 | `___` | `___` | `___` |
# | 3 | 6 | `___` | `___` | `___` |
# | 4 | 8 | `___` | `___` | `___` |


# %%
def model_time(splits, sequences, keys, places, overhead):
    """The time of all waves, in units of one key; sequences: B · H."""
    waves = math.ceil(sequences * splits / places)
    return waves * (math.ceil(keys / splits) + overhead)


for splits in (1, 2, 3, 4, 6, 12):
    print(
        f"splits {splits:2}: "
        f"time {model_time(splits, sequences=2, keys=12, places=3, overhead=2)}"
    )

# %% [markdown]
# Three. And two are *worse* than one: four blocks on three places need a second wave, with one block in it, while two places stand empty. Good numbers fill the last wave, and are not so large that the overhead rules.
#
# The same for an H200: 132 multiprocessors, and each holds four blocks of the package's kernel (lesson 08: it is a matter of registers), so 528 places. We guess that the overhead is worth 64 keys; the model is a sketch. The dots are what
# the package's rule chooses, `choose_splits`. And the two crosses are measurements: on an H200, with 128 heads, an earlier version of that kernel took 1.10 ms with four splits and 1.33 ms with five. (No scale of the model is known, so the cross at four splits
# is put upon the line; only the second one says something.)
#
# **Predict.** 128 heads (16 sequences of 8), 528 places: up to how many splits is there one wave only? `___`

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
# The jump is there, but measured it is a fifth, where the model says three fifths. A likely reason: in the model a block takes the same time however many run, but real ones share the memory, and the 112 blocks of the second wave have it to themselves.
#
# The rule knows waves too. Of the numbers that are nearly as good as the best it takes the smallest, as each split costs overhead; and it gives no split fewer than some dozens of keys. But what is "nearly", and how many are "some"? No model says that, only a
# clock. And one thing is in neither: four blocks on one multiprocessor share its arithmetic, and one computes while another waits for memory.
#
# ## 6. Bug hunt: a published algorithm
#
# There is a published algorithm for this very task. These are its four mistakes, each alone in a decoder that is otherwise right. `owned_by` is `owned_keys`, `pieces` is `T` of a split,
# `state_of` its state, `merged` the merge with the division.

# %%
for faulty in (
    lesson14.no_halo,
    lesson14.unmasked_window,
    lesson14.undivided,
    lesson14.full_tiles,
):
    print(inspect.getsource(faulty))

# %% [markdown]
# (The fourth works on whole tiles, as a GPU does; the cells behind the end of the cache get −∞.)
#
# **Guess before you run.** c_q = 3, c_k = 4. Which test finds which mistake?
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
    """The largest difference from the last row of the whole forward pass, in float64,
    with random numbers."""
    q, k, v = torch.randn(3, 1, 1, tokens, 4)
    w = torch.randn(1, c_q, c_k) / math.sqrt(c_q * c_k)
    wanted = reference.conv_attention(q.double(), k.double(), v.double(), w.double())[
        :, :, -1:
    ]
    return (decode(q[:, :, -c_q:], k, v, w, splits=splits) - wanted).abs().max().item()


def verdict(error):
    return "NaN" if math.isnan(error) else "right" if error <= 1e-5 else "WRONG"


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
# - **no_halo**: with one split there is no border but the ends of the sequence, where zeros are right. With two there is one.
# - **unmasked_window**: "all keys are in the past of the new token" is true, and beside the point: the older queries of the window have a future. Only a single token, or c_q = 1, has none.
# - **undivided**: the division by l stands in the merge, and the merge is left out if there is nothing to merge. With one *token* it is right by luck: T − m = 0, so l = exp(0) = 1.
# - **full_tiles**: an empty split has nothing but −∞, so m = −∞ and exp(−∞ − (−∞)) = NaN. In the merge its weight is exp(−∞ − m) = 0, but 0 · NaN is NaN. With 9 keys among 4 splits the shares are 3, 3, 3 and 0, with 12 splits three are empty.
# </details>
#
# No single line of the table finds all four. And the test that one would write first, a single token, finds none.
#
# ### Exercise 14.3 · is_right · about nine lines
#
# Write the test. `is_right(decode)` returns True if a decoder is right, and False if not. It calls `decode(q_window, k, v, w, splits=…)`, where
#
# | argument | shape | |
# |---|---|---|
# | `q_window` | (B, H, R, d) | the last R = min(c_q, N) queries, float32 |
# | `k`, `v` | (B, H, N, d) | the whole cache |
# | `w` | (H, c_q, c_k) | the taps of each head |
#
# and gets (B, H, 1, d). The measure is the last row of the whole forward pass, `reference.conv_attention(q, k, v, w)`, in float64. A decoder is right if no number of it is ever off by more than 10⁻⁵, up or down; some of the wrong ones are off by 2 · 10⁻⁵ in a single number.
#
# The check tries your test on three right decoders and on 22 wrong ones: the four above, and 18 that you do not know. What differs from one decoder to the next: batches, heads, taps odd and even, the start of a sequence, shares that do not come out
# even, and every number of splits, from 1 to more than there are keys.
#
# <details><summary>Hint 1: the loops</summary>
#
# One over a few `(n, c_q, c_k)`, such as (1, 3, 4), (2, 3, 4), (9, 3, 4); one over `range(1, n + 3)`, the splits. B = H = 2 and d = 4 will do.
# </details>
# <details><summary>Hint 2: the window</summary>
#
# `q[:, :, -c_q:]`. If there are fewer than c_q tokens, these are all.
# </details>
# <details><summary>Hint 3: NaN</summary>
#
# `if error > 1e-5: return False` never returns for NaN, as every comparison with NaN is false. `if not error <= 1e-5` does.
# </details>


# %% tags=["exercise"]
def is_right(decode):
    """Whether decode(q_window, k, v, w, splits=...) gives the last row of convolutional
    attention within 1e-5."""
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
# In an ordinary launch the blocks of a grid must not wait for each other: they may not all be on the GPU at the same time. (Lesson 04's grid barrier needs a launch that guarantees this.) So the splits write their states to global memory, and a second kernel merges them. All the states of a head lie in one array, **parts**, of the shape (B, H, splits, d + 2): the d numbers of `o`,
# then `m`, then `l`.
#
# A block for each head of each batch, and a thread for each of the d numbers. Every thread goes through the splits twice: once to find the largest `m`, once to add. With three splits, the last one empty, and powers of 2 in place of e as in lesson 01:
#
# | | m | l | o | weight 2^(m − 3) | weight · l | weight · o |
# |---|---|---|---|---|---|---|
# | split 0 | 1 | 2 | 24 | 1/4 | 1/2 | 6 |
# | split 1 | 3 | 3/2 | 14 | 1 | 3/2 | 14 |
# | split 2 | −∞ | 0 | 0 | `___` | `___` | `___` |
# | sum | | | | | `___` | `___` |
#
# **Predict** the output, o / l. `___`
#
# <details><summary>Answer</summary>
#
# Split 2 is empty: its weight is 2^(−∞) = 0. The sums are 2 and 20, and the output is 10.
# </details>
#
# ### Exercise 14.4 · merge_splits · about ten lines
#
# Write the kernel `merge_splits(parts, out)`, launched with a grid of (H, B) blocks and at least d threads. `out` is (B, H, 1, d). Divide by `l` once, at the end, and with one split too. Any split may be empty, also the first; not all of them at once.
#
# Thread c makes number c of the output and no other; m can be any number, as large or as small as float32 has, and l any number above 0 (0 for an empty split). `weight(m_s, m)` is exp(m_s − m), float32, and 0 where m_s is −∞.
#
# <details><summary>Hint 1: which number is mine?</summary>
#
# `part = parts[cuda.blockIdx.y, cuda.blockIdx.x]` is (splits, d + 2): the grid's x is the head, its y the batch. Thread c = `cuda.threadIdx.x` makes `out[batch, head, 0, c]`, if c < d; the others have nothing to do.
# </details>
# <details><summary>Hint 2: two loops</summary>
#
# `m = MINUS_INFINITY`, and for each split `m = max(m, part[s, d])`. Then `l` and `o` start at `float32(0)`, and each split adds `weight(part[s, d], m)` times `part[s, d + 1]` and times `part[s, c]`.
# </details>


# %% tags=["exercise"]
def merge_splits(parts, out):
    """out (B, H, 1, d) = the merged splits of parts (B, H, splits, d + 2),
    each o, m, l; a block per head, a thread per number."""
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
# Now your splits, in PyTorch, and your merge, in `sim`, make a decoder. And your own test says whether it is right: for every number of splits from 1 to more than there are keys.


# %% tags=["uses-exercise"]
def my_decode(q_window, k, v, w, splits=3):
    """The last row of convolutional attention, (B, H, 1, d),
    by split_state and merge_splits."""
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


print("my_decode is right:", is_right(my_decode))
for name, decode in lesson14.FAULTY.items():
    print(f"{name} is right:", is_right(decode))

# %% [markdown]
# ## 8. In a layer (optional)
#
# `KVCache` keeps what a layer needs for its next token. It makes room beforehand, and doubles it when it is full; `keys` and `values` are views of the filled part. So a new token costs one row, not a copy of all.
#
# **Predict.** A cache with room for 4 tokens, c_q = 3, one token after the other. How many queries are in it after each of the first five tokens? `___` And how much room is there? `___`

# %%
cache = KVCache(batch=1, heads=1, head_dim=4, window=3, capacity=4)
for _ in range(5):
    cache.append(*torch.randn(3, 1, 1, 1, 4))
    print(
        f"tokens: {cache.length}   queries in the window: {cache.queries.shape[2]}   "
        f"keys: {cache.keys.shape[2]}   room for {cache.capacity}"
    )

# %% [markdown]
# `ConvAttention` is a layer like `FusedAttention` of lesson 06, with one tensor more, the taps. A new one starts with the identity taps, and so as ordinary attention. Three of its methods matter here:
#
# - `layer(x)`: all tokens at once, (B, N, E) to (B, N, E);
# - `layer.prefill(x, cache)`: the same, and the tokens go into an empty cache. This is how a model reads what it is asked;
# - `layer.step(x, cache)`: one more token, (B, 1, E).
#
# You can hand it your own decoder.

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
    """The rows of x, the first `read` of them by prefill, the others one by one."""
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
# A sequence written token by token is the sequence computed at once.
#
# ## 9. The package's kernel, with your merge
#
# `kernels/conv/decode.py` has the splits as a kernel too. A block is four warps, and a warp a split of its own (the block merges its four before it writes a state). A warp takes 32 keys at a time, a lane each. The lane computes the
# scores of its key with all rows of the window; the scores of the last 64 keys stay in shared memory, in a ring, and as soon as the right neighbours of a key are there its `T` is made. So inside a split no key is read twice, and the halo is needed only at the
# two ends. This is the ring of a warp, with 7 taps in a row (drawn, not measured):


# %% jupyter={"source_hidden": true}
def draw_ring(steps, c_k, lanes=32):
    """The 64 places of the ring: which keys' scores are there after each step."""
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
    axes.text(-1, -0.3, "place", ha="right")
    axes.set(xlim=(-8, 64.5), ylim=(1.5 * steps - 0.4, -1))
    axes.axis("off")
    return figure


show_figure(
    draw_ring(4, 7),
    "the 64 places of a ring after four steps, as two halves of 32. A step fills one "
    "half with the scores of 32 new keys, blue: step 0 the left half with the keys -3 "
    "to 28, step 1 the right half with 29 to 60, step 2 the left half again with 61 to "
    "92, step 3 the right half with 93 to 124. Of the other half, grey, the last six "
    "places are orange: these scores of the step before are needed still, by the "
    "convolution of the first new keys.",
)

# %% [markdown]
# It writes the same `parts` as you did, and its second kernel has the arguments of yours. Let us swap it.

# %% tags=["uses-exercise"]
mine = cuda.jit(merge_splits) if device == "cuda" else merge_splits


def with_my_merge(kernel, grid, block, *arguments):
    """A launch, but of your kernel where the package's merge would run,
    which also writes the log-sum-exp of the row (lesson 23 needs it)."""
    if kernel is merge_splits_kernel:
        kernel, arguments = mine, arguments[:2]
    RUNNERS[device](kernel, grid, block, *arguments)


def last_row_error(n, c_q, c_k, splits, run=None):
    """The largest difference of the package's decoder, on this device,
    from the last row in float64; random numbers, two heads."""
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
# Recorded, not run here: one token with a cache of N tokens. "Floor" is the time to read `K` and `V` once at the rate of a copy; "kernels" is the package's decoder; "sdpa" is PyTorch's `scaled_dot_product_attention` with one query, which convolves nothing; "split keys" is the package's decoder with a single tap of 1, which convolves nothing either; "eager" is the reference in PyTorch, and
# "compile" the same through `torch.compile`. Float32, medians, each as a CUDA graph (launched again and again without Python).
#
# **Guess.** With 8 heads, how many times the floor does the package's decoder take with the longest cache? `___` And with the shortest? `___`

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
    title=f"{table['gpu']}, {table['date']}, "
    f"{table['taps'][0]} × {table['taps'][1]} taps; microseconds",
)

# %% [markdown]
# The same for 8 heads, as a picture, both axes logarithmic:

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
axes.set(xlabel="N, tokens in the cache", ylabel="microseconds for a token")
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
# With 8 heads and 512 tokens the whole cache is 2 MB, and the floor half a microsecond. Merely to start a kernel takes a GPU longer than that, and there are two, one after the other; but starting takes a few microseconds, and the table has more. The rest is waiting: a warp goes through its keys one step after the
# other, and each step waits for memory. The longer the cache, the more the bytes count.
#
# Now look down the column "sdpa". With 65536 keys it takes 7 milliseconds, for 128 heads as for 8. So behaves a kernel with one block for each head (we have not looked inside): it does not divide the
# keys, and with 8 heads it would leave most of the GPU idle. That is what section 4 was about; "split keys", which does, shows what the convolution costs: at most 15 % with 8 heads, and 58 % in the worst row, 128 heads with 512 tokens. (In fairness: decoding is done in half precision, for which PyTorch has other kernels, so this column is no measure of ordinary decoding.)
#
# **In tokens per second**, for 32 such layers and one text:

# %%
rows = []
for n in (512, 8192, 65536):
    floor = 1e6 / (32 * least_us((1, 8, n, 64), table["bandwidth"]))
    row = [tokens_per_second(n, name) for name in ("kernels", "eager")]
    rows.append([n, *(f"{rate:.0f}" for rate in (floor, *row))])
show_table(["N", "floor", "kernels", "eager"], *rows)

# %% [markdown]
# ## Validate
#
# Each stage against an independent one. In float64, or in float32 where a kernel computes; every number of splits from 1 to 12; caches of 1 to 10 tokens.


# %%
def validate(stage, against, pairs, tolerance):
    """One row of the table: pairs of what was found and what was wanted. NaN fails."""
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

print(f"{'stage':34}  {'against':34}  largest difference")
validate("window_scores", "last row of reference.conv_scores", scores, 1e-12)
validate(
    "split_state, merge_splits in sim",
    "last row of lesson 09's forward",
    decodings,
    1e-5,
)
validate(
    "split_state, merge_splits in sim",
    "reference.conv_attention_decode",
    by_package,
    1e-5,
)
validate(
    "ConvAttention.step, from empty",
    "ConvAttention.forward",
    [(stepped[0], wanted)],
    1e-5,
)
validate(
    "ConvAttention.step, after prefill",
    "ConvAttention.forward",
    [(stepped[6], wanted)],
    1e-5,
)

# %% [markdown]
# ### On a real GPU, if there is one
#
# The cells of section 9 have used it already. This one gives it more to do: 1000 keys, and as many splits as the rule chooses. Without a GPU it takes 3 keys. It prints the same line.

# %% tags=["uses-exercise"]
n = 1000 if device == "cuda" else 3
print(
    "the package's splits, your merge, on this device: below 1e-5:",
    last_row_error(n, 6, 11, None, run=with_my_merge) <= 1e-5,
)

# %% [markdown]
# ## In three lines
# - A new token changes no old row: keep `K`, `V` and the last c_q queries, and compute one row. With a long cache, its time is that of reading it.
# - A row of the window masks what comes after its own position; a split owns its keys, and loads P_k and P_r more; what it hands on is (m, l, o), also if it has read nothing.
# - Merge by weights, divide once, and test every number of splits from one to more than there are keys.
#
# **You can now** decode with a cache, on as many blocks as a GPU has, and tell a right decoder from one that only looks right.
#
# **Next:** [lesson 15](15_training.ipynb) puts the layer into a small transformer, and trains it.
