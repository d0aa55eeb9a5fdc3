"""Runs of a launch, up to a block with an error, in compiled code that records accesses.

The format of the records is in sim.native.codegen.error_records.
"""

import copy
from dataclasses import replace

import numpy as np

from sim.engine.fiber import Fiber
from sim.engine.grid import Grid
from sim.engine.schedules import Seeded
from sim.errors import ThreadError
from sim.events import ATOMIC, LOAD, SITES, Access, index_text
from sim.hooks import observer_class
from sim.interpreted import Interpreted
from sim.native.codegen.access_log import SITE_SHIFT, SIZE_SHIFT
from sim.native.codegen.error_records import (
    ACCESS,
    ADDRESS_MASK,
    ARRIVED,
    AXES,
    COLUMNS,
    ENTRY,
    EVENT,
    FLAGS,
    ISSUED,
    MOST_AXES,
    OWN,
    POSITION,
    RECENT,
    RECENT_COLUMNS,
    ROOM,
    SENT,
    SOURCE,
    VALUE,
)
from sim.native.codegen.int64 import CLOCKS_PER_SECOND
from sim.native.codegen.shadow import (
    BLOCK_RACE,
    BOUNDS,
    EPOCH_SHIFT,
    RACE,
    SEGMENT,
    SEGMENT_SHIFT,
    THREAD,
    WARP,
)
from sim.native.codegen.tiers import SECONDS
from sim.native.lower.module import CannotLower
from sim.observers import DEFAULT
from sim.sites import thread_index

NEVER = 1 << 62  # the index of a barrier that no block reaches
RECORDED_SECONDS = 1.0  # CPU seconds for which a block runs after its first error


class Row:
    """One recorded access, or the start or the arrival of an asynchronous copy.

    columns: its columns (sim.native.codegen.error_records).
    address: the simulated address of the element, or of the array for a refused access.
    """

    def __init__(self, columns, address):
        entry, rank, rest = columns[ENTRY], columns[AXES], columns[AXES + 1 :]
        self.address, self.own = address, columns[OWN]
        self.site, self.size = entry >> SITE_SHIFT, 1 << (entry >> SIZE_SHIFT & 7)
        self.position, self.flags, self.value = columns[POSITION], columns[FLAGS], columns[VALUE]
        self.event, self.issued, self.source = columns[EVENT], columns[ISSUED], columns[SOURCE]
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

    @property
    def segment(self):
        """The number of synchronisations of the thread's warp before the access."""
        return (self.own & SEGMENT) >> SEGMENT_SHIFT

    def as_issue(self, own, source=0):
        """Return the Row of the issue of a copy, from the Row of its store or of its arrival."""
        issue = copy.copy(self)
        issue.event, issue.own, issue.source, issue.flags = SENT, own, source, 0
        return issue

    @property
    def trap(self):
        """The range of bytes, as (address, size), whose accesses explain the error of this row."""
        # If a copy sets an error flag at its arrival, the conflict is at its source. A conflict at its
        # destination has already set the flag before.
        return self.source if self.event == ARRIVED else self.address, self.size

    def overlaps(self, address, size):
        """Return whether the access overlaps a range of bytes."""
        return self.address < address + size and address < self.address + self.size

    def is_unordered(self, earlier):
        """Return whether nothing orders this access and an earlier one."""
        changed = self.own ^ earlier.own
        if self.position != earlier.position:
            return True
        together = self.epoch == earlier.epoch and self.thread != earlier.thread
        return together and (changed & WARP != 0 or changed & SEGMENT == 0)


