# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 21 · Triton: a kernel as a program over blocks
#
# **130 minutes** · builds on lesson 05 (the flash kernel), lesson 06 (shuffles) and lesson 10 (halos)
#
# You will be able to
#
# 1. write a kernel in Triton: no thread, no shared memory, no barrier, only tiles;
# 2. say what the compiler decides in your place, and read it in the PTX that it makes;
# 3. find a race in a Triton kernel on a machine without a GPU, by the line of its source;
# 4. say what Triton cannot express, and what that costs convolutional attention.
#
# **Where this leads.** Triton is the language in which much of PyTorch's own GPU code is written. Here are the kernels of this course in three languages, with the same algorithms, on one GPU:

# %%
import inspect
import json
import re
from functools import partial

import matplotlib.pyplot as plt
import numpy as np
import torch

from course import brought, check, show_figure, show_table
from course.check import lesson21
from course.figures import BLUE, ORANGE
from course.ptx import spoken
from kernels.common.data import DATA
from kernels.conv.forward import conv_forward
from kernels.triton import conv_forward as conv_forward_triton
from kernels.triton import flash_forward as flash_forward_triton
from kernels.triton import small
from kernels.triton.interpreter import ProgramBug, interpreted
from kernels.triton.launch import recorded, recorded_text, simulated
from kernels.triton.optional import tl, triton
from kernels.triton.tiles import load_rows, store_rows
from sim import KernelBug, simulate
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
# In flash attention Triton is the fastest of the three, with a loop of eleven lines. In convolutional attention it is the slowest. You will write both, and see why.
#
# **No GPU is needed, and no Triton.** Triton has wheels for Linux only, so this lesson uses three things:
#
# - `interpreted` is the course's own small interpreter of Triton's language (`kernels/triton/interpreter.py`). It runs your kernels on any machine, one program after the other.
# - `simulated` runs PTX in our simulator, thread by thread. The PTX of the lesson's fixed kernels was made by Triton's compiler and ships with the course.
# - Where Triton is installed (`pip install triton` on Linux; a PyTorch for CUDA brings it), each check also has your kernel compiled for a GPU and runs *its* PTX in the simulator. The line with the ✓ says which of these was done.
#
# ## 1. Programs instead of threads
#
# A CUDA kernel says what *one thread* does. A Triton kernel says what a whole block of threads does together, as **one program** that computes with **tiles**. Doubling 10 numbers, on paper, in tiles of 4:
#
# | program | `i = 4 * program + (0, 1, 2, 3)` | `i < 10` |
# |---|---|---|
# | 0 | 0, 1, 2, 3 | all |
# | 1 | 4, 5, 6, 7 | all |
# | 2 | `___` | `___` |
#
# **Predict** the last row.
#
# <details><summary>Answer</summary>
#
# 8, 9, 10, 11; true, true, false, false. Two of its numbers are outside, and the mask says so. CUDA has `if i < n:` for that.
#
# </details>


