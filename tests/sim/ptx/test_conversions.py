"""Tests of every combination of types, rounding and saturation that the PTX ISA allows for cvt (9.7.9).

The results are compared with exact rational arithmetic.
"""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from ml_dtypes import bfloat16, finfo, float8_e4m3fn, float8_e5m2

from ptx import operations
from sim import LaunchError, simulate
from sim.isa.registers import HELPERS, Missing, find_operation

INTEGERS = [f"{sign}{width}" for sign in "us" for width in (8, 16, 32, 64)]
REALS = {"bf16": bfloat16, "f16": np.float16, "f32": np.float32, "f64": np.float64}
SIZES = {name: np.dtype(scalar).itemsize for name, scalar in REALS.items()}
MODES = ("rn", "rz", "rm", "rp")
BYTES = {"e4m3x2": float8_e4m3fn, "e5m2x2": float8_e5m2}


def name_of(*parts):
    return ".".join(["cvt", *(part for part in parts if part)])


def fits(to, source):
    """Return whether the range of `to` contains the range of `source`. The PTX ISA then forbids .sat."""
    low, high = limits(to)
    return low <= limits(source)[0] and limits(source)[1] <= high


def limits(kind):
    width = int(kind[1:])
    return (-(1 << width - 1), (1 << width - 1) - 1) if kind[0] == "s" else (0, (1 << width) - 1)


def combinations():
    """Yield the cvt names that the PTX ISA allows for scalar operands."""
    for to, source in itertools.product(INTEGERS, INTEGERS):
        yield name_of(to, source)
        if not fits(to, source):
            yield name_of("sat", to, source)
    for to, source, mode in itertools.product(INTEGERS, REALS, MODES):
        for ftz, sat in itertools.product(["", "ftz"] if source == "f32" else [""], ("", "sat")):
            yield name_of(f"{mode}i", ftz, sat, to, source)
    for to, source in itertools.product(REALS, [*INTEGERS, *REALS]):
        modes = MODES if source in INTEGERS or SIZES[to] <= SIZES[source] and to != source else [""]
        modes = modes if to != source else ["", *(f"{mode}i" for mode in MODES)]
        for mode, ftz in itertools.product(modes, ["", "ftz"] if "f32" in (to, source) else [""]):
            yield from (name_of(mode, ftz, sat, to, source) for sat in ("", *["sat"] * (to != "bf16")))
    for to, mode, relu, finite in itertools.product(
        ("f16", "bf16"), ("rn", "rz"), ("", "relu"), ("", "satfinite")
    ):
        yield name_of(mode, relu, finite, to, "f32")


def packed():
    """Yield the cvt names that the PTX ISA allows for tf32 and for packed types."""
    for mode, relu, finite in itertools.product(("rn", "rz"), ("", "relu"), ("", "satfinite")):
        yield from (name_of(mode, relu, finite, to, "f32") for to in ("f16x2", "bf16x2", "tf32"))
    yield from ("cvt.rna.tf32.f32", "cvt.rna.satfinite.tf32.f32")
    for pair, relu in itertools.product(BYTES, ("", "relu")):
        yield from (name_of("rn", relu, "satfinite", pair, source) for source in ("f32", "f16x2"))
        yield name_of("rn", relu, "f16x2", pair)


COMBINATIONS = list(dict.fromkeys(combinations()))


def whole(x, mode):
    """Round a Fraction to an integer in a direction."""
    return {"rn": round(x), "rz": int(x), "rm": x.__floor__(), "rp": x.__ceil__()}[mode[:2]]


def rounded(x, scalar, mode):
    """Round a Fraction to a format by comparing it with the adjacent numbers."""
    with np.errstate(all="ignore"):
        near = scalar(float(x))
        around = {float(near), *(float(np.nextafter(near, scalar(end))) for end in (-np.inf, np.inf))}
    finite = sorted(Fraction(n) for n in around if np.isfinite(n))
    most = Fraction(float(finfo(scalar).max))
    below = [n for n in finite if n <= x] or [None]
    above = [n for n in finite if n >= x] or [None]
    low, high = below[-1], above[0]
    if mode == "rn":
        step = most - Fraction(float(np.nextafter(scalar(finfo(scalar).max), scalar(0))))
        if abs(x) >= most + step / 2:
            return np.inf if x > 0 else -np.inf
        if low is None or high is None:
            return float(high if low is None else low)
        middle = (low + high) / 2
        even = next((n for n in (low, high) if last_bit(n, scalar) == 0), low)
        return float(low if x < middle else high if x > middle else even)
    wanted = {"rz": low if x > 0 else high, "rm": low, "rp": high}[mode]
    if wanted is None:
        return -np.inf if mode == "rm" else np.inf
    return float(wanted)


