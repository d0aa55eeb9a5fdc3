# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 09b · Does it see the future?
#
# **60 minutes** · builds on lesson 09 (convolutional attention)
#
# After this lesson you will be able to
#
# 1. test whether *any* attention function looks into the future, without reading its code;
# 2. say which of the two masks does what, and which test finds which mistake;
# 3. say what the method costs if it is written step by step.
#
# A model that sees the future gives excellent results in training, and useless ones afterwards. So here you
# build a test for it. Then you try the test on a published version of convolutional attention, which lacks one
# line, although its usual test passes.
#
# The next cell loads your functions of lesson 09. If you have not solved one of them, or not saved it, the cell
# loads the solution's version instead. The cell also defines the worked example and random inputs with their
# taps.

# %%
import math

import torch
from torch.nn.functional import scaled_dot_product_attention

from course import brought, check
from kernels import reference
from kernels.reference import identity_taps
from sim.viz import Scene

torch.manual_seed(9)
torch.set_default_dtype(torch.float64)
convolved_score, causal, conv_scores, conv_attention, by_loops = brought(
    "09_conv_attention",
    *"convolved_score causal conv_scores conv_attention by_loops".split(),
)
small_s = torch.tensor([[1.0, 3, 2, 4], [2, 1, 5, 0], [0, 1, 1, 6], [1, 2, 3, 2]])
small_w = torch.tensor([[1.0, 0, 2], [0, 1, -1]])
small_v = torch.tensor([[4.0], [10], [3], [9]])
small_q, small_k = 2 * math.log(2) * small_s, torch.eye(4)
q, k, v = torch.randn(3, 9, 4)
taps = torch.randn(3, 5)
unchanged = identity_taps(1, 3, 5, dtype=torch.float64)[0]
ordinary = scaled_dot_product_attention(q, k, v, is_causal=True)

# %% [markdown]
# ## A tool: does it see the future?
#
# A model that is trained to predict the next token must not see that token. If it does, it learns to copy it.
# Training looks excellent, but the model is useless: when it generates text, there is no next token to copy.
#
# How do you find out whether a function that you haven't written sees the future? You don't have to read it.
# *Change the future, and see whether the past changes.*
#
# ### Exercise 9.3 · is_causal · about eight lines
#
# Write `is_causal(attend, q, k, v)`. `attend(q, k, v)` is an attention function: for any N, it takes three
# tensors of shape (N, d) and returns N rows.
#
# - Return True if no row of the output depends on a later token, and False if one does. A small dependence
#   counts too: a ten-thousandth of a value, or a change in a single column, or a change that leaves all sums
#   the same.
# - A difference in the last digits is rounding, not dependence.
# - If the output contains NaN, nothing can be concluded from it. Return False.
# - Don't modify `q`, `k` and `v`.
#
# The check tries your tool on twenty-three functions, with a few tokens and with about eighty. Some of the
# functions are sly. In one of them, only the first row sees the last value. Another one looks only at the
# next token's *query*. A third sees the next value through a layer norm, which maps 2x and x + 1 to the same
# result as x.
#
# <details><summary>Hint 1: one cut</summary>
#
# Choose a token `t`. In all three tensors, replace the rows from `t` on with random ones: `torch.cat([x[:t],
# torch.randn_like(x[t:])])`. The output's rows before `t` must not change.
# </details>
#
# <details><summary>Hint 2: which cuts?</summary>
#
# If row 5 sees token 6, only the cut t = 6 shows it. With a smaller t, row 5 itself is replaced. With a
# larger t, token 6 stays the same. So try every t from 1 to N − 1.
# </details>
#
# <details><summary>Hint 3: "must not change"</summary>
#
# `torch.allclose(after[:t], before[:t])`. Don't ask for equality to the last bit, because a matrix product
# may add in another order. And be careful with NaN: both `difference > limit` and `difference <= limit` are
# False for it. No cut compares the last row, so look for NaN in the whole of `before` first.
# </details>


# %% tags=["exercise"]
def is_causal(attend, q, k, v):
    """Return True if no row of attend(q, k, v) depends on a later token.
    q, k, v: (N, d)."""
    # BEGIN SOLUTION 9.3
    before = attend(q, k, v)
    if before.isnan().any():
        return False
    for t in range(1, len(q)):
        changed = [torch.cat([x[:t], torch.randn_like(x[t:])]) for x in (q, k, v)]
        if not torch.allclose(attend(*changed)[:t], before[:t]):
            return False
    return True
    # END SOLUTION


