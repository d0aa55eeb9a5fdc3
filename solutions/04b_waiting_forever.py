# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 04b · What can go wrong: waiting
#
# **55 minutes** · builds on lesson 04 (findings, `cuda.grid`)
#
# You will be able to:
#
# - recognise the bugs in which threads wait for each other, from the source;
# - say what each of the nine kinds of bugs looks like on a real GPU, which reports none of them;
# - name the bugs of six kernels without running them.
#
# In lesson 04, threads accessed the wrong place, or accessed it at the wrong moment. Here they wait, and some of them wait forever. The steps are the same: **guess**, **run**, **fix**. These are the names that `sim` has for the nine kinds of bugs:
#
# | the wrong place | the wrong moment | waiting forever |
# |---|---|---|
# | `negative-index` | `race-global` | `deadlock` |
# | `out-of-bounds` | `race-shared` | `no-progress` |
# | `uninitialized-read` | | `barrier-divergence` |
# | | | `warp-divergence` |
#
# The next cell loads the kernels of lesson 04, broken and fixed, because a table at the end runs all nine. If you have not solved one of these kernels, or not saved it, the cell loads the solution's version instead.

# %%
import numpy as np
from numba import cuda
from numpy import float32, int32

from course import brought, check
from sim import simulate
from sim.observers import DEFAULT, Trace

letters = np.array([0, 1, 0, 2, 0, 1, 0, 0], dtype=int32)
(print_findings, checkerboard, previous, block_max, running_sum, histogram) = brought(
    "04_what_can_go_wrong",
    *"print_findings checkerboard previous block_max running_sum histogram".split(),
)
(
    checkerboard_fixed,
    previous_fixed,
    block_max_fixed,
    running_sum_fixed,
    histogram_fixed,
) = brought(
    "04_what_can_go_wrong",
    *"checkerboard_fixed previous_fixed block_max_fixed".split(),
    *"running_sum_fixed histogram_fixed".split(),
)

# %% [markdown]
# ## 1. The mirror, again
#
# You know this kernel from lesson 03: each block writes its part of `x` in reverse order. There it worked for whole parts only. This one computes how long its part is. (`i - t` is where the part begins.) And instead of an `if` around everything, the guard is a `return`, as in much of the code that you will read.


