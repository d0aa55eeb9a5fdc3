"""Arrays that a kernel declares or captures: shared, local, constant memory."""

import functools
import re
from math import prod

import numpy as np

from sim.errors import LaunchError
from sim.events import SITES
from sim.memory.array import Array
from sim.memory.spaces import Allocation, poisoned


def constant_array(context, array):
    """A global numpy array, as constant memory: read-only in the kernel."""
    array, name = np.ascontiguousarray(array), "a global array"
    home = 0, array.itemsize, array.shape, array.strides
    allocation = context.space.add(name, "const", array.reshape(-1).view(np.uint8), home)
    return Array(context, allocation, 0, array.dtype, array.shape, array.strides, name)


class Declarations:
    """The shared and local arrays of one launch. Call sites are told apart by code (its id, as a code object
    takes a microsecond to hash) and instruction, so two on one line are two arrays."""

    def __init__(self, context, dynamic_bytes):
        self.context, self.dynamic_bytes = context, dynamic_bytes
        self.bases = {}  # declaration -> (name, address), the same in every block
        self.declared_bytes = {"shared": 0, "local": 0}
        self.kernel_code = None  # in the kernel itself the types of arguments are the same for every thread

    def shared(self, shape, dtype, frame, alignment=None):
        """`cuda.shared.array(shape, dtype, alignment)`: the running block's array for this call site; shape 0
        views the dynamic bytes. Without an alignment, that of an element is sure, as in Numba."""
        check_dtype(dtype, "shared")
        shape = as_shape(shape)
        if shape == (0,):
            return self.dynamic(dtype, frame)
        block, code = self.context.thread.block, frame.f_code
        key = id(code), frame.f_lasti, None if code is self.kernel_code else argument_types(frame)
        array = block.shared.get(key)
        if array is None and dtype.hasobject:
            array = block.shared[key] = np.empty(shape, object)
        elif array is None:
            nbytes = prod(shape) * dtype.itemsize
            name, base = self.place(key, "shared", dtype, shape, frame)
            allocation = Allocation(name, "shared", poisoned(nbytes, dtype, self.context.poison), base)
            allocation.alignment = alignment or 1 << (dtype.alignment - 1).bit_length()
            array = block.shared[key] = self.array(allocation, dtype, shape)
        elif array.shape != shape:
            shapes = f"with shape {list(array.shape)} and now with {list(shape)}"
            raise ValueError(f"shared array {array.name} was declared {shapes}; its shape must be a constant")
        return array

    def dynamic(self, dtype, frame):
        """A view of the launch's dynamic shared bytes; all of them start at the same byte."""
        shared, shape = self.context.thread.block.shared, (self.dynamic_bytes // dtype.itemsize,)
        if "dynamic" not in shared:
            name, base = self.place("dynamic", "shared", dtype, shape, frame)
            poison = self.context.poison
            memory = poisoned(self.dynamic_bytes, None if poison is None else dtype, poison)
            shared["dynamic"] = Allocation(name, "shared", memory, base)
        return self.array(shared["dynamic"], dtype, shape)

    def local(self, shape, dtype, frame, alignment=None):
        """`cuda.local.array(shape, dtype)`: fresh for each call, private to the running thread."""
        check_dtype(dtype, "local")
        shape, thread = as_shape(shape), self.context.thread
        if dtype.hasobject:
            return np.empty(shape, object)
        key = id(frame.f_code), frame.f_lasti, shape, dtype.itemsize
        if key not in self.bases:
            self.place(key, "local", dtype, shape, frame, copies=len(thread.block.threads))
        name, base = self.bases[key]
        nbytes = prod(shape) * dtype.itemsize
        allocation = Allocation(name, "local", poisoned(nbytes, dtype), base + thread.linear * nbytes)
        if self.context.heard.unwritten:
            allocation.written = np.zeros(nbytes, np.uint8)
        return self.array(allocation, dtype, shape)

    def array(self, allocation, dtype, shape):
        return Array(self.context, allocation, 0, dtype, shape, c_strides(shape, dtype), allocation.name)

    def place(self, key, space, dtype, shape, frame, copies=1):
        """(name, address) of a declaration, chosen the first time that any thread meets it."""
        if key not in self.bases:
            nbytes = self.dynamic_bytes if key == "dynamic" else prod(shape) * dtype.itemsize
            if key != "dynamic":
                self.declared_bytes[space] += nbytes
                check_sizes(self.context.spec, **self.declared_bytes, dynamic=self.dynamic_bytes)
            name = declared_name(self.context, frame) or space
            memory, home = np.empty(nbytes, np.uint8), (0, dtype.itemsize, shape, c_strides(shape, dtype))
            self.bases[key] = name, self.context.space.add(name, space, memory, home, copies).base
        return self.bases[key]


def check_sizes(spec, shared, local, dynamic, asked=False):
    """A LaunchError where a kernel's arrays need more bytes than a block or thread of the device can have:
    those that it declares as `shared`, the `dynamic` ones, and the `local` ones of a thread. With dynamic
    ones a block has less, unless the driver was `asked` for more, as launchers of PTX can and Numba never
    does."""
    tiles, rows = "make the tiles smaller", "pass an array with a row for each thread"
    most = spec.dynamic_shared_bytes if dynamic and not asked else spec.shared_bytes_per_block
    part = f", {dynamic:,} of it dynamic" if dynamic else ""
    for nbytes, memory, limit, remedy in (
        (shared + dynamic, f"shared memory per block{part}", most, tiles),
        (local, "local memory per thread", spec.local_bytes_per_thread, rows),
    ):
        if nbytes > limit:
            raise LaunchError(
                f"the kernel needs {nbytes:,} bytes of {memory}\n  the device has {limit:,}: {remedy}"
            )


def check_dtype(dtype, space):
    if dtype is None:
        wanted = "a numeric dtype such as numba.float32 as its second argument"
        raise TypeError(f"cuda.{space}.array wants {wanted}")


@functools.cache
def c_strides(shape, dtype):
    """Strides in bytes of a C-contiguous array."""
    return tuple([prod(shape[axis + 1 :]) * dtype.itemsize for axis in range(len(shape))])


def as_shape(shape):
    sizes = tuple(map(int, shape)) if isinstance(shape, (tuple, list)) else (int(shape),)
    if min(sizes, default=0) < 0:
        raise LaunchError(f"an array is declared with shape {shape}; wanted sizes of at least 0")
    return sizes


def argument_types(frame):
    """What tells one specialisation of the calling function from another: the types of its arguments."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount]
    values = [frame.f_locals.get(name) for name in names]
    return tuple((v.dtype, v.ndim) if isinstance(v, Array) else type(v) for v in values)


def declared_name(context, frame):
    """The variable that the running declaration is assigned to, read from its source line, or None."""
    return name_before(SITES[context.site_of(frame, "call")])


def name_before(site):
    """The variable that what stands at `site` is assigned to, or None."""
    before = site.source[: max(site.column - site.indent, 0)]
    found = re.search(r"(\w+)\s*=\s*$", before)
    return found[1] if found else None
