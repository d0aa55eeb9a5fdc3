"""What lowered text calls to know which thread it is."""

from collections import namedtuple

from llvmlite import ir
from numba import int32, types, uint32
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic

from sim.native.checks import EPOCH_SHIFT, SEGMENT_SHIFT, THREAD, THREAD_BITS, WARP_SHIFT
from sim.native.internal import always
from sim.native.words import words

OFFERED = {"dim3", "block_index", "enter", "lanes_of", "has_returned", "lane_of", "lanemask_lt", "assured"}

Dim3 = namedtuple("Dim3", "x y z")
DIM3 = types.NamedUniTuple(int32, 3, Dim3)


@words
def dim3(x, y, z) -> DIM3:
    return x, y, z


@words
def block_index(position, width, height) -> DIM3:
    """The block at `position` in a walk over the grid, x fastest."""
    return position % width, position // width % height, position // (width * height)


@words
def enter(state, thread) -> DIM3:
    """`thread` is the one that runs from here on; returns its index."""
    segment = state.segments[thread >> WARP_SHIFT]
    state.me = state.epoch << EPOCH_SHIFT | segment << SEGMENT_SHIFT | thread
    index = state.indices[thread]
    return index & 0xFFFF, index >> 16 & 0xFFFF, index >> 32


@words
def has_returned(state, thread) -> bool:
    return state.returned[thread]


@always
def lanes_of(warp, threads):
    """The threads of a warp."""
    return range(32 * warp, min(32 * warp + 32, threads))


@words
def lane_of(thread) -> int32:
    return thread & 31


@words
def lanemask_lt(thread) -> uint32:
    return (1 << (thread & 31)) - 1


# --- variables ----------------------------------------------------------------------------------------------


@always
def assured(state, value, is_set, slot):
    """`value`, of a variable to which a thread may have assigned nothing: then that is noted."""
    if not is_set:
        note_unset(state, slot)
    return or_zero(value, is_set)


@words
def note_unset(state, slot):
    me = 1 + (state.position << THREAD_BITS | state.me & THREAD)
    state.unset[slot] = me if state.unset[slot] == 0 else min(state.unset[slot], me)


@intrinsic
def or_zero(typing, value, is_set):
    """A number, or 0 where nothing has set it: what LLVM makes of such a variable may be any other."""

    def code(context, builder, signature, arguments):
        number, is_set = arguments
        return builder.select(is_set, number, ir.Constant(number.type, None))

    def as_it_is(context, builder, signature, arguments):
        return impl_ret_borrowed(context, builder, signature.return_type, arguments[0])

    return value(value, types.boolean), code if isinstance(value, (types.Number, types.Boolean)) else as_it_is
