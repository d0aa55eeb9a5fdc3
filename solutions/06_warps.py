# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 06 · Warps
#
# **90 minutes**, of which 10 are for the section marked *optional* · builds on lesson 01 (the state `m, l, o` and how to merge two of them), lessons 03 and 03b (kernels, `simulate`) and lesson 04 (findings, `cuda.grid`)
#
# You will be able to:
#
# - let 32 threads exchange values without shared memory and without a barrier, and sum 32 numbers in five steps;
# - say what goes wrong when a shuffle is inside a branch, or when the last warp is not full;
# - write attention with one warp per query, use it in a layer, and compare the layer with PyTorch's `nn.MultiheadAttention`.
#
# A GPU does not run threads one by one. It runs them in [**warps**](../docs/glossary.md) of 32: threads 0 to 31 of a block are one warp, 32 to 63 the next. The position of a thread in its warp, from 0 to 31, is its [**lane**](../docs/glossary.md). A thread keeps the values that it computes in **registers**, which no other thread can read. But the lanes of one warp can exchange values directly, with a [**shuffle**](../docs/glossary.md).
#
# The picture shows what you can do with it. Eight lanes have one number each, and in three rounds *every* lane gets the sum of all eight. In each round a lane adds the number of one other lane: first the lane four positions away, then two, then one. The orange lines lead to lane 5. This pattern is called a **butterfly**. (A warp is four times as wide and needs five rounds. The next cell only draws. Run it; you do not need to read it.)

# %% jupyter={"source_hidden": true}
import matplotlib.pyplot as plt
from course.figures import BLUE, ORANGE, show_figure


def draw_butterfly(numbers, steps, goal):
    """Draw a row of lanes for each round, with each lane's sum so far;
    the lines that lead to the lane `goal` are orange."""
    figure, axes = plt.subplots(figsize=(10, 4.6))
    rows = [list(numbers)]
    for step in steps:
        rows.append(
            [rows[-1][lane] + rows[-1][lane ^ step] for lane in range(len(numbers))]
        )
    leading = {goal}
    for height, step in reversed(list(enumerate(steps))):
        for lane in range(len(numbers)):
            for source in (lane, lane ^ step):
                orange = lane in leading
                look = {
                    "color": ORANGE if orange else "grey",
                    "linewidth": 3.5 if orange else 1,
                    "zorder": 1 + orange,
                }
                axes.plot([source, lane], [-height, -height - 1], **look)
        leading |= {lane ^ step for lane in leading}
    for height, row in enumerate(rows):
        for lane, number in enumerate(row):
            circle = {"facecolor": "white", "boxstyle": "circle", "edgecolor": BLUE}
            axes.text(
                lane,
                -height,
                number,
                ha="center",
                va="center",
                fontsize=14,
                bbox=circle,
            )
        words = f"round {height}:\n{steps[height - 1]} away" if height else "start"
        axes.text(-1.1, -height, words, ha="center", va="center", fontsize=12)
    for lane in range(len(numbers)):
        axes.text(lane, 0.6, f"lane {lane}", ha="center", fontsize=12)
    axes.set(xlim=(-1.6, len(numbers) - 0.5), ylim=(-len(steps) - 0.5, 0.9))
    axes.axis("off")
    return figure


show_figure(
    draw_butterfly([3, 1, 4, 1, 5, 9, 2, 6], steps=[4, 2, 1], goal=5),
    "four rows of eight lanes. At the start the lanes hold 3, 1, 4, 1, 5, 9, 2, 6. "
    "In round 1 each adds what the lane four places away holds: "
    "0 with 4, 1 with 5, 2 with 6, 3 with 7; now they hold 8, 10, 6, 7, 8, 10, 6, 7. "
    "In round 2 the partners are two places apart, 0 with 2, 1 with 3, 4 with 6, "
    "5 with 7: 14, 17, 14, 17, 14, 17, 14, 17. In round 3 neighbours add, 0 with 1, "
    "2 with 3 and so on: all hold 31. The orange lines into lane 5 come from 2 lanes "
    "above the last row, from 4 a row higher, and from all 8 at the start.",
)

# %% [markdown]
# ## 1. One instruction, 32 lanes
#
# The lanes of a warp execute the same instruction at the same time. (Since NVIDIA's Volta of 2017, each lane has its own program counter, and after a branch the lanes may progress independently. The hardware still issues one instruction at a time for a warp.) This makes a GPU efficient: one unit that fetches and decodes instructions serves 32 lanes that compute. But what if the lanes take different sides of an `if`? Then the two branches run **one after the other**. While one runs, the lanes that do not take it are switched off. This is called [**warp divergence**](../docs/glossary.md).
#
# **Predict.** Both branches of an `if` take 10 microseconds. How long does a warp take if its lanes split by `lane % 2`? And if the condition is `warp % 2`, the index of the *warp*?
#
# <details><summary>Answer</summary>It takes 20, because both branches run, and half of the lanes are idle in each. In the second case it takes 10: all lanes of a
# warp take the same branch, and different warps do not wait for each other.</details>
#
# The next picture shows both cases as `sim` records them. Time runs downwards. There is a row for each line of code that accesses memory and a square for each lane. Pale lanes are switched off.

# %%
import math

import numpy as np
import torch
from numba import cuda
from numpy import float32

