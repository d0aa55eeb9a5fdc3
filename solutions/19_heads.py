# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 19 · Heads: the whole multi-token layer
#
# **80 minutes** · builds on lesson 10 (halos) and lesson 12 (gradients by hand)
#
# You will be able to
#
# 1. say what a map over heads adds to attention, and why it comes before the mask;
# 2. compute attention that continues *after* its softmax, tile by tile, in two passes;
# 3. calculate how far the halo grows.
#
# **Where this leads.** In convolutional attention a weight depends on several queries and keys, on *multiple tokens*. The published multi-token layer (Golovneva et al. 2025, arXiv:2504.00927) convolves scores *before* the softmax, as in lesson 09, and probabilities *after* it. At both places it also replaces each head's matrix by a weighted sum of all heads' matrices. Its published code keeps every N × N matrix in memory, and recomputes all of them for each token that it generates. How much memory and time do whole matrices cost, compared with a few rows at a time? The first table answers this for 16 heads of 64, two convolutions of 6 × 11 taps, and float32. The second table has small transformers that find a block of letters (the task of lesson 15; here they name the block's last letter). Each line adds one part to the line above it, from plain attention to the whole layer:

# %%
import json
import math
import statistics as stats

import matplotlib.pyplot as plt
import numpy as np
import torch

from course import check, guess, show_figure
from course.figures import BLUE, GREEN, ORANGE
from kernels import reference
from kernels.common.data import DATA
from kernels.reference.multi_token_tiled import convolved, halo

torch.manual_seed(19)
torch.set_default_dtype(torch.float64)
record = json.loads((DATA / "multi_token.json").read_text())
print(f"{record['gpu']}, recorded {record['date']}")
memory = {r["name"]: r["forward_mib"] for r in record["training"] if r["n"] == 4096}
token = {r["name"]: r["us"] for r in record["decoding"] if r["n"] == 16384}
print("memory of a forward pass of 4096 tokens, and time of one token after 16,384:")
print(f"  whole matrices {memory['eager']:6,.0f} MiB {token['all again']:12,.0f} µs")
print(f"  a few rows     {memory['kernels']:6,.0f} MiB {token['kernels']:12,.0f} µs")
runs = json.loads((DATA / "multi_token_training.json").read_text())["runs"]
print("\nfind a block, name its last letter; wrong answers of three runs each, in %:")
for variant in dict.fromkeys(run["variant"] for run in reversed(runs)):
    wrong = [100 * run["share_wrong"] for run in runs if run["variant"] == variant]
    shown = "  ".join(f"{share:6.2f}" for share in sorted(wrong))
    print(f"  {variant:22} {shown}   median {stats.median(wrong):6.2f}")

# %% [markdown]
# The line "a few rows" is `kernels.multi_token_attention`. It holds a few rows of scores at a time, each as wide as the sequence. You will write the same layer in tiles, which hold only a few columns at a time too.
#
# On this small task the taps before the softmax remove most errors, and the maps over heads remove the rest. The convolution after the softmax, and a gated norm of each head's output, have nothing left to improve. The paper's models have all four parts, so a layer that loads their weights needs them too.
#
# ## 1. Why heads mix
#
# Each head looks for one thing. Suppose that a query looks for a *black cat*. One head gives high scores to "black", and another gives high scores to "cat". The table shows `T`, the convolved scores of three heads for one query and three keys, and a **map over heads** `M`. (The third head prefers keys that are near.)
#
# | T | black dog | white cat | black cat | | M | black | cat | near |
# |---|---:|---:|---:|---|---|---:|---:|---:|
# | head 0, black | 4 | 0 | 4 | | new head 0 | 1 | 1 | 0 |
# | head 1, cat | 0 | 4 | 4 | | new head 1 | 1 | −1 | 0 |
# | head 2, near | 0 | 1 | 2 | | new head 2 | 0 | ½ | 1 |
#
# Each new head is a weighted sum of old ones: `T'_g = Σ_h M[g, h] · T_h`. New head 0 is (4, 0, 4) + (0, 4, 4) = (4, 4, 8): *both*. **Predict** new head 1: `___` What does it look for? `___` New head 2: `___`

# %% tags=["guess"]
guess("19 new heads", new_head_1=..., looks_for=..., new_head_2=...)

