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
# **95 minutes**, and 25 for the part marked *optional* · builds on lesson 10 (halos), lesson 12 (gradients by hand) and lesson 14 (the cache)
#
# You will be able to
#
# 1. say what a map over heads adds to attention, and why it comes before the mask;
# 2. compute attention that goes on *after* its softmax, tile by tile, in two passes;
# 3. say how far the halo grows, and how few queries a decoder has to keep;
# 4. find four mistakes in layers that pass the tests they came with.
#
# **Where this leads.** In convolutional attention a weight depends on several queries and keys, on *multiple tokens*. The published multi-token layer (Golovneva et al. 2025, arXiv 2504.00927) convolves scores *before* the softmax, as in lesson 09, and probabilities *after* it, and maps heads to heads at both places. Its published code has every N × N matrix in memory, and computes them all again for each token that it generates. Recorded, 16 heads of 64, 6 × 11 taps twice, float32. The second table is of small transformers that find a block of letters (lesson 15 has the task; here they name the block's last letter). Each line adds one part to the line above it, from no part at all to the whole layer:

# %%
import json
import math
import statistics as stats

import matplotlib.pyplot as plt
import numpy as np
import torch

from course import check, show_figure
from course.check import lesson19
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
print("memory of a forward pass, 4096 tokens, and time of one token after 16,384:")
print(f"  whole matrices {memory['eager']:6,.0f} MiB {token['all again']:12,.0f} µs")
print(f"  a few rows     {memory['kernels']:6,.0f} MiB {token['kernels']:12,.0f} µs")
runs = json.loads((DATA / "multi_token_training.json").read_text())["runs"]
print("\nfind a block, name its last letter; wrong answers of three runs each, in %:")
for variant in dict.fromkeys(run["variant"] for run in reversed(runs)):
    wrong = [100 * run["share_wrong"] for run in runs if run["variant"] == variant]
    shown = "  ".join(f"{share:6.2f}" for share in sorted(wrong))
    print(f"  {variant:22} {shown}   median {stats.median(wrong):6.2f}")

# %% [markdown]
# The line "a few rows" is `kernels.multi_token_attention`. It holds a few rows of scores at a time, each as wide as the sequence. You will write the same layer in tiles, which hold a few columns at a time as well.
#
# On this small task the taps before the softmax do most of the work, and the maps over heads remove the errors that are left. The convolution after the softmax, and a norm of each head's output with a gate, find nothing to improve. The paper's models have all four parts, and so must a layer that is to load their weights.
#
# ## 1. Why heads mix
#
# A head looks for one thing. A query that wants a *black cat* has a head whose scores say "black" and one whose scores say "cat". Here are `T`, the convolved scores of three heads for one query and three keys, and a map `M`, on paper. (The third head prefers keys that are near.)
#
# | T | black dog | white cat | black cat | | M | black | cat | near |
# |---|---:|---:|---:|---|---|---:|---:|---:|
# | head 0, black | 4 | 0 | 4 | | new head 0 | 1 | 1 | 0 |
# | head 1, cat | 0 | 4 | 4 | | new head 1 | 1 | −1 | 0 |
# | head 2, near | 0 | 1 | 2 | | new head 2 | 0 | ½ | 1 |
#
# Each new head is a sum of old ones: `T'_g = Σ_h M[g, h] · T_h`. New head 0 is (4, 0, 4) + (0, 4, 4) = (4, 4, 8): *both*. **Predict** new head 1: `___` What does it look for? `___` New head 2: `___`
#
# <details><summary>Answer</summary>
#
# (4, 0, 4) − (0, 4, 4) = (4, −4, 0): black, and *not* a cat. ½ · (0, 4, 4) + (0, 1, 2) = (0, 3, 4): near, and a little more so if it is a cat.
#
# </details>

