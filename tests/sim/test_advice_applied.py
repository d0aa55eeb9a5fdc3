"""Tests that apply the advice literally to kernels outside the corpus.

No finding may be left, and the values must be correct.
"""

import functools
import inspect

import numpy as np
import pytest

import applied
import racy_grids  # noqa: F401, it adds its kernels to CASES
from racy_kernels import CASES
from sim import simulate


def launched(case, kernel, **options):
    arguments = case["arguments"]()
    report = simulate(kernel, on_finding="report", **options)[case["launch"]](*arguments)
    return report.findings, dict(zip(inspect.signature(kernel).parameters, arguments))


@pytest.mark.parametrize("name", CASES)
def test_the_steps_of_the_advice(name, few):
    case, kernel = CASES[name], CASES[name]["kernel"]

    @functools.cache
    def launch(kernel, engine):
        return launched(case, kernel, engine=engine)

    patterns = {finding.advice.pattern for finding in launch(kernel, "fibers")[0] if finding.advice}
    assert case["pattern"] in patterns
    kernel, lines = applied.improved(kernel, lambda kernel: launch(kernel, "fibers")[0])
    print("\n".join(lines))
    for engine in few(["fibers", "native"], 1 + (list(CASES).index(name) % 8 == 0)):
        findings, left = launch(kernel, engine)
        assert not [finding.message for finding in findings]
        for argument, wanted in case["wanted"](*case["arguments"]()).items():
            np.testing.assert_allclose(left[argument], wanted, rtol=1e-5)


@pytest.mark.parametrize("name", ["half_mask", "matmul_under_if", "matmul_first_under_if"])
def test_a_divergence_comes_before_the_races_that_it_causes(name):
    findings, _ = launched(CASES[name], CASES[name]["kernel"])
    kinds = [finding.kind.partition("-")[2] for finding in findings]
    assert kinds[0] == "divergence" and set(kinds[1:]) == {"shared"}


@pytest.mark.parametrize("name", ["exchange", "exchange_one_guard", "exchange_returned", "jacobi"])
def test_phases_of_blocks_have_two_fixes(name):
    findings, _ = launched(CASES[name], CASES[name]["kernel"])
    assert all("launch a second one" in f.fix and "cuda.cg.this_grid().sync()" in f.fix for f in findings)


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("jacobi_without_the_last_barrier", "after line 8 and before the loop returns to line 5"),
        ("jacobi_without_the_first_barrier", "between lines 5 and 7"),
    ],
)
def test_a_loop_needs_one_more_grid_barrier(name, place):
    (finding,) = launched(CASES[name], CASES[name]["kernel"])[0]
    assert (
        finding.fix.startswith("one more cuda.cg.this_grid().sync(), which every thread")
        and place in finding.fix
    )


@pytest.mark.parametrize("name", ["odd_even_sort", "odd_even_min_max"])
def test_no_atomic_exchanges_two_elements(name):
    findings, _ = launched(CASES[name], CASES[name]["kernel"])
    assert {finding.advice.pattern for finding in findings} == {"barrier"}
