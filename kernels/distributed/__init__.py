"""Context parallelism for convolutional attention: each rank of torch.distributed holds part of the tokens.

A sequence of N tokens is divided into chunks. A rank holds one chunk ("contiguous"), or two ("zigzag": chunks
r and 2·R - 1 - r of 2·R, so that all ranks have equal work under a causal mask). For each of its chunks, a
rank fetches the halo that the convolution reads: c_q - 1 query rows above it, (c_k - 1) // 2 key rows to the
left and c_k - 1 - (c_k - 1) // 2 to the right. K/V blocks (keys with their halo, and values) then travel
around the ring of ranks. With each block, a rank computes a partial (O, L), and merges it:

    m = log(e^L1 + e^L2)        O = e^(L1 - m) · O1 + e^(L2 - m) · O2        L = m

The backward pass sends the K/V blocks around the ring again, followed by dK and dV, and each rank adds its
part to them. The gradients of halo rows are returned to the ranks that own these rows.
Sources: Liu et al. 2023, arXiv 2310.01889 (ring attention); Brandon et al. 2023, arXiv 2311.09431 (balanced
    causal rings). The merge is the same as in lesson 01.

    sent per rank    forward 2 · N · d · (R - 1) / R elements per head, backward twice that, and the halos;
                     nothing of size N²
    memory per rank  its own tokens, at most three K/V blocks, and two partial results

This file has the public functions. plan.py computes which rank holds which tokens, ring.py sends messages,
and attention.py has the forward and the backward pass.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh

from kernels.common.arguments import ANY_FLOAT, FLOAT32, TAPS, check, checked_scale
from kernels.conv.decode import conv_decode, decode_arguments
from kernels.distributed.attention import Sharded, merged, nothing
from kernels.distributed.plan import Plan, check_layout
from kernels.distributed.ring import Ring


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
    """Compute `conv_attention` for a sequence whose tokens are sharded over `group`; return this rank's rows,
    like q.

    q, k, v: (B, H, n, d), this rank's tokens, float32, bfloat16 or float16. Ranks may have different n, and n
        may be 0. 16-bit K/V blocks are sent in 16 bits, and the tensor cores compute with them. Partial
        results are merged in float32, and the gradients of K/V blocks are sent in float32.
    w: (H, c_q, c_k), identical on all ranks, float32 or the dtype of q.
    group: a process group or a one-dimensional DeviceMesh; None is the default group.
    causal, scale: as for `conv_attention`.
    layout: "contiguous": rank r holds chunk r of the sequence. "zigzag": the first half of its rows (the
        larger half if n is odd) is chunk r, and the other half is chunk 2·R - 1 - r of 2·R chunks. `shard`
        divides a sequence in this way.
    run: the runner that launches the kernels.

    This is a collective operation, and so is its backward pass: every rank of the group must call it. It is
        differentiable with respect to q, k, v and w; dW is summed over the ranks. If the arguments of a rank
        are invalid, that rank raises the error of `conv_attention`, and the other ranks raise ValueError. All
        ranks raise ValueError if their arguments disagree, and RuntimeError if a rank is lost.
    """
    ring = Ring(group, q if isinstance(q, torch.Tensor) else torch.empty(0))
    try:
        chunks = check_layout(layout)
        scale = check_shards(q, k, v, w, scale, ANY_FLOAT)
        facts = dict(zip("B H d c_q c_k".split(), (q.shape[0], q.shape[1], q.shape[3], *w.shape[1:])))
        gradient = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, w))
        facts |= {
            "causal": bool(causal),
            "scale": scale,
            "dtype (0 float32, 1 bfloat16, 2 float16)": ANY_FLOAT.index(q.dtype),
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
    """Compute `conv_attention_decode`, (B, H, 1, d), on every rank, with the cache sharded over `group`; no
    gradients.

    q_window: (B, H, R, d), the queries of the last R = min(c_q, N_k) tokens, identical on all ranks.
    k, v: (B, H, n, d), this rank's chunk of the cache, in rank order; n may be 0.
    w: (H, c_q, c_k).

    Each rank computes attention over its own keys. One exchange of B·H·(d + 1) elements merges the results.
    Errors are the same as for `conv_attention_sharded`.
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
    # an expanded view, which allocates nothing: only its shape is checked
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
    """Return this rank's rows of x along `dim`, in the layout of `conv_attention_sharded`.

    Every rank passes the complete x. Chunks are as equal as possible.
    """
    rank, ranks = Ring(group, x).place
    chunks = x.tensor_split(check_layout(layout) * ranks, dim)
    return (
        chunks[rank]
        if layout == "contiguous"
        else torch.cat([chunks[rank], chunks[2 * ranks - 1 - rank]], dim)
    )


def unshard(x, group=None, layout="zigzag", dim=2):
    """Gather the rows of all ranks on every rank, (…, N, …), in sequence order; no gradients."""
    ring, chunks = Ring(group, x), check_layout(layout)
    lengths = ring.agree({}, x.shape[dim])
    rows = x.detach().transpose(0, dim)
    padded = torch.cat([rows, rows.new_zeros(max(lengths) - len(rows), *rows.shape[1:])])
    parts = [part[:length] for part, length in zip(ring.gather(padded), lengths)]
    # sort by position in the sequence, since a zigzag rank holds two distant chunks
    order = sorted(
        (start, rank, first, length)
        for rank, held in enumerate(Plan(lengths, chunks).chunks)
        for (start, length), first in zip(held, (0, held[0][1]))
    )
    return torch.cat([parts[rank][first : first + length] for _, rank, first, length in order]).transpose(
        0, dim
    )


def check_shards(q, k, v, w, scale, dtypes=FLOAT32):
    """Check this rank's tokens (B, H, n, d), of one of `dtypes`, and the taps; return scale as a float."""
    given = {name: (tensor, "B H n d") for name, tensor in (("q", q), ("k", k), ("v", v))}
    sizes = check(given | {"w": (w, *TAPS)}, dtypes, filled="B H")
    return float(checked_scale(scale, sizes["d"]))
