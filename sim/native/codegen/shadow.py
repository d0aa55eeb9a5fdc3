"""Shadow memory, which detects races, uninitialised reads and invalid indices in compiled code.

A check only sets an error flag in the field `errors` of the launch state. The block continues: an invalid
load returns poison, and an invalid store is dropped. Afterwards, the interpreter runs the block again and
produces the findings. Only divergence at a synchronisation point stops a block early.

Each element of a checked array has two *shadow entries* of 64 bits: one for its last write, and one for its
last reads. The fields of an entry, from the lowest bit:

    10 bits   linear index of the thread in its block
     6 bits   flags (ATOMIC, MANY, WARPS, PLAIN; in PTX kernels also FLIGHT, see sim.native.ptx.copies)
    16 bits   segment: how often the lanes of the thread's warp have synchronised
    31 bits   epoch: a number that increases with each block, barrier and arrival at an mbarrier

Epochs increase throughout a launch. An entry of an earlier block is therefore smaller than the first epoch of
the current block, and shadow memory need not be reset between blocks.

In global memory, a read or atomic by a later block does not overwrite the entry for a read or atomic by an
earlier block. Any access that races with the later block also races with the earlier block, and the entry
identifies the earlier block.

In a cooperative launch, each block runs until it reaches a grid barrier, and then the next block runs.
Whenever a block continues, it uses new epochs, which begin with `resume_epoch`. The epochs of accesses
before the last grid barrier are lower than `phase_epoch`; these accesses are ordered before all current
ones. Any other entry with an epoch lower than `resume_epoch` belongs to another block.

A block-wide barrier orders all earlier accesses of the block. A phase of an mbarrier only orders the accesses
before the arrivals (sim.native.ptx.mbarriers). Each arrival of the block therefore begins an epoch, and
`unordered_epoch` is the first epoch of the block whose accesses are not ordered before all current ones.

A false positive only costs an unnecessary rerun of a block. A false negative is an undetected error, and is
not acceptable.
"""

from sim.native.codegen.int64 import byte, int64_helper, set_byte

# BARE     only bounds, because no observer is subscribed
# BOUNDED  only bounds
# INPUT    only bounds, and whether any element is loaded: an argument that the kernel does not write
# GLOBAL   global memory that was written before the launch
# EMPTY    global memory of which some elements were not written before the launch
# SHARED   shared memory of a block
# LOCAL    local memory of a thread
BARE, BOUNDED, INPUT, GLOBAL, EMPTY, SHARED, LOCAL = range(7)
WITHOUT_SHADOW = BARE, BOUNDED, INPUT
# The error flags are the bits of the field `errors`:
# NARROWED    an atomic may have lost the fraction of its operand
# BOUNDS      index out of range, or an invalid address
# UNWRITTEN   read of uninitialised memory
# RACE        race within a block
# BLOCK_RACE  race between blocks
# DIVERGED    threads disagree on control flow at a synchronisation point, or a thread raised
# EXHAUSTED   an iteration limit was exceeded, or a loop was ended because of an error
NARROWED, BOUNDS, UNWRITTEN, RACE, BLOCK_RACE, DIVERGED, EXHAUSTED = ERROR_FLAGS = tuple(
    1 << bit for bit in range(7)
)
# Values of the field `stopped`:
# OF_BLOCK     the block must stop
# OF_LAUNCH    the launch must stop
# LATE         the launch must stop, because its first error is too long ago
# INTERRUPTED  the launch must stop, because the user pressed Ctrl-C
# FULL         the launch must pause until the access log has been replayed
# SLOW         the launch must stop, because a call of quick code has run for longer than `quick_time`
OF_BLOCK, OF_LAUNCH, LATE, INTERRUPTED, FULL, SLOW = 1, 2, 3, 4, 5, 6

