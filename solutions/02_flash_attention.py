# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 02 · Flash attention, tile by tile
#
# **85 minutes**, and 10 for the part marked *optional* · builds on lesson 01 (the running `m, l, o` and its merge) · needs: matrix products in PyTorch
#
# You will be able to
# 1. say how many bytes the N×N matrix of attention takes, and how many have to be moved because of it;
# 2. compute exact attention in tiles, without that matrix, in both loop orders;
# 3. predict the bytes that each order moves, and say when tiles do **not** help.
#
# No GPU is needed: everything here is plain PyTorch. The GPU enters only as a budget: it has a large memory that is far from its
# arithmetic (**global memory**: tens of gigabytes or more) and a small one that is close (**on the chip**: about 200 kilobytes for each
# of its processors). Numbers must be on the chip to be computed with. Moving them there is what costs the time.

# %%
import inspect
import math

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import scaled_dot_product_attention

from course import check, progress_bar, show_figure
from course.figures import BLUE, GREEN, RED, draw_squares
from course.scenes import tile_by_tile
from kernels.reference.tiled import (
    Traffic,
    first_paper_tiles,
    keys_outer,
    nothing_read,
    online_softmax,
)
from kernels.reference.tiled import standard, tile_scores, tiles

torch.manual_seed(2)
torch.set_printoptions(precision=4, sci_mode=False)

# %% [markdown]
# ## The matrix nobody asked for
#
# Attention takes queries `Q`, keys `K` and values `V`, each of shape (N, d), and returns `O`, also (N, d):
#
# $$S = \frac{1}{\sqrt d}\,Q K^\top, \qquad P = \operatorname{softmax}(S) \text{ along each row}, \qquad O = P V.$$
#
# What goes in and what comes out has N·d numbers. In between stand `S` and `P` with N·N numbers each.
#
# **Predict.** A layer has 32 heads, N = 4096 tokens, d = 64, and 4 bytes per number (float32). How many bytes are all the `Q`
# together: `___` MiB? And all the `S` together: `___` MiB? (1 MiB = 2²⁰ bytes; 4096 = 2¹².)

# %%
N, d, heads, itemsize = 4096, 64, 32, 4
MiB = 2**20
print(f"Q, all heads: {heads * N * d * itemsize // MiB:5} MiB")
print(f"S, all heads: {heads * N * N * itemsize // MiB:5} MiB")

# %% [markdown]
# `S` is N/d = 64 times as large as `Q`, and `P` is as large again. Twice the tokens make it four times as large.
#
# It is worse than a matter of room. The standard way runs one step after the other, and each step fetches its input from global
# memory and puts its result back there:
#
# | step | read | written |
# |---|---|---|
# | `S = QKᵀ/√d` | Q, K: 2·N·d | S: N² |
# | `P = softmax(S)` | S: N² | P: N² |
# | `O = PV` | P, V: N² + N·d | O: N·d |
#
# Together **4N² + 4Nd** numbers cross between global memory and the chip. In bfloat16 (2 bytes) that is 4.4 GB for the layer above.
# In a plain copy an H200 reads and writes about 4300 GB a second together, so this takes 1.0 ms. Its tensor cores, at the 790 TFLOP/s that a good library
# reaches, need 0.17 ms for the arithmetic of both products. The processors wait most of the time. Measured on an H200, with
# PyTorch 2.11: the three steps take 2.3 ms and 2 GiB beside inputs and output; the one kernel that `scaled_dot_product_attention`
# runs takes 0.29 ms and next to nothing. What that kernel does, you write in this lesson.
#
# ## The idea in one picture
#
# Cut the N×N matrix into **tiles**. Compute one tile of scores on the chip, use it up at once, forget it. Lesson 01 makes this
# possible: a row's softmax does not need all of its scores together. It needs `m`, `l`, `o`, and these can absorb the next few
# scores whenever they come.
#
# All tiles have to be visited, and there are two orders. The numbers say when a tile's turn comes. (The next cell only draws: run it,
# there is no need to read it.)


