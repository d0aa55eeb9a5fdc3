"""The functions of the CUDA driver that load machine code and launch kernels, called through ctypes.

Numba needs about 30 µs for a launch. A launch through this file needs about 2: the caller packs the arguments
into one buffer, and the driver copies that buffer.
"""

import ctypes
import functools
import sys
from ctypes import byref, c_char_p, c_int, c_uint, c_ulonglong, c_void_p

# values of the driver API
BUFFER_POINTER, BUFFER_SIZE, END = 1, 2, 0  # CU_LAUNCH_PARAM_…
INVALID_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT
PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_…
# CU_FUNC_ATTRIBUTE_…
ATTRIBUTES = {"shared": 1, "local": 3, "registers": 4}


class DriverError(RuntimeError):
    """An error that the CUDA driver reported."""


@functools.cache
def library():
    """Return the driver's library, initialised."""
    names = ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1", "libcuda.so")
    for name in names:
        try:
            found = (ctypes.WinDLL if sys.platform == "win32" else ctypes.CDLL)(name)
        except OSError:
            continue
        return declared(found)
    raise DriverError(f"found no CUDA driver ({' or '.join(names)}); install NVIDIA's driver")


def declared(driver):
    """Return the driver's library with the argument types of the functions that are called most often."""
    driver.cuLaunchKernelEx.argtypes = [c_void_p] * 4
    driver.cuGraphExecKernelNodeSetParams_v2.argtypes = [c_void_p] * 3
    driver.cuGraphLaunch.argtypes = [c_void_p] * 2
    driver.cuInit(0)
    return driver


def check(status, what):
    """Raise DriverError unless `status` is 0; `what` is the function that returned it."""
    if status:
        text = c_char_p()
        library().cuGetErrorString(status, byref(text))
        reason = (text.value or b"unknown error").decode()
        raise DriverError(f"the CUDA driver's {what} failed with error {status}: {reason}")


@functools.cache
def version():
    """Return the driver's version, for example 13000 for CUDA 13.0."""
    number = c_int()
    check(library().cuDriverGetVersion(byref(number)), "cuDriverGetVersion")
    return number.value


def load_kernel(name, cubin):
    """Load machine code, and return the handle of the kernel of this name. It is valid on all GPUs with the
    compute capability of the machine code, and is never unloaded."""
    loaded, kernel = c_void_p(), c_void_p()
    nothing = (None, None, 0)
    check(library().cuLibraryLoadData(byref(loaded), cubin, *nothing, *nothing), "cuLibraryLoadData")
    check(library().cuLibraryGetKernel(byref(kernel), loaded, name.encode()), "cuLibraryGetKernel")
    return kernel.value


def use_device(device):
    """Make the primary context of a device the current context of this thread."""
    handle, context = c_int(), c_void_p()
    check(library().cuDeviceGet(byref(handle), device), "cuDeviceGet")
    check(library().cuDevicePrimaryCtxRetain(byref(context), handle), "cuDevicePrimaryCtxRetain")
    check(library().cuCtxSetCurrent(context), "cuCtxSetCurrent")


def resources(kernel, device, threads):
    """Return the resources of a loaded kernel: bytes of shared memory per block, bytes of local memory and
    registers per thread, and the resident blocks of `threads` threads per multiprocessor."""
    number, found = c_int(), {}
    for name, attribute in ATTRIBUTES.items():
        status = library().cuKernelGetAttribute(byref(number), attribute, c_void_p(kernel), device)
        check(status, "cuKernelGetAttribute")
        found[name] = number.value
    function = c_void_p()
    check(library().cuKernelGetFunction(byref(function), c_void_p(kernel)), "cuKernelGetFunction")
    occupancy = library().cuOccupancyMaxActiveBlocksPerMultiprocessor
    check(occupancy(byref(number), function, threads, ctypes.c_size_t(0)), occupancy.__name__)
    return found | {"blocks": number.value}


class Attribute(ctypes.Structure):
    """The driver's CUlaunchAttribute, with an int as its value."""

    _fields_ = (("number", c_int), ("padding", c_int), ("value", c_int), ("unused", c_int * 15))


class Configuration(ctypes.Structure):
    """The driver's CUlaunchConfig."""

    _fields_ = (
        *((f"{size}{axis}", c_uint) for size in ("grid", "block") for axis in "xyz"),
        ("shared", c_uint),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("attribute_count", c_uint),
    )


