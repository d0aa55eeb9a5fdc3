"""Asynchronous copies (cp.async) of a compiled PTX launch, and the checks of accesses during a copy.

The bytes of a copy arrive when its thread waits for it, as in the interpreter (sim.memory.transfer). Each
thread has a *ring* of the copies that it has sent and not waited for.

At its issue, a copy is checked like a load of the source and a store to the destination. The shadow entries
of the destination get the flag FLIGHT. At its arrival, the block is marked for the interpreter if any thread
may have accessed the destination, or changed the source, since the issue. Accesses to the destination change
its shadow entries, so the entry of the last write must still be that of the issue, and there must be no entry
of reads. From then on, the destination counts as written by the current thread, and the source as read by it.
Conflicting accesses are therefore marked, too, if no barrier separates them from the wait.

A thread that ends before its copies have arrived leaves them in its ring. Their bytes never arrive, as in the
interpreter. At the end of the block, these copies are checked as at an arrival.

Loads from shared memory also test the flag FLIGHT, so that an error in a long loop is found before the end of
the block. Code that records errors (sim.native.codegen.error_records) tests the flag before all accesses,
because only the access itself has the site that a finding needs. It also records the starts and the arrivals
of copies.
"""

import functools

import numpy as np

from sim.native.codegen.access_log import SITE_SHIFT, SIZE_SHIFT
from sim.native.codegen.error_records import (
    ADDRESS_MASK,
    ARRIVED,
    SENT,
    forget_errors,
    note_access,
    note_copy,
)
from sim.native.codegen.int64 import byte, int64_helper, set_byte, variant
from sim.native.codegen.shadow import (
    BARE,
    EPOCH_SHIFT,
    RACE,
    SHARED,
    add_reader,
    set_error,
    watch_load,
    watch_store,
)
from sim.native.ptx.memory import (
    BASE,
    HOST,
    PENDING,
    SCRATCH,
    SHADOW,
    SHIFT,
    SITE_REGIONS,
    SIZE,
    WATCH,
    ZEROS,
    make_locator,
    region_of,
    watch_ptx_load,
)

FLIGHT = 1 << 14  # flag of a shadow entry: a copy in flight writes the element
CAPACITY = 128  # maximum number of copies in a ring, a power of two
# Fields at the start of a ring, in int64:
# FIRST  index of the oldest copy
# COUNT  number of copies
# GROUP  number of committed groups so far
FIRST, COUNT, GROUP, HEADER = range(4)
# Fields of a copy, in int64:
# OF_GROUP  number of groups that were committed before it
# TO        host address of the destination region's row in the table
# TO_AT     offset in bytes of the destination in its region
# FROM      host address of the source region's row in the table, or 0 if the copy writes zeros
# FROM_AT   offset in bytes of the source in its region
# BYTES     size of the copy
# OWN       shadow entry of the thread at the issue
# SITE      index of the store to the destination in the kernel
OF_GROUP, TO, TO_AT, FROM, FROM_AT, BYTES, OWN, SITE, FIELDS = range(9)
RING = HEADER + CAPACITY * FIELDS


def make_rings(threads):
    """Return the empty rings of a block's threads."""
    return np.zeros((threads, RING), np.int64)


@functools.cache
def make_sender(size, records):
    """Return the helper that starts a copy of `size` bytes. It has the parameters of `send` before `size`.

    records: whether errors are recorded.
    """
    locators = {"write": make_locator(watch_store, size), "read": make_locator(watch_ptx_load, size)}
    return variant(send, f"{size}_{records:d}", size=size, records=records, **locators)


