"""How fast convolutional attention is on this GPU beside PyTorch, and how much memory it takes: python -m
kernels.bench

Like is compared with like, in float32 and then, on tensor cores, in bfloat16: the kernels, PyTorch eager
(`kernels.reference`), the same through torch.compile, and `scaled_dot_product_attention`, which convolves
nothing, with the name of the implementation that it chose. Times are medians of CUDA events around calls
with a cold cache; those of decoding are of replayed CUDA graphs, since a token takes a GPU less time than
launching takes Python. Memory is the peak above the inputs.
"""

import argparse
import datetime
import json
import statistics
from pathlib import Path

import numba
import torch
import torch._functorch.config
from torch.nn.attention import SDPBackend
from torch.nn.functional import scaled_dot_product_attention

from kernels import conv_attention, conv_attention_decode, languages
from kernels.conv_cases import Shape
from kernels.reference import conv_attention as eager
from kernels.reference import conv_attention_decode as eager_decode

SHAPES = [(1, 8, n, 64) for n in (512, 1024, 2048, 4096)] + [(4, 16, 2048, 64)]
ONE_BATCH = [shape for shape in SHAPES if shape[0] == 1]
CACHES = [(batch, 8, n, 64) for batch in (1, 4, 16) for n in (512, 2048, 8192, 16384, 65536)]
TAPS = 7, 7
HALVES = [  # in bfloat16
    ((1, 8, 4096, 64), TAPS),
    ((4, 16, 2048, 64), TAPS),
    ((4, 16, 4096, 64), (11, 11)),
    ((2, 32, 4096, 128), (6, 11)),
]
DATA = Path(__file__).parent / "data"
FLUSH = 2**30  # bytes written between calls


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", type=Path, help="write the table to this file too")
    parser.add_argument("--languages", action="store_true", help="only Numba, CUDA C++ and Triton")
    arguments = parser.parse_args()
    torch._functorch.config.donated_buffer = False  # a backward pass is timed many times
    if not torch.cuda.is_available():
        parser.exit(2, "python -m kernels.bench times kernels on a CUDA GPU, and torch finds none here\n")
    table = {**machine(), "taps": TAPS}
    if not arguments.languages:
        table |= {
            "training": [row for shape in SHAPES for row in measured(shape)],
            "halves": [row for shape, taps in HALVES for row in measured(shape, taps, torch.bfloat16)],
            "bandwidth": bandwidth(),
            "decoding": [row for shape in CACHES for row in measured_decoding(shape)],
        }
    table["languages"] = [row for shape in ONE_BATCH for row in measured_languages(shape)]
    print(
        text(table) if "training" in table else "{gpu}, {date}, torch {torch}, numba {numba}".format(**table)
    )
    print(text_of_languages(table))
    if arguments.json:
        arguments.json.write_text(json.dumps(table, indent=1) + "\n")


def machine():
    """Where and when, for a table that outlives this run."""
    return {
        "date": datetime.date.today().isoformat(),
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "numba": numba.__version__,
    }


def contestants():
    """{name: function(q, k, v, w) -> O}, all causal."""
    return {
        "kernels": conv_attention,
        "eager": eager,
        "compile": torch.compile(eager),
        "sdpa": lambda q, k, v, w: scaled_dot_product_attention(q, k, v, is_causal=True),
    }


def measured(shape, taps=TAPS, dtype=torch.float32):
    """One row for each contestant: milliseconds forward and backward, MiB at the peak of both."""
    q, k, v = (x.requires_grad_() for x in torch.randn(3, *shape, device="cuda", dtype=dtype))
    w = (torch.randn(shape[1], *taps, device="cuda", dtype=dtype) / 7).requires_grad_()
    d_o = torch.randn(shape, device="cuda", dtype=dtype)
    torch._dynamo.reset()
    for name, attend in contestants().items():
        with torch.no_grad():
            forward = milliseconds(lambda: attend(q, k, v, w))
        leaves = [leaf for leaf in (q, k, v, w) if name != "sdpa" or leaf is not w]
        backward = backward_milliseconds(attend(q, k, v, w), leaves, d_o)
        memory = peak(lambda: torch.autograd.grad(attend(q, k, v, w), leaves, d_o))
        yield {
            "shape": shape,
            "taps": taps,
            "name": name,
            "backend": sdpa_backend(q, k, v) if name == "sdpa" else None,
            "forward_ms": forward,
            "backward_ms": backward,
            "peak_mib": memory,
        }


def sdpa_backend(q, k, v):
    """The implementation that `scaled_dot_product_attention` chooses: "flash", "cudnn", …"""
    choice = torch._fused_sdp_choice(q, k, v, is_causal=True)
    return SDPBackend(choice).name.lower().removesuffix("_attention")


def backward_milliseconds(o, leaves, d_o, repeats=10):
    """The median time of a backward pass from o to its leaves."""
    return milliseconds(lambda: torch.autograd.grad(o, leaves, d_o, retain_graph=True), repeats)