# %% tags=["check"]
check.ex09_3(is_causal)

# %% tags=["uses-exercise"]
print(
    "conv_attention is causal:",
    is_causal(lambda q, k, v: conv_attention(q, k, v, taps), q, k, v),
)

# %% [markdown]
# ## Bug hunt: one line is missing
#
# Here is convolutional attention step by step, as a published piece of GPU pseudocode describes it: scores,
# convolution, causal mask, softmax, output. Let's test it in the usual way, first with identity taps, and
# then with 2 × 3 taps on the worked example.


# %%
def published(q, k, v, w):
    """Compute convolutional attention of one head: scores, convolution,
    causal mask, softmax, output. q, k, v: (N, d)."""
    s = q @ k.T / math.sqrt(q.shape[1])
    t = reference.convolve(s[None, None], w[None])[0, 0]
    t = t.masked_fill(causal(len(q)), -math.inf)
    return torch.softmax(t, dim=1) @ v


found = published(q, k, v, unchanged)
print(
    "identity taps, equal to ordinary attention:",
    torch.allclose(found, ordinary, atol=1e-12),
)
print("no NaN:", bool(published(q, k, v, taps).isfinite().all()))
small_out = published(small_q, small_k, small_v, small_w).flatten().tolist()
numbers = ", ".join(f"{number:.2f}" for number in small_out)
print(f"the worked example: {numbers}; expected: 4, 8, 6, 7")

# %% [markdown]
# Identity taps cannot reveal the mistake, because they are 0 wherever it matters. The worked example and
# your tool can reveal it. **Guess before you run:** is the function causal? How far ahead does a row see? And
# why is row 0 of the worked example correct?
#
# Then add the missing line to `published` and run the cells again. You have found it when the next cell
# prints `published is causal: True` and its half of the picture shows no leak.

# %% tags=["uses-exercise"]
print(
    "published is causal:", is_causal(lambda q, k, v: published(q, k, v, taps), q, k, v)
)


# %% jupyter={"source_hidden": true}
def reacts(attend, q, k, v):
    """Return an (N, N) mask. Row i marks the tokens whose change
    changes row i of the output."""
    before = attend(q, k, v)
    marks = torch.zeros(len(q), len(q), dtype=torch.bool)
    for token in range(len(q)):
        moved = [x.clone() for x in (q, k, v)]
        for x in moved:
            x[token] = torch.randn_like(x[token])
        marks[:, token] = ((attend(*moved) - before).abs() > 1e-9).any(dim=1)
    return marks


def draw_leaks(ways, widths, side=22):
    """Draw the tokens to which each row reacts, for each attention function in
    {name: attend(q, k, v, w)}, with one step of the slider per width of the taps."""
    n = len(q)
    across = 40 + side * (n + 2)
    scene = Scene(
        "row i reacts to token j", across * len(ways), 70 + side * n, adds=False
    )
    scene.legend(
        6,
        ("load", "reacts to itself or earlier"),
        ("store", "reacts to later: a leak"),
        ("empty", "does not react"),
    )
    for way, name in enumerate(ways):
        left = 40 + across * way
        scene.labels.append((left, 42, f"{name}, token", ""))
        for i in range(n):
            scene.labels.append((left + side * i + 10, 58, i, "middle"))
            scene.labels.append((left - 8, 64 + side * i + 14, i, "end"))
            scene.cells += [
                (left + side * j, 64 + side * i, side - 2, side - 2) for j in range(n)
            ]
    for width in widths:
        w, looks, said = torch.randn(2, width), [], []
        for way, (name, attend) in enumerate(ways.items()):
            marks = (
                reacts(lambda q, k, v: attend(q, k, v, w), q, k, v).nonzero().tolist()
            )
            looks += [
                (n * (n * way + i) + j, "store" if j > i else "load", "")
                for i, j in marks
            ]
            said.append(f"{name} sees {max(0, *(j - i for i, j in marks))} ahead")
        scene.steps.append((f"2 × {width} taps: {', '.join(said)}", looks))
    return scene.view()


draw_leaks({"correct": conv_attention, "published": published}, (1, 3, 5, 7))

