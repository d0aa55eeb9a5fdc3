"""Tests of loops around a barrier that do not end, because they compare a value that was never written."""

import time

import numpy as np
import pytest

import sim.forecast
import sim.loop_limits
from iteration_clock import IterationClock
from ptx.test_language import HEAD
from sim import load_ptx, simulate

# Each thread averages its neighbours in `s` until the change is small. `s[33]` is unwritten.
RELAX = """
.visible .entry relax(.param .u64 y)
{
    .shared .align 4 .b8 s[136];
    .reg .pred %p<3>; .reg .f32 %f<9>; .reg .b32 %r<7>;
    mov.u32 %r1, %tid.x; mov.u32 %r2, s; shl.b32 %r3, %r1, 2; add.s32 %r2, %r2, %r3; mov.u32 %r4, 0;
    setp.eq.u32 %p1, %r1, 0; @%p1 st.shared.u32 [s], 1065353216; st.shared.u32 [%r2+4], %r4;
    bar.sync 0;
L:  ld.shared.f32 %f1, [%r2]; ld.shared.f32 %f2, [%r2+8]; add.f32 %f3, %f1, %f2; mul.f32 %f4, %f3, 0f3F000000;
    ld.shared.f32 %f5, [%r2+4]; sub.f32 %f6, %f4, %f5; abs.f32 %f7, %f6;
    bar.sync 0;
    st.shared.f32 [%r2+4], %f4; mov.b32 %r5, %f7; redux.sync.max.u32 %r6, %r5, -1; mov.b32 %f8, %r6;
    bar.sync 0;
    setp.geu.f32 %p2, %f8, 0f3C23D70A; @%p2 bra L;
    ret;
}
"""

# Each thread halves `s[31 - thread]` until it is small. `s[31]` is unwritten.
HALVE = """
.visible .entry halve(.param .u64 y)
{
    .shared .align 4 .b8 s[128];
    .reg .pred %p<3>; .reg .f32 %f<3>; .reg .b32 %r<7>;
    mov.u32 %r1, %tid.x; mov.u32 %r2, s; shl.b32 %r3, %r1, 2; add.s32 %r4, %r2, %r3; sub.s32 %r5, %r2, %r3;
    setp.ne.u32 %p1, %r1, 31; @%p1 st.shared.u32 [%r4], 1065353216;
    bar.sync 0;
    ld.shared.f32 %f1, [%r5+124];
L:  mul.f32 %f1, %f1, 0f3F000000; setp.geu.f32 %p2, %f1, 0f3C23D70A; @%p2 bra L;
    ret;
}
"""
# `left = 9; while (left != 0) { left -= 2; __syncthreads(); }`
COUNTDOWN = """
.visible .entry countdown(.param .u64 y)
{
    .reg .pred %p<2>; .reg .b64 %d<2>;
    mov.u64 %d1, 9;
L:  add.s64 %d1, %d1, -2; bar.sync 0; setp.ne.s64 %p1, %d1, 0; @%p1 bra L;
    ret;
}
"""
# `while (*flag == 0);` as compilers translate it
SPIN = """
.visible .entry spin(.param .u64 flag)
{{
    .reg .pred %p<2>; .reg .b32 %r<2>; .reg .b64 %d<2>;
    ld.param.u64 %d1, [flag]; {load}.global.u32 %r1, [%d1]; setp.eq.u32 %p1, %r1, 0; @%p1 bra L;
    ret;
L:  bra L;
}}
"""


def test_loop_around_a_barrier_ends_soon_after_an_uninitialised_read(monkeypatch):
    monkeypatch.setattr(sim.loop_limits, "FIRST_PATIENCE", 0.1)
    monkeypatch.setattr(sim.loop_limits, "PATIENCE", 20.0)
    began = time.process_time()
    kernel = load_ptx(HEAD + RELAX)["relax"]
    report = simulate(kernel, engine="fibers", on_finding="report")[1, 32](np.zeros(32, np.float32))
    assert [finding.kind for finding in report.findings] == ["uninitialized-read", "no-progress"]
    # PATIENCE applies to the first run and to a rerun with other values of unwritten memory
    assert time.process_time() - began < 60


