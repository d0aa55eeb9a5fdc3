"""Tests of the comparison of threads that decides whether a long-running loop still makes progress."""

from itertools import pairwise

import numpy as np
import pytest
from numba import cuda

from sim import loop_limits, simulate
from sim.progress import Cycle, ProgressCheck, comparable

ENGINES = ["fibers", "auto"]


def cycles(x, period):
    """Wait for x[0], and count up to `period` meanwhile."""
    i = 0
    while x[0] == 0:
        i = (i + 1) % period
    x[1] = i


def advances(x, iterations):
    """Compute a number in a loop that returns to no earlier state."""
    i, total = 0, 1
    while i < iterations:
        i += 1
        total = (total * 75 + i) % 65537
    x[cuda.grid(1)] = total


def only_the_last_advances(x, iterations):
    """Let all threads except for the last wait for it, while it computes."""
    i = 0
    if cuda.grid(1) == x.size - 1:
        while i < iterations:
            i += 1
        cuda.atomic.add(x, 0, i)
    else:
        while cuda.atomic.add(x, 0, 0) == 0:
            pass


@pytest.fixture
def early(monkeypatch):
    """Compare the threads after a millisecond."""
    monkeypatch.setattr(loop_limits, "FIRST_PATIENCE", 0.001)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("threads", [1, 32])
@pytest.mark.parametrize("period", [1, 2, 9, 40, 63])
def test_a_loop_that_repeats_up_to_63_states_is_endless(period, threads, engine, early, monkeypatch):
    """Make only short comparisons, which search for cycles of up to MAX_STATES iterations."""
    for name in ("MOST_STATES", "EXHAUSTIVE"):
        monkeypatch.setattr(loop_limits, name, 0)
    monkeypatch.setattr(loop_limits, "PATIENCE", 0.1)
    report = simulate(cycles, engine=engine, on_finding="report")[1, threads](np.zeros(2, np.int64), period)
    (finding,) = report.findings
    assert (finding.kind, finding.verdict) == ("no-progress", "a loop repeats without end")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kernel", [advances, only_the_last_advances])
def test_loops_that_end_have_no_finding(kernel, engine, early):
    assert not simulate(kernel, engine=engine)[1, 32](np.zeros(32, np.int64), 4000).findings


def test_one_thread_that_advances_suffices(early, monkeypatch):
    """Record the threads whose states each check compares while all of them advance."""
    compared, variables = {}, ProgressCheck.variables

    def record(check, frame, *site):
        if site:
            compared.setdefault(check, set()).add(check.context.thread)
        return variables(check, frame, *site)

    monkeypatch.setattr(ProgressCheck, "variables", record)
    assert not simulate(advances, engine="fibers")[1, 32](np.zeros(32, np.int64), 4000).findings
    assert compared and all(len(threads) == 1 for threads in compared.values())


@pytest.mark.parametrize("lead", [0, 1, 5, 30])
@pytest.mark.parametrize("period", [1, 2, 3, 9, 40, 63, 64])
def test_a_cycle_is_found_after_three_times_its_states(period, lead):
    states = [*range(-lead, 0), *[*range(period)] * 4]
    cycle = Cycle()
    found = [cycle.returns(lambda state=state: iter([state])) for state in states]
    assert found.index(True) <= 3 * max(lead + 1, period)
    # From then on, each return is one period after the previous one.
    returns = [place for place, returned in enumerate(found) if returned]
    assert {b - a for a, b in pairwise(returns)} <= {period}


def test_a_thread_that_leaves_its_cycle_is_in_no_cycle():
    cycle = Cycle()
    for state in [1, 2, 1, 2, 1, 2, 1]:
        cycle.returns(lambda state=state: iter([state]))
    assert cycle.repeats
    for state in range(10, 10 + cycle.span):
        cycle.returns(lambda state=state: iter([state]))
    assert not cycle.repeats


def test_numbers_are_compared_by_their_bits():
    for nan in (float("nan"), np.float32("nan")):
        assert comparable(nan) == comparable(+nan)
    for zero in (0.0, np.float32(0)):
        assert comparable(zero) != comparable(-zero)
    assert len({comparable(one) for one in (1, 1.0, True, np.int32(1), np.uint32(1), np.float32(1))}) == 6
