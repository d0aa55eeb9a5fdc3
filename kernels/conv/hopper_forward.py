"""Convolutional attention, forward kernel with `wgmma`, for GPUs of compute capability 9.0 (Hopper).

The formulas are the same as in `conv_forward`. A block computes S0 of groups · 64 adjacent rows, of which the
first P_q are a halo, and T and O of groups · 64 - P_q rows:

    S0      Q Kᵀ, with both operands in shared memory. The accumulators are rounded to 16 bits and stored in
            shared memory, in columns of 16-byte chunks (`kernels.conv.hopper_tiles`)
    T       For each row shift a, the product of S0 from row a on with a banded matrix of taps. It maps 16
            keys of S0 to 24 (or 32) keys of T. The sums of keys that depend on the next iteration, too, stay
            in registers
    O       P V, with P in the registers of T

The warp groups of a block compute T in turn, from the last to the first, so that one group multiplies while
others compute weights. The barrier turns[g] counts these warps, for each tile of keys:

    - of the group whose turn comes before that of group g, when its products are complete, or issued if
      `early`. The last group waits for the first group's previous tile
    - of group g, when its S0 is stored. Group g - 1 reads some of these rows, and its turn comes later
    - if `early`, of group g - 1, when its products of the previous tile, which read those rows, are complete

The shared memory that a product reads limits the convolution: a product of 64 × 16 by 16 × 24 elements takes
22 cycles, although its operations need only 12.
Sources: Golovneva et al. 2025, arXiv 2504.00927 (convolution); Dao 2023, arXiv 2307.08691, Algorithm 1 (the
    loop).

    grid    see `kernels.tensor_cores.launch`
    block   groups · 128 threads
    shared  (groups · 64 + 6 · keys) · width · 2 bytes, and two tiles of S0 of (groups · 64 + 16) · keys · 2
    cost    multiply-adds per score: d, then 24 · c_q (32 for c_k > 9), then d; times 64 · groups / (64 ·
            groups - P_q)
"""

import functools
import math
from typing import NamedTuple

from numba import cuda
from numpy import float32, int16, int32, int64, uint32, uint64

from kernels.common.extent import WHOLE
from kernels.common.tiles import MINUS_INFINITY, reciprocal
from kernels.conv.hopper_tiles import (
    KEYS_IN,
    band_loader,
    convolver,
    half_scaler,
    keys_out,
    range_masker,
    score_storer,
    tile_copier,
)
from kernels.tensor_cores.bulk_copies import (
    fence_mbarrier_init,
    mbarrier_arrive,
    mbarrier_arrive_copies,
    mbarrier_init,
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
    softener,
    wait,
    wait_together,
)

MARGIN = 16  # rows of zeros after S0, because T of the last rows of a tile is computed, but not used
SLOTS = 3  # tiles of K, and of V, in shared memory


class Block(NamedTuple):
    """Sizes of a block, and two choices that were made by measuring.

    groups: warp groups.
    keys: keys per tile.
    resident: blocks per multiprocessor.
    early: pass the turn on when the products are issued, instead of complete.
    uniform: compute descriptors in uniform registers.
    """

    groups: int
    keys: int
    resident: int
    early: bool = False
    uniform: bool = True


def block_for(width, c_q, c_k):
    """Return the Block for rows of `width` elements and (c_q, c_k) taps."""
    if width == 128:
        return Block(2, 64, 1)
    if keys_out(c_k) == 24:
        return Block(2, 64, 2)
    # With more taps and 64 keys per tile, the shared memory suffices for one resident block only.
    return Block(2, 64 if c_q <= 12 else 32, 2, early=True, uniform=False)


@cuda.jit(device=True, forceinline=True)
def pass_on(barriers, group, lane):
    """Arrive at a barrier once for this warp."""
    cuda.syncwarp()
    if lane == 0:
        mbarrier_arrive(barriers, group)


@cuda.jit(device=True, forceinline=True)
def advanced(descriptor, offset):
    """Return the descriptor of the matrix `offset` units of 16 bytes further."""
    return descriptor + uint64(offset)


