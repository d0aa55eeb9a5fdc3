"""Findings about threads of a block that wait for each other, from compiled code.

At their first disagreement, the threads of the block form two sides (sim.native.codegen.sides). The block
runs again for each side. The synchronisation points where the two sides wait show whether they can continue.
"""

from dataclasses import replace
from types import SimpleNamespace

from sim.engine import barrier, warp
from sim.engine.lane_masks import LaneMasks
from sim.events import Access
from sim.isa.table import GIVEN
from sim.native.codegen.launch_state import PASSED
from sim.native.codegen.shadow import DIVERGED, EXHAUSTED, FULL
from sim.native.codegen.sides import ABSENT
from sim.sites import thread_index

# How a run that follows one side has ended: at a block-wide barrier, at a warp operation for which lanes of
# the other side have not arrived, at the end of the kernel, or in another way.
AT_BARRIER, AT_WARP, AT_END, UNKNOWN = range(4)
# Bytes that fill the values of lanes that have returned: a large positive number, a large negative one and 0,
# as integers and as floats. Each can have an effect that the others lack, such as the first one in a maximum.
FILLS = 0x5A, 0xDA, 0x00


class Side:
    """The state at the end of a run that follows one side.

    run: the RecordedRun.
    """

    def __init__(self, run):
        self.run, self.state, self.position = run, run.state, run.position
        self.passed, self.end = self.state.passed, end_of(run)
        self.is_python = bool(run.homes)
        site = {AT_BARRIER: self.state.barrier_site, AT_WARP: self.state.warp_site}.get(self.end)
        self.site = None if site is None else run.site(site)
        self.operation = run.attempt.operation_at(site) if self.end == AT_WARP else None
        self.iterations = tuple(self.state.iterations[: self.state.barrier_depth])

    def again(self, side, **given):
        """Run the block again for one side of the same disagreement, and return this Side.

        side: 1 or 2.
        given: further arguments of RecordedRun.
        """
        return Side(self.run.again(side=side, **given))

    def place(self, number):
        """Return the site of a barrier that the threads of this side have reached after the disagreement, or
        None.

        number: the index of the barrier. 0 is the first barrier after the disagreement.
        """
        return self.run.site(self.state.barrier_sites[number]) if number < min(self.passed, PASSED) else None


def end_of(run):
    """Return how a RecordedRun has ended."""
    state = run.state
    if not state.split or state.unfinished:
        return UNKNOWN
    if state.waiting_mask:
        return AT_WARP
    if state.passed > state.last_barrier:
        return AT_BARRIER
    # At the end of the block, the access log may be full.
    is_ended = state.stopped in (0, FULL) and not run.errors & (DIVERGED | EXHAUSTED)
    return AT_END if is_ended else UNKNOWN


def divergence_findings(run):
    """Return a list with the finding about threads that wait in a block, or [] if there is none.

    run: a RecordedRun that follows the first side up to a synchronisation point where it waits.
    """
    state = run.state
    if state.excluded and not state.split:
        return [excluded_lane(run)]
    if not state.split and state.reader and not state.missed_barrier:
        return undefined_reads(run)
    if not state.split:
        return [missed_barrier(Side(run))] if state.missed_barrier else []
    first = Side(run)
    second = first.again(2, last_barrier=0)
    ends = {first.end, second.end}
    if UNKNOWN in ends:
        return []
    if AT_WARP in ends:
        waiting, other = (first, second) if first.end == AT_WARP else (second, first)
        if other.end == AT_END:
            return undefined_reads(run, waiting.state.side)
        return [missing_lanes(waiting, other)] if never_arrives(waiting, other) else []
    if ends == {AT_BARRIER, AT_END}:
        return [missed_barrier(first if first.end == AT_BARRIER else second)]
    return finding_at_barriers(first, second) if ends == {AT_BARRIER} else []


def never_arrives(waiting, other):
    """Return whether one side waits at a warp operation for lanes of the other side that never arrive. The
    other side waits, too."""
    if other.end == AT_WARP:
        # If `other` waits in another warp, some of its lanes may still arrive. Lanes at different syncwarp
        # instructions can complete one operation together.
        same_warp = waiting.state.waiting_warp == other.state.waiting_warp
        operations = {waiting.operation, other.operation}
        return same_warp and waiting.site != other.site and operations != {"syncwarp"}
    return other.end == AT_BARRIER


