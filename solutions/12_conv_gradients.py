# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 12 · Gradients of convolutional attention, by hand
#
# **95 minutes**, and 20 for the bug hunt (*optional*) · builds on lesson 09 (mask with 0, convolve, mask with −∞, softmax), lesson 01 (the softmax) and, for the bug hunt, lesson
# 10 (tiles and halos) · needs: what a derivative is, and that `loss.backward()` exists
#
# You will be able to
# 1. derive a gradient by asking one question, again and again, and never lose a term;
# 2. write the whole backward pass of convolutional attention, checked piece by piece;
# 3. tell from wrong numbers which mistake made them, and say which tests would have missed it.
#
# PyTorch's autograd can find these gradients by itself, as long as every step is an operation of PyTorch, and it keeps N×N matrices for it.
# A kernel of our own is one step, and it keeps no such matrix. So we have to tell autograd what the gradients are. In
# lesson 13 two kernels will compute them; here you find out what they have to compute. Everything is plain PyTorch, in float64, for one
# head: `q`, `k`, `v` are (N, d), the taps `w` are (c_q, c_k), and query i sees the keys j ≤ i.

# %%
import math

import matplotlib.pyplot as plt
import torch
from torch.nn.functional import conv1d, conv2d, pad

from course import check, progress_bar, show_figure
from course.figures import BLUE, ORANGE
from kernels import reference

torch.manual_seed(12)
torch.set_default_dtype(torch.float64)

# %% [markdown]
# ## The idea in one picture
#
# Above, the forward pass of lesson 09, from left to right. Below, the same road back. We write **dX** for the gradient of the loss with
# respect to X. It has the shape of X, and each number in it says how fast the loss rises when that number of X rises. The loss hands us
# dO; we hand on dQ, dK, dV and dW. Beside each arrow of the way back stands what the step needs in addition (D is a number per row, of section 2). (The next cell only draws: run it, there is no need to read it.)

# %% jupyter={"source_hidden": true}
STEPS = [
    ("S", "q kᵀ · scale"),
    ("S0", "future → 0"),
    ("T", "convolve"),
    ("P", "softmax"),
    ("O", "P V"),
]
NEEDS = {"O": "V", "P": "P, D", "T": "W", "S0": "mask"}  # of each step back
ASIDE = {"S": "Q, K", "T": "W", "O": "V"}
BACK = {"S": "dQ, dK", "T": "dW", "O": "dV"}
WITH = {"S": "K, Q", "T": "S0", "O": "P"}


def box(axes, x, y, text, colour):
    axes.text(
        x,
        y,
        text,
        ha="center",
        va="center",
        color="white",
        fontsize=13,
        bbox={"boxstyle": "round,pad=0.4", "facecolor": colour},
    )


def arrow(axes, start, end, colour):
    axes.annotate(
        "",
        end,
        start,
        arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": 2},
    )


figure, axes = plt.subplots(figsize=(10, 3.6))
for place, (name, how) in enumerate(STEPS):
    x = 2 * place
    box(axes, x, 1, name, BLUE)
    box(axes, x, -1, "d" + name, ORANGE)
    if place:
        arrow(axes, (x - 1.6, 1), (x - 0.4, 1), BLUE)
        arrow(axes, (x - 0.45, -1), (x - 1.5, -1), ORANGE)
        axes.text(x - 1, -0.75, NEEDS[name], ha="center", fontsize=10)
    axes.text(
        x - 1 if place else x, 1.3 if place else 0.42, how, ha="center", fontsize=10
    )
    if name in ASIDE:
        axes.text(
            x, 2.35, ASIDE[name], ha="center", va="center", fontsize=12, color=BLUE
        )
        arrow(axes, (x, 2.15), (x, 1.4), BLUE)
        axes.text(
            x, -2.35, BACK[name], ha="center", va="center", fontsize=12, color=ORANGE
        )
        arrow(axes, (x, -1.4), (x, -2.15), ORANGE)
        axes.text(x + 0.12, -1.82, WITH[name], va="center", fontsize=10)
axes.set(xlim=(-1, 8.6), ylim=(-2.6, 2.6))
axes.axis("off")
show_figure(
    figure,
    "two rows of boxes. Above, from left to right: Q and K give S, by q kᵀ times the "
    "scale; S0 is S with the future set to 0; W enters and T is S0 convolved; P is "
    "the softmax of T; V enters and O is P V. Below, from right to left: dO gives, "
    "with P, dV and, with V, dP; dP, with P and D, gives dT; dT gives, with S0, dW "
    "and, "
    "with W, dS0; dS0, masked, gives dS; and dS gives, with K and Q, dQ and dK.",
)

