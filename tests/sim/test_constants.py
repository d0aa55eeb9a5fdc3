"""Tests of constants at the limits of the integer types: literals, which Python folds, and captured values.

The engines are compared with the values that Numba computes on the CPU. Operations that overflow are left out,
because their results in LLVM are undefined.
"""

import importlib.util

import numpy as np
import pytest
from numba import cuda, njit

from sim import ThreadError, simulate

ENGINES = "fibers", "native"
CAPTURED = """
import numpy as np

P63, N63, P64, WIDE = 2**63, -(2**63), 2**64 - 1, 2**64
U32, I32, I8 = np.uint32(2**31), np.int32(-(2**31)), np.int8(-128)
I64, U64, YES = np.int64(-(2**63)), np.uint64(2**63), True
"""
# separated by semicolons
EXPRESSIONS = {
    "signs of literals": """
        -2**63; -(2**63); -9223372036854775808; 9223372036854775808; 2**63 - 1; 2**64 - 1; --2**63; -(-2**63);
        ~-2**63; ~(2**63 - 1); +(-2**63); -2**64 // 2; (-2)**63; 0xFFFFFFFFFFFFFFFF; -2**63 % -1; 3 & -2**63;
        -2**63 | 1; 2**63 | 1; -2**31; -2**31 - 1; ~2**31; -2**32; ~0; ~True; -True; +True; not 5; not -2**63;
        1 << 62; 1 << 63; -1 << 63; -(1 << 63); (1 << 63) - 1; 1 << 64 >> 1; -1 >> 1; -2**63 >> 1""",
    "literals and a variable": """
        2**63 + v; -2**63 + v; -2**63 // v; v // -2**63; v % -2**63; v // 2**63; v % 2**63; -2**63 >> v;
        2**63 >> v; -2**63 << v; 2**63 << v; -1 << v; v & -2**63; v | -2**63; v | 2**63; v ^ 2**63;
        min(v, -2**63); max(-2**63, v); abs(-2**63); abs(2**63); int(-2**63); v > -2**63; v < 2**63;
        v == -2**63; 0 > -2**63; -2**63 < v < 2**63; divmod(v, -2**63)[0]; divmod(-2**63, -1)[0];
        v if v > 5 else -2**63; v if v < 5 else -2**63; v and -2**63; np.int64(-2**63); np.uint64(2**63);
        np.int64(2**63); np.uint64(-2**63); np.int32(2**31); np.int8(-129); -np.uint32(2**31);
        -np.int32(-2**31); float(-2**63) // 2**40""",
    "captured values": """
        P63; -P63; ~P63; N63; -N63; ~N63; P64; -P64; P64 + 1; P63 >> v; v // P63; v % P63; v & P63; N63 // -1;
        N63 % -1; min(N63, v); v < P63; v > N63; U32; -U32; ~U32; U32 * 2; U32 << 31; I32; -I32; ~I32; I32 - 1;
        I32 * I32; I8; -I8; ~I8; I64; -I64; U64; -U64; U64 - 1; YES; -YES; +YES; ~YES; not YES; YES + YES;
        YES << 1; YES << 63; YES >> 1; YES ^ True; YES & True; YES * 2**63; YES | 2**63; 1 << YES; YES - 2**62;
        YES if YES else 3; (P63, 2)[0]; float(P63) // 2**40""",
}


