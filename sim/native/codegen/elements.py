"""Array elements and subarrays in compiled code: resolve an index, check the access
(sim.native.codegen.shadow), load or store.

The code is emitted as LLVM instructions, because Numba would compile a separate function for each combination
of array type and index type.
"""

import operator
from functools import reduce

from llvmlite import ir
from numba import boolean, int64, types
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.cpython import slicing
from numba.extending import intrinsic, lower_builtin, models, register_model

from sim.memory.spaces import poisoned as fresh_bytes
from sim.native.codegen.access_log import DTYPES, SITE_SHIFT, SIZE_SHIFT, VALUE, VALUE_BITS, append
from sim.native.codegen.arrays import Array, GuardedType, ReferenceType, is_record, packed
from sim.native.codegen.scalars import convert, dtype_of, numba_type_of
from sim.native.codegen.shadow import BARE, BOUNDED, clamp_index, resolve_index, watch_load, watch_store

# names that generated code may use
EXPORTED = {"from_end"}
I8, I64 = ir.IntType(8), ir.IntType(64)


# --- indices ------------------------------------------------------------------------------------------------


def index_parts(index):
    """Return the types of an index's components: one per indexed axis."""
    return tuple(index) if isinstance(index, types.BaseTuple) else (index,)


class FromEnd(types.Opaque):
    """The Numba type of an index `-back`, which counts from the end of its axis. The index is part of the
    type."""

    def __init__(self, back):
        self.back = back
        super().__init__(f"FromEnd({back})")


register_model(FromEnd)(models.OpaqueModel)


@intrinsic(prefer_literal=True)
def from_end(typing, back):
    """Return an index that counts `back` elements from the end of an axis."""

    def code(context, builder, signature, arguments):
        return context.get_dummy_value()

    return FromEnd(back.literal_value)(back), code


def is_index(x, index, *also):
    """Return whether a type can index a Guarded: at most one component per axis, each an integer, a FromEnd,
    or one of the types in `also`."""
    parts = index_parts(index)
    return (
        isinstance(x, GuardedType)
        and len(parts) <= x.ndim
        and all(isinstance(part, (types.Integer, FromEnd, *also)) for part in parts)
    )


def is_element(x, index):
    """Return whether an index selects a single element, not a subarray."""
    return is_index(x, index) and len(index_parts(index)) == x.ndim


def codes_of(builder, index, code):
    """Return the LLVM values of an index's components."""
    return cgutils.unpack_tuple(builder, code) if isinstance(index, types.BaseTuple) else [code]


def index_value(context, builder, numba_type, code):
    """Return an index as i64. A uint64 above the int64 range becomes the largest int64, which is out of range
    for every array."""
    if numba_type != types.uint64:
        return context.cast(builder, code, numba_type, int64)
    most = I64(2**63 - 1)
    return builder.select(builder.icmp_unsigned("<", code, most), code, most)


def position(array, axis, numba_type, code):
    """Return the position along an axis that an index component selects. An out-of-range index
    yields an out-of-range position."""
    if not isinstance(numba_type, FromEnd):
        return index_value(array.context, array.builder, numba_type, code)
    extent, back = array.extent(axis), I64(numba_type.back)
    # For a shorter axis, keep the negative index, so that the check reports it.
    is_inside = array.builder.icmp_signed(">=", extent, back)
    return array.builder.select(is_inside, array.builder.sub(extent, back), I64(-numba_type.back))


# --- elements -----------------------------------------------------------------------------------------------


def locate_element(context, builder, x, value, index, code):
    """Return the Element that an index selects."""
    array, codes = Array(context, builder, x, value), codes_of(builder, index, code)
    parts = zip(index_parts(index), codes, strict=True)
    positions = [position(array, axis, *of) for axis, of in enumerate(parts)]
    return Element(array, positions)


