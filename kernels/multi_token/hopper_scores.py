"""The first of the two kernels for decoding on Hopper. It computes T', and m and l of each range of keys.
`hopper_decode` explains the method."""

import functools

from numba import cuda
from numpy import float32, int16, int32, int64, uint32

from kernels.common.splits import PLACE
from kernels.common.tiles import MINUS_INFINITY
from kernels.multi_token.hopper_decode import (
    CARRIED,
    ROWS,
    STAGE,
    WARPS,
    map_loader,
    mapper,
    split,
    stage_copier,
)
from kernels.tensor_cores.early_launch import start_next_kernel
from kernels.tensor_cores.instructions import (
    cp_async_commit,
    cp_async_wait_1,
    exp2_approx,
    float_pair,
    ldmatrix_x2,
    ldmatrix_x4,
    ldmatrix_x4_trans,
    mma_bf16,
    mma_bf16_k8,
)
from kernels.tensor_cores.tiles import CHUNK, LOG2E, widener
from kernels.tensor_cores.warpgroup import stmatrix_x4
from kernels.tensor_cores.windows import window_product


@functools.cache
def row_convolver(keys, halves, c_k, exact):
    """Create convolve(t, scores, bands), which computes T of `keys` keys in the accumulator layout.

    scores: (2, halves, CARRIED + keys, 8), the parts of S.
    bands: for each column of taps, the registers of the high and the low parts.
    """
    tiles, first = keys // 16, CARRIED - c_k + 1

    @cuda.jit(device=True)
    def add(t, at, part, row, bands, x):
        lane = cuda.threadIdx.x & 31
        if halves == 2:
            a0, a1, a2, a3 = ldmatrix_x4(part, (lane >> 4, row + (lane & 15), 0))
            t[at], t[at + 1], t[at + 2], t[at + 3] = mma_bf16(
                a0, a1, a2, a3, bands[x], bands[x + 1], t[at], t[at + 1], t[at + 2], t[at + 3]
            )
        else:
            a0, a1 = ldmatrix_x2(part, (0, row + (lane & 15), 0))
            t[at], t[at + 1], t[at + 2], t[at + 3] = mma_bf16_k8(
                a0, a1, bands[x], t[at], t[at + 1], t[at + 2], t[at + 3]
            )

    @cuda.jit(device=True)
    def convolve(t, scores, bands):
        for x in range(8 * tiles):
            t[x] = float32(0)
        for b in range(c_k):
            for tile in range(tiles):
                row, at = first + tile * 16 + b, tile * 4
                add(t, at, scores[0], row, bands, 2 * b * halves)
                add(t, at + 4 * tiles, scores[1], row, bands, 2 * b * halves)
                if not exact:
                    add(t, at + 4 * tiles, scores[0], row, bands, (2 * b + 1) * halves)
        for x in range(4 * tiles):
            t[x] += t[4 * tiles + x]

    return convolve


