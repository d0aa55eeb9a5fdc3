"""Memory of a compiled launch: its arguments, the arrays declared by the kernel, and their shadow memory."""

from math import prod

import numpy as np

from sim.events import CONSTANT
from sim.memory.argument import of_parts
from sim.memory.declared import check_sizes
from sim.memory.spaces import AddressSpace, bind_arguments, bytes_between, group_overlapping, unwritten
from sim.native.codegen.arrays import Guarded, Referenced, spill_array_bytes
from sim.native.codegen.launch_state import State
from sim.native.codegen.scalars import argument_of
from sim.native.codegen.shadow import BARE, BOUNDED, EMPTY, GLOBAL, INITIAL, INPUT, LOCAL, SHARED
from sim.native.lower.module import CannotLower
from sim.native.split.program import sizes_of


class Memory:
    """The memory of one launch of `self.program`.

    Every access is bounds-checked. If any observer is subscribed (`watched`), races and uninitialised reads
    are checked as well.
    """

    def __init__(self, launch):
        self.launch, self.watched, self.state = launch, bool(launch.observers), State(launch.block)
        # name -> (kind of check, address of shadow memory), for arguments that need more than bounds checks
        self.shadows = {}
        self.references = []  # compiled code has the raw addresses of these objects, so keep them alive
        self.block_memory = []  # the arrays whose contents belong to the current block

    def arguments(self):
        """Return all arguments that follow `spill_buffer` in a call of the grid function, in order."""
        module, dynamic = self.program.lowered.module, self.dynamic_memory()
        return [
            *(self.guarded(np.ascontiguousarray(array), BOUNDED) for array in module.arrays.values()),
            *(self.declared(declared, dynamic) for declared in module.declared.values()),
            *map(self.argument, self.launch.arguments),
        ]

    def argument(self, argument):
        """Return one argument of the kernel, packaged for compiled code."""
        if argument.parts is not None:
            return of_parts(argument.value, map(self.argument, argument.parts))
        if argument.array is None:
            return argument_of(argument.value)
        form = Referenced if argument.is_record else Guarded
        watch, shadow = self.shadows.get(argument.name, (INPUT if self.watched else BARE, 0))
        return form(argument.array, watch, shadow, self.state)

    @property
    def checks(self):
        """The checks of the arrays, which are a part of the types of the compiled arguments."""
        return self.watched, tuple((name, watch) for name, (watch, _) in self.shadows.items())

    def kinds_of_checks(self):
        """Return the kinds of checks of the regions of global memory (sim.native.codegen.shadow)."""
        return {watch for watch, _ in self.shadows.values()}

    def shadows_of_arguments(self):
        """Return {name: (kind of check, address of shadow memory)} for the arrays that need more than bounds
        checks.

        Arrays that overlap share their shadow memory. Raise CannotLower if arrays overlap but the boundaries
        of their elements do not coincide.
        """
        shadows = {}
        for low, high, names in group_overlapping(self.arrays):
            group = {name: self.arrays[name] for name in names}
            fresh = unwritten(bytes_between(low, high), [*group.values()])
            # Arrays that are fully initialised and only read need no checks besides bounds.
            if not {*names} & {*self.written} and fresh is None:
                continue
            size = group[names[0]].itemsize
            offsets = {name: first_byte(a) - low for name, a in group.items()}
            distances = [*offsets.values(), *(stride for a in group.values() for stride in a.strides)]
            if any(a.itemsize != size for a in group.values()) or any(d % size for d in distances):
                raise CannotLower(f"arguments {', '.join(names)} overlap, and their elements do not coincide")
            # An element has two int64 entries, 16 bytes in total: one for its last write, one for its last
            # reads.
            entries = np.zeros(2 * -(-(high - low) // size), np.int64)
            if fresh is not None:
                mark_initial(entries, fresh, size)
            watch, shadow = EMPTY if fresh is not None else GLOBAL, self.keep_alive(entries)
            shadows |= {name: (watch, shadow + 16 * offset // size) for name, offset in offsets.items()}
        return shadows

    def of_block(self, array):
        """Record that the contents of an array belong to the current block, and return the array."""
        if array.size:
            self.block_memory.append(array)
        return array

    def keep_alive(self, array):
        """Keep an array alive for the whole launch, and return the address of its first byte."""
        self.references.append(array)
        return first_byte(array)

    def spill_address(self):
        """Return the address of a new spill buffer, which has one array over threads for each spilled
        variable."""
        nbytes = self.program.spill_count * spill_array_bytes(self.launch.threads)
        return self.keep_alive(np.zeros(nbytes, np.uint8))

    def guarded(self, array, watch, shadow=None, sizes=None):
        """Return the Guarded for an array allocated by the engine, with new shadow memory.

        If no observer is subscribed, only bounds are checked.

        watch: the kind of check.
        shadow: existing shadow memory to use instead.
        sizes: the sizes that are compile-time constants.
        """
        if not self.watched:
            return Guarded(array, BARE, 0, self.state, sizes)
        if watch == SHARED and shadow is None:
            shadow = self.of_block(np.zeros(2 * array.size, np.int64))
        elif watch == LOCAL:
            shadow = self.of_block(np.zeros(array.size, np.uint8))
        return Guarded(array, watch, 0 if shadow is None else self.keep_alive(shadow), self.state, sizes)

    def dynamic_memory(self):
        """Return (dynamic shared memory as bytes, its shadow memory).

        Shadow memory has entries per element, and does not record the element's type or variable. Raise
        CannotLower if the kernel views the bytes with elements of different types, or by several variables of
        one function.
        """
        module = self.program.lowered.module
        views = [array for array in module.declared.values() if array.shape is None]
        types = {array.dtype for array in views} or {np.dtype(np.uint8)}
        if len(types) > 1:
            raise CannotLower("the kernel views dynamic shared memory with elements of different types")
        functions = [module.sites[array.site].function for array in views if array.is_whole]
        if len(functions) > len(set(functions)):
            raise CannotLower("the kernel views dynamic shared memory by several variables")
        count = self.launch.shared // types.pop().itemsize
        memory = np.zeros(self.launch.shared, np.uint8), np.zeros(2 * count, np.int64)
        return tuple(map(self.of_block, memory))

    def declared(self, declared, dynamic):
        """Return the Guarded for a shared or local array declared by the kernel.

        declared: the Declared of the array.
        dynamic: the result of `dynamic_memory`.
        """
        dtype, shape, sizes = declared.dtype, declared.shape, sizes_of(declared)
        if declared.space == "local":
            array = self.of_block(np.empty((self.launch.threads, *shape), dtype))
            return self.guarded(array, LOCAL, sizes=sizes)
        if shape is not None:
            return self.guarded(self.of_block(np.empty(shape, dtype)), SHARED, sizes=sizes)
        memory, shadow = dynamic
        whole = len(memory) // dtype.itemsize * dtype.itemsize
        return self.guarded(memory[:whole].view(dtype), SHARED, shadow)

    def own_arrays(self):
        """Return the Guardeds of the global arrays and of the arrays declared by the kernel."""
        module = self.program.lowered.module
        return self.compiled_arguments[: len(module.arrays) + len(module.declared)]

    def homes(self):
        """Return (simulated address space, {address of an array's first byte on the host: its
        Allocation})."""
        space, module, homes = AddressSpace(), self.program.lowered.module, {}
        bind_arguments(space, self.arrays)
        for allocation in space.allocations:
            homes[first_byte(allocation.root)] = allocation
        named = [
            *((CONSTANT, "const") for _ in module.arrays),
            *((declared.name or declared.space, declared.space) for declared in module.declared.values()),
        ]
        for (name, space_name), guarded in zip(named, self.own_arrays()):
            array, copies = guarded.references[0], 1
            if space_name == "local":
                array, copies = array[0], len(array)
            # All views of dynamic shared memory begin at the same byte, so they share one allocation.
            if array.size and first_byte(array) not in homes:
                home = 0, array.itemsize, array.shape, array.strides
                root = array.reshape(-1).view(np.uint8)
                homes[first_byte(array)] = space.add(name, space_name, root, home, copies)
        return space, homes


def check_writable(arrays, writes):
    """Raise CannotLower if the kernel may write to a read-only array. Compiled code does not check this.

    arrays: {name: ndarray}. The elements of a tuple argument are called `name[i]`.
    writes: the names of the parameters that the kernel may write.
    """
    for name, array in arrays.items():
        if not array.flags.writeable and name.partition("[")[0] in writes:
            raise CannotLower(f"argument {name} is a read-only array, and the kernel may write to it")


def first_byte(array):
    """Return the address of an array's first byte."""
    return array.__array_interface__["data"][0]


def check_declared(module, launch):
    """Raise LaunchError if the arrays declared by the kernel do not fit into the device's memory."""
    nbytes = {"shared": 0, "local": 0}
    for declared in module.declared.values():
        if declared.shape is not None:
            nbytes[declared.space] += prod(declared.shape) * declared.dtype.itemsize
    check_sizes(launch.spec, **nbytes, dynamic=launch.shared)


def mark_initial(shadow, unwritten, size):
    """Mark the elements of an array that were written before the launch.

    An element counts as unwritten if any of its bytes is.

    shadow: the shadow memory of the array, which has two entries per element.
    unwritten: a mask of the unwritten bytes.
    size: the number of bytes per element.
    """
    whole = len(unwritten) // size
    written = ~unwritten[: whole * size].reshape(whole, size).any(1)
    shadow[: 2 * whole : 2][written] = INITIAL
