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
# **90 minutes**, and 10 for the two parts marked *optional* · builds on lessons 01 and 02 (softmax, attention) · needs: PyTorch, a pencil
#
# You will be able to
#
# 1. say what attention with one query and one key at a time cannot find, and how a convolution of the scores helps;
# 2. compute convolutional attention with its **two** masks, on paper and in PyTorch;
# 3. find out whether *any* attention looks into the future, and tell which test finds which mistake.
#
# No GPU is needed. There is no kernel in this lesson either: it fixes what the kernels of the next lessons must compute. Everything later in part 4
# is compared with what you write here.
#
# A word beforehand. In this course a *kernel* is a program for a GPU. A convolution has a "kernel" too, the little matrix of weights that it slides
# over a large one. We call these weights its **taps**.

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
# A query asks for the sentence that mentions Alice *and* the rabbit. Here are three sentences, in 14 tokens:
#
# > Alice reads a book . &nbsp; the rabbit sleeps . &nbsp; Alice and rabbit dance .
#
# Ordinary attention looks at **one query and one key** for each of its weights. A single query can ask for both names: say, each "Alice" and each
# "rabbit" gets the score 4, and every other token gets 0.
#
# **Predict.** How much of the attention goes to the third sentence? And if the names get 16 in place of 4?
#
# - ( ) nearly all of it  ( ) about a half  ( ) about a third

# %%
text = "Alice reads a book . the rabbit sleeps . Alice and rabbit dance .".split()
third = slice(9, 14)
alice = torch.tensor([float(word == "Alice") for word in text])
rabbit = torch.tensor([float(word == "rabbit") for word in text])


def share_of_the_third(scores):
    """How much of the softmax of the scores, one a token,
    falls on the third sentence."""
    return torch.softmax(scores, dim=0)[third].sum().item()


for strength in (1, 2, 4, 8, 16):
    print(
        f"names score {strength:2}:  "
        f"{share_of_the_third(strength * (alice + rabbit)):.3f}"
    )

# %% [markdown]
# A half, however loud the query asks. Both Alices have the same key, so every query gives them the same weight; both rabbits likewise. The third
# sentence has one of each, and so have the other two sentences together. No weight depends on which words stand *near*. (A query that asks for
# "dance" would do better. But it does not know that word yet.)
#
# To be fair: here a key knows its own word and nothing else, as in the first layer of a model. In a deeper layer it may hold something about its
# neighbours, put there by the layer before. So a transformer can find the sentence; but it needs two layers for it, and room in every key for
# whatever might be asked.
#
# Now let two tokens ask, one after the other: the first asks for Alice, the second for the rabbit. Their scores are two rows. For each key, add up
# the scores of **both** rows at this key and at its two neighbours: six numbers.


# %%
def windows(row):
    """For each place of the row, the sum of it and its two neighbours;
    there is nothing beyond the ends."""
    padded = pad(row, (1, 1))
    return padded[:-2] + padded[1:-1] + padded[2:]


two_queries = torch.stack([alice, rabbit])
together = windows(two_queries[0]) + windows(two_queries[1])
print("scores in a window, names worth 1 each:")
print(" ".join(f"{word}:{score:.0f}" for word, score in zip(text, together)), "\n")
for strength in (1, 2, 4, 8, 16):
    print(f"names score {strength:2}:  {share_of_the_third(strength * together):.3f}")

# %% [markdown]
# The weights themselves, as bars. Move the slider: the names get louder. (The cell only draws.)


