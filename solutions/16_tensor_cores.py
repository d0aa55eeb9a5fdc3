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
# **65 minutes** · builds on lesson 03b (the tiled matmul), lesson 06 (lanes) and lessons 08 and 08b (banks, the roofline)
#
# You will be able to
#
# 1. say which lane of a warp holds which entry of A, B and D in a tensor core's product, and draw it from your own kernel;
# 2. write a matrix product for tensor cores, by one warp;
# 3. say what rounding to bfloat16 costs, and why sums stay in float32.
#
# **Where this leads.** In lesson 08b a tiled product of two 4096 × 4096 matrices reached a small fraction of the peak on the roofline plot. Here it is again, next to a kernel that uses tensor cores. Both were timed on an H200:

# %%
import json

import matplotlib.pyplot as plt
import numpy as np
from ml_dtypes import bfloat16
from numba import cuda
from numpy import float32, uint32

from course import check, guess, show_figure, show_table
from course.figures import BLUE, GREEN, ORANGE
from course.fragments import lane_map, registers
from kernels.common.data import DATA
from kernels.tensor_cores.instructions import mma_bf16
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
# (The second row's time is from this project's log, `docs/log/2026-11.md`. It was measured with a causal mask, for 4 sequences of 4096 tokens with 16 heads of 64 elements. Since 2026-11-29 the package has a faster kernel for Hopper GPUs, which takes 0.315 ms; lesson 18c introduces its instructions.) The second kernel performs 36 times as many operations per second, even though its time includes the exponentials of softmax, which we do not count as operations. Ordinary float32 instructions, one multiply-add per lane, cannot reach that: their limit on an H200 is 66.9 TFLOP/s (lesson 08b). The second kernel is written in Python too, and [lesson 17](17_fast_forward.ipynb) builds it. In this lesson you learn the instruction that makes it fast.
#
# ## 1. One instruction
#
# When the 32 lanes of a warp execute a multiply-add, each lane computes one, so the warp computes 32. A **tensor core** executes one instruction of the whole warp, and that instruction multiplies matrices:
#
# D = A B + C, where A is 16 × 16, B is 16 × 8, and C and D are 16 × 8.
#
# **Predict.** How many multiply-adds is that? `___` How many ordinary multiply-add instructions would the warp need? `___`

# %% tags=["guess"]
guess("16 one instruction", multiply_adds=..., ordinary_instructions=...)

# %% [markdown]
# The instruction is called `mma.sync.m16n8k16`: D has M = 16 rows and N = 8 columns, and each entry is a sum of K = 16 products. The matrices are not in memory. They are in **registers**, spread over the lanes, and no lane holds a whole row of any of them. The part of a matrix that one lane holds is its **fragment**. C and D are the **accumulator**: the registers that hold a running sum.
#
# The entries of A and B are 16-bit numbers. Here they are **bfloat16**, the upper half of a float32: 1 bit for the sign, 8 for the exponent, 7 for the fraction. A 32-bit register holds two of these numbers. We call such a pair a **word**:

# %%
numbers = np.array([1, -2, 1 / 3, 257], bfloat16)
print("numbers", *numbers)
print("bits   ", *(f"{bits:04x}" for bits in numbers.view(np.uint16)))
print("words  ", *(f"{word:08x}" for word in numbers.view(uint32)))

# %% [markdown]
# The first number of a pair is the **lower** half of its word, `3f80` of `c0003f80`. And 257 has become 256: a bfloat16 has 8 significant bits (the leading one is not stored), and 257 needs 9.
#
# **Predict**, for one lane: how many registers for its fragment of A? `___` of B? `___` of D, which is float32? `___`

# %% tags=["guess"]
guess("16 registers", of_A=..., of_B=..., of_D=...)

# %% [markdown]
# Each lane makes this call with its own ten registers and gets back its fragment of D:
#
#     d0, d1, d2, d3 = mma_bf16(a0, a1, a2, a3, b0, b1, c0, c1, c2, c3)
#
# On a GPU the call compiles to a single PTX instruction, defined in `kernels/tensor_cores/instructions.py`. `sim` emulates it.
#
# ## 2. Which lane holds what
#
# The picture arranges the three matrices as you would on paper: A to the left of D, and B above it. The coloured cells are the entries that one lane holds, labelled with the register. A word holds two neighbours in a *row* of A, or two neighbours in a *column* of B.
#
# Move the slider through lanes 0, 1, 4, 6 and 31, and **look for the rule**: what changes from lane 0 to lane 1? From lane 0 to lane 4?

