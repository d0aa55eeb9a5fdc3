# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 02 · Flash attention, tile by tile
#
# **85 minutes** · builds on lesson 01 (the running `m, l, o` and its merge) · needs: matrix products in PyTorch
#
# You will be able to
# 1. say how many bytes the N×N matrix of attention takes, and how many bytes are moved because of it;
# 2. compute exact attention in tiles, without that matrix, in both loop orders;
# 3. predict the bytes that each order moves, and say when tiles do **not** help.
#
# You do not need a GPU: everything here is plain PyTorch. The GPU only sets the budget. It has a large memory that is far from its arithmetic units (**global memory**, tens of gigabytes or more) and a small one that is close (**on-chip memory**, about 200 kilobytes for each of its processors). It can compute only with numbers that are on the chip, and moving them there takes most of the time.

# %%
import inspect
import math

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import scaled_dot_product_attention

from course import check, guess, progress_bar, show_figure
from course.figures import BLUE, GREEN, RED, draw_squares
from course.scenes import tile_by_tile
from kernels.reference.tiled import (
    Traffic,
    first_paper_tiles,
    keys_outer,
    initial_state,
    online_softmax,
)
from kernels.reference.tiled import standard, tile_scores, tiles

torch.manual_seed(2)
torch.set_printoptions(precision=4, sci_mode=False)

# %% [markdown]
# ## The matrix that you do not need
#
# Attention takes queries `Q`, keys `K` and values `V`, each of shape (N, d), and returns `O`, also (N, d):
#
# $$S = \frac{1}{\sqrt d}\,Q K^\top, \qquad P = \operatorname{softmax}(S) \text{ along each row}, \qquad O = P V.$$
#
# The inputs and the output have N·d numbers each. The intermediate results `S` and `P` have N·N numbers each.
#
# **Predict.** A layer has 32 heads, N = 4096 tokens, d = 64, and 4 bytes per number (float32). How many bytes do the `Q` of all heads take? `___` MiB. And the `S` of all heads? `___` MiB. (1 MiB = 2²⁰ bytes; 4096 = 2¹².)

# %% tags=["guess"]
guess("02 bytes", mebibytes_of_Q=..., mebibytes_of_S=...)

# %%
N, d, heads, itemsize = 4096, 64, 32, 4
MiB = 2**20
print(f"Q, all heads: {heads * N * d * itemsize // MiB:5} MiB")
print(f"S, all heads: {heads * N * N * itemsize // MiB:5} MiB")

# %% [markdown]
# `S` is N/d = 64 times as large as `Q`, and `P` is the same size as `S`. If you double
# the number of tokens, `S` becomes four times as large.
#
# Space is not even the main problem. The standard algorithm runs one step after the other. Each step reads its inputs from global memory and writes its result back:
#
# | step | read | written |
# |---|---|---|
# | `S = QKᵀ/√d` | Q, K: 2·N·d | S: N² |
# | `P = softmax(S)` | S: N² | P: N² |
# | `O = PV` | P, V: N² + N·d | O: N·d |
#
# In total, **4N² + 4Nd** numbers move between global memory and the chip. In bfloat16 (2 bytes per number) that is 4.4 GB for the layer above. When an H200 copies memory, it moves about 4300 GB/s, reads and writes added together, so this takes 1.0 ms. Its tensor cores reach about 790 TFLOP/s in a good library, so the arithmetic of both products takes 0.17 ms. The arithmetic units wait most of the time.
#
# We measured both on an H200, with PyTorch 2.11. The three steps take 2.3 ms and 2 GiB of extra memory. The single kernel that `scaled_dot_product_attention` runs takes 0.29 ms and almost no extra memory. In this lesson you write what that kernel does.
#
# ## The idea in one picture
#
# Cut the N×N matrix into [**tiles**](../docs/glossary.md). Compute one tile of scores
# on the chip, use it immediately, and forget it. Lesson 01 makes this possible: the
# softmax of a row does not need all scores at the same time. It needs only `m`, `l` and
# `o`, and you can update them with the next few scores at any time. This is
# [**flash attention**](../docs/glossary.md).
#
# You have to process all the tiles, and there are two orders. The numbers in the picture give the order in which the tiles are computed. (The next cell only draws. Run it; you do not need to read it.)


