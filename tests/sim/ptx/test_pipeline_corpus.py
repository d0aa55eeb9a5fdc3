"""Tests of kernels that combine asynchronous copies, transaction barriers and products of warp groups: the
correct kernels have no findings, and each planted bug has those stated."""

import pytest

from ptx import pipeline_corpus as corpus
from ptx.hopper_corpus import is_as_wanted
from sim import load_ptx
from sim.ptx.nvrtc import compile_ptx

pytest.importorskip("cuda.bindings.nvrtc")
ENGINES = "fibers", "threads"
CI = 4  # a CI run takes one of four kernels and planted bugs


def run(name, **options):
    """Return (report, whether the result is as wanted)."""
    text = corpus.source(name)
    module = load_ptx(compile_ptx(text, "k.cu", architecture="sm_90a"), text)
    return corpus.run(name, module, max_steps=4000, **options)


def sampled(names):
    """Return a pytest.param for each name. The nightly run takes all of them."""
    return [pytest.param(name, marks=[pytest.mark.nightly] * (i % CI > 0)) for i, name in enumerate(names)]


def runs(few):
    return few([{"engine": engine, "seed": seed} for seed in range(2) for engine in ENGINES], 1)


@pytest.mark.parametrize("name", sampled(corpus.KERNELS))
def test_the_kernel_is_right_and_has_no_findings(name, few):
    for options in runs(few):
        report, right = run(name, **options)
        assert right and not report.findings


@pytest.mark.parametrize("name", sampled(corpus.PAIRS))
def test_the_bug_is_found(name, few):
    for options in runs(few):
        found = {finding.kind for finding in run(name, **options)[0].findings}
        assert is_as_wanted(corpus.PAIRS[name][1], found)


def test_the_fix_of_an_early_proxy_fence_names_the_wait():
    report, _ = run("the proxy fence precedes the wait before a store")
    assert "no proxy fence follows the wait for the copy" in str(report.findings[0])
    assert "after the wait (cp.async.wait_group)" in report.findings[0].fix
