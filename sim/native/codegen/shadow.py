"""Checks of an access in compiled code: bounds for every array, and shadow memory for those that need more.

A check only detects an error, and the block continues. The field `errors` of
sim.native.codegen.launch_state.State collects the error flags, and the interpreter runs the block again to
explain them. Invalid loads return poison, invalid stores do nothing. A block whose threads diverge at a
synchronisation point is `stopped`.

Each element of a checked array has two shadow entries, for its last write and its last reads. From the lowest
bit: 10 bits of thread, 6 of flags, 16 of the warp's segment (the number of synchronisations of its lanes), 31
of the epoch. Epochs count the barriers and blocks of the whole launch, so entries of an earlier block are
smaller, and nothing is ever reset. In global memory, the entry of an earlier block's reads or atomics is kept
when later blocks read the element or change it atomically. An access that races with these also races with
the earlier block, and the entry tells which block that is. A false alarm costs a slow run; a missed error is
not allowed.
"""

from sim.native.codegen.int64 import byte, int64_helper, set_byte

# How an array is checked. BARE and BOUNDED: only its bounds (BARE: no observer is subscribed). GLOBAL and
# EMPTY: global memory, written or not written before the launch. SHARED, LOCAL: of a block, of a thread.
BARE, BOUNDED, GLOBAL, EMPTY, SHARED, LOCAL = range(6)
# error flags, bits of `errors`
NARROWED, BOUNDS, UNWRITTEN, RACE, BLOCK_RACE, DIVERGED, EXHAUSTED = ERROR_FLAGS = tuple(
    1 << bit for bit in range(7)
)
# values of `stopped`: what has to end. FULL: the launch pauses until the log is replayed.
OF_BLOCK, OF_LAUNCH, INTERRUPTED, FULL = 1, 2, 3, 4

THREAD_BITS, SEGMENT_SHIFT, EPOCH_SHIFT, WARP_SHIFT = 10, 16, 32, 5
THREAD = (1 << THREAD_BITS) - 1
WARP = THREAD >> WARP_SHIFT << WARP_SHIFT
SEGMENT = 0xFFFF << SEGMENT_SHIFT
# ATOMIC: written by an atomic. MANY: by several threads. WARPS: of several warps in this epoch. PLAIN: by a
# plain store of this block too.
ATOMIC, MANY, WARPS, PLAIN = (1 << bit for bit in range(THREAD_BITS, THREAD_BITS + 4))


@int64_helper
def set_error(state, flag):
    """Set an error flag (one of TROUBLES) for the running block."""
    state.errors |= flag


@int64_helper(inline=False)
def record_block_race(state, epoch):
    """Record that the running block races with another block, which had this epoch."""
    set_error(state, BLOCK_RACE)
    pairs, length, position = state.pairs, state.pair_count, state.position
    if length > 0 and pairs[2 * length - 2] == position and pairs[2 * length - 1] == epoch:
        return
    if length < state.pair_room:
        pairs[2 * length] = position
        pairs[2 * length + 1] = epoch
    state.pair_count = min(length + 1, state.pair_room)


# --- shadow memory ------------------------------------------------------------------------------------------


@int64_helper
def is_same_epoch(before, own):
    return before >> EPOCH_SHIFT == own >> EPOCH_SHIFT


@int64_helper
def left_before_sync(before, state):
    """Return whether the thread of a shadow entry (or one of its threads) returned before its warp
    synchronised again. Later syncwarps then do not order its access before others."""
    of = 1024 + ((before & THREAD) >> WARP_SHIFT) if before & MANY else before & THREAD
    return state.returned_at[of] == before >> SEGMENT_SHIFT


@int64_helper
def is_unordered(before, own, state):
    """Return whether a shadow entry of this epoch is an access by another thread that no syncwarp orders
    before the running thread's access."""
    if before & WARPS or (before ^ own) & WARP:
        return True
    if (before ^ own) & SEGMENT:
        return left_before_sync(before, state)
    return before & MANY != 0 or (before ^ own) & THREAD != 0