from course import check, guess
from course.ladder import show_ladder, time_rung
from course.pictures import draw_divergence
from sim import simulate
from sim.observers import DEFAULT, Trace


def two_branches(x, out, group):
    """Send every second group of `group` threads into the other branch."""
    t = cuda.threadIdx.x
    number = x[t]
    if t // group % 2 == 0:
        out[t] = number
    else:
        out[t] = -number
    x[t] = 0


traced = simulate(two_branches, observers=[*DEFAULT, Trace])
x, out = np.ones(64, dtype=float32), np.zeros(64, dtype=float32)
show_figure(
    draw_divergence(
        {
            "split by lane % 2": traced[1, 32](x, out, 1),
            "split by warp % 2": traced[1, 64](x, out, 32),
        }
    ),
    "rows of 32 squares, one per lane. Split by lane % 2, the warp takes four rows: "
    "the load with all lanes, then one branch with the even lanes, the odd ones pale, "
    "then the other branch with the odd lanes, the even ones pale, then the last "
    "store with all. Split by warp % 2, warp 0 and warp 1 take three rows each, all "
    "lanes in each row: the load, the branch of this warp, the last store.",
)

# %% [markdown]
# There are four rows or three: a warp that splits executes both branches. (The GPU decides which branch comes first; here they are in the order of the source.)
#
# A kernel can read which lanes are active at this moment: `cuda.activemask()` returns an integer with one bit for every lane, and lane 0 is the last digit. (On a GPU it reports which lanes happen to be together at that moment, so a program must not depend on it.)
#
# **Predict.** What does lane 0 read in the kernel below, and what does lane 1?


# %%
def print_findings(report):
    """Print the bugs that `sim` has found in a launch."""
    print(
        *[finding.message for finding in report.findings] or ["no findings"], sep="\n\n"
    )


def active_lanes(seen):
    """Write the lanes in the same branch to seen[lane], one bit per lane."""
    lane = cuda.threadIdx.x
    if lane % 4 == 0:
        seen[lane] = cuda.activemask()
    else:
        seen[lane] = cuda.activemask()


seen = np.zeros(32, dtype=np.uint32)
simulate(active_lanes)[1, 32](seen)
for lane in (0, 1):
    print(f"lane {lane} sees {seen[lane]:032b}")

# %% [markdown]
# Lane 0 runs in a group with lanes 4, 8, 12, …; lane 1 runs with all the lanes outside
# that group. Divergence alone does not make a result wrong. It takes time, and it
# becomes dangerous as soon as the lanes exchange values.
#
# ## 2. Four kinds of shuffles
#
# In a shuffle, each lane supplies a value and gets the value of *another* lane. There are four kinds, which differ in the source lane:
#
# | call | the lane gets the value of lane |
# |---|---|
# | `cuda.shfl_down_sync(mask, value, 2)` | `lane + 2` |
# | `cuda.shfl_up_sync(mask, value, 2)` | `lane - 2` |
# | `cuda.shfl_xor_sync(mask, value, 2)` | `lane ^ 2` |
# | `cuda.shfl_sync(mask, value, 2)` | `2` |
#
# Down means from higher lanes to lower ones. If there is no such lane, as for lane 31 with `lane + 2`, a lane gets its own value back. `^` is *exclusive or*: it flips bits. 2 is binary 10, so `lane ^ 2` flips the second bit from the right. So lane 5 (binary 101) gets the value of lane 7 (binary 111), and lane 7 gets the value of lane 5. With any number except 0, `^` forms pairs of lanes that swap their values. With a power of two, the two lanes of a pair differ in one bit.
#
# The `mask` has one bit for each participating lane. We always want all of them: 32 ones, `0xffffffff`. No lane gets a value before all lanes of the mask that are still running have reached the call. This is the meaning of `_sync` in the name.
#
# **Predict.** Every lane supplies 10 times its own index. What do lane 5 and lane 31 get?
#
# | | down by 2 | up by 2 | xor 2 | from 2 |
# |---|---|---|---|---|
# | lane 5 | `___` | `___` | `___` | `___` |
# | lane 31 | `___` | `___` | `___` | `___` |

# %% tags=["guess"]
guess("06 shuffles of lane 5", down_by_2=..., up_by_2=..., xor_2=..., from_2=...)
guess("06 shuffles of lane 31", down_by_2=..., up_by_2=..., xor_2=..., from_2=...)

# %%
ALL_LANES = 0xFFFFFFFF


def four_shuffles(out):
    """Write to out[lane] what the lane gets from each of the four shuffles."""
    lane = cuda.threadIdx.x
    mine = 10 * lane
    out[lane, 0] = cuda.shfl_down_sync(ALL_LANES, mine, 2)
    out[lane, 1] = cuda.shfl_up_sync(ALL_LANES, mine, 2)
    out[lane, 2] = cuda.shfl_xor_sync(ALL_LANES, mine, 2)
    out[lane, 3] = cuda.shfl_sync(ALL_LANES, mine, 2)


out = np.full((32, 4), -1)
simulate(four_shuffles)[1, 32](out)
print("lane   down     up    xor   from 2")
for lane in (0, 1, 5, 7, 30, 31):
    print(f"{lane:4}" + "".join(f"{value:7}" for value in out[lane]))

