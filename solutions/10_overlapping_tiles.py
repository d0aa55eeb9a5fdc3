# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 10 · Overlapping tiles
#
# **90 minutes** · builds on lesson 02 (tiles, queries outer, `Traffic`) and lesson 09 (convolutional attention
# and its two masks)
#
# After this lesson you will be able to
#
# 1. say which scores a tile must load to compute the ones it owns, for any tap size and at every edge;
# 2. compute convolutional attention tile by tile, without an N×N matrix, and say what the overlap costs.
#
# Lesson 02 got rid of the N×N matrix: compute a tile of scores, use it, forget it. Lesson 09 mixed each score
# with its neighbours. At first, the two conflict: a score at the edge of a tile has neighbours in *another*
# tile, and that tile has already been discarded, or has not been computed yet.
#
# You don't need a GPU. Everything here is for a single head, with causal attention.

# %%
import functools
import inspect
import math
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch.nn.functional import conv2d, scaled_dot_product_attention
from course import check, progress_bar, show_figure
from course.figures import BLUE, GREEN, ORANGE, RED
from kernels import reference
from kernels.reference import conv_tiled
from kernels.reference.conv_tiled import halo_of, load_rows, owned
from kernels.reference.tiled import Traffic, initial_state, queries_outer, update
from sim.viz import Scene

torch.manual_seed(10)
torch.set_default_dtype(torch.float64)

# %% [markdown]
# ## Six numbers, two tiles
#
# Let's start with one row of scores, 1 2 4 3 1 2, and three taps, 1 2 1. Each score counts twice, and each of
# its neighbours once. Beyond the ends there are zeros.
#
# | | 0 | 1 | 2 | 3 | 4 | 5 |
# |---|---|---|---|---|---|---|
# | score | 1 | 2 | 4 | 3 | 1 | 2 |
# | T | 4 | 9 | 13 | 11 | 7 | 5 |
#
# For example, `T[2]` = 1·2 + 2·4 + 1·3 = 13. Now cut the row in two. The first tile has the scores 0 to 2,
# the second has the scores 3 to 5, and neither can read the other's scores.
#
# **Predict.** Each tile convolves the scores it has, and uses zeros for whatever it lacks. Which of the six
# `T` come out wrong, and what do they become?


# %%
def convolve_row(row, taps=(1, 2, 1)):
    """Convolve a row of numbers, with zeros beyond its ends."""
    padded = [0, *row, 0]
    return [
        sum(tap * padded[j + b] for b, tap in enumerate(taps)) for j in range(len(row))
    ]


row = [1, 2, 4, 3, 1, 2]
print("in one piece    ", convolve_row(row))
print("two tiles       ", convolve_row(row[:3]) + convolve_row(row[3:]))
print("with a neighbour", convolve_row(row[:4])[:3] + convolve_row(row[2:])[1:])

