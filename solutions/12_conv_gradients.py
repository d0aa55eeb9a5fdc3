# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 12 · Gradients of convolutional attention, by hand
#
# **85 minutes** · builds on lesson 09 (mask with 0, convolve, mask with −∞, softmax) and lesson 01 (the
# softmax) · you need to know what a derivative is, and that `loss.backward()` exists
#
# After this lesson you will be able to
# 1. derive a gradient by asking one question, again and again, without losing a term;
# 2. write the whole backward pass of convolutional attention, and check it piece by piece.
#
# PyTorch's autograd can find these gradients by itself, as long as every step is a PyTorch operation. But it
# keeps N×N matrices to do so. A kernel of our own is a single step and keeps no such matrix. So we have to
# tell autograd what the gradients are. Lesson 13 computes them with two kernels; here you work out what these
# kernels must compute. Everything is plain PyTorch, in float64, for one head: `q`, `k` and `v` are (N, d),
# the taps `w` are (c_q, c_k), and query i sees the keys j ≤ i.

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
# The upper row of the picture is the forward pass of lesson 09, from left to right. The lower row is the way
# back. We write **dX** for the gradient of the loss with respect to X. It has the shape of X, and each of its
# entries says how fast the loss rises when that entry of X rises. The loss gives us dO, and we return dQ, dK,
# dV and dW. Next to each arrow of the way back you see what that step needs in addition. (D is one number per
# row; section 2 explains it. The next cell only draws: run it, you don't need to read it.)

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
# To find the gradient of a number, ask: **which numbers did it contribute to, and how strongly?** Then add
# up, over all of them:
#
# $$\text{its gradient} = \sum \text{strength} \times \text{their gradient.}$$
#
# (This is the chain rule. The *strength* is a derivative: how fast the other number rises when this one
# rises.)
#
# On paper: a = 5 contributes to b = 3a and to c = a². Suppose you know that db = 2 and dc = 1. The strengths
# are 3, and 2a = 10.
#
# **Predict.** What is da?
#
# <details><summary>Answer</summary>
#
# 3 · 2 + 10 · 1 = 16. There are two contributions, so there are two terms. Forgetting a term is the classic
# mistake.
#
# </details>
#
# **A product of matrices.** O = P V, so O[i, c] = Σ_j P[i, j] · V[j, c]. Which numbers did V[j, c]
# contribute to? To O[i, c] in every row i, with strength P[i, j]. So dV[j, c] = Σ_i P[i, j] · dO[i, c], that
# is, **dV = Pᵀ dO**. And P[i, j]? It contributed to the whole row i of O: to O[i, c] with strength V[j, c].
# So dP[i, j] = Σ_c V[j, c] · dO[i, c], that is, **dP = dO Vᵀ**. You don't have to remember where the
# transpose goes. Ask the question, and the indices answer it.
#
# ### A tool that needs no theory
#
# Whatever we derive, we can also measure. Move one number up a little, move it down a little, and see how the
# loss changes. This is called **finite differences**.


# %%
def slopes(loss, x, step=1e-6):
    """Return how fast loss(x) rises with each entry of x, shaped like x.
    This calls `loss` twice per entry."""
    measured = torch.empty_like(x)
    for n in range(x.numel()):
        move = torch.zeros_like(x)
        move.view(-1)[n] = step
        measured.view(-1)[n] = (loss(x + move) - loss(x - move)) / (2 * step)
    return measured


def error(got, wanted):
    """Return the largest difference between two tensors."""
    return (got - wanted).abs().max().item()


print(
    "da:", round(slopes(lambda a: 2 * (3 * a) + 1 * a**2, torch.tensor(5.0)).item(), 6)
)

# %% [markdown]
# The loss in that cell is 2b + 1c, because then db = 2 and dc = 1. The same trick works for tensors: **if the
# loss is `(o * d_o).sum()`, the gradient with respect to `o` is `d_o`**, for any `d_o`. We choose a random
# one.

