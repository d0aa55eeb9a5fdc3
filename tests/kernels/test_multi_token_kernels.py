"""Tests of the public functions of the multi-token layer: gradients, documents, decoding, torch.compile,
memory, and invalid arguments.

Its kernels are also interpreted under many seeds.
"""

import math
import os
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from kernels import multi_token_attention, multi_token_attention_decode, reference
from kernels.cases.multi_token import Shape, inputs, results
from kernels.cases.multi_token import reference as in_float64
from kernels.cases.tolerances import within_tolerance
from kernels.common import launch
from kernels.multi_token import hopper_decode
from kernels.multi_token.decode import decode

gpu = pytest.mark.gpu
nightly = pytest.mark.nightly
DEVICE = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=gpu)])
# 16-bit types, and the maximum error of a result in units of their eps
ROUNDINGS = {torch.bfloat16: 4, torch.float16: 1}
# On the CPU, the bfloat16 kernels take long to compile, and test_16_bit_inputs_keep_their_type runs them.
AUTOCAST = pytest.mark.parametrize(
    "device, dtype",
    [
        ("cpu", torch.float16),
        pytest.param("cpu", torch.bfloat16, marks=nightly),
        pytest.param("cuda", torch.bfloat16, marks=gpu),
    ],
)
PARTS = ("taps", "head_map", "after_taps", "after_head_map", "norm", "gate")
TINY = [
    Shape(1, 2, 5, 3, (3, 3), 2, (2, 4), 2, True, 2),
    Shape(1, 1, 3, 2, None, None, (4, 2), 1, False, None),
]


@pytest.fixture(autouse=True)
def compiled(monkeypatch):
    """Compile the kernels on the CPU even for the smallest inputs, because most calls launch a dozen of
    them."""
    monkeypatch.setitem(launch.RUNNERS, "cpu", partial(launch.simulated, engine="native"))