# %%
registers(0, 1, 4, 6, 31)

# %% [markdown]
# <details><summary>The rule</summary>
#
# Four neighbouring lanes, a **quad**, share the same rows of A and D and one column of B. The next lane of a quad holds entries two columns further right in A and D, and two rows further down in B. The next quad holds entries one row further down in A and D, and one column further right in B.
#
# </details>
#
# **Predict.** Which entry of D does lane 13 hold in `d3`? D[`___`] Which two entries of A in its `a2`? `___`

# %% tags=["guess"]
guess("16 lane 13", d3=..., a2=...)

# %% [markdown]
# ### Exercise 16.1 · load_a · about three lines
#
# The device function `load_a(a, first)` returns the lane's four registers `a0, a1, a2, a3` for a 16 × 16 piece of A. `a` is an array of words with 16 rows. Each word packs two horizontally adjacent entries: `a[i, j]` holds A[i, 2j] and A[i, 2j + 1]. The piece begins at word `first` of each row. Each lane loads its own four words, each once. A block may have several warps, and every warp needs the whole piece.
#
# <details><summary>Hint 1: quad and lane</summary>
#
# `lane = cuda.threadIdx.x % 32`; its quad is `lane // 4`, and its position in the quad is `lane % 4`.
#
# </details>
# <details><summary>Hint 2: in words</summary>
#
# 16 columns are 8 words. The two entries of `a0` are one word, the one with index `first + lane % 4` in its row.
#
# </details>


# %% tags=["exercise"]
@cuda.jit(device=True)
def load_a(a, first):
    """Return this lane's a0, a1, a2, a3 for the 8 words of each row
    from `first` on, where a is (16, words) uint32."""
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
# Now use the instruction. It wants A **row-major** (the entries of a row are next to each other in memory) and B **column-major** (the entries of a column are). Its full name says so: `mma.sync.aligned.m16n8k16.row.col`. So `b[j, k]` is a word of **column** j: it holds B[2k, j] and B[2k + 1, j]. Keys are stored this way already. The scores are Q Kᵀ, and a column of B = Kᵀ is a row of K, so nothing has to be transposed.
#
# If sums have more than 16 terms, loop over K in steps of 16 and pass each result back in as C. The accumulator stays in the same four registers.
#
# ### Exercise 16.2 · product · about nine lines
#
# `out = A B` by one block of one warp: `a` is (16, words) and `b` (8, words), both uint32, with 8, 16, 24 or any other multiple of 8 words; `out` is (16, 8) float32. Use `mma_bf16` for all products, and keep all sums in float32 registers until the end. Each lane loads its fragments and stores its own four entries. Nothing goes through shared memory.
#
# <details><summary>Hint 1: b</summary>
#
# Look at `b0` in the picture. Lane 6 holds rows 4 and 5 of column 1, which are word 2 of `b[1]`.
#
# </details>
# <details><summary>Hint 2: the order</summary>
#
# Set `d0 = d1 = d2 = d3 = float32(0)`. A loop `for first in range(0, a.shape[1], 8)` loads the fragments and calls `mma_bf16`. Four stores follow the loop.
#
# </details>


# %% tags=["exercise"]
def product(a, b, out):
    """Set out (16, 8) float32 to A B with one warp. a (16, words) holds the words
    of A's rows, and b (8, words) the words of B's columns."""
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
# Here is the map again, this time from your own kernel: `sim` recorded which lane loaded and stored each entry. The first step shows all lanes at once, and later steps show one lane each. Which lanes hold a row of A together? Which lanes hold the same row of D?


# %% tags=["uses-exercise"]
def words(matrix):
    """Return the words of a matrix's rows, in bfloat16."""
    return np.ascontiguousarray(matrix).astype(bfloat16).view(uint32)