# %% [markdown]
# ## 1. One question
#
# To find the gradient of a number, ask: **to whom did it contribute, and how strongly?** Then add up, over everyone it contributed to:
#
# $$\text{its gradient} = \sum \text{strength} \times \text{their gradient.}$$
#
# (This is the chain rule. *Strength* is how fast the other number rises when this one rises: a derivative.)
#
# On paper: a = 5 goes into b = 3a and into c = a². Say that db = 2 and dc = 1 are known. The strengths are 3, and 2a = 10.
#
# **Predict.** da = `___`
#
# <details><summary>Answer</summary>
#
# 3 · 2 + 10 · 1 = 16. Two contributions, so two terms. A forgotten term is the classic mistake.
#
# </details>
#
# **A product of matrices.** O = P V, so O[i, c] = Σ_j P[i, j] · V[j, c]. To whom did V[j, c] contribute? To O[i, c] in every row i, with
# strength P[i, j]. So dV[j, c] = Σ_i P[i, j] · dO[i, c]: that is **dV = Pᵀ dO**. And P[i, j]? To the whole row i of O: to O[i, c] with
# strength V[j, c]. So dP[i, j] = Σ_c V[j, c] · dO[i, c]: that is **dP = dO Vᵀ**. You need not remember where the transpose goes. Ask, and
# the indices answer.
#
# ### A tool that knows no theory
#
# Whatever we derive, we can also measure: move one number up a little, move it down a little, and see how the loss changes. These are
# **finite differences**.


# %%
def slopes(loss, x, step=1e-6):
    """How fast the number loss(x) rises with each number of x, shaped like x:
    two runs of `loss` a number."""
    measured = torch.empty_like(x)
    for n in range(x.numel()):
        move = torch.zeros_like(x)
        move.view(-1)[n] = step
        measured.view(-1)[n] = (loss(x + move) - loss(x - move)) / (2 * step)
    return measured


def error(got, wanted):
    """The largest difference between two tensors."""
    return (got - wanted).abs().max().item()


print(
    "da:", round(slopes(lambda a: 2 * (3 * a) + 1 * a**2, torch.tensor(5.0)).item(), 6)
)

# %% [markdown]
# The loss in that cell is 2b + 1c, because then db = 2 and dc = 1. The same trick serves for tensors: **if the loss is `(o * d_o).sum()`,
# the gradient with respect to `o` is `d_o`**, whatever `d_o` we like. We choose a random one.

# %%
p, v, d_o = torch.rand(3, 4), torch.randn(4, 2), torch.randn(3, 2)
print("dV = Pᵀ dO:", error(slopes(lambda v: (p @ v * d_o).sum(), v), p.T @ d_o) < 1e-8)
print("dP = dO Vᵀ:", error(slopes(lambda p: (p @ v * d_o).sum(), p), d_o @ v.T) < 1e-8)
low = v.float()
rough = slopes(lambda v: (p.float() @ v * d_o.float()).sum(), low)
print("in float32, within 0.001:", error(rough, p.T @ d_o) < 1e-3)
wider = slopes(lambda v: (p.float() @ v * d_o.float()).sum(), low, 0.01)
print(
    "in float32, with steps of a hundredth, within 0.001:",
    error(wider, p.T @ d_o) < 1e-3,
)

# %% [markdown]
# The False is no mistake of ours. float32 keeps about seven digits; two losses that differ by a millionth share nearly all of them,
# and the difference is mostly rounding. A larger step helps much here, where the loss is a straight line in v; where it is curved, a large step has an error of its own. So gradients are best tested in **float64**. Finite differences
# are slow too: two forward passes for every single number.
#
# ## 2. The softmax, on three numbers
#
# One query, three keys. Take the scores **ln 2, 0, 0** and the values **8, 4, 0**, and let dO = 1: we ask how the output itself moves.
#
# | | key 0 | key 1 | key 2 | |
# |---|---|---|---|---|
# | score T | ln 2 | 0 | 0 | |
# | e = exp(T) | 2 | 1 | 1 | l = 4 |
# | P = e / l | 1/2 | 1/4 | 1/4 | |
# | value V | 8 | 4 | 0 | O = 4 + 1 + 0 = 5 |
# | dP = dO · V | 8 | 4 | 0 | |
#
# To whom did the score of key 0 contribute? To its own e, with strength e (the derivative of exp is exp). And to whom did e[0]
# contribute? To P[0] = e[0] / l, **and to l**, by which *all three* are divided. So every score contributes to every weight. Count the
# two ways apart:
#
# - to its own P[j], as what stands above the line, with strength 1 / l;
# - to every P[k], through l, with strength −e[k] / l² = −P[k] / l.
#
# $$de_j = \frac{dP_j}{l} - \sum_k \frac{P_k}{l}\,dP_k = \frac{dP_j - D}{l},\qquad D = \sum_k P_k\,dP_k \qquad\Rightarrow\qquad dT_j = e_j\,de_j = P_j\,(dP_j - D).$$
#
# **D** is one number per row: the mean of dP, weighted by P. Here D = 8/2 + 4/4 + 0/4 = 5.
#
# **Predict.** dT = ( `___` , `___` , `___` ). And what do the three add up to? `___`
#
# <details><summary>Answer</summary>
#
# (½ · (8 − 5), ¼ · (4 − 5), ¼ · (0 − 5)) = (1.5, −0.25, −1.25). They add up to 0, as they must: the same number added to all scores
# changes nothing. A row of dT that does not add up to 0 is wrong.
#
# </details>
#
# Read it in words: give a key more score, and the output moves **toward that key's value, away from the mean**, by as much as its weight.
# The value 4 lies below the mean 5, so key 1 pulls the output down, although 4 is positive. Without D it would pull it up.

