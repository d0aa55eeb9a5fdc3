# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 13b · The second backward kernel, and sums that never repeat
#
# **50 minutes** · builds on lesson 13 (your kernel of dQ and dW) and lesson 04 (lost updates)
#
# After this lesson you will be able to
#
# 1. write the kernel of dK and dV, and validate a backward pass against an independent one;
# 2. say why a sum by atomics changes from run to run, and how to get one that does not.
#
# Lesson 13 ended with a kernel in which a block keeps its queries and loops over tiles of keys. It computes dQ
# and dW. Two gradients are left, dK and dV, and for these the roles are exchanged. With both kernels you can
# train: at the end of section 2, two hidden taps are found by your gradients.
#
# You don't need a GPU. The next cell loads your functions of lesson 13. If you have not solved one of
# them, or not saved it, the cell loads the solution's version instead.

# %%
import functools
import math

import torch
from numba import cuda
from numpy import float32

from course import brought, check, guess, progress_bar
from course.ladder import show_ladder, time_rung
from kernels.common.launch import launch, simulated
from kernels.conv.backward import conv_backward
from kernels.conv.forward import conv_forward
from kernels.reference import conv_tiled
from kernels.reference.conv_tiled import halo_of, owned
from kernels.reference.tiled import Traffic

# %% jupyter={"source_hidden": true}
torch.manual_seed(13)
WIDTH = 16  # the largest d
(
    clear,
    products,
    store_rows,
    gradient_of_t,
    gradient_of_s,
    queries_kernel,
    case,
    forward,
    by_hand,
    near,
) = brought(
    "13_conv_backward",
    "clear",
    "products",
    "store_rows",
    "gradient_of_t",
    "gradient_of_s",
    "queries_kernel",
    "case",
    "forward",
    "by_hand",
    "near",
)

# %% [markdown]
# ## 1. The kernel of dK and dV
#
# The tile is the same as in lesson 13, but now a block keeps its keys and sums over **rows**. So here it is the halo **rows**
# that could be counted twice.
#
# ### Exercise 13.6 · add_d_k_d_v · about three lines
#
# Add this tile's part of dSᵀ Q to `d_k_tile`, and its part of Pᵀ dO to `d_v_tile`, over the owned rows. Row i
# of the tile is query i0 + i.
#
# <details><summary>Hint</summary>
#
# The owned column j is column j of `d_s_tile`. In `p_tile` it is column `right + j`.
#
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def add_d_k_d_v(d_k_tile, d_v_tile, d_s_tile, p_tile, q, d_o, i0, rows, columns, right):
    """Add Σ_i dS[i, j] · Q[i0 + i, c] to d_k_tile[j, c], and
    Σ_i P[i, j] · dO[i0 + i, c] to d_v_tile[j, c], for the owned columns."""
    d = q.shape[1]
    for e in range(cuda.threadIdx.x, columns * d, cuda.blockDim.x):
        j, c = e // d, e % d
        # BEGIN SOLUTION 13.6
        for i in range(rows):
            d_k_tile[j, c] += d_s_tile[i, j] * q[i0 + i, c]
            d_v_tile[j, c] += p_tile[i, right + j] * d_o[i0 + i, c]
        # END SOLUTION


# %% tags=["check"]
check.ex13_6(add_d_k_d_v)

# %% [markdown]
# **Predict.** The kernel below loops over tiles of rows, from top to bottom. The rows are cut as in the other
# kernel: 0, rows, 2·rows, … For a block that keeps the keys from j0 on, at which i0 does the loop begin?


