"""Tests of the convolution kernels against the float64 reference on all shapes and on random ones.

The simulator compiles and checks the kernels; with a GPU, they also run there.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cases.conv import SHAPES, Shape, errors_of, inputs
from kernels.cases.tolerances import within_tolerance
from kernels.common.launch import width_for
from kernels.conv.forward import conv_forward
from runners import native

gpu, nightly = pytest.mark.gpu, pytest.mark.nightly


def sizes(d):
    """Generate shapes of any size, with d drawn from the given strategy."""
    heads, taps = st.integers(1, 3), st.integers(1, 15)
    return st.builds(Shape, heads, heads, st.integers(1, 300), d, taps, taps, st.booleans())


# Compilation takes most of the time, and there is a kernel for each width.
# Each CI run compiles only the narrowest.
WIDTH = 16
FEW_SIZES, SIZES = sizes(st.integers(1, WIDTH)), sizes(st.integers(1, 128))
SAMPLE = [
    shape if shape.d <= WIDTH else shape._replace(d=13) for shape in SHAPES[::5]
]  # These shapes together cover every length and every number of taps.
ON_A_CPU = [*SAMPLE, *(pytest.param(shape, marks=nightly) for shape in SHAPES if shape not in SAMPLE)]


def is_right(shape, **options):
    errors = errors_of(shape, **options)
    assert within_tolerance(errors), errors


@pytest.mark.parametrize("shape", ON_A_CPU, ids=str)
def test_compiled(shape):
    is_right(shape, run=native)


@settings(max_examples=5)
@given(shape=FEW_SIZES)
def test_random_shapes_compiled(shape):
    is_right(shape, run=native)


@nightly
@settings(max_examples=20)
@given(shape=SIZES)
def test_random_shapes_of_every_width_compiled(shape):
    is_right(shape, run=native)


@pytest.mark.parametrize("causal", [True, False])
def test_keys_divided_among_blocks(causal):
    """Compare with the result without splits, for fewer and for more splits than tiles of keys.

    Some splits contain no visible key for some rows. A NaN must affect only its own rows.
    """
    q, k, v, w, _ = inputs(Shape(1, 2, 150, 13, 3, 4, causal))
    q[0, 1, 70] = math.nan
    whole = conv_forward(q, k, v, w, causal, run=native)
    assert whole[0].isnan().any() and not whole[0][0, 0].isnan().any()
    for splits in (2, 5):
        for a, b in zip(conv_forward(q, k, v, w, causal, run=native, splits=splits), whole):
            assert torch.allclose(a, b, rtol=1e-6, atol=1e-6, equal_nan=True)


def test_the_sample_has_every_length_and_all_taps():
    for sides in ("n", "c_q", "c_k", "causal"):
        assert {getattr(shape, sides) for shape in SAMPLE} == {getattr(shape, sides) for shape in SHAPES}
    assert {width_for(shape.d) for shape in SAMPLE} == {WIDTH}


@gpu
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_on_the_gpu(shape):
    is_right(shape, device="cuda")


@gpu
@settings(max_examples=60)
@given(shape=SIZES)
def test_random_shapes_on_the_gpu(shape):
    is_right(shape, device="cuda")
