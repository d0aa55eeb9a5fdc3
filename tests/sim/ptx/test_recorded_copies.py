"""Tests of errors about asynchronous copies (cp.async) that compiled code records.

The interpreter would reach these errors too late.
"""

from dataclasses import replace

import numpy as np
import pytest

from ptx.test_tensor import COMMIT, COPY, KEEP, NIGHTLY, OTHER, OWN, PLACE, PLANTED, WAIT, kernel
from sim import simulate
from test_error_records import without_recent_events

explain = pytest.importorskip("sim.native.run.explain")
BARRIER, HALF = "bar.sync 0;", COPY.replace("[%r3]", "[%r3+512]")
RECORDED = {"async-copy", "race-shared", "misaligned-address", "out-of-bounds", "uninitialized-read"}
STORE_SOURCE = "st.global.b32 [%x3], %r1;"


def loop(body, count=5, last=""):
    """Return the text of a loop. `last` is the code that only the last iteration executes."""
    only_last = f"setp.ne.u32 %p2, %r6, {count - 1}; @%p2 bra NEXT; {last} NEXT:" if last else ""
    step = f"add.u32 %r6, %r6, 1; setp.lt.u32 %p3, %r6, {count}; @%p3 bra LOOP;"
    return f"mov.u32 %r6, 0; LOOP: {body} {only_last} {step}"


def not_in_last(code, count=5):
    """Return code that all iterations of a loop execute, except for the last one."""
    return f"setp.eq.u32 %p1, %r6, {count - 1}; @%p1 bra SKIP; {code} SKIP:"


# name -> (kernel, fixed twin). Loops of 3,000 iterations overflow the array of recorded rows, which has room
# for 1,024 rows.
LOOPS = {
    "a loop before the copy": (
        PLACE + loop(KEEP.replace("%d0", "%r6"), 3000) + COPY + COMMIT + OWN,
        PLACE + loop(KEEP.replace("%d0", "%r6"), 3000) + COPY + COMMIT + WAIT + OWN,
    ),
    "the last copy is not awaited": (
        PLACE + loop(COPY + COMMIT + not_in_last(WAIT, 3000) + OWN, 3000),
        PLACE + loop(COPY + COMMIT + WAIT + OWN, 3000),
    ),
    "many reads before the wait": (
        PLACE + COPY + COMMIT + loop(OWN, 3000) + WAIT,
        PLACE + COPY + COMMIT + WAIT + loop(OWN, 3000),
    ),
    "a pipeline with one group too many": (
        PLACE + COPY + COMMIT + loop(HALF + COMMIT + "cp.async.wait_group 2;" + OWN + WAIT + BARRIER),
        PLACE + COPY + COMMIT + loop(HALF + COMMIT + "cp.async.wait_group 1;" + OWN + WAIT + BARRIER),
    ),
    "no barrier after the wait in the last iteration": (
        PLACE + loop(COPY + COMMIT + BARRIER + WAIT + not_in_last(BARRIER) + OTHER + BARRIER),
        PLACE + loop(COPY + COMMIT + BARRIER + WAIT + BARRIER + OTHER + BARRIER),
    ),
    "the tile read by a warp that did not wait": (
        PLACE + loop(COPY + COMMIT + "bar.warp.sync -1;" + OTHER + WAIT + BARRIER),
        PLACE + loop(COPY + COMMIT + WAIT + "bar.warp.sync -1;" + OTHER + BARRIER),
    ),
    "source written in the last iteration": (
        PLACE + loop(COPY + COMMIT, last=STORE_SOURCE) + WAIT,
        PLACE + loop(COPY + COMMIT + WAIT, last=STORE_SOURCE),
    ),
    "source written many times": (
        PLACE + COPY + COMMIT + loop(STORE_SOURCE, 3000) + WAIT,
        PLACE + COPY + COMMIT + WAIT + loop(STORE_SOURCE, 3000),
    ),
    "two threads copy to one place": (
        PLACE + "and.b32 %r5, %r3, 0xffffffef;" + COPY.replace("%r3", "%r5") + COMMIT + WAIT,
        PLACE + COPY + COMMIT + WAIT + OWN,
    ),
}
BUGS = {name: bug for name, (bug, kind, _) in PLANTED.items() if kind in RECORDED}
BUGS |= {name: bug for name, (bug, _) in LOOPS.items()}


def report_of(body, engine, blocks=1):
    x, y = np.arange(128, dtype=np.int32), np.zeros(128, np.int32)
    return simulate(kernel(body), engine=engine, on_finding="report")[blocks, 32](x, y)


def facts(finding):
    accesses = frozenset((access.what, access.site and access.site.line) for access in finding.accesses)
    return finding.kind, finding.severity, finding.array, finding.fix, accesses


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name in NIGHTLY else ()) for name in BUGS]
)
def test_compiled_code_describes_errors_about_copies(monkeypatch, name):
    expected = report_of(BUGS[name], "fibers")
    monkeypatch.setattr(explain, "EXPLAIN_SECONDS", -1)
    report = report_of(BUGS[name], "native")
    assert {*map(facts, report.findings)} <= {*map(facts, expected.findings)}
    assert report.errors and explain.UNEXPLAINED in report.notes


@pytest.mark.parametrize("name", LOOPS)
def test_recent_events_give_the_findings_of_a_further_run(monkeypatch, name):
    # The counts of findings may differ: a further run records at most 1,024 events.
    monkeypatch.setattr(explain, "EXPLAIN_SECONDS", -1)
    found = [replace(each, count=0) for each in report_of(LOOPS[name][0], "native").findings]
    without_recent_events(monkeypatch)
    assert found == [replace(each, count=0) for each in report_of(LOOPS[name][0], "native").findings]


@pytest.mark.parametrize("name", LOOPS)
def test_correct_twins_are_compiled(name):
    report = report_of(LOOPS[name][1], "native")
    assert report.notes == ("compiled",) and not report.findings


# The thread stores to the source before it starts the copy. Compiled code marks the block, because the shadow
# entry of the store does not show that the store came first.
HARMLESS = f"{PLACE}{STORE_SOURCE}{COPY}{COMMIT}{WAIT}{OWN}"


def test_a_store_to_the_source_before_the_copy_is_no_error(monkeypatch):
    monkeypatch.setattr(explain, "EXPLAIN_SECONDS", -1)
    report = report_of(HARMLESS, "native")
    assert not report.findings and explain.UNEXPLAINED not in report.notes


def test_a_read_of_a_copy_in_flight_ends_a_long_loop(monkeypatch):
    explained = []
    monkeypatch.setattr("sim.native.run.launch.SECONDS_AFTER_ERROR", -1)
    monkeypatch.setattr(
        "sim.native.engine.explain", lambda attempt: explained.append(attempt) or attempt.outcome()
    )
    report_of(PLACE + COPY + COMMIT + OWN + loop("", 1 << 17) + WAIT, "native")
    (attempt,) = explained
    # The launch ends when it first checks the time. Without an error, each of the 32 threads would execute
    # 1 << 17 iterations.
    assert attempt.while_limit - attempt.state.while_left < 1 << 17
