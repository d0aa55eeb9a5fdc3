# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 01 · Online softmax, by hand
#
# **60 minutes** · needs: Python, a little PyTorch, exponentials, a pencil · builds on: nothing, this is the first lesson
#
# You will be able to
#
# 1. compute a softmax-weighted mean while you read each number once and then forget it;
# 2. say why a running maximum is needed, and show what breaks without it;
# 3. merge two halves that were computed apart, in any order.
#
# Attention gives every token a **score** (how much it matters) and a **value** (what it has to say). Its output is the mean of
# the values, weighted by the softmax of the scores. A fast **kernel** (a program that runs on a GPU) never holds all the scores at
# once. This lesson shows how it can still get the softmax exactly right. Whatever later lessons do with many threads and long texts
# comes down to the merge that you will write here in four lines.
#
# How to work: read, and run the cells one by one with Shift + Enter. Where you meet `___`, write down your guess *before* you run the next
# cell. Where you meet a line `raise NotImplementedError(...)`, put your own code in its place and leave the rest of the cell as it is.

# %% [markdown]
# ## The idea in one picture
#
# A softmax wants to know the largest score before it starts. When scores arrive one at a time, nobody knows it yet. So guess:
# the largest **so far**. When a larger one arrives, everything collected until then was measured in too small a unit, and *one*
# multiplication puts all of it right. Nothing has to be read again.
#
# In the picture `m` is the largest score so far, and `l` is the sum of the bars. (The next two cells load what we need and draw;
# run them, there is no need to read them.)

# %%
import itertools
import math
from fractions import Fraction

import matplotlib.pyplot as plt
import torch

from course import check, show_figure
from course.figures import BLUE, ORANGE

scores, values = [1.0, 0.0, 2.0], [10.0, 40.0, 6.0]

# %% jupyter={"source_hidden": true}
seen = [3.0, 2.2, 3.5]
figure, panels = plt.subplots(1, 3, figsize=(9, 2.8), sharey=True, layout="constrained")
for read, panel in enumerate(panels, start=1):
    m = max(seen[:read])
    heights = [math.exp(score - m) for score in seen[:read]]
    panel.bar(range(read), heights, color=[BLUE] * (read - 1) + [ORANGE], width=0.6)
    for place, height in enumerate(heights):
        panel.text(place, height + 0.02, f"{height:.2f}", ha="center")
    panel.set(
        xlim=(-0.6, 2.6),
        ylim=(0, 1.25),
        xticks=range(read),
        xticklabels=[f"score {score:g}" for score in seen[:read]],
    )
    panel.set_title(f"{read} read:  m = {m:g},  l = {sum(heights):.2f}", fontsize=11)
    panel.spines[["top", "right"]].set_visible(False)
panels[0].set_ylabel("exp(score − m)")
panels[2].bar(
    [0, 1],
    [math.exp(0), math.exp(-0.8)],
    fill=False,
    edgecolor=BLUE,
    linestyle="--",
    width=0.6,
)
panels[2].text(0.5, 1.08, "both × 0.61", ha="center", color=BLUE)
show_figure(
    figure,
    "three bar charts, after one, two and three scores were read; the newest bar is "
    "orange. Score 3 arrives: one bar of height 1, so m = 3 and l = 1. "
    "Score 2.2 arrives and is no new maximum: its bar of 0.45 joins the first, "
    "l = 1.45. Score 3.5 arrives and is the new maximum, with a bar of height 1: "
    "the two earlier bars shrink to 0.61 and 0.27, both by the factor 0.61, "
    "and l = 1.88. Dashed outlines show how high they stood before.",
)

