"""Tests of launches that a time limit ends: their findings, and exceptions thrown into threads."""

import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda

from sim import error_limit, load_ptx, loop_limits, simulate
from sim.engine import watchdog
from sim.engine.os_thread import throw_into
from sim.engine.watchdog import Watchdog
from sim.errors import OutOfTime
from sim.native import engine as native
from sim.native.run import explain, launch, recorded_run
from sim.ptx.nvrtc import compile_ptx


class LateEvent(threading.Event):
    """An event during whose `set` the watchdog throws an exception into the launcher."""

    thrown = False

    def set(self):
        if not self.thrown:
            self.thrown = True
            throw_into(threading.get_ident(), OutOfTime)
        super().set()


def test_an_exception_thrown_at_the_end_of_a_launch_does_not_leave_it():
    facts = dict(activity=1, entered=0, runs_kernel=False, ticking=True, has_errors=False, max_steps=None)
    guard = Watchdog(SimpleNamespace(**facts))
    guard.over = LateEvent()
    with guard:
        pass
    assert guard.over.is_set() and sum(range(1000)) == 499500


@cuda.jit
def fails_before_a_barrier(x, rounds):
    if cuda.threadIdx.x == 1:
        x[x.size] = 1
        for _ in range(rounds):
            x[0] += 1
    cuda.syncthreads()


@pytest.mark.parametrize("engine", ["fibers", "threads"])
def test_a_thread_that_is_ended_has_not_missed_a_barrier(monkeypatch, engine):
    monkeypatch.setattr(error_limit, "SECONDS_AFTER_ERROR", -1)
    monkeypatch.setattr(watchdog, "INTERVAL", 0.02)
    report = simulate(fails_before_a_barrier, engine=engine, on_finding="report")[1, 2](np.zeros(4), 10**8)
    assert [finding.kind for finding in report.findings] == ["out-of-bounds"]


@cuda.jit
def races_late(x, rounds):
    for i in range(rounds):
        x[cuda.grid(1)] = i + 1
    x[x.size - 1] = cuda.grid(1)


@pytest.mark.parametrize("engine", ["fibers", "threads"])
def test_the_time_after_an_error_begins_with_its_epoch(monkeypatch, engine):
    # Each block needs longer than the limit, and its race is found when it ends.
    monkeypatch.setattr(error_limit, "SECONDS_AFTER_ERROR", 0.05)
    x = np.zeros(7, np.int32)
    report = simulate(races_late, engine=engine, on_finding="report")[3, 2](x, 200_000)
    assert [finding.kind for finding in report.findings] == ["race-global"]
    assert x[:6].reshape(3, 2).any(1).sum() == 1  # only one block has begun


@cuda.jit
def searches_for_a_missing_key(keys):
    at = cuda.grid(1)
    while keys[at] != -1:
        at = (at + 1) % keys.size
    keys[at] = 0


def test_an_endless_loop_is_explained_once(monkeypatch):
    monkeypatch.setattr(launch, "FIRST_LIMIT", 1 << 12)
    monkeypatch.setattr(launch, "FIRST_SECONDS", -1)
    monkeypatch.setattr(native, "explain", None)
    report = simulate(searches_for_a_missing_key, engine="native", on_finding="report")[2, 32](np.arange(64))
    assert [finding.kind for finding in report.findings] == ["no-progress"]
    assert report.notes[0] == "compiled; block 0 is explained by the interpreter"


@cuda.jit
def races_in_each_epoch(x, rounds):
    for _ in range(rounds):
        x[0] = cuda.threadIdx.x
        cuda.syncthreads()


def test_a_loop_around_a_barrier_ends_soon_after_an_error(monkeypatch):
    attempts, rounds = [], 10**8
    monkeypatch.setattr(launch, "SECONDS_AFTER_ERROR", 0.01)
    monkeypatch.setattr(native, "explain", lambda attempt: attempts.append(attempt) or attempt.outcome())
    simulate(races_in_each_epoch, engine="native")[1, 2](np.zeros(1), rounds)
    assert 0 < attempts[0].state.barriers < rounds


@cuda.jit
def computes_and_then_races(x, y, rounds):
    s = 0
    for i in range(rounds):
        s = (s * 5 + i) & 0xFFFF
    x[cuda.threadIdx.x] = s  # the barrier is missing
    y[cuda.grid(1)] = x[cuda.threadIdx.x ^ 1]


def test_the_time_after_an_error_includes_the_time_of_its_block(monkeypatch):
    attempts = []
    monkeypatch.setattr(launch, "SECONDS_AFTER_ERROR", 1e-4)  # each block needs longer
    monkeypatch.setattr(native, "explain", lambda attempt: attempts.append(attempt) or attempt.outcome())
    simulate(computes_and_then_races, engine="native")[3, 2](np.zeros(2), np.zeros(6), 10**6)
    assert attempts[0].stop == 1


@cuda.jit
def leaves_late(x, rounds):
    i = 0
    while i < rounds:
        if i == rounds - 1 and cuda.threadIdx.x == 7:
            return
        x[cuda.grid(1)] += 1
        cuda.syncthreads()
        i += 1


