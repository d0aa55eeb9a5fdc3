# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 18c · Hopper: products and copies that run while your threads continue
#
# **85 minutes** · builds on lesson 16b (tiled products) and lesson 17 (copies in flight)
#
# You will be able to
#
# 1. store a tile with a swizzle, so that a tensor core reads it without bank conflicts;
# 2. start a product of four warps, and say when you may touch its operands and its result;
# 3. count arrivals and bytes on a transaction barrier;
# 4. write a pipeline in which one thread copies tiles and four warps multiply them.
#
# **Where this leads.** Your matmul of lesson 16b uses `mma.sync`. That instruction still works on newer GPUs, but it no longer reaches their full speed. Hopper, the generation of the H100 and the H200, has another instruction, `wgmma`. Here are the highest speeds that we measured with each of them, in loops written in Numba:

# %%
import numpy as np
from ml_dtypes import bfloat16
from numba import cuda
from numpy import float32, int16, int64

from course import check, guess, show_table
from course.ladder import show_ladder, time_rung
from course.swizzles import chunk_map
from kernels.tensor_cores.bulk_copies import (
    fence_mbarrier_init,
    mbarrier_arrive,
    mbarrier_expect,
    mbarrier_init,
    mbarrier_try_wait,
    tensor_load,
)
from kernels.tensor_cores.warpgroup import (
    fence_proxy_async,
    matrix_descriptor,
    wgmma,
    wgmma_commit,
    wgmma_fence,
    wgmma_wait_0,
)
from sim import simulate, tensor_map
from sim.observers import DEFAULT, Pipeline
from sim.viz.pipeline import pipeline

PEAK = 989  # TFLOP/s in bfloat16, from NVIDIA's data sheet
show_table(
    ["instruction", "TFLOP/s", "of the peak"],
    *(
        [name, speed, f"{100 * speed / PEAK:.0f} %"]
        for name, speed in [("mma.sync", 642), ("wgmma", 920)]
    ),
    title="products in bfloat16 without any loads, one NVIDIA H200, 2026-11-23",
)

# %% [markdown]
# You need no GPU for this lesson: `sim` runs all of these instructions, and it reports their misuse.
#
# ## 1. What is new
#
# In lesson 17 every thread took part in everything: it copied a few numbers with `cp.async`, loaded fragments with `ldmatrix`, and multiplied. Hopper gives most of this work to hardware units that run on their own:
#
# | | lessons 16 to 18 | Hopper |
# |---|---|---|
# | a product is executed by | one warp | four warps, a **warp group** (PTX: *warpgroup*) |
# | its operands come from | registers, by `ldmatrix` | shared memory (A may also come from registers) |
# | the instruction returns | with the result | at once; the product continues on its own |
# | a tile is copied by | all threads, 16 bytes each | one instruction of one thread |
# | the threads wait for a copy at | `cp.async.wait_group` and a block-wide barrier | a barrier that counts bytes |
#
# An instruction that returns before its work is done is **asynchronous**. Asynchronous work makes a kernel fast, because copies and products run at the same time. It also makes a kernel easy to get wrong: you have to say when each piece of work must be finished.
#
# The task of this lesson is C = A Bᵀ, in bfloat16 with sums in float32. A has rows of K numbers, and so has B. (Scores have this form: A is Q, and B is K.) A block computes 64 rows and `COLUMNS` columns of C. It goes through the K numbers in steps of 64. Each step needs a tile of A with 64 rows and a tile of B with `COLUMNS` rows.

# %%
COLUMNS, STAGES = 32, 2
rng = np.random.default_rng(18)


def bf16(matrix):
    """Return the bits of a matrix rounded to bfloat16."""
    return np.ascontiguousarray(matrix).astype(bfloat16).view(int16)


def exact(bits):
    """Return the float64 values of bfloat16 bits."""
    return bits.view(bfloat16).astype(float)


# %% [markdown]
# ## 2. A tile without bank conflicts
#
# A row of a tile has 64 two-byte numbers, 128 bytes in total. That is one word in each of the 32 banks. Divide the row into eight **chunks** of 16 bytes, four banks each. A tensor core reads the same chunk of eight rows at once.
#
# **Predict.** If the rows lie one after another, how many wavefronts does it take to read chunk 2 of eight rows? `___`

