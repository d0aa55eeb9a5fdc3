"""Tests of operators and functions for which the engines once computed different values, and of all operators
on special values. The engine "fibers" is compared with "native".

The expected values were derived from the PTX that `numba.cuda.compile` returns.
"""

import importlib.util
import operator
from math import inf, nan

import numpy as np
import pytest
from numba import cuda
from numba.cuda import libdevice

from sim import DeviceSpec, ThreadError, simulate
from sim.isa.operators import BY_WAY_OF_FLOAT64

LOWEST = -(2**63)


def by_both(kernel, out, *arguments, threads=1):
    """Return the array that a kernel writes to `out`, after checking that both engines agree."""
    results = []
    for engine in ("fibers", "native"):
        written = out.copy()
        simulate(kernel, engine=engine)[1, threads](written, *arguments)
        results.append(written.tolist())
    assert repr(results[0]) == repr(results[1])
    return results[0]


@cuda.jit
def counted_bits(out, n, x):
    y, z = x[1], np.int32(-5)
    out[0], out[1], out[2] = cuda.clz(np.int32(31)), cuda.popc(np.int32(-1)), cuda.clz(cuda.threadIdx.x)
    out[3], out[4], out[5] = cuda.clz(n), cuda.popc(y), cuda.popc(z)
    out[6], out[7] = cuda.popc(-x[0]), cuda.clz(x[0] + 0)


def test_bits_are_counted_in_the_width_of_the_type():
    assert by_both(counted_bits, np.zeros(8), 31, np.array([5, -1], np.int32)) == [
        27,
        32,
        32,
        59,
        32,
        31,
        63,
        61,
    ]


@cuda.jit
def bits_of_any_number(out, x):
    i = cuda.threadIdx.x
    out[3 * i], out[3 * i + 1], out[3 * i + 2] = cuda.popc(x[i]), cuda.clz(x[i]), cuda.ffs(x[i])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.bool_])
def test_bits_are_counted_of_an_int8_where_the_number_is_no_integer(dtype):
    """Count bits of a float, which is converted to an int8 with saturation."""
    found = by_both(bits_of_any_number, np.zeros(12), np.array([0, 1, 3.7, 1e9], dtype), threads=4)
    assert found == [0, 8, 0, 1, 7, 1, *((1, 7, 1) * 2 if dtype is np.bool_ else (2, 6, 1, 8, 0, 1))]


@cuda.jit
def smaller_and_larger(out, a, b):
    out[0], out[1], out[2], out[3] = (
        libdevice.fminf(a[0], b[0]),
        libdevice.fmaxf(a[0], b[0]),
        libdevice.fminf(b[0], a[0]),
        libdevice.fmaxf(b[0], a[0]),
    )
    out[4], out[5], out[6], out[7] = (
        libdevice.fmin(a[0], b[0]),
        libdevice.fmax(b[0], a[0]),
        libdevice.fminf(a[1], b[1]),
        libdevice.fmaxf(b[1], a[1]),
    )


def test_the_smaller_zero_is_the_negative_one():
    single = np.array([0.0, 2.0], np.float32), np.array([-0.0, nan], np.float32)
    assert (
        repr(by_both(smaller_and_larger, np.zeros(8), *single))
        == "[-0.0, 0.0, -0.0, 0.0, -0.0, 0.0, 2.0, 2.0]"
    )


@cuda.jit
def rounded(out, x, y):
    out[0], out[1], out[2] = round(x[0], 2), round(x[1], 2), round(y[0], -2)
    out[3], out[4], out[5] = libdevice.rsqrtf(x[2]), round(y[1], 1), round(y[2])


def test_rounding_to_digits_goes_by_way_of_an_int64():
    x, y = np.array([1e30, 2.675, 7.1234]), np.array([1e30, 0.25, nan], np.float32)
    assert by_both(rounded, np.zeros(6), x, y) == [
        2.0**63 / 100,
        2.68,
        2.0**63 * 100,
        np.float32(7.1234) ** np.float32(-0.5),
        np.float32(0.2),
        LOWEST,
    ]


@cuda.jit
def better_than_nan(out, x, n):
    out[0], out[1], out[2] = max(x[0], n), max(x[0], -8.0), max(n, x[0])
    out[3], out[4] = min(x[0], -8.0), min(x[0], n)


def test_of_a_nan_and_an_integer_the_first_stays():
    assert repr(by_both(better_than_nan, np.zeros(5), np.array([nan]), 3)) == "[nan, -8.0, 3.0, -8.0, nan]"