# %%
t, v = torch.tensor([math.log(2), 0, 0]), torch.tensor([8.0, 4.0, 0.0])
print(
    "dT, measured:",
    [
        round(slope, 6)
        for slope in slopes(lambda t: torch.softmax(t, 0) @ v, t).tolist()
    ],
)

# %% [markdown]
# ### D and L: two numbers per row
#
# It looks as if D needed a whole row of P and dP before the first dT can be computed. But D was 5, and so was O. That was no accident:
#
# $$D_i = \sum_j P_{ij}\,dP_{ij} = \sum_j P_{ij} \sum_c dO_{ic} V_{jc} = \sum_c dO_{ic} \sum_j P_{ij} V_{jc} = \sum_c dO_{ic}\,O_{ic}.$$
#
# So **D = rowsum(dO * O)**: it comes from O, which the forward pass has stored anyway, and no row of P is needed.
#
# And P itself? The forward pass has thrown it away. With lesson 01's `m` and `l`, P[j] = exp(T[j] − m) / l. Both fit into one number,
# **L = m + ln l**, the log-sum-exp of the row: then P[j] = exp(T[j] − L). The scores are computed a second time, from q, k and w; only L
# is kept.
#
# **Predict.** In the table above the largest score is m = ln 2, and so l = 1 + ½ + ½ = 2, measured from there. Then L = `___`, and
# exp(0 − L) is the weight of key 1 or 2: `___`
#
# <details><summary>Answer</summary>
#
# L = ln 2 + ln 2 = ln 4 = 1.386, and exp(−ln 4) = 1/4.
#
# </details>
#
# ## Exercise 12.1 · softmax_backward · about four lines
#
# Now all rows at once. Return P and dT, both (N, N), from L and o as they are handed over, without a softmax and without autograd: the kernels of lesson 13 see a
# tile at a time, never a whole row, so nothing here may need one. The check also hands over an L and an o that are not those of `t` and `v`. All inputs stay as they are.
#
# | given | shape | |
# |---|---|---|
# | `t` | (N, N) | the scores after the convolution, −∞ where j > i |
# | `log_sum` | (N,) | L |
# | `v`, `o`, `d_o` | (N, d) | |
#
# <details><summary>Hint 1: a number per row</summary>
#
# `log_sum[:, None]` is a column, (N, 1): `t - log_sum[:, None]` takes from each row its own number.
# `(d_o * o).sum(1, keepdim=True)` is such a column at once.
#
# </details>
# <details><summary>Hint 2: the masked half</summary>
#
# Nothing to do: exp(−∞) is 0, so P is 0 there, and P * anything finite is 0.
#
# </details>


# %% tags=["exercise"]
def softmax_backward(t, log_sum, v, o, d_o):
    """(P, dT), both (N, N), from the scores,
    their log-sum-exp and the gradient of the output."""
    # BEGIN SOLUTION 12.1
    p = torch.exp(t - log_sum[:, None])
    d_p = d_o @ v.T
    d = (d_o * o).sum(1, keepdim=True)
    return p, p * (d_p - d)
    # END SOLUTION


# %% tags=["check"]
check.ex12_1(softmax_backward)

# %% [markdown]
# ## 3. The convolution: who read me?
#
# First in one dimension, with whole numbers. Take four scores s = (1, 2, 0, 3) and three taps w = (2, 1, 5). Position j reads its left
# neighbour, itself and its right neighbour: t[j] = 2·s[j−1] + 1·s[j] + 5·s[j+1], with 0 outside. As a table, a row for each t:
#
# | | s[0] = 1 | s[1] = 2 | s[2] = 0 | s[3] = 3 | |
# |---|---|---|---|---|---|
# | t[0] | 1 | 5 | | | 11 |
# | t[1] | 2 | 1 | 5 | | 4 |
# | t[2] | | 2 | 1 | 5 | 19 |
# | t[3] | | | 2 | 1 | 3 |
#
# Forward you read along a **row**: what did t[1] read? Backward you read down a **column**: who read s[1]? Its left neighbour t[0] did,
# with the tap 5; t[1] itself, with 1; its right neighbour t[2], with 2. Down a column the taps come in the order 5, 1, 2: **turned
# round**. Not because of a rule about convolutions, but because my right neighbour sees me on its left.
#
# **Predict.** Let dt = (1, 0, 2, 10). Then ds[1] = 5 · 1 + 1 · 0 + 2 · 2 = 9. And ds[2] = `___`, ds[3] = `___`

# %%
s, w, dt = (
    torch.tensor([1.0, 2, 0, 3]),
    torch.tensor([2.0, 1, 5]),
    torch.tensor([1.0, 0, 2, 10]),
)
table = torch.tensor([[1.0, 5, 0, 0], [2, 1, 5, 0], [0, 2, 1, 5], [0, 0, 2, 1]])
print("t :", (table @ s).tolist())
print(
    "ds:",
    (table.T @ dt).tolist(),
    "  measured:",
    [round(slope, 6) for slope in slopes(lambda s: table @ s @ dt, s).tolist()],
)

