"""Convolutional attention over the ranks of torch.distributed, each with a part of the tokens: halos from the
neighbours, keys and values round a ring.

A sequence of N tokens is cut into stretches, and a rank holds one ("contiguous") or two ("zigzag": number r
and number 2·R - 1 - r of 2·R, so that with a causal mask all have equal work). For each of its stretches a
rank fetches the halo that the convolution reads: c_q - 1 query rows above it, (c_k - 1) // 2 key rows to the
left and c_k - 1 - (c_k - 1) // 2 to the right. Keys with their halo, and values, then travel round the ring
of ranks; each visit gives a partial (O, L), merged by

    m = log(e^L1 + e^L2)        O = e^(L1 - m) · O1 + e^(L2 - m) · O2        L = m

The backward pass sends keys and values round once more, and behind them dK and dV, to which each rank adds;
what the halos got goes back to the rows that they are.
Sources: Liu et al. 2023, arXiv 2310.01889 (ring attention); Brandon et al. 2023, arXiv 2311.09431 (balanced
causal rings); the merge is lesson 01's.

    sent per rank    forward 2 · N · d · (R - 1) / R numbers per head, backward twice that, and the halos;
                     none of it N²
    memory per rank  its own tokens, and two visitors
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

LAYOUTS = {"contiguous": 1, "zigzag": 2}  # stretches per rank


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
    """`conv_attention` of a sequence whose tokens are sharded over the ranks of `group`; returns this rank's
    rows of O, shaped like q.

    q, k, v: (B, H, n, d), this rank's tokens, of which other ranks may have more, fewer or none; w: (H, c_q,
        c_k), the same on every rank. group: a process group or a one-dimensional DeviceMesh; None is the
        default group. layout: "contiguous": rank r holds the r-th stretch of the sequence; "zigzag": the
        first half of its rows (the larger, if n is odd) is stretch r and the rest stretch 2·R - 1 - r of 2·R
        stretches. `shard` cuts so. run: how to launch the kernels.

    Every rank of the group calls it, and the backward pass, too. Gradients reach q, k, v and w; dW is summed
    over the ranks, the same on each. Raises what `conv_attention` raises, on every rank, and ValueError on
    every rank if ranks disagree; RuntimeError if one of them is lost.
    """
    ring = Ring(group, q if isinstance(q, torch.Tensor) else torch.empty(0))
    try:
        stretches = check_layout(layout)
        scale = check_shards(q, k, v, w, scale)
        facts = dict(zip("B H d c_q c_k".split(), (q.shape[0], q.shape[1], q.shape[3], *w.shape[1:])))
        gradient = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, w))
        facts |= {
            "causal": bool(causal),
            "scale": scale,
            "stretches per rank (layout)": stretches,
            "gradients wanted": gradient,
        }
    except (TypeError, ValueError):
        ring.agree(None, 0)
        raise
    lengths = ring.agree(facts, q.shape[2])
    plan = Plan(lengths, stretches, w.shape[1:])
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
    """`conv_attention_decode` with the cache sharded over the ranks of `group`: the new token's row, (B, H,
    1, d), on every rank; without gradients.

    q_window: (B, H, R, d), the queries of the last R = min(c_q, N_k) tokens, the same on every rank; k, v:
        (B, H, n, d), this rank's stretch of the cache, in the order of the ranks, perhaps none; w: (H, c_q,
        c_k). Each rank attends to its own keys, and one exchange of B·H·(d + 1) numbers merges what they
        found. Errors are those of `conv_attention_sharded`.
    """
    ring = Ring(group, q_window if isinstance(q_window, torch.Tensor) else torch.empty(0))
    try:
        check_shards(k, k, v, w, scale)
        facts = check({"q_window": (q_window, "B H R d"), "w": (w, *TAPS)})
    except (TypeError, ValueError):
        ring.agree(None, 0)
        raise
    plan = Plan(ring.agree(facts, k.shape[2]), 1, w.shape[1:])
    ((start, length),) = plan.stretches[ring.rank]
    # no memory: its shape is checked
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
    """This rank's rows of x, which every rank has whole, along `dim`, as `conv_attention_sharded` wants them:
    stretches as equal as can be."""
    rank, ranks = Ring(group, x).place
    stretches = x.tensor_split(check_layout(layout) * ranks, dim)
    return (
        stretches[rank]
        if layout == "contiguous"
        else torch.cat([stretches[rank], stretches[2 * ranks - 1 - rank]], dim)
    )


def unshard(x, group=None, layout="zigzag", dim=2):
    """The whole of what the ranks hold, (…, N, …), on every rank, in the order of the sequence; without
    gradients."""
    ring, stretches = Ring(group, x), check_layout(layout)
    lengths = ring.agree({}, x.shape[dim])
    rows = x.detach().transpose(0, dim)
    padded = torch.cat([rows, rows.new_zeros(max(lengths) - len(rows), *rows.shape[1:])])
    parts = [part[:length] for part, length in zip(ring.gather(padded), lengths)]
    order = sorted(
        (start, rank, first, length)
        for rank, held in enumerate(Plan(lengths, stretches).stretches)
        for (start, length), first in zip(held, (0, held[0][1]))
    )
    return torch.cat([parts[rank][first : first + length] for _, rank, first, length in order]).transpose(
        0, dim
    )


# Who holds what ---------------------------------------------------------------------------------------------


class Halo(NamedTuple):
    """How many rows a stretch needs of those before it and behind it."""

    above: int
    below: int


class Plan:
    """Where each rank's stretches lie: `stretches[rank]` is [(start, length), …] in the order of its rows;
    `length` is N."""

    def __init__(self, lengths, stretches, taps=(1, 1)):
        ranks = len(lengths)
        halves = [(n,) if stretches == 1 else (n - n // 2, n // 2) for n in lengths]
        order = [
            (rank, half) for half in range(stretches) for rank in (range(ranks), reversed(range(ranks)))[half]
        ]
        starts = dict(zip(order, accumulate((halves[rank][half] for rank, half in order), initial=0)))
        self.stretches = [
            [(starts[rank, half], halves[rank][half]) for half in range(stretches)] for rank in range(ranks)
        ]
        self.length, (c_q, c_k) = sum(lengths), taps
        self.left = (c_k - 1) // 2
        self.query_halo, self.key_halo = Halo(c_q - 1, 0), Halo(self.left, c_k - 1 - self.left)

    @staticmethod
    def above(start, rows):
        """How many of the `rows` before `start` there are."""
        return min(start, rows)

    def extended(self, start, length, halo):
        """[first, last) of a stretch with its halo; an empty stretch needs none."""
        return (
            (max(0, start - halo.above), min(self.length, start + length + halo.below))
            if length
            else (start, start)
        )

    def holders(self, first, last):
        """[(rank, row of it, rows)], which together are the tokens [first, last), in order."""
        found = []
        for rank, held in enumerate(self.stretches):
            row = 0
            for start, length in held:
                low, high = max(first, start), min(last, start + length)
                if low < high:
                    found.append((low, rank, row + low - start, high - low))
                row += length
        return [part for _, *part in sorted(found)]

    def sources(self, rank, halo):
        """For each stretch of `rank` the holders of it and its halo."""
        return [self.holders(*self.extended(start, length, halo)) for start, length in self.stretches[rank]]

    def visible(self, queries, keys, causal):
        """Whether a query of one stretch sees a key of the other."""
        (start, length), (first_key, keys) = queries, keys
        return bool(length and keys) and (not causal or first_key < start + length)

    def extent(self, queries, keys):
        """The Extent of one stretch's queries and another's keys, each with its halo."""
        (start, _), (first_key, _) = queries, keys
        return Extent(
            self.above(start, self.query_halo.above), self.above(first_key, self.left), start - first_key
        )

    def packed(self, rank):
        """The rows of each part of a visitor from `rank`: keys with halo, then values, stretch by stretch."""
        rows = []
        for start, length in self.stretches[rank]:
            first, last = self.extended(start, length, self.key_halo)
            rows += [last - first, length]
        return rows


# What ranks say to each other -------------------------------------------------------------------------------


class Ring:
    """The ranks of a group, and this one's neighbours; sends tensors where `like` is."""

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
        """Every rank's `length`, in their order, if all have the same `facts` {name: number}; None for a rank
        that refuses. Otherwise ValueError on all."""
        mine = torch.tensor([facts is not None, length, *(facts or {}).values()], dtype=torch.float64)
        mine = torch.cat([mine, mine.new_zeros(16 - len(mine))])
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
        """Every rank's x, of one shape, in their order."""
        with self.explained("all ranks"):
            parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.ranks)]
            distributed.all_gather(parts, x.contiguous(), group=self.group)
        return parts

    def total(self, x):
        """The sum of x over all ranks."""
        with self.explained("all ranks"):
            distributed.all_reduce(x, group=self.group)
        return x

    def pass_on(self, x, receive):
        """Send x to the next rank, and begin to receive a tensor like `receive` from the one before; returns
        it and what to wait for. Empty tensors are not sent."""
        if self.ranks == 1:
            return x, lambda: None
        after, before = ((self.rank + step) % self.ranks for step in (1, -1))
        messages = [(distributed.isend, x, after)] * bool(x.numel()) + [
            (distributed.irecv, receive, before)
        ] * bool(receive.numel())
        return receive, self.start(messages)

    def start(self, messages):
        """Begin to exchange [(isend or irecv, tensor, rank)]; returns a function that waits for the end."""
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
            messages.clear()  # which kept what was sent alive

        return wait

    @contextmanager
    def explained(self, peers):
        """A lost rank, or one that does not come in time, as an error that says so."""
        try:
            yield
        except RuntimeError as error:
            raise RuntimeError(
                f"rank {self.rank} of {self.ranks}: no exchange with {peers}: a rank has ended, or did not"
                f" call within the group's timeout\n  {error}"
            ) from error

    def exchange(self, sends, shapes):
        """One message to each rank of `sends` {rank: tensor}, one of so many rows from each of `shapes`
        {rank: rows}; returns {rank: tensor}."""
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
        """This rank's stretches of x (B, H, n, d), each with its halo from wherever it lies."""
        sends = {rank: rows_for(x, plan.sources(rank, halo), self.rank) for rank in range(self.ranks)}
        mine = plan.sources(self.rank, halo)
        got = self.exchange(
            sends,
            {
                rank: sum(rows for held in mine for owner, _, rows in held if owner == rank)
                for rank in range(self.ranks)
            },
        )
        taken, stretches = dict.fromkeys(got, 0), []
        for held in mine:
            parts = [x[:, :, :0]]
            for owner, _, rows in held:
                parts.append(got[owner][:, :, taken[owner] : taken[owner] + rows])
                taken[owner] += rows
            stretches.append(torch.cat(parts, 2))
        return stretches

    def give_back(self, gradients, plan, halo, like):
        """The gradient of what `fetch` was given, shaped like `like`: each rank's rows, with what all
        stretches that read them have found."""
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
    """The rows of x (B, H, n, d) that another rank's `sources` name as held by `rank`, in that order."""
    return torch.cat(
        [
            x[:, :, :0],
            *(x[:, :, row : row + rows] for held in sources for owner, row, rows in held if owner == rank),
        ],
        2,
    )


