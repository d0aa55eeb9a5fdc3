"""Convolutional attention over the ranks of torch.distributed, each with a part of the tokens (context
parallelism): halos from the neighbours, and ring attention.

A sequence of N tokens is cut into chunks, and a rank holds one ("contiguous") or two ("zigzag": chunks r and
2·R - 1 - r of 2·R, so that with a causal mask all ranks have equal work). For each of its chunks, a rank
fetches the halo that the convolution reads: c_q - 1 query rows above it, (c_k - 1) // 2 key rows to the left
and c_k - 1 - (c_k - 1) // 2 to the right. K/V blocks, keys with their halo and values, then travel around the
ring of ranks. Each gives a partial (O, L), and these are merged:

    m = log(e^L1 + e^L2)        O = e^(L1 - m) · O1 + e^(L2 - m) · O2        L = m

The backward pass sends the K/V blocks around once more, followed by dK and dV, to which each rank adds. The
gradients of halo rows return to the ranks that own these rows.
Sources: Liu et al. 2023, arXiv 2310.01889 (ring attention); Brandon et al. 2023, arXiv 2311.09431 (balanced
    causal rings); the merge is that of lesson 01.

    sent per rank    forward 2 · N · d · (R - 1) / R elements per head, backward twice that, and the halos;
                     nothing of size N²
    memory per rank  its own tokens, and two K/V blocks
"""

import math
from collections.abc import Callable
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import distributed
from torch.distributed import P2POp
from torch.distributed.device_mesh import DeviceMesh

from kernels.common.arguments import TAPS, check, checked_scale
from kernels.common.extent import Extent
from kernels.conv.backward import conv_backward
from kernels.conv.decode import conv_decode, decode_arguments
from kernels.conv.forward import conv_forward

LAYOUTS = {"contiguous": 1, "zigzag": 2}  # chunks per rank


# Public functions -------------------------------------------------------------------------------------------


def conv_attention_sharded(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    w: torch.Tensor,
    group: distributed.ProcessGroup | DeviceMesh | None = None,
    causal: bool = True,
    scale: float | None = None,
    layout: str = "contiguous",
    run: Callable[..., Any] | None = None,
) -> torch.Tensor:
    """Return this rank's rows of `conv_attention`, like q, for a sequence whose tokens are sharded over the
    ranks of `group`.

    q, k, v: (B, H, n, d), this rank's tokens; other ranks may have more, fewer or none.
    w: (H, c_q, c_k), the same on every rank.
    group: a process group or a one-dimensional DeviceMesh; None is the default group.
    causal, scale: as for `conv_attention`.
    layout: "contiguous": rank r holds chunk r of the sequence. "zigzag": the first half of its rows (the
        larger, if n is odd) is chunk r, and the rest chunk 2·R - 1 - r of 2·R chunks. `shard` cuts in this
        way.
    run: how to launch the kernels.

    Every rank of the group has to call this function, and the backward pass, too. Gradients reach q, k, v and
    w; dW is summed over the ranks, and the same on each. Raise the errors of
    `conv_attention` on the rank whose arguments are wrong, and ValueError on the others, or on all if they
    disagree; RuntimeError if a rank is lost.
    """
    ring = Ring(group, q if isinstance(q, torch.Tensor) else torch.empty(0))
    try:
        chunks = check_layout(layout)
        scale = check_shards(q, k, v, w, scale)
        facts = dict(zip("B H d c_q c_k".split(), (q.shape[0], q.shape[1], q.shape[3], *w.shape[1:])))
        gradient = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, w))
        facts |= {
            "causal": bool(causal),
            "scale": scale,
            "chunks per rank (layout)": chunks,
            "gradients wanted": gradient,
        }
    except (TypeError, ValueError):
        ring.agree(None, 0)
        raise
    lengths = ring.agree(facts, q.shape[2])
    plan = Plan(lengths, chunks, w.shape[1:])
    return Sharded.apply(q, k, v, w, ring, plan, bool(causal), float(scale), run)