# %% jupyter={"source_hidden": true}
def draw_order(axes, turn, title, kept, carried):
    """Draw a 4×4 grid of tiles; turn(i, j) is the position of tile (i, j)."""
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
        f"stays on the chip: {kept}\nmoved at every tile: {carried}",
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
    "then down the next; K and V stay on the chip, Q is read, and m, "
    "l and O are read and written at every tile. Right, the loop over queries is "
    "outside: along the first row, then along the next; Q, m, l and O stay, and K and "
    "V are read at every tile.",
)

# %% [markdown]
# ## Three numbers on paper, two at a time
#
# Take the scores **1, 3, 2** and the values **10, 20, 30**. Computed in a single tile,
# with the maximum 3, the weights e⁻², 1 and e⁻¹ add up to 1.503, the weighted values
# add up to 32.39, and the attention is 32.39 / 1.503 = 21.55. Now make the tiles two
# keys wide. The first tile has the scores 1 and 3. The last tile is *ragged*, that is,
# shorter than the others: it has only the 2.
#
# | | tile {1, 3} | tile {2} | both |
# |---|---|---|---|
# | m: the largest score | 3 | 2 | max(3, 2) = **3** |
# | l: sum of exp(score − m) | e⁻² + 1 = 1.135 | 1 | 1.135·1 + 1·e⁻¹ = **1.503** |
# | o: sum of exp(score − m)·value | 1.353 + 20 = 21.353 | 30 | 21.353·1 + 30·e⁻¹ = **32.390** |
#
# You treat a tile as you treated one half of the scores in lesson 01: compute its own `m, l, o`, then merge. In the last column, each side is multiplied by exp(its own m − the common m), here by 1 and by e⁻¹. And 32.390 / 1.503 is 21.55 again.
#
# **Predict.** Suppose the ragged tile had a 4 instead of the 2. By which number would you multiply `l = 1.135` and `o = 21.353`? `___`

# %% tags=["guess"]
guess("02 ragged tile", factor=...)

# %% [markdown]
# ## Exercise 2.1 · update · about five lines
#
# A tile of queries has several rows, and each row has its own `m`, `l` and `o`. Write `update(state, scores, values)`, which returns the state after one more tile of keys. With `rows` queries and `columns` keys in the tile, the arguments are
#
# | name | shape | |
# |---|---|---|
# | `state` | `(m, l, o)` | shapes (rows, 1), (rows, 1), (rows, d); before the first tile `m = -inf`, `l = 0`, `o = 0` |
# | `scores` | (rows, columns) | finite |
# | `values` | (columns, d) | |
#
# - Return the new `(m, l, o)` with the same shapes and the same dtype.
# - Do not divide `o` by `l`. That happens once, at the end.
# - Do not loop over rows. `m` and `l` have shape (rows, 1), so in `m * o` PyTorch [**broadcasts**](../docs/glossary.md) `m`: it multiplies each row of `o` by that row's number.
#
# <details><summary>Hint 1: the new maximum</summary>
#
# `scores.amax(dim=1, keepdim=True)` is each row's largest score in this tile, with shape (rows, 1). The new `m` is the larger of this and the old `m`: use `torch.maximum`.
#
# </details>
# <details><summary>Hint 2: what happens to the old l and o?</summary>
#
# They were computed relative to the old `m`, so multiply both by `exp(m - m_new)`. At the first tile this factor is exp(−inf) = 0, so the empty state is multiplied by 0, as it should be.
#
# </details>
# <details><summary>Hint 3: what does the tile add?</summary>
#
# Let `p = torch.exp(scores - m_new)`, with shape (rows, columns). The tile adds `p.sum(dim=1, keepdim=True)` to `l`, and `p @ values` to `o`.
#
# </details>


# %% tags=["exercise"]
def update(state, scores, values):
    """Return the (m, l, o) of some rows after one more tile of keys."""
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
# Now run your `update` on the three scores from the worked example, tile by tile. Do you get 21.55?

# %% tags=["uses-exercise"]
# (m, l, o) = (-inf, 0, 0) for one row, in float32
state = initial_state(rows=1, d=1, like=torch.zeros(()))
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
# Here is Algorithm 1 of the first FlashAttention paper (Dao et al., 2022), as written in `kernels/reference/tiled.py`. Its `update` does the same as yours. `State` is the tuple `(m, l, o)`, with its parts also available as `state.m`, `state.l` and `state.o`. `traffic` is a counter: `traffic.load(k, keys)` copies the rows `keys` of `k` onto the chip and counts the numbers, and `traffic.store(o, queries, tile)` writes a tile back and counts those. Skip the two places with `causal`, which hide later keys from a query.

