"""Time every kind of attention on this GPU compared with PyTorch, as one table: python -m kernels.bench.goals

All rows are causal and in bfloat16. PyTorch is `scaled_dot_product_attention` (SDPA, without a
convolution) or the plain PyTorch code of `kernels.reference` (eager). GPU times are medians of replayed
CUDA graphs. Before each replay, a buffer larger than the L2 cache is written. Backward passes and eager
are not in graphs. "Of the limit" is the fraction of 989 TFLOP/s that the useful operations reach, or of
4.8 TB/s for one token. Rows in which PyTorch is faster come first.
"""

# ruff: noqa: B023  (each lambda is called before its loop continues)

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch.nn.functional import scaled_dot_product_attention

from kernels import (
    conv_attention,
    conv_attention_decode,
    flash_attention,
    latent_attention,
    multi_token_attention,
    multi_token_attention_decode,
)
from kernels.bench.conv import sdpa_backend
from kernels.bench.multi_token import HEADS, parts
from kernels.bench.multi_token import TAPS as LAYER_TAPS
from kernels.bench.timing import backward_milliseconds, machine, milliseconds, quiet, replay, require_gpu
from kernels.cases.latent import Shape, inputs
from kernels.reference import conv_attention as eager_conv
from kernels.reference import multi_token_attention as eager_layer
from kernels.reference.latent import latent_attention as eager_latent

