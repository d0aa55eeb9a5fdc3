"""Decoding with the multi-token layer in 16 bits: the scores on tensor cores, and the sums over K and V.

These kernels replace the first and the third of the four kernels of `decode.py`, which states the formulas:

    kernel    computes            grid                        block      shared, 6 × 11 taps twice, d = 64
    window    T                   (splits of keys, H, B)      4 warps    41.8 KiB
    weights   U'                  (tiles of keys, H / s, B)   8 warps    20.6 KiB for s = 16
    values    a part of O         (splits, H, B)              8 warps    3 KiB

The scores are float32 accumulators of 16-bit products, and everything after them is float32, as for float32
inputs. A warp of `window` multiplies KEYS keys at a time by the query window, while `cp.async` copies the
next ones, and convolves the scores in shared memory. A warp of `values` reads a head's rows of V in 8-byte
loads, and loads the next rows while it uses the current ones.
"""

import functools

from numba import cuda
from numpy import float32, int16, int64, uint32

from kernels.common.splits import ALL_LANES, LANE, LANES, PLACE
from kernels.common.tiles import weight
from kernels.multi_token.decode_values import statistics_loader
from kernels.tensor_cores.early_launch import start_next_kernel, wait_for_previous_kernel
from kernels.tensor_cores.instructions import (
    cp_async_commit,
    cp_async_wait_0,
    high_bf16,
    high_f16,
    low_bf16,
    low_f16,
)
from kernels.tensor_cores.tiles import widener
from kernels.tensor_cores.windows import warp_copier, window_loader, window_product

WINDOW_WARPS, WINDOW_BLOCKS, KEYS = 4, 4, 32  # warps per block; resident blocks; keys per iteration
RING = 2 * KEYS  # scores kept per row of the window; a power of two, so that & wraps the index
PITCH = RING + 4  # with this padding, the accumulators of a warp lie in 32 different banks
PAIR = 2  # columns of taps per iteration: few enough for the compiler to unroll the loop
WEIGHT_WARPS, TILE = 16, 64  # maximum warps per block; keys per block
VALUE_WARPS, VALUE_BLOCKS, LOADS = 8, 2, 16  # warps per block; resident blocks; loads in flight per lane
WIDEN = {"bfloat16": (low_bf16, high_bf16), "float16": (low_f16, high_f16)}


# Scores and the first convolution ---------------------------------------------------------------------------


@cuda.jit(device=True)
def row_of(x, lane):
    """Return the row of the window to which a lane's accumulator x belongs."""
    return (x >> 2) * 8 + (lane & 3) * 2 + (x & 1)


@cuda.jit(device=True)
def key_of(x, lane):
    """Return the index, from 0 to 15, of the key to which a lane's accumulator x belongs."""
    return (x >> 1 & 1) * 8 + (lane >> 2)


@functools.cache
def ring_convolver(c_q, c_k, after):
    """Create convolve(totals, ring, taps, place), which computes totals[r] = Σ_ab taps[b, a] · ring[r + a,
    place + b]; columns wrap around."""
    rows = c_q + after - 1

    @cuda.jit(device=True)
    def convolve(totals, ring, taps, place):
        column = cuda.local.array(rows, float32)
        for r in range(after):
            totals[r] = float32(0)
        for b0 in range(0, c_k, PAIR):
            for b in range(PAIR):
                x = (place + b0 + b) & (RING - 1)
                for a in range(rows):
                    column[a] = ring[a, x]
                for a in range(c_q):
                    tap = taps[(b0 + b) & LANE, a]
                    for r in range(after):
                        totals[r] += tap * column[r + a]

    return convolve


