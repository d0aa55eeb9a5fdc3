"""Tests of compiled code that records reads from lanes that have returned."""

import numpy as np
import pytest
from numba import cuda

from ptx.test_language import HEAD
from sim import load_ptx, simulate
from sim.native.run import explain
from test_error_records import facts


@cuda.jit
def sums_in_half_a_warp(x, n):
    t = cuda.threadIdx.x
    own = x[t]
    if t % 32 < 16:
        own += cuda.shfl_down_sync(0xFFFFFFFF, own, 1)
        if own > n:
            x[t] = own + 5


@cuda.jit
def sums_in_the_second_half(x, n):
    t = cuda.threadIdx.x
    if t % 32 < 16:
        return
    own = x[t] + cuda.shfl_xor_sync(0xFFFFFFFF, x[t], 16)
    cuda.syncwarp()
    x[t] = own + n


@cuda.jit
def ignores_the_other_half(x, n):
    t = cuda.threadIdx.x
    if t % 32 < 16:
        other = cuda.shfl_down_sync(0xFFFFFFFF, x[t], 1)
        if t % 32 < 15:
            x[t] = other + n


@cuda.jit
def maxima_in_half_a_warp(x, n):
    t = cuda.threadIdx.x
    if t % 32 < 16:
        x[t] = max(x[t], cuda.shfl_down_sync(0xFFFFFFFF, x[t], 1))


KERNELS = [(sums_in_half_a_warp, 1), (sums_in_the_second_half, 1), (maxima_in_half_a_warp, 1)]
KERNELS += [(ignores_the_other_half, 0)]


@pytest.mark.parametrize("dtype", [np.int64, np.float32])
@pytest.mark.parametrize("kernel, errors", KERNELS)
def test_reads_from_lanes_that_have_returned(monkeypatch, kernel, errors, dtype):
    monkeypatch.setattr(explain, "EXPLAIN_SECONDS", -1)
    reports = [
        simulate(kernel, engine=engine, on_finding="report")[1, 64](np.ones(64, dtype), -1)
        for engine in ("fibers", "native")
    ]
    expected, found = ([*map(facts, report.findings)] for report in reports)
    assert found == expected and len(found) == errors
    assert (explain.UNEXPLAINED in reports[1].notes) == (errors > 0)


# Lanes 8 to 31 return before the shuffle, in which lane 7 reads from lane 8.
SHUFFLE = """
.visible .entry shuffle(.param .u64 y)
{
    .reg .pred %p<2>; .reg .b64 %d<3>; .reg .b32 %r<4>;
    ld.param.u64 %d1, [y]; mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4; add.s64 %d1, %d1, %d2;
    st.global.u32 [%d1], %r1; mov.u32 %r2, %laneid;
    setp.ge.u32 %p1, %r2, 8; @%p1 bra END;
    shfl.sync.down.b32 %r3, %r1, 1, 31, 0xffffffff;
    st.global.u32 [%d1], %r3;
END:
    ret;
}
"""


def test_ptx_that_reads_from_lanes_that_have_returned(monkeypatch):
    monkeypatch.setattr(explain, "EXPLAIN_SECONDS", -1)
    kernel, reports = load_ptx(HEAD + SHUFFLE)["shuffle"], []
    for engine in ("fibers", "native"):
        reports.append(simulate(kernel, engine=engine, on_finding="report")[1, 64](np.zeros(64, np.int32)))
    assert [*map(facts, reports[1].findings)] == [*map(facts, reports[0].findings)]
    message = reports[1].findings[0].message
    assert "lane 7 reads from lane 8" in message and explain.UNEXPLAINED in reports[1].notes
