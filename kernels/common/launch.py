"""Launch a kernel on the device of its tensors.

A runner is a function run(kernel, grid, block, *arguments) that executes a launch. Host functions accept one
as `run`. By default, CPU tensors are simulated and CUDA tensors run on their GPU.
"""

import functools
import math

import torch
from numba import cuda

from kernels.common.arguments import MAX_HEAD_DIM
from kernels.common.device_argument import device_argument
from kernels.common.specialised import MOST_PLANS, Steps, plan_for, plans

# largest number of elements that an interpreted launch may read; such a launch takes a few seconds
MOST_INTERPRETED = 2**22
ALIGNMENT = 16  # bytes
remembered: dict = {}  # key -> Steps, for `relaunch` and `repeated`
WIDTHS = (16, 32, 64, MAX_HEAD_DIM)


def width_for(d):
    """Return the row width of the kernel for head size d: d rounded up to 16, 32, 64 or 128.

    Using few widths keeps the number of compiled kernels small.
    """
    return next(width for width in WIDTHS if width >= d)


def output(shape, like, dtype=torch.float32):
    """Allocate a kernel's output on the device of `like`. On the CPU, fill it with NaN to reveal missing
    stores."""
    fresh = torch.empty(shape, dtype=dtype, device=like.device)
    return fresh.fill_(math.nan) if fresh.device.type == "cpu" else fresh


class Bits:
    """A kernel argument: a tensor whose memory the kernel reads or writes as elements of another type.

    `Bits(x, dtype)` is equivalent to `x.view(dtype)`. A launch on a GPU needs no view, which would cost 2 µs.
    """

    __slots__ = ("dtype", "tensor")

    def __init__(self, tensor, dtype):
        self.tensor, self.dtype = tensor, dtype

    @property
    def device(self):
        return self.tensor.device

    def view(self):
        """Return the tensor as a view with elements of `dtype`."""
        return self.tensor.view(self.dtype)


def launch(kernel, grid, block, *arguments, run=None, remember=None, early=False):
    """Launch kernel[grid, block](*arguments) with `run`, or with the runner for the first argument's device.

    An empty grid is a no-op. A runner other than `on_gpu` receives views in place of Bits.

    remember: (key, tensors) for `relaunch`.
    early: let the kernel start before the previous kernel of the stream has ended, as described in
        `kernels.tensor_cores.early_launch`.

    Return the Plan of a launch by `on_gpu`, or None.
    """
    if 0 in grid:
        return None
    run = run or RUNNERS[arguments[0].device.type]
    if run is on_gpu:
        plan = on_gpu(kernel, grid, block, *arguments, early=early)
    else:
        run(kernel, grid, block, *map(plain, arguments))
        plan = None
    if remember:
        key, tensors = remember
        remember_steps(key, [(plan, range(len(tensors)), arguments)], tensors)
    return plan


def remember_steps(key, launched, tensors, *options):
    """Remember a sequence of launches under a key, unless the key is None or a launch cannot be repeated.

    launched: (Plan or None, indices of its tensors in `tensors`, arguments) for each launch.
    options: the arguments of Steps after `plans`.
    """
    if key is None or len(remembered) >= MOST_PLANS:
        return
    addresses = [None if x is None else x.data_ptr() for x in tensors]
    for plan, places, arguments in launched:
        if plan is None or [addresses[place] for place in places] != addresses_of(arguments):
            return
    remembered[key] = Steps([(plan, tuple(places)) for plan, places, _ in launched], *options)


def relaunch(key, tensors):
    """Repeat the launches that are remembered under this key, with other tensors; return whether there are
    any.

    The key must determine everything in a launch except the addresses of its tensors: shapes, types, device
    and numbers. All tensors must be contiguous, in the order of the kernel's arguments.
    """
    steps = remembered.get(key)
    addresses = steps and aligned_addresses(steps, tensors)
    if addresses:
        steps.launch(addresses, raw_stream(steps.device))
    return bool(addresses)


def repeated(key, given, number):
    """Repeat the launches that are remembered under this key; return their results, or None if there are no
    such launches.

    given: contiguous tensors. The results have the shapes and types of the first ones.
    number: a float32 tensor on the same device.

    The launches use the addresses of `given`, of the results, and of the parts of their scratch memory.
    """
    steps = remembered.get(key)
    addresses = steps and aligned_addresses(steps, given)
    if not addresses:
        return None
    results = [torch.empty_like(x) if made else None for x, made in zip(given, steps.results)]
    addresses += [0 if x is None else x.data_ptr() for x in results]
    if steps.size:
        scratch = number.new_empty(steps.size)  # is needed until the launches are issued
        first = scratch.data_ptr()
        addresses += [first + start for start in steps.scratch]
    steps.launch(addresses, raw_stream(steps.device))
    return tuple(results)


