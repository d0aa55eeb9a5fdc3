# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 16 · Tensor cores: the lanes of a warp multiply matrices together
#
# **115 minutes** · builds on lesson 03 (the tiled matmul), lesson 06 (lanes) and lesson 08 (banks, padding)
#
# You will be able to
#
# 1. say which lane of a warp holds which number of A, B and D in a tensor core's product, and draw it from your own kernel;
# 2. write a matrix product for tensor cores: by one warp, then in tiles by four, with `ldmatrix` and no bank conflict;
# 3. say what rounding to bfloat16 costs, and why the sums stay in float32.
#
# **Where this leads.** In lesson 08 a tiled product of two 4096 × 4096 matrices stood in the roofline far below its roof. Here it is again, beside kernels that use tensor cores, all on one H200:

# %%
import json

import matplotlib.pyplot as plt
import numpy as np
from ml_dtypes import bfloat16
from numba import cuda
from numpy import float32, int16, uint32

from course import brought, check, show_figure, show_table
from course.figures import BLUE, GREEN, ORANGE
from course.fragments import bank_map, lane_map, registers
from kernels.common.data import DATA
from kernels.tensor_cores.instructions import ldmatrix_x4, ldmatrix_x4_trans, mma_bf16
from sim import simulate
from sim.observers import COUNTERS, DEFAULT, Trace

lesson08 = json.loads((DATA / "lesson08.json").read_text("utf-8"))
tiled = lesson08["roofline"]["matmul_tiled"]
seconds = tiled["microseconds"] * 1e-6
flops = 2 * tiled["size"]["n"] ** 3
causal_flash = 2 * 2 * 64 * 4 * 16 * 4096**2 / 2  # S and O; half of the scores are seen
rows = [
    ("a tiled matmul, float32", lesson08["date"], seconds, flops),
    ("this package's flash attention, bfloat16", "2026-11-22", 0.482e-3, causal_flash),
]
show_table(
    ["kernel", "recorded", "milliseconds", "TFLOP/s"],
    *(
        [name, date, f"{1e3 * time:.2f}", f"{work / time / 1e12:.0f}"]
        for name, date, time, work in rows
    ),
    title="one NVIDIA H200",
)

# %% [markdown]
# (The second row's time is from this project's log, `docs/log/2026-11.md`: 4 sequences of 4096 tokens, 16 heads of 64, causal.) It does 36 times as many operations per second, exponentials included. No multiplication of float32 numbers, one per lane, can do that: the H200's limit for those is 66.9 TFLOP/s (lesson 08). The second kernel is Python too, and [lesson 17](17_fast_forward.ipynb) builds it. Here you learn the instruction that it stands on.
#
# ## 1. One instruction
#
# When the 32 lanes of a warp execute a multiply-add, each lane makes one: 32 in all. A **tensor core** takes one instruction from the whole warp, and makes a product of matrices:
#
# D = A B + C, with A of 16 × 16 numbers, B of 16 × 8, C and D of 16 × 8.
#
# **Predict.** How many multiply-adds is that? `___` How many ordinary instructions of a warp would it take? `___`
#
# <details><summary>Answer</summary>
#
# 16 · 8 · 16 = 2048, and 2048 / 32 = 64.
#
# </details>
#
# The instruction is called `mma.sync.m16n8k16`: M = 16 rows, N = 8 columns, K = 16 products to sum. The matrices do not lie in memory. They lie in **registers**, spread over the lanes, and no lane holds a whole row of any of them. The piece of a matrix that one lane holds is its **fragment**.
#
# A and B are of 16-bit numbers; here of **bfloat16**, the upper half of a float32: 1 bit for the sign, 8 for the exponent, 7 for the fraction. A register has 32 bits, so two of them share one. Such a pair is a **word**:

# %%
numbers = np.array([1, -2, 1 / 3, 257], bfloat16)
print("numbers", *numbers)
print("bits   ", *(f"{bits:04x}" for bits in numbers.view(np.uint16)))
print("words  ", *(f"{word:08x}" for word in numbers.view(uint32)))

