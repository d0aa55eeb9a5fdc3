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
# **80 minutes** · builds on lessons 03 and 03b (kernels, `simulate`), lesson 05 (flash attention) and lesson 06 (warps)
#
# You will be able to:
#
# - say which type every number in a kernel has, and find the line that makes a GPU compute in float64 by accident;
# - read the instructions that Numba generates for a small kernel;
# - choose the grid and block of a launch.
#
# Until now Python has executed your kernels line by line. Now a compiler translates them. The kernels do not change, and most of this lesson needs **no GPU**, because NVIDIA's compiler can translate for GPUs that are not present. Results that need a real GPU, such as times, were **recorded** on one, and are labelled. Cells that begin with `@live` run on your GPU if you have one. Otherwise they show what they printed on ours. (There is no such compiler for a Mac. There, the translations of this lesson's own kernels come with the course, made on Linux. Only your kernel of exercise 7.2 is not compiled.)
#
# These are the stages of a kernel:

# %%
from course.figures import show_figure
from course.pictures import draw_way


show_figure(
    draw_way(),
    "four boxes in a row, joined by arrows. Your function, in Python; at the first "
    "launch Numba infers its types from those of the arguments; Numba and the "
    "library libNVVM generate PTX, readable instructions; the assembler "
    "generates machine code for one GPU. From the first box a second arrow leads "
    "down to: simulate(kernel), Python runs each line, for each thread.",
)

# %% [markdown]
# ## 1. One function, two ways to run it
#
# We use this kernel until the end of the lesson:

# %%
import json
import math
from pathlib import Path

import numpy as np
import torch
from numba import cuda
from numpy import float32

import kernels
from course import check, guess, live
from course.ptx import compiled, type_of
from sim import simulate


@cuda.jit
def scale(x, factor, out):
    """Compute out = factor · x, 1-D, one thread per element."""
    i = cuda.grid(1)
    if i < out.size:
        out[i] = factor * x[i]


x, out = np.arange(5, dtype=float32), np.full(5, np.nan, dtype=float32)
simulate(scale)[1, 32](x, float32(3), out)
print(out)

# %% [markdown]
# `@cuda.jit` does not compile anything yet. It wraps the function in an object that you can launch: `scale[grid, block](x, float32(3), out)`. At the first launch, Numba looks at the **types of the arguments**: here a float32 array, a float32 and a float32 array. From these three, it infers the type of every variable and every intermediate result, compiles, and keeps the result. The next launch with the same three types reuses it. A launch with other types, for example float64 arrays, makes Numba compile again. So one function has as many translations as there are lists of argument types.
#
# A list of types is called a **signature**. You can give it explicitly,
# `@cuda.jit("void(float32[::1], float32, float32[::1])")`. Then Numba compiles
# immediately and accepts no other types. (`[::1]` means that neighbours in the array
# are neighbours in memory.) We never do this, because compiling immediately needs a
# GPU.
#
# How long does the first launch take? The recorded times of this lesson are in one small file. The next cell prints its source and the answer:

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
# If the translation already exists, a launch takes a fraction of a millisecond (section 7). So **launch once before you measure.**
#
# ## 2. Every number has a type
#
# Python's integers grow as needed. On a GPU every value has one fixed type, and the type decides which instruction computes with it. In a kernel:
#
# - An element of an array has the array's type: an element of a float32 array is a float32.
# - An integer in the source, like `2`, is an int64. A number written with a decimal
#   point, like `0.5`, is a **float64**. `float32(0.5)` is a float32.
# - Two integers give an **int64**, even int32 + int32. (Two unsigned ones give a uint64.) But `/` always gives a float.
# - A float32 with a float32 gives a float32. A float32 with a float64, **or with an int32 or int64**, gives a float64.
# - `/` and the functions of `math` turn integers into a float64. For a float32, `math.exp` and similar functions return a float32.
#
# There is one exception: a power with a constant integer exponent, such as `x ** 2`, is computed as a product and keeps the type of `x`.
#
# PyTorch has different rules: there, a float32 tensor times 2 or 0.5 remains float32. Why does Numba make a float64 from a float32 and an int32? A float32 has 7 decimal digits and an int32 may have 10, so Numba takes the wider type, which loses none. (For an int64 even a float64, with its 16 digits, can be too short.)
#
# **On paper.** In `scale`, `x[i]` is a float32. Which type has `factor * x[i]` if you launch with the factor 3, with 3.0, and with `float32(3)`? A Python integer arrives as int64, and a Python float as float64. Write down three types, then run the cell: `type_of` asks Numba itself.