def aligned_addresses(steps, tensors):
    """Return the addresses of tensors for a repeated launch, or None if one of them cannot be used.

    Unaligned addresses are refused, because some kernels need copies of such tensors.
    """
    if steps.device != current_device():
        return None
    addresses = [x.data_ptr() for x in tensors]
    for address in addresses:
        if address % ALIGNMENT:
            return None
    return addresses


def addresses_of(arguments):
    """Return the addresses of the tensors among the arguments of a launch."""
    tensors = (argument.tensor if type(argument) is Bits else argument for argument in arguments)
    return [x.data_ptr() for x in tensors if isinstance(x, torch.Tensor)]


def plain(argument):
    """Return an argument, with a view in place of Bits."""
    return argument.view() if type(argument) is Bits else argument


def simulated(kernel, grid, block, *arguments, engine=None, **options):
    """Run a kernel on CPU tensors in the simulator, and return its Report. Raise sim.KernelBug if it has a
    bug.

    engine, options: arguments of sim.simulate. By default, small launches are interpreted (engine "fibers"),
        and larger ones are compiled ("native"): compilation takes seconds the first time, and the compiled
        kernel runs thousands of times faster.
    """
    from sim import simulate

    engine = engine or ("native" if work(grid, block, arguments) > MOST_INTERPRETED else "fibers")
    return simulate(kernel, engine=engine, **options)[grid, block](*arguments)


def work(grid, block, arguments):
    """Estimate how many elements the threads of a launch read.

    The estimate assumes that each thread reads one head, (N, d), of the largest tensor.
    """
    heads = math.prod(grid[1:]) if isinstance(grid, tuple) else 1
    largest = max(argument.numel() for argument in arguments if isinstance(argument, torch.Tensor))
    return (
        math.prod(grid if isinstance(grid, tuple) else (grid,))
        * math.prod(block if isinstance(block, tuple) else (block,))
        * largest
        // heads
    )


def on_gpu(kernel, grid, block, *arguments, early=False):
    """Launch asynchronously on the first argument's device, in torch's current stream there.

    Return the Plan, or None if Numba launches the kernel.
    """
    device = (arguments[0].tensor if type(arguments[0]) is Bits else arguments[0]).get_device()
    if device != current_device():
        with torch.cuda.device(device):
            return on_gpu(kernel, grid, block, *arguments, early=early)
    key, addresses = [id(kernel), device, grid, block, early], []
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            key += (argument.shape, argument.dtype, argument.is_contiguous() or argument.stride())
            addresses.append(argument.data_ptr())
        elif type(argument) is Bits:
            tensor = argument.tensor
            key += (argument.dtype, tensor.shape, tensor.dtype, tensor.is_contiguous() or tensor.stride())
            addresses.append(tensor.data_ptr())
        else:
            key += (type(argument), argument)
    key, stream = tuple(key), raw_stream(device)
    plan = plans.get(key) or plan_for(key, kernel, grid, block, device, [*map(plain, arguments)], early)
    if plan.function is None:
        return with_numba(kernel, grid, block, device, stream, map(plain, arguments))
    plan.steps.launch(addresses, stream)
    return plan


def raw_stream(device):
    """Return the address of torch's current stream on a device."""
    return torch.cuda.current_stream(device).cuda_stream


def current_device():
    """Return the index of torch's current device, when a tensor on a GPU exists."""
    return torch.cuda.current_device()


# private functions of torch take a tenth of the time, but may be missing
raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", raw_stream)
current_device = getattr(torch._C, "_cuda_getDevice", current_device)


def with_numba(kernel, grid, block, device, stream, arguments):
    """Launch a kernel with Numba's launch code, which takes more time but supports every argument."""
    kernel[grid, block, external_stream(device, stream)](
        *[device_argument(value) if isinstance(value, torch.Tensor) else value for value in arguments]
    )


@functools.cache
def external_stream(device, handle):
    """Return torch's stream as a Numba stream. Numba finds its cached launch configuration only if it is
    passed the same object."""
    return cuda.external_stream(handle)


RUNNERS = {"cpu": simulated, "cuda": on_gpu}
