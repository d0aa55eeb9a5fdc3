"""Launches of one compiled Triton kernel: the arguments, the hidden parameters and the simulation."""

import os
import re
from functools import cached_property

import ml_dtypes
import numpy as np
import torch
import triton
from triton.runtime import _allocation, jit

from sim.errors import LaunchError
from sim.isa.tensor_map import SWIZZLES, TYPES
from sim.memory.argument import host_array
from sim.memory.tensor_map import tensor_map_bytes
from sim.ptx.module import load_ptx
from sim.triton_host.tensors import FRESH, POINTERS

LANES = 32
FLOATS = {"fp16": np.float16, "fp32": np.float32, "f32": np.float32, "fp64": np.float64}
TENSOR_MAP = "nvTmaDesc"  # Triton's name for the type of a tensor map
TF32 = TYPES.index("tf32")
ROUNDS = "round_f32_to_tf32"  # an attribute of descriptors from Triton 3.7 on
# Triton 3.6 keeps no list of its functions, and versions before 3.8 allocate no memory for profiles.
JIT_FUNCTIONS = getattr(jit, "_triton_jit_function_registry", {})
HAS_PROFILE_ALLOCATOR = getattr(_allocation, "has_profile_allocator", lambda: False)
SCRATCH = "global_scratch", "profile_scratch"  # the parameters that Triton appends, in this order


class Launcher:
    """A compiled kernel, ready for launches. Triton makes one from the kernel's source and metadata.

    src: Triton's ASTSource.
    metadata: Triton's metadata: shared memory in bytes, warps, scratch memory, name.
    """

    def __init__(self, src, metadata):
        self.src, self.metadata = src, metadata
        self.ptx = triton.runtime.driver.active.session.loading.asm["ptx"]

    @cached_property
    def kernel(self):
        """The kernel for `simulate`."""
        return load_ptx(relocate_files(self.ptx))[self.metadata.name]

    def __call__(self, x, y, z, stream, function, packed, launch_metadata, enter_hook, exit_hook, *arguments):
        """Run a launch of x * y * z programs. The parameters are the same as for Triton's own launcher."""
        session = triton.runtime.driver.active.session
        if enter_hook is not None:
            enter_hook(launch_metadata)
        if x * y * z:
            session.launch(self, (x, y, z), *self.bind(arguments, x * y * z, stream))
        if exit_hook is not None:
            exit_hook(launch_metadata)

    @property
    def threads(self):
        """The number of threads of a program."""
        return self.metadata.num_warps * LANES

    def configuration(self, grid):
        """Return the launch configuration for `simulate`. Raise LaunchError if it needs a cluster."""
        if getattr(self.metadata, "num_ctas", 1) != 1:
            raise LaunchError(
                f"{self.src.name} was compiled with num_ctas={self.metadata.num_ctas}; sim.triton() launches"
                " no clusters of blocks: wanted num_ctas=1"
            )
        return grid, self.threads, 0, self.metadata.shared

    def bind(self, arguments, programs, stream):
        """Return (names, values) of the kernel's parameters.

        arguments: all arguments of the launch, including arguments that the compiler replaced by constants.
        programs: the number of programs, each of which has its own scratch memory.
        """
        names, values = [], []
        self.kernel.module.store.pinned.arrays.clear()  # remove the arrays of the previous launch
        descriptors = iter(getattr(self.metadata, "tensordesc_meta", None) or ())
        for (name, kind), value in zip(self.src.signature.items(), arguments):
            if isinstance(kind, str) and kind.startswith("tensordesc"):
                layout = next(descriptors, None)  # None for sm_80, where pointers replace descriptors
                expanded = pointer_and_sizes if layout is None else tensor_map_and_sizes
                kind, value = zip(*expanded(name, kind, value, layout))
            for label, one, of in flatten(name, kind, value):
                names.append(label)
                values.append(self.with_addresses(parameter_value(label, one, of)))
        for name in SCRATCH[: len(self.kernel.names) - len(names)]:
            names.append(name)
            values.append(self.scratch(name, programs, stream))
        return names, values

    def with_addresses(self, value):
        """Return a parameter's value. A tensor of host addresses, which the program has read with data_ptr(),
        is replaced by a copy with simulated addresses."""
        if not isinstance(value, torch.Tensor) or value.dtype not in (torch.int64, torch.uint64):
            return value
        pointers = {
            at: tensor
            for at in set(value.reshape(-1).tolist())
            if (tensor := POINTERS.tensor(at)) is not None
        }
        if not pointers:
            return value
        pin, result = self.kernel.module.pointer, value.clone()
        # the largest tensors first, because others can be parts of them
        for at, tensor in sorted(pointers.items(), key=lambda pair: -pair[1].nbytes):
            result[value == at] = pin(host_array(tensor_memory(tensor), "tensor"), "tensor")
        return result

    def scratch(self, name, programs, stream):
        """Return the scratch memory of a launch, or a null pointer if the kernel has none."""
        size, align = (getattr(self.metadata, f"{name}_{what}", 0) for what in ("size", "align"))
        if not size:
            return 0
        allocator = _allocation._allocator if name == "global_scratch" else _allocation._profile_allocator
        if name == "profile_scratch" and not HAS_PROFILE_ALLOCATOR():
            return np.zeros(size * programs, np.uint8)
        return parameter_value(name, "*i8", allocator.get()(size * programs, align, stream))


