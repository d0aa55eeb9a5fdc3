"""The multi-token layer for one new token, in four kernels that read each key and each value once.

The last row of U depends on the last c_q2 rows of P, and these on the last R = c_q1 + c_q2 - 1 queries, the
window. For each head:

    T[r, j]  = Σ_ab w1[a, b] · S[r + a, j - P_k + b]      S = scale · window · Kᵀ, 0 where masked
    T'[r, j] = Σ_h M1[g, h] T_h[r, j]                     and m and l of each part of a row
    U[j]     = Σ_rb w2[r, b] · P[r, j - P'_k + b]         P = exp(T' - m) / l, 0 where masked
    O        = Σ_j U'[j] v_j, U' = M2 U                   then norm and gate

A head map needs T of all heads, and P needs m and l of the whole row. The first two kernels therefore store
    their results in global memory: c_q2 elements per head and key, compared with d elements of a key. A
    parameter that is None is replaced by the identity of size 1. Sums have a fixed order. Source: Golovneva
    et al. 2025, arXiv 2504.00927; Dao et al. 2023, "Flash-Decoding for long-context inference" (the split of
    the keys).

    kernel    computes          grid                       block               shared, two 6-row taps
    window    T                 (splits of keys, H, B)     2 warps             21.8 KiB
    mix_rows  T', in place      (parts · c_q2, H / s, B)   4 warps             9.1 KiB for s = 16
    values    a part of O       (splits, H / s', B)        min(8, s') warps    19.8 KiB for s' = 16
    merge     O, norm and gate  (H, B)                     16 warps            2.5 KiB

No kernel needs more than 46.3 KiB of shared memory, for any sizes. A warp of `window` processes KEYS keys at
a time, two per lane, and COLUMNS of their columns at a time. It keeps their scores with all rows of the
window in registers, and in shared memory for the convolution, together with the last scores of the previous
keys. A warp of `values` keeps a head's P of LANES keys and their halo in shared memory. K and V are float32,
bfloat16 or float16 and may be views. Warps prefetch the next elements into registers.
"""

import math

import torch
from numpy import float32

from kernels.common.launch import launch, output
from kernels.common.splits import LANES, flat, multiprocessors
from kernels.multi_token.decode_scores import (
    KEYS,
    MIX_THREADS,
    PARTS,
    WINDOW_BLOCKS,
    WINDOW_WARPS,
    mix_rows_kernel,
    window_kernel,
)
from kernels.multi_token.decode_values import (
    MERGE_THREADS,
    RESIDENT_WARPS,
    VALUE_WARPS,
    multi_token_merge_kernel,
    values_kernel,
)


def decode(q, k, v, layer, norm=None, gate=None, splits=None, run=None):
    """Return the layer's output for the last token, (B, H, 1, d), float32.

    q: (B, H, R, d), the window.
    k, v: (B, H_kv, N_k, d), like q; they may be views, and are not copied.
    layer: `bands.Layer`.
    norm, gate: float32.
    splits: the maximum number of blocks among which the sum over a head's keys is divided. A block processes
        whole groups of LANES keys.
    """
    (batch, heads, _, d), (_, kv_heads, keys, _) = q.shape, k.shape
    taps, head_map, after_taps, after_head_map = (
        q.new_ones((heads, 1, 1), dtype=torch.float32) if part is None else part for part in layer[:4]
    )
    (_, c_q, c_k), after, sharing = taps.shape, after_taps.shape[1], heads // kv_heads
    t = output((batch, heads, after, keys), like=q)
    # 1. compute T
    length = window_length(batch * heads, keys, c_k, multiprocessors(k.device))
    grid = (-(-keys // (WINDOW_WARPS * length)), heads, batch)
    scale, flat_k = float32(layer.scale), flat(k)
    arguments = q, *flat_k, sharing, taps, scale, length, t
    launch(window_kernel(c_q, after), grid, WINDOW_WARPS * LANES, *arguments, run=run)
    # 2. compute T', and the statistics of its rows
    (groups, group, _), length = head_map.shape, -(-keys // (PARTS * MIX_THREADS)) * MIX_THREADS
    ends = output((batch, 2, -(-keys // length), heads, after), like=q)
    grid = (ends.shape[2] * after, groups, batch)
    launch(mix_rows_kernel(class_of(group)), grid, MIX_THREADS, t, head_map, length, ends, run=run)
    # 3. compute parts of O
    groups, group, _ = after_head_map.shape
    splits, length = value_splits(batch * groups, group, keys, splits, multiprocessors(k.device))
    parts = output((batch, splits, heads, d), like=q)
    arguments = t, ends, after_taps, after_head_map, *flat(v), sharing, length, parts
    grid = (splits, groups, batch)
    most = class_of(group)
    launch(values_kernel(most, after), grid, min(VALUE_WARPS, most) * LANES, *arguments, run=run)
    # 4. merge the parts into O
    o, nothing = output((batch, heads, 1, d), like=q), t.new_empty(0)
    norm = nothing if norm is None else norm.detach().contiguous()
    gate, bias = (nothing, nothing) if gate is None else (x.detach().reshape(-1) for x in gate)
    launch(multi_token_merge_kernel, (heads, batch), MERGE_THREADS, parts, norm, gate, bias, o, run=run)
    return o


def class_of(group):
    """Return the next power of two, so that few compiled kernels cover all sizes."""
    return 1 << (group - 1).bit_length()


def window_length(sequences, keys, c_k, multiprocessors):
    """Return the number of keys per warp of the window kernel: the keys of its sub-tiles of K minus the halo.

    The number of sub-tiles is the smallest with which all warps can run at once.
    """
    halo, warps = c_k - 1, multiprocessors * WINDOW_BLOCKS * WINDOW_WARPS
    return -(-(-(-sequences * keys // warps) + halo) // KEYS) * KEYS - halo


def value_splits(sequences, group, keys, splits, multiprocessors):
    """Return (splits, keys per split), in whole groups of LANES keys.

    splits: the maximum number of splits; by default, the number with which all blocks can run at once.
    """
    blocks = multiprocessors * (RESIDENT_WARPS // min(VALUE_WARPS, class_of(group)))
    each = sequences * keys / blocks if splits is None else keys / splits
    length = math.ceil(each / LANES) * LANES
    return -(-keys // length), length
