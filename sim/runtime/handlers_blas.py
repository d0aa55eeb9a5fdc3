"""Functions of cuBLAS, computed with numpy. They are not simulated, and a note in the summary says so.

The parameters of each function are the Device and the C arguments, with pointers as integers. It returns a
cublasStatus_t. Matrices are stored in column-major order. The functions check that each vector and matrix
lies within its allocation.

Source: cuBLAS (NVIDIA), "cuBLAS Level-1, Level-2, Level-3 and BLAS-like Extension Function Reference".
"""

import ctypes

import ml_dtypes
import numpy as np

from sim.events import STORE
from sim.runtime.errors import SUCCESS
from sim.runtime.handlers_copies import side
from sim.runtime.handlers_memory import write_int, write_pointer

NOTE = "functions of cuBLAS were computed with numpy, not simulated"
NOT_INITIALIZED, INVALID, NOT_SUPPORTED = 1, 7, 15  # values of cublasStatus_t
VERSION = 130000
# cudaDataType_t -> type of the elements
TYPES = {0: np.float32, 1: np.float64, 2: np.float16, 14: ml_dtypes.bfloat16}


class OutOfBounds(Exception):
    """Raised after a finding that an operand does not lie within its allocation."""


def operand(device, address, shape, leading, dtype, name, function):
    """Return a view of a column-major matrix in device memory, and its buffer.

    shape: rows, columns.
    leading: the distance from one column to the next, in elements.
    """
    rows, columns = shape
    dtype = np.dtype(dtype)
    if rows == 0 or columns == 0:
        return np.empty(shape, dtype), None
    nbytes = (leading * (columns - 1) + rows) * dtype.itemsize
    found = side(device, address, nbytes, True, name, function)
    if found is None:
        raise OutOfBounds
    buffer, at = found[1], address - found[1].base
    strides = dtype.itemsize, leading * dtype.itemsize
    flat = buffer.root[at : at + nbytes].view(dtype)
    return np.lib.stride_tricks.as_strided(flat, shape, strides), buffer


def store(device, address, given, value):
    """Write the result of a function into its operand."""
    view, buffer = given
    if buffer is None:
        return
    view[...] = value.astype(view.dtype)
    nbytes = view.shape[0] * view.itemsize
    for column in range(view.shape[1]):
        start = address - buffer.base + column * view.strides[1]
        buffer.mark_written(start, nbytes)
        if device.graphs.footprint is not None:
            device.graphs.footprint.add(STORE, buffer.base + start, nbytes)


def scalar(device, address, dtype):
    """Return a scalar from host or device memory."""
    dtype = np.dtype(dtype)
    buffer = device.memory.find(address)
    if buffer is None:
        return np.frombuffer(ctypes.string_at(address, dtype.itemsize), dtype)[0]
    at = address - buffer.base
    return buffer.root[at : at + dtype.itemsize].view(dtype)[0]


def submit(device, handle, action):
    """Execute a function in the stream of its handle."""
    if handle not in device.blas_streams:
        return NOT_INITIALIZED
    device.log.notes[NOTE] = None

    def guarded():
        try:
            action()
        except OutOfBounds:
            return INVALID
        return SUCCESS

    return device.submit(device.blas_streams[handle], guarded)


# --- handles ------------------------------------------------------------------------------------------------


def cublasCreate_v2(device, handle):
    value = device.new_handle()
    device.blas_streams[value] = 0
    write_pointer(handle, value)
    return SUCCESS


def cublasDestroy_v2(device, handle):
    return SUCCESS if device.blas_streams.pop(handle, None) is not None else NOT_INITIALIZED


cublasLtCreate, cublasLtDestroy = cublasCreate_v2, cublasDestroy_v2


def cublasSetStream_v2(device, handle, stream):
    device.blas_streams[handle] = stream
    return SUCCESS


def cublasGetStream_v2(device, handle, stream):
    write_pointer(stream, device.blas_streams[handle])
    return SUCCESS


def cublasGetVersion_v2(device, handle, version):
    write_int(version, VERSION)
    return SUCCESS


def accept(device, *arguments):
    """Return success: the setting has no effect on the result."""
    return SUCCESS


cublasSetMathMode = cublasSetPointerMode_v2 = cublasSetWorkspace_v2 = cublasSetAtomicsMode = accept


def cublasSetVector(device, count, size, source, source_stride, destination, destination_stride):
    """Copy a vector from the host to the device."""
    return copy_vector(device, count, size, source, source_stride, destination, destination_stride, True)


def cublasGetVector(device, count, size, source, source_stride, destination, destination_stride):
    """Copy a vector from the device to the host."""
    return copy_vector(device, count, size, source, source_stride, destination, destination_stride, False)


