"""Findings from compiled code, for errors that the interpreter takes too long to reach.

The launch runs again in compiled code that knows the site of every access (sim.native.codegen.error_records),
up to the first block with an error. This code records the accesses that set error flags. For a race, one more
run records the earlier accesses to the same element. The observers then receive only the recorded accesses,
and make the same findings as for an interpreted launch. An access that they accept causes no finding.
"""

from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from sim.engine.barrier import divergence_finding
from sim.engine.cluster import Cluster, cluster_index
from sim.engine.fiber import Fiber
from sim.engine.grid import Grid
from sim.engine.schedules import Seeded
from sim.events import ATOMIC, LOAD, LOCAL, SHARED, SITES, SPACE_SHIFT, Access, Batch
from sim.hooks import observer_class
from sim.interpreted import Interpreted
from sim.isa.conversions import domain
from sim.memory.array import array_at
from sim.memory.declared import c_strides
from sim.native.codegen.access_log import SITE_SHIFT, SIZE_SHIFT
from sim.native.codegen.error_records import (
    ADDRESS_MASK,
    AXES,
    COLUMNS,
    ENTRY,
    FLAGS,
    MOST_AXES,
    OWN,
    POSITION,
    ROOM,
    VALUE,
)
from sim.native.codegen.int64 import CLOCKS_PER_SECOND
from sim.native.codegen.shadow import (
    BLOCK_RACE,
    BOUNDS,
    DIVERGED,
    EPOCH_SHIFT,
    EXHAUSTED,
    RACE,
    SEGMENT,
    THREAD,
    UNWRITTEN,
    WARP,
)
from sim.native.codegen.sides import ABSENT, MAY_CONTINUE, UNKNOWN
from sim.native.lower.module import CannotLower
from sim.observers import DEFAULT
from sim.observers.copies import WORDS
from sim.sites import thread_index

# The bits to invert in each byte of unwritten shared memory, for three further runs. Without an inversion,
# the bytes of integers are 0xA5, and the bytes of floats are 0xFF.
FLIPS = 0xFF, 0xA5, 0x5A
NEVER = 1 << 62  # the index of a barrier that no block reaches
RECORDED_SECONDS = 1.0  # CPU seconds for which a block runs after its first error
REFUSED = {"out-of-bounds", "misaligned-address", "use-after-free"}  # kinds of findings about one access
RECORDED = BOUNDS | UNWRITTEN | RACE | BLOCK_RACE  # the flags of errors that an access causes


def recorded_findings(attempt):
    """Return the findings about the first block with a recorded error, or [] if there are none.

    attempt: an Attempt that has run and whose memory has been restored. Afterwards, memory is as before the
        launch.
    """
    flagged = np.flatnonzero(attempt.block_errors & (RECORDED | DIVERGED))
    findings = []
    if len(flagged) and not attempt.program.lowered.synchronizes and not attempt.is_cooperative:
        with suppress(CannotLower):
            findings = findings_of_block(attempt, int(flagged[0]))
    attempt.restore()
    return findings


def findings_of_block(attempt, position):
    """Return the findings about the block at this linear index."""
    run, findings = RecordedRun(attempt, position), []
    for row in run.rows:
        if row.position != position:
            continue
        if run.is_refused(row):
            findings += findings_of_accesses(run, (row,), REFUSED)
        if row.flags & UNWRITTEN and (row.address >> SPACE_SHIFT != SHARED or has_effect(run, position)):
            rows = (row,) if row.address >> SPACE_SHIFT == LOCAL else same_epoch(attempt, row)
            findings += findings_of_accesses(run, rows, {"uninitialized-read"})
        if row.flags & (RACE | BLOCK_RACE):
            pair = RecordedRun(attempt, position, row.address).pair_of(row)
            findings += findings_of_accesses(run, pair, {"race-shared", "race-global"})
    if run.attempt.state.missed_barrier:
        findings.append(missed_barrier(run, position))
    elif run.errors & DIVERGED and not findings:
        findings += divergent_barrier(attempt, position)
    return findings


def divergent_barrier(attempt, position):
    """Return the finding about a block of which some threads wait at a barrier that the others do not reach.
    Return [] if there is none.

    The others have run to their end, or wait at another call in a kernel in Python.
    """
    sides = [RecordedRun(attempt, position, side=side) for side in (1, 2)]
    ended, longer = sorted(sides, key=lambda run: run.passed)
    if UNKNOWN in (ended.unfinished, longer.unfinished):
        return []
    if not ended.unfinished and ended.passed < longer.passed:
        run = RecordedRun(attempt, position, side=longer.side, last_barrier=ended.passed)
        return [missed_barrier(run, position)]
    if ended.passed and ended.homes:
        run, other = (RecordedRun(attempt, position, side=side, last_barrier=0) for side in (1, 2))
        if run.barrier != other.barrier:
            return [missed_barrier(run, position, other)]
    return []


