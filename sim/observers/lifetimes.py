"""The lifetime of a block's shared memory, and the operations of the async proxy that must end within it.

An operation ends before a block does if the order `Performed` puts the operation's end before some point of
the block.
"""

from math import inf, prod

from sim.events import SHARED, SPACE_SHIFT, Moment
from sim.observers.order import HappensBefore
from sim.sites import cluster_rank


class Performed(HappensBefore):
    """The order in which operations at barriers are performed.

    An arrival, or a wait that succeeds, is complete once it returns. The threads that continue are therefore
    ordered, even if the arrival is relaxed and orders no accesses to memory.
    """

    def arrive(self, block, epoch, thread, segment, phase, reach=None):
        super().arrive(block, epoch, thread, segment, phase)

    def pass_barrier(self, block, epoch, thread, segment, phase, reach=None):
        super().pass_barrier(block, epoch, thread, segment, phase)

    def orders(self, a, b):
        """Return whether one of two accesses is performed before the other."""
        return self.before(a, b) or self.before(b, a)


class Lifetimes:
    """The vector clocks at which the blocks of a launch end.

    performed: the order in which operations are performed.
    number: the function that returns the number of a block.
    """

    def __init__(self, context, performed, number):
        self.context, self.performed, self.number = context, performed, number
        self.clocks = {}  # block number -> the clock that covers every event observed before the block ends

    def contains(self, operation, ends, read_ends):
        """Return whether an operation ends while each block whose shared memory it accesses still runs.

        ends, read_ends: the Moments at which a thread observes the end of the operation, or only the end of
            its reads.
        """
        written = self.owners(operation, operation.writes)
        read = self.owners(operation, operation.reads) - written
        return all(any(self.includes(owner, end) for end in ends) for owner in written) and all(
            any(self.includes(owner, end) for end in (*ends, *read_ends)) for owner in read
        )

    def owners(self, operation, ranges):
        """Return the numbers of the blocks to whose shared memory the ranges belong."""
        ranks = {cluster_rank(address) for address, _ in ranges if address >> SPACE_SHIFT == SHARED}
        block = operation.issued.block
        return {
            self.number(block if rank is None else self.context.cluster_blocks(block)[rank]) for rank in ranks
        }

    def includes(self, owner, end):
        """Return whether a block certainly still runs at a Moment."""
        if end.block == owner and isinstance(end.thread, int):
            return True
        return end.segment <= self.clock(owner).get((end.block, end.thread), -1)

    def clock(self, owner):
        """Return the clock of everything that is observed before a block ends."""
        if owner not in self.clocks:
            last = [Moment(owner, inf, thread, inf) for thread in range(prod(self.context.block_shape))]
            parts = [part for at in last for part in self.performed.clocks_at(at)]
            self.clocks[owner] = self.performed.clocks.merge(parts)
        return self.clocks[owner]