@cuda.jit
def powers(out, x, z):
    out[0], out[1], out[2], out[3] = x[0] ** -1, x[0] ** z[1], z[0] ** z[1], z[2] ** z[1]
    out[4], out[5], out[6] = z[2] ** 2, z[3] ** 39, z[4] ** (z[1] - 2**40)


def test_powers_of_integers():
    wanted = [inf, inf, LOWEST, 0, 4, int(float(3**39)), -1]
    assert by_both(powers, np.zeros(7), np.array([0.0]), np.array([0, -1, 2, 3, -1])) == wanted


@cuda.jit
def unsigned_powers(out, a, b):
    i = cuda.threadIdx.x
    out[i] = a[i] ** b[i]


@pytest.mark.parametrize(
    "bases, exponents", [("uint64", "uint64"), ("uint64", "uint8"), ("uint32", "uint16")]
)
def test_powers_of_unsigned_numbers(bases, exponents):
    """Compute 3 ** 40, 3 ** 70000 and powers of 0 and 1 as a GPU does under Python 3.12. Python 3.11 rounds
    them."""
    pairs = [(3, 40), (3, 41), (7, 255), (2, 63), (2, 64), (10, 19), (0, 0), (5, 0), (2**32 - 1, 3), (1, 200)]
    if exponents == "uint64":
        pairs += [(3, 2**16), (3, 70000), (0, 2**64 - 1), (1, 2**63), (2**64 - 1, 2**16 - 1)]
    a, b = (np.array(part, kind) for part, kind in zip(zip(*pairs), (bases, exponents)))
    wanted = [2**64 - 1 if (x, n) == (3, 70000) else pow(x, n, 2**64) for x, n in pairs]
    if BY_WAY_OF_FLOAT64:
        wanted = [min(int(float(power)), 2**64 - 1) for power in wanted]
    assert by_both(unsigned_powers, np.zeros(len(a), np.uint64), a, b, threads=len(a)) == wanted
    assert wanted[0] == (12157665459056928768 if BY_WAY_OF_FLOAT64 else 12157665459056928801)


@cuda.jit
def quotients(out, x, y):
    out[0], out[1], out[2], out[3] = (x[0] + 1) // y[0], (x[0] + 1) % y[0], x[1] // y[0], x[0] // y[1]
    total = x[0] + 1
    total //= y[0]
    out[4] = total
    out[5], out[6] = divmod(x[0] + 1, y[0])


def test_the_lowest_integer_divided_by_minus_one_is_zero():
    assert by_both(quotients, np.ones(7, np.int64), np.array([2**63 - 1, 7]), np.array([-1, 0])) == [
        0,
        0,
        -7,
        0,
        0,
        0,
        0,
    ]


@cuda.jit
def by_a_literal(out, x):
    out[0], out[1] = x[0] // 7, x[0] % 7


@cuda.jit
def quotients_again(out, x, y):
    out[0], out[1] = (x[0] + 1) // y[0], (x[0] + 1) % y[0]


def test_a_literal_divisor_changes_no_other():
    """Divide by a positive literal, which compiles to LLVM's own division.

    LLVM's division would crash this process for other divisors.
    """
    x, y = np.array([2**63 - 1, 7]), np.array([-1, 0])
    by_both(quotients, np.ones(7, np.int64), x, y)
    assert by_both(by_a_literal, np.ones(2, np.int64), x) == [x[0] // 7, x[0] % 7]
    assert by_both(quotients_again, np.ones(2, np.int64), x, y) == [0, 0]


@cuda.jit(device=True)
def applied(operation, a, b):
    return operation(a, b)


@cuda.jit
def called_by_name(out, x):
    out[0], out[1] = operator.add(x[0], 1), operator.floordiv(x[0], x[1])
    out[2], out[3] = operator.lshift(x[2], 65), applied(operator.mul, x[0], x[0])


def test_an_operator_called_by_its_name_is_the_operator():
    """Call an operator by its name. On fibers it was once Python's operator, which ignores widths and
    raises."""
    assert by_both(called_by_name, np.ones(4, np.int64), np.array([2**63 - 1, 0, 3])) == [-(2**63), 0, 0, 1]


@cuda.jit
def negated(out, x):
    y = x[0]
    out[0], out[1], out[2], out[3], out[4], out[5] = -x[0], abs(x[0]), -y, abs(y), -(x[0] + 1), ~x[0]


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32, np.int64])
def test_minus_the_lowest_integer_is_itself(kind):
    low = int(np.iinfo(kind).min)
    assert by_both(negated, np.zeros(6, np.int64), np.array([low], kind)) == [low] * 4 + [-low - 1] * 2


