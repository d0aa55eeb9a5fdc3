"""Tests of the corpus of wgmma: correct kernels have no findings, and each planted bug has those stated."""

import time

import numpy as np
import pytest
from ml_dtypes import bfloat16

from ptx.wgmma_corpus import HELPERS, KERNELS, LARGE, PAIRS, THREADS, arguments, expected, operands, text_of
from sim import load_ptx, simulate
from sim.ptx.nvrtc import compile_ptx

# Kernels of three warp groups take seconds. Of the others, each fourth pair runs in every CI run.
SLOW = {"specialised", "pipeline"}
FEW = {name for number, name in enumerate(PAIRS) if number % 4 == 1 and PAIRS[name].kernel not in SLOW}


def run(kernel, text, threads):
    """Return (the report, whether the output is correct)."""
    pytest.importorskip("cuda.bindings.nvrtc")
    module = load_ptx(compile_ptx(text, "k.cu", architecture="sm_90a"), source=text)
    a, b, shape = operands(kernel)
    out = np.zeros(shape, np.float32)
    launch = simulate(module["k"], on_finding="report")[1, threads]
    return launch(*arguments(kernel, a, b), out), np.array_equal(out, expected(kernel, a, b))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] * (name in SLOW)) for name in KERNELS]
)
def test_correct_kernels_have_no_findings(name):
    report, right = run(name, HELPERS + KERNELS[name], THREADS.get(name, 128))
    assert right and not report.findings


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.nightly] * (name not in FEW)) for name in PAIRS]
)
def test_planted_bugs_are_found(name):
    planted = PAIRS[name]
    threads = planted.threads or THREADS.get(planted.kernel, 128)
    report, _ = run(planted.kernel, text_of(planted), threads)
    kinds = {finding.kind for finding in report.findings}
    assert planted.kinds <= kinds <= planted.kinds | planted.possible


def test_findings_name_both_parties_and_the_fix():
    report, _ = run("tile", text_of(PAIRS["sums read before the wait"]), 128)
    finding = next(finding for finding in report.findings if finding.kind == "wgmma")
    assert [access.what for access in finding.accesses] == ["read", "issued"]
    assert "to[(row" in finding.accesses[0].site.source and "wgmma.wait_group" in finding.fix


@pytest.mark.nightly
def test_a_large_product_by_specialised_warp_groups_takes_less_than_a_minute():
    pytest.importorskip("cuda.bindings.nvrtc")
    random, text = np.random.default_rng(0), HELPERS + LARGE
    a, b = (random.integers(-2, 3, (256, 256)).astype(bfloat16) for _ in range(2))
    out, module = np.zeros((256, 256), np.float32), load_ptx(compile_ptx(text, "k.cu", architecture="sm_90a"))
    began = time.process_time()
    report = simulate(module["k"])[(2, 2), 384, 0, 65536](a.view(np.uint16), b.view(np.uint16), out)
    assert time.process_time() - began < 60
    assert not report.findings and np.array_equal(out, a.astype(float) @ b.astype(float).T)