# %% [markdown]
# ds[2] = 5·0 + 1·2 + 2·10 = 22 and ds[3] = 5·2 + 1·10 = 20. Backward multiplies by the *transposed* table; hence the name **transposed
# convolution**.
#
# Now two dimensions. With P_q = c_q − 1 and P_k = (c_k − 1) // 2, lesson 09 computed
#
# $$T_{ij} = \sum_{a,b} w_{ab}\; S0_{\,i - P_q + a,\; j - P_k + b}\,.$$
#
# Left, what one T reads: its own row and the rows above, columns on both sides. Right, who reads one S0: its own row and the rows
# **below**, and where four taps cannot lie evenly (here one column to the left, two to the right), the sides are swapped. Each cell shows
# its tap, a and b.


# %% jupyter={"source_hidden": true}
def draw_window(axes, title, centre, cells, colour):
    """A 7×7 matrix;
    `cells` maps (row, column) to the tap written there, `centre` is outlined."""
    for i in range(7):
        for j in range(7):
            shade = colour if (i, j) in cells else "#DDDDDD" if j > i else "white"
            axes.add_patch(
                plt.Rectangle((j, i), 1, 1, facecolor=shade, edgecolor="gray")
            )
            if (i, j) in cells:
                a, b = cells[i, j]
                axes.text(
                    j + 0.5,
                    i + 0.5,
                    f"{a},{b}",
                    ha="center",
                    va="center",
                    fontsize=12,
                    color="white" if colour == BLUE else "black",
                )
    axes.add_patch(
        plt.Rectangle(centre[::-1], 1, 1, fill=False, edgecolor="black", linewidth=4)
    )
    axes.set(xlim=(-0.1, 7.1), ylim=(7.1, -0.1), aspect="equal", title=title)
    axes.set_xticks([n + 0.5 for n in range(7)], range(7))
    axes.set_yticks([n + 0.5 for n in range(7)], range(7))
    axes.tick_params(length=0)


taps = [(a, b) for a in range(3) for b in range(4)]
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4.6), layout="constrained")
draw_window(
    left,
    "T[4, 2] reads these cells of S0",
    (4, 2),
    {(4 - 2 + a, 2 - 1 + b): (a, b) for a, b in taps},
    BLUE,
)
draw_window(
    right,
    "S0[3, 2] is read by these cells of T",
    (3, 2),
    {(3 + 2 - a, 2 + 1 - b): (a, b) for a, b in taps},
    ORANGE,
)
show_figure(
    figure,
    "two grids of 7 by 7 cells, for c_q = 3 and c_k = 4; the half above the diagonal "
    "is gray. Left, T[4, 2] reads rows 2 to 4 and columns 1 to 4 of S0: "
    "tap 0,0 in the upper left corner, tap 2,3 in the lower right one. "
    "Right, S0[3, 2] is read by rows 3 to 5 and columns 0 to 3 of T: "
    "tap 2,3 in the upper left corner, tap 0,0 in the lower right one.",
)

# %% [markdown]
# **On paper.** Which T has read S0[r, c] with the tap (a, b)? Check it against the picture: S0[3, 2] with the tap 0,0 is read by T[5, 3].
# T[`___` , `___`]. Then write dS0[r, c] as a sum over a and b.
#
# <details><summary>Answer</summary>
#
# Put r = i − P_q + a, and solve for i; likewise c = j − P_k + b for j. The reader is T[r + P_q − a, c + P_k − b], so
#
# $$dS0_{rc} = \sum_{a,b} w_{ab}\; dT_{\,r + P_q - a,\; c + P_k - b}\,,\qquad\text{with 0 outside.}$$
#
# </details>
#
# ## Exercise 12.2 · transposed_convolve · four to eight lines
#
# Return dS0, (N, N), for `d_t` (N, N) and `w` (c_q, c_k). Four loops are fine here (the check has up to 41 tokens, and is patient); so is `conv2d` with `pad`, once
# you know what is turned and which sides grow. Here and below autograd, and the package's own gradients, are witnesses: they give no answers.
#
# <details><summary>Hint 1: with loops</summary>
#
# Begin with `torch.zeros_like(d_t)`. For all i, j, a, b: `r, c = i - P_q + a, j - P_k + b`; if this cell exists (`0 <= r < n` and
# `0 <= c < n`), it was read by T[i, j], so it gets `w[a, b] * d_t[i, j]`. This walks over the readers, and needs no turned taps.
#
# </details>
# <details><summary>Hint 2: with conv2d</summary>
#
# `conv2d(x[None, None], w[None, None])[0, 0]` is the window sum of lesson 09 where it needs nothing from outside. Turn the taps by 180°:
# `w.flip(0, 1)`. `pad(x, (left, right, above, below))` adds zeros. Look at the right picture: how many rows of T below, how many columns
# to the left, how many to the right?
#
# </details>


# %% tags=["exercise"]
def transposed_convolve(d_t, w):
    """dS0 (N, N): the gradient of the convolution with respect to what it reads.
    d_t: (N, N), w: (c_q, c_k)."""
    # BEGIN SOLUTION 12.2
    c_q, c_k = w.shape
    left = (c_k - 1) // 2
    room = pad(d_t, (c_k - 1 - left, left, 0, c_q - 1))
    return conv2d(room[None, None], w.flip(0, 1)[None, None])[0, 0]
    # END SOLUTION


