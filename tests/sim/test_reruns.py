"""Findings of launches that run again, under other schedules or with other undefined values."""

import numpy as np
import pytest
from numba import cuda, float32

from sim import simulate

ENGINES = "fibers", "native"


@cuda.jit
def one_read_outside(x, n, y):
    i = cuda.grid(1)
    at = cuda.atomic.add(n, 0, 1)
    if at % 2 == 0:
        cuda.atomic.add(n, 0, 0)
    y[at] = i
    if i == 5:
        y[i] = x[x.size + i]


@pytest.mark.parametrize("engine", ENGINES)
def test_schedules_that_repeat_a_case_do_not_count_it_again(engine):
    arguments = np.zeros(3, np.int32), np.zeros(1, np.int32), np.zeros(64, np.int32)
    report = simulate(one_read_outside, on_finding="report", engine=engine)[1, 32](*arguments)
    (outside,) = (finding for finding in report.findings if finding.kind == "out-of-bounds")
    assert outside.count == 0
    assert report.counters["schedules"] > 1


def block_sum(first_distance, results):
    """Return a kernel with a race on partial sums, whose second stage has only 4 lanes.

    Lanes outside these 4 affect the result if `first_distance` is 4, or if more than one result is stored.
    """

    @cuda.jit
    def kernel(x, out):
        sums = cuda.shared.array(4, float32)
        t = cuda.threadIdx.x
        value = x[t]
        distance = 16
        while distance > 0:
            value += cuda.shfl_down_sync(0xFFFFFFFF, value, distance)
            distance //= 2
        if t % 32 == 0:
            sums[t // 32] = value
        if t < 4:
            value = sums[t]
            distance = first_distance
            while distance > 0:
                value += cuda.shfl_down_sync(15, value, distance)
                distance //= 2
            if t < results:
                out[t] = value

    return kernel


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("first_distance", "results", "kinds"),
    [
        (2, 1, {"race-shared": "error"}),
        (4, 1, {"race-shared": "error", "warp-divergence": "error"}),
        (2, 4, {"race-shared": "error", "warp-divergence": "error"}),
    ],
)
def test_absent_lanes_are_an_error_only_if_their_own_value_has_an_effect(
    engine, first_distance, results, kinds
):
    run = simulate(block_sum(first_distance, results), on_finding="report", engine=engine)
    report = run[1, 128](np.arange(128, dtype=np.float32), np.zeros(4, np.float32))
    assert {finding.kind: finding.severity for finding in report.findings} == kinds
