"""Functions of the driver API, for programs that load modules themselves.

The parameters of each function are the Device and the C arguments, with pointers as integers. It returns a
CUresult. The error codes have the same values as those of the runtime. There is only one context.

Source: CUDA Driver API (NVIDIA).
"""

import ctypes
import struct
from pathlib import Path

from sim.errors import LaunchError
from sim.isa.tensor_map import NBYTES, SWIZZLES, TYPES, TensorMap, check
from sim.runtime import handlers_copies as copies
from sim.runtime import handlers_device as devices
from sim.runtime import handlers_launch as launches
from sim.runtime import handlers_memory as memory
from sim.runtime.device import HostFunction, HostVariable
from sim.runtime.errors import (
    INVALID_HANDLE,
    INVALID_IMAGE,
    INVALID_VALUE,
    NOT_FOUND,
    SUCCESS,
    error_name,
    error_text,
)
from sim.runtime.fatbin import ptx_of_image
from sim.runtime.launches import LaunchAttributes
from sim.runtime.stream_order import DEFAULT_STREAM

CONTEXT = 1  # the handle of the only context
ENTRY_POINT_FOUND, ENTRY_POINT_MISSING = 0, 1  # cudaDriverEntryPointQueryResult
ADDRESS_ALIGNMENT = 16  # alignment in bytes of the tensor that a tensor map describes
INTERLEAVED = "an interleaved layout, or a type or swizzle that Hopper lacks"
TO_DEVICE, TO_HOST, ON_DEVICE = 1, 2, 3  # cudaMemcpyKind


def accept(device, *arguments):
    """Return success: the call has no effect in the simulator."""
    return SUCCESS


cuInit = cuCtxDestroy_v2 = cuCtxSetCurrent = cuDevicePrimaryCtxRelease_v2 = accept
cuDriverGetVersion, cuDeviceGetCount = devices.cudaDriverGetVersion, devices.cudaGetDeviceCount
cuDeviceGetAttribute, cuCtxSynchronize = devices.cudaDeviceGetAttribute, devices.cudaDeviceSynchronize


# --- devices and contexts -----------------------------------------------------------------------------------


def cuDeviceGet(device, pointer, index):
    if index != 0:
        return devices.INVALID_DEVICE
    memory.write_int(pointer, 0)
    return SUCCESS


def cuCtxGetDevice(device, pointer):
    return cuDeviceGet(device, pointer, 0)


def cuDeviceGetName(device, text, length, index):
    name = device.spec.name.encode()[: length - 1] + b"\0"
    ctypes.memmove(text, name, len(name))
    return SUCCESS


def cuDeviceTotalMem_v2(device, nbytes, index):
    memory.write_pointer(nbytes, memory.LIMIT)
    return SUCCESS


def cuCtxCreate_v4(device, pointer, parameters, flags, index):
    return cuCtxGetCurrent(device, pointer)


def cuCtxCreate_v2(device, pointer, flags, index):
    return cuCtxGetCurrent(device, pointer)


def cuDevicePrimaryCtxRetain(device, pointer, index):
    return cuCtxGetCurrent(device, pointer)


def cuCtxGetCurrent(device, pointer):
    memory.write_pointer(pointer, CONTEXT)
    return SUCCESS


def cuGetErrorString(device, code, pointer):
    memory.write_pointer(pointer, device.text(error_text(code)))
    return SUCCESS


def cuGetErrorName(device, code, pointer):
    name = error_name(code).replace("cudaError", "CUDA_ERROR_").replace("cudaSuccess", "CUDA_SUCCESS")
    memory.write_pointer(pointer, device.text(name))
    return SUCCESS


# --- modules ------------------------------------------------------------------------------------------------


def load(device, pointer, read):
    """Load a module whose PTX `read` returns, and store its handle."""
    module = device.register_module(read)
    try:
        module.parse()
    except LaunchError as error:
        device.could_not_run = True
        device.report("unsupported", "error", str(error))
        return INVALID_IMAGE
    handle = device.new_handle()
    device.driver_modules[handle] = module
    memory.write_pointer(pointer, handle)
    return SUCCESS