rng = np.random.default_rng(16)
a, b = rng.standard_normal((16, 16)), rng.standard_normal((16, 8))
out = np.full((16, 8), np.nan, float32)
traced = simulate(product, observers=[*DEFAULT, *COUNTERS, Trace])
report = traced[1, 32](words(a), words(b.T), out)
print("mma instructions:", report.counters["together"]["mma_m16n8k16_f32_bf16"])
lane_map(report, "which lane holds what, in your kernel")

# %% [markdown]
# The four lanes of a quad hold a row of D, and the same four lanes hold the same row of A. Remember this for lesson 17: a lane that computed scores (entries of D) already holds the entries that the next product, P V, needs from it as A.
#
# ## 4. What sim sees, and what it does not
#
# Here are two kernels, each with a mistake. **Guess before you run**, for each kernel: will `sim` report something? If it reports nothing, what goes wrong?
#
# - ( ) `without_31`: lane 31 has nothing to add and skips the `mma`
# - ( ) `exchanged`: `a1` and `a2` are passed in the wrong order


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


for kernel in (without_31, exchanged):
    out = np.zeros((16, 8), float32)
    report = simulate(kernel, on_finding="report")[1, 32](words(a), words(b.T), out)
    print(f"{kernel.__name__}: {len(report.findings)} finding(s)")
    for finding in report.findings[:1]:
        print(finding.message, "\n")

# %% [markdown]
# A warp-wide instruction needs all 32 lanes. Lanes without data must take part too, and they supply zeros. On a GPU the behaviour of the first kernel is undefined: it may hang, or return anything.
#
# As far as `sim` can tell, the second kernel is correct. It multiplies a different matrix, in which the top right and the bottom left quarter of A have changed places. Only a comparison of values can show this mistake, and not every comparison does. **Predict**: for which of these A are the values still right: ones, symmetric, random? `___`
#
# - a matrix of ones, times any B
# - a symmetric matrix, times any B
# - random numbers

# %% tags=["guess"]
guess("16 exchanged", right=...)

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
# (A symmetric matrix has at its bottom left the *transpose* of its top right quarter, not the quarter itself.) That is why tests of such kernels use random numbers, and so do the checks of this lesson.
#
# ## 5. What rounding costs
#
# What do 16 bits cost? Rounding to bfloat16 picks the nearest number with 8 significant bits. The next bfloat16 above 1 is 1 + 2⁻⁷, so the relative error is at most half of that gap: 2⁻⁸. Call it u = 2⁻⁸, about 0.4 %.
#
# On paper, for one product: x becomes x (1 + δ), y becomes y (1 + ε), with |δ|, |ε| ≤ u. The error of the product is x y (δ + ε + δε), at most (2u + u²) |x| |y|, a little more than 2⁻⁷. The tensor core multiplies the rounded numbers exactly, and accumulates with about the precision of float32, whose rounding is 65,536 times finer. (Its sums are not correctly rounded float32 additions: the hardware adds several products at once and may truncate the last bits.)
#
# **Predict.** 3.01 · 4.99 − 3.02 · 4.98 = −0.0197. Suppose that you round the four numbers to bfloat16 first. By how many percent is the result off: less than 1, about 10, or several hundred? `___`

# %% tags=["guess"]
guess("16 cancellation", off_by=...)

# %%
x, y = np.array([3.01, -3.02]), np.array([4.99, 4.98])
rounded_x, rounded_y = (each.astype(bfloat16).astype(float) for each in (x, y))
print("rounded:", *rounded_x, "and", *rounded_y)
print(f"the sum: {rounded_x @ rounded_y:.4f} instead of {x @ y:.4f}")

# %% [markdown]
# The error is 0.11, which is 5.8 times the size of the result. Each product is about 15, so it may be off by (2u + u²) · 15 = 0.12. The products nearly cancel, but their errors do not.
#
# ### Exercise 16.3 · bound · one or two lines
#
# `bound(a, b)` returns, for each entry of A B, how far it can be off if A and B are rounded to bfloat16. `a` is (m, k) and `b` is (k, n), both float64; the result is (m, n). Do no rounding in the function; assume that every input is off by the full u. Leave out the rounding of the sum itself. The bound must hold for all signs of the errors, and must not be larger than this worst case.
#
# <details><summary>Hint 1: errors add up</summary>
#
# In the worst case the errors of all terms have the same sign, whatever the signs of the terms are. So sum |x| |y|.
#
# </details>
# <details><summary>Hint 2: all at once</summary>
#
# `np.abs(a) @ np.abs(b)` is the sum of |x| |y| for each entry of A B.
#
# </details>


