"""Tests of named barriers and mbarriers in PTX.

They cover the order that barriers establish, planted bugs with fixed twins, and rejected uses.
"""

import re

import numpy as np
import pytest

from ptx.test_cuda_cpp import module
from sim import LaunchError, error_limit, load_ptx, simulate
from sim.events import Observer

HEAD = """.version 8.0\n.target sm_80\n.address_size 64
.visible .entry k(.param .u64 x, .param .u64 y)
{
    .shared .align 8 .b8 tile[256]; .shared .align 8 .b64 bar[2];
    .reg .pred %p<4>; .reg .b32 %r<12>; .reg .b64 %x<8>, %s<4>;
    ld.param.u64 %x1, [x]; ld.param.u64 %x2, [y]; mov.u32 %r1, %tid.x; mov.u32 %r2, tile; mov.u32 %r9, bar;
    shl.b32 %r3, %r1, 2; add.u32 %r4, %r2, %r3; xor.b32 %r5, %r4, 128; mad.wide.u32 %x3, %r1, 4, %x2;
    setp.lt.u32 %p1, %r1, 32; setp.eq.u32 %p2, %r1, 0; shr.u32 %r6, %r1, 5; add.u32 %r7, %r6, 1;
"""


def run(body, seed=0, **more):
    """Return (kinds of errors, y) for a block of 64 threads."""
    report, y = report_of(body, seed, **more)
    return sorted({finding.kind for finding in report.errors}), y


def report_of(body, seed=0, **more):
    """Return (report, y) for a block of 64 threads."""
    x, y = np.zeros(64, np.int32), np.full(64, -1, np.int32)
    kernel = load_ptx(f"{HEAD}{body}\n    ret;\n}}")["k"]
    return simulate(kernel, on_finding="report", seed=seed, **more)[1, 64](x, y), y


