"""Tiled multi-token layer in plain PyTorch: two passes over the tiles, each tile with all heads.

For one sequence: q, k, v (H, N, d), any floating dtype. Let P_q, P_k, P_r be the halo of the first
    convolution, and P'_q, P'_k, P'_r that of the second. A tile that OWNS rows [i0, i0 + R) and columns [j0,
    j0 + C) needs:

    pass 1, L   T' on its own entries; S0 on rows [i0 - P_q, i0 + R), columns [j0 - P_k, j0 + C + P_r)
    pass 2, O   P on rows [i0 - P'_q, i0 + R), columns [j0 - P'_k, j0 + C + P'_r); S0 around that as in pass 1

The second convolution needs normalised probabilities, and the log-sum-exp of a row is known only after all
its tiles; hence the second pass. In this pass P = exp(T' - L) is final as soon as it is computed, also in
halo rows, whose L is loaded, too. O is then a plain sum over tiles.
"""

import math
from typing import NamedTuple

import torch

from kernels.reference import mix_heads
from kernels.reference.conv_tiled import Halo, halo_of, load_rows, positions, scores_tile, seen, valid


class Parts(NamedTuple):
    """The layer's optional operations, for all of its heads. None means the identity."""

    taps: torch.Tensor | None = None  # (H, c_q, c_k)
    head_map: torch.Tensor | None = None  # (H, H) or (H / s, s, s)
    after_taps: torch.Tensor | None = None
    after_head_map: torch.Tensor | None = None


def halo(taps):
    return Halo(0, 0, 0) if taps is None else halo_of(taps[0])


def convolved(tiles, taps):
    """Return the "valid" convolution of each head's tile, for tiles (H, R, C)."""
    return tiles if taps is None else torch.stack([valid(tile, w) for tile, w in zip(tiles, taps)])


def mixed(tiles, head_map):
    return mix_heads(tiles[None], head_map)[0]


def mixed_tile(q, k, parts, i0, j0, rows, columns, causal, scale, traffic):
    """Return T' for rows [i0, i0 + rows) and columns [j0, j0 + columns) of all heads.

    Entries that are masked or outside the sequence are -inf.
    """
    above, left, right = halo(parts.taps)
    place = i0 - above, j0 - left, rows + above, columns + left + right
    s = torch.stack([scores_tile(*head, *place, causal, scale, traffic) for head in zip(q, k)])
    hidden = ~seen(positions(i0, rows, q), positions(j0, columns, q), q.shape[1], causal)
    return mixed(convolved(s, parts.taps), parts.head_map).masked_fill(hidden, -math.inf)


def statistics(q, k, parts, owned, traffic, causal=True, scale=None):
    """Run pass 1 over tiles that own (rows, columns) = `owned`; return L (H, N), the log-sum-exp of each row
    of T'."""
    heads, n, d = q.shape
    scale = 1 / math.sqrt(d) if scale is None else scale
    log_sum = q.new_empty(heads, n)
    for i0 in range(0, n, owned[0]):
        rows = min(owned[0], n - i0)
        so_far = q.new_full((heads, rows), -math.inf)
        for j0 in range(0, i0 + rows if causal else n, owned[1]):
            t = mixed_tile(q, k, parts, i0, j0, rows, min(owned[1], n - j0), causal, scale, traffic)
            so_far = torch.logaddexp(so_far, torch.logsumexp(t, -1))
        for head in range(heads):
            traffic.store(log_sum[head], slice(i0, i0 + rows), so_far[head])
    return log_sum


def output(q, k, v, parts, log_sum, owned, traffic, causal=True, scale=None):
    """Run pass 2, given L from pass 1; return O (H, N, d)."""
    heads, n, d = q.shape
    scale = 1 / math.sqrt(d) if scale is None else scale
    o = torch.empty_like(v)
    for i0 in range(0, n, owned[0]):
        rows = min(owned[0], n - i0)
        sums = v.new_zeros(heads, rows, v.shape[2])
        for j0 in range(0, i0 + rows if causal else n, owned[1]):
            columns = min(owned[1], n - j0)
            u = after_tile(q, k, parts, log_sum, i0, j0, rows, columns, causal, scale, traffic)
            sums += mixed(u, parts.after_head_map) @ torch.stack(
                [load_rows(head, j0, columns, traffic) for head in v]
            )
        for head in range(heads):
            traffic.store(o[head], slice(i0, i0 + rows), sums[head])
    return o


def after_tile(q, k, parts, log_sum, i0, j0, rows, columns, causal, scale, traffic):
    """Return U for rows [i0, i0 + rows) and columns [j0, j0 + columns) of all heads, 0 where masked."""
    above, left, right = halo(parts.after_taps)
    place = i0 - above, j0 - left, rows + above, columns + left + right
    t = mixed_tile(q, k, parts, *place, causal, scale, traffic)
    of_rows = torch.stack([load_rows(head, place[0], place[2], traffic) for head in log_sum])
    u = convolved(torch.exp(t - of_rows[..., None]), parts.after_taps)
    visible = seen(positions(i0, rows, q), positions(j0, columns, q), q.shape[1], causal)
    return u.masked_fill(~visible, 0.0)


def forward(q, k, v, parts, owned, traffic, causal=True, scale=None):
    """Run both passes over tiles that own (rows, columns) = `owned`; return (O, L), (H, N, d) and (H, N)."""
    log_sum = statistics(q, k, parts, owned, traffic, causal, scale)
    return output(q, k, v, parts, log_sum, owned, traffic, causal, scale), log_sum