def pointer_and_sizes(name, kind, descriptor, layout):
    """Return [(type, value)] of the parameters of a TensorDescriptor for sm_80, where a pointer replaces it.

    kind: Triton's name of its type, such as "tensordesc<fp16[64, 64]>".

    The sizes and strides occur twice, because Triton decomposes the descriptor twice. Triton 3.6 has no
    parameter for rounding.
    """
    sizes = [
        *(("i64", size) for size in descriptor.shape),
        *(("i64", stride) for stride in descriptor.strides),
    ]
    flags = [("i1", descriptor.padding == "nan")]
    if hasattr(descriptor, ROUNDS):
        flags.append(("i1", getattr(descriptor, ROUNDS)))
    element = kind.removeprefix("tensordesc<").partition("[")[0]
    return [("*" + element, descriptor.base), *sizes, *flags, *sizes_and_strides(descriptor)]


def sizes_and_strides(descriptor):
    """Return [(type, value)] of the last parameters of a TensorDescriptor."""
    return [
        *(("i32", size) for size in descriptor.shape),
        *(("i64", stride) for stride in descriptor.strides),
    ]


def tensor_map_and_sizes(name, kind, descriptor, layout):
    """Return [(type, value)] of the parameters of a TensorDescriptor: its tensor map, sizes and strides.

    layout: Triton's metadata: the box, the swizzle and the type of the elements, as numbers of the driver
        API.

    Raise LaunchError for a descriptor in the mode im2col or of 4-bit elements.
    """
    if layout.get("is_im2col") or layout["fp4_padded"]:
        raise LaunchError(
            f"{name} is a TMA descriptor {'of 4-bit elements' if layout['fp4_padded'] else 'in im2col mode'},"
            " which sim does not support"
        )
    # the numbers of the types differ between Triton's device code and the driver (make_tensordesc_arg)
    number = (
        TF32 if getattr(descriptor, ROUNDS, False) else {8: 10, 9: 8, 10: 9}.get(*[layout["elem_type"]] * 2)
    )
    try:
        described = tensor_map_bytes(
            host_array(tensor_memory(descriptor.base), name),
            descriptor.base.data_ptr(),
            TYPES[number],
            tuple(descriptor.shape),
            tuple(stride * layout["elem_size"] for stride in descriptor.strides),
            tuple(layout["block_size"]),
            swizzle=SWIZZLES[layout["swizzle"]],
            fill_nan=descriptor.padding == "nan",
        )
    except ValueError as error:
        raise LaunchError(f"{name}: {error}") from None
    return [(TENSOR_MAP, described), *sizes_and_strides(descriptor)]


def flatten(name, kind, value):
    """Yield (name, type, value) for each parameter of an argument; a tuple has one for each item."""
    if isinstance(kind, tuple):
        for at, (one, of) in enumerate(zip(kind, value)):
            yield from flatten(f"{name}[{at}]", one, of)
    elif kind != "constexpr":
        yield name, kind, value


def parameter_value(name, kind, value):
    """Return an argument for `simulate`.

    kind: Triton's name of its type, such as "*fp16" or "i32".
    """
    if kind.startswith("*"):
        return tensor_memory(getattr(value, "base", value)) if hasattr(value, "data_ptr") else value or 0
    if kind == TENSOR_MAP:
        return value
    if kind in FLOATS:
        return FLOATS[kind](value)
    if kind == "bf16":
        return int(ml_dtypes.bfloat16(value).view(np.uint16))
    return int(value)


def tensor_memory(tensor):
    """Return a tensor or array over the memory of `tensor`, of a type that numpy has. 8-bit floats become
    integers."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    tensor = tensor.detach()
    eight_bit = tensor.dtype.is_floating_point and tensor.element_size() == 1
    return FRESH.array(tensor.view(torch.uint8) if eight_bit or tensor.dtype == torch.bool else tensor)


def relocate_files(ptx):
    """Replace the paths of files in the PTX that no longer exist.

    Triton caches a kernel by its text, so cached PTX can name a former copy of a file that it calls.
    """
    known = [each.fn.__code__.co_filename for each in JIT_FUNCTIONS.values()]
    paths = {os.path.basename(path): path for path in known}

    def current(match):
        lost = not os.path.exists(match[2])
        return f'{match[1]}"{paths.get(os.path.basename(match[2]), match[2]) if lost else match[2]}"'

    return re.sub(r'(\.file\s+\d+ )"([^"]+)"', current, ptx)
