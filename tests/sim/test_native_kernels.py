"""Tests of every kernel in `kernels` on the native engine: compiled, without false alarms, and correct."""

import pytest

torch = pytest.importorskip("torch")

from kernels.cases.conv import Shape, inputs, reference, relative_errors, results  # noqa: E402
from kernels.cases.tolerances import BACKWARD  # noqa: E402
from kernels.common.launch import simulated  # noqa: E402
from kernels.conv.decode import conv_attention_decode  # noqa: E402
from kernels.flash.forward import flash_forward  # noqa: E402
from kernels.flash.warp import warp_forward  # noqa: E402
from kernels.reference import attention, conv_attention  # noqa: E402


@pytest.fixture
def run():
    """Return a runner on the native engine that collects the notes of its reports."""

    def native(kernel, grid, block, *arguments):
        native.notes.append(simulated(kernel, grid, block, *arguments, engine="native").notes)

    native.notes = []
    return native


def difference(got, wanted):
    return (got - wanted).abs().max().item()


@pytest.mark.parametrize("forward", [flash_forward, warp_forward])
def test_attention(forward, run):
    q, k, v = torch.randn(3, 2, 2, 70, 13, generator=torch.Generator().manual_seed(0))
    for causal in (True, False):
        o, _ = forward(q, k, v, causal=causal, run=run)
        assert difference(o, attention(q.double(), k.double(), v.double(), causal)) <= 1e-5
    assert run.notes == [("compiled",)] * 2


def test_convolutional_attention(run, few):
    shapes = few([Shape(1, 2, 65, 13, 3, 4, True), Shape(2, 1, 7, 5, 6, 11, False)], 1)
    for shape in shapes:
        tensors = inputs(shape)
        errors = relative_errors(results(*tensors, shape.causal, run=run), reference(*tensors, shape.causal))
        assert all(error <= BACKWARD for error in errors.values()), errors
    assert run.notes == [("compiled",)] * 3 * len(shapes)


def test_decoding(run):
    q, k, v = torch.randn(3, 1, 2, 70, 5, generator=torch.Generator().manual_seed(0))
    w = torch.randn(2, 6, 11, generator=torch.Generator().manual_seed(1))
    wanted = conv_attention(q.double(), k.double(), v.double(), w.double())[:, :, -1:]
    got = conv_attention_decode(q[:, :, -6:], k, v, w, splits=2, run=run)
    assert difference(got.reshape(wanted.shape), wanted) <= 1e-5
    assert set(run.notes) == {("compiled",)}
