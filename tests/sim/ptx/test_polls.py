"""Tests of blocks that wait for other blocks, and vote between two polls, as in a scan with decoupled
look-back."""

import time
from pathlib import Path

import numpy as np
import pytest

from ptx.test_cuda_cpp import module
from sim import simulate

KERNELS = module("polls", Path(__file__).with_name("programs"))[1]
ENGINES = pytest.mark.parametrize("engine", ["fibers", "threads"])
NOBODY, BLOCKS = -1, 3


def launch(engine, name, silent):
    sums = np.zeros(2 * BLOCKS, np.int32)
    began = time.process_time()
    report = simulate(KERNELS[name], engine=engine, on_finding="report")[BLOCKS, 32](
        sums, np.zeros(1, np.int32), np.int32(silent)
    )
    return [finding.kind for finding in report.findings], sums[1::2].tolist(), time.process_time() - began


@ENGINES
@pytest.mark.parametrize("name", ["votes", "barriers", "votes_by_ticket"])
def test_blocks_that_poll_let_other_blocks_run(engine, name, monkeypatch):
    """Judge the loops early, while a schedule still lets a block poll without a pause."""
    monkeypatch.setattr("sim.context.FIRST_PATIENCE", 0.01)
    found, sums, _ = launch(engine, name, NOBODY)
    assert found == [] and sums == [1, 2, 3]


@ENGINES
@pytest.mark.parametrize("name", ["votes", "barriers"])
def test_a_status_that_nobody_sets_is_found(engine, name, monkeypatch):
    monkeypatch.setattr("sim.context.FIRST_PATIENCE", 0.02)
    found, sums, took = launch(engine, name, BLOCKS - 2)
    assert found == ["no-progress"] and sums == [1, 0, 0] and took < 15