# %%
p, v, d_o = torch.rand(3, 4), torch.randn(4, 2), torch.randn(3, 2)
print("dV = Pᵀ dO:", error(slopes(lambda v: (p @ v * d_o).sum(), v), p.T @ d_o) < 1e-8)
print("dP = dO Vᵀ:", error(slopes(lambda p: (p @ v * d_o).sum(), p), d_o @ v.T) < 1e-8)
low = v.float()
rough = slopes(lambda v: (p.float() @ v * d_o.float()).sum(), low)
print("in float32, within 0.001:", error(rough, p.T @ d_o) < 1e-3)
wider = slopes(lambda v: (p.float() @ v * d_o.float()).sum(), low, 0.01)
print("in float32, with steps of 0.01, within 0.001:", error(wider, p.T @ d_o) < 1e-3)

# %% [markdown]
# The False is not our mistake. float32 keeps about seven digits. Two losses that differ by a millionth share
# nearly all of them, and the difference is mostly rounding. A larger step helps a lot here, because the loss
# is a straight line in v. Where it is curved, a large step has an error of its own. So it is best to test
# gradients in **float64**. Finite differences are also slow: they take two forward passes for every single
# number.
#
# ## 2. The softmax, on three numbers
#
# Take one query and three keys, with the scores **ln 2, 0, 0** and the values **8, 4, 0**. Let dO = 1: we ask
# how the output itself changes.
#
# | | key 0 | key 1 | key 2 | |
# |---|---|---|---|---|
# | score T | ln 2 | 0 | 0 | |
# | e = exp(T) | 2 | 1 | 1 | l = 4 |
# | P = e / l | 1/2 | 1/4 | 1/4 | |
# | value V | 8 | 4 | 0 | O = 4 + 1 + 0 = 5 |
# | dP = dO · V | 8 | 4 | 0 | |
#
# Which numbers did the score of key 0 contribute to? To its own e, with strength e (the derivative of exp is
# exp). And which did e[0] contribute to? To P[0] = e[0] / l, **and to l**, by which *all three* are divided.
# So every score contributes to every weight. We count the two ways separately:
#
# - to its own P[j], through the numerator, with strength 1 / l;
# - to every P[k], through l, with strength −e[k] / l² = −P[k] / l.
#
# $$de_j = \frac{dP_j}{l} - \sum_k \frac{P_k}{l}\,dP_k = \frac{dP_j - D}{l},\qquad D = \sum_k P_k\,dP_k \qquad\Rightarrow\qquad dT_j = e_j\,de_j = P_j\,(dP_j - D).$$
#
# **D** is one number per row: the mean of dP, weighted by P. Here D = 8/2 + 4/4 + 0/4 = 5.
#
# **Predict.** What are the three entries of dT? And what is their sum?
#
# <details><summary>Answer</summary>
#
# (½ · (8 − 5), ¼ · (4 − 5), ¼ · (0 − 5)) = (1.5, −0.25, −1.25). Their sum is 0, as it must be, because adding
# the same number to all scores changes nothing. If a row of dT does not add up to 0, it is wrong.
#
# </details>
#
# In words: if you raise the score of a key, the output moves **toward that key's value and away from the
# mean**, in proportion to the key's weight. The value 4 is below the mean 5, so key 1 pulls the output down,
# although 4 is positive. Without D it would pull it up.

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
# It looks as if you need a whole row of P and dP to compute D, before you can compute the first dT. But D was
# 5, and so was O. That is no coincidence:
#
# $$D_i = \sum_j P_{ij}\,dP_{ij} = \sum_j P_{ij} \sum_c dO_{ic} V_{jc} = \sum_c dO_{ic} \sum_j P_{ij} V_{jc} = \sum_c dO_{ic}\,O_{ic}.$$
#
# So **D = rowsum(dO * O)**. It follows from O, which the forward pass has stored anyway, and no row of P is
# needed.
#
# And P itself? The forward pass has discarded it. With lesson 01's `m` and `l`, P[j] = exp(T[j] − m) / l.
# Both fit into one number, **L = m + ln l**, the [**log-sum-exp**](../docs/glossary.md) of the row: then
# P[j] = exp(T[j] − L). The scores are computed a second time, from q, k and w, and only L is stored.
#
# **Predict.** In the table above, l = 4 is the sum of exp(T). Lesson 01 subtracts the largest score first:
# m = ln 2, and then l = 1 + ½ + ½ = 2. What is L? And what is exp(0 − L), the weight of key 1 or 2?
#
# <details><summary>Answer</summary>
#
# L = ln 2 + ln 2 = ln 4 = 1.386, and exp(−ln 4) = 1/4.
#
# </details>
#
# ## Exercise 12.1 · softmax_backward · about four lines
#
# Now do all rows at once. Return P and dT, both (N, N).
#
# | given | shape | |
# |---|---|---|
# | `t` | (N, N) | the scores after the convolution, −∞ where j > i |
# | `log_sum` | (N,) | L |
# | `v`, `o`, `d_o` | (N, d) | |
#
# - Use L and o as you receive them, without a softmax and without autograd. The kernels of lesson 13 see one
#   tile at a time, never a whole row, so nothing here may need a whole row. The check also passes an L and an
#   o that do not belong to `t` and `v`.
# - Don't modify the inputs.
#
# <details><summary>Hint 1: one number per row</summary>
#
# `log_sum[:, None]` is a column, (N, 1), so `t - log_sum[:, None]` subtracts from each row its own number.
# `(d_o * o).sum(1, keepdim=True)` already is such a column.
#
# </details>
# <details><summary>Hint 2: the masked half</summary>
#
# There is nothing to do: exp(−∞) is 0, so P is 0 there, and 0 times anything finite is 0.
#
# </details>


