# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 04 · What can go wrong
#
# **50 minutes** · builds on lessons 03 and 03b: threads and blocks, the guard, `syncthreads`, shared memory, `simulate`
#
# You will be able to:
#
# - read the simulator's report on a broken kernel: what happened, which thread did it, where, and why;
# - recognise five of nine kinds of bugs in a kernel's source, before you run anything.
#
# In this lesson and the next there are nine kernels with one bug each, five here and four in lesson 04b. None needs more than fifteen lines, and each does something useful. The bugs are of nine kinds, and the simulator `sim` has a name for each. They do not come in this order:
#
# | the wrong place | the wrong moment | waiting forever |
# |---|---|---|
# | `negative-index` | `race-global` | `deadlock` |
# | `out-of-bounds` | `race-shared` | `no-progress` |
# | `uninitialized-read` | | `barrier-divergence` |
# | | | `warp-divergence` |
#
# Lesson 04b ends with six more kernels without labels, and you name their bugs from the source alone.
#
# Each section has the same three steps. **Guess** from the source what will happen, before you run anything. **Run** the kernel, and read what `sim` reports. **Fix** the kernel: copy its body into the empty kernel below it, and change a line or two.
#
# As in lesson 03, a kernel is a plain function that reads its indices from `cuda`. There is a shorter way to write the index: `cuda.grid(1)` is `cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x`, and `cuda.grid(2)` is a pair, the same for x and for y.
#
# If `simulate` finds an error, it raises a `KernelBug`. With `on_finding="report"` it returns a report instead, and we print the findings from it.

# %%
import math

import numpy as np
from numba import cuda
from numpy import float32, int32

from course import check
from sim import simulate
from sim.observers import DEFAULT, Trace


def print_findings(report):
    """Print the bugs that `sim` has found in a launch."""
    print(
        *[finding.message for finding in report.findings] or ["no findings"], sep="\n\n"
    )


# %% [markdown]
# ## 1. A board
#
# This kernel uses one thread for every square of a board. x counts along a row, y counts the rows, and `board[y, x]` is the square in row y. It even has a guard.


# %%
def checkerboard(board):
    """Set board[y, x] to 1 where x + y is odd, else to 0; board is any 2-D array."""
    x, y = cuda.grid(2)
    if x < board.shape[0] and y < board.shape[1]:
        board[y, x] = (x + y) % 2


# %% [markdown]
# **Guess before you run.** We launch one block of 8×8 threads on a board with 3 rows of 5 squares. What happens?
#
# - ( ) everything works, because of the guard
# - ( ) some squares stay empty
# - ( ) a thread writes outside the board
# - ( ) two of these

# %%
board = np.full((3, 5), -1)
print_findings(simulate(checkerboard, on_finding="report")[1, (8, 8)](board))
print()
print(board)

# %% [markdown]
# Two of these happen. Let's read the finding line by line; all findings have the same form.
#
# - **Line 1: what happened, and in which thread.** `board[3, 0]` does not exist in a board of 3 x 5. The thread is (0, 3) of block 0, that is, `threadIdx.x = 0` and `threadIdx.y = 3`.
# - **Line 2: where.** The thread *wrote* in line 5 of the kernel, counted from its `def`. The source of that line follows.
# - **Line 3: why.** Index 3 along axis 0, the rows, must be below 3. The same happened five more times.
# - **Line 4: a likely fix.** It is only *likely*, because `sim` has seen a bad access and not your intention. Here it suggests a guard against `board.shape[0]`. The kernel has such a guard, but it guards the wrong index.
# - **Last line: a page to read on.** `%run -m sim explain out-of-bounds` prints the page: the rule, the reason, the usual fixes, and a minimal kernel.
#
# `shape` is (rows, columns), and x runs along the columns. The guard let y go up to 4, although there are only 3 rows. It let x go only up to 2, so columns 3 and 4 still have the initial value -1.
#
# Such a bug survives because of the sizes that people test with. This is the board that most people would take:

# %%
board = np.full((8, 8), -1)
print_findings(simulate(checkerboard, on_finding="report")[1, (8, 8)](board))
expected = np.indices((8, 8)).sum(axis=0) % 2
print("correct on a chess board:", np.array_equal(board, expected))

# %% [markdown]
# On a square board, swapping rows and columns makes no difference. And `sim` reports nothing, because nothing bad happened: it judges **what a launch did**, not what the kernel might do with other sizes. So test with sizes that are odd, small, and different from each other.
#
# ### Exercise 4.1 · checkerboard · one line
# Fix the kernel. In all nine exercises the check tests three things:
#
# - the values are correct;
# - `sim` reports nothing, not even a warning;
# - the work is divided among the threads as before. The check counts the accesses of each thread, and it requires the shared memory, the shuffle, the atomic operation or the barrier that the kernel used.
#
# Three of the nine kernels exchange float32 values through shared memory (4.3, 4.4 and 4.6). There the check also requires that everything stays in float32. Write `float32(0)`, because Numba makes a plain `0.0` a float64.
#
# <details><summary>Hint</summary>Which number must <code>x</code> stay below in a board with 3 rows of 5 squares?</details>


