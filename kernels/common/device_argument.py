"""Fast conversion of CUDA tensors to kernel arguments, in a few microseconds.

`cuda.as_cuda_array(tensor)` builds a complete Numba array. For five tensors this takes longer than the rest
of a launch, so we pass only the fields that numba-cuda reads.
"""

import functools

import ml_dtypes
import numpy as np
from numba import cuda
from numba.cuda.args import ArgHint


def device_argument(tensor):
    """Return a kernel argument that shares the memory of a CUDA tensor, without its autograd history."""
    described = description(tensor.shape, None if tensor.is_contiguous() else tensor.stride(), tensor.dtype)
    return (
        TensorArgument(tensor.data_ptr(), *described)
        if described
        else cuda.as_cuda_array(tensor.detach(), sync=False)
    )


class TensorArgument(ArgHint):
    """The fields of an array that numba-cuda reads at a launch: type, address, shape and layout."""

    def __init__(self, address, numba_type, shape, dtype, size, layout):
        self.ptr, self._numba_type_ = address, numba_type
        self.shape, self.dtype, self.size, self._layout = shape, dtype, size, layout

    def to_device(self, retr, stream=0):
        return self


@functools.lru_cache(4096)
def description(shape, strides, dtype):
    """Return all fields of a TensorArgument except its address, as numba-cuda computes them.

    strides: in elements; None for a contiguous tensor.

    Return None if numba-cuda's array class lacks these fields, which are private and may change between
    versions.
    """
    dtype = numpy_dtype(dtype)
    strides = strides and tuple(stride * dtype.itemsize for stride in strides)
    # an array at address 0, used only to let numba-cuda compute the fields
    nowhere = {"data": (0, False), "shape": tuple(shape), "strides": strides, "typestr": dtype, "version": 3}
    array = cuda.from_cuda_array_interface(nowhere, sync=False)
    view = getattr(array, "_strided_memory_view_shim", None)
    return view and (array._numba_type_, view.shape, view.dtype, view.size, view._layout)


def numpy_dtype(dtype):
    """Return the NumPy dtype of a torch dtype, from ml_dtypes if NumPy has none (bfloat16, for example)."""
    name = str(dtype).removeprefix("torch.")
    return np.dtype(getattr(ml_dtypes, name, name))
