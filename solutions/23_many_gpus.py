# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 23 · Many GPUs: a sequence that no single one holds
#
# **70 minutes** · builds on lesson 01 (the merge), lesson 09 (the two masks) and lesson 10 (halos)
#
# You will be able to
#
# 1. say which rows a rank must fetch from its neighbours before it can convolve, and how many bytes that is;
# 2. write the ring in which keys and values visit every rank, and merge what each visit finds;
# 3. say why contiguous shards waste up to half of the machines under a causal mask, and cut the sequence so that they do not.
#
# **Where this leads.** One layer of convolutional attention, 4 heads of 64, 7 × 7 taps, causal, float32, timed on two H200 GPUs (recorded on the day below):

# %%
import json
import math

import matplotlib.pyplot as plt
import numpy as np
import torch

from course import check, show_figure, show_table
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
# At 131,072 tokens two GPUs in the obvious order (*contiguous*: the first half of the tokens, and the second) are 1.3 times as fast as one. Cut in another way (*zigzag*), they are 1.9 times as fast. You will find out why, and write both. (At 32,768 tokens each GPU has too
# few blocks to be busy all the time, so less is gained.) **No GPU is needed**: a *rank* is a process, and four of them run on your laptop.
#
# The words are those of `torch.distributed`. A **rank** is one process of a group, numbered from 0. It has its own memory, and on a cluster its own GPU. Ranks see nothing of each other; they **send** and **receive**.
#
# ## 1. What a rank must borrow
#
# A sequence is **sharded**: rank r holds a stretch of the tokens, their rows of `Q`, `K` and `V`, and computes the same rows of `O`. In ordinary attention a query row needs no other query. Here the convolution reads c_q − 1 query rows above, and key columns on both sides,
# P_k = (c_k − 1) // 2 to the left and P_r = c_k − 1 − P_k to the right. Lesson 10 had this at the border of a tile. Now the border runs between two machines.
#
# The picture has 12 tokens on three ranks, and 3 × 4 taps. Rank 2 owns the queries 8 to 11. The keys 4 to 7 of rank 1 are visiting. Dark cells are owned, pale ones the halo.


# %% jupyter={"source_hidden": true}
def draw_halo(n, ranks, c_q, c_k, rank, visitor):
    """The scores of n tokens: what `rank` owns while `visitor` visits, and the halo."""
    size, left = n // ranks, (c_k - 1) // 2
    figure, axes = plt.subplots(figsize=(6.4, 6))
    for i in range(n):
        for j in range(n):
            inside = (
                rank * size <= i < (rank + 1) * size
                and visitor * size <= j < (visitor + 1) * size
            )
            near = (
                rank * size - c_q < i < (rank + 1) * size
                and visitor * size - left <= j < (visitor + 1) * size + c_k - 1 - left
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
    draw_halo(12, 3, 3, 4, rank=2, visitor=1),
    "a matrix of scores, 12 queries by 12 keys, with lines between the ranks, "
    "behind every fourth row and column. "
    "The scores of the queries 8 to 11 and the keys 4 to 7 are dark blue: owned. "
    "Pale blue, the halo: the two query rows above, 6 and 7, one key column to the "
    "left, 3, and two to the right, 8 and 9, which belong to other ranks.",
)

