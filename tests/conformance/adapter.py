"""Numba-cuda without a GPU: its own compiler and host interface stay, a launch goes to `simulate`, and device memory is host memory.

A kernel is still typed and compiled to PTX by Numba, so that a test which expects a typing error or reads PTX finds what it would on a GPU; only what a
driver would do is replaced. For host arrays the classes of Numba's own simulator serve. `install` changes the process for good, so run it in one of its own.
"""
import contextlib
import copy
import enum
import importlib
from types import SimpleNamespace

import numpy as np
from numba import cuda
from numba.cuda import dispatcher, testing, types
from numba.cuda.args import ArgHint, In
from numba.cuda.core import config
from numba.cuda.cudadrv import devicearray, devices, driver
from numba.cuda.np import numpy_support
from numba.cuda.simulator.cudadrv import devicearray as host_memory

from sim import DeviceSpec, ThreadError, simulate
from sim.isa.operators import cast

SPEC = DeviceSpec()
THREADS_PER_BLOCK = 128  # what `forall` takes when nobody says
MEMORY = ("to_device", "device_array", "device_array_like", "pinned_array", "pinned_array_like", "mapped_array", "managed_array", "pinned")
ENGINE = "fibers"  # or "native"
launches = []  # the Report of every simulated launch, or None where a thread raised


class Device:
    """The GPU that Numba's compiler asks for."""

    id, name = 0, b"simulated"
    compute_capability = (9, 0)
    supports_float16 = supports_bfloat16 = True
    MULTIPROCESSOR_COUNT, WARP_SIZE, MAX_THREADS_PER_BLOCK = SPEC.multiprocessors, SPEC.warp_size, SPEC.max_threads_per_block
    MAX_SHARED_MEMORY_PER_BLOCK = SPEC.dynamic_shared_bytes


class Stream:
    """Work is done when its launch returns, so there is nothing to wait for."""

    handle = 0

    def synchronize(self):
        pass

    @contextlib.contextmanager
    def auto_synchronize(self):
        yield


class CudaContext:
    """What the driver calls a context."""

    device = Device

    def synchronize(self):
        pass

    create_stream = get_default_stream = get_legacy_default_stream = get_per_thread_default_stream = staticmethod(Stream)


class Event:
    """A moment in a stream."""

    def record(self, stream=0):
        pass

    wait = record

    def synchronize(self):
        pass


def install():
    """Replace what needs a driver in the numba.cuda of this process."""
    context = CudaContext()
    testing.skip_unless_cudasim = lambda reason: lambda test: test  # what is for simulators is for ours too
    devices._runtime.get_or_create_context = lambda devnum=None: context
    devices._runtime.ensure_context = contextlib.nullcontext
    driver._to_core_stream = lambda stream: stream or Stream()
    driver.driver.get_device = lambda devnum=0: Device
    for name in MEMORY:
        setattr(cuda, name, getattr(host_memory, name))
    cuda.mapped_array_like = host_memory.device_array_like
    cuda.event = lambda timing=True: Event()
    cuda.is_available = lambda: True
    devicearray.auto_device = host_memory.auto_device
    devicearray.from_array_like, devicearray.DeviceNDArray = host_memory.device_array_like, host_memory.FakeCUDAArray
    kernel = dispatcher._Kernel
    kernel.bind = lambda self: None
    kernel.launch = launch
    kernel.max_cooperative_grid_blocks = max_cooperative_grid_blocks
    dispatcher.ForAll._compute_thread_per_block = lambda self, dispatcher: self.thread_per_block or THREADS_PER_BLOCK


def import_small(module):
    """Import a module of tests as it is for Numba's own simulator: with smaller problems, chosen by a flag in Numba's configuration."""
    config.ENABLE_CUDASIM = True
    imported = importlib.import_module(module)
    config.ENABLE_CUDASIM = False
    imported.config = SimpleNamespace(ENABLE_CUDASIM=True)


def launch(kernel, arguments, grid, block, stream=0, shared=0):
    """Instead of numba.cuda.dispatcher._Kernel.launch."""
    values = [prepared(kernel, kind, value) for kind, value in zip(kernel.argument_types, arguments, strict=True)]
    try:
        launches.append(simulate(kernel.py_func, engine=ENGINE, spec=SPEC, on_finding="report")[grid, block, stream, shared](*values))
    except ThreadError as error:
        launches.append(None)
        if kernel.debug:  # without debug=True a GPU ends the thread and says nothing
            raise error.__cause__ from None
        if not raised_by_kernel(error):
            raise


def raised_by_kernel(error):
    """Whether the kernel itself says `raise` on the line where the thread ended."""
    return str(error).splitlines()[-1].split("  ")[-1].startswith(("raise", "assert"))


def max_cooperative_grid_blocks(kernel, block, shared_bytes=0):
    return SPEC.resident_blocks(int(np.prod(block)), shared_bytes)


def prepared(kernel, kind, value):
    """An argument as the simulator takes it: arrays as numpy arrays, numbers of the type for which Numba compiled the kernel."""
    for extension in reversed(kernel.extensions):
        kind, value = extension.prepare_args(kind, value, stream=0, retr=[])
    if isinstance(value, ArgHint):
        value = copy.copy(value.value) if isinstance(value, In) else value.value
    if isinstance(value, host_memory.FakeCUDAArray):
        return value._ary
    if isinstance(kind, types.BaseTuple):
        parts = [prepared(kernel, k, v) for k, v in zip(kind, value)]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, enum.Enum):
        return value
    if isinstance(kind, (types.Number, types.Boolean)):
        dtype = numpy_support.as_dtype(kind)
        return dtype.type(cast(dtype)(value))
    return value
