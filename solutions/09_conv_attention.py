# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 09 · Convolutional attention
#
# **60 minutes** · builds on lessons 01 and 02 (softmax,
# attention) · you need: PyTorch and a pencil
#
# After this lesson you will be able to
#
# 1. say what attention cannot find when it looks at one query and one key at a time, and how a convolution of
#    the scores helps;
# 2. compute convolutional attention with its **two** masks, on paper and in PyTorch.
#
# You don't need a GPU, and there is no GPU code in this lesson. It defines what the kernels of the next
# lessons must compute. Below, you compare your code with the package's reference, and the later lessons of
# part 4 compare their results with that reference.
#
# One word has two meanings. In this course, a *kernel* is a program for a GPU. A convolution has a "kernel"
# too: the small matrix of weights that slides over a large matrix. To keep the two apart, we call these
# weights the **taps**.

# %%
import inspect
import math

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import conv2d, pad, scaled_dot_product_attention

from course import check, show_figure
from course.figures import BLUE, ORANGE
from kernels import reference
from kernels.reference import identity_taps
from kernels.reference.tiled import Traffic, queries_outer
from sim.viz import Scene

torch.manual_seed(9)
torch.set_default_dtype(torch.float64)

# %% [markdown]
# ## Alice and the rabbit
#
# Suppose you want to find the sentence that mentions both Alice *and* the rabbit. Here are three sentences,
# 14 tokens in total:
#
# > Alice reads a book . &nbsp; the rabbit sleeps . &nbsp; Alice and rabbit dance .
#
# Ordinary attention computes each weight from **one query and one key**. A single query can ask for both
# names. Let's say that each "Alice" and each "rabbit" gets the score 4, and every other token gets 0.
#
# **Predict.** How much of the attention goes to the third sentence? And what if the names get 16 instead of
# 4?
#
# - ( ) nearly all of it  ( ) about half  ( ) about a third

# %%
text = "Alice reads a book . the rabbit sleeps . Alice and rabbit dance .".split()
third = slice(9, 14)
alice = torch.tensor([float(word == "Alice") for word in text])
rabbit = torch.tensor([float(word == "rabbit") for word in text])


def share_of_the_third(scores):
    """Return the part of the softmax over all tokens
    that falls on the third sentence."""
    return torch.softmax(scores, dim=0)[third].sum().item()


for strength in (1, 2, 4, 8, 16):
    print(
        f"names score {strength:2}:  "
        f"{share_of_the_third(strength * (alice + rabbit)):.3f}"
    )

# %% [markdown]
# Never more than half, however large the scores are. Both Alices have the same key, so every query gives them
# the same weight. The same holds for the two rabbits. The third sentence contains one of each, and so do the
# other two sentences together. No weight depends on which words stand *near* a token. (A query that asks for
# "dance" would do better, but it would have to know that word beforehand.)
#
# To be fair: here a key knows only its own word, as in the first layer of a model. In a deeper layer, a key
# may also hold information about its neighbours, put there by the layer before. So a transformer can find the
# sentence, but it needs two layers for it, and every key needs room for whatever a query might ask.
#
# Now let two tokens ask, one after the other: the first asks for Alice, the second for the rabbit. Their
# scores are two rows. For each key, add up the scores of **both** rows at this key and at its two neighbours.
# That makes six scores for each sum.


# %%
def windows(row):
    """Add to each entry of the row its two neighbours.
    Beyond the ends, the row counts as 0."""
    padded = pad(row, (1, 1))
    return padded[:-2] + padded[1:-1] + padded[2:]


two_queries = torch.stack([alice, rabbit])
together = windows(two_queries[0]) + windows(two_queries[1])
print("scores in a window, names worth 1 each:")
print(" ".join(f"{word}:{score:.0f}" for word, score in zip(text, together)), "\n")
for strength in (1, 2, 4, 8, 16):
    print(f"names score {strength:2}:  {share_of_the_third(strength * together):.3f}")

# %% [markdown]
# Here are the weights as bars. Move the slider to raise the scores of the names. (The cell only draws.)


