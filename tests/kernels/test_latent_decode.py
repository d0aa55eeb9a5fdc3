"""Tests of latent_attention_decode against the last row of the reference, of LatentAttention token by token,
and on a GPU if available."""

import functools
import math

import pytest
import torch

from kernels import LatentAttention, LatentCache, latent_attention_decode, reference
from kernels.common.launch import simulated

DEVICE = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def worst(got, wanted):
    return (got.double().cpu() - wanted.double().cpu()).abs().max().item()


def inputs(seed, batch, heads, rows, keys, d, latent, device="cpu"):
    """Return q_window, k_latent, v_latent, w_q, w_v, with scores of about 1."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*sizes, over=1):
        return torch.randn(*sizes, generator=generator).to(device) / over**0.5

    latents = normal(batch, keys, latent), normal(batch, keys, latent)
    return (
        normal(batch, heads, rows, d),
        *latents,
        normal(heads, d, latent, over=d),
        normal(heads, latent, d, over=latent),
    )


def right(tensors, *terms, **options):
    """Return whether the last row matches the complete forward pass in float64."""
    wanted = reference.latent_attention_decode(*(x.double() for x in tensors), *terms)
    return worst(latent_attention_decode(*tensors, *terms, **options), wanted) <= 1e-5


def on_cpu(*launch, engine="native", **options):
    report = simulated(*launch, engine=engine, **options)
    assert not report.findings, report.findings
    assert engine != "native" or report.notes == ("compiled",)


def test_the_eager_last_row_is_the_last_row():
    q, *shared = (x.double() for x in inputs(1, 2, 3, 7, 7, 4, 5))
    for window in (0, 1, 4, 100):
        whole = reference.latent_attention(q, *shared, 0.7, window)[:, :, -1:]
        got = reference.latent_attention_decode(q[:, :, -max(1, window) :], *shared, 0.7, window)
        assert worst(got, whole) <= 1e-14


# The newest key is then a whole array, which has another Numba type and needs another kernel.
ONE_KEY = pytest.param(1, 1, marks=pytest.mark.nightly)


@pytest.mark.parametrize("splits", [1, 2, 3, 9])
@pytest.mark.parametrize(("keys", "window"), [ONE_KEY, (33, 0), (50, 3), (70, 40), (96, 1000)])
def test_every_split(splits, keys, window):
    """Decode with every number of splits, some of which leave splits without keys."""
    assert right(
        inputs(keys, 2, 3, min(keys, max(1, window)), keys, 5, 4), 0.7, window, splits=splits, run=on_cpu
    )


@pytest.mark.nightly
@pytest.mark.parametrize("heads", [1, 8, 9, 16, 17, 40])
@pytest.mark.parametrize(("d", "latent"), [(3, 64), (128, 16), (20, 128)])
def test_every_width(heads, d, latent):
    assert right(inputs(heads, 1, heads, 20, 50, d, latent), -0.6, 20, splits=2, run=on_cpu)


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [1, 8, 9, 16, 17, 40])
@pytest.mark.parametrize(("d", "latent"), [(1, 1), (3, 64), (64, 64), (128, 16), (20, 128), (128, 128)])
@pytest.mark.parametrize(("keys", "window"), [(1, 1), (33, 0), (500, 64), (3000, 4000)])
def test_on_the_gpu(heads, d, latent, keys, window):
    tensors = inputs(heads, 2, heads, min(keys, max(window, 1)), keys, d, latent, "cuda")
    assert right(tensors, -0.6, window) and right(tensors, -0.6, window, splits=7)


@pytest.mark.parametrize("engine", ["fibers", "threads"])
def test_no_order_of_threads_changes_anything(engine):
    tensors = inputs(2, 1, 2, 2, 4, 2, 3)
    results = [
        latent_attention_decode(
            *tensors, 0.5, 2, splits=2, run=functools.partial(on_cpu, engine=engine, seed=seed)
        )
        for seed in range(3)
    ]
    assert all(torch.equal(result, results[0]) for result in results)


@DEVICE
def test_a_cache_is_read_where_it_is(device):
    """Decode from the filled parts of larger buffers without copying them or reading the rest."""
    q, k, v, *shared = inputs(3, 2, 2, 3, 11, 4, 3, device)
    buffer = torch.full((2, 2, 50, 3), math.nan, device=device)
    buffer[0, :, :11], buffer[1, :, :11] = k, v
    seen = []
    latent_attention_decode(q, *buffer[:, :, :11], *shared, 0.5, 3, run=lambda *launch: seen.append(launch))
    assert [tensor.data_ptr() for tensor in seen[1][4:6]] == [part.data_ptr() for part in buffer]
    assert right((q, *buffer[:, :, :11], *shared), 0.5, 3)


@DEVICE
def test_alpha_as_a_tensor(device):
    tensors = inputs(4, 1, 2, 3, 9, 4, 3, device)
    got = latent_attention_decode(*tensors, torch.tensor(0.7, device=device), 3)
    assert torch.equal(got, latent_attention_decode(*tensors, 0.7, 3))


@pytest.mark.gpu
def test_a_cuda_graph_replays_it():
    tensors = inputs(5, 1, 16, 64, 300, 64, 64, "cuda")
    wanted = latent_attention_decode(*tensors, 0.5, 64)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = latent_attention_decode(*tensors, 0.5, 64)
    o.zero_()
    graph.replay()
    assert torch.equal(o, wanted)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            dict(q_window=torch.zeros(1, 2, 9, 2)),
            "argument q_window has N = 9, k_latent N_k = 4; wanted no more queries than keys: they are"
            " those of the last tokens",
        ),
        (dict(splits=0), "argument splits is 0; wanted at least 1"),
        (dict(window=-1), "argument window is -1; wanted 0 or more"),
    ],
)
def test_refuses(wrong, message):
    good = dict(zip(("q_window", "k_latent", "v_latent", "w_q", "w_v"), inputs(6, 1, 2, 1, 4, 2, 3)))
    with pytest.raises(ValueError) as caught:
        latent_attention_decode(**good | wrong)
    assert str(caught.value) == message


# The layer --------------------------------------------------------------------------------------------------

EAGER = dict(attention=reference.latent_attention, decode=reference.latent_attention_decode)


def layer_and_input(device="cpu", tokens=9, **options):
    torch.manual_seed(1)
    layer = LatentAttention(6, 2, 4, window=3, alpha=0.5, **options).to(device)
    return layer, torch.randn(2, tokens, 6, device=device)


@pytest.mark.parametrize("pieces", [[9], [1] * 9, [4, 1, 3, 1]])
def test_with_a_cache_as_without(pieces):
    """Decode after a prefill and step by step, in one or several pieces, beyond the cache's initial
    capacity."""
    layer, x = layer_and_input(**EAGER)
    cache, wanted, rows = layer.new_cache(2, capacity=2), layer(x), []
    for piece in x.split(pieces, dim=1):
        rows.append(layer.step(piece, cache) if piece.shape[1] == 1 else layer.prefill(piece, cache))
    assert worst(torch.cat(rows, 1), wanted) <= 1e-6
    assert cache.length == 9 and cache.queries.shape[2] == 3


@DEVICE
def test_the_kernels_layer_is_the_eager_one(device):
    layer, x = layer_and_input(device, tokens=3)
    eager, _ = layer_and_input(device, **EAGER)
    eager.load_state_dict(layer.state_dict())
    assert worst(layer(x), eager(x)) <= 1e-5
    layer(x).square().sum().backward()
    eager(x).square().sum().backward()
    for (name, got), wanted in zip(layer.named_parameters(), eager.parameters(), strict=True):
        assert worst(got.grad, wanted.grad) <= 1e-4, name
    cache = layer.new_cache(2)
    first = layer.prefill(x[:, :2], cache)
    assert worst(torch.cat([first, layer.step(x[:, 2:], cache)], 1), eager(x)) <= 1e-5


def test_a_cache_holds_two_latents_a_token():
    cache = LatentCache(batch=2, heads=8, head_dim=16, latent_dim=4, capacity=10)
    assert cache.buffers.numel() == 2 * 10 * 2 * 4


def test_without_a_window_alpha_is_no_parameter():
    assert "alpha" not in dict(LatentAttention(6, 2, 4).named_parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(embed_dim=7), "argument embed_dim is 7; wanted a multiple of num_heads, 2"),
        (dict(latent_dim=129), "latent_dim is 129; wanted 1 to 128"),
        (dict(embed_dim=258), "embed_dim / num_heads is 129; wanted 1 to 128"),
        (dict(window=-1), "argument window is -1; wanted at least 0"),
        (dict(num_heads=0), "argument num_heads is 0; wanted at least 1"),
    ],
)
def test_the_layer_refuses(options, message):
    with pytest.raises(ValueError) as caught:
        LatentAttention(**dict(embed_dim=6, num_heads=2, latent_dim=4) | options)
    assert str(caught.value) == message


def test_another_layers_cache_is_refused():
    layer, x = layer_and_input(**EAGER)
    with pytest.raises(ValueError, match="^argument cache has latent_dim = 5; wanted 4: make it with"):
        layer.prefill(x, LatentCache(2, 2, 3, 5, 3))
    with pytest.raises(ValueError, match="^the layer has causal = False; wanted True"):
        unmasked, _ = layer_and_input(causal=False, **EAGER)
        unmasked.prefill(x, unmasked.new_cache(2))
    with pytest.raises(ValueError, match="^argument x has 9 tokens; wanted 1"):
        layer.step(x, layer.new_cache(2))
    with pytest.raises(
        ValueError,
        match=r"^argument q has shape \(1, 2, 1, 3\); wanted \(B, H, n, head_dim\) with B = 2, H = 2, ",
    ):
        layer.new_cache(2).append(*(torch.zeros(1, *sizes) for sizes in ((2, 1, 3), (1, 4), (1, 4))))


def tokens(n):
    """Return the queries and latents of n tokens, for the cache in the following tests."""
    return torch.randn(1, 2, n, 3), torch.randn(1, n, 4), torch.randn(1, n, 4)


@pytest.mark.parametrize(
    ("place", "wrong", "error", "message"),
    [
        (0, [1.0], TypeError, "argument q is a list; wanted a torch.Tensor"),
        (1, None, TypeError, "argument k_latent is a NoneType; wanted a torch.Tensor"),
        (
            2,
            torch.zeros(1, 2, 4, device="meta"),
            ValueError,
            "argument v_latent is on meta; wanted cpu, where cache is: move it with"
            " v_latent.to(cache.device)",
        ),
    ],
)
def test_a_refused_token_leaves_the_cache_as_it_was(place, wrong, error, message):
    cache, given = LatentCache(1, 2, 3, 4, window=3), list(tokens(2))
    cache.append(*tokens(1))
    before = [x.clone() for x in (cache.keys, cache.values, cache.queries)]
    given[place] = wrong
    with pytest.raises(error) as caught:
        cache.append(*given)
    assert str(caught.value) == message
    assert all(torch.equal(*pair) for pair in zip(before, (cache.keys, cache.values, cache.queries)))


def test_a_cache_holds_no_graph():
    cache = LatentCache(1, 2, 3, 4, window=3)
    cache.append(*(x.requires_grad_() for x in tokens(2)))
    assert not any(x.requires_grad for x in (cache.keys, cache.values, cache.queries))


@pytest.mark.parametrize("size", ["batch", "latent_dim", "window", "capacity"])
def test_sizes_are_whole_numbers(size):
    sizes = dict(batch=1, heads=2, head_dim=3, latent_dim=4)
    with pytest.raises(TypeError, match=f"^argument {size} is 1.5; wanted a whole number"):
        LatentCache(**sizes | {size: 1.5})