# %%
print(inspect.getsource(keys_outer))

# %% [markdown]
# Compare it with the left picture:
# - A key tile is loaded **once**, in the outer loop. Then every query tile is processed with it.
# - So each query tile is loaded once for every key tile. Its `m`, `l` and `o` are loaded and stored each time as well, because the chip has no room for those of all N rows.
# - In global memory, `o` is kept divided by `l`. This is why the code has `o_tile * l_tile` on the way in and `state.o / state.l` on the way out.
#
# ### The smallest examples
#
# Take two queries `[1, 1]`, two keys `[0, 2]`, two values `[0, −1]`, and d = 1. Each query has the scores 0 and 2.
#
# **Predict** the two outputs, with e² = 7.389: (1·0 + 7.389·(−1)) / (1 + 7.389) = `___`

# %% tags=["guess"]
guess("02 two queries", output=...)

# %%
q = torch.tensor([[1.0], [1.0]])
k = torch.tensor([[0.0], [2.0]])
v = torch.tensor([[0.0], [-1.0]])
print(
    "tiles      ", keys_outer(q, k, v, rows=1, columns=1, traffic=Traffic()).flatten()
)
print("at once    ", scaled_dot_product_attention(q, k, v).flatten())


# %% [markdown]
# Both outputs are −0.88. Here are two more examples: one is zero except in one corner,
# the other is random. Each is shown with one-row tiles and with two-row tiles.


# %%
def same_as_pytorch(q, k, v, rows, columns, **options):
    """Return whether tiles and PyTorch give the same, element by element."""
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
# ### A larger example
#
# Now take 128 tokens, d = 64, and suppose that the chip holds only 100 numbers. `first_paper_tiles(M, d)` is the first paper's rule for the size of a tile on a chip that holds M numbers. Here it gives one query and one key, so there are 128 × 128 = 16,384 steps. This takes a few seconds, so we show a progress bar: `over` wraps the outer loop.

# %%
Q, K, V = torch.rand(3, 128, 64).unbind()
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
# `torch.isclose(a, b)` tests for each element whether |a − b| ≤ 10⁻⁸ + 10⁻⁵·|b|, and `.all()` tests whether this is true everywhere. Always test every element: a mean would hide one wrong row among 128. NaN is not close to any number, so it fails the test, as it should.
#
# ### Correct is not the same as fast
#
# **Predict.** Here the standard algorithm moves 4N² + 4Nd = 98,304 numbers. These tiles moved
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
# They moved far more. Avoiding the N×N matrix gains nothing if everything else is loaded 128 times. The important question is how **often** each number is loaded, and that depends on the tile size and the loop order.
#
# ## Queries outer
#
# In the left picture, Q, `m`, `l` and O are moved at every tile. In the right one, only K and V are moved, and they are only *read*. FlashAttention-2 (Dao, 2023) swaps the loops:
# - The `m`, `l` and `o` of a query tile remain on the chip until its row of tiles is complete. `o` is divided by `l` once and written once.
# - Query tiles are independent of each other, so on a GPU each can run on a different processor. With keys outside, the processors would have to take turns in updating the same rows of O.
#
# ## Exercise 2.2 · queries_outer · about eight lines
#
# Write the loops of `queries_outer(q, k, v, rows, columns, traffic)`. The lines that create and return `out` are already there. Use your `update`, and these functions from the package:
# - `tiles(n, size)` returns the slices of n rows. The last slice is shorter if n is not a multiple of the size: `tiles(5, 2)` is `[0:2], [2:4], [4:5]`.
# - `traffic.load(array, some_slice)` and `traffic.store(array, some_slice, tile)` move a tile and count its numbers. Do not load a number again if it can stay on the chip.
# - `tile_scores(q_tile, k_tile)` returns the matrix product of `q_tile` and the transposed `k_tile`, divided by √d.
# - `initial_state(rows, d, like=q)` returns the state of `rows` rows before the first tile of keys.
#
# The number of keys may differ from the number of queries. `q`, `k`, `v` and `out` are in global memory: you may only load from them and store to them. The chip has room for a few tiles, but not for all scores of a row, all keys, or all queries.
#
# <details><summary>Hint 1: the skeleton</summary>
#
# Write two loops: `for queries in tiles(len(q), rows):` and inside it `for keys in tiles(len(k), columns):`. The steps are: load Q, create the initial state, load K and V, update, divide, store. Which of them belong in the inner loop?
#
# </details>
# <details><summary>Hint 2: the last tile of queries</summary>
#
# It may have fewer than `rows` rows. Take the number from the loaded tile: `initial_state(len(q_tile), q.shape[1], like=q)`.
#
# </details>
# <details><summary>Hint 3: in words</summary>
#
# For each tile of queries: load Q and create the initial state. For each tile of keys: load K and V, compute the scores, update the state. After the inner loop: store `o / l`.
#
# </details>


