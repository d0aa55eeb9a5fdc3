"""The multi-token layer for one new token, in four kernels that read each key and each value once.

The last row of U depends on the last c_q2 rows of P, and these on the last R = c_q1 + c_q2 - 1 queries, the
window. For each head:

    T[r, j]  = Σ_ab w1[a, b] · S[r + a, j - P_k + b]      S = scale · window · Kᵀ, 0 where masked
    T'[r, j] = Σ_h M1[g, h] T_h[r, j]                     and m and l of each part of a row
    U[j]     = Σ_rb w2[r, b] · P[r, j - P'_k + b]         P = exp(T' - m) / l, 0 where masked
    O        = Σ_j U'[j] v_j, U' = M2 U                   then norm and gate

A map needs T of all heads, and P needs m and l of the whole row, so the first two steps store their results
in global memory: c_q2 elements per head and key, where a key has d. A part that is None is the identity of
size 1. Sums have a fixed order. Source: Golovneva et al. 2025, arXiv 2504.00927; Dao et al. 2023,
"Flash-Decoding for long-context inference" (the split of the keys).

    kernel    computes          grid                       block               shared, two 6-row taps
    window    T                 (splits of keys, H, B)     2 warps             21.8 KiB
    mix_rows  T', in place      (parts · c_q2, H / s, B)   4 warps             9.1 KiB for s = 16
    values    a part of O       (splits, H / s', B)        min(8, s') warps    19.8 KiB for s' = 16
    merge     O, norm and gate  (H, B)                     16 warps            2.5 KiB

No kernel needs more than 46.3 KiB, whatever the sizes. A warp of `window` takes KEYS keys at a time, two for
each lane, in pieces of COLUMNS columns. It holds their scores with all rows of the window in registers, and
in shared memory for the convolution, which keeps the last scores of the previous keys. A warp of `values` has
a head's P of LANES keys and their halo in shared memory. K and V are float32, bfloat16 or float16 and may be
views. The next elements are loaded into registers while a warp works on the current ones.
"""

import functools
import math

import torch
from numba import cuda
from numpy import float32

from kernels.common.arguments import MAX_HEAD_DIM, MOST_TAPS
from kernels.common.launch import launch, output
from kernels.common.splits import (
    LANE,
    LANES,
    LARGEST_D,
    PLACE,
    UNROLLED,
    flat,
    largest_of_warp,
    multiprocessors,
    sum_of_warp,
)
from kernels.common.tiles import MINUS_INFINITY, reciprocal, weight
from kernels.reference import EPSILON

KEYS, COLUMNS = 64, 16  # keys and columns of a piece of K
PITCH = COLUMNS + 1  # so that a column of a piece lies in 32 different banks
CARRIED = 16  # scores kept of the previous keys: more than a convolution reads to its left
TILE = CARRIED + KEYS
WINDOW_WARPS, WINDOW_BLOCKS = (
    2,
    8,
)  # warps of a block; resident blocks per multiprocessor at 128 registers per thread
MIX_WARPS, MIX_THREADS = 4, 128
PARTS = 64  # the most parts of a row, each with its own m and l
SPAN = 48  # P of LANES keys and their halo
VALUE_WARPS, RESIDENT_WARPS = 8, 16  # warps of a block, at most; resident warps per multiprocessor
MERGE_THREADS = 512
AHEAD = 8  # loads that a thread of the last kernel issues before it waits
EPSILON_32 = float32(EPSILON)


# Scores and the first convolution ---------------------------------------------------------------------------


