"""Time latent attention on this GPU compared with PyTorch, and measure its memory: python -m
kernels.bench.latent [--json FILE]. --plot draws kernels/data/latent.png from kernels/data/latent.json.

All contestants are causal, with a reciprocal term of 64 keys: the kernels; PyTorch with all matrices in
    memory (`kernels.reference`); the same through torch.compile; tiled PyTorch
    (`kernels.reference.latent_tiled`); and `scaled_dot_product_attention` (SDPA), without a reciprocal term,
    on keys and values expanded for every head. The expansion is included in SDPA's time, except in decoding,
    where a cache would hold the expanded heads. All run in float32; the kernels, PyTorch and SDPA also in
    bfloat16. Errors against float64 are computed first. Times are medians measured with CUDA events; decoding
    is timed with replayed CUDA graphs. Memory is the peak above the inputs.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from torch.nn.functional import scaled_dot_product_attention

from kernels import latent_attention, latent_attention_decode
from kernels.bench.timing import machine, milliseconds, replay, require_gpu, time_passes
from kernels.cases.latent import Shape, inputs
from kernels.common.data import DATA
from kernels.reference.latent import latent_attention as eager
from kernels.reference.latent import latent_attention_decode as eager_decode
from kernels.reference.latent_tiled import forward as tiled
from kernels.reference.tiled import Traffic

ALPHA, WINDOW, HEADS, WIDTH, TILE = 0.5, 64, 12, 64, 128
LENGTHS, CACHES = (512, 1024, 2048, 4096), (512, 2048, 8192, 32768, 65536)
STYLES = {  # Okabe and Ito's colours, and distinct markers for print
    "kernels": ("#D55E00", "o", "these kernels"),
    "eager": ("#0072B2", "s", "PyTorch, all matrices"),
    "compile": ("#009E73", "^", "torch.compile"),
    "tiled": ("#CC79A7", "v", "PyTorch, tile by tile"),
    "sdpa": ("#999999", "D", "SDPA, expanded heads, no reciprocal term"),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", type=Path, help="write the table to this file, row by row")
    parser.add_argument("--plot", action="store_true", help="draw the recorded table")
    parser.add_argument("--seconds", type=float, default=600, help="begin no row later than this")
    arguments = parser.parse_args()
    if arguments.plot:
        return plot(json.loads((DATA / "latent.json").read_text(encoding="utf-8")))
    require_gpu(parser, "kernels.bench.latent")
    sizes = {"heads": HEADS, "d": WIDTH, "latent": WIDTH, "window": WINDOW, "tile of tiled": TILE}
    table, end = {**machine(), **sizes}, time.monotonic() + arguments.seconds
    for kind, row in rows(end):
        table.setdefault(kind, [])
        table[kind].append(row)
        print(kind, row, flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(table, indent=1) + "\n")


def rows(end):
    """Yield (kind, row) of every benchmark until the deadline `end`; bfloat16 has separate kinds."""
    for dtype, suffix in [(torch.float32, ""), (torch.bfloat16, " bfloat16")]:
        for batch, n in [*((1, n) for n in CACHES), (8, 8192)]:
            yield from (("decoding" + suffix, row) for row in measured_decoding(batch, n, dtype))
        for batch, n in [*((1, n) for n in LENGTHS), (8, 2048)]:
            for name in STYLES:
                left_out = name in ("tiled", "compile") and (batch > 1 or dtype != torch.float32)
                if time.monotonic() < end and not left_out:
                    yield "training" + suffix, measured(name, batch, n, dtype)


def contestant(name, v_like):
    """Return the contestant of this name, a function (q, k_latent, v_latent, w_q, w_v) -> O."""

    def tile_by_tile(q, k_latent, v_latent, *shared):
        return tiled(q[0], k_latent[0], v_latent[0], *shared, ALPHA, WINDOW, TILE, TILE, Traffic())[0][None]

    def expanded(q, k_latent, v_latent, w_q, w_v):
        k, v = k_latent[:, None] @ w_q.mT, v_latent[:, None] @ w_v
        return scaled_dot_product_attention(q, k, v, is_causal=True, scale=v_like.shape[2] ** -0.5)

    return {
        "kernels": lambda *x: latent_attention(*x, ALPHA, WINDOW),
        "eager": lambda *x: eager(*x, ALPHA, WINDOW),
        "compile": torch.compile(lambda *x: eager(*x, ALPHA, WINDOW), dynamic=False),
        "tiled": tile_by_tile,
        "sdpa": expanded,
    }[name]


def measured(name, batch, n, dtype):
    """Return one row: the error, milliseconds forward and backward, and the peak MiB of each."""
    shape = Shape(batch, HEADS, 0, n, n, WIDTH, WIDTH, ALPHA, WINDOW)
    *tensors, d_o = (x.to(dtype) for x in inputs(shape, device="cuda"))
    leaves = [x.requires_grad_() for x in tensors]
    torch._dynamo.reset()
    torch._functorch.config.donated_buffer = False  # keep the graph for several backward passes
    attend, repeats = contestant(name, tensors[2]), 3 if name == "tiled" else 10
    with torch.no_grad():
        error = error_of(attend, tensors) if name != "sdpa" and batch == 1 else None
    row = {"batch": batch, "n": n, "name": name, "error": error}
    return row | time_passes(attend, leaves, leaves, d_o, repeats)


def error_of(attend, tensors):
    """Return the largest error of the last 256 rows against float64."""
    q, *shared = (x.double() for x in tensors)
    rest = max(q.shape[2] - 256, 0)
    before = q[:, :, :rest] if rest else None
    wanted = eager(q[:, :, rest:], *shared, ALPHA, WINDOW, q_before=before)
    return (attend(*tensors)[:, :, rest:] - wanted).abs().max().item()


def measured_decoding(batch, n, dtype):
    """Yield one row per contestant: the error, microseconds for one token, and the bytes of its cache."""
    shape = Shape(batch, HEADS, 0, WINDOW, n, WIDTH, WIDTH, ALPHA, WINDOW)
    q, k, v, w_q, w_v, _ = (x.to(dtype) for x in inputs(shape, device="cuda"))
    torch._dynamo.reset()
    heads = (k[:, None] @ w_q.mT).contiguous(), (v[:, None] @ w_v).contiguous()
    latents, expanded = 2 * k.nbytes + q.nbytes, 2 * heads[0].nbytes
    terms = q, k, v, w_q, w_v, ALPHA, WINDOW
    wanted = eager_decode(*(x.double() for x in terms[:5]), ALPHA, WINDOW)
    of_names = {
        "kernels": (lambda: latent_attention_decode(*terms), latents),
        "eager": (lambda: eager_decode(*terms), latents),
        "sdpa": (lambda: scaled_dot_product_attention(q[:, :, -1:], *heads, scale=WIDTH**-0.5), expanded),
    }
    for name, (call, cache) in of_names.items():
        error = (call() - wanted).abs().max().item() if name != "sdpa" else None
        yield {
            "batch": batch,
            "n": n,
            "name": name,
            "error": error,
            "us": 1000 * milliseconds(replay(call), repeats=20),
            "cache_bytes": cache,
        }


def plot(table):
    """Draw kernels/data/latent.png."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    panels = {
        "forward_ms": "forward, ms",
        "backward_ms": "backward, ms",
        "peak_mib": "peak memory, both, MiB",
        "us": "decoding a token, µs",
    }
    figure, axes = plt.subplots(1, 4, figsize=(18, 4.2), layout="constrained")
    figure.suptitle(
        f"Latent attention, B = 1, H = {HEADS}, d = L = {WIDTH}, window {WINDOW} · {table['gpu']},"
        f" {table['date']}, torch {table['torch']}, float32",
        fontsize=10,
    )
    for panel, (key, label) in zip(axes, panels.items()):
        for name, (colour, marker, words) in STYLES.items():
            kind = "decoding" if key == "us" else "training"
            chosen = [row for row in table[kind] if row["name"] == name and row["batch"] == 1]
            points = [(row["n"], row[key]) for row in chosen if row[key] is not None]
            panel.plot(*zip(*points) if points else ([], []), color=colour, marker=marker, label=words)
        panel.set_xscale("log", base=2)
        panel.set(yscale="log", xlabel="N", ylabel=label)
        panel.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    figure.savefig(DATA / "latent.png", dpi=120)


if __name__ == "__main__":
    main()
