"""Launches of compiled kernels with little overhead, for CUDA tensors.

A launch is specialised in two steps, and each step is cached:

    per kernel, argument types and device   the machine code, from the disk cache or from Numba
    per shapes, numbers, grid and block     a Plan: all arguments packed, except the addresses of the tensors

A call then only writes the addresses into the packed arguments, and calls the driver. Steps do so for several
launches in order.
"""

import itertools
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
MOST_PLANS, MOST_GRAPHS = 8192, 256
OLDEST_WITH_EARLY_LAUNCHES = (9, 0)  # compute capability

plans = {}
functions = {}
graph_numbers = itertools.count()
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
            self.steps = Steps([(self, range(len(self.places)))])

    def packed_launch(self):
        """Return a new PackedLaunch, whose addresses are 0."""
        return driver.PackedLaunch(self.function, self.packed, self.grid, self.block, self.early)


class Steps:
    """Launches of one or several kernels in order, complete except for the addresses of the tensors.

    plans: (Plan, indices of its tensors in a list of addresses) for each launch.
    results: whether the launches store each of the results that `kernels.common.launch.repeated` returns.
    scratch: the first bytes of the parts of the scratch memory that the launches share. Their addresses
        follow those of the tensors.
    size: the number of float32 elements of that memory.
    """

    def __init__(self, plans, results=(), scratch=(), size=0):
        self.plans, self.results, self.scratch, self.size = plans, results, scratch, size
        self.device = plans[0][0].device
        self.free = {}  # stream -> Buffers that no thread uses at the moment

    def launch(self, addresses, stream):
        """Launch the kernels with tensors at these addresses, in a CUDA stream."""
        free = self.free.get(stream) or self.free.setdefault(stream, [])
        try:
            buffers = free.pop()
        except IndexError:
            buffers = Buffers(self.plans, self.device)
        buffers.launch(addresses, stream)
        free.append(buffers)


class Buffers:
    """Packed arguments of the launches of Steps, for one thread at a time and one CUDA stream.

    Several launches become a CUDA graph, unless there are MOST_GRAPHS graphs. On the host of an H200, five
    launches take 24 to 30 µs. A graph of them takes 3 µs, or 15 to 19 µs if the addresses have changed.
    """

    def __init__(self, plans, device):
        self.launches = [plan.packed_launch() for plan, _ in plans]
        # (words of a launch, index of a word, index of the address that belongs there)
        self.targets = [
            (launch.words, word, place)
            for launch, (plan, places) in zip(self.launches, plans)
            for word, place in zip(plan.places, places)
        ]
        several = len(plans) > 1 and not any(plan.early for plan, _ in plans)
        self.fits_graph = several and next(graph_numbers) < MOST_GRAPHS
        self.device, self.addresses, self.graph, self.updated = device, None, None, False

    def launch(self, addresses, stream):
        """Launch the kernels with tensors at these addresses."""
        if addresses != self.addresses:
            for words, word, place in self.targets:
                words[word] = addresses[place]
            self.addresses, self.updated = addresses, False
        if not self.fits_graph or torch.cuda.is_current_stream_capturing():
            driver.launch(self.launches, stream, self.device)
            return
        if self.graph is None:
            self.graph = driver.LaunchGraph(self.launches, self.device)
        elif not self.updated:
            self.graph.update()
        self.updated = True
        self.graph.launch(stream)


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
