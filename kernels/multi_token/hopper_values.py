"""The second of the two kernels for decoding on Hopper. It computes a part of O from T', m, l and V.
`hopper_decode` explains the method."""

import functools
import math

from numba import cuda
from numpy import float32, int16, int32, int64, uint32

from kernels.common.splits import ALL_LANES, PLACE
from kernels.common.tiles import MINUS_INFINITY
from kernels.multi_token.hopper_decode import (
    CARRIED,
    ROWS,
    STAGE,
    THREADS,
    WARPS,
    map_loader,
    mapper,
    split,
    stage_copier,
)
from kernels.tensor_cores.early_launch import start_next_kernel, wait_for_previous_kernel
from kernels.tensor_cores.instructions import (
    cp_async_commit,
    cp_async_wait_1,
    exp2_approx,
    floats_of,
    high_f16,
    ldmatrix_x2,
    ldmatrix_x4,
    ldmatrix_x4_trans,
    low_f16,
    mma_bf16,
    pack_f16,
)
from kernels.tensor_cores.tiles import ARITHMETIC, CHUNK, LOG2E, widener
from kernels.tensor_cores.warpgroup import stmatrix_x4
from kernels.tensor_cores.windows import swizzled

TILE = 128  # keys per iteration
SPAN = TILE + CARRIED  # number of keys for which a block stores P
PITCH = TILE + 8  # with this padding, eight rows start in different banks
AHEAD = 8  # number of ranges for which a thread loads m and l at once
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
            if first + (AHEAD - 1) * teams < ranges:  # all of these ranges exist: no load needs a test
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

    @cuda.jit(device=True, forceinline=True)
    def load_rows(held, t, row_of_t, begin, n, seen):
        """Load pairs of T' in two rows, for the keys begin, begin + 8, .... `seen` says that all rows of the
        window see these keys. If it is False, load the nearest key in 0 ... n - 1 in place of any other."""
        if seen:
            place = (row_of_t + begin * 4) & PLACE
            for x in range(2 * groups):
                held[x] = t[place + x * 32]
        else:
            for x in range(2 * groups):
                held[x] = t[(row_of_t + min(max(begin + x * 8, 0), n - 1) * 4) & PLACE]

    @cuda.jit(device=True, forceinline=True)
    def store_weights(ps, held, offset0, offset1, begin, last, seen):
        """Store the parts of P. Row r of the window sees the keys 0 ... last + r. Unless all of the keys are
        `seen` by all rows, set P of the other keys to 0."""
        lane = cuda.threadIdx.x & 31
        for x in range(groups):
            p0, p1 = floats_of(held[2 * x])
            p2, p3 = floats_of(held[2 * x + 1])
            p0, p1 = exp2_approx(p0 - offset0), exp2_approx(p1 - offset1)
            p2, p3 = exp2_approx(p2 - offset0), exp2_approx(p3 - offset1)
            if not seen:
                j = begin + x * 16
                p0 = p0 if 0 <= j and j <= last else float32(0)
                p1 = p1 if 0 <= j and j <= last + 1 else float32(0)
                p2 = p2 if 0 <= j + 8 and j + 8 <= last else float32(0)
                p3 = p3 if 0 <= j + 8 and j + 8 <= last + 1 else float32(0)
            high0, low0 = split(p0, p1)
            high1, low1 = split(p2, p3)
            at = lane >> 4, x * 18 + (lane >> 3 & 1) * 9 + (lane & 7), 0
            stmatrix_x4(ps, at, high0, high1, low0, low1)

    @cuda.jit(device=True, forceinline=True)
    def convolve(us, u, ps, bands, warp):
        """Store the parts of U of a head. Row i of the left operand has the keys from 8i on."""
        lane = cuda.threadIdx.x & 31
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
        stmatrix_x4(us, (lane >> 4, warp, (lane & 15) * 8), high0, high1, low0, low1)

    @cuda.jit(device=True, forceinline=True)
    def mix_heads(us, fragments, warp):
        """Replace U of eight keys by the parts of U'."""
        lane = cuda.threadIdx.x & 31
        at = lane >> 4, lane & 15, warp * 8
        b0, b1, d0, d1 = ldmatrix_x4_trans(us, at)
        u0, u1, u2, u3 = mapped(fragments, b0, b1, d0, d1)
        high0, low0 = split_weights(u0, u1)
        high1, low1 = split_weights(u2, u3)
        cuda.syncwarp()  # all lanes have read U
        stmatrix_x4(us, at, high0, high1, low0, low1)

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
            load_rows(held, t, row_of_t, begin, n, seen)
            store_weights(ps, held, offset0, offset1, begin, n - after + row, seen)
            cuda.syncwarp()  # P is stored
            # 3. convolve
            convolve(us, u, ps, bands, warp)
            cuda.syncthreads()  # U of all heads is stored
            # 4. mix the heads, for eight keys per warp
            mix_heads(us, fragments, warp)
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