# %% [markdown]
# <details><summary>What is missing, and how far does it see?</summary>
#
# The **first mask** is missing. `T[i, j]` mixes the columns up to j + P_r, where P_r = c_k − 1 − P_k is the
# number of columns to the right. So the entries near the diagonal contain scores of keys that row i must not
# see. Row i sees P_r tokens of the future: one with 3 columns of taps, three with 7. The −∞ comes too late,
# because the future has already been added to the entries that remain.
#
# Row 0 is correct because it has only one key. The softmax of a single number is 1, whatever the number is.
# (So never test causality with a single row!)
#
# How much does it matter? The next cell measures it in four random draws: the norm of the error, divided by
# the norm of the output.
# </details>

# %%
off = []
for seed in range(4):
    generator = torch.Generator().manual_seed(seed)
    many, w = (
        torch.randn(3, 64, 4, generator=generator),
        torch.randn(3, 3, generator=generator),
    )
    right = conv_attention(*many, w)
    off.append((published(*many, w) - right).norm().item() / right.norm().item())
percent = ", ".join(f"{100 * each:.0f} %" for each in off)
print("relative error with 64 tokens and 3 × 3 taps:", percent)

# %% [markdown]
# ## Why not −∞ the first time?
#
# Ordinary attention needs only one mask, −∞, because adding anything to −∞ gives −∞. So why not write −∞
# before the convolution and skip the second mask?
#
# **Predict** for the worked example: what is 0 · (−∞)? What is −1 · (−∞)? How many rows of the output
# survive?

# %%
first_infinity = small_s.masked_fill(causal(4), -math.inf)
print(
    "  T when S is masked with -inf:\n",
    reference.convolve(first_infinity[None, None], small_w[None])[0, 0],
)
same_shape = identity_taps(1, 2, 3, dtype=torch.float64)
print(
    "  even with identity taps:\n",
    reference.convolve(first_infinity[None, None], same_shape)[0, 0],
)

# %% [markdown]
# Not a single row survives. Rows 1 to 3 have a NaN on the diagonal, and one NaN makes the softmax of its
# whole row NaN. Row 0 of the first matrix has +∞ there. Subtract the maximum, and +∞ − ∞ is NaN as well. With
# identity taps it is no better.
#
# You cannot take a weighted sum with −∞ in it. A tap of 0 turns it into NaN, a negative tap turns it into +∞,
# and +∞ and −∞ together give NaN again. If all taps are positive, `T` contains no NaN, but −∞ spreads to
# every entry whose window overlaps the masked half. If the taps reach to the right of the key, as they do
# with two or more columns, all of row 0 becomes −∞, and its softmax is NaN again.
#
# So the two masks have different jobs. **0 before the convolution** says: *this score contributes nothing*.
# **−∞ after the convolution** says: *this key gets no weight*. A 0 after the convolution would not do that:
# it is a score like any other, and its weight is e⁰ = 1.
#
# ### Which test finds which mistake?
#
# Here are five ways to mask and four tests. **Predict the table** before you run: where is there a ✓, and
# where a ✗? (`loops` compares with your `convolved_score`.)
#
# | before / after | identity | finite | causal | loops |
# |---|---|---|---|---|
# | 0 / −∞ (correct) | | | | |
# | nothing / −∞ | | | | |
# | −∞ / −∞ | | | | |
# | 0 / nothing | | | | |
# | 0 / 0 | | | | |
#
# First, the five ways to mask:


# %%
def masked(before, after):
    """Return an attention function that fills the future with `before`, convolves,
    and fills it with `after`. None skips the step."""

    def attend(q, k, v, w):
        future = causal(len(q))
        s = q @ k.T / math.sqrt(q.shape[1])
        s = s if before is None else s.masked_fill(future, before)
        t = reference.convolve(s[None, None], w[None])[0, 0]
        t = t if after is None else t.masked_fill(future, after)
        return torch.softmax(t, dim=1) @ v

    return attend


# %% [markdown]
# Now the four tests. They use the random `q`, `k`, `v` and `taps`, the identity taps `unchanged`, and the
# result of PyTorch's causal attention, `ordinary`, from the first cell.


# %% tags=["uses-exercise"]
def tests(attend):
    """Return the verdicts of the four tests on attend(q, k, v, w)."""
    out = attend(q, k, v, taps)
    return {
        "identity": torch.allclose(attend(q, k, v, unchanged), ordinary, atol=1e-12),
        "finite": bool(out.isfinite().all()),
        "causal": is_causal(lambda q, k, v: attend(q, k, v, taps), q, k, v),
        "loops": torch.allclose(out, by_loops(q, k, v, taps), atol=1e-12),
    }