THREAD_BITS, SEGMENT_SHIFT, EPOCH_SHIFT, WARP_SHIFT = 10, 16, 32, 5
THREAD = (1 << THREAD_BITS) - 1
WARP = THREAD >> WARP_SHIFT << WARP_SHIFT
SEGMENT = 0xFFFF << SEGMENT_SHIFT
# Flags of a shadow entry:
# ATOMIC  last written by an atomic
# MANY    accessed by several threads of a warp
# WARPS   accessed by several warps, in epochs from `unordered_epoch` on
# PLAIN   also written by a plain store of the same block
ATOMIC, MANY, WARPS, PLAIN = (1 << bit for bit in range(THREAD_BITS, THREAD_BITS + 4))
# The entry for the last write of an element of EMPTY memory that was written before the launch. Its epoch is
# negative, so no access is unordered with this write.
INITIAL = -1


@int64_helper
def set_error(state, flag):
    """Set an error flag for the current block. `flag` is one of ERROR_FLAGS."""
    state.errors |= flag


@int64_helper(inline=False)
def record_block_race(state, epoch):
    """Record that the current block races with the block to which `epoch` belongs."""
    set_error(state, BLOCK_RACE)
    pairs, length, position = state.pairs, state.pair_count, state.position
    # Racing blocks usually race at many consecutive elements. Record each pair of blocks once.
    if length > 0 and pairs[2 * length - 2] == position and pairs[2 * length - 1] == epoch:
        return
    if length < state.pair_room:
        pairs[2 * length] = position
        pairs[2 * length + 1] = epoch
    state.pair_count = min(length + 1, state.pair_room)


# --- shadow memory ------------------------------------------------------------------------------------------


@int64_helper
def may_be_unordered(before, state):
    """Return whether no barrier or phase orders a recorded access of the block before the current access."""
    return before >> EPOCH_SHIFT >= state.unordered_epoch


@int64_helper(inline=False)
def left_before_sync(before, state):
    """Return whether the thread of a shadow entry returned before the next synchronisation of its warp. For
    an entry that represents several threads, return whether any of them did.

    A later `syncwarp` does not order the access of a thread that has already returned.
    """
    # From index 1024 on, `returned_at` has one element per warp.
    position = 1024 + ((before & THREAD) >> WARP_SHIFT) if before & MANY else before & THREAD
    return state.returned_at[position] == before >> SEGMENT_SHIFT


@int64_helper(inline=False)
def is_unordered(before, own, state):
    """Return whether a recorded access is unordered with the current thread's access, if no barrier or phase
    separates them.

    It is unordered if another thread performed it, and no `syncwarp` separates it from the current access.
    """
    if before & WARPS or (before ^ own) & WARP:
        return True
    if (before ^ own) & SEGMENT:
        return left_before_sync(before, state)
    return before & MANY != 0 or (before ^ own) & THREAD != 0


@int64_helper
def check_order(before, state, between_blocks):
    """Set an error flag if the recorded access `before` and the current thread's access are unordered.

    between_blocks: whether several blocks can access the memory.
    """
    own = state.own_entry
    # 0 marks an element without accesses. Equal entries come from the same thread in the same segment.
    if before == 0 or before == own:
        return
    if between_blocks and is_from_other_block(before, state):
        record_block_race(state, before >> EPOCH_SHIFT)
    elif may_be_unordered(before, state) and is_unordered(before, own, state):
        set_error(state, RACE)


@int64_helper
def add_reader(before, state, between_blocks):
    """Return the new shadow entry for the reads of an element, after another read by the current thread.

    before: the current entry.
    between_blocks: whether several blocks can access the memory.
    """
    own = state.own_entry
    if before == 0:
        return own
    # Keep the entry of the earlier block: a later store that races with this read also races with the earlier
    # one.
    if between_blocks and is_from_other_block(before, state):
        return before
    if not may_be_unordered(before, state):
        return own
    if (before ^ own) & WARP or ((before ^ own) & SEGMENT and left_before_sync(before, state)):
        return own | WARPS
    together = (before ^ own) & SEGMENT == 0 and (before & MANY != 0 or (before ^ own) & THREAD != 0)
    return own | before & WARPS | (MANY if together else 0)


@int64_helper
def is_from_earlier_block(written, state):
    """Return whether a shadow entry is older than the current block. The empty entry, 0, counts as older."""
    return written >> EPOCH_SHIFT < state.block_start


@int64_helper
def is_from_other_block(before, state):
    """Return whether the access in a shadow entry of global memory was made by another block, with no grid
    barrier between it and the current access."""
    return before >> EPOCH_SHIFT < state.resume_epoch and before >> EPOCH_SHIFT >= state.phase_epoch


