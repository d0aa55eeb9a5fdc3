"""Tests of loads of local memory that the thread has not written.

A finding is reported only if the value is used.
"""

import numpy as np
import pytest

from ptx.test_language import HEAD
from sim import load_ptx, simulate

ENGINES = ("fibers", "threads", "native")
# Each even thread writes the local variable. %ok says whether it did, and %v is the variable's value.
KERNEL = """
.func (.param .b32 r) twice(.param .b32 a)
{{ .reg .b32 %r<3>; ld.param.b32 %r1, [a]; add.s32 %r2, %r1, %r1; st.param.b32 [r], %r2; ret; }}
.visible .entry k(.param .u64 k_x, .param .u64 k_out)
{{
    .local .align 8 .b8 __local_depot7[16];
    .shared .align 4 .b8 tile[256];
    .reg .pred %p<9>, %ok; .reg .b32 %r<9>, %v, %s; .reg .b64 %d<9>, %w; .reg .f64 %g<3>;
    ld.param.u64 %d1, [k_x]; ld.param.u64 %d2, [k_out];
    mov.u32 %r1, %tid.x; mad.wide.u32 %d2, %r1, 4, %d2; mov.u64 %d3, __local_depot7; cvta.local.u64 %d4, %d3;
    and.b32 %r2, %r1, 1; setp.eq.u32 %ok, %r2, 0; mov.u32 %r3, 0; mov.u32 %s, 5;
    @!%ok bra SKIP;
    st.u32 [%d4], %r1;
SKIP:
    ld.local.u32 %v, [%d3];
    {body}
    st.global.u32 [%d2], %s;
    ret;
}}
"""
RIGHT = {
    "selp": "selp.b32 %s, %v, -1, %ok;",
    "selp of a result": "mad.lo.s32 %v, %v, %v, 1; not.pred %p1, %ok; selp.b32 %s, 7, %v, %p1;",
    "and": "setp.gt.s32 %p1, %v, 3; and.pred %p2, %p1, %ok; selp.b32 %s, 1, 0, %p2;",
    "or": "setp.gt.s32 %p1, %v, 3; not.pred %p2, %ok; or.pred %p3, %p2, %p1; selp.b32 %s, 1, 0, %p3;",
    "mask": "selp.b32 %r4, -1, 0, %ok; and.b32 %s, %v, %r4;",
    "unused": "add.s32 %v, %v, 1;",
    "copy": "st.local.u32 [%d3+8], %v; ld.u32 %r4, [%d4+8]; selp.b32 %s, %r4, -1, %ok;",
    "overwritten copy": "st.local.u32 [%d3+8], %v; st.u32 [%d4+8], 3; ld.local.u32 %s, [%d3+8];",
    "vector": "mov.u32 %r4, 6; st.local.v2.u32 [%d3+8], {%v, %r4}; ld.local.v2.u32 {%r5, %s}, [%d3+8];",
    "branch": "@!%ok bra DONE; mov.u32 %s, %v; DONE:",
    "shuffle": "selp.b32 %r4, %v, 0, %ok; shfl.sync.bfly.b32 %s, %r4, 1, 31, -1;",
    "discarded shuffle": "shfl.sync.bfly.b32 %r4, %v, 1, 31, -1; selp.b32 %s, -1, %r4, %ok;",
    "shuffle from a defined lane": "shfl.sync.bfly.b32 %r4, %v, 2, 31, -1; selp.b32 %s, %r4, -1, %ok;",
    "two shuffles": "shfl.sync.bfly.b32 %r4, %v, 1, 31, -1; shfl.sync.bfly.b32 %r5, %r4, 1, 31, -1;"
    " selp.b32 %s, %r5, -1, %ok;",
    "assigned": "mov.u32 %v, 2; add.s32 %s, %v, 1;",
}
WRONG = {
    "store": "mov.u32 %s, %v;",
    "shared store": "mov.u32 %r4, tile; st.shared.u32 [%r4], %v;",
    "arithmetic": "mad.lo.s32 %s, %v, 3, %r1;",
    "float": "cvt.rn.f64.s32 %g1, %v; add.f64 %g1, %g1, 0d3FF0000000000000; cvt.rzi.s32.f64 %s, %g1;",
    "packed": "mov.b64 %w, {%v, %r1}; mov.b64 {%r4, %s}, %w; add.s32 %s, %s, %r4;",
    "other arm": "selp.b32 %s, -1, %v, %ok;",
    "undefined choice": "setp.gt.s32 %p1, %v, 3; selp.b32 %s, 1, 0, %p1;",
    "and": "setp.gt.s32 %p1, %v, 3; setp.ne.u32 %p2, %r1, 99; and.pred %p3, %p1, %p2; "
    "selp.b32 %s, 1, 0, %p3;",
    "copy": "st.local.u32 [%d3+8], %v; ld.u32 %s, [%d4+8];",
    "branch": "setp.gt.s32 %p1, %v, 3; @%p1 bra DONE; mov.u32 %s, 1; DONE:",
    "predicate": "setp.gt.s32 %p1, %v, 3; @%p1 mov.u32 %s, 1;",
    "address": "and.b32 %v, %v, 3; mad.wide.u32 %w, %v, 4, %d1; ld.global.u32 %s, [%w];",
    "atomic": "atom.global.add.u32 %s, [%d2], %v;",
    "shuffle": "shfl.sync.bfly.b32 %s, %v, 1, 31, -1;",
    "selected shuffle": "shfl.sync.bfly.b32 %r4, %v, 1, 31, -1; selp.b32 %s, %r4, -1, %ok;",
    "sum of shuffles": "shfl.sync.down.b32 %r4, %v, 1, 31, -1; add.s32 %r4, %r4, 1;"
    " shfl.sync.idx.b32 %s, %r4, 0, 31, -1;",
    "shuffle from an undefined lane": "and.b32 %v, %v, 31; shfl.sync.idx.b32 %s, %r1, %v, 31, -1;",
    "loop": "mov.u32 %r4, 0; AGAIN: add.s32 %r4, %r4, %v; add.u32 %r3, %r3, 1;"
    " setp.lt.u32 %p1, %r3, 3; @%p1 bra AGAIN; mov.u32 %s, %r4;",
    "across a barrier": "add.s32 %r4, %v, 1; bar.sync 0; mov.u32 %s, %r4;",
}
CALL = """{ .param .b32 param0; st.param.b32 [param0], %v; .param .b32 retval0;
    call.uni (retval0), twice, (param0); ld.param.b32 %r4, [retval0]; }"""
