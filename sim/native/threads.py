"""What lowered text calls to know which thread it is."""

from collections import namedtuple

from numba import int32, int64, uint32

from sim.native.arrays import number, set_number
from sim.native.checks import (
    EPOCH,
    EPOCH_SHIFT,
    INDICES,
    ME,
    SEGMENT_SHIFT,
    SEGMENTS,
    THREAD,
    UNSET,
    WARP_SHIFT,
)
from sim.native.internal import always

OFFERED = {
    "dim3",
    "block_index",
    "enter",
    "lanes_of",
    "lane_of",
    "lanemask_lt",
    "grid_1",
    "grid_2",
    "grid_3",
    "gridsize_1",
    "gridsize_2",
    "gridsize_3",
    "assured",
}

Dim3 = namedtuple("Dim3", "x y z")


@always
def dim3(sizes):
    return Dim3(int32(sizes[0]), int32(sizes[1]), int32(sizes[2]))


@always
def block_index(position, gridDim):
    """The block at `position` in a walk over the grid, x fastest."""
    plane = int64(gridDim.x) * gridDim.y
    return Dim3(
        int32(position % gridDim.x), int32(position // gridDim.x % gridDim.y), int32(position // plane)
    )


@always
def enter(state, thread):
    """`thread` is the one that runs from here on; returns its index."""
    set_number(
        state,
        ME,
        number(state, EPOCH) << EPOCH_SHIFT
        | number(state, SEGMENTS + (thread >> WARP_SHIFT)) << SEGMENT_SHIFT
        | thread,
    )
    index = number(state, INDICES + thread)
    return Dim3(int32(index & 0xFFFF), int32(index >> 16 & 0xFFFF), int32(index >> 32))


@always
def lanes_of(warp, threads):
    """The threads of a warp."""
    return range(32 * warp, min(32 * warp + 32, threads))


@always
def lane_of(thread):
    return int32(thread & 31)


@always
def lanemask_lt(thread):
    return uint32((1 << (thread & 31)) - 1)


@always
def grid_1(threadIdx, blockIdx, blockDim):
    return int64(blockIdx.x) * blockDim.x + threadIdx.x


@always
def grid_2(threadIdx, blockIdx, blockDim):
    return int64(blockIdx.x) * blockDim.x + threadIdx.x, int64(blockIdx.y) * blockDim.y + threadIdx.y


@always
def grid_3(threadIdx, blockIdx, blockDim):
    return (
        int64(blockIdx.x) * blockDim.x + threadIdx.x,
        int64(blockIdx.y) * blockDim.y + threadIdx.y,
        int64(blockIdx.z) * blockDim.z + threadIdx.z,
    )


@always
def gridsize_1(blockDim, gridDim):
    return int64(blockDim.x) * gridDim.x


@always
def gridsize_2(blockDim, gridDim):
    return int64(blockDim.x) * gridDim.x, int64(blockDim.y) * gridDim.y


@always
def gridsize_3(blockDim, gridDim):
    return int64(blockDim.x) * gridDim.x, int64(blockDim.y) * gridDim.y, int64(blockDim.z) * gridDim.z


@always
def assured(state, value, is_set, slot, blockIdx, gridDim):
    """`value`, of a variable to which a thread may have assigned nothing: then that is noted."""
    if not is_set:
        me = 1 + (
            ((int64(blockIdx.z) * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x) << 10
            | number(state, ME) & THREAD
        )
        before = number(state, UNSET + slot)
        set_number(state, UNSET + slot, me if before == 0 else min(before, me))
    return value
