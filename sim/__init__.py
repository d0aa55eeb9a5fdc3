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
TYPES = tuple(
    "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128".split()
)
HOMES = {
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
    # what kernels are written with is Numba's where that is installed, and ours and numpy's elsewhere
    numba = importlib.util.find_spec("numba")
    if name == "cuda":
        value = importlib.import_module("numba.cuda" if numba else "sim.cuda")
    else:
        home = f"sim.{HOMES[name]}" if name in HOMES else "numba.types" if numba else "numpy"
        value = getattr(importlib.import_module(home), name)
    return globals().setdefault(name, value)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