# %%
t = torch.tensor([[4.0, 0, 4], [0, 4, 4], [0, 1, 2]])
head_map = torch.tensor([[1.0, 1, 0], [1, -1, 0], [0, 0.5, 1]])
for name, scores in [("T", t), ("M T", head_map @ t)]:
    weights = torch.softmax(scores, dim=-1).tolist()
    print(name, *("(" + "  ".join(f"{p:.2f}" for p in row) + ")" for row in weights))

# %% [markdown]
# Alone, the heads "black" and "cat" give half of their weight to an animal that is wrong. The sum of the *scores* gives 96 % to the black cat, and the difference 98 % to the black dog. Sums of *probabilities* cannot do that: (½, 0, ½) and (0, ½, ½) add up to (½, ½, 1), and half of the weight is on wrong animals still.
#
# **And the mask?** Let the query now be token 1, so that key 2 is its future. Masked after the map, new head 1 is (4, −4, −∞). Masked *before* the map, both old heads have −∞ at key 2. **Predict** new head 1 at key 2: `___` And with −1,000,000,000 in place of −∞? `___`
#
# <details><summary>Answer</summary>
#
# −∞ − (−∞) is NaN. And −10⁹ + 10⁹ = 0: the future has a score of 0, as if nothing had been masked. In a row of `M` that sums to less than 0, such as (1, −2, 0), it even becomes a large positive number, and takes all of the weight.
#
# </details>
#
# So the order is: scores masked with 0, convolution, map, and then the mask with −∞.
#
# ### Exercise 19.1 · mixed_tile · about four lines
#
# `t` is one tile of convolved scores of all heads, (H, rows, columns). Its first row is the query `i0`, its first column the key `j0`. Return `T'`, mixed by `head_map` (H, H), with −∞ where key j lies after query i, and where j < 0: you will soon ask for tiles that begin before the sequence. `t` stays as it is. Make no (H, H, rows, columns) tensor.
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
# A block of threads that owns a tile of one head now needs the same tile of every head that is mixed with it. In a kernel this is the price of a map: tiles of 16 heads at a time.
#
# ## 2. Why two passes
#
# After its softmax, `P = softmax(T')`, the layer goes on, head by head in the first line and over heads in the second:
#
# - `U[i, j] = Σ_ab w[a, b] · P[i − c_q + 1 + a, j − left + b]` for j ≤ i, and 0 for j > i, with `left = (c_k − 1) // 2` as in lesson 09;
# - `U'_g = Σ_h M'[g, h] · U_h`, with a second map `M'`; and `O_g = U'_g V_g`.
#
# `P` outside the sequence is 0. Lesson 02's loop holds a row's sum so far; when the next tile brings more, it multiplies what it has by *one* factor. On paper: tiles one key wide, so far the tile of key 0 alone; two rows, and the taps (1, 1) down one column (c_q = 2, c_k = 1):
#
# | | e^T' at key 0 | sum so far | P so far | sum at the end | P at the end |
# |---|---:|---:|---:|---:|---:|
# | row 4 | 1 | 1 | 1 | 2 | 1/2 |
# | row 5 | 3 | 3 | 1 | 4 | 3/4 |
#
# **Predict** `U[5, 0]` so far, and at the end: `___`, `___`. By what would the next tile have to multiply it?
#
# <details><summary>Answer</summary>
#
# So far 1 + 1 = 2, at the end 1/2 + 3/4 = 1.25. Row 4 has the factor 1/2 and row 5 the factor 3/4. What is added up already cannot have both: the 2 does not say which part of it came from which row.
#
# </details>
#
# (One could keep the parts apart, one accumulator for every row and every head that reaches an output: with 6 rows and 16 heads, 96 of them.) The usual way is **two passes**. The first computes only `L = log Σ e^T'`, one number per row and head. In the second, `P = e^(T' − L)` is final *when it is made*, and `O` is a plain sum over tiles: no maximum, no factor, nothing to repair.
#
# Here is the first pass, with your tile. From the package come `halo(taps)`, which is `(above, left, right)`, and `convolved(s, taps)`, which convolves a tile where it has all it needs: the result is smaller than `s` by the halo. Of the three functions below,
#
# - `rows_of(x, first, count)` takes rows of x (H, N, …), zeros before token 0 and behind the last;
# - `tiles_of(q, k, …)` gives a function `t_tile(i0, j0, rows, columns)`, and that gives `T'` at any place, with your `mixed_tile`;
# - `first_pass` goes over the tiles of each row and adds up what it sees.


