"""Tests of the interpreted convolution kernels against the float64 reference on tiny shapes, and of their
inputs, gradients and memory."""

import functools
import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from kernels import conv_attention
from kernels.cases.conv import (
    RESULTS,
    SHAPES,
    TINY,
    Shape,
    errors_of,
    inputs,
    reference,
    relative_errors,
    results,
)
from kernels.cases.tolerances import within_tolerance
from kernels.common import arguments
from kernels.common.launch import simulated
from kernels.conv.backward import conv_backward
from kernels.conv.forward import conv_forward
from kernels.reference import identity_taps
from runners import OPERATOR_CHECKS, checked

gpu = pytest.mark.gpu
SMALL = 32  # tiles of 32 × 32 scores, for which blocks have 64 threads


# In the simulator -------------------------------------------------------------------------------------------


ON_A_PUSH = {0: "fibers", 2: "fibers", 5: "threads"}  # index in TINY -> engine


@pytest.mark.parametrize(
    "shape, engine",
    [
        pytest.param(shape, engine, marks=[] if engine == ON_A_PUSH.get(place) else pytest.mark.nightly)
        for place, shape in enumerate(TINY)
        for engine in ("fibers", "threads")
    ],
    ids=str,
)
def test_tiny_shapes_under_every_seed(shape, engine, few):
    """Run tiny shapes under 20 seeds (2 without --all), which change the order of threads and blocks.

    No run may report a finding, and all results must be equal.
    """
    answers = []
    for seed in few(range(20), 2):
        tensors = inputs(shape)
        run = functools.partial(checked, engine=engine, seed=seed)
        answers.append(results(*tensors, shape.causal, size=SMALL, run=run))
        assert within_tolerance(relative_errors(answers[-1], reference(*tensors, shape.causal)))
    assert all(
        torch.equal(a, b)
        for answer in answers
        for name, a, b in zip(RESULTS, answer, answers[0])
        if name != "dW"
    )


SMALL_SHAPES = [shape for shape in SHAPES if shape.n <= 33 and shape.d <= 16]
INTERPRETED = [
    pytest.param(shape, marks=[pytest.mark.nightly] if place % 14 else [])
    for place, shape in enumerate(SMALL_SHAPES)
]  # Each CI run compiles different shapes from these (test_conv_shapes.py).


@pytest.mark.parametrize("shape", INTERPRETED, ids=str)
def test_small_shapes(shape):
    """Run small shapes. Long sequences have one head, because separate blocks compute the heads anyway."""
    if shape.n > 7:
        shape = shape._replace(heads=1)
    errors = errors_of(shape, size=SMALL, run=checked)
    assert within_tolerance(errors), errors


@pytest.mark.parametrize(
    "c_q, c_k, causal",
    [
        (1, 1, True),
        (3, 3, False),
        *(
            pytest.param(*one, marks=pytest.mark.nightly)
            for one in [(1, 1, False), (3, 3, True), (2, 4, True), (2, 4, False)]
        ),
    ],
)
def test_identity_taps_are_ordinary_attention(c_q, c_k, causal):
    q, k, v, _, d_o = inputs(Shape(1, 1, 9, 4, c_q, c_k, causal))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    wanted = scaled_dot_product_attention(*leaves, is_causal=causal)
    got = conv_attention(*leaves, identity_taps(1, c_q, c_k), causal)
    assert (got - wanted).abs().max() <= 1e-5
    for g, w in zip(torch.autograd.grad(got, leaves, d_o), torch.autograd.grad(wanted, leaves, d_o)):
        assert (g - w).abs().max() <= 1e-5


def extremes():
    """Return inputs that are likely to cause NaN: (description, q, k, v, w)."""
    q, k, v, w, _ = inputs(Shape(1, 1, 7, 4, 3, 3, True))
    lone = torch.zeros_like(w)
    lone[:, 1, 1] = 1
    return [
        ("scores near 1e4", 100 * q, 100 * k, v, w),
        ("scores near -1e4", -100 * q.abs(), 100 * k.abs(), v, w.abs()),
        ("one tap", q, k, v, lone),
        ("no tap", q, k, v, 0 * w),
        ("equal rows", *(x[:, :, :1].expand_as(x) for x in (q, k, v)), w),
        ("one token", *(x[:, :, :1] for x in (q, k, v)), w),
    ]


@pytest.mark.parametrize("what, q, k, v, w", extremes(), ids=[what for what, *_ in extremes()])
def test_no_nan(what, q, k, v, w):
    answer = results(q, k, v, w, torch.ones_like(q), True, size=SMALL, run=checked)
    assert all(result.isfinite().all() for result in answer)
    if "1e4" not in what:
        assert within_tolerance(relative_errors(answer, reference(q, k, v, w, torch.ones_like(q), True)))