# %%
t = torch.tensor([[4.0, 0, 4], [0, 4, 4], [0, 1, 2]])
head_map = torch.tensor([[1.0, 1, 0], [1, -1, 0], [0, 0.5, 1]])
for name, scores in [("T", t), ("M T", head_map @ t)]:
    weights = torch.softmax(scores, dim=-1).tolist()
    print(name, *("(" + "  ".join(f"{p:.2f}" for p in row) + ")" for row in weights))

# %% [markdown]
# By themselves, the heads "black" and "cat" each give half of their weight to a wrong animal. The sum of the *scores* gives 96 % to the black cat, and the difference gives 98 % to the black dog. A sum of *probabilities* cannot do that: (½, 0, ½) and (0, ½, ½) add up to (½, ½, 1), so half of the weight is still on wrong animals.
#
# **And the mask?** Let the query now be token 1, so that key 2 is in its future. If you mask after the map, new head 1 is (4, −4, −∞). If you mask *before* the map, both old heads have −∞ at key 2. **Predict** new head 1 at key 2 in that case: `___` And with −1,000,000,000 instead of −∞? `___`

# %% tags=["guess"]
guess("19 mask first", minus_infinity=..., minus_a_billion=...)

# %% [markdown]
# <details><summary>Answer</summary>
#
# −∞ − (−∞) is NaN. And −10⁹ + 10⁹ = 0: the future key gets a score of 0, as if it had not been masked. If a row of `M` sums to less than 0, such as (1, −2, 0), its score even becomes a large positive number and takes all of the weight.
#
# </details>
#
# So the order is: mask the scores with 0, convolve, map, and then mask with −∞.
#
# ### Exercise 19.1 · mixed_tile · about four lines
#
# `t` is one tile of convolved scores of all heads, (H, rows, columns). Its first row is query `i0`, and its first column is key `j0`. Return `T'`, mixed by `head_map` (H, H), with −∞ if key j comes after query i, or if j < 0: you will soon need tiles that begin before the sequence. Do not change `t`, and do not create an (H, H, rows, columns) tensor.
#
# <details><summary>Hint</summary>
#
# `torch.einsum("gh,hij->gij", head_map, t)`
#
# </details>


# %% tags=["exercise"]
def mixed_tile(t, head_map, i0, j0):
    # BEGIN SOLUTION 19.1
    i = i0 + torch.arange(t.shape[1])[:, None]
    j = j0 + torch.arange(t.shape[2])
    mixed = torch.einsum("gh,hij->gij", head_map, t)
    return mixed.masked_fill((j > i) | (j < 0), -math.inf)
    # END SOLUTION


# %% tags=["check"]
check.ex19_1(mixed_tile)

# %% [markdown]
# A block of threads that owns a tile of one head now needs the same tile of every other head. This is the cost of a map in a kernel: a block needs the tiles of 16 heads at a time.
#
# ## 2. Why two passes
#
# The layer does not end with its softmax, `P = softmax(T')`. It convolves each head's probabilities, and then maps heads again:
#
# - `U[i, j] = Σ_ab w[a, b] · P[i − c_q + 1 + a, j − left + b]` for j ≤ i, and 0 for j > i, with `left = (c_k − 1) // 2` as in lesson 09;
# - `U'_g = Σ_h M'[g, h] · U_h`, with a second map `M'`; and `O_g = U'_g V_g`.
#
# `P` outside the sequence is 0. Can lesson 02's loop compute this? The loop keeps each row's running sum, and when a tile changes the sum, it rescales the row's output by *one* factor. Try it on paper, with tiles of one key. So far the loop has seen only key 0. There are two rows, and the taps (1, 1) are one below the other (c_q = 2, c_k = 1):
#
# | | e^T' at key 0 | sum so far | P so far | sum at the end | P at the end |
# |---|---:|---:|---:|---:|---:|
# | row 4 | 1 | 1 | 1 | 2 | 1/2 |
# | row 5 | 3 | 3 | 1 | 4 | 3/4 |
#
# **Predict** `U[5, 0]`. So far: `___` At the end: `___` By which factor would the next tile have to multiply it?

# %% tags=["guess"]
guess("19 two rows", so_far=..., at_the_end=...)

