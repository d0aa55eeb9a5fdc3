"""A simulated CUDA GPU. It runs unmodified Numba kernels, and PTX, on the CPU, checks every access to memory,
and reports data races, accesses out of bounds, deadlocks and other faults with the threads and lines
concerned.

    report = sim.simulate(kernel)[grid, block](x, y)

A launch enters, with arguments that are numpy arrays and numbers. Its arguments leave, changed as on a GPU,
and a Report. Read the files in this order:

    launch         check a launch's configuration, choose an engine, report
    device         limits of the GPU, and how its memory serves requests
    events         what can happen in a launch: the hooks of observers, and their findings
    recording      all events of a launch in their order, for figures
    context        the state of one launch, its log of accesses, its observers
    hooks          the hooks that observers override
    frames         the stack frames of kernels: where in its source a thread is
    interpreted    the engine that runs a kernel in Python; `dialect` is the `cuda` that it sees
    reruns         further runs of a launch whose first run is inconclusive
    progress       the test whether an endless loop still changes anything
    watched        how much of a launch its observers have seen
    report         findings, merged and put into words, and counters
    errors         exceptions
    cuda           the names of `numba.cuda`, where Numba is missing
    __main__       the command line, for .cu and .ptx files
    pytest_plugin  pytest --cuda-sim; `host` replaces the CUDA driver for it

The packages are isa (instructions), memory, engine (threads and barriers), frontend (kernels in Python), ptx
(kernels in PTX), native (compiled kernels), observers and viz (figures).

Exported names are imported when they are first used, because pytest loads the plug-in in every run on a
machine where `sim` is installed.
"""

import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.device import DeviceSpec
    from sim.errors import KernelBug, LaunchError, SimulatorError, ThreadError
    from sim.launch import simulate
    from sim.memory.spaces import empty
    from sim.ptx.module import load_ptx
    from sim.ptx.nvrtc import load_cuda
    from sim.report import Report

__version__ = "0.1.0"
TYPES = tuple(
    "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128".split()
)
HOMES = {  # exported name -> the module that defines it
    "DeviceSpec": "device",
    **dict.fromkeys(("KernelBug", "LaunchError", "SimulatorError", "ThreadError"), "errors"),
    "Report": "report",
    "empty": "memory.spaces",
    "load_cuda": "ptx.nvrtc",
    "load_ptx": "ptx.module",
    "simulate": "launch",
}
__all__ = ["DeviceSpec", "KernelBug", "LaunchError", "Report", "SimulatorError", "ThreadError"]
__all__ += ["cuda", "empty", "load_cuda", "load_ptx", "simulate", *TYPES]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'sim' has no attribute {name!r}")
    # `cuda` and the types are Numba's if it is installed; otherwise they are this package's and numpy's
    numba = importlib.util.find_spec("numba")
    if name == "cuda":
        value = importlib.import_module("numba.cuda" if numba else "sim.cuda")
    else:
        home = f"sim.{HOMES[name]}" if name in HOMES else "numba.types" if numba else "numpy"
        value = getattr(importlib.import_module(home), name)
    return globals().setdefault(name, value)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