# %% jupyter={"source_hidden": true}
def draw_weights(steps, boxes=10, pitch=46):
    """Draw a bar of ten boxes (10 % each) per token and per way to ask.
    steps of the slider: {what changes: {way to ask: scores}}."""
    ways = list(next(iter(steps.values())))
    height = 8 * boxes + 52
    width = 90 + pitch * len(text)
    scene = Scene("the attention's weights", width, 30 + height * len(ways), adds=False)
    scene.legend(
        6,
        ("store", "the third sentence"),
        ("load", "the other two"),
        ("empty", "one box is 10 %"),
    )
    for way, name in enumerate(ways):
        floor = 30 + height * way + 8 * boxes
        scene.labels.append((78, floor, name, "end"))
        for token, word in enumerate(text):
            left = 90 + pitch * token
            scene.labels.append((left + 18, floor + 18, word, "middle"))
            scene.cells += [(left, floor - 8 * box, 36, 7) for box in range(boxes)]
    for what, scores_of in steps.items():
        looks, shares = [], []
        for way, name in enumerate(ways):
            weights = torch.softmax(scores_of[name], dim=0)
            shares.append(f"{weights[third].sum():.2f}")
            looks += [
                ((len(text) * way + token) * boxes + box, look, "")
                for token, weight in enumerate(weights.tolist())
                for box in range(round(boxes * weight))
                for look in ["store" if 9 <= token < 14 else "load"]
            ]
        words = ", ".join(f"{name} {share}" for name, share in zip(ways, shares))
        scene.steps.append((f"{what}; on the third sentence: {words}", looks))
    return scene.view()


draw_weights(
    {
        f"names score {strength}": {
            "one query": strength * (alice + rabbit),
            "a window": strength * together,
        }
        for strength in (1, 2, 4, 8, 16)
    }
)

# %% [markdown]
# Only one window contains both names: the one around "and". If each name scores 4, this window scores 8, and
# no other window scores more than 4. The softmax turns sums into products, e⁸ = e⁴ · e⁴. So the higher the
# scores, the closer the third sentence comes to getting *all* of the attention.
#
# Such a sum is a convolution with six taps, all of them 1. Other taps look for other patterns. For example,
# let the first query look only to the left of the key, and the second only to the right:
#
# | | key to the left | the key | key to the right |
# |---|---|---|---|
# | query "Alice" | 1 | 0 | 0 |
# | query "rabbit" | 0 | 0 | 1 |
#
# **Predict** six numbers. If each name scores 1, what does the word in the middle score in each of these
# texts?
#
# | text | all taps 1 | the taps above |
# |---|---|---|
# | Alice and rabbit | | |
# | rabbit and Alice | | |
# | Alice and Alice | | |

# %%
all_ones, one_after_the_other = torch.ones(2, 3), torch.tensor([[1.0, 0, 0], [0, 0, 1]])
for phrase in ("Alice and rabbit", "rabbit and Alice", "Alice and Alice"):
    rows = torch.tensor(
        [
            [float(word == name) for word in phrase.split()]
            for name in ("Alice", "rabbit")
        ]
    )
    print(
        f"{phrase}:  {(all_ones * rows).sum():.0f}   "
        f"{(one_after_the_other * rows).sum():.0f}"
    )

# %% [markdown]
# Now the same on our text, with 2 for each name. The slider changes the four taps that are 0 above: at 1 all
# six taps are equal, at 0 you have the second set of taps, and at −1 these four taps subtract. (The cell only
# draws.)


# %% jupyter={"source_hidden": true}
def with_taps(w):
    """Return the score of each token's window, for the 2 × 3 taps w."""
    return conv2d(pad(two_queries, (1, 1))[None, None], w[None, None])[0, 0, 0]


draw_weights(
    {
        f"other taps {other:g}": {
            "six taps": 2
            * with_taps(one_after_the_other + other * (1 - one_after_the_other))
        }
        for other in (1, 0.5, 0, -0.5, -1)
    }
)