def test_errors_are_recorded_after_many_iterations(monkeypatch):
    monkeypatch.setattr(launch, "FIRST_LIMIT", 1 << 12)
    monkeypatch.setattr(launch, "FIRST_SECONDS", -1)
    monkeypatch.setattr(explain, "PROBE_SECONDS", -1)
    monkeypatch.setattr(explain, "EXPLAIN_SECONDS", -1)
    report = simulate(leaves_late, engine="native", on_finding="report")[2, 32](np.zeros(64), 1000)
    assert [finding.kind for finding in report.findings] == ["barrier-divergence"]
    assert explain.UNEXPLAINED in report.notes


@cuda.jit
def waits_in_a_branch(x):
    if cuda.threadIdx.x < 20:
        x[cuda.grid(1)] = 1
        cuda.syncthreads()
    x[cuda.grid(1)] += 1


def test_errors_in_long_blocks_are_recorded_by_optimised_code(monkeypatch):
    optimised = []
    monkeypatch.setattr(recorded_run, "SECONDS", 0.0)
    monkeypatch.setattr(explain, "EXPLAIN_SECONDS", -1)
    monkeypatch.setattr(launch.Attempt, "optimise", lambda self: optimised.append(self.has_sides))
    simulate(waits_in_a_branch, engine="native", on_finding="report")[2, 32](np.zeros(64))
    assert optimised == [True, True]  # one run for each side


@cuda.jit
def leaves_the_array_in_the_last_block(x):
    x[cuda.grid(1)] += 1
    if cuda.blockIdx.x == 2:
        x[x.size] = 1


def test_blocks_before_the_error_are_not_recorded(monkeypatch):
    monkeypatch.setattr(explain, "EXPLAIN_SECONDS", -1)
    run_blocks, began = recorded_run.RecordedRun.run_blocks, []
    monkeypatch.setattr(
        recorded_run.RecordedRun,
        "run_blocks",
        lambda self: began.append(self.attempt.next) or run_blocks(self),
    )
    kernel = leaves_the_array_in_the_last_block
    report = simulate(kernel, engine="native", on_finding="report")[3, 32](np.zeros(96))
    assert [finding.kind for finding in report.findings] == ["out-of-bounds"] and began == [2]


def test_the_interpreter_is_skipped_if_it_would_not_reach_the_block():
    facts = dict(is_small=True, is_cooperative=False, seconds_per_block=1.0)
    assert explain.seconds_to_explain(SimpleNamespace(block_errors=np.array([0, 0, 2]), **facts)) == 0


UNSIGNED = """extern "C" __global__ void k(const int *x, int *y, unsigned n) {
    int s = 0;
    for (unsigned i = n - 1; i >= 0; --i) {
        s += x[i];
        if (s > 1000000) break;
    }
    y[threadIdx.x] = s;
}
"""


def test_an_endless_loop_outside_an_array_ends_soon(monkeypatch):
    pytest.importorskip("cuda.bindings.nvrtc")
    monkeypatch.setattr(error_limit, "SECONDS_AFTER_ERROR", 0.5)
    kernel = load_ptx(compile_ptx(UNSIGNED, "k.cu"))["k"]
    report = simulate(kernel, engine="fibers", on_finding="report")[1, 1](
        np.arange(8, dtype=np.int32), np.zeros(1, np.int32), 8
    )
    assert {f.kind for f in report.findings} == {"out-of-bounds"} and not report.findings[0].follows
    assert any("ran to the end" in note for note in report.notes)


WITHDRAWN = """
import sys, threading
from sim.engine.os_thread import withdraw

withdraw({threading.get_ident()})
sys.setprofile(lambda *_: None)
(lambda: None)()
print("called")
"""


def test_functions_can_be_profiled_after_an_exception_was_withdrawn():
    # Otherwise, Python 3.11 repeats the first instruction of the function forever.
    done = subprocess.run([sys.executable, "-c", WITHDRAWN], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("called\n", "")


@cuda.jit
def spreads_labels(label, rounds, n):
    t = cuda.threadIdx.x
    go, r = True, 0
    while go:
        best = 0
        if t < n:
            best = label[t]
        cuda.syncthreads()
        changed = False
        if best != label[t]:  # `t < n and` is missing, so the refused load of some threads differs from 0
            label[t] = best
            changed = True
        go = cuda.syncthreads_or(changed) != 0
        r += 1
    if t == 0:
        rounds[0] = r


def test_the_limit_of_the_interpreter_does_not_end_a_comparison_of_threads(monkeypatch):
    """Check an endless loop with an error in each iteration. Its threads are compared when the limit ends."""
    monkeypatch.setattr(launch, "SECONDS_AFTER_ERROR", 0.01)
    monkeypatch.setattr(explain, "seconds_to_explain", lambda attempt: 1.0)
    monkeypatch.setattr(loop_limits, "FIRST_PATIENCE", 0.05)
    monkeypatch.setattr(loop_limits, "LEAST_ITERATIONS", 1)
    arguments = np.arange(33, dtype=np.int32), np.zeros(1, np.int32), 33
    report = simulate(spreads_labels, engine="native", on_finding="report")[1, 64](*arguments)
    assert {finding.kind for finding in report.findings} == {"out-of-bounds", "no-progress"}