# %%
def rows_of(x, first, count):
    """Rows [first, first + count) of x (H, N, ...), 0 where there is no such token."""
    out = x.new_zeros(len(x), count, *x.shape[2:])
    start, end = max(first, 0), min(first + count, x.shape[1])
    if start < end:
        out[:, start - first : end - first] = x[:, start:end]
    return out


def tiles_of(q, k, taps, head_map):
    """t_tile(i0, j0, rows, columns): T' there, (H, rows, columns)."""
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


def first_pass(t_tile, heads, n, rows, columns):
    """L (H, N), the log-sum-exp of each row of T'."""
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
# A tile of `U` that owns some rows needs `c_q2 − 1` more rows of `P` above it. (`c_q2` are the query taps of the second convolution, `c_q1` those of the first.) Each of these needs `c_q1 − 1` more rows of scores. Together: `c_q1 + c_q2 − 2` rows. Columns grow in the same way, at both sides.
#
# **Predict**, for 6 × 11 taps twice: how many rows and columns of *scores* does a tile of 16 × 16 need? `___` How many times as many scores as it owns? `___`

# %%
sizes = np.array([8, 16, 32, 64, 128])
once = (sizes + 5) * (sizes + 10) / sizes**2
twice = (sizes + 10) * (sizes + 20) / sizes**2
print(f"16 × 16 owns 256 and computes 26 × 36 = {26 * 36}: {twice[1]:.2f} times")
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
    xlabel="rows and columns that a tile owns", ylabel="scores made per score owned"
)
axes.legend()
show_figure(
    figure,
    "left: a tile of U, 16 × 16, in its tile of P, 21 × 26, in its tile of scores, "
    "26 × 36; both halos are above and at both sides, none is below. Right: "
    "scores made for each score owned, over the size of a square tile from 8 to 128. "
    "With both convolutions it falls from 7.9 to 1.2, "
    "with the first alone from 3.7 to 1.1.",
)

# %% [markdown]
# Two convolutions make small tiles dear, and large tiles of 16 heads with their halos do not fit the shared memory of a block. So the package's kernels chose another way: a **band** of a few rows, of all heads, as wide as the sequence, in global memory, where the next band writes over it. There is no halo of columns then, and since a whole row is at hand, its softmax takes no pass of its own. The price is memory that grows with N: 82 MiB above. Tiles need none, and two passes instead.
#
# ### Exercise 19.2 · second_pass · about nine lines
#
# Return `O` of the rows `[i0, i0 + rows)`, (H, rows, d), in tiles that own `columns` columns: convolution, mask, map, times V, as in section 2. Hold one tile at a time, and make none that lies wholly in the future of these rows. Given are
#
# - `t_tile(i0, j0, rows, columns)`: `T'` at any place, −∞ where masked, in rows before token 0 as well. It sees to the halo of the *first* convolution, so ask for the rows and columns of `P` that you need;
# - `log_sum` (H, N), from the first pass, and `v` (H, N, d);
# - `after_taps` (H, c_q, c_k): their halo is `halo(after_taps)`;
# - `after_map` (H, H), which is `M'`, and `rows_of` and `convolved` from above.
#
# All rows asked for exist; columns behind the last token may belong to a tile.
#
# <details><summary>Hint: L of the halo</summary>
#
# `rows_of(log_sum, first, count)` gives 0 for rows before token 0, and e^(−∞ − 0) = 0. A slice `log_sum[:, i0 - above :]` with a negative start would count from the end.
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
# Both passes, beside the reference, which has whole matrices:


