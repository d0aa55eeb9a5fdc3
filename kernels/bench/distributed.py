"""Convolutional attention over several GPUs: equality with one GPU, times by sequence length, and exposed
communication.

The results are written as JSON.

    python -m kernels.bench.distributed [--ranks 2] [--lengths 32768 65536 131072]
        [--dtype bfloat16] [--json kernels/data/sharded.json]

Each GPU has one process, and the processes communicate through NCCL. "One GPU" is the same call in a group of
size one; in 16 bits it is `conv_attention`, which runs on tensor cores. Communication alone is the same
exchanges without kernels. Computation alone is the same kernels without exchanges: each rank fills the
tensors that it would receive with random numbers.
"""

import argparse
import json
import os
import tempfile
from datetime import date
from pathlib import Path

import torch
from torch import distributed, multiprocessing

from kernels import conv_attention
from kernels import distributed as sharded
from kernels.cases.conv import Shape, inputs, relative_errors, results
from kernels.distributed import Ring, conv_attention_sharded, shard, unshard
from kernels.distributed.plan import LAYOUTS

TAPS = 7
EQUAL = [
    Shape(1, 2, n, d, *taps, causal)
    for n, d, taps, causal in [
        (1, 8, (3, 3), True),
        (7, 8, (15, 15), True),
        (1000, 64, (7, 7), True),
        (1001, 64, (6, 11), False),
        (4096, 128, (6, 11), True),
        (129, 20, (1, 15), True),
    ]
]


class Silent(Ring):
    """A ring that sends nothing, and fills the tensors that it would receive with random numbers. With
    uninitialised memory in their place, the forward pass in bfloat16 took up to twice as long."""

    def start(self, messages):
        for exchange, tensor, _ in messages:
            if exchange is distributed.irecv:
                tensor.normal_()
        return lambda: None


def equality(device, group, dtype):
    """Return {layout: largest relative error of O, dQ, dK, dV and dW against one GPU}, over the shapes in
    EQUAL."""
    worst = {}
    for shape in EQUAL:
        q, k, v, w, d_o = (x.to(dtype) for x in inputs(shape, device=device))
        o, _, *gradients = results(q, k, v, w, d_o, shape.causal)
        for layout in LAYOUTS:
            leaves = [shard(x, group, layout).requires_grad_() for x in (q, k, v)] + [
                w.clone().requires_grad_()
            ]
            mine = conv_attention_sharded(*leaves, group, shape.causal, layout=layout)
            *found, d_w = torch.autograd.grad(mine, leaves, shard(d_o, group, layout))
            got = [*(unshard(x, group, layout) for x in (mine, *found)), d_w]
            errors = relative_errors((got[0], o[..., 0], *got[1:]), (o, o[..., 0], *gradients))
            errors.pop("L")
            worst[layout] = {
                name: max(error, worst.get(layout, {}).get(name, 0)) for name, error in errors.items()
            }
    return worst


