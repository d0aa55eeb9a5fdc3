"""Tests of popc, clz, ffs, brev, fma, cbrt, selp and fp16: their types against the CUDA compiler's, and their
values against exact arithmetic."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import cuda
from numba.cuda import fp16 as numba_fp16

from sim.isa import integers
from sim.isa.integers import brev, cbrt, clz, ffs, fma, fp16, popc, selp

INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


@pytest.mark.parametrize("name", ["popc", "clz", "ffs", "brev", "cbrt"])
def test_type_of_one_argument(name, numba_cuda):
    assert (
        numba_cuda.differences(getattr(integers, name), getattr(cuda, name), 1, numba_cuda.real, width=False)
        == {}
    )


def test_type_of_fma(numba_cuda):
    kinds = [
        kind for kind in numba_cuda.real if str(kind) in ("int32", "uint8", "float16", "float32", "float64")
    ]
    assert numba_cuda.differences(fma, cuda.fma, 3, kinds) == {}


def test_type_of_selp(numba_cuda):
    kinds = [
        kind for kind in numba_cuda.real if str(kind) in ("int32", "int64", "uint32", "float32", "float64")
    ]
    ours = numba_cuda.differences(lambda a, b: selp(True, a, b), lambda a, b: None, 2, kinds)
    for (a, b), (got, _) in ours.items():
        wanted = numba_cuda.result(cuda.selp, "bool", a, b)
        assert got == wanted or (got, wanted) == ("int64", "int32")  # The interpreter's int has no width.


def test_selp_wants_one_type():
    assert selp(True, 1, 2) == 1 and selp(False, 1, 2) == 2
    with pytest.raises(TypeError, match="^Numba's selp takes no bool and float32 and float64$"):
        selp(True, np.float32(1), np.float64(1))


def test_the_width_is_that_of_the_type():
    assert (popc(-1), popc(np.int32(-1))) == (64, 32)
    assert (clz(1), clz(np.int32(1)), clz(np.uint8(1)), clz(0)) == (63, 31, 7, 64)


@pytest.mark.parametrize("kind", INTEGERS)
@given(data=st.data())
def test_bits(kind, data):
    info = np.iinfo(kind)
    value = data.draw(st.integers(int(info.min), int(info.max)))
    pattern = np.binary_repr(value, info.bits)
    x = np.dtype(kind).type(value)
    assert popc(x) == pattern.count("1") and clz(x) == (pattern + "1").index("1")
    assert ffs(x) == (pattern[::-1].index("1") + 1 if value else 0)


@given(st.integers(-(2**63), 2**63 - 1))
def test_brev(x):
    assert brev(x) == int(np.binary_repr(x, 64)[-32:][::-1], 2)
    assert brev(np.uint64(x % 2**64)) == int(np.binary_repr(x, 64)[::-1], 2)


# --- fma ----------------------------------------------------------------------------------------------------

FLOATS = {np.float32: st.floats(width=32), np.float64: st.floats(), np.float16: st.floats(width=16)}
FUSED = {np.float32: fma, np.float64: fma, np.float16: fp16.hfma}


def nearest(exact, kind):
    """Return the `kind` nearest to a nonzero fraction, by comparing adjacent values."""
    largest = Fraction(float(np.finfo(kind).max))
    below = Fraction(float(np.nextafter(kind(np.finfo(kind).max), kind(0))))
    if abs(exact) >= largest + (largest - below) / 2:
        return kind(math.inf if exact > 0 else -math.inf)
    guess = kind(float(max(min(exact, largest), -largest)))
    around = [guess, *(np.nextafter(guess, kind(side)) for side in (-math.inf, math.inf))]
    finite = [x for x in around if np.isfinite(x)]
    least = min(abs(Fraction(float(x)) - exact) for x in finite)
    tied = [x for x in finite if abs(Fraction(float(x)) - exact) == least]
    return tied[0] if len(tied) == 1 else next(x for x in tied if int(x.view(f"u{x.itemsize}")) % 2 == 0)


@pytest.mark.parametrize("kind", FLOATS)
@given(data=st.data())
def test_fma_rounds_once(kind, data):
    a, b, c = (kind(data.draw(FLOATS[kind])) for _ in range(3))
    if data.draw(st.booleans()):  # operands whose sum nearly cancels, which is the hard case
        with np.errstate(all="ignore"):
            c = -(a * b)
    got = FUSED[kind](a, b, c)
    assert type(got) is kind
    if np.isfinite(a) and np.isfinite(b) and np.isfinite(c):
        exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        with np.errstate(all="ignore"):
            assert got == (nearest(exact, kind) if exact else 0)
    else:
        with np.errstate(all="ignore"):
            infinite = (
                c if np.isfinite(a) and np.isfinite(b) else np.float64(a) * np.float64(b) + np.float64(c)
            )
        assert got == infinite or (np.isnan(got) and np.isnan(infinite))


@pytest.mark.parametrize("sign, wanted", [(1, 16785410), (0, 16785408), (-1, 16785408)])
def test_fma_where_a_double_would_round_twice(sign, wanted):
    """Square 4097: 16785409 lies halfway between two float32, and the addend is too small to survive in a
    double."""
    side = np.float32(4097)
    assert fma(side, side, np.float32(sign * 2.0**-60)) == wanted


def test_fma_of_zeros(same):
    assert same(fma(np.float32(-0.0), np.float32(1), np.float32(-0.0)), -0.0)
    assert same(fma(np.float64(-0.0), np.float64(1), np.float64(0.0)), 0.0)
    assert same(fma(np.float64(2), np.float64(-1), np.float64(2)), 0.0)


def test_cbrt():
    assert (
        cbrt(np.float32(-27)) == -3 and abs(cbrt(27) - 3) < 1e-15 and cbrt(np.float64(math.inf)) == math.inf
    )


# --- fp16 ---------------------------------------------------------------------------------------------------


def public(module):
    return {name for name in module.__all__ if callable(getattr(module, name))} - {"atomicAdd"}


def test_fp16_is_complete():
    assert public(numba_fp16) == {name for name in vars(fp16) if name != "__name__"}


@pytest.mark.parametrize("name", sorted(public(numba_fp16)))
def test_type_of_fp16(name, numba_cuda, name_of):
    """Check that each function accepts the operand types of its declaration: halves, or the source type of a
    conversion."""
    function = getattr(numba_fp16, name)
    for operands in (
        ["float16"],
        ["float16"] * 2,
        ["float16"] * 3,
        *([kind] for kind in (*INTEGERS, "float32", "float64")),
    ):
        wanted = numba_cuda.result(function, *operands)
        if wanted:
            kinds = [numba_cuda.names[kind] for kind in operands]
            got = name_of(vars(fp16)[name](*(numba_cuda.samples[kind] for kind in kinds)))
            assert got == wanted or (got == "int64" and wanted in ("int8", "int16", "int32"))


HALF = st.floats(width=16)


@given(HALF, HALF)
def test_fp16_arithmetic_rounds_once(x, y):
    x, y = np.float16(x), np.float16(y)
    with np.errstate(all="ignore"):
        for name, operation in (
            ("hadd", np.add),
            ("hsub", np.subtract),
            ("hmul", np.multiply),
            ("hdiv", np.divide),
        ):
            got, wanted = vars(fp16)[name](x, y), np.float16(operation(np.float64(x), np.float64(y)))
            assert got == wanted or (np.isnan(got) and np.isnan(wanted))


def test_fp16_choices_and_comparisons():
    one, nan = np.float16(1), np.float16(math.nan)
    names = vars(fp16)
    assert fp16.hmax(one, nan) == 1 == fp16.hmin(nan, one)
    assert np.isnan(names["__hmax_nan"](one, nan)) and np.isnan(names["__hmin_nan"](nan, one))
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):  # cuda_fp16.hpp also declares __hne.
        assert not names[f"h{name}"](one, nan) and names[f"__h{name}u"](one, nan)
    assert (
        names["__hadd_sat"](one, one) == 1
        and names["__hmul_sat"](one, nan) == 0
        and names["__hsub_sat"](one, np.float16(3)) == 0
    )
    assert names["__hfma_relu"](one, np.float16(-2), one) == 0
    assert (
        names["__hisinf"](np.float16(-math.inf)) == -1
        and names["__hisinf"](one) == 0
        and names["__hisnan"](nan) is True
    )


def test_fp16_conversions():
    names = vars(fp16)
    assert [names[f"__half2int_{mode}"](np.float16(-2.5)) for mode in ("rn", "rz", "rd", "ru")] == [
        -2,
        -2,
        -3,
        -2,
    ]
    assert [names[f"__int2half_{mode}"](2049) for mode in ("rn", "rz", "rd", "ru")] == [
        2048,
        2048,
        2048,
        2050,
    ]
    assert names["__half2uchar_rz"](np.float16(300)) == 255 and names["__ushort_as_half"](0x3C00) == 1
    assert names["__half_as_short"](np.float16(-0.0)) == -(2**15) and fp16.hrcp(np.float16(4)) == 0.25
