"""Tests of the latent kernels against the float64 reference, and of their inputs and gradients.

Tiny shapes are interpreted. All shapes are compiled by the simulator, and run on a GPU if available.
"""

import functools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import latent_attention
from kernels.cases.latent import SHAPES, TINY, Shape, errors_of, inputs, reference, relative_errors, results
from kernels.cases.tolerances import within_tolerance
from kernels.flash.forward import flash_forward
from kernels.latent.backward import latent_backward
from kernels.latent.forward import latent_forward
from runners import OPERATOR_CHECKS, checked, native

gpu = pytest.mark.gpu
# All of these shapes have one width, so that only one kernel is compiled.
SAMPLE = [shape for shape in SHAPES if max(shape.d, shape.latent) <= 32][::2]


def is_right(shape, **options):
    errors = errors_of(shape, **options)
    assert within_tolerance(errors), errors


# Correct values ---------------------------------------------------------------------------------------------


def test_the_grid_is_as_large_as_it_should_be():
    """Check that the shapes include every kind that the kernels support, and that there are at least 60."""
    assert len(SHAPES) >= 60
    assert {shape.heads for shape in SHAPES} >= {1, 2, 3, 16} and {shape.n for shape in SHAPES} >= {1, 130}
    assert {shape.window for shape in SHAPES} >= {0, 1, 7, 1000} and {shape.alpha for shape in SHAPES} >= {
        0.0
    }
    assert max(shape.d for shape in SHAPES) == max(shape.latent for shape in SHAPES) == 128
    for holds in (
        lambda shape: shape.keys > shape.n and not shape.before,
        lambda shape: shape.before,
        lambda shape: not shape.causal,
        lambda shape: shape.batch > 1,
        lambda shape: shape.window > shape.keys,
    ):
        assert any(map(holds, SHAPES))


@pytest.mark.parametrize(
    "shape, engine",
    [
        pytest.param(shape, engine, marks=pytest.mark.nightly if place % 2 or engine == "threads" else [])
        for place, shape in enumerate(TINY[:3])
        for engine in ("fibers", "threads")
    ],
    ids=str,
)
def test_tiny_shapes_under_every_seed(shape, engine, few):
    """Run tiny shapes under 6 seeds (2 without --all).

    No run may report a finding, and all results must be equal unless blocks add to shared sums.
    """
    answers = []
    for seed in few(range(6), 2):
        run = functools.partial(checked, engine=engine, seed=seed)
        answers.append(results(shape, *inputs(shape), run=run, deterministic=True))
        assert within_tolerance(relative_errors(answers[-1], reference(shape, *inputs(shape))))
    assert all(torch.equal(a, b) for answer in answers for a, b in zip(answer, answers[0]))


@pytest.mark.parametrize("shape", [*TINY, *SAMPLE], ids=str)
def test_the_forward_pass_compiled(shape):
    tensors = inputs(shape)
    terms = shape.alpha, shape.window, shape.causal
    got = latent_forward(*tensors[:5], *terms, n=shape.n, run=native)
    errors = relative_errors(got, reference(shape, *tensors))
    assert within_tolerance(errors), errors


@pytest.mark.nightly  # Compiling the backward kernels takes 20 s of CPU time.
@pytest.mark.parametrize("shape", [*TINY, *SHAPES], ids=str)
def test_compiled(shape):
    is_right(shape, run=native)


@pytest.mark.nightly
@settings(max_examples=20)
@given(st.data())
def test_random_shapes_compiled(data):
    is_right(any_shape(data.draw), run=native)


def any_shape(draw):
    """Draw a shape with at most 90 keys and any widths."""
    n = draw(st.integers(1, 70))
    before = draw(st.integers(0, 20))
    keys = n + before + draw(st.integers(0, 20))
    sizes = draw(st.integers(1, 2)), draw(st.integers(1, 3)), before, n, keys
    widths = draw(st.integers(1, 128)), draw(st.integers(1, 128))
    return Shape(
        *sizes, *widths, draw(st.floats(-1, 1, width=32)), draw(st.integers(0, 99)), draw(st.booleans())
    )


@gpu
@pytest.mark.parametrize("shape", [*TINY, *SHAPES], ids=str)
def test_on_the_gpu(shape):
    is_right(shape, device="cuda")
    is_right(shape, device="cuda", deterministic=True)


@gpu
@settings(max_examples=60)
@given(st.data())
def test_random_shapes_on_the_gpu(data):
    is_right(any_shape(data.draw), device="cuda")


