"""Ring attention, forward and backward: each rank's queries are combined with the K/V block of every rank in
turn."""

import functools
import math
from collections import deque

import torch

from kernels.conv.backward import conv_backward
from kernels.conv.forward import conv_forward
from kernels.conv.tensor_sums import FEW

STREAMS = 2


def nothing(q):
    """Return the initial (O, L), float32, of queries (B, H, n, d), before any key."""
    wide = {"dtype": torch.float32, "device": q.device}
    return torch.zeros(q.shape, **wide), torch.full(q.shape[:3], -math.inf, **wide)


def merged(parts):
    """Merge partial results [(O, L)] over disjoint sets of keys."""
    o, log_sum = parts[0]
    for other_o, other in parts[1:]:
        total = torch.logaddexp(log_sum, other)
        o = torch.lerp(o, other_o, weight(other, total))
        log_sum = total
    return o, log_sum


def weight(log_sum, total):
    """Return exp(log_sum - total) as a column, and 0 for queries that have seen no key."""
    return torch.where(log_sum == -math.inf, 0.0, torch.exp(log_sum - total))[..., None]


@functools.cache
def side_streams(current):
    """Return the streams in which calls from the stream `current` run.

    Memory that such a stream frees may still be read in the current stream, so it must not be reused in calls
    from another one.
    """
    return [torch.cuda.Stream(current.device) for _ in range(STREAMS)]


def overlapped(calls, device):
    """Make each call of [(name, call)], and yield (name, result) in the same order.

    On a GPU, successive calls run in different streams: the last blocks of a launch do not fill the GPU, and
    the next launch uses the rest of it. At most STREAMS results exist at a time.
    """
    if device.type != "cuda":
        yield from ((name, call()) for name, call in calls)
        return
    current, pending = torch.cuda.current_stream(device), deque()
    for turn, (name, call) in enumerate(calls):
        if len(pending) == STREAMS:
            yield oldest(pending, current)
        stream = side_streams(current)[turn % STREAMS]
        # The memory of this stream's last result is free once the caller has used it, in the current stream.
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            # `call` keeps its arguments alive while the kernels read them
            pending.append((name, call, call(), stream.record_event()))
    while pending:
        yield oldest(pending, current)


def oldest(pending, stream):
    """Make the stream wait for the oldest pending result; return (name, result)."""
    name, _, result, done = pending.popleft()
    stream.wait_event(done)
    return name, result


def kv_blocks(ring, plan, mine):
    """Yield (rank, parts) of each rank's K/V block, starting with this rank's own.

    The next block is received while the caller works on the current one.
    """
    kv_block = mine
    for step in range(ring.ranks):
        owner, following = (ring.rank - step) % ring.ranks, (ring.rank - step - 1) % ring.ranks
        coming, wait = None, None
        if step + 1 < ring.ranks:
            # start the next exchange before the caller computes, so that it overlaps with the kernels
            coming, wait = ring.pass_on(
                kv_block,
                kv_block.new_empty(*kv_block.shape[:2], sum(plan.packed(following)), kv_block.shape[3]),
            )
        yield owner, kv_block.split(plan.packed(owner), 2)
        if wait:
            wait()
            kv_block = coming


def forward_calls(ring, plan, causal, packed, compute):
    """Yield (i, call) for each pair of chunks, where the call computes (O, L) of this rank's chunk i.

    compute: a function of the indices of two chunks, the parts of a K/V block, and the extent.

    In the zigzag layout, the pairs on the diagonal come last. Under a causal mask, their last blocks have
    little work, so the GPU is busy until almost the end.
    """
    diagonal = []
    for owner, parts in kv_blocks(ring, plan, packed):
        for i, j, extent in plan.pairs(ring.rank, owner, causal):
            call = i, functools.partial(compute, i, j, parts, extent)
            if owner == ring.rank and i == j and len(plan.chunks[owner]) > 1:
                diagonal.append(call)
            else:
                yield call
    yield from diagonal


