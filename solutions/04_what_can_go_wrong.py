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
# **95 minutes** · builds on lesson 03: threads and blocks, the guard, `syncthreads`, shared memory, `simulate`
#
# You will be able to:
#
# - read what the simulator says about a broken kernel: what happened, who did it, where, why;
# - recognise nine kinds of bugs in a kernel's source, before anything runs;
# - say what each of them looks like on a real GPU, where nobody tells you.
#
# Here are nine kernels with one bug each. None needs more than fifteen lines, and each does something that you would
# really want. The bugs are of nine kinds, and the simulator `sim` has a name for each. They do not come in this order:
#
# | the wrong place | the wrong moment | waiting for ever |
# |---|---|---|
# | `negative-index` | `race-global` | `deadlock` |
# | `out-of-bounds` | `race-shared` | `no-progress` |
# | `uninitialized-read` | | `barrier-divergence` |
# | | | `warp-divergence` |
#
# At the end six more kernels wait without a label, and you name their bugs from the source alone.
#
# It is always the same game. **Guess** from the source what will happen, and do not run anything before you have an answer.
# **Run**, and read what `sim` says. **Mend** the kernel: copy its body into the empty one below it, and change a line or two.
#
# As in lesson 03, a kernel is a plain function that asks `cuda` who it is. New is a shorter way to ask: `cuda.grid(1)` is
# `cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x`, and `cuda.grid(2)` is the same for x and for y, a pair.
#
# If it finds an error, `simulate` raises a `KernelBug`. With `on_finding="report"` it hands back a report instead, and the
# findings wait in there for us to print them.

# %%
import math

import numpy as np
from numba import cuda
from numpy import float32, int32

from course import check
from sim import simulate
from sim.observers import DEFAULT, Trace


def tell(report):
    """Print what `sim` has found in a launch."""
    print(
        *[finding.message for finding in report.findings] or ["no findings"], sep="\n\n"
    )


# %% [markdown]
# ## 1. A board
#
# One thread for every square. x counts along a row, y counts the rows, and `board[y, x]` is the square in row y. There is even a guard.


# %%
def checkerboard(board):
    """board[y, x] = 1 where x + y is odd, else 0; board is 2-D, of any shape."""
    x, y = cuda.grid(2)
    if x < board.shape[0] and y < board.shape[1]:
        board[y, x] = (x + y) % 2


# %% [markdown]
# **Guess before you run.** One block of 8×8 threads, and a board with 3 rows of 5 squares. What happens?
#
# - ( ) all is well: that is what the guard is for
# - ( ) some squares stay empty
# - ( ) somebody writes outside the board
# - ( ) two of these

# %%
board = np.full((3, 5), -1)
tell(simulate(checkerboard, on_finding="report")[1, (8, 8)](board))
print()
print(board)

# %% [markdown]
# Two of these. Let us read the finding aloud; all of them are made alike.
#
# - **Line 1: what, and who.** The verdict: `board[3, 0]` does not exist in a board of 3 x 5. Then the culprit: block 0, thread (0, 3),
#   which means `threadIdx.x = 0` and `threadIdx.y = 3`.
# - **Line 2: where.** The thread *wrote*, in line 5 of the kernel, counted from its `def`, and there stands the line itself.
# - **Line 3: why.** Index 3 along axis 0, the rows, must be below 3. And it happened five more times.
# - **Last line: a likely fix.** *Likely* is meant. `sim` has seen a bad access, not your thoughts. Here it advises a guard against
#   `board.shape[0]`, and there is such a guard. It guards the wrong index.
#
# `shape` is (rows, columns), and x runs along the columns. The guard let y go up to 4, where there are no rows any more, and x only up to 2, so
# the columns 3 and 4 still hold the -1 that we had put in.
#
# Such a bug lives long because of what people test with. This is the board that anybody would take:

# %%
board = np.full((8, 8), -1)
tell(simulate(checkerboard, on_finding="report")[1, (8, 8)](board))
print(
    "right on a chess board:", np.array_equal(board, np.indices((8, 8)).sum(axis=0) % 2)
)