# %% [markdown]
# ## Three numbers on paper
#
# Take a pencil. The scores are **1, 0, 2**, the values **10, 40, 6**.
#
# First the usual way, which reads the scores twice: once for the maximum, which is 2, and once for the sums.
#
# | | | | | sum |
# |---|---|---|---|---|
# | score | 1 | 0 | 2 | |
# | score − 2 | −1 | −2 | 0 | |
# | exp(score − 2) | e⁻¹ = 0.3679 | e⁻² = 0.1353 | 1 | 1 + e⁻¹ + e⁻² = **1.5032** |
# | exp × value | 10e⁻¹ = 3.6788 | 40e⁻² = 5.4134 | 6 | 6 + 10e⁻¹ + 40e⁻² = **15.0922** |
#
# The weighted mean is the second sum divided by the first, 15.0922 / 1.5032 = **10.0400**. (Exactly, with both sums multiplied by e²:
# (6e² + 10e + 40) / (e² + e + 1).) The softmax itself is the third row divided by 1.5032: the weights 0.2447, 0.0900 and 0.6652.
# The 40 is the largest value, but it has the smallest score, and so only 9 % of the weight.
#
# Now **online**: each pair is read once, in order, and is then gone. Keep three numbers:
#
# - `m`, the largest score so far;
# - `l`, the sum of exp(score − m) so far: the sum of the weights, before the division;
# - `o`, the sum of exp(score − m) · value so far: the output, before it is divided.
#
# | just read | m | l | o | o / l |
# |---|---|---|---|---|
# | nothing yet | −∞ | 0 | 0 | |
# | score 1, value 10 | 1 | 1 | 10 | 10 |
# | score 0, value 40 | 1 | 1 + e⁻¹ = 1.3679 | 10 + 40e⁻¹ = 24.7152 | 18.0682 |
# | score 2, value 6 | 2 | ? | ? | ? |
#
# The second score is smaller than the first: `m` stays, and the new pair is added with the weight exp(0 − 1). The third is a new
# maximum. Now exp(score − m) is e^score / e^m: so far, every score was measured in units of e¹. From now on the unit is e².
#
# ### Exercise 1.0 · predict the factor
#
# By which number must the old `l` and the old `o` be multiplied? Put your number in place of the `raise` line, with `return`
# in front; two digits are enough. Then run the cell and the check below it.
#
# <details><summary>Hint 1: a smaller question</summary>
#
# The old `l` contains a 1: that was exp(1 − 1), the first score. What is the same score worth against the new maximum?
# </details>
#
# <details><summary>Hint 2: one rule for all old terms</summary>
#
# Each old term was exp(score − 1) and must become exp(score − 2). The quotient of the two is the same for every score.
# </details>


# %% tags=["exercise"]
def my_factor():
    # BEGIN SOLUTION 1.0
    return 0.37  # exp(1 − 2): exp(old maximum − new maximum)
    # END SOLUTION


# %% tags=["check"]
check.ex01_0(my_factor)

# %% [markdown]
# So exp(old maximum − new maximum) it is, and the last row of the page becomes
#
# | just read | m | l | o | o / l |
# |---|---|---|---|---|
# | score 2, value 6 | 2 | (1 + e⁻¹) · e⁻¹ + 1 = 1 + e⁻¹ + e⁻² = **1.5032** | (10 + 40e⁻¹) · e⁻¹ + 6 = 6 + 10e⁻¹ + 40e⁻² = **15.0922** | **10.0400** |
#
# These are, term by term, the sums of the usual way. Note that `o / l` is the right answer after *every* row, for what was read until
# then. But `o` itself is divided only once, at the very end.
#
# **Predict, then run:** what will `torch.softmax` say to the weights 0.2447, 0.0900 and 0.6652, and to the 10.0400?

# %%
weights = torch.softmax(torch.tensor(scores), dim=0)
print("weights      ", [f"{weight:.4f}" for weight in weights.tolist()])
print("weighted mean", f"{weights @ torch.tensor(values):.4f}")

# %% [markdown]
# ### The same page without e
#
# The method does not depend on e (the numbers do). With powers of 2 instead, the page holds plain fractions, and you can check every one of them in your head:
# an old term shrinks by 2^(old maximum − new maximum).
#
# | just read | m | l | o | o / l |
# |---|---|---|---|---|
# | nothing yet | −∞ | 0 | 0 | |
# | score 1, value 10 | 1 | 1 | 10 | 10 |
# | score 0, value 40 | 1 | 1 + 1/2 = 3/2 | 10 + 40/2 = 30 | 20 |
# | score 2, value 6 | 2 | 3/2 · 1/2 + 1 = 7/4 | 30 · 1/2 + 6 = 21 | 12 |
#
# The usual way agrees: the weights are to one another as 2 : 1 : 4, and (2·10 + 1·40 + 4·6) / 7 = 84/7 = 12. This is no toy. NVIDIA's
# GPUs have an instruction for 2ˣ and none for eˣ, so a fast kernel multiplies the scores by log₂ e = 1.4427, works in base 2, and gets
# the softmax in base e.

