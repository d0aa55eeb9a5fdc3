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
# 1. compute a softmax-weighted mean while you read each number only once;
# 2. say why a running maximum is needed, and show what breaks without it;
# 3. merge two partial results, in any order.
#
# In attention, every token has a **score** (how much it matters) and a **value** (its content). The output is the mean of the values, weighted by the softmax of the scores. A fast **kernel** (a program that runs on a GPU) never holds all the scores at once. In this lesson you see how it still gets the exact softmax. Later lessons use many threads and long sequences, and all of them rely on the merge that you write here in four lines.
#
# **How to work.** Run the cells one by one with Shift+Enter. Where you see a line `guess(...)`, replace each `...` with your guess *before* you run the cell: a number, a text in quotes, or a list such as `[0, 50]`. Or run the cell as it is and read on. Where you see a line `raise NotImplementedError(...)`, replace it with your own code and leave the rest of the cell as it is.

# %% [markdown]
# ## The idea in one picture
#
# An ordinary softmax needs the largest score before it starts. If the scores arrive one
# at a time, you do not know the largest score yet. So use the largest score **so far**.
# When a larger one arrives, everything that you have summed up was computed relative to
# the wrong maximum, and a *single* multiplication corrects all of it. You never read a
# score twice. This method is called [**online softmax**](../docs/glossary.md).
#
# In the picture, `m` is the largest score so far, and `l` is the sum of the bars. (The next two cells load some modules and draw the picture. Run them; you do not need to read them.)

# %%
import itertools
import math
from fractions import Fraction

import matplotlib.pyplot as plt
import torch

from course import check, guess, show_figure
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
# Take a pencil. The scores are **1, 0, 2** and the values are **10, 40, 6**.
#
# First compute the softmax in the usual way, which reads the scores twice: once for the maximum, which is 2, and once for the sums.
#
# | | | | | sum |
# |---|---|---|---|---|
# | score | 1 | 0 | 2 | |
# | score − 2 | −1 | −2 | 0 | |
# | exp(score − 2) | e⁻¹ = 0.3679 | e⁻² = 0.1353 | 1 | 1 + e⁻¹ + e⁻² = **1.5032** |
# | exp × value | 10e⁻¹ = 3.6788 | 40e⁻² = 5.4134 | 6 | 6 + 10e⁻¹ + 40e⁻² = **15.0922** |
#
# The weighted mean is the second sum divided by the first: 15.0922 / 1.5032 = **10.0400**. The softmax weights are the third row divided by 1.5032, that is 0.2447, 0.0900 and 0.6652. The value 40 is the largest, but its score is the smallest, so it gets only 9 % of the weight.
#
# Now compute the same mean **online**. You read each pair once, in order, and then forget it. You keep three numbers:
#
# - `m`, the largest score so far;
# - `l`, the sum of exp(score − m) so far. These are the weights before normalisation;
# - `o`, the sum of exp(score − m) · value so far. This is the output before normalisation.
#
# | pair just read | m | l | o | o / l |
# |---|---|---|---|---|
# | none yet | −∞ | 0 | 0 | |
# | score 1, value 10 | 1 | 1 | 10 | 10 |
# | score 0, value 40 | 1 | 1 + e⁻¹ = 1.3679 | 10 + 40e⁻¹ = 24.7152 | 18.0682 |
# | score 2, value 6 | 2 | ? | ? | ? |
#
# The second score is smaller than the first, so `m` does not change, and the new pair is added with weight exp(0 − 1). The third score is a new maximum. Until now, every term of `l` and `o` was divided by e¹. From now on, it has to be divided by e².
#
# ### Exercise 1.0 · predict the factor
#
# By which number must you multiply the old `l` and the old `o`? Replace the `raise` line with `return` and your number. Two digits are enough. Then run the cell and the check below it.
#
# <details><summary>Hint 1: a smaller question</summary>
#
# The old `l` contains a 1. It was exp(1 − 1), for the first score. What is the weight of the same score relative to the new maximum?
# </details>
#
# <details><summary>Hint 2: one rule for all old terms</summary>
#
# Each old term was exp(score − 1) and must become exp(score − 2). The ratio of the two is the same for every score.
# </details>


