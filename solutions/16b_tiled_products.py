# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 16b · Tensor cores: fragments by one instruction, products of any size
#
# **60 minutes** · builds on lesson 16 (fragments, `bound`), lesson 03b (the tiled matmul) and lesson 08 (banks, padding)
#
# You will be able to
#
# 1. load fragments with `ldmatrix`, without bank conflicts;
# 2. write a matrix product in tiles by four warps;
# 3. count how many multiply-adds a wavefront of shared memory feeds.
#
# In lesson 16 a warp multiplied two small matrices, and loaded its fragments word by word. Now you load them as fast as shared memory allows, and multiply matrices of any size.

# %%
import json

import numpy as np
from ml_dtypes import bfloat16
from numba import cuda
from numpy import float32, int16, uint32

from course import brought, check, guess, show_table
from course.fragments import bank_map
from course.ladder import show_ladder, time_rung
from kernels.common.data import DATA
from kernels.tensor_cores.instructions import ldmatrix_x4, ldmatrix_x4_trans, mma_bf16
from sim import simulate
from sim.observers import COUNTERS, DEFAULT, Trace

lesson08 = json.loads((DATA / "lesson08.json").read_text("utf-8"))
tiled = lesson08["roofline"]["matmul_tiled"]
rng = np.random.default_rng(16)
bound = brought("16_tensor_cores", "bound")

# %% [markdown]
# ## 1. ldmatrix
#
# In lesson 16's `product`, each lane loads its fragments word by word, with six loads per `mma`. For shared memory there is a single instruction, `ldmatrix`, that fills up to four registers in every lane:
#
#     r0, r1, r2, r3 = ldmatrix_x4(tile, (row, column))
#
# It loads four 8 × 8 matrices of 16-bit numbers. A row of such a matrix has 8 numbers, or 16 bytes. **Each lane supplies the address of one row**, and receives words of other rows:
#
# | | |
# |---|---|
# | lanes 0 to 7 supply | the addresses of rows 0 to 7 of matrix 0 |
# | lanes 8 to 15 supply | the same for matrix 1 |
# | lanes 16 to 23 supply | the same for matrix 2 |
# | lanes 24 to 31 supply | the same for matrix 3 |
# | each lane receives | in register r, a word of matrix r: row lane // 4, columns 2 (lane % 4) and the next |
#
# The row that a lane points to is in general not the row whose words it receives. For A, register `a0` comes from the top left 8 × 8 matrix, `a1` from the one at the **bottom left** (look at the picture of lesson 16, section 2), `a2` from the top right, and `a3` from the bottom right.
#
# **Predict.** Let the piece of A begin at (0, 0). Which row and column does lane 3 supply? (A guess looks like `(1, 8)`.) `___` lane 11? `___` lane 19? `___` lane 31? `___`

# %% tags=["guess"]
guess("16b addresses", lane_3=..., lane_11=..., lane_19=..., lane_31=...)

# %% [markdown]
# If B is stored row-major, as V is in P V, the two entries that share a register are in the same *column*, and so are not adjacent in memory. `ldmatrix_x4_trans` takes the same addresses, and transposes each 8 × 8 matrix while loading it. A 16 × 8 piece of B has only two such matrices, so one call loads B for two products: `b0, b1` for columns 0 to 7, and `b2, b3` for columns 8 to 15.
#
# ### Exercise 16.4 · fragments · about four lines
#
# The device function `fragments(a_tile, b_tile, row, column, step)` returns eight registers: `a0` to `a3` of the 16 × 16 piece of `a_tile` whose first entry is (row, step), and `b0` to `b3` of the 16 × 16 piece of `b_tile` whose first entry is (step, column). b0 and b1 are from its left half. Both tiles are in shared memory, row-major, int16 (the bits of bfloat16). They may have any number of rows. Use two instructions and no plain load. Each warp may call it with its own corner; `row` is any index, and `column` and `step` are multiples of 8.
#
# <details><summary>Hint 1: rows and columns of 8</summary>
#
# `lane % 16` counts the rows of matrices 0 and 1, which are one below the other. `lane // 16 * 8` moves 8 columns to the right for the other two.
#
# </details>
# <details><summary>Hint 2: which matrix of B is b1?</summary>
#
# In the picture of lesson 16, section 2, `b1` is below `b0`: rows 8 to 15 of B, same columns.
#
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def fragments(a_tile, b_tile, row, column, step):
    """Return a0, a1, a2, a3 of a_tile at (row, step) and
    b0, b1, b2, b3 of b_tile at (step, column), 16 × 16 entries each."""
    # BEGIN SOLUTION 16.4
    lane = cuda.threadIdx.x % 32
    i, j = lane % 16, lane // 16 * 8
    a0, a1, a2, a3 = ldmatrix_x4(a_tile, (row + i, step + j))
    b0, b1, b2, b3 = ldmatrix_x4_trans(b_tile, (step + i, column + j))
    return a0, a1, a2, a3, b0, b1, b2, b3
    # END SOLUTION


