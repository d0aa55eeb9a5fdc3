"""Tests of FusedAttention and ConvAttention against nn.MultiheadAttention and the reference, including
decoding with a cache."""

import pytest
import torch
from torch import nn

from kernels import ConvAttention, FusedAttention, KVCache, flash_attention, reference, warp_attention

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


# ConvAttention ----------------------------------------------------------------------------------------------


def conv_layer(kernel_size=(3, 3), seed=2, device="cpu", tokens=7, batch=1, embed=4, heads=2, **options):
    """Return (layer with taps that are not the identity, input)."""
    torch.manual_seed(seed)
    layer = ConvAttention(embed, heads, kernel_size, **options)
    with torch.no_grad():
        layer.taps += 0.3 * torch.randn_like(layer.taps)
    return layer.to(device), torch.randn(batch, tokens, embed).to(device)


def oracle(layer):
    """Return the same layer with the reference functions, in float64 on the CPU."""
    twin = ConvAttention(
        layer.in_proj_weight.shape[1],
        layer.num_heads,
        layer.taps.shape[1:],
        layer.in_proj_bias is not None,
        layer.causal,
        attention=reference.conv_attention,
        decode=reference.conv_attention_decode,
    ).double()
    twin.load_state_dict(layer.state_dict())
    return twin


def worst(got, wanted):
    return (got.double().cpu() - wanted.double().cpu()).abs().max().item()


def decode(layer, x, prefilled=0, capacity=64):
    """Return the layer's output for x, decoded token by token after a prefill of the first tokens."""
    cache = layer.new_cache(x.shape[0], capacity)
    rows = [layer.prefill(x[:, :prefilled], cache)] if prefilled else []
    return torch.cat(rows + [layer.step(x[:, i : i + 1], cache) for i in range(prefilled, x.shape[1])], dim=1)


@DEVICE
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_a_new_conv_layer_is_multihead_attention(bias, causal, device):
    layer, x = layer_and_input(bias, device, batch=1)
    future = torch.ones(9, 9, dtype=torch.bool, device=device).triu(1) if causal else None
    wanted, _ = layer(x, x, x, attn_mask=future, need_weights=False)
    conv = ConvAttention.from_multihead_attention(layer, kernel_size=(4, 5), causal=causal)
    assert worst(conv(x), wanted) <= 1e-5


@DEVICE
@pytest.mark.parametrize("causal", [True, False])
def test_conv_attention_is_the_oracles(causal, device):
    layer, x = conv_layer((2, 4), causal=causal, device=device)
    assert worst(layer(x), oracle(layer)(x.double().cpu())) <= 1e-5


def test_a_conv_layers_state_comes_back():
    layer, x = conv_layer(attention=reference.conv_attention)
    other, _ = conv_layer(seed=3, attention=reference.conv_attention)
    assert not torch.equal(other(x), layer(x))
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), layer(x))
    assert layer.state_dict().keys() == nn.MultiheadAttention(4, 2).state_dict().keys() | {"taps"}


@DEVICE
def test_gradients_reach_a_conv_layers_parameters(device):
    layer, x = conv_layer(tokens=4, device=device)
    layer(x).square().sum().backward()
    twin = oracle(layer)
    twin(x.double().cpu()).square().sum().backward()
    wanted = dict(twin.named_parameters())
    for name, parameter in layer.named_parameters():
        assert worst(parameter.grad, wanted[name].grad) <= 1e-4, name


# Token by token ---------------------------------------------------------------------------------------------


@DEVICE
@pytest.mark.parametrize("prefilled", [0, pytest.param(1, marks=pytest.mark.nightly), 5])
def test_steps_are_the_rows_of_forward(prefilled, device):
    """Decode with the kernels, from an empty cache and from prefilled ones."""
    layer, x = conv_layer((3, 4), device=device)
    assert worst(decode(layer, x, prefilled), oracle(layer)(x.double().cpu())) <= 1e-5


@pytest.mark.parametrize("prefilled", [0, 1, 2, 30, 64, 65])
@pytest.mark.parametrize("kernel_size", [(1, 1), (6, 11), (15, 15), (2, 4)])
def test_steps_with_any_taps_through_a_growing_cache(kernel_size, prefilled):
    """Decode with the reference functions in float64, because this test is about the cache."""
    layer, x = conv_layer(kernel_size, tokens=70, batch=2)
    layer, x = oracle(layer), x.double()
    assert worst(decode(layer, x, prefilled, capacity=3), layer(x)) <= 1e-12


@pytest.mark.gpu
def test_a_long_sequence_step_by_step_on_a_gpu():
    layer, x = conv_layer((6, 11), device="cuda", tokens=300, batch=2, embed=96)
    with torch.no_grad():
        assert worst(decode(layer, x, 100, capacity=8), layer(x)) <= 1e-5


