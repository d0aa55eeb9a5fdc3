# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 14b · Decoding: a test that finds mistakes, and your merge as a kernel
#
# **60 minutes** · builds on lesson 14 (`window_scores`, `split_state`), lesson 01 (the merge) and lessons 03 and
# 04 (a kernel in `sim`)
#
# After this lesson you will be able to
#
# 1. write a test that finds four published mistakes, and eighteen more;
# 2. write the kernel that merges the results of many blocks;
# 3. name the parts of a decoder's time.
#
# In lesson 14 you divided the keys of one row among splits. Each split passes on its state (m, l, o). Two things
# are missing: a kernel that merges these states, and the certainty that the result is right for *every* number
# of tokens and splits. We begin with the second, because a published algorithm for this task has four mistakes
# that its own tests did not find.
#
# You don't need a GPU: where we show times, they were recorded on an H200. The next cell loads your functions of
# lesson 14. If you have not solved one of them, or not saved it, the cell loads the solution's version instead.

# %%
import inspect
import json
import math

import matplotlib.pyplot as plt
import torch
from numba import cuda
from numpy import float32

from course import brought, check, guess, progress_bar, show_figure, show_table
from course.check import decoders
from course.figures import BLUE, GREEN, ORANGE, RED, SKY
from course.ladder import show_ladder, time_rung
from kernels import ConvAttention, KVCache, conv_attention_decode, reference
from kernels.bench.timing import least_us
from kernels.common.data import DATA
from kernels.common.launch import RUNNERS
from kernels.common.splits import merge_splits_kernel
from kernels.common.tiles import MINUS_INFINITY, weight
from kernels.reference.tiled import Traffic
from sim import simulate

torch.manual_seed(14)
device = "cuda" if torch.cuda.is_available() else "cpu"
window_scores, owned_keys, split_state = brought(
    "14_decoding", "window_scores", "owned_keys", "split_state"
)
table = json.loads((DATA / "bench.json").read_text(encoding="utf-8"))
times = {(tuple(row["shape"]), row["name"]): row["us"] for row in table["decoding"]}


def tokens_per_second(n, name, layers=32):
    """Return the tokens per second of this many layers of convolutional attention,
    8 heads of d = 64, with n tokens in the cache."""
    return 1e6 / (layers * times[(1, 8, n, 64), name])


# %% [markdown]
# ## 1. Bug hunt: a published algorithm
#
# There is a published algorithm for exactly this task. Here are its four mistakes, each alone in a decoder
# that is otherwise correct. `owned_by` is `owned_keys`, `pieces` computes `T` of a split,
# `state_of` computes its state, and `merged` merges and divides.

# %%
for faulty in (
    decoders.no_halo,
    decoders.unmasked_window,
    decoders.undivided,
    decoders.full_tiles,
):
    print(inspect.getsource(faulty))

# %% [markdown]
# (The fourth works on whole tiles, as a GPU does. Keys after the end of the cache get
# a `T` of −∞.)
#
# **Guess before you run.** Let c_q = 3 and c_k = 4. Which test finds which mistake?
#
# | test | no_halo | unmasked_window | undivided | full_tiles |
# |---|---|---|---|---|
# | 1 token, 1 split | | | | |
# | 9 tokens, 1 split | | | | |
# | 9 tokens, 3 splits | | | | |
# | 9 tokens, 4 splits | | | | |
# | 9 tokens, 12 splits | | | | |


# %%
def difference(decode, tokens, splits, c_q=3, c_k=4):
    """Return the largest difference from the last row of the whole forward pass, in
    float64, for random inputs."""
    q, k, v = torch.randn(3, 1, 1, tokens, 4)
    w = torch.randn(1, c_q, c_k) / math.sqrt(c_q * c_k)
    wanted = reference.conv_attention(q.double(), k.double(), v.double(), w.double())[
        :, :, -1:
    ]
    return (decode(q[:, :, -c_q:], k, v, w, splits=splits) - wanted).abs().max().item()


def verdict(error):
    """Return the result of a comparison in one word."""
    return "NaN" if math.isnan(error) else "correct" if error <= 1e-5 else "WRONG"