# %% tags=["exercise"]
def my_factor():
    # BEGIN SOLUTION 1.0
    return 0.37  # exp(1 − 2): exp(old maximum − new maximum)
    # END SOLUTION


# %% tags=["check"]
check.ex01_0(my_factor)

# %% [markdown]
# The factor is exp(old maximum − new maximum), and the last row of the table becomes
#
# | pair just read | m | l | o | o / l |
# |---|---|---|---|---|
# | score 2, value 6 | 2 | (1 + e⁻¹) · e⁻¹ + 1 = 1 + e⁻¹ + e⁻² = **1.5032** | (10 + 40e⁻¹) · e⁻¹ + 6 = 6 + 10e⁻¹ + 40e⁻² = **15.0922** | **10.0400** |
#
# Term by term, these are the sums that you computed in the usual way. Notice that after *every* row, `o / l` is the correct mean of the pairs read so far. You never divide `o` itself until the very end.
#
# **Predict, then run:** will `torch.softmax` give the weights 0.2447, 0.0900 and 0.6652 and the mean 10.0400?

# %%
weights = torch.softmax(torch.tensor(scores), dim=0)
print("weights      ", [f"{weight:.4f}" for weight in weights.tolist()])
print("weighted mean", f"{weights @ torch.tensor(values):.4f}")

# %% [markdown]
# ## Exercise 1.1 · online_softmax · about six lines
#
# Now write this method as a function. `pairs` yields (score, value) pairs, and you can read it only **once**: use a single `for` loop, without indexing and without a list. (The check measures whether you store the pairs.) Return the state `(m, l, o)` after the last pair. If there is no pair at all, return the initial state. Do not divide.
#
# A score is a Python float, so you can use `math.exp` and `max`. A value is a float or a NumPy array (in attention it is a vector), and `factor * value` and `+` work for both. Do not modify the values: `+=` and `*=` would write into an array.
#
# <details><summary>Hint 1: where to start</summary>
#
# The first row of the table is the state before the loop. In Python, −∞ is `-math.inf`, and `math.exp(-math.inf)` is 0.0. So the first score needs no `if`, as long as it is finite: it is a new maximum, and multiplying the initial 0 by the factor 0 does no harm.
# </details>
#
# <details><summary>Hint 2: one step</summary>
#
# Do you need separate cases for a new maximum and for none? Take `new_m = max(m, score)`. If `m` does not change, exp(m − new_m) = exp(0) = 1, and the multiplication changes nothing. One formula covers both cases.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# In the loop: `new_m = max(m, score)`, then `shrink = math.exp(m - new_m)`, then `weight = math.exp(score - new_m)`. Multiply both `l` and `o` by `shrink`, then add the new term: `weight` to `l`, `weight * value` to `o`. Assign `new_m` to `m` last, because the factor needs the old `m`.
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
# Each check draws new random numbers. If it rejects an answer, it prints the seed, and `check.ex01_1(online_softmax, seed=…)` repeats the test with exactly the same numbers. If it accepts an answer, it also marks the exercise as solved. (To list what you have solved, run `from course import progress` and `progress()` in a cell of your own.)
#
# Here are the rows of the table, computed by your code:

# %% tags=["uses-exercise"]
for read in range(len(scores) + 1):
    m, l, o = online_softmax(zip(scores[:read], values[:read]))
    print(
        f"{read} read:  m = {m:4}   l = {l:.4f}   o = {o:7.4f}",
        f"  o / l = {o / l:.4f}" if l else "",
    )

