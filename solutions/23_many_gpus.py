# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 23 · Many GPUs: a sequence too long for one
#
# **70 minutes** · builds on lesson 01 (merging two states), lesson 09 (the two masks) and lesson 10 (halos)
#
# You will be able to:
#
# 1. calculate which rows a rank must fetch from its neighbours before it can convolve, and how many bytes they are;
# 2. write ring attention: keys and values travel from rank to rank, and each rank merges its partial results;
# 3. explain why contiguous shards waste up to half of the GPUs' time under a causal mask, and divide the
#    sequence so that they do not.
#
# **Why it matters.** A long sequence does not fit into one GPU's memory, and even if it does, attention takes time that grows with the square of its length. So use several GPUs for one sequence. That is called [**context parallelism**](../docs/glossary.md). Here is one layer of convolutional attention (4 heads of 64, 7 × 7 taps, causal, float32), timed on one and on two H200 GPUs:

# %%
import json
import math

import matplotlib.pyplot as plt
import numpy as np
import torch

from course import check, guess, show_figure, show_table
from course.check import lesson23
from course.figures import BLUE, ORANGE, RED, SKY
from course.ranks import run_ranks
from kernels import reference
from kernels.common.data import DATA
from kernels.common.extent import Extent

torch.manual_seed(23)
record = json.loads((DATA / "sharded.json").read_text())
show_table(
    ["tokens", "one GPU", "two, contiguous", "two, zigzag"],
    *(
        [
            f"{row['N']:,}",
            *(
                f"{forward:.1f} / {backward:.0f}"
                for forward, backward in map(
                    row.get, ("one GPU", "contiguous", "zigzag")
                )
            ),
        ]
        for row in record["rows"]
    ),
    title=f"{record['ranks']} x {record['device']}, recorded {record['date']}; "
    "milliseconds, forward / backward",
)

# %% [markdown]
# Two GPUs should be twice as fast. At 131,072 tokens, the obvious division (*contiguous*: one GPU has the first half of the tokens, the other the second half) is only 1.3 times as fast as one GPU. Another division of the same tokens (*zigzag*) is 1.9 times as fast. You will find out why, and write both. At 32,768 tokens each GPU has too few blocks to keep all its multiprocessors busy, so both gain less.
#
# **You need no GPU for this lesson.** Four processes on your laptop take the place of four GPUs.
#
# The terms come from `torch.distributed`. A [**rank**](../docs/glossary.md) is one process of a group, numbered from 0. On a cluster, each rank has its own GPU. A rank cannot read another rank's memory: ranks **send** and **receive**.
#
# ## 1. The rows that a rank must fetch
#
# A sequence is [**sharded**](../docs/glossary.md) when it is divided among the ranks. Rank r holds one chunk of the tokens, with their rows of `Q`, `K` and `V`, and computes the same rows of `O`.
#
# In ordinary attention, a row of `O` needs only its own query. Here the convolution also reads the c_q − 1 query rows above it, and key columns on both sides: P_k = (c_k − 1) // 2 to the left and P_r = c_k − 1 − P_k to the right. You saw these halos in lesson 10 at the border of a tile. Now the border is between two machines, and the halo has to be sent.
#
# In the picture, 12 tokens are divided among three ranks, with 3 × 4 taps. Rank 2 owns queries 8 to 11, and is now working on keys 4 to 7, which it received from rank 1. Dark cells are the scores that it owns in this step. Pale cells are the halo that it reads to compute them.


