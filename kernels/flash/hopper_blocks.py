"""The blocks of flash attention with `wgmma`: their sizes, their work, and their producers, which copy tiles.

    Block       the sizes of a block
    BLOCKS      the block for each width
    slot_of     the slot in shared memory of a tile
    producer    the device function of the warp group that copies tiles

Each of Q, K and V has several slots in shared memory. Two mbarriers belong to a slot: `full` counts the
producers whose copies into it are complete, and `empty` the warps that have finished with it.
"""

import functools
from typing import NamedTuple

from numba import cuda
from numpy import int32, uint32

from kernels.tensor_cores.bulk_copies import mbarrier_arrive_copies
from kernels.tensor_cores.instructions import cp_async_16
from kernels.tensor_cores.tiles import CHUNK
from kernels.tensor_cores.warpgroup_tiles import GROUP, ROWS, wait

REGISTERS = 2**16  # registers of a multiprocessor


class Block(NamedTuple):
    """Sizes of a block.

    groups: warp groups of consumers.
    keys: keys per tile.
    slots, q_slots: tiles of K, and of V, in shared memory; tiles of queries.
    registers: registers per thread of a producer and of a consumer.
    resident: blocks per multiprocessor.
    ordered: let the groups of consumers start their products in turn, so that one computes weights while the
        tensor cores work for another (ping-pong).
    """

    groups: int
    keys: int
    slots: int
    q_slots: int
    registers: tuple
    resident: int = 1
    ordered: bool = False

    @property
    def consumers(self):
        return self.groups * GROUP

    @property
    def threads(self):
        return self.consumers + GROUP

    def check(self):
        """Raise ValueError if consumers would wait forever.

        They would wait for registers if a block has too few, and for a tile that they skip if they still use
        all slots.
        """
        at_launch = REGISTERS // (self.resident * self.threads) // 8 * 8
        fewer, more = self.registers
        if fewer + self.groups * more > (self.groups + 1) * at_launch:
            raise ValueError(f"{self} takes more than {at_launch} registers per thread")
        skipped = -(-(self.groups - 1) * ROWS // self.keys)
        if self.slots <= skipped:
            raise ValueError(f"{self} has {self.slots} slots; wanted at least {skipped + 1}")


BLOCKS = {  # by width
    64: Block(3, 128, 3, 2, (32, 160), ordered=True),
    128: Block(3, 64, 3, 1, (32, 160)),
}


@cuda.jit(device=True, forceinline=True)
def slot_of(t, slots):
    """Return the slot of the t-th tile, and the parity of its phase."""
    return t % uint32(slots), t // uint32(slots) & uint32(1)


@functools.cache
def tile_copier(rows, width):
    """Create copy(tiles, slot, x, batch, head, first, full), with which a warp group starts a copy of rows
    [first, first + rows) of x[batch, head] to tiles[slot], with the 128-byte swizzle. Rows outside x become
    zeros. The barrier full[slot] counts the threads whose copies are complete.
    """
    chunks = width // CHUNK
    step = GROUP // chunks  # rows

    @cuda.jit(device=True, forceinline=True)
    def copy(tiles, slot, x, batch, head, first, full):
        thread = uint32(cuda.threadIdx.x) % uint32(GROUP)
        source, target = x[batch, head], tiles[slot]
        row, chunk = thread // uint32(chunks), thread % uint32(chunks)
        left = int32(x.shape[2]) - first - int32(row)
        to, column = chunk // uint32(CHUNK) * uint32(rows) + row, ((chunk ^ row) & uint32(7)) * uint32(CHUNK)
        for i in range(0, rows, step):
            place, taken = (to + uint32(i), column), (uint32(first) + row + uint32(i), chunk * uint32(CHUNK))
            cp_async_16(target, place, source, taken, int32(16) if i < left else int32(0))
        mbarrier_arrive_copies(full, slot)

    return copy


@functools.cache
def item_finder(rows, keys):
    """Create item(turn, q, k, causal) -> (exists, batch, head, first query, number of key tiles): the
    tile of queries that this block processes in iteration `turn`.

    The tiles of queries with the most keys come first. The order is serpentine, because the same blocks would
    otherwise get the longer tiles in every iteration.
    """

    @cuda.jit(device=True, forceinline=True)
    def item(turn, q, k, causal):
        block, blocks, heads = uint32(cuda.blockIdx.x), uint32(cuda.gridDim.x), uint32(q.shape[1])
        n_keys, sequences = int32(k.shape[2]), uint32(heads * uint32(q.shape[0]))
        tiles = uint32(q.shape[2] + (rows - 1)) // uint32(rows)
        number = uint32(turn * blocks + (blocks - uint32(1) - block if turn & uint32(1) else block))
        tile = number // sequences
        sequence = uint32(number - tile * sequences)
        batch = sequence // heads
        i0 = int32(tiles - uint32(1) - tile) * int32(rows)
        seen = min(n_keys, i0 + int32(rows)) if causal else n_keys
        count = int32(uint32(seen + int32(keys - 1)) // uint32(keys))
        return tile < tiles, batch, uint32(sequence - batch * heads), i0, count

    return item


@functools.cache
def producer(width, block):
    """Create produce(q, k, v, causal, tiles, full, empty), the work of the producers of a block.

    tiles, full, empty: for each of Q, K and V, the slots, and their barriers.
    """
    slots, q_slots, keys, rows = block.slots, block.q_slots, block.keys, block.groups * ROWS
    item, copy_q, copy = (item_finder(rows, keys), tile_copier(rows, width), tile_copier(keys, width))

    @cuda.jit(device=True, forceinline=True)
    def produce(q, k, v, causal, tiles, full, empty):
        turn, t = uint32(0), uint32(0)
        exists, batch, head, i0, count = item(turn, q, k, causal)
        while exists:
            # At first, every slot is empty: the phase before phase 0 counts as complete.
            slot, odd = slot_of(turn, q_slots)
            wait(empty[0], slot, odd ^ uint32(1))
            copy_q(tiles[0], slot, q, batch, head, i0, full[0])
            for tile in range(count):
                (slot, odd), j0 = slot_of(t, slots), int32(tile) * int32(keys)
                wait(empty[1], slot, odd ^ uint32(1))
                copy(tiles[1], slot, k, batch, head, j0, full[1])
                wait(empty[2], slot, odd ^ uint32(1))
                copy(tiles[2], slot, v, batch, head, j0, full[2])
                t = uint32(t + uint32(1))
            turn = uint32(turn + uint32(1))
            exists, batch, head, i0, count = item(turn, q, k, causal)

    return produce
