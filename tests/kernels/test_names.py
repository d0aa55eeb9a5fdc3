"""Tests of the options that are named as in PyTorch: is_causal, enable_gqa, return_lse."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from kernels import conv_attention, flash_attention, multi_token_attention, reference, warp_attention

Q, K, V = (torch.randn(1, heads, 3, 2, generator=torch.Generator().manual_seed(heads)) for heads in (2, 1, 1))
W = torch.randn(2, 2, 3, generator=torch.Generator().manual_seed(0))
ATTENTIONS = {
    "flash": flash_attention,
    "warp": warp_attention,
    "conv": lambda q, k, v, **names: conv_attention(q, k, v, W, **names),
    "multi-token": lambda q, k, v, **names: multi_token_attention(q, k, v, W, **names),
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_grouped_heads(name):
    """Share a head of k and v between two heads of q. Results and gradients must equal those of repeated
    heads."""
    attend, leaves = ATTENTIONS[name], [x.clone().requires_grad_() for x in (Q, K, V)]
    q, k, v = leaves
    got = attend(q, k, v, is_causal=False, enable_gqa=True)
    wanted = attend(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1), causal=False)
    assert torch.equal(got, wanted)
    for g, w in zip(*(torch.autograd.grad(o.sum(), leaves) for o in (got, wanted)), strict=True):
        assert g.shape == w.shape and (g - w).abs().max() <= 1e-6


@pytest.mark.parametrize("causal", [True, False])
def test_flash_attention_takes_the_names_of_pytorch(causal):
    wanted = scaled_dot_product_attention(Q, K, V, is_causal=causal, scale=0.3, enable_gqa=True)
    got = flash_attention(Q, K, V, is_causal=causal, scale=0.3, enable_gqa=True)
    assert (got - wanted).abs().max() <= 1e-6


@pytest.mark.parametrize("name", ["flash", "warp", "conv"])
def test_log_sum_exp(name):
    """Return the log-sum-exp of each query in float32 and without a gradient. O keeps its gradient."""
    k, v = (x.repeat_interleave(2, 1) for x in (K, V))
    o, log_sum = ATTENTIONS[name](Q.clone().requires_grad_(), k, v, return_lse=True)
    q, k = Q.double(), k.double()
    scores = (
        reference.conv_scores(q, k, W.double()) if name == "conv" else reference.scores(q, k, causal=True)
    )
    wanted = scores.logsumexp(-1)
    assert (log_sum - wanted).abs().max() <= 1e-5 and log_sum.dtype == torch.float32
    assert o.requires_grad and not log_sum.requires_grad


@pytest.mark.parametrize("name", ATTENTIONS)
def test_heads_that_do_not_divide(name):
    with pytest.raises(ValueError, match="have 3 and 3 heads; wanted equally many, a divisor of H = 2"):
        ATTENTIONS[name](Q, torch.zeros(1, 3, 3, 2), torch.zeros(1, 3, 3, 2), enable_gqa=True)
    with pytest.raises(ValueError, match=r"argument k has shape \(1, 1, 3, 2\); wanted"):
        ATTENTIONS[name](Q, K, V)