class Element:
    """Code generation for one element of an Array.

    given: the position along each axis, which may be out of range.
    """

    def __init__(self, array, given):
        self.array, self.given = array, given
        self.context, self.builder, self.x = array.context, array.builder, array.x

    def flat_index(self, missing):
        """Return the element's offset from the first element, in elements. If the index is out of range,
        branch to the basic block `missing`."""
        builder, axes, extents = self.builder, range(self.x.ndim), self.array.each_axis(self.array.extent)
        # Compared as unsigned, a negative position exceeds every extent.
        is_inside = [builder.icmp_unsigned("<", *of) for of in zip(self.given, extents)]
        # Fast path: every position is in range. The block `slow_path` handles negative and invalid positions.
        before, slow_path = builder.block, builder.append_basic_block("slow_path")
        merge = builder.append_basic_block("merge")
        builder.cbranch(reduce(builder.and_, is_inside), merge, slow_path).set_weights([99, 1])
        builder.position_at_end(slow_path)
        state, wraps = self.array.members.state, I64(int(self.x.watch == BARE))
        positions = [self.array.call(resolve_index, *of, state, wraps) for of in zip(self.given, extents)]
        negative = [builder.icmp_signed("<", at, I64(0)) for at in positions]
        builder.cbranch(reduce(builder.or_, negative), missing, merge)
        self.slow_path = builder.block
        builder.position_at_end(merge)
        for axis in axes:
            # Merge the position as given with the position that the slow path resolved.
            at = builder.phi(I64)
            at.add_incoming(self.given[axis], before)
            at.add_incoming(positions[axis], self.slow_path)
            positions[axis] = at
        return self.flat(positions)

    def flat(self, positions):
        """Return the offset of the element at these positions."""
        terms = [self.builder.mul(at, self.array.stride(axis)) for axis, at in enumerate(positions)]
        return reduce(self.builder.add, terms, I64(0))

    def log(self, flat, writes):
        """Append the access to the access log. For a store or atomic (`writes`), append the new contents of
        the element as well."""
        builder, state, dtype = self.builder, self.array.members.state, dtype_of(self.x.dtype)
        address = builder.ptrtoint(self.array.pointer(flat), I64)
        header = I64(self.x.site << SITE_SHIFT | dtype.itemsize.bit_length() - 1 << SIZE_SHIFT)
        self.array.call(append, state, builder.or_(header, address))
        if not writes:
            return
        header = I64(VALUE << SITE_SHIFT | DTYPES.index(dtype.name) << VALUE_BITS)
        # One log entry per 4 bytes; smaller elements take one entry.
        part_type = ir.IntType(8 * min(dtype.itemsize, 4))
        for offset in range(0, dtype.itemsize, 4):
            part = builder.inttoptr(builder.add(address, I64(offset)), part_type.as_pointer())
            bits = builder.zext(builder.load(part, align=1), I64)
            self.array.call(append, state, builder.or_(header, bits))

    def access(self, check, do, otherwise=None):
        """Emit a checked access: call `do(flat)` if the element exists.

        check: the check of the access: watch_load, watch_store or watch_atomic.
        do: a function that emits the access at an offset, and returns its result or None.
        otherwise: the result for an element that does not exist. None for accesses without a result.
        """
        builder, members = self.builder, self.array.members
        # The element of a 0-dimensional array always exists.
        missing = builder.append_basic_block("missing") if self.given else None
        flat = self.flat_index(missing) if self.given else I64(0)
        if self.x.watch not in (BARE, BOUNDED):
            self.array.call(check, I64(self.x.watch), members.shadow, flat, members.state)
        value = do(flat)
        # Log after the access, because entries of stores contain the new value.
        if self.x.site is not None:
            self.log(flat, writes=check is not watch_load)
        after = builder.block
        if missing is None:
            return value
        builder.branch(missing)
        builder.position_at_end(missing)
        if otherwise is None:
            return None
        result = builder.phi(value.type)
        result.add_incoming(value, after)
        result.add_incoming(otherwise, self.slow_path)
        return result

    def read(self):
        """Emit a checked load. An out-of-range element reads as poison."""
        return self.access(watch_load, self.array.load, poison_of(self.context, self.x.dtype))

    def write(self, numba_type, value):
        """Emit a checked store, with conversion to the element type."""
        value = convert(self.context, self.builder, numba_type, self.x.dtype, value)
        self.access(watch_store, lambda flat: self.array.store(flat, value))


def fresh_byte(numba_type):
    """Return the byte with which uninitialised memory of this type is filled."""
    return int(fresh_bytes(1, dtype_of(numba_type))[0])


def poison_of(context, numba_type):
    """Return the result of an invalid load: the value whose bytes all equal `fresh_byte`."""
    value = context.get_value_type(numba_type)
    if isinstance(numba_type, types.Complex):
        part = poison_of(context, numba_type.underlying_float)
        return ir.Constant(value, [part, part])
    # Booleans are i1, and 0xFF as a bool is True.
    if numba_type == boolean:
        return value(1)
    size = dtype_of(numba_type).itemsize
    bits = ir.IntType(8 * size)(int.from_bytes([fresh_byte(numba_type)] * size, "little"))
    return bits if isinstance(value, ir.IntType) else bits.bitcast(value)


