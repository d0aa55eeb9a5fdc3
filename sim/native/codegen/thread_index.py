"""Indices of blocks and threads, for lowered text."""

from collections import namedtuple

from llvmlite import ir
from numba import int32, int64, types, uint32
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic

from sim.native.codegen.int64 import WORD, words
from sim.native.codegen.shadow import EPOCH_SHIFT, SEGMENT_SHIFT, THREAD, THREAD_BITS, WARP_SHIFT

OFFERED = {"dim3", "block_index", "enter", "has_returned", "lane_of", "lanemask_lt", "assured"}

Dim3 = namedtuple("Dim3", "x y z")
DIM3 = types.NamedUniTuple(int32, 3, Dim3)


@words
def dim3(x, y, z) -> DIM3:
    return x, y, z


@words
def block_index(position, width, height) -> DIM3:
    """Return the index of the block at `position` in the grid, x fastest."""
    return position % width, position // width % height, position // (width * height)


@words
def enter(state, thread) -> DIM3:
    """Make `thread` the running thread, and return its index."""
    segment = state.segments[thread >> WARP_SHIFT]
    state.me = state.epoch << EPOCH_SHIFT | segment << SEGMENT_SHIFT | thread
    index = state.indices[thread]
    return index & 0xFFFF, index >> 16 & 0xFFFF, index >> 32


@words
def has_returned(state, thread) -> bool:
    return state.returned[thread]


@words
def lane_of(thread) -> int32:
    return thread & 31


@words
def lanemask_lt(thread) -> uint32:
    return (1 << (thread & 31)) - 1


# --- variables ----------------------------------------------------------------------------------------------


@words
def note_unset(state, is_set, slot):
    me = 1 + (state.position << THREAD_BITS | state.me & THREAD)
    if not is_set:
        state.unset[slot] = me if state.unset[slot] == 0 else min(state.unset[slot], me)


@intrinsic
def assured(typing, state, value, is_set, slot):
    """Return the `value` of a variable that a thread may not have assigned. If it has not, record that,
    and return 0 for a number, because LLVM leaves the value undefined."""

    def code(context, builder, signature, arguments):
        state, found, is_set, slot = arguments
        note_unset.words.call(context, builder, state, builder.zext(is_set, WORD), slot)
        if isinstance(value, (types.Number, types.Boolean)):
            return builder.select(is_set, found, ir.Constant(found.type, None))
        return impl_ret_borrowed(context, builder, signature.return_type, found)

    return value(int64, value, types.boolean, int64), code
