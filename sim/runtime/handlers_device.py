"""Runtime functions for devices, errors, streams and events.

The parameters of each function are the Device and the C arguments, with pointers as integers. It returns an
error code.

Work is executed when it is issued, in program order. Streams therefore never overlap, and queries report that
all work has finished.

Source: CUDA Runtime API, "Device Management", "Error Handling", "Stream Management", "Event Management".
"""

import ctypes
from collections import Counter

from sim.runtime.errors import (
    CAPTURE_ISOLATION,
    INVALID_DEVICE,
    INVALID_HANDLE,
    INVALID_VALUE,
    NOT_READY,
    SUCCESS,
    error_name,
    error_text,
)
from sim.runtime.handlers_memory import write_int, write_pointer
from sim.runtime.host_bounds import report_overruns
from sim.runtime.properties import attribute_values, write_properties

NON_BLOCKING = 1  # cudaStreamNonBlocking
VERSION = 13000  # version of the runtime and of the driver: 1000 * major + 10 * minor


# --- devices ------------------------------------------------------------------------------------------------


def cudaGetDeviceCount(device, count):
    write_int(count, 1)
    return SUCCESS


def cudaSetDevice(device, index):
    return SUCCESS if index == 0 else INVALID_DEVICE


def cudaGetDevice(device, index):
    write_int(index, 0)
    return SUCCESS


def cudaSetDeviceFlags(device, flags):
    return SUCCESS


def cudaGetDeviceFlags(device, flags):
    write_int(flags, 0)
    return SUCCESS


def cudaInitDevice(device, index, device_flags, flags):
    return cudaSetDevice(device, index)


def cudaGetDeviceProperties(device, properties, index):
    if index != 0:
        return INVALID_DEVICE
    write_properties(device.spec, device.compute_capability(), properties)
    return SUCCESS


def cudaDeviceGetAttribute(device, value, attribute, index):
    if index != 0:
        return INVALID_DEVICE
    write_int(value, attribute_values(device.spec, device.compute_capability()).get(attribute, 0))
    return SUCCESS


def cudaDeviceSynchronize(device):
    device.streams.synchronize_all()
    return device.sticky


def cudaDeviceReset(device):
    """Free all device memory."""
    device.streams.synchronize_all()
    for buffer in [b for b in device.memory.buffers.values() if b.kind != "symbol"]:
        report_overruns(device, buffer)
        device.memory.free(buffer, device.call)
    device.sticky = device.error = 0
    return SUCCESS


def accept(device, *arguments):
    """Return success: the hint has no effect in the simulator."""
    return SUCCESS


cudaDeviceSetCacheConfig = cudaDeviceSetSharedMemConfig = accept
cudaProfilerStart = cudaProfilerStop = accept
cudaStreamAttachMemAsync = cudaStreamSetAttribute = cudaCtxResetPersistingL2Cache = accept


def cudaDeviceGetCacheConfig(device, value):
    write_int(value, 0)
    return SUCCESS


def cudaDeviceSetLimit(device, limit, value):
    device.limits[limit] = value
    return SUCCESS


def cudaDeviceGetLimit(device, value, limit):
    # defaults of an H200: stack bytes, printf buffer bytes, heap bytes
    defaults = {0: 1024, 1: 1 << 20, 2: device.spec.heap_bytes}
    write_pointer(value, device.limits.get(limit, defaults.get(limit, 0)))
    return SUCCESS


def cudaDeviceGetStreamPriorityRange(device, least, greatest):
    write_int(least, 0)
    write_int(greatest, -5)
    return SUCCESS


def cudaDeviceCanAccessPeer(device, can, index, peer):
    write_int(can, 0)
    return SUCCESS if peer == index == 0 else INVALID_DEVICE


def cudaDeviceEnablePeerAccess(device, peer, flags):
    return INVALID_DEVICE


def cudaDeviceDisablePeerAccess(device, peer):
    return INVALID_DEVICE


def cudaDeviceGetPCIBusId(device, text, length, index):
    identity = b"0000:00:00.0\0"
    if index != 0 or length < len(identity):
        return INVALID_VALUE
    ctypes.memmove(text, identity, len(identity))
    return SUCCESS


def cudaDriverGetVersion(device, version):
    write_int(version, VERSION)
    return SUCCESS