# %% jupyter={"source_hidden": true}
def draw_weights(steps, boxes=10, pitch=46):
    """A bar for each token, of ten boxes of 10 %, for each way to ask;
    steps of the slider: {what changes: {way to ask: scores}}."""
    ways = list(next(iter(steps.values())))
    height = 8 * boxes + 52
    width = 90 + pitch * len(text)
    scene = Scene("the attention's weights", width, 30 + height * len(ways), adds=False)
    scene.legend(
        6,
        ("store", "the third sentence"),
        ("load", "the other two"),
        ("empty", "a box is 10 %"),
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
        scene.steps.append((f"{what}; of the third sentence: {words}", looks))
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
# Only one window holds both names, the one around "and". With names worth 4 it has the score 8, and the others have 4 at most. The softmax makes
# products out of sums, e⁸ = e⁴ · e⁴; so the louder the query asks, the closer the third sentence comes to *all* of the attention.
#
# Such a sum is a convolution with six taps, all of them 1. Other taps ask for something else. Let the first query look only to the left of the key,
# the second only to the right:
#
# | | key to the left | the key | key to the right |
# |---|---|---|---|
# | query "Alice" | 1 | 0 | 0 |
# | query "rabbit" | 0 | 0 | 1 |
#
# **Predict** the six numbers: how much does the word in the middle score, with names worth 1, if the text is
#
# | text | all taps 1 | these taps |
# |---|---|---|
# | Alice and rabbit | `___` | `___` |
# | rabbit and Alice | `___` | `___` |
# | Alice and Alice | `___` | `___` |

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
# The same on our text, with names worth 2. The slider moves the four other taps from 1, where all are alike, over 0, the second set, to −1. (The cell only draws.)


# %% jupyter={"source_hidden": true}
def with_taps(w):
    """For each token the score of its window, with the 2 × 3 taps w."""
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
# A tap of −1 takes weight from the windows in which a name stands in the wrong place.
#
# So a convolution is no "and". It is a weighted sum: with all taps 1, two Alices are as good as Alice and a rabbit. The second set of taps tells them
# apart, but it wants the names in order and two places apart. In a model the taps are learned, and every head has its own. This is the *key–query
# convolution* of **multi-token attention** (Golovneva, Wang, Weston, Sukhbaatar: Multi-Token Attention, 2025, arXiv 2504.00927). Their best model
# uses 6 × 11 taps: the last six queries, eleven keys.
#
# ## What exactly is computed
#
# We are in a language model: the token in row `i` must not learn anything about the tokens after it. That is **causal** attention, and it needs a
# mask *twice*:
#
# 1. scores: `S = QKᵀ/√d`. Where the key comes after the query (j > i) write **0**. This is `S0`.
# 2. convolve: with `c_q × c_k` taps `W`, and with 0 for everything outside the matrix,
#
# $$T_{ij} = \sum_{a=0}^{c_q-1}\ \sum_{b=0}^{c_k-1} W_{ab}\ S0_{\,i-P_q+a,\ j-P_k+b} \qquad P_q = c_q - 1, \quad P_k = \lfloor (c_k-1)/2 \rfloor .$$
#
# 3. Where j > i write **−∞** into `T`. Then the softmax of each row, and the product with `V`, as always.
#
# | | looks at | because |
# |---|---|---|
# | rows | `i` and the `P_q` rows above it | later queries are in the future |
# | columns | `P_k` to the left of `j`, `c_k − 1 − P_k` to the right | a key's neighbours on both sides are allowed, if they are not in the future of their *row* |
#
# With an even `c_k` there is one column more to the right than to the left. As in all of deep learning, the taps are not turned round: `W[0, 0]`
# meets the oldest query and the leftmost key. (Mathematicians call that a cross-correlation.)
#
# ## A page of small numbers
#
# Four tokens, 2 × 3 taps: this query and the one before, each with the key, its left and its right neighbour. What stands above the diagonal of `S`
# is the future.
#
# $$S = \begin{pmatrix} 1 & 3 & 2 & 4 \\ 2 & 1 & 5 & 0 \\ 0 & 1 & 1 & 6 \\ 1 & 2 & 3 & 2 \end{pmatrix} \qquad W = \begin{pmatrix} 1 & 0 & 2 \\ 0 & 1 & -1 \end{pmatrix} \qquad V = \begin{pmatrix} 4 \\ 10 \\ 3 \\ 9 \end{pmatrix}$$
#
# Take a pencil. For `T[2, 1]` lay the taps over `S0` so that the *last* row of taps is on row 2 and its *middle* column on column 1:
#
# | | column 0 | column 1 | column 2 |
# |---|---|---|---|
# | row 1 | 2 · **1** | 1 · **0** | 0 · **2** (masked: this key comes after query 1) |
# | row 2 | 0 · **0** | 1 · **1** | 1 · **−1** |
#
# The sum is 2 + 0 + 0 + 0 + 1 − 1 = **2**. The picture shows the three steps. (The next cell only draws.)

# %% jupyter={"source_hidden": true}
page_s = torch.tensor([[1.0, 3, 2, 4], [2, 1, 5, 0], [0, 1, 1, 6], [1, 2, 3, 2]])
page_w = torch.tensor([[1.0, 0, 2], [0, 1, -1]])
page_v = torch.tensor([[4.0], [10], [3], [9]])


def draw_grid(axes, title, cell):
    """A 4 × 4 grid; cell(i, j) gives text and colour."""
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
        lambda i, j: ("0", GREY) if j > i else (f"{page_s[i, j]:.0f}", PALE),
    )
