"""Tests of flash_attention_decode against the last row of causal attention, and on a GPU if available."""

import pytest
import torch

from kernels import attention, flash_attention_decode

DEVICE = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
ALLOWED = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}


def normal(seed, *shapes, device="cpu", dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]


def row(q, k, v, scale=None):
    """Return the last row of causal attention, computed in float64."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.double().repeat_interleave(group, dim=1) for x in (k, v))
    return attention(q.double(), k, v, scale=scale)


def close(got, wanted, dtype=torch.float32):
    return got.dtype == dtype and (got.double() - wanted).abs().max().item() <= ALLOWED[dtype]


@DEVICE
@pytest.mark.parametrize(
    ("keys", "d", "splits"), [(1, 1, 1), (1, 8, 9), (7, 33, 1), (33, 64, 2), (130, 128, 3), (70, 5, 100)]
)
def test_equals_the_last_row(keys, d, splits, device):
    q, k, v = normal(keys, (2, 2, 1, d), *[(2, 2, keys, d)] * 2, device=device)
    assert close(flash_attention_decode(q, k, v, splits=splits), row(q, k, v))


@DEVICE
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_in_16_bits(dtype, device):
    q, k, v = normal(1, (1, 2, 1, 40), *[(1, 2, 50, 40)] * 2, device=device, dtype=dtype)
    assert close(flash_attention_decode(q, k, v, 0.3, 2), row(q, k, v, 0.3), dtype)


@DEVICE
def test_reads_a_cache_where_it_is_and_shares_its_heads(device):
    q, cache = normal(2, (2, 6, 1, 8), (2, 2, 2, 64, 8), device=device)
    k, v = cache[:, :, :, :37].unbind(0)
    cache[:, :, :, 37:] = torch.nan
    assert close(flash_attention_decode(q, k, v, enable_gqa=True), row(q, k, v))


@DEVICE
def test_scores_that_grow_and_fall(device):
    q, k, v = normal(3, (1, 1, 1, 4), *[(1, 1, 64, 4)] * 2, device=device)
    for order in (1, -1):
        ramp = torch.linspace(-400, 400, 64, device=device) * order
        k[..., 0], q[..., 0] = ramp, 1
        assert close(flash_attention_decode(q, k, v, 1.0, 2), row(q, k, v, 1.0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(q=torch.zeros(1, 2, 2, 4)), r"argument q has shape \(1, 2, 2, 4\); wanted \(B, H, 1, d\)"),
        (dict(k=torch.zeros(1, 2, 0, 4), v=torch.zeros(1, 2, 0, 4)), "argument k has N_k = 0"),
        (dict(k=torch.zeros(1, 1, 3, 4)), "argument k has shape .* with B = 1, H = 2"),
        (dict(splits=0), "argument splits is 0; wanted at least 1"),
        (
            dict(k=torch.zeros(1, 3, 3, 4), v=torch.zeros(1, 3, 3, 4), enable_gqa=True),
            "k and v have 3 heads; wanted a divisor of H = 2",
        ),
    ],
)
def test_errors_say_what_is_wanted(change, message):
    given = dict(q=torch.zeros(1, 2, 1, 4), k=torch.zeros(1, 2, 3, 4), v=torch.zeros(1, 2, 3, 4)) | change
    with pytest.raises(ValueError, match=message):
        flash_attention_decode(**given)
