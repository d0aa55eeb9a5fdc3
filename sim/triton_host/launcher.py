"""Launches of one compiled Triton kernel: the arguments, the hidden parameters and the simulation."""

import os
import re
from functools import cached_property

import ml_dtypes
import numpy as np
import torch
import triton
from triton.backends.driver import decompose_descriptor, expand_signature
from triton.runtime import _allocation
from triton.runtime.jit import _triton_jit_function_registry

from sim.errors import LaunchError
from sim.ptx.module import load_ptx

LANES = 32
FLOATS = {"fp16": np.float16, "fp32": np.float32, "f32": np.float32, "fp64": np.float64}
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
        """Run a launch of x * y * z programs. The parameters are those of Triton's own launcher."""
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
                f"{self.src.name} was compiled with num_ctas={self.metadata.num_ctas}; sim has no clusters of"
                " blocks: wanted num_ctas=1"
            )
        return grid, self.threads, 0, self.metadata.shared

    def bind(self, arguments, programs, stream):
        """Return (names, values) of the kernel's parameters.

        arguments: the arguments of the launch, with those that the compiler replaced by constants.
        programs: the number of programs, each of which has its own scratch memory.
        """
        names, values = [], []
        has_descriptors = getattr(self.metadata, "tensordesc_meta", None)
        for (name, kind), value in zip(self.src.signature.items(), arguments):
            if isinstance(kind, str) and kind.startswith("tensordesc"):
                if has_descriptors:
                    raise LaunchError(
                        f"{name} is a TMA descriptor, which sim does not support; compile for sm_80, where"
                        " Triton replaces descriptors by pointers"
                    )
                (kind,) = [tuple(expand_signature([kind], None, None))]
                value = tuple(decompose_descriptor(value))
            for label, one, of in flatten(name, kind, value):
                names.append(label)
                values.append(parameter_value(label, one, of))
        for name in SCRATCH[: len(self.kernel.names) - len(names)]:
            names.append(name)
            values.append(self.scratch(name, programs, stream))
        return names, values

    def scratch(self, name, programs, stream):
        """Return the scratch memory of a launch, or a null pointer if the kernel has none."""
        size, align = (getattr(self.metadata, f"{name}_{what}", 0) for what in ("size", "align"))
        if not size:
            return 0
        allocator = _allocation._allocator if name == "global_scratch" else _allocation._profile_allocator
        if name == "profile_scratch" and not _allocation.has_profile_allocator():
            return np.zeros(size * programs, np.uint8)
        return parameter_value(name, "*i8", allocator.get()(size * programs, align, stream))


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
    if kind in FLOATS:
        return FLOATS[kind](value)
    if kind == "bf16":
        return int(ml_dtypes.bfloat16(value).view(np.uint16))
    return int(value)


def tensor_memory(tensor):
    """Return a tensor over the memory of `tensor`, of a type that numpy has. 8-bit floats become integers."""
    if isinstance(tensor, torch.Tensor):
        tensor = tensor.detach()
        if tensor.dtype.is_floating_point and tensor.element_size() == 1:
            return tensor.view(torch.uint8)
        if tensor.dtype == torch.bool:
            return tensor.view(torch.uint8)
    return tensor


def relocate_files(ptx):
    """Replace the paths of files in the PTX that no longer exist.

    Triton caches a kernel by its text, so cached PTX can name a former copy of a file that it calls.
    """
    known = [each.fn.__code__.co_filename for each in _triton_jit_function_registry.values()]
    paths = {os.path.basename(path): path for path in known}

    def current(match):
        lost = not os.path.exists(match[2])
        return f'{match[1]}"{paths.get(os.path.basename(match[2]), match[2]) if lost else match[2]}"'

    return re.sub(r'(\.file\s+\d+ )"([^"]+)"', current, ptx)
