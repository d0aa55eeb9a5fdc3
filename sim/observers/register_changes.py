"""Two setmaxnreg of a warp group between which its warps do not synchronise.

The PTX ISA requires that all warps of a warp group synchronise explicitly after a setmaxnreg, before any of
them executes the next one. Neither the setmaxnreg itself nor a wgmma synchronises them. Any other
synchronisation is accepted if it orders the first setmaxnreg of every warp before the second setmaxnreg of
every other warp.

Source: PTX ISA 9.7.19, "Miscellaneous Instructions: setmaxnreg".
"""

from sim.events import SITES, Access, Finding
from sim.isa.wgmma import THREADS, WARPS
from sim.observers.event_log import OnDemand
from sim.observers.lifetimes import Performed

LANES = THREADS // WARPS


class RegisterChanges:
    """The last setmaxnreg of each warp group of a launch. The observer Races uses it.

    log: the EventLog of the launch.
    number: the function that returns the number of a block.
    """

    def __init__(self, context, log, number):
        self.context, self.number = context, number
        # In this order, a thread acquires from every value that it observes, even without a fence.
        self.order = OnDemand(log, Performed(generous=True))
        self.last = {}  # (block, warp group) -> (warp -> the arrivals of its lanes, site)
        context.listeners["registers_changed"].append(self.changed)

    def changed(self, arrivals, site):
        """Return a finding if two warps have not synchronised since the last setmaxnreg of the group."""
        block, warps = self.number(arrivals[0].block), {}
        for at in arrivals:
            warps.setdefault(at.thread // LANES, []).append(at._replace(block=block))
        key = block, min(warps) // WARPS
        before, at_site = self.last.get(key, ({}, None))
        self.last[key] = warps, site
        for warp, later in warps.items():
            for other, earlier in before.items():
                if other != warp and not any(self.ordered(a, b) for a in earlier for b in later):
                    return [self.finding(arrivals[0].block, (other, at_site), (warp, site))]
        return []

    def ordered(self, a, b):
        """Return whether one arrival in a block is ordered before a later arrival in it."""
        return a.epoch < b.epoch or self.order.current().before(a, b)

    def finding(self, block, *executed):
        (earlier, _), (later, _) = executed
        return Finding(
            "misuse",
            "error",
            "the warps of a warp group do not synchronise between two setmaxnreg: nothing orders the first"
            f" one of warp {earlier} before the second one of warp {later}",
            tuple(
                Access("executes", block, self.context.thread_index(LANES * warp), SITES[site])
                for warp, site in executed
            ),
            reason="The PTX ISA requires that all warps of the warp group synchronise explicitly after a"
            " setmaxnreg, before they execute the next one.",
            fix="put a barrier for the 128 threads of the warp group between them, such as bar.sync 1, 128",
        )
