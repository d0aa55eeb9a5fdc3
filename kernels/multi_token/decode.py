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
    mix_rows  T', in place      (PARTS · c_q2, H / s, B)   4 warps             17.1 KiB for s = 16
    values    a part of O       (splits, H / s', B)        min(8, s') warps    19.8 KiB for s' = 16
    merge     O, norm and gate  (H, B)                     16 warps            2.5 KiB

No kernel needs more than 46.3 KiB of shared memory, for any sizes. A warp of `window` processes KEYS keys at
a time, two per lane, and COLUMNS of their columns at a time. It keeps their scores with all rows of the
window in registers, and in shared memory for the convolution, together with the last scores of the previous
keys. A warp of `values` keeps a head's P of LANES keys and their halo in shared memory. K and V may be views.
Warps prefetch the next elements into registers.

For bfloat16 and float16, the kernels of `tensor_decode` replace `window` and `values`, except on a GPU of
compute capability below 8.0. On a GPU of compute capability 9.0, the two kernels of `hopper_decode` replace
`window`, `mix_rows` and `values`, for maps within at most 16 heads and windows of at most 16 queries.
"""

import math

import torch
from numpy import float32

from kernels.common.arguments import HALVES
from kernels.common.launch import Bits, launch, output
from kernels.common.splits import LANES, flat, multiprocessors
from kernels.multi_token import hopper_decode, hopper_scores, hopper_values, tensor_decode
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
    merge_kernel,
    values_kernel,
)
from kernels.tensor_cores.launch import OLDEST, aligned, capability, kind_of, tensor_width


def decode(q, k, v, layer, norm=None, gate=None, splits=None, run=None, hopper=None):
    """Return the layer's output for the last token, (B, H, 1, d), float32.

    q: (B, H, R, d), the window.
    k, v: (B, H_kv, N_k, d), like q; they may be views, and are not copied.
    layer: `bands.Layer`.
    norm, gate: like the tensors of the layer: float32, or all in the dtype of q if `fits_tensor_cores`.
    splits: the maximum number of blocks among which the sum over a head's keys is divided. A block processes
        whole groups of LANES keys.
    hopper: whether to use the kernels of `hopper_decode`; by default, if they support q and the layer.
    """
    (batch, heads, _, d), (_, kv_heads, _, _) = q.shape, k.shape
    dtype = next((x.dtype for x in (*layer[:4], norm, *(gate or ())) if x is not None), torch.float32)
    taps, head_map, after_taps, after_head_map = (
        q.new_ones((heads, 1, 1), dtype=dtype) if part is None else part for part in layer[:4]
    )
    c_q, after, sharing = taps.shape[1], after_taps.shape[1], heads // kv_heads
    nothing = q.new_empty(0, dtype=dtype)
    norm = nothing if norm is None else norm.detach().contiguous()
    gate, bias = (nothing, nothing) if gate is None else (x.detach().reshape(-1) for x in gate)
    if hopper is None:
        hopper = hopper_decode.fits(q, c_q, after, head_map.shape[1], after_head_map.shape[1])
    maps = taps, head_map, after_taps, after_head_map
    parts = (hopper_parts if hopper else parts_of)(q, k, v, sharing, maps, layer.scale, splits, run)
    # merge the parts into O
    o = output((batch, heads, 1, d), like=q, dtype=q.dtype)
    arguments = parts, *map(bits_of, (norm, gate, bias, o))
    kernel = merge_kernel(kind_of(q), kind_of(nothing))
    launch(kernel, (heads, batch), MERGE_THREADS, *arguments, run=run, early=True)
    return o


def parts_of(q, k, v, sharing, maps, scale, splits, run):
    """Return parts of O, (B, splits, H, d), in at least three kernels.

    maps: taps, head_map, after_taps and after_head_map, without None.
    """
    (batch, heads, _, d), keys, (taps, head_map, after_taps, after_head_map) = q.shape, k.shape[2], maps
    (_, c_q, c_k), after, (groups, group, _) = taps.shape, after_taps.shape[1], head_map.shape
    t = output((batch, heads, after, keys), like=q)
    v_rows = flat(aligned(v).tensor if fits_tensor_cores(q) else v)
    # 1. compute T. The kernels after it are launched early, so all copies precede this one.
    if fits_tensor_cores(q):
        window_scores(q, k, sharing, taps, scale, t, run)
    else:
        at_once = multiprocessors(k.device) * WINDOW_BLOCKS * WINDOW_WARPS
        length = window_length(batch * heads, keys, c_k, at_once)
        grid = (-(-keys // (WINDOW_WARPS * length)), heads, batch)
        scale, flat_k = float32(scale), flat(k)
        arguments = q, *flat_k, sharing, taps, scale, length, t
        launch(window_kernel(c_q, after), grid, WINDOW_WARPS * LANES, *arguments, run=run)
    # 2. compute T', and the statistics of its rows
    length = -(-keys // (PARTS * MIX_THREADS)) * MIX_THREADS
    ends, kernel = (
        output((batch, 2, heads, after, PARTS), like=q),
        mix_rows_kernel(class_of(group), kind_of(taps)),
    )
    arguments = t, bits_of(head_map), length, ends
    launch(kernel, (PARTS * after, groups, batch), MIX_THREADS, *arguments, run=run, early=True)
    # 3. compute parts of O
    if fits_tensor_cores(q):
        parts = weighted_values(t, ends, after_taps, after_head_map, v_rows, d, sharing, splits, run)
    else:
        groups, group, _ = after_head_map.shape
        splits, length = value_splits(batch * groups, group, keys, splits, multiprocessors(k.device))
        parts = output((batch, splits, heads, d), like=q)
        arguments = t, ends, after_taps, after_head_map, *v_rows, sharing, length, parts
        most = class_of(group)
        threads = min(VALUE_WARPS, most) * LANES
        launch(values_kernel(most, after), (splits, groups, batch), threads, *arguments, run=run)
    return parts


def hopper_parts(q, k, v, sharing, maps, scale, splits, run):
    """Return parts of O like `parts_of`, with the kernels of `hopper_decode`, in which ranges of keys replace
    splits."""
    (batch, heads, _, d), keys, (taps, head_map, after_taps, after_head_map) = q.shape, k.shape[2], maps
    (_, c_q, c_k), after, taps_kind = taps.shape, after_taps.shape[1], kind_of(taps)
    width, kind, blocks, its = tensor_width(d), kind_of(q), multiprocessors(k.device), hopper_decode
    # 1. compute T', and the statistics of its rows. The kernels after it are launched early, so all copies
    # precede this one.
    groups, group, _ = head_map.shape
    most, of_k, of_v = class_of(group), elements(k), elements(v)
    slots, each = its.WARPS // most, its.STAGE // width
    at_once = max(1, blocks // (batch * groups)) * slots  # ranges of a sequence; one block per multiprocessor
    length = window_length(1, keys, c_k, at_once, each)
    ranges = -(-keys // (length * slots)) * slots
    t = output((batch * heads * keys * its.ROWS,), like=q)
    ends = output((batch, 2, heads, its.ROWS, ranges), like=q)
    pairs, scale = Bits(t, torch.int64), float32(scale)
    shared = sharing, bits_of(taps), bits_of(head_map)
    arguments = Bits(aligned(q).tensor, torch.int32), *of_k, *shared, scale, length, pairs, ends
    kernel = hopper_scores.scores_kernel(width, kind, most, c_q, c_k, after, taps_kind)
    launch(kernel, (ranges // slots, groups, batch), its.THREADS, *arguments, run=run)
    # 2. compute parts of O
    groups, group, _ = after_head_map.shape
    most = class_of(group)
    slots = its.WARPS // most
    splits = max(1, blocks // (batch * groups)) if splits is None else splits
    length = -(-keys // (splits * slots * hopper_values.TILE)) * hopper_values.TILE
    ranges = -(-keys // (length * slots)) * slots
    parts = output((batch, ranges, heads, d), like=q)
    maps = bits_of(after_taps), bits_of(after_head_map)
    arguments = pairs, ends, *maps, *of_v, sharing, length, parts
    kernel = hopper_values.values_kernel(width, kind, most, after_taps.shape[2], after, taps_kind)
    launch(kernel, (ranges // slots, groups, batch), its.THREADS, *arguments, run=run, early=True)
    return parts


def elements(rows):
    """Return (1-D view of 16-bit rows (B, H, N, d), their strides in elements, N), with rows aligned to 16
    bytes."""
    rows = aligned(rows).tensor
    *strides, _ = rows.stride()
    span = 1 + sum((size - 1) * stride for size, stride in zip(rows.shape, rows.stride()))
    return Bits(rows.as_strided((span,), (1,)), torch.int16), tuple(strides), rows.shape[2]


def bits_of(x):
    """Return a kernel argument for a tensor: a float32 tensor itself, and a 16-bit one as int16 Bits."""
    return x if x.dtype == torch.float32 else Bits(x, torch.int16)


def fits_tensor_cores(q):
    """Return whether the kernels of `tensor_decode` support q."""
    return q.dtype in HALVES and (not q.is_cuda or capability(q.device) >= OLDEST)


def window_scores(q, k, sharing, taps, scale, t, run):
    """Compute T (B, H, after, N_k) in place from 16-bit q and k, on tensor cores."""
    (batch, heads, after, keys), (_, c_q, c_k), device = t.shape, taps.shape, k.device
    warps, each = tensor_decode.WINDOW_WARPS, tensor_decode.KEYS
    at_once = multiprocessors(device) * tensor_decode.WINDOW_BLOCKS * warps
    length = window_length(batch * heads, keys, c_k, at_once, each)
    kernel = tensor_decode.window_kernel(tensor_width(q.shape[3]), kind_of(q), c_q, c_k, after, kind_of(taps))
    arguments = aligned(q), aligned(k), sharing, bits_of(taps), float32(scale), length, t
    launch(kernel, (-(-keys // (warps * length)), heads, batch), warps * LANES, *arguments, run=run)


def weighted_values(t, ends, taps, head_map, v, d, sharing, splits, run):
    """Return the parts of O, (B, splits, H, d), from T' and v, rows of d elements as `flat` returns them."""
    (batch, heads, after, keys), (groups, group, _) = t.shape, head_map.shape
    weights = output((batch, heads, keys), like=t)
    most, tiles = class_of(group), -(-keys // tensor_decode.TILE)
    arguments = t, ends, bits_of(taps), bits_of(head_map), weights
    kernel = tensor_decode.weights_kernel(most, taps.shape[2], after, kind_of(taps))
    threads = tensor_decode.weight_warps(most, after) * LANES
    launch(kernel, (tiles, groups, batch), threads, *arguments, run=run, early=True)
    warps = tensor_decode.VALUE_WARPS
    blocks = multiprocessors(t.device) * tensor_decode.VALUE_BLOCKS
    splits = max(1, blocks // (batch * heads)) if splits is None else splits
    (rows, strides), d_aligned = v, -(-d // 8) * 8
    step = tensor_decode.keys_per_load(d_aligned) * tensor_decode.LOADS
    length = -(-keys // (splits * warps * step)) * step
    parts = output((batch, -(-keys // (length * warps)), heads, d), like=t)
    strides = tuple(stride // 4 for stride in strides)
    arguments = weights, Bits(rows, torch.int64), strides, sharing, length, parts
    kernel = tensor_decode.values_kernel(d_aligned, kind_of(rows))
    launch(kernel, (parts.shape[1], heads, batch), warps * LANES, *arguments, run=run, early=True)
    return parts


def class_of(group):
    """Return the next power of two, so that few compiled kernels cover all sizes."""
    return 1 << (group - 1).bit_length()


def window_length(sequences, keys, c_k, warps, each=KEYS):
    """Return the number of keys per warp of a window kernel: the keys of its sub-tiles of K minus the halo.

    The number of sub-tiles of `each` keys is the smallest with which all warps run at once, on a device with
    room for `warps`.
    """
    halo = c_k - 1
    return -(-(-(-sequences * keys // warps) + halo) // each) * each - halo


def value_splits(sequences, group, keys, splits, multiprocessors):
    """Return (splits, keys per split), in whole groups of LANES keys.

    splits: the maximum number of splits; by default, the number with which all blocks can run at once.
    """
    blocks = multiprocessors * (RESIDENT_WARPS // min(VALUE_WARPS, class_of(group)))
    each = sequences * keys / blocks if splits is None else keys / splits
    length = math.ceil(each / LANES) * LANES
    return -(-keys // length), length