def copy_vector(device, count, size, source, source_stride, destination, destination_stride, to_device):
    """Copy `count` elements of `size` bytes. The strides are in elements."""
    name = "cublasSetVector" if to_device else "cublasGetVector"
    nbytes = [size * ((count - 1) * stride + 1) for stride in (destination_stride, source_stride)]
    to = side(device, destination, nbytes[0], to_device, "destination", name)
    origin = side(device, source, nbytes[1], not to_device, "source", name)
    if to is None or origin is None:
        return INVALID
    for element in range(count if max(destination_stride, source_stride) > 1 else 1):
        at = to[0] + element * destination_stride * size
        length = size if max(destination_stride, source_stride) > 1 else nbytes[0]
        ctypes.memmove(at, origin[0] + element * source_stride * size, length)
    if to[1] is not None:
        to[1].mark_written(destination - to[1].base, nbytes[0])
    return SUCCESS


# --- vectors ------------------------------------------------------------------------------------------------


def vector(device, address, count, stride, dtype, name, function):
    """Return a vector as a matrix with one row."""
    return operand(device, address, (1, count), stride, dtype, name, function)


def axpy(dtype, name):
    """Return the function y := alpha x + y."""

    def function(device, handle, count, alpha, x, x_stride, y, y_stride):
        factor = scalar(device, alpha, dtype)

        def action():
            xs, _ = vector(device, x, count, x_stride, dtype, "vector x", name)
            ys = vector(device, y, count, y_stride, dtype, "vector y", name)
            store(device, y, ys, factor * xs + ys[0])

        return submit(device, handle, action)

    return function


def scal(dtype, name):
    """Return the function x := alpha x."""

    def function(device, handle, count, alpha, x, stride):
        factor = scalar(device, alpha, dtype)

        def action():
            xs = vector(device, x, count, stride, dtype, "vector x", name)
            store(device, x, xs, factor * xs[0])

        return submit(device, handle, action)

    return function


def write_result(device, address, value, dtype):
    """Write a scalar result to host or device memory."""
    data = np.asarray(value, dtype).tobytes()
    buffer = device.memory.find(address)
    if buffer is None:
        ctypes.memmove(address, data, len(data))
        return
    at = address - buffer.base
    buffer.root[at : at + len(data)] = np.frombuffer(data, np.uint8)
    buffer.mark_written(at, len(data))


def reduce(dtype, name, reduction, result_dtype=None):
    """Return a function that reduces a vector to a scalar."""

    def function(device, handle, count, x, stride, result):
        def action():
            xs, _ = vector(device, x, count, stride, dtype, "vector x", name)
            write_result(device, result, reduction(xs), result_dtype or dtype)
            device.streams.synchronize(device.blas_streams[handle])

        return submit(device, handle, action)

    return function


def dot(dtype, name):
    """Return the function that computes the inner product of x and y."""

    def function(device, handle, count, x, x_stride, y, y_stride, result):
        def action():
            xs, _ = vector(device, x, count, x_stride, dtype, "vector x", name)
            ys, _ = vector(device, y, count, y_stride, dtype, "vector y", name)
            write_result(device, result, np.vdot(xs, ys), dtype)
            device.streams.synchronize(device.blas_streams[handle])

        return submit(device, handle, action)

    return function


def gemv(dtype, name):
    """Return the function y := alpha op(A) x + beta y."""

    def function(device, handle, trans, m, n, alpha, a, lda, x, x_stride, beta, y, y_stride):
        factors = scalar(device, alpha, dtype), scalar(device, beta, dtype)

        def action():
            matrix, _ = operand(device, a, (m, n), lda, dtype, "matrix A", name)
            matrix = matrix.T if trans else matrix
            xs, _ = vector(device, x, matrix.shape[1], x_stride, dtype, "vector x", name)
            ys = vector(device, y, matrix.shape[0], y_stride, dtype, "vector y", name)
            old = factors[1] * ys[0] if factors[1] else 0
            store(device, y, ys, factors[0] * (xs @ matrix.T) + old)

        return submit(device, handle, action)

    return function


cublasSaxpy_v2, cublasDaxpy_v2 = axpy(np.float32, "cublasSaxpy"), axpy(np.float64, "cublasDaxpy")
cublasSscal_v2, cublasDscal_v2 = scal(np.float32, "cublasSscal"), scal(np.float64, "cublasDscal")
cublasSdot_v2, cublasDdot_v2 = dot(np.float32, "cublasSdot"), dot(np.float64, "cublasDdot")
cublasSgemv_v2, cublasDgemv_v2 = gemv(np.float32, "cublasSgemv"), gemv(np.float64, "cublasDgemv")
cublasSnrm2_v2 = reduce(np.float32, "cublasSnrm2", np.linalg.norm)
cublasDnrm2_v2 = reduce(np.float64, "cublasDnrm2", np.linalg.norm)
cublasSasum_v2 = reduce(np.float32, "cublasSasum", lambda x: np.abs(x).sum())
cublasDasum_v2 = reduce(np.float64, "cublasDasum", lambda x: np.abs(x).sum())
# the index of the largest absolute value, counted from 1
cublasIsamax_v2 = reduce(np.float32, "cublasIsamax", lambda x: np.abs(x).argmax() + 1, np.int32)
cublasIdamax_v2 = reduce(np.float64, "cublasIdamax", lambda x: np.abs(x).argmax() + 1, np.int32)


