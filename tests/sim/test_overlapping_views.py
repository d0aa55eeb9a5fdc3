"""Tests of dynamic shared arrays that one kernel uses as separate arrays, although they overlap."""

import numpy as np
import pytest
from numba import cuda, float32, float64, int32, uint8

from sim import simulate

ENGINES = "fibers", "threads", "native"


def make_argmax(start):
    @cuda.jit
    def argmax(x, out):
        values = cuda.shared.array(0, float32)
        places = cuda.shared.array(0, int32)[start:]
        t = cuda.threadIdx.x
        values[t] = x[t]
        places[t] = t
        cuda.syncthreads()
        half = 16
        while half:
            if t < half and values[t + half] > values[t]:
                values[t] = values[t + half]
                places[t] = places[t + half]
            cuda.syncthreads()
            half //= 2
        if t == 0:
            out[0] = places[0]

    return argmax


def findings(kernel, engine, *arguments, seed=0):
    """Return the findings of a launch of one block of 32 threads."""
    launch = simulate(kernel, engine=engine, on_finding="report", seed=seed)[1, 32, 0, 512]
    return launch(*arguments).findings


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", range(3))
def test_two_arrays_at_the_same_byte(engine, seed):
    x, out = np.random.default_rng(1).random(32, np.float32), np.zeros(1)
    assert not findings(make_argmax(32), engine, x, out, seed=seed) and out[0] == x.argmax()
    (first, *_) = findings(make_argmax(0), engine, x, out, seed=seed)
    assert (first.kind, first.severity, first.array) == ("misuse", "error", "values")
    assert "an array of int32 overwrites a value that was stored to an array of float32" in first.verdict
    sources = [access.site.source for access in first.accesses]
    assert sources[:2] == ["values[t] = x[t]", "places[t] = t"]


@pytest.mark.parametrize(("start", "found"), [(0, 1), (15, 1), (16, 0)])
def test_elements_of_different_sizes(start, found):
    @cuda.jit
    def kernel(x, out):
        flags = cuda.shared.array(0, uint8)
        sums = cuda.shared.array(0, float64)[start:]
        t = cuda.threadIdx.x
        if t == 0:
            for i in range(128):
                flags[i] = 1
            sums[0] = x[0]
            for i in range(128):
                out[0] += flags[i]
            out[0] += sums[0]

    assert bool(findings(kernel, "fibers", np.ones(1), np.zeros(1))) == found


@cuda.jit
def sums(x, out):
    first, second = cuda.shared.array(0, float32), cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    first[t] = x[t]
    second[t] = 2 * x[t]
    cuda.syncthreads()
    out[t] = first[31 - t] + second[31 - t]


@pytest.mark.parametrize("engine", ENGINES)
def test_two_arrays_of_one_dtype(engine):
    (found,) = findings(sums, engine, np.ones(32, np.float32), np.zeros(32))
    assert (found.kind, found.severity) == ("misuse", "error")
    assert "a store to second overwrites a value that was stored to first, and both" in found.verdict


@cuda.jit
def exchanges_keys(keys, values):
    sorted_keys, sorted_values = cuda.shared.array(0, float32), cuda.shared.array(0, int32)
    t = cuda.threadIdx.x
    sorted_keys[t] = keys[t]
    sorted_values[t] = values[t]
    cuda.syncthreads()
    key = sorted_keys[t ^ 1]
    cuda.syncthreads()
    sorted_keys[t] = key
    cuda.syncthreads()
    keys[t] = sorted_keys[t]
    values[t] = sorted_values[t]


@pytest.mark.parametrize("engine", [*ENGINES, "auto"])
def test_two_arrays_that_both_lose_values(engine):
    (found,) = findings(exchanges_keys, engine, np.ones(32, np.float32), np.arange(32, dtype=np.int32))
    assert (found.kind, found.severity) == ("misuse", "error")
    assert (
        "a store to an array of float32 overwrites a value that was stored to an array of int32"
        in found.verdict
    )


def make_written_only(dtype, read_again):
    @cuda.jit
    def written_only(x, out):
        first, second = cuda.shared.array(0, float32), cuda.shared.array(0, dtype)
        t = cuda.threadIdx.x
        first[t] = x[t]
        second[t] = 2 * t
        cuda.syncthreads()
        out[t] = first[31 - t]
        if read_again:
            out[t] += second[31 - t]

    return written_only


@pytest.mark.parametrize("engine", [*ENGINES, "auto"])
@pytest.mark.parametrize("dtype", [float32, int32], ids=str)
def test_an_array_that_is_only_written(dtype, engine):
    arguments = np.ones(32, np.float32), np.zeros(32)
    (found,) = findings(make_written_only(dtype, False), engine, *arguments)
    assert (found.kind, found.severity) == ("misuse", "warning")
    assert "and only the first array is read afterwards" in found.verdict
    assert found.fix.endswith("or remove the array that is never read")
    (found,) = findings(make_written_only(dtype, True), engine, *arguments)
    assert found.severity == "error"


