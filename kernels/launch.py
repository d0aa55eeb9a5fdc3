"""From a host function to a kernel's launch: arguments checked, outputs made, and the launch itself, where
the data is.

A runner is a function run(kernel, grid, block, *arguments). Host functions take one as `run`; without one,
CPU tensors go to the simulator and CUDA tensors to their GPU.
"""

import functools
import math

import ml_dtypes
import numpy as np
import torch
from numba import cuda
from numba.cuda.args import ArgHint
from numpy import finfo, float32

from kernels.conv_extent import WHOLE, check_extent

FLOAT32, HALVES = (torch.float32,), (torch.bfloat16, torch.float16)
LARGEST = float(finfo(float32).max)
MAX_HEAD_DIM = 128
MOST_TAPS = 15
# numbers read by a launch that is not worth compiling for a CPU: some seconds of interpreting
MOST_INTERPRETED = 2**22
WIDTHS = (16, 32, 64, MAX_HEAD_DIM)
MAX_GRID_Y = MAX_GRID_Z = 65535


# Arguments --------------------------------------------------------------------------------------------------


def attention_arguments(q, k, v, scale, dtypes=FLOAT32):
    """Check the arguments of an attention kernel; return q, k and v detached and contiguous, and scale as a
    float32.

    q: (B, H, N, d), k and v: (B, H, N_k, d), of one of `dtypes`, on one device, 1 <= d <= 128, N_k >= 1;
        scale: a number, or None for 1/sqrt(d). Raises TypeError or ValueError that names the argument, what
        it is, and what was wanted.
    """
    for name, tensor in {"q": q, "k": k, "v": v}.items():
        check_tensor(name, tensor, dtypes)
        check_device(name, tensor, q)
        dtypes = (q.dtype,)
    check_sizes(q)
    wanted = (*q.shape[:2], k.shape[2], q.shape[3])
    if tuple(k.shape) != wanted:
        raise ValueError(
            f"argument k has shape {tuple(k.shape)}; wanted (B, H, N_k, d) with B, H and d of q,"
            f" {tuple(q.shape)}"
        )
    if tuple(v.shape) != wanted:
        raise ValueError(f"argument v has shape {tuple(v.shape)}; wanted that of k, {wanted}")
    if k.shape[2] == 0:
        raise ValueError(f"argument k has shape {wanted}; wanted at least one key")
    scale = 1 / math.sqrt(q.shape[3]) if scale is None else scale
    return *(tensor.detach().contiguous() for tensor in (q, k, v)), checked_scale(scale)


def conv_arguments(q, k, v, w, scale, extent=None, dtypes=FLOAT32):
    """Check the arguments of convolutional attention; return q, k, v and w detached and contiguous, scale as
    a float32, and `extent`.

    q, k, v: (B, H, N, d), or what `extent` says of pieces of a sequence; of one of `dtypes`; w: (H, c_q,
        c_k), float32 or like q; on one device, none empty, 1 <= d <= 128, c_q and c_k from 1 to 15; scale: a
        number, or None for 1/sqrt(d). Raises TypeError or ValueError that names the argument, what it is, and
        what was wanted.
    """
    *qkv, scale = attention_arguments(q, k, v if extent is None else k, scale, dtypes)
    if extent is not None:
        check_tensor("v", v, dtypes)
        check_device("v", v, q)
        qkv[2], extent = v.detach().contiguous(), check_extent(extent, q, k, v)
    elif k.shape != q.shape:
        raise ValueError(f"argument k has shape {tuple(k.shape)}; wanted that of q, {tuple(q.shape)}")
    if q.numel() == 0:
        raise ValueError(f"argument q has shape {tuple(q.shape)}; wanted at least one batch, head and query")
    check_taps(w, q)
    return *qkv, w.detach().contiguous(), scale, extent or WHOLE