def verdicts(name, attend):
    """Print one row of the table."""
    print(
        f"{name:20}",
        "".join(f"{'✓' if passed else '✗':10}" for passed in tests(attend).values()),
    )


infinity = math.inf
print(
    f"{'before / after':20}",
    "".join(f"{test:10}" for test in ("identity", "finite", "causal", "loops")),
)
verdicts("0 / -inf", masked(0.0, -infinity))
verdicts("nothing / -inf", masked(None, -infinity))
verdicts("-inf / -inf", masked(-infinity, -infinity))
verdicts("0 / nothing", masked(0.0, None))
verdicts("0 / 0", masked(0.0, 0.0))

# %% [markdown]
# The second row is the dangerous one. It passes the test that everybody writes, it gives no NaN, and its
# numbers look reasonable. (Rows of NaN are reported as not causal, because NaN is not close to anything, not
# even to itself. That says nothing about the future; the `finite` test shows the true reason.)
#
# ## Find the slips
#
# The documentation of a public repository with fast kernels for this method describes it with the three lines
# below. The repository's code does something different, and so does the paper. Here `i` is the query and `j`
# is the key, and θ are the taps, written backwards: θ with i' = 0 belongs to query i itself, and i' = 1 to
# the query before it. In the same way, j' counts to the *left*. Writing them backwards is only a convention,
# not a slip.
#
# $$A = \operatorname{Softmax}\ \operatorname{Conv2d}_\theta(\hat A)$$
#
# $$a_{ij} = \operatorname{Softmax}\left( \frac{c_{q-1}}{\sqrt d} \sum_{i'=0}^{\lceil c_k/2 \rceil - 1}\ \sum_{j'=-\lfloor c_k/2 \rfloor}^{\lfloor c_k/2 \rfloor} 1_{i \ge j-j'}\ \theta_{i',j'}\ q_{i-i'}^\top k_{j-j'} \right)$$
#
# $$\operatorname{Out}_{jh} = \sum a_{ji} V_{ih}$$
#
# **Find at least four places** where it differs from the three steps of this lesson. Try it with 3 × 3 taps,
# and with 1 × 4 taps.
#
# <details><summary>Hint: where to look</summary>
#
# How many queries does the first sum cover with 3 × 3 taps? How many keys does the second sum cover with
# c_k = 4? What is c with the index q − 1? Which mask is there, and which is missing? And compare the
# *index* in the mask with the row that the score belongs to.
# </details>
#
# <details><summary>Answer</summary>
#
# 1. **The factor in front**, c with the index q−1, has no meaning. It should be 1/√d. The c_q − 1 is the
#    upper limit of the first sum and has slipped into the fraction.
# 2. **The first sum** must end at c_q − 1. The limit ⌈c_k/2⌉ − 1 belongs to the second sum. With 3 × 3 taps,
#    the first sum would cover two queries instead of three. (With the paper's 6 × 11 taps, both limits happen
#    to be 5.)
# 3. **The second sum** should end at ⌈c_k/2⌉ − 1: each limit has slipped one position to the left. For odd
#    c_k it makes no difference. With c_k = 4, the range −2…2 has five taps.
# 4. **The mask before the convolution** tests i ≥ j − j', that is, whether the key comes after query *i*. The
#    code of the method's authors, and this lesson, test i − i' ≥ j − j', that is, whether the key comes after
#    the query *of its own row*.
# 5. **The mask after the convolution** is missing. Above the diagonal the sum is not −∞, and the softmax
#    would give these keys a weight.
# 6. **The last line** uses j for the query and i for the key, the opposite of the line above, and does not
#    say what the sum runs over. By itself it is correct. Together with the line above, it mixes up the rows
#    and columns of a.
# </details>
#
# Number 4 is a matter of definition: both masks are causal. **Predict:** which of the four tests detect the
# difference? And in which columns of a row does `T` differ, with 3 × 3 taps?


# %% tags=["uses-exercise"]
def formula_scores(q, k, w):
    """Return T with the formula's mask: in the window of T[i, j], a key counts
    if it does not come after query i."""
    s = q @ k.T / math.sqrt(q.shape[1])
    t = torch.full_like(s, -math.inf)
    for i in range(len(q)):
        seen = s.masked_fill(torch.arange(len(q)) > i, 0.0)
        for j in range(i + 1):
            t[i, j] = convolved_score(seen, w, i, j)
    return t


