"""Findings from compiled code, for errors that the interpreter takes too long to reach.

The launch runs again in compiled code that knows the site of every access (sim.native.codegen.error_records),
up to the first block with an error. This code records the accesses that set error flags. For a race, the
earlier access is often among the most recent events, which this run stores. Otherwise, one more run records
the earlier accesses to the same bytes. The observers then receive only the recorded accesses, and make the
same findings as for an interpreted launch. If an observer finds no error in a recorded access, there is no
finding.
"""

from contextlib import suppress

import numpy as np

from sim.engine.cluster import Cluster, cluster_index
from sim.events import LOAD, LOCAL, SHARED, SPACE_SHIFT, Batch, Copy, Moment
from sim.isa.conversions import domain
from sim.memory.array import array_at
from sim.memory.declared import c_strides
from sim.native.codegen.error_records import ACCESS, ARRIVED, SENT
from sim.native.codegen.shadow import BLOCK_RACE, BOUNDS, DIVERGED, RACE, UNWRITTEN
from sim.native.lower.module import CannotLower
from sim.native.run.divergence import divergence_findings
from sim.native.run.recorded_run import RecordedRun
from sim.observers.copies import WORDS

# The bits to invert in each byte of unwritten shared memory, for three further runs. Without an inversion,
# the bytes of integers are 0xA5, and the bytes of floats are 0xFF.
FLIPS = 0xFF, 0xA5, 0x5A
REFUSED = {"out-of-bounds", "misaligned-address", "use-after-free"}  # kinds of findings about one access
RACES = {"race-shared", "race-global"}
RECORDED = BOUNDS | UNWRITTEN | RACE | BLOCK_RACE  # the flags of errors that an access causes


def recorded_findings(attempt):
    """Return the findings about the first block with a recorded error, or [] if there are none.

    attempt: an Attempt that has run and whose memory has been restored. Afterwards, memory is as before the
        launch.
    """
    flagged = np.flatnonzero(attempt.block_errors & (RECORDED | DIVERGED))
    findings = []
    if len(flagged) and attempt.can_record:
        with suppress(CannotLower):
            findings = findings_of_block(attempt, int(flagged[0]))
    attempt.restore()
    return findings


def findings_of_block(attempt, position):
    """Return the findings about the block at this linear index."""
    # The run follows a side only after the first disagreement, and ends where this side waits. If no access
    # has set an error flag, the accesses need neither checks nor records, which take most of the time.
    checks = bool(attempt.block_errors[position] & RECORDED)
    run, findings = RecordedRun(attempt, position, side=1, last_barrier=0, checks=checks), []
    for row in run.rows:
        if row.position != position:
            continue
        if run.is_refused(row):
            findings += findings_of_accesses(run, (row,), REFUSED)
        if row.flags & UNWRITTEN and (row.address >> SPACE_SHIFT != SHARED or has_effect(run)):
            rows = (row,) if row.address >> SPACE_SHIFT == LOCAL else same_epoch(run, row)
            findings += findings_of_accesses(run, rows, {"uninitialized-read"})
        if row.flags & (RACE | BLOCK_RACE):
            findings += race_findings(run.before_race(row), row) or race_findings(
                run.again(trap=row.trap), row
            )
    return findings or divergence_findings(run)


def race_findings(run, row):
    """Return the findings about a race, or [] if a RecordedRun lacks the earlier access.

    run: a RecordedRun whose rows contain the accesses to the bytes of the race.
    row: the Row of the later access.
    """
    races = copy_findings(run, row.position, RACES)
    races = races or findings_of_accesses(run, run.pair_of(row), RACES)
    return races or copy_findings(run, row.position, {"async-copy"})


def same_epoch(run, row):
    """Return the Rows of all accesses to the element of a Row by its block, in the same epoch."""
    rows = accesses_of_block(run.again(trap=row.trap), row.position)
    return [
        other
        for other in rows
        if other.event == ACCESS and other.epoch == row.epoch and other.overlaps(*row.trap)
    ]


def accesses_of_block(run, position):
    """Return the Rows of a block, except for refused accesses."""
    return [row for row in run.rows if row.position == position and row.axes is None]


def has_effect(run):
    """Return whether the values of unwritten shared memory change the results or the errors of a block."""
    first, *others = (run.again(flipped=flipped).effects for flipped in FLIPS)
    return any(other != first for other in others)


def findings_of_accesses(run, rows, kinds):
    """Return the findings of these kinds that the observers make about the accesses of some Rows, which
    belong to one epoch."""
    context, grid = run.prepared()
    if run.homes:
        context.space = run.space
    with np.errstate(all="ignore"):
        context.announce("launch_started", context)
        for position in dict.fromkeys(row.position for row in rows):
            own = [row for row in rows if row.position == position]
            block = begin_block(context, run, grid, position)
            context.thread = block.threads[own[0].thread]
            announce_accesses(context, run, block.index, own)
        context.announce("launch_finished", context)
    return [finding for finding in context.findings if finding.kind in kinds]


def begin_block(context, run, grid, position):
    """Return the block of the interpreter with this linear index."""
    block = grid.new_block(run.attempt.index_of(position))
    Cluster(cluster_index(block.index, context.cluster), (block,))
    return block


def announce_accesses(context, run, block, rows):
    """Pass the accesses of one block to the observers.

    block: the index (x, y, z) of the block.
    """
    row = rows[0]
    if run.is_refused(row):
        announce_refused(context, run, row)
    elif row.address >> SPACE_SHIFT == LOCAL:
        context.announce("unwritten", context.witness("read", run.number_of(row)), row.address)
    else:
        context.announce("accesses", batch_of(context, run, block, rows))
        context.announce("block_ended", block, 0)


