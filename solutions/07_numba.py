# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 07 · Numba: the same kernel, compiled
#
# **95 minutes**, and 15 for an exercise marked *optional* · builds on lesson 03 (kernels, `simulate`), lesson 05 (flash attention) and lesson 06 (warps)
#
# You will be able to:
#
# - say which type every number in a kernel has, and find the line that makes a GPU compute in float64 by accident;
# - read the instructions that Numba makes of a small kernel;
# - choose grid, block and stream of a launch, and take its time without fooling yourself.
#
# Up to now Python has carried out your kernels line by line. Now a compiler translates them. The kernels stay as they are, and most of this lesson needs **no
# GPU**: NVIDIA's compiler translates for GPUs that are not there. What only a GPU can tell, such as how long something takes, was **recorded** on one, and says so. Cells that
# begin with `@live` run on your GPU, if you have one, and otherwise show what they printed on ours. (For a Mac there is no such compiler. There, the translations
# of this lesson's own kernels come with the course, made on Linux; only your kernel of exercise 7.2 stays untranslated.)
#
# Here is the way of a kernel.

# %%
from course.figures import BLUE, ORANGE, show_figure
from course.pictures import draw_times, draw_way

show_figure(
    draw_way(),
    "four boxes in a row, joined by arrows. Your function, in Python; at the first "
    "launch Numba makes of it: its types, from those of the arguments; Numba and the "
    "library libNVVM make of these: PTX, instructions to be read; the assembler "
    "makes of it: machine code for one GPU. From the first box a second arrow leads "
    "down to: simulate(kernel), Python runs each line, for each thread.",
)

# %% [markdown]
# ## 1. One function, two ways
#
# This kernel will go with us to the end:

# %%
import json
import math
import time
from pathlib import Path

import numpy as np
import torch
from numba import cuda
from numpy import float32

import kernels
from course import check, live
from course.ptx import compiled, type_of
from sim import simulate


@cuda.jit
def scale(x, factor, out):
    """out = factor · x, 1-D, one thread per element."""
    i = cuda.grid(1)
    if i < out.size:
        out[i] = factor * x[i]


x, out = np.arange(5, dtype=float32), np.full(5, np.nan, dtype=float32)
simulate(scale)[1, 32](x, float32(3), out)
print(out)

# %% [markdown]
# `@cuda.jit` compiles nothing yet. It wraps the function into an object that can be launched: `scale[grid, block](x, float32(3), out)`. At the first launch it looks at the
# **types of the arguments**, here a float32 array, a float32, a float32 array. From these three, Numba finds the type of every variable
# and every intermediate result, compiles, and keeps what it has made. The next launch with the same three types takes it from there. One with others,
# float64 arrays for example, makes Numba compile again: one function, as many translations as there are lists of types.
#
# A list of types is called a **signature**. You can write it down, `@cuda.jit("void(float32[::1], float32, float32[::1])")`, and Numba compiles at once and accepts
# nothing else. (`[::1]` means: neighbours in the array are neighbours in memory.) We never do, because compiling at once needs a GPU.
#
# How long does the first launch take? The recorded times of this lesson are in one small file; here is who measured, and the answer:

# %%
recorded = json.loads(
    (Path(kernels.__file__).parent / "data" / "lesson07.json").read_text(
        encoding="utf-8"
    )
)
SOURCE = "recorded on {gpu}, {date}, {versions}".format(**recorded["recorded"])
print(SOURCE)
print(
    "the first launch of scale, with its compilation:",
    recorded["first_launch_ms"],
    "milliseconds",
)

# %% [markdown]
# A launch that finds its translation ready takes less than a thousandth of a second (section 7). So: **whoever measures, launches once before.**
#
# ## 2. Every number has a type
#
# Python's numbers adapt. On a GPU every value has one type for good, and the type decides which instruction computes with it. In a kernel:
#
# - what comes out of an array has the array's type: of a float32 array, float32;
# - a whole number in the source, like `2`, is an int64, and one with a point, like `0.5`, is a **float64**. `float32(0.5)` is a float32;
# - two whole numbers give an **int64**, whatever they were: int32 + int32 too. (Two unsigned ones give a uint64.) But `/` always makes a float;
# - a float32 with a float32 gives a float32. A float32 with a float64, **or with an int32 or int64**, gives a float64;
# - of whole numbers, `/` and the functions of `math` make a float64. `math.exp` and its like leave a float32 a float32.
#
# PyTorch does it otherwise: there a float32 tensor times 2 or 0.5 stays float32. Why does Numba make a float64 of a float32 and an int32? A float32 has room for
# 7 digits and an int32 may have 10, so Numba takes the wider type, which loses none. (For an int64 even a float64, with its 16 digits, can be too short.)
#
# **On paper.** In `scale`, `x[i]` is a float32. What is `factor * x[i]`, if you launch with the factor 3, with 3.0, and with `float32(3)`? A Python integer
# arrives as int64, a Python float as float64. Write down three types, then run: `type_of` asks Numba itself.

# %%
for words, factor in {"3": 3, "3.0": 3.0, "float32(3)": float32(3)}.items():
    print(
        f"factor = {words:11} factor * x[i] is "
        f"{type_of('factor * x[i]', factor=factor, x=x, i=0)}"
    )

