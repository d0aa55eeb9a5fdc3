# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 21b · Triton: races, and what it cannot express
#
# **60 minutes** · builds on lesson 21 (your Triton kernels) and lesson 10 (halos)
#
# You will be able to:
#
# 1. find a race in a Triton kernel on a machine without a GPU, with its source line;
# 2. say what Triton cannot express, and what that costs convolutional attention;
# 3. turn a convolution into a matrix product.
#
# In lesson 21 the compiler took most decisions for you, and flash attention became short and fast. Here you see the other side. Some races remain yours, and convolutional attention needs something that tiles do not offer.
#
# **You need neither a GPU nor Triton**, as in lesson 21. The next cell loads your functions of lesson 21. If you have not solved one of them, or not saved it, the cell loads the solution's version instead.

# %%
import inspect
from functools import partial

import torch

from course import brought, check, guess, show_table
from course.check import lesson21
from kernels.conv.forward import conv_forward
from kernels.triton import conv_forward as conv_forward_triton, small
from kernels.triton.interpreter import ProgramBug, interpreted
from kernels.triton.launch import recorded, simulated
from kernels.triton.optional import tl, triton
from kernels.triton.tiles import load_rows, store_rows
from sim import KernelBug
from sim.observers import COUNTERS

torch.manual_seed(21)
header = ["instructions", "shuffles", "barriers", "shared, bytes"]
counts, flash_here, below = brought("21_triton", "counts", "flash_here", "below")
seen = {}


def counting(*launched, **constants):
    """Run the recorded PTX in the simulator, and keep its counters."""
    how = dict(compiled=recorded, options=dict(observers=COUNTERS))
    seen["counters"] = simulated(*launched, **constants, **how).counters


# %% [markdown]
# ## 1. Bugs that remain yours
#
# The compiler synchronises the threads of a program. It does not synchronise *programs* with each other, nor accesses to global memory. Read the following five kernels: which ones are correct?

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
# Return a dict with a word for each kernel: `{"A": …, "B": …, …}`. Choose the first of these words that is true:
#
# - `"outside"`: an access is outside of an array;
# - `"programs"`: two programs race;
# - `"threads"`: two threads of one program race;
# - `"none"`: none of these.
#
# Ask three questions. Where does each mask end? Which elements does a second program access, and does one of the two store? Does a program load an element that it has stored itself?


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
# Now run them: first in the interpreter, program by program, then as PTX in the simulator, thread by thread. Each finding names the line of the `.py` file. (Only the first finding of each run is shown.)


# %%
def first_finding(run, name):
    """Return the first finding of a run of kernel `name`."""
    try:
        small.planted(name, run=run)
    except (ProgramBug, KernelBug) as bug:
        return str(bug).partition("\n\n")[0]
    return "nothing"


in_simulator = partial(simulated, compiled=recorded)
for name in "ABCDE":
    print(f"--- {name}, by programs: {first_finding(interpreted, name)}\n")
    print(f"{name}, by threads: {first_finding(in_simulator, name)}\n")

# %% [markdown]
# Both find the first three. To fix B, use
# `tl.atomic_add(y + c, part, mask=c < columns)`. To fix C, use a second array for the
# output, which is D. (Of the 98 races in kernel C, 95 are between two threads of one
# program: the PTX has no barrier between a warp's loads and its stores.)
#
# **Only the simulator finds E.** An interpreter that runs a program as a single thread of execution, as Triton's own interpreter also does, sees nothing wrong. But thread 32, in the second warp, may load an element that thread 31 has not stored yet. `tl.debug_barrier()` between the store and the load fixes it. Why would anybody write E? The next section shows a reason.
#
# ## 2. What Triton cannot express
#
# Convolutional attention computes `T[i, j] = Σ_ab w[a, b] · S0[i + a, j + b]`, from a tile of scores that the program has just computed. In CUDA the tile is in shared memory, and a thread reads its neighbours' scores at `[i + a, j + b]`. **Predict** what happens to `s[1:, :]` in Triton: `___`

# %% tags=["guess"]
guess("21b slice", happens=...)


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
# (Triton's own message is `unsupported tensor index`.) The compiler distributes a tile over threads as it likes. So you cannot slice a tile or read one of its elements by an index, and you cannot put it into shared memory yourself. Here are three ways around that (there are others):
#
# 1. **Move the tile.** `tl.gather` indexes a tile along one axis: entry (i, j) of the result is another entry of the same row, or of the same column. It takes one move for each tap. The package does this.
# 2. **Use global memory.** Store the tile, wait (`tl.debug_barrier()`), and load it at shifted addresses. This is E, fixed.
# 3. **Make it a matrix product**, which is what Triton does best.
#
# How can a convolution be a product? Work through one row of scores, (5, 6, 7, 8), with the taps (1, 2), so that T[j] = 1·S[j] + 2·S[j + 1]:
#
# **Predict** T[0], T[1], T[2]: `___` Then find the matrix B with S · B = T. What are the entries of its column 0? `___` Of column 1? `___`

