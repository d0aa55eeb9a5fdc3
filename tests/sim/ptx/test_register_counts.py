"""Tests of setmaxnreg: the registers of a block at launch, and warp groups that wait for registers."""

import numpy as np
import pytest

from sim import load_ptx, simulate
from sim.isa.register_counts import registers_at_launch

ENGINES = "fibers", "threads", "native"
# The last warp group takes the branch OTHER, and the first ones fall through.
KERNEL = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 p)
DIRECTIVES
{
    .reg .b32 %r<4>; .reg .b64 %x<4>; .reg .pred %q, %p;
    .shared .align 8 .b64 bar;
    ld.param.u64 %x1, [p];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, bar;
    setp.eq.u32 %q, %r1, 0;
    @%q mbarrier.init.shared.b64 [%r2], 1;
    bar.sync 0;
    setp.ge.u32 %q, %r1, 256;
    @%q bra OTHER;
    FIRST
    bra END;
OTHER:
    LAST
END:
    mad.wide.u32 %x2, %r1, 4, %x1;
    st.global.u32 [%x2], %r1;
    ret;
}
"""
BOUNDS = ".maxntid 384\n.minnctapersm 1"
INC, DEC = "setmaxnreg.inc.sync.aligned.u32", "setmaxnreg.dec.sync.aligned.u32"
POLL = "WAIT: mbarrier.try_wait.parity.shared.b64 %p, [%r2], 0; @!%p bra WAIT;"
ARRIVE = "@%q mbarrier.arrive.shared.b64 _, [%r2];"
LAST_THREAD = "setp.eq.u32 %q, %r1, 383;"


def launch(first, last, directives=BOUNDS, engine="fibers"):
    """Return the (kind, severity) of the findings, the report, and whether all threads have stored."""
    text = KERNEL.replace("DIRECTIVES", directives).replace("FIRST", first).replace("LAST", last)
    out = np.zeros(384, np.int32)
    report = simulate(load_ptx(text)["k"], engine=engine, on_finding="report")[1, 384](out)
    return [finding.kind for finding in report.findings], report, np.array_equal(out, np.arange(384))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_request_that_no_release_satisfies_is_a_deadlock(engine):
    found, report, _ = launch(f"{INC} 240;", f"{DEC} 40;", engine=engine)
    (finding,) = report.findings
    assert (
        found == ["deadlock"]
        and "(128 × (240 - 168)), and the pool of the block has 7,168" in finding.verdict
    )
    assert "240 + 240 + 40 is 520" in finding.fix and "3 × 168 = 504" in finding.fix
    assert launch(f"{INC} 232;", f"{DEC} 40;", engine=engine)[::2] == ([], True)


@pytest.mark.parametrize(
    ("first", "last", "directives", "wanted"),
    [
        # the release comes after a wait for the groups that wait for it
        (f"{INC} 232;", f"{LAST_THREAD} bar.sync 1, 384; {DEC} 40;", BOUNDS, ["deadlock"]),
        (f"{INC} 232; {ARRIVE}", f"{POLL} {DEC} 40;", BOUNDS, ["deadlock"]),
        ("", f"{LAST_THREAD} {ARRIVE} {POLL} {DEC} 40; bar.sync 1, 128; {INC} 168;", BOUNDS, []),
        (f"{DEC} 40; bar.sync 1, 256; {INC} 128;", f"{INC} 240;", BOUNDS, []),
        (f"{DEC} 40; bar.sync 1, 256; {INC} 160;", f"{INC} 256;", ".maxnreg 128", ["deadlock"]),
        (f"{INC} 184;", f"{DEC} 24;", ".maxnreg 128", ["deadlock"]),
        (f"{INC} 176;", f"{DEC} 24;", ".maxnreg 128", []),
        (f"{DEC} 240;", f"{INC} 256;", BOUNDS, ["invalid-operand", "deadlock"]),
        (f"{INC} 160;", "", BOUNDS, []),  # ptxas then lets the kernel begin with 160
        (f"{INC} 160;", f"{DEC} 40; bar.sync 1, 128; {INC} 184;", BOUNDS, ["invalid-operand", "deadlock"]),
        (f"setp.lt.u32 %q, %r1, 32; @%q {DEC} 40;", "", BOUNDS, ["warp-divergence"]),
        (f"setp.lt.u32 %q, %r1, 32; @%q {DEC} 40; @!%q {DEC} 48;", "", BOUNDS, ["warp-divergence"]),
    ],
)
def test_registers_of_a_block(first, last, directives, wanted):
    found, report, right = launch(first, last, directives)
    assert sorted(found) == sorted(wanted), report
    assert right or wanted


LANE = "and.b32 %r3, %r1, 31; setp.eq.u32 %q, %r3, 0;"


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("between", "right"),
    [
        ("", False),
        ("bar.warp.sync -1;", False),
        ("bar.sync 1, 128;", True),
        (f"{LANE} {ARRIVE} {POLL}", True),  # one arrival per warp, and every warp waits
        (f"{LANE} {ARRIVE} and.b32 %r3, %r1, 64; setp.eq.u32 %q, %r3, 0; @%q bra ON; {POLL} ON:", False),
    ],
)
def test_the_warps_of_a_warp_group_synchronise_between_two_changes(between, right, engine):
    # the mbarrier expects four arrivals here, one per warp
    text = KERNEL.replace("[%r2], 1", "[%r2], 4").replace("DIRECTIVES", BOUNDS).replace("FIRST", "")
    text = text.replace("LAST", f"{DEC} 40; {between} {INC} 168;")
    out = np.zeros(384, np.int32)
    report = simulate(load_ptx(text)["k"], engine=engine, on_finding="report")[1, 384](out)
    assert [finding.kind for finding in report.findings] == ["misuse"] * (not right), report
    if not right:
        (finding,) = report.findings
        assert "do not synchronise between two setmaxnreg" in finding.verdict
        assert [access.what for access in finding.accesses] == ["executes"] * 2


def test_a_barrier_of_the_block_synchronises_a_warp_group():
    text = KERNEL.replace("DIRECTIVES", BOUNDS).replace("@%q bra OTHER;", "").replace("LAST", "")
    for between, found in (("bar.sync 0;", []), ("", ["misuse"])):
        kernel = load_ptx(text.replace("FIRST", f"{DEC} 40; {between} {INC} 168;"))["k"]
        report = simulate(kernel, on_finding="report")[1, 384](np.zeros(384, np.int32))
        assert [finding.kind for finding in report.findings] == found


@pytest.mark.parametrize("directives", ["", ".maxntid 384", ".reqntid 384"])
def test_without_a_count_at_launch_a_note_says_so(directives):
    found, report, right = launch(f"{INC} 240;", f"{DEC} 40;", directives)
    assert not found and right and "setmaxnreg was not checked" in report.notes[0]


# (threads, blocks per multiprocessor) -> registers per thread that ptxas 13.0 reports (-v); it reports 255
# instead of 256
BY_PTXAS = {
    (128, 2): 256,
    (128, 3): 168,
    (256, 3): 80,
    (384, 1): 168,
    (320, 1): 168,
    (160, 2): 168,
    (640, 1): 96,
    (352, 1): 168,
    (96, 4): 168,
    (1024, 2): 32,
}


def test_the_count_at_launch_is_that_of_ptxas():
    assert {key: registers_at_launch(None, *key) for key in BY_PTXAS} == BY_PTXAS
    assert registers_at_launch(167, 384, None) == 168 and registers_at_launch(None, 384, None) is None
