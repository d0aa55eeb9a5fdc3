"""What compiled code writes down where accesses are counted: one word for each access and branch, in the
order in which one thread after another does them.

A word is, from the lowest bit, 48 bits of address (of a branch: whether it was taken), 3 of log2(size in
bytes), 12 of the place in the source, or of what else is told: which thread goes on, the end of an epoch,
something that threads did together. sim.native.tally counts them.
"""

from llvmlite import ir
from numba import int64, types
from numba.extending import intrinsic, overload

from sim.native.elements import Place, is_element
from sim.native.internal import LIKE_CODE, always
from sim.native.scalars import dtype_of
from sim.native.words import words

OFFERED = {"load", "store", "branch", "log_thread", "log_epoch", "log_together", "log_warp"}
I64 = ir.IntType(64)
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
def branch(state, test, thread, place):
    """What a thread decides at a branch."""
    append(state, place << PLACE_SHIFT | (1 if test else 0))
    return test


def log(context, builder, x, array, index, code, place):
    """Write down an access that finds its element, in LLVM's values."""
    found = Place(context, builder, x, array, index, code)
    size = I64(dtype_of(x.dtype).itemsize.bit_length() - 1 << SIZE_SHIFT)
    with builder.if_then(found.from_the_start()):
        address = builder.ptrtoint(found.pointer(found.flat(found.given)), I64)
        what = builder.or_(builder.shl(place, I64(PLACE_SHIFT)), size)
        found.call(append, found.array.state, builder.or_(what, address))


@intrinsic
def log_access(typing, x, index, place):
    def code(context, builder, signature, arguments):
        array, index_code, place_code = arguments
        log(context, builder, x, array, index, index_code, place_code)
        return context.get_dummy_value()

    return types.void(x, index, int64), code


def load(x, index, place):
    """x[index], written down: an element or a view."""


def store(x, index, value, place):
    """x[index] = value, written down."""


@overload(load, **LIKE_CODE)
def load_any(x, index, place):
    if not is_element(x, index):
        return lambda x, index, place: x[index]

    def load(x, index, place):
        log_access(x, index, place)
        return x[index]

    return load


@overload(store, **LIKE_CODE)
def store_any(x, index, value, place):
    if not is_element(x, index):
        return None

    def store(x, index, value, place):
        log_access(x, index, place)
        x[index] = value

    return store