class KernelNode(ctypes.Structure):
    """The driver's CUDA_KERNEL_NODE_PARAMS_v2."""

    _fields_ = (
        ("function", c_void_p),
        *((f"{size}{axis}", c_uint) for size in ("grid", "block") for axis in "xyz"),
        ("shared", c_uint),
        *((name, c_void_p) for name in ("arguments", "extra", "kernel", "context")),
    )


class PackedLaunch:
    """A loaded kernel, the size of a launch, and a buffer with its arguments, laid out as the kernel expects
    them.

    early: whether the kernel may start before the previous kernel of its stream has ended.
    words: the buffer as 8-byte words, to change the arguments that are addresses.
    call: the arguments of `cuLaunchKernelEx`, which refer to the buffer.
    node: the launch as a node of a graph, which refers to the buffer, too.
    """

    __slots__ = ("buffer", "call", "configuration", "node", "owners", "words")

    def __init__(self, kernel, packed, grid, block, early=False):
        self.buffer = ctypes.create_string_buffer(packed, -(-len(packed) // 8) * 8)
        self.words = memoryview(self.buffer).cast("B").cast("Q")
        used = ctypes.c_size_t(len(packed))
        entries = (BUFFER_POINTER, ctypes.addressof(self.buffer), BUFFER_SIZE, ctypes.addressof(used), END)
        extra = (c_void_p * 5)(*entries)
        self.configuration = Configuration(*grid, *block)
        self.call = ctypes.addressof(self.configuration), kernel, None, ctypes.addressof(extra)
        attribute = Attribute(PROGRAMMATIC_STREAM_SERIALIZATION, 0, 1)
        if early:
            self.configuration.attributes = ctypes.addressof(attribute)
            self.configuration.attribute_count = 1
        self.node = KernelNode(None, *grid, *block, 0, None, ctypes.addressof(extra), kernel, None)
        self.owners = used, extra, attribute


def launch(launches, stream, device):
    """Launch loaded kernels asynchronously, one after the other.

    launches: a PackedLaunch for each of them.
    stream: the address of a CUDA stream.
    """
    function = library().cuLaunchKernelEx
    for packed in launches:
        packed.configuration.stream = stream
        status = function(*packed.call)
        if status:
            repeat_in_context(function, packed.call, status, device)


def repeat_in_context(function, arguments, status, device):
    """Repeat a call of the driver that returned an error because this thread had not used the GPU yet; raise
    other errors."""
    if status == INVALID_CONTEXT:
        use_device(device)
        status = function(*arguments)
    check(status, function.__name__)


class LaunchGraph:
    """A CUDA graph of launches, one after the other, which the driver starts with a single call.

    The graph has copies of the arguments of its launches, from its creation or the last update.

    launches: a PackedLaunch for each of them; not early.
    """

    def __init__(self, launches, device):
        use_device(device)
        graph, ready, earlier, count = c_void_p(), c_void_p(), None, ctypes.c_size_t(0)
        check(library().cuGraphCreate(byref(graph), 0), "cuGraphCreate")
        updates = []
        for packed in launches:
            node = c_void_p()
            added = library().cuGraphAddKernelNode_v2(byref(node), graph, earlier, count, byref(packed.node))
            check(added, "cuGraphAddKernelNode")
            updates.append((node, ctypes.addressof(packed.node)))
            earlier, count = byref(node), ctypes.c_size_t(1)
        created = library().cuGraphInstantiateWithFlags(byref(ready), graph, c_ulonglong(0))
        check(created, "cuGraphInstantiateWithFlags")
        self.device, self.ready = device, ready.value
        self.updates = [(ready.value, node.value, parameters) for node, parameters in updates]

    def update(self):
        """Copy the current arguments of the launches. This does not change earlier launches of the graph."""
        function = library().cuGraphExecKernelNodeSetParams_v2
        for arguments in self.updates:
            status = function(*arguments)
            if status:
                repeat_in_context(function, arguments, status, self.device)

    def launch(self, stream):
        """Launch the kernels asynchronously, in a CUDA stream."""
        function = library().cuGraphLaunch
        status = function(self.ready, stream)
        if status:
            repeat_in_context(function, (self.ready, stream), status, self.device)
