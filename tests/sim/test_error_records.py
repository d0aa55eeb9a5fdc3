"""Tests of errors that compiled code records, because the interpreter would reach them too late."""

import time

import numpy as np
import pytest
from numba import cuda, float32, int32

from ptx.test_language import HEAD
from sim import ThreadError, empty, load_ptx, simulate
from sim.native.run import explain, launch
from sim.native.run.recorded_run import RecordedRun


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
def waits_after_a_longer_loop(x):
    for i in range(3 + cuda.threadIdx.x % 2):
        x[cuda.grid(1)] += i
        cuda.syncthreads()
    cuda.syncthreads()


@cuda.jit
def leaves_a_long_loop_early(x):
    i = cuda.threadIdx.x // 63
    while i < 600:  # the accesses of a block fill the access log
        x[cuda.grid(1)] += 1
        cuda.syncthreads()
        i += 1


@cuda.jit
def breaks_before_a_barrier(x):
    for i in range(4):
        if i == 2 and cuda.threadIdx.x == 3:
            break
        cuda.syncthreads()
        x[cuda.grid(1)] += i


@cuda.jit
def skips_a_barrier(x):
    for i in range(4):
        if i == 2 and cuda.threadIdx.x == 3:
            continue
        cuda.syncthreads()
        x[cuda.grid(1)] += i


@cuda.jit
def shuffles_in_half_a_warp(x):
    n = cuda.threadIdx.x
    if n % 32 < 16:
        n = cuda.shfl_xor_sync(0xFFFFFFFF, n, 1)
    cuda.syncthreads()
    x[cuda.grid(1)] = n


@cuda.jit
def shuffles_once_less(x):
    n = cuda.threadIdx.x
    for i in range(4):
        if i < 3 or n % 2:
            x[cuda.grid(1)] += cuda.shfl_xor_sync(0xFFFFFFFF, i, 1)
    cuda.syncthreads()
    x[cuda.grid(1)] += n


@cuda.jit
def votes_in_two_branches(x):
    if cuda.threadIdx.x % 32 < 16:
        n = cuda.ballot_sync(0xFFFFFFFF, True)
    else:
        n = cuda.any_sync(0xFFFFFFFF, True)
    x[cuda.grid(1)] = n != 0


@cuda.jit
def shuffles_without_being_in_the_mask(x):
    x[cuda.grid(1)] = cuda.shfl_xor_sync(0xFFFF, cuda.threadIdx.x, 1)


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


@cuda.jit
def shuffles_in_each_half_warp(x):
    if cuda.threadIdx.x % 32 < 16:
        n = cuda.shfl_xor_sync(0xFFFF, cuda.threadIdx.x, 1)
    else:
        n = cuda.shfl_xor_sync(0xFFFF0000, cuda.threadIdx.x, 2)
    cuda.syncthreads()
    x[cuda.grid(1)] = n


@cuda.jit
def synchronizes_half_a_warp_last(x):
    x[cuda.grid(1)] = 1
    if cuda.threadIdx.x % 32 < 16:
        cuda.syncwarp()
        x[cuda.grid(1)] = 2


@cuda.jit
def leaves_loops_of_different_lengths(x):
    for i in range(3 + cuda.threadIdx.x % 2):
        if i == 1:
            break
        cuda.syncthreads()
        x[cuda.grid(1)] += i


@cuda.jit
def waits_in_some_iterations(x):
    for i in range(3 + cuda.threadIdx.x % 2):
        if i % 2 == 0:
            cuda.syncthreads()
        x[cuda.grid(1)] += i


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
    waits_after_a_longer_loop,
    leaves_a_long_loop_early,
    breaks_before_a_barrier,
    skips_a_barrier,
    shuffles_in_half_a_warp,
    shuffles_once_less,
    votes_in_two_branches,
    shuffles_without_being_in_the_mask,
)
HARMLESS = (
    reads_unwritten_shared_without_effect,
    stores_equal_values,
    exchanges_within_half_warps,
    shuffles_in_each_half_warp,
    synchronizes_half_a_warp_last,
    leaves_loops_of_different_lengths,
    waits_in_some_iterations,
)