PEAK, BANDWIDTH = 989e12, 4.8e12  # operations per second in bfloat16, and bytes per second, of an H200
CONVOLVED = [((4, 16, 2048, 64), (7, 7)), ((4, 16, 4096, 64), (11, 11)), ((2, 32, 4096, 128), (6, 11))]
PLAIN = [(4, 16, 4096, 64), (4, 16, 4096, 128)]
CACHES = [(1, 8, 4096, 64), (8, 16, 16384, 64), (1, 32, 65536, 128)]
LAYER, TOKENS = (1, HEADS, 4096, 64), 16384
SMALL = (64, 256)
FIRST_CALL = """
import time, torch
from kernels import conv_attention
q, k, v = torch.randn(3, 1, 8, 512, 64, device="cuda", dtype=torch.bfloat16).requires_grad_()
w = torch.randn(8, 7, 7, device="cuda", dtype=torch.bfloat16).requires_grad_()
(q @ k.mT).sum().backward()
torch.cuda.synchronize()
for _ in range(2):
    began = time.perf_counter()
    o = conv_attention(q, k, v, w, causal=True)
    torch.cuda.synchronize()
    forward = time.perf_counter()
    o.sum().backward()
    torch.cuda.synchronize()
    print(forward - began, time.perf_counter() - forward)
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", type=Path, help="write the table to this file too")
    arguments = parser.parse_args()
    require_gpu(parser, "kernels.bench.goals")
    quiet()
    rows = []
    for measured in (flash, convolved, one_token, layer, latent, host_times, small, first_call):
        for row in measured():
            rows.append(row)
            print(json.dumps(row), flush=True)
    rows.sort(key=lambda row: -row["ratio"] if row["ratio"] else 0)
    print(text(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps({**machine(), "rows": rows}, indent=1) + "\n")


def row(name, unit, ours, library, theirs=None, work=None, limit=PEAK):
    """Return one row of the table.

    ours, theirs: times in `unit`, "ms" or "us".
    work: the operations or bytes that `limit` divides, or None.
    """
    seconds = ours / (1e3 if unit == "ms" else 1e6)
    return {
        "name": name,
        "unit": unit,
        "kernels": ours,
        "library": library,
        "PyTorch": theirs,
        "ratio": ours / theirs if theirs else None,
        "of the limit": work / seconds / limit if work else None,
    }


def text(rows):
    """Return the rows as a table in Markdown."""
    lines = ["| | kernels | PyTorch | ratio | of the limit |", "|---|---:|---:|---:|---:|"]
    for each in rows:
        unit = each["unit"].replace("us", "µs")
        theirs = f"{each['library']} {each['PyTorch']:.4g} {unit}" if each["PyTorch"] else each["library"]
        ratio = f"{each['ratio']:.2f}" if each["ratio"] else ""
        limit = f"{100 * each['of the limit']:.0f} %" if each["of the limit"] else ""
        lines.append(f"| {each['name']} | {each['kernels']:.4g} {unit} | {theirs} | {ratio} | {limit} |")
    return "\n".join(lines)


def tensors(*shape, count=3):
    """Return `count` random bfloat16 tensors on the GPU that require a gradient."""
    return [x.requires_grad_() for x in torch.randn(count, *shape, device="cuda", dtype=torch.bfloat16)]


def operations(shape, taps=0, products=2):
    """Return the useful operations of causal attention.

    products: the matrix products of queries or keys by keys, 2 in a forward pass and 5 in a backward pass.
    taps: multiplications per score in all convolutions together.
    """
    batch, heads, n, d = shape
    return batch * heads * n * n / 2 * (2 * d * products + 2 * taps)


def graph_time(call):
    """Return the milliseconds of a call as a replayed CUDA graph."""
    with torch.no_grad():
        return milliseconds(replay(call), repeats=20)


def sdpa(q, k, v):
    return scaled_dot_product_attention(q, k, v, is_causal=True)


def flash():
    for shape in PLAIN:
        q, k, v = tensors(*shape)
        ours, theirs = (
            graph_time(lambda: flash_attention(q, k, v, causal=True)),
            graph_time(lambda: sdpa(q, k, v)),
        )
        library = f"SDPA ({sdpa_backend(q, k, v)})"
        yield row(f"flash forward {shape}", "ms", ours, library, theirs, operations(shape))


def convolved():
    for shape, (rows, columns) in CONVOLVED:
        q, k, v, d_o = tensors(*shape, count=4)
        w = (torch.randn(shape[1], rows, columns, device="cuda", dtype=torch.bfloat16) / 7).requires_grad_()
        library, name = f"SDPA ({sdpa_backend(q, k, v)})", f"{rows} × {columns}, {shape}"
        attend = lambda: conv_attention(q, k, v, w, causal=True)  # noqa: E731
        ours, theirs = graph_time(attend), graph_time(lambda: sdpa(q, k, v))
        taps = rows * columns
        yield row(f"conv forward {name}", "ms", ours, library, theirs, operations(shape, taps))
        ours = backward_milliseconds(attend(), (q, k, v, w), d_o)
        theirs = backward_milliseconds(sdpa(q, k, v), (q, k, v), d_o)
        yield row(f"conv backward {name}", "ms", ours, library, theirs, operations(shape, 3 * taps, 5))


def one_token():
    for shape in CACHES:
        k, v = torch.randn(2, *shape, device="cuda", dtype=torch.bfloat16)
        q, w = (
            torch.randn_like(k[:, :, -7:]),
            torch.randn(shape[1], 7, 7, device="cuda", dtype=torch.bfloat16) / 7,
        )
        last = q[:, :, -1:].contiguous()
        ours = 1000 * graph_time(lambda: conv_attention_decode(q, k, v, w))
        theirs = 1000 * graph_time(lambda: scaled_dot_product_attention(last, k, v))
        library = f"SDPA ({sdpa_backend(last, k, v, False)})"
        yield row(f"conv decode {shape}", "us", ours, library, theirs, 2 * k.nbytes, BANDWIDTH)


def layer():
    given = [*tensors(*LAYER), *(part.requires_grad_() for part in parts(torch.bfloat16))]
    d_o, attend = torch.randn_like(given[0]), lambda: multi_token_attention(*given)
    eager = lambda: eager_layer(*given)  # noqa: E731
    taps = 2 * (LAYER_TAPS[0] * LAYER_TAPS[1] + HEADS)
    with torch.no_grad():
        ours, theirs = graph_time(attend), milliseconds(eager)
    yield row(f"multi-token layer, forward {LAYER}", "ms", ours, "eager", theirs, operations(LAYER, taps))
    ours, theirs = (backward_milliseconds(call(), given, d_o) for call in (attend, eager))
    work = operations(LAYER, 3 * taps, 5)
    yield row(f"multi-token layer, backward {LAYER}", "ms", ours, "eager", theirs, work)
    q, k, v = torch.randn(3, 1, HEADS, TOKENS, 64, device="cuda", dtype=torch.bfloat16)
    last, maps = (
        q[:, :, 1 - 2 * LAYER_TAPS[0] :].contiguous(),
        [part.detach() for part in parts(torch.bfloat16)],
    )
    ours = 1000 * graph_time(lambda: multi_token_attention_decode(last, k, v, *maps))
    yield row(f"multi-token decode, {TOKENS:,} keys", "us", ours, "", None, 2 * k.nbytes, BANDWIDTH)


def latent_call(n, attend):
    """Return (function that computes latent attention, its leaves, the output's gradient)."""
    *given, d_o = (x.bfloat16() for x in inputs(Shape(1, 12, 0, n, n, 64, 64, 0.5, 64), device="cuda"))
    leaves = [x.requires_grad_() for x in given]
    return lambda: attend(*leaves, 0.5, 64), leaves, d_o


def latent():
    for n in (4096, 1024):
        times = []
        for attend in (latent_attention, eager_latent):
            call, leaves, d_o = latent_call(n, attend)
            times.append(backward_milliseconds(call(), leaves, d_o))
        yield row(f"latent backward, {n:,} tokens", "ms", times[0], "eager", times[1])


def host(call, calls=100):
    """Return the median microseconds of host time of a call, over 5 series; the GPU is idle at the start."""
    series = []
    for _ in range(6):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        series.append((time.perf_counter() - began) / calls * 1e6)
    return statistics.median(series[1:])


def host_times():
    q, k, v, d_o = tensors(1, 8, 64, 64, count=4)
    w = torch.randn(8, 7, 7, device="cuda", dtype=torch.bfloat16).requires_grad_()
    attend, plain = lambda: conv_attention(q, k, v, w, causal=True), lambda: sdpa(q, k, v)
    with torch.no_grad():
        yield row("Python per call, conv forward", "us", host(attend), "SDPA", host(plain))
    both = host(lambda: torch.autograd.grad(attend(), (q, k, v, w), d_o))
    theirs = host(lambda: torch.autograd.grad(plain(), (q, k, v), d_o))
    yield row("Python per call, conv forward and backward", "us", both, "SDPA", theirs)


def small():
    for n in SMALL:
        q, k, v, d_o = tensors(1, 8, n, 64, count=4)
        w = torch.randn(8, 7, 7, device="cuda", dtype=torch.bfloat16).requires_grad_()
        ours, theirs = (
            until_done(
                lambda attend=attend: torch.autograd.grad(attend(q, k, v, w, causal=True), (q, k, v, w), d_o)
            )
            for attend in (conv_attention, eager_conv)
        )
        yield row(f"conv forward and backward, N = {n}, until done", "us", ours, "eager", theirs)
        times = []
        for attend in (latent_attention, eager_latent):
            call, leaves, d_latent = latent_call(n, attend)
            times.append(until_done(lambda: torch.autograd.grad(call(), leaves, d_latent)))
        yield row(f"latent forward and backward, N = {n}, until done", "us", times[0], "eager", times[1])


def until_done(call):
    """Return the median microseconds from a call to the end of its work on the GPU."""
    times = []
    for _ in range(60):
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - began) * 1e6)
    return statistics.median(times[10:])


def first_call():
    """Measure the first calls in the second of two processes. The first one fills the cache."""
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", FIRST_CALL], capture_output=True, text=True, check=True)
    first, later = ([1000 * float(word) for word in line.split()] for line in done.stdout.splitlines())
    for name, once, again in zip(("forward", "backward"), first, later):
        yield row(f"first call in a second process, conv {name}", "ms", once, f"a later call: {again:.2g} ms")


if __name__ == "__main__":
    main()