# %% [markdown]
# On a square nobody can tell rows from columns. And `sim` has nothing to say, since nothing happened: it judges **what a
# launch did**, not what the kernel might do. Test with sizes that are odd, small, and different from each other.
#
# ### Exercise 4.1 · checkerboard · one line
# Mend it. In all nine exercises the check wants three things: the right values, no finding of `sim` (not even a warning), and
# the kernel's way of working. As many threads work as above, and each reads its own element. They meet where they met before: in shared memory, in a
# shuffle, at a barrier of the grid. And none does much more than in the kernel above.
#
# <details><summary>Hint</summary>Which number must <code>x</code> stay below in a board with 3 rows of 5 squares?</details>


# %% tags=["exercise"]
def checkerboard_fixed(board):
    """board[y, x] = 1 where x + y is odd, else 0; board is 2-D, of any shape."""
    # BEGIN SOLUTION 4.1
    x, y = cuda.grid(2)
    if x < board.shape[1] and y < board.shape[0]:
        board[y, x] = (x + y) % 2
    # END SOLUTION


# %% tags=["check"]
check.ex04_1(checkerboard_fixed)

# %% [markdown]
# ## 2. The one before
#
# A token often wants to know what the token before it said. This kernel shifts a sequence by one place, and its guard is right.


# %%
def previous(x, out):
    """out[i] = x[i - 1], and out[0] = 0; x and out are 1-D, of one size."""
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
tell(simulate(previous, on_finding="report")[2, 4](x, out))
print()
print(out)

# %% [markdown]
# Thread 0 read `x[-1]`. In Python that is the last element, and Numba does the same on the GPU; so there is no error, and this finding begins with
# **warning**: perhaps you meant it. (`simulate` never raises `KernelBug` for a warning.) In CUDA C the same line reads what lies in
# memory before the array.
#
# Nothing crashes, five of six numbers are right, and the sixth looks like all the others. Yet the *first* token has
# seen the *last*. In a language model that must not look ahead, this is how the answer leaks into the question, and the training loss
# looks wonderful.
#
# Here is who read which element of `x`, from `sim`'s own record of the launch: `Trace` writes down each access, and the report draws them in one line.

# %%
traced = simulate(previous, on_finding="report", observers=[*DEFAULT, Trace])
traced[2, 4](x, out).memory_map("x")

# %% [markdown]
# In the first step, thread 0 stands in the last cell.
#
# ### Exercise 4.2 · previous · one line
# The first token gets a 0.
#
# <details><summary>Hint</summary>
#
# A guard need not skip the work: `a if condition else b` gives the thread something else to write.
# </details>


# %% tags=["exercise"]
def previous_fixed(x, out):
    """out[i] = x[i - 1], and out[0] = 0; x and out are 1-D, of one size."""
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
# A softmax begins with the maximum (lesson 01). Every thread puts its number into shared memory, all wait, and then thread 0 looks through
# what they have brought. Shared memory has room for 32 numbers, so a block may have up to 32 threads.


# %%
def block_max(x, out):
    """out[b] = the largest number in block b's part of x; at most 32 threads."""
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
# **Guess before you run.** Six numbers, -3 -1 -4 -1 -5 -9, and two blocks of four threads. The right answer is -1 and -5.
# The barrier is in its place. Does `sim` complain, and about which thread?
#
# - ( ) no
# - ( ) thread 0 of block 1
# - ( ) threads 2 and 3 of block 1
# - ( ) all threads of block 1

# %%
x = np.array([-3, -1, -4, -1, -5, -9], dtype=float32)
out = np.full(2, np.nan, dtype=float32)
tell(simulate(block_max, on_finding="report")[2, 4](x, out))
print()
print(out)

# %% [markdown]
# *Who* is thread 0 of block 1: it reads `part[2]`, and *nobody has written it*. Threads 2 and 3 would have, but they have no element, and the guard
# kept them from writing anything. They did nothing wrong themselves; it was the reader who relied on them. *1 more like it* is `part[3]`.
#
# And now look at the result: -1 and -5, both right! That is luck. `sim` fills fresh shared memory with NaN, and Numba's `max` prefers any number to
# a NaN. A GPU fills it with nothing at all: there lies what some earlier block has left, perhaps a 17, and then 17 is the maximum.
#
# The same in time, block 1: a row is a thread, and the vertical line is the barrier.

