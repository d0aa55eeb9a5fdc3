"""The attention kernels in CUDA C++, float32: .cu files, and host functions that launch them.

The host functions correspond to those of kernels/flash/forward.py and kernels/conv for Numba.
"""
