"""A simulated CUDA GPU: runs unmodified Numba kernels on the CPU, checks every access, and says who did what
where.

What is imported from here is loaded when it is first asked for, since the pytest plug-in is part of every run
of pytest where `sim` is installed.
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
TYPES = (
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)
__all__ = [
    "DeviceSpec",
    "KernelBug",
    "LaunchError",
    "Report",
    "SimulatorError",
    "ThreadError",
    "cuda",
    "empty",
    "load_cuda",
    "load_ptx",
    "simulate",
    *TYPES,
]
HOMES = {
    "DeviceSpec": "device",
    "KernelBug": "errors",
    "LaunchError": "errors",
    "SimulatorError": "errors",
    "ThreadError": "errors",
    "simulate": "launch",
    "empty": "memory.spaces",
    "load_cuda": "ptx.nvrtc",
    "load_ptx": "ptx.module",
    "Report": "report",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'sim' has no attribute {name!r}")
    globals()[name] = (
        from_numba(name)
        if name in ("cuda", *TYPES)
        else getattr(importlib.import_module(f"sim.{HOMES[name]}"), name)
    )
    return globals()[name]


def from_numba(name: str) -> Any:
    """What kernels are written with: `cuda` and number types, Numba's where it is installed, ours and numpy's
    elsewhere."""
    numba = importlib.util.find_spec("numba")
    if name == "cuda":
        return importlib.import_module("numba.cuda" if numba else "sim.cuda")
    return getattr(importlib.import_module("numba.types" if numba else "numpy"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