# %% tags=["exercise"]
def queries_outer(q, k, v, rows, columns, traffic):
    """Return attention, computed in tiles of `rows` queries and `columns` keys; the
    state of a query tile stays on the chip."""
    out = torch.empty_like(q)
    # BEGIN SOLUTION 2.2
    for queries in tiles(len(q), rows):
        q_tile = traffic.load(q, queries)
        state = initial_state(len(q_tile), q.shape[1], like=q)
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
# **Predict.** Take the same 128 tokens and the same tiles of one query and one key. Which order moves less? By about what factor: 1.5, 4, or 128?

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
# The factor is about 1.5: each step moves three rows of d numbers (Q in, O in, O out) with keys outer, and two (K in, V in) with queries outer. With tiles this small, both are far above the standard algorithm. So how large must a tile be?
#
# Look at it step by step, with 16 tokens and d = 8. Both loop orders run, yours is below, and the figure records every `traffic.load` and `traffic.store`. Move the slider from tile to tile.
#
# **Predict**, before the second step: which of the arrows in step 1 will be missing in step 2, in the upper and in the lower picture?

# %% tags=["uses-exercise"]
tile_by_tile(
    {"keys outer": keys_outer, "queries outer, yours": queries_outer},
    *torch.ones(3, 16, 8).unbind(),
    size=4,
)

# %% [markdown]
# In the upper picture, K and V are loaded only in every fourth step, but Q, O, `m` and `l` are loaded in every step, and O, `m` and `l` are written back. In the lower one, K and V are loaded in every step, Q is loaded and O is written once every four steps, and `m` and `l` never leave the chip.
#
# Look at the bars at the last step. Keys outer ends above the standard algorithm, and queries outer ends below it. Here a tile has 4 rows, which is exactly d/2. After the next exercise you will see why the tile size is compared with d.
#
# ## Exercise 2.3 · bytes_moved · about six lines
#
# Now write the counts as formulas. `bytes_moved(n, d, rows, columns, itemsize)` returns three integers: the **bytes** moved by the standard algorithm, by keys outer and by queries outer, for n queries and n keys. The first one is given. Count both directions, and count exactly: the check runs the three algorithms and compares your result with the counter. Your function must compute the numbers from its arguments, without running an algorithm.
#
# <details><summary>Hint 1: how many tiles?</summary>
#
# A ragged tile is also a tile, so there are `math.ceil(n / columns)` tiles of keys. But all tiles together have exactly n rows.
#
# </details>
# <details><summary>Hint 2: queries outer</summary>
#
# Q is read once and O is written once. K and V are each read once for every tile of queries.
#
# </details>
# <details><summary>Hint 3: keys outer</summary>
#
# K and V are read once. For every tile of keys, Q is read, and O, `m` and `l` are read and written. In addition, O, `m` and `l` are initialised in global memory once at the start: `m` to −inf, and O and `l` to 0. O has n·d numbers, and `m` and `l` have n each.
#
# </details>


