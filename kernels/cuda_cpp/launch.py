"""A kernel of a .cu file, compiled by NVRTC: for a GPU and launched there by cuda.core, or to PTX, without a
GPU, and run by the simulator.

Both come with numba-cuda's CUDA parts. Where NVRTC is missing, the simulator runs the PTX recorded in
kernels/data/cuda_cpp.zip by `python -m kernels.cuda_cpp.record`.
"""

import functools
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from kernels.common.data import not_recorded, recorded_ptx

FOLDER = Path(__file__).parent


class Kernel(NamedTuple):
    """A kernel `name` of `file`, for which the compiler is given macros: (("WIDTH", 64), ...)."""

    file: str
    name: str
    macros: tuple = ()

    @property
    def path(self):
        return FOLDER / self.file

    @property
    def record(self):
        """The name of the record of its file with these macros."""
        return "-".join([self.path.stem, *(f"{n}{v}" for n, v in self.macros)])


def launch(kernel, grid, block, *arguments, run=None):
    """kernel<<<grid, block>>>(*arguments), by `run` or where the first argument, a tensor, is; a grid without
    a block runs nothing. Tensors are pointers, ints are int, numpy's
    numbers of their own type."""
    if 0 not in grid:
        (run or RUNNERS[arguments[0].device.type])(kernel, grid, block, *arguments)


# In the simulator -------------------------------------------------------------------------------------------


def simulated(kernel, grid, block, *arguments, engine="fibers", **options):
    """The runner for CPU tensors; returns sim's Report. Raises sim.KernelBug for a bug found.

    engine, options: those of sim.simulate.
    """
    from sim import simulate

    return simulate(module(kernel)[kernel.name], engine=engine, **options)[grid, block](*arguments)


@functools.cache
def module(kernel):
    """The Module of the kernel's file, compiled by NVRTC, or without it as recorded."""
    from sim import load_ptx

    ptx = ptx_of(kernel) if have_compiler() else recorded(kernel)
    return load_ptx(ptx, source=kernel.path.read_text())


def ptx_of(kernel):
    """The PTX of the kernel's file by NVRTC, for sm_80, with line numbers."""
    from sim.ptx.nvrtc import compile_ptx

    macros = (f"-D{name}={value}" for name, value in kernel.macros)
    ptx = compile_ptx(kernel.path.read_text(), kernel.file, f"-I{FOLDER}", *macros)
    return ptx.replace(f"{FOLDER}/", "")


def have_compiler():
    """Whether NVRTC is installed."""
    try:
        return find_spec("cuda.bindings.nvrtc") is not None
    except ImportError:  # no cuda.bindings at all
        return False


def recorded(kernel):
    """The PTX as it was recorded. Errors: LookupError that lists what is."""
    if kernel.record not in recorded_ptx("cuda_cpp"):
        remedy = "install NVRTC (pip install cuda-bindings nvidia-cuda-nvrtc) to compile it"
        raise not_recorded("cuda_cpp", kernel.record, remedy)
    return recorded_ptx("cuda_cpp")[kernel.record]


# On a GPU ---------------------------------------------------------------------------------------------------


def on_gpu(kernel, grid, block, *arguments):
    """The runner for CUDA tensors: on the device of the first argument and torch's current stream there; does
    not wait for the end."""
    from cuda.core import LaunchConfig
    from cuda.core import launch as enqueue

    device = arguments[0].device.index
    with torch.cuda.device(device):
        stream = stream_of(device, torch.cuda.current_stream().cuda_stream)
        config = LaunchConfig(grid=grid, block=block)
        enqueue(stream, config, built(kernel, device), *(as_argument(value) for value in arguments))


@functools.cache
def stream_of(device, handle):
    """torch's stream on a device as cuda.core's."""
    from cuda.core import Device, Stream

    Device(device).set_current()
    return Stream.from_handle(handle)


@functools.cache
def built(kernel, device):
    """The kernel compiled for a device, cuda.core's."""
    from cuda.core import Program, ProgramOptions

    major, minor = torch.cuda.get_device_capability(device)
    options = ProgramOptions(
        name=kernel.file,
        arch=f"sm_{major}{minor}",
        std="c++17",
        lineinfo=True,
        include_path=str(FOLDER),
        define_macro=[(name, str(value)) for name, value in kernel.macros],
    )
    program = Program(kernel.path.read_text(), "c++", options)
    return program.compile("cubin").get_kernel(kernel.name)


def as_argument(value):
    """A tensor as its address, a Python int as CUDA C++'s int, numpy's numbers as what they are."""
    if isinstance(value, torch.Tensor):
        return value.data_ptr()
    return np.int32(value) if isinstance(value, int) else value


RUNNERS = {"cpu": simulated, "cuda": on_gpu}