# %%
traced = simulate(block_max, on_finding="report", observers=[*DEFAULT, Trace])
traced[2, 4](x, out).timeline(block=1)

# %% [markdown]
# Two threads store, and thread 0 then loads from four places.
#
# ### Exercise 4.3 · block_max · one line or two
# Which number can a thread without an element put in, so that it never wins?
#
# <details><summary>Hint 1: is it 0?</summary>0 is larger than all of the six numbers above.</details>
# <details><summary>Hint 2: lesson 01</summary>
#
# Where did the running maximum start, before the first score had been read? `float32(-math.inf)` works in a kernel.
# </details>


# %% tags=["exercise"]
def block_max_fixed(x, out):
    """out[b] = the largest number in block b's part of x; at most 32 threads."""
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
# From 1 1 1 1 to 1 2 3 4: each place gets the sum of everything up to itself. Threads can do it in a few passes, like the sum by halves in
# lesson 03, only that now everybody wants a result. In the first pass, each adds its left neighbour; in the second, the one two places to the left; then four.
#
# | | 0 | 1 | 2 | 3 |
# |---|---|---|---|---|
# | in shared memory | 1 | 1 | 1 | 1 |
# | step = 1: threads 1–3 do `part[t] += part[t - 1]` | 1 | **2** | **2** | **2** |
# | step = 2: threads 2–3 do `part[t] += part[t - 2]` | 1 | 2 | **3** | **4** |


# %%
def running_sum(x, out):
    """Each block writes the running sums of its part of x into out, one a thread."""
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
# **Guess before you run.** There is a barrier before the first pass, and one between any two passes. Is it enough?
#
# - ( ) yes
# - ( ) no: there must be one after the last pass as well
# - ( ) no: something is wrong within a pass

# %%
x = np.ones(8, dtype=float32)
out = np.full(8, np.nan, dtype=float32)
tell(simulate(running_sum, on_finding="report")[1, 8](x, out))
print()
print("wanted 1 to 8, got", out)

# %% [markdown]
# A race has two parties, so there are two lines of *where*. Thread 1 writes `part[1]`. Thread 2 reads `part[1]`. It is the same line of the
# kernel, and **nothing orders the two**: if thread 1 is quicker, thread 2 gets a sum that already has this pass in it. (The value
# that was written stands at the end of the line.)
#
# They meet *within* one pass. `part[t] += part[t - step]` looks like one thing and is three: read, add, write. Between somebody's write and
# somebody else's read of the same place belongs a barrier. Between the passes there is one already, and within this one line there is no room
# for another: so the likely fix splits the line. In the table above all threads read before any of them writes; the kernel does not say so.
#
# The last pass is fine, by the way: after it each thread reads only what it has written itself.
#
# The launch as a picture. Between two vertical lines, the barriers, nothing says who comes first.

# %%
report = simulate(running_sum, on_finding="report", observers=[*DEFAULT, Trace])[1, 8](
    x, out
)
report.timeline()

# %% [markdown]
# In each pass between two barriers there are columns for *load* and for *store*, and a thread's store may come before its right neighbour's load.
#
# ### Exercise 4.4 · running_sum · three lines
# Make room for the barrier: first everybody reads into a variable of its own, then everybody waits, then everybody writes.
#
# <details><summary>Hint 1: a variable of its own</summary>
#
# `left = part[t - step] if t >= step else float32(0)`. A plain variable belongs to one thread, so no other thread can spoil it.
# </details>
# <details><summary>Hint 2: who has to come to the new barrier?</summary>
#
# All threads, also those with `t < step`: it must not stand under the `if`.
# </details>
# <details><summary>Hint 3: may the old barrier go?</summary>
#
# No. It keeps the next pass from reading before this one has written.
# </details>


# %% tags=["exercise"]
def running_sum_fixed(x, out):
    """Each block writes the running sums of its part of x into out, one a thread."""
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
# How often does each letter occur? Letters are the numbers 0, 1, 2, one thread reads one letter, and the counters lie in global memory, where
# all blocks can reach them.


# %%
def histogram(letters, counts):
    """counts[k] = how many of the letters are k, from 0 on; counts is 0 before."""
    i = cuda.grid(1)
    if i < letters.size:
        counts[letters[i]] += 1


