"""Tiled latent attention with a reciprocal term, in plain PyTorch, counting the traffic to global memory.

For one sequence: q (H, N, d), k_latent and v_latent (N_k, L), w_q (H, d, L), w_v (H, L, d), any floating
    dtype. A tile holds all heads, so each tile of latents is loaded once for all of them. This file completes
    the algorithm of seed text 003, which leaves these points open:

    reciprocal scores    They need the latent queries of the key positions. The latent queries of the last
                         window - 1 tokens before a tile of queries are kept on chip (option 3 of the text)
    fully masked tiles   The running maximum is unchanged, since -inf - -inf is NaN (`tiled.weight`)
    keys before queries  Query i is at position N_k - N + i. A key that has no query has no reciprocal score
    W_v                  It is applied once to the sum over all tiles, not to the values of each tile
"""

import math

import torch
from torch.nn.functional import pad

from kernels.reference.latent import in_band
from kernels.reference.tiled import tiles, weight

EVERY = slice(None)


def forward(q, k_latent, v_latent, w_q, w_v, alpha, window, rows, columns, traffic, causal=True, scale=None):
    """Return (O, L), (H, N, d) and (H, N), computed by tiles of `rows` queries and `columns` keys.

    traffic: a `tiled.Traffic`, which counts the elements loaded and stored.
    """
    heads, n, _ = q.shape
    keys, latent = k_latent.shape
    scale = 1 / math.sqrt(latent) if scale is None else scale
    o, log_sum = torch.empty_like(q), q.new_empty(heads, n)
    cached = q.new_empty(heads, 0, latent)  # latent queries of the latest positions before `stop`
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
    """Return the distance from each key of the tile forward to each query at the positions [start, stop)."""
    position = torch.arange(start, stop, device=device)
    return position[:, None] - torch.arange(tile.start, tile.stop, device=device)


def reciprocal(own_keys, cached, stop, tile):
    """Return k̃_p·q̃_j, (H, queries, keys of the tile), with 0 for each key j whose latent query is not
    cached.

    cached: (H, C, L), the latent queries of the positions [stop - C, stop).
    """
    first, scores = stop - cached.shape[1], own_keys.new_zeros(())
    low, high = max(tile.start, first), min(tile.stop, stop)
    if low >= high:
        return scores
    found = own_keys @ cached[:, low - first : high - first].mT
    return pad(found, (low - tile.start, tile.stop - high))