# %% [markdown]
# `T[2]` loses 1·3 and becomes 10. `T[3]` loses 1·4 and becomes 7. At the ends of the sequence, zeros are
# correct. At the edge of a *tile* they are not, because there are scores beyond the edge, in another tile.
# (Published pseudocode for decoding makes exactly this mistake. Lesson 14b comes back to it.)
#
# The third line is correct. There, each tile **loads** one more score on the side where it has a neighbour,
# convolves, and keeps only the part that it **owns**: `T[0]` to `T[2]`, and `T[3]` to `T[5]`. The tile cannot
# compute a correct `T` for the extra position, because that position's other neighbour is missing. It doesn't
# have to: the tile that owns the position can. The part that a tile loads but does not own is called its
# [**halo**](../docs/glossary.md).
#
# Remember two things. A halo is loaded *twice*, and its scores are computed twice. But a halo value must not
# be *counted* twice: each `T` belongs to exactly one tile.
#
# ## From a row to a matrix
#
# In lesson 09, `T[i, j]` depends on the rows i − P_q to i and the columns j − P_k to j + P_r of `S0`, with
#
# $$P_q = c_q - 1, \qquad P_k = \lfloor (c_k - 1)/2 \rfloor, \qquad P_r = c_k - 1 - P_k .$$
#
# Take 3 × 4 taps: P_q = 2, P_k = 1, P_r = 2. Let a tile own three rows, starting at row 4, and three columns,
# starting at column 6.
#
# **On paper.** Its first entry is `T[4, 6]`. Which rows and which columns does it depend on? Its last entry
# is `T[6, 8]`. How many scores must the tile load, to own 9?
#
# <details><summary>Answer</summary>
#
# `T[4, 6]` depends on the rows 2 to 4 and the columns 5 to 8. `T[6, 8]` depends on the rows 4 to 6 and the
# columns 7 to 10. Together these are the rows 2 to 6 and the columns 5 to 10, that is, 5 × 6 = 30 scores.
# </details>
#
# ### Exercise 10.1 · to_load · about three lines
#
# A tile owns `rows` rows, starting at row `i0`, and `columns` columns, starting at column `j0`. Return four
# whole numbers `(top, bottom, left, right)`: the tile must load the rows `top`, …, `bottom − 1` and the
# columns `left`, …, `right − 1`, and no more.
#
# Near the edges of the sequence, these can be below 0, or N and above. Leave them as they are: the function
# that loads the rows fills in zeros there.
#
# <details><summary>Hint 1: the rows</summary>
#
# The first owned row depends on rows up to `i0 - P_q`. The last owned row, `i0 + rows - 1`, depends on no row
# below itself, because no query looks at a later one.
# </details>
#
# <details><summary>Hint 2: the columns</summary>
#
# The first owned column reaches `P_k` columns to the left. The last one, `j0 + columns - 1`, reaches `P_r`
# columns to the right. If `c_k` is even, the two are different.
# </details>


# %% tags=["exercise"]
def to_load(i0, j0, rows, columns, c_q, c_k):
    """Return (top, bottom, left, right) of the scores that a tile must load to own
    rows [i0, i0 + rows) and columns [j0, j0 + columns)."""
    # BEGIN SOLUTION 10.1
    left = (c_k - 1) // 2
    return i0 - (c_q - 1), i0 + rows, j0 - left, j0 + columns + c_k - 1 - left
    # END SOLUTION


# %% tags=["check"]
check.ex10_1(to_load)

# %% [markdown]
# ### Your tile, in a picture
#
# The next cell draws the result of your function for 12 tokens and 3 × 4 taps, with tiles that load 7 × 7
# scores. **Dark** cells are owned by the tile. **Pale** cells are loaded but not owned. **Green** cells are
# owned by earlier tiles and not loaded by this one. The stairs are the diagonal: a query sees the keys to the
# left of them. A `0` marks a position where zero is loaded instead of a score, either because it is outside
# the sequence or because the key comes after the query of its row.
#
# Move the slider from tile to tile. (The cell only draws; you don't need to read it.)


# %% tags=["uses-exercise"] jupyter={"source_hidden": true}
def tiles_visited(n, rows, columns):
    """Return (i0, j0, rows, columns) of each tile, in order. Tiles above the
    diagonal are left out, and the last ones may be smaller."""
    return [
        (i0, j0, min(rows, n - i0), min(columns, n - j0))
        for i0 in range(0, n, rows)
        for j0 in range(0, min(i0 + rows, n), columns)
    ]