# %% [markdown]
# Before you ask the check, measure. All you need is the forward pass; the package has it, with a batch and heads in front.


# %%
def convolve(s0, w):
    """The convolution of the forward pass: s0 (N, N), w (c_q, c_k)."""
    return reference.convolve(s0[None, None], w[None])[0, 0]


some_s0, some_d_t, some_w = torch.randn(6, 6), torch.randn(6, 6), torch.randn(3, 4)

# %% tags=["uses-exercise"]
measured = slopes(lambda s0: (convolve(s0, some_w) * some_d_t).sum(), some_s0)
print("dS0 as measured:", error(transposed_convolve(some_d_t, some_w), measured) < 1e-7)

# %% tags=["check"]
check.ex12_2(transposed_convolve)

# %% [markdown]
# ## 4. The taps
#
# The same question once more. To whom did the tap w[0] = 2 contribute? To **every** t: to t[j] with strength s[j − 1], the score that it
# was multiplied with. So dw[0] = Σ_j dt[j] · s[j − 1].
#
# | | t[0] | t[1] | t[2] | t[3] | |
# |---|---|---|---|---|---|
# | dt | 1 | 0 | 2 | 10 | |
# | met w[0] | 0 | 1 | 2 | 0 | dw[0] = 0 + 0 + 4 + 0 = 4 |
# | met w[1] | 1 | 2 | 0 | 3 | dw[1] = 1 + 0 + 0 + 30 = 31 |
# | met w[2] | 2 | 0 | 3 | 0 | dw[2] = `___` |


# %%
def convolve_row(s, w):
    """t of the one-dimensional example."""
    return conv1d(pad(s, (1, 1))[None, None], w[None, None])[0, 0]


print(
    "dw, measured:",
    [
        round(slope, 6)
        for slope in slopes(lambda w: convolve_row(s, w) @ dt, w).tolist()
    ],
)

# %% [markdown]
# 2 + 0 + 6 + 0 = 8. Here nothing is turned round: dt and s stand side by side as they did in the forward pass.
#
# **On paper.** In two dimensions, which score has the tap (a, b) met in T[i, j]? S0[`___` , `___`]. Then dW[a, b] is a sum over all i and j.
#
# <details><summary>Answer</summary>
#
# It stands in the formula of the forward pass:
#
# $$dW_{ab} = \sum_{i,j} dT_{ij}\; S0_{\,i - P_q + a,\; j - P_k + b}\,,\qquad\text{with 0 outside.}$$
#
# </details>
#
# A few taps collect from all N² scores. (With several sequences in a batch, all of them contribute to the same taps, so the sum runs over
# the batch as well. Each head has taps of its own.)
#
# ## Exercise 12.3 · tap_gradient · about six lines
#
# Return dW, a tensor (c_q, c_k).
#
# <details><summary>Hint 1: pad once</summary>
#
# Pad `s0` as lesson 09 did: P_q rows of zeros above, P_k columns to the left, c_k − 1 − P_k to the right. Call it `room`. Then
# S0[i − P_q + a, j − P_k + b] is `room[i + a, j + b]`.
#
# </details>
# <details><summary>Hint 2: one tap</summary>
#
# What the tap (a, b) met, for all i and j at once, is the slice `room[a : a + n, b : b + n]`. Multiply by `d_t`, sum.
#
# </details>


# %% tags=["exercise"]
def tap_gradient(d_t, s0, c_q, c_k):
    """dW (c_q, c_k): the gradient of the convolution with respect to its taps.
    d_t, s0: (N, N)."""
    # BEGIN SOLUTION 12.3
    n, left = len(d_t), (c_k - 1) // 2
    room = pad(s0, (left, c_k - 1 - left, c_q - 1, 0))
    d_w = d_t.new_empty(c_q, c_k)
    for a in range(c_q):
        for b in range(c_k):
            d_w[a, b] = (d_t * room[a : a + n, b : b + n]).sum()
    return d_w
    # END SOLUTION


# %% tags=["uses-exercise"]
measured = slopes(lambda w: (convolve(some_s0, w) * some_d_t).sum(), some_w)
print(
    "dW as measured:",
    error(tap_gradient(some_d_t, some_s0, *some_w.shape), measured) < 1e-7,
)

# %% tags=["check"]
check.ex12_3(tap_gradient)

# %% [markdown]
# ## 5. The mask has a gradient too
#
# There are two masks, one on each side of the convolution. The second, −∞ in T, needs no care: P is 0 there, so dT is 0. The first one
# does.
#
# Look at query 1 of three tokens, again in one row. It may see keys 0 and 1; the score of key 2 was S = 7, and the mask made it 0 before
# the convolution read it. With the taps (2, 1, 5) and dt = (1, −1, 0):
#
# | | key 0 | key 1 | key 2 |
# |---|---|---|---|
# | S | 1 | 2 | 7 |
# | S0 | 1 | 2 | **0** |
# | dS0, by your transposed convolution | 1·1 + 2·(−1) = −1 | 5·1 + 1·(−1) = 4 | 5·(−1) = **−5** |
# | dS | −1 | 4 | `___` |
#
# **Predict** the last cell, by the one question. To whom did the 7 contribute?
#
# <details><summary>Answer</summary>
#
# To nobody: dS = 0. The −5 is right, but it is the gradient of S0[2], which is a constant 0. T[1] did read that 0, with strength 5, and
# if the 0 were a 1 the loss would fall by 5. But nothing that q or k do can make it a 1. What was replaced by a constant has gradient 0.
#
# </details>
#
# So **dS = dS0 where j ≤ i, and 0 elsewhere**. Autograd does this for you in `masked_fill`, without a word. By hand it is easily forgotten.

