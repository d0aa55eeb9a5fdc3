"""The access log that compiled code writes if an observer subscribes to accesses, branches or barriers.

One entry is an int64: from the lowest bit, 48 bits of address (of a branch: whether it was taken), 3 bits of
log2(size in bytes), 12 bits of the site's number. Numbers from PLACES on are marker entries: the running
thread changes, a barrier opens, lanes of a warp execute an instruction together, part of a value that a store
or an atomic wrote, a block ends. sim.native.run.access_log replays the log to the observers.
"""

from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic

from sim.native.codegen.arrays import GuardedType
from sim.native.codegen.int64 import int64_helper
from sim.native.codegen.linking import inline_always

EXPORTED = {"with_site", "log_branch", "log_thread", "log_barrier", "log_block", "log_collective", "log_warp"}
SIZE_SHIFT, SITE_SHIFT = 48, 51
MAX_SITES = (1 << 12) - 8  # the largest number of sites in a kernel
THREAD_SWITCH, BARRIER_OPENS, COLLECTIVE, VALUE, BLOCK_ENDS = range(MAX_SITES, MAX_SITES + 5)
# A VALUE entry holds 4 bytes of a value, or all of a shorter one, and above them its dtype's position here.
VALUE_BITS = 32
DTYPES = tuple(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex64"
    " complex128".split()
)


@int64_helper
def append(state, entry):
    length = state.log_count
    if length < state.log_room:
        state.log[length] = entry
    state.log_count = length + 1


@int64_helper
def log_thread(state, thread):
    append(state, THREAD_SWITCH << SITE_SHIFT | thread)


@int64_helper
def log_barrier(state, site):
    append(state, BARRIER_OPENS << SITE_SHIFT | site)


@int64_helper
def log_block(state):
    append(state, BLOCK_ENDS << SITE_SHIFT | state.position)


@int64_helper
def log_collective(state, site):
    append(state, COLLECTIVE << SITE_SHIFT | site)


@int64_helper
def log_warp(state, site, warp, threads):
    """Log an instruction of a warp, if any of its lanes has not returned."""
    for thread in range(32 * warp, min(32 * warp + 32, threads)):
        if not state.returned[thread]:
            log_collective(state, site)
            return


@inline_always
def log_branch(state, test, site):
    """Log a thread's decision at a branch, and return `test`."""
    append(state, site << SITE_SHIFT | (1 if test else 0))
    return test


@intrinsic(prefer_literal=True)
def with_site(typing, x, site):
    """Return `x` with the site at which its elements are accessed, so that the accesses are logged. A
    value that is no array is returned unchanged."""

    def code(context, builder, signature, arguments):
        return impl_ret_borrowed(context, builder, signature.return_type, arguments[0])

    at_site = x.replace(site=site.literal_value) if isinstance(x, GuardedType) else x
    return at_site(x, site), code