def draw_tiles(n, c_q, c_k, loaded):
    """Draw the tiles of n tokens, one step per tile.
    A tile loads (rows, columns) = loaded."""
    side, (height, width) = 22, loaded
    halo = halo_of(torch.empty(c_q, c_k))
    lines, places = range(-halo.above, n), range(-halo.left, n + halo.right)
    scene = Scene(
        f"{n} tokens, {c_q} × {c_k} taps, tiles that load {height} × {width}",
        76 + side * len(places),
        70 + side * len(lines),
        adds=False,
    )
    scene.legend(
        6,
        ("global-load", "owned"),
        ("load", "loaded, not owned"),
        ("active", "owned by an earlier tile"),
        ("empty", "not loaded"),
    )
    scene.cells = [
        (66 + side * (j + halo.left), 56 + side * (i + halo.above), side - 2, side - 2)
        for i in lines
        for j in places
    ]
    scene.labels += [
        (58, 56 + side * (i + halo.above) + 14, f"query {i}", "end") for i in range(n)
    ]
    scene.labels += [
        (58, 48, "key", "end"),
        *((66 + side * (j + halo.left) + 10, 48, j, "middle") for j in range(n)),
    ]
    for i in range(n):  # the diagonal, as stairs between the past and the future
        x, y = 64 + side * (i + halo.left), 54 + side * (i + halo.above)
        scene.boxes += [("line", x, y, side, 2), ("line", x + side, y, 2, side)]
    before = set()
    for i0, j0, rows, columns in tiles_visited(n, *owned(loaded, halo)):
        top, bottom, left, right = to_load(i0, j0, rows, columns, c_q, c_k)
        words = (
            f"rows {top} to {bottom - 1}, columns {left} to {right - 1}: "
            f"{(bottom - top) * (right - left)} loaded, {rows * columns} owned"
        )
        looks = {cell: (cell, "active", "") for cell in before}
        for i in range(top, bottom):
            for j in range(left, right):
                mine = i0 <= i < i0 + rows and j0 <= j < j0 + columns
                zero = not (0 <= i < n and 0 <= j <= i)
                cell = (i + halo.above) * len(places) + j + halo.left
                look = "global-load" if mine else "load"
                looks[cell] = cell, look, "0" if zero else ""
                if mine:
                    before.add(cell)
        looks = list(looks.values())
        scene.steps.append((words, looks))
    return scene.view()


draw_tiles(12, 3, 4, (7, 7))

# %% [markdown]
# A tile that loads 7 × 7 scores owns 5 × 4: it loads P_q = 2 rows above the part it owns, and P_k + P_r = 3
# columns at its sides. At the right and the bottom of the sequence there is less to own.
#
# Tiles that lie entirely above the diagonal are not visited, because none of their queries sees any of their
# keys. In the tiles that are visited, every score on or below the diagonal is dark in **exactly one** tile.
#
# **Predict.** How often is the score of query 4 and key 3 loaded? And which scores are loaded only once?

# %% tags=["uses-exercise"]
times = np.zeros((12, 12), dtype=int)
for tile in tiles_visited(12, 5, 4):
    top, bottom, left, right = to_load(*tile, 3, 4)
    times[max(top, 0) : bottom, max(left, 0) : right] += 1
for line in times:
    print(" ".join(map(str, line)))

# %% [markdown]
# Row 4 is owned by the first row of tiles and is a halo row of the second. Column 3 is owned by one tile and
# is in the halo of the tile to its right. So the score is loaded 2 · 2 = 4 times. Scores far enough from
# every edge of a tile are loaded only once, for example those in row 0 with keys 0 to 2.
#
# ### How much of a tile is owned?
#
# On a GPU, the constraint runs the other way. How much a block can **load** is fixed, because the tile has to
# fit into the shared memory and the registers of a [**streaming multiprocessor**](../docs/glossary.md). What
# it owns is whatever the halo leaves.
#
# **Predict.** With c_q = 3, c_k = 5 and a 16 × 16 tile, how many of the 256 loaded scores are owned? And with
# 15 × 15 taps?

# %%
for taps in [(1, 1), (3, 5), (7, 7), (6, 11), (15, 15)]:
    halo = halo_of(torch.empty(taps))
    rows, columns = owned((16, 16), halo)
    print(
        f"{taps[0]:2} × {taps[1]:2} taps: {rows:2} × {columns:2} = {rows * columns:3} "
        f"of 256 owned; {256 / (rows * columns):4.1f} scores computed per owned score"
    )

