"""The launch of a kernel on the device of its tensors.

A runner is a function run(kernel, grid, block, *arguments). Host functions take one as `run`. Without it, CPU
tensors go to the simulator and CUDA tensors to their GPU.
"""

import functools
import math

import torch
from numba import cuda

from kernels.common.arguments import MAX_HEAD_DIM
from kernels.common.device_argument import device_argument

# elements read by the largest launch that is interpreted, which takes a few seconds
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
    """Call kernel[grid, block](*arguments) by `run`, or by the runner of the first argument's device.

    An empty grid launches nothing.
    """
    if 0 not in grid:
        (run or RUNNERS[arguments[0].device.type])(kernel, grid, block, *arguments)


def simulated(kernel, grid, block, *arguments, engine=None, **options):
    """Run a kernel on CPU tensors in the simulator; return its Report, which names the engine. Raise
    sim.KernelBug for a bug.

    engine, options: those of sim.simulate. Without an engine, small launches are interpreted by "fibers".
        Larger ones are compiled by "native", which takes seconds the first time and then runs thousands of
        times faster.
    """
    from sim import simulate

    engine = engine or ("native" if work(grid, block, arguments) > MOST_INTERPRETED else "fibers")
    return simulate(kernel, engine=engine, **options)[grid, block](*arguments)


def work(grid, block, arguments):
    """Estimate how many elements the threads of a launch read: one head, (N, d), of the largest tensor for
    each thread."""
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
    """Return torch's stream as Numba's, cached, so that Numba also finds its cached launch configuration."""
    return cuda.external_stream(handle)


RUNNERS = {"cpu": simulated, "cuda": on_gpu}