class RecordedRun:
    """A run of all blocks up to the one at a linear index, which records accesses.

    If the errors of this block do not depend on accesses of earlier blocks, the earlier blocks run in the
    code of the first run, which takes less time.

    attempt: the Attempt whose launch runs again.
    position: the linear index of the block.
    trap: a range of bytes whose accesses are recorded, as (simulated address, size), or None.
    flipped: the bits to invert in the bytes that fill unwritten shared memory.
    side: the side that the run follows if threads disagree (sim.native.codegen.sides), or 0.
    last_barrier: the index of the barrier at which the block stops, counted from the disagreement.
    absent_fill: 0 if warp operations wait for the threads of the other side. Otherwise, these threads count
        as returned, and absent_fill is 1 + the byte that fills their values.
    checks: whether races and reads of unwritten memory are checked, and accesses with errors are recorded. A
        run that only follows a side takes less time without checks and records. `flipped` and `trap` have no
        effect in such a run.
    """

    def __init__(
        self, attempt, position, trap=None, flipped=0, side=0, last_barrier=NEVER, absent_fill=0, checks=True
    ):
        attempt.restore()
        self.launch = replace(
            attempt.launch,
            observers=tuple(each for each in attempt.launch.observers if observer_class(each) in DEFAULT),
        )
        unwatched = replace(self.launch, observers=())
        launch, code = (self.launch, {"records": True}) if checks else (unwatched, {"has_sides": True})
        self.attempt = again = type(attempt)(launch, **code)
        again.while_limit, again.seconds_per_block = attempt.most_iterations, attempt.seconds_per_block
        again.compile()
        self.space, homes = again.homes()
        self.homes = sorted((low, allocation.base) for low, allocation in homes.items())
        rows, self.state, self.position = np.zeros((ROOM, COLUMNS), np.int64), again.state, position
        state = self.state
        state.records = again.keep_alive(rows)
        if trap is not None:
            state.trap = self.on_host(trap[0])
            state.trap_end = state.trap + trap[1]
        self.recent = np.zeros((RECENT, RECENT_COLUMNS), np.int64)
        if checks and trap is None and not flipped:
            state.recent = again.keep_alive(self.recent)
        state.flipped, state.side, state.last_barrier = flipped, side, last_barrier
        state.absent_fill = absent_fill
        state.time_after_error = int(RECORDED_SECONDS * CLOCKS_PER_SECOND)
        if flipped or absent_fill:
            again.lift_time_limit()  # a time limit would change the results
        again.begin()
        if attempt.seconds_per_block > SECONDS:
            again.optimise()
        if attempt.is_independent(position):
            attempt.run_before(position)
            again.next = position
        self.run_blocks()
        self.errors = int(again.block_errors[position])
        # the results and the error flags of these blocks, which a comparison with other runs needs
        self.effects = [array.tobytes() for array in again.written_arrays()], again.block_errors.tolist()
        again.restore()
        newest = range(max(0, state.record_count - ROOM), state.record_count)
        columns = [rows[number % ROOM].tolist() for number in newest]
        self.rows = [Row(each, self.simulated(each[ENTRY] & ADDRESS_MASK)) for each in columns]
        self.original, self.checks, self.trap = attempt, checks, trap

    def run_blocks(self):
        """Run the blocks. Raise ThreadError if a thread raises an exception.

        Compiled code does not know the line of the exception.
        """
        again = self.attempt
        try:
            again.advance(self.position + 1)
        except CannotLower:
            raise
        except Exception as error:
            if not again.may_raise:
                raise
            thread = thread_index(again.state.own_entry & THREAD, self.launch.block)
            block, name = again.index_of(again.state.position), type(error).__name__
            raised = ThreadError(
                f"thread {index_text(thread)} of block {index_text(block)} raised {name}: {error}"
            )
            raised.access = Access(f"raised {name}", block, thread, None)
            raise raised from error

    def again(self, **given):
        """Return a run of the same blocks. `given` are further arguments of the constructor."""
        return RecordedRun(self.original, self.position, checks=self.checks, **given)

    def before_race(self, racing):
        """Return a copy of this run whose rows are the recent events at the bytes of a race.

        A rerun, `again(trap=racing.trap)`, would record the same rows, and also earlier ones. The rows are
        empty if this run has not stored the events before the race.

        racing: the Row of the later access of the race.
        """
        found = copy.copy(self)
        found.trap, found.rows = racing.trap, []
        races = [row for row in self.rows if row.flags & (RACE | BLOCK_RACE)]
        # If rows were overwritten, one of them may have been an earlier race, which ended the storage of
        # events.
        if races[0] is racing and self.state.record_count <= ROOM:
            found.rows = [*map(self.row_of, self.recent_events(racing)), racing]
        return found

    def recent_events(self, racing):
        """Return the rows of `recent` with the events at the bytes of a race, in order.

        Events of an epoch whose first events have been overwritten are left out.
        """
        count = self.state.recent_count
        rows = self.recent[np.arange(max(0, count - RECENT), count) % RECENT]
        if count > RECENT:
            epochs = rows[:, OWN] >> EPOCH_SHIFT
            rows = rows[epochs != epochs[0]]
        entries, sources, low = rows[:, ENTRY], rows[:, SOURCE], self.on_host(racing.trap[0])
        addresses, sizes = entries & ADDRESS_MASK, 1 << (entries >> SIZE_SHIFT & 7)
        end, is_copy = low + racing.trap[1], rows[:, EVENT] != ACCESS
        touches = (addresses < end) & (low < addresses + sizes)
        touches |= is_copy & (sources < end) & (low < sources + sizes)
        # Only one aligned word is stored per access, so part of the value of an unaligned element is lost.
        is_cut = touches & ~is_copy & ((sources & 7) + np.minimum(sizes, 8) > 8)
        return [] if is_cut.any() else rows[touches]

    def row_of(self, event):
        """Return the Row of an event in `recent`."""
        columns = [*event.tolist(), *[0] * (COLUMNS - RECENT_COLUMNS)]
        size = 1 << (columns[ENTRY] >> SIZE_SHIFT & 7)
        if columns[EVENT] == ACCESS:
            columns[SOURCE] = 0
            columns[VALUE] &= (1 << 8 * size) - 1 if size < 8 else -1
        return Row(columns, self.simulated(columns[ENTRY] & ADDRESS_MASK))

    def prepared(self):
        """Return a new (Context, Grid) of the interpreter for the launch, with new observers."""
        observers = [each() if isinstance(each, type) else each for each in self.launch.observers]
        schedule = Seeded(np.random.default_rng(self.launch.seed))
        context, _, grid = Interpreted(Fiber).prepare(self.launch, Grid, observers, schedule)
        return context, grid

    def site(self, index):
        """Return the Site of a synchronisation point. `index` is the index of this site in the module."""
        return SITES[self.attempt.number_of_site(index)]

    def simulated(self, address):
        """Return the simulated address for an address in a record. In compiled PTX, the two are equal."""
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
        """Return the Rows of two accesses that race, the earlier access first. Return () if the earlier
        access is unknown.

        racing: the Row of the later access, from another run.
        """
        rows = [row for row in self.rows if row.event == ACCESS and row.axes is None]
        rows = [row for row in rows if row.overlaps(*self.trap)]
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
