"""Decoding with the multi-token layer in 16 bits on Hopper: every sum on tensor cores, in two kernels.

`decode.py` states the formulas. These kernels replace the first three of its four kernels:

    kernel    computes                           grid                                 shared, 16 heads, d = 64
    scores    T', and m and l of each range      (ranges of keys, H / s, B)           225 KiB
    values    a part of O, from T', m, l and V   (ranges of keys, H / s', B)          218 KiB

A block has one warp for each of 16 heads. With fewer heads in a group, it has several ranges of keys, and the
head map becomes a block-diagonal matrix. Each step is thus a product of small matrices, which `mma` computes:

    S[j, a]    keys × window
    T[j, r]    Σ_b S[j - c_k + 1 + b, :] · band_b, where band_b[a, r] = w1[a - r, b]
    T'[g, r]   map × T of all heads, for each key
    U[8i + n]  P, with the keys 8i … 8i + 7 + c_k in a row, × a band of w2
    U'[g, j]   map × U of all heads
    O[c]       Vᵀ × U'

All products but the first have a float32 operand. The kernels split this operand into two bfloat16 parts,
whose sum has a relative error of 2^-17. They split taps and maps in the same way, unless these are bfloat16,
and U' into parts of the type of V. The products of the parts are added in float32. NaN and infinities
therefore spread to all rows and heads of a group, as NaN does in the softmax.

T' is stored with eight rows per key, so that its 16-bit parts form rows of 16 bytes, as `ldmatrix` reads.
"""

import functools
import math

from numba import cuda
from numpy import float32, int16, int32, int64, uint32

from kernels.common.arguments import HALVES
from kernels.common.splits import ALL_LANES, PLACE
from kernels.common.tiles import MINUS_INFINITY
from kernels.tensor_cores.early_launch import start_next_kernel, wait_for_previous_kernel
from kernels.tensor_cores.instructions import (
    cp_async_16,
    cp_async_commit,
    cp_async_wait_1,
    exp2_approx,
    float_pair,
    floats_of,
    high_bf16,
    high_f16,
    ldmatrix_x2,
    ldmatrix_x4,
    ldmatrix_x4_trans,
    low_bf16,
    low_f16,
    mma_bf16,
    mma_bf16_k8,
    pack_bf16,
    pack_f16,
)
from kernels.tensor_cores.launch import HOPPER, capability
from kernels.tensor_cores.tiles import ARITHMETIC, CHUNK, LOG2E, widener
from kernels.tensor_cores.warpgroup import stmatrix_x4
from kernels.tensor_cores.windows import swizzled, window_product

WARPS, THREADS = 16, 512  # per block
ROWS = 8  # rows of T per key, padded
MOST_ROWS = 16  # rows of the window
STAGE = 2048  # elements of K or V that a warp copies at once
CARRIED = 16  # keys whose scores are kept for the next iteration
TILE = 128  # keys of `values` per iteration
SPAN = TILE + CARRIED  # keys whose P a block stores
PITCH = TILE + 8  # with this padding, eight rows start in different banks
AHEAD = 8  # ranges whose m and l a thread loads at once


@cuda.jit(device=True, forceinline=True)
def split(x, y):
    """Return two registers with 16-bit parts of x and y: their bfloat16 values, and the rounding errors of
    these."""
    high = pack_bf16(x, y)
    return high, pack_bf16(x - low_bf16(high), y - high_bf16(high))