# %%
for words, factor in {"3": 3, "3.0": 3.0, "float32(3)": float32(3)}.items():
    print(
        f"factor = {words:11} factor * x[i] is "
        f"{type_of('factor * x[i]', factor=factor, x=x, i=0)}"
    )

# %% [markdown]
# Only the last one is what you want. The result is stored in a float32 array, so it is the same in all three cases, and you would not notice the difference.
#
# ### Exercise 7.1 · my_types · ten types
# In a kernel, `n` is an int32, `s` is a float32, and `x` is an array of float32. Which types do these expressions have? Use the list above, and do not run `type_of`. For each wrong type you get an explanation.
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
# `max` has one type, whichever of the two is larger: the type that can represent both.
# </details>
# <details><summary>Hint 2: i</summary>
#
# `x.size` is an integer.
# </details>


# %% tags=["exercise"]
def my_types():
    """Return the ten types, by letter: dict(a="...", b="...", ...)."""
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
# A variable has one type too. If a kernel starts a sum with `total = 0.0` and continues with `total += x[i]`, then `total` is a float64, and so is every addition.
#
# ## 3. PTX, line by line
#
# You can read what the compiler generates. [**PTX**](../docs/glossary.md) is a language of simple instructions, one per line, each with at most a few operands. Every value is in a **register**. Numba's compiler names registers by their kind: `%f1`, `%f2` are float32, `%fd1` is a float64, `%r1` is a 32-bit integer, `%rd1` is a 64-bit integer or an address, and `%p1` is a truth value. (Other compilers use other names. Only the type in the instruction is binding.) An instruction states the operation, the type, and the register for the result: `mul.f32 %f3, %f2, %f1` means `f3 = f2 * f1` in float32.
#
# **Predict.** For `scale` with a float32 factor, how many multiplications of *float32* will there be? What else has to be computed before `x[i]` can be loaded from memory?
#
# `compiled` returns Numba's translation for arguments of these types, here for the GPU architecture `sm_80`. The PTX is on the left (with readable names for the arguments, which PTX only numbers). On the right is the meaning of each line. Read it from top to bottom; it is about thirty lines.

# %% tags=["nbval-ignore-output"]
translation = compiled(scale, x, float32(3), out)
print(translation.read_aloud())

# %% [markdown]
# Here is what to look for. (Your compiler may number the registers differently.)
#
# - **An array arrives as several numbers**: the address of its data, its size, its length along each axis, and more. A kernel loads only the numbers that it uses.
# - **`cuda.grid(1)`** is `threadIdx.x + blockDim.x * blockIdx.x`: three `mov`, a `mul` and an `add`. On the way it becomes 64 bits wide.
# - **The guard** is `setp.ge` (is i >= out.size?) and a jump to the end for the threads for which that is true. The prefix `@%p1` means: only if p1.
# - **`x[i]`** needs an address: the start of x plus 4 · i, because each number has 4 bytes. The multiplication by 4 is written as a shift by 2 bits.
# - **`shr.s64 ..., 63` and `and.b64`** implement Python's rule that `x[-1]` is the last element. The shift gives -1 for a negative i and 0 otherwise, so the `and` gives the array's length or 0, which is added to i. This is executed for every access, even if i is never negative.
# - **One `ld.global`, one `mul.f32` and one `st.global`** are the actual work. All the other lines compute which element to load and where to store it.
#
# PTX is not the final code. It uses an unlimited number of registers. The assembler then assigns the registers of the GPU, which have 32 bits each, and reports how many a thread needs:

# %% tags=["nbval-ignore-output"]
print("registers per thread:", translation.registers)
print("bytes of shared memory per block:", translation.shared_bytes)
print("bytes of local memory per thread:", translation.local_bytes)

# %% [markdown]
# [**Local memory**](../docs/glossary.md) is private to a thread. It holds arrays whose index is computed at run time, and values for which no register is free (*spills*). This kernel needs none.
#
# The next picture shows the line `out[i] = factor * x[i]` at each stage:

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
    "the picture of the stages again, with a line in each box. Python: "
    f"out[i] = factor * x[i]. Types: {a} * {b} = {product}. PTX: {multiply}. "
    f"Machine code: {translation.registers} registers per thread.",
)