# %% [markdown]
# The first number of a pair is the **lower** half of its word, `3f80` of `c0003f80`. And 257 has become 256: a bfloat16 has 8 significant bits (one is not stored), and 257 needs 9.
#
# **Predict**, for one lane: how many registers for its fragment of A? `___` of B? `___` of D, which is float32? `___`
#
# <details><summary>Answer</summary>
#
# A: 256 numbers / 32 lanes / 2 = 4. B: 128 / 32 / 2 = 2. D: 128 / 32 = 4, and 4 for C.
#
# </details>
#
# So this is the call, in each lane, with its own ten registers; the lane's fragment of D comes back:
#
#     d0, d1, d2, d3 = mma_bf16(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3)
#
# On a GPU it is one line of PTX, written beside its name in `kernels/tensor_cores/instructions.py`; the simulator knows its meaning.
#
# ## 2. Which lane holds what
#
# The picture shows the three matrices as in a product on paper: D = A B, with A to the left of D and B above it. Marked is what a lane holds, and in which register. A word holds two neighbours: of a *row* of A, of a *column* of B.
#
# Move the slider: the lanes 0, 1, 4, 6 and 31. **Look for the rule**: what changes from lane 0 to lane 1? From lane 0 to lane 4?

# %%
registers(0, 1, 4, 6, 31)

# %% [markdown]
# <details><summary>The rule</summary>
#
# Four neighbouring lanes, a **group**, share the rows of A and D and a column of B. From lane to lane within a group it is two columns to the right in A and D, and two rows down in B. From group to group it is one row down in A and D, and one column to the right in B.
#
# </details>
#
# **Predict.** Where does lane 13 hold `d3`? `___` And the two numbers of its `a2`? `___`
#
# <details><summary>Answer</summary>
#
# Lane 13 is number 1 of group 3. `d3` is D[11, 3]; `a2` holds A[3, 10] and A[3, 11].
#
# </details>
#
# ### Exercise 16.1 · load_a · about three lines
#
# The device function `load_a(a, first)` returns the lane's four registers `a0, a1, a2, a3` of a piece of A with 16 rows and 16 columns. `a` is an array of words, two neighbours of a row each: `a[i, j]` holds A[i, 2j] and A[i, 2j + 1]. It has 16 rows; the piece begins at word `first` of each row. Each lane loads its own four words, each once. A block may have several warps, and all need the piece.
#
# <details><summary>Hint 1: group and place</summary>
#
# `lane = cuda.threadIdx.x % 32`; its group is `lane // 4`, its place in the group `lane % 4`.
#
# </details>
# <details><summary>Hint 2: in words</summary>
#
# 16 columns are 8 words. The two numbers of `a0` are one word, number `first + lane % 4` of the row.
#
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def load_a(a, first):
    """a (16, words) uint32 -> a0, a1, a2, a3 of this lane
    for the 8 words of each row from `first` on."""
    # BEGIN SOLUTION 16.1
    lane = cuda.threadIdx.x % 32
    i, j = lane // 4, first + lane % 4
    return a[i, j], a[i + 8, j], a[i, j + 4], a[i + 8, j + 4]
    # END SOLUTION


# %% tags=["check"]
check.ex16_1(load_a)

# %% [markdown]
# ## 3. A product by one warp
#
# B comes by columns: `b[j, k]` is a word of **column** j, with B[2k, j] and B[2k + 1, j]. That is how keys lie in memory. The scores are Q Kᵀ, so a column of B = Kᵀ is a row of K, and it needs no transposition. (The instruction's full name says so: `.row.col`, A by rows and B by columns.)
#
# A product with more than 16 terms per sum is a loop: each `mma` adds to what the one before gave, as `c0` to `c3` are also the registers of D.
#
# ### Exercise 16.2 · product · about nine lines
#
# `out = A B` by one block of one warp: `a` is (16, words) and `b` (8, words), both uint32, with 8, 16, 24 or any other multiple of 8 words; `out` is (16, 8) float32. All products go through `mma_bf16`, and all sums stay in registers, in float32, until the end. Each lane loads its fragments and stores its own four numbers; nothing passes through shared memory.
#
# <details><summary>Hint 1: b</summary>
#
# Look at `b0` in the picture. Lane 6 holds column 1, rows 4 and 5: that is word 2 of `b[1]`.
#
# </details>
# <details><summary>Hint 2: the order</summary>
#
# `d0 = d1 = d2 = d3 = float32(0)`; a loop `for first in range(0, a.shape[1], 8)` that loads and calls `mma_bf16`; after it four stores.
#
# </details>