# %% [markdown]
# <details><summary>Answer</summary>
#
# So far it is 1 + 1 = 2, and at the end it is 1/2 + 3/4 = 1.25. Row 4 needs the factor 1/2, and row 5 needs the factor 3/4. But the two parts are already added: from the 2 alone you cannot tell which part came from which row.
#
# </details>

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(figsize=(7.5, 3.2), layout="constrained")
for x, row_4, row_5 in [(0, 1, 1), (2, 1 / 2, 3 / 4)]:
    axes.bar(x, row_4, width=0.8, color=BLUE)
    axes.bar(x, row_5, width=0.8, bottom=row_4, color=ORANGE)
    axes.text(
        x, row_4 / 2, f"row 4: {row_4:g}", ha="center", va="center", color="white"
    )
    axes.text(x, row_4 + row_5 / 2, f"row 5: {row_5:g}", ha="center", va="center")
axes.annotate("", (1.55, 0.25), (0.45, 0.5), arrowprops={"arrowstyle": "->"})
axes.annotate("", (1.55, 0.9), (0.45, 1.5), arrowprops={"arrowstyle": "->"})
axes.text(1, 0.46, "times 1/2", ha="center")
axes.text(1, 1.32, "times 3/4", ha="center")
axes.set(xlim=(-0.6, 2.6), ylim=(0, 2.15), ylabel="U[5, 0]")
axes.set_xticks([0, 2], ["so far: 2", "at the end: 1.25"])
show_figure(
    figure,
    "U[5, 0] as two stacked parts. So far, row 4 contributes 1 and row 5 contributes "
    "1, 2 in total. At the end they contribute 1/2 and 3/4, 1.25 in total: the part of "
    "row 4 has to be multiplied by 1/2, the part of row 5 by 3/4.",
)

# %% [markdown]
# (You could keep the parts separate, with one accumulator for every row and every head that contributes to an output. With 6 rows and 16 heads that would be 96 accumulators.) The usual solution has **two passes**. The first pass computes only the log-sum-exp of each row, `L = log Σ e^T'`: one number per row and head. In the second pass, `P = e^(T' − L)` is final *as soon as it is computed*, and `O` is a plain sum over tiles, without a maximum and without rescaling.
#
# The first pass is given, and uses your `mixed_tile`. Two functions come from the package: `halo(taps)` returns `(above, left, right)`, and `convolved(s, taps)` convolves a tile without padding, so its result is smaller than `s` by the halo. Two functions are in the next cell:
#
# - `rows_of(x, first, count)` returns rows of x (H, N, …), with zeros before token 0 and after the last token;
# - `tiles_of(q, k, …)` returns a function `t_tile(i0, j0, rows, columns)`, which returns `T'` for any rows and columns.


# %%
def rows_of(x, first, count):
    """Return rows [first, first + count) of x (H, N, ...), 0 if there is no such
    token."""
    out = x.new_zeros(len(x), count, *x.shape[2:])
    start, end = max(first, 0), min(first + count, x.shape[1])
    if start < end:
        out[:, start - first : end - first] = x[:, start:end]
    return out


def tiles_of(q, k, taps, head_map):
    """Return t_tile(i0, j0, rows, columns), which returns T' (H, rows, columns)."""
    above, left, right = halo(taps)

    def t_tile(i0, j0, rows, columns):
        top, first = i0 - above, j0 - left
        queries = rows_of(q, top, above + rows)
        keys = rows_of(k, first, left + columns + right)
        s = queries @ keys.mT / math.sqrt(q.shape[-1])
        i = top + torch.arange(s.shape[1])[:, None]
        j = first + torch.arange(s.shape[2])
        s = s.masked_fill(j > i, 0.0)
        return mixed_tile(convolved(s, taps), head_map, i0, j0)

    return t_tile


# %% [markdown]
# `first_pass` loops over the tiles of each row of tiles, and accumulates the log-sum-exp:


# %%
def first_pass(t_tile, heads, n, rows, columns):
    """Return L (H, N), the log-sum-exp of each row of T'."""
    log_sum = torch.full((heads, n), -math.inf)
    for i0 in range(0, n, rows):
        mine = slice(i0, min(i0 + rows, n))
        for j0 in range(0, mine.stop, columns):
            t = t_tile(i0, j0, mine.stop - i0, columns)
            so_far = torch.logaddexp(log_sum[:, mine], torch.logsumexp(t, dim=-1))
            log_sum[:, mine] = so_far
    return log_sum