# %%
row, dt = torch.tensor([1.0, 2, 7]), torch.tensor([1.0, -1, 0])
past = torch.tensor([1.0, 1, 0])
print(
    "dS, measured:",
    [
        round(slope, 6)
        for slope in slopes(lambda s: convolve_row(s * past, w) @ dt, row).tolist()
    ],
)

# %% [markdown]
# ## 6. Queries and keys, and all of it together
#
# S = scale · Q Kᵀ is a product of matrices again. Q[i, c] contributed to every S[i, j], with strength scale · K[j, c]; K[j, c] to every
# S[i, j], with strength scale · Q[i, c]:
#
# $$dQ = \text{scale} \cdot dS\, K,\qquad dK = \text{scale} \cdot dS^\top Q.$$
#
# That is all. The road back, in the order in which a program walks it:
#
# | | | exercise or section |
# |---|---|---|
# | P, dT | exp(T − L), P * (dO Vᵀ − D) | 12.1 |
# | dV | Pᵀ dO | 1 |
# | dW | Σ dT · S0 | 12.3 |
# | dS0 | transposed convolution of dT | 12.2 |
# | dS | dS0, 0 in the future | 5 |
# | dQ, dK | scale · dS K, scale · dSᵀ Q | 6 |
#
# From the package you get what the forward pass has: `masked_scores(q, k)` is S0 (scaled and masked with 0), `conv_scores(q, k, w)` is T,
# for one head.

# %%
masked_scores = reference.masked_scores


def conv_scores(q, k, w):
    """T (N, N) of one head: convolved, -inf in the future.
    The package has a batch and heads in front."""
    return reference.conv_scores(q[None, None], k[None, None], w[None])[0, 0]


def conv_attention(q, k, v, w):
    """(O, L) of one head, (N, d) and (N,)."""
    t = conv_scores(q, k, w)
    return torch.softmax(t, 1) @ v, torch.logsumexp(t, 1)


# %% [markdown]
# ## Exercise 12.4 · conv_attention_backward · about six lines
#
# Return the tuple `(dQ, dK, dV, dW)`, shaped like q, k, v and w. Use your three functions, with L and o as they are handed over, and no autograd.
#
# <details><summary>Hint 1: the beginning</summary>
#
# `s0 = masked_scores(q, k)`, then `p, d_t = softmax_backward(conv_scores(q, k, w), log_sum, v, o, d_o)`.
#
# </details>
# <details><summary>Hint 2: the mask</summary>
#
# `torch.tril(x)` is x with zeros above the diagonal.
#
# </details>
# <details><summary>Hint 3: the scale</summary>
#
# 1 / √d, and d is `q.shape[1]`. It is in dQ and in dK. It is not in dW a second time: `s0` has it already.
#
# </details>


# %% tags=["exercise"]
def conv_attention_backward(q, k, v, w, o, log_sum, d_o):
    """(dQ, dK, dV, dW) of causal convolutional attention, one head."""
    # BEGIN SOLUTION 12.4
    s0 = masked_scores(q, k)
    p, d_t = softmax_backward(conv_scores(q, k, w), log_sum, v, o, d_o)
    d_s = torch.tril(transposed_convolve(d_t, w))
    scale = 1 / math.sqrt(q.shape[1])
    return (
        scale * d_s @ k,
        scale * d_s.T @ q,
        p.T @ d_o,
        tap_gradient(d_t, s0, *w.shape),
    )
    # END SOLUTION


# %% tags=["check"]
check.ex12_4(conv_attention_backward)

# %% [markdown]
# ## 7. Validate
#
# Three witnesses: autograd, which takes the package's forward pass apart step by step; finite differences, which only run it; and the package's own
# backward pass by hand. The first two share that forward pass, which lesson 09 has compared with loops; the third shares with them only what the forward pass stores, O and L. Odd and even taps, oblong ones, more taps than tokens, a
# single token.

# %%
NAMES = "dQ", "dK", "dV", "dW"


def case(n, d, c_q, c_k):
    """Random (q, k, v, w) and d_o."""
    return (*torch.randn(3, n, d), torch.randn(c_q, c_k)), torch.randn(n, d)


def by_autograd(inputs, d_o):
    inputs = [x.clone().requires_grad_() for x in inputs]
    o, _ = conv_attention(*inputs)
    return torch.autograd.grad(o, inputs, d_o)


def by_slopes(inputs, d_o):
    """Finite differences: move one input, keep the other three."""

    def loss_of(place):
        return lambda x: (
            conv_attention(*inputs[:place], x, *inputs[place + 1 :])[0] * d_o
        ).sum()

    return [slopes(loss_of(place), x) for place, x in enumerate(inputs)]


