"""Convolutional attention for one new token on tensor cores: bfloat16 or float16 data, float32 accumulators.

The formulas and the split of the keys are the same as in `conv_decode`. Each warp owns a range of keys, and
processes 16 or 32 of them at a time, independently of the other warps of its block:

    S0   The product of K and the transposed query window, whose rows are padded to 8 or 16. S0 is masked and
         stored in shared memory in 16 bits, after the columns carried over from the previous keys
    T    One `mma` per row a of the window. Row m of its left operand is the 16 columns of S0[a] that start at
         8m; these rows overlap, and start 16 bytes apart. Its right operand is a band of taps, as in
         `tensor_forward`. So row m of the product is T of eight keys
    O    The product of the transposed V and the weights. Column m of the right operand contains the weights
         of the keys 8m to 8m + 7, and zeros elsewhere, so each lane already holds the elements that it must
         supply. The columns are summed at the end

`cp.async` copies the next keys and values while the current ones are used. Blocks merge the results of their
warps, and a second kernel merges the blocks.
Sources: as in `conv_decode`.

    grid    (splits, H, B)
    block   WARPS · 32 threads
    shared  per warp, 16 KiB, and about 2 KiB
    cost    the bytes of K and V, read once except for the halos
"""

import functools

from numba import cuda
from numpy import float32, int16, uint32

from kernels.common.splits import sum_of_warp
from kernels.common.tiles import MINUS_INFINITY, reciprocal, weight
from kernels.tensor_cores.early_launch import start_next_kernel, wait_for_previous_kernel
from kernels.tensor_cores.instructions import (
    cp_async_commit,
    cp_async_wait_0,
    cp_async_wait_1,
    exp2_approx,
    ldmatrix_x2,
    ldmatrix_x4,
    ldmatrix_x4_trans,
)
from kernels.tensor_cores.launch import aligned, with_positive_scale
from kernels.tensor_cores.tiles import (
    ARITHMETIC,
    FULL,
    LARGEST,
    LN2,
    LOG2E,
    PADDING,
    SLACK,
    clamped,
    rounder,
    tap_loader,
    window_of,
)
from kernels.tensor_cores.windows import swizzled, warp_copier, window_loader, window_product

WARPS = 4  # warps per block of one head
BLOCKS = 3  # resident blocks per multiprocessor
MERGE_THREADS, AHEAD = 256, 8  # threads of the merge kernel; loads in flight per thread
CARRIED = 16  # columns carried over from the previous keys
WAITS = {2: cp_async_wait_0, 3: cp_async_wait_1}