print(f"{'':20}", "".join(f"{name:16}" for name in decoders.FAULTY))
for tokens, splits in [(1, 1), (9, 1), (9, 3), (9, 4), (9, 12)]:
    words = [
        verdict(difference(decode, tokens, splits))
        for decode in decoders.FAULTY.values()
    ]
    print(
        f"{f'tokens {tokens}, splits {splits}':20}",
        "".join(f"{word:16}" for word in words),
    )

# %% [markdown]
# <details><summary>What is wrong with each?</summary>
#
# - **no_halo**: with one split, the only edges are the ends of the sequence, where zeros are correct. With
#   two splits there is an inner edge.
# - **unmasked_window**: "all keys are in the past of the new token" is true, but it misses the point: the
#   older queries of the window have a future. Only with a single token, or with c_q = 1, they don't.
# - **undivided**: the division by l is part of the merge, which is skipped when there is one split. With one
#   *token* the result is correct by luck: T − m = 0, so l = exp(0) = 1.
# - **full_tiles**: an empty split has only −∞, so m = −∞ and exp(−∞ − (−∞)) = NaN. In the merge its weight is
#   exp(−∞ − m) = 0, but 0 · NaN is NaN. With 9 keys and 4 splits, the shares are 3, 3, 3 and 0. With 12
#   splits, three are empty.
# </details>
#
# No single row of the table finds all four. And the test that you would write first, a single token, finds
# none.
#
# ### Exercise 14.3 · is_right · about nine lines
#
# Write the test. `is_right(decode)` returns True if a decoder is correct, and False if not. It calls
# `decode(q_window, k, v, w, splits=…)`, where
#
# | argument | shape | |
# |---|---|---|
# | `q_window` | (B, H, R, d) | the last R = min(c_q, N) queries, float32 |
# | `k`, `v` | (B, H, N, d) | the whole cache |
# | `w` | (H, c_q, c_k) | the taps of each head |
#
# and gets (B, H, 1, d). The reference is the last row of the whole forward pass, `reference.conv_attention(q,
# k, v, w)`, in float64. A decoder is correct if no output is ever off by more than 10⁻⁵, up or down. Some of
# the wrong ones are off by 2 · 10⁻⁵ in a single element.
#
# The check tries your test on three correct decoders and on 22 wrong ones: the four above, and 18 that you
# don't know. The wrong decoders fail in different places: some only with several batches or heads, some only
# with odd or only with even taps, some only at the start of a sequence or when the keys do not divide evenly,
# and some only for certain numbers of splits, from 1 to more than there are keys. (The check runs a few
# hundred decoders, which takes some seconds.)
#
# <details><summary>Hint 1: the loops</summary>
#
# One loop over a few `(n, c_q, c_k)`, such as (1, 3, 4), (2, 3, 4), (9, 3, 4), and one over `range(1, n +
# 3)`, the splits. B = H = 2 and d = 4 are enough.
# </details>
# <details><summary>Hint 2: the window</summary>
#
# `q[:, :, -c_q:]`. If there are fewer than c_q tokens, this is all of them.
# </details>
# <details><summary>Hint 3: NaN</summary>
#
# `if error > 1e-5: return False` never returns for NaN, because every comparison with NaN is false. `if not
# error <= 1e-5` does.
# </details>


# %% tags=["exercise"]
def is_right(decode):
    """Return True if decode(q_window, k, v, w, splits=...) computes the last row of
    convolutional attention within 1e-5."""
    # BEGIN SOLUTION 14.3
    for n, c_q, c_k in [(1, 3, 4), (2, 3, 4), (9, 3, 4), (10, 2, 5)]:
        q, k, v = torch.randn(3, 2, 2, n, 4)
        w = torch.randn(2, c_q, c_k) / math.sqrt(c_q * c_k)
        wanted = reference.conv_attention(
            q.double(), k.double(), v.double(), w.double()
        )[:, :, -1:]
        for splits in range(1, n + 3):
            error = (
                (decode(q[:, :, -c_q:], k, v, w, splits=splits) - wanted).abs().max()
            )
            if not error <= 1e-5:
                return False
    return True
    # END SOLUTION


# %% tags=["check"]
check.ex14_3(is_right)

