"""Convolutional attention, forward kernel with `wgmma`, for GPUs of compute capability 9.0 (Hopper).

The formulas are the same as in `conv_forward`. A block is one warp group. It computes S0 of 128 adjacent
rows, of which the first P_q are a halo, and T and O of the other rows, each as two matrices: the even and the
odd rows. In an iteration of the loop, it processes a tile of keys:

    S0      Q Kᵀ, with both operands in shared memory. The accumulators are rounded to 16 bits and stored in
            shared memory, in columns of 16-byte chunks
    T       Products of S0 with bands of taps, for `part` keys at a time. A product covers 64 pairs of rows.
            It computes two row shifts for both rows of each pair (`kernels.conv.hopper_tiles`)
    O       P V, with P in the registers of T

All blocks of a multiprocessor do this independently, so that one multiplies while others compute weights.

A product of T multiplies by zeros of a band where a score contributes nothing to a row. Because 0 · NaN is
NaN, one NaN reaches rows that do not depend on it. If a sum of weights is NaN, the block therefore starts
again in a careful mode: it replaces scores that are not finite by 0, and stores NaN in the rows that depend
on them.

Sources: Golovneva et al. 2025, arXiv 2504.00927 (convolution); Dao 2023, arXiv 2307.08691, Algorithm 1 (the
    loop).

    grid    see `kernels.tensor_cores.launch`
    block   128 threads
    shared  (128 + 3 · keys) · width · 2 bytes, S0 of 144 · keys · 2 bytes, and the bands of taps, see
            `kernels.conv.hopper_tiles`
    cost    multiply-adds per score: d, then 16 · (c_q + 1) (24 for c_k > 9; c_q + 2 for an even c_q), then d;
            times 128 / (128 - P_q)
"""

import functools
import math
from typing import NamedTuple

from numba import cuda
from numpy import float32, int16, int32, uint32, uint64

from kernels.common.extent import WHOLE
from kernels.common.tiles import reciprocal
from kernels.conv.banded_tiles import tile_copier as rows_copier
from kernels.conv.hopper_tiles import (
    KEYS_IN,
    PARITIES,
    band_maker,
    cleaner,
    convolver,
    half_scaler,
    keys_out,
    range_masker,
    score_storer,
    softener,
    steps_of,
    tap_loader,
    tile_copier,
)
from kernels.tensor_cores.instructions import cp_async_commit, cp_async_wait_0
from kernels.tensor_cores.launch import (
    Work,
    kind_of,
    launch_on_tensor_cores,
    relaunched,
    taps_operand,
    tensor_width,
)
from kernels.tensor_cores.tiles import FULL, LARGEST, LN2, LOG2E, SLACK, row_tile, whole_sum
from kernels.tensor_cores.warpgroup import fence_proxy_async, matrix_descriptor, uniform, wgmma_wait_0
from kernels.tensor_cores.warpgroup_tiles import (
    COLUMNS,
    GROUP,
    PATTERN,
    ROWS,
    SWIZZLE,
    masker,
    output_starter,
    packer,
    rows_storer,
    scaler,
    score_starter,
)

ALL_ROWS = PARITIES * ROWS  # rows of S0 per block
PLACES = ROWS + 8  # rows of a parity in shared memory, of which the last eight are zeros
V_SLOTS = 2  # tiles of V in shared memory


class Block(NamedTuple):
    """Sizes of a block, chosen by measuring.

    keys: keys per tile of S0.
    part: keys of T per step of the softmax, 16 or a multiple.
    stage: keys of T that are multiplied at a time.
    resident: blocks per multiprocessor.
    """

    keys: int
    part: int
    stage: int
    resident: int


def block_for(width, c_k):
    """Return the Block for rows of `width` elements and c_k column taps."""
    if width == 128:
        return Block(64, 16, 16, 2)
    return Block(64, 32, 16, 3) if keys_out(c_k) <= 16 else Block(64, 16, 8, 3)


def work_of(c_q):
    """Return the Work of a block for c_q row taps."""
    return Work(ALL_ROWS - c_q + 1, GROUP)


# The compiler moves computations that depend only on the indices of the thread and the block out of the loop,
# where their results occupy registers that the loop needs. It does not move a shuffle, so the index comes
# from one.


@cuda.jit(device=True, forceinline=True)
def thread_index():
    """Return the index of the thread."""
    thread = cuda.threadIdx.x
    return int32(cuda.shfl_sync(FULL, thread, thread & 31))


