"""Tests of vector clocks, and of the number of unions that the happens-before order computes."""

import numpy as np
import pytest

from sim.observers import clocks
from sim.observers.clocks import CHUNK, FEW, Clock, Clocks
from sim.observers.order import HappensBefore


def random_clock(random, keys, size):
    """Return a dict with bounds for some of the keys."""
    chosen = random.choice(keys, size, replace=False).tolist()
    return dict(zip(chosen, random.integers(0, 100, size).tolist()))


def merged_dicts(parts):
    """Return the maximum bound for each key."""
    keys = set().union(*parts)
    return {key: max(part.get(key, -1) for part in parts) for key in keys}


@pytest.mark.parametrize("seed", range(3))
def test_a_union_has_the_largest_bound_of_each_key(seed):
    """Merge random dicts and earlier unions. The number of keys requires a dict, one array or several arrays."""
    random = np.random.default_rng(seed)
    every = Clocks()
    pool = [({}, {})]  # (clock, dict with the same bounds)
    for _ in range(60):
        size = int(random.choice([1, 3, FEW, CHUNK, 2 * CHUNK]))
        new = random_clock(random, 3 * CHUNK, size)
        parts = [(new, new), *(pool[i] for i in random.integers(0, len(pool), 3))]
        pool.append((every.merge([clock for clock, _ in parts]), merged_dicts([d for _, d in parts])))
        clock, wanted = pool[-1]
        assert {key: clock.get(key, -1) for key in clock} == wanted
        assert clock.get("absent", -1) == -1 and isinstance(clock, dict | Clock)
        among = [*wanted][:5] + ["absent"]
        bounds = every.bounds((clock, {}), np.array([every.position(key) for key in among]))
        assert bounds.tolist() == [clock.get(key, -1) for key in among]


def test_a_union_shares_the_arrays_in_which_nothing_changes():
    every, keys = Clocks(), range(3 * CHUNK)
    first = every.merge([dict.fromkeys(keys, 7)])
    assert every.merge([first, {0: 3}, dict.fromkeys(keys, 2)]) is first
    second = every.merge([first, {CHUNK: 8}])
    shared = [one is other for one, other in zip(first.chunks, second.chunks)]
    assert shared == [True, False, True] and first.get(CHUNK) == 7
    assert every.merge([second, first]) is second


def count_unions(monkeypatch):
    """Return a list that receives an entry for each union that is computed."""
    calls, merge = [], Clocks.merge
    monkeypatch.setattr(Clocks, "merge", lambda self, parts: calls.append(parts) or merge(self, parts))
    return calls


def test_threads_that_spin_compute_no_further_unions(monkeypatch):
    """Let all threads of two blocks execute a fence. After a barrier, one thread of each block polls an
    element by atomics that write."""
    order, segment = HappensBefore(), 0
    for block in (0, 1):
        for thread in range(128):
            order.release(block, 0, thread, segment := segment + 1, "grid")
        order.sync_block(block, 0)
    calls = count_unions(monkeypatch)
    for _ in range(50):
        for block in (0, 1):
            order.perform_atomic(block, 1, 0, segment := segment + 1, 16, True, "grid")
    assert len(calls) <= 4


def test_a_thread_does_not_acquire_the_clocks_that_it_publishes():
    order = HappensBefore()
    for segment in range(0, 60, 3):
        order.release(0, 0, 0, segment, "grid")
        order.perform_atomic(0, 0, 0, segment + 1, 16, True, "grid")
    assert not order.history


def test_large_clocks_take_little_memory():
    """Let 1,024 threads execute a fence and an atomic on one element, one after the other."""
    order, threads = HappensBefore(), 4 * CHUNK
    for thread in range(threads):
        order.release(0, 0, thread, 2 * thread, "grid")
        order.perform_atomic(0, 0, thread, 2 * thread + 1, 16, True, "grid")
    known = [part for _, after in order.history.values() for parts in after for part in parts]
    arrays = {id(chunk) for clock in known if isinstance(clock, Clock) for chunk in clock.chunks}
    assert len(arrays) < 1.5 * threads
    assert clocks.NOTHING.max() == -1