# %% [markdown]
# ## Bug hunt: do you need the maximum?
#
# In exact arithmetic the maximum cancels: e^(score − m) = e^score / e^m, in the numerator and in the denominator alike. This is why textbooks define softmax without a maximum, and the short function below omits it too. For the same reason, adding one number to all the scores should change nothing.
#
# The function computes in float32, as most of our kernels will. The largest float32 number is about 3.4·10³⁸, which is e^88.7. The smallest positive one is about 1.4·10⁻⁴⁵, which is e^−103.
#
# **Guess before you run.** We add 0, 50, 86, 100 and −150 to the scores 1, 0, 2. The correct answer is always 10.04. Which rows will be correct? `___` What will the others show? `___`

# %% tags=["guess"]
guess("01 without a maximum", correct_rows=..., others_show=...)

# %%
# The printed text is the same on the CPU and on a GPU.
device = "cuda" if torch.cuda.is_available() else "cpu"


def shifted(shift):
    """Return the scores with `shift` added to each, and the values, in float32."""
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
# - **50**: e⁵² is about 4·10²². This is large, but it fits. A test with such scores passes, and so the bug gets into programs.
# - **86**: e⁸⁸ = 1.7·10³⁸ still fits, and so does the sum of the weights. But 6 · e⁸⁸ does not: it becomes `inf`, and `inf` divided by a finite number is `inf`.
# - **100**: e¹⁰² itself is `inf`, and `inf / inf` is `nan`, "not a number".
# - **−150**: here the problem is at the other end. Even e⁻¹⁴⁸ is rounded to 0 in float32, and `0 / 0` is `nan` as well.
#
# If you subtract the maximum, the largest weight is exp(0) = 1. So `l` is at least 1 and at most the number of scores, and it can neither overflow nor be 0. Scores far below the maximum still become 0, but they contribute almost nothing anyway.
# </details>
#
# Your function subtracts the maximum. Does it matter how much we add? Your function computes with Python floats, which are float64 and reach e^709. To make the comparison fair, its scores go to ±800 and beyond, where float64 without a maximum fails as well.

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
# ## Two readers
#
# Two people share the work. The first person reads the scores 1 and 0, and the second reads the score 2. Neither sees the other's numbers. When they have finished, their states are
#
# | | m | l | o |
# |---|---|---|---|
# | first reader | 1 | 1 + e⁻¹ = 1.3679 | 10 + 40e⁻¹ = 24.7152 |
# | second reader | 2 | 1 | 6 |
#
# **Predict** the state of one person who has read all three. `m` = `___` , `l` = `___` , `o` = `___`

# %% tags=["guess"]
guess("01 two readers", m=..., l=..., o=...)

# %% [markdown]
# It is the last row of the table above: (2, 1.5032, 15.0922). The common maximum is 2. Multiply the first reader's sums by exp(1 − 2), and the second reader's by exp(2 − 2) = 1. Now both are relative to the same maximum, and you can add them.
#
# ### Exercise 1.2 · merge · about four lines
#
# Write `merge(left, right)`. It takes two states, leaves them unchanged, and returns the state of a single reader who has read everything. It must satisfy two rules:
#
# - The result does not depend on which state is `left` and which is `right`, nor on the order in which several states are merged.
# - Merging with the state `(-math.inf, 0.0, 0.0)` of a reader who has read nothing leaves a state unchanged, even if *both* readers have read nothing.
#
# <details><summary>Hint 1: which maximum?</summary>
#
# Take the larger of the two. Each side then has its own factor, exp(its own maximum − the common one), for its `l` and its `o`. The side with the larger maximum has the factor 1.
# </details>
#
# <details><summary>Hint 2: what is −∞ − (−∞)?</summary>
#
# It is `nan`: it has no value, and every result computed from it is `nan` too. It occurs only if both maxima are −∞. But then `l` and `o` are 0 on both sides, so any finite factor is correct. Choose 0 where a side's own maximum is −∞.
# </details>
#
# <details><summary>Hint 3: almost the code</summary>
#
# `m = max(m1, m2)`, then `f1 = math.exp(m1 - m) if m1 > -math.inf else 0.0`, and `f2` in the same way. Then `l` is `f1 * l1 + f2 * l2`, and `o` has the same form.
# </details>


