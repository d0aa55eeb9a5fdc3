"""Tests of the sliding windows of flash attention against PyTorch's attention with a banded mask.

They cover every kernel and dtype, gradients, decoding, the layer, error messages, and a GPU if available.
"""

from functools import partial

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from kernels import FusedAttention, attention, flash_attention, flash_attention_decode, warp_attention
from kernels.common.launch import simulated
from kernels.flash.forward import flash_forward
from kernels.flash.warp import warp_forward
from kernels.reference import scores

DEVICE = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
CAUSAL = pytest.mark.parametrize("causal", [False, True])
FORWARD = pytest.mark.parametrize("forward", [flash_forward, warp_forward])
ATTENTION = pytest.mark.parametrize("kernel", [flash_attention, warp_attention])
WINDOWS = [(0, 0), (3, 0), (2, 5), (-1, 1), (40, -1), (500, 500)]
# numbers of queries and keys: one, a partial tile, more queries than keys or the reverse, several blocks
SIZES = [(1, 1), (1, 40), (37, 37), (70, 33), (20, 100)]
ALLOWED = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def normal(seed, *shapes, device="cpu", dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]


def band(n, keys, window, causal, device="cpu"):
    """Return a mask (n, keys) of the keys that each query sees."""
    left, right = window
    seen = torch.ones(n, keys, dtype=torch.bool, device=device)
    seen = seen if left < 0 else seen.triu(-left)
    seen = seen if right < 0 else seen.tril(right)
    return seen.tril() if causal else seen


def right(o, log_sum, q, k, v, causal, window, scale=None):
    """Return whether (O, L) match PyTorch's attention with a banded mask, in float64.

    A query that sees no key must have O = 0 and L = -inf.
    """
    allowed, (q, k, v) = ALLOWED[q.dtype], (x.double() for x in (q, k, v))
    seen = band(q.shape[2], k.shape[2], window, causal, q.device)
    wanted = scaled_dot_product_attention(q, k, v, seen, scale=scale)
    wanted = torch.where(seen.any(1)[:, None], wanted, 0)
    sums = scores(q, k, scale=scale).masked_fill(~seen, -torch.inf).logsumexp(-1)
    same = torch.where(sums == log_sum, 0, sums - log_sum)  # -inf - -inf would be NaN.
    return (o.double() - wanted).abs().max() <= allowed and same.abs().max() <= max(1e-5, allowed)


@DEVICE
@CAUSAL
@FORWARD
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(("n", "keys"), SIZES)
def test_equals_a_banded_mask(forward, n, keys, window, causal, device):
    if device == "cpu" and forward is warp_forward and n * keys > 2000:
        forward = partial(forward, run=partial(simulated, engine="native"))
    q, k, v = normal(n + keys, (1, 2, n, 5), *[(1, 2, keys, 5)] * 2, device=device)
    assert right(*forward(q, k, v, causal, window=window), q, k, v, causal, window)


def sixteen_bits():
    """Return sizes just below and above blocks of 128 queries and tiles of 64 keys, or 32 for d > 64.

    Without a GPU, a CI run tests only bfloat16.
    """
    for n, keys, d, window, causal in (
        (1, 1, 8, (0, 0), True),
        (140, 140, 64, (3, 0), True),
        (140, 130, 64, (2, 70), False),
        (140, 10, 8, (5, 1), False),
        (20, 100, 128, (-1, 40), False),
        (140, 140, 128, (100, -1), True),
        (130, 130, 40, (500, 500), False),
    ):
        for dtype in (torch.bfloat16, torch.float16):
            rare = dtype is torch.float16 or n * d > 140 * 64
            case = n, keys, d, window, causal, dtype
            yield pytest.param(*case, "cpu", marks=[pytest.mark.nightly] if rare else [])
            yield pytest.param(*case, "cuda", marks=pytest.mark.gpu)


@pytest.mark.parametrize(("n", "keys", "d", "window", "causal", "dtype", "device"), list(sixteen_bits()))
def test_on_tensor_cores(n, keys, d, window, causal, dtype, device):
    q, k, v = normal(d, (1, 1, n, d), *[(1, 1, keys, d)] * 2, device=device, dtype=dtype)
    assert right(*flash_forward(q, k, v, causal, window=window), q, k, v, causal, window)


@DEVICE
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_negative_scale(dtype, device):
    q, k, v = normal(7, *[(1, 1, 20, 8)] * 3, device=device, dtype=dtype)
    assert right(*flash_forward(q, k, v, False, -0.5, window=(4, 2)), q, k, v, False, (4, 2), -0.5)


