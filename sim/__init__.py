"""A simulated CUDA GPU.

It runs unmodified Numba kernels, and PTX, on the CPU. It checks every memory access and reports data races,
out-of-bounds accesses, deadlocks and other faults, with the threads and source lines involved.

    report = sim.simulate(kernel)[grid, block](x, y)

The input is a launch: a kernel, a configuration and arguments (numpy arrays and numbers). As on a GPU, the
kernel modifies the arrays in place. The output is a Report. Read the files in this order:

    launch         check the configuration, choose an engine, return the Report
    device         limits of the GPU; sectors and bank conflicts of its memory
    events         the hooks that observers override, and the findings that they return
    sites          the numbering of source locations: accesses, calls, branches, back edges
    recording      the trace of a launch, for figures
    context        the state of one launch: access log, observers, progress
    hooks          which hooks an observer overrides
    frames         map a kernel's stack frames to source locations
    interpreted    the engine that runs a kernel in Python; `dialect` is the `cuda` that the kernel uses
    reruns         run a launch again when its first run is inconclusive; initial_values has the values of
                   unwritten memory that it tries
    progress       decide whether an endless loop still changes anything
    forecast       estimate whether a long loop ends, from the numbers that it compares
    watched        the fraction of a launch that its observers have seen
    report         merge findings, format messages, store counters
    errors         exceptions
    pages          the index of findings: one page for each kind
    cuda           a replacement for `numba.cuda` when Numba is not installed
    __main__       the command line, for .cu and .ptx files
    diagnostics    findings for GitHub Actions, SARIF and JSON
    pytest_plugin  pytest --cuda-sim and --triton-sim, which use `host` and `triton_host` as drivers;
                   pytest_options has their options, and session_pages their HTML pages
    sessions       the options of a session, and launches that run once per seed
    magic          %%simulate, for notebooks

The packages are isa (instructions), memory, engine (threads and barriers), frontend (Python kernels), ptx
(PTX kernels), native (compiled kernels), observers, host (a simulated CUDA driver), triton_host (a simulated
driver for Triton) and viz (figures).

Exported names are imported on first use. Otherwise the pytest plug-in would slow down every pytest run on a
machine where `sim` is installed.
"""

import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.device import DeviceSpec
    from sim.errors import KernelBug, LaunchError, SimulatorError, ThreadError
    from sim.launch import simulate
    from sim.memory.spaces import empty
    from sim.memory.tensor_map import tensor_map
    from sim.ptx.module import load_ptx
    from sim.ptx.nvrtc import load_cuda
    from sim.report import Report
    from sim.triton_host.session import triton

__version__ = "0.2.0"
TYPES = tuple(
    "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128".split()
)
HOMES = {  # exported name -> module that defines it
    "DeviceSpec": "device",
    **dict.fromkeys(("KernelBug", "LaunchError", "SimulatorError", "ThreadError"), "errors"),
    "Report": "report",
    "empty": "memory.spaces",
    "load_cuda": "ptx.nvrtc",
    "load_ptx": "ptx.module",
    "simulate": "launch",
    "tensor_map": "memory.tensor_map",
    "triton": "triton_host.session",
}
__all__ = ["DeviceSpec", "KernelBug", "LaunchError", "Report", "SimulatorError", "ThreadError"]
__all__ += ["cuda", "empty", "load_cuda", "load_ptx", "simulate", "tensor_map", "triton", *TYPES]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'sim' has no attribute {name!r}")
    # `cuda` and the types come from Numba if it is installed, otherwise from this package and numpy.
    numba = importlib.util.find_spec("numba")
    if name == "cuda":
        value = importlib.import_module("numba.cuda" if numba else "sim.cuda")
    else:
        home = f"sim.{HOMES[name]}" if name in HOMES else "numba.types" if numba else "numpy"
        value = getattr(importlib.import_module(home), name)
    return globals().setdefault(name, value)


def load_ipython_extension(shell: Any) -> None:
    """Add the cell magic %%simulate to IPython: %load_ext sim."""
    from sim import magic

    magic.load(shell)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
