"""Tests of loops that read a clock. Some of the loops end after a time limit, and others never end."""

import numpy as np
import pytest

import sim.loop_limits
from sim import load_ptx, simulate
from sim.progress import Clock
from sim.ptx import module

HEAD = """.version 8.0\n.target sm_80\n.address_size 64
.visible .entry k(.param .u64 y)
{
    .shared .align 8 .b64 bar[2]; .shared .align 4 .b32 flag[4];
    .reg .pred %p<4>; .reg .b32 %r<12>; .reg .b64 %x<16>;
    ld.param.u64 %x2, [y]; mov.u32 %r1, %tid.x; mov.u32 %r2, flag; mov.u32 %r9, bar; mov.u32 %r5, 0;
    mad.wide.u32 %x3, %r1, 4, %x2; setp.eq.u32 %p2, %r1, 0;
    @%p2 mbarrier.init.shared.b64 [%r9], COUNT; @%p2 st.shared.u32 [%r2], 0; bar.sync 0;
    mov.u64 %x4, %globaltimer; mov.u32 %r3, %clock;
"""
STORE = "st.global.u32 [%x3], 7;"
ELAPSED = "mov.u64 %x5, %globaltimer; sub.s64 %x6, %x5, %x4; setp.lt.s64 %p1, %x6, {};"
# libcu++ waits like this: it sleeps for a quarter of the elapsed time, but at most for a millisecond.
SLEEP = (
    "mov.u64 %x5, %globaltimer; sub.s64 %x6, %x5, %x4; shr.u64 %x7, %x6, 2; min.u64 %x8, %x7, 1000000;"
    "cvt.u32.u64 %r6, %x8; nanosleep.u32 %r6;"
)
ARRIVE = "mbarrier.arrive.shared.b64 %x9, [%r9];"
TEST = "mbarrier.test_wait.shared.b64 %p3, [%r9], %x9;"
FLAG = "ld.relaxed.cta.shared.u32 %r4, [%r2]; setp.eq.u32 %p1, %r4, 0;"
SET = "@%p2 st.relaxed.cta.shared.u32 [%r2], 1;"
DELAY = (
    "mov.u64 %x10, %clock64; D: mov.u64 %x11, %clock64; sub.s64 %x12, %x11, %x10; setp.lt.s64 %p3, %x12, 90;"
)
DELAY += "@%p3 bra D;"

ENDED = {
    "by the nanosecond timer": "L: " + ELAPSED.format(10**9) + "@%p1 bra L;" + STORE,
    "by the clock of 32 bits": (
        "L: mov.u32 %r4, %clock; sub.u32 %r6, %r4, %r3; setp.lt.u32 %p1, %r6, 500000000; @%p1 bra L;" + STORE
    ),
    "by the timer, with a count of its tests": (
        "L: add.u32 %r5, %r5, 1;" + ELAPSED.format(10**9) + "@%p1 bra L;" + STORE
    ),
    "by the timer, where the barrier does not open": (
        ARRIVE + "L:" + TEST + "@%p3 bra E;" + SLEEP + ELAPSED.format(10**9) + "@%p1 bra L; E:" + STORE
    ),
    "after many delays": "L:" + DELAY + "add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, 100; @%p1 bra L;" + STORE,
}
SET_IN_TIME = {
    "by a flag, between delays": SET + "L:" + DELAY + FLAG + "@%p1 bra L;" + STORE,
    "by a flag, after sleeps": SET + "L:" + SLEEP + FLAG + "@%p1 bra L;" + STORE,
}
ENDLESS = {
    "a barrier, with sleeps": (
        ARRIVE + "L:" + TEST + "@%p3 bra E;" + SLEEP + "bra L; E:" + STORE,
        "deadlock",
    ),
    "a barrier, without sleeps": (ARRIVE + "L:" + TEST + "@!%p3 bra L;" + STORE, "deadlock"),
    "a barrier, with delays": (
        ARRIVE + "L:" + TEST + "@%p3 bra E;" + DELAY + "bra L; E:" + STORE,
        "deadlock",
    ),
    "a flag, between delays": ("L:" + DELAY + FLAG + "@%p1 bra L;" + STORE, "no-progress"),
    "a flag, after sleeps": ("L:" + SLEEP + FLAG + "@%p1 bra L;" + STORE, "no-progress"),
}


def run(body, engine, count=65, **more):
    """Return (findings, y) for a block of 64 threads."""
    y = np.zeros(64, np.int32)
    kernel = load_ptx(f"{HEAD.replace('COUNT', str(count))}{body}\n    ret;\n}}")["k"]
    return simulate(kernel, on_finding="report", engine=engine, **more)[1, 64](y).findings, y


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(sim.loop_limits, "FIRST_PATIENCE", 0.05)


