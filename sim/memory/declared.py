"""Arrays declared or captured by a kernel, in shared, local and constant memory."""

import functools
import re
from math import prod

import numpy as np

from sim.errors import LaunchError, RefusedLaunch
from sim.events import CONSTANT, SITES
from sim.memory.array import Array, array_at, layout_of
from sim.memory.spaces import ALIGNMENT, fresh_memory


def constant_array(context, array):
    """Return an Array in constant memory for a global numpy array. It is read-only."""
    array, name = np.ascontiguousarray(array), CONSTANT
    home = 0, array.itemsize, array.shape, array.strides
    allocation = context.space.add(name, "const", array.reshape(-1).view(np.uint8), home)
    return array_at(context, allocation, 0, array.dtype, array.shape, array.strides, name)


class Declarations:
    """The shared and local arrays of one launch.

    A declaration is identified by its code object and instruction offset, so two declarations on the same
    line are two arrays. The key contains the id of the code object, because hashing a code object takes a
    microsecond.
    """

    def __init__(self, context, dynamic_bytes):
        self.context, self.dynamic_bytes = context, dynamic_bytes
        self.allocations = {}  # declaration -> its Allocation, which is the same for all blocks
        self.makers = {}  # declaration -> the function that creates its local arrays
        self.declared_bytes = {"shared": 0, "local": 0}
        self.kernel_code = None  # in the kernel itself, the argument types are the same for all threads

    def shared(self, shape, dtype, frame, alignment=None):
        """Return the current block's array for a call of `cuda.shared.array(shape, dtype, alignment)`.

        The shape 0 denotes a view of the dynamic shared memory. Without `alignment`, the array is only
        guaranteed to have the alignment of an element, as in Numba.
        """
        check_dtype(dtype, "shared")
        shape = as_shape(shape)
        if shape == (0,):
            return self.dynamic(dtype, frame)
        block, key = self.context.thread.block, self.key_of(frame)
        array = block.shared.get(key)
        if array is None and dtype.hasobject:
            array = block.shared[key] = self.objects(shape, "shared", frame)
        elif array is None:
            allocation = self.allocation(key, "shared", dtype, shape, frame, alignment)
            allocation.alignment = alignment or 1 << (dtype.alignment - 1).bit_length()
            memory = fresh_memory(allocation.root.size, dtype, self.context.poison)
            array = block.shared[key] = self.array(allocation, memory, dtype, shape)
        elif array.shape != shape:
            shapes = f"with shape {list(array.shape)} and now with {list(shape)}"
            raise ValueError(f"shared array {array.name} was declared {shapes}; its shape must be a constant")
        return array

    def key_of(self, frame):
        """Return the key of the declaration of shared memory that a frame executes."""
        code = frame.f_code
        # As in Numba, a device function declares one buffer per specialisation.
        return id(code), frame.f_lasti, None if code is self.kernel_code else argument_types(frame)

    def known_shared(self, shape, frame):
        """Return the current block's array if another thread has made the same call, and None otherwise."""
        array = self.context.thread.block.shared.get(self.key_of(frame))
        if array is None or array.shape != (shape if type(shape) is tuple else (shape,)):
            return None
        return array

    def dynamic(self, dtype, frame):
        """Return a view of the launch's dynamic shared memory. All such views begin at the same byte."""
        shared, shape = self.context.thread.block.shared, (self.dynamic_bytes // dtype.itemsize,)
        if "dynamic" not in shared:
            allocation, poison = (
                self.allocation("dynamic", "shared", dtype, shape, frame),
                self.context.poison,
            )
            memory = fresh_memory(self.dynamic_bytes, None if poison is None else dtype, poison)
            shared["dynamic"] = self.array(allocation, memory, dtype, shape)
            self.context.dynamic_shared = allocation
        return shared["dynamic"].another(0, dtype, shape, c_strides(shape, dtype))

    def local(self, shape, dtype, frame, alignment=None):
        """Return the array for a call of `cuda.local.array(shape, dtype)`. Each call creates a new array,
        which is private to the current thread."""
        check_dtype(dtype, "local")
        shape = as_shape(shape)
        if dtype.hasobject:
            return self.objects(shape, "local", frame)
        # The local arrays of one declaration can differ in shape from call to call.
        key = id(frame.f_code), frame.f_lasti, shape, dtype
        if key not in self.makers:
            self.makers[key] = self.local_maker(self.context.sites.of_frame(frame, "call"), shape, dtype)
        return self.makers[key]()

    def local_maker(self, site, shape, dtype):
        """Return a function that creates an array each time a thread reaches this declaration of local
        memory."""
        context, watched = self.context, self.context.enabled.unwritten
        layout, allocation = layout_of(dtype, as_shape(shape), c_strides(shape, dtype), watched), None
        nbytes, fast = layout.size * dtype.itemsize, layout.span is not None
        full = fresh_memory(nbytes, dtype)

        def make():
            nonlocal allocation
            if allocation is None:
                allocation = self.placed("local", site, dtype, shape, prod(context.block_shape))
            # Marks record the elements written by the thread. They are needed only if an observer checks
            # reads.
            marks = None
            if watched:
                marks = [0] * layout.size if fast else bytearray(nbytes)
            # Each thread's copy of the array has its own address.
            address = allocation.base + context.thread.linear * nbytes
            return Array(context, allocation, full.copy(), 0, layout, allocation.name, address, marks)

        return make

    def objects(self, shape, space, frame):
        """Return an array of Python objects. The objects have no addresses, so accesses to the array are not
        logged."""
        site = SITES[self.context.sites.of_frame(frame, "call")]
        where = f"{site.function} line {site.line}  {site.source}"
        self.context.notes[f"accesses to {space} arrays of objects are not checked: {where}"] = None
        return np.empty(shape, object)

    def array(self, allocation, memory, dtype, shape):
        layout = layout_of(dtype, shape, c_strides(shape, dtype), False)
        return Array(self.context, allocation, memory, 0, layout, allocation.name, allocation.base)

    def allocation(self, key, space, dtype, shape, frame, alignment=None):
        """Return the allocation for a declaration of shared memory. The first thread that reaches the
        declaration creates the allocation."""
        if key not in self.allocations:
            site = self.context.sites.of_frame(frame, "call")
            dynamic = key == "dynamic"
            self.allocations[key] = self.placed(
                space, site, dtype, shape, dynamic=dynamic, alignment=alignment
            )
        return self.allocations[key]

    def placed(self, space, site, dtype, shape, copies=1, dynamic=False, alignment=None):
        """Return a new allocation for the declaration at `site`. It is named after the variable to which it
        is assigned."""
        nbytes = self.dynamic_bytes if dynamic else prod(shape) * dtype.itemsize
        if not dynamic:
            self.declared_bytes[space] += nbytes
            check_sizes(self.context.spec, **self.declared_bytes, dynamic=self.dynamic_bytes)
        home = 0, dtype.itemsize, shape, c_strides(shape, dtype)
        name = name_before(SITES[site]) or space
        return self.context.space.add(
            name, space, np.empty(nbytes, np.uint8), home, copies, align=alignment or ALIGNMENT
        )


def check_sizes(spec, shared, local, dynamic, asked=False):
    """Raise LaunchError if the arrays of a kernel exceed the device's memory per block or per thread.

    shared: the number of bytes of a block's declared arrays.
    local: the number of bytes of a thread's local arrays.
    dynamic: the number of bytes of a block's dynamic shared memory. If it is not 0, the limit for the total
        is lower.
    asked: whether the launching program requests the full limit from the driver. Programs that launch PTX do,
        but Numba does not.
    """
    tiles, rows = "make the tiles smaller", "pass an array with a row for each thread"
    most = spec.dynamic_shared_bytes if dynamic and not asked else spec.shared_bytes_per_block
    part = f", {dynamic:,} of it dynamic" if dynamic else ""
    for nbytes, memory, limit, remedy in (
        (shared + dynamic, f"shared memory per block{part}", most, tiles),
        (local, "local memory per thread", spec.local_bytes_per_thread, rows),
    ):
        if nbytes > limit:
            raise RefusedLaunch(
                f"the kernel needs {nbytes:,} bytes of {memory}\n  the device has {limit:,}: {remedy}"
            )


def check_dtype(dtype, space):
    if dtype is None:
        wanted = "a numeric dtype such as numba.float32 as its second argument"
        raise TypeError(f"cuda.{space}.array wants {wanted}")


@functools.cache
def c_strides(shape, dtype):
    """Return the strides of a C-contiguous array in bytes."""
    return tuple([prod(shape[axis + 1 :]) * dtype.itemsize for axis in range(len(shape))])


def as_shape(shape):
    sizes = tuple(map(int, shape)) if isinstance(shape, (tuple, list)) else (int(shape),)
    if min(sizes, default=0) < 0:
        raise LaunchError(f"an array is declared with shape {shape}; wanted sizes of at least 0")
    return sizes


def argument_types(frame):
    """Return the types of the calling function's arguments, which identify its specialisation."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount]
    values = [frame.f_locals.get(name) for name in names]
    return tuple((v.dtype, v.ndim) if isinstance(v, Array) else type(v) for v in values)


# The text of an assignment before an expression: the targets, and the values to the left of the expression.
ASSIGNMENT = re.compile(r"(?P<targets>\w+(?:\s*,\s*\w+)*)\s*=\s*(?P<values>(?:[^=,]+,\s*)*)$")
BRACKETS = re.compile(r"\([^()]*\)|\[[^][]*\]")


def name_before(site):
    """Return the variable to which the expression at `site` is assigned, or None.

    In `a, b = x, y`, this is `b` for the expression `y`.
    """
    before, found = site.source[: max(site.column - site.indent, 0)], 1
    while found:  # Commas and equals signs in brackets belong to other expressions.
        before, found = BRACKETS.subn("", before)
    found = ASSIGNMENT.search(before)
    targets = found["targets"].split(",") if found else ()
    number = found["values"].count(",") if found else 0
    return targets[number].strip() if number < len(targets) else None
