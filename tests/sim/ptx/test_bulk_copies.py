"""Tests of bulk copies, transaction barriers and proxy fences in PTX: planted bugs with fixed twins."""

import numpy as np
import pytest

from sim import load_ptx, simulate
from sim.observers import DEFAULT
from sim.observers.pipeline import Pipeline
from sim.viz.pipeline import pipeline

HEAD = """.version 8.6\n.target sm_90a\n.address_size 64
.visible .entry k(.param .u64 x, .param .u64 y)
{
    .shared .align 128 .b8 tile[256]; .shared .align 8 .b64 bar[2];
    .reg .pred %p<4>; .reg .b32 %r<12>; .reg .b64 %x<8>, %s<4>;
    ld.param.u64 %x1, [x]; ld.param.u64 %x2, [y]; mov.u32 %r1, %tid.x; mov.u32 %r2, tile; mov.u32 %r9, bar;
    shl.b32 %r3, %r1, 2; add.u32 %r4, %r2, %r3; xor.b32 %r5, %r4, 128; mad.wide.u32 %x3, %r1, 4, %x2;
    setp.eq.u32 %p2, %r1, 0;
"""
MEET = "bar.sync 0;"
INIT = "@%p2 mbarrier.init.shared.b64 [%r9], 1; @%p2 fence.mbarrier_init.release.cluster;" + MEET
EXPECT = "@%p2 mbarrier.arrive.expect_tx.shared::cta.b64 %s1, [%r9], {};"
LOAD = "@%p2 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%x1], {}, [%r9];"
WAIT = "WAIT{0}: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r9], {0}; @!%p3 bra WAIT{0};"
LOADED = INIT + EXPECT.format(256) + LOAD.format(256)
GET = "ld.shared.u32 %r8, [%r5]; st.global.u32 [%x3], %r8;"
PUT = "add.u32 %r7, %r1, 7; st.shared.u32 [%r4], %r7;"
FENCE = "fence.proxy.async.shared::cta;"
STORE = "@%p2 cp.async.bulk.global.shared::cta.bulk_group [%x2], [tile], 256;"
COMMIT, READ = "@%p2 cp.async.bulk.commit_group;", "@%p2 cp.async.bulk.wait_group.read 0;"
DONE = "@%p2 cp.async.bulk.wait_group 0;"
STORED = PUT + FENCE + MEET + STORE + COMMIT
TWICE = (
    EXPECT.format(128) + LOAD.format(128) + LOAD.format(128).replace("[tile], [%x1]", "[tile+128], [%x1+128]")
)
CLEAR = "st.global.u32 [%x3], 0;"
GENERIC = "add.u32 %r7, %r1, 7; st.global.u32 [%x3], %r7;"
# name -> (kernel, findings, fixed twin)
PLANTED = {
    "read before the phase is complete": (LOADED + MEET + GET, ["async-copy"], LOADED + WAIT.format(0) + GET),
    "no order at all": (LOADED + GET, ["async-copy"], LOADED + WAIT.format(0) + GET),
    "the parity of the phase before": (
        LOADED + WAIT.format(1) + MEET + GET,
        ["async-copy"],
        LOADED + WAIT.format(0) + MEET + GET,
    ),
    "one thread waits, and the others do not meet it": (
        LOADED + "@!%p2 bra OVER;" + WAIT.format(0) + "OVER:" + GET,
        ["async-copy"],
        LOADED + "@!%p2 bra OVER;" + WAIT.format(0) + "OVER:" + MEET + GET,
    ),
    "expects too many bytes": (
        INIT + EXPECT.format(512) + LOAD.format(256) + WAIT.format(0) + GET,
        ["deadlock"],
        LOADED + WAIT.format(0) + GET,
    ),
    "expects too few bytes": (
        INIT + TWICE + WAIT.format(0) + GET,
        ["async-copy"],
        INIT + TWICE.replace("], 128;", "], 256;", 1) + WAIT.format(0) + GET,
    ),
    "the tile is overwritten by threads before the copy": (
        PUT + LOADED + WAIT.format(0) + GET,
        ["proxy-fence"],
        PUT + FENCE + LOADED + WAIT.format(0) + GET,
    ),
    "no proxy fence before a store": (PUT + MEET + STORE + COMMIT + READ, ["proxy-fence"], STORED + READ),
    "the proxy fence is for global memory": (
        STORED.replace(FENCE, "fence.proxy.async.global;") + READ,
        ["proxy-fence"],
        STORED.replace(FENCE, "fence.proxy.async;") + READ,
    ),
    "only the thread that sends has fenced, before it meets the others": (
        PUT + "@%p2 " + FENCE + MEET + STORE + COMMIT + READ,
        ["proxy-fence"],
        PUT + MEET + "@%p2 " + FENCE + STORE + COMMIT + READ,
    ),
    "the tile is overwritten before the store has read it": (
        STORED + MEET + PUT + READ,
        ["async-copy"],
        STORED + READ + MEET + PUT,
    ),
    "the store is never waited for": (STORED, ["async-copy"], STORED + READ),
    "the store is not committed": (PUT + FENCE + MEET + STORE + READ, ["async-copy"], STORED + READ),
    "the result is read before the store is complete": (
        STORED + READ + MEET + "ld.global.u32 %r8, [%x3]; st.shared.u32 [%r4], %r8;",
        ["async-copy"],
        STORED + DONE + MEET + "ld.global.u32 %r8, [%x3]; st.shared.u32 [%r4], %r8;",
    ),
    "global memory is written by threads before the copy": (
        GENERIC + LOADED.replace("%x1", "%x2") + WAIT.format(0),
        ["proxy-fence"],
        GENERIC + "fence.proxy.async.global;" + LOADED.replace("%x1", "%x2") + WAIT.format(0),
    ),
    "reused before its readers have arrived": (
        LOADED + WAIT.format(0) + MEET + GET + EXPECT.format(256) + LOAD.format(256) + WAIT.format(1),
        ["async-copy"],
        LOADED + WAIT.format(0) + MEET + GET + MEET + EXPECT.format(256) + LOAD.format(256) + WAIT.format(1),
    ),
    "a size that is no multiple of 16": (
        CLEAR + INIT + EXPECT.format(24) + LOAD.format(24),
        ["misaligned-address"],
        CLEAR + INIT + EXPECT.format(32) + LOAD.format(32) + WAIT.format(0),
    ),
    "a target that is no multiple of 16": (
        CLEAR + INIT + EXPECT.format(0) + LOAD.format(128).replace("[tile]", "[tile+8]"),
        ["misaligned-address"],
        CLEAR + INIT + EXPECT.format(128) + LOAD.format(128).replace("[tile]", "[tile+16]") + WAIT.format(0),
    ),
    "past the end of the tile": (
        CLEAR + INIT + EXPECT.format(0) + LOAD.format(128).replace("[tile]", "[tile+192]"),
        ["out-of-bounds"],
        CLEAR + INIT + EXPECT.format(64) + LOAD.format(64).replace("[tile]", "[tile+192]") + WAIT.format(0),
    ),
    "the copy names a barrier that is not initialised": (
        CLEAR + "add.u32 %r10, %r9, 8;" + INIT + LOAD.format(256).replace("%r9", "%r10") + MEET,
        ["uninitialized-read"],
        CLEAR + INIT + EXPECT.format(256) + LOAD.format(256) + WAIT.format(0),
    ),
}  # fmt: skip