# %% jupyter={"source_hidden": true}
def draw_order(axes, turn, title, kept, carried):
    """A 4×4 grid of tiles; turn(i, j) is when tile (i, j) is computed."""
    for i in range(4):
        for j in range(4):
            sixth = turn(i, j) == 6
            axes.add_patch(
                plt.Rectangle(
                    (j, i), 0.94, 0.94, facecolor=BLUE if sixth else "#DCE9F2"
                )
            )
            ink = "white" if sixth else "black"
            axes.text(
                j + 0.47,
                i + 0.47,
                turn(i, j),
                ha="center",
                va="center",
                color=ink,
                fontsize=13,
            )
        axes.text(-0.15, i + 0.47, f"Q{i}, O{i}", ha="right", va="center")
        axes.text(i + 0.47, -0.15, f"K{i}, V{i}", ha="center", va="bottom")
    axes.set(xlim=(-1.1, 4), ylim=(4.9, -0.9), aspect="equal")
    axes.text(1.97, -0.55, title, ha="center", va="bottom", fontsize=13)
    axes.text(
        1.97,
        4.2,
        f"stays on the chip: {kept}\ncomes and goes: {carried}",
        ha="center",
        va="top",
    )
    axes.axis("off")


figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4.6), layout="constrained")
draw_order(
    left,
    lambda i, j: 4 * j + i + 1,
    "keys outer (2022)",
    "K, V",
    "Q in; m, l, O in and out",
)
draw_order(
    right, lambda i, j: 4 * i + j + 1, "queries outer (2023)", "Q, m, l, O", "K, V in"
)
show_figure(
    figure,
    "two grids of 4 by 4 tiles; rows are tiles of queries, columns are tiles of keys. "
    "Left, the loop over keys is outside: the tiles are done down the first column, "
    "then down the next; K and V stay on the chip, Q comes, and m, "
    "l and O come and go. Right, the loop over queries is outside: "
    "along the first row, then along the next; Q, m, l and O stay, K and V come.",
)

# %% [markdown]
# ## Three numbers on paper, two at a time
#
# Take the scores **1, 3, 2** and the values **10, 20, 30**. In one go, with the maximum 3, the weights e⁻², 1 and e⁻¹ add up to 1.503, the
# weighted values to 32.39, and the attention is 32.39 / 1.503 = 21.55. Now let the tiles be two keys wide: the first holds the scores 1 and 3; the last
# is **ragged**, too short: it holds only the 2.
#
# | | tile {1, 3} | tile {2} | both |
# |---|---|---|---|
# | m: the largest score | 3 | 2 | max(3, 2) = **3** |
# | l: sum of exp(score − m) | e⁻² + 1 = 1.135 | 1 | 1.135·1 + 1·e⁻¹ = **1.503** |
# | o: sum of exp(score − m)·value | 1.353 + 20 = 21.353 | 30 | 21.353·1 + 30·e⁻¹ = **32.390** |
#
# A tile is treated as lesson 01 treated one half of the scores: find its own `m, l, o`, then merge. In the last column
# each side is multiplied by exp(its own m − the common m): here 1 and e⁻¹. And 32.390 / 1.503 is 21.55 again.
#
# **Predict.** Had the ragged tile held a 4 instead of the 2, by what would `l = 1.135` and `o = 21.353` be multiplied? `___`
#
# <details><summary>Answer</summary>
#
# The common maximum would be 4, so by exp(3 − 4) = e⁻¹ = 0.368; the ragged tile's own `l` and `o` by exp(4 − 4) = 1.
#
# </details>
#
# ## Exercise 2.1 · update · about five lines
#
# A tile of queries has several rows, and each row has its own `m`, `l` and `o`. Write `update(state, scores, values)`: the state
# after one more tile of keys. With `rows` queries and `columns` keys in the tile,
#
# | name | shape | |
# |---|---|---|
# | `state` | `(m, l, o)` | shapes (rows, 1), (rows, 1), (rows, d); before the first tile `m = -inf`, `l = 0`, `o = 0` |
# | `scores` | (rows, columns) | finite |
# | `values` | (columns, d) | |
#
# and return the new `(m, l, o)`, same shapes. `o` is not divided by `l`: that happens once, at the end. Do not loop over rows:
# `m` and `l` are columns, so `m * o` multiplies each row of `o` by its own number.
#
# <details><summary>Hint 1: the new maximum</summary>
#
# `scores.amax(dim=1, keepdim=True)` is each row's largest score in this tile, shape (rows, 1). The new `m` is the larger of it and
# the old one: `torch.maximum`.
#
# </details>
# <details><summary>Hint 2: what happens to the old l and o?</summary>
#
# They were measured against the old `m`. Both are multiplied by `exp(m - m_new)`. At the first tile that is exp(−inf) = 0, which is
# just right: 0 times nothing.
#
# </details>
# <details><summary>Hint 3: what does the tile add?</summary>
#
# Let `p = torch.exp(scores - m_new)`, shape (rows, columns). To `l` it adds `p.sum(dim=1, keepdim=True)`, to `o` it adds `p @ values`.
#
# </details>