# %% [markdown]
# A tap of −1 takes weight away from the windows in which a name is in the wrong position.
#
# So a convolution is not a logical "and". It is a weighted sum. With all taps 1, two Alices score as much as
# Alice and a rabbit. The second set of taps tells these cases apart, but it only finds the names in this
# order and with one word between them. In a model, the taps are learned, and every head has its own. This is
# the *key–query convolution* of [**multi-token attention**](../docs/glossary.md) (Golovneva, Wang, Weston,
# Sukhbaatar: Multi-Token Attention, 2025, arXiv:2504.00927). The paper's best model uses 6 × 11 taps: the
# last six queries and eleven keys.
#
# ## What exactly is computed
#
# We are in a language model, so the token in row `i` must not learn anything about the tokens after it. This
# is **causal** attention. With a convolution, it takes *two* masks:
#
# 1. Scores: `S = QKᵀ/√d`. Where the key comes after the query (j > i), write **0**. The result is `S0`.
# 2. Convolution with the `c_q × c_k` taps `W`, where everything outside the matrix counts as 0:
#
# $$T_{ij} = \sum_{a=0}^{c_q-1}\ \sum_{b=0}^{c_k-1} W_{ab}\ S0_{\,i-P_q+a,\ j-P_k+b} \qquad P_q = c_q - 1, \quad P_k = \lfloor (c_k-1)/2 \rfloor .$$
#
# 3. Where j > i, write **−∞** into `T`. Then take the softmax of each row and multiply by `V`, as always.
#
# | | looks at | because |
# |---|---|---|
# | rows | `i` and the `P_q` rows above it | later queries are in the future |
# | columns | `P_k` to the left of `j`, `c_k − 1 − P_k` to the right | a key's neighbours on both sides are allowed, as long as they are not in the future of their own *row* |
#
# If `c_k` is even, there is one more column to the right than to the left. As everywhere in deep learning,
# the taps are not flipped: `W[0, 0]` is multiplied with the oldest query and the leftmost key.
# (Mathematicians call this a cross-correlation.)
#
# ## A worked example with small numbers
#
# Take four tokens and 2 × 3 taps: this query and the one before, each with the key, its left neighbour and
# its right neighbour. The entries above the diagonal of `S` are in the future.
#
# $$S = \begin{pmatrix} 1 & 3 & 2 & 4 \\ 2 & 1 & 5 & 0 \\ 0 & 1 & 1 & 6 \\ 1 & 2 & 3 & 2 \end{pmatrix} \qquad W = \begin{pmatrix} 1 & 0 & 2 \\ 0 & 1 & -1 \end{pmatrix} \qquad V = \begin{pmatrix} 4 \\ 10 \\ 3 \\ 9 \end{pmatrix}$$
#
# Take a pencil. For `T[2, 1]`, lay the taps over `S0` so that their *last* row is on row 2 and their *middle*
# column is on column 1:
#
# | | column 0 | column 1 | column 2 |
# |---|---|---|---|
# | row 1 | 2 · **1** | 1 · **0** | 0 · **2** (masked: this key comes after query 1) |
# | row 2 | 0 · **0** | 1 · **1** | 1 · **−1** |
#
# The sum is 2 + 0 + 0 + 0 + 1 − 1 = **2**. The picture shows the three steps. (The next cell only draws.)

# %% jupyter={"source_hidden": true}
small_s = torch.tensor([[1.0, 3, 2, 4], [2, 1, 5, 0], [0, 1, 1, 6], [1, 2, 3, 2]])
small_w = torch.tensor([[1.0, 0, 2], [0, 1, -1]])
small_v = torch.tensor([[4.0], [10], [3], [9]])


def draw_grid(axes, title, cell):
    """Draw a 4 × 4 grid; cell(i, j) returns text and colour."""
    for i in range(4):
        for j in range(4):
            words, colour = cell(i, j)
            axes.add_patch(plt.Rectangle((j, i), 0.94, 0.94, facecolor=colour))
            axes.text(j + 0.47, i + 0.47, words, ha="center", va="center", fontsize=13)
    axes.set(xlim=(-0.7, 4.1), ylim=(4.1, -0.7), aspect="equal")
    for place in range(4):
        axes.text(
            -0.15, place + 0.47, f"query {place}", ha="right", va="center", fontsize=8
        )
        axes.text(
            place + 0.47, -0.12, f"key {place}", ha="center", va="bottom", fontsize=8
        )
    axes.set_title(title, fontsize=11)
    axes.axis("off")


