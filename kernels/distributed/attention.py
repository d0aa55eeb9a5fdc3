"""Ring attention, forward and backward: each rank's queries are combined with the K/V block of every rank in
turn."""

import math

import torch

from kernels.conv.backward import conv_backward
from kernels.conv.forward import conv_forward


def nothing(q):
    """Return the initial (O, L), float32, of queries (B, H, n, d), before any key."""
    wide = {"dtype": torch.float32, "device": q.device}
    return torch.zeros(q.shape, **wide), torch.full(q.shape[:3], -math.inf, **wide)


def widened(*tensors):
    """Return the tensors as float32, in which each pair of chunks is computed."""
    return tuple(x.float() for x in tensors)


def merged(parts):
    """Merge partial results [(O, L)] over disjoint sets of keys."""
    o, log_sum = parts[0]
    for other_o, other in parts[1:]:
        total = torch.logaddexp(log_sum, other)
        o = o * weight(log_sum, total) + other_o * weight(other, total)
        log_sum = total
    return o, log_sum


def weight(log_sum, total):
    """Return exp(log_sum - total) as a column, and 0 for queries that have seen no key."""
    return torch.where(log_sum == -math.inf, 0.0, torch.exp(log_sum - total))[..., None]


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


class Sharded(torch.autograd.Function):
    """The autograd function of `conv_attention_sharded`."""

    @staticmethod
    def forward(ctx, q, k, v, w, ring, plan, causal, scale, run):
        mine = plan.chunks[ring.rank]
        queries = ring.fetch(q, plan, plan.query_halo)
        keys = ring.fetch(k, plan, plan.key_halo)
        values = v.split([length for _, length in mine], 2)
        results = [nothing(part) for part in q.split([length for _, length in mine], 2)]
        # one message per K/V block: keys with halo and values, chunk by chunk, in the order of plan.packed
        packed = torch.cat([part for pair in zip(keys, values) for part in pair], 2)
        for owner, parts in kv_blocks(ring, plan, packed):
            for i, rows in enumerate(mine):
                for columns, key, value in zip(plan.chunks[owner], parts[::2], parts[1::2]):
                    if plan.visible(rows, columns, causal):
                        given, extent = widened(queries[i], key, value, w), plan.extent(rows, columns)
                        part = conv_forward(*given, causal, scale, run, extent=extent)
                        results[i] = merged([results[i], part])
        o, log_sum = (torch.cat(parts, 2) for parts in zip(*results))
        ctx.save_for_backward(w, o, log_sum, packed, *queries)
        ctx.given = ring, plan, causal, scale, run
        return o.to(q.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d_o):
        (w, o, log_sum, packed, *queries), (ring, plan, causal, scale, run) = ctx.saved_tensors, ctx.given
        mine = plan.chunks[ring.rank]
        lengths = [length for _, length in mine]
        dtype, d_o = d_o.dtype, d_o.float()
        given = list(zip(o.split(lengths, 2), log_sum.split(lengths, 2), d_o.split(lengths, 2)))
        d_queries, d_w = ([torch.zeros_like(x) for x in widened(*parts)] for parts in (queries, [w]))
        deterministic = torch.are_deterministic_algorithms_enabled()
        # dK and dV of the next K/V block, sent by the previous rank after adding its own part
        following = None
        for step, (owner, parts) in enumerate(kv_blocks(ring, plan, packed)):
            found = [torch.zeros_like(part, dtype=torch.float32) for part in parts]
            for i, rows in enumerate(mine):
                for j, columns in enumerate(plan.chunks[owner]):
                    if plan.visible(rows, columns, causal):
                        extent = plan.extent(rows, columns)
                        gradients = conv_backward(
                            *widened(queries[i], parts[2 * j], parts[2 * j + 1], w),
                            *given[i],
                            causal,
                            scale,
                            deterministic=deterministic,
                            run=run,
                            extent=extent,
                        )
                        for total, gradient in zip(
                            (d_queries[i], found[2 * j], found[2 * j + 1], *d_w), gradients
                        ):
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
        d_q = ring.give_back(d_queries, plan, plan.query_halo, like)
        d_k = ring.give_back(d_parts[::2], plan, plan.key_halo, like)
        d_q, d_k, d_v = (x.to(dtype) for x in (d_q, d_k, torch.cat(d_parts[1::2], 2)))
        return d_q, d_k, d_v, ring.total(*d_w).to(w.dtype), *(None,) * 5