# %% tags=["exercise"]
def softmax_backward(t, log_sum, v, o, d_o):
    """Return (P, dT), both (N, N), from the scores, their log-sum-exp and the gradient
    of the output."""
    # BEGIN SOLUTION 12.1
    p = torch.exp(t - log_sum[:, None])
    d_p = d_o @ v.T
    d = (d_o * o).sum(1, keepdim=True)
    return p, p * (d_p - d)
    # END SOLUTION


# %% tags=["check"]
check.ex12_1(softmax_backward)

# %% [markdown]
# ## 3. The convolution: which outputs read this score?
#
# Let's start in one dimension, with whole numbers. Take four scores s = (1, 2, 0, 3) and three taps w = (2,
# 1, 5). Position j reads its left neighbour, itself and its right neighbour: t[j] = 2·s[j−1] + 1·s[j] +
# 5·s[j+1], with 0 outside. Written as a table, with one row for each t:
#
# | | s[0] = 1 | s[1] = 2 | s[2] = 0 | s[3] = 3 | |
# |---|---|---|---|---|---|
# | t[0] | 1 | 5 | | | 11 |
# | t[1] | 2 | 1 | 5 | | 4 |
# | t[2] | | 2 | 1 | 5 | 19 |
# | t[3] | | | 2 | 1 | 3 |
#
# In the forward pass you read along a **row**: which scores did t[1] read? In the
# backward pass you read down a **column**: which outputs read s[1]? Its left neighbour
# t[0] did, with the tap 5; t[1] itself did, with 1; and its right neighbour t[2] did,
# with 2. Down a column, the taps come in the order 5, 1, 2: they are **reversed**. You
# need no special rule about convolutions for this: my right neighbour has me on its
# left.
#
# **Predict.** Let dt = (1, 0, 2, 10). Then ds[1] = 5 · 1 + 1 · 0 + 2 · 2 = 9. What are ds[2] and ds[3]?

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
# ds[2] = 5·0 + 1·2 + 2·10 = 22 and ds[3] = 5·2 + 1·10 = 20. The backward pass multiplies by the *transposed*
# table. That is why it is called a **transposed convolution**.
#
# Now two dimensions. With P_q = c_q − 1 and P_k = (c_k − 1) // 2, lesson 09 computed
#
# $$T_{ij} = \sum_{a,b} w_{ab}\; S0_{\,i - P_q + a,\; j - P_k + b}\,.$$
#
# The left picture shows the scores that one T reads: its own row and the rows above, with columns on both
# sides. The right picture shows the T that read one S0: its own row and the rows **below**. Four taps cannot
# be centred (here there is one column to the left and two to the right), and in the right picture the sides
# are swapped. Each cell shows its tap, a and b.