def conv_attention_decode_sharded(
    q_window: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    w: torch.Tensor,
    group: distributed.ProcessGroup | DeviceMesh | None = None,
    scale: float | None = None,
    splits: int | None = None,
    run: Callable[..., Any] | None = None,
) -> torch.Tensor:
    """Return the new token's row of `conv_attention_decode`, (B, H, 1, d), on every rank, with the cache
    sharded over the ranks of `group`; no gradients.

    q_window: (B, H, R, d), the queries of the last R = min(c_q, N_k) tokens, the same on every rank.
    k, v: (B, H, n, d), this rank's chunk of the cache, in the order of the ranks; n may be 0.
    w: (H, c_q, c_k).

    Each rank computes attention over its own keys, and one exchange of B·H·(d + 1) elements merges the
    results. Errors are those of `conv_attention_sharded`.
    """
    ring = Ring(group, q_window if isinstance(q_window, torch.Tensor) else torch.empty(0))
    try:
        check_shards(k, k, v, w, scale)
        facts = check({"q_window": (q_window, "B H R d"), "w": (w, *TAPS)})
    except (TypeError, ValueError):
        ring.agree(None, 0)
        raise
    plan = Plan(ring.agree(facts, k.shape[2]), 1, w.shape[1:])
    ((start, length),) = plan.chunks[ring.rank]
    # a view without memory of its own: only its shape is checked
    whole = torch.empty(1, device=k.device).expand(*q_window.shape[:2], plan.length, q_window.shape[3])
    q, _, _, w, scale = decode_arguments(q_window, whole, whole, w, scale)
    (k_part,) = ring.fetch(k.detach(), plan, plan.key_halo)
    o, log_sum = nothing(q[:, :, :1])
    if length:
        o, log_sum = conv_decode(
            q,
            k_part,
            v.detach(),
            w,
            scale,
            plan.above(start, plan.left),
            plan.length - 1 - start,
            splits,
            run,
        )
    parts = ring.gather(torch.cat([o, log_sum[..., None]], -1))
    return merged([(part[..., :-1], part[..., -1]) for part in parts])[0]


def shard(x, group=None, layout="zigzag", dim=2):
    """Return this rank's rows of x along `dim`, as `conv_attention_sharded` needs them; every rank has the
    whole x.

    The chunks are as equal as possible.
    """
    rank, ranks = Ring(group, x).place
    chunks = x.tensor_split(check_layout(layout) * ranks, dim)
    return (
        chunks[rank]
        if layout == "contiguous"
        else torch.cat([chunks[rank], chunks[2 * ranks - 1 - rank]], dim)
    )


def unshard(x, group=None, layout="zigzag", dim=2):
    """Return the whole of the ranks' rows, (…, N, …), on every rank, in the order of the sequence; no
    gradients."""
    ring, chunks = Ring(group, x), check_layout(layout)
    lengths = ring.agree({}, x.shape[dim])
    rows = x.detach().transpose(0, dim)
    padded = torch.cat([rows, rows.new_zeros(max(lengths) - len(rows), *rows.shape[1:])])
    parts = [part[:length] for part, length in zip(ring.gather(padded), lengths)]
    # sorted by position in the sequence, since a zigzag rank holds two distant chunks
    order = sorted(
        (start, rank, first, length)
        for rank, held in enumerate(Plan(lengths, chunks).chunks)
        for (start, length), first in zip(held, (0, held[0][1]))
    )
    return torch.cat([parts[rank][first : first + length] for _, rank, first, length in order]).transpose(
        0, dim
    )


# The plan of chunks------------------------------------------------------------------------------------------


class Halo(NamedTuple):
    """The numbers of rows that a chunk needs before and after its own."""

    above: int
    below: int


