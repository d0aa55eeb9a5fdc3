"""The CUDA driver functions that Numba calls, for a simulated GPU.

Device memory is host memory. All work is executed before a call returns. sim.host.streams records what a GPU
could still be executing then.
"""

import ctypes
import time
import weakref

from numba.cuda.cudadrv import driver

from sim.host.memory import MANAGED, PAGE_LOCKED

# The device attributes whose value is 1, and those whose value is 0.
SUPPORTED = "CAN_MAP_HOST_MEMORY UNIFIED_ADDRESSING MANAGED_MEMORY COOPERATIVE_LAUNCH".split()
UNSUPPORTED = (
    "PCI_DOMAIN_ID PCI_BUS_ID PCI_DEVICE_ID COMPUTE_CAPABILITY_MINOR KERNEL_EXEC_TIMEOUT TCC_DRIVER".split()
)
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING
TOTAL_BYTES = 16 << 30  # the device's memory size, as reported by get_memory_info


class Device(driver.Device):
    """The single simulated device, with the limits of a DeviceSpec."""

    def __init__(self, spec):
        self.id, self.name, self.uuid = 0, b"simulated", "GPU-simulated"
        self.compute_capability, self.primary_context = (9, 0), None
        for what, limits in (("BLOCK", spec.max_block), ("GRID", spec.max_grid)):
            vars(self).update({f"MAX_{what}_DIM_{axis}": limit for axis, limit in zip("XYZ", limits)})
        vars(self).update(
            MULTIPROCESSOR_COUNT=spec.multiprocessors,
            WARP_SIZE=spec.warp_size,
            MAX_THREADS_PER_BLOCK=spec.max_threads_per_block,
            MAX_SHARED_MEMORY_PER_BLOCK=spec.dynamic_shared_bytes,
            CLOCK_RATE=1_000_000,
            TOTAL_CONSTANT_MEMORY=65536,
            COMPUTE_CAPABILITY_MAJOR=9,
            SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO=2,
            **dict.fromkeys(SUPPORTED, 1),
            **dict.fromkeys(UNSUPPORTED, 0),
        )

    def __getattr__(self, name):
        raise AttributeError(f"the simulated device has no value for {name}")

    def get_primary_context(self):
        self.primary_context = self.primary_context or driver.Context(weakref.proxy(self), 1)
        return self.primary_context