@pytest.fixture(params=[2, 6])
def blocks(request, monkeypatch):
    """Return a number of blocks: 2, which the interpreter reruns completely, or 6, of which it reruns 4."""
    for module in (explain, launch):
        monkeypatch.setattr(module, "MAX_RERUN_THREADS", 4 * 64)
    return request.param


def report_of(kernel, engine, blocks):
    unwritten = kernel is reads_unwritten_global
    x = empty(64 * blocks, np.int32) if unwritten else np.zeros(64 * blocks, np.int32)
    return simulate(kernel, engine=engine, on_finding="report")[blocks, 64](x)


def facts(finding):
    places = {(access.what, access.site and access.site.line) for access in finding.accesses}
    return finding.kind, finding.severity, finding.array, finding.fix, frozenset(places)


@pytest.mark.parametrize("kernel", LATE_ERRORS)
def test_compiled_code_describes_errors_that_the_interpreter_does_not_reach(monkeypatch, kernel, blocks):
    expected = report_of(kernel, "fibers", blocks)
    monkeypatch.setattr(explain, "EXPLAIN_SECONDS", -1)
    report = report_of(kernel, "native", blocks)
    assert {*map(facts, report.findings)} <= {*map(facts, expected.findings)}
    assert len(report.errors) > 0 and explain.UNEXPLAINED in report.notes


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
def races_on_an_odd_element(x):
    tile = cuda.shared.array(64, int32)
    t = cuda.threadIdx.x
    tile[t] = t + 5
    x[cuda.grid(1)] = tile[1 if t == 2 else t]


# In the next two kernels, a block has more accesses than the 1 << 15 recent events.
@cuda.jit
def races_late_in_a_loop(x):
    tile = cuda.shared.array(64, int32)
    t, total = cuda.threadIdx.x, 0
    for i in range(400):
        tile[t] = i
        cuda.syncthreads()
        total += tile[t ^ 1]
        if i != 398:
            cuda.syncthreads()
    x[cuda.grid(1)] = total


@cuda.jit
def races_with_an_early_store(x):
    tile = cuda.shared.array(64, int32)
    t, total = cuda.threadIdx.x, 0
    if t == 0:
        tile[63] = 7
    for _ in range(1000):
        total += x[cuda.grid(1)]
    if t == 63:
        total += tile[63]
    x[cuda.grid(1)] = total


def messages_of(kernel):
    return [finding.message for finding in report_of(kernel, "native", 2).findings]


def without_recent_events(monkeypatch):
    """Let a further recorded run find the earlier access of each race."""
    monkeypatch.setattr(RecordedRun, "before_race", lambda run, racing: run.again(trap=racing.trap))


RACES = races_in_shared, races_after_a_warp_barrier, races_between_blocks, races_with_an_atomic


@pytest.mark.parametrize(
    "kernel, saved_runs",
    [
        *((kernel, 1) for kernel in (*RACES, races_on_an_odd_element, races_late_in_a_loop)),
        (races_with_an_early_store, 0),  # the store is no longer among the recent events
    ],
)
def test_recent_events_give_the_findings_of_a_further_run(monkeypatch, kernel, saved_runs):
    monkeypatch.setattr(explain, "EXPLAIN_SECONDS", -1)
    checks = checks_of_recorded_runs(monkeypatch)
    messages, runs = messages_of(kernel), len(checks)
    without_recent_events(monkeypatch)
    assert messages and messages == messages_of(kernel)
    assert len(checks) - runs == runs + saved_runs


def checks_of_recorded_runs(monkeypatch):
    """Return a list that receives, for each recorded run, whether it checks races and unwritten memory."""
    found, begin = [], RecordedRun.__init__

    def noted(self, *given, **options):
        begin(self, *given, **options)
        found.append(self.checks)

    monkeypatch.setattr(RecordedRun, "__init__", noted)
    return found


def test_runs_that_follow_a_side_check_no_accesses(monkeypatch):
    monkeypatch.setattr(explain, "EXPLAIN_SECONDS", -1)
    checks = checks_of_recorded_runs(monkeypatch)
    assert report_of(meets_at_different_barriers, "native", 2).errors and checks == [False, False]


