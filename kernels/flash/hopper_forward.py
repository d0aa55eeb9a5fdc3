"""Flash attention forward pass with `wgmma`, for GPUs of compute capability 9.0 (Hopper).

The algorithm is the same as in `flash_tensor_forward`, with these differences:

    roles       Warp groups of consumers own 64 queries each, and start products. One warp group of producers
                only copies tiles. Producers give registers to consumers (warp specialisation)
    products    S = Q Kᵀ reads both operands from shared memory. P is the left operand of P V, from the
                registers in which a consumer has computed it
    overlap     A consumer starts the scores of the next tile, then the products with this tile's values, and
                computes the weights of the scores while the tensor cores multiply
    blocks      At most `resident` blocks per multiprocessor are launched. Each owns several tiles of queries
                in turn. Producers already copy tiles for the next turn, and consumers start its first scores
                together with the last products of the turn before

Source: Shah et al. 2024, arXiv 2407.08608 (warp specialisation, overlap within a warp group).

    grid    see `kernels.tensor_cores.launch.ResidentWork`
    block   (groups + 1) · 128 threads, see `kernels.flash.hopper_blocks`
    shared  (q_slots · groups · 64 + 2 · slots · keys) · width · 2 bytes. Rows of a tile are divided into
            pieces of 64 columns, 128 bytes, with the 128-byte swizzle
    cost    2 · N · N_k · d multiply-adds per head, half of that if causal
"""

import functools
import math

from numba import cuda
from numpy import float32, int16, int32, int64, uint32, uint64

from kernels.common.tiles import MINUS_INFINITY, reciprocal
from kernels.flash.hopper_blocks import BLOCKS, item_finder, producer, slot_of
from kernels.tensor_cores.bulk_copies import fence_mbarrier_init, mbarrier_arrive, mbarrier_init
from kernels.tensor_cores.launch import (
    ResidentWork,
    kind_of,
    launch_on_tensor_cores,
    relaunched,
    tensor_width,
)
from kernels.tensor_cores.tiles import FULL, LARGEST, LN2, LOG2E, SLACK, whole_sum
from kernels.tensor_cores.warpgroup import (
    fence_proxy_async,
    fewer_registers,
    matrix_descriptor,
    more_registers,
    wgmma_commit,
    wgmma_wait_0,
    wgmma_wait_1,
)
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
)