# %% [markdown]
# **Predict.** Now rank 1's own keys, 4 to 7, meet its own queries, 4 to 7. Which rows of `Q` must it have fetched? `___` Which rows of `K` beside its own? `___` And rows of `V`? `___`
#
# <details><summary>Answer</summary>
#
# Query rows 2 and 3, from rank 0. Key row 3, from rank 0, and key rows 8 and 9, from rank 2. (A causal mask hides the scores of 8 and 9 from these queries, but the keys travel on, to ranks that see them.) No row of `V`: a halo column is read by the
# convolution, but its probability belongs to another visit.
#
# </details>
#
# ### Exercise 23.1 · halo · about three lines
#
# A rank owns the tokens `start` to `start + length − 1` of `n`, at least one. Return `(first_query, first_key, last_key)`, whole numbers: it fetches query rows from `first_query` on, up to its own last, and the keys that travel with its own are `first_key <= j < last_key`.
# A halo ends where the sequence ends. It may be longer than a neighbour's whole stretch.


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
# ## 2. Half an answer, merged
#
# One visit gives a rank the output over *some* of the keys: `O`, already divided by its own sum, and `L`, the log of that sum. This is lesson 01's `(m, l, o)` in two numbers instead of three: `L = m + log l`, and `O = o / l`.
#
# On paper, one query, two visits: the first found `L = 0` and `O = 10`, the second `L = log 3` and `O = 20`. The sums are 1 and 3, together 4. So the weights are 1/4 and 3/4:
#
# **Predict** the merged `O`: `___` and `L`: `___`
#
# <details><summary>Answer</summary>
#
# `O` = 10 / 4 + 20 · 3 / 4 = 17.5, `L` = log 4.
#
# </details>
#
# ### Exercise 23.2 · merge · about four lines
#
# `one` and `other` are pairs `(O, L)`, tensors of shape (n, d) and (n,). Return the pair for all keys of both. A row that has seen no key has `O = 0`, `L = −inf`, in either pair or in both; scores may lie near ±10 000.
# `torch.logaddexp` knows what to do with −inf; your weights must know it too.


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
# ## 3. The ring
#
# Every rank must meet every key. To gather all of `K` and `V` on every rank would need the memory that sharding was to save. So they travel: each rank hands its visitor to the next rank, rank R − 1 to rank 0, and takes one from the rank before. After R visits all have met.
#
# | | rank 0 | rank 1 | rank 2 | rank 3 |
# |---|---|---|---|---|
# | visit 1 | keys of 0 | keys of 1 | keys of 2 | keys of 3 |
# | visit 2 | keys of 3 | keys of 0 | keys of 1 | keys of 2 |
# | visit 3 | keys of 2 | keys of 3 | keys of 0 | keys of 1 |
# | visit 4 | keys of 1 | keys of 2 | keys of 3 | keys of 0 |
#
# **Predict.** How often does a rank send, for R = 4? `___`
#
# <details><summary>Answer</summary>
#
# Three times: its own keys are there already.
#
# </details>
#
# ### Exercise 23.3 · ring · about six lines
#
# `mine` is this rank's own visitor. `attend(visitor)` gives the pair `(O, L)` of one visit. `exchange(visitor)` hands a visitor on and returns the one that came. `merge` is yours from above. Return the pair after all `ranks` visits: `attend` once to
# each visitor, one visitor at a time (keep none that has been handed on), and not one exchange more than needed, since what travels last would travel in vain.


# %% tags=["exercise"]
def ring(mine, ranks, attend, exchange, merge):
    # BEGIN SOLUTION 23.3
    visitor = mine
    result = attend(visitor)
    for _ in range(ranks - 1):
        visitor = exchange(visitor)
        result = merge(result, attend(visitor))
    return result
    # END SOLUTION


# %% tags=["check"]
check.ex23_3(ring)

# %% [markdown]
# Your ring at work, for four ranks: whose keys each rank attends to, visit by visit. (The cell only draws.)


# %% tags=["uses-exercise"] jupyter={"source_hidden": true}
def visits(rank, ranks):
    """Whose keys `rank` attends to, in order, by your ring."""
    owners = []

    def attend(owner):
        owners.append(owner)
        return torch.zeros(1, 1), torch.zeros(1)

    ring(rank, ranks, attend, lambda owner: (owner - 1) % ranks, merge)
    return owners


figure, axes = plt.subplots(figsize=(7, 3.2), layout="constrained")
colours = BLUE, ORANGE, SKY, RED
for rank in range(4):
    for visit, owner in enumerate(visits(rank, 4)):
        axes.add_patch(plt.Rectangle((visit, rank), 0.96, 0.9, color=colours[owner]))
        axes.text(
            visit + 0.48,
            rank + 0.45,
            f"keys of {owner}",
            ha="center",
            va="center",
            color="black" if owner % 2 or owner == 2 else "white",
        )
