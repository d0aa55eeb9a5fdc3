"""Arrays as compiled kernels hold them: an address, a shape and strides, the same for what watches over them,
and the State of the launch.

Nothing here owns memory: whoever launches keeps it alive, so compiled code counts no references. What an
    access does is in sim.native.checks.
"""

import functools

import numpy as np
from numba import int64, types
from numba.core import cgutils
from numba.extending import (
    NativeValue,
    intrinsic,
    make_attribute_wrapper,
    models,
    overload_attribute,
    register_model,
    unbox,
)

from sim.native.checks import BARE, BOUNDED, LOCAL
from sim.native.internal import LIKE_CODE
from sim.native.scalars import dtype_of, numba_type_of
from sim.native.words import WORD, pointer, words

# attributes that a field of records does not hide
OWN = {*"data state shadow shape steps strides size ndim T real imag itemsize nbytes dtype".split()}


class Guarded:
    """`array` (ndarray) for compiled code. `watch` (sim.native.checks) says what is checked; `shadow` is what
    that needs: an address of two int64 or one uint8 for each element."""

    __slots__ = ("held", "packed", "_numba_type_")

    def __init__(self, array, watch, shadow, state, sizes=None):
        itemsize = array.itemsize or 1
        data, strides = array.__array_interface__["data"][0], (n // itemsize for n in array.strides)
        members = np.array((data, *array.shape, *strides, shadow, state.address), np.int64)
        self.held, self.packed = (array, members), members.__array_interface__["data"][0]
        self._numba_type_ = array_type(array, watch, sizes)


def array_type(array, watch, sizes=None):
    """The type of a Guarded over an ndarray."""
    return guarded_type(array.dtype, array.ndim, array.flags.c_contiguous, watch, sizes)


@functools.cache
def guarded_type(dtype, ndim, rowwise, watch, sizes):
    for name in dtype.names or ():
        know_field(name)
    return GuardedType(numba_type_of(dtype), ndim, rowwise, watch, sizes)


# --- both as types of Numba ---------------------------------------------------------------------------------


class GuardedType(types.Type):
    """`rowwise`: the strides follow from the shape, the last axis being contiguous. `sizes`: of each
    dimension the size, where it is a constant, or None.
    `pitch`: bytes from one element to the next that strides count; more than an element's own in a column of
        records, or the real parts of complex numbers. `place`: where in the source its elements are accessed,
        if that is written down (sim.native.logged); parts of it have none."""

    def __init__(self, dtype, ndim, rowwise, watch, sizes=None, pitch=None, place=None):
        self.dtype, self.ndim, self.rowwise, self.watch, self.place = dtype, ndim, rowwise, watch, place
        self.sizes = sizes or (None,) * ndim
        self.pitch = pitch or dtype_of(dtype).itemsize
        super().__init__(f"Guarded({dtype}, {ndim}, {self.sizes}, {rowwise}, {watch}, {self.pitch}, {place})")

    def at_place(self, place):
        return GuardedType(self.dtype, self.ndim, self.rowwise, self.watch, self.sizes, self.pitch, place)

    def side(self, axis):
        """The text of a dimension's size, in a function of the array `x`."""
        return f"x.shape[{axis}]" if self.sizes[axis] is None else str(self.sizes[axis])

    def stride(self, axis):
        """The text of a stride, in elements."""
        if not self.rowwise:
            return f"x.steps[{axis}]"
        return " * ".join(map(self.side, range(axis + 1, self.ndim))) or "1"


@register_model(GuardedType)
class GuardedModel(models.StructModel):
    def __init__(self, manager, numba_type):
        sides = types.UniTuple(int64, numba_type.ndim)
        members = {"data": int64, "shape": sides, "strides": sides, "shadow": int64, "state": int64}
        super().__init__(manager, numba_type, [*members.items()])


for _member in ("data", "shape", "shadow", "state"):
    make_attribute_wrapper(GuardedType, _member, _member)
make_attribute_wrapper(GuardedType, "strides", "steps")  # in elements, where `strides` are in bytes


@unbox(GuardedType)
def unbox_guarded(numba_type, value, c):
    """From a Python object, whose `packed` is the address of all members in a row, to a structure."""
    structure = cgutils.create_struct_proxy(numba_type)(c.context, c.builder)
    builder, n = c.builder, numba_type.ndim
    held = c.pyapi.object_getattr_string(value, "packed")
    row = builder.inttoptr(c.pyapi.long_as_longlong(held), WORD.as_pointer())
    c.pyapi.decref(held)
    members = [builder.load(builder.gep(row, [WORD(position)])) for position in range(2 * n + 3)]
    structure.data, structure.shadow, structure.state = members[0], members[-2], members[-1]
    structure.shape = cgutils.pack_array(builder, members[1 : n + 1], WORD)
    structure.strides = cgutils.pack_array(builder, members[n + 1 : -2], WORD)
    return NativeValue(structure._getvalue())


# --- memory -------------------------------------------------------------------------------------------------


def element(context, builder, x, value, flat):
    """The pointer to the element of an array of type `x` that is `flat` elements behind the first."""
    data = cgutils.create_struct_proxy(x)(context, builder, value).data
    llvm_type = context.get_data_type(x.dtype)
    if x.pitch == dtype_of(x.dtype).itemsize:
        return pointer(builder, data, flat, llvm_type)
    return builder.inttoptr(builder.add(data, builder.mul(flat, WORD(x.pitch))), llvm_type.as_pointer())


def view(context, builder, x, result, array, flat, shape, strides):
    """The Guarded of type `result` that begins `flat` elements behind the first of an array of type `x`:
    LLVM's values."""
    old = cgutils.create_struct_proxy(x)(context, builder, array)
    new = cgutils.create_struct_proxy(result)(context, builder)
    cell = {LOCAL: 1, BARE: 0, BOUNDED: 0}.get(x.watch, 16)
    new.data = builder.add(old.data, builder.mul(flat, WORD(x.pitch)))
    new.shadow = builder.add(old.shadow, builder.mul(flat, WORD(cell)))
    new.shape, new.strides, new.state = shape, strides, old.state
    return new._getvalue()


@functools.cache
def viewer(result):
    """The intrinsic (array, flat, shape, strides) -> the Guarded of type `result` that begins `flat` elements
    behind the first of the array."""

    @intrinsic
    def viewed(typing, x, flat, shape, strides):
        def code(context, builder, signature, arguments):
            return view(context, builder, x, result, *arguments)

        sides = types.UniTuple(int64, result.ndim)
        return result(x, int64, sides, sides), code

    return viewed


# --- arrays over threads ------------------------------------------------------------------------------------


def bytes_over(threads):
    """The bytes of an array over the threads of a block, in whole warps: 16 for each, and a cache line more,
    so that those of one thread in many arrays lie in many sets of a cache."""
    return 16 * (-(-threads // 32) * 32) + 64


BYTES_OVER = words(bytes_over)  # compiled


@functools.cache
def over_threads(name):
    """The intrinsic (kept, position, threads) -> the Guarded of the number type of this name that is at a
    position among arrays over threads, which lie one behind the other from the address `kept` on."""
    numba_type = GuardedType(numba_type_of(name), 1, True, BARE)

    @intrinsic
    def over(typing, kept, position, threads):
        def code(context, builder, signature, arguments):
            kept, position, threads = arguments
            each = BYTES_OVER.words.call(context, builder, threads)
            array = cgutils.create_struct_proxy(numba_type)(context, builder)
            array.data = builder.add(kept, builder.mul(position, each))
            array.shape = cgutils.pack_array(builder, [threads])
            return array._getvalue()

        return numba_type(int64, int64, int64), code

    return over


# --- columns ------------------------------------------------------------------------------------------------


class Referenced:
    """A record (numpy.void), whose memory is `array`, for compiled code."""

    __slots__ = ("records", "_numba_type_")

    def __init__(self, array, *watched):
        self.records = Guarded(array, *watched)
        self._numba_type_ = ReferenceType(self.records._numba_type_)


class ReferenceType(types.Type):
    """One element of an array of records: the array and the index; its fields are elements of the array's
    columns."""

    def __init__(self, array):
        self.array = array
        super().__init__(f"Reference({array})")


@register_model(ReferenceType)
class ReferenceModel(models.StructModel):
    def __init__(self, manager, numba_type):
        index = types.UniTuple(int64, numba_type.array.ndim)
        super().__init__(manager, numba_type, [("records", numba_type.array), ("place", index)])


for _member in ("records", "place"):
    make_attribute_wrapper(ReferenceType, _member, f"_{_member}_")


@unbox(ReferenceType)
def unbox_reference(numba_type, value, c):
    reference = cgutils.create_struct_proxy(numba_type)(c.context, c.builder)
    records = c.pyapi.object_getattr_string(value, "records")
    reference.records = c.unbox(numba_type.array, records).value
    c.pyapi.decref(records)
    reference.place = cgutils.pack_array(c.builder, [], WORD)
    return NativeValue(reference._getvalue())


@functools.cache
def column(records, dtype, offset):
    """The intrinsic (array) -> the Guarded of its elements' parts that have this dtype and begin `offset`
    bytes behind the element."""
    numba_type = GuardedType(
        numba_type_of(dtype), records.ndim, records.rowwise, records.watch, records.sizes, records.pitch
    )

    @intrinsic
    def parts(typing, x):
        def code(context, builder, signature, arguments):
            old = cgutils.create_struct_proxy(x)(context, builder, arguments[0])
            new = cgutils.create_struct_proxy(numba_type)(context, builder)
            new.data = builder.add(old.data, WORD(offset))
            new.shape, new.strides, new.shadow, new.state = old.shape, old.strides, old.shadow, old.state
            return new._getvalue()

        return numba_type(x), code

    return parts


def field_of(x, name):
    """The intrinsic (array of records, of type `x`) -> the column of this field; None where there is none, or
    none that is compiled."""
    if is_record(x) and name in dtype_of(x.dtype).names:
        dtype, offset = dtype_of(x.dtype).fields[name][:2]
        return None if dtype.subdtype or dtype.names else column(x, dtype, offset)


def is_record(x):
    """Whether a Guarded has records for elements."""
    return isinstance(x, GuardedType) and isinstance(x.dtype, types.Record)


@functools.cache
def know_field(name):
    """From here on Numba knows the attribute `name` of arrays of records and of references to one."""

    if name not in OWN:

        @overload_attribute(GuardedType, name, **LIKE_CODE)
        def of_array(x):
            parts = field_of(x, name)
            return parts and (lambda x: parts(x))

    @overload_attribute(ReferenceType, name, **LIKE_CODE)
    def of_record(x):
        parts = field_of(x.array, name)
        return parts and (lambda x: parts(x._records_)[x._place_])


@overload_attribute(GuardedType, "real", **LIKE_CODE)
def real(x):
    return part_of_complex(x, 0) if isinstance(x.dtype, types.Complex) else lambda x: x


@overload_attribute(GuardedType, "imag", **LIKE_CODE)
def imaginary(x):
    return part_of_complex(x, 1) if isinstance(x.dtype, types.Complex) else None


def part_of_complex(x, position):
    size = dtype_of(x.dtype).itemsize // 2
    parts = column(x, np.dtype(f"f{size}"), position * size)
    return lambda x: parts(x)
