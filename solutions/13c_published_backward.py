# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 13c · A published backward pass, and the package's
#
# **45 minutes** · builds on lesson 13b (both kernels) and lesson 10b (the published forward pass)
#
# After this lesson you will be able to
#
# 1. tell from the places of wrong gradients which part of a tile was counted twice, or not at all;
# 2. say what the backward pass costs, in work and in memory.
#
# The pseudocode whose forward pass you took apart in lesson 10b also has a backward pass. It has faults too, and
# you now have tools to tell them apart: your own two kernels, into which faulty parts can be put one at a time.
#
# You don't need a GPU. The next cell loads your functions of lessons 13 and 13b.

# %%
import inspect
import json
import math
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import kernels
from course import brought, check, show_figure
from course.check import lesson13
from course.figures import BLUE, GREEN, ORANGE
from kernels import reference
from kernels.conv.backward import conv_backward
from kernels.reference.conv_tiled import halo_of, owned

torch.manual_seed(13)
(queries_kernel, case, by_hand, near) = brought(
    "13_conv_backward", "queries_kernel", "case", "by_hand", "near"
)
keys_kernel, backward = brought("13b_keys_and_sums", "keys_kernel", "backward")

# %% [markdown]
# ## 1. A bug hunt: the algorithms as they were published
#
# The published backward pass consists of two algorithms, "Algorithm 2" (dQ and dW) and "Algorithm 3" (dK and
# dV). In outline:
#
# | | step |
# |---|---|
# | 1 | a tile of B rows begins at i0 − 2·P_q, where i0 is the first row that it owns; it owns B − 2·P_q rows |
# | 2 | S, its convolution, P and dT of the whole tile, as far as the convolution reaches |
# | 3 | dW: the sum of dT · S over the **whole tile** |
# | 4 | the gradient of QKᵀ: the transposed convolution of dT, on the whole tile |
# | 5 | Algorithm 3: dV += Pᵀ dO and dK += dSᵀ Q, over **all rows** of the tile; dS is the result of step 4 |
# | 6 | at the end: dW is added atomically |
#
# **Guess before you go on:** it contains four faults. Where are the rows below, in step 1? What is missing in
# step 4?
#
# <details><summary>The four</summary>
#
# | name | fault |
# |---|---|
# | `"no rows below"` | step 1: the B rows end with the owned ones. All 2·P_q halo rows lie above, where only P_q are needed |
# | `"taps twice"` | step 3: dW includes the halo, which its owners count as well |
# | `"halo rows"` | step 5: dK and dV include the halo rows, which other tiles own |
# | `"no mask"` | step 4: the gradient of the zeros in the future is left in |
#
# </details>
#
# Four sets of functions, a to d, each contain **one** of these faults, adapted to our tiles (so the halo that
# is counted twice is the one below and at the sides). Which letter has which fault is drawn at random in each
# session. You now have a tool that lesson 12b lacked: it shows not only *which* gradient is wrong, but
# **where**.
#
# Take 14 tokens, 3 × 3 taps and tiles that own 4 × 4. The tiles then own the rows 0–3, 4–7, 8–11 and 12–13.
# **Predict**: if the rows below are missing, which rows of dQ are wrong? And if halo rows are counted, are the
# keys 12 and 13 wrong?


# %%
def places(got, wanted):
    """Return one character per row: x where it is wrong."""
    wrong = (got.double() - wanted).abs().amax(1) > 1e-4 * wanted.abs().max()
    return "".join("x" if here else "." for here in wrong)


def where_wrong(pieces, n, c_q, c_k, size=8):
    """Return which rows of dQ, dK and dV are wrong with these functions, and whether
    dW is."""
    inputs = case(n, 4, c_q, c_k)
    for_queries = {
        name: piece
        for name, piece in pieces.items()
        if name in inspect.signature(queries_kernel).parameters
    }
    for_keys = {
        name: piece
        for name, piece in pieces.items()
        if name in inspect.signature(keys_kernel).parameters
    }
    *got, d_w = backward(*inputs, size=size, queries=for_queries, keys=for_keys)
    *wanted, right_w = by_hand(*inputs)
    return [*map(places, got, wanted), "correct" if near(d_w, right_w) else "WRONG"]