# %% tags=["exercise"]
def update(state, scores, values):
    """The (m, l, o) of some rows after one more tile of keys."""
    m, l, o = state
    # BEGIN SOLUTION 2.1
    m_new = torch.maximum(m, scores.amax(dim=1, keepdim=True))
    shrink = torch.exp(m - m_new)
    p = torch.exp(scores - m_new)
    return m_new, shrink * l + p.sum(dim=1, keepdim=True), shrink * o + p @ values
    # END SOLUTION


# %% tags=["check"]
check.ex02_1(update)

# %% [markdown]
# Now your `update` on the three numbers of the page, one tile after the other: does it give 21.55?

# %% tags=["uses-exercise"]
# (m, l, o) = (-inf, 0, 0) for one row, in float32
state = nothing_read(rows=1, d=1, like=torch.zeros(()))
state = update(state, torch.tensor([[1.0, 3.0]]), torch.tensor([[10.0], [20.0]]))
state = update(state, torch.tensor([[2.0]]), torch.tensor([[30.0]]))
m, l, o = state
print(
    f"m = {m.item():.0f}   l = {l.item():.3f}   o = {o.item():.2f}   "
    f"o / l = {(o / l).item():.2f}"
)

# %% [markdown]
# ## Keys outer: the order of the first paper
#
# This is Algorithm 1 of the first FlashAttention paper (Dao and others, 2022) as `kernels/reference/tiled.py` has it. Its `update` does what yours does;
# `State` is the tuple `(m, l, o)`, whose parts it also calls `state.m`, `state.l` and `state.o`.
# `traffic` is a counter: `traffic.load(k, keys)` copies the rows `keys` of `k` onto the chip and counts the numbers,
# `traffic.store(o, queries, tile)` writes a tile back and counts. Skip the two places with `causal` (they hide later keys from a query).

# %%
print(inspect.getsource(keys_outer))

# %% [markdown]
# Read it against the left picture:
# - a key tile is loaded **once**, in the outer loop; all query tiles then pass by it;
# - so each query tile comes and goes once per key tile, and so do its `m`, `l` and `o`: they do not fit on the chip for all N rows;
# - in global memory `o` is kept divided by `l`. Hence `o_tile * l_tile` on the way in and `state.o / state.l` on the way out.
#
# ### The smallest examples
#
# Two queries `[1, 1]`, two keys `[0, 2]`, two values `[0, −1]`, d = 1. Each query has the scores 0 and 2.
#
# **Predict**, with e² = 7.389, both outputs: (1·0 + 7.389·(−1)) / (1 + 7.389) = `___`

# %%
q = torch.tensor([[1.0], [1.0]])
k = torch.tensor([[0.0], [2.0]])
v = torch.tensor([[0.0], [-1.0]])
print(
    "tiles      ", keys_outer(q, k, v, rows=1, columns=1, traffic=Traffic()).flatten()
)
print("in one go  ", scaled_dot_product_attention(q, k, v).flatten())


# %% [markdown]
# That is −0.88. Next, one that has zeros everywhere but in one corner, and a random one; each with tiles of one row and of two.


# %%
def same_as_pytorch(q, k, v, rows, columns, **options):
    """Whether the tiles give what PyTorch gives, element by element."""
    ours = keys_outer(q, k, v, rows, columns, Traffic(), **options)
    return torch.isclose(ours, scaled_dot_product_attention(q, k, v)).all().item()


corner = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
off_corner = torch.tensor([[0.0, 1.0], [0.0, 0.0]])
for name, example in {
    "two by one": (q, k, v),
    "one corner": (corner, corner, off_corner),
    "random 2x2": torch.rand(3, 2, 2).unbind(),
}.items():
    print(
        name,
        [
            same_as_pytorch(*example, rows, columns)
            for rows in (1, 2)
            for columns in (1, 2)
        ],
    )

