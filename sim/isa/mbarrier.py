"""Memory barrier objects (mbarriers) in shared memory. Threads arrive at an mbarrier, and test later whether
a phase is complete.

A phase is complete when the barrier has counted the number of arrivals for which it was initialised, and all
bytes that the phase expects have arrived (transactions). The next phase begins immediately. An arrival
returns a 64-bit state, which contains the number of the phase and the number of arrivals that were pending
before this arrival. An element is identified as in memory.read.

Source: PTX ISA 9.7.13.15, "Parallel Synchronization and Communication Instructions: mbarrier".
"""

from collections import Counter

from numpy import uint32, uint64

from sim.isa.functions import function
from sim.isa.invalid import InvalidOperand
from sim.isa.memory import memory_instruction
from sim.nouns import plural

COUNT_BITS = 20  # PTX ISA 9.7.13.15: a count is between 1 and 2^20 - 1
MAX_COUNT = (1 << COUNT_BITS) - 1


class Barrier:
    """The state of an mbarrier.

    expected: the number of arrivals per phase.
    pending: the number of arrivals still missing in the current phase.
    phase: the current phase, counted from 0.
    address: the address of the barrier, or None before it is in memory.
    block: the index of its block.
    identity: a key that identifies the barrier to observers, or None before it is in memory.
    replaces: whether there was an earlier mbarrier at its address.
    tracked: lists of pending copies (cp.async.mbarrier.arrive). Each list counts as one arrival once all its
        copies are complete.
    tx: the number of bytes that the current phase expects and that have not yet arrived. It is negative if
        bytes have arrived before a thread expected them.
    bulk: the pending bulk copies whose bytes the barrier counts (sim.memory.async_proxy.Pending).
    expected_bytes, brought: for the current phase, the expect_tx instructions and the complete copies. Each
        is a pair of a witness (for findings) and a number of bytes.
    suppliers: thread -> the last phase in which the thread arrived, or issued a copy that the barrier counts.
    observed: thread -> the last phase whose end the thread has observed by a wait.
    failed: thread whose test of the current phase returned False -> whether its loop does nothing but wait
        for this phase.
    parked: the threads that are suspended until the current phase may have ended.
    expecting: the number of phases, up to the current one, that expect bytes.
    complete_bytes: the number of bytes that the last complete phase expected.
    brought_by: index of a block -> the number of bytes that its copies have delivered, in all phases.
    observations: the (Moment, site) of the waits that have observed the end of the previous phase.
    last_arrival: (thread, site) of the last arrival, or the Access of the copy whose bytes arrived last.
    phase_ended: a function (barrier) that is called at the end of each phase, or None.
    """

    def __init__(self, expected):
        self.expected, self.pending, self.phase = check_count(expected), expected, 0
        self.address, self.block, self.identity, self.replaces, self.tracked = None, None, None, False, []
        self.tx, self.bulk, self.expected_bytes, self.brought = 0, [], [], []
        self.suppliers, self.expecting, self.complete_bytes, self.brought_by = {}, 0, 0, Counter()
        self.observed, self.failed, self.parked = {}, {}, []
        self.observations, self.last_arrival, self.phase_ended = [], None, None

    @property
    def state(self):
        """The 64-bit state returned by an arrival: the phase in the upper bits, and the pending count in the
        low 20 bits."""
        return self.phase << COUNT_BITS | self.pending

    def arrive(self, count, drops):
        """Count `count` arrivals. Return whether they complete the phase.

        drops: whether the arriving threads leave the barrier for all later phases (arrive_drop).

        Raise InvalidOperand if more threads arrive than the phase expects.
        """
        # A copy in flight can complete at any time. If the copies complete now, this can complete the current
        # phase, so that these arrivals count in the next phase.
        if check_count(count) > self.pending:
            self.complete_copies()
        if count > self.pending:
            raise InvalidOperand(
                f"{plural(count, 'arrival')} at an mbarrier that waits for only {self.pending} in this phase",
                f"Each phase of this mbarrier counts {self.expected} arrivals. The behaviour of a further"
                " arrival is undefined.",
                "initialise the mbarrier for all arrivals of a phase, or let each arriving thread wait for"
                " the phase before it arrives again",
            )
        self.pending -= count
        self.expected -= count * drops
        return self.complete_phase()

    def complete_phase(self):
        """Begin the next phase if all arrivals and all bytes of the current phase have been counted. Return
        whether the next phase has begun."""
        if self.pending or self.tx:
            return False
        if self.phase_ended:
            self.phase_ended(self)
        self.phase, self.pending = self.phase + 1, self.expected
        self.complete_bytes = sum(nbytes for _, nbytes in self.expected_bytes)
        self.expected_bytes, self.brought, self.failed, self.observations = [], [], {}, []
        if self.parked:
            self.wake()
        return True

    def wake(self):
        """Let the parked threads run."""
        for thread in self.parked:
            if not thread.done:
                thread.block.ready.append(thread)
        self.parked = []

    def expect(self, nbytes, witness):
        """Add to the number of bytes that the current phase expects. Raise InvalidOperand if the number
        leaves the allowed range."""
        self.tx += nbytes
        self.expecting += not self.expected_bytes
        self.expected_bytes.append((witness, nbytes))
        if not -MAX_COUNT <= self.tx <= MAX_COUNT:
            raise InvalidOperand(
                f"an mbarrier can expect at most {MAX_COUNT:,} bytes per phase, got {self.tx:,}",
                f"The count of bytes has {COUNT_BITS} bits.",
                "divide the copies into several phases, and expect the bytes of one phase at a time",
            )

    def count_bytes(self, nbytes, witness):
        """Count bytes that have arrived (complete-tx). Return whether they complete the phase."""
        self.tx -= nbytes
        self.brought.append((witness, nbytes))
        self.brought_by[witness.block] += nbytes
        self.last_arrival = witness
        return self.complete_phase()

    def complete_copies(self):
        """Complete all copies that the barrier counts, and count their arrivals and bytes."""
        # `arrive` can call this method again, so empty the list first.
        tracked, self.tracked = self.tracked, []
        for copies in tracked:
            for sent in copies:
                sent.arrive()
            self.arrive(1, False)
        while self.bulk:
            pending, phase, before = self.bulk.pop(0), self.phase, (self.expected_bytes, self.brought)
            pending.finish(phase)
            if self.count_bytes(pending.nbytes, pending.witness) and self.bulk:
                # The phase is complete although further copies are under way. They end in the next phase.
                pending.report_early(self, phase, *before)
                break


