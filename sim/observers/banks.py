"""banks: how many wavefronts shared memory needs for the lanes of a warp that access it together."""

import numpy as np

from sim.events import ATOMIC, SHARED
from sim.observers.epochs import EpochObserver


class Banks(EpochObserver):
    """Counts, for the launch (`counters["banks"]`) and for each source line: `shared_requests`, the
    `wavefronts` they took, the `fewest_wavefronts` possible, and the worst `ways` of conflict (1: none; 32:
    all lanes one after another).

    Lanes that add atomically to one word are counted one wavefront each; a GPU may combine some of them.
    """

    space = SHARED

    def __init__(self):
        super().__init__()
        self.sites = {}  # site -> [requests, wavefronts, fewest wavefronts, worst ways]

    def epochs(self, accesses):
        lane, site, address, size = accesses
        order, request = self.spec.requests(lane, site)
        site = site[order]
        wavefronts, fewest, ways = self.spec.wavefronts(
            request, lane[order], address[order], size[order], site & 3 == ATOMIC
        )
        of = np.empty(len(wavefronts), np.int64)
        of[request] = site
        for number in np.unique(of).tolist():
            mine = of == number
            before = self.sites.get(number, (0, 0, 0, 0))
            summed = [int(mine.sum()), int(wavefronts[mine].sum()), int(fewest[mine].sum())]
            self.sites[number] = [a + b for a, b in zip(before, summed)] + [
                max(before[3], int(ways[mine].max()))
            ]

    def launch_finished(self, context):
        super().launch_finished(context)
        total = {"shared_requests": 0, "wavefronts": 0, "fewest_wavefronts": 0, "ways": 0}
        for site, counted in self.sites.items():
            for counters in (context.line(site), total):
                for name, number in zip(total, counted):
                    before = counters.get(name, 0)
                    counters[name] = max(before, number) if name == "ways" else before + number
        context.counters["banks"] = total