def test_identities_are_flash_attention():
    q, k, v, *_ = inputs(Shape(1, 2, 0, 40, 40, 4, 4, 0, 0))
    eye = torch.eye(4).expand(2, 4, 4)
    got, _ = latent_forward(q, k, v, eye, eye, run=native)
    heads = [x[:, None].expand(1, 2, 40, 4) for x in (k, v)]
    assert (got - flash_forward(q, *heads, run=native)[0]).abs().max() <= 1e-6


def test_without_alpha_the_window_says_nothing():
    tensors = inputs(Shape(1, 2, 0, 40, 40, 4, 4, 0, 0))[:5]
    assert torch.equal(
        latent_forward(*tensors, 0.0, 9, run=native)[0], latent_forward(*tensors, run=native)[0]
    )


def test_deterministic_gradients_are_the_same():
    """Compute gradients with several heads and tiles, whose blocks would otherwise add to the same
    elements."""
    shape = Shape(1, 2, 0, 70, 70, 5, 4, 0.5, 9)
    is_right(shape, run=native, deterministic=True)


def test_scores_near_ten_thousand():
    q, k, v, w_q, w_v, d_o = inputs(Shape(1, 1, 0, 40, 40, 4, 4, 0.5, 9))
    o, log_sum = latent_forward(100 * q, 100 * k, v, w_q, w_v, 0.5, 9, run=native)
    gradients = latent_backward(100 * q, 100 * k, v, w_q, w_v, o, log_sum, d_o, 0.5, 9, run=native)
    assert all(result.isfinite().all() for result in (o, log_sum, *gradients))


def test_no_weight_exceeds_1():
    """Use scores near 10⁸, whose rounding errors are too large for an exponential. dV once was near 10²⁷."""
    q, k, v, w_q, w_v, d_o = inputs(Shape(1, 1, 0, 40, 40, 4, 4, 0.5, 9))
    o, log_sum = latent_forward(1e4 * q, 1e4 * k, v, w_q, w_v, 0.5, 9, run=native)
    only_d_v = [place == 2 for place in range(6)]
    d_v = latent_backward(
        1e4 * q, 1e4 * k, v, w_q, w_v, o, log_sum, d_o, 0.5, 9, wanted=only_d_v, run=native
    )[2]
    most = (d_o @ w_v.mT).abs().sum((1, 2))
    assert (d_v.abs() <= 1.001 * most).all()


def test_strided_tensors():
    shape = Shape(1, 2, 0, 5, 5, 4, 3, 0.5, 3)
    tensors = inputs(shape)
    turned = [x.mT.contiguous().mT for x in tensors]
    assert not turned[0].is_contiguous()
    for a, b in zip(results(shape, *turned, run=native), results(shape, *tensors, run=native)):
        assert (a - b).abs().max() <= 1e-6


# Gradients --------------------------------------------------------------------------------------------------

SMALL = Shape(1, 1, 0, 3, 4, 2, 3, 0.5, 2)


@pytest.fixture
def leaves():
    return [x.requires_grad_() for x in inputs(SMALL)[:5]] + [torch.tensor(0.5, requires_grad=True)]


def test_gradients_reach_every_input(leaves):
    d_o = inputs(SMALL)[5]
    got = torch.autograd.grad(latent_attention(*leaves, SMALL.window), leaves, d_o)
    wanted = reference(SMALL, *inputs(SMALL))[2:]
    assert all((g - w).abs().max() <= 1e-5 and g.shape == w.shape for g, w in zip(got, wanted, strict=True))


def test_gradients_reach_the_queries_before():
    shape = SMALL._replace(before=1)
    q, *shared, d_o = inputs(shape)
    parts = [part.clone().requires_grad_() for part in (q[:, :, :1], q[:, :, 1:])]
    o = latent_attention(parts[1], *shared, shape.alpha, shape.window, q_before=parts[0])
    wanted = reference(shape, q, *shared, d_o)
    assert (o - wanted[0]).abs().max() <= 1e-5
    got = torch.cat(torch.autograd.grad(o, parts, d_o), 2)
    assert (got - wanted[2]).abs().max() <= 1e-5