def check_count(count):
    """Return `count`. Raise InvalidOperand if it is outside the range of an mbarrier's count."""
    if not 1 <= count <= MAX_COUNT:
        raise InvalidOperand(
            f"an mbarrier counts 1 to {MAX_COUNT} arrivals, got {count}",
            f"The count of arrivals has {COUNT_BITS} bits, and a phase without arrivals does not exist.",
            "give the number of arrivals of a phase, such as 1 if one thread arrives",
        )
    return count


def add_arrival(name, *modifiers, drops=False, completes=True):
    """Add an arrival instruction to the table.

    name: "arrive" or "arrive_drop".
    modifiers: further parts of the name.
    drops: whether the threads leave the barrier for all later phases.
    completes: whether the arrival is allowed to complete a phase. With .noComplete, it is not.
    """

    def arrive(memory, where, index, count=1):
        barrier = memory.barrier(where, index)
        if barrier is None:
            return 0
        # The instruction returns the state before the arrival (PTX ISA, `mbarrier.arrive`).
        state, phase = barrier.state, barrier.phase
        memory.arrived(barrier, phase)
        if barrier.arrive(count, drops) and not completes:
            raise InvalidOperand(
                "mbarrier.arrive.noComplete must not complete a phase, but this one does",
                f"It is the last of the {barrier.expected} arrivals of phase {phase}.",
                "arrive without .noComplete, or initialise the mbarrier for one more arrival",
            )
        return state

    ptx = ".".join(["mbarrier", name, *modifiers, "b64"])
    dialect = "_".join(["mbarrier", name, *modifiers])
    memory_instruction(name=dialect, source=f"PTX ISA mbarrier.{name}", ptx=(ptx,))(arrive)
    if completes:
        add_expecting_arrival(name, drops)


def add_expecting_arrival(name, drops):
    """Add mbarrier.arrive.expect_tx to the table: expect_tx, and then one arrival."""

    def arrive_expect_tx(memory, where, index, nbytes):
        barrier = memory.barrier(where, index)
        if barrier is None:
            return 0
        # Count the new bytes later: this arrival can complete earlier copies, and they must not fulfil the
        # new expectation.
        if not barrier.pending:
            barrier.complete_copies()
        if not barrier.pending:
            memory.report_reuse(barrier)
            barrier.tx = 0
            barrier.complete_phase()
        barrier.expect(nbytes, memory.witness("expects"))
        memory.expects(barrier)
        state, phase = barrier.state, barrier.phase
        memory.arrived(barrier, phase)
        barrier.arrive(1, drops)
        return state

    memory_instruction(
        name=f"mbarrier_{name}_expect_tx",
        source=f"PTX ISA mbarrier.{name}",
        ptx=(f"mbarrier.{name}.expect_tx.b64",),
    )(arrive_expect_tx)