# %% jupyter={"source_hidden": true}
def draw_halo(n, ranks, c_q, c_k, rank, owner):
    """Draw the scores of n tokens: those that `rank` owns for the keys of `owner`,
    and their halo."""
    size, left = n // ranks, (c_k - 1) // 2
    figure, axes = plt.subplots(figsize=(6.4, 6))
    for i in range(n):
        for j in range(n):
            inside = (
                rank * size <= i < (rank + 1) * size
                and owner * size <= j < (owner + 1) * size
            )
            near = (
                rank * size - c_q < i < (rank + 1) * size
                and owner * size - left <= j < (owner + 1) * size + c_k - 1 - left
            )
            axes.add_patch(
                plt.Rectangle(
                    (j, i),
                    0.94,
                    0.94,
                    facecolor=BLUE if inside else SKY if near else "whitesmoke",
                    edgecolor="grey",
                    linewidth=0.5,
                )
            )
        axes.text(-0.3, i + 0.5, f"query {i}", ha="right", va="center")
        axes.text(i + 0.47, -0.3, i, ha="center")
    for border in range(size, n, size):
        axes.plot([border - 0.03] * 2, [0, n], color=RED)
        axes.plot([0, n], [border - 0.03] * 2, color=RED)
    axes.set(xlim=(-2.5, n), ylim=(n + 0.2, -1))
    axes.set_aspect("equal")
    axes.axis("off")
    return figure


show_figure(
    draw_halo(12, 3, 3, 4, rank=2, owner=1),
    "a matrix of scores, 12 queries by 12 keys, with lines between the ranks, "
    "after every fourth row and column. "
    "The scores of the queries 8 to 11 and the keys 4 to 7 are dark blue: owned. "
    "Pale blue, the halo: the two query rows above, 6 and 7, one key column to the "
    "left, 3, and two to the right, 8 and 9, which belong to other ranks.",
)

# %% [markdown]
# **Predict.** Rank 1 also has to combine its own keys, 4 to 7, with its own queries, 4 to 7. Which rows of `Q` must it have fetched? `___` Which rows of `K`, in addition to its own? `___` And which rows of `V`? `___`

# %% tags=["guess"]
guess("23 halo", rows_of_Q=..., rows_of_K=..., rows_of_V=...)

# %% [markdown]
# ### Exercise 23.1 · halo · about three lines
#
# A rank owns the tokens `start` to `start + length − 1` of `n`, at least one. Return three whole numbers, `(first_query, first_key, last_key)`:
#
# - the rank needs the query rows from `first_query` up to its own last one;
# - the keys that travel with its own are those with `first_key <= j < last_key`.
#
# A halo ends where the sequence ends. It may be longer than a neighbour's whole chunk.


# %% tags=["exercise"]
def halo(start, length, n, c_q, c_k):
    # BEGIN SOLUTION 23.1
    left = (c_k - 1) // 2
    return (
        max(0, start - (c_q - 1)),
        max(0, start - left),
        min(n, start + length + c_k - 1 - left),
    )
    # END SOLUTION


# %% tags=["check"]
check.ex23_1(halo)

# %% [markdown]
# ## 2. Merging partial results
#
# In each step a rank attends to *some* of the keys. The result is a pair: the output `O`, already divided by the sum of its weights, and `L`, the logarithm of that sum. It is lesson 01's state `(m, l, o)`, in two values instead of three: `L = m + log l`, and `O = o / l`.
#
# Work through one query with two steps. The first step gives `L = 0` and `O = 10`, the second `L = log 3` and `O = 20`. The sums are 1 and 3, in total 4. So the weights are 1/4 and 3/4:
#
# **Predict** the merged `O`: `___` and `L`: `___`

# %% tags=["guess"]
guess("23 merge", O=..., L=...)

# %% [markdown]
# ### Exercise 23.2 · merge · about four lines
#
# `one` and `other` are pairs `(O, L)`, tensors of shape (n, d) and (n,). Return the pair for the keys of both. A row that has seen no key has `O = 0` and `L = −inf`. Such rows occur in `one`, in `other`, or in both. Scores may be near ±10 000.
#
# `torch.logaddexp` handles −inf correctly. Your weights must handle it too.


# %% tags=["exercise"]
def merge(one, other):
    # BEGIN SOLUTION 23.2
    (o, log_sum), (other_o, other_sum) = one, other
    total = torch.logaddexp(log_sum, other_sum)
    weights = [
        torch.where(part == -math.inf, 0.0, torch.exp(part - total))[:, None]
        for part in (log_sum, other_sum)
    ]
    return o * weights[0] + other_o * weights[1], total
    # END SOLUTION


