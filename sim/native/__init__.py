"""The native engine: kernels compiled for the CPU by Numba, one thread's code split at its barriers (fission) or a generator for each thread."""
from sim.native.runtime import source

__all__ = ["source"]