# %%
@triton.jit
def twice(x, y, n, BLOCK: tl.constexpr):
    """y = 2 x, n numbers; tiles of BLOCK numbers."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    t = tl.load(x + i, mask=i < n)
    tl.store(y + i, 2 * t, mask=i < n)


x, y = torch.arange(10.0), torch.zeros(10)
interpreted(twice, (3,), x, y, 10, BLOCK=4)
print(y.tolist())

# %% [markdown]
# `i`, `t` and `2 * t` are tiles of 4 numbers. `x` is a pointer: `x + i` are four places in memory, `tl.load` fetches what is there. `BLOCK` is a `tl.constexpr`: it is known when the kernel is compiled, and the length of a tile must be, and must be a power of two.
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
# `print("t", t)` in a kernel shows a tile.
#
# **Predict.** Both masks of `twice` are left out. What will happen in program 2? `___`


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
# On a GPU this is silent, as in CUDA: it reads and writes whatever lies behind the arrays.
#
# A tile may have two dimensions. `[:, None]` and `[None, :]` give a tile a second side, and tiles broadcast as in NumPy. Rows 2 and 3 of a matrix with rows of `n = 3` numbers, in a tile of 2 × 4:
#
# ```
# i = 2 + tl.arange(0, 2)[:, None]        (2, 1):  2, 3
# j = tl.arange(0, 4)[None, :]            (1, 4):  0, 1, 2, 3
# i * 3 + j                               (2, 4):  6 7 8 9
#                                                  9 10 11 12
# ```
#
# **Predict**: 9 stands there twice. Which of the two belongs to the matrix row that it stands in? `___` Which mask keeps the other one out? `___`
#
# <details><summary>Answer</summary>
#
# The second: row 3, column 0. The first is "row 2, column 3", which does not exist: `j < n`. Lesson 05 had the same thing: memory is one long line.
#
# </details>
#
# In a picture: a matrix of 5 rows of 10 numbers (dark), and the two tiles of 4 × 16 that cover it. Pale cells do not exist; the masks keep them out.

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
# `y = softmax(x)`, each row by itself. `x` and `y` have `rows` rows of `n` numbers, one row behind the other. A program has `ROWS` rows, from row `ROWS * program` on, in one tile of `ROWS` × `WIDTH`; `n` is at most `WIDTH`. The last program may have fewer rows. Load each number once, and store each once.
# Scores may be anything, −10³⁴ as well as 1000.
#
# `tl.max(t, 1)` is the maximum along axis 1, one number per row; `tl.sum` likewise. `tl.load(…, mask=…, other=…)` says what a number is that the mask keeps out. `float("-inf")` is a number.
#
# <details><summary>Hint 1: what is masked</summary>
#
# A number that does not exist must not count: neither in the maximum nor in the sum. Which score has a weight of 0?
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
# ## 2. What the compiler decides
#
# Your kernel has no threads, a GPU has nothing else. How many there are is said at the launch: `num_warps=4` gives a program 128 threads. All else is the compiler's. It can be read in the PTX, which says what *one* thread does.
#
# **Predict**, for `twice` with `BLOCK=64` and one warp, 32 threads: how many loads does a thread have? `___` And what has become of the mask, in a language without tiles? `___` Here is all of it, under the lines that it comes from, with lesson 07's words beside it:


# %% jupyter={"source_hidden": true}
def read_aloud(kernel, num_warps, **constants):
    """The recorded PTX of a kernel, each instruction under its line of the source."""
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
# A thread has **two** numbers, 128 bytes apart: 32 numbers. The mask is two **predicates**, `p1` and `p2`: `@%p1 ld` is "load, if p1". That is the `if i < n:` of CUDA, once for each number. And `blockIdx` and `threadIdx` are back. (What a mask keeps out of a load is undefined in Triton, unless `other=` gives it a value. This PTX has 0 there, `mov.u32 %r1, 0x0`; `interpreted` has NaN, so that no kernel counts on it.)
#
# Who has which number is the compiler's choice. A softmax shows more of it: `small.softmax_row_kernel` is yours with one row per program. Three launches, and for each number of the row, the threads that load it, as the simulator saw them. (The PTX was compiled without a word about where arrays begin. On a GPU Triton looks: for arrays that begin at a multiple of 16 bytes it may give each thread four neighbours, loaded at one time.)

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(1, 3, figsize=(12, 3.4), layout="constrained")
for place, (width, warps) in zip(axes, [(256, 4), (64, 1), (64, 4)]):
    loaded = lesson21.loaded_by(width, warps)
    dots = [(j, thread) for j, threads in loaded.items() for thread in threads]
    place.scatter(*zip(*dots), s=7, color=BLUE)
    place.set(title=f"{width} numbers, num_warps={warps}", xlabel="number of the row")
    place.set(ylabel="thread", ylim=(-4, 32 * warps + 3))
show_figure(
    figure,
    "threads over numbers of a row. 256 numbers, 128 threads: a line that rises from "
    "thread 0 to 127, and again from the number 128 on. 64 numbers, 32 threads: it "
    "rises from 0 to 31 twice. 64 numbers, 128 threads: two lines, so that each number "
    "is loaded by two threads, 64 apart.",
)
for width, warps, j in [(256, 4, 130), (64, 1, 33), (64, 4, 33)]:
    threads = lesson21.loaded_by(width, warps)[j]
    print(f"{width} numbers, num_warps={warps}: number {j} by {threads}")

# %% [markdown]
# ### Exercise 21.2 · holders · one to three lines
#
# Find the rule. `holders(j, width, num_warps)` returns the list of the threads, in any order, that load number `j` of a row of `width` numbers; both sizes are powers of two. The check asks for other sizes, too.
#
# <details><summary>Hint</summary>
#
# Thread `t` loads the number `t`, if there are that many. What is the next number that it loads, if the row is longer? What does it load if the row is shorter?
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
# In the last picture half of the threads work in vain. Triton does not mind: all that hold a number compute the same. (One of them stores it.)
#
# Now the sum and the maximum of a row. Each thread first adds up what it has. Then lesson 06: five shuffles add up a warp. And between warps? They must pass through shared memory, with barriers.
#
# **Predict** for a row of 256 numbers, maximum and sum together:
#
# | num_warps | shuffles | barriers | bytes of shared memory |
# |---|---|---|---|
# | 1 | `___` | `___` | `___` |
# | 4 | `___` | `___` | `___` |
#
# <details><summary>Hint</summary>
#
# Each warp leaves one number in shared memory, and then four numbers are added up by shuffles, too: how many does that take?
#
# </details>


# %%
def counts(kernel, num_warps, **constants):
    """[instructions, shuffles, barriers, bytes of shared memory] of recorded PTX."""
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
    title="softmax of 256 numbers: what is in the PTX of one thread",
)

# %% [markdown]
# With one warp two times 5 shuffles, and nothing else. With 4 warps two shuffles more for each sum: 4 numbers are halved twice. 16 bytes are 4 numbers of 4 bytes. There are three barriers, not four or two. One of the two reductions is the maximum, the other the sum. The sum uses the same 16 bytes as the maximum, so nobody may write its part before all have read the maximum: write, **barrier**, read, **barrier**, write, **barrier**, read. You know these from lesson 04, as bugs. Here the compiler has put them.
#
# ## 3. Flash attention
#
# Lesson 05's kernel, with what a *thread* had turned into what a *program* has:
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
#
# <details><summary>Answer</summary>
#
# (ROWS, KEYS); (ROWS,); (ROWS,); (ROWS, WIDTH). So `o_tile * shrink` does not fit: `shrink[:, None]` does.
#
# </details>
#
# ### Exercise 21.3 · flash · about fifteen lines
#
# `o = softmax(scale · q kᵀ) v` for `n` rows of `d` numbers in each array. A program has the ROWS queries from `ROWS * program` on, and goes over the keys in tiles of KEYS. WIDTH is at least d; the columns beyond are 0. If `CAUSAL`, query i sees the keys j ≤ i, and no tile is loaded that all queries of the program would mask. Each tile is loaded once.
#
# - `load_rows(array, first, n, d, SIZE, WIDTH)` from `kernels.triton.tiles` loads rows `first` to `first + SIZE − 1`, 0 where there are none: (SIZE, WIDTH). `store_rows(array, first, count, n, d, tile)` stores a tile's first `count` rows, without what lies outside. Both are written in Triton, as `twice`.
# - `tl.dot(a, b, input_precision="ieee")` is the product of two matrices. Without the last argument a GPU's tensor cores round `a` and `b` to 11 bits; here you keep all 24.
# - `tl.zeros((ROWS, WIDTH), tl.float32)`, `tl.full((ROWS,), float("-inf"), tl.float32)`, `tl.where(condition, a, b)`, `tl.maximum(a, b)`.
# - In a loop a variable keeps its type: `m = float("-inf")` before the loop would be one number, and a tile after the first round.
# - `min(n, …)` and `if CAUSAL:` work as in Python.
#
# <details><summary>Hint 1: the loop</summary>
#
# `for j0 in range(0, end, KEYS)`, and with CAUSAL `end = min(n, i0 + ROWS)`. The keys are `j = j0 + tl.arange(0, KEYS)[None, :]`.
#
# </details>
# <details><summary>Hint 2: the mask</summary>
#
# `load_rows` gives 0 for a key behind the last. A score of 0 counts; −∞ does not: `tl.where(j < n, scores, float("-inf"))`.
#
# </details>


# %% tags=["exercise"]
@triton.jit
def flash(
    q, k, v, scale, o, n, d,
    CAUSAL: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """o = attention of n rows of d numbers; tiles of ROWS queries and KEYS keys."""
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
# ### Beside your kernel of lesson 05
#
# The same numbers through both: lesson 05's kernel, yours if it is solved, in the simulator, and this one. And through the package's Triton kernel, which is yours with batches and heads; its PTX runs in the simulator.


# %%
def flash_here(q, k, v, causal):
    """Your Triton kernel on q, k, v (n, d), by the interpreter."""
    (n, d), o = q.shape, torch.empty_like(q)
    constants = dict(CAUSAL=causal, ROWS=16, KEYS=16, WIDTH=16)
    interpreted(flash, (-(-n // 16),), q, k, v, d**-0.5, o, n, d, **constants)
    return o


def lesson_05(kernel, q, k, v):
    """Lesson 05's kernel in the simulator: 16 queries per block, tiles of 12 keys."""
    n, d = q.shape
    o = torch.empty(n * d)
    launch = simulate(kernel)[-(-n // 16), 16, 0, 4 * d * (2 * 12 + 2 * 16)]
    arrays = (x.flatten() for x in (q, k, v))
    launch(*arrays, o, n, d, 12, np.float32(d**-0.5))
    return o.view(n, d)


seen = {}


def counting(*launched, **constants):
    """A runner: the recorded PTX in the simulator, counted."""
    how = dict(compiled=recorded, options=dict(observers=COUNTERS))
    seen["counters"] = simulated(*launched, **constants, **how).counters


def in_ptx(q, k, v):
    """The package's Triton kernel, causal: its PTX in the simulator."""
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
# How many barriers did the compiler put? Lesson 05 needs two for each tile: *loaded*, and *used up*. **Predict** for the kernel above, 3 programs of 16 queries, which visit 1, 2 and 3 tiles: 12? more? `___`

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
# 27. Per program 3, and 3 per tile. (One warp has two kinds of traffic through shared memory: K and V come through it, and `p` must change hands, for what `tl.dot` gives is spread over threads in another way than what it takes.) The loads are **asynchronous**: `cp.async` fetches the next tile while this one is used, which no line of yours asks for. And `tl.dot` gives each thread a *patch* of the product, where lesson 05's thread has a whole row, and reads every key for one row alone. That is why the table at the top begins as it does.
#
# ## 4. Whose bug is it now?
#
# The compiler takes care of the threads of a program. Nobody takes care of what *programs* do to each other, or of what goes through global memory. Five kernels follow. Read them: which are right?

# %%
for name, kernel in {
    "A": small.differences_a,
    "B": small.sums_b,
    "C": small.smooth_c,
    "D": small.halves_d,
    "E": small.steps_e,
}.items():
    print(f"--- {name}")
    print(inspect.getsource(kernel.fn))

# %% [markdown]
# A, C and D run on 100 numbers in blocks of 32, B on 40 rows of 12 with ROWS = 16, each with one warp per program. E is one program of two warps on 64 numbers.
#
# ### Exercise 21.4 · verdicts · guess before you run
#
# Return a dict, a word for each kernel: `{"A": …, "B": …, …}`. The word is the first of these that is true: `"outside"` (an access outside of an array), `"programs"` (two programs race), `"threads"` (two threads of one program race), `"none"`. Three questions are enough: where does each mask end? Which elements does a second program touch, and does one of the two store? Does a program load what it has stored itself?


# %% tags=["exercise"]
def verdicts():
    """{"A": word, "B": word, "C": word, "D": word, "E": word}"""
    # BEGIN SOLUTION 21.4
    return {
        "A": "outside",
        "B": "programs",
        "C": "programs",
        "D": "none",
        "E": "threads",
    }
    # END SOLUTION


# %% tags=["check"]
check.ex21_4(verdicts)

# %% [markdown]
# Now run them, first by the interpreter, program by program, then as PTX in the simulator, thread by thread. Each finding names the line of the `.py` file. (Of each only the first finding is shown.)


# %%
def said(run, name):
    """The first finding of a run of kernel `name`."""
    try:
        small.planted(name, run=run)
    except (ProgramBug, KernelBug) as bug:
        return str(bug).partition("\n\n")[0]
    return "nothing"


in_simulator = partial(simulated, compiled=recorded)
for name in "ABCDE":
    print(f"--- {name}, by programs: {said(interpreted, name)}\n")
    print(f"{name}, by threads: {said(in_simulator, name)}\n")

# %% [markdown]
# The first three are found by both. B is mended by `tl.atomic_add(y + c, part, mask=c < columns)`, C by a second array for the output, which is D. (Of C's 98 races 95 are between two threads of one program: the PTX has nothing between the loads of a warp and its stores.) **E is found by the simulator alone**: for an interpreter that runs a program as one flow of instructions, as Triton's own does too, nothing is wrong. But thread 32, in the second warp, may load what thread 31 has not stored yet. `tl.debug_barrier()` between store and load mends it. Why would anybody write E? That is the next section.
#
# ## 5. What it cannot say
#
# Convolutional attention computes `T[i, j] = Σ_ab w[a, b] · S0[i + a, j + b]`, from a tile of scores that the program has just made. In CUDA it lies in shared memory, and a thread reads its neighbours' scores at `[i + a, j + b]`. **Predict** what happens to `s[1:, :]` in Triton: `___`


# %%
@triton.jit
def shifted(x, SIZE: tl.constexpr):
    s = load_rows(x, 0, SIZE, SIZE, SIZE, SIZE)
    s = s[1:, :]


try:
    interpreted(shifted, (1,), torch.zeros(16, 16), SIZE=16)
except TypeError as error:
    print(error)

# %% [markdown]
# (Triton itself says `unsupported tensor index`.) A tile is spread over threads as the compiler likes. It has no index, and there is no shared memory to put it in. Three ways are in use:
#
# 1. **Move the tile**: `tl.gather` gives a tile whose entry (i, j) is another entry of the same tile, from the same row or the same column. One move for each tap: the package's way.
# 2. **Through global memory**: store it, wait (`tl.debug_barrier()`), load it at shifted places. This is E, mended.
# 3. **Make it a product.** A product with a matrix is what Triton does best.
#
# How can a convolution be a product? On paper, one row of scores (5, 6, 7, 8) and the taps (1, 2), so that T[j] = 1·S[j] + 2·S[j + 1]:
#
# **Predict** T[0], T[1], T[2]: `___` Then find the matrix B with S · B = T. Which entries stand in its column 0? `___` In column 1? `___`
#
# <details><summary>Answer</summary>
#
# 17, 20, 23. Column 0 is (1, 2, 0, 0), column 1 is (0, 1, 2, 0): the taps, one row further down in each column. So `B[r, j] = w[r − j]` where 0 ≤ r − j < c_k, and 0 elsewhere: a **band**.
#
# | | 0 | 1 | 2 | 3 |
# |---|---|---|---|---|
# | 0 | 1 | 0 | 0 | 0 |
# | 1 | 2 | 1 | 0 | 0 |
# | 2 | 0 | 2 | 1 | 0 |
# | 3 | 0 | 0 | 2 | 1 |
#
# </details>
#
# And rows? A matrix on the *left* mixes rows. `U · X` with `U[i, r] = 1` where r = i + a, and 0 elsewhere, has the row i + a of X in its row i: it moves X up by a.
#
# ### Exercise 21.5 · convolved · about eight lines
#
# Return the tile `T[i, j] = Σ_ab taps[a, b] · s[i + a, j + b]`, for i up to SIZE − c_q and j up to SIZE − c_k. (What stands in the other rows and columns does not matter.) `s` is (SIZE, SIZE). `taps` points at c_q rows of c_k numbers, one row behind the other: load them with a mask, nothing lies behind them. SIZE is at least 16.
#
# A function under `@triton.jit` may `return` a tile. Keep all bits: `input_precision="ieee"`.
#
# <details><summary>Hint 1: a plan</summary>
#
# For each row `a` of taps: make its band; `s · band` convolves the rows of s with it; move that up by a; add.
#
# </details>
# <details><summary>Hint 2: a band from memory</summary>
#
# With `i` (SIZE, 1) and `j` (1, SIZE), `b = i - j` is a tile of whole numbers, and `taps + a * c_k + b` a tile of pointers. Load those with 0 ≤ b < c_k, the others are 0.
#
# </details>


# %% tags=["exercise"]
@triton.jit
def convolved(s, taps, c_q, c_k, SIZE: tl.constexpr):
    """T (SIZE, SIZE) of s (SIZE, SIZE), right where all that it reads is in s."""
    # BEGIN SOLUTION 21.5
    i, j = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    total = tl.zeros((SIZE, SIZE), tl.float32)
    for a in range(c_q):
        b = i - j
        inside = (b >= 0) & (b < c_k)
        band = tl.load(taps + a * c_k + b, mask=inside, other=0.0)
        up = tl.where(j == i + a, 1.0, 0.0)
        row = tl.dot(s, band, input_precision="ieee")
        total += tl.dot(up, row, input_precision="ieee")
    return total
    # END SOLUTION


# %% tags=["check"]
check.ex21_5(convolved)

# %% [markdown]
# ### What each way costs
#
# A tile of 32 × 32, 3 × 4 taps, four warps; the PTX of all three, counted in the simulator. **Predict**: which way has most multiply–adds? `___` Which goes to global memory most? `___`

# %%
scores, taps = torch.randn(32, 32), torch.randn(3, 4)
exact = torch.from_numpy(lesson21.correlated(scores.numpy(), taps.numpy()))
rows = []
for way, name in enumerate(["moves (tl.gather)", "products (tl.dot)", "global memory"]):
    t = small.convolve(scores, taps, way, run=counting)
    assert below(t[:30, :29], exact)
    memory = seen["counters"]["memory"]
    total = [
        sum(memory.get(space, {}).get(what, 0) for what in ("loads", "stores"))
        for space in ("global", "shared")
    ]
    constants = dict(WAY=way, SIZE=32)
    rows.append([name, *counts(small.convolve_kernel, 4, **constants), *total])
show_table(
    ["way", *header, "global accesses", "shared accesses"],
    *rows,
    title="3 × 4 taps on a tile of 32 × 32: in the PTX, and, last, as counted",
)
per_tap, per_row = 12 * 32**2, 3 * 2 * 32**3
print(f"multiply-adds: {per_tap:,} by moves, {per_row:,} by products")

# %% [markdown]
# Lesson 11's threads load a score from shared memory and use it for several taps. None of the three can do that. Moves pass the whole tile through shuffles and shared memory once for each tap or row of taps. Products do 16 times the arithmetic, most of it with zeros. Global memory loads everything c_q · c_k times, and puts the barrier back into your hands.
#
# On the H200 the package takes moves: in its setting, with 7 × 7 taps, that gives the 4.6 ms at the top, against 2.1 ms of CUDA C++. (Nobody has timed products there. In 16 bits tensor cores would do them.)
#
# ## 6. Convolutional attention, from your parts
#
# Your loop of section 3, with lesson 10's halo and your `convolved` between scores and softmax: a tile computes SIZE × SIZE scores, and *owns* SIZE − c_q + 1 rows and SIZE − c_k + 1 columns of T. It is lesson 11's kernel. Nothing in it is new: read it, and mark what your `flash` does not have.


# %%
@triton.jit
def conv_flash(
    q, k, v, taps, scale, o, n, d, c_q, c_k,
    SIZE: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """o = causal convolutional attention; a program owns SIZE - c_q + 1 queries."""
    rows, keys, left = SIZE - c_q + 1, SIZE - c_k + 1, (c_k - 1) // 2
    i0 = tl.program_id(0) * rows
    i, j = tl.arange(0, SIZE)[:, None], tl.arange(0, SIZE)[None, :]
    q_tile = scale * load_rows(q, i0 - c_q + 1, n, d, SIZE, WIDTH)
    m = tl.full((SIZE,), float("-inf"), tl.float32)
    l = tl.zeros((SIZE,), tl.float32)
    o_tile = tl.zeros((SIZE, WIDTH), tl.float32)
    for j0 in range(0, min(n, i0 + rows), keys):
        k_tile = load_rows(k, j0 - left, n, d, SIZE, WIDTH)
        v_tile = load_rows(v, j0, n, d, SIZE, WIDTH)
        s = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee")
        s = tl.where(j0 - left + j <= i0 - c_q + 1 + i, s, 0.0)
        t = convolved(s, taps, c_q, c_k, SIZE)
        seen = (j < keys) & (j0 + j < n) & ((j0 + j <= i0 + i) | (i >= rows))
        t = tl.where(seen, t, float("-inf"))
        larger = tl.maximum(m, tl.max(t, 1))
        shrink = tl.exp(m - larger)
        p = tl.exp(t - larger[:, None])
        l = l * shrink + tl.sum(p, 1)
        o_tile = o_tile * shrink[:, None] + tl.dot(p, v_tile, input_precision="ieee")
        m = larger
    store_rows(o, i0, rows, n, d, o_tile / l[:, None])


# %% [markdown]
# <details><summary>Answer</summary>
#
# Five things. What a tile owns (`rows, keys, left`); q from `c_q − 1` rows above; k from `left` columns before; the first mask, with 0; and `convolved`. The second mask lets rows that the tile does not own see everything (`i >= rows`), so that they become no NaN: they are not stored.
#
# </details>
#
# ## Validate
#
# Against lesson 11: its kernel in the package, in the simulator; the package's Triton kernel, its PTX in the simulator; and the reference in float64. With 1 × 1 taps of 1 it must be your own `flash`.


# %% tags=["uses-exercise"]
def conv_here(q, k, v, taps, size=32):
    """Your kernel for q, k, v (n, d) and taps (c_q, c_k), by the interpreter."""
    (n, d), o = q.shape, torch.empty_like(q)
    grid = (-(-n // (size - len(taps) + 1)),)
    sizes = dict(SIZE=size, WIDTH=16)
    given = q, k, v, taps, d**-0.5, o, n, d, *taps.shape
    interpreted(conv_flash, grid, *given, **sizes)
    return o


q, k, v = torch.randn(3, 40, 16)
taps = torch.randn(3, 4)
mine = conv_here(q, k, v, taps)
layer = [x[None, None] for x in (q, k, v)] + [taps[None]]
lesson_11, _ = conv_forward(*layer, size=32)
in_triton, _ = conv_forward_triton.conv_forward(*layer, run=in_simulator)
for against, other in {
    "lesson 11's kernel, simulated": lesson_11[0, 0],
    "the package's Triton kernel, its PTX simulated": in_triton[0, 0],
    "the reference, float64": lesson21.whole_layer(q, k, v, taps),
}.items():
    print(f"{against:48} below 1e-5: {below(mine, other)}")
one = conv_here(q, k, v, torch.ones(1, 1))
print(f"{'1 × 1 taps: flash':48} below 1e-5: {below(one, flash_here(q, k, v, True))}")

# %% [markdown]
# ## In three lines
# - A Triton kernel is one program on tiles. Threads, shared memory and barriers are the compiler's, and stand in its PTX.
# - It cannot say what one thread does, nor read a tile at an index: products are easy, halos are not.
# - Programs race as blocks do, and so do the threads of a program through global memory; PTX in the simulator shows both, by line.
#
# **You can now** read and write kernels like those in `kernels/triton`, and check a Triton kernel of your own without a GPU: where Triton is installed, `simulated(kernel, grid, *arguments, num_warps=4, …)` compiles it, runs its PTX and names the line.
#
# **Next:** [lesson 22](22_cuda_cpp.ipynb) writes the same kernel in CUDA C++, where each thread is yours again.