# %% tags=["uses-exercise"]
def forward(q, k, v, taps, head_map, after_taps, after_map, rows=5, columns=4):
    """O of all rows, (H, N, d), in two passes."""
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
# **Predict.** Rows of `P` sum to 1. And rows of `U`? `___`
#
# <details><summary>Answer</summary>
#
# To anything: the taps have any sum, and the mask takes some of it away. This is why the published layer norms `O` afterwards, head by head.
#
# </details>
#
# ## 4. How few queries a decoder keeps
#
# For one new token, lesson 14's decoder kept all keys and values, and the last `c_q − 1` queries. Now the last row of `U` reads `c_q2` rows of `P`, and each of these reads `c_q1` rows of scores. **Predict** for 6 and 6 how many queries to keep *besides* the new one: `___`
#
# <details><summary>Answer</summary>
#
# 6 + 6 − 2 = 10, the halo's rows. Not 36: the windows overlap. The published code keeps them all.
#
# </details>
#
# ### Exercise 19.3 · push · about four lines
#
# `kept` (H, r, d) are the queries kept so far, none at the beginning; `q` (H, m, d) are new ones: a prompt, a single token, or the next prompt in the same conversation. There may be several conversations by turns, so all that `push` knows is in its arguments. Return `(window, kept)`:
#
# - `window`: the queries that the newest token's output needs, itself included, the oldest first; all there are if there are fewer;
# - the new `kept`: of these, what the *next* token will need.
#
# A slice is a view: if you keep ten rows of a prompt of 100,000 as a view, all 100,000 stay in memory. `clone()` copies.


# %% tags=["exercise"]
def push(kept, q, c_q, after_c_q):
    # BEGIN SOLUTION 19.3
    queries, most = torch.cat([kept, q], dim=1), c_q + after_c_q - 1
    window = queries[:, max(0, queries.shape[1] - most) :]
    kept = window[:, max(0, window.shape[1] - (most - 1)) :]
    return window, kept.clone()
    # END SOLUTION


# %% tags=["check"]
check.ex19_3(push)

# %% [markdown]
# Token by token, with your cache, against the forward pass above. The first four tokens are the prompt.

# %% tags=["uses-exercise"]
kept, last = q[:, :0], 0
worst = 0.0
for end in range(4, n + 1):
    window, kept = push(kept, q[:, last:end], taps.shape[1], after_taps.shape[1])
    cache = window[None], k[None, :, :end], v[None, :, :end]
    row = reference.multi_token_attention_decode(*cache, *layer)[0, :, 0]
    worst, last = max(worst, float((row - o[:, end - 1]).abs().max())), end
print(f"equal to the rows of the forward pass, below 1e-12: {worst <= 1e-12}")
print(f"queries kept: {kept.shape[1]} of {n}")

# %% [markdown]
# ## 5. Backwards, and where documents end (optional, 20 minutes)
#
# Two facts before the bug hunt.
#
# **The row statistic.** Lesson 12's backward pass needs one number per row: `D_i = Σ_j P_ij · dP_ij`. With `O = P V` it equals `dO_i · O_i`, and every flash-attention kernel computes it like that. Now something stands between `P` and `O`. On paper: let the second map *swap* two heads, `U'_0 = P_1` and `U'_1 = P_0`. Then what reaches `P_0` comes from output 1, and `D` of head 0 is `dO_1 · O_1`, not `dO_0 · O_0`. So `D` takes a pass of its own.
#
# What makes the mistake hard to see: summed over *all* rows and heads, both are equal (`Σ P · dP = Σ U' · dU'`, for U' is linear in P). And without a part after the softmax they are equal row by row.
#
# **Documents.** In training, short documents are packed into one sequence, and none may see another. In plain attention a mask is enough. In a convolution it is not. Two documents, tokens 0–5 and 6–11. The score `S[5, 5]` lies inside the first, the mask lets it live. **Predict**: with 3 × 3 taps, which entries of `T` in the *second* document read it? `___`
#
# <details><summary>Answer</summary>
#
# `T[i, j]` reads rows i − 2 to i and columns j − 1 to j + 1. So `S[5, 5]` reaches `T[6, 6]` and `T[7, 6]`: rows 6 and 7, column 6. With taps of one row, or without a column to the left (c_k ≤ 2), it reaches nothing.
#
# </details>
#
# ### Five machines
#
# Each machine below is a whole layer with a backward pass of its own. Four have a fault, one has none. `lesson19.wrong(name)` lists what a machine gets wrong, and all pass the tests they came with: 3 × 3 taps and a first map near the identity, as after a little training.