# %% tags=["exercise"]
def product(a, b, out):
    """out (16, 8) float32 = A B, for a (16, words), words of A's rows,
    and b (8, words), words of B's columns; one warp."""
    # BEGIN SOLUTION 16.2
    lane = cuda.threadIdx.x % 32
    i, j = lane // 4, lane % 4
    d0 = d1 = d2 = d3 = float32(0)
    for first in range(0, a.shape[1], 8):
        a0, a1, a2, a3 = load_a(a, first)
        b0, b1 = b[i, first + j], b[i, first + j + 4]
        d0, d1, d2, d3 = mma_bf16(a0, a1, a2, a3, b0, b1, d0, d1, d2, d3)
    out[i, 2 * j], out[i, 2 * j + 1] = d0, d1
    out[i + 8, 2 * j], out[i + 8, 2 * j + 1] = d2, d3
    # END SOLUTION


# %% tags=["check"]
check.ex16_2(product)

# %% [markdown]
# And here is the map again, this time from your own kernel: `sim` has noted which lane loaded and stored what. The first step shows all lanes, then one after the other. Which lanes hold a row of A between them? Which ones hold the same row of D?


# %% tags=["uses-exercise"]
def words(matrix):
    """The words of a matrix's rows, in bfloat16."""
    return np.ascontiguousarray(matrix).astype(bfloat16).view(uint32)


rng = np.random.default_rng(16)
a, b = rng.standard_normal((16, 16)), rng.standard_normal((16, 8))
out = np.full((16, 8), np.nan, float32)
traced = simulate(product, observers=[*DEFAULT, *COUNTERS, Trace])
report = traced[1, 32](words(a), words(b.T), out)
print("mma instructions:", report.counters["together"]["mma_m16n8k16_f32_bf16"])
lane_map(report, "which lane holds what, in your kernel")

# %% [markdown]
# A row of D lies in the four lanes of one group, and the same row of A in the same four lanes. Keep that in mind for lesson 17: a lane that has made scores (numbers of D) already holds what the next product, P V, wants from it as A.
#
# ## 4. What sim sees, and what it does not
#
# Three kernels with a mistake each. **Guess before you run**: in which of them does `sim` find something? What does the other one do?
#
# - ( ) `without_31`: lane 31 has nothing to add and skips the `mma`
# - ( ) `exchanged`: `a1` and `a2` are handed over in the wrong order
# - ( ) `crooked`: a tile in shared memory has rows of 36 numbers, and `ldmatrix`, which section 6 explains, reads rows of 16 bytes from it