PUT, GET = "st.shared.u32 [%r4], %r1;", "ld.shared.u32 %r8, [%r5]; st.global.u32 [%x3], %r8;"
MEET, COME = "bar.sync 0;", "bar.arrive 1, 64;"
# The first warp produces, and the second warp consumes.
MAKES, TAKES = "@!%p1 bra TAKE;", "bra END; TAKE:"
INIT = "@%p2 mbarrier.init.shared.b64 [%r9], 64;"
ARRIVE = "mbarrier.arrive.shared.b64 %s1, [%r9];"
WAIT = "WAIT: mbarrier.test_wait.shared.b64 %p3, [%r9], %s1; @!%p3 bra WAIT;"
PARITY = "PARITY{0}: mbarrier.test_wait.parity.shared.b64 %p3, [%r9], {0}; @!%p3 bra PARITY{0};"
TRY = "WAIT: mbarrier.try_wait.shared::cta.b64 %p3, [%r9], %s1, 9; @!%p3 bra WAIT;"
COMPLETE = "mbarrier.arrive.noComplete.shared.b64 %s1, [%r9], 1;"
TOO_MANY = INIT.replace("64;", "65;") + MEET + PUT + ARRIVE
MATCH = "match.any.sync.b32 %r11, 5, 0xffffffff;"
INVALIDATE = "@%p2 mbarrier.inval.shared.b64 [%r9]; END:"
REUSE = "@%p2 st.shared.u32 [%r9], 1; END:"
NEAR = "xor.b32 %r5, %r4, 4;" + GET
# name -> (kernel, finding, fixed twin)
PLANTED = {
    "taken before it is made": (
        MAKES + PUT + COME + TAKES + GET + "bar.sync 1, 64; END:",
        "race-shared",
        MAKES + PUT + COME + TAKES + "bar.sync 1, 64;" + GET + "END:",
    ),
    "arrives before it makes": (
        MAKES + COME + PUT + TAKES + "bar.sync 1, 64;" + GET + "END:",
        "race-shared",
        MAKES + PUT + "barrier.cta.arrive 1, 64;" + TAKES + "barrier.cta.sync 1, 64;" + GET + "END:",
    ),
    "who makes waits, who takes does not": (
        MAKES + PUT + "bar.sync 1, 64;" + TAKES + COME + GET + "END:",
        "race-shared",
        MAKES + PUT + "bar.sync 1, 64;" + TAKES + "bar.sync 1, 64;" + GET + "END:",
    ),
    "each warp for itself": (
        PUT + "bar.sync %r7, 32;" + GET,
        "race-shared",
        PUT + "bar.sync %r7, 32; xor.b32 %r5, %r4, 64;" + GET,
    ),
    "two numbers": (
        MAKES + PUT + COME + TAKES + "bar.sync 2, 64;" + GET + "END:",
        "barrier-divergence",
        MAKES + PUT + "bar.arrive 2, 64;" + TAKES + "bar.sync 2, 64;" + GET + "END:",
    ),
    "too few come": (
        PUT + "@%p1 bra END; bar.sync 1, 64; END:",
        "barrier-divergence",
        PUT + "@%p1 bra END; bar.sync 1, 32; END:",
    ),
    "read before the phase is over": (
        INIT + MEET + PUT + ARRIVE + GET + WAIT,
        "race-shared",
        INIT + MEET + PUT + ARRIVE + WAIT + GET,
    ),
    "asked, and the answer not heeded": (
        INIT + MEET + PUT + ARRIVE + "mbarrier.test_wait.shared.b64 %p3, [%r9], %s1;" + GET,
        "race-shared",
        INIT + MEET + PUT + ARRIVE + TRY + GET,
    ),
    "arrives before it writes": (
        INIT + MEET + ARRIVE + PUT + WAIT + GET,
        "race-shared",
        INIT + MEET + PUT + ARRIVE + WAIT + GET,
    ),
    "the tile written again": (
        INIT + MEET + PUT + ARRIVE + WAIT + GET + PUT,
        "race-shared",
        INIT + MEET + PUT + ARRIVE + WAIT + GET + ARRIVE + PARITY.format(1) + PUT,
    ),
    "the parity of the phase before": (
        INIT + MEET + PUT + ARRIVE + PARITY.format(1) + GET,
        "deadlock",
        INIT + MEET + PUT + ARRIVE + PARITY.format(0) + GET,
    ),
    "no barrier behind the initialisation": (
        INIT + PUT + ARRIVE + "bar.sync 0;" + GET,
        "race-shared",
        INIT + MEET + PUT + ARRIVE + WAIT + GET,
    ),
    "not initialised": (ARRIVE, "uninitialized-read", INIT + MEET + ARRIVE),
    "initialised for one too many": (
        TOO_MANY + WAIT + GET,
        "deadlock",
        TOO_MANY + "@%p2 mbarrier.arrive.shared.b64 %s2, [%r9];" + WAIT + GET,
    ),
    "invalidated while lanes of its warp arrive": (
        INIT + MEET + "@!%p1 bra END;" + ARRIVE + INVALIDATE,
        "race-shared",
        INIT + MEET + "@!%p1 bra END;" + ARRIVE + MATCH + INVALIDATE,
    ),
    "data taken after an exchange of values": (
        INIT + MEET + "@!%p1 bra END;" + PUT + ARRIVE + MATCH + NEAR + INVALIDATE,
        "race-shared",
        INIT + MEET + "@!%p1 bra END;" + PUT + ARRIVE + "bar.warp.sync -1;" + NEAR + MATCH + INVALIDATE,
    ),
    "used as data after an elected lane has invalidated it": (
        INIT + MEET + "@!%p1 bra END;" + ARRIVE + MATCH + INVALIDATE.replace("END:", REUSE),
        "race-shared",
        INIT + MEET + "@!%p1 bra END;" + ARRIVE + "bar.warp.sync -1;" + INVALIDATE.replace("END:", REUSE),
    ),
    "in the middle of a word": (
        INIT.replace("[%r9]", "[%r9+4]"),
        "misaligned-address",
        INIT.replace("[%r9]", "[%r9+8]"),
    ),
    "beyond shared memory": (INIT.replace("[%r9]", "[%r9+16]"), "out-of-bounds", INIT),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_planted_bugs_are_found_and_their_twins_are_clean(name):
    bug, kind, twin = PLANTED[name]
    for seed in range(3):
        assert kind in run(bug, seed, max_steps=2000)[0]
        found, y = run(twin, seed)
        assert found == [] and (GET not in twin or set(y.tolist()) <= {-1, *range(64)})


def test_an_unordered_invalidation_of_memory_that_was_read_before():
    read = "bar.warp.sync -1; @%p2 ld.shared.u32 %r8, [%r9]; @%p2 st.global.u32 [%x3], %r8; @%p1 bra END;"
    other = "setp.eq.u32 %p3, %r1, 40; @%p3 mbarrier.inval.shared.b64 [%r9]; END:"
    assert all(run(read + other, seed)[0] == ["race-shared"] for seed in range(3))


def test_values_come_through_both():
    for text in (INIT + MEET + PUT + ARRIVE + WAIT + GET, PUT + "bar.sync 3, 64;" + GET):
        assert run(text)[1].tolist() == [i ^ 32 for i in range(64)]


def test_an_arrival_tells_how_many_were_pending():
    count = "mbarrier.pending_count.b64 %r8, %s1; st.global.u32 [%x3], %r8;"
    assert sorted(run(INIT + MEET + ARRIVE + count)[1].tolist()) == list(range(1, 65))


def test_a_thread_that_drops_out_is_not_waited_for_again():
    drop = "@%p1 bra DROP;" + ARRIVE + WAIT + ARRIVE + PARITY.format(1) + "bra END;"
    assert run(INIT + MEET + drop + "DROP: mbarrier.arrive_drop.shared.b64 %s1, [%r9]; END:")[0] == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (INIT.replace("64;", "0;"), "an mbarrier counts 1 to 1048575 arrivals, got 0"),
        (INIT.replace("64;", "1;") + MEET + COMPLETE, "must not complete a phase"),
        (INIT + MEET + ARRIVE.replace("];", "], 65;"), "65 arrivals at an mbarrier that waits for only 64"),
        ("bar.sync 1, 40;", "the number of threads of barrier 1 must be a multiple of 32, got 40"),
        ("bar.sync 16, 64;", "the number of a barrier is 0 to 15, got 16"),
        (MAKES + "bar.sync 1, 64;" + TAKES + "bar.sync 1, 32; END:", "but another thread's call passes"),
    ],
)  # fmt: skip
def test_numbers_that_do_not_fit_end_the_launch(body, message):
    (finding,) = report_of(body)[0].errors
    assert finding.kind == "invalid-operand" and message in finding.verdict