class Plan:
    """The chunks of all ranks: `chunks[rank]` is [(start, length), …] in the order of its rows;
    `length` is N."""

    def __init__(self, lengths, chunks, taps=(1, 1)):
        ranks = len(lengths)
        halves = [(n,) if chunks == 1 else (n - n // 2, n // 2) for n in lengths]
        order = [
            (rank, half) for half in range(chunks) for rank in (range(ranks), reversed(range(ranks)))[half]
        ]
        starts = dict(zip(order, accumulate((halves[rank][half] for rank, half in order), initial=0)))
        self.chunks = [
            [(starts[rank, half], halves[rank][half]) for half in range(chunks)] for rank in range(ranks)
        ]
        self.length, (c_q, c_k) = sum(lengths), taps
        self.left = (c_k - 1) // 2
        self.query_halo, self.key_halo = Halo(c_q - 1, 0), Halo(self.left, c_k - 1 - self.left)

    @staticmethod
    def above(start, rows):
        """Return how many of the `rows` rows before `start` exist."""
        return min(start, rows)

    def extended(self, start, length, halo):
        """Return [first, last) of a chunk with its halo; an empty chunk needs no halo."""
        return (
            (max(0, start - halo.above), min(self.length, start + length + halo.below))
            if length
            else (start, start)
        )

    def holders(self, first, last):
        """Return [(rank, its first row, rows)], which together hold the tokens [first, last), in order."""
        found = []
        for rank, held in enumerate(self.chunks):
            row = 0
            for start, length in held:
                low, high = max(first, start), min(last, start + length)
                if low < high:
                    found.append((low, rank, row + low - start, high - low))
                row += length
        return [part for _, *part in sorted(found)]

    def sources(self, rank, halo):
        """Return, for each chunk of `rank`, the holders of the chunk and its halo."""
        return [self.holders(*self.extended(start, length, halo)) for start, length in self.chunks[rank]]

    def visible(self, queries, keys, causal):
        """Return whether a query of one chunk sees a key of the other."""
        (start, length), (first_key, keys) = queries, keys
        return bool(length and keys) and (not causal or first_key < start + length)

    def extent(self, queries, keys):
        """Return the Extent of one chunk's queries and another's keys, each with its halo."""
        (start, _), (first_key, _) = queries, keys
        return Extent(
            self.above(start, self.query_halo.above), self.above(first_key, self.left), start - first_key
        )

    def packed(self, rank):
        """Return the rows of each part of the K/V block of `rank`: keys with halo, then values, chunk by
        chunk."""
        rows = []
        for start, length in self.chunks[rank]:
            first, last = self.extended(start, length, self.key_halo)
            rows += [last - first, length]
        return rows


# Messages between ranks -------------------------------------------------------------------------------------


class Ring:
    """The ranks of a group, and this rank's neighbours; exchanges tensors on the device of `like`."""

    def __init__(self, group, like):
        self.group = group.get_group() if isinstance(group, DeviceMesh) else group
        self.rank, self.ranks = self.place = (
            distributed.get_rank(self.group),
            distributed.get_world_size(self.group),
        )
        if self.rank < 0:
            raise ValueError(
                f"argument group does not hold this process, rank {distributed.get_rank()} of the default"
                " group; wanted a group that does"
            )
        self.device = (
            torch.device("cuda", torch.cuda.current_device())
            if distributed.get_backend(self.group) == "nccl"
            else like.device
        )

    def agree(self, facts, length):
        """Return every rank's `length`, in their order, if all have the same `facts` {name: number}.

        Otherwise raise ValueError on all ranks. A rank that has refused its arguments passes None and gets
        None.
        """
        mine = torch.tensor([facts is not None, length, *(facts or {}).values()], dtype=torch.float64)
        mine = torch.cat([mine, mine.new_zeros(16 - len(mine))])  # all_gather needs equal shapes
        theirs = torch.stack(self.gather(mine.to(self.device))).tolist()
        if facts is None:
            return None
        for rank, (accepts, _, *values) in enumerate(theirs):
            if not accepts:
                raise ValueError(f"rank {self.rank}: rank {rank} has refused its arguments, and says why")
            for (name, value), other in zip(facts.items(), values):
                if value != other:
                    raise ValueError(
                        f"rank {self.rank} has {name} = {value:g} and rank {rank} has {name} = {other:g};"
                        " wanted the same on every rank of the group"
                    )
        return [int(length) for _, length, *_ in theirs]

    def gather(self, x):
        """Return every rank's x, of one shape, in their order."""
        with self.explained("all ranks"):
            parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.ranks)]
            distributed.all_gather(parts, x.contiguous(), group=self.group)
        return parts

    def total(self, x):
        """Return the sum of x over all ranks."""
        with self.explained("all ranks"):
            distributed.all_reduce(x, group=self.group)
        return x

    def pass_on(self, x, receive):
        """Send x to the next rank, and begin to receive a tensor like `receive` from the previous one.

        Return that tensor and a function that waits for it. Empty tensors are not sent.
        """
        if self.ranks == 1:  # the next rank is this one
            return x, lambda: None
        after, before = ((self.rank + step) % self.ranks for step in (1, -1))
        messages = [(distributed.isend, x, after)] * bool(x.numel()) + [
            (distributed.irecv, receive, before)
        ] * bool(receive.numel())
        return receive, self.start(messages)

    def start(self, messages):
        """Begin to exchange [(isend or irecv, tensor, rank)]; return a function that waits for the end."""
        peers = sorted({rank for _, _, rank in messages})
        with self.explained(f"ranks {peers}"):
            works = (
                distributed.batch_isend_irecv(
                    [P2POp(kind, x, group=self.group, group_peer=rank) for kind, x, rank in messages]
                )
                if messages
                else []
            )

        def wait():
            with self.explained(f"ranks {peers}"):
                for work in works:
                    work.wait()
            messages.clear()  # it kept the sent tensors alive

        return wait

    @contextmanager
    def explained(self, peers):
        """Raise a RuntimeError that names the ranks if one is lost or does not answer in time."""
        try:
            yield
        except RuntimeError as error:
            raise RuntimeError(
                f"rank {self.rank} of {self.ranks}: no exchange with {peers}: a rank has ended, or did not"
                f" call within the group's timeout\n  {error}"
            ) from error

    def exchange(self, sends, shapes):
        """Send one message to each rank of `sends` {rank: tensor}, and receive one of `shapes` {rank:
        rows} from each; return {rank: tensor}."""
        like = next(iter(sends.values()))
        got = {rank: like.new_empty(*like.shape[:2], rows, like.shape[3]) for rank, rows in shapes.items()}
        messages = [
            (distributed.isend, x.contiguous(), rank)
            for rank, x in sends.items()
            if x.numel() and rank != self.rank
        ]
        self.start(
            messages
            + [(distributed.irecv, x, rank) for rank, x in got.items() if x.numel() and rank != self.rank]
        )()
        return got | {self.rank: sends[self.rank]}

    def fetch(self, x, plan, halo):
        """Return this rank's chunks of x (B, H, n, d), each with its halo from the ranks that hold it."""
        sends = {rank: rows_for(x, plan.sources(rank, halo), self.rank) for rank in range(self.ranks)}
        mine = plan.sources(self.rank, halo)
        got = self.exchange(
            sends,
            {
                rank: sum(rows for held in mine for owner, _, rows in held if owner == rank)
                for rank in range(self.ranks)
            },
        )
        taken, chunks = dict.fromkeys(got, 0), []
        for held in mine:
            parts = [x[:, :, :0]]
            for owner, _, rows in held:
                parts.append(got[owner][:, :, taken[owner] : taken[owner] + rows])
                taken[owner] += rows
            chunks.append(torch.cat(parts, 2))
        return chunks

    def give_back(self, gradients, plan, halo, like):
        """Return the gradient of the argument of `fetch`, shaped like `like`.

        It adds the gradients of all chunks that have read a row.
        """
        sends, mine = {rank: [like[:, :, :0]] for rank in range(self.ranks)}, plan.sources(self.rank, halo)
        for gradient, held in zip(gradients, mine):
            row = 0
            for owner, _, rows in held:
                sends[owner].append(gradient[:, :, row : row + rows])
                row += rows
        theirs = {
            rank: [part for held in plan.sources(rank, halo) for part in held if part[0] == self.rank]
            for rank in range(self.ranks)
        }
        got = self.exchange(
            {rank: torch.cat(parts, 2) for rank, parts in sends.items()},
            {rank: sum(rows for *_, rows in parts) for rank, parts in theirs.items()},
        )
        total = torch.zeros_like(like, memory_format=torch.contiguous_format)
        for rank, parts in theirs.items():
            taken = 0
            for _, row, rows in parts:
                total[:, :, row : row + rows] += got[rank][:, :, taken : taken + rows]
                taken += rows
        return total


