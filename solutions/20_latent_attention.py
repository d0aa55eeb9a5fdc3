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
# **70 minutes** · builds on lesson 02 (tiles), lessons 03 and 04 (a kernel, a race), lesson 12 (gradients by hand) and lesson 14 (the cache)
#
# You will be able to
#
# 1. say what a cache costs per token, and what it costs if all heads share two short vectors;
# 2. decide from a count of multiply–adds where to put a projection, and why prefill and decoding decide differently;
# 3. write a decoder that never makes a head's own keys or values, and the tile of a score matrix with a reciprocal band;
# 4. add up the gradient of something that all heads share.
#
# **Where this leads.** A model of the size of DeepSeek-V2 (60 layers, 128 heads of 128, bfloat16) that keeps keys and values for every head needs, for one conversation of 131,072 tokens:

# %%
import math
import time

import matplotlib.pyplot as plt
import numpy as np
import torch
from numba import cuda

from course import check, show_figure
from course.figures import BLUE, GREEN, ORANGE, SKY
from kernels import reference
from kernels.reference import latent as latent_reference
from sim import simulate

torch.manual_seed(20)
layers, heads, d, latent, two_bytes, tokens = 60, 128, 128, 512, 2, 131_072
shared = 2 * latent * layers * two_bytes * tokens
every = 2 * heads * d * layers * two_bytes * tokens
print(f"keys and values of every head: {every / 1e9:6.1f} GB")
less = every // shared
print(f"two latent vectors of {latent}:      {shared / 1e9:6.1f} GB, {less} times less")

# %% [markdown]
# Half a terabyte does not fit on any GPU; 16 GB does. (DeepSeek-V2 goes further: one latent serves for keys and values, with 64 numbers for the position beside it. DeepSeek-AI 2024, arXiv 2405.04434, section 2.1.) You will write what makes this work. (Whether a model learns as well with shared latents is a question for its training; here the same numbers are computed in cheaper ways.)
#
# ## 1. What is kept
#
# Ordinary attention keeps, for every token and every head, a key and a value of `d` numbers. **Latent attention** keeps two vectors of `L` numbers per token, which *all heads share*: the latent key `k̃` and the latent value `ṽ`. Each head h has two matrices instead. `W_q` (d × L) takes its query to where the latent keys are, `W_v` (L × d) takes latent values to its own:
#
#     S[i, j] = scale · (q_i W_q) · k̃_j        O = softmax(S) ṽ W_v
#
# `W_q` and `W_v` are weights: there is one of each per head, however long the text.
#
# ### Exercise 20.1 · cache_bytes · two lines
#
# For `tokens` tokens, return `(every_head, latents)`: the bytes that a model keeps if each layer has a key and a value of `d` numbers per head, and if each layer has a latent key and a latent value of `latent` numbers. A number takes `size` bytes. The bytes are whole numbers.


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
# There are two ways to read `S = (q W_q) · k̃`. On paper, one head with d = 2 and L = 3:
#
#     q = (1, 2)      W_q = (1 0 1)      k̃ = (2, 1, 0)
#                           (0 1 1)
#
# **Absorb**: take the query to the latents. `q W_q` = (1, 2, 3), and (1, 2, 3) · (2, 1, 0) = 4.
#
# **Expand**: make the head's own key out of the latent. `W_q k̃` = (2, 1), and (1, 2) · (2, 1) = **?** `___`
#
# <details><summary>Answer</summary>
#
# 1 · 2 + 2 · 1 = 4. It is the same sum in another order: (q W_q) · k̃ = q · (W_q k̃).
#
# </details>
#
# The values have two ways as well. Expand: `ṽ_j W_v` for each key first, then the weighted sum of these. Absorb: the weighted sum of the latents `Σ_j p_j ṽ_j` first, and `W_v` once, at the end. Both give the same numbers, but not for the same work.
#
# ### Exercise 20.2 · multiply_adds · about four lines
#
# `n_q` queries of each head meet `n_k` keys; count every pair (no mask). Return `(expand, absorb)`, the multiply–adds of all heads together.
#
# - **expand** makes a key and a value of `d` numbers from the latents, for each key and head; then scores and weighted sums have `d` numbers each;
# - **absorb** projects each query to `L` numbers; scores and weighted sums have `L` numbers each; then each output comes back to `d` numbers.
#
# (A product of an a × b matrix with a b × c matrix takes a · b · c multiply–adds.)
#
# <details><summary>Hint</summary>
#
# Expand: a key costs L · d multiply–adds per head, a value as many; a score costs d, a term of a weighted sum costs d.
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
# **Predict**, for 128 heads of 128 with latents of 512, 4096 keys: which way is cheaper in prefill (4096 queries at once)? `___` And in decoding (one query)? `___` By what factor, roughly? `___`

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
    "multiply-adds over the number of queries at a time, for 4096 keys, both axes "
    "logarithmic. Expand stays level up to about a hundred queries, and then rises. "
    "Absorb begins a hundred times lower, rises all the time, and crosses the other at "
    "164 queries.",
)