@pytest.mark.parametrize(
    "body",
    [
        "mbarrier.init.shared.b64 [%r9];",
        "mbarrier.init.shared.b64 %r9, 4;",
        "mbarrier.init.shared.b32 [%r9], 4;",
        "mbarrier.test_wait.shared.b64 %p3, [%r9];",
        "mbarrier.test_wait.shared.b64 %p3;",
        "mbarrier.pending_count.b64 %r8;",
        "mbarrier;",
        "bar.arrive 1;",
        "bar.sync;",
        "bar.sync 1, 64, 3;",
        "bar.red.popc.u32 %r8, 1, 32, %p1;",
    ],
)
def test_what_is_not_there_is_refused_by_name_and_line(body):
    with pytest.raises(LaunchError, match=re.escape(f"PTX line 13: {body.split()[0].rstrip(';')}")):
        run(f"\n\n{body}")


def test_contenders_for_a_lock_do_not_ask_in_vain_for_ever():
    """Let 40 blocks compete for a lock. Without deprioritisation, the blocks would make 1,600 attempts."""
    asked = []

    class Atomics(Observer):
        def atomic_done(self, at, address, wrote, reach):
            asked.append(wrote)

    counter = np.zeros(1, np.int32)
    simulate(module("lock")[1]["mended"], observers=[Atomics])[40, 1](np.zeros(1, np.int32), counter)
    assert counter[0] == 40 and len(asked) < 400


@pytest.mark.parametrize("engine", ["fibers", "native"])
@pytest.mark.parametrize(("alignment", "found"), [(8, ["warning"]), (16, [])])
def test_a_vector_in_memory_that_is_not_declared_aligned_is_a_warning(alignment, found, engine):
    if engine == "native":
        pytest.importorskip("numba")
    body = ".shared .align 4 .b8 ends[12]; mov.u32 %r10, ends;"
    body += f".shared .align {alignment} .b8 row[64]; mov.u32 %r10, row;"
    body += "@%p2 st.shared.v4.u32 [%r10], {%r1, %r1, %r1, %r1}; st.global.u32 [%x3], %r1;"
    x = np.zeros(64, np.int32)
    kernel = load_ptx(f"{HEAD}{body}\n    ret;\n}}")["k"]
    report = simulate(kernel, engine=engine)[1, 64](x, x.copy())
    assert [f.severity for f in report.findings] == found
    assert all("declare row with alignas(16)" in f.message for f in report.findings)


