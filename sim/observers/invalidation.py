"""The happens-before order in kernels that invalidate mbarriers."""

from bisect import bisect_left

from sim.events import ATOMIC, LOAD
from sim.observers.event_log import OnDemand
from sim.observers.order import NOTHING, HappensBefore


class Exchanges(HappensBefore):
    """A happens-before order in which an exchange of values between lanes also orders the lanes' accesses."""

    def exchange(self, block, threads, segment):
        self.sync_warp(block, threads, segment)


class Invalidation(HappensBefore):
    """The happens-before order for kernels that invalidate mbarriers.

    An arrival at an mbarrier, or a test of its phase, is complete once the instruction returns. A lane that
    votes or matches afterwards no longer uses the mbarrier. A lane that receives the result of the vote may
    therefore invalidate the mbarrier. The destructor of cuda::pipeline relies on this rule. Such an exchange
    does not order plain accesses to memory.

    log: the EventLog of the launch.
    """

    def __init__(self, context, log):
        super().__init__()
        self.context, self.performed = context, OnDemand(log, Exchanges())
        self.exchanges = {}  # (block, thread) -> (segments, the threads that exchange values at each of them)

    def exchange(self, block, threads, segment):
        for thread in threads:
            segments, groups = self.exchanges.setdefault((block, thread), ([], []))
            segments.append(segment)
            groups.append(threads)

    def before(self, a, b):
        if super().before(a, b):
            return True
        if not self.is_invalidation(a, b):
            return False
        return self.follows_exchange(a, b) or self.performed.current().before(a, b)

    def follows_exchange(self, a, b):
        """Return whether the access b follows an exchange of values that followed the access a.

        This is the usual reason why accesses are ordered, and it can be decided without the order
        `performed`.
        """
        segments, groups = self.exchanges.get((a.block, a.thread), NOTHING)
        first = bisect_left(segments, a.segment)
        if first == len(segments) or a.block != b.block:
            return False
        segment, threads = segments[first], groups[first]
        if b.thread in threads and b.segment > segment:
            return True
        clocks = self.clocks_at(b)
        return any(clock.get((a.block, thread), -1) > segment for thread in threads for clock in clocks)

    def is_invalidation(self, a, b):
        """Return whether the access b invalidates an mbarrier used by the access a. If a is a Moment, it has
        no site, so the result is False."""
        return b.segment in self.context.invalidating and getattr(a, "site", LOAD) & 3 == ATOMIC