# %% [markdown]
# ## 2. Your merge, as a kernel
#
# In an ordinary launch, the blocks of a grid must not wait for each other, because they may not all be on the
# GPU at the same time. (Lesson 04b's grid barrier needs a launch that guarantees this.) So the splits write
# their states to global memory, and a second kernel merges them. All the states of a head are in one array,
# **parts**, of shape (B, H, splits, d + 2): the d elements of `o`, then `m`, then `l`.
#
# There is one block per head of each batch, and one thread for each of the d elements. Every thread loops
# over the splits twice: once to find the largest `m`, and once to add. Take three splits, the last one empty,
# with powers of 2 instead of e as in lesson 01:
#
# | | m | l | o | weight 2^(m − 3) | weight · l | weight · o |
# |---|---|---|---|---|---|---|
# | split 0 | 1 | 2 | 24 | 1/4 | 1/2 | 6 |
# | split 1 | 3 | 3/2 | 14 | 1 | 3/2 | 14 |
# | split 2 | −∞ | 0 | 0 | | | |
# | sum | | | | | | |
#
# **Predict** the missing entries, and the output, o / l.
#
# <details><summary>Answer</summary>
#
# Split 2 is empty: its weight is 2^(−∞) = 0. The sums are 2 and 20, and the output is 10.
# </details>
#
# ### Exercise 14.4 · merge_splits · about ten lines
#
# Write the kernel `merge_splits(parts, out)`. It is launched with a grid of (H, B) blocks and at least d
# threads per block. `out` is (B, H, 1, d).
#
# - Thread c computes element c of the output and no other.
# - Divide by `l` once, at the end, even if there is only one split.
# - Any split may be empty, even the first, but at least one is not. `m` can be any
#   finite float32, and `l` can be any positive number (0 for an empty split).
# - `weight(m_s, m)` is exp(m_s − m) in float32, and 0 if m_s is −∞. It is the only function of the package
#   you need. Compute in float32 only.
#
# <details><summary>Hint 1: which element is mine?</summary>
#
# `part = parts[cuda.blockIdx.y, cuda.blockIdx.x]` is (splits, d + 2): the grid's x is the head, and its y is
# the batch. Thread c = `cuda.threadIdx.x` computes `out[batch, head, 0, c]` if c < d. The other threads have
# nothing to do.
# </details>
# <details><summary>Hint 2: two loops</summary>
#
# Start with `m = MINUS_INFINITY`, and for each split take `m = max(m, part[s, d])`. Then `l` and `o` start at
# `float32(0)`, and each split adds `weight(part[s, d], m)` times `part[s, d + 1]` and times `part[s, c]`.
# </details>


# %% tags=["exercise"]
def merge_splits(parts, out):
    """Merge the splits of parts (B, H, splits, d + 2), each o, m, l, into out
    (B, H, 1, d), with one block per head and one thread per element."""
    # BEGIN SOLUTION 14.4
    head, batch, c = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    part = parts[batch, head]
    splits, d = part.shape[0], out.shape[3]
    if c >= d:
        return
    m = MINUS_INFINITY
    for s in range(splits):
        m = max(m, part[s, d])
    l, o = float32(0), float32(0)
    for s in range(splits):
        shrink = weight(part[s, d], m)
        l += shrink * part[s, d + 1]
        o += shrink * part[s, c]
    out[batch, head, 0, c] = o / l
    # END SOLUTION


# %% tags=["check"]
check.ex14_4(merge_splits)

# %% [markdown]
# Now your splits, in PyTorch, and your merge, in `sim`, form a decoder. And your own test tells you whether
# it is correct, for every number of splits from 1 to more than there are keys. (This takes a few seconds.)


# %% tags=["uses-exercise"]
def my_decode(q_window, k, v, w, splits=3):
    """Compute the last row of convolutional attention, (B, H, 1, d), with split_state
    and merge_splits."""
    batch, heads, n, d = k.shape
    parts, out = (
        k.new_full((batch, heads, splits, d + 2), math.nan),
        k.new_full((batch, heads, 1, d), math.nan),
    )
    for b in range(batch):
        for h in range(heads):
            for s, (start, end) in enumerate(owned_keys(n, splits)):
                m, l, o = split_state(
                    q_window[b, h], k[b, h], v[b, h], w[h], start, end, Traffic()
                )
                parts[b, h, s, :d], parts[b, h, s, d], parts[b, h, s, d + 1] = o, m, l
    simulate(merge_splits)[(heads, batch), 32](parts, out)
    return out