@pytest.mark.parametrize(
    ("release", "acquire", "found"), [("gpu", "sys", 0), ("gpu", "cta", 2), ("cta", "gpu", 2)]
)
def test_a_message_between_blocks_needs_a_scope_that_holds_both(release, acquire, found):
    """Use a scope of one block: the flag and the message must race."""
    text = f"""
    .version 8.0
    .target sm_80
    .address_size 64
    .visible .entry tell(.param .u64 flag, .param .u64 message) {{
        .reg .pred %p; .reg .b32 %r<4>; .reg .b64 %d<2>;
        ld.param.u64 %d0, [flag]; ld.param.u64 %d1, [message]; mov.u32 %r1, %ctaid.x;
        setp.eq.u32 %p, %r1, 0; @%p bra TELL;
        WAIT: ld.acquire.{acquire}.global.u32 %r2, [%d0]; setp.eq.u32 %p, %r2, 0; @%p bra WAIT;
        ld.global.u32 %r3, [%d1]; st.global.u32 [%d1+4], %r3; ret;
        TELL: st.global.u32 [%d1], 7; st.release.{release}.global.u32 [%d0], 1; ret;
    }}"""
    flag, message = np.zeros(1, np.int32), np.zeros(2, np.int32)
    report = simulate(load_ptx(text)["tell"], on_finding="report")[2, 1](flag, message)
    assert {f.kind for f in report.findings} <= {"race-global"}
    assert len({f.array for f in report.findings}) == found
    assert message[1] == 7


# The two halves of the block reach barrier 0 at different instructions.
HALVES = "@%p1 bra LOW;\nbar.sync 0; bra BOTH;\nLOW: bar.sync 0; BOTH:"


def findings(body, engine="fibers", seed=0, grid=1):
    """Return ([(kind, severity)], y, report) for blocks of 64 threads that all write the same values."""
    x, y = np.zeros(64, np.int32), np.full(64, -1, np.int32)
    kernel = load_ptx(f"{HEAD}{body}\n    ret;\n}}")["k"]
    report = simulate(kernel, on_finding="report", seed=seed, engine=engine)[grid, 64](x, y)
    return sorted((finding.kind, finding.severity) for finding in report.findings), y, report


@pytest.mark.parametrize("engine", ["fibers", "threads", "native"])
@pytest.mark.parametrize(
    "barriers",
    [
        HALVES,
        HALVES.replace("bar.sync 0; bra", "barrier.sync 0; bra"),
        HALVES.replace("bar.sync 0", "bar.red.popc.u32 %r10, 0, %p2"),
        "mov.u32 %r10, 0; " + HALVES.replace("LOW: bar.sync 0;", "LOW: bar.sync %r10;"),
        HALVES.replace("LOW: bar.sync 0;", "LOW: bar.sync 0, 64;"),
        "@%p1 bra LOW; bar.sync 0; bar.sync 0; bra BOTH; LOW: bar.sync 0; mov.u32 %r10, 0; bar.sync 0; BOTH:",
    ],
)
def test_a_barrier_counts_arrivals_from_anywhere(barriers, engine):
    for seed in range(3):
        found, y, _ = findings(PUT + barriers + GET, engine, seed)
        assert y.tolist() == [i ^ 32 for i in range(64)]
        assert set(found) <= {("barrier-divergence", "warning")}
        assert found or "%r10;" in barriers or ", 64;" in barriers


# The even and the odd lanes of each warp reach a barrier at different instructions.
LANES = "and.b32 %r10, %r1, 1; setp.eq.u32 %p1, %r10, 0;" + HALVES