# %% tags=["uses-exercise"]
def without_31(a, b, out):
    lane = cuda.threadIdx.x
    d0 = d1 = d2 = d3 = float32(0)
    a0, a1, a2, a3 = load_a(a, 0)
    b0, b1 = b[lane // 4, lane % 4], b[lane // 4, lane % 4 + 4]
    if lane < 31:
        d0, d1, d2, d3 = mma_bf16(a0, a1, a2, a3, b0, b1, d0, d1, d2, d3)
    out[lane // 4, 2 * (lane % 4)] = d0


def exchanged(a, b, out):
    i, j = cuda.threadIdx.x // 4, cuda.threadIdx.x % 4
    zero = float32(0)
    a0, a1, a2, a3 = load_a(a, 0)
    b0, b1 = b[i, j], b[i, j + 4]
    d0, d1, d2, d3 = mma_bf16(a0, a2, a1, a3, b0, b1, zero, zero, zero, zero)
    out[i, 2 * j], out[i, 2 * j + 1] = d0, d1
    out[i + 8, 2 * j], out[i + 8, 2 * j + 1] = d2, d3


def crooked(a, b, out):
    tile = cuda.shared.array((16, 36), int16, alignment=16)
    lane = cuda.threadIdx.x
    for row in range(16):
        tile[row, lane] = int16(row)
    cuda.syncwarp()
    a0, a1, a2, a3 = ldmatrix_x4(tile, (lane % 16, lane // 16 * 8))
    out[lane // 4, lane % 4] = float32(a0)


for kernel in (without_31, exchanged, crooked):
    out = np.zeros((16, 8), float32)
    report = simulate(kernel, on_finding="report")[1, 32](words(a), words(b.T), out)
    print(f"{kernel.__name__}: {len(report.findings)} finding(s)")
    for finding in report.findings[:1]:
        print(finding.message, "\n")

# %% [markdown]
# An instruction of the whole warp needs the whole warp, also lanes without data: they come with zeros. On a GPU the first kernel may hang or give anything; its behaviour is undefined. The third would end in an error, "misaligned address": `ldmatrix` reads 16 bytes at a time, from a multiple of 16, and a row of 36 numbers has 72 bytes.
#
# The second kernel is correct for all that `sim` can know. It multiplies another matrix: the pieces of A at its top right and at its bottom left have changed places. Only a comparison of values shows it, and not every comparison. **Predict**: for which of these A are the values right in spite of it? `___`
#
# - a matrix of ones, times any B
# - a symmetric matrix, times any B
# - random numbers

# %% tags=["uses-exercise"]
for name, matrix in [
    ("ones", np.ones((16, 16))),
    ("symmetric", a + a.T),
    ("random", a),
]:
    out = np.zeros((16, 8), float32)
    simulate(exchanged)[1, 32](words(matrix), words(b.T), out)
    rounded = words(matrix).view(bfloat16).astype(float), words(b.T).view(bfloat16)
    right = np.abs(out - rounded[0] @ rounded[1].T.astype(float)).max() < 1e-5
    print(f"{name:10} right: {bool(right)}")

# %% [markdown]
# (A symmetric matrix has the *transpose* of its top right piece at the bottom left, and no more than that.) So tests of such kernels take random numbers of all sizes, and so do the checks of this lesson.
#
# ## 5. What rounding costs
#
# Now for the price of 16 bits. Rounding to bfloat16 takes the nearest of the numbers with 8 significant bits. The next one above 1 is 1 + 2⁻⁷, so the result is off by at most 2⁻⁸, relative to the number. Call that u = 2⁻⁸, about 0.4 %.
#
# On paper, for one product: x becomes x (1 + δ), y becomes y (1 + ε), with |δ|, |ε| ≤ u. The product is then off by x y (δ + ε + δε), at most (2u + u²) |x| |y|. The tensor core multiplies the rounded numbers exactly, and adds in about the precision of float32, whose rounding is 65,536 times finer. (Its sums are not rounded like float32 additions one by one: the hardware adds several products at once and may cut off the last bits.)
#
# **Predict.** 3.01 · 4.99 − 3.02 · 4.98 = −0.0197. What comes out if the four numbers are rounded to bfloat16 first: a result off by 1 % or less, or something quite different? `___`

# %%
x, y = np.array([3.01, -3.02]), np.array([4.99, 4.98])
rounded_x, rounded_y = (each.astype(bfloat16).astype(float) for each in (x, y))
print("rounded:", *rounded_x, "and", *rounded_y)
print(f"the sum: {rounded_x @ rounded_y:.4f} instead of {x @ y:.4f}")

# %% [markdown]
# The error is 0.11, nearly six times the result. Each product is about 15, and may be off by (2u + u²) · 15 = 0.12; that the products nearly cancel does not help.
#
# ### Exercise 16.3 · bound · one or two lines
#
# `bound(a, b)` says for each number of A B how far it can be off when A and B are rounded to bfloat16. `a` is (m, k) and `b` (k, n), float64; the answer is (m, n). It rounds nothing itself: it takes each rounding at its worst, u. Leave out the sum's own rounding. The bound must hold whatever the signs are, and must not be larger than that worst case.
#
# <details><summary>Hint 1: errors add up</summary>
#
# In the worst case the errors of the terms all have the same sign, whatever sign the terms have. So what is summed is |x| |y|.
#
# </details>
# <details><summary>Hint 2: all at once</summary>
#
# `np.abs(a) @ np.abs(b)` has the sum of |x| |y| for each number of A B.
#
# </details>


# %% tags=["exercise"]
def bound(a, b):
    """(m, n): how far A B can be off when a (m, k) and b (k, n) are rounded
    to bfloat16 before they are multiplied."""
    # BEGIN SOLUTION 16.3
    u = 2.0**-8
    return (2 * u + u * u) * (np.abs(a) @ np.abs(b))
    # END SOLUTION


# %% tags=["check"]
check.ex16_3(bound)

# %% [markdown]
# Your kernel against your bound, for products with more and more terms:


# %% tags=["uses-exercise"]
def rounded_product(a, b):
    """A B by the learner's kernel."""
    out = np.full((16, 8), np.nan, float32)
    simulate(product)[1, 32](words(a), words(b.T), out)
    return out


table = []
for k in (16, 64, 256):
    a, b = rng.standard_normal((16, k)), rng.standard_normal((k, 8))
    off = np.abs(rounded_product(a, b) - a @ b)
    share = (off / bound(a, b)).max()
    table.append([k, bool((off <= bound(a, b)).all()), f"{100 * share:.0f} %"])
show_table(["terms", "within your bound", "largest share of it"], *table)

# %% [markdown]
# The bound holds, and the share becomes smaller as the sum grows longer: it takes the worst case for every term, where errors of random numbers have random signs and mostly cancel.
#
# ### Why the sums stay in float32
#
# Sums in 16 bits would need half the registers (for float16 numbers there is such an `mma`). **Predict**: start with 0 and add 1 a thousand times, rounding to bfloat16 after each step. What is the result? `___`

# %%
total = bfloat16(0)
for _ in range(1000):
    total = bfloat16(float32(total) + 1)
print("1 added a thousand times, in bfloat16:", total)

# %% [markdown]
# From 256 on the numbers of bfloat16 lie 2 apart. 257 lies in the middle between 256 and 258; a tie goes to the number with an even last bit, which is 256, and the sum stands still. A softmax's l is such a sum. The next picture shows sums of weights between 0 and 1, sixteen of them per `mma`: once kept in float32, once rounded to bfloat16 after each `mma`.


# %% jupyter={"source_hidden": true}
def running_errors(terms, runs=64):
    """The mean relative error of sums of `terms` weights: kept in float32, and in
    bfloat16, with sixteen more each time."""
    weights = np.random.default_rng(5).random((runs, terms)).astype(bfloat16)
    steps = weights.astype(float32).reshape(runs, -1, 16).sum(2, dtype=np.float64)
    wide, narrow = np.zeros(runs, float32), np.zeros(runs, bfloat16)
    for step in range(steps.shape[1]):
        wide = (wide + steps[:, step]).astype(float32)
        narrow = (narrow.astype(np.float64) + steps[:, step]).astype(bfloat16)
    exact = steps.sum(1)
    return [np.abs(sums.astype(float) / exact - 1).mean() for sums in (wide, narrow)]


lengths = [16 * 4**power for power in range(6)]
errors = np.array([running_errors(length) for length in lengths])
figure, axes = plt.subplots(figsize=(8, 3.6))
axes.loglog(lengths, errors[:, 1], "o-", color=ORANGE, label="sums in bfloat16")
axes.loglog(lengths, errors[:, 0], "s-", color=BLUE, label="in float32")
axes.axhline(2.0**-8, color=GREEN, linestyle="--", label="u: one rounding")
axes.set(xlabel="terms in the sum", ylabel="relative error", ylim=(1e-9, 1))
axes.legend()
show_figure(
    figure,
    "relative error of a sum against the number of its terms, both logarithmic. In "
    f"bfloat16 it grows from {errors[0, 1]:.0e} with {lengths[0]} terms to "
    f"{errors[-1, 1]:.2f} with {lengths[-1]:,}: there the sum has stopped growing. In "
    "float32 it stays below one in a million throughout. A dashed line marks one "
    "rounding, 2 to the power -8.",
)

# %% [markdown]
# So rounding the *inputs* costs 0.4 % each, whatever the length of the sum. Rounding *sums* ruins them. That is why D is in float32, and why kernels round their results once, when all is summed.
#
# ## 6. ldmatrix
#
# In `product` each lane fetches its fragments word by word, in six loads per `mma`. From shared memory there is an instruction that fetches up to four registers for all lanes at once: `ldmatrix`.
#
#     r0, r1, r2, r3 = ldmatrix_x4(tile, (row, column))
#
# It loads four matrices of 8 × 8 numbers. A row of such a matrix is 8 numbers, 16 bytes. **Each lane says where one row begins**, and gets back pieces of other rows:
#
# | | |
# |---|---|
# | lanes 0 to 7 give | where the rows 0 to 7 of matrix 0 begin |
# | lanes 8 to 15 | of matrix 1 |
# | lanes 16 to 23 | of matrix 2 |
# | lanes 24 to 31 | of matrix 3 |
# | each lane gets | in register r, the word of matrix r that it holds in a fragment: row lane // 4, columns 2 (lane % 4) and the next |
#
# So the address that a lane gives has nothing to do with the words that it gets. For A, register `a0` is the top left piece of 8 × 8, `a1` the one at the **bottom left** (look at the picture of section 2), `a2` top right, `a3` bottom right.
#
# **Predict.** For the piece of A whose corner is at (0, 0): which row and column does lane 3 give? `___` lane 11? `___` lane 19? `___` lane 31? `___`
#
# <details><summary>Answer</summary>
#
# (3, 0); (11, 0), row 3 of the bottom left piece; (3, 8); (15, 8).
#
# </details>
#
# B may also lie by rows, as the values V do in P V: then two numbers of a word of B, neighbours in a *column*, do not lie together in memory. `ldmatrix_x4_trans` takes the same addresses, and turns each 8 × 8 matrix on its side on the way. As a piece of 16 × 8 has only two matrices, one call fetches B for two products: `b0, b1` for the columns 0 to 7, `b2, b3` for the columns 8 to 15.
#
# ### Exercise 16.4 · fragments · about four lines
#
# The device function `fragments(a_tile, b_tile, row, column, step)` returns eight registers: `a0` to `a3` of the 16 × 16 numbers of `a_tile` whose corner is (row, step), and `b0` to `b3` of the 16 × 16 numbers of `b_tile` whose corner is (step, column); b0 and b1 are of its left half. Both tiles are in shared memory, by rows, int16 (the bits of bfloat16). Use two instructions and no plain load. Any warp of a block may call it, with a corner of its own; `row` is any number, `column` and `step` are multiples of 8.
#
# <details><summary>Hint 1: rows and columns of 8</summary>
#
# `lane % 16` counts through the matrices 0 and 1, which stand one below the other; `lane // 16 * 8` goes 8 columns to the right for the other two.
#
# </details>
# <details><summary>Hint 2: which matrix of B is b1?</summary>
#
# In the picture of section 2, `b1` is below `b0`: rows 8 to 15 of B, same columns.
#
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def fragments(a_tile, b_tile, row, column, step):
    """a0, a1, a2, a3 of a_tile at (row, step),
    b0, b1, b2, b3 of b_tile at (step, column): 16 × 16 numbers each."""
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
# ### Banks once more
#
# `ldmatrix` reads one matrix after the other: 8 rows of 16 bytes, 128 bytes, which is one turn of the 32 banks if no two words share a bank (lesson 08). Four matrices take four turns at best, so the two instructions of `fragments` take 8.
#
# **Predict.** A tile has rows of 32 numbers, so 16 words. In which banks do the rows of a matrix begin? How many turns do the 8 rows take? `___` And with rows of 40 numbers? `___`


# %% tags=["uses-exercise"]
def one_warp(pitch):
    """A kernel in which a warp fetches fragments
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


def turns_of_ldmatrix(pitch):
    """(turns of the loads, report)"""
    tools = [*DEFAULT, *COUNTERS, Trace]
    report = simulate(one_warp(pitch), observers=tools)[1, 32](np.zeros(32, uint32))
    lines = report.counters["lines"].items()
    return sum(
        line.get("wavefronts", 0) for (name, _), line in lines if name != "kernel"
    ), report


for pitch in (32, 40):
    turns, report = turns_of_ldmatrix(pitch)
    print(f"rows of {pitch} numbers: {turns} turns for fragments")
bank_map(
    turns_of_ldmatrix(32)[1], "a_tile", "rows of 32 numbers: banks of your ldmatrix"
)

# %% [markdown]
# With 16 words per row, every second row begins in bank 0, and the others in bank 16: four rows meet. With 20 words (40 numbers) the rows begin in the banks 0, 20, 8, 28, 16, 4, 24, 12:

# %% tags=["uses-exercise"]
bank_map(
    turns_of_ldmatrix(40)[1], "a_tile", "rows of 40 numbers: banks of your ldmatrix"
)

# %% [markdown]
# **Predict**, before you run the next cell, which of the pitches 48, 56, 64, 72 and 80 give 8 turns: `___` (A row must begin at a multiple of 16 bytes, so only multiples of 8 numbers are possible.)

# %% tags=["uses-exercise"]
show_table(
    ["numbers per row", "words", "turns"],
    *([pitch, pitch // 2, turns_of_ldmatrix(pitch)[0]] for pitch in range(48, 81, 8)),
)

# %% [markdown]
# The rule: a row must have an *odd number of 16-byte pieces*: 5 (40 numbers), 7, 9. It is lesson 08's rule, an odd pitch, for pieces of four banks in place of one.
#
# <details><summary>Without padding: a swizzle</summary>
#
# Padding costs memory. The alternative is to leave the rows as they are, and exchange the 16-byte pieces within each row: piece c of row r is stored at place `c ^ (r // 2 % 4)`, for rows of 4 pieces. Whoever loads works out the same place. The eight rows of a matrix then lie in eight different places of the banks. It is called a **swizzle**; lesson 17 weighs the two against each other.
#
# </details>
#
# ## 7. A tiled product by four warps
#
# Now all of it together: lesson 03's `matmul` once more, for a of (m, k) and b of (k, n), both by rows, in bfloat16. A block of four warps owns 32 × 32 numbers of c; each warp owns 16 × 16 of them, so two products side by side:
#
#     ┌────────┬────────┐
#     │ warp 0 │ warp 1 │  16 rows
#     ├────────┼────────┤
#     │ warp 2 │ warp 3 │
#     └────────┴────────┘
#
# At each stop the block loads a tile of a (32 rows, 32 columns) and a tile of b; a warp then makes two steps of 16, of two `mma` each. Two helpers are given: `load_tile` loads together, as in lesson 05, and `store_piece` knows the map of D. Both guard the edges.


# %%
@cuda.jit(device=True)
def load_tile(tile, x, row, column):
    """tile[:32, :32] = x[row : row + 32, column : column + 32], zeros outside of x;
    by 128 threads."""
    for e in range(cuda.threadIdx.x, 32 * 32, 128):
        i, j = e // 32, e % 32
        inside = row + i < x.shape[0] and column + j < x.shape[1]
        tile[i, j] = x[row + i, column + j] if inside else int16(0)


@cuda.jit(device=True)
def store_piece(c, row, column, d0, d1, d2, d3):
    """The 16 × 8 numbers of c with the corner (row, column), from a fragment of D."""
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
# Block (x, y) owns the rows from 32 y on and the columns from 32 x on; it has 128 threads. One tile of a and one of b in shared memory, loaded by `load_tile`, with **no bank conflict** anywhere, at most 72 numbers per row, and `alignment=16`: for int16 Numba would let an array begin at any multiple of 2 bytes. All products go through `mma_bf16`, with fragments by `ldmatrix`: each warp fetches each of its fragments once, and makes its own part of the products and no other. The sums stay in float32 in registers. Any m, k and n; `sim` finds nothing.
#
# <details><summary>Hint 1: shared memory</summary>
#
# `cuda.shared.array((32, ...), int16, alignment=16)`, twice, with a number of the table above in place of the dots.
#
# </details>
# <details><summary>Hint 2: who owns what</summary>
#
# `warp = cuda.threadIdx.x // 32`; within the tiles its corner is row `warp // 2 * 16` and column `warp % 2 * 16`. Its eight sums are two fragments of D: c0 to c3 for the left 8 columns (b0, b1), e0 to e3 for the right (b2, b3).
#
# </details>
# <details><summary>Hint 3: the loop</summary>
#
# `for start in range(0, a.shape[1], 32)`: load both tiles, barrier, the steps 0 and 16 (`fragments`, then two `mma_bf16`), barrier.
#
# </details>


# %% tags=["exercise"]
def matmul(a, b, c):
    """c (m, n) float32 = a b, for a (m, k) and b (k, n), int16 bits of bfloat16;
    a block of 128 threads makes 32 × 32 numbers of c."""
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
        cuda.syncthreads()  # used up: the next tiles may come
    store_piece(c, i0 + row, j0 + column, c0, c1, c2, c3)
    store_piece(c, i0 + row, j0 + column + 8, e0, e1, e2, e3)
    # END SOLUTION


# %% tags=["check"]
check.ex16_5(matmul)

# %% [markdown]
# ### What has been won
#
# Lesson 08 said of its product: "for every four multiply-adds it goes to shared memory for six turns". Its counters are recorded, for n = 4096. **Predict** how many multiply-adds your kernel makes per turn of shared memory, stores into the tiles included: 20, as there? 100? 250? `___`


# %% tags=["uses-exercise"]
def bits(matrix):
    """A matrix in bfloat16, as the bits that kernels take."""
    return np.ascontiguousarray(matrix).astype(bfloat16).view(int16)


def counted(a, b):
    """(c, report) of the learner's product."""
    (m, _), (_, n) = a.shape, b.shape
    c = np.full((m, n), np.nan, float32)
    launch = simulate(matmul, observers=[*DEFAULT, *COUNTERS])
    return c, launch[(-(-n // 32), -(-m // 32)), 128](bits(a), bits(b), c)


a, b = rng.standard_normal((64, 64)), rng.standard_normal((64, 64))
c, report = counted(a, b)
mine = 64**3 / report.counters["banks"]["wavefronts"]
before = tiled["size"]["n"] ** 3 / tiled["turns"]
show_table(
    ["product", "multiply-adds per turn of shared memory"],
    ["lesson 08, float32, recorded", f"{before:.0f}"],
    ["yours, bfloat16, counted", f"{mine:.0f}"],
)

# %% [markdown]
# In a turn shared memory gives 128 bytes. Three things have made more of them: a number has half the bytes; `ldmatrix` fetches each byte once per warp, where lanes used to load one number each; and a warp uses each fragment of A for two products. Whoever gives a warp more products per fragment (32 × 32 or 64 × 32 of c) goes further. So do the kernels of lesson 17.
#
# In time, on one H200: the forward pass of convolutional attention, 4 sequences of 2048 tokens, 16 heads of 64, 7 × 7 taps, causal, takes 4.24 ms with the float32 kernels (recorded 2026-11-21). With the instructions of this lesson, in bfloat16, it takes 0.33 ms (recorded 2026-11-22, `docs/log/2026-11.md`), a thirteenth.
#
# ## Validate
#
# Your product on ragged matrices, against float64, against your own bound, and against lesson 03's product of the same rounded numbers:

# %% tags=["uses-exercise"]
in_float32 = brought("03_threads_and_blocks", "matmul")
TILE = 4  # of lesson 03
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
    ["matmul of this lesson, against", "verdict"],
    [
        "float64, of the rounded numbers",
        f"below 1e-5: {bool(np.abs(c - rounded_a @ rounded_b).max() < 1e-5)}",
    ],
    [
        "lesson 03's matmul, of the rounded numbers",
        f"below 1e-5: {bool(np.abs(c - by_lesson03).max() < 1e-5)}",
    ],
    [
        "float64, of the numbers as they were",
        f"within your bound: {bool((np.abs(c - a @ b) <= bound(a, b)).all())}",
    ],
    ["findings of sim", str(len(report.findings))],
)

# %% [markdown]
# ### On a real GPU, if there is one
# Tensor cores for bfloat16 came with compute capability 8.0 (2020). On such a GPU the next cell runs your kernel there, and elsewhere in `sim`; it prints the same line. (Numba may warn that so small a launch leaves most of the GPU idle. It is right.)

# %% tags=["uses-exercise"]
with_tensor_cores = (
    cuda.is_available() and cuda.get_current_device().compute_capability >= (8, 0)
)
on_this_machine = cuda.jit if with_tensor_cores else simulate
c = np.full((m, n), np.nan, float32)
on_this_machine(matmul)[(-(-n // 32), -(-m // 32)), 128](bits(a), bits(b), c)
print("error below 1e-5:", bool(np.abs(c - rounded_a @ rounded_b).max() < 1e-5))

# %% [markdown]
# ## In three lines
# - `mma.sync.m16n8k16` multiplies 16 × 16 by 16 × 8 numbers from the registers of all 32 lanes: group lane // 4 and place lane % 4 say which; a lane that stays away is an error, a wrong map is only a wrong value.
# - `ldmatrix` takes the address of one row from each lane, and hands out fragments; rows of an odd number of 16-byte pieces keep it free of bank conflicts, and `.trans` is for a B that lies by rows.
# - Rounding inputs to bfloat16 costs at most (2u + u²) |A| |B|, u = 2⁻⁸; rounding sums ruins them, so they stay in float32.
#
# **You can now** write a kernel for tensor cores, and say before it runs how often it goes to shared memory.
#
# **Next:** [lesson 17](17_fast_forward.ipynb) gives these instructions to attention, step by step.
