# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 08 · Memory
#
# **100 minutes**, and 20 for the two parts marked *optional* · builds on lesson 03 (shared memory), lesson 05 (how a block loads a tile), lesson 06 (warps and lanes) and lesson 07 (the same kernel on a GPU)
#
# You will be able to:
#
# - say, before anything runs, how many pieces of memory a warp asks for, and how often shared memory has to serve it;
# - write a kernel that turns a matrix on its side at the lowest possible price;
# - say how fast a kernel can be at best; and, in an optional part, how many threads fit on a GPU at once.
#
# Most kernels do not wait for arithmetic. They wait for memory. How long depends on how much they read, and also on *which numbers the lanes
# of a warp want at the same moment*. For memory hands out nothing smaller than a **sector**, 32 bytes that lie side by side: eight float32 numbers.
#
# In the picture eight lanes want one number each, 32 bytes in all. In the first row they are neighbours; in the second each lane wants
# every second number; in the third every eighth. Blue is what they want, pale is what comes along because it is in the same sector. (The next cell only draws: run it,
# there is no need to read it.)

# %% jupyter={"source_hidden": true}
import matplotlib.pyplot as plt
from course.figures import BLUE, GREEN, ORANGE, PINK, SKY, YELLOW, show_figure


def draw_sectors(strides, numbers=64, lanes=8):
    """A row of numbers for each stride, eight to a sector:
    those that the lanes want are blue, the rest of their sectors is pale."""
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
    "every second number of the first two sectors: 2 sectors, half of which nobody "
    "wanted. With stride 8 they are the first number of each sector: 8 sectors.",
)

# %% [markdown]
# ## 1. Sectors
#
# When the lanes of a warp come to a load (or a store) they do it together, and that is one **request**. Its price is the number of different sectors in which
# the wanted bytes lie. A warp has 32 lanes, so with float32 it wants 128 bytes, and the lowest price is 4 sectors. That is what **coalesced** means: the lanes'
# addresses fall into as few sectors as possible.
#
# An array begins at the start of a sector. Byte `b` of it is in sector `b // 32`, rounded down.
#
# **Predict** the price for a whole warp, lane `l` wanting number `first + l * stride`. The first is done.
#
# | numbers of | stride | first | sectors |
# |---|---|---|---|
# | 4 bytes | 1 | 0 | 4 |
# | 4 bytes | 1 | 1 | `___` |
# | 4 bytes | 2 | 0 | `___` |
# | 4 bytes | 8 | 0 | `___` |
# | 4 bytes | 100 | 0 | `___` |
# | 4 bytes | 0 | 5 | `___` |
# | 8 bytes | 1 | 0 | `___` |
#
# <details><summary>Answer</summary>
#
# 5: the 128 bytes begin at byte 4, so they need the last 28 bytes of sector 0, all of 1, 2, 3, and 4 bytes of sector 4. Then 8; 32; still 32, as no lane can want more
# than one sector; 1, as all lanes want the same number; and 8.
# </details>
#
# ### Exercise 8.1 · sectors · one to three lines
# Write the function that fills in the table. `itemsize` is the size of one number in bytes: 1, 2, 4, 8 or 16. The stride may be negative.
#
# <details><summary>Hint 1: one lane</summary>
#
# The number of lane `l` begins at byte `(first + l * stride) * itemsize`. As 32 can be divided by `itemsize`, all its bytes are in one sector.
# </details>
# <details><summary>Hint 2: different ones</summary>
#
# A Python set keeps each value once: `{… for lane in range(32)}`.
# </details>


# %% tags=["exercise"]
def sectors(stride, itemsize, first=0):
    """How many sectors of 32 bytes a warp touches
    if lane l wants element first + l * stride of an array, `itemsize` bytes each."""
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
from typing import NamedTuple

import numpy as np
import torch
from numba import cuda
from numpy import float32

import kernels
from course.check.lesson08 import counted
from kernels.cases import memory_patterns
from kernels.cases.memory_patterns import THREADS, TILE, blocks, tiles
from sim import DeviceSpec, simulate
from sim.observers import COUNTERS, DEFAULT, Trace
from sim.viz import Scene


def body(kernel):
    """The source of one of the package's kernels, without the text that explains it."""
    before, _, after = inspect.getsource(kernel.py_func).split('"""')
    return before.rstrip() + after.rstrip()


print(body(memory_patterns.strided_copy))

# %% [markdown]
# The simulator counts sectors if it is asked to. `COUNTERS` are its tools that count; the report then knows the price of each line.
#
# **Predict.** 256 numbers are copied with stride 4, by one block of 256 threads. How many requests are there (loads and stores together)? How many sectors?
# What would be the fewest?

# %%
x, out = np.arange(1024, dtype=float32), np.full(256, np.nan, float32)
report = simulate(memory_patterns.strided_copy, observers=[*DEFAULT, *COUNTERS])[
    1, 256
](x, out, 4)
print(report.counters["coalescing"])

# %% [markdown]
# 8 warps, a load and a store each: 16 requests. A load touches 16 sectors and a store 4, so 8 · 16 + 8 · 4 = 160.
#
# `counted` is a small helper of this lesson: it launches a kernel in `sim` and tells loads from stores, as `(requests, sectors)`. Your function against it:

# %% tags=["uses-exercise"]
print("stride   predicted   counted")
for stride in (0, 1, 2, 3, 4, 8, 100):
    x, out = np.zeros(256 * max(stride, 1), float32), np.zeros(256, float32)
    requests, found = counted(memory_patterns.strided_copy, 1, 256, x, out, stride)[
        "load"
    ]
    print(f"{stride:6}{sectors(stride, 4):12}{found / requests:10.1f}")

