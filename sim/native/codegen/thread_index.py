"""The current thread and block: their indices, and checks that the thread has assigned a variable."""

from collections import namedtuple

from llvmlite import ir
from numba import int32, int64, types, uint32
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic

from sim.native.codegen.int64 import int64_helper
from sim.native.codegen.int64_translation import I64
from sim.native.codegen.shadow import EPOCH_SHIFT, SEGMENT_SHIFT, THREAD, THREAD_BITS, WARP_SHIFT

EXPORTED = {"dim3", "block_index", "start_thread", "has_returned", "lane_of", "lanemask_lt", "check_assigned"}

Dim3 = namedtuple("Dim3", "x y z")
DIM3 = types.NamedUniTuple(int32, 3, Dim3)


@int64_helper
def dim3(x, y, z) -> DIM3:
    """Return three int32 values as a Dim3."""
    return x, y, z


@int64_helper
def block_index(position, width, height) -> DIM3:
    """Return the blockIdx of the block at linear index `position`. x varies fastest.

    width, height: the first two sizes of the grid.
    """
    return position % width, position // width % height, position // (width * height)


@int64_helper(inline=False)
def start_thread(state, thread) -> DIM3:
    """Make `thread` the current thread, and return its threadIdx."""
    segment = state.segments[thread >> WARP_SHIFT]
    state.own_entry = state.epoch << EPOCH_SHIFT | segment << SEGMENT_SHIFT | thread
    # The index consists of three 16-bit fields, as `indices_of` packs them.
    index = state.indices[thread]
    return index & 0xFFFF, index >> 16 & 0xFFFF, index >> 32


@int64_helper
def has_returned(state, thread) -> bool:
    """Return whether a thread has returned from the kernel."""
    return state.returned[thread]


@int64_helper
def lane_of(thread) -> int32:
    """Return the index of a thread within its warp."""
    return thread & 31


@int64_helper
def lanemask_lt(thread) -> uint32:
    """Return the mask of the lanes below the thread's lane."""
    return (1 << (thread & 31)) - 1


# --- unassigned variables -----------------------------------------------------------------------------------


@int64_helper
def record_unset(state, is_set, slot):
    """Record the current thread in `unset[slot]` if it reads a variable that it has not assigned.

    The lowest block and thread are recorded, so that findings do not depend on the order of execution.
    """
    # 0 means that no thread has been recorded, so thread numbers begin at 1.
    reader = 1 + (state.position << THREAD_BITS | state.own_entry & THREAD)
    if not is_set:
        state.unset[slot] = reader if state.unset[slot] == 0 else min(state.unset[slot], reader)


@intrinsic
def check_assigned(typing, state, value, is_set, slot):
    """Return the value of a variable, and record the read if the thread has not assigned the variable.

    An unassigned number reads as 0, because LLVM would otherwise treat it as undefined.
    """

    def code(context, builder, signature, arguments):
        state, found, is_set, slot = arguments
        record_unset.helper.call(context, builder, state, builder.zext(is_set, I64), slot)
        if isinstance(value, (types.Number, types.Boolean)):
            return builder.select(is_set, found, ir.Constant(found.type, None))
        return impl_ret_borrowed(context, builder, signature.return_type, found)

    return value(int64, value, types.boolean, int64), code