axes.set(xlim=(0, 4), ylim=(4, 0))
axes.set_xticks(
    [visit + 0.48 for visit in range(4)], [f"visit {n}" for n in range(1, 5)]
)
axes.set_yticks(
    [rank + 0.45 for rank in range(4)], [f"rank {rank}" for rank in range(4)]
)
axes.tick_params(length=0)
axes.spines[:].set_visible(False)
show_figure(
    figure,
    "a table of four ranks by four visits, a colour for the keys of each rank. In "
    "visit 1 each rank attends to its own keys; in each later visit the colours have "
    "moved down by one rank, and those of rank 3 have come to rank 0. In each row and "
    "in "
    "each column every colour stands once.",
)

# %% [markdown]
# ### Four processes
#
# Now for real. `run_ranks(function, 4)` starts four processes, each with its own memory, which can talk to each other through `torch.distributed`; each runs the function, and the results come back in the order of the ranks.
#
# Each rank keeps its rows of the same random `q`, `k`, `v`. A visitor is one tensor, keys with their halo and then values, and two numbers say where it comes from. (In this lesson each rank cuts its halo from the whole sequence, since all have it; the package
# fetches it from the neighbours.) `reference.conv_attention_part` is lesson 09's forward pass for a piece: an `Extent` says how many of the query rows are halo, how many
# of the keys to the left, and how far the rank's first token lies behind the visitor's first. The cell takes half a minute, mostly to start Python four times.


# %%
def exchange_with_neighbours(visitor):
    """Send `visitor` to the next rank; the one from the rank before."""
    from torch import distributed

    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    shape = torch.tensor(visitor.shape)
    came = torch.empty_like(shape)
    for send, receive in [(shape, came), (visitor, None)]:
        receive = (
            torch.empty(tuple(came.tolist()), dtype=visitor.dtype)
            if receive is None
            else receive
        )
        works = [
            distributed.isend(send, (rank + 1) % ranks),
            distributed.irecv(receive, (rank - 1) % ranks),
        ]
        for work in works:
            work.wait()
    return receive


