# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 08b · Occupancy and roofline
#
# **50 minutes**, of which 15 are for the section marked *optional* · builds on lesson 08 (sectors, wavefronts)
#
# You will be able to:
#
# - say how many blocks of a kernel fit on a GPU at once, and what limits them;
# - say how many bytes must be in flight to use all of the memory bandwidth;
# - give a lower bound for the time of a kernel before you run it, and find what limits it.
#
# In lesson 08 you counted the pieces of memory that a kernel accesses. But the copy with the lowest possible count reached only 2.7 TB/s of the 4.8 TB/s of an H200. How fast can a kernel be at best? And what is missing if it is slower?
#
# ## The idea in one picture
#
# When a warp loads from global memory, the data arrive hundreds of clock cycles later. A GPU does not shorten this **latency**. It hides it: while one warp waits, other warps issue their loads. So a [**streaming multiprocessor (SM)**](../docs/glossary.md), the processor that runs blocks, keeps many warps ready at once. An H200 has 132 SMs.
#
# The picture shows this with round numbers: a warp issues a load in 1 step and waits for 7. Move the slider: more warps are resident. (The next two cells load some modules and draw. Run them; you do not need to read them.)

# %%
import json
import math
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import torch
from numba import cuda
from numpy import float32

import kernels
from course import check, guess, live, show_figure, show_table
from course.check.lesson08 import counted
from course.figures import BLUE, GREEN, ORANGE
from kernels.cases import memory_patterns
from kernels.cases.memory_patterns import THREADS, TILE, blocks, tiles
from sim import DeviceSpec, simulate
from sim.viz import Scene

FILE = Path(kernels.__file__).parent / "data" / "lesson08.json"
RECORDED = json.loads(FILE.read_text(encoding="utf-8"))
SOURCE = f"recorded {RECORDED['date']} on one {RECORDED['gpu']}"
print(SOURCE)


