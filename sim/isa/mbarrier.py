"""mbarrier: barriers in shared memory, at which threads arrive, and later ask whether a phase is complete.

A place is what memory.read takes. A phase is complete when as many threads have arrived as its barrier was
initialised for; the next one begins at once. The state that an arrival gives holds the number of the phase
and how many arrivals were pending.
Source: PTX ISA 9.7.13.15, "mbarrier.init" to "mbarrier.pending_count", "cp.async.mbarrier.arrive"."""

from numpy import uint32, uint64

from sim.isa.functions import function
from sim.isa.memory import memory_instruction

COUNT_BITS = 20
MOST = (1 << COUNT_BITS) - 1


class Barrier:
    """An mbarrier: the arrivals `expected` in a phase, those `pending` in this one, the number of this one,
    and where it is. `tracked`: lists of copies under way, each of which arrives when it is complete."""

    def __init__(self, expected):
        self.expected, self.pending, self.phase = checked(expected), expected, 0
        self.address, self.tracked = None, []

    @property
    def state(self):
        return self.phase << COUNT_BITS | self.pending

    def arrive(self, count, drops):
        """`count` threads arrive; `drops`: and take no part in later phases. Whether that completes it."""
        if checked(count) > self.pending:
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
        """All copies that the barrier tracks have arrived."""
        tracked, self.tracked = self.tracked, []
        for copies in tracked:
            for sent in copies:
                sent.arrive()
            self.arrive(1, False)


def checked(count):
    if not 1 <= count <= MOST:
        raise ValueError(f"an mbarrier counts 1 to {MOST} arrivals, got {count}")
    return count


def enter(name, *modifiers, drops=False, completes=True):
    """Enter an arrival under its name in PTX."""

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
    enter(_name, drops=_name == "arrive_drop")
    enter(_name, "noComplete", drops=_name == "arrive_drop", completes=False)


def tracks(name, adds):
    """Enter cp.async.mbarrier.arrive: the barrier gets an arrival of its own when the thread's copies have
    arrived; `adds`: this phase waits for one arrival more, otherwise the barrier was initialised for it."""

    def track(memory, where, index):
        barrier = memory.barrier(where, index)
        if barrier is None:
            return
        if adds:
            barrier.pending = checked(barrier.pending + 1)
        memory.track(barrier)

    ptx = (f"cp.async.mbarrier.{name}.b64",)
    dialect = f"cp_async_mbarrier_{name.replace('.', '_')}"
    memory_instruction(name=dialect, source="PTX ISA cp.async.mbarrier.arrive", ptx=ptx)(track)


tracks("arrive", True)
tracks("arrive.noinc", False)


@memory_instruction(source="PTX ISA mbarrier.init", ptx=("mbarrier.init.b64",))
def mbarrier_init(memory, where, index, count):
    memory.set_barrier(where, index, Barrier(count))


@memory_instruction(source="PTX ISA mbarrier.inval", ptx=("mbarrier.inval.b64",))
def mbarrier_inval(memory, where, index):
    memory.set_barrier(where, index, None)


def asks(name, is_over):
    """Enter a question: `is_over` (number of the phase, what is asked) -> whether that phase is complete."""

    def ask(memory, where, index, asked):
        barrier = memory.barrier(where, index)
        if barrier is not None and not is_over(barrier.phase, asked):
            barrier.complete_copies()  # as late as can be: the answer is still no
            memory.yield_turn()
            return False
        if barrier is not None:
            memory.passed(barrier, barrier.phase - 1)
        return True

    ptx = tuple(f"mbarrier.{way}.{name}b64" for way in ("test_wait", "try_wait"))
    dialect = f"mbarrier_test_wait{'_parity' if name else ''}"
    memory_instruction(name=dialect, source="PTX ISA mbarrier.test_wait", ptx=ptx, yields=True)(ask)


asks("", lambda phase, state: phase != state >> COUNT_BITS)
asks("parity.", lambda phase, parity: phase & 1 != parity & 1)


@function(source="PTX ISA mbarrier.pending_count", ptx=("mbarrier.pending_count.b64",))
def mbarrier_pending_count(state: uint64) -> uint32:
    return state & MOST
