"""Tests of loops around a barrier that do not end, because they compare a value that was never written."""

import time

import numpy as np
import pytest

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


def test_barriers_are_progress_while_there_is_no_error(monkeypatch):
    """Let `s[33]` be 0, so that the values converge. The loop takes five times the patience, but not between
    two barriers."""
    monkeypatch.setattr(sim.loop_limits, "FIRST_PATIENCE", 0.0004)
    monkeypatch.setattr(sim.loop_limits, "PATIENCE", 0.004)
    clock = IterationClock(monkeypatch)
    zero = "@%p1 st.shared.u32 [s], 1065353216; @%p1 st.shared.u32 [s+132], %r4;"
    kernel = load_ptx(HEAD + RELAX.replace("@%p1 st.shared.u32 [s], 1065353216;", zero))["relax"]
    report = simulate(kernel, engine="fibers", observers=(), on_finding="report")[1, 32](
        np.zeros(32, np.float32)
    )
    assert not report.findings and report.counters["barriers"] > 10 and clock.seconds > 5 * 0.004


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


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_barriers_extend_the_time_limit_of_a_loop_only_for_a_while(engine, monkeypatch):
    monkeypatch.setattr(sim.loop_limits, "FIRST_PATIENCE", 0.05)
    monkeypatch.setattr(sim.loop_limits, "PATIENCE", 0.05)
    monkeypatch.setattr(sim.loop_limits, "BARRIER_PATIENCE", 0.5)
    if engine == "native":
        monkeypatch.setattr("sim.native.run.launch.FIRST_SECONDS", -1)
    began = time.process_time()
    kernel = load_ptx(HEAD + COUNTDOWN)["countdown"]
    how = simulate(kernel, engine=engine, on_finding="report")
    (finding,) = how[1, 32](np.zeros(1)).findings
    assert finding.kind == "undecided" and " within 0.5 s or " in finding.reason
    assert 0.4 < time.process_time() - began < 6
