"""trace: a recording of loads, stores, atomics and barriers, in order, for figures and tests."""

from collections.abc import Iterable

import numpy as np

from sim.events import BARRIER, Index3, Observer
from sim.recording import RecordedArray, Recording

COLUMNS = ("action", "block", "epoch", "thread", "site", "address")


class Trace(Observer):
    """An observer that stores a Recording in `report.trace`.

    blocks: the blocks to record, each as (x, y, z) or as x. None records all blocks.
    limit: the maximum number of events to record. Later events are only counted.
    """

    checks = False

    def __init__(self, blocks: Iterable[int | Index3] | None = None, limit: int = 100_000) -> None:
        self.wanted = None if blocks is None else {b if isinstance(b, tuple) else (b, 0, 0) for b in blocks}
        self.limit, self.rows, self.length, self.cut = limit, [], 0, 0
        self.blocks, self.barrier_site = {}, {}

    @property
    def share(self):
        """The fraction of the selected blocks' events contained in the Recording."""
        return self.length / max(self.length + self.cut, 1) if self.cut else 1.0

    def launch_started(self, context):
        self.space = context.space

    def accesses(self, batch):
        columns = batch.action, batch.epoch, batch.thread, batch.site, batch.address
        self.add(batch.block, len(batch.site), *columns)

    def collective(self, name, block, site):
        self.barrier_site[block] = site

    def barrier_opened(self, block, epoch):
        self.add(block, 1, BARRIER, epoch, -1, self.barrier_site[block], -1)

    def add(self, block, length, action, epoch, thread, site, address):
        """Add `length` rows, or as many as the limit allows."""
        if self.wanted is not None and block not in self.wanted:
            return
        room = min(length, self.limit - self.length)
        self.cut += length - room
        self.length += room
        if room:
            number = self.blocks.setdefault(block, len(self.blocks))
            # A barrier has scalars instead of columns, so broadcast all values to the same length.
            columns = action, number, epoch, thread, site, address
            self.rows.append([np.broadcast_to(c, length)[:room].astype(np.int64) for c in columns])

    def launch_finished(self, context):
        rows = self.rows or [[np.empty(0, np.int64)] * len(COLUMNS)]
        columns = dict(zip(COLUMNS, map(np.concatenate, zip(*rows))))
        arrays, columns["array"], columns["element"] = self.elements(columns["address"])
        of_launch = context.block_shape, context.spec, tuple(self.blocks), arrays
        context.trace = Recording(*of_launch, cut=self.cut, **columns)

    def elements(self, addresses):
        """Return (arrays in the order of their first access, number of the array for each address, flat index
        of the element for each address)."""
        homes, array, element = [], np.full(len(addresses), -1), np.full(len(addresses), -1)
        touched = []
        for a in self.space.allocations:
            mine = (addresses >= a.base) & (addresses < a.base + a.root.size * a.copies)
            if mine.any():
                touched.append((mine, a))
        for mine, allocation in sorted(touched, key=lambda entry: entry[0].argmax()):
            _, itemsize, shape, _ = allocation.home
            array[mine] = len(homes)
            homes.append(RecordedArray(allocation.name, allocation.space, tuple(shape), itemsize))
            distinct, inverse = np.unique(addresses[mine], return_inverse=True)
            indices = tuple(zip(*map(allocation.index, distinct.tolist())))
            element[mine] = np.ravel_multi_index(indices, tuple(shape))[inverse] if shape else 0
        return tuple(homes), array, element