def undefined_reads(run, side=0):
    """Return a list with the finding about a lane that reads the value of a lane that has returned, or [] if
    these values have no effect.

    run: a RecordedRun of the block.
    side: the side that waits at a warp operation for lanes of the other side, which have returned. It is 0 if
        the threads have not disagreed.
    """
    sides = (Side(run.again(side=side, absent_fill=1 + byte)) for byte in FILLS)
    first = next(sides)
    if not first.state.reader or all(other.run.effects == first.run.effects for other in sides):
        return []
    block = Threads(first)
    thread = block.threads[first.state.reader - 1]
    site = first.run.site(first.state.read_site)
    calls = Access("calls", block.index_of_block, thread.index, site)
    operation = first.run.attempt.operation_at(first.state.read_site)
    finding = warp.absent_lane_finding(operation, calls, thread.lane, first.state.read_lane)
    return [replace(finding, severity="error")]


def finding_at_barriers(first, second):
    """Return a list with the finding about two sides that both wait at a barrier, or [] if there is none."""
    if first.is_python and (first.site, first.iterations) != (second.site, second.iterations):
        return [missed_barrier(first, second)]
    first, second = (first.again(side) for side in (1, 2))
    if UNKNOWN in (first.end, second.end) and not (first.is_python and first.passed and second.passed):
        return []
    shorter, longer = sorted((first, second), key=lambda side: side.passed)
    number = next((n for n in range(PASSED) if first.place(n) != second.place(n)), PASSED)
    if first.is_python and number < min(shorter.passed, PASSED):
        return [missed_barrier(*(first.again(side, last_barrier=number) for side in (1, 2)))]
    if shorter.end == AT_END and shorter.passed < longer.passed:
        return [missed_barrier(longer.again(longer.state.side, last_barrier=shorter.passed))]
    return []


# --- messages -----------------------------------------------------------------------------------------------


class Threads:
    """The threads of a block. It replaces a Block and a Scheduler for the functions that make findings.

    side: a Side.
    other: the other Side, or None if its threads have returned.
    """

    def __init__(self, side, other=None):
        self.index_of_block = side.run.attempt.index_of(side.position)
        self.context, _ = side.run.prepared()  # has the outline of the source
        sites = {0: side.site or side.run.site(side.state.barrier_site)}
        iterations = {0: side.iterations}
        if other:
            sites[ABSENT], iterations[ABSENT] = other.site, other.iterations
        shape, self.threads = side.run.launch.block, []
        for thread, returned in enumerate(side.state.returned[: side.run.launch.threads]):
            site, index = sites.get(returned), thread_index(thread, shape)
            facts = dict(done=site is None, index=index, site=site, calls=(), frame=True)
            facts |= dict(iterations=iterations.get(returned, ()), warp=thread // 32, lane=thread % 32)
            self.threads.append(SimpleNamespace(**facts))

    def waiting_witness(self, thread):
        """Return the Access that shows where a thread waits, or that it has returned."""
        action = "returned" if thread.done else "waits"
        return Access(action, self.index_of_block, thread.index, thread.site)


def missed_barrier(side, other=None):
    """Return the finding about a block in which only some threads wait at a barrier.

    other: the other Side, if its threads wait at another barrier, or at this barrier in another iteration of
        a loop. It is None if its threads have returned.
    """
    block = Threads(side, other)
    if other and side.site == other.site:
        return barrier.different_iterations_finding(block, block)
    return barrier.divergence_finding(block, block)


def missing_lanes(waiting, other):
    """Return the finding about lanes that wait in a warp operation for lanes of the other side."""
    block, number, mask = Threads(waiting, other), waiting.state.waiting_warp, waiting.state.waiting_mask
    # Only operations that take a mask record the side that waits.
    group = warp.Group(SimpleNamespace(name=waiting.operation, mask=GIVEN), mask)
    alive = 0
    for thread in block.threads[32 * number : 32 * number + 32]:
        alive |= (not thread.done) << thread.lane
        if thread.site == waiting.site and waiting.state.returned[32 * number + thread.lane] == 0:
            group.threads[thread.lane] = thread
            group.bits |= 1 << thread.lane
    block.warp_groups, block.lanes_alive = {(number,): group}, {number: alive}
    block.lane_masks = LaneMasks()  # compiled code does not record earlier calls of the lanes
    return warp.divergence_finding(block, block)


def excluded_lane(run):
    """Return the finding about a lane that passes a mask in which its own bit is not set."""
    block = Threads(Side(run))
    thread = block.threads[run.state.excluded - 1]
    site = run.site(run.state.warp_site)

    def witness(action, number, thread):
        return Access(action, block.index_of_block, thread.index, site)

    context = SimpleNamespace(sites=SimpleNamespace(of_frame=lambda frame, action: site), witness=witness)
    scheduler = SimpleNamespace(context=context)
    return warp.mask_without_caller_finding(scheduler, thread, run.state.excluding_mask, None)
