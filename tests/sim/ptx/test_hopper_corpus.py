"""Tests of TMA, transaction barriers and clusters with kernels in CUDA C++, compiled by NVRTC for sm_90a.

Each kernel runs, is right and has no findings. Each planted bug is found. The same holds for PTX from which
one fence or wait has been deleted."""

import functools
import re
from urllib.parse import unquote

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
