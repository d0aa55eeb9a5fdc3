# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 19b · Heads: decoding, and four faults
#
# **50 minutes** · builds on lesson 19 (your two passes), lesson 14 (the cache) and lesson 12b (mistakes in gradients)
#
# You will be able to
#
# 1. calculate how few queries a decoder has to keep;
# 2. say why delta is not always dO · O, and why a mask does not keep documents apart;
# 3. find four mistakes in layers that pass their own tests.
#
# In lesson 19 you computed the multi-token layer for a whole sequence. Here you decode with it, one token at a time. Then you look for faults: each of five layers passes its own tests, and four of them are wrong.
#
# The next cell loads your functions of lesson 19. If you have not solved one of them, or not saved it, the cell loads the solution's version instead.

# %%
import torch

from course import brought, check, guess
from course.check import lesson19b
from kernels import reference

torch.manual_seed(19)
torch.set_default_dtype(torch.float64)
forward = brought("19_heads", "forward")
heads, n, d = 3, 23, 4
q, k, v = torch.randn(3, heads, n, d)
taps, after_taps = torch.randn(heads, 3, 4), torch.randn(heads, 2, 5)
maps = torch.randn(2, heads, heads)
layer = taps, maps[0], after_taps, maps[1]
o = forward(q, k, v, *layer)

# %% [markdown]
# ## 1. How few queries a decoder keeps
#
# For one new token, lesson 14's decoder kept all keys and values, and the `c_q − 1` queries before the new one. Now the last row of `U` reads `c_q2` rows of `P`, and each of these reads `c_q1` rows of scores. **Predict** for c_q1 = c_q2 = 6: how many queries must you keep *in addition to* the new one? `___`

# %% tags=["guess"]
guess("19b kept queries", queries=...)

# %% [markdown]
# ### Exercise 19.3 · push · about four lines
#
# `kept` (H, r, d) has the queries kept so far, none at the beginning. `q` (H, m, d) has new queries: a prompt, a single token, or the next prompt of the same conversation. Several conversations may alternate, so `push` may use only its arguments, and only their values: it must store nothing elsewhere, not even as an attribute of a tensor. Return `(window, kept)`:
#
# - `window`: the queries that the newest token's output needs, including its own, oldest first. If there are fewer, return all of them;
# - the new `kept`: those queries of the window that the *next* token will need.
#
# A slice is a view: if you keep ten rows of a prompt of 100,000 tokens as a view, all 100,000 rows stay in memory. `clone()` copies.


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
# The next cell decodes token by token with your cache, and compares with the forward pass above. The first four tokens are the prompt.

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
# ## 2. The backward pass, and where documents end
#
# The bug hunt at the end of this lesson needs two facts.
#
# **Delta.** Lesson 12's backward pass needs one number per row, which FlashAttention calls **delta**: `D_i = Σ_j P_ij · dP_ij`. If `O = P V`, it equals `dO_i · O_i`, and flash-attention kernels compute it in this way. But here a convolution and a map come between `P` and `O`. Suppose that the second map *swaps* two heads: `U'_0 = P_1` and `U'_1 = P_0`. Then the gradient of `P_0` comes from output 1, and `D` of head 0 is `dO_1 · O_1`, not `dO_0 · O_0`. So `D` needs a separate pass.
#
# You can easily miss this mistake. Summed over *all* rows and heads, both values are equal (`Σ P · dP = Σ U' · dU'`, because U' is linear in P). And if nothing follows the softmax, they are equal row by row.
#
# **Documents.** In training, several short documents are packed into one sequence, and no document may see another. In plain attention a mask is enough. With a convolution it is not. Take two documents, tokens 0–5 and 6–11. The score `S[5, 5]` is inside the first document, so the mask keeps it. **Predict**: with 3 × 3 taps, which entries of `T` in the *second* document read it? `___`

# %% tags=["guess"]
guess("19b border", entries=...)

# %% [markdown]
# <details><summary>Answer</summary>
#
# `T[i, j]` reads rows i − 2 to i and columns j − 1 to j + 1. So `T[6, 6]` and `T[7, 6]` read `S[5, 5]`: rows 6 and 7, column 6. With only one row of taps, or without a column to the left (c_k ≤ 2), no entry of the second document reads it.
#
# </details>
#
# ### Five implementations
#
# Each implementation below is a whole layer with its own backward pass. Four of the five
# have a fault, and one is correct. `lesson19b.wrong(name)` lists the results that an
# implementation gets wrong. All five pass their own tests, which use 3 × 3 taps and a
# first map near the identity, as after a little training. The letters are drawn again in
# each session, so only your experiments can tell them apart.