# %% tags=["exercise"]
def checkerboard_fixed(board):
    """Set board[y, x] to 1 where x + y is odd, else to 0; board is any 2-D array."""
    # BEGIN SOLUTION 4.1
    x, y = cuda.grid(2)
    if x < board.shape[1] and y < board.shape[0]:
        board[y, x] = (x + y) % 2
    # END SOLUTION


# %% tags=["check"]
check.ex04_1(checkerboard_fixed)

# %% [markdown]
# ## 2. The previous element
#
# In a language model, a token often needs the token before it. This kernel shifts a sequence by one position, and its guard is correct.


# %%
def previous(x, out):
    """Set out[i] to x[i - 1], and out[0] to 0; x and out are 1-D, of one size."""
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i - 1]


# %% [markdown]
# **Guess before you run.** The sequence is 1 2 3 4 5 6. What is `out[0]`?
#
# - ( ) 0
# - ( ) nothing has been written there
# - ( ) 6
# - ( ) it crashes

# %%
x = np.array([1, 2, 3, 4, 5, 6], dtype=float32)
out = np.full(6, np.nan, dtype=float32)
print_findings(simulate(previous, on_finding="report")[2, 4](x, out))
print()
print(out)

# %% [markdown]
# Thread 0 read `x[-1]`. In Python that is the last element, and Numba does the same on the GPU. So this is not an error, and the finding begins with **warning**, because you may have meant it. (`simulate` never raises `KernelBug` for a warning.) In CUDA C++ the same line reads whatever is in memory before the array.
#
# Nothing crashes, five of six numbers are correct, and the sixth looks like the others. But the *first* token has read the *last* one. In a language model that must not look ahead, the answer leaks into the question in exactly this way, and the training loss looks wonderful.
#
# The next picture shows which thread read which element of `x`. The observer `Trace` records every access, and the report draws the record.

# %%
traced = simulate(previous, on_finding="report", observers=[*DEFAULT, Trace])
traced[2, 4](x, out).memory_map("x")

# %% [markdown]
# In the first step, thread 0 reads the last element.
#
# ### Exercise 4.2 · previous · one line
# The first token gets a 0.
#
# <details><summary>Hint</summary>
#
# A guard need not skip the work: `a if condition else b` gives the thread a different value to write.
# </details>


# %% tags=["exercise"]
def previous_fixed(x, out):
    """Set out[i] to x[i - 1], and out[0] to 0; x and out are 1-D, of one size."""
    # BEGIN SOLUTION 4.2
    i = cuda.grid(1)
    if i < x.size:
        out[i] = x[i - 1] if i > 0 else float32(0)
    # END SOLUTION


# %% tags=["check"]
check.ex04_2(previous_fixed)

# %% [markdown]
# ## 3. The largest of each block
#
# A softmax begins with the maximum (lesson 01). Every thread stores its number in shared memory, all threads wait, and then thread 0 goes through the stored numbers. The shared array has room for 32 numbers, so a block may have up to 32 threads.


