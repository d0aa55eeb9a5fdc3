"""Thread block clusters, and their barrier (barrier.cluster).

The blocks of a cluster start together, and can access each other's shared memory.

Source: PTX ISA 9.7.13.3, "barrier.cluster"; chapter 2, "Cluster of Cooperative Thread Arrays"; CUDA C++
    Programming Guide, "Distributed Shared Memory"."""

from sim.engine.barrier import distinct_witnesses
from sim.events import Finding, index_text
from sim.isa.invalid import InvalidOperand
from sim.nouns import plural

CLUSTER = "barrier.cluster"  # the value of Thread.waits for a thread that waits for its cluster
# The reason and the fix for a thread that does not alternate between arriving and waiting.
ALTERNATE = (
    "Each thread of a cluster arrives and waits in turn.",
    "let each thread execute barrier.cluster.arrive and then barrier.cluster.wait, the same number of times",
)


class Cluster:
    """The blocks of a cluster, in the order of their ranks, and the state of its barrier.

    index: the index of the cluster in the grid.
    arrived: the threads that have arrived in the current phase.
    phase: the number of completed phases.
    waiting: the threads that wait.
    """

    def __init__(self, index, blocks):
        self.index, self.blocks = index, blocks
        self.arrived, self.phase, self.waiting = set(), 0, []
        self.reported = -1  # the last phase reported to the observers as a collective operation
        for block in blocks:
            block.cluster, block.barrier = blocks, self

    def arrive(self, context, releases):
        """Let the current thread arrive. Raise InvalidOperand if it has arrived in this phase already.

        releases: whether the arrival publishes all accesses of the thread, instead of only those before its
            last fence.
        """
        thread = context.thread
        if thread in self.arrived or thread.cluster_phase is not None:
            raise InvalidOperand(
                "a thread arrives twice at barrier.cluster without barrier.cluster.wait in between",
                *ALTERNATE,
            )
        self.arrived.add(thread)
        thread.cluster_phase = self.phase
        context.announce_ordering("arrived", self.phase_key(), "grid" if releases else None)
        return self.complete()

    def phase_key(self, phase=None):
        return ("cluster", self.index, 0), self.phase if phase is None else phase

    def complete(self):
        """Begin the next phase and wake the waiting threads, if all threads that have not ended have arrived.
        Return whether they have."""
        if not self.arrived or len(self.arrived) < sum(block.alive for block in self.blocks):
            return False
        if any(not t.done and t not in self.arrived for block in self.blocks for t in block.threads):
            return False
        self.arrived, self.phase = set(), self.phase + 1
        for thread in self.waiting:
            thread.block.ready.append(thread)
        woken, self.waiting = bool(self.waiting), []
        return woken

    def wait(self, scheduler, frame):
        """Let the current thread wait for the phase in which it arrived. Raise InvalidOperand if it has
        not arrived."""
        context, thread = scheduler.context, scheduler.context.thread
        if thread.cluster_phase is None:
            raise InvalidOperand(
                "a thread waits at barrier.cluster without an earlier barrier.cluster.arrive", *ALTERNATE
            )
        phase, thread.cluster_phase = thread.cluster_phase, None
        if self.reported < phase:
            self.reported = phase
            context.collective(CLUSTER, thread.block, frame)
        if self.phase == phase:
            self.waiting.append(thread)
            scheduler.wait(CLUSTER, frame)
        context.announce_ordering("passed", self.phase_key(phase))


def cluster_index(index, shape):
    """Return the index of the cluster of a block. `shape` is the number of blocks per cluster, (x, y, z)."""
    return tuple(i // n for i, n in zip(index, shape))


def deadlock_finding(scheduler, blocks):
    """Return the finding for a cluster whose threads wait at its barrier, although no thread can run."""
    cluster = next(
        thread.block.barrier for block in blocks for thread in block.threads if thread.waits == CLUSTER
    )
    alive = sum(block.alive for block in cluster.blocks)
    waiting = next(thread for thread in cluster.waiting)
    others = [b for b in cluster.blocks if any(not t.done and t not in cluster.arrived for t in b.threads)]
    witnesses = [scheduler.waiting_witness(waiting)]
    for block in others:
        witnesses += [w for w in distinct_witnesses(scheduler, block.threads) if w not in witnesses]
    return Finding(
        "deadlock",
        "error",
        f"{plural(len(cluster.arrived), 'thread')} of {alive} have arrived at barrier.cluster in cluster"
        f" {index_text(cluster.index)}, and the others wait elsewhere",
        tuple(witnesses),
        reason="The barrier opens when all threads of the cluster that have not ended have arrived.",
        fix="let every thread of every block of the cluster reach barrier.cluster.arrive the same number of"
        " times",
    )