def same_epoch(attempt, row):
    """Return the Rows of all accesses to the element of a Row by its block, in the same epoch."""
    rows = RecordedRun(attempt, row.position, row.address).rows
    return [
        other
        for other in rows
        if (other.position, other.address, other.epoch) == (row.position, row.address, row.epoch)
        and other.axes is None
    ]


def has_effect(run, position):
    """Return whether the values of unwritten shared memory change the results or the errors of a block."""
    first, *others = (RecordedRun(run.attempt, position, flipped=flipped).effects for flipped in FLIPS)
    return any(other != first for other in others)


def missed_barrier(run, position, other=None):
    """Return the finding about a block in which some threads wait at a barrier, and others have returned.

    other: a run that follows the other side, whose threads wait at another barrier, or None.
    """
    state, block = run.attempt.state, run.attempt.index_of(position)
    sites = {0: run.barrier} | ({ABSENT: other.barrier} if other else {})

    def witness(thread):
        return Access("returned" if thread.done else "waits", block, thread.index, thread.site)

    threads = []
    for thread, returned in enumerate(state.returned[: run.launch.threads]):
        site, index = sites.get(returned), thread_index(thread, run.launch.block)
        threads.append(SimpleNamespace(done=site is None, index=index, site=site, calls=(), frame=True))
    return divergence_finding(SimpleNamespace(waiting_witness=witness), SimpleNamespace(threads=threads))


class Row:
    """One recorded access.

    columns: its columns (sim.native.codegen.error_records).
    address: the simulated address of the element, or of the array for a refused access.
    """

    def __init__(self, columns, address):
        entry, rank, rest = columns[ENTRY], columns[AXES], columns[AXES + 1 :]
        self.address, self.own = address, columns[OWN]
        self.site, self.size = entry >> SITE_SHIFT, 1 << (entry >> SIZE_SHIFT & 7)
        self.position, self.flags, self.value = columns[POSITION], columns[FLAGS], columns[VALUE]
        # the index and the shape of a refused access, or None
        self.axes = (rest[:rank], rest[MOST_AXES : MOST_AXES + rank]) if rank else None

    @property
    def thread(self):
        """The linear index of the thread in its block."""
        return self.own & THREAD

    @property
    def epoch(self):
        """The epoch of the access, which no other block has."""
        return self.own >> EPOCH_SHIFT

    def is_unordered(self, earlier):
        """Return whether nothing orders this access and an earlier one."""
        changed = self.own ^ earlier.own
        if self.position != earlier.position:
            return True
        together = self.epoch == earlier.epoch and self.thread != earlier.thread
        return together and (changed & WARP != 0 or changed & SEGMENT == 0)


