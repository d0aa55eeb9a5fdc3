"""Tests of TMA, transaction barriers and clusters with kernels in CUDA C++, compiled by NVRTC for sm_90a.

Each kernel runs, is right and has no findings. Each planted bug is found. The same holds for PTX from which
one fence or wait has been deleted."""

import functools
import re
from urllib.parse import unquote

import numpy as np
import pytest

from ptx import hopper_corpus as corpus
from sim import LaunchError, load_ptx, simulate
from sim.ptx import nvrtc
from sim.viz.page import page

pytest.importorskip("cuda.bindings.nvrtc")
ENGINES = "fibers", "threads", "native"
CI = 6  # a CI run takes one planted bug of six


@functools.cache
def text(name):
    return nvrtc.compile_ptx(corpus.source(name), "k.cu", architecture="sm_90a")


def kinds(name, ptx, **options):
    report, right = corpus.run(name, load_ptx(ptx, corpus.source(name)), max_steps=4000, **options)
    return sorted({finding.kind for finding in report.findings}), right, report


def sampled(names):
    """Return a pytest.param for each name. The nightly run takes all of them."""
    return [pytest.param(name, marks=[pytest.mark.nightly] * (i % CI > 0)) for i, name in enumerate(names)]


@pytest.mark.parametrize("name", corpus.KERNELS)
def test_the_kernel_is_right_and_has_no_findings(name, few):
    runs = [(engine, seed) for seed in range(5) for engine in ENGINES]
    for engine, seed in few(runs, 1):
        found, right, report = kinds(name, text(name), engine=engine, seed=seed)
        assert found == [] and right, report.findings
        assert engine != "native" or report.notes[0].startswith("interpreted:")


@pytest.mark.parametrize("name", sampled(corpus.PAIRS))
def test_the_bug_is_found(name, few):
    runs = [(engine, seed) for seed in range(3) for engine in ENGINES]
    for engine, seed in few(runs, 1):
        found, _, report = kinds(name, text(name), engine=engine, seed=seed)
        assert corpus.as_wanted(name, found), report.findings
        assert all(finding.accesses[0].site.line for finding in report.findings)


# (kernel, regular expression of the instruction, its replacement, kinds)
DELETED = [
    ("tile", r"fence\.proxy\.async\.shared::cta;", "", ["proxy-fence"]),
    ("tile", r"cp\.async\.bulk\.wait_group\.read 0;", "", ["async-copy"]),
    ("tile", r"cp\.async\.bulk\.commit_group;", "", ["async-copy"]),
    ("tile", r"mbarrier\.try_wait\.parity\S* p, [^;]*;", "setp.eq.u32 p, 0, 0;", ["async-copy"]),
    ("pipeline", r"mbarrier\.arrive\.shared::cta\.b64 _, [^;]*;", "", ["deadlock"]),
    ("box", r"fence\.proxy\.async\.shared::cta;", "", ["proxy-fence"]),
    ("scratch", r"fence\.proxy\.async\.global;", "", ["proxy-fence"]),
    ("cluster sum", r"barrier\.cluster\.arrive\.aligned; barrier\.cluster\.wait\.aligned;", "", None),
    ("multicast", r"fence\.mbarrier_init\.release\.cluster;", "", ["race-shared"]),
]


@pytest.mark.parametrize(("name", "instruction", "replacement", "wanted"), DELETED)
def test_ptx_without_one_fence_or_wait(name, instruction, replacement, wanted):
    places = list(re.finditer(instruction, text(name)))
    assert places
    for place in places:
        ptx = text(name)[: place.start()] + replacement + text(name)[place.end() :]
        found = kinds(name, ptx)[0]
        assert found == wanted if wanted else found, place


def test_a_kernel_with_cluster_barriers_runs_without_clusters():
    """Launch without clusters: each block is a cluster by itself."""
    ptx = re.sub(r"\.(explicitcluster|reqnctapercluster [\d, ]+)", "", text("cluster sum"))
    (_, threads), arguments, _ = corpus.LAUNCHES["cluster sum"]
    x, y = arguments()
    assert not simulate(load_ptx(ptx)["k"])[8, threads](x, y).findings
    assert y.tolist() == x.reshape(8, -1).sum(1).tolist()
    report, right = corpus.run("cluster sum", load_ptx(ptx), cluster=4)
    assert right and not report.findings
    with pytest.raises(LaunchError, match="clusters of"):
        corpus.run("cluster sum", load_ptx(text("cluster sum")), cluster=2)


