"""A graph of barriers whose missing threads wait at other barriers, and the root of this graph: the barrier
that no thread can complete.

A node is an mbarrier, the block-wide barrier of a block, or the barrier of a cluster. If a thread that has to
arrive at one barrier waits at another barrier, an edge leads from the first barrier to the second.
"""

from sim.events import SITES

BLOCK_BARRIER, CLUSTER_BARRIER = "syncthreads", "barrier.cluster"  # Thread.waits


class WaitGraph:
    """The barriers at which the threads of one cluster wait.

    polls: {thread: (mbarrier, site)} of the threads that test the phase of an mbarrier.
    blocks: the blocks of the cluster.
    """

    def __init__(self, polls, blocks):
        self.polls = polls
        threads = [thread for block in blocks for thread in block.threads]
        self.threads = [thread for thread in threads if not thread.done or thread in polls]
        self.at = {thread: self.barrier_of(thread, polls) for thread in self.threads}
        self.edges = {}  # barrier -> the other barriers at which its missing threads wait
        pending = dict.fromkeys(filter(None, self.at.values()))
        for barrier in pending:
            needed = {self.at.get(thread) for thread in self.suppliers(barrier)}
            self.edges[barrier] = needed - {None, barrier}

    def barrier_of(self, thread, polls):
        """Return the barrier at which a thread waits, or None."""
        if thread in polls:
            return polls[thread][0]
        if thread.waits == BLOCK_BARRIER:
            return thread.block
        return thread.block.barrier if thread.waits == CLUSTER_BARRIER else None

    def suppliers(self, barrier):
        """Return the threads that have to arrive before a barrier opens, as far as these are known."""
        if not hasattr(barrier, "suppliers"):
            blocks = barrier.blocks if hasattr(barrier, "blocks") else (barrier,)
            return [t for t in self.threads if t.block in blocks and self.at[t] is not barrier]
        if earlier := missing_suppliers(barrier):
            return earlier
        others = [t for t in self.threads if t.block.index == barrier.block and t not in barrier.suppliers]
        # In the first phase of a barrier, no earlier phase shows which threads have to arrive. All other
        # threads of the block have to arrive if their number equals the number of missing arrivals.
        return others if not barrier.phase and len(others) == barrier.pending else []

    def reachable(self, barrier):
        """Return the barriers that have to open before a barrier can open. The barrier itself is among them
        only if it is in a cycle."""
        found, todo = set(), [barrier]
        while todo:
            new = self.edges[todo.pop()] - found
            found |= new
            todo += new
        return found

    def root(self):
        """Return the mbarrier whose arrivals or bytes no thread can supply, or at which threads probably test
        the wrong parity."""
        if skipping := [b for b in self.edges if hasattr(b, "suppliers") and self.skips_phase(b)]:
            return min(skipping, key=self.evidence)
        reachable = {barrier: self.reachable(barrier) for barrier in self.edges}
        # In a cycle, each barrier depends on the others. The root is then the mbarrier with the strongest
        # evidence of missing arrivals or bytes.
        last = [b for b, needs in reachable.items() if all(b in reachable[other] for other in needs)]
        return min((b for b in last if hasattr(b, "suppliers")), key=self.evidence, default=None) or min(
            (b for b in reachable if hasattr(b, "suppliers")), key=self.evidence
        )

    def evidence(self, barrier):
        """Return a sort key for mbarriers. The mbarrier that most likely lacks an arrival or bytes comes
        first."""
        arrived = barrier.expected - barrier.pending
        return (
            bool(self.edges[barrier]),
            not (barrier.tx and not (barrier.pending and barrier.expected_bytes)),
            not arrived,
            barrier.phase,
            not barrier.expecting,
        )

    def tests_parity(self, barrier):
        """Return whether the threads that wait at a barrier test the parity of its phase."""
        polls = [self.polls[thread] for thread in self.waiting_at(barrier) if thread in self.polls]
        sites = [SITES[number] for _, number in polls]
        return bool(sites) and all("parity" in (site.opcode or site.source) for site in sites)

    def skips_phase(self, barrier):
        """Return whether the threads at an mbarrier test the parity of its current phase, and no thread has
        waited for the previous phase. The parity is then probably wrong."""
        skipped = max(barrier.observed.values(), default=-1) < barrier.phase - 1
        return skipped and self.tests_parity(barrier)

    def waiting_at(self, barrier):
        """Return the threads that wait at a barrier, by block and index."""
        waiting = (thread for thread in self.threads if self.at[thread] is barrier)
        return sorted(waiting, key=lambda thread: (thread.block.index[::-1], thread.linear))


def missing_suppliers(barrier):
    """Return the threads that contributed to earlier phases of an mbarrier, but not to the current phase."""
    return [thread for thread, phase in barrier.suppliers.items() if phase < barrier.phase]
