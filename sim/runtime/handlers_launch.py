"""Runtime functions that register, configure and launch kernels.

The parameters of each function are the Device and the C arguments, with pointers as integers. It returns an
error code.

Source: crt/host_runtime.h; CUDA Runtime API, "Execution Control" and "Occupancy".
"""

import ctypes
import struct
from dataclasses import replace
from math import prod

from sim.runtime.device import HostFunction, HostVariable
from sim.runtime.errors import INVALID_DEVICE_FUNCTION, INVALID_VALUE, SUCCESS
from sim.runtime.fatbin import ptx_of_wrapper
from sim.runtime.handlers_copies import address_of_variable
from sim.runtime.handlers_graphs import call_host
from sim.runtime.handlers_memory import write_int, write_pointer
from sim.runtime.launches import LaunchAttributes
from sim.runtime.memory import DeviceBuffer, map_at

MAX_DYNAMIC_SHARED = 8  # cudaFuncAttributeMaxDynamicSharedMemorySize
COOPERATIVE, CLUSTER_DIMENSION = 2, 4  # values of cudaLaunchAttributeID
ATTRIBUTE_BYTES = 72  # the size of a cudaLaunchAttribute


def read_text(address):
    """Return a C string."""
    return ctypes.string_at(address).decode(errors="replace")


def read_dim3(address):
    """Return the three unsigned integers of a dim3."""
    return struct.unpack("<3I", ctypes.string_at(address, 12))


# --- registration, before main() ----------------------------------------------------------------------------


def __cudaRegisterFatBinary(device, wrapper):
    device.register_module(lambda: ptx_of_wrapper(wrapper))
    return len(device.modules)  # the handle of the module


def __cudaRegisterFatBinaryEnd(device, handle):
    return SUCCESS


def __cudaUnregisterFatBinary(device, handle):
    return SUCCESS


def __cudaInitModule(device, handle):
    return 1


def __cudaRegisterFunction(device, handle, host, function, name, limit, *sizes):
    owner = device.modules[handle - 1]
    device.functions[host] = HostFunction(owner, read_text(name))


def __cudaRegisterVar(device, handle, host, function, name, external, nbytes, constant, is_global):
    owner = device.modules[handle - 1]
    device.variables[host] = HostVariable(owner, read_text(name), nbytes)


def __cudaRegisterManagedVar(device, handle, host, function, name, external, nbytes, constant, is_global):
    """Allocate host-accessible memory for a managed variable, and store its address in the host's pointer."""
    module, name = device.modules[handle - 1].module, read_text(name)
    variable = module.text.variables[name]
    base = address_of_variable(module, variable)
    root = map_at(base, variable.bytes)
    root[:] = module.store.root(variable)
    module.store.roots[name] = root
    device.memory.add(DeviceBuffer(base, root, "symbol", device.call, f"the variable {name}"))
    device.variables[host] = HostVariable(device.modules[handle - 1], name, nbytes)
    module.store.laid_out[name] = None  # the host can pass the variable's address to any kernel
    write_pointer(host, base)


# --- launches -----------------------------------------------------------------------------------------------


def __cudaPushCallConfiguration(device, grid, block, shared, stream):
    device.pending.append((read_dim3(grid), read_dim3(block), shared, stream, device.call))
    return SUCCESS


def __cudaPopCallConfiguration(device, grid, block, shared, stream):
    if not device.pending:
        return INVALID_VALUE
    given, threads, nbytes, number, device.launch_site = device.pending.pop()
    ctypes.memmove(grid, struct.pack("<3I", *given), 12)
    ctypes.memmove(block, struct.pack("<3I", *threads), 12)
    write_pointer(shared, nbytes)
    write_pointer(stream, number)
    return SUCCESS


def __cudaGetKernel(device, handle, host):
    write_pointer(handle, host)
    return SUCCESS if host in device.functions else INVALID_DEVICE_FUNCTION


def __cudaLaunchKernel(device, kernel, grid, block, arguments, shared, stream):
    """Launch a kernel for the `<<<...>>>` syntax. Report the call site of the configuration call."""
    device.call = device.launch_site or device.call
    device.launch_site = None
    return cudaLaunchKernel(device, kernel, grid, block, arguments, shared, stream)


def launch(device, attributes, kernel, grid, block, arguments, shared, stream):
    function = device.functions.get(kernel)
    if function is None:
        return device.fail(INVALID_DEVICE_FUNCTION)
    grid, block = read_dim3(grid), read_dim3(block)
    return device.submit(stream, device.prepare(function, grid, block, arguments, shared, attributes))


def cudaLaunchKernel(device, kernel, grid, block, arguments, shared, stream):
    return launch(device, LaunchAttributes(), kernel, grid, block, arguments, shared, stream)


def cudaLaunchCooperativeKernel(device, kernel, grid, block, arguments, shared, stream):
    attributes = LaunchAttributes(cooperative=True)
    return launch(device, attributes, kernel, grid, block, arguments, shared, stream)


