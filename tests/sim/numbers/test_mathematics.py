"""Tests of the math functions of kernels: their types against the CUDA compiler's, and their values against
numpy's in the same or a wider precision."""

import cmath
import math as python
from fractions import Fraction
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import cuda
from numba.cuda import libdevicefuncs

from sim import simulate
from sim.isa.libdevice import FUNCTIONS, MISSING
from sim.isa.mathematics import cmath as complex_math
from sim.isa.mathematics import libdevice, math

UNARY = [name for name in sorted(vars(math)) if callable(vars(math)[name]) and name not in
         ("atan2", "hypot", "copysign", "fmod", "remainder", "pow", "ldexp", "nextafter")]  # fmt: skip
BINARY = ["atan2", "hypot", "copysign", "fmod", "remainder", "pow", "ldexp", "nextafter"]
NUMPY = {
    "acos": "arccos",
    "acosh": "arccosh",
    "asin": "arcsin",
    "asinh": "arcsinh",
    "atan": "arctan",
    "atanh": "arctanh",
}
ORDINARY = "cos cosh ceil exp exp2 expm1 fabs floor log log10 log1p log2 sin sinh sqrt tan tanh trunc".split()
ORDINARY += ["isnan", "isinf", "isfinite", *NUMPY]
EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, 1e-300, 1e300, 750.0, -750.0, 1e5, inf, -inf, nan]
AMBIGUOUS = ("int64", "uint8", "uint16", "uint32", "uint64")
SIZES = {"float32": np.float32, "float64": np.float64}


@pytest.mark.parametrize("name", UNARY)
def test_type_of_one_argument(name, numba_cuda):
    assert (
        numba_cuda.differences(vars(math)[name], getattr(python, name), 1, numba_cuda.real, width=False) == {}
    )


@pytest.mark.parametrize("name", BINARY)
def test_type_of_two_arguments(name, numba_cuda):
    wrong = numba_cuda.differences(vars(math)[name], getattr(python, name), 2, numba_cuda.real)
    # Numba finds no best overload between float32 and these types; its choice depends on earlier calls.
    if name == "pow":
        wrong = {
            pair: both for pair, both in wrong.items() if pair[0] != "float32" or pair[1] not in AMBIGUOUS
        }
    assert wrong == {}


def test_math_is_complete(numba_cuda):
    """Check that every function of Python's math module that the compiler accepts is included."""
    real = list(map(str, numba_cuda.real))
    supported = {name for name in dir(python) if callable(getattr(python, name)) and any(
        numba_cuda.result(getattr(python, name), *operands)
        for operands in ([kind] * count for kind in real for count in (1, 2)))}  # fmt: skip
    assert supported == {name for name in vars(math) if callable(vars(math)[name])}


@pytest.mark.parametrize("name", ORDINARY)
@pytest.mark.parametrize("kind", SIZES.values(), ids=SIZES)
def test_values_at_the_edges(name, kind, same):
    wide = getattr(np, NUMPY.get(name, name))
    for x in map(kind, EDGES):
        got, wanted = vars(math)[name](x), kind(wide(np.float64(x)))
        assert same(got, wanted) or abs(got - wanted) <= 2 * np.spacing(abs(wanted)), (
            f"{name}({x!r}) = {got!r}, numpy {wanted!r}"
        )


@cuda.jit
def functions_of_the_c_library(x, out):
    i = cuda.grid(1)
    out[0, i] = python.acosh(1 + x[i]) + python.asinh(x[i])
    out[1, i] = python.sinh(x[i])
    out[2, i] = python.tanh(x[i])
    out[3, i] = python.erfc(x[i])
    out[4, i] = python.log10(x[i])
    out[5, i] = python.hypot(x[i] + 0.5, 1 - x[i])  # in double precision


def test_compiled_and_interpreted_values_are_equal():
    """Check that compiled code does not call functions such as sinhf, whose last bits differ."""
    x = (3 * np.random.default_rng(0).random(512)).astype(np.float32)
    first, second = outs = np.zeros((2, 6, 512))
    for engine, out in zip(("fibers", "native"), outs):
        simulate(functions_of_the_c_library, engine=engine)[4, 128](x, out)
    assert (first == second).all(axis=1).tolist() == [True] * 6


