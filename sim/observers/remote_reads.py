"""Reads of unwritten shared memory of other blocks of a cluster (distributed shared memory)."""

from dataclasses import dataclass

import numpy as np

from sim.events import LOAD, SHARED, SPACE_SHIFT, Moment
from sim.sites import cluster_rank, local_address


@dataclass(eq=False)
class RemoteRead:
    """A load or an atomic in the shared memory of another block.

    unwritten: the addresses, within the owner of the memory, of the bytes that nothing had written before
        the epoch of the owner in which the read occurs.
    """

    block: tuple[int, int, int]
    thread: int
    site: int
    address: int
    moment: Moment
    unwritten: set[int]


class RemoteReads:
    """The reads of unwritten shared memory whose owner is another block. A part of Uninitialized.

    Such a read is uninitialized if its bytes are not stored later, or only by a store that is ordered after
    the read. An unordered store is reported as a race.
    """

    def __init__(self, observer):
        """Create the reads of a launch.

        observer: the Uninitialized.
        """
        self.observer, self.context = observer, observer.context
        self.reads = {}  # block that owns the memory -> {address of a byte: the undecided reads of the byte}
        self.certain = []  # the uninitialized reads
        self.ended = set()  # the blocks that have ended; ClusterAccesses reports later accesses to them

    def add(self, batch):
        """Add the accesses of a batch to other blocks' shared memory, and mark the bytes that they write."""
        blocks, sets = self.context.cluster_blocks(batch.block), self.observer.sets(batch.site)
        for i, is_set in enumerate(sets.tolist()):
            address, size, site = int(batch.address[i]), int(batch.size[i]), int(batch.site[i])
            owner, begin = blocks[cluster_rank(address)], local_address(address)
            if owner in self.ended:
                continue
            mask = self.observer.mask_of(owner, begin, size)
            if is_set:
                self.store(owner, begin, size, self.moment(batch, i))
            elif not mask.all():
                unwritten = {begin + byte for byte in np.flatnonzero(~mask).tolist()}
                thread = int(batch.thread[i])
                read = RemoteRead(batch.block, thread, site, address, self.moment(batch, i), unwritten)
                for byte in unwritten:
                    self.reads.setdefault(owner, {}).setdefault(byte, []).append(read)
            if site & 3 != LOAD:
                mask[:] = True

    def epoch_ended(self, owner, batches):
        """Decide about the reads of bytes that a block stored in the epoch that ends.

        batches: the accesses of this block in the epoch.
        """
        for batch in batches if self.reads.get(owner) else ():
            stores = (batch.address >> SPACE_SHIFT == SHARED) & self.observer.sets(batch.site)
            for i in np.flatnonzero(stores).tolist():
                self.store(owner, int(batch.address[i]), int(batch.size[i]), self.moment(batch, i))

    def store(self, owner, begin, size, moment):
        """Decide about the reads of bytes that are stored later: are they ordered before the store?"""
        reads = self.reads.get(owner, {})
        for byte in range(begin, begin + size) if reads else ():
            for read in reads.pop(byte, ()):
                if self.observer.order.before(read.moment, moment):
                    self.certain.append(read)
                read.unwritten.discard(byte)

    def unset(self):
        """Return the uninitialized reads of the launch."""
        rest = (read for reads in self.reads.values() for some in reads.values() for read in some)
        return list(dict.fromkeys([*self.certain, *rest]))

    def moment(self, batch, i):
        """Return the Moment of an access."""
        number = self.observer.orderer.number(batch.block)
        return Moment(number, batch.epoch, int(batch.thread[i]), int(batch.segment[i]))