def test_loop_around_barriers_runs_on_while_its_values_converge(monkeypatch):
    """Let `s[33]` be 0, so that the values converge. The loop takes more than five times the patience."""
    monkeypatch.setattr(sim.loop_limits, "FIRST_PATIENCE", 0.01)
    monkeypatch.setattr(sim.loop_limits, "PATIENCE", 0.1)
    monkeypatch.setattr(sim.forecast, "INTERVAL", 0.03)
    clock = IterationClock(monkeypatch)
    zero = "@%p1 st.shared.u32 [s], 1065353216; @%p1 st.shared.u32 [s+132], %r4;"
    text = RELAX.replace("@%p1 st.shared.u32 [s], 1065353216;", zero).replace("0f3C23D70A", "0f38D1B717")
    report = simulate(load_ptx(HEAD + text)["relax"], engine="fibers", observers=(), on_finding="report")[
        1, 32
    ](np.zeros(32, np.float32))
    assert not report.findings and report.counters["barriers"] > 10 and clock.seconds > 5 * 0.1


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_loop_without_barrier_names_the_uninitialised_read(engine, monkeypatch):
    """Read an unwritten element before an endless loop, in the epoch of that loop."""
    monkeypatch.setattr(sim.loop_limits, "FIRST_PATIENCE", 0.1)
    kernel = load_ptx(HEAD + HALVE)["halve"]
    began = time.process_time()
    report = simulate(kernel, engine=engine, on_finding="report")[1, 32](np.zeros(32, np.float32))
    assert [finding.kind for finding in report.findings] == ["uninitialized-read", "no-progress"]
    assert time.process_time() - began < 15


@pytest.mark.parametrize("before, hoisted", [("ld", True), ("ld.volatile", False)])
def test_loop_whose_load_the_compiler_moved_out_says_so(before, hoisted):
    kernel = load_ptx(HEAD + SPIN.format(load=before))["spin"]
    report = simulate(kernel, max_steps=100, on_finding="report")[1, 1](np.zeros(1, np.int32))
    (finding,) = report.findings
    assert finding.kind == "no-progress"
    assert ("neither volatile nor atomic" in finding.message) == hoisted


# The threads of a block take numbers from a counter until they receive {last}.
QUEUE = """
.shared .b32 task;
.visible .entry queue(.param .u64 counter)
{{
    .reg .pred %p<3>; .reg .b32 %r<3>; .reg .b64 %d<2>;
    ld.param.u64 %d1, [counter]; mov.u32 %r1, %tid.x; setp.ne.u32 %p1, %r1, 0;
L:  @%p1 bra M;
    atom.global.add.u32 %r2, [%d1], 1; st.shared.u32 [task], %r2;
M:  bar.sync 0; ld.shared.u32 %r2, [task]; bar.sync 0;
    setp.{comparison}.s32 %p2, %r2, {last}; @%p2 bra L;
    ret;
}}
"""


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_loop_around_a_barrier_with_a_number_that_misses_its_bound_is_undecided(engine, monkeypatch):
    monkeypatch.setattr(sim.loop_limits, "FIRST_PATIENCE", 0.05)
    monkeypatch.setattr(sim.loop_limits, "PATIENCE", 0.4)
    if engine == "native":
        monkeypatch.setattr("sim.native.run.explain.PROBE_SECONDS", 0.6)
        monkeypatch.setattr("sim.native.run.launch.FIRST_SECONDS", -1)
        monkeypatch.setattr("sim.native.engine.LAST_SECONDS", -1)
        monkeypatch.setattr("sim.native.ptx.launch.LEAST_LIMIT", 1 << 27)
    began = time.process_time()
    kernel = load_ptx(HEAD + COUNTDOWN)["countdown"]
    how = simulate(kernel, engine=engine, on_finding="report")
    (finding,) = how[1, 32](np.zeros(1)).findings
    limit = {"fibers": " within 0.6 s or ", "native": " ran 134,217,728 iterations of loops in compiled code"}
    assert finding.kind == "undecided" and limit[engine] in finding.reason
    assert 0.5 < time.process_time() - began < 30


def queue(comparison, last, monkeypatch):
    """Run QUEUE with short limits. Return (Report, CPU seconds)."""
    monkeypatch.setattr(sim.loop_limits, "FIRST_PATIENCE", 0.05)
    monkeypatch.setattr(sim.loop_limits, "PATIENCE", 0.5)
    monkeypatch.setattr(sim.forecast, "INTERVAL", 0.05)
    began = time.process_time()
    kernel = load_ptx(HEAD + QUEUE.format(comparison=comparison, last=last))["queue"]
    how = simulate(kernel, engine="fibers", observers=(), on_finding="report")
    report = how[2, 32](np.zeros(1, np.int32))
    return report, time.process_time() - began


