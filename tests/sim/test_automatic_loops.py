"""Tests of the engine "auto": a thread whose first turn is a long loop."""

from functools import partial

import numpy as np
import pytest
from numba import cuda

from sim import launch, loop_limits, simulate
from sim.automatic import Automatic, WatchedGrid

LENGTH = 5000


@pytest.fixture(autouse=True)
def early(monkeypatch):
    """Let "auto" compile a launch after a few accesses, and compare threads at each reading of the clock."""
    monkeypatch.setitem(launch.ENGINES, "auto", partial(Automatic, launch.native_engine, work=20))
    monkeypatch.setattr(loop_limits, "FIRST_PATIENCE", 0.0)


def as_plain_call(x):
    i = 0
    while i < LENGTH:
        x[0] += 1
        i += 1


def as_generator(x):
    i = 0
    while i < LENGTH:
        x[0] += 1
        i += 1
    cuda.syncthreads()


@cuda.jit(device=True)
def add_and_wait(x):
    as_generator(x)


def in_function(x):
    """Wait in a device function, so that each thread is a greenlet."""
    add_and_wait(x)


def never_ends(x):
    while x[0] == 0:
        x[1] = 1


@pytest.mark.parametrize(
    "kernel", [as_plain_call, as_generator, in_function], ids=lambda kernel: kernel.__name__
)
def test_the_first_turn_of_a_thread_is_interrupted(kernel, monkeypatch):
    x, values, take_over = np.zeros(2), [], WatchedGrid.take_over
    monkeypatch.setattr(WatchedGrid, "take_over", lambda self: values.append(x[0]) or take_over(self))
    assert simulate(kernel)[1, 1](x).engine == "native" and x[0] == LENGTH
    assert len(values) == 1 and 0 < values[0] < LENGTH


def test_a_turn_continues_if_the_kernel_cannot_be_compiled(monkeypatch):
    attempts, native = [], launch.native_engine()
    monkeypatch.setattr(native, "lower", lambda launch: attempts.append(launch))
    x = np.zeros(2)
    report = simulate(as_plain_call)[1, 1](x)
    assert report.engine == "fibers" and not report.findings and x[0] == LENGTH and len(attempts) == 1


def test_a_loop_in_which_nothing_changes_is_not_compiled():
    report = simulate(never_ends, on_finding="report")[1, 1](np.zeros(2))
    assert report.engine == "fibers" and [finding.kind for finding in report.findings] == ["no-progress"]