def announce_refused(context, run, row):
    """Report a refused access, which has an invalid index or address, to the observers."""
    number = run.number_of(row)
    if row.axes is None:
        with suppress(TypeError):  # a store to read-only memory raises TypeError
            context.memory.check_access(row.address, row.size, number, WORDS[number & 3])
        return
    (index, shape), (name, array) = row.axes, run.array_of(row)
    allocation = run.space.find(row.address)
    strides = c_strides(tuple(shape), array.dtype)
    offset = row.address - allocation.base
    accessed = array_at(context, allocation, offset, array.dtype, shape, strides, name)
    context.refuse(number, WORDS[number & 3], accessed, tuple(index))


def batch_of(context, run, block, rows, epoch=0, segments=None):
    """Return a Batch of the accesses of one block in one epoch.

    segments: the segment of each access. By default, each access is a new segment.
    """
    positions = np.arange(context.logged, context.logged + len(rows))
    segments = positions if segments is None else np.array(segments)
    context.logged += len(rows)
    sites = [run.number_of(row) for row in rows]
    columns = [row.thread for row in rows], sites, [row.address for row in rows], [row.size for row in rows]
    threads, numbers, addresses, sizes = map(np.array, columns, (np.int32, np.int32, np.int64, np.int32))
    values = [value_of(run, row) for row, site in zip(rows, sites) if site & 3 != LOAD]
    return Batch(block, epoch, threads, segments, positions, numbers, addresses, sizes, values)


def value_of(run, row):
    """Return the value of the element after an access. If the element has more than eight bytes, return its
    first eight bytes as an integer. Return the value of a copy as bytes."""
    if is_copied(run, row):
        return row.value.to_bytes(8, "little", signed=True)
    dtype = run.array_of(row)[1].dtype if run.homes else run.attempt.dtype_of_site(row.site)
    bits = np.array([row.value])
    return domain(bits.view(dtype)[0]) if dtype.itemsize == row.size <= 8 else row.value


# --- asynchronous copies ------------------------------------------------------------------------------------


def is_copied(run, row):
    """Return whether an access is the store of an asynchronous copy."""
    return not run.homes and run.attempt.is_copied(row.site)


def copy_findings(run, position, kinds):
    """Return the findings of these kinds about bytes that asynchronous copies read or write, or [] if no copy
    does.

    Pass all recorded accesses and copies of one block to the observers, which determine the order of each
    access, the issue of the copy, and the wait for it.

    run: a RecordedRun with a trap.
    position: the linear index of the block.
    """
    rows = with_issues(run, accesses_of_block(run, position))
    if all(row.event == ACCESS for row in rows):
        return []
    context, grid = run.prepared()
    with np.errstate(all="ignore"):
        context.announce("launch_started", context)
        announce_copies(context, run, begin_block(context, run, grid, position), rows)
        context.announce("launch_finished", context)
    return [finding for finding in context.findings if finding.kind in kinds]


def with_issues(run, rows):
    """Return Rows in which each arrival of a copy follows its issue, and the issue follows the store.

    The array of rows can be too short to contain the issue, and the run can end at the store.
    """
    issued = {(row.own, row.address) for row in rows if row.event == SENT}
    lost = [row for row in rows if row.event == ARRIVED and (row.issued, row.address) not in issued]
    issued |= {(row.issued, row.address) for row in lost}
    found = [row.as_issue(row.issued, row.source) for row in lost]
    for row in rows:
        found.append(row)
        stores = row.event == ACCESS and is_copied(run, row)
        found += [row.as_issue(row.own)] * (stores and (row.own, row.address) not in issued)
    return found


def announce_copies(context, run, block, rows):
    """Pass the accesses and copies of one block to the observers, with the barriers between them.

    Each Row gets a segment of its own.
    """
    epoch, batch, copies, warps = 0, [], {}, {}
    for segment, row in enumerate(rows):
        if segment and row.epoch != rows[segment - 1].epoch:
            end_epoch(context, run, block, epoch, batch)
            context.announce("barrier_opened", block.index, epoch)
            epoch, batch, warps = epoch + 1, [], {}
        thread = context.thread = block.threads[row.thread]
        if warps.setdefault(thread.warp, row.segment) != row.segment:
            lanes = tuple(one.linear for one in block.threads if one.warp == thread.warp)
            context.announce("warp_synchronized", block.index, lanes, segment - 1)
            warps[thread.warp] = row.segment
        at = Moment(block.index, epoch, row.thread, segment)
        if row.event == SENT:
            source = (row.source, row.size) if row.source else (None, 0)
            copy = copies[row.own, row.address] = Copy(row.address, row.size, run.number_of(row), *source)
            context.announce("copy_sent", at, copy)
        elif row.event == ARRIVED:
            context.announce("copies_received", at, [copies[row.issued, row.address]])
        else:
            batch.append((segment, row))
    end_epoch(context, run, block, epoch, batch)
    context.announce("block_ended", block.index, epoch)


def end_epoch(context, run, block, epoch, batch):
    """Pass the accesses of an epoch to the observers. `batch` is a list of (segment, Row)."""
    if batch:
        segments, rows = zip(*batch)
        context.announce("accesses", batch_of(context, run, block.index, rows, epoch, segments))
