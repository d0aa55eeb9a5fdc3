"""The base class of the observers that need the happens-before order."""

from sim.events import SHARED, SPACE_SHIFT, Observer
from sim.observers.batches import without_reserved
from sim.observers.event_log import EventLog
from sim.observers.invalidation import Invalidation
from sim.observers.order import GRID, HappensBefore
from sim.sites import cluster_rank, local_address

MAX_EVENTS = 1 << 12  # the maximum number of events recorded to determine whether a fence is missing
# The hooks that update an observer's happens-before order, in addition to `barrier_opened`.
EVENTS = (
    "fenced",
    "atomic_done",
    "warp_synchronized",
    "warp_exchanged",
    "copies_tracked",
    "arrived",
    "passed",
    "async_issued",
    "async_tracked",
    "async_done",
)


class OrderingObserver(Observer):
    """The base class for observers that need the happens-before order.

    It keeps `order` (a HappensBefore) up to date. When an epoch ends, it passes the accesses of the block to
    `epoch_ended`, overridden by subclasses. Local memory is ignored.
    """

    local = lone_barriers = False
    # Whether the observer uses the order of an earlier observer of the launch, if there is one.
    shares_order = False

    def launch_started(self, context):
        self.context, self.epoch = context, {}  # block -> its batches since the last barrier
        if self.shares_order and context.orderer is not None:
            self.orderer = context.orderer
            for hook in EVENTS:
                context.listeners[hook].remove(getattr(self, hook))
        else:
            self.orderer = context.orderer = self
            self.log = EventLog(MAX_EVENTS)
            self.own_order = Invalidation(context, self.log) if context.invalidates else HappensBefore()
            if not context.mbarriers:
                context.listeners["warp_exchanged"].remove(self.warp_exchanged)
            if context.ticking and not context.synchronizes:  # then atomics order nothing
                context.listeners["atomic_done"].remove(self.atomic_done)
                self.own_order.atomics_order = False

    @property
    def order(self):
        """The HappensBefore."""
        return self.orderer.own_order

    def number(self, block):
        """Return the key of a block in the order of this observer."""
        return block

    def accesses(self, batch):
        self.epoch.setdefault(batch.block, []).append(without_reserved(batch, self.context.space))

    def barrier_opened(self, block, epoch):
        if self.orderer is self:
            self.record_event("sync_block", block, epoch)
        return self.epoch_ended(block)

    def block_ended(self, block, epoch):
        return self.epoch_ended(block)

    def record_event(self, name, block, *facts):
        getattr(self.own_order, name)(block, *facts)
        self.log.add((name, block, *facts))

    def fenced(self, at, reach):
        self.record_event("release", *at, reach)

    def atomic_done(self, at, address, wrote, reach):
        if self.context.clustered and address >> SPACE_SHIFT == SHARED:
            address = element_key(self.context, at.block, address)
        self.record_event("perform_atomic", *at, address, wrote, reach)

    def warp_synchronized(self, block, threads, segment):
        self.record_event("sync_warp", block, threads, segment)

    def warp_exchanged(self, block, threads, segment):
        self.record_event("exchange", block, threads, segment)

    def copies_tracked(self, at, phase, copies):
        self.record_event("track_copies", *at, phase)

    def arrived(self, at, phase, reach=GRID):
        self.record_event("arrive", *at, phase, reach)

    def passed(self, at, phase, reach=GRID):
        self.record_event("pass_barrier", *at, phase, reach)

    def async_issued(self, operation):
        self.record_event("issue", *operation.issued)

    def async_tracked(self, operation, phase):
        at = operation.issued
        self.record_event("complete", at.block, at.thread, at.segment, phase)

    def async_done(self, at, operations, sources):
        moments = [(one.issued.thread, one.issued.segment) for one in operations]
        self.record_event("observe", at.block, at.thread, at.segment, moments)


def element_key(context, block, address):
    """Return the key by which atomics identify an element of shared memory: (index of its block, address
    within the block)."""
    rank = cluster_rank(address)
    return block if rank is None else context.cluster_blocks(block)[rank], local_address(address)
