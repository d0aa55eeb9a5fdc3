"""Tests of the multi-token kernels against the float64 reference on all shapes and on random ones.

The simulator compiles and checks the kernels; with a GPU, they also run there.
"""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.cases.multi_token import SHAPES, Shape, bfloat16_errors_of, errors_of
from kernels.cases.tolerances import within_tolerance
from kernels.common import launch
from runners import checked, native

gpu = pytest.mark.gpu
SIDE = st.integers(1, 15)
# There are few values of c_q, because decoding compiles a kernel for each.
TAPS = st.none() | st.tuples(st.sampled_from([1, 2, 6, 15]), SIDE)
# Causal shapes also call the decoding kernels, which a CI run compiles for one number of rows and of heads.
SAMPLE = [shape for shape in SHAPES if not shape.causal][::3] + [
    shape
    for shape in SHAPES
    if shape.causal and shape.taps == (6, 11) and shape.heads == shape.after_group == 2
]
ON_A_CPU = [shape if shape in SAMPLE else pytest.param(shape, marks=pytest.mark.nightly) for shape in SHAPES]


@st.composite
def shapes(draw, most=128, heads=(1, 2, 3, 4, 6), groups=None, taps=TAPS):
    """Generate shapes of any size, with d at most `most`."""
    heads = draw(st.sampled_from(heads))
    divisors = [group for group in range(1, heads + 1) if heads % group == 0]
    groups = st.sampled_from(groups) if groups else st.none() | st.sampled_from(divisors)
    parts = draw(taps), draw(groups), draw(taps), draw(groups)
    sizes = draw(st.integers(1, 2)), heads, draw(st.integers(1, 140)), draw(st.integers(1, most))
    return Shape(*sizes, *parts, draw(st.booleans()), draw(st.integers(1, 140)))


def is_right(shape, **options):
    errors = errors_of(shape, **options)
    assert within_tolerance(errors), errors


def test_the_grid_is_what_it_says():
    assert len(set(SHAPES)) >= 100
    assert {shape.taps for shape in SAMPLE} == {shape.taps for shape in SHAPES}
    assert {shape.causal for shape in SAMPLE} == {True, False}


@pytest.mark.parametrize("shape", ON_A_CPU, ids=str)
def test_compiled(shape):
    is_right(shape, run=native)


@settings(max_examples=5)
@given(shape=shapes(most=16, heads=[2], groups=[2], taps=st.tuples(st.just(6), SIDE)))
def test_random_shapes_compiled(shape):
    is_right(shape, run=native)


@pytest.mark.nightly
@settings(max_examples=20)
@given(shape=shapes())
def test_random_shapes_of_every_width_compiled(shape):
    is_right(shape, run=native)


@gpu
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_on_the_gpu(shape):
    is_right(shape, device="cuda")


@pytest.mark.parametrize(
    "shape, device",
    [
        pytest.param(Shape(1, 3, 37, 8, (3, 5), 3, (2, 4), 3, False, 30), "cpu", marks=pytest.mark.nightly),
        *(pytest.param(shape, "cuda", marks=gpu, id=str(shape)) for shape in SHAPES),
    ],
)
def test_bfloat16_bands(shape, device, monkeypatch):
    """Compare RMS errors with those of PyTorch eager in bfloat16, which rounds the same intermediate results.

    The constant allows for gradients whose terms cancel.
    """
    monkeypatch.setitem(launch.RUNNERS, "cpu", partial(checked, engine="fibers"))
    ours, theirs = bfloat16_errors_of(shape, device=device)
    assert all(error <= 1.5 * theirs[name] + 0.01 for name, error in ours.items()), (ours, theirs)


@gpu
@settings(max_examples=60)
@given(shape=shapes())
def test_random_shapes_on_the_gpu(shape):
    is_right(shape, device="cuda")