# %% jupyter={"source_hidden": true}
def draw_window(axes, title, centre, cells, colour):
    """Draw a 7×7 matrix. `cells` maps (row, column) to the tap written there;
    `centre` is outlined."""
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
# **On paper.** Which T has read S0[r, c] with the tap (a, b)? Check your answer against the picture: S0[3, 2]
# with the tap 0,0 is read by T[5, 3]. Then write dS0[r, c] as a sum over a and b.
#
# <details><summary>Answer</summary>
#
# Put r = i − P_q + a and solve for i. In the same way, put c = j − P_k + b and solve for j. The reader is
# T[r + P_q − a, c + P_k − b], so
#
# $$dS0_{rc} = \sum_{a,b} w_{ab}\; dT_{\,r + P_q - a,\; c + P_k - b}\,,\qquad\text{with 0 outside.}$$
#
# </details>
#
# ## Exercise 12.2 · transposed_convolve · four to eight lines
#
# Return dS0, (N, N), for `d_t` (N, N) and `w` (c_q, c_k). Four loops are fine (the check has up to 41 tokens,
# and is patient). So is `conv2d` with `pad`, once you know what to flip and which sides to pad. Here and in
# the following exercises, use the formulas. Don't use autograd, `torch.nn.grad` or the gradient functions of
# the `kernels` package: we need them for comparison.
#
# <details><summary>Hint 1: with loops</summary>
#
# Begin with `torch.zeros_like(d_t)`. For all i, j, a, b: `r, c = i - P_q + a, j - P_k + b`. If this cell
# exists (`0 <= r < n` and `0 <= c < n`), T[i, j] read it, so it gets `w[a, b] * d_t[i, j]`. These loops run
# over the readers, so you don't have to flip the taps.
#
# </details>
# <details><summary>Hint 2: with conv2d</summary>
#
# `conv2d(x[None, None], w[None, None])[0, 0]` is the window sum of lesson 09 at the positions that need
# nothing from outside. Rotate the taps by 180°: `w.flip(0, 1)`. `pad(x, (left, right, above, below))` adds
# zeros. Look at the right picture: how many rows of T below, how many columns to the left, how many to the
# right?
#
# </details>


# %% tags=["exercise"]
def transposed_convolve(d_t, w):
    """Return dS0 (N, N), the gradient of the convolution with respect to the scores.
    d_t: (N, N), w: (c_q, c_k)."""
    # BEGIN SOLUTION 12.2
    c_q, c_k = w.shape
    left = (c_k - 1) // 2
    room = pad(d_t, (c_k - 1 - left, left, 0, c_q - 1))
    return conv2d(room[None, None], w.flip(0, 1)[None, None])[0, 0]
    # END SOLUTION


# %% [markdown]
# Before you run the check, measure. All you need is the forward pass. The package has it, with a batch and a
# head dimension in front.


# %%
def convolve(s0, w):
    """Convolve as in the forward pass: s0 (N, N), w (c_q, c_k)."""
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
# Ask the same question again. Which numbers did the tap w[0] = 2 contribute to? To **every** t: to t[j] with
# strength s[j − 1], the score that it was multiplied by. So dw[0] = Σ_j dt[j] · s[j − 1].
#
# | | t[0] | t[1] | t[2] | t[3] | |
# |---|---|---|---|---|---|
# | dt | 1 | 0 | 2 | 10 | |
# | multiplied by w[0] | 0 | 1 | 2 | 0 | dw[0] = 0 + 0 + 4 + 0 = 4 |
# | multiplied by w[1] | 1 | 2 | 0 | 3 | dw[1] = 1 + 0 + 0 + 30 = 31 |
# | multiplied by w[2] | 2 | 0 | 3 | 0 | dw[2] = ? |
#
# **Predict** dw[2].


# %%
def convolve_row(s, w):
    """Return t of the one-dimensional example."""
    return conv1d(pad(s, (1, 1))[None, None], w[None, None])[0, 0]


print(
    "dw, measured:",
    [
        round(slope, 6)
        for slope in slopes(lambda w: convolve_row(s, w) @ dt, w).tolist()
    ],
)

