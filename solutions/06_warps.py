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
# **85 minutes**, and 5 for the part marked *optional* · builds on lesson 01 (the state `m, l, o` and how two of them merge), lesson 03 (kernels, `simulate`) and lesson 04 (findings, `cuda.grid`)
#
# You will be able to:
#
# - let 32 threads hand values to each other with no shared memory and no barrier, and sum 32 numbers in five steps;
# - say what goes wrong when a shuffle stands in a branch, or when the last warp is not full;
# - write attention with one warp per query, put it into a layer, and hold it against PyTorch's `nn.MultiheadAttention`.
#
# A GPU does not run threads one by one. It runs them in **warps** of 32: the threads 0 to 31 of a block are one warp, 32 to 63 the next.
# A thread's place in its warp, from 0 to 31, is its **lane**. What a thread computes is in its **registers**, which no other
# thread can see. But the lanes of one warp have a private way to each other: the **shuffle**.
#
# Here is what this lesson does with it. Eight lanes have a number each, and in three rounds *every one* of them learns the
# sum of all eight. In each round a lane adds what one other lane has: first the one four places away, then two, then one. The
# orange lines lead to lane 5: in the end, to it from everybody. The picture is called a **butterfly**. (A warp is four times as wide,
# and needs five rounds. The next cell only draws: run it, there is no need to read it.)

# %% jupyter={"source_hidden": true}
import matplotlib.pyplot as plt
from course.figures import BLUE, ORANGE, show_figure