# %% [markdown]
# ## Exercise 1.1 · online_softmax · about six lines
#
# Turn what you did on the page into a function, in base e. `pairs` gives (score, value) pairs **once**: use a single `for` loop, with no indexing and
# no list. (The check looks whether you keep the pairs.) Return the state `(m, l, o)` after the last pair, or after no pair at all. Do not divide.
#
# A score is a Python number, so `math.exp` and `max` will do. A value is a number or a NumPy array (in attention it is a vector).
# `factor * value` and `+` work for both. Leave the values as they are: on an array, `+=` and `*=` would write into it.
#
# <details><summary>Hint 1: where to start</summary>
#
# The first row of the page is the state before the loop. In Python, −∞ is `-math.inf`, and `math.exp(-math.inf)` is 0.0. So the very
# first score needs no `if`, as long as it is finite: it is a new maximum, and shrinking 0 by the factor 0 does no harm.
# </details>
#
# <details><summary>Hint 2: one step</summary>
#
# Do you need one case for a new maximum and one for none? Take `new_m = max(m, score)`. If `m` stays, exp(m − new_m) = exp(0) = 1, and
# "shrinking" changes nothing. So one formula serves both.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# In the loop: `new_m = max(m, score)`, then `shrink = math.exp(m - new_m)`, then `weight = math.exp(score - new_m)`. Both `l` and `o` are
# shrunk and then get the new term: `weight` for `l`, `weight * value` for `o`. `m` becomes `new_m` last: the factor still needs the old one.
# </details>


# %% tags=["exercise"]
def online_softmax(pairs):
    """Read (score, value) pairs once, in order; return their state (m, l, o)."""
    # BEGIN SOLUTION 1.1
    m, l, o = -math.inf, 0.0, 0.0
    for score, value in pairs:
        new_m = max(m, score)
        shrink, weight = math.exp(m - new_m), math.exp(score - new_m)
        m, l, o = new_m, l * shrink + weight, o * shrink + weight * value
    return m, l, o
    # END SOLUTION


# %% tags=["check"]
check.ex01_1(online_softmax)

# %% [markdown]
# A check draws new random numbers every time. When it rejects an answer it prints their seed, and `check.ex01_1(online_softmax, seed=…)`
# tries exactly the same numbers again. When it accepts one, it also ticks the exercise in your ledger. (To see the ledger, run
# `from course import progress` and `progress()` in a cell of your own.)
#
# Now the page, row by row, from your own code:

# %% tags=["uses-exercise"]
for read in range(len(scores) + 1):
    m, l, o = online_softmax(zip(scores[:read], values[:read]))
    print(
        f"{read} read:  m = {m:4}   l = {l:.4f}   o = {o:7.4f}",
        f"  o / l = {o / l:.4f}" if l else "",
    )

# %% [markdown]
# ## Bug hunt: who needs a maximum?
#
# On paper the maximum cancels: e^(score − m) = e^score / e^m, above and below the line alike. So textbooks write the softmax without it, and the
# short function below does too. On paper, too, adding the same number to all scores changes nothing.
#
# It computes in float32, as most of our kernels will. The largest float32 number is about 3.4·10³⁸, which is e^88.7; the smallest above zero is about
# 1.4·10⁻⁴⁵, which is e^−103.
#
# **Guess before you run.** To the scores 1, 0, 2 we add 0, 50, 86, 100 and −150. The right answer is always 10.04. Which rows will be
# right: `___` ? What will the others show: `___` ?

# %%
# the text below is the same on both
device = "cuda" if torch.cuda.is_available() else "cpu"


def shifted(shift):
    """The page's scores with `shift` added to each, and its values, in float32."""
    return torch.tensor(scores, device=device) + shift, torch.tensor(
        values, device=device
    )


def without_maximum(scores, values):
    weights = torch.exp(scores)
    return ((weights * values).sum() / weights.sum()).item()


for shift in (0, 50, 86, 100, -150):
    print(f"{shift:5} added:  {without_maximum(*shifted(shift)):6.2f}")

# %% [markdown]
# <details><summary>What happened in each row?</summary>
#
# - **50**: e⁵² is about 4·10²². Large, but it fits. A test with such scores passes, and that is how this bug gets into programs.
# - **86**: e⁸⁸ = 1.7·10³⁸ still fits, and so does the sum of the weights. But 6 · e⁸⁸ does not. It becomes `inf`, and `inf` divided by a finite number is `inf`.
# - **100**: e¹⁰² is `inf` itself, and `inf / inf` is `nan`, "not a number".
# - **−150**: the other end. e⁻¹⁴⁸ is too small for any float32 but 0, and `0 / 0` is `nan` as well.
#
# With the maximum subtracted the largest weight is exp(0) = 1. So `l` lies between 1 and the count of scores: it can neither overflow nor be 0. Scores
# far below the maximum still become 0, but they did not matter anyway.
# </details>
#
# Your function subtracts the maximum. Does it care how much is added? (It computes with Python's numbers, which are float64 and reach to e^709. So that the
# comparison is fair, its scores go to ±800 and farther: there float64 without a maximum fails as well.)

