"""Waits at mbarriers that pass too early, because they test the wrong parity.

A test of parity p succeeds if the current phase has the other parity. A wait for a phase that ended long ago,
or for the phase before the first one, therefore passes at once. The wait should instead be for the phase in
which the other thread of the race arrives after its own access.
"""

from bisect import bisect_left
from dataclasses import dataclass


@dataclass(frozen=True)
class EarlyWait:
    """A wait that passed before the phase for which it should have waited.

    phase: the number of the phase that the wait observed, or -1 for the phase before the first one.
    wanted: the number of the phase in which the other thread arrives after its access.
    site: the Site of the access after the wait.
    other: the Site of the access before the arrival.
    """

    barrier: tuple
    phase: int
    wanted: int
    site: object
    other: object


class MbarrierEvents:
    """The arrivals and waits of each thread at mbarriers and cluster barriers.

    Only waits at mbarriers can pass too early.
    """

    def __init__(self):
        self.events = {}  # (block, thread) -> parallel lists: segments, names, phases

    def add(self, name, block, thread, segment, phase):
        """Add an event.

        name: "arrive" or "pass_barrier".
        phase: the key of the phase (barrier, number).
        """
        if len(phase[0]) > 2:  # an mbarrier or a cluster barrier; named barriers have shorter keys
            for column, value in zip(self.of(block, thread), (segment, name, phase)):
                column.append(value)

    def of(self, block, thread):
        return self.events.setdefault((block, thread), ([], [], []))

    def early_wait(self, one, other, site, other_site):
        """Return the EarlyWait before access `one` (Row), or None.

        other: the access of the other thread. The wait passed before this thread arrived after the access.
        site, other_site: the Sites of the two accesses.
        """
        segments, names, phases = self.of(one.block, one.thread)
        before = [i for i in range(bisect_left(segments, one.segment)) if names[i] == "pass_barrier"]
        later, others, theirs = self.of(other.block, other.thread)
        for last in reversed(before):
            barrier, phase = phases[last]
            earlier = [phases[i] for i in before if i < last and phases[i][0] == barrier]
            # A wait for the phase before the first one is correct before the first write to a buffer.
            too_early = (barrier, phase) in earlier or phase < 0 and (earlier or site.kind == "load")
            after = range(bisect_left(later, other.segment), len(later))
            wanted = [theirs[i][1] for i in after if others[i] == "arrive" and theirs[i][0] == barrier]
            if too_early and wanted and wanted[0] > phase:
                return EarlyWait(barrier, phase, wanted[0], site, other_site)
        return None


def fix_of_early_wait(facts):
    found = facts.early_wait
    observed = (
        f"phase {found.phase}, which had ended before"
        if found.phase >= 0
        else "the phase before the first one"
    )
    barrier = facts.extents.element(found.barrier[1])
    return (
        f"let the wait at the mbarrier {barrier} before line {found.site.line} test parity"
        f" {found.wanted & 1}, the parity of phase {found.wanted}, in which the other thread arrives after"
        f" line {found.other.line}; the wait tested parity {found.phase & 1}, the parity of {observed}"
    )