RIGHT["call"] = f"{CALL} selp.b32 %s, %r4, -1, %ok;"
WRONG["call"] = f"{CALL} mov.u32 %s, %r4;"


def launch(body, engine, blocks=1, observed=True):
    kernel = load_ptx(HEAD + KERNEL.format(body=body))["k"]
    x, out = np.zeros(64, np.int32), np.full(64, -9, np.int32)
    more = {} if observed else {"observers": ()}
    return simulate(kernel, engine=engine, on_finding="report", **more)[blocks, 64](x, out), out


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", RIGHT)
def test_a_discarded_value_is_no_finding(name, engine):
    report, out = launch(RIGHT[name], engine)
    assert report.findings == ()
    assert np.array_equal(out, launch(RIGHT[name], engine, observed=False)[1])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", WRONG)
def test_a_used_value_is_found(name, engine):
    report, _ = launch(WRONG[name], engine)
    (finding,) = (f for f in report.findings if f.kind == "uninitialized-read")
    assert finding.accesses[0].what == "read" and finding.accesses[0].thread == (1, 0, 0)
    assert "a local variable is read" in finding.message
    assert "__local_depot" not in str(report)


def test_the_use_and_the_load_are_named():
    (finding,) = launch("add.s32 %v, %v, 1;\n    mov.u32 %s, %v;", "fibers")[0].findings
    read, use = finding.accesses
    assert read.site.source.startswith("ld.local.u32 %v")
    assert use.what == "uses the value" and use.site.source.startswith("st.global.u32")
    assert finding.count == 31