def copied(body, seed=0, engine="fibers", **more):
    """Return (kinds of errors, y, report) for a block of 64 threads; x contains 100, 101, ..."""
    x, y = np.arange(100, 164, dtype=np.int32), np.full(64, -1, np.int32)
    kernel = load_ptx(f"{HEAD}{body}\n    ret;\n}}")["k"]
    report = simulate(kernel, on_finding="report", seed=seed, engine=engine, **more)[1, 64](x, y)
    return sorted({finding.kind for finding in report.findings}), y, report


@pytest.mark.parametrize("name", PLANTED)
def test_finds_the_bug_and_nothing_in_the_twin(name):
    bug, kinds, twin = PLANTED[name]
    for seed in range(2):
        assert copied(bug, seed, max_steps=2000)[0] == kinds
        found, y, report = copied(twin, seed)
        assert found == [], report.findings[0].message
        if "ld.shared" in twin:
            assert y.tolist() == [100 + (i ^ 32) for i in range(64)]
        if STORE in twin:
            assert y.tolist() == [i + 7 for i in range(64)]


def test_the_deadlock_names_the_missing_bytes():
    bug, _, _ = PLANTED["expects too many bytes"]
    (finding,) = copied(bug, max_steps=2000)[2].findings
    assert "256 of 512 bytes" in finding.message and "sent" in finding.message


@pytest.mark.parametrize("operation", ["add.u32", "min.s32", "max.u32", "and.b32", "or.b32", "xor.b32"])
def test_a_reduction_updates_global_memory(operation):
    reduce = STORE.replace("cp.async", "cp.reduce.async").replace("bulk_group", f"bulk_group.{operation}")
    x, y = np.zeros(64, np.int32), np.arange(50, 114, dtype=np.int32)
    before = y.copy()
    kernel = load_ptx(f"{HEAD}{STORED.replace(STORE, reduce)}{READ}\n    ret;\n}}")["k"]
    assert not simulate(kernel)[2, 64](x, y).findings
    combine = {"add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and}
    combine |= {"or": np.bitwise_or, "xor": np.bitwise_xor}
    wanted = before
    for _ in range(2):
        wanted = combine[operation.partition(".")[0]](wanted, np.arange(7, 71))
    assert y.tolist() == wanted.tolist()


def test_the_compiled_engine_interprets_such_a_kernel_with_a_note():
    found, _, report = copied(PLANTED["no proxy fence before a store"][0], engine="native")
    assert found == ["proxy-fence"] and report.notes[0].startswith("interpreted:")


def test_the_figure_shows_copies_and_phases():
    seen = Pipeline()
    kernel = load_ptx(f"{HEAD}{LOADED}{WAIT.format(0)}{STORED}{READ}{DONE}\n    ret;\n}}")["k"]
    x, y = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    assert not simulate(kernel, observers=[*DEFAULT, seen])[1, 64](x, y).findings
    assert [event.action for event in seen.events if event.action != "pass"] == [
        "issue",
        "end",
        "issue",
        "read",
        "end",
    ]
    assert {event.thread // 32 for event in seen.events if event.action == "pass"} == {0, 1}
    view = pipeline(seen.events, seen.title)
    assert "bulk copy to tile[0] is sent" in str(view) and "phase 0 of bar[0]" in str(view)
    assert view.html.count("u003cpath") >= 4 and str(pipeline([])).endswith("none")
    assert "copy from it" in view.html and ">wgmma<" not in view.html and '"wgmma"' not in view.html


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_an_index_from_an_early_read_names_it(engine):
    body = (
        LOADED + MEET + "ld.shared.s32 %r8, [%r5]; mad.wide.s32 %x3, %r8, 4, %x2; st.global.u32 [%x3], %r1;"
    )
    cause, consequence = copied(body, engine=engine)[2].findings
    assert (cause.kind, consequence.kind) == ("async-copy", "out-of-bounds")
    assert consequence.follows and cause.verdict in consequence.reason and cause.fix in consequence.fix