# %% [markdown]
# dw[2] = 2 + 0 + 6 + 0 = 8. Nothing is reversed here: dt and s are aligned as they were in the forward pass.
#
# **On paper.** In two dimensions, which score was multiplied by the tap (a, b) in T[i, j]? Then dW[a, b] is a
# sum over all i and j.
#
# <details><summary>Answer</summary>
#
# You find it in the formula of the forward pass:
#
# $$dW_{ab} = \sum_{i,j} dT_{ij}\; S0_{\,i - P_q + a,\; j - P_k + b}\,,\qquad\text{with 0 outside.}$$
#
# </details>
#
# A few taps collect from all N² scores. (With several sequences in a batch, all of them contribute to the
# same taps, so the sum also runs over the batch. Each head has its own taps.)
#
# ## Exercise 12.3 · tap_gradient · about six lines
#
# Return dW, a tensor of shape (c_q, c_k).
#
# <details><summary>Hint 1: pad once</summary>
#
# Pad `s0` as in lesson 09: P_q rows of zeros above, P_k columns to the left, c_k − 1 − P_k to the right. Call
# the result `room`. Then S0[i − P_q + a, j − P_k + b] is `room[i + a, j + b]`.
#
# </details>
# <details><summary>Hint 2: one tap</summary>
#
# The scores that the tap (a, b) was multiplied by, for all i and j at once, are the slice `room[a : a + n, b
# : b + n]`. Multiply it by `d_t` and sum.
#
# </details>


# %% tags=["exercise"]
def tap_gradient(d_t, s0, c_q, c_k):
    """Return dW (c_q, c_k), the gradient of the convolution with respect to its taps.
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
# There are two masks, one on each side of the convolution. The second one, −∞ in T, needs no attention: P is
# 0 there, so dT is 0. The first one does.
#
# Look at query 1 of three tokens, again as a single row. It may see keys 0 and 1. The score of key 2 was S =
# 7, and the mask replaced it with 0 before the convolution read it. With the taps (2, 1, 5) and dt = (1, −1,
# 0):
#
# | | key 0 | key 1 | key 2 |
# |---|---|---|---|
# | S | 1 | 2 | 7 |
# | S0 | 1 | 2 | **0** |
# | dS0, by your transposed convolution | 1·1 + 2·(−1) = −1 | 5·1 + 1·(−1) = 4 | 5·(−1) = **−5** |
# | dS | −1 | 4 | ? |
#
# **Predict** the last cell with the one question. Which numbers did the 7 contribute to?
#
# <details><summary>Answer</summary>
#
# To none, so dS = 0. The −5 is correct, but it is the gradient of S0[2], which is a constant 0. T[1] did read
# that 0, with strength 5, and if the 0 were a 1, the loss would fall by 5. But nothing in q or k can make it
# a 1. If a mask replaces a number with a constant, that number has gradient 0.
#
# </details>
#
# So **dS = dS0 where j ≤ i, and 0 elsewhere**. Autograd does this for you in `masked_fill`, silently. By
# hand, it is easy to forget.

# %%
row, d_row = torch.tensor([1.0, 2, 7]), torch.tensor([1.0, -1, 0])
past = torch.tensor([1.0, 1, 0])
print(
    "dS, measured:",
    [
        round(slope, 6)
        for slope in slopes(lambda s: convolve_row(s * past, w) @ d_row, row).tolist()
    ],
)

# %% [markdown]
# ## 6. Queries and keys, and all of it together
#
# S = scale · Q Kᵀ is a product of matrices again. Q[i, c] contributed to every S[i, j], with strength scale ·
# K[j, c]. K[j, c] contributed to every S[i, j], with strength scale · Q[i, c]:
#
# $$dQ = \text{scale} \cdot dS\, K,\qquad dK = \text{scale} \cdot dS^\top Q.$$
#
# That is all. Here is the way back, in the order in which a program takes the steps:
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
# The package provides the results of the forward pass, for one head: `masked_scores(q, k)` is S0 (scaled and
# masked with 0), and `conv_scores(q, k, w)` is T.

# %%
masked_scores = reference.masked_scores


def conv_scores(q, k, w):
    """Return T (N, N) of one head: convolved, -inf in the future."""
    return reference.conv_scores(q[None, None], k[None, None], w[None])[0, 0]


def conv_attention(q, k, v, w):
    """Return (O, L) of one head, shapes (N, d) and (N,)."""
    t = conv_scores(q, k, w)
    return torch.softmax(t, 1) @ v, torch.logsumexp(t, 1)


# %% [markdown]
# ## Exercise 12.4 · conv_attention_backward · about six lines
#
# Return the tuple `(dQ, dK, dV, dW)`, shaped like q, k, v and w. Use your three functions, and L and o as you
# receive them. Don't use autograd.
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
# It is 1 / √d, and d is `q.shape[1]`. It is a factor of dQ and of dK. It is not a second factor of dW,
# because `s0` already contains it.
#
# </details>


# %% tags=["exercise"]
def conv_attention_backward(q, k, v, w, o, log_sum, d_o):
    """Return (dQ, dK, dV, dW) of causal convolutional attention, one head."""
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
# We have three references. Autograd takes the package's forward pass apart step by
# step. Finite differences only run that forward pass. The package's own backward pass
# is derived by hand. All three compute the scores with the same functions, which lesson
# 09 compared with loops, but each has its own way back. The taps have odd, even and
# non-square sizes. One case has more taps than tokens, and one has a single token.

# %%
NAMES = "dQ", "dK", "dV", "dW"


def case(n, d, c_q, c_k):
    """Return random (q, k, v, w) and d_o."""
    return (*torch.randn(3, n, d), torch.randn(c_q, c_k)), torch.randn(n, d)


def by_autograd(inputs, d_o):
    """Return the gradients that autograd computes."""
    inputs = [x.clone().requires_grad_() for x in inputs]
    o, _ = conv_attention(*inputs)
    return torch.autograd.grad(o, inputs, d_o)


def by_slopes(inputs, d_o):
    """Return finite differences: change one input, keep the other three."""

    def loss_of(place):
        return lambda x: (
            conv_attention(*inputs[:place], x, *inputs[place + 1 :])[0] * d_o
        ).sum()

    return [slopes(loss_of(place), x) for place, x in enumerate(inputs)]


def by_package(inputs, d_o):
    """Return the gradients of the package's backward pass by hand."""
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
    for other, tolerance in (
        (by_autograd, 1e-11),
        (by_slopes, 1e-6),
        (by_package, 1e-11),
    ):
        near.append(
            all(
                error(got, wanted) < tolerance
                for got, wanted in zip(mine, other(inputs, d_o))
            )
        )
    print(f"{n:3}{d:3}{c_q:5}×{c_k:<2}   {near[0]!s:>14}{near[1]!s:>14}{near[2]!s:>16}")

