# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 08 · Memory: sectors and banks
#
# **75 minutes**, of which 5 are for the section marked *optional* · builds on lesson 03 (shared memory), lesson 05 (how a block loads a tile), lesson 06 (warps and lanes) and lesson 07 (the same kernel on a GPU). If you came here from lesson 06 directly, you can still do everything: where a kernel of lesson 05 is needed, the course supplies it
#
# You will be able to:
#
# - say, before anything runs, how many pieces of memory a warp requests, and how many passes shared memory needs to serve it;
# - write a kernel that transposes a matrix with the fewest memory transactions;
# - predict the counters that a profiler reports for a kernel.
#
# Most kernels do not wait for arithmetic. They wait for memory, and the time depends not only on how much they read, but also on *which elements the lanes of a warp access at the same moment*. Memory is read and written in [**sectors**](../docs/glossary.md) of 32 bytes, which is eight float32 numbers.
#
# In the picture, eight lanes access one number each, 32 bytes in total. In the first row the numbers are neighbours. In the second row each lane accesses every second number, and in the third every eighth. Blue numbers are accessed, and pale ones are transferred only because they are in the same sector. (The next cell only draws. Run it; you do not need to read it.)

# %% jupyter={"source_hidden": true}
import matplotlib.pyplot as plt
from course import guess
from course.figures import BLUE, ORANGE, PINK, SKY, YELLOW, show_figure


