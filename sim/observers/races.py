"""races: data races between two threads.

In a race, two threads access the same byte, at least one of them writes, not both accesses are atomic, and
nothing orders them. Each of these orders two accesses:

    program order, if they belong to the same thread
    a barrier of their block between them
    a syncwarp between them whose mask contains both lanes
    a grid barrier between them
    release and acquire (sim.observers.order)
    for one element only: an earlier atomic, and then an atomic by the later thread before its own access

None of these depends on which thread happens to run first. The values read by threads can depend on the
schedule, so a launch whose control flow depends on the results of atomics is run under several schedules
(sim.engine.schedules).
"""

from collections import Counter
from math import prod

import numpy as np

from sim.events import ATOMIC, LOAD, STORE
from sim.observers.async_proxy import FATAL, AsyncProxy
from sim.observers.cells import ATOMIC_LOAD, MAX_CELLS, Rows, pick_evenly, racy_cells, sorted_distinct
from sim.observers.clusters import ClusterAccesses
from sim.observers.collisions import Cases, Collisions
from sim.observers.copies import LINE_SHIFT, Flights
from sim.observers.early_waits import MbarrierEvents
from sim.observers.global_accesses import GlobalAccesses
from sim.observers.lifetimes import Performed
from sim.observers.missed_phases import MissedPhases
from sim.observers.order import GRID
from sim.observers.ordering import MAX_EVENTS, OrderingObserver
from sim.observers.overlapping_views import OverlappingViews
from sim.observers.pairs import unordered_pairs
from sim.observers.probe import Probe
from sim.observers.quick_test import may_share_cell
from sim.observers.race_findings import RaceFindings
from sim.observers.read_only import ReadOnlyLoads
from sim.observers.register_changes import RegisterChanges
from sim.observers.replicas import is_replicated_store, replicated_loads

# The maximum number of racy cells examined per block, and between blocks. Beyond it, one cell per pattern is
# examined, because a missing barrier in a loop causes the same races in each epoch.
MAX_CELLS_PER_BLOCK = 512