@functools.cache
def scores_kernel(width, kind, most, c_q, c_k, after, taps_kind):
    """Return the kernel for taps of shape (c_q, c_k).

    width: the maximum number of elements in a row of q or k.
    most: the maximum number of heads in a group that a map mixes.
    after: the number of rows of T that the kernel computes.
    taps_kind: the type of taps and map; 16-bit values are passed as int16.
    """
    rows, keys, slots, exact = c_q + after - 1, STAGE // width, WARPS // most, taps_kind == "bfloat16"
    halves, two_tiles, tiles, each = -(-rows // 8), 2 * keys, keys // 16, keys // 16
    window_numbers, numbers, span = halves * width // 8, halves * 4, CARRIED + keys
    band_numbers, t_numbers, value_numbers = 2 * c_k * halves, 8 * tiles, 4 * each
    mixed_keys, left, halo, chunks = keys + 1, (c_k - 1) // 2, c_k - 1, width // CHUNK
    copy, multiply = stage_copier(width), window_product(kind, width, rows)
    convolve = row_convolver(keys, halves, c_k, exact)
    load_map, mapped, widened = map_loader(most, taps_kind), mapper(taps_kind), widener(taps_kind)

    @cuda.jit(device=True)
    def load_window(window, q):
        """Load the window, like `kernels.tensor_cores.windows.window_loader`, from rows (R, d / 2) with two
        16-bit values per element."""
        lane, count, words = cuda.threadIdx.x & 31, q.shape[0], q.shape[1]
        for half in range(halves):
            a = half * 8 + (lane >> 2)
            i = a - rows + count
            own = q[i if 0 <= i and i < count else 0]
            for x in range(width // 8):
                both = uint32(own[x * 4 + (lane & 3)]) if x * 4 < words else uint32(0)
                window[half * (width // 8) + x] = both if 0 <= i and i < count else uint32(0)

    @cuda.jit(device=True)
    def load_bands(bands, w):
        """Load the right operands band_b[a, r] = w[a - r, b], 0 outside the taps."""
        lane = cuda.threadIdx.x & 31
        r = lane >> 2
        for b in range(c_k):
            for half in range(halves):
                a = half * 8 + (lane & 3) * 2 - r
                low, high = float32(0), float32(0)
                if r < after and 0 <= a and a < c_q:
                    low = widened(w[a, b])
                if r < after and 0 <= a + 1 and a + 1 < c_q:
                    high = widened(w[a + 1, b])
                bands[2 * b * halves + half], bands[(2 * b + 1) * halves + half] = split(low, high)

    @cuda.jit(device=True)
    def store_scores(scores, s, key):
        """Store the high and low parts of S for 16 keys in the rows from `key` on."""
        lane = cuda.threadIdx.x & 31
        row = key + (lane & 15)
        high0, low0 = split(s[0], s[1])
        high1, low1 = split(s[2], s[3])
        if halves == 2:
            high2, low2 = split(s[4], s[5])
            high3, low3 = split(s[6], s[7])
            stmatrix_x4(scores, (0, lane >> 4, row, 0), high0, high1, high2, high3)
            stmatrix_x4(scores, (1, lane >> 4, row, 0), low0, low1, low2, low3)
        else:
            stmatrix_x4(scores, (lane >> 4, 0, row, 0), high0, high1, low0, low1)

    @cuda.jit(device=True)
    def carry(scores):
        """Move the scores of the last CARRIED keys to the front."""
        lane = cuda.threadIdx.x & 31
        for half in range(halves):
            a0, a1, a2, a3 = ldmatrix_x4(scores, (lane >> 4, half, keys + (lane & 15), 0))
            stmatrix_x4(scores, (lane >> 4, half, lane & 15, 0), a0, a1, a2, a3)

    @cuda.jit(device=True)
    def store_rows(mixed, t, warp):
        """Store the parts of a head's T."""
        lane = cuda.threadIdx.x & 31
        high0, low0 = split(t[0], t[1])
        high1, low1 = split(t[2], t[3])
        if tiles == 2:
            high2, low2 = split(t[4], t[5])
            high3, low3 = split(t[6], t[7])
            stmatrix_x4(mixed, (0, warp, lane, 0), high0, high1, high2, high3)
            stmatrix_x4(mixed, (1, warp, lane, 0), low0, low1, low2, low3)
        else:
            stmatrix_x4(mixed, (lane >> 4, warp, lane & 15, 0), high0, high1, low0, low1)

    @cuda.jit(device=True, forceinline=True)
    def mask_scores(s, key, last):
        """Set the scores of 16 keys, from `key` on, to 0 where a query does not see the key. Query a of the
        window sees the keys up to last + a."""
        lane = cuda.threadIdx.x & 31
        for x in range(numbers):
            a = (x >> 2) * 8 + (lane & 3) * 2 + (x & 1)
            if key + (x >> 1 & 1) * 8 + (lane >> 2) > last + a:
                s[x] = float32(0)

    @cuda.jit(device=True, forceinline=True)
    def mix_heads(out, mixed, fragments, warp):
        """Mix the heads: compute T' of a lane's `each` keys from T of all heads."""
        lane = cuda.threadIdx.x & 31
        if each == 2:
            b0, b1, b2, b3 = ldmatrix_x4_trans(mixed, (0, lane & 15, 2 * warp + (lane >> 4), 0))
            d0, d1, d2, d3 = ldmatrix_x4_trans(mixed, (1, lane & 15, 2 * warp + (lane >> 4), 0))
            out[0], out[1], out[4], out[5] = mapped(fragments, b0, b1, d0, d1)
            out[2], out[3], out[6], out[7] = mapped(fragments, b2, b3, d2, d3)
        else:
            b0, b1, d0, d1 = ldmatrix_x4_trans(mixed, (lane >> 4, lane & 15, warp, 0))
            out[0], out[1], out[2], out[3] = mapped(fragments, b0, b1, d0, d1)

    @cuda.jit(device=True, forceinline=True)
    def update_statistics(ms, ls, values):
        """Update m and l of a lane's four rows of T' with a lane's `each` keys."""
        for at in range(4):
            y, largest = (at >> 1) * 2 * each + (at & 1), ms[at]
            for x in range(each):
                largest = max(largest, values[y + 2 * x])
            base = float32(0) if largest == MINUS_INFINITY else largest
            total = ls[at] * exp2_approx(ms[at] - base)
            for x in range(each):
                total += exp2_approx(values[y + 2 * x] - base)
            ms[at], ls[at] = largest, total

    @cuda.jit(device=True, forceinline=True)
    def merge_statistics(ends, statistics, first_head, group, first_range):
        """Store m and l of a range of keys, from those of the warps, in ends (2, H, ROWS, ranges)."""
        thread = cuda.threadIdx.x
        if thread < WARPS * ROWS:
            out, r = thread // ROWS, thread % ROWS
            m, l = MINUS_INFINITY, float32(0)
            for x in range(WARPS):
                m = max(m, statistics[0, x, out, r])
            base = float32(0) if m == MINUS_INFINITY else m
            for x in range(WARPS):
                l += statistics[1, x, out, r] * exp2_approx(statistics[0, x, out, r] - base)
            g, own_range = out & (most - 1), first_range + out // most
            if g < group:
                ends[0, first_head + g, r, own_range] = m
                ends[1, first_head + g, r, own_range] = l

    @cuda.jit(max_registers=128)
    def multi_token_scores_hopper_kernel(q, k, strides, n, sharing, w, head_map, scale, length, t, ends):
        """Store T' / ln 2 of the last queries in t, and m / ln 2 and l of each range of keys in ends (B, 2,
        H, ROWS, ranges).

        t: the elements of (B, H, N_k, ROWS / 2), one-dimensional, with two float32 values each.
        q: (B, H, R, d / 2), the window, R = min(rows, N_k), two 16-bit values per element.
        k: one-dimensional, 16-bit values as int16; row j of head h of batch b starts at k[b · strides[0] + h
            // sharing · strides[1] + j · strides[2]], for n rows.
        w: (H, c_q, c_k).
        head_map: (H / group, group, group).
        length: keys per range.
        """
        k_tiles = cuda.shared.array((WARPS, two_tiles, width), int16, alignment=16)
        all_scores = cuda.shared.array((WARPS, 2, halves, span, 8), int16, alignment=16)
        all_mixed = cuda.shared.array((2, 2, WARPS, mixed_keys, 8), int16, alignment=16)
        statistics = cuda.shared.array((2, WARPS, WARPS, ROWS), float32)
        window, s = cuda.local.array(window_numbers, uint32), cuda.local.array(numbers, float32)
        bands, totals = cuda.local.array(band_numbers, uint32), cuda.local.array(t_numbers, float32)
        fragments, values = cuda.local.array(8, uint32), cuda.local.array(value_numbers, float32)
        ms, ls = cuda.local.array(4, float32), cuda.local.array(4, float32)
        # for the two rows of T' in a lane's accumulators: the first key of the first iteration, the range of
        # keys, the end of the keys that all rows of the window see, and the place in t
        starts, begins = cuda.local.array(2, int32), cuda.local.array(2, int32)
        stops, seen_by_all = cuda.local.array(2, int32), cuda.local.array(2, int32)
        rows_of_t = cuda.local.array(2, int64)
        batch, thread, group = cuda.blockIdx.z, cuda.threadIdx.x, head_map.shape[1]
        lane, warp, chunk = thread & 31, thread >> 5, thread & 31 & (chunks - 1)
        first_head, first_range = cuda.blockIdx.y * group, cuda.blockIdx.x * slots
        head = first_head + min(warp & (most - 1), group - 1)  # warps without a head repeat the last one
        k_tile, scores, stride = k_tiles[warp], all_scores[warp], strides[2]
        start_next_kernel()
        # 1. copy the first keys; load the window, the taps and the map
        low = (first_range + warp // most) * length - left
        place_of_k = batch * strides[0] + head // sharing * strides[1] + (low + lane // chunks) * stride
        place_of_k += chunk * CHUNK
        valid = int32(16) if chunk * CHUNK < 2 * q.shape[3] else int32(0)
        turns = (length + halo + keys - 1) // keys
        for x in range(2):
            if x < turns:
                copy(k_tile, x * keys, k, place_of_k, stride, low + x * keys, n, valid)
            place_of_k += keys * stride
            cp_async_commit()
        load_window(window, q[batch, head])
        load_bands(bands, w[head])
        load_map(fragments, head_map[cuda.blockIdx.y])
        for x in range(numbers):
            s[x] = float32(0)
        store_scores(scores, s, 0)
        for x in range(4):
            ms[x], ls[x] = MINUS_INFINITY, float32(0)
        row, factor = (lane & 3) * 2, scale * LOG2E
        for half in range(2):
            out = (lane >> 2) + half * 8
            g, begin = out & (most - 1), (first_range + out // most) * length
            stop = min(n, begin + length) if g < group else begin
            starts[half], begins[half], stops[half] = begin - halo + each * warp, begin, stop
            seen_by_all[half] = min(stop, n - after + 1)
            rows_of_t[half] = (batch * ends.shape[2] + first_head + min(g, group - 1)) * n * 4 + (lane & 3)
        place = 0
        for turn in range(turns):
            cp_async_wait_1()
            cuda.syncwarp()  # the keys have arrived, and all lanes have finished with the previous scores
            first = low + turn * keys
            # 2. compute the scores of 16 keys at a time, and mask them if a query does not see all of them
            masked = first + keys > n - rows
            for tile in range(tiles):
                multiply(s, k_tile, place + tile * 16, window)
                if masked:
                    mask_scores(s, first + tile * 16, n - rows)
                store_scores(scores, s, CARRIED + tile * 16)
            cuda.syncwarp()  # the scores are stored, and all lanes have read the keys
            if turn + 2 < turns:
                copy(k_tile, place, k, place_of_k, stride, first + 2 * keys, n, valid)
                place_of_k += keys * stride
            cp_async_commit()
            # 3. convolve: the score of key j completes T of key j - right
            convolve(totals, scores, bands)
            cuda.syncwarp()  # all lanes have read the scores
            carry(scores)
            mixed = all_mixed[turn & 1]
            store_rows(mixed, totals, warp)
            cuda.syncthreads()  # T of all heads is stored
            # 4. mix the heads for `each` keys per warp
            mix_heads(values, mixed, fragments, warp)
            # 5. store T', and update m and l of four rows
            for x in range(4 * each):
                values[x] *= factor
            for half in range(2):
                j, own = int32(starts[half] + turn * keys), rows_of_t[half]
                if begins[half] <= j and int32(j + each) <= seen_by_all[half]:
                    for x in range(each):
                        y = half * 2 * each + 2 * x
                        t[((own + j * 4) & PLACE) + x * 4] = float_pair(values[y], values[y + 1])
                else:
                    for x in range(each):
                        y, at = half * 2 * each + 2 * x, int32(j + x)
                        inside = begins[half] <= at and at < stops[half]
                        if inside:
                            t[(own + at * 4) & PLACE] = float_pair(values[y], values[y + 1])
                        for e in range(2):
                            if not inside or at > n - after + row + e:
                                values[y + e] = MINUS_INFINITY
            update_statistics(ms, ls, values)
            place = keys - place
        # 6. merge m and l of the warps
        for at in range(4):
            out, r = (lane >> 2) + (at >> 1) * 8, row + (at & 1)
            statistics[0, warp, out, r], statistics[1, warp, out, r] = ms[at], ls[at]
        cuda.syncthreads()  # the statistics are stored
        merge_statistics(ends[batch], statistics, first_head, group, first_range)

    return multi_token_scores_hopper_kernel