def send(table, thread, state, to_site, to, from_site, source, valid, size, records, write, read):
    """Start a copy.

    to_site, from_site: the indices of the accesses in the kernel.
    to, source: the simulated addresses.
    valid: the number of bytes to read from the source. If it is neither 0 nor `size`, the block is marked.
    size: the number of bytes of the copy. It is known at compile time, and so are the parameters below.
    records: whether errors are recorded.
    write, read: the locators (sim.native.ptx.memory) of the destination and the source.
    """
    if valid != 0 and valid != size:
        mark_unsupported(state)
        return 0
    # An earlier copy in flight is visible only before the store replaces its shadow entries.
    check_no_flight(table, to, size, thread, state)
    write(table, to_site, to, thread, state)
    if records:
        note_part(table, thread, state, entry_of(to_site, size, to), source, valid)
    to_region = table[SITE_REGIONS + to_site]
    to_at = to - to_region[BASE]
    if to_at < 0 or to_at > to_region[SIZE] - size:
        return 0  # the locator has set an error flag
    from_region = 0
    from_at = 0
    if valid == size:
        read(table, from_site, source, thread, state)
        if records:
            note_part(table, thread, state, entry_of(from_site, size, source), source, valid)
        from_region = table[SITE_REGIONS + from_site]
        from_at = source - from_region[BASE]
        if from_at < 0 or from_at > from_region[SIZE] - size:
            return 0
    mark_flight(to_region, to_at, size, state)
    ring = table[PENDING] + 8 * RING * thread
    append_copy(ring, to_site, to_region, to_at, from_region, from_at, size, state)
    if records:
        note_event(copy_at(ring, ring[FIRST] + ring[COUNT] - 1), state, SENT)
    return 0


@int64_helper
def note_part(table, thread, state, entry, source, valid):
    """Record the load or the store of a copy if necessary.

    entry: the log entry of this access.
    source, valid: as in `send`.
    """
    if may_record(state):
        note_access(state, entry, data_at(table, source, valid, thread))


@int64_helper(inline=False)
def data_at(table, source, valid, thread):
    """Return the host address of the data that a copy writes: `valid` bytes at the simulated address
    `source`, or zeros if `valid` is 0."""
    if valid == 0:
        return table + 8 * ZEROS
    region = region_of(table, source, thread)
    if region == 0 or source - region[BASE] > region[SIZE] - valid:
        return table[SCRATCH]
    return region[HOST] + source - region[BASE]


@int64_helper
def may_record(state):
    """Return whether the current event may have to be recorded.

    This is so if a check has set a new error flag, if the run has a trap, or if recent events are stored.
    """
    return state.errors != state.noted or state.trap_end != 0 or state.recent != 0


@int64_helper
def mark_unsupported(state):
    """Mark the block for the interpreter, because compiled code does not support one of its copies. Do not
    record an access for this error flag."""
    set_error(state, RACE)
    forget_errors(state)


@int64_helper
def entry_of(site, size, address):
    """Return the log entry of an access to 4, 8 or 16 bytes. An address that does not fit into an entry is
    invalid. Replace it by the largest address that fits, which is also invalid."""
    fits = address if 0 <= address < ADDRESS_MASK else ADDRESS_MASK
    return site << SITE_SHIFT | (size >> 3) + 2 << SIZE_SHIFT | fits


@int64_helper
def append_copy(ring, site, to_region, to_at, from_region, from_at, size, state):
    """Append a copy to the ring of its thread. Mark the block if the ring is full.

    site: the index of the store to the destination in the kernel.
    to_region, from_region: the addresses of the regions of the destination and the source.
    to_at, from_at: the offsets in these regions.
    """
    if ring[COUNT] == CAPACITY:
        mark_unsupported(state)
        ring[COUNT] -= 1  # the new copy overwrites the newest one
    copy = copy_at(ring, ring[FIRST] + ring[COUNT])
    copy[OF_GROUP] = ring[GROUP]
    copy[TO] = to_region
    copy[TO_AT] = to_at
    copy[FROM] = from_region
    copy[FROM_AT] = from_at
    copy[BYTES] = size
    copy[OWN] = state.own_entry
    copy[SITE] = site
    ring[COUNT] += 1


