"""Print registers, spills, shared memory, occupancy and time of each tensor-core kernel, in bfloat16, causal.

Run python -m kernels.bench.tensor_kernels on a GPU of compute capability 8.0 or newer. Times are medians of
CUDA graphs with a cold cache.
"""

import math

import torch
from numpy import float32

from kernels.bench.timing import milliseconds, replay
from kernels.common.launch import on_gpu
from kernels.common.specialised import resources
from kernels.conv.backward import backward as backward_pass
from kernels.conv.decode import conv_attention_decode
from kernels.conv.forward import conv_forward
from kernels.flash.forward import flash_forward

TRAINING = [((4, 16, 2048, 64), (7, 7)), ((4, 16, 4096, 64), (11, 11)), ((2, 32, 4096, 128), (6, 11))]
CACHES = [((8, 16, 16384, 64), (7, 7)), ((4, 32, 8192, 128), (7, 7))]


def flash(q, k, v, w, run):
    flash_forward(q, k, v, run=run)


def conv(q, k, v, w, run):
    conv_forward(q, k, v, w, run=run)


def backward(q, k, v, w, run):
    o, log_sum = conv_forward(q, k, v, w)
    scale = float32(1 / math.sqrt(q.shape[3]))
    d_o, every = torch.randn_like(o), (True,) * 4
    backward_pass(q, k, v, w, o, log_sum, d_o, True, scale, every, False, run=run)


def decode(q, k, v, w, run):
    conv_attention_decode(q[:, :, -w.shape[1] :], k, v, w, run=run)


def launches(call, shape, taps):
    """Return the distinct launches of a call: (kernel, grid, block, arguments)."""
    q, k, v = torch.randn(3, *shape, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(shape[1], *taps, device="cuda") / 7
    seen = []

    def run(kernel, grid, block, *arguments):
        on_gpu(kernel, grid, block, *arguments)
        seen.append((kernel, grid, block, arguments))

    call(q, k, v, w, run)
    return seen


def facts(kernel, grid, block, arguments):
    """Return (registers, bytes of local memory, bytes of shared memory, blocks per multiprocessor,
    milliseconds)."""
    found = resources(kernel, block)
    time = milliseconds(replay(lambda: on_gpu(kernel, grid, block, *arguments)))
    return *(found[name] for name in ("registers", "local", "shared", "blocks")), time


def main():
    print(f"{torch.cuda.get_device_name()}\n{'':9} {'B, H, N, d':>18} {'taps':>6} {'':25}", end="")
    print(f"{'registers':>10} {'local':>6} {'shared':>7} {'blocks':>7} {'ms':>8}")
    work = [(flash, shape, (1, 1)) for shape, _ in (TRAINING[1], TRAINING[2])]
    work += [(call, *sizes) for call in (conv, backward) for sizes in TRAINING]
    for call, shape, taps in work + [(decode, *sizes) for sizes in CACHES]:
        for launched in launches(call, shape, taps):
            registers, local, shared, blocks, time = facts(*launched)
            sizes = f"{', '.join(map(str, shape)):>18} {'×'.join(map(str, taps)):>6}"
            name = launched[0].py_func.__name__
            print(f"{call.__name__:9} {sizes} {name:25}", end="")
            print(f"{registers:10} {local:6} {shared:7} {blocks:7} {time:8.3f}")


if __name__ == "__main__":
    main()