@cuda.jit
def ballots(out, x):
    m = x[0]
    m = cuda.ballot_sync(0xFFFFFFFF, True)
    cuda.syncthreads()
    same = x[0]
    same = cuda.match_any_sync(0xFFFFFFFF, 3)
    cuda.syncthreads()
    out[cuda.threadIdx.x] = m + same


def test_a_ballot_is_an_int32():
    assert by_both(ballots, np.zeros(32, np.int64), np.array([5]), threads=32) == [-2] * 32


@cuda.jit
def compared(out, i, u, f):
    out[0], out[1], out[2], out[3], out[4] = (
        i[0] < u[0],
        u[0] == i[0],
        i[1] == f[0],
        0 <= i[1] <= f[0],
        f[0] >= i[1],
    )


def test_comparisons_in_the_common_type():
    numbers = np.array([2**63 - 2, 16777217]), np.array([2**63], np.uint64), np.array([16777216], np.float32)
    assert by_both(compared, np.zeros(5), *numbers) == [0, 1, 0, 0, 0]


def test_a_warp_has_32_lanes():
    with pytest.raises(
        ValueError,
        match=(
            "^warp_size=16: every CUDA GPU has warps of 32 lanes, and masks have 32 bits; leave warp_size as"
            " it is$"
        ),
    ):
        DeviceSpec(warp_size=16)


# --- all operators ------------------------------------------------------------------------------------------

OF_TWO = [f"a {sign} b" for sign in "+ - * / // % << >> & | ^ < <= == !=".split()] + [
    "min(a, b)",
    "max(a, b)",
    "a ** b",
]
OF_ONE = [
    "-a",
    "~a",
    "abs(a)",
    "+a",
    "cuda.clz(a)",
    "cuda.popc(a)",
    "cuda.ffs(a)",
    "cuda.brev(a)",
    "np.int8(a)",
    "np.uint8(a)",
    "np.int32(a)",
    "np.uint32(a)",
    "np.uint64(a)",
    "np.float32(a)",
]
TEXT = """
import numpy as np
from numba import cuda

@cuda.jit
def operators(out, wrapped, x, y):
    i = cuda.threadIdx.x
"""
PAIRS = [
    ("int64", "uint64"),
    ("float32", "int64"),
    *(
        pytest.param(*pair, marks=pytest.mark.nightly)
        for pair in [("uint32", "int8"), ("int32", "int32"), ("uint8", "int64"), ("float64", "float32")]
    ),
]


def awkward(kind):
    if np.dtype(kind).kind == "f":
        return np.array([0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -3.5, -7.0, 3e9, 1e30, inf, -inf, nan], kind)
    low, high = int(np.iinfo(kind).min), int(np.iinfo(kind).max)
    some = {
        low,
        low + 1,
        high,
        high - 1,
        high // 2 + 1,
        0,
        1,
        2,
        7,
        31,
        63,
        64,
        *((-1, -2, -7) if low else ()),
    }
    return np.array(sorted(value for value in some if low <= value <= high), kind)


@pytest.mark.parametrize("left, right", PAIRS)
def test_every_operator(left, right, tmp_path):
    floats = "float" in left + right
    texts = [text for text in OF_TWO if not (floats and text[2:4] in ("<<", ">>", "& ", "| ", "^ "))]
    texts += [text for text in OF_ONE if not (left.startswith("float") and ("~" in text or "cuda" in text))]
    lines = [
        f"    a, b = x[i], y[i]\n    out[{n}, i] = {text}\n    wrapped[{n}, i] = {text}\n"
        for n, text in enumerate(texts)
    ]
    path = tmp_path / f"operators_{left}_{right}.py"
    path.write_text(TEXT + "".join(lines))
    specification = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    x, y = (part.ravel() for part in np.meshgrid(awkward(left), awkward(right), indexing="ij"))
    results = []
    for engine in ("fibers", "native"):
        out, wrapped = np.zeros((len(texts), len(x))), np.zeros((len(texts), len(x)), np.int32)
        simulate(module.operators, engine=engine, observers=())[1, len(x)](out, wrapped, x, y)
        results.append((out, wrapped))
    (out, wrapped), (native, native_wrapped) = results
    differ = ~(
        np.isnan(out) & np.isnan(native) | (out == native) & (np.signbit(out) == np.signbit(native))
    ) | (wrapped != native_wrapped)
    assert [
        f"{texts[n]} with a = {x[i]}, b = {y[i]}: {out[n, i]} and {native[n, i]}"
        for n, i in np.argwhere(differ)
    ] == []