def by_package(inputs, d_o):
    o, log_sum = conv_attention(*inputs)
    q, k, v, w = inputs
    many = (
        [x[None, None] for x in (q, k, v)]
        + [w[None]]
        + [x[None, None] for x in (o, log_sum, d_o)]
    )
    return [
        x.reshape(like.shape)
        for x, like in zip(reference.conv_attention_backward(*many), inputs)
    ]


# %% tags=["uses-exercise"]
print(f"{'N':>3}{'d':>3}{'taps':>8}   autograd 1e-11   slopes 1e-6   package 1e-11")
for n, d, c_q, c_k in progress_bar(
    [
        (1, 2, 1, 1),
        (5, 3, 3, 3),
        (6, 4, 2, 4),
        (9, 2, 6, 11),
        (12, 5, 4, 1),
        (20, 8, 7, 7),
    ]
):
    inputs, d_o = case(n, d, c_q, c_k)
    mine = conv_attention_backward(*inputs, *conv_attention(*inputs), d_o)
    near = []
    for witness, tolerance in (
        (by_autograd, 1e-11),
        (by_slopes, 1e-6),
        (by_package, 1e-11),
    ):
        near.append(
            all(
                error(got, wanted) < tolerance
                for got, wanted in zip(mine, witness(inputs, d_o))
            )
        )
    print(f"{n:3}{d:3}{c_q:5}×{c_k:<2}   {near[0]!s:>14}{near[1]!s:>14}{near[2]!s:>16}")

# %% [markdown]
# ### Handing it to autograd
#
# A `torch.autograd.Function` is a step that brings its own gradient: `forward` computes and saves what `backward` will need, and
# `backward` gets dO and returns one gradient for each input. Then `torch.autograd.gradcheck` can test it. It compares with finite
# differences, as you did.


# %%
class ConvAttention(torch.autograd.Function):
    """Convolutional attention of one head with the gradients of this lesson."""

    @staticmethod
    def forward(ctx, q, k, v, w):
        o, log_sum = conv_attention(q, k, v, w)
        ctx.save_for_backward(q, k, v, w, o, log_sum)
        return o

    @staticmethod
    def backward(ctx, d_o):
        return conv_attention_backward(*ctx.saved_tensors, d_o)


# %% tags=["uses-exercise"]
inputs, _ = case(6, 3, 2, 3)
print(
    "gradcheck:",
    torch.autograd.gradcheck(ConvAttention.apply, [x.requires_grad_() for x in inputs]),
)

# %% [markdown]
# gradcheck lets pass what agrees to about three digits: it does not ask more of finite differences. For the last digits you have autograd.
#
# **Predict.** For N = 256 and d = 16, how many numbers have to be kept between forward and backward? By this function: Q, K, V and O, N·d
# each, L and the taps: about 4 · 256 · 16 + 256 = 16,640. By autograd, for the plain forward pass: at least as many as P has, `___`


# %%
def kept_numbers(attend, inputs):
    """How many numbers autograd keeps for the backward pass of attend(*inputs):
    each piece of memory counted once."""
    kept = {}

    def keep(x):
        kept[x.untyped_storage().data_ptr()] = (
            x.untyped_storage().nbytes() // x.element_size(),
            x,
        )
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        o = attend(*(x.clone().requires_grad_() for x in inputs))
    assert o.requires_grad
    return sum(count for count, _ in kept.values())


n, d = 256, 16
inputs, _ = case(n, d, 3, 5)
ours = kept_numbers(ConvAttention.apply, inputs)
plain = kept_numbers(lambda *inputs: conv_attention(*inputs)[0], inputs)
print(
    f"this function: {ours:,} numbers;   one N×N matrix: {n * n:,};   plain forward: "
    f"more than two of those: {plain > 2 * n * n}"
)

# %% [markdown]
# Twice the tokens double the first count, and make an N×N matrix four times as large. Fair is fair: while it runs, your backward pass
# still makes N×N matrices, one after the other. It just does not wait with them. Lesson 13 does it by tiles, without any.
#
# ### On a real GPU, if there is one
#
# Plain PyTorch runs wherever its tensors are. The cell prints the same line with and without a GPU.

# %% tags=["uses-exercise"]
device = "cuda" if torch.cuda.is_available() else "cpu"
inputs, d_o = case(50, 8, 6, 11)
here = conv_attention_backward(
    *[x.to(device) for x in (*inputs, *conv_attention(*inputs), d_o)]
)
near = [
    error(mine.cpu(), right) < 1e-10
    for mine, right in zip(here, by_autograd(inputs, d_o))
]
print("on this device, against autograd on the CPU, within 1e-10:", all(near))