@cuda.jit
def bits_of_a_number(x, out):
    """Write the bits of a number through one view, and read the number through the other view."""
    numbers, bits = cuda.shared.array(0, float32), cuda.shared.array(0, int32)
    t = cuda.threadIdx.x
    bits[t] = 0x3F800000 + t
    cuda.syncthreads()
    out[t] = numbers[31 - t] * x[0]


@cuda.jit
def dead_store(x, out):
    """Store to an array that no thread reads, and then use the bytes for another array."""
    first, second = cuda.shared.array(0, float32), cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    first[t] = x[t]
    second[t] = 2 * x[t]
    cuda.syncthreads()
    out[t] = second[31 - t]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kernel", [bits_of_a_number, dead_store], ids=lambda k: k.py_func.__name__)
def test_an_array_that_is_only_written_but_loses_nothing(kernel, engine):
    assert findings(kernel, engine, np.ones(32, np.float32), np.zeros(32)) == ()


def make_sums_of_a_slice(start):
    @cuda.jit
    def sums_of_a_slice(x, out):
        first, second = cuda.shared.array(0, float32), cuda.shared.array(0, float32)[start:]
        t = cuda.threadIdx.x
        first[t] = x[t]
        second[t] = 2 * x[t]
        cuda.syncthreads()
        out[t] = first[31 - t] + second[31 - t]

    return sums_of_a_slice


@pytest.mark.parametrize(("start", "kinds"), [(32, []), (16, ["race-shared"]), (0, [])])
def test_a_slice_of_one_dtype_is_compared_only_by_races(start, kinds):
    """Find no error if the slice starts at 0, because each thread then overwrites only its own values."""
    found = findings(make_sums_of_a_slice(start), "fibers", np.ones(32, np.float32), np.zeros(32))
    assert [finding.kind for finding in found] == kinds


@cuda.jit(device=True)
def fill(t, value):
    again = cuda.shared.array(0, float32)
    again[t] = value
    return again[t]


@cuda.jit
def declares_again(x, out):
    """Store through a second declaration in a device function."""
    tile = cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    tile[t] = x[t]
    fill(t, 2 * x[t])
    cuda.syncthreads()
    out[t] = tile[31 - t]


@cuda.jit
def declares_a_third_array(x, out):
    """Declare two arrays, and store to one of them through a declaration in a device function."""
    first, second = cuda.shared.array(0, float32), cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    first[t] = x[t]
    filled = fill(t, 2 * x[t])
    out[t] = first[t] + filled + len(second)


@cuda.jit
def reuses_one_dtype(x, out):
    """Store results of the first phase in the bytes of its operands."""
    first, second = cuda.shared.array(0, float32), cuda.shared.array(0, float32)
    t = cuda.threadIdx.x
    for _ in range(2):
        first[t] = x[t]
        cuda.syncthreads()
        total = first[t] + first[t ^ 1]
        cuda.syncthreads()
        second[t] = total
        cuda.syncthreads()
        out[t] = second[31 - t]
        cuda.syncthreads()


@cuda.jit
def reuses(x, out):
    """Sort keys in bytes that held sums before."""
    sums, keys = cuda.shared.array(0, float32), cuda.shared.array(0, int32)
    t = cuda.threadIdx.x
    for _ in range(2):
        sums[t] = x[t]
        cuda.syncthreads()
        total = sums[t] + sums[t ^ 1]
        cuda.syncthreads()
        keys[t] = int32(total)
        cuda.syncthreads()
        out[t] = keys[31 - t]
        cuda.syncthreads()


@cuda.jit
def reads_bits(x, out):
    """Negate numbers by their sign bits."""
    numbers, words = cuda.shared.array(0, float32), cuda.shared.array(0, int32)
    t = cuda.threadIdx.x
    numbers[t] = x[t]
    words[t] = words[t] ^ int32(-(2**31))
    out[t] = numbers[t] + 0 * words[t]


@cuda.jit
def clears_words(x, out):
    """Clear bytes through a view of integers, and fill them through a view of floats."""
    numbers, words = cuda.shared.array(0, float32), cuda.shared.array(0, int32)
    t = cuda.threadIdx.x
    words[t] = 0
    if t < 16:
        numbers[t] = x[t]
    cuda.syncthreads()
    out[t] = numbers[t]


@cuda.jit
def converts_in_place(x, out):
    numbers, words = cuda.shared.array(0, float32), cuda.shared.array(0, int32)
    t = cuda.threadIdx.x
    numbers[t] = x[t]
    words[t] = int32(numbers[t])
    numbers[t] = words[t] + 0.5
    out[t] = numbers[t]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "kernel",
    [
        reuses,
        reads_bits,
        clears_words,
        converts_in_place,
        declares_again,
        declares_a_third_array,
        reuses_one_dtype,
    ],
)
def test_bytes_that_are_reused_or_reinterpreted(kernel, engine):
    assert not findings(kernel, engine, np.ones(32, np.float32), np.zeros(32))