# %% [markdown]
# ### On a real GPU, if you have one
#
# Plain PyTorch runs wherever its tensors are. The next cell prints the same line with and without a GPU.

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
print("on this device, within 1e-10 of autograd on the CPU:", all(near))

# %% [markdown]
# ## In three lines
# - One question gives every gradient: which numbers did this number contribute to, and how strongly? Add up
#   strength × gradient over all of them.
# - Softmax: dT = P * (dP − D). Convolution: the gradient uses the columns of the table instead of its rows, so
#   the taps are reversed. Mask: a number that was replaced with a constant has gradient 0.
# - Store L and O, and recompute the rest. Test in float64, with inputs that have no symmetry and do not fit
#   into one tile.
#
# **You can now** derive a backward pass, and validate it with three references.
#
# **Read on:** Dao, Fu, Ermon, Rudra, Ré, *FlashAttention* (2022, arXiv:2205.14135), appendix B, derives the
# backward pass of attention with D and the log-sum-exp. Dumoulin and Visin, *A guide to convolution
# arithmetic for deep learning* (2016, arXiv:1603.07285), explains transposed convolutions with pictures.
# PyTorch's documentation has a note "Gradcheck mechanics".
#
# **Next:** [lesson 12b](12b_wrong_gradients.ipynb) hands your gradients to autograd, and infers mistakes from wrong
# values. [Lesson 13](13_conv_backward.ipynb) turns this way back into kernels, tile by tile.
