"""Tests of float16 and bfloat16 on the native engine, which must equal fibers for all bit patterns."""

import math
import runpy

import ml_dtypes
import numpy as np
import pytest
from numba import cuda, float32, float64, int8, int64
from numba.cuda import fp16
from numba.cuda.types import bfloat16, float16

from sim import simulate
from sim.isa.mathematics import UNARY
from sim.observers import DEFAULT, Trace

HALVES = {"float16": (np.float16, float16), "bfloat16": (ml_dtypes.bfloat16, bfloat16)}
ONE = ["float16", pytest.param("bfloat16", marks=pytest.mark.nightly)]
ALL = np.arange(65536, dtype=np.uint16)
CORNERS = [0.0, -0.0, 1.0, -1.0, 3.0, np.inf, -np.inf, np.nan, 65504.0, 2.0**-14, 2.0**-24, 1e-40]


def launched(kernel, threads, *arguments, engine, **options):
    with np.errstate(all="ignore"):
        return simulate(kernel, engine=engine, **options)[-(-threads // 128), 128](*arguments)


def equal(found, wanted):
    """Return whether two arrays contain the same numbers. 0 and -0 differ, and all NaNs are equal."""
    found, wanted = (np.asarray(a).astype(np.float64) for a in (found, wanted))
    same = (found == wanted) & (np.signbit(found) == np.signbit(wanted)) | (found != found) & (
        wanted != wanted
    )
    return (
        bool(same.all())
        or f"{(~same).sum()} differ, first at {np.argwhere(~same)[0]}: {found[~same][0]!r},"
        f" not {wanted[~same][0]!r}"
    )


def operands(dtype, count=4096, number=2, seed=0):
    """Return arrays of random bits that start with all pairs of special values."""
    arrays = np.random.default_rng(seed).integers(0, 65536, (number, count), np.uint16).view(dtype)
    n = len(CORNERS)
    with np.errstate(over="ignore"):
        corners = np.array(CORNERS).astype(dtype)
    arrays[0, : n * n], arrays[1, : n * n] = np.repeat(corners, n), np.tile(corners, n)
    return list(arrays)


def on_both_engines(kernel, inputs, outputs, threads):
    """Return True if both engines write the same outputs, else {(output, row): difference}.

    Outputs are given as (number of rows, dtype) each.
    """
    left = {}
    for engine in ("fibers", "native"):
        left[engine] = [np.zeros((rows, threads), dtype) for rows, dtype in outputs]
        report = launched(kernel, threads, *inputs, *left[engine], engine=engine)
    assert report.notes == ("compiled",)
    with np.errstate(all="ignore"):
        unlike = {
            (number, row): difference
            for number, (found, wanted) in enumerate(zip(left["native"], left["fibers"]))
            for row in range(len(found))
            if (difference := equal(found[row], wanted[row])) is not True
        }
    return unlike or True


@pytest.mark.parametrize("name", HALVES)
def test_every_number_survives_float64_and_back(name):
    dtype, kind = HALVES[name]

    def there_and_back(x, wide, back):
        i = cuda.grid(1)
        wide[i] = x[i]
        back[i] = kind(float64(x[i]))

    x, wide, back = ALL.view(dtype), np.zeros(65536), np.zeros(65536, dtype)
    launched(there_and_back, 65536, x, wide, back, engine="native", observers=())
    with np.errstate(all="ignore"):
        assert equal(wide, x) is True
        numbers = x == x
    assert (back.view(np.uint16) == ALL)[numbers].all() and (back[~numbers] != back[~numbers]).all()


@pytest.mark.parametrize("name", HALVES)
def test_what_lies_between_two_numbers_is_rounded_to_the_nearest_ties_to_even(name):
    dtype, _ = HALVES[name]
    neighbours = np.arange(0, (np.array(np.inf).astype(dtype)).view(np.uint16) - 1, dtype=np.uint16)
    low, high = (
        neighbours.view(dtype).astype(np.float64),
        (neighbours + np.uint16(1)).view(dtype).astype(np.float64),
    )
    middle = (low + high) / 2
    x = np.concatenate([middle, np.nextafter(middle, 0), np.nextafter(middle, np.inf), -middle])
    out = np.zeros(len(x), dtype)

    def convert(x, out):
        i = cuda.grid(1)
        if i < len(x):
            out[i] = x[i]

    launched(convert, len(x), x, out, engine="native", observers=())
    even = np.where(neighbours % 2, neighbours + 1, neighbours).astype(np.uint16)
    wanted = np.concatenate([even, neighbours, neighbours + 1, even | 0x8000]).astype(np.uint16)
    assert (out.view(np.uint16) == wanted).all()


@pytest.mark.parametrize("name", HALVES)
def test_integers(name):
    dtype, _ = HALVES[name]
    x = np.array(
        [0, 1, -3, 2049, 2051, 65519, 65520, -65520, 2**53 + 1, 2**62, 2**63 - 1, -(2**63)], np.int64
    )

    def convert(x, out):
        i = cuda.grid(1)
        if i < len(x):
            out[i] = x[i]

    left = {}
    for engine in ("fibers", "native"):
        left[engine] = np.zeros(len(x), dtype)
        launched(convert, len(x), x, left[engine], engine=engine)
    assert equal(left["native"], left["fibers"]) is True


def test_a_float16_becomes_the_nearest_integer():
    def convert(x, small, unsigned, wide, wide_unsigned):
        i = cuda.grid(1)
        if i < len(x):
            small[i], unsigned[i], wide[i], wide_unsigned[i] = x[i], x[i], x[i], x[i]

    x = np.array(
        [0.5, 1.5, -2.5, 2.6, -1.0, 127.5, -200.0, 300.0, 65504.0, np.inf, -np.inf, np.nan], np.float16
    )
    left = {}
    for engine in ("fibers", "native"):
        left[engine] = [np.zeros(len(x), dtype) for dtype in (np.int8, np.uint16, np.int64, np.uint64)]
        launched(convert, len(x), x, *left[engine], engine=engine)
    assert all((found == wanted).all() for found, wanted in zip(left["native"], left["fibers"]))
    assert left["native"][2][:4].tolist() == [0, 2, -2, 3]


@pytest.mark.parametrize("name", ONE)
def test_operators(name):
    dtype, _ = HALVES[name]

    def operate(x, y, out, wide):
        i = cuda.grid(1)
        a, b = x[i], y[i]
        out[0, i] = a + b
        out[1, i] = a - b
        out[2, i] = a * b
        out[3, i] = a / b
        out[4, i] = -a
        out[5, i] = abs(a)
        out[6, i] = min(a, b)
        out[7, i] = max(a, b)
        out[8, i] = +a
        out[9, i] = a + int8(3)
        out[10, i] = a
        out[10, i] *= b
        wide[0, i] = a // b if b != a else 0.0
        wide[1, i] = (a < b) + 2 * (a <= b) + 4 * (a == b) + 8 * (a != b) + 16 * (a > b) + 32 * (a >= b)
        wide[2, i] = float32(a) * 3 + b
        wide[3, i] = a + 1
        wide[4, i] = 1.0 if a else 0.0
        wide[5, i] = a**2
        wide[6, i] = bool(a) and not b
        wide[7, i] = int64(a) if -1000 < a < 1000 else 0

    assert on_both_engines(operate, operands(dtype), [(11, dtype), (8, np.float32)], 4096) is True


def test_functions_of_fp16():
    def evaluate(x, y, z, out, wide):
        i = cuda.grid(1)
        a, b, c = x[i], y[i], z[i]
        out[0, i] = fp16.hadd(a, b)
        out[1, i] = fp16.hsub(a, b)
        out[2, i] = fp16.hmul(a, b)
        out[3, i] = fp16.hdiv(a, b)
        out[4, i] = fp16.hfma(a, b, c)
        out[5, i] = fp16.hmax(a, b)
        out[6, i] = fp16.hmin(a, b)
        out[7, i] = fp16.habs(a)
        out[8, i] = fp16.hneg(a)
        out[9, i] = fp16.hsqrt(a)
        out[10, i] = fp16.hrcp(a)
        out[11, i] = fp16.hfloor(a)
        out[12, i] = fp16.hrint(a)
        out[13, i] = fp16.hexp(a)
        out[14, i] = fp16.hlog2(a)
        wide[0, i] = (
            fp16.heq(a, b)
            + 2 * fp16.hlt(a, b)
            + 4 * fp16.hge(a, b)
            + 8 * fp16.hne(a, b)
            + 16 * fp16.hle(a, b)
            + 32 * fp16.hgt(a, b)
        )

    assert (
        on_both_engines(evaluate, operands(np.float16, number=3), [(15, np.float16), (1, np.float32)], 4096)
        is True
    )


def test_fma_rounds_once():
    """Compute 3 * 683 = 2049, halfway between two float16 values, so that even the smallest addend decides
    the rounding."""

    def fma(x, y, z, out):
        i = cuda.grid(1)
        out[i] = fp16.hfma(x[i], y[i], z[i])

    x, y = np.full(4, 3, np.float16), np.full(4, 683, np.float16)
    z, out = np.array([0, 2.0**-24, -(2.0**-24), 1], np.float16), np.zeros(4, np.float16)
    simulate(fma, engine="native")[1, 4](x, y, z, out)
    assert out.tolist() == [2048, 2050, 2048, 2050]


@pytest.mark.parametrize("name", ONE)
def test_functions_of_math(name, tmp_path):
    """Call all math functions of one argument in one kernel."""
    dtype, _ = HALVES[name]
    # Python 3.11 added exp2.
    functions = sorted(function for function in UNARY if hasattr(math, function))
    path = tmp_path / "functions.py"
    path.write_text(
        "import math\nfrom numba import cuda\ndef evaluate(x, out):\n    i = cuda.grid(1)\n    if i <"
        " len(x):\n"
        + "".join(
            f"        out[{row}, i] = math.{function}(x[i])\n" for row, function in enumerate(functions)
        )
    )
    evaluate = runpy.run_path(str(path))["evaluate"]
    x, left = ALL[::64].view(dtype).copy(), {}
    for engine in ("fibers", "native"):
        left[engine] = np.zeros((len(functions), len(x)))
        launched(evaluate, len(x), x, left[engine], engine=engine)
    for row, function in enumerate(functions):
        np.testing.assert_allclose(
            left["native"][row],
            left["fibers"][row],
            rtol=1e-3 if name == "float16" else 1e-6,
            atol=1e-30,
            err_msg=function,
        )


@pytest.mark.parametrize("name", HALVES)
def test_functions_of_two_numbers(name):
    dtype, _ = HALVES[name]

    def evaluate(x, y, out):
        i = cuda.grid(1)
        out[0, i] = math.atan2(x[i], y[i])
        out[1, i] = math.copysign(x[i], y[i])
        out[2, i] = math.hypot(x[i], float32(2))
        out[3, i] = math.fmod(x[i], y[i])
        out[4, i] = math.isnan(x[i]) + 2 * math.isinf(x[i]) + 4 * math.isfinite(x[i])
        out[5, i] = round(x[i]) if -1000 < x[i] < 1000 else 0

    left = {}
    for engine in ("fibers", "native"):
        left[engine] = np.zeros((6, 1024))
        launched(evaluate, 1024, *operands(dtype, 1024), left[engine], engine=engine)
    np.testing.assert_allclose(left["native"], left["fibers"], rtol=1e-6)


KINDS_OF_LAUNCH = {"checked": {}, "traced": {"observers": (*DEFAULT, Trace)}, "bare": {"observers": ()}}
DAILY = ("float16", "checked"), ("bfloat16", "traced")  # each combination compiles the kernel again


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(
            name, options, id=f"{name}-{kind}", marks=[] if (name, kind) in DAILY else pytest.mark.nightly
        )
        for name in HALVES
        for kind, options in KINDS_OF_LAUNCH.items()
    ],
)
def test_in_memory_across_barriers_between_lanes_and_as_arguments(name, options):
    """Use 16-bit values in shared and local arrays, across a barrier, in a shuffle, as a scalar argument and
    as a global constant."""
    dtype, kind = HALVES[name]
    third = dtype(1 / 3)

    def kernel(x, scale, out):
        tile, kept = cuda.shared.array(64, kind), cuda.local.array(2, kind)
        i = cuda.threadIdx.x
        mine = x[i] * scale
        tile[i] = mine
        cuda.syncthreads()
        kept[0], kept[1] = tile[63 - i], cuda.shfl_xor_sync(0xFFFFFFFF, mine, 1)
        out[0, i] = kept[0] + kept[1]
        out[1, i] = mine * third

    x, left = np.arange(64).astype(dtype), {}
    for engine in ("fibers", "native"):
        left[engine] = np.zeros((2, 64), dtype)
        report = simulate(kernel, engine=engine, **options)[1, 64](x, dtype(1.5), left[engine])
    assert report.engine == "native" and equal(left["native"], left["fibers"]) is True
    assert left["native"][0, 0] == dtype(63 * 1.5) + dtype(1.5)


def test_a_race_between_halves_reads_as_on_fibers():
    def racy(x):
        x[cuda.threadIdx.x // 2] = cuda.threadIdx.x

    messages = [
        [
            finding.message
            for finding in simulate(racy, engine=engine, on_finding="report")[1, 4](
                np.zeros(2, np.float16)
            ).findings
        ]
        for engine in ("fibers", "native")
    ]
    assert messages[0] and messages[0] == messages[1]