class RecordedRun:
    """A run of the blocks up to the one at a linear index, which records accesses.

    attempt: the Attempt whose launch runs again.
    trap: the simulated address of an element whose accesses are recorded, or None.
    flipped: the bits to invert in the bytes that fill unwritten shared memory.
    side: the side that the run follows if threads disagree (sim.native.codegen.sides), or 0.
    last_barrier: the index of the barrier after the disagreement at which the block stops.
    """

    def __init__(self, attempt, position, trap=None, flipped=0, side=0, last_barrier=NEVER):
        attempt.restore()
        self.launch = replace(
            attempt.launch,
            observers=tuple(each for each in attempt.launch.observers if observer_class(each) in DEFAULT),
        )
        self.attempt = again = type(attempt)(self.launch, records=True)
        again.compile()
        self.space, homes = again.homes()
        self.homes = sorted((low, allocation.base) for low, allocation in homes.items())
        rows, state = np.zeros((ROOM, COLUMNS), np.int64), again.state
        state.records, state.trap = again.keep_alive(rows), 0 if trap is None else self.on_host(trap)
        state.flipped, state.side, state.last_barrier = flipped, side, last_barrier
        state.time_after_error = int(RECORDED_SECONDS * CLOCKS_PER_SECOND)
        if flipped:
            again.lift_time_limit()
        again.begin()
        again.advance(position + 1)
        self.side, self.passed, self.errors = side, state.passed, int(again.block_errors[position])
        self.barrier = SITES[self.attempt.number_of_site(state.barrier_site)]
        # A side that is ended by another limit, or that diverges again, may also reach further barriers.
        ended = self.errors & (DIVERGED | EXHAUSTED) or state.stopped or not state.split
        self.unfinished = max(state.unfinished, MAY_CONTINUE if ended else 0)
        # for a comparison with other runs: the results of these blocks, and their error flags
        self.effects = [array.tobytes() for array in again.written_arrays()], again.block_errors.tolist()
        again.restore()
        newest = range(max(0, state.record_count - ROOM), state.record_count)
        columns = [rows[number % ROOM].tolist() for number in newest]
        self.rows = [Row(each, self.simulated(each[ENTRY] & ADDRESS_MASK)) for each in columns]
        self.trap = trap

    def simulated(self, address):
        """Return the simulated address for an address in a record. Compiled PTX uses simulated addresses."""
        low, base = max((home for home in self.homes if home[0] <= address), default=(0, 0))
        return base + address - low

    def on_host(self, address):
        """Return the address in a record for a simulated address."""
        base, low = max(((base, low) for low, base in self.homes if base <= address), default=(0, 0))
        return low + address - base

    def number_of(self, row):
        """Return the number of a Row's site in SITES. Its low bits are the action."""
        return self.attempt.number_of_site(row.site)

    def is_refused(self, row):
        """Return whether a Row describes an access that compiled code has refused.

        In a Python kernel, all other accesses with the flag BOUNDS have a negative index, which is only a
        warning.
        """
        return row.axes is not None or row.flags & BOUNDS and not self.homes

    def pair_of(self, racing):
        """Return the Rows of an earlier access and of the access that raced with it. Return () if the earlier
        access is not known.

        racing: the Row of the access, from another run.
        """
        rows = [row for row in self.rows if row.address == self.trap and row.axes is None]
        is_later = [(row.own, row.flags & racing.flags) == (racing.own, racing.flags) for row in rows]
        if True not in is_later:
            return ()
        later = rows[is_later.index(True)]
        acquires = False  # whether the later thread has performed an atomic between `earlier` and `later`
        for earlier in reversed(rows[: is_later.index(True)]):
            actions = [self.number_of(row) & 3 for row in (earlier, later)]
            harmless = actions in ([LOAD, LOAD], [ATOMIC, ATOMIC]) or acquires and actions[0] == ATOMIC
            if not harmless and later.is_unordered(earlier):
                return earlier, later
            acquires |= actions[0] == ATOMIC and (earlier.position, earlier.thread) == (
                later.position,
                later.thread,
            )
        return ()

    def array_of(self, row):
        """Return (name, ndarray) of the array that contains the element of a Row."""
        allocation, address = self.space.find(row.address), self.on_host(row.address)
        named = [*self.attempt.arrays.items()]
        named += [(allocation.name, guarded.references[0]) for guarded in self.attempt.own_arrays()]
        for name, array in named:
            low, high = np.lib.array_utils.byte_bounds(array)
            if low <= address < high:
                return name, array
        return allocation.name, allocation.root


def findings_of_accesses(run, rows, kinds):
    """Return the findings of these kinds that the observers make about the accesses of some Rows, which
    belong to one epoch."""
    observers = [each() if isinstance(each, type) else each for each in run.launch.observers]
    schedule = Seeded(np.random.default_rng(run.launch.seed))
    context, _, grid = Interpreted(Fiber).prepare(run.launch, Grid, observers, schedule)
    if run.homes:
        context.space = run.space
    with np.errstate(all="ignore"):
        context.announce("launch_started", context)
        for position in dict.fromkeys(row.position for row in rows):
            own = [row for row in rows if row.position == position]
            block = grid.new_block(run.attempt.index_of(position))
            Cluster(cluster_index(block.index, context.cluster), (block,))
            context.thread = block.threads[own[0].thread]
            announce_accesses(context, run, block.index, own)
        context.announce("launch_finished", context)
    return [finding for finding in context.findings if finding.kind in kinds]


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
        with suppress(TypeError):  # raised for memory that the kernel may only read
            context.memory.check_access(row.address, row.size, number, WORDS[number & 3])
        return
    (index, shape), (name, array) = row.axes, run.array_of(row)
    allocation = run.space.find(row.address)
    strides = c_strides(tuple(shape), array.dtype)
    offset = row.address - allocation.base
    accessed = array_at(context, allocation, offset, array.dtype, shape, strides, name)
    context.refuse(number, WORDS[number & 3], accessed, tuple(index))


def batch_of(context, run, block, rows):
    """Return a Batch of the accesses of one block."""
    segments = np.arange(context.logged, context.logged + len(rows))
    context.logged += len(rows)
    sites = [run.number_of(row) for row in rows]
    columns = [row.thread for row in rows], sites, [row.address for row in rows], [row.size for row in rows]
    threads, numbers, addresses, sizes = map(np.array, columns, (np.int32, np.int32, np.int64, np.int32))
    values = [value_of(run, row) for row, site in zip(rows, sites) if site & 3 != LOAD]
    return Batch(block, 0, threads, segments, segments, numbers, addresses, sizes, values)


def value_of(run, row):
    """Return the value of the element after an access. If the element has more than eight bytes, return its
    first eight bytes as an integer."""
    dtype = run.array_of(row)[1].dtype if run.homes else run.attempt.dtype_of_site(row.site)
    bits = np.array([row.value])
    return domain(bits.view(dtype)[0]) if dtype.itemsize == row.size <= 8 else row.value
