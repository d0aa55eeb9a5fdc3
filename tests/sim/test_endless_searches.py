"""Tests of the proof that searches of memory never end, and of correct kernels with similar loops."""

import numpy as np
import pytest
from numba import cuda

from sim import loop_limits, simulate
from sim.engine.schedules import Seeded
from sim.errors import ThreadError
from sim.loop_limits import ENDLESS_SEARCHES

SLOTS, THREADS = 256, 64


def finds_a_free_slot(table, keys, out):
    i = cuda.grid(1)
    slot = keys[i] % table.size
    while True:
        if cuda.atomic.cas(table, slot, 0, keys[i]) == 0:
            break
        slot = (slot + 1) % table.size
    out[i] = slot


def finds_its_key(table, keys, out):
    i = cuda.grid(1)
    key = keys[i]
    slot = key % table.size
    while True:
        old = cuda.atomic.cas(table, slot, 0, key)
        if old == 0 or old == key:
            out[i] = slot
            return
        slot = (slot + 1) % table.size


def finds_in_the_condition(table, keys, out):
    i = cuda.grid(1)
    slot = keys[i] % table.size
    while cuda.atomic.cas(table, slot, 0, keys[i]) != 0:
        slot = (slot + 1) % table.size
    out[i] = slot


@cuda.jit(device=True)
def insert(table, key):
    slot = key % table.size
    while True:
        old = cuda.atomic.cas(table, slot, 0, key)
        if old in (0, key):
            return slot
        slot = (slot + 1) % table.size


def finds_in_a_function(table, keys, out):
    for i in range(cuda.grid(1), keys.size, cuda.gridsize(1)):
        out[i] = insert(table, keys[i])


def finds_in_a_for_loop(table, keys, out):
    for i in range(cuda.grid(1), keys.size, cuda.gridsize(1)):
        key = keys[i]
        slot = key % table.size
        while True:
            old = cuda.atomic.cas(table, slot, 0, key)
            if old == 0 or old == key:
                out[i] = slot
                break
            slot = (slot + 1) % table.size


def finds_by_quadratic_probing(table, keys, out):
    i = cuda.grid(1)
    slot, step = keys[i] % table.size, 0
    while cuda.atomic.cas(table, slot, 0, keys[i]) != 0:
        step = (step + 1) % table.size
        slot = (slot + step) % table.size
    out[i] = slot


KERNELS = [finds_a_free_slot, finds_its_key, finds_in_the_condition, finds_in_a_function, finds_in_a_for_loop]


@pytest.fixture
def early(monkeypatch):
    """Examine the threads after a few iterations."""
    monkeypatch.setattr(loop_limits, "DEFAULT_STEPS", 50)
    monkeypatch.setattr(loop_limits, "FIRST_PATIENCE", 0.001)