# Forward and backward ---------------------------------------------------------------------------------------


def nothing(q):
    """(O, L) of queries (B, H, n, d) that have seen no key."""
    return torch.zeros_like(q, memory_format=torch.contiguous_format), q.new_full(q.shape[:3], -math.inf)


def merged(parts):
    """The (O, L) of all keys from [(O, L)] of some of them."""
    o, log_sum = parts[0]
    for other_o, other in parts[1:]:
        total = torch.logaddexp(log_sum, other)
        o = o * weight(log_sum, total) + other_o * weight(other, total)
        log_sum = total
    return o, log_sum


def weight(log_sum, total):
    """exp(log_sum - total), a column; 0 for keys that are none."""
    return torch.where(log_sum == -math.inf, 0.0, torch.exp(log_sum - total))[..., None]


def visitors(ring, plan, mine):
    """(rank, parts) of each rank's visitor in turn, this rank's first; while one is used the next is on its
    way."""
    visitor = mine
    for step in range(ring.ranks):
        owner, following = (ring.rank - step) % ring.ranks, (ring.rank - step - 1) % ring.ranks
        coming, wait = None, None
        if step + 1 < ring.ranks:
            coming, wait = ring.pass_on(
                visitor, visitor.new_empty(*visitor.shape[:2], sum(plan.packed(following)), visitor.shape[3])
            )
        yield owner, visitor.split(plan.packed(owner), 2)
        if wait:
            wait()
            visitor = coming


