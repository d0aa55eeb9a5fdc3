"""The attention kernels in CUDA C++, float32: the .cu files, and host functions that launch them as
kernels/flash_forward.py, conv_forward.py, conv_backward.py and conv_decode.py launch Numba's."""