def launch(kernel, free, threads=THREADS, **options):
    """Let each thread insert a key into a table with `free` free slots. Return the Report and the table."""
    table, out = np.full(SLOTS, 7, np.int32), np.full(threads, -1, np.int32)
    table[SLOTS - free :] = 0
    keys = np.random.default_rng(0).permutation(10**6)[:threads].astype(np.int32) + 8
    options = {"on_finding": "report", "observers": ()} | options
    return simulate(kernel, **options)[threads // 32, 32](table, keys, out), table, out


@pytest.mark.parametrize("engine", ["fibers", "auto"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_search_in_a_full_table_is_endless(kernel, engine, early):
    report, _, _ = launch(kernel, 0, engine=engine)
    (finding,) = report.findings
    assert (finding.kind, finding.reason) == ("no-progress", ENDLESS_SEARCHES)


@pytest.mark.parametrize("kernel", KERNELS)
def test_some_threads_find_the_last_free_slots(kernel, early):
    report, table, out = launch(kernel, 20)
    assert [(one.kind, one.reason) for one in report.findings] == [("no-progress", ENDLESS_SEARCHES)]
    assert table.all() and np.count_nonzero(out >= 0) == 20


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_table_with_a_free_slot_for_each_thread_has_no_finding(kernel, seed, early):
    report, table, out = launch(kernel, THREADS, seed=seed)
    assert not report.findings and table.all() and (out >= 0).all()


@pytest.mark.parametrize("seed", range(3))
def test_the_last_thread_finds_the_last_free_slot(seed, early):
    """Let 31 of 32 threads find their keys in the table, so that one thread needs its only free slot."""
    table, keys, out = (
        np.full(SLOTS, 7, np.int32),
        np.arange(100, 132, dtype=np.int32),
        np.zeros(32, np.int32),
    )
    table[(keys + 150) % SLOTS] = keys
    table[60], keys[5] = 0, 105 + 10 * SLOTS
    assert not simulate(finds_its_key, seed=seed, observers=())[1, 32](table, keys, out).findings
    assert table[60] == keys[5] and out[5] == 60 and table[out].tolist() == keys.tolist()


# --- correct kernels in which other threads end the searches ------------------------------------------------


@cuda.jit(device=True)
def work(x, n):
    """Read x[0] atomically, n times."""
    for _ in range(n):
        cuda.atomic.add(x, 0, 0)


def a_thread_works_first(table, flags, n):
    """Let the last thread free all slots after some work."""
    i = cuda.grid(1)
    if i == cuda.gridsize(1) - 1:
        work(flags, n)
        for slot in range(table.size):
            cuda.atomic.exch(table, slot, 0)
    slot = i % table.size
    while cuda.atomic.cas(table, slot, 0, i + 1) != 0:
        slot = (slot + 1) % table.size


def a_thread_works_after_its_search(table, flags, n):
    """Let a thread find its key in the full table, and then free all other slots."""
    i = cuda.grid(1)
    slot, key = table.size // 8 * i, 7 if i == 3 else i + 100
    while True:
        old = cuda.atomic.cas(table, slot, 0, key)
        if old == key or old == 0:
            break
        slot = (slot + 1) % table.size
    if i == 3:
        work(flags, n)
        for slot in range(table.size):
            cuda.atomic.exch(table, slot, 0)


def a_thread_works_in_the_branch_that_ends_its_search(table, flags, n):
    """Let a thread find its key in the full table, and free all slots in the branch that leaves the loop."""
    i = cuda.grid(1)
    slot, key = table.size // 8 * i, 7 if i == 3 else i + 100
    while True:
        old = cuda.atomic.cas(table, slot, 0, key)
        if old == key:
            for _ in range(n):
                cuda.atomic.add(flags, 0, 0)
            for slot in range(table.size):
                cuda.atomic.exch(table, slot, 0)
            break
        if old == 0:
            break
        slot = (slot + 1) % table.size


def a_thread_removes_its_key(table, flags, n):
    """Let one of two threads with the same key remove the key before the second thread finds it."""
    i = cuda.grid(1)
    slot, key = table.size // 8 * i, 7 if i == 3 or i == 4 else i + 100
    while True:
        old = cuda.atomic.cas(table, slot, 0, key)
        if old == key:
            table[slot] = 8
            for _ in range(n):
                cuda.atomic.add(flags, 0, 0)
            for slot in range(table.size):
                cuda.atomic.exch(table, slot, 0)
            break
        if old == 0:
            break
        slot = (slot + 1) % table.size


def a_thread_searches_often(table, flags, n):
    """Let a thread find a key n times, and free all slots after the last search."""
    i = cuda.grid(1)
    for turn in range(n if i == 3 else 1):
        slot, key = table.size // 8 * i, 8 if i == 3 else i + 100
        while True:
            old = cuda.atomic.cas(table, slot, 0, key)
            if old == key or old == 0:
                break
            slot = (slot + 1) % table.size
        if turn == n - 1:
            for slot in range(table.size):
                cuda.atomic.exch(table, slot, 0)


def a_thread_enlarges_the_table(table, flags, n):
    """Let all threads search the first 40 slots, which are full, until the last thread permits all slots."""
    i = cuda.grid(1)
    if i == cuda.gridsize(1) - 1:
        work(table, n)
        flags[1] = table.size
    slot = i % 8
    while cuda.atomic.cas(table, slot, 0, i + 1) != 0:
        slot = (slot + 1) % flags[1]


def a_thread_empties_a_slot(table, flags, n):
    """Let each thread search for a 0, and replace its own number by 0. Only the number of thread 3 occurs."""
    i = cuda.grid(1)
    slot, number = table.size // 8 * i, 7 if i == 3 else i + 100
    while table[slot] != 0:
        slot = (slot + 1) % table.size
        cuda.atomic.cas(table, slot, number, 0)


def threads_count_their_attempts(table, flags, n):
    """Count the attempts of all threads, and let the thread with attempt 20 * n free all slots."""
    i = cuda.grid(1)
    slot = i % table.size
    while cuda.atomic.cas(table, slot, 0, i + 1) != 0:
        slot = (slot + 1) % table.size
        if cuda.atomic.add(flags, 2, 1) == 20 * n:
            for other in range(table.size):
                cuda.atomic.exch(table, other, 0)


def threads_wait_for_their_turn(table, flags, n):
    """Let each thread free a slot for the next thread."""
    i = cuda.grid(1)
    slot = 0
    while cuda.atomic.cas(flags, 2, i, -1) != i or n < 0:
        slot = (slot + 1) % 8
    cuda.atomic.exch(flags, 2, i + 1)


def threads_search_at_different_positions(table, flags, n):
    """Let each thread search its own part of the table, in which the previous thread frees a slot."""
    i = cuda.grid(1)
    slot = 8 * i
    while cuda.atomic.cas(table, (cuda.blockIdx.x * 4 + cuda.threadIdx.x) * 64 + slot, 0, 9) != 0:
        slot = (slot + 1) % 64
    cuda.atomic.exch(table, 64 * (i + 1) + slot, 0)


def threads_count_in_memory(table, flags, n):
    """Let each thread free a slot after n attempts, and count these attempts by plain stores."""
    i = cuda.grid(1)
    slot = table.size // 8 * i
    while cuda.atomic.cas(table, slot, 0, 9) != 0:
        slot = (slot + 1) % table.size
        flags[3 + i] += 1
        if flags[3 + i] > n:
            cuda.atomic.exch(table, slot, 0)


def threads_count_in_an_inner_loop(table, flags, n):
    i = cuda.grid(1)
    slot = table.size // 8 * i
    while cuda.atomic.cas(table, slot, 0, 9) != 0:
        slot = (slot + 1) % table.size
        for _ in range(2):
            flags[3 + i] += 1
            break
        if flags[3 + i] > n:
            cuda.atomic.exch(table, slot, 0)
            return


def threads_count_before_they_continue(table, flags, n):
    i = cuda.grid(1)
    slot = table.size // 8 * i
    while True:
        slot = (slot + 1) % table.size
        if cuda.atomic.cas(table, slot, 0, 9) == 0:
            return
        if flags[1] == 40:
            flags[3 + i] += 1
            if flags[3 + i] <= n:
                continue
            break
    cuda.atomic.exch(table, slot, 0)


ENDED_BY_OTHERS = [
    a_thread_works_first,
    a_thread_works_after_its_search,
    a_thread_works_in_the_branch_that_ends_its_search,
    a_thread_removes_its_key,
    a_thread_searches_often,
    a_thread_enlarges_the_table,
    a_thread_empties_a_slot,
    threads_count_their_attempts,
    threads_wait_for_their_turn,
    threads_search_at_different_positions,
    threads_count_in_memory,
    threads_count_in_an_inner_loop,
    threads_count_before_they_continue,
]


def table_of(kernel):
    """Return the table with which a kernel in ENDED_BY_OTHERS starts."""
    if kernel is a_thread_enlarges_the_table:
        return np.repeat(np.array([7, 0], np.int32), (40, 60))
    if kernel is threads_search_at_different_positions:
        return np.repeat(np.array([7, 0, 7], np.int32), (63, 1, 8 * 64))
    if kernel in (a_thread_works_after_its_search, a_thread_empties_a_slot):
        # The other threads pass all slots before the thread that starts at slot 75 arrives at slot 25.
        return np.repeat(np.array([8, 7, 8], np.int32), (25, 1, 174))
    table = np.full(48, 8, np.int32)
    table[40] = 8 if kernel is a_thread_searches_often else 7
    return table


@pytest.mark.parametrize("kernel", ENDED_BY_OTHERS)
def test_a_search_that_another_thread_ends_has_no_finding(kernel, early):
    flags = np.zeros(16, np.int32)
    flags[1] = 40
    report = simulate(kernel, observers=(), on_finding="report")[2, 4](table_of(kernel), flags, 300)
    assert not report.findings


@pytest.mark.parametrize("requests", [50, 400])
def test_a_block_that_starts_late_ends_the_searches(requests, early, monkeypatch):
    asked = []

    def may_start_block(schedule, _):
        asked.append(schedule)
        schedule.holds += len(asked) % requests != 0
        return len(asked) % requests == 0

    monkeypatch.setattr(Seeded, "may_start_block", may_start_block)
    flags, table = np.array([0, 8, 0], np.int32), np.full(64, 7, np.int32)
    report = simulate(a_thread_works_first, observers=(), on_finding="report")[4, 8](table, flags, 5)
    assert not report.findings and len(asked) > requests


def asserts_a_limit(table, flags, n):
    i = cuda.grid(1)
    slot, attempts = table.size // 8 * i, 0
    while cuda.atomic.cas(table, slot, 0, 9) != 0:
        slot = (slot + 1) % table.size
        attempts += 1
        assert attempts < n


def test_a_thread_that_will_fail_is_not_endless(early):
    with pytest.raises(ThreadError, match="AssertionError"):
        simulate(asserts_a_limit, observers=())[2, 4](np.full(48, 8, np.int32), np.zeros(16, np.int32), 300)