@int64_helper
def is_unwritten(written, watch, state):
    """Return whether the launch has not written an element. In shared memory, writes of earlier blocks do not
    count. Return False for memory that was initialised before the launch.

    written: the shadow entry of the element's last write.
    """
    if watch == SHARED:
        return is_from_earlier_block(written, state)
    return watch == EMPTY and written == 0


@int64_helper
def watch_load(watch, shadow, flat, state):
    """Check a load of the element at index `flat`, and update its shadow entries.

    watch: the kind of check.
    """
    if watch == LOCAL:
        watch_local(shadow, flat, state)
        return
    if watch == INPUT:
        state.read = 1
        return
    written, read = shadow[2 * flat], shadow[2 * flat + 1]
    if is_unwritten(written, watch, state):
        set_error(state, UNWRITTEN)
    check_order(written, state, watch != SHARED)
    # A thread often reads an element repeatedly. Skip the update for a repeated read.
    if read != state.own_entry:
        shadow[2 * flat + 1] = add_reader(read, state, watch != SHARED)
        if watch != SHARED:
            state.read = 1


@int64_helper
def watch_store(watch, shadow, flat, state):
    """Check a store to the element at index `flat`, and update its shadow entries."""
    if watch == LOCAL:
        set_byte(shadow, flat, 1)
        return
    check_order(shadow[2 * flat], state, watch != SHARED)
    check_order(shadow[2 * flat + 1], state, watch != SHARED)
    shadow[2 * flat] = state.own_entry
    if watch != SHARED:
        state.wrote = 1


@int64_helper
def watch_atomic(watch, shadow, flat, state):
    """Check an atomic operation on the element at index `flat`, and update its shadow entries.

    Atomics do not race with each other, but they race with unordered plain accesses.
    """
    if watch == LOCAL:
        watch_local(shadow, flat, state)
        return
    written, own, between_blocks = shadow[2 * flat], state.own_entry, watch != SHARED
    new = own | ATOMIC
    if is_unwritten(written, watch, state):
        set_error(state, UNWRITTEN)
    check_order(shadow[2 * flat + 1], state, between_blocks)
    if written == 0:
        pass
    elif written >> EPOCH_SHIFT < state.resume_epoch:
        if between_blocks and is_from_other_block(written, state):
            if written & PLAIN or not written & ATOMIC:
                record_block_race(state, written >> EPOCH_SHIFT)
            else:
                new = written
    elif written & ATOMIC:
        new |= written & PLAIN
        if may_be_unordered(written, state):
            new |= written & (WARPS | MANY) | (WARPS if (written ^ own) & THREAD else 0)
    elif may_be_unordered(written, state):
        if is_unordered(written, own, state):
            set_error(state, RACE)
        # One entry has to represent both accesses. Keep the plain store, because more accesses race with it.
        new = own
    else:
        new |= PLAIN
    shadow[2 * flat] = new
    if between_blocks:
        state.wrote = 1


@int64_helper
def watch_local(written, flat, state):
    """Set an error flag if a load reads an unwritten element of local memory.

    written: the address of the shadow memory, which has one byte per element: 1 if the element has been
        written.
    """
    if byte(written, flat) == 0:
        set_error(state, UNWRITTEN)


# --- indices ------------------------------------------------------------------------------------------------


@int64_helper(inline=False)
def resolve_index(position, length, state, wraps):
    """Return an index counted from the start of a dimension, or -1 if it is out of range.

    An out-of-range index sets an error flag. So does a negative index if `wraps` is 0, because a GPU does not
    wrap negative indices around.

    position: the index in the program.
    length: the size of the dimension.
    """
    resolved = position + length if -length <= position < 0 else position if 0 <= position < length else -1
    if resolved < 0 or resolved != position and not wraps:
        set_error(state, BOUNDS)
    return resolved


@int64_helper
def clamp_index(position, length, state, wraps):
    """Return an index that is valid for a subarray. An out-of-range index sets an error flag and is replaced
    by 0."""
    return position if 0 <= position < length else max(resolve_index(position, length, state, wraps), 0)