# %% [markdown]
# ## 3. The halo that grows
#
# Two passes have a cost: both compute scores, and now for a larger halo. A tile of `U` needs `c_q2 − 1` more rows of `P` above it, where `c_q2` is the number of query taps of the second convolution. Each row of `P` needs `c_q1 − 1` more rows of scores, where `c_q1` belongs to the first convolution. Together that is `c_q1 + c_q2 − 2` rows. The number of columns grows in the same way, on both sides.
#
# **Predict**, for two convolutions of 6 × 11 taps: how many *scores* (rows times columns) does a 16 × 16 tile of `U` need? `___` How many times as many scores as the tile has entries? `___`

# %% tags=["guess"]
guess("19 halo", scores=..., times=...)

# %%
sizes = np.array([8, 16, 32, 64, 128])
once = (sizes + 5) * (sizes + 10) / sizes**2
twice = (sizes + 10) * (sizes + 20) / sizes**2
print(f"16 × 16 = 256 entries need 26 × 36 = {26 * 36} scores: {twice[1]:.2f} times")
figure, (nested, axes) = plt.subplots(
    1, 2, figsize=(9, 3.6), width_ratios=(1, 1.2), layout="constrained"
)
for above, side, color, label in [
    (10, 10, ORANGE, "scores: 26 × 36"),
    (5, 5, BLUE, "P: 21 × 26"),
    (0, 0, GREEN, "U: 16 × 16"),
]:
    corner, size = (-side, -above), (16 + 2 * side, 16 + above)
    nested.add_patch(plt.Rectangle(corner, *size, facecolor=color, alpha=0.4))
    nested.text(-side + 0.5, -above + 0.6, label, va="top")
nested.set(xlim=(-11, 27), ylim=(17, -11), aspect="equal")
nested.set(xlabel="key, counted from the tile's first", ylabel="query")
axes.plot(sizes, twice, color=ORANGE, marker="o", label="both convolutions")
axes.plot(sizes, once, color=BLUE, marker="s", label="the first alone")
axes.set_xscale("log", base=2)
axes.set_xticks(sizes, [str(size) for size in sizes])
axes.axhline(1, color=GREEN, linestyle=":", label="no halo")
axes.set(
    xlabel="rows and columns of a tile of U", ylabel="scores computed per entry of U"
)
axes.legend()
show_figure(
    figure,
    "left: a tile of U, 16 × 16, in its tile of P, 21 × 26, in its tile of scores, "
    "26 × 36; both halos are above and at both sides, none is below. Right: "
    "scores computed per entry of U, for square tiles from 8 to 128. "
    "With both convolutions it falls from 7.9 to 1.2, "
    "with the first alone from 3.7 to 1.1.",
)

# %% [markdown]
# Two convolutions make small tiles expensive, and large tiles of 16 heads with their halos do not fit into the shared memory of a block. So the package's kernels use another method: a **band** of a few rows of all heads, as wide as the sequence, in global memory. The next band overwrites it. A band has no halo of columns, and because it has whole rows, the softmax needs no separate pass. The cost is memory that grows with N: 82 MiB in the table above. Tiles do not need this memory, but they need two passes.
#
# ### Exercise 19.2 · second_pass · about nine lines
#
# Return `O` of the rows `[i0, i0 + rows)`, (H, rows, d), in tiles of `columns` columns: convolution, mask, map, times V, as in section 2. Hold one tile at a time. Do not compute a tile of `U` whose columns are all in the future of these rows. You are given
#
# - `t_tile(i0, j0, rows, columns)`: returns `T'` for any rows and columns, with −∞ where it is masked and in rows before token 0. It adds the halo of the *first* convolution itself, so ask for the rows and columns of `P` that you need;
# - `log_sum` (H, N), from the first pass, and `v` (H, N, d);
# - `after_taps` (H, c_q, c_k), whose halo is `halo(after_taps)`;
# - `after_map` (H, H), which is `M'`, and `rows_of` and `convolved` from above.
#
# All requested rows exist. A tile may extend beyond the last token.
#
# <details><summary>Hint: L of the halo</summary>
#
# `rows_of(log_sum, first, count)` returns 0 for rows before token 0, and e^(−∞ − 0) = 0. A slice `log_sum[:, i0 - above :]` with a negative start would count from the end.
#
# </details>