# %% tags=["check"]
check.ex23_2(merge)

# %% [markdown]
# ## 3. Ring attention
#
# Every rank needs every key. There are two common ways:
#
# - An [**all-gather**](../docs/glossary.md) copies all of `K` and `V` to every rank before computing. It is simple, and it works with any mask. But each rank then holds the keys and values of the whole sequence, which is what sharding was meant to avoid. With grouped-query attention (lesson 20) keys and values are small, and then it is a good choice: Llama 3 was trained this way.
# - In [**ring attention**](../docs/glossary.md) the K/V blocks travel. Each rank attends to the block that it has, passes it to the next rank (rank R − 1 passes to rank 0), and receives one from the rank before. After R steps, every rank has seen every block, and no rank ever held more than two.
#
# You will write the ring:
#
# | | rank 0 | rank 1 | rank 2 | rank 3 |
# |---|---|---|---|---|
# | step 1 | keys of 0 | keys of 1 | keys of 2 | keys of 3 |
# | step 2 | keys of 3 | keys of 0 | keys of 1 | keys of 2 |
# | step 3 | keys of 2 | keys of 3 | keys of 0 | keys of 1 |
# | step 4 | keys of 1 | keys of 2 | keys of 3 | keys of 0 |
#
# **Predict.** How often does each rank send, for R = 4? `___`

# %% tags=["guess"]
guess("23 ring", times=...)

# %% [markdown]
# ### Exercise 23.3 · ring · about six lines
#
# `mine` is this rank's own K/V block. `attend(block)` returns the pair `(O, L)` of one step. `exchange(block)` sends a block to the next rank, and returns the block from the rank before. `merge` is your function from above. Return the pair after all `ranks` steps.
#
# - Call `attend` once for each block.
# - Keep no block that you have passed on.
# - Exchange no more often than needed: after the last step, no rank needs another block.


# %% tags=["exercise"]
def ring(mine, ranks, attend, exchange, merge):
    # BEGIN SOLUTION 23.3
    block = mine
    result = attend(block)
    for _ in range(ranks - 1):
        block = exchange(block)
        result = merge(result, attend(block))
    return result
    # END SOLUTION


# %% tags=["check"]
check.ex23_3(ring)

# %% [markdown]
# Here is your ring at work: the keys that each of four ranks attends to, step by step. (The cell only draws.)


# %% tags=["uses-exercise"] jupyter={"source_hidden": true}
def steps(rank, ranks):
    """Return the owners of the keys that `rank` attends to in your ring, in order."""
    owners = []

    def attend(owner):
        owners.append(owner)
        return torch.zeros(1, 1), torch.zeros(1)

    ring(rank, ranks, attend, lambda owner: (owner - 1) % ranks, merge)
    return owners


figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
colours = BLUE, ORANGE, SKY, RED
for rank in range(4):
    for step, owner in enumerate(steps(rank, 4)):
        axes.add_patch(plt.Rectangle((step, rank), 0.96, 0.9, color=colours[owner]))
        axes.text(
            step + 0.48,
            rank + 0.45,
            f"keys of {owner}",
            ha="center",
            va="center",
            color="black" if owner % 2 or owner == 2 else "white",
        )
axes.set(xlim=(0, 4), ylim=(4, 0))
axes.set_xticks([step + 0.48 for step in range(4)], [f"step {n}" for n in range(1, 5)])
axes.set_yticks(
    [rank + 0.45 for rank in range(4)], [f"rank {rank}" for rank in range(4)]
)
axes.tick_params(length=0)
axes.spines[:].set_visible(False)
show_figure(
    figure,
    "a table of four ranks by four steps, a colour for the keys of each rank. In "
    "step 1 each rank attends to its own keys; in each later step the colours have "
    "moved down by one rank, and those of rank 3 have come to rank 0. In each row and "
    "in "
    "each column every colour occurs once.",
)