# %% tags=["exercise"]
def bytes_moved(n, d, rows, columns, itemsize=4):
    """Return the bytes that move between global memory and the chip:
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
# Next we plot your formulas as lines, and the counts of real runs as marks, for d = 64, float32 and one head. The left plot has tiles of 128 × 128 and N from 128 to 32768. The right plot has N = 4096 and square tiles from 8 to 512. First, count for a few seconds:


# %% tags=["uses-exercise"]
def counted(n, size):
    """Return the bytes moved by the three algorithms, counted while they run on n
    random tokens, d = 64."""
    runs = [Traffic() for _ in range(3)]
    q, k, v = torch.randn(3, n, 64).unbind()
    standard(q, k, v, runs[0])
    keys_outer(q, k, v, size, size, runs[1])
    queries_outer(q, k, v, size, size, runs[2])
    return [4 * run.moved for run in runs]


over_n = {
    n: counted(n, 128)
    for n in progress_bar([128, 256, 512, 1024, 2048], desc="count over N")
}
over_size = {
    size: counted(4096, size)
    for size in progress_bar([64, 128, 256, 512], desc="count over tile size")
}


# %% [markdown]
# **Predict.** In the left plot both axes are logarithmic: which lines are parallel? `___` In the right plot, above which tile size does each order move less than the standard algorithm? Keys outer: `___`, queries outer: `___`

# %% tags=["guess"]
guess("02 traffic", parallel=..., keys_outer_above=..., queries_outer_above=...)

# %% tags=["uses-exercise"] jupyter={"source_hidden": true}
STYLES = {
    "standard": (RED, "-", "s"),
    "keys outer": (BLUE, "--", "o"),
    "queries outer": (GREEN, ":", "^"),
}


all_n, all_sizes = [2**p for p in range(7, 16)], [2**p for p in range(3, 10)]
by_n = [bytes_moved(n, 64, 128, 128) for n in all_n]
by_size = [bytes_moved(4096, 64, size, size) for size in all_sizes]


def plot(axes, sizes, formulas, marks, **labels):
    """Draw a line for each algorithm, and marks for the counted sizes."""
    for index, (name, (colour, line, mark)) in enumerate(STYLES.items()):
        predicted = [moved[index] / 1e6 for moved in formulas]
        axes.loglog(sizes, predicted, line, color=colour, label=name)
        found = [marks[size][index] / 1e6 for size in marks]
        axes.loglog(list(marks), found, mark, color=colour)
    axes.set(ylabel="megabytes moved", **labels)
    axes.set_xticks(sizes, sizes)
    axes.minorticks_off()
    axes.grid(alpha=0.3)


figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
plot(left, all_n, by_n, over_n, xlabel="N (tokens)", title="tiles of 128 × 128")
plot(right, all_sizes, by_size, over_size, xlabel="tile size", title="N = 4096")
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
# In the left plot the lines become parallel, because for long sequences all three counts grow with N². In the right plot the standard algorithm is flat, because it has no tiles.
#
# So tiles do not change the N². They change its coefficient (here without `m` and `l`, which are small compared with rows of d numbers):
#
# | | numbers moved, long sequences | less than the standard if |
# |---|---|---|
# | standard | 4 N² | |
# | keys outer | (3d / columns) N² | columns > ¾ d |
# | queries outer | (2d / rows) N² | rows > ½ d |
#
# Two caveats. First, our counter has no **cache**. A GPU has an L2 cache that many blocks share. It keeps recently used parts of K and V, so fewer bytes come from global memory than we count. Second, traffic is not everything. Even if the traffic is equal, tiles do not need *space* for `S` and `P`. For the layer at the top of this lesson, that saves 4 GiB. With N = 32768 it saves 256 GiB, more than an H200 has.
#
# The next cell draws the space to scale for one head with N = 8192. Each area is proportional to the number of bytes.

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
# A GPU kernel is simpler if all tiles have the same shape, so a ragged last tile is often *padded* with rows of zeros. The function below does this. We run it on the smallest example from above, which has two keys, in tiles of 1, 2, 3 and 4.
#
# **Guess before you run.** With tiles of 3, the third position holds a zero key and a zero value. The answer −0.88
#
# - ( ) stays −0.88, because a zero changes nothing
# - ( ) moves closer to 0
# - ( ) moves farther from 0
# - ( ) becomes NaN


# %% tags=["uses-exercise"]
def padded_attention(q, k, v, columns, fill=0.0, shift=0.0):
    """Return attention over key tiles that are all `columns` wide;
    missing keys and values are rows of zeros."""
    width = math.ceil(len(k) / columns) * columns
    k_padded, v_padded = k.new_zeros(width, k.shape[1]), v.new_zeros(width, v.shape[1])
    k_padded[: len(k)], v_padded[: len(v)] = k, v
    state = initial_state(*q.shape, like=q)
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
# The answer moves closer to 0, and only when the tile width does not divide 2. The zero *value* adds nothing to `o`. But the zero *key* has the **score** 0, like any key that is orthogonal to the query. Its weight is exp(0 − m), not 0, and it is added to `l`. The missing key takes part of the probability: −7.389 / (1 + 7.389 + 1) = −0.787.
#
# How much it takes depends on the other scores. **Predict.** Lower every real score by 5, or raise it by 10. Which of these hides the bug, and which makes it worse?

# %% tags=["uses-exercise"]
for shift in (-5.0, 0.0, 10.0):
    got = padded_attention(q, k, v, columns=3, shift=shift)[0, 0].item()
    print(
        f"real scores {0 + shift:3.0f} and {2 + shift:2.0f}, missing one 0: {got:.5f}"
    )

# %% [markdown]
# The correct answer is −0.88080 all three times, because a softmax does not change when you add a constant to all scores. With real scores far above 0, a test that allows an error of 10⁻⁴ sees nothing wrong. With scores below 0, the missing key takes almost all the probability. A check that tries only large positive scores, or only sizes that the tile width divides, lets this bug through.
#
# **Your fix?** Which score must a missing key have, so that its weight is 0 for any `m`? Try it as `fill`.
#
# <details><summary>Answer</summary>
#
# `-math.inf`, because exp(−inf − m) = 0 for every finite `m`. The last tile always has at least one real key, so `m` is finite. Set the score and not the key: a key of −inf gives scores of ±inf, or NaN where it is multiplied by 0. Padding *queries* with zeros, on the other hand, is harmless. It produces additional rows of O, and you must only take care not to store them.
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
# Compare each stage with the one before it, for 100 queries and keys, d = 16, and tiles of 32 queries and 24 keys (so both last tiles are ragged), in float64. The last row is the 128 × 64 example from above, in float32. The comparison is written so that NaN fails it.


# %% tags=["uses-exercise"]
def validate(stage, against, got, wanted, tolerance):
    """Print one row of the table."""
    agrees = (got - wanted).abs().max().item() <= tolerance
    size, mark = ("below", "✓") if agrees else ("ABOVE", "✗")
    print(f"{stage:22}  {against:34}  {size} {tolerance:.0e}   {mark}")


ragged = (3 * torch.randn(3, 100, 16, dtype=torch.float64)).unbind()
one_by_one = torch.stack(
    [online_softmax(scores, ragged[2]) for scores in tile_scores(*ragged[:2])]
)
by_keys = keys_outer(*ragged, 32, 24, Traffic())
by_queries = queries_outer(*ragged, 32, 24, Traffic())
pytorch = "scaled_dot_product_attention"
at_once = scaled_dot_product_attention(*ragged)

print(f"{'stage':22}  {'against':34}  largest difference")
validate("lesson 01, key by key", pytorch, one_by_one, at_once, 1e-12)
validate("keys outer", "lesson 01, key by key", by_keys, one_by_one, 1e-12)
validate("queries outer (yours)", "keys outer", by_queries, by_keys, 1e-12)
validate("queries outer (yours)", pytorch, by_queries, at_once, 1e-12)
expected = scaled_dot_product_attention(Q, K, V)
validate("128 x 64 in float32", pytorch, O, expected, 1e-5)


# %% [markdown]
# ## With a GPU, if you have one
#
# The same PyTorch code runs wherever its tensors are. The next cell uses your GPU if there is one, otherwise the CPU, and prints the same in both cases. It is *not* fast on a GPU: each small operation is a separate kernel that reads from global memory and writes back. To keep a tile on the chip from one operation to the next, you have to write the kernel yourself. The rest of the course teaches you how.

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
# - Attention needs no N×N matrix in memory: you use each tile of scores immediately,
#   and keep only `m`, `l` and `o`.
# - Keys outer loads K and V once, but moves the state at every tile. Queries outer keeps the state on the chip and loads K and V once for each tile of queries. It moves less, and its query tiles are independent.
# - Tiles pay only if they are large enough (more than d/2 queries), and a missing key needs the score −inf, not 0.
#
# **You can now** compute attention in tiles in both orders, count its traffic before you run it, and handle a ragged last tile.
#
# **Read on:** Tri Dao et al., *FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness* (2022, arXiv:2205.14135), Algorithm 1 and section 3.2 · Tri Dao, *FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning* (2023, arXiv:2307.08691), section 3.1.
#
# **Next:** in [lesson 03](03_threads_and_blocks.ipynb) you build the machine that processes tiles: blocks of threads, shared memory and barriers, made of Python threads.
