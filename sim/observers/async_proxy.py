"""Operations of the async proxy (bulk copies, wgmma), and the accesses that conflict with them.

An operation accesses memory at any time between its issue and its end. An access that is ordered after the
issue but not after an observation of the end conflicts with it, unless both only read. An access that is not
ordered with the issue is a race (sim.observers.races).

The generic proxy and the async proxy are ordered only by a proxy fence. A generic write that happens before
an operation on the same bytes therefore needs a fence.proxy.async on every path of synchronisation between
the two. An access after the observed end of an operation needs none, because the end contains such a fence.

Source: PTX ISA 9.7.9.25.2, "Async Proxy"; 8.9.5, "Causality order" (proxy-preserved base causality order).
"""

import numpy as np

from sim.events import ATOMIC, GLOBAL, LOAD, SHARED, SPACE_SHIFT, Moment
from sim.observers.async_findings import AsyncFindings, inside
from sim.observers.async_units import Columns, Units
from sim.observers.copies import NEVER, precedes
from sim.observers.lifetimes import Lifetimes
from sim.observers.order import GRID, HappensBefore, bulk_thread
from sim.observers.stages import Stages
from sim.sites import cluster_rank

# Kinds of findings that can end a block before its asynchronous operations have ended.
FATAL = {"deadlock", "no-progress", "undecided", "barrier-divergence", "warp-divergence"}


class ProxyOrder(HappensBefore):
    """The order between generic accesses and later operations of the async proxy.

    A thread's clock contains the accesses that happened before a proxy fence, if that fence happened before
    the current point of the thread. The same events pass this clock on as the ordinary clock, but the
    thread's own accesses enter it only at a proxy fence."""

    def __init__(self, clocks):
        super().__init__(clocks=clocks)
        self.delayed = True

    def clocks_now(self, block, epoch, thread, segment):
        acquired, _ = super().clocks_now(block, epoch, thread, segment)
        return acquired, {}

    def sync_warp(self, block, threads, segment):
        self.active = True
        parts = [part for thread in threads for part in self.thread_clocks(block, thread)]
        for thread in threads if parts else ():
            self.acquire(block, thread, segment, {"warp": self.clocks.merge(parts)})

    def issue(self, block, epoch, thread, segment):
        self.issued[block, thread, segment] = [*self.clocks_now(block, epoch, thread, segment)]

    def track_copies(self, block, epoch, thread, segment, phase):
        # After the end of a copy by cp.async, a further proxy fence is necessary.
        self.arrive(block, epoch, thread, segment, phase)

    def complete(self, block, thread, segment, phase):
        self.phase(block, phase).of(block, GRID).add(self.issued.pop((block, thread, segment), ()))

    def observe(self, block, thread, segment, moments):
        """Do nothing: the end of an operation orders no generic access."""