@pytest.mark.parametrize("engine", ["fibers", "threads", "native"])
@pytest.mark.parametrize(
    ("barriers", "severity"),
    [
        (LANES, "error"),
        (LANES.replace("bar.sync 0", "barrier.sync.aligned 0"), "error"),
        (LANES.replace("bar.sync 0", "barrier.cta.sync.aligned 0"), "error"),
        (LANES.replace("LOW: bar.sync 0", "LOW: barrier.sync 0"), "error"),
        (LANES.replace("bar.sync 0", "bar.red.popc.u32 %r10, 0, %p2"), "error"),
        (LANES.replace("bar.sync 0", "bar.sync 1, 64"), "error"),
        ("mov.u32 %r11, 2; " + LANES.replace("bar.sync 0", "bar.sync %r11"), "error"),
        (LANES.replace("LOW: bar.sync 0", "LOW: bar.sync 0, 64"), "error"),
        (LANES.replace("bar.sync 0", "barrier.sync 0"), "warning"),
        (LANES.replace("bar.sync 0", "barrier.sync 1, 64"), None),
        (HALVES.replace("bar.sync 0", "bar.sync 1, 64"), None),
        # the second warp arrives without waiting, and then waits for both warps
        ("@%p1 bra LOW; bar.arrive 1, 64; LOW: bar.sync 1, 64; @%p1 bra END; bar.sync 1, 32; END:", None),
    ],
)
def test_lanes_of_a_warp_must_reach_an_aligned_barrier_together(barriers, severity, engine):
    found, y, _ = findings(PUT + barriers + GET * (severity is not None), engine)
    assert {of for kind, of in found if kind == "barrier-divergence"} == ({severity} if severity else set())
    assert severity is None or y.tolist() == [i ^ 32 for i in range(64)]