# %% tags=["exercise"]
def merge(left, right):
    """Return the state of one reader who has read all that `left` and `right` have
    read; each state is (m, l, o)."""
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
# ## Why any order is fine
#
# A state is another way to write two plain sums over the scores read so far:
#
# $$l \cdot e^m = \sum e^{\text{score}}, \qquad o \cdot e^m = \sum e^{\text{score}} \cdot \text{value}.$$
#
# `m` is only a common factor, chosen so that nothing overflows. In these terms, `merge` takes the larger `m` and **adds** the plain sums. The order and the brackets do not matter for a maximum, nor for an addition. So they do not matter for `merge` either: it is *commutative*, merge(a, b) = merge(b, a), and *associative*, merge(merge(a, b), c) = merge(a, merge(b, c)). And (−∞, 0, 0) represents two empty sums, which are 0.
#
# This holds for real numbers. To see it without any rounding, use powers of 2 instead of e, because the method works for any base. Then all numbers are plain fractions, and you can check our three scores in your head:
#
# | pair just read | m | l | o | o / l |
# |---|---|---|---|---|
# | score 1, value 10 | 1 | 1 | 10 | 10 |
# | score 0, value 40 | 1 | 1 + 1/2 = 3/2 | 10 + 40/2 = 30 | 20 |
# | score 2, value 6 | 2 | 3/2 · 1/2 + 1 = 7/4 | 30 · 1/2 + 6 = 21 | 12 |
#
# (Base 2 is not just for teaching. NVIDIA's GPUs have an instruction for 2ˣ and none for eˣ. A fast kernel multiplies the scores by log₂ e = 1.4427, works in base 2, and gets the softmax in base e.)
#
# Four people have one pair each. Pick two of the four states as left and right and merge them (12 choices), then two of the remaining three (6), then the last two (2). That makes 12 · 6 · 2 = 144 ways.
#
# **Predict:** how many different results do you get? `___`

# %% tags=["guess"]
guess("01 orders", different_results=...)


# %%
def merge_base_2(left, right):
    """Merge in base 2 instead of e; with integer scores all numbers are fractions."""
    (m1, l1, o1), (m2, l2, o2) = left, right
    m = max(m1, m2)
    f1, f2 = Fraction(2) ** (m1 - m), Fraction(2) ** (m2 - m)
    return m, f1 * l1 + f2 * l2, f1 * o1 + f2 * o2


def every_way(states, merge):
    """Return the final states of all the ways to merge these states, two at a time."""
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
# There is one result. The picture shows one of the 144 ways, as a tree. Each box contains `m`, `l` and `o`, and each merge adds relative to the larger m.


# %% jupyter={"source_hidden": true}
def draw_tree(leaves, merge):
    """Draw the states of the leaves at the bottom, merged in pairs up to one state."""
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
# Now run your `merge`, in base e, with numbers that the computer rounds to 53 bits:

# %% tags=["uses-exercise"]
results = every_way(four_people, merge)
spread = max(o for _, _, o in results) - min(o for _, _, o in results)
print(f"{len(results)} ways, all o within 1e-13 of one another: {spread <= 1e-13}")
print(f"all o the same to the last bit: {spread == 0}")

# %% [markdown]
# The results agree, but not to the last bit, because rounding depends on the order. Remember this when a GPU kernel, whose blocks finish in a different order each time, gives a slightly different answer in each run. The mathematics is still correct.
#
# ### Thirty-two readers
#
# Because any order is fine, many people can work at the same time. Thirty-two people read 1000 pairs: the first reads pairs 0, 32, 64, …, the second reads 1, 33, 65, …, and so on. Then they merge in pairs, merge the results in pairs again, and continue until one state is left.
#
# **Predict:** how many rounds of merging do they need? `___` (One after the other, it would take 31 merges.)