PALE, GREY = "#DCE9F2", "#E6E6E6"
figure, (first, second, last) = plt.subplots(
    1, 3, figsize=(10, 3.6), layout="constrained"
)
for axes, title in (
    (first, "1. mask S with 0"),
    (second, "2. lay the taps over S0 (here for T[2, 1])"),
):
    draw_grid(
        axes,
        title,
        lambda i, j: ("0", GREY) if j > i else (f"{small_s[i, j]:.0f}", PALE),
    )
for a in range(2):
    for b in range(3):
        second.text(
            b + 0.9,
            a + 1.28,
            f"×{small_w[a, b]:.0f}".replace("-", "−"),
            ha="right",
            va="bottom",
            fontsize=8,
            color=BLUE,
        )
second.add_patch(
    plt.Rectangle((-0.03, 0.97), 3, 2, fill=False, edgecolor=BLUE, linewidth=2.5)
)
second.add_patch(
    plt.Rectangle((1, 2), 0.94, 0.94, fill=False, edgecolor=ORANGE, linewidth=2.5)
)
draw_grid(
    last,
    "3. mask T with −∞",
    lambda i, j: (
        ("−∞", GREY) if j > i else ("2", "#F9E4B7") if (i, j) == (2, 1) else ("?", PALE)
    ),
)
show_figure(
    figure,
    "three 4 by 4 grids, rows are queries, columns are keys. First: "
    "S with zeros above the diagonal. Second: the same with a box of 2 rows and 3 "
    "columns over rows 1 and 2 and columns 0 to 2, each cell with its tap; "
    "the score at row 2, column 1, in the bottom middle of the box, is marked. Third: "
    "T, minus infinity above the diagonal, 2 at row 2, column 1, "
    "question marks elsewhere on and below the diagonal.",
)

# %% [markdown]
# **On paper:** fill in the nine question marks. The first row is quick, because there is nothing above row 0.
#
# <details><summary>Answer</summary>
#
# $$T = \begin{pmatrix} 1 & -\infty & -\infty & -\infty \\ 1 & 2 & -\infty & -\infty \\ 1 & 2 & 2 & -\infty \\ 1 & 1 & 2 & 3 \end{pmatrix}$$
#
# For example, `T[2, 0]` is 0·1 (outside) + 2·0 + 1·2 from row 1, plus 0·0 (outside) + 0·1 + 1·(−1) from
# row 2. That is 1. And `T[3, 1]` = 0·1 + 1·0 + 1·2 + 1·0 + 2·1 + 3·(−1) = 1.
# </details>
#
# **And the output:** use powers of 2 instead of e, as in lesson 01. Then row 1 has the weights 2¹ : 2² = 1 :
# 2, and its output is (1·4 + 2·10) / 3 = 8. What are the outputs of rows 2 and 3?
#
# <details><summary>Answer</summary>
#
# Row 2: the weights are 2 : 4 : 4 = 1 : 2 : 2, and the output is (4 + 20 + 6) / 5 = 6. Row 3: the weights are
# 2 : 2 : 4 : 8 = 1 : 1 : 2 : 4, and the output is (4 + 10 + 6 + 36) / 8 = 7. Row 0 sees only itself: its
# output is 4.
# </details>
#
# ### Exercise 9.1 · convolved_score · about six lines
#
# Write `convolved_score(s0, w, i, j)`. It returns one entry of `T`, on or below the diagonal. Use plain loops
# or slices, but no convolution or Fourier transform of PyTorch's and no function of the `kernels` package. In
# the next exercise you use PyTorch's convolution, and compare it with this function.
#
# - `s0` is the N×N matrix of scores, already masked with 0.
# - `w` has the shape (c_q, c_k). Both sizes are at least 1, and both can be larger than N.
# - Outside the matrix, the score is 0.
#
# <details><summary>Hint 1: which score does a tap multiply?</summary>
#
# Tap (a, b) multiplies the score in row `r = i - (c_q - 1) + a` and column `c = j - (c_k - 1) // 2 + b`. Try
# it with the worked example: i = 2, j = 1 and tap (0, 0) give row 1, column 0.
# </details>
#
# <details><summary>Hint 2: what is outside?</summary>
#
# Rows before 0, columns before 0, and columns from N on. (No row comes after i, so no row is too large.) Be
# careful: Python reads `s0[-1]` as the *last* row and raises no error. So test the index before you read.
# </details>