@functools.cache
def window_kernel(c_q, after):
    """Return the kernel for c_q rows of taps and `after` rows of T."""
    rows = c_q + after - 1
    slots, tap_slots = (-(-count // UNROLLED) * UNROLLED for count in (rows, c_q))
    numbers = 2 * slots
    registers = 128 if slots <= 12 else 255

    @cuda.jit(device=True)
    def load_piece(held, k, place, d, first, low, high, c):
        """Load held[x] = element c of key first + 2x, or first + 2x + 1 in the second half of the warp; 0
        outside [low, high)."""
        first += cuda.threadIdx.x // COLUMNS & 1
        base = place + first * d + min(c, d - 1)
        if low <= first and first + KEYS <= high:
            for x in range(LANES):
                held[x] = float32(k[(base + 2 * x * d) & PLACE])
        else:
            for x in range(LANES):
                inside = low <= first + 2 * x < high
                held[x] = float32(k[(base + 2 * x * d) & PLACE]) if inside else float32(0)

    @cuda.jit(device=True)
    def add_scores(scores, q_tile, c0, piece, lane):
        """Add the product over COLUMNS columns of row a of the window and key `lane` to scores[a].

        For key LANES + lane, add it to scores[slots + a].
        """
        for group in range(0, COLUMNS, UNROLLED):
            for c in range(UNROLLED):
                low, high = piece[lane, (group + c) & LANE], piece[LANES + lane, (group + c) & LANE]
                for a in range(slots):
                    number = q_tile[(c0 + group + c) & LARGEST_D, a]
                    scores[a] += number * low
                    scores[slots + a] += number * high

    @cuda.jit(device=True)
    def convolve(totals, column, tile, taps, place, c_k):
        """Compute totals[r] = Σ_ab taps[b, a] · tile[r + a, place + b]."""
        for r in range(after):
            totals[r] = float32(0)
        for b in range(c_k):
            for a in range(rows):
                column[a] = tile[a, place + b]
            for a in range(c_q):
                tap = taps[b & LANE, a]
                for r in range(after):
                    totals[r] += tap * column[r + a]

    @cuda.jit(max_registers=registers)
    def multi_token_window_kernel(q, k, k_strides, sharing, w, scale, length, t):
        """Store T of the last queries in t (B, H, after, N_k).

        q: (B, H, R, d), the window, R = min(rows, N_k).
        k: one-dimensional view; key j of head h of batch b begins at k[b · k_strides[0] + h // sharing ·
            k_strides[1] + j · d].
        w: (H, c_q, c_k).
        length: keys of a warp.
        """
        pieces = cuda.shared.array((WINDOW_WARPS, KEYS, PITCH), float32)
        tiles = cuda.shared.array((WINDOW_WARPS, rows, TILE), float32)
        q_tile = cuda.shared.array((MAX_HEAD_DIM, slots), float32, alignment=16)
        taps = cuda.shared.array((MOST_TAPS, tap_slots), float32, alignment=16)
        held, scores = cuda.local.array(LANES, float32), cuda.local.array(numbers, float32)
        column, totals = cuda.local.array(rows, float32), cuda.local.array(after, float32)
        batch, head, thread = cuda.blockIdx.z, cuda.blockIdx.y, cuda.threadIdx.x
        lane, warp = thread & LANE, thread // LANES
        keys, c_k, given, d = t.shape[3], w.shape[2], q.shape[2], q.shape[3]
        width = (d + COLUMNS - 1) // COLUMNS * COLUMNS
        piece, tile = pieces[warp], tiles[warp]
        # 1. the window, the taps, and empty scores of the previous keys
        for element in range(thread, slots * width, WINDOW_WARPS * LANES):
            a, c = element // width, element % width
            i = a - rows + given
            inside = a < rows and i >= 0 and c < d
            q_tile[c, a] = scale * float32(q[batch, head, i, c]) if inside else float32(0)
        for element in range(thread, c_k * tap_slots, WINDOW_WARPS * LANES):
            b, a = element // tap_slots, element % tap_slots
            taps[b, a] = w[head, a, b] if a < c_q else float32(0)
        for element in range(lane, rows * CARRIED, LANES):
            tile[element // CARRIED, element % CARRIED] = float32(0)
        cuda.syncthreads()
        # 2. the keys that this warp owns, [start, end), and those whose scores it needs, [low, high)
        start = (cuda.blockIdx.x * WINDOW_WARPS + warp) * length
        end, right = min(keys, start + length), c_k // 2
        low, high = start - (c_k - 1) // 2, end + right
        place = batch * k_strides[0] + head // sharing * k_strides[1]
        first_key, key_end, c = max(0, low), min(keys, high), lane % COLUMNS
        if start < end:
            load_piece(held, k, place, d, low, first_key, key_end, c)
        for first in range(low, high if start < end else low, KEYS):
            # 3. scores of two keys per lane with each row of the window
            for x in range(numbers):
                scores[x] = float32(0)
            for c0 in range(0, width, COLUMNS):
                for x in range(LANES):
                    piece[2 * x + lane // COLUMNS, c] = held[x]
                cuda.syncwarp()  # the piece is stored
                # load the next columns, or the next keys, meanwhile
                next_c, key = c0 + COLUMNS, first
                if next_c >= width:
                    next_c, key = 0, first + KEYS
                load_piece(held, k, place, d, key, first_key, key_end, next_c + c)
                add_scores(scores, q_tile, c0, piece, lane)
                cuda.syncwarp()  # all lanes have read the piece
            # 4. mask the scores
            for a in range(rows):
                for half in range(2):
                    j = first + lane + half * LANES
                    seen = 0 <= j <= keys - rows + a
                    tile[a, CARRIED + lane + half * LANES] = scores[half * slots + a] if seen else float32(0)
            cuda.syncwarp()  # the scores are stored
            # 5. convolve: the score of key j completes T of key j - right
            for half in range(2):
                x = lane + half * LANES
                convolve(totals, column, tile, taps, CARRIED + x - (c_k - 1), c_k)
                if start <= first + x - right < end:
                    for r in range(after):
                        t[batch, head, r, first + x - right] = totals[r]
            cuda.syncwarp()  # all lanes have read the scores: the last ones may be carried to the front
            for element in range(lane, rows * CARRIED, LANES):
                a, x = element // CARRIED, element % CARRIED
                tile[a, x] = tile[a, KEYS + x]
            cuda.syncwarp()

    return multi_token_window_kernel


# The first map, and the softmax's statistics ----------------------------------------------------------------


@functools.cache
def mix_rows_kernel(most):
    """Return the kernel for maps within groups of at most `most` heads."""

    @cuda.jit(device=True)
    def add_part(so_far, values, g, lane):
        """Update so_far[g] = (m, l) with values[g] of MIX_THREADS keys, by one warp."""
        m = so_far[g, 0]
        largest, l = m, float32(0)
        for x in range(MIX_WARPS):
            largest = max(largest, values[g, lane + x * LANES])
        largest = largest_of_warp(largest)
        for x in range(MIX_WARPS):
            l += weight(values[g, lane + x * LANES], largest)
        l = sum_of_warp(l)
        cuda.syncwarp()  # every lane has read m
        if lane == 0:
            so_far[g, 0], so_far[g, 1] = largest, weight(m, largest) * so_far[g, 1] + l

    @cuda.jit
    def multi_token_mix_rows_kernel(t, head_map, length, ends):
        """Mix the heads of t (B, H, after, N_k) in place, and store the statistics of each part of a row.

        head_map: (H / group, group, group).
        length: keys of a part.
        ends: (B, 2, parts, H, after), m and l of the keys that the row's query sees.
        """
        shares = cuda.shared.array((most, most), float32, alignment=16)
        values = cuda.shared.array((most, MIX_THREADS), float32)
        so_far = cuda.shared.array((most, 2), float32)
        held = cuda.local.array(most, float32)
        batch, group, thread = cuda.blockIdx.z, head_map.shape[1], cuda.threadIdx.x
        first_head = cuda.blockIdx.y * group
        lane, warp, after, keys = thread & LANE, thread // LANES, t.shape[2], t.shape[3]
        part, r = cuda.blockIdx.x // after, cuda.blockIdx.x % after
        end, query = min(keys, (part + 1) * length), keys - after + r
        for element in range(thread, group * most, MIX_THREADS):
            g, h = element // most, element % most
            shares[g, h] = head_map[cuda.blockIdx.y, g, h] if h < group else float32(0)
        if thread < group:
            so_far[thread, 0], so_far[thread, 1] = MINUS_INFINITY, float32(0)
        for first in range(part * length, end, MIX_THREADS):
            cuda.syncthreads()  # the map is loaded, and all threads have left the last keys
            j = first + thread
            for h in range(most):
                held[h] = t[batch, first_head + h, r, j] if h < group and j < end else float32(0)
            for g in range(group):
                total = float32(0)
                for h in range(most):
                    total += shares[g, h] * held[h]
                values[g, thread] = total if j < end and j <= query else MINUS_INFINITY
                if j < end:
                    t[batch, first_head + g, r, j] = total
            cuda.syncthreads()  # the values of all heads are stored
            for g in range(warp, group, MIX_WARPS):
                add_part(so_far, values, g, lane)
        cuda.syncthreads()  # the whole part has been added
        for element in range(thread, 2 * group, MIX_THREADS):
            ends[batch, element % 2, part, first_head + element // 2, r] = so_far[element // 2, element % 2]

    return multi_token_mix_rows_kernel


# The second convolution, the second map, and the sum over V -------------------------------------------------


@functools.cache
def values_kernel(most, after):
    """Return the kernel for maps within groups of at most `most` heads and `after` rows of taps."""
    warps = min(VALUE_WARPS, most)

    @cuda.jit(device=True)
    def load_rows(held, v, place, d, first, end, c):
        """Load held[x] = element c of row first + x, 0 from row `end` on."""
        base = place + first * d + min(c, d - 1)
        if first + LANES <= end:
            for x in range(LANES):
                held[x] = float32(v[(base + x * d) & PLACE])
        else:
            for x in range(LANES):
                held[x] = float32(v[(base + x * d) & PLACE]) if first + x < end else float32(0)

    @cuda.jit(device=True)
    def load_statistics(statistics, ends, first_head, group):
        """Compute statistics[h, r] = m and 1 / l of each row from its parts, ends (2, parts, H, after)."""
        for row in range(cuda.threadIdx.x, group * after, warps * LANES):
            h, r = row // after, row % after
            m, l = MINUS_INFINITY, float32(0)
            for part in range(ends.shape[1]):
                m = max(m, ends[0, part, first_head + h, r])
            for part in range(ends.shape[1]):
                l += weight(ends[0, part, first_head + h, r], m) * ends[1, part, first_head + h, r]
            statistics[h, r, 0], statistics[h, r, 1] = m, reciprocal(l)

    @cuda.jit(device=True)
    def load_probabilities(p, values, t, statistics, first, c_k, lane):
        """Compute p[r, x] = P of row r and key first - P'_k + x, for LANES keys and their halo.

        values: scratch; all loads precede the first use.
        """
        keys = t.shape[1]
        for x in range(lane, LANES + c_k - 1, LANES):
            j = first - (c_k - 1) // 2 + x
            for r in range(after):
                values[r] = t[r, j] if 0 <= j <= keys - after + r else MINUS_INFINITY
            for r in range(after):
                p[r, x] = weight(values[r], statistics[r, 0]) * statistics[r, 1]

    @cuda.jit(max_registers=128)  # so that a multiprocessor holds RESIDENT_WARPS
    def multi_token_values_kernel(t, ends, w, head_map, v, v_strides, sharing, length, parts):
        """Store Σ_j U'[j] v_j over the split's `length` keys, a multiple of LANES, in parts (B, splits, H,
        d).

        t, ends: the results of mix_rows.
        w: (H, after, c_k).
        head_map: (H / group, group, group).
        v: like k in the window kernel.
        """
        ps = cuda.shared.array((warps, after, SPAN), float32, alignment=16)
        us = cuda.shared.array((most, LANES), float32)
        outputs = cuda.shared.array((most, MAX_HEAD_DIM), float32)
        statistics = cuda.shared.array((most, after, 2), float32)
        held, values = cuda.local.array(LANES, float32), cuda.local.array(after, float32)
        batch, group = cuda.blockIdx.z, head_map.shape[1]
        first_head = cuda.blockIdx.y * group
        lane, warp = cuda.threadIdx.x & LANE, cuda.threadIdx.x // LANES
        keys, c_k, d, p = t.shape[3], w.shape[2], parts.shape[3], ps[warp]
        width = (d + LANES - 1) // LANES * LANES
        start = cuda.blockIdx.x * length
        end, v_batch = min(keys, start + length), batch * v_strides[0]
        place = v_batch + (first_head + min(warp, group - 1)) // sharing * v_strides[1]
        load_rows(held, v, place, d, start, end, lane)
        # 1. m and 1 / l of each row; empty sums
        load_statistics(statistics, ends[batch], first_head, group)
        for g in range(warp, group, warps):
            for c in range(lane, width, LANES):
                outputs[g, c] = float32(0)
        for first in range(start, end, LANES):
            cuda.syncthreads()  # the statistics are stored, and all warps have left the last U
            # 2. U, one head per warp and one key per lane
            for h in range(warp, group, warps):
                load_probabilities(p, values, t[batch, first_head + h], statistics[h], first, c_k, lane)
                cuda.syncwarp()  # P is stored
                total = float32(0)
                for b in range(c_k):
                    for r in range(after):
                        total += w[first_head + h, r, b] * p[r, lane + b]
                us[h, lane] = total
                cuda.syncwarp()  # all lanes have read P
            cuda.syncthreads()  # U of all heads is stored
            # 3. U' of a head, times the rows of V
            for g in range(warp, group, warps):
                total = float32(0)
                for h in range(group):
                    total += head_map[cuda.blockIdx.y, g, h] * us[h, lane]
                p[0, lane] = total
                cuda.syncwarp()  # every lane's U' is stored
                for c0 in range(0, width, LANES):
                    total = outputs[g, c0 + lane]
                    for x in range(LANES):
                        total += p[0, x] * held[x]
                    outputs[g, c0 + lane] = total
                    # load the next columns, the next head, or the next keys, meanwhile
                    next_g, c, row = g, c0 + LANES, first
                    if c >= width:
                        next_g, c = g + warps, 0
                    if next_g >= group:
                        next_g, row = warp, first + LANES
                    place = v_batch + (first_head + next_g) // sharing * v_strides[1]
                    load_rows(held, v, place, d, row, end, c + lane)
                cuda.syncwarp()  # all lanes have read U'
        for g in range(warp, group, warps):
            for c in range(lane, d, LANES):
                parts[batch, cuda.blockIdx.x, first_head + g, c] = outputs[g, c]

    return multi_token_values_kernel


# The merge of the splits ------------------------------------------------------------------------------------


@cuda.jit
def multi_token_merge_kernel(parts, norm, gate, bias, o):
    """Add up parts (B, splits, H, d), apply norm and gate as `reference.gated_norm` does, and store o (B, H,
    1, d).

    norm, gate: (d,); empty for none.
    bias: (1,); empty for none.
    """
    sums = cuda.shared.array(MERGE_THREADS, float32)
    row = cuda.shared.array(MAX_HEAD_DIM, float32)
    held = cuda.local.array(AHEAD, float32)
    head, batch, thread = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
    splits, d = parts.shape[1], parts.shape[3]
    lanes, c, lane = MERGE_THREADS // d, thread % d, thread // d
    # 1. each thread adds one column of every lanes-th split
    total = float32(0)
    if lane < lanes:
        for first in range(lane, splits, AHEAD * lanes):
            for x in range(AHEAD):  # independent loads
                split = first + x * lanes
                held[x] = parts[batch, split, head, c] if split < splits else float32(0)
            for x in range(AHEAD):
                total += held[x]
    sums[thread] = total
    cuda.syncthreads()  # every thread's sum is stored
    if thread < d:
        for other in range(1, lanes):
            total += sums[other * d + c]
        row[c] = total
    cuda.syncthreads()  # O is stored
    # 2. norm and gate, by the first warp
    if thread < LANES:
        factor = float32(1)
        if norm.size > 0:
            squares = float32(0)
            for c in range(thread, d, LANES):
                squares += row[c] * row[c]
            factor = float32(1) / math.sqrt(sum_of_warp(squares) / float32(d) + EPSILON_32)
            for c in range(thread, d, LANES):
                row[c] = row[c] * factor * norm[c]
        factor = float32(1)
        if gate.size > 0:
            product = float32(0)
            for c in range(thread, d, LANES):
                product += row[c] * gate[c]
            factor = float32(1) / (float32(1) + math.exp(-(sum_of_warp(product) + bias[0])))
        for c in range(thread, d, LANES):
            o[batch, head, 0, c] = row[c] * factor


# Host functions ---------------------------------------------------------------------------------------------


def decode(q, k, v, layer, norm=None, gate=None, splits=None, run=None):
    """Return the layer's row of the last token, (B, H, 1, d), float32.

    q: (B, H, R, d), the window.
    k, v: (B, H_kv, N_k, d), like q; they may be views, and are not copied.
    layer: `bands.Layer`.
    norm, gate: float32.
    splits: the largest number of blocks among which the sum over a head's keys is divided; a block has whole
        groups of LANES keys.
    """
    (batch, heads, _, d), (_, kv_heads, keys, _) = q.shape, k.shape
    taps, head_map, after_taps, after_head_map = (
        q.new_ones((heads, 1, 1), dtype=torch.float32) if part is None else part for part in layer[:4]
    )
    (_, c_q, c_k), after, sharing = taps.shape, after_taps.shape[1], heads // kv_heads
    t = output((batch, heads, after, keys), like=q)
    # 1. T
    length = window_length(batch * heads, keys, c_k, multiprocessors(k.device))
    grid = (-(-keys // (WINDOW_WARPS * length)), heads, batch)
    scale, flat_k = float32(layer.scale), flat(k)
    arguments = q, *flat_k, sharing, taps, scale, length, t
    launch(window_kernel(c_q, after), grid, WINDOW_WARPS * LANES, *arguments, run=run)
    # 2. T', and the statistics of its rows
    (groups, group, _), length = head_map.shape, -(-keys // (PARTS * MIX_THREADS)) * MIX_THREADS
    ends = output((batch, 2, -(-keys // length), heads, after), like=q)
    grid = (ends.shape[2] * after, groups, batch)
    launch(mix_rows_kernel(class_of(group)), grid, MIX_THREADS, t, head_map, length, ends, run=run)
    # 3. parts of O
    groups, group, _ = after_head_map.shape
    splits, length = value_splits(batch * groups, group, keys, splits, multiprocessors(k.device))
    parts = output((batch, splits, heads, d), like=q)
    arguments = t, ends, after_taps, after_head_map, *flat(v), sharing, length, parts
    grid = (splits, groups, batch)
    most = class_of(group)
    launch(values_kernel(most, after), grid, min(VALUE_WARPS, most) * LANES, *arguments, run=run)
    # 4. O
    o, nothing = output((batch, heads, 1, d), like=q), t.new_empty(0)
    norm = nothing if norm is None else norm.detach().contiguous()
    gate, bias = (nothing, nothing) if gate is None else (x.detach().reshape(-1) for x in gate)
    launch(multi_token_merge_kernel, (heads, batch), MERGE_THREADS, parts, norm, gate, bias, o, run=run)
    return o


def class_of(group):
    """Return the next power of two, so that few kernels serve all sizes."""
    return 1 << (group - 1).bit_length()


def window_length(sequences, keys, c_k, multiprocessors):
    """Return the keys of a warp of the window kernel: as many as its pieces hold without the halo.

    The number of pieces is the smallest that lets all warps run at once.
    """
    halo, warps = c_k - 1, multiprocessors * WINDOW_BLOCKS * WINDOW_WARPS
    return -(-(-(-sequences * keys // warps) + halo) // KEYS) * KEYS - halo


def value_splits(sequences, group, keys, splits, multiprocessors):
    """Return (splits, keys of each), in whole groups of LANES keys.

    splits: the largest number of splits; None for as many as let all blocks run at once.
    """
    blocks = multiprocessors * (RESIDENT_WARPS // min(VALUE_WARPS, class_of(group)))
    each = sequences * keys / blocks if splits is None else keys / splits
    length = math.ceil(each / LANES) * LANES
    return -(-keys // length), length
