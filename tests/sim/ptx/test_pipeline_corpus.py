"""Tests of kernels that combine asynchronous copies, transaction barriers, products and clusters: the correct
kernels have no findings, and each planted bug has those stated."""

import pytest

from ptx import cluster_corpus, conversion_corpus, pipeline_corpus, specialised_corpus
from ptx.hopper_corpus import is_as_wanted
from sim import load_ptx
from sim.ptx.nvrtc import compile_ptx

pytest.importorskip("cuda.bindings.nvrtc")
CORPORA = {
    "pipeline": pipeline_corpus.CORPUS,
    "specialised": specialised_corpus.CORPUS,
    "conversion": conversion_corpus.CORPUS,
    "cluster": cluster_corpus.CORPUS,
}
ENGINES = "fibers", "threads"
CI = 48  # a CI run takes one of 48 kernels and planted bugs


def run(corpus, name, **options):
    """Return (report, whether the result is as wanted)."""
    text = CORPORA[corpus].source(name)
    module = load_ptx(compile_ptx(text, "k.cu", architecture="sm_90a"), text)
    return CORPORA[corpus].run(name, module, max_steps=4000, **options)


def sampled(part):
    """Return a pytest.param for each name in a part of the corpora. The nightly run takes all of them."""
    names = [(corpus, name) for corpus in CORPORA for name in getattr(CORPORA[corpus], part)]
    return [pytest.param(*name, marks=[pytest.mark.nightly] * (i % CI > 0)) for i, name in enumerate(names)]


def runs(few):
    return few([{"engine": engine, "seed": seed} for seed in range(2) for engine in ENGINES], 1)


@pytest.mark.parametrize(("corpus", "name"), sampled("kernels"))
def test_the_kernel_is_right_and_has_no_findings(corpus, name, few):
    for options in runs(few):
        report, right = run(corpus, name, **options)
        assert right and not report.findings


@pytest.mark.parametrize(("corpus", "name"), sampled("pairs"))
def test_the_bug_is_found(corpus, name, few):
    for options in runs(few):
        found = {finding.kind for finding in run(corpus, name, **options)[0].findings}
        assert is_as_wanted(CORPORA[corpus].pairs[name][1], found)


def test_the_fix_of_an_early_proxy_fence_names_the_wait():
    report, _ = run("pipeline", "the proxy fence precedes the wait before a store")
    assert "no proxy fence follows the wait for the copy" in str(report.findings[0])
    assert "after the wait (cp.async.wait_group)" in report.findings[0].fix