@functools.cache
def window_kernel(width, kind, c_q, c_k, after, taps_kind):
    """Return the kernel for rows of at most `width` elements, (c_q, c_k) taps and `after` rows of T.

    taps_kind: the type of the taps; 16-bit values are passed as int16.
    """
    rows = c_q + after - 1
    halves, tap_slots, two_tiles = -(-rows // 8), -(-c_q // 4) * 4, 2 * KEYS
    window_numbers, numbers, padded = halves * width // 8, halves * 4, halves * 8
    copy, load_window = warp_copier(width, KEYS), window_loader(width, rows)
    multiply, convolve = window_product(kind, width, rows), ring_convolver(c_q, c_k, after)
    left, right, tap_columns = (c_k - 1) // 2, c_k // 2, -(-c_k // PAIR) * PAIR
    widened = widener(taps_kind)

    @cuda.jit(max_registers=128)
    def multi_token_window_tensor_kernel(q, k, sharing, w, scale, length, t):
        """Store T of the last queries in t (B, H, after, N_k).

        q: (B, H, R, d), the window, R = min(rows, N_k), 16-bit values as int16.
        k: (B, H / sharing, N_k, d), 16-bit values as int16.
        w: (H, c_q, c_k).
        length: keys per warp.
        """
        k_tiles = cuda.shared.array((WINDOW_WARPS, two_tiles, width), int16, alignment=16)
        rings = cuda.shared.array((WINDOW_WARPS, padded, PITCH), float32)
        taps = cuda.shared.array((tap_columns, tap_slots), float32, alignment=16)
        window, s = cuda.local.array(window_numbers, uint32), cuda.local.array(numbers, float32)
        totals = cuda.local.array(after, float32)
        batch, head, thread = cuda.blockIdx.z, cuda.blockIdx.y, cuda.threadIdx.x
        lane, warp = thread & LANE, thread // LANES
        keys, kv_head = t.shape[3], head // sharing
        k_tile, ring, own = k_tiles[warp], rings[warp], t[batch, head]
        start_next_kernel()
        # 1. this warp owns the keys [start, end), and needs the scores of [low, high)
        start = (cuda.blockIdx.x * WINDOW_WARPS + warp) * length
        end = min(keys, start + length)
        low = start - left
        high = end + right if start < end else low
        if low < high:
            copy(k_tile, 0, k, batch, kv_head, low)
        cp_async_commit()
        # 2. load the window and the taps, and clear the scores of the previous keys
        load_window(window, q, batch, head)
        for element in range(thread, tap_columns * tap_slots, WINDOW_WARPS * LANES):
            b, a = element // tap_slots, element % tap_slots
            taps[b, a] = widened(w[head, a, b]) if a < c_q and b < c_k else float32(0)
        for a in range(rows):
            ring[a, KEYS + lane] = float32(0)
        cuda.syncthreads()  # the taps are loaded
        place = 0  # the half of the ring buffer, and of the double buffer, of the current keys
        for first in range(low, high, KEYS):
            cp_async_wait_0()
            cuda.syncwarp()  # the keys have arrived, and all lanes have finished with the previous scores
            if first + KEYS < high:
                copy(k_tile, KEYS - place, k, batch, kv_head, first + KEYS)
            cp_async_commit()
            # 3. compute the scores of 16 keys at a time, and mask them if a query does not see all of them
            masked = first + KEYS > keys - rows
            for x0 in range(0, KEYS, 16):
                multiply(s, k_tile, place + x0, window)
                if masked:
                    for x in range(numbers):
                        a, key = row_of(x, lane), x0 + key_of(x, lane)
                        if first + key > keys - rows + a:
                            s[x] = float32(0)
                for x in range(numbers):
                    ring[row_of(x, lane), (place + x0 + key_of(x, lane)) & (RING - 1)] = scale * s[x]
            cuda.syncwarp()  # the scores are stored
            # 4. convolve: the score of key j completes T of key j - right
            convolve(totals, ring, taps, place + lane + RING - (c_k - 1))
            j = first + lane - right
            if start <= j < end:
                for r in range(after):
                    own[r, j & PLACE] = totals[r]
            place = KEYS - place

    return multi_token_window_tensor_kernel


# The second convolution and the second map ------------------------------------------------------------------


def weight_warps(most, after):
    """Return the number of warps per block of `weights`: one per head, if shared memory has room for them."""
    return min(WEIGHT_WARPS if after <= 8 else WEIGHT_WARPS // 2, most)


@functools.cache
def weights_kernel(most, c_k, after, kind):
    """Return the kernel for maps within groups of at most `most` heads and (after, c_k) taps.

    kind: the type of the taps and of the map; 16-bit values are passed as int16.
    """
    warps = weight_warps(most, after)
    tap_columns, slots = -(-c_k // PAIR) * PAIR, -(-after // 4) * 4
    threads, span = warps * LANES, TILE + tap_columns - 1
    lanes, load_statistics = min(threads, TILE), statistics_loader(warps, after)
    widened = widener(kind)
    left, tap_turns, turns = (c_k - 1) // 2, -(-tap_columns * slots // LANES), -(-span // LANES)

    @cuda.jit(device=True)
    def load_taps(own_taps, w_rows):
        lane = cuda.threadIdx.x & LANE
        for turn in range(tap_turns):
            b, r = (turn * LANES + lane) // slots, (turn * LANES + lane) % slots
            if b < tap_columns:
                tap = widened(w_rows[min(r, after - 1), min(b, c_k - 1)])
                own_taps[b, r] = tap if b < c_k else float32(0)

    @cuda.jit(max_registers=64)
    def multi_token_weights_kernel(t, ends, w, head_map, weights):
        """Store U' in weights (B, H, N_k), the weights of the values.

        t, ends: the results of mix_rows.
        w: (H, after, c_k).
        head_map: (H / group, group, group).
        """
        ps = cuda.shared.array((warps, after, span), float32)
        taps = cuda.shared.array((warps, tap_columns, slots), float32, alignment=16)
        us = cuda.shared.array((most, TILE), float32)
        shares = cuda.shared.array((most, most), float32, alignment=16)
        statistics = cuda.shared.array((most, after, 2), float32)
        held = cuda.local.array(after, float32)
        batch, group, thread = cuda.blockIdx.z, head_map.shape[1], cuda.threadIdx.x
        first_head, first = cuda.blockIdx.y * group, cuda.blockIdx.x * TILE
        lane, warp, keys = thread & LANE, thread // LANES, t.shape[3]
        p, own_taps = ps[warp], taps[warp]
        # 1. load the map and the taps of the warp's first head; then m and 1 / l of each row
        load_taps(own_taps, w[first_head + min(warp, group - 1)])
        for element in range(thread, group * most, threads):
            g, h = element // most, element % most
            shares[g, h] = widened(head_map[cuda.blockIdx.y, g, h]) if h < group else float32(0)
        for element in range(thread, (most - group) * TILE, threads):
            us[group + element // TILE, element % TILE] = float32(0)
        wait_for_previous_kernel()
        start_next_kernel()
        load_statistics(statistics, ends[batch], first_head, group)
        cuda.syncthreads()  # the statistics are stored
        # 2. compute U, one head per warp and two keys per lane
        for h0 in range(warp, group, warps):
            h = h0 & (most - 1)
            rows = t[batch, first_head + h]
            if h0 != warp:
                load_taps(own_taps, w[first_head + h])
            for turn in range(turns):
                x = turn * LANES + lane
                j = first - left + x
                # clamp the index: with a branch, the loads would not all be issued before the first use
                key = min(max(j, 0), keys - 1) & PLACE
                for r in range(after):
                    held[r] = rows[r, key]
                for r in range(after):
                    value = weight(held[r], statistics[h, r, 0]) * statistics[h, r, 1]
                    if x < span:
                        p[r, x] = value if 0 <= j <= keys - after + r else float32(0)
            cuda.syncwarp()  # P and the taps are stored
            low, high = float32(0), float32(0)
            for b0 in range(0, c_k, PAIR):
                for b in range(PAIR):
                    at, x = (b0 + b) & LANE, ((b0 + lane) & (TILE - 1)) + b
                    for r in range(after):
                        low += own_taps[at, r] * p[r, x]
                        high += own_taps[at, r] * p[r, LANES + x]
            us[h, lane], us[h, LANES + lane] = low, high
            cuda.syncwarp()  # all lanes have read P
        cuda.syncthreads()  # U of all heads is stored
        # 3. compute U'
        for x in range(thread % lanes, TILE, lanes):
            for g in range(thread // lanes, group, threads // lanes):
                total = float32(0)
                for h in range(most):
                    total += shares[g, h] * us[h, x]
                if first + x < keys:
                    weights[batch, first_head + g, first + x] = total

    return multi_token_weights_kernel


# The sum over V ---------------------------------------------------------------------------------------------


def keys_per_load(d):
    """Return the number of rows of d elements, at most 128, that a warp reads with one load per lane."""
    return 2 if d <= 64 else 1


@functools.cache
def values_kernel(d, kind):
    """Return the kernel for rows of d elements, a multiple of 8."""
    (low, high), chunks, together = WIDEN[kind], d // 4, keys_per_load(d)
    lanes, step = LANES // together, together * LOADS

    @cuda.jit(device=True)
    def load(held, v, place, own_row, first, end):
        """Load a chunk of every `together`-th row from first + own_row on, and 0 for row `end` and later
        rows."""
        place += first * chunks
        if first + step <= end:
            for x in range(LOADS):
                held[x] = v[(place & PLACE) + x * together * chunks]
        else:
            for x in range(LOADS):
                inside = first + own_row + x * together < end
                held[x] = v[(place & PLACE) + x * together * chunks] if inside else int64(0)

    @cuda.jit(max_registers=128)
    def multi_token_values_tensor_kernel(weights, v, v_strides, sharing, length, parts):
        """Store Σ_j U'[j] v_j over each block's keys in parts (B, splits, H, d).

        weights: (B, H, N_k), U'.
        v: one-dimensional, four 16-bit values per int64; row j of head h of batch b starts at v[b ·
            v_strides[0] + h // sharing · v_strides[1] + j · d / 4].
        length: keys per warp, a multiple of `step`.
        """
        sums = cuda.shared.array((VALUE_WARPS, d), float32)
        shares = cuda.shared.array((VALUE_WARPS, LANES), float32)
        held, following = cuda.local.array(LOADS, int64), cuda.local.array(LOADS, int64)
        o = cuda.local.array(4, float32)
        batch, head, thread = cuda.blockIdx.z, cuda.blockIdx.y, cuda.threadIdx.x
        lane, warp, keys = thread & LANE, thread // LANES, weights.shape[2]
        # lanes beyond a row's chunks repeat the last chunk
        own_row, chunk = lane // lanes, min(lane % lanes, chunks - 1)
        place = batch * v_strides[0] + head // sharing * v_strides[1] + own_row * chunks + chunk
        start = (cuda.blockIdx.x * VALUE_WARPS + warp) * length
        end, own, share = min(keys, start + length), weights[batch, head], shares[warp]
        load(held, v, place, own_row, start, end)
        for x in range(4):
            o[x] = float32(0)
        wait_for_previous_kernel()
        start_next_kernel()
        for first in range(start, end, step):
            key = first + lane
            cuda.syncwarp()  # all lanes have read the previous weights
            share[lane] = own[key & PLACE] if key < end else float32(0)
            cuda.syncwarp()  # the weights are stored
            load(following, v, place, own_row, first + step, end)
            for x in range(LOADS):
                factor = share[own_row + x * together]
                first_pair, second_pair = uint32(held[x] & 0xFFFFFFFF), uint32(held[x] >> 32 & 0xFFFFFFFF)
                o[0] += factor * low(first_pair)
                o[1] += factor * high(first_pair)
                o[2] += factor * low(second_pair)
                o[3] += factor * high(second_pair)
                held[x] = following[x]
        for x in range(4):
            total = o[x]
            if together == 2:
                total += cuda.shfl_xor_sync(ALL_LANES, total, 16)
            if lane < chunks:
                sums[warp, chunk * 4 + x] = total
        cuda.syncthreads()  # all warps have stored their sums
        for c in range(thread, parts.shape[3], VALUE_WARPS * LANES):
            total = float32(0)
            for other in range(VALUE_WARPS):
                total += sums[other, c]
            parts[batch, cuda.blockIdx.x, head, c] = total

    return multi_token_values_tensor_kernel