# %% [markdown]
# ### How large should a tile be? (optional)
#
# As large as the chip allows. Algorithm 1 supposes that the chip holds M **numbers** (not bytes), and takes
#
# $$\text{keys in a tile} = \Big\lceil \frac{M}{4d} \Big\rceil, \qquad \text{queries in a tile} = \min\Big(\Big\lceil \frac{M}{4d} \Big\rceil,\ d\Big).$$
#
# Four tiles of d-wide rows are on the chip together: K, V, Q and O. Each gets a quarter of M, so a tile has M/4 ÷ d rows. But the
# scores are there too: queries × keys numbers. With at most d queries they are at most d · M/(4d) = M/4 numbers. So the `min` is
# what keeps the scores from outgrowing everything else.
#
# **Predict.** For M < 4d², K, V, Q and O fill M already. Do the scores still fit? And what does ⌈ ⌉ do when M is tiny?

# %%
print("     M   d   queries  keys   numbers on the chip")
for M, d in [(2, 1), (10, 1), (9, 2), (100, 64), (12288, 64), (49152, 64)]:
    rows, columns = first_paper_tiles(M, d)
    on_chip = 2 * rows * d + 2 * columns * d + rows * columns + 2 * rows
    print(
        f"{M:6}  {d:2}  {rows:6}  {columns:6}    {on_chip:6}   "
        f"{'fits' if on_chip <= M else 'more than M'}"
    )

# %% [markdown]
# Only the last one fits. The paper counts up to a constant factor, as analyses of algorithms do: with the scores, a tile takes up to 5/4 of M (and
# a little for `m` and `l`). And ⌈ ⌉ never gives less than one row, even where one row of each is too much (M = 100, d = 64). So take the
# two formulas as proportions; a real kernel adds up its own bytes. (12288 numbers are 48 KiB of float32; 49152 are 192 KiB.)
#
# ### Something larger
#
# 256 tokens, d = 64, and a chip that pretends to hold 100 numbers: tiles of one query and one key, 256 × 256 = 65,536 steps. That takes
# some seconds, so it gets a progress bar: `over` wraps the outer loop.

# %%
Q, K, V = torch.rand(3, 256, 64).unbind()
tiny = first_paper_tiles(100, 64)
slow = Traffic()
O = keys_outer(
    Q, K, V, *tiny, slow, over=lambda keys: progress_bar(keys, desc="key tiles")
)
print(
    "equal to PyTorch's:",
    torch.isclose(O, scaled_dot_product_attention(Q, K, V)).all().item(),
)

# %% [markdown]
# `torch.isclose(a, b)` asks of every element whether |a − b| ≤ 10⁻⁸ + 10⁻⁵·|b|, and `.all()` whether the answer was yes everywhere. Ask for all of them: a
# mean would hide one wrong row among 256. A NaN is close to nothing, so it fails, as it should.
#
# ### Right is not fast
#
# **Predict.** The standard algorithm moves 4N² + 4Nd = 327,680 numbers here. These tiles moved
#
# - ( ) a tenth of that
# - ( ) about half
# - ( ) about as many
# - ( ) far more

# %%
plain = Traffic()
standard(Q, K, V, plain)
print(f"standard      {plain.moved:12,} numbers")
print(
    "1 x 1 tiles   "
    f"{slow.moved:12,} numbers, {slow.moved / plain.moved:.0f} times as many"
)