# %% [markdown]
# ### Four processes
#
# Now run it in real processes. `run_ranks(function, 4)` starts four of them, each with its own memory, connected by `torch.distributed`. Each runs the function, and the results come back in rank order.
#
# A block is sent like this. `isend` and `irecv` only *start* a transfer, and return
# immediately. If every rank called a blocking `send` first, each could wait for the
# next one to receive, around the whole ring: a **deadlock**.
#


# %%
def exchange_with_neighbours(block):
    """Send `block` to the next rank, and return the block of the rank before."""
    from torch import distributed

    rank, ranks = distributed.get_rank(), distributed.get_world_size()

    def swap(outgoing, incoming):
        transfers = [
            distributed.isend(outgoing, (rank + 1) % ranks),
            distributed.irecv(incoming, (rank - 1) % ranks),
        ]
        for transfer in transfers:
            transfer.wait()
        return incoming

    shape = torch.tensor(block.shape)  # blocks differ in length, because halos do
    its_shape = swap(shape, torch.empty_like(shape))
    return swap(block, torch.empty(its_shape.tolist(), dtype=block.dtype))


def packed(begin, k_rows, v_rows):
    """Return one tensor: a label, the keys with their halo, and the values."""
    label = torch.zeros(1, k_rows.shape[1], dtype=k_rows.dtype)
    label[0, :2] = torch.tensor([begin, len(v_rows)])
    return torch.cat([label, k_rows, v_rows])


def unpacked(block):
    """Return (first token, keys with their halo, values) of a packed block."""
    begin, keys = (int(number) for number in block[0, :2])
    return begin, block[1:-keys], block[-keys:]


# %% [markdown]
# Every rank runs the next function. It uses your `halo`, `ring` and `merge`. In this lesson each rank generates the whole random sequence and cuts its rows and halos out of it; the package fetches the halos from the neighbours.
#
# `reference.conv_attention_part` is lesson 09's forward pass for one K/V block. An `Extent` describes the block with three numbers: how many of the query rows are halo, how many of the first keys are halo, and the distance from the block's first token to the rank's first token. For rank 2 with the keys of rank 1, as in the picture above, it is `Extent(2, 1, 4)`.


# %% jupyter={"source_hidden": true}
def draw_extent():
    """Draw the tokens that rank 2 reads of its queries and of the keys of rank 1."""
    figure, axes = plt.subplots(figsize=(8.5, 2.6), layout="constrained")
    for y, name, tokens, owned in [
        (1.6, "queries of rank 2", range(6, 12), range(8, 12)),
        (0, "keys of rank 1", range(3, 10), range(4, 8)),
    ]:
        for token in tokens:
            shade = BLUE if token in owned else SKY
            axes.add_patch(plt.Rectangle((token, y), 0.94, 0.8, facecolor=shade))
            ink = "white" if token in owned else "black"
            axes.text(token + 0.47, y + 0.4, token, ha="center", va="center", color=ink)
        axes.text(2.7, y + 0.4, name, ha="right", va="center")
    axes.text(6.94, 2.5, "2 rows of halo", ha="center")
    axes.text(3.0, -0.35, "1 key of halo", ha="left", va="center")
    axes.annotate("", (8, 1.2), (4, 1.2), arrowprops={"arrowstyle": "<->"})
    axes.text(6, 1.3, "distance 4", ha="center")
    axes.set(xlim=(-0.3, 12.2), ylim=(-0.6, 2.85))
    axes.axis("off")
    return figure


show_figure(
    draw_extent(),
    "two rows of tokens. Rank 2 reads the queries 6 to 11 and owns 8 to 11, so 2 rows "
    "are halo. Of rank 1's block it reads the keys 3 to 9 and the block owns 4 to 7, "
    "so 1 key on the left is halo. From the block's first token, 4, to the rank's "
    "first, 8, the distance is 4.",
)


