"""branches: how often the lanes of a warp decide differently, so that the warp must walk both ways."""

import numpy as np

from sim.events import Column, Observer
from sim.observers.epochs import EpochCounter


class Branches(EpochCounter):
    """Counts, for the launch (`counters["branching"]`) and for each source line, the `branches` that warps
    come to, and how many are `divergent`.

    A branch is an `if`, a conditional expression or the test of a `while` loop; its k-th execution since the
    last barrier by each lane of a warp counts once. The ends of `for` loops and short circuits in `and` and
    `or` are not seen, and a compiler may turn a small branch into instructions that all lanes execute.
    """

    accesses = Observer.accesses  # this tool hears of branches only
    title = "branching"
    names = "branches", "divergent"
    columns = (Column("branches (divergent)", ("branches",), "divergent", 40),)

    def branches(self, decisions):
        self.keep(decisions.block, decisions.thread, decisions.site, decisions.taken)

    def epochs(self, lane, site, taken):
        order, request = self.spec.requests(lane, site)
        lanes, yes = np.bincount(request), np.bincount(request, taken[order])
        self.count(site[order], request, (yes > 0) & (yes < lanes))