# %% [markdown]
# Lanes 30 and 31 got their own value from *down*, and lanes 0 and 1 from *up*. This does no harm as long as they do not use it.
#
# ## 3. A sum in five steps
#
# In lesson 03b a block summed its numbers in shared memory, with a barrier after every step. A warp needs neither. Here is an example on paper, with a warp of 8 lanes. Each lane executes `shfl_down` by 4, 2 and 1, and each time adds the value that it gets:
#
# | lane | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |
# |---|---|---|---|---|---|---|---|---|
# | start | 3 | 1 | 4 | 1 | 5 | 9 | 2 | 6 |
# | down by 4 | 8 | 10 | 6 | 7 | · | · | · | · |
# | down by 2 | 14 | 17 | · | · | · | · | · | · |
# | down by 1 | **31** | · | · | · | · | · | · | · |
#
# The dots are values that are not needed. For example, lane 4 reads from lane 8, which does not exist, gets its own 5 back, and has 10. With 32 lanes the steps are 16, 8, 4, 2, 1.
#
# **Predict.** The 32 lanes have 1, 2, 3, …, 32, whose sum is 528. Which lanes have 528 after the five steps of the kernel below?


# %%
def sum_down(x, out):
    """Write each lane's value after five additions to out; one warp, 32 numbers."""
    lane = cuda.threadIdx.x
    value = x[lane]
    step = 16
    while step > 0:
        value += cuda.shfl_down_sync(ALL_LANES, value, step)
        step //= 2
    out[lane] = value


x = np.arange(1, 33).astype(float32)
out = np.full(32, np.nan, dtype=float32)
simulate(sum_down)[1, 32](x, out)
print("lanes that have 528:", [lane for lane in range(32) if out[lane] == 528])

# %% [markdown]
# Only lane 0 has it. If one thread writes the sum, that is enough. Often every lane needs the sum, for example in a softmax, which divides each number by it. Then you use the butterfly of the first picture.
#
# ### Exercise 6.1 · warp_sum · about eight lines
# Write the kernel `warp_sum(x, out)`, which sets `out[i]` to the sum of all elements that belong to the warp of thread `i`. So the first 32 elements of `out` are all equal, and so are the next 32.
#
# - There may be several warps in a block and several blocks. Blocks have a multiple of 32 threads.
# - There can be any number of elements. Threads without an element read and write
#   nothing.
# - Name all 32 lanes in the mask, with `ALL_LANES`.
# - Use no shared memory, no atomic operations and no barrier, and at most six shuffles for each warp.
# - Compute in float32, in this exercise and the next two.
#
# <details><summary>Hint 1: which lanes are in my warp?</summary>
#
# The code does not need this. Shuffles stay within the warp: in a block of 64 threads, lane 5 of warp 1 gets its values from warp 1.
# </details>
# <details><summary>Hint 2: every lane needs the sum</summary>
#
# Do as in the picture: use `shfl_xor_sync` instead of `shfl_down_sync`.
# </details>
# <details><summary>Hint 3: a thread without an element</summary>
#
# It is a lane too, and other lanes wait for it and use its value. Let it participate with `float32(0)`. So put the guard `i < x.size` around
# the load and around the store, and do not put the loop under an `if`.
# </details>


# %% tags=["exercise"]
def warp_sum(x, out):
    """Set out[i] to the sum of the elements of x that belong to the warp of thread i;
    x and out are 1-D, of one size."""
    i = cuda.grid(1)
    # BEGIN SOLUTION 6.1
    value = x[i] if i < x.size else float32(0)
    step = 16
    while step > 0:
        value += cuda.shfl_xor_sync(ALL_LANES, value, step)
        step //= 2
    if i < x.size:
        out[i] = value
    # END SOLUTION


# %% tags=["check"]
check.ex06_1(warp_sum)

# %% [markdown]
# Run it with two warps in one block, of which the second has only 8 elements. The first has the numbers of the paper example four times, so its sum is 4 · 31 = 124. The second has them once:

# %% tags=["uses-exercise"]
x = np.tile(np.array([3, 1, 4, 1, 5, 9, 2, 6], dtype=float32), 5)
out = np.full(40, np.nan, dtype=float32)
simulate(warp_sum)[1, 64](x, out)
print(out[:32], out[32:], sep="\n\n")

# %% [markdown]
# ## 4. Bug hunt: the lanes that had nothing to do
#
# Look at the dots in the table above: after the first step, half of the lanes do useless work. The tree sum of lesson 03b had an `if t < step` that let them skip it. Somebody writes the same here.
#
# **Guess before you run.** There are 32 lanes and the numbers 1 to 32. What does lane 0 write?
#
# - ( ) 528, with less work
# - ( ) a wrong number, or any number
# - ( ) nothing: it waits forever


# %%
def thrifty_sum(x, out):
    """Set out[0] to the sum of 32 numbers without any useless work;
    this was the intention."""
    lane = cuda.threadIdx.x
    value = x[lane]
    step = 16
    while step > 0:
        if lane < step:
            value += cuda.shfl_down_sync(ALL_LANES, value, step)
        step //= 2
    if lane == 0:
        out[0] = value


x = np.arange(1, 33).astype(float32)
out = np.full(1, np.nan, dtype=float32)
print_findings(simulate(thrifty_sum, on_finding="report")[1, 32](x, out))
print()
print("lane 0 wrote", out[0])

