"""Tests that volatile accesses to shared memory are compiled, unless a loop waits for the value."""

from pathlib import Path

import numpy as np
import pytest

from ptx.test_cuda_cpp import module
from sim import simulate

ENGINES = pytest.mark.parametrize("engine", ["fibers", "threads", "native"])
X = np.arange(64, dtype=np.int32)


@pytest.fixture
def launch(engine):
    _, kernels = module("volatile_shared", Path(__file__).with_name("programs"))

    def run(name, *arguments):
        return simulate(kernels[name], engine=engine, on_finding="report")[1, 64](*arguments)

    return run


@ENGINES
def test_ordered_accesses_are_clean(launch, engine):
    y = np.zeros(1, np.int32)
    report = launch("reduce", X, y, np.int32(1))
    assert report.findings == () and y[0] == X.sum()
    assert engine != "native" or report.notes == ("compiled",)


@ENGINES
def test_unordered_accesses_race(launch, engine):
    report = launch("reduce", X, np.zeros(1, np.int32), np.int32(0))
    assert "race-shared" in {finding.kind for finding in report.findings}


@ENGINES
def test_a_decision_on_a_value_is_compiled(launch, engine):
    y = np.zeros(64, np.int32)
    report = launch("largest", X, y)
    assert report.findings == () and (y == (X | 1)).all()
    assert report.notes == (("compiled",) if engine == "native" else ())  # no note about other schedules


@ENGINES
def test_a_loop_that_waits_is_interpreted(launch, engine):
    y = np.zeros(64, np.int32)
    report = launch("wait", y)
    assert "race-shared" in {finding.kind for finding in report.findings} and (y == 1).all()
    assert engine != "native" or "has no compiled form" in report.notes[0]