@int64_helper
def note_event(copy, state, event):
    """Record the start or the arrival of a copy if necessary. `event` is SENT or ARRIVED."""
    if may_record(state):
        record_event(copy, state, event)


@int64_helper(inline=False)
def record_event(copy, state, event):
    """Record the start or the arrival of a copy. The parameters are the same as for `note_event`."""
    from_region = copy[FROM]
    source = from_region[BASE] + copy[FROM_AT] if from_region != 0 else 0
    to_region = copy[TO]
    entry = entry_of(copy[SITE], copy[BYTES], to_region[BASE] + copy[TO_AT])
    note_copy(state, event, entry, copy[OWN], source)


@int64_helper
def copy_at(ring, position):
    """Return the address of the copy at an index of a ring. The index wraps around."""
    return ring + 8 * (HEADER + FIELDS * (position & CAPACITY - 1))


@int64_helper(inline=False)
def mark_flight(region, offset, size, state):
    """Set the flag FLIGHT in the shadow entries of a destination, and remove the entries of earlier reads.

    The issue is ordered after these reads, or the block is already marked. So an access that is ordered after
    the issue is ordered after the reads too.
    """
    if region[WATCH] != BARE:
        shadow, shift = region[SHADOW], region[SHIFT]
        for granule in range(offset >> shift, (offset + size - 1 >> shift) + 1):
            shadow[2 * granule] = state.own_entry | FLIGHT
            shadow[2 * granule + 1] = 0


@int64_helper(inline=False)
def check_no_flight(table, address, size, thread, state):
    """Mark the block if a copy of the block is in flight to these bytes."""
    region = region_of(table, address, thread)
    if region != 0 and region[WATCH] == SHARED:
        shadow, shift, offset = region[SHADOW], region[SHIFT], address - region[BASE]
        for granule in range(offset >> shift, (offset + size - 1 >> shift) + 1):
            before = shadow[2 * granule]
            if before & FLIGHT != 0 and before >> EPOCH_SHIFT >= state.block_start:
                set_error(state, RACE)


@int64_helper
def check_flight(table, address, size, thread, state):
    """Mark the block if a copy is in flight to the accessed bytes. Only code that records errors calls this
    function, before each access."""
    if table[PENDING] != 0:
        check_no_flight(table, address, size, thread, state)


@int64_helper
def watch_tile_load(watch, shadow, flat, state):
    """Check a load from shared memory in a kernel with asynchronous copies."""
    if watch == SHARED:
        before = shadow[2 * flat]
        if before & FLIGHT != 0 and before >> EPOCH_SHIFT >= state.block_start:
            set_error(state, RACE)
        watch_load(SHARED, shadow, flat, state)
    else:  # an invalid address in the window of shared memory
        watch_ptx_load(watch, shadow, flat, state)


@int64_helper
def not_earlier(entry, other):
    """Return whether the epoch of the shadow entry `entry` is equal to or later than the epoch of `other`."""
    return entry >> EPOCH_SHIFT >= other >> EPOCH_SHIFT


@int64_helper(inline=False)
def check_copy(copy, state, entry):
    """Mark the block if accesses may conflict with a copy.

    entry: the shadow entry of the thread that counts as the writer from now on.
    """
    to_region, from_region, size, own = copy[TO], copy[FROM], copy[BYTES], copy[OWN]
    if to_region[WATCH] != BARE:
        shadow, shift, offset = to_region[SHADOW], to_region[SHIFT], copy[TO_AT]
        for granule in range(offset >> shift, (offset + size - 1 >> shift) + 1):
            if shadow[2 * granule] != own | FLIGHT or shadow[2 * granule + 1] != 0:
                set_error(state, RACE)
            shadow[2 * granule] = entry
    if from_region != 0 and from_region[WATCH] != BARE:
        shadow, shift, offset = from_region[SHADOW], from_region[SHIFT], copy[FROM_AT]
        for granule in range(offset >> shift, (offset + size - 1 >> shift) + 1):
            if not_earlier(shadow[2 * granule], own):
                set_error(state, RACE)


