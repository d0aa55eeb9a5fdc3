"""Tests of launches that a time limit ends: their findings, and exceptions thrown into threads."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda

from sim import error_limit, simulate
from sim.engine import watchdog
from sim.engine.os_thread import throw_into
from sim.engine.watchdog import Watchdog
from sim.errors import OutOfTime


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