def rows_for(x, sources, rank):
    """Return the rows of x (B, H, n, d) that `rank` holds and another rank's `sources` need, in that
    order."""
    return torch.cat(
        [
            x[:, :, :0],
            *(x[:, :, row : row + rows] for held in sources for owner, row, rows in held if owner == rank),
        ],
        2,
    )


# Forward and backward ---------------------------------------------------------------------------------------


def nothing(q):
    """Return (O, L) of queries (B, H, n, d) that have seen no key."""
    return torch.zeros_like(q, memory_format=torch.contiguous_format), q.new_full(q.shape[:3], -math.inf)


def merged(parts):
    """Merge [(O, L)] over some keys each into (O, L) over all of them."""
    o, log_sum = parts[0]
    for other_o, other in parts[1:]:
        total = torch.logaddexp(log_sum, other)
        o = o * weight(log_sum, total) + other_o * weight(other, total)
        log_sum = total
    return o, log_sum


def weight(log_sum, total):
    """Return exp(log_sum - total) as a column; 0 if a query has seen no key."""
    return torch.where(log_sum == -math.inf, 0.0, torch.exp(log_sum - total))[..., None]


def kv_blocks(ring, plan, mine):
    """Yield (rank, parts) of each rank's K/V block, this rank's first; the next block is received
    meanwhile."""
    kv_block = mine
    for step in range(ring.ranks):
        owner, following = (ring.rank - step) % ring.ranks, (ring.rank - step - 1) % ring.ranks
        coming, wait = None, None
        if step + 1 < ring.ranks:
            coming, wait = ring.pass_on(
                kv_block,
                kv_block.new_empty(*kv_block.shape[:2], sum(plan.packed(following)), kv_block.shape[3]),
            )
        yield owner, kv_block.split(plan.packed(owner), 2)
        if wait:
            wait()
            kv_block = coming