print(
    f"{'':20}",
    "".join(f"{test:10}" for test in ("identity", "finite", "causal", "loops")),
)
verdicts(
    "the formula's mask",
    lambda q, k, v, w: torch.softmax(formula_scores(q, k, w), dim=1) @ v,
)
square = torch.randn(3, 3)
differs = (conv_scores(q, k, square) - formula_scores(q, k, square)).tril().abs()
print("\nT differs, 3 × 3 taps:")
for row in differs > 1e-12:
    print("   ", "".join(".x"[mark] for mark in row.int()))

# %% [markdown]
# Only the comparison with the loops finds it. A test for a property cannot distinguish two functions that
# both have that property.
#
# The difference stays near the diagonal. The formula counts a score that the code
# leaves out when the score's key comes after its own query and yet no later than query
# i. The window of `T[i, j]` contains such a score only for the P_q + P_r columns j = i
# − P_q − P_r + 1 … i, here three. Near the first row there are fewer. With a single row
# of taps there are none, because every score then belongs to query i itself.
#
# Why do it the way the code does? Because then *one* matrix `S0` serves all rows, and the convolution is a
# plain convolution. With the formula's mask, every row i would need its own matrix. A model that is trained
# with one mask and run with the other is wrong near the diagonal. So if you use somebody else's taps, also
# use the mask of the code that trained them.
#
# ## What it costs
#
# **Arithmetic.** Count multiply-adds per score: the product `QKᵀ` needs d, the convolution c_q · c_k, and the
# product with `V` another d. With d = 64 and 6 × 11 taps, that is 64 + 66 + 64, about one and a half times as
# much as ordinary attention.
#
# **Memory.** The reference creates one N×N matrix after another. **Predict:** how many? Go through the three
# steps of this lesson, and count each operation that writes a new matrix. Applying a mask writes a new
# matrix, and so does padding.

# %%
N, d, heads, itemsize = 4096, 64, 32, 4
matrix = heads * N * N * itemsize
steps = [
    "product",
    "scale",
    "mask with 0",
    "pad",
    "convolution",
    "mask with -inf",
    "softmax",
]
# each is written once and read once by the next step
moved = 2 * len(steps) * matrix
print(f"one N×N matrix, all heads:     {matrix / 2**30:.0f} GiB")
print(f"{len(steps)}, each written and read:    {moved / 1e9:.0f} GB")
print(f"time at 4300 GB/s:             {1000 * moved / 4.3e12:.1f} ms")
print(f"Q, K, V and the output:        {4 * heads * N * d * itemsize / 1e9:.2f} GB")

# %% [markdown]
# This is the layer of lesson 02 (32 heads, 4096 tokens, float32). The time is computed, not measured: it is
# the limit that the copy rate of an H200 alone sets, if every step is a separate kernel and no cache helps.
# Ordinary attention, written step by step in the same way (product, scale, mask, softmax), moves 8 matrices
# instead of 14. With scale and mask merged into their neighbours, as lesson 02 counts, it moves 4. For
# training, some of the matrices must also be *kept* until the backward pass: `S0` for the gradient of the
# taps, and either `P` or whatever `P` can be recomputed from.
#
# Lesson 02 got rid of these matrices: compute a tile, use it, forget it. We want to do the same here. But a
# tile of `T` depends on more than the same tile of `S0`. It also needs the P_q rows above, P_k columns to the
# left and P_r columns to the right, and these belong to *other* tiles. What must a tile load to compute the
# part that it owns? That is the one new idea of lesson 10.
#
# ## In three lines
#
# - Without the first mask, the output is finite, correct for identity taps, and sees the future.
# - Two masks, two jobs: 0 before the convolution contributes nothing, −∞ after it gets no weight.
# - Written step by step, the method moves 14 N×N matrices. Tiles get rid of them, but a tile needs its neighbours.
#
# **You can now** say which test finds which mistake, and read a formula for its slips.
#
# **Read on:** Golovneva, Wang, Weston, Sukhbaatar, *Multi-Token Attention* (2025, arXiv:2504.00927). PyTorch's
# documentation of `torch.nn.Conv2d` gives the formula of the cross-correlation, with padding and groups.
#
# **Next:** in [lesson 10](10_overlapping_tiles.ipynb) the N×N matrices disappear. A tile then has to load more
# than it owns.
