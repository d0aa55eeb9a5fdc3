"""Findings of launches that run again, under other schedules or with other undefined values."""

import numpy as np
import pytest
from numba import cuda, float32, uint8

from sim import load_ptx, simulate
from sim.engine.schedules import FEW
from sim.initial_values import values_of
from sim.memory.argument import classify
from sim.ptx.nvrtc import compile_ptx

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


def warp_maximum(x, out):
    t = cuda.threadIdx.x
    if t >= x.size:
        return
    value = x[t]
    for distance in (16, 8, 4, 2, 1):
        value = max(value, cuda.shfl_down_sync(0xFFFFFFFF, value, distance))
    if t == 0:
        out[0] = value


def is_any_large(x, out):
    t = cuda.threadIdx.x
    if t >= x.size:
        return
    out[t] = cuda.shfl_down_sync(0xFFFFFFFF, x[t], 1) > 1e6


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.float64])
@pytest.mark.parametrize("kernel", [warp_maximum, is_any_large])
def test_a_large_value_of_an_absent_lane_has_an_effect(engine, dtype, kernel):
    # 0 and -1 in the lanes that have returned change neither a maximum nor a test for more than 10^6
    arguments = np.arange(20).astype(dtype), np.zeros(20, dtype)
    report = simulate(kernel, on_finding="report", engine=engine)[1, 32](*arguments)
    assert [(f.kind, f.severity) for f in report.findings] == [("warp-divergence", "error")]


@cuda.jit
def find(text, wanted, out):
    tile = cuda.shared.array(33, uint8)
    t = cuda.threadIdx.x
    tile[t] = text[t]  # nothing writes tile[32]
    cuda.syncthreads()
    if tile[t + 1] == wanted:
        out[t] = 1


@cuda.jit
def find_and_ignore_the_last(text, wanted, out):
    tile = cuda.shared.array(33, uint8)
    t = cuda.threadIdx.x
    tile[t] = text[t]
    cuda.syncthreads()
    following = tile[t + 1]
    if t < 31:
        out[t] = following == wanted


FIND = """
extern "C" __global__ void find(const unsigned char* text, int wanted, int* out) {
    __shared__ unsigned char tile[33];
    int t = threadIdx.x;
    tile[t] = text[t];
    __syncthreads();
    if (tile[t + 1] == wanted) out[t] = 1;
}
"""


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("language", ["Python", "CUDA C++"])
def test_an_unwritten_value_that_is_compared_with_an_argument(engine, language):
    kernel = find if language == "Python" else load_ptx(compile_ptx(FIND, "find.cu"), FIND)["find"]
    arguments = np.full(32, 97, np.uint8), np.int32(97), np.zeros(32, np.int32)
    report = simulate(kernel, on_finding="report", engine=engine)[1, 32](*arguments)
    assert [(f.kind, f.severity) for f in report.findings] == [("uninitialized-read", "error")]


@cuda.jit
def padded_product(a, b, out):
    a_tile = cuda.shared.array(32, float32)
    b_tile = cuda.shared.array(32, float32)
    t = cuda.threadIdx.x
    a_tile[t] = a[t] if t < a.size else float32(0)
    if t < b.size:
        b_tile[t] = b[t]  # nothing writes the other elements
    cuda.syncthreads()
    if t == 0:
        total = float32(0)
        for k in range(32):
            total += a_tile[k] * b_tile[k]
        out[0] = total


@cuda.jit
def masked_sum(x, out, n):
    t = cuda.threadIdx.x
    if t >= n:
        return
    total, distance = x[t], 16
    while distance:
        other = cuda.shfl_down_sync((1 << n) - 1, total, distance)
        total += other * (1 if t + distance < n else 0)
        distance //= 2
    if t == 0:
        out[0] = total


@pytest.mark.parametrize("engine", ENGINES)
def test_a_missing_lane_that_has_an_effect_only_if_its_value_is_nan(engine):
    x, out = np.ones(20, np.float32), np.zeros(1, np.float32)
    report = simulate(masked_sum, on_finding="report", engine=engine)[1, 32](x, out, 20)
    assert [(f.kind, f.severity) for f in report.findings] == [("warp-divergence", "error")]


@pytest.mark.parametrize("engine", ENGINES)
def test_an_unwritten_value_that_has_an_effect_only_if_it_is_nan(engine):
    arguments = np.ones(20, np.float32), np.ones(20, np.float32), np.zeros(1, np.float32)
    report = simulate(padded_product, on_finding="report", engine=engine)[1, 32](*arguments)
    assert [(f.kind, f.severity) for f in report.findings] == [("uninitialized-read", "error")]


@pytest.mark.parametrize("engine", ENGINES)
def test_an_unwritten_value_without_effect_stays_a_warning(engine):
    arguments = np.full(32, 97, np.uint8), np.uint8(97), np.zeros(32, np.int32)
    report = simulate(find_and_ignore_the_last, on_finding="report", engine=engine)[1, 32](*arguments)
    (finding,) = report.findings
    assert finding.severity == "warning" and "with several other values there" in finding.message


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([np.array([3, 9, 2])], [3, 2, 9]),
        ([np.array([7, 200], np.uint8), 7], [b"\x07", b"\xc8", 7]),
        ([np.array([np.nan, 2.5, np.inf]), (4, 5.5)], [2.5, 4, 5.5]),
        ([np.zeros(4), np.zeros(0), None, True, 1 + 2j, "text"], []),
        ([np.arange(2, 100).reshape(2, 49), *range(100, 120)], [2, 99, *range(100, 106)]),
    ],
)
def test_values_from_the_arguments(values, wanted):
    assert values_of([classify(f"x{i}", value) for i, value in enumerate(values)]) == wanted


@cuda.jit
def reads_a_table(flag, table, out):
    """Let every thread read the whole table, after one thread has filled it and set a flag."""
    t = cuda.threadIdx.x
    if t == 0:
        for i in range(table.size):
            table[i] = i
        cuda.threadfence()
        cuda.atomic.exch(flag, 0, 1)
    while cuda.atomic.add(flag, 0, 0) == 0:
        pass
    cuda.threadfence()
    total = 0
    for i in range(table.size):
        total += table[i]
    out[t] = total


def test_a_launch_with_many_accesses_runs_under_fewer_schedules():
    """Compare two launches that have the same number of turns, but not the same number of accesses."""

    def schedules(elements):
        arguments = np.zeros(1, np.int32), np.zeros(elements, np.int32), np.zeros(32, np.int32)
        report = simulate(reads_a_table, engine="fibers")[1, 32](*arguments)
        assert (arguments[2] == elements * (elements - 1) // 2).all()
        return report.counters["schedules"]

    assert 1 < schedules(2000) < FEW < schedules(10)