# %%
def keys_kernel(
    size,
    gradient_of_t=gradient_of_t,
    gradient_of_s=gradient_of_s,
    add_d_k_d_v=add_d_k_d_v,
):
    """Return the kernel of dK and dV, with tiles of size × size scores."""

    @cuda.jit
    def backward_keys(q, k, v, w, log_sum, delta, d_o, scale, d_k, d_v):
        s_tile = cuda.shared.array((size, size), float32)
        p_tile = cuda.shared.array((size, size), float32)
        d_t_tile = cuda.shared.array((size, size), float32)
        d_s_tile = cuda.shared.array((size, size), float32)
        d_k_tile = cuda.shared.array((size, WIDTH), float32)
        d_v_tile = cuda.shared.array((size, WIDTH), float32)
        n, c_q, c_k = q.shape[0], w.shape[0], w.shape[1]
        rows, right = size - 2 * (c_q - 1), c_k - 1 - (c_k - 1) // 2
        j0 = cuda.blockIdx.x * (size - 2 * (c_k - 1))
        columns = min(size - 2 * (c_k - 1), n - j0)
        clear(d_k_tile)
        clear(d_v_tile)
        for i0 in range(j0 // rows * rows, n, rows):
            count = min(rows, n - i0)
            products(s_tile, q, k, i0 - (c_q - 1), j0 - (c_k - 1), scale, True)
            products(d_t_tile, d_o, v, i0, j0 - right, float32(1), False)
            cuda.syncthreads()  # S0 and dP are there
            gradient_of_t(p_tile, d_t_tile, s_tile, w, log_sum, delta, i0, j0 - right)
            cuda.syncthreads()  # P and dT are there
            gradient_of_s(d_s_tile, d_t_tile, w, i0, j0, count, columns)
            cuda.syncthreads()  # dS is there, and S0 and dT are used
            add_d_k_d_v(
                d_k_tile, d_v_tile, d_s_tile, p_tile, q, d_o, i0, count, columns, right
            )
        cuda.syncthreads()
        store_rows(d_k, j0, d_k_tile, columns, scale)
        store_rows(d_v, j0, d_v_tile, columns, float32(1))

    return backward_keys


# %% [markdown]
# At `j0 // rows * rows`: the tile of rows that contains query j0, the first query that sees key j0. Tiles
# above it see none of the block's keys.
#
# ## 2. Validate: both kernels against lesson 12
#
# A host function runs the two kernels, one after the other. It needs O and L, which a forward pass would have
# stored. As a second reference, `by_tiles` runs the package's tile-by-tile version in plain PyTorch.


# %%
def backward(
    q, k, v, w, d_o, size=8, threads=16, partials=False, run=None, queries={}, keys={}
):
    """Return (dQ, dK, dV, dW) of one head, computed by the two kernels.
    queries, keys: functions that replace yours."""
    o, log_sum = forward(q, k, v, w)
    rows, columns = owned((size, size), halo_of(w), backward=True)
    blocks = math.ceil(len(q) / rows)
    d_q, d_k, d_v = (torch.full_like(x, math.nan) for x in (q, k, v))
    d_w = w.new_zeros(blocks if partials else 1, *w.shape)
    given = q, k, v, w, log_sum, (d_o * o).sum(1), d_o, float32(q.shape[1] ** -0.5)
    kernel = queries_kernel(size, **queries)
    launch(kernel, (blocks,), (threads,), *given, d_q, d_w, run=run)
    kernel, blocks = keys_kernel(size, **keys), math.ceil(len(q) / columns)
    launch(kernel, (blocks,), (threads,), *given, d_k, d_v, run=run)
    return d_q, d_k, d_v, d_w.sum(0)


def by_tiles(q, k, v, w, d_o, size):
    """Return the same from the package's tiles in plain PyTorch, in float64."""
    o, log_sum = (x.double() for x in forward(q, k, v, w))
    q, k, v, w, d_o = (x.double() for x in (q, k, v, w, d_o))
    given = q, k, v, w, log_sum, (d_o * o).sum(1), d_o, (size, size), Traffic()
    d_q, d_w = conv_tiled.backward_queries(*given)
    return d_q, *conv_tiled.backward_keys(*given), d_w


# %% [markdown]
# The taps have odd and even sizes, square and non-square. There is one token, one tile,
# many tiles, ragged tiles, and more taps than tokens. With tensors on the CPU, `launch`
# runs `sim`, which also looks for races, for reads of uninitialised memory, and for
# accesses out of bounds. Any finding would stop the cell.

# %% tags=["uses-exercise"]
shapes = [
    (1, 3, 1, 1, 4),
    (5, 4, 3, 3, 8),
    (14, 4, 3, 3, 8),
    (13, 3, 2, 4, 8),
    (11, 3, 4, 2, 8),
    (14, 2, 1, 4, 8),
    (10, 2, 4, 1, 8),
    (9, 3, 3, 5, 12),
    (5, 2, 6, 11, 24),
    (20, 4, 6, 11, 24),
]
print(
    f"{'N':>3}{'taps':>8}{'size':>6}{'tiles':>7}   "
    f"{'dQ':>6}{'dK':>6}{'dV':>6}{'dW':>6}   tile by tile in PyTorch"
)
for n, d, c_q, c_k, size in progress_bar(shapes):
    inputs = case(n, d, c_q, c_k)
    rows, columns = owned((size, size), halo_of(inputs[3]), backward=True)
    got, wanted = backward(*inputs, size=size), by_hand(*inputs)
    agree = "".join(f"{near(*pair)!s:>6}" for pair in zip(got, wanted))
    tiles = f"{math.ceil(n / rows)}×{math.ceil(n / columns)}"
    print(
        f"{n:3}{c_q:5}×{c_k:<2}{size:6}{tiles:>7}   {agree}   "
        f"{all(map(near, got, by_tiles(*inputs, size)))}"
    )

# %% [markdown]
# ### Two taps that learn
#
# What are gradients good for? Suppose some taps are hidden: 0.5 for a key's left neighbour and 1.5 for the
# key itself. All you see is the output that they produce. Start from (1, 0), compare the outputs, let *your*
# kernels compute dW, and take a step against it. **Predict.** Does this find the two numbers, or just some
# taps that give a similar output?

# %% tags=["uses-exercise"]
q, k, v, _, _ = case(12, 4, 1, 2)
hidden, taps = torch.tensor([[0.5, 1.5]]), torch.tensor([[1.0, 0.0]])
target, _ = forward(q, k, v, hidden)
for step in progress_bar(range(13), desc="training"):
    error = forward(q, k, v, taps)[0] - target
    *_, d_w = backward(q, k, v, taps, 2 * error / error.numel())
    if step % 3 == 0:
        found = ", ".join(f"{number:.2f}" for number in taps.flatten().tolist())
        print(f"step {step:2}: taps {found}   loss {(error**2).mean().item():.4f}")
    taps = taps - 10 * d_w

# %% [markdown]
# This is all that training is, and you have written every derivative in it. Lesson 15 does it with a whole
# model.
#
# ### On a real GPU, if you have one
#
# With tensors on a GPU, `launch` runs on that GPU. The next cell prints the same line with and without one.

# %% tags=["uses-exercise"]
device = "cuda" if torch.cuda.is_available() else "cpu"
inputs = case(14, 4, 3, 3)
there = [x.cpu() for x in backward(*(x.to(device) for x in inputs))]
print(
    "your kernels, on this device, agree with lesson 12:",
    all(map(near, there, by_hand(*inputs))),
)

# %% [markdown]
# ## 3. A sum that is never the same
#
# All blocks add to one dW. What if they did so without an atomic?


# %%
@cuda.jit(device=True)
def add_plainly(d_w, tap_sums):
    """Add this block's part of dW to the total, with a plain +=."""
    taps, c_k = d_w.shape[1] * d_w.shape[2], d_w.shape[2]
    for e in range(cuda.threadIdx.x, taps, cuda.blockDim.x):
        a, b = e // c_k, e % c_k
        d_w[cuda.blockIdx.x % d_w.shape[0], a, b] += tap_sums[a, b]


# %% [markdown]
# **Guess before you run.** Is the result correct? And does `sim` find something?

# %% tags=["uses-exercise"]
reports = []


def reporting(*arguments):
    """Run a launch, and keep its report with the findings."""
    reports.append(simulated(*arguments, on_finding="report"))


inputs = case(14, 4, 3, 3)
got = backward(*inputs, run=reporting, queries={"add_to_all": add_plainly})
print("dW is correct:", near(got[3], by_hand(*inputs)[3]))
for line in reports[0].findings[0].message.splitlines():
    print(line.partition("   value ")[0])

# %% [markdown]
# `sim` runs one thread at a time, so the result is correct here. On a GPU, two blocks may read the same old
# value, and one of the additions is lost. That is lesson 04's lost update, and the finding reports it
# whatever the result is. With `cuda.atomic.add`, no addition is lost. So does every run give the same dW?
#
# ### Three numbers
#
# An atomic makes each addition indivisible. It does not say **in which order** they happen. float32 keeps 24
# binary digits, about seven decimal digits, and rounds after every addition.
#
# **Predict.** Take the three numbers 100000000, 1 and −100000000, in float32. What is (100000000 + 1) −
# 100000000? And what is (100000000 − 100000000) + 1?

# %%
large, small = float32(100_000_000), float32(1)
print("(large + small) - large =", (large + small) - large)
print("(large - large) + small =", (large - large) + small)

# %% [markdown]
# Near a hundred million, neighbouring float32 numbers are 8 apart, so the 1 is rounded away. Floating-point
# addition is **not associative**: a sum depends on its order. (With two numbers, the order doesn't matter.
# From three on, it does.)
#
# Blocks finish in an order that no program controls. On a GPU it depends on what else is running, and in
# `sim` on the seed. So you can test your own kernel:
#
# **Predict.** With four blocks and twenty seeds, how many *different* results, bit by bit, do dQ, dK, dV and
# dW have?


# %% tags=["uses-exercise"]
def different(**options):
    """Return how many different dQ, dK, dV and dW come out under twenty seeds, and
    whether all of them are correct."""
    wanted = by_hand(*inputs)
    runs = [
        backward(*inputs, run=functools.partial(simulated, seed=seed), **options)
        for seed in progress_bar(range(20))
    ]
    right = all(near(*pair) for run in runs for pair in zip(run, wanted))
    return [
        len({results.numpy().tobytes() for results in column}) for column in zip(*runs)
    ], right


counts, right = different()
print(
    "different dQ, dK, dV:",
    counts[:3],
    "  more than one dW:",
    counts[3] > 1,
    "  all correct:",
    right,
)

# %% [markdown]
# Every dW is correct, to about seven digits, and there are several different ones. dQ, dK and dV are always
# the same: each of their entries has one owner, which adds in a fixed order.
#
# Is it a bug? It is not a race: `sim` finds nothing. But it is a nuisance. If you train twice with the same
# seed, the two models drift apart. And a test that requires equality fails now and then.
#
# ### The reproducible way
#
# Give each block its own slot, and add up afterwards, **in a fixed order**: partial sums, and then a second
# reduction. Your kernel can do this already. Look at the index in `add_to_all`, `cuda.blockIdx.x %
# d_w.shape[0]`. If `d_w` has as many layers as there are blocks, each block has a layer to itself. (The
# atomic does no harm there, because no other block uses that layer.) The second reduction is `d_w.sum(0)` in
# `backward`.

# %% tags=["uses-exercise"]
counts, right = different(partials=True)
print("different dQ, dK, dV, dW:", counts, "  all correct:", right)

# %% [markdown]
# What does it cost? A little memory, c_q · c_k numbers per block, and one more small kernel for the sum. In
# the package it is an option, `conv_backward(…, deterministic=True)`. `kernels.conv_attention` chooses it
# when `torch.use_deterministic_algorithms(True)` is set. The next cell tries it with 30 tokens and 11 × 1
# taps, in tiles that own 12 rows: three blocks, six seeds.

# %%
q, k, v, d_o = torch.randn(4, 1, 1, 30, 4)
w = torch.randn(1, 11, 1) / 3
o, log_sum = conv_forward(q, k, v, w)
for deterministic in (False, True):
    results = set()
    for seed in progress_bar(range(6)):
        run = functools.partial(simulated, seed=seed)
        *_, d_w = conv_backward(
            q,
            k,
            v,
            w,
            o,
            log_sum,
            d_o,
            wanted=(False, False, False, True),
            deterministic=deterministic,
            run=run,
            size=32,
        )
        results.add(d_w.numpy().tobytes())
    print(
        f"the package's dW, deterministic={deterministic}: "
        f"{'always the same' if len(results) == 1 else 'more than one result'}"
    )

# %% [markdown]
# ## The ladder
#
# Both kernels together are the next rung, on the task of the backward pass. The mark for PyTorch shows autograd through plain PyTorch, which has stored its matrices in the forward pass. **Predict**: are there more transactions per useful multiply-add than in lesson 11, or fewer? (From where does `products` read q and k? And how many scores does a tile load for each one that it owns?) `___`

# %% tags=["guess"]
guess("13b ladder", transactions=...)

# %% tags=["uses-exercise"]
show_ladder("13b", queries_kernel, keys_kernel)

# %% [markdown]
# With a GPU, the next cell times your own kernel on it:

# %% tags=["gpu"]
time_rung("13b", queries_kernel, keys_kernel)

# %% [markdown]
# More, for two reasons. `products` reads q, k, v and dO from global memory for every multiply-add. And the tiles of this rung are small in the simulator: each owns 4 × 4 of its 16 × 16 scores, so most of the work goes into halos. (On a GPU the rung uses tiles of 32 × 32.) The package's kernels take the same steps with larger tiles in shared memory (lesson 13c).
#
# ## In three lines
#
# - The block of keys sums over rows, so here the halo rows must not be counted.
# - Atomics lose no update but fix no order, and floating-point addition depends on the order.
# - One slot per block and a second sum in a fixed order give the same bits every time.
#
# **You can now** write and test the backward pass of any attention that fits into tiles.
#
# **Read on:** Goldberg, *What Every Computer Scientist Should Know About Floating-Point Arithmetic* (ACM
# Computing Surveys, 1991), on sums that depend on their order. PyTorch's documentation has a note
# "Reproducibility".
#
# **Next:** [lesson 13c](13c_published_backward.ipynb) hunts for mistakes in a published backward pass, and looks
# at the package's kernels. Or go on with [lesson 14](14_decoding.ipynb), which leaves training behind and
# generates text.