# %% tags=["guess"]
guess("01 thirty-two readers", rounds=...)

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
# They need five rounds, because 2⁵ = 32. We chose 32 for a reason: a GPU runs its threads in groups of 32, called [**warps**](../docs/glossary.md). In lesson 06, one warp does exactly this. Each thread keeps one state in its **registers**, the fastest memory, which no other thread can read.
#
# ## Bug hunt: a bug that is harder to see
#
# Here is another answer to exercise 1.1. Everything is correct, except that `m` starts
# at **0** instead of −∞. If a score is above 0, it becomes the maximum and no harm is
# done. If no score is, `m` remains 0 to the end. The function below computes the result
# in that case.
#
# **Guess before you run.** Again the correct answer is always 10.04. Which of the seven rows are wrong? `___` Which of the wrong ones would a reader notice? `___`

# %% tags=["guess"]
guess("01 maximum from zero", wrong_rows=..., noticed=...)


# %%
def maximum_from_zero(scores, values):
    m = max(0.0, scores.max().item())  # the final value of a maximum that starts at 0
    weights = torch.exp(scores - m)
    return ((weights * values).sum() / weights.sum()).item()


for shift in (100, 0, -50, -100, -103, -104, -150):
    print(f"{shift:5} added:  {maximum_from_zero(*shifted(shift)):6.2f}")


# %% [markdown]
# From −50 downwards, 0 is larger than every score. But as long as the weights keep their digits, any `m` works, and at −50 the result with `m = 0` is as good as with `m = −48`. At −150 all weights are 0, we divide 0 by 0, and the NaN reveals the bug. The dangerous rows are between these two. Near e^−103, only a few float32 numbers are left above 0, so each weight is rounded to one of them. At −100 the result is 10.09 instead of 10.04, an error of half a percent. At −103 and −104 even the ratios of the weights are wrong, and the results, 9.33 and 6.80, look like any other mean. **There is no NaN and no warning, only a wrong answer.**
#
# A test with scores near zero that compares only the final mean never finds this bug.
# The unfinished kernel that you complete in lesson 05 was published with it. The check
# for exercise 1.1 catches it, because it also compares `m` on inputs whose scores are
# all negative.
#
# ## Validate
#
# Each row compares one of your results with `torch.softmax`, in float64. The difference must be below 10⁻¹². (The comparison is written so that `nan` fails it.)


# %% tags=["uses-exercise"]
def attend(state):
    """Return the weighted mean of a state: divide, once, at the end."""
    _, l, o = state
    return o / l


def by_torch(scores, values):
    return (torch.softmax(scores, dim=0) @ values).item()


three = (
    torch.tensor(scores, dtype=torch.float64),
    torch.tensor(values, dtype=torch.float64),
)
e = math.e
stages = [
    (
        "three pairs, by hand",
        (6 * e**2 + 10 * e + 40) / (e**2 + e + 1),
        by_torch(*three),
    ),
    (
        "three pairs, online_softmax",
        attend(online_softmax(zip(scores, values))),
        by_torch(*three),
    ),
    ("three pairs, two readers", attend(merge(first, second)), by_torch(*three)),
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
# - To compute a softmax-weighted mean you need only the state `(m, l, o)`: the maximum so far, and two sums relative to it.
# - When the maximum grows, multiply both sums by exp(old maximum − new maximum). Without a maximum they overflow, or vanish into 0 / 0.
# - To merge two states, rescale both to a common maximum, then add their sums. So any
#   number of readers can share the work, in any order, and divide once at the end.
#
# **You can now** compute a softmax while you read each score once, explain to a colleague why `m` is needed, and split the work among as many readers as you like.
#
# **Read on:** Maxim Milakov and Natalia Gimelshein, *Online normalizer calculation for softmax* (2018, arXiv:1805.02867), the paper that introduced this method · Markus Rabe and Charles Staats, *Self-attention Does Not Need O(n²) Memory* (2021, arXiv:2112.05682), which uses the same state for attention · the [glossary](../docs/glossary.md) of this course.
#
# **Next:** in [lesson 02](02_flash_attention.ipynb) a reader takes in a whole *tile* of scores at a time. This is flash attention.
