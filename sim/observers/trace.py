"""trace: an ordered record of loads, stores, atomics and barriers, for figures and tests to read."""

import numpy as np

from sim.events import BARRIER, Home, Observer, Recording

COLUMNS = ("action", "block", "epoch", "thread", "site", "address")


class Trace(Observer):
    """Leaves a Recording in `report.trace`: of all blocks, or of those listed in `blocks` ((x, y, z) or x),
    and of the first `limit` events."""

    def __init__(self, blocks=None, limit=100_000):
        self.wanted = None if blocks is None else {b if isinstance(b, tuple) else (b, 0, 0) for b in blocks}
        self.limit, self.rows, self.length, self.cut = limit, [], 0, 0
        self.blocks, self.barrier_site = {}, {}

    def launch_started(self, context):
        self.space = context.space

    def accesses(self, batch):
        self.add(
            batch.block, len(batch.site), batch.action, batch.epoch, batch.thread, batch.site, batch.address
        )

    def collective(self, name, block, site):
        self.barrier_site[block] = site

    def barrier_opened(self, block, epoch):
        self.add(block, 1, BARRIER, epoch, -1, self.barrier_site[block], -1)

    def add(self, block, length, action, epoch, thread, site, address):
        """`length` more rows, as far as there is room."""
        if self.wanted is not None and block not in self.wanted:
            return
        room = min(length, self.limit - self.length)
        self.cut += length - room
        self.length += room
        if room:
            number = self.blocks.setdefault(block, len(self.blocks))
            self.rows.append(
                [
                    np.broadcast_to(column, length)[:room].astype(np.int64)
                    for column in (action, number, epoch, thread, site, address)
                ]
            )

    def launch_finished(self, context):
        columns = (
            dict(zip(COLUMNS, map(np.concatenate, zip(*self.rows))))
            if self.rows
            else dict.fromkeys(COLUMNS, np.empty(0, np.int64))
        )
        arrays, array, element = self.elements(columns["address"])
        context.trace = Recording(
            context.block_shape,
            context.spec,
            tuple(self.blocks),
            arrays,
            array=array,
            element=element,
            cut=self.cut,
            **columns,
        )

    def elements(self, addresses):
        """The arrays that were touched, in the order in which they first were, and for each address which of
        them and which element."""
        homes, array, element = [], np.full(len(addresses), -1), np.full(len(addresses), -1)
        where = [
            (addresses >= a.base) & (addresses < a.base + a.root.size * a.copies)
            for a in self.space.allocations
        ]
        touched = [
            (int(mine.argmax()), mine, allocation)
            for mine, allocation in zip(where, self.space.allocations)
            if mine.any()
        ]
        for _, mine, allocation in sorted(touched, key=lambda entry: entry[0]):
            _, itemsize, shape, _ = allocation.home
            array[mine] = len(homes)
            homes.append(Home(allocation.name, allocation.space, tuple(shape), itemsize))
            distinct, inverse = np.unique(addresses[mine], return_inverse=True)
            indices = tuple(zip(*map(allocation.index, distinct.tolist())))
            element[mine] = np.ravel_multi_index(indices, tuple(shape))[inverse] if shape else 0
        return tuple(homes), array, element