# %% [markdown]
# The last box shows what the assembler reports. To read the machine code itself, which NVIDIA calls **SASS**, you need another tool, `nvdisasm` of the CUDA Toolkit. This course does not use it.
#
# ## 4. What a bare `0.0` costs
#
# The function ReLU replaces negative numbers by 0. Here are two kernels that differ in one word:


# %%
@cuda.jit
def relu(x, out):
    """Compute out = max(x, 0)."""
    i = cuda.grid(1)
    if i < out.size:
        out[i] = max(x[i], float32(0))


@cuda.jit
def careless_relu(x, out):
    """Compute out = max(x, 0)."""
    i = cuda.grid(1)
    if i < out.size:
        out[i] = max(x[i], 0.0)


# %% [markdown]
# **Predict.** Both give the same results. How many float64 instructions does the second one have? Think of what has to happen between loading a float32 and storing one. `___`

# %% tags=["guess"]
guess("07 careless", float64_instructions=...)

# %% tags=["nbval-ignore-output"]
number = len(compiled(relu, x, out).float64)
print(number, "float64 instructions in relu; in careless_relu:")
print(*compiled(careless_relu, x, out).float64, sep="\n")

# %% [markdown]
# The float32 is widened, compared as a float64 with a float64 zero, and rounded back. Not a single digit of the result changes.
#
# The types tell you what *may* happen, and the PTX tells you what does happen. By the
# rules of section 2, `2 * x[i]` is a float64. But if the product is rounded to float32
# straight away, a float32 multiplication gives the same result. The compiler recognises
# this, and generates only that:


# %%
@cuda.jit
def double(x, out):
    """Compute out = 2 * x."""
    i = cuda.grid(1)
    if i < out.size:
        out[i] = 2 * x[i]


print("2 * x[i] is", type_of("2 * x[i]", x=x, i=0))
print("any .f64 in its PTX:", bool(compiled(double, x, out).float64))

# %% [markdown]
# Do not rely on this: for the 0.0 above, the compiler did not do it.
#
# What happens if the kernel computes more? Here is the sum by which a softmax divides, with one thread per query. A function creates the kernel, so that we can pass the zero as an argument, once as `float32(0)` and once as `0.0`. Otherwise the two kernels are equal.