# %%
for name in lesson19.MACHINES:
    print(f"machine {name}: wrong: {lesson19.wrong(name) or 'nothing'}")

# %% [markdown]
# ### Exercise 19.4 · Which fault is it?
#
# | word | the machine |
# |---|---|
# | `"statistic"` | takes dO·O for D |
# | `"map"` | masks with −10⁹, and maps heads *after* that |
# | `"scores"` | lets the *first* convolution cross from one document into another |
# | `"weights"` | lets the *second* do so |
# | `"none"` | is right |
#
# Design experiments: for each fault, which layer shows it, and where: in which rows of `O`, or in gradients? Then run them. `lesson19.wrong(name, …)` compares `O` (with its rows) and all gradients with those of the right layer. A wrong `O` makes most gradients wrong as well; a fault of the backward pass alone leaves `O` right. It takes
#
# - `taps=(3, 3)` and `after_taps=None`: a pair `(c_q, c_k)`, or None;
# - `head_map="near 1"` and `after_map=None`: `"near 1"`, `"any"` (numbers of both signs), or None;
# - `documents=None`: where each begins, as `(0, 6)`; there are twelve tokens.
#
# Return `{"A": ..., "B": ..., "C": ..., "D": ..., "E": ...}`.

# %%
layer_tried = {"taps": (1, 3), "head_map": None}  # change it: one part after the other
for name in lesson19.MACHINES:
    print(f"machine {name}: wrong: {lesson19.wrong(name, **layer_tried) or 'nothing'}")


# %% tags=["exercise"]
def faults():
    # BEGIN SOLUTION 19.4
    return {"A": "weights", "B": "statistic", "C": "none", "D": "map", "E": "scores"}
    # END SOLUTION


# %% tags=["check"]
check.ex19_4(faults)

# %% [markdown]
# One layer that has everything shows all four at once, each by its own mark: gradients alone, every row but the last, the first rows behind a border. **Predict** for machine E, with 3 × 3 taps before the softmax: which rows of `O` are wrong behind the border at 6? The corner reaches `T[6, 6]` and `T[7, 6]`: so rows 6 and 7? `___`

# %%
border = lesson19.wrong("E", documents=(0, 6))
print("E, documents (0, 6):", border[0])

# %% [markdown]
# Row 7 alone. Row 6 is the first of its document and sees one key, and a softmax over one key is 1, whatever its score. One wrong row of twelve, in one layer out of many: a test of packed documents compares *all* rows with documents computed one by one.
#
# ## Validate
#
# With identities for all that is new, the layer is lesson 09's. And two documents in one sequence give what each gives alone:

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
# - A map over heads makes "both" and "but not" out of scores; the mask with −∞ comes after it.
# - A convolution after the softmax needs P final. In tiles: one pass for L, one for O, and a halo of c_q1 + c_q2 − 2 rows, which is also all that a decoder keeps of its queries.
# - D is Σ P · dP. It is dO · O only where O = P V.
#
# **You can now** use `kernels.multi_token_attention` and `MultiTokenAttention`, read `kernels/reference/multi_token_tiled.py` (your two passes) and `kernels/multi_token/bands.py` (bands instead), and test a layer for what its own tests do not reach.
#
# **Next:** [lesson 20](20_latent_attention.ipynb) gives all heads one small cache.
