"""Tests of indices outside an array that depend on racing memory.

The finding about the access names the race and follows it.
"""

import numpy as np
import pytest
from numba import cuda, int32

from sim import simulate


@cuda.jit
def racing_pivot(out, other):
    pivot = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    if t == 0:
        pivot[0] = 1000
    cuda.syncthreads()
    if t == 31:
        pivot[0] = 3
    row = pivot[0]
    start = row * 32
    out[start + t] = 1


@cuda.jit
def pivot_after_a_barrier(out, other):
    pivot = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    if t == 0:
        pivot[0] = 1000
    cuda.syncthreads()
    if t == 31:
        pivot[0] = 3
    cuda.syncthreads()
    row = pivot[0]
    start = row * 32
    out[start + t] = 1


@cuda.jit
def racing_pivot_in_the_index(out, other):
    pivot = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    if t == 0:
        pivot[0] = 1000
    cuda.syncthreads()
    if t == 31:
        pivot[0] = 3
    out[pivot[0] + t] = 1


@cuda.jit
def racing_exchange(out, other):
    # No read races: two threads write the element, and a barrier precedes its read.
    pivot = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    if t == 0:
        pivot[0] = 3
    if t == 31:
        pivot[0] = 1000
    cuda.syncthreads()
    out[pivot[0] + t] = 1


@cuda.jit
def race_without_influence(out, other):
    t = cuda.threadIdx.x
    other[0] = t
    out[t + 120] = 1


def launched(kernel, engine):
    out = np.zeros(128, np.int32)
    report = simulate(kernel, engine=engine, on_finding="report")[1, 32](out, np.zeros(1, np.int32))
    return report.findings, out


@pytest.mark.parametrize("engine", ["fibers", "native"])
@pytest.mark.parametrize(
    ("kernel", "lines"),
    [(racing_pivot, "8 and 9"), (racing_pivot_in_the_index, "8 and 9"), (racing_exchange, "6 and 8")],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_race_comes_before_the_index_that_depends_on_it(kernel, lines, engine):
    (race, access), _ = launched(kernel, engine)
    assert (race.kind, access.kind, access.severity) == ("race-shared", "out-of-bounds", "error")
    place = f"the race on lines {lines} of {kernel.__name__}"
    assert access.reason.endswith(f"The index depends on pivot, and {place} can change its value.")
    assert access.fix.startswith(
        f"correct {place} first: {race.fix}. If the index is still wrong then, guard"
    )


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_without_the_race_the_index_is_right(engine):
    findings, out = launched(pivot_after_a_barrier, engine)
    assert not findings and out.tolist() == [0] * 96 + [1] * 32


def test_a_race_without_influence_on_the_index_is_not_named():
    findings, _ = launched(race_without_influence, "fibers")
    assert [finding.kind for finding in findings] == ["out-of-bounds", "race-global"]
    assert findings[0].fix == "guard the access: if t + 120 < out.shape[0]"
