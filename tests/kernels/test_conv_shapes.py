"""The convolutional kernels on every shape, and on random ones, against the float64 reference: compiled and
checked by the simulator, and on a GPU."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.conv_cases import SHAPES, Shape, errors_of, right
from kernels.launch import simulated

gpu = pytest.mark.gpu
SIZES = st.builds(
    Shape,
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 300),
    st.integers(1, 128),
    st.integers(1, 15),
    st.integers(1, 15),
    st.booleans(),
)


SAMPLE = SHAPES[::5]  # has every length and all taps
ON_A_CPU = [shape if shape in SAMPLE else pytest.param(shape, marks=pytest.mark.nightly) for shape in SHAPES]


def native(*launch):
    """A runner; any finding, a warning too, fails, and so does a kernel that goes the slow way."""
    report = simulated(*launch, engine="native")
    assert not report.findings, report.findings
    assert report.notes == ("by fission",)


def is_right(shape, **options):
    errors = errors_of(shape, **options)
    assert right(errors), errors


@pytest.mark.parametrize("shape", ON_A_CPU, ids=str)
def test_compiled(shape):
    is_right(shape, run=native)


@settings(max_examples=20)
@given(shape=SIZES)
def test_random_shapes_compiled(shape):
    is_right(shape, run=native)


@gpu
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_on_the_gpu(shape):
    is_right(shape, device="cuda")


@gpu
@settings(max_examples=60)
@given(shape=SIZES)
def test_random_shapes_on_the_gpu(shape):
    is_right(shape, device="cuda")