# %% [markdown]
# ## 8. A bug hunt (optional, 20 minutes)
#
# Four strangers send backward passes, called a, b, c and d. Each has **one** mistake, and each a different one:
#
# | name | mistake | |
# |---|---|---|
# | `"no D"` | dT = P * dP | the published pseudo-code reads D, but no algorithm in it computes D; this stranger went on without |
# | `"no mask"` | dS = dS0 in the future too | in the published pseudo-code the line is missing |
# | `"counted twice"` | dW is summed by tiles that own 4 rows of T; each also adds the P_q rows of T below them, its halo (section 3: rows below read its scores), which are another tile's own | in the published pseudo-code a tile sums over all that it has loaded |
# | `"not transposed"` | dS0 by the convolution of the forward pass | not published, but an easy slip |
#
# You do not see their code. You see what comes out: which of dQ, dK, dV, dW differ from autograd's.
#
# **Guess before you run**, by the picture at the top: a wrong dT spoils everything that lies further along the road back. Which gradients
# does each mistake spoil?
#
# no D: `___`   no mask: `___`   counted twice: `___`   not transposed: `___`

# %%
from course.check.lesson12 import strangers


def wrong(backward, w, n=10):
    """The names of the gradients that are wrong, for n tokens and taps w, else "-"."""
    inputs, d_o = (*torch.randn(3, n, 4), w), torch.randn(n, 4)
    got = backward(*inputs, *conv_attention(*inputs), d_o)
    spoiled = [
        name
        for name, mine, right in zip(NAMES, got, by_autograd(inputs, d_o))
        if not error(mine, right) <= 1e-9
    ]
    return " ".join(spoiled) or "-"


for name, backward in strangers.items():
    print(f"{name}:  random 3×3 taps, 10 tokens: {wrong(backward, torch.randn(3, 3))}")

# %% [markdown]
# Two of them you know now. The other two spoil the same gradients: both mistakes lie between dT and dS. To tell them apart, **choose inputs
# for which one mistake does no harm**. Taps are a good handle. Here are four experiments; first predict their results for both suspects:
#
# - **identity**: 3×3 taps with a single 1, for the score itself. Then it is ordinary attention, and nobody reads a neighbour.
# - **left**: one row of taps (x, y, 0). A score reads itself and its left neighbour, never to its right: never across the diagonal.
# - **symmetric**: one row of taps (x, y, x). Turned round, it is the same.
# - **four tokens**: 3×3 random taps, and the whole sequence fits into one tile.

# %%
x, y = torch.randn(2)
experiments = {
    "identity": (reference.identity_taps(1, 3, 3, torch.float64)[0], 10),
    "left": (torch.tensor([[x, y, 0]]), 10),
    "symmetric": (torch.tensor([[x, y, x]]), 10),
    "four tokens": (torch.randn(3, 3), 4),
}
print(" " * 3 + "".join(f"{name:14}" for name in experiments))
for name, backward in strangers.items():
    print(
        f"{name}: "
        + "".join(f"{wrong(backward, w, n):14}" for w, n in experiments.values())
    )

# %% [markdown]
# ### Exercise 12.5 · diagnosis · four words
# Who made which mistake? Return `{"a": ..., "b": ..., "c": ..., "d": ...}` with the names from the table.
#
# <details><summary>Hint: the two suspects</summary>
#
# Which mistake cannot matter when nobody reads across the diagonal? And which when the taps are the same from both ends?
#
# </details>


# %% tags=["exercise"]
def diagnosis():
    """{stranger: name of the mistake}"""
    # BEGIN SOLUTION 12.5
    return {"a": "not transposed", "b": "counted twice", "c": "no D", "d": "no mask"}
    # END SOLUTION


# %% tags=["check"]
check.ex12_5(diagnosis)

# %% [markdown]
# Read the table of experiments once more, now by its columns, as tests that one might have written:
#
# - The **identity** test is the obvious one, since it must equal ordinary attention. Forward it is a good test. Backward it lets "no
#   mask" and "not transposed" pass.
# - **Symmetric** taps in a single row of an odd number (a blur along the keys) let "not transposed" pass; with an even number, or with several rows,
#   they do not, since the taps are not centred on the score. And a single row has no rows above, so no halo below: "counted twice" passes as well.
# - A sequence that **fits into one tile** lets "counted twice" pass. The tests of one published GPU implementation of this attention end
#   at 16 tokens; with 7×7 taps its forward pass, measured on an H200, is wrong for every length from 27 on that we tried.
#
# Random taps, even and oblong, and more than one tile would have found all of them. And gradcheck? It needs no second implementation:


# %%
def passes_gradcheck(backward):
    class Stranger(ConvAttention):
        @staticmethod
        def backward(ctx, d_o):
            return backward(*ctx.saved_tensors, d_o)

    inputs, _ = case(7, 3, 3, 3)
    return torch.autograd.gradcheck(
        Stranger.apply, [x.requires_grad_() for x in inputs], raise_exception=False
    )


print({name: passes_gradcheck(backward) for name, backward in strangers.items()})

# %% [markdown]
# ## In three lines
# - One question gives every gradient: to whom did this number contribute, and how strongly? Add up strength × gradient, over all of them.
# - Softmax: dT = P * (dP − D). Convolution: read down the columns of its table, so taps turned round. A mask: what was replaced by a
#   constant has gradient 0.
# - Keep L and O, compute the rest again; test in float64, with inputs that have no symmetry and do not fit.
#
# **You can now** derive a backward pass, prove it with three witnesses, and read a mistake off wrong numbers.
#
# **Next:** [lesson 13](13_conv_backward.ipynb) gives this road back to two kernels, tile by tile, with a halo on both sides.
