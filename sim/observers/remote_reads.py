"""Reads of unwritten shared memory of other blocks of a cluster (distributed shared memory)."""

from dataclasses import dataclass

import numpy as np

from sim.events import ATOMIC, LOAD, SHARED, SPACE_SHIFT, Moment
from sim.sites import cluster_rank, local_address


@dataclass(eq=False)
class RemoteRead:
    """A load or an atomic of at least one unwritten byte in the shared memory of another block."""

    block: tuple[int, int, int]
    thread: int
    site: int
    address: int
    moment: Moment


class RemoteReads:
    """The accesses to the shared memory of other blocks. Uninitialized uses this class.

    A read is uninitialized if its bytes are not stored later, or only by a store that is ordered after the
    read. An unordered store is reported as a race.
    """

    def __init__(self, observer):
        """Create a record without reads.

        observer: the Uninitialized observer of the launch.
        """
        self.observer, self.context = observer, observer.context
        # block that owns the memory -> {offset of a byte: the undecided reads of the byte}
        self.reads = {}
        # block that owns the memory -> {offset of a byte: Moment of the first store by another block in the
        # current epoch of the owner}
        self.stores = {}
        self.certain = []  # the uninitialized reads
        self.ended = set()  # the blocks that have ended; ClusterAccesses reports later accesses to them

    def add(self, batch):
        """Add the accesses of a batch to other blocks' shared memory."""
        blocks, sets = self.context.cluster_blocks(batch.block), self.observer.sets(batch.site)
        offsets = self.observer.shared_offsets(np.array([local_address(at) for at in batch.address.tolist()]))
        for i, is_set in enumerate(sets.tolist()):
            begin, size, site = int(offsets[i]), int(batch.size[i]), int(batch.site[i])
            owner, moment = blocks[cluster_rank(int(batch.address[i]))], self.moment(batch, i)
            if owner in self.ended:
                continue
            stores = self.stores.setdefault(owner, {})
            if is_set:
                self.store(owner, begin, size, moment, site)
            else:
                written, each = self.observer.window(owner, begin + size), range(begin, begin + size)
                if unwritten := [byte for byte in each if not written[byte] and byte not in stores]:
                    thread, address = int(batch.thread[i]), int(batch.address[i])
                    read = RemoteRead(batch.block, thread, site, address, moment)
                    for byte in unwritten:
                        self.reads.setdefault(owner, {}).setdefault(byte, []).append(read)
            if site & 3 != LOAD:
                for byte in range(begin, begin + size):
                    stores.setdefault(byte, moment)

    def decide_stored(self, owner, batches):
        """Decide whether remote reads are uninitialized if the owner stored to their bytes in this epoch.

        batches: the accesses of the owner in the epoch, which ends.
        """
        for batch in batches if self.reads.get(owner) else ():
            at = np.flatnonzero((batch.address >> SPACE_SHIFT == SHARED) & self.observer.sets(batch.site))
            offsets = self.observer.shared_offsets(batch.address[at]).tolist()
            for i, begin in zip(at.tolist(), offsets):
                self.store(owner, begin, int(batch.size[i]), self.moment(batch, i), int(batch.site[i]))

    def store(self, owner, begin, size, moment, site):
        """Decide whether earlier reads of the stored bytes are uninitialized.

        A read is uninitialized if it is ordered before the store. It is also uninitialized if both are
        atomic, because two atomics do not race.
        """
        reads = self.reads.get(owner, {})
        for byte in range(begin, begin + size) if reads else ():
            for read in reads.pop(byte, ()):
                are_atomic = site & 3 == read.site & 3 == ATOMIC
                if are_atomic or self.observer.order.before(read.moment, moment):
                    self.certain.append(read)

    def has_stored(self, owner, byte, moment):
        """Return whether another block has stored a byte in the current epoch of its owner, and the access at
        `moment` is not ordered before this store."""
        first = self.stores.get(owner, {}).get(byte)
        return first is not None and not self.observer.order.before(moment, first)

    def mark_stored(self, owner):
        """Mark the bytes that other blocks stored in the epoch of their owner, which has ended."""
        if stores := self.stores.pop(owner, None):
            self.observer.window(owner, max(stores) + 1)[list(stores)] = True

    def unset(self):
        """Return the uninitialized reads of the launch."""
        rest = (read for reads in self.reads.values() for some in reads.values() for read in some)
        return list(dict.fromkeys([*self.certain, *rest]))

    def moment(self, batch, i):
        """Return the Moment of an access."""
        number = self.observer.orderer.number(batch.block)
        return Moment(number, batch.epoch, int(batch.thread[i]), int(batch.segment[i]))