def test_compiled_code_passes_origins_on():
    """Run a launch that is too large to interpret completely, and for which no block needs an explanation."""
    body = "bar.sync 0; st.local.u32 [%d3+8], %v; ld.u32 %r4, [%d4+8]; selp.b32 %s, %r4, -1, %ok;"
    report, _ = launch(body, "native", blocks=129 * 2)
    kinds = {f.kind for f in report.findings}
    assert "uninitialized-read" not in kinds
    found, _ = launch(body.replace("%r4, -1", "-1, %r4"), "native", blocks=129 * 2)
    assert "uninitialized-read" in {f.kind for f in found.findings}


# --- shuffles that read from lanes that do not participate --------------------------------------------------

ABSENT = """
.visible .entry k(.param .u64 k_x, .param .u64 k_out)
{{ .reg .pred %p; .reg .b32 %r<6>; .reg .b64 %d<5>;
   ld.param.u64 %d1, [k_x]; ld.param.u64 %d2, [k_out]; mov.u32 %r1, %tid.x;
   mad.wide.u32 %d3, %r1, 4, %d1; mad.wide.u32 %d4, %r1, 4, %d2; ld.global.u32 %r2, [%d3];
   and.b32 %r3, %r1, 1; setp.eq.u32 %p, %r3, 0; @%p bra END; setp.gt.u32 %p, %r2, 0;
   {body}
   st.global.u32 [%d4], %r4;
END: {end} ret; }}
"""


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "distance, after, expected",
    [
        (2, "", []),  # the lane reads from a lane that participates
        (1, "", [("warp-divergence", "error")]),
        (1, "mov.u32 %r4, 7;", []),  # the value is not used
    ],
)
def test_a_shuffle_in_a_branch(engine, distance, after, expected):
    """Let the even lanes return without taking part in the full-mask shuffle."""
    shuffle = f"shfl.sync.bfly.b32 %r4, %r2, {distance}, 31, -1; {after}"
    kernel = load_ptx(HEAD + ABSENT.format(body=shuffle, end=""))["k"]
    x, out = np.arange(32, dtype=np.int32), np.zeros(32, np.int32)
    report = simulate(kernel, engine=engine, on_finding="report")[1, 32](x, out)
    assert [(finding.kind, finding.severity) for finding in report.findings] == expected


SELECT = "selp.b32 %r4, 1, 0, %p;"
# warp operation -> its result if only the odd lanes take part; the value of a lane is its index
WITHOUT_SOURCE = {
    "match.any.sync.b32 %r4, 9, -1;": 0xAAAAAAAA,
    "match.all.sync.b32 %r4, 9, -1;": 0xAAAAAAAA,
    "vote.sync.ballot.b32 %r4, %p, -1;": 0xAAAAAAAA,
    f"vote.sync.all.pred %p, %p, -1; {SELECT}": 1,
    "redux.sync.add.u32 %r4, %r2, -1;": 256,
}


@pytest.mark.parametrize("engine", ENGINES)
def test_other_operations_do_not_depend_on_lanes_that_have_returned(engine):
    """Let the even lanes return. PTX waits only for lanes that have not exited: the results are defined."""
    stores = (
        f"{operation} st.global.u32 [%d4+{128 * i}], %r4; setp.gt.u32 %p, %r2, 0;"
        for i, operation in enumerate(WITHOUT_SOURCE, 1)
    )
    kernel = load_ptx(HEAD + ABSENT.format(body="mov.u32 %r4, 0;" + "".join(stores), end=""))["k"]
    x, out = np.arange(32, dtype=np.int32), np.zeros((len(WITHOUT_SOURCE) + 1, 32), np.uint32)
    assert not simulate(kernel, engine=engine)[1, 32](x, out).findings
    assert [set(row) for row in out[1:, 1::2].tolist()] == [{wanted} for wanted in WITHOUT_SOURCE.values()]


