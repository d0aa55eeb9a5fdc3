"""The attention kernels in CUDA C++, float32: the .cu files, and host functions that launch them as
kernels/flash/forward.py and kernels/conv launch Numba's."""