# %% [markdown]
# Lane 0 reads from lane 16, but lane 16 does not execute the shuffle: it skipped the `if` in every iteration, and has returned. A shuffle is not a store that remains in memory until another lane loads it. **A value is passed only if both lanes execute the call.** The value that you get from an absent lane is undefined. `sim` gives NaN, so that you notice. A GPU gives some number and no message. On the H200 on which we tried it, lane 0 wrote 1.
#
# Why does lane 0 not wait forever, as in section 2 of lesson 04b? There the missing
# lanes were still running, and waited at another shuffle. Here they have returned, and
# a shuffle does not wait for lanes that have returned.
#
# The `if` did not save anything either. The lanes of a warp either execute an instruction together or wait while others execute it, and switching off a lane does not make the warp faster.
#
# Here is the same mistake in its most common form. It looks like good style: the guard comes first, and a thread without an element returns.
#
# **Guess before you run.** There are 45 elements, all of them 1, in a block of 64 threads. The correct sums are 32 and 13. Which of them will you see?


# %%
def hasty_sum(x, out):
    """Set out[w] to the sum of the elements of warp w; this was the intention."""
    i = cuda.grid(1)
    if i >= x.size:
        return
    value = x[i]
    step = 16
    while step > 0:
        value += cuda.shfl_xor_sync(ALL_LANES, value, step)
        step //= 2
    if i % 32 == 0:
        out[i // 32] = value


x = np.ones(45, dtype=float32)
out = np.full(2, np.nan, dtype=float32)
print_findings(simulate(hasty_sum, on_finding="report")[1, 64](x, out))
print()
print("sums:", out)

# %% [markdown]
# The first one is correct, because its warp is full. So a test with 32, 64 or 1024 elements passes. In the second warp only lanes 0 to 12 are left, and lane 0 reads from lane 16. What is worse, on our H200 this kernel wrote 32 and 13, the correct sums, as if lanes that have returned gave 0. Nothing guarantees this. And if you take a maximum of negative numbers instead of a sum, even a 0 is wrong.
#
# So there are two rules. **All lanes execute every shuffle**, and a lane without data supplies a neutral value, which is 0 for a sum. And **launch whole warps**: in a block of 45 threads, lanes 13 to 31 of the second warp do not even exist.
#
# You may use a branch if all lanes of a warp take it together, such as `if warp == 0`, or a `return` of all 32 lanes of a warp at once.
#
# ## 5. Votes (optional)
#
# Sometimes one bit from each lane is enough. In a **vote** each lane supplies yes or no, and all lanes get the same result:
#
# | call | result |
# |---|---|
# | `cuda.any_sync(mask, yes)` | does any lane vote yes? |
# | `cuda.all_sync(mask, yes)` | do all lanes vote yes? |
# | `cuda.ballot_sync(mask, yes)` | which lanes vote yes: an integer with one bit for every lane, lane 0 is the last digit |
#
# `cuda.popc(number)` counts the ones in the binary form of an integer, so `popc(ballot)` is the number of lanes that voted yes.
#
# Attention can use this. The texts of a batch are padded to the length of the longest, and no query may use a padding key. A warp goes through the keys 32 at a time, one per lane. If none of the 32 keys is allowed, the warp skips them all.
#
# **Predict.** There are 70 keys. Keys 0 to 39 are words, except that key 3 is
# forbidden, and the rest is padding. The warp takes three steps. How many allowed keys
# does it count in each? What are the last ten digits of the first ballot?


# %%
def count_allowed(allowed, ballots, counts):
    """For keys 32 s to 32 s + 31, write the allowed ones to ballots[s] and their number
    to counts[s]; write nothing if none is allowed. One warp."""
    lane = cuda.threadIdx.x
    for first in range(0, allowed.size, 32):
        j = first + lane
        mine = j < allowed.size and allowed[j]
        if not cuda.any_sync(ALL_LANES, mine):
            continue  # all 32 lanes skip, or none does
        ballot = cuda.ballot_sync(ALL_LANES, mine)
        if lane == 0:
            ballots[first // 32] = ballot
            counts[first // 32] = cuda.popc(ballot)


allowed = np.arange(70) < 40
allowed[3] = False
ballots, counts = np.zeros(3, dtype=np.uint32), np.full(3, -1)
simulate(count_allowed)[1, 32](allowed, ballots, counts)
for step in range(3):
    outcome = "skipped" if counts[step] < 0 else f"{counts[step]} allowed"
    print(f"step {step}: {ballots[step]:032b}   {outcome}")

# %% [markdown]
# The `continue` comes before a vote in which all lanes participate. Why is this not the bug of section 4? Because the condition is itself the result of a vote: it is the same in all lanes, so they skip together. With `if not mine: continue` they would not.
#
# In the third step, lanes 6 to 31 have no key at all. They still vote: no.
#
# ## 6. Thirty-two readers
#
# At the end of lesson 01, thirty-two people shared 1000 pairs of score and value, and merged their states in five rounds. They were the lanes of a warp. Each lane has a state `(m, l, o)`: its largest score, and two sums relative to it. A round of the sum adds two values; a round here merges two states.
#
# Here is an example on paper with 8 lanes, in base 2 as in lesson 01, so that all numbers are simple. There are five keys, with scores **1, 0, 2, 0, 3** and values **12, 40, 6, 8, 8**. Lanes 0 to 4 have read one each. Lanes 5 to 7 have read nothing: `(−∞, 0, 0)`.
#
# | lane | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |
# |---|---|---|---|---|---|---|---|---|
# | start | 1, 1, 12 | 0, 1, 40 | 2, 1, 6 | 0, 1, 8 | 3, 1, 8 | −∞, 0, 0 | −∞, 0, 0 | −∞, 0, 0 |
# | lane ^ 4 | 3, 5/4, 11 | 0, 1, 40 | 2, 1, 6 | 0, 1, 8 | 3, 5/4, 11 | 0, 1, 40 | 2, 1, 6 | 0, 1, 8 |
# | lane ^ 2 | 3, 7/4, 14 | ? | 3, 7/4, 14 | ? | 3, 7/4, 14 | ? | 3, 7/4, 14 | ? |
# | lane ^ 1 | ? | ? | ? | ? | ? | ? | ? | ? |
#
# In the first round, lane 0 merges with lane 4, and the larger maximum is 3. Lane 0's sums are multiplied by 2^(1 − 3) = 1/4, and lane 4's by 1. So l = 1/4 + 1 = 5/4 and o = 12/4 + 8 = 11. Lane 1 merges with lane 5, which has read nothing, so afterwards both have lane 1's state.
#
# **Predict** the question marks. There are only two different states.
#
# <details><summary>Answer</summary>
#
# In the second round, lane 1 merges with lane 3. Both maxima are 0, so both factors are 1, and the states add up to (0, 2, 48). In the third round, (3, 7/4, 14) is merged with (0, 2, 48). The second state is multiplied by 2^(0 − 3) = 1/8, so l = 7/4 + 2/8 = 2 and o = 14 + 48/8 = 20. All eight lanes have (3, 2, 20), and the output is 20/2 = 10.
#
# The usual way gives the same: the weights are in the ratio 2 : 1 : 4 : 1 : 8, and (2·12 + 1·40 + 4·6 + 1·8 + 8·8) / 16 = 160/16 = 10.
# </details>
#
# In attention a value is a vector, and so is `o`. Each lane creates its own with `cuda.local.array(d, float32)`: d elements that belong to this thread alone. A shuffle passes one number, so `o` needs one shuffle for each of its d elements.
#
# ### Exercise 6.2 · merge_lanes · about twelve lines
# Write `merge_lanes(m, l, o)`, which all lanes of a warp call from a kernel. `m` and `l` are numbers, and `o` is the lane's local array. The line above the function, `@cuda.jit(device=True)`, marks a function that kernels can call.
#
# - At the end, every lane has the merged state of all 32: the function returns `m` and `l`, and has changed `o` in place.
# - As in lesson 01, a lane that has read nothing must change nothing, even if *both* partners have read nothing. If there are fewer than 32 keys, there are always such lanes.
# - The lanes exchange values by shuffles only, at most six for each of the d + 2 numbers. The scores may be any finite numbers.
#
# <details><summary>Hint 1: the frame</summary>
#
# Use the loop of `warp_sum`: `step = 16`, `while step > 0`, `step //= 2`. Inside it, first get `other_m` and `other_l`, then compute the common maximum and the two factors.
# </details>
# <details><summary>Hint 2: the factors</summary>
#
# `mine = math.exp(m - larger) if m > MINUS_INFINITY else float32(0)`, and `theirs` in the same way with `other_m`.
# </details>
# <details><summary>Hint 3: the order of the steps</summary>
#
# `o[c] = mine * o[c] + theirs * (the partner's old o[c])`, for every c of `range(o.size)`. Get each `o[c]` before you change it. Make `m = larger` the last step of the round, because the factors need the old `m`.
# </details>

# %% tags=["exercise"]
MINUS_INFINITY = float32(-math.inf)


@cuda.jit(device=True)
def merge_lanes(m, l, o):
    """Merge the states of the 32 lanes of a warp: return (m, l), and change o, a local
    array. Afterwards every lane has the same state."""
    # BEGIN SOLUTION 6.2
    step = 16
    while step > 0:
        other_m = cuda.shfl_xor_sync(ALL_LANES, m, step)
        other_l = cuda.shfl_xor_sync(ALL_LANES, l, step)
        larger = max(m, other_m)
        mine = math.exp(m - larger) if m > MINUS_INFINITY else float32(0)
        theirs = math.exp(other_m - larger) if other_m > MINUS_INFINITY else float32(0)
        l = mine * l + theirs * other_l
        for c in range(o.size):
            o[c] = mine * o[c] + theirs * cuda.shfl_xor_sync(ALL_LANES, o[c], step)
        m = larger
        step //= 2
    return m, l
    # END SOLUTION


# %% tags=["check"]
check.ex06_2(merge_lanes)

# %% [markdown]
# Now compute the paper example with your function. It works in base e. If you multiply the scores by ln 2 you get base 2, because e^(s · ln 2) = 2^s. Lanes 5 to 31 have read nothing.


# %% tags=["uses-exercise"]
def merge_example(m, l, o):
    """Replace each thread's state by that of its warp; m, l and o are 1-D."""
    lane = cuda.threadIdx.x
    my_o = cuda.local.array(1, float32)
    my_o[0] = o[lane]
    m[lane], l[lane] = merge_lanes(m[lane], l[lane], my_o)
    o[lane] = my_o[0]


m = np.full(32, -np.inf, dtype=float32)
l, o = np.zeros((2, 32), dtype=float32)
m[:5], l[:5], o[:5] = math.log(2) * np.array([1, 0, 2, 0, 3]), 1, [12, 40, 6, 8, 8]
simulate(merge_example)[1, 32](m, l, o)
for lane in (0, 5, 31):
    print(
        f"lane {lane:2}:  m = {m[lane] / math.log(2):.3f}   l = {l[lane]:.3f}   "
        f"o = {o[lane]:.3f}   o / l = {o[lane] / l[lane]:.3f}"
    )

# %% [markdown]
# ## 7. One warp, one query
#
# Now put everything together. In lesson 05, each thread processed one query and read all the keys. Here a whole warp processes one query. Lane `t` reads the keys `t`, `t + 32`, `t + 64`, … and runs the online softmax of lesson 01 on them, in registers, independently of the other lanes. Then comes one call of `merge_lanes`, and the output is `o / l`. There is no shared memory and no barrier.
#
# With 70 keys:
#
# | lane | 0 | 1 | … | 5 | 6 | … | 31 |
# |---|---|---|---|---|---|---|---|
# | reads keys | 0, 32, 64 | 1, 33, 65 | … | 5, 37, 69 | 6, 38 | … | 31, 63 |
#
# **Predict.** With causal attention, query `i` sees the keys `j <= i`. How many lanes have read something when the warp of query 4 has finished? And which lane of query 32 reads two keys?
#
# <details><summary>Answer</summary>Query 4 sees five keys: lanes 0 to 4 have one each, and 27 lanes have (−∞, 0, 0). Query 32 sees 33 keys, and key 32 belongs to lane
# 0. The other 31 lanes wait while it reads. Divergence takes time, but does no harm.</details>

# %% [markdown]
# One thing in the code below is new. Registers have no index. A GPU keeps `o` in registers only if the compiler can unroll every loop over it, and for that d must be a constant. So `warp_attention(d)` is an ordinary function that *creates* a kernel in which d is a constant.
#
# ### Exercise 6.3 · warp_attention · about fifteen lines
# Write the part of the kernel that reads the keys, merges, and writes the output.
#
# - Lane t reads the keys of the table, t, t + 32, and so on, and no others.
# - After the merge every lane has the result, and one of the 32 lanes writes the row of `out`.
# - `scale` is an argument (usually 1/√d), and the number of keys may differ from the number of queries.
#
# <details><summary>Hint 1: which keys?</summary>
#
# `for j in range(lane, seen, 32)`, where `seen` is the number of keys that the query sees: `min(keys, i + 1) if causal else keys`. For a lane without keys the loop does nothing, and
# the state does not change.
# </details>
# <details><summary>Hint 2: one key</summary>
#
# Add up `q[i, c] * k[j, c]` over c, starting with `float32(0)`, and multiply by `scale`. Then continue as in lesson 01: `larger = max(m, score)`, `shrink = math.exp(m - larger)`,
# `weight = math.exp(score - larger)`. Multiply `l` and each `o[c]` by `shrink`, and add the new term. A score is finite, so `larger` is finite too, and exp(−∞) is 0.
# </details>
# <details><summary>Hint 3: after the loop</summary>
#
# `m, l = merge_lanes(m, l, o)`, outside the loop and under no `if`. Then, if `lane == 0`, `out[i, c] = o[c] / l` for every c.
# </details>


# %% tags=["exercise"]
def warp_attention(d):
    """Return the kernel for rows of d numbers."""

    def warp_attention_kernel(q, k, v, scale, causal, out):
        """Compute attention of q (N, d) on k and v (keys, d), all float32, with
        one warp per query; causal: query i sees keys j <= i."""
        keys = k.shape[0]
        lane = cuda.threadIdx.x % 32
        i = cuda.grid(1) // 32  # the query of this warp
        if i >= q.shape[0]:
            return  # all 32 lanes return together
        o = cuda.local.array(d, float32)
        for c in range(d):
            o[c] = float32(0)
        m, l = MINUS_INFINITY, float32(0)
        # BEGIN SOLUTION 6.3
        seen = min(keys, i + 1) if causal else keys
        for j in range(lane, seen, 32):
            score = float32(0)
            for c in range(d):
                score += q[i, c] * k[j, c]
            score *= scale
            larger = max(m, score)
            shrink, weight = math.exp(m - larger), math.exp(score - larger)
            l = l * shrink + weight
            for c in range(d):
                o[c] = o[c] * shrink + weight * v[j, c]
            m = larger
        m, l = merge_lanes(m, l, o)
        if lane == 0:
            for c in range(d):
                out[i, c] = o[c] / l
        # END SOLUTION

    return warp_attention_kernel


# %% tags=["check"]
check.ex06_3(warp_attention)

# %% [markdown]
# **A question about it.** Somebody writes `range(0, seen)` instead of `range(lane, seen, 32)`, so every lane reads *all* keys. What is the output?
#
# - ( ) NaN
# - ( ) 32 times the correct output
# - ( ) the correct output
#
# <details><summary>Answer</summary>
#
# The correct output. All lanes have the same state, so after merging `m` is correct, `l` and `o` are both 32 times too large, and o / l is the same as before. A test that
# compares only the result accepts a kernel that does 32 times the work. (So the check of 6.3 also tests which lane reads which key.)
# </details>
#
# **Another one.** Why does lane 0 not read keys 0, 1, 2 and lane 1 keys 3, 4, 5?
#
# <details><summary>Answer</summary>
#
# That would be correct too. For rows of eight numbers or more it would not even be slower, because each lane reads a row of its own in both cases. (Shorter rows share
# a piece of memory with their neighbours, as you will see in lesson 08.) But `range(lane, seen, 32)` works for any number of keys without computing a chunk size, and no lane reads
# more than one key more than another.
# </details>
#
# Here is the launch as a picture: one query and 70 keys with rows of one number, and a row for each lane. The loads of q, k and v are blue.

# %% tags=["uses-exercise"]
from sim.observers import COUNTERS

q, k, v = np.random.default_rng(6).standard_normal((3, 70, 1)).astype(float32)
out = np.full((1, 1), np.nan, dtype=float32)
traced = simulate(warp_attention(1), observers=[*DEFAULT, Trace])
traced[1, 32](q[:1], k, v, float32(1), False, out).timeline()

# %% [markdown]
# ### The cost
#
# There is no barrier and no shared memory, but there is a cost. In lesson 05 the queries of a block shared each tile. For 64 queries and keys of 8 numbers, your kernel of lesson 05 with 16 queries per block loads and stores 5,120 numbers of global memory. **Predict** the same for one warp per query: more, fewer, or equally many?

# %% tags=["uses-exercise"]
q, k, v = np.random.default_rng(6).standard_normal((3, 64, 8)).astype(float32)
out = np.full((64, 8), np.nan, dtype=float32)
counting = simulate(warp_attention(8), observers=[*DEFAULT, *COUNTERS])
moved = counting[32, 64](q, k, v, float32(0.5), False, out).counters["memory"]["global"]
print(f"{moved['loads'] + moved['stores']:,} numbers")

# %% [markdown]
# It is 98,816 (with the solution's kernel): each query reads all keys and all values, and its own row once for each key. That is 19 times as much. On a GPU, caches reduce the difference, but it remains large. On an H200 the package's kernel of this kind took 68.7 ms where `flash_attention` took 5.0 ms (B 4, H 16, N 2048, d 64, causal). One warp per query is useful for few queries and many keys, as in decoding (lesson 14).
#
# ## 8. A layer
#
# Now use your kernel in a layer. `nn.MultiheadAttention` computes q, k and v from its input with one matrix, splits them into heads, attends in each head, joins the heads, and multiplies by a second matrix. The package has a layer with the same weights under the same names, `FusedAttention`. It leaves only the middle part to a kernel, and you can pass your own.
#
# First, a function that launches your kernel once for each head. It uses the GPU if there is one, otherwise `sim`. (On a GPU, Numba may warn that such a small launch leaves most of the GPU idle, which is true.)

# %%
from torch import nn

import kernels
from kernels import FusedAttention, attention, flash_attention

device = "cuda" if torch.cuda.is_available() else "cpu"


def here(kernel):
    """Return the kernel, ready to be launched where the tensors are."""
    return cuda.jit(kernel) if device == "cuda" else simulate(kernel)


def my_attention(q, k, v, causal):
    """Compute attention of q, k and v (B, H, N, d), float32, by the kernel of exercise
    6.3, with two warps, and so two queries, per block."""
    q, k, v = (tensor.detach().contiguous() for tensor in (q, k, v))
    out = torch.full_like(q, torch.nan)
    batches, heads, n, d = q.shape
    kernel = here(warp_attention(d))
    for b in range(batches):
        for h in range(heads):
            kernel[(n + 1) // 2, 64](
                q[b, h], k[b, h], v[b, h], float32(1 / math.sqrt(d)), causal, out[b, h]
            )
    return out


# %% [markdown]
# Next, create PyTorch's layer with random weights, and two of ours with the same weights: one with your kernel, and one with the package's `warp_attention`, which is your kernel with batch and heads in the grid, and with gradients (`kernels/flash/warp.py`). Without `attention=`, the layer uses the package's `flash_attention`.
#
# Like PyTorch, these kernels compute in float32, but they add in a different order, so the last digits differ. We require that no element differs by more than 10⁻⁴, and that the mean difference is less than 10⁻⁶.

# %% tags=["uses-exercise"]
torch.manual_seed(6)
layer = nn.MultiheadAttention(embed_dim=8, num_heads=2, batch_first=True)
# PyTorch initialises both biases with 0; that would hide a forgotten bias.
nn.init.normal_(layer.out_proj.bias)
nn.init.normal_(layer.in_proj_bias)
layer = layer.to(device)
layers = {
    "your kernel": FusedAttention.from_multihead_attention(
        layer, attention=my_attention
    ),
    "the package's kernel": FusedAttention.from_multihead_attention(
        layer, attention=kernels.warp_attention
    ),
}


def errors(fused, x, causal):
    """Return the largest and the mean difference between a layer of ours and
    PyTorch's, on x (B, N, E)."""
    future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=device).triu(1)
    with torch.no_grad():
        wanted = layer(
            x, x, x, attn_mask=future if causal else None, need_weights=False
        )[0]
        error = (fused(x, causal) - wanted).abs()
    return error.max().item(), error.mean().item()


x = torch.randn(2, 33, 8).to(device)
print(f"{'FusedAttention with':21}  causal  max < 1e-4  mean < 1e-6")
for name, fused in layers.items():
    for causal in (False, True):
        largest, mean = errors(fused, x, causal)
        print(f"{name:21}  {causal!s:6}  {largest < 1e-4!s:10}  {mean < 1e-6}")

# %% [markdown]
# ## Validate
#
# Each part is compared with an independent reference. Then your kernel is compared with the one of lesson 05, in which a *thread* has a query. Everything is in float32, with 40 queries and keys of 4 numbers. First the definitions of the comparisons, then the table:


# %%
def sums_and_merges(numbers):
    """Yield (stage, against, got, wanted) for the exercises 6.1 and 6.2."""
    x = numbers.standard_normal(45).astype(float32)
    sums = np.full(45, np.nan, dtype=float32)
    simulate(warp_sum)[1, 64](x, sums)
    yield "warp_sum", "numpy", sums, [x[:32].sum()] * 32 + [x[32:].sum()] * 13

    scores, values = numbers.standard_normal((2, 20)).astype(float32)
    scores *= 5
    m = np.full(32, -np.inf, dtype=float32)
    l, o = np.zeros((2, 32), dtype=float32)
    m[:20], l[:20], o[:20] = scores, 1, values
    simulate(merge_example)[1, 32](m, l, o)
    softmax = torch.softmax(torch.tensor(scores, dtype=torch.float64), dim=0).numpy()
    wanted = [softmax @ values] * 32
    yield "merge_lanes, 20 keys", "torch.softmax, float64", o / l, wanted


def attentions():
    """Yield (stage, against, got, wanted) for the exercise 6.3."""
    q, k, v = torch.randn(3, 1, 1, 40, 4)
    for causal in (False, True):
        stage = "warp_attention" + ", causal" * causal
        on_device = (tensor.to(device) for tensor in (q, k, v))
        yours = my_attention(*on_device, causal).cpu()
        exact = attention(q.double(), k.double(), v.double(), causal)
        yield stage, "reference, float64", yours, exact
        flash = flash_attention(q, k, v, causal)
        yield stage, "flash_attention (lesson 05)", yours, flash


# %% tags=["uses-exercise"]
print(f"{'stage':24}  {'against':31}  largest difference")
for stage, against, got, wanted in (
    *sums_and_merges(np.random.default_rng(6)),
    *attentions(),
):
    got, wanted = (np.asarray(x, dtype=np.float64) for x in (got, wanted))
    agrees = np.abs(got - wanted).max() <= 1e-5  # false for NaN
    verdict = "below 1e-05   ✓" if agrees else "ABOVE 1e-05   ✗"
    print(f"{stage:24}  {against:31}  {verdict}")

# %% [markdown]
# ### On a real GPU, if there is one
#
# The layers of section 8 have already used it. This cell gives your kernel more work: 1000 queries on a GPU, 50 without one. It prints the same line in both cases.

# %% tags=["uses-exercise"]
n = 1000 if device == "cuda" else 50
q, k, v = torch.randn(3, 1, 1, n, 8).to(device)
difference = (
    (my_attention(q, k, v, True) - attention(q.double(), k.double(), v.double(), True))
    .abs()
    .max()
    .item()
)
print(
    "one warp per query, largest difference from float64 below 1e-5:", difference < 1e-5
)

# %% [markdown]
# ## The ladder
#
# Here is the same task, with a warp for each query. **Predict**: does it need more transactions than the kernel of lesson 05, or fewer? (Who reads K and V from global memory, and how often?) `___`

# %% tags=["guess"]
guess("06 ladder", transactions=...)

# %% tags=["uses-exercise"]
show_ladder("06", warp_attention)

# %% [markdown]
# With a GPU, the next cell times your own kernel on it:

# %% tags=["gpu"]
time_rung("06", warp_attention)

# %% [markdown]
# It needs more: each warp reads every key from global memory by itself, where a block of lesson 05 shares it. An idea that saves one thing (barriers, shared memory) can cost more of another.
#
# ## In three lines
# - The 32 lanes of a warp run together and exchange values with shuffles: after five rounds of `shfl_xor`, every lane has the sum, or the merged state.
# - Every lane in the mask must execute the shuffle or vote. Keep it out of branches in which lanes diverge, and give idle lanes a neutral value.
# - One warp per query means 32 online softmaxes in registers, five merges and one division, with no shared memory and no barrier.
#
# **You can now** reduce anything that can be merged within a warp, and replace the attention of a PyTorch layer by a kernel that you have written.
#
# **Read on:** Yuan Lin and Vinod Grover, *Using CUDA Warp-Level Primitives* (NVIDIA Developer Blog, 2018) · NVIDIA, *CUDA C++ Programming Guide*, sections "Warp Shuffle Functions" and "Warp Vote Functions" · PTX ISA, instruction `shfl.sync`.
#
# **Next:** [lesson 07](07_numba.ipynb) compiles the same kernels for a real GPU, and looks at the compiler's output.