@pytest.mark.parametrize("engine", ["fibers", "threads", "native"])
@pytest.mark.parametrize("name", SET_IN_TIME)
def test_a_wait_for_a_flag_between_reads_of_the_clock_ends(name, engine, monkeypatch):
    monkeypatch.setattr(sim.loop_limits, "FIRST_PATIENCE", 8.0)
    findings, y = run(SET_IN_TIME[name], engine)
    assert findings == () and (y == 7).all()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("engine", ["fibers", "threads", "native"])
@pytest.mark.parametrize("name", ENDED)
def test_a_wait_for_a_limited_time_ends(name, engine):
    findings, y = run(ENDED[name], engine)
    assert findings == () and (y == 7).all()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("engine", ["fibers", "threads", "native"])
@pytest.mark.parametrize("name", ENDLESS)
def test_a_wait_that_nothing_ends_is_decided(name, engine):
    body, kind = ENDLESS[name]
    (finding,), y = run(body, engine)
    assert finding.kind == kind and "not decided" not in finding.verdict and not y.any()


@pytest.mark.usefixtures("impatient")
def test_the_finding_names_the_barrier_and_its_arrivals():
    (finding,), _ = run(ENDLESS["a barrier, with sleeps"][0], "fibers", 70)
    assert finding.verdict == (
        "64 threads wait at the mbarrier bar[0], which has counted 64 of 70 arrivals in phase 0"
    )
    assert [(access.what, access.thread) for access in finding.accesses] == [("waits", (0, 0, 0))]


@pytest.mark.usefixtures("impatient")
def test_a_search_that_a_clock_has_seeded_is_not_taken_for_an_endless_loop():
    """Seed a random number generator from a clock. Its values determine the address of each thread's next
    read."""
    step = "shl.b64 %x5, %x4, 13; xor.b64 %x4, %x4, %x5; shr.u64 %x5, %x4, 7; xor.b64 %x4, %x4, %x5;"
    step += "shl.b64 %x5, %x4, 17; xor.b64 %x4, %x4, %x5; and.b64 %x6, %x4, 255;"
    wait = "ld.relaxed.cta.shared.u32 %r4, [%r2]; setp.ne.u64 %p1, %x6, 5; @%p1 bra L;"
    findings, y = run("add.u64 %x4, %x4, 1; L:" + step + wait + STORE, "fibers", observers=())
    assert findings == () and (y == 7).all()


LONG = "setp.lt.s64 %p1, %x12, 1000000; @%p1 bra L;" + STORE
READ = "mov.u64 %x10, %clock64; L: mov.u64 %x11, %clock64; sub.s64 %x12, %x11, %x10;"


@pytest.mark.parametrize("sleeps", ["", "nanosleep.u32 1000;", "mov.u32 %r6, 5000; nanosleep.u32 %r6;"])
@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_a_wait_of_a_million_ticks_takes_few_reads_of_the_clock(sleeps, engine, monkeypatch):
    reads, read = [], Clock.read

    def counted(clock):
        reads.append(clock.context.thread)
        return read(clock)

    monkeypatch.setattr(Clock, "read", counted)
    findings, y = run(READ + sleeps + LONG, engine)
    assert findings == () and (y == 7).all()
    assert max(map(reads.count, set(reads))) < (1_100 if sleeps else 100)


LEAVES_ITS_CYCLE = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 y, .param .u64 ticks)
{
    .reg .pred %p<3>; .reg .b32 %r<3>; .reg .b64 %x<6>;
    ld.param.u64 %x1, [y]; ld.param.u64 %x2, [ticks]; mov.u32 %r1, 0; mov.u32 %r2, 0; mov.u64 %x3, %clock64;
L:  add.u32 %r1, %r1, 1; setp.eq.u32 %p1, %r1, 33; @%p1 mov.u32 %r1, 0;
    mov.u64 %x4, %clock64; sub.s64 %x5, %x4, %x3; setp.lt.s64 %p2, %x5, %x2; @%p2 bra L;
M:  add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 10000; @%p1 bra M;
    st.global.u32 [%x1], %r2; ret;
}"""


@pytest.mark.parametrize("exponent", [30, 38, 42])
def test_a_thread_that_has_just_left_its_cycle_is_not_endless(exponent, monkeypatch):
    """Let the thread leave a loop with 33 states when the clock reaches a time, and then count to 10,000. The
    simulator treats it as repeating for up to 64 iterations after it last returned to a state."""
    monkeypatch.setattr(module, "MAX_ITERATIONS", 50)
    y = np.zeros(1, np.uint32)
    kernel = load_ptx(LEAVES_ITS_CYCLE)["k"]
    assert not simulate(kernel, engine="fibers")[1, 1](y, np.uint64(1 << exponent)).findings
    assert y[0] == 10000