# %% [markdown]
# Only the last one is what you meant. The result is stored into a float32 array, so it is the same in all three cases; nobody would notice.
#
# ### Exercise 7.1 · my_types · ten types
# In a kernel, `n` is an int32, `s` is a float32, `x` is an array of float32. Which types have these expressions? Guess with the list above, without asking `type_of`: each
# wrong one brings you an explanation.
#
# | | expression | | expression |
# |---|---|---|---|
# | a | `n + 1` | f | `s * float32(2)` |
# | b | `n // 2` | g | `max(s, 0.0)` |
# | c | `n / 2` | h | `math.exp(s)` |
# | d | `s * s` | i | `s / x.size` |
# | e | `2 * s` | j | `x[n] + s` |
#
# <details><summary>Hint 1: g</summary>
#
# `max` gives one type, whichever of the two is larger: the one in which both have room.
# </details>
# <details><summary>Hint 2: i</summary>
#
# `x.size` is a whole number.
# </details>


# %% tags=["exercise"]
def my_types():
    """The ten types, by letter: dict(a="...", b="...", ...)."""
    # BEGIN SOLUTION 7.1
    return dict(
        a="int64",
        b="int64",
        c="float64",
        d="float32",
        e="float64",
        f="float32",
        g="float64",
        h="float32",
        i="float64",
        j="float32",
    )
    # END SOLUTION


# %% tags=["check"]
check.ex07_1(my_types)

# %% [markdown]
# A variable has one type too. If a kernel starts a sum with `total = 0.0` and goes on with `total += x[i]`, then `total` is float64, and so is every addition.
#
# ## 3. PTX, read aloud
#
# The compiler's result can be read. **PTX** is a language of simple instructions, each with at most a few operands, one line each. For every value it has a
# **register**, and Numba's compiler names it after its kind: `%f1`, `%f2` hold float32, `%fd1` float64, `%r1` 32-bit integers, `%rd1` 64-bit integers and addresses, `%p1` a yes or no. (Other compilers use other names; what counts is the type in the instruction.) An
# instruction says what it does, with which type, and where the result goes: `mul.f32 %f3, %f2, %f1` is `f3 = f2 * f1` in float32.
#
# **Predict**, for `scale` with a float32 factor: how many multiplications of *float32* will there be? What else has to be computed before `x[i]` can be fetched from memory?
#
# `compiled` gives Numba's translation for arguments like the ones it gets, here for the kind of GPU that is called `sm_80`. On the left is the PTX (with readable names for the
# arguments, which in PTX are only numbered), on the right each line in words. Read it aloud, from top to bottom. It is thirty lines, and there are no more secrets.

# %% tags=["nbval-ignore-output"]
translation = compiled(scale, x, float32(3), out)
print(translation.read_aloud())

# %% [markdown]
# What to see in it. (Your compiler may number the registers otherwise.)
#
# - **An array arrives as several numbers**: where its data begin, its size, its length along each axis, and more. Only those in use are loaded.
# - **`cuda.grid(1)`** is `threadIdx.x + blockDim.x * blockIdx.x`: three `mov`, a `mul`, an `add`. It becomes 64 bits wide on the way.
# - **The guard** is `setp.ge` (is i >= out.size?) and a jump to the end, for threads of which that is true. The `@%p1` in front means: only if p1.
# - **`x[i]`** is an address: where x begins, plus 4 · i, for 4 bytes per number. Times 4 is written as a shift by 2 bits.
# - **`shr.s64 ..., 63` and `and.b64`**: what are they for? The shift gives -1 for a negative i and 0 otherwise, so the `and` gives the array's length or 0, and that is added to i. It is
#   Python's rule that `x[-1]` is the last element, carried out for every access, even where i is never negative.
# - **One `ld.global`, one `mul.f32`, one `st.global`**: this is the work. All the other lines find out who we are and where.
#
# PTX is not the last word. It uses as many registers as it likes; the assembler then shares out the ones that a GPU has, 32 bits each. It can tell how many a thread needs:

# %% tags=["nbval-ignore-output"]
print("registers per thread:", translation.registers)
print("bytes of shared memory a block:", translation.shared_bytes)
print(
    "bytes a thread of local memory, for what is not in registers:",
    translation.local_bytes,
)

# %% [markdown]
# So this is the way of one line, `out[i] = factor * x[i]`, at each of its stations:

# %% tags=["nbval-ignore-output"]
a, b = type_of("factor", factor=float32(3)), type_of("x[i]", x=x, i=0)
product = type_of("factor * x[i]", factor=float32(3), x=x, i=0)
(multiply,) = (line for line in translation.instructions if line.startswith("mul.f32"))
show_figure(
    draw_way(
        [
            "out[i] = factor * x[i]",
            f"{a} * {b}\n= {product}",
            multiply,
            f"{translation.registers} registers\nper thread",
        ]
    ),
    "the picture of the way again, with a line in each box. Python: "
    f"out[i] = factor * x[i]. Types: {a} * {b} = {product}. PTX: {multiply}. "
    f"Machine code: {translation.registers} registers per thread.",
)

# %% [markdown]
# In the last box stands what the assembler tells. The machine code itself (NVIDIA calls it **SASS**) is bytes, and takes one more tool to be read, `nvdisasm` of the CUDA Toolkit, which this course does not need.
#
# ## 4. What a bare `0.0` costs
#
# The function ReLU makes negative numbers 0. Two kernels that differ in one word:


# %%
@cuda.jit
def relu(x, out):
    """out = max(x, 0)."""
    i = cuda.grid(1)
    if i < out.size:
        out[i] = max(x[i], float32(0))


@cuda.jit
def careless_relu(x, out):
    """out = max(x, 0)."""
    i = cuda.grid(1)
    if i < out.size:
        out[i] = max(x[i], 0.0)


# %% [markdown]
# **Predict.** Both give the same results. How many instructions with a float64 does the second one have? Think of what has to happen between loading a float32 and storing one. `___`

# %% tags=["nbval-ignore-output"]
print(
    len(compiled(relu, x, out).float64),
    "instructions with a float64 in relu; in careless_relu:",
)
print(*compiled(careless_relu, x, out).float64, sep="\n")

# %% [markdown]
# The float32 is widened, compared as a float64 with a float64 zero, and rounded back. No digit of the result is different.
#
# The types tell what *may* happen, the PTX what does. `2 * x[i]` is a float64 by the rules of section 2; but where it is rounded to float32 at once, a float32 multiplication gives the same
# result, the compiler knows it, and leaves the detour out:


# %%
@cuda.jit
def double(x, out):
    """out = 2 * x."""
    i = cuda.grid(1)
    if i < out.size:
        out[i] = 2 * x[i]


print("2 * x[i] is", type_of("2 * x[i]", x=x, i=0))
print("any .f64 in its PTX:", bool(compiled(double, x, out).float64))

# %% [markdown]
# Do not rely on it: the 0.0 above was not spared.
#
# And if the kernel computes more? Here is the sum that a softmax divides by, one thread per query. The kernel is made by a function, so that we can hand it its zero, once
# as `float32(0)` and once as `0.0`; in all other characters the two are equal.


# %%
def row_sums(zero):
    """The kernel that starts its sums with this zero."""

    @cuda.jit
    def row_sums_kernel(q, k, l):
        """l[i] = Σ_j exp(q_i · k_j) for small scores;
        q (N, d), k (M, d), l (N,), float32."""
        i = cuda.grid(1)
        if i < q.shape[0]:
            total = zero
            for j in range(k.shape[0]):
                score = zero
                for c in range(q.shape[1]):
                    score += q[i, c] * k[j, c]
                total += math.exp(score)
            l[i] = total

    return row_sums_kernel


matrix = np.zeros((4, 4), dtype=float32)
narrow, wide = (
    compiled(row_sums(zero), matrix, matrix, x) for zero in (float32(0), 0.0)
)
print("float32(0): any float64?", bool(narrow.float64))
print("0.0:        any float64?", bool(wide.float64))

# %% [markdown]
# **Predict.** Which line of it has the most instructions with a float64, and how many? The compiler keeps a record of the line that each instruction comes from:

# %% tags=["nbval-ignore-output"]
print(wide.float64_by_line())

# %% [markdown]
# The line with the zero has none at all: a constant costs nothing by itself. It infects what it meets. The products are computed as float32, widened, and added as
# float64. (The compiler has unrolled the loop, so that line stands there several times.) Worst is `exp`: for a float64 there is no instruction that helps, so it becomes a long polynomial.
#
# What does it cost in time? That depends on the GPU: in the time of 64 float32 multiplications, the H200 can do 32 in float64, most GPUs for games only one. And it depends on
# what the kernel waits for. To see that we want a kernel that fetches next to nothing and computes all the time. Here is one: a number is fetched once, and then there are 64 · 64
# multiply-adds with it.


# %%
def powers(one):
    """The kernel that starts its sums with this one, and adds it."""

    @cuda.jit
    def powers_kernel(x, out):
        """out[i] = 1 + x[i] + x[i]² + … + x[i]⁴⁰⁹⁶, 1-D, one thread per number."""
        i = cuda.grid(1)
        if i < out.size:
            number, total = x[i], one
            for _ in range(64):
                # written out 64 times by the compiler: counting takes hardly any time
                for _ in range(64):
                    total = total * number + one
            out[i] = total

    return powers_kernel


halves, sums = np.array([0, 0.5, -1], dtype=float32), np.full(3, np.nan, dtype=float32)
simulate(powers(float32(1)))[1, 32](halves, sums)
print("1 + x + x² + … for x = 0, 0.5, -1:", sums)

# %% tags=["nbval-ignore-output"]
for name, one in {"float32(1)": float32(1), "1.0": 1.0}.items():
    made = [line.split()[0] for line in compiled(powers(one), x, out).instructions]
    print(
        f"{name:10}  {made.count('fma.rn.f32')} multiply-adds in float32 and "
        f"{made.count('fma.rn.f64')} in float64 are written out"
    )

# %% [markdown]
# (Check: 1 + 0.5 + 0.25 + … comes to 2; and 1 - 1 + 1 - … + 1 is 1.)
#
# **Predict.** Four kernels, each with float32 alone and with the float64 that bare numbers bring. How many times as long does each one take on an H200? `relu` does one operation with each number that
# it fetches; `rms_norm`, which is the next exercise, a few; `row_sums` a multiply-add for every two numbers that it fetches; `powers` 4096 multiply-adds for one. `___`

# %%
print(f"microseconds, {SOURCE}\n")
print(f"{'kernel':10} {'float32':>12} {'with float64':>14} {'times as long':>15}")
for row in recorded["float64"]:
    print(
        f"{row['kernel']:10} {row['float32_us']:>12} {row['float64_us']:>14} "
        f"{row['slower']:>15}"
    )