def draw_butterfly(numbers, steps, goal):
    """A row of lanes for each round, with what each lane knows;
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
# A warp has its 32 lanes do the same instruction at the same time. (Since NVIDIA's Volta of 2017, each lane has a program counter of its own, and lanes that have parted may run ahead of each other. The hardware still issues one instruction at a time for a warp.) That is what makes a GPU cheap: one part that fetches and
# decodes instructions serves 32 that compute. But what if lanes disagree about an `if`? Then the arms run **one after the
# other**, and the lanes that do not belong to an arm are switched off while it runs. This is called **divergence**.
#
# **Predict.** Both arms of an `if` take 10 microseconds. How long does a warp take that splits by `lane % 2`? And if the condition is
# the number of the *warp*, `warp % 2`?
#
# <details><summary>Answer</summary>20, as both arms run and half of the lanes are idle in each. In the second case 10: the lanes of a warp all go the same way,
# and different warps do not wait for each other.</details>
#
# Here is the same as `sim` has recorded it: two launches of a kernel with two arms. Time runs down, with a row for each line that accesses memory and a square for each lane; pale lanes are switched off.

# %%
import math

import numpy as np
import torch
from numba import cuda
from numpy import float32

from course import check
from course.pictures import draw_divergence
from sim import simulate
from sim.observers import DEFAULT, Trace


def two_arms(x, out, group):
    """Every second group of so many threads goes into the other arm."""
    t = cuda.threadIdx.x
    number = x[t]
    if t // group % 2 == 0:
        out[t] = number
    else:
        out[t] = -number
    x[t] = 0


traced = simulate(two_arms, observers=[*DEFAULT, Trace])
x, out = np.ones(64, dtype=float32), np.zeros(64, dtype=float32)
show_figure(
    draw_divergence(
        {
            "split by lane % 2": traced[1, 32](x, out, 1),
            "split by warp % 2": traced[1, 64](x, out, 32),
        }
    ),
    "rows of 32 squares, one per lane. Split by lane % 2, the warp takes four rows: "
    "the load with all lanes, then one arm with the even lanes, the odd ones pale, "
    "then the other arm with the odd lanes, the even ones pale, then the last store "
    "with all. Split by warp % 2, warp 0 and warp 1 take three rows each, all lanes "
    "in each row: the load, the arm of this warp, the last store.",
)

# %% [markdown]
# Four rows or three: a warp that splits pays for both arms. (Which arm comes first is up to the GPU; here they stand as in the source.)
#
# A kernel can ask which lanes are here at this moment: `cuda.activemask()` gives a number with one bit for every lane, lane 0 the last digit.
# (On a GPU it tells what happens to be so just then; nothing should depend on it.)
#
# **Predict.** What does lane 0 see in the kernel below, and what does lane 1?


# %%
def tell(report):
    """Print what `sim` has found in a launch."""
    print(
        *[finding.message for finding in report.findings] or ["no findings"], sep="\n\n"
    )


def who_is_here(seen):
    """seen[lane] = the lanes that are in the same arm of the branch, a bit each."""
    lane = cuda.threadIdx.x
    if lane % 4 == 0:
        seen[lane] = cuda.activemask()
    else:
        seen[lane] = cuda.activemask()


seen = np.zeros(32, dtype=np.uint32)
simulate(who_is_here)[1, 32](seen)
for lane in (0, 1):
    print(f"lane {lane} sees {seen[lane]:032b}")

# %% [markdown]
# Lane 0 is in the company of every fourth lane, lane 1 in that of the others. Divergence alone makes no result wrong. It costs time, and it
# becomes a trap as soon as lanes want something from each other.
#
# ## 2. Four ways to hand something over
#
# In a shuffle each lane puts in a value and takes out the value that *another* lane has put in. There are four, which differ in whose it is:
#
# | call | the lane gets the value of lane |
# |---|---|
# | `cuda.shfl_down_sync(mask, value, 2)` | `lane + 2` |
# | `cuda.shfl_up_sync(mask, value, 2)` | `lane - 2` |
# | `cuda.shfl_xor_sync(mask, value, 2)` | `lane ^ 2` |
# | `cuda.shfl_sync(mask, value, 2)` | `2` |
#
# Down means from higher lanes down to lower ones. If there is no such lane, as for lane 31 with `lane + 2`, a lane gets its own value back.
# `^` is *exclusive or*: it flips bits. 2 is binary 10, so `lane ^ 2` flips the second bit from the right: 5, binary 101, becomes 111, which is
# 7; and 7 becomes 5. With any number but 0, `^` makes pairs that swap their values; with a power of two, the two lanes of a pair differ in one bit.
#
# The `mask` says who takes part, a bit for each lane. We always want all: 32 ones, `0xffffffff`. Nobody gets an answer before all lanes of the
# mask that are still running have come to the call; that is the `_sync` in the name.
#
# **Predict.** Every lane puts in 10 times its own number. What do lane 5 and lane 31 get?
#
# | | down by 2 | up by 2 | xor 2 | from 2 |
# |---|---|---|---|---|
# | lane 5 | `___` | `___` | `___` | `___` |
# | lane 31 | `___` | `___` | `___` | `___` |

# %%
ALL_LANES = 0xFFFFFFFF


def hand_over(out):
    """out[lane] = what the lane gets from each of the four shuffles."""
    lane = cuda.threadIdx.x
    mine = 10 * lane
    out[lane, 0] = cuda.shfl_down_sync(ALL_LANES, mine, 2)
    out[lane, 1] = cuda.shfl_up_sync(ALL_LANES, mine, 2)
    out[lane, 2] = cuda.shfl_xor_sync(ALL_LANES, mine, 2)
    out[lane, 3] = cuda.shfl_sync(ALL_LANES, mine, 2)


out = np.full((32, 4), -1)
simulate(hand_over)[1, 32](out)
print("lane   down     up    xor   from 2")
for lane in (0, 1, 5, 7, 30, 31):
    print(f"{lane:4}" + "".join(f"{value:7}" for value in out[lane]))

# %% [markdown]
# Lanes 30 and 31 got their own value from *down*, lanes 0 and 1 from *up*. It does no harm as long as nobody uses it.
#
# ## 3. A sum in five steps
#
# In lesson 03 a block summed its numbers in shared memory, with a barrier after every halving. A warp needs neither.
# On paper, with a warp of 8 lanes and `shfl_down` by 4, 2, 1, always adding what comes:
#
# | lane | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |
# |---|---|---|---|---|---|---|---|---|
# | start | 3 | 1 | 4 | 1 | 5 | 9 | 2 | 6 |
# | down by 4 | 8 | 10 | 6 | 7 | · | · | · | · |
# | down by 2 | 14 | 17 | · | · | · | · | · | · |
# | down by 1 | **31** | · | · | · | · | · | · | · |
#
# The dots are numbers that nobody needs. Lane 4, for example, asks lane 8, which does not exist, gets its own 5 back, and holds 10. With 32 lanes
# the steps are 16, 8, 4, 2, 1.
#
# **Predict.** 32 lanes hold 1, 2, 3, …, 32; the sum is 528. Which lanes hold 528 after the five steps of the kernel below?


# %%
def sum_down(x, out):
    """out[lane] = what the lane holds after five additions; one warp, 32 numbers."""
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
print("lanes that hold 528:", [lane for lane in range(32) if out[lane] == 528])

# %% [markdown]
# Only lane 0. If one thread is to write the sum, that is enough. Often everybody needs it, in a softmax for instance, where each
# number is divided by the sum. Then you want the butterfly of the first picture.
#
# ### Exercise 6.1 · warp_sum · about eight lines
# Write the kernel `warp_sum(x, out)`: `out[i]` becomes the sum of all elements that belong to the warp of thread `i`. So the first 32 elements of `out`
# are all equal, and so are the next 32. There are several warps in a block and several blocks. The number of elements may be anything; threads
# without an element read and write nothing. Blocks have a multiple of 32 threads. Use no shared memory, no atomics, and no barrier.
#
# <details><summary>Hint 1: who is in my warp?</summary>
#
# You need not know. Shuffles stay within the warp: in a block of 64 threads, lane 5 of warp 1 gets its values from warp 1.
# </details>
# <details><summary>Hint 2: everybody wants the sum</summary>
#
# Follow the picture: `shfl_xor_sync` in place of `shfl_down_sync`.
# </details>
# <details><summary>Hint 3: a thread without an element</summary>
#
# It has a lane, and others wait for it and use what it gives. Let it take part with `float32(0)`. So the guard `i < x.size` stands at the load
# and at the store, and the loop is under no `if`.
# </details>


# %% tags=["exercise"]
def warp_sum(x, out):
    """out[i] = the sum of the elements of x that the warp of thread i has;
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
# Two warps in one block, the second with 8 elements only. The first has the numbers of the paper four times, 4 · 31 = 124; the second has them once:

# %% tags=["uses-exercise"]
x = np.tile(np.array([3, 1, 4, 1, 5, 9, 2, 6], dtype=float32), 5)
out = np.full(40, np.nan, dtype=float32)
simulate(warp_sum)[1, 64](x, out)
print(out[:32], out[32:], sep="\n\n")

# %% [markdown]
# ## 4. Bug hunt: the lanes that had nothing to do
#
# Look at the dots in the table above: after the first step half of the lanes work for nothing. In lesson 03 the
# tree sum had an `if t < step`, and spared them the work. Somebody does the same here.
#
# **Guess before you run.** 32 lanes, the numbers 1 to 32. What does lane 0 write?
#
# - ( ) 528, and less work was done
# - ( ) a wrong number, or anything at all
# - ( ) nothing: it waits for ever


# %%
def thrifty_sum(x, out):
    """out[0] = the sum of 32 numbers, with no lane doing anything in vain;
    or so it was meant."""
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
tell(simulate(thrifty_sum, on_finding="report")[1, 32](x, out))
print()
print("lane 0 wrote", out[0])

# %% [markdown]
# Lane 0 asks lane 16, and lane 16 is not there: it went round the `if`, round the loop, and has returned. A shuffle is no store that waits
# in memory until somebody fetches it. **A value is handed over only if both lanes make the call.** What you get from an absent lane is undefined: `sim`
# gives NaN, so that you see it; a GPU gives some number, and no message. On the H200 on which we tried, lane 0 wrote 1.
#
# Why does lane 0 not wait for ever, as in section 7 of lesson 04? There the missing lanes were still on their way, and stood at another shuffle. Here
# they have returned, and nobody waits for those.
#
# Nothing was saved either. The lanes of a warp do an instruction together or wait while others do it; a lane that is switched off is no
# faster.
#
# Here is the same mistake in its most frequent form. It looks like good style: the guard comes first, and a thread without an element is done with.
#
# **Guess before you run.** 45 elements, all of them 1, in a block of 64 threads. The right sums are 32 and 13. Which of them comes out?