# %% tags=["uses-exercise"]
print("added   with the maximum   without it, in float64")
for shift in (0, 50, 100, -150, 800, -800, 100_000):
    shifted64 = torch.tensor(scores, dtype=torch.float64) + shift
    bare = without_maximum(shifted64, torch.tensor(values, dtype=torch.float64))
    m, l, o = online_softmax(
        (score + shift, value) for score, value in zip(scores, values)
    )
    print(f"{shift:7}{o / l:16.2f}{bare:22.2f}")

# %% [markdown]
# ### A bug that hides better
#
# Here is another answer to exercise 1.1: everything is right, except that `m` starts at **0** in place of −∞. If a score is above 0, it becomes the
# maximum, and no harm is done. If none is, `m` stays 0 to the end. The function below computes what comes out then.
#
# **Guess before you run:** again the right answer is always 10.04. Which of the seven rows are wrong: `___` ? And which of the wrong ones would a reader notice: `___` ?


# %%
def maximum_from_zero(scores, values):
    m = max(0.0, scores.max().item())  # a running maximum that starts at 0 ends here
    weights = torch.exp(scores - m)
    return ((weights * values).sum() / weights.sum()).item()


for shift in (100, 0, -50, -100, -103, -104, -150):
    print(f"{shift:5} added:  {maximum_from_zero(*shifted(shift)):6.2f}")

# %% [markdown]
# From −50 on, 0 is no maximum at all, but any `m` does as a unit while the weights keep their digits: 0 is as good as −48. At −150 all weights are 0, we
# divide 0 by 0, and the NaN tells us. The dangerous rows lie between: near e^−103 float32 has only a few steps left above 0, so each weight is rounded to a whole
# number of them. At −100 the third digit is wrong. At −103 and −104 the ratios of the weights are wrong, and what comes out, 9.33 and 6.80, looks like any other mean. **No NaN, no warning, a wrong
# answer.** A test with scores near zero that compares only the answer never finds it. A GPU kernel that you will complete in lesson 05 was published with it.
#
# The check of exercise 1.1 finds it: it also compares `m` itself, for scores that are all negative.

# %% [markdown]
# ## Two readers
#
# Two people share the work. The first reads the scores 1 and 0, the second reads the score 2. Neither sees the other's numbers. When both are done they hold
#
# | | m | l | o |
# |---|---|---|---|
# | first reader | 1 | 1 + e⁻¹ = 1.3679 | 10 + 40e⁻¹ = 24.7152 |
# | second reader | 2 | 1 | 6 |
#
# **Predict** the state of one person who had read all three. `m` = `___` , `l` = `___` , `o` = `___`
#
# <details><summary>Answer</summary>
#
# The last row of the page: (2, 1.5032, 15.0922). The common unit is e², for the larger maximum. The first reader's sums shrink by exp(1 − 2), the second
# reader's by exp(2 − 2) = 1. Then they are in the same unit and can be added.
# </details>
#
# ### Exercise 1.2 · merge · about four lines
#
# Write `merge(left, right)`: two states in, unchanged, and one state out, the one that a single reader of everything would have. Two demands:
#
# - it must not matter who is left and who is right, nor who merges with whom first;
# - someone who has read nothing yet, `(-math.inf, 0.0, 0.0)`, must change nothing, even when *both* have read nothing.
#
# <details><summary>Hint 1: which maximum?</summary>
#
# The larger of the two. Each side then has a factor of its own, exp(its own maximum − the common one), for its `l` and its `o`. The side with the
# larger maximum has the factor 1.
# </details>
#
# <details><summary>Hint 2: what is −∞ − (−∞)?</summary>
#
# `nan`: it has no value, and whatever it touches becomes `nan`. It turns up only if both maxima are −∞. But then `l` and `o` are 0 on both sides, so the
# factor might be anything. Choose 0 where a side's own maximum is −∞.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# `m = max(m1, m2)`, then `f1 = math.exp(m1 - m) if m1 > -math.inf else 0.0`, and `f2` likewise. Then `l` is `f1 * l1 + f2 * l2`, and `o` is made in the
# same way.
# </details>


