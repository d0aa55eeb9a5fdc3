"""Waits at an mbarrier that can miss their phase.

A test by parity distinguishes the current phase only from the phase before it. If the next phase can end
before a thread has observed the end of the phase for which it waits, a later test of that phase returns
"incomplete" again. On a GPU, the thread then waits forever, or continues after a later phase. In a simulated
run, the thread usually tests in time, so only the order that the program establishes shows the bug: at least
one arrival of the next phase has to come after the wait.

The check assumes that the four warps of a warp group wait for each other at a wgmma, as they do in the
simulator.

Source: PTX ISA 9.7.13.15.16, "mbarrier.test_wait, mbarrier.try_wait".
"""

from sim.events import SITES, Access, Finding
from sim.observers.event_log import OnDemand
from sim.observers.lifetimes import Performed

WARPGROUP = 128  # threads


class Observed(Performed):
    """A happens-before order in which a thread acquires from every value that it observes, even without a
    fence."""

    def __init__(self):
        super().__init__(generous=True)

    def exchange(self, block, threads, segment):
        self.sync_warp(block, threads, segment)

    multiply = exchange


class MissedPhases:
    """The waits at all mbarriers of a launch. The observer Races uses it.

    order: the HappensBefore of the launch.
    log: its EventLog.
    number: the function that returns the number of a block.
    names: the blocks in the order of their numbers.
    """

    def __init__(self, context, order, log, number, names):
        self.context, self.order, self.number, self.names = context, order, number, names
        # Every order of the launch also holds in this order, so it is computed only if the order of the
        # launch does not suffice.
        self.log, self.observed = log, OnDemand(log, Observed())
        self.found = {}  # (site of the wait, array) -> (rank, arguments of `finding`)
        context.listeners["phase_ended"].append(self.phase_ended)
        context.listeners["async_issued"].append(self.issued)

    def issued(self, operation):
        """Order the four warps of a warp group at a product, as a barrier would."""
        block, _, thread, segment = operation.issued
        if operation.kind == "wgmma" and thread % WARPGROUP == 0:
            lanes = range(thread, thread + WARPGROUP)
            self.log.add(("multiply", self.number(block), lanes, segment))

    def phase_ended(self, phase, observations, arrival):
        """Note the waits for the previous phase after which no arrival of this phase is ordered."""
        missed = self.unordered(self.order, phase, observations)
        missed = missed and self.unordered(self.observed.current(), phase, missed)
        for at, site in missed:
            key, rank = (site, phase[0][1]), (at.block[::-1], at.thread, phase[1])
            if key not in self.found or rank < self.found[key][0]:
                self.found[key] = rank, (at, site, phase, arrival)

    def unordered(self, order, phase, observations):
        """Return the observations that do not precede any arrival of the phase in this order."""
        if not observations or phase not in order.phases:
            return observations
        for released in order.phases[phase].released.values():
            clock = released.clock()
            observations = [
                (at, site)
                for at, site in observations
                if at.epoch >= clock.get(block := self.number(at.block), -1)
                and at.segment > clock.get((block, at.thread), -1)
            ]
        return observations

    def launch_finished(self, others):
        """Return the findings of the launch, unless it has other errors.

        If a missing wait also causes a race, the fix of the race corrects both faults.
        """
        if any(finding.severity == "error" for finding in (*self.context.findings, *others)):
            return []
        return [self.finding(*found) for _, found in self.found.values()]

    def finding(self, at, site, phase, arrival):
        (_, address, block), number = phase
        element = self.context.space.element(address)
        of_block = f" of block {block[0]}" * self.context.clustered
        waits = Access("waits", at.block, self.context.thread_index(at.thread), SITES[site])
        waited = f"phase {number - 1}" if number else "the phase before the first one"
        return Finding(
            "deadlock",
            "error",
            f"a wait for {waited} of the mbarrier {element}{of_block} can miss it: no arrival of phase"
            f" {number} is ordered after the end of this wait",
            (waits, *filter(None, [arrival])),
            *element,
            reason=f"A parity distinguishes a phase only from the next one. If phase {number} ends before the"
            " thread has tested the barrier, the phase looks incomplete again: on a GPU, the thread waits"
            f" forever, or until phase {number + 1} ends. Here it tested in time, by luck.",
            fix="let the thread arrive at a second mbarrier after its wait (such as `empty` in addition to"
            " `full`), and let the arriving threads wait there before they arrive again; or use two mbarriers"
            " alternately, with such a wait between them",
        )
