"""A simulated CUDA GPU: runs unmodified Numba kernels on the CPU, checks every access, and says who did what where."""
from sim.device import DeviceSpec
from sim.errors import KernelBug, LaunchError, SimulatorError, ThreadError
from sim.launch import simulate
from sim.memory.spaces import empty
from sim.report import Report

__all__ = ["DeviceSpec", "KernelBug", "LaunchError", "Report", "SimulatorError", "ThreadError", "empty", "simulate"]