# %% jupyter={"source_hidden": true}
def draw_waiting(resident, wait=7, steps=32, side=22):
    """Draw a row of steps for each warp and one for the memory, with a slider step
    for each number of resident warps."""
    rows, left = max(resident), 110
    scene = Scene(
        "latency, hidden by other warps",
        left + side * steps + 10,
        48 + side * (rows + 2),
        adds=False,
    )
    scene.legend(
        6,
        ("load", "a warp issues a load"),
        ("rail", "it waits"),
        ("store", "the memory is busy"),
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
        words = f"{warps} resident: the memory is busy in {len(asks)} of {steps} steps"
        scene.steps.append((words, looks))
    return scene.view()


draw_waiting((1, 2, 4, 8))

# %% [markdown]
# With 8 warps, one of them issues a load in every step, so a ninth warp would gain nothing.
#
# ## 1. How many blocks fit: occupancy (optional)
#
# (If you skip this section, run its cells all the same: the last table uses them.)
#
# How many warps an SM holds depends on the resources that each block needs. On an H200 an SM has
#
# - room for 2048 threads, that is 64 warps, and for 32 blocks;
# - 65536 **registers** of 4 bytes each, in four partitions of 16384. A warp takes all of its registers from one partition. The compiler decides how many registers a thread needs, and the number is rounded up to a multiple of 8;
# - 228 KiB of shared memory. Each block takes the amount that it requests, and 1 KiB more.
#
# A block is resident either completely or not at all. The resource that is exhausted first determines how many blocks are **resident**. The ratio of resident threads to 2048 is called the [**occupancy**](../docs/glossary.md).
#
# **Predict.** A kernel needs 168 registers per thread, and a block has 64 threads and 16 KiB of shared memory. How many blocks fit by each of the four limits? What is the occupancy?
#
# <details><summary>Answer</summary>
#
# By threads 2048 / 64 = 32; by blocks 32; by registers 16384 / (168 · 32) = 3.05, so 3 warps per partition, 12 in total, which are 6 blocks; by shared memory 228 / 17 = 13.4, so 13. Registers are the limit: 6 blocks, 384 threads, 19 %.
# </details>

# %%
# registers of a partition; bytes of shared memory that each block takes in addition
PARTITION, RESERVED = 16384, 1024


def resident_blocks(threads, registers, shared_bytes, spec=DeviceSpec()):
    """Return how many blocks fit on one SM at once:
    (by threads, by blocks, by registers, by shared memory)."""
    warps = -(-threads // spec.warp_size)
    return (
        spec.threads_per_multiprocessor // (warps * spec.warp_size),
        spec.blocks_per_multiprocessor,
        PARTITION // (-(-registers // 8) * 8 * spec.warp_size) * 4 // warps,
        spec.shared_bytes_per_multiprocessor // (shared_bytes + RESERVED),
    )


print(resident_blocks(threads=64, registers=168, shared_bytes=16 * 1024))

# %% [markdown]
# The next table applies this to kernels of the course, with the register counts that the compiler produced for the recorded GPU. The last column is the number of resident blocks that `ncu` reports.

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
# What is high occupancy good for? Here is a copy in which each thread has one number in
# flight at a time: it loads a number, stores it, and only then continues with the next.
# We launch it with more and more shared memory that it does not use, so that fewer and
# fewer blocks fit.
#
# **Predict.** If half as many threads wait for memory at the same time, how many times as long does the copy take? `___`

# %% tags=["guess"]
guess("08b half the threads", times=...)

# %%
NUMBERS = 16  # that a thread copies, one after the other


@cuda.jit
def copy_some(x, out):
    """Copy x to out, both 1-D; a block copies NUMBERS numbers per thread."""
    first = cuda.blockIdx.x * cuda.blockDim.x * NUMBERS + cuda.threadIdx.x
    end = min(first + cuda.blockDim.x * NUMBERS, out.size)
    for i in range(first, end, cuda.blockDim.x):
        out[i] = x[i]


x, out = np.arange(3000, dtype=float32), np.full(3000, np.nan, float32)
simulate(copy_some)[3, 64](x, out)
print("correct:", np.array_equal(out, x))

RUNS = RECORDED["occupancy"]
rows, before = [], None
for run in RUNS["launches"]:
    time, unused = run["microseconds"], run["shared_bytes"]
    fit = min(resident_blocks(RUNS["threads"], run["registers"], unused))
    speed = 8 * RUNS["n"] / time / 1e6  # read and written
    slower = f"{time / before:.2f}" if before else ""
    threads = fit * RUNS["threads"]
    rows.append([unused, fit, threads, f"{time:.0f}", f"{speed:.2f}", slower])
    before = time
show_table(
    ["shared bytes", "blocks fit", "threads", "microseconds", "TB/s"]
    + ["times the row above"],
    *rows,
    title=SOURCE,
)


# %% [markdown]
# This follows [**Little's law**](../docs/glossary.md): the number of bytes in flight equals the rate times the latency. If the latency were constant, half the threads would give half the rate, and the last column would be 2. With few threads this nearly holds. With many threads the latency itself grows, because the loads queue, so each further thread adds less.
#
# High occupancy is one way to have many bytes in flight. The other is to let each
# thread issue several loads before it waits for the first; then fewer threads are
# enough. This is probably why the copy of lesson 08, in which each thread loads 4 bytes, is slower than PyTorch's copy, in which each thread loads more. (`copy_some` also has 4 bytes per thread in flight, and it reaches 3.3 TB/s where that copy reaches 2.7. Its threads copy 16 numbers each, so far fewer threads have to be started.) And this is why
# high occupancy is not a goal by itself. The flash kernel has low occupancy, because it
# uses its registers for a row of q and a row of o.
#
# ## 2. How fast at best: the roofline
#
# A kernel cannot finish before its bytes have been moved, nor before its arithmetic is done. Both proceed in parallel, so the slower one determines the time. For an H200:
#
# - Memory moves at most 4.8 TB/s, according to NVIDIA.
# - Each of the 132 SMs does 128 float32 multiply-adds per cycle, which are 256 operations, at 1.98 GHz. That is 66.9 TFLOP/s. (A **FLOP** is one floating-point operation; T is 10¹².)
# - The shared memory of each SM handles one wavefront per cycle: 132 · 1.98 · 10⁹ = 261 · 10⁹ wavefronts per second.


# %%
class Rates(NamedTuple):
    """The maximum rates of a GPU, per second."""

    bytes_per_second: float
    flops_per_second: float
    wavefronts_per_second: float


CLOCK = 1.98e9
H200 = Rates(
    bytes_per_second=4.8e12,
    flops_per_second=132 * 256 * CLOCK,
    wavefronts_per_second=132 * CLOCK,
)


# %% [markdown]
# **Predict.** For `y[i] += 2 * x[i]` with a billion float32 numbers, how many billion bytes are moved? `___` How many billion operations are done? `___` Which of them determines the time? `___`

# %% tags=["guess"]
guess("08b add twice", billion_bytes=..., billion_operations=..., limited_by=...)

# %% [markdown]
# ### Exercise 8.5 · least_time · one or two lines
# Write `least_time(bytes, flops, wavefronts, gpu)`: the minimum time of a kernel in seconds, given its bytes, operations and wavefronts of shared memory. `gpu` is a `Rates`.
#
# <details><summary>Hint</summary>
#
# An amount divided by its rate is a time. Compute three times, and take the longest: `max`.
# </details>


# %% tags=["exercise"]
def least_time(bytes, flops, wavefronts, gpu):
    """Return the minimum time of a kernel in seconds on a GPU with these rates."""
    # BEGIN SOLUTION 8.5
    return max(
        bytes / gpu.bytes_per_second,
        flops / gpu.flops_per_second,
        wavefronts / gpu.wavefronts_per_second,
    )
    # END SOLUTION


# %% tags=["check"]
check.ex08_5(least_time)

# %% [markdown]
# Now apply it to three kernels: the line above (`add_twice`), a matrix product with tiles of 32 × 32 as in lesson 03b (`matmul_tiled`), and the flash kernel of lesson 05, in the package's version. We need formulas for their work:
#
# - For bytes, we count each array once. This is the minimum possible.
# - For operations, we count every multiplication and every addition.
# - For wavefronts, we have a formula for `matmul_tiled` only, and the GPU's counts for all three.


# %%
@cuda.jit
def add_twice(x, y):
    """Compute y += 2 x, both 1-D."""
    i = cuda.grid(1)
    if i < y.size:
        y[i] += float32(2) * x[i]


def work_of_add_twice(n):
    """Return (bytes, flops) for n numbers."""
    return 12 * n, 2 * n


def work_of_matmul(n):
    """Return (bytes, flops) for n x n matrices."""
    return 12 * n**2, 2 * n**3


def wavefronts_of_matmul(n):
    """Return the wavefronts for n x n matrices, n a multiple of 32: a warp loads two
    words for 32 multiply-adds, and stores two for each 32 pairs that it loads."""
    return 2 * n**3 // 32 + 2 * n**3 // 32**2


def work_of_flash(batch, heads, n, d):
    """Return (bytes, flops) without a mask: q, k, v, o and L once; two products."""
    return 4 * batch * heads * (4 * n * d + n), 4 * batch * heads * n**2 * d


# %% [markdown]
# The simulator compares the formulas with its counts for small sizes. For large sizes, which only a GPU can run, we use the formulas.

# %%
x, y = np.ones((2, 1024), float32)
found = counted(add_twice, blocks(1024), THREADS, x, y)
moved = 32 * (found["load"][1] + found["store"][1])
print("add_twice, bytes as counted:", moved == work_of_add_twice(1024)[0])

matrices = np.random.default_rng(8).standard_normal((2, 64, 64)).astype(float32)
product = np.empty((64, 64), float32)
square = tiles(64, 64), (TILE, TILE)
found = counted(memory_patterns.matmul_tiled, *square, *matrices, product)
taken = found["shared load"][1] + found["shared store"][1]
print("matmul_tiled, wavefronts as counted:", taken == wavefronts_of_matmul(64))
expected = matrices[0] @ matrices[1]
print("matmul_tiled, correct:", np.allclose(product, expected, atol=1e-4))

ROOFLINE = RECORDED["roofline"]
measured = ROOFLINE["matmul_tiled"]
less = measured["turns"] / wavefronts_of_matmul(**measured["size"])
print(f"matmul_tiled, the GPU's wavefronts / the formula's: {less:.2f}")


# %% [markdown]
# The GPU counted a quarter less than the formula predicts, because the compiler found a better way. For each multiply-add, our line loads one word of `tile_a` and one of `tile_b`. But the four words of `tile_a` for four multiply-adds are contiguous, and the compiler loads them with one instruction, which takes 2 wavefronts. So there are 6 wavefronts for 4 multiply-adds, where we had counted 8.
#
# (No count shows the 12 n² bytes of a matrix product, because n / 32 blocks load each number. The formula gives a minimum, not the actual traffic.)
#
# **Predict**, for a matrix product with n = 4096: does memory, arithmetic or shared memory determine the time? `___`

# %% tags=["guess"]
guess("08b matrix product", limited_by=...)

# %% tags=["uses-exercise"]
WORK = {
    "add_twice": work_of_add_twice,
    "matmul_tiled": work_of_matmul,
    "flash_attention": work_of_flash,
}
rows = []
for name, work in WORK.items():
    measured = ROOFLINE[name]
    amounts = *work(**measured["size"]), measured["turns"]
    least = 1e6 * least_time(*amounts, H200)
    each = [1e6 * amount / rate for amount, rate in zip(amounts, H200)]
    times = [f"{time:.0f}" for time in (*each, least, measured["microseconds"])]
    rows.append([name, *times, f"{measured['microseconds'] / least:.1f}"])
show_table(
    ["kernel", "bytes", "flops", "wavefronts", "least_time", "measured"]
    + ["measured / least_time"],
    *rows,
    title="minimum microseconds for bytes, flops and wavefronts; measured microseconds",
)


# %% [markdown]
# You can draw the same numbers as a [**roofline**](../docs/glossary.md). The horizontal axis is the **arithmetic intensity**: operations per byte that must be moved. The vertical axis is operations per second. No kernel can be above the roof. On the slope, memory limits the rate; on the flat part, arithmetic does. The two parts meet at the [**ridge point**](../docs/glossary.md), 66.9 / 4.8 = 14 operations per byte.
#
# The dashed lines are lower ceilings, each for one kernel only. They come from shared memory. For example, our matrix product does 41 operations per wavefront, and 41 · 261 · 10⁹ wavefronts per second give 10.6 TFLOP/s. The flash kernel does 124 operations per wavefront, so its ceiling is three times as high.


# %% jupyter={"source_hidden": true}
def draw_roofline(points):
    """Draw the roof of an H200, the ceilings of shared memory, and a point for each
    kernel: {name: (operations per byte, TFLOP/s, TFLOP/s of its ceiling or None)}."""
    figure, axes = plt.subplots(figsize=(9, 5))
    top, slope = H200.flops_per_second / 1e12, H200.bytes_per_second / 1e12
    roof = [0.05, top / slope, 5000], [0.05 * slope, top, top]
    axes.loglog(*roof, color="black", linewidth=2)
    looks = ((BLUE, "o", (12, -5)), (ORANGE, "s", (12, -5)), (GREEN, "D", (8, 8)))
    for (name, (across, up, ceiling)), look in zip(points.items(), looks):
        colour, shape, aside = look
        if ceiling:
            axes.plot([ceiling / slope, 5000], [ceiling, ceiling], "--", color=colour)
            place = 1.3 * ceiling / slope, 1.06 * ceiling
            axes.text(*place, f"ceiling of {name}", va="bottom", fontsize=11)
        axes.plot(across, up, shape, markersize=11, color=colour)
        where = {"xytext": aside, "textcoords": "offset points"}
        axes.annotate(name, (across, up), fontsize=12, **where)
    axes.set_xlabel("operations per byte that must be moved", fontsize=12)
    axes.set_ylabel("TFLOP/s", fontsize=12)
    axes.grid(alpha=0.3)
    return figure


points = {}
for name, work in (
    ("add_twice", work_of_add_twice),
    ("matmul_tiled", work_of_matmul),
    ("flash_attention", work_of_flash),
):
    measured = ROOFLINE[name]
    moved, flops = work(**measured["size"])
    taken, up = measured["turns"], flops / measured["microseconds"] / 1e6
    ceiling = flops / taken * H200.wavefronts_per_second / 1e12 if taken else None
    points[name] = flops / moved, up, ceiling
show_figure(
    draw_roofline(points),
    "both axes are logarithmic. The roof rises from 0.24 TFLOP/s at 0.05 operations "
    "per byte to 66.9 at 14, and is flat from there. "
    "Dashed lines at 10.6 TFLOP/s, the ceiling of matmul_tiled, and at 32.4, "
    "that of flash_attention, start at the slope and go to the right. "
    + " ".join(
        f"{name} is a point at {across:.3g} operations per byte and {up:.3g} TFLOP/s."
        for name, (across, up, _) in points.items()
    ),
)


# %% [markdown]
# - `add_twice` is near the slope. Memory limits it, and no change to its arithmetic can make it faster.
# - The matrix product has far more operations per byte than the ridge point, so memory does not limit it. Shared memory does, and that is a property of our code: for every four multiply-adds it needs six wavefronts. A thread that keeps several sums in registers can use each word several times. Part 5 of this course does that, and uses the special units for matrix products.
# - The flash kernel does more operations per second than the matrix product, so its point is higher. But relative to its own limit it is slower: 3.3 times its minimum time, against 1.4. Our three amounts leave out its exponentials, its waiting at `syncthreads`, and the fact that only 384 threads per SM hide the latency. Part 5 continues here too.
#
# ## Validate
#
# Compare the predicted number of resident blocks with `ncu`, and check that no measured time is below your minimum.


# %% tags=["uses-exercise"]
def validate(stage, against, agrees):
    """Print one row of the table."""
    verdict = "as predicted   ✓" if agrees else "DIFFERENT      ✗"
    print(f"{stage:30}  {against:28}  {verdict}")


for name, measured in ROOFLINE.items():
    least = least_time(*WORK[name](**measured["size"]), measured["turns"], H200)
    above = 1e-6 * measured["microseconds"] >= least
    validate(f"least_time of {name}", "below the measured time", above)
for name, block in RECORDED["resident"].items():
    needs = block["threads"], block["registers"], block["shared_bytes"]
    agrees = min(resident_blocks(*needs)) == block["blocks"]
    validate(f"{name}, resident", "ncu on the recorded GPU", agrees)


# %% [markdown]
# ### On a real GPU, if there is one
#
# The last cell times `copy_some` on your GPU, with fewer and fewer resident blocks, for 8192 × 8192 numbers. (Without a GPU it shows what ours printed.)


# %% tags=["gpu"]
@live
def occupancy_live():
    """Time copies with fewer and fewer blocks at a time."""
    n = 8192 * 8192
    x, out = torch.rand(n, device="cuda"), torch.full((n,), math.nan, device="cuda")
    x, out = cuda.as_cuda_array(x), cuda.as_cuda_array(out)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    grid = -(-n // (64 * NUMBERS))
    for shared_bytes in (0, 13 * 1024, 27 * 1024, 48 * 1024):
        copy_some[grid, 64, 0, shared_bytes](x, out)  # compiles
        start.record()
        for _ in range(20):
            copy_some[grid, 64, 0, shared_bytes](x, out)
        end.record()
        end.synchronize()
        print(
            f"copy_some with {shared_bytes:5} bytes of shared memory a block: "
            f"{1000 * start.elapsed_time(end) / 20:8.0f} microseconds"
        )


# %% [markdown]
# ## In three lines
# - Registers, shared memory, threads and blocks limit how many blocks are resident. Resident warps hide the latency of memory.
# - By Little's law, the rate is the bytes in flight divided by the latency. You increase it with more resident warps, or with more loads per thread.
# - Bytes, operations and wavefronts, each divided by the GPU's rate, give a minimum time. Compare it with the measured time to see what is left to gain.
#
# **You can now** say how fast a kernel can be before you write it, and tell from its time whether there is anything left to gain.
#
# **Read on:** Samuel Williams, Andrew Waterman and David Patterson, *Roofline: An Insightful Visual Performance Model for Multicore Architectures* (Communications of the ACM, 2009) · Vasily Volkov, *Better Performance at Lower Occupancy* (GPU Technology Conference, 2010) · NVIDIA, *CUDA C++ Programming Guide*, section "Hardware Multithreading".
#
# **Next:** [lesson 09](09_conv_attention.ipynb) leaves the GPU for a while, and asks what ordinary attention cannot do: find "Alice" *and* "rabbit" at once.