def test_strided_tensors():
    q, k, v, w, d_o = inputs(Shape(1, 2, 5, 4, 2, 3, True))
    turned = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    assert not turned[0].is_contiguous()
    for a, b in zip(results(*turned, w, d_o, True, size=SMALL), results(q, k, v, w, d_o, True, size=SMALL)):
        assert torch.equal(a, b)


# On a GPU ---------------------------------------------------------------------------------------------------


@gpu
def test_the_reproducible_tap_gradient():
    tensors = inputs(Shape(2, 3, 700, 32, 7, 7, True), device="cuda")
    o, log_sum = conv_forward(*tensors[:4])
    runs = [conv_backward(*tensors[:4], o, log_sum, tensors[4], deterministic=True) for _ in range(5)]
    assert all(torch.equal(a, b) for run in runs for a, b in zip(run, runs[0]))
    assert within_tolerance(relative_errors((o, log_sum, *runs[0]), reference(*tensors, True)))


@gpu
def test_memory_grows_linearly():
    """Compare the memory for two lengths: at 4 times the length, it must be at most 4 times as large.

    An N × N matrix of one head would be 16 times as large, and 64 MiB at N = 4096.
    """

    def peak(n):
        leaves = [x.requires_grad_() for x in inputs(Shape(1, 1, n, 64, 7, 7, True), device="cuda")[:4]]
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        conv_attention(*leaves).sum().backward()
        return torch.cuda.max_memory_allocated() - before

    peak(64)
    assert peak(4096) <= 4.5 * peak(1024) and peak(4096) < 16 * 2**20


@gpu
def test_compiled_and_captured_on_the_gpu():
    q, k, v, w, _ = inputs(Shape(1, 2, 70, 16, 3, 4, True), device="cuda")
    wanted = conv_attention(q, k, v, w)
    assert torch.equal(
        torch.compile(lambda *x: conv_attention(*x) * 2, fullgraph=True)(q, k, v, w), wanted * 2
    )
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = conv_attention(q, k, v, w)
    captured.zero_()
    graph.replay()
    assert torch.equal(captured, wanted)


# Gradients --------------------------------------------------------------------------------------------------


@pytest.fixture
def leaves():
    return [x.requires_grad_() for x in inputs(Shape(1, 1, 4, 2, 2, 3, True))[:4]]


def test_gradients_reach_every_input(leaves):
    d_o = torch.randn(1, 1, 4, 2)
    got = torch.autograd.grad(conv_attention(*leaves), leaves, d_o)
    wanted = reference(*(leaf.detach() for leaf in leaves), d_o, True)[2:]
    assert all((g - w).abs().max() <= 1e-5 for g, w in zip(got, wanted))


@pytest.mark.parametrize(
    "wanted, kernels",
    [
        ((2,), ["keys"]),
        ((3,), ["queries"]),
        ((1, 3), ["queries", "keys"]),
        *(
            pytest.param(*one, marks=pytest.mark.nightly)
            for one in [((0,), ["queries"]), ((1,), ["keys"]), ((0, 3), ["queries"])]
        ),
    ],
)
def test_only_what_is_needed_runs(leaves, wanted, kernels):
    q, k, v, w = (leaf.detach() for leaf in leaves)
    ran = []

    def run(kernel, *launch):
        ran.append(kernel.py_func.__name__)
        simulated(kernel, *launch)

    o, log_sum = conv_forward(q, k, v, w, size=SMALL)
    chosen = [i in wanted for i in range(4)]
    gradients = conv_backward(q, k, v, w, o, log_sum, torch.ones_like(o), wanted=chosen, run=run, size=SMALL)
    assert ran == [f"conv_backward_{name}_kernel" for name in kernels]
    assert [gradient is not None for gradient in gradients] == chosen


def test_frozen_taps(leaves, without_launches):
    leaves[3].requires_grad_(False)
    conv_attention(*leaves).sum().backward()
    assert leaves[3].grad is None and leaves[0].grad is not None


def test_twice_is_an_error(leaves, without_launches):
    (first,) = torch.autograd.grad(conv_attention(*leaves).sum(), leaves[0], create_graph=True)
    with pytest.raises(RuntimeError, match="conv_attention can be differentiated once"):
        first.sum().backward()


