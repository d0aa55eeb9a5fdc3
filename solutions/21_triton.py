# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 21 · Triton: a kernel as a program over tiles
#
# **85 minutes** · builds on lesson 05 (the flash kernel) and lesson 06 (shuffles)
#
# You will be able to:
#
# 1. write a kernel in Triton, with tiles instead of threads, shared memory and barriers;
# 2. say which decisions the compiler makes for you, and read them in the PTX that it produces;
# 3. write flash attention in eleven lines, and say what the compiler added.
#
# **Why it matters.** Triton is a language for GPU kernels, embedded in Python. `torch.compile` generates Triton code, and many published attention kernels are written in it. (PyTorch's own eager kernels are mostly CUDA C++.) Here are this course's kernels in three languages, with the same algorithms, on one GPU:

# %%
import inspect
import json
import re

import matplotlib.pyplot as plt
import numpy as np
import torch

from course import brought, check, guess, show_figure, show_table
from course.check import lesson21
from course.figures import BLUE, ORANGE
from course.ptx import spoken
from kernels.common.data import DATA
from kernels.triton import flash_forward as flash_forward_triton, small
from kernels.triton.interpreter import ProgramBug, interpreted
from kernels.triton.launch import recorded, recorded_text, simulated
from kernels.triton.optional import tl, triton
from kernels.triton.tiles import load_rows, store_rows
from sim import simulate
from sim.observers import COUNTERS

torch.manual_seed(21)
record = json.loads((DATA / "languages.json").read_text("utf-8"))
rows = [
    [row["name"], f"{row['flash_ms']:.2f}", f"{row['forward_ms']:.2f}"]
    + [f"{row['backward_ms']:.1f}"]
    for row in record["languages"]
    if row["shape"] == [1, 8, 4096, 64]
]
show_table(
    ["", "flash attention, forward", "convolutional, forward", "backward"],
    *rows,
    title=f"{record['gpu']}, recorded {record['date']}: milliseconds, 8 heads, "
    "4096 tokens, d = 64, float32, 7 × 7 taps",
)

# %% [markdown]
# In flash attention Triton is the fastest of the three, with a loop of eleven lines. In convolutional attention it is the slowest. You will write both kernels, and see why.
#
# **You need neither a GPU nor Triton.** Triton is available for Linux only, so this lesson uses three tools:
#
# - `interpreted` is this course's own small interpreter of the language (`kernels/triton/interpreter.py`). It runs your kernels on any machine, one program after another.
# - `simulated` runs PTX in the simulator, thread by thread. Triton's compiler produced the PTX of the kernels in this lesson, and it is part of the course.
# - If Triton is installed (`pip install triton` on Linux; PyTorch for CUDA includes it), each check also compiles your kernel for a GPU and runs *its* PTX in the simulator. The line with the ✓ says which of these was done.
#
# ## 1. Programs instead of threads
#
# A CUDA kernel describes the work of *one thread*. A Triton kernel describes the work of a whole block as **one program**, which computes with **tiles**. For example, double 10 numbers in tiles of 4:
#
# | program | `i = 4 * program + (0, 1, 2, 3)` | `i < 10` |
# |---|---|---|
# | 0 | 0, 1, 2, 3 | all |
# | 1 | 4, 5, 6, 7 | all |
# | 2 | `___` | `___` |
#
# **Predict** the last row.

# %% tags=["guess"]
guess("21 last program", i=..., mask=...)