@int64_helper
def check_order(before, state, between_blocks):
    """Set an error flag if the recorded access and the running thread's access are unordered.
    `between_blocks`: the memory outlives a block."""
    own = state.own_entry
    if before == 0 or before == own:
        return
    if between_blocks and is_from_earlier_block(before, state):
        record_block_race(state, before >> EPOCH_SHIFT)
    elif is_same_epoch(before, own) and is_unordered(before, own, state):
        set_error(state, RACE)


@int64_helper
def add_reader(before, state, between_blocks):
    """Return the shadow entry of an element's readers, with the running thread added."""
    own = state.own_entry
    if before == 0:
        return own
    if between_blocks and is_from_earlier_block(before, state):
        return before
    if not is_same_epoch(before, own):
        return own
    if (before ^ own) & WARP or ((before ^ own) & SEGMENT and left_before_sync(before, state)):
        return own | WARPS
    together = (before ^ own) & SEGMENT == 0 and (before & MANY != 0 or (before ^ own) & THREAD != 0)
    return own | before & WARPS | (MANY if together else 0)


@int64_helper
def is_from_earlier_block(written, state):
    """Return whether the shadow entry is older than the running block."""
    return written >> EPOCH_SHIFT < state.block_start


@int64_helper
def watch_load(watch, shadow, flat, state):
    if watch == LOCAL:
        watch_local(shadow, flat, state)
        return
    written, read = shadow[2 * flat], shadow[2 * flat + 1]
    if watch != GLOBAL and is_from_earlier_block(written, state):
        set_error(state, UNWRITTEN)
    check_order(written, state, watch != SHARED)
    if read != state.own_entry:
        shadow[2 * flat + 1] = add_reader(read, state, watch != SHARED)


@int64_helper
def watch_store(watch, shadow, flat, state):
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
    if watch == LOCAL:
        watch_local(shadow, flat, state)
        return
    written, own, between_blocks = shadow[2 * flat], state.own_entry, watch != SHARED
    new = own | ATOMIC
    if watch != GLOBAL and is_from_earlier_block(written, state):
        set_error(state, UNWRITTEN)
    check_order(shadow[2 * flat + 1], state, between_blocks)
    if written == 0:
        pass
    elif is_from_earlier_block(written, state):
        if between_blocks:
            if written & PLAIN or not written & ATOMIC:
                record_block_race(state, written >> EPOCH_SHIFT)
            else:
                new = written
    elif written & ATOMIC:
        new |= written & PLAIN
        if is_same_epoch(written, own):
            new |= written & (WARPS | MANY) | (WARPS if (written ^ own) & THREAD else 0)
    elif is_same_epoch(written, own):
        if is_unordered(written, own, state):
            set_error(state, RACE)
        new = own  # one entry for both accesses: keep it as strict as for the plain store
    else:
        new |= PLAIN
    shadow[2 * flat] = new
    if between_blocks:
        state.wrote = 1


@int64_helper
def watch_local(written, flat, state):
    if byte(written, flat) == 0:
        set_error(state, UNWRITTEN)


# --- elements -----------------------------------------------------------------------------------------------


@int64_helper(inline=False)
def resolve_index(position, length, state, wraps):
    """Return the position counted from the start, or -1 if it is out of range. Set an error flag if it is
    out of range, or negative although the index does not wrap (`wraps`)."""
    place = position + length if -length <= position < 0 else position if 0 <= position < length else -1
    if place < 0 or place != position and not wraps:
        set_error(state, BOUNDS)
    return place


@int64_helper
def clamp_index(position, length, state, wraps):
    """Return the position of an index of a part. An index out of range becomes 0, and sets an error flag."""
    return position if 0 <= position < length else max(resolve_index(position, length, state, wraps), 0)
