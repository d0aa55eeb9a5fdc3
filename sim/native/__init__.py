"""The native engine: kernels compiled for the CPU by Numba, one thread's code split at its barriers
(fission); what cannot be split, and what is to be explained, runs by fibers."""

from sim.native.split.specialize import source

__all__ = ["source"]
