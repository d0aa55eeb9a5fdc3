"""Stages of a pipeline that a producer reuses too early: an mbarrier expects new bytes before its previous
phase is certainly complete.

A copy can take any amount of time. If nothing orders an expect_tx after the end of the previous phase, copies
of that phase can still be under way, and the bytes count in the wrong phase. In a simulated run, the copies
are complete by then, so only the order that the program establishes shows the bug.
"""

from sim.events import SITES, Access, Finding, Moment
from sim.observers.copies import precedes


class Stages:
    """The phases of all mbarriers that count bytes. The observer Races uses this class to find stages that
    are reused too early.

    order: the order in which operations are performed, with the numbers of blocks (sim.observers.lifetimes).
    number: the function that returns the number of a block.
    """

    def __init__(self, context, order, number):
        self.context, self.order, self.number = context, order, number
        self.counted = {}  # mbarrier -> (its last phase that has counted bytes, an operation of this phase)
        # mbarrier -> {(block, thread): the Moment at which the thread first observed the end of this phase}
        self.observed = {}
        self.is_relaxed = False  # whether a relaxed arrival or wait orders operations that `order` does not
        context.listeners["bytes_expected"].append(self.expected)

    def counts(self, operation, phase):
        """Record that an mbarrier has counted the bytes of an operation in a phase."""
        barrier, number = phase
        if self.counted.get(barrier, (None,))[0] != number:
            self.observed[barrier] = {}
        self.counted[barrier] = number, operation

    def record(self, name, block, epoch, thread, segment, phase, reach):
        """Record an arrival ("arrive") at a phase of a barrier, or an observation of its end."""
        self.is_relaxed |= reach is None
        barrier, number = phase
        if name == "pass_barrier" and number >= self.counted.get(barrier, (number + 1,))[0]:
            at = Moment(block, epoch, thread, segment)
            self.observed[barrier].setdefault((block, thread), at)

    def expected(self, at, phase, site):
        """Return a finding if an mbarrier expects bytes before a thread has certainly observed the end of its
        last phase."""
        barrier, number = phase
        last, operation = self.counted.get(barrier, (number, None))
        if last >= number or self.is_relaxed and not self.context.clustered:
            return ()
        row = at._replace(block=self.number(at.block))
        if any(self.before(one, row) for one in self.observed[barrier].values()):
            return ()
        return (self.finding(at, phase, site, operation),)

    def before(self, observation, row):
        if observation.block == row.block:
            return precedes(observation, row, self.order)
        return self.order.active and self.order.before(observation, row)

    def finding(self, at, phase, site, operation):
        (_, address, block), number = phase
        element, earlier = self.context.space.element(address), operation.issued
        of_block = f" of block {block[0]}" * self.context.clustered
        expects = Access("expects", at.block, self.context.thread_index(at.thread), SITES[site])
        sender = self.context.thread_index(earlier.thread)
        return Finding(
            "async-copy",
            "error",
            f"the mbarrier {element}{of_block} expects the bytes of phase {number}, and nothing orders this"
            f" after the end of phase {number - 1}",
            (expects, Access("sent", earlier.block, sender, SITES[operation.site])),
            *element,
            reason=f"If a copy of phase {number - 1} is still under way, the bytes count in that phase, and"
            " the stage is not free.",
            fix="wait until the stage is free again (the mbarrier at which its readers arrive) before the"
            " next expect_tx",
        )
