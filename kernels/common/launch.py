"""From a host function to a kernel's launch, where the data is.

A runner is a function run(kernel, grid, block, *arguments). Host functions take one as `run`; without one,
CPU tensors go to the simulator and CUDA tensors to their GPU.
"""

import functools
import math

import torch
from numba import cuda

from kernels.common.arguments import MAX_HEAD_DIM
from kernels.common.device_argument import device_argument

# numbers read by a launch that is not worth compiling for a CPU: some seconds of interpreting
MOST_INTERPRETED = 2**22
WIDTHS = (16, 32, 64, MAX_HEAD_DIM)


def width_for(d):
    """Return the width of a kernel's rows for head size d: the next of 16, 32, 64, 128. Few widths mean
    few compiled kernels."""
    return next(width for width in WIDTHS if width >= d)


def output(shape, like, dtype=torch.float32):
    """Return a tensor for a kernel to fill, on the device of `like`. On the CPU it is filled with NaN,
    which reveals gaps."""
    fresh = torch.empty(shape, dtype=dtype, device=like.device)
    return fresh.fill_(math.nan) if fresh.device.type == "cpu" else fresh


def launch(kernel, grid, block, *arguments, run=None):
    """kernel[grid, block](*arguments), by `run` or where the first argument, a tensor, is; a grid without a
    block runs nothing."""
    if 0 not in grid:
        (run or RUNNERS[arguments[0].device.type])(kernel, grid, block, *arguments)


def simulated(kernel, grid, block, *arguments, engine=None, **options):
    """The runner for CPU tensors; returns sim's Report, which says which engine ran. Raises sim.KernelBug for
    a bug found.

    engine, options: those of sim.simulate. Without an engine a launch of little work is interpreted, by
        "fibers", and a larger one compiled for the CPU, "native", which takes seconds the first time and is
        thousands of times faster.
    """
    from sim import simulate

    engine = engine or ("native" if work(grid, block, arguments) > MOST_INTERPRETED else "fibers")
    return simulate(kernel, engine=engine, **options)[grid, block](*arguments)


def work(grid, block, arguments):
    """About how many numbers the threads of a launch read: each those of one head, (N, d), of the largest
    tensor."""
    heads = math.prod(grid[1:]) if isinstance(grid, tuple) else 1
    largest = max(argument.numel() for argument in arguments if isinstance(argument, torch.Tensor))
    return (
        math.prod(grid if isinstance(grid, tuple) else (grid,))
        * math.prod(block if isinstance(block, tuple) else (block,))
        * largest
        // heads
    )


def on_gpu(kernel, grid, block, *arguments):
    """Launch on the first argument's device, in torch's current stream there, without waiting for the
    kernel to end."""
    device = arguments[0].device.index
    if device != torch.cuda.current_device():
        with torch.cuda.device(device):
            return on_gpu(kernel, grid, block, *arguments)
    stream = external_stream(device, torch.cuda.current_stream().cuda_stream)
    kernel[grid, block, stream](
        *[device_argument(value) if isinstance(value, torch.Tensor) else value for value in arguments]
    )


@functools.cache
def external_stream(device, handle):
    """A stream of torch's on a device, as Numba's; made once, which also lets Numba recognise a launch
    configuration."""
    return cuda.external_stream(handle)


RUNNERS = {"cpu": simulated, "cuda": on_gpu}