# --- fields of records --------------------------------------------------------------------------------------


def column_type(x, name):
    """Return the type of the column for a record field, or None if the field does not exist or has no
    compiled form (subarrays and nested records)."""
    if is_record(x) and name in dtype_of(x.dtype).names:
        dtype = dtype_of(x.dtype)[name]
        return None if dtype.subdtype or dtype.names else x.replace(dtype=numba_type_of(dtype))
    return None


def column(array, name):
    """Return the column for a record field, as an Array."""
    return array.element_parts(column_type(array.x, name), dtype_of(array.x.dtype).fields[name][1])


def field(context, builder, x, value, name):
    """Return the Element for a field of a record whose type is the ReferenceType `x`."""
    reference = cgutils.create_struct_proxy(x)(context, builder, value)
    records = Array(context, builder, x.array, reference.records)
    return Element(column(records, name), cgutils.unpack_tuple(builder, reference.index))


# --- subscripts ---------------------------------------------------------------------------------------------


@infer_global(operator.getitem)
class Getitem(AbstractTemplate):
    """Typing of `x[...]`. The result is an element, a reference to a record, a subarray, or a field. FromEnd
    indices also work on tuples."""

    def generic(self, arguments, keywords):
        x, index = arguments
        if isinstance(index, types.StringLiteral) and isinstance(x, (GuardedType, ReferenceType)):
            of = column_type(getattr(x, "array", x), index.literal_value)
            return of and signature(of if isinstance(x, GuardedType) else of.dtype, x, index)
        if isinstance(x, types.BaseTuple) and isinstance(index, FromEnd) and index.back <= len(x):
            return signature(x.types[-index.back], x, index)
        if not is_index(x, index, types.SliceType):
            return None
        if not is_element(x, index):
            return signature(subarray_type(x, index), x, index)
        return signature(ReferenceType(x.replace()) if is_record(x) else x.dtype, x, index)


@infer_global(operator.setitem)
class Setitem(AbstractTemplate):
    """Typing of `x[...] = value` for an element, a field, or a subarray. A subarray accepts one number, or an
    array that can be broadcast to it."""

    def generic(self, arguments, keywords):
        x, index, value = arguments
        number = value.dtype if isinstance(value, GuardedType) else value
        if isinstance(x, ReferenceType) and isinstance(index, types.StringLiteral):
            of = column_type(x.array, index.literal_value)
            fits = of and is_number_like(value, of.dtype)
        elif not is_index(x, index, types.SliceType):
            return None
        elif is_record(x):
            fits = is_element(x, index) and isinstance(value, ReferenceType) and x.site is None
        elif is_element(x, index):
            fits = is_number_like(value, x.dtype)
        # A subarray, which is not supported if accesses are logged: there would be no entry per element.
        else:
            fits = x.site is None and getattr(value, "ndim", 0) <= subarray_type(x, index).ndim
            fits = fits and is_number_like(number, x.dtype)
        return signature(types.none, x, index, value) if fits else None


def is_number_like(value, wanted):
    """Return whether a value can be converted to the element type `wanted`. Complex values only fit complex
    elements."""
    is_number = isinstance(value, (types.Number, types.Boolean, types.IntEnumMember))
    return is_number and (isinstance(wanted, types.Complex) or not isinstance(value, types.Complex))


@lower_builtin(operator.getitem, GuardedType, types.Any)
def getitem(context, builder, signature, arguments):
    """Emit `x[...]` for an array."""
    x, index = signature.args
    if isinstance(index, types.StringLiteral):
        return column(Array(context, builder, x, arguments[0]), index.literal_value).value
    if not is_element(x, index):
        return subarray(Array(context, builder, x, arguments[0]), index, arguments[1]).value
    element = locate_element(context, builder, x, arguments[0], index, arguments[1])
    if not is_record(x):
        return element.read()
    reference = cgutils.create_struct_proxy(signature.return_type)(context, builder)
    # Only the address is formed; fields are loaded and checked when they are read.
    reference.records, reference.index = arguments[0], packed(builder, element.given)
    return reference._getvalue()


