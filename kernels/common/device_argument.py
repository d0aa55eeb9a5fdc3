"""A CUDA tensor as a kernel's argument, made in a few microseconds.

`cuda.as_cuda_array(tensor)` holds the same data and more, but making five of them takes longer than the rest
of a launch.
"""

import functools

import ml_dtypes
import numpy as np
from numba import cuda
from numba.cuda.args import ArgHint


def device_argument(tensor):
    """Return a CUDA tensor, detached, as a kernel argument over the same memory."""
    described = description(tensor.shape, None if tensor.is_contiguous() else tensor.stride(), tensor.dtype)
    return (
        TensorArgument(tensor.data_ptr(), *described)
        if described
        else cuda.as_cuda_array(tensor.detach(), sync=False)
    )


class TensorArgument(ArgHint):
    """The part of an array that numba-cuda reads at a launch: its type, address, shape and layout."""

    def __init__(self, address, numba_type, shape, dtype, size, layout):
        self.ptr, self._numba_type_ = address, numba_type
        self.shape, self.dtype, self.size, self._layout = shape, dtype, size, layout

    def to_device(self, retr, stream=0):
        return self


@functools.lru_cache(4096)
def description(shape, strides, dtype):
    """Return the fields of a TensorArgument except its address, as numba-cuda computes them.

    strides: in elements; None if contiguous. The result is None if numba-cuda's array lacks these fields:
        versions other than the one in constraints.txt may launch differently.
    """
    dtype = numpy_dtype(dtype)
    strides = strides and tuple(stride * dtype.itemsize for stride in strides)
    nowhere = {"data": (0, False), "shape": tuple(shape), "strides": strides, "typestr": dtype, "version": 3}
    array = cuda.from_cuda_array_interface(nowhere, sync=False)
    view = getattr(array, "_strided_memory_view_shim", None)
    return view and (array._numba_type_, view.shape, view.dtype, view.size, view._layout)


def numpy_dtype(dtype):
    """Return numpy's dtype for a torch dtype, or that of ml_dtypes where numpy has none, such as bfloat16."""
    name = str(dtype).removeprefix("torch.")
    return np.dtype(getattr(ml_dtypes, name, name))
