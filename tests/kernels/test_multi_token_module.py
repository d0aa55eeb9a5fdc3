"""Tests of MultiTokenAttention against its operations by hand, token by token with a cache, and loaded from a
published checkpoint."""

import cmath
from functools import partial

import pytest
import torch
from torch.nn.functional import linear

from kernels import MultiTokenAttention, reference
from kernels.common import launch
from kernels.modules.multi_token import from_published, rotated

DEVICE = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
ORACLE = dict(attention=reference.multi_token_attention, decode=reference.multi_token_attention_decode)


@pytest.fixture(autouse=True)
def compiled(monkeypatch):
    """Compile the kernels on the CPU even for the smallest inputs."""
    monkeypatch.setitem(launch.RUNNERS, "cpu", partial(launch.simulated, engine="native"))


LAYERS = [
    dict(kernel_size=(3, 4), after_kernel_size=(2, 3), head_group=4, after_head_group=2, kv_heads=2),
    dict(kernel_size=None, after_kernel_size=(3, 1), after_head_group=4, norm=False),
    dict(kernel_size=(2, 3), after_kernel_size=None, gate=False, rotary_base=None, bias=True, kv_heads=1),
]


def layer_and_input(options, tokens=6, device="cpu", **more):
    """Return (layer whose parameters are not identities, input)."""
    torch.manual_seed(2)
    layer = MultiTokenAttention(16, 4, **options, **more)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return layer.to(device), torch.randn(2, tokens, 16).to(device)


def worst(got, wanted):
    return (got.double().cpu() - wanted.double().cpu()).abs().max().item()


@DEVICE
@pytest.mark.parametrize("options", LAYERS)
def test_equals_the_oracle(options, device):
    layer, x = layer_and_input(options, device=device)
    twin = MultiTokenAttention(16, 4, **options, **ORACLE).double()
    twin.load_state_dict(layer.state_dict())
    got, wanted = layer(x), twin(x.double().cpu())
    assert worst(got, wanted) <= 1e-5
    for y in (got, wanted):
        y.square().sum().backward()
    for (name, parameter), other in zip(layer.named_parameters(), twin.parameters()):
        assert worst(parameter.grad, other.grad) <= 1e-4 * max(1, other.grad.abs().max()), name


def test_a_new_layer_is_ordinary_attention_with_half_a_gate():
    layer = MultiTokenAttention(16, 4, head_group=4, norm=False, rotary_base=None, **ORACLE)
    x = torch.randn(1, 7, 16)
    q, k, v = layer.heads(x)
    wanted = layer.merged(reference.attention(q, k, v, causal=True)) / 2
    assert worst(layer(x), wanted) <= 1e-6


@pytest.mark.parametrize(
    "options, device",
    [
        (LAYERS[0], "cpu"),
        *(pytest.param(options, "cpu", marks=pytest.mark.nightly) for options in LAYERS[1:]),
        *(pytest.param(options, "cuda", marks=pytest.mark.gpu) for options in LAYERS),
    ],
)
@pytest.mark.parametrize("first", [0, 1, 4])
def test_token_by_token(options, first, device):
    layer, x = layer_and_input(options, tokens=7, device=device)
    wanted, cache = layer(x), layer.new_cache(2, capacity=2)
    rows = [layer.prefill(x[:, :first], cache)] if first else []
    rows += [layer.step(x[:, i : i + 1], cache) for i in range(first, 7)]
    assert cache.queries.shape[2] == min(7, layer.window)
    assert worst(torch.cat(rows, 1), wanted) <= 1e-5


