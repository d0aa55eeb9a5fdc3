"""An index that is made of an undefined value: the finding says where the value came from, and comes after the
finding of its cause, which is an error."""

import numpy as np
import pytest
from numba import cuda, int32, int64

import sim
from sim import simulate


@cuda.jit
def by_a_shuffle(out):
    lane = cuda.threadIdx.x
    if lane < 16:
        i = cuda.shfl_down_sync(0xFFFF, int64(lane), 1)
        out[i] = 1


@cuda.jit
def by_shared_memory(out):
    places = cuda.shared.array(32, int32)
    t = cuda.threadIdx.x
    if t > 0:
        places[t] = t
    out[places[t] + 1] = 1


@cuda.jit
def by_a_read_outside(x, out):
    t = cuda.threadIdx.x
    out[x[t]] = 1


@pytest.mark.parametrize("engine", ["fibers", "native"])
@pytest.mark.parametrize(
    "kernel, arguments, kind, line",
    [
        (by_a_shuffle, (np.zeros(32),), "warp-divergence", 4),
        (by_shared_memory, (np.zeros(34),), "uninitialized-read", 6),
        (by_a_read_outside, (np.arange(31), np.zeros(32)), "out-of-bounds", 3),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_cause_comes_first(kernel, arguments, kind, line, engine):
    report = simulate(kernel, engine=engine, on_finding="report")[1, 32](*arguments)
    cause, consequence = report.findings
    assert (cause.kind, cause.severity) == (kind, "error")
    assert (consequence.kind, consequence.severity, consequence.array) == ("out-of-bounds", "error", "out")
    assert (
        f"comes from an undefined value on line {line} of {kernel.__name__}: {cause.verdict}"
        in consequence.reason
    )
    assert consequence.fix.endswith(cause.fix) and "Index -" in consequence.reason


def test_without_a_tool_that_knows_the_cause():
    report = simulate(by_shared_memory, observers=[sim.observers.Bounds], on_finding="report")[1, 32](
        np.zeros(34)
    )
    (finding,) = report.findings
    assert "is made of poison" in finding.reason and "guard" not in finding.fix


def test_an_index_that_is_a_little_off_is_no_consequence():
    def kernel(x, out):
        t = cuda.threadIdx.x
        fresh = cuda.local.array(1, int32)
        out[t + 1] = fresh[0] + x[t]

    findings = simulate(kernel, on_finding="report")[1, 8](np.zeros(8), np.zeros(8)).findings
    assert {f.kind for f in findings} == {"uninitialized-read", "out-of-bounds"}
    assert not any(f.follows for f in findings)