print("is_right(my_decode):", is_right(my_decode))
for name, decode in decoders.FAULTY.items():
    print(f"is_right({name}):", is_right(decode))

# %% [markdown]
# ## 3. In a layer
#
# `KVCache` stores what a layer needs for its next token. It allocates memory in advance, and doubles it when
# it is full. `keys` and `values` are views of the filled part. So a new token costs one row, not a copy of
# everything.
#
# **Predict.** Take a cache with room for 4 tokens and c_q = 3, and add one token after another. How many
# queries are in it after each of the first five tokens? And how much room is there?

# %%
cache = KVCache(batch=1, heads=1, head_dim=4, window=3, capacity=4)
for _ in range(5):
    cache.append(*torch.randn(3, 1, 1, 1, 4))
    print(
        f"tokens: {cache.length}   queries in the window: {cache.queries.shape[2]}   "
        f"keys: {cache.keys.shape[2]}   room for {cache.capacity}"
    )

# %% [markdown]
# `ConvAttention` is a layer like `FusedAttention` of lesson 06, with one more tensor, the taps. They start as
# identity taps, so a new layer is ordinary attention. Three of its methods matter here:
#
# - `layer(x)`: all tokens at once, (B, N, E) to (B, N, E);
# - `layer.prefill(x, cache)`: the same, but it also puts the tokens into an empty cache. This is how a model
#   reads its prompt;
# - `layer.step(x, cache)`: one more token, (B, 1, E).
#
# You can pass it your own decoder.

# %% tags=["uses-exercise"]
layer = ConvAttention(
    embed_dim=8,
    num_heads=2,
    kernel_size=(3, 4),
    attention=reference.conv_attention,
    decode=my_decode,
)
torch.nn.init.normal_(layer.taps, std=0.3)
torch.nn.init.normal_(layer.in_proj_bias)

x = torch.randn(2, 14, 8)
with torch.no_grad():
    wanted = layer(x)


def decoded(read):
    """Compute the rows of x, the first `read` by prefill, the others one by one."""
    cache = layer.new_cache(batch=2, capacity=4)
    rows = [layer.prefill(x[:, :read], cache)] if read else []
    rows += [
        layer.step(x[:, i : i + 1], cache)
        for i in progress_bar(range(read, 14), desc="tokens")
    ]
    return torch.cat(rows, dim=1)


stepped = {read: decoded(read) for read in (0, 6)}
for read, rows in stepped.items():
    right = [i for i in range(14) if (rows[:, i] - wanted[:, i]).abs().max() <= 1e-5]
    print(
        f"{read} tokens read at once, {14 - read} one by one: "
        f"{len(right)} of 14 rows equal those of the whole forward pass"
    )

# %% [markdown]
# A sequence written token by token is the same as the sequence computed at once.
#
# ## 4. The package's kernel, with your merge
#
# `kernels/conv/decode.py` also implements the splits as a kernel. A block has four
# warps, and each warp takes a quarter of the block's split; the block merges the four
# states before it writes one. A warp processes 32 keys at a time, one per lane. Each
# lane computes the scores of its key with all rows of the window. The scores of the
# last 64 keys stay in shared memory, in a ring buffer, and as soon as a key's right
# neighbours are there, its `T` is computed. So within a split no key is read twice, and
# the halo is needed only at the two ends. The picture shows the ring buffer of a warp,
# with 7 taps in a row (drawn, not measured):