# %% [markdown]
# `relu` was run on 2²⁶ numbers, `rms_norm` on 65,536 rows of 256, `row_sums` on 65,536 queries and 1024 keys of 64 numbers, `powers` on 2²⁴ numbers. A few percent, up or down, mean nothing here.
#
# How to read it. A kernel that waits for memory has time to spare, and in that time the arithmetic is done, in float64 as well. `row_sums` is an extreme case: its 4.3 billion multiply-adds would take an H200 about 0.13
# milliseconds, if nothing else took time. (Lesson 08 explains what it waits for.) Only where the kernel waits for its arithmetic does a slower arithmetic show; the most that `powers` can lose on this GPU is about a factor of 2.
#
# So is the bare `0.0` harmless? In a kernel that waits for memory, on this GPU, it is. It stops being harmless when you tune the kernel until it no longer waits, or run it on a GPU whose float64 is 64 times
# slower. And every float64 takes two registers. The package's kernels have none: it costs nothing to avoid, and you have seen how to look.
#
# ### Exercise 7.2 · rms_norm · mend three lines
# Many transformers normalise each row by its root mean square: divide it by √(mean of x² + 10⁻⁶), and multiply column c by `gain[c]`. This kernel does it, one thread per row:
#
# ```python
# @cuda.jit
# def careless_norm(x, gain, out):
#     i = cuda.grid(1)
#     if i < x.shape[0]:
#         total = 0.0
#         for c in range(x.shape[1]):
#             total += x[i, c] ** 2
#         mean = total / x.shape[1]
#         for c in range(x.shape[1]):
#             out[i, c] = gain[c] * x[i, c] / math.sqrt(mean + 1e-6)
# ```
#
# Write `rms_norm` so that its PTX holds not one `.f64`, with results that are as good as before. All arrays are float32; x and out are (N, d), gain is (d,). The check compiles it for three kinds of GPU, and runs it in `sim`.
# To look for yourself, `compiled(rms_norm, matrix, x, matrix).float64_by_line()` counts by lines.
#
# <details><summary>Hint 1: where?</summary>
#
# There are three places. If you mend only the first, `total` is a float32; but look at what it is divided by.
# </details>
# <details><summary>Hint 2: a whole number as float32</summary>
#
# `float32(x.shape[1])`. The conversion is one instruction.
# </details>


# %% tags=["exercise"]
@cuda.jit
def rms_norm(x, gain, out):
    """out[i, c] = gain[c] · x[i, c] / √(mean of x[i]² + 1e-6);
    x and out (N, d), gain (d,), all float32; one thread per row."""
    i = cuda.grid(1)
    # BEGIN SOLUTION 7.2
    if i < x.shape[0]:
        total = float32(0)
        for c in range(x.shape[1]):
            total += x[i, c] ** 2
        root = math.sqrt(total / float32(x.shape[1]) + float32(1e-6))
        for c in range(x.shape[1]):
            out[i, c] = gain[c] * x[i, c] / root
    # END SOLUTION


# %% tags=["check"]
check.ex07_2(rms_norm)

# %% [markdown]
# There is one more way to get a float64 into a kernel, and no look at the kernel finds it: the argument. `scale[grid, block](x, 3.0, out)` compiles a version for a float64 factor. So host
# code hands over `float32(3.0)`.

# %% tags=["nbval-ignore-output"]
print(*compiled(scale, x, 3.0, out).float64, sep="\n")

# %% [markdown]
# ## 5. How many blocks
#
# A launch has up to four numbers: `kernel[grid, block, stream, shared](...)`, of which the last two are 0 unless given. The **block** is yours to choose: a multiple of 32, as a warp has 32 lanes;
# 128 or 256 are good to start with, 1024 is the limit. The **grid** follows: enough blocks for all elements.
#
# **Predict.** 1000 elements, 256 threads in a block. How many blocks, and how many threads have nothing to do? And for 1024 elements? `___`
#
# <details><summary>Answer</summary>
#
# 1000 / 256 is 3.9, so 4 blocks; 4 · 256 - 1000 = 24 threads are idle. 1024 elements need 4 blocks as well, and no thread is idle. (`n // threads + 1` would launch a fifth.)
# </details>
#
# With an enormous number of elements, a block for each 256 is not the only way. One can launch as many threads as the GPU has room for at once, and let each take several
# elements: thread `t` of `T` takes t, t + T, t + 2T, … until there are no more. This is the **grid-stride loop**. It is right for *every* grid, and what a thread needs for all its elements
# (a gain, a constant) is computed once. Here with 10 elements, and 2 blocks of 2 threads:
#
# | block | thread | elements |
# |---|---|---|
# | 0 | 0 | 0, 4, 8 |
# | 0 | 1 | 1, 5, 9 |
# | 1 | 0 | 2, 6 |
# | 1 | 1 | 3, 7 |
#
# Why not 0, 1, 2 for the first and 3, 4, 5 for the second? So that neighbours work on neighbours at the same moment, in the same piece of memory (lesson 08).
#
# ### Exercise 7.3 · blocks_for · one line
# How many blocks of `threads` threads are needed for `n` elements, one thread per element, if there may be at most `most` blocks? All are whole numbers from 1 on.
#
# <details><summary>Hint</summary>
#
# Rounding up in whole numbers: `(n + threads - 1) // threads`, or, shorter, `-(-n // threads)`.
# </details>