CALLS = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 y)
{{
    .reg .pred %p; .reg .b32 %r; .reg .b64 %y, %i;
    ld.param.u64 %y, [y]; mov.u32 %r, %tid.x; mul.wide.u32 %i, %r, 4; add.s64 %y, %y, %i;
    and.b32 %r, %r, 1; setp.eq.u32 %p, %r, 0; @%p bra LOW;
    .loc 1 {0}
    bar.sync 0;
    bra BOTH;
LOW:
    .loc 1 {1}
    bar.sync 0;
BOTH:
    st.global.u32 [%y], %r;
    ret;
}}
.file 1 "{2}"
"""
INLINED = "2 5, function_name $inlined, inlined_at 1 {} 7\n"


@pytest.mark.parametrize(
    ("first", "second", "source", "severity"),
    [
        ("4 5", "4 5", "", "warning"),  # two copies of one call
        ("4 5", "6 5", "", "error"),
        ("4 5", "4 9", "", "error"),
        (INLINED.format(4), INLINED.format(4), "", "warning"),
        (INLINED.format(4), INLINED.format(6), "", "error"),
        ("1 5", "1 5", "if (i & 1) __syncthreads(); else __syncthreads();", "error"),
        ("1 5", "1 5", "__syncthreads();", "warning"),
    ],
)
def test_copies_of_one_call_are_one_barrier(first, second, source, severity, tmp_path):
    path = tmp_path / "kernel.cu"
    path.write_text(source, encoding="utf-8")
    kernel = load_ptx(CALLS.format(first, second, path))["k"]
    for engine in ("fibers", "native"):
        x, y = np.zeros((2, 64), np.int32)
        report = simulate(kernel, on_finding="report", engine=engine)[1, 64](x, y)
        assert [(f.kind, f.severity) for f in report.findings] == [("barrier-divergence", severity)]


def test_the_error_names_lanes_of_one_warp():
    (finding,) = findings(PUT + LANES + GET)[2].findings
    assert "lanes of warp 0 reach barrier 0 at several lines or calls" in finding.message
    assert [access.thread for access in finding.accesses] == [(0, 0, 0), (1, 0, 0)]


def test_a_barrier_by_the_number_of_some_and_of_all_orders_both(monkeypatch):
    """Use bar.arrive with a thread count in one half of the block, and bar.sync for the whole block in the
    other. Threads that have arrived and returned are no error, which would end the launch at once."""
    monkeypatch.setattr(error_limit, "SECONDS_AFTER_ERROR", -1)
    body = MAKES + PUT + "bar.arrive 0, 64;" + TAKES + "bar.sync 0;" + GET + "END:"
    found, y, _ = findings(body)
    assert found == [] and y[32:].tolist() == list(range(32))


def test_the_finding_names_both_places():
    (finding,) = findings(PUT + HALVES + GET)[2].findings
    assert "the threads of the block reach barrier 0 at several lines or calls" in finding.message
    assert [access.thread for access in finding.accesses] == [(0, 0, 0), (32, 0, 0)]


def test_races_are_judged_as_with_one_barrier():
    """Access memory before and after a barrier, which orders only accesses on different sides."""
    found, _, _ = findings(PUT + HALVES + GET + PUT)
    assert found == [("barrier-divergence", "warning"), ("race-shared", "error")]
    found, _, _ = findings(PUT + HALVES + GET + HALVES.replace("LOW", "DOWN").replace("BOTH", "AGAIN") + PUT)
    assert set(found) == {("barrier-divergence", "warning")}


@pytest.mark.parametrize(
    "body",
    [
        "@%p1 bra LOW; bar.sync 1; bra BOTH; LOW: bar.sync 2; BOTH:",  # different numbers
        "@%p1 bra LOW; bar.sync 0; bra BOTH; LOW: bar.sync 0; bar.sync 0; BOTH:",  # different counts
        "@%p1 bra LOW; bar.sync 0; bra BOTH; LOW: bar.red.or.pred %p3, 0, %p2; BOTH:",  # different kinds
    ],
)
def test_barriers_that_are_not_one_still_wait(body):
    for engine in ("fibers", "native"):
        assert ("barrier-divergence", "error") in findings(body, engine)[0]


def test_of_a_large_launch_the_values_are_right_too():
    pytest.importorskip("numba")
    body = PUT + HALVES + "ld.shared.u32 %r8, [%r5]; add.u32 %r8, %r8, 1; red.global.add.u32 [%x3], %r8;"
    found, y, report = findings(body, "native", grid=200)
    assert found == [("barrier-divergence", "warning")] and report.notes[0].startswith("compiled; ")
    assert y.tolist() == [200 * ((i ^ 32) + 1) - 1 for i in range(64)]


PUT_AND_GET = PUT + "{}" + GET


@pytest.mark.parametrize(
    ("body", "words"),
    [
        # the second warp returns before a barrier of the whole block, which has a number
        (PUT + "@!%p1 bra END; bar.sync 3;" + GET + "END:", ["32 of 64 threads wait at bar.sync 3"]),
        (MAKES + "bar.sync 1;" + TAKES + "bar.sync 2; END:", ["bar.sync 1 and bar.sync 2"]),
        (PUT + "@!%p1 bra END; bar.sync 1, 64;" + GET + "END:", ["bar.sync 1, 32 for the threads"]),
        # the first warp needs another barrier of its own
        ("@!%p1 bra END; bar.sync 1, 32;\n" + PUT + "\n" + NEAR + "END:", ["bar.sync 1, 32 between the two"]),
    ],
)  # fmt: skip
def test_messages_name_a_named_barrier_by_its_number_and_count(body, words):
    report, _ = report_of(body)
    message = str(report.errors[0].message) if report.errors else ""
    assert all(word in message for word in words), message
    assert "syncthreads" not in message


# Block 0 writes data, and thread 0 sets the flag after a named barrier. Block 1 waits for the flag.
PUBLISH = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 a_data, .param .u64 a_flag, .param .u64 a_out)
{{ .reg .b32 %r<5>; .reg .b64 %d<8>; .reg .pred %p, %q;
   ld.param.u64 %d1, [a_data]; ld.param.u64 %d2, [a_flag]; ld.param.u64 %d3, [a_out];
   mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x;
   mad.wide.u32 %d4, %r1, 4, %d1; mad.wide.u32 %d5, %r1, 4, %d3;
   setp.ne.u32 %p, %r2, 0; setp.eq.u32 %q, %r1, 0;
   @%p bra WAIT;
   st.global.u32 [%d4], %r1;
   {fence}
   bar.sync 1, 32;
   @%q atom.global.exch.b32 %r3, [%d2], 1;
   ret;
WAIT:
   atom.global.add.u32 %r3, [%d2], 0;
   setp.eq.u32 %p, %r3, 0;
   @%p bra WAIT;
   membar.gl;
   ld.global.u32 %r4, [%d4]; st.global.u32 [%d5], %r4;
   ret; }}
"""


@pytest.mark.parametrize(("fence", "races"), [("membar.gl;", False), ("", True)])
def test_a_named_barrier_hands_on_the_fences_before_it(fence, races):
    kernel = load_ptx(PUBLISH.format(fence=fence))["k"]
    given = np.zeros(32, np.int32), np.zeros(1, np.int32), np.zeros(32, np.int32)
    report = simulate(kernel, on_finding="report")[2, 32](*given)
    assert {finding.kind for finding in report.findings} == ({"race-global"} if races else set())