# %% [markdown]
# **Guess before you run.** The text is 0 1 0 2 0 1 0 0: five times 0, twice 1, once 2. Two blocks of four threads. You will see a finding and you
# will see the counts. Which is true?
#
# - ( ) the counts are too small
# - ( ) the counts are too large
# - ( ) the counts are right, and the finding is a false alarm
# - ( ) the counts are right, and so is the finding

# %%
letters = np.array([0, 1, 0, 2, 0, 1, 0, 0], dtype=int32)
counts = np.zeros(3, dtype=int32)
tell(simulate(histogram, on_finding="report")[2, 4](letters, counts))
print()
print(counts)

# %% [markdown]
# The last one. There are two findings, as `+=` reads and writes: one thread's write meets another's read, and one thread's write meets another's write. Both
# meet at `counts[0]`. Two threads may both read a 3, both add 1, and both write a 4: one letter is lost.
#
# In this run no letter was lost. `sim` runs one thread at a time, and this kernel gives it no reason to change threads in the middle of the `+=`; a GPU,
# with thousands of threads under way, has every reason. So why the finding? Because `sim` does not wait for the accident. It asks of any two accesses whether
# something **orders** them, and for these nothing does. Hence a race is found in every run, whatever the result looks like. And hence **a right
# result proves nothing about a race.**
#
# Block 0 in time. No barrier anywhere: each thread's *load* of a counter, and its *store*, may fall before, between or behind those of the others.

# %%
traced = simulate(histogram, on_finding="report", observers=[*DEFAULT, Trace])
traced[2, 4](letters, counts).timeline()

# %% [markdown]
# Is the cure a barrier? What we need is not an order: it does not matter who counts first. We need nobody to get in between reading and writing. That
# is an **atomic** operation: `cuda.atomic.add(counts, k, 1)` does what `counts[k] += 1` says, as one single step.
#
# ### Exercise 4.5 · histogram · one line
#
# <details><summary>Hint</summary>
#
# `cuda.atomic.add(array, index, value)`; the index here is the letter.
# </details>


# %% tags=["exercise"]
def histogram_fixed(letters, counts):
    """counts[k] = how many of the letters are k, from 0 on; counts is 0 before."""
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
# You know it from lesson 03: each block writes its part back to front. There it could do whole parts only. This one knows how long its part
# is. (`i - t` is where the part begins.) And instead of an `if` around everything, the guard is a `return`, as in much code that you will read.