# %% tags=["exercise"]
def merge(left, right):
    """The state of one reader who read what `left` and `right` read;
    each state is (m, l, o)."""
    (m1, l1, o1), (m2, l2, o2) = left, right
    # BEGIN SOLUTION 1.2
    m = max(m1, m2)
    f1 = math.exp(m1 - m) if m1 > -math.inf else 0.0
    f2 = math.exp(m2 - m) if m2 > -math.inf else 0.0
    return m, f1 * l1 + f2 * l2, f1 * o1 + f2 * o2
    # END SOLUTION


# %% tags=["check"]
check.ex01_2(merge)

# %% tags=["uses-exercise"]
first, second = online_softmax([(1.0, 10.0), (0.0, 40.0)]), online_softmax([(2.0, 6.0)])
both_ways = {
    "merged": merge(first, second),
    "merged, the other way": merge(second, first),
}
for name, state in {"first": first, "second": second, **both_ways}.items():
    print(f"{name:<22} m = {state[0]:g}   l = {state[1]:.4f}   o = {state[2]:7.4f}")

# %% [markdown]
# ## Why any order will do
#
# A state is a shorthand for two plain sums over the scores that were read:
#
# $$l \cdot e^m = \sum e^{\text{score}}, \qquad o \cdot e^m = \sum e^{\text{score}} \cdot \text{value}.$$
#
# `m` is only the unit in which they are written, chosen so that nothing overflows. In these terms, `merge` takes the larger `m` and **adds** the two
# plain sums. Maximum and addition do not care about order or brackets. So `merge` does not either: it is *commutative*, merge(a, b) = merge(b, a), and
# *associative*, merge(merge(a, b), c) = merge(a, merge(b, c)). And (−∞, 0, 0) stands for two sums of nothing, which are 0.
#
# That was about real numbers. Let us see it with numbers that are not rounded: in base 2, with fractions. Four people hold one pair each. Pick a
# left and a right one among the four and merge them (12 choices), then among the three that are left (6), then the last two (2): 12 · 6 · 2 = 144
# ways to go about it.
#
# **Predict:** how many different results?


# %%
def merge_base_2(left, right):
    """merge with 2 in place of e; whole scores keep every number a fraction."""
    (m1, l1, o1), (m2, l2, o2) = left, right
    m = max(m1, m2)
    f1, f2 = Fraction(2) ** (m1 - m), Fraction(2) ** (m2 - m)
    return m, f1 * l1 + f2 * l2, f1 * o1 + f2 * o2


def every_way(states, merge):
    """The final states of all the ways in which these people can merge,
    two at a time."""
    if len(states) == 1:
        return states
    results = []
    for i, j in itertools.permutations(range(len(states)), 2):
        others = [state for place, state in enumerate(states) if place not in (i, j)]
        results += every_way([merge(states[i], states[j]), *others], merge)
    return results


four_people = [(1, 1, 10), (0, 1, 40), (2, 1, 6), (5, 1, -3)]
results = every_way(four_people, merge_base_2)
print(f"{len(results)} ways, {len(set(results))} result: m, l, o =", *results[0])

# %% [markdown]
# One. This is one of the 144 ways, a tree: each circle holds `m`, `l` and `o`, and each merge adds in the unit of the larger m.


# %% jupyter={"source_hidden": true}
def draw_tree(leaves, merge):
    """The states of the leaves below, merged in pairs upwards to a single one."""
    figure, axes = plt.subplots(figsize=(9, 3.6), layout="constrained")
    row, height = [(3 * place, state) for place, state in enumerate(leaves)], 0
    while row:
        for x, (m, l, o) in row:
            words = f"m = {m}\nl = {float(l):g}\no = {float(o):g}"
            box = {"boxstyle": "round", "facecolor": "white", "edgecolor": BLUE}
            axes.text(x, height, words, ha="center", va="center", bbox=box)
        pairs = list(zip(row[0::2], row[1::2]))
        for (left, _), (right, _) in pairs:
            for x in (left, right):
                ends = [x, (left + right) / 2], [height + 0.35, height + 1.15]
                axes.plot(*ends, color=ORANGE, zorder=0)
        row = [((a + b) / 2, merge(one, other)) for (a, one), (b, other) in pairs]
        height += 1.5
    axes.set(xlim=(-1, 3 * len(leaves) - 2), ylim=(-0.6, height - 0.9))
    axes.axis("off")
    return figure


