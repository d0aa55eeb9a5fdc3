"""Tests of convolutional attention over ranks against a single process.

The ranks are processes that communicate with gloo and simulate the kernels.
"""

import pytest
import torch
from torch import nn

from course.ranks import RankFailed, run_ranks
from kernels import ConvAttention
from kernels.cases.conv import Shape, inputs
from kernels.common.launch import RUNNERS
from kernels.conv import tensor_backward
from kernels.conv.backward import conv_backward
from kernels.conv.decode import conv_attention_decode
from kernels.conv.forward import conv_forward
from kernels.distributed import Plan
from kernels.reference import conv_attention

nightly = pytest.mark.nightly
SHAPES = [
    Shape(1, 2, 9, 4, 3, 4, True),
    Shape(1, 2, 3, 4, 6, 11, True),
    Shape(2, 1, 40, 5, 15, 15, True),
    Shape(1, 2, 40, 5, 6, 11, False),
    Shape(1, 1, 70, 16, 7, 7, True),
]
DECODED = Shape(1, 2, 40, 5, 6, 11, True)
ONE_HEAD = Shape(1, 1, 9, 4, 3, 4, True)


def native(*launch):
    """Return a runner for the native engine; any finding fails the rank."""
    from kernels.common.launch import simulated

    report = simulated(*launch, engine="native")
    assert not report.findings, report.findings


@pytest.fixture(scope="module")
def compiled():
    """Compile the kernels once in this process, so that the ranks find them in the disk cache.

    Otherwise each rank would compile for about a minute, at the same time as the others.
    """
    q, k, v, w, d_o = inputs(SHAPES[0])
    conv_backward(q, k, v, w, *conv_forward(q, k, v, w, run=native), d_o, run=native)
    q, k, v, w, _ = inputs(DECODED)
    conv_attention_decode(q[:, :, -DECODED.c_q :], k, v, w, run=native)


def errors_of_all(shapes, lengths_of, dtype=torch.float32):
    """Return [(shape, layout, lengths, {result: relative error})] on every rank, for inputs of this dtype.

    Also check that dW is equal on all ranks, bit for bit. The blocks of tensor-core kernels have one warp,
    because simulated launches take time in proportion to their threads.
    """
    tensor_backward.WARPS = 1
    from torch import distributed

    from kernels.cases.conv import reference
    from kernels.distributed import conv_attention_sharded, unshard

    rank, ranks, found = distributed.get_rank(), distributed.get_world_size(), []
    for shape in shapes:
        q, k, v, w, d_o = (x.to(dtype) for x in inputs(shape))
        wanted = reference(q, k, v, w, d_o, shape.causal)
        for layout, lengths in lengths_of(shape.n, ranks):
            plan = Plan(lengths, 1 if layout == "contiguous" else 2)
            mine = [
                torch.cat([x[:, :, start : start + length] for start, length in plan.chunks[rank]], 2)
                for x in (q, k, v, d_o)
            ]
            leaves = [x.requires_grad_() for x in (*mine[:3], w.clone())]
            o = conv_attention_sharded(*leaves, causal=shape.causal, layout=layout, run=native)
            *gradients, d_w = torch.autograd.grad(o, leaves, mine[3])
            got = [*(unshard(x, layout=layout) for x in (o, *gradients)), d_w]
            all_d_w = [torch.empty_like(d_w) for _ in range(ranks)]
            distributed.all_gather(all_d_w, d_w)
            assert all(torch.equal(d_w, other) for other in all_d_w)
            assert all(x.dtype == dtype for x in got)
            names = ("O", "dQ", "dK", "dV", "dW")
            found.append(
                (
                    shape,
                    layout,
                    lengths,
                    {
                        name: ((g - x).abs().max() / x.abs().max().clamp_min(0.1)).item()
                        for name, g, x in zip(names, got, (wanted[0], *wanted[2:]))
                    },
                )
            )
    return found