# %% [markdown]
# 14 × 12 = 168 are owned, and a neighbour computes the other 88 again. With 15 × 15 taps, a tile loads 256
# scores to own four. The result is still correct, but most of the work is wasted. Larger tiles fix that, and
# below we work out how large they have to be.
#
# ## Load, then mask, then convolve
#
# Loading from outside the sequence must give zeros, and never values from another array.
# `kernels/reference/conv_tiled.py` has a function for this, which also counts what it reads:

# %%
print(inspect.getsource(load_rows))
numbers = torch.arange(1.0, 6.0)[:, None]
for first, count in [(-2, 4), (3, 4), (7, 2)]:
    print(
        f"rows {first} to {first + count - 1} of 1 2 3 4 5:",
        load_rows(numbers, first, count, Traffic()).flatten().tolist(),
    )

# %% [markdown]
# In plain Python, `numbers[-2:2]` would be empty, and `numbers[-2]` is the last row but one. In a Numba
# kernel, `q[-2]` counts from the end too. In CUDA C++ it is whatever lies before `q` in memory. All three are
# wrong here.
#
# We load rows of `Q` and `K`, not scores. A row of zeros in `Q` gives a row of zeros in `QKᵀ`, so the zeros
# outside the sequence take care of themselves. The zeros **above the diagonal** do not: these scores exist
# and are not 0, so we have to mask them. And the mask must use the query and the key that each loaded row and
# column *stands for*.
#
# **Predict.** The tile's owned part starts at row 4 and column 6, with 3 × 4 taps. Which query is row 0 of
# the *loaded* scores? Which key is column 0?
#
# <details><summary>Answer</summary>
#
# Query 4 − P_q = 2 and key 6 − P_k = 5. After the convolution the halo is gone: row 0 of `T` is query 4, and
# column 0 is key 6. So the two masks start at different positions.
# </details>
#
# ### Exercise 10.2 · convolved_tile · about six lines
#
# Write `convolved_tile(q_tile, k_tile, w, i0, j0)`. It returns the part of `T` that the tile owns, with shape
# (rows, columns).
#
# | name | shape | |
# |---|---|---|
# | `q_tile` | (P_q + rows, d) | the queries from i0 − P_q on, with rows of zeros outside the sequence |
# | `k_tile` | (P_k + columns + P_r, d) | the keys from j0 − P_k on, likewise |
# | `w` | (c_q, c_k) | the taps |
#
# - Use the steps of lesson 09: scores divided by √d, the mask with 0, the convolution, the mask with
#   −∞.
# - Don't modify the inputs. Create no tensor much larger than the tile, and call no
#   function of the `kernels` package except `halo_of`. The check measures the tensors, so use PyTorch and not
#   NumPy.
# - `later(rows, columns, i0, j0)`, below, is the mask of a tile whose first row is query i0 and whose first
#   column is key j0. It is True where the key comes after the query.
#
# <details><summary>Hint 1: the first mask</summary>
#
# `later(len(q_tile), len(k_tile), i0 - P_q, j0 - P_k)`, for `masked_fill(…, 0.0)`.
# </details>
#
# <details><summary>Hint 2: the convolution</summary>
#
# In lesson 09 you padded with zeros. Here the neighbours are already loaded, so there is nothing to pad.
# `conv2d(s0[None, None], w[None, None])[0, 0]` computes only the positions at which all taps are inside
# `s0`. These are exactly the positions that the tile owns.
# </details>
#
# <details><summary>Hint 3: the second mask</summary>
#
# The result `t` has as many rows and columns as the tile owns: `later(*t.shape, i0, j0)`.
# </details>


# %% tags=["exercise"]
def later(rows, columns, i0, j0):
    """Return a (rows, columns) mask, True where the key j0 + column comes after the
    query i0 + row."""
    return torch.arange(columns) + j0 > torch.arange(rows)[:, None] + i0