# %% [markdown]
# A single query cannot pay for 4096 expanded keys; it absorbs. Many queries share them, and where d < L a score of `d` numbers is cheaper than one of `L`: they expand. (In decoding the bytes say the same: absorbed, the latents of a token are read once for *all* heads.)
#
# The count is not all: expanded keys have to be written to memory and read again, for every head. `kernels/latent/forward.py` never does that. It puts each projection on *the side that stays on the chip* and pays with more multiply–adds; its header says how.
#
# ## 3. Decoding
#
# ### Exercise 20.3 · decode · about four lines
#
# One new token. `q` is (H, d), one query per head; the cache is `k_latent`, `v_latent`, both (n, L), for all heads; `w_q` is (H, d, L) and `w_v` is (H, L, d). Return the output, (H, d). Absorb: make no tensor with a key or a value for every head (n · H · d numbers, or n · H · L). Scores are multiplied by `scale`; they may reach ±1000. The multiply–adds are counted. `torch.softmax` is allowed, `scaled_dot_product_attention` is not.


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
# Is it worth it? We compare yours with two others, on a cache of 8192 tokens (32 heads of 64, latents of 64): a decoder that expands the same latents, and ordinary decoding from keys and values kept for every head.


# %% tags=["uses-exercise"]
def expanding(q, k_latent, v_latent, w_q, w_v, scale):
    k, v = w_q @ k_latent.T, v_latent @ w_v  # (H, d, n), (H, n, d)
    return torch.softmax(scale * q[:, None] @ k, dim=-1).bmm(v)[:, 0]


