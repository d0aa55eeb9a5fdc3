"""Accesses to the shared memory of other blocks of a cluster (distributed shared memory).

They race like accesses to global memory. In addition, the block that owns the memory must run during the
access: some thread of that block must synchronise with the accessing thread before the access, and again
after it.

Source: CUDA C++ Programming Guide, "Distributed Shared Memory".
"""

from dataclasses import replace
from math import inf

import numpy as np

from sim.events import SHARED, SITES, SPACE_SHIFT, Access, Finding, Moment, index_text
from sim.observers.cells import Rows
from sim.observers.copies import LINE_SHIFT, WORDS
from sim.sites import RANK_SHIFT

RANKS = 15 << RANK_SHIFT


class ClusterAccesses:
    """The accesses to shared memory in a launch with clusters. A part of the observer Races.

    number, names: as in Races.
    """

    def __init__(self, context, number, names):
        self.context, self.number, self.names = context, number, names
        # Two dicts by the number of a cluster's first block: the accesses of the cluster, whose addresses
        # contain the rank of the owner, and the lines that blocks other than the owner access.
        self.rows, self.lines = {}, {}
        self.ends = {}  # number of a block -> Moments of its threads after the block's last access

    def add(self, batch):
        """Keep those accesses of a batch that are to shared memory."""
        lines = np.unique(batch.address[batch.space == SHARED] >> LINE_SHIFT)
        rows = Rows.of(batch, lines, self.number(batch.block))
        rows = rows[np.flatnonzero(rows.address >> SPACE_SHIFT == SHARED)]
        if not len(rows):
            return
        blocks = self.context.cluster_blocks(batch.block)
        far, own = rows.address & RANKS != 0, blocks.index(batch.block) + 1 << RANK_SHIFT
        rows = replace(rows, address=np.where(far, rows.address, rows.address | own))
        first = self.number(blocks[0])
        self.rows.setdefault(first, []).append(rows)
        self.lines.setdefault(first, set()).update(np.unique(rows.address[far] >> LINE_SHIFT).tolist())

    def block_ended(self, block, threads):
        number = self.number(block)
        self.ends[number] = [Moment(number, inf, thread, inf) for thread in range(threads)]

    def between_blocks(self):
        """Yield the accesses to the lines that several blocks access, for each cluster."""
        for first, lines in self.lines.items():
            rows = Rows.joined(self.rows[first])
            keep = np.flatnonzero(np.isin(rows.address >> LINE_SHIFT, list(lines)))
            if len(keep):
                yield rows[keep]

    def lifetimes(self, performed):
        """Yield a finding for each site that accesses a block which may not have started, or may have ended.
        It names the lowest thread.

        performed: the order in which operations are performed.
        """
        checked, found = set(), {}
        for rows in (rows for parts in self.rows.values() for rows in parts):
            for i in range(len(rows)):
                owner, row = self.owner(rows, i), rows.row(i)
                if owner == row.block or (row.segment, owner, row.site) in checked:
                    continue
                checked.add((row.segment, owner, row.site))
                state = self.state(performed, row, owner)
                rank = self.names[row.block][::-1], row.thread, int(rows.address[i])
                if state and rank < found.get(row.site, (((1 << 32,),),))[0]:
                    found[row.site] = rank, row, int(rows.address[i]), owner, state
        for _, row, address, owner, state in found.values():
            yield self.finding(row, address, owner, *state)

    def state(self, order, row, owner):
        """Return (missing property, fix) if an access to the memory of a block is not ordered after the start
        of the block and before its end, otherwise None."""
        if not started(order, row, owner):
            return "has started", START
        ends = self.ends.get(owner, ())
        return None if any(order.before(row, end) for end in ends) else ("has not ended", END)

    def owner(self, rows, i):
        rank = (int(rows.address[i]) >> RANK_SHIFT & 15) - 1
        return self.number(self.context.cluster_blocks(self.names[int(rows.block[i])])[rank])

    def finding(self, row, address, owner, state, fix):
        element = self.context.space.element(address)
        thread = self.context.thread_index(row.thread)
        did = WORDS[self.context.strong.get(row.site, row.site & 3)]
        where = index_text(self.names[owner])
        return Finding(
            "use-after-free",
            "error",
            f"{element} in shared memory of block {where} is {did} by another block, and nothing ensures"
            f" that block {where} {state}",
            (Access(did, self.names[row.block], thread, SITES[row.site]),),
            *element,
            reason="Distributed shared memory exists only while the block that owns it runs.",
            fix=fix,
        )


SYNC = "synchronise the whole cluster (barrier.cluster.arrive and .wait, or cluster.sync())"
START, END = f"{SYNC} before the first such access", f"{SYNC} after the last such access"


def started(order, row, owner):
    """Return whether an access is ordered after some point in the execution of a block, so that the block
    has certainly started."""
    return any(
        key == owner or isinstance(key, tuple) and key[0] == owner
        for clock in order.clocks_at(row)
        for key in clock
    )