@pytest.mark.parametrize("operation", WITHOUT_SOURCE)
def test_an_operation_waits_for_lanes_that_have_not_returned(operation):
    """Let the even lanes wait at a syncwarp instead."""
    kernel = load_ptx(HEAD + ABSENT.format(body=operation, end="bar.warp.sync -1;"))["k"]
    x, out = np.arange(32, dtype=np.int32), np.zeros(32, np.int32)
    report = simulate(kernel, on_finding="report")[1, 32](x, out)
    assert [finding.kind for finding in report.errors] == ["warp-divergence"]


def test_access_far_from_the_local_variables_is_described_in_bytes():
    text = HEAD + KERNEL.format(body="st.local.u32 [%d3+-480], %r1;")
    report = simulate(load_ptx(text)["k"], on_finding="report")[1, 2](
        np.zeros(2, np.int32), np.zeros(2, np.int32)
    )
    (finding,) = (f for f in report.findings if f.kind == "out-of-bounds")
    assert "an address 480 bytes before the start of the function's local variables" in finding.message
    assert "16 bytes together" in finding.message


FRESH_SHARED = """.visible .entry k(.param .u64 k_out)
{
    .shared .align 4 .b8 tile[128];
    .reg .pred %p; .reg .b32 %r<5>; .reg .b64 %d<3>;
    ld.param.u64 %d1, [k_out]; mov.u32 %r1, %tid.x; mad.wide.u32 %d1, %r1, 4, %d1;
    ld.shared.u32 %r2, [tile]; add.u32 %r3, %r1, %r2;
    STEP
    st.global.u32 [%d1], %r4; ret;
}
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_a_value_of_unwritten_shared_memory_that_selp_discards(engine):
    found = {}
    for step in ("setp.gt.u32 %p, %r1, 99; selp.b32 %r4, %r3, %r1, %p;", "and.b32 %r4, %r3, 0;"):
        kernel, out = load_ptx(HEAD + FRESH_SHARED.replace("STEP", step))["k"], np.zeros(4, np.int32)
        report = simulate(kernel, engine=engine, on_finding="report")[1, 4](out)
        found[step[:4]] = [(f.kind, f.severity) for f in report.findings]
    assert found == {"setp": [], "and.": [("uninitialized-read", "warning")]}
    step = "setp.gt.u32 %p, %r1, 2; selp.b32 %r4, %r3, %r1, %p;"
    kernel = load_ptx(HEAD + FRESH_SHARED.replace("STEP", step))["k"]
    report = simulate(kernel, engine=engine, on_finding="report")[1, 4](out)
    assert [(f.kind, f.severity) for f in report.findings] == [("uninitialized-read", "error")]


def test_a_parameter_is_loaded_through_a_register():
    # Kernels of CUTLASS that also call functions load a parameter in this way.
    text = """.version 8.0
.target sm_80
.address_size 64
.func set(.param .b64 p) { .reg .u64 %a; ld.param.u64 %a, [p]; st.u32 [%a], 7; ret; }
.visible .entry k(.param .u64 x) {
    .local .b32 kept[1]; .reg .u64 %d<6>; .reg .u32 %r<4>;
    mov.b64 %d1, x;
    ld.param.u64 %d2, [%d1];
    mov.u64 %d3, kept;
    cvta.local.u64 %d4, %d3;
    { .param .b64 p0; st.param.b64 [p0], %d4; call.uni set, (p0); }
    ld.local.u32 %r1, [%d3];
    st.global.u32 [%d2], %r1;
    ret;
}"""
    x = np.zeros(1, np.int32)
    simulate(load_ptx(text)["k"], engine="fibers")[1, 1](x)
    assert x[0] == 7