class Sharded(torch.autograd.Function):
    """The two passes of `conv_attention_sharded`."""

    @staticmethod
    def forward(ctx, q, k, v, w, ring, plan, causal, scale, run):
        mine = plan.stretches[ring.rank]
        queries = ring.fetch(q, plan, plan.query_halo)
        keys = ring.fetch(k, plan, plan.key_halo)
        values = v.split([length for _, length in mine], 2)
        results = [nothing(part) for part in q.split([length for _, length in mine], 2)]
        packed = torch.cat([part for pair in zip(keys, values) for part in pair], 2)
        for owner, parts in visitors(ring, plan, packed):
            for i, rows in enumerate(mine):
                for columns, key, value in zip(plan.stretches[owner], parts[::2], parts[1::2]):
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
        mine = plan.stretches[ring.rank]
        lengths = [length for _, length in mine]
        given = list(zip(o.split(lengths, 2), log_sum.split(lengths, 2), d_o.split(lengths, 2)))
        d_queries, d_w = [torch.zeros_like(part) for part in queries], torch.zeros_like(w)
        deterministic = torch.are_deterministic_algorithms_enabled()
        # dK and dV of the next visitor, on their way: its owner was the last before us to add to them
        following = None
        for step, (owner, parts) in enumerate(visitors(ring, plan, packed)):
            found = [torch.zeros_like(part) for part in parts]
            for i, rows in enumerate(mine):
                for j, columns in enumerate(plan.stretches[owner]):
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
            d_visitor = torch.cat(found, 2)
            if following:
                others, wait = following
                wait()
                d_visitor += others
            # whose gradients the rank before us has now, and hands on
            expected = (ring.rank - step - 1) % ring.ranks
            following = ring.pass_on(
                d_visitor,
                d_visitor.new_empty(*d_visitor.shape[:2], sum(plan.packed(expected)), d_visitor.shape[3]),
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
    """How many stretches a rank holds in this layout, or an error."""
    if layout not in LAYOUTS:
        raise ValueError(f"argument layout is {layout!r}; wanted one of {', '.join(map(repr, LAYOUTS))}")
    return LAYOUTS[layout]


def check_shards(q, k, v, w, scale):
    """This rank's tokens (B, H, n, d) and the taps, on one device, or an error; returns scale as a float."""
    given = {name: (tensor, "B H n d") for name, tensor in (("q", q), ("k", k), ("v", v))}
    sizes = check(given | {"w": (w, *TAPS)}, filled="B H")
    return float(checked_scale(scale, sizes["d"]))