@pytest.mark.parametrize("name", ["atan2", "hypot", "copysign", "fmod", "pow", "nextafter"])
@pytest.mark.parametrize("kind", SIZES.values(), ids=SIZES)
def test_values_of_two_arguments(name, kind, same):
    wide = {"atan2": np.arctan2, "pow": np.power}.get(name) or getattr(np, name)
    for x in map(kind, EDGES):
        for y in map(kind, EDGES):
            got, wanted = (
                vars(math)[name](x, y),
                wide(x, y) if name == "nextafter" else kind(wide(np.float64(x), np.float64(y))),
            )
            if name == "pow" and (x, y) == (-inf, 0.5):
                # IEEE 754 and CUDA return inf here, but numpy's square root of -inf is NaN.
                wanted = kind(inf)
            near = same(got, wanted) or abs(got - wanted) <= 2 * np.spacing(abs(wanted))
            assert type(got) is kind, f"{name}({x!r}, {y!r}) is a {type(got).__name__}"
            assert near, f"{name}({x!r}, {y!r}) = {got!r}, numpy {wanted!r}"


@pytest.mark.parametrize("x, gamma, lgamma", [
    (0.0, inf, inf), (-0.0, -inf, inf), (-1.0, nan, inf), (200.0, inf, python.lgamma(200)),
    (-inf, nan, inf), (2.0, 1.0, 0.0), (5.0, 24.0, python.lgamma(5)), (nan, nan, nan)])  # fmt: skip
def test_gamma(x, gamma, lgamma, same):
    assert same(math.gamma(np.float64(x)), gamma) and same(math.lgamma(np.float64(x)), lgamma)


def test_frexp_modf_ldexp_remainder(same):
    assert math.frexp(np.float32(12)) == (0.75, 4) and math.modf(np.float32(-2.25)) == (-0.25, -2.0)
    assert same(math.modf(np.float64(-inf))[0], -0.0)
    assert math.ldexp(np.float32(1), 200) == inf and math.ldexp(np.float64(-1), 2000) == -inf
    assert math.ldexp(np.float64(1), 2**32 + 3) == 8
    assert math.remainder(np.float64(7), np.float64(4)) == -1 and np.isnan(
        math.remainder(np.float64(1), np.float64(0))
    )


def test_degrees_multiplies_by_a_constant_of_the_type():
    assert math.degrees(np.float32(1.1)) == np.float32(180 / python.pi) * np.float32(1.1)
    assert math.radians(180) == python.pi


def test_a_name_that_kernels_lack():
    with pytest.raises(AttributeError, match=r"^math\.factorial cannot be called in a Numba CUDA kernel$"):
        math.factorial
    with pytest.raises(TypeError, match=r"^Numba's math\.exp takes no complex64$"):
        math.exp(np.complex64(1))
    with pytest.raises(TypeError, match=r"^Numba's math\.pow takes no complex64 and int$"):
        math.pow(np.complex64(1), 2)


@pytest.mark.parametrize("name", [name for name in vars(complex_math) if callable(vars(complex_math)[name])])
def test_type_of_complex_functions(name, numba_cuda):
    kinds = [kind for kind in numba_cuda.samples if "bfloat16" not in str(kind)]
    assert numba_cuda.differences(vars(complex_math)[name], getattr(cmath, name), 1, kinds) == {}


# --- libdevice ----------------------------------------------------------------------------------------------

WIDTH = {"int16": 16, "int32": 32, "int64": 64}


def sample(kind):
    return np.dtype(kind).type(0.5) if kind.startswith("float") else 3


def test_libdevice_is_complete():
    assert {f"__nv_{name}" for name in FUNCTIONS} == set(libdevicefuncs.functions)


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - set(MISSING)))
def test_type_of_libdevice(name, name_of):
    signature = libdevicefuncs.create_signature(*libdevicefuncs.functions[f"__nv_{name}"])
    got = getattr(libdevice, name)(*(sample(str(kind)) for kind in signature.args))
    wanted = (
        list(signature.return_type) if hasattr(signature.return_type, "types") else [signature.return_type]
    )
    for value, kind in zip(got if isinstance(got, tuple) else [got], map(str, wanted), strict=True):
        assert name_of(value) == ("int64" if kind in WIDTH else kind)
        assert kind not in WIDTH or -(2 ** (WIDTH[kind] - 1)) <= value < 2 ** (WIDTH[kind] - 1)


