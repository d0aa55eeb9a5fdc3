"""The accesses to global memory that can still race with other blocks, until the next grid barrier."""

import numpy as np

from sim.events import GLOBAL, LOAD, SPACE_SHIFT
from sim.observers.cells import FEW_ROWS, Rows

MAX_WAITING = 1 << 10  # the maximum number of batches that are not yet converted


class GlobalAccesses:
    """The accesses of all blocks to global memory, as Rows.

    A grid can have thousands of blocks with few accesses each. Their batches are converted together, because
    a conversion takes as long for one access as for a hundred.
    """

    def __init__(self):
        self.parts = []  # converted accesses (Rows)
        self.waiting = []  # accesses to convert: (number of the block, batch)

    def add(self, batches, block, once):
        """Add the accesses of a block's epoch (see Rows.of_global_memory for `once`)."""
        if sum(len(batch.address) for batch in batches) <= FEW_ROWS:
            self.waiting += [(block, batch) for batch in batches]
            if len(self.waiting) > MAX_WAITING:
                self.convert()
            return
        rows = [Rows.of(batch, (), block) for batch in batches if np.count_nonzero(batch.space == GLOBAL)]
        if rows:
            self.add_rows(Rows.joined(rows).of_global_memory(once))

    def add_rows(self, rows):
        """Add accesses to global memory."""
        self.convert()
        self.parts.append(rows)

    def convert(self):
        """Convert the waiting batches to Rows."""
        if not self.waiting:
            return
        blocks, batches = zip(*self.waiting)
        self.waiting = []
        lengths = [len(batch.address) for batch in batches]
        columns = {
            name: np.concatenate([getattr(batch, name) for batch in batches])
            for name in ("thread", "segment", "site", "address", "size", "position")
        }
        action = columns["site"] & 3
        value = np.empty(len(action), object)
        # Use indices instead of a mask: numpy refuses tuples with a mask, and the values of vector stores are
        # tuples.
        value[np.flatnonzero(action != LOAD)] = [one for batch in batches for one in batch.values]
        block, epoch = (np.repeat(of, lengths) for of in (blocks, [batch.epoch for batch in batches]))
        rows = Rows(block, epoch, **columns, value=value, action=action)
        self.parts.append(rows[columns["address"] >> SPACE_SHIFT == GLOBAL])

    def take(self):
        """Return all accesses as Rows, or None if there are none, and clear the collection."""
        self.convert()
        parts, self.parts = self.parts, []
        return Rows.joined(parts) if parts else None