def test_a_step_needs_no_graph():
    layer, x = conv_layer(attention=reference.conv_attention, decode=reference.conv_attention_decode)
    assert not decode(layer, x, 3).requires_grad


def test_a_cache_grows_and_keeps_what_it_holds():
    cache = KVCache(1, 2, 4, window=3, capacity=2)
    tokens = torch.randn(3, 1, 2, 9, 4)
    for first, last in [(0, 1), (1, 2), (2, 7), (7, 9)]:
        cache.append(*tokens[:, :, :, first:last])
    assert (cache.length, cache.capacity) == (9, 16)
    assert torch.equal(cache.queries, tokens[0, :, :, 6:])
    assert torch.equal(cache.keys, tokens[1]) and torch.equal(cache.values, tokens[2])


def test_a_token_in_a_cache_with_room_moves_nothing():
    cache = KVCache(1, 1, 2, window=2, capacity=4)
    place = cache.buffers.data_ptr()
    for _ in range(4):
        cache.append(*torch.ones(3, 1, 1, 1, 2))
    assert cache.buffers.data_ptr() == place


# Invalid arguments ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(kernel_size=(0, 3)), "argument kernel_size is (0, 3); wanted (c_q, c_k), each from 1 to 15"),
        (dict(kernel_size=(3, 16)), "argument kernel_size is (3, 16); wanted (c_q, c_k), each from 1 to 15"),
        (dict(kernel_size=(3,)), "argument kernel_size is (3,); wanted (c_q, c_k), each from 1 to 15"),
        (dict(embed_dim=258), "argument embed_dim is 258, 129 a head; wanted at most 128 a head"),
        (dict(num_heads=3), "argument embed_dim is 4; wanted a multiple of num_heads, 3"),
    ],
)
def test_refuses_such_a_conv_layer(options, message):
    with pytest.raises(ValueError) as caught:
        ConvAttention(**dict(embed_dim=4, num_heads=2) | options)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("cache", "message"),
    [
        (KVCache(2, 2, 2, 3), "argument cache has batch = 2; wanted 1: make it with layer.new_cache(1)"),
        (KVCache(1, 1, 2, 3), "argument cache has heads = 1; wanted 2: make it with layer.new_cache(1)"),
        (KVCache(1, 2, 3, 3), "argument cache has head_dim = 3; wanted 2: make it with layer.new_cache(1)"),
        (KVCache(1, 2, 2, 4), "argument cache has window = 4; wanted 3: make it with layer.new_cache(1)"),
        (
            KVCache(1, 2, 2, 3, device="meta"),
            "argument cache has device = meta; wanted cpu: make it with layer.new_cache(1)",
        ),
        (
            KVCache(1, 2, 2, 3, dtype=torch.float64),
            "argument cache has dtype = torch.float64; wanted torch.float32: make it with layer.new_cache(1)",
        ),
    ],
)
@pytest.mark.parametrize("way", ["step", "prefill"])
def test_refuses_another_cache(way, cache, message):
    layer, x = conv_layer()
    with pytest.raises(ValueError) as caught:
        getattr(layer, way)(x[:, :1], cache)
    assert (str(caught.value), cache.length) == (message, 0)


def test_refuses_to_prefill_what_is_not_empty():
    layer, x = conv_layer(attention=reference.conv_attention)
    cache = layer.new_cache(1)
    layer.prefill(x, cache)
    with pytest.raises(ValueError) as caught:
        layer.prefill(x, cache)
    assert (
        str(caught.value)
        == "argument cache has length 7; wanted an empty one: make it with new_cache, or take one token at"
        " a time"
    )


@pytest.mark.parametrize("tokens", [0, 2])
def test_refuses_a_step_of_several_tokens(tokens):
    layer, x = conv_layer()
    with pytest.raises(ValueError) as caught:
        layer.step(x[:, :tokens], layer.new_cache(1))
    assert (
        str(caught.value)
        == f"argument x has {tokens} tokens; wanted 1: a step takes one, and prefill several"
    )


def test_refuses_to_decode_what_sees_later_tokens():
    layer, x = conv_layer(causal=False)
    with pytest.raises(ValueError, match="^the layer has causal = False; wanted True"):
        layer.step(x[:, :1], layer.new_cache(1))


def test_a_cache_refuses_other_shapes_and_sizes():
    with pytest.raises(ValueError) as caught:
        KVCache(1, 2, 4, 3).append(*torch.zeros(3, 1, 2, 5, 3))
    assert (
        str(caught.value)
        == "argument q has shape (1, 2, 5, 3); wanted (B, H, n, head_dim) with B = 1, H = 2, head_dim = 4"
    )
    with pytest.raises(ValueError) as caught:
        KVCache(1, 2, 4, 3, capacity=0)
    assert str(caught.value) == "argument capacity is 0; wanted at least 1"