def my_rank(n, d, c_q, c_k, halo, ring, merge):
    """One rank's rows of O (n / R, d), and the bytes that it sent."""
    from torch import distributed

    rank, ranks, sent = distributed.get_rank(), distributed.get_world_size(), []
    q, k, v, w = lesson23.tokens(n, d, c_q, c_k)
    borders = [n * r // ranks for r in range(ranks + 1)]
    start, end = borders[rank : rank + 2]
    first_query, first_key, last_key = halo(start, end - start, n, c_q, c_k)
    mine = torch.cat(
        [
            torch.tensor([[start, end - start] + [0] * (d - 2)], dtype=k.dtype),
            k[first_key:last_key],
            v[start:end],
        ]
    )

    def attend(visitor):
        begin, keys = (int(number) for number in visitor[0, :2])
        its_first = halo(begin, keys, n, c_q, c_k)[1]
        k_rows, v_rows = (
            visitor[1 : len(visitor) - keys],
            visitor[len(visitor) - keys :],
        )
        extent = Extent(start - first_query, begin - its_first, start - begin)
        o, log_sum = reference.conv_attention_part(
            q[None, None, first_query:end],
            k_rows[None, None],
            v_rows[None, None],
            w[None],
            extent,
        )
        return o[0, 0], log_sum[0, 0]

    def exchange(visitor):
        sent.append(visitor.numel() * visitor.element_size())
        return exchange_with_neighbours(visitor)

    return ring(mine, ranks, attend, exchange, merge)[0], sum(sent)


# %% [markdown]
# **Predict** the bytes that a rank sends for n = 64, d = 8, float64 and four ranks, halos and labels aside: each of its three visitors has 16 keys and 16 values of 8 numbers of 8 bytes: `___`

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
# The rest is halos: 10 key rows for a visitor in the middle, 5 at the ends of the sequence, and one row for the label. They do not grow with n; keys and values do. With n = 131 072 the halo of 10 rows is 0.015 % of a visitor of 32 768 keys and as many values.
#
# ## 4. A fault at a border
#
# A border fault is easy to miss. Most rows are right, and all are right where the taps are 1 × 1. Three machines below have one fault each. For each, the table shows which of the 24 rows of `O` differ from one device's. There are three ranks of eight tokens, 3 × 5 taps, causal.

# %%
for name in lesson23.MACHINES:
    print(f"machine {name}: rows that differ:", lesson23.wrong_rows(name))

# %% [markdown]
# ### Exercise 23.4 · Which fault is it?
#
# One machine forgot the halo of the **queries**, one the halo of the **keys**, and one **merges** halo columns: its visitors bring `V` for their halo as well, and count those probabilities twice. Return `{"A": ..., "B": ..., "C": ...}` with "queries", "keys" and "merge". Rank 0
# has the rows 0 to 7: which faults can reach them? More experiments are yours: `lesson23.wrong_rows("A", c_q=1)` runs machine A with other taps,
# and `c_k=1` likewise.


# %% tags=["exercise"]
def faults():
    # BEGIN SOLUTION 23.4
    return {"A": "keys", "B": "merge", "C": "queries"}
    # END SOLUTION


# %% tags=["check"]
check.ex23_4(faults)

# %% [markdown]
# ### A leak test across ranks
#
# Lesson 09's test, once more: change the last token, on the last rank. No row before it may change, on any rank, and the first rank is as far from it as can be.


# %%
def leak(machine):
    """Rows of O that a change of the last token reaches."""
    before, after = (
        lesson23.output(machine, changed=changed) for changed in (False, True)
    )
    return [i for i in range(len(before)) if not torch.equal(before[i], after[i])]


print("no fault:", leak("right"))
print(
    "a mask that counts keys from the visitor's first, "
    "and queries from the rank's first:",
    leak("local mask"),
)

# %% [markdown]
# ## 5. Who works, and who waits
#
# With a causal mask, rank 0 holds the first tokens, and they see little. Count the scores on and below the diagonal that each of four ranks makes, for 4096 tokens.
#
# **Predict** the quotient of the last rank's work and the first's: 2? 4? 7? `___`


# %%
def visible(stretches, borders):
    """Scores on and below the diagonal in the rows of these stretches."""
    return sum(
        end * (end + 1) // 2 - start * (start + 1) // 2
        for start, end in (borders[s : s + 2] for s in stretches)
    )


borders = [4096 * r // 4 for r in range(5)]
work = [visible([r], borders) for r in range(4)]
print("scores per rank:", work, f"  the last over the first: {work[-1] / work[0]:.1f}")
print(
    "speed-up of four ranks at best, as all wait for the last: "
    f"{sum(work) / max(work):.2f}"
)
halved = [visible([r], [0, 2048, 4096]) for r in range(2)]
print(f"of two: {sum(halved) / max(halved):.2f}")

# %% [markdown]
# So four ranks are at best 2.3 times as fast as one, and two 1.33 times. The H200s above reached 1.27 in the forward pass at 131,072 tokens.
#
# The remedy, *zigzag*: cut the sequence into 2·R stretches and give each rank two of them, so that all have equal work. With borders at equal distances, stretch s makes work that grows evenly with s. (A rank then has two halos.)
#
# ### Exercise 23.5 · my_stretches · one line
#
# Return the two stretches, of `2 * ranks`, that this rank holds, smaller first. All ranks together hold each stretch once, and all do the same work.


# %% tags=["exercise"]
def my_stretches(rank, ranks):
    # BEGIN SOLUTION 23.5
    return rank, 2 * ranks - 1 - rank
    # END SOLUTION


# %% tags=["check"]
check.ex23_5(my_stretches)

# %% tags=["uses-exercise"]
borders = [4096 * s // 8 for s in range(9)]
figure, axes = plt.subplots(figsize=(7, 3))
halves = [[visible([s], borders) for s in my_stretches(rank, 4)] for rank in range(4)]
axes.bar([r - 0.2 for r in range(4)], work, 0.36, color=ORANGE, label="contiguous")
axes.bar(
    [r + 0.2 for r in range(4)],
    [first for first, _ in halves],
    0.36,
    color=BLUE,
    label="zigzag, first stretch",
)
axes.bar(
    [r + 0.2 for r in range(4)],
    [second for _, second in halves],
    0.36,
    bottom=[first for first, _ in halves],
    color=SKY,
    label="zigzag, second stretch",
)
axes.set(xticks=range(4), xticklabels=[f"rank {r}" for r in range(4)], ylabel="scores")
axes.legend()
show_figure(
    figure,
    "scores per rank, of four. "
    "Contiguous: 0.5, 1.6, 2.6 and 3.7 million, so that all wait for rank 3. "
    "Zigzag: 2.1 million on each, a small first stretch with a large second one.",
)
print("work of the ranks, zigzag:", [sum(both) for both in halves])

# %% [markdown]
# ## 6. The bytes, and the wait for them
#
# The ring sends while it computes: the next visitor is on its way while this one is attended to. Recorded on the two H200s, beside the same kernels with nothing sent (medians of three, the last row of one run each; below one percent is noise):

# %%
rows = []
for row in record["rows"]:
    megabytes = (
        2 * row["N"] // record["ranks"] * record["heads"] * record["d"] * 4 / 1e6
    )
    sent, nothing_sent = row["zigzag"][0], row["zigzag, nothing sent"][0]
    # the halos' exchange, which nothing hides, is in it too
    felt = f"{1 - nothing_sent / sent:.1%}"
    times = f"{row['ring']:.2f} {row['all-gather']:.2f} {sent:.1f} {nothing_sent:.1f}"
    rows.append([f"{row['N']:,}", f"{megabytes:.0f}", *times.split(), felt])
show_table(
    ["tokens", "visitor, MB", "ring, ms", "all-gather, ms"]
    + ["forward", "nothing sent", "share felt"],
    *rows,
)

# %% [markdown]
# **Predict.** Work grows with N², bytes with N. On 64 GPUs whose wires carry 25 GB/s, at which N does sending take as long as computing: 1000 tokens? 10 000? 100 000? `___`
#
# The next table is **calculated, not measured**. A visit takes (time of one GPU) / R². To send a visitor takes a fixed time and one that grows with its bytes: both from a straight line through the three exchanges above, or, between machines, the same fixed time and 25 GB/s.
# The slower of computing and sending sets the pace of R visits.

# %%
longest = record["rows"][-1]
per_token = 2 * record["heads"] * record["d"] * 4 / 1e6  # MB of keys and values
slope, fixed = np.polyfit(
    [row["N"] // record["ranks"] * per_token for row in record["rows"]],
    [row["ring"] for row in record["rows"]],
    1,
)
per_score = longest["one GPU"][0] / longest["N"] ** 2


def of_a_visit(tokens, ranks, gigabytes_per_second):
    """Milliseconds of (computing, sending) in one visit."""
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
        ranks * max(of_a_visit(tokens, ranks, rate))
        for ranks, rate in [(8, 1 / slope), (64, 1 / slope), (64, 25)]
    ]
    times = [per_score * tokens**2, *times]
    rows.append([f"{tokens:,}", *(f"{time:.1f}" for time in times)])
show_table(["tokens", "one GPU", "8, this rate", "64, this rate", "64, 25 GB/s"], *rows)
equal = next(
    tokens
    for tokens in range(1024, 1 << 20, 1024)
    if np.diff(of_a_visit(tokens, 64, 25)) < 0
)
print(f"64 GPUs, 25 GB/s: computing takes as long as sending at about {equal:,} tokens")

# %% [markdown]
# ## Validate
#
# `kernels.distributed.conv_attention_sharded` is the same for batches and heads, with the kernels of lessons 11 and 13, the halos fetched from the neighbours, and a backward pass: there `dK` and `dV` travel behind their keys, each rank adds its part, and what the halos got
# goes back to the rows that they are. Here it runs in two processes, zigzag, in the simulator, beside one process. The cell takes a minute or two: every launch works on tiles of 64 × 64, however few tokens there are.


# %%
def package_on_a_rank(n):
    """The largest errors of O, dQ, dK, dV and dW beside one process."""
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
# - A rank owns its rows and borrows a halo: c_q − 1 queries above, P_k and P_r keys beside every visitor; `V` is never borrowed.
# - Keys and values travel, queries stay; each visit gives `(O, L)`, and the merge is lesson 01's. Any order of merging is right; the last bits may differ.
# - Under a causal mask a rank takes an early stretch and a late one; bytes grow with N, work with N², so long sequences hide the wire.
#
# **You can now** cut a sequence over as many machines as you have, and find a fault at their borders.