# %%
def mirror(x, out):
    """Write each block's part of x to out in reverse order; at most 32 threads."""
    part = cuda.shared.array(32, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if i >= x.size:
        return
    part[t] = x[i]
    cuda.syncthreads()
    length = min(cuda.blockDim.x, x.size - (i - t))
    out[i] = part[length - 1 - t]


# %% [markdown]
# **Guess before you run.** There are six numbers and two blocks of four threads. What is the output?
#
# - ( ) 4 3 2 1 6 5
# - ( ) 4 3 2 1, and then nothing
# - ( ) nothing at all

# %%
x = np.array([1, 2, 3, 4, 5, 6], dtype=float32)
out = np.full(6, np.nan, dtype=float32)
print_findings(simulate(mirror, on_finding="report")[2, 4](x, out))
print()
print(out)

# %% [markdown]
# This finding is not about an element of an array. It reports **which threads wait, and where**. In block 1, two of four threads wait at the barrier in line 8. The other two, of which it names thread 2, have *returned*, so they will never reach the barrier. In block 0 all threads arrived at the barrier, and it finished. (`sim` ends a block in which no thread can continue. The simulator that you built yourself would have waited ten seconds.)

# %%
report = simulate(mirror, on_finding="report", observers=[*DEFAULT, Trace])[2, 4](
    x, out
)
report.timeline(block=1)

# %% [markdown]
# Remember the rule from lesson 03b: a guard may skip the work, but never the barrier. A `return` skips everything after it.
#
# ### Exercise 4.6 · mirror · three lines
# Every thread of the block must reach one `cuda.syncthreads()`. Everything stays in float32, as in lesson 04.
#
# <details><summary>Hint 1: without return</summary>
#
# Use two guards `if i < x.size:`, one around the code before the barrier and one around the code after it.
# </details>
# <details><summary>Hint 2: and <code>length</code>?</summary>
#
# It is only a computation, so it may be inside or outside a guard. Threads without an element do not need it.
# </details>


# %% tags=["exercise"]
def mirror_fixed(x, out):
    """Write each block's part of x to out in reverse order; at most 32 threads."""
    # BEGIN SOLUTION 4.6
    part = cuda.shared.array(32, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if i < x.size:
        part[t] = x[i]
    cuda.syncthreads()
    length = min(cuda.blockDim.x, x.size - (i - t))
    if i < x.size:
        out[i] = part[length - 1 - t]
    # END SOLUTION


# %% tags=["check"]
check.ex04_6(mirror_fixed)

# %% [markdown]
# Would the broken kernel hang on a GPU? CUDA promises nothing: it allows `syncthreads` under a condition only if the condition has the same value in the whole block. On hardware since Volta (2017), the barrier waits only for the threads that have not *exited*, so after an early `return` the kernel may well give correct values there. If a barrier is inside an `if` and other threads skip it without returning, those threads are still running, and the barrier waits for them. `sim` relies only on what the language promises.
#
# ## 2. Neighbours swap places
#
# Here you need two new terms, which lesson 06 explains in detail. A GPU schedules its threads in groups of 32, called [**warps**](../docs/glossary.md). The position of a thread in its warp is its [**lane**](../docs/glossary.md). Threads of one warp can pass a value to each other directly, without shared memory. This is called a [**shuffle**](../docs/glossary.md).

# %% [markdown]
# In `cuda.shfl_down_sync(0xffffffff, value, 1)` each lane supplies its own `value` and gets the value of the next lane. `cuda.shfl_up_sync` does the same with the previous lane.
#
# The first argument is a **mask** that names the participating lanes, one bit per lane: `0xffffffff` has 32 ones, so it names all of them. Every lane in the mask that has not exited has to execute this call. Until it does, all the other lanes wait.


# %%
def swap_neighbours(x, out):
    """Set out to x[1], x[0], x[3], x[2], ...; an element per thread, whole warps."""
    i = cuda.grid(1)
    if i % 2 == 0:
        other = cuda.shfl_down_sync(0xFFFFFFFF, x[i], 1)
    else:
        other = cuda.shfl_up_sync(0xFFFFFFFF, x[i], 1)
    out[i] = other


# %% [markdown]
# **Guess before you run.** An even thread takes the value of the next thread, and an odd thread takes the value of the previous one, so each of the 32 executes exactly one shuffle. What happens?
#
# - ( ) they swap places
# - ( ) each gets its own number back
# - ( ) the even ones wait for the odd ones, and the odd ones for the even ones

# %%
x = np.arange(32).astype(float32)
out = np.full(32, np.nan, dtype=float32)
print_findings(simulate(swap_neighbours, on_finding="report")[1, 32](x, out))
print()
print("threads that wrote a value:", np.count_nonzero(~np.isnan(out)))

# %% [markdown]
# The even lanes wait in line 5 for the odd ones, *which never arrive*, because they wait in line 7 for the even ones. The two lines with *waits* show one example of each. Each call names all 32 lanes in its mask, and only 16 arrive.
#
# The second half of the likely fix, a mask of the lanes that do arrive, would not help here: a lane can take a value only from a lane that participates. So use the first half: **call the shuffle where all lanes execute it**, and decide afterwards.
#
# ### Exercise 4.7 · swap_neighbours · three lines
#
# <details><summary>Hint 1: no call under an <code>if</code></summary>
#
# Every thread executes both shuffles, and then has two values, `after` and `before`. Which one does it need?
# </details>
# <details><summary>Hint 2: the first and the last lane</summary>
#
# Lane 0 has no previous lane, and lane 31 has no next lane. There, a shuffle returns the lane's own value, and in this exercise neither of them uses it.
# </details>


# %% tags=["exercise"]
def swap_neighbours_fixed(x, out):
    """Set out to x[1], x[0], x[3], x[2], ...; an element per thread, whole warps."""
    # BEGIN SOLUTION 4.7
    i = cuda.grid(1)
    after = cuda.shfl_down_sync(0xFFFFFFFF, x[i], 1)
    before = cuda.shfl_up_sync(0xFFFFFFFF, x[i], 1)
    out[i] = after if i % 2 == 0 else before
    # END SOLUTION


# %% tags=["check"]
check.ex04_7(swap_neighbours_fixed)

# %% [markdown]
# ## 3. Fractions of a total
#
# The other half of a softmax divides each number by the sum of all of them. All blocks add to one total, with atomic operations. Then all threads have to **wait for all blocks**, but `syncthreads` waits only for the threads of one block. There is a barrier for the whole grid: `cuda.cg.this_grid().sync()`. It opens when every thread of every block has arrived. (This requires a [**cooperative launch**](../docs/glossary.md): all blocks must be on the GPU at the same time, so the grid must not be too large. Numba starts one automatically.)


# %%
def shares(x, total, out):
    """Set out to x / sum of x, and total[0] to that sum; total is a single 0 before."""
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(total, 0, x[i])
        cuda.cg.this_grid().sync()
        out[i] = x[i] / total[0]


# %% [markdown]
# **Guess before you run.** There are eight numbers in blocks of four. The kernel worked with two blocks. Somebody launches three, to be safe. The third block has nothing to do. What happens?
#
# - ( ) the same as with two blocks
# - ( ) block 2 waits forever
# - ( ) blocks 0 and 1 wait forever

# %%
x = np.array([1, 2, 3, 4, 4, 3, 2, 1], dtype=float32)
for blocks in [2, 3]:
    total, out = np.zeros(1, dtype=float32), np.full(8, np.nan, dtype=float32)
    print(f"{blocks} blocks:")
    print_findings(simulate(shares, on_finding="report")[blocks, 4](x, total, out))
    print("total", total, "shares", out)
    print()

# %% [markdown]
# This is the mistake of the mirror, one level up. Two of three blocks wait at the barrier of the grid. The third had nothing to do, skipped the `if`, and has ended. The total is already complete, and yet no block can continue.
#
# (Why does `sim` not call this `barrier-divergence`? Within each block, all threads do the same. Only the blocks differ. `sim` reports `barrier-divergence` if one block barrier explains why threads wait, `warp-divergence` if one operation of a warp does, and `deadlock` if several blocks or several kinds of barriers are involved.)
#
# ### Exercise 4.8 · shares · two lines
# Let all threads wait exactly once at the barrier of the grid.
#
# <details><summary>Hint</summary>
#
# As in 4.6: a guard before the barrier, a guard after it, and the barrier outside both.
# </details>


# %% tags=["exercise"]
def shares_fixed(x, total, out):
    """Set out to x / sum of x, and total[0] to that sum; total is a single 0 before."""
    # BEGIN SOLUTION 4.8
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(total, 0, x[i])
    cuda.cg.this_grid().sync()
    if i < x.size:
        out[i] = x[i] / total[0]
    # END SOLUTION


# %% tags=["check"]
check.ex04_8(shares_fixed)

# %% [markdown]
# ## 4. Drawing a token
#
# A language model gives each token a probability. To draw a token, compute the running sums of the probabilities, for example 0.1 0.3 0.7 1.0, draw a random number `u` between 0 and 1, and take the first token whose sum is larger than `u`. For 0.5 it is token 2. With fifty thousand tokens you would not test them all. Instead you use a **binary search**: is the token in the left half or in the right half?


# %%
def sample(cumulative, u, token):
    """Set token[i] to the first k with u[i] < cumulative[k]; cumulative rises to 1,
    and u is below 1."""
    i = cuda.grid(1)
    if i < u.size:
        # the token is one of low, low + 1, ..., high
        low, high = 0, cumulative.size - 1
        while low < high:
            middle = (low + high) // 2
            if cumulative[middle] <= u[i]:
                low = middle
            else:
                high = middle
        token[i] = low


# %% [markdown]
# **Guess before you run.** There is no barrier and no shared memory, and no thread waits for another. What can go wrong?
#
# - ( ) nothing
# - ( ) a wrong token
# - ( ) the loop never ends, for any `u`
# - ( ) the loop never ends, for some `u`
#
# (Use a pencil: start with `u = 0.5` and `low, high = 0, 3`.)

# %%
cumulative = np.array([0.1, 0.3, 0.7, 1.0], dtype=float32)
for draw in [0.05, 0.5]:
    u, token = np.array([draw], dtype=float32), np.full(1, -1)
    print(f"u = {draw}:")
    limited = simulate(sample, max_steps=1000, on_finding="report")
    print_findings(limited[1, 1](cumulative, u, token))
    print("token", token[0])
    print()

# %% [markdown]
# It never ends for some `u`. For 0.05 the token is always in the left half, `high`
# decreases, and the loop ends. For 0.5, `low, high` become 1, 3. Then the middle is 2,
# and `high = 2`. When `low, high` are 1, 2, the middle is 1 again. Setting `low = 1`
# then changes nothing, and the loop runs forever. The interval must get **smaller in
# each iteration**, and this one stopped shrinking.
#
# How does `sim` find out? No program can decide for every kernel whether it will end. So `sim` counts the iterations of `while` loops. With `max_steps=1000`, it stops the launch if no thread has ended after 1000 iterations, and reports which thread is in which loop. Without `max_steps`, it looks more closely after a million iterations or one second. If neither the variables nor the memory change any more, the loop will never end, and `sim` reports it. If something still changes, the launch may continue for several more seconds.
#
# ### Exercise 4.9 · sample · one line
# Keep the binary search, which halves the interval in every iteration: with 9,000 tokens a thread reads about fourteen sums.
#
# <details><summary>Hint 1: what do we know?</summary>
#
# If `cumulative[middle] <= u`, then `middle` itself is not the answer.
# </details>
# <details><summary>Hint 2: and the other branch?</summary>
#
# There `middle` may be the answer, so it has to stay in the interval. The interval still shrinks: `middle < high`, because `//` rounds down.
# </details>


# %% tags=["exercise"]
def sample_fixed(cumulative, u, token):
    """Set token[i] to the first k with u[i] < cumulative[k]; cumulative rises to 1,
    and u is below 1."""
    # BEGIN SOLUTION 4.9
    i = cuda.grid(1)
    if i < u.size:
        low, high = 0, cumulative.size - 1
        while low < high:
            middle = (low + high) // 2
            if cumulative[middle] <= u[i]:
                low = middle + 1
            else:
                high = middle
        token[i] = low
    # END SOLUTION


# %% tags=["check"]
check.ex04_9(sample_fixed)

# %% [markdown]
# ## What these bugs look like on a real GPU
#
# | kind | on a real GPU | what to look for in the source |
# |---|---|---|
# | `out-of-bounds` | silent: another array changes. Or a crash, reported later, at another call | is each index guarded, against the size of its own axis? |
# | `negative-index` | Numba: silent, the last element. CUDA C++: as `out-of-bounds` | every `i - something` |
# | `uninitialized-read` | silent: correct until the memory contains other old values | shared memory filled under an `if`; sums that are not set to 0 |
# | `race-shared` | wrong at times, on some GPUs, with some sizes | a write in one thread and a read in another without a barrier in between; `+=` with a neighbour |
# | `race-global` | counts slightly too small, by a different amount each time | `+=` on an element that threads share; a block that reads what another one writes |
# | `barrier-divergence` | undefined: it hangs, or the values are wrong, or you see nothing (after an early `return`, mostly nothing) | `return`, `if` and loops of unequal length before a `syncthreads` |
# | `warp-divergence` | undefined, likewise | a shuffle under an `if` |
# | `deadlock` | it hangs, and the GPU is busy | a grid barrier under an `if`; one block that waits for another |
# | `no-progress` | it hangs, and the GPU is busy | `while`: what gets smaller in each iteration? |
#
# *Undefined* is the most dangerous word in this table. It means that your GPU may do what you want, and another GPU may not.
#
# ### What `sim` cannot see
#
# - **Anything that did not happen in the launch.** `sim` judges a single launch, with one input and one set of sizes. On the chess board, it found nothing wrong with `checkerboard`.
# - **How long it takes.** It can count work, as you will see in lesson 08, but its own speed says nothing about the speed of a GPU.
# - **The last digits.** A GPU fuses a multiplication and an addition into one operation that rounds once, and its `exp` differs slightly from your processor's.
# - **Some effects of memory ordering.** In `sim`, every thread sees a store
#   immediately. On a GPU, another thread may see two stores in a different order,
#   unless there is a barrier or a fence. `sim` checks which accesses these order. It is
#   slightly more lenient than CUDA's rules for the thread that reads. And a compiler
#   may keep a value in a register that `sim` reads from memory each time.
#
# For your own GPU there is `compute-sanitizer`, which comes with CUDA. It consists of four tools that watch a real launch for several of these kinds of bugs.
#
# ## Validate
#
# We run each of the nine kernels of lessons 04 and 04b with twenty seeds, and count how often the broken kernel gave correct values and how often `sim` found the bug. Then we do the same with your fixed kernels. The next cell lists the launches:


# %%
def floats(*values):
    return np.array(values, dtype=float32)


def empty(size):
    return np.full(size, np.nan, dtype=float32)


def launches():
    """Return {kernel: (grid, block, inputs, outputs before, outputs after)}."""
    six, backwards = floats(1, 2, 3, 4, 5, 6), floats(4, 3, 2, 1, 6, 5)
    digits, hill = floats(3, 1, 4, 1, 5, 9, 2, 6), floats(1, 2, 3, 4, 4, 3, 2, 1)
    zeros, lanes = np.zeros(3, dtype=int32), np.arange(32).astype(float32)
    total, swapped = np.zeros(1, dtype=float32), np.arange(32) ^ 1
    board, odd = np.full((3, 5), -1), np.indices((3, 5)).sum(axis=0) % 2
    draws, tokens = floats(0.05, 0.5, 0.2, 0.9), np.array([0, 2, 1, 3])
    below = floats(-3, -1, -4, -1, -5, -9)
    return {
        "checkerboard": (1, (8, 8), [], [board], [odd]),
        "previous": (2, 4, [six], [empty(6)], [six - 1]),
        "block_max": (2, 4, [below], [empty(2)], [floats(-1, -5)]),
        "running_sum": (1, 8, [digits], [empty(8)], [np.cumsum(digits)]),
        "histogram": (2, 4, [letters], [zeros], [np.bincount(letters)]),
        "mirror": (2, 4, [six], [empty(6)], [backwards]),
        "swap_neighbours": (1, 32, [lanes], [empty(32)], [swapped]),
        "shares": (3, 4, [hill], [total, empty(8)], [floats(20), hill / 20]),
        "sample": (1, 4, [cumulative, draws], [np.full(4, -1)], [tokens]),
    }


# %% tags=["uses-exercise"]
FIXED = {
    checkerboard: checkerboard_fixed,
    previous: previous_fixed,
    block_max: block_max_fixed,
    running_sum: running_sum_fixed,
    histogram: histogram_fixed,
    mirror: mirror_fixed,
    swap_neighbours: swap_neighbours_fixed,
    shares: shares_fixed,
    sample: sample_fixed,
}


def launched(kernel, name, run):
    """Launch the kernel with `run`, and return sim's report, if there is one, and
    whether all values are correct."""
    grid, block, inputs, outputs, wanted = launches()[name]
    report = run(kernel)[grid, block](*inputs, *outputs)
    pairs = zip(outputs, wanted)
    return report, all(np.abs(got - right).max() <= 1e-6 for got, right in pairs)


def twenty_seeds(kernel, name):
    """Return how often, of twenty, the values were correct and `sim` found a bug."""
    correct = found = 0
    for seed in range(20):
        options = {"seed": seed, "max_steps": 1000, "on_finding": "report"}
        report, right = launched(kernel, name, lambda k: simulate(k, **options))
        correct, found = correct + right, found + bool(report.findings)
    return f"{correct:5} of 20   {found:5} of 20"


print(f"{'':16}    as found here             fixed")
print(f"{'kernel':16}  correct     findings     correct     findings")
for broken, fixed in FIXED.items():
    name = broken.__name__
    print(f"{name:16} {twenty_seeds(broken, name)}    {twenty_seeds(fixed, name)}")


# %% [markdown]
# Look at `block_max` and `histogram`: their values were correct in all twenty runs, and `sim` found the bug in all twenty. A test that only compares values would have let them through.
#
# ### On a real GPU, if there is one
# The fixed kernels run on the GPU without any change. Without a GPU, this cell uses `sim` and prints the same lines. (We do not run the broken kernels there, because some of them would hang.)

# %% tags=["uses-exercise"]
on_this_machine = cuda.jit if cuda.is_available() else simulate
for broken, fixed in FIXED.items():
    _, right = launched(fixed, broken.__name__, on_this_machine)
    print(f"{fixed.__name__:22} correct: {right}")

# %% [markdown]
# ## Six kernels without a label
#
# Now you work without `sim`. One of these kernels is correct. Each of the others has a bug of one of the nine kinds. (The numbers on the left are line numbers. `a` to `d` are launched on several blocks, with sizes that are not multiples of the block.)

# %%
import inspect

from course.check.six_kernels import KERNELS

for name, kernel in KERNELS.items():
    for number, line in enumerate(inspect.getsource(kernel).splitlines(), start=1):
        print(f"{number:3}  {line}")
    print()

# %% [markdown]
# ### Exercise 4.10 · names · six words
# For each kernel, give the name of its bug as in the table of the nine kinds, or `"none"`. The check launches all six in `sim` and compares. You learn most if you answer from the source, before you run them.
#
# <details><summary>Hint: four questions</summary>
#
# What are the largest and the smallest index? Which thread wrote the element that is read here? What orders this write and that read? Does every
# thread reach this barrier the same number of times?
# </details>


# %% tags=["exercise"]
def names():
    """Return {"a": ..., ..., "f": ...}: the kind of bug in each of the six kernels,
    or "none"."""
    # BEGIN SOLUTION 4.10
    return {
        "a": "out-of-bounds",
        "b": "uninitialized-read",
        "c": "race-global",
        "d": "none",
        "e": "race-shared",
        "f": "barrier-divergence",
    }
    # END SOLUTION


# %% tags=["check"]
check.ex04_10(names)

# %% [markdown]
# <details><summary>The six kernels, one line each</summary>
#
# - **a**: the guard is correct for `x[i]`. For `x[i + 1]`, the last thread with an element reads one element too far.
# - **b**: no thread sets `mine` to 0, and an atomic addition reads the old value.
# - **c**: the previous thread writes the element that is read here, at the same time or later, and perhaps in another block.
# - **d**: correct. Here a *whole* block returns, so no thread waits for another, and the neighbour's element is read after the barrier.
# - **e**: one barrier is missing. A fast thread overwrites the tile that a slow thread still reads.
# - **f**: thread t reaches the barrier t + 1 times. The loops are of unequal length.
# </details>
#
# ## In three lines
# - A kernel fails in the wrong place, at the wrong moment, or by waiting for something that never happens.
# - A finding says what, which thread, where and why. Its fix is a guess, and you have to think for yourself.
# - Correct values prove little: a race, an uninitialised read and a square board all pass a test that only compares values.
#
# **You can now** find nine kinds of bugs in a kernel by reading it, and use `sim` when reading is not enough.
#
# **Read on:** NVIDIA, *CUDA C++ Programming Guide*, sections "Synchronization Functions", "Atomic Functions" and "Warp Shuffle Functions" · NVIDIA, *Compute Sanitizer* documentation (memcheck, racecheck, initcheck, synccheck) · Mark Harris, Shubhabrata Sengupta and John Owens, "Parallel Prefix Sum (Scan) with CUDA", chapter 39 of *GPU Gems 3* (2007) · the [glossary](../docs/glossary.md) of this course.
#
# **Next:** [lesson 05](05_flash_kernel.ipynb) turns the tiles of [lesson 02](02_flash_attention.ipynb) into a kernel. It was published with several of these bugs.