@pytest.mark.parametrize("name", MISSING)
def test_missing_ones_say_so(name):
    with pytest.raises(NotImplementedError, match=rf"^libdevice\.{name}: "):
        getattr(libdevice, name)(1.0)


FINITE = {
    "f": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "d": st.floats(allow_nan=False, allow_infinity=False),
}
EXACT = {"add": lambda x, y: x + y, "mul": lambda x, y: x * y, "div": lambda x, y: x / y}


@pytest.mark.parametrize("letter", FINITE)
@pytest.mark.parametrize("name", EXACT)
@given(data=st.data())
def test_directed_rounding_encloses_the_exact_result(letter, name, data):
    x, y = (
        data.draw(FINITE[letter]),
        data.draw(FINITE[letter].filter(bool) if name == "div" else FINITE[letter]),
    )
    exact = EXACT[name](Fraction(x), Fraction(y))
    down, up, nearest, zero = (
        getattr(libdevice, f"{letter}{name}_{mode}")(x, y) for mode in ("rd", "ru", "rn", "rz")
    )
    assert (down == -inf or Fraction(float(down)) <= exact) and (up == inf or exact <= Fraction(float(up)))
    assert (
        up == down == nearest
        if python.isfinite(up) and Fraction(float(up)) == exact
        else up == np.nextafter(down, type(down)(inf))
    )
    assert zero == (down if exact >= 0 else up) and nearest in (down, up)
    with np.errstate(all="ignore"):
        kind = type(nearest)
        assert nearest == EXACT[name](kind(x), kind(y))


@given(st.floats(width=32, min_value=0, exclude_min=True, allow_infinity=False))
def test_directed_square_root_encloses_the_exact_one(x):
    down, up = libdevice.fsqrt_rd(x), libdevice.fsqrt_ru(x)
    assert Fraction(float(down)) ** 2 <= Fraction(x) <= Fraction(float(up)) ** 2
    assert up in (down, np.nextafter(down, np.float32(inf))) and libdevice.fsqrt_rn(x) == np.sqrt(
        np.float32(x)
    )
    assert abs(libdevice.frsqrt_rn(x) * np.sqrt(np.float64(x)) - 1) <= 2.0**-24 * 1.0001


@pytest.mark.parametrize(
    "x, modes", [(2.5, (2, 2, 2, 3)), (-2.5, (-2, -2, -3, -2)), (3.5, (4, 3, 3, 4)), (1e10, 4 * (2**31 - 1,))]
)
def test_float_to_int(x, modes):
    assert tuple(getattr(libdevice, f"float2int_{mode}")(x) for mode in ("rn", "rz", "rd", "ru")) == modes
    assert tuple(getattr(libdevice, f"double2int_{mode}")(x) for mode in ("rn", "rz", "rd", "ru")) == modes


def test_int_to_float():
    assert (libdevice.int2float_rd(2**24 + 1), libdevice.int2float_ru(2**24 + 1)) == (2**24, 2**24 + 2)
    assert libdevice.uint2float_rn(-1) == 2.0**32 and libdevice.ull2double_rz(-1) == np.nextafter(2.0**64, 0)


def test_words_and_patterns():
    assert libdevice.float_as_int(-0.0) == -(2**31) and libdevice.int_as_float(0x3F800000) == 1
    assert (
        libdevice.hiloint2double(libdevice.double2hiint(python.pi), libdevice.double2loint(python.pi))
        == python.pi
    )
    assert libdevice.longlong_as_double(libdevice.double_as_longlong(-1.5)) == -1.5
    assert libdevice.half2float(libdevice.float2half_rn(0.1)) == np.float32(np.float16(0.1))


