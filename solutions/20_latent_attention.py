# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 20 · Latent attention: one small cache for all heads
#
# **70 minutes** · builds on lesson 02 (tiles), lessons 03 and 04 (kernels, a race), lesson 12 (gradients by hand) and lesson 14 (the cache of keys and values)
#
# You will be able to:
#
# 1. calculate what a cache costs per token, and what it costs when all heads share two short vectors;
# 2. count multiply–adds to decide where a projection belongs, and explain why prefill and decoding decide differently;
# 3. write a decoder that never computes a head's own keys or values, and a tile of scores with a reciprocal band;
# 4. sum the gradients of a tensor that all heads share.
#
# **Why it matters.** A model that generates text keeps the keys and values of all earlier tokens in a cache (lesson 14). Take a model of the size of DeepSeek-V2: 60 layers, 128 heads of 128, bfloat16. How much memory does one conversation of 131,072 tokens need? There are three common answers:

# %%
import math
import time

import matplotlib.pyplot as plt
import numpy as np
import torch
from numba import cuda

from course import check, guess, show_figure
from course.figures import BLUE, GREEN, ORANGE, SKY
from kernels import reference
from kernels.reference import latent as latent_reference
from sim import simulate

torch.manual_seed(20)
layers, heads, d, latent, two_bytes, tokens = 60, 128, 128, 512, 2, 131_072
per_vector = layers * two_bytes * tokens  # bytes, for each element of a token's cache
every, grouped, shared = (
    2 * elements * per_vector for elements in (heads * d, heads // 8 * d, latent)
)
print(f"keys and values of every head:            {every / 1e9:6.1f} GB")
print(f"one pair for every 8 query heads:         {grouped / 1e9:6.1f} GB")
print(f"two latent vectors of {latent} for all heads:   {shared / 1e9:6.1f} GB")
print(f"times less: {every // shared} and {grouped // shared}")

# %% [markdown]
# The first line, half a terabyte, does not fit on any GPU. The second is [**grouped-query attention**](../docs/glossary.md), in which several query heads share one head of keys and values; many open models use it. The third is [**latent attention**](../docs/glossary.md), the subject of this lesson. It needs 32 times less memory than a cache per head, and 4 times less than grouped-query attention with groups of 8.
#
# DeepSeek-V2 itself goes further. It keeps one latent vector for both keys and values, and 64 more elements for the position. This lesson shows how the same result can be computed in cheaper ways. It does not show how well a model learns with latents; that can only be found out by training.
#
# ## 1. What the cache holds
#
# Ordinary attention caches a key and a value of `d` elements for every token and every head. Latent attention caches two vectors of `L` elements per token, which *all heads share*: the latent key `k̃` and the latent value `ṽ`. In return, each head h has two more weight matrices. `W_q` (d × L) projects its query into the space of the latent keys. `W_v` (L × d) projects latent values into its own space:
#
#     S[i, j] = scale · (q_i W_q) · k̃_j        O = softmax(S) ṽ W_v
#
# Each head has one `W_q` and one `W_v`, however long the text is. Only the cache grows with the text.
#
# ### Exercise 20.1 · cache_bytes · two lines
#
# Return `(every_head, latents)`, two whole numbers of bytes for `tokens` tokens. For `every_head`, each layer caches a key and a value of `d` elements per head. For `latents`, each layer caches one latent key and one latent value of `latent` elements. An element takes `size` bytes.


# %% tags=["exercise"]
def cache_bytes(tokens, layers, heads, d, latent, size):
    # BEGIN SOLUTION 20.1
    per_layer = 2 * tokens * layers * size
    return per_layer * heads * d, per_layer * latent
    # END SOLUTION


# %% tags=["check"]
check.ex20_1(cache_bytes)

# %% [markdown]
# ## 2. Absorb or expand?
#
# You can compute `S = (q W_q) · k̃` in two ways. Work through one head by hand, with d = 2 and L = 3:
#
#     q = (1, 2)      W_q = (1 0 1)      k̃ = (2, 1, 0)
#                           (0 1 1)
#
# **Absorb**: project the query into the latent space, and leave the latents alone. `q W_q` = (1, 2, 3), and (1, 2, 3) · (2, 1, 0) = 4.
#
# **Expand**: compute the head's own key from the latent. `W_q k̃` = (2, 1), and (1, 2) · (2, 1) = **?** `___`

# %% tags=["guess"]
guess("20 expand", score=...)

# %% [markdown]
# The same choice exists for the values. To expand, compute `ṽ_j W_v` for each key, and then their weighted sum. To absorb, compute the weighted sum of the latents, `Σ_j p_j ṽ_j`, and multiply by `W_v` once at the end. Both ways give the same result, but they do not take the same work.
#
# ### Exercise 20.2 · multiply_adds · about four lines
#
# Each head has `n_q` queries and `n_k` keys. Count every pair (no mask). Return `(expand, absorb)`, the multiply–adds of all heads together:
#
# - **expand** computes a key and a value of `d` elements from the latents, for each key and head. Scores and weighted sums then have vectors of `d` elements.
# - **absorb** projects each query to `L` elements. Scores and weighted sums have vectors of `L` elements. Each output is then projected back to `d` elements.
#
# The product of an a × b matrix and a b × c matrix takes a · b · c multiply–adds.
#
# <details><summary>Hint</summary>
#
# Expand: a key costs L · d multiply–adds per head, and so does a value. A score costs d, and so does one term of a weighted sum.
#
# </details>


# %% tags=["exercise"]
def multiply_adds(n_q, n_k, heads, d, latent):
    # BEGIN SOLUTION 20.2
    expand = 2 * heads * (n_k * latent * d + n_q * n_k * d)
    absorb = 2 * heads * (n_q * d * latent + n_q * n_k * latent)
    return expand, absorb
    # END SOLUTION


# %% tags=["check"]
check.ex20_2(multiply_adds)

# %% [markdown]
# **Predict**, for 128 heads of 128, latents of 512 and 4096 keys: which way is cheaper in prefill, with 4096 queries at once? `___` And in decoding, with one query? `___` By what factor in decoding, roughly? `___`

# %% tags=["guess"]
guess("20 cheaper", prefill=..., decoding=..., factor=...)

# %% tags=["uses-exercise"]
for name, n_q in [("prefill, 4096 queries", 4096), ("decoding, 1 query", 1)]:
    expand, absorb = multiply_adds(n_q, 4096, 128, 128, 512)
    less, more = sorted([(expand, "expand"), (absorb, "absorb")])
    print(f"{name:22}: {less[1]} is {more[0] / less[0]:.1f} times cheaper")

# %% tags=["uses-exercise"]
queries = np.unique(np.geomspace(1, 4096, 60).astype(int))
counts = np.array([multiply_adds(int(n), 4096, 128, 128, 512) for n in queries]) / 1e9
figure, axes = plt.subplots(figsize=(7, 3.6))
axes.loglog(queries, counts[:, 0], color=ORANGE, label="expand")
axes.loglog(queries, counts[:, 1], color=BLUE, linestyle="--", label="absorb")
cross = 4096 * 512 * 128 / (512 * 128 + 4096 * (512 - 128))  # where both are equal
axes.axvline(cross, color=GREEN, linestyle=":", label=f"{cross:.0f} queries")
axes.set(xlabel="queries at a time", ylabel="multiply–adds, in 10⁹")
axes.legend()
show_figure(
    figure,
    "multiply-adds against the number of queries at a time, for 4096 keys, both axes "
    "logarithmic. The curve of expand is flat up to about a hundred queries, and then "
    "rises. Absorb starts a hundred times lower, rises steadily, and crosses expand at "
    "164 queries.",
)

# %% [markdown]
# With a single query, expanding 4096 keys costs far more than it saves, so absorb. With
# many queries, expand: they all share the expanded keys, and a score over `d` elements
# is cheaper than one over `L` (if d < L). In decoding the bytes say the same: if you
# absorb, the latents of a token are read once for *all* heads.
#
# Multiply–adds are not the only cost. Expanded keys have to be written to memory and read again, for every head. The kernel in `kernels/latent/forward.py` avoids that. It applies each projection to the operand that stays in shared memory, and accepts more multiply–adds in return; the file's header explains how.
#
# ## 3. Decoding
#
# ### Exercise 20.3 · decode · about four lines
#
# Attend to the cache for one new token. `q` is (H, d), one query per head. The cache is `k_latent` and `v_latent`, both (n, L), for all heads. `w_q` is (H, d, L) and `w_v` is (H, L, d). Return the output, (H, d).
#
# - Absorb: create no tensor with a key or a value for every head (n · H · d elements, or n · H · L). The check also counts multiply–adds.
# - Scores are multiplied by `scale`, and may reach ±1000.
# - `torch.softmax` is allowed, `scaled_dot_product_attention` is not.


# %% tags=["exercise"]
def decode(q, k_latent, v_latent, w_q, w_v, scale):
    # BEGIN SOLUTION 20.3
    q_latent = (q[:, None] @ w_q)[:, 0]  # (H, L)
    p = torch.softmax(scale * q_latent @ k_latent.T, dim=-1)  # (H, n)
    return ((p @ v_latent)[:, None] @ w_v)[:, 0]
    # END SOLUTION


# %% tags=["check"]
check.ex20_3(decode)

# %% [markdown]
# Is it worth the trouble? The next cell compares your decoder with two others, on a cache of 8192 tokens with 32 heads of 64 and latents of 64. One decoder expands the same latents. The other is ordinary decoding, with keys and values cached for every head.


# %% tags=["uses-exercise"]
def expanding(q, k_latent, v_latent, w_q, w_v, scale):
    k, v = w_q @ k_latent.T, v_latent @ w_v  # (H, d, n), (H, n, d)
    return torch.softmax(scale * q[:, None] @ k, dim=-1).bmm(v)[:, 0]


def ordinary(q, k, v, scale):
    return torch.softmax(scale * q[:, None] @ k, dim=-1).bmm(v)[:, 0]


def seconds(function, *arguments):
    """Return the shortest time of five calls, in seconds."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        function(*arguments)
        times.append(time.perf_counter() - start)
    return min(times)


one = torch.randn(32, 64), *torch.randn(2, 8192, 64)
one = *one, torch.randn(32, 64, 64) / 8, torch.randn(32, 64, 64) / 8, 1 / 8
kept = one[3] @ one[1].T, one[2] @ one[4]  # every head's keys and values
same = torch.allclose(decode(*one), expanding(*one), atol=1e-4)
usual = torch.allclose(decode(*one), ordinary(one[0], *kept, one[5]), atol=1e-4)
print(f"equal to expanding: {same}   to ordinary decoding: {usual}")
latents, keys_values = (sum(x.nbytes for x in each) for each in (one[1:3], kept))
print(f"latents: {latents >> 20} MiB   keys and values: {keys_values >> 20} MiB")

# %% [markdown]
# The times depend on your machine, and on what else it is doing:

# %% tags=["uses-exercise", "nbval-ignore-output"]
for name, function, given in [
    ("yours, absorbing", decode, one),
    ("expanding", expanding, one),
    ("ordinary, a cache per head", ordinary, (one[0], *kept, one[5])),
]:
    print(f"{name:28}{1000 * seconds(function, *given):8.2f} ms")

# %% [markdown]
# Expanding does far more work, so it should be slowest by far. Ordinary decoding needs about as many multiply–adds as yours, but its cache is 32 times as large, and every token reads all of it. On a GPU with a long cache, those reads take most of a token's time (lesson 14). On a CPU, ordinary decoding may even be faster: the result depends on how much of the data fits into the processor's own caches, so do not carry this ratio over to a GPU.
#
# A factor of 32 is the comparison with a cache for *every* head. Against grouped-query attention, divide it by the size of a group: with 8 query heads per group, the latents here are 4 times smaller.
#
# ## 4. A reciprocal band
#
# In a score, the query of token i looks for the key of token j. **Reciprocal attention** also uses the other direction. For the last `window` tokens, the score gets a second term, in which token j's *query* meets token i's *key*:
#
#     S[i, j] = scale · ( q̃_i · k̃_j  +  α · [0 <= i − j < window] · q̃_j · k̃_i )        q̃ = q W_q
#
# Work through it by hand, with L = 1, scale = 1, α = 1/2, window = 2, q̃ = (1, 2, 3) and k̃ = (4, 5, 6). Row 2 without the band is q̃_2 k̃ = 3 · (4, 5, 6) = (12, 15, 18). The band covers j = 1 and j = 2. It adds ½ · q̃_1 k̃_2 = ½ · 2 · 6 = 6, and ½ · q̃_2 k̃_2 = ½ · 3 · 6 = 9. So row 2 is (12, 21, 27). **What are the first two entries of row 1?** `___`

# %% tags=["guess"]
guess("20 band", row_1=...)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 2 · (4, 5) = (8, 10), and the band adds ½ · 1 · 5 = 2.5 and ½ · 2 · 5 = 5. So row 1 is (10.5, 15, −∞): key 2 is in the future.
#
# </details>
#
# Two things make this tile interesting.
#
# First, it needs queries at the positions of *keys*. Computing `q̃_j` for all keys would take N × L elements per head, which is what latent attention wants to avoid. But q̃_j · k̃_i = q_j · (W_q k̃_i). So a kernel can project the keys of its tile's *rows*, which stay in place, and read the queries of the columns as they are. (In the exercise you may do either.)
#
# Second, **not every key has a query**. A cache from an earlier prompt holds keys only. Tokens before `first_query` have no query, so they have no reciprocal term either. Their rows of `q_columns` contain whatever the memory contained before: NaN, or values that look valid.
#
# ### Exercise 20.4 · tile_scores · about nine lines
#
# Compute one tile of one head. `first` is `(first_row, first_column, first_query)`.
#
# - Rows are the tokens from `first_row` on, with queries `q_rows` (R, d) and latent keys `k_rows` (R, L).
# - Columns are the tokens from `first_column` on, with queries `q_columns` (C, d) and latent keys `k_columns` (C, L). The queries of tokens before `first_query` are garbage.
#
# Return S, (R, C), with −∞ where key j comes after query i. `alpha` may be negative, and scores may reach ±1000.
#
# <details><summary>Hint: garbage</summary>
#
# 0 · NaN is NaN, so multiplying by the mask does not help. `torch.where(test, a, b)` selects a or b.
#
# </details>


# %% tags=["exercise"]
def tile_scores(q_rows, k_rows, q_columns, k_columns, w_q, first, alpha, window, scale):
    # BEGIN SOLUTION 20.4
    first_row, first_column, first_query = first
    i = first_row + torch.arange(len(q_rows))[:, None]
    j = first_column + torch.arange(len(q_columns))
    straight = (q_rows @ w_q) @ k_columns.T
    back = (k_rows @ w_q.T) @ q_columns.T
    band = (i - j >= 0) & (i - j < window) & (j >= first_query)
    s = scale * (straight + torch.where(band, alpha * back, 0))
    return torch.where(j <= i, s, -math.inf)
    # END SOLUTION


# %% tags=["check"]
check.ex20_4(tile_scores)

# %% [markdown]
# The picture shows where the band changes your tile, for ten tokens and window = 4. The first three tokens come from an earlier prompt and have no queries, so the rows begin at token 3. (The cell only draws.)


# %% tags=["uses-exercise"] jupyter={"source_hidden": true}
def draw_band(n, window, first_query):
    """Draw where tile_scores has a score, and where alpha changes it."""
    own = slice(first_query, n)
    generator = torch.Generator().manual_seed(4)
    q, k, w_q = (
        torch.randn(*shape, generator=generator) for shape in ((n, 3), (n, 5), (3, 5))
    )
    with_band, without = (
        tile_scores(
            q[own], k[own], q, k, w_q, (first_query, 0, first_query), alpha, window, 1.0
        )
        for alpha in (0.5, 0.0)
    )
    figure, axes = plt.subplots(figsize=(6, 4.2), layout="constrained")
    for i in range(n - first_query):
        for j in range(n):
            seen = with_band[i, j] > -math.inf
            both = seen and with_band[i, j] != without[i, j]
            colour = ORANGE if both else SKY if seen else "white"
            box = plt.Rectangle((j, i), 0.94, 0.94, facecolor=colour, edgecolor="grey")
            axes.add_patch(box)
        words = f"query {first_query + i}"
        axes.text(-0.3, i + 0.5, words, ha="right", va="center")
    for j in range(n):
        axes.text(j + 0.47, -0.3, j, ha="center")
    axes.text(-0.3, -0.3, "key", ha="right")
    axes.set(xlim=(-2.2, n), ylim=(n - first_query + 0.1, -0.9), aspect="equal")
    axes.axis("off")
    return figure


show_figure(
    draw_band(10, 4, 3),
    "a matrix of scores, the queries 3 to 9 by ten keys; keys after their query are "
    "white. In each row the query's own key and the three before it are orange if the "
    "key's token has a query: there, token j's query looks back. All other scores are "
    "blue, including those of keys 0, 1 and 2, which have no query.",
)

# %% [markdown]
# With your tile, the forward pass is the one from lesson 02, except that it processes the last columns first. **Predict** what goes wrong without the line under `if guard:`. `___`

# %% tags=["guess"]
guess("20 guard", result=...)


# %% tags=["uses-exercise"]
def forward(q, k, v, w_q, w_v, alpha, window, rows=4, columns=4, guard=True):
    """Compute one head for all tokens, tile by tile, the last columns first."""
    n, d = q.shape
    o = torch.empty(n, d, dtype=q.dtype)
    for i in range(0, n, rows):
        mine = slice(i, min(i + rows, n))
        m = torch.full((len(q[mine]), 1), -math.inf, dtype=q.dtype)
        total, acc = torch.zeros_like(m), torch.zeros(len(m), k.shape[1], dtype=q.dtype)
        for j in reversed(range(0, n, columns)):
            those = slice(j, min(j + columns, n))
            given = q[mine], k[mine], q[those], k[those], w_q, (i, j, 0), alpha, window
            s = tile_scores(*given, 1 / math.sqrt(k.shape[1]))
            new = torch.maximum(m, s.amax(1, keepdim=True))
            base = new
            if guard:  # in a row without a visible key, e^(-inf - 0) is 0
                base = torch.where(new == -math.inf, 0.0, new)
            p, shrink = torch.exp(s - base), torch.exp(m - base)
            total = total * shrink + p.sum(1, keepdim=True)
            acc = acc * shrink + p @ v[those]
            m = new
        o[mine] = (acc / total) @ w_v
    return o


q, k, v = torch.randn(11, 6).double(), *torch.randn(2, 11, 5).double()
w_q, w_v = torch.randn(6, 5).double(), torch.randn(5, 6).double()
wanted = reference.latent_attention(
    q[None, None], k[None], v[None], w_q[None], w_v[None], alpha=0.7, window=3
)[0, 0]
for guard in (True, False):
    o = forward(q, k, v, w_q, w_v, 0.7, 3, guard=guard)
    right = torch.allclose(o, wanted)
    print(f"guard {guard!s:5}: right {right}, NaN {o.isnan().any()}")

# %% [markdown]
# The first tile of a row can be entirely in the row's future. Then every score is −∞, the maximum stays −∞, and −∞ − (−∞) is NaN. The guard uses 0 in place of that maximum inside the two exponentials. It does *not* store 0 as the maximum: if it did, a row whose later scores are all near −1000 would add up nothing but zeros. You see neither mistake as long as the first tile of every row contains a visible key.
#
# ## 5. The gradient of a shared tensor
#
# Each head has its own output `O_h = P_h ṽ W_v,h`. By the rules of lesson 12 (for Y = A X B: dX = Aᵀ dY Bᵀ), head h contributes `P_hᵀ dO_h W_v,hᵀ` to the gradient of `ṽ`. All heads use the same `ṽ`, so their contributions are **added**.
#
# ### Exercise 20.5 · d_v_latent · about four lines
#
# Return the gradient of the latent values, (n, L). `p` is (H, N, n), `d_o` is (H, N, d), `w_v` is (H, L, d). Rows of `p` need not sum to 1: they may be parts of rows.
#
# - Do not hold n · L elements for each of several heads, neither in one tensor nor in a list. n · d elements for each head are allowed.
# - Do not use autograd.


# %% tags=["exercise"]
def d_v_latent(p, d_o, w_v):
    # BEGIN SOLUTION 20.5
    total = 0
    for head in range(len(p)):
        total = total + (p[head].T @ d_o[head]) @ w_v[head].T
    return total
    # END SOLUTION


# %% tags=["check"]
check.ex20_5(d_v_latent)

# %% [markdown]
# On a GPU each head is a block of its own. The blocks run at the same time, and all of them add to the same elements. The kernel below adds one number per head. **Predict** what the simulator reports: `___`

# %% tags=["guess"]
guess("20 heads add", finding=...)


# %%
@cuda.jit
def add_heads(parts, total):
    head, j = cuda.blockIdx.x, cuda.threadIdx.x
    total[j] += parts[head, j]


@cuda.jit
def add_heads_atomically(parts, total):
    head, j = cuda.blockIdx.x, cuda.threadIdx.x
    cuda.atomic.add(total, j, parts[head, j])


parts = torch.randn(8, 32).numpy()
for kernel in (add_heads, add_heads_atomically):
    total = np.zeros(32, np.float32)
    report = simulate(kernel, on_finding="report")[8, 32](parts, total)
    kinds = sorted({finding.kind for finding in report.findings})
    right = np.allclose(total, parts.sum(0), atol=1e-5)
    print(f"{kernel.__name__:21} right now: {right}   findings: {kinds or 'none'}")

# %% [markdown]
# The first kernel happens to give the correct sum here, because the simulator runs its blocks one after the other. But it has a race: on a GPU, two heads may read the same old value, and one of the two additions is lost. The second kernel is correct everywhere. Its float32 additions come in any order, though, so the last digits may change from run to run. A third way stores the contribution of each head separately, and adds them in a second pass in a fixed order. It gives the same bits every time, and needs H times the memory. `kernels/latent/backward.py` has the second and the third; `torch.use_deterministic_algorithms(True)` selects the third.
#
# ## Validate
#
# If `W_q` and `W_v` are identities and α = 0, latent attention is ordinary attention in which all heads share one head of keys and values (**multi-query attention**). So PyTorch can check your decoder, and autograd can check your gradient:

# %% tags=["uses-exercise"]
h, n, d = 3, 9, 4
q, k, v = torch.randn(h, n, d).double(), *torch.randn(2, n, d).double()
eye = torch.eye(d).double().repeat(h, 1, 1)
mine = decode(q[:, -1], k, v, eye, eye, 1 / math.sqrt(d))
whole = torch.nn.functional.scaled_dot_product_attention(
    q, k.expand(h, n, d), v.expand(h, n, d), is_causal=True
)
print(f"identities, the last row: {torch.allclose(mine, whole[:, -1])}")

w_q, w_v = torch.randn(2, h, d, d).double()
v.requires_grad_()
o = reference.latent_attention(q[None], k[None], v[None], w_q, w_v)
d_o = torch.randn_like(o)
p = torch.softmax(latent_reference.latent_scores(q[None], k[None], w_q, n), dim=-1)[0]
(wanted,) = torch.autograd.grad(o, v, d_o)
right = torch.allclose(d_v_latent(p, d_o[0], w_v), wanted)
print(f"the gradient of the latent values: {right}")

# %% [markdown]
# ## In three lines
# - A latent cache costs 2 · L elements per token and layer, whatever the number of heads.
# - For one query, absorb; for many, expand. Count multiply–adds before you place a projection: (q W_q) · k̃ = q · (W_q k̃).
# - The gradient of a tensor that all heads share is the sum over the heads: by atomic additions, or stored separately and added in a fixed order.
#
# **You can now** read a model's configuration and say what its cache costs, and where its projections belong.
#
# **Read on:** DeepSeek-AI, *DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts Language Model* (2024, arXiv:2405.04434), section 2.1, for latent attention · Joshua Ainslie et al., *GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints* (2023, arXiv:2305.13245) · Noam Shazeer, *Fast Transformer Decoding: One Write-Head is All You Need* (2019, arXiv:1911.02150), for multi-query attention.
#
# **Next:** [lesson 21](21_triton.ipynb) writes kernels in Triton, as programs that work on tiles.
