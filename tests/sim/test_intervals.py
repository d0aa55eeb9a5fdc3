"""Tests of the integer intervals that the front end infers.

The intervals must contain every result, and an index that may be out of bounds must still be checked.
"""

import ast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import cuda, float32

from sim import simulate
from sim.frontend.intervals import BITWISE, operation, range_interval
from sim.frontend.tree import BINARY
from sim.frontend.types import Number
from sim.isa.table import INSTRUCTIONS
from sim.memory.array import FAST

OPERATORS = {
    op: INSTRUCTIONS[f"operator.{BINARY[op]}"].call
    for op in (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.LShift, ast.RShift, *BITWISE)
}


@st.composite
def numbers(draw, least=-40, most=70):
    """Return (Number, one of its values)."""
    low, value, high = sorted(draw(st.tuples(*[st.integers(least, most)] * 3)))
    return Number(int, low, high), value


@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.__name__)
@settings(max_examples=300, deadline=None)
@given(numbers(), numbers())
def test_a_result_is_within_its_interval(op, left, right):
    (a, x), (b, y) = left, right
    kind = operation(op(), a, b)
    assert kind.low is None or kind.low <= OPERATORS[op](x, y) <= kind.high


@given(st.lists(numbers(-9, 9), min_size=1, max_size=3))
def test_a_range_is_within_its_interval(ends):
    if len(ends) == 3 and ends[2][1] == 0:
        return
    low, high = range_interval(*(number for number, _ in ends))
    assert all(low <= i <= high for i in range(*(value for _, value in ends)))


@cuda.jit
def up_to(out, n):
    s = cuda.shared.array(16, float32)
    for k in range(17):
        s[k] = 1.0
    out[0] = n


@cuda.jit
def down_to(out, n):
    s = cuda.shared.array(16, float32)
    for k in range(16, -1, -1):
        s[k] = 1.0
    out[0] = n


@cuda.jit
def by_thread(out, n):
    s = cuda.shared.array((16, 16), float32)
    s[cuda.threadIdx.y, cuda.threadIdx.x] = 1.0
    out[0] = n


@cuda.jit
def by_remainder(out, n):
    s = cuda.shared.array(16, float32)
    s[(cuda.threadIdx.x * 3 + 16) % 17] = 1.0
    out[0] = n


@cuda.jit
def by_argument(out, n):
    s = cuda.shared.array(16, float32)
    s[n] = 1.0
    out[0] = n


@cuda.jit
def by_meeting(out, n):
    s = cuda.shared.array(16, float32)
    i = 3
    if n > 2:
        i = 16
    s[i] = 1.0
    out[0] = n


@cuda.jit
def below(out, n):
    s = cuda.shared.array(16, float32)
    for k in range(16):
        s[k - 16] = 1.0
    out[0] = n


@pytest.mark.parametrize(
    "kernel, block, kind",
    [
        (up_to, 1, "out-of-bounds"),
        (down_to, 1, "out-of-bounds"),
        (by_thread, (17, 1), "out-of-bounds"),
        (by_thread, (16, 17), "out-of-bounds"),
        (by_thread, (16, 16), None),
        (by_remainder, 17, "out-of-bounds"),
        (by_argument, 1, "out-of-bounds"),
        (by_meeting, 1, "out-of-bounds"),
        (below, 1, "negative-index"),
    ],
)
def test_what_may_be_outside_is_asked_about(kernel, block, kind):
    """Launch the same kernel repeatedly with different block sizes."""
    report = simulate(kernel, on_finding="report")[1, block](np.zeros(1), 16)
    kinds = {finding.kind for finding in report.findings} - {"race-shared", "race-global"}
    assert kinds == ({kind} if kind else set())


def test_attributes_of_arrays_are_looked_up_quickly():
    """Measure attribute lookups of arrays. A `__getattr__` makes each lookup several times slower, and an
    access needs two or three lookups."""
    assert not any(hasattr(kind, "__getattr__") for kind in FAST.values())
