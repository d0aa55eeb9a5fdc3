"""coalescing: into how many sectors of 32 bytes the lanes of a warp reach when they access global memory
together."""

import numpy as np

from sim.events import GLOBAL
from sim.observers.epochs import EpochObserver


class Coalescing(EpochObserver):
    """Counts, for the launch (`counters["coalescing"]`) and for each source line: `requests`, `sectors`
    touched, and the `fewest_sectors` possible.

    A request is the k-th execution, since the last barrier, of one place in the source by each lane of a
    warp: what the lanes would do in lockstep.
    """

    space = GLOBAL

    def __init__(self):
        super().__init__()
        self.sites = {}  # site -> [requests, sectors, fewest sectors]

    def epochs(self, accesses):
        lane, site, address, size = accesses
        order, request = self.spec.requests(lane, site)
        touched, fewest = self.spec.sectors(request, address[order], size[order])
        of = np.empty(len(touched), np.int64)
        of[request] = site[order]
        for number in np.unique(of).tolist():
            mine = of == number
            counted = [int(mine.sum()), int(touched[mine].sum()), int(fewest[mine].sum())]
            self.sites[number] = [a + b for a, b in zip(self.sites.get(number, (0, 0, 0)), counted)]

    def launch_finished(self, context):
        super().launch_finished(context)
        total = dict.fromkeys(("requests", "sectors", "fewest_sectors"), 0)
        for site, counted in self.sites.items():
            line = context.line(site)
            for name, number in zip(total, counted):
                line[name] = line.get(name, 0) + number
                total[name] += number
        context.counters["coalescing"] = total