def test_runs_that_follow_a_side_record_no_accesses(monkeypatch):
    monkeypatch.setattr(explain, "EXPLAIN_SECONDS", -1)
    texts, run_blocks = [], RecordedRun.run_blocks

    def noted(self):
        texts.append(self.attempt.program.text)
        run_blocks(self)

    monkeypatch.setattr(RecordedRun, "run_blocks", noted)
    assert report_of(meets_at_different_barriers, "native", 2).errors and len(texts) == 2
    assert all("agree_on_side" in text and "with_site" not in text for text in texts)


def test_the_interpreter_does_not_search_for_threads_that_disagree_late(monkeypatch):
    monkeypatch.setattr(explain, "SLOWDOWN", 10**9)
    monkeypatch.setattr(explain, "explain_by_interpreter", lambda *given: pytest.fail("interpreted"))
    assert report_of(meets_at_different_barriers, "native", 2).errors


@cuda.jit
def raises_an_exception(x):
    x[cuda.grid(1)] = 1
    cuda.syncthreads()
    if cuda.grid(1) == 67:
        raise ValueError("negative")


def test_an_exception_that_the_interpreter_does_not_reach_names_its_thread(monkeypatch):
    monkeypatch.setattr(explain, "EXPLAIN_SECONDS", -1)
    with pytest.raises(ThreadError, match="thread 3 of block 1 raised ValueError: negative"):
        report_of(raises_an_exception, "native", 2)


# The second warp does not reach the first barrier.
BRANCH = """
.visible .entry branch(.param .u64 y)
{{
    .reg .pred %p<2>; .reg .b64 %d<3>; .reg .b32 %r<2>;
    ld.param.u64 %d1, [y]; mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4; add.s64 %d1, %d1, %d2;
    st.global.u32 [%d1], %r1;
    setp.ge.u32 %p1, %r1, 32; @%p1 bra ELSE;
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


# The lanes from 8 on do not reach the shuffle.
SHUFFLE = """
.visible .entry shuffle(.param .u64 y)
{{
    .reg .pred %p<2>; .reg .b64 %d<3>; .reg .b32 %r<4>;
    ld.param.u64 %d1, [y]; mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4; add.s64 %d1, %d1, %d2;
    st.global.u32 [%d1], %r1; mov.u32 %r2, %laneid;
    setp.ge.u32 %p1, %r2, 8; @%p1 bra JOIN;
    shfl.sync.bfly.b32 %r3, %r1, 1, 31, {};
    st.global.u32 [%d1], %r3;
JOIN:
    {}
    ret;
}}
"""
SHUFFLES = [("0xffffffff", "bar.sync 0;", 1), ("0xff", "bar.sync 0;", 0), ("0xffffffff", "", 0)]


@pytest.mark.parametrize("mask, after, errors", SHUFFLES)
def test_compiled_ptx_describes_a_shuffle_that_some_lanes_do_not_reach(monkeypatch, mask, after, errors):
    monkeypatch.setattr(explain, "EXPLAIN_SECONDS", -1)
    reports = {}
    for engine in ("fibers", "native"):
        kernel = load_ptx(HEAD + SHUFFLE.format(mask, after))["shuffle"]
        reports[engine] = simulate(kernel, engine=engine, on_finding="report")[1, 64](np.zeros(64, np.int32))
    assert [*map(facts, reports["native"].errors)] == [*map(facts, reports["fibers"].errors)]
    assert len(reports["native"].errors) == errors
    assert (explain.UNEXPLAINED in reports["native"].notes) == (errors > 0)


@cuda.jit
def waits_once_more(x, rounds):
    for _ in range(rounds + (cuda.threadIdx.x == 3)):
        x[cuda.grid(1)] += 1
        cuda.syncthreads()


def test_iterations_that_both_sides_execute_are_skipped(monkeypatch):
    monkeypatch.setattr(explain, "EXPLAIN_SECONDS", -1)
    began, rounds = time.process_time(), 10**8
    report = simulate(waits_once_more, engine="native", on_finding="report")[2, 64](np.zeros(128), rounds)
    assert [finding.kind for finding in report.errors] == ["barrier-divergence"]
    assert time.process_time() - began < 60  # 10**8 iterations take minutes