def backward_arguments(q, k, v, w, o, log_sum, d_o, scale, extent=None, dtypes=FLOAT32):
    """Check the arguments of the backward pass of convolutional attention; return q, k, v and w, scale, d_o
    and extent, as conv_arguments does.

    o, d_o: like the owned rows of q; log_sum: (B, H, N) of them, float32. Raises TypeError or ValueError that
        names the argument, what it is, and what was wanted.
    """
    *qkvw, scale, extent = conv_arguments(q, k, v, w, scale, extent, dtypes)
    owned = *q.shape[:2], q.shape[2] - extent.first_query, q.shape[3]
    wanted = {"o": (o, owned, q.dtype), "log_sum": (log_sum, owned[:3], torch.float32)}
    for name, (tensor, shape, dtype) in {**wanted, "d_o": (d_o, owned, q.dtype)}.items():
        if not isinstance(tensor, torch.Tensor) or tensor.shape != shape or tensor.dtype != dtype:
            got = (
                f"{tensor.dtype}, {tuple(tensor.shape)}"
                if isinstance(tensor, torch.Tensor)
                else type(tensor).__name__
            )
            raise ValueError(f"argument {name} is {got}; wanted {dtype}, {tuple(shape)}")
        check_device(name, tensor, q)
    return *qkvw, scale, d_o.detach().contiguous(), extent


def check_taps(w, q, name="w"):
    """Taps (H, c_q, c_k) for the heads of q, float32 or like q, where q is, or an error."""
    if not isinstance(w, torch.Tensor):
        raise TypeError(f"argument {name} is a {type(w).__name__}; wanted a torch.Tensor")
    if w.ndim != 3 or w.shape[0] != q.shape[1]:
        raise ValueError(
            f"argument {name} has shape {tuple(w.shape)}; wanted (H, c_q, c_k), with H = {q.shape[1]} of q"
        )
    if not all(1 <= size <= MOST_TAPS for size in w.shape[1:]):
        raise ValueError(
            f"argument {name} has shape {tuple(w.shape)}; wanted c_q and c_k from 1 to {MOST_TAPS}"
        )
    check_dtype(name, w, dict.fromkeys([torch.float32, q.dtype]))
    check_device(name, w, q)