# %%
def my_rank(n, d, c_q, c_k, halo, ring, merge):
    """Return one rank's rows of O (n / R, d), and the bytes that it sent."""
    from torch import distributed

    rank, ranks, sent = distributed.get_rank(), distributed.get_world_size(), []
    q, k, v, w = lesson23.tokens(n, d, c_q, c_k)
    start, end = n * rank // ranks, n * (rank + 1) // ranks
    first_query, first_key, last_key = halo(start, end - start, n, c_q, c_k)
    q_rows = q[None, None, first_query:end]

    def attend(block):
        begin, k_rows, v_rows = unpacked(block)
        its_first = halo(begin, len(v_rows), n, c_q, c_k)[1]
        extent = Extent(start - first_query, begin - its_first, start - begin)
        o, log_sum = reference.conv_attention_part(
            q_rows, k_rows[None, None], v_rows[None, None], w[None], extent
        )
        return o[0, 0], log_sum[0, 0]

    def exchange(block):
        sent.append(block.numel() * block.element_size())
        return exchange_with_neighbours(block)

    mine = packed(start, k[first_key:last_key], v[start:end])
    return ring(mine, ranks, attend, exchange, merge)[0], sum(sent)


# %% [markdown]
# **Predict** the bytes that a rank sends, for n = 64, d = 8, float64 and four ranks. Leave out halos and labels: each of the three blocks that it sends has 16 keys and 16 values of 8 elements of 8 bytes. `___` (The cell can take half a minute, mostly to start the processes.)

# %% tags=["guess"]
guess("23 bytes", number_of_bytes=...)

# %% tags=["uses-exercise"]
n, d, c_q, c_k = 64, 8, 6, 11
results = run_ranks(my_rank, 4, n, d, c_q, c_k, halo, ring, merge)
q, k, v, w = lesson23.tokens(n, d, c_q, c_k)
alone = reference.conv_attention(*(x[None, None] for x in (q, k, v)), w[None])[0, 0]
print(
    "four ranks equal one, below 1e-12:",
    bool((torch.cat([o for o, _ in results]) - alone).abs().max() <= 1e-12),
)
print(
    "bytes sent by each rank:",
    [sent for _, sent in results],
    "of them keys and values:",
    3 * 2 * 16 * 8 * 8,
)

# %% [markdown]
# The remaining bytes are halos and labels: 10 halo rows for a block in the middle of the sequence, 5 for a block at either end, and one row for each label. They do not grow with n; keys and values do. For n = 131 072, the halo's 10 rows are 0.015 % of a block of 32 768 keys and as many values.
#
# ## 4. A bug at a border
#
# A bug at a border is easy to miss. Most rows are correct, and with 1 × 1 taps all of them are. Below are three faulty implementations, a, b and c, each with one bug. Which letter has which bug is drawn at random in each session. There are three ranks of eight tokens, 3 × 5 taps, and a causal mask. For each implementation you see which of the 24 rows of `O` are wrong.

# %%
for name in lesson23.IMPLEMENTATIONS:
    print(f"{name}: wrong rows", lesson23.wrong_rows(name))

# %% [markdown]
# ### Exercise 23.4 · faults · three words
#
# One implementation leaves out the halo of the queries (`"queries"`), one the halo of the keys (`"keys"`). The third (`"merge"`) sends `V` for the halo columns as well, so their probabilities are counted twice when results are merged. Return `{"a": ..., "b": ..., "c": ...}` with these three words. You can write down the words that fit this session, or code that decides by experiment, as the published solution does.
#
# Experiment: `lesson23.wrong_rows("a", c_q=1)` runs implementation a with taps of one row, and `c_k=1` with taps of one column. Rank 0 has rows 0 to 7: which of the bugs can reach them?


# %% tags=["exercise"]
def faults():
    """Return {letter: word}."""
    # BEGIN SOLUTION 23.4
    found = {}
    for name in lesson23.IMPLEMENTATIONS:
        if not lesson23.wrong_rows(name, c_q=1):
            found[name] = "queries"  # harmless without a halo of queries
        elif min(lesson23.wrong_rows(name)) < 8:
            found[name] = "merge"  # rank 0 counts columns of rank 1's halo
        else:
            found[name] = "keys"  # the mask hides rank 0's halo of keys
    return found
    # END SOLUTION


# %% tags=["check"]
check.ex23_4(faults)