# %% tags=["exercise"]
def convolved_score(s0, w, i, j):
    """Return T[i, j]: lay the taps w (c_q, c_k) over s0 (N, N), with their last
    row on row i and their column (c_k - 1) // 2 on column j."""
    # BEGIN SOLUTION 9.1
    c_q, c_k = w.shape
    total = 0.0
    for a in range(c_q):
        for b in range(c_k):
            r, c = i - (c_q - 1) + a, j - (c_k - 1) // 2 + b
            if r >= 0 and 0 <= c < len(s0):
                total += w[a, b].item() * s0[r, c].item()
    return total
    # END SOLUTION


# %% tags=["check"]
check.ex09_1(convolved_score)

# %% [markdown]
# The worked example again, computed by your own function:

# %% tags=["uses-exercise"]
small_s0 = small_s.tril()  # 0 above the diagonal
for i in range(4):
    print([f"{convolved_score(small_s0, small_w, i, j):g}" for j in range(i + 1)])

# %% [markdown]
# ## All scores at once
#
# PyTorch does all these loops in one call: `conv2d(image, taps)`, with an image of shape (1, 1, rows,
# columns) and taps of shape (1, 1, c_q, c_k). It lays the taps over every position where they fit *entirely
# inside* the image. So we have to **pad** the image first: `pad(s, (left, right, above, below))` adds that
# many columns or rows of zeros on each side.
#
# **Predict** for 2 × 3 taps: how many zeros do you need to the left, to the right, above and below, so that a
# 4 × 4 matrix stays 4 × 4 and `T[0, 0]` is the same as in the worked example?
#
# ### Exercise 9.2 · conv_scores · about five lines
#
# Write `conv_scores(q, k, w)`. It returns the whole matrix `T` of one head, with −∞ above the diagonal.
#
# - `q` and `k` have the shape (N, d), `w` has the shape (c_q, c_k), and the result has the shape (N, N).
#   Don't modify the inputs.
# - `causal(n)`, below, is the mask: True where the key comes after the query. `s.masked_fill(mask, value)`
#   writes a value wherever the mask is True.
# - PyTorch's functions are allowed; the functions of the `kernels` package are not.
#
# <details><summary>Hint 1: the padding</summary>
#
# Pad `left = (c_k - 1) // 2` on the left, `c_k - 1 - left` on the right, `c_q - 1` above and none below. For
# 2 × 3 taps: 1, 1, 1, 0.
# </details>
#
# <details><summary>Hint 2: four dimensions</summary>
#
# `x[None, None]` adds two dimensions of size 1 at the front, and `x[0, 0]` removes them again.
# </details>


# %% tags=["exercise"]
def causal(n):
    """Return an (n, n) mask, True where the key comes after the query."""
    return torch.ones(n, n, dtype=torch.bool).triu(1)


def conv_scores(q, k, w):
    """Return T (N, N) of one head: q kᵀ / √d, masked with 0, convolved with the
    taps w (c_q, c_k), masked with -inf."""
    # BEGIN SOLUTION 9.2
    c_q, c_k = w.shape
    left = (c_k - 1) // 2
    s0 = (q @ k.T / math.sqrt(q.shape[1])).masked_fill(causal(len(q)), 0.0)
    t = conv2d(pad(s0, (left, c_k - 1 - left, c_q - 1, 0))[None, None], w[None, None])[
        0, 0
    ]
    return t.masked_fill(causal(len(q)), -math.inf)
    # END SOLUTION


# %% tags=["check"]
check.ex09_2(conv_scores)

# %% [markdown]
# The rest of attention does not change: the softmax of each row, times `v`. Here is the worked example once
# more. With d = 4 and the identity matrix as keys, the queries `2 S` give the scores `S`. We multiply by ln 2
# to get powers of 2.

# %%
small_q, small_k = 2 * math.log(2) * small_s, torch.eye(4)


def conv_attention(q, k, v, w):
    """Compute causal convolutional attention of one head.
    q, k, v: (N, d); w: (c_q, c_k)."""
    return torch.softmax(conv_scores(q, k, w), dim=1) @ v


# %% tags=["uses-exercise"]
for row in (conv_scores(small_q, small_k, small_w) / math.log(2)).tolist():
    print("T  ", [round(score, 9) for score in row])
