"""Tests of operators and builtins: their types against the CUDA compiler's, and their values against compiled
code."""

import builtins
import math
import operator
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ml_dtypes import bfloat16
from numba import njit, types
from numpy import complex64

from sim.isa.builtin_functions import BUILTINS
from sim.isa.conversions import cast, domain
from sim.isa.operators import BY_WAY_OF_FLOAT64
from sim.isa.promotion import SCALAR
from sim.isa.table import INSTRUCTIONS, entries_under

operators = SimpleNamespace(**{name: entry.call for name, entry in entries_under("operator").items()})
ENTRIES = {  # table entry -> Python function
    entry: getattr(home, name.partition(".")[0])
    for home in (operator, builtins)
    for name, entry in entries_under(home.__name__.lstrip("_")).items()
}


def promised(entry, *operands):
    """Return one sample of each result type that the entry declares."""
    version = entry.version(*(SCALAR[type(operand)] for operand in operands))
    if version is None:
        raise TypeError
    several = isinstance(version.results, tuple)
    return tuple(result(1) for result in version.results) if several else version.results(1)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_types(entry, numba_cuda):
    """Compare the types of the entry and of the interpreter's function with the CUDA compiler's."""
    real = entry.version(*[complex64] * entry.count) is None
    for ours in (entry.call, partial(promised, entry)):
        wrong = numba_cuda.differences(
            ours,
            ENTRIES[entry],
            entry.count,
            numba_cuda.real if real else numba_cuda.samples,
            width=ours is not entry.call,  # The interpreter's int has no width.
        )
        # Numba returns float32 only for bool ** int32, an accident of its overload resolution.
        if entry.name == "operator.pow":
            assert wrong.pop(("bool", "int32")) == ("int64", "float32")
        # Numba rejects these calls for halves and bools on CUDA. The simulator treats them as casts.
        if entry.name.startswith(("builtins.int", "builtins.float", "builtins.complex")):
            wrong = {operands: types for operands, types in wrong.items() if types[1] is not None}
        assert wrong == {}


def test_what_is_no_number_is_left_to_python():
    assert operators.add((1, 2), (3,)) == (1, 2, 3)
    assert operators.eq((1, 2), (1, 2)) and operators.mul("ab", 2) == "abab"
    with pytest.raises(TypeError, match="^Numba's operator.add takes no complex64 and bfloat16$"):
        operators.add(np.complex64(1), bfloat16(1))
    with pytest.raises(TypeError, match="^Numba's operator.le takes no complex64 and complex64$"):
        operators.le(np.complex64(1), np.complex64(2))


# --- values -------------------------------------------------------------------------------------------------

INTS = [0, 1, -1, 2, -2, 7, -7, 63, 100, 2**31, -(2**31), 2**53 + 1, 2**63 - 1, -(2**63)]
DOUBLES = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -3.5, 7.0, 1e-300, 1e300, 5e-324, math.inf, -math.inf, math.nan]
SINGLES = [np.float32(x) for x in (*DOUBLES[:8], 1e-45, 1e38, 16777217.0, math.inf, -math.inf, math.nan)]
CLOSED = ("add", "sub", "mul", "truediv")
COMPILED = (*CLOSED, "floordiv", "mod")
BITWISE = ("and_", "or_", "xor")


def compiled_binary(operation):
    return njit(error_model="numpy")(lambda a, b: operation(a, b))


def agree(same, name, values, others=None):
    compiled = compiled_binary(getattr(operator, name))
    for a in values:
        for b in others or values:
            got, wanted = INSTRUCTIONS[f"operator.{name}"].call(a, b), compiled(a, b)
            assert same(got, wanted), f"{name}({a!r}, {b!r}) = {got!r}, compiled {wanted!r}"


@pytest.mark.parametrize("name", COMPILED)
def test_integers_equal_compiled_code(name, same):
    agree(same, name, INTS)


@pytest.mark.parametrize("name", CLOSED)
@pytest.mark.parametrize("values", [[np.float64(x) for x in DOUBLES], SINGLES], ids=["float64", "float32"])
def test_floats_equal_compiled_code(name, values, same):
    agree(same, name, values)


@pytest.mark.parametrize("name", BITWISE)
def test_bitwise_values_equal_compiled_code(name, same):
    agree(same, name, INTS)


@pytest.mark.parametrize("name", [*COMPILED, *BITWISE])
def test_unsigned_values_equal_compiled_code(name, same):
    agree(same, name, [np.uint64(x) for x in (0, 1, 7, 2**32, 2**63, 2**64 - 1)])