def last_bit(number, scalar):
    bits = np.array([float(number)], scalar).view(f"u{np.dtype(scalar).itemsize}")
    return int(bits[0]) & 1


def wanted(name, x):
    """Return the expected result for one int or float."""
    _, *parts = name.split(".")
    to, source, modifiers = parts[-2], parts[-1], parts[:-2]
    mode = next((m for m in modifiers if m[:2] in MODES), "")
    if source == "f32" and "ftz" in modifiers and abs(x) < 2.0**-126:
        x = type(x)(np.copysign(0, x))
    number = x if isinstance(x, int) else float(x)
    if to in INTEGERS:
        low, high = limits(to)
        if isinstance(x, int):
            return max(low, min(x, high)) if "sat" in modifiers else x & (1 << int(to[1:])) - 1
        if number != number:
            return None  # tested separately
        if np.isinf(number):
            return high if number > 0 else low
        return max(low, min(whole(Fraction(number), mode), high))
    found = number
    if not isinstance(x, int) and not np.isfinite(number):
        pass
    elif mode.endswith("i"):
        found = float(np.copysign(float(whole(Fraction(number), mode)), number))
    elif number:
        found = rounded(Fraction(number), REALS[to], mode or "rn")
        found = float(np.copysign(found, number)) if found == 0 else found
    if to == "f32" and "ftz" in modifiers and abs(found) < 2.0**-126:
        found = float(np.copysign(0.0, found))
    if "satfinite" in modifiers and np.isinf(found):
        found = float(np.copysign(float(finfo(REALS[to]).max), found))
    if "sat" in modifiers:
        found = 0.0 if not found > 0 else min(found, 1.0)
    if "relu" in modifiers and found < 0:
        found = 0.0
    return found


def given(name):
    """Return the operand of each thread, which depends on its index."""
    source = name.split(".")[-1]
    if source in REALS:
        return list(operations.operands()[f"{source}a"])
    bits, width = operations.operands()[f"b{max(int(source[1:]), 16)}a"], int(source[1:])
    numbers = [int(b) & (1 << width) - 1 for b in bits]
    return [n - (1 << width) if source[0] == "s" and n >> width - 1 else n for n in numbers]


def launched(names, engine):
    out = np.zeros((len(names), operations.THREADS), np.uint64)
    run = simulate(operations.kernel(names), engine=engine, observers=())
    report = run[1, operations.THREADS](*operations.operands().values(), out)
    return report, out


def checked(name, row):
    to = name.split(".")[-2]
    for x, bits in zip(given(name), row):
        want = wanted(name, x)
        if want is None:
            continue
        if to in INTEGERS:
            width = int(to[1:])
            assert int(bits) & (1 << width) - 1 == want & (1 << width) - 1, (name, x)
            continue
        size = SIZES[to]
        found = np.array([bits], np.uint64).view(np.uint8)[:size].view(REALS[to])[0]
        assert found != found and want != want or float(found) == want, (name, x, found, want)
        clamped = "sat" in name or "relu" in name  # A result of zero may have either sign.
        assert found != found or clamped or np.signbit(float(found)) == np.signbit(want), (name, x)


@pytest.mark.parametrize("part", range(8))
def test_every_combination_gives_what_the_isa_says(part):
    names = COMBINATIONS[part::8]
    _, out = launched(names, "fibers")
    for name, row in zip(names, out):
        checked(name, row)


def test_no_combination_is_refused():
    """Compile all combinations.

    They include all names that ptxas 13.0 accepts for sm_90, except .f16.bf16 and .bf16.f16 without a
    rounding mode, which the PTX ISA requires.
    """
    exact = [name_of(mode, to, "bf16") for mode in MODES for to in ("f32", "f64")]
    for name in (*COMBINATIONS, *packed(), *exact):
        find_operation(name)