print(
    "out",
    [
        round(number, 9)
        for number in conv_attention(small_q, small_k, small_v, small_w)
        .flatten()
        .tolist()
    ],
)

# %% [markdown]
# ### The reference
#
# The package has the same function for batches and heads: `q`, `k` and `v` have the shape (B, H, N, d), and
# the taps have the shape (H, c_q, c_k). This is its convolution:

# %%
print(inspect.getsource(reference.convolve))

# %% [markdown]
# The one difference from yours is `groups=heads`: each head is convolved with its own taps and with no
# others. What you build in the next lessons is compared with `reference.conv_attention`. Below, we compare
# yours with it too.
#
# ## Taps for which we know the answer
#
# The best way to try a new operation is on inputs for which you know the result.
#
# **One tap.** With `W = [[w]]` nothing is mixed: `T = w · S0`. Row 3 of the worked example has the scores 1,
# 2, 3, 2 and the values 4, 10, 3, 9. In base 2 the weights are 2 : 4 : 8 : 4, and the output is (1·4 + 2·10 +
# 4·3 + 2·9) / 9 = 6.
#
# **Predict** the output of row 3 for w = 0, for w = 2 and for w = 100.

# %% tags=["uses-exercise"]
for w in (1, 0, 2, 100):
    out = conv_attention(small_q, small_k, small_v, torch.tensor([[float(w)]]))
    print(f"w = {w:3}:  {out[3].item():.2f}")

# %% [markdown]
# <details><summary>Why?</summary>
#
# - **w = 0**: all scores are 0, so all weights are equal and the output is the mean of the values, 26/4 =
#   6.5.
# - **w = 2**: the weights are 4 : 16 : 64 : 16 = 1 : 4 : 16 : 4, and the output is 128/25 = 5.12.
# - **w = 100**: the largest score takes all the weight, and its value is 3.
#
# A single positive tap `w` divides the *temperature* by w: it gives the softmax of S/τ with τ = 1/w.
# </details>
#
# **One tap of many.** Now let all taps be 0 except one, and let that one be 1. Put it at the position that
# multiplies the score itself: last row, column (c_k − 1) // 2. Then `T` equals `S0`, and this is *ordinary
# attention*. We call these taps **identity taps**. Training starts from them, so at first a model with the
# convolution computes the same as a model without it.

# %%
unchanged = identity_taps(1, 3, 5, dtype=torch.float64)[0]
q, k, v = torch.randn(3, 9, 4)
ordinary = scaled_dot_product_attention(q, k, v, is_causal=True)
taps = torch.randn(3, 5)  # for the tests below
print(unchanged)

# %% tags=["uses-exercise"]
print(
    "equal to PyTorch's causal attention:",
    torch.allclose(conv_attention(q, k, v, unchanged), ordinary, atol=1e-12),
)

# %% [markdown]
# Remember this test: identity taps must give ordinary attention. It is the first test that everybody writes.
# In lesson 09b you will see how much it finds, and how much it doesn't.

# %% [markdown]
# ## Validate
#
# We compare in float64, for N from 1 to 33, with taps of odd, even and non-square
# sizes, and with taps larger than N. The first cell defines the helpers.


# %%
def largest(differences):
    """Return the largest absolute difference, or NaN if there is one."""
    return max(
        (difference.abs().max().item() for difference in differences),
        key=lambda x: math.inf if math.isnan(x) else x,
    )


def validate(stage, against, differences, tolerance=1e-12):
    """Print one row of the table. NaN fails."""
    agrees = largest(differences) <= tolerance
    print(
        f"{stage:24}  {against:32}  {'below' if agrees else 'ABOVE'} {tolerance:.0e}   "
        f"{'✓' if agrees else '✗'}"
    )


def one_head(function, q, k, v, *rest):
    """Call a function of (B, H, N, d) tensors with one batch and one head."""
    return function(q[None, None], k[None, None], v[None, None], *rest)[0, 0]


def same(w):
    """Return identity taps of the shape of w."""
    return identity_taps(1, *w.shape, dtype=w.dtype)[0]


def lower(scores):
    """Return the entries on and below the diagonal."""
    return scores[torch.ones_like(scores, dtype=torch.bool).tril()]