def milliseconds(call, repeats):
    """Return the median time of a call on this rank's GPU; all ranks start together.

    The first call, which allocates memory, is not timed.
    """
    call()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        distributed.barrier()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    slowest = torch.tensor(sorted(times)[len(times) // 2], device="cuda")
    distributed.all_reduce(slowest, distributed.ReduceOp.MAX)
    return slowest.item()


def times(n, heads, d, layout, group, repeats, dtype, kind=Ring):
    """Return the (forward, backward) times of one call in milliseconds, measured on the slowest rank.

    kind: Ring, or Silent for computation alone.
    """
    sharded.Ring = kind
    ranks = distributed.get_world_size(group)
    torch.manual_seed(0)
    q, k, v, d_o = torch.randn(4, 1, heads, n // ranks, d, device="cuda").to(dtype)
    w = (torch.randn(heads, TAPS, TAPS, device="cuda") / TAPS).to(dtype).requires_grad_()
    leaves = [x.requires_grad_() for x in (q, k, v)] + [w]
    forward = milliseconds(lambda: conv_attention_sharded(*leaves, group, layout=layout), repeats)
    o = conv_attention_sharded(*leaves, group, layout=layout)
    backward = milliseconds(lambda: torch.autograd.grad(o, leaves, d_o, retain_graph=True), repeats)
    sharded.Ring = Ring
    return forward, backward


def one_gpu(n, heads, d, alone, repeats, dtype):
    """Return the (forward, backward) times on one GPU in milliseconds.

    For a 16-bit dtype, time `conv_attention`. For float32, time the sharded call in a group of one GPU.
    """
    if dtype == torch.float32:
        return times(n, heads, d, "contiguous", alone, repeats, dtype)
    q, k, v, d_o = torch.randn(4, 1, heads, n, d, device="cuda").to(dtype)
    w = (torch.randn(heads, TAPS, TAPS, device="cuda") / TAPS).to(dtype)
    leaves = [x.requires_grad_() for x in (q, k, v, w)]
    forward = milliseconds(lambda: conv_attention(*leaves), repeats)
    o = conv_attention(*leaves)
    backward = milliseconds(lambda: torch.autograd.grad(o, leaves, d_o, retain_graph=True), repeats)
    return forward, backward


def exchanges(n, heads, d, group, repeats, dtype):
    """Return the times in milliseconds of sending K and V around the ring, and of one all-gather."""
    ring, ranks = Ring(group, torch.empty(0, device="cuda")), distributed.get_world_size(group)
    block = torch.randn(1, heads, 2 * n // ranks, d, device="cuda").to(dtype)

    def round_the_ring():
        visitor = block
        for _ in range(ranks - 1):
            visitor, wait = ring.pass_on(visitor, torch.empty_like(visitor))
            wait()

    round_the_ring()
    return milliseconds(round_the_ring, repeats), milliseconds(lambda: ring.gather(block), repeats)


def rank_main(rank, ranks, store, lengths, heads, d, path, dtype):
    torch.cuda.set_device(rank)
    distributed.init_process_group(
        "nccl",
        init_method=Path(store).as_uri(),
        rank=rank,
        world_size=ranks,
        device_id=torch.device("cuda", rank),
    )
    alone = [distributed.new_group([r]) for r in range(ranks)][rank]
    record = {
        "date": str(date.today()),
        "device": torch.cuda.get_device_name(),
        "ranks": ranks,
        "heads": heads,
        "d": d,
        "taps": TAPS,
        "torch": torch.__version__,
        "dtype": str(dtype).removeprefix("torch."),
        "equality": equality(f"cuda:{rank}", None, dtype),
        "rows": [],
    }
    if rank == 0:
        print(json.dumps(record["equality"]), flush=True)
    times(4096, heads, d, "zigzag", None, 2, dtype)  # compile the kernels and connect the ranks before timing
    for n in lengths:
        repeats = 3 if n <= 65536 or dtype != torch.float32 else 1
        row = {"N": n}
        row["ring"], row["all-gather"] = exchanges(n, heads, d, None, 5, dtype)
        row["one GPU"] = one_gpu(n, heads, d, alone, repeats, dtype)
        for layout in LAYOUTS:
            row[layout] = times(n, heads, d, layout, None, repeats, dtype)
        row["zigzag, nothing sent"] = times(n, heads, d, "zigzag", None, repeats, dtype, Silent)
        record["rows"].append(row)
        if rank == 0:
            print(json.dumps(row), flush=True)
            if path:
                Path(path).write_text(json.dumps(record, indent=1) + "\n")
    distributed.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--ranks", type=int, default=torch.cuda.device_count())
    parser.add_argument("--lengths", type=int, nargs="+", default=[32768, 65536, 131072])
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--d", type=int, default=64)
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--json")
    given = parser.parse_args()
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(
            rank_main,
            (
                given.ranks,
                f"{folder}/store",
                given.lengths,
                given.heads,
                given.d,
                given.json,
                getattr(torch, given.dtype),
            ),
            given.ranks,
        )