def test_power_equals_compiled_code(same):
    compiled = compiled_binary(operator.pow)
    for a, b in [(3, 33), (7, 18), (-2, 63), (2, 64), (1, -5), (-1, -5), (-1, -4), (5, -1), (0, 0)]:
        assert operators.pow(a, b) == compiled(a, b)
    if BY_WAY_OF_FLOAT64:
        # The PTX of `z[0] ** n` and `z[0] ** 3` is mul.lo.s64, then cvt.rn.f64.s64, then cvt.rzi.s64.f64.
        assert operators.pow(3, 40) == int(float(compiled(3, 40))) != compiled(3, 40)
    else:
        assert operators.pow(3, 40) == compiled(3, 40)
    for x in SINGLES + [np.float64(x) for x in DOUBLES]:
        for n in (0, 1, 2, 3, 7, -1, -2, -5):
            if n < 0 and x**-n == 0:
                continue  # The CPU's subroutine raises an exception (see test_zero_to_a_negative_power).
            got = operators.pow(x, n)
            assert same(got, type(x)(compiled(x, n))) and type(got) is type(x)
        for y in (0.5, -1.5, 3.0):
            assert same(operators.pow(np.float64(x), np.float64(y)), compiled(np.float64(x), y))


def test_zero_to_a_negative_power():
    assert operators.pow(np.float32(0), -1) == math.inf and operators.pow(np.float32(-0.0), -3) == -math.inf


@pytest.mark.parametrize(
    "a, n, wanted", [(-1, 100_001, -1), (3, 70_000, 2**63 - 1), (0, 70_000, 0), (1, 70_000, 1)]
)
def test_a_huge_exponent_goes_through_floating_point(a, n, wanted):
    assert operators.pow(a, n) == wanted
    assert operators.pow(np.float32(a), n) == (math.inf if a == 3 else a)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_int64_wraps(a, b):
    wide = np.array([a], np.int64), np.array([b], np.int64)
    for name, operation in (("add", np.add), ("sub", np.subtract), ("mul", np.multiply)):
        assert getattr(operators, name)(a, b) == int(operation(*wide)[0])
    assert operators.lshift(a, b % 64) == int(np.left_shift(wide[0], b % 64)[0])
    assert operators.rshift(a, b % 64) == a >> (b % 64)
    assert operators.neg(a) == int(np.negative(wide[0])[0])


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_uint64_wraps(a, b):
    for name, wanted in (
        ("add", a + b),
        ("sub", a - b),
        ("mul", a * b),
        ("lshift", a << b if b < 64 else 0),
        ("rshift", a >> b),
    ):
        got = getattr(operators, name)(np.uint64(a), np.uint32(b))
        assert got == wanted % 2**64 and type(got) is np.uint64


@pytest.mark.parametrize("count", [64, 65, 1000, -1, -64])
def test_a_shift_by_64_or_more_leaves_nothing_but_the_sign(count):
    assert (operators.lshift(5, count), operators.rshift(5, count), operators.rshift(-5, count)) == (0, 0, -1)


def test_integer_division_by_zero_is_zero():
    for zero, one in ((0, 1), (np.uint32(0), np.uint32(1))):
        assert operators.floordiv(one, zero) == 0 == operators.mod(one, zero)
        assert BUILTINS["divmod"](one, zero) == (0, 0)
    assert operators.floordiv(-(2**63), -1) == 0


def test_mixed_comparison_is_made_in_the_promoted_type():
    assert not operators.eq(np.float32(0.1), 0.1)
    assert operators.eq(2**53 + 1, np.float64(2**53))
    assert operators.eq(np.uint64(2**63), 2**63 - 1)  # both float64
    assert operators.lt(-1, np.uint32(0))


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_nan_loses_in_min_and_max_of_two_floats(kind):
    nan = kind(math.nan)
    for pick in (BUILTINS["min"], BUILTINS["max"]):
        for pair in ((nan, kind(1)), (kind(1), nan)):
            assert pick(*pair) == 1 and type(pick(*pair)) is kind
        assert np.isnan(pick(nan, nan))
    assert not np.signbit(BUILTINS["max"](kind(-0.0), kind(0.0)))
    assert np.signbit(BUILTINS["min"](kind(0.0), kind(-0.0)))


def test_min_and_max_of_more_or_with_an_int_keep_a_nan_that_comes_first(same):
    nan, one = np.float32(math.nan), np.float32(1)
    assert np.isnan(BUILTINS["max"](nan, one, one)) and BUILTINS["max"](one, nan, one) == 1
    assert np.isnan(BUILTINS["max"](nan, 1)) and BUILTINS["max"](1, nan) == 1
    assert np.isnan(BUILTINS["min"]((nan, one)))
    assert same(BUILTINS["max"](nan, 0.5), 0.5) and type(BUILTINS["max"](one, 0.5)) is np.float64


def test_min_and_max_fold_from_the_left(name_of):
    assert BUILTINS["max"](3, 9, 4) == 9 and BUILTINS["min"]((3, 9, -4)) == -4
    assert (
        BUILTINS["sum"]((np.float32(1), np.float32(2))) == 3
        and name_of(BUILTINS["sum"]((np.float32(1),))) == "float64"
    )


@pytest.mark.parametrize(
    "x, wanted",
    [(2.5, 2), (-2.5, -2), (3.5, 4), (math.nan, -(2**63)), (math.inf, 2**63 - 1), (-1e30, -(2**63))],
)
def test_round(x, wanted):
    assert BUILTINS["round"](np.float64(x)) == wanted


