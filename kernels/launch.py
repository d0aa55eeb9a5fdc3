"""From a host function to a kernel's launch: arguments checked, outputs made, and the launch itself, where the data is.

A runner is a function run(kernel, grid, block, *arguments). Host functions take one as `run`; without one, CPU tensors go to the
simulator and CUDA tensors to their GPU.
"""

import math

import torch
from numpy import finfo, float32

LARGEST = float(finfo(float32).max)
MAX_HEAD_DIM = 128
WIDTHS = (16, 32, 64, MAX_HEAD_DIM)
MAX_GRID_Y = MAX_GRID_Z = 65535


# Arguments --------------------------------------------------------------------------------------------------------


def attention_arguments(q, k, v, scale):
    """Check the arguments of an attention kernel; return q, k and v detached and contiguous, and scale as a float32.

    q: (B, H, N, d), k and v: (B, H, N_k, d), float32, on one device, 1 <= d <= 128, N_k >= 1; scale: a number, or None for 1/sqrt(d).
    Raises TypeError or ValueError that names the argument, what it is, and what was wanted.
    """
    for name, tensor in {"q": q, "k": k, "v": v}.items():
        check_tensor(name, tensor)
        check_device(name, tensor, q)
    check_sizes(q)
    wanted = (*q.shape[:2], k.shape[2], q.shape[3])
    if tuple(k.shape) != wanted:
        raise ValueError(f"argument k has shape {tuple(k.shape)}; wanted (B, H, N_k, d) with B, H and d of q, {tuple(q.shape)}")
    if tuple(v.shape) != wanted:
        raise ValueError(f"argument v has shape {tuple(v.shape)}; wanted that of k, {wanted}")
    if k.shape[2] == 0:
        raise ValueError(f"argument k has shape {wanted}; wanted at least one key")
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    return *(tensor.detach().contiguous() for tensor in (q, k, v)), checked_scale(scale)


def check_tensor(name, tensor):
    """A 4-D float32 tensor of torch, or an error."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"argument {name} is a {type(tensor).__name__}; wanted a torch.Tensor")
    if tensor.ndim != 4:
        raise ValueError(f"argument {name} has shape {tuple(tensor.shape)}; wanted four dimensions, (B, H, N, d)")
    if tensor.dtype != torch.float32:
        raise TypeError(f"argument {name} has dtype {tensor.dtype}; wanted torch.float32: convert with {name}.float()")


def check_device(name, tensor, first):
    """On the CPU or a CUDA GPU, and where `first`, the argument q, is, or an error."""
    if tensor.device.type not in RUNNERS:
        raise ValueError(f"argument {name} is on {tensor.device}; wanted cpu or cuda")
    if tensor.device != first.device:
        raise ValueError(f"argument {name} is on {tensor.device}; wanted {first.device}, where q is: move it with {name}.to(q.device)")


def check_sizes(q):
    """Sizes of q (B, H, N, d) that grid and registers can hold, or an error."""
    batch, heads, _, d = q.shape
    if not 1 <= d <= MAX_HEAD_DIM:
        raise ValueError(f"argument q has d = {d}; wanted 1 <= d <= {MAX_HEAD_DIM}, as a row must fit a thread")
    if batch > MAX_GRID_Z or heads > MAX_GRID_Y:
        raise ValueError(f"argument q has B = {batch} and H = {heads}; wanted at most {MAX_GRID_Z} each, as they are sizes of the grid")


def checked_scale(scale):
    """A finite number as a float32, or an error."""
    if isinstance(scale, bool) or not isinstance(scale, (int, float, float32)):
        raise TypeError(f"argument scale is {scale!r}; wanted a number, or None for 1/sqrt(d)")
    if not abs(scale) <= LARGEST:
        raise ValueError(f"argument scale is {scale!r}; wanted a finite float32")
    return float32(scale)


def width_for(d):
    """The width of a kernel's rows for head size d: the next of 16, 32, 64, 128, so that few kernels serve all sizes."""
    return next(width for width in WIDTHS if width >= d)


def output(shape, like):
    """A float32 tensor for a kernel to fill, on the device of `like`; on the CPU full of NaN, so that a gap shows."""
    fresh = torch.empty(shape, dtype=torch.float32, device=like.device)
    return fresh.fill_(math.nan) if fresh.device.type == "cpu" else fresh


# Runners ----------------------------------------------------------------------------------------------------------


def launch(kernel, grid, block, *arguments, run=None):
    """kernel[grid, block](*arguments), by `run` or where the first argument, a tensor, is; a grid without a block runs nothing."""
    if 0 not in grid:
        (run or RUNNERS[arguments[0].device.type])(kernel, grid, block, *arguments)


def simulated(kernel, grid, block, *arguments, **options):
    """The runner for CPU tensors; returns sim's Report. options: those of sim.simulate. Raises sim.KernelBug for a bug found."""
    from sim import simulate

    return simulate(kernel, **options)[grid, block](*arguments)


def on_gpu(kernel, grid, block, *arguments):
    """The runner for CUDA tensors: on the device of the first argument and torch's current stream there; does not wait for the end."""
    from numba import cuda

    device = arguments[0].device
    with cuda.gpus[device.index]:
        stream = cuda.external_stream(torch.cuda.current_stream(device).cuda_stream)
        kernel[grid, block, stream](*map(device_argument, arguments))


def device_argument(argument):
    """A CUDA tensor as an array of Numba's over the same memory; anything else as it is."""
    from numba import cuda

    return cuda.as_cuda_array(argument, sync=False) if isinstance(argument, torch.Tensor) else argument


RUNNERS = {"cpu": simulated, "cuda": on_gpu}