# %%
def hasty_sum(x, out):
    """out[w] = the sum of the elements of warp w; or so it was meant."""
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
tell(simulate(hasty_sum, on_finding="report")[1, 64](x, out))
print()
print("sums:", out)

# %% [markdown]
# The first is right: its warp is full, so a test with 32, 64 or 1024 elements passes. In the second warp only lanes 0 to 12 are left, and lane 0
# asks lane 16. Worse: on our H200 this kernel wrote 32 and 13, the right sums, as if lanes that have left gave 0. Nothing promises that they do. With a
# maximum in place of the sum, and negative numbers, a 0 would be wrong as well.
#
# So there are two rules. **All lanes come to every shuffle**; a lane without data brings something neutral, a 0 for a sum. And **launch whole
# warps**: in a block of 45 threads the lanes 13 to 31 of the second warp do not even exist.
#
# What is allowed is a branch in which a warp stays together, such as `if warp == 0`, or a `return` for all 32 lanes of a warp at once.
#
# ## 5. Votes (optional)
#
# Sometimes one bit from each lane is enough. In a **vote** each lane puts in a yes or a no, and all lanes get the same answer:
#
# | call | answer |
# |---|---|
# | `cuda.any_sync(mask, yes)` | does any lane say yes? |
# | `cuda.all_sync(mask, yes)` | do all say yes? |
# | `cuda.ballot_sync(mask, yes)` | who says yes: a number with one bit for every lane, lane 0 the last digit |
#
# `cuda.popc(number)` counts the ones in a number's binary form, so `popc(ballot)` is the number of lanes that said yes.
#
# Attention can use that. A batch of texts is padded to the length of the longest, and no query may look at a padding key. A warp goes over the
# keys, 32 at a time, one each lane. If none of the 32 is allowed, it skips them all.
#
# **Predict.** 70 keys; 0 to 39 are words, except that key 3 is forbidden, and the rest is padding. The warp makes three stops. How many allowed keys
# does it count at each? What are the last ten digits of the first ballot?


# %%
def count_allowed(allowed, ballots, counts):
    """For the keys 32 s to 32 s + 31: ballots[s] says which are allowed,
    counts[s] how many; untouched if none is. One warp."""
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
for stop in range(3):
    print(
        f"stop {stop}: {ballots[stop]:032b}   "
        f"{'skipped' if counts[stop] < 0 else f'{counts[stop]} allowed'}"
    )