where = {
    name: where_wrong(pieces, n=14, c_q=3, c_k=3)
    for name, pieces in lesson13.under_test.items()
}
print(f"   {'dQ':16}{'dK':16}{'dV':16}dW")
for name, found in where.items():
    print(f"{name}: " + "".join(f"{words:16}" for words in found))

# %% [markdown]
# ### Exercise 13.7 · diagnosis · four words
#
# Which letter has which fault? Return `{"a": ..., "b": ..., "c": ..., "d": ...}` with the names from the
# table. The letters are drawn again when the kernel restarts. So you can write down the four names that fit
# this session, or a few lines of code that decide by experiment, as the published solution does. You can try
# other taps and other lengths: `where_wrong(lesson13.under_test["a"], 14, 1, 3)`.
#
# <details><summary>Hint: two of them spoil dQ and dK</summary>
#
# Which rows of a tile need rows from the next tile? The last P_q. And which rows have a future key in a tile
# that the loop visits? In a diagonal tile, all rows but the last.
#
# </details>


# %% tags=["exercise"]
def diagnosis():
    """Return {letter: name of the fault}."""
    # BEGIN SOLUTION 13.7
    found = {}
    for name, (d_q, _, d_v, _) in where.items():
        if "x" in d_v:
            found[name] = "halo rows"
        elif "x" not in d_q:
            found[name] = "taps twice"
        elif d_q.startswith("xxx."):  # the last row of a diagonal tile is correct
            found[name] = "no mask"
        else:
            found[name] = "no rows below"
    return found
    # END SOLUTION


# %% tags=["check"]
check.ex13_7(diagnosis)

# %% [markdown]
# - **No mask** keeps the gradient at future keys. Only diagonal tiles have any, in all rows but the last. So
#   the last row of each diagonal tile is correct in dQ, and the first key of each is correct in dK.
# - **Halo rows** counts two rows of each tile twice, and these rows see most of the keys. Only the last tile
#   of rows has none below, so the last two keys are correct.
# - **No rows below** loses readers of the last two rows of each tile. The last tile has no rows below to
#   lose. In dK, each such row affects all the keys that it sees. dV needs only P of the owned rows, so it is
#   correct.
# - **Taps twice** spoils dW and nothing else.
#
# Which tests would have found them? **Predict** for each test which of the four it misses:
#
# - 14 tokens with 1 × 3 taps: there is nothing above or below
# - 4 tokens with 3 × 3 taps: the whole sequence fits into one tile
# - 14 tokens with 1 × 1 taps: there is no halo at all

# %%
print(f"{'test':22}" + "".join(f"{name:15}" for name in lesson13.FAULTS))
for n, c_q, c_k in [(14, 3, 3), (14, 1, 3), (4, 3, 3), (14, 1, 1), (5, 2, 1)]:
    found = []
    for pieces in lesson13.FAULTS.values():
        *rows, d_w = where_wrong(pieces, n, c_q, c_k)
        found.append("found" if "x" in "".join(rows) or d_w == "WRONG" else "MISSED")
    print(
        f"{f'{n} tokens, {c_q} × {c_k} taps':22}"
        + "".join(f"{word:15}" for word in found)
    )

# %% [markdown]
# 1 × 3 taps need no rows above or below, so the two faults with halo rows are missed. 1 × 1 taps find
# nothing, because this is ordinary attention without a halo. (Future scores are read only by T in the future,
# where dT is 0.) A single tile finds only the missing mask. The last test has five tokens. A tile of size 8
# with 2 × 1 taps owns six rows, so again it is a single tile, though the sizes look irregular. Count what a
# tile **owns** before you trust a small test. Most rows of your validation table in lesson 13b have several tiles.
#
# ## 2. The package's kernels
#
# `kernels/conv/backward.py` has the same two kernels, for batches and heads, any taps up to 15 × 15, d up to
# 128, causal or not. The steps are the same as yours, only faster. This is the loop of its first kernel:

# %%
source = inspect.getsource(inspect.getmodule(conv_backward)).splitlines()
begin = next(
    number
    for number, line in enumerate(source)
    if "for j0 in range(0, last_key" in line
)
end = next(number for number, line in enumerate(source) if "store_rows(d_q" in line)
print("\n".join(source[begin : end + 1]))

# %% [markdown]
# - `recompute_tile` recomputes S0, P and dT of the tile. It calls `products`, which gives each thread a patch
#   of 4 × 4 scores, and brings rows of q and k through shared memory a few columns at a time, instead of
#   reading each element from global memory again and again.
# - Convolutions run in **strips**: a thread has 8 neighbouring entries of a row, and uses each value that it
#   has loaded for several of them.
# - dT overwrites dP, and dS overwrites S0. (In the other kernel, P overwrites S0 and dS overwrites dT.) So
#   there are only two tiles in shared memory, and they can be 64 × 64. With 7 × 7 taps, such a tile owns 52 ×
#   52.
# - D is computed outside, `(d_o * o).sum(-1)`.
# - Gradients that are not requested are not computed: if neither result of a kernel is needed, it is not
#   launched.
#
# `kernels.conv_attention` combines all of it for autograd: the forward kernel, then these two.

# %%
names = "q", "k", "v", "w"
tensors = {name: torch.randn(1, 2, 20, 6, requires_grad=True) for name in names[:3]} | {
    "w": (torch.randn(2, 2, 4) / 3).requires_grad_()
}
d_o = torch.randn(1, 2, 20, 6)
mine = torch.autograd.grad(
    kernels.conv_attention(*tensors.values()), tensors.values(), d_o
)
plain = torch.autograd.grad(
    reference.conv_attention(*(x.double() for x in tensors.values())),
    tensors.values(),
    d_o.double(),
)
for name, got, wanted in zip(names, mine, plain):
    print(f"gradient of {name}: as autograd through plain PyTorch: {near(got, wanted)}")

# %% [markdown]
# ### What it costs
#
# Count multiply-adds per score, with c = c_q · c_k, without halos. The first kernel computes S0, dP and dQ (d
# each), and convolves forward, back, and for the taps (c each). The second computes S0, dP, dK and dV, and
# convolves twice.
#
# **Predict.** With d = 64 and 7 × 7 taps, how many times the forward pass's work is that? The forward pass
# has 2·d + c.

# %%
d, c = 64, 49
work = {"forward": 2 * d + c, "dQ and dW": 3 * d + 3 * c, "dK and dV": 4 * d + 2 * c}
loaded, taps = 64, torch.empty(7, 7)
for name, adds in work.items():
    tile = owned((loaded, loaded), halo_of(taps), backward=name != "forward")
    print(
        f"{name:10} {adds:4} multiply-adds per score; "
        f"a tile of {loaded} × {loaded} owns {tile[0]} × {tile[1]}: "
        f"{loaded**2 / math.prod(tile):.2f} scores computed per owned score"
    )
print(
    "both backward kernels: "
    f"{(work['dQ and dW'] + work['dK and dV']) / work['forward']:.1f} times "
    "the forward pass"
)

# %% [markdown]
# ### Memory
#
# Between the forward and the backward pass, autograd keeps what the function asks it to keep: q, k, v, w, O
# and L. Here we count it, in the simulator:


# %%
def kept_numbers(attend, n, d=8):
    """Return how many numbers autograd keeps for the backward pass of attend.
    Memory that tensors share is counted once."""
    kept = {}

    def keep(x):
        kept[x.untyped_storage().data_ptr()] = (
            x.untyped_storage().nbytes() // x.element_size(),
            x,
        )
        return x

    q, k, v = (x.requires_grad_() for x in torch.randn(3, 1, 1, n, d))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        attend(q, k, v, torch.randn(1, 3, 3, requires_grad=True))
    return sum(count for count, _ in kept.values())


print(f"{'N':>5}{'kernels':>10}{'4·N·d + N + 9':>16}   plain PyTorch, more than 2·N²")
for n in (16, 32, 64):
    ours, plain = (
        kept_numbers(kernels.conv_attention, n),
        kept_numbers(reference.conv_attention, n),
    )
    print(f"{n:5}{ours:10}{4 * n * 8 + n + 9:16}   {plain > 2 * n * n}")