# %%
for name in lesson19b.IMPLEMENTATIONS:
    print(f"{name} gets wrong:", lesson19b.wrong(name) or "nothing")

# %% [markdown]
# ### Exercise 19.4 · Which fault is it?
#
# | word | the implementation |
# |---|---|
# | `"statistic"` | uses dO·O for D |
# | `"map"` | masks with −10⁹, and maps heads *after* that |
# | `"scores"` | lets the *first* convolution cross from one document into another |
# | `"weights"` | lets the *second* convolution do so |
# | `"none"` | is correct |
#
# Design experiments. For each fault: which layer shows it, and where? In which rows of `O`, or in which gradients? Then run the experiments. `lesson19b.wrong(name, …)` compares `O` (row by row) and all gradients with those of the correct layer. A wrong `O` makes most gradients wrong too, but a fault of the backward pass alone leaves `O` correct. Its arguments are
#
# - `taps=(3, 3)` and `after_taps=None`: a pair `(c_q, c_k)`, or None;
# - `head_map="near 1"` and `after_map=None`: `"near 1"`, `"any"` (entries of both signs), or None;
# - `documents=None`: the first token of each document, for example `(0, 6)`. There are twelve tokens.
#
# Return `{"a": ..., "b": ..., "c": ..., "d": ..., "e": ...}`. Write down the words that you found, or let `faults` run the experiments and decide from their results.

# %%
layer_tried = {"taps": (1, 3), "head_map": None}  # change one part at a time
for name in lesson19b.IMPLEMENTATIONS:
    print(f"{name} gets wrong:", lesson19b.wrong(name, **layer_tried) or "nothing")


# %% tags=["exercise"]
def faults():
    # BEGIN SOLUTION 19.4
    found = {}
    for name in lesson19b.IMPLEMENTATIONS:
        border = {"documents": (0, 6), "head_map": None}
        if lesson19b.wrong(name, head_map="any"):
            found[name] = "map"
        elif lesson19b.wrong(name, **border):
            found[name] = "scores"
        elif lesson19b.wrong(name, after_taps=(3, 3)):
            found[name] = "statistic"
        elif lesson19b.wrong(name, after_taps=(3, 3), **border):
            found[name] = "weights"
        else:
            found[name] = "none"
    return found
    # END SOLUTION


# %% tags=["check"]
check.ex19_4(faults)

# %% [markdown]
# One layer with all parts shows all four faults, each with its own pattern: only gradients are wrong, or every row except the last, or the first rows after a border. **Predict** for the implementation with the fault `"scores"`, with 3 × 3 taps before the softmax: which rows of `O` are wrong after the border at 6? `T[6, 6]` and `T[7, 6]` read the score across the border. So which of the rows 6 and 7 are wrong? `___`

# %% tags=["guess"]
guess("19b wrong rows", rows=...)

# %% tags=["uses-exercise"]
found = next(name for name, fault in faults().items() if fault == "scores")
print("documents (0, 6):", lesson19b.wrong(found, documents=(0, 6))[0])

# %% [markdown]
# Only row 7 is wrong. Row 6 is the first row of its document and sees only one key, and a softmax over one key is 1 for any score. One row in twelve is wrong, and only with this layer. So a test of packed documents must compare *all* rows with the rows of documents that are computed one by one.

# %% [markdown]
# ## In three lines
# - A decoder keeps c_q1 + c_q2 − 2 queries besides the new one, just as many as the halo has rows.
# - Delta, D, is Σ P · dP. It equals dO · O only if O = P V.
# - With a convolution, a mask alone does not keep two documents apart.
#
# **You can now** use `kernels.multi_token_attention` and `MultiTokenAttention`, and test a layer for faults that its own tests do not reach.
#
# **Read on:** Olga Golovneva, Tianlu Wang, Jason Weston and Sainbayar Sukhbaatar, *Multi-Token Attention* (2025, arXiv:2504.00927) · Tri Dao, *FlashAttention-2* (2023, arXiv:2307.08691), section 3, for delta · the [glossary](../docs/glossary.md) of this course.
#
# **Next:** [lesson 20](20_latent_attention.ipynb) gives all heads one small cache.