# %% [markdown]
# The `continue` stands before a vote in which all lanes take part. Why is it no case for section 4? Because the condition is itself the outcome of a
# vote: it is the same in all lanes, so they skip together. With `if not mine: continue` they would not.
#
# At the third stop, lanes 6 to 31 have no key at all. They still vote: no.
#
# ## 6. Thirty-two readers
#
# Lesson 01 ended with thirty-two people who share out 1000 pairs of score and value, and merge what they know in five rounds. They were the lanes of a warp.
# Each lane holds a state `(m, l, o)`: its largest score, and two sums in units of e^m. Where the sum had `value + other`, there is a merge now.
#
# On paper with 8 lanes and, as in lesson 01, in base 2, so that all numbers are plain. Five keys, with scores **1, 0, 2, 0, 3** and values
# **12, 40, 6, 8, 8**. Lanes 0 to 4 have read one each. Lanes 5 to 7 have read nothing: `(−∞, 0, 0)`.
#
# | lane | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |
# |---|---|---|---|---|---|---|---|---|
# | start | 1, 1, 12 | 0, 1, 40 | 2, 1, 6 | 0, 1, 8 | 3, 1, 8 | −∞, 0, 0 | −∞, 0, 0 | −∞, 0, 0 |
# | lane ^ 4 | 3, 5/4, 11 | 0, 1, 40 | 2, 1, 6 | 0, 1, 8 | 3, 5/4, 11 | 0, 1, 40 | 2, 1, 6 | 0, 1, 8 |
# | lane ^ 2 | 3, 7/4, 14 | ? | 3, 7/4, 14 | ? | 3, 7/4, 14 | ? | 3, 7/4, 14 | ? |
# | lane ^ 1 | ? | ? | ? | ? | ? | ? | ? | ? |
#
# The first round, lane 0 with lane 4: the larger maximum is 3. Lane 0's sums shrink by 2^(1 − 3) = 1/4, lane 4's by 1. So l = 1/4 + 1 = 5/4 and
# o = 12/4 + 8 = 11. Lane 1 meets lane 5, which knows nothing: afterwards both have lane 1's state.
#
# **Predict** the question marks. There are only two different ones.
#
# <details><summary>Answer</summary>
#
# Second round, lane 1 with lane 3: both maxima are 0, so nothing shrinks, and the states add up to (0, 2, 48). Third round: (3, 7/4, 14) with (0, 2, 48). The latter
# shrinks by 2^(0 − 3) = 1/8: l = 7/4 + 2/8 = 2, o = 14 + 48/8 = 20. All eight lanes hold (3, 2, 20), and the output is 20/2 = 10.
#
# The usual way agrees: the weights are to one another as 2 : 1 : 4 : 1 : 8, and (2·12 + 1·40 + 4·6 + 1·8 + 8·8) / 16 = 160/16 = 10.
# </details>
#
# In attention a value is a vector, and so is `o`. Each lane has its own, made by `cuda.local.array(d, float32)`: d numbers that belong to this thread
# alone. A shuffle hands over one number, so `o` takes one shuffle for each of its d numbers.
#
# ### Exercise 6.2 · merge_lanes · about twelve lines
# Write `merge_lanes(m, l, o)`, which a kernel calls with all lanes. `m` and `l` are numbers, `o` is the lane's local array. When it is done every lane has the merged
# state of all 32: it returns `m` and `l`, and has changed `o` in place. The line above the function, `@cuda.jit(device=True)`, marks a function
# that is called by kernels.
#
# As in lesson 01, a lane that has read nothing must change nothing, even where *both* partners have read nothing. If there are fewer than 32
# keys, there always are such lanes. The lanes meet by shuffles alone, not more than six for each of the d + 2 numbers.
#
# <details><summary>Hint 1: the frame</summary>
#
# The loop of `warp_sum`: `step = 16`, `while step > 0`, `step //= 2`. In it first fetch `other_m` and `other_l`, then find the common maximum and the two factors.
# </details>
# <details><summary>Hint 2: the factors</summary>
#
# `mine = math.exp(m - larger) if m > MINUS_INFINITY else float32(0)`, and `theirs` likewise with `other_m`.
# </details>
# <details><summary>Hint 3: the order of things</summary>
#
# `o[c] = mine * o[c] + theirs * (what the partner's o[c] was)`, for every c of `range(o.size)`. Fetch each `o[c]` before you change it, and let `m = larger` be the last
# step of the round: the factors need the old one.
# </details>

# %% tags=["exercise"]
MINUS_INFINITY = float32(-math.inf)


@cuda.jit(device=True)
def merge_lanes(m, l, o):
    """Merge the states of the 32 lanes of a warp:
    returns (m, l), and changes o, a local array; the same in every lane afterwards."""
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
# The page, from your own function. It works in base e; with scores multiplied by ln 2 we get base 2, as e^(s · ln 2) = 2^s. Lanes 5 to 31 have read nothing.


# %% tags=["uses-exercise"]
def merge_the_page(m, l, o):
    """Each thread's state becomes that of its warp; m, l and o are 1-D."""
    lane = cuda.threadIdx.x
    my_o = cuda.local.array(1, float32)
    my_o[0] = o[lane]
    m[lane], l[lane] = merge_lanes(m[lane], l[lane], my_o)
    o[lane] = my_o[0]