class Sharded(torch.autograd.Function):
    """The forward and the backward pass of `conv_attention_sharded`."""

    @staticmethod
    def forward(ctx, q, k, v, w, ring, plan, causal, scale, run):
        mine = plan.chunks[ring.rank]
        queries = ring.fetch(q, plan, plan.query_halo)
        keys = ring.fetch(k, plan, plan.key_halo)
        values = v.split([length for _, length in mine], 2)
        results = [nothing(part) for part in q.split([length for _, length in mine], 2)]
        packed = torch.cat([part for pair in zip(keys, values) for part in pair], 2)
        for owner, parts in kv_blocks(ring, plan, packed):
            for i, rows in enumerate(mine):
                for columns, key, value in zip(plan.chunks[owner], parts[::2], parts[1::2]):
                    if plan.visible(rows, columns, causal):
                        part = conv_forward(
                            queries[i], key, value, w, causal, scale, run, extent=plan.extent(rows, columns)
                        )
                        results[i] = merged([results[i], part])
        o, log_sum = (torch.cat(parts, 2) for parts in zip(*results))
        ctx.save_for_backward(w, o, log_sum, packed, *queries)
        ctx.given = ring, plan, causal, scale, run
        return o

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_o):
        (w, o, log_sum, packed, *queries), (ring, plan, causal, scale, run) = ctx.saved_tensors, ctx.given
        mine = plan.chunks[ring.rank]
        lengths = [length for _, length in mine]
        given = list(zip(o.split(lengths, 2), log_sum.split(lengths, 2), d_o.split(lengths, 2)))
        d_queries, d_w = [torch.zeros_like(part) for part in queries], torch.zeros_like(w)
        deterministic = torch.are_deterministic_algorithms_enabled()
        # dK and dV of the next K/V block, which the previous rank sends after adding its own part
        following = None
        for step, (owner, parts) in enumerate(kv_blocks(ring, plan, packed)):
            found = [torch.zeros_like(part) for part in parts]
            for i, rows in enumerate(mine):
                for j, columns in enumerate(plan.chunks[owner]):
                    if plan.visible(rows, columns, causal):
                        extent = plan.extent(rows, columns)
                        gradients = conv_backward(
                            queries[i],
                            parts[2 * j],
                            parts[2 * j + 1],
                            w,
                            *given[i],
                            causal,
                            scale,
                            deterministic=deterministic,
                            run=run,
                            extent=extent,
                        )
                        for total, gradient in zip(
                            (d_queries[i], found[2 * j], found[2 * j + 1], d_w), gradients
                        ):
                            total += gradient
            d_kv_block = torch.cat(found, 2)
            if following:
                others, wait = following
                wait()
                d_kv_block += others
            # the owner of the gradients that the previous rank passes on now
            expected = (ring.rank - step - 1) % ring.ranks
            following = ring.pass_on(
                d_kv_block,
                d_kv_block.new_empty(*d_kv_block.shape[:2], sum(plan.packed(expected)), d_kv_block.shape[3]),
            )
        d_packed, wait = following
        wait()
        d_parts = d_packed.split(plan.packed(ring.rank), 2)
        like = packed.new_empty(*packed.shape[:2], sum(lengths), packed.shape[3])
        d_q = ring.give_back(d_queries, plan, plan.query_halo, like)
        d_k = ring.give_back(d_parts[::2], plan, plan.key_halo, like)
        return d_q, d_k, torch.cat(d_parts[1::2], 2), ring.total(d_w), *(None,) * 5


# Arguments --------------------------------------------------------------------------------------------------


def check_layout(layout):
    """Return the number of chunks that a rank holds in this layout; raise ValueError for an unknown one."""
    if layout not in LAYOUTS:
        raise ValueError(f"argument layout is {layout!r}; wanted one of {', '.join(map(repr, LAYOUTS))}")
    return LAYOUTS[layout]


def check_shards(q, k, v, w, scale):
    """Return scale as a float, once this rank's tokens (B, H, n, d) and the taps are checked."""
    given = {name: (tensor, "B H n d") for name, tensor in (("q", q), ("k", k), ("v", v))}
    sizes = check(given | {"w": (w, *TAPS)}, filled="B H")
    return float(checked_scale(scale, sizes["d"]))