class Sharded(torch.autograd.Function):
    """The autograd function of `conv_attention_sharded`."""

    @staticmethod
    def forward(ctx, q, k, v, w, ring, plan, causal, scale, run):
        mine = plan.chunks[ring.rank]
        queries = ring.fetch(q, plan, plan.query_halo)
        keys = ring.fetch(k, plan, plan.key_halo)
        values = v.split([length for _, length in mine], 2)
        own = q.split([length for _, length in mine], 2)
        # one message per K/V block: keys with halo and values, chunk by chunk, in the order of plan.packed
        packed = torch.cat([part for pair in zip(keys, values) for part in pair], 2)

        def compute(i, j, parts, extent):
            given = queries[i], parts[2 * j], parts[2 * j + 1], w
            return conv_forward(*given, causal, scale, run, extent=extent)

        found = {}
        for i, part in overlapped(forward_calls(ring, plan, causal, packed, compute), q.device):
            found[i] = merged([found[i], part]) if i in found else part
        results = [found[i] if i in found else nothing(part) for i, part in enumerate(own)]
        o, log_sum = (torch.cat(parts, 2) for parts in zip(*results))
        rounded = o.to(q.dtype)
        ctx.save_for_backward(w, o if plan.length <= FEW else rounded, log_sum, packed, *queries)
        ctx.given = ring, plan, causal, scale, run
        return rounded

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_o):
        (w, o, log_sum, packed, *queries), (ring, plan, causal, scale, run) = ctx.saved_tensors, ctx.given
        mine = plan.chunks[ring.rank]
        lengths = [length for _, length in mine]
        dtype, d_o = d_o.dtype, d_o.contiguous()
        given = [
            tuple(x.contiguous() for x in parts)
            for parts in zip(o.split(lengths, 2), log_sum.split(lengths, 2), d_o.split(lengths, 2))
        ]
        d_queries = [torch.zeros_like(x, dtype=torch.float32) for x in queries]
        d_w = torch.zeros_like(w, dtype=torch.float32)
        deterministic = torch.are_deterministic_algorithms_enabled()

        def compute(i, j, parts, extent):
            block = queries[i], parts[2 * j], parts[2 * j + 1], w
            rest = {"deterministic": deterministic, "run": run, "extent": extent}
            return conv_backward(*block, *given[i], causal, scale, **rest)

        # dK and dV of the next K/V block, sent by the previous rank after adding its own part
        following = None
        for step, (owner, parts) in enumerate(kv_blocks(ring, plan, packed)):
            found = [torch.zeros_like(part, dtype=torch.float32) for part in parts]
            calls = [
                ((i, j), functools.partial(compute, i, j, parts, extent))
                for i, j, extent in plan.pairs(ring.rank, owner, causal)
            ]
            for (i, j), gradients in overlapped(calls, d_o.device):
                totals = d_queries[i], found[2 * j], found[2 * j + 1], d_w
                for total, gradient in zip(totals, gradients):
                    total += gradient
            d_kv_block = torch.cat(found, 2)
            if following:
                others, wait = following
                wait()
                d_kv_block += others
            # owner of the gradients that the previous rank is passing on
            expected = (ring.rank - step - 1) % ring.ranks
            following = ring.pass_on(
                d_kv_block,
                d_kv_block.new_empty(*d_kv_block.shape[:2], sum(plan.packed(expected)), d_kv_block.shape[3]),
            )
        d_packed, wait = following
        wait()
        d_parts = d_packed.split(plan.packed(ring.rank), 2)
        like = d_packed.new_empty(*packed.shape[:2], sum(lengths), packed.shape[3])
        d_q = ring.return_gradients(d_queries, plan, plan.query_halo, like)
        d_k = ring.return_gradients(d_parts[::2], plan, plan.key_halo, like)
        d_q, d_k, d_v = (x.to(dtype) for x in (d_q, d_k, torch.cat(d_parts[1::2], 2)))
        return d_q, d_k, d_v, ring.total(d_w).to(w.dtype), *(None,) * 5
