"""How fast convolutional attention is on this GPU beside PyTorch, and how much memory it takes, one table: python -m kernels.bench

Everything is float32, like for like: the kernels, PyTorch eager (`kernels.reference`), the same through torch.compile, and
`scaled_dot_product_attention`, which convolves nothing: the floor. Times are medians of CUDA events; memory is the peak above the inputs.
"""

import argparse
import datetime
import json
import statistics
from pathlib import Path

import numba
import torch
from torch.nn.functional import scaled_dot_product_attention

from kernels import conv_attention
from kernels.reference import conv_attention as eager

SHAPES = [(1, 8, n, 64) for n in (512, 1024, 2048, 4096)] + [(4, 16, 2048, 64)]
TAPS = 7, 7
DATA = Path(__file__).parent / "data"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the table to this file too")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(2, "python -m kernels.bench times kernels on a CUDA GPU, and torch finds none here\n")
    rows = [row for shape in SHAPES for row in measured(shape)]
    table = {**machine(), "taps": TAPS, "training": rows}
    print(text(table))
    if arguments.json:
        arguments.json.write_text(json.dumps(table, indent=1) + "\n")


def machine():
    """Where and when, for a table that outlives this run."""
    return {"date": datetime.date.today().isoformat(), "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "numba": numba.__version__}


def contestants():
    """{name: function(q, k, v, w) -> O}, all causal."""
    return {
        "kernels": conv_attention,
        "eager": eager,
        "compile": torch.compile(eager),
        "sdpa": lambda q, k, v, w: scaled_dot_product_attention(q, k, v, is_causal=True),
    }


def measured(shape):
    """One row for each contestant: milliseconds forward and backward, MiB at the peak of both."""
    q, k, v = (x.requires_grad_() for x in torch.randn(3, *shape, device="cuda"))
    w = (torch.randn(shape[1], *TAPS, device="cuda") / 7).requires_grad_()
    d_o = torch.randn(shape, device="cuda")
    torch._dynamo.reset()
    for name, attend in contestants().items():
        with torch.no_grad():
            forward = milliseconds(lambda: attend(q, k, v, w))
        leaves = [leaf for leaf in (q, k, v, w) if name != "sdpa" or leaf is not w]
        backward = backward_milliseconds(attend(q, k, v, w), leaves, d_o)
        memory = peak(lambda: torch.autograd.grad(attend(q, k, v, w), leaves, d_o))
        yield {"shape": shape, "name": name, "forward_ms": forward, "backward_ms": backward, "peak_mib": memory}


def backward_milliseconds(o, leaves, d_o):
    """The median time of a backward pass from o to its leaves."""
    return milliseconds(lambda: torch.autograd.grad(o, leaves, d_o, retain_graph=True))


def milliseconds(call, repeats=10):
    """The median time of a call on the GPU, after three to warm up."""
    times = []
    for _ in range(3 + repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[3:])


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
    lines = ["{gpu}, {date}, torch {torch}, numba {numba}; float32, causal, taps {taps[0]}×{taps[1]}".format(**table),
             f"{'B, H, N, d':>18} {'':>8} {'forward ms':>11} {'backward ms':>12} {'peak MiB':>9}"]
    for row in table["training"]:
        shape = ", ".join(map(str, row["shape"]))
        lines.append(f"{shape:>18} {row['name']:>8} {row['forward_ms']:11.3f} {row['backward_ms']:12.3f} {row['peak_mib']:9.1f}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