# arrive_drop includes an arrival: the thread arrives in the current phase, and does not take part in later
# phases.
for _name in ("arrive", "arrive_drop"):
    add_arrival(_name, drops=_name == "arrive_drop")
    add_arrival(_name, "noComplete", drops=_name == "arrive_drop", completes=False)


@memory_instruction(source="PTX ISA mbarrier.expect_tx", ptx=("mbarrier.expect_tx.b64",))
def mbarrier_expect_tx(memory, where, index, nbytes):
    """Increase the number of bytes that the current phase of an mbarrier expects."""
    barrier = memory.barrier(where, index)
    if barrier is not None:
        barrier.expect(nbytes, memory.witness("expects"))
        memory.expects(barrier)


@memory_instruction(source="PTX ISA mbarrier.complete_tx", ptx=("mbarrier.complete_tx.b64",))
def mbarrier_complete_tx(memory, where, index, nbytes):
    """Count bytes at an mbarrier as arrived, as a bulk copy does when it completes."""
    barrier = memory.barrier(where, index)
    if barrier is not None:
        memory.reach = None  # PTX has only the form .relaxed
        memory.arrived(barrier, barrier.phase)
        barrier.count_bytes(nbytes, memory.witness("sent"))


def add_tracking(name, adds):
    """Add cp.async.mbarrier.arrive to the table. It makes the barrier count an arrival once all preceding
    copies of the thread are complete.

    adds: whether the pending count is incremented first, so that the arrival is an additional arrival. With
        .noinc, it counts as one of the expected arrivals.
    """

    def track(memory, where, index):
        barrier = memory.barrier(where, index)
        if barrier is None:
            return
        if adds:
            barrier.pending = check_count(barrier.pending + 1)
        memory.track(barrier)

    ptx = (f"cp.async.mbarrier.{name}.b64",)
    dialect = f"cp_async_mbarrier_{name.replace('.', '_')}"
    memory_instruction(name=dialect, source="PTX ISA cp.async.mbarrier.arrive", ptx=ptx)(track)


add_tracking("arrive", True)
add_tracking("arrive.noinc", False)


@memory_instruction(source="PTX ISA mbarrier.init", ptx=("mbarrier.init.b64",))
def mbarrier_init(memory, where, index, count):
    """Create an mbarrier that expects `count` arrivals per phase."""
    memory.set_barrier(where, index, Barrier(count))


@memory_instruction(source="PTX ISA mbarrier.inval", ptx=("mbarrier.inval.b64",))
def mbarrier_inval(memory, where, index):
    """Invalidate an mbarrier, so that its memory can be reused."""
    memory.set_barrier(where, index, None)


def add_wait(name, is_over):
    """Add test_wait and try_wait to the table. They test whether a phase is complete.

    name: "" or "parity.".
    is_over: the function (current phase, operand) that returns whether the phase identified by the operand is
        complete.
    """

    def test(memory, where, index, expected):
        barrier = memory.barrier(where, index)
        if barrier is None:
            return True
        if not is_over(barrier.phase, expected):
            phase, parked = barrier.phase, memory.park(barrier)
            # Copies are completed as late as the program allows: when a thread repeats a failed test. This
            # exposes programs that do not repeat it.
            if barrier.phase == phase and (parked or memory.has_failed(barrier)):
                barrier.complete_copies()
            # If the next phase has ended too, the parity is that of an incomplete phase again.
            if not parked or not is_over(barrier.phase, expected):
                memory.wait_failed(barrier)
                if not parked:
                    memory.yield_turn()
                return False
        memory.passed(barrier, barrier.phase - 1)
        return True

    ptx = tuple(f"mbarrier.{way}.{name}b64" for way in ("test_wait", "try_wait"))
    dialect = f"mbarrier_test_wait{'_parity' if name else ''}"
    memory_instruction(name=dialect, source="PTX ISA mbarrier.test_wait", ptx=ptx, yields=True)(test)


# Without .parity, the operand is the state returned by an arrival.
add_wait("", lambda phase, state: phase != state >> COUNT_BITS)
# With .parity, the operand is the parity of the phase. Such a wait cannot distinguish a phase from the phase
# after the next.
add_wait("parity.", lambda phase, parity: phase & 1 != parity & 1)


@function(source="PTX ISA mbarrier.pending_count", ptx=("mbarrier.pending_count.b64",))
def mbarrier_pending_count(state: uint64) -> uint32:
    """Return the pending count in a state returned by an arrival."""
    return state & MAX_COUNT
