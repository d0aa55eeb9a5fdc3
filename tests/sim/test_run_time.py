"""Tests that a launch with a bug ends soon. The tests count work instead of seconds, because machines
differ."""

import re
import sys
import threading
import time
from math import inf
from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda, float32, int32

from sim import context, empty, error_limit, idle_variables, loop_limits, progress, reruns, simulate
from sim.engine import attempts, watchdog
from sim.engine.scheduler import STOPPED, Scheduler
from sim.engine.schedules import Adversarial
from sim.errors import Stuck
from sim.events import LOAD, STORE
from sim.forecast import Numbers, directions
from sim.interpreted import AFTER_ERROR, AFTER_LIMIT
from sim.native import source
from sim.native.run import explain, launch
from sim.observers import advice, cells, pairs, probe, uninitialized
from sim.observers.collisions import Collisions
from sim.progress import ProgressCheck

THREADS = 64


@cuda.jit
def bitonic_without_barriers(x):
    tile = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    tile[t] = x[cuda.grid(1)]
    k = 2
    while k <= THREADS:
        j = k // 2
        while j > 0:
            other = t ^ j
            if other > t:
                if (t & k == 0) == (tile[t] > tile[other]):
                    a = tile[t]
                    tile[t] = tile[other]
                    tile[other] = a
            j //= 2
        k *= 2
    x[cuda.grid(1)] = tile[t]


def test_each_pair_of_lines_gets_its_advice_once(monkeypatch):
    advised = []
    of_race = advice.of_race
    monkeypatch.setattr(advice, "of_race", lambda facts: advised.append(facts) or of_race(facts))
    x = np.random.default_rng(0).random(8 * THREADS).astype(np.float32)
    report = simulate(bitonic_without_barriers, on_finding="report")[8, THREADS](x)
    assert sum(finding.count for finding in report.findings) > 1000
    # A pair that takes precedence over an earlier one, such as one with a lower index, gets its own advice.
    assert len(advised) < 20 * len(report.findings)


@pytest.mark.parametrize("fenced", [False, True])
def test_a_cell_with_the_same_races_in_each_block_is_searched_once(fenced, monkeypatch):
    """Launch a scan without its barriers. If a fence and an atomic follow, one thread of each block acquires
    what other blocks have released, but none of the racing accesses is ordered."""

    @cuda.jit
    def scan(x, count):
        tile = cuda.shared.array(THREADS, float32)
        t = cuda.threadIdx.x
        tile[t] = x[cuda.grid(1)]
        d = 1
        while d < THREADS:
            if t >= d:
                tile[t] += tile[t - d]
            d *= 2
        x[cuda.grid(1)] = tile[t]
        if fenced and t == THREADS - 1:
            cuda.threadfence()
            cuda.atomic.add(count, 0, 1)

    searched, search = [], Collisions.search
    monkeypatch.setattr(Collisions, "search", lambda *of: searched.append(of) or search(*of))

    def launch(blocks):
        """Return (searched cells per run, racing pairs of a run, elements named by the findings)."""
        searched.clear()
        x, count = np.zeros(blocks * THREADS, np.float32), np.zeros(1, np.int32)
        report = simulate(scan, on_finding="report")[blocks, THREADS](x, count)
        found = [finding for finding in report.findings if finding.kind == "race-shared"]
        runs, cases = report.counters["schedules"], sum(finding.count + 1 for finding in found)
        return len(searched) / runs, cases, {(f.array, f.index) for f in found}

    (few, once, elements), (many, often, same) = launch(1), launch(3)
    assert often == 3 * once > THREADS and same == elements
    # The acquiring thread accesses log2(THREADS) + 1 of the cells. These cells are searched in each block.
    assert THREADS - 1 <= few <= many <= few + 2 * THREADS.bit_length() * fenced


@cuda.jit
def pops(head, items, out):
    """Let each thread take one item by a compare-and-swap loop."""
    taken = False
    while not taken:
        first = cuda.atomic.add(head, 0, 0)
        if cuda.atomic.cas(head, 0, first, first + 1) == first:
            out[first] = items[first] + 1
            taken = True


