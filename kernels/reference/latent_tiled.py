"""Reciprocal and latent attention tile by tile in plain PyTorch, with a count of the traffic to global
memory. It completes the algorithm of seed text 003.

For one batch: q (H, N, d), k_latent and v_latent (N_k, L), w_q (H, d, L), w_v (H, L, d), any floating type.
All heads of a tile are on the chip together, so that a tile of latents is loaded once for all of them. The
text leaves these points open; here they are decided as follows:

    reciprocal scores    need the latent queries at key positions: those of the last window - 1 tokens before
                         a tile of queries stay on the chip from the previous tiles (the text's option 3)
    a masked tile        leaves the running maximum as it is, since -inf - -inf is NaN (`tiled.weight`)
    keys before queries  query i is at position N_k - N + i; a key without a query has no reciprocal score
    W_v                  expands the sum over all tiles once, instead of each tile's values
"""

import math

import torch
from torch.nn.functional import pad

from kernels.reference.latent import in_band
from kernels.reference.tiled import tiles, weight

EVERY = slice(None)


def forward(q, k_latent, v_latent, w_q, w_v, alpha, window, rows, columns, traffic, causal=True, scale=None):
    """Return (O, L), (H, N, d) and (H, N), by tiles of `rows` queries and `columns` keys.

    traffic: `tiled.Traffic`, which counts the elements loaded and stored.
    """
    heads, n, _ = q.shape
    keys, latent = k_latent.shape
    scale = 1 / math.sqrt(latent) if scale is None else scale
    o, log_sum = torch.empty_like(q), q.new_empty(heads, n)
    cached = q.new_empty(heads, 0, latent)  # latent queries of the last positions before `stop`
    for block in tiles(n, rows):
        start, stop = keys - n + block.start, keys - n + block.stop
        q_latent = traffic.load(q, (EVERY, block)) @ traffic.load(w_q, EVERY)
        cached = torch.cat([cached, q_latent], 1)[:, -(max(window, 1) - 1 + stop - start) :]
        own_keys = traffic.load(k_latent, slice(start, stop)) if window else None
        m, l = q.new_full((heads, stop - start, 1), -math.inf), q.new_zeros(heads, stop - start, 1)
        mixed = q.new_zeros(heads, stop - start, latent)
        for tile in tiles(stop if causal else keys, columns):
            s = q_latent @ traffic.load(k_latent, tile).T
            back = steps_back(start, stop, tile, q.device)
            if window:
                s = s + alpha * reciprocal(own_keys, cached, stop, tile) * in_band(back, window)
            s = (scale * s).masked_fill(back < 0, -math.inf) if causal else scale * s
            larger = torch.maximum(m, s.amax(-1, keepdim=True))
            shrink, p = weight(m, larger), weight(s, larger)
            m, l = larger, shrink * l + p.sum(-1, keepdim=True)
            mixed = shrink * mixed + p @ traffic.load(v_latent, tile)
        traffic.store(o, (EVERY, block), mixed / l @ traffic.load(w_v, EVERY))
        traffic.store(log_sum, (EVERY, block), (m + torch.log(l))[..., 0])
    return o, log_sum


def steps_back(start, stop, tile, device):
    """Return how many tokens each key of the tile is before each query at the positions [start, stop)."""
    position = torch.arange(start, stop, device=device)
    return position[:, None] - torch.arange(tile.start, tile.stop, device=device)


def reciprocal(own_keys, cached, stop, tile):
    """Return k̃_p·q̃_j, (H, queries, keys of the tile), with 0 where the latent query of key j is not cached.

    cached: (H, C, L), the latent queries of the positions [stop - C, stop).
    """
    first, scores = stop - cached.shape[1], own_keys.new_zeros(())
    low, high = max(tile.start, first), min(tile.stop, stop)
    if low >= high:
        return scores
    found = own_keys @ cached[:, low - first : high - first].mT
    return pad(found, (low - tile.start, tile.stop - high))
