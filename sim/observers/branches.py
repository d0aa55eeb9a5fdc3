"""branches: how often the lanes of a warp decide differently, so that the warp must walk both ways."""

from typing import NamedTuple

import numpy as np

from sim.events import Observer
from sim.observers.epochs import EpochCounter


class EpochDecisions(NamedTuple):
    """The decisions of some epochs as parallel arrays, lanes numbered as in EpochAccesses."""

    lane: np.ndarray
    site: np.ndarray
    taken: np.ndarray


class Branches(EpochCounter):
    """Counts, for the launch (`counters["branching"]`) and for each source line, the `branches` that warps
    come to, and how many are `divergent`.

    A branch is an `if`, a conditional expression or the test of a `while` loop; its k-th execution since the
    last barrier by each lane of a warp counts once. The ends of `for` loops and short circuits in `and` and
    `or` are not seen, and a compiler may turn a small branch into instructions that all lanes execute.
    """

    accesses = Observer.accesses  # this tool hears of branches only
    record = EpochDecisions
    title = "branching"
    names = "branches", "divergent"

    def branches(self, decisions):
        self.keep(decisions.block, decisions.thread, decisions.site, decisions.taken)

    def epochs(self, decisions):
        lane, site, taken = decisions
        order, request = self.spec.requests(lane, site)
        lanes, yes = np.bincount(request), np.bincount(request, taken[order])
        self.count(site[order], request, (yes > 0) & (yes < lanes))
