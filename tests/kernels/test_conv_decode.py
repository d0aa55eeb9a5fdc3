"""Tests of conv_attention_decode against the last row of the reference.

They cover every split, every thread order, and a GPU if available.
"""

import functools
import itertools
import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from kernels import reference
from kernels.common.launch import simulated
from kernels.common.splits import choose_splits, multiprocessors
from kernels.conv.decode import conv_attention_decode

DEVICE = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def worst(got, wanted):
    return (got.double().cpu() - wanted.double().cpu()).abs().max().item()


def inputs(seed, batch, heads, n, d, c_q, c_k, device="cpu"):
    """Return q, k and v (B, H, n, d) of all tokens, and the taps."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = torch.randn(3, batch, heads, n, d, generator=generator).to(device)
    return q, k, v, (torch.randn(heads, c_q, c_k, generator=generator) / math.sqrt(c_q * c_k)).to(device)


def last_row(q, k, v, w, scale=None):
    """Return the last row of the complete forward pass, computed in float64."""
    return reference.conv_attention(*(tensor.double() for tensor in (q, k, v, w)), scale=scale)[:, :, -1:]


def decoded(q, k, v, w, **options):
    return conv_attention_decode(q[:, :, -w.shape[1] :], k, v, w, **options)


def right(q, k, v, w, scale=None, **options):
    return worst(decoded(q, k, v, w, scale=scale, **options), last_row(q, k, v, w, scale)) <= 1e-5


# Correct values ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 5, 6, 7, 40, 300])
@pytest.mark.parametrize(("c_q", "c_k"), [(1, 1), (2, 4), (6, 11), (15, 1)])
def test_the_eager_last_row_is_the_last_row(n, c_q, c_k):
    q, k, v, w = (tensor.double() for tensor in inputs(n, 2, 3, n, 4, c_q, c_k))
    assert (
        worst(reference.conv_attention_decode(q[:, :, -c_q:], k, v, w, 0.6), last_row(q, k, v, w, 0.6))
        <= 1e-13
    )


@pytest.mark.parametrize("splits", [1, 3, *(pytest.param(n, marks=pytest.mark.nightly) for n in (2, 4, 5))])
def test_every_split(splits):
    assert right(*inputs(1, 1, 1, 70, 4, 6, 11), splits=splits)


@pytest.mark.gpu
@pytest.mark.parametrize("n", [70, 1000])
def test_every_split_on_a_gpu(n):
    arguments = inputs(2, 2, 3, n, 64, 6, 11, "cuda")
    assert all(right(*arguments, splits=splits) for splits in range(1, 45))


def lengths():
    """Return cache lengths close to the size of the window, of one tile and of two tiles, with taps of each
    kind."""
    taps = [(1, 1), (6, 11), (15, 15), (2, 4)]
    for place, n in enumerate([1, 2, 5, 6, 14, 15, 16, 31, 32, 33, 63, 64, 65, 97]):
        yield pytest.param(n, *taps[place % 4], "cpu", marks=[pytest.mark.nightly] if place % 3 else [])
        yield from (pytest.param(n, *sizes, "cuda", marks=pytest.mark.gpu) for sizes in taps)


@pytest.mark.parametrize(("n", "c_q", "c_k", "device"), list(lengths()))
def test_every_length(n, c_q, c_k, device):
    assert right(*inputs(n, 1, 1, n, 3, c_q, c_k, device), splits=2)


KINDS = [(1, 15), (15, 1), (4, 2), (5, 3), (8, 8), (9, 7), (12, 14), (13, 5)]


@pytest.mark.parametrize(
    ("c_q", "c_k", "device"),
    [
        *(
            pytest.param(*taps, "cpu", marks=[pytest.mark.nightly] if taps in KINDS[1::2] else [])
            for taps in KINDS
        ),
        *(pytest.param(*taps, "cuda", marks=pytest.mark.gpu) for taps in KINDS),
    ],
)
def test_every_kind_of_taps(c_q, c_k, device):
    assert right(*inputs(c_q, 1, 1, 40, 3, c_q, c_k, device), splits=2)


@pytest.mark.gpu
@pytest.mark.parametrize(("c_q", "c_k"), list(itertools.product(range(1, 16), repeat=2)))
def test_all_taps_on_a_gpu(c_q, c_k):
    assert right(*inputs(3, 1, 2, 130, 40, c_q, c_k, "cuda"), splits=3)


@DEVICE
@pytest.mark.parametrize("d", [1, 32, 33])
def test_every_head_size(d, device):
    assert right(*inputs(d, 1, 1, 3, d, 2, 3, device))


@pytest.mark.gpu
@pytest.mark.parametrize("d", range(1, 129))
def test_all_head_sizes_on_a_gpu(d):
    assert right(*inputs(d, 1, 2, 150, d, 5, 3, "cuda"), splits=2)


@DEVICE
def test_several_batches_and_heads_and_a_scale(device):
    assert right(*inputs(4, 2, 3, 8, 4, 3, 3, device), scale=0.7)


@DEVICE
def test_identity_taps_are_ordinary_attention(device):
    q, k, v, _ = inputs(5, 1, 2, 37, 4, 1, 1, device)
    w = reference.identity_taps(2, 6, 11, device=device)
    assert worst(decoded(q, k, v, w, splits=2), scaled_dot_product_attention(q[:, :, -1:], k, v)) <= 1e-6


@pytest.mark.gpu
@pytest.mark.parametrize("n", [512, 16384, 65536])
@pytest.mark.parametrize("heads", [8, 128])
def test_long_caches(n, heads):
    """Compare with the PyTorch decoding reference, because the complete N × N matrix would not fit into
    memory."""
    q, k, v, w = inputs(6, 1, heads, n, 64, 6, 11, "cuda")
    wanted = torch.cat(
        [
            reference.conv_attention_decode(
                *(x[:, h : h + 1, -6:].double() if x is q else x[:, h : h + 1].double() for x in (q, k, v)),
                w[h : h + 1].double(),
            )
            for h in range(heads)
        ],
        dim=1,
    )
    assert worst(decoded(q, k, v, w), wanted) <= 1e-5


# Memory layout of keys and values ---------------------------------------------------------------------------


@DEVICE
def test_a_cache_is_read_where_it_is(device):
    """Decode from the filled parts of larger buffers without copying them or reading the rest."""
    q, k, v, w = inputs(7, 2, 2, 11, 4, 3, 3, device)
    buffer = torch.full((2, 2, 2, 50, 4), math.nan, device=device)
    buffer[0, :, :, :11], buffer[1, :, :, :11] = k, v
    kept = buffer[:, :, :, :11]
    seen = []

    def run(kernel, grid, block, *arguments):
        seen.append(arguments)

    conv_attention_decode(q[:, :, -3:], *kept, w, run=run)
    assert [seen[0][place].data_ptr() for place in (1, 3)] == [tensor.data_ptr() for tensor in kept]
    assert worst(decoded(q, *kept, w), last_row(q, k, v, w)) <= 1e-5


@DEVICE
def test_heads_as_a_layer_makes_them(device):
    """Pass permuted views of one tensor (B, N, 3, H, d), as a layer computes them."""
    q, k, v, w = inputs(8, 2, 2, 9, 4, 3, 3, device)
    permuted = torch.stack([q, k, v]).permute(1, 3, 0, 2, 4).contiguous().permute(2, 0, 3, 1, 4)
    assert not permuted[1].is_contiguous()
    assert torch.equal(decoded(*permuted, w), decoded(q, k, v, w))


@pytest.mark.parametrize("shape", [(0, 2), (2, 0)])
def test_nothing_in_nothing_out(shape):
    k, w = torch.zeros(*shape, 3, 4), torch.zeros(shape[1], 2, 2)
    assert conv_attention_decode(k[:, :, -2:], k, k, w).shape == (*shape, 1, 4)


# Difficult inputs -------------------------------------------------------------------------------------------


@DEVICE
@pytest.mark.parametrize("sign", [1, -1])
def test_scores_near_ten_thousand(sign, device):
    """Use scores near 10000. float32 resolves them to 0.0005, which limits the accuracy of exp(score)."""
    q, k, v, _ = inputs(9, 1, 1, 40, 4, 1, 1, device)
    q, k = q / 30, k / 30
    q[..., 0], k[..., 0] = 100, 100 * sign
    arguments = q, k, v, reference.identity_taps(1, 3, 3, device=device)
    assert worst(decoded(*arguments, scale=1.0, splits=3), last_row(*arguments, 1.0)) <= 1e-2


@DEVICE
@pytest.mark.parametrize("splits", [3, 9])
def test_a_split_without_keys_adds_nothing(splits, device):
    """Divide two keys among more blocks, so that some blocks have none."""
    q, k, v, w = inputs(10, 1, 1, 2, 4, 3, 3, device)
    assert torch.equal(decoded(q, k, v, w, splits=splits), decoded(q, k, v, w, splits=2))


@DEVICE
def test_one_key_is_its_value(device):
    q, k, v, w = inputs(11, 1, 2, 1, 4, 6, 11, device)
    assert worst(decoded(q, k, v, w), v) <= 1e-6


@DEVICE
def test_nan_is_not_hidden(device):
    q, k, v, w = inputs(12, 1, 1, 40, 4, 3, 3, device)
    k[0, 0, 35, 1] = math.nan
    assert decoded(q, k, v, w, splits=2).isnan().all()


# Thread orders ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "c_q", "c_k", "splits", "engine"),
    [
        (35, 2, 3, 2, "fibers"),
        (3, 5, 4, 5, "threads"),
        pytest.param(35, 2, 3, 2, "threads", marks=pytest.mark.nightly),
        pytest.param(3, 5, 4, 5, "fibers", marks=pytest.mark.nightly),
    ],
)
def test_no_order_of_threads_changes_anything(n, c_q, c_k, splits, engine, few):
    """Decode with several tiles, a partial tile and an empty split, under many seeds.

    No run may report a finding, not even a warning, and all results must be equal bit for bit.
    """
    arguments, reports = inputs(13, 1, 1, n, 2, c_q, c_k), []

    def run(*launch, seed):
        reports.append(simulated(*launch, engine=engine, seed=seed, on_finding="report"))

    results = [
        decoded(*arguments, splits=splits, run=functools.partial(run, seed=seed))
        for seed in few(range(6 if engine == "fibers" else 2), 2)
    ]
    assert [report.findings for report in reports] == [()] * 2 * len(results)
    assert all(torch.equal(result, results[0]) for result in results)
    assert worst(results[0], last_row(*arguments)) <= 1e-5


@pytest.mark.gpu
def test_a_cuda_graph_replays_it():
    q, k, v, w = inputs(14, 1, 2, 300, 64, 6, 11, "cuda")
    window = q[:, :, -6:].contiguous()
    conv_attention_decode(window, k, v, w)  # Kernels must be compiled before the capture.
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o = conv_attention_decode(window, k, v, w)
    for seed in (15, 16):
        q, *changed, taps = inputs(seed, 1, 2, 300, 64, 6, 11, "cuda")
        for kept, new in zip((window, k, v, w), (q[:, :, -6:], *changed, taps), strict=True):
            kept.copy_(new)
        graph.replay()
        assert worst(o, last_row(q, k, v, w)) <= 1e-5


# Number of splits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sequences", "keys", "processors", "splits"),
    [
        (8, 65536, 132, 60),  # 480 of the 528 blocks that fit into one wave
        (32, 65536, 132, 15),
        (128, 65536, 132, 4),  # 512 blocks; five splits would need a second wave
        (528, 65536, 132, 1),
        # 1590 of the 2112 blocks of four waves; one split would leave two blocks for the second wave
        (530, 65536, 132, 3),
        (5000, 65536, 132, 1),
        (8, 512, 132, 8),  # each split has 64 keys
        (8, 100, 132, 1),
        (1, 1, 132, 1),
        (0, 512, 132, 8),
        (2, 1000, 1, 2),
    ],
)
def test_the_rule_for_splits(sequences, keys, processors, splits):
    assert choose_splits(sequences, keys, processors) == splits


def test_the_simulator_is_one_multiprocessor():
    assert multiprocessors(torch.device("cpu")) == 1


@pytest.mark.gpu
def test_a_gpu_has_several():
    assert (
        multiprocessors(torch.device("cuda"))
        == torch.cuda.get_device_properties("cuda").multi_processor_count
        > 1
    )


# Invalid arguments ------------------------------------------------------------------------------------------

GOOD, TAPS = torch.zeros(2, 3, 5, 4), torch.zeros(3, 2, 3)
REFUSED = [
    (dict(q_window=[1.0]), TypeError, "argument q_window is a list; wanted a torch.Tensor"),
    (
        dict(v=GOOD.double()),
        TypeError,
        "argument v has dtype torch.float64; wanted torch.float32: convert with v.float()",
    ),
    (
        dict(k=GOOD.to("meta")),
        ValueError,
        "argument k is on meta; wanted cpu, where q_window is: move it with k.to(q_window.device)",
    ),
    (
        dict(k=GOOD[..., :3]),
        ValueError,
        "argument k has shape (2, 3, 5, 3); wanted (B, H, N_k, d) with B = 2, H = 3, d = 4",
    ),
    (
        dict(v=GOOD[:, :, :4]),
        ValueError,
        "argument v has shape (2, 3, 4, 4); wanted (B, H, N_k, d) with B = 2, H = 3, N_k = 5, d = 4",
    ),
    (dict.fromkeys("kv", GOOD[:, :, :0]), ValueError, "argument k has N_k = 0; wanted at least 1"),
    (
        dict(q_window=GOOD),
        ValueError,
        "argument q_window has R = 5; wanted min(c_q, N_k) = 2, the queries of the last tokens",
    ),
    (
        dict.fromkeys("kv", GOOD[:, :, :1]),
        ValueError,
        "argument q_window has R = 2; wanted min(c_q, N_k) = 1, the queries of the last tokens",
    ),
    (
        dict(k=GOOD[:, :2], v=GOOD[:, :2], enable_gqa=True),
        ValueError,
        "arguments k and v have 2 heads; wanted a divisor of H = 3 of q",
    ),
    (dict(scale=math.nan), ValueError, "argument scale is nan; wanted a finite float32"),
    (dict(splits=0), ValueError, "argument splits is 0; wanted at least 1"),
    (dict(splits=1.5), TypeError, "argument splits is 1.5; wanted a whole number, or None to choose it"),
    (dict(splits=True), TypeError, "argument splits is True; wanted a whole number, or None to choose it"),
]


@pytest.mark.parametrize(("wrong", "error", "message"), REFUSED, ids=[message for *_, message in REFUSED])
def test_refuses(wrong, error, message):
    with pytest.raises(error) as caught:
        conv_attention_decode(**dict(q_window=GOOD[:, :, :2], k=GOOD, v=GOOD, w=TAPS) | wrong)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "w", [torch.zeros(4, 2, 3), torch.zeros(3, 16, 3), torch.zeros(3, 2, 3).double(), None]
)
def test_refuses_other_taps(w):
    with pytest.raises((TypeError, ValueError), match="^argument w "):
        conv_attention_decode(GOOD[:, :, :2], GOOD, GOOD, w)
