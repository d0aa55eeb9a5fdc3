"""Loads through the read-only cache (ld.global.nc) of memory that the launch has written before.

Compilers emit such loads for __ldg, and for pointers that are const and __restrict__.

This cache is not coherent, so the load can return an old value, and no barrier or fence changes this. A load
before the write gets the correct value, for example in a kernel that works in place.

Source: PTX ISA 9.7.9.8, "ld.global.nc"; CUDA C++ Programming Guide, "Read-Only Data Cache Load Function".
"""

from collections import Counter

import numpy as np

from sim.events import GLOBAL, LOAD, SITES, Access, Finding

COLUMNS = ("address", "size", "position", "thread", "site")
LINE_SHIFT = 7  # loads and writes are first compared by 128-byte lines


class ReadOnlyLoads:
    """The loads through the read-only cache and the writes of a launch. The observer Races creates it."""

    def __init__(self, context):
        self.context, self.blocks = context, []
        self.loads, self.writes = [], []  # arrays with a row per access: COLUMNS, and the number of the block
        context.listeners["accesses"].append(self.accesses)
        context.listeners["launch_finished"].append(self.launch_finished)

    def accesses(self, batch):
        is_global = batch.space == GLOBAL
        reads = np.isin(batch.site, list(self.context.noncoherent)) & is_global
        writes = (batch.action != LOAD) & is_global
        for rows, chosen in ((self.loads, reads), (self.writes, writes)):
            if chosen.any():
                columns = [getattr(batch, name)[chosen].astype(np.int64) for name in COLUMNS]
                columns.append(np.full(len(columns[0]), len(self.blocks)))
                rows.append(np.stack(columns, 1))
        self.blocks.append(batch.block)

    def launch_finished(self, context):
        """Return one finding for each pair of sites."""
        if not (self.loads and self.writes):
            return []
        loads, writes = np.concatenate(self.loads), np.concatenate(self.writes)
        self.loads, self.writes = [], []
        lines = np.intersect1d(*(np.unique(rows[:, 0] >> LINE_SHIFT) for rows in (loads, writes)))
        loads, writes = (rows[np.isin(rows[:, 0] >> LINE_SHIFT, lines)] for rows in (loads, writes))
        return [self.finding(*pair).with_cases(times) for *pair, times in self.late_loads(loads, writes)]

    def late_loads(self, loads, writes):
        """Return (load, write, number of such loads) for each pair of sites in which the write comes first.
        `load` is the load of the lowest thread."""
        first = {}  # byte -> the first write to it
        for write in writes[np.argsort(writes[:, 2])].tolist():
            for byte in range(write[0], write[0] + write[1]):
                first.setdefault(byte, write)
        found, times = {}, Counter()
        for load in loads.tolist():
            write = next(filter(None, map(first.get, range(load[0], load[0] + load[1]))), None)
            if write is not None and write[2] < load[2]:
                key, rank = (load[4], write[4]), (self.blocks[load[5]][::-1], load[3])
                times[key] += 1
                if key not in found or rank < found[key][0]:
                    found[key] = rank, load, write
        reported = {frozenset(a.site for a in finding.accesses) for finding in self.context.findings}
        return [
            (*pair, times[sites])
            for sites, (_, *pair) in found.items()
            if frozenset(map(SITES.__getitem__, sites)) not in reported
        ]

    def finding(self, load, write):
        element = self.context.space.element(load[0])
        witnesses = (
            Access(what, self.blocks[row[5]], self.context.thread_index(row[3]), SITES[row[4]])
            for what, row in (("written", write), ("read", load))
        )
        return Finding(
            "race-global",
            "error",
            f"{element} in global memory is written, and then read through the read-only cache in the same"
            " launch",
            tuple(witnesses),
            *element,
            reason="This cache (ld.global.nc) does not observe writes of the running kernel. The load can"
            " return the old value, even after a barrier.",
            fix="read it by a plain load: without __ldg, and not through a pointer that is const and"
            " __restrict__",
        )