@functools.cache
def decode_tensor_kernel(width, kind, c_q, c_k, bits=False, team=1):
    """Return the kernel for rows of at most `width` elements and (c_q, c_k) taps.

    team: the number of heads per block, 1, 2 or 4, which share a head of K and V. Without sharing, a block
        has WARPS warps with ranges of keys of their own; otherwise a warp per head, with the same keys.
    """
    keys, stages, warps, ranges = layout_of(width, team)
    members = warps if team == 1 else 1  # warps per head
    mma, mma_k8, pack = ARITHMETIC[kind]
    copied = keys // team  # rows that a warp copies
    copy, load_window = warp_copier(width, copied), window_loader(width, c_q)
    multiply, load_taps = window_product(kind, width, c_q), tap_loader(kind, c_q, c_k, bits)
    wait = WAITS[stages]
    scaled = kind == "float16"
    left, columns = (c_k - 1) // 2, window_of(c_k)
    lag = 8 * (columns - 1)
    shift, ring = left - lag, stages * keys
    halves, steps, tiles = -(-c_q // 8), keys // 16, width // 16
    rows = 8 * halves  # rows of the window, padded
    blocks = keys // 8
    q_numbers, s_numbers, o_numbers = halves * width // 8, halves * 4, tiles * 4
    tap_numbers, scores_pitch = c_q * columns, CARRIED + keys + PADDING

    @cuda.jit(device=True)
    def convolve(scores, taps):
        """Return T of the keys 8m + 2 (lane % 4) and the next one, for m = lane // 4 < keys // 8."""
        lane, zero = cuda.threadIdx.x & 31, uint32(0)
        t0, t1, blank = float32(0), float32(0), float32(0)
        at = CARRIED - lag + (lane & 7) % blocks * 8
        for a in range(c_q):
            if columns == 3:
                a0, a2, b0, _ = ldmatrix_x4(scores, (a, at + min(lane >> 3, 2) * 8))
                t0, t1, _, _ = mma_k8(b0, zero, taps[a * columns + 2], t0, t1, blank, blank)
            else:
                a0, a2 = ldmatrix_x2(scores, (a, at + (lane >> 3 & 1) * 8))
            t0, t1, _, _ = mma(
                a0, zero, a2, zero, taps[a * columns], taps[a * columns + 1], t0, t1, blank, blank
            )
        return t0, t1

    @cuda.jit(device=True)
    def add_values(o, v_tile, base, both):
        """Multiply the values from row `base` on by their weights, and add the products to o. This lane holds
        two of the weights, packed in `both`."""
        lane = cuda.threadIdx.x & 31
        for step in range(steps):
            b0 = both if lane >> 2 == 2 * step else uint32(0)
            b1 = both if lane >> 2 == 2 * step + 1 else uint32(0)
            row = base + step * 16 + (lane & 7) + (lane >> 4) * 8
            for tile in range(tiles):
                x = tile * 4
                a0, a1, a2, a3 = ldmatrix_x4_trans(v_tile, (row, swizzled((lane >> 3 & 1) + tile * 2, lane)))
                o[x], o[x + 1], o[x + 2], o[x + 3] = mma(
                    a0, a1, a2, a3, b0, b1, o[x], o[x + 1], o[x + 2], o[x + 3]
                )

    @cuda.jit(device=True)
    def synchronise():
        """Synchronise the warps that share a tile."""
        if team == 1:
            cuda.syncwarp()
        else:
            cuda.syncthreads()

    @cuda.jit
    def conv_decode_tensor_kernel(q, k, v, sharing, w, scale, length, parts):
        """Store o, m and l of each block in parts (B, H, splits, d + 2).

        q: (B, H, R, d), the window, R = min(c_q, N_k) rows, 16-bit values as int16.
        k, v: (B, H / sharing, N_k, d), 16-bit values as int16.
        w: (H, c_q, c_k), float32, or 16-bit values as int16 if `bits`.
        length: keys per range.
        """
        k_tiles = cuda.shared.array((ranges, ring, width), int16, alignment=16)
        v_tiles = cuda.shared.array((ranges, ring, width), int16, alignment=16)
        all_scores = cuda.shared.array((warps, rows, scores_pitch), int16, alignment=16)
        sums = cuda.shared.array((warps, width), float32)
        ends = cuda.shared.array((warps, 2), float32)
        window, taps = cuda.local.array(q_numbers, uint32), cuda.local.array(tap_numbers, uint32)
        s, os = cuda.local.array(s_numbers, float32), cuda.local.array(o_numbers, float32)
        lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
        in_team, own_range = (0, warp) if team == 1 else (warp, 0)
        batch, head = cuda.blockIdx.z, cuda.blockIdx.y * team + in_team
        group, pair = lane >> 2, (lane & 3) * 2
        k_tile, v_tile, scores = k_tiles[own_range], v_tiles[own_range], all_scores[warp]
        n, d, kv_head = k.shape[2], parts.shape[3] - 2, head // sharing
        start_next_kernel()
        # 1. copy the first keys and values; load the window and the taps
        start, offset = (cuda.blockIdx.x * ranges + own_range) * length, in_team * copied
        end = min(n, start + length)
        begin = start - left
        stop = end - shift if start < end else begin
        for stage in range(stages - 1):
            first = begin + stage * keys
            if first < stop:
                copy(k_tile, stage * keys + offset, k, batch, kv_head, first + offset)
                copy(v_tile, stage * keys + offset, v, batch, kv_head, first + shift + offset)
            cp_async_commit()
        load_window(window, q, batch, head)
        load_taps(taps, w, head)
        factor = LOG2E if scaled else scale * LOG2E
        for x in range(o_numbers):
            os[x] = float32(0)
        for x in range(lane, rows * CARRIED, 32):
            scores[x // CARRIED, x % CARRIED] = 0
        m, l, place = MINUS_INFINITY, float32(0), 0
        for first in range(begin, stop, keys):
            wait()
            synchronise()  # the tile has arrived, and all lanes have finished with the previous one
            following = first + (stages - 1) * keys
            if following < stop:
                free = place - keys if place >= keys else ring - keys
                copy(k_tile, free + offset, k, batch, kv_head, following + offset)
                copy(v_tile, free + offset, v, batch, kv_head, following + shift + offset)
            cp_async_commit()
            # 2. compute S0, and store it after the columns carried over
            for step in range(steps):
                multiply(s, k_tile, place + step * 16, window)
                for x in range(0, s_numbers, 2):
                    a, column = (x >> 2) * 8 + pair, step * 16 + (x >> 1 & 1) * 8 + group
                    last = n - c_q + a - first - column  # offset of the last key that query a sees
                    low = s[x] if last >= 0 else float32(0)
                    high = s[x + 1] if last >= -1 else float32(0)
                    if scaled:
                        low, high = clamped(low * scale), clamped(high * scale)
                    both = pack(low, high)
                    scores[a, CARRIED + column] = int16(both & uint32(0xFFFF))
                    scores[a + 1, CARRIED + column] = int16(both >> uint32(16))
            cuda.syncwarp()  # S0 is stored
            # 3. compute T and its softmax; m is equal in all lanes, and l is summed at the end
            t0, t1 = convolve(scores, taps)
            j = first + shift + group * 8 + pair
            if group >= blocks or j < start or j >= end:
                t0 = MINUS_INFINITY
            if group >= blocks or j + 1 < start or j + 1 >= end:
                t1 = MINUS_INFINITY
            largest = max(t0, t1)
            if cuda.any_sync(FULL, largest > m + min(SLACK / factor, LARGEST)):
                for bit in range(5):
                    largest = max(largest, cuda.shfl_xor_sync(FULL, largest, 1 << bit))
                largest = max(m, largest)
                shrink = float32(0)
                if m != MINUS_INFINITY:
                    shrink = exp2_approx((m - largest) * factor)
                m, l = largest, l * shrink
                for x in range(o_numbers):
                    os[x] *= shrink
            base = float32(0) if m == MINUS_INFINITY else m
            t0, t1 = exp2_approx((t0 - base) * factor), exp2_approx((t1 - base) * factor)
            l += t0 + t1
            # 4. accumulate O; then move the last columns of S0 to the front
            add_values(os, v_tile, place, pack(t0, t1))
            cuda.syncwarp()  # all lanes have read S0
            for x in range(lane, rows * CARRIED, 32):
                scores[x // CARRIED, x % CARRIED] = scores[x // CARRIED, keys + x % CARRIED]
            place = place + keys if place + keys < ring else 0
        # 5. sum the columns by shuffles, then merge the states of a head's warps
        for x in range(0, o_numbers, 2):
            total = os[x] + os[x + 1]
            for bit in range(2):
                total += cuda.shfl_xor_sync(FULL, total, 1 << bit)
            if lane & 3 == 0:
                sums[warp, (x >> 1) * 8 + group] = total
        l = sum_of_warp(l)
        if lane == 0:
            ends[warp, 0], ends[warp, 1] = m * factor * LN2, l
        cuda.syncthreads()  # all warps have stored their states
        first_warp, thread = (0, cuda.threadIdx.x) if team == 1 else (warp, lane)
        m, l = MINUS_INFINITY, float32(0)
        for other in range(first_warp, first_warp + members):
            m = max(m, ends[other, 0])
        for other in range(first_warp, first_warp + members):
            l += weight(ends[other, 0], m) * ends[other, 1]
        part = parts[batch, head, cuda.blockIdx.x]
        for c in range(thread, d, members * 32):
            total = float32(0)
            for other in range(first_warp, first_warp + members):
                total += weight(ends[other, 0], m) * sums[other, c]
            part[c] = total
        if thread == 0:
            part[d], part[d + 1] = m, l

    return conv_decode_tensor_kernel


@functools.cache
def merge_kernel(width, kind):
    """Return the kernel that merges the splits into 16-bit rows of at most `width` elements."""
    rounded, teams = rounder(kind), MERGE_THREADS // width

    @cuda.jit
    def conv_decode_merge_kernel(parts, o):
        """Merge parts (B, H, splits, d + 2) into o (B, H, 1, d), 16-bit values as int16.

        Each team of `width` threads merges every teams-th split, AHEAD of them at a time, one column per
        thread.
        """
        totals, ends = cuda.shared.array((teams, width), float32), cuda.shared.array((teams, 2), float32)
        values, ms = cuda.local.array(AHEAD, float32), cuda.local.array(AHEAD, float32)
        ls = cuda.local.array(AHEAD, float32)
        part, o_row = parts[cuda.blockIdx.y, cuda.blockIdx.x], o[cuda.blockIdx.y, cuda.blockIdx.x, 0]
        splits, d, team, c = (
            part.shape[0],
            o_row.shape[0],
            cuda.threadIdx.x // width,
            cuda.threadIdx.x % width,
        )
        m, l, total = MINUS_INFINITY, float32(0), float32(0)
        wait_for_previous_kernel()
        for first in range(team, splits, teams * AHEAD):
            for x in range(AHEAD):  # independent loads, all in flight at once
                split = min(first + x * teams, splits - 1)
                values[x], ms[x], ls[x] = part[split, min(c, d - 1)], part[split, d], part[split, d + 1]
            largest = m
            for x in range(AHEAD):
                largest = max(largest, ms[x])
            shrink = weight(m, largest)
            m, l, total = largest, shrink * l, shrink * total
            for x in range(AHEAD):
                share = weight(ms[x], m) if first + x * teams < splits else float32(0)
                l += share * ls[x]
                total += share * values[x]
        totals[team, c] = total
        if c == 0:
            ends[team, 0], ends[team, 1] = m, l
        cuda.syncthreads()  # all teams have stored their states
        if team == 0 and c < d:
            m, l, total = MINUS_INFINITY, float32(0), float32(0)
            for other in range(teams):
                m = max(m, ends[other, 0])
            for other in range(teams):
                share = weight(ends[other, 0], m)
                l += share * ends[other, 1]
                total += share * totals[other, c]
            o_row[c] = rounded(total * reciprocal(l))

    return conv_decode_merge_kernel


def team_of(sharing):
    """Return the number of heads per block, for `sharing` query heads per head of K and V."""
    return 4 if sharing % 4 == 0 else 2 if sharing % 2 == 0 else 1


def layout_of(width, team):
    """Return (keys per iteration, buffers, warps, ranges of keys) of a block.

    At least three blocks are resident on a multiprocessor.
    """
    return (2048 // width, 2, WARPS, WARPS) if team == 1 else (32, 3, team, 1)


def fewest_keys(keys):
    """Return the minimum number of keys per block: about a sixteenth of all keys, because the merge takes
    longer for more blocks."""
    return max(64, min(keys // 16, 512))


def length_of(keys, c_k, each):
    """Return the number of keys per range, at least `keys`. A range and its halo are a multiple of `each`,
    the number of keys per iteration."""
    lag = 8 * (window_of(c_k) - 1)
    return -(-(keys + lag) // each) * each - lag


def operands(q, k, v, scale):
    """Return q, k and v as the kernel expects them, and a positive scale.

    K and V are copied only if their rows are not aligned to 16 bytes.
    """
    q, scale = with_positive_scale(q, scale)
    return *map(aligned, (q, k, v)), scale
