"""The access log: int64 entries that compiled code appends while an observer is subscribed to accesses,
branches or barriers. sim.native.run.access_log replays the log.

The fields of an entry, from the lowest bit:

    48 bits   address of the access on the host; for a branch, 1 if it was taken
     3 bits   log2 of the access size in bytes
    12 bits   index of the site in `module.sites`

Site indices from MAX_SITES on denote *marker entries*. Their low bits contain the data of another event: a
switch to another thread, the opening of a barrier, an instruction executed jointly by the lanes of a warp, up
to 4 bytes of a written value, or the end of a block.
"""

from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic

from sim.native.codegen.arrays import GuardedType
from sim.native.codegen.int64 import int64_helper
from sim.native.codegen.linking import inline_always

EXPORTED = {"with_site", "log_branch", "log_thread", "log_barrier", "log_block", "log_collective", "log_warp"}
SIZE_SHIFT, SITE_SHIFT = 48, 51
MAX_SITES = (1 << 12) - 8  # maximum number of sites in a kernel
THREAD_SWITCH, BARRIER_OPENS, COLLECTIVE, VALUE, BLOCK_ENDS = range(MAX_SITES, MAX_SITES + 5)
# The low bits of a VALUE entry contain up to 4 bytes of a written value; the bits above them contain the
# index of its dtype in DTYPES. A value of 8 or 16 bytes therefore takes several VALUE entries.
VALUE_BITS = 32
DTYPES = tuple(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex64"
    " complex128".split()
)


@int64_helper
def append(state, entry):
    """Append an entry to the log if there is room.

    `log_count` is incremented even if there is no room: the launch compares `log_count` with `log_room` to
    detect an overflow.
    """
    length = state.log_count
    if length < state.log_room:
        state.log[length] = entry
    state.log_count = length + 1


@int64_helper
def log_thread(state, thread):
    """Log that `thread` becomes the current thread."""
    append(state, THREAD_SWITCH << SITE_SHIFT | thread)


@int64_helper
def log_barrier(state, site):
    """Log that a block-wide barrier opens at this site."""
    append(state, BARRIER_OPENS << SITE_SHIFT | site)


@int64_helper
def log_block(state):
    """Log the end of the current block."""
    append(state, BLOCK_ENDS << SITE_SHIFT | state.position)


@int64_helper
def log_collective(state, site):
    """Log an instruction executed jointly by the lanes of a warp."""
    append(state, COLLECTIVE << SITE_SHIFT | site)


@int64_helper
def log_warp(state, site, warp, threads):
    """Log an instruction executed by a warp at this site, unless all lanes of the warp have returned."""
    for thread in range(32 * warp, min(32 * warp + 32, threads)):
        if not state.returned[thread]:
            log_collective(state, site)
            return


@inline_always
def log_branch(state, test, site):
    """Log whether the current thread takes a branch, and return `test`."""
    append(state, site << SITE_SHIFT | (1 if test else 0))
    return test


@intrinsic(prefer_literal=True)
def with_site(typing, x, site):
    """Attach a site to the type of `x`, so that accesses to its elements are logged, and return `x`.

    Only arrays are logged. Any other value is returned unchanged.
    """

    def code(context, builder, signature, arguments):
        return impl_ret_borrowed(context, builder, signature.return_type, arguments[0])

    at_site = x.replace(site=site.literal_value) if isinstance(x, GuardedType) else x
    return at_site(x, site), code