# %%
def block_max(x, out):
    """Set out[b] to the largest number in block b's part of x; at most 32 threads."""
    part = cuda.shared.array(32, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if i < x.size:
        part[t] = x[i]
    cuda.syncthreads()
    if t == 0:
        largest = part[0]
        for k in range(1, cuda.blockDim.x):
            largest = max(largest, part[k])
        out[cuda.blockIdx.x] = largest


# %% [markdown]
# **Guess before you run.** There are six numbers, -3 -1 -4 -1 -5 -9, and two blocks of four threads. The correct answer is -1 and -5. The barrier is where it should be. Does `sim` report a bug, and in which thread?
#
# - ( ) no
# - ( ) thread 0 of block 1
# - ( ) threads 2 and 3 of block 1
# - ( ) all threads of block 1

# %%
x = np.array([-3, -1, -4, -1, -5, -9], dtype=float32)
out = np.full(2, np.nan, dtype=float32)
print_findings(simulate(block_max, on_finding="report")[2, 4](x, out))
print()
print(out)

# %% [markdown]
# The finding names thread 0 of block 1: it reads `part[2]`, which *no thread has written*. Threads 2 and 3 would have written it, but they have no element, and the guard skipped their store. They did nothing wrong themselves. The mistake is in the thread that reads and relies on them. "1 more like it" is `part[3]`.
#
# Now look at the result: -1 and -5 are both correct! This is luck. `sim` fills fresh shared memory with NaN, and Numba's `max` prefers any number to NaN. A GPU does not fill shared memory at all. It contains whatever an earlier block has left, perhaps a 17, and then 17 is the maximum.
#
# Here is the timeline of block 1. A row is a thread, and the vertical line is the barrier.

# %%
traced = simulate(block_max, on_finding="report", observers=[*DEFAULT, Trace])
traced[2, 4](x, out).timeline(block=1)

# %% [markdown]
# Two threads store, and then thread 0 loads four elements.
#
# ### Exercise 4.3 · block_max · one or two lines
# Which number can a thread without an element store, so that it never becomes the
# maximum? `x` may contain any numbers, including −∞. Wait with a barrier of the block,
# `cuda.syncthreads()`.
#
# <details><summary>Hint 1: is it 0?</summary>0 is larger than all of the six numbers above.</details>
# <details><summary>Hint 2: lesson 01</summary>
#
# What was the running maximum before the first score had been read? `float32(-math.inf)` works in a kernel.
# </details>


# %% tags=["exercise"]
def block_max_fixed(x, out):
    """Set out[b] to the largest number in block b's part of x; at most 32 threads."""
    # BEGIN SOLUTION 4.3
    part = cuda.shared.array(32, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    part[t] = x[i] if i < x.size else float32(-math.inf)
    cuda.syncthreads()
    if t == 0:
        largest = part[0]
        for k in range(1, cuda.blockDim.x):
            largest = max(largest, part[k])
        out[cuda.blockIdx.x] = largest
    # END SOLUTION


# %% tags=["check"]
check.ex04_3(block_max_fixed)

# %% [markdown]
# ## 4. A running sum
#
# A running sum turns 1 1 1 1 into 1 2 3 4: each position gets the sum of everything up to itself. (The parallel version is called a **scan** or *prefix sum*.) Threads can compute it in a few passes, as in the sum by halves of lesson 03b, but now every thread gets a result. In the first pass, each thread adds its left neighbour; in the second, the element two positions to the left; then four.
#
# | | 0 | 1 | 2 | 3 |
# |---|---|---|---|---|
# | in shared memory | 1 | 1 | 1 | 1 |
# | step = 1: threads 1–3 do `part[t] += part[t - 1]` | 1 | **2** | **2** | **2** |
# | step = 2: threads 2–3 do `part[t] += part[t - 2]` | 1 | 2 | **3** | **4** |


# %%
def running_sum(x, out):
    """Write the running sums of each block's part of x to out, one per thread."""
    part = cuda.shared.array(32, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    part[t] = x[i]
    step = 1
    while step < cuda.blockDim.x:
        cuda.syncthreads()
        if t >= step:
            part[t] += part[t - step]
        step *= 2
    out[i] = part[t]


# %% [markdown]
# **Guess before you run.** There is a barrier before the first pass, and one between any two passes. Is that enough?
#
# - ( ) yes
# - ( ) no: there must be one after the last pass as well
# - ( ) no: something is wrong within a pass

# %%
x = np.ones(8, dtype=float32)
out = np.full(8, np.nan, dtype=float32)
print_findings(simulate(running_sum, on_finding="report")[1, 8](x, out))
print()
print("wanted 1 to 8, got", out)

# %% [markdown]
# A race involves two threads, so the finding names two places. Thread 1 writes `part[1]`, and thread 2 reads `part[1]`. Both do so in the same line of the kernel, and **nothing orders the two accesses**: if thread 1 is faster, thread 2 reads a sum that already includes this pass. (The value that was written is at the end of the line.)
#
# The two accesses happen *within* one pass. `part[t] += part[t - step]` looks like one
# operation but is three: read, add, write. If one thread writes an element and another
# reads it, there must be a barrier between the write and the read. Between the passes
# there is one already. A barrier cannot go in the middle of a line, so the likely fix
# is to split this line in two. In the table above, all threads read before any of them
# writes. The kernel does not enforce that.
#
# The last pass needs no barrier after it, because then each thread reads only the element that it has written itself.
#
# Here is the launch as a picture. Between two vertical lines, which are the barriers, the accesses of different threads have no fixed order.

# %%
report = simulate(running_sum, on_finding="report", observers=[*DEFAULT, Trace])[1, 8](
    x, out
)
report.timeline()

# %% [markdown]
# Each pass between two barriers has columns for *load* and for *store*, and a thread's store may come before the load of its right neighbour.
#
# ### Exercise 4.4 · running_sum · three lines
# Make room for the barrier: first all threads read into a variable of their own, then all wait with `cuda.syncthreads()`, then all write. Two barriers per pass are enough.
#
# <details><summary>Hint 1: a variable of its own</summary>
#
# `left = part[t - step] if t >= step else float32(0)`. A plain variable belongs to one thread, so no other thread can change it.
# </details>
# <details><summary>Hint 2: which threads must reach the new barrier?</summary>
#
# All threads, including those with `t < step`. So the barrier must not be under the `if`.
# </details>
# <details><summary>Hint 3: can you remove the old barrier?</summary>
#
# No. It prevents the next pass from reading before this pass has written.
# </details>


# %% tags=["exercise"]
def running_sum_fixed(x, out):
    """Write the running sums of each block's part of x to out, one per thread."""
    # BEGIN SOLUTION 4.4
    part = cuda.shared.array(32, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    part[t] = x[i]
    step = 1
    while step < cuda.blockDim.x:
        cuda.syncthreads()
        left = part[t - step] if t >= step else float32(0)
        cuda.syncthreads()
        part[t] += left
        step *= 2
    out[i] = part[t]
    # END SOLUTION


# %% tags=["check"]
check.ex04_4(running_sum_fixed)

# %% [markdown]
# ## 5. Counting letters
#
# How often does each letter occur? The letters are the numbers 0, 1, 2, one thread reads one letter, and the counters are in global memory, where all blocks can access them.


# %%
def histogram(letters, counts):
    """Set counts[k] to the number of letters that are k; counts is 0 before."""
    i = cuda.grid(1)
    if i < letters.size:
        counts[letters[i]] += 1


# %% [markdown]
# **Guess before you run.** The text is 0 1 0 2 0 1 0 0: five times 0, twice 1, once 2. There are two blocks of four threads. You will see a finding and the counts. Which is true?
#
# - ( ) the counts are too small
# - ( ) the counts are too large
# - ( ) the counts are correct, and the finding is a false alarm
# - ( ) the counts are correct, and so is the finding

# %%
letters = np.array([0, 1, 0, 2, 0, 1, 0, 0], dtype=int32)
counts = np.zeros(3, dtype=int32)
print_findings(simulate(histogram, on_finding="report")[2, 4](letters, counts))
print()
print(counts)

# %% [markdown]
# The last one is true. There are two findings, because `+=` reads and writes: one thread's write conflicts with another thread's read, and one thread's write conflicts with another thread's write. Both involve `counts[0]`. Two threads may both read a 3, both add 1, and both write a 4. Then one letter is lost.
#
# In this run no letter was lost. `sim` runs one thread at a time, and in this kernel it has no reason to switch threads in the middle of the `+=`. A GPU runs thousands of threads at once and interleaves them all the time. So why does `sim` report a bug? It does not wait for the accident to happen. For any two accesses, it asks whether something **orders** them, and here nothing does. So it finds a race in every run, whatever the result looks like. And therefore **a correct result proves nothing about a race.**
#
# Here is the timeline of block 0. There is no barrier anywhere: each thread's *load* and *store* of a counter may come before, between or after the loads and stores of the other threads.

# %%
traced = simulate(histogram, on_finding="report", observers=[*DEFAULT, Trace])
traced[2, 4](letters, counts).timeline()

# %% [markdown]
# Would a barrier help? The order is not the problem: it does not matter which thread counts first. The problem is that another thread can access the counter between the read and the write. An [**atomic operation**](../docs/glossary.md) prevents this: `cuda.atomic.add(counts, k, 1)` does the same as `counts[k] += 1`, but as one indivisible step.
#
# ### Exercise 4.5 · histogram · one line
#
# <details><summary>Hint</summary>
#
# `cuda.atomic.add(array, index, value)`; the index here is the letter.
# </details>


# %% tags=["exercise"]
def histogram_fixed(letters, counts):
    """Set counts[k] to the number of letters that are k; counts is 0 before."""
    # BEGIN SOLUTION 4.5
    i = cuda.grid(1)
    if i < letters.size:
        cuda.atomic.add(counts, letters[i], 1)
    # END SOLUTION


# %% tags=["check"]
check.ex04_5(histogram_fixed)

# %% [markdown]
# ## In three lines
# - A kernel fails in the wrong place, at the wrong moment, or by waiting for something that never happens. You have met the first two.
# - A finding says what, which thread, where and why. Its fix is a guess, and you have to think for yourself.
# - Correct values prove little: a race and an uninitialised read both pass a test that only compares values.
#
# **You can now** read a finding, and fix five kinds of bugs.
#
# **Read on:** NVIDIA, *CUDA C++ Programming Guide*, section "Atomic Functions" · Mark Harris, Shubhabrata Sengupta and John Owens, "Parallel Prefix Sum (Scan) with CUDA", chapter 39 of *GPU Gems 3* (2007) · the [glossary](../docs/glossary.md) of this course.
#
# **Next:** [lesson 04b](04b_waiting_forever.ipynb) has four kernels in which threads wait, and six kernels without a label.