def module_of(text, folder):
    """Return a module with the captured values and this text."""
    path = folder / "constants.py"
    path.write_text(CAPTURED + text)
    specification = importlib.util.spec_from_file_location("constants", path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize("group", EXPRESSIONS)
def test_constants_have_numbas_types(group, tmp_path):
    """Store each expression, half of it as a float64, and its negation. They show the type of the
    expression."""
    expressions = [text.strip() for text in EXPRESSIONS[group].split(";")]
    body = "".join(
        f"    s{n} = {text}\n    whole[{n}] = s{n}\n    half[{n}], negative[{n}] = s{n} / 2, -s{n}\n"
        for n, text in enumerate(expressions)
    )
    made = module_of(f"def kernel(v, whole, half, negative):\n{body}", tmp_path).kernel
    results = []
    for run in (njit(made, error_model="numpy"), *(cuda.jit(made) for _ in ENGINES)):
        out = np.zeros(len(expressions), np.int64), *np.zeros((2, len(expressions)))
        engine = None if len(results) == 0 else ENGINES[len(results) - 1]
        run(np.int32(7), *out) if engine is None else simulate(run, engine=engine)[1, 1](np.int32(7), *out)
        results.append([(text, *map(str, row)) for text, *row in zip(expressions, *out)])
    wanted, interpreted, compiled = results
    assert [pair for pair in zip(interpreted, wanted) if pair[0] != pair[1]] == []
    assert [pair for pair in zip(compiled, wanted) if pair[0] != pair[1]] == []


RANGE = """
def kernel(v, out):
    n = 0
    for i in range({}):
        out[n] = i
        n += 1
        if n == 7:
            break
    out[7] = n
"""


def check_range(bounds, wanted, engine, folder):
    out, kernel = np.zeros(8, np.int64), module_of(RANGE.format(bounds), folder).kernel
    simulate(cuda.jit(kernel), engine=engine)[1, 1](np.int32(7), out)
    assert out.tolist() == [*wanted, *[0] * (7 - len(wanted)), len(wanted)]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "bounds, wanted",
    [
        ("v, -10, -2**63", [7]),
        ("v - 7, -2**63, -2**63", [0]),
        ("v - 8, -2**63, -2**62", [-1, -(2**62) - 1]),
        ("-2**63, -2**63 + 3", [-(2**63), 1 - 2**63, 2 - 2**63]),
        ("-2**63, -1, 2**62", [-(2**63), -(2**62)]),
        ("N63, N63 + 2", [-(2**63), 1 - 2**63]),
        ("2**63 - 3, 2**63 - 1", [2**63 - 3, 2**63 - 2]),
        ("np.uint64(2**63), np.uint64(2**63 + 2)", [-(2**63), 1 - 2**63]),
    ],
)
def test_ranges_at_the_limits(bounds, wanted, engine, tmp_path):
    check_range(bounds, wanted, engine, tmp_path)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "bounds, wanted",
    [
        ("-2**63, 0, 2**62 + 1", []),
        ("2**62, -2**62 - 1, -2**62", []),
        ("2**63 - 2, -2**63 + 2, 2", [2**63 - 2, -(2**63)]),
        ("np.uint64(2**64 - 2), np.uint64(1)", [-2, -1, 0]),
        ("np.uint64(2), np.uint64(0), 2**64 - 1", [2, 1]),
        ("0, np.uint64(2**63), 2**62", []),
        ("2**64 - 1", []),
    ],
)
def test_ranges_whose_length_overflows(bounds, wanted, engine, tmp_path):
    """Run loops whose `stop - start` is no int64. Numba wraps it around, so that most of them are empty."""
    check_range(bounds, wanted, engine, tmp_path)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "text", ["-2**63 - 1", "-2**64", "2**64", "~2**63", "1 - 2**64", "v + 2**64", "WIDE", "WIDE & v"]
)
def test_integers_of_more_than_64_bits_are_refused(text, engine, tmp_path):
    """Evaluate an integer that Numba refuses ("Int value is too large")."""
    kernel = cuda.jit(module_of(f"def kernel(v, out):\n    out[0] = {text}\n", tmp_path).kernel)
    with pytest.raises(ThreadError, match="does not fit into 64 bits"):
        simulate(kernel, engine=engine)[1, 1](np.int32(7), np.zeros(1, np.int64))


@cuda.jit
def bits_of_captured(out):
    out[0], out[1], out[2] = cuda.popc(I32), cuda.clz(I32), cuda.clz(ONE)


I32, ONE = np.int32(-(2**31)), np.int32(1)


@pytest.mark.parametrize("engine", ENGINES)
def test_captured_integers_keep_their_width(engine):
    out = np.zeros(3, np.int64)
    simulate(bits_of_captured, engine=engine)[1, 1](out)
    assert out.tolist() == [1, 0, 31]