@pytest.mark.parametrize(
    "device, dtype",
    [
        ("cpu", torch.float16),
        pytest.param("cpu", torch.bfloat16, marks=pytest.mark.nightly),  # takes long to compile
        pytest.param("cuda", torch.bfloat16, marks=pytest.mark.gpu),
    ],
)
def test_in_16_bits_and_under_autocast(device, dtype):
    """Check dtypes: outputs, gradients and decoded tokens have the dtype of the layer.

    Under autocast, gradients keep the dtype of the parameters.
    """
    exact, x = layer_and_input(LAYERS[0], tokens=7, device=device)
    wanted = exact(x)
    low = layer_and_input(LAYERS[0], device=device)[0].to(dtype)
    got, cache = low(x.to(dtype)), low.new_cache(2, capacity=2)
    rows = [low.prefill(x[:, :4].to(dtype), cache)]
    rows += [low.step(x[:, i : i + 1].to(dtype), cache) for i in range(4, 7)]
    with torch.autocast(device, dtype):
        cast, cache = exact(x), exact.new_cache(2, capacity=2)
        stepped = [exact.step(x[:, i : i + 1], cache) for i in range(7)]
    for y in (got, cast, torch.cat(rows, 1), torch.cat(stepped, 1)):
        assert y.dtype == dtype and worst(y, wanted) <= 0.05 * wanted.abs().max()
    for layer, y in ((low, got), (exact, cast)):
        y.float().square().sum().backward()
        assert all(p.grad.dtype == p.dtype and p.grad.isfinite().all() for p in layer.parameters())


def test_documents_are_each_alone():
    """Compare each document with a separate call. A rotary embedding depends only on distances, so a document
    may start at any position."""
    layer, x = layer_and_input(LAYERS[0], tokens=9, **ORACLE)
    got = layer(x, documents=[0, 4])
    assert worst(got, torch.cat([layer(x[:, :4]), layer(x[:, 4:])], 1)) <= 1e-5
    assert worst(got, layer(x)) > 1e-2


def test_rotation_by_hand():
    x = torch.randn(1, 1, 5, 6, dtype=torch.float64)
    got = rotated(x, 3, 100.0)
    for i in range(5):
        for pair in range(3):
            given, turned = (complex(*y[0, 0, i, 2 * pair : 2 * pair + 2].tolist()) for y in (x, got))
            assert abs(turned - given * cmath.rect(1, (3 + i) * 100.0 ** (-2 * pair / 6))) <= 1e-6


# The published layer ----------------------------------------------------------------------------------------


