"""Tests of launches that write to none of their arrays: compiled code reports them without an explanation."""

import numpy as np
import pytest
from numba import cuda

from ptx.test_language import HEAD
from sim import empty, load_ptx, simulate

# `left = count; while (left != 0) { left -= 1; __syncthreads(); }`
WAITS = """
.visible .entry waits(.param .u64 y)
{
    .reg .pred %p<2>; .reg .b64 %d<2>;
    mov.u64 %d1, 9;
L:  add.s64 %d1, %d1, -1; bar.sync 0; setp.ne.s64 %p1, %d1, 0; @%p1 bra L;
    ret;
}
"""
# Each thread loads its element, and stores it if it is 7.
SEARCH = """
.visible .entry search(.param .u64 y)
{
    .reg .pred %p<2>; .reg .b64 %d<3>; .reg .b32 %r<3>;
    ld.param.u64 %d1, [y]; mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4; add.s64 %d1, %d1, %d2;
    ld.global.u32 %r2, [%d1]; setp.eq.u32 %p1, %r2, 7; @%p1 st.global.u32 [%d1], %r1;
    ret;
}
"""


@cuda.jit
def searches_its_input(x, y):
    if x[cuda.grid(1) % x.size] == 7:
        y[0] = 1


@cuda.jit
def searches_its_output(x, y):
    if y[cuda.grid(1) % y.size] == 7:
        y[0] = 1


@cuda.jit
def lets_no_thread_through(x, y):
    if cuda.grid(1) > 10**6:
        y[0] = x[0]


@cuda.jit
def stores_nowhere(x, y):
    tile = cuda.shared.array(64, np.float32)
    tile[cuda.threadIdx.x] = x[0]


# kernel, or the PTX and the name of a kernel -> whether it is reported
KERNELS = {
    searches_its_input: False,
    searches_its_output: False,
    lets_no_thread_through: True,
    stores_nowhere: True,
    (WAITS, "waits"): True,
    (SEARCH, "search"): False,
}


@pytest.mark.parametrize("blocks", [2, 200])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_launch_that_writes_nothing_is_not_interpreted(kernel, blocks):
    expected, arrays = ["misuse"] * KERNELS[kernel], [np.zeros(64, np.float32), np.zeros(64, np.float32)]
    if isinstance(kernel, tuple):
        kernel, arrays = load_ptx(HEAD + kernel[0])[kernel[1]], arrays[:1]
    messages = {}
    for engine in ("fibers", "native"):
        report = simulate(kernel, engine=engine, on_finding="report")[blocks, 64](*arrays)
        messages[engine] = [finding.message for finding in report.findings]
        assert [finding.kind for finding in report.findings] == expected
    assert report.notes == ("compiled",) and messages["fibers"] == messages["native"]


def test_a_launch_with_an_empty_array_may_write_nothing():
    report = simulate(lets_no_thread_through, engine="native")[1, 64](np.zeros(8), np.zeros(0))
    assert report.notes == ("compiled",) and not report.findings


def test_a_read_of_unwritten_memory_is_the_only_finding():
    x = empty(64, np.float32)
    report = simulate(searches_its_input, engine="native", on_finding="report")[2, 32](x, np.zeros(1))
    assert [finding.kind for finding in report.findings] == ["uninitialized-read"]