# %% [markdown]
# Twice the tokens, twice the memory. While it runs, the backward pass also needs memory
# for dQ, dK, dV, D and dW, and with `deterministic=True` for another c_q · c_k numbers
# per block of queries. All of that grows with N, and nothing grows with N².
#
# And on a GPU? These numbers were recorded with `python -m kernels.bench`. "eager" is plain PyTorch, and both
# are in float32.

# %%
bench = json.loads(
    (Path(kernels.__file__).parent / "data" / "bench.json").read_text(encoding="utf-8")
)
rows = {(tuple(row["shape"]), row["name"]): row for row in bench["training"]}
lengths = [512, 1024, 2048, 4096]
print("recorded on {gpu}, {date}: 7 × 7 taps, last row 6 × 11".format(**bench))
print(
    f"{'':16}{'backward ms':^22}{'forward ms':^22}{'peak MiB':^22}\n{'B, H, N, d':15} "
    + f"{'kernels':>11}{'eager':>9}  " * 3
)
shapes = list(dict.fromkeys(shape for shape, _ in rows))
for shape in shapes:
    mine, eager = (rows[shape, name] for name in ("kernels", "eager"))
    print(
        f"{', '.join(map(str, shape)):15} "
        + "".join(
            f"{mine[what]:11.1f}{eager[what]:9.1f}  "
            for what in ("backward_ms", "forward_ms", "peak_mib")
        )
    )
print("\nB, H, N, d       backward: eager / kernels   kernels: backward / forward")
for shape in shapes:
    mine, eager = (rows[shape, name] for name in ("kernels", "eager"))
    print(
        f"{', '.join(map(str, shape)):15}"
        f"{eager['backward_ms'] / mine['backward_ms']:18.1f}"
        f"{mine['backward_ms'] / mine['forward_ms']:27.1f}"
    )

# %% [markdown]
# By the count above, the backward pass is 3.9 times the forward pass's work. In every row of the
# table it takes longer than that, most of all for short sequences. One reason is the halo, which the count leaves out. It is on both sides here: a tile of 64
# × 64 owns only 52 × 52.
#
# In the last two rows there are more heads, and the kernels gain less over plain PyTorch than for 8 heads of
# the same length. The table cannot tell us why.
#
# Here is the memory as a picture:

# %%
figure, axes = plt.subplots(figsize=(6, 3.8), layout="constrained")
for name, colour, line in [("eager", ORANGE, "s--"), ("kernels", BLUE, "o-")]:
    axes.loglog(
        lengths,
        [rows[(1, 8, n, 64), name]["peak_mib"] for n in lengths],
        line,
        color=colour,
        label=name,
    )
axes.loglog(
    lengths,
    [0.6 * rows[(1, 8, 512, 64), "kernels"]["peak_mib"] * n / 512 for n in lengths],
    ":",
    color=GREEN,
    label="grows as N",
)
axes.set(xlabel="N", ylabel="peak memory, MiB", title="forward and backward pass")
axes.set_xticks(lengths, lengths)
axes.minorticks_off()
axes.grid(alpha=0.3)
axes.legend()
show_figure(
    figure,
    "memory at the peak of a forward and a backward pass, over N from 512 to 4096, "
    "both axes logarithmic. "
    "The line of the kernels is parallel to a dotted line that grows as N. "
    "The line of plain PyTorch begins about ten times higher and is steeper.",
)

# %% [markdown]
# ## In three lines
#
# - Wrong rows tell you which part of a tile was counted twice or not at all.
# - Count what a tile owns before you trust a small test: a single tile has no neighbours.
# - The package's kernels take the same steps as yours with larger tiles, and their memory grows with N, not N².
#
# **You can now** find the fault in a backward pass from the pattern of its errors.
#
# **Read on:** Dao, *FlashAttention-2* (2023, arXiv:2307.08691), section 3.1. PyTorch's documentation, "Autograd
# mechanics", section "Saved tensors".
#
# **Next:** [lesson 14](14_decoding.ipynb) leaves training behind and generates text, one token at a time.
