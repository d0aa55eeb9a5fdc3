"""mbarrier: barriers in shared memory. Threads arrive, and test later whether a phase is complete.

An element is given as in memory.read. A phase is complete when as many threads have arrived as the barrier
was initialised for; the next phase begins at once. An arrival returns a state, which consists of the number
of the phase and of the arrivals that were pending.

Source: PTX ISA 9.7.13.15, "mbarrier.init" to "mbarrier.pending_count", "cp.async.mbarrier.arrive".
"""

from numpy import uint32, uint64

from sim.isa.functions import function
from sim.isa.memory import memory_instruction

COUNT_BITS = 20  # PTX ISA: the count of an mbarrier is between 1 and 2^20 - 1
MOST = (1 << COUNT_BITS) - 1


class Barrier:
    """An mbarrier.

    expected: the number of arrivals in a phase.
    pending: the number of arrivals that the current phase still waits for.
    phase: the number of the current phase.
    address: the address of the barrier, once it is in memory.
    tracked: lists of copies in progress. Each list counts as one arrival when its copies are complete.
    """

    def __init__(self, expected):
        self.expected, self.pending, self.phase = check_count(expected), expected, 0
        self.address, self.tracked = None, []

    @property
    def state(self):
        """The 64-bit state: the phase above the pending arrivals."""
        return self.phase << COUNT_BITS | self.pending

    def arrive(self, count, drops):
        """Count `count` arrivals. If `drops`, the threads take no part in later phases. Return whether the
        phase is complete."""
        if check_count(count) > self.pending:
            self.complete_copies()
        if count > self.pending:
            raise ValueError(f"{count} arrive at an mbarrier that waits for {self.pending} in this phase")
        self.pending -= count
        self.expected -= count * drops
        if self.pending:
            return False
        self.phase, self.pending = self.phase + 1, self.expected
        return True

    def complete_copies(self):
        """Complete all copies that the barrier tracks."""
        tracked, self.tracked = self.tracked, []
        for copies in tracked:
            for sent in copies:
                sent.arrive()
            self.arrive(1, False)


def check_count(count):
    """Return `count`. Errors: ValueError if an mbarrier cannot count that many arrivals."""
    if not 1 <= count <= MOST:
        raise ValueError(f"an mbarrier counts 1 to {MOST} arrivals, got {count}")
    return count


def add_arrival(name, *modifiers, drops=False, completes=True):
    """Add an arrival under its name in PTX. If not `completes`, it is an error to complete a phase."""

    def arrive(memory, where, index, count=1):
        barrier = memory.barrier(where, index)
        if barrier is None:
            return 0
        state, phase = barrier.state, barrier.phase
        memory.arrived(barrier, phase)
        if barrier.arrive(count, drops) and not completes:
            raise ValueError("mbarrier.arrive.noComplete completes a phase, which it must not")
        return state

    ptx = ".".join(["mbarrier", name, *modifiers, "b64"])
    dialect = "_".join(["mbarrier", name, *modifiers])
    memory_instruction(name=dialect, source=f"PTX ISA mbarrier.{name}", ptx=(ptx,))(arrive)


for _name in ("arrive", "arrive_drop"):
    add_arrival(_name, drops=_name == "arrive_drop")
    add_arrival(_name, "noComplete", drops=_name == "arrive_drop", completes=False)


def add_tracking(name, adds):
    """Add cp.async.mbarrier.arrive: the barrier counts an arrival when the thread's copies are complete.
    If `adds`, the current phase waits for one more arrival; otherwise the barrier was initialised for it."""

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
    memory.set_barrier(where, index, Barrier(count))


@memory_instruction(source="PTX ISA mbarrier.inval", ptx=("mbarrier.inval.b64",))
def mbarrier_inval(memory, where, index):
    memory.set_barrier(where, index, None)


def add_wait(name, is_over):
    """Add a test for the end of a phase. `is_over` is a function (current phase, operand) -> whether
    that phase is complete."""

    def test(memory, where, index, expected):
        barrier = memory.barrier(where, index)
        if barrier is not None and not is_over(barrier.phase, expected):
            # As late as possible: this test fails all the same, and only the next one may succeed.
            barrier.complete_copies()
            memory.wait_failed(barrier)
            memory.yield_turn()
            return False
        if barrier is not None:
            memory.passed(barrier, barrier.phase - 1)
        return True

    ptx = tuple(f"mbarrier.{way}.{name}b64" for way in ("test_wait", "try_wait"))
    dialect = f"mbarrier_test_wait{'_parity' if name else ''}"
    memory_instruction(name=dialect, source="PTX ISA mbarrier.test_wait", ptx=ptx, yields=True)(test)


add_wait("", lambda phase, state: phase != state >> COUNT_BITS)
add_wait("parity.", lambda phase, parity: phase & 1 != parity & 1)


@function(source="PTX ISA mbarrier.pending_count", ptx=("mbarrier.pending_count.b64",))
def mbarrier_pending_count(state: uint64) -> uint32:
    return state & MOST
