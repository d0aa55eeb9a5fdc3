"""The CUDA driver functions that Numba calls, for a simulated GPU.

Device memory is host memory. All work is complete when a call returns, so streams and events never wait.
"""

import bisect
import ctypes
import time
import weakref

import numpy as np
from numba.cuda.cudadrv import driver

from sim.events import INTEGER_POISON
from sim.memory.spaces import Empty

POISON_WORD = INTEGER_POISON * 0x01010101  # four bytes of poison
# Device attributes whose value is 1, and device attributes whose value is 0.
SUPPORTED = "CAN_MAP_HOST_MEMORY UNIFIED_ADDRESSING MANAGED_MEMORY COOPERATIVE_LAUNCH".split()
UNSUPPORTED = (
    "PCI_DOMAIN_ID PCI_BUS_ID PCI_DEVICE_ID COMPUTE_CAPABILITY_MINOR KERNEL_EXEC_TIMEOUT TCC_DRIVER".split()
)
TOTAL_BYTES = 16 << 30  # the device's memory size, as reported by get_memory_info


class Memory:
    """The allocations of the simulated device, {address: bytes}, and the addresses of allocations that may
    contain unwritten elements.

    An allocation is filled with INTEGER_POISON. An element that still has this value counts as unwritten.
    """

    def __init__(self):
        self.blocks, self.addresses, self.fresh = {}, [], set()

    def allocate(self, size):
        """Allocate `size` bytes, or one if `size` is 0, and return their address."""
        block = np.full(max(size, 1), INTEGER_POISON, np.uint8)
        # The host address doubles as the device address.
        address = block.__array_interface__["data"][0]
        self.blocks[address] = block
        self.fresh.add(address)
        bisect.insort(self.addresses, address)
        return address

    def free(self, address):
        """Drop an allocation. Ignore memory that this object did not allocate."""
        if self.blocks.pop(int(address), None) is not None:
            self.addresses.remove(int(address))
            self.fresh.discard(int(address))

    def make_finalizer(self, manager, pointer, key, *rest):
        """Return the function that Numba calls to free an allocation, possibly after the real driver has been
        restored."""

        def core():
            manager.allocations.pop(key, None)
            self.free(pointer)

        return core

    def find_base(self, address):
        """Return the address of the allocation that contains `address`, or None if it is not one of these
        allocations."""
        at = bisect.bisect_right(self.addresses, address) - 1
        base = self.addresses[at] if at >= 0 else None
        return base if base is not None and address < base + len(self.blocks[base]) else None

    def mark_written(self, address, size):
        """Record that the host has written `size` bytes at an address."""
        base = self.find_base(int(address))
        if base == int(address) and size == len(self.blocks[base]):
            self.fresh.discard(base)

    def update_fresh(self):
        """Record which allocations a launch has written completely."""
        self.fresh = {address for address in self.fresh if has_poison(self.blocks[address])}

    def as_array(self, device_array):
        """Return a numpy array over the bytes of a device array. Elements that were
        never written count as uninitialised, as in an array from `sim.empty`."""
        address, size = device_array.device_ctypes_pointer.value or 0, device_array.alloc_size
        buffer = (ctypes.c_char * size).from_address(address) if size else bytearray()
        is_fresh = self.find_base(address) in self.fresh
        array_class = Empty if is_fresh else np.ndarray
        array = array_class(device_array.shape, device_array.dtype, buffer, strides=device_array.strides)
        if is_fresh:
            array.byte = INTEGER_POISON
        return array

    @property
    def used(self):
        return sum(map(len, self.blocks.values()))


def has_poison(block):
    """Return whether an aligned word of an allocation, or a byte after the last word, contains poison."""
    whole = block.size // 4 * 4
    words, rest = block[:whole].view(np.uint32), block[whole:]
    return bool((words == POISON_WORD).any() or (rest == INTEGER_POISON).any())


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
        raise AttributeError(f"the simulated device does not know its {name}")

    def get_primary_context(self):
        self.primary_context = self.primary_context or driver.Context(weakref.proxy(self), 1)
        return self.primary_context


class Functions:
    """The driver functions by name. A call to any other function raises an error that names it."""

    def __init__(self, memory):
        self.memory, self.contexts, self.handles, self.events = memory, [], 0, {}

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
        """Return immediately, because all work is already complete."""

    cuInit = cuCtxSynchronize = cuStreamSynchronize = cuStreamDestroy = cuStreamWaitEvent = (
        cuEventSynchronize
    ) = cuEventQuery = do_nothing
    cuMemHostRegister = cuMemHostUnregister = cuDevicePrimaryCtxRelease = cuDevicePrimaryCtxReset = (
        cuProfilerStart
    ) = cuProfilerStop = do_nothing

    # --- memory ---------------------------------------------------------------------------------------------

    def cuMemAlloc(self, size):
        return driver.binding.CUdeviceptr(self.memory.allocate(size))

    def cuMemAllocManaged(self, size, flags):
        return self.cuMemAlloc(size)

    def cuMemHostAlloc(self, size, flags):
        return self.memory.allocate(size)

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

    def cuMemcpyHtoD(self, to, source, size, stream=0):
        ctypes.memmove(int(to), int(source), size)
        self.memory.mark_written(to, size)

    cuMemcpyDtoD = cuMemcpyHtoD

    def cuMemcpyDtoH(self, to, source, size, stream=0):
        ctypes.memmove(int(to), int(source), size)

    def cuMemsetD8(self, to, byte, count, stream=0):
        ctypes.memset(int(to), byte, count)
        self.memory.mark_written(to, count)

    cuMemcpyHtoDAsync, cuMemcpyDtoHAsync = cuMemcpyHtoD, cuMemcpyDtoH
    cuMemcpyDtoDAsync, cuMemsetD8Async = cuMemcpyDtoD, cuMemsetD8

    # --- streams and events ---------------------------------------------------------------------------------

    def new_handle(self):
        """Return a new handle for a stream or event."""
        self.handles += 1
        return self.handles

    def cuStreamCreate(self, flags):
        return driver.binding.CUstream(self.new_handle() + 0x1000)  # low handles denote the default streams

    def cuStreamAddCallback(self, stream, callback, data, flags):
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.py_object)(int(callback))(
            stream, 0, ctypes.cast(data, ctypes.py_object).value
        )

    def cuEventCreate(self, flags):
        return driver.binding.CUevent(self.new_handle())

    def cuEventDestroy(self, event):
        self.events.pop(event, None)

    def cuEventRecord(self, event, stream):
        self.events[event] = time.perf_counter()

    def cuEventElapsedTime(self, start, end):
        return 1000 * (self.events[end] - self.events[start])
