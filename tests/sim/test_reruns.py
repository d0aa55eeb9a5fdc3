"""Findings of launches that run again, under other schedules or with other undefined values."""

import numpy as np
import pytest
from numba import cuda, float32, int32, int64, uint8, uint32

from sim import load_ptx, simulate
from sim.compared_values import Probe, values_compared
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


@cuda.jit
def between_two_constants(x, y, n):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    if t < n:
        s[t] = x[t]
    cuda.syncthreads()
    v = s[63 - t]
    y[t] = 1 if 3.25 < v < 3.5 else 2


@cuda.jit
def equal_to_a_computed_key(x, y, n):
    tags = cuda.shared.array(64, uint32)
    t = cuda.threadIdx.x
    if t < n:
        tags[t] = 7
    key = uint32(uint32(x[t]) * uint32(2654435761) + uint32(12345))
    key = uint32(key ^ (key >> uint32(15)))
    y[t] = 1 if tags[t] == key else 2


@cuda.jit
def in_a_window(x, y, n):
    s = cuda.shared.array(64, int64)
    t = cuda.threadIdx.x
    if t < n:
        s[t] = 1000 * t
    cuda.syncthreads()
    y[t] = 1 if int64(x[t]) * 100 + 40 < s[t] and s[t] < int64(x[t]) * 100 + 50 else 2


IN_CUDA_CPP = {
    between_two_constants: """
        __shared__ float s[64];
        if (t < n) s[t] = x[t];
        __syncthreads();
        float v = s[63 - t];
        y[t] = v > 3.25f && v < 3.5f ? 1 : 2;""",
    equal_to_a_computed_key: """
        __shared__ unsigned tags[64];
        if (t < n) tags[t] = 7;
        unsigned key = (unsigned)x[t] * 2654435761u + 12345u;
        key ^= key >> 15;
        y[t] = tags[t] == key ? 1 : 2;""",
    in_a_window: """
        __shared__ long long s[64];
        if (t < n) s[t] = 1000 * t;
        __syncthreads();
        long long low = (long long)x[t] * 100;
        y[t] = low + 40 < s[t] && s[t] < low + 50 ? 1 : 2;""",
}


def in_language(kernel, language):
    if language == "Python":
        return kernel
    source = f"""extern "C" __global__ void k(const float* x, float* y, int n) {{
        int t = threadIdx.x; {IN_CUDA_CPP[kernel]}
    }}"""
    return load_ptx(compile_ptx(source, "k.cu"), source)["k"]


@pytest.mark.parametrize("engine", ["auto", "fibers", "native"])
@pytest.mark.parametrize("language", ["Python", "CUDA C++"])
@pytest.mark.parametrize("kernel", IN_CUDA_CPP)
@pytest.mark.parametrize(("written", "kinds"), [(50, [("uninitialized-read", "error")]), (64, [])])
def test_an_unwritten_value_that_is_compared_with_other_numbers(kernel, language, engine, written, kinds):
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    report = simulate(in_language(kernel, language), engine=engine, on_finding="report")[1, 64](x, y, written)
    assert [(f.kind, f.severity) for f in report.findings] == kinds


@pytest.mark.parametrize("engine", ENGINES)
def test_an_unwritten_value_whose_comparison_has_no_effect_stays_a_warning(engine):
    def kernel(x, y):
        s = cuda.shared.array(64, int32)
        t = cuda.threadIdx.x
        v, low = s[t], 5 * x[t]
        found = 0
        if low < v and v < low + 5:
            found = 1
        y[t] = found * 0

    x, y = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    (finding,) = simulate(kernel, engine=engine, on_finding="report")[1, 64](x, y).findings
    assert (finding.kind, finding.severity) == ("uninitialized-read", "warning")


@pytest.mark.parametrize("byte", [b"\x5a", b"\xda"])
@pytest.mark.parametrize(
    ("dtype", "offset", "wanted"),
    [(np.int8, 0, 7), (np.uint16, 0, 300), (np.int32, -12, 17), (np.uint64, 100, 2**40)]
    + [(np.float16, 0, 2.5), (np.float32, 0, 0.1), (np.float64, 0, -1e300)],
)
def test_the_number_that_is_compared_with_a_pattern(byte, dtype, offset, wanted):
    probe = Probe(byte)
    undefined = np.frombuffer(byte * 8, dtype)[0]
    undefined = undefined if undefined.dtype.kind == "f" else int(undefined) + offset
    given = float(dtype(wanted)) if np.dtype(dtype).kind == "f" else wanted
    probe.compared("a", undefined, given + offset)
    probe.compared("b", given + offset, undefined)
    probe.compared("c", given, given)
    probe.compared("d", undefined, undefined)
    ((_, numbers), (_, others)) = probe.numbers()
    first, *_ = values_compared([probe])
    assert list(numbers) == list(others) and first == np.array(wanted, dtype).tobytes()


def test_a_loop_counter_that_equals_a_narrow_pattern_is_no_unwritten_value():
    probe = Probe(b"\x5a")
    for i in range(256):
        probe.compared("counter", i, 200)
    probe.compared("byte", 90, 7)
    assert values_compared([probe]) == [b"\x07"]