def cuModuleLoadData(device, pointer, image):
    return load(device, pointer, lambda: ptx_of_image(image))


def cuModuleLoadDataEx(device, pointer, image, count, options, values):
    return cuModuleLoadData(device, pointer, image)


cuModuleLoadFatBinary = cuModuleLoadData


def cuModuleLoad(device, pointer, name):
    path = Path(launches.read_text(name))
    if not path.is_file():
        return INVALID_VALUE
    content = ctypes.create_string_buffer(path.read_bytes())
    return load(device, pointer, lambda: ptx_of_image(ctypes.addressof(content)))


def cuModuleUnload(device, module):
    return SUCCESS if device.driver_modules.pop(module, None) else INVALID_HANDLE


def cuModuleGetFunction(device, pointer, module, name):
    owner, name = device.driver_modules.get(module), launches.read_text(name)
    if owner is None:
        return INVALID_HANDLE
    if name not in owner.module.names:
        return NOT_FOUND
    handle = device.new_handle()
    device.functions[handle] = HostFunction(owner, name)
    memory.write_pointer(pointer, handle)
    return SUCCESS


def cuModuleGetGlobal_v2(device, pointer, nbytes, module, name):
    """Store the address and the size of a variable. Either pointer may be null."""
    owner, name = device.driver_modules.get(module), launches.read_text(name)
    if owner is None:
        return INVALID_HANDLE
    variable = owner.module.text.variables.get(name)
    if variable is None:
        return NOT_FOUND
    handle = device.new_handle()
    device.variables[handle] = HostVariable(owner, name, variable.bytes)
    if nbytes:
        memory.write_pointer(nbytes, variable.bytes)
    return copies.cudaGetSymbolAddress(device, pointer, handle) if pointer else SUCCESS


def cuFuncSetAttribute(device, function, attribute, value):
    return launches.cudaFuncSetAttribute(device, function, attribute, value)


cuFuncSetCacheConfig = launches.cudaFuncSetCacheConfig
cuOccupancyMaxActiveBlocksPerMultiprocessor = launches.cudaOccupancyMaxActiveBlocksPerMultiprocessor


def cuLaunchKernel(device, kernel, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra):
    """Launch a kernel. The arguments must be an array of pointers; `extra` is not supported."""
    if extra and not arguments:
        copies.unsupported(device, "cuLaunchKernel with arguments in `extra`")
        return INVALID_VALUE
    grid, block = (gx, gy, gz), (bx, by, bz)
    return launch(device, LaunchAttributes(), kernel, grid, block, shared, stream, arguments)


def cuLaunchCooperativeKernel(device, kernel, gx, gy, gz, bx, by, bz, shared, stream, arguments):
    grid, block, attributes = (gx, gy, gz), (bx, by, bz), LaunchAttributes(cooperative=True)
    return launch(device, attributes, kernel, grid, block, shared, stream, arguments)


def launch(device, attributes, kernel, grid, block, shared, stream, arguments):
    function = device.functions.get(kernel)
    if function is None:
        return INVALID_HANDLE
    return device.submit(stream, device.prepare(function, grid, block, arguments, shared, attributes))


# --- memory -------------------------------------------------------------------------------------------------

cuMemAlloc_v2, cuMemFree_v2, cuMemGetInfo_v2 = memory.cudaMalloc, memory.cudaFree, memory.cudaMemGetInfo
cuMemAllocManaged, cuMemAllocHost_v2 = memory.cudaMallocManaged, memory.cudaMallocHost
cuMemFreeHost, cuMemsetD8_v2 = memory.cudaFreeHost, copies.cudaMemset


def cuMemcpyHtoD_v2(device, destination, source, nbytes):
    return copies.copy(device, destination, source, nbytes, TO_DEVICE, "cuMemcpyHtoD")


def cuMemcpyDtoH_v2(device, destination, source, nbytes):
    return copies.copy(device, destination, source, nbytes, TO_HOST, "cuMemcpyDtoH")


def cuMemcpyDtoD_v2(device, destination, source, nbytes):
    return copies.copy(device, destination, source, nbytes, ON_DEVICE, "cuMemcpyDtoD")


