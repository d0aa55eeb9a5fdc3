"""Tests of asynchronous copies that arrive at an mbarrier (cp.async.mbarrier.arrive): planted bugs with fixed
twins, values, and advice."""

import numpy as np
import pytest

from ptx.test_barriers import ARRIVE, GET, HEAD, INIT, MEET, PARITY, WAIT
from sim import load_ptx, simulate

COPY = "mad.wide.u32 %x4, %r1, 4, %x1; cp.async.ca.shared.global [%r4], [%x4], 4;"
TRACK, NOINC = (
    "cp.async.mbarrier.arrive.shared.b64 [%r9];",
    "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r9];",
)
NEXT = PARITY.format(0)
# The first warp copies for both warps, and the second warp waits.
SENDS = "@!%p1 bra TAKE; mad.wide.u32 %x4, %r1, 8, %x1; shl.b32 %r10, %r1, 3; add.u32 %r10, %r10, %r2;"
SENDS += "cp.async.ca.shared.global [%r10], [%x4], 8;"
FOR_WARP = INIT.replace("64;", "32;") + MEET
# name -> (kernel, findings, fixed twin)
TRACKED = {
    "read before the phase is over": (
        INIT + MEET + COPY + TRACK + ARRIVE + GET + WAIT,
        ["race-shared"],
        INIT + MEET + COPY + TRACK + ARRIVE + WAIT + GET,
    ),
    "its own copy read at once": (
        INIT + MEET + COPY + NOINC + "mov.b32 %r5, %r4;" + GET,
        ["async-copy"],
        INIT + MEET + COPY + NOINC + NEXT + "mov.b32 %r5, %r4;" + GET,
    ),
    "a barrier of the block does not wait for copies": (
        INIT + MEET + COPY + NOINC + MEET + GET,
        ["async-copy"],
        INIT + MEET + COPY + NOINC + NEXT + MEET + GET,
    ),
    "one thread waits, and the others do not meet it": (
        INIT + MEET + COPY + NOINC + "@!%p2 bra OVER;" + NEXT + "OVER:" + GET,
        ["race-shared"],
        INIT + MEET + COPY + NOINC + "@!%p2 bra OVER;" + NEXT + "OVER:" + MEET + GET,
    ),
    "the arrival comes before the copy": (
        INIT + MEET + NOINC + COPY + NEXT + GET,
        ["race-shared"],
        INIT + MEET + COPY + NOINC + NEXT + GET,
    ),
    "an ordinary arrival does not track copies": (
        INIT + MEET + COPY + ARRIVE + WAIT + GET,
        ["async-copy"],
        INIT + MEET + COPY + TRACK + ARRIVE + WAIT + GET,
    ),
    "a warp copies, and the other does not wait": (
        FOR_WARP + SENDS + NOINC + "bra END; TAKE:" + GET + "END:",
        ["race-shared"],
        FOR_WARP + SENDS + NOINC + "bra END; TAKE:" + NEXT + GET + "END:",
    ),
    "the source is written while it is read": (
        INIT + MEET + COPY + NOINC + "st.global.u32 [%x4], %r1;" + NEXT,
        ["async-copy"],
        INIT + MEET + COPY + NOINC + NEXT + "st.global.u32 [%x4], %r1;",
    ),
    "noinc, and the barrier does not count it": (
        INIT.replace("64;", "65;") + MEET + COPY + NOINC + NEXT + GET,
        ["deadlock"],
        INIT.replace("64;", "64;") + MEET + COPY + NOINC + NEXT + GET,
    ),
}


@pytest.mark.parametrize("name", TRACKED)
def test_copies_that_arrive_at_an_mbarrier(name):
    bug, kinds, twin = TRACKED[name]
    for seed in range(3):
        found, y = copied(bug, seed, max_steps=2000)
        assert found == kinds
        found, y = copied(twin, seed)
        assert found == [] and set(y.tolist()) <= {-1, *range(100, 164)}
        assert GET not in twin or y[33] != -1


def copied(body, seed=0, **more):
    """Return (kinds of errors, y) for a block of 64 threads; x contains 100, 101, ..."""
    x, y = np.arange(100, 164, dtype=np.int32), np.full(64, -1, np.int32)
    kernel = load_ptx(f"{HEAD}{body}\n    ret;\n}}")["k"]
    report = simulate(kernel, on_finding="report", seed=seed, **more)[1, 64](x, y)
    return sorted({finding.kind for finding in report.errors}), y


def test_what_an_mbarrier_tracks_comes_through_over_two_phases():
    """Use two phases: an arrival by copies counts once per phase. The native engine falls back to the
    interpreter."""
    again = "add.u64 %x4, %x4, 0; " + COPY + NOINC + PARITY.format(1)
    for text in (
        INIT + MEET + COPY + TRACK + ARRIVE + WAIT,
        INIT + MEET + COPY + NOINC + NEXT + MEET + again,
    ):
        assert copied(text + GET)[1].tolist() == [100 + (i ^ 32) for i in range(64)]


def test_the_advice_is_to_wait_for_the_phase():
    x, y = np.zeros(64, np.int32), np.zeros(64, np.int32)
    body = INIT + MEET + COPY + NOINC + MEET + GET
    report = simulate(load_ptx(f"{HEAD}{body}\n    ret;\n}}")["k"], on_finding="report", engine="native")[
        1, 64
    ](x, y)
    assert "mbarrier" in report.errors[0].fix and "(mbarrier.try_wait)" in report.errors[0].fix
    assert report.notes == ("compiled, then explained by the interpreter",)
