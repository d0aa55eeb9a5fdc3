"""Mbarriers in shared memory (sim.isa.mbarrier), and the events that they report to observers.

Source: PTX ISA 9.7.13.15, "Parallel Synchronization and Communication Instructions: mbarrier".
"""

from sim.events import ADDRESS_BITS, SITE_SHIFT, Finding
from sim.nouns import plural

LOG_SIZE = 3 << ADDRESS_BITS  # a log entry contains log2 of the 8 bytes of an mbarrier


class BarrierMemory:
    """The part of sim.memory.transfer.Memory for mbarriers.

    reach: the threads with which the instruction orders accesses: "grid", "block", or None if it orders none.
    waits: whether the instruction is a test in a loop that only waits for the phase.
    """

    reach, waits = "grid", False

    def barrier(self, where, index):
        """Return the mbarrier at a location, or None if there is none."""
        context, site = self.context, self.site("atomic")
        located = self.locate(where, index, site, "changed")
        if located is None:
            return None
        home, address, given = located
        found = home.mbarriers.get(address)
        if found is None:
            context.findings.append(self.not_initialised(given, site))
        if context.log is not None:
            context.log.append((site << SITE_SHIFT) + LOG_SIZE + given)
            context.values.append(None)
        return found

    def locate(self, where, index, site, what):
        """Return (block, address within this block, address that the current thread uses) of the 8 bytes of
        an mbarrier. Return None if the access is refused."""
        spot = self.spot(where, index, 8, 8, site, what)
        return spot and (*self.context.thread.block.home(spot.address), spot.address)

    def set_barrier(self, where, index, barrier):
        site = self.site("store")
        located = self.locate(where, index, site, "written")
        if located is not None:
            home, address, given = located
            before = home.mbarriers.get(address)
            if barrier is not None and before is not None:
                self.report_second_init(before, given)
            if before is not None:
                before.wake()
            if barrier is not None:
                barrier.address, barrier.block = address, home.index
                barrier.identity = "mbarrier", address, home.index
                barrier.replaces = address in home.mbarriers
                if self.context.listeners["phase_ended"]:
                    barrier.phase_ended = self.announce_end
            else:  # observers order an invalidation by other rules, so it needs its own segment of the log
                self.context.begin_segment(self.context.thread)
                self.context.invalidating.add(self.context.last_segment)
            home.mbarriers[address] = barrier
            self.log(given, 8, site)
            if self.context.log is not None:
                self.context.values.append(None)
            if barrier is None:
                self.context.begin_segment(self.context.thread)

    def not_initialised(self, address, site):
        element = self.context.space.element(address)
        return Finding(
            "uninitialized-read",
            "error",
            f"{self.name} uses {element} as an mbarrier, but no mbarrier has been initialised there",
            (self.context.witness("changed", site),),
            *element,
            reason="An operation on bytes that are not an initialised mbarrier is undefined.",
            fix="let one thread initialise it (mbarrier.init), then cuda.syncthreads()",
        )

    def arrived(self, barrier, phase):
        """Report that the current thread arrives at the mbarrier in this phase."""
        barrier.suppliers[self.context.thread] = phase
        if barrier.phase_ended:
            barrier.last_arrival = self.context.thread, self.site("atomic")
        self.context.announce_ordering("arrived", phase_of(barrier, phase), self.reach)

    def expects(self, barrier):
        """Report that the current thread makes the current phase of the mbarrier expect bytes."""
        if barrier.phase:
            phase = phase_of(barrier, barrier.phase)
            self.context.announce_ordering("bytes_expected", phase, self.site("atomic"))

    def park(self, barrier):
        """Suspend the current thread, whose test has failed, until the phase may have ended. Return False if
        the thread has to repeat the test instead."""
        context = self.context
        if not self.waits or self.has_failed(barrier) or context.loops.progress_check:
            return False
        # A block of a cluster must not complete its copies before the scheduler has run the other blocks. In
        # kernels with bulk copies, a wait that can miss its phase is found more often if the thread repeats
        # its test.
        if context.clustered or context.asynchronous:
            return False
        self.context.thread.failed_wait = barrier, self.site("atomic")
        self.suspend(barrier)
        return True

    def suspend(self, barrier):
        """Suspend the current thread until the phase of an mbarrier may have ended."""
        raise NotImplementedError

    def has_failed(self, barrier):
        """Return whether a test of the mbarrier's current phase by the current thread has failed before."""
        return self.context.thread in barrier.failed

    def wait_failed(self, barrier):
        """Record that the current thread found the current phase of the mbarrier incomplete."""
        barrier.failed[self.context.thread] = self.waits
        self.context.thread.failed_wait = barrier, self.site("atomic")
        self.context.polls.failed()

    def passed(self, barrier, phase):
        context = self.context
        context.thread.failed_wait = None
        barrier.observed[context.thread] = phase
        at = context.announce_ordering("passed", phase_of(barrier, phase), self.reach)
        if barrier.phase_ended:
            barrier.observations.append((at or context.moment(), self.site("atomic")))

    def announce_end(self, barrier):
        """Report that an mbarrier completes its current phase."""
        # Initialising the barrier again in a loop can restore an earlier state.
        if not barrier.replaces:
            self.context.loops.phase_ended()
            if check := self.context.loops.progress_check:
                check.advanced = True
        phase, arrival = phase_of(barrier, barrier.phase), barrier.last_arrival
        if isinstance(arrival, tuple):
            thread, site = arrival
            arrival = self.context.witness("arrives", site, thread)
        self.context.announce("phase_ended", phase, barrier.observations, arrival)

    def report_second_init(self, barrier, address):
        """Report that the current thread initialises an mbarrier that is still valid."""
        element, block = self.context.space.element(address), self.context.thread.block
        waits = [
            thread
            for member in block.cluster
            for thread in member.threads
            if not thread.done and thread.failed_wait and thread.failed_wait[0] is barrier
        ]
        busy = waits or barrier.pending != barrier.expected or barrier.tx or barrier.bulk or barrier.tracked
        witnesses = [self.context.witness("waits", thread.failed_wait[1], thread) for thread in waits[:1]]
        self.context.findings.append(
            Finding(
                "misuse",
                "error" if busy else "warning",
                f"the mbarrier {element} is initialised again, but "
                + ("its phase is not complete" if busy else "has not been invalidated"),
                (self.witness("initialises"), *witnesses),
                *element,
                reason="The behaviour of a second mbarrier.init is undefined before mbarrier.inval.",
                fix="initialise the barrier once, and continue with its next phase (the other parity)",
            )
        )

    def report_reuse(self, barrier):
        """Report that the current thread arrives for the next phase of an mbarrier before the current one is
        complete."""
        element = self.context.space.element(barrier.address)
        expecting = dict.fromkeys(witness for witness, _ in barrier.expected_bytes)
        self.context.findings.append(
            Finding(
                "async-copy",
                "error",
                f"the mbarrier {element} gets an arrival for its next phase, but phase {barrier.phase}"
                f" still waits for {plural(abs(barrier.tx), 'byte')}",
                (self.witness("arrives"), *expecting),
                *element,
                reason="All threads of the phase have arrived, so a further arrival in it is undefined.",
                fix="wait until the stage is free again (the mbarrier at which its readers arrive) before"
                " the next arrive.expect_tx",
            )
        )


def phase_of(barrier, phase):
    """Return the key that identifies a phase of an mbarrier to observers. It contains the block of the
    barrier, because other blocks of the cluster can arrive at it."""
    return barrier.identity, phase
