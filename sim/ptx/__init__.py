"""The second front end: kernels as PTX, from CUDA C++, Triton or Numba, run by the engines that run
Python's."""
