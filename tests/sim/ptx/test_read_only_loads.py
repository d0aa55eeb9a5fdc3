"""Tests of loads through the read-only cache (ld.global.nc) of memory that the launch writes."""

import numpy as np
import pytest

from ptx.test_language import HEAD
from sim import load_ptx, simulate
from sim.ptx.nvrtc import compile_ptx

ENGINES = "fibers", "threads", "native"
# Each thread loads x[i] and stores y[i]; after a barrier, it loads x[31 - i].
KERNEL = """
.visible .entry k(.param .u64 a_x, .param .u64 a_y)
{{ .reg .b32 %r<5>; .reg .b64 %d<6>;
   ld.param.u64 %d1, [a_x]; ld.param.u64 %d2, [a_y];
   mov.u32 %r1, %tid.x; sub.u32 %r4, 31, %r1;
   mad.wide.u32 %d3, %r1, 4, %d1; mad.wide.u32 %d4, %r1, 4, %d2; mad.wide.u32 %d5, %r4, 4, %d1;
   {first}.u32 %r2, [%d3];
   add.u32 %r2, %r2, 1;
   st.global.u32 [%d4], %r2;
   bar.sync 0;
   {second}.u32 %r3, [%d5];
   add.u32 %r3, %r3, %r2;
   st.global.u32 [%d4], %r3;
   ret; }}
"""
PLAIN, READ_ONLY = "ld.global", "ld.global.nc"


def launch(first, second, engine, in_place):
    kernel = load_ptx(HEAD + KERNEL.format(first=first, second=second))["k"]
    x = np.arange(32, dtype=np.int32)
    given = (x, x) if in_place else (x, np.zeros(32, np.int32))
    return simulate(kernel, engine=engine, on_finding="report")[1, 32](*given).findings


@pytest.mark.parametrize("engine", ENGINES)
def test_a_load_after_a_write_is_found_despite_a_barrier(engine):
    races = launch(READ_ONLY, READ_ONLY, engine, True)
    assert "read through the read-only cache" in " ".join(finding.verdict for finding in races)
    assert {finding.kind for finding in races} == {"race-global"}


@pytest.mark.parametrize("engine", ENGINES)
def test_every_load_after_a_write_is_counted(engine):
    kernel = load_ptx(HEAD + IN_PLACE.format(again="ld.global.nc.u32 %r3, [%d2]; st.global.u32 [%d2], %r3;"))
    report = simulate(kernel["k"], engine=engine, on_finding="report")[1, 32](np.zeros(32, np.int32))
    (finding,) = report.findings
    assert finding.count == 31 and "31 more like it" in finding.message


@pytest.mark.parametrize("engine", ENGINES)
def test_two_arrays_are_right(engine):
    assert not launch(READ_ONLY, READ_ONLY, engine, False)


IN_PLACE = """
.visible .entry k(.param .u64 a_x)
{{ .reg .b32 %r<4>; .reg .b64 %d<4>;
   ld.param.u64 %d1, [a_x]; mov.u32 %r1, %tid.x; mad.wide.u32 %d2, %r1, 4, %d1;
   ld.global.nc.u32 %r2, [%d2];
   st.global.u32 [%d2], %r1;
   {again}
   ret; }}
"""


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("again", ["", "ld.global.nc.u32 %r3, [%d2]; st.global.u32 [%d2], %r3;"])
def test_a_load_before_the_write_of_its_thread_is_right(engine, again):
    kernel = load_ptx(HEAD + IN_PLACE.format(again=again))["k"]
    findings = simulate(kernel, engine=engine, on_finding="report")[1, 32](np.zeros(32, np.int32)).findings
    assert {finding.kind for finding in findings} == ({"race-global"} if again else set())


ON_ONE_LINE = """
extern "C" __global__ void add(const int *__restrict__ a, int *b, int n) {
    b[threadIdx.x] = threadIdx.x;
    __syncthreads();
    if (threadIdx.x + 1 < n) b[n + threadIdx.x] = b[threadIdx.x + 1] + a[threadIdx.x];
}
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_a_plain_load_on_the_line_of_a_read_only_load_is_right(engine):
    pytest.importorskip("cuda.bindings.nvrtc")
    kernel = load_ptx(compile_ptx(ON_ONE_LINE, "k.cu"), ON_ONE_LINE)["add"]
    given = np.arange(32, dtype=np.int32), np.zeros(64, np.int32), 32
    assert not simulate(kernel, engine=engine, on_finding="report")[1, 32](*given).findings
