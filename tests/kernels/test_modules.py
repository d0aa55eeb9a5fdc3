"""FusedAttention against nn.MultiheadAttention."""

import pytest
import torch
from torch import nn

from kernels import FusedAttention, flash_attention, warp_attention

DEVICE = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def layer_and_input(bias=True, device="cpu", batch=2, tokens=9):
    torch.manual_seed(1)
    layer = nn.MultiheadAttention(24, 3, bias=bias, batch_first=True)
    if bias:
        nn.init.normal_(layer.in_proj_bias)
        nn.init.normal_(layer.out_proj.bias)
    return layer.to(device), torch.randn(batch, tokens, 24).to(device)


@DEVICE
@pytest.mark.parametrize("attention", [warp_attention, flash_attention])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_equals_multihead_attention(attention, bias, causal, device):
    layer, x = layer_and_input(bias, device)
    future = torch.ones(9, 9, dtype=torch.bool, device=device).triu(1) if causal else None
    wanted, _ = layer(x, x, x, attn_mask=future, need_weights=False)
    error = (FusedAttention.from_multihead_attention(layer, attention=attention)(x, causal) - wanted).abs()
    assert error.max().item() <= 1e-4 and error.mean().item() <= 1e-6


@pytest.mark.parametrize("bias", [True, False])
def test_state_dicts_are_interchangeable(bias):
    layer, _ = layer_and_input(bias)
    fused = FusedAttention(24, 3, bias)
    assert fused.state_dict().keys() == layer.state_dict().keys()
    fused.load_state_dict(layer.state_dict())
    layer.load_state_dict(fused.state_dict())


def test_gradients_reach_every_parameter():
    layer, x = layer_and_input(batch=1, tokens=4)
    fused = FusedAttention.from_multihead_attention(layer)
    fused(x).square().sum().backward()
    layer(x, x, x, need_weights=False)[0].square().sum().backward()
    wanted = dict(layer.named_parameters())
    for name, parameter in fused.named_parameters():
        assert (parameter.grad - wanted[name].grad).abs().max().item() <= 1e-4, name


def test_the_weights_are_copies():
    layer, _ = layer_and_input()
    fused = FusedAttention.from_multihead_attention(layer)
    with torch.no_grad():
        fused.out_proj.bias.zero_()
    assert layer.out_proj.bias.abs().min() > 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(dropout=0.5), "dropout = 0.5; wanted 0.0"),
        (dict(kdim=7), "kdim = 7; wanted 24"),
        (dict(vdim=7), "vdim = 7; wanted 24"),
        (dict(add_bias_kv=True), "add_bias_kv = True; wanted False"),
        (dict(add_zero_attn=True), "add_zero_attn = True; wanted False"),
    ],
)
def test_refuses_a_layer_that_does_more(options, message):
    with pytest.raises(ValueError) as caught:
        FusedAttention.from_multihead_attention(nn.MultiheadAttention(24, 3, **options))
    assert str(caught.value) == f"the nn.MultiheadAttention has {message}"


def test_refuses_heads_that_do_not_divide():
    with pytest.raises(ValueError) as caught:
        FusedAttention(10, 3)
    assert str(caught.value) == "argument embed_dim is 10; wanted a multiple of num_heads, 3"


@pytest.mark.parametrize("shape", [(5, 24), (2, 5, 23)])
def test_refuses_another_input(shape):
    with pytest.raises(ValueError) as caught:
        FusedAttention(24, 3)(torch.zeros(shape))
    assert str(caught.value) == f"argument x has shape {shape}; wanted (B, N, 24)"
