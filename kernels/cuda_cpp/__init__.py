"""The attention kernels in CUDA C++, float32: .cu files, and host functions that launch them.

The host functions correspond to the functions for Numba in kernels/flash/forward.py and kernels/conv.
"""