def example(heads=2, n=5, d=4, taps=(3, 2), after_taps=(2, 3), batch=1, seed=0, device="cpu"):
    """Return {name: q, k, v or a parameter of the layer}, float32."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*size):
        return torch.randn(size, generator=generator).to(device)

    q, k, v = normal(3, batch, heads, n, d)
    parts = [
        normal(heads, *taps) / 3,
        normal(heads, heads),
        normal(heads, *after_taps) / 3,
        normal(heads // 2, 2, 2),
    ]
    gate = normal(d), normal(1)[0]
    return dict(q=q, k=k, v=v, **dict(zip(PARTS, (*parts, normal(d), gate))))


def leaves_of(given):
    return [leaf for part in given.values() for leaf in (part if isinstance(part, tuple) else [part])]


def double(given):
    return {
        name: tuple(x.double() for x in part) if isinstance(part, tuple) else part.double()
        for name, part in given.items()
    }


def worst(got, wanted):
    return ((got - wanted).abs().max() / wanted.abs().max().clamp_min(0.1)).item()


# In the simulator -------------------------------------------------------------------------------------------


def without_findings(*launched, **options):
    report = launch.simulated(*launched, **options)
    assert not report.findings, report.findings


@pytest.mark.parametrize(
    "shape, engine, seeds",
    [
        (TINY[1], "fibers", 20),
        pytest.param(TINY[1], "threads", 20, marks=nightly),
        pytest.param(TINY[0], "fibers", 3, marks=nightly),  # each takes half a minute
    ],
    ids=str,
)
def test_tiny_shapes_under_every_seed(shape, engine, seeds, few):
    """Run tiny shapes under many seeds (1 without --all), which change the order of threads and blocks.

    No run may report a finding, and all results must be equal.
    """
    tensors, answers = inputs(shape), []
    wanted = in_float64(*tensors)
    for seed in few(range(seeds), 1):
        run = partial(without_findings, engine=engine, seed=seed)
        answers.append(results(*tensors, rows=shape.rows, run=run))
        assert within_tolerance({name: worst(answers[-1][name], wanted[name]) for name in wanted})
    assert all(torch.equal(answer[name], answers[0][name]) for answer in answers for name in answer)


@pytest.mark.parametrize("n", [1, 2, 5, 9])
def test_one_token_for_every_number_of_splits(n):
    given = example(n=9, heads=4)
    wanted = reference.multi_token_attention(**double(given | {x: given[x][:, :, :n] for x in "qkv"}))[
        :, :, -1:
    ]
    parts = {name: given[name] for name in PARTS}
    k, v = given["k"][:, :, :n], given["v"][:, :, :n]
    for splits in (None, *range(1, n + 3)):
        got = multi_token_attention_decode(given["q"][:, :, max(0, n - 4) : n], k, v, **parts, splits=splits)
        assert worst(got, wanted) <= 1e-5


def test_one_token_with_fewer_heads_of_keys():
    given = example(n=9, heads=4)
    k, v = (given[name][:, :2] for name in "kv")
    parts = {name: given[name] for name in PARTS}
    got = multi_token_attention_decode(given["q"][:, :, -4:], k, v, **parts)
    full = given | dict(k=k.repeat_interleave(2, 1), v=v.repeat_interleave(2, 1))
    assert worst(got, reference.multi_token_attention(**double(full))[:, :, -1:]) <= 1e-5


def extremes():
    """Return inputs that are likely to cause NaN: (description, arguments of the layer)."""
    given = example()
    rows = {name: given[name][:, :, :1].expand_as(given[name]) for name in "qkv"}
    return [
        ("scores near 1e4", given | dict(q=100 * given["q"], k=100 * given["k"])),
        ("no tap", given | dict(taps=0 * given["taps"], after_taps=0 * given["after_taps"])),
        ("no head", given | dict(head_map=0 * given["head_map"])),
        ("equal rows", given | rows),
    ]


@pytest.mark.parametrize("what, given", extremes(), ids=[what for what, _ in extremes()])
def test_no_nan(what, given):
    leaves = [leaf.clone().requires_grad_() for leaf in leaves_of(given)]
    y = multi_token_attention(*leaves[:8], gate=leaves[8:])
    found = torch.autograd.grad(y.sum(), leaves)
    assert all(x.isfinite().all() for x in (y, *found))


# Gradients --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("documents", [None, [0, 2, 3]])
def test_gradients_reach_every_argument(documents):
    given = example()
    given["head_map"] = given["head_map"].clone()
    d_y = torch.randn(given["q"].shape)
    answers = []
    for attend, these in ((multi_token_attention, given), (reference.multi_token_attention, double(given))):
        leaves = [leaf.requires_grad_() for leaf in leaves_of(these)]
        y = attend(**these, documents=documents)
        answers.append((y, *torch.autograd.grad(y, leaves, d_y.to(y.dtype))))
    for number, (got, wanted) in enumerate(zip(*answers, strict=True)):
        assert got.shape == wanted.shape and worst(got, wanted) <= (1e-4 if number else 1e-5)


def test_frozen_parts_get_no_gradient(without_launches):
    given = example()
    given["after_taps"].requires_grad_()
    multi_token_attention(**given).sum().backward()
    assert given["after_taps"].grad is not None
    assert all(leaf.grad is None for leaf in leaves_of(given) if leaf is not given["after_taps"])


def test_twice_is_an_error(without_launches):
    given = example(n=3)
    q = given["q"].requires_grad_()
    (first,) = torch.autograd.grad(multi_token_attention(**given).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="multi_token_attention can be differentiated once"):
        first.sum().backward()


def test_one_operator_for_the_compiler():
    given = example(n=3)
    leaves = [leaf.requires_grad_() for leaf in leaves_of(given)]

    def attend(*x):
        return multi_token_attention(*x[:8], gate=x[8:]) * 2

    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    assert worst(compiled(*leaves), attend(*leaves)) <= 1e-6
    got, wanted = (torch.autograd.grad(f(*leaves).sum(), leaves) for f in (compiled, attend))
    assert all(worst(g, w) <= 1e-5 for g, w in zip(got, wanted))
    parts = (leaves[3], leaves[4][None], None, leaves[6])
    operator = torch.ops.attention_course.multi_token_forward.default
    torch.library.opcheck(operator, (*leaves[:3], *parts, True, 0.5))


# 16-bit values ----------------------------------------------------------------------------------------------


def of_type(given, dtype, names):
    return {
        name: tuple(x.to(dtype) for x in part) if isinstance(part, tuple) else part.to(dtype)
        for name, part in given.items()
        if name in names
    }


def errors_in(dtype, attend, given, d_y):
    """Return {argument or y: largest error relative to the largest element}, compared with float64."""
    answers = []
    for function, these in ((attend, given), (reference.multi_token_attention, double(given))):
        leaves = [leaf.detach().requires_grad_() for leaf in leaves_of(these)]
        y = function(*leaves[:8], gate=tuple(leaves[8:]))
        answers.append((y, *torch.autograd.grad(y, leaves, d_y.to(y.dtype))))
    assert all(got.dtype == leaf.dtype for got, leaf in zip(answers[0][1:], leaves_of(given)))
    assert answers[0][0].dtype == dtype
    names = ("y", "q", "k", "v", *PARTS, "gate[1]")
    return {name: worst(got.double(), wanted) for name, got, wanted in zip(names, *answers, strict=True)}


@pytest.mark.parametrize(
    "dtype, parts_too, device",
    [
        (torch.float16, False, "cpu"),
        (torch.float16, True, "cpu"),
        (torch.bfloat16, True, "cpu"),
        pytest.param(torch.bfloat16, False, "cpu", marks=nightly),  # compiles the same kernels
        *(pytest.param(dtype, each, "cuda", marks=gpu) for dtype in ROUNDINGS for each in (False, True)),
    ],
)
def test_16_bit_inputs_keep_their_type(dtype, parts_too, device):
    """Run forward and backward.

    With float16 inputs, scores and sums are float32, so each result has only one rounding error. With
    bfloat16 inputs, every intermediate result is rounded.
    """
    given = example(device=device)
    given |= of_type(given, dtype, (*"qkv", *(PARTS if parts_too else ())))
    d_y = torch.randn(given["q"].shape, generator=torch.Generator().manual_seed(1)).to(device, dtype)
    errors = errors_in(dtype, multi_token_attention, given, d_y)
    assert max(errors.values()) <= ROUNDINGS[dtype] * torch.finfo(dtype).eps, errors


@pytest.mark.parametrize(
    "dtype, parts_too, device",
    [
        pytest.param(torch.float16, False, "cpu", marks=nightly),
        (torch.bfloat16, True, "cpu"),
        *(pytest.param(dtype, True, "cuda", marks=gpu) for dtype in ROUNDINGS),
        *(pytest.param(dtype, False, "cuda", marks=gpu) for dtype in ROUNDINGS),
    ],
)
def test_one_token_in_16_bits(dtype, parts_too, device):
    given = example(heads=4, n=70, d=33, device=device)
    given |= of_type(given, dtype, (*"qkv", *(PARTS if parts_too else ())))
    parts = {name: given[name] for name in PARTS}
    wanted = reference.multi_token_attention(**double(given))[:, :, -1:]
    for splits in (None, 2)[: 1 + (device == "cuda")]:
        got = multi_token_attention_decode(
            given["q"][:, :, -4:], given["k"], given["v"], **parts, splits=splits
        )
        assert got.dtype == dtype and worst(got.double(), wanted) <= torch.finfo(dtype).eps


@pytest.mark.parametrize(
    "shape, dtype, parts_dtype, splits, device",
    [
        (Shape(1, 3, 37, 8, (3, 5), 3, (2, 4), 1, True, None), torch.float16, torch.float32, 1, "cpu"),
        *(
            pytest.param(*case, "cpu", marks=nightly)
            for case in (
                (
                    Shape(1, 16, 70, 64, (6, 11), 16, (6, 11), 16, True, None),
                    torch.bfloat16,
                    torch.bfloat16,
                    1,
                ),
                (Shape(1, 4, 300, 128, (6, 11), 4, (6, 11), 2, True, None), torch.float16, torch.float16, 2),
                (
                    Shape(2, 2, 5, 33, (15, 15), 1, (2, 15), 2, True, None),
                    torch.bfloat16,
                    torch.float32,
                    None,
                ),
                (Shape(1, 1, 1, 5, None, None, (1, 1), 1, True, None), torch.bfloat16, torch.bfloat16, None),
            )
        ),
        *(
            pytest.param(Shape(*sizes, True, None), dtype, parts_dtype, splits, "cuda", marks=gpu)
            for *sizes, dtype, parts_dtype in (
                (1, 16, 3000, 64, (6, 11), 16, (6, 11), 16, torch.bfloat16, torch.bfloat16),
                (1, 16, 3000, 64, (6, 11), 16, (6, 11), 16, torch.float16, torch.float16),
                (1, 5, 3001, 128, (6, 11), 5, (6, 11), 1, torch.float16, torch.float32),
                (2, 6, 777, 40, (2, 15), 3, (8, 2), 2, torch.bfloat16, torch.float32),
                (1, 1, 9000, 64, (1, 1), None, None, None, torch.bfloat16, torch.bfloat16),
                (3, 1, 1, 3, (9, 8), 1, (8, 9), 1, torch.float16, torch.float16),
            )
            for splits in (None, 3)
        ),
    ],
    ids=str,
)
def test_one_token_on_hopper(shape, dtype, parts_dtype, splits, device):
    """Compare the kernels for compute capability 9.0, which the simulator runs too, with float64."""
    q, k, v, _, layer = inputs(shape, device=device)
    q, k, v = (x.to(dtype) for x in (q[:, :, -1 - layer.above - layer.after_above :].contiguous(), k, v))
    layer = layer._replace(
        **{name: x if x is None else x.to(parts_dtype) for name, x in zip(layer._fields[:4], layer)}
    )
    got = decode(q, k, v, layer, splits=splits, hopper=True)
    parts = [x if x is None else x.double() for x in layer[:4]]
    wanted = reference.multi_token_attention_decode(
        q.double(), k.double(), v.double(), *parts, scale=layer.scale
    )
    assert got.dtype == dtype and worst(got.double(), wanted) <= torch.finfo(dtype).eps


def test_which_calls_use_the_kernels_for_hopper(monkeypatch):
    monkeypatch.setattr(hopper_decode, "capability", lambda device: (9, 0) if device == "new" else (8, 0))

    def fits(dtype=torch.bfloat16, is_cuda=True, device="new", c_q=6, after=6, groups=(16, 16)):
        q = SimpleNamespace(dtype=dtype, is_cuda=is_cuda, device=device)
        return hopper_decode.fits(q, c_q, after, *groups)

    assert fits() and fits(torch.float16) and fits(c_q=9, after=8) and fits(groups=(1, 16))
    assert not (fits(torch.float32) or fits(is_cuda=False) or fits(device="old"))
    assert not (fits(c_q=15, after=6) or fits(c_q=1, after=9) or fits(groups=(16, 17)))


@AUTOCAST
def test_in_its_type_under_autocast(device, dtype):
    given = example(n=3, device=device)
    leaves = [leaf.requires_grad_() for leaf in leaves_of(given)]
    wanted = multi_token_attention(**given | of_type(given, dtype, "qkv"))
    with torch.autocast(device, dtype):
        y = multi_token_attention(**given)
    assert y.dtype == dtype and torch.equal(y, wanted)
    y.sum().backward()
    assert all(leaf.grad.dtype == torch.float32 for leaf in leaves)


# Layouts ----------------------------------------------------------------------------------------------------


def test_strided_tensors():
    given = example()
    turned = {name: given[name].transpose(1, 2).contiguous().transpose(1, 2) for name in "qkv"}
    assert not turned["q"].is_contiguous()
    assert torch.equal(multi_token_attention(**given | turned), multi_token_attention(**given))


# On a GPU ---------------------------------------------------------------------------------------------------


@gpu
def test_the_same_bits_from_run_to_run():
    tensors = inputs(Shape(2, 4, 700, 32, (6, 11), 4, (6, 11), 2, True, None), device="cuda")
    runs = [results(*tensors) for _ in range(5)]
    assert all(torch.equal(run[name], runs[0][name]) for run in runs for name in run)
    wanted = in_float64(*tensors)
    assert within_tolerance({name: worst(runs[0][name], wanted[name]) for name in wanted})


DETERMINISTIC = """
import torch
from kernels import multi_token_attention, multi_token_attention_decode
torch.use_deterministic_algorithms(True)
torch.manual_seed(0)
leaves = [*torch.randn(3, 1, 2, 700, 16, device="cuda"), *torch.randn(2, 2, 3, 3, device="cuda")]
q, k, v, taps, after = (leaf.requires_grad_() for leaf in leaves)
def results():
    token = multi_token_attention_decode(q[:, :, -5:], k, v, taps, after_taps=after)
    o = multi_token_attention(q, k, v, taps, after_taps=after)
    return token, o, *torch.autograd.grad(o.square().sum(), leaves)