def draw_sectors(strides, numbers=64, lanes=8):
    """Draw a row of numbers for each stride, eight to a sector: those that the lanes
    access are blue, the rest of their sectors is pale."""
    figure, axes = plt.subplots(figsize=(11, 2.8))
    for row, stride in enumerate(strides):
        wanted = {lane * stride for lane in range(lanes)}
        sectors = {number // 8 for number in wanted}
        for number in range(numbers):
            colour = (
                BLUE if number in wanted else SKY if number // 8 in sectors else "white"
            )
            axes.bar(
                number + number // 8 * 0.6,
                0.7,
                bottom=-row,
                width=0.9,
                color=colour,
                edgecolor="grey",
                linewidth=0.5,
            )
        axes.text(
            -1.5, 0.35 - row, f"stride {stride}", ha="right", va="center", fontsize=12
        )
        axes.text(
            70,
            0.35 - row,
            f"{len(sectors)} sector{'s' * (len(sectors) > 1)}",
            va="center",
            fontsize=12,
        )
    axes.set(xlim=(-8, 79), ylim=(-len(strides) + 0.9, 0.9))
    axes.axis("off")
    return figure


show_figure(
    draw_sectors([1, 2, 8]),
    "three times the same 64 numbers, in 8 sectors of 8 numbers. With stride 1 the "
    "eight wanted numbers fill the first sector: 1 sector. With stride 2 they are "
    "every second number of the first two sectors: 2 sectors, half of them "
    "unused. With stride 8 they are the first number of each sector: 8 sectors.",
)

# %% [markdown]
# ## 1. Sectors
#
# When the lanes of a warp execute a load or a store together, that is one **request**. Its cost is the number of different sectors that contain the requested bytes. A warp has 32 lanes, so with float32 it requests 128 bytes, and the lowest cost is 4 sectors. An access is [**coalesced**](../docs/glossary.md) if the lanes' addresses are in as few sectors as possible.
#
# An array begins at the start of a sector. Byte `b` of it is in sector `b // 32`, rounded down.
#
# **Predict** the cost for a whole warp, if lane `l` accesses element `first + l * stride`. The first row is done.
#
# | elements of | stride | first | sectors |
# |---|---|---|---|
# | 4 bytes | 1 | 0 | 4 |
# | 4 bytes | 1 | 1 | `___` |
# | 4 bytes | 2 | 0 | `___` |
# | 4 bytes | 8 | 0 | `___` |
# | 4 bytes | 100 | 0 | `___` |
# | 4 bytes | 0 | 5 | `___` |
# | 8 bytes | 1 | 0 | `___` |

# %% tags=["guess"]
guess(
    "08 sectors",
    first_1=...,
    stride_2=...,
    stride_8=...,
    stride_100=...,
    stride_0=...,
    bytes_8=...,
)

# %% [markdown]
# ### Exercise 8.1 · sectors · one to three lines
# Write the function that fills in the table. `itemsize` is the size of one element in bytes: 1, 2, 4, 8 or 16. The stride may be negative.
#
# <details><summary>Hint 1: one lane</summary>
#
# The element of lane `l` starts at byte `(first + l * stride) * itemsize`. Because 32 is a multiple of `itemsize`, all its bytes are in one sector.
# </details>
# <details><summary>Hint 2: different ones</summary>
#
# A Python set keeps each value once: `{… for lane in range(32)}`.
# </details>


# %% tags=["exercise"]
def sectors(stride, itemsize, first=0):
    """Return how many sectors of 32 bytes a warp accesses if lane l accesses element
    first + l * stride of an array with `itemsize` bytes per element."""
    # BEGIN SOLUTION 8.1
    return len({(first + lane * stride) * itemsize // 32 for lane in range(32)})
    # END SOLUTION


# %% tags=["check"]
from course import brought, check, live, show_table

check.ex08_1(sectors)

# %% [markdown]
# ## 2. Predicted and counted
#
# The package has a kernel for this, with the guard that you know from lesson 03:

# %%
import inspect
import json
import math
from pathlib import Path

import numpy as np
import torch
from numba import cuda
from numpy import float32

import kernels
from course.check.lesson08 import counted
from kernels.cases import memory_patterns
from kernels.cases.memory_patterns import THREADS, TILE, blocks, tiles
from sim import simulate
from sim.observers import COUNTERS, DEFAULT, Trace


def body(kernel):
    """Return the source of one of the package's kernels, without its docstring."""
    before, _, after = inspect.getsource(kernel.py_func).split('"""')
    return before.rstrip() + after.rstrip()


print(body(memory_patterns.strided_copy))


# %% [markdown]
# The simulator can count sectors. Pass it the observers in `COUNTERS`, and the report shows the cost of each line.
#
# **Predict.** One block of 256 threads copies 256 numbers with stride 4. How many requests are there, loads and stores together? How many sectors? What is the smallest possible number of sectors?

# %%
x, out = np.arange(1024, dtype=float32), np.full(256, np.nan, float32)
counting = simulate(memory_patterns.strided_copy, observers=[*DEFAULT, *COUNTERS])
print(counting[1, 256](x, out, 4).counters["coalescing"])


# %% [markdown]
# 8 warps execute a load and a store each, which makes 16 requests. A load accesses 16 sectors and a store 4, so the total is 8 · 16 + 8 · 4 = 160.
#
# `counted` is a small helper of this lesson. It launches a kernel in `sim` and counts loads and stores separately, as `(requests, sectors)`. Compare your function with it:

# %% tags=["uses-exercise"]
print("stride   predicted   counted")
for stride in (0, 1, 2, 3, 4, 8, 100):
    x, out = np.zeros(256 * max(stride, 1), float32), np.zeros(256, float32)
    found = counted(memory_patterns.strided_copy, 1, 256, x, out, stride)
    requests, touched = found["load"]
    print(f"{stride:6}{sectors(stride, 4):12}{touched / requests:10.1f}")


# %% [markdown]
# With stride 3 the lanes cover 96 numbers, which are 12 sectors. From stride 8 on, each lane has a sector of its own.
#
# ## 3. Transposing a matrix
#
# To transpose a matrix means to turn its rows into columns: `out[column, row] = a[row, column]`. Attention has a transpose in QKᵀ. A matrix is stored in [**row-major**](../docs/glossary.md) order, row after row. So a step in the *last* index moves by one number, and a step in the *first* index moves by a whole row.
#
# The block is a square of 32 × 32 threads. Its threads are numbered along x first: a warp is 32 threads with the same y, and x is the lane.

# %%
print(body(memory_patterns.transpose_naive))

# %% [markdown]
# **Predict.** `cuda.grid(2)` gives x first, so `column` grows by one from lane to lane. How many sectors does a load request access, and how many a store request? Both are in one line.
#
# <details><summary>Answer</summary>
#
# The load goes along a row of `a`: 4. The store goes down a column of `out`, with a stride of one row: 32.
# </details>
#
# The report can show the cost next to the source, with the smallest possible cost in parentheses:

# %%
n = 64
a = np.random.default_rng(8).standard_normal((n, n)).astype(float32)
out = np.full((n, n), np.nan, float32)
counting = simulate(memory_patterns.transpose_naive, observers=[*DEFAULT, *COUNTERS])
counting[tiles(n, n), (TILE, TILE)](a, out).by_line()


# %% [markdown]
# 128 warps access 128 · 4 + 128 · 32 = 4608 sectors, although 1024 would be enough. It seems that either the load or the store must go down a column. That is true, but it does not have to happen in global memory. Use the idea of lesson 05: the block loads a tile into shared memory, along the rows of `a`. Then it writes the tile along the rows *of out*, and takes each number from its position in the tile.

# %%
print(body(memory_patterns.transpose_tiled))

# %% [markdown]
# Read the last line twice. The *corner* of the tile has moved from (row, column) to (column, row). Within the tile, x is still the lane and the last index of `out`. So `tile[x, y]` is the access that goes down a column.

# %%
counting = simulate(memory_patterns.transpose_tiled, observers=[*DEFAULT, *COUNTERS])
report = counting[tiles(n, n), (TILE, TILE)](a, out)
print("correct:", np.array_equal(out, a.T))
print(report.counters["coalescing"])
print(report.counters["banks"])


# %% [markdown]
# Global memory now has the lowest possible cost. The cost has moved to the last line, as the next section explains.
#
# ## 4. Banks
#
# Shared memory consists of **words** of 4 bytes, which are distributed over 32 [**banks**](../docs/glossary.md): word 0 is in bank 0, word 1 in bank 1, …, word 31 in bank 31, and word 32 is in bank 0 again. Word `w` is in bank `w % 32`.
#
# In one pass, each bank can deliver one word, to all lanes that request that word. NVIDIA's profiler calls one pass over the 32 banks a [**wavefront**](../docs/glossary.md). If lanes request two different words of one bank, the request takes two wavefronts. This is a two-way [**bank conflict**](../docs/glossary.md). The busiest bank determines the number of wavefronts.
#
# Here is an example on paper, with a GPU of 4 lanes and 4 banks, and a tile of 4 × 4 words. In the left picture a row of the tile has 4 words. In the right one it has 5, and the last word is not used. Each colour, and number, is a bank.


# %% jupyter={"source_hidden": true}
def draw_banks(widths, side=4, banks=4):
    """Draw a tile of `side` rows for each width, each word with its bank's number;
    column 0 has a black frame."""
    figure, every = plt.subplots(1, len(widths), figsize=(9, 3.6))
    colours = [YELLOW, SKY, ORANGE, PINK]
    for axes, width in zip(every, widths, strict=True):
        for row in range(side):
            for column in range(width):
                bank = (row * width + column) % banks
                unused = (
                    {"hatch": "////", "edgecolor": "white"}
                    if column >= side
                    else {"edgecolor": "grey"}
                )
                axes.bar(
                    column, 0.92, bottom=-row, width=0.92, color=colours[bank], **unused
                )
                axes.text(
                    column, 0.46 - row, bank, ha="center", va="center", fontsize=14
                )
        axes.add_patch(
            plt.Rectangle((-0.5, -side + 0.96), 1, side, fill=False, linewidth=3)
        )
        axes.set_title(f"rows of {width} words", fontsize=13)
        axes.set(xlim=(-0.7, max(widths) - 0.3), ylim=(-side + 0.8, 1.1))
        axes.axis("off")
    return figure


show_figure(
    draw_banks([4, 5]),
    "two tiles of 4 rows. With rows of 4 words, each row goes through the banks 0, 1, "
    "2, 3, so the four words of column 0, in a black frame, are all in bank 0. "
    "With rows of 5 words, the rows begin with the banks 0, 1, 2, 3, so column 0 has "
    "one word in each bank. The fifth word of a row is hatched: it is not used.",
)

# %% [markdown]
# **Predict.** On the paper GPU, how many wavefronts does it take when the 4 lanes request a row of the tile? And when they request a column? And in the right picture?
#
# <details><summary>Answer</summary>
#
# A row takes 1 wavefront in both pictures. A column takes 4 wavefronts on the left,
# because one bank has all four words. On the right it takes 1: the words 0, 5, 10, 15
# are in the banks 0, 1, 2, 3. The unused word at the end of each row shifts the next
# row by one bank. This is called **padding**.
# </details>
#
# ### Exercise 8.2 · wavefronts · one to four lines
# Now take 32 banks again. Write `wavefronts(addresses)`, which returns how many wavefronts one request takes. `addresses` (a list or NumPy array, not empty) has the byte address of the word that each active lane requests, a multiple of 4.
#
# <details><summary>Hint 1: which words?</summary>
#
# Two lanes that request the same word are served together, so make a set of the words, `address // 4`.
# </details>
# <details><summary>Hint 2: the busiest bank</summary>
#
# Make a list with the bank of each *different* word. The answer is how often the most frequent bank occurs in it; use `list.count`.
# </details>


# %% tags=["exercise"]
def wavefronts(addresses):
    """Return how many wavefronts shared memory needs to serve a warp whose lanes
    request the words at these byte addresses."""
    # BEGIN SOLUTION 8.2
    banks = [word % 32 for word in {address // 4 for address in addresses}]
    return max(banks.count(bank) for bank in banks)
    # END SOLUTION


# %% tags=["check"]
check.ex08_2(wavefronts)


# %% [markdown]
# With this function you can compare paddings. Lane `l` requests word `l * width`, the first column of a tile whose rows have `width` words.
#
# **Predict.** Padding by one word gives rows of 33. How many wavefronts do you get with 34? And with 36, where every row is aligned to 16 bytes?

# %% tags=["uses-exercise"]
for width in (32, 33, 34, 36, 40, 47, 48):
    found = wavefronts([4 * lane * width for lane in range(32)])
    print(f"rows of {width} words: {found:2} wavefronts for a column")


# %% [markdown]
# Any odd width works. With 34, every other bank is idle, so two lanes share each of the remaining ones. With 36, only every fourth bank is used.
#
# ### Exercise 8.3 · transpose · about nine lines
# Write a transpose with the lowest cost everywhere:
#
# - 4 sectors per request to global memory;
# - one wavefront per request to shared memory, so no bank conflicts;
# - one tile of float32, with 32 rows of at most 36 words, and one barrier;
# - correct for a matrix of any shape.
#
# The grid is `tiles(rows, columns)`, with a block of 32 × 32 threads for each tile of 32 × 32. The shape of a shared array must be a compile-time constant: a literal or a global name, but not an expression such as `TILE + 1`.
#
# <details><summary>Hint 1: where to begin</summary>
#
# Begin with `transpose_tiled`, printed above. It is correct, and only one number in it has to change.
# </details>
# <details><summary>Hint 2: which number?</summary>
#
# `cuda.shared.array((rows of the tile, words in a row), float32)`. The rows have to become longer.
# </details>


# %% tags=["exercise"]
def transpose(a, out):
    """Transpose a (rows, columns) into out (columns, rows), float32, with a block of
    32 x 32 threads for each tile."""
    # BEGIN SOLUTION 8.3
    tile = cuda.shared.array((TILE, 33), float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * TILE, cuda.blockIdx.x * TILE
    if row + y < a.shape[0] and column + x < a.shape[1]:
        tile[y, x] = a[row + y, column + x]
    cuda.syncthreads()
    if row + x < a.shape[0] and column + y < a.shape[1]:
        out[column + y, row + x] = tile[x, y]
    # END SOLUTION


# %% tags=["check"]
check.ex08_3(transpose)

# %% [markdown]
# **A question about it.** What happens with the padding on the other side: `cuda.shared.array((33, TILE), float32)`?
#
# - ( ) `sim` finds an access out of bounds
# - ( ) a wrong output
# - ( ) the correct output, and 32 wavefronts as before
#
# <details><summary>Answer</summary>
#
# The correct output, and 32 wavefronts: the tile has an additional row that is not used, and the other rows are as long as before. A test of the values cannot notice this, so the check
# looks at the counters.
# </details>
#
# The next pictures show all requests of one warp: from `a`, into the tile, from the tile, into `out`. First `transpose_tiled`, then your own kernel. A row is a lane, and a column is a bank of shared memory or a sector of global memory. Move the slider from request to request, and compare the third one.


# %%
def look(kernel):
    """Show every request of warp 1, for one tile."""
    tile, out = a[:TILE, :TILE].copy(), np.empty((TILE, TILE), float32)
    launch = simulate(kernel, observers=[*DEFAULT, Trace])[1, (TILE, TILE)]
    return launch(tile, out).warp_grid(warp=1)


look(memory_patterns.transpose_tiled)

# %% tags=["uses-exercise"]
look(transpose)

# %% [markdown]
# ## 5. Bug hunt: each thread loads a row
#
# In lesson 05, 32 threads loaded a tile together, and thread `t` loaded the elements `t`, `t + 32`, `t + 64`, … That is hard to read, so here is the simple way. There are 32 keys of 32 numbers, and each thread loads its own key!
#
# **Guess before you run.** The kernel is correct, and `sim` finds no bug. In each iteration of the loop, how many sectors does the load access, and how many wavefronts does the store into `tile` take?
#
# - ( ) 4 sectors, 1 wavefront
# - ( ) 32 sectors, 1 wavefront
# - ( ) 32 sectors, 32 wavefronts


# %%
def load_by_keys(k, out):
    """Copy k (32, 32) to out through a tile in shared memory, which a flash kernel
    would use in between; each thread loads one key."""
    tile = cuda.shared.array((32, 32), float32)
    t = cuda.threadIdx.x
    for c in range(32):
        tile[t, c] = k[t, c]
    cuda.syncthreads()
    for e in range(t, 1024, 32):
        out[e // 32, e % 32] = tile[e // 32, e % 32]


def load_together(k, out):
    """Do the same with the loads of lesson 05."""
    tile = cuda.shared.array((32, 32), float32)
    t = cuda.threadIdx.x
    for e in range(t, 1024, 32):
        tile[e // 32, e % 32] = k[e // 32, e % 32]
    cuda.syncthreads()
    for e in range(t, 1024, 32):
        out[e // 32, e % 32] = tile[e // 32, e % 32]


for kernel in (load_by_keys, load_together):
    k, out = a[:32, :32].copy(), np.full((32, 32), np.nan, float32)
    found = counted(kernel, 1, 32, k, out)
    requests, touched = found["load"]
    _, taken = found["shared store"]
    print(
        f"{kernel.__name__:13} correct: {np.array_equal(k, out)}   per request: "
        f"{touched // requests:2} sectors, {taken // requests:2} wavefronts to store"
    )

# %% [markdown]
# Both costs are at their maximum, and for the same reason: consecutive lanes must access consecutive addresses, and here they are a whole row apart. Within one thread, `tile[t, c]` with a growing `c` looks like the efficient order, and on a CPU it is. On a GPU the lanes access memory at the same moment, so their addresses are what matters.
#
# A GPU's cache reduces the first cost. The other seven numbers of each sector are used in the next seven iterations, and may still be in the cache. But the requests still take their time, and nothing reduces the bank conflicts.
#
# ### Your own kernel of lesson 05
#
# `brought` loads a function from your saved notebook of another lesson. Here it loads your flash kernel. We launch it with one block of 32 queries and 32 keys, and rows of d = 32 numbers.
#
# **Predict.** The tiles are loaded together, as they should be. But in `visit` each lane reads its *own* row of the Q tile and of the O tile: element `row * d + c`. What is the stride between lanes, and how many wavefronts does it take?

# %%
flash_kernel = brought("05_flash_kernel", "flash_kernel")


def banks_of_flash(d, n=32):
    """Return the requests to shared memory and their wavefronts, for one block of
    32 queries and keys."""
    given = np.random.default_rng(8).standard_normal((4, n * d)).astype(float32)
    launch = simulate(flash_kernel, observers=[*DEFAULT, *COUNTERS])
    report = launch[1, 32, 0, 4 * 4 * 32 * d](*given, n, d, 32, float32(d**-0.5))
    return report.counters["banks"]


for d in (32, 33):
    banks = banks_of_flash(d)
    asked, taken = banks["shared_requests"], banks["wavefronts"]
    print(f"rows of {d}: {asked:,} requests, {taken:,} wavefronts")


# %% [markdown]
# With d = 32 the stride is 32 words, so all lanes access the same bank, and each request takes 32 wavefronts. (These are the numbers for the solution's kernel. Yours may have slightly more or fewer requests.) The fix is that of the transpose: rows that are one element longer. Here we passed matrices that are one column wider than necessary; in q and k, this could be a column of zeros. Inside the kernel you would pad the tile's rows to `d + 1`, and `load_tile` would have to know that. The package's kernel does something else, and keeps these two rows in registers.
#
# ## 6. Five patterns: predicted, counted, measured
#
# ### Exercise 8.4 · predictions · twenty numbers
# Predict four numbers for each of the five kernels of `kernels/cases/memory_patterns.py`:
#
# | sectors per load request | sectors per store request | wavefronts per shared load | wavefronts per shared store |
# |---|---|---|---|
#
# - Everything is float32. Write 0 where there is no such access.
# - The strided copy has stride 8. The matrices have a multiple of 32 rows and columns.
# - You may use your functions: `sectors(1, 4)` is as good as 4.
#
# Three of the kernels are printed above. `copy` is `out[i] = x[i]`, and `transpose_padded` is like your own.
#
# <details><summary>Hint</summary>
#
# For each access ask: by how many elements does the address change from one lane to the next? Then use `sectors(that, 4)` for global memory, or `wavefronts([4 * lane * that for lane in range(32)])` for shared memory.
# </details>


# %% tags=["exercise"]
def predictions():
    """Return {name: (sectors to load, sectors to store, wavefronts to load from shared
    memory, wavefronts to store to it)}, for one request of a full warp."""
    # BEGIN SOLUTION 8.4
    return {
        "copy": (4, 4, 0, 0),
        "strided_copy": (32, 4, 0, 0),
        "transpose_naive": (4, 32, 0, 0),
        "transpose_tiled": (4, 4, 32, 1),
        "transpose_padded": (4, 4, 1, 1),
    }
    # END SOLUTION


# %% tags=["check"]
check.ex08_4(predictions)

# %% [markdown]
# Nothing has been measured so far. A real GPU counts too, and NVIDIA's profiler `ncu` (Nsight Compute) reads its counters. The following numbers were recorded on a GPU and are stored in `kernels/data/lesson08.json`. The five kernels ran on a matrix of 128 × 128 numbers (the copies on equally many in a row) for counting, and then on 16384 × 16384 numbers, 1 GiB, for the time.

# %% jupyter={"source_hidden": true}
FILE = Path(kernels.__file__).parent / "data" / "lesson08.json"
RECORDED = json.loads(FILE.read_text(encoding="utf-8"))
print(
    f"recorded {RECORDED['date']} on one {RECORDED['gpu']}, driver {RECORDED['driver']}"
)

# %% [markdown]
# **Predict**, for 128 × 128 numbers: how many load requests do the warps make? `___` How many sectors does `transpose_naive` store to? `___` (Both follow from your table.)

# %% tags=["guess"]
guess("08 transpose", load_requests=..., stored_sectors=...)


# %% jupyter={"source_hidden": true}
def launches():
    """Return {pattern: (grid, block, arguments ...)} for the counted size."""
    n, stride = RECORDED["counted"]["n"], RECORDED["counted"]["stride"]
    matrix = np.random.default_rng(8).standard_normal((n, n)).astype(float32)
    flat, out = np.zeros(n * n * stride, float32), np.empty(n * n, float32)
    square = tiles(n, n), (TILE, TILE), matrix, np.empty((n, n), float32)
    return {
        "copy": (blocks(n * n), THREADS, flat[: n * n], out),
        "strided_copy": (blocks(n * n), THREADS, flat, out, stride),
        "transpose_naive": square,
        "transpose_tiled": square,
        "transpose_padded": square,
    }


simulated = {
    name: counted(getattr(memory_patterns, name), *launch)
    for name, launch in launches().items()
}


# %% tags=["uses-exercise"]
rows = []
for name, predicted in predictions().items():
    for cost, (access, (requests, pieces)) in zip(predicted, simulated[name].items()):
        if requests:
            measured = RECORDED["counted"]["patterns"][name][access]
            same = [requests, pieces] == measured == [requests, cost * requests]
            rows.append([name, access, f"{cost:g}", requests, pieces, *measured, same])
show_table(
    ["pattern", "access", "predicted per request"]
    + ["requests counted", "pieces counted"]
    + ["requests on the GPU", "pieces on the GPU", "the same"],
    *rows,
)


# %% [markdown]
# Pieces are sectors for global memory and wavefronts for shared memory. Three independent counts agree: your formula, the simulator access by access, and the GPU's counters while the kernel ran.
#
# How much time does it cost? The next table is for a 16384 × 16384 matrix; "requested"
# bytes are the number of sectors times 32. **DRAM** is the GPU's main memory. Between
# DRAM and the warps there are caches. If a sector is requested twice within a short
# time, a cache can deliver it the second time. For a store, a cache can wait until the
# rest of the sector has been written.

# %% tags=["uses-exercise"]
GiB = 2**30
requests = RECORDED["timed"]["n"] ** 2 // 32
timed = RECORDED["timed"]["patterns"]
rows = []
for name, predicted in predictions().items():
    load, store = (cost * requests * 32 / GiB for cost in predicted[:2])
    measured, copy = timed[name], timed["copy"]["microseconds"]
    reads = measured["dram_read_bytes"] / GiB
    writes = measured["dram_write_bytes"] / GiB
    gibibytes = [f"{amount:.1f}" for amount in (load, reads, store, writes)]
    time = measured["microseconds"]
    rows.append([name, *gibibytes, f"{time:.0f}", f"{time / copy:.2f}"])
show_table(
    ["pattern", "GiB load, requested", "from DRAM", "GiB store, requested", "to DRAM"]
    + ["microseconds", "times copy"],
    *rows,
)


# %% jupyter={"source_hidden": true}
def rate(name):
    """Return the bytes per second between a timed pattern and DRAM, in TB/s."""
    measured = timed[name]
    moved = measured["dram_read_bytes"] + measured["dram_write_bytes"]
    return moved / measured["microseconds"] / 1e6


def difference(slow, fast):
    """Return by how many milliseconds one timed pattern is slower than another."""
    return (timed[slow]["microseconds"] - timed[fast]["microseconds"]) / 1000


timed = RECORDED["timed"]["patterns"]
print(f"copy:          {rate('copy'):.1f} TB/s to and from DRAM, of at most 4.8")
print(f"strided_copy:  {rate('strided_copy'):.1f} TB/s")
conflicts = difference("transpose_tiled", "transpose_padded")
print(f"bank conflicts of transpose_tiled: {conflicts:.1f} milliseconds")


# %% [markdown]
# All five move the same numbers, 1 GiB in and 1 GiB out. Compare the times with your table:
#
# - `copy` has the lowest cost in our table, and still reaches only 56 % of the rate that NVIDIA states for an H200, 4.8 TB/s. So the number of sectors is not everything. The rate also depends on how many bytes are requested at the same time, and here each thread requests only 4 bytes. (The plain copy of lesson 02, by PyTorch, reaches 4.3 TB/s. [Lesson 08b](08b_roofline.ipynb) looks at this.)
# - `strided_copy` loads eight times as much from DRAM, close to the maximum rate. So it cannot become much faster, except with a smaller stride.
# - `transpose_naive` moves no more to and from DRAM than the copy, because the caches have combined the stores to each sector. But each sector of `out` is requested eight times, once for each of its numbers, and the kernel takes five times as long as the copy.
# - `transpose_tiled` and `transpose_padded` differ only in their bank conflicts.
# - `transpose_padded` has the lowest cost everywhere, and still takes almost twice as long as the copy. What else is different? Its blocks have 1024 threads, so two of them fill a [**streaming multiprocessor**](../docs/glossary.md) (one of the GPU's 132 processors, each of which runs several blocks), and at `syncthreads` all threads of a block wait for the last one. These counters do not show how much time the waiting takes.
#
# ### Where the rule ends (optional)
#
# The GPU also counted the wavefronts at the large size:

# %% tags=["uses-exercise"]
for name in ("transpose_tiled", "transpose_padded"):
    expected = [cost * requests for cost in predictions()[name][2:]]
    counts = timed[name]["shared_turns"]
    load, store = (found / wanted - 1 for found, wanted in zip(counts, expected))
    print(
        f"{name:16}  wavefronts counted in addition to those predicted: "
        f"{load:6.1%} to load, {store:6.1%} to store"
    )


# %% [markdown]
# With 128 × 128 numbers there was not a single wavefront more than predicted. With 16384 × 16384, many blocks are on each multiprocessor at the same time, and the GPU counts more than our rule predicts, even for the padded tile, which has no conflicts within a warp. So some additional wavefronts occur only when many warps use shared memory at the same time. Our rule and the simulator do not include them. (The number of sectors is exactly as predicted.)
#
# ## Validate
#
# Compare your predictions with the simulator's counts, and your transpose with NumPy and the package's. The first cell defines the comparisons, the second prints the table.


# %%
def validate(stage, against, agrees):
    """Print one row of the table."""
    verdict = "equal       ✓" if agrees else "DIFFERENT   ✗"
    print(f"{stage:32}  {against:34}  {verdict}")


@cuda.jit
def fetch(words, out):
    """Load the word of shared memory whose index is in `words`, in each lane."""
    s = cuda.shared.array(4096, float32)
    for e in range(cuda.threadIdx.x, 4096, 32):
        s[e] = 0
    cuda.syncthreads()
    out[cuda.threadIdx.x] = s[words[cuda.threadIdx.x]]


def wavefronts_counted(words):
    """Return the simulator's count for 32 lanes that request these words."""
    return counted(fetch, 1, 32, words, np.empty(32, float32))["shared load"][1]


def sectors_counted(stride):
    """Return the simulator's count for the loads of one warp."""
    x, out = np.zeros(32 * stride, float32), np.empty(32, float32)
    return counted(memory_patterns.strided_copy, 1, 32, x, out, stride)["load"][1]


# %% tags=["uses-exercise"]
numbers = np.random.default_rng(8)
strides, wanted = range(1, 40), [numbers.integers(0, 4096, 32) for _ in range(20)]
predicted = [sectors(stride, 4) for stride in strides]
print(f"{'stage':32}  {'against':34}")
agree = predicted == [sectors_counted(stride) for stride in strides]
validate("sectors, 39 strides", "the simulator's count", agree)
predicted = [wavefronts(4 * words) for words in wanted]
agree = predicted == [wavefronts_counted(words) for words in wanted]
validate("wavefronts, 20 x 32 random words", "the simulator's count", agree)

big = numbers.standard_normal((75, 130)).astype(float32)
mine, theirs = (np.full((130, 75), np.nan, float32) for _ in range(2))
square = tiles(75, 130), (TILE, TILE), big
my_cost = counted(transpose, *square, mine)
their_cost = counted(memory_patterns.transpose_padded, *square, theirs)
validate("transpose, 75 x 130", "numpy", np.array_equal(mine, big.T))
package = "the package's transpose_padded"
validate("transpose, its cost", package, my_cost == their_cost)
on_gpu = f"the counters of an {RECORDED['gpu'].split()[-1]}"
for name, counts in simulated.items():
    agree = {k: list(v) for k, v in counts.items()}
    agree = agree == RECORDED["counted"]["patterns"][name]
    validate(f"{name}, counts", on_gpu, agree)


# %% [markdown]
# ### On a real GPU, if there is one
#
# The last cell times the five patterns on your own GPU, with your own transpose as the sixth. (Without a GPU it shows what ours printed.) It uses 8192 × 8192 numbers, so 256 MiB in and out; the strided copy reads from 2 GiB. To read the counters of your own GPU, and not only times, you need `ncu`. It comes with the CUDA toolkit, and `python -m kernels.bench.compare --ncu` runs it.


# %% tags=["gpu", "uses-exercise"]
def microseconds(kernel, configuration, *arguments, times=20):
    """Return the mean time of a launch on the GPU; arrays are tensors of PyTorch."""
    arguments = [
        cuda.as_cuda_array(argument) if isinstance(argument, torch.Tensor) else argument
        for argument in arguments
    ]
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    kernel[configuration](*arguments)  # compiles
    start.record()
    for _ in range(times):
        kernel[configuration](*arguments)
    end.record()
    end.synchronize()
    return 1000 * start.elapsed_time(end) / times


@live
def patterns_live():
    """Time the five patterns and your transpose."""
    n = 8192
    long = torch.rand(8 * n * n, device="cuda")
    a, out = long[: n * n].view(n, n), torch.full((n, n), math.nan, device="cuda")
    flat, square = (blocks(n * n), THREADS), (tiles(n, n), (TILE, TILE))
    mine = transpose if hasattr(transpose, "py_func") else cuda.jit(transpose)
    launches = {
        "copy": (memory_patterns.copy, flat, long[: n * n], out.view(-1)),
        "strided_copy": (memory_patterns.strided_copy, flat, long, out.view(-1), 8),
        "transpose_naive": (memory_patterns.transpose_naive, square, a, out),
        "transpose_tiled": (memory_patterns.transpose_tiled, square, a, out),
        "transpose_padded": (memory_patterns.transpose_padded, square, a, out),
        "your transpose": (mine, square, a, out),
    }
    times = {name: microseconds(*launch) for name, launch in launches.items()}
    print("your transpose is right:", torch.equal(out, a.T))
    for name, time in times.items():
        moved = f"{8 * n * n / time / 1e6:6.2f} TB/s of numbers that were asked for"
        print(f"{name:16}  {time:8.0f} microseconds   {moved}")


# %% [markdown]
# ## In three lines
# - Global memory is accessed in sectors of 32 bytes: 4 for 32 neighbouring float32, and up to 32 if the lanes are far apart. Consecutive lanes should access consecutive elements.
# - Shared memory has 32 banks, and a request takes one or more wavefronts. A column of a tile takes 1 wavefront if its rows have an odd number of words, and 32 if they have 32.
# - Your formula, the simulator and the GPU's counters agree, so you can predict the cost of an index before you run anything.
#
# **You can now** look at an index and say what it costs, and write a transpose that costs as little as possible.
#
# **Read on:** Mark Harris, *An Efficient Matrix Transpose in CUDA C/C++* (NVIDIA Developer Blog, 2013) · NVIDIA, *CUDA C++ Best Practices Guide*, section "Memory Optimizations" (coalesced access, shared memory and banks) · NVIDIA, *Nsight Compute* documentation, "Profiling Guide".
#
# **Next:** [lesson 08b](08b_roofline.ipynb) asks how many threads fit on a GPU at once, and how fast a kernel can be at best.