@pytest.mark.parametrize(
    "name",
    """cvt.rn.f64.f64.f32 cvt.rn.e4m3x2.f32 cvt.rz.satfinite.e4m3x2.f32 cvt.rn.satfinite.e2m1x2.f32
    cvt.rz.ue8m0x2.f32 cvt.f16.bf16 cvt.rs.f16x2.f32""".split(),
)
def test_other_combinations_are_refused(name):
    with pytest.raises((Missing, KeyError, ValueError, LaunchError)):
        find_operation(name)


def number(name, *values):
    """Return the expected result of one thread's packed conversion, computed independently of sim."""
    return eval(
        find_operation(name).of([f"x{i}" for i in range(len(values))]),
        HELPERS,
        {f"x{i}": value for i, value in enumerate(values)},
    )


@pytest.mark.parametrize("pair", BYTES)
def test_bytes_are_rounded_to_the_nearest_and_saturated(pair):
    scalar = BYTES[pair]
    most = float(finfo(scalar).max)
    for x in (
        0.0,
        -0.0,
        1.0,
        1.0625,
        1.1875,
        -3.3,
        1e-3,
        -1e-5,
        most,
        most * 1.01,
        1e9,
        -1e9,
        np.inf,
        -np.inf,
    ):
        both = number(f"cvt.rn.satfinite.{pair}.f32", np.float32(x), np.float32(2))
        upper, lower = (np.uint8(byte).view(scalar) for byte in (both >> 8, both & 255))
        assert float(lower) == 2 and float(upper) == float(scalar(np.clip(x, -most, most)))
        halves = number(f"cvt.rn.relu.f16x2.{pair}", both)
        upper16 = float(np.uint16(halves >> 16).view(np.float16))
        assert upper16 == max(float(upper), 0.0)
        half = np.float16(np.clip(x, -6e4, 6e4))
        word = int(half.view(np.uint16)) << 16 | 0x4000
        assert number(f"cvt.rn.satfinite.{pair}.f16x2", word) & 255 == both & 255
    both = number(f"cvt.rn.satfinite.relu.{pair}.f32", np.float32(np.nan), np.float32(-2))
    assert np.isnan(float(np.uint8(both >> 8).view(scalar))) and both & 255 == 0


@pytest.mark.parametrize(
    ("name", "x", "want"),
    [
        ("cvt.rn.tf32.f32", 1 + 2**-11, 1.0),
        ("cvt.rna.tf32.f32", 1 + 2**-11, 1 + 2**-10),
        ("cvt.rz.tf32.f32", -1 - 2**-10 - 2**-11, -1 - 2**-10),
        ("cvt.rn.relu.tf32.f32", -3.0, 0.0),
        ("cvt.rna.tf32.f32", 3.4028235e38, np.inf),
        ("cvt.rna.satfinite.tf32.f32", 3.4028235e38, 3.4011621e38),
        ("cvt.rn.satfinite.tf32.f32", -np.inf, -3.4011621e38),
        ("cvt.rn.satfinite.relu.tf32.f32", -np.inf, 0.0),
    ],
)
def test_tf32(name, x, want):
    bits = number(name, int(np.float32(x).view(np.uint32)))
    assert np.uint32(bits).view(np.float32) == np.float32(want)


def test_two_halves_saturate():
    word = number("cvt.rn.satfinite.f16x2.f32", np.float32(1e9), np.float32(-np.inf))
    assert [float(np.uint16(part).view(np.float16)) for part in (word >> 16, word & 0xFFFF)] == [
        65504,
        -65504,
    ]
    word = number("cvt.rz.satfinite.relu.bf16x2.f32", np.float32(np.inf), np.float32(-2))
    assert word == 0x7F7F << 16


@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.nightly) for n in range(1, 6))])
def test_compiled_conversions_agree(part):
    pytest.importorskip("numba")
    directed = {"rz", "rm", "rp"}  # interpreted
    names = [n for n in COMBINATIONS if "bf16" not in n and not directed & set(n.split("."))][part::6]
    (_, one), (report, other) = (launched(names, engine) for engine in ("fibers", "native"))
    one, other = (operations.results(out, names) for out in (one, other))
    different = [name for name in names if not np.array_equal(one[name], other[name])]
    assert report.notes[0] == "compiled" and different == []