def seconds(function, *arguments):
    """The shortest of five calls."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        function(*arguments)
        times.append(time.perf_counter() - start)
    return min(times)


one = torch.randn(32, 64), *torch.randn(2, 8192, 64)
one = *one, torch.randn(32, 64, 64) / 8, torch.randn(32, 64, 64) / 8, 1 / 8
same = torch.allclose(decode(*one), expanding(*one), atol=1e-4)
kept = one[3] @ one[1].T, one[2] @ one[4]  # every head's keys and values


def ordinary(q, k, v, scale):
    return torch.softmax(scale * q[:, None] @ k, dim=-1).bmm(v)[:, 0]


usual = torch.allclose(decode(*one), ordinary(one[0], *kept, one[5]), atol=1e-4)
print(f"equal to expanding: {same}   to ordinary decoding: {usual}")
print(f"faster than expanding: {seconds(decode, *one) < seconds(expanding, *one)}")
latents, keys_values = (sum(x.nbytes for x in each) for each in (one[1:3], kept))
print(f"latents: {latents >> 20} MiB   keys and values: {keys_values >> 20} MiB")

# %% [markdown]
# Ordinary decoding needs about as many multiply–adds as yours. But its cache is 32 times as large, and all of it must be read for each token. On a GPU, that is the time of a token (lesson 14). The cell does not time it here, because on a CPU the caches of the machine decide.
#
# (Many models lie between the two: with **grouped-query attention**, several query heads share one head of keys and values. With 8 query heads for each, the cache is 8 times smaller.)
#
# ## 4. A reciprocal band
#
# In a score, a query asks and a key answers. **Reciprocal** attention lets the near past ask back: for the last `window` tokens, the score of query i and key j gets a second term, in which token j's *query* meets token i's *key*:
#
#     S[i, j] = scale · ( q̃_i · k̃_j  +  α · [0 <= i − j < window] · q̃_j · k̃_i )        q̃ = q W_q
#
# On paper, L = 1, scale 1, α = 1/2, window = 2, q̃ = (1, 2, 3) and k̃ = (4, 5, 6). Row 2 without the band: q̃_2 k̃ = 3 · (4, 5, 6) = (12, 15, 18). The band reaches j = 1 and j = 2: ½ · q̃_1 k̃_2 = ½ · 2 · 6 = 6 and ½ · q̃_2 k̃_2 = ½ · 3 · 6 = 9. So row 2 is (12, 21, 27). **Row 1?** `___`
#
# <details><summary>Answer</summary>
#
# 2 · (4, 5) = (8, 10), and the band adds ½ · 1 · 5 = 2.5 and ½ · 2 · 5 = 5: (10.5, 15, −∞). Key 2 is in the future.
#
# </details>
#
# Two things make the tile interesting. First, it needs queries at the positions of *keys*. `q̃_j` for all keys would be N × L numbers per head: just what latent attention wants to avoid. But q̃_j · k̃_i = q_j · (W_q k̃_i): a kernel projects the keys of its tile's *rows*, which stay, while raw queries stream by with the columns. (In the exercise either order will do.) Second, a cache from an earlier prompt holds keys, and **not every key has a query**: tokens before `first_query` have none, so no reciprocal term either. Their rows of `q_columns` hold whatever the memory held: NaN, or numbers that look right.
#
# ### Exercise 20.4 · tile_scores · about nine lines
#
# One head, one tile; `first` is `(first_row, first_column, first_query)`. Its rows are the tokens `first_row`, `first_row + 1`, …, with queries `q_rows` (R, d) and latent keys `k_rows` (R, L). Its columns are the tokens from `first_column` on, with queries `q_columns` (C, d), of which those of tokens before `first_query` are garbage, and latent keys `k_columns` (C, L). Return S, (R, C), −∞ where key j lies after query i. `alpha` may be negative, and scores may reach ±1000.
#
# <details><summary>Hint: garbage</summary>
#
# 0 · NaN is NaN. `torch.where(test, a, b)` takes one or the other.
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
# What the band adds, by your tile: ten tokens, window = 4; the first three are from an earlier prompt and have no queries, so the rows begin at token 3. (The cell only draws.)


# %% tags=["uses-exercise"] jupyter={"source_hidden": true}
def draw_band(n, window, first_query):
    """Where tile_scores has a score, and where alpha changes it."""
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
    "white. "
    "In each row the query's own key and the three before it are orange: there key j "
    "asks "
    "back. All other scores are blue, those of the keys 0 to 2 in every row, as "
    "these keys have no query.",
)

# %% [markdown]
# With your tile, the forward pass is lesson 02's, but it visits the last columns first. **Predict** what goes wrong without the lines under `guard`: `___`


# %% tags=["uses-exercise"]
def forward(q, k, v, w_q, w_v, alpha, window, rows=4, columns=4, guard=True):
    """One head, all tokens, tile by tile; with the last columns first."""
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
            if guard:  # a row that has seen no key: e^(-inf - 0) is 0
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
# A row's first tile can lie wholly in its future: every score is −∞, the maximum stays −∞, and −∞ − (−∞) is NaN. The guard takes 0 for that maximum in the two exponentials, but does *not* keep it as the maximum: a row whose later scores all lie near −1000 would then add up nothing but zeros. Neither mistake shows while every first tile has a visible key.
#
# ## 5. The gradient of what all heads share
#
# Each head has its own `O_h = P_h ṽ W_v,h`. By the rules of lesson 12 (for Y = A X B: dX = Aᵀ dY Bᵀ), head h wants to move `ṽ` by `P_hᵀ dO_h W_v,hᵀ`. There is one `ṽ`; so the gradients of all heads are **added**.
#
# ### Exercise 20.5 · d_v_latent · about four lines
#
# `p` is (H, N, n), `d_o` is (H, N, d), `w_v` is (H, L, d). Return the gradient of the latent values, (n, L). Make no tensor with n · L numbers for each of several heads; n · d numbers for each are allowed. A list with a part for every head takes the same memory, and is refused too. Rows of `p` need not sum to 1: they may be parts of rows. Without autograd.


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
# On a GPU, heads are blocks that run at the same time, and all of them add to the same numbers. **Predict** what the simulator says of this kernel, which adds one number per head: `___`


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
# The first is right in the simulator's orderly world, and a race: on a GPU, two heads may read the same old number, and one addition is lost. The second is right everywhere, but additions of float32 come in any order, so its last digits may change from run to run. The third way is a part for each head, and a second pass that adds them in a fixed order: the same bits each time, for H times the memory. `kernels/latent/backward.py` has both; `torch.use_deterministic_algorithms(True)` chooses the third.
#
# ## Validate
#
# With `W_q` and `W_v` identities and α = 0, latent attention is ordinary attention whose heads share keys and values; and your gradient is autograd's:

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
# - A latent cache costs 2 · L numbers per token and layer, whatever the number of heads.
# - One query absorbs, many expand: count multiply–adds before you place a projection; (q W_q) · k̃ = q · (W_q k̃).
# - What all heads share gets the sum of their gradients: atomically, or part by part and in order.
#
# **You can now** read a model's configuration and say what its cache costs, and where its projections belong.
#
# **Next:** [lesson 21](21_triton.ipynb) writes kernels in Triton, as programs on tiles.