m, l, o = (
    np.full(32, -np.inf, dtype=float32),
    np.zeros(32, dtype=float32),
    np.zeros(32, dtype=float32),
)
m[:5], l[:5], o[:5] = math.log(2) * np.array([1, 0, 2, 0, 3]), 1, [12, 40, 6, 8, 8]
simulate(merge_the_page)[1, 32](m, l, o)
for lane in (0, 5, 31):
    print(
        f"lane {lane:2}:  m = {m[lane] / math.log(2):.3f}   l = {l[lane]:.3f}   "
        f"o = {o[lane]:.3f}   o / l = {o[lane] / l[lane]:.3f}"
    )

# %% [markdown]
# ## 7. One warp, one query
#
# Now put it together. The kernel of lesson 05 gave a query to one thread, which had to read all the keys. Here a query has a whole warp. Lane `t` reads the keys
# `t`, `t + 32`, `t + 64`, … and runs the online softmax of lesson 01 on them, in registers, without a word to anybody. Then one call of `merge_lanes`, and the
# output is `o / l`. No shared memory, and no barrier anywhere.
#
# With 70 keys:
#
# | lane | 0 | 1 | … | 5 | 6 | … | 31 |
# |---|---|---|---|---|---|---|---|
# | reads keys | 0, 32, 64 | 1, 33, 65 | … | 5, 37, 69 | 6, 38 | … | 31, 63 |
#
# Why not keys 0, 1, 2 for the first lane and 3, 4, 5 for the next? That would be right as well, and for rows of eight numbers or more no dearer: each lane reads a row of its own
# either way. (Shorter rows share their piece of memory with a neighbour's: lesson 08.) But `range(lane, seen, 32)` needs no size of a share, whatever the number of keys, and no lane
# reads more than one key more than another.
#
# **Predict.** With causal attention, query `i` sees the keys `j <= i`. How many lanes have read something when the warp of query 4 is done? And which lane of query 32 reads
# two keys?
#
# <details><summary>Answer</summary>Query 4 sees five keys: lanes 0 to 4 have one each, 27 lanes hold (−∞, 0, 0). Query 32 sees 33 keys, and key 32 belongs to lane
# 0. The other 31 lanes wait while it reads: divergence costs time, no more.</details>
#
# One thing is new in the code. Registers have no index: a GPU keeps `o` in registers only if the compiler can write out every loop over it, and for that d must be a
# constant. So `warp_attention(d)` is an ordinary function that *makes* a kernel, in which d is one.
#
# ### Exercise 6.3 · warp_attention · about fifteen lines
# Write the part of the kernel that reads the keys, merges, and writes. Lane t reads the keys of the table, t, t + 32, and so on, and no others. One of the 32 lanes writes the row of `out`; they all know it. `scale` is given (mostly 1/√d), and the
# number of keys may differ from the number of queries.
#
# <details><summary>Hint 1: which keys?</summary>
#
# `for j in range(lane, seen, 32)`, where `seen` is the number of keys that the query sees: `min(keys, i + 1) if causal else keys`. For a lane that has none the loop does nothing, and
# the state stays as it was.
# </details>
# <details><summary>Hint 2: one key</summary>
#
# Add up `q[i, c] * k[j, c]` over c, starting with `float32(0)`, and multiply by `scale`. Then as in lesson 01: `larger = max(m, score)`, `shrink = math.exp(m - larger)`,
# `weight = math.exp(score - larger)`. `l` and each `o[c]` shrink, and get the new term. A score is finite, so `larger` is, and exp(−∞) is 0.
# </details>
# <details><summary>Hint 3: after the loop</summary>
#
# `m, l = merge_lanes(m, l, o)`, outside the loop and under no `if`. Then, if `lane == 0`, `out[i, c] = o[c] / l` for every c.
# </details>


