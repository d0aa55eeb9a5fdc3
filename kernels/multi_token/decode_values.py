"""Decoding with the multi-token layer: the sums over V, and the merge of the splits.

These are the last two of the four kernels described in `decode.py`, which also states the formulas.
"""

import functools
import math

from numba import cuda
from numpy import float32

from kernels.common.arguments import MAX_HEAD_DIM
from kernels.common.splits import ALL_LANES, LANE, LANES, PLACE, sum_of_warp
from kernels.common.tiles import MINUS_INFINITY, reciprocal, weight
from kernels.multi_token.decode_scores import PARTS
from kernels.reference import EPSILON
from kernels.tensor_cores.early_launch import wait_for_previous_kernel
from kernels.tensor_cores.tiles import rounder, widener

SPAN = 48  # columns of P for LANES keys and their halo
VALUE_WARPS, RESIDENT_WARPS = 8, 16  # maximum warps per block; resident warps per multiprocessor
MERGE_THREADS = 512
AHEAD = 16  # loads that a thread of the merge kernel issues before it waits
TEAM_BITS = 3
TEAM = 1 << TEAM_BITS  # threads that share a row of statistics
SHARE = PARTS // TEAM  # parts of a row per thread
EPSILON_32 = float32(EPSILON)


# The second convolution, the second map, and the sum over V -------------------------------------------------