@pytest.mark.parametrize("alpha", [0.0, torch.tensor([0.0])])
def test_the_gradient_at_alpha_0(alpha, leaves):
    """Set alpha to 0. A number skips the reciprocal scores; a tensor still needs its gradient."""
    alpha = alpha.clone().requires_grad_() if isinstance(alpha, torch.Tensor) else alpha
    o = latent_attention(*leaves[:5], alpha, 2)
    wanted = reference(SMALL._replace(alpha=0.0), *inputs(SMALL))
    assert (o - wanted[0]).abs().max() <= 1e-5
    if isinstance(alpha, torch.Tensor):
        (got,) = torch.autograd.grad(o, alpha, inputs(SMALL)[5])
        assert got.shape == (1,) and (got - wanted[-1]).abs() <= 1e-5


@pytest.mark.parametrize(
    ("wanted", "window", "kernels"),
    [
        ((0,), 0, ["queries"]),
        ((0,), 2, ["queries", "keys"]),
        ((1,), 0, ["keys"]),
        ((1,), 2, ["queries", "keys"]),
        ((2,), 0, ["keys"]),
        ((3, 4, 5), 0, ["keys"]),
    ],
)
def test_only_what_is_needed_runs(wanted, window, kernels):
    *tensors, d_o = inputs(SMALL)
    ran = []

    def run(kernel, *launch):
        ran.append(kernel.py_func.__name__)

    o, log_sum = torch.zeros_like(d_o), torch.zeros(1, 1, 3)
    chosen = [place in wanted for place in range(6)]
    gradients = latent_backward(*tensors, o, log_sum, d_o, 0.5, window, wanted=chosen, run=run)
    assert ran == [f"latent_backward_{name}_kernel" for name in kernels]
    assert [gradient is not None for gradient in gradients] == chosen


def test_twice_is_an_error(leaves, without_launches):
    (first,) = torch.autograd.grad(latent_attention(*leaves, 2).sum(), leaves[0], create_graph=True)
    with pytest.raises(RuntimeError, match="latent_attention can be differentiated once"):
        first.sum().backward()


def test_one_operator_for_the_compiler(leaves, few):
    def twice(*x):
        return latent_attention(*x, 2) * 2

    compiled = torch.compile(twice, backend="aot_eager", fullgraph=True)
    got, wanted = compiled(*leaves), twice(*leaves)
    assert torch.equal(got, wanted)
    got, wanted = (torch.autograd.grad(o.sum(), leaves) for o in (got, wanted))
    assert all((g - w).abs().max() <= 1e-5 for g, w in zip(got, wanted))
    arguments = *leaves[:5], leaves[5].reshape(1), 2, True, 0.5, 3
    operator = torch.ops.attention_course.latent_forward.default
    torch.library.opcheck(operator, arguments, test_utils=few(OPERATOR_CHECKS, 3))


def test_autocasts_type_under_autocast(leaves, without_launches):
    with torch.autocast("cpu", torch.bfloat16):
        o = latent_attention(leaves[0].bfloat16(), *leaves[1:], 2)
    assert o.dtype == torch.bfloat16
    o.sum().backward()
    assert all(leaf.grad is not None and leaf.grad.dtype == torch.float32 for leaf in leaves)


# On a GPU ---------------------------------------------------------------------------------------------------


@gpu
def test_reproducible_gradients():
    shape = Shape(2, 4, 0, 700, 700, 64, 64, 0.5, 50)
    tensors = inputs(shape, device="cuda")
    runs = [results(shape, *tensors, deterministic=True) for _ in range(5)]
    assert all(torch.equal(a, b) for run in runs for a, b in zip(run, runs[0]))


@gpu
def test_memory_grows_linearly():
    """Compare the memory for two lengths: at 4 times the length, it must be at most 4 times as large.

    At N = 4096, a matrix of one head would be 64 MiB, and the expanded values of all heads 16 MiB.
    """

    def peak(n):
        *leaves, _ = [x.requires_grad_() for x in inputs(Shape(1, 16, 0, n, n, 64, 64, 0, 0), device="cuda")]
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        latent_forward(*leaves, 0.5, 33)
        return torch.cuda.max_memory_allocated() - before

    peak(64)
    assert peak(4096) <= 4.5 * peak(1024) and peak(4096) <= 4 * 16 * 4096 * 65 + 2**20


