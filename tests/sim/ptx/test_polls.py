"""Tests of blocks that wait for other blocks, and vote between two polls, as in a scan with decoupled
look-back."""

import time
from pathlib import Path

import numpy as np
import pytest

from ptx.test_cuda_cpp import module
from sim import simulate

SOURCE = Path(__file__).with_name("programs") / "polls.cu"
KERNELS = module("polls", SOURCE.parent)[1]
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
    monkeypatch.setattr("sim.loop_limits.FIRST_PATIENCE", 0.01)
    found, sums, _ = launch(engine, name, NOBODY)
    assert found == [] and sums == [1, 2, 3]


@ENGINES
@pytest.mark.parametrize("name", ["votes", "barriers"])
def test_a_status_that_nobody_sets_is_found(engine, name, monkeypatch):
    monkeypatch.setattr("sim.loop_limits.FIRST_PATIENCE", 0.02)
    found, sums, took = launch(engine, name, BLOCKS - 2)
    assert found == ["no-progress"] and sums == [1, 0, 0] and took < 15


def look_back(engine, name, silent=NOBODY):
    """Return (kinds of findings, sums) of a kernel whose words hold a status and a sum."""
    words, sums = np.zeros(BLOCKS + 1, np.int32), np.zeros(BLOCKS, np.int32)
    words[0] = 2
    report = simulate(KERNELS[name], engine=engine, on_finding="report")[BLOCKS, 32](
        words, sums, np.int32(silent)
    )
    return [finding.kind for finding in report.findings], sums.tolist()


@ENGINES
def test_a_poll_whose_first_iteration_is_before_the_loop(engine):
    body = SOURCE.with_suffix(".ptx").read_text().partition(".entry look_back")[2].partition("ret;\n")[0]
    assert body.index("ld.volatile") < body.index("\n$L") < body.rindex("ld.volatile") < body.rindex("\n$L")
    assert look_back(engine, "look_back") == ([], [0, 1, 3])
    assert look_back(engine, "look_back", silent=0)[0] == ["no-progress"]


@ENGINES
def test_a_volatile_value_that_no_loop_waits_for_races(engine):
    assert look_back(engine, "unordered")[0] == ["race-global"]