@functools.cache
def statistics_loader(warps, after):
    """Create load_statistics(statistics, ends, first_head, group), which merges the parts of each row, ends
    (2, H, after, PARTS), into statistics[h, r] = (m, 1 / l)."""

    @cuda.jit(device=True)
    def load_statistics(statistics, ends, first_head, group):
        ms, ls = cuda.local.array(SHARE, float32), cuda.local.array(SHARE, float32)
        own = cuda.threadIdx.x % TEAM
        for first in range(0, group * after, warps * LANES // TEAM):
            row = first + cuda.threadIdx.x // TEAM
            h, r = min(row, group * after - 1) // after, row % after
            row_m, row_l = ends[0, first_head + h, r], ends[1, first_head + h, r]
            for x in range(SHARE):  # independent loads, all in flight at once
                ms[x], ls[x] = row_m[own + x * TEAM], row_l[own + x * TEAM]
            m, l = ms[0], float32(0)
            for x in range(1, SHARE):
                m = max(m, ms[x])
            for bit in range(TEAM_BITS):
                m = max(m, cuda.shfl_xor_sync(ALL_LANES, m, 1 << bit))
            for x in range(SHARE):
                l += weight(ms[x], m) * ls[x]
            for bit in range(TEAM_BITS):
                l += cuda.shfl_xor_sync(ALL_LANES, l, 1 << bit)
            if own == 0 and row < group * after:
                statistics[h, r, 0], statistics[h, r, 1] = m, reciprocal(l)

    return load_statistics


@functools.cache
def values_kernel(most, after):
    """Return the kernel for maps within groups of at most `most` heads and `after` rows of taps."""
    warps = min(VALUE_WARPS, most)
    load_statistics = statistics_loader(warps, after)

    @cuda.jit(device=True)
    def load_rows(held, v, place, d, first, end, c):
        """Load element c of 32 rows: held[x] comes from row first + x, and is 0 for row `end` and later
        rows."""
        base = place + first * d + min(c, d - 1)
        if first + LANES <= end:
            for x in range(LANES):
                held[x] = float32(v[(base + x * d) & PLACE])
        else:
            for x in range(LANES):
                held[x] = float32(v[(base + x * d) & PLACE]) if first + x < end else float32(0)

    @cuda.jit(device=True)
    def load_probabilities(p, values, t, statistics, first, c_k, lane):
        """Compute p[r, x] = P of row r and key first - P'_k + x, for LANES keys and their halo.

        values: scratch. All loads are issued before the first use.
        """
        keys = t.shape[1]
        for x in range(lane, LANES + c_k - 1, LANES):
            j = first - (c_k - 1) // 2 + x
            for r in range(after):
                values[r] = t[r, j] if 0 <= j <= keys - after + r else MINUS_INFINITY
            for r in range(after):
                p[r, x] = weight(values[r], statistics[r, 0]) * statistics[r, 1]

    @cuda.jit(max_registers=128)  # so that RESIDENT_WARPS warps are resident on a multiprocessor
    def multi_token_values_kernel(t, ends, w, head_map, v, v_strides, sharing, length, parts):
        """Store Σ_j U'[j] v_j over each split's keys in parts (B, splits, H, d).

        t, ends: the results of mix_rows.
        w: (H, after, c_k).
        head_map: (H / group, group, group).
        v: one-dimensional, like k in the window kernel.
        length: keys per split, a multiple of LANES.
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
        # 1. load m and 1 / l of each row, and clear the sums
        load_statistics(statistics, ends[batch], first_head, group)
        for g in range(warp, group, warps):
            for c in range(lane, width, LANES):
                outputs[g, c] = float32(0)
        for first in range(start, end, LANES):
            cuda.syncthreads()  # the statistics are stored, and all warps have finished with the previous U
            # 2. compute U, one head per warp and one key per lane
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
            # 3. compute U' of each head, and multiply it by the rows of V
            for g in range(warp, group, warps):
                total = float32(0)
                for h in range(group):
                    total += head_map[cuda.blockIdx.y, g, h] * us[h, lane]
                p[0, lane] = total
                cuda.syncwarp()  # all lanes have stored U'
                for c0 in range(0, width, LANES):
                    total = outputs[g, c0 + lane]
                    for x in range(LANES):
                        total += p[0, x] * held[x]
                    outputs[g, c0 + lane] = total
                    # meanwhile, load the next columns, the next head, or the next keys
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


@functools.cache
def merge_kernel(kind, parameter_kind):
    """Return the kernel that stores its results as `rounder` converts them to type `kind`.

    parameter_kind: the type of norm, gate and bias; 16-bit values are passed as int16.
    """
    rounded, widened = rounder(kind), widener(parameter_kind)

    @cuda.jit
    def multi_token_merge_kernel(parts, norm, gate, bias, o):
        """Sum parts (B, splits, H, d), apply norm and gate like `reference.gated_norm`, and store o (B, H,
        1, d).

        norm, gate: (d,); empty to omit the operation.
        bias: (1,); empty like `gate`.
        """
        sums = cuda.shared.array(MERGE_THREADS, float32)
        row = cuda.shared.array(MAX_HEAD_DIM, float32)
        held = cuda.local.array(AHEAD, float32)
        head, batch, thread = cuda.blockIdx.x, cuda.blockIdx.y, cuda.threadIdx.x
        splits, d = parts.shape[1], parts.shape[3]
        lanes, c, lane = MERGE_THREADS // d, thread % d, thread // d
        # 1. each thread sums one column over the splits lane, lane + lanes, lane + 2 · lanes, ...
        wait_for_previous_kernel()
        total = float32(0)
        if lane < lanes:
            for first in range(lane, splits, AHEAD * lanes):
                for x in range(AHEAD):  # independent loads, all in flight at once
                    split = first + x * lanes
                    held[x] = parts[batch, split, head, c] if split < splits else float32(0)
                for x in range(AHEAD):
                    total += held[x]
        sums[thread] = total
        cuda.syncthreads()  # all threads have stored their sums
        if thread < d:
            for other in range(1, lanes):
                total += sums[other * d + c]
            row[c] = total
        cuda.syncthreads()  # O is stored
        # 2. the first warp applies norm and gate
        if thread < LANES:
            factor = float32(1)
            if norm.size > 0:
                squares = float32(0)
                for c in range(thread, d, LANES):
                    squares += row[c] * row[c]
                factor = float32(1) / math.sqrt(sum_of_warp(squares) / float32(d) + EPSILON_32)
                for c in range(thread, d, LANES):
                    row[c] = row[c] * factor * widened(norm[c])
            factor = float32(1)
            if gate.size > 0:
                product = float32(0)
                for c in range(thread, d, LANES):
                    product += row[c] * widened(gate[c])
                factor = float32(1) / (float32(1) + math.exp(-(sum_of_warp(product) + widened(bias[0]))))
            for c in range(thread, d, LANES):
                o[batch, head, 0, c] = rounded(row[c] * factor)

    return multi_token_merge_kernel