# %%
@triton.jit
def twice(x, y, n, BLOCK: tl.constexpr):
    """y = 2 x, n elements; tiles of BLOCK elements."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    t = tl.load(x + i, mask=i < n)
    tl.store(y + i, 2 * t, mask=i < n)


x, y = torch.arange(10.0), torch.zeros(10)
interpreted(twice, (3,), x, y, 10, BLOCK=4)
print(y.tolist())

# %% [markdown]
# `i`, `t` and `2 * t` are tiles of 4 elements. `x` is a pointer, `x + i` is a tile of four addresses, and `tl.load` loads the elements at these addresses. `BLOCK` is a `tl.constexpr`, a constant that is known when the kernel is compiled. The length of a tile must be such a constant, and a power of two.
#
# | CUDA (Numba) | Triton |
# |---|---|
# | `cuda.blockIdx.x` | `tl.program_id(0)` |
# | `cuda.threadIdx.x` | *nothing: there is no thread* |
# | a loop of a thread over a row | a tile, `tl.arange(0, BLOCK)` |
# | `if i < n:` | `mask=i < n` |
# | `cuda.shared.array`, `cuda.syncthreads()` | *nothing: the compiler decides* |
# | shuffles of lesson 06 | `tl.sum(t, axis)`, `tl.max(t, axis)` |
#
# To look at a tile, write `print("t", t)` in a kernel.
#
# **Predict.** The next kernel is `twice` without its two masks. What will happen in program 2? `___`

# %% tags=["guess"]
guess("21 without masks", happens=...)


# %%
@triton.jit
def careless(x, y, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, 2 * tl.load(x + i))


try:
    interpreted(careless, (3,), x, y, BLOCK=4)
except ProgramBug as bug:
    print(bug)

# %% [markdown]
# On a GPU, just as with CUDA, you get no message: the kernel reads and writes whatever
# is in memory after the arrays.
#
# A tile may have two dimensions. `[:, None]` and `[None, :]` add a dimension of length one, and tiles are combined by **broadcasting**, as in NumPy: a dimension of length one is repeated to fit. Here are rows 2 and 3 of a matrix with `n = 3` elements per row, in a tile of 2 × 4:
#
# ```
# i = 2 + tl.arange(0, 2)[:, None]        (2, 1):  2, 3
# j = tl.arange(0, 4)[None, :]            (1, 4):  0, 1, 2, 3
# i * 3 + j                               (2, 4):  6 7 8 9
#                                                  9 10 11 12
# ```
#
# **Predict**: the offset 9 occurs twice, in both rows of the tile. Which of the two is the address of an element of that row? `___` Which mask excludes the other one? `___`

# %% tags=["guess"]
guess("21 offset 9", element=..., mask=...)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The second: row 3, column 0. The first would be row 2, column 3, which does not exist. The mask is `j < n`. You saw the same in lesson 05: memory is one long line.
#
# </details>
#
# The picture shows a matrix of 5 rows of 10 elements (dark), and the two tiles of 4 × 16 that cover it. Pale cells do not exist in the matrix; the masks exclude them.

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
for row in range(8):
    for column in range(16):
        exists, color = row < 5 and column < 10, (BLUE, ORANGE)[row // 4]
        cell = plt.Rectangle((column, row), 0.92, 0.92, facecolor=color)
        cell.set_alpha(0.8 if exists else 0.15)
        axes.add_patch(cell)
for program in (0, 1):
    axes.text(16.3, 4 * program + 2, f"program {program}", va="center")
axes.set(xlim=(0, 19), ylim=(8, 0), aspect="equal", xlabel="j", ylabel="i")
axes.set(xticks=range(0, 17, 5), yticks=range(0, 8, 2))
axes.spines[:].set_visible(False)
show_figure(
    figure,
    "8 rows of 16 cells. Program 0 has the rows 0 to 3, program 1 the rows 4 to 7. "
    "Dark, and in the matrix, are the columns 0 to 9 of the rows 0 to 4: program 1 "
    "has one row of the matrix, and three that do not exist.",
)

# %% [markdown]
# ### Exercise 21.1 · softmax_rows · about seven lines
#
# Compute `y = softmax(x)` for each row. `x` and `y` are row-major, with `rows` rows of `n` elements.
#
# - A program computes the `ROWS` rows from row `ROWS * program` on, in one tile of `ROWS` × `WIDTH`. `n` is at most `WIDTH`. The last program may have fewer rows.
# - Load each element once, and store each once.
# - Scores may have any value, −10³⁴ as well as 1000.
#
# `tl.max(t, 1)` is the maximum along axis 1, one value per row, and `tl.sum` works in the same way. In `tl.load(…, mask=…, other=…)`, `other` is the value of masked elements. `float("-inf")` is allowed.
#
# <details><summary>Hint 1: what is masked</summary>
#
# A masked element must affect neither the maximum nor the sum. Which score has a weight of 0?
#
# </details>
# <details><summary>Hint 2: shapes</summary>
#
# `tl.max(s, 1)` has the shape (ROWS,), and `s` has (ROWS, WIDTH). `tl.max(s, 1)[:, None]` fits.
#
# </details>


# %% tags=["exercise"]
@triton.jit
def softmax_rows(x, y, rows, n, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """y (rows, n) = softmax of each row of x (rows, n)."""
    # BEGIN SOLUTION 21.1
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    j = tl.arange(0, WIDTH)[None, :]
    inside = (i < rows) & (j < n)
    s = tl.load(x + i * n + j, mask=inside, other=float("-inf"))
    e = tl.exp(s - tl.max(s, 1)[:, None])
    tl.store(y + i * n + j, e / tl.sum(e, 1)[:, None], mask=inside)
    # END SOLUTION


# %% tags=["check"]
check.ex21_1(softmax_rows)

# %% [markdown]
# ## 2. The compiler's decisions
#
# Your kernel has no threads, but a GPU has nothing else. You choose their number at the launch: `num_warps=4` gives each program 128 threads. The compiler decides everything else. You can read its decisions in the PTX, which describes *one* thread.
#
# **Predict**, for `twice` with `BLOCK=64` and one warp of 32 threads: how many loads does each thread execute? `___` And how is the mask expressed, in a language without tiles? `___` Here is all of the PTX, grouped by source line, with lesson 07's explanations next to it:

# %% tags=["guess"]
guess("21 one thread", loads=..., mask=...)


# %% jupyter={"source_hidden": true}
def read_aloud(kernel, num_warps, **constants):
    """Print the recorded PTX of a kernel, each instruction under its source line."""
    source, first = inspect.getsourcelines(kernel.fn)
    text, under = recorded_text(kernel, num_warps, **constants), {}
    for line in text.splitlines():
        if place := re.match(r"\t\.loc\t1 (\d+)", line):
            mine = under.setdefault(int(place[1]) - first, [])
        elif re.match(r"\t+(@|[a-z])", line):
            mine.append(line.strip().rstrip(";").expandtabs(1))
    for number in sorted(under):
        print(source[number].strip())
        for line in under[number]:
            print(f"    {line:43}{spoken(line)}")


read_aloud(small.twice, 1, BLOCK=64)

# %% [markdown]
# Each thread has **two** elements, 128 bytes (32 elements) apart. The mask became two **predicates**, `p1` and `p2`: `@%p1 ld` means "load if p1". It is CUDA's `if i < n:`, once per element. And `blockIdx` and `threadIdx` are back.
#
# (The value of a masked element is undefined in Triton, unless you pass `other=`. This
# PTX has 0 there, `mov.u32 %r1, 0x0`. `interpreted` puts NaN there, so that no kernel
# can rely on the value.)
#
# The compiler also chooses which thread has which elements. A softmax shows more of that; `small.softmax_row_kernel` is yours with one row per program. The pictures show three launches. For each element of the row you see the threads that load it, as the simulator recorded them. (This PTX was compiled without information on the alignment of the arrays. On a GPU, Triton checks it: if an array begins at a multiple of 16 bytes, each thread may load four neighbouring elements at a time.)

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(1, 3, figsize=(10, 3.4), layout="constrained")
for place, (width, warps) in zip(axes, [(256, 4), (64, 1), (64, 4)]):
    loaded = lesson21.loaded_by(width, warps)
    dots = [(j, thread) for j, threads in loaded.items() for thread in threads]
    place.scatter(*zip(*dots), s=7, color=BLUE)
    place.set(title=f"{width} elements, num_warps={warps}", xlabel="element of the row")
    place.set(ylabel="thread", ylim=(-4, 32 * warps + 3))
show_figure(
    figure,
    "threads over elements of a row. 256 elements, 128 threads: a line that rises from "
    "thread 0 to 127, and again from element 128 on. 64 elements, 32 threads: it rises "
    "from 0 to 31 twice. 64 elements, 128 threads: two lines, so that each element is "
    "loaded by two threads, 64 apart.",
)
for width, warps, j in [(256, 4, 130), (64, 1, 33), (64, 4, 33)]:
    threads = lesson21.loaded_by(width, warps)[j]
    print(f"{width} elements, num_warps={warps}: element {j} by threads {threads}")

# %% [markdown]
# ### Exercise 21.2 · holders · one to three lines
#
# Find the rule. `holders(j, width, num_warps)` returns a list of the threads, in any order, that load element `j` of a row of `width` elements. Both sizes are powers of two. The check also uses other sizes.
#
# <details><summary>Hint</summary>
#
# Thread `t` loads element `t`, if the row is long enough. Which element does it load next, if the row is longer? Which one does it load if the row is shorter?
#
# </details>


# %% tags=["exercise"]
def holders(j, width, num_warps):
    # BEGIN SOLUTION 21.2
    threads = 32 * num_warps
    return [t for t in range(threads) if t % width == j % threads]
    # END SOLUTION


# %% tags=["check"]
check.ex21_2(holders)

# %% [markdown]
# In the last picture, half of the threads do redundant work. Triton accepts that: all threads that hold an element compute the same, and one of them stores it.
#
# How does a program compute the sum or the maximum of a row? Each thread first combines its own elements. Then, as in lesson 06, five shuffles combine the lanes of a warp. Values of different warps have to pass through shared memory, with barriers.
#
# **Predict** for a row of 256 elements, maximum and sum together:
#
# | num_warps | shuffles | barriers | bytes of shared memory |
# |---|---|---|---|
# | 1 | `___` | `___` | `___` |
# | 4 | `___` | `___` | `___` |

# %% tags=["guess"]
guess("21 one warp", shuffles=..., barriers=..., shared_bytes=...)
guess("21 four warps", shuffles=..., barriers=..., shared_bytes=...)

# %% [markdown]
# <details><summary>Hint</summary>
#
# Each warp stores one value in shared memory. These values are then combined by shuffles, too: how many more shuffles is that?
#
# </details>


# %%
def counts(kernel, num_warps, **constants):
    """Return [instructions, shuffles, barriers, bytes of shared memory] of PTX."""
    text = recorded_text(kernel, num_warps, **constants)
    code = re.findall(r"^\t+(?:@\S+ +)?([a-z][\w.:]*)", text, re.MULTILINE)
    shuffles, barriers = (
        sum(name.startswith(start) for name in code) for start in ("shfl", "bar.sync")
    )
    return [len(code), shuffles, barriers, int(text.partition("\n")[0].split()[-1])]


header = ["instructions", "shuffles", "barriers", "shared, bytes"]
show_table(
    ["num_warps", *header],
    *(
        [warps, *counts(small.softmax_row_kernel, warps, WIDTH=256)]
        for warps in (1, 2, 4, 8)
    ),
    title="softmax of 256 elements: what is in the PTX of one thread",
)

# %% [markdown]
# With one warp there are twice 5 shuffles, and nothing else. With 4 warps each of the two reductions takes two more shuffles, because 4 values are halved twice. 16 bytes are 4 values of 4 bytes.
#
# Why are there three barriers, and not two or four? One reduction is the maximum, the other the sum, and both use the same 16 bytes. So no warp may store its part of the sum before all have read the maximum: store, **barrier**, read, **barrier**, store, **barrier**, read. In lesson 04 a missing barrier of this kind was a bug. Here the compiler inserts them.
#
# ## 3. Flash attention
#
# Now write lesson 05's kernel, with a *program* in place of a *thread*:
#
# | lesson 05 | here | shape |
# |---|---|---|
# | the Q tile, in shared memory | `q_tile` | (ROWS, WIDTH) |
# | one score, in a loop over `d` | `tl.dot(q_tile, tl.trans(k_tile))` | `___` |
# | `m`, `l` of one row | `m`, `l` | `___` |
# | `shrink` | `tl.exp(m - larger)` | `___` |
# | the O tile | `o_tile` | `___` |
#
# **Predict** the shapes, for tiles of KEYS keys.

# %% tags=["guess"]
guess("21 shapes", scores=..., m=..., shrink=..., o_tile=...)

# %% [markdown]
# <details><summary>Answer</summary>
#
# (ROWS, KEYS); (ROWS,); (ROWS,); (ROWS, WIDTH). So `o_tile * shrink` does not fit: `shrink[:, None]` does.
#
# </details>
#
# ### Exercise 21.3 · flash · about fifteen lines
#
# Compute `o = softmax(scale · q kᵀ) v`, for `n` rows of `d` elements in each array. A program has the ROWS queries from `ROWS * program` on, and loops over the keys in tiles of KEYS. WIDTH is at least d; the columns beyond d are 0. If `CAUSAL`, query i sees the keys j ≤ i, and a tile that is masked for all queries of the program must not be loaded. Load each tile once.
#
# - `load_rows(array, first, n, d, SIZE, WIDTH)` from `kernels.triton.tiles` loads rows `first` to `first + SIZE − 1`, as a tile of (SIZE, WIDTH), with 0 where no element exists. `store_rows(array, first, count, n, d, tile)` stores the first `count` rows of a tile, except for elements outside the array. Both are written in Triton, like `twice`.
# - `tl.dot(a, b, input_precision="ieee")` is the product of two matrices. Without the last argument, a GPU's tensor cores round `a` and `b` to 11 significant bits; with it, all 24 are used.
# - `tl.zeros((ROWS, WIDTH), tl.float32)`, `tl.full((ROWS,), float("-inf"), tl.float32)`, `tl.where(condition, a, b)`, `tl.maximum(a, b)`.
# - A variable keeps its type in a loop. So do not write `m = float("-inf")` before the loop: it would be a scalar before, and a tile after the first iteration.
# - `min(n, …)` and `if CAUSAL:` work as in Python.
#
# <details><summary>Hint 1: the loop</summary>
#
# `for j0 in range(0, end, KEYS)`, and with CAUSAL `end = min(n, i0 + ROWS)`. The keys are `j = j0 + tl.arange(0, KEYS)[None, :]`.
#
# </details>
# <details><summary>Hint 2: the mask</summary>
#
# `load_rows` returns 0 for a key after the last one. A score of 0 has a weight; −∞ has none: `tl.where(j < n, scores, float("-inf"))`.
#
# </details>


# %% tags=["exercise"]
@triton.jit
def flash(
    q, k, v, scale, o, n, d,
    CAUSAL: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """o = attention of n rows of d elements; tiles of ROWS queries and KEYS keys."""
    i0 = tl.program_id(0) * ROWS
    q_tile = scale * load_rows(q, i0, n, d, ROWS, WIDTH)
    # BEGIN SOLUTION 21.3
    i = i0 + tl.arange(0, ROWS)[:, None]
    m = tl.full((ROWS,), float("-inf"), tl.float32)
    l = tl.zeros((ROWS,), tl.float32)
    o_tile = tl.zeros((ROWS, WIDTH), tl.float32)
    end = min(n, i0 + ROWS) if CAUSAL else n
    for j0 in range(0, end, KEYS):
        j = j0 + tl.arange(0, KEYS)[None, :]
        k_tile = load_rows(k, j0, n, d, KEYS, WIDTH)
        v_tile = load_rows(v, j0, n, d, KEYS, WIDTH)
        scores = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee")
        seen = (j < n) & (j <= i) if CAUSAL else j < n
        scores = tl.where(seen, scores, float("-inf"))
        larger = tl.maximum(m, tl.max(scores, 1))
        shrink = tl.exp(m - larger)
        p = tl.exp(scores - larger[:, None])
        l = l * shrink + tl.sum(p, 1)
        o_tile = o_tile * shrink[:, None] + tl.dot(p, v_tile, input_precision="ieee")
        m = larger
    store_rows(o, i0, ROWS, n, d, o_tile / l[:, None])
    # END SOLUTION


# %% tags=["check"]
check.ex21_3(flash)

# %% [markdown]
# ### Compared with your kernel of lesson 05
#
# The next cells run three kernels on the same input: lesson 05's (yours, if you have solved it) in the simulator, the one that you have just written, and the package's Triton kernel, whose PTX runs in the simulator. The latter is like yours, with batches and heads.


# %%
def flash_here(q, k, v, causal):
    """Run your Triton kernel on q, k, v (n, d), in the interpreter."""
    (n, d), o = q.shape, torch.empty_like(q)
    constants = dict(CAUSAL=causal, ROWS=16, KEYS=16, WIDTH=16)
    interpreted(flash, (-(-n // 16),), q, k, v, d**-0.5, o, n, d, **constants)
    return o


def lesson_05(kernel, q, k, v):
    """Run lesson 05's kernel in the simulator: 16 queries per block, 12 keys a tile."""
    n, d = q.shape
    o = torch.empty(n * d)
    launch = simulate(kernel)[-(-n // 16), 16, 0, 4 * d * (2 * 12 + 2 * 16)]
    arrays = (x.flatten() for x in (q, k, v))
    launch(*arrays, o, n, d, 12, np.float32(d**-0.5))
    return o.view(n, d)


seen = {}


def counting(*launched, **constants):
    """Run the recorded PTX in the simulator, and keep its counters."""
    how = dict(compiled=recorded, options=dict(observers=COUNTERS))
    seen["counters"] = simulated(*launched, **constants, **how).counters


def in_ptx(q, k, v):
    """Run the package's Triton kernel, causal: its PTX in the simulator."""
    four, tile = (x[None, None] for x in (q, k, v)), dict(rows=16, keys=16, num_warps=1)
    return flash_forward_triton.flash_forward(*four, **tile, run=counting)[0][0, 0]


def below(a, b, tolerance=1e-5):
    return bool((a - b).abs().max() <= tolerance)


# %% tags=["uses-exercise"]
q, k, v = torch.randn(3, 40, 16)
kernel_05 = brought("05_flash_kernel", "flash_kernel")
mine = flash_here(q, k, v, causal=False)
print("lesson 05, below 1e-5:", below(mine, lesson_05(kernel_05, q, k, v)))

mine = flash_here(q, k, v, causal=True)
print("the package's PTX, causal, below 1e-5:", below(mine, in_ptx(q, k, v)))

# %% [markdown]
# How many barriers did the compiler insert? Lesson 05 needs two for each tile: one after it is *loaded*, one after it is *used*. **Predict** the number for the kernel above, with 3 programs of 16 queries that process 1, 2 and 3 tiles: 12? More? `___`

# %% tags=["guess"]
guess("21 barriers", barriers=...)

# %%
kernel = flash_forward_triton.flash_forward_kernel
constants = dict(CAUSAL=True, ROWS=16, KEYS=16, WIDTH=16)
title = "flash attention, one warp: in the PTX"
show_table(header, counts(kernel, 1, **constants), title=title)
text = recorded_text(kernel, 1, **constants)
print("cp.async, loads that run ahead:", len(re.findall(r"cp\.async\.c[ag]", text)))
in_ptx(*torch.randn(3, 40, 16))
print("barriers that three programs waited at:", seen["counters"]["barriers"])

# %% [markdown]
# There are 27: three per program, and three per tile. Even a program of one warp uses
# shared memory in two ways. K and V pass through it, and so does `p`, because the
# result of one `tl.dot` is not distributed over the threads in the same way as the
# operand of the next.
#
# The loads are **asynchronous**: `cp.async` loads the next tile while the current one is used, although no line of your kernel asks for it. And `tl.dot` gives each thread a *patch* of the product, where a thread of lesson 05 has a whole row and reads every key for that one row. That is why Triton wins in the first column of the table at the top.

# %% [markdown]
# ## In three lines
# - A Triton kernel is one program on tiles. The compiler chooses threads, shared memory and barriers, and you can read its choices in the PTX.
# - `tl.dot` gives each thread a patch of the product, and the compiler loads the next tile while the current one is used. That is why the flash kernel is fast.
# - A mask says which elements exist. Without one, a program reads and writes outside its arrays, and you get no message.
#
# **You can now** read and write kernels like `kernels/triton/flash_forward.py`.
#
# **Read on:** Philippe Tillet, H. T. Kung and David Cox, *Triton: An Intermediate Language and Compiler for Tiled Neural Network Computations* (MAPL 2019) · Triton documentation, tutorials "Fused Softmax" and "Fused Attention".
#
# **Next:** [lesson 21b](21b_triton_limits.ipynb) finds races in Triton kernels, and asks what the language cannot express.
