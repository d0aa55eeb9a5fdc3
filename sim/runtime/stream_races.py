"""Operations of different streams that access the same memory, although nothing orders them.

The simulator executes work when it is issued, so streams never overlap. The accesses of each operation are
recorded, and compared with the accesses of earlier operations that are not ordered before it by streams and
events (sim.runtime.stream_order).
"""

from collections import Counter
from dataclasses import dataclass

from sim.runtime.call_sites import CallSite
from sim.runtime.footprints import VERBS, Footprint
from sim.runtime.stream_order import StreamOrder

# The maximum numbers of threads, of one launch and of all launches together, for which accesses are recorded.
# Recording takes time.
RECORDED_THREADS, ALL_RECORDED_THREADS = 1 << 14, 1 << 17
MOST_OPERATIONS = 256  # operations that are remembered until the host has waited for them
FORGOTTEN = "races between streams were searched for among the last 256 operations only"


@dataclass(eq=False)
class Operation:
    """An operation for which the host has not waited.

    stream, number: the operation.
    before: the operations that precede it, and the operation itself.
    footprint: the memory that it accesses.
    site: the host call that issued it.
    exact: whether the footprint was recorded. Otherwise it contains all memory that a launch could access.
    """

    stream: int
    number: int
    before: Counter
    footprint: Footprint
    site: CallSite
    exact: bool = True

    def may_overlap(self, other: "Operation") -> bool:
        """Return whether two operations are unordered."""
        return self.number > other.before[self.stream] and other.number > self.before[other.stream]


@dataclass(frozen=True)
class Conflict:
    """Two operations that access the same byte, although nothing orders them.

    address: the lowest byte that both operations access.
    early, late: the actions (LOAD or STORE) of the two operations on this byte.
    """

    earlier: Operation
    later: Operation
    address: int
    early: int
    late: int

    @property
    def of_buffer(self) -> bool:
        """True if one of the operations allocates or frees the memory."""
        return bool(self.earlier.footprint.verb or self.later.footprint.verb)

    def verdict(self, what: str) -> str:
        """Return the sentence that states the race. `what` names the byte, or the buffer if `of_buffer`."""
        early = self.earlier.footprint.verb or VERBS[self.early]
        late = self.later.footprint.verb or VERBS[self.late]
        return (
            f"this operation is not ordered after the one at {self.earlier.site}, in another stream: the"
            f" other operation {early} {what}, and this one {late} it"
        )


class StreamRaces:
    """The operations of a program that may still be running.

    forgotten: whether an operation was forgotten although the host had not waited for it.
    """

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.reported: set[tuple[CallSite, CallSite]] = set()
        self.recorded = 0  # threads of the launches whose accesses have been recorded
        self.forgotten = False

    def can_record(self, threads: int) -> bool:
        """Return whether to record the accesses of a launch with this number of threads."""
        if threads > RECORDED_THREADS or self.recorded + threads > ALL_RECORDED_THREADS:
            return False
        self.recorded += threads
        return True

    def add(self, order: StreamOrder, new: Operation) -> list[Conflict]:
        """Add an operation. Return its conflicts with earlier ones, once for each pair of sites."""
        running = [one for one in self.operations if not order.is_finished(one.stream, one.number)]
        self.forgotten |= len(running) == MOST_OPERATIONS
        self.operations = [*running, new][-MOST_OPERATIONS:]
        found = []
        for other in running:
            pair = other.site, new.site
            if pair in self.reported or not new.may_overlap(other):
                continue
            if conflict := other.footprint.conflict(new.footprint):
                self.reported.add(pair)
                found.append(Conflict(other, new, *conflict))
        return found

    def free(self, start: int, end: int) -> None:
        """Forget the accesses to memory that has been freed, because its addresses can be used again."""
        for operation in self.operations:
            operation.footprint.forget(start, end)