@cuda.jit(device=True, forceinline=True)
def advanced_uniform(descriptor, offset):
    """Return the same as `advanced`, in uniform registers.

    Otherwise ptxas adds in registers of the lanes, and moves the descriptor of each product from there.
    """
    low = uniform(FULL, uint32(uint32(descriptor & uint64(0xFFFFFFFF)) + offset))
    return descriptor >> uint64(32) << uint64(32) | uint64(low)


@functools.cache
def conv_hopper_kernel(width, kind, block, c_q, c_k, bits=False, parts=False):
    """Return the kernel for rows of `width` elements and (c_q, c_k) taps.

    bits: the taps are 16-bit values as int16, instead of float32.
    parts: q, k and v are parts of a sequence with halos, and o is float32. Otherwise they are a whole
        sequence, and `extent` is ignored.
    """
    groups, keys, resident, early, _ = block
    rows, threads, above = groups * ROWS, groups * GROUP, c_q - 1
    owned, score_rows = rows - above, rows + MARGIN
    overlap = keys_out(c_k) - KEYS_IN
    shift = (c_k - 1) // 2 - overlap  # offset of an iteration's output keys from its input keys
    scaled = kind == "float16"
    pieces, s_count, o_count = width // COLUMNS, keys // 2, width // 2
    q_shape, tiles_shape = (pieces * rows, COLUMNS), (SLOTS, pieces * keys, COLUMNS)
    scores_shape, bands_shape = (2, keys // 8, score_rows, 8), (c_q, 2, keys_out(c_k), 8)
    tile_step, scores_step = pieces * keys * SWIZZLE // 16, keys // 8 * score_rows  # in a descriptor
    column_bytes, band_bytes, margins = score_rows * 16, keys_out(c_k) * 16, 2 * keys * MARGIN
    copy_q, copy, load = (
        tile_copier(rows, width, threads),
        tile_copier(keys, width, threads),
        band_loader(kind, c_q, c_k, bits, threads),
    )
    start_scores, start_output = score_starter(kind, keys, width, rows), output_starter(kind, keys, width)
    hidden, masked = masker(s_count, "float32(0)"), range_masker(s_count)
    soften = softener(s_count)
    half, store_scores = half_scaler(s_count), score_storer(kind, s_count)
    start, finish = convolver(kind, c_q, c_k, keys, score_rows)
    packed, grow = packer(kind, s_count), scaler(o_count)
    store_rows = rows_storer(kind, o_count, parts)
    zeros_s, zeros_o = (float32(0),) * s_count, (float32(0),) * o_count
    nothing_carried = (float32(0),) * max(1, overlap // 2)
    arrivals = 4 * (2 + int(early))  # warps
    await_phase, advance = (wait_together, advanced_uniform) if block.uniform else (wait, advanced)

    @cuda.jit(device=True, forceinline=True)
    def store(tile, at, s, i, first, column, causal, scale, first_row):
        """Round S0 of the keys from `first` on, 0 where masked, and store it."""
        if causal and first + int32(keys) > first_row - int32(above) + int32(1):
            last = i - int32(above) - first - column
            s = hidden(s, last, last + int32(8))
        if scaled:
            s = half(s, scale)
        store_scores(tile, at, s)

    @cuda.jit(device=True, forceinline=True)
    def copy_tiles(k_tile, v_tile, k, v, batch, head, first, first_key, end, copied):
        """Start the copies of K for the tile after the next, and of V for the next tile, if there is one."""
        if first + int32(keys) < end:
            copy(k_tile, k, batch, head, first + int32(2 * keys))
            copy(v_tile, v, batch, head, first + int32(keys + shift) - first_key)
        mbarrier_arrive_copies(copied, 0)

    @cuda.jit(launch_bounds=(threads, resident))
    def conv_hopper_kernel(q, k, v, w, extent, scale, causal, serpentine, o, log_sum):
        """Compute o (B, H, N, width / 2), int32 elements with two 16-bit values each, and log_sum (B, H, N),
        float32. With `parts`, o is (B, H, N, width), float32.

        q, k, v: (B, H, ..., width), 16-bit values as int16.
        w: (H, c_q, c_k), float32 or int16.
        extent: the numbers of the owned queries and keys (`kernels.common.extent.numbered`).
        """
        q_tile = cuda.shared.array(q_shape, int16, alignment=PATTERN)
        k_tiles = cuda.shared.array(tiles_shape, int16, alignment=PATTERN)
        v_tiles = cuda.shared.array(tiles_shape, int16, alignment=PATTERN)
        scores = cuda.shared.array(scores_shape, int16, alignment=128)
        bands = cuda.shared.array(bands_shape, int16, alignment=128)
        turns, copied = cuda.shared.array(groups, int64), cuda.shared.array(1, int64)
        batch, head = cuda.blockIdx.x // q.shape[1], cuda.blockIdx.x % q.shape[1]
        thread, lane = int32(cuda.threadIdx.x), int32(cuda.threadIdx.x) & int32(31)
        group = cuda.shfl_sync(FULL, thread // int32(GROUP), 0)  # shows ptxas a uniform value
        warp_row, column = (thread >> int32(5)) * int32(16), (lane & int32(3)) * int32(2)
        row, at = warp_row + (lane >> int32(2)), uint32(warp_row + (lane & int32(15)))
        n, i0 = int32(q.shape[2]), int32(row_tile(serpentine)) * int32(owned)
        # n is the end of the owned keys
        first_query, first_key, diagonal = int32(0), int32(0), int32(0)
        if parts:
            first_query, first_key, n, diagonal = extent
            i0 += diagonal
        end = (min(n, i0 + int32(owned)) if causal else n) - int32(shift)  # of the input keys
        factor = LOG2E if scaled else scale * LOG2E
        slack = min(SLACK / factor, LARGEST)
        # 1. copy the queries and the first tiles, load the taps
        copy_q(q_tile, q, batch, head, first_query + i0 - diagonal - int32(above))
        copy(k_tiles[0], k, batch, head, int32(0))
        copy(v_tiles[0], v, batch, head, int32(shift) - first_key)
        copy(k_tiles[1], k, batch, head, int32(keys))
        cp_async_commit()
        load(bands, w, head)
        for x in range(thread, margins, threads):
            x = uint32(x)
            y, r = x // uint32(8 * MARGIN), x // uint32(8) % uint32(MARGIN)
            scores[y // uint32(keys // 8), y % uint32(keys // 8), uint32(rows) + r, x & uint32(7)] = int16(0)
        if thread == 0:
            for x in range(groups):
                mbarrier_init(turns, x, arrivals if x else arrivals - 4 * int(early))
            mbarrier_init(copied, 0, threads)
            fence_mbarrier_init()
        cp_async_wait_0()
        fence_proxy_async()
        cuda.syncthreads()
        of_q = matrix_descriptor(q_tile, (group * int32(ROWS), 0), 16, PATTERN, SWIZZLE)
        of_k = matrix_descriptor(k_tiles, (0, 0, 0), 16, PATTERN, SWIZZLE)
        of_v = matrix_descriptor(v_tiles, (0, 0, 0), keys * SWIZZLE, PATTERN, SWIZZLE)
        of_scores = matrix_descriptor(scores, (0, 0, group * int32(ROWS), 0), column_bytes, 128, 0)
        of_bands = matrix_descriptor(bands, (0, 0, 0, 0), band_bytes, 128, 0)
        i, first_row = i0 + row, i0 + group * int32(ROWS)
        # the input keys that this warp group needs end here
        needed = min(end, first_row + int32(ROWS - shift)) if causal else end
        # the turns go from the last warp group to the first
        following = int32(groups - 1) if group == 0 else group - int32(1)
        # 2. S0 of the first tile
        s = wgmma_wait_0(start_scores(zeros_s, of_q, of_k))
        store(scores[0], at, s, i, int32(0), column, causal, scale, first_row)
        fence_proxy_async()
        pass_on(turns, group, lane)
        if group == 0:
            pass_on(turns, following, lane)
        if early and group + int32(1) < int32(groups):
            pass_on(turns, group + int32(1), lane)
        os, carried = zeros_o, nothing_carried
        m0, m1, l0, l1 = MINUS_INFINITY, MINUS_INFINITY, float32(0), float32(0)
        slot, odd = uint32(0), uint32(0)
        for first in range(int32(0), end, int32(keys)):
            first = int32(first)
            out = first + int32(shift)
            # 3. in turn, compute T. All groups have finished S0 of the last tile, and O of the one before it
            await_phase(turns, group, odd)
            after = uint32(0) if slot == uint32(SLOTS - 1) else uint32(slot + uint32(1))
            before = uint32(SLOTS - 1) if slot == uint32(0) else uint32(slot - uint32(1))
            if first < needed:
                sums = start(advance(of_scores, odd * uint32(scores_step)), of_bands)
                if early:
                    pass_on(turns, following, lane)
                copy_tiles(k_tiles[before], v_tiles[after], k, v, batch, head, first, first_key, end, copied)
                t, carried = finish(sums, carried)
                if early:
                    if group + int32(1) < int32(groups):
                        pass_on(turns, group + int32(1), lane)
                else:
                    pass_on(turns, following, lane)
                stop = min(n, first_row + int32(1)) if causal else n
                if out < first_key or out + int32(keys) > stop:
                    last0 = (min(n, i + int32(1)) if causal else n) - int32(1) - column - out
                    last1 = (min(n, i + int32(9)) if causal else n) - int32(1) - column - out
                    t = masked(t, first_key - out - column, last0, last1)
                # 4. update the softmax and O, and compute S0 of the next keys, 0 where masked
                p, m0, m1, l0, l1, by0, by1, grown = soften(t, m0, m1, l0, l1, factor, slack)
                if grown:
                    os = grow(os, by0, by1)
                os = start_output(os, packed(p), of_v + uint64(slot * uint32(tile_step)))
                if first + int32(keys) < needed:
                    s = start_scores(s, of_q, of_k + uint64(after * uint32(tile_step)))
                    os, s = wgmma_wait_0(os), wgmma_wait_0(s)
                    ahead = first + int32(keys)
                    store(scores[odd ^ uint32(1)], at, s, i, ahead, column, causal, scale, first_row)
                else:
                    os = wgmma_wait_0(os)
            else:
                copy_tiles(k_tiles[before], v_tiles[after], k, v, batch, head, first, first_key, end, copied)
                pass_on(turns, following, lane)
                if early and group + int32(1) < int32(groups):
                    pass_on(turns, group + int32(1), lane)
            await_phase(copied, 0, odd)
            fence_proxy_async()
            pass_on(turns, group, lane)
            slot = after
            odd ^= uint32(1)
        # 5. normalise and store each row
        l0, l1 = whole_sum(l0), whole_sum(l1)
        i -= diagonal
        stop = min(int32(o.shape[2]) if parts else n, i0 - diagonal + int32(owned))
        if column == 0:
            if i < stop:
                log_sum[batch, head, uint32(i)] = m0 * factor * LN2 + math.log(l0)
            if i + int32(8) < stop:
                log_sum[batch, head, uint32(i + int32(8))] = m1 * factor * LN2 + math.log(l1)
        store_rows(o[:, :, :stop], batch, head, i, os, reciprocal(l0), reciprocal(l1))

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
    block = block or block_for(width, c_q, c_k)
    taps, bits = taps_operand(w, q)
    kernel = conv_hopper_kernel(width, kind_of(q), block, c_q, c_k, bits)
    work = Work(block.groups * ROWS - c_q + 1, block.groups * GROUP)
    given = taps, WHOLE
    return launch_on_tensor_cores(kernel, work, q, k, v, given, scale, causal, run, (key, (q, k, v, w)))