def convolved_tile(q_tile, k_tile, w, i0, j0):
    """Return the part of T that a tile owns: rows from i0 on, columns from j0 on.
    q_tile and k_tile contain the halo."""
    c_q, c_k = w.shape
    # BEGIN SOLUTION 10.2
    s = q_tile @ k_tile.T / math.sqrt(q_tile.shape[1])
    future = later(*s.shape, i0 - (c_q - 1), j0 - (c_k - 1) // 2)
    t = conv2d(s.masked_fill(future, 0.0)[None, None], w[None, None])[0, 0]
    return t.masked_fill(later(*t.shape, i0, j0), -math.inf)
    # END SOLUTION


# %% tags=["check"]
check.ex10_2(convolved_tile)

# %% [markdown]
# ## The loop
#
# What remains is the loop of lesson 02, with queries outermost. For each tile of rows, start a state `m, l,
# o`. For each tile of keys, compute `T` and fold it into the running state. At the end, divide by `l` and
# store. The state belongs to the **owned** rows, and it stays on the chip. Compared with lesson 02, each tile
# loads more:
#
# | | loads | because |
# |---|---|---|
# | `Q` | the owned rows and P_q rows above, once per tile of rows | the convolution reaches up |
# | `K` | the owned columns, P_k to the left and P_r to the right | the convolution reaches to both sides |
# | `V` | the owned columns only | the softmax and the product with `V` come after the convolution |
#
# `update(state, scores, values)` is the function from lesson 02 with one more precaution, which lesson
# 10b explains. Besides `O`, we store one number per row, `L = m + log l`: the logarithm of the sum of all
# exp(T) in the row, called its [**log-sum-exp**](../docs/glossary.md). The backward pass of lesson 12 needs
# it.
#
# ### Exercise 10.3 · forward · about fifteen lines
#
# Write the loops of `forward(q, k, v, w, loaded, traffic)`. `loaded` is the size (rows, columns) of the
# scores that a tile loads. Use
#
# - your own `to_load` and `convolved_tile`;
# - `load_rows(array, first, count, traffic)`, which fills in zeros outside the sequence. Load `Q` once per
#   tile of rows. The taps `w` are already on the chip, so don't count them;
# - `initial_state(count, d, like=q)` for a new state, and `update(state, t, v_tile)`;
# - `traffic.store(out, slice(i0, i0 + count), …)` for the output, and the same for `log_sum`.
#
# Don't visit a tile of keys that begins after the last row of the tile. Between key tiles, keep only m, l and
# o. Store each output tile when it is ready. Read the check's `q`, `k` and `v` with
# `load_rows` or `traffic.load` only: they support no slicing and no arithmetic. The check's scores go up to
# ±1000.
#
# <details><summary>Hint 1: the last tile of rows</summary>
#
# It owns `count = min(rows, n - i0)` rows. Inside the loop, always use `count`, not `rows`.
# </details>
#
# <details><summary>Hint 2: the loop over keys</summary>
#
# `for j0 in range(0, i0 + count, columns)`. It ends at the diagonal, and i0 + count is never more than n. The
# last tile owns `min(columns, n - j0)` columns.
# </details>
#
# <details><summary>Hint 3: what goes where?</summary>
#
# Before the inner loop: get `top, bottom` from `to_load`, load the Q tile, and create a
# new state. Inside: get `left, right` from `to_load`, load the K tile, load the V tile
# with `load_rows(v, j0, width, traffic)`, then call `update`. After it: store `o / l`
# and `(m + torch.log(l))[:, 0]`, because `m` and `l` have the shape (count, 1).
# </details>


# %% tags=["exercise"]
def forward(q, k, v, w, loaded, traffic):
    """Compute causal convolutional attention of one head in tiles that load
    (rows, columns) = loaded of the scores. Return (O, L), shapes (N, d) and (N,)."""
    n, d = q.shape
    rows, columns = owned(loaded, halo_of(w))
    out, log_sum = torch.empty_like(q), q.new_empty(n)
    # BEGIN SOLUTION 10.3
    for i0 in range(0, n, rows):
        count = min(rows, n - i0)
        top, bottom, _, _ = to_load(i0, 0, count, columns, *w.shape)
        q_tile = load_rows(q, top, bottom - top, traffic)
        state = initial_state(count, d, like=q)
        for j0 in range(0, i0 + count, columns):
            width = min(columns, n - j0)
            _, _, left, right = to_load(i0, j0, count, width, *w.shape)
            k_tile = load_rows(k, left, right - left, traffic)
            v_tile = load_rows(v, j0, width, traffic)
            state = update(state, convolved_tile(q_tile, k_tile, w, i0, j0), v_tile)
        m, l, o = state
        traffic.store(out, slice(i0, i0 + count), o / l)
        traffic.store(log_sum, slice(i0, i0 + count), (m + torch.log(l))[:, 0])
    # END SOLUTION
    return out, log_sum


# %% tags=["check"]
check.ex10_3(forward)

# %% [markdown]
# Here is the worked example of lesson 09 again: four tokens and 2 × 3 taps, in tiles that load 3 × 4 scores
# and so own 2 × 2. On paper, the output was 4, 8, 6, 7. (We used powers of 2 instead of e, hence the ln 2.)

# %% tags=["uses-exercise"]
small_s = torch.tensor([[1.0, 3, 2, 4], [2, 1, 5, 0], [0, 1, 1, 6], [1, 2, 3, 2]])
small_w = torch.tensor([[1.0, 0, 2], [0, 1, -1]])
small_v = torch.tensor([[4.0, 0, 0, 0], [10, 0, 0, 0], [3, 0, 0, 0], [9, 0, 0, 0]])
small_o, small_l = forward(
    2 * math.log(2) * small_s, torch.eye(4), small_v, small_w, (3, 4), Traffic()
)
print("out", [f"{number:.2f}" for number in small_o[:, 0].tolist()])

# %% [markdown]
# ## What the halo costs
#
# The standard way has three steps: the masked scores; the convolution with its mask and
# the softmax; the product with `V`. So `S0` and `P` are each written and read back. If
# the softmax is a separate step, as it is in PyTorch, `T` is also written and read
# back. Together that is **6N² + 4Nd** elements. (Lesson 09b counted 14N², because there
# each mask and each padding was a separate step.) Compare this with what your `forward`
# moves for N = 256 and d = 64.
#
# **Predict.** With 15 × 15 taps and tiles that load 16 × 16 scores, do the tiles move less than the standard
# way, or more? (The next cell takes a few seconds.)

# %%
N, d = 256, 64
Q, K, V = torch.randn(3, N, d)
plain = 6 * N * N + 4 * N * d
SIZES, TAPS = [16, 24, 32, 48, 64], [(1, 1), (7, 7), (15, 15)]


@functools.cache
def moved(taps, size):
    """Return how many elements your forward moves with taps of this shape and tiles
    that load size × size scores."""
    traffic = Traffic()
    forward(Q, K, V, torch.randn(taps) / 15, (size, size), traffic)
    return traffic.moved


# %% tags=["uses-exercise"]
settings = [(taps, size) for taps in TAPS for size in (16, 64)]
counts = [moved(*setting) for setting in progress_bar(settings, desc="forward")]
print(f"{'standard':18}{plain:>12,} elements")
for ((c_q, c_k), size), count in zip(settings, counts):
    print(
        f"{c_q:2} × {c_k:2}, {size} × {size} {count:13,} elements: "
        f"{'less' if count < plain else 'MORE'} than standard"
    )

# %% [markdown]
# With 15 × 15 taps, these tiles own only two rows. For every two queries they fetch all of `K` again, and
# they load eight columns for each one that they own. A correct algorithm is not automatically a fast one, as
# you saw in lesson 02. The next figure shows both costs of the halo as a function of tile size: on the left
# the elements moved, on the right the part of the computed scores that is owned.
#
# **Predict.** With 15 × 15 taps, how large must a square tile be, so that at least half of what it loads is
# owned?

# %% tags=["uses-exercise"]
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
for taps, colour, line in zip(TAPS, (BLUE, GREEN, ORANGE), ("o-", "^--", "s:")):
    label, halo = f"{taps[0]} × {taps[1]} taps", halo_of(torch.empty(taps))
    style = {"color": colour, "label": label}
    part = [moved(taps, size) / plain for size in progress_bar(SIZES, desc=label)]
    left.loglog(SIZES, part, line, **style)
    part = [math.prod(owned((size, size), halo)) / size**2 for size in SIZES]
    right.semilogx(SIZES, part, line, **style)
left.axhline(1, color=RED)
left.text(48, 1.1, "standard", color=RED)
left.set(ylabel="elements moved, standard = 1", title="N = 256, d = 64, counted")
right.axhline(0.5, color="grey", linewidth=0.8)
right.set(
    ylabel="owned part of the loaded scores",
    ylim=(0, 1.05),
    title="scores owned / scores computed",
)
for axes in (left, right):
    axes.set(xlabel="rows and columns loaded")
    axes.set_xticks(SIZES, SIZES)
    axes.minorticks_off()
    axes.grid(alpha=0.3)
right.legend()
show_figure(
    figure,
    "two plots over the rows and columns that a tile loads, 16 to 64. "
    "Left, the elements moved, relative to the standard: all three lines fall. "
    "1 × 1 taps are below the standard from the start, 7 × 7 taps from 24 on, and "
    "15 × 15 taps from 32 on, after 21 times the standard at 16. Right, the owned "
    "part of the loaded scores: all of them for 1 × 1 taps; for 7 × 7 taps 39 % at 16 "
    "and 82 % at 64; for 15 × 15 taps 2 % at 16, one half at 48, 61 % at 64.",
)

# %% [markdown]
# (B − 14)² ≥ B²/2 means B ≥ 14 / (1 − √½) = 47.8. So with 15 × 15 taps you need at least 48 × 48 tiles for
# half of the arithmetic to be useful. With 7 × 7 taps, 21 × 21 tiles are enough.
#
# One more thing about the left plot: causal tiles visit only about half of all keys,
# while the standard way, as we count it, goes through all of them. That factor of 2 has
# nothing to do with the halo. You can see it in the line for 1 × 1 taps.

# %% [markdown]
# ## The package's version
#
# This is `forward` of `kernels/reference/conv_tiled.py`. It also works without the causal mask, and it loads
# its Q tile again with each tile of keys, as the published algorithm does. The rest is what you have written.

# %%
print(inspect.getsource(conv_tiled.forward))

# %% [markdown]
# ## Validate
#
# We compare in float64, with taps of odd, even and non-square sizes and taps larger
# than N, and with tiles that own a single row and tiles larger than the sequence. Each
# stage is compared with the one before.


# %%
def validate(stage, against, found, wanted, tolerance=1e-12):
    """Print one row of the table. NaN fails."""
    agrees = all(
        (mine - theirs).abs().max().item() <= tolerance
        for mine, theirs in zip(found, wanted, strict=True)
    )
    print(
        f"{stage:26}  {against:40}  {'below' if agrees else 'ABOVE'} {tolerance:.0e}   "
        f"{'✓' if agrees else '✗'}"
    )


def whole(function, q, k, v, w):
    """Call a function of (B, H, N, d) tensors and taps (H, c_q, c_k) with one batch
    and one head."""
    return function(q[None, None], k[None, None], v[None, None], w[None])[0, 0]


shapes = [
    (1, 1, 1),
    (1, 3, 3),
    (5, 7, 11),
    (13, 2, 4),
    (33, 3, 3),
    (40, 3, 5),
    (50, 6, 11),
    (50, 15, 14),
    (29, 1, 6),
    (29, 6, 1),
]
cases = [
    (
        *torch.randn(3, n, 8),
        torch.randn(c_q, c_k) / math.sqrt(c_q * c_k),
        (c_q - 1 + rows, c_k - 1 + columns),
    )
    for n, c_q, c_k in shapes
    for rows, columns in [(1, 3), (4, 4), (7, 5), (64, 64)]
]

# %% tags=["uses-exercise"]
by_tiles = [forward(*case, Traffic()) for case in progress_bar(cases, desc="shapes")]
outputs, log_sums = [o for o, _ in by_tiles], [L for _, L in by_tiles]

print(f"{len(cases)} cases\n{'stage':26}  {'against':40}  largest difference")
validate(
    "O in tiles (yours)",
    "kernels.reference.conv_attention",
    outputs,
    [whole(reference.conv_attention, *case[:4]) for case in cases],
)
validate(
    "L in tiles (yours)",
    "logsumexp of kernels.reference.conv_scores",
    log_sums,
    [
        whole(lambda q, k, v, w: reference.conv_scores(q, k, w), *case[:4]).logsumexp(
            dim=1
        )
        for case in cases
    ],
)
validate(
    "O in tiles (yours)",
    "kernels.reference.conv_tiled.forward",
    outputs,
    [conv_tiled.forward(*case, Traffic())[0] for case in cases],
)

# %% tags=["uses-exercise"]
identity = [
    (q, k, v, reference.identity_taps(1, *w.shape, dtype=q.dtype)[0], loaded)
    for q, k, v, w, loaded in cases
]
ordinary = [forward(*case, Traffic())[0] for case in identity]
validate(
    "identity taps",
    "tiles of lesson 02, causal",
    ordinary,
    [queries_outer(*case[:3], 4, 3, Traffic(), causal=True) for case in cases],
)
validate(
    "identity taps",
    "scaled_dot_product_attention",
    ordinary,
    [scaled_dot_product_attention(*case[:3], is_causal=True) for case in cases],
)

# %% [markdown]
# ### On a real GPU, if you have one
#
# The package's tiles are plain PyTorch and run wherever their tensors are. On a GPU they are slow, because
# each small step is a separate kernel. The next cell prints the same line with and without a GPU.

# %%
device = "cuda" if torch.cuda.is_available() else "cpu"
q, k, v, w, loaded = [
    x.to(device) if isinstance(x, torch.Tensor) else x for x in cases[-6]
]
difference = conv_tiled.forward(q, k, v, w, loaded, Traffic())[0] - whole(
    reference.conv_attention, q, k, v, w
)
print(
    "tiles and reference, on this device, differ by less than 1e-10:",
    (difference.abs().max() <= 1e-10).item(),
)

# %% [markdown]
# ## In three lines
#
# - A tile owns a part of T and loads a larger part of S0: P_q more rows above, P_k more columns to the left
#   and P_r to the right. `V`, the sums and the output cover only the owned part.
# - You pay for the halo twice, in elements moved and in scores computed again. Larger tiles make it small:
#   with 15 × 15 taps, they have to be 48 × 48 for half of the work to be useful.
# - A test that fits into one tile cannot see what goes wrong between two.
#
# **You can now** cut convolutional attention into tiles of any size, and tell from an algorithm on paper
# where its tiles will disagree.
#
# **Read on:** Dao, *FlashAttention-2* (2023, arXiv:2307.08691), section 3, gives the loop with queries
# outermost and the log-sum-exp per row. Micikevicius, *3D Finite Difference Computation on GPUs using CUDA*
# (GPGPU-2, 2009) uses halos in a stencil. The *CUDA C++ Programming Guide*, section "Shared Memory",
# describes the memory that limits a tile.
#
# **Next:** [lesson 10b](10b_published_tiles.ipynb) hunts for the faults of a published version of this
# algorithm. If you would rather write kernels first, go on with [lesson 11](11_conv_forward.ipynb).
