"""traffic: accesses and bytes by array and memory space, and the number of barriers, shuffles and votes."""

from collections import Counter

import numpy as np

from sim.events import SITES, Column, Observer

# The number of accesses counted together. It is large enough for numpy to be efficient, and small enough for
# the CPU's cache.
LUMP = 1 << 14
BARRIERS = "syncthreads", "grid.sync"
DONE = {"load": "loads", "store": "stores", "atomic": "atomics"}


class Traffic(Observer):
    """A counter of accesses and bytes. Caches are not simulated, so every access by every thread counts.

    It counts `loads`, `stores` and `atomics` of elements, and `load_bytes`, `store_bytes` and `atomic_bytes`.
    These counters exist for the launch, by memory space (`counters["memory"]`), by array
    (`counters["arrays"]`, with keys (space, name)), and by source line.

    It also counts collective operations by name ("syncthreads", "shfl_down_sync", ...), for the launch
    (`counters["together"]`) and by source line.
    """

    checks = False
    columns = (
        *(Column(name, (name,), order=10) for name in DONE.values()),
        Column("bytes", tuple(f"{name}_bytes" for name in DONE), order=11),
        Column("barriers", BARRIERS, order=50),
    )

    def __init__(self) -> None:
        self.accessed = Counter()  # (site, space, name, size) -> number of accesses
        self.together = Counter()  # (name, site) -> number of executions
        self.batches, self.buffered = [], 0  # the columns not yet counted, and their total length

    def launch_started(self, context):
        self.allocations, self.owner_count, self.order = context.space.allocations, 0, None

    def accesses(self, batch):
        self.batches.append((batch.site, batch.address, batch.size))
        self.buffered += len(batch.site)
        if self.buffered > LUMP:
            self.count()

    def count(self):
        """Count the accesses in the buffer, and empty it."""
        if not self.batches:
            return
        (site, address, size), (starts, names) = map(np.concatenate, zip(*self.batches)), self.owners()
        self.batches, self.buffered = [], 0
        # Allocations do not overlap, so the last one that begins at or before an address contains the
        # address.
        owner = np.searchsorted(starts, address, side="right") - 1
        first, bits = int(site.min()), int(size.max()).bit_length()
        # Pack site, array and size into one integer, because integers are faster to count than rows.
        key = ((site - first).astype(np.int64) * len(starts) + owner) << bits | size
        for k, n in zip(*count_values(key)):
            site, owner = divmod(k >> bits, len(starts))
            self.accessed[(site + first, *names[owner], k & (1 << bits) - 1)] += n

    def owners(self):
        """Return the sorted start addresses of all allocations, and (space, name) for each of them."""
        if self.owner_count != len(self.allocations):
            self.owner_count = len(self.allocations)
            ordered = sorted(self.allocations, key=lambda allocation: allocation.base)
            self.order = np.array([a.base for a in ordered]), [(a.space, a.name) for a in ordered]
        return self.order

    def collective(self, name, block, site):
        self.together[name, site] += 1

    def launch_finished(self, context):
        self.count()
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
        warp_wide = tuple(name for name in together if name not in BARRIERS)
        self.columns = (*type(self).columns, Column("warp ops", warp_wide, order=60))
        context.counters |= {**total, "memory": spaces, "arrays": arrays, "together": together}


def count_values(keys):
    """Return (distinct values of `keys`, number of occurrences of each) as two lists.

    keys: non-negative integers.
    """
    if keys.max() > 4 * LUMP:
        return [column.tolist() for column in np.unique(keys, return_counts=True)]
    times = np.bincount(keys)
    found = np.flatnonzero(times)
    return found.tolist(), times[found].tolist()