# %% tags=["exercise"]
def bound(a, b):
    """Return how far each entry of A B (m, n) can be off if a (m, k) and b (k, n)
    are rounded to bfloat16 before they are multiplied."""
    # BEGIN SOLUTION 16.3
    u = 2.0**-8
    return (2 * u + u * u) * (np.abs(a) @ np.abs(b))
    # END SOLUTION


# %% tags=["check"]
check.ex16_3(bound)

# %% [markdown]
# Now compare your kernel's error with your bound, for sums with more and more terms:


# %% tags=["uses-exercise"]
def rounded_product(a, b):
    """Return A B, computed by your kernel."""
    out = np.full((16, 8), np.nan, float32)
    simulate(product)[1, 32](words(a), words(b.T), out)
    return out


table = []
for k in (16, 64, 256):
    a, b = rng.standard_normal((16, k)), rng.standard_normal((k, 8))
    off = np.abs(rounded_product(a, b) - a @ b)
    share = (off / bound(a, b)).max()
    table.append([k, bool((off <= bound(a, b)).all()), f"{100 * share:.0f} %"])
show_table(["terms", "within your bound", "largest error, % of the bound"], *table)

# %% [markdown]
# The bound holds, but it gets looser as the sums get longer: it assumes the worst error in every term, whereas real errors have random signs and largely cancel.
#
# ### Why the sums stay in float32
#
# Accumulators of 16 bits would need half the registers (for float16 there is such an `mma`). Would they be accurate enough? **Predict**: start with 0 and add 1 a thousand times, rounding to bfloat16 after each addition. What is the result? `___`

# %% tags=["guess"]
guess("16 sum", result=...)

# %%
total = bfloat16(0)
for _ in range(1000):
    total = bfloat16(float32(total) + 1)
print("1 added a thousand times, in bfloat16:", total)

# %% [markdown]
# From 256 on, neighbouring bfloat16 numbers are 2 apart. 257 is halfway between 256 and 258. A tie goes to the number with an even last bit, which is 256, so the sum stops growing. In lesson 01, `l` was such a sum: the denominator of a softmax. The next picture shows sums of weights between 0 and 1, with sixteen weights per `mma`. In one curve the sum is kept in float32; in the other it is rounded to bfloat16 after every `mma`.


# %% jupyter={"source_hidden": true}
def running_errors(terms, runs=64):
    """Return the mean relative errors of sums of `terms` weights, sixteen per step,
    kept in float32 and in bfloat16."""
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
# So rounding the *inputs* costs at most 0.4 % each, however long the sum is. Rounding the *sums* ruins them. That is why D is float32, and why kernels round a result only once, after the last addition.

# %% [markdown]
# ## In two lines
# - `mma.sync.m16n8k16` multiplies a 16 × 16 matrix by a 16 × 8 matrix, both held in the
#   registers of the 32 lanes; a lane's quad (lane // 4) and its position in the quad
#   (lane % 4) determine which entries it holds. `sim` reports a missing lane, but a
#   wrong layout only shows up as wrong values.
# - Rounding inputs to bfloat16 costs at most (2u + u²) |A| |B|, with u = 2⁻⁸. Rounding sums ruins them, so accumulators stay in float32.
#
# **You can now** say which lane holds what, and how far a product in bfloat16 can be off.
#
# **Read on:** NVIDIA, *PTX ISA*, section on `mma` ("Matrix Fragments for mma.m16n8k16") · Massimiliano Fasi, Nicholas Higham, Mantas Mikaitis and Srikara Pranesh, "Numerical behavior of NVIDIA tensor cores" (*PeerJ Computer Science*, 2021), for how the sums are rounded · the [glossary](../docs/glossary.md) of this course.
#
# **Next:** [lesson 16b](16b_tiled_products.ipynb) loads fragments with one instruction, and multiplies matrices of any size.