show_figure(
    draw_tree(four_people, merge_base_2),
    "four states side by side: (1, 1, 10), (0, 1, 40), (2, 1, 6) and (5, 1, -3). "
    "The first two are merged into (1, 1.5, 30), the last two into (5, 1.125, -2.25), "
    "and these two above them into (5, 1.21875, -0.375).",
)

# %% [markdown]
# Now your `merge`, in base e, with the numbers that a computer rounds to 53 bits:

# %% tags=["uses-exercise"]
results = every_way(four_people, merge)
spread = max(o for _, _, o in results) - min(o for _, _, o in results)
print(f"{len(results)} ways, all o within 1e-13 of one another: {spread <= 1e-13}")
print(f"all o the same to the last bit: {spread == 0}")

# %% [markdown]
# They agree, but not to the last bit: rounding does depend on the order. Keep this in mind for the day when a GPU kernel, whose blocks finish in a
# different order each time, gives a slightly different answer in each run. That is not a bug in the mathematics.
#
# ### Thirty-two readers
#
# Because any order will do, many can work at once. Thirty-two people read 1000 pairs: the first takes the pairs 0, 32, 64, …, the second takes 1, 33, 65, …, and so on.
# Then they merge in pairs, and the results in pairs again, until one state is left.
#
# **Predict:** how many rounds of merging? `___` (One after the other it would be 31 merges.)

# %% tags=["uses-exercise"]
random = torch.Generator().manual_seed(1)
many_scores = 5 * torch.randn(1000, generator=random, dtype=torch.float64)
many_values = torch.randn(1000, generator=random, dtype=torch.float64)
pairs = list(zip(many_scores.tolist(), many_values.tolist()))

states = [online_softmax(pairs[reader::32]) for reader in range(32)]
while len(states) > 1:
    print(f"{len(states):2} states, merged in pairs")
    states = [merge(left, right) for left, right in zip(states[0::2], states[1::2])]
m, l, o = by_many = states[0]
print("largest score found:", m == many_scores.max().item())

# %% [markdown]
# Five rounds, for 2⁵ = 32. Thirty-two is no accident: a GPU runs its threads in groups of 32, the *warps*, and in lesson 06 one warp will do exactly
# this, each thread holding one state in its registers.
#
# ## Validate
#
# Each row compares what you built with `torch.softmax`, in float64. The largest difference must be below 10⁻¹². (A `nan` is not below anything.)


# %% tags=["uses-exercise"]
def attend(state):
    """The last step of all: divide, once."""
    _, l, o = state
    return o / l


def by_torch(scores, values):
    return (torch.softmax(scores, dim=0) @ values).item()


page = (
    torch.tensor(scores, dtype=torch.float64),
    torch.tensor(values, dtype=torch.float64),
)
e = math.e
stages = [
    ("the page, by hand", (6 * e**2 + 10 * e + 40) / (e**2 + e + 1), by_torch(*page)),
    (
        "the page, online_softmax",
        attend(online_softmax(zip(scores, values))),
        by_torch(*page),
    ),
    ("the page, two readers", attend(merge(first, second)), by_torch(*page)),
    (
        "1000 pairs, online_softmax",
        attend(online_softmax(pairs)),
        by_torch(many_scores, many_values),
    ),
    ("1000 pairs, 32 readers", attend(by_many), by_torch(many_scores, many_values)),
]
print(f"{'stage':<28}{'against':<16}difference below 1e-12")
for stage, got, wanted in stages:
    print(f"{stage:<28}{'torch.softmax':<16}{abs(got - wanted) <= 1e-12}")

# %% [markdown]
# ## In three lines
#
# - The state `(m, l, o)` is all that a softmax-weighted mean needs to remember: the maximum so far, and two sums in units of e^m.
# - A new maximum makes both sums shrink by exp(old maximum − new maximum); without a maximum they overflow, or vanish into 0 / 0.
# - Merging two states is addition in a common unit, so any number of readers can share the work, in any order, and divide once at the end.
#
# **You can now** compute a softmax in one reading, explain to a colleague what `m` is for, and split the work among as many readers as you like.
#
# **Next:** in [lesson 02](02_flash_attention.ipynb) a reader takes in a whole *tile* of scores at a time. That is flash attention.