@lower_builtin(operator.getitem, types.BaseTuple, FromEnd)
def getitem_of_tuple(context, builder, signature, arguments):
    """Emit `t[-back]` for a tuple."""
    x, index = signature.args
    element = builder.extract_value(arguments[0], len(x) - index.back)
    return impl_ret_borrowed(context, builder, signature.return_type, element)


@lower_builtin(operator.getitem, ReferenceType, types.StringLiteral)
def getitem_of_record(context, builder, signature, arguments):
    """Emit a load of `r["name"]`."""
    return field(context, builder, signature.args[0], arguments[0], signature.args[1].literal_value).read()


@lower_builtin(operator.setitem, ReferenceType, types.StringLiteral, types.Any)
def setitem_of_record(context, builder, signature, arguments):
    """Emit a store to `r["name"]`."""
    x, index, source = signature.args
    field(context, builder, x, arguments[0], index.literal_value).write(source, arguments[2])
    return context.get_dummy_value()


@lower_builtin(operator.setitem, GuardedType, types.Any, types.Any)
def setitem(context, builder, signature, arguments):
    """Emit `x[...] = value` for an array."""
    x, index, given = signature.args
    array, index_code, value = arguments
    if not is_element(x, index):
        fill(subarray(Array(context, builder, x, array), index, index_code), given, value)
        return context.get_dummy_value()
    element = locate_element(context, builder, x, array, index, index_code)
    if not is_record(x):
        element.write(given, value)
        return context.get_dummy_value()
    # Copy a record field by field, so that each field is checked.
    for name in dtype_of(x.dtype).names:
        source = field(context, builder, given, value, name)
        Element(column(element.array, name), element.given).write(source.x.dtype, source.read())
    return context.get_dummy_value()


# --- subarrays ----------------------------------------------------------------------------------------------


def subarray_type(x, index):
    """Return the type of `x[index]`, for an index of integers and slices."""
    is_slice = [isinstance(part, types.SliceType) for part in index_parts(index)]
    sizes = (*[None] * sum(is_slice), *x.sizes[len(is_slice) :])
    return x.replace(ndim=len(sizes), rowwise=x.rowwise and not any(is_slice), sizes=sizes)


def subarray(array, index, code):
    """Return `array[index]`, for an index of integers and slices. `code` contains the LLVM values."""
    builder, flat, extents, strides = array.builder, I64(0), [], []
    for axis, (of, each) in enumerate(zip(index_parts(index), codes_of(builder, index, code), strict=True)):
        extent, stride = array.extent(axis), array.stride(axis)
        if isinstance(of, types.SliceType):
            start, length, step = slice_bounds(array.context, builder, of, each, extent)
            extents.append(length)
            strides.append(builder.mul(step, stride))
        else:
            start, wraps = position(array, axis, of, each), I64(int(array.x.watch == BARE))
            start = array.call(clamp_index, start, extent, array.members.state, wraps)
        flat = builder.add(flat, builder.mul(start, stride))
    rest = range(len(index_parts(index)), array.x.ndim)
    extents, strides = [*extents, *map(array.extent, rest)], [*strides, *map(array.stride, rest)]
    return array.subarray(subarray_type(array.x, index), flat, extents, strides)


def slice_bounds(context, builder, numba_type, code, extent):
    """Return (start, length, step) of a slice, clamped to an axis as in Python."""
    bounds = context.make_helper(builder, numba_type, code)
    slicing.guard_invalid_slice(context, builder, numba_type, bounds)
    slicing.fix_slice(builder, bounds, extent)
    length = slicing.get_slice_length(builder, bounds)
    # The start of an empty slice may be out of range; use 0.
    is_nonempty = builder.icmp_signed(">", length, I64(0))
    return builder.select(is_nonempty, bounds.start, I64(0)), length, bounds.step


def fill(part, numba_type, value):
    """Fill a subarray with one number, or with the elements of an array, which is broadcast to its shape."""
    context, builder = part.context, part.builder
    with cgutils.loop_nest(builder, part.each_axis(part.extent), I64) as positions:
        number = value
        if isinstance(numba_type, GuardedType):
            source = Array(context, builder, numba_type, value)
            # Axes of length 1 are broadcast.
            is_single = [
                builder.icmp_signed("==", extent, I64(1)) for extent in source.each_axis(source.extent)
            ]
            tests = zip(is_single, positions[part.x.ndim - len(is_single) :])
            number = Element(source, [builder.select(test, I64(0), at) for test, at in tests]).read()
        Element(part, positions).write(getattr(numba_type, "dtype", numba_type), number)
