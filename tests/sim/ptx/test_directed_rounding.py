"""Tests of directed rounding in PTX (rn, rz, ru, rd) of f32 and f64, on every engine.

The results are compared with exact rational numbers.
"""

import math
from fractions import Fraction

import numpy as np
import pytest

from sim import load_ptx, simulate

MODES = ("rn", "rz", "ru", "rd")
OPERATIONS = {"rcp": 1, "sqrt": 1, "add": 2, "sub": 2, "mul": 2, "div": 2, "fma": 3}
CASES = 256


def kernel_text(ptx_type):
    """Return PTX in which thread i stores the results for the operands x[0, i], x[1, i] and x[2, i]."""
    size, letter = (4, "f") if ptx_type == "f32" else (8, "d")
    body = []
    for row in range(3):
        body.append(f"ld.global.{ptx_type} %{letter}{row}, [%rd3+{row * CASES * size}];")
    for number, (name, mode) in enumerate((n, m) for n in OPERATIONS for m in MODES):
        operands = ", ".join(f"%{letter}{i}" for i in range(OPERATIONS[name]))
        body.append(f"{name}.{mode}.{ptx_type} %{letter}4, {operands};")
        body.append(f"st.global.{ptx_type} [%rd4+{number * CASES * size}], %{letter}4;")
    return f""".version 7.8
.target sm_80
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 out)
{{
    .reg .b64 %rd<5>;
    .reg .b32 %r<2>;
    .reg .{ptx_type} %{letter}<5>;
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [out];
    mov.u32 %r1, %tid.x;
    mul.wide.u32 %rd0, %r1, {size};
    add.s64 %rd3, %rd1, %rd0;
    add.s64 %rd4, %rd2, %rd0;
    {" ".join(body)}
    ret;
}}
"""


def operands_of(scalar):
    """Return three rows of operands: random bits, ordinary numbers, and the edges of the format."""
    rng, limits = np.random.default_rng(7), np.finfo(scalar)
    bits = np.uint32 if scalar is np.float32 else np.uint64
    x = rng.integers(0, np.iinfo(bits).max, (3, CASES), bits).view(scalar)
    x[:, ::2] = rng.standard_normal((3, CASES // 2))
    edges = [0.0, 1, 3, limits.max, limits.tiny, limits.smallest_subnormal, np.inf, 1 + limits.eps]
    special = np.array([*edges, *(-edge for edge in edges), np.nan], scalar)
    x[:, 100:200] = rng.choice(special, (3, 100))
    with np.errstate(all="ignore"):
        x[2, 200:] = -(x[0, 200:] * x[1, 200:])  # In this sum, most digits cancel.
    return x


def exact(name, a, b, c):
    """Return the result as a Fraction, or as a float if it is an infinity, NaN or a division by zero."""
    finite = all(map(math.isfinite, (a, b, c)[: OPERATIONS[name]]))
    dividend, divisor = (a, b) if name == "div" else (1.0, a)
    if name in ("rcp", "div") and (not finite or divisor == 0):
        return float(np.float64(dividend) / np.float64(divisor))
    if not finite and name == "fma":
        return c if math.isfinite(a) and math.isfinite(b) else a * b + c
    if not finite:
        return {"add": a + b, "sub": a - b, "mul": a * b, "sqrt": float(np.sqrt(a))}[name]
    x, y, z = (Fraction(v) if math.isfinite(v) else None for v in (a, b, c))
    if name in ("rcp", "div"):
        return 1 / x if name == "rcp" else x / y
    return {"add": lambda: x + y, "sub": lambda: x - y, "mul": lambda: x * y, "fma": lambda: x * y + z}[
        name
    ]()


def zero_of(name, mode, a, b, c):
    """Return the zero with its sign, for an exact result of 0 (IEEE 754, 6.3)."""
    sign = [math.copysign(1, v) for v in (a, b, c)]
    if name in ("mul", "div"):
        return math.copysign(0.0, sign[0] * sign[1])
    terms = {"add": sign[:2], "sub": [sign[0], -sign[1]], "fma": [sign[0] * sign[1], sign[2]]}[name]
    unlike = -1 if mode == "rd" else 1
    return math.copysign(0.0, terms[0] if terms[0] == terms[1] else unlike)


def rounded(value, scalar, mode):
    """Return a Fraction other than 0, rounded to the format."""
    limits, size = np.finfo(scalar), abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= Fraction(2) ** exponent > size
    unit = Fraction(2) ** (max(exponent, limits.minexp) - limits.nmant)
    whole, rest = divmod(size / unit, 1)
    away = "ru" if value > 0 else "rd"
    whole += (2 * rest, whole % 2) > (1, 0) if mode == "rn" else mode == away and rest > 0
    if whole * unit > Fraction(float(limits.max)):
        result = scalar(np.inf) if mode in ("rn", away) else limits.max
    else:
        result = scalar(float(whole * unit))
    return result if value > 0 else -result


def root(x, scalar, mode):
    """Return the square root of a positive float, computed as the integer root of x times a large even power
    of 2."""
    shift = 2 * (1200 + 64)
    scaled = Fraction(x) * 2**shift
    whole = math.isqrt(scaled.numerator // scaled.denominator)
    between = Fraction(0 if whole * whole == scaled else 1, 2)
    return rounded((whole + between) / Fraction(2) ** (shift // 2), scalar, mode)


def expected(name, mode, operands, scalar):
    a, b, c = map(float, operands)
    if name == "sqrt" and a > 0 and math.isfinite(a):
        return root(a, scalar, mode)
    if name == "sqrt" and a == 0:
        return scalar(a)
    if name == "sqrt":
        return scalar(a if a > 0 else np.nan)
    found = exact(name, a, b, c)
    if isinstance(found, float):
        return scalar(found)
    return rounded(found, scalar, mode) if found else scalar(zero_of(name, mode, a, b, c))


@pytest.mark.parametrize("engine", ["fibers", "native", "threads"])
@pytest.mark.parametrize("ptx_type, scalar", [("f32", np.float32), ("f64", np.float64)])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_each_direction_is_exact(ptx_type, scalar, engine):
    x = operands_of(scalar)
    pairs = [(name, mode) for name in OPERATIONS for mode in MODES]
    out = np.zeros((len(pairs), CASES), scalar)
    simulate(load_ptx(kernel_text(ptx_type))["k"], engine=engine)[1, CASES](x, out)
    bits = np.uint32 if scalar is np.float32 else np.uint64
    for (name, mode), row in zip(pairs, out):
        want = np.array([expected(name, mode, column, scalar) for column in x.T], scalar)
        alike = (row.view(bits) == want.view(bits)) | (np.isnan(row) & np.isnan(want))
        wrong = np.flatnonzero(~alike)
        assert not len(wrong), (name, mode, x[:, wrong[0]], row[wrong[0]], want[wrong[0]])