# %% [markdown]
# <details><summary>Why does rank 0 tell the other two apart?</summary>
#
# The halo keys to the right of rank 0's own block are hidden from its queries by the causal mask. So a missing
# halo of keys does no harm there. But the block of rank 1 arrives with two halo keys on its left, 6 and 7. If
# their rows of `V` come with them, the queries 6 and 7 of rank 0 count these two keys a second time.
#
# </details>
#
# ### A leak test across ranks
#
# Now repeat lesson 09b's leak test. Change the last token, which is on the last rank. No earlier row may change, on any rank. The first rank is as far away from the change as possible.


# %%
def leak(machine):
    """Return the rows of O that change when the last token changes."""
    before, after = (
        lesson23.output(machine, changed=changed) for changed in (False, True)
    )
    return [i for i in range(len(before)) if not torch.equal(before[i], after[i])]


print("no bug:", leak("right"))
print(
    "a mask that counts keys from the block's first, "
    "and queries from the rank's first:",
    leak("local mask"),
)

# %% [markdown]
# ## 5. Balancing the work
#
# With a causal mask, the first tokens see only a few keys, and rank 0 has the first tokens. So the ranks do not have equal work. Count the scores on and below the diagonal that each of four ranks computes, for 4096 tokens.
#
# **Predict** the ratio of the last rank's work to the first's: 2? 4? 7? `___`

# %% tags=["guess"]
guess("23 balance", ratio=...)


# %%
def visible(chunks, borders):
    """Count the scores on and below the diagonal in the rows of these chunks."""
    return sum(
        end * (end + 1) // 2 - start * (start + 1) // 2
        for start, end in (borders[s : s + 2] for s in chunks)
    )