# %% tags=["guess"]
guess("18c chunks", wavefronts=...)

# %% [markdown]
# In lesson 16b you padded the rows to avoid this. Padding is not possible here: the copy instruction of section 5 writes rows without gaps, and the tensor core expects them that way. Instead, the chunks of each row change places:
#
# > chunk j of row i is stored where chunk **j XOR (i mod 8)** would be.
#
# XOR is Python's `^`: it compares two numbers bit by bit and sets the bits in which they differ. This permutation is the **swizzle** with 128 bytes, the length of a row. The copy unit and the tensor cores apply the same permutation themselves: you only tell them that the swizzle has 128 bytes. They take i mod 8 from the address, so a tile must begin at a multiple of 8 rows, or 1,024 bytes.
#
# **Predict.** Row 3 has its chunk 2 at which position? `___`

# %% tags=["guess"]
guess("18c swizzle", position=...)

# %% [markdown]
# ### Exercise 18.6 · place · one or two lines
#
# The device function `place(row, column)` returns the position within its row at which element (row, column) of a tile is stored. Both positions count elements, from 0 to 63. Only the chunk changes; an element keeps its position inside its chunk.
#
# <details><summary>Hint: chunks</summary>
#
# A chunk has 8 elements, so `column // 8` is the chunk of a column and `column % 8` the position in it.
#
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def place(row, column):
    """Return the position in its row of element (row, column), in a tile of 64
    columns with the 128-byte swizzle."""
    # BEGIN SOLUTION 18.6
    return ((column // 8) ^ (row % 8)) * 8 + column % 8
    # END SOLUTION


# %% tags=["check"]
check.ex18_6(place)

# %% [markdown]
# Here are the eight rows without the swizzle, and then with your function. Move the slider through the chunks, and watch the number of wavefronts:


# %%
def as_it_comes(row, column):
    return column


chunk_map(as_it_comes, "rows as they come")

# %% tags=["uses-exercise"]
chunk_map(place, "rows with your swizzle")

# %% [markdown]
# Each chunk of the eight rows now lies in eight different groups of four banks, so one wavefront reads it.
#
# ## 3. A product of four warps
#
# A warp group has 128 threads: four warps with consecutive numbers, the first of which is a multiple of four. Together they execute `wgmma`, which multiplies a 64 × 16 piece of A by a 16 × n piece of Bᵀ. You choose n, a multiple of 8 up to 256:

# %%
product = wgmma(COLUMNS, "bf16")  # product(total, of_a, of_b, add) -> total

# %% [markdown]
# - `of_a` and `of_b` are **matrix descriptors**. A descriptor is a 64-bit number that says where a matrix starts in shared memory, and how its rows are arranged. `matrix_descriptor(tile, (row, column), 16, 1024, 128)` describes the matrix that starts at this element of a tile with our layout: the swizzle has 128 bytes, and the next eight rows are 1,024 bytes away. (The 16 is a distance that this layout does not use.) Give the column without the swizzle: the hardware applies it.
# - `total` is a tuple: the accumulators of this thread.
# - `add` says whether the product is added to `total`. If it is `False`, the product replaces it.
#
# **Predict.** How many accumulators has a thread, with 32 columns? `___`

# %% tags=["guess"]
guess("18c accumulators", accumulators=...)

# %% [markdown]
# `product` is asynchronous: it starts the work and returns. Three more calls go with it, and all 128 threads execute each of them:
#
# | call | meaning |
# |---|---|
# | `total = wgmma_fence(total)` | call it before the first product: earlier accesses to these registers come before the product |
# | `wgmma_commit()` | all products since the last commit form a **group** |
# | `total = wgmma_wait_0(total)` | wait until no group is pending; only now may you read `total`, or write to the tiles |
#
# The calls take `total` and return it. That is for the compiler: it must not move an access to these registers across the fence or the wait.
#
# ### Exercise 18.7 · add_tiles · about seven lines
#
# The device function `add_tiles(total, a, b)` adds the product of two tiles to the accumulators and returns them. `a` is a tile of A, 64 × 64, and `b` a tile of B, `COLUMNS` × 64, both swizzled. One product takes 16 columns of both tiles. Start all products of a call, put them into one group, and wait once. Do not use `cuda.syncthreads`: in section 6 the block has a fifth warp that does not call `add_tiles`.
#
# <details><summary>Hint 1: the order</summary>
#
# Fence; then the products in a loop; then commit; then wait.
#
# </details>
# <details><summary>Hint 2: the loop</summary>
#
# `for first in range(0, 64, 16)`: the descriptors start at `(0, first)` in `a` and in `b`, and `product` adds to `total`.
#
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def add_tiles(total, a, b):
    """Return the accumulators plus the product of tile a (64, 64) and the transpose
    of tile b (COLUMNS, 64), both int16 with the 128-byte swizzle."""
    # BEGIN SOLUTION 18.7
    total = wgmma_fence(total)
    for first in range(0, 64, 16):
        of_a = matrix_descriptor(a, (0, first), 16, 1024, 128)
        of_b = matrix_descriptor(b, (0, first), 16, 1024, 128)
        total = product(total, of_a, of_b, True)
    wgmma_commit()
    return wgmma_wait_0(total)
    # END SOLUTION


# %% tags=["check"]
check.ex18_7(add_tiles)

# %% [markdown]
# Now a whole kernel for one step, by one warp group. The threads fill the tiles with your swizzle, and `add_tiles` does the rest. Read the kernel. Only the call of `fence_proxy_async` is new:

# %% tags=["uses-exercise"]
ZEROS = (float32(0),) * (COLUMNS // 2)


@cuda.jit(device=True)
def fill(tile, source):
    """Copy source (rows, 64) to a tile, with the swizzle."""
    for element in range(cuda.threadIdx.x, source.size, cuda.blockDim.x):
        row, column = element // 64, element % 64
        tile[row, place(row, column)] = source[row, column]


@cuda.jit(device=True)
def store(total, c):
    """Store the accumulators of this thread to this block's part of c."""
    thread = cuda.threadIdx.x
    row = 64 * cuda.blockIdx.y + thread // 32 * 16 + thread % 32 // 4
    column = COLUMNS * cuda.blockIdx.x + thread % 4 * 2
    for j in range(COLUMNS // 8):
        c[row, column + 8 * j] = total[4 * j]
        c[row, column + 8 * j + 1] = total[4 * j + 1]
        c[row + 8, column + 8 * j] = total[4 * j + 2]
        c[row + 8, column + 8 * j + 1] = total[4 * j + 3]


def one_step(a, b, c):
    a_tile = cuda.shared.array((64, 64), int16, alignment=1024)
    b_tile = cuda.shared.array((COLUMNS, 64), int16, alignment=1024)
    fill(a_tile, a)
    fill(b_tile, b)
    fence_proxy_async()
    cuda.syncthreads()
    store(add_tiles(ZEROS, a_tile, b_tile), c)


a, b = bf16(rng.standard_normal((64, 64))), bf16(rng.standard_normal((COLUMNS, 64)))
c = np.full((64, COLUMNS), np.nan, float32)
simulate(one_step)[1, 128](a, b, c)
print("right:", bool(np.abs(c - exact(a) @ exact(b).T).max() < 1e-4))

# %% [markdown]
# ## 4. Two ways to the same memory
#
# What does `fence_proxy_async()` do? Ordinary loads and stores reach shared memory on one path, which NVIDIA calls the **generic proxy**. Asynchronous copies and products reach it on another path, the **async proxy**. A barrier orders the accesses on the first path only. If a product reads what threads have stored, a **proxy fence** must lie on the way from the stores to the product, in addition to the barrier.
#
# Here are three other versions of the kernel. **Guess before you run**: which of them are faulty?
#
# - ( ) `no_fence`: no `fence_proxy_async`
# - ( ) `fence_last`: the fence stands after the barrier
# - ( ) `impatient`: the tile of B is filled again, for the next step, before the wait


# %% tags=["uses-exercise"]
def no_fence(a, b, c):
    a_tile = cuda.shared.array((64, 64), int16, alignment=1024)
    b_tile = cuda.shared.array((COLUMNS, 64), int16, alignment=1024)
    fill(a_tile, a)
    fill(b_tile, b)
    cuda.syncthreads()
    store(add_tiles(ZEROS, a_tile, b_tile), c)


def fence_last(a, b, c):
    a_tile = cuda.shared.array((64, 64), int16, alignment=1024)
    b_tile = cuda.shared.array((COLUMNS, 64), int16, alignment=1024)
    fill(a_tile, a)
    fill(b_tile, b)
    cuda.syncthreads()
    fence_proxy_async()
    store(add_tiles(ZEROS, a_tile, b_tile), c)


def impatient(a, b, c):
    a_tile = cuda.shared.array((64, 64), int16, alignment=1024)
    b_tile = cuda.shared.array((COLUMNS, 64), int16, alignment=1024)
    fill(a_tile, a)
    fill(b_tile, b)
    fence_proxy_async()
    cuda.syncthreads()
    total = wgmma_fence(ZEROS)
    of_a = matrix_descriptor(a_tile, (0, 0), 16, 1024, 128)
    of_b = matrix_descriptor(b_tile, (0, 0), 16, 1024, 128)
    total = product(total, of_a, of_b, True)
    wgmma_commit()
    fill(b_tile, b)
    store(wgmma_wait_0(total), c)


for kernel in (no_fence, fence_last, impatient):
    c = np.zeros((64, COLUMNS), float32)
    report = simulate(kernel, on_finding="report")[1, 128](a, b, c)
    print(f"{kernel.__name__}: {len(report.findings)} finding(s)")
    for finding in report.findings[:1]:
        print(finding.message, "\n")

# %% [markdown]
# `fence_last` is correct. The fence may be executed by the threads that stored, before the barrier, or by the threads that start the product, after it. Both are on the way from the stores to the product. The examples in NVIDIA's *CUDA C++ Programming Guide* use the first form.
#
# A missing fence is hard to notice on a GPU. The stores have usually arrived when the product reads the tile, so the values can be right in every run of your tests.
#
# ## 5. A copy by one thread, and a barrier that counts bytes
#
# On Hopper, one instruction of one thread copies a whole tile from global to shared memory, with the swizzle. The unit that does it is the **tensor memory accelerator (TMA)**. The host describes the array in a **tensor map**: its address, its shape, the shape of the box that one instruction copies, and the swizzle. In a kernel,
#
#     tensor_load(tile, (0, 0), the_map, 0, (column, row), barriers, stage)
#
# copies the box whose first element is (row, column) of the array. The box begins at `(0, 0)` of `tile`. (The coordinates begin with the last axis, as in PTX. The `0` is the position of the map in the array that holds it.) The call returns at once. How do the other threads notice that the tile has arrived? The copy counts its bytes at an **mbarrier**, a barrier object in shared memory. `barriers[stage]` is one of these barriers. It is stored as an int64.
#
# An mbarrier goes through phases 0, 1, 2, … In each phase it waits for two things: a fixed number of **arrivals**, and the delivery of all **expected bytes**. Here is a barrier with one arrival:
#
# | operation | arrivals missing | bytes expected, not delivered | phase |
# |---|---:|---:|---:|
# | start | 1 | 0 | 0 |
# | a thread expects 12,288 bytes, and arrives | 0 | 12,288 | 0 |
# | the copy of A delivers 8,192 bytes | 0 | 4,096 | 0 |
# | the copy of B delivers 4,096 bytes | 0 → 1 | 0 | **1** |
#
# With the last byte the phase ends. The barrier starts the next phase by itself: one arrival is missing again.
#
# A thread cannot wait for the number of a phase. It tests whether the phase with **parity** 0 (or 1) is complete. That is true if the barrier is now in a phase with the *other* parity. One bit is enough as long as no thread falls two phases behind, and the pipeline of section 6 guarantees that.
#
# **Predict.** A new barrier is in phase 0. Is the phase with parity 1 complete, before anything has happened? `___`

# %% tags=["guess"]
guess("18c new barrier", complete=...)

# %% [markdown]
# ### Exercise 18.8 · TransactionBarrier · about twelve lines
#
# Build the barrier in plain Python. `TransactionBarrier(arrivals)` is a new barrier. `arrive()` is one arrival. `expect(nbytes)` adds expected bytes, and then arrives. `deliver(nbytes)` counts delivered bytes of a copy. `is_complete(parity)` returns whether the phase with this parity is complete. Bytes may be delivered before a thread expects them, as long as the phase has not ended.
#
# <details><summary>Hint 1: one test for both</summary>
#
# The last arrival can end a phase, and so can the last byte. Write one method that tests for the end and starts the next phase, and call it from all three operations.
#
# </details>
# <details><summary>Hint 2: early bytes</summary>
#
# Subtract delivered bytes from one counter, and add expected bytes to it. The counter may be negative for a while.
#
# </details>


# %% tags=["exercise"]
class TransactionBarrier:
    """A barrier whose phases end when all threads have arrived and all expected
    bytes have been delivered."""

    def __init__(self, arrivals):
        """Start phase 0, which waits for this number of arrivals."""
        # BEGIN SOLUTION 18.8
        self.arrivals = self.missing = arrivals
        self.nbytes = self.phase = 0
        # END SOLUTION

    def arrive(self):
        """Count one arrival."""
        # BEGIN SOLUTION 18.8
        self.missing -= 1
        self.end_phase()
        # END SOLUTION

    def expect(self, nbytes):
        """Expect this number of bytes in addition, and count one arrival."""
        # BEGIN SOLUTION 18.8
        self.nbytes += nbytes
        self.arrive()
        # END SOLUTION

    def deliver(self, nbytes):
        """Count this number of delivered bytes."""
        # BEGIN SOLUTION 18.8
        self.nbytes -= nbytes
        self.end_phase()
        # END SOLUTION

    def is_complete(self, parity):
        """Return whether the phase with this parity, 0 or 1, is complete."""
        # BEGIN SOLUTION 18.8
        return self.phase % 2 != parity

    def end_phase(self):
        """Start the next phase if nothing is missing in this one."""
        if self.missing == 0 and self.nbytes == 0:
            self.phase += 1
            self.missing = self.arrivals
        # END SOLUTION


# %% tags=["check"]
check.ex18_8(TransactionBarrier)

# %% [markdown]
# ## 6. A pipeline
#
# Now divide the work among the warps. Four warps only multiply: they are the **consumer**. One thread of a fifth warp only starts copies: it is the **producer**. This division of labour is called **warp specialisation**. The tiles have `STAGES` buffers, called **stages**, so that the producer can fill one stage while the consumer reads another.
#
# Each side must wait for the other, so each stage has two barriers:
#
# - `full[stage]` counts bytes. The producer expects the bytes of both tiles, and the consumer waits.
# - `empty[stage]` counts arrivals. Each of the 128 consumer threads arrives when it has finished with the stage, and the producer waits.
#
# Step `s` uses stage `s % STAGES`, in round `s // STAGES`:
#
# | step | stage | round | consumer waits for phase … of `full[stage]` | producer waits for phase … of `empty[stage]` |
# |---:|---:|---:|---:|---:|
# | 0 | 0 | 0 | 0 | none: the stage is empty |
# | 1 | 1 | 0 | 0 | none |
# | 2 | 0 | 1 | 1 | 0 |
# | 3 | 1 | 1 | 1 | 0 |
# | 4 | 0 | 2 | 2 | 1 |
#
# In round `r`, the consumer waits for phase `r`. The code therefore calls the number of the round `phase`. NVIDIA's library CUTLASS uses the same name, but stores only the parity.
#
# **Predict.** Which parity does the consumer wait for in round 5? `___` And the producer? `___` What does that mean in round 0?

# %% tags=["guess"]
guess("18c parities", consumer=..., producer=...)

# %% [markdown]
# <details><summary>Answer</summary>
#
# The consumer waits for parity r % 2. The producer waits for phase r − 1, which has parity (r + 1) % 2. In round 0 that is parity 1 of a new barrier, which counts as complete: the producer does not wait. It needs no special case.
#
# </details>
#
# This device function waits:


# %%
@cuda.jit(device=True)
def wait(barriers, stage, parity):
    """Wait until the phase with this parity is complete."""
    while not mbarrier_try_wait(barriers, stage, parity):
        pass


# %% [markdown]
# ### Exercise 18.9 · consume · about six lines
#
# All 128 consumer threads call `consume(total, steps, a, b, full, empty)`. It adds the products of all steps to the accumulators and returns them. `a` is (stages, 64, 64) and `b` (stages, `COLUMNS`, 64), so `a[stage]` is the tile of A in a stage. Take the number of stages from `full.shape[0]`: the check also tries one stage, and up to six. Use your `add_tiles`, the function `wait`, and `mbarrier_arrive(barriers, stage)`.
#
# <details><summary>Hint: when to arrive</summary>
#
# When `add_tiles` returns, it has waited for its products, so nothing reads the stage any more. That is the moment to arrive at `empty[stage]`.
#
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def consume(total, steps, a, b, full, empty):
    """Return the accumulators plus the products of all steps. Each thread arrives
    at empty[stage] once per step."""
    # BEGIN SOLUTION 18.9
    for step in range(steps):
        stage, phase = step % full.shape[0], step // full.shape[0]
        wait(full, stage, phase % 2)
        total = add_tiles(total, a[stage], b[stage])
        mbarrier_arrive(empty, stage)
    return total
    # END SOLUTION


# %% tags=["check"]
check.ex18_9(consume)

# %% [markdown]
# ### Exercise 18.10 · produce · about eight lines
#
# One thread calls `produce(map_a, map_b, steps, a, b, full, empty)`. In each step it waits until the stage is empty, expects the bytes of both tiles by `mbarrier_expect(full, stage, nbytes)`, which also arrives, and starts two copies. Block (x, y) needs the rows of A from 64 y on, and the rows of B from `b.shape[1]` · x on. Take the numbers of stages and rows from the shapes of the arrays: the check also tries other sizes of `b`.
#
# <details><summary>Hint 1: bytes</summary>
#
# A tile of A has `a.shape[1]` rows of 64 numbers, 2 bytes each.
#
# </details>
# <details><summary>Hint 2: a copy</summary>
#
# `tensor_load(a, (stage, 0, 0), map_a, 0, (64 * step, 64 * cuda.blockIdx.y), full, stage)`
#
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def produce(map_a, map_b, steps, a, b, full, empty):
    """Fill the stages of a (stages, 64, 64) and b (stages, columns, 64) with the
    tiles of all steps."""
    # BEGIN SOLUTION 18.10
    row, column = a.shape[1] * cuda.blockIdx.y, b.shape[1] * cuda.blockIdx.x
    for step in range(steps):
        stage, phase = step % full.shape[0], step // full.shape[0]
        wait(empty, stage, (phase + 1) % 2)
        mbarrier_expect(full, stage, 2 * 64 * (a.shape[1] + b.shape[1]))
        tensor_load(a, (stage, 0, 0), map_a, 0, (64 * step, row), full, stage)
        tensor_load(b, (stage, 0, 0), map_b, 0, (64 * step, column), full, stage)
    # END SOLUTION


# %% tags=["check"]
check.ex18_10(produce)

# %% [markdown]
# Here is the whole kernel. It is made by a function that takes the two halves, so that section 7 can exchange one of them. One thread initialises the barriers, and `fence_mbarrier_init` makes them visible to the copy unit. The other 31 threads of the producer's warp have nothing to do.


# %% tags=["uses-exercise"]
def matmul_of(produce, consume):
    """Return the kernel in which one thread produces and four warps consume."""

    @cuda.jit
    def matmul(map_a, map_b, steps, c):
        a = cuda.shared.array((STAGES, 64, 64), int16, alignment=1024)
        b = cuda.shared.array((STAGES, COLUMNS, 64), int16, alignment=1024)
        full = cuda.shared.array(STAGES, int64)
        empty = cuda.shared.array(STAGES, int64)
        thread = cuda.threadIdx.x
        if thread == 0:
            for stage in range(STAGES):
                mbarrier_init(full, stage, 1)
                mbarrier_init(empty, stage, 128)
            fence_mbarrier_init()
        cuda.syncthreads()
        if thread == 128:
            produce(map_a, map_b, steps, a, b, full, empty)
        elif thread < 128:
            store(consume(ZEROS, steps, a, b, full, empty), c)

    return matmul


def maps(a, b):
    """Return the tensor maps for the tiles of a and b."""
    boxes = (a, (64, 64)), (b, (COLUMNS, 64))
    return [tensor_map(matrix, box, swizzle=128) for matrix, box in boxes]


matmul = matmul_of(produce, consume)
a, b = bf16(rng.standard_normal((64, 192))), bf16(rng.standard_normal((COLUMNS, 192)))
c = np.full((64, COLUMNS), np.nan, float32)
seen = Pipeline()
report = simulate(matmul, observers=[*DEFAULT, seen])[1, 160](*maps(a, b), 3, c)
print("right:", bool(np.abs(c - exact(a) @ exact(b).T).max() < 1e-3))

# %% [markdown]
# The next figure shows what happened, in the order of events. A bar is a copy or a product, from its start to its end; the products of the four warps have a row each. **Predict**: how many copies have been started before the first product starts? `___` And which event lets the producer start the copies of step 2? `___`

# %% tags=["guess"]
guess("18c copies", started=..., lets_step_2_start=...)

# %% tags=["uses-exercise"]
pipeline(seen.events, "your pipeline: three steps, two stages")

# %% [markdown]
# Four copies: both tiles of steps 0 and 1. The copies of step 2 need stage 0, so they start when the last of the 128 threads has arrived at `empty[0]`, and not earlier. (`sim` lets each copy end as late as your program allows. On a GPU, a copy may end earlier.)
#
# ## 7. What can go wrong
#
# Each version below changes one line of the kernel. **Guess before you run**: what happens on a GPU, and what does `sim` say?
#
# - ( ) `only_a`: the producer expects the bytes of A alone
# - ( ) `too_soon`: the consumer arrives at `empty` before it multiplies
# - ( ) `one_parity`: the consumer always waits for parity 0


# %% jupyter={"source_hidden": true} tags=["uses-exercise"]
@cuda.jit(device=True)
def expects_a(map_a, map_b, steps, a, b, full, empty):
    for step in range(steps):
        stage, phase = step % STAGES, step // STAGES
        wait(empty, stage, (phase + 1) % 2)
        mbarrier_expect(full, stage, 2 * 64 * a.shape[1])
        tensor_load(a, (stage, 0, 0), map_a, 0, (64 * step, 0), full, stage)
        tensor_load(b, (stage, 0, 0), map_b, 0, (64 * step, 0), full, stage)


@cuda.jit(device=True)
def arrives_first(total, steps, a, b, full, empty):
    for step in range(steps):
        stage, phase = step % STAGES, step // STAGES
        wait(full, stage, phase % 2)
        mbarrier_arrive(empty, stage)
        total = add_tiles(total, a[stage], b[stage])
    return total


@cuda.jit(device=True)
def parity_0(total, steps, a, b, full, empty):
    for step in range(steps):
        stage = step % STAGES
        wait(full, stage, 0)
        total = add_tiles(total, a[stage], b[stage])
        mbarrier_arrive(empty, stage)
    return total


# %% tags=["uses-exercise"]
for name, kernel in [
    ("only_a", matmul_of(expects_a, consume)),
    ("too_soon", matmul_of(produce, arrives_first)),
    ("one_parity", matmul_of(produce, parity_0)),
]:
    launched = simulate(kernel, on_finding="report", max_steps=4000)
    report = launched[1, 160](*maps(a, b), 3, np.zeros((64, COLUMNS), float32))
    print(f"{name}: {len(report.findings)} finding(s)")
    for finding in report.findings[:1]:
        print(finding.message, "\n")

# %% [markdown]
# All three are races, and `sim` reports them as `async-copy`: a product reads a tile while a copy may still write to it.
#
# - `only_a`: the barrier expects 8,192 bytes, and it does not matter which copy delivers them. The phase can end before the copy of B has ended, and the consumer then reads B too early.
# - `too_soon`: the consumer threads arrive before the products have finished reading the stage. The producer then starts the copies of a later step, which write to the tile that a product reads.
# - `one_parity`: in round 1 the consumer waits for parity 0. The phase with parity 0 is complete since round 0, so the wait ends at once.
#
# On a GPU, the speed of the copies decides what happens. `only_a` returns correct values if the copies of B happen to end early enough, and `too_soon` if the later copies happen to begin late enough. `one_parity` multiplies the tiles of round 0 again. If the copies of round 1 have already ended when it tests, it is even worse: the barrier is then in phase 2, the phase with parity 0 is not complete, and the kernel waits for ever.
#
# The opposite mistakes are easier to notice: a producer that expects too many bytes leaves the consumer waiting for ever, and `sim` reports a deadlock.

# %% [markdown]
# ## The ladder
#
# The last rung is the matmul of lesson 16b once more, now as a pipeline. On a GPU the same source runs with `COLUMNS, STAGES = 256, 4`, read from your saved notebook. The simulator counts only what the threads load and store themselves. **Predict**: does the number of transactions grow or shrink, compared with lesson 16b, and why? `___`

# %% tags=["guess"]
guess("18c ladder", transactions=...)

# %% tags=["uses-exercise"]
show_ladder("18c", matmul_of, produce, consume)

# %% [markdown]
# With a GPU of compute capability 9.0, the next cell times your own kernel on it:

# %% tags=["gpu"]
time_rung("18c", matmul_of, produce, consume)

# %% [markdown]
# The number falls to about a fifth. The threads no longer load operands: the copies and the products access memory on their own, without an instruction for every few bytes. What is left are waits, arrivals, and the stores of C. In such a kernel, the threads mostly decide when the other units start.
#
# This rung is the fastest of the ladder as a fraction of its limit, and PyTorch's library is still more than twice as fast. Faster kernels, such as those of CUTLASS, let two consumer groups share each tile of B, keep the blocks resident for several tiles of C (a persistent grid), and store C while the next tile is multiplied.
#
# ## Validate
#
# Compare your pipeline with the exact product of the rounded inputs, in float64. A sum of whole numbers has to be equal bit for bit; for other numbers the tolerance is 10⁻³.

# %% tags=["uses-exercise"]
rows = []
for what, shape, tolerance in [
    ("whole numbers", (64, 64, 192), 0),
    ("normal numbers, two blocks", (128, 32, 128), 1e-3),
]:
    m, n, k = shape
    a, b = rng.standard_normal((m, k)), rng.standard_normal((n, k))
    if tolerance == 0:
        a, b = np.round(4 * a), np.round(4 * b)
    a, b = bf16(a), bf16(b)
    c = np.full((m, n), np.nan, float32)
    grid = n // COLUMNS, m // 64
    report = simulate(matmul)[grid, 160](*maps(a, b), k // 64, c)
    near = bool(np.abs(c - exact(a) @ exact(b).T).max() <= tolerance)
    rows.append([what, str(shape)[1:-1], near, len(report.findings)])
show_table(["inputs", "m, n, k", "within the tolerance", "findings of sim"], *rows)

# %% [markdown]
# ## In four lines
#
# - A swizzle permutes the chunks of each row, so that the same chunk of eight rows lies in eight different groups of banks. The copy unit and the tensor cores apply it.
# - `wgmma` returns before its product is done. Fence, products, commit, wait: until the wait you may touch neither its accumulators nor its operands.
# - Threads and asynchronous units use different paths to memory. Between ordinary stores and a product that reads them, there must be `fence_proxy_async` as well as a barrier.
# - An mbarrier counts arrivals and bytes. With two of them for each stage, one thread copies while four warps multiply.
#
# **You can now** read the main loop of a modern matmul or attention kernel, and say which barrier or fence protects which tile.
#
# **Read on:** NVIDIA, *PTX ISA*, sections "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions", "Async proxy" and "mbarrier" · Jay Shah, Ganesh Bikshandi, Ying Zhang, Vijay Thakkar, Pradeep Ramani and Tri Dao, *FlashAttention-3: Fast and Accurate Attention with Asynchrony and Low-precision* (2024, arXiv:2407.08608), whose two consumers take turns · the [glossary](../docs/glossary.md) of this course.
#
# **Next:** [lesson 19](19_heads.ipynb) builds the whole multi-token layer, in which heads mix.