def test_contending_threads_take_few_turns(monkeypatch):
    n, turns = 512, []
    wait = Scheduler.wait
    monkeypatch.setattr(Scheduler, "wait", lambda self, *how: turns.append(how) or wait(self, *how))
    head, out = np.zeros(1, np.int32), np.zeros(n, np.int32)
    report = simulate(pops, observers=())[2, n // 2](head, np.arange(n, dtype=np.int32), out)
    assert not report.findings and head[0] == n and (out == np.arange(n) + 1).all()
    # about n * n / 2 turns would be needed if a thread that lost had to yield first
    assert len(turns) < 4 * n


@cuda.jit
def polls_two_elements(flags, steps):
    if cuda.grid(1) > 0:
        while cuda.atomic.add(flags, 0, 0) == 0 and cuda.atomic.add(flags, 1, 0) == 0:
            pass
    else:
        for _ in range(steps):
            cuda.atomic.add(flags, 2, 1)
        cuda.atomic.exch(flags, 0, 1)


def test_threads_that_poll_several_elements_are_skipped(monkeypatch):
    n, steps, turns = 64, 200, []
    wait = Scheduler.wait
    monkeypatch.setattr(Scheduler, "wait", lambda self, *how: turns.append(how) or wait(self, *how))
    simulate(polls_two_elements, observers=())[2, n // 2](np.zeros(3, np.int32), steps)
    # About n * steps turns would be needed if the pollers were never skipped.
    assert len(turns) < n * steps / 8


@cuda.jit
def takes_a_lock(lock):
    while cuda.atomic.cas(lock, 0, 0, 1) != 0:
        pass


def test_skipped_threads_do_not_delay_the_verdict(monkeypatch):
    """Check that a million attempts to take a lock include those that the scheduler skips."""
    # The limit on iterations has to apply, not the limit on seconds.
    monkeypatch.setattr(loop_limits, "FIRST_PATIENCE", 8.0)
    monkeypatch.setattr(loop_limits, "DEFAULT_STEPS", 5_000)
    skips, skip = [], Scheduler.should_skip
    monkeypatch.setattr(Scheduler, "should_skip", lambda *of: skips.append(skip(*of)) or skips[-1])
    report = simulate(takes_a_lock, observers=(), on_finding="report")[2, 64](np.zeros(1, np.int32))
    (finding,) = report.findings
    assert finding.kind == "no-progress" and sum(skips) < 2 * loop_limits.DEFAULT_STEPS


@cuda.jit
def waits_for_items(head, tail, items, out):
    """Let each thread wait for an item, but only some items are pushed."""
    ticket = cuda.atomic.add(head, 0, 1)
    while cuda.atomic.add(tail, 0, 0) <= ticket:
        pass
    out[ticket] = items[ticket]


def test_endless_wait_of_many_threads_is_decided_after_few_iterations(monkeypatch):
    """Scale the limits down from 2,048 threads and 1 s, so that 512 threads are many."""
    monkeypatch.setattr(progress, "MANY_REPEATS", progress.MANY_REPEATS // 4)
    monkeypatch.setattr(loop_limits, "FIRST_PATIENCE", 0.1)
    blocks, threads, pushed, compared = 4, 128, 20, []
    check = ProgressCheck.nothing_changes
    monkeypatch.setattr(ProgressCheck, "nothing_changes", lambda *of: compared.append(of[1]) or check(*of))
    n = blocks * threads
    head, tail, items = np.zeros(1, np.int32), np.full(1, pushed, np.int32), np.ones(n, np.int32)
    report = simulate(waits_for_items, on_finding="report")[blocks, threads](head, tail, items, 0 * items)
    (finding,) = report.findings
    assert finding.kind == "no-progress" and "without end" in finding.verdict
    assert not compared  # the test of attempts decides


@cuda.jit
def hands_over(cells, late, flag, out):
    """Hand cells over to another block by a fence and a flag, except for the last `late` cells."""
    n = cells.size
    if cuda.blockIdx.x == 0:
        for i in range(n - late):
            cells[i] = 1
        cuda.threadfence()
        cuda.atomic.exch(flag, 0, 1)
        for i in range(n - late, n):
            cells[i] = 1
    else:
        while cuda.atomic.add(flag, 0, 0) == 0:
            pass
        for i in range(n):
            out[0] += cells[i]


@pytest.mark.parametrize("late", [0, 1, 30])
def test_cells_with_the_same_accesses_are_judged_once(monkeypatch, late):
    n, judged, search = 300, [], pairs.successive_pairs
    monkeypatch.setattr(pairs, "successive_pairs", lambda *of: judged.append(of) or search(*of))
    arguments = np.zeros(n), late, np.zeros(1, np.int32), np.zeros(1)
    report = simulate(hands_over, on_finding="report")[2, 1](*arguments)
    assert len(judged) <= 4 * report.counters["schedules"]
    assert [finding.kind for finding in report.findings] == ["race-global"] * min(late, 1)
    assert all(f"cells[{n - late}]" in finding.verdict for finding in report.findings)


@cuda.jit
def counts_its_polls(flag, out):
    tries = 0
    while cuda.atomic.add(flag, 0, 0) == 0:
        tries += 1
    out[cuda.grid(1)] = tries


@cuda.jit
def deadlocks_and_counts(locks, out):
    """Let two blocks take two locks in opposite orders, and count the attempts."""
    first, tries = cuda.blockIdx.x, 0
    while cuda.atomic.cas(locks, first, 0, 1) != 0:
        tries = tries + 1
    while cuda.atomic.cas(locks, 1 - first, 0, 1) != 0:
        tries = tries + 1
    out[first] = tries


@pytest.mark.parametrize("kernel, threads", [(counts_its_polls, 32), (deadlocks_and_counts, 1)])
def test_count_of_attempts_does_not_hide_an_endless_loop(kernel, threads):
    report = simulate(kernel, on_finding="report")[2, threads](np.zeros(2, np.int32), np.zeros(64, np.int32))
    (finding,) = report.findings
    assert finding.kind == "no-progress" and "without end" in finding.verdict


@cuda.jit
def gives_up(flag, rounds, out):
    """Poll a flag, and raise it after a number of attempts that only a count of iterations shows."""
    for _ in range(rounds):
        while cuda.atomic.add(flag, 0, 0) > 1:
            pass
    tries = 0
    while cuda.atomic.add(flag, 0, 0) == 0:
        tries += 1
        if tries >= rounds:
            cuda.atomic.exch(flag, 0, 1)
    out[cuda.grid(1)] = tries


def test_loop_that_counts_until_it_ends_is_not_reported(monkeypatch):
    monkeypatch.setattr(loop_limits, "FIRST_PATIENCE", 0.02)
    report = simulate(gives_up, observers=())[2, 4](np.zeros(1, np.int32), 300, np.zeros(8, np.int32))
    assert not report.findings


def test_idle_variables_of_a_loop():
    def loop(flag, step, n):
        count = total = other = last = 0
        for index in range(n):
            count += 1
            total = total + other * step
            other = other ^ total
            while flag[last] == count - 1 and index:
                last = last + 1
        return count, total

    (_, _, idle), *further = idle_variables.loops_of(loop.__code__)
    # `index` shows that the `for` loop advances; `count` and `last` decide how often the inner loop runs.
    assert idle == {"total", "other"} and not further


def test_undecided_loop_names_the_remedy(monkeypatch):
    """Check that the finding says how to let a possibly correct loop continue."""
    monkeypatch.setattr(loop_limits, "PATIENCE", 0.5)

    @cuda.jit
    def draws(out):
        state = 1
        while state != 0:
            state = (state * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFF
        out[0] = state

    report = simulate(draws, on_finding="report")[1, 1](np.zeros(1, np.int64))
    (finding,) = report.findings
    assert finding.kind == "undecided" and "max_steps" in finding.fix
    assert any(note.startswith("stopped before its end") and "max_steps" in note for note in report.notes)


@cuda.jit
def searches(wanted, out):
    """Draw numbers until one is small. The search ends, but nothing shows when."""
    state, tries = 12345, 0
    while state >= wanted:
        state = (state * 1664525 + 1013904223) & 0xFFFFFFFF
        tries += 1
    out[0] = state


def test_long_search_is_not_cut_short(monkeypatch):
    for name, value in (("FIRST_PATIENCE", 0.02), ("PATIENCE", 0.5), ("SEARCH_FACTOR", 1000)):
        monkeypatch.setattr(loop_limits, name, value)
    wanted, out = 6000, np.zeros(1, np.int64)
    report = simulate(searches)[1, 1](wanted, out)
    assert not report.findings and out[0] < wanted


@cuda.jit
def misses_in_a_long_cycle(out):
    """Go through a thousand values, none of which ends the loop."""
    value = 1
    while value != 0:
        value = (value * 3) % 1009
    out[0] = value


def test_long_cycle_is_found():
    report = simulate(misses_in_a_long_cycle, on_finding="report")[1, 1](np.zeros(1, np.int64))
    (finding,) = report.findings
    assert finding.kind == "no-progress" and "without end" in finding.verdict


@pytest.mark.parametrize("size", [8, 32])
def test_loads_far_from_writes_are_not_divided_into_bytes(size):
    address = np.array([0, 12, 16, 24, 32, 44, 48, 160])
    action = np.where(address == 24, STORE, LOAD)
    rows = SimpleNamespace(address=address, size=np.where(action == STORE, size, 8), action=action)
    near = address[cells.near_writes(rows)].tolist()
    assert near == ([12, 16, 24] if size == 8 else address.tolist())


@cuda.jit
def looks_up(table, wanted, out):
    """Search a hash table without an empty slot."""
    slot = wanted & (table.size - 1)
    while table[slot] != wanted:
        slot = (slot + 1) & (table.size - 1)
    out[cuda.grid(1)] = slot


def test_search_of_a_full_hash_table_is_found(monkeypatch):
    """Check that a cycle with more than MOST_STATES states is found by the exhaustive comparison."""
    monkeypatch.setattr(loop_limits, "FIRST_PATIENCE", 0.02)
    table, began = np.arange(2 * progress.MOST_STATES), time.process_time()
    report = simulate(looks_up, on_finding="report")[1, 1](table, -1, np.zeros(1, np.int64))
    (finding,) = report.findings
    assert finding.kind == "no-progress" and "without end" in finding.verdict
    assert time.process_time() - began < 6  # 0.4 s; without the comparison, 12 s


def test_the_forecast_reads_numpy_numbers_as_python_numbers():
    """Test uint32 variables. The results of comparisons of NumPy numbers have no difference, so that the
    forecast must not subtract them."""

    def loop(i, end):
        while i < end:
            return Numbers([sys._getframe()])

    first, second = (loop(np.uint32(i), np.uint32(9)) for i in (4, 3))
    moved = [numbers.moving[0, "i"] for numbers in (first, second)]
    assert directions(moved) == {-1} and moved[1] - moved[0] == -1


@cuda.jit
def reversed_without_barrier(x):
    tile = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    tile[t] = x[cuda.grid(1)]
    x[cuda.grid(1)] = tile[THREADS - 1 - t] + float32(1)


@cuda.jit
def sum_without_barrier_in_its_loop(x):
    tile = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    s = float32(0)
    for i in range(8):
        tile[t] = x[cuda.grid(1)] + i
        cuda.syncthreads()
        s += tile[THREADS - 1 - t]
    x[cuda.grid(1)] = s + float32(1)


def blocks_written(kernel, engine, blocks, **options):
    """Return the Report of a launch with an error, and the number of blocks that wrote their elements."""
    x = np.zeros(blocks * THREADS, np.float32)
    report = simulate(kernel, engine=engine, on_finding="report", **options)[blocks, THREADS](x)
    return report, np.count_nonzero(x.reshape(blocks, THREADS).any(axis=1))


def ended_early(report):
    return any("ran to the end" in note for note in report.notes)


@pytest.mark.parametrize("engine", ["fibers", "threads", "native"])
@pytest.mark.parametrize("kernel", [reversed_without_barrier, sum_without_barrier_in_its_loop])
def test_a_launch_ends_soon_after_an_error(monkeypatch, kernel, engine):
    blocks = 40 if engine == "native" else 4
    monkeypatch.setattr(error_limit, "SECONDS_AFTER_ERROR", 1000)
    report, written = blocks_written(kernel, engine, blocks)
    assert report.errors[0].kind == "race-shared" and written == blocks and not ended_early(report)
    monkeypatch.setattr(error_limit, "SECONDS_AFTER_ERROR", -1)
    report, written = blocks_written(kernel, engine, blocks)
    assert report.errors[0].kind == "race-shared" and written <= 1 and ended_early(report)
    stopped = (
        f"stopped {AFTER_ERROR}, so its results are incomplete: {written} of {blocks} blocks ran to the end"
    )
    assert stopped in " ".join(report.notes)
    report, written = blocks_written(kernel, engine, blocks, max_steps=10**9)
    assert written == blocks and not ended_early(report)


@cuda.jit
def reads_fresh_memory(x, scale):
    """Use unwritten shared memory, which has no effect if `scale` is 0."""
    tile = cuda.shared.array(THREADS, int32)
    t = cuda.threadIdx.x
    cuda.syncthreads()
    x[cuda.grid(1)] = tile[t] * scale + 1


@pytest.mark.parametrize("engine", ["fibers", "native"])
@pytest.mark.parametrize("scale", [0, 1])
def test_a_trial_decides_whether_undefined_values_end_the_launch(monkeypatch, engine, scale):
    monkeypatch.setattr(error_limit, "SECONDS_AFTER_ERROR", -1)
    monkeypatch.setattr(error_limit, "FIRST_TRIAL", 1e-4)
    x = np.zeros(8 * THREADS, np.int32)
    report = simulate(reads_fresh_memory, engine=engine, on_finding="report")[8, THREADS](x, scale)
    (finding,) = report.findings
    assert finding.kind == "uninitialized-read" and finding.severity == ("error" if scale else "warning")
    assert ended_early(report) == bool(scale) and x.all() == (not scale)


@cuda.jit
def reads_fresh_local_memory(x):
    own = cuda.local.array(1, int32)
    x[cuda.grid(1)] = own[0] * 0 + 1


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_unwritten_local_memory_ends_the_launch(monkeypatch, engine):
    monkeypatch.setattr(error_limit, "SECONDS_AFTER_ERROR", -1)
    x = np.zeros(4, np.int32)
    report = simulate(reads_fresh_local_memory, engine=engine, on_finding="report")[4, 1](x)
    (finding,) = report.findings
    assert finding.kind == "uninitialized-read" and ended_early(report) and x.sum() == 1


@cuda.jit
def reads_fresh_memory_often(x):
    tile = cuda.shared.array(8, int32)
    for _ in range(4):
        x[cuda.grid(1)] += tile[7 - cuda.threadIdx.x]
        cuda.syncthreads()


def test_repeated_reads_of_a_block_are_counted(monkeypatch):
    reads, read = [], uninitialized.Uninitialized.read
    monkeypatch.setattr(uninitialized.Uninitialized, "read", lambda *of: reads.append(of) or read(*of))

    def launch():
        reads.clear()
        report = simulate(reads_fresh_memory_often, on_finding="report")[2, 8](np.zeros(16, np.int32))
        (finding,) = report.findings
        return finding, len(reads) // 2

    complete, number = launch()
    monkeypatch.setattr(uninitialized, "MAX_READS", 8)
    found, fewer = launch()
    assert found == complete and found.count == 63 and fewer < number


def test_the_watchdog_of_a_launch_ends_with_it():
    """Count the threads after each launch. A watchdog that still runs keeps the launch and its module alive."""
    before, after = threading.active_count(), []
    for _ in range(20):
        simulate(reads_fresh_memory, on_finding="report")[1, THREADS](np.zeros(THREADS, np.int32), 0)
        after.append(threading.active_count())
    assert max(after) == before


def test_reruns_have_a_limit_together(monkeypatch):
    monkeypatch.setattr(reruns, "MAX_SECONDS", -1)
    x = np.zeros(8 * THREADS, np.int32)
    report = simulate(reads_fresh_memory, on_finding="report")[8, THREADS](x, 0)
    assert "only 4 of 6 initial values were tried" in " ".join(report.notes) and not report.errors
    head, out = np.zeros(1, np.int32), np.zeros(4, np.int32)
    report = simulate(takes_items_twice, on_finding="report")[1, 4](head, out)
    assert report.counters["schedules"] == 1 and report.errors


@pytest.fixture
def rerun_contexts(monkeypatch):
    """Return a list that receives the limit on turns and the Context of each rerun."""
    contexts, run_once = [], reruns.Reruns.run_once

    def run_and_record(self, *given, max_turns=inf):
        contexts.append((max_turns, run_once(self, *given, max_turns=max_turns)))
        return contexts[-1][1]

    monkeypatch.setattr(reruns.Reruns, "run_once", run_and_record)
    return contexts


@cuda.jit
def counts_under_a_lock(lock, count):
    waiting = True
    while waiting:
        if cuda.atomic.cas(lock, 0, 0, 1) == 0:
            cuda.threadfence()
            count[0] += 1
            cuda.threadfence()
            cuda.atomic.exch(lock, 0, 0)
            waiting = False


def test_first_parts_have_a_limit_of_effort(rerun_contexts, monkeypatch):
    monkeypatch.setattr(reruns, "MAX_TURNS", 0)
    monkeypatch.setattr(reruns, "PART_TURNS", 2_000)
    monkeypatch.setattr(reruns, "PARTS_EFFORT", 18_000)
    report = simulate(counts_under_a_lock)[4, 64](np.zeros(1, np.int32), np.zeros(1))
    efforts = [context.effort for max_turns, context in rerun_contexts if max_turns < inf]
    # Nine parts of 2,000 turns would fit if all turns took equally long.
    assert sum(efforts[:-1]) < 18_000 <= sum(efforts) and len(efforts) < 9
    assert f"its first blocks under {len(efforts)} more" in " ".join(report.notes)


def test_a_random_schedule_of_a_large_launch_fits_into_the_budget(rerun_contexts, monkeypatch):
    """Let the first two reruns take few turns, because their threads spin without yielding."""
    monkeypatch.setattr(reruns, "MAX_TURNS", 0)
    monkeypatch.setattr(reruns, "PARTS_EFFORT", 0)
    simulate(counts_under_a_lock)[2, 64](np.zeros(1, np.int32), np.zeros(1))
    schedules = [context.schedule for _, context in rerun_contexts]
    assert schedules and all(isinstance(schedule, Adversarial) for schedule in schedules)


@cuda.jit
def takes_items_twice(head, out):
    out[cuda.atomic.add(head, 0, 1) // 2] = cuda.threadIdx.x


@cuda.jit
def fails_and_computes(x, rounds):
    x[x.size] = 1
    for _ in range(rounds):
        x[0] += 1


@pytest.mark.parametrize("engine", ["fibers", "threads", "native"])
def test_a_long_thread_ends_soon_after_an_error(monkeypatch, engine):
    monkeypatch.setattr(error_limit, "SECONDS_AFTER_ERROR", -1)
    monkeypatch.setattr(watchdog, "INTERVAL", 0.02)
    x, rounds = np.zeros(4), 10**8
    report = simulate(fails_and_computes, engine=engine, on_finding="report")[1, 1](x, rounds)
    assert [finding.kind for finding in report.findings] == ["out-of-bounds"]
    assert 0 < x[0] < rounds and ended_early(report)


@cuda.jit
def races_and_computes(x):
    x[0] = cuda.threadIdx.x
    for _ in range(100):
        x[cuda.threadIdx.x + 1] += 1


@pytest.mark.parametrize("engine", ["fibers", "threads"])
def test_a_race_in_a_long_epoch_ends_the_launch(monkeypatch, engine):
    def launch():
        x = np.zeros(9)
        report = simulate(races_and_computes, engine=engine, on_finding="report")[1, 8](x)
        (finding,) = report.findings
        return finding, np.count_nonzero(x[1:]), ended_early(report)

    monkeypatch.setattr(context, "FLUSH_AT", 300)
    complete = launch()
    monkeypatch.setattr(probe, "FIRST_PROBE", 500)
    assert launch() == complete and complete[1:] == (8, False)
    monkeypatch.setattr(error_limit, "SECONDS_AFTER_ERROR", -1)
    finding, written, ended = launch()
    assert finding.key == complete[0].key and written < 8 and ended


def test_compiled_blocks_end_soon_after_an_error(monkeypatch):
    monkeypatch.setattr(launch, "SECONDS_AFTER_ERROR", -1)
    report, written = blocks_written(reversed_without_barrier, "native", 200)
    assert report.errors[0].kind == "race-shared" and report.counters["blocks"] == written
    assert written == 1
    assert f"{written} of 200 blocks ran to the end" in " ".join(report.notes)


def test_a_long_compiled_block_ends_soon_after_an_error(monkeypatch):
    for module in (launch, error_limit):
        monkeypatch.setattr(module, "SECONDS_AFTER_ERROR", -1)
    monkeypatch.setattr(watchdog, "INTERVAL", 0.02)
    report = simulate(fails_and_computes, engine="native", on_finding="report")[9, 1024](np.zeros(4), 10**9)
    assert report.errors[0].kind == "out-of-bounds" and ended_early(report)


ROUNDS = 1 << 8


@pytest.mark.parametrize("depth", [2, 3])
def test_long_nests_of_short_loops_poll(depth):
    @cuda.jit
    def two(x):
        for _ in range(ROUNDS):
            for _ in range(ROUNDS):
                x[0] += 1

    @cuda.jit
    def three(x):
        for i in range(ROUNDS):
            for _ in range(ROUNDS):
                for _ in range(ROUNDS):
                    x[0] += 1

    text = source({2: two, 3: three}[depth], np.zeros(1))
    assert ("if i & 15 == 0 and poll_stop(state)" in text) == (depth == 3)
    assert text.count("poll_stop(") == depth - 2


@cuda.jit
def counts_to(x, end):
    i = 0
    while i < end:
        i += 1
    x[cuda.grid(1)] = i


def test_blocks_after_a_long_loop_are_not_lost(monkeypatch):
    """Exceed the limit of compiled code, which then does not run the blocks after the loop."""
    monkeypatch.setattr(launch, "WHILE_LIMIT", 100)
    x = np.zeros(9 * 1024, np.int32)
    report = simulate(counts_to, engine="native")[9, 1024](x, 2)
    assert (x == 2).all() and report.counters["blocks"] == 9


def test_a_long_loop_that_ends_is_compiled(monkeypatch):
    """Exceed the first limit of compiled code, at which the interpreter finds no endless loop."""
    monkeypatch.setattr(launch, "FIRST_LIMIT", 10_000)
    monkeypatch.setattr(launch, "FIRST_SECONDS", -1)
    monkeypatch.setattr(explain, "MOST_PROBE_SECONDS", 0.1)
    interpret_blocks, outcomes = explain.interpret_blocks, []

    def recorded(*given, **limits):
        outcomes.append(interpret_blocks(*given, **limits))
        return outcomes[-1]

    monkeypatch.setattr(explain, "interpret_blocks", recorded)
    x = np.zeros(9 * 1024, np.int32)
    report = simulate(counts_to, engine="native")[9, 1024](x, 5_000)
    assert (x == 5_000).all() and report.notes == ("compiled",)
    (examined,) = outcomes  # The interpreter does not run the block to its end.
    (note,) = [note for note in examined.notes if "0 of 9 blocks ran to the end" in note]
    assert note.startswith(f"the launch was stopped {AFTER_LIMIT}, so")


@cuda.jit
def repeats_in_block_1(x, end):
    i = 0
    while i < end or cuda.blockIdx.x == 1:
        i = (i + 1) % (end + 1)
    x[cuda.grid(1)] = i


def test_an_endless_loop_in_a_compiled_block_does_not_count_as_a_late_error(monkeypatch):
    """Find an endless loop in the second of three blocks, before which no error and no time limit occurs."""
    monkeypatch.setattr(launch, "FIRST_LIMIT", 10_000)
    monkeypatch.setattr(launch, "FIRST_SECONDS", -1)
    x = np.zeros(3 * 32, np.int32)
    report = simulate(repeats_in_block_1, engine="native", on_finding="report")[3, 32](x, 5)
    assert [finding.kind for finding in report.findings] == ["no-progress"] and not ended_early(report)
    assert report.notes[0] == "compiled; block 1 is explained by the interpreter"


def test_an_endless_loop_after_a_long_block_is_found_in_slow_code(monkeypatch):
    """Let quick code exceed its time limit after the interpreter has examined the first block."""
    monkeypatch.setattr(launch, "FIRST_LIMIT", 10_000)
    monkeypatch.setattr(launch, "FIRST_SECONDS", -1)
    monkeypatch.setattr(launch, "QUICK_SECONDS", 0.01)
    x = np.zeros(3 * 32, np.int32)
    report = simulate(repeats_in_block_1, engine="native", on_finding="report")[3, 32](x, 500)
    assert [finding.kind for finding in report.findings] == ["no-progress"]


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_an_undecided_loop_does_not_count_as_a_late_error(monkeypatch, engine):
    monkeypatch.setattr(loop_limits, "PATIENCE", 0.2)
    report = simulate(counts_to, engine=engine, on_finding="report")[3, 32](np.zeros(96, np.int32), 10**9)
    assert [finding.kind for finding in report.findings] == ["undecided"]
    assert STOPPED in report.notes and not ended_early(report)


def test_a_block_that_soon_ends_is_not_examined(monkeypatch):
    """Exceed the first limit of compiled code, but only for a short time."""
    monkeypatch.setattr(launch, "FIRST_LIMIT", 1 << 17)
    monkeypatch.setattr("sim.native.engine.find_endless_loop", None)
    x = np.zeros(2 * 1024, np.int32)
    report = simulate(counts_to, engine="native")[2, 1024](x, 1000)
    assert (x == 1000).all() and report.notes == ("compiled",)


@cuda.jit
def stores_equal_values(x):
    tile = cuda.shared.array(1, float32)
    tile[0] = 3
    cuda.syncthreads()
    x[cuda.grid(1)] = tile[0]


def test_a_launch_without_errors_does_not_end_early(monkeypatch):
    """Stores of equal values are only a warning, although compiled code flags them."""
    monkeypatch.setattr(launch, "SECONDS_AFTER_ERROR", -1)
    monkeypatch.setattr(error_limit, "SECONDS_AFTER_ERROR", -1)
    report, written = blocks_written(stores_equal_values, "native", 200)
    assert not report.errors and report.findings and written == 200 and not ended_early(report)


@cuda.jit
def reads_a_missing_lane(x, scale):
    t = cuda.threadIdx.x
    value = t
    if t % 32 != 31:
        value = cuda.shfl_sync(0xFFFFFFFF, t, 31)
    x[cuda.grid(1)] = value * scale + 1


@pytest.mark.parametrize("engine", ["fibers", "native"])
@pytest.mark.parametrize("scale", [0, 1])
def test_a_trial_decides_whether_a_missing_lane_ends_the_launch(monkeypatch, engine, scale):
    monkeypatch.setattr(error_limit, "SECONDS_AFTER_ERROR", -1)
    monkeypatch.setattr(error_limit, "FIRST_TRIAL", 1e-4)
    x = np.zeros(8 * THREADS, np.int32)
    report = simulate(reads_a_missing_lane, engine=engine, on_finding="report")[8, THREADS](x, scale)
    assert {(finding.kind, finding.severity) for finding in report.findings} == (
        {("warp-divergence", "error")} if scale else set()
    )
    assert ended_early(report) == bool(scale) and x.all() == (not scale)


@cuda.jit
def leaves_a_barrier_out(x):
    if cuda.threadIdx.x % 2 == 0:
        cuda.syncthreads()
    x[cuda.grid(1)] = 1


@pytest.mark.parametrize("engine", ["fibers", "threads", "native"])
def test_a_missed_barrier_ends_the_launch_before_all_threads_have_run(monkeypatch, engine):
    monkeypatch.setattr(error_limit, "SECONDS_AFTER_ERROR", -1)
    report, written = blocks_written(leaves_a_barrier_out, engine, 4)
    (finding,) = report.findings
    assert finding.kind == "barrier-divergence" and ended_early(report)
    assert re.fullmatch(rf"\d+ of {THREADS} threads wait at a barrier and \d+ have returned", finding.verdict)
    waits, returned = finding.accesses
    assert (waits.what, returned.what) == ("waits", "returned") and returned.thread[0] % 2 == 1


@cuda.jit
def adds_to_one(x):
    i = cuda.grid(1)
    if i > 0:
        x[i] = 0
    x[i] += 1


@cuda.jit
def adds_after_another_block(x, flag):
    """Let block 1 write x[0] before block 0 reads it."""
    if cuda.blockIdx.x == 1:
        x[0] = 1
        cuda.threadfence()
        cuda.atomic.exch(flag, 0, 1)
    else:
        while cuda.atomic.add(flag, 0, 0) == 0:
            pass
        cuda.threadfence()
        x[0] += 1


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_unwritten_global_memory_ends_the_launch(monkeypatch, engine):
    monkeypatch.setattr(error_limit, "SECONDS_AFTER_ERROR", -1)
    blocks = 8
    report = simulate(adds_to_one, engine=engine, on_finding="report")[blocks, 2](empty(2 * blocks, np.int32))
    (finding,) = report.findings
    assert finding.kind == "uninitialized-read" and ended_early(report)


def test_an_ordered_write_of_another_block_does_not_end_the_launch(monkeypatch):
    monkeypatch.setattr(error_limit, "SECONDS_AFTER_ERROR", -1)
    x = empty(1, np.int32)
    report = simulate(adds_after_another_block, on_finding="report")[2, 1](x, np.zeros(1, np.int32))
    assert not report.findings and not ended_early(report) and x[0] == 2


@cuda.jit(device=True)
def stores_and_waits(flag, x):
    x[0] += 1
    return cuda.atomic.add(flag, 0, 0) == 0


@cuda.jit
def counts_and_polls(flag, x):
    tries = 0
    while cuda.atomic.cas(flag, 0, 2, 1) == 0:
        cuda.threadfence()
        tries += 1


@cuda.jit
def changes_its_attempt(flag, x):
    expected = 5
    while cuda.atomic.cas(flag, 0, expected, 9) == 0:
        expected = (expected * 5) % 7 + 1


@cuda.jit
def assigns_in_a_branch(flag, x):
    seen = wanted = 1
    while cuda.atomic.cas(flag, 0, 3, 3) == 0 and seen != 9:
        if wanted > 8:
            seen = 9
        wanted = seen + wanted


@cuda.jit
def polls_and_stores(flag, x):
    while cuda.atomic.add(flag, 0, 0) == 0:
        x[0] = x[0] + 1


@cuda.jit
def tries_some_times(flag, x):
    for _ in range(10**9):
        if cuda.atomic.add(flag, 0, 0) != 0:
            break


@cuda.jit
def polls_in_a_function(flag, x):
    while stores_and_waits(flag, x):
        pass


@cuda.jit
def polls_until_a_time(flag, x):
    while cuda.atomic.add(flag, 0, 0) == 0 and x[0] < 10**9:
        pass


@pytest.mark.parametrize(
    "kernel, stateless",
    [
        (takes_a_lock, True),
        (waits_for_items, True),
        (counts_and_polls, True),
        (changes_its_attempt, False),
        (assigns_in_a_branch, False),
        (polls_and_stores, False),
        (tries_some_times, False),
        (polls_in_a_function, False),
        (polls_until_a_time, False),
    ],
)
def test_loops_whose_iterations_do_the_same(monkeypatch, kernel, stateless):
    """Stop threads in their second attempt, and examine the loop around it."""
    found = []

    def let_two_attempts_fail(scheduler, frame, repeats=False):
        if repeats:
            found.append(attempts.is_stateless(frame))
            raise Stuck

    monkeypatch.setattr(Scheduler, "yield_turn", let_two_attempts_fail)
    flag, x = np.zeros(1, np.int32), np.zeros(4, np.int32)
    given = {takes_a_lock: [flag + 1], waits_for_items: [flag, flag.copy(), x, x.copy()]}.get(
        kernel, [flag, x]
    )
    simulate(kernel, observers=(), on_finding="report")[1, 1](*given)
    assert found[:1] == [stateless]
