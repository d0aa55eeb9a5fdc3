"""Tests of loops that only wait for a phase of an mbarrier.

A thread in such a loop is suspended. The findings are the same as if it repeated its test."""

import numpy as np
import pytest

from sim import load_ptx, loop_limits, simulate
from sim.memory.barriers import BarrierMemory

HEAD = """.version 8.0\n.target sm_90\n.address_size 64
.visible .entry k(.param .u64 y)
{
    .shared .align 8 .b64 bar[2]; .shared .align 4 .b32 flag;
    .reg .pred %p<6>; .reg .b16 %h<4>; .reg .b32 %r<12>; .reg .b64 %x<16>;
    ld.param.u64 %x2, [y]; mov.u32 %r1, %tid.x; mov.u32 %r9, bar; mov.u32 %r5, 0; mov.u32 %r6, 0;
    mad.wide.u32 %x3, %r1, 4, %x2; setp.eq.u32 %p2, %r1, 0; setp.ge.u32 %p4, %r1, 32;
    mov.u32 %r2, flag; mov.u32 %r3, 0;
    @%p2 mbarrier.init.shared.b64 [%r9], COUNT; @%p2 st.shared.u32 [%r2], 0; bar.sync 0;
"""
ARRIVE = "mbarrier.arrive.shared.b64 %x9, [%r9];"
TEST = "mbarrier.test_wait.parity.shared.b64 %p1, [%r9], %r3;"
STORE = "st.global.u32 [%x3], 7;"
# body of the loop, and whether the loop only waits
LOOPS = {
    "CUTLASS": ("L: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r9], %r3; @%p1 bra E; bra L; E:", True),
    "one branch": ("L:" + TEST + "@!%p1 bra L;", True),
    "libcu++": (
        "L:" + TEST + "selp.u16 %h1, 1, 0, %p1; setp.eq.s16 %p3, %h1, 0; @%p3 bra M; bra E;"
        "M: setp.lt.s32 %p5, %r5, 16; @%p5 bra N; nanosleep.u32 20; bra L; N: add.u32 %r5, %r5, 1; bra L; E:",
        True,
    ),
    "a limited number of tests": (
        "L: add.u32 %r5, %r5, 1;" + TEST + "@%p1 bra E; setp.lt.u32 %p3, %r5, 900; @%p3 bra L; E:",
        False,
    ),
    "a time limit": (
        "mov.u64 %x4, %globaltimer; L:" + TEST + "@%p1 bra E; mov.u64 %x5, %globaltimer;"
        "sub.s64 %x6, %x5, %x4; setp.lt.s64 %p3, %x6, 1000000; @%p3 bra L; E:",
        False,
    ),
    "another access": ("L: ld.relaxed.cta.shared.u32 %r4, [%r2];" + TEST + "@!%p1 bra L;", False),
    "the opposite result": ("L:" + TEST + "@%p1 bra L;", False),
    "another parity each time": ("L:" + TEST + "xor.b32 %r3, %r3, 1; @!%p1 bra L;", False),
}


def launch(body, count, **more):
    """Return (the report, y) of one block of 64 threads."""
    y = np.zeros(64, np.int32)
    text = f"{HEAD.replace('COUNT', str(count))}{body}\n    ret;\n}}"
    return simulate(load_ptx(text)["k"], on_finding="report", **more)[1, 64](y), y


@pytest.mark.parametrize("name", LOOPS)
def test_a_thread_is_suspended_only_if_its_loop_does_nothing_but_wait(name, monkeypatch):
    parked, park = [], BarrierMemory.park
    monkeypatch.setattr(BarrierMemory, "park", lambda self, bar: parked.append(park(self, bar)) or parked[-1])
    loop, waits = LOOPS[name]
    report, y = launch(ARRIVE + loop + STORE, 64 if name != "the opposite result" else 65)
    assert not report.errors and (y == 7).all()
    # The last thread that arrives finds the phase complete.
    assert parked.count(True) == (63 if waits else 0)


def waits_of_both_warps(first, second):
    return f"@%p4 bra SECOND; {first} bra END; SECOND: {second} END: {STORE}"


SPIN = "S: ld.relaxed.cta.shared.u32 %r4, [%r2]; setp.eq.u32 %p3, %r4, 0; @%p3 bra S;"
SET = "@%p2 st.relaxed.cta.shared.u32 [%r2], 1;"
COPY = "cp.async.ca.shared.global [%r7], [%x3], 4; cp.async.mbarrier.arrive.noinc.shared.b64 [%r9];"
WAIT = LOOPS["one branch"][0]
# body, arrivals per phase, kinds of findings
CASES = {
    "too few arrivals": (ARRIVE + WAIT + STORE, 65, ["deadlock"]),
    "too few arrivals while a warp spins": (waits_of_both_warps(ARRIVE + WAIT + SET, SPIN), 33, None),
    "the phase ends while a warp spins": (waits_of_both_warps(ARRIVE + WAIT + SET, SPIN), 32, []),
    "copies complete while a warp spins": (
        ".shared .align 4 .b32 tile[64]; mov.u32 %r7, tile; mad.lo.u32 %r7, %r1, 4, %r7;"
        + waits_of_both_warps(COPY + WAIT + SET, SPIN),
        32,
        [],
    ),
    "another warp waits at a barrier": (
        waits_of_both_warps(ARRIVE + WAIT + "bar.sync 0;", "bar.sync 0;"),
        33,
        None,
    ),
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", CASES)
def test_the_findings_are_those_of_threads_that_repeat_their_tests(name, seed, monkeypatch):
    body, count, kinds = CASES[name]
    suspended, y = launch(body, count, seed=seed)
    monkeypatch.setattr(BarrierMemory, "park", lambda self, bar: False)
    repeated, z = launch(body, count, seed=seed)
    found = [
        [(f.kind, f.verdict, f.reason, f.fix) for f in report.findings] for report in (suspended, repeated)
    ]
    assert found[0] == found[1] and (y == z).all()
    assert [kind for kind, *_ in found[0]] == kinds if kinds is not None else found[0]


@pytest.mark.parametrize("name", ["too few arrivals", "another warp waits at a barrier"])
def test_a_deadlock_of_suspended_threads_is_found_without_a_comparison(name, monkeypatch):
    monkeypatch.setattr(loop_limits, "ProgressCheck", None)
    body, count, _ = CASES[name]
    report, _ = launch(body, count)
    assert [finding.kind for finding in report.findings] == ["deadlock"]
