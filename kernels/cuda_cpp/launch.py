"""Compile and launch the kernels of a .cu file.

For a GPU, NVRTC compiles a cubin and cuda.core launches it. Without a GPU, NVRTC compiles PTX and the
simulator runs it. NVRTC and cuda.core are dependencies of numba-cuda. Where NVRTC is missing, the simulator
runs the PTX recorded in kernels/data/cuda_cpp.zip by `python -m kernels.cuda_cpp.record`.
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
    """The kernel `name` of `file`, compiled with macros such as (("WIDTH", 64), ...)."""

    file: str
    name: str
    macros: tuple = ()

    @property
    def path(self):
        return FOLDER / self.file

    @property
    def record(self):
        """The name under which the file's PTX with these macros is recorded."""
        return "-".join([self.path.stem, *(f"{n}{v}" for n, v in self.macros)])


def launch(kernel, grid, block, *arguments, run=None):
    """Launch kernel<<<grid, block>>>(*arguments) with `run`, or with the runner for the first argument's
    device.

    An empty grid is a no-op. Tensors are passed as pointers, Python ints as int, and NumPy scalars with their
    own type.
    """
    if 0 not in grid:
        (run or RUNNERS[arguments[0].device.type])(kernel, grid, block, *arguments)


# In the simulator -------------------------------------------------------------------------------------------


def simulated(kernel, grid, block, *arguments, engine="auto", **options):
    """Run a kernel on CPU tensors in the simulator, and return its Report. Raise sim.KernelBug if it has a
    bug.

    engine, options: arguments of sim.simulate.
    """
    from sim import simulate

    return simulate(module(kernel)[kernel.name], engine=engine, **options)[grid, block](*arguments)


@functools.cache
def module(kernel):
    """Return the Module of the kernel's file, compiled by NVRTC if it is installed, or recorded."""
    from sim import load_ptx

    ptx = ptx_of(kernel) if have_compiler() else recorded(kernel)
    return load_ptx(ptx, source=kernel.path.read_text())


def ptx_of(kernel):
    """Compile the kernel's file to PTX for sm_80 with NVRTC, including line numbers."""
    from sim.ptx.nvrtc import compile_ptx

    macros = (f"-D{name}={value}" for name, value in kernel.macros)
    ptx = compile_ptx(kernel.path.read_text(), kernel.file, f"-I{FOLDER}", *macros)
    # without the folder, so that the recording does not depend on the machine
    return ptx.replace(f"{FOLDER}/", "")


def have_compiler():
    """Return whether NVRTC is installed."""
    try:
        return find_spec("cuda.bindings.nvrtc") is not None
    except ImportError:  # cuda.bindings is not installed
        return False


def recorded(kernel):
    """Return the recorded PTX. Raise LookupError, listing the recordings, if there is none."""
    if kernel.record not in recorded_ptx("cuda_cpp"):
        remedy = "install NVRTC (pip install cuda-bindings nvidia-cuda-nvrtc) to compile it"
        raise not_recorded("cuda_cpp", kernel.record, remedy)
    return recorded_ptx("cuda_cpp")[kernel.record]


# On a GPU ---------------------------------------------------------------------------------------------------


def on_gpu(kernel, grid, block, *arguments):
    """Launch asynchronously on the first argument's device, in torch's current stream there."""
    from cuda.core import LaunchConfig
    from cuda.core import launch as enqueue

    device = arguments[0].device.index
    with torch.cuda.device(device):
        stream = stream_of(device, torch.cuda.current_stream().cuda_stream)
        config = LaunchConfig(grid=grid, block=block)
        enqueue(stream, config, built(kernel, device), *(as_argument(value) for value in arguments))


@functools.cache
def stream_of(device, handle):
    """Return torch's stream on a device as a cuda.core stream."""
    from cuda.core import Device, Stream

    Device(device).set_current()
    return Stream.from_handle(handle)


@functools.cache
def built(kernel, device):
    """Compile the kernel for a device; return the cuda.core kernel."""
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
    """Return a tensor as its address, a Python int as a C++ int, and a NumPy scalar unchanged."""
    if isinstance(value, torch.Tensor):
        return value.data_ptr()
    return np.int32(value) if isinstance(value, int) else value


RUNNERS = {"cpu": simulated, "cuda": on_gpu}