class Races(OrderingObserver):
    """An observer that reports `race-shared` and `race-global`.

    allow_equal_writes: whether to ignore races between writes of equal values. Otherwise, they are warnings.
    allow_replicas: whether to ignore the replicated accesses of Triton programs (sim.observers.replicas).
        These are loads of an element that another thread of the block loads too and then stores to, and
        stores of one instruction to shared memory. Requires allow_equal_writes.
    """

    def __init__(self, allow_equal_writes: bool = False, allow_replicas: bool = False) -> None:
        self.allow_equal_writes, self.allow_replicas = allow_equal_writes, allow_replicas

    def launch_started(self, context):
        super().launch_started(context)
        self.flights = Flights(context)
        self.blocks, self.names = {}, []  # block -> its number; the blocks in the order of their numbers
        order, log, names = self.order, self.log, (self.number, self.names)
        self.performed = Performed() if context.clustered else self.order
        self.proxy = None
        if context.asynchronous:
            self.proxy = AsyncProxy(context, order, *names, self.performed, self.flights)
        self.phases = MissedPhases(context, order, log, *names) if context.mbarriers else None
        self.mbarrier_events = MbarrierEvents() if context.mbarriers else None
        self.registers = RegisterChanges(context, log, self.number) if context.registers_at_launch else None
        if context.noncoherent:
            ReadOnlyLoads(context)
        self.views = OverlappingViews(context) if context.views else None
        self.cluster = ClusterAccesses(context, self.number, self.names) if context.clustered else None
        # A probe searches epochs that have not ended. The async proxy, and the detection of replicated
        # accesses, need all accesses of an epoch.
        self.probe = None if self.proxy or self.allow_replicas else Probe(self)
        # the functions that receive each event, in addition to the order
        self.recorders = [self.proxy.record] if self.proxy else []
        if self.performed is not order:
            self.recorders.append(lambda name, *facts: getattr(self.performed, name)(*facts))
        self.findings = RaceFindings(self)
        self.global_accesses = GlobalAccesses()  # the accesses since the last grid barrier
        self.examined = Counter()  # block, or None between blocks -> number of racy cells examined
        self.known_pairs = {}  # see Collisions
        self.repeated = {}  # (block, pattern) -> the findings for one cell with this pattern

    def grid_barrier_opened(self):
        return self.between_blocks()

    def launch_finished(self, context):
        if self.proxy:
            self.proxy.process()
        findings = [*self.between_blocks(), *(self.proxy.launch_finished() if self.proxy else ())]
        findings += self.between_blocks_of_cluster() if self.cluster else []
        for part in filter(None, (self.phases, self.views)):
            findings += part.launch_finished(findings)
        return findings

    def collective(self, name, block, site):
        what = "syncthreads" if name.startswith("syncthreads") else name
        self.findings.add_meeting(what, site)

    def copy_sent(self, at, copy):
        self.flights.add_copy(at, self.number(at.block), copy)

    def copies_received(self, at, copies):
        self.flights.end_copies(at, self.number(at.block), copies)

    def copies_tracked(self, at, phase, copies):
        super().copies_tracked(at, phase, copies)
        self.flights.end_tracked(at, self.number(at.block), copies)

    def accesses(self, batch):
        super().accesses(batch)
        if self.proxy:
            self.proxy.accesses(self.epoch[batch.block][-1])
        if self.cluster:
            self.cluster.add(self.epoch[batch.block][-1])
        return self.probe.add(batch) if self.probe else ()

    def async_issued(self, operation):
        super().async_issued(operation)
        self.proxy.issued(operation)

    def async_done(self, at, operations, sources):
        super().async_done(at, operations, sources)
        self.proxy.done(at._replace(block=self.number(at.block)), operations, sources)

    def async_tracked(self, operation, phase):
        super().async_tracked(operation, phase)
        self.proxy.tracked(operation, phase)

    def proxy_fenced(self, at, spaces):
        self.proxy.fence(at._replace(block=self.number(at.block)), spaces)

    def record_event(self, name, block, *facts):
        number = self.number(block)
        getattr(self.own_order, name)(number, *facts)
        self.log.add((name, number, *facts))
        for record in self.recorders:
            record(name, number, *facts)
        if self.mbarrier_events and name in ("arrive", "pass_barrier") and self.log.count <= MAX_EVENTS:
            self.mbarrier_events.add(name, number, *facts[1:4])
        if name in ("release", "perform_atomic") and self.log.count <= MAX_EVENTS:
            _, thread, segment = facts[:3]
            self.findings.add_fence(number, thread, segment, name == "release" and facts[3] == GRID)

    def number(self, block):
        """Return the number of a block, in the order of first use."""
        number = self.blocks.get(block)
        if number is None:
            number = self.blocks[block] = len(self.names)
            self.names.append(block)
        return number

    # --- collecting accesses --------------------------------------------------------------------------------

    def epoch_ended(self, block):
        """Return the races within one block and epoch. Accesses to global memory are kept for
        `between_blocks`."""
        batches = self.epoch.pop(block, ())
        if self.probe:
            self.probe.end_epoch(block)
        if self.proxy:
            self.proxy.process()
        number = self.number(block)
        if not self.flights.under_way.get(number) and not may_share_cell(batches):
            # Most epochs end here. Only the accesses to global memory can still race, with other blocks.
            self.global_accesses.add(batches, number, once=not self.order_matters)
            return []
        lines = [batch.address[batch.action != LOAD] >> LINE_SHIFT for batch in batches]
        lines.append(self.flights.lines(number))
        written = sorted_distinct(np.concatenate(lines))
        rows = [Rows.of(batch, written, number) for batch in batches]
        rows = Rows.joined(rows) if sum(map(len, rows)) else None
        findings = self.flights.epoch_ended(number, rows, self.order)
        if rows is None:
            return findings
        self.global_accesses.add_rows(rows.of_global_memory(once=not self.order_matters))
        if self.allow_replicas:
            rows = rows[~replicated_loads(rows)]
        several = len(written) and (rows.thread != rows.thread[0]).any()
        return findings + self.races(rows, rows.thread, number) if several else findings

    def block_ended(self, block, epoch):
        findings = super().block_ended(block, epoch)
        if self.cluster:
            self.cluster.block_ended(block, prod(self.context.block_shape))
        return findings

    def between_blocks(self):
        """Return the races between blocks since the last grid barrier."""
        rows = self.global_accesses.take()
        if rows is None or not (rows.action != LOAD).any():
            return []
        self.weaken_block_scope(rows)
        ranks = np.empty(len(self.names), np.int64)
        # Rank the blocks by index, so that findings name the lowest blocks, independent of the order of
        # execution.
        ranks[sorted(range(len(ranks)), key=lambda number: self.names[number][::-1])] = np.arange(len(ranks))
        return self.races(rows, ranks[rows.block])

    def between_blocks_of_cluster(self):
        """Return the races between blocks on shared memory, and the accesses outside a block's lifetime."""
        findings = []
        for rows in self.cluster.between_blocks():
            self.weaken_block_scope(rows)
            findings += self.races(rows, rows.block)
        if any(finding.kind in FATAL for finding in self.context.findings):
            return findings
        # The race already explains why its accesses are not ordered, so report nothing else about them.
        racing = {access.site for finding in findings for access in finding.accesses}
        lifetimes = self.cluster.lifetimes(self.performed)
        return findings + [finding for finding in lifetimes if finding.accesses[0].site not in racing]

    def weaken_block_scope(self, rows):
        """Turn the atomics of scope .cta into plain loads and stores, because they are atomic only with
        respect to threads of their own block."""
        for site, action in self.context.block_scoped.items():
            rows.action[rows.site == site] = action

    @property
    def order_matters(self):
        """True if atomics, fences, or barriers for a part of a block can order accesses."""
        return self.order.active or self.context.synchronizes

    # --- finding races --------------------------------------------------------------------------------------

    def races(self, rows, party, block=None):
        """Return findings for all cells accessed by two parties without a happens-before order.

        rows: the accesses.
        party: the party of each row. It is a thread if `block` is given, else a block.
        block: the number of the block within which to search, or None to search between blocks.
        """
        if (rows.action == ATOMIC).any():
            loads = [site for site, action in self.context.strong.items() if action == LOAD]
            rows.action[np.isin(rows.site, loads) & (rows.action == ATOMIC)] = ATOMIC_LOAD
        cells = racy_cells(rows, party)
        ordered = self.may_be_ordered(cells, block)
        pairs = iter(unordered_pairs(cells.select(ordered), self.order))
        # a pair, None if all accesses are ordered, () if no accesses can be ordered
        racing_pairs = [next(pairs) if may_be else () for may_be in ordered.tolist()]
        racing = np.array([pair is not None for pair in racing_pairs], bool)
        racing_pairs = [pair for pair in racing_pairs if pair is not None]
        cells, ordered = cells.select(racing), ordered[racing]
        collisions = Collisions(cells, ordered, self.order, block is not None, self.known_pairs)
        findings = Cases()
        self.findings.begin_search(rows)
        # Beyond the limit, cells with known patterns are only counted.
        repeats = self.examined[block] >= MAX_CELLS_PER_BLOCK
        most = 1 if repeats else MAX_CELLS
        for pattern, same_cells in cells.patterns(always=repeats):
            found, more = self.repeated.get((block, pattern)), len(same_cells)
            if found is None:
                chosen = pick_evenly(same_cells, most)
                more -= len(chosen)
                self.examined[block] += len(chosen)
                for cell in chosen:
                    found = list(self.races_at(collisions.at(cell, racing_pairs[cell])))
                    for finding in found:
                        findings.add(finding)
            for finding in found if more else ():
                findings.add(finding, more)
            if repeats:
                self.repeated[block, pattern] = found
        return findings.merged()

    def may_be_ordered(self, cells, block):
        """Return a mask of the cells in which the happens-before order may order two accesses.

        Within an epoch of a block, two plain accesses are ordered only if the thread of one of them has
        acquired a clock in this epoch.
        """
        if block is None or self.proxy or not self.order_matters or not len(cells.address):
            return np.full(len(cells.address), self.order_matters)
        rows = cells.rows
        acquiring = self.order.threads_that_acquired(
            block, sorted_distinct(rows.thread).tolist(), int(rows.segment.min())
        )
        return cells.any_access((rows.action >= ATOMIC) | np.isin(rows.thread, acquiring))

    def races_at(self, collision):
        """Yield one finding for each pair of sites that race on a cell."""
        pairs = collision.pairs
        # A racy read can change the value that its thread writes, so equal values excuse only races between
        # stores.
        equal = all(one & 3 == other & 3 == STORE for one, other in pairs) and all(
            self.allow_replicas
            and is_replicated_store(collision.address, one, other)
            or collision.writes_equal_values(one, other)
            for one, other in pairs
        )
        for sites in pairs:
            if not (equal and self.allow_equal_writes):
                yield self.findings.finding(collision, sites, equal)
