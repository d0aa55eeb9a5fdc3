"""Time the multi-token layer on this GPU compared with PyTorch, and measure its memory and errors: python -m
kernels.bench.multi_token

All contestants are causal, with 6 × 11 taps before and after the softmax and full maps over 16 heads, and
float32 or, with --dtype bfloat16, all in bfloat16: the kernels, PyTorch eager (`kernels.reference`), and the
same through torch.compile. The contestants for decoding one token are: the kernels as a replayed CUDA graph;
`conv_attention_decode`, as a lower bound; and recomputing the whole matrix, as the published code does.
Errors are the largest over all shapes of `kernels.cases.multi_token`, in float32.
"""

import argparse
import json
from pathlib import Path

import torch

from kernels import conv_attention_decode, multi_token_attention, multi_token_attention_decode
from kernels.bench.timing import machine, milliseconds, replay, require_gpu, time_passes
from kernels.cases.multi_token import SHAPES, errors_of
from kernels.reference import multi_token_attention as eager

HEADS, WIDTH, TAPS = 16, 64, (6, 11)
LENGTHS, CACHES = (256, 1024, 2048, 4096), (4096, 16384)
# torch.compile is timed only for this length and longer ones, because it needs 15 s per length
COMPILED = 2048


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", type=Path, help="write the table to this file too")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    arguments = parser.parse_args()
    require_gpu(parser, "kernels.bench.multi_token")
    dtype = getattr(torch, arguments.dtype)
    table = {**machine(), "dtype": arguments.dtype, "heads": HEADS, "d": WIDTH, "taps": TAPS}
    for part, rows in {"errors": errors(), "decoding": decoding(dtype), "training": training(dtype)}.items():
        for row in rows:
            table[part] = table.get(part, []) + [row]
            print(json.dumps({part: row}), flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps(table, indent=1) + "\n")


def parts(dtype):
    """Return taps, head_map, after_taps and after_head_map on the GPU."""
    taps, after_taps = torch.randn(2, HEADS, *TAPS, device="cuda", dtype=dtype) / 8
    head_map, after_head_map = torch.randn(2, HEADS, HEADS, device="cuda", dtype=dtype) / 4
    return taps, head_map, after_taps, after_head_map


def errors():
    """Yield one row: the largest relative error of each result over all shapes."""
    found = [errors_of(shape, device="cuda") for shape in SHAPES]
    names = dict.fromkeys(name for row in found for name in row)
    yield {"shapes": len(found), **{name: max(row.get(name, 0.0) for row in found) for name in names}}


def training(dtype):
    """Yield one row per length and contestant: milliseconds and peak MiB of the forward pass, and of the
    backward pass."""
    for n in LENGTHS:
        q, k, v, d_o = torch.randn(4, 1, HEADS, n, WIDTH, device="cuda", dtype=dtype)
        leaves = [leaf.requires_grad_() for leaf in (q, k, v, *parts(dtype))]
        torch._dynamo.reset()
        contestants = {"kernels": multi_token_attention, "eager": eager}
        if n >= COMPILED:
            contestants["compile"] = torch.compile(eager, dynamic=False)
        for name, attend in contestants.items():
            yield {"n": n, "name": name, **time_passes(attend, leaves, leaves, d_o)}


@torch.no_grad()
def decoding(dtype):
    """Yield one row per cache and contestant: microseconds for one token, or None if the GPU has too little
    memory."""
    for n in CACHES:
        for name, call in decoders(n, dtype).items():
            try:
                yield {"n": n, "name": name, "us": 1000 * milliseconds(call)}
            except torch.OutOfMemoryError:
                yield {"n": n, "name": name, "us": None}


def decoders(n, dtype):
    """Return {name: function that computes the output row of the last of n tokens}."""
    q, k, v = torch.randn(3, 1, HEADS, n, WIDTH, device="cuda", dtype=dtype)
    layer, last = parts(dtype), q[:, :, 1 - 2 * TAPS[0] :].contiguous()
    few = last[:, :, -TAPS[0] :].contiguous()
    return {
        "kernels": replay(lambda: multi_token_attention_decode(last, k, v, *layer)),
        "no graph": lambda: multi_token_attention_decode(last, k, v, *layer),
        "conv_attention_decode": replay(lambda: conv_attention_decode(few, k, v, layer[0])),
        "all again": lambda: eager(q, k, v, *layer),
    }


if __name__ == "__main__":
    main()