def published(generator, heads=4, d=4, embed=16, group=None):
    """Return a checkpoint with the published names and shapes."""

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64) / 3

    state = {f"{name}.weight": normal(heads * d, embed) for name in ("wq", "wk", "wv")}
    state |= {"wo.weight": normal(embed, heads * d), "mta_kernel": normal(heads, 1, 3, 5)}
    state |= {"mta_kernel_after_sm": normal(heads, 1, 2, 3), "wpsm.weight": normal(heads, heads)}
    state |= {"subln.weight": normal(d), "gate.weight": normal(1, d), "gate.bias": normal(1)}
    if group is None:
        return state | {"wposm.weight": normal(heads, heads)}
    return state | {"head_kernel": normal(heads // group, group, group)}


def by_hand(state, x, base):
    """Compute the published layer's output for one text, with an implementation independent of the
    package."""
    d, n = state["subln.weight"].shape[0], x.shape[0]
    places = torch.arange(n, dtype=torch.float64)[:, None] * base ** (-torch.arange(0, d, 2).double() / d)
    turn = torch.polar(torch.ones_like(places), places)[:, None]
    q, k, v = (linear(x, state[f"w{name}.weight"]).view(n, -1, d) for name in "qkv")
    q, k = (
        torch.view_as_real(torch.view_as_complex(y.reshape(n, -1, d // 2, 2)) * turn).flatten(2)
        for y in (q, k)
    )
    future = torch.ones(n, n, dtype=torch.bool).triu(1)

    def convolved(scores, kernel):
        c_q, c_k = kernel.shape[2:]
        padded = torch.nn.functional.pad(scores, ((c_k - 1) // 2, (c_k - 1) // 2, c_q - 1, 0))
        return torch.nn.functional.conv2d(padded[None], kernel, groups=len(kernel))[0]

    scores = torch.einsum("qhd,khd->hqk", q, k) / d**0.5
    scores = convolved(scores.masked_fill(future, 0), state["mta_kernel"])
    scores = linear(scores.transpose(0, 2), state["wpsm.weight"]).transpose(0, 2)
    shares = torch.softmax(scores.masked_fill(future, -torch.inf), -1)
    shares = convolved(shares, state["mta_kernel_after_sm"]).masked_fill(future, 0)
    if "wposm.weight" in state:
        shares = linear(shares.transpose(0, 2), state["wposm.weight"]).transpose(0, 2)
    else:
        groups = zip(shares.split(state["head_kernel"].shape[1]), state["head_kernel"])
        shares = torch.cat([(part.transpose(0, 2) @ kernel).transpose(0, 2) for part, kernel in groups])
    o = torch.einsum("hqk,khd->qhd", shares, v)
    o = o * torch.rsqrt(o.pow(2).mean(-1, keepdim=True) + 1e-5) * state["subln.weight"]
    o = o * torch.sigmoid(linear(o, state["gate.weight"], state["gate.bias"]))
    return linear(o.flatten(1), state["wo.weight"])


@pytest.mark.parametrize("group", [None, 4, 2])
def test_from_the_published_names(group):
    generator = torch.Generator().manual_seed(3)
    state = published(generator, group=group)
    layer = MultiTokenAttention(
        16, 4, (3, 5), (2, 3), head_group=4, after_head_group=group or 4, rotary_base=500.0, **ORACLE
    ).double()
    checkpoint = {f"layers.2.attention.{name}": x for name, x in state.items()} | {"other": torch.zeros(1)}
    layer.load_state_dict(from_published(checkpoint, "layers.2.attention."))
    x = torch.randn(9, 16, generator=generator, dtype=torch.float64)
    assert worst(layer(x[None])[0], by_hand(state, x, 500.0)) <= 1e-6


def test_what_the_published_layer_has_not():
    with pytest.raises(ValueError, match=r"the state_dict has 'a.wz'; wanted one of a.\(wq.weight, "):
        from_published({"a.wz": torch.zeros(1)}, "a.")
    with pytest.raises(
        ValueError, match=r"'gate.weight' has shape \(4, 4\); wanted \(1, d\), a gate by head"
    ):
        from_published({"gate.weight": torch.zeros(4, 4)})
    with pytest.raises(ValueError, match=r"argument prefix is 'b.', with which no name"):
        from_published({"a.wq.weight": torch.zeros(4, 4)}, "b.")
    with pytest.raises(ValueError, match=r"'head_kernel' is a second after_head_map; wanted one of the two"):
        from_published({"wposm.weight": torch.eye(2), "head_kernel": torch.eye(2)[None]})


# Invalid arguments ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, words",
    [
        (dict(embed_dim=10, num_heads=3), "argument embed_dim is 10; wanted a multiple of num_heads, 3"),
        (
            dict(embed_dim=8, num_heads=4, kv_heads=3),
            "argument kv_heads is 3; wanted a divisor of num_heads, 4",
        ),
        (dict(embed_dim=8, num_heads=2, head_group=3), "argument head_group is 3; wanted a divisor of"),
        (
            dict(embed_dim=8, num_heads=2, after_kernel_size=(16, 1)),
            r"after_kernel_size is \(16, 1\); wanted",
        ),
        (dict(embed_dim=8, num_heads=2, kernel_size=3), r"argument kernel_size is 3; wanted \(c_q, c_k\)"),
        (
            dict(embed_dim=64, num_heads=64, head_dim=2, head_group=64),
            "argument head_group is 64; wanted .*32",
        ),
        (dict(embed_dim=8, num_heads=2, rotary_base=0), "argument rotary_base is 0; wanted more than 0"),
        (dict(embed_dim=6, num_heads=2), "the head size is 3; wanted an even one for a rotary embedding"),
        (dict(embed_dim=8, num_heads=1, head_dim=130), "the head size is 130; wanted one from 1 to 128"),
    ],
)
def test_bad_sizes(options, words):
    with pytest.raises(ValueError, match=words):
        MultiTokenAttention(**options)


def test_bad_calls():
    layer, x = layer_and_input(LAYERS[0], **ORACLE)
    cache = layer.new_cache(2)
    with pytest.raises(ValueError, match=r"argument x has shape \(2, 6, 16\); wanted \(B, 1, E\)"):
        layer.step(x, cache)
    with pytest.raises(ValueError, match=r"argument cache has query_heads = 2; wanted 4: make it with"):
        layer.prefill(x, MultiTokenAttention(8, 2).new_cache(2))
    for call in (layer.prefill, layer.step):
        with pytest.raises(ValueError, match=r"argument cache has batch = None; wanted 2: make it with"):
            call(x[:, :1], None)
    layer.prefill(x, cache)
    with pytest.raises(ValueError, match=r"argument cache has length 6; wanted an empty one"):
        layer.prefill(x, cache)
