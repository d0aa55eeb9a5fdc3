"""Tests of the comparison of threads that decides whether a long-running loop still makes progress."""

from itertools import pairwise

import numpy as np
import pytest
from numba import cuda

from sim import interpreted, loop_limits, simulate
from sim.frontend import rebind
from sim.frontend.polling import common_loop
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


# --- loops that local variables alone decide ----------------------------------------------------------------


def keeps_its_count(x, n):
    """Change memory in a loop whose condition never changes."""
    tile = cuda.shared.array(32, np.float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    cuda.syncthreads()
    while n > 1:
        other = tile[(t + 1) % cuda.blockDim.x]
        cuda.syncthreads()
        tile[t] = other + 1
        cuda.syncthreads()
    x[t] = tile[t]


def adds_nothing(x, n):
    """Advance by a step of 0, and change memory in each iteration."""
    i = cuda.threadIdx.x
    while i < x.size:
        x[cuda.threadIdx.x] += 1
        i += n


def alternates(x, n):
    """Change a number between n and 1 - n, neither of which ends the loop, and change memory."""
    k = n
    while k < 2:
        x[cuda.threadIdx.x] += 1
        if k > 0:
            k = 1 - n
        else:
            k = n


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kernel, n", [(keeps_its_count, 5), (adds_nothing, 0), (alternates, 1)])
def test_a_loop_that_memory_cannot_end_is_endless_although_memory_changes(
    kernel, n, engine, early, monkeypatch
):
    monkeypatch.setattr(loop_limits, "PATIENCE", 0.3)
    report = simulate(kernel, engine=engine, on_finding="report")[1, 32](np.zeros(32, np.float32), n)
    assert [finding.kind for finding in report.findings] == ["no-progress"]


def begins_twice(x, n):
    """Run a loop with the same numbers in each iteration of another loop."""
    for _ in range(3):
        i = 0
        while i < n:
            x[0] += 1
            i += 1


def begins_twice_in_while(x, n):
    """Do the same in a `while` loop, with a result that only memory decides."""
    while x[0] < 3 * n:
        i = 0
        while i < n:
            x[0] += 1
            i += 1


def breaks(x, n):
    i = 0
    while i < n:
        x[0] += 1
        if x[0] > 2 * n:
            break


def returns_in_for(x, n):
    i = 0
    while i < n:
        x[0] += 1
        for _ in range(2):
            if x[0] > 2 * n:
                return


def continues(x, n):
    i = 0
    while i < n:
        x[0] += 1
        if x[0] < n:
            continue
        i += 1


def changes_its_step(x, n):
    i, step = 0, 0
    while i < n:
        x[0] += 1
        if x[0] > n:
            step = 1
        i += step


def counts_in_for(x, n):
    i = 0
    while i < n:
        x[0] += 1
        for _ in range(x[0] // n):
            i += 1


def reads_by_name(x, n):
    i, seen = 0, 0
    while i < n:
        x[0] += 1
        i += seen
        seen = x[0] // n


@cuda.jit(device=True)
def later(x, i, n):
    return i + (x[0] > n)


def calls_a_function(x, n):
    i = 0
    while i < n:
        x[0] += 1
        i = later(x, i, n)


def decides_atomically(x, n):
    while True:
        if cuda.atomic.add(x, 0, 1) > n:
            break


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "kernel",
    [
        begins_twice,
        begins_twice_in_while,
        breaks,
        returns_in_for,
        continues,
        changes_its_step,
        counts_in_for,
        reads_by_name,
        calls_a_function,
        decides_atomically,
    ],
)
def test_a_loop_that_memory_ends_is_not_endless(kernel, engine, early, monkeypatch):
    """Compare the local variables in nearly every iteration."""
    monkeypatch.setattr(loop_limits, "DEFAULT_STEPS", 5)
    assert not simulate(kernel, engine=engine, on_finding="report")[1, 1](np.zeros(1, np.int64), 200).findings


# --- loops that all threads enter with the same values ------------------------------------------------------


def takes_a_lock(lock, out):
    """Wait for a lock before any other access, and never release it."""
    i = cuda.grid(1)
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:
        pass
    out[i] = 1


def waits_for_a_flag(flag, out):
    """Wait for a flag that no thread sets."""
    i = cuda.grid(1)
    while cuda.atomic.add(flag, 0, 0) == 0:
        pass
    out[i] = 1


@pytest.fixture
def soon(monkeypatch):
    """Examine the common loop of a kernel after 32 turns."""
    monkeypatch.setattr(interpreted, "FIRST_COMMON_TEST", 32)


@pytest.mark.parametrize("kernel", [takes_a_lock, waits_for_a_flag])
def test_blocks_that_have_not_started_cannot_end_the_common_loop(kernel, soon):
    report = simulate(kernel, on_finding="report")[40, 32](np.zeros(2, np.int32), np.zeros(1280, np.int32))
    (finding,) = report.findings
    assert (finding.kind, finding.reason) == ("no-progress", loop_limits.FAILED_ATOMICS)
    assert report.counters["blocks"] < 10


def releases_a_lock(lock, out):
    i = cuda.grid(1)
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:
        pass
    out[i] = 1
    cuda.threadfence()
    cuda.atomic.exch(lock, 0, 0)


def is_set_by_the_last_block(flag, out):
    i = cuda.grid(1)
    if i == out.size - 1:
        cuda.atomic.exch(flag, 0, 1)
    while cuda.atomic.add(flag, 0, 0) == 0:
        pass
    out[i] = 1


def sets_the_flag_of_the_previous_thread(flag, out):
    i = cuda.grid(1)
    while i < out.size - 1 and cuda.atomic.add(flag, i + 1, 0) == 0:
        pass
    cuda.atomic.exch(flag, i, 1)
    out[i] = 1


def takes_a_number_in_the_loop(flag, out):
    """Let the thread that takes the last number in a loop set the flag."""
    while cuda.atomic.add(flag, 0, 0) == 0:
        if cuda.atomic.add(flag, 1, 1) == out.size - 1:
            cuda.atomic.exch(flag, 0, 1)
    out[cuda.grid(1)] = 1


def counts_before_the_loop(flag, out):
    number = cuda.atomic.add(flag, 1, 1)
    if number == out.size - 1:
        cuda.atomic.exch(flag, 0, 1)
    while cuda.atomic.add(flag, 0, 0) == 0:
        pass
    out[cuda.grid(1)] = 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "kernel",
    [
        releases_a_lock,
        is_set_by_the_last_block,
        sets_the_flag_of_the_previous_thread,
        takes_a_number_in_the_loop,
        counts_before_the_loop,
    ],
)
def test_a_loop_that_some_thread_ends_is_not_endless(kernel, seed, soon):
    flags, out = np.zeros(65, np.int32), np.zeros(64, np.int32)
    assert not simulate(kernel, seed=seed, observers=())[16, 4](flags, out).findings
    assert out.all()


def waits_for_a_flag_of_its_own(flag, out):
    while cuda.atomic.add(flag, cuda.grid(1) + 1, 0) == 0 and cuda.grid(1) < out.size - 1:
        pass
    cuda.atomic.exch(flag, cuda.grid(1), 1)
    out[cuda.grid(1)] = 1


def test_blocks_that_have_not_started_can_end_a_loop_that_depends_on_the_thread(soon, monkeypatch):
    found = []
    monkeypatch.setattr(rebind, "common_loop", lambda *given: found.append(common_loop(*given)) or found[-1])
    flags, out = np.zeros(1281, np.int32), np.zeros(1280, np.int32)
    assert not simulate(waits_for_a_flag_of_its_own, observers=())[40, 32](flags, out).findings
    assert out.all() and found == [range(0)]
