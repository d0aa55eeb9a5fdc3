"""Operations of different streams that access the same memory, although nothing orders them.

The simulator executes work when it is issued, so streams never overlap. The accesses of each operation are
recorded and compared with those of earlier operations that the order of streams and events does not place
before it (sim.runtime.streams).
"""

from dataclasses import dataclass

from sim.events import STORE
from sim.runtime.call_sites import CallSite
from sim.runtime.footprints import VERBS, Footprint

# Launches whose accesses are recorded are interpreted. These limits, on the threads of one launch and of all
# launches, bound the time for it.
RECORDED_THREADS, ALL_RECORDED_THREADS = 1 << 14, 1 << 17
NOT_RECORDED = "races between streams, or between nodes of a graph, were searched for in some launches only"
MOST_OPERATIONS = 256  # operations that are remembered until the host has waited for them
FORGOTTEN = "races between streams were searched for among the last 256 operations only"


@dataclass(eq=False)
class Operation:
    """An operation for which the host has not waited: stream, number in it, accesses and call."""

    stream: int
    number: int
    footprint: Footprint
    site: CallSite


class StreamRaces:
    """The operations of a program that may still be running."""

    def __init__(self):
        self.operations: list[Operation] = []
        self.reported: set[tuple[CallSite, CallSite]] = set()
        self.recorded = 0  # threads of the launches whose accesses have been recorded

    def can_record(self, threads):
        """Return whether to record the accesses of a launch with this number of threads."""
        if threads > RECORDED_THREADS or self.recorded + threads > ALL_RECORDED_THREADS:
            return False
        self.recorded += threads
        return True

    def execute(self, device, action):
        """Execute the current operation of a stream, and report its conflicts with others. Return its error
        code."""
        if not may_overlap(device.streams):
            return action()
        (stream, number), outer = device.streams.current, device.graphs.footprint
        site, mine = device.call, Footprint()
        device.graphs.footprint = mine
        code = action()
        device.graphs.footprint, device.call = outer, site
        finished = device.streams.finished
        running = [one for one in self.operations if one.number > finished[one.stream]]
        before = device.streams.clocks[stream]
        for other in running:
            if other.number > before[other.stream] and (other.site, site) not in self.reported:
                self.compare(device, other, mine, site)
        if len(running) == MOST_OPERATIONS:
            device.log.notes[FORGOTTEN] = None
        self.operations = [*running, Operation(stream, number, mine, site)][-MOST_OPERATIONS:]
        return code

    def compare(self, device, other, mine, site):
        """Report a conflict of an operation with an earlier one that is not ordered before it."""
        found = other.footprint.conflict(mine)
        if found is None:
            return
        address, early, late = found
        buffer = device.memory.find(address) or device.memory.find_freed(address)
        what = f"byte {address - buffer.base:,} of {buffer}" if buffer else f"memory at {address:#x}"
        self.reported.add((other.site, site))
        device.report(
            "stream-race",
            "error",
            f"this operation is not ordered after the one at {other.site}, in another stream: that one"
            f" {VERBS[early]} {what}, and this one {VERBS[late]} it",
            "let this stream wait (cudaEventRecord after the other operation, then cudaStreamWaitEvent), or"
            " issue both operations in one stream",
        )

    def free(self, buffer):
        """Forget the accesses to a buffer that has been freed, because its addresses can be used again."""
        for operation in self.operations:
            operation.footprint.forget(buffer.base, buffer.end)


def may_overlap(streams):
    """Return whether the program has streams that do not wait for each other."""
    return len(streams.live) > 1 or not streams.nonblocking.isdisjoint(streams.live)


def free_in_order(device, buffer, stream, action):
    """Free a buffer as an operation of a stream. It conflicts with every access not ordered before it."""

    def free():
        if device.graphs.footprint is not None:
            device.graphs.footprint.add(STORE, buffer.base, buffer.root.size)
        return action()

    code = device.submit(stream, free)
    device.races.free(buffer)
    return code
