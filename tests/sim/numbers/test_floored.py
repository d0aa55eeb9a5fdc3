"""Tests of % and // on floats against results of an H200, for special and random pairs, on each engine.

A line of floored.txt has the type, then x, y, x % y and x // y as bits. A NaN matches any NaN.
"""

import operator
from pathlib import Path

import numpy as np
import pytest
from numba import cuda
from numpy import float32, float64

from sim import simulate
from sim.isa import floored
from sim.isa.table import INSTRUCTIONS

WORDS = {"float32": np.uint32, "float64": np.uint64}
ENGINES = ("fibers", "native")


def given(name):
    """Return the columns x, y, x % y and x // y of floored.txt for one type."""
    rows = Path(__file__).with_name("floored.txt").read_text(encoding="utf-8").splitlines()
    bits = [[int(word, 16) for word in row.split()[1:]] for row in rows if row.startswith(name)]
    return np.array(bits, WORDS[name]).view(name).T


def equal(got, wanted):
    word = WORDS[wanted.dtype.name]
    return (got.view(word) == wanted.view(word)) | (np.isnan(got) & np.isnan(wanted))


@cuda.jit
def both(mod, div, x, y):
    i = cuda.grid(1)
    if i < x.size:
        mod[0, i], div[0, i] = x[i] % y[i], x[i] // y[i]
        div[1, i], mod[1, i] = divmod(x[i], y[i])
        rest, whole = x[i], x[i]
        rest %= y[i]
        whole //= y[i]
        mod[2, i], div[2, i] = operator.mod(x[i], y[i]), operator.floordiv(x[i], y[i])
        mod[3, i], div[3, i] = rest, whole


def by(engine, x, y, dtype):
    mod, div = np.zeros((2, 4, len(x)), dtype)
    simulate(both, engine=engine)[-(-len(x) // 64), 64](mod, div, x, y)
    return mod, div


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", WORDS)
def test_what_a_gpu_gave(name, engine):
    x, y, *wanted = (column.copy() for column in given(name))
    assert len(x) > 200
    for got, right in zip(by(engine, x, y, name), wanted):
        for row in got:
            wrong = np.flatnonzero(~equal(row, right))
            assert wrong.size == 0, (x[wrong], y[wrong], row[wrong], right[wrong])


def test_other_types_are_promoted():
    """Apply the operators to mixed types: a half becomes float32, and a float32 with an int16 stays
    float32."""
    rng = np.random.default_rng(3)
    x = rng.uniform(-1e4, 1e4, 200)
    x[:20] = 0.3 * np.arange(20)
    for left, right, result in (
        ("float32", "float64", "float64"),
        ("uint64", "float32", "float64"),
        ("float32", "int16", "float32"),
        ("float16", "float16", "float32"),
    ):
        a = np.abs(x).astype(left) if left[0] == "u" else x.astype(left)
        b = (rng.integers(1, 100, 200) * (1 if right[0] == "i" else 0.1)).astype(right)
        found = [by(engine, a, b, "float64") for engine in ENGINES]
        assert np.array_equal(*found)
        for got, meaning in zip(found[0], (floored.remainder, floored.quotient)):
            scalar = np.dtype(result).type
            assert got.tolist() == [[float(meaning(scalar(p), scalar(q))) for p, q in zip(a, b)]] * 4


@cuda.jit
def by_literals(out, x):
    i = cuda.grid(1)
    out[0, i], out[1, i], out[2, i] = x[i] % 1.0, x[i] % 2, x[i] // 0.1
    out[3, i], out[4, i], out[5, i] = 7.3 % x[i], 7 // x[i], x[i] % -3
    out[6, i], out[7, i] = x[i] % 0, x[i] // 0.0


@pytest.mark.parametrize("dtype", [float32, float64])
def test_a_literal(dtype):
    x = (np.arange(64) * 0.3 - 5).astype(dtype)
    found = np.zeros((2, 8, 64))
    for out, engine in zip(found, ENGINES):
        simulate(by_literals, engine=engine)[1, 64](out, x)
    assert np.array_equal(*found, equal_nan=True)
    assert np.isnan(found[0, 6]).all() and np.isinf(found[0, 7]).all()
    assert found[0, 2].tolist() == [floored.quotient(float64(p), float64(0.1)) for p in x]


@pytest.mark.parametrize("scalar", [float32, float64])
def test_the_quick_way_gives_what_the_meaning_gives(scalar):
    rng = np.random.default_rng(1)
    y = rng.normal(size=2000)
    pairs = [*zip(y * rng.integers(-1000, 1000, 2000), y), *zip(rng.normal(size=500) * 1e5, y)]
    pairs += [(2.0**p * 3, q) for p in range(-5, 70) for q in (0.3, 1.0, -3.0, 7.0)]
    with np.errstate(all="ignore"):
        for a, b in pairs:
            a, b = scalar(a), scalar(b)
            for name, meaning in (("mod", floored.remainder), ("floordiv", floored.quotient)):
                got, wanted = INSTRUCTIONS[f"operator.{name}"].call(a, b), scalar(meaning(a, b))
                assert type(got) is scalar and equal(np.array(got), np.array(wanted)), (name, a, b)
