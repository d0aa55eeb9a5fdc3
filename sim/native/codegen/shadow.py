"""Checks of an access in compiled code: bounds for every array, and shadow memory for those that need more.

A check only detects an error, and the block continues. The field `dirty` of
sim.native.codegen.launch_state.State collects the error flags, and the interpreter runs the block again to
explain them. Invalid loads return poison, invalid stores do nothing. A block whose threads diverge at a
synchronisation point is `stopped`.

Each element of a checked array has two shadow entries, for its last write and its last reads. From the lowest
bit: 10 bits of thread, 6 of flags, 16 of the warp's segment (the number of synchronisations of its lanes), 31
of the epoch. Epochs count the barriers and blocks of the whole launch, so entries of an earlier block are
smaller, and nothing is ever reset. A false alarm costs a slow run; a missed error is not allowed.
"""

from sim.native.codegen.int64 import byte, set_byte, words

# How an array is checked. BARE and BOUNDED: only its bounds (BARE: no observer is subscribed). GLOBAL and
# EMPTY: global memory, written or not written before the launch. SHARED, LOCAL: of a block, of a thread.
BARE, BOUNDED, GLOBAL, EMPTY, SHARED, LOCAL = range(6)
# error flags, bits of `dirty`
NARROWED, BOUNDS, UNWRITTEN, RACE, BETWEEN, PARTED, SPENT = TROUBLES = tuple(1 << bit for bit in range(7))
# values of `stopped`: what has to end. FULL: the launch pauses until the log is replayed.
OF_BLOCK, OF_LAUNCH, INTERRUPTED, FULL = 1, 2, 3, 4

THREAD_BITS, SEGMENT_SHIFT, EPOCH_SHIFT, WARP_SHIFT = 10, 16, 32, 5
THREAD = (1 << THREAD_BITS) - 1
WARP = THREAD >> WARP_SHIFT << WARP_SHIFT
SEGMENT = 0xFFFF << SEGMENT_SHIFT
# ATOMIC: written by an atomic. MANY: by several threads. WARPS: of several warps in this epoch. OTHERS: by an
# earlier block too. PLAIN: by a plain store of this block too.
ATOMIC, MANY, WARPS, OTHERS, PLAIN = (1 << bit for bit in range(THREAD_BITS, THREAD_BITS + 5))


@words
def dirty(state, trouble):
    """Set an error flag (one of TROUBLES) for the running block."""
    state.dirty |= trouble


@words(inline=False)
def races_with(state, epoch):
    """Record that the running block races with another block, which had this epoch."""
    dirty(state, BETWEEN)
    pairs, length, position = state.pairs, state.pair_count, state.position
    if length > 0 and pairs[2 * length - 2] == position and pairs[2 * length - 1] == epoch:
        return
    if length < state.pair_room:
        pairs[2 * length] = position
        pairs[2 * length + 1] = epoch
    state.pair_count = min(length + 1, state.pair_room)


# --- shadow memory ------------------------------------------------------------------------------------------


@words
def same_epoch(before, me):
    return before >> EPOCH_SHIFT == me >> EPOCH_SHIFT


@words
def has_left(before, state):
    """Return whether the thread of a shadow entry (or one of its threads) returned before its warp
    synchronised again. Later syncwarps then do not order its access before others."""
    of = 1024 + ((before & THREAD) >> WARP_SHIFT) if before & MANY else before & THREAD
    return state.left[of] == before >> SEGMENT_SHIFT


@words
def of_another(before, me, state):
    """Return whether a shadow entry of this epoch is an access by another thread that no syncwarp orders
    before the running thread's access."""
    if before & WARPS or (before ^ me) & WARP:
        return True
    if (before ^ me) & SEGMENT:
        return has_left(before, state)
    return before & MANY != 0 or (before ^ me) & THREAD != 0