# %% jupyter={"source_hidden": true}
def draw_ring(steps, c_k, lanes=32):
    """Draw which keys' scores the 64 slots of the ring buffer hold after each step."""
    figure, axes = plt.subplots(figsize=(8.5, 3.6))
    left = (c_k - 1) // 2
    for step in range(steps):
        for half in (0, 1):
            at, fresh = step - (step - half) % 2, half == step % 2
            first = at * lanes - left
            words = f"keys {first} to {first + lanes - 1}" if at >= 0 else "zeros"
            box = plt.Rectangle(
                (half * lanes, 1.5 * step),
                lanes,
                1,
                facecolor=SKY if fresh else "#EEEEEE",
                edgecolor="grey",
            )
            axes.add_patch(box)
            axes.text(
                half * lanes + 13, 1.5 * step + 0.5, words, ha="center", va="center"
            )
        still = (1 - step % 2) * lanes + lanes - (c_k - 1)
        axes.add_patch(plt.Rectangle((still, 1.5 * step), c_k - 1, 1, facecolor=ORANGE))
        axes.text(-1, 1.5 * step + 0.5, f"step {step}", ha="right", va="center")
    for place in (0, 32, 63):
        axes.text(place + 0.5, -0.3, place, ha="center")
    axes.text(-1, -0.3, "slot", ha="right")
    axes.set(xlim=(-8, 64.5), ylim=(1.5 * steps - 0.4, -1))
    axes.axis("off")
    return figure


show_figure(
    draw_ring(4, 7),
    "the 64 slots of a ring buffer after four steps, in halves of 32. A step fills one "
    "half with the scores of 32 new keys, blue: step 0 the left half with the keys -3 "
    "to 28, step 1 the right half with 29 to 60, step 2 the left half again with 61 to "
    "92, step 3 the right half with 93 to 124. Of the other half, grey, the last six "
    "slots are orange: these scores of the step before are still needed, by the "
    "convolution of the first new keys.",
)

# %% [markdown]
# The kernel writes the same `parts` as your splits do, and its second kernel has the same arguments as yours.
# Let's replace that one with yours.

# %% tags=["uses-exercise"]
mine = cuda.jit(merge_splits) if device == "cuda" else merge_splits


def with_my_merge(kernel, grid, block, *arguments):
    """Launch a kernel, but yours in place of the package's merge. (That one also
    writes the log-sum-exp of the row, which lesson 23 needs.)"""
    if kernel is merge_splits_kernel:
        kernel, arguments = mine, arguments[:2]
    RUNNERS[device](kernel, grid, block, *arguments)


def last_row_error(n, c_q, c_k, splits, run=None):
    """Return the largest difference of the package's decoder, on this device, from the
    last row in float64, for random inputs and two heads."""
    q, k, v = torch.randn(3, 1, 2, n, 4, device=device)
    w = torch.randn(2, c_q, c_k, device=device) / math.sqrt(c_q * c_k)
    wanted = reference.conv_attention(q.double(), k.double(), v.double(), w.double())[
        :, :, -1:
    ]
    return (
        (
            conv_attention_decode(q[:, :, -c_q:], k, v, w, splits=splits, run=run)
            - wanted
        )
        .abs()
        .max()
        .item()
    )


for n, splits in [(2, 1), (5, 3)]:
    error = last_row_error(n, 3, 4, splits, run=with_my_merge)
    print(
        f"keys {n}, splits {splits}, the package's splits and your merge: "
        f"below 1e-5: {error <= 1e-5}"
    )

# %% [markdown]
# ### How fast?
#
# These times are recorded, not measured here: one token with a cache of N tokens, in float32. They are
# medians, each as a CUDA graph (launched again and again without Python).
#
# - "floor" is the time to read `K` and `V` once at the rate of a copy.
# - "kernels" is the package's decoder.
# - "sdpa" is PyTorch's `scaled_dot_product_attention` with one query, which does not convolve.
# - "split keys" is the package's decoder with a single tap of 1, so it does not convolve either.
# - "eager" is the reference in PyTorch, and "compile" is the same through `torch.compile`.
#
# **Guess.** With 8 heads, how many times the floor does the package's decoder take with the longest cache?
# And with the shortest?

# %%
shapes = list(dict.fromkeys(shape for shape, _ in times))
names = list(dict.fromkeys(name for _, name in times))
rows = []
for shape in shapes:
    batch, heads, n, _ = shape
    floor, kernel, eager = (
        least_us(shape, table["bandwidth"]),
        times[shape, "kernels"],
        times[shape, "eager"],
    )
    measured = [floor, *(times[shape, name] for name in names)]
    measured += [kernel / floor, eager / kernel]
    rows.append([batch * heads, n, *(f"{value:.1f}" for value in measured)])