# %% tags=["exercise"]
def warp_attention(d):
    """The kernel for rows of d numbers."""

    def warp_attention_kernel(q, k, v, scale, causal, out):
        """out = attention of q (N, d) on k and v (keys, d), all float32,
        one warp per query; causal: query i sees keys j <= i."""
        keys = k.shape[0]
        lane = cuda.threadIdx.x % 32
        i = cuda.grid(1) // 32  # the query of this warp
        if i >= q.shape[0]:
            return  # all 32 lanes go
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
# **A question about it.** Somebody writes `range(0, seen)` in place of `range(lane, seen, 32)`: every lane reads *all* keys. What comes out?
#
# - ( ) NaN
# - ( ) 32 times the right output
# - ( ) the right output
#
# <details><summary>Answer</summary>
#
# The right output. All lanes hold the same state, so after merging `m` is right, and `l` and `o` are both 32 times too large: o / l is what it was. A test that looks at the
# result alone passes a kernel that does 32 times the work. (So the check of 6.3 also looks at who reads which key.)
# </details>
#
# The launch as a picture: one query, 70 keys with rows of one number, a row for each lane. Blue are the loads of q, k and v.

# %% tags=["uses-exercise"]
from sim.observers import COUNTERS

q, k, v = np.random.default_rng(6).standard_normal((3, 70, 1)).astype(float32)
out = np.full((1, 1), np.nan, dtype=float32)
traced = simulate(warp_attention(1), observers=[*DEFAULT, Trace])
traced[1, 32](q[:1], k, v, float32(1), False, out).timeline()

# %% [markdown]
# ### The price
#
# No barrier and no shared memory: what is it paid with? In lesson 05 the queries of a block shared each tile. For 64 queries and keys of 8 numbers your kernel of lesson 05, with 16 queries a
# block, loads and stores 5,120 numbers of global memory. **Predict** the same for one warp per query: more, fewer, as many?

# %% tags=["uses-exercise"]
q, k, v = np.random.default_rng(6).standard_normal((3, 64, 8)).astype(float32)
out = np.full((64, 8), np.nan, dtype=float32)
counting = simulate(warp_attention(8), observers=[*DEFAULT, *COUNTERS])
moved = counting[32, 64](q, k, v, float32(0.5), False, out).counters["memory"]["global"]
print(f"{moved['loads'] + moved['stores']:,} numbers")

# %% [markdown]
# 98,816 (with the solution's kernel): for each query all keys and all values, and the query's own row once for each key. That is 19 times as much. Caches soften it on a GPU, and still: on an H200 the package's
# kernel of this kind took 68.7 ms where `flash_attention` took 5.0 (B 4, H 16, N 2048, d 64, causal). One warp a query is for few queries and many keys, as in decoding (lesson 14).
#
# ## 8. A layer
#
# A layer of attention is more than attention. `nn.MultiheadAttention` makes q, k and v from its input with one matrix, cuts them into heads, attends in each head, joins
# the heads, and multiplies by a second matrix. The package has a layer with the same weights under the same names, `FusedAttention`, which leaves only the
# middle to a kernel; you can hand it your own. First the launches, one for each head. They go to the GPU if there is one, and to `sim` if not. (On a GPU, Numba may
# warn that so small a launch leaves most of it idle. It is right.)

# %%
from torch import nn

import kernels
from kernels import FusedAttention, attention, flash_attention

device = "cuda" if torch.cuda.is_available() else "cpu"


def here(kernel):
    """The kernel, ready to be launched where the tensors are."""
    return cuda.jit(kernel) if device == "cuda" else simulate(kernel)


def my_attention(q, k, v, causal):
    """Attention of q, k and v (B, H, N, d), float32, by the kernel of exercise 6.3:
    two warps, and so two queries, in a block."""
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
# Then PyTorch's layer with random weights, and two of ours with the same ones: with your kernel, and with the package's `warp_attention`. That one is yours, with batch
# and heads in the grid, and gradients. (Like yours it stands in a function that makes it: `kernels/flash/warp.py`. Without `attention=`, the layer takes the package's `flash_attention`.)
#
# These kernels compute in float32, like PyTorch, but add in another order; so the last digits differ. The usual demand is: nowhere off by more than 10⁻⁴, and
# on average by less than 10⁻⁶.

