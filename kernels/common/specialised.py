"""Launches of compiled kernels with little overhead, for CUDA tensors.

A launch is specialised in two steps, and each step is cached:

    per kernel, argument types and device   the machine code, from the disk cache or from Numba
    per shapes, numbers, grid and block     a Plan: all arguments packed, except the addresses of the tensors

A call then only writes the addresses into the packed arguments, and calls the driver.
"""

import struct
import threading

import torch
from numpy import bool_, float32, float64, int32, int64

from kernels.common import code_cache, driver
from kernels.common.code_cache import MachineCode
from kernels.common.device_argument import numpy_dtype
from kernels.common.numba_parts import Purpose, from_dtype, typeof, types

# type of a number -> its letter in the format of `struct`
LETTERS = {bool: "?", int: "q", float: "d", bool_: "?", int32: "i", int64: "q", float32: "f", float64: "d"}
# Numba passes an array as these fields: two addresses that a GPU does not use, the number of elements, bytes
# per element, the address, the shape, and the strides in bytes
BEFORE_ADDRESS = 4
MOST_PLANS = 8192
OLDEST_WITH_EARLY_LAUNCHES = (9, 0)  # compute capability

plans = {}
functions = {}
making = threading.Lock()


class Plan:
    """A launch of a kernel with everything decided except the addresses of the tensors.

    function: the driver's handle of the kernel, or None if only Numba can launch it.
    places: the words of the packed arguments that hold the addresses.
    early: whether the kernel may start before the previous kernel of its stream has ended.
    """

    def __init__(self, kernel, function, grid, block, device, arguments, early=False):
        self.kernel, self.function, self.device = kernel, function, device
        self.grid, self.block, self.early = three(grid), three(block), early
        if function is not None:
            self.packed, self.places = packed(arguments)
        self.free = []  # buffers that no thread uses at the moment

    def launch(self, addresses, stream):
        """Launch the kernel with tensors at these addresses, in a CUDA stream."""
        try:
            buffer = self.free.pop()
        except IndexError:
            buffer = driver.PackedLaunch(self.packed, self.grid, self.block, self.early)
        words = buffer.words
        for place, address in zip(self.places, addresses):
            words[place] = address
        driver.launch(self.function, stream, buffer, self.device)
        self.free.append(buffer)


def plan_for(key, kernel, grid, block, device, arguments, early=False):
    """Return the Plan of a launch, and remember it under `key`."""
    with making:
        supported = all(map(packable, arguments))
        function = supported and function_for(kernel, tuple(map(type_of, arguments)), device) or None
        if len(plans) >= MOST_PLANS:
            plans.clear()
        early = early and torch.cuda.get_device_capability(device) >= OLDEST_WITH_EARLY_LAUNCHES
        plans[key] = Plan(kernel, function, grid, block, device, arguments, early)
        return plans[key]


def three(size):
    """Return the size of a grid or block as three ints."""
    sizes = tuple(size) if isinstance(size, (tuple, list)) else (size,)
    return tuple(map(int, (*sizes, 1, 1)[:3]))


# Arguments --------------------------------------------------------------------------------------------------


def type_of(argument):
    """Return the type that Numba assigns to a kernel argument, a tensor or a number."""
    if isinstance(argument, torch.Tensor):
        layout = "C" if argument.is_contiguous() else "A"
        return types.Array(from_dtype(numpy_dtype(argument.dtype)), argument.ndim, layout)
    return typeof(argument, Purpose.argument)


def packed(arguments):
    """Return (the bytes of the arguments, the words that hold the addresses of the tensors)."""
    letters, values, places = "", [], []
    for argument in arguments:
        own_letters, own_values = fields(argument)
        if isinstance(argument, torch.Tensor):
            before = struct.calcsize(letters + own_letters[: BEFORE_ADDRESS + 1]) // 8 - 1
            places.append(before)
        letters, values = letters + own_letters, [*values, *own_values]
    return struct.pack(letters, *values), tuple(places)


def fields(argument):
    """Return (letters, values) of an argument in the format of `struct`."""
    if isinstance(argument, torch.Tensor):
        bytes_each = argument.element_size()
        strides = [stride * bytes_each for stride in argument.stride()]
        values = [0, 0, argument.numel(), bytes_each, 0, *argument.shape, *strides]
        return "q" * len(values), values
    if isinstance(argument, tuple):
        found = [fields(item) for item in argument]
        return "".join(letters for letters, _ in found), [value for _, values in found for value in values]
    return LETTERS[type(argument)], [argument]


def packable(argument):
    """Return whether `fields` supports an argument."""
    if isinstance(argument, tuple):
        return all(map(packable, argument))
    return isinstance(argument, torch.Tensor) or type(argument) in LETTERS


# Machine code -----------------------------------------------------------------------------------------------


def function_for(kernel, types, device):
    """Return the driver's handle of a kernel for arguments of these Numba types, or None if only Numba can
    launch it."""
    known = kernel, types, device
    if known not in functions:
        functions[known] = load_function(kernel, types, device)
    return functions[known]


def load_function(kernel, types, device):
    """Load a kernel from the disk cache; if it is absent, compile it and store it there."""
    capability = torch.cuda.get_device_capability(device)
    key = code_cache.key_of(kernel, types, capability, driver.version())
    driver.use_device(device)
    code = code_cache.load(key)
    if code:
        try:
            return driver.load_kernel(*code)
        except driver.DriverError:
            pass  # not valid machine code for this GPU: compile it again
    code = machine_code(kernel.compile(types))
    if code is None:
        return None
    code_cache.save(key, code)
    return driver.load_kernel(*code)


def machine_code(compiled):
    """Return the MachineCode of a kernel that Numba has compiled, or None if it needs Numba's own launch.

    A kernel needs Numba's launch if it has debugging, extensions, cooperative launches or callbacks on
    loading, or if numba-cuda lacks the private attributes that are read here.
    """
    special = ("cooperative", "debug", "extensions", "launch_config_sensitive", "shared_memory_carveout")
    try:
        library = compiled.library
        if any(getattr(compiled, name) for name in special) or library._setup_functions:
            return None
        return MachineCode(compiled.entry_name, bytes(library.get_cubin().code))
    except AttributeError:
        return None


def resources(kernel, block):
    """Return the resources of a kernel that was launched before, as `driver.resources` does, for blocks of
    this size."""
    loaded = [(known[2], function) for known, function in functions.items() if known[0] is kernel]
    device, function = loaded[-1]
    x, y, z = three(block)
    return driver.resources(function, device, x * y * z)