borders = [4096 * r // 4 for r in range(5)]
work = [visible([r], borders) for r in range(4)]
print("scores per rank:", work, f"  the last over the first: {work[-1] / work[0]:.1f}")
print(
    "largest speed-up of four ranks, as all wait for the last: "
    f"{sum(work) / max(work):.2f}"
)
halved = [visible([r], [0, 2048, 4096]) for r in range(2)]
print(f"of two ranks: {sum(halved) / max(halved):.2f}")

# %% [markdown]
# Four ranks are at best 2.3 times as fast as one, and two ranks 1.33 times. The H200s at the top reached 1.27 in the forward pass, at 131,072 tokens.
#
# The fix is the [**zigzag order**](../docs/glossary.md): divide the sequence into 2·R
# chunks, and give each rank two of them, one early and one late, so that all ranks have
# equal work. If all chunks have the same length, the work of chunk s grows linearly
# with s. The cost is that each rank has two halos. (**Striped attention** balances the
# work differently: rank r gets the tokens r, r + R, r + 2R, … With a convolution, every
# token would then have its whole halo on other ranks.)
#
# ### Exercise 23.5 · my_chunks · one line
#
# Return the indices of the two chunks, out of `2 * ranks`, that this rank holds, the smaller first. All ranks together hold each chunk once, and all do the same work.


# %% tags=["exercise"]
def my_chunks(rank, ranks):
    # BEGIN SOLUTION 23.5
    return rank, 2 * ranks - 1 - rank
    # END SOLUTION


# %% tags=["check"]
check.ex23_5(my_chunks)

# %% tags=["uses-exercise"]
borders = [4096 * s // 8 for s in range(9)]
figure, axes = plt.subplots(figsize=(7, 3))
halves = [[visible([s], borders) for s in my_chunks(rank, 4)] for rank in range(4)]
axes.bar([r - 0.2 for r in range(4)], work, 0.36, color=ORANGE, label="contiguous")
axes.bar(
    [r + 0.2 for r in range(4)],
    [first for first, _ in halves],
    0.36,
    color=BLUE,
    label="zigzag, first chunk",
)
axes.bar(
    [r + 0.2 for r in range(4)],
    [second for _, second in halves],
    0.36,
    bottom=[first for first, _ in halves],
    color=SKY,
    label="zigzag, second chunk",
)
axes.set(xticks=range(4), xticklabels=[f"rank {r}" for r in range(4)], ylabel="scores")
axes.legend()
show_figure(
    figure,
    "scores per rank, of four. "
    "Contiguous: 0.5, 1.6, 2.6 and 3.7 million, so that all wait for rank 3. "
    "Zigzag: 2.1 million on each, a small first chunk with a large second one.",
)
print("work of the ranks, zigzag:", [sum(both) for both in halves])

# %% [markdown]
# ## 6. The cost of communication
#
# The ring can send while it computes: the next K/V block is already on its way while a rank attends to the current one. As long as computing takes longer than sending, sending costs no time. Only the part that takes longer than computing costs time. It is called [**exposed communication**](../docs/glossary.md):
#
# %% jupyter={"source_hidden": true}
figure, axes = plt.subplots(1, 2, figsize=(9.5, 2.2), layout="constrained")
for place, compute, send, title in [
    (axes[0], 3.0, 1.4, "a long sequence: sending is hidden"),
    (axes[1], 1.4, 2.4, "a short sequence: sending is exposed"),
]:
    start = 0.0
    for step in range(3):
        place.barh(1, compute - 0.06, left=start, color=BLUE)
        middle = start + compute / 2
        place.text(
            middle, 1, f"step {step + 1}", color="white", ha="center", va="center"
        )
        if step < 2:
            place.barh(0, min(compute, send) - 0.06, left=start, color=SKY)
            place.barh(0, max(0, send - compute), left=start + compute, color=RED)
        start += max(compute, send)
    place.set(yticks=[0, 1], yticklabels=["send", "compute"], xticks=[], title=title)
    place.spines[:].set_visible(False)
    place.tick_params(length=0)
show_figure(
    figure,
    "two timelines of one rank, with a row for computing and one for sending. For a "
    "long sequence each transfer ends before the computation next to it. For a short "
    "one each transfer takes longer, and the next step waits; the wait is red.",
)

# %% [markdown]
# How much is exposed on the two H200s? The table compares the zigzag forward pass with the same kernels without any sending (medians of three runs; the last row is a single run; differences below one percent are noise). The columns *ring* and *all-gather* time one transfer of `K` and `V` by itself, in each of the two ways of section 3. With two GPUs both move the same bytes, and neither takes more than 1 % of the forward pass.

# %%
rows = []
for row in record["rows"]:
    megabytes = (
        2 * row["N"] // record["ranks"] * record["heads"] * record["d"] * 4 / 1e6
    )
    sent, nothing_sent = row["zigzag"][0], row["zigzag, nothing sent"][0]
    # the exchange of halos is included; no computation hides it
    exposed = f"{1 - nothing_sent / sent:.1%}"
    times = f"{row['ring']:.2f} {row['all-gather']:.2f} {sent:.1f} {nothing_sent:.1f}"
    rows.append([f"{row['N']:,}", f"{megabytes:.0f}", *times.split(), exposed])
show_table(
    ["tokens", "K/V block, MB", "ring, ms", "all-gather, ms"]
    + ["forward, ms", "nothing sent, ms", "exposed"],
    *rows,
)

# %% [markdown]
# **Predict.** Work grows with N², and bytes with N. Take 64 GPUs whose links carry 25 GB/s. At which N does sending take as long as computing: 1000 tokens? 10 000? 100 000? `___`

# %% tags=["guess"]
guess("23 sending", tokens=...)

# %% [markdown]
# The next table is **calculated, not measured**. Computing one step takes (time of one GPU) / R². Sending a block takes a fixed time plus a time that grows with its bytes. The column *this rate* takes both from a straight line through the three ring times above. The column *25 GB/s*, typical between machines, uses the same fixed time. The slower of computing and sending determines the time of a step, and there are R steps.

# %%
longest = record["rows"][-1]
per_token = 2 * record["heads"] * record["d"] * 4 / 1e6  # MB of keys and values
slope, fixed = np.polyfit(
    [row["N"] // record["ranks"] * per_token for row in record["rows"]],
    [row["ring"] for row in record["rows"]],
    1,
)
per_score = longest["one GPU"][0] / longest["N"] ** 2


def of_a_step(tokens, ranks, gigabytes_per_second):
    """Return the milliseconds of (computing, sending) in one step."""
    return (
        per_score * tokens**2 / ranks**2,
        fixed + tokens / ranks * per_token / gigabytes_per_second,
    )


print(
    f"calculated; between the two GPUs {1 / slope:.0f} GB/s and {fixed:.2f} ms per "
    "exchange (measured)"
)
rows = []
for tokens in (16384, 65536, 131072, 262144, 1048576):
    times = [
        ranks * max(of_a_step(tokens, ranks, rate))
        for ranks, rate in [(8, 1 / slope), (64, 1 / slope), (64, 25)]
    ]
    times = [per_score * tokens**2, *times]
    rows.append([f"{tokens:,}", *(f"{time:.1f}" for time in times)])
show_table(["tokens", "one GPU", "8, this rate", "64, this rate", "64, 25 GB/s"], *rows)
equal = next(
    tokens
    for tokens in range(1024, 1 << 20, 1024)
    if np.diff(of_a_step(tokens, 64, 25)) < 0
)
print(f"64 GPUs, 25 GB/s: computing takes as long as sending at about {equal:,} tokens")

# %% [markdown]
# ## Validate
#
# `kernels.distributed.conv_attention_sharded` does the same for batches and heads, with the kernels of lessons 11 and 13. It fetches halos from the neighbours, and has a backward pass: `dK` and `dV` travel with their keys, each rank adds its part, and the gradients of halo rows are sent back to the ranks that own these rows. The next cell compares two processes with one (zigzag, in the simulator). It takes a minute or two, because every launch works on tiles of 64 × 64, however few tokens there are.


# %%
def package_on_a_rank(n):
    """Return the largest errors of O, dQ, dK, dV and dW compared with one process."""
    from kernels.distributed import conv_attention_sharded, shard, unshard

    torch.manual_seed(1)
    q, k, v, d_o = torch.randn(4, 1, 1, n, 4)
    leaves = [x.requires_grad_() for x in (q, k, v, torch.randn(1, 3, 4) / 3)]
    o = reference.conv_attention(*leaves)
    wanted = o, *torch.autograd.grad(o, leaves, d_o)
    pieces = [shard(x.detach()).requires_grad_() for x in leaves[:3]] + [
        leaves[3].detach().clone().requires_grad_()
    ]
    mine = conv_attention_sharded(*pieces, layout="zigzag")
    gradients = torch.autograd.grad(mine, pieces, shard(d_o))
    got = [unshard(x) for x in (mine, *gradients[:3])] + [gradients[3]]
    return [float((g - x).abs().max()) for g, x in zip(got, wanted)]


worst = [
    max(errors) for errors in zip(*run_ranks(package_on_a_rank, 2, 5, timeout=900))
]
print(
    f"two ranks, zigzag: O below 1e-5: {worst[0] <= 1e-5}   dQ, dK, dV, dW below 1e-4: "
    f"{max(worst[1:]) <= 1e-4}"
)

# %% [markdown]
# ## In three lines
# - A rank owns its rows and fetches a halo: c_q − 1 query rows above, and P_k and P_r keys on the two sides of every K/V block. It never fetches a halo of `V`.
# - Keys and values travel, queries stay. Each step gives `(O, L)`, and the merge is lesson 01's. Mathematically the order does not matter; the last bits may differ.
# - Under a causal mask, give each rank an early chunk and a late one. Bytes grow with N and work with N², so long sequences hide the communication.
#
# **You can now** divide a sequence among as many machines as you have, and find a bug at their borders.
#
# **Read on:** Hao Liu, Matei Zaharia and Pieter Abbeel, *Ring Attention with Blockwise Transformers for Near-Infinite Context* (2023, arXiv:2310.01889) · William Brandon et al., *Striped Attention: Faster Ring Attention for Causal Transformers* (2023, arXiv:2311.09431) · Llama Team, *The Llama 3 Herd of Models* (2024, arXiv:2407.21783), section 3.3.2, for context parallelism by all-gather.
