"""Tests of cooperative launches in compiled code: grid barriers, and races around them."""

import numpy as np
import pytest
from numba import cuda, float64, int32

from grid_programs import ADD, BLOCK, GRID, READ, SHAPE, SHARED, WRITE, has_race, random_program
from iteration_clock import IterationClock
from sim import empty, simulate


def run(accesses, barriers, data):
    """Let each thread perform one access per step. A barrier follows each step.

    accesses: (kind, index) per step, block and thread.
    barriers: the kind of barrier per step.
    data: the elements in global memory.
    """
    grid = cuda.cg.this_grid()
    own = cuda.shared.array(4, int32)
    b, t = cuda.blockIdx.x, cuda.threadIdx.x
    own[2 * t] = own[2 * t + 1] = 0
    cuda.syncthreads()
    total = 0
    for step in range(accesses.shape[0]):
        kind, i = accesses[step, b, t, 0], accesses[step, b, t, 1]
        if kind == READ:
            total += data[i]
        elif kind == WRITE:
            data[i] = step + total
        elif kind == ADD:
            cuda.atomic.add(data, i, 1)
        elif kind == SHARED + READ:
            total += own[i]
        elif kind == SHARED + WRITE:
            own[i] = step + total
        elif kind == SHARED + ADD:
            cuda.atomic.add(own, i, 1)
        if barriers[step] == BLOCK:
            cuda.syncthreads()
        elif barriers[step] == GRID:
            grid.sync()


def test_compiled_code_marks_exactly_the_programs_with_races():
    racy = 0
    for seed in range(60):
        accesses, barriers = random_program(seed)
        data = np.zeros(4, np.int32)
        report = simulate(run, engine="native", on_finding="report")[SHAPE](accesses, barriers, data)
        expected = has_race(accesses, barriers)
        assert (report.notes[0] != "compiled") == bool(report.findings) == expected, seed
        racy += expected
    assert 15 <= racy <= 45


@pytest.mark.parametrize("seed", range(4))
def test_values_and_counters_are_those_of_the_interpreter(seed):
    found = [seed for seed in range(200) if not has_race(*random_program(seed))]
    accesses, barriers = random_program(found[seed])
    results = []
    for engine in ("fibers", "native"):
        data = np.zeros(4, np.int32)
        report = simulate(run, engine=engine)[SHAPE](accesses, barriers, data)
        results.append((data.tolist(), report.counters))
    assert results[0] == results[1] and any(results[0][0])


def outcomes(kernel, grid, block, *arguments, **options):
    """Return [(kinds and lines of the findings, values, counters, notes)] of a launch on each engine."""
    found = []
    for engine in ("fibers", "native"):
        given = [array.copy() for array in arguments]
        report = simulate(kernel, engine=engine, on_finding="report", **options)[grid, block](*given)
        findings = [(f.kind, f.message) for f in report.findings]
        found.append((findings, [array.tolist() for array in given], report.counters, report.notes))
    return found


def assert_equal_and_compiled(kernel, grid, block, *arguments):
    interpreted, compiled = outcomes(kernel, grid, block, *arguments)
    assert compiled[:3] == interpreted[:3] and compiled[3] == ("compiled",)


@cuda.jit(device=True)
def rotate(grid, own, out, i):
    """Return the next element of `out`, after all threads have written theirs."""
    out[i] = own
    grid.sync()
    return out[(i + 1) % out.size]


