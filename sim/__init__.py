"""A simulated CUDA GPU: runs unmodified Numba kernels on the CPU, checks every access, and says who did what where.

What is imported from here is loaded when it is first asked for, since the pytest plug-in is part of every run of pytest where `sim` is installed.
"""
import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.device import DeviceSpec
    from sim.errors import KernelBug, LaunchError, SimulatorError, ThreadError
    from sim.launch import simulate
    from sim.memory.spaces import empty
    from sim.report import Report

__version__ = "0.1.0"
__all__ = ["DeviceSpec", "KernelBug", "LaunchError", "Report", "SimulatorError", "ThreadError", "empty", "simulate"]
HOMES = {"DeviceSpec": "device", "KernelBug": "errors", "LaunchError": "errors", "SimulatorError": "errors", "ThreadError": "errors",
         "simulate": "launch", "empty": "memory.spaces", "Report": "report"}


def __getattr__(name):
    if name not in HOMES:
        raise AttributeError(f"module 'sim' has no attribute {name!r}")
    globals()[name] = getattr(importlib.import_module(f"sim.{HOMES[name]}"), name)
    return globals()[name]


def __dir__():
    return sorted({*globals(), *HOMES})