assert all(map(torch.equal, results(), results()))
print("the same bits")
"""


@gpu
@pytest.mark.parametrize("workspace", [":4096:8", None])
def test_deterministic_algorithms(workspace):
    """Run in a separate process, because cuBLAS reads its environment variable when it starts.

    If PyTorch requires the variable, its error message must name it.
    """
    environment = os.environ | {"CUBLAS_WORKSPACE_CONFIG": workspace or ""}
    if workspace is None:
        del environment["CUBLAS_WORKSPACE_CONFIG"]
    run = subprocess.run(
        [sys.executable, "-c", DETERMINISTIC], capture_output=True, text=True, env=environment
    )
    wanted = workspace is None and "CUBLAS_WORKSPACE_CONFIG" in run.stderr
    assert "the same bits" in run.stdout or wanted, run.stderr


@gpu
def test_memory_grows_linearly():
    """Compare the memory for two lengths with bands of minimum height: 4 times the length, at most 4 times
    the memory."""

    def peak(n):
        given = example(heads=16, n=n, d=16, taps=(6, 11), after_taps=(6, 11), device="cuda")
        leaves = [leaf.requires_grad_() for leaf in leaves_of(given)]
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        multi_token_attention(*leaves[:8], gate=leaves[8:]).sum().backward()
        return torch.cuda.max_memory_allocated() - before

    peak(64)
    assert peak(16384) <= 4.2 * peak(4096)


@gpu
def test_compiled_and_captured_on_the_gpu():
    given = example(heads=4, n=70, device="cuda")
    leaves = leaves_of(given)

    def attend(*x):
        return multi_token_attention(*x[:8], gate=x[8:])

    def token(q, k, v, *x):
        return multi_token_attention_decode(q[:, :, -4:], k, v, *x[:5], gate=x[5:], splits=3)

    wanted = attend(*leaves)
    assert worst(torch.compile(attend, fullgraph=True)(*leaves), wanted) <= 1e-5
    for call in (attend, token):
        wanted, graph = call(*leaves), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = call(*leaves)
        captured.zero_()
        graph.replay()
        assert torch.equal(captured, wanted)


# Invalid arguments ------------------------------------------------------------------------------------------

GOOD = example(heads=4)


@pytest.mark.parametrize(
    "change, error, words",
    [
        ({"q": GOOD["q"].numpy()}, TypeError, r"argument q is a ndarray; wanted a torch\.Tensor"),
        (
            {"k": GOOD["k"][:, :, :3], "v": GOOD["v"][:, :, :3]},
            ValueError,
            r"argument k has shape \(1, 4, 3, 4\); wanted \(B, H, N, d\) with B = 1, H = 4, N = 5",
        ),
        (
            {"taps": GOOD["taps"][:1]},
            ValueError,
            r"argument taps has shape \(1, 3, 2\); wanted \(H, c_q, c_k\) with H = 4",
        ),
        (
            {"after_taps": torch.zeros(4, 16, 3)},
            ValueError,
            r"argument after_taps has c_q = 16; wanted 1 to 15",
        ),
        ({"taps": GOOD["taps"].double()}, TypeError, r"argument taps has dtype torch\.float64; wanted"),
        (
            {"head_map": torch.eye(3)},
            ValueError,
            r"argument head_map has shape \(3, 3\); wanted \(H, H\) or \(H / s, s, s\), with groups of at"
            r" most 32 heads that divide H = 4",
        ),
        (
            {"after_head_map": [[1.0]]},
            TypeError,
            r"argument after_head_map is a list; wanted a torch\.Tensor",
        ),
        ({"norm": torch.ones(3)}, ValueError, r"argument norm has shape \(3,\); wanted \(d,\) with d = 4"),
        ({"gate": torch.ones(4)}, TypeError, r"argument gate is a Tensor; wanted a pair of tensors"),
        (
            {"gate": (torch.ones(4), torch.ones(2))},
            ValueError,
            r"argument gate\[1\] has shape \(2,\); wanted",
        ),
        ({"norm": GOOD["norm"].to("meta")}, ValueError, r"argument norm is on meta; wanted cpu, where q is"),
        ({"q": GOOD["q"].to("meta")}, ValueError, r"argument q is on meta; wanted cpu or cuda"),
        ({"scale": math.inf}, ValueError, r"argument scale is inf; wanted a finite float32"),
        ({"documents": [0, 7]}, ValueError, r"argument documents is \[0, 7\]; wanted the first token"),
        ({"documents": [0, 2.5]}, TypeError, r"argument documents is \[0, 2\.5\]; wanted whole numbers"),
        ({name: GOOD[name][:0] for name in "qkv"}, ValueError, r"argument q has B = 0; wanted 1 to 65535"),
    ],
)
def test_bad_input(change, error, words):
    with pytest.raises(error, match=words):
        multi_token_attention(**(GOOD | change))


def test_too_many_heads_that_mix():
    q, k, v = torch.zeros(3, 1, 33, 2, 4)
    with pytest.raises(ValueError, match=r"with groups of at most 32 heads that divide H = 33"):
        multi_token_attention(q, k, v, head_map=torch.eye(33))


@pytest.mark.parametrize(
    "change, words",
    [
        (
            {"q_window": GOOD["q"][:, :, :2]},
            r"argument q_window has R = 2; wanted min\(.*\) = 4, the queries",
        ),
        (
            {"k": GOOD["k"][:, :3], "v": GOOD["v"][:, :3]},
            r"argument k has H_kv = 3; wanted a divisor of H = 4",
        ),
        ({"v": GOOD["v"][:, :, :4]}, r"argument v has shape .*; wanted \(B, H_kv, N_k, d\) with"),
        ({"splits": 0}, r"argument splits is 0; wanted at least 1"),
        (
            {"q_window": GOOD["q"][:0, :, -4:], "k": GOOD["k"][:0], "v": GOOD["v"][:0]},
            r"argument q_window has B = 0; wanted 1 to",
        ),
        ({"q_window": GOOD["q"][:, :, -4:].to("meta")}, r"argument q_window is on meta; wanted cpu or cuda"),
    ],
)
def test_bad_input_of_one_token(change, words):
    good = {name: GOOD[name] for name in ("k", "v", *PARTS)} | {"q_window": GOOD["q"][:, :, -4:]}
    with pytest.raises(ValueError, match=words):
        multi_token_attention_decode(**(good | change))
