"""Tests of launches that a time limit ends: their findings, and exceptions thrown into threads."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
from numba import cuda, float32, int32

from ptx.test_language import HEAD
from sim import empty, error_limit, load_ptx, simulate
from sim.engine import watchdog
from sim.engine.os_thread import throw_into
from sim.engine.watchdog import Watchdog
from sim.errors import OutOfTime
from sim.native import engine as native
from sim.native.run import explain, launch
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
    monkeypatch.setattr(native, "explain", None)
    report = simulate(searches_for_a_missing_key, engine="native", on_finding="report")[2, 32](np.arange(64))
    assert [finding.kind for finding in report.findings] == ["no-progress"]
    assert report.notes[0] == "compiled; block 0 is explained by the interpreter"


# --- errors that only compiled code reaches in time ---------------------------------------------------------


@cuda.jit
def races_in_shared(x):
    tile = cuda.shared.array(64, int32)
    t = cuda.threadIdx.x
    tile[t] = x[cuda.grid(1)]
    x[cuda.grid(1)] = tile[63 - t]


@cuda.jit
def races_after_a_warp_barrier(x):
    tile = cuda.shared.array(64, int32)
    t = cuda.threadIdx.x
    tile[t] = t
    cuda.syncwarp()
    x[cuda.grid(1)] = tile[t ^ 1] + tile[t ^ 32]


@cuda.jit
def races_between_blocks(x):
    x[cuda.threadIdx.x] = cuda.blockIdx.x


@cuda.jit
def races_with_an_atomic(x):
    if cuda.threadIdx.x == 3:
        x[0] += 1
    else:
        cuda.atomic.add(x, 0, 1)


@cuda.jit
def leaves_an_array(x):
    x[cuda.grid(1) + (x.size if cuda.threadIdx.x == 5 else 0)] = 1


@cuda.jit
def leaves_a_row(x):
    rows = cuda.shared.array((2, 64), float32)
    rows[0, cuda.threadIdx.x] = 1
    rows[1, cuda.threadIdx.x] = 1
    x[cuda.grid(1)] = rows[0, cuda.threadIdx.x + 60]


@cuda.jit
def reads_unwritten_shared(x):
    tile = cuda.shared.array(128, int32)
    tile[cuda.threadIdx.x] = 0
    cuda.syncthreads()
    x[cuda.grid(1)] = tile[cuda.threadIdx.x + 64]


@cuda.jit
def reads_unwritten_local(x):
    own = cuda.local.array(4, int32)
    for i in range(3):
        own[i] = i
    x[cuda.grid(1)] = own[3]


@cuda.jit
def reads_unwritten_global(x):
    x[cuda.grid(1)] += 1


@cuda.jit
def misses_a_barrier(x):
    if cuda.threadIdx.x % 3 == 1:
        return
    x[cuda.grid(1)] = 1
    cuda.syncthreads()


@cuda.jit
def meets_at_a_barrier_in_a_branch(x):
    if cuda.threadIdx.x < 40:
        x[cuda.grid(1)] = 1
        cuda.syncthreads()
    x[cuda.grid(1)] += 1


@cuda.jit
def meets_at_different_barriers(x):
    x[cuda.grid(1)] = 1
    if cuda.threadIdx.x < 40:
        cuda.syncthreads()
    else:
        cuda.syncthreads()
    x[cuda.grid(1)] += 1


@cuda.jit
def loops_longer_than_others(x):
    for i in range(3 + cuda.threadIdx.x % 2):
        x[cuda.grid(1)] += i
        cuda.syncthreads()


@cuda.jit
def leaves_a_loop_early(x):
    i = cuda.threadIdx.x // 63
    while i < 3:
        x[cuda.grid(1)] += 1
        cuda.syncthreads()
        i += 1


@cuda.jit
def reads_unwritten_shared_without_effect(x):
    tile = cuda.shared.array(128, int32)
    tile[cuda.threadIdx.x] = 0
    cuda.syncthreads()
    x[cuda.grid(1)] = tile[cuda.threadIdx.x + 64] * 0


@cuda.jit
def stores_equal_values(x):
    x[0] = 7


@cuda.jit
def exchanges_within_half_warps(x):
    if cuda.threadIdx.x % 32 < 16:
        x[cuda.grid(1)] = cuda.shfl_xor_sync(0xFFFF, cuda.threadIdx.x, 1)


LATE_ERRORS = (
    races_in_shared,
    races_after_a_warp_barrier,
    races_between_blocks,
    races_with_an_atomic,
    leaves_an_array,
    leaves_a_row,
    reads_unwritten_shared,
    reads_unwritten_local,
    reads_unwritten_global,
    misses_a_barrier,
    meets_at_a_barrier_in_a_branch,
    meets_at_different_barriers,
    loops_longer_than_others,
    leaves_a_loop_early,
)
HARMLESS = reads_unwritten_shared_without_effect, stores_equal_values, exchanges_within_half_warps


def report_of(kernel, engine, blocks):
    unwritten = kernel is reads_unwritten_global
    x = empty(64 * blocks, np.int32) if unwritten else np.zeros(64 * blocks, np.int32)
    return simulate(kernel, engine=engine, on_finding="report")[blocks, 64](x)


def facts(finding):
    places = {(access.what, access.site and access.site.line) for access in finding.accesses}
    return finding.kind, finding.severity, finding.array, finding.fix, frozenset(places)


@pytest.mark.parametrize("blocks", [2, 140])
@pytest.mark.parametrize("kernel", LATE_ERRORS)
def test_compiled_code_describes_errors_that_the_interpreter_does_not_reach(monkeypatch, kernel, blocks):
    expected = report_of(kernel, "fibers", blocks)
    monkeypatch.setattr(explain, "EXPLAIN_SECONDS", -1)
    report = report_of(kernel, "native", blocks)
    assert {*map(facts, report.findings)} <= {*map(facts, expected.findings)}
    assert len(report.errors) > 0 and explain.UNEXPLAINED in report.notes


@pytest.mark.parametrize("blocks", [2, 140])
@pytest.mark.parametrize("kernel", HARMLESS)
def test_the_interpreter_continues_if_compiled_code_finds_no_error(monkeypatch, kernel, blocks):
    expected = report_of(kernel, "fibers", blocks)
    monkeypatch.setattr(explain, "EXPLAIN_SECONDS", -1)
    report = report_of(kernel, "native", blocks)
    assert [*map(facts, report.findings)] == [*map(facts, expected.findings)]
    assert not report.errors and explain.UNEXPLAINED not in report.notes


@pytest.mark.parametrize("slowdown, reached", [(0, True), (10**9, False)])
def test_the_interpreter_gets_less_time_for_blocks_that_take_long(monkeypatch, slowdown, reached):
    monkeypatch.setattr(explain, "SLOWDOWN", slowdown)
    monkeypatch.setattr(explain, "FIRST_EXPLAIN_SECONDS", -1)
    report = report_of(races_in_shared, "native", 2)
    assert (explain.UNEXPLAINED not in report.notes) == reached and report.errors


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


# Threads from 40 on do not reach the first barrier.
BRANCH = """
.visible .entry branch(.param .u64 y)
{{
    .reg .pred %p<2>; .reg .b64 %d<3>; .reg .b32 %r<2>;
    ld.param.u64 %d1, [y]; mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4; add.s64 %d1, %d1, %d2;
    st.global.u32 [%d1], %r1;
    setp.ge.u32 %p1, %r1, 40; @%p1 bra ELSE;
    bar.sync 0;
    bra END;
ELSE:
    {}
END:
    ret;
}}
"""


@pytest.mark.parametrize("other, errors", [("", 1), ("bar.sync 0;", 0), ("bar.sync 0; bar.sync 0;", 1)])
def test_compiled_ptx_describes_a_barrier_that_some_threads_do_not_reach(monkeypatch, other, errors):
    monkeypatch.setattr(explain, "EXPLAIN_SECONDS", -1)
    reports = {}
    for engine in ("fibers", "native"):
        kernel = load_ptx(HEAD + BRANCH.format(other))["branch"]
        reports[engine] = simulate(kernel, engine=engine, on_finding="report")[2, 64](np.zeros(64, np.int32))
    assert [*map(facts, reports["native"].errors)] == [*map(facts, reports["fibers"].errors)]
    assert len(reports["native"].errors) == errors
    assert (explain.UNEXPLAINED in reports["native"].notes) == (errors > 0)


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
