"""Search for a race in an epoch that has not ended.

Threads with long loops can make billions of accesses before the next barrier. A launch with a race must end
soon, so the accesses so far are searched each time their number has doubled. A race between these accesses
remains a race, whatever the threads do next.
"""

from sim.observers.cells import Rows, racy_cells, sorted_distinct
from sim.observers.copies import LINE_SHIFT
from sim.observers.quick_test import joined_columns, may_share_cell

FIRST_PROBE = 1 << 21  # number of accesses of a block in one epoch before the first search
MOST_CELLS = 8  # maximum number of racy cells that are examined; the writes to some may have equal values


class Probe:
    """The searches of one launch, for the observer Races."""

    def __init__(self, races):
        self.races, self.context = races, races.context
        self.count = {}  # block -> number of accesses in its current epoch
        self.next = {}  # block -> number of accesses at which the next search is due
        self.found = {}  # block -> findings of the last search

    def add(self, batch):
        """Count the accesses of a batch. Return a list with the first race of the epoch, if a search is due
        and finds one."""
        block = batch.block
        self.count[block] = self.count.get(block, 0) + len(batch.address)
        if self.count[block] < self.next.get(block, FIRST_PROBE) or block in self.found:
            return []
        self.next[block] = 2 * self.count[block]
        batches, number = self.races.epoch[block], self.races.number(block)
        if not may_share_cell(batches):
            return []
        address, action = joined_columns(batches, ("address", "action"))
        written = sorted_distinct(address[action != 0] >> LINE_SHIFT)
        rows = Rows.joined([Rows.of(batch, written, number) for batch in batches])
        cells = racy_cells(rows, rows.thread)
        for cell in range(min(len(cells.address), MOST_CELLS)):
            of_cell = rows[cells.members(cell)]
            found = self.races.races(of_cell, of_cell.thread, number)
            errors = [finding for finding in found if finding.severity == "error"]
            if errors:
                self.found[block] = errors[:1]
                return errors[:1]
        return []

    def end_epoch(self, block):
        """Withdraw the finding of the block's epoch, because the whole epoch is now searched."""
        self.count.pop(block, None)
        self.next.pop(block, None)
        self.context.withdraw(self.found.pop(block, ()))