@pytest.mark.parametrize(
    ("forward", "dtype", "first"),
    [
        (flash_forward, torch.float32, 64),
        (warp_forward, torch.float32, 35),
        (flash_forward, torch.bfloat16, 128),
    ],
)
def test_a_block_reads_only_tiles_that_it_sees(forward, dtype, first):
    """Fill the first 32 keys with NaN. Blocks of queries starting at `first` do not see these keys."""
    q, k, v = normal(8, *[(1, 1, first + 10, 8)] * 3, dtype=dtype)
    k[:, :, :32], v[:, :, :32] = torch.nan, torch.nan
    o, log_sum = forward(q, k, v, window=(2, 0), run=partial(simulated, engine="native"))
    k[:, :, :32], v[:, :, :32] = 0, 0
    wanted = attention(q.double(), k.double(), v.double(), True, window=(2, 0))
    assert log_sum[0, 0, first:].isfinite().all()
    assert (o - wanted)[0, 0, first:].abs().max() <= ALLOWED[dtype]


def test_no_window_and_a_window_without_limits_are_the_same():
    q, k, v = normal(9, *[(1, 1, 37, 8)] * 3)
    for kernel in (flash_attention, warp_attention):
        assert torch.equal(kernel(q, k, v), kernel(q, k, v, window=(-1, -1)))


@DEVICE
@CAUSAL
@ATTENTION
@pytest.mark.parametrize("window", [(0, 0), (3, 2), (-1, 1)])
def test_gradients_equal_those_of_a_banded_mask(kernel, causal, window, device):
    """Compare gradients with more queries than keys, so that some queries see no key."""
    shapes = (1, 2, 9, 4), (1, 2, 5, 4), (1, 2, 5, 4), (1, 2, 9, 4)
    *leaves, d_o = (x.requires_grad_() for x in normal(10, *shapes, device=device))
    got = torch.autograd.grad(kernel(*leaves, causal, window=window), leaves, d_o)
    doubles = [x.detach().double().requires_grad_() for x in leaves]
    seen = band(9, 5, window, causal, device)
    o = scaled_dot_product_attention(*doubles, seen)[:, :, seen.any(1)]
    wanted = torch.autograd.grad(o, doubles, d_o.double()[:, :, seen.any(1)])
    assert all((a - b).abs().max() <= 1e-5 for a, b in zip(got, wanted))


def test_the_operator_is_one_that_torch_compile_can_trace():
    leaves = [x.requires_grad_() for x in normal(11, *[(1, 1, 5, 4)] * 3)]
    torch.library.opcheck(torch.ops.attention_course.flash_forward.default, (*leaves, True, 0.5, [2, 0]))


@DEVICE
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("keys", "left"), [(1, 0), (50, 0), (50, 6), (50, 49), (50, 500), (50, -1)])
def test_one_token(keys, left, dtype, device):
    """Decode one token, which equals the last row of the complete sequence.

    Keys outside the window must not be read.
    """
    q, k, v = normal(12, *[(1, 2, keys, 8)] * 3, device=device, dtype=dtype)
    wanted = attention(*(x.double() for x in (q, k, v)), causal=True, window=(left, 0))[:, :, -1:]
    if left >= 0:
        k[:, :, : max(0, keys - 1 - left)] = torch.nan
    o = flash_attention_decode(q[:, :, -1:], k, v, splits=2, window=(left, -1))
    assert (o.double() - wanted).abs().max() <= ALLOWED[dtype]


@DEVICE
@pytest.mark.parametrize("kernel", [flash_attention, warp_attention])
def test_the_layer_equals_multihead_attention_with_a_mask(kernel, device):
    theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True).to(device)
    ours = FusedAttention.from_multihead_attention(theirs, attention=kernel, window=(2, 1))
    (x,) = normal(13, (2, 9, 8), device=device)
    for causal in (False, True):
        hidden = ~band(9, 9, (2, 1), causal, device)
        wanted, _ = theirs(x, x, x, attn_mask=hidden, need_weights=False)
        assert (ours(x, causal) - wanted).abs().max() <= 1e-5


@pytest.mark.parametrize(
    ("window", "error", "message"),
    [
        (4, TypeError, r"argument window is 4; wanted \(left, right\), .*: \(3, 0\)"),
        ((4,), TypeError, r"argument window is \(4,\); wanted \(left, right\)"),
        ("44", TypeError, "argument window is '44'; wanted"),
        ((4.0, 0), TypeError, r"argument window is \(4.0, 0\); .*: both whole numbers"),
        ((True, 0), TypeError, "both whole numbers"),
        ((4, -2), ValueError, r"argument window is \(4, -2\); .*: both at least -1"),
    ],
)
def test_errors_say_what_is_wanted(window, error, message):
    x = torch.zeros(1, 1, 3, 4)
    calls = [
        *(partial(kernel, x, x, x) for kernel in (flash_attention, warp_attention, flash_forward)),
        partial(flash_attention_decode, x[:, :, :1], x, x),
    ]
    for call in calls:
        with pytest.raises(error, match=message):
            call(window=window)