def decoders():
    """{name: function(q_window, k, v, w) -> O of the last token}."""
    return {
        "kernels": conv_attention_decode,
        "eager": eager_decode,
        "compile": torch.compile(eager_decode, dynamic=False),
        "sdpa": lambda q_window, k, v, w: scaled_dot_product_attention(q_window[:, :, -1:], k, v),
    }


def measured_decoding(shape):
    """One row for each contestant: microseconds for one token with a cache of (B, H, N, d)."""
    k, v = torch.randn(2, *shape, device="cuda")
    q_window, w = torch.randn_like(k[:, :, -TAPS[0] :]), torch.randn(shape[1], *TAPS, device="cuda") / 7
    torch._dynamo.reset()
    with torch.no_grad():
        for name, decode in decoders().items():
            yield {
                "shape": shape,
                "name": name,
                "us": 1000 * milliseconds(replay(lambda: decode(q_window, k, v, w)), repeats=20),
            }


def measured_languages(shape):
    """One row for each language in which the kernels are written: milliseconds of flash attention, of
    convolutional attention forward and backward; microseconds of one token with this cache, as a graph."""
    q, k, v, w, d_o, window = languages.inputs(Shape(*shape, *TAPS, True), device="cuda")
    for name in languages.HOMES:
        functions = languages.language(name)
        o, log_sum = functions.conv_forward(q, k, v, w)
        yield {
            "shape": shape,
            "name": name,
            "flash_ms": milliseconds(lambda: functions.flash_forward(q, k, v)),
            "forward_ms": milliseconds(lambda: functions.conv_forward(q, k, v, w)),
            "backward_ms": milliseconds(lambda: functions.conv_backward(q, k, v, w, o, log_sum, d_o)),
            "us": 1000 * milliseconds(replay(lambda: functions.conv_attention_decode(window, k, v, w))),
        }


def replay(call):
    """The call as a CUDA graph, to be launched again and again."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def bandwidth():
    """Bytes a second that a copy reads and writes on this GPU."""
    source = torch.empty(2**29, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / (milliseconds(lambda: target.copy_(source)) / 1000)


def least_us(shape, bandwidth):
    """Microseconds to read K and V once."""
    batch, heads, n, d = shape
    return 2 * 4 * batch * heads * n * d / bandwidth * 1e6


def milliseconds(call, repeats=10):
    """The median time of a call on the GPU, after three to warm up.

    Before each, a buffer larger than the L2 cache is written; and nothing waits for a call's end, so that
    Python launches the next one while the GPU works, as in training.
    """
    buffer = torch.empty(FLUSH, dtype=torch.int8, device="cuda")
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(3 + repeats)]
    for start, end in pairs:
        buffer.zero_()
        start.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in pairs[3:])


def peak(call):
    """MiB of GPU memory that a call takes at its peak, beyond what is there already."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def text(table):
    """The table as people read it."""
    lines = [
        "{gpu}, {date}, torch {torch}, numba {numba}; causal".format(**table),
        f"{'B, H, N, d':>18} {'taps':>6} {'':>14} {'forward ms':>11} {'backward ms':>12} {'peak MiB':>9}",
    ]
    for kind, rows in {"float32": table["training"], "bfloat16": table["halves"]}.items():
        lines.append(kind)
        for row in rows:
            shape, taps = ", ".join(map(str, row["shape"])), "×".join(map(str, row["taps"]))
            name = " ".join(filter(None, [row["name"], row["backend"]]))
            lines.append(
                f"{shape:>18} {taps:>6} {name:>14} {row['forward_ms']:11.3f} {row['backward_ms']:12.3f}"
                f" {row['peak_mib']:9.1f}"
            )
    lines += [
        "",
        "one token; CUDA graphs; microseconds; floor: K and V read once at the {:.2f} TB/s of a copy".format(
            table["bandwidth"] / 1e12
        ),
        f"{'B, H, N, d':>18} {'floor':>9}" + "".join(f" {name:>9}" for name in decoders()),
    ]
    for shape in dict.fromkeys(tuple(row["shape"]) for row in table["decoding"]):
        times = "".join(f" {row['us']:9.1f}" for row in table["decoding"] if tuple(row["shape"]) == shape)
        lines.append(f"{', '.join(map(str, shape)):>18} {least_us(shape, table['bandwidth']):9.1f}{times}")
    return "\n".join(lines)


def text_of_languages(table):
    """The kernels in their languages, float32, causal, with the table's taps."""
    lines = [
        f"{'B, H, N, d':>18} {'':>8} {'flash ms':>9} {'forward ms':>11} {'backward ms':>12} {'token µs':>11}"
    ]
    for row in table["languages"]:
        lines.append(
            f"{', '.join(map(str, row['shape'])):>18} {row['name']:>8} {row['flash_ms']:9.3f}"
            f" {row['forward_ms']:11.3f} {row['backward_ms']:12.3f} {row['us']:11.1f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
