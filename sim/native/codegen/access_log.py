"""What compiled code writes down where accesses are counted: one word for each access and branch, in the
order in which one thread after another does them.

A word is, from the lowest bit, 48 bits of address (of a branch: whether it was taken), 3 of log2(size in
bytes), 12 of the place in the source, or of what else is told: which thread goes on, the end of an epoch,
something that threads did together. sim.native.run.tally counts them.
"""

from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic

from sim.native.codegen.arrays import GuardedType
from sim.native.codegen.int64 import words
from sim.native.codegen.linking import always

OFFERED = {"logged", "branch", "log_thread", "log_epoch", "log_together", "log_warp"}
SIZE_SHIFT, PLACE_SHIFT = 48, 51
PLACES = (1 << 12) - 4  # of a kernel; behind them what else a word may tell
THREAD_GOES_ON, EPOCH_ENDS, TOGETHER = range(PLACES, PLACES + 3)


@words
def append(state, entry):
    length = state.log_count
    if length < state.log_room:
        state.log[length] = entry
    state.log_count = length + 1


@words
def log_thread(state, thread):
    append(state, THREAD_GOES_ON << PLACE_SHIFT | thread)


@words
def log_epoch(state):
    append(state, EPOCH_ENDS << PLACE_SHIFT)


@words
def log_together(state, place):
    append(state, TOGETHER << PLACE_SHIFT | place)


@words
def log_warp(state, place, warp, threads):
    """The same of those lanes of a warp that are there."""
    for thread in range(32 * warp, min(32 * warp + 32, threads)):
        if not state.returned[thread]:
            log_together(state, place)
            return


@always
def branch(state, test, place):
    """What a thread decides at a branch."""
    append(state, place << PLACE_SHIFT | (1 if test else 0))
    return test


@intrinsic(prefer_literal=True)
def logged(typing, x, place):
    """`x`, whose elements are accessed at this place in the source: that is written down. What is no array is
    as it was."""

    def code(context, builder, signature, arguments):
        return impl_ret_borrowed(context, builder, signature.return_type, arguments[0])

    at_place = x.but(place=place.literal_value) if isinstance(x, GuardedType) else x
    return at_place(x, place), code