@cuda.jit(device=True, forceinline=True)
def block_place(heads):
    """Return (batch, head) of the block."""
    block = uint32(cuda.shfl_sync(FULL, cuda.blockIdx.x, 0))
    return uint32(block // uint32(heads)), uint32(block % uint32(heads))


@cuda.jit(device=True, forceinline=True)
def kept(descriptor):
    """Return a descriptor in uniform registers, so that the compiler does not compute it again for each
    product."""
    low = uniform(FULL, uint32(descriptor & uint64(0xFFFFFFFF)))
    return descriptor >> uint64(32) << uint64(32) | uint64(low)


@cuda.jit(device=True, forceinline=True)
def lane_place(thread):
    """Return the first row and the first column of this lane's accumulators of the even rows.

    The lane's second row is 16 rows below the first.
    """
    warp, lane = thread >> int32(5), int32(thread & int32(31))
    return int32(warp * int32(32) + (lane >> int32(2)) * int32(2)), int32((lane & int32(3)) * int32(2))


@functools.cache
def conv_hopper_kernel(width, kind, block, c_q, c_k, bits=False, parts=False):
    """Return the kernel for rows of `width` elements and (c_q, c_k) taps.

    bits: the taps are 16-bit values as int16, instead of float32.
    parts: q, k and v are parts of a sequence with halos, and o is float32. Otherwise they are a whole
        sequence, and `extent` is ignored.
    """
    keys, part_keys, stage_keys, resident = block
    above, owned, n_out, steps = c_q - 1, work_of(c_q).rows, keys_out(c_k), steps_of(c_q)
    taps_count = c_q * c_k
    shift = (c_k - 1) // 2 - (n_out - KEYS_IN)  # offset of an iteration's output keys from its input keys
    scaled = kind == "float16"
    pieces, s_count, t_count, o_count = width // COLUMNS, keys // 2, part_keys // 2, width // 2
    q_shape, k_shape = (PARITIES, pieces, ROWS, COLUMNS), (pieces * keys, COLUMNS)
    v_shape, scores_shape = (V_SLOTS, *k_shape), (keys // 8, PARITIES * PLACES, 8)
    bands_shape, band_bytes = (steps, 2, PARITIES * n_out, 8), PARITIES * n_out * 16
    # offsets to add to a descriptor, in its units of 16 bytes
    q_step, v_step = pieces * ROWS * SWIZZLE // 16, pieces * keys * SWIZZLE // 16
    part_step, v_part_step = part_keys // 8 * PARITIES * PLACES, part_keys * SWIZZLE // 16
    margin = PLACES - ROWS
    margins = keys * PARITIES * margin
    copy_q, copy = rows_copier(ALL_ROWS, width, PARITIES, GROUP), tile_copier(keys, width, GROUP)
    load_taps, make_bands = tap_loader(kind, c_q, c_k, bits, GROUP), band_maker(c_q, c_k, GROUP)
    start_scores = score_starter(kind, keys, width, ROWS)
    start_output = output_starter(kind, part_keys, width)
    hidden, masked = masker(s_count, "float32(0)"), range_masker(t_count)
    half, cleaned, store_scores = half_scaler(s_count), cleaner(s_count), score_storer(kind, s_count)
    start, finish = convolver(kind, c_q, c_k, part_keys, stage_keys, PARITIES * PLACES)
    soften, packed, grow = softener(t_count), packer(kind, t_count), scaler(o_count)
    store_rows = rows_storer(kind, o_count, parts, PARITIES)
    zeros_s, zeros_o = (float32(0),) * s_count, (float32(0),) * o_count
    nothing_carried, no_sums = (float32(0),) * max(1, n_out - KEYS_IN), (float32(0),) * 4

    @cuda.jit(device=True, forceinline=True)
    def compute_scores(scores, of_q, of_k, first, causal, scale, first_row, careful, broken):
        """Compute S0 of the keys from `first` on, 0 where masked, and store it."""
        for parity in range(PARITIES):
            parity = int32(parity)
            s = start_scores(zeros_s, of_q + uint64(uint32(parity) * uint32(q_step)), of_k)
            thread = thread_index()
            row, column = lane_place(thread)
            s = wgmma_wait_0(s)
            row = int32(row + parity)
            if causal and int32(first + int32(keys)) > int32(first_row + int32(1)):
                last = int32(first_row + row - first - column)
                s = hidden(s, last, int32(last + int32(16)))
            if scaled:
                s = half(s, scale)
            if careful:
                s, found0, found1 = cleaned(s)
                if found0:
                    cuda.atomic.max(broken, row, int32(1))
                if found1:
                    cuda.atomic.max(broken, int32(row + int32(16)), int32(1))
            at = (thread >> int32(5)) * int32(16) + (thread & int32(15)) + parity * int32(PLACES)
            store_scores(scores, uint32(at), s)

    @cuda.jit(device=True, forceinline=True)
    def hide(even, odd, first, first_key, n, i0, causal):
        """Replace T of keys that are not owned, or not visible, by -inf; `first` is the first key."""
        row, column = lane_place(thread_index())
        low, last = int32(first_key - first - column), int32(n - int32(1) - first - column)
        step = int32(1) if causal else int32(0)
        i = int32(i0 + row - first - column) if causal else last
        even = masked(even, low, min(last, i), min(last, int32(i + int32(16) * step)))
        odd = masked(odd, low, min(last, int32(i + step)), min(last, int32(i + int32(17) * step)))
        return even, odd

    @cuda.jit(device=True, forceinline=True)
    def nan_if_broken(total, broken, row):
        """Return NaN if T of this row depends on a broken row of S0, otherwise `total`."""
        for x in range(row, min(row + int32(c_q), int32(ALL_ROWS))):
            if broken[x]:
                total = float32(math.nan)
        return total

    @cuda.jit(launch_bounds=(GROUP, resident))
    def conv_hopper_kernel(q, k, v, w, extent, scale, causal, serpentine, o, log_sum):
        """Compute o (B, H, N, width / 2), int32 elements with two 16-bit values each, and log_sum (B, H, N),
        float32. With `parts`, o is (B, H, N, width), float32.

        q, k, v: (B, H, ..., width), 16-bit values as int16.
        w: (H, c_q, c_k), float32 or int16.
        extent: the numbers of the owned queries and keys (`kernels.common.extent.numbered`).
        """
        q_tile = cuda.shared.array(q_shape, int16, alignment=PATTERN)
        k_tile = cuda.shared.array(k_shape, int16, alignment=PATTERN)
        v_tiles = cuda.shared.array(v_shape, int16, alignment=PATTERN)
        scores = cuda.shared.array(scores_shape, int16, alignment=128)
        bands = cuda.shared.array(bands_shape, int16, alignment=128)
        taps = cuda.shared.array(taps_count, int16)
        broken = cuda.shared.array(ALL_ROWS, int32)
        batch, head = block_place(q.shape[1])
        n, tiles_after = int32(q.shape[2]), int32(cuda.gridDim.y) - int32(row_tile(serpentine))
        first_query, first_key, diagonal = int32(0), int32(0), int32(0)
        if parts:
            first_query, first_key, n, diagonal = extent
        # The last tile ends with the last query. Only the first tile, which has the fewest keys, may be
        # incomplete: its first rows are then negative.
        i0 = int32(int32(o.shape[2]) - tiles_after * int32(owned) + diagonal)
        # n is the end of the owned keys. `end` is the end of the input keys.
        end = int32((min(n, int32(i0 + int32(owned))) if causal else n) - int32(shift))
        factor = LOG2E if scaled else scale * LOG2E
        slack, lowest = min(SLACK / factor, LARGEST), -min(LARGEST / factor, LARGEST)
        # 1. copy the queries, load the taps
        copy_q(q_tile, q, batch, head, first_query + i0 - diagonal - int32(above))
        load_taps(taps, w, head)
        for x in range(cuda.threadIdx.x, margins, GROUP):
            x = uint32(x)
            y, r = x // uint32(8 * margin), x // uint32(8) % uint32(margin)
            row = (y & uint32(1)) * uint32(PLACES) + uint32(ROWS) + r
            scores[y >> uint32(1), row, x & uint32(7)] = int16(0)
        broken[cuda.threadIdx.x] = int32(0)
        of_q = matrix_descriptor(q_tile, (0, 0, 0, 0), 16, PATTERN, SWIZZLE)
        of_k = matrix_descriptor(k_tile, (0, 0), 16, PATTERN, SWIZZLE)
        of_v = matrix_descriptor(v_tiles, (0, 0, 0), keys * SWIZZLE, PATTERN, SWIZZLE)
        of_scores = kept(matrix_descriptor(scores, (0, 0, 0), PLACES * 16, 128, 0))
        of_bands = kept(matrix_descriptor(bands, (0, 0, 0, 0), band_bytes, 128, 0))
        s_row, careful = int32(i0 - int32(above)), False
        stop = int32(min(n, int32(i0 + int32(1))) if causal else n)  # end of the keys that all rows see
        while True:
            copy(k_tile, k, batch, head, int32(0))
            copy(v_tiles[0], v, batch, head, int32(shift) - first_key)
            cp_async_commit()
            cuda.syncthreads()
            make_bands(bands, taps)
            cp_async_wait_0()
            fence_proxy_async()
            cuda.syncthreads()
            # 2. S0 of the first tile
            compute_scores(scores, of_q, of_k, int32(0), causal, scale, s_row, careful, broken)
            fence_proxy_async()
            o_even, o_odd, carried = zeros_o, zeros_o, nothing_carried
            m, l = (lowest, lowest, lowest, lowest), no_sums
            slot, large = uint32(0), True
            for first in range(int32(0), end, int32(keys)):
                first = int32(first)
                following = int32(first + int32(keys))
                of_part, of_values = of_scores, of_v + uint64(slot * uint32(v_step))
                cuda.syncthreads()
                for part in range(first, min(end, following), int32(part_keys)):
                    out = int32(int32(part) + int32(shift))
                    # 3. compute T, and copy the next tiles of K and V in the meantime
                    sums = start(of_part, of_bands)
                    if part == first and following < end:
                        copy(k_tile, k, batch, head, following)
                        next_value = int32(following + int32(shift) - first_key)
                        copy(v_tiles[slot ^ uint32(1)], v, batch, head, next_value)
                    o_even, o_odd = wgmma_wait_0(o_even), wgmma_wait_0(o_odd)
                    t_even, t_odd, carried = finish(sums, of_part, of_bands, carried)
                    if out < first_key or int32(out + int32(part_keys)) > stop:
                        t_even, t_odd = hide(t_even, t_odd, out, first_key, n, i0, causal)
                    # 4. update the softmax and O
                    t_even, t_odd, m, l, by, grown, large = soften(t_even, t_odd, m, l, large, factor, slack)
                    if grown:
                        o_even, o_odd = grow(o_even, by[0], by[1]), grow(o_odd, by[2], by[3])
                    o_even = start_output(o_even, packed(t_even), of_values)
                    o_odd = start_output(o_odd, packed(t_odd), of_values)
                    of_part += uint64(part_step)
                    of_values += uint64(v_part_step)
                o_even, o_odd = wgmma_wait_0(o_even), wgmma_wait_0(o_odd)
                cp_async_commit()
                cp_async_wait_0()
                fence_proxy_async()
                cuda.syncthreads()
                # 5. S0 of the next tile
                if following < end:
                    compute_scores(scores, of_q, of_k, following, causal, scale, s_row, careful, broken)
                    fence_proxy_async()
                slot ^= uint32(1)
            total = l[0] + l[1] + l[2] + l[3]
            is_nan = cuda.syncthreads_or(int32(total != total))
            if careful or not is_nan:
                break
            careful = True
        # 6. normalise and store each row
        row, column = lane_place(thread_index())
        batch, head = block_place(q.shape[1])
        l0, l1, l2, l3 = whole_sum(l[0]), whole_sum(l[1]), whole_sum(l[2]), whole_sum(l[3])
        if careful:
            l0, l1 = nan_if_broken(l0, broken, row), nan_if_broken(l1, broken, int32(row + int32(16)))
            l2 = nan_if_broken(l2, broken, int32(row + int32(1)))
            l3 = nan_if_broken(l3, broken, int32(row + int32(17)))
        i0 = int32(i0 - diagonal)
        i, last = int32(i0 + row), min(int32(o.shape[2]) if parts else n, int32(i0 + int32(owned)))
        if column == 0:
            totals = l0, l1, l2, l3
            for x in range(4):
                at = int32(i + int32(x // 2 + x % 2 * 16))
                if int32(0) <= at and at < last:
                    log_sum[batch, head, uint32(at)] = m[x] * factor * LN2 + math.log(totals[x])
        of_rows = o[:, :, :last]
        store_rows(of_rows, batch, head, i, o_even, reciprocal(l0), reciprocal(l1))
        store_rows(of_rows, batch, head, int32(i + int32(1)), o_odd, reciprocal(l2), reciprocal(l3))

    return conv_hopper_kernel


def conv_hopper_forward(q, k, v, w, causal, scale, run=None, block=None):
    """Launch the kernel, and return (O, L).

    q, k, v, w: bfloat16 or float16 tensors and their taps, contiguous and already checked. The taps are
        rounded to the dtype of q. O has the shape and dtype of q.
    block: a Block, instead of the one for these taps.
    """
    key = (conv_hopper_kernel, q.shape, w.shape, q.dtype, w.dtype, q.device, causal, scale, block)
    found = relaunched(key, q, k, v, w) if run is None else None
    if found:
        return found
    width, (c_q, c_k) = tensor_width(q.shape[3]), w.shape[1:]
    block = block or block_for(width, c_k)
    taps, bits = taps_operand(w, q)
    kernel = conv_hopper_kernel(width, kind_of(q), block, c_q, c_k, bits)
    given = taps, WHOLE
    remember = key, (q, k, v, w)
    return launch_on_tensor_cores(kernel, work_of(c_q), q, k, v, given, scale, causal, run, remember)
