"""The state of memory that operations of the async proxy access, and accesses as parallel arrays."""

import numpy as np

from sim.events import GLOBAL, SHARED, Moment

GRAINS = {SHARED: 16, GLOBAL: 2}  # state space -> bytes per unit in `Units`


class Units:
    """The state of an allocation's memory, per unit of a few bytes.

    writer: the number of the operation that last wrote the unit, or -1.
    readers: the number of a node in a list of the operations that have read it since, or -1.
    generic: the number of the last generic write, or -1.
    """

    def __init__(self, allocation, space):
        self.base, self.grain = allocation.base, GRAINS[space]
        count = -(-allocation.root.size // self.grain) + 1
        self.writer, self.readers, self.generic = (np.full(count, -1, np.int32) for _ in range(3))
        self.used = False  # whether an operation has accessed this memory

    def span(self, address, size):
        """Return the slice of units that contain these bytes."""
        begin = address - self.base
        return slice(begin // self.grain, (begin + size - 1) // self.grain + 1)


class Columns:
    """Accesses as parallel arrays, ordered by position."""

    NAMES = "epoch", "thread", "segment", "site", "address", "size", "position"

    def __init__(self, block, *columns):
        self.block = block
        for name, column in zip(self.NAMES, columns):
            setattr(self, name, column)

    def __getitem__(self, chosen):
        return Columns(self.block[chosen], *(getattr(self, name)[chosen] for name in self.NAMES))

    def row(self, i):
        """Return the Moment of the access at index i."""
        return Moment(*(int(getattr(self, name)[i]) for name in Moment._fields))