class AsyncProxy:
    """The operations of the async proxy in a launch, and their conflicts. The observer Races uses it.

    order: the HappensBefore of the launch.
    number: the function that returns the number of a block.
    performed: the order in which operations are performed (sim.observers.lifetimes).
    flights: the Flights of the launch, copies by cp.async.
    """

    def __init__(self, context, order, number, names, performed, flights):
        self.context, self.order, self.number, self.names = context, order, number, names
        self.findings = AsyncFindings(context, names)
        self.lifetimes = Lifetimes(context, performed, number)
        self.stages = Stages(context, performed, number)
        self.fenced = {space: ProxyOrder(order.clocks) for space in (SHARED, GLOBAL)}
        self.waiting, self.operations = [], []  # batches and operations that have not been processed
        self.known = []  # the operations in the order of their numbers
        # operation -> the Moments at which a thread has observed its end, or the end of its reads
        self.ends, self.read_ends = {}, {}
        self.by_segment = {}  # segment -> the operation whose accesses it contains
        self.units, self.nodes, self.node_of = {}, [], {}
        # the generic writes in the order of their numbers; (segment, site) of a write -> its number
        self.writes, self.write_of = [], {}
        self.copy_ends = flights.ends
        # Pairs that have been compared: (operation, segment of an access, whether the operation only reads)
        # -> whether they conflict; (number of a write, segment of an operation, state space) -> True
        self.checked = {}
        # key of a finding -> (rank, the function that makes the finding, its arguments)
        self.reported = {}

    # --- events ---------------------------------------------------------------------------------------------

    def record(self, name, *facts):
        """Pass an event that orders threads to the orders between the proxies."""
        for order in self.fenced.values():
            getattr(order, name)(*facts)
        if name in ("arrive", "pass_barrier"):
            self.stages.record(name, *facts)

    def fence(self, at, spaces):
        clock = self.order.clock(*at)
        for space in spaces:
            self.fenced[space].acquire(at.block, at.thread, at.segment, {"fence": clock})

    def issued(self, operation):
        self.operations.append(operation)
        self.by_segment[operation.issued.segment] = operation
        self.ends[operation], self.read_ends[operation] = [], []

    def done(self, at, operations, sources):
        for operation in operations:
            (self.read_ends if sources else self.ends)[operation].append(at)

    def tracked(self, operation, phase):
        self.stages.counts(operation, phase)
        at = operation.issued
        name = bulk_thread(at.thread, phase[0])
        self.ends[operation].append(Moment(self.number(at.block), NEVER, name, at.segment))

    def accesses(self, batch):
        self.waiting.append(batch)

    # --- processing -----------------------------------------------------------------------------------------

    def process(self):
        """Compare all accesses and operations since the last call, in the order of their execution."""
        rows = self.collect()
        self.operations, operations = [], sorted(self.operations, key=lambda one: one.position)
        first = 0
        for operation in operations:
            if rows is not None:
                last = int(np.searchsorted(rows.position, operation.position))
                if last > first:
                    self.generic_rows(rows[first:last])
                first = max(first, last)
            self.operation(operation)
        if rows is not None and first < len(rows.block):
            self.generic_rows(rows[first:])

    def collect(self):
        """Return the generic accesses of the waiting batches as Columns, or None."""
        batches, self.waiting = self.waiting, []
        if not batches:
            return None
        parts = {name: [] for name in ("block", *Columns.NAMES)}
        for batch in batches:
            space = batch.space
            keep = ((space == SHARED) | (space == GLOBAL)) & ~np.isin(batch.segment, self.segments())
            for name in Columns.NAMES:
                column = np.full(len(keep), batch.epoch) if name == "epoch" else getattr(batch, name)
                parts[name].append(column[keep])
            parts["block"].append(np.full(int(keep.sum()), self.number(batch.block)))
        columns = {name: np.concatenate(part) for name, part in parts.items()}
        order = np.argsort(columns["position"], kind="stable")
        return Columns(*(columns[name][order] for name in ("block", *Columns.NAMES)))

    def segments(self):
        return np.fromiter(self.context.async_segments, np.int64, len(self.context.async_segments))

    def state(self, address, block):
        """Return the Units for an address that a block accesses, and the address within the memory of the
        block that owns it."""
        space = address >> SPACE_SHIFT
        owner = None
        if space == SHARED:
            rank = cluster_rank(address) if self.context.clustered else None
            owner = (
                block if rank is None else self.number(self.context.cluster_blocks(self.names[block])[rank])
            )
            address = self.context.space.within_block(address)
        allocation = self.context.space.find(address)
        key = id(allocation), owner
        if key not in self.units:
            self.units[key] = Units(allocation, space)
        return self.units[key], address

    def generic_rows(self, rows):
        """Compare generic accesses with the earlier operations, and record the writes among these
        accesses."""
        # two allocations never share a MiB of addresses if PTX operations access them
        region = rows.address >> 20
        for key in np.unique(rows.block * (1 << 40) + region).tolist():
            chosen = np.flatnonzero((rows.block == key >> 40) & (region == key & ((1 << 40) - 1)))
            while len(chosen):
                units, address = self.state(int(rows.address[chosen[0]]), int(rows.block[chosen[0]]))
                shift = int(rows.address[chosen[0]]) - address
                end = units.base + shift + (len(units.writer) - 1) * units.grain
                inside = (rows.address[chosen] >= units.base + shift) & (rows.address[chosen] < end)
                self.rows_of(units, rows[chosen[inside]], shift)
                chosen = chosen[~inside]

    def rows_of(self, units, rows, shift):
        begin = rows.address - shift - units.base
        first, last = begin // units.grain, (begin + rows.size - 1) // units.grain
        count = last - first + 1
        row = np.repeat(np.arange(len(first)), count)
        unit = first[row] + np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
        writes = (rows.site & 3)[row] != LOAD
        if units.used:
            self.meet(rows, row, units.writer[unit], self.known_operation)
            self.meet(rows, row[writes], units.readers[unit[writes]], self.readers_of)
        if writes.any():
            units.writer[unit[writes]] = units.readers[unit[writes]] = -1
            units.generic[unit[writes]] = self.write_numbers(rows, row[writes])

    def write_numbers(self, rows, row):
        """Return the numbers of the generic writes in these rows."""
        keys = rows.segment[row] << 24 | rows.site[row]
        distinct, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        numbers = np.empty(len(distinct), np.int32)
        for i, key in enumerate(distinct.tolist()):
            if key not in self.write_of:
                self.write_of[key] = len(self.writes)
                lowest = row[first[i]]
                self.writes.append((rows.row(lowest), int(rows.site[lowest]), int(rows.address[lowest])))
            numbers[i] = self.write_of[key]
        return numbers[inverse]

    def known_operation(self, number):
        yield self.known[number]

    def readers_of(self, node):
        while node >= 0:
            number, node = self.nodes[node]
            yield self.known[number]

    def meet(self, rows, row, numbers, operations):
        """Report the accesses that conflict with operations on the same bytes.

        numbers: for each access, the number that `operations` maps to the operations on the same bytes, or
            -1 if there are no such operations.
        """
        hits = np.flatnonzero(numbers >= 0)
        if not len(hits):
            return
        keys = rows.segment[row[hits]] << 28 | numbers[hits]
        for i in np.unique(keys, return_index=True)[1]:
            at = int(row[hits[i]])
            for operation in operations(int(numbers[hits[i]])):
                self.conflict(operation, rows.row(at), int(rows.site[at]), int(rows.address[at]))

    # --- operations -----------------------------------------------------------------------------------------

    def operation(self, operation):
        """Compare an operation with the earlier accesses to its bytes, and record the accesses of the
        operation."""
        number = len(self.known)
        self.known.append(operation)
        at = operation.issued._replace(block=self.number(operation.issued.block))
        for finding, writers in operation.doubts:
            if all(self.writer(address, at.block) is other for address, other in writers.items()):
                sites = tuple(access.site for access in finding.accesses)
                self.note(("layout", operation.site, sites), at, 0, lambda finding: finding, (finding,))
        for ranges, writes in ((operation.reads, False), (operation.writes, True)):
            for address, size in ranges:
                units, local = self.state(address, at.block)
                units.used, span = True, units.span(local, size)
                mine = np.unique(units.writer[span])
                earlier = [self.known[other] for other in mine[mine >= 0].tolist()]
                if writes:
                    nodes = np.unique(units.readers[span])
                    earlier += [one for node in nodes[nodes >= 0].tolist() for one in self.readers_of(node)]
                for other in earlier:
                    if other is not operation and not (reduces(operation) and reduces(other)):
                        self.conflict(other, at, operation.site, address, operation)
                self.unfenced(units, span, at, operation, address >> SPACE_SHIFT)
                if writes:
                    units.writer[span], units.readers[span], units.generic[span] = number, -1, -1
                else:
                    units.readers[span] = self.add_reader(units.readers[span], number)

    def writer(self, address, block):
        """Return the operation that last wrote a byte, or None if a thread has written it since."""
        units, local = self.state(address, block)
        number = int(units.writer[units.span(local, 1)][0])
        return self.known[number] if number >= 0 else None

    def add_reader(self, nodes, number):
        """Add an operation to several lists, and return the nodes of the new lists. In each list, the
        operation replaces the newest entry if the end of the operation implies the end of that entry."""
        distinct, inverse = np.unique(nodes, return_inverse=True)
        new = np.empty(len(distinct), np.int32)
        for i, node in enumerate(distinct.tolist()):
            if node >= 0 and follows(self.known[number], self.known[self.nodes[node][0]]):
                node = self.nodes[node][1]
            key = number, node
            if key not in self.node_of:
                self.node_of[key] = len(self.nodes)
                self.nodes.append(key)
            new[i] = self.node_of[key]
        return new[inverse]

    def conflict(self, operation, row, site, address, other=None):
        """Note a finding if an access is ordered after the issue of an operation, but not after its end.

        row: the Moment of the access.
        other: the operation to which the access belongs, or None for a generic access.
        """
        is_source = not any(inside(address, span) for span in operation.writes)
        key = operation, row.segment, is_source
        if key not in self.checked:
            begin = operation.issued._replace(block=self.number(operation.issued.block))
            ends = self.ends[operation] + (self.read_ends[operation] if is_source else [])
            self.checked[key] = self.precedes(begin, row) and not any(self.precedes(end, row) for end in ends)
        if self.checked[key]:
            found = operation, row, site, address, is_source, other
            self.note((operation.site, site, is_source), row, address, self.findings.conflict, found)

    def precedes(self, at, row):
        if at.block == row.block:
            return precedes(at, row, self.order)
        return self.order.active and self.order.before(at, row)

    def unfenced(self, units, span, at, operation, space):
        """Note a finding for each generic write that no proxy fence orders before an operation."""
        numbers = np.unique(units.generic[span])
        for number in numbers[numbers >= 0].tolist():
            write, site, address = self.writes[number]
            key = number, at.segment, space
            if key in self.checked:
                continue
            self.checked[key] = True
            # The write of a copy by cp.async happens at its end, which only its wait orders before a fence.
            ends = self.copy_ends.get((write.segment, site), ())
            done = [end for end in ends if self.precedes(end, at)]
            fenced = any(self.fenced[space].before(one, at) for one in done or (write,))
            if self.precedes(write, at) and not fenced:
                found = operation, write, site, address, space, bool(done)
                self.note((operation.site, site, "fence"), write, address, self.findings.unfenced, found)

    def note(self, key, row, address, make, found):
        """Note a finding. If several findings have the same key, only the one about the lowest thread is
        reported.

        row: the Moment of the access.
        make, found: the function that returns the finding, and its arguments.
        """
        rank = self.names[row.block][::-1], row.thread, address
        if key not in self.reported or rank < self.reported[key][0]:
            self.reported[key] = rank, make, found

    def launch_finished(self):
        """Return the findings of the launch."""
        explained = {
            site for site, *_ in self.reported
        }  # an access that is too early explains a missing wait
        for operation in self.known:
            ends = self.ends[operation], self.read_ends[operation]
            if operation.site not in explained and not self.lifetimes.contains(operation, *ends):
                self.reported[operation.site, "end"] = None, self.findings.left, (operation,)
        # A block that was ended early did not reach its waits.
        ended_early = self.context.ended_early or any(
            finding.kind in FATAL for finding in self.context.findings
        )
        findings = [
            make(*found)
            for (_, *_, what), (_, make, found) in self.reported.items()
            if make and not (what == "end" and ended_early)
        ]
        self.reported.clear()
        return findings

    def unordered(self, address, a, b):
        """Return the finding for two unordered accesses (Rows) if one of them belongs to an operation,
        otherwise None."""
        operation, row = self.by_segment.get(a.segment), b
        if operation is None:
            operation, row = self.by_segment.get(b.segment), a
        if operation is None:
            return None
        finding = self.findings.unordered(operation, row, address, self.by_segment.get(row.segment))
        if finding.severity == "error":
            self.reported.setdefault((operation.site, row.site, "race"), (None, None, None))
        return finding


def reduces(operation):
    """Return whether an operation updates memory atomically."""
    return operation.site & 3 == ATOMIC


def follows(operation, earlier):
    """Return whether the end of an operation implies the end of an earlier operation, because one thread
    waits for the two operations in order."""
    same = operation.issued.block == earlier.issued.block and operation.issued.thread == earlier.issued.thread
    return same and operation.through == earlier.through != "mbarrier"
