"""Tests of computations that are recorded as CUDA graphs: kernels.common.graphs."""

from collections import OrderedDict

import pytest
import torch

from kernels import latent_attention, multi_token_attention, reference
from kernels.common import graphs
from kernels.common.graphs import replayed


def combined(x, y):
    """Return results of two dtypes, one of which is a view."""
    return [(x.mT @ x)[1:], y * 2 + x.float().sum()]


def given(seed, device):
    generator = torch.Generator().manual_seed(seed)
    x, y = (torch.randn(3, 4, generator=generator).to(device) for _ in range(2))
    return x.bfloat16(), y


def test_on_the_cpu_nothing_is_recorded():
    before = dict(graphs.recordings)
    for seed in range(3):
        tensors = given(seed, "cpu")
        assert all(map(torch.equal, replayed("cpu", combined, tensors), combined(*tensors)))
    assert graphs.recordings == before


def test_the_least_recently_used_entry_is_released(monkeypatch):
    monkeypatch.setattr(graphs, "recordings", OrderedDict())
    for number in range(graphs.MOST_RECORDINGS):
        graphs.keep(number, graphs.ONCE)
    graphs.keep(0, graphs.NEVER)
    graphs.keep("new", graphs.ONCE)
    assert len(graphs.recordings) == graphs.MOST_RECORDINGS and 1 not in graphs.recordings
    assert graphs.recordings[0] == graphs.NEVER and "new" in graphs.recordings


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("first", [torch.bfloat16, torch.float16, torch.float32])
def test_copies_of_all_types_and_layouts_are_equal(first, device):
    every_low_half = (torch.arange(2**16, dtype=torch.int32) + 0x40000000).view(torch.float32)
    sources = [torch.randn(5).to(first), every_low_half, torch.tensor(2.0), torch.empty(0, 3)]
    sources += [torch.randn(3, 4, dtype=dtype).mT for dtype in (torch.float64, torch.bfloat16)]
    sources.append(torch.randn(graphs.LARGE, dtype=first))
    sources = [x.to(device) for x in sources]
    targets = [torch.empty_like(x) for x in sources]
    graphs.copy_all(targets, sources)
    for target, source in zip(targets, sources):
        assert target.stride() == source.stride() and target.dtype == source.dtype
        assert torch.equal(target, source)


@pytest.mark.gpu
def test_the_first_call_computes_and_later_ones_replay():
    results, calls = [], []

    def counted(*tensors):
        calls.append(tensors)
        return combined(*tensors)

    tensors = [given(seed, "cuda") for seed in range(5)]  # at different addresses
    for each in tensors:
        results.append(replayed("counted", counted, each))
    assert len(calls) == 3  # the first call, and before and during the recording
    for each, result in zip(tensors, results):  # no result is overwritten by a later call
        assert all(map(torch.equal, result, combined(*each)))


@pytest.mark.gpu
def test_tensors_at_the_same_addresses_are_read_there(monkeypatch):
    results, calls, copied = [], [], []

    def counted(*tensors):
        calls.append(tensors)
        return combined(*tensors)

    def copy(targets, sources, copy_all=graphs.copy_all):
        copied.extend(x.data_ptr() for x in sources)
        copy_all(targets, sources)

    monkeypatch.setattr(graphs, "copy_all", copy)
    fixed = given(0, "cuda")
    for seed in range(8):
        for x, y in zip(fixed, given(seed, "cuda")):
            x.copy_(y)
        results.append(replayed("in place", counted, fixed))
        copied_now = fixed[0].data_ptr() in copied
        copied.clear()
        assert copied_now == (seed in (1, 2))
    assert len(calls) == 5  # two more for the second recording, at the fourth call
    other = given(9, "cuda")
    assert all(map(torch.equal, replayed("in place", counted, other), combined(*other)))
    assert len(calls) == 5
    for seed, result in enumerate(results):
        assert all(map(torch.equal, result, combined(*given(seed, "cuda"))))


@pytest.mark.gpu
def test_a_key_gets_few_recordings_for_addresses(monkeypatch):
    monkeypatch.setattr(graphs, "MOST_IN_PLACE", 2)
    tensors, calls = [given(seed, "cuda") for seed in range(4)], []

    def counted(*tensors):
        calls.append(tensors)
        return combined(*tensors)

    for each in tensors * 4:
        assert all(map(torch.equal, replayed("few", counted, each), combined(*each)))
    assert len(calls) == 3 + 2 * 2


@pytest.mark.gpu
def test_shapes_and_types_and_streams_have_graphs_of_their_own():
    def call():
        for dtype in (torch.float32, torch.bfloat16):
            for n in (3, 5):
                x = torch.full((n, 4), float(n), device="cuda", dtype=dtype)
                for _ in range(3):
                    (y,) = replayed("sum", lambda x: [x.sum(0)], [x])
                assert y.dtype == dtype and y.tolist() == [float(n * n)] * 4

    call()
    with torch.cuda.stream(torch.cuda.Stream()):
        call()


@pytest.mark.gpu
def test_inference_mode_has_graphs_of_its_own():
    for mode in (torch.inference_mode, torch.no_grad):
        with mode():
            for number in range(3):
                (y,) = replayed("mode", lambda x: [x + 1], [torch.full((2,), float(number), device="cuda")])
                assert y.tolist() == [number + 1.0] * 2


@pytest.mark.gpu
def test_a_capture_of_the_caller_contains_the_launches():
    x = torch.ones(4, device="cuda")
    for _ in range(3):
        replayed("captured", lambda x: [x + 1], [x])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (y,) = replayed("captured", lambda x: [x + 1], [x])
    x.fill_(5)
    graph.replay()
    assert y.tolist() == [6.0] * 4


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layer", ["latent", "multi-token"])
def test_replayed_layers_have_the_errors_of_eager(layer, dtype):
    """Compare forward and backward passes that are recorded at their second call, with new inputs each
    time.

    Each error is summed over all calls, because a gradient of 16 entries has too few for a ratio.
    """
    squares = []
    for seed in range(4):
        torch.manual_seed(seed)
        if layer == "latent":
            shapes, options = [(2, 4, 70, 32), *[(2, 70, 48)] * 2, (4, 32, 48), (4, 48, 32)], (0.5, 9)
            functions = latent_attention, reference.latent_attention
        else:
            shapes, options = [*[(2, 4, 70, 32)] * 3, (4, 3, 5), (4, 4), (4, 2, 3), (4, 4)], ()
            functions = multi_token_attention, reference.multi_token_attention
        *leaves, d_o = (torch.randn(shape, device="cuda") / 2 for shape in (*shapes, shapes[0]))
        leaves, d_o = [x.to(dtype).requires_grad_() for x in leaves], d_o.to(dtype)
        wide = [x.detach().double().requires_grad_() for x in leaves]
        found = []
        for function, inputs in ((functions[0], leaves), (functions[1], leaves), (functions[1], wide)):
            o = function(*inputs, *options)
            found.append([o, *torch.autograd.grad(o, inputs, d_o.to(o.dtype))])
        squares.append(
            [
                [x.square().sum().item() for x in (ours - exact, theirs - exact, exact)]
                for ours, theirs, exact in zip(*found, strict=True)
            ]
        )
    for ours, theirs, size in torch.tensor(squares).sum(0).sqrt().tolist():
        assert ours <= 1.5 * theirs + 1e-5 * size
