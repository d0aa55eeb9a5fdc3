"""Subscripts of arrays, records and tuples in compiled code: `x[...]` and `x[...] = value`, with slices."""

import operator

from numba import types
from numba.core import cgutils
from numba.core.imputils import impl_ret_borrowed
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.cpython import slicing
from numba.extending import lower_builtin

from sim.native.codegen.arrays import Array, GuardedType, ReferenceType, is_record, packed
from sim.native.codegen.elements import (
    Element,
    FromEnd,
    axis_position,
    codes_of,
    column,
    column_type,
    field,
    index_parts,
    is_element,
    is_index,
    locate_element,
)
from sim.native.codegen.int64_translation import I64
from sim.native.codegen.scalars import dtype_of
from sim.native.codegen.shadow import BARE, clamp_index


@infer_global(operator.getitem)
class Getitem(AbstractTemplate):
    """Typing rule for `x[...]`. The result is an element, a reference to a record, a subarray, or a column of
    records. A FromEnd index also selects from a tuple."""

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
    """Typing rule for `x[...] = value`, which assigns to an element, a field or a subarray. A subarray
    accepts one number, or an array that can be broadcast to it."""

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
        # `x[index]` is a subarray. If accesses are logged, this is not supported: the log needs an entry per
        # element.
        else:
            fits = x.site is None and getattr(value, "ndim", 0) <= subarray_type(x, index).ndim
            fits = fits and is_number_like(number, x.dtype)
        return signature(types.none, x, index, value) if fits else None


def is_number_like(value, wanted):
    """Return whether a value can be converted to the element type `wanted`. A complex value fits only a
    complex element."""
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
    # A record is only an address here. Its fields are checked and loaded when they are read.
    reference.records, reference.index = arguments[0], packed(builder, element.given)
    return reference._getvalue()


@lower_builtin(operator.getitem, types.BaseTuple, FromEnd)
def getitem_of_tuple(context, builder, signature, arguments):
    """Emit `t[-back]` for a tuple `t`."""
    x, index = signature.args
    element = builder.extract_value(arguments[0], len(x) - index.back)
    return impl_ret_borrowed(context, builder, signature.return_type, element)


@lower_builtin(operator.getitem, ReferenceType, types.StringLiteral)
def getitem_of_record(context, builder, signature, arguments):
    """Emit a load of the record field `r["name"]`."""
    return field(context, builder, signature.args[0], arguments[0], signature.args[1].literal_value).read()


@lower_builtin(operator.setitem, ReferenceType, types.StringLiteral, types.Any)
def setitem_of_record(context, builder, signature, arguments):
    """Emit a store to the record field `r["name"]`."""
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
    # Copy a record field by field, because each field has its own check.
    for name in dtype_of(x.dtype).names:
        source = field(context, builder, given, value, name)
        Element(column(element.array, name), element.given).write(source.x.dtype, source.read())
    return context.get_dummy_value()


# --- subarrays ----------------------------------------------------------------------------------------------


def subarray_type(x, index):
    """Return the type of `x[index]` for an index that consists of integers and slices."""
    is_slice = [isinstance(part, types.SliceType) for part in index_parts(index)]
    sizes = (*[None] * sum(is_slice), *x.sizes[len(is_slice) :])
    return x.replace(ndim=len(sizes), rowwise=x.rowwise and not any(is_slice), sizes=sizes)


def subarray(array, index, code):
    """Return `array[index]` for an index that consists of integers and slices.

    index: the Numba type of the index.
    code: its LLVM value.
    """
    builder, flat, extents, strides = array.builder, I64(0), [], []
    for axis, (of, each) in enumerate(zip(index_parts(index), codes_of(builder, index, code), strict=True)):
        extent, stride = array.extent(axis), array.stride(axis)
        if isinstance(of, types.SliceType):
            start, length, step = slice_bounds(array.context, builder, of, each, extent)
            extents.append(length)
            strides.append(builder.mul(step, stride))
        else:
            start, wraps = axis_position(array, axis, of, each), I64(int(array.x.watch == BARE))
            start = array.call(clamp_index, start, extent, array.members.state, wraps)
        flat = builder.add(flat, builder.mul(start, stride))
    rest = range(len(index_parts(index)), array.x.ndim)
    extents, strides = [*extents, *map(array.extent, rest)], [*strides, *map(array.stride, rest)]
    return array.subarray(subarray_type(array.x, index), flat, extents, strides)


def slice_bounds(context, builder, numba_type, code, extent):
    """Return (start, length, step) of a slice, clamped to the extent of an axis as in Python."""
    bounds = context.make_helper(builder, numba_type, code)
    slicing.guard_invalid_slice(context, builder, numba_type, bounds)
    slicing.fix_slice(builder, bounds, extent)
    length = slicing.get_slice_length(builder, bounds)
    # The start of an empty slice can be out of range, so replace it by 0.
    is_nonempty = builder.icmp_signed(">", length, I64(0))
    return builder.select(is_nonempty, bounds.start, I64(0)), length, bounds.step


def fill(part, numba_type, value):
    """Fill a subarray with one number, or with the elements of an array, which is broadcast to the subarray's
    shape."""
    context, builder = part.context, part.builder
    with cgutils.loop_nest(builder, part.each_axis(part.extent), I64) as positions:
        number = value
        if isinstance(numba_type, GuardedType):
            source = Array(context, builder, numba_type, value)
            # An axis of length 1 is broadcast, so its index is always 0.
            is_single = [
                builder.icmp_signed("==", extent, I64(1)) for extent in source.each_axis(source.extent)
            ]
            tests = zip(is_single, positions[part.x.ndim - len(is_single) :])
            number = Element(source, [builder.select(test, I64(0), at) for test, at in tests]).read()
        Element(part, positions).write(getattr(numba_type, "dtype", numba_type), number)