# %%
def row_sums(zero):
    """Return the kernel that starts its sums with this zero."""

    @cuda.jit
    def row_sums_kernel(q, k, l):
        """Compute l[i] = Σ_j exp(q_i · k_j) for small scores;
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
# **Predict.** Which line has the most float64 instructions, and how many? The compiler records the source line of each instruction:

# %% tags=["nbval-ignore-output"]
print(wide.float64_by_line())

# %% [markdown]
# The line with the zero has none at all, because a constant costs nothing by itself. It affects everything that is computed with it. The products are computed as float32, widened, and added as float64. (The compiler has unrolled the loop, so that line occurs several times.) `exp` is worst: a GPU has an instruction that helps with exp in float32, and none for float64, so it becomes a long polynomial.
#
# How much time does it cost? That depends on the GPU. In the time of 64 float32 multiplications, an H200 executes 32 in float64, and most gaming GPUs execute one. It also depends on what the kernel waits for. To see this, we need a kernel that loads almost nothing and computes all the time. Here is one: it loads a number once, and then does 64 · 64 multiply-adds with it.


# %%
def powers(one):
    """Return the kernel that starts its sums with this one, and adds it."""

    @cuda.jit
    def powers_kernel(x, out):
        """Compute out[i] = 1 + x[i] + x[i]² + … + x[i]⁴⁰⁹⁶, one thread per number."""
        i = cuda.grid(1)
        if i < out.size:
            number, total = x[i], one
            for _ in range(64):
                # The compiler unrolls this loop, so counting takes almost no time.
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
        f"{made.count('fma.rn.f64')} in float64 after unrolling"
    )

# %% [markdown]
# (To check the result: 1 + 0.5 + 0.25 + … is 2, and 1 - 1 + 1 - … + 1 is 1.)
#
# **Predict.** Here are four kernels, each compiled twice: in float32 only, and with the float64 that bare numbers introduce. By what factor does float64 slow each one down on an H200? `relu` does one operation with each number that it loads. `rms_norm`, the next exercise, does a few. `row_sums` does a multiply-add for every two numbers that it loads, and `powers` does 4096 multiply-adds for one. `relu`: `___`, `rms_norm`: `___`, `row_sums`: `___`, `powers`: `___`

# %% tags=["guess"]
guess("07 cost of float64", relu=..., rms_norm=..., row_sums=..., powers=...)

# %%
print(f"microseconds, {SOURCE}\n")
print(f"{'kernel':10} {'float32':>12} {'with float64':>14} {'ratio':>15}")
for row in recorded["float64"]:
    print(
        f"{row['kernel']:10} {row['float32_us']:>12} {row['float64_us']:>14} "
        f"{row['slower']:>15}"
    )

# %% [markdown]
# `relu` ran on 2²⁶ numbers, `rms_norm` on 65,536 rows of 256, `row_sums` on 65,536 queries and 1024 keys of 64 numbers, and `powers` on 2²⁴ numbers. Differences of a few percent, up or down, are noise.
#
# How do you explain these numbers? A kernel that waits for memory has spare time, and in that time it can do its arithmetic even in float64. `row_sums` is an extreme case: its 4.3 billion multiply-adds would take an H200 about 0.13 milliseconds, if nothing else took time. (In lesson 08 you find out what it waits for.) Slow arithmetic shows only if the kernel waits for its arithmetic. On this GPU, the most that `powers` can lose is about a factor of 2.
#
# So is the bare `0.0` harmless? In a kernel that waits for memory, on this GPU, it is. It is not harmless if you tune the kernel until it no longer waits, or run it on a GPU whose float64 is 64 times slower. Besides, every float64 takes two registers. The package's kernels contain none: it costs nothing to avoid, and you have seen how to look.
#
# ### Exercise 7.2 · rms_norm · fix three lines
# Many transformers normalise each row by its root mean square: they divide it by √(mean of x² + 10⁻⁶), and multiply column c by `gain[c]`. This kernel does it, with one thread per row:
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
# Write `rms_norm` so that its PTX does not contain a single `.f64`, with results as accurate as before. All arrays are float32; x and out are (N, d), and gain is (d,). The check compiles it for three GPU architectures and runs it in `sim`. To look for yourself, `compiled(rms_norm, matrix, x, matrix).float64_by_line()` counts by line.
#
# <details><summary>Hint 1: where?</summary>
#
# There are three places. If you fix only the first, `total` is a float32; but look at what it is divided by.
# </details>
# <details><summary>Hint 2: an integer as float32</summary>
#
# `float32(x.shape[1])`. The conversion is one instruction.
# </details>


# %% tags=["exercise"]
@cuda.jit
def rms_norm(x, gain, out):
    """Compute out[i, c] = gain[c] · x[i, c] / √(mean of x[i]² + 1e-6);
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
# A float64 can also enter through an argument, and you cannot see that in the kernel's source. `scale[grid, block](x, 3.0, out)` compiles a version for a float64 factor. So host code passes `float32(3.0)`.

# %% tags=["nbval-ignore-output"]
print(*compiled(scale, x, 3.0, out).float64, sep="\n")

# %% [markdown]
# ## 5. How many blocks
#
# A launch has up to four numbers: `kernel[grid, block, stream, shared](...)`. The last two are 0 unless you give them. You choose the [**block**](../docs/glossary.md): a multiple of 32, because a warp has 32 lanes. 128 or 256 are good first choices, and 1024 is the limit. The [**grid**](../docs/glossary.md) follows: enough blocks for all elements.
#
# **Predict.** With 1000 elements and 256 threads per block, how many blocks do you need? `___` How many threads have nothing to do? `___` For 1024 elements: `___` blocks

# %% tags=["guess"]
guess("07 blocks", blocks=..., idle_threads=..., blocks_for_1024=...)

# %% [markdown]
# For a very large number of elements there is another way. You can launch only as many threads as the GPU can hold at once, and let each process several elements: thread `t` of `T` takes t, t + T, t + 2T, … until there are no more. This is the [**grid-stride loop**](../docs/glossary.md). It is correct for *every* grid, and values that a thread needs for all its elements (a gain, a constant) are computed once. Here is an example with 10 elements and 2 blocks of 2 threads:
#
# | block | thread | elements |
# |---|---|---|
# | 0 | 0 | 0, 4, 8 |
# | 0 | 1 | 1, 5, 9 |
# | 1 | 0 | 2, 6 |
# | 1 | 1 | 3, 7 |
#
# Why does the first thread not take 0, 1, 2 and the second 3, 4, 5? Neighbouring threads should access neighbouring elements at the same time, in the same piece of memory (lesson 08).
#
# ### Exercise 7.3 · blocks_for · one line
# How many blocks of `threads` threads do you need for `n` elements, with one thread per element, if there may be at most `most` blocks? All are integers of at least 1.
#
# <details><summary>Hint</summary>
#
# To round up with integers, use `(n + threads - 1) // threads` or, shorter, `-(-n // threads)`.
# </details>


