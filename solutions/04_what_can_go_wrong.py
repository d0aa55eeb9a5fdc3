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
# **95 minutes** (sections 1 to 5 take about 50) · builds on lesson 03: threads and blocks, the guard, `syncthreads`, shared memory, `simulate`
#
# You will be able to:
#
# - read the simulator's report on a broken kernel: what happened, which thread did it, where, and why;
# - recognise nine kinds of bugs in a kernel's source, before you run anything;
# - say what each of them looks like on a real GPU, which reports none of them.
#
# Here are nine kernels with one bug each. None needs more than fifteen lines, and each does something useful. The bugs are of nine kinds, and the simulator `sim` has a name for each. They do not come in this order:
#
# | the wrong place | the wrong moment | waiting forever |
# |---|---|---|
# | `negative-index` | `race-global` | `deadlock` |
# | `out-of-bounds` | `race-shared` | `no-progress` |
# | `uninitialized-read` | | `barrier-divergence` |
# | | | `warp-divergence` |
#
# At the end there are six more kernels without labels, and you name their bugs from the source alone.
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
# A running sum turns 1 1 1 1 into 1 2 3 4: each position gets the sum of everything up to itself. (The parallel version is called a **scan** or *prefix sum*.) Threads can compute it in a few passes, as in the sum by halves of lesson 03, but now every thread gets a result. In the first pass, each thread adds its left neighbour; in the second, the element two positions to the left; then four.
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
# Here is the timeline of block 0. There is no barrier anywhere: each thread's *load* and *store* of a counter may come before, between or after those of the other threads.

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
# ## 6. The mirror, again
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
# Remember the rule from lesson 03: a guard may skip the work, but never the barrier. A `return` skips everything after it.
#
# ### Exercise 4.6 · mirror · three lines
# Every thread of the block must reach one `cuda.syncthreads()`.
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
# ## 7. Neighbours swap places
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
# The even lanes wait in line 5 for the odd ones, *which never come*, because they wait in line 7 for the even ones. The two lines with *waits* show one example of each. Each call names all 32 lanes in its mask, and only 16 arrive.
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
# ## 8. Fractions of a total
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
# (Why does `sim` not call this `barrier-divergence`? Within each block, all threads do the same. Only the blocks differ. `sim` reports `deadlock` whenever threads wait for something that can no longer happen, and a block barrier or a shuffle alone does not explain it.)
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
# ## 9. Drawing a token
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
# How does `sim` find out? It does not prove anything, because no program can decide in general whether another one will end. It counts iterations of `while` loops. If no thread has ended after a certain number, it gives up and reports which thread is in which loop. Without `max_steps` the limit is a million iterations, which take about a second. If a kernel really needs more, raise the limit.
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
# - **What did not happen.** It judges one launch, with this input and these sizes. On the chess board, it found nothing wrong with `checkerboard`.
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
# We run each of the nine kernels with twenty seeds, and count how often the broken kernel gave correct values and how often `sim` found the bug. Then we do the same with your fixed kernels. The next cell lists the launches:


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
# Now you work without `sim`. One of these kernels is correct. Each of the others has a bug of one of the nine kinds. (The numbers in front count the lines. `a` to `d` are launched on several blocks, with sizes that are not multiples of the block.)

# %%
import inspect

from course.check.six_kernels import KERNELS

for name, kernel in KERNELS.items():
    for number, line in enumerate(inspect.getsource(kernel).splitlines(), start=1):
        print(f"{number:3}  {line}")
    print()

# %% [markdown]
# ### Exercise 4.10 · names · six words
# For each kernel, give the name of its bug as in the table of the nine kinds above, or `"none"`. The check launches all six in `sim` and compares. You learn most if you answer from the source, before you run them.
#
# <details><summary>Hint: four questions</summary>
#
# What are the largest and the smallest index? Which thread wrote the element that is read here? What orders this write and that read? Does every
# thread reach this barrier equally often?
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