def keeps(out, sums):
    """Use variables, shared memory, local memory, and a ballot before and after grid barriers."""
    grid = cuda.cg.this_grid()
    shared, local = cuda.shared.array(64, float64), cuda.local.array(3, int32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    local[0], local[2] = i, -i
    shared[t] = i
    for step in range(3):
        value = rotate(grid, i * step, out, i)
        grid.sync()
        lanes = cuda.ballot_sync(0xFFFFFFFF, value % 2)
        cuda.atomic.add(sums, step, value + local[0] - local[2] + lanes % 8)
        cuda.syncthreads()
        shared[(t + step) % 64] += step
        local[0] += 1
        cuda.syncthreads()
    sums[3 + i] = shared[t] + local[0]


def test_blocks_keep_their_memory_and_variables_at_a_grid_barrier():
    assert_equal_and_compiled(keeps, 4, 64, np.zeros(256, np.int32), np.zeros(259, np.int64))


def initialises(out, made):
    i = cuda.grid(1)
    made[i] = i
    cuda.cg.this_grid().sync()
    out[i] = made[made.size - 1 - i]


def reads_too_much(out, made):
    i = cuda.grid(1)
    if i > 0:
        made[i] = i
    cuda.cg.this_grid().sync()
    out[i] = made[made.size - 1 - i]


def reads_shared_memory_of_no_thread(out, made):
    shared = cuda.shared.array(4, float64)
    i = cuda.grid(1)
    if cuda.blockIdx.x == 0:
        shared[cuda.threadIdx.x] = 1
    cuda.cg.this_grid().sync()
    out[i] = shared[cuda.threadIdx.x]
    made[i] = 0


def test_another_block_initialises_global_memory_but_not_shared_memory():
    for kernel, lines in ((initialises, []), (reads_too_much, [6]), (reads_shared_memory_of_no_thread, [7])):
        report = simulate(kernel, engine="native", on_finding="report")[3, 4](np.zeros(12), empty(12))
        assert [f.kind for f in report.findings] == ["uninitialized-read"] * len(lines)
        assert [f.accesses[0].site.line for f in report.findings] == lines
        assert report.notes[0].startswith("compiled") and (report.notes[0] == "compiled") == (not lines)


def skips(x):
    x[cuda.grid(1)] = 1
    if cuda.blockIdx.x != 1:
        cuda.cg.this_grid().sync()


def repeats(x):
    for _ in range(1 + cuda.blockIdx.x):
        cuda.cg.this_grid().sync()
        x[cuda.grid(1)] += 1


def leaves(x):
    if cuda.grid(1) == 5:
        return
    x[cuda.grid(1)] = 1
    cuda.cg.this_grid().sync()


def diverges(x):
    x[cuda.grid(1)] = 1
    if cuda.threadIdx.x < 2:
        cuda.cg.this_grid().sync()


def raises(x):
    cuda.cg.this_grid().sync()
    if cuda.grid(1) == 5:
        raise ValueError
    x[cuda.grid(1)] = 1
    cuda.cg.this_grid().sync()


@pytest.mark.parametrize("kernel", [skips, repeats, leaves, diverges])
def test_barriers_that_some_threads_miss_have_the_findings_of_the_interpreter(kernel):
    interpreted, compiled = outcomes(kernel, 3, 4, np.zeros(12))
    assert interpreted[:3] == compiled[:3] and interpreted[0]
    assert compiled[3] == ("compiled, then explained by the interpreter",)


def test_an_exception_after_a_grid_barrier_names_the_thread():
    with pytest.raises(Exception, match="thread 1 of block 1 raised ValueError"):
        simulate(raises, engine="native")[3, 4](np.zeros(12))


def halves(x):
    """Run short `while` loops between many grid barriers."""
    grid = cuda.cg.this_grid()
    for _ in range(60):
        width = 1 << 10
        while width > 0:
            width //= 2
        grid.sync()
    x[cuda.grid(1)] = width


def test_short_loops_between_grid_barriers_are_not_one_long_loop(monkeypatch):
    """Let the threads run for longer than one loop may take."""
    monkeypatch.setattr("sim.loop_limits.FIRST_PATIENCE", 0.05)
    monkeypatch.setattr("sim.loop_limits.PATIENCE", 0.2)
    clock, x = IterationClock(monkeypatch), np.ones(512)
    report = simulate(halves, engine="fibers", on_finding="report")[8, 64](x)
    assert report.findings == () and not x.any() and clock.seconds > 10 * 0.2


def test_many_grid_barriers_are_compiled_after_the_interpreter_has_examined_them(monkeypatch):
    monkeypatch.setattr("sim.native.run.launch.FIRST_LIMIT", 1 << 12)
    monkeypatch.setattr("sim.native.run.launch.WHILE_LIMIT", 1 << 13)
    x = np.ones(8)
    report = simulate(halves, engine="native")[2, 4](x)
    assert report.notes == ("compiled",) and not x.any()


def waits_for_a_flag(x):
    while x[0] == 0:
        cuda.cg.this_grid().sync()


def test_an_endless_loop_around_a_grid_barrier_is_found(monkeypatch):
    monkeypatch.setattr("sim.native.run.launch.FIRST_LIMIT", 20_000)
    monkeypatch.setattr("sim.loop_limits.FIRST_PATIENCE", 0.05)
    report = simulate(waits_for_a_flag, engine="native", on_finding="report")[2, 32](np.zeros(1))
    assert [f.kind for f in report.findings] == ["no-progress"]