class Functions:
    """The driver functions by name. A call to any other function raises an error that names it."""

    def __init__(self, memory, streams):
        self.memory, self.streams = memory, streams
        self.contexts, self.handles, self.events = [], 0, {}

    @staticmethod
    def refuse(driver, name):
        """Raise NotImplementedError for a driver function that is not simulated. Numba calls this with its
        driver and the name."""
        raise NotImplementedError(
            f"the simulated GPU has no {name}: mark tests that need a real one with cuda_sim(off=True)"
        )

    def names(self):
        """Return {name: function}."""
        return {name: getattr(self, name) for name in dir(self) if name.startswith("cu")}

    # --- contexts -------------------------------------------------------------------------------------------

    def cuCtxGetCurrent(self):
        return self.contexts[-1] if self.contexts else 0

    def cuCtxPushCurrent(self, handle):
        self.contexts.append(handle)

    def cuCtxPopCurrent(self):
        return self.contexts.pop()

    def cuCtxGetDevice(self):
        return 0

    def cuDeviceGetCount(self):
        return 1

    def cuDriverGetVersion(self):
        return 13000

    def cuDeviceCanAccessPeer(self, device, peer):
        return 0

    def do_nothing(self, *arguments):
        """Return immediately, because the call has no effect on the simulated device."""

    cuInit = cuDevicePrimaryCtxRelease = cuDevicePrimaryCtxReset = do_nothing
    cuProfilerStart = cuProfilerStop = do_nothing

    # --- memory ---------------------------------------------------------------------------------------------

    def cuMemAlloc(self, size):
        return driver.binding.CUdeviceptr(self.memory.allocate(size))

    def cuMemAllocManaged(self, size, flags):
        return driver.binding.CUdeviceptr(self.memory.allocate(size, MANAGED))

    def cuMemHostAlloc(self, size, flags):
        return self.memory.allocate(size, PAGE_LOCKED)

    def cuMemHostRegister(self, pointer, size, flags):
        self.memory.register(pointer, size)

    def cuMemHostUnregister(self, pointer):
        self.memory.unregister(pointer)

    def cuMemHostGetDevicePointer(self, pointer, flags):
        return driver.binding.CUdeviceptr(int(pointer))

    def cuMemFree(self, pointer):
        self.memory.free(pointer)

    cuMemFreeHost = cuMemFree

    def cuMemGetInfo(self):
        return TOTAL_BYTES - self.memory.used, TOTAL_BYTES

    def cuMemGetAddressRange(self, pointer):
        base = self.memory.find_base(int(pointer))
        return base, len(self.memory.blocks[base])

    def cuPointerGetAttribute(self, attribute, pointer):
        return pointer

    def copy(self, to, source, size, stream, waits, to_host=False, from_host=False):
        """Copy bytes in a stream. `waits` is as in `HostStreams.copy`."""
        to, source = int(to), int(source)

        def action():
            ctypes.memmove(to, source, size)
            if not to_host:
                self.memory.mark_written(to, size)

        sides = (to, to + size, to_host), (source, source + size, from_host)
        self.streams.copy(stream, action, *sides, waits)

    def cuMemcpyHtoD(self, to, source, size):
        self.copy(to, source, size, 0, True, from_host=True)

    def cuMemcpyDtoH(self, to, source, size):
        self.copy(to, source, size, 0, True, to_host=True)

    def cuMemcpyDtoD(self, to, source, size):
        self.copy(to, source, size, 0, None)

    def cuMemcpyHtoDAsync(self, to, source, size, stream):
        self.copy(to, source, size, stream, False, from_host=True)

    def cuMemcpyDtoHAsync(self, to, source, size, stream):
        self.copy(to, source, size, stream, False, to_host=True)

    def cuMemcpyDtoDAsync(self, to, source, size, stream):
        self.copy(to, source, size, stream, False)

    def cuMemsetD8(self, to, byte, count):
        self.fill(to, byte, count, 0, None)

    def cuMemsetD8Async(self, to, byte, count, stream):
        self.fill(to, byte, count, stream, False)

    def fill(self, to, byte, count, stream, waits):
        """Fill bytes in a stream. `waits` is as in `HostStreams.copy`."""
        to = int(to)

        def action():
            ctypes.memset(to, byte, count)
            self.memory.mark_written(to, count)

        self.streams.copy(stream, action, (to, to + count, False), None, waits)

    # --- streams and events ---------------------------------------------------------------------------------

    def new_handle(self):
        """Return a new handle for a stream or event."""
        self.handles += 1
        return self.handles

    def cuStreamCreate(self, flags):
        handle = self.new_handle() + 0x1000  # low handles denote the default streams
        self.streams.add(handle, flags == NON_BLOCKING)
        return driver.binding.CUstream(handle)

    def cuStreamSynchronize(self, stream):
        self.streams.wait_for_stream(stream)

    def cuStreamWaitEvent(self, stream, event, flags):
        self.streams.let_wait(stream, event)

    def cuStreamAddCallback(self, stream, callback, data, flags):
        call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.py_object)(int(callback))
        given = ctypes.cast(data, ctypes.py_object).value
        self.streams.call_host(stream, lambda: call(int(stream), 0, given))

    def cuCtxSynchronize(self):
        self.streams.wait_for_all()

    def cuEventCreate(self, flags):
        return driver.binding.CUevent(self.new_handle())

    def cuEventDestroy(self, event):
        self.events.pop(event, None)

    def cuEventRecord(self, event, stream):
        self.events[event] = time.perf_counter()
        self.streams.record_event(event, stream)

    def cuEventSynchronize(self, event):
        self.streams.wait_for_event(event)

    def cuEventQuery(self, event):
        if not self.streams.is_event_over(event):
            raise driver.CudaAPIError(driver.binding.CUresult.CUDA_ERROR_NOT_READY, "the event is pending")

    def cuEventElapsedTime(self, start, end):
        return 1000 * (self.events[end] - self.events[start])
