"""Record the data of lesson 18 on a GPU of compute capability 9.0 or newer: print kernels/data/lesson18.json.

    python -m kernels.bench.record.lesson18 > lesson18.json

The data are the resource usage that the driver reports for the 16-bit kernels (registers, spilled bytes,
shared memory, resident blocks), the times of the backward pass and of one token in a CUDA graph with a cold
cache, and PyTorch's times. Each variant of the backward kernels is compiled in a separate process. The
variants compile in parallel, and are timed one after the other. The program needs about half a minute, and 10
GiB of GPU memory.
"""

import json
import math
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch
from numpy import float32
from torch.nn.functional import scaled_dot_product_attention

from kernels import conv_attention_decode
from kernels.bench.timing import backward_milliseconds, bandwidth, machine, milliseconds, replay
from kernels.common.specialised import resources
from kernels.conv import tensor_backward as conv_tensor_backward
from kernels.conv import tensor_decode as decode_tensor
from kernels.reference import conv_attention as eager

TAPS, BF16 = (7, 7), torch.bfloat16
BACKWARD = [(1, 8, 4096, 64), (4, 16, 2048, 64)]
# (True for the variant that owns keys, warps per block, register limit per thread)
BUILT = [
    (of_keys, warps, most)
    for of_keys in (False, True)
    for warps, most in [(8, None), (8, 128), (8, 80), (4, 128), (4, 168)]
]
CACHES = {  # cache shape -> the numbers of splits to time
    (1, 8, 4096, 64): (1, 2, 4, 8, 16, 24, 32),
    (1, 8, 16384, 64): (1, 2, 4, 8, 16, 32, 64, 128),
    (8, 16, 16384, 64): (1, 2, 4, 6, 8, 16, 32),
}
COLD = 2**27  # minimum bytes read per graph: more than the L2 cache holds


def main():
    began = {**machine(), "taps": TAPS, "bandwidth": bandwidth()}
    context = get_context("spawn")
    turn = context.Manager().Lock()
    with ProcessPoolExecutor(len(BUILT), mp_context=context) as pool:
        built = list(pool.map(backward_kernel, *zip(*BUILT, strict=True), [turn] * len(BUILT)))
    record = began | {
        "built": built,
        "backward": [row for shape in BACKWARD for row in backward(shape)],
        "decoding": [row for shape, tried in CACHES.items() for row in decoding(shape, tried)],
        "decoder": decoder(),
    }
    print(json.dumps(record, indent=1))


def note(*words):
    print(*words, file=sys.stderr, flush=True)


# The backward pass ------------------------------------------------------------------------------------------


def inputs(shape):
    """Return (q, k, v, w, o, L, dO) for a backward pass. Their values do not affect its time."""
    torch.manual_seed(18)
    q, k, v, o, d_o = torch.randn(5, *shape, device="cuda", dtype=BF16)
    w, log_sum = torch.randn(shape[1], *TAPS, device="cuda") / 7, torch.full(shape[:3], 8.0, device="cuda")
    return q, k, v, w, o, log_sum, d_o


def passes(given, wanted, warps=conv_tensor_backward.WARPS):
    """Return a function that runs the backward pass for the `wanted` gradients of (dQ, dK, dV, dW)."""
    q, k, v, w, o, log_sum, d_o = given
    rest = d_o, True, float32(q.shape[3] ** -0.5), wanted, None, warps
    return lambda: conv_tensor_backward.conv_tensor_backward(q, k, v, w, o, log_sum, *rest)


def backward_kernel(of_keys, warps, most, turn):
    """Return the resource usage that the driver reports for one variant of a backward kernel, and the
    kernel's time on the last shape of BACKWARD."""
    shape = BACKWARD[-1]
    kernel = conv_tensor_backward.gradient_kernel(shape[3], "bfloat16", *TAPS, of_keys, warps, most)
    conv_tensor_backward.registers_of = lambda width: most
    wanted = (False, True, True, False) if of_keys else (True, False, False, True)
    call = passes(inputs(shape), wanted, warps=warps)
    call()
    with turn:
        time = milliseconds(replay(call))
    frame = conv_tensor_backward.frame_of(*TAPS, of_keys)
    row = {"of_keys": of_keys, "warps": warps, "most_registers": most, **driver_facts(kernel, warps * 32)}
    row |= {"owned": conv_tensor_backward.owned_rows(frame, warps), "shape": shape, "ms": time}
    note(row)
    return row


def driver_facts(kernel, threads):
    """Return the resource usage that the driver reports for a compiled kernel: registers, local and shared
    memory, resident blocks."""
    found = resources(kernel, threads)
    return {
        "threads": threads,
        "registers": found["registers"],
        "spilled": found["local"],
        "shared_bytes": found["shared"],
        "blocks": found["blocks"],
    }


def backward(shape):
    """Return one row per contestant: the time of a bfloat16 backward pass in milliseconds.

    Our kernels run in a CUDA graph; autograd launches the kernels of the other contestants one by one.
    """
    given = inputs(shape)
    yield {"shape": shape, "name": "kernels", "ms": milliseconds(replay(passes(given, (True,) * 4)))}
    *leaves, w = (x.detach().clone().requires_grad_() for x in (*given[:3], given[3].to(BF16)))
    for name, attend, grown in [
        ("eager", lambda: eager(*leaves, w), [*leaves, w]),
        ("sdpa", lambda: scaled_dot_product_attention(*leaves, is_causal=True), leaves),
    ]:
        yield {"shape": shape, "name": name, "ms": backward_milliseconds(attend(), grown, given[-1])}


# One token --------------------------------------------------------------------------------------------------


def caches(shape, dtype):
    """Return [(window, k, v)]: enough caches to read COLD bytes, and at least two."""
    count = max(2, COLD // (2 * math.prod(shape) * dtype.itemsize))
    made = [torch.randn(2, *shape, device="cuda", dtype=dtype) for _ in range(count)]
    return [(both[0, :, :, -TAPS[0] :].clone(), both[0], both[1]) for both in made]


def decoding(shape, tried):
    """Return one row per decoder: microseconds per token.

    Each decoder is timed twice: in a CUDA graph that reads all caches in sequence, and launched from Python.

    tried: the numbers of splits to time, in a graph.
    """
    for name, dtype in [("float32", torch.float32), ("kernels", BF16), ("sdpa", BF16)]:
        given, w = caches(shape, dtype), torch.randn(shape[1], *TAPS, device="cuda") / 7

        def all_of_them(given=given, w=w, name=name, **options):
            for window, k, v in given:
                if name == "sdpa":
                    scaled_dot_product_attention(window[:, :, -1:], k, v)
                else:
                    conv_attention_decode(window, k, v, w, **options)

        graph = 1000 * milliseconds(replay(all_of_them)) / len(given)
        row = {"shape": shape, "name": name, "us": graph}
        row["us_from_python"] = 1000 * milliseconds(all_of_them) / len(given)
        if name == "kernels":
            row["splits"] = {
                count: 1000 * milliseconds(replay(lambda s=count: all_of_them(splits=s))) / len(given)
                for count in tried
            }
        note(row)
        yield row


def decoder():
    """Return the resource usage that the driver reports for the 16-bit decoder with d = 64."""
    return driver_facts(decode_tensor.decode_tensor_kernel(64, "bfloat16", *TAPS), decode_tensor.WARPS * 32)


if __name__ == "__main__":
    main()
