"""traffic: accesses and bytes by array and memory space; barriers, shuffles and votes."""

from collections import Counter

import numpy as np

from sim.events import SITES, Observer

DONE = {"load": "loads", "store": "stores", "atomic": "atomics"}


class Traffic(Observer):
    """Counts `loads`, `stores` and `atomics` of elements and, as `load_bytes`, `store_bytes` and
    `atomic_bytes`, what they move: for the launch, by memory space (`counters["memory"]`), by array
    (`counters["arrays"]`, keyed (space, name)) and by source line. Every thread's every access counts: no
    cache is simulated. Counts what threads do together by name, for the launch (`counters["together"]`) and
    by line: "syncthreads", "shfl_down_sync", ...
    """

    def __init__(self) -> None:
        # (site, space, name, size) -> accesses; (name, site) -> times
        self.accessed, self.together = Counter(), Counter()

    def launch_started(self, context):
        self.allocations, self.known, self.order = context.space.allocations, 0, None

    def accesses(self, batch):
        starts, names = self.owners()
        owner = np.searchsorted(starts, batch.address, side="right") - 1
        size = np.frexp(batch.size)[1].astype(np.int64)  # 1, 2, 4 ... as 1, 2, 3 ...
        key, count = np.unique(
            (batch.site.astype(np.int64) * len(starts) + owner) << 4 | size, return_counts=True
        )
        for k, n in zip(key.tolist(), count.tolist()):
            site, owner = divmod(k >> 4, len(starts))
            self.accessed[(site, *names[owner], 1 << (k & 15) - 1)] += n

    def owners(self):
        """The addresses at which arrays start, in order, and (space, name) of each."""
        if self.known != len(self.allocations):
            self.known = len(self.allocations)
            ordered = sorted(self.allocations, key=lambda allocation: allocation.base)
            self.order = np.array([a.base for a in ordered]), [(a.space, a.name) for a in ordered]
        return self.order

    def collective(self, name, block, site):
        self.together[name, site] += 1

    def launch_finished(self, context):
        total, spaces, arrays = dict.fromkeys(DONE.values(), 0), {}, {}
        for (site, space, name, size), count in sorted(self.accessed.items()):
            what = DONE[SITES[site].action]
            total[what] += count
            of_array = arrays.setdefault((space, name), {})
            for table in (context.line(site), spaces.setdefault(space, {}), of_array):
                table[what] = table.get(what, 0) + count
                moved = f"{what[:-1]}_bytes"
                table[moved] = table.get(moved, 0) + count * size
        together = {}
        for (name, site), count in sorted(self.together.items()):
            for table in (context.line(site), together):
                table[name] = table.get(name, 0) + count
        context.counters |= {**total, "memory": spaces, "arrays": arrays, "together": together}