# %% [markdown]
# Far more. Never storing the N×N matrix is no gain if everything else is fetched 256 times over. What counts is how **often** something is
# fetched, and that is for the tile size and the loop order to decide.
#
# ## Queries outer
#
# In the left picture what comes and goes at every tile is Q, `m`, `l` and O. In the right one it is only K and V, and they are only
# *read*. FlashAttention-2 (Dao, 2023) turns the loops round:
# - `m`, `l`, `o` of a query tile stay on the chip until the row of tiles is done; `o` is divided by `l` once, and written once;
# - no query tile needs to know of another. On a GPU each goes to a processor of its own. With keys outside, the processors
#   would have to take turns at the same rows of O.
#
# ## Exercise 2.2 · queries_outer · about eight lines
#
# Write the loops of `queries_outer(q, k, v, rows, columns, traffic)`; its first line and its last, about `out`, stand there already. Use your
# `update`, and from the package
# - `tiles(n, size)`: the slices of n rows, the last one shorter where n is no multiple of the size: `tiles(5, 2)` is `[0:2], [2:4], [4:5]`;
# - `traffic.load(array, some_slice)` and `traffic.store(array, some_slice, tile)`. What is loaded counts, so load nothing twice that can stay;
# - `tile_scores(q_tile, k_tile)`: the product divided by √d;
# - `nothing_read(rows, d, like=q)`: the state before the first tile, for so many rows.
#
# The number of keys may differ from the number of queries. `q`, `k`, `v` and `out` are in global memory: they can be loaded from and stored to, and nothing else. On the chip there is room for
# a few tiles, not for all scores of a row, nor for all keys.
#
# <details><summary>Hint 1: the skeleton</summary>
#
# Two loops: `for queries in tiles(len(q), rows):` and inside it `for keys in tiles(len(k), columns):`. Of loading Q, starting the state, loading
# K and V, updating, dividing and storing, which belong inside the inner loop?
#
# </details>
# <details><summary>Hint 2: the last tile of queries</summary>
#
# It may have fewer than `rows` rows. Ask the loaded tile: `nothing_read(len(q_tile), q.shape[1], like=q)`.
#
# </details>
# <details><summary>Hint 3: in words</summary>
#
# For each tile of queries: load Q, start a state. For each tile of keys: load K and V, compute the scores, update the state. After the inner loop:
# store `o / l`.
#
# </details>


# %% tags=["exercise"]
def queries_outer(q, k, v, rows, columns, traffic):
    """Attention in tiles of `rows` queries and `columns` keys,
    the state of a query tile staying on the chip."""
    out = torch.empty_like(q)
    # BEGIN SOLUTION 2.2
    for queries in tiles(len(q), rows):
        q_tile = traffic.load(q, queries)
        state = nothing_read(len(q_tile), q.shape[1], like=q)
        for keys in tiles(len(k), columns):
            k_tile, v_tile = traffic.load(k, keys), traffic.load(v, keys)
            state = update(state, tile_scores(q_tile, k_tile), v_tile)
        m, l, o = state
        traffic.store(out, queries, o / l)
    # END SOLUTION
    return out


# %% tags=["check"]
check.ex02_2(queries_outer)

# %% [markdown]
# **Predict.** Same 256 tokens, same tiles of one. Which order moves less? By about what factor: 1.5, 4, or 256?

# %% tags=["uses-exercise"]
quick = Traffic()
O = queries_outer(Q, K, V, *tiny, quick)
print(
    "equal to PyTorch's:",
    torch.isclose(O, scaled_dot_product_attention(Q, K, V)).all().item(),
)
print(f"keys outer     {slow.moved:12,} numbers")
print(f"queries outer  {quick.moved:12,} numbers")

# %% [markdown]
# About 1.5: three d-wide rows per step (Q in, O in, O out) against two (K in, V in). With tiles of one, both are far above the
# standard. So, how large must they be?
#
# See it step by step, on 16 tokens with d = 8: both loop orders run, yours below, and the picture keeps every `traffic.load` and `traffic.store`. Move the slider from tile to tile.
# **Predict**, before the second step: which arrows of step 1 are gone in it, above and below?

# %% tags=["uses-exercise"]
tile_by_tile(
    {"keys outer": keys_outer, "queries outer, yours": queries_outer},
    *torch.ones(3, 16, 8).unbind(),
    size=4,
)