# --- matrices -----------------------------------------------------------------------------------------------


def multiply(device, handle, name, sizes, trans, scale, matrices, batch=1):
    """Compute C := alpha op(A) op(B) + beta C for a batch of matrices.

    sizes: m, n, k.
    trans: for A and for B, 0 if op leaves the matrix unchanged, otherwise op transposes it.
    scale: the values of alpha and beta.
    matrices: (address, type, leading dimension, distance to the next matrix of the batch) for A, B and C.
    """
    (m, n, k), (alpha, beta) = sizes, scale
    shapes = ((k, m) if trans[0] else (m, k)), ((n, k) if trans[1] else (k, n)), (m, n)

    def action():
        for index in range(batch):
            given = []
            for letter, shape, (address, dtype, leading, distance) in zip("ABC", shapes, matrices):
                at = address + index * distance * np.dtype(dtype).itemsize
                given.append((at, operand(device, at, shape, leading, dtype, f"matrix {letter}", name)))
            wide = np.float64 if matrices[2][1] is np.float64 else np.float32
            a, b, c = (view.astype(wide) for _, (view, _) in given)
            product = (a.T if trans[0] else a) @ (b.T if trans[1] else b)
            store(device, *given[2], wide(alpha) * product + (wide(beta) * c if beta else 0))

    return submit(device, handle, action)


def gemm(dtype, name):
    """Return the function that computes the matrix product C := alpha op(A) op(B) + beta C."""

    def function(device, handle, transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc):
        scale = scalar(device, alpha, dtype), scalar(device, beta, dtype)
        matrices = (a, dtype, lda, 0), (b, dtype, ldb, 0), (c, dtype, ldc, 0)
        return multiply(device, handle, name, (m, n, k), (transa, transb), scale, matrices)

    return function


def gemm_strided(dtype, name):
    """Return the function for a strided batched matrix product: matrices at a constant stride."""

    def function(
        device, handle, transa, transb, m, n, k, alpha, a, lda, da, b, ldb, db, beta, c, ldc, dc, count
    ):
        scale = scalar(device, alpha, dtype), scalar(device, beta, dtype)
        matrices = (a, dtype, lda, da), (b, dtype, ldb, db), (c, dtype, ldc, dc)
        return multiply(device, handle, name, (m, n, k), (transa, transb), scale, matrices, count)

    return function


cublasSgemm_v2, cublasDgemm_v2 = gemm(np.float32, "cublasSgemm"), gemm(np.float64, "cublasDgemm")
cublasHgemm = gemm(np.float16, "cublasHgemm")
cublasSgemmStridedBatched = gemm_strided(np.float32, "cublasSgemmStridedBatched")
cublasDgemmStridedBatched = gemm_strided(np.float64, "cublasDgemmStridedBatched")


def cublasGemmStridedBatchedEx(
    device, handle, transa, transb, m, n, k, alpha, a, atype, lda, da, b, btype, ldb, db, beta, c, ctype, ldc,
    dc, count, compute, algorithm,
):  # fmt: skip
    """Multiply matrices of mixed types, with scalars of the type in which the product is computed."""
    if not {atype, btype, ctype} <= set(TYPES) or compute not in COMPUTE_TYPES:
        return NOT_SUPPORTED
    dtype = COMPUTE_TYPES[compute]
    scale = scalar(device, alpha, dtype), scalar(device, beta, dtype)
    matrices = (a, TYPES[atype], lda, da), (b, TYPES[btype], ldb, db), (c, TYPES[ctype], ldc, dc)
    sizes, trans = (m, n, k), (transa, transb)
    return multiply(device, handle, "cublasGemmEx", sizes, trans, scale, matrices, count)


# cublasComputeType_t -> type of alpha and beta
COMPUTE_TYPES = {64: np.float16, 65: np.float16, 70: np.float64, 71: np.float64}
COMPUTE_TYPES |= dict.fromkeys((68, 69, 74, 75, 77), np.float32)


def cublasGemmEx(
    device, handle, transa, transb, m, n, k, alpha, a, atype, lda, b, btype, ldb, beta, c, ctype, ldc,
    compute, algorithm,
):  # fmt: skip
    return cublasGemmStridedBatchedEx(
        device, handle, transa, transb, m, n, k, alpha, a, atype, lda, 0, b, btype, ldb, 0, beta, c, ctype,
        ldc, 0, 1, compute, algorithm,
    )  # fmt: skip