@functools.cache
def consumer(width, kind, block):
    """Create consume(q, k, scale, causal, tiles, full, empty, order, o, log_sum), the work of the consumers
    of a block."""
    slots, q_slots, keys, rows = block.slots, block.q_slots, block.keys, block.groups * ROWS
    groups, ordered = block.groups, block.ordered
    s_count, o_count = keys // 2, width // 2
    item, masked, soften = item_finder(rows, keys), masker(s_count), softener(s_count)
    start_scores, start_output = score_starter(kind, keys, width, rows), output_starter(kind, keys, width)
    packed, scaled, store_rows = packer(kind, s_count), scaler(o_count), rows_storer(kind, o_count)
    zeros_s, zeros_o = (float32(0),) * s_count, (float32(0),) * o_count
    zeros_p = (uint32(0),) * (s_count // 2)
    q_step, step = (width // COLUMNS * size * SWIZZLE // 16 for size in (rows, keys))  # in a descriptor

    @cuda.jit(device=True, forceinline=True)
    def store_sums(log_sum, batch, head, i, m0, m1, l0, l1, factor):
        """Store the log-sum-exp of rows i and i + 8."""
        total0, total1 = whole_sum(l0), whole_sum(l1)
        if cuda.threadIdx.x & 3 == 0:
            if i < log_sum.shape[2]:
                log_sum[batch, head, uint32(i)] = m0 * factor * LN2 + math.log(total0)
            if i + int32(8) < log_sum.shape[2]:
                log_sum[batch, head, uint32(i + int32(8))] = m1 * factor * LN2 + math.log(total1)

    @cuda.jit(device=True, forceinline=True)
    def finish(out, batch, head, i, o, l0, l1):
        """Normalise rows i and i + 8 of O, and store them."""
        share0, share1 = reciprocal(whole_sum(l0)), reciprocal(whole_sum(l1))
        store_rows(out, batch, head, i, o, share0, share1)

    @cuda.jit(device=True, forceinline=True)
    def consume(q, k, scale, causal, tiles, full, empty, order, out, log_sum):
        thread, lane = int32(cuda.threadIdx.x), int32(cuda.threadIdx.x) & int32(31)
        group = cuda.shfl_sync(FULL, thread // int32(GROUP), 0)  # shows ptxas a uniform value
        row = group * int32(ROWS) + (thread >> int32(5) & int32(3)) * int32(16) + (lane >> int32(2))
        column = (lane & int32(3)) * int32(2)
        n_keys = int32(k.shape[2])
        factor = scale * LOG2E
        slack = min(SLACK / factor, LARGEST)
        first_q = matrix_descriptor(tiles[0], (0, group * int32(ROWS), 0), 16, PATTERN, SWIZZLE)
        first_k = matrix_descriptor(tiles[1], (0, 0, 0), 16, PATTERN, SWIZZLE)
        first_v = matrix_descriptor(tiles[2], (0, 0, 0), keys * SWIZZLE, PATTERN, SWIZZLE)
        s, o, p, turn, t = zeros_s, zeros_o, zeros_p, uint32(0), uint32(0)
        l0, l1, v_slot, v_odd = float32(0), float32(0), uint32(0), uint32(0)
        batch_before, head_before, i_before = uint32(0), uint32(0), int32(0)
        mine = uint32(1) if group == 0 else uint32(0)
        other = int32(0) if group == int32(groups - 1) else group + int32(1)
        exists, batch, head, i0, count = item(turn, q, k, causal)
        while exists:
            i, j0 = i0 + row, int32(0)
            # the last visible key of each row minus the lane's first key; the first key that may be hidden
            last0 = (min(n_keys, i + int32(1)) if causal else n_keys) - int32(1) - column
            last1 = (min(n_keys, i + int32(9)) if causal else n_keys) - int32(1) - column
            first = i0 + group * int32(ROWS)
            edge = min(n_keys, first + int32(1)) if causal else n_keys
            # the number of tiles with keys that this group's queries see; the mask hides the block's other
            # tiles
            seen = min(n_keys, first + int32(ROWS)) if causal else n_keys
            own = int32(uint32(seen + int32(keys - 1)) // uint32(keys))
            # 1. the scores of the first tile, together with the output of the last tile of the turn before
            (q_slot, q_odd), (slot, odd) = slot_of(turn, q_slots), slot_of(t, slots)
            wait(full[0], q_slot, q_odd)
            wait(full[1], slot, odd)
            if turn:
                wait(full[2], v_slot, v_odd)
            fence_proxy_async()
            of_q = first_q + uint64(q_slot * uint32(q_step))
            s = start_scores(s, of_q, first_k + uint64(slot * uint32(step)))
            if turn:
                o = start_output(o, p, first_v + uint64(v_slot * uint32(step)))
            else:
                wgmma_commit()
            s = wgmma_wait_1(s)
            if lane == 0:
                mbarrier_arrive(empty[1], slot)
            if int32(keys) > edge:
                s = masked(s, last0, last1)
            total0, total1 = l0, l1
            m0, m1, l0, l1 = MINUS_INFINITY, MINUS_INFINITY, float32(0), float32(0)
            s, m0, m1, l0, l1, by0, by1, grown = soften(s, m0, m1, l0, l1, factor, slack)
            k_slot, k_odd = slot_of(uint32(t + uint32(1)), slots)
            o = wgmma_wait_0(o)
            if turn:
                if lane == 0:
                    mbarrier_arrive(empty[2], v_slot)
                finish(out, batch_before, head_before, i_before, o, total0, total1)
            o = zeros_o
            p = packed(s)
            v_slot, v_odd, slot, odd = slot, odd, k_slot, k_odd
            t = uint32(t + uint32(1))
            # 2. the scores of each other tile, together with the output of the tile before it
            for tile in range(int32(1), own):
                j0 = int32(tile) * int32(keys)
                wait(full[1], slot, odd)
                wait(full[2], v_slot, v_odd)
                if ordered:
                    wait(order, group, mine)
                    mine ^= uint32(1)
                fence_proxy_async()
                s = start_scores(s, of_q, first_k + uint64(slot * uint32(step)))
                o = start_output(o, p, first_v + uint64(v_slot * uint32(step)))
                if ordered and lane == 0:
                    mbarrier_arrive(order, other)
                s = wgmma_wait_1(s)
                if lane == 0:
                    mbarrier_arrive(empty[1], slot)
                if j0 + int32(keys) > edge:
                    s = masked(s, last0 - j0, last1 - j0)
                s, m0, m1, l0, l1, by0, by1, grown = soften(s, m0, m1, l0, l1, factor, slack)
                k_slot, k_odd = slot_of(uint32(t + uint32(1)), slots)
                o = wgmma_wait_0(o)
                if lane == 0:
                    mbarrier_arrive(empty[2], v_slot)
                v_slot, v_odd, slot, odd = slot, odd, k_slot, k_odd
                t = uint32(t + uint32(1))
                if grown:
                    o = scaled(o, by0, by1)
                p = packed(s)
            # 3. the log-sum-exp of each row
            if lane == 0:
                mbarrier_arrive(empty[0], q_slot)
            store_sums(log_sum, batch, head, i, m0, m1, l0, l1, factor)
            batch_before, head_before, i_before = batch, head, i
            # 4. the tiles that only later groups need. Without `syncwarp`, lane 0 could arrive, and the next
            # phase could end, before another lane of its warp has observed the end of this phase. In parts 1
            # and 2, wgmma orders the lanes.
            for _ in range(own, count):
                if ordered:
                    wait(order, group, mine)
                    mine ^= uint32(1)
                    cuda.syncwarp()
                    if lane == 0:
                        mbarrier_arrive(order, other)
                slot, odd = slot_of(t, slots)
                wait(full[1], slot, odd)
                wait(full[2], slot, odd)
                cuda.syncwarp()
                if lane == 0:
                    mbarrier_arrive(empty[1], slot)
                    mbarrier_arrive(empty[2], slot)
                t = uint32(t + uint32(1))
            turn = uint32(turn + uint32(1))
            exists, batch, head, i0, count = item(turn, q, k, causal)
        # 5. the output of the last tile of the last turn
        if turn:
            wait(full[2], v_slot, v_odd)
            fence_proxy_async()
            o = wgmma_wait_0(start_output(o, p, first_v + uint64(v_slot * uint32(step))))
            finish(out, batch_before, head_before, i_before, o, l0, l1)

    return consume


@functools.cache
def flash_hopper_kernel(width, kind, block):
    """Return the kernel for rows of `width` elements of the type `kind`.

    block: a Block.
    """
    block.check()
    slots, q_slots, groups, consumers = block.slots, block.q_slots, block.groups, block.consumers
    q_shape = q_slots, width // COLUMNS * groups * ROWS, COLUMNS
    shape = slots, width // COLUMNS * block.keys, COLUMNS
    produce, consume = producer(width, block), consumer(width, kind, block)
    fewer, more = fewer_registers(block.registers[0]), more_registers(block.registers[1])
    bounds = block.threads, block.resident

    @cuda.jit(launch_bounds=bounds)
    def flash_hopper_kernel(q, k, v, scale, causal, o, log_sum):
        """Compute o (B, H, N, width / 2), int32 elements with two 16-bit values each, and log_sum (B, H, N),
        float32.

        q: (B, H, N, width), 16-bit values as int16.
        k, v: (B, H, N_k, width), 16-bit values as int16.
        """
        q_tiles = cuda.shared.array(q_shape, int16, alignment=PATTERN)
        k_tiles = cuda.shared.array(shape, int16, alignment=PATTERN)
        v_tiles = cuda.shared.array(shape, int16, alignment=PATTERN)
        q_full, q_empty = cuda.shared.array(q_slots, int64), cuda.shared.array(q_slots, int64)
        k_full, k_empty = cuda.shared.array(slots, int64), cuda.shared.array(slots, int64)
        v_full, v_empty = cuda.shared.array(slots, int64), cuda.shared.array(slots, int64)
        order = cuda.shared.array(groups, int64)
        tiles, full, empty = (
            (q_tiles, k_tiles, v_tiles),
            (q_full, k_full, v_full),
            (q_empty, k_empty, v_empty),
        )
        if cuda.threadIdx.x == 0:
            for slot in range(q_slots):
                mbarrier_init(q_full, slot, GROUP)
                mbarrier_init(q_empty, slot, consumers // 32)
            for slot in range(slots):
                mbarrier_init(k_full, slot, GROUP)
                mbarrier_init(v_full, slot, GROUP)
                mbarrier_init(k_empty, slot, consumers // 32)
                mbarrier_init(v_empty, slot, consumers // 32)
            for slot in range(groups):
                mbarrier_init(order, slot, 4)
            fence_mbarrier_init()
        cuda.syncthreads()
        if cuda.threadIdx.x < consumers:
            more()
            consume(q, k, scale, causal, tiles, full, empty, order, o, log_sum)
        else:
            fewer()
            produce(q, k, v, causal, tiles, full, empty)

    return flash_hopper_kernel


def flash_hopper_forward(q, k, v, causal, scale, run=None, block=None):
    """Launch the kernel, and return (O, L).

    q, k, v: bfloat16 or float16, contiguous and already checked. O has the shape and dtype of q.
    block: a Block, instead of the one in BLOCKS.
    """
    key = (flash_hopper_kernel, q.shape, k.shape, q.dtype, q.device, causal, scale, block)
    found = relaunched(key, q, k, v) if run is None else None
    if found:
        return found
    width = tensor_width(q.shape[3])
    block = block or BLOCKS[width]
    kernel = flash_hopper_kernel(width, kind_of(q), block)
    work = ResidentWork(block.groups * ROWS, block.threads, block.resident)
    return launch_on_tensor_cores(kernel, work, q, k, v, (), scale, causal, run, (key, (q, k, v)))