for a in range(2):
    for b in range(3):
        second.text(
            b + 0.9,
            a + 1.28,
            f"×{page_w[a, b]:.0f}".replace("-", "−"),
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
# **On paper:** fill in the nine question marks. The first row is quick: above row 0 there is nothing.
#
# <details><summary>Answer</summary>
#
# $$T = \begin{pmatrix} 1 & -\infty & -\infty & -\infty \\ 1 & 2 & -\infty & -\infty \\ 1 & 2 & 2 & -\infty \\ 1 & 1 & 2 & 3 \end{pmatrix}$$
#
# `T[2, 0]`, for instance: 0·1 (outside) + 2·0 + 1·2 from row 1, and 0·0 (outside) + 0·1 + 1·(−1) from row 2, together 1. And `T[3, 1]` = 0·1 + 1·0 +
# 1·2 + 1·0 + 2·1 + 3·(−1) = 1.
# </details>
#
# **And the output:** with powers of 2 in place of e, as in lesson 01, row 1 has the weights 2¹ : 2² = 1 : 2. So its output is (1·4 + 2·10) / 3 = 8.
# Rows 2 and 3: `___` , `___`
#
# <details><summary>Answer</summary>
#
# Row 2: weights 2 : 4 : 4 = 1 : 2 : 2, output (4 + 20 + 6) / 5 = 6. Row 3: weights 2 : 2 : 4 : 8 = 1 : 1 : 2 : 4, output (4 + 10 + 6 + 36) / 8 = 7.
# And row 0 sees itself alone: 4.
# </details>
#
# ### Exercise 9.1 · convolved_score · about six lines
#
# Write `convolved_score(s0, w, i, j)`: one entry of `T`, on or below the diagonal, with plain loops; PyTorch's convolution comes next, and this is what it is compared with. `s0` is the N×N matrix, masked with 0 already;
# `w` has the shape (c_q, c_k), each 1 or more, and possibly more than N. Outside the matrix the score is 0.
#
# <details><summary>Hint 1: which score belongs to a tap?</summary>
#
# Tap (a, b) meets row `r = i - (c_q - 1) + a` and column `c = j - (c_k - 1) // 2 + b`. Try it with the page: i = 2, j = 1 and the tap (0, 0) give row
# 1, column 0.
# </details>
#
# <details><summary>Hint 2: what is outside?</summary>
#
# Rows before 0, columns before 0, columns from N on. (No row comes after i, so none is too large.) Mind that Python reads `s0[-1]` as the *last* row
# and raises no error: test before you read.
# </details>


# %% tags=["exercise"]
def convolved_score(s0, w, i, j):
    """T[i, j]: the taps w (c_q, c_k) laid over s0 (N, N),
    the last row of taps on row i, column (c_k - 1) // 2 on column j."""
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
# The page, from your own loops:

# %% tags=["uses-exercise"]
page_s0 = page_s.tril()  # what is on and below the diagonal stays, the rest is 0
for i in range(4):
    print([f"{convolved_score(page_s0, page_w, i, j):g}" for j in range(i + 1)])

# %% [markdown]
# ## All scores at once
#
# PyTorch does the loops in one call: `conv2d(image, taps)` with an image of shape (1, 1, rows, columns) and taps of shape (1, 1, c_q, c_k). It lays
# the taps over every place where they fit *wholly inside* the image, so we have to **pad**: `pad(s, (left, right, above, below))` puts that many
# zeros on each side.
#
# **Predict** for 2 × 3 taps: how many zeros to the left, right, above and below, so that a 4 × 4 matrix stays 4 × 4 and `T[0, 0]` is the page's:
# `___` , `___` , `___` , `___`
#
# ### Exercise 9.2 · conv_scores · about five lines
#
# Write `conv_scores(q, k, w)`: the whole `T` of one head, with −∞ above the diagonal. `q` and `k` have the shape (N, d), `w` has (c_q, c_k), the
# result (N, N); they stay as they are. `causal(n)`, below, is the mask: True where the key comes after the query. `s.masked_fill(mask, value)` writes a value wherever the
# mask is True.
#
# <details><summary>Hint 1: the padding</summary>
#
# `left = (c_k - 1) // 2` on the left, `c_k - 1 - left` on the right, `c_q - 1` above, none below. For 2 × 3 taps: 1, 1, 1, 0.
# </details>
#
# <details><summary>Hint 2: four dimensions</summary>
#
# `x[None, None]` puts two dimensions of size 1 in front, `x[0, 0]` takes them off again.
# </details>


# %% tags=["exercise"]
def causal(n):
    """(n, n), True where the key comes after the query."""
    return torch.ones(n, n, dtype=torch.bool).triu(1)


def conv_scores(q, k, w):
    """T (N, N) of one head:
    q kᵀ / √d masked with 0, convolved with the taps w (c_q, c_k), masked with -inf."""
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
# Attention is what it was: softmax of the rows, times `v`. And the page once more. With d = 4 and the identity matrix for keys, the queries `2 S`
# give the scores `S`; times ln 2, to have powers of 2.

# %%
page_q, page_k = 2 * math.log(2) * page_s, torch.eye(4)


def conv_attention(q, k, v, w):
    """Convolutional attention of one head, causal: q, k, v (N, d), w (c_q, c_k)."""
    return torch.softmax(conv_scores(q, k, w), dim=1) @ v


# %% tags=["uses-exercise"]
for row in (conv_scores(page_q, page_k, page_w) / math.log(2)).tolist():
    print("T  ", [round(score, 9) for score in row])
print(
    "out",
    [
        round(number, 9)
        for number in conv_attention(page_q, page_k, page_v, page_w).flatten().tolist()
    ],
)

# %% [markdown]
# ### The reference
#
# The package has the same for batches and heads: `q`, `k`, `v` of shape (B, H, N, d), taps of shape (H, c_q, c_k). Its convolution reads

# %%
print(inspect.getsource(reference.convolve))

# %% [markdown]
# `groups=heads` is the one thing that yours has not: head h is convolved with taps h, and with no other's. What the next
# lessons build is compared with `reference.conv_attention`, and yours is too, below.
#
# ## Taps that we know the answer to
#
# A new operation is best tried where we know what must come out.
#
# **One tap.** With `W = [[w]]` nothing is mixed: `T = w · S0`. Row 3 of the page has the scores 1, 2, 3, 2 and the values 4, 10, 3, 9. In base 2 the
# weights are 2 : 4 : 8 : 4, and the output (1·4 + 2·10 + 4·3 + 2·9) / 9 = 6.
#
# **Predict** the output of row 3, w = 0: `___` , w = 2: `___` , w = 100: `___`

# %% tags=["uses-exercise"]
for w in (1, 0, 2, 100):
    out = conv_attention(page_q, page_k, page_v, torch.tensor([[float(w)]]))
    print(f"w = {w:3}:  {out[3].item():.2f}")

# %% [markdown]
# <details><summary>Why?</summary>
#
# - **0**: all scores are 0 and all weights equal: the mean, 26/4 = 6.5. (Without the second mask the future would be in it too.)
# - **2**: the weights are 4 : 16 : 64 : 16 = 1 : 4 : 16 : 4, the output 128/25 = 5.12.
# - **100**: the largest score takes all, and its value is 3.
#
# One tap `w` above 0 divides the *temperature* by w: the softmax of S/τ with τ = 1/w.
# </details>
#
# **One tap of many.** Let the taps be 0 except for one 1, in the place that meets the score itself: last row, column (c_k − 1) // 2. Then `T` is
# `S0`, and this is *ordinary attention*. They are called **identity taps**, and training starts from them: at first a model with convolution does
# what a model without it does.

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
# Keep this test in mind: identity taps must give ordinary attention. It is the first that everybody writes. We shall see how much it finds.
#
# ## A tool: does it see the future?
#
# A model that is trained to guess the next token must not see it. If it does, it learns to copy. The training looks splendid, and the model is
# useless: when it is to write by itself, there is no next token to copy.
#
# How do you find out, of a function that you have not written? You need not read it. *Change the future, and see whether the past moves.*
#
# ### Exercise 9.3 · is_causal · about six lines
#
# Write `is_causal(attend, q, k, v)`. `attend(q, k, v)` gives an output of N rows, like every attention here, for any N; `q`, `k`, `v` are (N, d). Return
# True if no row of the output depends on a later token, and False if one does, be it by a ten-thousandth of a value, in a single column, or so that sums stay as they are. A difference in the last digits is rounding, no
# dependence. An output with NaN proves nothing: return False. Leave `q`, `k` and `v` themselves as they are.
#
# Your tool will be tried on eighteen functions, some of them sly: one lets only its first row see the last value; one looks at nothing but the next
# token's *query*; one sees the next value through a layer norm, to which 2x and x + 1 are the same as x. And with a few tokens as with eighty.
#
# <details><summary>Hint 1: one cut</summary>
#
# Choose a token `t`. Replace the rows from `t` on by random ones, in all three: `torch.cat([x[:t], torch.randn_like(x[t:])])`. The rows before `t` of
# the output must be what they were.
# </details>
#
# <details><summary>Hint 2: which cuts?</summary>
#
# If row 5 sees token 6, only the cut t = 6 shows it: with a smaller t row 5 itself is changed, with a larger one token 6 is not. So try every t from
# 1 to N − 1.
# </details>
#
# <details><summary>Hint 3: "what they were"</summary>
#
# `torch.allclose(after[:t], before[:t])`. Do not ask for equality to the last bit: a matrix product may add in another order. And mind NaN: `difference >
# limit` is False for it, and so is `difference <= limit`. Ask the question whose False means "not causal".
# </details>


# %% tags=["exercise"]
def is_causal(attend, q, k, v):
    """Whether no row of attend(q, k, v) depends on a later token; q, k, v: (N, d)."""
    # BEGIN SOLUTION 9.3
    before = attend(q, k, v)
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
# Here is convolutional attention step by step, as a published pseudo-code for a GPU has it: scores, convolution, causal mask, softmax,
# output. We try it as one tries things, first with identity taps. Then with 2 × 3 taps, on the page.


# %%
def published(q, k, v, w):
    """Convolutional attention of one head, q, k, v (N, d):
    scores, convolution, causal mask, softmax, output."""
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
page_out = published(page_q, page_k, page_v, page_w).flatten().tolist()
print("the page:", [f"{number:.2f}" for number in page_out], " wanted: 4, 8, 6, 7")

# %% [markdown]
# Identity taps cannot see the mistake: they are 0 wherever it matters. But the page can, and so can your tool. **Guess before you run:** is the
# function causal? How far does a row see? And why is row 0 of the page right? Then put the missing line in, and run both cells again.

# %% tags=["uses-exercise"]
print(
    "published is causal:", is_causal(lambda q, k, v: published(q, k, v, taps), q, k, v)
)


def reacts(attend, q, k, v):
    """(N, N): row i marks the tokens whose change moves row i of the output."""
    before = attend(q, k, v)
    marks = torch.zeros(len(q), len(q), dtype=torch.bool)
    for token in range(len(q)):
        moved = [x.clone() for x in (q, k, v)]
        for x in moved:
            x[token] = torch.randn_like(x[token])
        marks[:, token] = ((attend(*moved) - before).abs() > 1e-9).any(dim=1)
    return marks


def draw_leaks(ways, widths, side=22):
    """To which tokens each row reacts, for each way to attend,
    {name: attend(q, k, v, w)}; a step for taps of each width."""
    n = len(q)
    across = 40 + side * (n + 2)
    scene = Scene(
        "row i reacts to token j", across * len(ways), 70 + side * n, adds=False
    )
    scene.legend(
        6, ("load", "itself or earlier"), ("store", "later: a leak"), ("empty", "not")
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


draw_leaks({"right": conv_attention, "published": published}, (1, 3, 5, 7))

# %% [markdown]
# <details><summary>What is missing, and how far does it see?</summary>
#
# The **first mask**. `T[i, j]` mixes the columns up to j + P_r, where P_r = c_k − 1 − P_k is the reach to the right. The entries near the diagonal
# therefore contain scores of keys that row i must not know. Row i sees P_r tokens of the future: one with 3 columns of taps, three with 7. The −∞
# comes too late, as the future has already been added to the entries that stay.
#
# Row 0 is right because it has one key only. The softmax of one number is 1, whatever the number is. (Do not test causality with a single row!)
#
# How much does it matter? The next cell asks, in four random draws: the norm of the error, divided by that of the output.
# </details>

# %% tags=["uses-exercise"]
off = []
for seed in range(4):
    generator = torch.Generator().manual_seed(seed)
    many, w = (
        torch.randn(3, 64, 4, generator=generator),
        torch.randn(3, 3, generator=generator),
    )
    right = conv_attention(*many, w)
    off.append((published(*many, w) - right).norm().item() / right.norm().item())
print("64 tokens, 3 × 3 taps, off by", ", ".join(f"{100 * each:.0f} %" for each in off))

# %% [markdown]
# ## Why not −∞ the first time?
#
# In ordinary attention we mask with −∞, and −∞ + anything = −∞ does the rest. So why not write −∞ before the convolution, and be done?
#
# **Predict**, for the page: what is 0 · (−∞), what is −1 · (−∞)? How many rows of the output survive?

# %%
first_infinity = page_s.masked_fill(causal(4), -math.inf)
print(
    "  T when S is masked with -inf:\n",
    reference.convolve(first_infinity[None, None], page_w[None])[0, 0],
)
same_shape = identity_taps(1, 2, 3, dtype=torch.float64)
print(
    "  even with identity taps:\n",
    reference.convolve(first_infinity[None, None], same_shape)[0, 0],
)

# %% [markdown]
# Not one row survives. Rows 1 to 3 have a NaN on the diagonal, and one NaN makes the softmax of its whole row NaN. Row 0 of the first matrix has +∞
# there; subtract the maximum, and +∞ − ∞ is NaN as well. With identity taps it is no better.
#
# −∞ is no number that one can weigh. A tap of 0 makes NaN out of it, a negative tap +∞, and both signs together NaN again. If all taps are positive
# there is no NaN in `T`, but −∞ spreads over every entry whose window touches the masked half. With two columns of taps or more, row 0 is then −∞
# from end to end, and its softmax is NaN once more.
#
# So the two masks have different jobs. **0 before** says: *this score adds nothing*. **−∞ after** says: *this key gets no weight*. A 0 after the
# convolution would not do that. It is a score like any other, and its weight is e⁰.
#
# ### Which test finds which mistake?
#
# Five ways to mask and four tests. **Predict the table** before you run: where is a ✓, where a ✗? (`loops` compares with your `convolved_score`.)
#
# | before / after | identity | finite | causal | loops |
# |---|---|---|---|---|
# | 0 / −∞ (right) | | | | |
# | nothing / −∞ | | | | |
# | −∞ / −∞ | | | | |
# | 0 / nothing | | | | |
# | 0 / 0 | | | | |


# %% tags=["uses-exercise"]
def by_loops(q, k, v, w):
    """Convolutional attention from exercise 9.1."""
    s0 = (q @ k.T / math.sqrt(q.shape[1])).tril()
    t = torch.full_like(s0, -math.inf)
    for i in range(len(q)):
        for j in range(i + 1):
            t[i, j] = convolved_score(s0, w, i, j)
    return torch.softmax(t, dim=1) @ v


def masked(before, after):
    """An attention that fills the future with `before`, convolves,
    and fills it with `after`; None leaves it alone."""

    def attend(q, k, v, w):
        future = causal(len(q))
        s = q @ k.T / math.sqrt(q.shape[1])
        s = s if before is None else s.masked_fill(future, before)
        t = reference.convolve(s[None, None], w[None])[0, 0]
        t = t if after is None else t.masked_fill(future, after)
        return torch.softmax(t, dim=1) @ v

    return attend


def tests(attend):
    """The four verdicts on an attention of q, k, v and taps."""
    out = attend(q, k, v, taps)
    return {
        "identity": torch.allclose(attend(q, k, v, unchanged), ordinary, atol=1e-12),
        "finite": bool(out.isfinite().all()),
        "causal": is_causal(lambda q, k, v: attend(q, k, v, taps), q, k, v),
        "loops": torch.allclose(out, by_loops(q, k, v, taps), atol=1e-12),
    }


def verdicts(name, attend):
    """One row of the table."""
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
# The second row is the dangerous one. It passes the test that everybody writes, it gives no NaN, and its numbers look reasonable. (Rows of NaN are
# reported as not causal: NaN is close to nothing, not even to itself. That says nothing about the future; the test for finite numbers gives the true
# reason.)
#
# ## Find the slips (optional)
#
# A public repository with fast kernels for this method describes it by these three lines. Its code is another matter, and so is the paper. Here `i`
# is the query and `j` the key; θ are the taps, written backwards: θ with i' = 0 belongs to query i itself, i' = 1 to the one before; likewise j'
# counts to the *left*. That is only a way of writing, and no slip.
#
# $$A = \operatorname{Softmax}\ \operatorname{Conv2d}_\theta(\hat A)$$
#
# $$a_{ij} = \operatorname{Softmax}\left( \frac{c_{q-1}}{\sqrt d} \sum_{i'=0}^{\lceil c_k/2 \rceil - 1}\ \sum_{j'=-\lfloor c_k/2 \rfloor}^{\lfloor c_k/2 \rfloor} 1_{i \ge j-j'}\ \theta_{i',j'}\ q_{i-i'}^\top k_{j-j'} \right)$$
#
# $$\operatorname{Out}_{jh} = \sum a_{ji} V_{ih}$$
#
# **Find at least four places** where it differs from the three steps of this lesson. Try 3 × 3 taps, and 1 × 4.
#
# <details><summary>Hint: where to look</summary>
#
# How many queries does the first sum run over, with 3 × 3 taps? How many keys the second, with c_k = 4? What is c with the index q − 1? Which mask
# is there, which is not? And compare the *index* in the mask with the row in which the score stands.
# </details>
#
# <details><summary>Answer</summary>
#
# 1. **The factor in front**, c with the index q−1, is no quantity at all. It should be 1/√d. The c_q − 1 is the upper limit of the first sum, which
#    has slid down.
# 2. **The first sum** must end at c_q − 1. Its ⌈c_k/2⌉ − 1 belongs to the next one. With 3 × 3 taps it would run over two queries in
#    place of three. (With the 6 × 11 taps of the paper both limits happen to be 5.)
# 3. **The second sum** should end at ⌈c_k/2⌉ − 1: each limit has slid one place to the left. For odd c_k there is no difference. With c_k = 4, −2…2
#    are five taps.
# 4. **The mask before the convolution** asks i ≥ j − j': whether the key comes after query *i*. The code of the method's authors, and this lesson,
#    ask i − i' ≥ j − j': whether the key comes after the query *of its own row*.
# 5. **The mask after the convolution** is missing: above the diagonal the sum is not −∞, and the softmax would give these keys a weight.
# 6. **The last line** uses j for the query and i for the key, the other way round than the line above, and does not say over what it sums. Read by
#    itself it is right; read after the line above, it mixes up rows and columns of a.
# </details>
#
# Number 4 is a matter of definition: both are causal. **Predict:** which of the four tests find it? And in which columns of a row does `T` differ,
# with 3 × 3 taps?


# %% tags=["uses-exercise"]
def formula_scores(q, k, w):
    """T with the formula's mask:
    in the window of T[i, j] a key counts if it does not come after query i."""
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
w = torch.randn(3, 3)
differs = (conv_scores(q, k, w) - formula_scores(q, k, w)).tril().abs() > 1e-12
print("\nT differs, 3 × 3 taps:")
for row in differs:
    print("   ", "".join(".x"[mark] for mark in row.int()))

# %% [markdown]
# Only the comparison with the loops finds it: a test for a property cannot tell two functions apart that both have it. The difference stays near the
# diagonal: a score counts in the formula and not in the code if its key comes after its own query but not after query i. In the window of `T[i, j]`
# there is such a score only for the P_q + P_r columns j = i − P_q − P_r + 1 … i, here three (near the first row fewer; and with a single row of taps
# none, as there each score belongs to query i itself).
#
# Why do it as the code does? Because then *one* matrix `S0` serves all rows, and the convolution is a plain convolution. With the formula's mask
# every row i would need a matrix of its own. A model trained with one mask and run with the other is wrong near the diagonal. So, when you take
# over somebody's taps, take over the mask of the code that trained them.
#
# ## What it costs (optional)
#
# **Arithmetic.** For each score the product `QKᵀ` needs d multiplications with an addition, the convolution c_q · c_k, the product with `V` again d.
# With d = 64 and 6 × 11 taps: 64 + 66 + 64. About half as much again as ordinary attention.
#
# **Memory.** The reference makes one N×N matrix after the other. **Predict:** how many? Go through the three steps of this lesson, and
# count each operation that writes a matrix anew: a mask is one, and so is the padding.

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
# each is written once, and read once by the step after it
moved = 2 * len(steps) * matrix
print(f"one N×N matrix, all heads:     {matrix / 2**30:.0f} GiB")
print(f"{len(steps)} of them, out and in:        {moved / 1e9:.0f} GB")
print(f"at 4300 GB a second:           {1000 * moved / 4.3e12:.1f} ms")
print(f"Q, K, V and the output:        {4 * heads * N * d * itemsize / 1e9:.2f} GB")

# %% [markdown]
# That is the layer of lesson 02 (32 heads, 4096 tokens, float32), computed, not measured: the copy rate of an H200 alone sets this limit, if every
# step is a kernel of its own and no cache helps. Ordinary attention, written step by step in the same way (product, scale, mask, softmax), moves 8
# matrices in place of 14; with scale and mask merged into their neighbours, as lesson 02 counts, 4. For training, some of the matrices must also be
# *kept* until the backward pass: `S0` for the gradient of the taps, and `P`, or what it can be computed from again, for the rest.
#
# Lesson 02 did away with these matrices: compute a tile, use it, forget it. We want the same here. But a tile of `T` is made of more than the same
# tile of `S0`: it needs the P_q rows above, P_k columns to the left and P_r to the right. Those belong to *other* tiles. What a tile has to load to
# compute what it owns is the one new idea of lesson 10.
#
# ## Validate
#
# Float64, N from 1 to 33, taps odd and even, oblong, and larger than N.


# %% tags=["uses-exercise"]
def largest(differences):
    """The largest of the absolute differences, NaN if there is one."""
    return max(
        (difference.abs().max().item() for difference in differences),
        key=lambda x: math.inf if math.isnan(x) else x,
    )


def validate(stage, against, differences, tolerance=1e-12):
    """One row of the table. NaN fails."""
    agrees = largest(differences) <= tolerance
    print(
        f"{stage:24}  {against:32}  {'below' if agrees else 'ABOVE'} {tolerance:.0e}   "
        f"{'✓' if agrees else '✗'}"
    )


def one_head(function, q, k, v, *rest):
    """A function of (B, H, N, d), called with one batch and one head."""
    return function(q[None, None], k[None, None], v[None, None], *rest)[0, 0]


def same(w):
    """Identity taps of the shape of w."""
    return identity_taps(1, *w.shape, dtype=w.dtype)[0]


def lower(scores):
    """What is on and below the diagonal."""
    return scores[torch.ones_like(scores, dtype=torch.bool).tril()]


shapes = [(1, 1, 1), (1, 3, 3), (5, 2, 4), (8, 6, 11), (17, 3, 3), (33, 7, 7)]
cases = [(*torch.randn(3, n, 4), torch.randn(c_q, c_k)) for n, c_q, c_k in shapes]

page_t = torch.tensor([1.0, 1, 2, 1, 2, 2, 1, 1, 2, 3])
print(f"{'stage':24}  {'against':32}  largest difference")
loops_t = torch.tensor(
    [convolved_score(page_s0, page_w, i, j) for i in range(4) for j in range(i + 1)]
)
validate("convolved_score", "the page, by hand", [loops_t - page_t])
validate(
    "conv_scores",
    "the page, by hand",
    [lower(conv_scores(page_q, page_k, page_w)) / math.log(2) - page_t],
)
for against, other in {
    "explicit loops (exercise 9.1)": by_loops,
    "kernels.reference.conv_attention": lambda q, k, v, w: one_head(
        reference.conv_attention, q, k, v, w[None]
    ),
}.items():
    validate(
        "conv_attention",
        against,
        [conv_attention(*case) - other(*case) for case in cases],
    )
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
validate("one tap, 2", "the same with twice the scale", sharper)
verdicts_by_shape = [
    is_causal(lambda q, k, v: conv_attention(q, k, v, w), q, k, v)
    for q, k, v, w in cases
]
print("conv_attention is causal in every shape:", all(verdicts_by_shape))

# %% [markdown]
# ### On a real GPU, if there is one
#
# The reference is plain PyTorch, and runs wherever its tensors are. Two batches, three heads; the cell prints the same line with and without a GPU.

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
# - Convolutional attention mixes neighbouring scores before the softmax, so that several queries and keys decide together; identity taps give
#   ordinary attention back.
# - Mask with 0, convolve, mask with −∞: the 0 keeps the future out of the sums, the −∞ keeps it out of the weights. Neither can do the other's job.
# - Without the first mask the output is finite, right for identity taps, and sees the future. Change the future and watch the past, and compare with
#   loops.
#
# **You can now** say what a row of this attention may depend on, and catch a function that looks ahead, without reading it.
#
# **Next:** in [lesson 10](10_overlapping_tiles.ipynb) the N×N matrices go. A tile has to load more than it owns.