# %% tags=["exercise"]
def blocks_for(n, threads, most):
    """The number of blocks, from 1 to `most`."""
    # BEGIN SOLUTION 7.3
    return min(-(-n // threads), most)
    # END SOLUTION


# %% tags=["check"]
check.ex07_3(blocks_for)

# %% [markdown]
# ### Exercise 7.4 · scale_all · two or three lines
# Write `scale_all` with a grid-stride loop: every element of `out` is written, once, by the thread that the table gives it, whatever the grid.
#
# <details><summary>Hint 1: the loop</summary>
#
# `range(first, end, step)`. You have written it in lesson 05, for the threads of one block.
# </details>
# <details><summary>Hint 2: the step</summary>
#
# The number of all threads of the grid: `cuda.gridDim.x * cuda.blockDim.x`, or `cuda.gridsize(1)`.
# </details>


# %% tags=["exercise"]
@cuda.jit
def scale_all(x, factor, out):
    """out = factor · x, 1-D, with any grid."""
    # BEGIN SOLUTION 7.4
    for i in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[i] = factor * x[i]
    # END SOLUTION


# %% tags=["check"]
check.ex07_4(scale_all)

# %% tags=["uses-exercise"]
big = np.arange(1000, dtype=float32)
result = np.full(1000, np.nan, dtype=float32)
for most in (1, 3, 100):
    grid = blocks_for(big.size, 128, most)
    simulate(scale_all)[grid, 128](big, float32(3), result)
    print(
        f"limit {most:3}, launched {grid}, all 1000 elements right: "
        f"{np.array_equal(result, 3 * big)}"
    )

# %% [markdown]
# ## 6. Streams: who waits for whom
#
# A launch does not wait. It puts the kernel into a queue and comes back at once; the GPU works the queue off, one after the other, while Python runs on. Such a queue is called a
# **stream**. This can be built out of Python: a stream is a queue with one worker.

# %%
from concurrent.futures import ThreadPoolExecutor


class Stream:
    """Work that is done in order, by one worker, while the caller goes on."""

    def __init__(self):
        self.worker = ThreadPoolExecutor(max_workers=1)
        self.last = self.worker.submit(lambda: None)

    def launch(self, work, *arguments):
        """Put some work at the end of the queue; come back at once."""
        self.last = self.worker.submit(work, *arguments)

    def synchronize(self):
        """Wait until all is done that has been launched."""
        self.last.result()

    def record_event(self):
        """A mark at the end of the queue as it is now."""
        return self.last

    def wait_event(self, event):
        """What is launched from now on waits until the mark, of another stream,
        has been reached."""
        self.launch(event.result)


def slow_scale(x, factor, out):
    """What `scale` does, in half a second."""
    time.sleep(0.5)
    out[:] = factor * x


# %% [markdown]
# **Predict.** What do the two lines print?

# %%
ones, tripled = np.ones(3), np.zeros(3)
stream = Stream()
stream.launch(slow_scale, ones, 3, tripled)
print("after the launch: ", tripled)
stream.synchronize()
print("after synchronize:", tripled)

# %% [markdown]
# After the launch nothing has happened yet. In one stream that does no harm: what is launched later finds what was launched before.
# Only when Python itself wants to see a result, somebody must wait. PyTorch does so unasked in `.cpu()`, `.item()` and `print(tensor)`.
#
# The picture: Python above, the GPU's stream below; time goes to the right.

# %%
show_figure(
    draw_times(
        {
            "Python": [
                *((n - 1, n - 0.3, f"launch\n{n}", BLUE) for n in (1, 2, 3)),
                (3, 10, "synchronize: Python waits", None),
            ],
            "the stream": [
                (3 * n - 2, 3 * n + 1, f"kernel {n}", ORANGE) for n in (1, 2, 3)
            ],
        }
    ),
    "two rows of bars over time. Python makes three short launches one after the "
    "other, and then waits in synchronize. The stream does kernel 1 from the end of "
    "launch 1 on, then kernel 2, then kernel 3, each several times as long as a "
    "launch. Python's wait ends together with kernel 3.",
)

# %% [markdown]
# ### Bug hunt: a stopwatch
# Somebody measures a kernel, and is delighted:
#
# ```python
# begin = time.perf_counter()
# kernel[grid, block](q, k, l)
# print(time.perf_counter() - begin)
# ```
#
# **Guess before you run.** With our stream of half a second, which of the two is below 0.1 seconds?

# %%
begin = time.perf_counter()
stream.launch(slow_scale, ones, 3, tripled)
launched = time.perf_counter() - begin
stream.synchronize()
done = time.perf_counter() - begin
print("without waiting, below 0.1 seconds:", launched < 0.1)
print("with waiting, below 0.1 seconds:   ", done < 0.1)

# %% [markdown]
# Without waiting, what is measured is how long it takes to ask; twice as many keys would take "the same time". Three stopwatches around `row_sums`, with 65,536 queries and 16,384 keys of 64 numbers:

# %%
print(f"microseconds, {SOURCE}\n")
for name, microseconds in recorded["stopwatch_us"].items():
    print(f"{name:28} {microseconds:>10}")

# %% [markdown]
# The third stopwatch is the best. An **event** is a mark in the stream, to which the GPU itself writes the time when it gets there; so Python's waiting is not in the difference. Python's own work is in it only where the stream is empty and has to wait for the next launch.
# The same, live:


# %% tags=["gpu"]
@live
def stopwatches_live():
    """Three stopwatches around one launch."""
    kernel = row_sums(float32(0))
    q, k = (
        0.1 * torch.randn(65536, 64, device="cuda"),
        0.1 * torch.randn(16384, 64, device="cuda"),
    )
    l = torch.empty(65536, device="cuda")
    kernel[512, 128](q, k, l)  # compiles
    torch.cuda.synchronize()
    before, after = (
        torch.cuda.Event(enable_timing=True),
        torch.cuda.Event(enable_timing=True),
    )
    begin = time.perf_counter()
    before.record()
    kernel[512, 128](q, k, l)
    after.record()
    launched = time.perf_counter() - begin
    torch.cuda.synchronize()
    done = time.perf_counter() - begin
    print(
        f"launch {1e6 * launched:.0f}, synchronize {1e6 * done:.0f}, "
        f"between events {1000 * before.elapsed_time(after):.0f} microseconds"
    )


# %% [markdown]
# ### Bug hunt: two streams
# A program may have several streams. Each works in order; **between** them there is no order at all, unless somebody makes one.
#
# **Guess before you run.** The first stream fills x with ones, slowly; the second computes 3 · x. What is in `out`?
#
# - ( ) 3, 3, 3
# - ( ) 0, 0, 0
# - ( ) an error

# %%
first, second = Stream(), Stream()


def in_two_streams(mark):
    """out = 3 · x, where the first stream fills x and the second one computes;
    mark: whether the second waits for the first."""
    x, out = np.zeros(3), np.full(3, np.nan)
    first.launch(slow_scale, np.ones(3), 1, x)
    if mark:
        second.wait_event(first.record_event())
    second.launch(np.multiply, x, 3, out)
    first.synchronize()
    second.synchronize()
    return out


print("no order:  ", in_two_streams(mark=False))
print("with order:", in_two_streams(mark=True))

# %% [markdown]
# Zeros, and no error: the second stream was simply earlier. The last two `synchronize` do not help, for they come too late. An event does: the second stream waits for
# the first one's mark, and Python still waits for nobody. Both cases over time:

# %%
fill = (1, 7, "x = ones, slowly", ORANGE)
show_figure(
    draw_times(
        {
            "no order: first": [fill],
            "no order: second": [(2, 3.5, "3 · x", ORANGE)],
            "with order: first": [fill],
            "with order: second": [
                (2, 7, "waits for the mark", None),
                (7, 8.5, "3 · x", ORANGE),
            ],
        },
        marks=[(7, "with order: first", "with order: second")],
    ),
    "two streams over time, twice. With no order the second stream computes 3 · x "
    "while the first is still filling x with ones. With order, the first stream "
    "reaches a mark at the end of its filling; the second waits until then, and an "
    "arrow leads from the mark to the beginning of 3 · x.",
)

# %% [markdown]
# ### Exercise 7.5 · pipelined · about eight lines (optional, 10 minutes)
# What streams are for: copying while computing. A long array comes in `parts` parts, and there is room for two, `buffers[0]` and `buffers[1]`. Part p goes into `buffers[p % 2]`. In the stream `copier`, `fill(p, buffer)` puts it there;
# in the stream `worker`, `compute(p, buffer)` uses it. Launch all of it, part by part, with marks: nothing is computed before it is filled, no buffer is filled again before its part is computed, no stream waits longer
# than that, and Python waits for nothing. The streams have the methods of `Stream` above. The check lets now one of them be faster, now the other.
#
# <details><summary>Hint 1: two marks for each part</summary>
#
# One behind `fill(p)`, for the worker. One behind `compute(p)`: who waits for it, and before which part?
#
# </details>
# <details><summary>Hint 2: when to ask for a mark</summary>
#
# `record_event()` marks the end of the queue *as it is now*: ask right after the launch, and keep those of `compute` in a list.
#
# </details>


# %% tags=["exercise"]
def pipelined(copier, worker, parts, buffers, fill, compute):
    """fill(p, buffers[p % 2]) in the copier and compute(p, buffers[p % 2]) in the
    worker for each part p, ordered by marks."""
    # BEGIN SOLUTION 7.5
    computed = []
    for p in range(parts):
        if p >= 2:
            copier.wait_event(computed[p - 2])
        copier.launch(fill, p, buffers[p % 2])
        worker.wait_event(copier.record_event())
        worker.launch(compute, p, buffers[p % 2])
        computed.append(worker.record_event())
    # END SOLUTION


# %% tags=["check"]
check.ex07_5(pipelined)

# %% [markdown]
# With real streams, six parts, a tenth of a second to fill one and as long to compute with it. **Predict**: how long in one stream, and how long in two? `___`


# %% tags=["uses-exercise"]
def seconds_for_six_parts(copier, worker):
    """From the first launch to the end of the last."""

    def for_a_while(p, buffer):
        time.sleep(0.1)

    begin = time.perf_counter()
    pipelined(copier, worker, 6, [None, None], for_a_while, for_a_while)
    copier.synchronize()
    worker.synchronize()
    return time.perf_counter() - begin


in_one = seconds_for_six_parts(first, first)
print("one stream, at least 1.2 seconds: ", in_one >= 1.2)
print(
    "two streams, less than 0.8 of that:",
    seconds_for_six_parts(first, second) < 0.8 * in_one,
)

# %% [markdown]
# 0.7 seconds: the first part is filled, then five times one is filled while another is computed, then the last is computed. A kernel can do the same within a block, with tiles instead of parts (part 5 of the course).
#
# ### Two libraries, two streams
# The early reader happens with Numba and PyTorch, because **each has its own idea of the stream**. `kernel[grid, block](...)` uses the default stream. PyTorch uses its *current* stream, which is the
# same default stream, until somebody writes `with torch.cuda.stream(torch.cuda.Stream())`. In there, PyTorch works in one stream and your kernel in another, and nothing in CUDA makes one of these two wait for the other. (The default stream does wait for ordinary streams, but PyTorch makes its streams *non-blocking*, which excludes them from that rule.) So there are two
# ways for a reader to be too early:
#
# - **the kernel reads** what PyTorch has not written yet. Against this Numba does something, if it is handed a *tensor*: it asks PyTorch for its current stream, and lets its own wait for a mark there, as our `wait_event` does. It does not ask for a
#   tensor that was made an array of Numba's before, by `cuda.as_cuda_array(tensor)`;
# - **PyTorch reads** what the kernel has not written yet. Against this nobody does anything.
#
# Two experiments. In the first, PyTorch's stream waits a tenth of a second and then fills x with ones; `scale` multiplies x by 3, and we count the results that are not 3. In the second, `row_sums` takes its milliseconds to write, PyTorch copies
# the sums at once, and we count those that are missing in the copy.
#
# **Predict.** In which of these is the number not 0? With the kernel in the default stream: `scale` reads a tensor; `scale` reads an array wrapped before; PyTorch reads what `row_sums` writes. And with the kernel in PyTorch's stream?

# %%
print(SOURCE, "\n")
print(f"{'who reads':42} {'stream of the kernel':22} not seen")
for row in recorded["wrong_stream"]:
    print(
        f"{row['reads']:42} {row['kernel_stream']:22} {row['not_seen']} of "
        f"{row['elements']}"
    )

# %% [markdown]
# Every number that is not 0 belongs to a program that ended without an error. A 0 in the default stream can be a mark, or luck; a 0 in PyTorch's stream is certain, because there reader and writer stand in one queue.
#
# So the repair is the third number of the launch: `kernel[grid, block, stream]`, with PyTorch's current stream, asked for at every launch. Live, the second experiment:


# %% tags=["gpu"]
def in_torchs_stream():
    """PyTorch's current stream, for a launch of Numba's."""
    return cuda.external_stream(torch.cuda.current_stream().cuda_stream)


@live
def sums_missing():
    """The same launch in either stream,
    and the number of sums that PyTorch copied too early."""
    kernel = row_sums(float32(0))
    q, k = (
        0.1 * torch.randn(65536, 64, device="cuda"),
        0.1 * torch.randn(1024, 64, device="cuda"),
    )
    for name, stream_of in {
        "default": lambda: 0,
        "PyTorch's": in_torchs_stream,
    }.items():
        l, seen = torch.zeros(65536, device="cuda"), torch.zeros(65536, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            kernel[512, 128, stream_of()](q, k, l)
            seen.copy_(l)
        torch.cuda.synchronize()
        print(
            f"launched in the {name} stream: "
            f"{(seen == 0).sum().item()} of 65536 sums are missing in the copy"
        )


# %% [markdown]
# ## 7. PyTorch tensors, and what a launch costs
#
# The live cells have handed CUDA tensors of PyTorch to kernels of Numba. Nothing is copied: a CUDA tensor tells, on request, where its data are, with which shape and type, and Numba takes it from there. Three
# things can go wrong:
#
# - A **numpy array** is accepted too. Numba then copies it to the GPU before the launch and back after it, and waits. The result is right, and everything is slow.
# - A tensor that **requires a gradient** is refused. Hand over `tensor.detach()`; a gradient needs a backward pass that somebody has written (lesson 12).
# - A tensor that is **not contiguous** makes another type of array, and Numba compiles again: a transposed one is of layout F (the *first* index counts neighbours), a slice such as
#   `x[:, ::2]` of layout A (any strides).
#
# And each launch costs Python's time: looking up the types, wrapping the tensors, calling the driver. A kernel with four tensors of 1024 numbers and one float32:

# %%
print(f"microseconds per launch, {SOURCE}\n")
for name, microseconds in recorded["launch_us"].items():
    print(f"{name:28} {microseconds:>10}")

# %% [markdown]
# *Wrapped before* means that each tensor was made an array of Numba's once, by `cuda.as_cuda_array(tensor)`, and not at each launch. *kernels.common.launch* is how the kernels of this package are launched: CPU tensors go to `sim`, CUDA
# tensors to their GPU, in PyTorch's current stream; it tells Numba of each tensor only what a launch has to know, and so is quicker than Numba's own questions. A **CUDA graph** is a recording of launches, here of a hundred, that PyTorch plays back
# with a single call; its line is a hundredth of the time from that call until the GPU is done. So the GPU itself needs no longer than that for 1024 numbers, and in all the other lines it waits for Python.
#
# A kernel that runs for a millisecond need not care. One for a single token should.
#
# ## Validate
#
# The promise of this course is *one source*: the kernel that ran in the simulator runs on a GPU. Here are three ways to the same attention: the **reference** (plain PyTorch, in float64),
# the **simulator**, and the **GPU**. First, live on every machine, the simulator against the reference, and what you have written against PyTorch:


# %% tags=["uses-exercise"]
def validate(stage, against, got, wanted, tolerance):
    """One row of the table. NaN fails."""
    agrees = (
        torch.as_tensor(got).double().cpu() - torch.as_tensor(wanted).double().cpu()
    ).abs().max().item() <= tolerance
    verdict = f"{'at most' if agrees else 'MORE THAN'} {tolerance:g}"
    print(f"{stage:28}  {against:27}  {verdict:18} {'✓' if agrees else '✗'}")


torch.manual_seed(7)
rows, gain = torch.randn(40, 12), torch.randn(12)
normed = torch.full((40, 12), math.nan)
simulate(rms_norm)[2, 32](rows, gain, normed)
scaled = torch.full((480,), math.nan)
simulate(scale_all)[3, 32](rows.flatten(), float32(3), scaled)
q, k, v = torch.randn(3, 1, 2, 70, 16, generator=torch.Generator().manual_seed(7))

print(f"{'stage':28}  {'against':27}  largest difference")
validate(
    "rms_norm",
    "PyTorch, float64",
    normed,
    torch.nn.functional.rms_norm(rows.double(), (12,), gain.double(), 1e-6),
    1e-5,
)
validate("scale_all", "PyTorch", scaled, 3 * rows.flatten(), 0)
for kernel in (kernels.flash_attention, kernels.warp_attention):
    for causal in (False, True):
        name = f"{kernel.__name__}{', causal' * causal}"
        validate(
            name,
            "reference, float64",
            kernel(q, k, v, causal),
            kernels.attention(q.double(), k.double(), v.double(), causal),
            1e-5,
        )

# %% [markdown]
# Then the three-way table, recorded with the very same q, k and v: 2 heads, 70 queries and keys, d = 16. Each number is the largest difference anywhere. The last column says how many of the 2240 numbers have
# all their bits in common on the GPU and in the simulator.

# %%
print(SOURCE, "\n")
print(f"{'kernel':26} {'simulator':>16} {'GPU':>16} {'GPU':>16} {'same bits,':>12}")
print(
    f"{'':26} {'- reference':>16} {'- reference':>16} {'- simulator':>16} "
    f"{'in percent':>12}"
)
for row in recorded["three_way"]:
    name = f"{row['kernel']}{', causal' * row['causal']}"
    columns = [
        row[column]
        for column in ("simulator_reference", "gpu_reference", "gpu_simulator")
    ]
    print(
        f"{name:26}"
        + "".join(f" {column:>16}" for column in columns)
        + f" {row['same_bits_percent']:>12}"
    )

# %% [markdown]
# Why are simulator and GPU not equal to the last bit, if both compute in float32? Two reasons are in the PTX. A product and a sum that follow each other become one
# instruction, `fma`, which rounds once where Python rounds twice. And the GPU's `exp` is another approximation than the simulator's. Neither is more right: compare their distances from the reference.
#
# **Predict.** Which of these kernels of ours have an `fma`: `scale`, `relu`, `row_sums`?

# %% tags=["nbval-ignore-output"]
for name, made in {
    "scale": translation,
    "relu": compiled(relu, x, out),
    "row_sums": narrow,
}.items():
    print(
        f"{name:8} {sum(line.startswith('fma') for line in made.instructions):3} fma "
        f"among {len(made.instructions)} instructions"
    )

# %% [markdown]
# `scale` has no sum, so nothing can be fused. Its results are equal to the last bit, wherever it runs; and those of your `scale_all` as well, which is why its tolerance above is 0.
#
# ### On a real GPU, if there is one
#
# All three live: your kernels, compiled and launched, and the package's, against the reference and the simulator.


# %% tags=["gpu"]
@live
def three_ways_live():
    """The GPU against the reference and the simulator."""
    device = torch.device("cuda")
    on_gpu = torch.full_like(rows, math.nan, device=device)
    rms_norm[2, 32](rows.to(device), gain.to(device), on_gpu)
    validate("rms_norm, GPU", "simulator", on_gpu, normed, 1e-5)
    on_gpu = torch.full_like(scaled, math.nan, device=device)
    scale_all[3, 32](rows.flatten().to(device), float32(3), on_gpu)
    validate("scale_all, GPU", "simulator", on_gpu, scaled, 0)
    for kernel in (kernels.flash_attention, kernels.warp_attention):
        for causal in (False, True):
            name = f"{kernel.__name__}{', causal' * causal}, GPU"
            got = kernel(q.to(device), k.to(device), v.to(device), causal)
            validate(
                name,
                "reference, float64",
                got,
                kernels.attention(q.double(), k.double(), v.double(), causal),
                1e-5,
            )
            validate(name, "simulator", got, kernel(q, k, v, causal), 1e-5)


# %% [markdown]
# ## In three lines
# - The types of the arguments decide all types: a bare `0.0`, a whole number times a float32 variable's element, a Python float as an argument make float64, which the PTX shows as `.f64`.
# - A launch is a grid, a block and a stream; it comes back at once, so wait before you look, and take the time with events, after a first launch.
# - Reference, simulator and GPU agree to the last digits of float32: one source, three ways.
#
# **You can now** read what the compiler makes of a kernel, and launch it beside PyTorch without a race between the two.
#
# **Next:** [lesson 08](08_memory.ipynb) looks at what this lesson has only called "waiting for memory", and counts it.
