"""Tests of reads of arrays that only the host or an earlier launch has written in part."""

import numpy as np
import pytest

from ptx.test_language import HEAD
from sim import cuda, empty, load_ptx, simulate

ENGINES = "fibers", "native"
MANY = 300  # blocks, so that only the affected blocks of a compiled launch are explained
# y[i] = x[i], where x is loaded through the read-only cache
COPY = """
.visible .entry copy(.param .u64 a_x, .param .u64 a_y, .param .u32 a_n)
{ .reg .b32 %r<6>; .reg .b64 %d<5>; .reg .pred %p;
   ld.param.u64 %d1, [a_x]; ld.param.u64 %d2, [a_y]; ld.param.u32 %r5, [a_n];
   mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mad.lo.u32 %r1, %r2, 32, %r1;
   setp.ge.u32 %p, %r1, %r5;
   @%p ret;
   mad.wide.u32 %d3, %r1, 4, %d1; mad.wide.u32 %d4, %r1, 4, %d2;
   ld.global.nc.u32 %r3, [%d3];
   st.global.u32 [%d4], %r3;
   ret; }
"""


def copy(x, y, n):
    i = cuda.grid(1)
    if i < n:
        y[i] = x[i]


def count(x, n):
    i = cuda.grid(1)
    if i < n:
        cuda.atomic.add(x, i, 1)


def launch(kernel, engine, blocks, *arguments):
    report = simulate(kernel, engine=engine, on_finding="report")[blocks, 32](*arguments)
    assert "interpreted" not in " ".join(report.notes)
    return [(finding.kind, finding.index, finding.count) for finding in report.findings]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kernel", [copy, load_ptx(HEAD + COPY)["copy"]], ids=["python", "ptx"])
def test_only_reads_of_unwritten_elements_are_found(kernel, engine):
    x, y = empty(32 * MANY, np.int32), empty(32 * MANY, np.int32)
    x[:40] = np.arange(40)
    assert launch(kernel, engine, MANY, x, y, np.int32(40)) == []
    assert launch(kernel, engine, MANY, x, y, np.int32(43)) == [("uninitialized-read", (40,), 2)]
    assert y[:40].tolist() == [*range(40)]
    # The first launch has written y in part.
    assert launch(kernel, engine, MANY, y, x, np.int32(40)) == []


@pytest.mark.parametrize("engine", ENGINES)
def test_atomics_on_partly_written_arrays(engine):
    x = empty(64, np.int32)
    x[:40] = 5
    assert launch(count, engine, 2, x, 40) == []
    assert x[:40].tolist() == [6] * 40
    assert launch(count, engine, 2, x, 41) == [("uninitialized-read", (40,), 0)]