show_table(
    ["B · H", "N", "floor", *names, "kernels / floor", "eager / kernels"],
    *rows,
    title=f"microseconds; {table['gpu']}, {table['date']}, "
    f"{table['taps'][0]} × {table['taps'][1]} taps",
)

# %% [markdown]
# Here is the same for 8 heads as a picture, with logarithmic axes:

# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(figsize=(7.5, 4), layout="constrained")
styles = {"kernels": BLUE, "sdpa": GREEN, "eager": RED, "compile": ORANGE}
styles["split keys"] = "black"
lengths = sorted(n for batch, heads, n, _ in shapes if batch * heads == 8)
floors = [least_us((1, 8, n, 64), table["bandwidth"]) for n in lengths]
axes.loglog(lengths, floors, "--", color="grey", label="floor")
for name in names:
    measured = [times[(1, 8, n, 64), name] for n in lengths]
    axes.loglog(lengths, measured, "o-", color=styles[name], label=name)
axes.set(xlabel="N, tokens in the cache", ylabel="microseconds per token")
axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
axes.set_yticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
axes.minorticks_off()
axes.legend()
axes.grid(alpha=0.3)
show_figure(
    figure,
    "microseconds for a token over N, both axes logarithmic. The floor is a straight "
    "line from 0.5 to 63. The kernels begin far above it, at 17, rise slowly, "
    "and end at 98; without taps, split keys, at 15 and 92. Compiled PyTorch goes "
    "from 26 to 201, eager from 33 to 254; sdpa begins at 61 and rises as steeply as "
    "the floor, to 6,900.",
)

# %% [markdown]
# With 8 heads and 512 tokens, the whole cache is 2 MB, and the floor is half a microsecond. Just launching a
# kernel takes a GPU longer than that, and there are two, one after the other. But launches take a few
# microseconds, and the table shows more. The rest is waiting: a warp processes its keys one step after
# another, and each step waits for memory. The longer the cache, the more the bytes matter.
#
# Now look at the column "sdpa". With 65536 keys it takes 7 milliseconds, for 128 heads and also for 8. That
# is how a kernel with one block per head would behave (we have not looked inside): it does not split the
# keys, and with 8 heads it leaves most of the GPU idle. Section 4 of lesson 14 was about this. "split keys" does split
# them, so the difference between "kernels" and "split keys" shows what the convolution costs. (To be fair:
# decoding usually runs in half precision, for which PyTorch has other kernels. So this column does not
# represent ordinary decoding.)
#
# The next cell computes the cost of the convolution, and the tokens per second of 32 such layers for a single
# text:

# %%
for heads in (8, 32, 128):
    extra = [
        times[shape, "kernels"] / times[shape, "split keys"] - 1
        for shape in shapes
        if shape[0] * shape[1] == heads
    ]
    if extra:
        print(
            f"B · H = {heads:3}: the convolution adds {100 * min(extra):.0f} to "
            f"{100 * max(extra):.0f} % to the time"
        )
rows = []
for n in (512, 8192, 65536):
    floor = 1e6 / (32 * least_us((1, 8, n, 64), table["bandwidth"]))
    row = [tokens_per_second(n, name) for name in ("kernels", "eager")]
    rows.append([n, *(f"{rate:.0f}" for rate in (floor, *row))])
show_table(["N", "floor", "kernels", "eager"], *rows)

# %% [markdown]
# ## Validate
#
# We compare each stage with an independent one: in float64, or in float32 where a kernel computes; with every
# number of splits from 1 to 12; and with caches of 1 to 10 tokens.


# %%
def validate(stage, against, pairs, tolerance):
    """Print one row of the table for (found, wanted) pairs. NaN fails."""
    agrees = all(
        (found - wanted).abs().max().item() <= tolerance for found, wanted in pairs
    )
    print(
        f"{stage:34}  {against:34}  {'below' if agrees else 'ABOVE'} {tolerance:.0e}   "
        f"{'✓' if agrees else '✗'}"
    )


