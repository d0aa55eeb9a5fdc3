"""Compiled code that records the first error of each kind in a block.

The code knows the site of every access. A check only sets an error flag. The function that logs an access
calls `note_access` after the check. If the check has set a new flag, the access becomes a row of an array,
which sim.native.run.error_records turns into a finding. Every access that overlaps some chosen bytes, the
*trap*, also becomes a row. These rows identify the other access of a race.

In the first recorded run, a second array contains the most recent events before the first race. Often, the
other access of the race is among them, so that no further run has to repeat a long loop.

In a PTX kernel, the start and the arrival of an asynchronous copy also become rows if the copy reads or
writes bytes of the trap, or if the check of the arrival has set a new flag.
"""

from sim.native.codegen.access_log import SIZE_SHIFT
from sim.native.codegen.int64 import byte, int64_helper
from sim.native.codegen.shadow import BLOCK_RACE, OF_LAUNCH, RACE

ROOM = 1 << 10  # number of rows, a power of two; the newest rows overwrite the oldest
RECENT = 1 << 15  # number of rows of the most recent events, a power of two
MOST_AXES = 3  # the maximum number of dimensions of an array whose refused accesses are recorded
ADDRESS_MASK = (1 << SIZE_SHIFT) - 1
# Columns of a row:
# ENTRY     the log entry of the access; for a refused access, it contains the address of the array instead
# OWN       shadow entry of the thread
# POSITION  linear index of the block
# FLAGS     the error flags that the access has set, which no earlier access of the block had set
# VALUE     the bytes of the element after the access, at most eight
# AXES      the number of dimensions of a refused access, or 0 for any other row. In later columns, the index
#           of a refused access is followed by the array's shape.
# EVENT     ACCESS, or SENT or ARRIVED for the start or the arrival of a copy. For a copy, ENTRY describes the
#           store to the destination, and the next two columns are:
# ISSUED    shadow entry of the thread at the issue
# SOURCE    address of the source, or 0 if the copy writes zeros
ENTRY, OWN, POSITION, FLAGS, VALUE, EVENT, ISSUED, SOURCE, AXES = range(9)
COLUMNS = AXES + 1 + 2 * MOST_AXES
# A row of a recent event has only the columns before AXES. In a row of an access, SOURCE is the address of
# the element on the host.
RECENT_COLUMNS = AXES
ACCESS, SENT, ARRIVED = range(3)


@int64_helper
def overlaps_trap(state, address, size):
    """Return whether the trap contains any of the bytes."""
    return address < state.trap_end and state.trap < address + size


@int64_helper
def is_trapped(state, entry):
    """Return whether an access overlaps the trap. `entry` is its log entry."""
    return overlaps_trap(state, entry & ADDRESS_MASK, 1 << (entry >> SIZE_SHIFT & 7))


@int64_helper
def note_access(state, entry, host):
    """Record an access if its check has set a new error flag, or if it overlaps the trap.

    host: the address of the element on the host.
    """
    # After a stop, threads leave their loops early, so error flags that are set later are meaningless.
    if state.stopped == 0:
        if state.errors != state.noted or is_trapped(state, entry):
            record_access(state, entry, host)
        if state.recent != 0:
            row = append_recent(state, entry, ACCESS)
            # Read one aligned word: unlike an unaligned word, it never extends into the next page.
            word = host - (host & 7)
            row[VALUE] = word[0] >> 8 * (host & 7)
            row[SOURCE] = host


@int64_helper
def append_recent(state, entry, event):
    """Append a row to the most recent events for the current thread, and return its address."""
    row = state.recent + 8 * RECENT_COLUMNS * (state.recent_count & RECENT - 1)
    row[ENTRY] = entry
    row[OWN] = state.own_entry
    row[POSITION] = state.position
    row[EVENT] = event
    state.recent_count += 1
    return row


@int64_helper
def forget_errors(state):
    """Mark all current error flags as recorded, so that no later access is recorded because of them."""
    state.noted = state.errors


@int64_helper(inline=False)
def record_access(state, entry, host):
    """Append a row for an access. The parameters are the same as for `note_access`."""
    if state.records != 0 and state.split == 0:
        row = append_row(state, entry)
        value = 0
        for offset in range(min(1 << (entry >> SIZE_SHIFT & 7), 8)):
            value |= byte(host, offset) << 8 * offset
        row[VALUE] = value
        end_after_race(state, row, is_trapped(state, entry))
    state.noted = state.errors


@int64_helper
def end_after_race(state, row, trapped):
    """Store no further recent events if a row is about a race. If the race is at the trap, stop the launch.
    The rows then contain both accesses of the race, so no later access is needed."""
    if row[FLAGS] & (RACE | BLOCK_RACE) != 0:
        state.recent = 0
        if trapped:
            state.stopped = OF_LAUNCH


@int64_helper(inline=False)
def note_copy(state, event, entry, issued, source):
    """Record the start or the arrival of a copy if its check has set a new error flag, if the copy overlaps
    the trap, or if recent events are stored. The parameters are the columns of a row."""
    size = 1 << (entry >> SIZE_SHIFT & 7)
    trapped = is_trapped(state, entry) or overlaps_trap(state, source, size)
    if state.stopped == 0 and state.split == 0:
        if trapped or state.errors != state.noted:
            row = append_row(state, entry)
            row[EVENT] = event
            row[ISSUED] = issued
            row[SOURCE] = source
            end_after_race(state, row, trapped)
        if state.recent != 0:
            recent = append_recent(state, entry, event)
            recent[ISSUED] = issued
            recent[SOURCE] = source
    state.noted = state.errors


@int64_helper
def append_row(state, entry):
    """Append a row for the current thread, and return its address."""
    row = state.records + 8 * COLUMNS * (state.record_count & ROOM - 1)
    row[ENTRY] = entry
    row[OWN] = state.own_entry
    row[POSITION] = state.position
    row[FLAGS] = state.errors - state.noted  # `noted` is a subset of `errors`
    row[EVENT] = ACCESS
    row[AXES] = 0
    state.record_count += 1
    return row


@int64_helper(inline=False)
def note_refused(state, entry, axes, x, y, z, length_x, length_y, length_z):
    """Record an access with an index out of range, unless the block has had one before.

    entry: the entry of the access, with the address of the array's first element.
    axes: the number of dimensions, at most MOST_AXES.
    x, y, z: the index.
    length_x, length_y, length_z: the shape.
    """
    if state.stopped == 0 and state.errors != state.noted and state.records != 0 and state.split == 0:
        row = append_row(state, entry)
        row[AXES] = axes
        row[AXES + 1] = x
        row[AXES + 2] = y
        row[AXES + 3] = z
        row[AXES + 4] = length_x
        row[AXES + 5] = length_y
        row[AXES + 6] = length_z
    state.noted = state.errors