@words
def judge(before, state, between_blocks):
    """Set an error flag if the recorded access and the running thread's access are unordered.
    `between_blocks`: the memory outlives a block."""
    me = state.me
    if before == 0 or before == me:
        return
    if between_blocks and unwritten(before, state):
        races_with(state, before >> EPOCH_SHIFT)
    elif between_blocks and before & OTHERS:
        races_with(state, state.foreign)
    elif same_epoch(before, me) and of_another(before, me, state):
        dirty(state, RACE)


@words
def read_by_me(before, state, between_blocks):
    """Return the shadow entry of an element's readers, with the running thread added."""
    me = state.me
    if before == 0:
        return me
    if between_blocks and unwritten(before, state):
        state.foreign = before >> EPOCH_SHIFT
        me |= OTHERS
    elif between_blocks and before & OTHERS:
        me |= OTHERS
    if not same_epoch(before, me):
        return me
    if (before ^ me) & WARP or ((before ^ me) & SEGMENT and has_left(before, state)):
        return me | WARPS
    together = (before ^ me) & SEGMENT == 0 and (before & MANY != 0 or (before ^ me) & THREAD != 0)
    return me | before & WARPS | (MANY if together else 0)


@words
def unwritten(written, state):
    """Return whether the shadow entry is older than the running block."""
    return written >> EPOCH_SHIFT < state.block_start


@words
def watch_load(watch, shadow, flat, state):
    if watch == LOCAL:
        watch_local(shadow, flat, state)
        return
    written, read = shadow[2 * flat], shadow[2 * flat + 1]
    if watch != GLOBAL and unwritten(written, state):
        dirty(state, UNWRITTEN)
    judge(written, state, watch != SHARED)
    if read != state.me:
        shadow[2 * flat + 1] = read_by_me(read, state, watch != SHARED)


@words
def watch_store(watch, shadow, flat, state):
    if watch == LOCAL:
        set_byte(shadow, flat, 1)
        return
    judge(shadow[2 * flat], state, watch != SHARED)
    judge(shadow[2 * flat + 1], state, watch != SHARED)
    shadow[2 * flat] = state.me
    if watch != SHARED:
        state.wrote = 1


@words
def watch_atomic(watch, shadow, flat, state):
    if watch == LOCAL:
        watch_local(shadow, flat, state)
        return
    written, me, between_blocks = shadow[2 * flat], state.me, watch != SHARED
    new = me | ATOMIC
    if watch != GLOBAL and unwritten(written, state):
        dirty(state, UNWRITTEN)
    judge(shadow[2 * flat + 1], state, between_blocks)
    if written == 0:
        pass
    elif unwritten(written, state):  # an earlier block wrote it
        if between_blocks:
            new |= OTHERS
            state.foreign = written >> EPOCH_SHIFT
            if written & PLAIN or not written & ATOMIC:
                races_with(state, written >> EPOCH_SHIFT)
    elif written & ATOMIC:
        new |= written & (OTHERS | PLAIN)
        if same_epoch(written, me):
            new |= written & (WARPS | MANY) | (WARPS if (written ^ me) & THREAD else 0)
    elif same_epoch(written, me):
        if of_another(written, me, state):
            dirty(state, RACE)
        new = me  # one entry for both accesses: keep it as strict as for the plain store
    else:
        new |= PLAIN
    shadow[2 * flat] = new
    if between_blocks:
        state.wrote = 1


@words
def watch_local(written, flat, state):
    if byte(written, flat) == 0:
        dirty(state, UNWRITTEN)


# --- elements -----------------------------------------------------------------------------------------------


@words(inline=False)
def looked_at(position, length, state, wraps):
    """Return the position counted from the start, or -1 if it is out of range. Set an error flag if it is
    out of range, or negative although the index does not wrap (`wraps`)."""
    place = position + length if -length <= position < 0 else position if 0 <= position < length else -1
    if place < 0 or place != position and not wraps:
        dirty(state, BOUNDS)
    return place


@words
def inside(position, length, state, wraps):
    """Return the position of an index of a part. An index out of range becomes 0, and sets an error flag."""
    return position if 0 <= position < length else max(looked_at(position, length, state, wraps), 0)