cases = []
for n, c_q, c_k in [(1, 3, 4), (2, 3, 4), (7, 1, 1), (9, 3, 4), (10, 6, 11)]:
    q, k, v = torch.randn(3, 1, 1, n, 4)
    cases.append((q, k, v, torch.randn(1, c_q, c_k) / math.sqrt(c_q * c_k)))

# %% tags=["uses-exercise"]
scores, decodings, by_package = [], [], []
for q, k, v, w in cases:
    doubles = [tensor.double() for tensor in (q, k, v, w)]
    last = reference.conv_attention(*doubles)[:, :, -1:]
    window = q[:, :, -w.shape[1] :]
    scores.append(
        (
            window_scores(window[0, 0].double(), doubles[1][0, 0], doubles[3][0]),
            reference.conv_scores(*doubles[:2], doubles[3])[0, 0, -1],
        )
    )
    decodings += [(my_decode(window, k, v, w, splits), last) for splits in range(1, 13)]
    by_package.append(
        (
            my_decode(window, k, v, w, 5),
            reference.conv_attention_decode(window, k, v, w),
        )
    )

yours, layer_name = "split_state, merge_splits in sim", "ConvAttention.forward"
print(f"{'stage':34}  {'against':34}  largest difference")
validate("window_scores", "last row of reference.conv_scores", scores, 1e-12)
validate(yours, "last row of lesson 09's forward", decodings, 1e-5)
validate(yours, "reference.conv_attention_decode", by_package, 1e-5)
for read, words in {0: "from empty", 6: "after prefill"}.items():
    pair = stepped[read], wanted
    validate(f"ConvAttention.step, {words}", layer_name, [pair], 1e-5)

# %% [markdown]
# ### On a real GPU, if you have one
#
# The cells of section 4 have already used it. This cell gives it more to do: 1000 keys, and as many splits as
# the rule chooses. Without a GPU it takes 3 keys. It prints the same line in either case.

# %% tags=["uses-exercise"]
n = 1000 if device == "cuda" else 3
print(
    "the package's splits, your merge, on this device: below 1e-5:",
    last_row_error(n, 6, 11, None, run=with_my_merge) <= 1e-5,
)

# %% [markdown]
# ## The ladder
#
# A token is limited by bytes, not by multiply-adds: its limit is the time to read the cache once. The rung is
# the package's kernel of splits with *your* merge. **Predict**: lesson 11 needs 269 transactions for 1,000
# useful multiply-adds. How many does this kernel need? `___`

# %% tags=["guess"]
guess("14b ladder", transactions=...)

# %% tags=["uses-exercise"]
show_ladder("14b", merge_splits)

# %% [markdown]
# With a GPU, the next cell times your own kernel on it:

# %% tags=["gpu"]
time_rung("14b", merge_splits)

# %% [markdown]
# About as many as in lesson 11, and here that is no fault: with one query, each key is used for a few
# multiply-adds only, so reading it is most of the work. A kernel that has to read a lot can come close to its
# limit without tricks: the column "kernels / floor" above goes down to 1.0.
#
# Why does the rung reach only a quarter of its limit? It has 8 heads and 65,536 tokens. For this size, the
# table above has 97.5 µs, and the rung took 223 µs. Two things differ. The table's kernels ran as a CUDA graph,
# while here Python launches each kernel. And in the package's merge several warps divide the splits among
# themselves, while in yours each thread adds all of them. (How much each of the two costs was not measured.)
#
# ## In three lines
#
# - Test every number of splits, from one to more than there are keys, and caches from one token on.
# - Merge by weights, and divide once.
# - With a long cache, a token takes about as long as reading the cache. With a short one, most of the time
#   goes to two launches and to waiting for memory.
#
# **You can now** tell a correct decoder from one that only looks correct.
#
# **Read on:** Dao, Haziza, Massa, Sizov, *Flash-Decoding for long-context inference* (2023, PyTorch blog).
# Kwon et al., *Efficient Memory Management for Large Language Model Serving with PagedAttention* (2023,
# arXiv:2309.06180), on caches that grow.
#
# **Next:** [lesson 15](15_training.ipynb) puts the layer into a small transformer and trains it.