def by_loops(q, k, v, w):
    """Compute convolutional attention with your function of exercise 9.1."""
    s0 = (q @ k.T / math.sqrt(q.shape[1])).tril()
    t = torch.full_like(s0, -math.inf)
    for i in range(len(q)):
        for j in range(i + 1):
            t[i, j] = convolved_score(s0, w, i, j)
    return torch.softmax(t, dim=1) @ v


# %% tags=["uses-exercise"]
shapes = [(1, 1, 1), (1, 3, 3), (5, 2, 4), (8, 6, 11), (17, 3, 3), (33, 7, 7)]
cases = [(*torch.randn(3, n, 4), torch.randn(c_q, c_k)) for n, c_q, c_k in shapes]

small_t = torch.tensor([1.0, 1, 2, 1, 2, 2, 1, 1, 2, 3])
print(f"{'stage':24}  {'against':32}  largest difference")
loops_t = torch.tensor(
    [convolved_score(small_s0, small_w, i, j) for i in range(4) for j in range(i + 1)]
)
validate("convolved_score", "the worked example, by hand", [loops_t - small_t])
validate(
    "conv_scores",
    "the worked example, by hand",
    [lower(conv_scores(small_q, small_k, small_w)) / math.log(2) - small_t],
)
for against, other in {
    "explicit loops (exercise 9.1)": by_loops,
    "kernels.reference.conv_attention": lambda q, k, v, w: one_head(
        reference.conv_attention, q, k, v, w[None]
    ),
}.items():
    errors = [conv_attention(*case) - other(*case) for case in cases]
    validate("conv_attention", against, errors)

# %% [markdown]
# Next, taps for which we know the answer:

# %% tags=["uses-exercise"]
for against, other in {
    "tiles of lesson 02, causal": lambda q, k, v: queries_outer(
        q, k, v, 4, 3, Traffic(), causal=True
    ),
    "scaled_dot_product_attention": lambda q, k, v: scaled_dot_product_attention(
        q, k, v, is_causal=True
    ),
}.items():
    validate(
        "identity taps",
        against,
        [conv_attention(q, k, v, same(w)) - other(q, k, v) for q, k, v, w in cases],
    )
two = torch.tensor([[2.0]])
sharper = [
    conv_attention(q, k, v, two)
    - scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
    for q, k, v, _ in cases
]
validate("one tap, 2", "twice the scale", sharper)

# %% [markdown]
# ### On a real GPU, if you have one
#
# The reference is plain PyTorch and runs wherever its tensors are. The next cell uses two batches and three
# heads, and prints the same line with and without a GPU.

# %%
device = "cuda" if torch.cuda.is_available() else "cpu"
many, taps_of_heads = torch.randn(3, 2, 3, 50, 8), torch.randn(3, 6, 11)
here = reference.conv_attention(*many.to(device), taps_of_heads.to(device)).cpu()
on_the_cpu = reference.conv_attention(*many, taps_of_heads)
print(
    "the reference, on this device and on the CPU, differ by less than 1e-10:",
    ((here - on_the_cpu).abs().max() <= 1e-10).item(),
)

# %% [markdown]
# ## In three lines
#
# - Convolutional attention mixes neighbouring scores before the softmax, so that several queries and keys
#   decide together. Identity taps give ordinary attention.
# - Mask with 0, convolve, mask with −∞. The 0 keeps the future out of the sums, and the −∞ keeps it out of
#   the weights. Neither can do the other's job.
# - Some taps have a known answer. Test with them first, and then with loops.
#
# **You can now** compute this attention on paper and in PyTorch.
#
# **Read on:** Golovneva, Wang, Weston, Sukhbaatar, *Multi-Token Attention* (2025, arXiv:2504.00927) defines
# the method and reports what it gains. Vaswani et al., *Attention Is All You Need* (2017, arXiv:1706.03762),
# section 3, defines attention and its causal mask. PyTorch's documentation of `torch.nn.Conv2d` gives the
# formula of the cross-correlation, with padding and groups.
#
# **Next:** [lesson 09b](09b_sees_the_future.ipynb) builds a test for looking ahead, and tries it on a published version that
# lacks one line. [Lesson 10](10_overlapping_tiles.ipynb) then cuts the convolution into tiles.
