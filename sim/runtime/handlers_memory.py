"""Runtime functions that allocate, free and describe memory.

The parameters of each function are the Device and the C arguments, with pointers as integers. It returns an
error code.

Source: CUDA Runtime API, "Memory Management", "Stream Ordered Memory Allocator", "Unified Addressing".
"""

import ctypes
import struct

import numpy as np

from sim.runtime.errors import ALREADY_REGISTERED, INVALID_VALUE, MEMORY_ALLOCATION, NOT_REGISTERED, SUCCESS
from sim.runtime.host_bounds import report_overruns
from sim.runtime.memory import DEVICE, LIMIT, MANAGED, PINNED, PITCH, SYMBOL, DeviceBuffer, OutOfDeviceMemory
from sim.runtime.stream_operations import free_in_order, use_whole_buffer


def allocate(device, pointer, nbytes, kind):
    """Store the address of a new buffer at `pointer`."""
    if nbytes == 0:
        write_pointer(pointer, 0)
        return SUCCESS
    try:
        buffer = device.memory.allocate(nbytes, kind, device.call)
    except (OutOfDeviceMemory, MemoryError):
        return MEMORY_ALLOCATION
    write_pointer(pointer, buffer.base)
    return SUCCESS


def cudaMalloc(device, pointer, nbytes):
    return allocate(device, pointer, nbytes, DEVICE)


def cudaMallocAsync(device, pointer, nbytes, stream):
    code = allocate(device, pointer, nbytes, DEVICE)
    if code == SUCCESS and nbytes:
        (address,) = struct.unpack("<Q", ctypes.string_at(pointer, 8))
        # An access in another stream must be ordered after the allocation.
        use_whole_buffer(device, device.memory.buffers[address], stream, "allocates", lambda: SUCCESS)
    return code


def cudaMallocFromPoolAsync(device, pointer, nbytes, pool, stream):
    return cudaMallocAsync(device, pointer, nbytes, stream)


def cudaMallocManaged(device, pointer, nbytes, flags):
    return allocate(device, pointer, nbytes, MANAGED)


def cudaMallocHost(device, pointer, nbytes):
    return allocate(device, pointer, nbytes, PINNED)


def cudaHostAlloc(device, pointer, nbytes, flags):
    return allocate(device, pointer, nbytes, PINNED)


def cudaMallocPitch(device, pointer, pitch, width, height):
    row = -(-width // PITCH) * PITCH
    write_pointer(pitch, row)
    return allocate(device, pointer, row * height, DEVICE)


def cudaMalloc3D(device, pitched, extent):
    width, height, depth = struct.unpack("<3Q", ctypes.string_at(extent, 24))
    row = -(-width // PITCH) * PITCH
    ctypes.memmove(pitched + 8, struct.pack("<3Q", row, width, height), 24)
    return allocate(device, pitched, row * height * depth, DEVICE)


def free(device, address, kinds, name):
    """Free a buffer of one of the given kinds. Report the pointer if it is not the start of such a buffer."""
    if address == 0:
        return SUCCESS
    buffer = device.memory.buffers.get(address)
    if buffer is not None and buffer.kind in kinds:
        if name != "cudaFreeAsync":
            device.streams.synchronize_all()  # on a GPU, such a call waits for the device
        device.streams.forget(buffer.base, buffer.end)
        report_overruns(device, buffer)
        device.memory.free(buffer, device.call)
        return SUCCESS
    freed = device.memory.find_freed(address)
    if freed is not None and freed.base == address:
        verdict = f"{name} frees {freed} a second time; it was freed at {freed.freed}"
        device.report("double-free", "error", verdict, "free it once, and set the pointer to nullptr then")
    else:
        inside = buffer or device.memory.find(address)
        what = f"a pointer to {inside}" if inside is not None else f"{address:#x}, which was not allocated"
        if inside is not None and inside.base != address:
            what = f"a pointer into the middle of {inside}"
        fix = "free the pointer that the allocation returned, with the function that belongs to it"
        device.report("invalid-pointer", "error", f"{name} is given {what}", fix)
    return INVALID_VALUE


def cudaFree(device, address):
    return free(device, address, (DEVICE, MANAGED), "cudaFree")


def cudaFreeAsync(device, address, stream):
    action = lambda: free(device, address, (DEVICE, MANAGED), "cudaFreeAsync")  # noqa: E731
    buffer = device.memory.buffers.get(address)
    return action() if buffer is None else free_in_order(device, buffer, stream, action)


def cudaFreeHost(device, address):
    return free(device, address, (PINNED,), "cudaFreeHost")


def cudaMemGetInfo(device, available, total):
    write_pointer(available, LIMIT - device.memory.used)
    write_pointer(total, LIMIT)
    return SUCCESS


def cudaHostRegister(device, address, nbytes, flags):
    """Register host memory. Give it a separate device address, as on a system without unified addressing."""
    if address in device.memory.registered:
        return ALREADY_REGISTERED
    try:
        base, key = device.memory.reserve(nbytes)
    except OutOfDeviceMemory:
        return MEMORY_ALLOCATION
    root = np.frombuffer((ctypes.c_char * nbytes).from_address(address), np.uint8)
    device.memory.register(address, DeviceBuffer(base, root, PINNED, device.call, key=key))
    return SUCCESS


def cudaHostUnregister(device, address):
    buffer = device.memory.register(address, None)
    if buffer is None:
        return NOT_REGISTERED
    device.streams.synchronize_all()
    buffer.kind = DEVICE  # the host memory belongs to the program, so do not unmap it
    device.memory.free(buffer, device.call)
    return SUCCESS


def cudaHostGetDevicePointer(device, pointer, address, flags):
    buffer = device.memory.registered.get(address) or device.memory.find(address)
    if buffer is None:
        return INVALID_VALUE
    write_pointer(pointer, buffer.base if address in device.memory.registered else address)
    return SUCCESS


def cudaHostGetFlags(device, flags, address):
    write_int(flags, 0)
    return SUCCESS


def cudaPointerGetAttributes(device, attributes, address):
    """Fill in a cudaPointerAttributes: type, device, device pointer, host pointer."""
    buffer = device.memory.find(address)
    kind = {DEVICE: 2, SYMBOL: 2, MANAGED: 3, PINNED: 1}.get(buffer.kind if buffer else "", 0)
    on_device, on_host = (address if kind else 0), (address if kind in (0, 1, 3) else 0)
    ctypes.memmove(attributes, struct.pack("<iiQQ", kind, 0 if kind else -2, on_device, on_host), 24)
    return SUCCESS


def cudaMemPrefetchAsync(device, address, nbytes, location, flags, stream):
    return SUCCESS if device.memory.find(address) else INVALID_VALUE


def cudaMemAdvise(device, address, nbytes, advice, location):
    return SUCCESS if device.memory.find(address) else INVALID_VALUE


def cudaDeviceGetDefaultMemPool(device, pool, index):
    write_pointer(pool, 1)
    return SUCCESS


cudaDeviceGetMemPool = cudaDeviceGetDefaultMemPool


def cudaMemPoolSetAttribute(device, pool, attribute, value):
    return SUCCESS


def cudaMemPoolGetAttribute(device, pool, attribute, value):
    write_pointer(value, 0)
    return SUCCESS


def cudaMemPoolTrimTo(device, pool, nbytes):
    return SUCCESS


def write_pointer(at, value):
    """Write 64 bits to host memory."""
    ctypes.c_uint64.from_address(at).value = value


def write_int(at, value):
    """Write 32 bits to host memory."""
    ctypes.c_int32.from_address(at).value = value
