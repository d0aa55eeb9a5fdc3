"""Tests of wgmma in PTX: its values for every type, layout and operand, compared with numpy."""

import numpy as np
import pytest

from ptx.wgmma_kernels import Case
from sim import load_ptx, simulate
from sim.isa.wgmma import TYPES

LAYOUTS = [(swizzle, major) for swizzle in (0, 32, 64, 128) for major in (False, True)]


def result(case):
    """Return the registers after the product, and check that there are no findings."""
    out = case.y.copy()
    simulate(load_ptx(case.text)["k"])[1, 128](case.x, out)
    return out


@pytest.mark.parametrize("types", TYPES, ids=".".join)
def test_whole_numbers_are_exact_for_every_type(types):
    case = Case(types, 16)
    assert np.array_equal(result(case), case.expected)


@pytest.mark.parametrize("types", TYPES[::3] + TYPES[-1:], ids=".".join)
def test_a_can_be_in_registers(types):
    case = Case(types, 16, in_registers=True)
    assert np.array_equal(result(case), case.expected)


@pytest.mark.parametrize(("swizzle", "major"), LAYOUTS)
def test_every_layout_of_a_and_b(swizzle, major):
    # The matrix B is wider than a pattern of 128 bytes, and the patterns are not adjacent.
    case = Case(("f32", "bf16", "bf16"), 128, (swizzle, swizzle), (major, major), pad=1024)
    assert np.array_equal(result(case), case.expected)


@pytest.mark.parametrize("n", [8, 24, 256])
def test_numbers_of_columns(n):
    case = Case(("f32", "f16", "f16"), n, (64, 32))
    assert np.array_equal(result(case), case.expected)


@pytest.mark.parametrize("signs", [(-1, 1), (1, -1), (-1, -1)])
def test_negation_and_a_result_that_replaces_the_accumulators(signs):
    case = Case(("f32", "f16", "f16"), 8, signs=signs, scale=0)
    assert np.array_equal(result(case), case.expected)