def cuMemcpyHtoDAsync_v2(device, destination, source, nbytes, stream):
    return copies.cudaMemcpyAsync(device, destination, source, nbytes, TO_DEVICE, stream)


def cuMemcpyDtoHAsync_v2(device, destination, source, nbytes, stream):
    return copies.cudaMemcpyAsync(device, destination, source, nbytes, TO_HOST, stream)


def cuMemsetD32_v2(device, address, value, count):
    pattern, name = struct.pack("<I", value), "cuMemsetD32"
    rows = address, 4 * count, pattern, count, 1, name
    return device.submit(DEFAULT_STREAM, lambda: copies.set_rows(device, *rows))


# --- tensor maps --------------------------------------------------------------------------------------------


def cuTensorMapEncodeTiled(
    device, pointer, kind, rank, address, sizes, strides, box, steps, interleave, swizzle, promotion, fill
):
    """Store the 128 bytes of a tensor map, which describes a tensor for tensor copies. All arrays begin with
    the innermost dimension, except for `strides`, which has no entry for it."""
    if interleave or kind >= len(TYPES) or swizzle >= len(SWIZZLES):
        return copies.unsupported(device, f"cuTensorMapEncodeTiled with {INTERLEAVED}")
    if not 1 <= rank <= 5:
        return refuse_map(device, f"a tensor map has 1 to 5 dimensions, got {rank}")
    tensor = TensorMap(
        TYPES[kind],
        address,
        read_numbers(sizes, rank, ctypes.c_uint64),
        read_numbers(strides, rank - 1, ctypes.c_uint64),
        read_numbers(box, rank, ctypes.c_uint32),
        read_numbers(steps, rank, ctypes.c_uint32),
        SWIZZLES[swizzle],
        fill_nan=bool(fill),
        promotion=promotion,
    )
    try:
        check(tensor)
    except ValueError as error:
        return refuse_map(device, str(error))
    if address % ADDRESS_ALIGNMENT:
        return refuse_map(device, f"the address {address:#x} must be a multiple of {ADDRESS_ALIGNMENT}")
    ctypes.memmove(pointer, tensor.encode(), NBYTES)
    return SUCCESS


def read_numbers(address, count, kind):
    """Return the elements of a C array of integers."""
    return tuple((kind * count).from_address(address)) if count else ()


def refuse_map(device, rule):
    """Report a call with arguments for which the driver does not create a tensor map."""
    device.report("invalid-operand", "error", f"cuTensorMapEncodeTiled refuses its arguments: {rule}")
    return INVALID_VALUE


# --- addresses of functions ---------------------------------------------------------------------------------


def cudaGetDriverEntryPoint(device, symbol, pointer, flags, status):
    """Store the address of a function of the driver API, and a status: whether it exists."""
    name = launches.read_text(symbol)
    address = device.entry_point(name) or device.entry_point(f"{name}_v2") or 0
    if not address:
        copies.unsupported(device, name)
    memory.write_pointer(pointer, address)
    if status:
        memory.write_int(status, ENTRY_POINT_FOUND if address else ENTRY_POINT_MISSING)
    return SUCCESS


def cudaGetDriverEntryPointByVersion(device, symbol, pointer, version, flags, status):
    return cudaGetDriverEntryPoint(device, symbol, pointer, flags, status)


def cuGetProcAddress_v2(device, symbol, pointer, version, flags, status):
    return cudaGetDriverEntryPoint(device, symbol, pointer, flags, status)


# --- streams and events -------------------------------------------------------------------------------------

cuStreamCreate, cuStreamDestroy_v2 = devices.cudaStreamCreateWithFlags, devices.cudaStreamDestroy
cuStreamSynchronize, cuStreamWaitEvent = devices.cudaStreamSynchronize, devices.cudaStreamWaitEvent
cuEventCreate, cuEventDestroy_v2 = devices.cudaEventCreateWithFlags, devices.cudaEventDestroy
cuEventRecord, cuEventSynchronize = devices.cudaEventRecord, devices.cudaEventSynchronize
cuEventElapsedTime = cuEventElapsedTime_v2 = devices.cudaEventElapsedTime