def test_a_report_in_html_draws_the_copies_and_phases_of_the_first_block():
    html = page(kinds("pipeline", text("pipeline"))[2]).html
    assert "Bulk copies, wgmma and phases of the first block" in html
    assert all(lane in unquote(html) for lane in (">tile[1, 0]<", ">full[1]<", ">empty[1]<"))
    assert "bulk copy to tile[0, 0] is sent" in html and "is complete: phase 0 of full[0]" in html
    without = kinds("cluster sum", text("cluster sum"))[2]
    assert not without.async_events and "Bulk copies" not in page(without).html


WARP = "if (t == 0) {\n        store", "if (t < 32) {\n        store"


@pytest.mark.parametrize(
    ("edits", "wanted"),
    [
        ([WARP], [("warning", "async-copy")]),
        # the lanes send different copies, which overlap
        ([WARP, ("tile, 1024);\n", "tile + 4 * t, 16);\n")], [("error", "async-copy")]),
        # none of them is waited for
        ([WARP, ("        wait_read();\n", "")], [("error", "async-copy"), ("warning", "async-copy")]),
    ],
)
def test_a_store_that_a_whole_warp_sends_is_a_warning(edits, wanted):
    body = corpus.KERNELS["tile"]
    for old, new in edits:
        assert body.count(old) == 1
        body = body.replace(old, new)
    ptx = nvrtc.compile_ptx(corpus.PRELUDE + body, "k.cu", architecture="sm_90a")
    report, _ = corpus.run("tile", load_ptx(ptx, corpus.PRELUDE + body))
    assert sorted({(finding.severity, finding.kind) for finding in report.findings}) == wanted


PARAMETERS = """.version 8.0\n.target sm_90\n.address_size 64
.visible .entry k(.param .align 64 .b8 p[8], .param .align 1 .b8 q[1], .param .u64 r)
{
    .reg .b32 %r<4>; .reg .b64 %x<4>;
    mov.u32 %r1, %tid.x;
    ld.param.b64 %x1, [p]; ld.param.u64 %x2, [r];
    mad.wide.u32 %x3, %r1, 4, %x1; ld.global.u32 %r2, [%x3];
    mad.wide.u32 %x3, %r1, 4, %x2; st.global.u32 [%x3], %r2;
    ret;
}
"""


def test_a_structure_of_eight_bytes_can_be_a_pointer():
    """Run a kernel with the parameters of CuTe DSL: `.b8 p[8]` is a pointer, and `.b8 q[1]` is empty."""
    x, y = np.arange(32, dtype=np.int32), np.zeros(32, np.int32)
    module = load_ptx(PARAMETERS)
    for pointer in (x, np.array([module.pointer(x)], np.uint64)):
        y[:] = 0
        assert not simulate(module["k"])[1, 32](pointer, np.zeros(1, np.uint8), y).findings
        assert (y == x).all()


def test_a_wait_in_the_scope_of_the_block_observes_copies_of_other_blocks():
    """Let the readers of a multicast copy wait with .acquire.cta, as CuTe DSL's GEMM does."""
    ptx = text("multicast")
    waits = list(re.finditer(r"mbarrier\.try_wait\.parity\.", ptx))
    last = waits[-1]  # the wait for full[s]
    changed = f"{ptx[: last.end()]}acquire.cta.{ptx[last.end() :]}"
    found, right, report = kinds("multicast", changed)
    assert len(waits) == 2 and right and not found, report


@pytest.mark.parametrize("patience", [0.1, 0.15])
def test_a_wait_that_is_not_decided_names_the_first_thread(monkeypatch, patience):
    """Let a thread count its tests, so that its states never repeat. The limit ends an arbitrary thread."""
    monkeypatch.setattr("sim.loop_limits.PATIENCE", patience)
    monkeypatch.setattr("sim.loop_limits.FIRST_PATIENCE", patience)
    wait = "int tests = 0; while (!done(&empty[s], phase ^ 1)) tests++; y[0] = tests;"
    kernel = corpus.PRELUDE + corpus.KERNELS["pipeline"].replace("wait(&empty[s], phase ^ 1);", wait)
    kernel = kernel.replace("arrive(&empty[s]);", "if (t) arrive(&empty[s]);")
    module = load_ptx(nvrtc.compile_ptx(kernel, "k.cu", architecture="sm_90a"), kernel)
    (finding,) = corpus.run("pipeline", module)[0].findings
    assert (finding.kind, finding.accesses[0].thread) == ("undecided", (0, 0, 0))


def test_bytes_that_are_expected_too_early_name_the_phase_that_may_go_on():
    _, right, report = kinds(early := "bytes are expected before the stage is empty", text(early))
    (finding,) = report.findings
    assert right and "nothing orders this after the end of phase" in finding.message
    assert [access.what for access in finding.accesses] == ["expects", "sent"]