@int64_helper(inline=False)
def note_reader(copy, state):
    """Record the current thread as a reader of the source of a copy. The copy can read the source until the
    wait, so a store to the source conflicts with the wait if no barrier separates them."""
    region = copy[FROM]
    if region != 0 and region[WATCH] != BARE:
        shadow, shift, offset = region[SHADOW], region[SHIFT], copy[FROM_AT]
        for granule in range(offset >> shift, (offset + copy[BYTES] - 1 >> shift) + 1):
            shadow[2 * granule + 1] = add_reader(shadow[2 * granule + 1], state, 1)


@int64_helper(inline=False)
def arrive(copy, state, entry):
    """Write the bytes of a copy, and check it. The parameters are the same as for `check_copy`."""
    check_copy(copy, state, entry)
    to_region, from_region, size = copy[TO], copy[FROM], copy[BYTES]
    to = to_region[HOST] + copy[TO_AT]
    if from_region == 0:
        for position in range(size):
            set_byte(to, position, 0)
        return 0
    source = from_region[HOST] + copy[FROM_AT]
    for position in range(size):
        set_byte(to, position, byte(source, position))
    return 0


@int64_helper
def commit(table, thread):
    """Commit the copies that the thread has sent since the last commit, as one group."""
    ring = table[PENDING] + 8 * RING * thread
    ring[GROUP] += 1


def receive(table, thread, state, groups, records):
    """Wait until at most the newest `groups` groups of the thread are in flight.

    records: whether errors are recorded. It is known at compile time.
    """
    ring = table[PENDING] + 8 * RING * thread
    first, count, arrived = ring[FIRST], ring[COUNT], 0
    for number in range(count):  # the groups are in ascending order
        copy = copy_at(ring, first + number)
        if copy[OF_GROUP] < ring[GROUP] - groups:
            arrive(copy, state, state.own_entry)
            if copy[OWN] != state.own_entry:  # otherwise, the issue has recorded the same read
                note_reader(copy, state)
            if records:
                note_event(copy, state, ARRIVED)
            arrived = number + 1
    ring[FIRST] = first + arrived
    ring[COUNT] = count - arrived


def end(table, threads, state, records):
    """Check the copies that have not arrived at the end of a block, and remove them.

    records: whether errors are recorded. It is known at compile time.
    """
    for thread in range(threads):
        ring = table[PENDING] + 8 * RING * thread
        if state.stopped == 0:
            for number in range(ring[COUNT]):
                copy = copy_at(ring, ring[FIRST] + number)
                check_copy(copy, state, copy[OWN])
                if records:
                    state.own_entry = copy[OWN]  # the record names the thread of the copy
                    note_event(copy, state, ARRIVED)
        ring[COUNT] = 0


receivers = {records: variant(receive, f"{records:d}", records=records) for records in (False, True)}
end_copies = variant(end, "copies", records=False)
end_recorded_copies = variant(end, "recorded_copies", records=True)


@int64_helper
def next_copy(table, thread):
    """Return the index in the thread's ring of the copy that it will send next."""
    ring = table[PENDING] + 8 * RING * thread
    return ring[FIRST] + ring[COUNT]


@int64_helper(inline=False)
def arrive_tracked(table, thread, state, end):
    """Complete the copies of a thread that an mbarrier tracks. The phase of the mbarrier orders them, so they
    still count as written at their issue.

    end: the index after the last of these copies.
    """
    ring = table[PENDING] + 8 * RING * thread
    for _ in range(min(ring[COUNT], end - ring[FIRST])):
        copy = copy_at(ring, ring[FIRST])
        arrive(copy, state, copy[OWN])
        ring[FIRST] += 1
        ring[COUNT] -= 1
