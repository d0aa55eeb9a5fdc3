"""Tests of two atomics on one source line, which differ in their scope or operation."""

from pathlib import Path

import numpy as np
import pytest

from ptx.test_cuda_cpp import module
from sim import simulate

KERNELS = module("one_line", Path(__file__).with_name("programs"))[1]


def launch(engine, name):
    total, parts = np.zeros(1, np.int32), np.zeros(2, np.int32)
    report = simulate(KERNELS[name], engine=engine, on_finding="report")[2, 4](total, parts)
    return {(finding.kind, finding.array) for finding in report.findings}, total[0], parts.tolist()


@pytest.mark.parametrize("engine", ["fibers", "threads", "native"])
@pytest.mark.parametrize("pair", ["scopes", "shared"])
def test_atomics_of_two_scopes(engine, pair):
    assert launch(engine, f"{pair}_right") == (set(), 8, [4, 4])
    assert launch(engine, f"{pair}_wrong")[0] == {("race-global", "total")}


@pytest.mark.parametrize(
    "pair, found", [("loads", ("race-global", "total")), ("operations", ("uninitialized-read", "sum"))]
)
def test_strong_loads_and_operations(pair, found):
    assert launch("fibers", f"{pair}_right") == (set(), 8, [4, 4])
    assert launch("fibers", f"{pair}_wrong")[0] == {found}
