"""Arrays and records in compiled code.

An array is a structure: the address of its data, a shape, strides, the address of its shadow memory, and the
address of the launch state. sim.native.codegen.shadow defines how an access is checked. The structure
omits the members whose values follow from the array's type. A kernel passes dozens of arrays to hundreds of
functions, and each member is an argument, which takes time to compile.

Compiled code never owns memory. The launch keeps all memory alive, so no reference counting is needed.
"""

import functools
from functools import reduce

import numpy as np
from llvmlite import ir
from numba import boolean, int64, types
from numba.core import cgutils
from numba.extending import NativeValue, intrinsic, models, register_model, unbox

from sim.native.codegen.int64 import int64_helper
from sim.native.codegen.int64_translation import I64, pointer
from sim.native.codegen.scalars import convert, dtype_of, numba_type_of
from sim.native.codegen.shadow import BARE, LOCAL, WITHOUT_SHADOW


class Guarded:
    """An ndarray packaged as an argument for compiled code.

    watch: the kind of check (sim.native.codegen.shadow).
    shadow: the address of the shadow memory, which has two int64 per element, or one uint8 for local memory.
    sizes: for each dimension, its size if that is a compile-time constant, else None.
    """

    __slots__ = ("references", "packed", "_numba_type_")

    def __init__(self, array, watch, shadow, state, sizes=None):
        # A dtype of size zero would cause a division by zero.
        itemsize = array.itemsize or 1
        data, strides = array.__array_interface__["data"][0], [n // itemsize for n in array.strides]
        self._numba_type_ = x = array_type(array, watch, sizes)
        # The order must match GuardedModel.
        values = data, *x.variable(array.shape), *strides[x.ndim * x.rowwise :], *[shadow][: x.has_shadow]
        members = np.array((*values, state.address), np.int64)
        self.references, self.packed = (array, members), members.__array_interface__["data"][0]


def array_type(array, watch, sizes=None):
    """Return the GuardedType that describes an ndarray."""
    return guarded_type(array.dtype, array.ndim, array.flags.c_contiguous, watch, sizes)


@functools.cache
def guarded_type(dtype, ndim, rowwise, watch, sizes):
    """Return the GuardedType with these properties. The types are cached, because each launch needs one for
    every array argument."""
    return GuardedType(numba_type_of(dtype), ndim, rowwise, watch, sizes)


# --- Numba types --------------------------------------------------------------------------------------------


class GuardedType(types.Type):
    """The Numba type of a Guarded.

    rowwise: whether the array is C-contiguous, so that its strides follow from its shape.
    sizes: for each dimension, its size if that is a compile-time constant, else None.
    pitch: the unit of the strides, in bytes. It exceeds the size of an element if the array is a column of
        records, or the real parts of complex numbers.
    site: the index of the site where elements are accessed, if accesses are logged
        (sim.native.codegen.access_log). A subarray has no site.
    """

    def __init__(self, dtype, ndim, rowwise, watch, sizes=None, pitch=None, site=None):
        self.dtype, self.ndim, self.rowwise, self.watch, self.site = dtype, ndim, rowwise, watch, site
        self.sizes = sizes or (None,) * ndim
        self.pitch = pitch or dtype_of(dtype).itemsize
        super().__init__(f"Guarded({dtype}, {ndim}, {self.sizes}, {rowwise}, {watch}, {self.pitch}, {site})")

    @property
    def has_shadow(self):
        return self.watch not in WITHOUT_SHADOW

    def variable(self, extents):
        """Return the extents of the dimensions whose sizes are not constants."""
        return [extent for extent, size in zip(extents, self.sizes, strict=True) if size is None]

    def replace(self, site=None, **changes):
        """Return this type with some of its properties changed. The site is dropped unless it is passed."""
        facts = {
            name: getattr(self, name) for name in ("dtype", "ndim", "rowwise", "watch", "sizes", "pitch")
        }
        return GuardedType(**facts | changes, site=site)


# The members of an array's structure. `shape` has one element per dimension whose size is not a constant.
# `strides` has one element per dimension, or none if the strides follow from the shape. `shadow` has no
# element if the array has no shadow memory. The other members are addresses.
MEMBERS = ["data", "shape", "strides", "shadow", "state"]


@register_model(GuardedType)
class GuardedModel(models.StructModel):
    """The members of a Guarded as an LLVM structure. Addresses are int64."""

    def __init__(self, manager, numba_type):
        counts = len(numba_type.variable(numba_type.sizes)), numba_type.ndim * (not numba_type.rowwise)
        extents = [types.UniTuple(int64, count) for count in (*counts, int(numba_type.has_shadow))]
        super().__init__(manager, numba_type, [*zip(MEMBERS, (int64, *extents, int64))])


@unbox(GuardedType)
def unbox_guarded(numba_type, value, c):
    """Convert a Guarded to an LLVM structure.

    `packed` is the address of an int64 array that contains all members, so that unboxing reads only one
    Python attribute.
    """
    # `packed_address` is a new reference, so it must be released after use.
    packed_address = c.pyapi.object_getattr_string(value, "packed")
    structure = c.context.get_value_type(numba_type).as_pointer()
    row = c.builder.inttoptr(c.pyapi.long_as_longlong(packed_address), structure)
    c.pyapi.decref(packed_address)
    return NativeValue(c.builder.load(row))


# --- code generation ----------------------------------------------------------------------------------------


class Members:
    """The members of an array's structure, as LLVM values. Numba's own class would store them in stack slots.

    structure: the LLVM value of the structure.
    """

    def __init__(self, builder, structure):
        self.builder, self.structure = builder, structure

    def __getattr__(self, name):
        """Return a member that has not been assigned."""
        return self.builder.extract_value(self.structure, MEMBERS.index(name))

    def value(self):
        """Return the structure, with the members that have been assigned to this object."""
        value = self.structure
        for position, name in enumerate(MEMBERS):
            if name in vars(self):
                value = self.builder.insert_value(value, vars(self)[name], position)
        return value


class Array:
    """Code generator for an array of type `x`. Offsets and sizes are i64 values."""

    def __init__(self, context, builder, x, value=None):
        self.context, self.builder, self.x = context, builder, x
        if value is None:
            value = ir.Constant(context.get_value_type(x), None)
        self.members = Members(builder, value)

    @property
    def value(self):
        """The array's structure, as one LLVM value."""
        return self.members.value()

    def call(self, function, *codes):
        """Emit a call to an int64 runtime helper."""
        return function.helper.call(self.context, self.builder, *codes)

    def extent(self, axis):
        """Return the size of a dimension, as a constant if the size is part of the array's type."""
        # A constant size lets LLVM fold the index arithmetic.
        constant = self.x.sizes[axis]
        if constant is not None:
            return I64(constant)
        return self.builder.extract_value(self.members.shape, self.x.sizes[:axis].count(None))

    def stride(self, axis):
        """Return the stride of a dimension, in elements (units of `pitch`)."""
        if self.x.rowwise:
            return product(self.builder, map(self.extent, range(axis + 1, self.x.ndim)))
        return self.builder.extract_value(self.members.strides, axis)

    def shadow(self):
        """Return the address of the shadow memory."""
        return self.builder.extract_value(self.members.shadow, 0)

    def each_axis(self, function):
        """Return `[function(0), ..., function(ndim - 1)]`."""
        return [*map(function, range(self.x.ndim))]

    def size(self):
        """Return the number of elements of the array."""
        return product(self.builder, self.each_axis(self.extent))

    def pointer(self, flat):
        """Return a pointer to the element whose offset, in elements, is `flat`."""
        llvm_type = self.context.get_data_type(self.x.dtype)
        # If the pitch equals the size of an element, pointer arithmetic on the element type suffices.
        if self.x.pitch == dtype_of(self.x.dtype).itemsize:
            return pointer(self.builder, self.members.data, flat, llvm_type)
        address = self.builder.add(self.members.data, self.builder.mul(flat, I64(self.x.pitch)))
        return self.builder.inttoptr(address, llvm_type.as_pointer())

    def load(self, flat):
        """Load the element at offset `flat`, without any check."""
        return self.context.unpack_value(self.builder, self.x.dtype, self.pointer(flat))

    def store(self, flat, value):
        """Store a value of the element type at offset `flat`, without any check."""
        self.context.pack_value(self.builder, self.x.dtype, value, self.pointer(flat))

    def subarray(self, result, flat, extents, strides, offset=0):
        """Return the array of type `result` that begins `flat` elements and `offset` bytes after this array.

        It shares the data, the shadow memory and the launch state of this array.
        """
        part, builder = Array(self.context, self.builder, result), self.builder
        begin = builder.add(builder.mul(flat, I64(self.x.pitch)), I64(offset))
        part.members.data = builder.add(self.members.data, begin)
        part.members.state = self.members.state
        part.members.shape = packed(builder, result.variable(extents))
        if not result.rowwise:
            part.members.strides = packed(builder, strides)
        if result.has_shadow:
            # the size in bytes of an element's shadow memory
            cell = 1 if self.x.watch == LOCAL else 16
            part.members.shadow = packed(builder, [builder.add(self.shadow(), builder.mul(flat, I64(cell)))])
        return part

    def element_parts(self, result, offset):
        """Return a view of the part at byte `offset` in each element, such as a column of records."""
        return self.subarray(result, I64(0), self.each_axis(self.extent), self.each_axis(self.stride), offset)


def product(builder, numbers):
    """Return the product of i64 values, or 1 for an empty list."""
    return reduce(builder.mul, numbers, I64(1))


def packed(builder, numbers):
    """Return i64 values as one LLVM array value."""
    return cgutils.pack_array(builder, numbers, I64)


# --- arrays over threads ------------------------------------------------------------------------------------


def spill_array_bytes(threads):
    """Return the size in bytes of one array in the spill buffer.

    An array has 16 bytes per thread, with the number of threads rounded up to whole warps, plus one cache
    line. The extra line makes one thread's entries in different arrays map to different cache sets.
    """
    return 16 * (-(-threads // 32) * 32) + 64


spill_pitch_of = int64_helper(spill_array_bytes)  # the same function, for compiled code


def spill_pointer(context, builder, numba_type, spill_buffer, position, pitch, thread):
    """Return a pointer to a thread's entry of an array in the spill buffer.

    position: the index of the array.
    pitch: the size in bytes of each array.
    """
    address = builder.add(spill_buffer, builder.mul(position, pitch))
    return pointer(builder, address, thread, context.get_data_type(numba_type))


@functools.cache
def spill_load(name):
    """Return the intrinsic load(spill_buffer, position, pitch, thread), which returns the thread's value of a
    spilled variable.

    name: the name of the variable's dtype.
    """
    numba_type = numba_type_of(name)

    def code(context, builder, signature, arguments):
        entry = spill_pointer(context, builder, numba_type, *arguments)
        if numba_type == boolean:
            return builder.trunc(builder.load(entry), ir.IntType(1))
        return context.unpack_value(builder, numba_type, entry)

    @intrinsic
    def loaded(typing, spill_buffer, position, pitch, thread):
        return numba_type(int64, int64, int64, int64), code

    return loaded


@functools.cache
def spill_store(name):
    """Return the intrinsic store(spill_buffer, position, pitch, thread, value), which stores the thread's
    value of a spilled variable.

    name: the name of the variable's dtype.
    """
    numba_type = numba_type_of(name)

    def code(context, builder, signature, arguments):
        *place, value = arguments
        value = convert(context, builder, signature.args[-1], numba_type, value)
        context.pack_value(builder, numba_type, value, spill_pointer(context, builder, numba_type, *place))
        return context.get_dummy_value()

    @intrinsic
    def stored(typing, spill_buffer, position, pitch, thread, value):
        return types.void(int64, int64, int64, int64, value), code

    return stored


@functools.cache
def spill_array(name):
    """Return the intrinsic select(spill_buffer, position, pitch), which returns an array of the spill buffer
    by its index.

    name: the name of the element's dtype.
    """
    numba_type = GuardedType(numba_type_of(name), 1, True, BARE)

    def code(context, builder, signature, arguments):
        spill_buffer, position, pitch = arguments
        array = Array(context, builder, numba_type)
        array.members.data = builder.add(spill_buffer, builder.mul(position, pitch))
        return array.value

    @intrinsic
    def selected(typing, spill_buffer, position, pitch):
        return numba_type(int64, int64, int64), code

    return selected


# --- records ------------------------------------------------------------------------------------------------


class Referenced:
    """A record (numpy.void) packaged as an argument for compiled code.

    array: a 0-dimensional view of the record's memory.
    """

    __slots__ = ("records", "_numba_type_")

    def __init__(self, array, *watched):
        self.records = Guarded(array, *watched)
        self._numba_type_ = ReferenceType(self.records._numba_type_)


class ReferenceType(types.Type):
    """The Numba type of a reference to a record: an array of records and an index.

    An access to a field of the record accesses one element of the array's column for that field.
    """

    def __init__(self, array):
        self.array = array
        super().__init__(f"Reference({array})")


def is_record(x):
    """Return whether a Numba type is an array of records."""
    return isinstance(x, GuardedType) and isinstance(x.dtype, types.Record)


@register_model(ReferenceType)
class ReferenceModel(models.StructModel):
    """The members of a record reference as an LLVM structure."""

    def __init__(self, manager, numba_type):
        index = types.UniTuple(int64, numba_type.array.ndim)
        super().__init__(manager, numba_type, [("records", numba_type.array), ("index", index)])


@unbox(ReferenceType)
def unbox_reference(numba_type, value, c):
    """Convert a Referenced to an LLVM structure."""
    reference = cgutils.create_struct_proxy(numba_type)(c.context, c.builder)
    records = c.pyapi.object_getattr_string(value, "records")
    reference.records = c.unbox(numba_type.array, records).value
    c.pyapi.decref(records)
    reference.index = packed(c.builder, [])
    return NativeValue(reference._getvalue())