# %% tags=["guess"]
guess("21b band matrix", T=..., column_0=..., column_1=...)

# %% [markdown]
# <details><summary>Answer</summary>
#
# 17, 20, 23. Column 0 is (1, 2, 0, 0), column 1 is (0, 1, 2, 0): each column has the taps, one row lower than the column before. So `B[r, j] = w[r − j]` where 0 ≤ r − j < c_k, and 0 elsewhere. Such a matrix is called a **band matrix**.
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
# And for rows? A matrix on the *left* combines rows. Let `U[i, r] = 1` where r = i + a, and 0 elsewhere. Then row i of `U · X` is row i + a of X: U moves X up by a rows.
#
# ### Exercise 21.5 · convolved · about eight lines
#
# Return the tile `T[i, j] = Σ_ab taps[a, b] · s[i + a, j + b]`, for i up to SIZE − c_q
# and j up to SIZE − c_k. The other rows and columns may have any value. `s` is (SIZE,
# SIZE), and SIZE is at least 16. `taps` points to c_q rows of c_k elements, row-major.
# Load the array with a mask: the memory past its end is not allocated.
#
# A function decorated with `@triton.jit` may `return` a tile. Keep full precision with `input_precision="ieee"`. Do not call the package's own convolution.
#
# <details><summary>Hint 1: a plan</summary>
#
# For each row `a` of taps: build its band matrix, multiply `s · band` to convolve the rows of s with it, move the product up by a, and add.
#
# </details>
# <details><summary>Hint 2: a band from memory</summary>
#
# With `i` (SIZE, 1) and `j` (1, SIZE), `b = i - j` is a tile of integers, and `taps + a * c_k + b` is a tile of pointers. Load those with 0 ≤ b < c_k; the others are 0.
#
# </details>


# %% tags=["exercise"]
@triton.jit
def convolved(s, taps, c_q, c_k, SIZE: tl.constexpr):
    """T (SIZE, SIZE) of s (SIZE, SIZE), correct where all that it reads is in s."""
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
# The next table compares the three ways on a tile of 32 × 32, with 3 × 4 taps and four warps. The simulator counts their accesses in the PTX. **Predict**: which way has the most multiply–adds? `___` Which accesses global memory most often? `___`

# %% tags=["guess"]
guess("21b three ways", most_multiply_adds=..., most_global_accesses=...)

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
# In lesson 11, a thread loads a score from shared memory and uses it for several taps. None of these three ways can do that. Moves pass the whole tile through shuffles and shared memory, once for each tap or row of taps. Products do 16 times the arithmetic, most of it with zeros. The way through global memory loads everything c_q · c_k times, and leaves the barrier to you.
#
# On the H200 the package uses moves. With 7 × 7 taps that takes the 4.6 ms of lesson 21's first table, compared with 2.1 ms for CUDA C++. (Products were not timed there. In 16 bits, tensor cores could compute them.)
#
# ## 3. Convolutional attention, from your parts
#
# Combine your loop of lesson 21 with lesson 10's halo, and put your `convolved` between scores and softmax. A tile computes SIZE × SIZE scores, and *owns* SIZE − c_q + 1 rows and SIZE − c_k + 1 columns of T. The result is lesson 11's kernel. Nothing in it is new: read it, and note what your `flash` does not have.


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
# Five things: the rows and columns that a tile owns (`rows, keys, left`); q from `c_q − 1` rows above; k from `left` columns before; the first mask, with 0; and `convolved`. In the second mask, rows that the tile does not own see everything (`i >= rows`), so that they do not become NaN. They are not stored.
#
# </details>
#
# ## Validate
#
# Compare it with lesson 11's kernel from the package, in the simulator; with the package's Triton kernel, whose PTX runs in the simulator; and with the reference in float64. With 1 × 1 taps of 1, it must agree with your own `flash`.


# %% tags=["uses-exercise"]
def conv_here(q, k, v, taps, size=32):
    """Run your kernel on q, k, v (n, d) and taps (c_q, c_k), in the interpreter."""
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
# - In Triton you can neither give a single thread its own work nor slice a tile. So matrix products are easy, and halos are not.
# - A convolution along rows is a product with a band matrix, which contains mostly zeros.
# - Programs race as blocks do. Through global memory, even the threads of one program can race. The simulator reports both from the PTX, by line.
#
# **You can now** read and write kernels like those in `kernels/triton`, and check a Triton kernel of your own without a GPU: if Triton is installed, `simulated(kernel, grid, *arguments, num_warps=4, …)` compiles it, runs its PTX, and names the line of each finding.
#
# **Read on:** Philippe Tillet, H. T. Kung and David Cox, *Triton: An Intermediate Language and Compiler for Tiled Neural Network Computations* (MAPL 2019) · Triton documentation, tutorials "Fused Softmax" and "Fused Attention" · Triton documentation, *triton.language* (`load`, `dot`, `gather`).
#
# **Next:** [lesson 22](22_cuda_cpp.ipynb) writes the same kernels in CUDA C++, where you control each thread again.