# %% [markdown]
# Above, K and V are fetched in every fourth step only, but Q, O, `m` and `l` come in each, and O, `m` and `l` go back. Below, only K and V come; Q comes and O goes once in four steps,
# and `m` and `l` never leave the chip. The bars end on both sides of the standard: here a tile has 4 rows, and d is 8.
#
# ## Exercise 2.3 · bytes_moved · about six lines
#
# Put the counts into formulas: `bytes_moved(n, d, rows, columns, itemsize)` returns three whole numbers, the **bytes** moved by the standard
# algorithm, by keys outer and by queries outer, for n queries and n keys. The standard one is given. Count both directions, and count exactly:
# the check lets the three algorithms run and compares with the counter.
#
# <details><summary>Hint 1: how many tiles?</summary>
#
# A ragged tile is a tile: `math.ceil(n / columns)` tiles of keys. But all tiles together have exactly n rows.
#
# </details>
# <details><summary>Hint 2: queries outer</summary>
#
# Q is read once and O written once. K and V are each read once for every tile of queries.
#
# </details>
# <details><summary>Hint 3: keys outer</summary>
#
# K and V are read once. For every tile of keys: Q is read; O, `m` and `l` are read and written. And O, `m` and `l` are written once more, at the very start (zeros and −inf).
# O has n·d numbers, `m` and `l` have n each.
#
# </details>


# %% tags=["exercise"]
def bytes_moved(n, d, rows, columns, itemsize=4):
    """Bytes that cross between global memory and the chip:
    (standard, keys outer, queries outer)."""
    no_tiles = 4 * n * n + 4 * n * d
    # BEGIN SOLUTION 2.3
    state = n * (d + 2)
    by_keys = state + 2 * n * d + math.ceil(n / columns) * (n * d + 2 * state)
    by_queries = 2 * n * d + math.ceil(n / rows) * 2 * n * d
    return no_tiles * itemsize, by_keys * itemsize, by_queries * itemsize
    # END SOLUTION


# %% tags=["check"]
check.ex02_3(bytes_moved)

# %% [markdown]
# ## Bytes over N, bytes over tile size
#
# Your formulas as lines, and as marks what the counter says when the algorithms really run. d = 64, float32, one head. Left: tiles of 128 × 128,
# N from 128 to 32768. Right: N = 4096 and square tiles from 8 to 512.
#
# **Predict.** Left, both axes logarithmic: which lines are parallel? Right: from which tile size on does each order move less than the standard?

# %% tags=["uses-exercise"]
STYLES = {
    "standard": (RED, "-", "s"),
    "keys outer": (BLUE, "--", "o"),
    "queries outer": (GREEN, ":", "^"),
}


def counted(n, size):
    """Bytes moved by the three algorithms,
    as counted while they run on n random tokens, d = 64."""
    runs = [Traffic() for _ in STYLES]
    q, k, v = torch.randn(3, n, 64).unbind()
    standard(q, k, v, runs[0])
    keys_outer(q, k, v, size, size, runs[1])
    queries_outer(q, k, v, size, size, runs[2])
    return [4 * run.moved for run in runs]


def plot(axes, sizes, formula, marks, **labels):
    """One line for each algorithm, marks where it was counted."""
    for index, (name, (colour, line, mark)) in enumerate(STYLES.items()):
        axes.loglog(
            sizes,
            [formula(size)[index] / 1e6 for size in sizes],
            line,
            color=colour,
            label=name,
        )
        axes.loglog(
            list(marks),
            [marks[size][index] / 1e6 for size in marks],
            mark,
            color=colour,
        )
    axes.set(ylabel="megabytes moved", **labels)
    axes.set_xticks(sizes, sizes)
    axes.minorticks_off()
    axes.grid(alpha=0.3)


over_n = {
    n: counted(n, 128)
    for n in progress_bar([128, 256, 512, 1024, 2048], desc="count over N")
}
over_size = {
    size: counted(4096, size)
    for size in progress_bar([64, 128, 256, 512], desc="count over tile size")
}

figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
all_n, all_sizes = [2**p for p in range(7, 16)], [2**p for p in range(3, 10)]
plot(
    left,
    all_n,
    lambda n: bytes_moved(n, 64, 128, 128),
    over_n,
    xlabel="N (tokens)",
    title="tiles of 128 × 128",
)
plot(
    right,
    all_sizes,
    lambda size: bytes_moved(4096, 64, size, size),
    over_size,
    xlabel="tile size",
    title="N = 4096",
)
left.legend()
show_figure(
    figure,
    "Megabytes moved, both axes logarithmic; lines are formulas, marks are counts, "
    "and every mark lies on its line. Left, over N with 128 × 128 tiles: "
    "three lines that become parallel; in the end keys outer is 2.6 times below the "
    "standard, queries outer 4 times. Right, over the tile size at N = 4096: "
    "the standard is flat at 273 MB; the other two fall as 1 / size and cross it, "
    "queries outer at a tile size of 32, keys outer at about 48.",
)