@pytest.mark.parametrize("name, operands, wanted", [
    ("mulhi", (2**31 - 1, 4), 1), ("mulhi", (-1, 1), -1), ("umulhi", (-1, -1), -2),
    ("mul64hi", (2**62, 4), 1), ("umul64hi", (-1, 2), 1),
    ("sad", (3, 10, 5), 12), ("usad", (-1, 0, 0), -1), ("hadd", (-3, 0), -2), ("rhadd", (-3, 0), -1),
    ("uhadd", (-1, -1), -1),
    ("mul24", (2**23, 1), -(2**23)), ("umul24", (2**24 + 3, 2), 6), ("brev", (1,), -(2**31)),
    ("brevll", (2,), 2**62), ("clz", (-1,), 0),
    ("clzll", (1,), 63), ("ffs", (0,), 0), ("ffsll", (-(2**63),), 64), ("popc", (-1,), 32),
    ("popcll", (-1,), 64),
    ("umax", (-1, 5), -1), ("umin", (-1, 5), 5), ("ullmax", (-1, 5), -1), ("llmin", (-1, 5), -1),
    ("abs", (-(2**31),), -(2**31)),
    ("byte_perm", (0x33221100, 0x77665544, 0x7531), 0x77553311),
    ("byte_perm", (0x80, 0, 0x0008), 0x808080FF - 2**32),
])  # fmt: skip
def test_integer_functions(name, operands, wanted):
    assert getattr(libdevice, name)(*operands) == wanted


@pytest.mark.parametrize("name, x, wanted", [
    ("exp10", 2, 100), ("rsqrt", 4, 0.5), ("rsqrt", 0, inf), ("rcbrt", 8, 0.5), ("cospi", 0.5, 0),
    ("cospi", 1, -1), ("sinpi", 1, 0),
    ("sinpi", 0.5, 1), ("sinpi", -1.5, 1), ("cospi", 1 / 3, 0.5), ("sinpi", 1 / 6, 0.5), ("round", 2.5, 3),
    ("round", -2.5, -3),
    ("rint", 2.5, 2), ("nearbyint", -0.4, -0.0), ("logb", 0, -inf), ("logb", 10, 3), ("normcdf", 0, 0.5),
    ("normcdfinv", 0.5, 0),
    ("normcdfinv", 1, inf), ("erfinv", 1, inf), ("erfinv", 2, nan), ("erfcinv", 0, inf), ("erfcinv", 1, 0),
    ("cbrt", -27, -3),
    ("tgamma", 5, 24), ("ceil", -0.5, -0.0),
])  # fmt: skip
def test_elementary_functions(name, x, wanted, same):
    got = getattr(libdevice, name)(x)
    assert same(got, wanted) or abs(got - wanted) <= 4.5e-16


@given(st.floats(-0.9999, 0.9999).filter(lambda x: abs(x) > 1e-300))
def test_erfinv_inverts(x):
    assert abs(python.erf(libdevice.erfinv(x)) - x) <= 8e-16 * max(abs(x), 1e-3)


def test_tuples_and_choices(same):
    assert libdevice.frexp(12.0) == (0.75, 4) and libdevice.modff(2.25) == (0.25, 2.0)
    assert libdevice.remquo(7.0, 2.0) == (-1.0, 4) and libdevice.remquo(-7.0, 2.0) == (1.0, -4)
    assert libdevice.sincos(0.5) == (python.sin(0.5), python.cos(0.5)) and libdevice.sincospi(0.5) == (1, 0)
    assert libdevice.fmaxf(nan, 1.0) == 1 and libdevice.fmin(1.0, nan) == 1
    assert same(libdevice.fmax(-0.0, 0.0), 0.0) and same(libdevice.fmin(0.0, -0.0), -0.0)
    assert libdevice.fdim(3.0, 1.0) == 2 and libdevice.fdim(1.0, 3.0) == 0
    assert (libdevice.saturatef(-1.0), libdevice.saturatef(2.0), libdevice.saturatef(nan)) == (0, 1, 0)
    assert libdevice.ilogb(0.0) == -(2**31) and libdevice.llround(2.5) == 3 and libdevice.llrint(2.5) == 2
    assert (
        libdevice.isnand(nan),
        libdevice.isinff(-inf),
        libdevice.signbitd(-0.0),
        libdevice.finitef(1.0),
    ) == (1, 1, 1, 1)