# %% tags=["uses-exercise"]
torch.manual_seed(6)
layer = nn.MultiheadAttention(embed_dim=8, num_heads=2, batch_first=True)
# PyTorch starts both biases at 0, which would hide one that we forget
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
    """The largest and the mean difference between a layer of ours and PyTorch's,
    on x (B, N, E)."""
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
# Each part against an independent one, then your kernel against the one of lesson 05, which gives a query to a *thread*. All in float32, with 40 queries and keys of 4 numbers.


# %% tags=["uses-exercise"]
def validate(stage, against, got, wanted, tolerance):
    """One row of the table. NaN fails."""
    agrees = (
        np.abs(
            np.asarray(got, dtype=np.float64) - np.asarray(wanted, dtype=np.float64)
        ).max()
        <= tolerance
    )
    print(
        f"{stage:24}  {against:31}  {'below' if agrees else 'ABOVE'} {tolerance:.0e}   "
        f"{'✓' if agrees else '✗'}"
    )


numbers = np.random.default_rng(6)
x = numbers.standard_normal(45).astype(float32)
sums = np.full(45, np.nan, dtype=float32)
simulate(warp_sum)[1, 64](x, sums)
sums_by_numpy = [x[:32].sum()] * 32 + [x[32:].sum()] * 13

scores = 5 * numbers.standard_normal(20).astype(float32)
values = numbers.standard_normal(20).astype(float32)
m, l, o = (
    np.full(32, -np.inf, dtype=float32),
    np.zeros(32, dtype=float32),
    np.zeros(32, dtype=float32),
)
m[:20], l[:20], o[:20] = scores, 1, values
simulate(merge_the_page)[1, 32](m, l, o)
softmax = torch.softmax(torch.tensor(scores, dtype=torch.float64), dim=0).numpy()

q, k, v = torch.randn(3, 1, 1, 40, 4)
yours, reference, flash = {}, {}, {}
for causal in (False, True):
    yours[causal] = my_attention(q.to(device), k.to(device), v.to(device), causal).cpu()
    reference[causal] = attention(q.double(), k.double(), v.double(), causal)
    flash[causal] = flash_attention(q, k, v, causal)

print(f"{'stage':24}  {'against':31}  largest difference")
validate("warp_sum", "numpy", sums, sums_by_numpy, 1e-5)
validate(
    "merge_lanes, 20 keys",
    "torch.softmax, float64",
    o / l,
    [softmax @ values] * 32,
    1e-5,
)
validate("warp_attention", "reference, float64", yours[False], reference[False], 1e-5)
validate(
    "warp_attention, causal", "reference, float64", yours[True], reference[True], 1e-5
)
validate(
    "warp_attention", "flash_attention (lesson 05)", yours[False], flash[False], 1e-5
)
validate(
    "warp_attention, causal",
    "flash_attention (lesson 05)",
    yours[True],
    flash[True],
    1e-5,
)

# %% [markdown]
# ### On a real GPU, if there is one
#
# The layers of section 8 have used it already. This cell gives your kernel more to do: 1000 queries on a GPU, 50 without one. It prints the same line.

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
# ## In three lines
# - The 32 lanes of a warp run together and hand each other values with shuffles: five rounds of `shfl_xor`, and everybody knows the sum, or the merged state.
# - A shuffle or a vote needs every lane that its mask names: keep it out of branches in which lanes part, and give idle lanes a neutral value.
# - One warp per query: 32 online softmaxes in registers, five merges, one division; no shared memory, no barrier.
#
# **You can now** reduce anything that can be merged within a warp, and swap the attention of a PyTorch layer for a kernel that you have written.
#
# **Next:** [lesson 07](07_numba.ipynb) compiles the same kernels for a real GPU, and looks at what the compiler makes of them.