def equal_and_odd(n, ranks):
    """Return layouts and shard sizes.

    The shards are of almost equal size, or one rank has no tokens, or one rank has almost all tokens, or the
    shards are shorter than a halo.
    """
    equal = [n // ranks + (rank < n % ranks) for rank in range(ranks)]
    first = [
        n - min(n - 1, ranks - 1),
        *[1 if rank < min(n - 1, ranks - 1) else 0 for rank in range(ranks - 1)],
    ]
    yield from [("contiguous", equal), ("zigzag", equal)]
    if first != equal:
        yield from [("contiguous", first), ("zigzag", first[::-1])]


def middle_empty(n, ranks):
    """Return one layout in which all ranks except the first and the last have no tokens."""
    return [("contiguous", [n - n // 2, *[0] * (ranks - 2), n // 2])]


def decoded(shape, lengths_of_each):
    """Return the decoded token for each division of the keys among ranks."""
    from torch import distributed

    from kernels.distributed import conv_attention_decode_sharded

    q, k, v, w, _ = inputs(shape)
    given = []
    for lengths in lengths_of_each:
        ((start, length),) = Plan(lengths, 1).chunks[distributed.get_rank()]
        mine = (x[:, :, start : start + length] for x in (k, v))
        given.append(conv_attention_decode_sharded(q[:, :, -shape.c_q :], *mine, w, run=native))
    return given


# Ranks that disagree or fail --------------------------------------------------------------------------------


def disagreeing(what):
    """Call with invalid arguments of the kind `what` on rank 1, and with valid arguments on the other
    ranks."""
    import os

    from torch import distributed

    from kernels.distributed import conv_attention_sharded

    q, k, v, w, _ = inputs(Shape(1, 2, 6, 4, 3, 3, True))
    layout = "contiguous"
    if distributed.get_rank() == 1:
        if what == "heads":
            q, k, v, w = q[:, :1], k[:, :1], v[:, :1], w[:1]
        if what == "dtype":
            k = k.double()
        if what == "layout":
            layout = "zigzag"
        if what == "taps":
            w = w[:, :2]
        if what == "dies":
            os._exit(3)
    return conv_attention_sharded(q, k, v, w, layout=layout, run=native)


SAID = {
    "heads": [
        "rank 0 has H = 2 and rank 1 has H = 1; wanted the same",
        "rank 1 has H = 1 and rank 0 has H = 2",
    ],
    "taps": ["rank 0 has c_q = 3 and rank 1 has c_q = 2"],
    "layout": ["rank 0 has chunks per rank (layout) = 1 and rank 1 has chunks per rank (layout) = 2"],
    "dtype": ["rank 1 has refused its arguments", "argument k has dtype torch.float64; wanted torch.float32"],
    "dies": [
        "rank 1: ended with exit code 3",
        "no exchange with all ranks: a rank has ended, or did not call within the group's timeout",
    ],
}


def refused(kinds):
    """Return the error message for each kind of disagreement. The group must remain usable."""
    said = []
    for what in kinds:
        with pytest.raises((ValueError, TypeError)) as error:
            disagreeing(what)
        said.append(str(error.value))
    return said


KINDS = [what for what in SAID if what != "dies"]


# Findings on ranks ------------------------------------------------------------------------------------------


def in_turn(shapes, lengths_of_each, kinds):
    whole, token, said = (
        errors_of_all(shapes, equal_and_odd),
        decoded(DECODED, lengths_of_each),
        refused(kinds),
    )
    return whole, token, said, errors_of_all([ONE_HEAD], middle_empty, torch.bfloat16)


@pytest.fixture(scope="module")
def three(compiled):
    """Run `in_turn` on three ranks, once for all tests, because each rank is a process that has to import
    PyTorch."""
    lengths = [13, 14, 13], [1, 0, 39], [38, 1, 1]
    return list(zip(*run_ranks(in_turn, 3, SHAPES[:2], lengths, KINDS, timeout=600)))


def check_errors(found, of_o=1e-5, of_gradients=1e-4):
    for shape, layout, lengths, errors in found:
        limits = {name: of_o if name == "O" else of_gradients for name in errors}
        right = all(error <= limits[name] for name, error in errors.items())
        assert right, (shape, layout, lengths, errors)


def check_token(given):
    q, k, v, w, _ = inputs(DECODED)
    wanted = conv_attention(q, k, v, w)[:, :, -1:]
    assert given and all((o - wanted).abs().max() <= 1e-5 for o in given)


def test_equal_to_one_process(three):
    found, *_ = three[0]
    assert len(found) == 4 + 2  # In the second shape, all shards have one token.
    check_errors(found)


def test_16_bits_on_tensor_cores(three):
    """Use one layout with three pairs of chunks, because each interpreted launch takes about a second."""
    found = three[3][0]
    assert len(found) == 1
    check_errors(found, of_o=2**-8, of_gradients=2**-7)


@nightly
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_in_every_layout(ranks, dtype):
    found = run_ranks(errors_of_all, ranks, [ONE_HEAD], equal_and_odd, dtype, timeout=600)[0]
    check_errors(found, of_o=2**-8, of_gradients=2**-7)


@nightly
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_every_shape_over_every_number_of_ranks(ranks, compiled):
    check_errors(run_ranks(errors_of_all, ranks, SHAPES, equal_and_odd, timeout=600)[0])


def test_decoding(three):
    for given in three[1]:
        check_token(given)


@nightly
def test_decoding_on_one_rank(compiled):
    check_token(*run_ranks(decoded, 1, DECODED, [[40]], timeout=600))


def test_all_ranks_are_told_that_they_disagree(three):
    for what, *each in zip(KINDS, *three[2], strict=True):
        assert all(each) and all(any(words in said for said in each) for words in SAID[what]), each


@pytest.mark.parametrize("what", [pytest.param("heads", marks=nightly), "dies"])
def test_all_ranks_end_with_an_error(what):
    with pytest.raises(RankFailed) as failed:
        run_ranks(disagreeing, 3, what, timeout=600)
    assert all(words in str(failed.value) for words in SAID[what]), str(failed.value)
    assert str(failed.value).count("rank 0: ") and str(failed.value).count("rank 2: ")


# Data-parallel training -------------------------------------------------------------------------------------


def model():
    torch.manual_seed(0)
    return nn.Sequential(ConvAttention(8, 2, (3, 4)), nn.Linear(8, 3))


def batches():
    return torch.randn(4, 6, 8, generator=torch.Generator().manual_seed(1))


def one_step(kind):
    """Return the gradients of one training step in which each of two ranks has half of the batch."""
    from torch import distributed
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    from kernels.common import launch

    launch.RUNNERS["cpu"] = native
    layer = model()
    if kind == "DDP":
        layer = DistributedDataParallel(layer)
    else:
        mesh = torch.distributed.init_device_mesh("cpu", (distributed.get_world_size(),))
        for part in layer:
            fully_shard(part, mesh=mesh)
        fully_shard(layer, mesh=mesh)
    rank = distributed.get_rank()
    layer(batches()[2 * rank : 2 * rank + 2]).square().mean().backward()
    gradients = [parameter.grad for parameter in layer.parameters()]
    return [
        gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient for gradient in gradients
    ]


@nightly
@pytest.mark.parametrize("kind", ["DDP", "FSDP2"])
def test_data_parallel_training(kind, compiled, monkeypatch):
    monkeypatch.setitem(RUNNERS, "cpu", native)
    whole = model()
    whole(batches()).square().mean().backward()
    for gradients in run_ranks(one_step, 2, kind, timeout=600):
        for parameter, gradient in zip(whole.parameters(), gradients, strict=True):
            assert (parameter.grad - gradient).abs().max() <= 1e-5 * parameter.grad.abs().max().clamp_min(0.1)