# %% tags=["check"]
check.ex16_4(fragments)

# %% [markdown]
# Each address must be a multiple of 16 bytes. **Predict**: the next kernel has a tile with rows of 36 numbers, 72 bytes. Which rows of it can `ldmatrix` not read? `___`

# %% tags=["guess"]
guess("16b misaligned", rows=...)


# %%
def misaligned(out):
    tile = cuda.shared.array((16, 36), int16, alignment=16)
    lane = cuda.threadIdx.x
    for row in range(16):
        tile[row, lane] = int16(row)
    cuda.syncwarp()
    a0, a1, a2, a3 = ldmatrix_x4(tile, (lane % 16, lane // 16 * 8))
    out[lane] = a0


report = simulate(misaligned, on_finding="report")[1, 32](np.zeros(32, uint32))
print(report.findings[0].message)

# %% [markdown]
# Every odd row begins 8 bytes after a multiple of 16. A GPU would stop the kernel with the error "misaligned address".
#
# ### Banks once more
#
# `ldmatrix` reads one matrix at a time: 8 rows of 16 bytes. These 128 bytes take one **wavefront**, one pass of the 32 banks, if no two words share a bank (lesson 08). Four matrices take at least four wavefronts, so the two instructions of `fragments` take at least 8.
#
# **Predict.** A tile has rows of 32 numbers, or 16 words. In which banks do the rows of a matrix begin, and so how many wavefronts do the 8 rows take? `___` And with rows of 40 numbers? `___`

# %% tags=["guess"]
guess("16b banks", rows_of_32=..., rows_of_40=...)


# %% tags=["uses-exercise"]
def one_warp(pitch):
    """Return a kernel in which one warp loads fragments
    from tiles with rows of `pitch` numbers."""

    def kernel(out):
        a_tile = cuda.shared.array((16, pitch), int16, alignment=16)
        b_tile = cuda.shared.array((16, pitch), int16, alignment=16)
        lane = cuda.threadIdx.x
        for e in range(lane, 256, 32):
            a_tile[e // 16, e % 16] = b_tile[e // 16, e % 16] = int16(e)
        cuda.syncwarp()
        a0, a1, a2, a3, b0, b1, b2, b3 = fragments(a_tile, b_tile, 0, 0, 0)
        out[lane] = a0

    return kernel


def wavefronts_of_ldmatrix(pitch):
    """Return the wavefronts of the loads, and the report."""
    tools = [*DEFAULT, *COUNTERS, Trace]
    report = simulate(one_warp(pitch), observers=tools)[1, 32](np.zeros(32, uint32))
    lines = report.counters["lines"].items()
    return sum(
        line.get("wavefronts", 0) for (name, _), line in lines if name != "kernel"
    ), report


for pitch in (32, 40):
    count, report = wavefronts_of_ldmatrix(pitch)
    print(f"rows of {pitch} numbers: {count} wavefronts for fragments")
bank_map(
    wavefronts_of_ldmatrix(32)[1],
    "a_tile",
    "rows of 32 numbers: banks of your ldmatrix",
)

# %% [markdown]
# With 16 words per row, every second row begins in bank 0 and the others begin in bank 16, so four rows compete for the same banks. With 20 words (40 numbers) the rows begin in banks 0, 20, 8, 28, 16, 4, 24 and 12, and no two rows share a bank:

# %% tags=["uses-exercise"]
bank_map(
    wavefronts_of_ldmatrix(40)[1],
    "a_tile",
    "rows of 40 numbers: banks of your ldmatrix",
)

# %% [markdown]
# **Predict**, before you run the next cell, which of the pitches (the distance between rows) 48, 56, 64, 72 and 80 give 8 wavefronts: `___` (A row must begin at a multiple of 16 bytes, so only multiples of 8 numbers are possible.)

# %% tags=["guess"]
guess("16b pitches", pitches=...)

# %% tags=["uses-exercise"]
show_table(
    ["numbers per row", "words", "wavefronts"],
    *(
        [pitch, pitch // 2, wavefronts_of_ldmatrix(pitch)[0]]
        for pitch in range(48, 81, 8)
    ),
)

# %% [markdown]
# The rule: a row must have an *odd number of 16-byte chunks*: 5 (40 numbers), 7, 9. This is lesson 08's odd-pitch rule, with 16-byte chunks (four banks) as the unit instead of one bank.
#
# <details><summary>Without padding: a swizzle</summary>
#
# Padding costs memory. The alternative is a **swizzle**: a permutation of the addresses in a tile that avoids bank conflicts without padding. The rows keep their length, and the 16-byte chunks within each row change places: for rows of 4 chunks, chunk c of row r is stored as chunk `c ^ (r // 2 % 4)`. Loads apply the same permutation. The eight rows of a matrix then occupy eight different sets of four banks. CUTLASS and the hardware that copies tiles on newer GPUs (TMA, in lesson 18c) use swizzles. This course pads, because padding is easier to read.
#
# </details>
#
# ## 2. A tiled product by four warps
#
# Now put it all together: lesson 03b's `matmul` once more, for a of (m, k) and b of (k, n), both row-major, in bfloat16. A block of four warps computes a 32 × 32 tile of c. Each warp computes 16 × 16 entries of it, as two products next to each other:
#
#     ┌────────┬────────┐
#     │ warp 0 │ warp 1 │  16 rows
#     ├────────┼────────┤
#     │ warp 2 │ warp 3 │
#     └────────┴────────┘
#
# In each iteration over K the block loads a 32 × 32 tile of a and one of b. Each warp then does two k-steps of 16, with two `mma` per step. Two helpers are given: in `load_tile` the threads load a tile together, as in lesson 05, and `store_piece` stores a fragment of D. Both skip entries outside the matrix.


# %%
@cuda.jit(device=True)
def load_tile(tile, x, row, column):
    """Copy x[row : row + 32, column : column + 32] to tile[:32, :32] with 128 threads,
    with zeros for entries outside x."""
    for e in range(cuda.threadIdx.x, 32 * 32, 128):
        i, j = e // 32, e % 32
        inside = row + i < x.shape[0] and column + j < x.shape[1]
        tile[i, j] = x[row + i, column + j] if inside else int16(0)


@cuda.jit(device=True)
def store_piece(c, row, column, d0, d1, d2, d3):
    """Store a fragment of D as the 16 × 8 entries of c that begin at (row, column)."""
    lane = cuda.threadIdx.x % 32
    i, j = row + lane // 4, column + lane % 4 * 2
    if i < c.shape[0] and j < c.shape[1]:
        c[i, j] = d0
    if i < c.shape[0] and j + 1 < c.shape[1]:
        c[i, j + 1] = d1
    if i + 8 < c.shape[0] and j < c.shape[1]:
        c[i + 8, j] = d2
    if i + 8 < c.shape[0] and j + 1 < c.shape[1]:
        c[i + 8, j + 1] = d3


# %% [markdown]
# ### Exercise 16.5 · matmul · about fifteen lines
#
# Block (x, y) computes the tile whose first row is 32 y and whose first column is 32 x. It has 128 threads. Keep one tile of a and one of b in shared memory, loaded by `load_tile`, with **no bank conflict** anywhere and at most 72 numbers per row. Pass `alignment=16`, because Numba may otherwise begin an int16 array at any multiple of 2 bytes. Load fragments with `ldmatrix` and use `mma_bf16` for all products. Each warp loads each of its fragments once, and computes its own quarter of the tile and nothing else. The accumulators stay in float32 registers. The kernel must work for any m, k and n, and `sim` must find nothing.
#
# <details><summary>Hint 1: shared memory</summary>
#
# `cuda.shared.array((32, ...), int16, alignment=16)`, twice. Replace the dots with a number from the table above.
#
# </details>
# <details><summary>Hint 2: who owns what</summary>
#
# `warp = cuda.threadIdx.x // 32`. Within the tiles, the warp's part begins at row `warp // 2 * 16` and column `warp % 2 * 16`. Its eight accumulators are two fragments of D: c0 to c3 for the left 8 columns (b0, b1), and e0 to e3 for the right 8 columns (b2, b3).
#
# </details>
# <details><summary>Hint 3: the loop</summary>
#
# `for start in range(0, a.shape[1], 32)`: load both tiles, barrier, the k-steps 0 and 16 (`fragments`, then two `mma_bf16`), barrier.
#
# </details>


# %% tags=["exercise"]
def matmul(a, b, c):
    """Set c (m, n) float32 to a b, for a (m, k) and b (k, n), int16 bits of bfloat16.
    A block of 128 threads computes a 32 × 32 tile of c."""
    # BEGIN SOLUTION 16.5
    a_tile = cuda.shared.array((32, 40), int16, alignment=16)
    b_tile = cuda.shared.array((32, 40), int16, alignment=16)
    warp = cuda.threadIdx.x // 32
    row, column = warp // 2 * 16, warp % 2 * 16
    i0, j0 = cuda.blockIdx.y * 32, cuda.blockIdx.x * 32
    c0 = c1 = c2 = c3 = e0 = e1 = e2 = e3 = float32(0)
    for start in range(0, a.shape[1], 32):
        load_tile(a_tile, a, i0, start)
        load_tile(b_tile, b, start, j0)
        cuda.syncthreads()  # loaded
        for step in range(0, 32, 16):
            a0, a1, a2, a3, b0, b1, b2, b3 = fragments(
                a_tile, b_tile, row, column, step
            )
            c0, c1, c2, c3 = mma_bf16(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3)
            e0, e1, e2, e3 = mma_bf16(a0, a1, a2, a3, b2, b3, e0, e1, e2, e3)
        cuda.syncthreads()  # used: the next tiles may overwrite these
    store_piece(c, i0 + row, j0 + column, c0, c1, c2, c3)
    store_piece(c, i0 + row, j0 + column + 8, e0, e1, e2, e3)
    # END SOLUTION


# %% tags=["check"]
check.ex16_5(matmul)

# %% [markdown]
# ### What we gained
#
# In lesson 08b's matmul, a warp made 128 multiply-adds (4 per lane) for every six wavefronts of shared memory, about 20 per wavefront. **Predict** how many multiply-adds your kernel makes per wavefront, counting the stores into the tiles too: 20, as there? 100? 250? `___`

# %% tags=["guess"]
guess("16b wavefronts", multiply_adds=...)


# %% tags=["uses-exercise"]
def bits(matrix):
    """Return a matrix in bfloat16, as the int16 bits that kernels take."""
    return np.ascontiguousarray(matrix).astype(bfloat16).view(int16)


def counted(a, b):
    """Return c, computed by your matmul, and the report."""
    (m, _), (_, n) = a.shape, b.shape
    c = np.full((m, n), np.nan, float32)
    launch = simulate(matmul, observers=[*DEFAULT, *COUNTERS])
    return c, launch[(-(-n // 32), -(-m // 32)), 128](bits(a), bits(b), c)


a, b = rng.standard_normal((64, 64)), rng.standard_normal((64, 64))
c, report = counted(a, b)
mine = 64**3 / report.counters["banks"]["wavefronts"]
before = tiled["size"]["n"] ** 3 / tiled["turns"]
show_table(
    ["matmul", "multiply-adds per wavefront of shared memory"],
    ["lesson 08b, float32, recorded", f"{before:.0f}"],
    ["yours, bfloat16, counted", f"{mine:.0f}"],
)

# %% [markdown]
# One wavefront delivers at most 128 bytes. Three changes make better use of them: each number takes half the bytes; `ldmatrix` reads each byte once per warp, whereas before each lane loaded its own copy; and a warp uses each fragment of A for two products. Giving each warp a larger tile of c (32 × 32 or 64 × 32) reuses each fragment more often and goes further. The kernels of lesson 17 do so.
#
# How much time does this save? The next cell reads the recorded forward pass of convolutional attention, causal, with 7 × 7 taps, for 4 sequences of 2048 tokens and 16 heads of 64: once by the float32 kernels, and once by the bfloat16 kernels, which use the instructions of this lesson.

# %%
bench = json.loads((DATA / "bench.json").read_text("utf-8"))
forward = {
    part: row["forward_ms"]
    for part in ("training", "halves")
    for row in bench[part]
    if (row["name"], row["shape"], row["taps"])
    == ("kernels", [4, 16, 2048, 64], [7, 7])
}
print(f"{bench['gpu']}, recorded {bench['date']}")
print(f"float32: {forward['training']:.2f} ms, bfloat16: {forward['halves']:.2f} ms")
print(f"{forward['training'] / forward['halves']:.1f} times faster")

# %% [markdown]
# ## Validate
#
# Compare your matmul, on matrices whose sizes are not multiples of the tile, with float64, with your own bound, and with lesson 03b's matmul of the same rounded numbers:

# %% tags=["uses-exercise"]
in_float32 = brought("03b_sums_and_tiles", "matmul")
TILE = 4  # of lesson 03b
m, k, n = 37, 50, 45
a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
c, report = counted(a, b)
rounded_a, rounded_b = (x.astype(bfloat16).astype(float) for x in (a, b))
by_lesson03 = np.full((m, n), np.nan, float32)
grid = -(-n // TILE), -(-m // TILE)
simulate(in_float32)[grid, (TILE, TILE)](
    rounded_a.astype(float32), rounded_b.astype(float32), by_lesson03
)
show_table(
    ["matmul of this lesson, compared with", "verdict"],
    [
        "float64, from the rounded numbers",
        f"below 1e-5: {bool(np.abs(c - rounded_a @ rounded_b).max() < 1e-5)}",
    ],
    [
        "lesson 03b's matmul, from the rounded numbers",
        f"below 1e-5: {bool(np.abs(c - by_lesson03).max() < 1e-5)}",
    ],
    [
        "float64, from the original numbers",
        f"within your bound: {bool((np.abs(c - a @ b) <= bound(a, b)).all())}",
    ],
    ["findings of sim", str(len(report.findings))],
)

# %% [markdown]
# ### On a real GPU, if there is one
# Tensor cores for bfloat16 came with compute capability 8.0 (2020). If you have such a GPU, the next cell runs your kernel on it. Otherwise it runs your kernel in `sim`. In both cases it prints the same line. (Numba may warn that such a small launch leaves most of the GPU idle. It is right.)

# %% tags=["uses-exercise"]
with_tensor_cores = (
    cuda.is_available() and cuda.get_current_device().compute_capability >= (8, 0)
)
on_this_machine = cuda.jit if with_tensor_cores else simulate
c = np.full((m, n), np.nan, float32)
on_this_machine(matmul)[(-(-n // 32), -(-m // 32)), 128](bits(a), bits(b), c)
print("error below 1e-5:", bool(np.abs(c - rounded_a @ rounded_b).max() < 1e-5))

# %% [markdown]
# ## The ladder
#
# The next rung runs on a different machine, the tensor cores. Their limit is fifteen times as high, and PyTorch's mark stands for its library's matmul. **Predict** the transactions per 1,000 multiply-adds: fewer than in lesson 11, and by what factor? `___`

# %% tags=["guess"]
guess("16b ladder", factor=...)

# %% tags=["uses-exercise"]
show_ladder("16b", matmul)

# %% [markdown]
# With a GPU, the next cell times your own kernel on it:

# %% tags=["gpu"]
time_rung("16b", matmul)

# %% [markdown]
# An `mma` does 2,048 multiply-adds with operands that a few wavefronts loaded. Every rung from here on uses it.
#
# Few transactions do not make a kernel fast. With the recorded times, this rung is hardly nearer to its limit than lesson 06: all warps of a block wait until a tile is loaded, and multiply nothing in the meantime. Lesson 17 starts the loads of the next tile early.
#
# ## In three lines
# - `ldmatrix` takes the address of one row from each lane and returns fragments. Rows with an odd number of 16-byte chunks avoid bank conflicts, and `.trans` loads a row-major B.
# - A warp that uses each fragment for several products needs fewer wavefronts for each multiply-add.
# - Accumulators stay in float32; only the result is rounded.
#
# **You can now** write a kernel for tensor cores, and say before it runs how many wavefronts of shared memory it needs.
#
# **Read on:** NVIDIA, *PTX ISA*, sections on `mma` ("Matrix Fragments for mma.m16n8k16") and `ldmatrix` · NVIDIA, *CUTLASS* documentation, "Efficient GEMM in CUDA", for the tiles of blocks and warps in a library · the [glossary](../docs/glossary.md) of this course.
#
# **Next:** [lesson 17](17_fast_forward.ipynb) uses these instructions for attention, step by step.