# %% tags=["exercise"]
def second_pass(t_tile, log_sum, v, after_taps, after_map, i0, rows, columns):
    # BEGIN SOLUTION 19.2
    above, left, right = halo(after_taps)
    of_rows = rows_of(log_sum, i0 - above, above + rows)[..., None]
    i = i0 + torch.arange(rows)[:, None]
    o = 0
    for j0 in range(0, i0 + rows, columns):
        t = t_tile(i0 - above, j0 - left, above + rows, left + columns + right)
        u = convolved(torch.exp(t - of_rows), after_taps)
        u = u.masked_fill(j0 + torch.arange(columns) > i, 0.0)
        u = torch.einsum("gh,hij->gij", after_map, u)
        o = o + u @ rows_of(v, j0, columns)
    return o
    # END SOLUTION


# %% tags=["check"]
check.ex19_2(second_pass)

# %% [markdown]
# Now compare both passes with the reference, which uses whole matrices:


# %% tags=["uses-exercise"]
def forward(q, k, v, taps, head_map, after_taps, after_map, rows=5, columns=4):
    """Return O of all rows, (H, N, d), in two passes."""
    n, t_tile = q.shape[1], tiles_of(q, k, taps, head_map)
    log_sum = first_pass(t_tile, len(q), n, rows, columns)
    second = t_tile, log_sum, v, after_taps, after_map
    return torch.cat(
        [
            second_pass(*second, i0, min(rows, n - i0), columns)
            for i0 in range(0, n, rows)
        ],
        dim=1,
    )


heads, n, d = 3, 23, 4
q, k, v = torch.randn(3, heads, n, d)
taps, after_taps = torch.randn(heads, 3, 4), torch.randn(heads, 2, 5)
maps = torch.randn(2, heads, heads)
layer = taps, maps[0], after_taps, maps[1]
o = forward(q, k, v, *layer)
wanted = reference.multi_token_attention(q[None], k[None], v[None], *layer)[0]
print("equal to the reference, below 1e-12:", bool((o - wanted).abs().max() <= 1e-12))

# %% [markdown]
# **Predict.** Rows of `P` sum to 1. What do rows of `U` sum to? `___`

# %% tags=["guess"]
guess("19 sums", sum_of_a_row=...)

# %% [markdown]
# ## Validate
#
# If all new parts are identities, the layer must equal lesson 09's. And two documents in one sequence must give the same results as each document by itself:

# %% tags=["uses-exercise"]
eye, one_tap = torch.eye(heads), torch.ones(heads, 1, 1)
mine = forward(q, k, v, taps, eye, one_tap, eye)
plain = reference.conv_attention(q[None], k[None], v[None], taps)[0]
print(f"identities: lesson 09's attention: {torch.allclose(mine, plain, atol=1e-12)}")

packed = reference.multi_token_attention(
    q[None], k[None], v[None], *layer, documents=(0, 9)
)[0]
each = [forward(*(x[:, a:b] for x in (q, k, v)), *layer) for a, b in [(0, 9), (9, n)]]
print(f"two documents: {torch.allclose(torch.cat(each, 1), packed, atol=1e-12)}")

# %% [markdown]
# ## In three lines
# - A map over heads turns scores into "both" and "but not". The mask with −∞ comes after it.
# - A convolution after the softmax needs the final P. In tiles that takes one pass for L, and one pass for O.
# - The halo is c_q1 + c_q2 − 2 rows, and both passes compute scores, so small tiles are expensive.
#
# **You can now** read `kernels/reference/multi_token_tiled.py` (your two passes) and `kernels/multi_token/bands.py` (the same layer in bands).
#
# **Read on:** Olga Golovneva, Tianlu Wang, Jason Weston and Sainbayar Sukhbaatar, *Multi-Token Attention* (2025, arXiv:2504.00927), for the layer and its results · Noam Shazeer, Zhenzhong Lan, Youlong Cheng, Nan Ding and Le Hou, *Talking-Heads Attention* (2020, arXiv:2003.02436), which introduced maps over heads before and after the softmax · the [glossary](../docs/glossary.md) of this course.
#
# **Next:** [lesson 19b](19b_heads_decoded.ipynb) decodes with this layer, and finds the faults of four others.