@cuda.jit
def complex_of_parts(out, narrow, wide):
    out[0], out[1], out[2] = complex(narrow[0], wide[0]), complex(1.5, wide[1]), complex(narrow[0])
    out[3] = 2.5 - complex(narrow[0], wide[0])


def test_a_complex_number_keeps_its_parts_whatever_they_are():
    out = by_both(complex_of_parts, np.zeros(4, complex), np.ones(1, np.float32), np.array([0.1, inf]))
    assert out == [1 + 0.1j, complex(1.5, inf), 1, 1.5 - 0.1j]


@cuda.jit
def beside_closures(out):
    t = cuda.threadIdx.x
    mine = cuda.local.array(2, np.float32)

    def next_to(i, x):
        return i + x

    kept = next_to(3, 2.5)
    mine[t & 1] = 4
    cuda.syncthreads()
    out[t] = kept + mine[t & 1]


def test_what_is_stored_beside_a_closure_lives_across_a_barrier():
    """Store next to a closure. Inlining a closure, Numba drops a store into an array that a function
    returned."""
    assert by_both(beside_closures, np.zeros(2), threads=2) == [9.5, 9.5]


RECORDS = np.array([(3e30, 1)], [("x", np.float32), ("n", np.int32)])


@cuda.jit
def of_one_type(out, x, records, z):
    """Assign float32 values that are unified with an int64 to a float64, whose square is finite."""
    a, b, c, d, e, f, g = 0, 0, 0, 0, 0, 0, 0
    if out[0] == 0:
        a, b, c, d = x[0, ::2][0], x[0:1, 1][0], records[0].x, records.x[0]
        e, f, g = records[0]["x"], z[0].conjugate().real, x.reshape(3)[1]
    out[0], out[1], out[2], out[3], out[4], out[5], out[6] = a * a, b * b, c * c, d * d, e * e, f * f, g * g


def test_elements_of_slices_fields_and_parts_have_numbas_types():
    x = np.full((1, 3), 3e30, np.float32)
    squares = by_both(of_one_type, np.zeros(7), x, RECORDS, np.full(1, 3e30, np.complex64))
    assert squares == [float(np.float32(3e30)) ** 2] * 7


@cuda.jit
def complex_quotients(out, x, y):
    i = cuda.threadIdx.x
    out[i] = x[i] / y[i]


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_numbers_are_divided_in_numbas_order(dtype):
    """Divide complex numbers. numpy multiplies by a reciprocal instead, which rounds once more."""
    draw = np.random.default_rng(0).normal(size=(2, 64)) + 1j * np.random.default_rng(1).normal(size=(2, 64))
    x, y = draw.astype(dtype)
    y[:3] = inf, complex(nan, 0), 1e-30j
    with np.errstate(invalid="ignore"):
        assert by_both(complex_quotients, np.zeros(64, dtype), x, y, threads=64) != (x / y).tolist()


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_a_complex_number_divided_by_zero_ends_the_launch(engine):
    """Divide a complex number by zero. Numba raises there. On a GPU, only that thread ends, without a
    message."""
    with pytest.raises(ThreadError, match="complex division by zero"):
        simulate(complex_quotients, engine=engine)[1, 1](
            np.zeros(1, complex), np.ones(1, complex), np.zeros(1, complex)
        )


@cuda.jit
def narrow_in_a_wide_variable(out, n):
    count = n
    if n > 1:
        count = cuda.syncthreads_count(n)
    out[0], out[1] = count * 3000000000, count * count * count * count * count * count * count


def test_a_variable_of_64_bits_may_hold_a_number_of_32():
    wanted = [28 * 3000000000, 28**7]
    assert by_both(narrow_in_a_wide_variable, np.zeros(2, np.int64), 2, threads=28) == wanted


@cuda.jit(device=True)
def added(a, b):
    return a + b


@cuda.jit
def magnitude_added(out, x):
    out[0] = added(3000000000, abs(x[0]))


def test_a_narrow_argument_of_a_device_function_meets_a_large_number():
    assert by_both(magnitude_added, np.zeros(1, np.int64), np.array([-3], np.int16)) == [3000000003]