# %% [markdown]
# The lines on the left become parallel because for long sequences all three grow with N². The standard knows no tiles, so on the right it is flat.
#
# So tiles do not change the N². They change what stands in front of it (here without `m` and `l`, which are small beside d-wide rows):
#
# | | numbers moved, long sequences | less than standard when |
# |---|---|---|
# | standard | 4 N² | |
# | keys outer | (3d / columns) N² | columns > ¾ d |
# | queries outer | (2d / rows) N² | rows > ½ d |
#
# Two notes, so that you do not take more from the picture than is in it. Our counter knows no **cache**: a GPU keeps recently used parts of K and V in one (L2),
# which many blocks share, so less reaches the memory chips than we count. And moving is not all: even where the bytes are equal, `S` and `P` need no *room*
# any more. For the layer at the top that saves 4 GiB; with N = 32768 it saves 256 GiB, more than an H200 has.
# The next cell draws the room to scale, an area for the bytes, for one head with N = 8192.

# %%
tokens, width, size = 8192, 64, 128
numbers = {
    "Q, K, V and O": 4 * tokens * width,
    "S and P": 2 * tokens * tokens,
    "tiles on the chip": 4 * size * width + size * size + 2 * size,
}
show_figure(
    draw_squares({name: 4 * number for name, number in numbers.items()}),
    "three squares, their areas the bytes in float32: Q, K, V and O together 8 MiB; "
    "S and P of the standard algorithm 512 MiB; the tiles of 128 queries and 128 keys "
    "that are on the chip at any time, their scores, m and l, 0.2 MiB.",
)

# %% [markdown]
# ## Bug hunt: the tile that was too short
#
# A GPU kernel likes every tile to have the same shape, so a ragged last tile is often filled up with rows of zeros. The function below does so. It gets
# the smallest example from above, with its two keys, in tiles of 1, 2, 3 and 4.
#
# **Guess before you run.** With tiles of 3, a zero key and a zero value stand in the third place. The answer −0.88
#
# - ( ) stays −0.88: a zero changes nothing
# - ( ) comes closer to 0
# - ( ) moves farther from 0
# - ( ) becomes NaN


# %% tags=["uses-exercise"]
def padded_attention(q, k, v, columns, fill=0.0, shift=0.0):
    """Attention over key tiles that are all `columns` wide:
    missing keys and values are rows of zeros."""
    width = math.ceil(len(k) / columns) * columns
    k_padded, v_padded = k.new_zeros(width, k.shape[1]), v.new_zeros(width, v.shape[1])
    k_padded[: len(k)], v_padded[: len(v)] = k, v
    state = nothing_read(*q.shape, like=q)
    for keys in tiles(width, columns):
        scores = tile_scores(q, k_padded[keys]) + shift
        scores[:, max(0, len(k) - keys.start) :] = (
            fill  # the scores of keys that do not exist
        )
        state = update(state, scores, v_padded[keys])
    m, l, o = state
    return o / l


for columns in (1, 2, 3, 4):
    print(f"tiles of {columns}: {padded_attention(q, k, v, columns)[0, 0].item():.3f}")

# %% [markdown]
# Closer to 0, and only where 2 is no multiple of the tile. The zero *value* adds nothing to `o`. But the zero *key* has the **score** 0, like any key at a right angle
# to the query; its weight is exp(0 − m), not 0, and it goes into `l`. A key that does not exist takes its share of the probability:
# −7.389 / (1 + 7.389 + 1) = −0.787.
#
# How much it takes depends on the others. **Predict:** every real score lowered by 5, or raised by 10: which hides the bug, which makes it worse?

# %% tags=["uses-exercise"]
for shift in (-5.0, 0.0, 10.0):
    got = padded_attention(q, k, v, columns=3, shift=shift)[0, 0].item()
    print(
        f"real scores {0 + shift:3.0f} and {2 + shift:2.0f}, missing one 0: {got:.5f}"
    )

