"""Tests that whole kernels compute the same numbers, compiled for the CPU by Numba and simulated.

Where the front end leaves an operator to Python (sim.frontend.types), only this comparison would reveal a
mistake.
"""

import math

import numpy as np
import pytest
from numba import cuda, float32, int32, njit, uint8, uint32, uint64

from sim import simulate

LARGE = 3_000_000_000
BILLION = 1_000_000_000


def congruential(x, n, out):
    state = n
    for i in range(out.shape[0]):
        state = state * 6364136223846793005 + 1442695040888963407
        out[i] = state >> 33


def fibonacci(x, n, out):
    a, b, i = 0, 1, 0
    while i < out.shape[0]:
        a, b = b, a + b
        out[i] = a
        i += 1
    for _ in range(100):
        a, b = b, a + b
    out[0] = a


def products(x, n, out):
    for i in range(out.shape[0]):
        row = i * BILLION
        out[i] = row * BILLION // 7 - row % 1000


def doubling(x, n, out):
    step = n
    for i in range(70):
        step *= 2
        out[i % out.shape[0]] += step % 1000
    out[1] = step - 1


def literals(x, n, out):
    """Use expressions of literals, which Python's compiler folds. Numba types the results."""
    out[0] = (2**64 - 1) >> 60
    out[1] = 3**40 % 1000
    out[2] = (1 << 63) / 2**60
    out[3] = -(2**63) + n
    out[n] = x[3 - 2] * (7 // 2 * 0.5) + (5 - 9) ** n


def single_precision(x, n, out):
    total = float32(0)
    for i in range(x.shape[0]):
        total += x[i] * x[i]
    out[0] = total
    out[1] = total / 3
    out[2] = total * 0.1
    out[3] = x[0] / x[1]
    out[4] = x[1] * n
    out[5] = -x[2] + n // 3


def accumulator_without_a_type(x, n, out):
    total = 0
    for i in range(x.shape[0]):
        total += x[i]
    out[0] = total / 3


def maxima(x, n, out):
    best = 0.0
    for i in range(x.shape[0]):
        best = max(best, x[i])
        out[i % out.shape[0]] = best - min(x[i], float32(0.1)) + abs(n)
    out[1] = math.exp(best) * best


def narrow(x, n, out):
    a, b, c = uint8(200), uint32(4_000_000_000), int32(LARGE)
    out[0] = a + a
    out[1] = b + b
    out[2] = c
    out[3] = b - uint32(5) - b
    out[4] = uint64(7) + n
    out[5] = a - 201
    out[6] = (b * b) >> uint32(3)
    out[7] = c // 2


def division(x, n, out):
    out[0], out[1], out[2] = -n // 4, -n % 4, n / 4
    out[3], out[4] = x[0] // x[1], -x[0] % x[1]
    out[5] = 1 / (n - n + 1.5)


def conditions(x, n, out):
    for i in range(out.shape[0]):
        value = x[i] if i % 2 else n
        out[i] = value * (1 if not i & 2 else -1) if 0 < i < 6 else ~i


KERNELS = [
    congruential,
    literals,
    fibonacci,
    products,
    doubling,
    single_precision,
    accumulator_without_a_type,
    maxima,
    narrow,
    division,
    conditions,
]


@pytest.mark.parametrize("dtype", (np.int64, np.float64, np.float32))
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_as_compiled(kernel, dtype):
    x = np.random.default_rng(3).normal(size=8).astype(np.float32)
    wanted, got = np.zeros((2, 8), dtype)
    njit(kernel, error_model="numpy")(x, 7, wanted)
    simulate(kernel)[1, 1](x, 7, got)
    np.testing.assert_array_equal(got, wanted)


def test_ieee_and_no_exception():
    def kernel(x, out):
        zero = x[0]
        out[0], out[1], out[2] = 1 / zero, -1.0 / zero, zero / zero
        out[3], out[4], out[5] = math.exp(1e4), math.log(zero), math.sqrt(zero - 1)
        out[6], out[7] = 1 // cuda.threadIdx.x, 5 / cuda.threadIdx.x

    out = np.zeros(8)
    simulate(kernel)[1, 1](np.zeros(1), out)
    np.testing.assert_array_equal(out, [np.inf, -np.inf, np.nan, np.inf, -np.inf, np.nan, 0, np.inf])


def test_float64_and_integers():
    """Combine 2**53 + 1 with a float64, which makes it 2**53."""

    def kernel(large, unsigned, narrow, out):
        f = 0.5 * (1 << 54)
        out[0], out[1] = f < large, f == large
        out[2], out[3] = unsigned - f, large / f
        out[4], out[5], out[6] = cuda.clz(narrow), narrow - 8, narrow < f

    out = np.zeros(7)
    simulate(kernel)[1, 1](2**53 + 1, np.uint64(2**53 + 1), np.int32(7), out)
    np.testing.assert_array_equal(out, [0, 1, 0, 1, 29, -1, 1])


@cuda.jit(device=True)
def several_returns(x):
    """Call a function of the GPU in the tuple of each return."""
    if cuda.threadIdx.x == 1:
        return cuda.fma(x, x, x), x
    return x, cuda.fma(x, x, float32(1))


@pytest.mark.parametrize("engine", ("fibers", "threads", "native"))
def test_returns_of_tuples(engine):
    def kernel(out):
        out[cuda.threadIdx.x, 0], out[cuda.threadIdx.x, 1] = several_returns(float32(3))

    out = np.zeros((2, 2), np.float32)
    simulate(kernel, engine=engine)[1, 2](out)
    np.testing.assert_array_equal(out, [[3, 10], [12, 3]])


def test_views():
    def kernel(x, out):
        row, column = x[1], x[:, 2]
        out[0], out[1], out[2], out[3] = row[0], column[1], x[1][2], x[0, -1]
        x[0][1], row[1] = 9, column[0]

    x, out = np.arange(6.0).reshape(2, 3), np.zeros(4)
    simulate(kernel)[1, 1](x, out)
    assert out.tolist() == [3, 5, 5, 2] and x.tolist() == [[0, 9, 2], [3, 2, 5]]


def test_element_of_a_row_outside():
    def kernel(x, out):
        out[0] = x[1][cuda.threadIdx.x + 2]

    report = simulate(kernel, on_finding="report")[1, 2](np.zeros((3, 3)), np.zeros(1))
    found = [finding for finding in report.findings if finding.kind == "out-of-bounds"]
    assert [(finding.array, finding.index) for finding in found] == [("x", (1, 3))]