def test_one_operator_for_the_compiler(leaves, few):
    compiled = torch.compile(lambda *x: conv_attention(*x) * 2, backend="aot_eager", fullgraph=True)
    got, wanted = compiled(*leaves), conv_attention(*leaves) * 2
    assert torch.equal(got, wanted)
    got, wanted = (torch.autograd.grad(o.sum(), leaves) for o in (got, wanted))
    assert all((g - w).abs().max() <= 1e-6 for g, w in zip(got, wanted))
    operator = torch.ops.attention_course.conv_forward.default
    torch.library.opcheck(operator, (*leaves, True, 0.5), test_utils=few(OPERATOR_CHECKS, 3))


def test_autocast_chooses_the_type(leaves, without_launches):
    with torch.autocast("cpu", torch.bfloat16):
        o = conv_attention(leaves[0].bfloat16(), *leaves[1:])
    assert o.dtype == torch.bfloat16
    o.sum().backward()
    assert all(leaf.grad is not None and leaf.grad.dtype == torch.float32 for leaf in leaves)


# Invalid arguments ------------------------------------------------------------------------------------------

GOOD = dict(zip("qkvw", inputs(Shape(1, 2, 4, 3, 2, 3, True))))


@pytest.mark.parametrize(
    "change, error, words",
    [
        ({"q": GOOD["q"].numpy()}, TypeError, r"argument q is a ndarray; wanted a torch\.Tensor"),
        ({"q": GOOD["q"][0]}, ValueError, r"argument q has shape \(2, 4, 3\); wanted \(B, H, N, d\)"),
        (
            {"k": GOOD["k"][:, :, :3], "v": GOOD["v"][:, :, :3]},
            ValueError,
            r"argument k has shape \(1, 2, 3, 3\); wanted \(B, H, N, d\) with B = 1, H = 2, N = 4, d = 3",
        ),
        (
            {"v": GOOD["v"].double()},
            TypeError,
            r"argument v has dtype torch\.float64; wanted torch\.float32: convert with v\.float\(\)",
        ),
        (
            {"w": GOOD["w"][:1]},
            ValueError,
            r"argument w has shape \(1, 2, 3\); wanted \(H, c_q, c_k\) with H = 2",
        ),
        ({"w": torch.zeros(2, 16, 3)}, ValueError, r"argument w has c_q = 16; wanted 1 to 15"),
        ({"w": torch.zeros(2, 3, 0)}, ValueError, r"argument w has c_k = 0; wanted 1 to 15"),
        (
            {"w": GOOD["w"].half()},
            TypeError,
            r"argument w has dtype torch\.float16; wanted torch\.float32: convert with w\.float\(\)",
        ),
        ({"w": GOOD["w"].to("meta")}, ValueError, r"argument w is on meta; wanted cpu, where q is"),
        ({"w": None}, TypeError, r"argument w is a NoneType; wanted a torch\.Tensor"),
        ({"scale": math.nan}, ValueError, r"argument scale is nan; wanted a finite float32"),
        (
            {"q": GOOD["q"][:0], "k": GOOD["k"][:0], "v": GOOD["v"][:0]},
            ValueError,
            r"argument q has B = 0; wanted 1 to 65535",
        ),
        (
            {name: torch.zeros(1, 2, 4, 129) for name in "qkv"},
            ValueError,
            r"argument q has d = 129; wanted 1 to 128, the widest row of a kernel",
        ),
    ],
)
def test_bad_input(change, error, words):
    with pytest.raises(error, match=words):
        conv_attention(**(GOOD | change))


def test_bad_statistics(without_launches):
    q, k, v, w = GOOD.values()
    o, log_sum = conv_forward(q, k, v, w)
    with pytest.raises(
        ValueError,
        match=r"argument log_sum has shape \(1, 2, 3\); wanted \(B, H, N\) with B = 1, H = 2, N = 4",
    ):
        conv_backward(q, k, v, w, o, log_sum[:, :, :3], torch.ones_like(o))


def test_a_call_checks_its_arguments_once(monkeypatch, without_launches):
    """Count the argument checks of one call: only the public function checks, and the operators rely on
    that."""
    checked, original = [], arguments.check
    monkeypatch.setattr(
        arguments,
        "check",
        lambda given, *more, **how: checked.append([*given]) or original(given, *more, **how),
    )
    q, k, v = (torch.randn(1, 1, 5, 4, requires_grad=True) for _ in range(3))
    w = torch.randn(1, 2, 3, requires_grad=True)
    conv_attention(q, k, v, w).sum().backward()
    assert checked == [["q", "k", "v", "w"]] and all(x.grad is not None for x in (q, k, v, w))