# %% [markdown]
# With stride 3 the lanes spread over 96 numbers, which are 12 sectors. From stride 8 on each lane has a sector of its own.
#
# ## 3. A matrix on its side
#
# To transpose a matrix means to turn its rows into columns: `out[column, row] = a[row, column]`. Attention has a transpose in it, QKᵀ. A matrix lies in memory row by row, so one
# step in the *last* index is one number further, and one step in the *first* index is a whole row further.
#
# The block is a square of 32 × 32 threads. Its threads are counted along x first: a warp is 32 threads with the same y, and x is the lane.

# %%
print(body(memory_patterns.transpose_naive))

# %% [markdown]
# **Predict.** `cuda.grid(2)` gives x first, so `column` grows by one from lane to lane. How many sectors does a request to load touch, and how many a request to store? Both stand on one line.
#
# <details><summary>Answer</summary>
#
# The load goes along a row of `a`: 4. The store goes down a column of `out`, with a stride of one row: 32.
# </details>
#
# The report can show the price beside the source, with the fewest possible in parentheses:

# %%
n = 64
a, out = (
    np.random.default_rng(8).standard_normal((n, n)).astype(float32),
    np.full((n, n), np.nan, float32),
)
report = simulate(memory_patterns.transpose_naive, observers=[*DEFAULT, *COUNTERS])[
    tiles(n, n), (TILE, TILE)
](a, out)
report.by_line()

# %% [markdown]
# 128 warps: 128 · 4 + 128 · 32 = 4608 sectors where 1024 would do. Either the load or the store must go down a column, one would think. But it need not
# happen in global memory. Lesson 05's idea helps: the block brings a tile into shared memory, along the rows. Then it writes the tile out, along the rows *of out*, and takes
# each number from where it stands in the tile.

# %%
print(body(memory_patterns.transpose_tiled))

# %% [markdown]
# Read the last line twice. The *corner* of the tile has moved from (row, column) to (column, row). Within the tile x is still the lane, and the last index of `out`. So it is
# `tile[x, y]` that goes down a column.

# %%
report = simulate(memory_patterns.transpose_tiled, observers=[*DEFAULT, *COUNTERS])[
    tiles(n, n), (TILE, TILE)
](a, out)
print("right:", np.array_equal(out, a.T))
print(report.counters["coalescing"])
print(report.counters["banks"])

# %% [markdown]
# Global memory is as cheap as can be. The price has moved to the last line: that is the next section.
#
# ## 4. Banks
#
# Shared memory is cut into **words** of 4 bytes, and dealt out to 32 **banks** like cards: word 0 to bank 0, word 1 to bank 1, …, word 31 to bank 31, word 32 to bank 0 again. Word `w` is in
# bank `w % 32`. In one **turn** each bank can give one word, to all lanes that want that very word. If lanes want two different words of one bank, it takes
# two turns; this is a two-way **bank conflict**. The busiest bank decides. (NVIDIA's profiler and the simulator's tables call a turn a *wavefront*.)
#
# On paper, with a GPU of 4 lanes and 4 banks, and a tile of 4 × 4 words. In the left picture a row of the tile has 4 words. In the right one it has 5, the last of which nobody uses. Each
# colour, and number, is a bank.