def test_round_to_digits_equals_compiled_code():
    compiled = njit(lambda x, digits: round(x, digits))
    for x in np.random.default_rng(0).normal(size=50) * 1000:
        for digits in (0, 1, 3, -2):
            assert BUILTINS["round"](x, digits) == compiled(x, digits)
    assert BUILTINS["round"](np.float64(math.inf), 2) == math.inf


@pytest.mark.parametrize(
    "x, wanted", [(2.9, 2), (-2.9, -2), (1e30, 2**63 - 1), (-math.inf, -(2**63)), (math.nan, -(2**63))]
)
def test_int_saturates(x, wanted):
    assert BUILTINS["int"](np.float64(x)) == BUILTINS["int"](np.float32(x)) == wanted


def test_a_complex_number_is_no_float():
    with pytest.raises(TypeError, match="^Numba's builtins.float.1 takes no complex64$"):
        BUILTINS["float"](np.complex64(1))


def test_int_of_float16_rounds_to_nearest():
    assert [BUILTINS["int"](np.float16(x)) for x in (2.5, 2.75, -2.75)] == [2, 3, -3]


@pytest.mark.parametrize("value", [np.float32(1), 1, True, np.uint8(1)], ids=type)
def test_complex(value):
    assert BUILTINS["complex"](value, np.float32(2)) == 1 + 2j
    assert BUILTINS["complex"](value, math.inf) == complex(1, math.inf)


# --- casts, stores, domain ----------------------------------------------------------------------------------

INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]


@pytest.mark.parametrize("dtype", INTEGERS)
@given(value=st.integers(-(2**63), 2**63 - 1))
def test_cast_of_an_int_wraps(dtype, value):
    got, wanted = cast(dtype)(value), np.array([value], np.int64).astype(dtype)[0]
    assert got == wanted and type(got) is (int if dtype in INTEGERS[:4] else dtype)


@pytest.mark.parametrize(
    "dtype, value, wanted",
    [
        (np.int32, 1e10, 2**31 - 1), (np.int32, -1e10, -(2**31)), (np.int32, math.nan, -(2**31)),
        (np.int32, np.float32(math.nan), 0),
        (np.int64, np.float32(math.nan), -(2**63)), (np.uint32, -3.0, 0), (np.uint64, math.inf, 2**64 - 1),
        (np.uint8, 300.0, 44),
        (np.int8, 1e9, -1), (np.int8, np.float16(300), 127), (np.uint16, 65535.9, 65535),
        (np.int32, np.float16(2.75), 3),
    ],
)  # fmt: skip
def test_cast_of_a_float_saturates_as_ptx_does(dtype, value, wanted):
    value = np.float64(value) if isinstance(value, float) else value
    assert cast(dtype)(value) == wanted


@given(st.integers(-(2**63), 2**63 - 1))
def test_cast_of_an_int_to_float32_rounds_once(value):
    assert cast(np.float32)(value) == np.array([value], np.int64).astype(np.float32)[0]


@given(st.floats(width=64))
def test_cast_to_bfloat16_rounds_once(value):
    """Cast a float64 between two bfloat16 values, which must round to the nearer one."""
    got = float(cast(bfloat16)(value))
    if math.isfinite(value) and math.isfinite(got):
        below, above = (float(np.nextafter(bfloat16(got), bfloat16(side))) for side in (-math.inf, math.inf))
        assert abs(value - got) <= min(abs(value - below), abs(value - above))


def test_cast_takes_numba_types():
    assert cast(types.float32)(0.1) == np.float32(0.1) and cast(types.uint32)(-1) == 2**32 - 1
    assert cast(types.boolean)(np.float32(0.5)) is True and cast(types.int32)(2**40 + 5) == 5


@given(
    st.floats() | st.integers(-(2**63), 2**63 - 1) | st.integers(0, 2**64 - 1).map(np.uint64) | st.booleans()
)
def test_storing_never_raises(value):
    for dtype in [*INTEGERS, np.float16, np.float32, np.float64, np.bool_, np.complex64]:
        array = np.zeros(1, dtype)
        with np.errstate(all="ignore"):
            array[0] = cast(array.dtype)(value)


@pytest.mark.parametrize(
    "value, wanted",
    [
        (np.int8(-3), "int64"),
        (True, "bool"),
        (np.bool_(1), "bool"),
        (2**63, "uint64"),
        (0.5, "float64"),
        (1j, "complex128"),
        (np.float32(1), "float32"),
    ],
)
def test_domain(value, wanted, name_of):
    assert name_of(domain(value)) == wanted and domain(value) == value


def test_domain_of_tuples_and_of_too_much(name_of):
    assert name_of(domain((1, (0.5, True)))) == ("int64", ("float64", "bool"))
    with pytest.raises(OverflowError, match="^18446744073709551616 does not fit into 64 bits"):
        domain(2**64)