def check_tensor(name, tensor, dtypes=FLOAT32):
    """A 4-D tensor of torch, of one of `dtypes`, or an error."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"argument {name} is a {type(tensor).__name__}; wanted a torch.Tensor")
    if tensor.ndim != 4:
        raise ValueError(
            f"argument {name} has shape {tuple(tensor.shape)}; wanted four dimensions, (B, H, N, d)"
        )
    check_dtype(name, tensor, dtypes)


def check_dtype(name, tensor, dtypes):
    """A tensor of one of `dtypes`, or an error."""
    if tensor.dtype not in dtypes:
        first = str(next(iter(dtypes))).removeprefix("torch.")
        convert = "float" if first == "float32" else "bfloat16" if first == "bfloat16" else "half"
        raise TypeError(
            f"argument {name} has dtype {tensor.dtype}; wanted {' or '.join(map(str, dtypes))}: convert with"
            f" {name}.{convert}()"
        )


def check_device(name, tensor, first):
    """On the CPU or a CUDA GPU, and where `first`, the argument q, is, or an error."""
    if tensor.device.type not in RUNNERS:
        raise ValueError(f"argument {name} is on {tensor.device}; wanted cpu or cuda")
    if tensor.device != first.device:
        raise ValueError(
            f"argument {name} is on {tensor.device}; wanted {first.device}, where q is: move it with"
            f" {name}.to(q.device)"
        )


def check_sizes(q):
    """Sizes of q (B, H, N, d) that grid and registers can hold, or an error."""
    batch, heads, _, d = q.shape
    if not 1 <= d <= MAX_HEAD_DIM:
        raise ValueError(
            f"argument q has d = {d}; wanted 1 <= d <= {MAX_HEAD_DIM}, as a row must fit a thread"
        )
    if batch > MAX_GRID_Z or heads > MAX_GRID_Y:
        raise ValueError(
            f"argument q has B = {batch} and H = {heads}; wanted at most {MAX_GRID_Z} each, as they are sizes"
            " of the grid"
        )


def checked_scale(scale):
    """A finite number as a float32, or an error."""
    if isinstance(scale, bool) or not isinstance(scale, (int, float, float32)):
        raise TypeError(f"argument scale is {scale!r}; wanted a number, or None for 1/sqrt(d)")
    if not abs(scale) <= LARGEST:
        raise ValueError(f"argument scale is {scale!r}; wanted a finite float32")
    return float32(scale)


def in_autocasts_type(*tensors):
    """The tensors in the type of torch.autocast where that is on for the first one's device, float32 where it
    has none of HALVES; as they are elsewhere, and what is no tensor too."""
    first = tensors[0]
    if (
        not isinstance(first, torch.Tensor)
        or first.device.type not in RUNNERS
        or not torch.is_autocast_enabled(first.device.type)
    ):
        return tensors
    given = torch.get_autocast_dtype(first.device.type)
    dtype = given if given in HALVES else torch.float32
    return [x.to(dtype) if isinstance(x, torch.Tensor) else x for x in tensors]


def width_for(d):
    """The width of a kernel's rows for head size d: the next of 16, 32, 64, 128, so that few kernels serve
    all sizes."""
    return next(width for width in WIDTHS if width >= d)


def output(shape, like, dtype=torch.float32):
    """A tensor for a kernel to fill, on the device of `like`; on the CPU full of NaN, so that a gap shows."""
    fresh = torch.empty(shape, dtype=dtype, device=like.device)
    return fresh.fill_(math.nan) if fresh.device.type == "cpu" else fresh


# Runners ----------------------------------------------------------------------------------------------------


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
    """The runner for CUDA tensors: on the device of the first argument and torch's current stream there; does
    not wait for the end."""
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


def device_argument(tensor):
    """A CUDA tensor, detached, as a kernel's argument over the same memory."""
    described = description(tensor.shape, None if tensor.is_contiguous() else tensor.stride(), tensor.dtype)
    return (
        TensorArgument(tensor.data_ptr(), *described)
        if described
        else cuda.as_cuda_array(tensor.detach(), sync=False)
    )


class TensorArgument(ArgHint):
    """What numba-cuda asks of an array when it launches: its type, its address, and how it lies there.

    `cuda.as_cuda_array(tensor)` holds the same and more; to make five of them took longer than the rest of
    the launch.
    """

    def __init__(self, address, numba_type, shape, dtype, size, layout):
        self.ptr, self._numba_type_ = address, numba_type
        self.shape, self.dtype, self.size, self._layout = shape, dtype, size, layout

    def to_device(self, retr, stream=0):
        return self


@functools.lru_cache(4096)
def description(shape, strides, dtype):
    """What a TensorArgument has beside the address; strides in elements, None if contiguous.

    Taken from numba-cuda's own array. None if that has no such parts: other versions than the one in
    constraints.txt may launch differently.
    """
    dtype = numpy_dtype(dtype)
    strides = strides and tuple(stride * dtype.itemsize for stride in strides)
    nowhere = {"data": (0, False), "shape": tuple(shape), "strides": strides, "typestr": dtype, "version": 3}
    array = cuda.from_cuda_array_interface(nowhere, sync=False)
    view = getattr(array, "_strided_memory_view_shim", None)
    return view and (array._numba_type_, view.shape, view.dtype, view.size, view._layout)


def numpy_dtype(dtype):
    """torch.float32 as numpy's, torch.bfloat16 and what else numpy lacks as that of ml_dtypes."""
    name = str(dtype).removeprefix("torch.")
    return np.dtype(getattr(ml_dtypes, name, name))


RUNNERS = {"cpu": simulated, "cuda": on_gpu}