@gpu
def test_compiled_and_captured_on_the_gpu():
    *tensors, _ = inputs(Shape(1, 2, 0, 70, 70, 16, 20, 0, 0), device="cuda")
    wanted = latent_attention(*tensors, 0.5, 9)
    compiled = torch.compile(lambda *x: latent_attention(*x, 0.5, 9) * 2, fullgraph=True)
    assert torch.equal(compiled(*tensors), wanted * 2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = latent_attention(*tensors, 0.5, 9)
    captured.zero_()
    graph.replay()
    assert torch.equal(captured, wanted)


# Invalid arguments ------------------------------------------------------------------------------------------

GOOD = dict(zip(("q", "k_latent", "v_latent", "w_q", "w_v"), inputs(SMALL)))
REFUSED = [
    (dict(q=[1.0]), TypeError, "argument q is a list; wanted a torch.Tensor"),
    (dict(q=GOOD["q"][0]), ValueError, "argument q has shape (1, 3, 2); wanted (B, H, N, d)"),
    (
        dict(q=GOOD["q"].double()),
        TypeError,
        "argument q has dtype torch.float64; wanted torch.float32 or torch.bfloat16 or torch.float16: convert"
        " with q.float()",
    ),
    (
        dict(k_latent=GOOD["k_latent"][:, None]),
        ValueError,
        "argument k_latent has shape (1, 1, 4, 3); wanted (B, N_k, L) with B = 1",
    ),
    (
        dict(v_latent=GOOD["v_latent"][:, :3]),
        ValueError,
        "argument v_latent has shape (1, 3, 3); wanted (B, N_k, L) with B = 1, N_k = 4, L = 3",
    ),
    (
        dict(w_q=GOOD["w_q"].mT),
        ValueError,
        "argument w_q has shape (1, 3, 2); wanted (H, d, L) with H = 1, d = 2, L = 3",
    ),
    (
        dict(w_v=GOOD["w_v"][:, :2]),
        ValueError,
        "argument w_v has shape (1, 2, 2); wanted (H, L, d) with H = 1, L = 3, d = 2",
    ),
    (dict(q=GOOD["q"].to("meta")), ValueError, "argument q is on meta; wanted cpu or cuda"),
    (
        dict(w_v=GOOD["w_v"].to("meta")),
        ValueError,
        "argument w_v is on meta; wanted cpu, where q is: move it with w_v.to(q.device)",
    ),
    (
        dict(k_latent=GOOD["k_latent"][:, :2], v_latent=GOOD["v_latent"][:, :2]),
        ValueError,
        "argument q has N = 3, k_latent N_k = 2; wanted no more queries than keys: they are those of the"
        " last tokens",
    ),
    (dict(q=GOOD["q"][:, :, :0]), ValueError, "argument q has N = 0; wanted at least 1"),
    (
        dict(q=torch.zeros(1, 1, 3, 129), w_q=torch.zeros(1, 129, 3), w_v=torch.zeros(1, 3, 129)),
        ValueError,
        "argument q has d = 129; wanted 1 to 128, the widest row of a kernel",
    ),
    (
        dict(q=torch.zeros(1, 1, 3, 0), w_q=torch.zeros(1, 0, 3), w_v=torch.zeros(1, 3, 0)),
        ValueError,
        "argument q has d = 0; wanted 1 to 128, the widest row of a kernel",
    ),
    (dict(window=-1), ValueError, "argument window is -1; wanted 0 or more"),
    (dict(window=1.5), TypeError, "argument window is 1.5; wanted a whole number"),
    (dict(alpha=math.nan), ValueError, "argument alpha is nan; wanted a finite float32, or a tensor of one"),
    (dict(alpha=1e39), ValueError, "argument alpha is 1e+39; wanted a finite float32, or a tensor of one"),
    (
        dict(alpha=torch.zeros(2)),
        ValueError,
        "argument alpha is torch.float32, (2,); wanted a number, or a tensor of one, torch.float32 or"
        " torch.bfloat16 or torch.float16",
    ),
    (dict(scale=math.inf), ValueError, "argument scale is inf; wanted a finite float32"),
    (
        dict(q_before=torch.zeros(1, 1, 2, 2)),
        ValueError,
        "argument q_before has P = 2; wanted at most N_k - N = 1",
    ),
]


@pytest.mark.parametrize(("wrong", "error", "message"), REFUSED, ids=[message for *_, message in REFUSED])
def test_refuses(wrong, error, message):
    with pytest.raises(error) as caught:
        latent_attention(**GOOD | wrong)
    assert str(caught.value) == message


def test_refuses_other_statistics():
    *tensors, d_o = inputs(SMALL)
    with pytest.raises(ValueError) as caught:
        latent_backward(*tensors, d_o, torch.zeros(1, 1, 2), d_o)
    assert (
        str(caught.value) == "argument log_sum has shape (1, 1, 2); wanted (B, H, N) with B = 1, H = 1, N = 3"
    )
