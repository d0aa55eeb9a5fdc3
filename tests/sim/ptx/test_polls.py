"""Tests of blocks that wait for other blocks, and vote between two polls, as in a scan with decoupled
look-back."""

import time
from pathlib import Path

import numpy as np
import pytest

from ptx.test_cuda_cpp import module
from sim import load_ptx, simulate
from sim.ptx.nvrtc import compile_ptx

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


FLAG = """
extern "C" __global__ void wait_for_flag(int* out) {{
    __shared__ int value, flag;
    {init}
    if (threadIdx.x == {writer}) {{ value = 5; __threadfence_block(); atomicExch(&flag, 1); }}
    if (threadIdx.x == {reader}) {{ while (atomicAdd(&flag, 0) == 0); __threadfence_block(); *out = value; }}
}}
"""
INIT = "if (threadIdx.x == 0) flag = 0; __syncthreads();"


@ENGINES
@pytest.mark.parametrize(("writer", "reader"), [(0, 40), (40, 0)])
@pytest.mark.parametrize("init", ["", INIT])
def test_a_flag_in_shared_memory_needs_an_initial_value(engine, writer, reader, init):
    """Store the flag by an atomic. This does not initialise it, because nothing orders it before the load."""
    source = FLAG.format(init=init, writer=writer, reader=reader)
    kernel = load_ptx(compile_ptx(source, "flag.cu"), source)["wait_for_flag"]
    report = simulate(kernel, engine=engine, on_finding="report")[1, 64](out := np.zeros(1, np.int32))
    assert out[0] == 5
    assert [f.kind for f in report.findings] == ([] if init else ["uninitialized-read"])