# %% [markdown]
# The right answer is −0.88080 all three times, as a softmax does not mind a shift. With real scores far above 0 a test that allows an error of 10⁻⁴ sees nothing wrong; with
# scores below 0 the missing key takes almost everything. A check that tries only large positive scores, or only sizes that fit, passes this bug.
#
# **Your fix?** What must the score of a key that does not exist be, so that its weight is 0 whatever `m` is? Try it as `fill`.
#
# <details><summary>Answer</summary>
#
# `-math.inf`: exp(−inf − m) = 0 for every finite `m`, and the last tile always has at least one real key, so `m` is finite. Set the score, not the key: a key of −inf
# gives scores of ±inf, or NaN where it meets a 0. Queries filled up with zeros, on the other hand, are harmless: they make rows of O that nobody reads, if you take care not to store them.
#
# </details>

# %% tags=["uses-exercise"]
for columns in (1, 2, 3, 4):
    print(
        f"tiles of {columns}: "
        f"{padded_attention(q, k, v, columns, fill=-math.inf)[0, 0].item():.3f}"
    )

# %% [markdown]
# ## Validate
#
# Each stage against the one before, with 100 queries and keys, d = 16, tiles of 32 queries and 24 keys (so both last tiles are ragged), in float64; then the 256 × 64 from above
# in float32. The comparison is written so that NaN fails it.


# %% tags=["uses-exercise"]
def validate(stage, against, got, wanted, tolerance):
    """One row of the table."""
    agrees = (got - wanted).abs().max().item() <= tolerance
    print(
        f"{stage:22}  {against:34}  {'below' if agrees else 'ABOVE'} {tolerance:.0e}   "
        f"{'✓' if agrees else '✗'}"
    )


ragged = (3 * torch.randn(3, 100, 16, dtype=torch.float64)).unbind()
one_by_one = torch.stack(
    [online_softmax(scores, ragged[2]) for scores in tile_scores(*ragged[:2])]
)
by_keys = keys_outer(*ragged, 32, 24, Traffic())
by_queries = queries_outer(*ragged, 32, 24, Traffic())
in_one_go = scaled_dot_product_attention(*ragged)

print(f"{'stage':22}  {'against':34}  largest difference")
validate(
    "lesson 01, key by key",
    "scaled_dot_product_attention",
    one_by_one,
    in_one_go,
    1e-12,
)
validate("keys outer", "lesson 01, key by key", by_keys, one_by_one, 1e-12)
validate("queries outer (yours)", "keys outer", by_queries, by_keys, 1e-12)
validate(
    "queries outer (yours)",
    "scaled_dot_product_attention",
    by_queries,
    in_one_go,
    1e-12,
)
validate(
    "256 x 64 in float32",
    "scaled_dot_product_attention",
    O,
    scaled_dot_product_attention(Q, K, V),
    1e-5,
)

# %% [markdown]
# ## With a GPU, if you have one
#
# The same PyTorch lines run where their tensors are. This cell takes your GPU if there is one, else the CPU, and prints the same either way. It is *not*
# fast on a GPU: each small operation is a kernel of its own, and each of them fetches from global memory and puts back. To keep a tile on the chip from one operation to
# the next, you have to write the kernel. That is what the rest of the course is about.

# %% tags=["uses-exercise"]
device = "cuda" if torch.cuda.is_available() else "cpu"
on_device = torch.randn(3, 512, 64, device=device).unbind()
error = (
    (
        queries_outer(*on_device, 128, 128, Traffic())
        - scaled_dot_product_attention(*on_device)
    )
    .abs()
    .max()
    .item()
)
print("tiles agree with scaled_dot_product_attention to 1e-5:", error <= 1e-5)

# %% [markdown]
# ## In three lines
#
# - Attention needs no N×N matrix in memory: a tile of scores is used up at once, and `m, l, o` remember what matters.
# - Keys outer fetches K and V once but carries the state back and forth; queries outer keeps the state and fetches K and V once for each tile of queries, which is less, and independent.
# - Tiles pay only when they are large enough (more than d/2 queries), and a key that does not exist needs the score −inf, not 0.
#
# **You can now** compute attention in tiles in both orders, count its traffic before you run it, and handle a ragged last tile.
#
# **Next:** [lesson 03](03_threads_and_blocks.ipynb) builds the machine that will work on tiles: blocks of threads, shared memory and barriers, out of Python threads.
