"""Tests of variables that change type. On every engine, each use sees the type that Numba infers."""

import numpy as np
import pytest
from numba import cuda, float32

from sim import simulate

LARGE = np.float32(1e30)  # Its square is inf in float32, and finite in float64.
ALL = 0xFFFFFFFF


def zero_or_float(x, out):
    t = cuda.threadIdx.x
    m = 0
    if x[t] > 0:
        m = x[t]
    out[t] = m * m  # float64, because an int64 and a float32 merge


def within_the_branch(x, out):
    t = cuda.threadIdx.x
    m = 0
    if x[t] > 0:
        m = x[t]
        out[t] = m * m  # float32, because nothing has merged yet


def overwritten(x, out):
    t = cuda.threadIdx.x
    m = 0
    m = x[t]
    out[t] = m * m  # float32


def across_a_barrier(x, out):
    t = cuda.threadIdx.x
    v = 0
    v = x[t]
    cuda.syncthreads()
    out[t] = v * v  # float32


def met_before_a_barrier(x, out):
    t = cuda.threadIdx.x
    v = 0
    if x[t] > 0:
        v = x[t]
    cuda.syncthreads()
    out[t] = v * v  # float64


def in_a_branch_with_a_barrier(x, out):
    t = cuda.threadIdx.x
    v = 0
    if out.shape[0] == 32:
        v = x[t]
        cuda.syncthreads()
        out[t] = v * v  # float32
    cuda.syncthreads()
    if out[t] == 0:
        out[t] = v * v


def summed_in_a_loop(x, out):
    t = cuda.threadIdx.x
    total = 0
    for i in range(2):
        total += x[t] * float32(1e8)
        cuda.syncthreads()
    out[t] = total  # float64


def left_by_a_break(x, out):
    t = cuda.threadIdx.x
    m = 1
    for i in range(3):
        if i == 1:
            m = x[t]
            break
    out[t] = m * m  # float64


def chosen(x, out):
    t = cuda.threadIdx.x
    m = x[t] if x[t] > 0 else 0
    out[t] = m * m  # float64


CASES = [
    (zero_or_float, 1e60),
    (within_the_branch, np.inf),
    (overwritten, np.inf),
    (across_a_barrier, np.inf),
    (met_before_a_barrier, 1e60),
    (in_a_branch_with_a_barrier, np.inf),
    (summed_in_a_loop, 2e38),
    (left_by_a_break, 1e60),
    (chosen, 1e60),
]


@pytest.mark.parametrize("engine", ("fibers", "native"))
@pytest.mark.parametrize("kernel, value", CASES, ids=lambda case: getattr(case, "__name__", ""))
def test_a_variable_has_the_type_that_meets(kernel, value, engine):
    out = np.zeros(32)
    simulate(kernel, engine=engine)[1, 32](np.full(32, LARGE), out)
    np.testing.assert_allclose(out, value, rtol=1e-6)


@pytest.mark.parametrize("engine", ("fibers", "native"))
def test_a_result_of_a_warp_operation_has_its_own_type(engine):
    """Assign the result of ballot_sync, which is an int32 regardless of the variable's earlier type."""

    def ballot(x, out):
        m = x[cuda.threadIdx.x]
        m = cuda.ballot_sync(ALL, m > 0)
        out[cuda.threadIdx.x] = m

    def match(x, out):
        m = x[cuda.threadIdx.x]
        m = cuda.match_any_sync(ALL, m)
        out[cuda.threadIdx.x] = m

    for kernel in (ballot, match):
        for dtype in (np.int64, np.float64):
            out = np.zeros(32)
            simulate(kernel, engine=engine)[1, 32](np.ones(32, dtype), out)
            np.testing.assert_array_equal(out, -1)


@pytest.mark.parametrize("observers", ("default", "none"))
@pytest.mark.parametrize("engine", ("fibers", "native"))
def test_targets_are_assigned_from_left_to_right(engine, observers):
    def kernel(out, v):
        t, n = cuda.threadIdx.x, 0
        for i in range(3):
            out[t, n], n = v + i, n + 1
        a = out[t, n] = 7
        out[t, n + 1] += a

    out = np.zeros((2, 5))
    simulate(kernel, engine=engine, **({} if observers == "default" else {"observers": ()}))[1, 2](out, 1.0)
    np.testing.assert_array_equal(out, [[1, 2, 3, 7, 7]] * 2)


def test_what_is_assigned_to_an_element_is_evaluated_before_its_index():
    def kernel(counter, out):
        out[cuda.atomic.add(counter, 0, 1)] = cuda.atomic.add(counter, 0, 1)

    counter, out = np.zeros(1, np.int32), np.zeros(2)
    simulate(kernel)[1, 1](counter, out)
    np.testing.assert_array_equal(out, [0, 0])
    assert counter[0] == 2


@pytest.mark.parametrize("dtype", (np.int8, np.int16, np.int32, np.int64))
@pytest.mark.parametrize("engine", ("fibers", "native"))
def test_the_lowest_integer_stays_the_lowest(dtype, engine):
    def kernel(x, out):
        out[0], out[1] = -x[0], abs(x[0])
        v = x[0]
        out[2] = -v

    lowest = np.iinfo(dtype).min
    out = np.zeros(3, np.int64)
    simulate(kernel, engine=engine)[1, 1](np.array([lowest], dtype), out)
    np.testing.assert_array_equal(out, lowest)


@cuda.jit(device=True)
def doubled(v, n):
    total = 0
    if n > 1:
        total = v
    return total * v


@cuda.jit(device=True)
def float_or_zero(v):
    if v > 0:
        return v
    return 0


@pytest.mark.parametrize("engine", ("fibers", "native"))
def test_variables_of_device_functions(engine):
    def kernel(x, out):
        a = doubled(x[0], 2)  # float64 times float32
        b = float_or_zero(x[0])
        out[0], out[1], out[2] = a, b * b, doubled(3, 2)

    out = np.zeros(3)
    simulate(kernel, engine=engine)[1, 1](np.array([LARGE]), out)
    np.testing.assert_allclose(out, [1e60, 1e60, 9], rtol=1e-6)


@pytest.mark.parametrize("engine", ("fibers", "native"))
def test_a_narrow_integer_keeps_its_width_in_a_device_function(engine):
    @cuda.jit(device=True)
    def negated(v):
        return -v

    def kernel(x, out):
        out[0], out[1] = negated(x[0]), cuda.clz(x[1])

    out = np.zeros(2, np.int64)
    simulate(kernel, engine=engine)[1, 1](np.array([-(2**31), 1], np.int32), out)
    np.testing.assert_array_equal(out, [-(2**31), 31])


@pytest.mark.parametrize("engine", ("fibers", "native"))
def test_arrays_assigned_side_by_side(engine):
    """Access arrays in loops that are assigned by one tuple."""

    @cuda.jit
    def kernel(x, out):
        first, second = cuda.local.array(3, float32), cuda.shared.array(3, float32)
        for i in range(3):
            first[i] = x[i]
            second[i] = first[i] + 1
        for i in range(3):
            out[i] = second[i]

    out = np.zeros(3, np.float32)
    simulate(kernel, engine=engine)[1, 1](np.arange(3, dtype=np.float32), out)
    assert out.tolist() == [1, 2, 3]