cudaLaunchKernel_ptsz, __cudaLaunchKernel_ptsz = cudaLaunchKernel, __cudaLaunchKernel


def cudaLaunchKernelExC(device, configuration, kernel, arguments):
    """Launch a kernel with a cudaLaunchConfig_t, which contains the grid, the block, the bytes of dynamic
    shared memory, the stream and attributes."""
    shared, stream = struct.unpack("<QQ", ctypes.string_at(configuration + 24, 16))
    grid, block, attributes = configuration, configuration + 12, read_attributes(configuration)
    return launch(device, attributes, kernel, grid, block, arguments, shared, stream)


def read_attributes(configuration):
    """Return the LaunchAttributes of a cudaLaunchConfig_t. The other attributes have no effect."""
    address, count = struct.unpack("<QI", ctypes.string_at(configuration + 40, 12))
    attributes = LaunchAttributes()
    for position in range(count):
        kind, *values = struct.unpack("<I4x3I", ctypes.string_at(address + ATTRIBUTE_BYTES * position, 20))
        if kind == CLUSTER_DIMENSION:
            attributes = replace(attributes, cluster=tuple(values))
        elif kind == COOPERATIVE:
            attributes = replace(attributes, cooperative=bool(values[0]))
    return attributes


def cudaLaunchHostFunc(device, stream, function, data):
    return device.submit(stream, lambda: call_host(device, function, data))


def cudaStreamAddCallback(device, stream, function, data, flags):
    return device.submit(stream, lambda: call_host(device, function, stream, SUCCESS, data))


def cudaGetFuncBySymbol(device, function, symbol):
    write_pointer(function, symbol)
    return SUCCESS if symbol in device.functions else INVALID_DEVICE_FUNCTION


# --- attributes and occupancy -------------------------------------------------------------------------------


def cudaFuncSetAttribute(device, kernel, attribute, value):
    function = device.functions.get(kernel)
    if function is None:
        return INVALID_DEVICE_FUNCTION
    if attribute == MAX_DYNAMIC_SHARED:
        if not 0 <= value <= device.spec.shared_bytes_per_block:
            return INVALID_VALUE
        function.shared_limit = value
    return SUCCESS


def cudaFuncSetCacheConfig(device, kernel, preference):
    return SUCCESS


def cudaFuncSetSharedMemConfig(device, kernel, preference):
    return SUCCESS


def static_shared(function):
    """Return the bytes of static shared memory that a kernel declares."""
    module = function.owner.module
    variables = [*module.text.variables.values(), *module.text.functions[function.name].variables]
    text = "\n".join(module.text.lines)
    return sum(v.bytes for v in variables if v.space == "shared" and v.count is not None and v.name in text)


def cudaFuncGetAttributes(device, attributes, kernel):
    """Fill in a cudaFuncAttributes. PTX does not determine the number of registers, so report 32."""
    function = device.functions.get(kernel)
    if function is None:
        return INVALID_DEVICE_FUNCTION
    limits = function.kernel.function.limits
    threads = 1
    for n in limits.get("maxntid", (device.spec.max_threads_per_block,)):
        threads *= n
    fields = (static_shared(function), 0, 0, threads, 32, 80, 80, 0, function.shared_limit, -1)
    ctypes.memmove(attributes, struct.pack("<3Q7i", *fields), 52)
    return SUCCESS


def cudaOccupancyMaxActiveBlocksPerMultiprocessor(device, blocks, kernel, threads, shared):
    function = device.functions.get(kernel)
    if function is None or not 1 <= threads <= device.spec.max_threads_per_block:
        return INVALID_VALUE
    nbytes = shared + static_shared(function)
    write_int(blocks, device.spec.resident_blocks(threads, nbytes) // device.spec.multiprocessors)
    return SUCCESS


def cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(device, blocks, kernel, threads, shared, flags):
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(device, blocks, kernel, threads, shared)


def cudaOccupancyAvailableDynamicSMemPerBlock(device, nbytes, kernel, blocks, threads):
    spec = device.spec
    each = min(spec.shared_bytes_per_multiprocessor // max(blocks, 1), spec.shared_bytes_per_block)
    write_pointer(nbytes, max(each - static_shared(device.functions[kernel]), 0))
    return SUCCESS


def cudaOccupancyMaxActiveClusters(device, clusters, kernel, configuration):
    function, threads = device.functions.get(kernel), prod(read_dim3(configuration + 12))
    if function is None or not 1 <= threads <= device.spec.max_threads_per_block:
        return INVALID_VALUE
    (shared,) = struct.unpack("<Q", ctypes.string_at(configuration + 24, 8))
    blocks = device.spec.resident_blocks(threads, shared + static_shared(function))
    write_int(clusters, blocks // prod(read_attributes(configuration).cluster))
    return SUCCESS