def test_queue_that_a_block_never_leaves_is_undecided_soon(monkeypatch):
    report, seconds = queue("ge", -1, monkeypatch)
    assert [finding.kind for finding in report.findings] == ["undecided"]
    assert " within 0.75 s or " in report.findings[0].reason
    assert seconds < 30  # the limit was 300 s before


def test_long_queue_runs_to_its_end(monkeypatch):
    """Test that samples of the same threads predict the end of the loop, although these threads wait at a
    barrier when a sample is taken."""
    report, seconds = queue("lt", 8000, monkeypatch)
    assert not report.findings and seconds > 0.75


# The sum of 64 numbers in a tree. `{shift}` computes the next distance %r3. The sums grow in each iteration.
TREE = """
.shared .b32 s[64];
.visible .entry tree(.param .u64 out)
{{
    .reg .pred %p<3>; .reg .b32 %r<7>; .reg .b64 %d<2>;
    ld.param.u64 %d1, [out];
    mov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2; mov.u32 %r4, s; add.s32 %r2, %r2, %r4;
    st.shared.u32 [%r2], %r1; mov.u32 %r3, 32; mov.u32 %r6, 32;
L:  bar.sync 0;
    setp.ge.u32 %p1, %r1, %r3; @%p1 bra M;
    shl.b32 %r4, %r3, 2; add.s32 %r4, %r2, %r4; ld.shared.u32 %r5, [%r4];
    ld.shared.u32 %r4, [%r2]; add.s32 %r5, %r5, %r4; st.shared.u32 [%r2], %r5;
M:  {shift}; setp.ne.u32 %p2, {tested}, 0; @%p2 bra L;
    setp.eq.u32 %p1, %r1, 0; @%p1 st.global.u32 [%d1], %r5;
    ret;
}}
"""


@pytest.mark.parametrize("engine", ["fibers", "threads"])
def test_loop_whose_registers_repeat_is_endless_although_memory_changes(engine, monkeypatch):
    monkeypatch.setattr(sim.loop_limits, "FIRST_PATIENCE", 0.05)
    began = time.process_time()
    kernel = load_ptx(HEAD + TREE.format(shift="shr.u32 %r6, %r3, 1", tested="%r6"))["tree"]
    report = simulate(kernel, engine=engine, on_finding="report")[1, 64](np.zeros(1, np.int32))
    assert [finding.kind for finding in report.findings] == ["no-progress"]
    assert "have returned to earlier values" in report.findings[0].reason
    assert time.process_time() - began < 30


def test_loop_whose_registers_change_ends(monkeypatch):
    monkeypatch.setattr(sim.loop_limits, "FIRST_PATIENCE", 0.0)
    monkeypatch.setattr(sim.loop_limits, "DEFAULT_STEPS", 1)
    out = np.zeros(1, np.int32)
    simulate(load_ptx(HEAD + TREE.format(shift="shr.u32 %r3, %r3, 1", tested="%r3"))["tree"])[1, 64](out)
    assert out == 64 * 63 // 2


def test_loop_with_a_decision_on_memory_has_no_deciding_registers():
    """Test that the proof does not apply if the loop reads the tested value from memory."""
    for tested, decides in (("%r6", True), ("%r5", False)):
        kernel = load_ptx(HEAD + TREE.format(shift="shr.u32 %r6, %r3, 1", tested=tested))["tree"]
        (deciding,) = kernel.program()[0].deciding.values()
        assert (deciding is not None) == decides


def test_loops_at_the_same_line_share_their_deciding_registers():
    """Test a loop that a compiler has divided into two loops with the same location."""
    text = """
.visible .entry divided(.param .u64 out)
{
    .reg .pred %p, %q; .reg .b32 %i, %j;
    mov.u32 %i, 4; mov.u32 %j, 3;
L:  add.s32 %i, %i, -1; setp.ne.s32 %p, %i, 0; @%p bra L;
M:  add.s32 %j, %j, -1; setp.ne.s32 %q, %j, 0; @%q bra M;
    ret;
}
"""
    one_line = text.replace("bra L;\nM:", "bra L; M:")
    (deciding,) = load_ptx(HEAD + one_line)["divided"].program()[0].deciding.values()
    assert deciding == {"go", "p", "i", "q", "j"}
