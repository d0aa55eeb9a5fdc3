"""branches: the number of branches at which the lanes of a warp diverge, so that the warp executes both
arms."""

import numpy as np

from sim.events import Column, Observer
from sim.observers.epochs import EpochCounter


class Branches(EpochCounter):
    """A counter of branches, for the launch (`counters["branching"]`) and for each source line.

    The counters are the number of `branches` executed by warps, and the number of `divergent` ones.

    A branch is an `if`, a conditional expression, or the test of a `while` loop. If each lane of a warp
    executes it for the k-th time since the last barrier, these executions count as one branch of the warp.
    The ends of `for` loops and the short circuits of `and` and `or` are not counted. A compiler can also
    replace a small branch by predicated instructions.
    """

    accesses = Observer.accesses  # subscribe only to branches, not to accesses
    title = "branching"
    names = "branches", "divergent"
    columns = (Column("branches (divergent)", ("branches",), "divergent", 40),)

    def branches(self, decisions):
        self.keep(decisions.block, decisions.thread, decisions.site, decisions.taken)

    def epochs(self, lane, site, taken):
        order, request = self.spec.requests(lane, site)
        # A warp diverges if some of its lanes take the branch and others do not.
        lanes, yes = np.bincount(request), np.bincount(request, taken[order])
        self.count(site[order], request, (yes > 0) & (yes < lanes))