# %% jupyter={"source_hidden": true}
def draw_banks(widths, side=4, banks=4):
    """For each width a tile of `side` rows, each word with the number of its bank;
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
    "one word in each bank. The fifth word of a row is hatched: nobody uses it.",
)

# %% [markdown]
# **Predict.** How many turns does it take, on the paper GPU, when the 4 lanes want a row of the tile? When they want a column? And in the right picture?
#
# <details><summary>Answer</summary>
#
# A row: 1 turn, left and right. A column: 4 turns on the left, as one bank has all four words. On the right 1 turn: the words 0, 5, 10, 15 are in the banks 0, 1, 2, 3. The unused
# word at the end of each row shifts the next row by one bank. This is **padding**.
# </details>
#
# ### Exercise 8.2 · turns · one to four lines
# Back to 32 banks. Write `turns(addresses)`: how many turns one request takes. `addresses` is a list, or an array of NumPy: where the lanes' words begin, in *bytes* and so multiples of 4; one for each lane that takes part, at least one.
#
# <details><summary>Hint 1: which words?</summary>
#
# Two lanes that want the same word are served together: make a set of the words, `address // 4`.
# </details>
# <details><summary>Hint 2: the busiest bank</summary>
#
# Make a list with the bank of each *different* word. The answer is how often the most frequent bank stands in it; `list.count` counts.
# </details>


# %% tags=["exercise"]
def turns(addresses):
    """How many turns shared memory takes to serve a warp whose lanes want the words at
    these byte addresses."""
    # BEGIN SOLUTION 8.2
    banks = [word % 32 for word in {address // 4 for address in addresses}]
    return max(banks.count(bank) for bank in banks)
    # END SOLUTION


# %% tags=["check"]
check.ex08_2(turns)

# %% [markdown]
# With it you can try out paddings. Lane `l` wants word `l * width`, the first column of a tile whose rows have `width` words.
#
# **Predict.** Padding by one word makes 33. And padding by two, to 34? Or by four, to 36, so that each row begins at a multiple of 16 bytes. How many turns?

# %% tags=["uses-exercise"]
for width in (32, 33, 34, 36, 40, 47, 48):
    print(
        f"rows of {width} words: "
        f"{turns([4 * lane * width for lane in range(32)]):2} turns for a column"
    )

# %% [markdown]
# Any odd width will do. 34 leaves every other bank idle, so two lanes meet in each of the rest; with 36 it is every fourth bank.
#
# ### Exercise 8.3 · transpose · about nine lines
# Write the transpose that pays the lowest price everywhere: 4 sectors per request, and one turn for each request to shared memory: no bank conflict, and one tile of float32, of 32 rows of at most 36 words. It must be right for a matrix of any shape. The grid is
# `tiles(rows, columns)`, a block for each tile of 32 × 32; the threads of a block are 32 × 32 as well. Write the shape of a shared array in plain numbers or
# names of numbers: Numba must know it when it compiles, and takes no sums there.
#
# <details><summary>Hint 1: where to begin</summary>
#
# Begin with `transpose_tiled`, printed above. It is right, and one number in it is to blame.
# </details>
# <details><summary>Hint 2: which number?</summary>
#
# `cuda.shared.array((rows of the tile, words in a row), float32)`. It is the rows that have to be longer.
# </details>


# %% tags=["exercise"]
def transpose(a, out):
    """out (columns, rows) = a (rows, columns) transposed, float32;
    a block of 32 x 32 threads for each tile."""
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
# - ( ) the right output, and 32 turns as before
#
# <details><summary>Answer</summary>
#
# The right output, and 32 turns: the tile has got a row that nobody uses, and the other rows are as long as they were. No test of the values can see it. That is why the check
# looks at the counters.
# </details>
#
# Here is everything that one warp asks of memory: from `a`, into the tile, from the tile, into `out`. First in `transpose_tiled`, then in your own kernel. A row is a lane; a column is a bank of shared
# memory or a sector of global memory. The slider goes from request to request; the third is the one to compare.


# %%
def look(kernel):
    """Every request of warp 1, for one tile."""
    tile, out = a[:TILE, :TILE].copy(), np.empty((TILE, TILE), float32)
    launch = simulate(kernel, observers=[*DEFAULT, Trace])[1, (TILE, TILE)]
    return launch(tile, out).warp_grid(warp=1)


look(memory_patterns.transpose_tiled)

# %% tags=["uses-exercise"]
look(transpose)

# %% [markdown]
# ## 5. Bug hunt: everybody fetches a row
#
# Lesson 05 had 32 threads load a tile together, thread `t` the numbers `t`, `t + 32`, `t + 64`, … That is hard to read, so here is the simple way. 32 keys of 32 numbers: let each thread fetch its
# own key!
#
# **Guess before you run.** It is right, and `sim` finds nothing. In each turn of the loop, how many sectors does the load touch, and how many turns does the store into `tile` take?
#
# - ( ) 4 sectors, 1 turn
# - ( ) 32 sectors, 1 turn
# - ( ) 32 sectors, 32 turns


# %%
def load_by_keys(k, out):
    """out = k (32, 32), by way of a tile in shared memory,
    which a flash kernel would now use; or so it was meant."""
    tile = cuda.shared.array((32, 32), float32)
    t = cuda.threadIdx.x
    for c in range(32):
        tile[t, c] = k[t, c]
    cuda.syncthreads()
    for e in range(t, 1024, 32):
        out[e // 32, e % 32] = tile[e // 32, e % 32]


def load_together(k, out):
    """The same as in lesson 05."""
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
        f"{kernel.__name__:13} right: {np.array_equal(k, out)}   a request: "
        f"{touched // requests:2} sectors, {taken // requests:2} turns to store"
    )

# %% [markdown]
# Both prices at once, and for the same reason: when a lane grows by one, the address must grow by one *number*, not by one row. In one thread alone, `tile[t, c]` with a
# growing `c` looks like the friendly order, and on a CPU it is. On a GPU it is the lanes that read at the same moment.
#
# On a GPU a cache softens the first price. Seven of the eight numbers of a sector that came too early are wanted in the next seven turns of the loop, and may still be there. But the requests take their
# time all the same, and the bank conflicts are not softened by anything.
#
# ### Your own kernel of lesson 05
#
# `brought` takes a function from the notebook of another lesson, as you have saved it beside this one. Here comes your flash kernel, with one block of 32 queries and 32 keys, and rows of d = 32
# numbers.
#
# **Predict.** The tiles are loaded together, as they should be. But in `visit` each lane goes along its *own* row of the Q tile and of the O tile: number `row * d + c`. Which stride is that from
# lane to lane, and how many turns does it take?

# %%
flash_kernel = brought("05_flash_kernel", "flash_kernel")


def turns_of_flash(d, n=32):
    """Requests to shared memory, and their turns,
    of one block of 32 queries and keys."""
    given = np.random.default_rng(8).standard_normal((4, n * d)).astype(float32)
    launch = simulate(flash_kernel, observers=[*DEFAULT, *COUNTERS])
    report = launch[1, 32, 0, 4 * 4 * 32 * d](*given, n, d, 32, float32(d**-0.5))
    return report.counters["banks"]


for d in (32, 33):
    banks = turns_of_flash(d)
    asked, taken = banks["shared_requests"], banks["wavefronts"]
    print(f"rows of {d}: {asked:,} requests, {taken:,} turns")

# %% [markdown]
# With d = 32 the stride is 32 words: all lanes want the same bank, 32 turns. (Numbers for the solution's kernel; yours may ask a little more or less often.) The repair is that of the
# transpose: rows of one number more. Here we handed over matrices with a column more than they need, which in q and k could be a column of zeros. Inside the kernel it takes a tile
# with rows of `d + 1`, which the load has to know. The package's kernel goes another way, and keeps these two rows in registers.
#
# ## 6. Five patterns: predicted, counted, measured
#
# ### Exercise 8.4 · predictions · twenty numbers
# For each of the five kernels of `kernels/cases/memory_patterns.py`: how many sectors a request to load touches, how many a request to store; then how many turns a load from shared memory takes, and how
# many a store to it. All float32; write 0 where there is none. The strided copy has stride 8, the matrices have a multiple of 32 rows and columns. Use
# your functions if you like: `sectors(1, 4)` is as good as 4. Three of the kernels are printed above; `copy` is `out[i] = x[i]`, and `transpose_padded` is like your own.
#
# <details><summary>Hint</summary>
#
# For each access ask: when the lane grows by one, how many numbers further is it? Then `sectors(that, 4)` in global memory, or `turns([4 * lane * that for lane in range(32)])` in shared memory.
# </details>


# %% tags=["exercise"]
def predictions():
    """{name: (sectors to load, sectors to store, turns to load from shared memory,
    turns to store to it)}, for one request of a full warp."""
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
# Nothing of this was measured so far. A real GPU counts too: its counters are read by a program called `ncu`, NVIDIA's profiler. What follows was recorded on a GPU, and is kept in `kernels/data/lesson08.json`:
# the same five kernels on a matrix of 128 × 128 numbers (the copies: as many in a row), once for counting, and then on 16384 × 16384 numbers, 1 GiB, for the time.

# %% jupyter={"source_hidden": true}
FILE = Path(kernels.__file__).parent / "data" / "lesson08.json"
RECORDED = json.loads(FILE.read_text(encoding="utf-8"))
print(
    f"recorded {RECORDED['date']} on one {RECORDED['gpu']}, driver {RECORDED['driver']}"
)

# %% [markdown]
# **Predict**, for 128 × 128 numbers: how many requests to load do the warps make, and how many sectors does `transpose_naive` store to? (Both follow from your table.)

# %% tags=["uses-exercise"]
N, STRIDE = RECORDED["counted"]["n"], RECORDED["counted"]["stride"]
matrices = (
    np.random.default_rng(8).standard_normal((N, N)).astype(float32),
    np.empty((N, N), float32),
)
launches = {
    "copy": (
        blocks(N * N),
        THREADS,
        np.zeros(N * N, float32),
        np.empty(N * N, float32),
    ),
    "strided_copy": (
        blocks(N * N),
        THREADS,
        np.zeros(N * N * STRIDE, float32),
        np.empty(N * N, float32),
        STRIDE,
    ),
    **{
        name: (tiles(N, N), (TILE, TILE), *matrices)
        for name in ("transpose_naive", "transpose_tiled", "transpose_padded")
    },
}
simulated = {
    name: counted(getattr(memory_patterns, name), *launch)
    for name, launch in launches.items()
}
rows = []
for name, counts in simulated.items():
    for price, (access, (requests, pieces)) in zip(
        predictions()[name], counts.items(), strict=True
    ):
        if requests:
            measured = RECORDED["counted"]["patterns"][name][access]
            same = [requests, pieces] == measured == [requests, price * requests]
            rows.append([name, access, f"{price:g}", requests, pieces, *measured, same])
show_table(
    ["pattern", "access", "predicted a request", "requests counted", "pieces counted"]
    + ["requests on the GPU", "pieces on the GPU", "the same"],
    *rows,
)

# %% [markdown]
# Pieces are sectors in global memory and turns in shared memory. Three have counted: you with a formula, the simulator access by access, and the GPU while it ran.
#
# And what does it cost in time? Bytes asked for are the sectors times 32, for 16384 × 16384 numbers. DRAM is the memory proper: between it and the warps there are caches, which hand a sector out twice if it is
# wanted twice within a short time, or wait with writing until the rest of a sector has come.

# %% tags=["uses-exercise"]
GiB = 2**30
requests = RECORDED["timed"]["n"] ** 2 // 32
rows = []
for name, measured in RECORDED["timed"]["patterns"].items():
    load, store = (price * requests * 32 / GiB for price in predictions()[name][:2])
    slower = (
        measured["microseconds"] / RECORDED["timed"]["patterns"]["copy"]["microseconds"]
    )
    reads, writes = (
        measured["dram_read_bytes"] / GiB,
        measured["dram_write_bytes"] / GiB,
    )
    gibibytes = [f"{amount:.1f}" for amount in (load, reads, store, writes)]
    rows.append([name, *gibibytes, f"{measured['microseconds']:.0f}", f"{slower:.2f}"])
show_table(
    ["pattern", "GiB load, asked for", "from DRAM", "GiB store, asked for", "to DRAM"]
    + ["microseconds", "times copy"],
    *rows,
)

# %% [markdown]
# All five move the same numbers, 1 GiB in and 1 GiB out. Hold the times against your table:
#
# - `strided_copy` fetches eight times as much from DRAM. That is 9.7 billion bytes in 2.2 milliseconds, 4.5 TB a second, and the most that an H200 can do is 4.8. So it cannot be made much faster, except by another stride.
# - `transpose_naive` moves no more to and from DRAM than the copy: the caches have put the sectors together. But each sector of `out` is asked for eight times, once for each of its numbers, and it takes five times as long as the copy.
# - `transpose_tiled` and `transpose_padded` differ in their bank conflicts alone: 0.8 milliseconds.
# - `transpose_padded` pays the lowest price everywhere, and still takes 1.9 times as long as the copy. So our prices are not all there is. What else is different: its blocks have 1024 threads, so that
#   two of them fill a multiprocessor (section 7), and at `syncthreads` all threads of a block wait for the last one. How much of the time goes there, these counters do not say.
#
# ### Where the rule ends (optional)
#
# The turns of shared memory were counted at this size as well:

# %% tags=["uses-exercise"]
for name in ("transpose_tiled", "transpose_padded"):
    predicted = [price * requests for price in predictions()[name][2:]]
    load, store = (
        found / turns - 1
        for found, turns in zip(
            RECORDED["timed"]["patterns"][name]["shared_turns"], predicted, strict=True
        )
    )
    print(
        f"{name:16}  turns counted beyond those predicted: "
        f"{load:6.1%} to load, {store:6.1%} to store"
    )

# %% [markdown]
# With 128 × 128 numbers there was not one turn more than predicted. With 16384 × 16384, where many blocks are at work on each multiprocessor, the GPU counts more than our rule says, in the padded tile too, which
# has no conflicts within a warp. So some extra turns are needed only when many warps use shared memory at the same time; the rule, and the simulator, do not know about them. (The sectors are as predicted, to the last one.)
#
# ## 7. How many fit: occupancy (optional)
#
# When a warp asks for a number in global memory, the answer takes hundreds of clock cycles. A GPU does not make the wait shorter; it fills it. While one warp waits, others ask. So a multiprocessor
# (an H200 has 132 of them) holds many warps at once, and how many depends on what each block takes. On an H200 a multiprocessor has room for
#
# - 2048 threads, that is 64 warps, and for 32 blocks;
# - 65536 **registers**, of 4 bytes each, in four quarters of 16384. A warp takes all of its registers from one quarter. The compiler decides how many a thread takes, and it is rounded up
#   to a multiple of 8;
# - 228 KiB of shared memory, of which each block takes what it asks for and 1 KiB more.
#
# The next picture shows how the wait is filled, with round numbers: a warp asks for 1 step and waits for 7. Move the slider: more warps are resident. (The cell only draws.)


# %% jupyter={"source_hidden": true}
def draw_waiting(resident, wait=7, steps=32, side=22):
    """A row of steps for each warp, and one for the memory that they ask;
    a step of the slider for each number of resident warps."""
    rows, left = max(resident), 110
    scene = Scene(
        "waiting, hidden by other warps",
        left + side * steps + 10,
        48 + side * (rows + 2),
        adds=False,
    )
    scene.legend(
        6,
        ("load", "a warp asks"),
        ("rail", "it waits"),
        ("store", "the memory has something to do"),
        ("empty", "nothing"),
    )
    names = [f"warp {warp}" for warp in range(rows)] + ["memory"]
    tops = [36 + side * (row + (row == rows)) for row in range(rows + 1)]
    for name, top in zip(names, tops):
        scene.labels.append((left - 8, top + 14, name, "end"))
        scene.cells += [
            (left + side * step, top, side - 2, side - 2) for step in range(steps)
        ]
    for warps in resident:
        asks = {
            (warp, step)
            for warp in range(warps)
            for step in range(warp, steps, wait + 1)
        }
        looks = [
            (warp * steps + step, "load" if (warp, step) in asks else "rail", "")
            for warp in range(warps)
            for step in range(warp, steps)
        ]
        looks += [(rows * steps + step, "store", "") for _, step in asks]
        words = f"{warps} resident: the memory is asked in {len(asks)} of {steps} steps"
        scene.steps.append((words, looks))
    return scene.view()


draw_waiting((1, 2, 4, 8))

# %% [markdown]
# With 8 warps one of them always asks; a ninth would gain nothing.
#
# A block comes in whole or not at all. What runs out first decides how many are **resident**, and resident threads / 2048 is called the **occupancy**.
#
# **Predict.** A kernel takes 168 registers per thread, and a block has 64 threads and 16 KiB of shared memory. How many blocks would fit by each of the four limits? What is the occupancy?
#
# <details><summary>Answer</summary>
#
# By threads 2048 / 64 = 32; by blocks 32; by registers 16384 / (168 · 32) = 3.05, so 3 warps in a quarter, 12 in all, 6 blocks; by shared memory 228 / 17 = 13.4, so 13. Registers decide: 6 blocks, 384 threads, 19 %.
# </details>

# %%
# registers of a quarter; bytes of shared memory that a block takes besides its own
QUARTER, RESERVED = 16384, 1024


def resident_blocks(threads, registers, shared_bytes, spec=DeviceSpec()):
    """How many blocks one multiprocessor holds at once:
    (by threads, by blocks, by registers, by shared memory)."""
    warps = -(-threads // spec.warp_size)
    return (
        spec.threads_per_multiprocessor // (warps * spec.warp_size),
        spec.blocks_per_multiprocessor,
        QUARTER // (-(-registers // 8) * 8 * spec.warp_size) * 4 // warps,
        spec.shared_bytes_per_multiprocessor // (shared_bytes + RESERVED),
    )


print(resident_blocks(threads=64, registers=168, shared_bytes=16 * 1024))

# %% [markdown]
# The kernels of this course, with the registers that the compiler gave them for the GPU of the record. The last column is what `ncu` says of how many blocks fit.

# %%
rows = []
for name, block in RECORDED["resident"].items():
    limits = resident_blocks(
        block["threads"], block["registers"], block["shared_bytes"]
    )
    share = min(limits) * block["threads"] / 2048
    needs = block["threads"], block["registers"], block["shared_bytes"]
    rows.append([name, *needs, limits, min(limits), f"{share:.0%}", block["blocks"]])
show_table(
    ["kernel", "threads", "registers", "shared", "limits", "fit", "occupancy", "ncu"],
    *rows,
)

# %% [markdown]
# What does occupancy buy? Here is a copy in which a thread has one number in flight at a time: it loads it, stores it, and only then comes to the next. We launch it with more and more shared memory that it does not use, so that
# fewer and fewer blocks fit.
#
# **Predict.** If half as many threads wait for memory at the same time, how much longer does the copy take?

# %%
NUMBERS = 16  # that a thread copies, one after the other


@cuda.jit
def copy_some(x, out):
    """out = x, both 1-D; a block copies NUMBERS numbers per thread."""
    first = cuda.blockIdx.x * cuda.blockDim.x * NUMBERS + cuda.threadIdx.x
    for i in range(
        first, min(first + cuda.blockDim.x * NUMBERS, out.size), cuda.blockDim.x
    ):
        out[i] = x[i]


def tell_occupancy(launches, threads, numbers):
    """A line for each launch of `copy_some`:
    what fits, the time, and the bytes moved each second, read and written."""
    print(
        "shared bytes  blocks fit  threads  microseconds   TB/s  times the line above"
    )
    for before, launch in zip([None, *launches], launches, strict=False):
        time, fit = (
            launch["microseconds"],
            min(resident_blocks(threads, launch["registers"], launch["shared_bytes"])),
        )
        slower = f"{time / before['microseconds']:.2f}" if before else ""
        row = (
            f"{launch['shared_bytes']:12}{fit:12}{fit * threads:9}"
            f"{time:14.0f}{8 * numbers / time / 1e6:7.2f}{slower:>22}"
        )
        print(row.rstrip())


x, out = np.arange(3000, dtype=float32), np.full(3000, np.nan, float32)
simulate(copy_some)[3, 64](x, out)
print("right:", np.array_equal(out, x), "\n")
print(f"recorded on one {RECORDED['gpu']}:")
tell_occupancy(
    RECORDED["occupancy"]["launches"],
    RECORDED["occupancy"]["threads"],
    RECORDED["occupancy"]["n"],
)

# %% [markdown]
# Bytes in flight, divided by how long one of them is under way, is the rate. If a byte were always under way for the same time, half the threads would be half the speed, and the last column would be 2. With few threads it is nearly so. With many
# it is less, so a byte must then be under way for longer: there is a crowd at the memory, and the last threads to join it bring the least.
#
# Occupancy is one way to have many bytes in flight. The other is to let each thread ask for several numbers before it waits for the first; then fewer threads are enough. (So high occupancy is not an end in itself. The flash kernel gives
# it away for registers that hold a row of q and a row of o.)
#
# ## 8. How fast at best: the roofline
#
# A kernel cannot end before its bytes have moved, and not before its arithmetic is done. All this goes on at the same time, so the slower of the two decides. For an H200:
#
# - memory moves 4.8 TB/s at most, says its maker;
# - each of the 132 multiprocessors does 128 float32 multiply-adds per cycle, which are 256 operations, at 1.98 GHz: 66.9 TFLOP/s. (A **FLOP** is one floating-point operation; T is 10¹².)
# - each multiprocessor's shared memory takes one turn per cycle: 132 · 1.98 · 10⁹ = 261 · 10⁹ turns per second.


# %%
class Rates(NamedTuple):
    """What a GPU does in a second, at most."""

    bytes_per_second: float
    flops_per_second: float
    turns_per_second: float


CLOCK = 1.98e9
H200 = Rates(
    bytes_per_second=4.8e12,
    flops_per_second=132 * 256 * CLOCK,
    turns_per_second=132 * CLOCK,
)

# %% [markdown]
# **Predict.** `y[i] += 2 * x[i]` for a billion float32 numbers: how many bytes, how many operations, and which of them decides?
#
# <details><summary>Answer</summary>
#
# Read x, read y, write y: 12 billion bytes take 2.5 milliseconds. 2 billion operations take 0.03 milliseconds. Memory decides: 99 % of the arithmetic lies idle.
# </details>
#
# ### Exercise 8.5 · least_time · one or two lines
# Write `least_time(bytes, flops, turns, gpu)`: the seconds that a kernel takes at least, if it moves so many bytes, does so many operations, and takes so many turns of shared memory. `gpu` is a `Rates`.
#
# <details><summary>Hint</summary>
#
# An amount divided by its rate is a time. Three times, and the longest decides: `max`.
# </details>


# %% tags=["exercise"]
def least_time(bytes, flops, turns, gpu):
    """The seconds that a kernel takes at least on a GPU with these rates."""
    # BEGIN SOLUTION 8.5
    return max(
        bytes / gpu.bytes_per_second,
        flops / gpu.flops_per_second,
        turns / gpu.turns_per_second,
    )
    # END SOLUTION


# %% tags=["check"]
check.ex08_5(least_time)

# %% [markdown]
# Now three kernels: the line above, a matrix product by tiles of 32 × 32 as in lesson 03 (`matmul_tiled`), and the flash kernel of lesson 05. What they do is counted here for small sizes, and compared
# with a formula; the formula then gives the amounts for sizes that only a GPU can do. Bytes are those of the arrays, each counted once: less is impossible.
# For the turns we have a formula for `matmul_tiled` only, and what the GPU has counted for all three.


# %%
@cuda.jit
def add_twice(x, y):
    """y += 2 x, both 1-D."""
    i = cuda.grid(1)
    if i < y.size:
        y[i] += float32(2) * x[i]


def work_of_add_twice(n):
    """(bytes, flops) for n numbers."""
    return 12 * n, 2 * n


def work_of_matmul(n):
    """(bytes, flops) for n x n matrices."""
    return 12 * n**2, 2 * n**3


def turns_of_matmul(n):
    """The turns for n x n matrices, n a multiple of 32: a warp loads two words for 32
    multiply-adds, and stores two after each 32 pairs it has loaded."""
    return 2 * n**3 // 32 + 2 * n**3 // 32**2


def work_of_flash(batch, heads, n, d):
    """(bytes, flops) without a mask: q, k, v, o and L once; two products."""
    return 4 * batch * heads * (4 * n * d + n), 4 * batch * heads * n**2 * d


x, y = np.ones(1024, float32), np.ones(1024, float32)
found = counted(add_twice, blocks(1024), THREADS, x, y)
print(
    "add_twice, bytes as counted:",
    32 * (found["load"][1] + found["store"][1]) == work_of_add_twice(1024)[0],
)
left, right, product = (
    *np.random.default_rng(8).standard_normal((2, 64, 64)).astype(float32),
    np.empty((64, 64), float32),
)
found = counted(
    memory_patterns.matmul_tiled, tiles(64, 64), (TILE, TILE), left, right, product
)
print(
    "matmul_tiled, turns as counted:",
    found["shared load"][1] + found["shared store"][1] == turns_of_matmul(64),
)
print("matmul_tiled, right:", np.allclose(product, left @ right, atol=1e-4))

ROOFLINE = RECORDED["roofline"]
works = {
    "add_twice": work_of_add_twice,
    "matmul_tiled": work_of_matmul,
    "flash_attention": work_of_flash,
}
amounts = {
    name: (*works[name](**measured["size"]), measured["turns"])
    for name, measured in ROOFLINE.items()
}
less = ROOFLINE["matmul_tiled"]["turns"] / turns_of_matmul(
    **ROOFLINE["matmul_tiled"]["size"]
)
print(f"matmul_tiled, turns that the GPU counted, by the formula's: {less:.2f}")
seconds = {name: measured["microseconds"] / 1e6 for name, measured in ROOFLINE.items()}

# %% [markdown]
# The GPU has counted a quarter less than the formula says. The compiler was cleverer than the formula: for each multiply-add our line loads one word of `tile_a` and one of `tile_b`, but the four words of `tile_a` for four
# multiply-adds lie side by side, and it has made one load of them. It takes 2 turns; so there are 6 turns for 4 multiply-adds, where we had counted 8.
#
# (And you find the 12 n² bytes of a matrix product nowhere in the counts, since each number is fetched by n / 32 blocks. They say what is impossible, not what happens.)
#
# **Predict**, for a matrix product with n = 4096: does memory, arithmetic or shared memory decide?

# %% tags=["uses-exercise"]
rows = []
for name, work in amounts.items():
    each = [amount / rate for amount, rate in zip(work, H200, strict=True)]
    least = least_time(*work, H200)
    microseconds = [f"{1e6 * time:.0f}" for time in (*each, least, seconds[name])]
    rows.append([name, *microseconds, f"{seconds[name] / least:.1f}"])
show_table(
    ["kernel", "bytes", "flops", "turns", "least_time", "measured", "times least_time"],
    *rows,
    title="microseconds at least, for bytes, flops and turns; and measured",
)

# %% [markdown]
# The same as a picture, which is called a **roofline**. To the right: operations for each byte that must move. Upwards: operations per second. No kernel gets above the roof: on its slope memory decides, on its level part
# arithmetic. The edge is at 66.9 / 4.8 = 14 operations per byte.
#
# The dashed lines are lower ceilings, each for one kernel alone: the operations that it does in a turn of shared memory (41 for our matrix product, 124 for the flash kernel), times
# 261 · 10⁹ turns per second.


# %%
def draw_roofline(points):
    """The roof of an H200, the ceiling of shared memory for a matrix product,
    and a point for each kernel (operations per byte, TFLOP/s)."""
    figure, axes = plt.subplots(figsize=(9, 5))
    top, slope = H200.flops_per_second / 1e12, H200.bytes_per_second / 1e12
    axes.loglog(
        [0.05, top / slope, 5000], [0.05 * slope, top, top], color="black", linewidth=2
    )
    for name, colour in (("matmul_tiled", ORANGE), ("flash_attention", GREEN)):
        _, flops, taken = amounts[name]
        ceiling = flops / taken * H200.turns_per_second / 1e12
        axes.plot([ceiling / slope, 5000], [ceiling, ceiling], "--", color=colour)
        words, right = f"ceiling of {name}", 1.3 * ceiling / slope
        axes.text(right, 1.06 * ceiling, words, color="black", va="bottom", fontsize=11)
    # colour, shape, and where the name stands
    looks = ((BLUE, "o", (12, -5)), (ORANGE, "s", (12, -5)), (GREEN, "D", (8, 8)))
    for (name, (across, up)), (colour, shape, aside) in zip(
        points.items(), looks, strict=True
    ):
        axes.plot(across, up, shape, markersize=11, color=colour)
        axes.annotate(
            name, (across, up), xytext=aside, textcoords="offset points", fontsize=12
        )
    axes.set_xlabel("operations for each byte that must move", fontsize=12)
    axes.set_ylabel("TFLOP/s", fontsize=12)
    axes.grid(alpha=0.3)
    return figure


points = {
    name: (flops / moved, flops / seconds[name] / 1e12)
    for name, (moved, flops, _) in amounts.items()
}
show_figure(
    draw_roofline(points),
    "both axes are logarithmic. The roof rises from 0.24 TFLOP/s at 0.05 operations a "
    "byte to 66.9 at 14, and is level from there. "
    "Dashed lines at 10.6 TFLOP/s, the ceiling of matmul_tiled, and at 32.4, "
    "that of flash_attention, start at the slope and go to the right. "
    + " ".join(
        f"{name} is a point at {across:.3g} operations per byte and {up:.3g} TFLOP/s."
        for name, (across, up) in points.items()
    ),
)

# %% [markdown]
# - `add_twice` is near the slope. Memory decides, and no trick with its arithmetic can make it faster.
# - The matrix product has far too many operations per byte to be held up by memory. Most of what holds it up is our own doing: for every four multiply-adds it goes to shared memory for six turns. A thread that keeps several sums in registers can use each
#   word several times; that, and the special units for matrix products, is part 5 of this course.
# - The flash kernel does more operations per second than the matrix product, and stands above it. But its own ceiling is three times as high, as it keeps a row of q and of o in registers: measured by its least time it is the farther one, 3.3 times against 1.4. What none of the three amounts contains: its exponentials, its waiting at `syncthreads`, and that only 384 threads share a multiprocessor to fill the waits. Part 5 begins here too.
#
# ## Validate
#
# Prediction against count, and your transpose against numpy and the package's. (Run the cell; its table is what counts.)


# %% tags=["uses-exercise"]
def validate(stage, against, agrees):
    """One row of the table."""
    print(
        f"{stage:32}  {against:34}  {'equal' if agrees else 'DIFFERENT'}   "
        f"{'✓' if agrees else '✗'}"
    )


@cuda.jit
def fetch(words, out):
    """Each lane loads the word of shared memory whose number stands in `words`."""
    s = cuda.shared.array(4096, float32)
    for e in range(cuda.threadIdx.x, 4096, 32):
        s[e] = 0
    cuda.syncthreads()
    out[cuda.threadIdx.x] = s[words[cuda.threadIdx.x]]


def turns_counted(words):
    """What the simulator counts for the 32 lanes that want these words."""
    return counted(fetch, 1, 32, words, np.empty(32, float32))["shared load"][1]


def sectors_counted(stride):
    """What the simulator counts for the loads of one warp."""
    return counted(
        memory_patterns.strided_copy,
        1,
        32,
        np.zeros(32 * stride, float32),
        np.empty(32, float32),
        stride,
    )["load"][1]


numbers = np.random.default_rng(8)
strides, wanted = range(1, 40), [numbers.integers(0, 4096, 32) for _ in range(20)]
big = numbers.standard_normal((75, 130)).astype(float32)
mine, theirs = (np.full((130, 75), np.nan, float32) for _ in range(2))
costs = [
    counted(kernel, tiles(75, 130), (TILE, TILE), big, out)
    for kernel, out in ((transpose, mine), (memory_patterns.transpose_padded, theirs))
]

print(f"{'stage':32}  {'against':34}")
validate(
    "sectors, 39 strides",
    "what the simulator counts",
    [sectors(s, 4) for s in strides] == [sectors_counted(s) for s in strides],
)
validate(
    "turns, 20 times 32 random words",
    "what the simulator counts",
    [turns(4 * w) for w in wanted] == [turns_counted(w) for w in wanted],
)
validate("transpose, 75 x 130", "numpy", np.array_equal(mine, big.T))
validate(
    "transpose, what it costs", "the package's transpose_padded", costs[0] == costs[1]
)
for name, counts in simulated.items():
    validate(
        f"{name}, counts",
        f"the counters of an {RECORDED['gpu'].split()[-1]}",
        {k: list(v) for k, v in counts.items()}
        == RECORDED["counted"]["patterns"][name],
    )

# %% [markdown]
# ### On a real GPU, if there is one
#
# The five patterns on your own GPU (without one, what ours printed), timed, with your own transpose as the sixth, and the copy with fewer and fewer blocks; 8192 × 8192 numbers here, so 256 MiB in and out. (The strided copy reads from 2 GiB.) To see the counters of your own GPU, and not only times, you need `ncu`:
# it comes with the CUDA toolkit, and `python -m kernels.bench.compare --ncu` runs it.


# %% tags=["gpu", "uses-exercise"]
def microseconds(kernel, configuration, *arguments, times=20):
    """The mean time of a launch; tensors of torch, on the GPU."""
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
    """The five patterns and the learner's transpose, timed;
    then copies with fewer and fewer blocks at a time."""
    n = 8192
    long = torch.rand(8 * n * n, device="cuda")
    a, out = long[: n * n].view(n, n), torch.full((n, n), math.nan, device="cuda")
    configuration, square = (blocks(n * n), THREADS), (tiles(n, n), (TILE, TILE))
    times = {
        "copy": microseconds(
            memory_patterns.copy, configuration, long[: n * n], out.view(-1)
        ),
        "strided_copy": microseconds(
            memory_patterns.strided_copy, configuration, long, out.view(-1), 8
        ),
        "transpose_naive": microseconds(
            memory_patterns.transpose_naive, square, a, out
        ),
        "transpose_tiled": microseconds(
            memory_patterns.transpose_tiled, square, a, out
        ),
        "transpose_padded": microseconds(
            memory_patterns.transpose_padded, square, a, out
        ),
        "your transpose": microseconds(
            transpose if hasattr(transpose, "py_func") else cuda.jit(transpose),
            square,
            a,
            out,
        ),
    }
    print("your transpose is right:", torch.equal(out, a.T))
    for name, time in times.items():
        print(
            f"{name:16}  {time:8.0f} microseconds   "
            f"{8 * n * n / time / 1e6:6.2f} TB/s of numbers that were asked for"
        )

    flat = long[: n * n], out.view(-1)
    grid = -(-n * n // (64 * NUMBERS))
    for shared_bytes in (0, 13 * 1024, 27 * 1024, 48 * 1024):
        time = microseconds(copy_some, (grid, 64, 0, shared_bytes), *flat)
        print(
            f"copy_some with {shared_bytes:5} bytes of shared memory a block: "
            f"{time:8.0f} microseconds"
        )


# %% [markdown]
# ## In three lines
# - Global memory is paid for in sectors of 32 bytes: 4 for 32 neighbouring float32, up to 32 for lanes that are far apart. The address must grow by one number with the lane.
# - Shared memory has 32 banks and is paid for in turns: a column of a tile with an odd number of words in a row is free of conflicts, with 32 it takes 32 turns.
# - Bytes, operations and turns, each divided by what the GPU does in a second, say how fast a kernel can be, before it is written.
#
# **You can now** look at an index and say what it costs, and tell from a kernel's time whether there is anything left to gain.
#
# **Next:** [lesson 09](09_conv_attention.ipynb) leaves the GPU for a while, and asks what ordinary attention cannot do: find "Alice" *and* "rabbit" in one glance.