# %%
def mirror(x, out):
    """Each block writes its part of x into out, back to front; up to 32 threads."""
    part = cuda.shared.array(32, float32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if i >= x.size:
        return
    part[t] = x[i]
    cuda.syncthreads()
    length = min(cuda.blockDim.x, x.size - (i - t))
    out[i] = part[length - 1 - t]


# %% [markdown]
# **Guess before you run.** Six numbers, two blocks of four threads. What comes out?
#
# - ( ) 4 3 2 1 6 5
# - ( ) 4 3 2 1, and then nothing
# - ( ) nothing at all

# %%
x = np.array([1, 2, 3, 4, 5, 6], dtype=float32)
out = np.full(6, np.nan, dtype=float32)
tell(simulate(mirror, on_finding="report")[2, 4](x, out))
print()
print(out)

# %% [markdown]
# This finding has no cell that is read or written. It tells **who waits and where**. In block 1, two of four threads wait at the barrier in line 8. Thread 2
# stands for the other two: it *returned*, and whoever has returned will never come. Block 0 was complete, all its threads arrived, and it finished; block 1
# did not. (`sim` ends a block in which nobody can go on. The simulator you built yourself would have waited ten seconds.)

# %%
report = simulate(mirror, on_finding="report", observers=[*DEFAULT, Trace])[2, 4](
    x, out
)
report.timeline(block=1)

# %% [markdown]
# The rule from lesson 03: a guard may skip the work, never the barrier. A `return` skips everything after it.
#
# Would it hang on a GPU? The language promises nothing: CUDA allows `syncthreads` under a condition only if the condition is the same in the
# whole block. The hardware, since Volta (2017), waits for those threads of the block that have not *exited*, so after an early `return` this kernel may well
# give the right values there. A barrier inside an `if` that other threads walk past is another matter: they are still there, and are waited for.
# `sim` holds you to what the language promises.
#
# ### Exercise 4.6 · mirror · three lines
#
# <details><summary>Hint 1: without return</summary>
#
# Two guards `if i < x.size:`, one around what comes before the barrier, one around what comes after.
# </details>
# <details><summary>Hint 2: and <code>length</code>?</summary>
#
# It only computes; it may stand inside or outside. Threads without an element need it for nothing.
# </details>


# %% tags=["exercise"]
def mirror_fixed(x, out):
    """Each block writes its part of x into out, back to front; up to 32 threads."""
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
# ## 7. Neighbours change places
#
# Two new words, which lesson 06 will explain at length. A GPU runs its threads in groups of 32 that go in step; such a group is a **warp**, and a
# thread's place in it is its **lane**. Threads of one warp can hand each other a value directly, without shared memory: that is a **shuffle**.
#
# In `cuda.shfl_down_sync(0xffffffff, value, 1)` each lane gives its own `value` and gets the one of the lane after it;
# `cuda.shfl_up_sync` is the same with the lane before. The first argument names the lanes that take part, one bit each: 32 ones, so all of
# them. Each lane that is named, and has not left the kernel, has to come to this call, or nobody gets anything: all of them wait for each other.


# %%
def swap_neighbours(x, out):
    """out = x[1], x[0], x[3], x[2], ...; an element for every thread, whole warps."""
    i = cuda.grid(1)
    if i % 2 == 0:
        other = cuda.shfl_down_sync(0xFFFFFFFF, x[i], 1)
    else:
        other = cuda.shfl_up_sync(0xFFFFFFFF, x[i], 1)
    out[i] = other


# %% [markdown]
# **Guess before you run.** An even thread takes from the one after it, an odd thread from the one before it, so each of the 32
# meets exactly one shuffle. What happens?
#
# - ( ) they change places
# - ( ) each gets its own number back
# - ( ) the even ones wait for the odd ones, and the odd ones for the even ones

# %%
x = np.arange(32).astype(float32)
out = np.full(32, np.nan, dtype=float32)
tell(simulate(swap_neighbours, on_finding="report")[1, 32](x, out))
print()
print("threads that got a value:", np.count_nonzero(~np.isnan(out)))

# %% [markdown]
# The even lanes wait in line 5 for the odd ones, *which never come*, since they wait in line 7, and for the even ones. The two lines
# with *waits* show one of each. Each call names all 32 lanes in its mask and only 16 come.
#
# The second half of the likely fix, a mask of those that do come, would not help here: a lane can only take a value from a lane that takes part. So the
# first half it is: **call the shuffle where all lanes pass**, and decide afterwards.
#
# ### Exercise 4.7 · swap_neighbours · three lines
#
# <details><summary>Hint 1: no call under an <code>if</code></summary>
#
# Every thread makes both shuffles, and has two values then, `after` and `before`. Which one does it want?
# </details>
# <details><summary>Hint 2: the first and the last lane</summary>
#
# Nobody comes before lane 0 and nobody after lane 31. There a shuffle gives the lane its own value back, and here neither of them wants it.
# </details>


# %% tags=["exercise"]
def swap_neighbours_fixed(x, out):
    """out = x[1], x[0], x[3], x[2], ...; an element for every thread, whole warps."""
    # BEGIN SOLUTION 4.7
    i = cuda.grid(1)
    after = cuda.shfl_down_sync(0xFFFFFFFF, x[i], 1)
    before = cuda.shfl_up_sync(0xFFFFFFFF, x[i], 1)
    out[i] = after if i % 2 == 0 else before
    # END SOLUTION


# %% tags=["check"]
check.ex04_7(swap_neighbours_fixed)

# %% [markdown]
# ## 8. Everybody's share
#
# The other half of a softmax: divide each number by the sum of all. All blocks add into one total, with atomics. Then all have to **wait for all
# blocks**, and `syncthreads` waits only for one's own. There is a barrier for the whole grid: `cuda.cg.this_grid().sync()`. It opens when every
# thread of every block has come. (For this all blocks must be on the GPU at the same time, so the grid must not be too large.)


# %%
def shares(x, total, out):
    """out = x / the sum of x, and total[0] = that sum; total comes in as one 0."""
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(total, 0, x[i])
        cuda.cg.this_grid().sync()
        out[i] = x[i] / total[0]


# %% [markdown]
# **Guess before you run.** Eight numbers in blocks of four. It worked with two blocks. Somebody launches three, to be on the safe side. The
# third block has nothing to do. What happens?
#
# - ( ) the same as with two blocks
# - ( ) block 2 waits for ever
# - ( ) blocks 0 and 1 wait for ever

# %%
x = np.array([1, 2, 3, 4, 4, 3, 2, 1], dtype=float32)
for blocks in [2, 3]:
    total, out = np.zeros(1, dtype=float32), np.full(8, np.nan, dtype=float32)
    print(f"{blocks} blocks:")
    tell(simulate(shares, on_finding="report")[blocks, 4](x, total, out))
    print("total", total, "shares", out)
    print()

# %% [markdown]
# It is the mirror's mistake, one size larger. Two of three blocks stand at the barrier of the grid. The third had nothing to do, skipped the `if`, and
# has ended. The total is complete, which makes it the more annoying: everything is there, and nobody goes on.
#
# (Why does `sim` not call this `barrier-divergence`? Within each block all agree. It is the blocks that do not. `deadlock` is what it says whenever
# somebody waits for something that can no longer come, and it is not a matter of `syncthreads` or a shuffle alone.)
#
# ### Exercise 4.8 · shares · two lines
#
# <details><summary>Hint</summary>
#
# As in 4.6: a guard before the barrier, a guard after it, and the barrier under none of them.
# </details>


# %% tags=["exercise"]
def shares_fixed(x, total, out):
    """out = x / the sum of x, and total[0] = that sum; total comes in as one 0."""
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
# A language model gives each token a probability. To draw one, add the probabilities up, 0.1 0.3 0.7 1.0, draw a number `u` between 0 and 1, and
# take the first token whose sum lies above `u`: for 0.5 it is token 2. With fifty thousand tokens one does not walk through them all, one halves: is it in the left half
# or in the right?


# %%
def sample(cumulative, u, token):
    """token[i] = the first k with u[i] < cumulative[k], which rises to 1;
    u is below 1."""
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
# **Guess before you run.** No barrier, no shared memory, nobody waits for anybody. What can go wrong?
#
# - ( ) nothing
# - ( ) a wrong token
# - ( ) the loop never ends, for any `u`
# - ( ) the loop never ends, for some `u`
#
# (Take a pencil: `u = 0.5`, and `low, high = 0, 3` to begin with.)

# %%
cumulative = np.array([0.1, 0.3, 0.7, 1.0], dtype=float32)
for draw in [0.05, 0.5]:
    u, token = np.array([draw], dtype=float32), np.full(1, -1)
    print(f"u = {draw}:")
    tell(
        simulate(sample, max_steps=1000, on_finding="report")[1, 1](
            cumulative, u, token
        )
    )
    print("token", token[0])
    print()

# %% [markdown]
# For some. For 0.05 the answer is always on the left, `high` comes down, and the loop ends. For 0.5, `low, high` become 1, 3, and then the middle is 2: `high = 2`. From 1, 2
# the middle is 1 again, and `low = 1` changes nothing, for ever. The interval must get **smaller each time**, and this one stopped.
#
# How does `sim` know? It does not: no program can tell in general whether another one will ever end. It counts. After so many rounds of `while` loops in
# which no thread has ended, it gives up and says which thread is in which loop. Without `max_steps` it would have been a million rounds, about a
# second. If a kernel really needs more, raise it.
#
# ### Exercise 4.9 · sample · one line
# The interval is still halved in every round: with 9,000 tokens a thread reads about fourteen sums.
#
# <details><summary>Hint 1: what do we know?</summary>
#
# If `cumulative[middle] <= u`, then `middle` itself is not the answer.
# </details>
# <details><summary>Hint 2: and the other branch?</summary>
#
# There `middle` may be the answer, so it has to stay in. And it makes progress: `middle < high`, as `//` rounds down.
# </details>


# %% tags=["exercise"]
def sample_fixed(cumulative, u, token):
    """token[i] = the first k with u[i] < cumulative[k], which rises to 1;
    u is below 1."""
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
# ## What it looks like when nobody tells you
#
# | kind | on a real GPU | what to look for in the source |
# |---|---|---|
# | `out-of-bounds` | silent: another array changes. Or a crash, reported later, at another call | is each index guarded, against the size of its own axis? |
# | `negative-index` | Numba: silent, the last element. CUDA C: as `out-of-bounds` | every `i - something` |
# | `uninitialized-read` | silent: right until old values lie there | shared memory filled under an `if`; sums that nobody sets to 0 |
# | `race-shared` | wrong at times, on some GPUs, with some sizes | read here, written there, no barrier in between; `+=` with a neighbour |
# | `race-global` | counts too small, by a little, each time another little | `+=` to a place that threads share; a block that reads what another one writes |
# | `barrier-divergence` | undefined: it hangs, or the values are wrong, or you see nothing (after an early `return`, mostly nothing) | `return`, `if` and loops of unequal length before a `syncthreads` |
# | `warp-divergence` | undefined, likewise | a shuffle under an `if` |
# | `deadlock` | it hangs, and the GPU is busy | a grid barrier under an `if`; one block that waits for another |
# | `no-progress` | it hangs, and the GPU is busy | `while`: what gets smaller each time? |
#
# *Undefined* is the worst word in this table. It means that your GPU may do the right thing, and the next one need not.
#
# ### What `sim` cannot see
#
# - **What did not happen.** It judges one launch, with this input and these sizes. On the chess board, `checkerboard` was innocent.
# - **How long it takes.** It can count work, which lesson 08 does, but its own speed says nothing about a GPU's.
# - **The last digits.** A GPU joins a multiplication and an addition into one step that rounds once, and its `exp` is not your processor's.
# - **Some matters of memory order.** In `sim` a store is there for everyone at once. On a GPU, what one thread writes first need not be what
#   another sees first, unless a barrier or a fence stands in between. `sim` knows which of them order what, and it is a little more lenient than CUDA's rules with the
#   thread that reads. And a compiler may keep in a register what `sim` looks up each time.
#
# For your own GPU there is `compute-sanitizer`, which comes with CUDA: four tools that watch a real launch for several of these kinds.
#
# ## Validate
#
# Each of the nine with twenty seeds: how often the broken kernel gave the right values and how often `sim` saw the bug, then the same for yours.


# %%
def floats(*values):
    return np.array(values, dtype=float32)


def nothing(size):
    return np.full(size, np.nan, dtype=float32)


digits, hill = floats(3, 1, 4, 1, 5, 9, 2, 6), floats(1, 2, 3, 4, 4, 3, 2, 1)
# kernel: grid, block, its inputs, its outputs before the launch, NumPy's after it
LAUNCHES = {
    "checkerboard": (
        1,
        (8, 8),
        [],
        [np.full((3, 5), -1)],
        [np.indices((3, 5)).sum(axis=0) % 2],
    ),
    "previous": (
        2,
        4,
        [floats(1, 2, 3, 4, 5, 6)],
        [nothing(6)],
        [floats(0, 1, 2, 3, 4, 5)],
    ),
    "block_max": (
        2,
        4,
        [floats(-3, -1, -4, -1, -5, -9)],
        [nothing(2)],
        [floats(-1, -5)],
    ),
    "running_sum": (1, 8, [digits], [nothing(8)], [np.cumsum(digits)]),
    "histogram": (2, 4, [letters], [np.zeros(3, dtype=int32)], [np.bincount(letters)]),
    "mirror": (
        2,
        4,
        [floats(1, 2, 3, 4, 5, 6)],
        [nothing(6)],
        [floats(4, 3, 2, 1, 6, 5)],
    ),
    "swap_neighbours": (
        1,
        32,
        [np.arange(32).astype(float32)],
        [nothing(32)],
        [np.arange(32) ^ 1],
    ),
    "shares": (
        3,
        4,
        [hill],
        [np.zeros(1, dtype=float32), nothing(8)],
        [floats(20), hill / 20],
    ),
    "sample": (
        1,
        4,
        [cumulative, floats(0.05, 0.5, 0.2, 0.9)],
        [np.full(4, -1)],
        [np.array([0, 2, 1, 3])],
    ),
}


def launched(kernel, name, run):
    """Launch the kernel on fresh copies with `run`;
    returns the report, if there is one, and whether all values are right."""
    grid, block, inputs, outputs, wanted = LAUNCHES[name]
    outputs = [array.copy() for array in outputs]
    report = run(kernel)[grid, block](*inputs, *outputs)
    return report, all(
        np.abs(got - right).max() <= 1e-6 for got, right in zip(outputs, wanted)
    )


def twenty_seeds(kernel, name):
    """In how many of twenty runs the values were right,
    and in how many `sim` found something."""
    runs = [
        launched(
            kernel,
            name,
            lambda k: simulate(k, seed=seed, max_steps=1000, on_finding="report"),
        )
        for seed in range(20)
    ]
    return (
        f"{sum(right for _, right in runs):5} of 20   "
        f"{sum(bool(report.findings) for report, _ in runs):5} of 20"
    )


# %% tags=["uses-exercise"]
MENDED = {
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

print(f"{'':16}   as found here             mended")
print(f"{'kernel':16}   right       findings      right       findings")
for broken, fixed in MENDED.items():
    name = broken.__name__
    print(f"{name:16} {twenty_seeds(broken, name)}    {twenty_seeds(fixed, name)}")

# %% [markdown]
# Look at `block_max` and `histogram`: right twenty times out of twenty, broken all the same, and found twenty times out of twenty. A test that compares
# values would have let them through.
#
# ### On a real GPU, if there is one
# The mended kernels go to the GPU as they are. Without one this cell uses `sim` and prints the same lines. (The broken ones stay here: some of
# them would hang.)

# %% tags=["uses-exercise"]
on_this_machine = cuda.jit if cuda.is_available() else simulate
for broken, fixed in MENDED.items():
    _, right = launched(fixed, broken.__name__, on_this_machine)
    print(f"{fixed.__name__:22} right: {right}")

# %% [markdown]
# ## Six without a label
#
# Now without `sim` at your side. One of these kernels is sound; each of the others has a bug of one of the nine kinds. (The numbers in front count the
# lines. `a` to `d` are launched with sizes that do not divide, on several blocks where the kernel speaks of blocks.)

# %%
import inspect

from course.check.six_kernels import KERNELS

for name, kernel in KERNELS.items():
    for number, line in enumerate(inspect.getsource(kernel).splitlines(), start=1):
        print(f"{number:3}  {line}")
    print()

# %% [markdown]
# ### Exercise 4.10 · names · six words
# For each of them the name of its bug, as in the table of the nine kinds above, or `"none"`. The check launches all six in `sim` and compares.
#
# <details><summary>Hint: four questions</summary>
#
# What is the largest index, and the smallest? Who wrote what is read here? What stands between this write and that read? Does every thread come to
# this barrier equally often?
# </details>


# %% tags=["exercise"]
def names():
    """{"a": ..., ..., "f": ...}:
    the kind of bug in each of the six kernels, or "none"."""
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
# <details><summary>The six, one line each</summary>
#
# - **a**: the guard is right for `x[i]`; for `x[i + 1]` the last thread with an element reads one too far.
# - **b**: nobody sets `mine` to 0, and an atomic addition reads what it adds to.
# - **c**: the thread before writes the element that is read here, at the same time or later, and perhaps in another block.
# - **d**: sound. The `return` is that of a *whole* block, so nobody waits for anybody; and the neighbour's element is read after the barrier.
# - **e**: one barrier is missing: a quick thread puts the next tile over the one that a slow thread still reads.
# - **f**: thread t comes to the barrier t + 1 times. The loops are of unequal length.
# </details>
#
# ## In three lines
# - A kernel goes wrong in the wrong place, at the wrong moment, or by waiting for somebody who never comes.
# - A finding says what, who, where and why; its fix is a guess, and the thinking is yours.
# - Right values prove little: a race, a leftover and a square board all pass a test that only compares values.
#
# **You can now** find nine kinds of bugs in a kernel by reading it, and know what to ask `sim` when reading is not enough.
#
# **Next:** [lesson 05](05_flash_kernel.ipynb) turns the tiles of [lesson 02](02_flash_attention.ipynb) into a kernel, one that was published with several of these bugs in it.