cudaRuntimeGetVersion = cudaDriverGetVersion


# --- errors -------------------------------------------------------------------------------------------------


def cudaGetLastError(device):
    return device.take_error(clear=True)


def cudaPeekAtLastError(device):
    return device.take_error(clear=False)


def cudaGetErrorString(device, code):
    return device.text(error_text(code))


def cudaGetErrorName(device, code):
    return device.text(error_name(code))


# --- streams ------------------------------------------------------------------------------------------------


def cudaStreamCreate(device, stream):
    return cudaStreamCreateWithFlags(device, stream, 0)


def cudaStreamCreateWithFlags(device, stream, flags):
    handle = device.new_handle()
    device.streams.create(handle, flags == NON_BLOCKING)
    write_pointer(stream, handle)
    return SUCCESS


def cudaStreamCreateWithPriority(device, stream, flags, priority):
    return cudaStreamCreateWithFlags(device, stream, flags)


def cudaStreamDestroy(device, stream):
    if stream not in device.streams.live:
        return INVALID_HANDLE
    device.streams.live.remove(stream)
    return SUCCESS


def cudaStreamSynchronize(device, stream):
    # 0, 1 and 2 are the default streams
    if stream not in device.streams.live and stream > 2:
        return INVALID_HANDLE
    device.streams.synchronize(stream)
    return device.sticky


def cudaStreamQuery(device, stream):
    if stream not in device.streams.live and stream > 2:
        return INVALID_HANDLE
    return device.sticky or (SUCCESS if device.streams.query(device.streams.clock(stream)) else NOT_READY)


def cudaStreamWaitEvent(device, stream, event, flags):
    """Make a stream wait for an event. If the event belongs to a capture, the stream joins the capture."""
    if event not in device.events:
        return INVALID_HANDLE
    if event in device.graphs.events:
        capture, nodes = device.graphs.events[event]
        device.graphs.capturing[stream] = capture
        capture.join(stream, nodes)
    elif stream in device.graphs.capturing and event in device.streams.events:
        # The event was recorded outside the capture.
        device.graphs.capturing[stream].is_valid = False
        return CAPTURE_ISOLATION
    else:
        device.streams.wait(stream, event)
    return SUCCESS


def cudaStreamGetFlags(device, stream, flags):
    write_int(flags, 0)
    return SUCCESS


def cudaStreamGetPriority(device, stream, priority):
    write_int(priority, 0)
    return SUCCESS


# --- events -------------------------------------------------------------------------------------------------


def cudaEventCreate(device, event):
    handle = device.new_handle()
    device.events[handle] = None
    write_pointer(event, handle)
    return SUCCESS


def cudaEventCreateWithFlags(device, event, flags):
    return cudaEventCreate(device, event)


def cudaEventRecord(device, event, stream):
    if event not in device.events:
        return INVALID_HANDLE
    device.events[event] = device.now()
    if stream in device.graphs.capturing:
        capture = device.graphs.capturing[stream]
        device.graphs.events[event] = capture, capture.last.get(stream, frozenset())
    else:
        device.streams.record(event, stream)
    return SUCCESS


def cudaEventRecordWithFlags(device, event, stream, flags):
    return cudaEventRecord(device, event, stream)


def cudaEventSynchronize(device, event):
    if event not in device.events:
        return INVALID_HANDLE
    device.streams.synchronize_event(event)
    return device.sticky


def cudaEventQuery(device, event):
    if event not in device.events:
        return INVALID_HANDLE
    over = device.streams.query(device.streams.events.get(event, Counter()))
    return device.sticky or (SUCCESS if over else NOT_READY)


def cudaEventDestroy(device, event):
    return SUCCESS if device.events.pop(event, INVALID_HANDLE) != INVALID_HANDLE else INVALID_HANDLE


def cudaEventElapsedTime(device, milliseconds, start, end):
    times = device.events.get(start), device.events.get(end)
    if None in times:
        return INVALID_HANDLE
    clocks = [device.streams.events.get(event, Counter()) for event in (start, end)]
    if not all(device.streams.query(clock) for clock in clocks):
        return NOT_READY
    device.log.notes["times of CUDA events are those of the simulator, not of a GPU"] = None
    ctypes.c_float.from_address(milliseconds).value = times[1] - times[0]
    return SUCCESS