# %% tags=["exercise"]
def blocks_for(n, threads, most):
    """Return the number of blocks, from 1 to `most`."""
    # BEGIN SOLUTION 7.3
    return min(-(-n // threads), most)
    # END SOLUTION


# %% tags=["check"]
check.ex07_3(blocks_for)

# %% [markdown]
# ### Exercise 7.4 · scale_all · two or three lines
# Write `scale_all` with a grid-stride loop: every element of `out` is written once, by the thread that the table gives, for any grid. There is no barrier.
#
# <details><summary>Hint 1: the loop</summary>
#
# `range(first, end, step)`. You used it in lesson 05, for the threads of one block.
# </details>
# <details><summary>Hint 2: the step</summary>
#
# It is the number of all threads of the grid: `cuda.gridDim.x * cuda.blockDim.x`, or `cuda.gridsize(1)`.
# </details>


# %% tags=["exercise"]
@cuda.jit
def scale_all(x, factor, out):
    """Compute out = factor · x, 1-D, with any grid."""
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
        f"limit {most:3}, launched {grid}, all 1000 elements correct: "
        f"{np.array_equal(result, 3 * big)}"
    )

# %% [markdown]
# ## Validate
#
# This course promises *one source*: the kernel that ran in the simulator also runs on a GPU. Here are three ways to compute the same attention: the **reference** (plain PyTorch, in float64), the **simulator**, and the **GPU**. The first table is computed on your machine. It compares the simulator with the reference, and your kernels with PyTorch:


# %% tags=["uses-exercise"]
def validate(stage, against, got, wanted, tolerance):
    """Print one row of the table. NaN fails."""
    got, wanted = (torch.as_tensor(x).double().cpu() for x in (got, wanted))
    agrees = (got - wanted).abs().max().item() <= tolerance
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
exact = torch.nn.functional.rms_norm(rows.double(), (12,), gain.double(), 1e-6)
validate("rms_norm", "PyTorch, float64", normed, exact, 1e-5)
validate("scale_all", "PyTorch", scaled, 3 * rows.flatten(), 0)
for kernel in (kernels.flash_attention, kernels.warp_attention):
    for causal in (False, True):
        name = f"{kernel.__name__}{', causal' * causal}"
        exact = kernels.attention(q.double(), k.double(), v.double(), causal)
        validate(name, "reference, float64", kernel(q, k, v, causal), exact, 1e-5)


# %% [markdown]
# The second table compares all three ways. It was recorded with the same q, k and v: 2 heads, 70 queries and keys, d = 16. Each number is the largest difference of any element. The last column gives the percentage of the 2240 numbers that have the same bits on the GPU and in the simulator.

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
# Why are the simulator and the GPU not equal to the last bit, if both compute in float32? Two reasons are in the PTX. First, a product followed by a sum becomes one instruction, `fma`, which rounds once where Python rounds twice. Second, the GPU's `exp` is a different approximation from the simulator's. Neither is more accurate: compare their distances from the reference.
#
# **Predict.** Which of these kernels contain an `fma`: `scale`, `relu`, `row_sums`?

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
# `scale` has no sum, so nothing can be fused. Its results are equal to the last bit wherever it runs, and so are those of your `scale_all`. This is why its tolerance above is 0.
#
# ### On a real GPU, if there is one
#
# Here are all three ways, live: your kernels, compiled and launched, and the package's, compared with the reference and the simulator.


# %% tags=["gpu"]
@live
def three_ways_live():
    """Compare the GPU with the reference and the simulator."""
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
# - The types of the arguments determine all types. A bare `0.0`, an integer combined with a float32 (in most operations), or a Python float as an argument leads to float64, which you find in the PTX as `.f64`.
# - A launch has a grid and a block. With a grid-stride loop, a kernel works for any grid.
# - The reference, the simulator and the GPU agree to the last digits of float32: one source, three ways to run it.
#
# **You can now** read the compiler's output for a kernel, and find the line that costs too much.
#
# **Read on:** NVIDIA, *Parallel Thread Execution ISA*, chapter "Instruction Set" · Numba documentation, "CUDA Python Reference" and "Writing CUDA Kernels".
#
# **Next:** [lesson 07b](07b_streams.ipynb) launches kernels without waiting, and measures their time correctly.