@functools.cache
def stage_copier(width):
    """Create copy(tile, base, rows, place, stride, first, n, valid), with which a warp copies STAGE / width
    rows to tile[base : …], swizzled.

    The first row has this number, and those before row 0 or after row n - 1 become zeros.

    rows: all tensors' rows, one-dimensional; adjacent rows are `stride` elements apart.
    place: the index of the first element that this lane copies, 8 times lane % (width / 8) elements after the
        start of row first + lane // (width / 8).
    valid: the number of bytes in a chunk of this lane, 16, or 0 for columns from d to `width`.
    """
    chunks, count = width // CHUNK, STAGE // width
    at_once = 32 // chunks

    @cuda.jit(device=True)
    def copy(tile, base, rows, place, stride, first, n, valid):
        lane = cuda.threadIdx.x & 31
        i, chunk = lane // chunks, lane % chunks
        row, step = base + i, stride * at_once
        if 0 <= first and first + count <= n:  # all rows are inside: compare none of them
            for turn in range(count // at_once):
                to = row + turn * at_once, swizzled(chunk, i + turn * at_once % 8)
                cp_async_16(tile, to, rows, ((place & PLACE) + turn * step,), valid)
        else:
            for turn in range(count // at_once):
                own = first + i + turn * at_once
                inside = 0 <= own and own < n
                to = row + turn * at_once, swizzled(chunk, i + turn * at_once % 8)
                at = place + turn * step if inside else 0
                cp_async_16(tile, to, rows, (at & PLACE,), valid if inside else int32(0))

    return copy


@functools.cache
def map_loader(most, kind):
    """Create load_map(fragments, head_map, group), which loads a group's map as left operands of `mma`: the
    four registers of the high parts, then those of the low ones.

    Row and column w belong to warp w, and thus to head w % most of one of several ranges of keys.
    """
    widened = widener(kind)

    @cuda.jit(device=True)
    def entry(own_map, row, column):
        group = own_map.shape[0]
        g, h = row & (most - 1), column & (most - 1)
        if row // most != column // most or g >= group or h >= group:
            return float32(0)
        return widened(own_map[g, h])

    @cuda.jit(device=True)
    def load_map(fragments, own_map):
        lane = cuda.threadIdx.x & 31
        for x in range(4):
            row, column = (lane >> 2) + (x & 1) * 8, (lane & 3) * 2 + (x >> 1) * 8
            fragments[x], fragments[4 + x] = split(
                entry(own_map, row, column), entry(own_map, row, column + 1)
            )

    return load_map


@functools.cache
def mapper(kind):
    """Create mapped(fragments, high0, high1, low0, low1), which returns the product of a map and a 16 × 8
    matrix, whose parts are right operands of `mma`."""
    exact = kind == "bfloat16"

    @cuda.jit(device=True)
    def mapped(fragments, high0, high1, low0, low1):
        zero = float32(0)
        a0, a1, a2, a3 = fragments[0], fragments[1], fragments[2], fragments[3]
        c0, c1, c2, c3 = mma_bf16(a0, a1, a2, a3, low0, low1, zero, zero, zero, zero)
        if not exact:
            c0, c1, c2, c3 = mma_bf16(
                fragments[4], fragments[5], fragments[6], fragments[7], high0, high1, c0, c1, c2, c3
            )
        return mma_bf16(a0, a1, a2, a3, high0, high1, c0, c1, c2, c3)

    return mapped


# Scores -----------------------------------------------------------------------------------------------------


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
    """Return the kernel for rows of at most `width` elements, maps within groups of at most `most` heads,
    (c_q, c_k) taps and `after` rows of T.

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
        """Store the parts of S of 16 keys, the first of them in row `key`."""
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
                    for x in range(numbers):
                        a, key = (x >> 2) * 8 + row + (x & 1), tile * 16 + (x >> 1 & 1) * 8 + (lane >> 2)
                        if first + key > n - rows + a:
                            s[x] = float32(0)
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
            if each == 2:
                b0, b1, b2, b3 = ldmatrix_x4_trans(mixed, (0, lane & 15, 2 * warp + (lane >> 4), 0))
                d0, d1, d2, d3 = ldmatrix_x4_trans(mixed, (1, lane & 15, 2 * warp + (lane >> 4), 0))
                values[0], values[1], values[4], values[5] = mapped(fragments, b0, b1, d0, d1)
                values[2], values[3], values[6], values[7] = mapped(fragments, b2, b3, d2, d3)
            else:
                b0, b1, d0, d1 = ldmatrix_x4_trans(mixed, (lane >> 4, lane & 15, warp, 0))
                values[0], values[1], values[2], values[3] = mapped(fragments, b0, b1, d0, d1)
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
                for e in range(2):
                    at, y = half * 2 + e, half * 2 * each + e
                    largest = ms[at]
                    for x in range(each):
                        largest = max(largest, values[y + 2 * x])
                    base = float32(0) if largest == MINUS_INFINITY else largest
                    total = ls[at] * exp2_approx(ms[at] - base)
                    for x in range(each):
                        total += exp2_approx(values[y + 2 * x] - base)
                    ms[at], ls[at] = largest, total
            place = keys - place
        # 6. merge m and l of the warps
        for at in range(4):
            out, r = (lane >> 2) + (at >> 1) * 8, row + (at & 1)
            statistics[0, warp, out, r], statistics[1, warp, out, r] = ms[at], ls[at]
        cuda.syncthreads()  # the statistics are stored
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
                ends[batch, 0, first_head + g, r, own_range] = m
                ends[batch, 1, first_head + g, r, own_range] = l

    return multi_token_scores_hopper_kernel


# Values -----------------------------------------------------------------------------------------------------


LOW_FACTOR = {"bfloat16": float32(1), "float16": float32(2**-11)}


@functools.cache
def weight_splitter(kind):
    """Create split_weights(x, y), which returns two registers with 16-bit parts of x and y.

    x is the sum of its high part and LOW_FACTOR times its low part. With this factor, the parts of small
    weights are not rounded to multiples of the smallest float16.
    """
    if kind == "bfloat16":
        return split

    @cuda.jit(device=True)
    def split_weights(x, y):
        high = pack_f16(x, y)
        return high, pack_f16((x - low_f16(high)) * float32(2**11), (y - high_f16(high)) * float32(2**11))

    return split_weights


@functools.cache
def value_adder(kind, width):
    """Create add_values(o, us, warp, key, v_tile, base), which adds the products of STAGE / width values,
    from row `base` of the tile on, and the weights of a head, from this key on.

    The left operand is the transposed V. The columns of the right operand are the high and the low parts of
    the weights in turn.
    """
    mma, stage, tiles = ARITHMETIC[kind].mma, STAGE // width, width // 16

    @cuda.jit(device=True)
    def add(o, v_tile, row, tile, b0, b1):
        lane, x = cuda.threadIdx.x & 31, tile * 4
        at = row + (lane & 7) + (lane >> 4) * 8, swizzled((lane >> 3 & 1) + tile * 2, lane)
        a0, a1, a2, a3 = ldmatrix_x4_trans(v_tile, at)
        o[x], o[x + 1], o[x + 2], o[x + 3] = mma(a0, a1, a2, a3, b0, b1, o[x], o[x + 1], o[x + 2], o[x + 3])

    @cuda.jit(device=True)
    def add_values(o, us, warp, key, v_tile, base):
        lane = cuda.threadIdx.x & 31
        if stage == 16:
            b0, b1 = ldmatrix_x2(us, (lane & 1, warp, key + (lane >> 3 & 1) * 8))
            for tile in range(tiles):
                add(o, v_tile, base, tile, b0, b1)
        else:
            b0, b1, b2, b3 = ldmatrix_x4(us, (lane & 1, warp, key + (lane >> 3) * 8))
            for tile in range(tiles):
                add(o, v_tile, base, tile, b0, b1)
            for tile in range(tiles):
                add(o, v_tile, base + 16, tile, b2, b3)

    return add_values


@functools.cache
def values_kernel(width, kind, most, c_k, after, taps_kind):
    """Return the kernel for rows of at most `width` elements, maps within groups of at most `most` heads and
    (after, c_k) taps.

    taps_kind: the type of taps and map; 16-bit values are passed as int16.
    """
    stage, slots, exact = STAGE // width, WARPS // most, taps_kind == "bfloat16"
    steps, left, tiles = (7 + c_k + 1) // 2, (c_k - 1) // 2, width // 16
    groups, places = SPAN // 16, SPAN // 8 * 9
    rows, two_stages, band_numbers, o_numbers = most * ROWS, 2 * stage, 4 * steps, 4 * tiles
    teams, per_tile, held_numbers = min(32, THREADS // rows), TILE // stage, 2 * groups
    team_bits, chunks = teams.bit_length() - 1, width // CHUNK
    copy, load_map, mapped = stage_copier(width), map_loader(most, taps_kind), mapper(taps_kind)
    widened = widener(taps_kind)
    multiply, split_weights, low_factor = value_adder(kind, width), weight_splitter(kind), LOW_FACTOR[kind]

    @cuda.jit(device=True)
    def load_bands(bands, w):
        """Load the right operands band[8 δ + r, n] = w[r, δ - n], 0 outside the taps."""
        lane = cuda.threadIdx.x & 31
        r, n = (lane & 3) * 2, lane >> 2
        for x in range(2 * steps):
            b = x - n
            low, high = float32(0), float32(0)
            if 0 <= b and b < c_k and r < after:
                low = widened(w[r, b])
            if 0 <= b and b < c_k and r + 1 < after:
                high = widened(w[r + 1, b])
            bands[x], bands[2 * steps + x] = split(low, high)

    @cuda.jit(device=True)
    def load_offsets(offsets, ends, batch, first_head, group):
        """Store m / ln 2 + log2(l) of each row in offsets (rows,), so that P = 2^(T' / ln 2 - offset).

        The threads of a team load m and l of its ranges in turn.
        """
        row, team = cuda.threadIdx.x // teams % rows, cuda.threadIdx.x % teams
        head, r, ranges = first_head + min(row // ROWS, group - 1), row % ROWS, ends.shape[4]
        own_m, own_l = ends[batch, 0, head, r], ends[batch, 1, head, r]
        ms, ls = cuda.local.array(AHEAD, float32), cuda.local.array(AHEAD, float32)
        m, l = MINUS_INFINITY, float32(0)
        for first in range(team, ranges, teams * AHEAD):
            if first + (AHEAD - 1) * teams < ranges:  # all loads are inside: compare none of them
                for x in range(AHEAD):
                    ms[x] = own_m[(first & PLACE) + x * teams]
                    ls[x] = own_l[(first & PLACE) + x * teams]
            else:
                for x in range(AHEAD):
                    inside = first + x * teams < ranges
                    at = (first + x * teams if inside else 0) & PLACE
                    ms[x], ls[x] = own_m[at] if inside else MINUS_INFINITY, own_l[at]
            largest = m
            for x in range(AHEAD):
                largest = max(largest, ms[x])
            base = float32(0) if largest == MINUS_INFINITY else largest
            l *= exp2_approx(m - base)
            for x in range(AHEAD):
                l += ls[x] * exp2_approx(ms[x] - base)
            m = largest
        largest = m
        for bit in range(team_bits):
            largest = max(largest, cuda.shfl_xor_sync(ALL_LANES, largest, 1 << bit))
        base = float32(0) if largest == MINUS_INFINITY else largest
        l *= exp2_approx(m - base)
        for bit in range(team_bits):
            l += cuda.shfl_xor_sync(ALL_LANES, l, 1 << bit)
        if team == 0:
            offsets[row] = base + math.log(l) * LOG2E if l != float32(0) else -MINUS_INFINITY

    @cuda.jit(device=True)
    def add(c, p, at, b0, b1, x):
        a0, a1, a2, a3 = ldmatrix_x4(p, at)
        c[x], c[x + 1], c[x + 2], c[x + 3] = mma_bf16(
            a0, a1, a2, a3, b0, b1, c[x], c[x + 1], c[x + 2], c[x + 3]
        )

    @cuda.jit(max_registers=128)
    def multi_token_values_hopper_kernel(t, ends, w, head_map, v, strides, n, sharing, length, parts):
        """Store Σ_j U'[j] v_j over each range of keys in parts (B, ranges, H, d).

        t, ends: the results of the kernel of the scores.
        w: (H, after, c_k).
        head_map: (H / group, group, group).
        v, strides, n: like k in the kernel of the scores.
        length: keys per range, a multiple of TILE.
        """
        v_tiles = cuda.shared.array((WARPS, two_stages, width), int16, alignment=16)
        all_ps = cuda.shared.array((WARPS, 2, places, 8), int16, alignment=16)
        us = cuda.shared.array((2, WARPS, PITCH), int16, alignment=16)
        offsets = cuda.shared.array(rows, float32)
        bands, fragments = cuda.local.array(band_numbers, uint32), cuda.local.array(8, uint32)
        held = cuda.local.array(held_numbers, int64)
        u, o = cuda.local.array(8, float32), cuda.local.array(o_numbers, float32)
        batch, thread, group = cuda.blockIdx.z, cuda.threadIdx.x, head_map.shape[1]
        lane, warp, chunk = thread & 31, thread >> 5, thread & 31 & (chunks - 1)
        first_head, own_range = cuda.blockIdx.y * group, cuda.blockIdx.x * slots + warp // most
        h = min(warp & (most - 1), group - 1)  # warps without a head repeat the last one
        head, start = first_head + h, own_range * length
        v_tile, ps, stride = v_tiles[warp], all_ps[warp], strides[2]
        # 1. copy the first values; load the taps and the map; then m and l
        place_of_v = batch * strides[0] + head // sharing * strides[1] + (start + lane // chunks) * stride
        place_of_v += chunk * CHUNK
        valid = int32(16) if chunk * CHUNK < parts.shape[3] else int32(0)
        for x in range(2):
            copy(v_tile, x * stage, v, place_of_v, stride, start + x * stage, n, valid)
            place_of_v += stage * stride
            cp_async_commit()
        load_bands(bands, w[head])
        load_map(fragments, head_map[cuda.blockIdx.y])
        for x in range(o_numbers):
            o[x] = float32(0)
        wait_for_previous_kernel()
        start_next_kernel()
        load_offsets(offsets, ends, batch, first_head, group)
        cuda.syncthreads()  # the offsets are stored
        row = (lane & 3) * 2
        offset0, offset1 = offsets[h * ROWS + row], offsets[h * ROWS + row + 1]
        row_of_t = (batch * ends.shape[2] + head) * n * 4 + (lane & 3)
        place = 0
        for first in range(start, start + length, TILE):
            # 2. compute P of the tile and its halo; lanes hold two rows of two keys in 16
            begin = first - left + (lane >> 2)
            # all rows of the window see all of these keys
            seen = first >= left and first - left + SPAN <= n - after + 1
            if seen:
                place_of_t = (row_of_t + begin * 4) & PLACE
                for x in range(2 * groups):
                    held[x] = t[place_of_t + x * 32]
            else:
                for x in range(2 * groups):
                    held[x] = t[(row_of_t + min(max(begin + x * 8, 0), n - 1) * 4) & PLACE]
            for x in range(groups):
                p0, p1 = floats_of(held[2 * x])
                p2, p3 = floats_of(held[2 * x + 1])
                p0, p1 = exp2_approx(p0 - offset0), exp2_approx(p1 - offset1)
                p2, p3 = exp2_approx(p2 - offset0), exp2_approx(p3 - offset1)
                if not seen:
                    j, last = begin + x * 16, n - after + row
                    p0 = p0 if 0 <= j and j <= last else float32(0)
                    p1 = p1 if 0 <= j and j <= last + 1 else float32(0)
                    p2 = p2 if 0 <= j + 8 and j + 8 <= last else float32(0)
                    p3 = p3 if 0 <= j + 8 and j + 8 <= last + 1 else float32(0)
                high0, low0 = split(p0, p1)
                high1, low1 = split(p2, p3)
                at = lane >> 4, x * 18 + (lane >> 3 & 1) * 9 + (lane & 7), 0
                stmatrix_x4(ps, at, high0, high1, low0, low1)
            cuda.syncwarp()  # P is stored
            # 3. convolve: row i of the left operand has the keys from 8i on
            for x in range(8):
                u[x] = float32(0)
            for x in range(steps):
                at = (lane & 15) * 9 + 2 * x + (lane >> 4) + x // 4, 0
                add(u, ps[0], at, bands[2 * x], bands[2 * x + 1], 0)
                add(u, ps[1], at, bands[2 * x], bands[2 * x + 1], 4)
                if not exact:
                    add(u, ps[0], at, bands[2 * (steps + x)], bands[2 * (steps + x) + 1], 4)
            high0, low0 = split(u[0] + u[4], u[1] + u[5])
            high1, low1 = split(u[2] + u[6], u[3] + u[7])
            at = lane >> 4, warp, (lane & 15) * 8
            stmatrix_x4(us, at, high0, high1, low0, low1)
            cuda.syncthreads()  # U of all heads is stored
            # 4. mix the heads, for eight keys per warp
            b0, b1, d0, d1 = ldmatrix_x4_trans(us, (lane >> 4, lane & 15, warp * 8))
            u[0], u[1], u[2], u[3] = mapped(fragments, b0, b1, d0, d1)
            high0, low0 = split_weights(u[0], u[1])
            high1, low1 = split_weights(u[2], u[3])
            cuda.syncwarp()  # all lanes have read U
            stmatrix_x4(us, (lane >> 4, lane & 15, warp * 8), high0, high1, low0, low1)
            cuda.syncthreads()  # U' is stored
            # 5. multiply the values by the parts of U', the columns of the right operand in turn
            for x in range(per_tile):
                cp_async_wait_1()
                cuda.syncwarp()  # the values have arrived
                multiply(o, us, warp, x * stage, v_tile, place)
                cuda.syncwarp()  # all lanes have read the values
                following = first + (x + 2) * stage
                if following < start + length:
                    copy(v_tile, place, v, place_of_v, stride, following, n, valid)
                    place_of_v += stage * stride
                cp_async_commit()
                place = stage - place
        # 6. store the sums: columns 0 and 1 of the accumulators belong to the two parts
        if lane & 3 == 0 and warp & (most - 1) < group:
            for x in range(2 * tiles):
                c = x * 8 + (lane >> 2)
                if c < parts.shape[3]:
                    parts[batch, own_range, head, c] = o[2 * x] + low_factor * o[2 * x + 1]

    return multi_token_values_hopper_kernel


def fits(q, c_q, after, *groups):
    """Return whether these kernels support q, taps with c_q and `after` rows, and maps in these groups of
    heads."""
    on_hopper = q.dtype in HALVES and q.is_cuda and capability(q.device) == HOPPER
    return on_hopper and c_q + after - 1 <= MOST_ROWS and after <= ROWS and max(groups) <= WARPS
